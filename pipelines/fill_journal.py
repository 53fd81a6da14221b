"""Which episodes a buffer has confirmed, on disk, so that an interrupted load can go on.

A journal is a text file of JSON lines. The first says what is loaded into what; each further one names episodes that
the buffer had confirmed by then, and how much had been added to it. A line is on disk (`fsync`) before anything relies
on it, and a last one that a crash cut short counts as never written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from .episodes import Episode

_FORMAT = "replayfeed fill 1"


class Journal:
    """The episodes that are in a buffer for sure; open it with `open_journal`.

    Args:
      file: at its end.
      confirmed: keys of the episodes that it names.
    """

    def __init__(self, file: TextIO, confirmed: set[str]) -> None:
        self._file = file
        self._confirmed = confirmed
        self._pending: list[str] = []
        self._seen: dict[str, int] = {}

    @property
    def num_pending(self) -> int:
        """Episodes that were written, and not confirmed."""
        return len(self._pending)

    def key_of(self, episode: Episode) -> str:
        """What names an episode in the journal: its id, its agent, and how often both came in this load before."""
        name = episode.id if episode.agent is None else f"{episode.id} of {episode.agent}"
        times = self._seen[name] = self._seen.get(name, 0) + 1
        return name if times == 1 else f"{name} again {times - 1}"

    def has(self, key: str) -> bool:
        """Whether an earlier load brought this episode."""
        return key in self._confirmed

    def note(self, key: str) -> None:
        """The episode was written; whether the buffer has it is not known yet."""
        self._pending.append(key)

    def confirm(self, num_added: int) -> None:
        """The buffer has confirmed all that was noted.

        Args:
          num_added: what was ever added to it.
        """
        if self._pending:
            _append(self._file, {"added": num_added, "ids": self._pending})
            self._pending = []


@contextlib.contextmanager
def open_journal(path: str | os.PathLike[str], about: Mapping[str, Any], num_added: int) -> Iterator[Journal]:
    """The journal at `path`, made where there is none, locked against other loads until the context ends.

    Args:
      path: of the file; its folder must be there.
      about: what is loaded into what, plain values by name: the same in each load that goes on.
      num_added: what was ever added to the buffer. Less than a line of the journal tells means that it was emptied, or
        is another one.

    Raises:
      ValueError: another load has it open.
      ValueError: the file is no journal, or a line is damaged.
      ValueError: it is about another source, layout or buffer; the message names what differs.
      ValueError: the buffer has been emptied since.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_journal(folder + "/load", {"source": "mine"}, num_added=0) as journal:
    ...         journal.note("episode 7")
    ...         journal.confirm(num_added=10)
    ...     with open_journal(folder + "/load", {"source": "mine"}, num_added=10) as journal:
    ...         journal.has("episode 7"), journal.has("episode 8")
    (True, False)
    """
    name = os.fspath(path)
    # Not truncated: nothing is known of it yet.
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"resume={name!r}: another load has this journal open; let it end, or stop it.") from None
        lines = _whole_lines(file, name)
        if lines:
            _check_about(name, lines[0], about)
            _check_added(name, lines[-1].get("added", 0), num_added)
        else:
            _append(file, {"format": _FORMAT, **about})
        yield Journal(file, {key for line in lines[1:] for key in line["ids"]})


def _append(file: TextIO, line: Mapping[str, Any]) -> None:
    file.write(json.dumps(line, allow_nan=False) + "\n")
    file.flush()
    os.fsync(file.fileno())


def _whole_lines(file: TextIO, name: str) -> list[dict[str, Any]]:
    """The lines of the file, which then ends with the last whole one of them."""
    text = file.read()
    whole, newline, _ = text.rpartition("\n")
    lines = []
    for number, line in enumerate(whole.split("\n") if newline else [], 1):
        try:
            read = json.loads(line)
        except ValueError:
            read = None
        is_right = isinstance(read, dict) and (read.get("format") == _FORMAT if number == 1 else "ids" in read)
        if not is_right:
            raise ValueError(
                f"resume={name!r}: line {number} is none of a journal that fill() wrote; give another path, or delete "
                "the file to load from the beginning."
            )
        lines.append(read)
    if text and not newline and not _FORMAT_BEGINS.startswith(text[: len(_FORMAT_BEGINS)]):
        raise ValueError(f"resume={name!r}: this file is no journal that fill() wrote; give another path.")
    file.seek(len((whole + newline).encode()))
    file.truncate()
    return lines


_FORMAT_BEGINS = json.dumps({"format": _FORMAT})[:-1]


def _check_about(name: str, first: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    differing = [
        f"{key}: the journal has {first.get(key)!r}, this load {value!r}"
        for key, value in json.loads(json.dumps(about)).items()
        if first.get(key) != value
    ]
    if differing:
        raise ValueError(
            f"resume={name!r} is the journal of another load ({'; '.join(differing)}): give each load its own path."
        )


def _check_added(name: str, before: int, now: int) -> None:
    if now < before:
        raise ValueError(
            f"resume={name!r}: when this journal was last written {before:,} had been added to the buffer, and now "
            f"{now:,}: it was emptied since, or is another one (a server that was started anew is). Delete the journal "
            "to load from the beginning."
        )
