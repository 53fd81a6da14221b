"""Several offline datasets at once, each window from one of them by chance: straight from disk, no buffer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.base import Ids
from replayfeed.buffers.counts import check_count
from replayfeed.buffers.nests import Array, Nest, field_path, leaves_with_paths
from replayfeed.buffers.windows import Window, resolve_window

from .episode_batches import stream_dataset
from .episode_blocks import EPISODE_BITS, EpisodeNumbers, stream_fields
from .episode_order import Order, Taken, WindowCounts, WindowStream
from .episode_windows import check_window, has_final_observations, seed_entropy
from .episodes import Episodes


def mixed_windows(
    sources: Sequence[Episodes],
    weights: Sequence[float] | None = None,
    sample_batch_size: int | None = None,
    num_steps: int | None = None,
    *,
    window: Window | None = None,
    shuffle_frames: int = 100_000,
    seed: int | None = None,
) -> tf.data.Dataset:
    """An endless dataset of `(items, BufferInfo)`, leaves `[B, T, ...]`, of windows from several datasets.

    Each window is of source `i` with probability `weights[i] / sum(weights)`, whatever the ones before it were; which
    of that source's windows it is, is told in `Episodes.as_dataset`: each once in each of its epochs. A small source
    with a large weight is simply gone through more often.

    `info.probabilities` are those within the source, times its share. `info.ids` are
    `(episode * len(sources) + source) * 2**32 + frame`: `source_of` tells the source.

    Args:
      sources: as `load_rlds` gives them, all of the same layout and `element_spec`.
      weights: one for each, above 0; None: all the same.
      sample_batch_size: `B`; None: no such axis.
      num_steps: `T`; None, and no `window`: single frames, `[B, ...]`.
      window: instead of `num_steps`.
      shuffle_frames: of each source; three times as many of each are in memory.
      seed: the same seed gives the same batches in each run.

    Raises:
      TypeError: a source is no `Episodes`, or a count is no int.
      ValueError: no source; weights that are not one number above 0 for each; a size below 1.
      ValueError: the sources differ in layout, or in a field; the message names it.
      ValueError: `window` ignores boundaries, or a field is of variable length.

    >>> from replayfeed.pipelines.rlds_read import load_rlds
    >>> def source(first):
    ...     steps = {"observation": [[first, first + 1, first + 2]], "is_terminal": [[False, False, True]]}
    ...     return load_rlds(tf.data.Dataset.from_tensor_slices({"steps": steps}), layout="transition")
    >>> dataset = mixed_windows([source(0), source(100)], [3, 1], 1000, seed=0)
    >>> items, info = next(iter(dataset))
    >>> share = (items["observation"].numpy() >= 100).mean()
    >>> bool(abs(share - 0.25) < 0.06), bool((source_of(info.ids, 2) == (items["observation"].numpy() >= 100)).all())
    (True, True)
    """
    for source in sources:
        if not isinstance(source, Episodes):
            raise TypeError(f"sources must be Episodes, as load_rlds gives them, got {type(source).__name__}.")
    if not sources:
        raise ValueError("sources: expected at least one, got none.")
    shares = _shares(weights, len(sources))
    _check_alike(sources)
    check_count("sample_batch_size", sample_batch_size, optional=True)
    check_count("shuffle_frames", shuffle_frames)
    wanted = resolve_window(num_steps, window)
    check_window(wanted)
    first_entropy = seed_entropy(seed)
    spec = sources[0].element_spec
    order = Order(wanted, None, shuffled=True, shuffle_frames=int(shuffle_frames))
    numbers = [EpisodeNumbers(index, len(sources)) for index in range(len(sources))]
    counts = [WindowCounts() for _ in sources]
    iterators = itertools.count()

    def open_stream() -> _MixedStream:
        entropy = (*first_entropy, next(iterators))
        streams = [
            WindowStream(
                source.name,
                source.start_pass,
                spec,
                order,
                final_observations=has_final_observations(source.layout),
                entropy=(*entropy, 1 + index),
                numbers=numbers[index],
                counts=counts[index],
            )
            for index, source in enumerate(sources)
        ]
        return _MixedStream(streams, shares, np.random.default_rng([*entropy, 0]))

    return stream_dataset(
        open_stream, spec, stream_fields(sources[0].name, spec), wanted, sample_batch_size, is_endless=True
    )


def source_of(ids: Ids, num_sources: int) -> Array:
    """Which source of `mixed_windows` each id is of, int64, the shape of `ids`; -1 for padding.

    Args:
      ids: `info.ids` or `info.keys`.
      num_sources: how many were mixed.

    >>> source_of(np.array([(5 * 3 + 2) * 2**32 + 7, -1]), 3)
    array([ 2, -1])
    """
    given = np.asarray(ids, np.int64)
    return np.where(given < 0, -1, (given >> EPISODE_BITS) % num_sources)


class _MixedStream:
    """Windows of endless streams, each drawn from one of them."""

    def __init__(self, streams: Sequence[WindowStream], shares: Array, rng: np.random.Generator) -> None:
        self._streams = streams
        self._shares = shares
        self._rng = rng

    def take(self, num: int) -> Taken | None:
        """The next `num` windows."""
        chosen = self._rng.choice(len(self._streams), num, p=self._shares)
        # Where each window comes to stand: those of the first source first, as they are taken.
        places = np.argsort(chosen, kind="stable")
        nums = np.bincount(chosen, minlength=len(self._streams))
        mixed: list[Array] = []
        start = 0
        for stream, share, wanted in zip(self._streams, self._shares, nums.tolist(), strict=True):
            taken = stream.take(wanted) if wanted else None
            if taken is None:
                continue
            columns = [*taken.leaves, taken.keys, taken.chances * np.float32(share), taken.num_before, taken.num_after]
            if not mixed:
                mixed = [np.empty([num, *column.shape[1:]], column.dtype) for column in columns]
            for whole, column in zip(mixed, columns, strict=True):
                whole[places[start : start + wanted]] = column
            start += wanted
        *leaves, keys, chances, num_before, num_after = mixed
        return Taken(leaves, keys, chances, num_before, num_after)


def _shares(weights: Any, num_sources: int) -> Array:
    values = np.ones(num_sources) if weights is None else np.asarray(weights, np.float64)
    if values.shape != (num_sources,) or not np.isfinite(values).all() or not (values > 0).all():
        raise ValueError(f"weights: expected {num_sources} numbers above 0, one for each source, got {weights!r}.")
    return values / values.sum()


def _check_alike(sources: Sequence[Episodes]) -> None:
    first = sources[0]
    expected = _described(first.element_spec)
    for source in sources[1:]:
        if source.layout != first.layout:
            raise ValueError(
                f"{source.name} has the layout {source.layout!r}, {first.name} {first.layout!r}: load them alike."
            )
        found = _described(source.element_spec)
        for path in sorted(expected.keys() | found.keys()):
            want, got = expected.get(path, "no such field"), found.get(path, "no such field")
            if want != got:
                raise ValueError(
                    f"{source.name} differs from {first.name} in field {path!r}: expected {want}, got {got}; load only "
                    "fields that both have (fields=), or map the episodes first."
                )


def _described(spec: Nest) -> dict[str, str]:
    return {field_path(path): f"{leaf.shape} {leaf.dtype.name}" for path, leaf in leaves_with_paths(spec, ())}
