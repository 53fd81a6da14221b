"""What draws from a table of whole episodes become: episodes, padded batches of them, or windows cut from them.

Windows are cut where they are read: an episode is drawn by the table's sampler, then one of the windows in
it, each with the same chance. So a window's probability is that of its episode divided by how many
windows the episode has. With `short='drop'` some episodes may have none and are passed over, which makes
the others more likely by a factor that Reverb does not tell: then it is NaN.

Letters: `B` batch, `L` frames of an episode, `T` of a window.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .base import BufferInfo, WaitTimeoutError
from .callbacks import call_weakly
from .episode_dataset import pad_batches, pad_in_buckets
from .nests import Array, Nest
from .reverb_layout import NO_ID
from .reverb_layouts import IdLayout
from .reverb_link import FIRST_LINE_SECONDS, ServerLink
from .reverb_pass import take_frames
from .reverb_priorities import TablePriorities
from .reverb_rows import RowDrawer, num_rows
from .reverb_source import ItemDrawer, TableSource
from .reverb_wait import WaitStage
from .reverb_weights import ServedWeights
from .windows import Window

_logger = logging.getLogger(__name__)

Preprocess = Callable[[Any], Any]


class CutWindows(NamedTuple):
    """A window of each of `n` episodes.

    Attributes:
      columns: uint8 `[n, burn_in + T, bytes]`.
      num_starts: int64 `[n]`, windows of this kind in each episode; 0 where there is none to cut.
      lengths: int64 `[n]`, frames of each episode.
    """

    columns: list[tf.Tensor]
    num_starts: tf.Tensor
    lengths: tf.Tensor


class EpisodeReader:
    """Draws episodes of one table.

    Args:
      link: the server.
      layout: how a frame lies in its columns.
      source: makes Reverb's datasets.
      stage: waits for the table.
      guard: what to put over a dataset so that it fails when the server is gone.
      pack: leaves to the items' nest.
      weights: of what is drawn.
      priorities: are told what is delivered.
      max_samples: episodes after which a dataset ends; -1: never.
      timeout_s: how long draws may give only episodes that are too short.
      keeps: rows of an unfinished draw are kept for the next one.
    """

    def __init__(
        self,
        link: ServerLink,
        layout: IdLayout,
        source: TableSource,
        stage: WaitStage,
        guard: Callable[[tf.data.Dataset], tf.data.Dataset],
        pack: Callable[[Sequence[Any]], Nest],
        weights: ServedWeights,
        priorities: TablePriorities,
        *,
        max_samples: int,
        timeout_s: float,
        keeps: bool,
    ) -> None:
        self._link = link
        self._layout = layout
        self._source = source
        self._stage = stage
        self._guard = guard
        self._pack = pack
        self._weights = weights
        self._priorities = priorities
        self._max_samples = max_samples
        self._timeout_s = timeout_s
        self._rows = RowDrawer(ItemDrawer(link, source), stage, keeps=keeps)
        # Counted in graphs, without any Python.
        self._num_skipped = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._cut_functions: dict[Window, Callable[[Any], CutWindows]] = {}

    @property
    def num_skipped(self) -> int:
        """Draws of episodes that were too short for the window asked for."""
        return int(self._num_skipped)

    def episodes(
        self,
        sample_batch_size: int | None,
        boundaries: Sequence[int] | None,
        num_parallel_calls: int | None,
        preprocess: Preprocess | None,
    ) -> tf.data.Dataset:
        """Whole episodes `[L, ...]`, or batches `[B, Lmax, ...]`, without end."""
        raw = self._endless()
        if sample_batch_size is None or preprocess is not None:
            rows = raw.map(lambda sample: self._one_episode(sample, preprocess), num_parallel_calls)
            batches = self._guard(batch_episodes(rows, sample_batch_size, boundaries, drop_remainder=True))
            return self._weighed(batches, sample_batch_size)
        if boundaries is None:
            batches = self._guard(self._source.batches(raw, sample_batch_size, drop_remainder=True))
            return self._weighed(
                batches.map(lambda sample: self._deliver(sample, [sample_batch_size, -1])), sample_batch_size
            )
        batches = self._guard(self._source.bucketed_batches(raw, sample_batch_size, boundaries))
        return self._weighed(
            batches.map(lambda sample: self._deliver(sample, [tf.shape(sample.data[0])[0], -1])), sample_batch_size
        )

    def windows(
        self,
        sample_batch_size: int | None,
        window: Window,
        num_parallel_calls: int | None,
        preprocess: Preprocess | None,
    ) -> tf.data.Dataset:
        """A window of each drawn episode, `[B, burn_in + T, ...]`, without end; episodes without one are skipped."""
        rows = self._endless().map(lambda sample: self._one_window(sample, window), num_parallel_calls)
        rows = self._without_skipped(rows, window)
        outer = [window.length]
        if preprocess is not None:
            rows = rows.map(lambda sample: self._deliver(sample, [window.length], window))
            rows = rows.map(lambda items, info: (preprocess(items), info), num_parallel_calls)
        if sample_batch_size is not None:
            rows, outer = rows.batch(sample_batch_size, drop_remainder=True), [sample_batch_size, *outer]
        rows = self._guard(rows)
        if preprocess is None:
            rows = rows.map(lambda sample: self._deliver(sample, outer, window))
        return self._weighed(rows, sample_batch_size)

    def sample(self, num: int | None, window: Window | None) -> tuple[Nest, BufferInfo]:
        """`num` rows at once, leaves `[num, Lmax, ...]` or `[num, burn_in + T, ...]`; None: one, that is no batch.

        Raises:
          WaitTimeoutError: they did not come within the timeout.
        """
        size = num or 1
        if window is None:
            parts = self._rows.draw(size, self._rows.watch())
            longest = max(int(part.data[0].shape[1]) for part in parts)
            row = self._deliver(_joined([self._extended(part, longest) for part in parts]), [size, longest])
        else:
            row = self._deliver(_joined(self._windows_at_once(size, window)), [size, window.length], window)
        return self._finished(*row, is_batch=num is not None)

    def _windows_at_once(self, num: int, window: Window) -> list[Any]:
        cut_function = self._cut_functions.get(window)
        if cut_function is None:
            given = [tf.TensorSpec([None, None, size], tf.uint8) for size in self._layout.column_bytes]
            cut = tf.function(lambda columns: cut_windows(self._layout, columns, window), autograph=False)
            cut_function = self._cut_functions[window] = cut.get_concrete_function(given)
        watch, parts, missing, in_row, longest = self._rows.watch(), [], num, 0, 0
        while missing:
            for sample in self._rows.draw(missing, watch):
                cut = cut_function(list(sample.data))
                found = np.flatnonzero(cut.num_starts.numpy())
                self._priorities.delivered(sample.info, self._first(sample))
                num_drawn = num_rows(sample)
                self._num_skipped.assign_add(num_drawn - len(found))
                if len(found):
                    parts.append(_window_sample(_rows((sample, cut), found)))
                    missing -= len(found)
                    watch, in_row, longest = self._rows.watch(), 0, 0
                    continue
                in_row, longest = in_row + num_drawn, max(longest, int(tf.reduce_max(cut.lengths)))
                watch.tell_or_raise(_too_short(window, in_row, longest))
        return parts

    def _extended(self, sample: Any, length: int) -> Any:
        """The same episodes, padded to `length`."""
        columns = []
        for column, padding in zip(sample.data, self._layout.padding, strict=True):
            num, known = column.shape[:2]
            more = tf.broadcast_to(tf.constant(padding), [num, length - known, len(padding)])
            columns.append(tf.concat([column, more], axis=1))
        return sample._replace(data=tuple(columns))

    def _endless(self) -> tf.data.Dataset:
        return self._stage.endless(self._source.lasting).take(self._max_samples)

    def _one_episode(self, sample: Any, preprocess: Preprocess | None) -> tuple[Nest, BufferInfo]:
        items, info = self._deliver(sample, [-1])
        return (items if preprocess is None else preprocess(items)), info

    def _one_window(self, sample: Any, window: Window) -> tuple[Any, tf.Tensor, tf.Tensor]:
        """A sample whose columns are one window `[burn_in + T, bytes]`, how many there were, and of how many frames."""
        cut = cut_windows(self._layout, [column[None] for column in sample.data], window)
        one = tf.nest.map_structure(lambda leaf: leaf[0], cut)
        self._priorities.delivered(sample.info, self._first(sample))
        return _window_sample((sample, one)), one.num_starts, one.lengths

    def _without_skipped(self, rows: tf.data.Dataset, window: Window) -> tf.data.Dataset:
        """Samples of the rows that have a window; those that have none are counted, and too many in a row are told."""

        def look(
            state: tuple[tf.Tensor, ...], row: tuple[Any, tf.Tensor, tf.Tensor]
        ) -> tuple[tuple[tf.Tensor, ...], tuple[Any, tf.Tensor]]:
            sample, num_starts, length = row

            def skip() -> tuple[tf.Tensor, ...]:
                in_row, since, next_line, longest = state
                now = tf.timestamp()
                since = tf.where(in_row == 0, now, since)
                next_line = tf.where(in_row == 0, now + FIRST_LINE_SECONDS, next_line)
                in_row, longest = in_row + 1, tf.maximum(longest, length)
                with tf.control_dependencies([self._num_skipped.assign_add(1)]):
                    is_due = now >= tf.minimum(next_line, since + self._timeout_s)
                next_line = tf.cond(is_due, lambda: self._tell(window, in_row, since, longest), lambda: next_line)
                return in_row, since, next_line, longest

            found = num_starts > 0
            return tf.cond(found, lambda: start, skip), (sample, found)

        zero, never = tf.constant(0, tf.int64), tf.constant(0.0, tf.float64)
        start = (zero, never, never, zero)
        rows = rows.scan(start, look)
        return rows.filter(_is_found).map(_sample_of)

    def _tell(self, window: Window, in_row: tf.Tensor, since: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
        """Logs that only episodes without such a window come, or raises it; returns when the next line is due."""

        def tell(reader: EpisodeReader, in_row: Array, since: Array, longest: Array) -> np.float64:
            what, now = _too_short(window, int(in_row), int(longest)), time.time()
            if now - float(since) >= reader._timeout_s:
                raise WaitTimeoutError(f"{what}; gave up after {reader._timeout_s:g} s.")
            _logger.warning("%s", what)
            return np.float64(now + reader._link.log_interval_s)

        next_line = call_weakly(self, tell, [in_row, since, longest], tf.float64)
        next_line.set_shape([])
        return next_line

    def _deliver(
        self, sample: Any, outer: Sequence[int | tf.Tensor], window: Window | None = None
    ) -> tuple[Nest, BufferInfo]:
        """`(items, info)` of a sample with these outer axes; `weights` as rows carry them.

        Args:
          sample: whole episodes, or windows that were cut from them.
          outer: their leading axes.
          window: the kind of window.
        """
        if window is None:
            self._priorities.delivered(sample.info, self._first(sample))
        ids, leaves = self._layout.unpack(list(sample.data), outer)
        told = tf.cast(sample.info.probability, tf.float32)
        if window is not None and window.short == "drop" and window.num_steps > 1:
            # Episodes without a window make the others more likely, by a factor that is the same for all.
            told *= np.nan
        info = BufferInfo(
            ids=ids,
            probabilities=told,
            keys=tf.bitcast(sample.info.key, tf.int64),
            weights=self._weights.carried(sample.info),
            mask=ids != NO_ID,
        )
        return self._pack(leaves), info

    def _first(self, sample: Any) -> tf.Tensor | None:
        """The record of each episode's first frame, which mirrors know it by."""
        return sample.data[0][..., 0, :] if self._priorities.needs_ids else None

    def _finished(self, items: Nest, info: BufferInfo, *, is_batch: bool) -> tuple[Nest, BufferInfo]:
        return items, info._replace(weights=self._weights.finished(info.weights, is_batch=is_batch))

    def _weighed(self, rows: tf.data.Dataset, sample_batch_size: int | None) -> tf.data.Dataset:
        """The rows with their weights in place of what they carried."""
        is_batch = sample_batch_size is not None
        return rows.map(lambda items, info: self._finished(items, info, is_batch=is_batch))


