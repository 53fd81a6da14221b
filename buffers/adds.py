"""How `add_batch` and `add_sequence` take NumPy arrays, eager tensors and symbolic tensors alike."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from .base import Ids, Items
from .callbacks import call_weakly
from .nests import Array
from .spec import DataSpec, ItemChecker


class StepWriter(Protocol):
    """Writes checked leaves; what a backend brings."""

    def add_step(self, leaves: list[Array], end_of_episode: Any, priorities: Any) -> Array:
        """One frame a stream, leaves `[B, ...]`; returns ids int64 `[B]`."""

    def add_steps(self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any) -> Array:
        """`T` frames a stream, leaves `[B, T, ...]`; returns ids int64 `[B, T]`."""


class Adds:
    """Checks items before the writer sees them; ids come back as a tensor where the items are tensors.

    Args:
      spec: the spec of a frame.
      checker: checks items against it.
      batch_size: `B`.
      writer: writes what was checked.
    """

    def __init__(self, spec: DataSpec, checker: ItemChecker, batch_size: int, writer: StepWriter) -> None:
        self._spec = spec
        self._checker = checker
        self._batch_size = batch_size
        self._writer = writer

    def add_batch(self, items: Items, end_of_episode: Any, priorities: Any) -> Ids:
        """One frame a stream, leaves `[B, ...]`; ids int64 `[B]`."""
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, sequence=False)
        given = self._spec.flatten(items)
        as_tensor = isinstance(given[0], tf.Tensor)
        ids = self._writer.add_step(self._checker.check_leaves(given), end_of_episode, priorities)
        return tf.constant(ids) if as_tensor else ids

    def add_sequence(self, items: Items, end_of_episode: Any, priorities: Any) -> Ids:
        """`T` frames a stream, leaves `[B, T, ...]`; ids int64 `[B, T]`."""
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, sequence=True)
        given = self._spec.flatten(items)
        as_tensor = isinstance(given[0], tf.Tensor)
        leaves, num_steps = self._checker.check_sequence_leaves(given)
        ids = self._writer.add_steps(leaves, num_steps, end_of_episode, priorities)
        return tf.constant(ids) if as_tensor else ids

    @tf.autograph.experimental.do_not_convert
    def _add_in_graph(self, items: Items, end_of_episode: Any, priorities: Any, *, sequence: bool) -> tf.Tensor:
        tensors = self._checker.trace(items, sequence=sequence)
        optional = [tf.convert_to_tensor(value) for value in (end_of_episode, priorities) if value is not None]
        num_leaves, has_ends, has_priorities = len(tensors), end_of_episode is not None, priorities is not None

        def write(adds: Adds, *arrays: Array) -> Array:
            leaves, rest = list(arrays[:num_leaves]), list(arrays[num_leaves:])
            ends = rest.pop(0) if has_ends else None
            raw = rest.pop(0) if has_priorities else None
            if sequence:
                return adds._writer.add_steps(*adds._checker.check_sequence_leaves(leaves), ends, raw)
            return adds._writer.add_step(adds._checker.check_leaves(leaves), ends, raw)

        ids = call_weakly(self, write, [*tensors, *optional], tf.int64)
        ids.set_shape([self._batch_size, None] if sequence else [self._batch_size])
        return ids
