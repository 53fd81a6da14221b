"""Reverb's own dataset of one table, with its settings; and draws of a few items at once."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .reverb_import import load_reverb
from .reverb_knobs import SamplerKnobs
from .reverb_layout import PlainLayout
from .reverb_layouts import Layout
from .reverb_link import ServerLink

# How long Reverb waits by itself for an item; then its dataset ends, and our own stage looks why.
SESSION_SECONDS = 0.5
_FOR_EVER_MS = -1
_MAX_CACHED_DRAWS = 64


class TableSource:
    """Makes Reverb's datasets of the items of a table, or of the tables beside it.

    Args:
      link: the table.
      layout: how a frame lies in its columns.
      item_length: frames in an item; None where items differ.
      knobs: Reverb's settings.
      counts_draws: what is drawn and not delivered is missing (`ServedTable.counts_draws`).
    """

    def __init__(
        self, link: ServerLink, layout: Layout, item_length: int | None, knobs: SamplerKnobs, *, counts_draws: bool
    ) -> None:
        self._link = link
        self._dtypes, self._shapes = layout.dataset_types(item_length)
        self._knobs = knobs
        self._counts_draws = counts_draws
        # What fills up shorter items in a batch, where they differ.
        self._padding = None if isinstance(layout, PlainLayout) or item_length is not None else layout.padding[0]

    def lasting(self) -> tf.data.Dataset:
        """Samples `(info, columns [L, ...])`, for a reader that asks for more when it ends.

        Where draws count it does not, but for one that asks for a single item at a time: when one of Reverb's workers
        has waited for long enough, Reverb drops what the others, and it itself, have in their hands (of a table that
        ran dry every half second 3 to 28 of 190 items).
        """
        at_once = self._knobs.max_in_flight_samples_per_worker * self._knobs.num_workers_per_iterator
        can_lose = self._counts_draws and at_once > 1
        return self._made(self._link.table, self._knobs, _FOR_EVER_MS if can_lose else int(SESSION_SECONDS * 1000))

    def dataset(
        self, *, table: str | None = None, max_samples: int | None = None, in_order: bool = False
    ) -> tf.data.Dataset:
        """Samples `(info, columns [L, ...])`; it ends when it has waited for `SESSION_SECONDS`.

        Args:
          table: another table of the same items, whose draws do not count.
          max_samples: instead of the knob's.
          in_order: one worker and nothing ahead, so that a FIFO or heap table keeps its order. So it is where draws
            count: then nothing is in Reverb's hands when its time is up.
        """
        knobs = self._knobs
        if in_order or (self._counts_draws and table is None):
            knobs = dataclasses.replace(knobs, max_in_flight_samples_per_worker=1, num_workers_per_iterator=1)
        if max_samples is not None:
            knobs = dataclasses.replace(knobs, max_samples=max_samples)
        return self._made(table or self._link.table, knobs, int(SESSION_SECONDS * 1000))

    def _made(self, table: str, knobs: SamplerKnobs, timeout_ms: int) -> tf.data.Dataset:
        return load_reverb().TrajectoryDataset(
            self._link.address,
            table,
            self._dtypes,
            self._shapes,
            max_in_flight_samples_per_worker=knobs.max_in_flight_samples_per_worker,
            num_workers_per_iterator=knobs.num_workers_per_iterator,
            max_samples_per_stream=knobs.max_samples_per_stream,
            rate_limiter_timeout_ms=timeout_ms,
            max_samples=knobs.max_samples,
        )

    def batches(self, samples: tf.data.Dataset, num: int, *, drop_remainder: bool = False) -> tf.data.Dataset:
        """Samples in batches, columns `[num, L, ...]`: those of different length are padded to the longest."""
        if self._padding is None:
            return samples.batch(num, drop_remainder=drop_remainder)
        return samples.map(_with_length).padded_batch(num, drop_remainder=drop_remainder).map(self._mark_padding)

    def bucketed_batches(self, samples: tf.data.Dataset, num: int, boundaries: Sequence[int]) -> tf.data.Dataset:
        """As `batches`, each of samples whose lengths lie between the same two boundaries; full batches first."""
        bucketed = samples.map(_with_length).bucket_by_sequence_length(
            lambda sample, length: length, list(boundaries), [num] * (len(boundaries) + 1)
        )
        return bucketed.map(self._mark_padding)

    def _mark_padding(self, sample: Any, lengths: tf.Tensor) -> Any:
        """Columns `[n, Lmax, bytes]`, zeros behind each item's end, with ids that tell so."""
        record = sample.data[0]
        is_real = tf.sequence_mask(lengths, tf.shape(record)[1])
        record = tf.where(is_real[..., None], record, tf.constant(self._padding))
        return sample._replace(data=(record, *sample.data[1:]))


def _with_length(sample: Any) -> tuple[Any, tf.Tensor]:
    return sample, tf.shape(sample.data[0])[0]


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

    def draw(self, num: int, late: Callable[[Any], object] | None = None) -> Any:
        """Up to `num` samples of Reverb's as one, columns `[n, L, ...]`; None where none came for a moment.

        Shorter items are padded.

        Args:
          num: rows.
          late: is given what comes after this call has ended in an error: it is drawn all the same.

        Raises:
          WaitTimeoutError: the server does not answer within the link's timeout.
          ValueError: the link's waits were ended meanwhile, or the server's table holds something else by now.
        """
        self._link.check_same()
        function = self._functions.get(num)
        if function is None:
            function = tf.function(lambda: self._one_batch(num), autograph=False).get_concrete_function()
            if len(self._functions) >= _MAX_CACHED_DRAWS:
                self._functions.clear()
            self._functions[num] = function
        drawing = _Drawing(function, late)
        try:
            # A draw of a table without items takes a session, whatever the timeout.
            return self._link.call(drawing, "samples", extra_s=max(0.0, 2 * SESSION_SECONDS - self._link.timeout_s))
        except tf.errors.InvalidArgumentError as error:
            if "Dataset was empty" in str(error):
                return None
            raise
        except (tf.errors.InternalError, tf.errors.UnavailableError):
            # The connection broke, as it does when a server restarts: the next draw makes a new one.
            return None
        except BaseException:
            drawing.abandon()
            raise

    def _one_batch(self, num: int) -> Any:
        samples = self._source.dataset(table=self._table, max_samples=num)
        return self._source.batches(samples, num).get_single_element()


class _Drawing:
    """One draw on another thread, whose caller may be interrupted: then its rows go to `late`."""

    def __init__(self, function: Callable[[], Any], late: Callable[[Any], object] | None) -> None:
        self._function = function
        self._late = late
        self._lock = threading.Lock()
        self._rows: Any = None
        self._is_abandoned = False

    def __call__(self) -> Any:
        rows = self._function()
        with self._lock:
            self._rows = rows
            is_late = self._is_abandoned
        if is_late and self._late is not None:
            self._late(rows)
        return rows

    def abandon(self) -> None:
        """Nobody takes the result."""
        with self._lock:
            self._is_abandoned = True
            rows = self._rows
        if rows is not None and self._late is not None:
            self._late(rows)
