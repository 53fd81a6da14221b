"""Draws windows from a ring while a writer writes.

Both here and in a graph: draw where windows start (`ring_starts.py`), gather, then look at `reserved`
and draw again what the writer may have touched meanwhile (`ring.py` says why that is enough).
Where draws cannot be made again (`WindowStarts.draws_by_callback`) the writer's lock is held for both, in a
graph too, by a callback.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .callbacks import call_weakly
from .nests import Array
from .ring import FrameRing
from .ring_starts import ROUND_SEED, Extents, Starts, WindowStarts, generator, uncompiled
from .storage import FrameStorage
from .windows import Window

# After this many rounds the sampler stops the writer for the moment that a gather takes.
_ROUNDS_BEFORE_LOCK = 8

NO_ID = -1


class Drawn(NamedTuple):
    """`n` windows, as arrays or as tensors in a graph.

    Attributes:
      keys: ids of the drawn frames, int64 `[n]`.
      ids: ids of all frames, int64 `[n, length]` (`[n]` for single frames), -1 on padding.
      mask: bool, the shape of `ids`, False on padding; None where nothing is padding.
      leaves: `[n, length, ...]` (`[n, ...]`).
      num_eligible: how many windows were eligible.
      chances: of each draw, float64 `[n]` (float32 in a graph); None where all have the same.
      least_chance: that of the least probable window, `[]`, where weights need it.
    """

    keys: Array
    ids: Array
    mask: Array | None
    leaves: list[Array]
    num_eligible: int
    chances: Array | None = None
    least_chance: Any = None


class RingSampler:
    """Draws of windows of one kind.

    Args:
      ring: what is held.
      storage: the frames themselves.
      window: the kind of window; None for single frames, drawn as windows of one.
      writer_lock: what a writer holds while it writes.
      starts: draws where the windows start.
    """

    def __init__(
        self,
        ring: FrameRing,
        storage: FrameStorage,
        window: Window | None,
        writer_lock: threading.Lock,
        starts: WindowStarts,
    ) -> None:
        self._ring = ring
        self._storage = storage
        self._stacked = window is not None
        self._window = window or Window(1)
        self._writer_lock = writer_lock
        self._starts = starts
        self._closed = False
        # Steps of a window's frames relative to the drawn one.
        self._steps = np.arange(-self._window.burn_in, self._window.num_steps)
        self._offsets = self._steps * ring.batch_size if self._stacked else np.int64(0)

    @property
    def sample_bytes(self) -> int:
        """Bytes of the items of one sample."""
        return self._storage.frame_bytes * self._window.length

    @property
    def starts(self) -> WindowStarts:
        """What draws where the windows start."""
        return self._starts

    def close(self) -> None:
        """Refuses draws that read the storage through NumPy: it is about to be released."""
        self._closed = True

    def num_eligible(self) -> int:
        """Eligible windows now; the caller keeps writers away."""
        return self._starts.count()

    def draw(self, rng: np.random.Generator, num: int) -> Drawn:
        """Draws `num` windows.

        Raises:
          EmptyBufferError: fewer than `min_size` frames are held, or no window is eligible.
        """
        if self._starts.draws_by_callback:
            return self._draw_locked(rng, num)
        starts = self._starts.draw(rng, num)
        keys, chances = starts.keys, starts.chances
        ids, mask, leaves = self._read(keys)
        for _ in range(_ROUNDS_BEFORE_LOCK):
            stale = self._stale(keys, mask)
            if stale is None:
                return Drawn(keys, ids, mask, leaves, starts.num_eligible, chances, starts.least_chance)
            starts = self._starts.draw(rng, len(stale))
            keys[stale] = starts.keys
            if chances is not None:
                chances[stale] = starts.chances
            fresh_ids, fresh_mask, fresh_leaves = self._read(starts.keys)
            ids[stale] = fresh_ids
            if mask is not None:
                mask[stale] = fresh_mask
            for leaf, fresh in zip(leaves, fresh_leaves, strict=True):
                leaf[stale] = fresh
        return self._draw_locked(rng, num)

    def _draw_locked(self, rng: np.random.Generator, num: int) -> Drawn:
        with self._writer_lock:
            if self._closed:
                raise ValueError("the buffer that this draws from is closed; build a new one.")
            starts = self._starts.draw(rng, num, lock_held=True)
            return Drawn(starts.keys, *self._read(starts.keys), *starts[1:])

    def gather(self, keys: Array) -> list[Array]:
        """Leaves of the windows drawn at `keys`; the caller keeps writers away."""
        return self._read(keys)[2]

    @tf.autograph.experimental.do_not_convert
    def draw_in_graph(self, num: int, seed: tf.Tensor) -> Drawn:
        """`draw` as graph ops; `seed` is int64 `[2]`, and equal seeds give equal draws.

        XLA would merge the reads and deliver torn rows. Its clustering is kept out of each of them
        (`uncompiled`); an explicit `jit_compile=True` fails on the callback that raises the error.
        """
        if self._starts.draws_by_callback:
            return self._draw_by_callback(num, seed)
        starts = self._starts.draw_in_graph(num, seed)
        extents, records = self._read_in_graph(starts.keys)
        stale = self._stale_in_graph(starts.keys, extents, records)

        def again(
            round_number: tf.Tensor, stale: tf.Tensor, state: Sequence[tf.Tensor]
        ) -> tuple[tf.Tensor, tf.Tensor, Sequence[tf.Tensor]]:
            fresh = self._starts.draw_in_graph(num, seed + tf.stack([round_number, 0]))
            fresh_extents, fresh_records = self._read_in_graph(fresh.keys)
            fresh_stale = self._stale_in_graph(fresh.keys, fresh_extents, fresh_records)
            fresh_state = _join(fresh, fresh_extents, fresh_records)
            merged = tuple(_where_rows(stale, new, old) for new, old in zip(fresh_state, state, strict=True))
            return round_number + ROUND_SEED, stale & fresh_stale, merged

        _, _, state = tf.while_loop(
            lambda round_number, stale, state: tf.reduce_any(stale),
            again,
            (tf.constant(ROUND_SEED, tf.int64), stale, _join(starts, extents, records)),
        )
        starts, extents, records = _part(state, starts, with_extents=extents is not None)
        keys = starts.keys
        ids, mask = self._ids(keys, None if extents is None else self._mask(extents))
        return Drawn(keys, ids, mask, self._storage.split_records_in_graph(records), *starts[1:])

    def _draw_by_callback(self, num: int, seed: tf.Tensor) -> Drawn:
        """`draw` as a callback."""
        storage, length = self._storage, self._window.length

        def draw(sampler: RingSampler, seed: Array) -> tuple[Array, ...]:
            drawn = sampler._draw_locked(generator(seed), num)
            mask = np.ones(1, bool) if drawn.mask is None else drawn.mask
            chances = np.full(num, 1 / drawn.num_eligible) if drawn.chances is None else drawn.chances
            return (
                drawn.keys,
                drawn.ids,
                mask,
                chances.astype(np.float32),
                np.array(drawn.num_eligible),
                *drawn.leaves,
            )

        dtypes = [tf.int64, tf.int64, tf.bool, tf.float32, tf.int64, *storage.stored_dtypes]
        keys, ids, mask, chances, num_eligible, *leaves = call_weakly(self, draw, [seed], dtypes)
        outer = [num, length] if self._stacked else [num]
        for leaf, shape in zip(leaves, storage.field_shapes, strict=True):
            leaf.set_shape([*outer, *shape])
        keys.set_shape([num])
        ids.set_shape(outer)
        chances.set_shape([num])
        num_eligible.set_shape([])
        if self._window.is_plain:
            mask = None
        else:
            mask.set_shape(outer)
        return Drawn(keys, ids, mask, storage.restore_in_graph(leaves), num_eligible, chances)

    def chances_in_graph(self, drawn: Drawn) -> tf.Tensor:
        """The chance of each draw, float32 `[n]`."""
        if drawn.chances is not None:
            return drawn.chances
        return tf.fill(drawn.keys.shape, 1.0 / tf.cast(drawn.num_eligible, tf.float32))

    def positions_in_graph(self, keys: tf.Tensor) -> tf.Tensor:
        """Where `Usage` marks the draws of these keys: by themselves."""
        return keys

    def gather_in_graph(self, keys: tf.Tensor, extents: Extents) -> tuple[Drawn, tf.Tensor]:
        """The windows drawn at `keys`, and which of them (bool `[n]`) are still held."""
        mask = None if self._window.num_steps == 1 and self._window.is_plain else self._mask(extents)
        ids, mask = self._ids(keys, mask)
        records = self._gather_records(ids, mask)
        stale = self._stale_in_graph(keys, extents, records)
        return Drawn(keys, ids, mask, self._storage.split_records_in_graph(records), 0), ~stale

    # NumPy

    def _read(self, keys: Array) -> tuple[Array, Array | None, list[Array]]:
        """Ids, mask and leaves of the windows drawn at `keys`."""
        if self._window.is_plain:
            ids = keys[:, None] + self._offsets if self._stacked else keys
            return ids, None, self._storage.gather(self._ring.rows(ids))
        num_before, num_after = self._starts.extents(keys)
        mask = (self._steps >= -num_before[:, None]) & (self._steps < num_after[:, None])
        ids = keys[:, None] + self._offsets
        leaves = self._storage.gather(np.where(mask, self._ring.rows(ids), self._storage.zero_row))
        return np.where(mask, ids, NO_ID), mask, leaves

    def _stale(self, keys: Array, mask: Array | None) -> Array | None:
        """Positions that the writer may have touched, or None: the oldest frame tells at once."""
        oldest = self._ring.oldest_untouched()
        if self._window.burn_in and mask is not None:
            keys = keys - np.count_nonzero(mask[:, : self._window.burn_in], axis=1) * self._ring.batch_size
        if self._ring.apart:
            stale = np.flatnonzero(keys < self._ring.at(oldest, keys))
            return stale if len(stale) else None
        if keys.min() >= oldest:
            return None
        return np.flatnonzero(keys < oldest)

    # Graph

    def _read_in_graph(self, keys: tf.Tensor) -> tuple[Extents | None, list[tf.Tensor]]:
        """What is real of the windows drawn at `keys` (None: all), and their records."""
        extents = None if self._window.is_plain else self._starts.extents_in_graph(keys)
        ids, mask = self._ids(keys, None if extents is None else self._mask(extents))
        return extents, self._gather_records(ids, mask)

    def _ids(self, keys: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor | None]:
        ids = keys[:, None] + self._offsets if self._stacked else keys
        if mask is None:
            return ids, None
        return tf.where(mask, ids, tf.constant(NO_ID, tf.int64)), mask

    def _mask(self, extents: Extents) -> tf.Tensor:
        mask = (self._steps >= -extents.num_before[:, None]) & (self._steps < extents.num_after[:, None])
        return mask if self._stacked else tf.squeeze(mask, 1)

    def _stale_in_graph(self, keys: tf.Tensor, extents: Extents | None, records: Sequence[tf.Tensor]) -> tf.Tensor:
        """Which of the windows drawn at `keys` a writer may have touched by the time that `records` were read."""
        with tf.control_dependencies([*records, *(extents or ())]), uncompiled():
            oldest = self._ring.oldest_untouched_in_graph()
        if extents is not None and self._window.burn_in:
            keys -= extents.num_before * self._ring.batch_size
        return keys < self._ring.at(oldest, keys)

    def _gather_records(self, ids: tf.Tensor, mask: tf.Tensor | None) -> list[tf.Tensor]:
        rows = ids % self._ring.capacity
        if mask is not None:
            rows = tf.where(mask, rows, tf.constant(self._storage.zero_row, tf.int64))
        with uncompiled():
            return self._storage.gather_records_in_graph(rows)


def _join(starts: Starts, extents: Extents | None, records: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
    """What a loop carries of each draw, as one tuple."""
    chances = () if starts.chances is None else (starts.chances,)
    return (starts.keys, *chances, *(extents or ()), *records)


def _part(
    state: Sequence[tf.Tensor], starts: Starts, *, with_extents: bool
) -> tuple[Starts, Extents | None, list[tf.Tensor]]:
    """What `_join` joined."""
    rest = list(state)
    starts = starts._replace(keys=rest.pop(0))
    if starts.chances is not None:
        starts = starts._replace(chances=rest.pop(0))
    return starts, Extents(rest.pop(0), rest.pop(0)) if with_extents else None, rest


def _where_rows(condition: tf.Tensor, new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
    """Rows of `new` where `condition` `[n]` holds, else of `old`."""
    return tf.where(tf.reshape(condition, [-1] + [1] * (new.shape.rank - 1)), new, old)
