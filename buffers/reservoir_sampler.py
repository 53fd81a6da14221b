"""Reads a reservoir's frames while a writer writes, and draws again what changed meanwhile.

Draw rows, gather their ids, the frames, and the ids again (`reservoir_rows.py` says why that is enough). A graph that
finds a row that changed leaves the batch to NumPy, which stops the writer if it has to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .base import EmptyBufferError
from .callbacks import call_weakly
from .fields import Field
from .nests import Array
from .reservoir_rows import ReservoirRows
from .reservoir_usage import ReservoirUsage
from .ring_starts import uncompiled
from .storage import FrameStorage

# After so many rounds the sampler stops the writer for the moment that a gather takes.
_ROUNDS_BEFORE_LOCK = 8


class Drawn(NamedTuple):
    """`n` frames, as arrays or as tensors in a graph.

    Attributes:
      keys: their ids, int64 `[n]`.
      ids: the same, `[n, 1]` with an axis for time, else `[n]`.
      mask: None: nothing is padding.
      leaves: `[n, 1, ...]` or `[n, ...]`.
      num_eligible: how many frames were held.
      rows: where they lie, int64 `[n]`; not in a graph.
    """

    keys: Array
    ids: Array
    mask: None
    leaves: list[Array]
    num_eligible: int
    rows: Any = None


class ReservoirSampler:
    """Uniform draws of the frames held.

    Args:
      held: which frames those are.
      storage: the frames themselves.
      fields: of a frame, in the order of the leaves.
      usage: told which rows a graph draws.
      lock: what a writer holds while it writes.
      explain_nothing: the error for a buffer that holds nothing, or too little.
      stacked: give samples a time axis, of one.
      min_size: frames that must be held before anything is drawn.
    """

    def __init__(
        self,
        held: ReservoirRows,
        storage: FrameStorage,
        fields: Sequence[Field],
        usage: ReservoirUsage,
        lock: threading.Lock,
        explain_nothing: Callable[[], EmptyBufferError],
        *,
        stacked: bool,
        min_size: int,
    ) -> None:
        self._held = held
        self._storage = storage
        self._fields = tuple(fields)
        self._usage = usage
        self._lock = lock
        self._explain_nothing = explain_nothing
        self._stacked = stacked
        self._min_size = min_size

    @property
    def sample_bytes(self) -> int:
        """Bytes of the items of one sample."""
        return self._storage.frame_bytes

    def draw(self, rng: np.random.Generator, num: int) -> Drawn:
        """Draws `num` frames with replacement, each held with the same chance.

        Raises:
          EmptyBufferError: fewer than `min_size` frames are held.
        """
        size = self._check_size()
        rows = rng.integers(0, size, num)
        keys, leaves, stale = self._read(rows)
        for _ in range(_ROUNDS_BEFORE_LOCK):
            if stale is None:
                break
            size = self._check_size()
            rows[stale] = rng.integers(0, size, len(stale))
            keys[stale], fresh_leaves, fresh_stale = self._read(rows[stale])
            for leaf, fresh in zip(leaves, fresh_leaves, strict=True):
                leaf[stale] = fresh
            stale = None if fresh_stale is None else stale[fresh_stale]
        else:
            with self._lock:
                size = self._check_size()
                rows = rng.integers(0, size, num)
                keys, leaves, _ = self._read(rows)
        return Drawn(keys, keys[:, None] if self._stacked else keys, None, leaves, size, rows)

    def gather(self, rows: Array) -> list[Array]:
        """Leaves `[n, ...]` (`[n, 1, ...]`) of these rows; the caller keeps writers away."""
        return self._storage.gather(rows[:, None] if self._stacked else rows)

    @tf.autograph.experimental.do_not_convert
    def draw_in_graph(self, num: int, seed: tf.Tensor) -> Drawn:
        """`draw` as graph ops; `seed` is int64 `[2]`, and equal seeds give equal draws.

        XLA would merge the reads and deliver torn rows. Its clustering is kept out of each of them
        (`uncompiled`); an explicit `jit_compile=True` fails on the callback.
        """
        with uncompiled():
            size = self._held.size_in_graph()
        rows = tf.random.stateless_uniform([num], seed, 0, tf.maximum(size, 1), tf.int64)
        keys, records, stale = self._read_in_graph(rows)

        def take() -> list[tf.Tensor]:
            with tf.control_dependencies([self._usage.mark_in_graph(rows)]):
                return [tf.identity(keys), tf.identity(size), *self._storage.split_records_in_graph(records)]

        fine = (size >= self._min_size) & ~tf.reduce_any(stale)
        keys, size, *leaves = tf.cond(fine, take, lambda: self._leave_to_numpy(num, seed))
        keys = tf.ensure_shape(keys, [num])
        outer = [num, 1] if self._stacked else [num]
        leaves = [
            tf.ensure_shape(leaf, [*outer, *field.shape]) for leaf, field in zip(leaves, self._fields, strict=True)
        ]
        return Drawn(keys, self._ids(keys), None, leaves, tf.ensure_shape(size, []))

    def chances_in_graph(self, drawn: Drawn) -> tf.Tensor:
        """The chance of each draw, float32 `[n]`: the same for all."""
        return tf.fill(drawn.keys.shape, 1.0 / tf.cast(drawn.num_eligible, tf.float32))

    def positions_in_graph(self, keys: tf.Tensor) -> tf.Tensor:
        """What a dataset's counter counts; the rows are marked by `draw_in_graph`."""
        return keys

    def gather_in_graph(self, keys: tf.Tensor, rows: tf.Tensor) -> tuple[Drawn, tf.Tensor]:
        """The frames that had these ids in these rows, and which of them (bool `[n]`) are still held."""
        found, records, stale = self._read_in_graph(rows)
        held = ~stale & tf.equal(found, keys)
        with tf.control_dependencies([self._usage.mark_in_graph(tf.boolean_mask(rows, held))]):
            held = tf.identity(held)
        return Drawn(keys, self._ids(keys), None, self._storage.split_records_in_graph(records), 0), held

    # NumPy

    def _check_size(self) -> int:
        """How many frames are held.

        Raises:
          EmptyBufferError: fewer than `min_size`.
        """
        size = self._held.size
        if size < self._min_size:
            raise self._explain_nothing()
        return size

    def _read(self, rows: Array) -> tuple[Array, list[Array], Array | None]:
        """Ids and leaves of these rows, and where in them (None: nowhere) a writer may have written meanwhile."""
        ids = self._held.ids.take(rows)
        leaves = self.gather(rows)
        return ids, leaves, self._stale(ids, self._held.ids.take(rows))

    def _stale(self, before: Array, after: Array) -> Array | None:
        """Positions that are not to be trusted, or None."""
        wrong = (before != after) | (before < 0)
        return np.flatnonzero(wrong) if wrong.any() else None

    # Graph

    def _ids(self, keys: tf.Tensor) -> tf.Tensor:
        return keys[:, None] if self._stacked else keys

    def _read_in_graph(self, rows: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        """Ids and records of these rows, and which of them (bool `[n]`) a writer may have written meanwhile."""
        with uncompiled():
            before = self._held.ids_in_graph(rows)
            with tf.control_dependencies([before]):
                # Made here, so that the gathers themselves wait for the ids.
                records = self._storage.gather_records_in_graph(rows[:, None] if self._stacked else rows)
            with tf.control_dependencies(records):
                after = self._held.ids_in_graph(rows)
        return before, records, self._stale_in_graph(before, after)

    def _stale_in_graph(self, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        return tf.not_equal(before, after) | (before < 0)

    def _leave_to_numpy(self, num: int, seed: tf.Tensor) -> list[tf.Tensor]:
        def draw(sampler: ReservoirSampler, seed: Array) -> list[Any]:
            drawn = sampler.draw(np.random.default_rng(seed.view(np.uint64)), num)
            sampler._usage.mark(drawn.rows)
            leaves = [tensor.numpy() for tensor in sampler._storage.to_tensors(drawn.leaves)]
            return [drawn.keys, np.int64(drawn.num_eligible), *leaves]

        return call_weakly(self, draw, [seed], [tf.int64, tf.int64, *(field.dtype for field in self._fields)])
