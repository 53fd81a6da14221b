"""The files of a save: raw arrays (`.npy`), each with its size and checksum, that are read only as what was written.

Nothing in them is executed: no pickle. The checksum is XXH3 of 64 bits, which is quicker than memory; it is no
protection from somebody who means to deceive (https://github.com/Cyan4973/xxHash).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import math
import os
import threading
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from .nests import Array

# Threads that wait for the disk.
_NUM_WAITING = 8

# Files that are open at a time, of the 1,024 that many systems allow.
_MOST_OPEN = 200

# A header of `npy_header` is shorter.
_MOST_HEADER_BYTES = 2**16

# NumPy gives no types for what reads and writes its files.
_FORMAT: Any = np.lib.format


@dataclasses.dataclass(frozen=True)
class FileRecord:
    """What a save says of one of its files.

    Attributes:
      name: its path in the folder of the save.
      num_bytes: its size.
      checksum: of all of it (`checksum_of`).
    """

    name: str
    num_bytes: int
    checksum: int

    def to_plain(self) -> list[Any]:
        """As in a manifest."""
        return [self.name, self.num_bytes, self.checksum]

    @classmethod
    def from_plain(cls, plain: Any) -> FileRecord:
        """Of `to_plain`."""
        name, num_bytes, checksum = plain
        return cls(str(name), int(num_bytes), int(checksum))


class NewFiles:
    """Writes the files of a save, and waits for the disk while others are written.

    A file system confirms files together that wait together: some threads do nothing but wait.

    Args:
      folder: of the save.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with NewFiles(folder) as files:
    ...         record = files.write_array("a.npy", np.arange(3))
    ...         files.wait()
    ...     read_array(folder, record)
    array([0, 1, 2])
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._pool = concurrent.futures.ThreadPoolExecutor(_NUM_WAITING)
        self._waiting: list[concurrent.futures.Future[None]] = []
        self._lock = threading.Lock()

    def open_array(self, name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> ArrayFile:
        """A new `.npy` file for an array of this dtype and shape, to be written part by part."""
        return ArrayFile(self, name, npy_header(dtype, shape))

    def write_array(self, name: str, array: Array) -> FileRecord:
        """Writes a whole array."""
        array = np.asarray(array)
        with self.open_array(name, array.dtype, array.shape) as file:
            file.append(array)
            return file.finish()

    def write_bytes(self, name: str, content: bytes) -> FileRecord:
        """Writes a file that is no array."""
        with ArrayFile(self, name, content) as file:
            return file.finish()

    def sync_later(self, file: io.FileIO) -> None:
        """Waits for the disk, and closes the file, in another thread."""
        with self._lock:
            self._waiting.append(self._pool.submit(_sync_and_close, file))
            first = self._waiting.pop(0) if len(self._waiting) > _MOST_OPEN else None
        if first is not None:
            first.result()

    def wait(self) -> None:
        """Returns when all that was written so far is on the disk.

        Raises:
          OSError: it cannot be.
        """
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.result()

    def __enter__(self) -> NewFiles:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown()


class ArrayFile:
    """A file of a save that is being written.

    Args:
      files: of the save.
      name: of the file in its folder.
      beginning: what it begins with.
    """

    def __init__(self, files: NewFiles, name: str, beginning: bytes) -> None:
        self._files = files
        self._name = name
        self._file: io.FileIO | None = open(os.path.join(files.folder, name), "xb", buffering=0)
        self._checksum = xxhash.xxh3_64()
        self._num_bytes = 0
        self._write(self._file, beginning)

    def append(self, part: Array) -> None:
        """The next part, as raw bytes in C order."""
        if self._file is None:
            raise ValueError(f"{self._name!r} is finished.")
        self._write(self._file, _bytes_of(np.ascontiguousarray(part)))

    def finish(self) -> FileRecord:
        """What a save says of it; it is on the disk when `NewFiles.wait` returns."""
        file, self._file = self._file, None
        if file is not None:
            self._files.sync_later(file)
        return FileRecord(self._name, self._num_bytes, self._checksum.intdigest())

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, file: io.FileIO, data: bytes | memoryview) -> None:
        self._checksum.update(data)
        self._num_bytes += len(data)
        while len(data):
            data = data[file.write(data) :]


