"""Lets windows of streams that go apart be drawn uniformly: as by priorities that are all the same."""

from __future__ import annotations

import numpy as np

from .nests import Array
from .prioritized_starts import PrioritizedStarts
from .ring import FrameRing

# A draw takes a candidate of a class of masses by its mass over the class's bound (`mass_index.py`), which is 2.
_MASS = np.nextafter(np.float32(2), np.float32(0))


class EqualFrames:
    """Tells kinds of windows of streams that go apart what comes and goes (a `RingListener`).

    In a ring whose streams go side by side uniform draws need to know of no window by name (`ring_starts.py`). Where
    each stream has its own pace the set of those that can be drawn is kept (`eligible_starts.py`), each with the same
    mass.

    Args:
      ring: what is held.
    """

    def __init__(self, ring: FrameRing) -> None:
        self._ring = ring
        self._masses = np.broadcast_to(_MASS, (ring.capacity,))
        self._kinds: list[PrioritizedStarts] = []

    def add_kind(self, starts: PrioritizedStarts) -> None:
        """From now on these starts know what is held."""
        starts.start_again(self._masses)
        self._kinds.append(starts)

    def prepare(self, priorities: Array) -> Array:
        """Priorities as they come: uniform draws do not go by them."""
        return priorities

    def before_overwrite(self, first: int, num: int) -> None:
        """Never called: streams go apart."""
        raise RuntimeError("EqualFrames is for streams that go apart.")

    def after_publish(self, first: int, num: int, prepared: Array | None) -> None:
        """Never called: streams go apart."""
        raise RuntimeError("EqualFrames is for streams that go apart.")

    def before_overwrite_apart(self, ids: Array, held: Array) -> None:
        """The rows of these new ids `[n, T]` are about to be written anew; where `held` frames lie in them."""
        rows = self._ring.rows(ids[held])
        if len(rows):
            for kind in self._kinds:
                kind.discard(rows)

    def after_publish_apart(self, ids: Array, prepared: Array | None) -> None:
        """These ids `[n, T]` are held now."""
        for kind in self._kinds:
            kind.refresh(ids[:, 0], self._masses)

    def start_again(self) -> None:
        """The ring was cleared, or a write was interrupted."""
        for kind in self._kinds:
            kind.start_again(self._masses)

    def after_end_stream(self) -> None:
        """Streams have ended: windows that waited for more frames may be eligible now."""
        for kind in self._kinds:
            kind.refresh(self._ring.published, self._masses)
