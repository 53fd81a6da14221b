"""How items become frames of a Reverb table: checked, marked, packed, written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .base import Ids, Items
from .episode_ends import EpisodeMarks, EpisodeRule
from .nests import Array
from .priorities import check_priorities
from .reverb_layout import NO_ID, Layout
from .reverb_writer import ItemWriter
from .spec import DataSpec, ItemChecker


class StreamAdds:
    """The writing half of a buffer; any number of threads may call it.

    Everything that can be wrong with the items is found before anything is appended to any
    stream, so that a refused write leaves no frame.

    Args:
      spec: the spec of a frame.
      checker: checks items against it.
      rule: tells where episodes begin and end.
      layout: how frames lie in columns.
      batch_size: `B`.
      make_writer: connects to the table; called at the first write.
    """

    def __init__(
        self,
        spec: DataSpec,
        checker: ItemChecker,
        rule: EpisodeRule,
        layout: Layout,
        batch_size: int,
        make_writer: Callable[[], ItemWriter],
    ) -> None:
        self._spec = spec
        self._checker = checker
        self._rule = rule
        self._layout = layout
        self._batch_size = batch_size
        self._make_writer = make_writer
        self._writer: ItemWriter | None = None
        self._lock = threading.RLock()
        self._closed = False

    @property
    def has_written(self) -> bool:
        """Whether anything was written."""
        return self._writer is not None

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
        ids = self._add_steps(*self._checker.check_sequence_leaves(given), end_of_episode, priorities)
        return tf.constant(ids) if as_tensor else ids

    def end_stream(self, b: int | None) -> None:
        """No item goes past the newest frame of stream `b` (None: of any)."""
        with self._lock:
            if self._writer is not None:
                for stream in range(self._batch_size) if b is None else (b,):
                    self._writer.end_stream(stream)

    def flush(self) -> None:
        """Returns when the server has confirmed all that was added."""
        with self._lock:
            if self._writer is not None:
                self._writer.flush()

    def flushed_next_ids(self) -> Array | None:
        """Flushes; ids int64 `[B]` above all those given out so far, or None where there are none."""
        with self._lock:
            self.flush()
            return None if self._writer is None else self._writer.next_ids

    def restart(self, empty_the_table: Callable[[], None]) -> None:
        """Calls `empty_the_table` while nothing is written, pending, or half an item."""
        with self._lock:
            self.flush()
            self.end_stream(None)
            empty_the_table()

    def close(self) -> None:
        """Flushes, ends the connection and refuses further writes."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            writer, self._writer = self._writer, None
            if writer is not None:
                try:
                    writer.flush()
                finally:
                    writer.close()

    def explain_no_item(self) -> str:
        """Why these streams gave no item, with the numbers; empty where that is not the reason."""
        return "" if self._writer is None else self._writer.explain_no_item()

    def _add_step(self, leaves: list[Array], end_of_episode: Any, priorities: Any) -> Array:
        marks = self._rule.marks(leaves, end_of_episode)
        if priorities is not None:
            priorities = check_priorities(priorities, None, (self._batch_size,))
        with self._lock:
            return self._write(leaves, marks, priorities)

    def _add_steps(self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any) -> Array:
        shape = (self._batch_size, num_steps)
        if priorities is not None:
            priorities = check_priorities(priorities, None, shape)
        if num_steps == 0:
            return np.zeros(shape, np.int64)
        marks = self._rule.marks(leaves, end_of_episode)
        ids = np.empty(shape, np.int64)
        with self._lock:
            for t in range(num_steps):
                step = EpisodeMarks(*(None if flags is None else flags[:, t] for flags in marks))
                now = None if priorities is None else priorities[:, t]
                ids[:, t] = self._write([leaf[:, t] for leaf in leaves], step, now)
        return ids

    def _write(self, leaves: Sequence[Array], marks: EpisodeMarks, priorities: Array | None) -> Array:
        if self._closed:
            raise ValueError("this buffer is closed; build a new one.")
        if self._writer is None:
            self._writer = self._make_writer()
        ids = self._writer.claim_ids(marks)
        self._writer.write(self._layout.pack(leaves, ids), marks, priorities)
        return ids if self._layout.has_ids else np.full_like(ids, NO_ID)

    def _add_in_graph(self, items: Items, end_of_episode: Any, priorities: Any, *, sequence: bool) -> tf.Tensor:
        tensors = self._checker.trace(items, sequence=sequence)
        optional = [tf.convert_to_tensor(value) for value in (end_of_episode, priorities) if value is not None]

        def write(*arrays: Array) -> Array:
            leaves = list(arrays[: len(tensors)])
            rest = list(arrays[len(tensors) :])
            ends = rest.pop(0) if end_of_episode is not None else None
            raw = rest.pop(0) if priorities is not None else None
            if sequence:
                return self._add_steps(*self._checker.check_sequence_leaves(leaves), ends, raw)
            return self._add_step(self._checker.check_leaves(leaves), ends, raw)

        ids = tf.numpy_function(write, [*tensors, *optional], tf.int64, stateful=True)
        ids.set_shape([self._batch_size, None] if sequence else [self._batch_size])
        return ids
