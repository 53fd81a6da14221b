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
            self.flush()
            self.end_stream(None)
            empty_the_table()

    def close(self) -> None:
        """Flushes, ends the connection and refuses further writes."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            writer, self._writer = self._writer, None
            if writer is not None:
                try:
                    writer.flush()
                finally:
                    writer.close()

    def explain_no_item(self) -> str:
        """Why these streams gave no item, with the numbers; empty where that is not the reason."""
        return "" if self._writer is None else self._writer.explain_no_item()

    def add_step(self, leaves: list[Array], end_of_episode: Any, priorities: Any) -> Array:
        marks = self._rule.marks(leaves, end_of_episode)
        if priorities is not None:
            priorities = check_priorities(priorities, None, (self._batch_size,))
        with self._lock:
            return self._write(leaves, marks, priorities)

    def add_steps(self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any) -> Array:
        shape = (self._batch_size, num_steps)
        if priorities is not None:
            priorities = check_priorities(priorities, None, shape)
        if num_steps == 0:
            return np.zeros(shape, np.int64)
        marks = self._rule.marks(leaves, end_of_episode)
        ids = np.empty(shape, np.int64)
        with self._lock:
            for t in range(num_steps):
                step = EpisodeMarks(*(None if flags is None else flags[:, t] for flags in marks))
                now = None if priorities is None else priorities[:, t]
                ids[:, t] = self._write([leaf[:, t] for leaf in leaves], step, now)
        return ids

    def _write(self, leaves: Sequence[Array], marks: EpisodeMarks, priorities: Array | None) -> Array:
        if self._closed:
            raise ValueError("this buffer is closed; build a new one.")
        if self._writer is None:
            self._writer = self._make_writer()
        ids = self._writer.claim_ids(marks)
        self._writer.write(self._layout.pack(leaves, ids), marks, priorities)
        return ids if self._layout.has_ids else np.full_like(ids, NO_ID)
