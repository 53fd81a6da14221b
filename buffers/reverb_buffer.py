"""A replay buffer whose frames live in a table of a Reverb server, in this process or in another."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import tensorflow as tf

from .adds import Adds
from .base import BufferInfo, Ids, Items, ReplayBuffer, check_count, check_parallel_calls
from .callbacks import call_weakly
from .episode_ends import EpisodeRule, FinalFrame
from .nests import Array, Nest
from .priorities import check_keys, check_priorities
from .reverb_guard import ServerGuard
from .reverb_import import load_reverb
from .reverb_knobs import AUTO, check_auto, resolve_knobs
from .reverb_layout import PackedLayout
from .reverb_link import ServerLink
from .reverb_pass import ScanPass
from .reverb_reader import TableReader
from .reverb_scan import ScannedFrames, TableScanner
from .reverb_source import ItemDrawer, TableSource
from .reverb_streams import StreamWriter
from .reverb_table import served_table
from .reverb_wait import WaitStage
from .reverb_writer import ItemWriter, default_chunk_length
from .server import ReplayServer
from .spec import DataSpec, ItemChecker
from .stats import BufferStats
from .tables import Fifo, MinSize, Remover, Sampler, TableConfig, Uniform
from .windows import Window, resolve_window

_logger = logging.getLogger(__name__)

_TD_EPSILON = 1e-6
# Above 50 Reverb prints a warning for each item.
_DEFAULT_PENDING_ITEMS = 48


class ReverbReplayBuffer(ReplayBuffer):
    """Writes streams into a Reverb table as windows, and draws the table's items.

    An item is `sequence_length` consecutive frames of one episode of one stream; inside an episode
    items start every `stride` frames, from its first frame on. What can be drawn is what was
    written: an episode shorter than `sequence_length` gives no item; with a shorter `num_steps` an
    item's first frames come, so that the last `sequence_length - 1` frames of an episode start no
    window. In items of one frame, an episode's last frame is left out where it is only a final
    observation.

    Tables of a `TableConfig` hold frames as packed bytes with their ids (`reverb_layout.py`); in
    those that others made (a `reverb.Table` that TF-Agents' observers fill) ids are -1, `num_steps=None` gives
    whole items `[B, L, ...]`, and a shorter `num_steps` cuts each into windows side by side, all as in TF-Agents.

    Reverb cannot be seeded: draws differ in each run.

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame.
      table_name: the table.
      sequence_length: `L`, frames in an item; None: what the table says, or items of different lengths.
      server_address: `host:port` of the server; this or `local_server`.
      local_server: a `ReplayServer` or `reverb.Server` in this process.
      dataset_buffer_size: TF-Agents' name for `max_in_flight_samples_per_worker`.
      max_cycle_length: Reverb iterators that a batch is drawn from, at most `sample_batch_size`. TF-Agents takes 32;
        more than 1 was slower here.
      num_workers_per_iterator: threads that fetch; -1: 4, or 1 where the table's sampler keeps an order.
      max_samples_per_stream: items of one request before the next; -1: Reverb chooses.
      rate_limiter_timeout_ms: how long a read waits for the table before it raises; -1: `timeout_s`.
      batch_size: `B`, streams that `add_batch` writes side by side.
      stride: frames from one item's start to the next in an episode; None: what the table says, or 1.
      timeout_s: how long writes, and calls to the server, may take before they raise.
      log_interval_s: seconds between two lines about the same wait; the first comes after at most 1 s.
      end_of_episode_fn: `items -> bool [B]` (`[B, T]` in `add_sequence`) for specs that do not tell ends.
      final_frame: `'auto'`, `'observation'` or `'ordinary'` (`episode_ends.py`).
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      max_in_flight_samples_per_worker: items that each worker fetches ahead; None: 64, or 1 where the
        sampler keeps an order. A dataset looks `workers * this` items ahead, and one batch.
      max_samples: items after which a dataset ends; -1: never.
      max_chunk_length: frames that Reverb compresses together; None: by their size (`default_chunk_length`). Frames
        are sent when their chunk is full or at a `flush`, so that other processes see them later by up to this many.
      max_pending_items: items that may wait for the server; then `add_batch` waits until half are confirmed.

    Raises:
      ImportError: reverb is absent or does not fit the installed TensorFlow.
      TypeError: a count is no int.
      ValueError: a count is below 1, or a timeout is not positive and finite.
      ValueError: not exactly one of `server_address` and `local_server` is given.
      ValueError: `dataset_buffer_size` and `max_in_flight_samples_per_worker` are both given.
      ValueError: several workers for a table whose sampler keeps an order.
      ValueError: the server has no such table, or it was made for another spec, `sequence_length` or `stride`.
      WaitTimeoutError: the server does not answer within `timeout_s`.

    >>> table = TableConfig("replay", tf.TensorSpec([], tf.int64), max_size=100, sequence_length=2)
    >>> with ReplayServer([table]) as server, ReverbReplayBuffer(
    ...     tf.TensorSpec([], tf.int64), "replay", 2, local_server=server
    ... ) as buffer:
    ...     _ = buffer.add_sequence(np.array([[7, 8]]))
    ...     items, info = buffer.sample(3, num_steps=2)
    >>> items.numpy().tolist()
    [[7, 8], [7, 8], [7, 8]]
    """

    def __init__(
        self,
        data_spec: Nest,
        table_name: str,
        sequence_length: int | None,
        server_address: str | None = None,
        local_server: Any = None,
        dataset_buffer_size: int | None = None,
        max_cycle_length: int = 1,
        num_workers_per_iterator: int = AUTO,
        max_samples_per_stream: int = AUTO,
        rate_limiter_timeout_ms: int = AUTO,
        *,
        batch_size: int = 1,
        stride: int | None = None,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        cast: bool = False,
        max_in_flight_samples_per_worker: int | None = None,
        max_samples: int = AUTO,
        max_chunk_length: int | None = None,
        max_pending_items: int = _DEFAULT_PENDING_ITEMS,
    ) -> None:
        load_reverb()
        if (server_address is None) == (local_server is None):
            raise ValueError("give exactly one of server_address and local_server.")
        if server_address == "":
            raise ValueError("server_address must be 'host:port', got ''.")
        check_count("batch_size", batch_size)
        check_count("max_pending_items", max_pending_items)
        check_count("sequence_length", sequence_length, optional=True)
        check_count("stride", stride, optional=True)
        check_count("max_chunk_length", max_chunk_length, optional=True)
        check_auto("rate_limiter_timeout_ms", rate_limiter_timeout_ms, 0)
        _check_seconds("timeout_s", timeout_s)
        _check_seconds("log_interval_s", log_interval_s)
        self._spec = DataSpec(data_spec)
        self._batch_size = int(batch_size)
        self._local_server = local_server
        self._owned_server: ReplayServer | None = None
        self._rule = EpisodeRule(self._spec, end_of_episode_fn, final_frame)
        self._link = ServerLink(
            server_address or f"localhost:{local_server.port}",
            table_name,
            timeout_s=float(timeout_s),
            log_interval_s=float(log_interval_s),
        )
        self._table = served_table(self._link, self._spec, sequence_length, stride)
        knobs = resolve_knobs(
            self._table,
            dataset_buffer_size=dataset_buffer_size,
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            max_samples=max_samples,
            max_cycle_length=max_cycle_length,
        )
        self._streams = self._stream_writer(max_chunk_length, max_pending_items)
        checker = ItemChecker(self._spec, self._batch_size, cast=cast)
        self._adds = Adds(self._spec, checker, self._batch_size, self._streams)
        read_timeout_s = timeout_s if rate_limiter_timeout_ms == AUTO else rate_limiter_timeout_ms / 1000
        source = TableSource(self._link, self._table.layout, self._table.sequence_length, knobs)
        self._stage = WaitStage(self._link, self._streams.flush, read_timeout_s, self._streams.explain_no_item)
        self._guard = ServerGuard(self._link, read_timeout_s)
        self._reader = TableReader(
            self._link,
            self._table.layout,
            self._table.sequence_length,
            knobs,
            source,
            self._stage,
            self._guard.over,
            self._pack_for_dataset,
            removes=self._table.max_times_sampled > 0,
        )
        self._scanner: TableScanner | None = None
        if self._table.scan_table is not None:
            drawer = ItemDrawer(self._link, source, self._table.scan_table)
            self._scanner = TableScanner(self._link, drawer, self._table.scan_table, self._packed_layout())
        self._scan_lock = threading.Lock()
        self._told_steps: set[int | None] = set()
        self._closed = False
        # Also runs when the process ends.
        self._end_waits = weakref.finalize(self, self._link.end_waits)

    @classmethod
    def local(
        cls,
        data_spec: Nest,
        *,
        batch_size: int = 1,
        max_size: int,
        sequence_length: int,
        stride: int = 1,
        scannable: bool = True,
        sampler: Sampler = Uniform(),  # noqa: B008 - frozen
        remover: Remover = Fifo(),  # noqa: B008 - frozen
        min_size_to_sample: int = 1,
        max_times_sampled: int = 0,
        table_name: str = "replay",
        port: int | None = None,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        cast: bool = False,
        max_cycle_length: int = 1,
        num_workers_per_iterator: int = AUTO,
        max_samples_per_stream: int = AUTO,
        max_in_flight_samples_per_worker: int | None = None,
        max_samples: int = AUTO,
        max_chunk_length: int | None = None,
        max_pending_items: int = _DEFAULT_PENDING_ITEMS,
    ) -> ReverbReplayBuffer:
        """A buffer that starts its own server in this process, and stops it on `close`.

        Other processes reach it by `server_address`. Arguments are those of `TableConfig` and of the constructor.

        Raises:
          TypeError, ValueError, ImportError: as `TableConfig` and the constructor.

        >>> with ReverbReplayBuffer.local(tf.TensorSpec([], tf.float32), max_size=10, sequence_length=2) as buffer:
        ...     for value in range(3):
        ...         _ = buffer.add_batch(np.array([value], np.float32))
        ...     buffer.gather_all().numpy().tolist()
        [[0.0, 1.0, 2.0]]
        """
        table = TableConfig(
            table_name,
            data_spec,
            max_size,
            sampler,
            remover,
            MinSize(min_size_to_sample),
            max_times_sampled,
            sequence_length,
            stride,
            scannable,
        )
        server = ReplayServer([table], port)
        try:
            buffer = cls(
                data_spec,
                table_name,
                sequence_length,
                None,
                server,
                None,
                max_cycle_length,
                num_workers_per_iterator,
                max_samples_per_stream,
                batch_size=batch_size,
                stride=stride,
                timeout_s=timeout_s,
                log_interval_s=log_interval_s,
                end_of_episode_fn=end_of_episode_fn,
                final_frame=final_frame,
                cast=cast,
                max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
                max_samples=max_samples,
                max_chunk_length=max_chunk_length,
                max_pending_items=max_pending_items,
            )
        except BaseException:
            server.stop()
            raise
        buffer._owned_server = server
        return buffer

    @property
    def data_spec(self) -> Nest:
        return self._spec.nest

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def capacity(self) -> int:
        return self._table.capacity

    @property
    def capacity_unit(self) -> Literal["items"]:
        return "items"

    @property
    def table_name(self) -> str:
        """The table that is written and drawn from."""
        return self._table.name

    @property
    def server_address(self) -> str:
        """`host:port`, for buffers in other processes."""
        return self._link.address

    @property
    def local_server(self) -> Any:
        """The server given or owned, or None."""
        return self._local_server

    @property
    def py_client(self) -> Any:
        """A `reverb.Client` of the server, as TF-Agents' observers take it."""
        return self._link.client

    @property
    def tf_client(self) -> Any:
        """A `reverb.TFClient` of the server."""
        return load_reverb().TFClient(self._link.address)

    def get_table_info(self) -> Any:
        """Reverb's `TableInfo` of the table, as of now.

        Raises:
          WaitTimeoutError: the server does not answer within `timeout_s`.
        """
        return self._link.info()

    def __len__(self) -> int:
        self.flush()
        return int(self._link.info().current_size) * self._table.frames_per_item

    def num_frames(self) -> tf.Tensor:
        """Frames that the table's items stand for, int64 `[]`, live inside a `tf.function`.

        Reverb counts items; each stands for the `stride` frames (at most `sequence_length`) by which
        the next one starts later. The rest of an episode's last item is not counted: the number is
        exact for items of one frame, and otherwise too low by less than a window per episode.
        """
        if tf.executing_eagerly():
            return tf.constant(len(self), tf.int64)
        frames = call_weakly(self, lambda buffer: np.int64(len(buffer)), [], tf.int64)
        frames.set_shape([])
        return frames

    # Writing

    def add_batch(self, items: Items, *, end_of_episode: Any = None, priorities: Any = None) -> Ids:
        """Writes one frame of each stream, and the items that it completes.

        The server confirms items later, at the latest when the buffer is read, flushed or closed, or
        when `max_pending_items` wait.

        Args:
          items: nest matching `data_spec`, leaves `[B, ...]`: NumPy arrays, eager tensors, or inside
            a `tf.function` symbolic tensors. Copied.
          end_of_episode: bool `[B]`, marks ends that the items do not tell.
          priorities: `[B]`, of the items that start at these frames; 1 without.

        Returns:
          The frames' ids, int64 `[B]`: a tensor where the items are tensors, else an array. -1 in
          tables with plain columns.

        Raises:
          ValueError: the items do not match `data_spec`; the message names the field. Nothing is written.
          ValueError: `end_of_episode` or `priorities` does not fit. Nothing is written.
          ValueError: the buffer is closed, or has no `sequence_length`.
          WaitTimeoutError: too much is pending and the server does not confirm it within `timeout_s`. The frame
            is written all the same, and its items may arrive later: adding it again would store it twice.
        """
        return self._adds.add_batch(items, end_of_episode, priorities)

    def add_sequence(self, items: Items, *, end_of_episode: Any = None, priorities: Any = None) -> Ids:
        """Writes `T` frames of each stream, leaves `[B, T, ...]`: the same as `T` calls of `add_batch`.

        Returns:
          The frames' ids, int64 `[B, T]`. `T = 0` writes nothing.

        Raises:
          ValueError: as `add_batch`; also where fields disagree about `T`. Nothing is written.
          WaitTimeoutError: as `add_batch`; what came before is written.
        """
        return self._adds.add_sequence(items, end_of_episode, priorities)

    def end_stream(self, b: int | None = None) -> None:
        """Stream `b` (None: all of them) stops here: no item goes past its newest frame.

        Raises:
          ValueError: there is no stream `b`.
        """
        if b is not None and not 0 <= b < self._batch_size:
            raise ValueError(f"there is no stream {b}: this buffer has streams 0 to {self._batch_size - 1}.")
        self._streams.end_stream(b)

    def flush(self) -> None:
        """Returns when the server has confirmed all that was added.

        Raises:
          WaitTimeoutError: it has not within `timeout_s`; the message has the numbers.
        """
        self._streams.flush()

    # Reading

    def as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        num_parallel_calls: int | None = None,
        sequence_preprocess_fn: Callable[[Any], Any] | None = None,
        single_deterministic_pass: bool = False,
        *,
        window: Window | None = None,
        epochs: int | None = None,
    ) -> tf.data.Dataset:
        """A live dataset of `(items, BufferInfo)`; lists in `data_spec` come out as tuples.

        By default it never ends: each row is drawn by the table's sampler. At its first `next` it
        confirms this buffer's pending writes, then waits until the table can be sampled, which it
        tells on the log; when the timeout is up, `next` raises. It never just ends.

        Args:
          sample_batch_size: `B`; None: elements without a `B` axis.
          num_steps: `T`, the same as `window=Window(T)`: an item's first `T` frames. None: an item's first frame,
            without a `T` axis.
          num_parallel_calls: of `sequence_preprocess_fn`, and of the interleave where `max_cycle_length` is above 1.
          sequence_preprocess_fn: items of one draw, leaves `[L, ...]`, the whole item -> items; applied to each before
            it is shortened and batched. In passes it gets `[T, ...]`.
          single_deterministic_pass: each frame or window once, oldest first, stream after stream, then the end;
            nothing is removed. It needs `scannable`, and holds the table's frames in this process's memory while it
            runs. What is there is read at the first `next`. With `num_steps` windows do not overlap; without
            `sample_batch_size` the last one of an episode may be shorter. With `window` every start comes once.
            `keys` are -1. A table without scan table that removes in a fixed order what it delivers
            (FIFO, `max_times_sampled=1`) is emptied, as in TF-Agents.
          window: see `Window`; `boundaries='ignore'` is refused.
          epochs: draw without replacement: this many shuffled passes; needs `scannable`.

        Returns:
          Leaves `[B, T, ...]`, `BufferInfo` as there.

        Raises:
          TypeError: an argument has the wrong type.
          ValueError: a size is below 1; `num_steps` and `window`, or `epochs` and
            `single_deterministic_pass`, are both given.
          ValueError: `num_steps` is above `sequence_length`, or does not divide that of a table that others made.
          ValueError: `num_parallel_calls` is above `sample_batch_size`.
          ValueError: a pass of a table that cannot be read in order; the message says what is missing.
          tf.errors.InvalidArgumentError: at `next`: the timeout is up; the message says what was missing.
        """
        self._check_open()
        check_count("sample_batch_size", sample_batch_size, optional=True)
        check_parallel_calls(num_parallel_calls)
        check_count("epochs", epochs, optional=True)
        is_pass = single_deterministic_pass or epochs is not None
        steps = self._steps(num_steps, window, is_pass=is_pass)
        if epochs is not None and single_deterministic_pass:
            raise ValueError("give epochs (shuffled) or single_deterministic_pass (ordered), not both.")
        if num_parallel_calls and sample_batch_size and num_parallel_calls > sample_batch_size:
            raise ValueError(
                f"num_parallel_calls cannot be bigger than sample_batch_size {num_parallel_calls} > {sample_batch_size}"
            )
        if not is_pass:
            return self._reader.random(sample_batch_size, steps, num_parallel_calls, sequence_preprocess_fn)
        if self._scanner is None:
            if epochs is not None or not self._table.can_pass_by_removing:
                raise ValueError(self._table.why_no_scan())
            return self._reader.in_order(sample_batch_size, steps, sequence_preprocess_fn)
        dataset = ScanPass(self._packed_layout(), self._rule, self._scan, self._pack_for_dataset).dataset(
            self._stage.when_ready(epochs or 1),
            sample_batch_size if sequence_preprocess_fn is None else None,
            None if steps is None else Window(steps),
            shift=1 if window is not None or num_steps is None or epochs else num_steps,
            keep_short=num_steps is not None and single_deterministic_pass and sample_batch_size is None,
            shuffled=epochs is not None,
        )
        if sequence_preprocess_fn is None:
            return dataset
        dataset = dataset.map(lambda items, info: (sequence_preprocess_fn(items), info), num_parallel_calls)
        return dataset if sample_batch_size is None else dataset.batch(sample_batch_size)

    def sample(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
    ) -> tuple[Items, BufferInfo]:
        """One draw at once, as eager tensors; arguments, shapes and odds as `as_dataset`.

        Nothing is fetched ahead: the draw sees all that was added before.

        Raises:
          TypeError, ValueError: as `as_dataset`.
          WaitTimeoutError: nothing could be drawn within the timeout; the message says why.
        """
        self._check_open()
        check_count("sample_batch_size", sample_batch_size, optional=True)
        steps = self._steps(num_steps, window, is_pass=False)
        if not tf.executing_eagerly():
            return self._sample_in_graph(sample_batch_size, steps)
        return self._sample(sample_batch_size, steps)

    def get(self, ids: Ids, num_steps: int | None = None) -> Items:
        """Refuses: a Reverb table cannot be read by frame id.

        Raises:
          TypeError: always; the message says what to use.
        """
        raise TypeError(
            "ReverbReplayBuffer.get: a Reverb table cannot be read by frame id; draw with sample() or as_dataset(), "
            "read everything with gather_all(), or keep the frames in a TFUniformReplayBuffer."
        )

    def update_priorities(self, keys: Any, priorities: Any = None, *, td_errors: Any = None) -> None:
        """Sets the raw priorities of the items with these keys; Reverb does not tell which keys were gone.

        Args:
          keys: int64 `[n]`, `BufferInfo.keys`.
          priorities: `[n]`, finite and at least 0.
          td_errors: `[n]`, finite, instead: the priority is `abs(td_error) + 1e-6`.

        Raises:
          ValueError: not exactly one of `priorities` and `td_errors` is given.
          ValueError: shapes differ, or a value is refused; the message names the position.
          WaitTimeoutError: the server does not answer within `timeout_s`.
        """
        if (priorities is None) == (td_errors is None):
            raise ValueError("give priorities or td_errors, exactly one of them.")
        self._check_open()
        is_td = priorities is None
        values = td_errors if is_td else priorities
        if tf.executing_eagerly():
            self._update(check_keys(keys), np.asarray(values), is_td)
        else:
            call_weakly(self, ReverbReplayBuffer._update, [keys, values, is_td], tf.bool)

    def gather_all(self) -> Items:
        """Every frame that the table's items hold, oldest first, leaves `[B, T, ...]`.

        `B` are the streams that are in the table, of every process that wrote into it.

        Raises:
          ValueError: the table cannot be scanned; the message says what is missing.
          ValueError: streams differ in length; the message says how to read them.
          WaitTimeoutError: the server does not answer within `timeout_s`.
        """
        self._check_open()
        if self._scanner is None:
            raise ValueError(self._table.why_no_scan())
        frames = self._scan()
        lengths = [stream.stop - stream.start for stream in frames.streams]
        lengths += [0] * (self._batch_size - len(lengths) if self._streams.has_written or not lengths else 0)
        if len(set(lengths)) > 1:
            raise ValueError(
                f"gather_all gives [B, T, ...], but the streams in table {self._table.name!r} have {min(lengths)} to "
                f"{max(lengths)} frames; read them with as_dataset(single_deterministic_pass=True)."
            )
        shape = (len(lengths), lengths[0])
        leaves = self._packed_layout().unpack_numpy(frames.columns)
        return self._spec.pack([tf.constant(leaf.reshape(*shape, *leaf.shape[1:])) for leaf in leaves])

    def clear(self) -> None:
        """Empties the table, its scan table and their counters; streams go on with a new episode.

        Iterators that run still deliver what they had fetched ahead.
        """
        self._check_open()
        tables = [name for name in (self._table.name, self._table.scan_table) if name is not None]

        def reset() -> None:
            for name in tables:
                self._link.client.reset(name)

        self._streams.restart(lambda: self._link.call(reset, "a reset"))

    def stats(self) -> BufferStats:
        """Counts and shares as of now; None where Reverb does not tell."""
        self.flush()
        info = self._link.info()
        limiter = info.rate_limiter_info
        items, inserted = int(info.current_size), int(limiter.insert_stats.completed)
        sampled = int(limiter.sample_stats.completed)
        added = inserted * self._table.frames_per_item
        return BufferStats(
            frames=items * self._table.frames_per_item,
            capacity=self._table.capacity,
            capacity_unit="items",
            fill_share=items / self._table.capacity,
            added=added,
            sampled=sampled,
            evicted=(inserted - items) * self._table.frames_per_item,
            evicted_unsampled=None,
            bytes_held=None,
            bytes_capacity=None,
            episodes=None,
            skipped=0,
            replay_ratio=sampled / added if added else None,
            host=urlsplit(f"//{self._link.address}").hostname or self._link.address,
        )

    def close(self) -> None:
        """Flushes, then ends the writer and the server if the buffer owns it. Closing twice is fine.

        Raises:
          WaitTimeoutError: what is pending was not confirmed in time; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._streams.close()
        finally:
            self._end_waits()
            self._guard.close()
            if self._owned_server is not None:
                self._owned_server.stop()

    # How it is done

    def _stream_writer(self, max_chunk_length: int | None, max_pending_items: int) -> StreamWriter:
        table, link, batch_size = self._table, self._link, self._batch_size

        def make_writer() -> ItemWriter:
            if table.sequence_length is None:
                raise ValueError("add_batch needs sequence_length: it says how long the items are that are written.")
            return ItemWriter(
                link,
                table.scan_table,
                num_columns=table.layout.num_columns,
                batch_size=batch_size,
                sequence_length=table.sequence_length,
                stride=table.stride,
                chunk_length=max_chunk_length or default_chunk_length(table.layout, table.sequence_length),
                max_pending_items=max_pending_items,
            )

        return StreamWriter(self._rule, table.layout, batch_size, make_writer)

    def _scan(self) -> ScannedFrames:
        assert self._scanner is not None  # callers have looked
        with self._scan_lock:
            return self._scanner.scan(self._streams.flushed_next_ids())

    def _update(self, keys: Array, values: Array, is_td: Any) -> np.bool_:
        if keys.ndim != 1:
            raise ValueError(f"keys: expected int64 [n], got shape {list(keys.shape)}; windows have one key each.")
        raw = (
            check_priorities(None, values, keys.shape) + _TD_EPSILON
            if is_td
            else check_priorities(values, None, keys.shape)
        )
        updates = dict(zip(keys.astype(np.int64).view(np.uint64).tolist(), raw.tolist(), strict=True))
        self.flush()
        self._link.call(lambda: self._link.client.mutate_priorities(self._table.name, updates), "an update")
        return np.True_

    def _sample_in_graph(self, sample_batch_size: int | None, steps: int | None) -> tuple[Items, BufferInfo]:
        element = self._reader.random(sample_batch_size, steps, None, None).element_spec
        specs = tf.nest.flatten(element)

        def draw(buffer: ReverbReplayBuffer) -> list[Array]:
            return [leaf.numpy() for leaf in tf.nest.flatten(buffer._sample(sample_batch_size, steps))]

        leaves = call_weakly(self, draw, [], [leaf.dtype for leaf in specs])
        for leaf, leaf_spec in zip(leaves, specs, strict=True):
            leaf.set_shape(leaf_spec.shape)
        items, info = tf.nest.pack_sequence_as(element, leaves)
        return self._spec.pack(tf.nest.flatten(items)), info

    def _sample(self, sample_batch_size: int | None, steps: int | None) -> tuple[Items, BufferInfo]:
        self.flush()
        items, info = self._reader.sample(sample_batch_size or 1, steps)
        items = self._spec.pack(tf.nest.flatten(items))
        if sample_batch_size is None:
            return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), (items, info))
        return items, info

    def _steps(self, num_steps: int | None, window: Window | None, *, is_pass: bool) -> int | None:
        wanted, table = resolve_window(num_steps, window), self._table
        length = table.sequence_length
        steps = None if wanted is None else wanted.num_steps
        if wanted is not None and wanted.boundaries == "ignore":
            raise ValueError("a Reverb table holds windows of single episodes: boundaries='ignore' cannot be drawn.")
        if steps is not None and length is not None and steps > length:
            raise ValueError(
                f"num_steps > sequence_length ({steps} > {length}): an item of table {table.name!r} has no more "
                "frames; ask for fewer, or write longer items."
            )
        if steps is not None and length is not None and not table.layout.has_ids and length % steps:
            raise ValueError(
                f"sequence_length is not a multiple of num_steps ({length} and {steps}): items of table "
                f"{table.name!r} are cut into windows side by side, and frames would be lost."
            )
        if table.layout.has_ids and (steps or 1) != length and not is_pass and steps not in self._told_steps:
            self._told_steps.add(steps)
            _logger.warning(
                "table %r: windows of %d frames are the first ones of items of %d: none starts at the last %d frames "
                "of an episode%s.",
                table.name,
                steps or 1,
                length,
                (length or 1) - 1,
                f", nor between starts that are {table.stride} apart" if table.stride > 1 else "",
            )
        return steps

    def _packed_layout(self) -> PackedLayout:
        assert isinstance(self._table.layout, PackedLayout)  # tables that can be scanned are
        return self._table.layout

    def _pack_for_dataset(self, leaves: Sequence[Any]) -> Nest:
        return tf.nest.pack_sequence_as(self._spec.dataset_nest(), list(leaves))

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this buffer is closed; build a new one.")


def _check_seconds(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}.")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value!r}: nothing here waits for ever.")
