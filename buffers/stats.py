"""What a buffer tells about itself: counts, shares and bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .windows import Window


@dataclasses.dataclass(frozen=True)
class WindowCount:
    """How many windows of one kind there are.

    Attributes:
      window: the kind.
      eligible: windows that can be drawn now (served: that were written and are held).
      dropped_short: with `short='drop'`, starts at which none can be drawn, because the episode has
        too few frames from there on (so far, where it is unfinished); else 0.
      exhausted: complete windows that were drawn `max_times_sampled` times, and are not drawn any more.
    """

    window: Window
    eligible: int
    dropped_short: int
    exhausted: int = 0


@dataclasses.dataclass(frozen=True)
class PriorityAge:
    """How old priorities are when what was drawn by them is delivered: the cost of late feedback.

    Only what this buffer object drew and updated is counted, since construction or `clear`.

    Attributes:
      look_ahead: rows that a dataset may draw before they are delivered: those in flight by its settings, and three
        batches, of the largest that a dataset of this buffer object had.
      rows: rows delivered, by datasets and by `sample`.
      outdated: of these, rows that were drawn by a priority which this buffer had replaced before they were delivered.
      updates_behind: the largest number of this buffer's calls of `update_priorities` that are known to have come
        between the draw of a row and its delivery; it may have been more.

    >>> PriorityAge(look_ahead=256, rows=1000, outdated=250, updates_behind=2).outdated_share
    0.25
    """

    look_ahead: int
    rows: int
    outdated: int
    updates_behind: int

    @property
    def outdated_share(self) -> float:
        """Share of the rows delivered that were drawn by an outdated priority; 0 where there are none."""
        return self.outdated / self.rows if self.rows else 0.0


@dataclasses.dataclass(frozen=True)
class BufferStats:
    """A snapshot of a buffer's counters. None stands where a backend does not tell.

    Attributes:
      frames: frames held now (served: that the items held stand for; None where their lengths are not known).
      capacity: the constructor's number.
      capacity_unit: what `capacity` counts: `'frames'`, `'episodes'` or `'items'`.
      fill_share: held / capacity, in the capacity's unit, 0 to 1.
      added: frames ever added since construction or `clear`.
      sampled: frames or windows ever drawn (one for each row of a batch), which for a dataset is a
        little before they are delivered. Two threads that iterate over one dataset at the same
        time may lose a few.
      evicted: frames that newer ones have overwritten.
      evicted_unsampled: of these, frames at which no drawn window ever started.
      bytes_held: bytes of memory that the held frames take, without the unfilled rest.
      bytes_capacity: bytes that the full capacity takes.
      episodes: episodes with at least one frame held, unfinished ones included.
      skipped: windows that an ordered pass left out because they were overwritten meanwhile.
      replay_ratio: sampled / added; None while nothing was added.
      host: name of the machine that holds the data.
      windows: for each kind of window drawn so far, how many there are.
      priority_age: how late feedback is (served tables that draw by priority); None elsewhere.
      deleted: frames deleted since construction or `clear`; those that are still held count in `frames`.
      stale_updates: keys given to `update_priorities` whose frames were gone; None where draws do not go by priority.
    """

    frames: int | None
    capacity: int
    capacity_unit: str
    fill_share: float
    added: int | None
    sampled: int | None
    evicted: int | None
    evicted_unsampled: int | None
    bytes_held: int | None
    bytes_capacity: int | None
    episodes: int | None
    skipped: int
    replay_ratio: float | None
    host: str
    windows: tuple[WindowCount, ...] = ()
    priority_age: PriorityAge | None = None
    stale_updates: int | None = None
    deleted: int = 0

    def windows_of(self, window: Window) -> WindowCount:
        """How many windows of this kind there are.

        Raises:
          KeyError: none of this kind was drawn yet, so that they were not counted.

        >>> count = WindowCount(Window(3), eligible=5, dropped_short=2)
        >>> stats = BufferStats(7, 10, "frames", 0.7, 7, 0, 0, 0, 28, 40, 1, 0, 0.0, "host", (count,))
        >>> stats.windows_of(Window(3)).eligible
        5
        """
        for count in self.windows:
            if count.window == window:
                return count
        raise KeyError(f"{window} was not drawn yet; counted are {[count.window for count in self.windows]}.")


def total_stats(parts: Sequence[BufferStats]) -> BufferStats:
    """What several buffers hold together; None where one of them does not tell. Windows are not added up.

    >>> one = BufferStats(7, 10, "frames", 0.7, 7, 14, 0, 0, 28, 40, 1, 0, 2.0, "host")
    >>> total = total_stats([one, one])
    >>> total.frames, total.capacity, total.fill_share, total.replay_ratio
    (14, 20, 0.7, 2.0)
    """

    def total(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if any(value is None for value in values) else sum(values)

    capacity, added, sampled = total("capacity"), total("added"), total("sampled")
    return BufferStats(
        frames=total("frames"),
        capacity=capacity,
        capacity_unit=parts[0].capacity_unit,
        fill_share=sum(part.fill_share * part.capacity for part in parts) / capacity,
        added=added,
        sampled=sampled,
        evicted=total("evicted"),
        evicted_unsampled=total("evicted_unsampled"),
        bytes_held=total("bytes_held"),
        bytes_capacity=total("bytes_capacity"),
        episodes=total("episodes"),
        skipped=total("skipped"),
        replay_ratio=sampled / added if added and sampled is not None else None,
        host=parts[0].host,
        stale_updates=total("stale_updates"),
        deleted=total("deleted"),
    )
