"""What every buffer on a Reverb table is: its writing, its link to the table, its life; not how items are read."""

from __future__ import annotations

import dataclasses
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .adds import Adds
from .base import BufferInfo, Ids, Items, ReplayBuffer, WaitTimeoutError
from .callbacks import call_weakly
from .counts import check_count
from .episode_ends import EpisodeRule
from .look_ahead import check_look_ahead
from .nests import Array, Nest
from .priorities import WeightNorm, check_exponent, check_keys, check_priorities
from .reverb_guard import ELEMENTS_AHEAD, ServerGuard
from .reverb_import import load_reverb
from .reverb_knobs import AUTO, SamplerKnobs, check_auto
from .reverb_layout import PlainLayout
from .reverb_layouts import IdLayout, JointLayout
from .reverb_limits import limiter_state
from .reverb_link import ServerLink, Watch
from .reverb_open_writer import OpenWriter
from .reverb_priorities import TablePriorities
from .reverb_scan import ScannedFrames, TableScanner
from .reverb_source import ItemDrawer, TableSource
from .reverb_spread import SpreadWatch
from .reverb_streams import StreamWriter
from .reverb_table import ServedTable
from .reverb_targets import ItemTarget
from .reverb_wait import WaitStage
from .reverb_weights import Beta, ServedWeights
from .reverb_writer import ItemWriter, default_chunk_length
from .saved_by_server import SavedByServer
from .server import ReplayServer
from .spec import DataSpec, ItemChecker
from .stats import PriorityAge
from .windows import Window

# Above 50 Reverb prints a warning for each item.
DEFAULT_PENDING_ITEMS = 48
# What a question gives a server that does not answer at once.
_READY_SECONDS = 1.0


