"""Draws windows from a ring, uniformly over the eligible ones, while a writer writes.

Every draw is made twice in this file, in NumPy (`sample`) and in a graph (`as_dataset`),
by the same steps: draw where a window ends among the ids that are published, keep those at
which one does end, gather, then look at `reserved` and draw again what the writer may have
touched meanwhile (`ring.py` says why that is enough).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from .base import EmptyBufferError
from .callbacks import call_weakly
from .nests import Array
from .ring import FrameRing
from .storage import FrameStorage
from .windows import Window, ends_window

# Rejections are drawn ahead by this factor, so that one round nearly always suffices.
_OVERSAMPLING = 1.1
_EXTRA_DRAWS = 16

# With fewer eligible windows than this many a draw, listing them costs less than rejecting the others.
_LIST_BELOW = 4

# After this many rounds the sampler stops the writer for the moment that a gather takes.
_ROUNDS_BEFORE_LOCK = 8


class Draw(NamedTuple):
    """A draw of `n` windows: the ids of their first frames `[n]`, the leaves, and how many were eligible."""

    starts: Array
    leaves: list[Array]
    num_eligible: int


class GraphDraw(NamedTuple):
    """The same in a graph; `num_eligible` is int64 `[]`."""

    starts: tf.Tensor
    leaves: list[tf.Tensor]
    num_eligible: tf.Tensor


class RingSampler:
    """Uniform draws of windows of one kind.

    Args:
      ring: what is held.
      storage: the frames themselves.
      window: the kind of window; None for single frames, drawn as windows of one.
      writer_lock: what a writer holds while it writes.
      explain_nothing: raises the error for a buffer in which nothing, or too little, is eligible.
      min_size: frames that must be held before anything is drawn.
      final_observations: whether some frames may be final observations, which start no window.
    """

    def __init__(
        self,
        ring: FrameRing,
        storage: FrameStorage,
        window: Window | None,
        writer_lock: threading.Lock,
        explain_nothing: Callable[[Window], EmptyBufferError],
        *,
        min_size: int = 1,
        final_observations: bool = True,
    ) -> None:
        self._ring = ring
        self._storage = storage
        self._stacked = window is not None
        self._window = window or Window(1)
        self._writer_lock = writer_lock
        self._explain_nothing = explain_nothing
        self._min_size = min_size
        # How far before its end a window starts, in ids.
        self._reach = (self._window.num_steps - 1) * ring.batch_size
        # Every end that is far enough from the tail ends a window: nothing to reject, nothing to count.
        self._all_eligible = self._window.boundaries == "ignore" or (
            self._window.num_steps == 1 and not final_observations
        )
        self._count = None
        if not self._all_eligible:
            with writer_lock:
                self._count = ring.count_eligible(self._window)

    @property
    def sample_bytes(self) -> int:
        """Bytes of the items of one sample."""
        return self._storage.frame_bytes * self._window.num_steps

    @property
    def offsets(self) -> Array:
        """Ids of a window's frames relative to its first, int64 `[T]`; `[]` for single frames."""
        steps = np.arange(self._window.num_steps) * self._ring.batch_size
        return steps if self._stacked else steps[0]

    def ids(self, starts: Array) -> Array:
        """Ids `[n, T]` (`[n]` for single frames) of the windows that start at `starts` `[n]`."""
        return starts[:, None] + self.offsets if self._stacked else starts

    def draw(self, rng: np.random.Generator, num: int) -> Draw:
        """Draws `num` windows with replacement, each eligible one with the same chance.

        Raises:
          EmptyBufferError: fewer than `min_size` frames are held, or no window is eligible.
        """
        starts, num_eligible = self._draw_starts(rng, num)
        leaves = self._gather(starts)
        for _ in range(_ROUNDS_BEFORE_LOCK):
            stale = self._stale(starts)
            if stale is None:
                return Draw(starts, leaves, num_eligible)
            starts[stale], num_eligible = self._draw_starts(rng, len(stale))
            for leaf, fresh in zip(leaves, self._gather(starts[stale]), strict=True):
                leaf[stale] = fresh
        with self._writer_lock:
            starts, num_eligible = self._draw_starts(rng, num)
            return Draw(starts, self._gather(starts), num_eligible)

    def gather(self, starts: Array) -> tuple[list[Array], Array]:
        """Leaves of the windows at `starts`, and which of them (bool `[n]`) are still held and whole."""
        leaves = self._gather(starts)
        return leaves, starts >= self._ring.oldest_untouched()

    @tf.autograph.experimental.do_not_convert
    def draw_in_graph(self, num: int, seed: tf.Tensor) -> GraphDraw:
        """`draw` as graph ops; `seed` is int64 `[2]`, and equal seeds give equal draws.

        XLA would merge the reads and deliver torn rows. Its clustering is kept out of each of them
        (`_uncompiled`); an explicit `jit_compile=True` fails on the callback that raises the error.
        """
        starts, num_eligible = self._draw_starts_in_graph(num, seed)
        records = self._gather_records(starts)
        stale = self._stale_in_graph(starts, records)

        def again(
            round_number: tf.Tensor, stale: tf.Tensor, starts: tf.Tensor, records: Sequence[tf.Tensor]
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Sequence[tf.Tensor]]:
            fresh_starts, _ = self._draw_starts_in_graph(num, seed + tf.stack([round_number, 0]))
            fresh = self._gather_records(fresh_starts)
            fresh_stale = self._stale_in_graph(fresh_starts, fresh)
            merged = tuple(_where_rows(stale, new, old) for new, old in zip(fresh, records, strict=True))
            starts = tf.where(stale, fresh_starts, starts)
            return round_number + _ROUND_SEED, stale & fresh_stale, starts, merged

        _, _, starts, records = tf.while_loop(
            lambda round_number, stale, starts, records: tf.reduce_any(stale),
            again,
            (tf.constant(_ROUND_SEED, tf.int64), stale, starts, tuple(records)),
        )
        return GraphDraw(starts, self._storage.split_records_in_graph(records), num_eligible)

    def gather_in_graph(self, starts: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """`gather` as graph ops."""
        records = self._gather_records(starts)
        stale = self._stale_in_graph(starts, records)
        return self._storage.split_records_in_graph(records), ~stale

    # NumPy

    def _draw_starts(self, rng: np.random.Generator, num: int) -> tuple[Array, int]:
        low, published, num_eligible = self._bounds()
        if self._count is None:
            return rng.integers(low - self._reach, published - self._reach, num), num_eligible
        if num_eligible < _LIST_BELOW * num:
            ends = self._ending(np.arange(low, published))
            while not len(ends):
                # Some window is eligible: a writer moved it on while the words were read.
                low, published, num_eligible = self._bounds()
                ends = self._ending(np.arange(low, published))
            return ends[rng.integers(0, len(ends), num)] - self._reach, num_eligible
        found: list[Array] = []
        missing = num
        while True:
            share = num_eligible / (published - low)
            ends = self._ending(rng.integers(low, published, int(_OVERSAMPLING * missing / share) + _EXTRA_DRAWS))
            found.append(ends[:missing])
            missing -= len(ends)
            if missing <= 0:
                return (found[0] if len(found) == 1 else np.concatenate(found)) - self._reach, num_eligible
            # The bounds are read anew: a writer may have replaced all that was eligible.
            low, published, num_eligible = self._bounds()

    def _bounds(self) -> tuple[int, int, int]:
        """Where ends may lie, from `low` to `published`, and how many windows are eligible: at least one."""
        ring = self._ring
        published = ring.published
        tail = max(ring.floor, published - ring.capacity)
        low = tail + self._reach
        num_eligible = published - low if self._count is None else self._count.value
        if num_eligible <= 0 or published <= low or published - tail < self._min_size:
            raise self._explain_nothing(self._window)
        return low, published, num_eligible

    def _ending(self, ids: Array) -> Array:
        """Those of `ids` at which a window ends."""
        return ids[ends_window(self._ring.words[self._ring.rows(ids)], self._window)]

    def _gather(self, starts: Array) -> list[Array]:
        return self._storage.gather(self._ring.rows(self.ids(starts)))

    def _stale(self, starts: Array) -> Array | None:
        """Positions that the writer may have touched, or None: the oldest start tells at once."""
        oldest = self._ring.oldest_untouched()
        if starts.min() >= oldest:
            return None
        return np.flatnonzero(starts < oldest)

    # Graph

    def _stale_in_graph(self, starts: tf.Tensor, records: Sequence[tf.Tensor]) -> tf.Tensor:
        """Which of the windows at `starts` a writer may have touched by the time that `records` were read."""
        with tf.control_dependencies(records), _uncompiled():
            return starts < self._ring.oldest_untouched_in_graph()

    def _draw_starts_in_graph(self, num: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        low, published, num_eligible = self._bounds_in_graph()
        if self._count is None:
            starts = tf.random.stateless_uniform([num], seed, low - self._reach, published - self._reach, tf.int64)
            return starts, num_eligible
        ends = tf.cond(
            num_eligible < _LIST_BELOW * num,
            lambda: self._list_ends_in_graph(num, seed, low, published),
            lambda: self._reject_in_graph(num, seed, low, published, num_eligible),
        )
        ends.set_shape([num])
        return ends - self._reach, num_eligible

    def _bounds_in_graph(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Where ends may lie, from `low` to `published`, and how many windows are eligible: at least one."""
        with _uncompiled():
            tail, published = self._ring.held_in_graph()
            low = tail + self._reach
            num_eligible = published - low if self._count is None else self._count.in_graph()
        nothing = (num_eligible <= 0) | (published <= low) | (published - tail < self._min_size)
        with tf.control_dependencies([tf.cond(nothing, self._raise_in_graph, lambda: tf.constant(False))]):
            return tf.identity(low), published, num_eligible

    def _reject_in_graph(
        self, num: int, seed: tf.Tensor, low: tf.Tensor, published: tf.Tensor, num_eligible: tf.Tensor
    ) -> tf.Tensor:
        def draw(seed: tf.Tensor, low: tf.Tensor, published: tf.Tensor, num_eligible: tf.Tensor) -> tf.Tensor:
            share = tf.cast(num_eligible, tf.float64) / tf.cast(published - low, tf.float64)
            num_candidates = tf.cast(_OVERSAMPLING * num / share, tf.int32) + _EXTRA_DRAWS
            candidates = tf.random.stateless_uniform(tf.reshape(num_candidates, [1]), seed, low, published, tf.int64)
            return tf.boolean_mask(candidates, self._ends_in_graph(candidates))

        def draw_more(round_number: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # The bounds are read anew: a writer may have replaced all that was eligible.
            fresh = draw(seed + tf.stack([tf.constant(0, tf.int64), round_number]), *self._bounds_in_graph())
            return round_number + _ROUND_SEED, tf.concat([found, fresh], 0)

        _, found = tf.while_loop(
            lambda round_number, found: tf.shape(found)[0] < num,
            draw_more,
            (tf.constant(_ROUND_SEED, tf.int64), draw(seed, low, published, num_eligible)),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
        )
        return found[:num]

    def _list_ends_in_graph(self, num: int, seed: tf.Tensor, low: tf.Tensor, published: tf.Tensor) -> tf.Tensor:
        def list_ends(low: tf.Tensor, published: tf.Tensor) -> tf.Tensor:
            candidates = tf.range(low, published)
            return tf.boolean_mask(candidates, self._ends_in_graph(candidates))

        # Some window is eligible: an empty list means that a writer moved it on while the words were read.
        ends = tf.while_loop(
            lambda ends: tf.shape(ends)[0] < 1,
            lambda ends: [list_ends(*self._bounds_in_graph()[:2])],
            [list_ends(low, published)],
            shape_invariants=[tf.TensorShape([None])],
        )[0]
        chosen = tf.random.stateless_uniform(
            [num], seed, tf.constant(0, tf.int64), tf.shape(ends, tf.int64)[0], tf.int64
        )
        return tf.gather(ends, chosen)

    def _ends_in_graph(self, ids: tf.Tensor) -> tf.Tensor:
        """Whether a window ends at each of these ids; bool, their shape."""
        with _uncompiled():
            words = self._ring.words_in_graph(ids)
        if self._window.num_steps == 1:
            return tf.equal(tf.bitwise.bitwise_and(words, tf.constant(1, tf.int64)), 0)
        return words >= 2 * (self._window.num_steps - 1)

    def _gather_records(self, starts: tf.Tensor) -> list[tf.Tensor]:
        ids = starts[:, None] + self.offsets if self._stacked else starts
        with _uncompiled():
            return self._storage.gather_records_in_graph(ids % self._ring.capacity)

    def _raise_in_graph(self) -> tf.Tensor:
        return call_weakly(self, RingSampler._raise_nothing, [], tf.bool)

    def _raise_nothing(self) -> Array:
        raise self._explain_nothing(self._window)


# Added to a seed for each further round; odd, so that the seeds of 2**64 rounds differ.
_ROUND_SEED = 0x632BE59BD9B4E019


def _uncompiled() -> AbstractContextManager[None]:
    """Keeps XLA's clustering off the ops made in it; each body of a loop or branch is a graph that needs its own."""
    return tf.xla.experimental.jit_scope(compile_ops=False)


def _where_rows(condition: tf.Tensor, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Rows of `new` where `condition` `[n]` holds, else of `old`."""
    return tf.where(tf.reshape(condition, [-1] + [1] * (new.shape.rank - 1)), new, old)
