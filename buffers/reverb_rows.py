"""Rows drawn from a table at once, and those kept that nobody got: they came too late, or the call was interrupted."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from .base import WaitTimeoutError
from .reverb_link import Watch
from .reverb_source import ItemDrawer
from .reverb_wait import WaitStage


class RowDrawer:
    """Draws a number of items at once.

    Args:
      drawer: draws what comes.
      stage: waits for the table.
      keeps: what an unfinished draw took is kept for the next one: where the table removes what it delivers, or its
        limiter counts draws.
    """

    def __init__(self, drawer: ItemDrawer, stage: WaitStage, *, keeps: bool) -> None:
        self._drawer = drawer
        self._stage = stage
        self._keeps = keeps
        self._kept: list[Any] = []
        self._kept_lock = threading.Lock()
        self._turn = 0  # of `forget`: what was drawn before is not kept
        stage.kept_by(self._num_kept, self._forget)

    def watch(self) -> Watch:
        """A new wait for the table."""
        return self._stage.watch()

    def draw(self, num: int, watch: Watch) -> list[Any]:
        """Samples of Reverb's that have `num` rows together, columns `[n, L, ...]`.

        Raises:
          WaitTimeoutError: they did not come in the watch's time. Where it matters, what came is kept for the next
            call; so it is when the call is interrupted.
          ValueError: the buffer was closed meanwhile.
        """
        turn, drawn, missing = self._turn, list[Any](), num
        try:
            while missing:
                # What an interrupted draw has asked for may still come.
                found = self._take_kept(missing)
                if not found:
                    rows = self._drawer.draw(missing, lambda late: self._keep([late], turn))
                    found = [] if rows is None else [rows]
                if not found:
                    self._stage.tell_or_raise(watch)
                drawn += found
                missing -= sum(map(num_rows, found))
        except WaitTimeoutError as error:
            if self._keep(drawn, turn):
                raise WaitTimeoutError(f"{error} {num - missing} of {num} rows are kept for the next call.") from error
            raise
        except BaseException:  # an interrupt, as in a notebook
            self._keep(drawn, turn)
            raise
        return drawn

    def _keep(self, drawn: list[Any], turn: int) -> bool:
        """Keeps rows; tells whether there is anything to keep."""
        with self._kept_lock:
            is_kept = bool(drawn) and self._keeps and turn == self._turn
            if is_kept:
                self._kept += drawn
        return is_kept

    def _forget(self) -> None:
        """The table was emptied: what was drawn before is not delivered any more."""
        with self._kept_lock:
            self._kept.clear()
            self._turn += 1

    def _num_kept(self) -> int:
        with self._kept_lock:
            return sum(map(num_rows, self._kept))

    def _take_kept(self, num: int) -> list[Any]:
        """Up to `num` rows that an earlier call drew, and so removed from the table, before its time was up."""
        taken: list[Any] = []
        with self._kept_lock:
            while self._kept and num:
                rows = self._kept.pop(0)
                size = num_rows(rows)
                if size > num:
                    self._kept.insert(0, tf.nest.map_structure(lambda leaf: leaf[num:], rows))  # noqa: B023
                    rows = tf.nest.map_structure(lambda leaf: leaf[:num], rows)  # noqa: B023
                taken.append(rows)
                num -= min(size, num)
        return taken


def num_rows(sample: Any) -> int:
    """Rows of a sample of Reverb's, as an int."""
    return int(sample.info.key.shape[0])
