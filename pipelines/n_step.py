"""Windows to transitions of one or more steps, right at every kind of end.

What an n-step transition out of frame 0 of a window is, with `n = 3`:

    o0 o1 o2 o3             the sum runs over r0 r1 r2, and bootstraps from o3 with gamma^3
    o0 o1 F                 F is a final observation (time limit): r0 r1, from F, with gamma^2
    o0 o1 T                 d1 is 0 (terminal): r0 r1, nothing to bootstrap from
    o0 o1 .  .              cut without a final observation, or the newest frame: r0, from o1, with gamma
    o0 F  o0 o1             another episode's frames are never looked at, whatever the discounts say
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from replayfeed.buffers import BufferInfo, Transition
from replayfeed.buffers.base import check_count
from replayfeed.buffers.nests import Nest

from .frame_stack import Pad, Stacker, check_stack, moved_on
from .layouts import NEXT_OBSERVATION
from .rlds_steps import ACTION, DISCOUNT, OBSERVATION, REWARD
from .sample_windows import Transform, like, on_windows, row_numbers, take_frames, window_length
from .step_fields import (
    TERMINAL_NAMES,
    TRUNCATED_NAMES,
    FinalFrame,
    FlagNames,
    Flow,
    Names,
    is_trajectory,
    map_subtrees,
    read_flow,
    require_field,
    subtree,
    top_level_fields,
)

_FIRST, _LAST = 0, 2


def n_step(
    n: int,
    gamma: float,
    *,
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
) -> Transform:
    """A function from windows of `n + 1` frames to n-step transitions out of their first frames.

    With `k <= n` the number of steps that are really there, and `D_j = d_t d_t+1 ... d_t+j-1` the stored
    discounts (`D_0 = 1`), which are 0 where a terminal state was reached:

        R = sum over j < k of gamma^j D_j r_t+j          the target is R + gamma^k D_k V(o_t+k)

    `k` is less than `n` at a terminal step, at a final observation, and where the next frame is padding or another
    episode's first one. A frame without a successor that is not terminal ends the sum before it: nobody knows
    what its action led to, so its own observation is bootstrapped from, with one step fewer.

    Other specs than a `Trajectory` become a `Transition`: `reward` is `R`, `discount` is `gamma^k D_k`, with which the
    value of `next_observation` is to be multiplied (no further gamma), `num_steps_used` is `k`. In `info`,
    `ids` and `mask` are `[B]`. Where a window holds no transition at all, `mask` is False and `weights` is 0.

    A TF-Agents `Trajectory` becomes one of two frames, `[B, 2]`, as TF-Agents' agents take it: `reward` is `R`, and
    because the agent multiplies by one gamma itself, which must be the same gamma,

        discount = gamma^(k - 1) D_k,     so that the agent's  R + gamma * discount * V(o_t+k)  is the target.

    Give the agent `n_step_update=1`, whatever `n` is. The second frame is frame `k` as it was stored (zeros where a
    terminal frame has no successor). Where there is no transition the first frame is a boundary frame
    (`step_type` LAST), which agents such as DQN mask. `ids` and `mask` are `[B, 2]`.

    Args:
      n: steps, at least 1.
      gamma: in [0, 1].
      observation: name of the field; a dict or namedtuple of fields is one too.
      action: its name; None: `Transition.action` is `()`.
      reward: its name.
      discount: its name where there is one; None for none.
      next_observation: where frames have it, each frame is a transition of its own, and windows have `n` frames
        instead of `n + 1`. None: take the next observation from the frame that follows all the same.
      terminal: names of flags that say that a frame's action led to a terminal state.
      truncated: names of flags that say that the episode was cut after a frame's action.
      final_frame: as the buffer's: whether an episode's last frame is only a final observation.
      next_action: fill `Transition.next_action`, the action at `o_t+k`.
      next_reward: fill `Transition.next_reward`, the reward that followed it.
      extras: further fields of the first frame, a dict in `Transition.extras`.

    Returns:
      `(items, info) -> (items, info)`, for `Dataset.map` or for what `sample` gives, with or without the `B` axis.

    Raises:
      TypeError: `n` is no int.
      ValueError: `n` is below 1, `gamma` is not in [0, 1], or `final_frame` is none of its three.
      When called or traced, ValueError: a field is not there, or windows have another length; the message says
        which `Window` to ask for.

    R as in Sutton & Barto (2018), eq. 7.1, with the discount of each step in it.

    >>> frames = {"observation": tf.constant([[0, 1, 2, 3]]), "action": tf.constant([[5, 6, 7, 8]]),
    ...           "reward": tf.constant([[1.0, 10.0, 100.0, 1000.0]])}
    >>> info = BufferInfo(tf.constant([[4, 5, 6, -1]]), tf.ones([1]), tf.constant([4]), tf.ones([1]),
    ...                   tf.constant([[True, True, True, False]]))
    >>> items, info = n_step(3, 0.5)(frames, info)
    >>> [leaf.numpy().tolist() for leaf in (items.reward, items.discount, items.next_observation)]
    [[6.0], [0.25], [2]]
    """
    return reduce_windows(
        StepSum(n, gamma),
        FieldNames(observation, action, reward, next_observation, next_action, next_reward, tuple(extras)),
        FlagNames(discount, terminal, truncated, final_frame),
        called=f"n_step(n={n})",
    )


def transitions(
    *,
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
) -> Transform:
    """A function from windows of two frames to transitions of one step, without any gamma: `n_step(1, gamma=1)`.

    `discount` is the stored one, 0 where a terminal state was reached. All else, arguments and errors included, as
    `n_step` has it; of a `Trajectory` reward and discount stay as they are stored.

    >>> frames = {"observation": tf.constant([[0, 1]]), "action": tf.constant([[5, 6]]),
    ...           "reward": tf.constant([[1.0, 10.0]]), "terminal": tf.constant([[False, True]])}
    >>> info = BufferInfo(tf.constant([[4, 5]]), tf.ones([1]), tf.constant([4]), tf.ones([1]), tf.fill([1, 2], True))
    >>> items, info = transitions()(frames, info)
    >>> [leaf.numpy().tolist() for leaf in (items.reward, items.discount, items.next_observation)]
    [[1.0], [1.0], [1]]
    """
    return reduce_windows(
        StepSum(1, 1.0),
        FieldNames(observation, action, reward, next_observation, next_action, next_reward, tuple(extras)),
        FlagNames(discount, terminal, truncated, final_frame),
        called="transitions()",
    )


class StepSum:
    """Sums up to `n` steps of windows whose first frame is the drawn one.

    Args:
      n: steps.
      gamma: factor of each.

    Raises:
      TypeError: `n` is no int.
      ValueError: `n` is below 1, or `gamma` is not in [0, 1].

    >>> StepSum(3, 1.5)
    Traceback (most recent call last):
    ...
    ValueError: gamma must be in [0, 1], got 1.5.
    """

    def __init__(self, n: int, gamma: float) -> None:
        check_count("n", n)
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma!r}.")
        self.n, self.gamma = int(n), float(gamma)
        # gamma^0 to gamma^n; 0^0 is 1.
        self._powers = float(gamma) ** np.arange(n + 1)

    def __call__(self, flow: Flow, reward: tf.Tensor, *, in_place: bool) -> Summed:
        """What the steps come to.

        Args:
          flow: of the windows, `[B, n + 1]`, or `[B, n]` with `in_place`.
          reward: `[B, n + 1, ...]` or `[B, n, ...]`.
          in_place: whether each frame holds its own next observation.
        """
        n = self.n
        # Of the last of n + 1 frames only the observation counts.
        discount, reward = (leaf if in_place else leaf[:, :n] for leaf in (flow.discount, reward))
        linked = tf.pad(flow.linked, [[0, 0], [0, 1]]) if in_place else flow.linked
        if in_place:
            known = flow.is_step
        else:
            known = linked | tf.equal(discount, 0.0) if flow.tells_ends else linked
            if flow.is_step is not flow.real:
                known &= flow.is_step[:, :n]
        exact = tf.float64 if reward.dtype == tf.float64 else tf.float32
        reward = tf.cast(reward, exact)
        summed = known
        if n > 1:
            # At an end the discount is 0, so this is above 0 just as far as the sum may go, and never on padding.
            weights = tf.math.cumprod(tf.where(linked, discount, 0.0), axis=1, exclusive=True)
            summed &= weights > 0
            reward *= like(tf.cast(weights, exact) * tf.constant(self._powers[:n], exact), reward)
        else:
            summed &= flow.real[:, :1]
        return Summed(
            # Chosen, not multiplied: what does not count may be anything, NaN too.
            reward=tf.reduce_sum(tf.where(like(summed, reward), reward, tf.zeros([], exact)), axis=1),
            discounts=tf.reduce_prod(tf.where(summed, discount, 1.0), axis=1),
            discount=tf.reduce_prod(tf.where(summed, discount * self.gamma, 1.0), axis=1),
            count=tf.reduce_sum(tf.cast(summed, tf.int32), axis=1),
            has_successor=None if in_place else ~tf.reduce_any(summed & ~linked, axis=1),
            without_successor=self._without_successor(flow, summed, in_place=in_place),
        )

    def _without_successor(self, flow: Flow, summed: tf.Tensor, *, in_place: bool) -> tf.Tensor | None:
        if in_place or flow.broken is None:
            return None
        # With one step frame 1 is taken unseen, whether or not it was reached.
        return flow.broken[:, 0] if self.n == 1 else tf.reduce_any(summed & flow.broken, axis=1)

    def power(self, count: tf.Tensor) -> tf.Tensor:
        """`gamma^count`, float32, the shape of `count`."""
        return tf.gather(tf.constant(self._powers, tf.float32), count)


class Summed(NamedTuple):
    """Steps summed, `[B]` each.

    Attributes:
      reward: float `[B, ...]`, `R`.
      discounts: float32, `D_k`.
      discount: float32, `gamma^k D_k`.
      count: int32, `k`.
      has_successor: bool, whether frame `k` is of the same episode; None with `in_place`.
      without_successor: bool, whether frame `k` is real, but another episode's; None where no flag could tell.
    """

    reward: tf.Tensor
    discounts: tf.Tensor
    discount: tf.Tensor
    count: tf.Tensor
    has_successor: tf.Tensor | None
    without_successor: tf.Tensor | None


class FieldNames(NamedTuple):
    """The fields that a transition is made of, as in `n_step`.

    >>> FieldNames(observation="obs").observation
    'obs'
    """

    observation: str = OBSERVATION
    action: str | None = ACTION
    reward: str = REWARD
    next_observation: str | None = NEXT_OBSERVATION
    next_action: bool = False
    next_reward: bool = False
    extras: tuple[str, ...] = ()


def reduce_windows(
    step_sum: StepSum,
    names: FieldNames,
    flags: FlagNames,
    *,
    called: str,
    stack: int = 1,
    stacked: Sequence[str] = (),
    pad: Pad = "zero",
) -> Transform:
    """What `n_step` returns, with stacks of single frames if asked: only the two of each sample that are needed.

    Args:
      step_sum: sums the steps.
      names: of the fields.
      flags: their names.
      called: what the caller calls it, for messages.
      stack: frames in a stack; windows have `stack - 1` frames of burn-in.
      stacked: paths of the fields that are stacked, within the observation.
      pad: as in `stack_frames`.
    """
    check_stack(stack, pad)

    def transform(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
        fields = top_level_fields(items)
        in_place = names.next_observation is not None and names.next_observation in fields
        if names.next_observation not in (None, NEXT_OBSERVATION):
            require_field(fields, "next_observation", str(names.next_observation))
        _check_length(window_length(info), step_sum.n + (0 if in_place else 1), stack, called, in_place=in_place)
        for role, name in (("observation", names.observation), ("action", names.action), ("reward", names.reward)):
            if name is not None:
                require_field(fields, role, name)
        whole = read_flow(fields, info.mask, flags, in_place=in_place, starts_real=stack == 1)
        window = _Window(fields, whole, stack, pad, stacked, names, in_place)
        summed = step_sum(_from_drawn(whole, stack), window.reward, in_place=in_place)
        if is_trajectory(items):
            return _to_trajectory(items, info, window, summed, step_sum)
        return _to_transition(info, window, summed, step_sum)

    return on_windows(called, transform)


class _Window(NamedTuple):
    """A window's fields, and how to take single frames out of it; frame 0 is the drawn one."""

    fields: Mapping[str, Nest]
    flow: Flow
    stack: int
    pad: Pad
    stacked: Sequence[str]
    names: FieldNames
    in_place: bool

    @property
    def num_frames(self) -> int:
        return int(self.flow.real.shape[1])

    @property
    def reward(self) -> tf.Tensor:
        reward = self.fields[self.names.reward]
        return reward if self.stack == 1 else reward[:, self.stack - 1 :]

    def first(self, nest: Nest) -> Nest:
        """Frame 0, leaves `[B, ...]`."""
        return tf.nest.map_structure(lambda leaf: leaf[:, self.stack - 1], nest)

    def at(self, nest: Nest, frame: tf.Tensor | int) -> Nest:
        """Frames int32 `[B]`, or the same everywhere, leaves `[B, ...]`."""
        if isinstance(frame, int):
            return tf.nest.map_structure(lambda leaf: leaf[:, self.stack - 1 + frame], nest)
        rows = row_numbers(frame + (self.stack - 1), self.num_frames)
        return tf.nest.map_structure(lambda leaf: take_frames(leaf, rows), nest)

    def observations(self, count: tf.Tensor, n: int) -> tuple[Nest, Nest]:
        """The observation of frame 0 and the one reached after `count` `[B]` steps, leaves `[B, ...]`."""
        nest = self.fields[self.names.observation]
        frame: tf.Tensor | int
        if self.in_place:
            frame = 0 if n == 1 else tf.maximum(count - 1, 0)
            reached = tf.nest.flatten(self.at(self.fields[str(self.names.next_observation)], frame))
        else:
            frame = 1 if n == 1 else count
            reached = []
        stacker = Stacker(self.flow, self.stack, self.pad)
        marked = map_subtrees(lambda _: True, {self.names.observation: nest}, self.stacked, lambda _: False)
        firsts, others = [], []
        for index, (leaf, is_stacked) in enumerate(zip(tf.nest.flatten(nest), tf.nest.flatten(marked), strict=True)):
            if self.stack > 1 and is_stacked:
                first, other = stacker.first_and(leaf, frame)
                other = moved_on(other, reached[index]) if self.in_place else other
            else:
                first, other = self.first(leaf), reached[index] if self.in_place else self.at(leaf, frame)
            firsts.append(first)
            others.append(other)
        return tf.nest.pack_sequence_as(nest, firsts), tf.nest.pack_sequence_as(nest, others)


