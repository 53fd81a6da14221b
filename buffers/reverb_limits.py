"""What a table's rate limiter lets through now, and what is missing for the rest, in words. Pure.

Reverb counts `diff = inserts * samples_per_insert - samples` over a table's whole life and keeps it in
`[min_error, max_error]`. A sample goes through where the table holds `min_size_to_sample` items and `diff` stays above
the lower bound. An insert goes through where it stays below the upper bound, or where the table does not hold more
than `min_size_to_sample` items with it. (`rate_limiters.py` in Reverb explains why.)
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from .rate_limiters import LimiterBounds, bounds_from


@dataclasses.dataclass(frozen=True)
class LimiterState:
    """A table and its limiter at one moment.

    Attributes:
      table: the table's name.
      bounds: the limiter's numbers.
      inserts: items ever inserted, since the last reset.
      samples: draws ever made, since the last reset.
      size: items that are there.
      max_size: items that it can hold.
      removes: drawn items leave it sooner or later.

    >>> queue = LimiterState("queue", LimiterBounds(1.0, 1, 0.0, 3.0), inserts=3, samples=0, size=3, max_size=3,
    ...     removes=True)
    >>> queue.why_no_sample(3), queue.why_no_sample(4)
    (None, "table 'queue': 3 of 4 draws are possible: 0 of 1 items (3 inserts * 1 - 3 samples = 0, kept in [0, 3])")
    >>> queue.why_no_insert()
    "table 'queue': full, needs 1 more sample (3 inserts * 1 - 0 samples = 3, kept in [0, 3])"
    """

    table: str
    bounds: LimiterBounds
    inserts: int
    samples: int
    size: int
    max_size: int
    removes: bool

    @property
    def diff(self) -> float:
        """`inserts * samples_per_insert - samples`."""
        return self.inserts * self.bounds.samples_per_insert - self.samples

    @property
    def can_sample(self) -> bool:
        """Whether one sample goes through now."""
        return self.size >= self.bounds.min_size_to_sample and self.diff - 1 >= self.bounds.min_error

    @property
    def can_insert(self) -> bool:
        """Whether one insert goes through now."""
        is_free = self.size + 1 <= self.bounds.min_size_to_sample
        return is_free or self.diff + self.bounds.samples_per_insert <= self.bounds.max_error

    def why_no_sample(self, num_samples: int = 1, num_waiting: int = 0) -> str | None:
        """Why so many draws, one after the other, would not all go through; None when they would.

        Where drawn items leave after several draws, each draw is taken to remove one: then None can be relied on.

        Args:
          num_samples: draws.
          num_waiting: items that writers have sent and that the limiter does not let in yet.
        """
        state, drawn = self, 0
        while drawn < num_samples:
            if num_waiting and state.can_insert:
                state, num_waiting = state._after_insert(), num_waiting - 1
            elif state.can_sample:
                if not (num_waiting or self.removes or self.bounds.is_bounded):
                    return None  # each one is as the first
                state, drawn = state._after_sample(), drawn + 1
            else:
                break
        if drawn == num_samples:
            return None
        some = f"{drawn} of {num_samples} draws are possible: " if drawn else ""
        return f"table {self.table!r}: {some}{state._missing_for_a_sample()}"

    def why_no_insert(self) -> str | None:
        """Why an insert waits; None when it goes through."""
        if self.can_insert:
            return None
        bounds = self.bounds
        over = self.diff + bounds.samples_per_insert - bounds.max_error
        what = "full" if self.removes and bounds.min_error == 0 else "ratio reached"
        return f"table {self.table!r}: {what}, needs {_more(over, 'sample')} ({self._numbers()})"

    def _missing_for_a_sample(self) -> str:
        bounds = self.bounds
        if self.size < bounds.min_size_to_sample:
            numbers = f" ({self._numbers()})" if bounds.is_bounded else ""
            return f"{self.size} of {bounds.min_size_to_sample} items{numbers}"
        under = (bounds.min_error - self.diff + 1) / bounds.samples_per_insert
        return f"ratio used up, needs {_more(under, 'insert')} ({self._numbers()})"

    def _numbers(self) -> str:
        bounds = self.bounds
        return (
            f"{self.inserts} inserts * {bounds.samples_per_insert:g} - {self.samples} samples = {self.diff:g}, "
            f"kept in [{bounds.min_error:g}, {bounds.max_error:g}]"
        )

    def _after_insert(self) -> LimiterState:
        return dataclasses.replace(self, inserts=self.inserts + 1, size=min(self.size + 1, self.max_size))

    def _after_sample(self) -> LimiterState:
        return dataclasses.replace(self, samples=self.samples + 1, size=self.size - self.removes)


def limiter_state(info: Any) -> LimiterState:
    """The state that a `TableInfo` of Reverb's tells of."""
    limiter = info.rate_limiter_info
    return LimiterState(
        table=info.name,
        bounds=bounds_from(limiter),
        inserts=int(limiter.insert_stats.completed),
        samples=int(limiter.sample_stats.completed),
        size=int(info.current_size),
        max_size=int(info.max_size),
        removes=info.max_times_sampled > 0,
    )


def _more(number: float, what: str) -> str:
    count = max(1, math.ceil(number))
    return f"{count} more {what}{'s' if count > 1 else ''}"
