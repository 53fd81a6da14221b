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

In memory are one draw, of some 16 MB, and 60 bytes a frame; the frames themselves are where the caller wants them.
"""

from __future__ import annotations

import dataclasses
import functools

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
_DRAW_BYTES = 16 << 20
# How long items may be at first, as nobody knows, and by how much draws then grow.
_LONG_ITEM_FRAMES = 1024
_DRAW_GROWTH = 8
_UPDATE_SIZE = 20_000
# Below it Reverb's sums over all levels are not exact any more.
_LOWEST_LEVEL = 2.0**-32


@dataclasses.dataclass(frozen=True)
class ScannedFrames:
    """All frames of a table's items, stream after stream, oldest first, without padding.

    Attributes:
      ids: int64 `[N]`, ascending.
      is_final: bool `[N]`, which are only final observations.
      items: the items by their drawn frames, in the same order, with `starts` as indices of frames.
      rows: int64 `[N]`, where each frame is in `stored`.
      stored: the frames as they were found.
    """

    ids: Array
    is_final: Array
    items: Placed
    rows: Array
    stored: ScannedColumns

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
        num_first, inserted, deleted = self._counts()
        num_needed = num_first
        watch = Watch(self._link)
        level = _LEVEL_STEP
        quiet = 0
        try:
            while num_needed:
                sample = self._drawer.draw(sizes.next(None if quiet else num_first - len(found)))
                if sample is None:  # emptied meanwhile
                    break
                keys, first = np.unique(sample.info.key.numpy(), return_index=True)
                priorities = sample.info.priority.numpy()[first]
                new = ~found.contains(keys)
                sizes.saw(int(sample.data[0].shape[1]))
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
                # With others writing there is always something new: then what was there at first is enough.
                if new.any() and len(found) < num_first + _MAX_DRAW:
                    continue
                _, inserted_now, deleted_now = self._counts()
                if not quiet and not new.any():
                    num_needed = num_first + inserted_now - inserted
                quiet += 1
                if len(found) >= num_needed - (deleted_now - deleted):
                    break
                watch.tell_or_raise(
                    f"table {self._link.table!r}: {len(found)} of {num_needed} items met, another scan hides the rest; "
                    "waiting"
                )
        finally:
            self._set_priorities(found.all(), 1.0)
        return collected.frames(next_ids)

    def _counts(self) -> tuple[int, int, int]:
        """Items that the scan table holds, and how many were ever inserted and deleted."""
        info = self._link.tables()[self._table]
        size, inserted = int(info.current_size), int(info.rate_limiter_info.insert_stats.completed)
        return size, inserted, inserted - size

    def _set_priorities(self, keys: Array, priority: float) -> None:
        for start in range(0, len(keys), _UPDATE_SIZE):
            updates = dict.fromkeys(keys[start : start + _UPDATE_SIZE].tolist(), priority)
            self._link.call(functools.partial(self._link.client.mutate_priorities, self._table, updates), "a scan")


class _DrawSizes:
    """How many items to draw at once: one of a few numbers, since each is traced once, by what items are seen to be.

    Args:
      frame_bytes: of a frame.
    """

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._most = min(_MIN_DRAW, self._fitting(_LONG_ITEM_FRAMES))
        self._longest = 0

    def next(self, num_missing: int | None) -> int:
        """How many, where so many are missing; None: nobody knows."""
        if num_missing is None:
            return self._most
        return min(self._most, max(_MIN_DRAW, 1 << max(0, num_missing).bit_length()))

    def saw(self, length: int) -> None:
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

    def frames(self, next_ids: Array | None) -> ScannedFrames:
        """All of them in order, but for what is not below `next_ids` of the same stream."""
        if not self._ids:
            nothing = np.zeros(0, np.int64)
            return ScannedFrames(nothing, nothing.astype(bool), Placed(*[nothing] * 3), nothing, self._stored)
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
        return ScannedFrames(known, np.concatenate(self._is_final)[order], items, order, self._stored)


def _is_older(ids: Array, next_ids: Array) -> Array:
    """Whether each id is below the next id of its stream, where that stream is among them."""
    limits = dict(zip(stream_of(next_ids).tolist(), next_ids.tolist(), strict=True))
    streams, inverse = np.unique(stream_of(ids), return_inverse=True)
    limit = np.array([limits.get(stream, np.iinfo(np.int64).max) for stream in streams.tolist()])
    return ids < limit[inverse]
