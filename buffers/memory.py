"""Raw memory: private, aligned, committed as it fills; and whether the machine has enough of it.

TensorFlow reads an array through DLPack without a copy, and kills the process at the first
real op when the array is not 64-byte aligned. All memory that it is to read comes from here.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import pathlib
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .nests import Array

ALIGNMENT = 64
_HUGE_PAGES_FROM = 2 * 2**20
_WARN_SHARE = 0.2

_logger = logging.getLogger(__name__)


def allocate(shape: Sequence[int], dtype: Any, folder: str | os.PathLike[str] | None = None) -> Array:
    """Zeros of this shape in pages of their own, which the system commits when first written.

    The map is private: a forked child writes into its own copy, never into the parent's buffer.

    Args:
      shape: of the array.
      dtype: of the array.
      folder: where a file shall hold it, so that it may be larger than memory; the system keeps in
        memory what is in use. The file has no name and goes with the process. Its map is shared
        with forked children.

    Raises:
      OSError: there is no such folder, or not enough room on its disk; the message says how much is needed.
    """
    dtype = np.dtype(dtype)
    num_bytes = max(1, math.prod(shape) * dtype.itemsize)
    if folder is not None:
        pages = _map_file(os.fspath(folder), num_bytes)
        return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if num_bytes >= _HUGE_PAGES_FROM:
        # Random rows of a large array miss the page table as often as the cache (benchmarks/README.md).
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)


def _map_file(folder: str, num_bytes: int) -> mmap.mmap:
    descriptor, path = tempfile.mkstemp(prefix="replayfeed-", dir=folder)
    try:
        os.unlink(path)
        try:
            # Room is taken here: a disk that is full later would kill the process at a write.
            os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError as error:
            free = format_bytes(shutil.disk_usage(folder).free)
            raise OSError(
                error.errno, f"{folder!r} has no room for {format_bytes(num_bytes)} ({free} are free): {error.strerror}"
            ) from error
        return mmap.mmap(descriptor, num_bytes, flags=mmap.MAP_SHARED)
    finally:
        os.close(descriptor)


class SharedMemory:
    """Zeros of this shape, which NumPy writes through `array` and graphs read through `in_graph`.

    A graph gets at the memory through a `tf.experimental.Optional`, not by capturing a tensor.
    TensorFlow traces a small captured tensor as a constant, so that shapes would be inferred from
    what it held at the trace; and tf.data copies each captured tensor, once, when it optimises
    a dataset (tests: `test_small_shared_memory_is_no_constant`, `test_a_dataset_takes_no_memory`).

    Raises:
      RuntimeError: TensorFlow made a copy, so that it would serve the empty buffer for ever.

    >>> memory = SharedMemory((3,), np.int64)
    >>> double = tf.function(lambda: 2 * memory.in_graph())
    >>> memory.array[1] = 5
    >>> double().numpy()
    array([ 0, 10,  0])
    """

    def __init__(self, shape: Sequence[int], dtype: Any, folder: str | os.PathLike[str] | None = None) -> None:
        self.array = allocate(shape, dtype, folder)
        first = (0,) * len(shape)
        with tf.init_scope():  # eager, whatever function is being traced
            tensor = as_tensor(self.array)
            self.array[first] = 1
            # Not gather_nd, which refuses 2**31 elements and more.
            seen = tf.gather(tensor, [0]).numpy()[first]
            self.array[first] = 0
            self._optional = tf.experimental.Optional.from_value(tensor)
        if seen != 1:
            raise RuntimeError(f"TensorFlow copied {self.array.shape} {dtype} instead of sharing it; report this.")

    def in_graph(self) -> tf.Tensor:
        """The memory itself, not a copy: only what is gathered from it may leave a graph."""
        return self._optional.get_value()


def aligned_empty(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]) -> list[Array]:
    """Fresh uninitialised arrays in one block, each of them 64-byte aligned."""
    offsets, end = [], 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        offsets.append(end)
        num_bytes = math.prod(shape) * dtype.itemsize
        end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    block = np.empty(end + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return [
        np.ndarray(shape, dtype, block, start + offset)
        for shape, dtype, offset in zip(shapes, dtypes, offsets, strict=True)
    ]


def copy_to_tensor(array: Array) -> tf.Tensor:
    """An eager tensor with a copy of the array; a fifth of what `tf.constant` costs.

    >>> copy_to_tensor(np.array([3, 4])).numpy()
    array([3, 4])
    """
    (copy,) = aligned_empty([array.shape], [array.dtype])
    copy[...] = array
    return adopt(copy)


def adopt(array: Array) -> tf.Tensor:
    """An eager tensor on the memory of an array that `aligned_empty` or `allocate` made."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def as_tensor(array: Array) -> tf.Tensor:
    """An eager tensor on the array's own memory, without a copy.

    Raises:
      ValueError: the array is not contiguous, or its memory is not 64-byte aligned.
    """
    if array.ctypes.data % ALIGNMENT or not array.flags.c_contiguous:
        raise ValueError(f"TensorFlow cannot share {array.shape} {array.dtype}: not contiguous at {ALIGNMENT} bytes.")
    return adopt(array)


def check_capacity_fits(num_bytes: int, capacity_argument: str) -> None:
    """Refuses a capacity that this machine, or this process's cgroup, cannot hold.

    Warns (`ResourceWarning`) when it takes more than a fifth.

    Raises:
      ValueError: more bytes are needed than there are.
    """
    available = memory_limit()
    if num_bytes > available:
        raise ValueError(
            f"the full capacity needs {format_bytes(num_bytes)}, this machine has {format_bytes(available)}; "
            f"lower {capacity_argument}."
        )
    if num_bytes > _WARN_SHARE * available:
        warnings.warn(
            f"the full capacity takes {format_bytes(num_bytes)} of the {format_bytes(available)} of this machine; "
            f"lower {capacity_argument} if other programs need memory.",
            ResourceWarning,
            stacklevel=3,
        )


def memory_limit() -> int:
    """Bytes that this process may use: the machine's memory, or its cgroup's limit if that is lower."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(pathlib.Path(name).read_text()))
        except (OSError, ValueError):  # no such cgroup version here, or no limit ("max")
            _logger.debug("no memory limit in %s", name)
    return min(limits)


def format_bytes(num_bytes: int) -> str:
    """Bytes for people: decimal gigabytes from 1 GB on, megabytes below.

    >>> format_bytes(28_224_000_000)
    '28.2 GB'
    """
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
