"""Notices that a server was started anew with other data in its tables than those that a buffer was made for.

Reverb looks at shapes and dtypes of columns when a writer or reader is made, and never again; frames that are packed
into as many bytes would be taken for each other. So what every answer of the server says of its tables is compared with
what it said at first, and whoever writes or draws asks now and then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .reverb_layout import packed_signature

_logger = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 1.0


class SameTables:
    """What some tables of one server hold, and whether they still do.

    Args:
      address: `host:port` of the server.
      tables: Reverb's `TableInfo`s, by name.
      own: the names of those that matter.

    Attributes:
      problem: what is another thing by now, and the way out; empty while all are as they were.
      missing: which of them the server does not have now; empty while it has them.
    """

    def __init__(self, address: str, tables: Mapping[str, Any], own: Iterable[str]) -> None:
        self._address = address
        self._held = {name: _contents(tables[name]) for name in own if name in tables}
        self.problem = self.missing = ""
        self._next_look = time.monotonic() + _LOOK_EVERY_SECONDS

    def compare(self, tables: Mapping[str, Any]) -> None:
        """Looks at an answer of the server."""
        self._next_look = time.monotonic() + _LOOK_EVERY_SECONDS
        if self.problem:
            return
        gone = [name for name in self._held if name not in tables]
        self.missing = (
            ""
            if not gone
            else (
                f"server {self._address} was started anew, and has no table {gone[0]!r} any more; it has "
                f"{', '.join(map(repr, sorted(tables))) or 'none'}. Start it with that table, or build a new buffer."
            )
        )
        for name, held in self._held.items():
            now = held if name not in tables else _contents(tables[name])
            if now != held:
                self.problem = (
                    f"server {self._address} was started anew, and its table {name!r} holds something else than when "
                    f"this buffer was made: {_difference(held, now)}. Build a new buffer with the table's data_spec, "
                    "or start the server with the table as it was."
                )
                _logger.error("%s", self.problem)
                return

    @property
    def is_due(self) -> bool:
        """Whether the server is to be asked again."""
        return time.monotonic() >= self._next_look

    def put_off(self) -> None:
        """It did not answer: to ask at each write would hold all of them up."""
        self._next_look = time.monotonic() + _LOOK_EVERY_SECONDS


def _contents(info: Any) -> Any:
    """What a table's data are: of packed ones fields and items, of others their signature."""
    try:
        about = packed_signature(info.signature, info.name)
    except ValueError as error:  # of another version of this package
        return str(error)
    if about is None:
        return info.signature
    return {"fields": about["fields"], "items": about["items"]}


def _difference(held: Any, now: Any) -> str:
    if not (isinstance(held, Mapping) and isinstance(now, Mapping) and "fields" in held and "fields" in now):
        return f"{now}, before {held}"
    fields = [{path: f"{dtype}{list(shape)}" for path, shape, dtype in each["fields"]} for each in (held, now)]
    told = [
        f"field {path!r} is {fields[1].get(path, 'missing')}, before {fields[0].get(path, 'missing')}"
        for path in sorted({*fields[0], *fields[1]})
        if fields[0].get(path) != fields[1].get(path)
    ]
    told += [
        f"{name} is {now['items'].get(name)!r}, before {held['items'].get(name)!r}"
        for name in sorted({*held["items"], *now["items"]})
        if held["items"].get(name) != now["items"].get(name)
    ]
    return "; ".join(told) or "its fields are in another order"
