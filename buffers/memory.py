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
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .nests import Array

ALIGNMENT = 64
_CAPTURED_AS_CONSTANT = 128
_HUGE_PAGES_FROM = 64 * 2**20
_WARN_SHARE = 0.2

_logger = logging.getLogger(__name__)


def allocate(shape: Sequence[int], dtype: Any) -> Array:
    """Zeros of this shape in pages of their own, which the system commits when first written.

    The map is private: a forked child writes into its own copy, never into the parent's buffer.
    """
    dtype = np.dtype(dtype)
    num_bytes = max(1, math.prod(shape) * dtype.itemsize)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if num_bytes >= _HUGE_PAGES_FROM:
        # Random rows of a large array miss the page table as often as the cache (benchmarks/README.md).
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype, math.prod(shape)).reshape(shape)


def allocate_shared(shape: Sequence[int], dtype: Any) -> tuple[Array, tf.Tensor]:
    """`allocate`, and an eager tensor on the same memory, seen to be one.

    The tensor may have more rows than the array. TensorFlow traces a captured tensor of up to
    128 elements as a constant: what runs is live, but shapes that depend on its values are
    inferred from what it held at the trace (test: `test_small_shared_memory_is_no_constant`).

    Raises:
      RuntimeError: TensorFlow made a copy, so that it would serve the empty buffer for ever.
    """
    row = math.prod(shape[1:])
    num_rows = max(shape[0], _CAPTURED_AS_CONSTANT // row + 1)
    memory = allocate((num_rows, *shape[1:]), dtype)
    first = (0,) * memory.ndim
    with tf.init_scope():  # eager, whatever function is being traced
        tensor = as_tensor(memory)
        memory[first] = 1
        seen = tf.gather_nd(tensor, [first]).numpy()[0]
        memory[first] = 0
    if seen != 1:
        raise RuntimeError(f"TensorFlow copied {memory.shape} {memory.dtype} instead of sharing it; report this.")
    return memory[: shape[0]], tensor


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
