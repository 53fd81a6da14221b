"""The raw priority of each frame of a ring, for samplers. Told of everything by the ring's writer."""

from __future__ import annotations

import numpy as np

from .nests import Array
from .ring import FrameRing
from .sampled_starts import SampledStarts

# What a frame that comes without a priority gets, as in a served table.
_FIRST_PRIORITY = 1.0


class SampledFrames:
    """Tells the kinds of windows that are drawn through samplers what comes and goes (a `RingListener`).

    The caller holds the ring's writer lock, but for `prepare`.

    Args:
      ring: what is held.
    """

    def __init__(self, ring: FrameRing) -> None:
        self._ring = ring
        # By row; of a row without a frame it means nothing.
        self.priorities: Array = np.full(ring.capacity, _FIRST_PRIORITY)
        self._kinds: list[SampledStarts] = []

    def add_kind(self, starts: SampledStarts) -> None:
        """From now on these starts know what is held."""
        starts.start_again()
        self._kinds.append(starts)

    def update(self, keys: Array, priorities: Array) -> None:
        """Gives the frames with these ids `[n]`, all held, these raw priorities; of equal ids the last counts."""
        self.priorities[self._ring.rows(keys)] = priorities
        unique = np.unique(keys)
        for kind in self._kinds:
            kind.update(unique)

    def prepare(self, priorities: Array) -> Array:
        """Raw priorities as they are kept: as they come."""
        return np.asarray(priorities, np.float64)

    def before_overwrite(self, first: int, num: int) -> None:
        """The rows of the ids from `first` on, `num` of them, side by side, are about to be written anew."""
        if first + num <= self._ring.capacity:
            return  # these rows never held a frame
        row = first % self._ring.capacity
        for kind in self._kinds:
            kind.overwrite(np.arange(row, row + num))

    def after_publish(self, first: int, num: int, prepared: Array | None) -> None:
        """The ids from `first` on, `num` of them, are held now."""
        row = first % self._ring.capacity
        self.priorities[row : row + num] = _FIRST_PRIORITY if prepared is None else prepared
        for kind in self._kinds:
            kind.refresh(first)

    def before_overwrite_apart(self, ids: Array, held: Array) -> None:
        """The rows of these new ids `[n, T]` are about to be written anew; where `held` frames lie in them."""
        # All of them: what a row counted of a frame that was cleared is not the new one's.
        rows = self._ring.rows(ids).reshape(-1)
        for kind in self._kinds:
            kind.overwrite(rows)

    def after_publish_apart(self, ids: Array, prepared: Array | None) -> None:
        """These ids `[n, T]` are held now."""
        self.priorities[self._ring.rows(ids)] = _FIRST_PRIORITY if prepared is None else prepared
        for kind in self._kinds:
            kind.refresh(ids[:, 0])

    def start_again(self) -> None:
        """The ring was cleared, or a write was interrupted."""
        for kind in self._kinds:
            kind.start_again()

    def forget(self, rows: Array) -> None:
        """The frames in these rows `[n]` are about to be taken back."""
        for kind in self._kinds:
            kind.overwrite(rows)

    def after_end_stream(self) -> None:
        """Streams have ended: windows that waited for more frames may be eligible now."""
        for kind in self._kinds:
            kind.refresh(self._ring.published)
