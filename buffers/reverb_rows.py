"""Rows drawn from a table at once, and those kept that came too late."""

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
      removes: the table removes what it delivers, after one draw or more.
    """

    def __init__(self, drawer: ItemDrawer, stage: WaitStage, *, removes: bool) -> None:
        self._drawer = drawer
        self._stage = stage
        self._removes = removes
        self._kept: list[Any] = []
        self._kept_lock = threading.Lock()
        stage.count_kept_by(self._num_kept)

    def watch(self) -> Watch:
        """A new wait for the table."""
        return self._stage.watch()

    def draw(self, num: int, watch: Watch) -> list[Any]:
        """Samples of Reverb's that have `num` rows together, columns `[n, L, ...]`.

        Raises:
          WaitTimeoutError: they did not come in the watch's time. Where the table has removed what came, it is
            kept for the next call.
        """
        drawn = self._take_kept(num)
        missing = num - sum(map(num_rows, drawn))
        while missing:
            rows = self._drawer.draw(missing)
            if rows is not None:
                drawn.append(rows)
                missing -= num_rows(rows)
                continue
            try:
                self._stage.tell_or_raise(watch)
            except WaitTimeoutError as error:
                if not (drawn and self._removes):
                    raise
                with self._kept_lock:
                    self._kept += drawn
                raise WaitTimeoutError(f"{error} {num - missing} of {num} rows are kept for the next call.") from error
        return drawn

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
