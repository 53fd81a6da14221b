"""The way to a Reverb server: calls that end in time, and what is waited for, said on the log.

Of Reverb's own calls some have no timeout, and a dataset that waited too long just ends or hangs.
Here every wait is bounded, is told every few seconds with its numbers, and ends in an error.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from .base import WaitTimeoutError
from .reverb_control import CONTROL_TABLE
from .reverb_import import load_reverb
from .reverb_layout import packed_signature
from .reverb_limits import limiter_state
from .reverb_same_tables import SameTables
from .tables import MAX_SUFFIX, MIN_SUFFIX, SCAN_SUFFIX

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_POLL_SECONDS = 0.02
_END_SECONDS = 3.0
_LEAVE_SECONDS = 0.05
# What a table's thread says it has run since it was last asked: at least so much of the true time, but for so long.
_CLEARLY = 0.9
_AGE_SECONDS = 0.25
# A call looks this often whether its buffer was closed.
_CALL_SLICE_SECONDS = 0.25
FIRST_LINE_SECONDS = 1.0
CLOSED = "this buffer is closed; build a new one."


# What a worker is given: a function, and where its result or error goes. None ends it.
_Calls = queue.SimpleQueue["tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None"]


class ServerLink:
    """One table on one server.

    Args:
      address: `host:port`.
      table: the table's name.
      timeout_s: how long anything may take.
      log_interval_s: seconds between two lines about the same wait.
      in_process: the server is known to be in this process.

    Raises:
      WaitTimeoutError: the server does not answer within `timeout_s`.
      ValueError: it has no such table; the message names those that it has.
      ValueError: the table is one that a `TableConfig` keeps beside its own; the message names the other.
    """

    def __init__(
        self, address: str, table: str, *, timeout_s: float, log_interval_s: float, in_process: bool = False
    ) -> None:
        self.address = address
        self.table = table
        self.timeout_s = timeout_s
        self.log_interval_s = log_interval_s
        self.client = load_reverb().Client(address)
        self._ended = threading.Event()
        self._idle: list[_Calls] = []
        self._num_in_python = 0
        self._ever_waited = False
        self._in_process = in_process
        # Whether the server was started anew since datasets run.
        self.was_replaced = False
        self._nobody_in_python = threading.Condition()
        self._same = SameTables(address, {}, [])
        tables = self.tables()
        owners = _owners_of_tables_beside(tables)
        own_names = sorted(tables.keys() - owners.keys() - {CONTROL_TABLE})
        if table not in own_names and table not in owners:
            own = ", ".join(own_names) or "none"
            raise ValueError(f"there is no table {table!r} at {address}; it has {own}.")
        if table in owners:
            raise ValueError(
                f"table {table!r} at {address} is kept beside table {owners[table]!r}, to read it in order or to know "
                f"its priorities, and is not to be opened: open {owners[table]!r}."
            )
        self.first_info = tables[table]
        self._first_tables, self._same = tables, SameTables(address, tables, [table])
        self._age_s, self._aged_at = _age_s(tables[table]), time.monotonic()
        self.table_names = tuple(sorted(tables))
        self.own_table_names = tuple(own_names)

    def tables(self) -> dict[str, Any]:
        """Every table's `TableInfo`, by name.

        Raises:
          WaitTimeoutError: the server does not answer within `timeout_s`.
        """
        watch = Watch(self)
        while True:
            try:
                return self.ask(watch.remaining())
            except (RuntimeError, load_reverb().DeadlineExceededError):
                watch.tell_or_raise(self.no_answer())
                self.pause(_POLL_SECONDS)

    def info(self) -> Any:
        """This table's `TableInfo`."""
        return self.tables()[self.table]

    def what_is_missing(self) -> str | None:
        """Why the table cannot be sampled now, with the numbers; None when it can be."""
        try:
            info = self.ask(1.0)[self.table]
        except (RuntimeError, load_reverb().DeadlineExceededError):
            return self.no_answer()
        why = limiter_state(info).why_no_sample()
        return None if why is None else f"{why}; waiting"

    def ask(self, seconds: float = 2.0) -> dict[str, Any]:
        """`tables`, in one attempt of at most 2 s.

        Raises:
          RuntimeError, reverb.DeadlineExceededError: the server does not answer.
        """
        # Reverb takes whole seconds, and takes 0 for ever.
        tables: dict[str, Any] = self.client.server_info(timeout=max(1, int(min(seconds, 2.0))))
        self._same.compare(tables)
        return tables

    def expect_same(self, tables: Iterable[str]) -> None:
        """Besides the link's own table `check_same` is about these."""
        self._same = SameTables(self.address, self._first_tables, {self.table, *tables})

    @property
    def is_other(self) -> str:
        """How a table of this server holds something else than at first, and the way out; empty: none does."""
        return self._same.problem

    def check_same(self) -> None:
        """Refuses a server that was started anew with something else in its tables, or without one of them.

        Asks it once a second at most.

        Raises:
          ValueError: it was; the message names the fields.
        """
        if self._same.is_due:
            try:
                self.ask(1.0)
            except (RuntimeError, load_reverb().DeadlineExceededError):
                self._same.put_off()  # what is done next tells that it is silent
        told = self._same.problem or self._same.missing
        if told:
            raise ValueError(told)

    def note_age(self, info: Any, asked_at: float) -> None:
        """Sees whether the server was started anew: its table's thread has run for less than it would have.

        Args:
          info: the table's `TableInfo`; called every second while datasets run.
          asked_at: `time.monotonic()` before it was asked for.
        """
        passed_s, age_s = asked_at - self._aged_at, _age_s(info)
        self.was_replaced = self.was_replaced or age_s < self._age_s + _CLEARLY * passed_s - _AGE_SECONDS
        self._age_s, self._aged_at = age_s, time.monotonic()

    def after_restart(self) -> tuple[str, str]:
        """What is said of iterators of before the server was started anew: on the log, and beside it in the error.

        Reverb's reader of a server in its own process holds on to the tables of the one that was stopped; that of
        another process comes to the new one by itself, after 9 s where this was measured.
        """
        anew = f"server {self.address} was started anew; iterators of before "
        if self._in_process:
            return (
                f"{anew}still read from the old one, which was in this process",
                "Make a new iterator of the dataset.",
            )
        return (
            f"{anew}come to the new one by themselves, some 10 s later, unless the old one was in this process",
            "Call next again; where the server is in this process, make a new iterator of the dataset.",
        )

    def no_answer(self) -> str:
        """What is said of a silent server."""
        return f"server {self.address} does not answer; waiting for table {self.table!r}"

    def call(self, function: Callable[[], _T], what: str, extra_s: float = 0.0) -> _T:
        """`function()`, which has no timeout of its own, within `timeout_s` and `extra_s`.

        Raises:
          WaitTimeoutError: it takes longer. It may still be carried out later.
          ValueError: `end_waits` was called meanwhile.
        """
        done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _start_worker(self._idle)
        worker.put((function, done))
        watch = Watch(self, self.timeout_s + extra_s)
        while True:
            try:
                result, error = done.get(timeout=min(self.log_interval_s, _CALL_SLICE_SECONDS, watch.remaining()))
            except queue.Empty:
                self._raise_if_ended()
                watch.tell_or_raise(
                    f"server {self.address} does not answer; waiting for {what} of table {self.table!r}"
                )
                continue
            if error is not None:
                raise error
            return result

    @contextlib.contextmanager
    def in_python(self) -> Iterator[None]:
        """Marks a wait on one of tf.data's threads, for `end_waits`."""
        with self._nobody_in_python:
            self._num_in_python += 1
            self._ever_waited = True
        try:
            self._raise_if_ended()
            yield
        finally:
            with self._nobody_in_python:
                self._num_in_python -= 1
                self._nobody_in_python.notify_all()

    def pause(self, seconds: float) -> None:
        """Lets other threads run.

        Raises:
          ValueError: `end_waits` was called.
        """
        self._ended.wait(seconds)
        self._raise_if_ended()

    def end_waits(self) -> None:
        """Makes waits on tf.data's threads end: one that is in Python when Python goes would abort the process."""
        self._ended.set()
        while self._idle:
            self._idle.pop().put(None)
        with self._nobody_in_python:
            self._nobody_in_python.wait_for(lambda: self._num_in_python == 0, _END_SECONDS)
            ever_waited = self._ever_waited
        if ever_waited:
            # They still need Python's lock to return, and those that were between two waits to be told.
            time.sleep(_LEAVE_SECONDS)

    def is_ended(self, seconds: float) -> bool:
        """Whether `end_waits` was called, or is within so many seconds."""
        return self._ended.wait(seconds)

    def _raise_if_ended(self) -> None:
        if self._ended.is_set():
            raise ValueError(CLOSED)


