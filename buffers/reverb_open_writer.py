"""The connection through which one buffer, or several together, write: opened at the first write, locked, closed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from .reverb_cuts import StreamCuts
from .reverb_link import CLOSED
from .reverb_sender import ItemSender
from .reverb_targets import TableItems

# How often a read looks whether the thread that writes waits for it.
_LOOK_SECONDS = 0.05


class TableWriter(Protocol):
    """Makes items of several tables."""

    @property
    def sender(self) -> ItemSender:
        """What the items go through."""

    @property
    def cuts(self) -> StreamCuts:
        """The streams' ids, and where they are cut."""

    @property
    def items(self) -> tuple[TableItems, ...]:
        """Of each table."""

    @property
    def has_open_tails(self) -> bool:
        """Whether the end of an unfinished episode would make items."""

    def end_streams(self, streams: Iterable[int]) -> None:
        """These streams stop: no item goes past their newest frames, and those that it cuts short are made."""


WriterT = TypeVar("WriterT", bound=TableWriter)


class OpenWriter(Generic[WriterT]):
    """A writer that is made when it is needed first; any number of threads may use it, one at a time.

    Args:
      make_writer: connects to the tables.
      check: called before each write and after each flush; raises where the tables are others by now.

    Attributes:
      writer: the writer, or None before the first write and when it is closed.
      lock: held while something is written.
    """

    def __init__(self, make_writer: Callable[[], WriterT], check: Callable[[], None]) -> None:
        self._make_writer = make_writer
        self._check = check
        self.writer: WriterT | None = None
        self.lock = threading.RLock()
        self._state = threading.Lock()
        self._closed = False
        self._last_thread: int | None = None
        # Checks that are due when the thread that asked for them writes first.
        self._due: list[tuple[int, Callable[[], None]]] = []

    @property
    def is_used(self) -> bool:
        """Whether anything was written, or nothing can be any more."""
        return self._closed or self.writer is not None

    def open(self) -> WriterT:
        """The writer, for the thread that calls and holds the lock.

        Raises:
          ValueError: it is closed, or what this thread reads keeps it from writing (`check_if_written_here`).
          ValueError: the server's tables are others by now.
        """
        if self._closed:
            raise ValueError(CLOSED)
        self._check()
        thread = threading.get_ident()
        if self._last_thread != thread:
            for asked_by, check in self._due:
                if asked_by == thread:
                    check()
            with self._state:
                self._last_thread = thread
                self._due.clear()
        if self.writer is None:
            self.writer = self._make_writer()
        return self.writer

    def check_if_written_here(self, check: Callable[[], None]) -> None:
        """Calls `check` if this thread was the last one that wrote; if none has, when it is the first one to do so.

        (What a `tf.function` writes counts as another thread's.)
        """
        with self._state:
            if self._last_thread is None:
                self._due.append((threading.get_ident(), check))
        if self._last_thread == threading.get_ident():
            check()

    @contextlib.contextmanager
    def unless_held_back(self) -> Iterator[bool]:
        """Keeps other threads from writing; False where one stands still: in a write, until somebody draws."""
        while not (is_locked := self.lock.acquire(timeout=_LOOK_SECONDS)):
            if self.writer is not None and self.writer.sender.is_held_back:
                break
        try:
            yield is_locked
        finally:
            if is_locked:
                self.lock.release()

    def flush(self) -> None:
        """Returns when the server has confirmed all that was added."""
        with self.lock:
            if self.writer is not None:
                self.writer.sender.flush()
                self._check()

    def flush_for_a_read(self, timeout_s: float | None = None) -> bool:
        """As `flush`, but does not wait for what a limiter holds back until somebody draws.

        Args:
          timeout_s: instead of the link's.

        Returns:
          Whether items are held back.
        """
        with self.unless_held_back() as is_locked:
            if not is_locked:
                return True
            return self.writer is not None and self.writer.sender.flush_for_a_read(timeout_s)

    def restart(self, empty_the_tables: Callable[[], None], tell: Callable[[], None]) -> None:
        """Calls `empty_the_tables`, again and again until nothing that was written waits to be let in.

        Args:
          empty_the_tables: empties all that are written, which lets in what their limiters held back.
          tell: called between, says what is waited for; raises when that takes too long.
        """
        with self.lock:
            writer = self.writer
            while True:
                is_held_back = writer is not None and writer.sender.flush_for_a_read()
                empty_the_tables()
                if not is_held_back:
                    break
                tell()
            for items in () if writer is None else writer.items:
                items.forget_items()

    def close(self, num_streams: int, *, to_the_end: bool) -> None:
        """Ends the streams, flushes, ends the connection and refuses further writes.

        What an unfinished episode's last frames make is written: nobody could go on with it.

        Args:
          num_streams: how many there are.
          to_the_end: also wait for what a limiter holds back; without, it is lost.

        Raises:
          ValueError: the server's tables are others by now, and there was something left to write.
        """
        with self.lock:
            if self._closed:
                return
            self._closed = True
            writer, self.writer = self.writer, None
            if writer is None:
                return
            try:
                try:
                    if writer.has_open_tails:
                        self._check()
                        writer.end_streams(range(num_streams))
                finally:
                    if to_the_end:
                        writer.sender.flush()
                    else:
                        writer.sender.flush_for_a_read()
            finally:
                writer.sender.close()
