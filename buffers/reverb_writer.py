"""How frames become the items of a Reverb table: windows cut, episodes ended, pending bounded."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import WaitTimeoutError
from .episode_ends import EpisodeMarks
from .nests import Array
from .reverb_import import load_pybind
from .reverb_layout import Layout
from .reverb_link import FIRST_LINE_SECONDS, ServerLink, Watch

_logger = logging.getLogger(__name__)

# A frame's id is [stream: 34 bits][count: 28 bits]; the stream part is drawn anew for each writer.
_COUNT_BITS = 28
_STREAM_BITS = 34

_LARGE_FRAME_BYTES = 4096


def stream_of(ids: Array) -> Array:
    """The stream part of frame ids, int64 of the same shape."""
    return ids >> _COUNT_BITS


class ItemWriter:
    """Writes `B` streams into a table, and the same items into its scan table.

    All streams go through one writer of Reverb's, with a set of columns each: one call appends a
    step of all streams, and the items arrive in both tables in the same order, so that both evict
    the same ones.

    Ids of one stream count up by one inside an episode and skip a number where an episode is cut:
    two frames follow each other in one episode if and only if their ids do.

    Args:
      link: the table.
      scan_table: the second table's name, or None.
      num_columns: columns of a frame.
      batch_size: `B`.
      sequence_length: `L`, frames in an item.
      stride: frames from one item's start to the next in an episode.
      chunk_length: frames that Reverb compresses together.
      max_pending_items: items that may wait for the server; then `write` waits until half of them are confirmed.
    """

    def __init__(
        self,
        link: ServerLink,
        scan_table: str | None,
        *,
        num_columns: int,
        batch_size: int,
        sequence_length: int,
        stride: int,
        chunk_length: int,
        max_pending_items: int,
    ) -> None:
        pybind = load_pybind()
        options = pybind.ConstantChunkerOptions(
            max_chunk_length=chunk_length, num_keep_alive_refs=max(chunk_length, sequence_length)
        )
        self._link = link
        self._tables = (link.table,) if scan_table is None else (link.table, scan_table)
        self._client = pybind.Client(link.address)
        self._writer: Any = self._client.NewTrajectoryWriter(options, False)
        self._num_columns = num_columns
        self._batch_size = batch_size
        self._length = sequence_length
        self._stride = stride
        self._squeezed = [False] * num_columns
        self._max_pending = max_pending_items
        self._unconfirmed = 0
        # For each stream: references to its newest frames by column, their priorities, and how many its episode has.
        self._refs: list[list[list[Any]]] = [[[] for _ in range(num_columns)] for _ in range(batch_size)]
        self._priorities: list[list[float]] = [[] for _ in range(batch_size)]
        self._num_steps = [0] * batch_size
        self._next_ids = np.zeros(batch_size, np.int64)
        self._draw_stream_ids()
        self._longest_episode = 0
        self._num_episodes = 0
        self._told_short = False

    @property
    def next_ids(self) -> Array:
        """Ids int64 `[B]` that no frame has yet: all later ones of these streams are above."""
        return self._next_ids.copy()

    def claim_ids(self, marks: EpisodeMarks) -> Array:
        """Ids int64 `[B]` of the next step, which `write` must follow with."""
        if marks.begins is not None:
            for b in np.nonzero(marks.begins)[0]:
                self.end_stream(int(b))
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
            self._push(b, refs[b :: self._batch_size], 1.0 if priorities is None else float(priorities[b]))
            if not (self._length == 1 and final is not None and final[b]):
                self._create_item(b)
            if ends is not None and ends[b]:
                self.end_stream(b)
            if late is None and self._unconfirmed >= self._max_pending:
                try:
                    self._confirm(self._max_pending // 2)
                except WaitTimeoutError as error:
                    late = error  # raised when every stream has its frame
        if late is not None:
            raise late

    def end_stream(self, b: int) -> None:
        """Stream `b` stops: no item goes past its newest frame."""
        num_steps = self._num_steps[b]
        if not num_steps:
            return
        self._num_episodes += 1
        if num_steps < self._length and not self._told_short:
            self._told_short = True
            _logger.warning(
                "table %r: an episode of %d frames is shorter than sequence_length=%d and gives no item; "
                "further ones are not told.",
                self._link.table,
                num_steps,
                self._length,
            )
        for column in self._refs[b]:
            column.clear()
        self._priorities[b].clear()
        self._num_steps[b] = 0
        self._next_ids[b] += 1
        if int(self._next_ids[b]) & ((1 << _COUNT_BITS) - 1) > 1 << (_COUNT_BITS - 1):
            self._draw_stream_ids(b)

    def explain_no_item(self) -> str:
        """Why these streams gave no item, with the numbers; empty where that is not the reason."""
        if not self._longest_episode or self._longest_episode >= self._length:
            return ""
        num_episodes = self._num_episodes + sum(1 for steps in self._num_steps if steps)
        return (
            f"; no window of {self._length} frames: this buffer wrote {num_episodes} episodes, "
            f"longest {self._longest_episode}"
        )

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

    def _push(self, b: int, refs: Sequence[Any], priority: float) -> None:
        full = self._num_steps[b] >= self._length
        for column, ref in zip(self._refs[b], refs, strict=True):
            column.append(ref)
            if full:
                del column[0]
        self._priorities[b].append(priority)
        if full:
            del self._priorities[b][0]
        self._num_steps[b] += 1
        self._longest_episode = max(self._longest_episode, self._num_steps[b])

    def _create_item(self, b: int) -> None:
        start = self._num_steps[b] - self._length
        if start < 0 or start % self._stride:
            return
        priority = self._priorities[b][0]
        self._writer.CreateItem(self._tables[0], priority, self._refs[b], self._squeezed)
        if len(self._tables) == 2:
            # Scans tell visited items by priority, so that the item's own has no place here.
            self._writer.CreateItem(self._tables[1], 1.0, self._refs[b], self._squeezed)
        self._unconfirmed += len(self._tables)

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


def default_chunk_length(layout: Layout, sequence_length: int) -> int:
    """Frames in a chunk: as many as an item has, up to 16, so that an item lies in few chunks.

    Items of one frame have a chunk each: they are sent at once, and were fastest to write and to
    draw. Large frames too, since a chunk is read as a whole.
    """
    return 1 if sum(layout.column_bytes) >= _LARGE_FRAME_BYTES else min(16, sequence_length)
