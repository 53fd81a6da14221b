"""Which frames of a ring must not be drawn: because a predicate says so, or because they were deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .memory import SharedMemory
from .nests import Array, Nest
from .row_numbers import RowNumbers, put, taken
from .spec import DataSpec


class StartPredicate:
    """Asks a function of the caller's which frames may start a window.

    Args:
      spec: of a frame.
      function: `items -> bool [B]` (`[B, T]` in `add_sequence`).

    Raises:
      TypeError: `function` cannot be called.
    """

    def __init__(self, spec: DataSpec, function: Any) -> None:
        if not callable(function):
            raise TypeError(f"eligible_fn must be a function items -> bool [B], got {function!r}.")
        self._spec = spec
        self._function: Callable[[Nest], Any] = function

    def __call__(self, leaves: Sequence[Array]) -> Array:
        """For checked leaves `[B, ...]` or `[B, T, ...]` whether each may start a window, bool `[B]` or `[B, T]`.

        Raises:
          ValueError: the function returned something else.
        """
        # Every leaf starts with the same outer axes: what is left of the field's own shape.
        outer = leaves[0].shape[: leaves[0].ndim - len(self._spec.fields[0].shape)]
        told = self._function(self._spec.pack(list(leaves)))
        flags = np.asarray(told.numpy() if isinstance(told, tf.Tensor) else told)
        if flags.dtype != bool or flags.shape != outer:
            raise ValueError(
                f"eligible_fn's result: expected {list(outer)} bool, got {list(flags.shape)} {flags.dtype}."
            )
        return flags


class FrameFlags:
    """Two flags for each row of a ring. The caller holds the ring's writer lock.

    Args:
      capacity: rows.
      batch_size: `B`, the rows from one frame of a stream to the next.

    >>> flags = FrameFlags(6, 1)
    >>> flags.delete(np.array([2]))
    1
    >>> none_before, two_after = np.zeros(3, np.int64), np.full(3, 2)
    >>> flags.allows(np.array([0, 1, 2]), none_before, two_after).tolist()
    [True, False, False]
    """

    def __init__(self, capacity: int, batch_size: int) -> None:
        self._capacity = capacity
        self._batch_size = batch_size
        self._barred = np.zeros(capacity, bool)
        self._deleted = np.zeros(capacity, bool)
        self._has_barred = False
        # Rows whose frames are deleted now, and frames deleted since the last `clear`.
        self._num_held = 0
        self.num_deleted = 0
        self._shared = SharedMemory((1,), np.int64)

    @property
    def all_clear(self) -> bool:
        """Whether no frame has a flag."""
        return not (self._has_barred or self._num_held)

    def is_deleted(self, ids: Array) -> Array:
        """Whether these frames are deleted, bool, the shape of `ids`, all of which are held."""
        return np.asarray(self._deleted[ids % self._capacity])

    def allows(self, starts: Array, num_before: Array, num_after: Array) -> Array:
        """Which windows may be drawn, bool `[n]`: the predicate holds for the start, and no frame is deleted.

        Args:
          starts: ids of their drawn frames, int64 `[n]`.
          num_before: frames before the drawn one, `[n]`.
          num_after: frames from the drawn one on, `[n]`.
        """
        allowed = ~self._barred[starts % self._capacity]
        if self._num_held and len(starts):
            before, after = int(num_before.max()), int(num_after.max())
            steps = np.arange(-before, after)
            inside = (steps >= -num_before[:, None]) & (steps < num_after[:, None])
            rows = (starts[:, None] + steps * self._batch_size) % self._capacity
            allowed &= ~(self._deleted[rows] & inside).any(axis=1)
        return np.asarray(allowed)

    def delete(self, rows: Array) -> int:
        """Deletes the frames in these rows; returns how many were not deleted before."""
        rows = np.unique(rows)
        num = len(rows) - int(np.count_nonzero(self._deleted[rows]))
        self._deleted[rows] = True
        self._num_held += num
        self.num_deleted += num
        return num

    def renew(self, rows: slice | Array, may_start: Array | None) -> None:
        """New frames come into these rows; `may_start` `[n]` is what the predicate says of them."""
        if self._num_held:
            self._num_held -= int(np.count_nonzero(self._deleted[rows]))
            self._deleted[rows] = False
        if may_start is not None:
            self._barred[rows] = ~may_start
            self._has_barred = self._has_barred or not may_start.all()

    def clear(self) -> None:
        """Nothing is held."""
        self._deleted[:] = False
        self._num_held = self.num_deleted = 0

    def flagged(self, rows: RowNumbers) -> tuple[Array, Array]:
        """Of the frames in these rows: which the predicate bars from starting a window, and which are deleted."""
        return taken(self._barred, rows), taken(self._deleted, rows)

    def restore(self, rows: RowNumbers, barred: Array, deleted: Array, num_deleted: int) -> None:
        """The frames held lie in these rows, and have these flags, bool `[n]`; `num_deleted` as the property."""
        self.clear()
        put(self._barred, rows, barred)
        put(self._deleted, rows, deleted)
        self._has_barred = bool(barred.any())
        self._num_held, self.num_deleted = int(np.count_nonzero(deleted)), num_deleted

    def tell_graphs(self) -> None:
        """From now on `heeded_in_graph` is true."""
        self._shared.array[0] = 1

    def heeded_in_graph(self) -> tf.Tensor:
        """Whether graphs have to heed the flags, bool `[]`."""
        return tf.gather(self._shared.in_graph(), 0) > 0
