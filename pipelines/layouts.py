"""From an episode's steps to the frames that a buffer stores. Pure.

| layout | frames of `N + 1` steps | frame `t` |
| --- | --- | --- |
| `'transition'` | `N` | a dict: `o_t`, `a_t`, the reward and discount that followed, `o_t+1`, two flags |
| `'trajectory'` | `N + 1` | TF-Agents' `Trajectory`; the last one is the boundary frame |

Rewards and discounts are float32, as TF-Agents' agents take them; observations and actions
keep the file's dtypes.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest

from .rlds_steps import ACTION, DISCOUNT, IS_TERMINAL, OBSERVATION, REWARD, Steps

Layout = Literal["trajectory", "transition"]

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


def convert_steps(steps: Steps, layout: Layout) -> Nest:
    """The frames of an episode, leaves `[T, ...]`; `T` is `N` or `N + 1`, by the layout."""
    return to_trajectory(steps) if layout == "trajectory" else to_transitions(steps)


def to_transitions(steps: Steps) -> dict[str, Nest]:
    """One frame for each transition, leaves `[N, ...]`.

    `is_terminal` is True on the transition into a terminal step (its discount is 0),
    `is_truncated` on the last one of an episode that stopped otherwise (its discount is its
    own: bootstrap from `next_observation`). Without actions or rewards in the dataset the
    dict has no such key.

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
        OBSERVATION: tf.nest.map_structure(lambda leaf: leaf[:-1], steps.observation),
        ACTION: steps.action,
        REWARD: steps.reward,
        DISCOUNT: steps.discount,
        NEXT_OBSERVATION: tf.nest.map_structure(lambda leaf: leaf[1:], steps.observation),
        IS_TERMINAL: is_terminal,
        IS_TRUNCATED: is_truncated,
    }
    return {name: column for name, column in columns.items() if column is not None}


def to_trajectory(steps: Steps) -> Any:
    """A TF-Agents `Trajectory`, leaves `[N + 1, ...]`.

    Frame `t` holds `o_t`, `a_t` and the reward and discount that followed. The last frame is
    the boundary frame: step_type LAST, next_step_type FIRST, the final observation, and as
    filler that nothing may read an action of zeros, reward 0 and discount 1 (what TF-Agents'
    drivers write there). Without actions in the dataset `action` is `()`; without rewards
    they are zeros, and the load report says so. `policy_info` is `()`.

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
    reward = np.zeros([num_transitions], np.float32) if steps.reward is None else steps.reward
    return _trajectory_class()(
        step_type=step_type,
        observation=steps.observation,
        action=()
        if steps.action is None
        else tf.nest.map_structure(lambda leaf: _with_boundary(leaf, 0), steps.action),
        policy_info=(),
        next_step_type=np.roll(step_type, -1),
        reward=_with_boundary(reward, 0),
        discount=_with_boundary(steps.discount, 1),
    )


def frame_spec(step_spec: dict[str, Nest], layout: Layout) -> Nest:
    """The `data_spec` of one frame, from the specs of one step's loaded fields.

    >>> of_step = {"observation": tf.TensorSpec([2], tf.uint8), "reward": tf.TensorSpec([1], tf.float64)}
    >>> spec = frame_spec(of_step, "transition")
    >>> spec["reward"], spec["next_observation"]
    (TensorSpec(shape=(), dtype=tf.float32, name=None), TensorSpec(shape=(2,), dtype=tf.uint8, name=None))
    """

    def zeros(num_steps: int, nest: Nest) -> Nest:
        return tf.nest.map_structure(lambda spec: np.zeros([num_steps, *spec.shape], spec.dtype.as_numpy_dtype), nest)

    reward = None
    if REWARD in step_spec:
        shape = step_spec[REWARD].shape.as_list()
        reward = np.zeros([1, *([] if shape == [1] else shape)], np.float32)
    action = zeros(1, step_spec[ACTION]) if ACTION in step_spec else None
    steps = Steps(zeros(2, step_spec[OBSERVATION]), action, reward, np.ones([1], np.float32), is_terminal=False)
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), convert_steps(steps, layout))


def _with_boundary(column: Array, filler: int) -> Array:
    """`[N + 1, ...]` from `[N, ...]`: the boundary frame holds `filler`."""
    extended = np.full([len(column) + 1, *column.shape[1:]], filler, column.dtype)
    extended[:-1] = column
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
