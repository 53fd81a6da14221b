"""When a table lets writers insert and readers sample: declared by name, checked, built into Reverb's limiters.

Reverb counts, over a table's whole life, `error = inserts * samples_per_insert - samples`, and keeps it inside
`[min_error, max_error]`: what would leave that range waits. Deletes and evictions do not change it. Below
`min_size_to_sample` items no sample goes through, and every insert does.

Reverb's own limiter object that stands in two tables ends the process (a failed check in its C++). These declarations
hold numbers only, and `build` makes a new object at each call.

To add one: a frozen dataclass below with `bounds` and `build`, and its name in `RateLimiter`.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import sys
from typing import Any

from .counts import check_count

UNBOUNDED = sys.float_info.max
"""What Reverb takes for no bound."""


@dataclasses.dataclass(frozen=True)
class LimiterBounds:
    """Reverb's four numbers of a limiter.

    Attributes:
      samples_per_insert: `error` rises by it with each insert, and falls by 1 with each sample.
      min_size_to_sample: items that must be there for a sample.
      min_error: a sample that would bring `error` below it waits.
      max_error: an insert that would bring `error` above it waits.

    >>> MinSize(10).bounds.is_bounded, Queue(5).bounds.max_error
    (False, 5.0)
    """

    samples_per_insert: float
    min_size_to_sample: int
    min_error: float
    max_error: float

    @property
    def is_bounded(self) -> bool:
        """Whether inserts or samples can wait for each other."""
        return self.max_error < UNBOUNDED or self.min_error > -UNBOUNDED

    @property
    def error_when_filled(self) -> float:
        """`error` when the first `min_size_to_sample` items are in and none was drawn."""
        return self.samples_per_insert * self.min_size_to_sample


@dataclasses.dataclass(frozen=True)
class MinSize:
    """Sampling waits until the table holds `min_size_to_sample` items; inserting never waits.

    Raises:
      TypeError: `min_size_to_sample` is no int.
      ValueError: it is below 1.

    >>> MinSize(100)
    MinSize(min_size_to_sample=100)
    """

    min_size_to_sample: int = 1

    def __post_init__(self) -> None:
        check_count("min_size_to_sample", self.min_size_to_sample)

    @property
    def bounds(self) -> LimiterBounds:
        """Reverb's numbers."""
        return LimiterBounds(1.0, self.min_size_to_sample, -UNBOUNDED, UNBOUNDED)

    def build(self, reverb: Any) -> Any:
        """A new limiter object."""
        return reverb.rate_limiters.MinSize(self.min_size_to_sample)


@dataclasses.dataclass(frozen=True)
class SampleToInsertRatio:
    """Keeps samples and inserts in step: whoever is ahead waits for the other.

    Args:
      samples_per_insert: how often an item is drawn, on average.
      min_size_to_sample: sampling waits for so many items; until then inserting never waits.
      error_buffer: how far `inserts * samples_per_insert - samples` may stray. A number: to either side of
        `samples_per_insert * min_size_to_sample`, where it stands when sampling begins. A pair: its least and
        greatest value.

    Raises:
      TypeError: a number is none, `min_size_to_sample` is no int, or `error_buffer` is neither a number nor a pair.
      ValueError: `min_size_to_sample` is below 1.
      ValueError: `samples_per_insert` is not positive and finite.
      ValueError: a bound is not finite.
      ValueError: the range is narrower than `2 * max(1, samples_per_insert)`: an insert or a sample could not go
        through at all. (Reverb's own text asks for half of that.)
      ValueError: the error when sampling begins lies outside the range: samples, or inserts, would wait for ever.

    >>> SampleToInsertRatio(4.0, 100, 50.0).bounds
    LimiterBounds(samples_per_insert=4.0, min_size_to_sample=100, min_error=350.0, max_error=450.0)
    """

    samples_per_insert: float
    min_size_to_sample: int
    error_buffer: float | tuple[float, float]

    def __post_init__(self) -> None:
        _check_number("samples_per_insert", self.samples_per_insert)
        check_count("min_size_to_sample", self.min_size_to_sample)
        ratio = float(self.samples_per_insert)
        if not math.isfinite(ratio) or ratio <= 0:
            raise ValueError(
                f"samples_per_insert must be positive and finite, got {self.samples_per_insert!r}: without a ratio "
                "use MinSize."
            )
        object.__setattr__(self, "samples_per_insert", ratio)
        object.__setattr__(self, "error_buffer", _plain_buffer(self.error_buffer))
        self._check_bounds()

    @property
    def bounds(self) -> LimiterBounds:
        """Reverb's numbers."""
        ratio, size, buffer = self.samples_per_insert, self.min_size_to_sample, self.error_buffer
        if isinstance(buffer, tuple):
            return LimiterBounds(ratio, size, *buffer)
        return LimiterBounds(ratio, size, ratio * size - buffer, ratio * size + buffer)

    def build(self, reverb: Any) -> Any:
        """A new limiter object."""
        return reverb.rate_limiters.SampleToInsertRatio(
            self.samples_per_insert, self.min_size_to_sample, self.error_buffer
        )

    def _check_bounds(self) -> None:
        bounds = self.bounds
        least, most, start = bounds.min_error, bounds.max_error, bounds.error_when_filled
        where = (
            f"error_buffer={self.error_buffer!r} keeps inserts * samples_per_insert - samples in [{least:g}, {most:g}]"
        )
        needed = 2 * max(1.0, self.samples_per_insert)
        if not math.isfinite(most - least):
            raise ValueError(f"{where}: that is more than a float can hold; give smaller numbers.")
        if most - least < needed:
            raise ValueError(
                f"{where}, a range of {most - least:g}: with samples_per_insert={self.samples_per_insert:g} inserts "
                f"and samples could block each other for ever; it must be at least {needed:g} wide. Give an "
                f"error_buffer of at least {needed / 2:g}, or a pair so far apart."
            )
        if least > start:
            raise ValueError(
                f"{where}, but it is {start:g} (samples_per_insert * min_size_to_sample) when sampling may begin: "
                f"samples would wait for more inserts than min_size_to_sample={self.min_size_to_sample} says. Give a "
                f"lower bound of at most {start:g}."
            )
        if most < start:
            raise ValueError(
                f"{where}, but it is {start:g} (samples_per_insert * min_size_to_sample) when sampling may begin: "
                f"every further insert would wait for {start - most:g} samples. Give an upper bound of at least "
                f"{start + max(1.0, self.samples_per_insert):g}."
            )


