"""Reverb's own settings of a sampling iterator, checked, with measured defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

from .counts import check_count
from .rate_limiters import MinSize, RateLimiter
from .reverb_table import ServedTable

AUTO = -1

# Measured on 2 cores (W1, batches of 256): few items in flight and more workers than cores came out best.
_DEFAULT_IN_FLIGHT = 64
_DEFAULT_WORKERS = 4


@dataclasses.dataclass(frozen=True)
class SamplerKnobs:
    """Reverb's own settings of a sampling iterator.

    Attributes:
      max_in_flight_samples_per_worker: items that a worker asks for ahead.
      num_workers_per_iterator: threads that fetch; 1 keeps the order of FIFO and heap tables.
      max_samples_per_stream: items of one request before the next; -1: Reverb chooses.
      max_samples: items that an iterator delivers before it ends; -1: it never ends.
      max_cycle_length: Reverb iterators that one batch is drawn from.
    """

    max_in_flight_samples_per_worker: int
    num_workers_per_iterator: int
    max_samples_per_stream: int
    max_samples: int
    max_cycle_length: int


def resolve_knobs(
    table: ServedTable,
    *,
    dataset_buffer_size: int | None,
    max_in_flight_samples_per_worker: int | None,
    num_workers_per_iterator: int,
    max_samples_per_stream: int,
    max_samples: int,
    max_cycle_length: int,
) -> SamplerKnobs:
    """The settings asked for, with defaults that fit the table.

    Raises:
      TypeError: one of them is no int.
      ValueError: one is too small, or two contradict each other or the table's order.
    """
    check_count("max_cycle_length", max_cycle_length)
    check_count("dataset_buffer_size", dataset_buffer_size, optional=True)
    check_count("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker, optional=True)
    check_auto("num_workers_per_iterator", num_workers_per_iterator, 1)
    check_auto("max_samples_per_stream", max_samples_per_stream, 1)
    check_auto("max_samples", max_samples, 1)
    if dataset_buffer_size is not None and max_in_flight_samples_per_worker is not None:
        raise ValueError("dataset_buffer_size and max_in_flight_samples_per_worker are the same; give one of them.")
    if table.is_ordered and num_workers_per_iterator not in (AUTO, 1):
        raise ValueError(
            f"table {table.name!r} is drawn in order: num_workers_per_iterator must be 1 or {AUTO}, "
            f"got {num_workers_per_iterator}."
        )
    workers = 1 if table.is_ordered else _DEFAULT_WORKERS
    in_flight = 1 if table.is_ordered else _DEFAULT_IN_FLIGHT
    return SamplerKnobs(
        max_in_flight_samples_per_worker=max_in_flight_samples_per_worker or dataset_buffer_size or in_flight,
        num_workers_per_iterator=workers if num_workers_per_iterator == AUTO else num_workers_per_iterator,
        max_samples_per_stream=max_samples_per_stream,
        max_samples=max_samples,
        max_cycle_length=max_cycle_length,
    )


def limiter_of(min_size_to_sample: int | None, rate_limiter: RateLimiter | None) -> RateLimiter:
    """The limiter of a buffer's own table.

    Args:
      min_size_to_sample: short for `MinSize(min_size_to_sample)`.
      rate_limiter: any limiter; None: `MinSize(1)`.

    Raises:
      ValueError: both are given.

    >>> limiter_of(None, None)
    MinSize(min_size_to_sample=1)
    """
    if min_size_to_sample is not None and rate_limiter is not None:
        raise ValueError(
            "give min_size_to_sample or rate_limiter, not both: min_size_to_sample=n is short for "
            "rate_limiter=MinSize(n)."
        )
    if rate_limiter is not None:
        return rate_limiter
    return MinSize(1 if min_size_to_sample is None else min_size_to_sample)


def check_auto(name: str, value: Any, least: int) -> None:
    """Refuses what is neither `AUTO` nor an int of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {value!r}.")
    if value != AUTO and value < least:
        raise ValueError(f"{name} must be {AUTO} or at least {least}, got {value!r}.")
