"""Which starts of one kind of window became eligible, and which stopped being so: told by a ring's writer.

Whoever draws from a set of its own, by priority or in an order, has to know of each start by name. The
writer says which frames came and went, and this finds what that changed: the frames that a new one completes a window
for, those that an ended episode cuts short, those whose context was evicted, those that were deleted.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Mapping
from typing import Any

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

    @abc.abstractmethod
    def layout(self) -> dict[str, Array]:
        """What of the set decides about draws, and does not follow from what is held: the argument of `lay_out`."""

    @abc.abstractmethod
    def lay_out(self, layout: Mapping[str, Array]) -> None:
        """Makes the set draw as that of another ring does which holds the same, and has this `layout`."""

    def heed(self, flags: FrameFlags) -> None:
        """From now on windows that `flags` does not allow are not eligible."""
        self._flags = flags
        self._drop_others(self._ring.held_ids())

    def drop_deleted(self, ids: Array) -> None:
        """The frames with these ids `[n]`, all held, were deleted."""
        window, ring = self._window, self._ring
        steps = np.arange(1 - window.num_steps, window.burn_in + 1) * ring.batch_size
        starts = np.unique(ids[:, None] + steps)
        self._drop_others(starts[ring.is_held(starts)])

    def _make_counts(self) -> list[StartCount]:
        return []  # the set counts

    def _all_eligible_ids(self) -> Array:
        """Every eligible start held, in ascending order."""
        return self._eligible(self._ring.held_ids(self._reach))

    def _eligible_since(self, first: Any) -> Array:
        """The eligible starts among those that may have become so by frames from id `first` on, or by an end.

        Where streams go apart `first` is an array `[n]`, the first new ids of those that have new frames.
        """
        return self._eligible(self._unsettled_since(first))

    def _drop_outdated(self, first: Any) -> None:
        """Takes out of the set what frames from id `first` on, or an end, have made ineligible."""
        if self._window.short == "pad":
            self._drop_others(self._unsettled_since(first))
        if not self._context:
            return
        ring = self._ring
        if ring.apart:
            tail = ring.at(ring.tail, first)
            self._drop_others(ring.ids_from(tail, np.minimum(tail + self._context, ring.at(ring.published, first))))
        else:
            self._drop_others(np.arange(ring.tail, min(ring.tail + self._context, ring.published)))

    def _unsettled_since(self, first: Any) -> Array:
        ring = self._ring
        if ring.apart:
            low = np.maximum(first - self._unsettled, ring.at(ring.tail, first))
            return ring.ids_from(low, ring.at(ring.published, first) - self._reach)
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
        ring = self._ring
        if ring.apart or bounds.tail > ring.tail:
            ids = ids[ids >= ring.at(bounds.tail, ids)]
        if self._window.stride == 1:
            return ids
        return ids[(ids - ring.at(bounds.floor, ids)) // self._streams % self._window.stride == 0]

    def _drop_others(self, ids: Array) -> None:
        """Takes those of these ids out of the set at which no window starts."""
        held = ids[self._holds(self._ring.rows(ids))]
        ids = held[held < self._ring.at(self._ring.published, held) - self._reach]
        gone = np.setdiff1d(held, self._eligible(ids), assume_unique=True)
        if len(gone):
            self._drop(gone)
