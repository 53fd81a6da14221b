"""From an episode's steps to the frames that a buffer stores. Pure.

| layout | frames of `N + 1` steps | frame `t` |
| --- | --- | --- |
| `'transition'` | `N` | a dict: `o_t`, `a_t`, reward and discount that followed, `o_t+1`, two flags, step metadata |
| `'trajectory'` | `N + 1` | TF-Agents' `Trajectory`; the last one is the boundary frame |
| `'step'` | `N + 1` | a dict, as RLDS has it: `o_t`, `a_t`, reward and discount, three flags, step metadata |

Rewards and discounts have the dtype that the steps were cut with (float32 by default, as
TF-Agents' agents take them); observations, actions and metadata keep the file's dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest

from .rlds_steps import (
    ACTION,
    DISCOUNT,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Steps,
    filler_of,
    map_leaves,
)

Layout = Literal["trajectory", "transition", "step"]

PolicyInfo = Sequence[str] | Callable[[Mapping[str, Nest]], Nest] | None
"""What a trajectory's `policy_info` holds: step metadata by name, or a function of step columns `[N + 1, ...]`."""

NEXT_OBSERVATION = "next_observation"
IS_TRUNCATED = "is_truncated"

_FIRST, _MID, _LAST = 0, 1, 2


def check_layout(layout: str) -> None:
    """Refuses an unknown layout.

    Raises:
      ValueError: `layout` is none of the layouts.
      ImportError: it is `'trajectory'` and TF-Agents is not installed.
    """
    if layout not in get_args(Layout):
        raise ValueError(f"layout must be one of {', '.join(map(repr, get_args(Layout)))}, got {layout!r}.")
    if layout == "trajectory":
        _trajectory_class()


def convert_steps(steps: Steps, layout: Layout, policy_info: PolicyInfo = None) -> Nest:
    """The frames of an episode, leaves `[T, ...]`; `T` is `N` or `N + 1`, by the layout."""
    if layout == "trajectory":
        return to_trajectory(steps, policy_info)
    return to_transitions(steps) if layout == "transition" else to_steps(steps)


def to_transitions(steps: Steps) -> dict[str, Nest]:
    """One frame for each transition, leaves `[N, ...]`.

    `is_terminal` is True on the transition into a terminal step (its discount is 0),
    `is_truncated` on the last one of an episode that stopped otherwise (its discount is its
    own: bootstrap from `next_observation`). Without actions or rewards in the dataset the
    dict has no such key. Step metadata of step `t` stands beside `o_t`, under its own name.

    Raises:
      ValueError: step metadata has the name of one of the fields above.

    >>> steps = Steps(np.array([0, 1, 2]), np.array([10, 11]), np.array([0.5, 1.0], np.float32),
    ...               np.array([1.0, 0.0], np.float32), is_terminal=True)
    >>> {name: column.tolist() for name, column in to_transitions(steps).items()}  # doctest: +NORMALIZE_WHITESPACE
    {'observation': [0, 1], 'action': [10, 11], 'reward': [0.5, 1.0], 'discount': [1.0, 0.0],
     'next_observation': [1, 2], 'is_terminal': [False, True], 'is_truncated': [False, False]}
    """
    num_transitions = len(steps.discount)
    is_terminal = np.zeros([num_transitions], bool)
    is_truncated = np.zeros([num_transitions], bool)
    is_terminal[-1] = steps.is_terminal
    is_truncated[-1] = not steps.is_terminal
    columns = {
        OBSERVATION: map_leaves(lambda leaf: leaf[:-1], steps.observation),
        ACTION: steps.action,
        REWARD: steps.reward,
        DISCOUNT: steps.discount,
        NEXT_OBSERVATION: map_leaves(lambda leaf: leaf[1:], steps.observation),
        IS_TERMINAL: is_terminal,
        IS_TRUNCATED: is_truncated,
    }
    frames = {name: column for name, column in columns.items() if column is not None}
    return _with_metadata(frames, steps, num_transitions, "transition", columns)


