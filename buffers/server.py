"""A Reverb server that holds declared tables."""

from __future__ import annotations

import logging
import os
import pathlib
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from .reverb_control import CONTROL_TABLE, CheckpointReport, ServerStatus, check_step, control_table
from .reverb_import import load_reverb
from .reverb_limits import limiter_state
from .server_checkpoint_config import CheckpointConfig, OnDamaged, OnMismatch, chosen_config
from .server_checkpoint_restore import start_from_newest
from .server_checkpoints import (
    IN_PROGRESS,
    SCRATCH,
    ServerCheckpoints,
    clean_up,
    items_text,
    step_in,
    tell_of_clock,
)
from .server_manifest import DATA_FILES, Checkpoint, LockedFolder
from .table_words import repeated_item
from .tables import TableConfig

_logger = logging.getLogger(__name__)

_STOP_SECONDS = 600.0
_ASK_SECONDS = 60


class ReplayServer:
    """Serves the given tables on a port until it is stopped; with `checkpoint_dir` what they hold outlives it.

    A checkpoint is Reverb's own, in a folder of `checkpoint_dir` that is named by the time, with a `manifest.json` of
    ours beside: the tables' settings, items, step, and the files' sizes and checksums. All paths are the server's: a
    client on another machine asks by `ReverbReplayBuffer.checkpoint()` and is told the server's path. Whenever a server
    is killed, its last complete checkpoint stays; what it was writing is named at the next start and not used. Which
    one is newer goes by a number in the manifest, since clocks can go back. Damaged ones are passed over, with a
    warning, and stay; where all of them are, `on_damaged` says what becomes of it.

    What a writer had no confirmation of when its server was killed it sends again, at most its `max_pending_items`, and
    in any order: a table that gives the oldest first (`Fifo`, `Queue`) may give those out of order.

    It begins with the newest complete checkpoint there is: items with their keys, frame ids, priorities and numbers of
    draws, and the limiter's counts of inserts and samples go on; `stats()` too. Writers of before or after never
    share ids. Reverb 0.14 takes a stored table's settings in place of those asked for, without a word; here they are
    compared: see `on_mismatch`. A table whose ratio is used up says so, with the numbers, on the log.

    While Reverb takes a checkpoint, inserts into and samples of each table in turn wait until its items are copied;
    clients say then that the server does not answer. Measured for 200,000 items of 37 bytes (16 MB on the disk), on 2
    cores that others kept busy: they waited for 0.5 to 1.8 s, the checkpoint took 2.2 to 4.4 s, beginning with it 1.3
    to 3.3 s, and overriding its settings 3.6 to 5.4 s. Tables are copied one after the other: of what is written
    meanwhile a scan table, or a mirror of priorities, may hold some items more or fewer than its own, until those are
    the oldest.

    Checkpoints are taken one after the other, whoever asks; a client gets one that was begun after it asked. What
    Reverb's own `Client.checkpoint()` asks for becomes a checkpoint too, a moment later and beside the path that it
    tells; but Reverb deletes for it what it is writing at that moment, which is then taken anew, with a warning.

    A plain `reverb.Server` can load a checkpoint if it has all tables of it, `replayfeed__server` too, by which clients
    are told of checkpoints; but it would delete the others of the folder.

    Args:
      tables: `TableConfig`s (or ready `reverb.Table`s).
      port: the port to listen on; None: a free one.
      checkpoint_dir: where checkpoints are, on this machine; it is made. None: nothing is kept. One server at a time.
      on_mismatch: what if the newest checkpoint was made with other settings. `'error'`: a `ValueError` names each.
        `'keep'`: the stored ones hold, tables that are not asked for included; `tables` tells them. `'override'`: the
        stored items go into tables of the settings asked for, as many as the remover leaves there, with priorities
        and numbers of draws; what does not go is said. Where the limiter's counts do not fit the new limiter, it
        begins as if sampling were about to begin. What says what the data are (`data_spec`, `sequence_length`, ...)
        cannot be overridden; nor are tables that tell priorities added, or full reservoirs enlarged.
      on_damaged: what if there are checkpoints that were complete, and all of them are damaged now. `'error'`: a
        `ValueError` names each. `'empty'`: tables begin empty, and an error on the log says so. Those that were never
        complete, as a server that is killed leaves them, do not count.
      checkpoint_every_s: seconds between two checkpoints; none is taken if nothing was inserted or drawn since.
      checkpoint_every_inserts: inserts, of all tables asked for together, between two checkpoints; looked at five times
        a second.
      keep_last: complete checkpoints that stay; each is whole, and as large as the tables' data. None: all.
      checkpoint_on_stop: take one when the server is stopped. (A signal that ends the process does not stop it.)
      restore_timeout_s: how long finding, reading and checking a checkpoint may take, with a line every 5 s. Then
        `'override'` rewrites its items, without lines, and Reverb loads it, from memory by then, in one go that holds
        Python's lock and cannot be ended. Reverb prints some lines to stderr at each start and checkpoint.
      checkpoints: all of these as one object, in place of them.

    Raises:
      ValueError: there is no table, or two have the same name.
      ValueError: ready tables share a selector object, or one has it twice: Reverb's worker would die at the first
        insert, and every later call wait for ever.
      TypeError: a table is neither.
      TypeError, ValueError: as `CheckpointConfig`.
      ValueError: an option of checkpoints is given without `checkpoint_dir`, or beside `checkpoints`.
      ValueError: another server listens on the port: Reverb would share it, and spread clients over both at random.
      ValueError: another server uses `checkpoint_dir`.
      ValueError: the newest checkpoint has other settings, as `on_mismatch` says, or is of another format version.
      ValueError: all checkpoints are damaged, as `on_damaged` says.
      WaitTimeoutError: the checkpoint is not read within `restore_timeout_s`.
      ImportError: reverb is absent or does not fit the installed TensorFlow.

    >>> import tempfile, tensorflow as tf
    >>> with ReplayServer([TableConfig("replay", tf.TensorSpec([], tf.float32), max_size=10)]) as server:
    ...     server.table_names
    ('replay',)
    >>> folder = tempfile.mkdtemp()
    >>> tables = [TableConfig("replay", tf.TensorSpec([], tf.float32), max_size=10)]
    >>> with ReplayServer(tables, checkpoint_dir=folder, checkpoint_every_s=600.0, keep_last=2) as server:
    ...     server.checkpoint(step=7).items
    {'replay': 0}
    >>> with ReplayServer(
    ...     tables,
    ...     checkpoint_dir=folder,
    ...     on_mismatch="keep",
    ...     checkpoint_every_inserts=100_000,
    ...     checkpoint_on_stop=True,
    ...     restore_timeout_s=60.0,
    ... ) as server:
    ...     server.started_from.step
    7
    """

    def __init__(
        self,
        tables: Sequence[TableConfig | Any],
        port: int | None = None,
        *,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        on_mismatch: OnMismatch = "error",
        on_damaged: OnDamaged = "error",
        checkpoint_every_s: float | None = None,
        checkpoint_every_inserts: int | None = None,
        keep_last: int | None = 3,
        checkpoint_on_stop: bool = False,
        restore_timeout_s: float = 600.0,
        checkpoints: CheckpointConfig | None = None,
    ) -> None:
        if not tables:
            raise ValueError("ReplayServer needs at least one TableConfig.")
        reverb = load_reverb()
        built: list[Any] = []
        for table in tables:
            if isinstance(table, TableConfig):
                built += table.build()
                repeated = repeated_item(table)
                if repeated is not None:
                    _logger.warning("table %r: %s", table.name, repeated)
            elif isinstance(table, reverb.Table):
                built.append(table)
            else:
                raise TypeError(f"ReplayServer.tables must be TableConfigs, got {table!r}.")
        names = [table.name for table in built]
        if len(set(names)) != len(names):
            raise ValueError(f"two tables of a ReplayServer have the same name: {sorted(names)}.")
        if CONTROL_TABLE in names:
            raise ValueError(f"a table is named {CONTROL_TABLE!r}, which is the server's own: give it another name.")
        _check_selectors(built)
        config = chosen_config(
            checkpoints,
            {
                "checkpoint_dir": checkpoint_dir,
                "on_mismatch": on_mismatch,
                "on_damaged": on_damaged,
                "checkpoint_every_s": checkpoint_every_s,
                "checkpoint_every_inserts": checkpoint_every_inserts,
                "keep_last": keep_last,
                "checkpoint_on_stop": checkpoint_on_stop,
                "restore_timeout_s": restore_timeout_s,
            },
        )
        self._table_names = tuple(names)
        self._tables = tuple(tables)
        self._checkpoints: ServerCheckpoints | None = None
        self._started_from: CheckpointReport | None = None
        self._on_stop = config is not None and config.checkpoint_on_stop
        self._folder: LockedFolder | None = None
        if port is not None:
            _check_free(port)
        if config is None:
            self._server: Any = reverb.Server(built, port=port)
            self._port = int(self._server.port)
            return
        self._folder = LockedFolder(config.checkpoint_dir)
        try:
            self._server = None
            self._start(port, config)
        except BaseException:
            self._folder.close()
            if self._server is not None:
                self._server.stop()
            raise

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._port

    @property
    def address(self) -> str:
        """`host:port` for clients on this machine."""
        return f"localhost:{self._port}"

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables that are served, scan tables included."""
        return self._table_names

    @property
    def tables(self) -> tuple[TableConfig | Any, ...]:
        """What is served: the tables asked for, or with `on_mismatch='keep'` those that the checkpoint tells of."""
        return self._tables

    @property
    def checkpoint_dir(self) -> str | None:
        """Where checkpoints are, on the server's machine; None: there are none."""
        return None if self._folder is None else str(self._folder.path)

    @property
    def started_from(self) -> CheckpointReport | None:
        """The checkpoint that the tables were loaded from; None: they began empty."""
        return self._started_from

    @property
    def last_checkpoint(self) -> CheckpointReport | None:
        """The newest checkpoint that this server has taken, whoever asked; None: none yet."""
        return None if self._checkpoints is None else self._checkpoints.status.last

    def checkpoint(self, step: int | None = None, *, timeout_s: float = 600.0) -> CheckpointReport:
        """Takes a checkpoint now, and returns when it is complete on the disk.

        What writers have not had confirmed may be missing: `flush` them before.

        Args:
          step: the trainer's step; None: what a client has last told (`ReverbReplayBuffer.mark_step`), if any.
          timeout_s: how long it may take.

        Raises:
          TypeError, ValueError: `step` is no int, or negative.
          ValueError: the server has no `checkpoint_dir`, or is stopped.
          WaitTimeoutError: it takes longer. It goes on, and may be complete later.
          RuntimeError, OSError: it cannot be written.
        """
        check_step(step)
        if self._checkpoints is None:
            raise ValueError("this server keeps no checkpoints: build it with ReplayServer(..., checkpoint_dir=...).")
        if self._server is None:
            raise ValueError("this server is stopped: there is nothing to take a checkpoint of.")
        return self._checkpoints.take(step, timeout_s)

    def wait(self) -> None:
        """Blocks until the server is stopped, or the process gets a SIGINT.

        Raises:
          KeyboardInterrupt: the process got a SIGINT.
        """
        if self._server is not None:
            self._server.wait()

    def stop(self) -> None:
        """Ends the service and frees what its tables hold. Stopping twice is fine.

        A checkpoint that is being taken is finished before; with `checkpoint_on_stop` one more is taken.

        Raises:
          WaitTimeoutError, RuntimeError, OSError: that checkpoint failed; the server is stopped all the same.
        """
        server, self._server = self._server, None
        if server is None:
            return
        try:
            if self._checkpoints is not None and self._on_stop:
                self._checkpoints.take(None, _STOP_SECONDS, "the server stops")
        finally:
            if self._checkpoints is not None:
                self._checkpoints.end()
            server.stop()
            if self._folder is not None:
                self._folder.close()

    def __enter__(self) -> ReplayServer:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, port: int | None, config: CheckpointConfig) -> None:
        """Loads the newest checkpoint, says what came of it, and begins to take them."""
        assert self._folder is not None  # the caller has made it
        reverb, folder = load_reverb(), self._folder.path
        clean_up(folder)

        def start(tables: Sequence[Any], path: pathlib.Path | None) -> Any:
            checkpointer = reverb.checkpointers.DefaultCheckpointer(
                str(folder / IN_PROGRESS), fallback_checkpoint_path=None if path is None else str(path)
            )
            return reverb.Server(tables, port=port, checkpointer=checkpointer)

        began = time.monotonic()
        started = start_from_newest(
            folder,
            folder / SCRATCH,
            self._tables,
            lambda: [control_table()],
            start,
            config,
        )
        tell_of_clock(folder)
        self._server, self._tables = started.server, started.tables
        self._port = int(self._server.port)
        infos = reverb.Client(self.address).server_info(timeout=_ASK_SECONDS)
        infos.pop(CONTROL_TABLE)
        self._table_names = tuple(sorted(infos, key=lambda name: _place(name, self._table_names)))
        step = None
        if started.checkpoint is not None:
            self._started_from = _report(started.checkpoint, infos, time.monotonic() - began)
            step = self._started_from.step
            _tell(self._started_from, infos)
        status = ServerStatus(str(folder), None if self._started_from is None else self._started_from.path, step)
        plain = [_plain(table) for table in self._tables]
        self._checkpoints = ServerCheckpoints(self._folder, self.address, plain, config, status, step)
        weakref.finalize(self, self._checkpoints.let_end)


