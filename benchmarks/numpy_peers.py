"""Plain NumPy: what a person would write by hand, without checks, ids, locks or episodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from workloads import Block, Workload, blocks


class NumpyRing:
    """One array a field, filled by slice assignment and read by `take`; full from the start.

    Args:
      workload: the fields.
      capacity: rows.
    """

    def __init__(self, workload: Workload, capacity: int) -> None:
        self.arrays = {name: np.empty((capacity, *shape), dtype) for name, (shape, dtype) in workload.fields.items()}
        self._capacity = capacity
        self._position = 0
        self._rng = np.random.default_rng(0)
        for num, block in blocks(workload, capacity, 10_000):
            self.add(num, block)

    def add(self, num: int, block: Mapping[str, np.ndarray]) -> None:
        """Copies `num` frames, leaves `[num, ...]`; starts over at the end rather than wrap a block."""
        start = self._position if self._position + num <= self._capacity else 0
        for name, array in self.arrays.items():
            array[start : start + num] = block[name]
        self._position = start + num

    def take(self, num: int) -> Block:
        """A batch in fresh memory, rows drawn uniformly."""
        rows = self._rng.integers(0, self._capacity, num)
        return {name: array.take(rows, axis=0) for name, array in self.arrays.items()}

    def take_into(self, out: Block) -> None:
        """A batch in memory that is used again: the limit, since nobody may keep what it returns."""
        rows = self._rng.integers(0, self._capacity, len(next(iter(out.values()))))
        for name, array in self.arrays.items():
            array.take(rows, axis=0, out=out[name], mode="clip")


def copy_bandwidth(num_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """A source and a destination of that size, both touched, for timing `np.copyto`."""
    return np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
