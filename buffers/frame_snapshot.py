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
        # Copies of rows that were about to be written lie in slots, which take memory once they are used.
        most_bytes = max(int(_MOST_COPIED_SHARE * num * storage.frame_bytes), _LEAST_COPIED_BYTES)
        num_slots = max(1, min(num, most_bytes // storage.frame_bytes))
        self._copies = [np.empty((num_slots, width), np.uint8) for width in storage.field_bytes]
        self._slots = np.zeros(storage.zero_row, np.int32)
        self._free = np.arange(num_slots, dtype=np.int32)
        self._num_free = num_slots
        self._is_open = True
        storage.watch(self)

    def take(self, rows: slice | Array) -> list[Array]:
        """These rows as they were, as `FrameStorage.copy_raw` gives them; each row is taken once."""
        with self._changed:
            leaves = self._storage.copy_raw(rows)
            copied = np.flatnonzero(self._state[rows] == _COPIED)
            if len(copied):
                slots = self._give_back(_numbers(rows)[copied])
                for leaf, copies in zip(leaves, self._copies, strict=True):
                    leaf[copied] = copies[slots]
            self._state[rows] = _NOT_WANTED
        return leaves

    def skip(self, rows: slice | Array) -> None:
        """These rows are not wanted after all."""
        with self._changed:
            copied = np.flatnonzero(self._state[rows] == _COPIED)
            if len(copied):
                self._give_back(copied + rows.start if isinstance(rows, slice) else rows[copied])
            self._state[rows] = _NOT_WANTED

    def before_write(self, rows: slice | Array) -> None:
        """Copies what is in these rows, where it is wanted still; waits where copies take too much memory."""
        if not (self._state[rows] == _WANTED).any():
            return  # no lock: what is not wanted any more never is again
        with self._changed:
            numbers = np.unique(_numbers(rows))
            while self._is_open:
                numbers = numbers[self._state[numbers] == _WANTED]
                if not len(numbers):
                    return
                if self._num_free:
                    self._copy(numbers[: self._num_free])
                elif not self._changed.wait(_TELL_EVERY_S):
                    _logger.warning(
                        "an add waits for a save that is under way: it is about to overwrite frames that are not "
                        "written to the disk yet, and %.1f MB of such frames are kept in memory already.",
                        len(self._free) * self._storage.frame_bytes / 1e6,
                    )

    def _copy(self, numbers: Array) -> None:
        self._num_free -= len(numbers)
        slots = self._free[self._num_free : self._num_free + len(numbers)]
        for copies, leaf in zip(self._copies, self._storage.copy_raw(numbers), strict=True):
            copies[slots] = leaf
        self._slots[numbers] = slots
        self._state[numbers] = _COPIED

    def _give_back(self, numbers: Array) -> Array:
        """The slots of these rows, which others may have from now on: read them at once."""
        slots = self._slots[numbers]
        self._free[self._num_free : self._num_free + len(slots)] = slots
        self._num_free += len(slots)
        self._changed.notify_all()
        return slots

    def close(self) -> None:
        """Nothing is wanted any more; writers that wait go on."""
        with self._changed:
            self._is_open = False
            # Fresh zeros take no memory, where writing them would take a byte of each row that could ever be.
            self._state = np.zeros(self._storage.zero_row, np.uint8)
            self._copies = []
            self._changed.notify_all()
        self._storage.watch(None)

    def __enter__(self) -> FrameSnapshot:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _numbers(rows: slice | Array) -> Array:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
