"""From a buffer to what a DQN or Rainbow agent trains on, in one call."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from replayfeed.buffers import ReplayBuffer, Window
from replayfeed.buffers.counts import check_count

from .frame_stack import Pad, check_stack
from .layouts import NEXT_OBSERVATION
from .reduce_windows import FieldNames, reduce_windows
from .rlds_steps import ACTION, DISCOUNT, OBSERVATION, REWARD
from .step_fields import TERMINAL_NAMES, TRUNCATED_NAMES, FinalFrame, FlagNames, Names, subtree, top_level_fields
from .step_sum import StepSum

PREFETCHED = 2
"""Batches that are made while one is used."""


def replay_transitions(
    buffer: ReplayBuffer,
    batch_size: int | None,
    n: int = 3,
    gamma: float = 0.99,
    stack: int = 1,
    *,
    stacked: str | Sequence[str] | None = None,
    pad: Pad = "zero",
    pad_unfinished: bool = False,
    num_parallel_calls: int | None = None,
    observation: str = OBSERVATION,
    action: str | None = ACTION,
    reward: str = REWARD,
    discount: str | None = DISCOUNT,
    next_observation: str | None = NEXT_OBSERVATION,
    terminal: Names = TERMINAL_NAMES,
    truncated: Names = TRUNCATED_NAMES,
    final_frame: FinalFrame = "auto",
    next_action: bool = False,
    next_reward: bool = False,
    extras: Sequence[str] = (),
) -> tf.data.Dataset:
    """An endless dataset of n-step transitions, with frame stacks if asked, out of any buffer of the package.

    It draws `Window(n + 1, burn_in=stack - 1, short='pad')` (`n` frames where each holds its next observation), so
    that every step of every ended episode is drawn with the same chance, and does what `n_step` does. Frames are
    stored once; of a sample only the stack of its first frame and that of the frame reached are built, as
    `stack_frames` builds them.

    A batch was drawn at most `PREFETCHED` batches (2), and one for each parallel call, before the buffer's
    `as_dataset` would deliver it; without `batch_size` no earlier than there.

    Args:
      buffer: any buffer whose items are a `Trajectory`, a dict or a namedtuple. A served one must have
        been written in windows as long as these.
      batch_size: `B`; None: elements without a `B` axis.
      n: steps of a transition.
      gamma: factor of each step; a TF-Agents agent must have the same.
      stack: frames of a stack, `[84, 84]` to `[84, 84, stack]`.
      stacked: paths of the fields that are stacked, in the observation; None: all of it.
      pad: what stands where an episode is younger than the stack: `'zero'`, or `'repeat'` for its first frame.
      pad_unfinished: as in `Window`: also draw steps of which fewer than `n` are known so far. Of the newest frame none
        is: its mask is False and its weight 0.
      num_parallel_calls: of the maps.
      observation: names of the fields, here and below, as in `n_step`.
      action: as in `n_step`.
      reward: as in `n_step`.
      discount: as in `n_step`.
      next_observation: as in `n_step`.
      terminal: as in `n_step`.
      truncated: as in `n_step`.
      final_frame: as the buffer's.
      next_action: as in `n_step`.
      next_reward: as in `n_step`.
      extras: as in `n_step`.

    Returns:
      Elements `(Transition, info)` with leaves `[B, ...]`, or `(Trajectory, info)` with leaves `[B, 2, ...]`
      where the buffer's items are `Trajectory`s; see `n_step` for what is in them.

    Raises:
      TypeError: `n` or `stack` is no int.
      ValueError: `n` or `stack` is below 1, `gamma` is not in [0, 1], or another argument is none of its values.
      ValueError: the buffer keeps fewer than `n + stack` frames of a stream.
      ValueError: a field is not there, or a stacked one is not in the observation.
      As the buffer's `as_dataset`.

    >>> import numpy as np
    >>> from replayfeed.buffers import TFUniformReplayBuffer
    >>> spec = {"observation": tf.TensorSpec([2, 2], tf.uint8), "action": tf.TensorSpec([], tf.int32),
    ...         "reward": tf.TensorSpec([], tf.float32), "terminal": tf.TensorSpec([], tf.bool)}
    >>> buffer = TFUniformReplayBuffer(spec, batch_size=1, max_length=100, seed=0)
    >>> for step in range(20):
    ...     _ = buffer.add_batch({"observation": np.full([1, 2, 2], step, np.uint8), "action": np.zeros([1], np.int32),
    ...                           "reward": np.ones([1], np.float32), "terminal": np.array([step == 19])},
    ...                          end_of_episode=np.array([step == 19]))
    >>> transition, info = next(iter(replay_transitions(buffer, 32, n=3, gamma=0.99, stack=4)))
    >>> transition.observation.shape, transition.next_observation.shape, transition.discount.shape
    (TensorShape([32, 2, 2, 4]), TensorShape([32, 2, 2, 4]), TensorShape([32]))
    """
    step_sum = StepSum(n, gamma)
    check_stack(stack, pad)
    check_count("batch_size", batch_size, optional=True)
    fields = top_level_fields(buffer.data_spec)
    paths = [observation] if stacked is None else [stacked] if isinstance(stacked, str) else list(stacked)
    for path in paths:
        if path.split("/")[0] != observation:
            raise ValueError(f"stacked {path!r}: only what is in {observation!r} can be stacked.")
        subtree(buffer.data_spec, path)
    _check_capacity(buffer, n, stack)
    num_steps = n if next_observation is not None and next_observation in fields else n + 1
    window = Window(num_steps, burn_in=stack - 1, short="pad", pad_unfinished=pad_unfinished)
    reduce = reduce_windows(
        step_sum,
        FieldNames(observation, action, reward, next_observation, next_action, next_reward, tuple(extras)),
        FlagNames(discount, terminal, truncated, final_frame),
        called=f"replay_transitions(n={n}, stack={stack})",
        stack=stack,
        stacked=paths,
        pad=pad,
    )
    dataset = buffer.as_dataset(batch_size, num_parallel_calls=num_parallel_calls, window=window)
    dataset = dataset.map(reduce, num_parallel_calls, deterministic=None if num_parallel_calls is None else True)
    return dataset if batch_size is None else dataset.prefetch(PREFETCHED)


def _check_capacity(buffer: ReplayBuffer, n: int, stack: int) -> None:
    if buffer.capacity_unit != "frames":
        return
    kept = buffer.capacity // buffer.batch_size
    if kept < n + stack:
        raise ValueError(
            f"n={n} with stack={stack} needs {n + stack} frames of a stream, and this buffer keeps {kept} "
            f"(capacity {buffer.capacity} for {buffer.batch_size} streams): raise its capacity."
        )
