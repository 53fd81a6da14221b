"""How `add_batch` and `add_sequence` take NumPy arrays, eager tensors and symbolic tensors alike."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from .base import Ids, Items
from .callbacks import call_weakly
from .nests import Array
from .spec import DataSpec, ItemChecker


class StepWriter(Protocol):
    """Writes checked leaves; what a backend brings."""

    def add_step(
        self, leaves: list[Array], end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """One frame a stream, leaves `[B, ...]`; returns ids int64 `[B]`.

        With `streams`, int64 `[n]` in ascending order, of these only: `n` stands for `B` everywhere.
        """

    def add_steps(
        self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """`T` frames a stream, leaves `[B, T, ...]`; returns ids int64 `[B, T]`; `streams` as in `add_step`."""


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
        # Whether a graph may have been made that adds.
        self.is_traced = False

    def add_batch(self, items: Items, end_of_episode: Any, priorities: Any, streams: Any = None) -> Ids:
        """One frame a stream, leaves `[B, ...]`; ids int64 `[B]`. With `streams` `[n]` of these, and `n` for `B`."""
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, streams, sequence=False)
        given = self._spec.flatten(items)
        as_tensor = isinstance(given[0], tf.Tensor)
        if streams is None:
            ids = self._writer.add_step(self._checker.check_leaves(given), end_of_episode, priorities)
        else:
            ids = self._add_step_of(given, end_of_episode, priorities, streams)
        return tf.constant(ids) if as_tensor else ids

    def add_sequence(self, items: Items, end_of_episode: Any, priorities: Any, streams: Any = None) -> Ids:
        """`T` frames a stream, leaves `[B, T, ...]`; ids int64 `[B, T]`. With `streams` as `add_batch`."""
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, streams, sequence=True)
        given = self._spec.flatten(items)
        as_tensor = isinstance(given[0], tf.Tensor)
        ids = self._add_steps(given, end_of_episode, priorities, streams)
        return tf.constant(ids) if as_tensor else ids

    def add_checked(
        self, leaves: list[Array], num_steps: int | None, ends: Any, priorities: Any, streams: Array | None
    ) -> Array:
        """Frames whose leaves were checked elsewhere, `[n, ...]` or with `num_steps` `[n, T, ...]`; ids int64.

        `streams` int64 `[n]` are whose frames they are; None: of all.
        """
        if num_steps is None:
            if streams is None:
                return self._writer.add_step(leaves, ends, priorities)
            return self._writer.add_step(leaves, ends, priorities, streams)
        if streams is None:
            return self._writer.add_steps(leaves, num_steps, ends, priorities)
        return self._writer.add_steps(leaves, num_steps, ends, priorities, streams)

    def _add_step_of(self, leaves: list[Any], end_of_episode: Any, priorities: Any, streams: Any) -> Array:
        chosen = check_streams(streams, self._batch_size)
        checked = self._checker.check_leaves(leaves, len(chosen))
        if len(chosen) == self._batch_size:
            return self._writer.add_step(checked, end_of_episode, priorities)
        if not len(chosen):
            return np.zeros(0, np.int64)
        return self._writer.add_step(checked, end_of_episode, priorities, chosen)

    def _add_steps(self, leaves: list[Any], end_of_episode: Any, priorities: Any, streams: Any) -> Array:
        if streams is None:
            checked, num_steps = self._checker.check_sequence_leaves(leaves)
            return self._writer.add_steps(checked, num_steps, end_of_episode, priorities)
        chosen = check_streams(streams, self._batch_size)
        checked, num_steps = self._checker.check_sequence_leaves(leaves, len(chosen))
        if len(chosen) == self._batch_size:
            return self._writer.add_steps(checked, num_steps, end_of_episode, priorities)
        if not len(chosen):
            return np.zeros((0, num_steps), np.int64)
        return self._writer.add_steps(checked, num_steps, end_of_episode, priorities, chosen)

    @tf.autograph.experimental.do_not_convert
    def _add_in_graph(
        self, items: Items, end_of_episode: Any, priorities: Any, streams: Any, *, sequence: bool
    ) -> tf.Tensor:
        given = (end_of_episode, priorities, streams)
        optional = [tf.convert_to_tensor(value) for value in given if value is not None]
        num_rows: int | None = self._batch_size
        if streams is not None:
            num_rows = optional[-1].shape[0] if optional[-1].shape.rank == 1 else None
        tensors = self._checker.trace(items, sequence=sequence, num_rows=num_rows)
        num_leaves, is_given = len(tensors), [value is not None for value in given]

        def write(adds: Adds, *arrays: Array) -> Array:
            leaves, rest = list(arrays[:num_leaves]), list(arrays[num_leaves:])
            ends, raw, chosen = (rest.pop(0) if is_there else None for is_there in is_given)
            if sequence:
                return adds._add_steps(leaves, ends, raw, chosen)
            if chosen is not None:
                return adds._add_step_of(leaves, ends, raw, chosen)
            return adds._writer.add_step(adds._checker.check_leaves(leaves), ends, raw)

        self.is_traced = True
        ids = call_weakly(self, write, [*tensors, *optional], tf.int64)
        ids.set_shape([num_rows, None] if sequence else [num_rows])
        return ids


def check_streams(streams: Any, batch_size: int) -> Array:
    """Numbers of streams, int64 `[n]`, in ascending order and each once.

    Raises:
      ValueError: they are none; the message says what was found.

    >>> check_streams([0, 3], 4)
    array([0, 3])
    >>> check_streams([3, 0], 4)
    Traceback (most recent call last):
    ...
    ValueError: streams: expected int [n], ascending, each of 0 to 3 at most once, got [3, 0].
    """
    given = np.asarray(streams.numpy() if isinstance(streams, tf.Tensor) else streams)
    if given.size == 0 and given.ndim == 1:
        return np.zeros(0, np.int64)
    right = given.ndim == 1 and given.dtype.kind in "iu"
    if right and (given[0] < 0 or given[-1] >= batch_size or not (given[1:] > given[:-1]).all()):
        right = False
    if not right:
        raise ValueError(
            f"streams: expected int [n], ascending, each of 0 to {batch_size - 1} at most once, got "
            f"{given.tolist() if given.size < 10 else f'{list(given.shape)} {given.dtype}'}."
        )
    return given.astype(np.int64, copy=False)
