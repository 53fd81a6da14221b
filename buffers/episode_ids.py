"""TF-Agents' surface of explicit episode ids: who adds says which episode a frame goes to.

Its ids are ours: episodes have the ids 0, 1, 2, ... in the order in which they began, -1 stands for one that is
to begin, and episode `e` is at location `e % capacity`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .callbacks import call_weakly
from .episode_kinds import COMPLETED, FLAG_BITS
from .episode_marks import FrameMarker
from .episode_table import EpisodeTable
from .episode_writer import EpisodeWriter
from .nests import Array, Nest
from .priorities import check_keys
from .spec import DataSpec, ItemChecker
from .storage import FrameStorage

_TO_BEGIN = -1


class Episodes(NamedTuple):
    """Episodes taken out of a buffer, with TF-Agents' fields.

    Attributes:
      length: frames of each, int64 `[n]`.
      completed: whether each is complete, uint8 `[n]`.
      tensor_lists: nest of a frame's structure, of TensorFlow's tensor lists: variant `[n]`.
    """

    length: Any
    completed: Any
    tensor_lists: Any


class EpisodeIds:
    """Adds, extends and extracts by episode ids, NumPy arrays or tensors, in a graph or outside.

    Args:
      spec: the spec of a frame.
      marker: tells where episodes begin.
      table: the episodes.
      writer: writes what was checked.
      lock: what the writer holds while it writes.
      cast: convert input within its kind instead of refusing it.
    """

    def __init__(
        self,
        spec: DataSpec,
        marker: FrameMarker,
        table: EpisodeTable,
        writer: EpisodeWriter,
        lock: threading.Lock,
        *,
        cast: bool,
    ) -> None:
        self._spec = spec
        self._marker = marker
        self._table = table
        self._writer = writer
        self._lock = lock
        self._cast = cast
        # Whether a graph may have been made that uses this object.
        self.is_traced = False

    def create(self, num_episodes: Any) -> tf.Tensor:
        """Ids of episodes that are to begin."""
        if tf.is_tensor(num_episodes):
            if num_episodes.shape.rank != 0:
                raise ValueError(f"num_episodes must be a scalar, but saw shape: {num_episodes.shape}")
            return tf.fill([num_episodes], tf.constant(_TO_BEGIN, tf.int64))
        if num_episodes is None or num_episodes <= 0:
            return tf.constant(_TO_BEGIN, tf.int64)
        if num_episodes > self._table.capacity:
            raise ValueError(
                f"Buffer cannot create episode_ids when num_episodes {num_episodes} > capacity {self._table.capacity}."
            )
        return tf.fill([num_episodes], tf.constant(_TO_BEGIN, tf.int64))

    def valid_mask(self, episode_ids: Any) -> tf.Tensor:
        """Which of these episodes are held."""
        self.is_traced = self.is_traced or not tf.executing_eagerly()
        ids = tf.convert_to_tensor(episode_ids, tf.int64)
        oldest, next_id, _ = tf.unstack(self._table.cursors_in_graph())
        return (ids >= oldest) & (ids < next_id)

    def add_batch(self, items: Nest, episode_ids: Any) -> Any:
        """One frame for each episode, leaves `[n, ...]`; returns the updated ids, int64 `[n]`."""

        def write(surface: EpisodeIds, episode_ids: Array, *leaves: Array) -> Array:
            if episode_ids.ndim != 1:
                raise ValueError(f"episode_ids: expected [n] int64, got {list(episode_ids.shape)}.")
            checker = ItemChecker(surface._spec, len(episode_ids), cast=surface._cast)
            return surface._writer.add_by_id(checker.check_leaves(list(leaves)), check_keys(episode_ids))

        return self._call(write, items, episode_ids)

    def add_sequence(self, items: Nest, episode_id: Any) -> Any:
        """`T` frames for one episode, leaves `[T, ...]`; returns the updated id, int64 `[]`."""

        def write(surface: EpisodeIds, episode_id: Array, *leaves: Array) -> Array:
            if episode_id.ndim != 0:
                raise ValueError(f"episode_id: expected [] int64, got {list(episode_id.shape)}.")
            checked = surface._check_run(list(leaves))
            return np.array(surface._writer.add_run_by_id(checked, int(check_keys(episode_id))), np.int64)

        return self._call(write, items, episode_id)

    def add_whole(self, items: Nest, metadata: Mapping[str, Any]) -> int:
        """A whole episode, leaves `[L, ...]`; returns its id."""
        leaves = self._check_run(self._spec.flatten(items))
        if not len(leaves[0]):
            raise ValueError("an episode needs at least one frame, got [0, ...].")
        episode = self._writer.add_run_by_id(leaves, _TO_BEGIN, whole=True)
        if metadata:
            with self._lock:
                if self._table.holds(episode):
                    self._table.set_metadata(episode, dict(metadata))
        return episode

    def extend(self, episode_ids: Any, indices: Any, episodes: Any) -> tf.Tensor:
        """Appends each of `episodes` to the episode at its index; returns the updated ids."""
        ids = np.asarray(tf.convert_to_tensor(episode_ids)).astype(np.int64)
        indices = np.asarray(indices, np.int64)
        leaves = [
            self._check_run(
                [
                    tf.raw_ops.TensorListStack(
                        input_handle=lists[row],
                        element_shape=tf.constant(field.shape, tf.int32),
                        element_dtype=field.dtype,
                    ).numpy()
                    for field, lists in zip(self._spec.fields, self._spec.flatten(episodes.tensor_lists), strict=True)
                ]
            )
            for row in range(len(indices))
        ]
        if self._marker.begin_episode_fn is not None:
            begins = np.broadcast_to(np.asarray(self._marker.begin_episode_fn(episodes), bool), indices.shape)
        else:
            marks = [self._marker.marks(run).begins for run in leaves]
            begins = np.array([mark is not None and len(mark) > 0 and bool(mark[0]) for mark in marks], bool)
        completed = np.asarray(episodes.completed).astype(bool)
        ids[indices] = self._writer.extend_by_id(leaves, ids[indices], begins, completed)
        return tf.constant(ids)

    def extract(self, storage: FrameStorage, locations: Any, *, clear_data: bool) -> Episodes:
        """The episodes at these locations; the lock is held."""
        table = self._table
        given = check_keys(locations)
        if given.ndim != 1 or (given < 0).any() or (given >= table.capacity).any():
            raise ValueError(f"locations: expected [n] from 0 to {table.capacity - 1}, got {given.tolist()}.")
        newest = table.next_id - 1
        episodes = newest - (newest - given) % table.capacity
        held = [episode if table.holds(episode) else None for episode in episodes.tolist()]
        states = [0 if episode is None else int(table.states[table.slot(episode)]) for episode in held]
        lists: list[list[tf.Tensor]] = [[] for _ in self._spec.fields]
        for episode, state in zip(held, states, strict=True):
            rows = np.zeros(0, np.int64) if episode is None or not state else table.rows_of(episode)
            tensors = storage.to_tensors(storage.gather(rows)) if len(rows) else None
            for index, field in enumerate(self._spec.fields):
                tensor = tf.zeros((0, *field.shape), field.dtype) if tensors is None else tensors[index]
                handle = tf.raw_ops.TensorListFromTensor(
                    tensor=tensor, element_shape=tf.constant(field.shape, tf.int32)
                )
                lists[index].append(handle)
        if clear_data:
            for episode in held:
                if episode is not None:
                    table.take_out(episode)
        return Episodes(
            tf.constant([state >> FLAG_BITS for state in states], tf.int64),
            tf.constant([state & COMPLETED for state in states], tf.uint8),
            self._spec.pack([tf.stack(handles) for handles in lists]),
        )

    def _check_run(self, leaves: list[Any]) -> list[Array]:
        """Leaves `[T, ...]` of one episode, checked; the first tells `T`."""
        shape = np.shape(leaves[0])
        num_steps = int(shape[0]) if len(shape) > len(self._spec.fields[0].shape) else 1
        return ItemChecker(self._spec, num_steps, cast=self._cast).check_leaves(leaves)

    @tf.autograph.experimental.do_not_convert
    def _call(self, write: Any, items: Nest, ids: Any) -> Any:
        """`write(self, ids, *leaves)`, at once or as part of a graph."""
        leaves = self._spec.flatten(items)
        if tf.executing_eagerly():
            as_tensor = isinstance(ids, tf.Tensor | tf.Variable)
            written = write(self, ids.numpy() if as_tensor else check_keys(ids), *leaves)
            return tf.constant(written) if as_tensor else written
        self.is_traced = True
        ids = tf.convert_to_tensor(ids)
        tensors = []
        for field, leaf in zip(self._spec.fields, leaves, strict=True):
            tensor = tf.convert_to_tensor(leaf)
            if tensor.dtype != field.dtype and not self._cast:
                raise ValueError(f"field {field.path!r}: expected {field.dtype.name}, got {tensor.dtype.name}.")
            tensors.append(tensor)
        written = call_weakly(self, write, [ids, *tensors], tf.int64)
        written.set_shape(ids.shape)
        return written


class StatefulEpisodicReplayBuffer(tf.Module):
    """Keeps the ids of the episodes that are being written, for drivers that only hand over items.

    TF-Agents' wrapper. An `EpisodicReplayBuffer` with `batch_size` needs none: its streams keep their own. In a
    `tf.train.Checkpoint` it is saved together with its buffer.

    Args:
      replay_buffer: an `EpisodicReplayBuffer`.
      num_episodes: episodes written side by side; None: one, whose id is a scalar, for `add_sequence`.

    Raises:
      TypeError: `replay_buffer` has no surface of episode ids.
      ValueError: `num_episodes` is above its capacity.
    """

    def __init__(self, replay_buffer: Any, num_episodes: int | None = None) -> None:
        if not callable(getattr(replay_buffer, "create_episode_ids", None)):
            raise TypeError(f"Expected an EpisodicReplayBuffer, saw {replay_buffer}")
        super().__init__()
        self._replay_buffer = replay_buffer
        self._episode_ids = tf.Variable(replay_buffer.create_episode_ids(num_episodes), trainable=False)

    @property
    def episode_ids(self) -> tf.Variable:
        """The ids, int64 `[num_episodes]` or `[]`."""
        return self._episode_ids

    @property
    def data_spec(self) -> Nest:
        """The buffer's."""
        return self._replay_buffer.data_spec

    @property
    def capacity(self) -> int:
        """The buffer's."""
        return int(self._replay_buffer.capacity)

    def add_batch(self, items: Nest) -> tf.Tensor:
        """One frame for each episode, leaves `[num_episodes, ...]`; returns the updated ids."""
        return self._assign(self._replay_buffer.add_batch(items, self._episode_ids))

    def add_sequence(self, items: Nest) -> tf.Tensor:
        """`T` frames for the episode, leaves `[T, ...]`; returns its updated id."""
        return self._assign(self._replay_buffer.add_sequence(items, self._episode_ids))

    def extend_episodes(self, episode_ids_indices: Any, episodes: Any) -> tf.Tensor:
        """`EpisodicReplayBuffer.extend_episodes` with the ids kept here."""
        return self._assign(self._replay_buffer.extend_episodes(self._episode_ids, episode_ids_indices, episodes))

    def get_next(
        self, sample_batch_size: int | None = None, num_steps: int | None = None, time_stacked: bool = True
    ) -> Any:
        """The buffer's `get_next`."""
        return self._replay_buffer.get_next(sample_batch_size, num_steps, time_stacked)

    def as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        num_parallel_calls: int | None = None,
        sequence_preprocess_fn: Any = None,
        single_deterministic_pass: bool = False,
    ) -> tf.data.Dataset:
        """The buffer's `as_dataset`."""
        return self._replay_buffer.as_dataset(
            sample_batch_size, num_steps, num_parallel_calls, sequence_preprocess_fn, single_deterministic_pass
        )

    def num_frames(self) -> tf.Tensor:
        """The buffer's `num_frames`."""
        return self._replay_buffer.num_frames()

    def gather_all(self) -> Nest:
        """The buffer's `gather_all`."""
        return self._replay_buffer.gather_all()

    def clear(self) -> None:
        """Empties the buffer; the episodes that were being written are gone, and new ones begin."""
        self._replay_buffer.clear()
        self._episode_ids.assign(tf.fill(self._episode_ids.shape, tf.constant(_TO_BEGIN, tf.int64)))

    def _assign(self, episode_ids: tf.Tensor) -> tf.Tensor:
        self._episode_ids.assign(episode_ids)
        return episode_ids
