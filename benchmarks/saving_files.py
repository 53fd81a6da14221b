"""The same bytes without a buffer: NumPy's files, one plain file, a copy in memory; and what a folder of files takes.

Nothing here needs root: pages of a file that is on the disk are given back by `posix_fadvise`.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

_CHUNK_BYTES = 2**20


class FreshFolder:
    """A path for each save, a folder's or a file's, where nothing is yet.

    The one before is gone then, and all that was written is on the disk.

    Args:
      parent: an existing folder.
      name: what the paths begin with.
    """

    def __init__(self, parent: str | os.PathLike[str], name: str) -> None:
        self._parent, self._name = pathlib.Path(parent), name
        self._num_made = 0
        self.path = self._parent / f"{name}-0"

    def renew(self) -> None:
        """Nobody's clock runs: what is written afterwards does not wait for bytes of others."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)
        self._num_made += 1
        self.path = self._parent / f"{self._name}-{self._num_made}"
        os.sync()


def write_arrays(folder: pathlib.Path, arrays: Mapping[str, np.ndarray], *, sync: bool, check: bool = False) -> None:
    """`np.save`, a file an array.

    Args:
      folder: is made.
      arrays: by name.
      sync: return when the files and the folder are on the disk.
      check: compute a CRC-32 of each, as a format has that notices damage.
    """
    folder.mkdir()
    for name, array in arrays.items():
        with open(folder / f"{name}.npy", "wb") as file:
            np.save(file, array)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if check:
            zlib.crc32(array)
    if sync:
        sync_folder(folder)


def read_arrays(folder: pathlib.Path, *, check: bool = False) -> list[np.ndarray]:
    """`np.load` of each file, into fresh memory, with `check` its CRC-32 too."""
    arrays = [np.load(path) for path in sorted(folder.glob("*.npy"))]
    if check:
        for array in arrays:
            zlib.crc32(array)
    return arrays


def write_plainly(path: pathlib.Path, source: np.ndarray) -> None:
    """One file in pieces of a megabyte, as `dd` writes it, and onto the disk: as quick as the disk is."""
    with open(path, "wb", buffering=0) as file:
        for start in range(0, len(source), _CHUNK_BYTES):
            file.write(source[start : start + _CHUNK_BYTES].data)
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(folder: pathlib.Path) -> None:
    """Brings the names of a folder's files onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def forget(folder: pathlib.Path) -> None:
    """Takes the files' pages out of the kernel's cache; those that are not on the disk yet are written first."""
    for path in _files(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bytes_by_file(folder: pathlib.Path) -> dict[int, int]:
    """Bytes of each file by its number on the disk: a file that has several names counts once."""
    return {status.st_ino: status.st_size for status in (path.stat() for path in _files(folder))}


def _files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    return (path for path in folder.rglob("*") if path.is_file())