def to_steps(steps: Steps) -> dict[str, Nest]:
    """One frame for each step, leaves `[N + 1, ...]`, as RLDS has them.

    `discount` follows the rule: 0 into a terminal step, else the stored one, else 1. In the
    last step, where RLDS leaves them without a meaning, action and reward are zeros, and the
    discount is 0 if it is terminal, else 1. The three flags are set from the episode's bounds.

    Raises:
      ValueError: step metadata has the name of a field of RLDS that the dataset lacks.

    >>> steps = Steps(np.array([0, 1]), np.array([10]), np.array([0.5], np.float32), np.array([0.0], np.float32),
    ...               is_terminal=True, metadata={"energy": np.array([7, 8])})
    >>> {name: column.tolist() for name, column in to_steps(steps).items()}  # doctest: +NORMALIZE_WHITESPACE
    {'observation': [0, 1], 'action': [10, 0], 'reward': [0.5, 0.0], 'discount': [0.0, 0.0],
     'is_first': [True, False], 'is_last': [False, True], 'is_terminal': [False, True], 'energy': [7, 8]}
    """
    num_steps = len(steps.discount) + 1
    is_first, is_last = np.zeros([2, num_steps], bool)
    is_first[0] = is_last[-1] = True
    columns = {
        OBSERVATION: steps.observation,
        ACTION: _action_with_boundary(steps),
        REWARD: None if steps.reward is None else _with_boundary(steps.reward),
        DISCOUNT: _with_boundary(steps.discount, 0 if steps.is_terminal else 1),
        IS_FIRST: is_first,
        IS_LAST: is_last,
        IS_TERMINAL: is_last & steps.is_terminal,
    }
    frames = {name: column for name, column in columns.items() if column is not None}
    return _with_metadata(frames, steps, num_steps, "step", columns)


def to_trajectory(steps: Steps, policy_info: PolicyInfo = None) -> Any:
    """A TF-Agents `Trajectory`, leaves `[N + 1, ...]`.

    Frame `t` holds `o_t`, `a_t` and the reward and discount that followed. The last frame is
    the boundary frame: step_type LAST, next_step_type FIRST, the final observation, and as
    filler that nothing may read an action of zeros, reward 0 and discount 1 (what TF-Agents'
    drivers write there). Without actions in the dataset `action` is `()`; without rewards
    they are zeros, and the load report says so.

    Args:
      steps: a sound episode.
      policy_info: names of step metadata, which become a dict; a function of a dict of step
        columns `[N + 1, ...]` that gives a nest of arrays `[N + 1, ...]`; None: `policy_info` is `()`.

    Raises:
      ValueError: there is no step metadata of a name in `policy_info`.
      ValueError: an array that the function gives has not `N + 1` rows.

    >>> steps = Steps(np.array([0, 1, 2]), np.array([10, 11]), np.array([0.5, 1.0], np.float32),
    ...               np.array([1.0, 0.0], np.float32), is_terminal=True)
    >>> frames = to_trajectory(steps)
    >>> frames.step_type.tolist(), frames.next_step_type.tolist(), frames.discount.tolist()
    ([0, 1, 2], [1, 2, 0], [1.0, 0.0, 1.0])
    """
    num_transitions = len(steps.discount)
    step_type = np.full([num_transitions + 1], _MID, np.int32)
    step_type[0] = _FIRST
    step_type[-1] = _LAST
    reward = np.zeros([num_transitions], steps.discount.dtype) if steps.reward is None else steps.reward
    return _trajectory_class()(
        step_type=step_type,
        observation=steps.observation,
        action=() if steps.action is None else _action_with_boundary(steps),
        policy_info=_policy_info(steps, policy_info),
        next_step_type=np.roll(step_type, -1),
        reward=_with_boundary(reward),
        discount=_with_boundary(steps.discount, 1),
    )


def example_steps(step_spec: Mapping[str, Nest], dtype: np.dtype[Any] | type = np.float32) -> Steps:
    """An episode of one transition, all zeros: what specs are inferred from.

    >>> steps = example_steps({"observation": tf.TensorSpec([2], tf.uint8), "reward": tf.TensorSpec([1], tf.float64)})
    >>> steps.observation.shape, steps.reward.shape, steps.reward.dtype
    ((2, 2), (1,), dtype('float32'))
    """
    reward = None
    if REWARD in step_spec:
        shape = step_spec[REWARD].shape.as_list()
        reward = np.zeros([1, *([] if shape == [1] else shape)], dtype)
    core = (OBSERVATION, ACTION, REWARD, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL)
    return Steps(
        _example(2, step_spec[OBSERVATION]),
        _example(1, step_spec[ACTION]) if ACTION in step_spec else None,
        reward,
        np.ones([1], dtype),
        is_terminal=False,
        metadata={name: _example(2, spec) for name, spec in step_spec.items() if name not in core},
    )


