"""TF-Agents' own conversion of RLDS to trajectories, number by number, faults included.

`load_rlds` is right where this is not; it is here for those who have to reproduce a result, or
whose code calls `tf_agents.replay_buffers.rlds_to_reverb`, whose names and signatures these
functions have. What TF-Agents does, and `load_rlds` does not:

* The discount of the transition into a terminal step is the stored one. The 0 stands a frame
  later, on the boundary frame, which agents mask: where a file stores discounts of 1 they go
  on to bootstrap from terminal states.
* The boundary frame holds the last step's reward and action, which RLDS calls meaningless.
* An episode of one step becomes one frame from LAST to LAST, with or without `is_last`.
* Rewards keep the file's dtype. Discount and reward have to be there.

Where TF-Agents fails or gives what nobody can use, this goes on: observations, actions and
rewards that are nests are taken apart step by step (TF-Agents leaves both steps of a pair in
each frame), discounts are cast to float32, and step metadata of any width is let be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, compile_pack

from .feed import iterate
from .rlds_steps import (
    ACTION,
    DISCOUNT,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    LOADED_FIELDS,
    OBSERVATION,
    REWARD,
    STEPS,
    Columns,
    num_steps_of,
)

Step = Mapping[str, Nest]
"""One RLDS step: a nest of tensors for each field."""

PolicyInfoFn = Callable[[Step, Step], Nest]
"""From a step and the one behind it to `policy_info`, a nest of tensors."""

_FIRST, _MID, _LAST = 0, 1, 2

# Whose text people match.
_FAULTS = (
    "Terminal step must be the last step of an episode.",
    "Mid step should not be followed by a first step.",
    "Last step of an episode must be followed by a first step.",
)

# Steps are converted in blocks of about this size: long enough that the work for each costs nothing, short enough that
# blocks of images are small beside what else is in memory.
_BLOCK_BYTES = 4 << 20
_MAX_BLOCK = 1024


class Observer(Protocol):
    """What `push_rlds_to_reverb` calls: TF-Agents' `ReverbAddTrajectoryObserver` or `ReverbAddEpisodeObserver`."""

    def get_table_signature(self) -> Nest:
        """The signature of the table it writes to."""

    def __call__(self, trajectory: Any) -> None:
        """Takes one frame."""


def get_rlds_step_features() -> list[str]:
    """The fields that a step must have.

    >>> get_rlds_step_features()
    ['observation', 'action', 'reward', 'discount', 'is_first', 'is_last', 'is_terminal']
    """
    return list(LOADED_FIELDS)


def create_trajectory_data_spec(rlds_data: tf.data.Dataset) -> Any:
    """The `Trajectory` of specs of what `convert_rlds_to_trajectories` makes of a dataset.

    Names and bounds are TF-Agents' (`step_type`, `discount` in [0, 1]), since signatures of
    Reverb's tables compare them too.

    Args:
      rlds_data: RLDS episodes, dicts whose `'steps'` is a dataset of steps.

    Raises:
      ValueError: the elements have no `'steps'`.
      ValueError: the steps lack a field, see `get_rlds_step_features`.
      ImportError: TF-Agents is not installed.

    >>> steps = {"observation": np.zeros([3, 2]), "action": [0, 1, 0], "reward": [1.0, 2.0, 0.0], "discount": [1.0] * 3,
    ...          "is_first": [True, False, False], "is_last": [False, False, True], "is_terminal": [False] * 3}
    >>> episode = {"steps": tf.data.Dataset.from_tensor_slices(steps)}
    >>> spec = create_trajectory_data_spec(tf.data.Dataset.from_tensors(episode))
    >>> spec.observation, spec.step_type
    (TensorSpec(shape=(2,), dtype=tf.float64, name=None), TensorSpec(shape=(), dtype=tf.int32, name='step_type'))
    """
    step_spec = _checked_step_spec(rlds_data)
    from tf_agents.trajectories import time_step

    time_step_spec = time_step.time_step_spec(step_spec[OBSERVATION], step_spec[REWARD])
    return _trajectory_class()(
        step_type=time_step_spec.step_type,
        observation=step_spec[OBSERVATION],
        action=step_spec[ACTION],
        policy_info=(),
        next_step_type=time_step_spec.step_type,
        reward=time_step_spec.reward,
        discount=time_step_spec.discount,
    )


