"""How items become frames of a Reverb table: checked, marked, packed, written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .episode_ends import EpisodeMarks, EpisodeRule
from .nests import Array
from .priorities import check_priorities
from .reverb_layout import NO_ID, Layout
from .reverb_writer import ItemWriter


class StreamWriter:
    """The writing half of a buffer; any number of threads may call it.

    Everything that can be wrong with the items is found before anything is appended to any
    stream, so that a refused write leaves no frame.

    Args:
      rule: tells where episodes begin and end.
      layout: how frames lie in columns.
      batch_size: `B`.
      make_writer: connects to the table; called at the first write.
    """

    def __init__(
        self,
        rule: EpisodeRule,
        layout: Layout,
        batch_size: int,
        make_writer: Callable[[], ItemWriter],
    ) -> None:
        self._rule = rule
        self._layout = layout
        self._batch_size = batch_size
        self._make_writer = make_writer
        self._writer: ItemWriter | None = None
        self._lock = threading.RLock()
        self._closed = False

    @property
    def has_written(self) -> bool:
        """Whether anything was written."""
        return self._writer is not None

    def end_stream(self, b: int | None) -> None:
        """No item goes past the newest frame of stream `b` (None: of any)."""
        with self._lock:
            self._rule.forget_loose_flags()
            if self._writer is not None:
                for stream in range(self._batch_size) if b is None else (b,):
                    self._writer.end_stream(stream)

    def flush(self) -> None:
        """Returns when the server has confirmed all that was added."""
        with self._lock:
            if self._writer is not None:
                self._writer.flush()

    def flushed_next_ids(self) -> Array | None:
        """Flushes; ids int64 `[B]` above all those given out so far, or None where there are none."""
        with self._lock:
            self.flush()
            return None if self._writer is None else self._writer.next_ids

    def restart(self, empty_the_table: Callable[[], None]) -> None:
        """Calls `empty_the_table` while nothing is written, pending, or half an item."""
        with self._lock:
            self.end_stream(None)  # which may make items
            self.flush()
            empty_the_table()
            if self._writer is not None:
                self._writer.forget_items()

    def close(self) -> None:
        """Ends the streams, flushes, ends the connection and refuses further writes.

        What an unfinished episode's last frames make is written: nobody could go on with it.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            writer, self._writer = self._writer, None
            if writer is not None:
                try:
                    if writer.has_open_tails:
                        for b in range(self._batch_size):
                            writer.end_stream(b)
                    writer.flush()
                finally:
                    writer.close()

    @property
    def num_dropped_short(self) -> int:
        """Frames of ended episodes of these streams that start no window because the episode was too short."""
        return 0 if self._writer is None else self._writer.num_dropped_short

    @property
    def num_over_long(self) -> int:
        """Episodes that were left out, or cuts that were made, because of `max_episode_length`."""
        return 0 if self._writer is None else self._writer.num_over_long

    @property
    def num_item_frames(self) -> int:
        """Frames of the episodes of these streams that became items."""
        return 0 if self._writer is None else self._writer.num_item_frames

    def num_frames_of_newest(self, num_items: int, num_inserted: int) -> int | None:
        """Frames of the newest `num_items` episodes; None unless all that was inserted came from here."""
        with self._lock:
            writer = self._writer
            if writer is None or writer.num_items != num_inserted:
                return 0 if num_inserted == 0 else None
            lengths = list(writer.newest_lengths)
        return sum(lengths[len(lengths) - num_items :])

    def explain_no_item(self) -> str:
        """Why these streams gave no item, with the numbers; empty where that is not the reason."""
        return "" if self._writer is None else self._writer.explain_no_item()

    def add_step(self, leaves: list[Array], end_of_episode: Any, priorities: Any) -> Array:
        marks = self._rule.marks(leaves, end_of_episode)
        if priorities is not None:
            priorities = check_priorities(priorities, None, (self._batch_size,))
        with self._lock:
            writer = self._open_writer()
            begins, ends = (None if flags is None else flags[:, None] for flags in marks[:2])
            writer.check_room(begins, ends, 1)
            return self._write(writer, leaves, marks, priorities)

    def add_steps(self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any) -> Array:
        shape = (self._batch_size, num_steps)
        if priorities is not None:
            priorities = check_priorities(priorities, None, shape)
        if num_steps == 0:
            return np.zeros(shape, np.int64)
        marks = self._rule.marks(leaves, end_of_episode)
        ids = np.empty(shape, np.int64)
        with self._lock:
            writer = self._open_writer()
            writer.check_room(marks.begins, marks.ends, num_steps)
            for t in range(num_steps):
                step = EpisodeMarks(*(None if flags is None else flags[:, t] for flags in marks))
                now = None if priorities is None else priorities[:, t]
                ids[:, t] = self._write(writer, [leaf[:, t] for leaf in leaves], step, now)
        return ids

    def _open_writer(self) -> ItemWriter:
        if self._closed:
            raise ValueError("this buffer is closed; build a new one.")
        if self._writer is None:
            self._writer = self._make_writer()
        return self._writer

    def _write(
        self, writer: ItemWriter, leaves: Sequence[Array], marks: EpisodeMarks, priorities: Array | None
    ) -> Array:
        ids = writer.claim_ids(marks)
        writer.write(self._layout.pack(leaves, ids, marks.final), marks, priorities)
        return ids if self._layout.has_ids else np.full_like(ids, NO_ID)
