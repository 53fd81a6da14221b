"""A Reverb server that holds declared tables."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from .reverb_import import load_reverb
from .table_words import repeated_item
from .tables import TableConfig

_logger = logging.getLogger(__name__)


class ReplayServer:
    """Serves the given tables on a port until it is stopped.

    Args:
      tables: `TableConfig`s (or ready `reverb.Table`s).
      port: the port to listen on; None: a free one.

    Raises:
      ValueError: there is no table, or two have the same name.
      ValueError: ready tables share a selector object, or one has it twice: Reverb's worker would die at the first
        insert, and every later call wait for ever.
      TypeError: a table is neither.
      ValueError: another server listens on the port: Reverb would share it, and spread clients over both at random.
      ImportError: reverb is absent or does not fit the installed TensorFlow.

    >>> import tensorflow as tf
    >>> with ReplayServer([TableConfig("replay", tf.TensorSpec([], tf.float32), max_size=10)]) as server:
    ...     server.table_names
    ('replay',)
    """

    def __init__(self, tables: Sequence[TableConfig | Any], port: int | None = None) -> None:
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
        _check_selectors(built)
        self._table_names = tuple(names)
        if port is not None:
            _check_free(port)
        self._server: Any = reverb.Server(built, port=port)
        self._port = int(self._server.port)

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

    def wait(self) -> None:
        """Blocks until the server is stopped, or the process gets a SIGINT.

        Raises:
          KeyboardInterrupt: the process got a SIGINT.
        """
        if self._server is not None:
            self._server.wait()

    def stop(self) -> None:
        """Ends the service and frees what its tables hold. Stopping twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def __enter__(self) -> ReplayServer:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


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
