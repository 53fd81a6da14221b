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
        self._drawer = ItemDrawer(link, lambda num: self.raw(max_samples=num))
        self._deliver_functions: dict[tuple[int, int | None], Callable[[Any], tuple[Nest, BufferInfo]]] = {}
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
        if not self._layout.has_ids and num_steps is not None and num_steps != self._length:
            shuffle = (self._length // num_steps if self._length else 100) * (sample_batch_size or 1)
            dataset = self._whole_items(raw, num_steps, num_parallel_calls, preprocess).shuffle(max(1, shuffle))
            return dataset if sample_batch_size is None else dataset.batch(sample_batch_size, drop_remainder=True)
        if preprocess is None:
            if sample_batch_size is not None:
                raw = raw.batch(sample_batch_size, drop_remainder=True)
            return raw.map(lambda sample: self.deliver(sample, sample_batch_size, num_steps))
        dataset = raw.map(lambda sample: self._preprocessed(sample, num_steps, preprocess), num_parallel_calls)
        return dataset if sample_batch_size is None else dataset.batch(sample_batch_size, drop_remainder=True)

    def drawer_of(self, table: str) -> ItemDrawer:
        """Draws from another table of the same items."""
        return ItemDrawer(self._link, lambda num: self.raw(table=table, max_samples=num))

    def raw(self, *, table: str | None = None, max_samples: int = -1, in_order: bool = False) -> tf.data.Dataset:
        """Reverb's dataset of samples `(info, columns [L, ...])`; it ends when it has waited for a moment."""
        dtypes, shapes = self._layout.dataset_types(self._length)
        knobs = self._knobs
        return load_reverb().TrajectoryDataset(
            self._link.address,
            table or self._link.table,
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

    def sample(self, num: int, num_steps: int | None) -> tuple[Nest, BufferInfo]:
        """`num` rows at once, leaves `[num, ...]`.

        Raises:
          WaitTimeoutError: they did not come within the timeout.
        """
        watch = Watch(self._link, self._timeout_s)
        parts: list[Any] = []
        missing = num
        while missing:
            part = self._drawer.draw(missing)
            if part is not None:
                parts.append(part)
                missing -= int(part.info.key.shape[0])
            elif (what := self._link.what_is_missing()) is not None:
                watch.tell_or_raise(what, self._explain())
        drawn = parts[0] if len(parts) == 1 else tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *parts)
        return self._deliver_now(num, num_steps)(drawn)

    def when_ready(self, times: int) -> tf.data.Dataset:
        """`times` elements, each delivered when the table can be sampled."""
        return self._turns().filter(lambda ready: ready).take(times)

    def in_order(self, sample_batch_size: int | None, num_steps: int | None, preprocess: Any) -> tf.data.Dataset:
        """One pass of a table that removes what it delivers in a fixed order; what is in it at the first `next`."""

        def size() -> np.int64:
            info = self._link.info()
            if info.max_times_sampled != 1:
                raise ValueError(
                    f"table {info.name!r} removes nothing that it delivers (max_times_sampled={info.max_times_sampled}): "
                    "an ordered pass would give its first item for ever; make the table with scannable=True."
                )
            return np.int64(info.current_size)

        def one_pass(_: tf.Tensor) -> tf.data.Dataset:
            num = tf.numpy_function(size, [], tf.int64, stateful=True)
            num.set_shape([])
            return self.raw(in_order=True).take(num)

        dataset = self._whole_items(self.when_ready(1).flat_map(one_pass), num_steps, None, preprocess)
        return dataset if sample_batch_size is None else dataset.batch(sample_batch_size, drop_remainder=True)

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
        return self._turns().flat_map(lambda ready: self.raw().take(tf.where(ready, tf.constant(-1, tf.int64), 0)))

    def _turns(self) -> tf.data.Dataset:
        """Bools without end: whether the table can be sampled, after having waited a moment for it."""

        def turn(state: tuple[tf.Tensor, tf.Tensor], _: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
            since, next_line, ready = tf.numpy_function(
                self._wait_slice, list(state), [tf.float64, tf.float64, tf.bool], stateful=True
            )
            for scalar in (since, next_line, ready):
                scalar.set_shape([])
            return (since, next_line), ready

        start = (tf.constant(_NOT_WAITING, tf.float64), tf.constant(0.0, tf.float64))
        return tf.data.Dataset.range(sys.maxsize).scan(start, turn)

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

    def _whole_items(
        self, raw: tf.data.Dataset, num_steps: int | None, num_parallel_calls: int | None, preprocess: Any
    ) -> tf.data.Dataset:
        """Items of tables that others write; with `num_steps` each cut into windows side by side, as in TF-Agents."""

        def whole(sample: Any) -> tuple[Nest, BufferInfo]:
            items, info = self.deliver(sample, None, self._length)
            return (items if preprocess is None else preprocess(items)), info

        dataset = raw.map(whole, num_parallel_calls)
        if num_steps is None or num_steps == self._length:
            return dataset

        def cut(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
            num_rows = tf.shape(info.ids)[0] // num_steps
            items, ids, mask = tf.nest.map_structure(
                lambda leaf: tf.reshape(leaf[: num_rows * num_steps], [num_rows, num_steps, *leaf.shape[1:]]),
                (items, info.ids, info.mask),
            )
            alone = tf.nest.map_structure(
                lambda leaf: tf.repeat(leaf[None], num_rows, axis=0), (info.probabilities, info.keys, info.weights)
            )
            return items, BufferInfo(ids, *alone, mask)

        return dataset.map(cut).unbatch()

    def _deliver_now(self, num: int, num_steps: int | None) -> Callable[[Any], tuple[Nest, BufferInfo]]:
        function = self._deliver_functions.get((num, num_steps))
        if function is None:
            function = tf.function(lambda sample: self.deliver(sample, num, num_steps), autograph=False)
            self._deliver_functions[num, num_steps] = function
        return function


class ItemDrawer:
    """Draws a few items at once, nothing ahead.

    A dataset's eager iterator costs several milliseconds to make; taking the one element inside a
    `tf.function` costs a tenth of that.

    Args:
      link: the server.
      table: the table to draw from.
      make: builds a dataset of at most so many samples of the table.
    """

    def __init__(self, link: ServerLink, make: Callable[[int], tf.data.Dataset]) -> None:
        self._link = link
        self._make = make
        self._functions: dict[int, Callable[[], Any]] = {}

    def draw(self, num: int) -> Any:
        """Up to `num` samples of Reverb's as one, columns `[n, L, ...]`; None where none came for a moment.

        Raises:
          WaitTimeoutError: the server does not answer within the link's timeout.
        """
        function = self._functions.get(num)
        if function is None:
            function = tf.function(lambda: self._make(num).batch(num).get_single_element(), autograph=False)
            if len(self._functions) > 64:
                self._functions.clear()
            self._functions[num] = function
        try:
            return self._link.call(function, "samples")
        except tf.errors.InvalidArgumentError as error:
            if "empty" in str(error).lower():
                return None
            raise


def _info(ids: tf.Tensor, info: Any) -> BufferInfo:
    return BufferInfo(
        ids=ids,
        probabilities=tf.cast(info.probability, tf.float32),
        keys=tf.bitcast(info.key, tf.int64),
        weights=tf.ones_like(info.probability, tf.float32),
        mask=tf.ones_like(ids, tf.bool),
    )
