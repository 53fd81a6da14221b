"""Which items of a stream a reservoir keeps, and in which row. Pure.

Of a stream of `n` items each is held with the chance `min(1, k / n)`, at any time, and so is each set of `k` of them
with the same chance (Vitter 1985, Random Sampling with a Reservoir). After the first `k` items it is drawn how many
are passed over until the next one is kept, not for each item whether it is (Li 1994, Reservoir-Sampling Algorithms of
Time Complexity O(n (1 + log(N / n))), Algorithm L: the same law). So an item that is not kept costs a comparison, and
the same seed keeps the same items however the stream is cut into adds.

    S_0 = 0,  S_i = S_i-1 + E / k                   E, E': exponential with mean 1, drawn anew for each i
    skip_i = 1 + floor(E' / -log(1 - exp(-S_i)))    items from one that is kept to the next

Differs from the paper in that it draws exponential numbers where that takes logarithms of uniform ones, and sums
where that multiplies.

It can be seen like this: each item gets a key, uniform between 0 and 1, and the `k` items of the lowest keys are held.
exp(-S_i) is the greatest key held, below which the key of the next item to be kept is; then it is the key of the item
that was replaced, below which all keys held are, each uniform. So a reservoir that was saved goes on in one of another
size (`resized`): only that bound must be drawn anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .nests import Array

# Kept items are drawn ahead, so that one costs a part of a few NumPy calls; a small reservoir needs few.
_LARGEST_BLOCK, _SMALLEST_BLOCK = 1024, 16

# A position that no stream reaches.
_NEVER = 2**62

_UNKNOWN = -1

_NONE = np.zeros(0, np.int64)
_FIRST = np.zeros(1, np.int64)


class Kept(NamedTuple):
    """Which of the next items of a stream are kept.

    Attributes:
      num: items that this is about.
      offsets: of those kept among them, int64 `[m]`, ascending.
      rows: where each of them goes, int64 `[m]`, each row once; what was in it is lost.
    """

    num: int
    offsets: Array
    rows: Array


class _Block(NamedTuple):
    """Items to be kept next: positions in the stream and rows, int64 `[m]`, and `S` after the last of them.

    `num_held` rows hold items before the first of them; where those are not all, these items go to the rows after them.
    """

    positions: Array
    rows: Array
    exponent: float
    num_held: int


class ReservoirRule:
    """Decides for each item of a stream, in order; not thread-safe.

    Args:
      capacity: `k`, at least 1.
      rng: what it draws from, and nothing else does.

    >>> rule = ReservoirRule(2, np.random.default_rng(0))
    >>> rule.next_kept(3)
    Kept(num=2, offsets=array([0, 1]), rows=array([0, 1]))
    """

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self._capacity = capacity
        self._rng = rng
        self._num_seen = 0
        self._block = _Block(_NONE, _NONE, 0.0, capacity)
        # Up to this position each item is kept: 0 where items were lost before all rows were filled (`resized`).
        self._fill_stop = capacity
        # The next position to keep after that, and its index in the block; unknown if it is past.
        self._next, self._index = _UNKNOWN, 0

    @property
    def num_seen(self) -> int:
        """`n`, items of the stream so far."""
        return self._num_seen

    @property
    def num_held(self) -> int:
        """Rows that hold an item of the stream."""
        if self._num_seen < self._fill_stop:
            return self._num_seen
        if self._block.num_held == self._capacity:
            return self._capacity
        return self._block.num_held + int(self._block.positions.searchsorted(self._num_seen))

    def next_kept(self, num: int, most: int = 2**62) -> Kept:
        """What becomes of the next `num` items, or of the first of them if otherwise more than `most` were kept.

        Asked again before `advance_to`, it says the same.
        """
        seen = self._num_seen
        if seen < self._fill_stop:
            num = min(num, self._fill_stop - seen, most)
            return Kept(num, np.arange(num), np.arange(seen, seen + num))
        if self._next < seen:
            self._find_next()
        if self._next >= seen + num:
            return Kept(num, _NONE, _NONE)
        positions, first = self._block.positions, self._index
        if num == 1:
            return Kept(1, _FIRST, self._block.rows[first : first + 1])
        last = int(positions.searchsorted(seen + num))
        # What comes after the block, or after the most that may be kept, is not known yet.
        if last - first > most or last == len(positions):
            last = min(last, first + most)
            num = int(positions[last - 1]) + 1 - seen
        offsets, rows = positions[first:last] - seen, self._block.rows[first:last]
        if len(rows) > 1 and len(set(rows.tolist())) < len(rows):
            # Of several that go to one row only the last is there afterwards.
            _, index = np.unique(rows[::-1], return_index=True)
            index = np.sort(len(rows) - 1 - index)
            offsets, rows = offsets[index], rows[index]
        return Kept(num, offsets, rows)

    def advance_to(self, num_seen: int) -> None:
        """So many items, no more than `next_kept` told of, have come by now."""
        self._num_seen = num_seen

    def clear(self) -> None:
        """A new stream begins; the random numbers go on."""
        self._num_seen = 0
        self._block = _Block(_NONE, _NONE, 0.0, self._capacity)
        self._fill_stop = self._capacity
        self._next = _UNKNOWN

    def state(self) -> dict[str, Any]:
        """All that decides about items to come, in plain numbers, strings and lists."""
        first = int(self._block.positions.searchsorted(self._num_seen))
        return {
            "num_seen": self._num_seen,
            "num_held": self.num_held,
            "positions": self._block.positions[first:].tolist(),
            "rows": self._block.rows[first:].tolist(),
            "exponent": self._block.exponent,
            "rng": self._rng.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on as the rule of the same capacity did that this is the `state` of."""
        self._rng.bit_generator.state = state["rng"]
        positions, rows = (np.array(state[name], np.int64) for name in ("positions", "rows"))
        seen, held = int(state["num_seen"]), int(state["num_held"])
        grows = held < min(seen, self._capacity)
        self._block = _Block(positions, rows, float(state["exponent"]), held if grows else self._capacity)
        self._fill_stop = 0 if grows else self._capacity
        self._num_seen = seen
        self._next = _UNKNOWN

    def _find_next(self) -> None:
        """Sets `_next` to the first position to keep that is not past."""
        index = int(self._block.positions.searchsorted(self._num_seen))
        if index == len(self._block.positions):
            self._block = self._draw_block()
            index = 0
        self._index = index
        self._next = int(self._block.positions[index])

    def _draw_block(self) -> _Block:
        held = self.num_held
        free = self._capacity - held
        if free:
            # All items below the bound are held, and it stays until all rows are filled.
            num = min(_LARGEST_BLOCK, free)
            exponents = np.full(num, self._block.exponent)
        else:
            num = max(_SMALLEST_BLOCK, min(_LARGEST_BLOCK, self._capacity))
            exponents = self._block.exponent + np.cumsum(self._rng.standard_exponential(num)) / self._capacity
        # Beyond these bounds only positions that no stream reaches, or none, are passed over.
        bounded = np.clip(exponents, 1e-300, 600.0)
        with np.errstate(divide="ignore"):  # each form where it is exact; the other may be log(0) there
            rates = -np.where(bounded < 0.7, np.log(-np.expm1(-bounded)), np.log1p(-np.exp(-bounded)))
        skips = 1 + np.minimum(np.floor(self._rng.standard_exponential(num) / rates), _NEVER)
        rows = np.arange(held, held + num) if free else self._rng.integers(0, self._capacity, num)
        # One block follows the next without a gap: the last position of a block is where it is used up.
        last = self._num_seen - 1
        # Sums of integers are exact, and wrap around only where the floating point sum says that it is too far.
        within = last + np.cumsum(skips) < _NEVER
        positions = np.where(within, last + np.cumsum(skips.astype(np.int64)), _NEVER)
        return _Block(positions, rows, float(exponents[-1]), held)


