"""Which item a table draws, and which one it drops: declared by name, and built anew for each use.

Reverb's own selector objects keep the items' keys. One that stands in two places, as a table's sampler and its
remover or in two tables, kills the table's worker at the first insert. These declarations hold numbers only, and
`build` makes a new object at each call, so one of them may stand anywhere, any number of times.

To add one: a frozen dataclass below with its `build`, its name in `Selector` and in `selector_from`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .priorities import check_exponent


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Every item has the same chance.

    As a remover it keeps no fair sample of the stream: use the reservoir (`TableConfig.initial='random'`).

    >>> Uniform()
    Uniform()
    """

    def build(self, reverb: Any) -> Any:
        """A new selector object."""
        return reverb.selectors.Uniform()


@dataclasses.dataclass(frozen=True)
class Prioritized:
    """An item's chance is `p^priority_exponent / sum of p^priority_exponent` (Schaul et al. 2016, eq. 1).

    Priorities are written raw: the table applies the exponent, once. An item of priority 0 is never drawn, whatever
    the exponent, unless all are 0: then all have the same chance.

    Reverb keeps the sum of all `p^priority_exponent` in float64, and changes it by differences: an item that had once a
    far larger one than the others leaves a rounding error of 1e-16 of it behind, and odds of the others are wrong by it
    for good, though `probabilities` look right. Measured with 64 items: 1e14 times the others did no harm, 1e16 times
    did, in the counts of 6,400 draws. So clip TD errors, and give `eps` the size of errors that matter.

    Args:
      priority_exponent: `alpha`; 0 gives all items of positive priority the same chance.

    Raises:
      TypeError: `priority_exponent` is no number.
      ValueError: it is negative, infinite or NaN. (Reverb takes a negative one, and then draws the least important
        items most.)

    >>> Prioritized()
    Prioritized(priority_exponent=0.6)
    """

    priority_exponent: float = 0.6

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "priority_exponent", check_exponent("Prioritized.priority_exponent", self.priority_exponent)
        )

    def build(self, reverb: Any) -> Any:
        """A new selector object."""
        return reverb.selectors.Prioritized(self.priority_exponent)


@dataclasses.dataclass(frozen=True)
class Fifo:
    """The oldest item. As a sampler it gives the same item again until that is removed.

    >>> Fifo()
    Fifo()
    """

    def build(self, reverb: Any) -> Any:
        """A new selector object."""
        return reverb.selectors.Fifo()


@dataclasses.dataclass(frozen=True)
class Lifo:
    """The newest item. As a remover: once the table is full, it drops what was just inserted, and so keeps the oldest.

    >>> Lifo()
    Lifo()
    """

    def build(self, reverb: Any) -> Any:
        """A new selector object."""
        return reverb.selectors.Lifo()


@dataclasses.dataclass(frozen=True)
class MinHeap:
    """The item of the lowest priority; among equal ones that which was inserted or updated first.

    As a remover it keeps the items of the highest priorities: one that comes in below them all is dropped at once.

    >>> MinHeap()
    MinHeap()
    """

    def build(self, reverb: Any) -> Any:
        """A new selector object."""
        return reverb.selectors.MinHeap()


@dataclasses.dataclass(frozen=True)
class MaxHeap:
    """The item of the highest priority; among equal ones that which was inserted or updated first.

    As a remover it keeps the items of the lowest priorities: one that comes in above them all is dropped at once.

    >>> MaxHeap()
    MaxHeap()
    """

    def build(self, reverb: Any) -> Any:
        """A new selector object."""
        return reverb.selectors.MaxHeap()


Selector = Uniform | Prioritized | Fifo | Lifo | MinHeap | MaxHeap
"""Whatever picks an item."""

Sampler = Selector
"""What picks the item that is drawn."""

Remover = Selector
"""What picks the item that goes when the table is full."""


def reads_priorities(selector: Selector) -> bool:
    """Whether what it picks depends on priorities.

    >>> reads_priorities(MinHeap()), reads_priorities(Fifo())
    (True, False)
    """
    return isinstance(selector, Prioritized | MinHeap | MaxHeap)


def draws_at_random(selector: Selector) -> bool:
    """Whether it picks by chance; otherwise it picks the same item until something changes.

    >>> draws_at_random(Prioritized()), draws_at_random(MaxHeap())
    (True, False)
    """
    return isinstance(selector, Uniform | Prioritized)


def selector_from(options: Any) -> Selector:
    """The declaration of a served table's selector.

    Args:
      options: `sampler_options` or `remover_options` of a Reverb `TableInfo`.

    Raises:
      ValueError: Reverb has a kind that this package does not know.
    """
    kind = options.WhichOneof("distribution")
    if kind == "prioritized":
        return Prioritized(max(0.0, options.prioritized.priority_exponent))
    if kind == "heap":
        return MinHeap() if options.heap.min_heap else MaxHeap()
    if kind == "uniform":
        return Uniform()
    if kind == "fifo":
        return Fifo()
    if kind == "lifo":
        return Lifo()
    raise ValueError(f"a table has a selector of kind {kind!r}, which this version of replayfeed does not know.")
