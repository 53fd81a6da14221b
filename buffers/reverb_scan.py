"""Reads everything that a table holds, without removing anything.

Reverb can only draw. So a scannable table has a second one of the same items over the same data,
whose sampler draws in proportion to priority. There every item has priority 1; a scan lowers the
ones that it has met by a factor of 2**16, so that it draws nearly always new ones, and raises all
of them again when it is done. Several items are drawn for one update, so that this runs at the
speed of sampling: the well-known way, a heap whose top is moved to the back after each draw, needs
two calls for each item.

Nothing breaks when a scan is interrupted: the items that it left behind are drawn later, and
whoever meets them goes one level lower. Two scans at once hide items from each other, so that a
scan is done only when it has met as many items as the server says there were; until then it goes
on, and the other one, when it is done, raises them again. Powers of two keep Reverb's sums exact.

Where others write meanwhile there is always more to meet, and what is met may be new: then a scan
goes on until each item that was there at first, and still is, has been met, but for one in a million scans.

In memory are one draw, of some 8 MB, and some 150 bytes a frame; the frames themselves are where the caller wants them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from typing import NamedTuple

import numpy as np

from .known_numbers import KnownNumbers
from .nests import Array
from .reverb_cuts import stream_of
from .reverb_layout import NO_ID
from .reverb_layouts import IdLayout
from .reverb_link import ServerLink, Watch
from .reverb_source import ItemDrawer
from .scanned_columns import ScannedColumns
from .windows import Placed

_LEVEL_STEP = 2.0**-16
_MAX_DRAW = 2048
_MIN_DRAW = 64
# Of the items of a draw; Reverb, TensorFlow and NumPy each have them once.
_DRAW_BYTES = 8 << 20
# How long items may be at first, as nobody knows, and by how much draws then grow.
_LONG_ITEM_FRAMES = 1024
_DRAW_GROWTH = 8
_UPDATE_SIZE = 20_000
# Items that are expected to be left out where others write meanwhile.
_MOST_UNMET = 1e-6
# Others write too fast where so many times as many items are met as there were.
_MOST_FOUND = 4
# Below it Reverb's sums over all levels are not exact any more.
_LOWEST_LEVEL = 2.0**-32

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ScannedFrames:
    """All frames of a table's items, stream after stream, oldest first, without padding.

    Attributes:
      ids: int64 `[N]`, ascending.
      is_final: bool `[N]`, which are only final observations.
      items: the items by their drawn frames, in the same order, with `starts` as indices of frames.
      rows: int64 `[N]`, where each frame is in `stored`.
      stored: the frames as they were found.
      is_complete: nothing that was held when the scan began, and still is, is missing.
    """

    ids: Array
    is_final: Array
    items: Placed
    rows: Array
    stored: ScannedColumns
    is_complete: bool

    @property
    def columns(self) -> list[Array]:
        """All frames, in memory: uint8 arrays `[N, bytes]`."""
        return self.columns_of(slice(None))

    def columns_of(self, frames: slice) -> list[Array]:
        """Some of the frames: uint8 arrays `[n, bytes]`."""
        return self.stored.take(self.rows[frames])

    @property
    def streams(self) -> list[slice]:
        """Where each stream's frames lie."""
        borders = np.nonzero(np.diff(stream_of(self.ids)))[0] + 1
        edges = [0, *borders.tolist(), len(self.ids)]
        return [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True) if b > a]

    def positions(self) -> Array:
        """For each frame, how many frames of its episode that are held lie before it, int64 `[N]`."""
        index = np.arange(len(self.ids))
        starts = np.where(np.diff(self.ids, prepend=self.ids[:1] - 2) == 1, 0, index)
        return index - np.maximum.accumulate(starts)


