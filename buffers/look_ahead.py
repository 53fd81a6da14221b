"""Whether one thread that writes and draws can live with a rate limiter, before it waits for itself. Pure.

A batch is delivered whole, so a thread that asks for one inserts nothing until it is there. With
`error = inserts * samples_per_insert - samples` kept in `[least, greatest]`, samples that fit in between are all
that it can get. What a dataset draws ahead is delivered later: it takes nothing away (measured: of one iterator
every item arrives), but the limiter counts it as drawn already.
"""

from __future__ import annotations

import logging
import math
from fractions import Fraction

from .counts import check_count
from .rate_limiters import LimiterBounds, RateLimiter

_logger = logging.getLogger(__name__)

# A ratio of 0.1 is meant as 1/10, not as the float that is nearest to it.
_FINEST = 10**6
_TRIED = 1000


def greatest_error_needed(limiter: RateLimiter | LimiterBounds, batch: int) -> float:
    """What the limiter's greatest error must be for one thread to draw batches of this size again and again.

    The thread inserts until a batch is ready, and draws it. `error` then takes every multiple of
    `g = gcd(samples_per_insert, batch)` in turn, so that at worst it has to rise to the first of them from `least +
    batch` on, and `samples_per_insert - g` more. Where the ratio is `k` batches, a loop of one insert and `k` batches
    is meant as well: there one insert more must go through. So it must where the ratio, as 0.1, is no sum of powers
    of two: Reverb's arithmetic may then miss a bound by a rounding.

    Args:
      limiter: the table's.
      batch: samples of one draw.

    >>> from replayfeed.buffers import Queue, SampleToInsertRatio
    >>> greatest_error_needed(Queue(8), 5), greatest_error_needed(SampleToInsertRatio(4.0, 10, 8.0), 4)
    (5.0, 44.0)
    """
    bounds = limiter if isinstance(limiter, LimiterBounds) else limiter.bounds
    ratio, drawn = _fraction(bounds.samples_per_insert), Fraction(batch)
    least = _fraction(bounds.min_error) + drawn
    step = _gcd(ratio, drawn)
    needed = max(ratio * bounds.min_size_to_sample, math.ceil(least / step) * step + ratio - step)
    if ratio % drawn == 0:
        inserts = max(bounds.min_size_to_sample, math.ceil(least / ratio))
        needed = max(needed, ratio * (inserts + 1))
    return float(needed if _is_exact(bounds) else needed + ratio)


