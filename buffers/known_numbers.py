"""Which of very many numbers are known already, at 8 bytes each."""

from __future__ import annotations

import numpy as np

from .nests import Array

# A run is joined with the one before it when it gets longer than this part of it.
_JOIN_AT = 1 / 8


class KnownNumbers:
    """A growing set of integers, as a few sorted arrays; a Python set takes ten times the memory.

    Args:
      dtype: of the numbers.

    >>> known = KnownNumbers(np.int64)
    >>> known.add(np.array([3, 7]))
    >>> known.contains(np.array([1, 3])).tolist(), len(known)
    ([False, True], 2)
    """

    def __init__(self, dtype: type[np.int64] | type[np.uint64]) -> None:
        self._dtype = dtype
        self._runs: list[Array] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def contains(self, numbers: Array) -> Array:
        """Whether each of `numbers` `[n]`, which ascend, is known: bool `[n]`."""
        is_known = np.zeros(len(numbers), bool)
        for run in self._runs:
            place = np.searchsorted(run, numbers)
            place[place == len(run)] = 0  # which is less than such a number
            is_known |= run[place] == numbers
        return is_known

    def add(self, numbers: Array) -> None:
        """Takes in `numbers` `[n]`, which ascend and are all unknown."""
        if not len(numbers):
            return
        self._runs.append(np.asarray(numbers, self._dtype))
        while len(self._runs) > 1 and len(self._runs[-1]) > _JOIN_AT * len(self._runs[-2]):
            joined = np.concatenate([self._runs[-2], self._runs.pop()])
            # "stable" finds the sorted halves and merges them.
            joined.sort(kind="stable")
            self._runs[-1] = joined

    def all(self) -> Array:
        """Every one of them, `[N]`, in no order."""
        return np.concatenate([np.zeros(0, self._dtype), *self._runs])
