"""Which starts of one kind of window became eligible, and which stopped being so: told by a ring's writer.

Whoever draws from a set of its own, by priority or in an order, has to know of each start by name. The
writer says which frames came and went, and this finds what that changed: the frames that a new one completes a window
for, those that an ended episode cuts short, those whose context was evicted, those that were deleted.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable

import numpy as np

from .base import EmptyBufferError
from .frame_flags import FrameFlags
from .nests import Array
from .ring import FrameRing, StartCount
from .ring_starts import WindowStarts
from .windows import Window


class EligibleStarts(WindowStarts, abc.ABC):
    """Keeps a set of the eligible starts of one kind of window. The caller of all but draws holds the writer's lock.

    Args:
      ring: what is held.
      window: the kind of window.
      writer_lock: what a writer holds while it writes.
      explain_nothing: raises the error for a ring in which nothing, or too little, is eligible.
      min_size: frames that must be held before anything is drawn.
      final_observations: whether some frames may be final observations, which start no window.
    """

    def __init__(
        self,
        ring: FrameRing,
        window: Window,
        writer_lock: threading.Lock,
        explain_nothing: Callable[[Window], EmptyBufferError],
        *,
        min_size: int,
        final_observations: bool,
    ) -> None:
        super().__init__(
            ring,
            window,
            writer_lock,
            explain_nothing,
            min_size=min_size,
            final_observations=final_observations,
        )
        # So many steps before the newest the eligibility of a start may still change.
        longest = max(rule.reach for rule in self._rules)
        self._unsettled = (longest if window.short == "drop" else max(window.num_steps, longest)) * ring.batch_size

    @abc.abstractmethod
    def _holds(self, rows: Array) -> Array:
        """Which of these rows `[n]` are in the set, bool `[n]`."""

    @abc.abstractmethod
    def _drop(self, ids: Array) -> None:
        """Takes these ids, all in the set, out of it."""

    def heed(self, flags: FrameFlags) -> None:
        """From now on windows that `flags` does not allow are not eligible."""
        self._flags = flags
        self._drop_others(np.arange(self._ring.tail, self._ring.published))

    def drop_deleted(self, ids: Array) -> None:
        """The frames with these ids `[n]`, all held, were deleted."""
        window, ring = self._window, self._ring
        steps = np.arange(1 - window.num_steps, window.burn_in + 1) * ring.batch_size
        starts = np.unique(ids[:, None] + steps)
        self._drop_others(starts[(starts >= ring.tail) & (starts < ring.published)])

    def _make_counts(self) -> list[StartCount]:
        return []  # the set counts

    def _all_eligible_ids(self) -> Array:
        """Every eligible start held, in ascending order."""
        return self._eligible(np.arange(self._ring.tail, self._ring.published - self._reach))

    def _eligible_since(self, first: int) -> Array:
        """The eligible starts among those that may have become so by frames from id `first` on, or by an end."""
        return self._eligible(self._unsettled_since(first))

    def _drop_outdated(self, first: int) -> None:
        """Takes out of the set what frames from id `first` on, or an end, have made ineligible."""
        if self._window.short == "pad":
            self._drop_others(self._unsettled_since(first))
        if self._context:
            tail = self._ring.tail
            self._drop_others(np.arange(tail, min(tail + self._context, self._ring.published)))

    def _unsettled_since(self, first: int) -> Array:
        ring = self._ring
        return np.arange(max(first - self._unsettled, ring.tail), ring.published - self._reach)

    def _eligible(self, ids: Array) -> Array:
        """Those of these ids, all of frames held, at which a window starts."""
        ids = self._starting_now(ids)
        flags = self._flags
        if flags is None or flags.all_clear or not len(ids):
            return ids
        extents = self.extents(ids)
        return ids[flags.allows(ids, extents.num_before, extents.num_after)]

    def _starting_now(self, ids: Array) -> Array:
        bounds = self._read_cursors()
        if not self._all_eligible:
            return self._starting(ids, bounds)
        if bounds.tail > self._ring.tail:
            ids = ids[ids >= bounds.tail]
        if self._window.stride == 1:
            return ids
        return ids[(ids - bounds.floor) // self._streams % self._window.stride == 0]

    def _drop_others(self, ids: Array) -> None:
        """Takes those of these ids out of the set at which no window starts."""
        held = ids[self._holds(self._ring.rows(ids))]
        ids = held[held < self._ring.published - self._reach]
        gone = np.setdiff1d(held, self._eligible(ids), assume_unique=True)
        if len(gone):
            self._drop(gone)