def _check_length(length: int, num_steps: int, stack: int, called: str, *, in_place: bool) -> None:
    if length == num_steps + stack - 1:
        return
    burn_in = f", burn_in={stack - 1}" if stack > 1 else ""
    why = "each frame holds its next observation" if in_place else "the last frame is what the last step leads to"
    raise ValueError(
        f"{called} takes windows of {num_steps + stack - 1} frames ({why}), got {length}: "
        f"draw them with window=Window({num_steps}{burn_in}, short='pad')."
    )


def _from_drawn(flow: Flow, stack: int) -> Flow:
    """The flow from the drawn frame on, without the burn-in."""
    if stack == 1:
        return flow
    parts = flow._asdict() | {
        name: part[:, stack - 1 :] for name, part in flow._asdict().items() if isinstance(part, tf.Tensor)
    }
    return Flow(**parts)


def _zero_where(rows: tf.Tensor | None, nest: Nest) -> Nest:
    """`nest`, leaves `[B, ...]`, with zeros in these rows; nearly always there are none, so that is seen first."""
    if rows is None:
        return nest
    leaves = tf.nest.flatten(nest)
    zeroed = tf.cond(
        tf.reduce_any(rows),
        lambda: [tf.where(like(rows, leaf), tf.zeros([], leaf.dtype), leaf) for leaf in leaves],
        lambda: [tf.identity(leaf) for leaf in leaves],
    )
    return tf.nest.pack_sequence_as(nest, zeroed)