def batch_episodes(
    rows: tf.data.Dataset, sample_batch_size: int | None, boundaries: Sequence[int] | None, *, drop_remainder: bool
) -> tf.data.Dataset:
    """Rows `(items, info)` of single episodes in padded batches, as far as that is asked for."""
    if sample_batch_size is None:
        return rows
    if boundaries is None:
        return pad_batches(rows, sample_batch_size, drop_remainder=drop_remainder)
    return pad_in_buckets(rows, sample_batch_size, boundaries, drop_remainder=drop_remainder)


def cut_windows(layout: IdLayout, columns: Sequence[tf.Tensor], window: Window) -> CutWindows:
    """One window of each episode, every start with the same chance, in the graph.

    Args:
      layout: how frames lie in columns.
      columns: uint8 `[n, Lmax, bytes]`, episodes with padding behind their ends.
      window: the kind of window.
    """
    record = columns[0]
    is_frame = layout.ids_in_graph(record) != NO_ID
    lengths = tf.reduce_sum(tf.cast(is_frame, tf.int64), axis=1)
    final = tf.gather(layout.is_final(record), lengths - 1, batch_dims=1)
    num = num_starts_in_graph(window, lengths, tf.cast(final, tf.int64))
    # uniform over [0, num): float64 has more digits than an episode has frames.
    chosen = tf.cast(tf.random.uniform(tf.shape(num), dtype=tf.float64) * tf.cast(num, tf.float64), tf.int64)
    steps = tf.range(-window.burn_in, window.num_steps, dtype=tf.int64)
    index = (chosen * window.stride)[:, None] + steps
    is_real = (index >= 0) & (index < lengths[:, None]) & (num > 0)[:, None]
    return CutWindows(take_frames(layout, columns, index, is_real, batch_dims=1), num, lengths)


