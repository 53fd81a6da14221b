"""From a window and the sum of its steps to a transition: which frames it shows, in which shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from replayfeed.buffers import BufferInfo, Transition
from replayfeed.buffers.nests import Nest

from .frame_stack import Pad, Stacker, check_stack, moved_on
from .layouts import NEXT_OBSERVATION
from .rlds_steps import ACTION, OBSERVATION, REWARD
from .sample_windows import Transform, like, on_windows, replace_rows, row_numbers, take_frames, window_length
from .step_fields import (
    FlagNames,
    Flow,
    is_trajectory,
    map_subtrees,
    read_flow,
    require_field,
    subtree,
    top_level_fields,
)
from .step_sum import StepSum, Summed

_FIRST, _LAST = 0, 2


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
        if stack == 1:
            info = _with_drawn_frame_first(info, called)
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


def _with_drawn_frame_first(info: BufferInfo, called: str) -> BufferInfo:
    """`info`, once it is seen that windows have no burn-in: the frame in front would be taken for the drawn one.

    Raises when it runs:
      tf.errors.InvalidArgumentError: the drawn frame (`keys`) stands further back, or a window begins with padding.
    """
    further_back = tf.reduce_any(tf.equal(info.ids[:, 1:], info.keys[:, None]) & (info.ids[:, 1:] >= 0))
    message = (
        f"{called} takes windows without burn_in, and these begin before the drawn frame: draw them without burn_in, "
        "or stack_frames first, which uses it up."
    )
    # A frame with an id that is no padding is one at which the agent of an `of_agent` view was absent.
    padded = ~info.mask[:, 0] & (info.ids[:, 0] < 0)
    check = tf.debugging.Assert(~tf.reduce_any(padded) & ~further_back, [message])
    with tf.control_dependencies([] if check is None else [check]):
        # Where the agent was absent no step begins, so nothing of the window counts.
        return info._replace(mask=info.mask & info.mask[:, :1])


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
        reward=_without_axis_of_one(summed.reward),
        # Nothing to bootstrap from where there is no transition: for those who do not look at the mask.
        discount=tf.where(there, summed.discount, tf.zeros([], summed.discount.dtype)),
        next_observation=next_observation,
        num_steps_used=count,
        next_action=next_action,
        next_reward=_without_axis_of_one(next_reward) if names.next_reward else (),
        extras={name: window.first(subtree(fields, name)) for name in names.extras} if names.extras else (),
    )
    info = replace_rows(info, window.first)
    return transition, info._replace(mask=there, weights=tf.where(there, info.weights, 0.0))


def _without_axis_of_one(reward: tf.Tensor) -> tf.Tensor:
    """`[B]` for a reward of one number a frame that has an axis: beside a discount `[B]` it would make `[B, B]`."""
    return tf.squeeze(reward, 1) if reward.shape.rank == 2 and reward.shape[1] == 1 else reward


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

    def of_pairs(numbers: tf.Tensor) -> tf.Tensor:
        # Where nothing follows, frame `count` is padding or another episode's.
        reached = tf.where(goes_on, window.at(numbers, frame), tf.constant(-1, numbers.dtype))
        return tf.stack([window.first(numbers), reached], axis=1)

    mask = tf.stack([there, there & goes_on], axis=1)
    info = replace_rows(info._replace(mask=info.ids), of_pairs)
    return pairs, info._replace(mask=mask, weights=tf.where(there, info.weights, 0.0))
