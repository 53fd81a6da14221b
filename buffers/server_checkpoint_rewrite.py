"""A checkpoint's tables with other settings: the same items, as far as they fit, in files that Reverb loads.

Reverb takes the settings of a table from the checkpoint, so those are written anew, beside the items: their keys,
priorities, numbers of draws and times of insertion stay, and so do their data. That is exact, and needs no second
server through which they are copied.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .item_selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Remover, Selector, selector_from
from .nests import Array
from .rate_limiters import LimiterBounds, bounds_from
from .server_checkpoint_records import ITEMS_FILE, TABLES_FILE, read_items, read_tables, write_records
from .server_manifest import DATA_FILES, DONE
from .tables import SCAN_SUFFIX


@dataclasses.dataclass(frozen=True)
class Moved:
    """What became of a stored table's items.

    Attributes:
      table: its name.
      stored: items in the checkpoint.
      kept: those that the new table has.
      note: what else is to be told, or empty.
    """

    table: str
    stored: int
    kept: int
    note: str = ""

    def __str__(self) -> str:
        left = f", {self.stored - self.kept:,} are left out" if self.kept < self.stored else ""
        return f"table {self.table!r}: {self.kept:,} of {self.stored:,} items go into it{left}{self.note}"


def rewrite(source: pathlib.Path, target: pathlib.Path, asked: Mapping[str, Any]) -> list[Moved]:
    """Writes a checkpoint of the tables asked for, with the items of another one.

    Of a table that is not asked for nothing goes. One that was not stored is not in it, but for the scan table beside
    a stored one: that gets the same items.

    Args:
      source: the checkpoint's folder.
      target: where to write; it must not exist.
      asked: Reverb's `TableInfo` message of each table asked for, by name.

    Returns:
      Of each stored table, and each new scan table, what went.

    Raises:
      ValueError: the source cannot be read.
    """
    records = read_tables(source)
    items: dict[str, list[Any]] = {name: [] for name in records}
    for item in read_items(source):
        items[item.table].append(item)
    target.mkdir(parents=True)
    moved: list[Moved] = []
    kept: dict[str, list[Any]] = {}
    tables: list[Any] = []
    for name, record in records.items():
        if name not in asked:
            moved.append(Moved(name, len(items[name]), 0, "; it is not asked for"))
            continue
        kept[name] = _kept(items[name], asked[name])
        note = _set(record, asked[name], len(items[name]), len(kept[name]))
        moved.append(Moved(name, len(items[name]), len(kept[name]), note))
        tables.append(record)
    for name in asked:
        owner = name.removesuffix(SCAN_SUFFIX)
        if name in records or owner == name or owner not in kept:
            continue
        kept[name] = _copies(kept[owner], name)
        record = type(records[owner])(table_name=name)
        _set(record, asked[name], 0, 0)
        record.rate_limiter.insert_count = len(kept[name])
        moved.append(Moved(name, len(kept[name]), len(kept[name]), f"; from table {owner!r}"))
        tables.append(record)
    write_records(target / TABLES_FILE, tables)
    write_records(target / ITEMS_FILE, (item for name in kept for item in kept[name]))
    for name in DATA_FILES:
        if name not in (TABLES_FILE, ITEMS_FILE):
            link_or_copy(source / name, target / name)
    (target / DONE).touch()
    return moved


def link_or_copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """A second name of a file; a copy where the file system has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def fitting_counts(bounds: LimiterBounds, inserts: int, samples: int) -> tuple[int, int]:
    """Inserts and samples with which a limiter lets both go on: as they are where they fit.

    Else as if sampling were about to begin: `inserts * samples_per_insert - samples` is what it is when the first
    `min_size_to_sample` items are in.

    >>> fitting_counts(LimiterBounds(1.0, 1, -5.0, 5.0), 100, 98)
    (100, 98)
    >>> fitting_counts(LimiterBounds(2.0, 10, 15.0, 25.0), 100, 98)
    (100, 180)
    >>> fitting_counts(LimiterBounds(2.0, 100, 190.0, 210.0), 30, 98)
    (100, 0)
    """
    ratio = bounds.samples_per_insert
    if not bounds.is_bounded or bounds.min_error <= inserts * ratio - samples <= bounds.max_error:
        return inserts, samples
    inserts = max(inserts, math.ceil(bounds.error_when_filled / ratio))
    samples = max(0, math.floor(inserts * ratio - bounds.error_when_filled))
    return inserts, samples + (inserts * ratio - samples > bounds.max_error)