def convert_rlds_to_trajectories(
    rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None = None
) -> tf.data.Dataset:
    """A dataset of `Trajectory` frames, one for each step, the episodes one after the other.

    A step and the one behind it give a frame; behind the last step of the last episode stands
    a step of zeros with `is_first`. The steps are converted in blocks, so a fault comes up
    before any frame of its block, where TF-Agents still gives those before it.

    Args:
      rlds_data: RLDS episodes, dicts whose `'steps'` is a dataset of steps.
      policy_info_fn: makes the `policy_info` of each frame from its step and the step behind
        it, which at an episode's end is the first one of the next episode. It sees all fields
        of a step. Without it `policy_info` is `()`, and metadata is never read.

    Raises:
      ValueError: the elements have no `'steps'`.
      ValueError: the steps lack a field, see `get_rlds_step_features`.
      ImportError: TF-Agents is not installed.
      tf.errors.InvalidArgumentError: on reading: `is_terminal` is set without `is_last`; a step
        in the middle is followed by a first one; a last step is not followed by a first one.

    >>> steps = {"observation": [0, 1, 2], "action": [0, 1, 0], "reward": [1.0, 2.0, 9.0], "discount": [1.0] * 3,
    ...          "is_first": [True, False, False], "is_last": [False, False, True], "is_terminal": [False, False, True]}
    >>> episode = {"steps": tf.data.Dataset.from_tensor_slices(steps)}
    >>> frames = list(convert_rlds_to_trajectories(tf.data.Dataset.from_tensors(episode)).as_numpy_iterator())
    >>> [int(frame.step_type) for frame in frames], [float(frame.discount) for frame in frames]
    ([0, 1, 2], [1.0, 1.0, 0.0])
    """
    return _convert_blocks(rlds_data, policy_info_fn).unbatch()


def push_rlds_to_reverb(
    rlds_data: tf.data.Dataset, reverb_observer: Observer, policy_info_fn: PolicyInfoFn | None = None
) -> int:
    """Hands each frame of `convert_rlds_to_trajectories` to an observer, and counts them.

    Args:
      rlds_data: RLDS episodes, dicts whose `'steps'` is a dataset of steps.
      reverb_observer: TF-Agents' observer for trajectories or for episodes. It is called with
        frames of NumPy arrays.
      policy_info_fn: see `convert_rlds_to_trajectories`. As in TF-Agents the table's signature
        has to be the one without `policy_info`.

    Returns:
      How many frames the observer took; how many items they made is the observer's affair.

    Raises:
      ValueError: the elements have no `'steps'`.
      ValueError: the steps lack a field, see `get_rlds_step_features`.
      ValueError: the table's signature is not that of `create_trajectory_data_spec`.
      ImportError: TF-Agents is not installed.
      tf.errors.InvalidArgumentError: see `convert_rlds_to_trajectories`; frames of earlier blocks are in the table.

    >>> import types
    >>> steps = {"observation": [0, 1], "action": [0, 1], "reward": [1.0, 9.0], "discount": [1.0] * 2,
    ...          "is_first": [True, False], "is_last": [False, True], "is_terminal": [False, True]}
    >>> data = tf.data.Dataset.from_tensors({"steps": tf.data.Dataset.from_tensor_slices(steps)})
    >>> class Printer:
    ...     def get_table_signature(self):
    ...         from tf_agents.specs import tensor_spec
    ...         return tensor_spec.add_outer_dim(create_trajectory_data_spec(data))
    ...     def __call__(self, frame):
    ...         print(frame.observation, frame.reward, frame.next_step_type)
    >>> push_rlds_to_reverb(data, Printer())
    0 1.0 2
    1 9.0 0
    2
    """
    data_spec = create_trajectory_data_spec(rlds_data)
    from tf_agents.specs import tensor_spec

    if reverb_observer.get_table_signature() != tensor_spec.add_outer_dim(data_spec):
        raise ValueError("Replay buffer table signature spec should match RLDS data spec.")
    num_frames = 0
    for block in iterate(_convert_blocks(rlds_data, policy_info_fn).prefetch(2)):
        for frame in _frames_of(block):
            reverb_observer(frame)
            num_frames += 1
    return num_frames


