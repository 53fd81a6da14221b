"""A replay buffer whose frames live in a table of a Reverb server, in this process or in another."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import tensorflow as tf

from .base import BufferInfo, Items
from .counts import check_count, check_parallel_calls
from .episode_ends import EpisodeRule, FinalFrame
from .item_selectors import Fifo, Remover, Sampler, Uniform
from .nests import Array, Nest
from .priorities import DEFAULT_EPS, WeightNorm
from .rate_limiters import RateLimiter
from .reverb_items import ItemPart, WholeEpisodes, check_window, part_for
from .reverb_knobs import AUTO, limiter_of, resolve_knobs
from .reverb_pass import PassRows, ScanPass, eligible_rows, item_rows, single_frames, stepped_rows
from .reverb_reader import TableReader
from .reverb_served import DEFAULT_PENDING_ITEMS, ServedBuffer, open_link
from .reverb_table import served_table
from .reverb_weights import Beta
from .server import ReplayServer
from .server_checkpoint_config import CheckpointConfig, OnMismatch
from .spec import DataSpec
from .stats import BufferStats, WindowCount
from .tables import TableConfig
from .windows import Window, resolve_window

_logger = logging.getLogger(__name__)


class ReverbReplayBuffer(ServedBuffer):
    """Writes streams into a Reverb table as windows, and draws the table's items.

    An item is a `Window(sequence_length, burn_in, stride, short)` of one episode of one stream. What
    can be drawn is what was written. With `short='drop'` an episode shorter than `sequence_length` gives no
    item; a window with fewer `num_steps` shows an item's first frames from the drawn one on, so that the last
    `sequence_length - 1` frames of an episode start none. With `short='pad'` windows that the episode's end cuts short
    are written when it has ended, with padding; so is what is missing of `burn_in` at its beginning. A frame that
    is only a final observation starts no item. `ReverbEpisodicReplayBuffer` holds whole episodes.

    Tables of a `TableConfig` hold frames as packed bytes with their ids (`reverb_layout.py`); in
    those that others made (a `reverb.Table` that TF-Agents' observers fill) ids are -1, `num_steps=None` gives
    whole items `[B, L, ...]`, and a shorter `num_steps` cuts each into windows side by side, all as in TF-Agents.

    Reverb cannot be seeded: draws differ in each run.

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame.
      table_name: the table.
      sequence_length: `L`, frames in an item from the drawn one on; None: what the table says, or items of
        different lengths.
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
      burn_in: frames of context in an item before the drawn one; None: what the table says, or 0.
      short: what becomes of items that an episode's end cuts short, `'drop'` or `'pad'`; None: what the table says, or
        `'drop'`.
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      max_in_flight_samples_per_worker: items that each worker fetches ahead; None: 64, or 1 where the
        sampler keeps an order. A dataset looks `workers * this` items ahead, and three batches.
      max_samples: items after which a dataset ends; -1: never.
      max_chunk_length: frames that Reverb compresses together; None: by their size (`default_chunk_length`). Frames
        are sent when their chunk is full or at a `flush`, so that other processes see them later by up to this many.
      max_pending_items: items that may wait for the server; then `add_batch` waits until half are confirmed.
      beta: how far importance weights correct, where the table's sampler is `Prioritized`: a number, a `tf.Variable`
        (read at each draw), or a function of the number of batches drawn, made of TensorFlow's operations.
      eps: what `update_priorities` adds to absolute TD errors.
      weight_norm: what weights `(N P)^-beta` are divided by: the largest of the batch (`'batch'`), the largest that any
        item of the table could have (`'buffer'`, where it has `tracks_least`; at most a second old), or nothing (None).
        Single elements have no batch: with `'batch'` theirs are divided by nothing. Other samplers give weights of 1.

    Raises:
      ImportError: reverb is absent or does not fit the installed TensorFlow.
      TypeError: a count is no int.
      ValueError: a count is below 1, or a timeout is not positive and finite.
      ValueError: not exactly one of `server_address` and `local_server` is given.
      ValueError: `dataset_buffer_size` and `max_in_flight_samples_per_worker` are both given.
      ValueError: several workers for a table whose sampler keeps an order.
      ValueError: the server has no such table, or it was made for another spec or other items.
      ValueError: `burn_in` or `short='pad'` for a table with plain columns.
      WaitTimeoutError: the server does not answer within `timeout_s`.

    >>> table = TableConfig("replay", tf.TensorSpec([], tf.int64), max_size=100, sequence_length=2)
    >>> with ReplayServer([table]) as server, ReverbReplayBuffer(
    ...     tf.TensorSpec([], tf.int64), "replay", 2, local_server=server
    ... ) as buffer:
    ...     _ = buffer.add_sequence([[7, 8]])
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
        burn_in: int | None = None,
        short: Literal["drop", "pad"] | None = None,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        cast: bool = False,
        max_in_flight_samples_per_worker: int | None = None,
        max_samples: int = AUTO,
        max_chunk_length: int | None = None,
        max_pending_items: int = DEFAULT_PENDING_ITEMS,
        beta: Beta = 0.4,
        eps: float = DEFAULT_EPS,
        weight_norm: WeightNorm = "batch",
    ) -> None:
        for name, count in (("sequence_length", sequence_length), ("stride", stride)):
            check_count(name, count, optional=True)
        spec = DataSpec(data_spec)
        rule = EpisodeRule(spec, end_of_episode_fn, final_frame)
        link = open_link(table_name, server_address, local_server, timeout_s=timeout_s, log_interval_s=log_interval_s)
        table = served_table(link, spec, sequence_length=sequence_length, stride=stride, burn_in=burn_in, short=short)
        if isinstance(table.kind, Window) and table.kind.length > 1:
            rule.expect_windows()
        if isinstance(table.kind, WholeEpisodes):
            raise ValueError(f"table {table_name!r} holds whole episodes: read it with ReverbEpisodicReplayBuffer.")
        knobs = resolve_knobs(
            table,
            dataset_buffer_size=dataset_buffer_size,
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            max_samples=max_samples,
            max_cycle_length=max_cycle_length,
        )
        super().__init__(
            spec,
            link,
            table,
            knobs,
            rule,
            local_server=local_server,
            batch_size=batch_size,
            cast=cast,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_chunk_length=max_chunk_length,
            max_pending_items=max_pending_items,
            beta=beta,
            eps=eps,
            weight_norm=weight_norm,
        )
        self._kind = table.kind
        self._reader = TableReader(
            link,
            table.layout,
            table.item_length,
            knobs,
            self._source,
            self._stage,
            self._guard.over,
            self._pack_for_dataset,
            self._weights,
            self._priorities,
            burn_in=table.kind.burn_in if table.kind is not None else 0,
            keeps=self._keeps_rows,
        )
        self._told_steps: set[int | None] = set()

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
        burn_in: int = 0,
        short: Literal["drop", "pad"] = "drop",
        sampler: Sampler = Uniform(),  # noqa: B008 - frozen
        remover: Remover = Fifo(),  # noqa: B008 - frozen
        min_size_to_sample: int | None = None,
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int = 0,
        initial: float | Literal["max", "random"] = 1.0,
        tracks_least: bool = False,
        table_name: str = "replay",
        port: int | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        on_mismatch: OnMismatch = "error",
        checkpoints: CheckpointConfig | None = None,
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
        max_pending_items: int = DEFAULT_PENDING_ITEMS,
        beta: Beta = 0.4,
        eps: float = DEFAULT_EPS,
        weight_norm: WeightNorm = "batch",
    ) -> ReverbReplayBuffer:
        """A buffer that starts its own server in this process, and stops it on `close`.

        Other processes reach it by `server_address`. Arguments are those of `TableConfig`, of the constructor, and,
        `checkpoint_dir` and `on_mismatch` or `checkpoints` with all that there is to say of them, of `ReplayServer`:
        `checkpoint()` then keeps what it holds, and the next `local` with the same folder begins with it.

        Raises:
          TypeError, ValueError, ImportError: as `TableConfig` and the constructor.

        >>> with ReverbReplayBuffer.local(tf.TensorSpec([], tf.float32), max_size=10, sequence_length=2) as buffer:
        ...     for value in range(3):
        ...         _ = buffer.add_batch([float(value)])
        ...     buffer.gather_all().numpy().tolist()
        [[0.0, 1.0, 2.0]]
        """
        table = TableConfig(
            table_name,
            data_spec,
            max_size,
            sampler,
            remover,
            limiter_of(min_size_to_sample, rate_limiter),
            max_times_sampled,
            sequence_length,
            stride,
            scannable,
            burn_in=burn_in,
            short=short,
            initial=initial,
            tracks_least=tracks_least,
        )
        server = ReplayServer(
            [table], port, checkpoint_dir=checkpoint_dir, on_mismatch=on_mismatch, checkpoints=checkpoints
        )
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
                burn_in=burn_in,
                short=short,
                timeout_s=timeout_s,
                log_interval_s=log_interval_s,
                end_of_episode_fn=end_of_episode_fn,
                final_frame=final_frame,
                cast=cast,
                max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
                max_samples=max_samples,
                max_chunk_length=max_chunk_length,
                max_pending_items=max_pending_items,
                beta=beta,
                eps=eps,
                weight_norm=weight_norm,
            )
        except BaseException:
            server.stop()
            raise
        buffer._owned_server = server
        return buffer

    @property
    def capacity_unit(self) -> Literal["items"]:
        return "items"

    def __len__(self) -> int:
        self._settle()
        return int(self._link.info().current_size) * self._table.frames_per_item

    def num_frames(self) -> tf.Tensor:
        """Frames that the table's items stand for, int64 `[]`, live inside a `tf.function`.

        Reverb counts items; each stands for the `stride` frames (at most `sequence_length`) by which
        the next one starts later. The number is exact for items of one frame. Otherwise it is wrong by less than a
        window per episode: too low by the rest of an episode's last item, or, where items are padded and `stride` is
        above 1, too high where its last item shows fewer than `stride` frames. Padding is never counted.
        """
        return super().num_frames()

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

        Rows are drawn ahead: `num_workers_per_iterator * max_in_flight_samples_per_worker * max_cycle_length` items and
        three batches. Where the sampler is `Prioritized` that is by priorities of then: `stats().priority_age` tells
        what updates came too late. Where the table removes what it delivers, what an iterator has drawn ahead goes
        with it when it is dropped; a `next` that times out loses nothing, the next one has its rows. `sample` draws
        nothing ahead, and keeps the rows of a call that fails for the next one.

        Args:
          sample_batch_size: `B`; None: elements without a `B` axis.
          num_steps: `T` frames of an item from the drawn one on, without its `burn_in`; None: the drawn frame alone,
            without a `T` axis.
          num_parallel_calls: of `sequence_preprocess_fn`, and of the interleave where `max_cycle_length` is above 1.
          sequence_preprocess_fn: items of one draw, leaves `[L, ...]`, the whole item -> items; applied to each before
            it is shortened and batched, padding and context included. In passes it gets `[T, ...]`.
          single_deterministic_pass: each frame or window once, oldest first, stream after stream, then the end;
            nothing is removed. It needs `scannable`, and holds the table's frames in this process's memory while it
            runs. What is there is read at the first `next`. With `num_steps` windows do not overlap; without
            `sample_batch_size` the last one of an episode may be shorter. With `window` the window of each item comes
            once; in tables without `burn_in`, padding and `stride` every window of the frames held does, which are more
            where it is shorter than items. `keys` are -1. A table without scan table that removes in a fixed order
            what it delivers (FIFO, `max_times_sampled=1`) is emptied, as in TF-Agents.
          window: a `Window` that the table can give: not longer (of the same length where items are padded and have a
            stride), with not more `burn_in`, of the same `stride` and
            `short`.
          epochs: draw without replacement: this many shuffled passes over single frames or windows; needs `scannable`.

        Returns:
          Leaves `[B, T, ...]`, `BufferInfo` as there.

        Raises:
          TypeError: an argument has the wrong type.
          ValueError: a size is below 1; `num_steps` and `window`, or `epochs` and
            `single_deterministic_pass`, are both given.
          ValueError: `num_steps` is above `sequence_length`, or does not divide that of a table that others made.
          ValueError: the table's items cannot give such a `window`; the message says which they can.
          ValueError: `num_parallel_calls` is above `sample_batch_size`.
          ValueError: the table's limiter does not let one thread that writes draw such batches (`look_ahead.py`), and
            this thread has written. If it writes later, its first `add_batch` raises.
          ValueError: a pass of a table that cannot be read in order; the message says what is missing.
          tf.errors.InvalidArgumentError: at `next`: the timeout is up; the message says what was missing.
        """
        self._check_open()
        check_count("sample_batch_size", sample_batch_size, optional=True)
        check_parallel_calls(num_parallel_calls)
        check_count("epochs", epochs, optional=True)
        is_pass = single_deterministic_pass or epochs is not None
        wanted = self._wanted(num_steps, window, is_pass=is_pass)
        if epochs is not None and single_deterministic_pass:
            raise ValueError("give epochs (shuffled) or single_deterministic_pass (ordered), not both.")
        if num_parallel_calls and sample_batch_size and num_parallel_calls > sample_batch_size:
            raise ValueError(
                f"num_parallel_calls cannot be bigger than sample_batch_size {num_parallel_calls} > {sample_batch_size}"
            )
        part = self._part(wanted)
        if not is_pass:
            self._check_look_ahead(sample_batch_size)
            return self._reader.random(sample_batch_size, part, num_parallel_calls, sequence_preprocess_fn)
        if self._scanner is None:
            if epochs is not None or not self._table.can_pass_by_removing:
                raise ValueError(self._table.why_no_scan())
            return self._reader.in_order(sample_batch_size, part, sequence_preprocess_fn)
        in_steps = window is None and epochs is None
        dataset = ScanPass(self._id_layout(), self._scan, self._pack_for_dataset).dataset(
            self._stage.when_ready(epochs or 1),
            sample_batch_size if sequence_preprocess_fn is None else None,
            self._pass_rows(wanted, in_steps=in_steps, keep_short=sample_batch_size is None),
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

        Nothing is fetched ahead: the draw sees all that was added before. Where the table removes what it delivers, or
        its limiter counts draws, rows that a call has drawn and could not deliver, because it timed out or was
        interrupted, come first in the next one.

        Raises:
          TypeError, ValueError: as `as_dataset`.
          WaitTimeoutError: nothing could be drawn within the timeout; the message says why.
        """
        self._check_open()
        check_count("sample_batch_size", sample_batch_size, optional=True)
        part = self._part(self._wanted(num_steps, window, is_pass=False))
        if not tf.executing_eagerly():
            element = self._reader.random(sample_batch_size, part, None, None).element_spec
            return self._draw_in_graph(lambda buffer: buffer._sample(sample_batch_size, part), element)
        return self._sample(sample_batch_size, part)

    def gather_all(self) -> Items:
        """Every frame that the table's items hold, oldest first, leaves `[B, T, ...]`.

        `B` are the streams that are in the table, of every process that wrote into it.

        Raises:
          ValueError: the table cannot be scanned; the message says what is missing.
          ValueError: streams differ in length; the message says how to read them.
          WaitTimeoutError: the server does not answer within `timeout_s`.
        """
        self._check_open()
        streams = self._gather_streams()
        lengths = [len(leaves[0]) for leaves in streams]
        lengths += [0] * (self._batch_size - len(lengths) if self._streams.has_written or not lengths else 0)
        if len(set(lengths)) > 1:
            raise ValueError(
                f"gather_all gives [B, T, ...], but the streams in table {self._table.name!r} have {min(lengths)} to "
                f"{max(lengths)} frames; read them with as_dataset(single_deterministic_pass=True)."
            )
        if not streams:
            shape = (len(lengths), 0)
            return self._spec.pack([tf.zeros((*shape, *field.shape), field.dtype) for field in self._spec.fields])
        return self._spec.pack([tf.constant(np.stack(leaf)) for leaf in zip(*streams, strict=True)])

    def _gather_streams(self) -> list[list[Array]]:
        """Of each stream in the table its frames, oldest first, leaves `[T, ...]`; as `gather_all`, of any lengths."""
        frames = self._scan()
        leaves = self._id_layout().unpack_numpy(frames.columns)
        return [[leaf[stream] for leaf in leaves] for stream in frames.streams]

    def stats(self) -> BufferStats:
        """Counts and shares as of now; None where Reverb does not tell."""
        self._settle()
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
            priority_age=self._priority_age(),
            windows=() if self._kind is None else (WindowCount(self._kind, items, self._streams.num_dropped_short),),
        )

    # How it is done

    def _sample(self, sample_batch_size: int | None, part: ItemPart) -> tuple[Items, BufferInfo]:
        self._settle()
        self._priorities.look()
        items, info = self._reader.sample(sample_batch_size, part)
        items = self._spec.pack(tf.nest.flatten(items))
        if sample_batch_size is None:
            return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), (items, info))
        return items, info

    def _part(self, wanted: Window | None) -> ItemPart:
        if self._table.layout.has_ids and self._kind is not None:
            return part_for(self._kind, wanted)
        return ItemPart() if wanted is None else ItemPart(0, wanted.num_steps)

    def _pass_rows(self, wanted: Window | None, *, in_steps: bool, keep_short: bool) -> PassRows:
        if wanted is None:
            return single_frames()
        if in_steps:
            return stepped_rows(wanted.num_steps, keep_short=keep_short)
        # Of such items every frame that is held is in as many windows as it can be: shorter ones start everywhere.
        is_dense = self._kind is not None and self._kind.is_plain and self._kind.stride == 1
        return eligible_rows(wanted) if is_dense else item_rows(wanted)

    def _wanted(self, num_steps: int | None, window: Window | None, *, is_pass: bool) -> Window | None:
        """The window asked for, with the table's own `stride` and `short` where only `num_steps` was given."""
        wanted, table, kind = resolve_window(num_steps, window), self._table, self._kind
        if wanted is None:
            self._tell_what_is_lost(1, is_pass=is_pass)
            return None
        if wanted.boundaries == "ignore":
            raise ValueError("a Reverb table holds windows of single episodes: boundaries='ignore' cannot be drawn.")
        if kind is None:
            if not wanted.is_plain:
                raise ValueError(
                    f"table {table.name!r} has plain columns, which have no place for what is padding: burn_in and "
                    "short='pad' cannot be drawn."
                )
            return wanted
        if window is not None:
            check_window(table.name, kind, window)
        elif wanted.num_steps > kind.num_steps:
            raise ValueError(
                f"num_steps > sequence_length ({wanted.num_steps} > {kind.num_steps}): an item of table "
                f"{table.name!r} has no more frames; ask for fewer, or write longer items."
            )
        else:
            wanted = Window(wanted.num_steps, 0, kind.stride, kind.short)
        if not table.layout.has_ids and kind.num_steps % wanted.num_steps:
            raise ValueError(
                f"sequence_length is not a multiple of num_steps ({kind.num_steps} and {wanted.num_steps}): items of "
                f"table {table.name!r} are cut into windows side by side, and frames would be lost."
            )
        self._tell_what_is_lost(wanted.num_steps, is_pass=is_pass)
        return wanted

    def _tell_what_is_lost(self, steps: int, *, is_pass: bool) -> None:
        """Says once for each length that windows shorter than items do not start everywhere."""
        kind = self._kind
        if kind is None or not self._table.layout.has_ids or steps == kind.num_steps:
            return
        tail = kind.short == "drop" or kind.stride > 1
        lost = [f"the last {kind.num_steps - 1} frames of an episode"] if tail else []
        lost += [f"frames between starts that are {kind.stride} apart"] if kind.stride > 1 else []
        if is_pass or not lost or steps in self._told_steps:
            return
        self._told_steps.add(steps)
        _logger.warning(
            "table %r: windows of %d frames are the first ones of items of %d: none starts at %s.",
            self._table.name,
            steps,
            kind.num_steps,
            ", nor at ".join(lost),
        )
