"""Which field of a sample is what, and which frames of a window follow each other.

Letters: `B` batch, `T` frames of a window. A frame holds `o_t`, `a_t` and the `r_t` and `d_t` that followed.

| field | what it says |
| --- | --- |
| `step_type` LAST, `is_last` | the frame is only the final observation of its episode (see `final_frame`) |
| `step_type` FIRST, `is_first` | an episode begins, whatever came before |
| `discount` 0 | `a_t` led to a terminal state |
| `terminal`, `terminated` | `a_t` led to a terminal state |
| `truncated`, `is_truncated` | the episode was cut after `a_t`: where final observations are not stored, none follows |
| `is_terminal` beside one of the first row | RLDS: this frame's *state* is terminal; what led into it has discount 0 |
| `is_terminal` beside `next_observation`, or with `final_frame='ordinary'` | `a_t` led to a terminal state |
| `info.mask` False | padding |
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from replayfeed.buffers.nests import Nest

FinalFrame = Literal["auto", "observation", "ordinary"]
Names = str | Sequence[str] | None
"""One name, several of which those that are there count, or None for no such field."""

TERMINAL_NAMES = ("terminal", "terminated")
TRUNCATED_NAMES = ("truncated", "is_truncated")
_STEP_TYPE_FIRST, _STEP_TYPE_LAST = 0, 2
_TRAJECTORY_FIELDS = ("step_type", "observation", "action", "policy_info", "next_step_type", "reward", "discount")


def top_level_fields(items: Nest) -> dict[str, Nest]:
    """The fields of a dict or namedtuple by name, in its order.

    Raises:
      ValueError: `items` is neither.

    >>> top_level_fields({"reward": 1.0})
    {'reward': 1.0}
    """
    if isinstance(items, Mapping):
        return {str(name): value for name, value in items.items()}
    if isinstance(items, tuple) and hasattr(items, "_fields"):
        return dict(zip(items._fields, items, strict=True))
    raise ValueError(
        f"fields are found by name, in a dict or a namedtuple; these items are a {type(items).__name__}. "
        "Map them to a dict first."
    )


def is_trajectory(items: Nest) -> bool:
    """Whether `items` is a TF-Agents `Trajectory`, or a namedtuple of the same fields.

    >>> is_trajectory({"observation": 0})
    False
    """
    return getattr(items, "_fields", None) == _TRAJECTORY_FIELDS


def require_field(fields: Mapping[str, Nest], role: str, name: str) -> Nest:
    """The field of that name.

    Raises:
      ValueError: there is none; the message says what was looked for and what is there.

    >>> require_field({"rew": 1.0}, "reward", "reward")
    Traceback (most recent call last):
    ...
    ValueError: no field 'reward' for the reward: the items have ['rew']; say reward='...' to name another.
    """
    if name not in fields:
        raise ValueError(
            f"no field {name!r} for the {role}: the items have {sorted(fields)}; say {role}='...' to name another."
        )
    return fields[name]


def subtree(items: Nest, path: str) -> Nest:
    """The field or group of fields at a path such as `'observation/image'`.

    Raises:
      ValueError: there is none.

    >>> subtree({"observation": {"image": 1, "speed": 2}}, "observation/image")
    1
    """
    nest, above = items, "the items"
    for name in path.split("/"):
        fields = top_level_fields(nest) if isinstance(nest, Mapping) or hasattr(nest, "_fields") else {}
        if name not in fields:
            raise ValueError(f"no field {path!r}: {above} have {sorted(fields)}.")
        nest, above = fields[name], f"fields below {name!r}"
    return nest


def map_subtrees(
    function: Callable[[Any], Any], items: Nest, paths: Sequence[str], otherwise: Callable[[Any], Any], below: str = ""
) -> Nest:
    """`items` with `function` applied to each leaf at or below one of the paths, and `otherwise` to the others.

    >>> map_subtrees(lambda leaf: -leaf, {"a": {"b": 1, "c": 2}, "d": 3}, ["a/c", "d"], lambda leaf: leaf)
    {'a': {'b': 1, 'c': -2}, 'd': -3}
    """
    if below in paths:
        return tf.nest.map_structure(function, items)
    if isinstance(items, Mapping):
        pairs = [
            (name, map_subtrees(function, items[name], paths, otherwise, _join(below, str(name)))) for name in items
        ]
        make: Callable[[Any], Any] = type(items)
        return make(pairs)
    if isinstance(items, tuple) and hasattr(items, "_fields"):
        parts = zip(items._fields, items, strict=True)
        return type(items)(
            *(map_subtrees(function, part, paths, otherwise, _join(below, name)) for name, part in parts)
        )
    return tf.nest.map_structure(otherwise, items)


def _join(below: str, name: str) -> str:
    return f"{below}/{name}" if below else name


@dataclasses.dataclass(frozen=True)
class FlagNames:
    """Under which names the flags stand that no buffer reads, and what an episode's last frame is.

    Args:
      discount: of the transition out of a frame.
      terminal: `a_t` led to a terminal state.
      truncated: the episode was cut after `a_t`.
      final_frame: as for the buffer: whether an episode's last frame is only a final observation.
        `'auto'`: where `step_type` or `is_last` tells it.

    Raises:
      ValueError: `final_frame` is none of the three.

    >>> FlagNames(terminal="done").terminal
    'done'
    """

    discount: Names = "discount"
    terminal: Names = TERMINAL_NAMES
    truncated: Names = TRUNCATED_NAMES
    final_frame: FinalFrame = "auto"

    def __post_init__(self) -> None:
        if self.final_frame not in ("auto", "observation", "ordinary"):
            raise ValueError(f"final_frame must be 'auto', 'observation' or 'ordinary', got {self.final_frame!r}.")


class Flow(NamedTuple):
    """How the frames of windows `[B, T]` follow each other.

    Attributes:
      real: bool `[B, T]`, no padding.
      is_step: bool `[B, T]`, real and no mere final observation: action and reward mean something.
      linked: bool `[B, T - 1]`: frame `t + 1` is real, and no flag says that it is of another episode than `t`.
      broken: bool `[B, T - 1]`: frame `t + 1` is real, but of another episode; None where no flag could tell.
      discount: float32 `[B, T]`: the stored one, 0 where `a_t` led to a terminal state; 1 where nothing is stored.
      tells_ends: whether `discount` may be 0: something tells of terminal states.
      ends_cut: whether what follows a discount of 0 must be another episode's: no final observations are stored.
    """

    real: tf.Tensor
    is_step: tf.Tensor
    linked: tf.Tensor
    broken: tf.Tensor | None
    discount: tf.Tensor
    tells_ends: bool
    ends_cut: bool

    def breaks(self) -> tf.Tensor | None:
        """`broken`, and what a discount of 0 tells beyond it: for stacks, which must not show what came before."""
        if not (self.tells_ends and self.ends_cut):
            return self.broken
        after_end = self.real[:, :-1] & self.real[:, 1:] & tf.equal(self.discount[:, :-1], 0.0)
        return after_end if self.broken is None else self.broken | after_end


def read_flow(
    fields: Mapping[str, Nest], mask: tf.Tensor, names: FlagNames, *, in_place: bool, starts_real: bool = False
) -> Flow:
    """The flow of windows with these fields, leaves `[B, T, ...]`.

    Args:
      fields: of the items, by name.
      mask: bool `[B, T]`.
      names: of the flags.
      in_place: whether each frame holds its own next observation (`next_observation`).
      starts_real: whether there is no padding in front.

    Raises:
      ValueError: a name that was given is not there.
      ValueError: a flag is not one number a frame.
      ValueError: there is a `done` that nothing says how to read.
      ValueError: `is_terminal` may mean two things.
      ValueError: `final_frame='observation'`, though frames hold their next observation and nothing tells the end.
    """
    step_type = per_frame(fields, "step_type")
    is_last = _flag(fields, "is_last")
    told = step_type is not None or is_last is not None
    ordinary = names.final_frame == "ordinary"
    if in_place and names.final_frame == "observation" and not told:
        raise ValueError(
            "final_frame='observation' and next_observation: nothing tells which frame is only a final observation; "
            "say next_observation=None to take each next observation from the frame that follows."
        )
    last = _any_of([None if step_type is None else tf.equal(step_type, _STEP_TYPE_LAST), is_last])
    begins = _any_of([None if step_type is None else tf.equal(step_type, _STEP_TYPE_FIRST), _flag(fields, "is_first")])
    terminal = _any_of(_flags(fields, "terminal", names.terminal, TERMINAL_NAMES))
    truncated = _any_of(_flags(fields, "truncated", names.truncated, TRUNCATED_NAMES))

    final = None if ordinary else last
    if terminal is not None and final is not None:
        # On a final observation, at which no action was taken, the flag can only speak of the state: as in RLDS.
        terminal = terminal | tf.pad((terminal & final & mask)[:, 1:], [[0, 0], [0, 1]])
    if not told and names.final_frame == "observation":
        # A window's last real frame may be one: its observation counts, its reward does not.
        final = mask & ~tf.pad(mask[:, 1:], [[0, 0], [0, 1]])
    _check_unclear(fields, names, is_told=told or terminal is not None or truncated is not None)
    state_is_terminal = _flag(fields, "is_terminal")
    if state_is_terminal is not None:
        if in_place or ordinary:
            terminal = _any_of([terminal, state_is_terminal])
        elif not told and names.final_frame == "auto":
            raise ValueError(
                "the field 'is_terminal' may say that a frame's state is terminal (RLDS) or that its action led to "
                "one, and no step_type or is_last decides: say final_frame='observation' or final_frame='ordinary'."
            )
        else:
            terminal = _any_of([terminal, tf.pad(state_is_terminal[:, 1:] & mask[:, 1:], [[0, 0], [0, 1]])])
            final = _any_of([final, state_is_terminal])

    stored = _discount(fields, names.discount)
    discount = tf.ones_like(mask, tf.float32) if stored is None else stored
    if terminal is not None:
        discount = tf.where(terminal, 0.0, discount)

    # A frame after which none of its episode comes, although it is no final observation. Where final
    # observations are stored, what tells of an end stands on the frame before one.
    cuts = [last if ordinary else None, *([truncated, terminal] if final is None else [])]
    stops = [None if flag is None else flag[:, :-1] for flag in (final, *cuts)]
    breaks = _any_of([*stops, None if begins is None else begins[:, 1:]])
    both_real = mask[:, 1:] if starts_real else mask[:, :-1] & mask[:, 1:]
    return Flow(
        real=mask,
        is_step=mask if final is None else mask & ~final,
        linked=both_real if breaks is None else both_real & ~breaks,
        broken=None if breaks is None else both_real & breaks,
        discount=discount,
        tells_ends=stored is not None or terminal is not None,
        ends_cut=final is None,
    )


def _check_unclear(fields: Mapping[str, Nest], names: FlagNames, *, is_told: bool) -> None:
    """Refuses a `done` that is all that may tell ends, and that nothing says how to read."""
    unclear = [name for name in ("done", "dones") if name in fields]
    named = names.terminal != TERMINAL_NAMES or names.truncated != TRUNCATED_NAMES
    if unclear and not (is_told or named or _named(fields, "discount", names.discount, ("discount",))):
        raise ValueError(
            f"the field {unclear[0]!r} does not say whether an end is real: say terminal={unclear[0]!r} where each is, "
            f"truncated={unclear[0]!r} where none is, or terminal=() to leave it unread."
        )


def _any_of(flags: Sequence[tf.Tensor | None]) -> tf.Tensor | None:
    given = [flag for flag in flags if flag is not None]
    return functools.reduce(operator.or_, given) if given else None


def _discount(fields: Mapping[str, Nest], names: Names) -> tf.Tensor | None:
    found = _named(fields, "discount", names, ("discount",))
    if len(found) > 1:
        raise ValueError(f"discount: give one name, got {found}.")
    return tf.cast(per_frame(fields, found[0]), tf.float32) if found else None


def _flags(fields: Mapping[str, Nest], role: str, names: Names, default: Sequence[str]) -> list[tf.Tensor | None]:
    return [_flag(fields, name) for name in _named(fields, role, names, default)]


def _named(fields: Mapping[str, Nest], role: str, names: Names, default: Sequence[str]) -> list[str]:
    """Those of the names that are there; one that is not among the default names must be."""
    given = [] if names is None else [names] if isinstance(names, str) else list(names)
    for name in given:
        if name not in default:
            require_field(fields, role, name)
    return [name for name in given if name in fields]


def _flag(fields: Mapping[str, Nest], name: str) -> tf.Tensor | None:
    flag = per_frame(fields, name)
    if flag is None or flag.dtype == tf.bool:
        return flag
    return tf.not_equal(flag, tf.zeros([], flag.dtype))


def per_frame(fields: Mapping[str, Nest], name: str) -> tf.Tensor | None:
    """The field as `[B, T]`, without the axis of one that some specs give it; None where there is none.

    Raises:
      ValueError: it is not one number a frame.

    >>> per_frame({"discount": tf.ones([2, 3, 1])}, "discount").shape
    TensorShape([2, 3])
    """
    if name not in fields:
        return None
    value = fields[name]
    if not tf.is_tensor(value):
        raise ValueError(f"field {name!r}: expected one number a frame, [B, T], got a group of fields.")
    if value.shape.rank == 3 and value.shape[2] == 1:
        value = value[:, :, 0]
    if value.shape.rank != 2:
        raise ValueError(f"field {name!r}: expected one number a frame, [B, T], got {value.shape} {value.dtype.name}.")
    return value
