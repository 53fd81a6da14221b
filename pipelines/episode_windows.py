"""Training straight from disk: windows of offline episodes as a `tf.data.Dataset`, with no buffer between."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.counts import check_count
from replayfeed.buffers.nests import Nest
from replayfeed.buffers.windows import Window, resolve_window

from .episode_batches import stream_dataset
from .episode_blocks import EpisodeNumbers, stream_fields
from .episode_order import Order, StartPass, WindowCounts, WindowStream


def windows_dataset(
    start_pass: StartPass,
    element_spec: Nest,
    sample_batch_size: int | None = None,
    num_steps: int | None = None,
    *,
    name: str,
    layout: str,
    window: Window | None = None,
    epochs: int | None = None,
    single_deterministic_pass: bool = False,
    shuffle_frames: int = 100_000,
    seed: int | None = None,
    passes_alike: bool = True,
) -> tf.data.Dataset:
    """`Episodes.as_dataset`, which see, over anything that gives episodes.

    `info.probabilities` are 1 in an ordered pass, as in buffers. In shuffled ones they are 1 / windows of a pass: of
    the latest that was read to its end, and until there is one, of what the first has read so far.

    `info.ids` are `episode number * 2**32 + frame`, with the number of `EpisodeNumbers`. A pass that fits into
    `shuffle_frames` is read once and kept in memory; others are read anew each time, in another order.

    Args:
      start_pass: starts a pass over the episodes: with None in the source's order, with a seed in an order of it.
      element_spec: nest of specs of one frame; strings are allowed.
      sample_batch_size: `B`.
      num_steps: `T`.
      name: of the episodes, for messages.
      layout: of the frames; of a `'trajectory'` and of a `'step'` an episode's last frame starts no window.
      window: instead of `num_steps`.
      epochs: how many passes.
      single_deterministic_pass: in order, once.
      shuffle_frames: frames of a block; three blocks are in memory.
      seed: of all random choices.
      passes_alike: every pass brings the same episodes, so that one that fits into a block is read once.

    Raises:
      TypeError: an argument has the wrong type.
      ValueError: a size is below 1, two arguments exclude each other, or `window` ignores boundaries.
      ValueError: a field is of variable length.

    >>> from typing import NamedTuple
    >>> class Named(NamedTuple):
    ...     name: str
    ...     frames: Nest
    ...     num_frames: int
    ...     agent: str | None = None
    ...     place: int = -1
    >>> episodes = [Named("0", np.array([1, 2, 3]), 3), Named("1", np.array([4, 5]), 2)]
    >>> dataset = windows_dataset(lambda seed: episodes, tf.TensorSpec([], tf.int64), 2, name="mine",
    ...     layout="transition", window=Window(2), single_deterministic_pass=True)
    >>> for items, info in dataset:
    ...     print(items.numpy().tolist(), (info.ids.numpy() >> 32).tolist(), (info.ids.numpy() % 2**32).tolist())
    [[1, 2], [2, 3]] [[0, 0], [0, 0]] [[0, 1], [1, 2]]
    [[4, 5]] [[1, 1]] [[0, 1]]
    """
    check_count("sample_batch_size", sample_batch_size, optional=True)
    check_count("epochs", epochs, optional=True)
    check_count("shuffle_frames", shuffle_frames)
    wanted = resolve_window(num_steps, window)
    check_window(wanted)
    if epochs is not None and single_deterministic_pass:
        raise ValueError("give epochs (shuffled) or single_deterministic_pass (ordered), not both.")
    first_entropy = seed_entropy(seed)
    in_steps = num_steps is not None and single_deterministic_pass
    order = Order(
        wanted,
        1 if single_deterministic_pass else epochs,
        shuffled=not single_deterministic_pass,
        shift=num_steps if in_steps else None,
        keep_short=in_steps and sample_batch_size is None,
        shuffle_frames=int(shuffle_frames),
    )
    numbers, counts, iterators = EpisodeNumbers(), WindowCounts(), itertools.count()

    def open_stream() -> WindowStream:
        return WindowStream(
            name,
            start_pass,
            element_spec,
            order,
            final_observations=has_final_observations(layout),
            entropy=(*first_entropy, next(iterators)),
            numbers=numbers,
            counts=counts,
            passes_alike=passes_alike,
        )

    return stream_dataset(
        open_stream,
        element_spec,
        stream_fields(name, element_spec),
        wanted,
        sample_batch_size,
        is_endless=order.epochs is None,
        keep_short=order.keep_short,
    )


def has_final_observations(layout: str) -> bool:
    """Whether an episode's last frame is only a final observation, which starts no window.

    >>> has_final_observations("trajectory"), has_final_observations("step"), has_final_observations("transition")
    (True, True, False)
    """
    return layout in ("trajectory", "step")


def check_window(window: Window | None) -> None:
    """Refuses windows that join episodes.

    Raises:
      ValueError: `window.boundaries` is `'ignore'`.
    """
    if window is not None and window.boundaries == "ignore":
        raise ValueError(
            "offline episodes stay apart: boundaries='ignore' is for TFUniformReplayBuffer; leave 'exclude'."
        )


def seed_entropy(seed: Any) -> tuple[int, ...]:
    """What random choices follow from: the seed, or for None something new.

    Raises:
      ValueError: `seed` is no int of at least 0, and not None.

    >>> seed_entropy(7)
    (7,)
    """
    if seed is None:
        return tuple(np.random.SeedSequence().generate_state(4).tolist())
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0:
        raise ValueError(f"seed must be an int of at least 0, or None, got {seed!r}.")
    return (int(seed),)