def num_starts_in_graph(window: Window, lengths: tf.Tensor, final: tf.Tensor) -> tf.Tensor:
    """`windows.num_starts` of ended episodes in the graph; the starts are its multiples of `stride`, from 0 on.

    Args:
      window: the kind of window.
      lengths: frames of each episode, int64 `[n]`.
      final: 1 where the last frame is only a final observation, int64 `[n]`.

    >>> lengths = tf.constant([7, 2, 6], tf.int64)
    >>> num_starts_in_graph(Window(4, stride=2, short="pad"), lengths, tf.zeros(3, tf.int64)).numpy()
    array([3, 1, 2])
    """
    needed, stride = window.num_needed, window.stride

    def multiples(stop: tf.Tensor) -> tf.Tensor:
        return tf.maximum(-(-stop // stride), 0)

    if needed == 1:
        return multiples(lengths - final)
    if window.short == "drop":
        return multiples(lengths - needed + 1)
    # An episode's first window is there however short it is.
    return tf.where(lengths > final, tf.maximum(multiples(lengths - needed + 1), 1), 0)


def _window_sample(cut: tuple[Any, CutWindows]) -> Any:
    """A sample of Reverb's with the window in place of the episode, and its probability."""
    sample, windows = cut
    chance = sample.info.probability / tf.cast(tf.maximum(windows.num_starts, 1), sample.info.probability.dtype)
    return sample._replace(info=sample.info._replace(probability=chance), data=tuple(windows.columns))


def _is_found(sample: Any, found: tf.Tensor) -> tf.Tensor:
    return found


def _sample_of(sample: Any, found: tf.Tensor) -> Any:
    return sample


def _rows(nest: Any, index: Array) -> Any:
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, index), nest)


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *parts)


def _too_short(window: Window, num_drawn: int, longest: int) -> str:
    return f"no window of {window.num_steps} frames: {num_drawn} episodes drawn in a row, longest {longest}"