def tf_agents_trajectory(columns: Columns) -> Any:
    """The frames that TF-Agents makes of one episode, a `Trajectory` with leaves `[N + 1, ...]`.

    Pure NumPy. `policy_info` is `()`. Observation, action and reward are the arrays that were
    given; the discount is float32. That an episode begins with its first step and ends with its
    last one is taken from the nesting, whether they have their flags or not.

    Args:
      columns: the steps, a nest of arrays `[N + 1, ...]` for each field; no steps give no frames.

    Raises:
      ValueError: the steps lack a field, see `get_rlds_step_features`.
      ValueError: `is_terminal` is set before the last step, or `is_last` is, or `is_first` behind the first one.
      ImportError: TF-Agents is not installed.

    >>> steps = {"observation": np.array([0, 1, 2]), "action": np.array([0, 1, 0]), "reward": np.array([1.0, 2.0, 9.0]),
    ...          "discount": np.ones([3]), "is_first": np.array([True, False, False]),
    ...          "is_last": np.array([False, False, True]), "is_terminal": np.array([False, False, True])}
    >>> frames = tf_agents_trajectory(steps)
    >>> frames.step_type.tolist(), frames.next_step_type.tolist(), frames.discount.tolist(), frames.reward.tolist()
    ([0, 1, 2], [1, 2, 0], [1.0, 1.0, 0.0], [1.0, 2.0, 9.0])
    """
    _check_step_fields(columns)
    trajectory_class = _trajectory_class()
    num_steps = num_steps_of(columns)
    is_first, is_last, is_terminal = (
        np.asarray(columns[flag]).reshape([num_steps]).astype(bool) for flag in (IS_FIRST, IS_LAST, IS_TERMINAL)
    )
    discount = np.asarray(columns[DISCOUNT]).reshape([num_steps]).astype(np.float32)
    places = np.arange(num_steps)
    begins, ends = places == 0, places == num_steps - 1
    _check_flags(is_terminal & ~ends, np.roll(is_first & ~begins, -1), is_last & ~ends)
    step_type = np.select([begins, ends], [_FIRST, _LAST], _MID).astype(np.int32)
    next_step_type = np.roll(step_type, -1)
    if num_steps == 1:
        step_type = next_step_type = np.array([_LAST], np.int32)
    return trajectory_class(
        step_type=step_type,
        observation=columns[OBSERVATION],
        action=columns[ACTION],
        policy_info=(),
        next_step_type=next_step_type,
        reward=columns[REWARD],
        discount=np.where(is_terminal, np.float32(0), discount),
    )


def _check_flags(*faulty: Array) -> None:
    """Bool `[N + 1]` for each fault: which steps have it."""
    for fault, steps in zip(_FAULTS, faulty, strict=True):
        if steps.any():
            raise ValueError(f"step {int(np.argmax(steps))} of {len(steps)}: {fault}")


class _Pairs(NamedTuple):
    """`T` steps, leaves `[T, ...]`, and those behind them; `num_before` steps were in earlier blocks."""

    num_before: tf.Tensor
    steps: Step
    following: Step


def _convert_blocks(rlds_data: tf.data.Dataset, policy_info_fn: PolicyInfoFn | None) -> tf.data.Dataset:
    """A dataset of `Trajectory` with leaves `[T, ...]`; `T` differs, and may be 0."""
    step_spec = _checked_step_spec(rlds_data)
    trajectory_class = _trajectory_class()
    if policy_info_fn is None:
        step_spec = {field: step_spec[field] for field in LOADED_FIELDS}

    def convert(num_before: tf.Tensor, steps: Step, following: Step) -> Any:
        is_first, is_last, is_terminal = (_flags(steps, flag) for flag in (IS_FIRST, IS_LAST, IS_TERMINAL))
        next_is_first, next_is_last = (_flags(following, flag) for flag in (IS_FIRST, IS_LAST))
        step_type = tf.where(is_first, _FIRST, tf.where(is_last, _LAST, _MID))
        next_step_type = tf.where(next_is_first, _FIRST, tf.where(next_is_last, _LAST, _MID))
        alone = (step_type == _FIRST) & (next_step_type == _FIRST)
        discount = tf.cast(tf.reshape(steps[DISCOUNT], [-1]), tf.float32)
        faulty = [is_terminal & ~is_last, ~is_last & ~is_first & next_is_first, is_last & ~next_is_first]
        with tf.control_dependencies(_assert_none(faulty, num_before)):
            return trajectory_class(
                step_type=tf.where(alone, _LAST, step_type),
                observation=steps[OBSERVATION],
                action=steps[ACTION],
                policy_info=(),
                next_step_type=tf.where(alone, _LAST, next_step_type),
                reward=steps[REWARD],
                discount=tf.where(is_last & is_terminal, 0.0, discount),
            )

    pairs = _paired(_blocks(rlds_data, step_spec))
    if policy_info_fn is None:
        return pairs.map(convert)

    def with_policy_info(frame: Any, step: Step, following: Step) -> Any:
        return frame._replace(policy_info=policy_info_fn(step, following))

    triples = pairs.map(lambda num_before, steps, following: (convert(num_before, steps, following), steps, following))
    # The user's function is for single steps.
    return triples.unbatch().map(with_policy_info).batch(_block_length(step_spec))


