"""The stage of a dataset that waits for a table, says what for, and never ends in silence."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from .callbacks import call_weakly
from .nests import Array
from .reverb_link import ServerLink, Watch

_NOT_WAITING = -1.0
# A wait comes back to tf.data this often, so that an iterator that is dropped meanwhile can end.
_SLICE_SECONDS = 0.2
_POLL_SECONDS = 0.02


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

    @property
    def num_kept(self) -> int:
        """Rows that an earlier draw took from the table and that the next one delivers."""
        return self._count_kept()

    def count_kept_by(self, count: Callable[[], int]) -> None:
        """Says who keeps rows."""
        self._count_kept = count

    def watch(self) -> Watch:
        """A new wait for the table."""
        return Watch(self._link, self._timeout_s)

    def tell_or_raise(self, watch: Watch) -> bool:
        """Whether the table can be sampled now; if not, tells or raises what is missing.

        Raises:
          WaitTimeoutError: the watch's time is up.
        """
        what = self._link.what_is_missing()
        if what is not None:
            watch.tell_or_raise(what, self._explain())
        return what is None

    def endless(self, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
        """The elements of `make()` without end: whenever it ends, the stage looks why, and waits.

        While elements come, no Python runs.
        """
        return self._turns().flat_map(lambda ready: make().take(tf.where(ready, tf.constant(-1, tf.int64), 0)))

    def when_ready(self, times: int) -> tf.data.Dataset:
        """`times` elements, each delivered when the table can be sampled."""
        return self._turns().filter(lambda ready: ready).take(times)

    def _turns(self) -> tf.data.Dataset:
        """Bools without end: whether the table can be sampled, after having waited a moment for it."""

        def turn(state: tuple[tf.Tensor, tf.Tensor], _: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
            since, next_line, ready = call_weakly(self, WaitStage._wait_slice, state, [tf.float64, tf.float64, tf.bool])
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


def _nothing() -> int:
    return 0
