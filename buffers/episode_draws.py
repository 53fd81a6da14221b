"""Which windows or episodes to draw: by the law of a kind, while a writer writes.

A draw picks candidates, frames of the pages in use or episodes, and keeps those that are samples; a running
count of the kind's weights says how many candidates that takes. Where they are too few, episodes are listed instead.
What a writer evicts meanwhile is found by `episode_sampler.py` afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from .base import EmptyBufferError
from .episode_kinds import FLAG_BITS, Kind
from .episode_pages import STEP_BITS, STEP_MASK
from .episode_table import EpisodeTable
from .nests import Array
from .ring_starts import uncompiled

# Rejections are drawn ahead by this factor, so that one round nearly always suffices.
_OVERSAMPLING = 1.1
_EXTRA_DRAWS = 16
# In a graph what falls short is drawn anew outside of it, so that it is to happen still less often.
_OVERSAMPLING_IN_GRAPH = 1.15
_EXTRA_DRAWS_IN_GRAPH = 64

# With a smaller share of samples among the candidates than one of so many, listing the episodes costs less.
_CANDIDATES_A_DRAW = 16

# After so many rounds that found too few a draw lists, and stops the writer for it.
_ROUNDS = 8


class Keys(NamedTuple):
    """What was drawn: arrays `[n]`, or tensors in a graph.

    Attributes:
      keys: ids of the drawn frames (of an episode: its first), int64.
      chances: of each draw, float32.
    """

    keys: Array
    chances: Array


class EpisodeDraws:
    """Draws keys of one kind.

    Args:
      table: what is held.
      kind: what is drawn.
      lock: what a writer holds while it writes.
      explain_nothing: the error for a buffer in which nothing, or too little, can be drawn.
      min_size: frames that must be held before anything is drawn.
      final_observations: whether some frames may be final observations, which start no window.
    """

    def __init__(
        self,
        table: EpisodeTable,
        kind: Kind,
        lock: threading.Lock,
        explain_nothing: Callable[[Kind], EmptyBufferError],
        *,
        min_size: int,
        final_observations: bool,
    ) -> None:
        self._table = table
        self.kind = kind
        self._lock = lock
        self._explain_nothing = explain_nothing
        self._min_size = min_size
        window = kind.window
        self._stride = 1 if window is None else window.stride
        single = window is not None and window.num_steps == 1 and kind.draw == "windows" and not kind.completed_only
        # Frames before the one that tells alone, by its number, that a window starts there.
        self._reach: int | None = None
        if kind.only_by_step and window is not None:
            self._reach = window.num_steps - 1
        elif single and not final_observations:
            self._reach = 0
        with lock:
            self._count = table.count(kind)

    def draw(self, rng: np.random.Generator, num: int, *, lock_held: bool = False) -> Keys:
        """`num` draws with replacement; `lock_held` says that the caller holds the writer's lock.

        Raises:
          EmptyBufferError: fewer than `min_size` frames are held, or there is nothing of this kind.
        """
        table, missing = self._table, num
        found: list[Keys] = []
        for _ in range(_ROUNDS):
            total = self._count.value
            pool = table.pages.num_used * table.pages.page_rows
            if not self.kind.by_frame:
                pool = table.next_id - table.oldest
            if total * _CANDIDATES_A_DRAW < pool or total <= 0 or pool <= 0 or table.num_frames < self._min_size:
                break
            num_candidates = int(_OVERSAMPLING * missing * pool / total) + _EXTRA_DRAWS
            if self.kind.by_frame:
                some = self._from_rows(rng, num_candidates, total)
            else:
                some = self._from_episodes(rng, num_candidates, total)
            missing -= len(some.keys)
            if missing <= 0:
                if not found:
                    return Keys(some.keys[:num], some.chances[:num])
                found.append(some)
                return Keys(*(np.concatenate(parts)[:num] for parts in zip(*found, strict=True)))
            found.append(some)
        return self._list(rng, num, lock_held)

    def _from_rows(self, rng: np.random.Generator, num: int, total: int) -> Keys:
        table, stride = self._table, self._stride
        tags = table.pages.tags.take(table.pages.candidates(rng, num))
        if self._reach is not None:
            steps = tags & STEP_MASK
            good = steps >= self._reach if self._reach else tags > 0
            if stride > 1:
                good &= (steps - self._reach) % stride == 0
            keys = tags[good]
            keys -= self._reach
            return Keys(keys, np.full(len(keys), 1 / total, np.float32))
        # The episode of a row without a frame is any: it is left out below.
        states = table.states.take((tags >> STEP_BITS) % table.capacity)
        nums, steps = self.kind.num_starts(states), tags & STEP_MASK
        good = tags > 0
        if self.kind.draw == "windows":
            good &= steps < nums * stride
            if stride > 1:
                good &= steps % stride == 0
            keys = tags[good]
            return Keys(keys, np.full(len(keys), 1 / total, np.float32))
        good &= nums > 0
        first, states, nums = (tags - steps)[good], states[good], nums[good]
        return self._within(rng, first, states >> FLAG_BITS, nums, total)

    def _from_episodes(self, rng: np.random.Generator, num: int, total: int) -> Keys:
        table = self._table
        episodes = rng.integers(table.oldest, table.next_id, num)
        states = table.states_of(episodes)
        nums = self.kind.num_starts(states)
        good = nums > 0
        nums = nums[good]
        return self._within(rng, (episodes[good] + 1) << STEP_BITS, np.ones_like(nums), nums, total)

    def _within(self, rng: np.random.Generator, first: Array, weights: Array, nums: Array, total: int) -> Keys:
        """Draws one of its samples in each of these episodes, drawn with the chance weight / total."""
        if self.kind.window is None:
            return Keys(first, (weights / total).astype(np.float32))
        keys = first + rng.integers(0, nums) * self._stride if len(nums) else first
        return Keys(keys, (weights / (total * nums)).astype(np.float32))

    def _list(self, rng: np.random.Generator, num: int, lock_held: bool) -> Keys:
        """`draw` by listing the episodes."""
        if lock_held:
            return self._list_held(rng, num)
        with self._lock:
            return self._list_held(rng, num)

    def _list_held(self, rng: np.random.Generator, num: int) -> Keys:
        table, kind = self._table, self.kind
        episodes = table.ids()
        states = table.states_of(episodes)
        ends = np.cumsum(kind.weights(states))
        total = int(ends[-1]) if len(ends) else 0
        if total == 0 or table.num_frames < self._min_size:
            raise self._explain_nothing(kind)
        drawn = rng.integers(0, total, num)
        index = np.searchsorted(ends, drawn, "right")
        states, first = states[index], (episodes[index] + 1) << STEP_BITS
        nums = kind.num_starts(states)
        if kind.draw == "windows":
            keys = first + (drawn - (ends[index] - nums)) * self._stride
            return Keys(keys, np.full(num, 1 / total, np.float32))
        weights = states >> FLAG_BITS if kind.draw == "length" else np.ones_like(states)
        return self._within(rng, first, weights, nums, total)

    # Graph

    def draw_in_graph(self, num: int, seed: tf.Tensor) -> tuple[Keys, tf.Tensor]:
        """`draw` as graph ops, and whether it came to `num`; if not, what is returned means nothing."""
        table, pages = self._table, self._table.pages
        with uncompiled():
            total = self._count.in_graph()
            cursors = table.cursors_in_graph()
            oldest, next_id, num_frames = tf.unstack(cursors)
            pool = pages.num_candidates_in_graph() if self.kind.by_frame else next_id - oldest
        possible = (total > 0) & (pool > 0) & (num_frames >= self._min_size) & (total * _CANDIDATES_A_DRAW >= pool)
        total, pool = tf.maximum(total, 1), tf.maximum(pool, 1)
        wanted = _OVERSAMPLING_IN_GRAPH * num * tf.cast(pool, tf.float64) / tf.cast(total, tf.float64)
        num_candidates = tf.where(possible, tf.cast(wanted, tf.int32) + _EXTRA_DRAWS_IN_GRAPH, 1)
        if self.kind.by_frame:
            with uncompiled():
                tags = pages.tags_in_graph(pages.candidates_in_graph(num_candidates, pool, seed))
            drawn = self._from_tags_in_graph(tags, total, seed)
        else:
            shape = tf.reshape(num_candidates, [1])
            episodes = tf.random.stateless_uniform(shape, seed, oldest, tf.maximum(next_id, oldest + 1), tf.int64)
            drawn = self._from_episodes_in_graph(episodes, total, seed)
        return Keys(drawn.keys[:num], drawn.chances[:num]), possible & (tf.shape(drawn.keys)[0] >= num)

    def _from_tags_in_graph(self, tags: tf.Tensor, total: tf.Tensor, seed: tf.Tensor) -> Keys:
        stride = self._stride
        steps = tf.bitwise.bitwise_and(tags, tf.constant(STEP_MASK, tf.int64))
        if self._reach is not None:
            good = steps >= self._reach if self._reach else tags > 0
            if stride > 1:
                good &= tf.equal((steps - self._reach) % stride, 0)
            keys = tf.boolean_mask(tags, good) - self._reach
            return Keys(keys, _constant_chances(keys, total))
        states = self._states_in_graph(tags)
        nums = self.kind.num_starts(states)
        good = tags > 0
        if self.kind.draw == "windows":
            good &= steps < nums * stride
            if stride > 1:
                good &= tf.equal(steps % stride, 0)
            keys = tf.boolean_mask(tags, good)
            return Keys(keys, _constant_chances(keys, total))
        good &= nums > 0
        first, states, nums = (tf.boolean_mask(tensor, good) for tensor in (tags - steps, states, nums))
        return self._within_in_graph(first, states // (1 << FLAG_BITS), nums, total, seed)

    def _from_episodes_in_graph(self, episodes: tf.Tensor, total: tf.Tensor, seed: tf.Tensor) -> Keys:
        first = (episodes + 1) * (1 << STEP_BITS)
        nums = self.kind.num_starts(self._states_in_graph(first))
        first, nums = tf.boolean_mask(first, nums > 0), tf.boolean_mask(nums, nums > 0)
        return self._within_in_graph(first, tf.ones_like(nums), nums, total, seed)

    def _within_in_graph(
        self, first: tf.Tensor, weights: tf.Tensor, nums: tf.Tensor, total: tf.Tensor, seed: tf.Tensor
    ) -> Keys:
        weights = tf.cast(weights, tf.float32)
        if self.kind.window is None:
            return Keys(first, weights / tf.cast(total, tf.float32))
        # Another stream of numbers than the candidates'.
        seed = tf.bitwise.bitwise_xor(seed, tf.constant(0x632BE59BD9B4E019, tf.int64))
        offsets = tf.random.stateless_uniform(tf.shape(nums), seed, None, None, tf.int64)
        offsets = tf.math.floormod(offsets, nums)  # off by less than one part in 2**35
        keys = first + offsets * self._stride
        return Keys(keys, weights / (tf.cast(total, tf.float32) * tf.cast(nums, tf.float32)))

    def _states_in_graph(self, ids: tf.Tensor) -> tf.Tensor:
        slots = tf.bitwise.right_shift(ids, tf.constant(STEP_BITS, tf.int64)) % self._table.capacity
        with uncompiled():
            return self._table.states_in_graph(slots)


def _constant_chances(keys: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    return tf.fill(tf.shape(keys), 1.0 / tf.cast(total, tf.float32))