def removed_first(remover: Remover, priorities: Array, num: int, rng: np.random.Generator) -> Array:
    """Which items a remover takes out when so many have to go: their places, int64 `[num]`.

    Args:
      remover: of the table.
      priorities: float64 `[n]`, in the order of inserts.
      num: at most `n`.
      rng: for those that choose by chance.

    >>> removed_first(MinHeap(), np.array([3.0, 1.0, 2.0]), 2, np.random.default_rng(0)).tolist()
    [1, 2]
    """
    count = len(priorities)
    if isinstance(remover, Fifo):
        return np.arange(num)
    if isinstance(remover, Lifo):
        return np.arange(count - num, count)
    if isinstance(remover, MinHeap):
        return np.argsort(priorities, kind="stable")[:num]
    if isinstance(remover, MaxHeap):
        return np.argsort(-priorities, kind="stable")[:num]
    if isinstance(remover, Prioritized) and priorities.any():
        # The least of exponential variables with these rates: one draw after the other without putting back.
        with np.errstate(divide="ignore"):
            waits = rng.exponential(size=count) / priorities**remover.priority_exponent
        return np.argsort(waits, kind="stable")[:num]
    return rng.permutation(count)[:num]


def _kept(items: Sequence[Any], asked: Any) -> list[Any]:
    """The items that a table of these settings would hold, in their order."""
    most_draws = asked.max_times_sampled
    kept = [item for item in items if not most_draws or item.times_sampled < most_draws]
    excess = len(kept) - asked.max_size
    if excess <= 0:
        return kept
    remover: Selector = selector_from(asked.remover_options)
    priorities = np.array([item.priority for item in kept])
    gone = set(removed_first(remover, priorities, excess, np.random.default_rng()).tolist())
    return [item for place, item in enumerate(kept) if place not in gone]


def _set(record: Any, asked: Any, num_stored: int, num_kept: int) -> str:
    """Gives a stored table's record the settings asked for; returns what is to be told of its limiter."""
    record.max_size, record.max_times_sampled = asked.max_size, asked.max_times_sampled
    record.sampler.CopyFrom(asked.sampler_options)
    record.remover.CopyFrom(asked.remover_options)
    record.ClearField("signature")
    if asked.HasField("signature"):
        record.signature.CopyFrom(asked.signature)
    limiter, wanted = record.rate_limiter, asked.rate_limiter_info
    limiter.samples_per_insert, limiter.min_size_to_sample = wanted.samples_per_insert, wanted.min_size_to_sample
    limiter.min_diff, limiter.max_diff = wanted.min_diff, wanted.max_diff
    limiter.delete_count += num_stored - num_kept
    bounds, inserts, samples = bounds_from(wanted), limiter.insert_count, limiter.sample_count
    if bounds.is_bounded and bounds.min_error == 0 and asked.max_times_sampled == 1:
        # A queue or stack: what it counts is what is there.
        samples = inserts - num_kept
    inserts, samples = fitting_counts(bounds, inserts, samples)
    if (inserts, samples) == (limiter.insert_count, limiter.sample_count):
        return ""
    note = (
        f"; its limiter begins anew, as with {inserts:,} inserts and {samples:,} samples in place of "
        f"{limiter.insert_count:,} and {limiter.sample_count:,}"
    )
    limiter.delete_count += inserts - limiter.insert_count
    limiter.insert_count, limiter.sample_count = inserts, samples
    return note


def _copies(items: Sequence[Any], table: str) -> list[Any]:
    """The same items for another table, as a writer would have inserted them there."""
    keys = np.random.default_rng().integers(1, 2**63, len(items), np.uint64)
    copies = []
    for item, key in zip(items, keys.tolist(), strict=True):
        copy = type(item)()
        copy.CopyFrom(item)
        copy.key, copy.table, copy.priority, copy.times_sampled = key, table, 1.0, 0
        copies.append(copy)
    return copies
