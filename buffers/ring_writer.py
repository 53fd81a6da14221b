"""How items become frames of a ring: checked, marked, written, published."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import tensorflow as tf

from .base import Ids, Items
from .callbacks import call_weakly
from .episode_ends import EpisodeRule
from .nests import Array
from .priorities import check_priorities
from .ring import FrameRing
from .spec import DataSpec, ItemChecker
from .storage import FrameStorage
from .usage import Usage


class RingWriter:
    """Writes into a ring; any number of threads may call it.

    Everything that can be wrong with the items is found before the lock is taken, so that a
    refused write leaves no frame and moves no cursor.

    Args:
      spec: the spec of a frame.
      checker: checks items against it.
      rule: tells where episodes begin and end.
      ring: ids and cursors.
      storage: the frames' memory.
      usage: told what is overwritten.
      lock: held while the ring changes.
    """

    def __init__(
        self,
        spec: DataSpec,
        checker: ItemChecker,
        rule: EpisodeRule,
        ring: FrameRing,
        storage: FrameStorage,
        usage: Usage,
        lock: threading.Lock,
    ) -> None:
        self._spec = spec
        self._checker = checker
        self._rule = rule
        self._ring = ring
        self._storage = storage
        self._usage = usage
        self._lock = lock
        self._closed = False

    def add_batch(self, items: Items, end_of_episode: Any, priorities: Any) -> Ids:
        """One frame a stream, leaves `[B, ...]`; ids int64 `[B]`, a tensor where the items are tensors."""
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, sequence=False)
        given = self._spec.flatten(items)
        as_tensor = isinstance(given[0], tf.Tensor)
        ids = self._add_step(self._checker.check_leaves(given), end_of_episode, priorities)
        return tf.constant(ids) if as_tensor else ids

    def add_sequence(self, items: Items, end_of_episode: Any, priorities: Any) -> Ids:
        """`T` frames a stream, leaves `[B, T, ...]`; ids int64 `[B, T]`, a tensor where the items are tensors."""
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, sequence=True)
        given = self._spec.flatten(items)
        as_tensor = isinstance(given[0], tf.Tensor)
        leaves, num_steps = self._checker.check_sequence_leaves(given)
        ids = self._add_steps(leaves, num_steps, end_of_episode, priorities)
        return tf.constant(ids) if as_tensor else ids

    def close(self) -> None:
        """Refuses further writes."""
        self._closed = True

    def _add_step(self, leaves: list[Array], end_of_episode: Any, priorities: Any) -> Array:
        marks = self._rule.marks(leaves, end_of_episode)
        if priorities is not None:
            check_priorities(priorities, None, (self._ring.batch_size,))
        ring = self._ring
        with self._lock:
            self._check_open()
            first = ring.published
            words, open_steps = ring.next_step_words(marks)
            try:
                self._storage.write(self._claim(words, open_steps), leaves)
                ring.publish()
            except BaseException:  # Ctrl-C too: no half-written frame may ever be read
                ring.abandon()
                raise
        return np.arange(first, first + ring.batch_size)

    def _add_steps(self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any) -> Array:
        ring, streams = self._ring, self._ring.batch_size
        if priorities is not None:
            check_priorities(priorities, None, (streams, num_steps))
        if num_steps == 0:
            return np.zeros((streams, 0), np.int64)
        marks = self._rule.marks(leaves, end_of_episode)
        with self._lock:
            self._check_open()
            first = ring.published
            words, open_steps = ring.next_words(marks, num_steps)
            done = 0
            while done < num_steps:
                num = ring.contiguous_steps(num_steps - done)
                is_last = done + num == num_steps
                chunk = words[:, done : done + num].T.reshape(-1)
                try:
                    rows = self._claim(chunk, open_steps if is_last else None)
                    self._storage.write_sequence(rows, [leaf[:, done : done + num] for leaf in leaves], streams)
                    ring.publish()
                except BaseException:
                    ring.abandon()
                    raise
                done += num
        return np.arange(first, first + num_steps * streams).reshape(num_steps, streams).T

    def _claim(self, words: Array, open_steps: Array | None) -> slice:
        num_over = self._ring.num_frames + len(words) - self._ring.capacity
        rows = self._ring.reserve(words, open_steps)
        self._usage.count_overwritten(rows, max(0, num_over))
        return rows

    @tf.autograph.experimental.do_not_convert
    def _add_in_graph(self, items: Items, end_of_episode: Any, priorities: Any, *, sequence: bool) -> tf.Tensor:
        tensors = self._checker.trace(items, sequence=sequence)
        optional = [tf.convert_to_tensor(value) for value in (end_of_episode, priorities) if value is not None]

        num_leaves, has_ends, has_priorities = len(tensors), end_of_episode is not None, priorities is not None

        def write(writer: RingWriter, *arrays: Array) -> Array:
            leaves, rest = list(arrays[:num_leaves]), list(arrays[num_leaves:])
            ends = rest.pop(0) if has_ends else None
            raw = rest.pop(0) if has_priorities else None
            if sequence:
                return writer._add_steps(*writer._checker.check_sequence_leaves(leaves), ends, raw)
            return writer._add_step(writer._checker.check_leaves(leaves), ends, raw)

        ids = call_weakly(self, write, [*tensors, *optional], tf.int64)
        ids.set_shape([self._ring.batch_size, None] if sequence else [self._ring.batch_size])
        return ids

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this buffer is closed; build a new one.")