class Watch:
    """One wait: logs what is missing every few seconds, raises when the time is up.

    Args:
      link: where its timeout and interval come from.
      timeout_s: instead of the link's.
    """

    def __init__(self, link: ServerLink, timeout_s: float | None = None) -> None:
        self._timeout_s = link.timeout_s if timeout_s is None else timeout_s
        self._interval_s = link.log_interval_s
        self._start = time.monotonic()
        self._next_line = self._start + min(FIRST_LINE_SECONDS, self._interval_s)

    def remaining(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._start + self._timeout_s - time.monotonic())

    def state(self) -> tuple[float, float]:
        """When the wait began and when its next line is due, for `resume`."""
        return self._start, self._next_line

    def resume(self, start: float, next_line: float) -> None:
        """Goes on with the wait that gave this `state`."""
        self._start, self._next_line = start, next_line

    def tell_or_raise(self, what: str, more: str = "") -> None:
        """Logs `what` if a line is due; raises it, with what `more` explains, if the time is up.

        Raises:
          WaitTimeoutError: the timeout has passed.
        """
        now = time.monotonic()
        if now >= self._next_line:
            _logger.warning("%s", what)
            self._next_line = now + self._interval_s
        if now - self._start >= self._timeout_s:
            raise WaitTimeoutError(f"{what}; gave up after {self._timeout_s:g} s{more}.")


