"""Datasets that draw a Reverb table's items, and wait for them without ever ending in silence."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .base import BufferInfo
from .reverb_import import load_reverb
from .reverb_layout import Layout
from .reverb_link import ServerLink, Watch
from .spec import Nest

# How long Reverb waits by itself before our own stage looks, tells and decides.
_SESSION_MS = 500
_NOT_WAITING = -1.0
_SLICE_SECONDS = 0.2
_POLL_SECONDS = 0.02


@dataclasses.dataclass(frozen=True)
class SamplerKnobs:
    """Reverb's own settings of a sampling iterator.

    Attributes:
      max_in_flight_samples_per_worker: items that a worker asks for ahead.
      num_workers_per_iterator: threads that fetch; 1 keeps the order of FIFO and heap tables.
      max_samples_per_stream: items of one request before the next; -1: Reverb chooses.
      max_cycle_length: Reverb iterators that one batch is drawn from.
    """

    max_in_flight_samples_per_worker: int
    num_workers_per_iterator: int
    max_samples_per_stream: int
    max_cycle_length: int


class TableReader:
    """Draws items of one table.

    Args:
      link: the table.
      layout: how a frame lies in its columns.
      sequence_length: `L`; None where items differ.
      knobs: Reverb's settings.
      flush: confirms the caller's pending writes; called at an iterator's first `next`.
      pack: leaves to the items' nest.
      timeout_s: how long an iterator waits for an item.
      explain: what the caller knows about an empty table; added to the error.
    """

    def __init__(
        self,
        link: ServerLink,
        layout: Layout,
        sequence_length: int | None,
        knobs: SamplerKnobs,
        *,
        flush: Callable[[], None],
        pack: Callable[[Sequence[Any]], Nest],
        timeout_s: float,
        explain: Callable[[], str],
    ) -> None:
        self._link = link
        self._layout = layout
        self._length = sequence_length
        self._knobs = knobs
        self._flush = flush
        self._pack = pack
        self._timeout_s = timeout_s
        self._explain = explain
        self._pause = threading.Event()  # never set: a wait that lets other threads run

    def random(
        self,
        sample_batch_size: int | None,
        num_steps: int | None,
        num_parallel_calls: int | None,
        preprocess: Callable[[Any], Any] | None,
    ) -> tf.data.Dataset:
        """An endless dataset of `(items, info)`; see `ReverbReplayBuffer.as_dataset`."""
        raw = self._cycle(sample_batch_size, num_parallel_calls)
        if preprocess is None:
            if sample_batch_size is not None:
                raw = raw.batch(sample_batch_size, drop_remainder=True)
            return raw.map(lambda sample: self.deliver(sample, sample_batch_size, num_steps))
        dataset = raw.map(lambda sample: self._preprocessed(sample, num_steps, preprocess), num_parallel_calls)
        return dataset if sample_batch_size is None else dataset.batch(sample_batch_size, drop_remainder=True)

    def raw(self, *, max_samples: int = -1, in_order: bool = False) -> tf.data.Dataset:
        """Reverb's dataset of samples `(info, columns [L, ...])`; it ends when it has waited for a moment."""
        dtypes, shapes = self._layout.dataset_types(self._length)
        knobs = self._knobs
        return load_reverb().TrajectoryDataset(
            self._link.address,
            self._link.table,
            dtypes,
            shapes,
            max_in_flight_samples_per_worker=1 if in_order else knobs.max_in_flight_samples_per_worker,
            num_workers_per_iterator=1 if in_order else knobs.num_workers_per_iterator,
            max_samples_per_stream=knobs.max_samples_per_stream,
            rate_limiter_timeout_ms=min(_SESSION_MS, max(1, int(self._timeout_s * 1000))),
            max_samples=max_samples,
        )

    def deliver(self, sample: Any, batch: int | None, num_steps: int | None) -> tuple[Nest, BufferInfo]:
        """`(items, info)` from a sample of Reverb's, in the graph or eagerly.

        Args:
          sample: columns `[B, L, ...]`, or `[L, ...]` where `batch` is None.
          batch: `B`.
          num_steps: the first so many frames; None: single frames `[B, ...]` in tables with ids, else whole items.
        """
        columns = list(sample.data)
        time_axis = 0 if batch is None else 1
        outer: list[int] = [] if batch is None else [batch]
        if num_steps is None and self._layout.has_ids:
            columns = [column[0] if batch is None else column[:, 0] for column in columns]
        else:
            if num_steps is not None and num_steps != self._length:
                columns = [column[:num_steps] if batch is None else column[:, :num_steps] for column in columns]
            length = columns[0].shape[time_axis]
            outer.append(-1 if length is None else length)
        ids, leaves = self._layout.unpack(columns, outer)
        return self._pack(leaves), _info(ids, sample.info)

    def sample(self, num: int) -> Any:
        """`num` items at once, as a sample of Reverb's with columns `[num, L, ...]`.

        Raises:
          WaitTimeoutError: they did not come within the timeout.
        """
        watch = Watch(self._link, self._timeout_s)
        parts: list[Any] = []
        missing = num
        while missing:
            part = self._link.call(lambda missing=missing: self._draw_now(missing), "samples")
            if part is not None:
                parts.append(part)
                missing -= int(part.info.key.shape[0])
            elif (what := self._link.what_is_missing()) is not None:
                watch.tell_or_raise(what, self._explain())
        return parts[0] if len(parts) == 1 else tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *parts)

    def _draw_now(self, num: int) -> Any:
        return next(iter(self.raw(max_samples=num).batch(num)), None)

    def _cycle(self, sample_batch_size: int | None, num_parallel_calls: int | None) -> tf.data.Dataset:
        cycle = min(sample_batch_size or 1, self._knobs.max_cycle_length)
        if cycle == 1:
            return self._waiting()
        return tf.data.Dataset.range(cycle).interleave(
            lambda _: self._waiting(),
            cycle_length=cycle,
            num_parallel_calls=num_parallel_calls or tf.data.AUTOTUNE,
            deterministic=False,
        )

    def _waiting(self) -> tf.data.Dataset:
        """Reverb's samples without end: whenever its dataset ends, our own stage looks why and waits.

        While samples come, no Python runs.
        """

        def turn(state: tuple[tf.Tensor, tf.Tensor], _: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
            since, next_line, ready = tf.numpy_function(
                self._wait_slice, list(state), [tf.float64, tf.float64, tf.bool], stateful=True
            )
            for scalar in (since, next_line, ready):
                scalar.set_shape([])
            return (since, next_line), ready

        start = (tf.constant(_NOT_WAITING, tf.float64), tf.constant(0.0, tf.float64))
        turns = tf.data.Dataset.range(sys.maxsize).scan(start, turn)
        return turns.flat_map(lambda ready: self.raw().take(tf.where(ready, tf.constant(-1, tf.int64), 0)))

    def _wait_slice(self, since: np.ndarray, next_line: np.ndarray) -> tuple[np.float64, np.float64, np.bool_]:
        """Waits a moment, so that an iterator that is dropped meanwhile can end.

        Args:
          since: monotonic time at which this wait began, or `_NOT_WAITING`.
          next_line: when the next line is due.

        Returns:
          The two again, and whether the table can be sampled.

        Raises:
          WaitTimeoutError: the time is up; in a graph this is an `InvalidArgumentError` with the same text.
        """
        self._flush()
        watch = Watch(self._link, self._timeout_s)
        if float(since) != _NOT_WAITING:
            watch.resume(float(since), float(next_line))
        ready = self._wait_until_ready(watch)
        began, line = watch.state()
        return np.float64(_NOT_WAITING if ready else began), np.float64(line), np.bool_(ready)

    def _wait_until_ready(self, watch: Watch) -> bool:
        end = time.monotonic() + _SLICE_SECONDS
        while True:
            what = self._link.what_is_missing()
            if what is None:
                return True
            watch.tell_or_raise(what, self._explain())
            if time.monotonic() >= end:
                return False
            self._pause.wait(_POLL_SECONDS)

    def _preprocessed(
        self, sample: Any, num_steps: int | None, preprocess: Callable[[Any], Any]
    ) -> tuple[Nest, BufferInfo]:
        """One item through the caller's function: the whole item goes in, as in TF-Agents."""
        items, info = self.deliver(sample, None, self._length)
        items = preprocess(items)
        if num_steps is None and self._layout.has_ids:
            return tf.nest.map_structure(lambda leaf: leaf[0], items), info._replace(ids=info.ids[0], mask=info.mask[0])
        if num_steps is not None and num_steps != self._length:
            items = tf.nest.map_structure(lambda leaf: leaf[:num_steps], items)
            info = info._replace(ids=info.ids[:num_steps], mask=info.mask[:num_steps])
        return items, info


def _info(ids: tf.Tensor, info: Any) -> BufferInfo:
    return BufferInfo(
        ids=ids,
        probabilities=tf.cast(info.probability, tf.float32),
        keys=tf.bitcast(info.key, tf.int64),
        weights=tf.ones_like(info.probability, tf.float32),
        mask=tf.ones_like(ids, tf.bool),
    )
