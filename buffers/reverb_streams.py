"""How items become frames of a Reverb table: checked, marked, packed, written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .base import WaitTimeoutError
from .episode_ends import EpisodeMarks, EpisodeRule
from .nests import Array
from .priorities import check_priorities
from .reverb_layout import NO_ID, StepPacker
from .reverb_open_writer import OpenWriter
from .reverb_targets import TableItems
from .reverb_writer import ItemWriter


class ColumnLayout(Protocol):
    """How frames become columns; a `Layout`, or that of several tables."""

    @property
    def has_ids(self) -> bool:
        """Whether columns hold the frames' ids."""

    def pack(self, leaves: Sequence[Array], ids: Array, is_final: Array | None) -> list[Array]:
        """Columns `[N, ...]` for leaves `[N, ...]`, ids `[N]` and flags `[N]`."""

    def pack_steps(self, leaves: Sequence[Array]) -> StepPacker:
        """What gives the columns `[B, bytes]` of each step of leaves `[B, T, ...]`."""


class StreamWriter:
    """The writing half of a buffer; any number of threads may call it.

    Everything that can be wrong with the items is found before anything is appended to any
    stream, so that a refused write leaves no frame.

    Args:
      rule: tells where episodes begin and end.
      layout: how frames lie in columns.
      batch_size: `B`.
      make_writer: connects to the tables; called at the first write.
      check: raises where the server's tables are others by now.
      priorities_refused: for each table by its name, in order, why it takes no priorities from outside; an empty text
        where it does.
      check_given: by table what raises where checked priorities are still none for it.

    Attributes:
      own: through what this one writes.
    """

    def __init__(
        self,
        rule: EpisodeRule,
        layout: ColumnLayout,
        batch_size: int,
        make_writer: Callable[[], ItemWriter],
        check: Callable[[], None],
        priorities_refused: Mapping[str, str],
        check_given: Mapping[str, Callable[[Array], None]] | None = None,
    ) -> None:
        self._rule = rule
        self._layout = layout
        self._batch_size = batch_size
        self._priorities_refused = dict(priorities_refused)
        self._check_given = dict(check_given or {})
        self.own = OpenWriter(make_writer, check)
        # Through what is written, and for which of its tables: this one's own, unless a group writes.
        self._through: OpenWriter[Any] = self.own
        self._index = 0
        self._group = ""

    def write_through(self, through: OpenWriter[Any], index: int, group: str) -> None:
        """From now on a group writes: this is the part of it that a reader of one table sees.

        Args:
          through: the group's.
          index: the table's number there.
          group: what to call it in messages.

        Raises:
          ValueError: this one has written by itself, or is closed.
        """
        with self.own.lock:
            if self.own.is_used:
                raise ValueError("a buffer that has written by itself, or is closed, cannot be part of a group.")
            self._through, self._index, self._group = through, index, group

    @property
    def has_written(self) -> bool:
        """Whether anything was written."""
        return self._through.writer is not None

    def check_if_written_here(self, check: Callable[[], None]) -> None:
        """Calls `check` if this thread was the last one that wrote; if none has, when it is the first one to do so.

        (What a `tf.function` writes counts as another thread's.)
        """
        self._through.check_if_written_here(check)

    def end_stream(self, b: int | None) -> None:
        """No item goes past the newest frame of stream `b` (None: of any).

        Raises:
          ValueError: a group writes.
        """
        self._check_own("end_stream")
        with self.own.lock:
            self._rule.forget_loose_flags()
            if self.own.writer is not None:
                self.own.writer.end_streams(range(self._batch_size) if b is None else (b,))

    def flush(self) -> None:
        """Returns when the server has confirmed all that was added."""
        self._through.flush()

    def flush_for_a_read(self, timeout_s: float | None = None) -> bool:
        """As `flush`, but does not wait for what a limiter holds back until somebody draws.

        Args:
          timeout_s: instead of the link's.

        Returns:
          Whether items are held back.
        """
        return self._through.flush_for_a_read(timeout_s)

    def count_held_back(self) -> int:
        """Items of this table that a limiter holds back.

        0 where it cannot tell: where a group writes, which cannot tell whose they are, and while a write of another
        thread waits for a limiter.
        """
        own = self.own
        if self._group or len(self._priorities_refused) > 1 or not own.lock.acquire(blocking=False):
            return 0
        try:
            return 0 if own.writer is None else own.writer.sender.count_held_back()
        finally:
            own.lock.release()

    def flushed_next_ids(self) -> Array | None:
        """`flush_for_a_read`; ids int64 `[B]` above all those given out so far, or None where there are none."""
        with self._through.unless_held_back():
            self.flush_for_a_read()
            writer = self._through.writer
            return None if writer is None else writer.cuts.next_ids.copy()

    def restart(self, empty_the_table: Callable[[], None], tell: Callable[[], None]) -> None:
        """Calls `empty_the_table` while nothing is written, pending, or half an item.

        Streams go on with a new episode; where a group writes, in this table alone.

        Args:
          empty_the_table: which lets in what its limiter held back.
          tell: called while something is held back all the same; raises when that takes too long.
        """
        with self._through.lock:
            writer = self._through.writer
            parts = [] if writer is None else [writer.items[self._index]] if self._group else list(writer.items)
            for items in parts:
                for b in range(self._batch_size):
                    items.forget_episode(b)
            if writer is not None and not self._group:
                self.end_stream(None)
            while True:
                is_held_back = writer is not None and writer.sender.flush_for_a_read()
                empty_the_table()
                if not is_held_back:
                    break
                tell()
            for items in parts:
                items.forget_items()

    def close(self, *, to_the_end: bool = True) -> None:
        """Ends the streams, flushes, ends the connection and refuses further writes.

        What an unfinished episode's last frames make is written: nobody could go on with it. Where a group writes
        nothing ends.

        Args:
          to_the_end: also wait for what a limiter holds back; without, it is lost.
        """
        self.own.close(self._batch_size, to_the_end=to_the_end)

    @property
    def num_dropped_short(self) -> int:
        """Frames of ended episodes of these streams that start no window because the episode was too short."""
        items = self._items
        return 0 if items is None else items.num_dropped_short

    @property
    def num_over_long(self) -> int:
        """Episodes that were left out, or cuts that were made, because of `max_episode_length`."""
        items = self._items
        return 0 if items is None else items.num_over_long

    @property
    def num_item_frames(self) -> int:
        """Frames of the episodes of these streams that became items."""
        items = self._items
        return 0 if items is None else items.num_item_frames

    def num_frames_of_newest(self, num_items: int, num_inserted: int) -> int | None:
        """Frames of the newest `num_items` episodes; None unless all that was inserted came from here."""
        with self._through.unless_held_back():
            items = self._items
            if items is None or items.num_items != num_inserted:
                return 0 if num_inserted == 0 else None
            lengths = list(items.newest_lengths)
        return sum(lengths[len(lengths) - num_items :])

    def explain_no_item(self) -> str:
        """Why these streams gave no item, with the numbers; empty where that is not the reason."""
        items = self._items
        return "" if items is None else items.explain_no_item()

    @property
    def _items(self) -> TableItems | None:
        writer = self._through.writer
        return None if writer is None else writer.items[self._index]

    def _check_own(self, call: str) -> None:
        if self._group:
            raise ValueError(f"{call}: this table is written through {self._group}: call {call} there.")

    def add_step(
        self, leaves: list[Array], end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """One frame a stream, leaves `[B, ...]`; ids int64 `[B]`.

        Args:
          leaves: of the spec, checked.
          end_of_episode: bool `[B]`, or None.
          priorities: `[B]` for every table that takes them, a dict of them by table, or None.
          streams: int64 `[n]` in ascending order: of these only, and `n` stands for `B` everywhere.

        Raises:
          ValueError: marks or priorities do not fit, or an episode would be too long. Nothing is written.
          WaitTimeoutError: too much is pending, or the greatest priority is not told; the frame is written all the
            same.
        """
        self._check_own("add_batch")
        num_written = 0
        try:
            marks = self._rule.marks(leaves, end_of_episode, streams)
            checked = self._check_priorities(priorities, (self._num_rows(streams),))
            with self.own.lock:
                writer = self.own.open()
                begins, ends = (None if flags is None else flags[:, None] for flags in marks[:2])
                writer.check_room(begins, ends, 1, streams)
                ids = writer.claim_ids(marks, streams)
                writer.write(self._layout.pack(leaves, ids, marks.final), marks, checked, streams)
                num_written = 1
                writer.sender.raise_late()
        except WaitTimeoutError as error:
            error.num_written = num_written
            raise
        except BaseException as error:
            self._cut_if_interrupted(error, num_written, 1, streams)
            raise
        return self._told_ids(ids)

    def add_steps(
        self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """`T` frames a stream, leaves `[B, T, ...]`; ids int64 `[B, T]`. As `add_step`, in every other respect.

        Raises:
          ValueError: as `add_step`.
          WaitTimeoutError: as `add_step`; its `num_written` frames of each stream are written, and the caller can go on
            with the rest.
        """
        self._check_own("add_sequence")
        num_written = 0
        try:
            shape = (self._num_rows(streams), num_steps)
            checked = self._check_priorities(priorities, shape)
            if num_steps == 0:
                return np.zeros(shape, np.int64)
            marks = self._rule.marks(leaves, end_of_episode, streams)
            ids = np.empty(shape, np.int64)
            with self.own.lock:
                writer = self.own.open()
                writer.check_room(marks.begins, marks.ends, num_steps, streams)
                pack_step = self._layout.pack_steps(leaves)
                for t in range(num_steps):
                    step = EpisodeMarks(*(None if flags is None else flags[:, t] for flags in marks))
                    now = [None if given is None else given[:, t] for given in checked]
                    ids[:, t] = claimed = writer.claim_ids(step, streams)
                    writer.write(pack_step(t, claimed, step.final), step, now, streams)
                    num_written = t + 1
                    writer.sender.raise_late()
        except WaitTimeoutError as error:
            raise _told(error, num_written, num_steps) from error
        except BaseException as error:
            self._cut_if_interrupted(error, num_written, num_steps, streams)
            raise
        return self._told_ids(ids)

    def _told_ids(self, ids: Array) -> Array:
        """The ids, where the table keeps them."""
        return ids if self._layout.has_ids else np.full_like(ids, NO_ID)

    def _num_rows(self, streams: Array | None) -> int:
        return self._batch_size if streams is None else len(streams)

    def _cut_if_interrupted(
        self, error: BaseException, num_written: int, num_steps: int, streams: Array | None
    ) -> None:
        """Sees to it that the next frame does not follow one that it does not follow: some may be missing between.

        What is refused before anything was written leaves streams as they were.
        """
        writer = self.own.writer
        if writer is not None and num_written < num_steps and (num_written or not isinstance(error, Exception)):
            cut = range(self._batch_size) if streams is None else streams.tolist()
            writer.cuts.cut_before_next_frame(cut)

    def _check_priorities(self, priorities: Any, shape: tuple[int, ...]) -> list[Array | None]:
        """For each table its priorities, or None."""
        refused = self._priorities_refused
        if priorities is None:
            return [None] * len(refused)
        if not isinstance(priorities, Mapping):
            if all(refused.values()):
                raise ValueError(next(iter(refused.values())))
            given = check_priorities(priorities, None, shape)
            for name, why in refused.items():
                if not why and name in self._check_given:
                    self._check_given[name](given)
            return [None if why else given for why in refused.values()]
        for name in priorities:
            if name not in refused:
                raise ValueError(f"priorities: there is no table {name!r} here; there are {', '.join(refused)}.")
            if refused[name]:
                raise ValueError(refused[name])
        return [self._check_priorities_of(name, priorities.get(name), shape) for name in refused]

    def _check_priorities_of(self, table: str, priorities: Any, shape: tuple[int, ...]) -> Array | None:
        if priorities is None:
            return None
        try:
            given = check_priorities(priorities, None, shape)
        except ValueError as error:
            raise ValueError(f"table {table!r}: {error}") from error
        if table in self._check_given:
            self._check_given[table](given)
        return given


def _told(error: WaitTimeoutError, num_written: int, num_steps: int) -> WaitTimeoutError:
    """The error of an `add_sequence`, with how much is written."""
    if num_written == num_steps:
        what = f"All {num_steps} frames of each stream are written."
    else:
        what = (
            f"{num_written} of {num_steps} frames of each stream are written: go on with the frames from "
            f"{num_written} on (the error's num_written), or call end_stream()."
        )
    told = WaitTimeoutError(f"{error} {what}")
    told.num_written = num_written
    return told
