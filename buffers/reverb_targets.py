"""Which items the frames of some streams make in one table: cut, padded, given a priority, counted.

A writer appends each frame once; the tables that it fills then refer to the same frames, each by a `TableItems` of
its own, with its own windows.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .nests import Array
from .reverb_cutter import NO_ITEM, make_cutter
from .reverb_items import ItemKind, WholeEpisodes
from .windows import Window

_logger = logging.getLogger(__name__)

# table, priority, references to frames by column, and of each column that it keeps its time axis
CreateItem = Callable[[str, float, list[list[Any]], list[bool]], None]

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class ItemTarget:
    """A table that a writer fills.

    Attributes:
      table: its name.
      kind: what an item is.
      capacity: items that it holds.
      scan_table: one that holds the same items with priority 1, or None: scans tell visited items by priority.
      new_priority: the raw priority of an item that was given none; None: 1. It is told whether it may wait for the
        server; where not it answers by what it knows.
      on_item: told the id of each item's drawn frame, its raw priority, and whether it may wait for the server, before
        the item is made. (Reverb gives one item another key in each table, so that a table which follows it has to be
        filled in another way.) What raised while it waited is called once more, not to wait.
      columns: which of the writer's columns its items have, in order; None: all.
    """

    table: str
    kind: ItemKind
    capacity: int
    scan_table: str | None = None
    new_priority: Callable[[bool], float] | None = None
    on_item: Callable[[int, float, bool], None] | None = None
    columns: tuple[int, ...] | None = None

    @property
    def num_padding(self) -> int:
        """Frames of padding that an item may have at either end."""
        if isinstance(self.kind, WholeEpisodes) or self.kind.is_plain:
            return 0
        return max(self.kind.burn_in, self.kind.num_steps - 1)

    @property
    def num_kept(self) -> int:
        """Newest frames of an episode that later items may refer to."""
        return make_cutter(self.kind).num_kept


class TableItems:
    """Makes the items of one table from references to frames.

    Args:
      target: the table.
      num_columns: columns of a frame.
      next_ids: int64 `[B]`, ids that the writer's streams have not given to a frame yet; the writer's own, not a copy.
      create: inserts an item into a table.
      late: where to put what waits raise, so that no item is left out for it; while something is there nothing waits.
        The writer's own, not a copy.
    """

    def __init__(
        self,
        target: ItemTarget,
        num_columns: int,
        next_ids: Array,
        create: CreateItem,
        late: list[BaseException] | None = None,
    ) -> None:
        self.target = target
        self._kind = target.kind
        self._cutter = make_cutter(target.kind)
        self._create = create
        self._next_ids = next_ids
        self._late = [] if late is None else late
        batch_size = len(next_ids)
        self._columns = None if target.columns in (None, tuple(range(num_columns))) else target.columns
        self._num_columns = num_columns if self._columns is None else len(self._columns)
        self._squeezed = [False] * self._num_columns
        # For each stream: references to its newest frames by column, their priorities, and how many its episode has.
        self._refs: list[list[list[Any]]] = [[[] for _ in range(self._num_columns)] for _ in range(batch_size)]
        self._priorities: list[list[float | None]] = [[] for _ in range(batch_size)]
        self._num_steps = [0] * batch_size
        self._is_left_out = [False] * batch_size
        # References to frames of padding, by column.
        self._padding: list[list[Any]] = [[] for _ in range(self._num_columns)]
        self._longest_episode = 0
        self._num_episodes = 0
        self._told_short = False
        self._told_long = False
        self.num_over_long = 0
        self.num_items = 0
        self.num_item_frames = 0
        self.newest_lengths: collections.deque[int] = collections.deque(maxlen=target.capacity)

    @property
    def num_dropped_short(self) -> int:
        """Frames of ended episodes where a window would have started, had the episode been longer."""
        return self._cutter.num_dropped_short

    @property
    def has_open_tails(self) -> bool:
        """Whether the end of an unfinished episode would make items."""
        is_plain = isinstance(self._kind, Window) and self._kind.short == "drop"
        return not is_plain and any(self._num_steps)

    def take_padding(self, refs: Sequence[Any]) -> None:
        """References to one more frame of padding, by the writer's columns."""
        for kept, ref in zip(self._padding, self._own(refs), strict=True):
            kept.append(ref)

    def check_room(
        self, begins: Array | None, ends: Array | None, num_steps: int, streams: Array | None = None
    ) -> None:
        """Refuses frames that would make an episode longer than items may be.

        Args:
          begins: bool `[B, T]`, or None.
          ends: bool `[B, T]`, or None.
          num_steps: `T`.
          streams: int64 `[n]`: the frames are of these alone, and `n` stands for `B`.

        Raises:
          ValueError: an episode would be too long; the message says what can be done.
        """
        if not isinstance(self._kind, WholeEpisodes) or self._kind.over_long != "error":
            return
        most = self._kind.max_length
        for row, b in enumerate(range(len(self._num_steps)) if streams is None else streams.tolist()):
            num = self._num_steps[b]
            if num + num_steps <= most:
                continue
            for t in range(num_steps):
                if begins is not None and begins[row, t]:
                    num = 0
                if num == most:
                    raise ValueError(
                        f"table {self.target.table!r} holds episodes of up to max_episode_length={most} frames, and "
                        f"the one of stream {b} goes on: end it (end_of_episode, end_stream), or make the table with a "
                        "larger max_episode_length, over_long='cut' or over_long='drop'."
                    )
                num = 0 if ends is not None and ends[row, t] else num + 1

    def make_room(self, b: int) -> bool:
        """Before a frame of stream `b`: whether its episode was as long as an item may be, and was cut."""
        kind = self._kind
        if not isinstance(kind, WholeEpisodes) or self._num_steps[b] != kind.max_length:
            return False
        self.num_over_long += 1
        if not self._told_long:
            self._told_long = True
            _logger.warning(
                "table %r: an episode has more than max_episode_length=%d frames and is %s; further ones are not told.",
                self.target.table,
                kind.max_length,
                "left out" if kind.over_long == "drop" else "cut",
            )
        if kind.over_long == "cut":
            self._create_item(b, 0)
            self.forget_episode(b)
            return True
        self._is_left_out[b] = True
        self._clear_refs(b)
        return False

    def push(self, b: int, refs: Sequence[Any], priority: float | None, *, final: bool) -> None:
        """A frame of stream `b` was appended: makes the item that it completes.

        Args:
          b: the stream.
          refs: references to the frame, by the writer's columns.
          priority: of the item that starts at it, or None.
          final: it is only a final observation.
        """
        self._num_steps[b] += 1
        num_steps = self._num_steps[b]
        if num_steps > self._longest_episode:
            self._longest_episode = num_steps
        if self._is_left_out[b]:
            return
        own = refs if self._columns is None else self._own(refs)
        if num_steps > self._cutter.num_kept:
            for column, ref in zip(self._refs[b], own, strict=True):
                column.append(ref)
                del column[0]
            del self._priorities[b][0]
        else:
            for column, ref in zip(self._refs[b], own, strict=True):
                column.append(ref)
        self._priorities[b].append(priority)
        start = self._cutter.after_frame(num_steps, final=final)
        if start != NO_ITEM:
            self._create_item(b, start)

    def end_episode(self, b: int, *, final: bool) -> None:
        """No item goes past the newest frame of stream `b`; those that it cuts short are made.

        Args:
          b: the stream.
          final: its newest frame is only a final observation.
        """
        num_steps = self._num_steps[b]
        if not num_steps:
            return
        self._num_episodes += 1
        if not self._is_left_out[b]:
            for start in self._cutter.at_end(num_steps, final=final):
                self._create_item(b, start)
            self._tell_short(num_steps)
        self.forget_episode(b)

    def forget_episode(self, b: int) -> None:
        """The next frame of stream `b` is an episode's first."""
        self._clear_refs(b)
        self._is_left_out[b] = False
        self._num_steps[b] = 0

    def forget_items(self) -> None:
        """What was written is not in the table any more."""
        self.num_items = self.num_item_frames = self.num_over_long = 0
        self._num_episodes = self._longest_episode = 0
        self._cutter.num_dropped_short = 0
        self.newest_lengths.clear()

    def explain_no_item(self) -> str:
        """Why these streams gave no item, with the numbers; empty where that is not the reason."""
        if self.num_items or not self._longest_episode:
            return ""
        num_episodes = self._num_episodes + sum(1 for steps in self._num_steps if steps)
        wrote = f"this buffer wrote {num_episodes} episodes, longest {self._longest_episode}"
        if isinstance(self._kind, WholeEpisodes):
            left_out = f", {self.num_over_long} of them left out as too long" if self.num_over_long else ""
            return f"; {wrote} so far{left_out}; an episode is an item when it has ended"
        wrote = f"; no window of {self._kind.num_steps} frames: {wrote}"
        return wrote if self._kind.short == "drop" else f"{wrote} so far; shorter ones are padded when they have ended"

    def _own(self, refs: Sequence[Any]) -> Sequence[Any]:
        return refs if self._columns is None else [refs[column] for column in self._columns]

    def _create_item(self, b: int, start: int) -> None:
        """Creates the item whose drawn frame is the episode's frame `start`; it goes up to the newest."""
        refs = self._refs[b]
        num_held = len(self._priorities[b])
        drawn = start - (self._num_steps[b] - num_held)  # in the frames that are held
        priority = self._priorities[b][drawn]
        if priority is None:
            new_priority = self.target.new_priority
            priority = 1.0 if new_priority is None else self._wait_or_not(new_priority)
        if isinstance(self._kind, Window):
            first, num_after = drawn - self._kind.burn_in, num_held - drawn
            if first or num_after < self._kind.num_steps:
                front, tail = max(0, -first), self._kind.num_steps - num_after
                refs = [
                    [*pad[:front], *column[max(0, first) :], *pad[:tail]]
                    for pad, column in zip(self._padding, refs, strict=True)
                ]
        else:
            self.newest_lengths.append(num_held)
            self.num_item_frames += num_held
        on_item = self.target.on_item
        if on_item is not None:
            frame_id, raw = int(self._next_ids[b]) - self._num_steps[b] + start, priority
            self._wait_or_not(lambda may_wait: on_item(frame_id, raw, may_wait))
        self._create(self.target.table, priority, refs, self._squeezed)
        if self.target.scan_table is not None:
            self._create(self.target.scan_table, 1.0, refs, self._squeezed)
        self.num_items += 1

    def _wait_or_not(self, ask: Callable[[bool], _T]) -> _T:
        """`ask(True)`; where that raises, which is kept, or something was late before, `ask(False)`."""
        if not self._late:
            try:
                return ask(True)
            except BaseException as error:  # an interrupt too: the writer raises it when all streams have their frame
                self._late.append(error)
        return ask(False)

    def _tell_short(self, num_steps: int) -> None:
        kind = self._kind
        if self._told_short or isinstance(kind, WholeEpisodes) or kind.short == "pad" or num_steps >= kind.num_steps:
            return
        self._told_short = True
        _logger.warning(
            "table %r: an episode of %d frames is shorter than sequence_length=%d and gives no item; "
            "further ones are not told.",
            self.target.table,
            num_steps,
            kind.num_steps,
        )

    def _clear_refs(self, b: int) -> None:
        for column in self._refs[b]:
            column.clear()
        self._priorities[b].clear()