def check_rule_state(state: Mapping[str, Any], capacity: int) -> None:
    """Refuses what is no `ReservoirRule.state` of so many rows; the random numbers' state is not looked at.

    Raises:
      ValueError: it is none; the message says what is wrong.

    >>> check_rule_state({"num_seen": 3, "num_held": 4, "positions": [], "rows": [], "exponent": 0.0, "rng": {}}, 4)
    Traceback (most recent call last):
    ...
    ValueError: the saved reservoir's rule contradicts itself: 4 items held of 3 in 4 rows.
    """
    seen, held, exponent = state["num_seen"], state["num_held"], state["exponent"]
    positions, rows = np.array(state["positions"], np.int64), np.array(state["rows"], np.int64)
    wrong = None
    if not 0 <= held <= min(seen, capacity):
        wrong = f"{held} items held of {seen} in {capacity} rows"
    elif positions.ndim != 1 or positions.shape != rows.shape:
        wrong = f"{positions.shape} places of items to keep, and {rows.shape} rows"
    elif len(rows) and (positions[0] < seen or (np.diff(positions) < 0).any()):
        wrong = f"places of items to keep do not ascend from {seen} on"
    elif len(rows) and (rows.min() < 0 or rows.max() >= capacity):
        wrong = f"rows {rows.min()} to {rows.max()} of {capacity}"
    elif not 0 <= exponent < np.inf:
        wrong = f"an exponent of {exponent}"
    if wrong is not None:
        raise ValueError(f"the saved reservoir's rule contradicts itself: {wrong}.")