def example_columns(step_spec: Mapping[str, Nest]) -> dict[str, Nest]:
    """The columns of a truncated episode of one transition, all zeros.

    >>> example_columns({"is_first": tf.TensorSpec([], tf.bool)})["is_first"].tolist()
    [True, False]
    """
    columns = {name: _example(2, spec) for name, spec in step_spec.items()}
    for name, flags in ((IS_FIRST, [1, 0]), (IS_LAST, [0, 1])):
        if name in columns:
            columns[name] = np.reshape(flags, np.shape(columns[name])).astype(columns[name].dtype)
    return columns


def spec_of_frames(frames: Nest) -> Nest:
    """The `data_spec` of one frame, from the frames of an episode, leaves `[T, ...]`.

    >>> spec_of_frames({"reward": np.zeros([5, 2], np.float32)})
    {'reward': TensorSpec(shape=(2,), dtype=tf.float32, name=None)}
    """
    return tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape[1:], tf.string if leaf.dtype == object else leaf.dtype), frames
    )


def _example(num_steps: int, nest: Nest) -> Nest:
    return tf.nest.map_structure(lambda spec: _zeros([num_steps, *spec.shape], spec.dtype), nest)


def _zeros(shape: Sequence[int], dtype: tf.DType) -> Array:
    return np.full(shape, b"", object) if dtype == tf.string else np.zeros(shape, dtype.as_numpy_dtype)


def _with_metadata(
    frames: dict[str, Nest], steps: Steps, num_rows: int, layout: str, reserved: Mapping[str, Nest]
) -> dict[str, Nest]:
    clashing = sorted(steps.metadata.keys() & reserved.keys())
    if clashing:
        raise ValueError(
            f"step metadata {', '.join(map(repr, clashing))} has the name of a field of layout {layout!r}; "
            f"fields={{{clashing[0]!r}: Drop()}} leaves it out."
        )
    metadata = map_leaves(lambda leaf: leaf[:num_rows], dict(steps.metadata))
    return {**frames, **metadata}


def _policy_info(steps: Steps, policy_info: PolicyInfo) -> Nest:
    if policy_info is None:
        return ()
    if not callable(policy_info):
        missing = [name for name in policy_info if name not in steps.metadata]
        if missing:
            raise ValueError(
                f"policy_info names {', '.join(map(repr, missing))}, but the loaded step metadata is "
                f"{sorted(steps.metadata)}."
            )
        return {name: steps.metadata[name] for name in policy_info}
    num_steps = len(steps.discount) + 1
    columns = to_steps(steps)
    chosen = tf.nest.map_structure(np.asarray, policy_info(columns))
    for leaf in tf.nest.flatten(chosen):
        if leaf.ndim == 0 or len(leaf) != num_steps:
            raise ValueError(
                f"policy_info gave an array of shape {list(leaf.shape)} for an episode of {num_steps} steps; expected "
                f"[{num_steps}, ...], a row for each step, the last one included."
            )
    return chosen


def _action_with_boundary(steps: Steps) -> Nest | None:
    return None if steps.action is None else map_leaves(_with_boundary, steps.action)


def _with_boundary(column: Array, filler: Any = None) -> Array:
    """`[N + 1, ...]` from `[N, ...]`: the boundary frame holds `filler`, by default zeros."""
    extended = np.empty([len(column) + 1, *column.shape[1:]], column.dtype)
    extended[:-1] = column
    extended[-1] = filler_of(column) if filler is None else filler
    return extended


def _trajectory_class() -> Any:
    try:
        from tf_agents.trajectories.trajectory import Trajectory
    except ImportError as error:
        raise ImportError(
            "layout='trajectory' makes TF-Agents Trajectories, and TF-Agents cannot be imported: install "
            "replayfeed[agents], or load with layout='transition'."
        ) from error
    return Trajectory