class ServedBuffer(SavedByServer, ReplayBuffer):
    """A buffer whose frames lie in a table of a Reverb server; its classes say how items become samples.

    Args:
      spec: what a frame holds.
      link: the table.
      table: facts about it.
      knobs: Reverb's settings.
      rule: tells where episodes begin and end.
      local_server: the server, if it is in this process.
      batch_size: `B`.
      cast: convert input within its kind.
      rate_limiter_timeout_ms: how long a read waits; -1: the link's timeout.
      max_chunk_length: frames that Reverb compresses together; None: by their size.
      max_pending_items: items that may wait for the server.
      beta: how far weights correct (`reverb_weights.Beta`).
      eps: what is added to absolute TD errors.
      weight_norm: what weights are divided by.
    """

    def __init__(
        self,
        spec: DataSpec,
        link: ServerLink,
        table: ServedTable,
        knobs: SamplerKnobs,
        rule: EpisodeRule,
        *,
        local_server: Any,
        batch_size: int,
        cast: bool,
        rate_limiter_timeout_ms: int,
        max_chunk_length: int | None,
        max_pending_items: int,
        beta: Beta,
        eps: float,
        weight_norm: WeightNorm,
    ) -> None:
        check_count("batch_size", batch_size)
        check_count("max_pending_items", max_pending_items)
        check_count("max_chunk_length", max_chunk_length, optional=True)
        check_auto("rate_limiter_timeout_ms", rate_limiter_timeout_ms, 0)
        self._spec = spec
        self._link = link
        self._table = table
        self._knobs = knobs
        self._batch_size = int(batch_size)
        self._local_server = local_server
        self._owned_server: ReplayServer | None = None
        self._eps = check_exponent("eps", eps)
        self._in_flight = (
            knobs.max_in_flight_samples_per_worker * knobs.num_workers_per_iterator * knobs.max_cycle_length
        )
        self._largest_batch = 1  # of the datasets made so far
        self._priorities = TablePriorities(link, table, self._look_ahead)
        self._weights = ServedWeights(table.sampler, beta, weight_norm, self._priorities.least, table=table.name)
        self._spread = SpreadWatch(table.sampler, table.name)
        self._streams = self._stream_writer(rule, max_chunk_length, max_pending_items)
        checker = ItemChecker(spec, self._batch_size, cast=cast)
        self._adds = Adds(spec, checker, self._batch_size, self._streams)
        self._read_timeout_s = link.timeout_s if rate_limiter_timeout_ms == AUTO else rate_limiter_timeout_ms / 1000
        self._source = TableSource(link, table.layout, table.item_length, knobs, counts_draws=table.counts_draws)
        streams, priorities = self._streams, self._priorities

        def get_ready() -> None:
            streams.flush_for_a_read()
            priorities.flush()
            priorities.look()

        self._stage = WaitStage(link, get_ready, self._read_timeout_s, streams.explain_no_item)
        self._guard = ServerGuard(
            link, self._read_timeout_s, priorities.look, self._stage, removes=table.max_times_sampled > 0
        )
        # What a draw has taken is gone, or counts for the limiter, also where the draw came to nothing.
        self._keeps_rows = table.counts_draws
        self._scanner: TableScanner | None = None
        if table.scan_table is not None:
            drawer = ItemDrawer(link, self._source, table.scan_table)
            burn_in = table.kind.burn_in if isinstance(table.kind, Window) else 0
            self._scanner = TableScanner(link, drawer, table.scan_table, self._id_layout(), burn_in)
        self._scan_lock = threading.Lock()
        self._closed = False
        # Also runs when the process ends.
        self._end_waits = weakref.finalize(self, link.end_waits)

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

    def num_frames(self) -> tf.Tensor:
        """`len(buffer)`, int64 `[]`, live inside a `tf.function`."""
        if tf.executing_eagerly():
            return tf.constant(len(self), tf.int64)
        frames = call_weakly(self, lambda buffer: np.int64(len(buffer)), [], tf.int64)
        frames.set_shape([])
        return frames

    # Writing

    def add_batch(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Writes one frame of each stream, and the items that it completes.

        The server confirms items later, at the latest when the buffer is read, flushed or closed, or
        when `max_pending_items` wait.

        Args:
          items: nest matching `data_spec`, leaves `[B, ...]`: NumPy arrays, eager tensors, or inside
            a `tf.function` symbolic tensors. Copied.
          end_of_episode: bool `[B]`, marks ends that the items do not tell.
          priorities: `[B]`, raw, of the items that start at these frames; without: what the table's `initial` says.
          streams: int `[n]`, ascending: one frame of each of these only, all arguments and ids `[n, ...]`. The other
            streams, and their episodes, stay as they are.

        Returns:
          The frames' ids, int64 `[B]`: a tensor where the items are tensors, else an array. -1 in
          tables with plain columns.

        Raises:
          ValueError: the items do not match `data_spec`; the message names the field. Nothing is written.
          ValueError: `streams` are none, or `end_of_episode` or `priorities` does not fit. Nothing is written.
          ValueError: the buffer is closed, or has no `sequence_length`.
          ValueError: an episode is longer than the table's `max_episode_length`. Nothing is written.
          WaitTimeoutError: too much is pending and the server does not confirm it within `timeout_s`, or does not
            tell the table's greatest priority (`initial='max'`; the last one that it told is given). The frame is
            written all the same, and its items may arrive later: adding it again would store it twice.
        """
        return self._adds.add_batch(items, end_of_episode, priorities, streams)

    def add_sequence(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Writes `T` frames of each stream, leaves `[B, T, ...]`: the same as `T` calls of `add_batch`.

        With `streams`, int `[n]`, of these only, all leaves `[n, T, ...]`.

        Returns:
          The frames' ids, int64 `[B, T]`. `T = 0` writes nothing.

        Raises:
          ValueError: as `add_batch`; also where fields disagree about `T`. Nothing is written.
          WaitTimeoutError: as `add_batch`; the first `num_written` (an attribute of the error) frames of each stream
            are written. Go on with the rest, or call `end_stream`: else what is added next follows the last of them.
          KeyboardInterrupt: the frames that are not written yet are left out, and the next ones begin episodes.
        """
        return self._adds.add_sequence(items, end_of_episode, priorities, streams)

    def let_streams_part(self) -> None:
        """Nothing to do: streams may part anyhow."""

    def end_stream(self, b: int | None = None) -> None:
        """Stream `b` (None: all of them) stops here: no item goes past its newest frame.

        Items that the end cuts short are written now, where the table pads them; so are whole episodes.

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
        self._priorities.flush()

    # Reading

    def ready(self, num_items: int = 1) -> bool:
        """Whether `sample(num_items)` would get its items now, without waiting for others to insert or to draw.

        Nothing is drawn. This buffer's pending writes are confirmed first, and those that a rate limiter holds back
        until somebody draws count as what they are: there when the draw needs them (but for those of a group, or of a
        thread that waits to write: these do not count). Another reader can of course be faster.

        It goes with `sample`. A dataset draws ahead all that its limiter allows, so that while one runs this may stay
        False for ever, and `while buffer.ready(n): next(iterator)` starves with items in the iterator: call `next`.

        Raises:
          TypeError: `num_items` is no int.
          ValueError: it is below 1, or the buffer is closed.
        """
        return not self.why_not_ready(num_items)

    def why_not_ready(self, num_items: int = 1) -> str:
        """What is missing for `sample(num_items)`, with the limiter's numbers; empty where `ready(num_items)`.

        Where items leave the table after several draws, `max_times_sampled` above 1, each draw is taken to remove one.

        Raises:
          TypeError, ValueError: as `ready`.
        """
        self._check_open()
        check_count("num_items", num_items)
        num_missing = num_items - self._stage.num_kept
        if num_missing <= 0:
            return ""
        try:
            are_held_back = self._streams.flush_for_a_read(_READY_SECONDS)
            info = self._link.ask(_READY_SECONDS)[self._table.name]
        except WaitTimeoutError as error:
            return str(error)
        except (RuntimeError, load_reverb().DeadlineExceededError):
            return self._link.no_answer()
        state = limiter_state(info)
        why = state.why_no_sample(num_missing)
        if why is not None and are_held_back:
            why = state.why_no_sample(num_missing, self._streams.count_held_back())
        return "" if why is None else why + self._streams.explain_no_item()

    def get(self, ids: Ids, num_steps: int | None = None) -> Items:
        """Refuses: a Reverb table cannot be read by frame id.

        Raises:
          TypeError: always; the message says what to use.
        """
        raise TypeError(
            "get: a Reverb table cannot be read by frame id; draw with sample() or as_dataset(), "
            "read everything with gather_all(), or keep the frames in a TFUniformReplayBuffer."
        )

    def update_priorities(self, keys: Any, priorities: Any = None, *, td_errors: Any = None) -> None:
        """Sets the raw priorities of the items with these keys; Reverb does not tell which keys were gone.

        Keys come with draws. Reverb tells none at insert, and cannot be asked for that of an item; so neighbours of a
        drawn item, whose ids differ from its own by 1, are updated by keys that came with a draw of theirs. Datasets
        that run have drawn ahead, by the priorities of then: `stats().priority_age` counts what that makes outdated.

        Args:
          keys: int64 `[n]`, `BufferInfo.keys`.
          priorities: `[n]`, finite and at least 0.
          td_errors: `[n]`, finite, instead: the priority is `abs(td_error) + eps`.

        Returns:
          None: buffers in process tell here how many keys were gone.

        Raises:
          ValueError: not exactly one of `priorities` and `td_errors` is given.
          ValueError: shapes differ, or a value is refused; the message names the position. Nothing is set.
          ValueError: the table takes no priorities (`initial='random'`), or one is so large that a table full of it
            could not add them up.
          ValueError: the table has tables beside it that tell the greatest or the least priority, and a key was not
            drawn by this buffer. Nothing is set.
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
            call_weakly(self, ServedBuffer._update, [keys, values, is_td], tf.bool)

    def delete(self, keys: Any) -> None:
        """Takes the items with these keys out of the table; Reverb does not tell which were gone.

        Only these items go: others that share frames with them are drawn as before. Datasets that run still deliver
        what they had fetched ahead.

        Args:
          keys: int64 `[n]`, `BufferInfo.keys`: an array or a tensor, also inside a `tf.function`.

        Raises:
          ValueError: keys are no whole numbers `[n]`.
          ValueError: the table can be scanned: its scan table would still hold them, and drop other items than it.
          ValueError: the table has tables beside it that tell the greatest or the least priority, and a key was not
            drawn by this buffer. Nothing is deleted.
          WaitTimeoutError: the server does not answer within `timeout_s`.
        """
        self._check_open()
        if self._table.scan_table is not None:
            raise ValueError(
                f"delete: table {self._table.name!r} has a scan table, which deletes cannot reach: it would still hold "
                "these items, and drop older ones than the table does; build the table with scannable=False."
            )
        if tf.executing_eagerly():
            self._delete(check_keys(keys))
        else:
            call_weakly(self, ServedBuffer._delete, [keys], tf.bool)

    def clear(self) -> None:
        """Empties the table, its scan table and their counters; streams go on with a new episode.

        Iterators that run still deliver what they had fetched ahead. What a `sample` that timed out had kept is gone.

        Raises:
          WaitTimeoutError: a group writes this table and others, and the limiter of another one holds items back: clear
            the group. The table is empty for now.
        """
        self._check_open()
        watch = Watch(self._link)
        what = (
            f"clear of table {self._table.name!r}: items are held back, of this table or of others that its writer has"
        )
        self._streams.restart(self._empty, lambda: watch.tell_or_raise(f"{what}; waiting"))
        self._stage.forget_kept()

    def _empty(self) -> None:
        """Empties the table and those beside it, as they are on the server."""
        tables = [name for name in (self._table.name, self._table.scan_table) if name is not None]

        def reset() -> None:
            for name in tables:
                self._link.client.reset(name)
            self._priorities.reset()

        self._link.call(reset, "a reset")

    def close(self) -> None:
        """Flushes, then ends the writer and the server if the buffer owns it. Closing twice is fine.

        Unfinished episodes end here: nobody could go on with them. Then what waits in other threads, `sample` or a
        dataset's `next`, ends within a second in the error that the buffer is closed.

        Raises:
          WaitTimeoutError: what is pending was not confirmed in time; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            # Nobody draws from a server that stops.
            self._streams.close(to_the_end=self._owned_server is None)
            self._priorities.flush()  # a server may take a checkpoint when it stops
        finally:
            self._end_waits()
            self._guard.close()
            self._priorities.close()
            if self._owned_server is not None:
                self._owned_server.stop()

    # How it is done

    def _stream_writer(self, rule: EpisodeRule, max_chunk_length: int | None, max_pending_items: int) -> StreamWriter:
        table, link, batch_size, priorities = self._table, self._link, self._batch_size, self._priorities

        def make_writer() -> ItemWriter:
            if isinstance(table.layout, JointLayout):
                raise ValueError(
                    f"table {table.name!r} holds moments of many agents: write it through a ReverbAgentTables."
                )
            return ItemWriter(
                link,
                [_target(table, priorities, None)],
                batch_size=batch_size,
                num_columns=table.layout.num_columns,
                padding=None if isinstance(table.layout, PlainLayout) else table.layout.padding,
                chunk_length=max_chunk_length or default_chunk_length(table.layout, table.item_length),
                max_pending_items=max_pending_items,
            )

        refused, checks = {table.name: priorities.why_refused()}, {table.name: priorities.check_sum}
        return StreamWriter(rule, table.layout, batch_size, make_writer, self._link.check_same, refused, checks)

    def _write_through(self, through: OpenWriter[Any], index: int, group: str) -> None:
        """From now on a group writes this table, its `index`th; what it writes is what reads confirm first."""
        self._streams.write_through(through, index, group)

    def _target(self, columns: tuple[int, ...] | None) -> ItemTarget:
        """This table, for the writer of a group that has these columns for it; None: all of the writer's."""
        return _target(self._table, self._priorities, columns)

    def _check_look_ahead(self, sample_batch_size: int | None) -> None:
        """Refuses a dataset for which the thread that writes would wait for itself.

        Raises:
          ValueError: see `check_look_ahead`.
        """
        table, knobs, batch = self._table, self._knobs, sample_batch_size or 1
        self._largest_batch = max(self._largest_batch, batch)

        def check(*, writes_here: bool = True) -> None:
            check_look_ahead(
                table.limiter,
                batch=batch,
                in_flight=knobs.max_in_flight_samples_per_worker * knobs.num_workers_per_iterator,
                prefetch=ELEMENTS_AHEAD - 1,
                name=table.name,
                iterators=min(batch, knobs.max_cycle_length),
                writes_here=writes_here,
            )

        check(writes_here=False)
        self._streams.check_if_written_here(check)

    @property
    def _look_ahead(self) -> int:
        """Rows that a dataset draws before they are delivered."""
        return self._in_flight + ELEMENTS_AHEAD * self._largest_batch

    def _priority_age(self) -> PriorityAge | None:
        age = self._priorities.age()
        return None if age is None else dataclasses.replace(age, look_ahead=self._look_ahead)

    def _served_tables(self) -> tuple[str, ...]:
        return (self._table.name,)

    def _settle(self) -> None:
        self._streams.flush_for_a_read()
        self._priorities.flush()

    def _scan(self) -> ScannedFrames:
        """Everything that the table holds.

        Raises:
          ValueError: the table cannot be scanned; the message says what is missing.
        """
        if self._scanner is None:
            raise ValueError(self._table.why_no_scan())
        with self._scan_lock:
            return self._scanner.scan(self._streams.flushed_next_ids())

    def _update(self, keys: Array, values: Array, is_td: Any) -> np.bool_:
        if keys.ndim != 1:
            raise ValueError(f"keys: expected int64 [n], got shape {list(keys.shape)}; windows have one key each.")
        raw = (
            check_priorities(None, values, keys.shape) + self._eps
            if is_td
            else check_priorities(values, None, keys.shape)
        )
        self._settle()
        self._priorities.update(keys, raw)
        self._spread.look(raw)
        return np.True_

    def _delete(self, keys: Array) -> np.bool_:
        if keys.ndim != 1:
            raise ValueError(f"keys: expected int64 [n], got shape {list(keys.shape)}; windows have one key each.")
        self._settle()
        self._priorities.delete(keys)
        return np.True_

    def _draw_in_graph(self, draw: Callable[[Any], tuple[Nest, BufferInfo]], element: Any) -> tuple[Items, BufferInfo]:
        """`draw(self)`, whose result is like `element`, inside a `tf.function`."""
        specs = tf.nest.flatten(element)

        def leaves_of(buffer: ServedBuffer) -> list[Array]:
            return [leaf.numpy() for leaf in tf.nest.flatten(draw(buffer))]

        leaves = call_weakly(self, leaves_of, [], [leaf.dtype for leaf in specs])
        for leaf, leaf_spec in zip(leaves, specs, strict=True):
            leaf.set_shape(leaf_spec.shape)
        items, info = tf.nest.pack_sequence_as(element, leaves)
        return self._spec.pack(tf.nest.flatten(items)), info

    def _id_layout(self) -> IdLayout:
        assert not isinstance(self._table.layout, PlainLayout)  # tables that can be scanned have ids
        return self._table.layout

    def _pack_for_dataset(self, leaves: Sequence[Any]) -> Nest:
        return tf.nest.pack_sequence_as(self._spec.dataset_nest(), list(leaves))

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this buffer is closed; build a new one.")


def _target(table: ServedTable, priorities: TablePriorities, columns: tuple[int, ...] | None) -> ItemTarget:
    if table.kind is None:
        raise ValueError("add_batch needs sequence_length: it says how long the items are that are written.")
    return ItemTarget(
        table.name,
        table.kind,
        table.capacity,
        table.scan_table,
        priorities.new_priority,
        priorities.on_item,
        columns,
    )


def open_link(
    table_name: str, server_address: str | None, local_server: Any, *, timeout_s: float, log_interval_s: float
) -> ServerLink:
    """The link to a table.

    Raises:
      ImportError: reverb is absent or does not fit the installed TensorFlow.
      ValueError: not exactly one of `server_address` and `local_server` is given, or a timeout is not positive and
        finite.
      TypeError: a timeout is no number.
      WaitTimeoutError: the server does not answer within `timeout_s`.
    """
    load_reverb()
    if (server_address is None) == (local_server is None):
        raise ValueError("give exactly one of server_address and local_server.")
    if server_address == "":
        raise ValueError("server_address must be 'host:port', got ''.")
    _check_seconds("timeout_s", timeout_s)
    _check_seconds("log_interval_s", log_interval_s)
    return ServerLink(
        server_address or f"localhost:{local_server.port}",
        table_name,
        timeout_s=float(timeout_s),
        log_interval_s=float(log_interval_s),
        in_process=local_server is not None,
    )


def _check_seconds(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}.")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value!r}: nothing here waits for ever.")