def resized(
    state: Mapping[str, Any], capacity: int, wanted: int, rng: np.random.Generator
) -> tuple[Array | None, dict[str, Any]]:
    """How a reservoir of `capacity` rows goes on in one of `wanted`.

    A smaller one takes a uniform choice of the items held, and goes on as if it had been that small from the beginning:
    each item is held with the chance `min(1, wanted / n)`.

    A larger one that nothing was lost of yet goes on being filled. Once items were lost, it cannot become a
    uniform sample of more than it holds. What it holds are all items whose keys are below the bound, and it goes on to
    keep all those: of `n` items until now each is held with the chance `k / n`, of those that come each with
    `(k + 1) / (n + 1)`, so that it grows as its stream does, and is full after about `n * wanted / k` items.
    From then on it holds the items of the lowest keys of all, each with the chance `wanted / n`, as if it had been that
    large from the beginning (but for streams of which more than `k` of these came before: once the stream is somewhat
    longer than that, there are none).

    The bound is the key next to the greatest one held. Of `n` uniform keys it is the `k + 1`-th lowest, whichever items
    are held: beta distributed with `k + 1` and `n - k`, a quotient of gamma distributed numbers.

    Args:
      state: of the rule (`ReservoirRule.state`).
      capacity: that it was of.
      wanted: that of the one that goes on.
      rng: what this, and the rule from then on, draws from; it is advanced.

    Returns:
      Which of the items held are kept, counted in the order in which they came, int64 `[wanted]`, ascending, or None
      for all, which go to rows from 0 on in this order; and the state of a rule of `wanted` rows.

    >>> rule = ReservoirRule(4, np.random.default_rng(0))
    >>> rule.advance_to(4)
    >>> kept, state = resized(rule.state(), 4, 2, np.random.default_rng(1))
    >>> kept, state["num_seen"], state["num_held"]
    (array([1, 2]), 4, 2)
    """
    seen, held = state["num_seen"], state["num_held"]
    num = min(held, wanted)
    kept = None if num == held else np.sort(rng.choice(held, num, replace=False))
    # Of which items those held are the ones of the lowest keys, and the bound of all of their keys.
    grows = held < min(seen, capacity)
    population, exponent = (held, state["exponent"]) if grows else (seen, 0.0)
    if num < population:
        exponent += float(np.log1p(rng.standard_gamma(population - num) / rng.standard_gamma(num + 1)))
    return kept, {
        "num_seen": seen,
        "num_held": num,
        "positions": [],
        "rows": [],
        "exponent": exponent,
        "rng": rng.bit_generator.state,
    }