class TableScanner:
    """Scans a table through its scan table.

    Args:
      link: the server.
      drawer: draws from the scan table.
      scan_table: its name.
      layout: how frames lie in columns.
      burn_in: frames of an item before the drawn one.
    """

    def __init__(self, link: ServerLink, drawer: ItemDrawer, scan_table: str, layout: IdLayout, burn_in: int) -> None:
        self._link = link
        self._drawer = drawer
        self._table = scan_table
        self._layout = layout
        self._burn_in = burn_in

    def scan(self, next_ids: Array | None, stored: ScannedColumns | None = None) -> ScannedFrames:
        """Everything that is held when the scan begins.

        Args:
          next_ids: the caller's own next ids: what it writes meanwhile is left out. What others write
            meanwhile may be in.
          stored: where frames are kept; None: in memory.

        Raises:
          WaitTimeoutError: the server does not answer, or another scan does not end, within the timeout.
          OSError: `stored` has no room.
        """
        found = KnownNumbers(np.uint64)
        collected = _Collected(self._layout, self._burn_in, stored)
        sizes = _DrawSizes(sum(self._layout.column_bytes))
        ending = _Ending(self._counts())
        watch = Watch(self._link)
        level, is_complete = _LEVEL_STEP, True
        try:
            while ending.num_first:
                num = sizes.next(ending.num_first - len(found))
                sample = self._drawer.draw(num)
                if sample is None:  # emptied meanwhile
                    break
                keys, first, times = np.unique(sample.info.key.numpy(), return_index=True, return_counts=True)
                priorities = sample.info.priority.numpy()[first]
                new = ~found.contains(keys)
                ending.drew(num, times[new], _LEVEL_STEP * len(found))
                sizes.drew(int(sample.data[0].shape[1]))
                if new.any():
                    # The time is that of a wait, and not of a scan: it begins anew.
                    watch = Watch(self._link)
                    collected.add([column.numpy() for column in sample.data], first[new])
                    found.add(keys[new])
                    if priorities[new].min() <= level and level > _LOWEST_LEVEL:
                        level = priorities[new].min() * _LEVEL_STEP
                        self._set_priorities(found.all(), level)
                self._set_priorities(keys[priorities > level], level)
                del sample  # before the next one is drawn
                if new.any() and len(found) < ending.num_first:
                    continue
                if ending.is_reached(self._counts(), len(found), any_new=bool(new.any())):
                    break
                if len(found) >= _MOST_FOUND * (ending.num_first + _MAX_DRAW):
                    _logger.warning(
                        "table %r is written faster than it is read: some of the %d items that it had at first may be "
                        "missing from what was read.",
                        self._link.table,
                        ending.num_first,
                    )
                    is_complete = False
                    break
                if not new.any():
                    watch.tell_or_raise(
                        f"table {self._link.table!r}: {len(found)} of {ending.num_expected} items met, another scan "
                        "hides the rest; waiting"
                    )
        finally:
            self._set_priorities(found.all(), 1.0)
        return collected.frames(next_ids, is_complete=is_complete)

    def _counts(self) -> _Counts:
        info = self._link.tables()[self._table]
        size, inserted = int(info.current_size), int(info.rate_limiter_info.insert_stats.completed)
        return _Counts(size, inserted, inserted - size)

    def _set_priorities(self, keys: Array, priority: float) -> None:
        for start in range(0, len(keys), _UPDATE_SIZE):
            updates = dict.fromkeys(keys[start : start + _UPDATE_SIZE].tolist(), priority)
            self._link.call(functools.partial(self._link.client.mutate_priorities, self._table, updates), "a scan")


class _Counts(NamedTuple):
    """Items that a table holds, and how many were ever inserted and deleted."""

    size: int
    inserted: int
    deleted: int


class _Ending:
    """When a scan has met everything that was there when it began, and still is.

    Args:
      first: what the table held then.

    Attributes:
      num_first: the items.
      num_expected: the items that were ever there, without as many as were deleted meanwhile.
    """

    def __init__(self, first: _Counts) -> None:
        self.num_first = first.size
        self.num_expected = first.size
        self._first = first
        # How many of the first ones are expected to be in no draw so far.
        self._num_unmet = float(first.size)
        self._inserted_before: int | None = None

    def drew(self, num: int, times: Array, known_weight: float) -> None:
        """`num` items were drawn, new ones `times` `[n]` each; those known before have priorities of such a sum."""
        self._num_unmet *= _chance_of_no_draw(num, times, known_weight)

    def is_reached(self, now: _Counts, num_found: int, *, any_new: bool) -> bool:
        """Whether it is, with so many items met, after a draw with new ones or without any."""
        num_ever = self.num_first + now.inserted - self._first.inserted
        self.num_expected = num_ever - (now.deleted - self._first.deleted)
        # With others writing there is always something new, of which what came since the last draws need not be met.
        num_coming = 0 if self._inserted_before is None else 2 * (now.inserted - self._inserted_before)
        self._inserted_before = now.inserted
        if num_found >= num_ever:
            return True
        if not any_new:
            return num_found >= self.num_expected
        return self._num_unmet <= _MOST_UNMET and num_found >= self.num_expected - num_coming


