"""Which windows of a ring to draw: uniformly over the eligible ones, while a writer writes.

Every draw is made twice in this file, in NumPy and in a graph, by the same steps: draw ids
among those that are published, and keep those at which a window starts (`windows.StartRule`). A
running count of the eligible ones says how many candidates that takes. What a writer overwrites meanwhile is
found by `ring_sampler.py` afterwards.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .base import EmptyBufferError
from .callbacks import call_weakly
from .frame_flags import FrameFlags
from .nests import Array
from .ring import FrameRing, StartCount
from .windows import StartRule, Window, num_cut_starts, start_rules

# Rejections are drawn ahead by this factor, so that one round nearly always suffices.
_OVERSAMPLING = 1.1
_EXTRA_DRAWS = 16

# With fewer eligible windows than this many a draw, listing them costs less than rejecting the others.
_LIST_BELOW = 4

# Added to a seed for each further round; odd, so that the seeds of 2**64 rounds differ.
ROUND_SEED = 0x632BE59BD9B4E019


class Extents(NamedTuple):
    """How much of each window is real, int64 `[n]` each: arrays, or tensors in a graph.

    Attributes:
      num_before: real frames before the drawn one.
      num_after: real frames from the drawn one on.
    """

    num_before: Array
    num_after: Array


class Starts(NamedTuple):
    """Where drawn windows start: arrays, or tensors in a graph.

    Attributes:
      keys: ids of the drawn frames, int64 `[n]`. In a graph -1 where the draw is to be made again.
      num_eligible: how many could be drawn.
      chances: of each draw, float64 `[n]` (float32 in a graph); None where all have the same.
      least_chance: that of the least probable start, `[]`, where weights need it.
    """

    keys: Array
    num_eligible: int
    chances: Array | None = None
    least_chance: Any = None


class Bounds(NamedTuple):
    """What is held at the moment of a draw: ids from `tail` to `published`, and how many windows are eligible.

    The three cursors are ints, or where streams go apart arrays `[B]` (`FrameRing.at`).

    `open_times` `[B]` is there only where unfinished episodes wait for their frames; where every frame is
    eligible `tail` is the first whose context is held.
    """

    tail: Any
    published: Any
    floor: Any
    num_eligible: int
    open_times: Array | None


class GraphBounds(NamedTuple):
    """The same as tensors."""

    tail: tf.Tensor
    published: tf.Tensor
    floor: tf.Tensor
    num_eligible: tf.Tensor
    open_times: tf.Tensor | None


class WindowStarts:
    """Draws where windows of one kind start.

    Args:
      ring: what is held.
      window: the kind of window.
      writer_lock: what a writer holds while it writes.
      explain_nothing: raises the error for a ring in which nothing, or too little, is eligible.
      min_size: frames that must be held before anything is drawn.
      final_observations: whether some frames may be final observations, which start no window.
      flags: of frames that must not be drawn. This class does not heed them: before the first frame is
        flagged another has to take its place (`replace`).
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
        flags: FrameFlags | None = None,
    ) -> None:
        self._flags = flags
        self._substitute: WindowStarts | None = None
        self._ring = ring
        self._window = window
        self._writer_lock = writer_lock
        self._explain_nothing = explain_nothing
        self._min_size = min_size
        self._streams = ring.batch_size
        self._joins = window.boundaries == "ignore"
        self._rules = start_rules(window)
        # A start lies at least this many ids before the newest frame.
        self._reach = min(rule.reach for rule in self._rules) * ring.batch_size
        # Windows that an unfinished episode's newest frame cuts short wait until it goes on or ends.
        self._waits = window.short == "pad" and not window.pad_unfinished and window.num_steps > 1
        # Frames whose context was evicted start no window: half of it would look like an episode's beginning.
        self._context = window.burn_in * ring.batch_size
        # Every frame that is far enough from the newest starts a window: nothing to reject, nothing to count.
        self._all_eligible = self._joins or (
            self._rules == (StartRule(0),) and not (final_observations or self._waits or self._context)
        )
        with writer_lock:
            self._counts = self._make_counts()
            if self._waits:
                ring.track_open_episodes()

    @property
    def draws_by_callback(self) -> bool:
        """Whether draws are Python even in a graph, and frames must be read before the writer's lock is let go."""
        return False

    def draw(self, rng: np.random.Generator, num: int, *, lock_held: bool = False) -> Starts:
        """`num` starts with replacement, each eligible one with the same chance.

        `lock_held` says that the caller holds the writer's lock.

        Raises:
          EmptyBufferError: fewer than `min_size` frames are held, or no window is eligible.
        """
        if self._substitute is not None:
            return self._substitute.draw(rng, num, lock_held=lock_held)
        bounds = self._bounds(lock_held)
        if self._all_eligible:
            low, high = self._index_range(bounds.tail, bounds.published, bounds.floor)
            return Starts(self._id_at(rng.integers(low, high, num), bounds.floor), bounds.num_eligible)
        if bounds.num_eligible < _LIST_BELOW * num:
            starts = self._all_starts(bounds)
            while not len(starts):
                # Some window is eligible: a writer moved it on while the words were read.
                bounds = self._bounds(lock_held)
                starts = self._all_starts(bounds)
            return Starts(starts[rng.integers(0, len(starts), num)], bounds.num_eligible)
        found: list[Array] = []
        missing = num
        while True:
            high = bounds.published - self._reach
            share = bounds.num_eligible / (high - bounds.tail)
            candidates = rng.integers(bounds.tail, high, int(_OVERSAMPLING * missing / share) + _EXTRA_DRAWS)
            starts = self._starting(candidates, bounds)
            found.append(starts[:missing])
            missing -= len(starts)
            if missing <= 0:
                return Starts(found[0] if len(found) == 1 else np.concatenate(found), bounds.num_eligible)
            # The bounds are read anew: a writer may have replaced all that was eligible.
            bounds = self._bounds(lock_held)

    def extents(self, starts: Array) -> Extents:
        """How much of the windows at `starts` `[n]` is real, as of now."""
        ring, window = self._ring, self._window
        published = ring.at(ring.published, starts)
        first = self._steps(starts)
        num_before = np.zeros_like(starts)
        if window.burn_in:
            num_held = (starts - ring.at(ring.tail, starts)) // self._streams
            # Negative where a writer has overwritten the frame itself meanwhile: found later, and drawn again.
            num_before = np.maximum(np.minimum(np.minimum(first, num_held), window.burn_in), 0)
        if window.short == "drop":
            return Extents(num_before, np.full_like(starts, window.num_steps))
        num_after = np.full_like(starts, window.num_steps)
        # Most windows are whole, which their last frame tells; only in the others all are looked at.
        last = starts + (window.num_steps - 1) * self._streams
        whole = (last < published) & (self._steps(last) - first == window.num_steps - 1)
        short = np.flatnonzero(~whole)
        if len(short):
            steps = np.arange(window.num_steps)
            ids = starts[short, None] + steps * self._streams
            below = published[short, None] if ring.apart else published
            same_episode = (self._steps(ids) - first[short, None] == steps) & (ids < below)
            num_after[short] = np.count_nonzero(same_episode, axis=1)
        return Extents(num_before, num_after)

    def replace(self, substitute: WindowStarts) -> None:
        """From now on `substitute` draws; graphs made before follow once `FrameFlags.tell_graphs` was called."""
        self._substitute = substitute

    @property
    def current(self) -> WindowStarts:
        """What draws now: its substitute, or itself."""
        return self if self._substitute is None else self._substitute.current

    def count(self) -> int:
        """Eligible windows now; the caller keeps writers away."""
        if self._substitute is not None:
            return self._substitute.count()
        return max(0, self._read_bounds().num_eligible)

    def _make_counts(self) -> list[StartCount]:
        """Running counts that tell how many windows are eligible."""
        return [] if self._all_eligible else [self._ring.count_starts(rule) for rule in self._rules]

    def _starting(self, ids: Array, bounds: Bounds) -> Array:
        """Those of `ids` at which a window starts."""
        starts = self._starting_with_any_context(ids, bounds)
        return starts[~self._lacks_context(starts, bounds)] if self._context else starts

    def _lacks_context(self, starts: Array, bounds: Bounds) -> Array:
        """Whether frames that belong before these starts were evicted."""
        num_held = (starts - self._ring.at(bounds.tail, starts)) // self._streams
        return np.asarray((num_held < self._window.burn_in) & (self._steps(starts) > num_held))

    def _starting_with_any_context(self, ids: Array, bounds: Bounds) -> Array:
        ring, streams = self._ring, self._streams
        held = []
        for rule in self._rules:
            deciding = ids + rule.reach * streams
            right = rule.holds(ring.words[ring.rows(deciding)])
            if rule.reach * streams > self._reach:
                right &= deciding < ring.at(bounds.published, ids)
            held.append(right)
        starts = functools.reduce(np.logical_or, held)
        if bounds.open_times is not None:
            whole = ids + (self._window.num_steps - 1) * streams < ring.at(bounds.published, ids)
            starts &= whole | (ids // streams < bounds.open_times[ids % streams])
        return ids[starts]

    def _all_starts(self, bounds: Bounds) -> Array:
        return self._starting(np.arange(bounds.tail, bounds.published - self._reach), bounds)

    def _steps(self, ids: Array) -> Array:
        """How many frames of the same episode come before each of these; across boundaries, of the stream."""
        ring = self._ring
        return (ring.joined_words(ids) if self._joins else ring.words[ring.rows(ids)]) >> 1

    def _bounds(self, lock_held: bool) -> Bounds:
        """The bounds now; at least one window is eligible.

        Raises:
          EmptyBufferError: fewer than `min_size` frames are held, or no window is eligible.
        """
        bounds = self._read_bounds()
        if self._is_nothing(bounds):
            # Counts and cursors may be of different moments while a writer writes: only without one they are sure.
            if lock_held:
                raise self._explain_nothing(self._window)
            with self._writer_lock:
                bounds = self._read_bounds()
            if self._is_nothing(bounds):
                raise self._explain_nothing(self._window)
        return bounds

    def _is_nothing(self, bounds: Bounds) -> bool:
        if bounds.published - bounds.tail < self._min_size or bounds.published - self._reach <= bounds.tail:
            return True
        return bounds.num_eligible <= 0

    def _read_cursors(self) -> Bounds:
        """The bounds without a count of what is eligible."""
        ring = self._ring
        # In this order: an episode that `open_times` does not tell as open is published to its end.
        open_times = ring.open_times() if self._waits else None
        published, floor = ring.published, ring.floor
        if ring.apart:
            tail = np.maximum(floor, published - ring.capacity)
            if self._all_eligible and self._context:
                tail = tail + self._context * (tail > floor)
            return Bounds(tail, published, floor, 0, open_times)
        tail = max(floor, published - ring.capacity)
        if self._all_eligible and self._context and tail > floor:
            tail += self._context
        return Bounds(tail, published, floor, 0, open_times)

    def _read_bounds(self) -> Bounds:
        streams = self._streams
        bounds = self._read_cursors()
        tail, published, floor, _, open_times = bounds
        if self._all_eligible:
            low, high = self._index_range(tail, published, floor)
            return bounds._replace(num_eligible=high - low)
        num_eligible = sum(count.value for count in self._counts)
        if open_times is not None:
            num_frames = published // streams - open_times
            gone = np.maximum(tail // streams - open_times, 0)
            num_eligible -= int(num_cut_starts(self._window, num_frames, gone).sum())
        bounds = bounds._replace(num_eligible=num_eligible)
        if self._context:
            oldest = np.arange(tail, max(tail, min(tail + self._context, published - self._reach)))
            starts = self._starting_with_any_context(oldest, bounds)
            num_eligible -= int(np.count_nonzero(self._lacks_context(starts, bounds)))
            bounds = bounds._replace(num_eligible=num_eligible)
        return bounds

    def _index_range(self, tail: Any, published: Any, floor: Any) -> tuple[Any, Any]:
        """Where nothing is to reject: the starts are `_id_at` of the ints from the first to the second.

        Ints or tensors; the first is not below the second where there is no start.
        """
        if self._window.stride == 1:
            return tail, published - self._reach
        streams, stride = self._streams, self._window.stride
        low = -(-((tail - floor) // streams) // stride)
        high = -(-((published - self._reach - floor) // streams) // stride)
        return low * streams, high * streams

    def _id_at(self, index: Any, floor: Any) -> Any:
        """The id of an eligible start, where every `stride`-th frame of a stream is one; an array or a tensor."""
        if self._window.stride == 1:
            return index
        return floor + index // self._streams * (self._window.stride * self._streams) + index % self._streams

    # Graph

    def draw_in_graph(self, num: int, seed: tf.Tensor) -> Starts:
        """`draw` as graph ops; `seed` is int64 `[2]`, and equal seeds give equal draws."""
        bounds, apart = self._look_in_graph()
        if self._flags is not None:
            with uncompiled():
                apart |= self._flags.heeded_in_graph()
        keys, num_eligible = tf.cond(
            apart,
            lambda: self._draw_by_callback(num, seed),
            lambda: self._draw_among_in_graph(num, seed, bounds),
        )
        keys.set_shape([num])
        return Starts(keys, num_eligible)

    def _draw_by_callback(self, num: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Keys and how many are eligible by `draw`, which raises where there is nothing."""

        def draw(starts: WindowStarts, seed: Array) -> tuple[Array, np.int64]:
            drawn = starts.draw(generator(seed), num)
            return drawn.keys, np.int64(drawn.num_eligible)

        keys, num_eligible = call_weakly(self, draw, [seed], [tf.int64, tf.int64])
        return tf.ensure_shape(keys, [num]), tf.ensure_shape(num_eligible, [])

    def _draw_among_in_graph(self, num: int, seed: tf.Tensor, bounds: GraphBounds) -> tuple[tf.Tensor, tf.Tensor]:
        if self._all_eligible:
            low, high = self._index_range(bounds.tail, bounds.published, bounds.floor)
            index = tf.random.stateless_uniform([num], seed, low, high, tf.int64)
            return self._id_at(index, bounds.floor), bounds.num_eligible
        keys = tf.cond(
            bounds.num_eligible < _LIST_BELOW * num,
            lambda: self._list_in_graph(num, seed, bounds),
            lambda: self._reject_in_graph(num, seed, bounds),
        )
        return keys, bounds.num_eligible

    def extents_in_graph(self, starts: tf.Tensor) -> Extents:
        """`extents` as graph ops."""
        window = self._window
        with uncompiled():
            # After the draw, so that what was published then is so still; before the words, which tell only of that.
            with tf.control_dependencies([starts]):
                tail, published, _ = self._ring.held_in_graph()
            with tf.control_dependencies([published]):
                first = self._steps_in_graph(starts)
                steps = tf.range(window.num_steps, dtype=tf.int64)
                ids = starts[:, None] + steps * self._streams
                following = self._steps_in_graph(ids) if window.short == "pad" else None
        num_before = tf.zeros_like(starts)
        if window.burn_in:
            num_held = (starts - self._ring.at(tail, starts)) // self._streams
            num_before = tf.maximum(tf.minimum(tf.minimum(first, num_held), window.burn_in), 0)
        if following is None:
            return Extents(num_before, tf.fill(starts.shape, tf.constant(window.num_steps, tf.int64)))
        below = self._ring.at(published, starts)
        same_episode = tf.equal(following - first[:, None], steps) & (
            ids < (below[:, None] if below.shape.rank else below)
        )
        return Extents(num_before, tf.reduce_sum(tf.cast(same_episode, tf.int64), axis=1))

    def _reject_in_graph(self, num: int, seed: tf.Tensor, bounds: GraphBounds) -> tf.Tensor:
        def draw(seed: tf.Tensor, bounds: GraphBounds) -> tf.Tensor:
            high = bounds.published - self._reach
            share = tf.cast(bounds.num_eligible, tf.float64) / tf.cast(high - bounds.tail, tf.float64)
            num_candidates = tf.cast(_OVERSAMPLING * num / share, tf.int32) + _EXTRA_DRAWS
            candidates = tf.random.stateless_uniform(tf.reshape(num_candidates, [1]), seed, bounds.tail, high, tf.int64)
            return self._starting_in_graph(candidates, bounds)

        def draw_more(round_number: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # The bounds are read anew: a writer may have replaced all that was eligible.
            fresh = draw(seed + tf.stack([tf.constant(0, tf.int64), round_number]), self._bounds_in_graph())
            return round_number + ROUND_SEED, tf.concat([found, fresh], 0)

        _, found = tf.while_loop(
            lambda round_number, found: tf.shape(found)[0] < num,
            draw_more,
            (tf.constant(ROUND_SEED, tf.int64), draw(seed, bounds)),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
        )
        return found[:num]

    def _list_in_graph(self, num: int, seed: tf.Tensor, bounds: GraphBounds) -> tf.Tensor:
        def list_starts(bounds: GraphBounds) -> tf.Tensor:
            return self._starting_in_graph(tf.range(bounds.tail, bounds.published - self._reach), bounds)

        # Some window is eligible: an empty list means that a writer moved it on while the words were read.
        starts = tf.while_loop(
            lambda starts: tf.shape(starts)[0] < 1,
            lambda starts: [list_starts(self._bounds_in_graph())],
            [list_starts(bounds)],
            shape_invariants=[tf.TensorShape([None])],
        )[0]
        chosen = tf.random.stateless_uniform(
            [num], seed, tf.constant(0, tf.int64), tf.shape(starts, tf.int64)[0], tf.int64
        )
        return tf.gather(starts, chosen)

    def _starting_in_graph(self, ids: tf.Tensor, bounds: GraphBounds) -> tf.Tensor:
        """Those of `ids` at which a window starts."""
        starts = self._starting_with_any_context_in_graph(ids, bounds)
        return tf.boolean_mask(starts, ~self._lacks_context_in_graph(starts, bounds)) if self._context else starts

    def _lacks_context_in_graph(self, starts: tf.Tensor, bounds: GraphBounds) -> tf.Tensor:
        num_held = (starts - self._ring.at(bounds.tail, starts)) // self._streams
        with uncompiled():
            steps = self._steps_in_graph(starts)
        return (num_held < self._window.burn_in) & (steps > num_held)

    def _starting_with_any_context_in_graph(self, ids: tf.Tensor, bounds: GraphBounds) -> tf.Tensor:
        return tf.boolean_mask(ids, self._decided_in_graph(ids, bounds))

    def _decided_in_graph(self, ids: tf.Tensor, bounds: GraphBounds) -> tf.Tensor:
        """Whether later frames' words say that a window starts at each of `ids`, whatever its context, bool `[n]`."""
        streams = self._streams
        held = []
        for rule in self._rules:
            deciding = ids + rule.reach * streams
            with uncompiled():
                right = _holds_in_graph(rule, self._ring.words_in_graph(deciding))
            if rule.reach * streams > self._reach:
                right &= deciding < self._ring.at(bounds.published, ids)
            held.append(right)
        starts = functools.reduce(tf.logical_or, held)
        if bounds.open_times is not None:
            whole = ids + (self._window.num_steps - 1) * streams < self._ring.at(bounds.published, ids)
            starts &= whole | (ids // streams < tf.gather(bounds.open_times, ids % streams))
        return starts

    def _steps_in_graph(self, ids: tf.Tensor) -> tf.Tensor:
        if self._joins:
            return (ids - self._ring.at(self._ring.held_in_graph()[2], ids)) // self._streams
        return tf.bitwise.right_shift(self._ring.words_in_graph(ids), tf.constant(1, tf.int64))

    def _cursors_in_graph(self) -> GraphBounds:
        """`_read_cursors` as graph ops."""
        with uncompiled():
            # In this order: an episode that `open_times` does not tell as open is published to its end.
            open_times = self._ring.open_times_in_graph() if self._waits else None
            with tf.control_dependencies([] if open_times is None else [open_times]):
                tail, published, floor = self._ring.held_in_graph()
            if self._all_eligible and self._context:
                tail += self._context * tf.cast(tail > floor, tf.int64)
        return GraphBounds(tail, published, floor, tf.constant(0, tf.int64), open_times)

    def _bounds_in_graph(self) -> GraphBounds:
        """`_bounds` as graph ops."""
        bounds, nothing = self._look_in_graph()
        checked = tf.cond(nothing, self._raise_in_graph, lambda: tf.constant(False))
        with tf.control_dependencies([checked]):
            # 1 where a count and the cursors were of different moments: the draw itself reads the bounds anew.
            return bounds._replace(tail=tf.identity(bounds.tail), num_eligible=tf.maximum(bounds.num_eligible, 1))

    def _look_in_graph(self) -> tuple[GraphBounds, tf.Tensor]:
        """The bounds, and whether they leave nothing to draw, bool `[]`."""
        tail, published, floor, _, open_times = self._cursors_in_graph()
        with uncompiled():
            if self._all_eligible:
                low, high = self._index_range(tail, published, floor)
                num_eligible = high - low
            else:
                num_eligible = tf.add_n([count.in_graph() for count in self._counts])
            if open_times is not None:
                num_eligible -= self._num_cut_in_graph(tail, published, open_times)
        if self._context and not self._all_eligible:
            bounds = GraphBounds(tail, published, floor, num_eligible, open_times)
            stop = tf.maximum(tail, tf.minimum(tail + self._context, published - self._reach))
            starts = self._starting_with_any_context_in_graph(tf.range(tail, stop), bounds)
            num_eligible -= tf.math.count_nonzero(self._lacks_context_in_graph(starts, bounds))
        nothing = published - tail < self._min_size
        nothing |= (num_eligible <= 0) | (published - self._reach <= tail)
        return GraphBounds(tail, published, floor, num_eligible, open_times), nothing

    def _num_cut_in_graph(self, tail: tf.Tensor, published: tf.Tensor, open_times: tf.Tensor) -> tf.Tensor:
        """`num_cut_starts` summed over the streams, int64 `[]`."""
        window, stride = self._window, self._window.stride

        def multiples(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
            return tf.maximum(tf.constant(0, tf.int64), -(-high // stride) - -(-low // stride))

        num_frames = published // self._streams - open_times
        gone = tf.maximum(tail // self._streams - open_times, 0)
        if window.num_needed == 1:
            padded = multiples(gone, num_frames)
        else:
            has_first = tf.cast(tf.equal(gone, 0) & (num_frames >= 1), tf.int64)
            padded = has_first + multiples(tf.maximum(gone, stride), num_frames - window.num_needed + 1)
        return tf.reduce_sum(padded - multiples(gone, num_frames - window.num_steps + 1))

    def _raise_in_graph(self) -> tf.Tensor:
        return call_weakly(self, type(self)._raise_nothing, [], tf.bool)

    def _raise_nothing(self) -> Array:
        self._bounds(lock_held=False)
        return np.array(True)


def generator(seed: Array) -> np.random.Generator:
    """The random numbers that follow from a graph's seed, int64 `[2]`."""
    return np.random.Generator(np.random.Philox(key=seed.view(np.uint64)))


def uncompiled() -> AbstractContextManager[None]:
    """Keeps XLA's clustering off the ops made in it; each body of a loop or branch is a graph that needs its own."""
    return tf.xla.experimental.jit_scope(compile_ops=False)


def _holds_in_graph(rule: StartRule, words: tf.Tensor) -> tf.Tensor:
    """`StartRule.holds` as graph ops."""
    if rule.only_first:
        return tf.equal(words, 2 * rule.reach)
    right = words >= 2 * (rule.reach + rule.first)
    if rule.reach == 0:
        even = tf.equal(tf.bitwise.bitwise_and(words, tf.constant(1, tf.int64)), 0)
        right = right & even if rule.first else even
    if rule.stride > 1:
        steps = tf.bitwise.right_shift(words, tf.constant(1, tf.int64)) - rule.reach
        right &= tf.equal(steps % rule.stride, 0)
    return right
