"""The frames of a storage as they were at one moment, read while other threads go on writing.

Copy on write: a row that is about to be written anew, and was not read yet, is copied first. Reading goes through the
rows in the order in which a ring overwrites them, so that it soon is ahead of the writers, and few rows are copied.
Where they are many (a slow disk) a writer waits for the reader once the copies take their share of memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from types import TracebackType

import numpy as np

from .nests import Array
from .storage import FrameStorage

# Copies may take this share of the frames' bytes, or so many bytes where that is more; then a writer waits.
_MOST_COPIED_SHARE, _LEAST_COPIED_BYTES = 0.05, 4 * 2**20

# How often it is said what a writer waits for, in seconds.
_TELL_EVERY_S = 5.0

_NOT_WANTED, _WANTED, _COPIED = 0, 1, 2

_logger = logging.getLogger(__name__)


class FrameSnapshot:
    """Rows of a storage as they are now; to be closed.

    Made while no other thread writes (the buffer's lock is held), and read afterwards from any thread, each row once.
    One at a time looks on at a storage.

    Args:
      storage: the frames' memory.
      rows: which rows are wanted: slices, and int64 `[n]`.

    >>> import tensorflow as tf
    >>> from replayfeed.buffers.spec import DataSpec
    >>> storage = FrameStorage(DataSpec(tf.TensorSpec([], tf.uint8)).fields, 4)
    >>> storage.write(slice(0, 3), [np.array([5, 6, 7], np.uint8)])
    >>> with FrameSnapshot(storage, [slice(0, 3)]) as snapshot:
    ...     storage.write(slice(1, 2), [np.array([9], np.uint8)])
    ...     snapshot.take(slice(0, 3))[0].ravel().tolist()
    [5, 6, 7]
    """

    def __init__(self, storage: FrameStorage, rows: Sequence[slice | Array]) -> None:
        self._storage = storage
        self._changed = threading.Condition()
        self._state = np.zeros(storage.zero_row, np.uint8)
        num = 0
        for part in rows:
            self._state[part] = _WANTED
            num += part.stop - part.start if isinstance(part, slice) else len(part)
        # By row, what was copied because it was about to be written.
        self._copies: dict[int, list[Array]] = {}
        self._copied_bytes = 0
        self._most_copied_bytes = max(int(_MOST_COPIED_SHARE * num * storage.frame_bytes), _LEAST_COPIED_BYTES)
        self._is_open = True
        storage.watch(self)

    def take(self, rows: slice | Array) -> list[Array]:
        """These rows as they were, as `FrameStorage.copy_raw` gives them; each row is taken once."""
        with self._changed:
            leaves = self._storage.copy_raw(rows)
            states = self._state[rows]
            copied = np.flatnonzero(states == _COPIED)
            if len(copied):
                numbers = np.arange(rows.start, rows.stop)[copied] if isinstance(rows, slice) else rows[copied]
                for place, row in zip(copied.tolist(), numbers.tolist(), strict=True):
                    for leaf, old in zip(leaves, self._copies.pop(row), strict=True):
                        leaf[place] = old
                self._copied_bytes -= len(copied) * self._storage.frame_bytes
                self._changed.notify_all()
            self._state[rows] = _NOT_WANTED
        return leaves

    def skip(self, rows: slice | Array) -> None:
        """These rows are not wanted after all."""
        with self._changed:
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            copied = numbers[self._state[numbers] == _COPIED]
            for row in copied.tolist():
                del self._copies[row]
            self._copied_bytes -= len(copied) * self._storage.frame_bytes
            self._state[rows] = _NOT_WANTED
            self._changed.notify_all()

    def before_write(self, rows: slice | Array) -> None:
        """Copies what is in these rows, where it is wanted still; waits where copies take too much memory."""
        if not (self._state[rows] == _WANTED).any():
            return  # no lock: what is not wanted any more never is again
        with self._changed:
            while self._is_open and self._copied_bytes > self._most_copied_bytes:
                if not self._changed.wait(_TELL_EVERY_S):
                    _logger.warning(
                        "an add waits for a save that is under way: it is about to overwrite frames that are not "
                        "written to the disk yet, and %.1f MB of such frames are kept in memory already.",
                        self._copied_bytes / 1e6,
                    )
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            numbers = np.unique(numbers[self._state[numbers] == _WANTED])
            if not len(numbers):
                return
            for row, *old in zip(numbers.tolist(), *self._storage.copy_raw(numbers), strict=True):
                self._copies[row] = old
            self._state[numbers] = _COPIED
            self._copied_bytes += len(numbers) * self._storage.frame_bytes

    def close(self) -> None:
        """Nothing is wanted any more; writers that wait go on."""
        with self._changed:
            self._is_open = False
            # Fresh zeros take no memory, where writing them would take a byte of each row that could ever be.
            self._state = np.zeros(self._storage.zero_row, np.uint8)
            self._copies.clear()
            self._changed.notify_all()
        self._storage.watch(None)

    def __enter__(self) -> FrameSnapshot:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
