"""The stage of a dataset that waits for a table, says what for, and never ends in silence."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from .base import WaitTimeoutError
from .callbacks import call_weakly
from .nests import Array
from .reverb_import import load_reverb
from .reverb_limits import limiter_state
from .reverb_link import CLOSED, FIRST_LINE_SECONDS, ServerLink, Watch
from .reverb_source import SESSION_SECONDS

_logger = logging.getLogger(__name__)

_NOT_WAITING = -1.0
# A wait comes back to tf.data this often, so that an iterator that is dropped meanwhile can end.
_SLICE_SECONDS = 0.2
_POLL_SECONDS = 0.02
# A `next` that lasts so long asks how many draws there were, to see later whether there were more.
_FIRST_LOOK_SECONDS = 0.25


class WaitStage:
    """Waits inside a dataset, eager or in a graph.

    Args:
      link: the table.
      flush: confirms the caller's pending writes; called when an iterator starts and while it waits.
      timeout_s: how long an iterator waits for the table.
      explain: what the caller knows about a table without items; added to the error.
    """

    def __init__(
        self, link: ServerLink, flush: Callable[[], object], timeout_s: float, explain: Callable[[], str]
    ) -> None:
        self._link = link
        self._flush = flush
        self._timeout_s = timeout_s
        self._explain = explain
        self._count_kept: Callable[[], int] = _nothing
        self._forget_kept: Callable[[], object] = _nothing

    @property
    def num_kept(self) -> int:
        """Rows that an earlier draw took from the table and that the next one delivers."""
        return self._count_kept()

    def kept_by(self, count: Callable[[], int], forget: Callable[[], object]) -> None:
        """Says who keeps rows, and how they are forgotten."""
        self._count_kept, self._forget_kept = count, forget

    def forget_kept(self) -> None:
        """The table is emptied: what was drawn from it before is not delivered any more."""
        self._forget_kept()

    def watch(self) -> Watch:
        """A new wait for the table."""
        return Watch(self._link, self._timeout_s)

    def tell_or_raise(self, watch: Watch) -> bool:
        """Whether the table can be sampled now; if not, tells or raises what is missing.

        Raises:
          WaitTimeoutError: the watch's time is up.
          ValueError: the buffer is closed.
        """
        if self._link.is_ended(0.0):
            raise ValueError(CLOSED)
        what = self._link.what_is_missing()
        if what is not None:
            watch.tell_or_raise(what, self._explain())
        return what is None

    def endless(self, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
        """The elements of `make()` without end: whenever it ends, the stage looks why, and waits.

        While elements come, no Python runs. It waits for ever, so that what stages behind it have gathered of a batch
        is not lost in an error; that `next` has lasted too long is for the stage to say that is nearest to it
        (`reverb_guard.py`).
        """
        return self._turns(gives_up=False).flat_map(
            lambda ready: make().take(tf.where(ready, tf.constant(-1, tf.int64), 0))
        )

    def when_ready(self, times: int) -> tf.data.Dataset:
        """`times` elements, each delivered when the table can be sampled."""
        return self._turns(gives_up=True).filter(lambda ready: ready).take(times)

    def look(
        self, since: Array, next_line: Array, num_samples: Array
    ) -> tuple[np.float64, np.float64, np.float64, np.int64, bytes]:
        """Looks why a `next` lasts: says it on the log, or that the time is up.

        Args:
          since: Unix time at which this wait began.
          next_line: when the next line is due.
          num_samples: draws of the table, by anybody, when it began; -1: not known yet.

        Returns:
          The three again, after when to look again: a wait in which there were draws begins anew; then the error's
          text, empty while there is time.
        """
        now, began, line, before = time.time(), float(since), float(next_line), int(num_samples)
        try:
            info = self._link.ask(1.0)[self._link.table]
        except (RuntimeError, load_reverb().DeadlineExceededError):
            # The thread that asks the server every second tells this.
            return np.float64(began), np.float64(now + 1.0), np.float64(line), np.int64(before), b""
        # What others of this process have written since: Reverb may be asked only once, and waits for it.
        with contextlib.suppress(WaitTimeoutError):
            self._flush()
        # Reverb itself waits for so long; and that nobody draws is known from the second look on.
        patience = max(self._timeout_s, SESSION_SECONDS)
        state = limiter_state(info)
        why, text, more = state.why_no_sample(), b"", ""
        if why is None and before == state.samples and self._link.was_replaced:
            why, advice = self._link.after_restart()
            more = f". {advice}"
        elif why is None or (before != state.samples and before != -1):
            began, line = now, now + min(FIRST_LINE_SECONDS, self._link.log_interval_s)
        else:
            more = f"{self._explain()}."
        if more and before != -1 and now - began >= patience:
            text = f"{why}; waiting; gave up after {self._timeout_s:g} s{more}".encode()
        if why is not None and now >= line:
            _logger.warning("%s; waiting", why)
            line = now + self._link.log_interval_s
        due = min(line, began + patience)
        return np.float64(began), np.float64(due), np.float64(line), np.int64(state.samples), text

    def first_look(self) -> tuple[float, float]:
        """Seconds after a wait's begin of the first `look`, and of the first line."""
        line = min(FIRST_LINE_SECONDS, self._link.log_interval_s)
        return min(_FIRST_LOOK_SECONDS, line, self._timeout_s), line

    def _turns(self, *, gives_up: bool) -> tf.data.Dataset:
        """Bools without end: whether the table can be sampled, after having waited a moment for it."""
        wait = WaitStage._wait_slice if gives_up else WaitStage._wait_quietly

        def turn(state: tuple[tf.Tensor, tf.Tensor], _: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
            since, next_line, ready = call_weakly(self, wait, state, [tf.float64, tf.float64, tf.bool])
            for scalar in (since, next_line, ready):
                scalar.set_shape([])
            return (since, next_line), ready

        start = (tf.constant(_NOT_WAITING, tf.float64), tf.constant(0.0, tf.float64))
        return tf.data.Dataset.range(sys.maxsize).scan(start, turn)

    def _wait_slice(self, since: Array, next_line: Array) -> tuple[np.float64, np.float64, np.bool_]:
        """Waits a moment.

        Args:
          since: monotonic time at which this wait began, or `_NOT_WAITING`.
          next_line: when the next line is due.

        Returns:
          The two again, and whether the table can be sampled.

        Raises:
          WaitTimeoutError: the time is up; in a graph this is an `InvalidArgumentError` with the same text.
        """
        with self._link.in_python():
            self._flush()
            watch = self.watch()
            if float(since) != _NOT_WAITING:
                watch.resume(float(since), float(next_line))
            end = time.monotonic() + _SLICE_SECONDS
            ready = self.tell_or_raise(watch)
            while not ready and time.monotonic() < end:
                self._link.pause(_POLL_SECONDS)
                ready = self.tell_or_raise(watch)
            began, line = watch.state()
            return np.float64(_NOT_WAITING if ready else began), np.float64(line), np.bool_(ready)

    def _wait_quietly(self, since: Array, next_line: Array) -> tuple[np.float64, Array, np.bool_]:
        """Waits a moment, as `_wait_slice`, but neither fails because the table gives nothing, nor says so.

        Only a server that is silent is given up: a thread that asks it for ever would be in Python when Python goes.
        """
        with self._link.in_python():
            end, silent_since, missing = time.monotonic() + _SLICE_SECONDS, float(since), None
            with contextlib.suppress(WaitTimeoutError):
                self._flush()
            while (missing := self._link.what_is_missing()) is not None and time.monotonic() < end:
                self._link.pause(_POLL_SECONDS)
            self._link.pause(0.0)
            if missing != self._link.no_answer():
                return np.float64(_NOT_WAITING), next_line, np.bool_(missing is None)
            if silent_since == _NOT_WAITING:
                silent_since = time.monotonic()
            if time.monotonic() - silent_since >= self._timeout_s:
                raise WaitTimeoutError(f"{missing}; gave up after {self._timeout_s:g} s.")
            return np.float64(silent_since), next_line, np.bool_(False)


def _nothing() -> int:
    return 0
