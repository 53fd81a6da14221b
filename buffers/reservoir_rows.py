"""Which item lies in which row of a reservoir, and how a reader finds out that a row was written meanwhile.

Each row has the id of the item in it, in memory that NumPy and graphs share. A writer sets the ids of the rows that it
is about to write to `BUSY`, writes the frames, and sets the ids of the new items. A reader gathers the ids, the frames,
and the ids again: where an id is `BUSY` or has changed, the frame may be half of one item and half of another. Ids are
never used twice, so that an id that has not changed says that nobody wrote in between (test:
`tests/buffers/test_reservoir_torn_reads.py`, which finds torn rows without it).

Ids ascend as items come, so that a list of the items kept, in the order in which they came, finds an item's row by
bisection. Items that were replaced are taken out of it when it is full, once in `capacity` items that are kept: of a
million rows that takes an add a tenth of a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from .memory import SharedMemory
from .nests import Array

BUSY = -1
NOT_HELD = -1

# Bytes of a row's id and of its places in the list.
BOOKKEEPING_BYTES = 8 + 2 * (8 + 8)


class _List(NamedTuple):
    """Items kept, as they came: the first `num` of ids, ascending, and of the rows where each went."""

    ids: Array
    rows: Array
    num: int


class ReservoirRows:
    """Ids of `capacity` rows, which fill from the first to the last, and are then replaced one by one.

    The caller serialises everything but `size`, `ids` and what is for graphs.

    Args:
      capacity: rows.

    >>> rows = ReservoirRows(2)
    >>> rows.publish(np.array([0, 1]), np.array([0, 1]))
    >>> rows.publish(np.array([0]), np.array([7]))
    >>> rows.in_order()
    (array([1, 7]), array([1, 0]))
    >>> rows.rows_of(np.array([7, 0])).tolist()
    [0, -1]
    """

    def __init__(self, capacity: int) -> None:
        self._shared_ids = SharedMemory((capacity,), np.int64)
        self.ids = self._shared_ids.array
        self._shared_size = SharedMemory((1,), np.int64)
        # Python's own copy costs a reader less.
        self.size = 0
        self._capacity = capacity
        # Replaced at once, never in two steps: an interrupted writer leaves no half of it.
        self._list = _List(np.zeros(2 * capacity, np.int64), np.zeros(2 * capacity, np.int64), 0)

    def hide(self, rows: Array) -> None:
        """These rows, each named once, are about to be written: no reader may trust what it finds in them."""
        self.ids[rows] = BUSY

    def publish(self, rows: Array, ids: Array) -> None:
        """These rows now hold these items, whose ids ascend and are above all before; done twice, it is as once."""
        self.ids[rows] = ids
        listed, num = self._list, len(ids)
        if listed.num == 0 or listed.ids[listed.num - 1] < ids[0]:
            if listed.num + num > len(listed.ids):
                listed = self._without_replaced()
            stop = listed.num + num
            listed.ids[listed.num : stop] = ids
            listed.rows[listed.num : stop] = rows
            self._list = listed._replace(num=stop)
        if self.size < self._capacity:
            self._show_size(max(self.size, int(rows.max()) + 1))

    def clear(self) -> None:
        """No row holds anything."""
        size = self.size
        self._show_size(0)
        self.ids[:size] = BUSY
        self._list = self._list._replace(num=0)

    def restore(self, ids: Array, rows: Array) -> None:
        """Holds these items, and nothing else: ids ascending, and a row of each, which are those from 0 on."""
        self._show_size(0)
        self.ids[:] = BUSY
        listed, self._list = self._list, self._list._replace(num=0)
        listed.ids[: len(ids)] = ids
        listed.rows[: len(ids)] = rows
        self._list = listed._replace(num=len(ids))
        self.ids[rows] = ids
        self._show_size(len(ids))

    def in_order(self) -> tuple[Array, Array]:
        """Ids of all items held, ascending, and their rows."""
        ids, rows = self._list.ids[: self._list.num], self._list.rows[: self._list.num]
        held = self.ids[rows] == ids
        return ids[held], rows[held]

    def rows_of(self, ids: Array) -> Array:
        """Rows of the items with these ids, int64 `[n]`; `NOT_HELD` where they are not held."""
        listed = self._list
        if listed.num == 0:
            return np.full(ids.shape, NOT_HELD)
        index = np.minimum(np.searchsorted(listed.ids[: listed.num], ids), listed.num - 1)
        rows = listed.rows[index]
        return np.where((listed.ids[index] == ids) & (self.ids[rows] == ids), rows, NOT_HELD)

    def ids_in_graph(self, rows: tf.Tensor) -> tf.Tensor:
        """Ids in these rows, int64, as of when the op runs."""
        return tf.gather(self._shared_ids.in_graph(), rows)

    def size_in_graph(self) -> tf.Tensor:
        """Rows that hold items, int64 `[]`."""
        return tf.gather(self._shared_size.in_graph(), 0)

    def _show_size(self, size: int) -> None:
        self._shared_size.array[0] = size
        self.size = size

    def _without_replaced(self) -> _List:
        """The list anew, without what is not held any more."""
        ids, rows = self.in_order()
        listed = _List(np.zeros_like(self._list.ids), np.zeros_like(self._list.rows), len(ids))
        listed.ids[: len(ids)] = ids
        listed.rows[: len(ids)] = rows
        return listed