def _age_s(info: Any) -> float:
    """How long a table's thread has run, by its `TableInfo`."""
    return sum(spent_ms for _, spent_ms in info.table_worker_time.ListFields()) / 1000


def _owners_of_tables_beside(tables: Mapping[str, Any]) -> dict[str, str]:
    """By the names of tables that a `TableConfig` keeps beside its own, the names of their own."""
    owners = {}
    for name in tables:
        for suffix in (SCAN_SUFFIX, MAX_SUFFIX, MIN_SUFFIX):
            owner = name.removesuffix(suffix)
            if owner == name or owner not in tables:
                continue
            try:
                about = packed_signature(tables[owner].signature, owner)
            except ValueError:  # of another version of this package: refused when it is opened itself
                continue
            told = {} if about is None else about.get("table", {})
            mirrors = (told.get("max_mirror"), told.get("min_mirror"))
            if about is not None and (suffix == SCAN_SUFFIX or name in mirrors):
                owners[name] = owner
    return owners


def _start_worker(idle: list[_Calls]) -> _Calls:
    """A thread that carries out calls; between two of them its queue is in `idle`."""
    calls: _Calls = queue.SimpleQueue()

    def run() -> None:
        while (call := calls.get()) is not None:
            function, done = call
            try:
                result, error = function(), None
            except Exception as raised:  # handed to the caller, whatever it is
                result, error = None, raised
            del call, function
            idle.append(calls)
            done.put((result, error))

    threading.Thread(target=run, name="replayfeed-call", daemon=True).start()
    return calls
