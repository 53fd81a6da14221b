"""Slots drawn with a chance in proportion to their mass: exact, in constant time, in NumPy and in a graph. Knows no RL.

The slots lie sorted by the binary exponent of their mass (`priority_kernels.py`). A draw takes an
exponent by the sum of its masses, a member of it uniformly, and accepts it by its mass over the
exponent's bound, which is never under one half. So a draw costs the same however many slots there are
and however uneven their masses, and a change costs a few swaps. What is summed are whole numbers: the
sums stay those of a fresh count for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from .memory import SharedMemory
from .nests import Array
from .ring_starts import uncompiled

NO_SLOT = -1

# Uniform numbers for a draw: one on average at worst, so that these are as good as always enough.
_UNIFORMS_PER_DRAW = 2
_EXTRA_UNIFORMS = 64

# In a graph candidates are drawn ahead by this factor and this many more.
_OVERSAMPLING = 1.1
_EXTRA_CANDIDATES = 64
# Stratified draws in a graph each have so many candidates of their own; at least half of them fit.
_CANDIDATES_PER_STRATUM = 8

# The least and the largest mass other than 0: the normal numbers of float32.
LEAST_MASS = float(np.finfo(np.float32).tiny)
LARGEST_MASS = float(np.finfo(np.float32).max)


class MassIndex:
    """A set of slots, each with a mass of at least 0. The caller serialises all but what is said to be for graphs.

    Args:
      num_slots: slots are numbered from 0 to here, below 2**31.
      tracks_least: also keep `least_mass`, which costs 4 bytes a slot.
      tracks_largest: also keep `largest`, at the same cost.

    >>> index = MassIndex(4)
    >>> index.set(np.array([0, 1, 3]), np.array([1, 0, 3], np.float32))
    >>> len(index), index.total
    (3, 4.0)
    >>> slots, chances = index.draw(np.random.default_rng(0), 1000)
    >>> sorted(set(slots.tolist())), sorted(set(chances.tolist()))
    ([0, 3], [0.25, 0.75])
    """

    def __init__(self, num_slots: int, *, tracks_least: bool = False, tracks_largest: bool = False) -> None:
        from . import priority_kernels  # numba takes a second to load

        self._kernels = priority_kernels
        self._num_slots = num_slots
        self._order = SharedMemory((num_slots,), np.int32)
        self._masses = SharedMemory((num_slots,), np.float32)
        num_classes = priority_kernels.NUM_CLASSES
        # Heads, then sums, read in one piece by graphs.
        self._table = SharedMemory((2 * num_classes + 1,), np.int64)
        self._heads = self._table.array[: num_classes + 1]
        self._sums = self._table.array[num_classes + 1 :]
        self._position = np.full(num_slots, -1, np.int32)
        self._bits = self._masses.array.view(np.int32)
        self._arrays = (self._order.array, self._position, self._bits, self._heads, self._sums)
        self._least = MaximumTree(num_slots, -np.inf) if tracks_least else None
        self._largest = MaximumTree(num_slots, 0.0, self._masses.array) if tracks_largest else None

    def __len__(self) -> int:
        """Slots that have a mass, 0 included."""
        return int(self._heads[-1])

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float((self._sums * self._kernels.CLASS_SCALE).sum())

    @property
    def least_mass(self) -> float:
        """The least mass above 0; where there is none, 0.

        Raises:
          RuntimeError: the index does not track it.
        """
        if self._least is None:
            raise RuntimeError("build the index with tracks_least=True.")
        return max(0.0, -self._least.maximum) if np.isfinite(self._least.maximum) else 0.0

    @property
    def largest(self) -> float:
        """The largest mass; 0 where there is none.

        Raises:
          RuntimeError: the index does not track it.
        """
        if self._largest is None:
            raise RuntimeError("build the index with tracks_largest=True.")
        return self._largest.maximum

    def holds(self, slots: Array) -> Array:
        """Which of these slots have a mass, bool `[n]`."""
        return np.asarray(self._position[slots] >= 0)

    def masses(self, slots: Array) -> Array:
        """Their masses, float32 `[n]`; 0 where they have none."""
        return np.asarray(self._masses.array[slots])

    def set(self, slots: Array, masses: Array) -> None:
        """Gives these slots `[n]` these masses, float32 `[n]`: 0 or at least `LEAST_MASS`, finite."""
        befores = np.empty(len(slots), np.float32)
        self._kernels.set_masses(slots, masses.view(np.int32), befores.view(np.int32), *self._arrays)
        self._tell_extremes(slots, befores, masses)

    def change(self, slots: Array, masses: Array) -> None:
        """The same, but slots that have no mass stay without. Of a slot given twice the last counts."""
        befores = np.empty(len(slots), np.float32)
        self._kernels.change_masses(slots, masses.view(np.int32), befores.view(np.int32), *self._arrays)
        self._tell_extremes(slots, befores, masses)

    def discard(self, slots: Array) -> None:
        """Takes the masses of these slots away; slots without one stay so."""
        befores = np.empty(len(slots), np.float32)
        self._kernels.discard(slots, befores.view(np.int32), *self._arrays)
        self._tell_extremes(slots, befores, np.zeros(len(slots), np.float32))

    def layout(self) -> dict[str, Array]:
        """How the slots lie, which decides what a seeded draw gives: the arguments of `lay_out`."""
        return {"order": np.array(self._order.array[: len(self)], np.int64)}

    def lay_out(self, layout: Mapping[str, Array], masses: Array) -> None:
        """Makes the slots that have a mass lie as another index's did.

        Args:
          layout: its `layout`; `order` are all slots, by ascending binary exponent of their mass.
          masses: of all slots, float32 `[num_slots]`.
        """
        order = layout["order"]
        self._lay_out(order, masses[order])

    def _lay_out(self, order: Array, masses: Array) -> None:
        """These slots `[n]`, by ascending exponent of these masses of theirs, float32 `[n]`, are all that there are."""
        MassIndex.clear(self)
        bits = masses.view(np.int32)
        classes = bits >> self._kernels.MANTISSA_BITS
        if (np.diff(classes) < 0).any():  # masses are others than when it was laid out
            by_class = np.argsort(classes, kind="stable")
            order, masses, bits, classes = order[by_class], masses[by_class], bits[by_class], classes[by_class]
        self._order.array[: len(order)] = order
        self._position[order] = np.arange(len(order))
        self._bits[order] = bits
        self._heads[:] = np.searchsorted(classes, np.arange(len(self._heads)))
        mantissas = np.where(classes > 0, bits & 0x7FFFFF | 0x800000, 0)
        # Whole numbers, summed as such: in floating point the sums of very many would be rounded.
        sums = np.concatenate([[0], np.cumsum(mantissas, dtype=np.int64)])
        self._sums[:] = np.diff(sums[self._heads])
        self._tell_extremes(order, np.zeros(len(order), np.float32), masses)

    def clear(self) -> None:
        """No slot has a mass."""
        self._table.array[:] = 0
        self._position[:] = -1
        self._masses.array[:] = 0
        for tree in (self._least, self._largest):
            if tree is not None:
                tree.clear()

    def draw(self, rng: np.random.Generator, num: int, *, stratified: bool = False) -> tuple[Array, Array]:
        """`num` slots int64 with replacement, and the chance of each, float64; the index must not be empty.

        Args:
          rng: source of random numbers.
          num: how many.
          stratified: one of each of `num` equal parts of the total (Schaul et al. 2016, appendix B.2.1), the slots
            in the order of their exponents. Where a candidate is refused the next may be any of its exponent. Each
            slot's expected share stays the same.
        """
        points = rng.random(num)
        if stratified:
            points = (np.arange(num) + points) / num
            # A point of 1 would be beyond the last slot.
            np.minimum(points, np.nextafter(1.0, 0.0), out=points)
        slots, chances = np.empty(num, np.int64), np.empty(num)
        enough = False
        while not enough:
            enough = self._kernels.draw(
                points,
                rng.random(_UNIFORMS_PER_DRAW * num + _EXTRA_UNIFORMS),
                self._order.array,
                self._masses.array,
                self._heads,
                self._sums,
                self._kernels.CLASS_SCALE,
                slots,
                chances,
            )
        return slots, chances

    def draw_in_graph(self, num: int, seed: tf.Tensor, *, strata: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
        """`draw` as graph ops, while a writer may change the index.

        Args:
          num: how many.
          seed: int64 `[2]`; equal seeds give equal draws.
          strata: 0, or a divisor of `num`: each run of so many draws is stratified.

        Returns:
          Slots int64 `[num]` and chances float32 `[num]`. A slot is `NO_SLOT` where too few candidates
          were accepted (which a factor of safety makes rare): the caller draws that again. While
          masses change a slot may come that has just lost its mass, never one that had none.
        """
        kernels = self._kernels
        with uncompiled():
            table = tf.gather(self._table.in_graph(), tf.range(2 * kernels.NUM_CLASSES + 1))
        heads, sums = tf.split(table, [kernels.NUM_CLASSES + 1, kernels.NUM_CLASSES])
        counts = tf.cast(heads[1:] - heads[:-1], tf.float64)
        masses = tf.cast(sums, tf.float64) * kernels.CLASS_SCALE
        total = tf.reduce_sum(masses)
        # Where every mass is 0 all slots have the same chance: they are the members of class 0.
        all_zero = total <= 0.0
        no_bound = np.zeros(kernels.NUM_CLASSES)
        no_bound[0] = 1.0
        bounds = tf.where(all_zero, no_bound, kernels.CLASS_BOUND)
        if strata:
            accepted, slots, drawn = self._stratified(num, strata, seed, heads, counts, bounds, masses, all_zero)
        else:
            accepted, slots, drawn = self._pooled(num, seed, heads, counts, bounds, total, all_zero)
        one = tf.constant(1.0, tf.float64)
        chances = tf.where(all_zero, 1.0 / tf.maximum(counts[0], 1.0), drawn / tf.where(all_zero, one, total))
        accepted &= heads[-1] > 0
        return tf.where(accepted, slots, tf.constant(NO_SLOT, tf.int64)), tf.cast(chances, tf.float32)

    def least_in_graph(self) -> tf.Tensor:
        """`least_mass` over `total` as graph ops, float64 `[]`: the least chance of a slot that can be drawn."""
        if self._least is None:
            raise RuntimeError("build the index with tracks_least=True.")
        with uncompiled():
            least = -tf.cast(self._least.maximum_in_graph(), tf.float64)
            sums = tf.gather(
                self._table.in_graph(), self._kernels.NUM_CLASSES + 1 + tf.range(self._kernels.NUM_CLASSES)
            )
        total = tf.reduce_sum(tf.cast(sums, tf.float64) * self._kernels.CLASS_SCALE)
        num = tf.maximum(tf.cast(self.num_in_graph(), tf.float64), 1.0)
        return tf.where(total > 0.0, least / total, 1.0 / num)

    def num_in_graph(self) -> tf.Tensor:
        """`len` in a graph, int64 `[]`."""
        with uncompiled():
            return tf.gather(self._table.in_graph(), self._kernels.NUM_CLASSES)

    def _pooled(
        self,
        num: int,
        seed: tf.Tensor,
        heads: tf.Tensor,
        counts: tf.Tensor,
        bounds: tf.Tensor,
        total: tf.Tensor,
        all_zero: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The first `num` accepted of more candidates: whether there are so many, slots and masses."""
        # Under bars as high as their class's bound, side by side, a point lies in the area of one slot or above it.
        sizes = counts * bounds
        areas = tf.cumsum(sizes)
        share = tf.where(all_zero, tf.constant(1.0, tf.float64), total / areas[-1])
        # Sums and counts can be of different moments: then the share means nothing, but must stay one.
        share = tf.clip_by_value(share, 0.25, 1.0)
        num_candidates = tf.cast(_OVERSAMPLING * num / share, tf.int32) + _EXTRA_CANDIDATES
        points = tf.random.stateless_uniform(tf.reshape(num_candidates, [1]), seed, dtype=tf.float64) * areas[-1]
        classes = tf.minimum(tf.searchsorted(areas, points, side="right"), self._kernels.NUM_CLASSES - 1)
        bound = tf.gather(bounds, classes)
        places = (points - tf.gather(areas - sizes, classes)) / bound
        slots, masses, heights = self._look_up(places, tf.gather(heads, classes), bound)
        accepted = tf.where((heights < masses) | all_zero)[:, 0]
        found = tf.minimum(tf.shape(accepted)[0], num)
        chosen = tf.pad(accepted[:num], [[0, num - found]])
        chosen.set_shape([num])
        return tf.range(num) < found, tf.gather(slots, chosen), tf.gather(masses, chosen)

    def _stratified(
        self,
        num: int,
        strata: int,
        seed: tf.Tensor,
        heads: tf.Tensor,
        counts: tf.Tensor,
        bounds: tf.Tensor,
        masses: tf.Tensor,
        all_zero: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """A slot for each stratum, of candidates of its class: whether one was accepted, slots and masses."""
        sizes = tf.cumsum(tf.where(all_zero, counts * bounds, masses))
        points = tf.random.stateless_uniform([num // strata, strata], seed, dtype=tf.float64)
        points = tf.reshape((tf.range(strata, dtype=tf.float64) + points) / strata, [num]) * sizes[-1]
        classes = tf.minimum(tf.searchsorted(sizes, points, side="right"), self._kernels.NUM_CLASSES - 1)[:, None]
        # Where the point falls in its class is the first candidate, so that strata hold within a class, too.
        right, size = tf.gather(sizes, classes), tf.gather(tf.where(all_zero, counts * bounds, masses), classes)
        first = tf.clip_by_value((points[:, None] - (right - size)) / size, 0.0, 1.0 - 2.0**-53)
        others = [num, _CANDIDATES_PER_STRATUM - 1]
        uniforms = tf.random.stateless_uniform(others, seed + tf.constant([0, 1], tf.int64), dtype=tf.float64)
        uniforms = tf.concat([first, uniforms], 1)
        bound = tf.gather(bounds, classes)
        slots, drawn, heights = self._look_up(uniforms * tf.gather(counts, classes), tf.gather(heads, classes), bound)
        accepted = (heights < drawn) | all_zero
        first = tf.argmax(accepted, axis=1)

        def chosen(values: tf.Tensor) -> tf.Tensor:
            return tf.gather(values, first, batch_dims=1)

        return chosen(accepted), chosen(slots), chosen(drawn)

    def _look_up(
        self, places: tf.Tensor, firsts: tf.Tensor, bound: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Slots and masses at these places of their class, and how high the point lies over each."""
        members = tf.floor(places)
        order = tf.clip_by_value(tf.cast(members, tf.int64) + firsts, 0, self._num_slots - 1)
        with uncompiled():
            slots = tf.cast(tf.gather(self._order.in_graph(), order), tf.int64)
            with tf.control_dependencies([slots]):
                masses = tf.cast(tf.gather(self._masses.in_graph(), slots), tf.float64)
        return slots, masses, (places - members) * bound

    def _tell_extremes(self, slots: Array, befores: Array, masses: Array) -> None:
        """Brings the trees up to date; `befores` is NaN (as the bits of -1 are) where no mass was changed."""
        if self._largest is not None:
            self._largest.update(slots, befores, masses)
        if self._least is not None:
            changed = ~np.isnan(befores)
            lost = np.float32(-np.inf)
            self._least.set(slots[changed], np.where(masses[changed] > 0, -masses[changed], lost))


class MaximumTree:
    """The largest of many numbers, kept current: a tree of maxima of 64 children a node.

    Args:
      num_slots: how many numbers there are.
      empty: what they are at first, and after `clear`.
      leaves: float32 `[num_slots]`, all `empty`, that somebody else sets and clears and tells of by `update`; None: the
        tree has its own, for `set`.

    >>> tree = MaximumTree(1000, 0.0)
    >>> tree.set(np.array([3, 999]), np.array([2, 5], np.float32))
    >>> tree.maximum
    5.0
    >>> tree.set(np.array([999]), np.array([1], np.float32))
    >>> tree.maximum
    2.0
    """

    def __init__(self, num_slots: int, empty: float, leaves: Array | None = None) -> None:
        from . import priority_kernels

        self._kernels = priority_kernels
        self._empty = empty
        self.leaves: Array = np.full(num_slots, empty, np.float32) if leaves is None else leaves
        sizes: list[int] = []
        size = num_slots
        while size > 1 or not sizes:
            size = -(-size // priority_kernels.FANOUT)
            sizes.append(size)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._maxima = SharedMemory((int(self._starts[-1]),), np.float32)
        self._maxima.array[:] = empty

    @property
    def maximum(self) -> float:
        """The largest number."""
        return float(self._maxima.array[-1])

    def set(self, slots: Array, values: Array) -> None:
        """Sets these numbers, float32 `[n]`, one after the other."""
        befores = np.empty(len(slots), np.float32)
        self._kernels.set_leaves(slots, values, self.leaves, befores)
        self.update(slots, befores, values)

    def update(self, slots: Array, befores: Array, values: Array) -> None:
        """These numbers were set one after the other: what each was before (NaN where it was not set), and is."""
        self._kernels.raise_maxima(slots, befores, values, self.leaves, self._maxima.array, self._starts)

    def clear(self) -> None:
        """All numbers as at first."""
        self.leaves[:] = self._empty
        self._maxima.array[:] = self._empty

    def maximum_in_graph(self) -> tf.Tensor:
        """`maximum` in a graph, float32 `[]`."""
        return tf.gather(self._maxima.in_graph(), int(self._starts[-1]) - 1)
