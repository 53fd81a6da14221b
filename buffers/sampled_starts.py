"""Which windows of a ring to draw: those that an `ItemSampler` picks, each at most so many times, and the newest.

Draws hold the writer's lock, and who draws reads the frames before it lets go: what was drawn was drawn once and
for all, because a sampler that counts cannot draw again what a writer took away. In a graph all of it is one callback.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import tensorflow as tf

from .base import EmptyBufferError
from .eligible_starts import EligibleStarts
from .item_samplers import OrderedSampler, check_drawn, keys_in_order
from .nests import Array
from .ring import FrameRing
from .ring_starts import Bounds, Starts
from .sampler_choice import DrawRule
from .windows import Window

# Frames looked at first, to find the newest windows.
_LEAST_LOOKED_AT = 64


class SampledStarts(EligibleStarts):
    """Draws where windows of one kind start, through a sampler. The caller holds the writer's lock, but for `draw`.

    Args:
      ring: what is held.
      window: the kind of window.
      writer_lock: what a writer holds while it writes.
      explain_nothing: raises the error for a ring in which nothing, or too little, is eligible.
      min_size: frames that must be held before anything is drawn.
      final_observations: whether some frames may be final observations, which start no window.
      rule: how windows are chosen.
      priorities: raw, of all rows, float64 `[capacity]`, kept current by who calls.
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
        rule: DrawRule,
        priorities: Array,
    ) -> None:
        super().__init__(
            ring,
            window,
            writer_lock,
            explain_nothing,
            min_size=min_size,
            final_observations=final_observations,
        )
        self._rule = rule
        self._priorities = priorities
        self._sampler = rule.new(ring.capacity)
        # For each row the id of the eligible start in it, or -1.
        self._starts_in = np.full(ring.capacity, -1, np.int64)
        self._num_held = 0
        # How often the frame in each row may still be drawn, and the sum over those that are eligible.
        self._left = np.full(ring.capacity, rule.max_times, np.int64)
        self._num_left = 0
        self._num_exhausted = 0
        # Calls of `draw`, so that it can be seen whether there was one.
        self.num_calls = 0

    @property
    def draws_by_callback(self) -> bool:
        """It does: samplers are Python."""
        return True

    @property
    def num_exhausted(self) -> int:
        """Eligible windows that were drawn as often as they may be."""
        return self._num_exhausted

    def count(self) -> int:
        """Windows that can be drawn now."""
        return self._num_held - self._num_exhausted

    # What the writer tells, with its lock held.

    def refresh(self, first: Any) -> None:
        """Frames from id `first` on came, or streams ended. An array where streams go apart (`EligibleStarts`)."""
        ids = self._eligible_since(first)
        self._admit(ids[self._starts_in[self._ring.rows(ids)] != ids])
        self._drop_outdated(first)

    def overwrite(self, rows: Array) -> None:
        """The frames in these rows `[n]` are about to be overwritten."""
        held = self._starts_in[rows]
        held = held[held >= 0]
        if len(held):
            self._drop(held)
        self._left[rows] = self._rule.max_times

    def start_again(self) -> None:
        """Looks at all frames held anew."""
        held, eligible = self._starts_in[self._starts_in >= 0], self._all_eligible_ids()
        gone = np.setdiff1d(held, eligible, assume_unique=True)
        if len(gone):
            self._drop(gone)
        fresh = np.setdiff1d(eligible, held, assume_unique=True)
        if self._ring.arrivals is not None:  # streams go apart, and ids do not tell which came first
            fresh = fresh[np.argsort(self._ring.arrivals[self._ring.rows(fresh)], kind="stable")]
        self._admit(fresh)

    def update(self, ids: Array) -> None:
        """The frames with these ids, no two alike, have new priorities."""
        rows = self._ring.rows(ids)
        drawable = self._starts_in[rows] == ids
        if self._rule.max_times:
            drawable &= self._left[rows] > 0
        if drawable.any():
            self._sampler.update(ids[drawable], self._priorities[rows[drawable]])

    def layout(self) -> dict[str, Array]:
        """See `EligibleStarts`: the order of the sampler's keys, and how often a window was drawn of each frame held.

        The latter is counted where `max_times_sampled` limits it only.
        """
        held = self._ring.held_ids()
        keys = keys_in_order(self._sampler)
        if keys is None:
            rows = self._ring.rows(held)
            drawable = self._starts_in[rows] == held
            if self._rule.max_times:
                drawable &= self._left[rows] > 0
            keys = held[drawable]
        drawn = self._rule.max_times - self._left[self._ring.rows(held)]
        return {"order": keys, "drawn": drawn.astype(np.int32)}

    def lay_out(self, layout: Mapping[str, Array]) -> None:
        """See `EligibleStarts`."""
        held = self._ring.held_ids()
        self._drop(self._starts_in[self._starts_in >= 0])
        self._left[self._ring.rows(held)] = np.maximum(self._rule.max_times - layout["drawn"], 0)
        eligible = self._all_eligible_ids()
        order = layout["order"][np.isin(layout["order"], eligible)]
        self._admit(np.concatenate([order, np.setdiff1d(eligible, order, assume_unique=True)]))

    def _holds(self, rows: Array) -> Array:
        return np.asarray(self._starts_in[rows] >= 0)

    def _admit(self, ids: Array) -> None:
        """Takes these ids, none of them in the set, into it."""
        if not len(ids):
            return
        rows = self._ring.rows(ids)
        self._starts_in[rows] = ids
        self._num_held += len(ids)
        if self._rule.max_times:
            left = self._left[rows]
            self._num_left += int(left.sum())
            ids, rows = ids[left > 0], rows[left > 0]
            self._num_exhausted += len(left) - len(ids)
        if len(ids):
            self._sampler.on_add(ids, self._priorities[rows])

    def _drop(self, ids: Array) -> None:
        rows = self._ring.rows(ids)
        self._starts_in[rows] = -1
        self._num_held -= len(ids)
        if self._rule.max_times:
            left = self._left[rows]
            self._num_left -= int(left.sum())
            ids = ids[left > 0]
            self._num_exhausted -= len(left) - len(ids)
        if len(ids):
            self._sampler.on_evict(ids)

    # Draws

    def draw(self, rng: np.random.Generator, num: int, *, lock_held: bool = False) -> Starts:
        """`num` starts as the rule says; the newest come last, in the order of their ids.

        Raises:
          EmptyBufferError: fewer than `min_size` frames are held, or no window is eligible.
          EmptyBufferError: fewer than `num` draws are left by `max_times_sampled`. Nothing was drawn.
          TypeError, ValueError: the sampler returned what it must not.
        """
        if not lock_held:
            with self._writer_lock:
                return self.draw(rng, num, lock_held=True)
        self.num_calls += 1
        num_drawable = self.count()
        self._check_left(num, num_drawable)
        newest = self._newest(round(self._rule.newest_fraction * num))
        self._count_drawn(newest)
        keys, chances = self._pick(rng, num - len(newest))
        if len(newest):
            keys, chances = np.concatenate([keys, newest]), np.concatenate([chances, np.ones(len(newest))])
        return Starts(keys, num_drawable, chances)

    def draw_in_graph(self, num: int, seed: tf.Tensor) -> Starts:
        """Never called: `draws_by_callback`."""
        raise NotImplementedError("a sampler draws through a callback, together with the frames.")

    def _check_left(self, num: int, num_drawable: int) -> None:
        """Raises unless so many can be drawn now."""
        if self._ring.num_frames < self._min_size:
            raise self._explain_nothing(self._window)
        if self._rule.max_times and num > self._num_left and self._num_held:
            raise EmptyBufferError(
                f"{num} draws were asked for and {self._num_left} are left: {self._num_exhausted} of {self._num_held} "
                f"windows were drawn max_times_sampled={self._rule.max_times} times. Nothing was drawn: ask for fewer, "
                "or add more."
            )
        if not num_drawable:
            raise self._explain_nothing(self._window)

    def _pick(self, rng: np.random.Generator, num: int) -> tuple[Array, Array]:
        """`num` keys by the sampler, and their chances; counted."""
        if not num:
            return np.empty(0, np.int64), np.empty(0)
        if not self._rule.max_times:
            return self._ask(rng, num)
        if self._rule.in_order:
            keys = cast(OrderedSampler, self._sampler).first(num)
            keys = np.repeat(keys, np.minimum(self._left[self._ring.rows(keys)], num))[:num]
            self._count_drawn(keys)
            return keys, np.ones(num)
        found: list[tuple[Array, Array]] = []
        missing = num
        while missing:
            # Draws one after the other, of which those are struck out that come after their key's last: as if each
            # key had left at its last draw.
            keys, chances = self._ask(rng, missing)
            kept = _occurrence(keys) < self._left[self._ring.rows(keys)]
            found.append((keys[kept], chances[kept]))
            self._count_drawn(keys[kept])
            missing -= int(np.count_nonzero(kept))
        return np.concatenate([keys for keys, _ in found]), np.concatenate([chances for _, chances in found])

    def _ask(self, rng: np.random.Generator, num: int) -> tuple[Array, Array]:
        """`num` keys of the sampler's, checked."""
        drawn = self._sampler.draw(num, rng)
        if self._rule.is_uniform or self._rule.in_order:
            return drawn
        keys, chances = check_drawn(self._rule.name, drawn, num)
        rows = self._ring.rows(keys)
        wrong = self._starts_in[rows] != keys
        if self._rule.max_times:
            wrong |= self._left[rows] < 1
        if wrong.any():
            raise ValueError(
                f"sampler {self._rule.name}: draw returned key {keys[wrong][0]}, which cannot be drawn now: it was "
                "never added, or was evicted (on_evict)."
            )
        return keys, chances

    def _count_drawn(self, keys: Array) -> None:
        """Each of these keys was drawn once more; those that must not come again leave the sampler."""
        if not self._rule.max_times or not len(keys):
            return
        unique, counts = np.unique(keys, return_counts=True)
        rows = self._ring.rows(unique)
        self._left[rows] -= counts
        self._num_left -= len(keys)
        exhausted = unique[self._left[rows] == 0]
        if len(exhausted):
            self._num_exhausted += len(exhausted)
            self._sampler.on_evict(exhausted)

    def _newest(self, num: int) -> Array:
        """The newest `num` windows that can be drawn, or all if there are fewer, by ascending ids."""
        ring = self._ring
        if ring.apart:
            return self._newest_apart(num)
        found: list[Array] = []
        missing, high, size = num, ring.published - self._reach, max(_LEAST_LOOKED_AT, 4 * num)
        while missing > 0 and high > ring.tail:
            ids = np.arange(max(ring.tail, high - size), high)
            rows = ring.rows(ids)
            right = self._starts_in[rows] == ids
            if self._rule.max_times:
                right &= self._left[rows] > 0
            found.insert(0, ids[right][-missing:])
            missing -= len(found[0])
            high, size = int(ids[0]), 2 * size
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _newest_apart(self, num: int) -> Array:
        """`_newest` where streams go apart: in the order in which their drawn frames came."""
        ring = self._ring
        if not num:
            return np.empty(0, np.int64)
        size = max(_LEAST_LOOKED_AT, 4 * num) * ring.batch_size
        high = ring.published - self._reach
        while True:
            low = np.maximum(high - size, ring.tail)
            ids = ring.ids_from(low, high)
            rows = ring.rows(ids)
            right = self._starts_in[rows] == ids
            if self._rule.max_times:
                right &= self._left[rows] > 0
            ids = ids[right]
            # What was not looked at is older than `num` others of its own stream, or there is none.
            enough = np.bincount(ids % ring.batch_size, minlength=ring.batch_size) >= num
            if (enough | (low <= ring.tail)).all():
                break
            size *= 2
        assert ring.arrivals is not None  # streams go apart
        return ids[np.argsort(ring.arrivals[ring.rows(ids)], kind="stable")][-num:]

    def _read_bounds(self) -> Bounds:
        return self._read_cursors()._replace(num_eligible=self.count())


def _occurrence(keys: Array) -> Array:
    """For each key how many of the same come before it, int64 `[n]`.

    >>> _occurrence(np.array([7, 8, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_first = np.ones(len(keys), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    places = np.arange(len(keys))
    before = np.empty(len(keys), np.int64)
    before[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return before
