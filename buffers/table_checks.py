"""What of a table does not go together: refused when it is declared, before it could kill or hang a server. Pure.

Reverb checks little of this. A wrong object or a shared one kills a table's worker at the first insert, and from
then on every call on the table waits for ever; limits that cannot be met wait for ever as well.
"""

from __future__ import annotations

import math
import numbers
import sys
from typing import TYPE_CHECKING, Any

from .item_selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform, reads_priorities
from .rate_limiters import MinSize, Queue, SampleToInsertRatio, Stack

if TYPE_CHECKING:
    from .tables import TableConfig

SELECTORS = (Uniform, Prioritized, Fifo, Lifo, MinHeap, MaxHeap)
LIMITERS = (MinSize, SampleToInsertRatio, Queue, Stack)
SLOTS: dict[str, tuple[type, ...]] = {"sampler": SELECTORS, "remover": SELECTORS, "rate_limiter": LIMITERS}


def check_slot(slot: str, value: Any) -> None:
    """Refuses what cannot stand as a sampler, remover or rate limiter, and says what was meant where it shows.

    Raises:
      TypeError: it is none of the declarations for the slot.

    >>> check_slot("sampler", MinSize(5))
    Traceback (most recent call last):
    ...
    TypeError: TableConfig.sampler must be one of Uniform, Prioritized, Fifo, Lifo, MinHeap, MaxHeap, got
    MinSize(min_size_to_sample=5): that is a rate limiter; give it as rate_limiter=.
    """
    kinds = SLOTS[slot]
    if type(value) in kinds:
        return
    names = ", ".join(kind.__name__ for kind in kinds)
    hint = _what_was_meant(slot, value)
    raise TypeError(f"TableConfig.{slot} must be one of {names}, got {value!r}{hint and f': {hint}'}.")


def _what_was_meant(slot: str, value: Any) -> str:
    if isinstance(value, type) and value in (*SELECTORS, *LIMITERS):
        return f"that is the class; make one, {value.__name__}(...)"
    if type(value) in LIMITERS:
        return "that is a rate limiter; give it as rate_limiter="
    if type(value) in SELECTORS:
        return "that is a selector; give it as sampler= or remover="
    if type(value).__module__.partition(".")[0] == "reverb" or "reverb.item_selectors" in repr(value):
        return (
            "that is one of Reverb's own objects, which kills the server when it stands in two places; give the one "
            "of the same name from replayfeed.buffers"
        )
    if isinstance(value, numbers.Real) and slot == "rate_limiter" and not isinstance(value, bool):
        return f"for a table that waits for so many items give MinSize({value!r})"
    if isinstance(value, str):
        return "names stand in files only (TableConfig.from_dict); give the object"
    return ""


def check_limiter_fits(config: TableConfig) -> None:
    """Refuses limits that the table's size or its removals make impossible.

    Raises:
      ValueError: the limiter asks for more items than the table may hold.
      ValueError: a `Queue` or `Stack` is longer than `max_size`, or its table keeps items that were drawn.
      ValueError: `SampleToInsertRatio` wants more samples of an item than `max_times_sampled` allows.
    """
    limiter, name = config.rate_limiter, config.name
    if limiter.min_size_to_sample > config.max_size:
        raise ValueError(
            f"table {name!r} holds at most max_size={config.max_size} items and could never be sampled: "
            f"its limiter asks for {limiter.min_size_to_sample}."
        )
    if isinstance(limiter, Queue | Stack):
        if config.max_times_sampled != 1:
            raise ValueError(
                f"table {name!r}: {limiter!r} lets one item in for each that is drawn and needs max_times_sampled=1, "
                f"got {config.max_times_sampled}: items that were drawn would stay, fill the table and push out others."
            )
        if limiter.size > config.max_size:
            raise ValueError(
                f"table {name!r}: {limiter!r} lets {limiter.size} items in, but the table holds max_size="
                f"{config.max_size}: items would go undrawn, each would be counted as still there, and inserts would "
                f"end up waiting for ever. Give max_size={limiter.size}, or {type(limiter).__name__}"
                f"({config.max_size})."
            )
    if isinstance(limiter, SampleToInsertRatio) and 0 < config.max_times_sampled < limiter.samples_per_insert:
        raise ValueError(
            f"table {name!r}: samples_per_insert={limiter.samples_per_insert:g} cannot be met: with "
            f"max_times_sampled={config.max_times_sampled} an item is gone before. Give max_times_sampled of at least "
            f"{math.ceil(limiter.samples_per_insert)}, or 0, or a samples_per_insert of at most "
            f"{config.max_times_sampled}."
        )


