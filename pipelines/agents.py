"""One agent's view of samples of many agents in lockstep."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replayfeed.buffers import BufferInfo, LockstepInfo

from .sample_windows import Transform

Nest = Any


def of_agent(agent: str, num_steps: int | None = None) -> Transform:
    """A function of `(items, info)` of a lockstep sample that gives those of one agent.

    What a `MultiAgentReplayBuffer` in lockstep draws becomes what a buffer of that agent alone would give: its items,
    and `info` with its mask. `n_step`, `stack_frames` and all other transforms work on it.

    Moments between two of its frames in which the agent had no turn are left out: its frames move together, and as much
    masked rows follow at the window's end. `info.times` still tells the moment of each. (In the sample itself rows are
    the same moments for all agents.) What is absent before its first frame of the window stays.

    Args:
      agent: whose.
      num_steps: rows to keep from the front, where windows are longer because agents take turns: `n_step(n)` wants
        `n + 1`. None: all.

    Raises:
      ValueError: when it is called: the items are not by agent, or have no such agent.

    >>> import tensorflow as tf
    >>> mask = {"a": tf.constant([[True, False, True, False]])}  # a and b take turns
    >>> ids, times = tf.constant([[5, 6, 7, 8]]), tf.constant([[0, 1, 2, 3]])
    >>> info = LockstepInfo(ids, tf.ones([1]), tf.constant([5]), tf.ones([1]), mask, times)
    >>> items, info = of_agent("a")({"a": tf.constant([[1, 0, 3, 0]])}, info)
    >>> items.numpy(), info.mask.numpy(), info.times.numpy()
    (array([[1, 3, 0, 0]], dtype=int32), array([[ True,  True, False, False]]), array([[0, 2, 1, 3]], dtype=int32))
    """

    @tf.autograph.experimental.do_not_convert
    def view(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
        if not isinstance(items, dict) or not isinstance(info, LockstepInfo) or not isinstance(info.mask, dict):
            raise ValueError(f"of_agent({agent!r}): the sample is not by agent; draw it from a buffer in lockstep.")
        if agent not in items:
            raise ValueError(f"of_agent: there is no agent {agent!r}; there are {', '.join(map(repr, items))}.")
        mine, mask = items[agent], tf.convert_to_tensor(info.mask[agent])
        if mask.shape.rank == tf.convert_to_tensor(info.keys).shape.rank:
            return mine, info._replace(mask=mask)
        rows, batch_dims = (mine, info.ids, mask, info.times), mask.shape.rank - 1
        moved = tf.cond(
            _has_gaps(mask), lambda: _without_gaps(rows, mask), lambda: tf.nest.map_structure(tf.identity, rows)
        )
        if num_steps is not None:
            moved = tf.nest.map_structure(lambda leaf: leaf[:, :num_steps] if batch_dims else leaf[:num_steps], moved)
        mine, ids, mask, times = moved
        return mine, info._replace(ids=ids, mask=mask, times=times)

    return view


def _has_gaps(mask: tf.Tensor) -> tf.Tensor:
    """Whether something is masked between two real rows, bool `[]`; `mask` is `[..., T]`."""
    real = tf.cast(mask, tf.int32)
    begins = tf.reduce_sum(tf.cast(real[..., 1:] > real[..., :-1], tf.int32), axis=-1) + real[..., 0]
    return tf.reduce_any(begins > 1)


def _without_gaps(rows: Nest, mask: tf.Tensor) -> Nest:
    """The rows `[..., T, *]` in an order in which from the first real one on real ones come first."""
    place = tf.range(tf.shape(mask)[-1])
    before = place < tf.argmax(tf.cast(mask, tf.int32), axis=-1, output_type=tf.int32)[..., None]
    order = tf.argsort(tf.where(before, 0, tf.where(mask, 1, 2)), axis=-1, stable=True)
    batch_dims = mask.shape.rank - 1
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, order, axis=batch_dims, batch_dims=batch_dims), rows)
