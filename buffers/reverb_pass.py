"""Passes over a Reverb table: each frame, window or episode once, in order or shuffled, then the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .base import BufferInfo, EmptyBufferError
from .callbacks import call_weakly
from .nests import Array, Nest
from .reverb_layout import NO_ID
from .reverb_layouts import IdLayout
from .reverb_scan import ScannedFrames
from .windows import Placed, Window, eligible_windows, stepped_windows

_logger = logging.getLogger(__name__)

_NO_KEY = -1


class PassRows(NamedTuple):
    """Which rows a pass has.

    Attributes:
      place: says where they lie in what a scan has found.
      burn_in: frames of context in a row.
      num_steps: frames from the drawn one on; None: as many as each row has.
      has_time: whether rows have a `T` axis.
      is_padded: whether a row may have fewer frames than its batch.
      told: how the log and errors call a row.
    """

    place: Callable[[ScannedFrames, Array], Placed]
    burn_in: int
    num_steps: int | None
    has_time: bool
    is_padded: bool
    told: str


def single_frames() -> PassRows:
    """Each frame that is not only a final observation, without a `T` axis."""
    rows = eligible_rows(Window(1))
    return rows._replace(has_time=False)


def eligible_rows(window: Window) -> PassRows:
    """Each window that starts in the frames held, as if all were written as one frame an item."""
    return PassRows(
        lambda frames, words: _by_stream(frames, words, lambda part: eligible_windows(part, window)),
        window.burn_in,
        window.num_steps,
        True,
        not window.is_plain,
        f"window of {window.num_steps} frames",
    )


def item_rows(window: Window) -> PassRows:
    """The window of each item."""

    def place(frames: ScannedFrames, words: Array) -> Placed:
        items = frames.items
        return Placed(
            items.starts, np.minimum(items.num_before, window.burn_in), np.minimum(items.num_after, window.num_steps)
        )

    return PassRows(
        place, window.burn_in, window.num_steps, True, not window.is_plain, f"window of {window.num_steps} frames"
    )


def whole_items() -> PassRows:
    """Each item as it is, `[L, ...]`."""
    return PassRows(lambda frames, words: frames.items, 0, None, True, True, "item")


def stepped_rows(num_steps: int, *, keep_short: bool) -> PassRows:
    """Windows side by side in each episode; the last one may be shorter where `keep_short`, else is left out."""

    def place(frames: ScannedFrames, words: Array) -> Placed:
        placed = _by_stream(
            frames, words, lambda part: stepped_windows(part, num_steps, num_steps, keep_short=keep_short)
        )
        left_out = len(words) - int(placed.num_after.sum())
        if num_steps > 1 and not keep_short and left_out and len(placed.starts):
            _logger.warning("%d frames are in no window of %d frames; left out.", left_out, num_steps)
        return placed

    return PassRows(place, 0, None if keep_short else num_steps, True, keep_short, f"window of {num_steps} frames")


class ScanPass:
    """Rows over what a scan finds at a pass's first `next`.

    Args:
      layout: how frames lie in columns.
      scan: reads the table.
      pack: leaves to the items' nest.
    """

    def __init__(self, layout: IdLayout, scan: Callable[[], ScannedFrames], pack: Callable[[Any], Nest]) -> None:
        self._layout = layout
        self._scan = scan
        self._pack = pack

    def dataset(
        self,
        ready: tf.data.Dataset,
        sample_batch_size: int | None,
        rows: PassRows,
        *,
        shuffled: bool,
        boundaries: Sequence[int] = (),
    ) -> tf.data.Dataset:
        """Elements of `(items, info)`, leaves `[B, T, ...]`, with padding where a row is shorter than its batch.

        Args:
          ready: one element for each pass, delivered when the table can be read.
          sample_batch_size: `B`; the last batch may be smaller. None: without the axis.
          rows: what one row is.
          shuffled: each pass in an order of its own.
          boundaries: lengths between which the rows of a batch lie; none: batches of all lengths.
        """
        num_columns = self._layout.num_columns

        def plan(source: ScanPass) -> list[Array]:
            frames = source._scan()
            words = 2 * frames.positions() + frames.is_final
            placed = rows.place(frames, words)
            if not len(placed.starts):
                raise EmptyBufferError(f"no {rows.told} in {len(frames.ids)} frames of the table.")
            if shuffled:
                order = np.random.default_rng().permutation(len(placed.starts))
                placed = Placed(*(part[order] for part in placed))
            chance = np.array(1 / len(placed.starts) if shuffled else 1.0, np.float32)
            return [chance, *placed, *frames.columns]

        def one_pass(_: Any) -> tf.data.Dataset:
            types = [tf.float32, *[tf.int64] * 3, *[tf.uint8] * num_columns]
            chance, starts, num_before, num_after, *columns = call_weakly(self, plan, [], types)
            chance.set_shape([])
            for part in (starts, num_before, num_after):
                part.set_shape([None])
            for column, size in zip(columns, self._layout.column_bytes, strict=True):
                column.set_shape([None, size])
            places = tf.data.Dataset.from_tensor_slices((starts, num_before, num_after))
            if sample_batch_size is None:
                return places.map(lambda *place: self._single(columns, chance, place, rows))
            if boundaries:
                sizes = [sample_batch_size] * (len(boundaries) + 1)
                places = places.bucket_by_sequence_length(
                    lambda start, before, after: tf.cast(after, tf.int32), list(boundaries), sizes
                )
            else:
                places = places.batch(sample_batch_size)
            return places.map(lambda *place: self._batch(columns, chance, place, rows))

        return ready.flat_map(one_pass)

    def _single(
        self, columns: list[tf.Tensor], chance: tf.Tensor, place: Sequence[tf.Tensor], rows: PassRows
    ) -> tuple[Nest, BufferInfo]:
        batch = self._batch(columns, chance, [part[None] for part in place], rows)
        return tf.nest.map_structure(lambda leaf: leaf[0], batch)

    def _batch(
        self, columns: list[tf.Tensor], chance: tf.Tensor, place: Sequence[tf.Tensor], rows: PassRows
    ) -> tuple[Nest, BufferInfo]:
        starts, num_before, num_after = place
        if not rows.has_time:
            ids, leaves = self._layout.unpack([tf.gather(column, starts) for column in columns], [-1])
        else:
            after = tf.reduce_max(num_after) if rows.num_steps is None else rows.num_steps
            steps = tf.range(-rows.burn_in, after, dtype=tf.int64)
            index = starts[:, None] + steps
            if rows.is_padded:
                is_real = (steps >= -num_before[:, None]) & (steps < num_after[:, None])
                picked = take_frames(self._layout, columns, index, is_real)
            else:
                picked = [tf.gather(column, index) for column in columns]
            length = tf.shape(index)[1] if rows.num_steps is None else rows.burn_in + rows.num_steps
            ids, leaves = self._layout.unpack(picked, [-1, length])
        chances = tf.fill(tf.shape(starts), chance)
        info = BufferInfo(
            ids=ids,
            probabilities=chances,
            keys=tf.fill(tf.shape(chances), tf.constant(_NO_KEY, tf.int64)),
            weights=tf.ones_like(chances),
            mask=ids != NO_ID,
        )
        return self._pack(leaves), info


def take_frames(
    layout: IdLayout, columns: Sequence[tf.Tensor], index: tf.Tensor, is_real: tf.Tensor, batch_dims: int = 0
) -> list[tf.Tensor]:
    """Frames `[..., bytes]` of each column by index, with padding where they are not real.

    Args:
      layout: how frames lie in columns.
      columns: uint8 `[N, bytes]`, or `[n, L, bytes]` with `batch_dims=1`.
      index: int64 `[...]`, anything where not real.
      is_real: bool `[...]`.
      batch_dims: leading axes that columns and index share.
    """
    index = tf.where(is_real, index, 0)
    return [
        tf.where(is_real[..., None], tf.gather(column, index, batch_dims=batch_dims), tf.constant(padding))
        for column, padding in zip(columns, layout.padding, strict=True)
    ]


def _by_stream(frames: ScannedFrames, words: Array, place: Callable[[Array], Placed]) -> Placed:
    parts = [(stream.start, place(words[stream])) for stream in frames.streams]
    if not parts:
        return Placed(*[np.zeros(0, np.int64)] * 3)
    return Placed(
        np.concatenate([first + part.starts for first, part in parts]),
        np.concatenate([part.num_before for _, part in parts]),
        np.concatenate([part.num_after for _, part in parts]),
    )
