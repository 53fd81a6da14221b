"""The tables beside a table that tell the greatest and the least of its priorities.

They hold its items with the same priorities, without data. An item's key there is made of the id of its drawn frame:
Reverb's own keys are other ones in each table, and are not told to who writes (`reverb_wire.py`).
"""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import time
from typing import Any

import numpy as np

from .base import WaitTimeoutError
from .nests import Array
from .reverb_import import load_grpc, load_reverb
from .reverb_link import FIRST_LINE_SECONDS, ServerLink, Watch
from .reverb_wire import ItemStream, open_channel, top_priority

_MAX_BATCH = 1024
_MAX_WAITING = 8192
_RETRY_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0
# A mirror lacks items where it is behind its table at each of so many readings, so far apart (of four readings all
# could be of a moment: up to 72 items, where two writers used both cores).
_NUM_COUNTS = 16
_COUNT_EVERY_SECONDS = 0.25
# The least priority is that of an item that can be drawn: one of priority 0 stands at the end of its heap.
_NEVER_DRAWN = sys.float_info.max


class PriorityMirrors:
    """Writes, updates and reads a table's mirrors; any number of threads may.

    Items are sent by a thread, as many together as wait, and are there within a millisecond or so, as a rule before
    the table has them; a mirror drops the oldest one when the table does. What a writer that is killed had not yet sent
    to both is in one of them alone: an item that only the mirror has counts until it is the oldest; one that only the
    table has is put into the mirrors when its priority is set (`update`). Of either there are at most those that may
    be pending at once, for each killed writer. An item that a table's limiter makes wait is in the mirror already.

    Args:
      link: the server.
      greatest: the table whose sampler is MaxHeap, or None.
      least: the table whose sampler is MinHeap, or None.
    """

    def __init__(self, link: ServerLink, greatest: str | None, least: str | None) -> None:
        self._link = link
        self._greatest, self._least = greatest, least
        self._tables = [table for table in (greatest, least) if table is not None]
        self._channel = open_channel(link.address)
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, float]] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        # By how many inserts each mirror was behind the table, newest last; and the streams that mend it.
        self._behind: collections.deque[dict[str, int]] = collections.deque(maxlen=_NUM_COUNTS)
        self._count_at = 0.0
        self._mends: dict[str, ItemStream] = {}

    def add(self, frame_id: int, priority: float, *, may_wait: bool = True) -> None:
        """An item will be in the table.

        Args:
          frame_id: of its drawn frame.
          priority: its raw priority.
          may_wait: wait first where too many are not confirmed.

        Raises:
          WaitTimeoutError: the server does not confirm them within the link's timeout. The item is not added.
        """
        if may_wait and len(self._waiting) > _MAX_WAITING:
            self._wait_for(_MAX_WAITING // 2)
        with self._changed:
            self._waiting.append((frame_id, priority))
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="replayfeed-mirror", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Returns when the server has confirmed every item.

        Raises:
          WaitTimeoutError: it has not within the link's timeout.
        """
        self._wait_for(0)

    def update(self, frame_ids: Array, priorities: Array) -> None:
        """Sets the priorities of items by their frame ids; of those that are gone nothing is changed.

        Where a mirror has been behind its table for 4 s and longer (a writer was killed), the items with the greatest
        (the least) of these priorities are inserted if it lacks them, at most as many as it is behind: then it has as
        many inserts as its table, and drops the oldest items with it again. An item that has left the table since its
        draw can be among them; it stays as long as any new one.

        Args:
          frame_ids: int64 `[n]`, drawn from the table; where one comes twice, the last counts.
          priorities: float64 `[n]`.

        Raises:
          WaitTimeoutError: the server does not answer within the link's timeout.
        """
        self.flush()
        keys = keys_of(frame_ids).tolist()
        behind = self._count_behind()
        for table in self._tables:
            updates = dict(zip(keys, self._held(table, priorities).tolist(), strict=True))
            self._link.client.mutate_priorities(table, updates)
            if behind.get(table, 0) > 0:
                self._insert_missing(table, updates, behind[table])

    def delete(self, frame_ids: Array) -> None:
        """Takes items out by their frame ids, int64 `[n]`; those that are gone are gone.

        Raises:
          WaitTimeoutError: the server does not answer within the link's timeout.
        """
        self.flush()
        for table in self._tables:
            self._link.client.mutate_priorities(table, deletes=keys_of(frame_ids).tolist())

    def greatest(self, *, exact: bool = True) -> float | None:
        """The greatest priority in the table now; None where it is empty.

        Args:
          exact: wait until what is on its way has come; else it only counts with what is there, and what will leave
            the table for it is still counted.

        Raises:
          WaitTimeoutError: the server does not answer within the link's timeout.
        """
        if self._greatest is None:
            return None
        if exact:
            self.flush()
        with self._changed:
            waiting = max((priority for _, priority in self._waiting), default=None)
        watch = Watch(self._link)
        while True:
            try:
                top = top_priority(self._channel, self._greatest, max(0.1, min(_PATIENCE_SECONDS, watch.remaining())))
                return max((priority for priority in (top, waiting) if priority is not None), default=None)
            except load_grpc().RpcError:
                watch.tell_or_raise(self._link.no_answer())
                self._link.pause(_RETRY_SECONDS)

    def least(self) -> float | None:
        """The least priority above 0 in the table now, of the items that are confirmed; None where there is none.

        Raises:
          WaitTimeoutError: the server does not answer at once; the caller can do with what it read before.
        """
        if self._least is None:
            return None
        try:
            priority = top_priority(self._channel, self._least, _PATIENCE_SECONDS)
        except (load_grpc().RpcError, ValueError) as error:  # a closed channel gives a ValueError
            raise WaitTimeoutError(self._link.no_answer()) from error
        return None if priority == _NEVER_DRAWN else priority

    def reset(self) -> None:
        """Empties the mirrors."""
        self.flush()
        for table in self._tables:
            self._link.client.reset(table)

    def close(self) -> None:
        """Ends the thread and the connection; what is unconfirmed may be lost."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_LOOK_SECONDS)
        for stream in list(self._mends.values()):
            stream.close()
        self._channel.close()

    def _held(self, table: str, priorities: Array) -> Array:
        return np.where(priorities == 0, _NEVER_DRAWN, priorities) if table == self._least else priorities

    def _count_behind(self) -> dict[str, int]:
        """By how many inserts each mirror is behind its table for good; empty where that is not known.

        While writers write the one or the other is ahead for a moment: the least of several readings counts.
        """
        now = time.monotonic()
        if now >= self._count_at:
            self._count_at = now + _COUNT_EVERY_SECONDS
            try:
                infos = self._link.ask(1.0)
            except (RuntimeError, load_reverb().DeadlineExceededError):
                return {}
            counts = {
                table: infos[table].rate_limiter_info.insert_stats.completed
                for table in (self._link.table, *self._tables)
            }
            self._behind.append({table: counts[self._link.table] - counts[table] for table in self._tables})
        if len(self._behind) < _NUM_COUNTS:
            return {}
        return {table: min(behind[table] for behind in self._behind) for table in self._tables}

    def _insert_missing(self, table: str, updates: dict[int, float], num: int) -> None:
        """Inserts the `num` items that count most in a mirror; those that it has are as they were."""
        keys = sorted(updates, key=lambda key: updates[key], reverse=table == self._greatest)[:num]
        stream = self._mends.pop(table, None) or ItemStream(self._channel, [table])
        # Where the connection breaks the next update tries it again. (A closed channel gives a ValueError.)
        with contextlib.suppress(load_grpc().RpcError, StopIteration, ValueError):
            stream.insert(np.array(keys, np.uint64), [np.array([updates[key] for key in keys])])
            self._mends[table] = stream
        self._behind.clear()

    def _wait_for(self, num: int) -> None:
        """Returns when at most so many items wait."""
        if not self._waiting:
            return
        watch = Watch(self._link)
        with self._changed:
            while len(self._waiting) > num:
                self._changed.wait(min(watch.remaining(), FIRST_LINE_SECONDS, self._link.log_interval_s))
                if len(self._waiting) > num:
                    watch.tell_or_raise(
                        f"table {self._link.table!r} at {self._link.address}: {len(self._waiting)} items are not "
                        "confirmed by its mirrors; waiting"
                    )

    def _send(self) -> None:
        """Runs until the buffer is closed."""
        stream: ItemStream | None = None
        while True:
            with self._changed:
                while not self._waiting and not self._is_ended():
                    self._changed.wait(_LOOK_SECONDS)
                if self._is_ended():
                    break
                sent = self._waiting[:_MAX_BATCH]
            frame_ids, given = zip(*sent, strict=True)
            keys, priorities = keys_of(np.array(frame_ids, np.int64)), np.array(given, np.float64)
            of_tables = [self._held(table, priorities) for table in self._tables]
            try:
                if stream is None:
                    stream = ItemStream(self._channel, self._tables)
                stream.insert(keys, of_tables)
            except (load_grpc().RpcError, StopIteration, ValueError):
                # The connection broke: the same items are sent over a new one. (A closed channel gives a ValueError.)
                stream = None
                if self._link.is_ended(_RETRY_SECONDS):
                    break
                continue
            with self._changed:
                del self._waiting[: len(sent)]
                self._changed.notify_all()
        if stream is not None:
            stream.close()

    def _is_ended(self) -> bool:
        return self._closed or self._link.is_ended(0)


def keys_of(frame_ids: Array) -> Array:
    """Frame ids with their bits mixed (the finaliser of SplitMix64, which gives each id a number of its own), uint64.

    Ids themselves lie close together, which makes Reverb's hash tables slow: 256 updates took 2.7 instead of 0.2 ms.

    >>> keys_of(np.array([1, 2])).tolist()
    [6238072747940578789, 15839785061582574730]
    """
    keys: Array = frame_ids.astype(np.uint64)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def mirrors_of(link: ServerLink, table: Any) -> PriorityMirrors | None:
    """The mirrors of a `ServedTable`; None where it has none."""
    if table.max_mirror is None and table.min_mirror is None:
        return None
    return PriorityMirrors(link, table.max_mirror, table.min_mirror)
