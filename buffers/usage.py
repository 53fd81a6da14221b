"""Which frames a sample started at, and how many were drawn: counters that NumPy and graphs share."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from .memory import SharedMemory
from .nests import Array
from .row_numbers import RowNumbers, put, taken


class Usage:
    """Counts draws and skips, and marks the rows at which a drawn window started.

    A graph marks through `tf.raw_ops.InplaceUpdate`, which writes into the shared memory:
    marking twice is the same as once, so that no lock is needed. Draws are counted when they
    are made, which for a dataset is a little before they are delivered.

    Args:
      capacity: rows of the ring, below 2**31.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._shared_marks = SharedMemory((capacity,), np.uint8)
        self._marks = self._shared_marks.array
        self._cells: list[Array] = []
        self._lock = threading.Lock()
        self._sampled = 0
        self.skipped = 0
        self.evicted_unsampled = 0

    @property
    def sampled(self) -> int:
        """Frames or windows drawn."""
        return self._sampled + sum(int(cell[0]) for cell in self._cells)

    def count_sampled(self, ids: Array) -> None:
        """Counts a draw of the windows that start at these ids, made outside a graph."""
        self._marks[ids % self._capacity] = 1
        with self._lock:
            self._sampled += len(ids)

    def count_skipped(self, num: int) -> None:
        """Counts windows that an ordered pass found overwritten."""
        with self._lock:
            self.skipped += num

    def count_overwritten(self, rows: slice, num_held: int) -> None:
        """Called before these rows are written anew; the first `num_held` of them hold frames."""
        if rows.stop - rows.start == 1:
            self.evicted_unsampled += num_held - num_held * int(self._marks[rows.start])
            self._marks[rows.start] = 0
            return
        if num_held:
            self.evicted_unsampled += num_held - int(np.count_nonzero(self._marks[rows][:num_held]))
        self._marks[rows] = 0

    def count_overwritten_apart(self, rows: Array, held: Array) -> None:
        """Called before these rows `[n]` are written anew; those of them hold frames for which `held` `[n]` is true."""
        self.evicted_unsampled += int(np.count_nonzero(held & (self._marks[rows] == 0)))
        self._marks[rows] = 0

    def graph_counter(self) -> SampleCounter:
        """A counter for one dataset's or function's graph: each has a cell of its own to add to."""
        cell = SharedMemory((1,), np.int64)
        self._cells.append(cell.array)
        return SampleCounter(cell, self._shared_marks, self._capacity)

    def state(self) -> dict[str, int]:
        """The counters."""
        return {"sampled": self.sampled, "skipped": self.skipped, "evicted_unsampled": self.evicted_unsampled}

    def restore(self, state: Mapping[str, int], rows: RowNumbers, marked: Array) -> None:
        """Goes on from a `state`; of the frames held, which lie in these rows, `marked` bool `[n]` were drawn."""
        self.clear()
        self._sampled = int(state["sampled"])
        self.skipped, self.evicted_unsampled = int(state["skipped"]), int(state["evicted_unsampled"])
        put(self._marks, rows, marked)

    def marked(self, rows: RowNumbers) -> Array:
        """Which of the frames in these rows were drawn, bool `[n]`."""
        return taken(self._marks, rows).view(bool)

    def forget(self, rows: Array) -> None:
        """The frames in these rows were taken back."""
        self._marks[rows] = 0

    def clear(self) -> None:
        """All counters back to 0."""
        for cell in self._cells:
            cell[0] = 0
        self._marks[:] = 0
        self._sampled = self.skipped = self.evicted_unsampled = 0


class SampleCounter:
    """Counts and marks what one graph draws."""

    def __init__(self, cell: SharedMemory, marks: SharedMemory, capacity: int) -> None:
        self._cell = cell
        self._marks = marks
        self._capacity = capacity

    def count(self, ids: tf.Tensor) -> tf.Operation:
        """An op that counts a draw of the windows that start at these ids, int64 `[n]`."""
        num = tf.reshape(tf.shape(ids, tf.int64)[0], [1])
        rows = tf.cast(ids % self._capacity, tf.int32)
        return tf.group(
            tf.raw_ops.InplaceAdd(x=self._cell.in_graph(), i=[0], v=num),
            tf.raw_ops.InplaceUpdate(x=self._marks.in_graph(), i=rows, v=tf.ones_like(rows, tf.uint8)),
        )
