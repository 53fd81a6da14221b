"""The in-process buffer for all draws but prioritized ones: a ring of frames, drawn uniformly or through a sampler."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

from .episode_ends import FinalFrame
from .item_samplers import ItemSampler
from .item_selectors import Selector
from .nests import Nest
from .ring_buffer import RingReplayBuffer
from .sampler_choice import check_remover, choose_sampler


class TFUniformReplayBuffer(RingReplayBuffer):
    """Keeps the newest `max_length` frames of each stream and draws uniformly among them, or through a `sampler`.

    The frames lie in NumPy memory that TensorFlow reads without a copy: adds cost what an
    array assignment costs, and `as_dataset` gathers in the graph. Any number of threads may
    add and sample. Storage stays on the CPU.

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame; fixed-width dtypes, static shapes.
      batch_size: `B`, streams that `add_batch` writes side by side.
      max_length: frames kept of each stream; `capacity` is `batch_size * max_length`.
      scope: TF-Agents' argument, without meaning here.
      device: TF-Agents' argument; storage is on the CPU, anything else is refused.
      table_fn: TF-Agents' argument, without meaning here.
      dataset_drop_remainder: in ordered and shuffled passes, leave out a last batch of fewer
        than `sample_batch_size`, and without `sample_batch_size` windows of fewer than `num_steps`.
      dataset_window_shift: frames from one window's start to the next in an ordered pass with
        `num_steps`; None: `num_steps`, so that windows do not overlap.
      stateful_dataset: TF-Agents' argument, without meaning here: datasets are always live.
      seed: makes `sample` and `as_dataset` repeat exactly; None: they differ in each run.
      end_of_episode_fn: `items -> bool [B]` (`[B, T]` in `add_sequence`) for specs that do not
        tell an episode's end themselves; gets the items as NumPy arrays.
      final_frame: `'auto'`, `'observation'` or `'ordinary'`: whether an episode's last frame
        is only a final observation, which starts no window (`episode_ends.py`).
      min_size_to_sample: frames that must be held before anything can be drawn.
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      sampler: which window is drawn next. `Uniform()`, the default. `Fifo()`: the one that was complete first, by age
        where several came at once. `Lifo()`: the one that came last. `MinHeap()`, `MaxHeap()`: that of the lowest or
        highest priority (of its drawn frame; 1 if none was given), the oldest of equal ones. Or an `ItemSampler` of
        your own, or a function without arguments that makes one. All but `Uniform()` give the same window again
        until something changes, as a served table does: for a queue add `max_times_sampled=1`. Their
        probabilities are 1, or what your sampler says; weights are 1.
      remover: `Fifo()`, which is what a ring does; other words are refused with a reason.
      max_times_sampled: windows are drawn at most so many times, each kind of window by a count of its own;
        0: any number of times. Their frames stay until they are overwritten, as parts of other windows. A batch of more
        than what is left is an `EmptyBufferError` that says how many are left, and takes nothing; a dataset raises
        it as `tf.errors.InvalidArgumentError`, and its iterator goes on when there is more. Passes
        (`single_deterministic_pass`, `epochs`) neither count nor are limited.
      newest_fraction: of a batch of `B` the last `round(newest_fraction * B)` rows are the newest windows that
        can be drawn, each once, in the order of their ids (all of them if there are fewer); the others are drawn as
        always, and may be among the newest too. The newest rows have probability 1; all weights are 1.
      eligible_fn: `items -> bool [B]` (`[B, T]` in `add_sequence`), as `end_of_episode_fn`, asked when frames are
        added: only frames for which it holds start windows, in draws and passes. Odds are even over those.
      storage_folder: on a disk that shall hold the frames, for a capacity larger than memory: the system keeps in
        memory what is in use, and a draw reads the rest. The files have no names and go with the process; forked
        children write into the same ones. Room on the disk is taken at once.

    Draws through a sampler, and all draws after a `delete`, are made in Python with the writer's lock held, also
    in datasets: one call for each batch. With a sampler other than `Uniform()`, or with `max_times_sampled`, a
    dataset draws each batch when it is asked for, and not ahead.

    Raises:
      TypeError: `batch_size`, `max_length`, `dataset_window_shift` or `min_size_to_sample` is no int.
      ValueError: one of them is below 1, or `min_size_to_sample` is above the capacity.
      ValueError: `device` is no CPU, or `seed` no int of at least 0.
      ValueError: the capacity does not fit into memory, or has 2**31 frames or more.
      OSError: `storage_folder` is not there, or has no room for the capacity.
      TypeError, ValueError: as `DataSpec` and `EpisodeRule` raise them.
      TypeError, ValueError: as `choose_sampler` and `check_remover` raise them, by name.

    >>> import numpy as np
    >>> import tensorflow as tf
    >>> from replayfeed.buffers import Fifo
    >>> buffer = TFUniformReplayBuffer({"obs": tf.TensorSpec([2], tf.float32)}, batch_size=1, max_length=3, seed=0)
    >>> for step in range(5):
    ...     _ = buffer.add_batch({"obs": np.full([1, 2], step, np.float32)})
    >>> buffer.gather_all()["obs"].numpy().tolist()
    [[[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]]
    >>> items, info = next(iter(buffer.as_dataset(sample_batch_size=4, num_steps=2)))
    >>> items["obs"].shape, float(info.probabilities[0])
    (TensorShape([4, 2, 2]), 0.5)
    >>> queue = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 10, sampler=Fifo(), max_times_sampled=1)
    >>> ids = queue.add_sequence([[10, 11, 12]])
    >>> queue.sample(2)[0].numpy(), queue.sample(1)[0].numpy()
    (array([10, 11]), array([12]))
    """

    _SAVED_SETTINGS: ClassVar[tuple[str, ...]] = (
        "batch_size",
        "max_length",
        "seed",
        "final_frame",
        "min_size_to_sample",
        "sampler",
        "max_times_sampled",
        "newest_fraction",
        "end_of_episode_fn",
        "eligible_fn",
    )

    def __init__(
        self,
        data_spec: Nest,
        batch_size: int,
        max_length: int = 1000,
        scope: str = "TFUniformReplayBuffer",
        device: str = "cpu:*",
        table_fn: Any = None,
        dataset_drop_remainder: bool = False,
        dataset_window_shift: int | None = None,
        stateful_dataset: bool = False,
        *,
        seed: int | None = None,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        min_size_to_sample: int = 1,
        cast: bool = False,
        sampler: Selector | ItemSampler | Callable[[], ItemSampler] | None = None,
        remover: Selector | None = None,
        max_times_sampled: int = 0,
        newest_fraction: float = 0.0,
        eligible_fn: Callable[[Nest], Any] | None = None,
        storage_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self._remember(locals())
        check_remover(remover)
        if not isinstance(scope, str):
            raise TypeError(f"scope must be a str, got {scope!r}; settings of this package are given by name.")
        super().__init__(
            data_spec,
            batch_size,
            max_length,
            device,
            dataset_drop_remainder,
            dataset_window_shift,
            seed=seed,
            end_of_episode_fn=end_of_episode_fn,
            final_frame=final_frame,
            min_size_to_sample=min_size_to_sample,
            cast=cast,
            eligible_fn=eligible_fn,
            storage_folder=storage_folder,
            rule=choose_sampler(sampler, max_times_sampled, newest_fraction),
        )
