"""What one item of a table is, and which frames of it a sample shows. Pure.

An item is a window, or a whole episode. What was written decides what can be drawn: of a window
at most its `num_steps` frames from the drawn one on, and its `burn_in` before. Padding is frames
of zeros with id -1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from .counts import check_count
from .windows import Window

OverLong = Literal["error", "drop", "cut"]
OVER_LONG = ("error", "drop", "cut")


@dataclasses.dataclass(frozen=True)
class WholeEpisodes:
    """An item is a whole episode, written when it ends.

    Args:
      max_length: frames that an item may have.
      over_long: what becomes of longer episodes. `'error'`: the frame too many is refused. `'drop'`: the
        episode is left out. `'cut'`: it becomes several items of at most so many frames.

    Raises:
      TypeError: `max_length` is no int.
      ValueError: it is below 1, or `over_long` is none of the three.

    >>> WholeEpisodes(1000)
    WholeEpisodes(max_length=1000, over_long='error')
    """

    max_length: int
    over_long: OverLong = "error"

    def __post_init__(self) -> None:
        check_count("max_episode_length", self.max_length)
        if self.over_long not in OVER_LONG:
            raise ValueError(f"over_long must be 'error', 'drop' or 'cut', got {self.over_long!r}.")


ItemKind = Window | WholeEpisodes


class ItemPart(NamedTuple):
    """The frames of an item that a sample shows.

    Attributes:
      first: index in the item.
      num_frames: how many; None: all from `first` on.
      has_time: whether the sample has a `T` axis; without it, it is the frame `first`.
    """

    first: int = 0
    num_frames: int | None = None
    has_time: bool = True


def describe_kind(kind: ItemKind) -> dict[str, Any]:
    """What a table's signature tells of its items, as plain values that JSON can hold.

    >>> describe_kind(WholeEpisodes(50))
    {'max_episode_length': 50, 'over_long': 'error'}
    """
    if isinstance(kind, WholeEpisodes):
        return {"max_episode_length": kind.max_length, "over_long": kind.over_long}
    return {
        "sequence_length": kind.num_steps,
        "burn_in": kind.burn_in,
        "stride": kind.stride,
        "short": kind.short,
    }


def kind_from(about: Mapping[str, Any]) -> ItemKind:
    """The kind that `describe_kind` has told of.

    >>> kind_from(describe_kind(Window(4, short="pad")))
    Window(num_steps=4, short='pad')
    """
    if "max_episode_length" in about:
        return WholeEpisodes(about["max_episode_length"], about["over_long"])
    return Window(about["sequence_length"], about["burn_in"], about["stride"], about["short"])


def check_window(table: str, written: Window, wanted: Window) -> None:
    """Refuses windows that a table's items cannot give.

    Raises:
      ValueError: the window is longer than the items (or shorter, where they are padded and have a stride), or of
        another stride, or padded otherwise; the message says which windows the table can give.

    >>> check_window("replay", Window(4, stride=2), Window(5))
    Traceback (most recent call last):
    ...
    ValueError: Window(num_steps=5) cannot be drawn: table 'replay' was written as Window(num_steps=4, stride=2):
    it gives num_steps up to 4, burn_in up to 0, stride=2, short='drop'.
    """
    same = ("stride", "short", "boundaries", "pad_unfinished")
    # With a stride an episode's last item is the first that reaches its end: shorter windows would not reach it.
    is_exact = written.short == "pad" and written.stride > 1
    if (
        wanted.num_steps > written.num_steps
        or (is_exact and wanted.num_steps < written.num_steps)
        or wanted.burn_in > written.burn_in
        or any(getattr(wanted, name) != getattr(written, name) for name in same)
    ):
        raise ValueError(
            f"{wanted!r} cannot be drawn: table {table!r} was written as {written!r}: it gives num_steps"
            f"{'=' if is_exact else ' up to '}{written.num_steps}, burn_in up to {written.burn_in}, "
            f"stride={written.stride}, short={written.short!r}"
            f"{', and never pad_unfinished' if wanted.pad_unfinished else ''}."
        )


def part_for(written: Window, wanted: Window | None) -> ItemPart:
    """Where in an item the frames of a window lie; None asks for the drawn frame alone.

    >>> part_for(Window(4, burn_in=2), Window(3, burn_in=1))
    ItemPart(first=1, num_frames=4, has_time=True)
    """
    if wanted is None:
        return ItemPart(written.burn_in, 1, has_time=False)
    return ItemPart(written.burn_in - wanted.burn_in, wanted.length)