def _to_transition(
    info: BufferInfo, window: _Window, summed: Summed, step_sum: StepSum
) -> tuple[Transition, BufferInfo]:
    fields, names, n, count = window.fields, window.names, step_sum.n, summed.count
    if window.in_place and (names.next_action or names.next_reward):
        raise ValueError(
            "next_action and next_reward stand in the frame after the last step, and windows of frames that hold their "
            f"next observation do not reach it: say next_observation=None and draw Window({n + 1}, short='pad')."
        )
    observation, next_observation = window.observations(count, n)
    action = () if names.action is None else fields[names.action]
    frame = 1 if n == 1 else count
    reached = (
        next_observation,
        window.at(action, frame) if names.next_action else (),
        window.at(fields[names.reward], frame) if names.next_reward else (),
    )
    next_observation, next_action, next_reward = _zero_where(summed.without_successor, reached)
    for name in names.extras:
        subtree(fields, name)
    there = count > 0
    transition = Transition(
        observation=observation,
        action=window.first(action),
        reward=summed.reward,
        discount=summed.discount,
        next_observation=next_observation,
        num_steps_used=count,
        next_action=next_action,
        next_reward=next_reward,
        extras={name: window.first(subtree(fields, name)) for name in names.extras} if names.extras else (),
    )
    return transition, info._replace(ids=window.first(info.ids), mask=there, weights=tf.where(there, info.weights, 0.0))


