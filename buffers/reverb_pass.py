"""Passes over a Reverb table: each frame or window once, in order or shuffled, then the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .base import BufferInfo, EmptyBufferError
from .callbacks import call_weakly
from .episode_ends import EpisodeRule
from .nests import Array, Nest
from .reverb_layout import PackedLayout
from .reverb_scan import ScannedFrames
from .windows import Window, ordered_starts

_logger = logging.getLogger(__name__)

_NO_KEY = -1


class ScanPass:
    """Windows over what a scan finds at a pass's first `next`.

    Args:
      layout: how frames lie in columns.
      rule: tells which frames are only final observations.
      scan: reads the table.
      pack: leaves to the items' nest.
    """

    def __init__(
        self,
        layout: PackedLayout,
        rule: EpisodeRule,
        scan: Callable[[], ScannedFrames],
        pack: Callable[[Any], Nest],
    ) -> None:
        self._layout = layout
        self._rule = rule
        self._scan = scan
        self._pack = pack

    def dataset(
        self,
        ready: tf.data.Dataset,
        sample_batch_size: int | None,
        window: Window | None,
        *,
        shift: int,
        keep_short: bool,
        shuffled: bool,
    ) -> tf.data.Dataset:
        """Elements of `(items, info)`, leaves `[B, T, ...]`.

        Args:
          ready: one element for each pass, delivered when the table can be read.
          sample_batch_size: `B`; the last batch may be smaller. None: without the axis.
          window: what one row is; None: single frames without a `T` axis.
          shift: frames of an episode from one start to the next.
          keep_short: deliver windows that an episode's end cuts short, `[<= T, ...]`.
          shuffled: each pass in an order of its own.
        """
        num_columns = self._layout.num_columns

        def plan(source: ScanPass) -> list[Array]:
            frames = source._scan()
            starts, lengths = source._windows(frames, window or Window(1), shift, keep_short=keep_short)
            if shuffled:
                order = np.random.default_rng().permutation(len(starts))
                starts, lengths = starts[order], lengths[order]
            chance = np.array(1 / len(starts) if shuffled else 1.0, np.float32)
            return [chance, starts, lengths, *frames.columns]

        def one_pass(_: Any) -> tf.data.Dataset:
            types = [tf.float32, tf.int64, tf.int64, *[tf.uint8] * num_columns]
            chance, starts, lengths, *columns = call_weakly(self, plan, [], types)
            chance.set_shape([])
            starts.set_shape([None])
            lengths.set_shape([None])
            for column, size in zip(columns, self._layout.column_bytes, strict=True):
                column.set_shape([None, size])
            rows = tf.data.Dataset.from_tensor_slices((starts, lengths))
            if sample_batch_size is None:
                return rows.map(lambda start, length: self._single(columns, chance, start, length, window, keep_short))
            rows = rows.batch(sample_batch_size)
            return rows.map(lambda start, _: self._batch(columns, chance, start, window))

        return ready.flat_map(one_pass)

    def _batch(
        self, columns: list[tf.Tensor], chance: tf.Tensor, starts: tf.Tensor, window: Window | None
    ) -> tuple[Nest, BufferInfo]:
        if window is None:
            picked = [tf.gather(column, starts) for column in columns]
            ids, leaves = self._layout.unpack(picked, [-1])
        else:
            index = starts[:, None] + tf.range(window.num_steps, dtype=tf.int64)
            picked = [tf.gather(column, index) for column in columns]
            ids, leaves = self._layout.unpack(picked, [-1, window.num_steps])
        return self._pack(leaves), _info(ids, tf.fill(tf.shape(starts), chance))

    def _single(
        self,
        columns: list[tf.Tensor],
        chance: tf.Tensor,
        start: tf.Tensor,
        length: tf.Tensor,
        window: Window | None,
        keep_short: bool,
    ) -> tuple[Nest, BufferInfo]:
        if window is None:
            ids, leaves = self._layout.unpack([column[start] for column in columns], [])
        else:
            picked = [column[start : start + length] for column in columns]
            ids, leaves = self._layout.unpack(picked, [-1 if keep_short else window.num_steps])
        return self._pack(leaves), _info(ids, chance)

    def _windows(self, frames: ScannedFrames, window: Window, shift: int, *, keep_short: bool) -> tuple[Array, Array]:
        words = 2 * frames.positions()
        words += self._is_final(frames)
        starts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for stream in frames.streams:
            first, length = ordered_starts(words[stream], window, shift, keep_short=keep_short)
            starts.append(first + stream.start)
            lengths.append(length)
        found, long = np.concatenate(starts), np.concatenate(lengths)
        if not len(found):
            raise EmptyBufferError(f"no window of {window.num_steps} frames in {len(frames.ids)} frames of the table.")
        left_out = len(frames.ids) - int(long.sum())
        if shift == window.num_steps > 1 and not keep_short and left_out:
            _logger.warning("%d frames are in no window of %d frames; left out.", left_out, window.num_steps)
        return found, long

    def _is_final(self, frames: ScannedFrames) -> Array:
        """Bool `[N]`, as far as the frames themselves tell it: what `end_of_episode` told is not stored."""
        leaves = self._layout.unpack_numpy(frames.columns)
        final = self._rule.marks(leaves).final if self._rule.told_by_items else None
        return np.zeros(len(frames.ids), bool) if final is None else final


def _info(ids: tf.Tensor, chances: tf.Tensor) -> BufferInfo:
    return BufferInfo(
        ids=ids,
        probabilities=chances,
        keys=tf.fill(tf.shape(chances), tf.constant(_NO_KEY, tf.int64)),
        weights=tf.ones_like(chances),
        mask=tf.ones_like(ids, tf.bool),
    )
