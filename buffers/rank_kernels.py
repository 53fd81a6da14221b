"""A binary heap of slots by priority, compiled where numba is installed.

heap    [num_slots]   slots, the largest priority first; none has a smaller one than those at 2 i + 1 and 2 i + 2
place   [num_slots]   where each slot lies in `heap`; -1 where it does not
values  [num_slots]   priorities
size    [1]           slots in the heap
"""

from __future__ import annotations

import numpy as np

from .nests import Array
from .priority_kernels import compiled

# One change moves at most so many slots: those on a path through the heap of 2**31.
MOST_MOVED = 33


@compiled
def _sift(slot: int, heap: Array, place: Array, values: Array, size: int, moved: Array, num_moved: int) -> int:
    """Moves a slot whose priority has changed to where it belongs; lists those that have another place, and itself."""
    at = place[slot]
    value = values[slot]
    while at > 0:
        parent = (at - 1) // 2
        other = heap[parent]
        if values[other] > value:  # of equal ones the newest is in front
            break
        heap[at] = other
        place[other] = at
        moved[num_moved] = other
        num_moved += 1
        at = parent
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and values[heap[child + 1]] > values[heap[child]]:
            child += 1
        other = heap[child]
        if values[other] <= value:
            break
        heap[at] = other
        place[other] = at
        moved[num_moved] = other
        num_moved += 1
        at = child
    heap[at] = slot
    place[slot] = at
    moved[num_moved] = slot
    return num_moved + 1


@compiled
def heap_set(slots: Array, new: Array, heap: Array, place: Array, values: Array, size: Array, moved: Array) -> int:
    """Gives these slots these priorities, one after the other; returns how many slots `moved` lists."""
    num_moved = 0
    for i in range(len(slots)):
        slot = int(slots[i])
        if place[slot] < 0:
            end = int(size[0])
            place[slot] = end
            heap[end] = slot
            size[0] = end + 1
        values[slot] = new[i]
        num_moved = _sift(slot, heap, place, values, int(size[0]), moved, num_moved)
    return num_moved


@compiled
def heap_discard(slots: Array, heap: Array, place: Array, values: Array, size: Array, moved: Array) -> int:
    """Takes these slots out; returns how many slots `moved` lists, some of which may be out by now."""
    num_moved = 0
    for i in range(len(slots)):
        slot = int(slots[i])
        at = place[slot]
        if at < 0:
            continue
        end = int(size[0]) - 1
        size[0] = end
        place[slot] = -1
        last = int(heap[end])
        if last != slot:
            heap[at] = last
            place[last] = at
            num_moved = _sift(last, heap, place, values, end, moved, num_moved)
    return num_moved


def _compile_all() -> None:
    """Calls each loop once, so that no add or draw has to wait while it is compiled."""
    heap, place, values = np.zeros(1, np.int32), np.full(1, -1, np.int32), np.zeros(1, np.float32)
    size, moved = np.zeros(1, np.int64), np.zeros(MOST_MOVED, np.int64)
    slots = np.zeros(1, np.int64)
    heap_set(slots, np.ones(1, np.float32), heap, place, values, size, moved)
    heap_discard(slots, heap, place, values, size, moved)


_compile_all()
