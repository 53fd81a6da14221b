"""The priority of each frame of a ring, and of what new frames get. Told of everything by the ring's writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from .mass_index import LARGEST_MASS, LEAST_MASS, MaximumTree
from .nests import Array
from .priorities import check_exponent
from .prioritized_starts import PrioritizedStarts
from .ring import FrameRing
from .row_numbers import RowNumbers, put, taken

Initial = Literal["max", "ever"] | float

# What the first frame gets: there is no largest priority yet.
_FIRST_PRIORITY = 1.0

_FEW = 4
# Priorities in between have powers up to the third that are float32.
_USUAL = (1e-9, 1e9)


class FramePriorities:
    """Keeps `p^alpha` of each frame held (float32), and tells the kinds of windows that are drawn by it.

    The caller holds the ring's writer lock, but for `prepare`.

    Args:
      ring: what is held.
      alpha: the exponent; 0: all priorities above 0 are alike.
      initial: priority of frames that come without one: `'max'`, the largest of the frames at which a window of
        the kinds drawn so far starts (before the first draw: of all held); `'ever'`, the largest since the buffer was
        made or cleared; or a number. The first frame gets 1. Frames of one call get the same.

    Raises:
      TypeError: `initial` is neither a word nor a number.
      ValueError: `initial` is negative, not finite or an unknown word.
    """

    def __init__(self, ring: FrameRing, alpha: float, initial: Any) -> None:
        self._ring = ring
        self._alpha = alpha
        if isinstance(initial, str) and initial not in ("max", "ever"):
            raise ValueError(f"initial must be 'max', 'ever' or a priority of at least 0, got {initial!r}.")
        self._fixed = None if isinstance(initial, str) else np.float32(self.prepare(check_exponent("initial", initial)))
        self._is_max = initial == "max"
        # Before the first kind of window is drawn; then the kinds tell what is the largest.
        self._tree = MaximumTree(ring.capacity, 0.0) if self._is_max else None
        # By row, as `prepare` gives them.
        self._values = np.zeros(ring.capacity, np.float32) if self._tree is None else self._tree.leaves
        self._largest_ever = 0.0
        # What frames that come without a priority get, set when the rows of the oldest are given up.
        self._new_value = np.float32(_FIRST_PRIORITY)
        self._kinds: list[PrioritizedStarts] = []

    def add_kind(self, starts: PrioritizedStarts) -> None:
        """From now on these starts are drawn by the priorities of their frames."""
        starts.start_again(self._values)
        self._kinds.append(starts)
        self._tree = None

    def prepare(self, priorities: Any) -> Array:
        """Masses of raw priorities that are finite and at least 0: float32, their shape.

        Raises:
          ValueError: a mass would be beyond what float32 holds; the message names the position.
        """
        given = np.asarray(priorities, np.float64)
        alpha = self._alpha
        if given.size <= _FEW and alpha <= 3.0 and all(_USUAL[0] < value < _USUAL[1] for value in given.flat):
            # So few numbers are quicker one by one: what every add of a frame with a priority pays.
            return np.array([value**alpha for value in given.flat], np.float32).reshape(given.shape)
        masses = given**self._alpha if self._alpha else (given > 0).astype(np.float64)
        if masses.size and not LEAST_MASS <= masses.min() <= masses.max() <= LARGEST_MASS:
            self._check_range(given, masses)
        return masses.astype(np.float32)

    def _check_range(self, given: Array, masses: Array) -> None:
        wrong = (masses > LARGEST_MASS) | ((masses < LEAST_MASS) & (given > 0))
        if wrong.any():
            position = tuple(int(index[0]) for index in np.nonzero(wrong)) if given.ndim else ()
            name = f"priorities[{', '.join(map(str, position))}]" if position else "the priority"
            raise ValueError(
                f"{name} is {given[position]}: its power alpha={self._alpha} is {masses[position]}, and must "
                f"be 0 or between {LEAST_MASS:.3g} and {LARGEST_MASS:.3g}; scale the priorities."
            )

    def update(self, keys: Array, prepared: Array) -> int:
        """Gives the frames with these ids `[n]` these priorities; returns how many ids are not held."""
        ring = self._ring
        held = ring.is_held(keys)
        num_gone = len(keys) - int(np.count_nonzero(held))
        if num_gone:
            keys, prepared = keys[held], prepared[held]
        rows = ring.rows(keys)
        self._set(rows, prepared)
        for kind in self._kinds:
            kind.change(rows, prepared)
        return num_gone

    def before_overwrite(self, first: int, num: int) -> None:
        """The rows of the ids from `first` on, `num` of them, side by side, are about to be written anew."""
        ring = self._ring
        row = first % ring.capacity
        slots = np.arange(row, row + num)
        # New frames get the largest priority that is left when the first step's rows are given up.
        step = ring.batch_size
        self._give_up(slots[:step], first + step > ring.capacity)
        self._new_value = self._initial_value()
        if num > step:
            self._give_up(slots[step:], first + num > ring.capacity)

    def _give_up(self, slots: Array, held: bool) -> None:
        """What lies in these rows is not held any more, if it ever was."""
        if not held:
            return
        for kind in self._kinds:
            kind.discard(slots)
        if self._tree is not None:
            self._tree.set(slots, np.zeros(len(slots), np.float32))

    def after_publish(self, first: int, num: int, prepared: Array | None) -> None:
        """The ids from `first` on, `num` of them, are held now."""
        row = first % self._ring.capacity
        self._set(np.arange(row, row + num), np.full(num, self._new_value) if prepared is None else prepared)
        for kind in self._kinds:
            kind.refresh(first, self._values)

    def before_overwrite_apart(self, ids: Array, held: Array) -> None:
        """The rows of these new ids `[n, T]` are about to be written anew; where `held` frames lie in them."""
        rows = self._ring.rows(ids)
        # As above: what the first step gives up does not count for what new frames get.
        self._give_up(rows[:, 0][held[:, 0]], True)
        self._new_value = self._initial_value(rows[:, 0])
        if ids.shape[1] > 1:
            self._give_up(rows[:, 1:][held[:, 1:]], True)

    def after_publish_apart(self, ids: Array, prepared: Array | None) -> None:
        """These ids `[n, T]` are held now."""
        rows = self._ring.rows(ids).reshape(-1)
        self._set(rows, np.full(len(rows), self._new_value) if prepared is None else prepared.reshape(-1))
        for kind in self._kinds:
            kind.refresh(ids[:, 0], self._values)

    @property
    def largest_ever(self) -> float:
        """The largest value since the buffer was made or cleared; 0 where there was none."""
        return self._largest_ever

    def values_of(self, rows: RowNumbers) -> Array:
        """What is kept of the frames in these rows, float32 `[n]`."""
        return taken(self._values, rows)

    def restore(
        self,
        rows: RowNumbers,
        values: Array,
        largest_ever: float,
        layouts: Mapping[PrioritizedStarts, Mapping[str, Array]],
    ) -> None:
        """The frames held lie in these rows, and have these values, as `prepare` gives them.

        Kinds of windows that have a layout lie so (`EligibleStarts.lay_out`).
        """
        put(self._values, rows, values)
        self._largest_ever = largest_ever
        self._look_again(layouts)

    def start_again(self) -> None:
        """The ring was cleared, or a write was interrupted: what is not held has no priority."""
        self._look_again({})

    def _look_again(self, layouts: Mapping[PrioritizedStarts, Mapping[str, Array]]) -> None:
        ring = self._ring
        held = np.zeros(ring.capacity, bool)
        held[ring.rows(ring.held_ids())] = True
        self._values[~held] = 0
        if self._tree is not None:
            slots, kept = np.flatnonzero(held), self._values[held]
            self._tree.clear()
            self._tree.set(slots, kept)
        if not ring.num_frames:
            self._largest_ever = 0.0
        for kind in self._kinds:
            if kind in layouts:
                kind.lay_out(layouts[kind])
            else:
                kind.start_again(self._values)

    def after_end_stream(self) -> None:
        """Streams have ended: windows that waited for more frames may be eligible now."""
        for kind in self._kinds:
            kind.refresh(self._ring.published, self._values)

    def _set(self, rows: Array, values: Array) -> None:
        """Keeps the values of these rows `[n]`."""
        self._largest_ever = max(self._largest_ever, float(values.max(initial=0)))
        if self._tree is None:
            self._values[rows] = values
        else:
            self._tree.set(rows, values)

    def _initial_value(self, given_up: Array | None = None) -> np.float32:
        """What new frames get; `given_up` are rows that are, where streams go apart."""
        if self._fixed is not None:
            return self._fixed
        if not self._is_max:
            return np.float32(self._largest_ever or _FIRST_PRIORITY)
        if self._tree is not None:
            return np.float32(self._tree.maximum or _FIRST_PRIORITY)
        # Of what can be drawn: the priority of a frame that starts no window is never set, and would stay the largest.
        largest = max(kind.largest for kind in self._kinds) or self._largest_held(given_up)
        # Where every priority is 0 it gets that of a first frame: with 0 it could never be drawn once another is not.
        return np.float32(largest or _FIRST_PRIORITY)

    def _largest_held(self, given_up: Array | None) -> float:
        """Looks at all frames: asked where none can be drawn, as in the first steps of long windows."""
        ring = self._ring
        if given_up is not None:
            rows = np.setdiff1d(ring.rows(ring.held_ids()), given_up)
            return float(self._values[rows].max(initial=0))
        oldest = max(ring.tail, ring.published + ring.batch_size - ring.capacity)
        return float(self._values[ring.rows(np.arange(oldest, ring.published))].max(initial=0))
