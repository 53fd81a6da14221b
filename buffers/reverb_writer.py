"""How frames become the items of Reverb tables: appended once, items made, episodes ended, pending bounded."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .episode_ends import EpisodeMarks
from .nests import Array
from .reverb_columns import SharedColumns
from .reverb_import import load_pybind, load_reverb
from .reverb_items import WholeEpisodes
from .reverb_layout import Layout
from .reverb_limits import limiter_state
from .reverb_link import FIRST_LINE_SECONDS, ServerLink, Watch
from .reverb_targets import ItemTarget, TableItems

_logger = logging.getLogger(__name__)

# A frame's id is [stream: 34 bits][count: 28 bits]; the stream part is drawn anew for each writer.
_COUNT_BITS = 28
_STREAM_BITS = 34

_LARGE_FRAME_BYTES = 4096
# How long pending items get before a read, or a write, looks whether a limiter holds them back.
_READ_SECONDS = 0.01
_LOOK_SECONDS = 0.05


def stream_of(ids: Array) -> Array:
    """The stream part of frame ids, int64 of the same shape."""
    return ids >> _COUNT_BITS


class ItemWriter:
    """Writes `B` streams, each frame once, and creates the items that they make in one table or several.

    All streams go through one writer of Reverb's, with a set of columns each: one call appends a
    step of all streams, and the items arrive in all tables in the same order, so that a table and its scan
    table evict the same ones. (Where a table's limiter holds its items back the others go ahead, by at most
    `max_pending_items`.)

    Ids of one stream count up by one inside an episode and skip a number where an episode is cut:
    two frames follow each other in one episode if and only if their ids do.

    No wait leaves a step half written: what waits raise, an interrupt too, is kept until every stream has its frame and
    every table its items, and `raise_late` raises it. What interrupts between the waits cuts all streams: their
    next frames begin episodes.

    Padding costs nothing: a few frames of it are sent once, in columns of their own, and every item refers to them.

    Args:
      link: the server.
      targets: the tables.
      batch_size: `B`.
      num_columns: of a frame.
      padding: columns `[bytes]` of a frame of padding; None where no table has any.
      chunk_length: frames that Reverb compresses together.
      max_pending_items: items that may wait for the server; then `write` waits until half of them are confirmed.

    Attributes:
      items: of each table.
      is_held_back: a call waits for a limiter to let items in. They were sent; only samples can help.
    """

    def __init__(
        self,
        link: ServerLink,
        targets: Sequence[ItemTarget],
        *,
        batch_size: int,
        num_columns: int,
        padding: list[Array] | None,
        chunk_length: int,
        max_pending_items: int,
    ) -> None:
        pybind = load_pybind()
        self._link = link
        self._num_columns = num_columns
        self._batch_size = batch_size
        self._max_pending = max_pending_items
        self._unconfirmed = 0
        self.is_held_back = False
        # What waits of the present call raised; nothing waits any more while something is there.
        self._late: list[BaseException] = []
        # A step, or an end, was begun and is not done; and whether the next frame may not follow the newest one.
        self._is_torn = False
        self._is_cut_asked = False
        self._has_frames = [False] * batch_size
        self._next_ids = np.zeros(batch_size, np.int64)
        self.items = tuple(
            TableItems(target, num_columns, self._next_ids, self._create, self._late) for target in targets
        )
        num_kept = max(items.num_kept for items in self.items)
        self._episodes = tuple(items for items in self.items if isinstance(items.target.kind, WholeEpisodes))
        options = pybind.ConstantChunkerOptions(
            max_chunk_length=chunk_length, num_keep_alive_refs=max(chunk_length, num_kept)
        )
        self._client = pybind.Client(link.address)
        self._writer: Any = self._client.NewTrajectoryWriter(options, False)
        num_padding = max(target.num_padding for target in targets)
        if num_padding:
            assert padding is not None  # plain tables hold none
            self._write_padding(pybind, padding, num_padding)
        self._draw_stream_ids()

    @property
    def next_ids(self) -> Array:
        """Ids int64 `[B]` that no frame has yet: all later ones of these streams are above."""
        return self._next_ids.copy()

    @property
    def has_open_tails(self) -> bool:
        """Whether the end of an unfinished episode would make items."""
        return any(items.has_open_tails for items in self.items)

    def check_room(self, begins: Array | None, ends: Array | None, num_steps: int) -> None:
        """Refuses frames that would make an episode longer than items of a table may be.

        Args:
          begins: bool `[B, T]`, or None.
          ends: bool `[B, T]`, or None.
          num_steps: `T`.

        Raises:
          ValueError: an episode would be too long; the message says what can be done.
        """
        for items in self.items:
            items.check_room(begins, ends, num_steps)

    def claim_ids(self, marks: EpisodeMarks) -> Array:
        """Ids int64 `[B]` of the next step, which `write` must follow with."""
        self._begin()
        if marks.begins is not None:
            for b in np.nonzero(marks.begins)[0]:
                self._end(int(b))
        for items in self._episodes:
            for b in range(self._batch_size):
                if items.make_room(b):
                    self._skip_id(b)
        return self._next_ids.copy()

    def write(self, columns: Sequence[Array], marks: EpisodeMarks, priorities: Sequence[Array | None]) -> None:
        """Appends one step of every stream, columns `[B, ...]`, and creates the items that it completes.

        `raise_late` must follow, when the caller has noted that the step is written.

        Args:
          columns: of the step.
          marks: its episodes' beginnings and ends.
          priorities: for each table `[B]`, or None.
        """
        rows = [np.asarray(row) for column in columns for row in column]
        refs = self._writer.Append(rows)
        self._next_ids += 1
        ends = None if marks.ends is None else marks.ends.tolist()
        final = None if marks.final is None else marks.final.tolist()
        for b in range(self._batch_size):
            self._has_frames[b] = True
            is_final = final is not None and final[b]
            frame = refs[b :: self._batch_size]
            for items, given in zip(self.items, priorities, strict=True):
                items.push(b, frame, None if given is None else float(given[b]), final=is_final)
            if ends is not None and ends[b]:
                self._end(b, final=is_final)
            if self._unconfirmed >= self._max_pending and not self._late:
                try:
                    self._confirm(self._max_pending // 2)
                except BaseException as error:  # raised when every stream has its frame
                    self._late.append(error)
        self._is_torn = False

    def raise_late(self) -> None:
        """Raises what a wait of the call that just ended raised, if one did.

        Raises:
          WaitTimeoutError: the server did not confirm, or tell, something within the link's timeout.
        """
        if self._late:
            late = self._late[0]
            self._late.clear()
            raise late

    def end_streams(self, streams: Iterable[int]) -> None:
        """These streams stop: no item goes past their newest frames, and those that it cuts short are made.

        Raises:
          WaitTimeoutError: the server does not answer within the link's timeout. The streams have ended all the same.
        """
        self._begin()
        for b in streams:
            self._end(b)
        self._is_torn = False
        self.raise_late()

    def cut_before_next_frame(self) -> None:
        """The next frames begin episodes: whether they follow the newest ones is not known. Any thread may call it."""
        self._is_cut_asked = True

    def flush(self) -> None:
        """Returns when the server has confirmed every item.

        Raises:
          WaitTimeoutError: it has not within the link's timeout; the items may still arrive later.
        """
        if self._unconfirmed:
            self._confirm(0)

    def flush_for_a_read(self, timeout_s: float | None = None) -> bool:
        """As `flush`, but returns as well when a limiter holds items back: samples are what they wait for.

        Args:
          timeout_s: instead of the link's.

        Returns:
          Whether items are held back.

        Raises:
          WaitTimeoutError: as `flush`.
        """
        return bool(self._unconfirmed) and not self._confirm(0, is_read=True, timeout_s=timeout_s)

    def count_held_back(self) -> int:
        """Items that the server does not confirm while nobody draws."""
        low, high = 0, self._unconfirmed
        while low < high:
            middle = (low + high) // 2
            if self._flush_within(middle, 0.0):
                high = middle
            else:
                low = middle + 1
        # Those that are in already may be confirmed a little later.
        while high and self._flush_within(high - 1, _LOOK_SECONDS):
            high -= 1
        self._unconfirmed = high
        return high

    def close(self) -> None:
        """Ends the connection; what is unconfirmed may be lost."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.Close()

    def _create(self, table: str, priority: float, refs: list[list[Any]], squeezed: list[bool]) -> None:
        self._unconfirmed += 1  # first: an interrupt in between must not hide an item from `flush`
        self._writer.CreateItem(table, priority, refs, squeezed)

    def _begin(self) -> None:
        """A step, or an end, begins; where the last one was not done, or it was asked for, all streams are cut."""
        self._late.clear()
        was_torn, self._is_torn = self._is_torn, True
        if was_torn:
            # What is held of the episodes may be halves: it makes no items.
            for items in self.items:
                for b in range(self._batch_size):
                    items.forget_episode(b)
            for b in range(self._batch_size):
                self._skip_id(b)
                self._has_frames[b] = False
        elif self._is_cut_asked:
            for b in range(self._batch_size):
                self._end(b)
        if was_torn or self._is_cut_asked:
            self._is_cut_asked = False
            _logger.warning(
                "%s: a write was interrupted; no item goes over it: the next frame of each stream begins an episode%s.",
                self._where(),
                ", and what was to be made when the episode before had ended is not made" if was_torn else "",
            )

    def _end(self, b: int, *, final: bool = False) -> None:
        """Stream `b` stops; `final`: its newest frame is only a final observation."""
        if not self._has_frames[b]:
            return
        for items in self.items:
            items.end_episode(b, final=final)
        self._skip_id(b)
        self._has_frames[b] = False

    def _write_padding(self, pybind: Any, padding: list[Array], num_frames: int) -> None:
        """Writes frames of padding, in columns behind those of the streams, and keeps references to them.

        An item may use one frame only once, as Reverb joins what lies side by side in a chunk.
        """
        num_before = self._batch_size * self._num_columns
        options = pybind.ConstantChunkerOptions(max_chunk_length=num_frames, num_keep_alive_refs=num_frames)
        for column in range(num_before, num_before + self._num_columns):
            self._writer.ConfigureChunker(column, options)
        for _ in range(num_frames):
            refs = self._writer.Append([None] * num_before + padding)[num_before:]
            for items in self.items:
                items.take_padding(refs)

    def _skip_id(self, b: int) -> None:
        self._next_ids[b] += 1
        if int(self._next_ids[b]) & ((1 << _COUNT_BITS) - 1) > 1 << (_COUNT_BITS - 1):
            self._draw_stream_ids(b)

    def _confirm(self, num_may_wait: int, *, is_read: bool = False, timeout_s: float | None = None) -> bool:
        """Whether at most so many items wait; False only for a read, where a limiter holds more of them back."""
        watch = Watch(self._link, timeout_s)
        seconds = _READ_SECONDS if is_read else _LOOK_SECONDS
        try:
            while not self._flush_within(num_may_wait, min(watch.remaining(), seconds, self._link.log_interval_s)):
                blocked = self._blocked_tables()
                if is_read and blocked:
                    return False
                self.is_held_back = bool(blocked)
                seconds = _LOOK_SECONDS if is_read else FIRST_LINE_SECONDS
                why = f": {'; '.join(blocked)}" if blocked else ""
                watch.tell_or_raise(
                    f"{self._where()} at {self._link.address}: up to {self._unconfirmed} items are not confirmed by "
                    f"the server{why}; waiting"
                )
            self._unconfirmed = num_may_wait
            return True
        finally:
            self.is_held_back = False

    def _flush_within(self, num_may_wait: int, seconds: float) -> bool:
        """Whether at most so many items are unconfirmed after so many seconds."""
        try:
            self._writer.Flush(num_may_wait, max(1, int(seconds * 1000)))
        except RuntimeError as error:
            if "Timeout exceeded" not in str(error):
                raise
            return False
        return True

    def _blocked_tables(self) -> list[str]:
        """What those of the tables wait for whose limiters let no insert through."""
        try:
            infos = self._link.ask(1.0)
        except (RuntimeError, load_reverb().DeadlineExceededError):
            return []
        tables = [items.target.table for items in self.items]
        why = [limiter_state(infos[table]).why_no_insert() for table in tables if table in infos]
        return [text for text in why if text is not None]

    def _where(self) -> str:
        tables = ", ".join(repr(items.target.table) for items in self.items)
        return f"table {tables}" if len(self.items) == 1 else f"tables {tables}"

    def _draw_stream_ids(self, b: int | None = None) -> None:
        """Gives each stream (or stream `b`) numbers that no other writer has.

        Those of one writer ascend, so that frames in the order of their ids are in the order of streams.
        """
        if b is None:
            first = secrets.randbelow((1 << _STREAM_BITS) - self._batch_size)
            self._next_ids[:] = (first + np.arange(self._batch_size)) << _COUNT_BITS
        else:
            self._next_ids[b] = secrets.randbelow(1 << _STREAM_BITS) << _COUNT_BITS


def default_chunk_length(layout: Layout | SharedColumns, item_length: int | None) -> int:
    """Frames in a chunk: as many as an item has, up to 16, so that an item lies in few chunks.

    Items of one frame have a chunk each: they are sent at once, and were fastest to write and to
    draw. Large frames too, since a chunk is read as a whole.
    """
    return 1 if sum(layout.column_bytes) >= _LARGE_FRAME_BYTES else min(16, item_length or 16)


def random_priorities() -> Callable[[], float]:
    """Priorities drawn from U(0, 1), of a generator that no other writer shares.

    A table that drops the least of them holds a sample without replacement of all that was inserted by any number of
    writers: the items with the largest of independent random keys (Vitter 1985; Efraimidis and Spirakis 2006).

    >>> 0 <= random_priorities()() < 1
    True
    """
    return np.random.default_rng().random