def check_look_ahead(
    limiter: RateLimiter | LimiterBounds,
    *,
    batch: int,
    in_flight: int,
    prefetch: int,
    name: str,
    iterators: int = 1,
    writes_here: bool = True,
) -> None:
    """Refuses batches for which a thread that writes and draws would wait for itself, for ever.

    The limiter's greatest error must be at least `greatest_error_needed`. Then both run for ever: a loop of one insert
    and `k` batches with `k * batch = samples_per_insert`, and a loop that inserts until the next batch is ready. A loop
    at another rate than the limiter's stops sooner or later, whatever the range.

    A look-ahead of more than the range is said on the log: the limiter counts it as drawn, so that the loop has seen
    fewer samples than the ratio says, by so many.

    Args:
      limiter: the table's.
      batch: samples of one draw.
      in_flight: samples that all workers of an iterator fetch ahead together.
      prefetch: batches that are kept ready.
      name: the table's, for messages.
      iterators: Reverb iterators that a batch is drawn from (`max_cycle_length`).
      writes_here: whether the process that draws writes as well. False: others insert meanwhile, and a batch larger
        than the range just takes longer.

    Raises:
      TypeError: a count is no int.
      ValueError: a count is too small.
      ValueError: several iterators and a limiter that makes samples wait: one of them may take what another waits for.
      ValueError: a thread that writes and draws would wait for ever; the message says what range it takes.

    >>> from replayfeed.buffers import SampleToInsertRatio
    >>> check_look_ahead(SampleToInsertRatio(1.0, 100, 32.0), batch=32, in_flight=64, prefetch=0, name="replay")
    >>> check_look_ahead(SampleToInsertRatio(1.0, 100, 4.0), batch=32, in_flight=64, prefetch=0, name="replay")
    Traceback (most recent call last):
    ...
    ValueError: table 'replay': for batches of 32 its limiter must let inserts * samples_per_insert - samples rise to
    128, and lets it rise to 104: a thread that writes and draws would wait for itself for ever. Give the limiter
    error_buffer=32 or more, batches of at most 8, or write from another process.
    """
    check_count("batch", batch)
    check_count("iterators", iterators)
    for what, count in (("in_flight", in_flight), ("prefetch", prefetch)):
        if count != 0:
            check_count(what, count)
    bounds = limiter if isinstance(limiter, LimiterBounds) else limiter.bounds
    if not bounds.is_bounded:
        return
    if iterators > 1:
        raise ValueError(
            f"table {name!r}: its limiter makes samples wait for inserts, and max_cycle_length={iterators} iterators "
            "wait each for its own: one can hold what the others wait for, and the batch never comes. Give "
            "max_cycle_length=1."
        )
    if writes_here:
        _check_one_thread(bounds, batch, name)
    ahead = in_flight + batch * (prefetch + 1)
    width = bounds.max_error - bounds.min_error
    if ahead > width:
        _logger.info(
            "table %r: up to %d samples are drawn ahead (%d in flight, %d batches of %d); the limiter, whose range is "
            "%g, counts them as drawn, so that the loop has seen fewer than samples_per_insert=%g says, by so many.",
            name,
            ahead,
            in_flight,
            prefetch + 1,
            batch,
            width,
            bounds.samples_per_insert,
        )


def _check_one_thread(bounds: LimiterBounds, batch: int, name: str) -> None:
    needed = greatest_error_needed(bounds, batch)
    if needed <= bounds.max_error:
        return
    most = _largest_batch(bounds, batch)
    smaller = "" if most is None else f"batches of at most {most}, "
    raise ValueError(
        f"table {name!r}: for batches of {batch} its limiter must let inserts * samples_per_insert - samples rise to "
        f"{needed:g}, and lets it rise to {bounds.max_error:g}: a thread that writes and draws would wait for itself "
        f"for ever. Give the limiter {_enough(bounds, batch)}, {smaller}or write from another process."
    )


def _largest_batch(bounds: LimiterBounds, below: int) -> int | None:
    """The largest batch below the given one that one thread can draw; None where it is far below."""
    most = min(below - 1, math.floor(bounds.max_error - bounds.min_error))
    for batch in range(most, max(0, most - _TRIED), -1):
        if greatest_error_needed(bounds, batch) <= bounds.max_error:
            return batch
    return None


def _enough(bounds: LimiterBounds, batch: int) -> str:
    """A setting that is wide enough for the batch."""
    if bounds.samples_per_insert == 1.0 and bounds.min_size_to_sample == 1 and bounds.min_error == 0.0:
        return f"a size of at least {greatest_error_needed(bounds, batch):g}"
    spare = 0.0 if _is_exact(bounds) else bounds.samples_per_insert
    return f"error_buffer={max(batch, bounds.samples_per_insert) + spare:g} or more"


def _is_exact(bounds: LimiterBounds) -> bool:
    numbers = (bounds.samples_per_insert, bounds.min_error)
    return all(_fraction(number) == Fraction(number) for number in numbers)


def _fraction(value: float) -> Fraction:
    return Fraction(value).limit_denominator(_FINEST)


def _gcd(one: Fraction, other: Fraction) -> Fraction:
    """The greatest number of which both are multiples."""
    denominator = one.denominator * other.denominator
    return Fraction(math.gcd(one.numerator * other.denominator, other.numerator * one.denominator), denominator)
