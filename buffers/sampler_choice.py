"""Which samplers and removers a ring of frames takes, and which it refuses, and why."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

from .item_samplers import HeapSampler, ItemSampler, QueueSampler, UniformSampler
from .item_selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform

_DECLARATIONS = (Uniform, Prioritized, Fifo, Lifo, MinHeap, MaxHeap)
_METHODS = ("draw", "on_add", "on_evict", "update")


@dataclasses.dataclass(frozen=True)
class DrawRule:
    """How windows are chosen.

    Attributes:
      name: of the sampler, for messages.
      new: makes a sampler for a ring of so many frames.
      max_times: how often each window is drawn at most; 0: any number of times.
      newest_fraction: share of each batch that is the newest windows.
      is_uniform: every window has the same chance.
      in_order: the sampler is an `OrderedSampler`.
      only_one_kind: the sampler is an object of the caller's, which serves one kind of window.
    """

    name: str
    new: Callable[[int], ItemSampler]
    max_times: int
    newest_fraction: float
    is_uniform: bool
    in_order: bool
    only_one_kind: bool

    @property
    def is_plain(self) -> bool:
        """Whether draws are uniform and nothing else."""
        return self.is_uniform and not self.max_times and not self.newest_fraction

    @property
    def looks_ahead(self) -> bool:
        """Whether it does no harm that batches are drawn before they are asked for."""
        return self.is_uniform and not self.max_times


UNIFORM_RULE = DrawRule("Uniform()", UniformSampler, 0, 0.0, True, False, False)


def choose_sampler(sampler: Any, max_times_sampled: Any, newest_fraction: Any) -> DrawRule:
    """The rule that a buffer's arguments ask for.

    Raises:
      TypeError: `sampler` is no declaration, no sampler and makes none.
      ValueError: `sampler` is one that this buffer has not; the message says what has it.
      TypeError: `max_times_sampled` is no int, or `newest_fraction` no number.
      ValueError: `max_times_sampled` is below 0, or `newest_fraction` not between 0 and 1.
      ValueError: `newest_fraction` with a sampler that draws in an order.

    >>> choose_sampler(None, 0, 0.0).is_plain
    True
    >>> choose_sampler(Prioritized(0.7), 0, 0.0)
    Traceback (most recent call last):
    ...
    ValueError: sampler=Prioritized(priority_exponent=0.7): use TFPrioritizedReplayBuffer(alpha=0.7).
    """
    max_times, newest = _check_max_times(max_times_sampled), _check_fraction(newest_fraction)
    if isinstance(sampler, Prioritized):
        raise ValueError(f"sampler={sampler}: use TFPrioritizedReplayBuffer(alpha={sampler.priority_exponent}).")
    declared = Uniform() if sampler is None else sampler
    if isinstance(declared, _DECLARATIONS):
        in_order = not isinstance(declared, Uniform)
        if in_order and newest:
            raise ValueError(
                f"newest_fraction={newest} with sampler={declared}: it mixes the newest windows into random draws, and "
                "this sampler draws in an order; leave one of them out."
            )
        return DrawRule(repr(declared), _maker(declared), max_times, newest, not in_order, in_order, False)
    name, is_one = repr(sampler), _is_sampler(sampler) and not isinstance(sampler, type)
    if is_one:
        name = f"{type(sampler).__name__}()" if name.startswith("<") else name
        return DrawRule(name, lambda capacity: sampler, max_times, newest, False, False, True)
    if not callable(sampler):
        missing = [method for method in _METHODS if not callable(getattr(sampler, method, None))]
        raise TypeError(
            f"sampler must be Uniform(), Fifo(), Lifo(), MinHeap(), MaxHeap(), an ItemSampler or a function that makes "
            f"one, got {sampler!r}, which has no {', '.join(missing)}."
        )

    def make(capacity: int) -> ItemSampler:
        made = sampler()
        if not _is_sampler(made):
            raise TypeError(f"sampler: {sampler!r} must make an ItemSampler ({', '.join(_METHODS)}), got {made!r}.")
        return made

    return DrawRule(getattr(sampler, "__name__", name), make, max_times, newest, False, False, False)


def check_remover(remover: Any) -> None:
    """Refuses a remover that a ring of frames has not.

    Raises:
      TypeError: it is no selector.
      ValueError: it is one other than `Fifo()`; the message says why, and what has it.

    >>> check_remover(Fifo())
    >>> check_remover(Uniform())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: remover=Uniform(): a ring overwrites its oldest frames, ... use ReservoirReplayBuffer.
    """
    if remover is None or isinstance(remover, Fifo):
        return
    if not isinstance(remover, _DECLARATIONS):
        raise TypeError(f"remover must be Fifo() or None, got {remover!r}.")
    if isinstance(remover, Uniform):
        way = "for a fair sample of the whole stream use ReservoirReplayBuffer"
    elif isinstance(remover, Lifo):
        way = "to keep the oldest use a served table, TableConfig(..., remover=Lifo())"
    else:
        way = f"to keep items by their priority use a served table, TableConfig(..., remover={remover})"
    raise ValueError(
        f"remover={remover}: a ring overwrites its oldest frames, which is remover=Fifo(), and by that knows without "
        f"a lock what a writer may have touched; {way}."
    )


def check_draws_uniformly(sampler: Any, way: str) -> None:
    """Refuses a sampler for a buffer that draws uniformly and in no other way.

    Args:
      sampler: `Uniform()` or None.
      way: what to do for another one; `{sampler}` in it is replaced.

    Raises:
      TypeError: it is no selector.
      ValueError: it is one other than `Uniform()`.

    >>> check_draws_uniformly(Fifo(), "use a table with sampler={sampler}")
    Traceback (most recent call last):
    ...
    ValueError: sampler=Fifo(): this buffer draws uniformly; use a table with sampler=Fifo().
    """
    if sampler is None or isinstance(sampler, Uniform):
        return
    if not isinstance(sampler, _DECLARATIONS):
        raise TypeError(f"sampler must be Uniform() or None, got {sampler!r}.")
    raise ValueError(f"sampler={sampler}: this buffer draws uniformly; {way.format(sampler=sampler)}.")


def _maker(declared: Any) -> Callable[[int], ItemSampler]:
    if isinstance(declared, Uniform):
        return UniformSampler
    if isinstance(declared, Fifo):
        return QueueSampler
    if isinstance(declared, Lifo):
        return lambda capacity: QueueSampler(capacity, newest=True)
    return lambda capacity: HeapSampler(largest=isinstance(declared, MaxHeap))


def _is_sampler(candidate: Any) -> bool:
    return all(callable(getattr(candidate, method, None)) for method in _METHODS)


def _check_max_times(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"max_times_sampled must be an int, got {value!r}.")
    if value < 0:
        raise ValueError(f"max_times_sampled must be at least 0 (0: any number of times), got {value!r}.")
    return int(value)


def _check_fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"newest_fraction must be a number, got {value!r}.")
    if not 0 <= value <= 1:
        raise ValueError(f"newest_fraction must be between 0 and 1, got {value!r}.")
    return float(value)
