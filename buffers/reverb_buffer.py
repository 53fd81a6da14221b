"""A replay buffer whose frames live in a table of a Reverb server, in this process or in another."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import tensorflow as tf

from .base import BufferInfo, Ids, Items, ReplayBuffer, check_count
from .episode_ends import EpisodeMarks, EpisodeRule, FinalFrame
from .priorities import check_priorities
from .reverb_import import load_reverb
from .reverb_layout import Layout, PackedLayout, PlainLayout, check_fields, packed_signature
from .reverb_link import ServerLink
from .reverb_pass import ScanPass
from .reverb_reader import SamplerKnobs, TableReader
from .reverb_scan import ScannedFrames, TableScanner
from .reverb_writer import ItemWriter
from .server import ReplayServer
from .spec import DataSpec, ItemChecker, Nest
from .stats import BufferStats
from .tables import SCAN_SUFFIX, Fifo, MinSize, Remover, Sampler, TableConfig, Uniform
from .windows import Window, resolve_window

_logger = logging.getLogger(__name__)

_TD_EPSILON = 1e-6
_AUTO = -1

# Measured on 2 cores (W1, batches of 256): few items in flight with more workers than cores came out best.
_DEFAULT_IN_FLIGHT = 64
_DEFAULT_WORKERS = 4
_DEFAULT_PENDING_ITEMS = 2048


class ReverbReplayBuffer(ReplayBuffer):
    """Writes streams into a Reverb table as windows, and draws the table's items.

    An item is `sequence_length` consecutive frames of one episode of one stream; inside an episode
    items start every `stride` frames, from its first frame on. What can be drawn is what was
    written: an episode shorter than `sequence_length` gives no item, and a shorter `num_steps`
    takes an item's first frames, so that the last `sequence_length - 1` frames of an episode start
    no window. Reverb cannot be seeded: draws differ in each run.
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
        num_workers_per_iterator: int = _AUTO,
        max_samples_per_stream: int = _AUTO,
        rate_limiter_timeout_ms: int = _AUTO,
        *,
        batch_size: int = 1,
        stride: int | None = None,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        cast: bool = False,
        max_in_flight_samples_per_worker: int | None = None,
        max_chunk_length: int | None = None,
        max_pending_items: int = _DEFAULT_PENDING_ITEMS,
    ) -> None:
        if (server_address is None) == (local_server is None):
            raise ValueError("Exactly one of the server_address or local_server must be provided.")
        check_count("batch_size", batch_size)
        check_count("sequence_length", sequence_length, optional=True)
        check_count("stride", stride, optional=True)
        self._spec = DataSpec(data_spec)
        self._rule = EpisodeRule(self._spec, end_of_episode_fn, final_frame)
        self._checker = ItemChecker(self._spec, int(batch_size), cast=cast)
        self._batch_size = int(batch_size)
        self._table_name = table_name
        self._local_server = local_server
        self._owned_server: ReplayServer | None = None
        address = server_address or f"localhost:{local_server.port}"
        self._link = ServerLink(
            address,
            table_name,
            embedded=local_server is not None,
            timeout_s=timeout_s,
            log_interval_s=log_interval_s,
        )
        info = self._link.first_info
        self._layout: Layout
        about = packed_signature(info.signature)
        if about is None:
            self._layout = PlainLayout(self._spec)
            self._length, self._stride = sequence_length, stride or 1
        else:
            check_fields(self._spec, about, table_name)
            self._layout = PackedLayout(self._spec)
            self._length = _agree("sequence_length", sequence_length, about, table_name)
            self._stride = _agree("stride", stride, about, table_name)
        self._capacity = int(info.max_size)
        scan = table_name + SCAN_SUFFIX
        self._scan_table = scan if scan in self._link.table_names else None
        sampler, remover = info.sampler_options, info.remover_options
        self._is_deterministic = bool(sampler.is_deterministic and remover.is_deterministic)
        self._max_times_sampled = int(info.max_times_sampled)
        ordered = bool(sampler.is_deterministic)
        workers = (
            num_workers_per_iterator if num_workers_per_iterator != _AUTO else (1 if ordered else _DEFAULT_WORKERS)
        )
        in_flight = max_in_flight_samples_per_worker or dataset_buffer_size or (1 if ordered else _DEFAULT_IN_FLIGHT)
        self._knobs = SamplerKnobs(in_flight, workers, max_samples_per_stream, max_cycle_length)
        self._read_timeout_s = timeout_s if rate_limiter_timeout_ms == _AUTO else rate_limiter_timeout_ms / 1000
        self._chunk_length = max_chunk_length
        self._max_pending = max_pending_items
        self._lock = threading.RLock()
        self._writer: ItemWriter | None = None
        self._closed = False
        self._skipped = 0
        self._reader = TableReader(
            self._link,
            self._layout,
            self._length,
            self._knobs,
            flush=self.flush,
            pack=self._pack_for_dataset,
            timeout_s=self._read_timeout_s,
            explain=self._explain_empty,
        )
        self._scan_lock = threading.Lock()
        self._scanner: TableScanner | None = None
        if self._scan_table is not None and isinstance(self._layout, PackedLayout):
            drawer = self._reader.drawer_of(self._scan_table)
            self._scanner = TableScanner(self._link, drawer, self._scan_table, self._layout)

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
        num_workers_per_iterator: int = _AUTO,
        max_samples_per_stream: int = _AUTO,
        max_in_flight_samples_per_worker: int | None = None,
        max_chunk_length: int | None = None,
        max_pending_items: int = _DEFAULT_PENDING_ITEMS,
    ) -> ReverbReplayBuffer:
        """A buffer that starts its own server in this process, and stops it on `close`.

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
        buffer = cls(
            data_spec,
            table_name,
            sequence_length,
            local_server=server,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            batch_size=batch_size,
            stride=stride,
            timeout_s=timeout_s,
            log_interval_s=log_interval_s,
            end_of_episode_fn=end_of_episode_fn,
            final_frame=final_frame,
            cast=cast,
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            max_chunk_length=max_chunk_length,
            max_pending_items=max_pending_items,
        )
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
        return self._capacity

    @property
    def capacity_unit(self) -> Literal["items"]:
        return "items"

    @property
    def table_name(self) -> str:
        """The table that is written and drawn from."""
        return self._table_name

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
        return int(self._link.info().current_size) * self._frames_per_item

    def num_frames(self) -> tf.Tensor:
        """Frames that the table's items stand for, int64 `[]`, live inside a `tf.function`.

        Reverb counts items; each stands for the `stride` frames (at most `sequence_length`) by which
        the next one starts later. The rest of an episode's last item is not counted: the number is
        exact for items of one frame, and otherwise too low by less than a window per episode.
        """
        if tf.executing_eagerly():
            return tf.constant(len(self), tf.int64)
        frames = tf.numpy_function(lambda: np.int64(len(self)), [], tf.int64, stateful=True)
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
          WaitTimeoutError: too much is pending and the server does not confirm it within `timeout_s`.
        """
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, sequence=False)
        given = self._spec.flatten(items)
        as_tensor = isinstance(given[0], tf.Tensor)
        ids = self._add_step(self._checker.check_leaves(given), end_of_episode, priorities)
        return tf.constant(ids) if as_tensor else ids

    def add_sequence(self, items: Items, *, end_of_episode: Any = None, priorities: Any = None) -> Ids:
        """Writes `T` frames of each stream, leaves `[B, T, ...]`: the same as `T` calls of `add_batch`.

        Returns:
          The frames' ids, int64 `[B, T]`. `T = 0` writes nothing.

        Raises:
          ValueError: as `add_batch`; also where fields disagree about `T`. Nothing is written.
          WaitTimeoutError: as `add_batch`; what came before is written.
        """
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, sequence=True)
        given = self._spec.flatten(items)
        as_tensor = isinstance(given[0], tf.Tensor)
        ids = self._add_steps(*self._checker.check_sequence_leaves(given), end_of_episode, priorities)
        return tf.constant(ids) if as_tensor else ids

    def end_stream(self, b: int | None = None) -> None:
        """Stream `b` (None: all of them) stops here: no item goes past its newest frame.

        Raises:
          ValueError: there is no stream `b`.
        """
        if b is not None and not 0 <= b < self._batch_size:
            raise ValueError(f"there is no stream {b}: this buffer has streams 0 to {self._batch_size - 1}.")
        with self._lock:
            if self._writer is not None:
                for stream in range(self._batch_size) if b is None else (b,):
                    self._writer.end_stream(stream)

    def flush(self) -> None:
        """Returns when the server has confirmed all that was added.

        Raises:
          WaitTimeoutError: it has not within `timeout_s`; the message has the numbers.
        """
        with self._lock:
            if self._writer is not None:
                self._writer.flush()

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
        """A dataset of `(items, BufferInfo)`; endless unless a pass is asked for."""
        self._check_open()
        check_count("sample_batch_size", sample_batch_size, optional=True)
        check_count("num_parallel_calls", num_parallel_calls, optional=True)
        check_count("epochs", epochs, optional=True)
        steps = self._steps(num_steps, window)
        if epochs is not None and single_deterministic_pass:
            raise ValueError("give epochs (shuffled) or single_deterministic_pass (ordered), not both.")
        if num_parallel_calls and sample_batch_size and num_parallel_calls > sample_batch_size:
            raise ValueError(
                f"num_parallel_calls cannot be bigger than sample_batch_size {num_parallel_calls} > {sample_batch_size}"
            )
        if not single_deterministic_pass and epochs is None:
            return self._reader.random(sample_batch_size, steps, num_parallel_calls, sequence_preprocess_fn)
        if self._scanner is None:
            if (
                epochs is not None
                or not self._is_deterministic
                or (self._layout.has_ids and self._max_times_sampled != 1)
            ):
                raise ValueError(self._why_no_scan())
            return self._reader.in_order(sample_batch_size, steps, sequence_preprocess_fn)
        passes = ScanPass(self._packed_layout(), self._rule, self._scan, self._pack_for_dataset)
        wanted = None if steps is None else Window(steps)
        dataset = passes.dataset(
            self._reader.when_ready(epochs or 1),
            sample_batch_size if sequence_preprocess_fn is None else None,
            wanted,
            shift=1 if window is not None or num_steps is None or epochs else num_steps,
            keep_short=num_steps is not None and single_deterministic_pass and sample_batch_size is None,
            shuffled=epochs is not None,
        )
        if sequence_preprocess_fn is None:
            return dataset
        dataset = dataset.map(lambda items, info: (sequence_preprocess_fn(items), info))
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
        steps = self._steps(num_steps, window)
        if not tf.executing_eagerly():
            return self._sample_in_graph(sample_batch_size, steps)
        self.flush()
        num = sample_batch_size or 1
        items, info = self._reader.sample(num, steps)
        items = self._spec.pack(tf.nest.flatten(items))
        if sample_batch_size is None:
            return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), (items, info))
        return items, info

    def get_next(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        time_stacked: bool = True,
    ) -> tuple[Items, BufferInfo]:
        """`sample`, under TF-Agents' name; not `time_stacked` gives a tuple of `T` nests `[B, ...]`.

        Raises:
          ValueError: not `time_stacked`, but no `num_steps`.
          Otherwise as `sample`.
        """
        items, info = self.sample(sample_batch_size, num_steps)
        if time_stacked:
            return items, info
        if num_steps is None:
            raise ValueError("time_stacked=False needs num_steps: single frames have no time axis to take apart.")
        axis = 0 if sample_batch_size is None else 1
        leaves = [tf.unstack(leaf, axis=axis) for leaf in self._spec.flatten(items)]
        return tuple(self._spec.pack(step) for step in zip(*leaves, strict=True)), info

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
        if not tf.executing_eagerly():
            raw = priorities if td_errors is None else td_errors
            names = ("priorities",) if td_errors is None else ("td_errors",)

            def update(graph_keys: np.ndarray, values: np.ndarray) -> np.bool_:
                self.update_priorities(graph_keys, **{names[0]: values})
                return np.True_

            if (priorities is None) == (td_errors is None):
                raise ValueError("give priorities or td_errors, exactly one of them.")
            tf.numpy_function(update, [keys, raw], tf.bool, stateful=True)
            return
        keys = np.asarray(keys)
        values = check_priorities(priorities, td_errors, keys.shape)
        if td_errors is not None:
            values = values + _TD_EPSILON
        updates = dict(zip(keys.astype(np.int64).view(np.uint64).tolist(), values.tolist(), strict=True))
        self.flush()
        self._link.call(lambda: self._link.client.mutate_priorities(self._table_name, updates), "an update")

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
            raise ValueError(self._why_no_scan())
        frames = self._scan()
        lengths = [stream.stop - stream.start for stream in frames.streams]
        lengths += [0] * (self._batch_size - len(lengths) if self._writer is not None or not lengths else 0)
        if len(set(lengths)) > 1:
            raise ValueError(
                f"gather_all gives [B, T, ...], but the streams in table {self._table_name!r} have {min(lengths)} to "
                f"{max(lengths)} frames; read them with as_dataset(single_deterministic_pass=True)."
            )
        shape = (len(lengths), lengths[0])
        leaves = self._packed_layout().unpack_numpy(frames.columns)
        return self._spec.pack([tf.constant(leaf.reshape(*shape, *leaf.shape[1:])) for leaf in leaves])

    def clear(self) -> None:
        """Empties the table, its scan table and their counters; streams go on with a new episode."""
        with self._lock:
            self._check_open()
            self.flush()
            self.end_stream()
            for table in (self._table_name, self._scan_table):
                if table is not None:
                    self._link.call(lambda table=table: self._link.client.reset(table), "a reset")
            self._skipped = 0

    def stats(self) -> BufferStats:
        """Counts and shares as of now; None where Reverb does not tell."""
        self.flush()
        info = self._link.info()
        limiter = info.rate_limiter_info
        items, inserted = int(info.current_size), int(limiter.insert_stats.completed)
        sampled = int(limiter.sample_stats.completed)
        added = inserted * self._frames_per_item
        return BufferStats(
            frames=items * self._frames_per_item,
            capacity=self._capacity,
            capacity_unit="items",
            fill_share=items / self._capacity,
            added=added,
            sampled=sampled,
            evicted=(inserted - items) * self._frames_per_item,
            evicted_unsampled=None,
            bytes_held=None,
            bytes_capacity=None,
            episodes=None,
            skipped=self._skipped,
            replay_ratio=sampled / added if added else None,
            host=urlsplit(f"//{self._link.address}").hostname or self._link.address,
        )

    def close(self) -> None:
        """Flushes, then ends the writer and the server if the buffer owns it. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self.flush()
            finally:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
                if self._owned_server is not None:
                    self._owned_server.stop()

    # How it is done

    def _scan(self) -> ScannedFrames:
        with self._scan_lock:
            with self._lock:
                self.flush()
                next_ids = None if self._writer is None else self._writer.next_ids
            assert self._scanner is not None  # callers have looked
            return self._scanner.scan(next_ids)

    def _packed_layout(self) -> PackedLayout:
        assert isinstance(self._layout, PackedLayout)  # scannable tables are
        return self._layout

    def _why_no_scan(self) -> str:
        if self._layout.has_ids:
            return (
                f"table {self._table_name!r} cannot be read in order: it has no scan table; make it with "
                "TableConfig(..., scannable=True) or ReverbReplayBuffer.local(..., scannable=True)."
            )
        return (
            f"table {self._table_name!r} cannot be read in order: it was not made by a TableConfig with scannable=True, "
            "and either the sampler or the remover is not deterministic (FIFO or Heap)."
        )

    @property
    def _frames_per_item(self) -> int:
        return 1 if not self._layout.has_ids else min(self._stride, self._length or 1)

    def _add_step(self, leaves: list[np.ndarray], end_of_episode: Any, priorities: Any) -> np.ndarray:
        marks = self._rule.marks(leaves, end_of_episode)
        if priorities is not None:
            priorities = check_priorities(priorities, None, (self._batch_size,))
        with self._lock:
            return self._write(leaves, marks, priorities)

    def _add_steps(self, leaves: list[np.ndarray], num_steps: int, end_of_episode: Any, priorities: Any) -> np.ndarray:
        shape = (self._batch_size, num_steps)
        if priorities is not None:
            priorities = check_priorities(priorities, None, shape)
        if num_steps == 0:
            return np.zeros(shape, np.int64)
        marks = self._rule.marks(leaves, end_of_episode)
        ids = np.empty(shape, np.int64)
        with self._lock:
            for t in range(num_steps):
                step = EpisodeMarks(*(None if flags is None else flags[:, t] for flags in marks))
                now = None if priorities is None else priorities[:, t]
                ids[:, t] = self._write([leaf[:, t] for leaf in leaves], step, now)
        return ids

    def _write(self, leaves: Sequence[np.ndarray], marks: EpisodeMarks, priorities: np.ndarray | None) -> np.ndarray:
        writer = self._open_writer()
        ids = writer.claim_ids(marks)
        writer.write(self._layout.pack(leaves, ids), marks, priorities)
        return ids if self._layout.has_ids else np.full_like(ids, -1)

    def _open_writer(self) -> ItemWriter:
        self._check_open()
        if self._writer is None:
            if self._length is None:
                raise ValueError("add_batch needs sequence_length: it says how long the items are that are written.")
            self._writer = ItemWriter(
                self._link,
                self._scan_table,
                num_columns=self._layout.num_columns,
                batch_size=self._batch_size,
                sequence_length=self._length,
                stride=self._stride,
                chunk_length=self._chunk_length or _default_chunk_length(self._layout, self._length),
                max_pending_items=self._max_pending,
            )
        return self._writer

    def _add_in_graph(self, items: Items, end_of_episode: Any, priorities: Any, *, sequence: bool) -> tf.Tensor:
        tensors = self._checker.trace(items, sequence=sequence)
        optional = [tf.convert_to_tensor(value) for value in (end_of_episode, priorities) if value is not None]

        def write(*arrays: np.ndarray) -> np.ndarray:
            leaves = list(arrays[: len(tensors)])
            rest = list(arrays[len(tensors) :])
            ends = rest.pop(0) if end_of_episode is not None else None
            raw = rest.pop(0) if priorities is not None else None
            if sequence:
                return self._add_steps(*self._checker.check_sequence_leaves(leaves), ends, raw)
            return self._add_step(self._checker.check_leaves(leaves), ends, raw)

        ids = tf.numpy_function(write, [*tensors, *optional], tf.int64, stateful=True)
        ids.set_shape([self._batch_size, None] if sequence else [self._batch_size])
        return ids

    def _sample_in_graph(self, sample_batch_size: int | None, steps: int | None) -> tuple[Items, BufferInfo]:
        element = self._reader.random(sample_batch_size, steps, None, None).element_spec
        flat = tf.nest.flatten(element)

        def draw() -> list[np.ndarray]:
            drawn = self.sample(sample_batch_size, steps)
            return [leaf.numpy() for leaf in tf.nest.flatten(drawn)]

        leaves = tf.numpy_function(draw, [], [leaf.dtype for leaf in flat], stateful=True)
        for leaf, leaf_spec in zip(leaves, flat, strict=True):
            leaf.set_shape(leaf_spec.shape)
        items, info = tf.nest.pack_sequence_as(element, leaves)
        return self._spec.pack(tf.nest.flatten(items)), info

    def _steps(self, num_steps: int | None, window: Window | None) -> int | None:
        wanted = resolve_window(num_steps, window)
        if wanted is None:
            return None
        if wanted.boundaries == "ignore":
            raise ValueError(
                "a Reverb table holds windows of single episodes: Window(boundaries='ignore') cannot be drawn."
            )
        if self._length is not None and wanted.num_steps > self._length:
            raise ValueError(
                f"num_steps > sequence_length ({wanted.num_steps} > {self._length}): an item of table "
                f"{self._table_name!r} has no more frames; ask for fewer, or write longer items."
            )
        if not self._layout.has_ids and self._length is not None and self._length % wanted.num_steps:
            raise ValueError(
                f"sequence_length is not a multiple of num_steps ({self._length} and {wanted.num_steps}): items of table "
                f"{self._table_name!r} are cut into windows side by side, and frames would be lost."
            )
        return wanted.num_steps

    def _pack_for_dataset(self, leaves: Sequence[Any]) -> Nest:
        return tf.nest.pack_sequence_as(self._spec.dataset_nest(), list(leaves))

    def _explain_empty(self) -> str:
        writer = self._writer
        if writer is None or not (writer.num_episodes or writer.longest_episode) or self._length is None:
            return ""
        if writer.longest_episode >= self._length:
            return ""
        return (
            f"; no window of {self._length} frames: this buffer wrote {writer.num_episodes} episodes, "
            f"longest {writer.longest_episode}"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this buffer is closed; build a new one.")


def _agree(name: str, given: int | None, about: dict[str, Any], table: str) -> int:
    stored = int(about[name])
    if given is not None and given != stored:
        raise ValueError(f"table {table!r} was made for {name}={stored}, got {name}={given}.")
    return stored


def _default_chunk_length(layout: Layout, sequence_length: int) -> int:
    """Frames in a chunk: small frames share one, since a chunk's own bytes outweigh theirs."""
    frame_bytes = sum(layout.column_bytes)
    if frame_bytes >= 4096:
        return 1
    return max(4, min(16, sequence_length))
