"""The in-process uniform buffer: a ring of frames, drawn uniformly over the eligible windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .episode_ends import FinalFrame
from .nests import Nest
from .ring_buffer import RingReplayBuffer


class TFUniformReplayBuffer(RingReplayBuffer):
    """Keeps the newest `max_length` frames of each stream and draws uniformly among them.

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

    Raises:
      TypeError: `batch_size`, `max_length`, `dataset_window_shift` or `min_size_to_sample` is no int.
      ValueError: one of them is below 1, or `min_size_to_sample` is above the capacity.
      ValueError: `device` is no CPU, or `seed` no int of at least 0.
      ValueError: the capacity does not fit into memory, or has 2**31 frames or more.
      TypeError, ValueError: as `DataSpec` and `EpisodeRule` raise them.

    >>> buffer = TFUniformReplayBuffer({"obs": tf.TensorSpec([2], tf.float32)}, batch_size=1, max_length=3, seed=0)
    >>> for step in range(5):
    ...     _ = buffer.add_batch({"obs": np.full([1, 2], step, np.float32)})
    >>> buffer.gather_all()["obs"].numpy().tolist()
    [[[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]]
    >>> items, info = next(iter(buffer.as_dataset(sample_batch_size=4, num_steps=2)))
    >>> items["obs"].shape, float(info.probabilities[0])
    (TensorShape([4, 2, 2]), 0.5)
    """

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
    ) -> None:
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
        )