def _blocks(rlds_data: tf.data.Dataset, step_spec: Step) -> tf.data.Dataset:
    """All steps in turn: pairs of `[T, ...]` fields and whether the data end here, which the last one alone says."""

    def of_episode(episode: Mapping[str, Any]) -> tf.data.Dataset:
        steps = episode[STEPS]
        if set(steps.element_spec) != set(step_spec):
            steps = steps.map(lambda step: {field: step[field] for field in step_spec})
        return steps.batch(_block_length(step_spec)).map(lambda block: (block, False))

    return rlds_data.flat_map(of_episode).concatenate(tf.data.Dataset.from_tensors((_no_steps(step_spec), True)))


def _paired(blocks: tf.data.Dataset) -> tf.data.Dataset:
    """Each step with the one behind it; a block's last step waits for the next block."""
    waiting = _no_steps(blocks.element_spec[0], stacked=True)

    def pair(state: Any, element: Any) -> Any:
        (num_before, waiting), (block, at_end) = state, element
        end = {field: tf.nest.map_structure(tf.zeros_like, waiting[field]) for field in waiting}
        end[IS_FIRST] = tf.ones_like(waiting[IS_FIRST])
        behind = tf.cond(at_end, lambda: end, lambda: dict(block))
        steps = tf.nest.map_structure(lambda first, second: tf.concat([first, second], 0), waiting, behind)
        pairs = _Pairs(
            num_before,
            tf.nest.map_structure(lambda leaf: leaf[:-1], steps),
            tf.nest.map_structure(lambda leaf: leaf[1:], steps),
        )
        num_pairs = tf.shape(pairs.steps[IS_FIRST], tf.int64)[0]
        return (num_before + num_pairs, tf.nest.map_structure(lambda leaf: leaf[-1:], steps)), tuple(pairs)

    return blocks.scan((tf.constant(0, tf.int64), waiting), pair)


def _no_steps(step_spec: Step, *, stacked: bool = False) -> dict[str, Nest]:
    """Fields `[0, ...]`."""
    skip = 1 if stacked else 0
    return {
        field: tf.nest.map_structure(
            lambda spec: tf.zeros([0, *(size or 0 for size in spec.shape[skip:])], spec.dtype), nest
        )
        for field, nest in step_spec.items()
    }


def _flags(steps: Step, name: str) -> tf.Tensor:
    return tf.cast(tf.reshape(steps[name], [-1]), tf.bool)


def _assert_none(faulty: list[tf.Tensor], num_before: tf.Tensor) -> list[tf.Operation]:
    """Assertions that no step, `[T]`, has any of the faults."""
    return [
        tf.debugging.Assert(~tf.reduce_any(steps), [fault, "Step", num_before + tf.argmax(tf.cast(steps, tf.int32))])
        for fault, steps in zip(_FAULTS, faulty, strict=True)
    ]


def _block_length(step_spec: Step) -> int:
    step_bytes = sum(
        int(np.prod([size or 1 for size in spec.shape])) * spec.dtype.size for spec in tf.nest.flatten(dict(step_spec))
    )
    return int(np.clip(_BLOCK_BYTES // max(step_bytes, 1), 1, _MAX_BLOCK))


def _frames_of(block: Any) -> Iterator[Any]:
    """The frames of a block of eager tensors `[T, ...]`, one by one, as NumPy."""
    pack = compile_pack(block)
    leaves = [leaf.numpy() for leaf in tf.nest.flatten(block)]
    for frame in zip(*leaves, strict=True):
        yield pack(iter(frame))


def _checked_step_spec(rlds_data: tf.data.Dataset) -> Mapping[str, Nest]:
    episode_spec = rlds_data.element_spec
    if not isinstance(episode_spec, Mapping) or STEPS not in episode_spec:
        raise ValueError("No dataset representing RLDS steps exist in the data.")
    steps = episode_spec[STEPS]
    if not isinstance(steps, tf.data.DatasetSpec):
        raise ValueError(
            f"'steps' must be a dataset of steps, got {type(steps).__name__}; load_rlds takes stacked steps too."
        )
    if not isinstance(steps.element_spec, Mapping):
        raise ValueError(f"'steps' must be a dataset of dicts, got {steps.element_spec}.")
    _check_step_fields(steps.element_spec)
    return steps.element_spec


def _check_step_fields(step: Mapping[str, Any]) -> None:
    features = get_rlds_step_features()
    if not all(field in step for field in features):
        raise ValueError(f"Invalid RLDS step spec. Features expected are {features}, but found {list(step)}")


def _trajectory_class() -> Any:
    try:
        from tf_agents.trajectories.trajectory import Trajectory
    except ImportError as error:
        raise ImportError("TF-Agents cannot be imported: install replayfeed[agents].") from error
    return Trajectory
