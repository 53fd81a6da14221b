"""How frames become the items of a Reverb table: items made, episodes ended, pending bounded."""

from __future__ import annotations

import collections
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .base import WaitTimeoutError
from .episode_ends import EpisodeMarks
from .nests import Array
from .reverb_cutter import NO_ITEM, make_cutter
from .reverb_import import load_pybind
from .reverb_items import ItemKind, WholeEpisodes
from .reverb_layout import Layout, PackedLayout
from .reverb_link import FIRST_LINE_SECONDS, ServerLink, Watch
from .windows import Window

_logger = logging.getLogger(__name__)

# A frame's id is [stream: 34 bits][count: 28 bits]; the stream part is drawn anew for each writer.
_COUNT_BITS = 28
_STREAM_BITS = 34

_LARGE_FRAME_BYTES = 4096


def stream_of(ids: Array) -> Array:
    """The stream part of frame ids, int64 of the same shape."""
    return ids >> _COUNT_BITS


class ItemWriter:
    """Writes `B` streams into a table, and the same items into its mirrors and its scan table.

    All streams go through one writer of Reverb's, with a set of columns each: one call appends a
    step of all streams, and the items arrive in all tables in the same order, so that all evict
    the same ones.

    Ids of one stream count up by one inside an episode and skip a number where an episode is cut:
    two frames follow each other in one episode if and only if their ids do.

    Padding costs nothing: a few frames of it are sent once, in columns of their own, and every item refers to them.

    Args:
      link: the table.
      scan_table: the second table's name, or None.
      batch_size: `B`.
      layout: how a frame lies in columns.
      kind: what an item is.
      capacity: items that the table holds.
      chunk_length: frames that Reverb compresses together.
      max_pending_items: items that may wait for the server; then `write` waits until half of them are confirmed.
      mirrors: further tables that hold the same items with the same priorities.
      new_priority: the raw priority of an item that was given none; None: 1.
    """

    def __init__(
        self,
        link: ServerLink,
        scan_table: str | None,
        *,
        batch_size: int,
        layout: Layout,
        kind: ItemKind,
        capacity: int,
        chunk_length: int,
        max_pending_items: int,
        mirrors: Sequence[str] = (),
        new_priority: Callable[[], float] | None = None,
    ) -> None:
        pybind = load_pybind()
        self._cutter = make_cutter(kind)
        self._num_kept = self._cutter.num_kept
        options = pybind.ConstantChunkerOptions(
            max_chunk_length=chunk_length, num_keep_alive_refs=max(chunk_length, self._num_kept)
        )
        self._link = link
        self._tables = (link.table, *mirrors)
        self._scan_table = scan_table
        self._new_priority = new_priority
        self._client = pybind.Client(link.address)
        self._writer: Any = self._client.NewTrajectoryWriter(options, False)
        self._num_columns = layout.num_columns
        self._batch_size = batch_size
        self._kind = kind
        self._squeezed = [False] * layout.num_columns
        self._max_pending = max_pending_items
        self._unconfirmed = 0
        # For each stream: references to its newest frames by column, their priorities, and how many its episode has.
        self._refs: list[list[list[Any]]] = [[[] for _ in range(self._num_columns)] for _ in range(batch_size)]
        self._priorities: list[list[float | None]] = [[] for _ in range(batch_size)]
        self._num_steps = [0] * batch_size
        self._is_left_out = [False] * batch_size
        # References to frames of padding, by column.
        self._padding: list[list[Any]] = [[] for _ in range(self._num_columns)]
        if isinstance(kind, Window) and not kind.is_plain:
            self._write_padding(pybind, layout, max(kind.burn_in, kind.num_steps - 1))
        self._next_ids = np.zeros(batch_size, np.int64)
        self._draw_stream_ids()
        self._longest_episode = 0
        self._num_episodes = 0
        self._told_short = False
        self._told_long = False
        self.num_over_long = 0
        self.num_items = 0
        self.num_item_frames = 0
        self.newest_lengths: collections.deque[int] = collections.deque(maxlen=capacity)

    @property
    def next_ids(self) -> Array:
        """Ids int64 `[B]` that no frame has yet: all later ones of these streams are above."""
        return self._next_ids.copy()

    @property
    def num_dropped_short(self) -> int:
        """Frames of ended episodes where a window would have started, had the episode been longer."""
        return self._cutter.num_dropped_short

    @property
    def has_open_tails(self) -> bool:
        """Whether the end of an unfinished episode would make items."""
        is_plain = isinstance(self._kind, Window) and self._kind.short == "drop"
        return not is_plain and any(self._num_steps)

    def check_room(self, begins: Array | None, ends: Array | None, num_steps: int) -> None:
        """Refuses frames that would make an episode longer than items may be.

        Args:
          begins: bool `[B, T]`, or None.
          ends: bool `[B, T]`, or None.
          num_steps: `T`.

        Raises:
          ValueError: an episode would be too long; the message says what can be done.
        """
        if not isinstance(self._kind, WholeEpisodes) or self._kind.over_long != "error":
            return
        most = self._kind.max_length
        for b, num in enumerate(self._num_steps):
            if num + num_steps <= most:
                continue
            for t in range(num_steps):
                if begins is not None and begins[b, t]:
                    num = 0
                if num == most:
                    raise ValueError(
                        f"table {self._link.table!r} holds episodes of up to max_episode_length={most} frames, and the "
                        f"one of stream {b} goes on: end it (end_of_episode, end_stream), or make the table with a "
                        "larger max_episode_length, over_long='cut' or over_long='drop'."
                    )
                num = 0 if ends is not None and ends[b, t] else num + 1

    def claim_ids(self, marks: EpisodeMarks) -> Array:
        """Ids int64 `[B]` of the next step, which `write` must follow with."""
        if marks.begins is not None:
            for b in np.nonzero(marks.begins)[0]:
                self.end_stream(int(b))
        if isinstance(self._kind, WholeEpisodes):
            for b, num in enumerate(self._num_steps):
                if num == self._kind.max_length:
                    self._shorten(b, self._kind)
        return self._next_ids.copy()

    def write(self, columns: Sequence[Array], marks: EpisodeMarks, priorities: Array | None) -> None:
        """Appends one step of every stream, columns `[B, ...]`, and creates the items that it completes."""
        rows = [np.asarray(row) for column in columns for row in column]
        refs = self._writer.Append(rows)
        self._next_ids += 1
        ends = None if marks.ends is None else marks.ends.tolist()
        final = None if marks.final is None else marks.final.tolist()
        late: WaitTimeoutError | None = None
        for b in range(self._batch_size):
            self._push(b, refs[b :: self._batch_size], None if priorities is None else float(priorities[b]))
            is_final = final is not None and final[b]
            start = self._cutter.after_frame(self._num_steps[b], final=is_final)
            if start != NO_ITEM:
                self._create_item(b, start)
            if ends is not None and ends[b]:
                self.end_stream(b, final=is_final)
            if late is None and self._unconfirmed >= self._max_pending:
                try:
                    self._confirm(self._max_pending // 2)
                except WaitTimeoutError as error:
                    late = error  # raised when every stream has its frame
        if late is not None:
            raise late

    def end_stream(self, b: int, *, final: bool = False) -> None:
        """Stream `b` stops: no item goes past its newest frame, and those that it cuts short are made.

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
        self._forget_episode(b)

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

    def flush(self) -> None:
        """Returns when the server has confirmed every item.

        Raises:
          WaitTimeoutError: it has not within the link's timeout; the items may still arrive later.
        """
        if self._unconfirmed:
            self._confirm(0)

    def close(self) -> None:
        """Ends the connection; what is unconfirmed may be lost."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.Close()

    def _push(self, b: int, refs: Sequence[Any], priority: float | None) -> None:
        self._num_steps[b] += 1
        self._longest_episode = max(self._longest_episode, self._num_steps[b])
        if self._is_left_out[b]:
            return
        full = self._num_steps[b] > self._num_kept
        for column, ref in zip(self._refs[b], refs, strict=True):
            column.append(ref)
            if full:
                del column[0]
        self._priorities[b].append(priority)
        if full:
            del self._priorities[b][0]

    def _create_item(self, b: int, start: int) -> None:
        """Creates the item whose drawn frame is the episode's frame `start`; it goes up to the newest."""
        refs = self._refs[b]
        num_held = len(self._priorities[b])
        drawn = start - (self._num_steps[b] - num_held)  # in the frames that are held
        priority = self._priorities[b][drawn]
        if priority is None:
            priority = 1.0 if self._new_priority is None else self._new_priority()
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
        for table in self._tables:
            self._writer.CreateItem(table, priority, refs, self._squeezed)
        self._unconfirmed += len(self._tables)
        if self._scan_table is not None:
            # Scans tell visited items by priority, so that the item's own has no place here.
            self._writer.CreateItem(self._scan_table, 1.0, refs, self._squeezed)
            self._unconfirmed += 1
        self.num_items += 1

    def _write_padding(self, pybind: Any, layout: Layout, num_frames: int) -> None:
        """Writes frames of padding, in columns behind those of the streams, and keeps references to them.

        An item may use one frame only once, as Reverb joins what lies side by side in a chunk.
        """
        if num_frames == 0:
            return
        assert isinstance(layout, PackedLayout)  # plain tables hold no padding
        num_before = self._batch_size * self._num_columns
        options = pybind.ConstantChunkerOptions(max_chunk_length=num_frames, num_keep_alive_refs=num_frames)
        for column in range(num_before, num_before + self._num_columns):
            self._writer.ConfigureChunker(column, options)
        for _ in range(num_frames):
            refs = self._writer.Append([None] * num_before + layout.padding)[num_before:]
            for kept, ref in zip(self._padding, refs, strict=True):
                kept.append(ref)

    def _shorten(self, b: int, kind: WholeEpisodes) -> None:
        """What becomes of an episode that has as many frames as an item may have, when another comes."""
        self.num_over_long += 1
        if not self._told_long:
            self._told_long = True
            _logger.warning(
                "table %r: an episode has more than max_episode_length=%d frames and is %s; further ones are not told.",
                self._link.table,
                kind.max_length,
                "left out" if kind.over_long == "drop" else "cut",
            )
        if kind.over_long == "cut":
            self._create_item(b, 0)
            self._forget_episode(b)
            return
        self._is_left_out[b] = True
        self._clear_refs(b)

    def _tell_short(self, num_steps: int) -> None:
        kind = self._kind
        if self._told_short or isinstance(kind, WholeEpisodes) or kind.short == "pad" or num_steps >= kind.num_steps:
            return
        self._told_short = True
        _logger.warning(
            "table %r: an episode of %d frames is shorter than sequence_length=%d and gives no item; "
            "further ones are not told.",
            self._link.table,
            num_steps,
            kind.num_steps,
        )

    def _forget_episode(self, b: int) -> None:
        """The next frame of stream `b` is an episode's first."""
        self._clear_refs(b)
        self._is_left_out[b] = False
        self._num_steps[b] = 0
        self._next_ids[b] += 1
        if int(self._next_ids[b]) & ((1 << _COUNT_BITS) - 1) > 1 << (_COUNT_BITS - 1):
            self._draw_stream_ids(b)

    def _clear_refs(self, b: int) -> None:
        for column in self._refs[b]:
            column.clear()
        self._priorities[b].clear()

    def _confirm(self, num_may_wait: int) -> None:
        watch = Watch(self._link)
        while True:
            seconds = min(watch.remaining(), FIRST_LINE_SECONDS, self._link.log_interval_s)
            try:
                self._writer.Flush(num_may_wait, max(1, int(seconds * 1000)))
            except RuntimeError as error:
                if "Timeout exceeded" not in str(error):
                    raise
                watch.tell_or_raise(
                    f"table {self._link.table!r} at {self._link.address}: up to {self._unconfirmed} items are not "
                    "confirmed by the server; waiting"
                )
                continue
            self._unconfirmed = num_may_wait
            return

    def _draw_stream_ids(self, b: int | None = None) -> None:
        """Gives each stream (or stream `b`) numbers that no other writer has.

        Those of one writer ascend, so that frames in the order of their ids are in the order of streams.
        """
        if b is None:
            first = secrets.randbelow((1 << _STREAM_BITS) - self._batch_size)
            self._next_ids[:] = (first + np.arange(self._batch_size)) << _COUNT_BITS
        else:
            self._next_ids[b] = secrets.randbelow(1 << _STREAM_BITS) << _COUNT_BITS


def default_chunk_length(layout: Layout, item_length: int | None) -> int:
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
