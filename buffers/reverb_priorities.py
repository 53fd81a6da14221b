"""The priorities of one served table: of new items, of drawn ones, updated, and how late feedback is.

Reverb draws ahead: between the draw of a row and its delivery priorities change. What that costs is counted here, in
graphs, without any Python for each batch.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .base import WaitTimeoutError
from .item_selectors import Prioritized
from .nests import Array
from .reverb_again import call_again
from .reverb_keys import KeyMemory
from .reverb_layout import PlainLayout
from .reverb_link import ServerLink, Watch
from .reverb_mirror import PriorityMirrors, mirrors_of
from .reverb_table import ServedTable
from .reverb_writer import random_priorities
from .stats import PriorityAge

# A reading of a mirror is used for so long, and the greatest priority for so many new items, or fewer in small tables.
_READ_EVERY_SECONDS = 1.0
_READ_EVERY_ITEMS = 256
_READ_EVERY_SHARE = 64
# Keys that are remembered at least: drawn ones until they are updated, updated ones until older draws are delivered.
_REMEMBERED_DRAWS = 1 << 18
_REMEMBERED_UPDATES = 1 << 16
FIRST_PRIORITY = 1.0


class GreatestPriority:
    """The raw priority of a new item where the table says `initial='max'`: the greatest in the table.

    It is read from the table's mirror when an item is made, but not for each: a reading is used for at most 1 s, at
    most 256 items and at most a 64th of the table's items; so small tables are read for each item. Priorities that
    this process writes or updates count at once. So what another process raised, or what has left the table
    meanwhile, is seen that much later.

    The first item of an empty table gets 1; so does one where all priorities are 0, which else would never be drawn.

    Args:
      mirrors: of the table.
      capacity: items that it holds.
    """

    def __init__(self, mirrors: PriorityMirrors, capacity: int) -> None:
        self._mirrors = mirrors
        self._max_items = max(1, min(_READ_EVERY_ITEMS, capacity // _READ_EVERY_SHARE))
        self._num_items = 0
        self._until = 0.0
        self._value = FIRST_PRIORITY

    def __call__(self, may_wait: bool = True) -> float:
        """The greatest priority, as far as it is known.

        Args:
          may_wait: read it where that is due; without, the last reading holds.

        Raises:
          WaitTimeoutError: the server does not answer within the link's timeout. The next call reads.
        """
        now = time.monotonic()
        if may_wait and (self._num_items >= self._max_items or now >= self._until):
            # In small tables what is on its way may push the greatest one out.
            value = self._mirrors.greatest(exact=self._max_items == 1) or FIRST_PRIORITY
            self._num_items, self._until, self._value = 0, now + _READ_EVERY_SECONDS, value
        self._num_items += 1
        return self._value

    def count(self, priority: float) -> None:
        """An item with this priority is written."""
        self._value = max(self._value, priority)

    def read_again(self) -> None:
        """What was read does not hold any more."""
        self._until = 0.0


class TablePriorities:
    """What one process knows of a table's priorities, and does to them.

    Args:
      link: the server.
      table: the table.
      look_ahead: rows that a dataset draws before they are delivered.
    """

    def __init__(self, link: ServerLink, table: ServedTable, look_ahead: int) -> None:
        self._link = link
        self._table = table
        self._look_ahead = look_ahead
        self._mirrors = mirrors_of(link, table)
        self._greatest = None
        if self._mirrors is not None and table.max_mirror is not None:
            self._greatest = GreatestPriority(self._mirrors, table.capacity)
        self._is_prioritized = isinstance(table.sampler, Prioritized)
        self._lock = threading.Lock()
        # Ids of drawn items by key, and when they were drawn: mirrors go by ids.
        self._ids = None if self._mirrors is None else KeyMemory(2, tf.int64, _REMEMBERED_DRAWS)
        self._num_deliveries = tf.Variable(0, trainable=False, dtype=tf.int64)
        # Priorities that this buffer has set by key, and in which of its updates.
        self._set = KeyMemory(2, tf.float64, _REMEMBERED_UPDATES) if self._is_prioritized else None
        self._num_updates = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        self._num_rows = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._num_outdated = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._most_updates_behind = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        self.least = None if table.min_mirror is None else tf.Variable(1.0, trainable=False, dtype=tf.float64)
        self._least_until = 0.0

    @property
    def new_priority(self) -> Callable[[bool], float] | None:
        """The raw priority of an item that was given none, told whether it may wait; None: 1."""
        if self._greatest is not None:
            return self._greatest
        initial = self._table.initial
        if initial == "random":
            draw = random_priorities()
            return lambda may_wait: draw()
        if initial == FIRST_PRIORITY or isinstance(initial, str):
            return None
        value = float(initial)
        return lambda may_wait: value

    @property
    def on_item(self) -> Callable[[int, float, bool], None] | None:
        """To be told of each item that is written, and whether it may wait; None: need not."""
        return None if self._mirrors is None else self._write

    @property
    def needs_ids(self) -> bool:
        """Whether `delivered` is to be told the drawn frames."""
        return self._ids is not None

    def why_refused(self) -> str:
        """Why the table takes no priorities from outside; empty where it does."""
        if self._table.initial != "random":
            return ""
        return (
            f"table {self._table.name!r} has initial='random': its priorities say by chance which items it keeps, and "
            "must not be set; keep priorities in another table over the same frames."
        )

    def check_sum(self, priorities: Array) -> None:
        """Refuses priorities of which a table full could not be added up: it would draw one item for ever.

        Raises:
          ValueError: one is too large; the message names the position.
        """
        sampler = self._table.sampler
        if not isinstance(sampler, Prioritized) or not sampler.priority_exponent or not priorities.size:
            return
        # In logarithms: the power itself may be more than a float holds.
        most = (math.log(sys.float_info.max) - math.log(self._table.capacity)) / sampler.priority_exponent
        if priorities.max() > 1 and math.log(priorities.max()) >= most:
            position = tuple(int(index) for index in np.unravel_index(priorities.argmax(), priorities.shape))
            raise ValueError(
                f"priorities[{', '.join(map(str, position))}] is {priorities.max()}: to the power of "
                f"{sampler.priority_exponent}, times the {self._table.capacity} items of table {self._table.name!r}, "
                "it is more than a float can hold; give smaller ones."
            )

    def flush(self) -> None:
        """Returns when the mirrors have every item that was written.

        Raises:
          WaitTimeoutError: they have not within the link's timeout.
        """
        if self._mirrors is not None:
            self._mirrors.flush()

    def delivered(self, info: Any, drawn: tf.Tensor | None) -> None:
        """Rows are delivered; in the graph.

        Args:
          info: Reverb's `SampleInfo`, `[B]` or `[]`.
          drawn: the record column of the drawn frames, uint8 `[B, bytes]` or `[bytes]`, where `needs_ids`.
        """
        if self._ids is None and self._set is None:
            return
        keys = tf.reshape(tf.bitcast(info.key, tf.int64), [-1])
        if self._ids is not None:
            assert not isinstance(self._table.layout, PlainLayout)  # plain tables have no mirrors
            ids = tf.reshape(self._table.layout.ids_in_graph(drawn), [-1])
            stamps = tf.fill(tf.shape(keys), self._num_deliveries.assign_add(1))
            self._ids.put(keys, tf.stack([ids, stamps], axis=1))
        if self._set is None:
            return
        known = self._set.get(keys)
        priorities = tf.reshape(tf.cast(info.priority, tf.float64), [-1])
        outdated = (known[:, 1] >= 0) & (known[:, 0] != priorities)
        behind = tf.where(outdated, self._num_updates - known[:, 1] + 1, 0.0)
        self._num_rows.assign_add(tf.size(keys, tf.int64))
        self._num_outdated.assign_add(tf.math.count_nonzero(outdated))
        most = tf.reduce_max(behind)
        tf.cond(
            most > self._most_updates_behind,
            lambda: self._most_updates_behind.assign(most),
            lambda: self._most_updates_behind.read_value(),
        )

    def update(self, keys: Array, priorities: Array) -> None:
        """Sets the raw priorities of items, in the table and in its mirrors.

        Of one process all updates come one after the other, so that all tables get them in the same order. (Where two
        processes set the same item at the same moment, a mirror may take the other one's value, until the next update.)

        Args:
          keys: int64 `[n]`; where one comes twice, the last counts.
          priorities: float64 `[n]`, checked.

        Raises:
          ValueError: the table takes no priorities, or cannot add them up. Nothing is set.
          ValueError: the table has mirrors and a key was not drawn by this buffer: only with a draw comes the id by
            which mirrors know an item. Nothing is set.
          WaitTimeoutError: the server does not answer within the link's timeout.
        """
        refused = self.why_refused()
        if refused:
            raise ValueError(f"update_priorities: {refused}")
        if not len(keys):
            return
        self.check_sum(priorities)
        by_key = dict(zip(keys.view(np.uint64).tolist(), priorities.tolist(), strict=True))
        ids = self._ids_of(keys, "update_priorities")

        def send() -> None:
            # The lock is taken here, so that a call that is late does not let the next one pass.
            with self._lock:
                self._link.client.mutate_priorities(self._table.name, by_key)
                if self._mirrors is not None:
                    self._mirrors.update(ids, priorities)
                self._remember(keys, priorities)

        call_again(self._link, Watch(self._link), send, "an update")
        if self._greatest is not None:
            self._greatest.read_again()
        if self.least is not None:
            least = priorities[priorities > 0].min(initial=np.inf)
            if least < self.least.numpy():
                self.least.assign(least)
            self._least_until = 0.0
        self._trim()

    def delete(self, keys: Array) -> None:
        """Takes items out of the table and of its mirrors.

        Args:
          keys: int64 `[n]`.

        Raises:
          ValueError: as `update` for keys that this buffer has not drawn. Nothing is deleted.
          WaitTimeoutError: the server does not answer within the link's timeout.
        """
        if not len(keys):
            return
        ids = self._ids_of(keys, "delete")

        def send() -> None:
            with self._lock:
                self._link.client.mutate_priorities(self._table.name, deletes=keys.view(np.uint64).tolist())
                if self._mirrors is not None:
                    self._mirrors.delete(ids)

        call_again(self._link, Watch(self._link), send, "a delete")
        if self._greatest is not None:
            self._greatest.read_again()
        self._least_until = 0.0

    def _ids_of(self, keys: Array, call: str) -> Array:
        """The ids by which mirrors know the items with these keys; without mirrors the keys themselves."""
        if self._ids is None:
            return keys
        found: Array = self._ids.get(tf.constant(keys)).numpy()
        unknown = np.flatnonzero(found[:, 1] < 0)
        if len(unknown):
            position = int(unknown[0])
            raise ValueError(
                f"{call}: keys[{position}] is {keys[position]}, which this buffer has not drawn (or "
                f"over {_REMEMBERED_DRAWS} draws ago): table {self._table.name!r} has tables beside it "
                "(initial='max', tracks_least) that know items by frame ids, which come with a draw; "
                f"{'update' if call == 'update_priorities' else call} through the buffer that drew."
            )
        return found[:, 0]

    def look(self) -> None:
        """Reads the least priority where the last reading is more than a second old, and forgets old keys.

        `sample` asks for it, and while datasets run so does a thread, every second. What this process itself has set is
        seen at the next call.
        """
        self._trim()
        if self.least is None or self._mirrors is None or time.monotonic() < self._least_until:
            return
        self._least_until = time.monotonic() + _READ_EVERY_SECONDS
        with contextlib.suppress(WaitTimeoutError):  # then the last reading holds; draws tell that the server is silent
            least = self._mirrors.least()
            self.least.assign(FIRST_PRIORITY if least is None else least)

    def age(self) -> PriorityAge | None:
        """How old priorities are when rows are delivered; None where draws do not go by priority."""
        if not self._is_prioritized:
            return None
        return PriorityAge(
            look_ahead=self._look_ahead,
            rows=int(self._num_rows),
            outdated=int(self._num_outdated),
            updates_behind=int(self._most_updates_behind),
        )

    def reset(self) -> None:
        """The table is emptied: so are its mirrors and the counts."""
        if self._mirrors is not None:
            self._mirrors.reset()
        if self._greatest is not None:
            self._greatest.read_again()
        self._least_until = 0.0
        for count in (self._num_rows, self._num_outdated, self._most_updates_behind):
            count.assign(tf.zeros_like(count))

    def close(self) -> None:
        """Ends the connection to the mirrors; what is unconfirmed may be lost."""
        if self._mirrors is not None:
            self._mirrors.close()

    def _trim(self) -> None:
        for memory in (self._ids, self._set):
            if memory is not None:
                memory.trim()

    def _write(self, frame_id: int, priority: float, may_wait: bool) -> None:
        assert self._mirrors is not None
        self._mirrors.add(frame_id, priority, may_wait=may_wait)
        if self._greatest is not None:
            self._greatest.count(priority)

    def _remember(self, keys: Array, priorities: Array) -> None:
        if self._set is None:
            return
        update = float(self._num_updates.assign_add(1.0))
        self._set.put(tf.constant(keys), tf.constant(np.stack([priorities, np.full(len(keys), update)], axis=1)))
