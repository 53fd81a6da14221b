"""Which windows of a ring to draw: in proportion to the priority of their first frame, while a writer writes.

Only starts of eligible windows have a mass. The writer says which frames came and went, and
`refresh` finds what that changed: the frames that a new one completes a window for, those that an ended episode cuts
short, those whose context was evicted. Draws in NumPy hold the writer's lock; draws in a graph do not, and look
at the words of what they drew once more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from .base import EmptyBufferError
from .eligible_starts import EligibleStarts
from .mass_index import NO_SLOT, MassIndex
from .nests import Array
from .ring import FrameRing
from .ring_starts import Bounds, GraphBounds, Starts
from .windows import Window

# In a graph: an id that no frame has, so that the draw is taken for one whose frame was overwritten, and made again.
_DRAW_AGAIN = -1

# Parts of an index's layout that are rows.
_LAYOUT_ROWS = ("order", "heap")


class PrioritizedStarts(EligibleStarts):
    """Draws where windows of one kind start, by the masses of their frames.

    Args:
      ring: what is held.
      window: the kind of window.
      writer_lock: what a writer holds while it writes.
      explain_nothing: raises the error for a ring in which nothing, or too little, is eligible.
      min_size: frames that must be held before anything is drawn.
      final_observations: whether some frames may be final observations, which start no window.
      stratified: draws made together have one of each of as many equal parts of all mass.
      index: an empty one of all rows, by mass or by rank.
      tracks_least: also tell the least chance.
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
        index: MassIndex,
        stratified: bool = False,
        tracks_least: bool = False,
    ) -> None:
        super().__init__(
            ring,
            window,
            writer_lock,
            explain_nothing,
            min_size=min_size,
            final_observations=final_observations,
        )
        self._index = index
        self._stratified = stratified
        self._tracks_least = tracks_least
        # Of all rows: the array that `start_again` was given, which whoever keeps it keeps current.
        self._masses = np.zeros(0, np.float32)

    @property
    def largest(self) -> float:
        """The largest priority, as it is kept, of a start; 0 where there is none."""
        return self._index.largest

    # What the writer tells, with its lock held.

    def change(self, rows: Array, masses: Array) -> None:
        """The frames in these rows `[n]` have these masses now."""
        self._index.change(rows, masses)

    def discard(self, rows: Array) -> None:
        """The frames in these rows are about to be overwritten."""
        self._index.discard(rows)

    def refresh(self, first: Any, masses: Array) -> None:
        """Frames from id `first` on came, or streams ended; `masses` float32 `[capacity]` are those of all rows.

        Where streams go apart `first` is an array (`EligibleStarts`).
        """
        rows = self._ring.rows(self._eligible_since(first))
        self._index.set(rows, masses[rows])
        self._drop_outdated(first)

    def start_again(self, masses: Array) -> None:
        """Looks at all frames held anew."""
        self._masses = masses
        self._index.clear()
        rows = self._ring.rows(self._all_eligible_ids())
        self._index.set(rows, masses[rows])

    def layout(self) -> dict[str, Array]:
        """See `EligibleStarts`: rows, by their ids."""
        published = self._ring.published
        return {
            name: self._ids_in_rows(slots, published) if name in _LAYOUT_ROWS else slots
            for name, slots in self._index.layout().items()
        }

    def lay_out(self, layout: Mapping[str, Array]) -> None:
        """See `EligibleStarts`."""
        rows = {name: self._ring.rows(part) if name in _LAYOUT_ROWS else part for name, part in layout.items()}
        self._index.lay_out(rows, self._masses)

    def _holds(self, rows: Array) -> Array:
        return self._index.holds(rows)

    def _drop(self, ids: Array) -> None:
        self._index.discard(self._ring.rows(ids))

    # Draws

    def draw(self, rng: np.random.Generator, num: int, *, lock_held: bool = False) -> Starts:
        """`num` starts with replacement, each with a chance in proportion to its mass.

        Raises:
          EmptyBufferError: fewer than `min_size` frames are held, or no window is eligible.
        """
        if not lock_held:
            with self._writer_lock:
                return self.draw(rng, num, lock_held=True)
        ring, index = self._ring, self._index
        num_eligible = len(index)
        if ring.num_frames < self._min_size or not num_eligible:
            raise self._explain_nothing(self._window)
        rows, chances = index.draw(rng, num, stratified=self._stratified)
        return Starts(self._ids_in_rows(rows, ring.published), num_eligible, chances, self.least_chance())

    def count(self) -> int:
        """Eligible windows now; the caller keeps writers away."""
        return len(self._index)

    def draw_in_graph(self, num: int, seed: tf.Tensor) -> Starts:
        """`draw` as graph ops; `seed` is int64 `[2]`, and equal seeds give equal draws."""
        index = self._index
        num_eligible = index.num_in_graph()
        bounds = self._cursors_in_graph()
        nothing = self._ring.num_between(bounds.tail, bounds.published) < self._min_size
        nothing |= num_eligible < 1
        checked = tf.cond(nothing, self._raise_in_graph, lambda: tf.constant(False))
        with tf.control_dependencies([checked]):
            seed = tf.identity(seed)
        rows, chances = index.draw_in_graph(num, seed, strata=num if self._stratified else 0)
        # Read after the rows, so that a row is never taken for an older frame than the one that it was drawn for.
        with tf.control_dependencies([rows]):
            bounds = self._cursors_in_graph()
        keys = self._ids_in_rows(rows, bounds.published)
        starts = self._is_start_in_graph(keys, bounds) & tf.not_equal(rows, NO_SLOT)
        keys = tf.where(starts, keys, tf.constant(_DRAW_AGAIN, tf.int64))
        least = index.least_in_graph() if self._tracks_least else None
        return Starts(keys, tf.maximum(num_eligible, 1), chances, least)

    def _ids_in_rows(self, rows: Array, published: Any) -> Array:
        """Ids of the frames that lie in these rows."""
        capacity = self._ring.capacity
        if self._ring.apart:
            # The newest of its stream that lies in the row: so many rounds before the next id as fit.
            following = self._ring.at(published, rows)
            return following - self._streams - (following - self._streams - rows) % capacity
        # Division is slow, and one is enough: rows up to that of the newest frame hold its round,
        # the others the one before.
        newest = published - 1
        newest_row = newest % capacity
        before = rows > newest_row
        older = tf.cast(before, tf.int64) if isinstance(rows, tf.Tensor) else before
        return rows + (newest - newest_row) - older * capacity

    def _is_start_in_graph(self, ids: tf.Tensor, bounds: GraphBounds) -> tf.Tensor:
        ring = self._ring
        right = (ids >= ring.at(bounds.tail, ids)) & (ids < ring.at(bounds.published, ids) - self._reach)
        if self._all_eligible:
            if self._window.stride > 1:
                right &= tf.equal((ids - ring.at(bounds.floor, ids)) // self._streams % self._window.stride, 0)
            return right
        right &= self._decided_in_graph(ids, bounds)
        return right & ~self._lacks_context_in_graph(ids, bounds) if self._context else right

    def least_chance(self) -> float | None:
        """That of the least probable start that can be drawn, where it is tracked; the caller keeps writers away."""
        if not self._tracks_least:
            return None
        total = self._index.total
        return self._index.least_mass / total if total else 1 / len(self._index)

    def _raise_nothing(self) -> Array:
        with self._writer_lock:
            if self._ring.num_frames < self._min_size or not len(self._index):
                raise self._explain_nothing(self._window)
        return np.array(True)

    def _read_bounds(self) -> Bounds:
        return self._read_cursors()._replace(num_eligible=len(self._index))
