"""Reverb's own dataset of one table, with its settings; and draws of a few items at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .reverb_import import load_reverb
from .reverb_knobs import SamplerKnobs
from .reverb_layout import Layout
from .reverb_link import ServerLink

# How long Reverb waits by itself for an item; then its dataset ends, and our own stage looks why.
SESSION_SECONDS = 0.5
_MAX_CACHED_DRAWS = 64


class TableSource:
    """Makes Reverb's datasets of the items of a table, or of the tables beside it.

    Args:
      link: the table.
      layout: how a frame lies in its columns.
      sequence_length: `L`; None where items differ.
      knobs: Reverb's settings.
    """

    def __init__(self, link: ServerLink, layout: Layout, sequence_length: int | None, knobs: SamplerKnobs) -> None:
        self._link = link
        self._dtypes, self._shapes = layout.dataset_types(sequence_length)
        self._knobs = knobs

    def dataset(
        self, *, table: str | None = None, max_samples: int | None = None, in_order: bool = False
    ) -> tf.data.Dataset:
        """Samples `(info, columns [L, ...])`; it ends when it has waited for `SESSION_SECONDS`.

        Args:
          table: another table of the same items.
          max_samples: instead of the knob's.
          in_order: one worker and nothing ahead, so that a FIFO or heap table keeps its order.
        """
        knobs = self._knobs
        return load_reverb().TrajectoryDataset(
            self._link.address,
            table or self._link.table,
            self._dtypes,
            self._shapes,
            max_in_flight_samples_per_worker=1 if in_order else knobs.max_in_flight_samples_per_worker,
            num_workers_per_iterator=1 if in_order else knobs.num_workers_per_iterator,
            max_samples_per_stream=knobs.max_samples_per_stream,
            rate_limiter_timeout_ms=int(SESSION_SECONDS * 1000),
            max_samples=knobs.max_samples if max_samples is None else max_samples,
        )


class ItemDrawer:
    """Draws a few items at once, nothing ahead.

    An eager iterator costs several milliseconds to make and to drop; taking a dataset's one element
    inside a `tf.function` costs a fifth of that (256 items of 176 bytes: 16 against 2.5 ms).

    Args:
      link: the server.
      source: makes the datasets.
      table: the table to draw from; None: the link's.
    """

    def __init__(self, link: ServerLink, source: TableSource, table: str | None = None) -> None:
        self._link = link
        self._source = source
        self._table = table
        self._functions: dict[int, Callable[[], Any]] = {}

    def draw(self, num: int) -> Any:
        """Up to `num` samples of Reverb's as one, columns `[n, L, ...]`; None where none came for a moment.

        Raises:
          WaitTimeoutError: the server does not answer within the link's timeout.
        """
        function = self._functions.get(num)
        if function is None:
            function = tf.function(lambda: self._one_batch(num), autograph=False).get_concrete_function()
            if len(self._functions) >= _MAX_CACHED_DRAWS:
                self._functions.clear()
            self._functions[num] = function
        try:
            return self._link.call(function, "samples", extra_s=2 * SESSION_SECONDS)
        except tf.errors.InvalidArgumentError as error:
            if "Dataset was empty" in str(error):
                return None
            raise
        except (tf.errors.InternalError, tf.errors.UnavailableError):
            # The connection broke, as it does when a server restarts: the next draw makes a new one.
            return None

    def _one_batch(self, num: int) -> Any:
        return self._source.dataset(table=self._table, max_samples=num).batch(num).get_single_element()