def _report(checkpoint: Checkpoint, infos: Mapping[str, Any], seconds: float) -> CheckpointReport:
    manifest = checkpoint.manifest
    num_bytes = sum((checkpoint.path / name).stat().st_size for name in DATA_FILES)
    items = {name: int(info.current_size) for name, info in sorted(infos.items())}
    step = step_in(checkpoint.path) if manifest is None else manifest.step
    return CheckpointReport(str(checkpoint.path), step, items, num_bytes, seconds)


def _tell(report: CheckpointReport, infos: Mapping[str, Any]) -> None:
    """Says on the log what the tables begin with, and which of them give nothing for the time being."""
    _logger.warning(
        "the tables begin with checkpoint %s (step %s): %s; loaded in %.1f s",
        report.path,
        report.step,
        items_text(report.items),
        report.seconds,
    )
    for info in infos.values():
        state = limiter_state(info)
        why = state.why_no_sample()
        if why is not None and state.size:
            _logger.warning("%s; it has %d items, and sampling waits until then", why, state.size)
        why = state.why_no_insert()
        if why is not None:
            _logger.warning("%s; inserting waits until then", why)


def _plain(table: TableConfig | Any) -> dict[str, Any] | None:
    """What the manifest tells of a table."""
    if not isinstance(table, TableConfig):
        return None
    try:
        return table.to_dict()
    except (TypeError, ValueError) as error:
        _logger.warning("table %r: its checkpoints tell only what Reverb stores of its settings: %s", table.name, error)
        return None


def _place(name: str, names: Sequence[str]) -> tuple[int, str]:
    return (names.index(name) if name in names else len(names), name)


def _check_selectors(tables: Sequence[Any]) -> None:
    """Refuses a selector object that stands in two places. `TableConfig` makes new ones; ready tables may not."""
    places: dict[int, str] = {}
    for table in tables:
        for role in ("sampler", "remover"):
            # Reverb keeps them under these names only; where a version does not, nothing is checked.
            selector = getattr(table, f"_{role}", None)
            place = f"{role} of table {table.name!r}"
            if selector is not None and places.setdefault(id(selector), place) != place:
                raise ValueError(
                    f"one selector object is {places[id(selector)]} and {place}: Reverb's worker would die at the "
                    "first insert, and every later call wait for ever. Make one for each place, or give TableConfigs."
                )


def _check_free(port: int) -> None:
    """Refuses a port on which another server listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections of a server that has ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ValueError(
                f"ReplayServer: port {port} cannot be had ({error.strerror}); stop the server that listens there, or "
                "leave port out for a free one."
            ) from error
