"""Where the frames that a scan finds are kept: in memory, or, when they get many, in a temporary file.

The file has no name (or loses it right after it was opened), so that nothing of it is left, whatever becomes of the
process. Rows are read from it with `pread` and not through a map, whose pages would count as the process's own, and
where a disk that fails would end it.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from .nests import Array

SMALL_BYTES = 64 << 20
"""What stays in memory where a temporary file may be used."""


class ScannedColumns:
    """Columns of frames, rows in the order in which they came. A context, which drops them when it ends.

    Args:
      column_bytes: of a row, by column.
      memory_bytes: what is kept in memory; with more than that all is in a temporary file. None: no file.
      folder: where the file is; None: `tempfile.gettempdir()`, which the environment's `TMPDIR` sets.

    >>> with ScannedColumns([1, 2], memory_bytes=6) as columns:
    ...     for first in (0, 2):
    ...         columns.append([np.array([[first], [first + 1]], np.uint8), np.full([2, 2], first, np.uint8)])
    ...     columns.in_file, [column.tolist() for column in columns.take(np.array([3, 0]))]
    (True, [[[3], [0]], [[2, 2], [0, 0]]])
    """

    def __init__(
        self,
        column_bytes: Sequence[int],
        *,
        memory_bytes: int | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self._column_bytes = tuple(column_bytes)
        self._memory_bytes = memory_bytes
        self._folder = folder
        # In memory: blocks of rows by column, joined when they are read.
        self._parts: list[list[Array]] = [[] for _ in self._column_bytes]
        # In the file: block after block, in each the rows of one column after those of another.
        self._file: Any = None
        self._file_bytes = 0
        self._block_rows: list[int] = []
        self._blocks: tuple[Array, Array, Array] | None = None
        self._num_rows = 0

    def __enter__(self) -> ScannedColumns:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self._num_rows

    @property
    def in_file(self) -> bool:
        """Whether they are in a temporary file."""
        return self._file is not None

    def append(self, columns: Sequence[Array]) -> None:
        """Keeps rows: one uint8 array `[n, bytes]` a column.

        Raises:
          OSError: the temporary folder cannot be written, or has no room; the message tells the way out.
        """
        num = len(columns[0])
        if not num:
            return
        self._num_rows += num
        if self._file is not None:
            self._write(columns)
            return
        for parts, column in zip(self._parts, columns, strict=True):
            parts.append(column)
        if self._memory_bytes is not None and self._num_rows * sum(self._column_bytes) > self._memory_bytes:
            self._move_to_file()

    def take(self, rows: Array, columns: Sequence[int] | None = None) -> list[Array]:
        """Rows by index, uint8 `[n, bytes]` a column.

        Args:
          rows: int64 `[n]`, numbers in the order of `append`.
          columns: which ones; None: all.

        Raises:
          OSError: the temporary file cannot be read.
        """
        chosen = range(len(self._column_bytes)) if columns is None else columns
        if self._file is not None:
            return [self._read(rows, column) for column in chosen]
        return [self._joined(column)[rows] for column in chosen]

    def close(self) -> None:
        """Drops all rows."""
        self._parts = [[] for _ in self._column_bytes]
        self._num_rows = 0
        if self._file is not None:
            self._file.close()

    def _joined(self, column: int) -> Array:
        parts = self._parts[column]
        if not parts:
            return np.zeros([0, self._column_bytes[column]], np.uint8)
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        return parts[0]

    def _move_to_file(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
        except OSError as error:
            raise self._unwritable(error) from error
        blocks, self._parts = self._parts, [[] for _ in self._column_bytes]
        for columns in zip(*blocks, strict=True):
            self._write(columns)

    def _write(self, columns: Sequence[Array]) -> None:
        self._block_rows.append(len(columns[0]))
        self._blocks = None
        for column in columns:
            left = np.ascontiguousarray(column).reshape(-1).data
            while left:
                try:
                    num = self._file.write(left)
                except OSError as error:
                    raise self._unwritable(error) from error
                left = left[num:]
                self._file_bytes += num

    def _read(self, rows: Array, column: int) -> Array:
        """A read for each stretch of rows that follow each other in the file."""
        size, before = self._column_bytes[column], sum(self._column_bytes[:column])
        if self._blocks is None:
            num_rows = np.array(self._block_rows, np.int64)
            firsts = np.cumsum(num_rows) - num_rows
            self._blocks = (firsts, num_rows, firsts * sum(self._column_bytes))
        firsts, num_rows, starts = self._blocks
        block = np.searchsorted(firsts, rows, side="right") - 1
        offsets = starts[block] + num_rows[block] * before + (rows - firsts[block]) * size
        out = np.empty([len(rows), size], np.uint8)
        cuts = np.flatnonzero(np.diff(offsets) != size) + 1
        view = out.reshape(-1).data
        edges = [0, *cuts.tolist(), len(rows)] if len(rows) else []
        for start, stop in zip(edges[:-1], edges[1:], strict=True):
            self._read_into(view[start * size : stop * size], int(offsets[start]))
        return out

    def _read_into(self, view: memoryview, offset: int) -> None:
        while view:
            num = os.preadv(self._file.fileno(), [view], offset)
            if not num:
                raise OSError(errno.EIO, f"the temporary file in {self._where()!r} ends at {offset:,} bytes")
            view, offset = view[num:], offset + num

    def _where(self) -> str:
        return os.fspath(self._folder) if self._folder is not None else tempfile.gettempdir()

    def _unwritable(self, error: OSError) -> OSError:
        try:
            where = self._where()
            free = f", {shutil.disk_usage(where).free:,} free"
        except OSError:  # no folder that can be asked
            where, free = str(self._folder or "tempfile's default"), ""
        return OSError(
            error.errno,
            f"{os.strerror(error.errno or 0)}: what a scan finds is kept in the temporary folder {where!r} "
            f"({self._file_bytes:,} bytes written{free}); give one with more room as temporary_folder, or in TMPDIR",
        )
