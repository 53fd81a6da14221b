"""Slots drawn by the rank of their priority: the same as `MassIndex`, with priorities where that has masses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .mass_index import MassIndex
from .nests import Array

# With more the least masses would be no float32.
LARGEST_RANK_ALPHA = 4.0

# Up to so many slots are always sorted.
_ALWAYS_SORTED = 1024


class RankIndex(MassIndex):
    """Rank-based prioritization: Schaul et al. 2016, Prioritized Experience Replay, section 3.3.

    The mass of a slot is `rank^-alpha`, rank 1 the largest priority; a priority of 0 has mass 0. As in the paper ranks
    are places in a binary heap, so that no two slots share one, and the heap is sorted from time to time: once as many
    priorities have changed as there are slots, and at each change while there are no more than 1,024. Of
    equal priorities those set last tend to be in front.

    Args:
      num_slots: slots are numbered from 0 to here, below 2**31.
      alpha: the exponent, from 0 to 4.
      tracks_least: also keep `least_mass`.

    >>> index = RankIndex(4, alpha=1.0)
    >>> index.set(np.array([0, 1, 3]), np.array([5, 0, 1e9], np.float32))
    >>> index.masses(np.arange(4)).tolist()
    [0.5, 0.0, 0.0, 1.0]
    """

    def __init__(self, num_slots: int, *, alpha: float, tracks_least: bool = False) -> None:
        super().__init__(num_slots, tracks_least=tracks_least)
        from . import rank_kernels

        self._heap_kernels = rank_kernels
        self._heap = np.zeros(num_slots, np.int32)
        self._place = np.full(num_slots, -1, np.int32)
        self._values = np.zeros(num_slots, np.float32)
        self._size = np.zeros(1, np.int64)
        self._heap_arrays = (self._heap, self._place, self._values, self._size)
        self._mass_of_place = (np.arange(1.0, num_slots + 1.0) ** -alpha).astype(np.float32)
        self._num_changed = 0

    @property
    def largest(self) -> float:
        """The largest priority; 0 where there is no slot."""
        return float(self._values[self._heap[0]]) if self._size[0] else 0.0

    def set(self, slots: Array, masses: Array) -> None:
        """Gives these slots `[n]` these priorities, float32 `[n]`."""
        moved = np.empty(self._heap_kernels.MOST_MOVED * len(slots), np.int64)
        num_moved = self._heap_kernels.heap_set(slots, masses, *self._heap_arrays, moved)
        self._settle(moved[:num_moved], len(slots))

    def change(self, slots: Array, masses: Array) -> None:
        """The same, but slots that have no priority stay without. Of a slot given twice the last counts."""
        held = self.holds(slots)
        self.set(slots[held], masses[held])

    def discard(self, slots: Array) -> None:
        """Takes the priorities of these slots away; slots without one stay so."""
        moved = np.empty(self._heap_kernels.MOST_MOVED * len(slots), np.int64)
        num_moved = self._heap_kernels.heap_discard(slots, *self._heap_arrays, moved)
        super().discard(slots)
        moved = moved[:num_moved]
        self._settle(moved[self._place[moved] >= 0], len(slots))

    def layout(self) -> dict[str, Array]:
        """How the slots lie, in the heap too, and how many changed since it was sorted."""
        heap = np.array(self._heap[: int(self._size[0])], np.int64)
        return {**super().layout(), "heap": heap, "num_changed": np.array([self._num_changed])}

    def lay_out(self, layout: Mapping[str, Array], masses: Array) -> None:
        """See `MassIndex`; `masses` are priorities."""
        heap, order = layout["heap"], layout["order"]
        self._place[:] = -1
        self._heap[: len(heap)] = heap
        self._place[heap] = np.arange(len(heap))
        self._values[heap] = masses[heap]
        self._size[0] = len(heap)
        of_place = np.where(masses[order] > 0, self._mass_of_place[self._place[order]], np.float32(0))
        self._lay_out(order, of_place)
        self._num_changed = int(layout["num_changed"][0])

    def clear(self) -> None:
        """No slot has a priority."""
        super().clear()
        self._place[:] = -1
        self._size[0] = 0
        self._num_changed = 0

    def _settle(self, moved: Array, num_changed: int) -> None:
        """Gives the slots that lie elsewhere in the heap the masses of their places."""
        self._num_changed += num_changed
        num = int(self._size[0])
        if num <= _ALWAYS_SORTED or self._num_changed >= num:
            moved = self._heap[:num][np.argsort(-self._values[self._heap[:num]], kind="stable")].astype(np.int64)
            self._heap[:num] = moved
            self._place[moved] = np.arange(num)
            self._num_changed = 0
        masses = np.where(self._values[moved] > 0, self._mass_of_place[self._place[moved]], np.float32(0))
        super().set(moved, masses)