def check_priorities_of_new_items(config: TableConfig) -> None:
    """Refuses `initial` and `tracks_least` where the table cannot keep what they promise.

    Raises:
      TypeError: `initial` is neither a number, `'max'` nor `'random'`; `tracks_least` is no bool.
      ValueError: `initial` is a negative or infinite number, so large that the table's sum overflows, or another word.
      ValueError: one is given for plain columns, which cannot tell writers of it.
      ValueError: `'random'` in a table that is no reservoir.
      ValueError: `'max'` or `tracks_least` in a table whose mirror would come apart from it, or that reads no priority.
    """
    initial = config.initial
    if not isinstance(config.tracks_least, bool):
        raise TypeError(f"TableConfig.tracks_least must be True or False, got {config.tracks_least!r}.")
    if isinstance(initial, str):
        if initial not in ("max", "random"):
            raise ValueError(f"TableConfig.initial must be a number, 'max' or 'random', got {initial!r}.")
    elif isinstance(initial, bool) or not isinstance(initial, numbers.Real):
        raise TypeError(f"TableConfig.initial must be a number, 'max' or 'random', got {initial!r}.")
    elif not math.isfinite(initial) or initial < 0:
        raise ValueError(
            f"TableConfig.initial must be finite and at least 0, got {initial!r}: Reverb's table dies of such a "
            "priority, and every later call on it waits for ever."
        )
    elif not _sum_is_finite(float(initial), config):
        raise ValueError(
            f"TableConfig.initial={initial!r} to the power of {config.sampler!r}, times max_size={config.max_size}, is "
            "more than a float can hold: the table would draw one item for ever, with probability NaN or 0. Give a "
            "smaller one."
        )
    if config.layout == "plain" and (isinstance(initial, str) or initial != 1.0 or config.tracks_least):
        raise ValueError(
            f"table {config.name!r}: initial={initial!r} and tracks_least={config.tracks_least} need layout='packed': "
            "those who write plain tables choose priorities by themselves."
        )
    if initial == "random":
        _check_reservoir(config)
    if initial == "max":
        _check_mirror(config, "initial='max'", "a table of the same items by which the greatest priority is found")
    if config.tracks_least:
        _check_mirror(config, "tracks_least=True", "a table of the same items by which the least priority is found")


def _sum_is_finite(priority: float, config: TableConfig) -> bool:
    """Whether a table full of this priority can add up what it draws by."""
    if type(config.sampler) is not Prioritized or priority == 0:
        return True
    # In logarithms: the power itself would raise.
    most = math.log(sys.float_info.max)
    return config.sampler.priority_exponent * math.log(priority) + math.log(config.max_size) < most


def _check_reservoir(config: TableConfig) -> None:
    where = f"table {config.name!r}: initial='random' makes a reservoir, in which every item stays with the same chance"
    if type(config.remover) is not MinHeap:
        raise ValueError(f"{where}: it needs remover MinHeap(), got {config.remover!r}.")
    if reads_priorities(config.sampler):
        raise ValueError(
            f"{where}: its priorities say nothing but who stays, so they cannot choose what is drawn as well; give "
            f"sampler Uniform(), got {config.sampler!r}."
        )
    if config.max_times_sampled:
        raise ValueError(
            f"{where}: items that leave because they were drawn make room for later ones; give max_times_sampled=0, "
            f"got {config.max_times_sampled}."
        )


def _check_mirror(config: TableConfig, what: str, mirror: str) -> None:
    where = f"table {config.name!r}: {what} keeps {mirror}"
    if not reads_priorities(config.sampler):
        raise ValueError(
            f"{where}, but sampler {config.sampler!r} reads no priority; leave it out, or give sampler Prioritized()."
        )
    if type(config.remover) is not Fifo:
        raise ValueError(
            f"{where}; with remover {config.remover!r} the two would drop different items and come apart: give "
            "remover Fifo()."
        )
    if config.max_times_sampled:
        raise ValueError(
            f"{where}; with max_times_sampled={config.max_times_sampled} items leave one of the two alone: give "
            "max_times_sampled=0."
        )
