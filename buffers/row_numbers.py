"""The rows of frames that are counted from 0 on: a list of numbers, or side by side in a ring."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from .nests import Array


@dataclasses.dataclass(frozen=True)
class RingRows:
    """Frame `i` lies in row `(first + i) % capacity`.

    Attributes:
      first: row of frame 0.
      num: frames.
      capacity: rows of the ring, at least `num`.

    >>> rows = RingRows(first=3, num=4, capacity=5)
    >>> rows[np.array([0, 3])], list(rows.pieces(slice(1, 4)))
    (array([3, 1]), [(slice(1, 2, None), slice(4, 5, None)), (slice(2, 4, None), slice(0, 2, None))])
    """

    first: int
    num: int
    capacity: int

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, places: Array) -> Array:
        """Rows of the frames with these numbers, int64 `[m]`."""
        return np.asarray((self.first + places) % self.capacity)

    def pieces(self, places: slice) -> Iterator[tuple[slice, slice]]:
        """Frames that follow each other, cut at the ring's end: (their numbers, their rows)."""
        start = places.start
        while start < places.stop:
            row = (self.first + start) % self.capacity
            num = min(places.stop - start, self.capacity - row)
            yield slice(start, start + num), slice(row, row + num)
            start += num


RowNumbers = Array | RingRows


def taken(array: Array, rows: RowNumbers) -> Array:
    """A copy of what an array `[num_rows, ...]` has in these rows.

    >>> taken(np.array([10, 11, 12]), RingRows(first=2, num=2, capacity=3))
    array([12, 10])
    """
    if isinstance(rows, RingRows):
        return np.concatenate([array[:0], *(array[part] for _, part in rows.pieces(slice(0, len(rows))))])
    return array[rows]


def put(array: Array, rows: RowNumbers, values: Array) -> None:
    """Writes values `[n, ...]` into these rows of an array `[num_rows, ...]`.

    >>> array = np.zeros(3, np.int64)
    >>> put(array, RingRows(first=2, num=2, capacity=3), np.array([5, 6]))
    >>> array
    array([6, 0, 5])
    """
    if isinstance(rows, RingRows):
        for places, part in rows.pieces(slice(0, len(rows))):
            array[part] = values[places]
    else:
        array[rows] = values


def pieces_of(rows: RowNumbers, places: slice | Array) -> Iterator[tuple[slice | Array, slice | Array]]:
    """(places, rows), in which rows are slices wherever they follow each other.

    >>> list(pieces_of(np.array([4, 5, 6, 2]), slice(0, 3)))
    [(slice(0, 3, None), slice(4, 7, None))]
    """
    if isinstance(rows, RingRows):
        if isinstance(places, slice):
            yield from rows.pieces(places)
        else:
            yield places, rows[places]
        return
    chosen = rows[places]
    if len(chosen) and chosen[-1] - chosen[0] == len(chosen) - 1 and (np.diff(chosen) == 1).all():
        yield places, slice(int(chosen[0]), int(chosen[-1]) + 1)
    elif len(chosen):
        yield places, chosen