def _chance_of_no_draw(num: int, times: Array, known_weight: float) -> float:
    """The chance that an item of priority 1 that is not known yet is not in a draw, as the draw itself tells.

    Items that are drawn `x` times on average come once `x exp(-x)` times and never `exp(-x)` times: of all that come,
    those that come only once are the part `exp(-x)` (Good, 1953, https://doi.org/10.1093/biomet/40.3-4.237).

    Args:
      num: how many items were drawn.
      times: int64 `[n]`, how often each new one came.
      known_weight: the priorities of all that are known.

    >>> _chance_of_no_draw(10, np.array([1, 1, 2, 4]), 1.0), round(_chance_of_no_draw(10, np.array([], int), 1.0), 4)
    (0.25, 0.0067)
    """
    if not len(times):
        return math.exp(-num / (known_weight + 1))
    return max(1, int(np.count_nonzero(times == 1))) / int(times.sum())


class _DrawSizes:
    """How many items to draw at once: one of a few numbers, since each is traced once, by what items are seen to be.

    Args:
      frame_bytes: of a frame.
    """

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._most = min(_MIN_DRAW, self._fitting(_LONG_ITEM_FRAMES))
        self._longest = 0

    def next(self, num_missing: int) -> int:
        """How many, where so many are missing; 0 or less: nobody knows."""
        if num_missing <= 0:
            return self._most
        return min(self._most, max(_MIN_DRAW, 1 << num_missing.bit_length()))

    def drew(self, length: int) -> None:
        """A draw came, padded to `length` frames."""
        self._longest = max(self._longest, length)
        self._most = min(self._fitting(self._longest), self._most * _DRAW_GROWTH)

    def _fitting(self, length: int) -> int:
        """The power of two."""
        num = max(1, _DRAW_BYTES // max(1, self._frame_bytes * length))
        return min(_MAX_DRAW, 1 << (num.bit_length() - 1))


class _Collected:
    """Frames met by a scan, each kept once however many windows hold it, and where items lie in them."""

    def __init__(self, layout: IdLayout, burn_in: int, stored: ScannedColumns | None) -> None:
        self._layout = layout
        self._burn_in = burn_in
        self._stored = ScannedColumns(layout.column_bytes) if stored is None else stored
        self._seen = KnownNumbers(np.int64)
        self._ids: list[Array] = []
        self._is_final: list[Array] = []
        self._items: list[Array] = []

    def add(self, columns: list[Array], new: Array) -> None:
        """Items `new` `[n]` of columns `[N, L, bytes]`."""
        record, length = columns[0][new], columns[0].shape[1]
        all_ids = self._layout.ids_of(record)
        is_real, burn_in = all_ids != NO_ID, self._burn_in
        num_before, num_after = is_real[:, :burn_in].sum(axis=1), is_real[:, burn_in:].sum(axis=1)
        self._items.append(np.stack([all_ids[:, burn_in], num_before, num_after]))
        ids, place = np.unique(all_ids, return_index=True)
        fresh = ~self._seen.contains(ids) & (ids != NO_ID)
        ids, place = ids[fresh], place[fresh]
        self._seen.add(ids)
        self._ids.append(ids)
        self._is_final.append(self._layout.is_final(record.reshape(-1, record.shape[-1])[place]))
        rows = new[place // length] * length + place % length
        self._stored.append([column.reshape(-1, column.shape[-1])[rows] for column in columns])

    def frames(self, next_ids: Array | None, *, is_complete: bool) -> ScannedFrames:
        """All of them in order, but for what is not below `next_ids` of the same stream."""
        if not self._ids:
            nothing = np.zeros(0, np.int64)
            return ScannedFrames(nothing, nothing > 0, Placed(*[nothing] * 3), nothing, self._stored, is_complete)
        ids = np.concatenate(self._ids)
        order = np.argsort(ids)
        drawn, num_before, num_after = np.concatenate(self._items, axis=1)
        if next_ids is not None:
            order = order[_is_older(ids, next_ids)[order]]
        known = ids[order]
        if next_ids is not None:
            whole = _is_older(drawn + num_after - 1, next_ids)
            drawn, num_before, num_after = drawn[whole], num_before[whole], num_after[whole]
        by_id = np.argsort(drawn)
        items = Placed(np.searchsorted(known, drawn[by_id]), num_before[by_id], num_after[by_id])
        return ScannedFrames(known, np.concatenate(self._is_final)[order], items, order, self._stored, is_complete)


def _is_older(ids: Array, next_ids: Array) -> Array:
    """Whether each id is below the next id of its stream, where that stream is among them."""
    limits = dict(zip(stream_of(next_ids).tolist(), next_ids.tolist(), strict=True))
    streams, inverse = np.unique(stream_of(ids), return_inverse=True)
    limit = np.array([limits.get(stream, np.iinfo(np.int64).max) for stream in streams.tolist()])
    return ids < limit[inverse]
