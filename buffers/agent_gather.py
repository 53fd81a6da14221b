"""Every frame held of each agent, out of what buffers of many agents hold. Eager."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from .agent_frames import PRESENT, AgentFrame, JointFrame
from .base import ReplayBuffer
from .nests import Array, Nest
from .reverb_buffer import ReverbReplayBuffer
from .spec import DataSpec


def all_frames(buffer: ReplayBuffer) -> Nest:
    """Every frame that a buffer holds, leaves ragged or not, `[R, T, ...]`: also where its streams differ in length."""
    if not isinstance(buffer, ReverbReplayBuffer):
        return buffer.gather_all()
    streams = buffer._gather_streams()
    if not streams:
        return buffer.gather_all()
    lengths = [len(leaves[0]) for leaves in streams]
    flat = [tf.constant(np.concatenate(leaf)) for leaf in zip(*streams, strict=True)]
    return DataSpec(buffer.data_spec).pack([tf.RaggedTensor.from_row_lengths(leaf, lengths) for leaf in flat])


def frames_of_streams(gathered: AgentFrame, streams: Sequence[Array]) -> list[Nest]:
    """The frames of some groups of streams, oldest first.

    Args:
      gathered: what a buffer's `gather_all` gave: leaves `[R, T, ...]`, ragged or not, in whatever order.
      streams: for each group the numbers of its streams, int64 `[B]`.

    Returns:
      For each group its nest, leaves ragged `[B, T, ...]`.

    >>> frame = AgentFrame(tf.constant([[10, 20, 11]]), tf.constant([[0, 0, 1]]), tf.constant([[0, 1, 0]]))
    >>> [group.to_list() for group in frames_of_streams(frame, [np.array([0]), np.array([1])])]
    [[[10, 11]], [[20]]]
    """
    flat = tf.nest.map_structure(_flat, gathered)
    times = flat.time.numpy()
    stream = np.zeros_like(times) if isinstance(flat.stream, tuple) else flat.stream.numpy()
    order = np.lexsort((times, stream))
    found = []
    for group in streams:
        mine = order[np.isin(stream[order], group)]
        lengths = np.bincount(np.searchsorted(group, stream[mine]), minlength=len(group))
        found.append(tf.nest.map_structure(lambda leaf: _ragged(leaf, mine, lengths), flat.frame))  # noqa: B023
    return found


def frames_of_agents(gathered: JointFrame, agents: Sequence[str]) -> dict[str, Nest]:
    """By agent its frames, oldest first, without the moments in which it was absent.

    Args:
      gathered: what a buffer's `gather_all` gave: leaves `[R, T, ...]`, ragged or not.
      agents: in the order of the codes.

    Returns:
      Leaves ragged `[R, T, ...]`.

    >>> codes = tf.constant([[[1, 1], [1, 0]]], tf.uint8)
    >>> joint = JointFrame({"a": tf.constant([[10, 11]]), "b": tf.constant([[20, 0]])}, codes, tf.constant([[0, 1]]))
    >>> {agent: rows.to_list() for agent, rows in frames_of_agents(joint, ["a", "b"]).items()}
    {'a': [[10, 11]], 'b': [[20]]}
    """
    flat = tf.nest.map_structure(_flat, gathered)
    if isinstance(gathered.codes, tf.RaggedTensor):
        row = gathered.codes.value_rowids().numpy()
        num_rows = int(gathered.codes.nrows())
    else:
        num_rows, length = gathered.codes.shape[:2]
        row = np.repeat(np.arange(num_rows), length)
    found = {}
    for index, agent in enumerate(agents):
        mine = np.flatnonzero(flat.codes.numpy()[:, index] & PRESENT)
        lengths = np.bincount(row[mine], minlength=num_rows)
        found[agent] = tf.nest.map_structure(
            lambda leaf: _ragged(leaf, mine, lengths),  # noqa: B023
            flat.frames[agent],
        )
    return found


def _flat(leaf: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
    """`[N, ...]` of `[R, T, ...]`."""
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.values
    return tf.reshape(leaf, [-1, *leaf.shape[2:]])


def _ragged(leaf: tf.Tensor, index: Array, lengths: Array) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(tf.gather(leaf, index), lengths)