@dataclasses.dataclass(frozen=True)
class Queue:
    """Inserting waits while `size` items are there that nobody has drawn; sampling waits for an item.

    It counts inserts and samples, not what is there: the table must remove each item with its one draw
    (`max_times_sampled=1`) and never drop one that was not drawn.

    Raises:
      TypeError: `size` is no int.
      ValueError: it is below 1.

    >>> Queue(8)
    Queue(size=8)
    """

    size: int

    def __post_init__(self) -> None:
        check_count("Queue.size", self.size)

    @property
    def min_size_to_sample(self) -> int:
        """One item is enough."""
        return 1

    @property
    def bounds(self) -> LimiterBounds:
        """Reverb's numbers."""
        return LimiterBounds(1.0, 1, 0.0, float(self.size))

    def build(self, reverb: Any) -> Any:
        """A new limiter object."""
        return reverb.rate_limiters.Queue(self.size)


@dataclasses.dataclass(frozen=True)
class Stack:
    """As `Queue`; the name for tables whose sampler is `Lifo`.

    Raises:
      TypeError: `size` is no int.
      ValueError: it is below 1.

    >>> Stack(8)
    Stack(size=8)
    """

    size: int

    def __post_init__(self) -> None:
        check_count("Stack.size", self.size)

    @property
    def min_size_to_sample(self) -> int:
        """One item is enough."""
        return 1

    @property
    def bounds(self) -> LimiterBounds:
        """Reverb's numbers."""
        return LimiterBounds(1.0, 1, 0.0, float(self.size))

    def build(self, reverb: Any) -> Any:
        """A new limiter object."""
        return reverb.rate_limiters.Stack(self.size)


RateLimiter = MinSize | SampleToInsertRatio | Queue | Stack
"""Whatever says when to wait."""


def bounds_from(info: Any) -> LimiterBounds:
    """A served table's limiter.

    Args:
      info: `rate_limiter_info` of a Reverb `TableInfo`.
    """
    return LimiterBounds(
        float(info.samples_per_insert), int(info.min_size_to_sample), float(info.min_diff), float(info.max_diff)
    )


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}.")


def _plain_buffer(value: Any) -> float | tuple[float, float]:
    """An error buffer as a float or two of them, all finite."""
    ends = tuple(value) if isinstance(value, tuple | list) else (value,)
    if isinstance(value, tuple | list) and len(ends) != 2:
        raise TypeError(f"error_buffer must be a number or a pair (least, greatest), got {value!r}.")
    for end in ends:
        _check_number("error_buffer", end)
        if not math.isfinite(end):
            raise ValueError(f"error_buffer must be finite, got {value!r}: where nothing is to wait use MinSize.")
    return float(ends[0]) if len(ends) == 1 else (float(ends[0]), float(ends[1]))