def _to_trajectory(
    items: Any, info: BufferInfo, window: _Window, summed: Summed, step_sum: StepSum
) -> tuple[Any, BufferInfo]:
    names, n, count = window.names, step_sum.n, summed.count
    if names.next_action or names.next_reward or names.extras:
        raise ValueError(
            "next_action, next_reward and extras are fields of a Transition; a Trajectory becomes a Trajectory, "
            "whose second frame holds action, reward and policy_info of the frame reached."
        )
    frame = 1 if n == 1 else count
    there = count > 0
    goes_on = summed.has_successor
    assert goes_on is not None  # a Trajectory's frames do not hold their next observation

    others = items._replace(observation=())
    first, second = window.first(others), window.at(others, frame)
    first_observation, second_observation = window.observations(count, n)
    second = _zero_where(summed.without_successor, second._replace(observation=second_observation))
    step_type = items.step_type.dtype
    last = tf.constant(_LAST, step_type)
    next_step_type = tf.where(there, tf.where(goes_on, second.step_type, last), tf.constant(_FIRST, step_type))
    discount = summed.discounts * step_sum.power(tf.maximum(count - 1, 0))
    first = first._replace(
        step_type=tf.where(there, first.step_type, last),
        observation=first_observation,
        next_step_type=next_step_type,
        reward=tf.cast(summed.reward, items.reward.dtype),
        discount=tf.cast(discount, items.discount.dtype),
    )
    second = second._replace(step_type=next_step_type)
    pairs = tf.nest.map_structure(lambda one, other: tf.stack([one, other], axis=1), first, second)
    # Where nothing follows, frame `count` is padding or another episode's.
    second_id = tf.where(goes_on, window.at(info.ids, frame), tf.constant(-1, info.ids.dtype))
    return pairs, info._replace(
        ids=tf.stack([window.first(info.ids), second_id], axis=1),
        mask=tf.stack([there, there & goes_on], axis=1),
        weights=tf.where(there, info.weights, 0.0),
    )
