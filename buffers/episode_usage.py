"""Which episodes and windows were drawn, and how many: counters that NumPy and graphs share."""

from __future__ import annotations

import threading

import numpy as np

from .memory import SharedMemory
from .nests import Array
from .usage import SampleCounter


class EpisodeUsage:
    """Counts draws, and marks the rows at which a drawn window started and the slots of episodes drawn whole.

    A *position* is a row, or `num_rows` + slot for a whole episode.

    Args:
      num_rows: rows of the storage.
      num_slots: slots of episodes.
    """

    def __init__(self, num_rows: int, num_slots: int) -> None:
        self.num_rows = num_rows
        self._num_positions = num_rows + num_slots
        self._shared_marks = SharedMemory((self._num_positions,), np.uint8)
        self._marks = self._shared_marks.array
        self._cells: list[Array] = []
        self._lock = threading.Lock()
        self._sampled = 0
        self.skipped = 0
        self.evicted_unsampled = 0

    @property
    def sampled(self) -> int:
        """Frames, windows or episodes drawn."""
        return self._sampled + sum(int(cell[0]) for cell in self._cells)

    def count_sampled(self, positions: Array) -> None:
        """Counts a draw made outside a graph."""
        self._marks[positions] = 1
        with self._lock:
            self._sampled += len(positions)

    def count_skipped(self, num: int) -> None:
        """Counts what an ordered pass found evicted."""
        with self._lock:
            self.skipped += num

    def count_evicted(self, rows: Array, slot: int) -> None:
        """Called before an episode's rows, one a frame, and its slot are used anew."""
        position = self.num_rows + slot
        if not self._marks[position]:
            self.evicted_unsampled += len(rows) - int(np.count_nonzero(self._marks[rows]))
        self._marks[rows] = 0
        self._marks[position] = 0

    def marked(self, positions: Array) -> Array:
        """Which of these positions were drawn, bool `[n]`."""
        return self._marks[positions] > 0

    def forget(self, rows: Array, slot: int | None = None) -> None:
        """These rows, and the slot, hold nothing any more, and nothing of it counts as evicted."""
        self._marks[rows] = 0
        if slot is not None:
            self._marks[self.num_rows + slot] = 0

    def restore(self, positions: Array, sampled: int, skipped: int, evicted_unsampled: int) -> None:
        """Marks these positions, where nothing is marked, and takes over the counters of a buffer that was saved."""
        self._marks[positions] = 1
        for cell in self._cells:
            cell[0] = 0
        self._sampled, self.skipped, self.evicted_unsampled = sampled, skipped, evicted_unsampled

    def graph_counter(self) -> SampleCounter:
        """A counter for one dataset's or function's graph: each has a cell of its own to add to."""
        cell = SharedMemory((1,), np.int64)
        self._cells.append(cell.array)
        return SampleCounter(cell, self._shared_marks, self._num_positions)

    def clear(self, num_rows_touched: int) -> None:
        """All counters back to 0, and no mark in any slot, nor in the first `num_rows_touched` rows."""
        self._marks[:num_rows_touched] = 0
        self._marks[self.num_rows :] = 0
        for cell in self._cells:
            cell[0] = 0
        self._sampled = self.skipped = self.evicted_unsampled = 0
