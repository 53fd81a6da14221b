"""Which rows of a reservoir were drawn, and how many draws there were: counters that NumPy and graphs share."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from .memory import SharedMemory
from .nests import Array
from .usage import SampleCounter


class ReservoirUsage:
    """Counts draws, and marks the rows that were drawn.

    A draw's key does not tell its row. So a sampler marks rows itself, as many calls at once as there are, because
    marking twice is the same as once; and a dataset's counter only counts, one call at a time.

    Args:
      capacity: rows.
    """

    def __init__(self, capacity: int) -> None:
        self._shared_marks = SharedMemory((capacity,), np.uint8)
        self._marks = self._shared_marks.array
        # What a counter that only counts marks.
        self._nothing = SharedMemory((1,), np.uint8)
        self._cells: list[Array] = []
        self._lock = threading.Lock()
        self._sampled = 0
        self.skipped = 0
        self.replaced = 0
        self.replaced_unsampled = 0

    @property
    def sampled(self) -> int:
        """Frames drawn."""
        return self._sampled + sum(int(cell[0]) for cell in self._cells)

    def count_sampled(self, rows: Array) -> None:
        """Counts a draw of these rows, made outside a graph."""
        self.mark(rows)
        with self._lock:
            self._sampled += len(rows)

    def mark(self, rows: Array) -> None:
        """These rows were drawn."""
        self._marks[rows] = 1

    def count_skipped(self, num: int) -> None:
        """Counts items that a pass found replaced."""
        with self._lock:
            self.skipped += num

    def count_replaced(self, rows: Array) -> None:
        """Called before these rows, which hold items, are written anew."""
        self.replaced += len(rows)
        if len(rows) == 1:
            self.replaced_unsampled += 1 - int(self._marks[rows[0]])
            self._marks[rows[0]] = 0
            return
        self.replaced_unsampled += len(rows) - int(np.count_nonzero(self._marks[rows]))
        self._marks[rows] = 0

    def graph_counter(self) -> SampleCounter:
        """A counter for one dataset's or function's graph: each has a cell of its own to add to."""
        cell = SharedMemory((1,), np.int64)
        self._cells.append(cell.array)
        return SampleCounter(cell, self._nothing, 1)

    def mark_in_graph(self, rows: tf.Tensor) -> tf.Operation:
        """An op that marks these rows, int64 `[n]`."""
        rows = tf.cast(rows, tf.int32)
        marked = tf.ones_like(rows, tf.uint8)
        return tf.group(tf.raw_ops.InplaceUpdate(x=self._shared_marks.in_graph(), i=rows, v=marked))

    def was_sampled(self, rows: Array) -> Array:
        """Whether these rows were drawn since they were written, bool, their shape."""
        return self._marks[rows] != 0

    def counts(self) -> dict[str, int]:
        """All counters, as plain numbers."""
        return {
            "sampled": self.sampled,
            "skipped": self.skipped,
            "replaced": self.replaced,
            "replaced_unsampled": self.replaced_unsampled,
        }

    def restore(self, counts: Mapping[str, int], rows: Array, was_sampled: Array) -> None:
        """Goes on from these `counts`, with marks for these rows and no others."""
        self.clear()
        self._sampled = counts["sampled"]
        self.skipped = counts["skipped"]
        self.replaced = counts["replaced"]
        self.replaced_unsampled = counts["replaced_unsampled"]
        self._marks[rows] = was_sampled

    def clear(self) -> None:
        """All counters back to 0."""
        for cell in self._cells:
            cell[0] = 0
        self._marks[:] = 0
        self._sampled = self.skipped = self.replaced = self.replaced_unsampled = 0
