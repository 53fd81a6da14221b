"""Reads windows and whole episodes while a writer writes, and draws again what changed meanwhile.

Draw keys (`episode_draws.py`), find their rows, gather, then look at the drawn frames' tags and the lists' bases
again: where one has changed, the writer has evicted the episode or moved its list, and the sample is drawn again
(`episode_pages.py` says why that is enough). A graph that finds such a sample leaves the batch to NumPy, which
stops the writer if it has to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .base import EmptyBufferError
from .callbacks import call_weakly
from .episode_draws import EpisodeDraws
from .episode_kinds import FLAG_BITS, Kind
from .episode_pages import STEP_BITS, STEP_MASK
from .episode_table import EpisodeTable
from .fields import Field
from .memory import aligned_empty
from .nests import Array
from .ring_starts import uncompiled
from .storage import FrameStorage

# After so many rounds the sampler stops the writer for the moment that a gather takes.
_ROUNDS_BEFORE_LOCK = 8

NO_ID = -1


class Drawn(NamedTuple):
    """`n` samples, as arrays or as tensors in a graph.

    Attributes:
      keys: ids of the drawn frames (of an episode: its first), int64 `[n]`.
      chances: of each draw, float32 `[n]`.
      ids: ids of all frames, int64 `[n, length]`, -1 on padding; 64-byte aligned where nothing is padding.
      mask: bool, the shape of `ids`, False on padding; None where nothing is padding.
      leaves: `[n, length, ...]`.
      positions: where `EpisodeUsage` marks these draws, `[n]`; not in a graph.
    """

    keys: Array
    chances: Array
    ids: Array
    mask: Array | None
    leaves: list[Array]
    positions: Any = None


class _Read(NamedTuple):
    """What was read of `n` samples, and which of them (bool `[n]`, or None for none) are to be drawn again."""

    ids: Array
    mask: Array | None
    leaves: list[Array]
    positions: Array
    stale: Array | None


class EpisodeSampler:
    """Draws of one kind.

    Args:
      table: what is held.
      storage: the frames themselves.
      fields: of a frame, in the order of the leaves.
      kind: what is drawn.
      lock: what a writer holds while it writes.
      explain_nothing: the error for a buffer in which nothing, or too little, can be drawn.
      min_size: frames that must be held before anything is drawn.
      final_observations: whether some frames may be final observations, which start no window.
    """

    def __init__(
        self,
        table: EpisodeTable,
        storage: FrameStorage,
        fields: Sequence[Field],
        kind: Kind,
        lock: threading.Lock,
        explain_nothing: Callable[[Kind], EmptyBufferError],
        *,
        min_size: int = 1,
        final_observations: bool = True,
    ) -> None:
        self._table = table
        self._storage = storage
        self.kind = kind
        self._lock = lock
        self._draws = EpisodeDraws(
            table, kind, lock, explain_nothing, min_size=min_size, final_observations=final_observations
        )
        self._fields = tuple(fields)
        window = kind.window
        self._plain = window is not None and window.is_plain
        # Steps of a window's frames relative to the drawn one.
        self._offsets = np.arange(0) if window is None else np.arange(-window.burn_in, window.num_steps)

    @property
    def sample_bytes(self) -> int | None:
        """Bytes of the items of one sample; None where they differ."""
        return None if self.kind.window is None else self._storage.frame_bytes * self.kind.window.length

    def draw(self, rng: np.random.Generator, num: int) -> Drawn:
        """Draws `num` samples with replacement, by the kind's law.

        Raises:
          EmptyBufferError: fewer than `min_size` frames are held, or there is nothing of this kind.
        """
        keys, chances = self._draws.draw(rng, num)
        for _ in range(_ROUNDS_BEFORE_LOCK):
            read = self._read(keys)
            if read.stale is None:
                return Drawn(keys, chances, *read[:4])
            stale = np.flatnonzero(read.stale)
            keys[stale], chances[stale] = self._draws.draw(rng, len(stale))
        with self._lock:
            keys, chances = self._draws.draw(rng, num, lock_held=True)
            return Drawn(keys, chances, *self._read(keys)[:4])

    def _read(self, keys: Array) -> _Read:
        table, pages, window = self._table, self._table.pages, self.kind.window
        slots = (keys >> STEP_BITS) % table.capacity
        bases = table.bases.take(slots)
        drawn_at = 0 if window is None else window.burn_in
        offsets, mask, missing = self._offsets, None, None
        if not self._plain:
            offsets, mask = self._extents(keys, table.states.take(slots) >> FLAG_BITS)
        (ids,) = aligned_empty([(len(keys), len(offsets))], [keys.dtype])
        np.add(keys[:, None], offsets, out=ids)
        if drawn_at:
            # What is before an episode's first frame has the id of no frame of it: it is hidden by the mask.
            rows = pages.rows(bases, np.maximum(ids, (keys - (keys & STEP_MASK))[:, None]))
        else:
            rows = pages.rows(bases, ids)
        key_rows = rows[:, drawn_at]
        if mask is not None:
            # Of a sample that is there at least the drawn frame is real.
            missing = ~mask[:, drawn_at]
            ids = np.where(mask, ids, NO_ID)
            rows = np.where(mask, rows, self._storage.zero_row)
        leaves = self._storage.gather(rows)
        stale = pages.tags.take(key_rows, mode="clip") != keys
        stale |= table.bases.take(slots) != bases
        if missing is not None:
            stale |= missing
        # Those of whole episodes come after all rows.
        positions = slots + self._storage.zero_row if window is None else key_rows
        return _Read(ids, mask, leaves, positions, stale if stale.any() else None)

    def _extents(self, keys: Array, lengths: Array) -> tuple[Array, Array | None]:
        """The samples' frames relative to the drawn ones, `[T]`, and which are real, `[n, T]`; None for all."""
        if self.kind.window is None:
            longest = max(1, int(lengths.max()))
            offsets = np.arange(longest)
            return offsets, None if lengths.min() == longest else offsets < lengths[:, None]
        steps = (keys & STEP_MASK)[:, None] + self._offsets
        return self._offsets, (steps >= 0) & (steps < lengths[:, None])

    # Graph

    @tf.autograph.experimental.do_not_convert
    def draw_in_graph(self, num: int, seed: tf.Tensor) -> Drawn:
        """`draw` as graph ops; `seed` is int64 `[2]`, and equal seeds give equal draws.

        XLA would merge the reads and deliver torn rows. Its clustering is kept out of each of them
        (`uncompiled`); an explicit `jit_compile=True` fails on the callback.
        """
        (keys, chances), enough = self._draws.draw_in_graph(num, seed)

        def read() -> list[tf.Tensor]:
            drawn, stale = self._read_in_graph(tf.ensure_shape(keys, [num]), tf.ensure_shape(chances, [num]))
            return tf.cond(tf.reduce_any(stale), lambda: self._leave_to_numpy(num, seed), lambda: _flat(drawn))

        flat = tf.cond(enough, read, lambda: self._leave_to_numpy(num, seed))
        return self._shaped(flat, num)

    def gather_in_graph(self, keys: tf.Tensor, num_before: tf.Tensor, num_after: tf.Tensor) -> tuple[Drawn, tf.Tensor]:
        """Samples planned before, and which of them (bool `[n]`) are still held; arguments int64 `[n]`."""
        zeros = tf.zeros(tf.shape(keys), tf.float32)
        drawn, stale = self._read_in_graph(keys, zeros, extents=(num_before, num_after))
        return drawn, ~stale

    def chances_in_graph(self, drawn: Drawn) -> tf.Tensor:
        """The chance of each draw, float32 `[n]`."""
        return drawn.chances

    def positions_in_graph(self, keys: tf.Tensor) -> tf.Tensor:
        """Where `EpisodeUsage` marks the draws of these keys."""
        slots = self._slots_in_graph(keys)
        if self.kind.window is None:
            return slots + self._storage.zero_row
        with uncompiled():
            bases = self._table.bases_in_graph(slots)
        return self._table.pages.rows_in_graph(bases, keys[:, None])[:, 0]

    def _read_in_graph(
        self, keys: tf.Tensor, chances: tf.Tensor, extents: tuple[tf.Tensor, tf.Tensor] | None = None
    ) -> tuple[Drawn, tf.Tensor]:
        table, window = self._table, self.kind.window
        slots = self._slots_in_graph(keys)
        with uncompiled():
            bases = table.bases_in_graph(slots)
            states = None if self._plain or extents is not None else table.states_in_graph(slots)
        mask, offsets = None, self._offsets
        first_step = tf.bitwise.bitwise_and(keys, tf.constant(STEP_MASK, tf.int64))
        if extents is None and states is not None:
            extents = first_step, states // (1 << FLAG_BITS) - first_step
        if extents is not None:
            num_before, num_after = extents
            if window is None:
                offsets = tf.range(tf.maximum(tf.reduce_max(num_after), 1))
            mask = (offsets >= -num_before[:, None]) & (offsets < num_after[:, None])
        ids = keys[:, None] + offsets
        drawn_at = 0 if window is None else window.burn_in
        if mask is None:
            rows = table.pages.rows_in_graph(bases, ids)
            key_rows = rows[:, drawn_at]
        else:
            all_rows = table.pages.rows_in_graph(bases, tf.maximum(ids, (keys - first_step)[:, None]))
            key_rows = all_rows[:, drawn_at]
            ids = tf.where(mask, ids, tf.constant(NO_ID, tf.int64))
            rows = tf.where(mask, all_rows, tf.constant(self._storage.zero_row, tf.int64))
        leaves, records = self._gather_in_graph(rows)
        with tf.control_dependencies(records), uncompiled():
            stale = tf.not_equal(table.pages.tags_in_graph(key_rows), keys)
            stale |= tf.not_equal(table.bases_in_graph(slots), bases)
        if mask is not None:
            # Of a sample that is there at least the drawn frame is real.
            stale |= ~mask[:, drawn_at]
        return Drawn(keys, chances, ids, mask, leaves), stale

    def _slots_in_graph(self, keys: tf.Tensor) -> tf.Tensor:
        return tf.bitwise.right_shift(keys, tf.constant(STEP_BITS, tf.int64)) % self._table.capacity

    def _gather_in_graph(self, rows: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Leaves of these rows `[n, T]`, and the records that they are parts of."""
        # Where both axes are known only at run time, one of them is taken apart.
        flat = rows if rows.shape[1] is not None else tf.reshape(rows, [-1])
        with uncompiled():
            records = self._storage.gather_records_in_graph(flat)
        leaves = self._storage.split_records_in_graph(records)
        if flat is not rows:
            outer = tf.shape(rows)
            leaves = [tf.reshape(leaf, tf.concat([outer, leaf.shape[1:]], 0)) for leaf in leaves]
        return leaves, records

    def _leave_to_numpy(self, num: int, seed: tf.Tensor) -> list[tf.Tensor]:
        def draw(sampler: EpisodeSampler, seed: Array) -> list[Array]:
            return sampler._draw_for_graph(num, seed)

        dtypes = [tf.int64, tf.float32, tf.int64, *([] if self._plain else [tf.bool])]
        return call_weakly(self, draw, [seed], [*dtypes, *(field.dtype for field in self._fields)])

    def _draw_for_graph(self, num: int, seed: Array) -> list[Array]:
        drawn = self.draw(np.random.default_rng(seed.view(np.uint64)), num)
        leaves = [tensor.numpy() for tensor in self._storage.to_tensors(drawn.leaves)]
        mask = np.ones(drawn.ids.shape, bool) if drawn.mask is None else drawn.mask
        return [drawn.keys, drawn.chances, drawn.ids, *([] if self._plain else [mask]), *leaves]

    def _shaped(self, flat: Sequence[tf.Tensor], num: int) -> Drawn:
        length = None if self.kind.window is None else self.kind.window.length
        keys, chances, ids, *rest = flat
        mask = None if self._plain else tf.ensure_shape(rest.pop(0), [num, length])
        leaves = [
            tf.ensure_shape(leaf, [num, length, *field.shape]) for leaf, field in zip(rest, self._fields, strict=True)
        ]
        return Drawn(
            tf.ensure_shape(keys, [num]),
            tf.ensure_shape(chances, [num]),
            tf.ensure_shape(ids, [num, length]),
            mask,
            leaves,
        )


def _flat(drawn: Drawn) -> list[Any]:
    """What a branch of a graph returns, as one list."""
    return [drawn.keys, drawn.chances, drawn.ids, *([] if drawn.mask is None else [drawn.mask]), *drawn.leaves]
