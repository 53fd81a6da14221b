"""Several Reverb tables that are fed by the same frames, each with its own windows, fields, order and limits."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import tensorflow as tf

from .adds import Adds
from .base import Ids, Items
from .counts import check_count
from .episode_ends import EpisodeRule, FinalFrame
from .nests import Array, Nest
from .rate_limiters import UNBOUNDED
from .reverb_buffer import ReverbReplayBuffer
from .reverb_columns import SharedColumns
from .reverb_episodic import ReverbEpisodicReplayBuffer
from .reverb_items import ItemKind, WholeEpisodes, kind_from
from .reverb_layout import PackedLayout, packed_signature
from .reverb_link import CLOSED, ServerLink, Watch
from .reverb_open_writer import OpenWriter
from .reverb_served import DEFAULT_PENDING_ITEMS, open_link
from .reverb_streams import StreamWriter
from .reverb_writer import ItemWriter, default_chunk_length
from .saved_by_server import SavedByServer
from .server import ReplayServer
from .server_checkpoint_config import CheckpointConfig, OnMismatch
from .spec import DataSpec, ItemChecker
from .table_fields import select_fields
from .tables import TableConfig

_NAME = "its ReverbTableGroup"
_logger = logging.getLogger(__name__)

Reader = ReverbReplayBuffer | ReverbEpisodicReplayBuffer


class ReverbTableGroup(SavedByServer):
    """Writes each frame once, and the items that it completes into several tables of one server.

    The tables refer to the same stored data: a frame takes its memory once, until the last table has dropped it.
    Each table has its own window, sampler, remover, limiter and `fields`, as its `TableConfig` says, and gets one item
    for each of its windows. `group["name"]` is an ordinary buffer that reads one of them; it confirms the group's
    pending writes before it reads, and refuses to write.

    A table whose limiter holds items back does not keep others from getting theirs, until `max_pending_items` wait;
    then `add_batch` waits, says which table it is, and raises after `timeout_s`. (The server lets a tenth of a table's
    `max_size` wait: one of fewer than 10 `max_pending_items` may hold the others up sooner, which the log says. A
    queue's `max_size` may be larger than its `Queue(size)`.)

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame, with every field that one of the tables has.
      tables: names of tables that `TableConfig`s made.
      server_address: `host:port` of the server; this or `local_server`.
      local_server: a `ReplayServer` or `reverb.Server` in this process.
      batch_size: `B`, streams that `add_batch` writes side by side.
      timeout_s: how long writes, reads and calls to the server may take before they raise.
      log_interval_s: seconds between two lines about the same wait.
      end_of_episode_fn: `items -> bool [B]` (`[B, T]` in `add_sequence`) for specs that do not tell ends.
      final_frame: `'auto'`, `'observation'` or `'ordinary'` (`episode_ends.py`).
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      max_chunk_length: frames that Reverb compresses together; None: as many as the shortest items have, up to 16.
      max_pending_items: items that may wait for the server, of all tables together.
      readers: buffers that read some of the tables, with settings of their own; they must not have written. The
        others are made here, with default settings. The group closes all of them.

    Raises:
      ImportError: reverb is absent or does not fit the installed TensorFlow.
      TypeError: a count is no int.
      ValueError: a count is below 1, or a timeout is not positive and finite.
      ValueError: not exactly one of `server_address` and `local_server` is given.
      ValueError: there is no table, one comes twice, or the server does not have it.
      ValueError: a table was not made by a `TableConfig` with `layout='packed'`, holds moments of many agents, or has
        `over_long='cut'`, which cuts the episodes of all tables.
      ValueError: a table holds a field that `data_spec` lacks.
      ValueError: a reader is of a table that is not in the group, or has written.
      WaitTimeoutError: the server does not answer within `timeout_s`.

    >>> spec = tf.TensorSpec([], tf.int64)
    >>> tables = [TableConfig("one", spec, 100), TableConfig("pairs", spec, 100, sequence_length=2)]
    >>> with ReverbTableGroup.local(spec, tables) as group:
    ...     _ = group.add_sequence([[7, 8]])
    ...     len(group["one"]), group["pairs"].sample(1, num_steps=2)[0].numpy().tolist()
    (2, [[7, 8]])
    """

    def __init__(
        self,
        data_spec: Nest,
        tables: Sequence[str],
        server_address: str | None = None,
        local_server: Any = None,
        *,
        batch_size: int = 1,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        cast: bool = False,
        max_chunk_length: int | None = None,
        max_pending_items: int = DEFAULT_PENDING_ITEMS,
        readers: Mapping[str, Reader] | None = None,
    ) -> None:
        check_count("batch_size", batch_size)
        check_count("max_pending_items", max_pending_items)
        check_count("max_chunk_length", max_chunk_length, optional=True)
        names = _check_names(tables, readers or {})
        self._spec = DataSpec(data_spec)
        self._batch_size = int(batch_size)
        self._local_server = local_server
        self._owned_server: ReplayServer | None = None
        self._closed = False
        rule = EpisodeRule(self._spec, end_of_episode_fn, final_frame)
        link = open_link(names[0], server_address, local_server, timeout_s=timeout_s, log_interval_s=log_interval_s)
        self._link = link
        link.expect_same(names)
        kinds = {name: _check_table(link, name) for name in names}
        if any(isinstance(kind, WholeEpisodes) or kind.length > 1 for kind in kinds.values()):
            rule.expect_windows()
        made: list[Reader] = []
        try:
            self._readers: dict[str, Reader] = {}
            for name in names:
                reader = (readers or {}).get(name)
                if reader is None:
                    reader = make_reader(data_spec, link, name, kinds[name], local_server, self._batch_size)
                    made.append(reader)
                self._readers[name] = reader
            self._streams = self._stream_writer(rule, max_chunk_length, max_pending_items)
            tell_of_small_tables(self._readers.values(), max_pending_items)
            for index, reader in enumerate(self._readers.values()):
                reader._write_through(self._streams.own, index, _NAME)
        except BaseException:
            for reader in made:
                reader.close()
            raise
        self._checker = ItemChecker(self._spec, self._batch_size, cast=cast)
        self._adds = Adds(self._spec, self._checker, self._batch_size, self._streams)
        # For dicts of priorities in graphs, by their tables.
        self._adds_of: dict[tuple[str, ...], Adds] = {}

    @classmethod
    def local(
        cls,
        data_spec: Nest,
        tables: Sequence[TableConfig],
        *,
        batch_size: int = 1,
        port: int | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        on_mismatch: OnMismatch = "error",
        checkpoints: CheckpointConfig | None = None,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        cast: bool = False,
        max_chunk_length: int | None = None,
        max_pending_items: int = DEFAULT_PENDING_ITEMS,
    ) -> ReverbTableGroup:
        """A group that starts a server of its own in this process, and stops it on `close`.

        Arguments are those of the constructor and (`port`, `checkpoint_dir`, `on_mismatch`, `checkpoints`) of
        `ReplayServer`; the server has the tables in `tables`.

        Raises:
          TypeError, ValueError, ImportError: as `ReplayServer` and the constructor.

        >>> spec = tf.TensorSpec([], tf.int64)
        >>> with ReverbTableGroup.local(spec, [TableConfig("replay", spec, 10)]) as group:
        ...     group.tables
        ('replay',)
        """
        server = ReplayServer(
            tables, port, checkpoint_dir=checkpoint_dir, on_mismatch=on_mismatch, checkpoints=checkpoints
        )
        try:
            group = cls(
                data_spec,
                [table.name for table in tables],
                None,
                server,
                batch_size=batch_size,
                timeout_s=timeout_s,
                log_interval_s=log_interval_s,
                end_of_episode_fn=end_of_episode_fn,
                final_frame=final_frame,
                cast=cast,
                max_chunk_length=max_chunk_length,
                max_pending_items=max_pending_items,
            )
        except BaseException:
            server.stop()
            raise
        group._owned_server = server
        return group

    @property
    def data_spec(self) -> Nest:
        """What a frame holds."""
        return self._spec.nest

    @property
    def batch_size(self) -> int:
        """`B`, streams that are written side by side."""
        return self._batch_size

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables' names."""
        return tuple(self._readers)

    @property
    def server_address(self) -> str:
        """`host:port`, for buffers in other processes."""
        return self._link.address

    @property
    def local_server(self) -> Any:
        """The server given or owned, or None."""
        return self._owned_server or self._local_server

    def __getitem__(self, table: str) -> Reader:
        """The buffer that reads one of the tables.

        Raises:
          KeyError: it is none of the group's.
        """
        try:
            return self._readers[table]
        except KeyError:
            raise KeyError(f"there is no table {table!r} in this group; it has {', '.join(self._readers)}.") from None

    def __iter__(self) -> Iterator[str]:
        """The tables' names."""
        return iter(self._readers)

    def __len__(self) -> int:
        """How many tables there are."""
        return len(self._readers)

    def add_batch(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Writes one frame of each stream, and the items that it completes in each table.

        Args:
          items: nest matching `data_spec`, leaves `[B, ...]`: NumPy arrays, eager tensors, or inside
            a `tf.function` symbolic tensors. Copied.
          end_of_episode: bool `[B]`, marks ends that the items do not tell.
          priorities: raw ones of the items that start at these frames, `[B]`: for every table, but for those with
            `initial='random'`; or a dict of them by table. Other items get what their table's `initial` says.
          streams: int `[n]`, ascending: one frame of each of these only, all arguments and ids `[n, ...]`. The other
            streams, and their episodes, stay as they are.

        Returns:
          The frames' ids, int64 `[B]`: a tensor where the items are tensors, else an array.

        Raises:
          ValueError: the items do not match `data_spec`; the message names the field. Nothing is written.
          ValueError: `streams` are none, or `end_of_episode` or `priorities` does not fit, or names another table.
            Nothing is written.
          ValueError: the group is closed.
          ValueError: an episode is longer than a table's `max_episode_length`. Nothing is written.
          WaitTimeoutError: too much is pending and the server does not confirm it within `timeout_s`; the message names
            the table. The frame is written all the same, and its items may arrive later.
        """
        adds, given = self._adds_for(priorities)
        return adds.add_batch(items, end_of_episode, given, streams)

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
        adds, given = self._adds_for(priorities)
        return adds.add_sequence(items, end_of_episode, given, streams)

    def end_stream(self, b: int | None = None) -> None:
        """Stream `b` (None: all of them) stops here: no item of any table goes past its newest frame.

        Raises:
          ValueError: there is no stream `b`.
        """
        if b is not None and not 0 <= b < self._batch_size:
            raise ValueError(f"there is no stream {b}: this group has streams 0 to {self._batch_size - 1}.")
        self._streams.end_stream(b)

    def flush(self) -> None:
        """Returns when the server has confirmed all that was added.

        Raises:
          WaitTimeoutError: it has not within `timeout_s`; the message has the numbers, and names a table whose
            limiter holds items back.
        """
        for reader in self._readers.values():
            reader.flush()

    def clear(self) -> None:
        """Empties all tables and their counters; streams go on with a new episode."""
        self._check_open()
        self._streams.end_stream(None)
        empty_all(self._link, self._streams._through, list(self._readers.values()))

    def close(self) -> None:
        """Flushes, then ends the writer, the readers, and the server if the group owns it. Closing twice is fine.

        Raises:
          WaitTimeoutError: what is pending was not confirmed in time; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            # Nobody draws from a server that stops.
            self._streams.close(to_the_end=self._owned_server is None)
        finally:
            for reader in self._readers.values():
                reader.close()
            self._link.end_waits()
            if self._owned_server is not None:
                self._owned_server.stop()

    def __enter__(self) -> ReverbTableGroup:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stream_writer(self, rule: EpisodeRule, max_chunk_length: int | None, max_pending_items: int) -> StreamWriter:
        readers, link, batch_size = list(self._readers.values()), self._link, self._batch_size
        columns = SharedColumns(self._spec, [_packed_layout(reader) for reader in readers])
        lengths = [reader._table.item_length or 16 for reader in readers]
        chunk_length = max_chunk_length or default_chunk_length(columns, min(lengths))
        targets = [reader._target(own) for reader, own in zip(readers, columns.of_layout, strict=True)]

        def make_writer() -> ItemWriter:
            return ItemWriter(
                link,
                targets,
                batch_size=batch_size,
                num_columns=columns.num_columns,
                padding=columns.padding,
                chunk_length=chunk_length,
                max_pending_items=max_pending_items,
            )

        refused = {name: reader._priorities.why_refused() for name, reader in self._readers.items()}
        checks = {name: reader._priorities.check_sum for name, reader in self._readers.items()}
        return StreamWriter(rule, columns, batch_size, make_writer, self._link.check_same, refused, checks)

    def _adds_for(self, priorities: Any) -> tuple[Adds, Any]:
        """What takes priorities of this form, and the priorities in the form that it takes."""
        if not isinstance(priorities, Mapping) or tf.executing_eagerly():
            return self._adds, priorities
        names = tuple(name for name in self._readers if name in priorities)
        unknown = [name for name in priorities if name not in names]
        if unknown:
            raise ValueError(
                f"priorities: there is no table {unknown[0]!r} here; there are {', '.join(self._readers)}."
            )
        adds = self._adds_of.get(names)
        if adds is None:
            adds = Adds(self._spec, self._checker, self._batch_size, _StackedPriorities(self._streams, names))
            self._adds_of[names] = adds
        if not names:
            return self._adds, None
        return adds, tf.stack([tf.cast(priorities[name], tf.float64) for name in names])

    def _served_tables(self) -> tuple[str, ...]:
        return tuple(self._readers)

    def _settle(self) -> None:
        for reader in self._readers.values():
            reader._settle()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(CLOSED)


class _StackedPriorities:
    """A writer to which priorities of some tables come as one array, as graphs pass them on.

    Args:
      streams: takes a dict of them.
      tables: to which the array's rows belong.
    """

    def __init__(self, streams: StreamWriter, tables: tuple[str, ...]) -> None:
        self._streams = streams
        self._tables = tables

    def add_step(
        self, leaves: list[Array], end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """As `StreamWriter.add_step`, priorities `[tables, B]`."""
        by_table = dict(zip(self._tables, priorities, strict=True))
        return self._streams.add_step(leaves, end_of_episode, by_table, streams)

    def add_steps(
        self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """As `StreamWriter.add_steps`, priorities `[tables, B, T]`."""
        by_table = dict(zip(self._tables, priorities, strict=True))
        return self._streams.add_steps(leaves, num_steps, end_of_episode, by_table, streams)


def empty_all(link: ServerLink, writer: OpenWriter[Any], readers: Sequence[Reader]) -> None:
    """Empties the tables that one writer fills, all at once: what the limiter of one holds back, others wait for.

    Raises:
      WaitTimeoutError: something is held back all the same, for as long as the link's timeout.
    """
    watch = Watch(link)

    def empty() -> None:
        for reader in readers:
            reader._empty()

    names = ", ".join(repr(reader.table_name) for reader in readers)
    writer.restart(empty, lambda: watch.tell_or_raise(f"clear of tables {names}: items are held back; waiting"))
    for reader in readers:
        reader._stage.forget_kept()


def _check_names(tables: Sequence[str], readers: Mapping[str, Reader]) -> tuple[str, ...]:
    if isinstance(tables, str) or not all(isinstance(name, str) for name in tables):
        raise TypeError(f"tables must be a sequence of table names, got {tables!r}.")
    names = tuple(tables)
    if not names:
        raise ValueError("a group needs at least one table.")
    if len(set(names)) != len(names):
        raise ValueError(f"a table comes twice: {names!r}.")
    for name, reader in readers.items():
        if name not in names:
            raise ValueError(f"readers: {name!r} is none of the group's tables {', '.join(names)}.")
        if reader.table_name != name:
            raise ValueError(f"readers[{name!r}] reads table {reader.table_name!r}.")
    return names


def _check_table(link: ServerLink, name: str) -> ItemKind:
    """What an item of the table is.

    Raises:
      ValueError: a group cannot write it, or there is none.
    """
    if name not in link.own_table_names:
        raise ValueError(f"there is no table {name!r} at {link.address}; it has {', '.join(link.own_table_names)}.")
    about = packed_signature(link.tables()[name].signature, name)
    if about is None:
        raise ValueError(
            f"table {name!r} has plain columns, which only those write who made it; make it with a TableConfig with "
            "layout='packed'."
        )
    if about["table"].get("agents") is not None:
        raise ValueError(f"table {name!r} holds what many agents do: write it through a ReverbAgentTables.")
    kind = kind_from(about["items"])
    if isinstance(kind, WholeEpisodes) and kind.over_long == "cut":
        raise ValueError(
            f"table {name!r} has over_long='cut', which would cut the episodes of the group's other tables as well: "
            "give over_long='drop' or 'error', or write it with a buffer of its own."
        )
    return kind


def _packed_layout(reader: Reader) -> PackedLayout:
    layout = reader._id_layout()
    assert isinstance(layout, PackedLayout)  # checked: others are none of a group's
    return layout


def tell_of_small_tables(readers: Collection[Reader], max_pending_items: int) -> None:
    """Says on the log which tables may hold others up.

    Where a tenth of a table's `max_size` waits for its limiter Reverb stops reading from the writer, whatever is next.
    """
    for reader in readers:
        table = reader._table
        if len(readers) > 1 and table.limiter.max_error < UNBOUNDED and table.capacity < 10 * max_pending_items:
            _logger.warning(
                "table %r: while its limiter holds items back it may hold up the other tables too; with a max_size of "
                "%d or more (10 times max_pending_items) it would not. A larger max_size costs nothing where the "
                "limiter is a Queue or a Stack.",
                table.name,
                10 * max_pending_items,
            )


def make_reader(
    data_spec: Nest, link: ServerLink, name: str, kind: ItemKind, local_server: Any, batch_size: int
) -> Reader:
    """A buffer that reads a table which somebody else writes.

    Args:
      data_spec: what the writer's frames hold; the table may hold fewer fields.
      link: the server.
      name: the table.
      kind: what its items are.
      local_server: the server, if it is in this process.
      batch_size: streams that the table's frames are of.
    """
    about = packed_signature(link.tables()[name].signature, name) or {}
    fields = about.get("table", {}).get("fields")
    spec = select_fields(data_spec, None if fields is None else tuple(fields))
    address = link.address if local_server is None else None
    if isinstance(kind, WholeEpisodes):
        return ReverbEpisodicReplayBuffer(
            spec,
            name,
            address,
            local_server,
            batch_size=batch_size,
            timeout_s=link.timeout_s,
            log_interval_s=link.log_interval_s,
            end_of_episode_fn=_ends_are_the_groups,
        )
    return ReverbReplayBuffer(
        spec,
        name,
        None,
        address,
        local_server,
        batch_size=batch_size,
        timeout_s=link.timeout_s,
        log_interval_s=link.log_interval_s,
        end_of_episode_fn=_ends_are_the_groups,
    )


def _ends_are_the_groups(items: Nest) -> Any:
    """Never called: a reader of a group writes nothing. With it the reader needs no word on where episodes end."""
    raise NotImplementedError
