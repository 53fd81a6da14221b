"""What is stored of many agents: a frame of one of them, or a moment of all. Pure.

A *moment* is what the agents of one environment did in one of its steps. An agent that learns by itself stores an
`AgentFrame` for each moment in which it was present; agents that learn in lockstep store a `JointFrame` a moment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .nests import Array, Nest

# Bits of `JointFrame.codes`.
PRESENT = 1
LAST_OF_LIFE = 2
FIRST_OF_LIFE = 4


class AgentFrame(NamedTuple):
    """One agent's frame and where it belongs. Ends of episodes are read from `frame`.

    Attributes:
      frame: the agent's own nest.
      time: int64, the moment of its environment: moments count from 0 and are never counted anew.
      stream: int32, the number of the environment times that of the policy's agents, plus the agent's place among
        `agents_of(policy)` (`stream_of`), which tells the agent whatever `B` its writer has; `()` where there is one.

    >>> agent_frame_spec(tf.TensorSpec([2], tf.float32), has_stream=False).time.dtype
    tf.int64
    """

    frame: Nest
    time: Any
    stream: Any = ()


class JointFrame(NamedTuple):
    """What all agents did in a moment.

    Attributes:
      frames: by agent its nest; zeros where it is absent.
      codes: uint8 `[agents]`, in the order of `frames` in the buffer's `data_spec`, which is alphabetical in this
        process, and in tables that in which the agents were given: `PRESENT`, `LAST_OF_LIFE` on the frame with which an
        agent's life ends, and `FIRST_OF_LIFE` on one with which another begins where no frame ended the last.
      time: int64, as in `AgentFrame`.
      is_last: bool, the moment ends the environment's episode; `()` where the agents' specs do not tell ends.

    >>> joint_frame_spec({"a": tf.TensorSpec([2], tf.float32)}, told_by_spec=False).codes.shape
    TensorShape([1])
    """

    frames: dict[str, Nest]
    codes: Any
    time: Any
    is_last: Any = ()


def agent_frame_spec(data_spec: Nest, *, has_stream: bool) -> AgentFrame:
    """The spec of what is stored of an agent whose frames match `data_spec`; `has_stream`: there are several streams.

    >>> agent_frame_spec(tf.TensorSpec([2], tf.float32), has_stream=True).stream.dtype
    tf.int32
    """
    stream = tf.TensorSpec([], tf.int32, name="stream") if has_stream else ()
    return AgentFrame(data_spec, tf.TensorSpec([], tf.int64, name="time"), stream)


def joint_frame_spec(data_specs: dict[str, Nest], *, told_by_spec: bool) -> JointFrame:
    """The spec of a moment; `told_by_spec`: the agents' specs tell where an episode ends.

    >>> joint_frame_spec({"a": tf.TensorSpec([], tf.int64)}, told_by_spec=True).is_last.dtype
    tf.bool
    """
    return JointFrame(
        dict(data_specs),
        tf.TensorSpec([len(data_specs)], tf.uint8, name="codes"),
        tf.TensorSpec([], tf.int64, name="time"),
        tf.TensorSpec([], tf.bool, name="is_last") if told_by_spec else (),
    )


def stream_of(place: int, environments: Array, num_agents: int) -> Array:
    """`AgentFrame.stream`, int32, of an agent in these environments.

    >>> stream_of(1, np.array([0, 5]), 3)
    array([ 1, 16], dtype=int32)
    """
    return (environments * num_agents + place).astype(np.int32)


def life_mask(codes: Array, mask: Array, drawn: int) -> Array:
    """Which frames of windows of moments belong to the life of each agent that a window shows.

    That is the life of its first frame from the drawn one on: what comes before its birth or after its death is not
    real, nor is another life, of an agent that came back in the same episode. Moments in which the agent had no turn
    are not real either; its life goes on after them.

    Args:
      codes: uint8 `[B, T, agents]`, `JointFrame.codes`.
      mask: bool `[B, T]`, False on padding.
      drawn: index of the drawn frame, the window's burn-in.

    Returns:
      bool `[B, T, agents]`.

    >>> codes = np.array([[[1], [3], [0], [1]]], np.uint8)  # dies at 1, is born again at 3
    >>> life_mask(codes, np.ones([1, 4], bool), drawn=0)[0, :, 0].tolist()
    [True, True, False, False]
    >>> life_mask(codes, np.ones([1, 4], bool), drawn=2)[0, :, 0].tolist()
    [False, False, False, True]
    """
    present = (codes & PRESENT).astype(bool) & mask[..., None]
    if codes.shape[1] == 1 or (not drawn and not (codes & (LAST_OF_LIFE | FIRST_OF_LIFE)).any()):
        return present
    ends = present & (codes & LAST_OF_LIFE).astype(bool)
    begins = present & (codes & FIRST_OF_LIFE).astype(bool)
    life = np.cumsum(ends, axis=1) - ends + np.cumsum(begins, axis=1)
    # No life has a number so high: where an agent has no frame nothing is shown.
    shown = np.where(present[:, drawn:], life[:, drawn:], 2 * codes.shape[1] + 1).min(axis=1, keepdims=True)
    return np.asarray(present & (life == shown))


def life_mask_in_graph(codes: tf.Tensor, mask: tf.Tensor, drawn: int) -> tf.Tensor:
    """`life_mask` as graph ops."""

    def has(code: int) -> tf.Tensor:
        return tf.cast(tf.bitwise.bitwise_and(codes, tf.constant(code, tf.uint8)), tf.bool)

    present = has(PRESENT) & mask[..., None]
    if codes.shape[1] == 1:
        return present
    ends, begins = (tf.cast(present & has(code), tf.int32) for code in (LAST_OF_LIFE, FIRST_OF_LIFE))
    life = tf.cumsum(ends, axis=1, exclusive=True) + tf.cumsum(begins, axis=1)
    none = tf.fill(tf.shape(life), 2 * tf.shape(codes)[1] + 1)
    shown = tf.reduce_min(tf.where(present, life, none)[:, drawn:], axis=1, keepdims=True)
    return present & tf.equal(life, shown)