def _sync_and_close(file: io.FileIO) -> None:
    with file:
        os.fsync(file.fileno())


def checksum_of(content: bytes | bytearray) -> int:
    """Of a whole file.

    >>> checksum_of(b"")
    3244421341483603138
    """
    return int(xxhash.xxh3_64_intdigest(content))


def npy_header(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """What a `.npy` file of such an array begins with.

    https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    """
    buffer = io.BytesIO()
    header = {"descr": _FORMAT.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
    _FORMAT.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


def check_size(folder: str, record: FileRecord) -> None:
    """Refuses a file that is not there, or not as long as it was.

    Raises:
      ValueError: the message names the file.
    """
    path = os.path.join(folder, record.name)
    try:
        found = os.stat(path).st_size
    except FileNotFoundError:
        raise ValueError(f"{path!r} is missing: nothing was loaded. Restore another save, by its folder.") from None
    if found != record.num_bytes:
        raise ValueError(
            f"{path!r} has {found} bytes, expected {record.num_bytes}: it was cut off or changed. Nothing was loaded; "
            "Restore another save, by its folder."
        )


def read_parts(
    folder: str, record: FileRecord, row_bytes: int, header: bytes, most: int
) -> Generator[Array, None, None]:
    """The rows of an array file, at most `most` at a time: uint8 `[m, row_bytes]`, each part gone at the next.

    Raises:
      ValueError: it is not the file that was written; the last part was given then.
    """
    path = os.path.join(folder, record.name)
    with open(path, "rb", buffering=0) as file:
        found = file.read(len(header))
        if found != header or (record.num_bytes - len(header)) % row_bytes:
            raise ValueError(
                f"{path!r} is damaged: it begins otherwise than what was saved. Restore another save, by its folder."
            )
        checksum = xxhash.xxh3_64(found)
        num_rows = (record.num_bytes - len(header)) // row_bytes
        part = np.empty((min(most, num_rows), row_bytes), np.uint8)
        while num_rows:
            rows = part[: min(most, num_rows)]
            read_into(file, _bytes_of(rows), path)
            checksum.update(_bytes_of(rows))
            num_rows -= len(rows)
            yield rows
    if checksum.intdigest() != record.checksum:
        raise ValueError(
            f"{path!r} is damaged: its checksum is {checksum.intdigest()}, expected {record.checksum}. Restore another "
            "save, by its folder."
        )


def read_into(file: io.FileIO, target: memoryview, path: str) -> None:
    """Fills `target` from a file.

    Raises:
      ValueError: the file ends before.
    """
    while len(target):
        num = file.readinto(target)
        if not num:
            raise ValueError(f"{path!r} was cut off while it was read.")
        target = target[num:]


def read_bytes(folder: str, record: FileRecord) -> bytes:
    """The whole file, which is known to be as long as it should be (`check_size`).

    Raises:
      ValueError: it is not what was written.
    """
    return bytes(_read_whole(folder, record))


def _read_whole(folder: str, record: FileRecord) -> bytearray:
    """`read_bytes`, without a copy.

    Raises:
      ValueError: it is not what was written.
    """
    path = os.path.join(folder, record.name)
    content = bytearray(record.num_bytes)
    with open(path, "rb", buffering=0) as file:
        read_into(file, memoryview(content), path)
        rest = file.read(1)
    if rest or checksum_of(content) != record.checksum:
        raise ValueError(
            f"{path!r} is damaged: its checksum is not that of what was saved. Restore another save, by its folder."
        )
    return content


def read_array(folder: str, record: FileRecord) -> Array:
    """The array in a file.

    Raises:
      ValueError: it is not what was written.
    """
    content = _read_whole(folder, record)
    path = os.path.join(folder, record.name)
    start = io.BytesIO(content[:_MOST_HEADER_BYTES])
    try:
        _FORMAT.read_magic(start)
        shape, is_fortran, dtype = _FORMAT.read_array_header_1_0(start)
        if is_fortran or dtype.hasobject:
            raise ValueError("it holds Python objects, or is laid out otherwise")
        array: Array = np.frombuffer(content, dtype, math.prod(shape), start.tell()).reshape(shape)
    except ValueError as error:
        raise ValueError(
            f"{path!r} is no array that was saved here: {error}. Restore another save, by its folder."
        ) from error
    return array


def _bytes_of(array: Array) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data
