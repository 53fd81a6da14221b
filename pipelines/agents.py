"""One agent's view of samples of many agents in lockstep."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replayfeed.buffers import BufferInfo, LockstepInfo

from .sample_windows import Transform

Nest = Any


def of_agent(agent: str, num_steps: int | None = None, *, burn_in: int = 0) -> Transform:
    """A function of `(items, info)` of a lockstep sample that gives those of one agent.

    What a `MultiAgentReplayBuffer` in lockstep draws becomes what a buffer of that agent alone would give: its items,
    and `info` with its mask. `n_step`, `stack_frames` and all other transforms work on it.

    A window that was drawn at a moment in which the agent was absent is none of its windows: all of it is masked. In
    others the moments after the drawn one in which it had no turn are left out: its frames move together, and as many
    masked rows follow at the end, with `info.times` that tell the moment of each. (In the sample itself rows are the
    same moments for all agents.) Items are zeros where the mask is False.

    Args:
      agent: whose.
      num_steps: rows to keep from the drawn one on, where windows are longer because agents take turns: `n_step(n)`
        wants `n + 1`. None: all.
      burn_in: the window's. Where agents take turns windows of moments have less context of each than they say: draw
        those from independent policies.

    Raises:
      ValueError: when it is called: the items are not by agent, or have no such agent.
      tf.errors.InvalidArgumentError: when it runs: windows have another burn-in, or the agent's context has a gap.

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
        mine, mask, keys = items[agent], tf.convert_to_tensor(info.mask[agent]), tf.convert_to_tensor(info.keys)
        if mask.shape.rank == keys.shape.rank:
            return _masked(mine, mask), info._replace(mask=mask)
        with tf.control_dependencies(_checks(mask, tf.convert_to_tensor(info.ids), keys, agent, burn_in)):
            mask &= mask[..., burn_in : burn_in + 1]
        rows = (_masked(mine, mask), info.ids, mask, info.times)
        moved = tf.cond(
            tf.reduce_any(~mask[..., burn_in:-1] & mask[..., burn_in + 1 :]),
            lambda: _without_gaps(rows, mask, burn_in),
            lambda: tf.nest.map_structure(tf.identity, rows),
        )
        if num_steps is not None:
            stop, batched = burn_in + num_steps, mask.shape.rank > 1
            moved = tf.nest.map_structure(lambda leaf: leaf[:, :stop] if batched else leaf[:stop], moved)
        mine, ids, mask, times = moved
        return mine, info._replace(ids=ids, mask=mask, times=times)

    return view


def _checks(mask: tf.Tensor, ids: tf.Tensor, keys: tf.Tensor, agent: str, burn_in: int) -> list[tf.Operation]:
    """Assertions that the drawn frame is where `burn_in` says, and that no gap is in an agent's context."""
    # Keys are ids in this process; those of a server are none.
    drawn_elsewhere = tf.reduce_any(
        tf.equal(tf.concat([ids[..., :burn_in], ids[..., burn_in + 1 :]], axis=-1), keys[..., None])
    )
    text = f"of_agent({agent!r}, burn_in={burn_in}): these windows were drawn with another burn_in; say which."
    checks = [tf.debugging.Assert(~drawn_elsewhere, [text])]
    if burn_in:
        context, following = mask[..., :burn_in], mask[..., 1 : burn_in + 1]
        gap = tf.reduce_any(context & ~following & mask[..., burn_in : burn_in + 1])
        text = (
            f"of_agent({agent!r}): the agent was absent for a while before it was drawn, so that its context is "
            "shorter than burn_in: where agents take turns draw windows with context from independent policies."
        )
        checks.append(tf.debugging.Assert(~gap, [text]))
    return [check for check in checks if check is not None]


def _masked(items: Nest, mask: tf.Tensor) -> Nest:
    """Items `[..., T, *]` with zeros where the mask is False, whatever stood there."""

    def zeroed(leaf: tf.Tensor) -> tf.Tensor:
        leaf = tf.convert_to_tensor(leaf)
        shape = tf.concat([tf.shape(mask), tf.ones([leaf.shape.rank - mask.shape.rank], tf.int32)], axis=0)
        return tf.where(tf.reshape(mask, shape), leaf, tf.zeros([], leaf.dtype))

    return tf.nest.map_structure(zeroed, items)


def _without_gaps(rows: Nest, mask: tf.Tensor, burn_in: int) -> Nest:
    """The rows `[..., T, *]` in an order in which from the drawn one on real ones come first."""
    is_context = tf.range(tf.shape(mask)[-1]) < burn_in
    order = tf.argsort(tf.where(is_context, 0, tf.where(mask, 1, 2)), axis=-1, stable=True)
    batch_dims = mask.shape.rank - 1
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, order, axis=batch_dims, batch_dims=batch_dims), rows)
