"""How the tables of a checkpoint differ from those that a server is asked to serve.

Reverb 0.14 takes a stored table's settings without a word, whatever it was asked for; so they are compared before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from .item_selectors import selector_from
from .rate_limiters import LimiterBounds, bounds_from
from .reverb_layout import packed_signature
from .tables import MAX_SUFFIX, MIN_SUFFIX, SCAN_SUFFIX

_NOT_THERE = "(no such table)"
# What a `TableConfig` says to have a table beside its own; of the greatest priority it is `initial`, which is compared.
_BESIDE = {SCAN_SUFFIX: "scannable", MIN_SUFFIX: "tracks_least", MAX_SUFFIX: None}


@dataclasses.dataclass(frozen=True)
class Difference:
    """One setting of one table.

    Attributes:
      table: its name.
      setting: its setting; `'table'` where it is missing as a whole.
      stored: what the checkpoint says, in words.
      asked: what the server is asked for, in words.
      is_fixed: the data are as stored: it cannot be overridden.
    """

    table: str
    setting: str
    stored: str
    asked: str
    is_fixed: bool = False

    def __str__(self) -> str:
        fixed = " (the stored data are as they are: cannot be overridden)" if self.is_fixed else ""
        return f"table {self.table!r}: {self.setting}: stored {self.stored}, asked for {self.asked}{fixed}"


def differences(
    stored: Mapping[str, Any],
    asked: Mapping[str, Any],
    stored_limiters: Mapping[str, str],
    asked_limiters: Mapping[str, str],
) -> list[Difference]:
    """Every setting in which tables differ; of tables beside another one only whether they are there.

    Args:
      stored: Reverb's `TableInfo`s of the checkpoint's tables, by name.
      asked: those of the tables asked for.
      stored_limiters: how their limiters were declared, where that is known.
      asked_limiters: how those asked for are.

    Raises:
      ValueError: a table was packed by another version of this package.
    """
    found: list[Difference] = []
    for name in [*asked, *(name for name in stored if name not in asked)]:
        owner = base_of(name, [*asked, *stored])
        if owner != name and owner in stored and owner in asked:
            # The same items as in its owner; what differs otherwise, differs there.
            setting = _BESIDE[name.removeprefix(owner)]
            if setting is not None and (name in stored) != (name in asked):
                # A scan table can be built from stored items; a mirror cannot, since its keys are their frames' ids.
                fixed = name in asked and setting == "tracks_least" and stored[owner].current_size > 0
                found.append(Difference(owner, setting, repr(name in stored), repr(name in asked), fixed))
        elif name not in stored:
            found.append(Difference(name, "table", _NOT_THERE, "one"))
        elif name not in asked:
            found.append(Difference(name, "table", f"{stored[name].current_size:,} items", _NOT_THERE))
        else:
            found += _of_one(stored[name], asked[name], stored_limiters.get(name), asked_limiters.get(name))
    return found


def base_of(table: str, names: Sequence[str]) -> str:
    """The table beside which `table` is kept, if that is one of `names`; else its own name.

    >>> base_of("replay__scan", ["replay", "replay__scan"]), base_of("replay", ["replay"])
    ('replay', 'replay')
    """
    for suffix in (SCAN_SUFFIX, MAX_SUFFIX, MIN_SUFFIX):
        owner = table.removesuffix(suffix)
        if owner != table and owner in names:
            return owner
    return table


def _of_one(stored: Any, asked: Any, stored_limiter: str | None, asked_limiter: str | None) -> list[Difference]:
    name = asked.name
    pairs: list[tuple[str, Any, Any, bool]] = [
        (setting, getattr(stored, setting), getattr(asked, setting), False)
        for setting in ("max_size", "max_times_sampled")
    ]
    for role in ("sampler", "remover"):
        options = [getattr(info, f"{role}_options") for info in (stored, asked)]
        pairs.append((role, selector_from(options[0]), selector_from(options[1]), False))
    found = [Difference(name, setting, repr(a), repr(b), fixed) for setting, a, b, fixed in pairs if a != b]
    if _is_reservoir(stored) and stored.current_size == stored.max_size < asked.max_size:
        # What comes next would all find room, so that the stored items would stay with a smaller chance.
        found[0] = dataclasses.replace(found[0], is_fixed=True)
    bounds = [bounds_from(info.rate_limiter_info) for info in (stored, asked)]
    if bounds[0] != bounds[1]:
        words = [
            told or _bounds_text(number) for told, number in zip((stored_limiter, asked_limiter), bounds, strict=True)
        ]
        if words[0] == words[1]:
            words = [_bounds_text(number) for number in bounds]
        found.append(Difference(name, "rate_limiter", words[0], words[1]))
    found += _of_signatures(stored, asked)
    # Where there are no data they are not as anything.
    return found if stored.current_size else [dataclasses.replace(one, is_fixed=False) for one in found]


def _is_reservoir(info: Any) -> bool:
    about = packed_signature(info.signature, info.name)
    return about is not None and about["table"].get("initial") == "random"


def _of_signatures(stored: Any, asked: Any) -> list[Difference]:
    name = asked.name
    about = [one for info in (stored, asked) if (one := packed_signature(info.signature, name)) is not None]
    if len(about) < 2:
        if stored.signature == asked.signature:
            return []
        told = [_signature_text(info.signature) for info in (stored, asked)]
        if told[0] == told[1]:
            told = [str(info.signature) for info in (stored, asked)]
        return [Difference(name, "signature", told[0], told[1], is_fixed=True)]
    found = []
    if about[0]["fields"] != about[1]["fields"]:
        mine, other = _fields_text(about[0], about[1])
        found.append(Difference(name, "data_spec", mine, other, is_fixed=True))
    for setting in sorted({*about[0]["items"], *about[1]["items"]}):
        values = [one["items"].get(setting, "(none)") for one in about]
        if values[0] != values[1]:
            found.append(Difference(name, setting, repr(values[0]), repr(values[1]), is_fixed=True))
    for setting in ("initial", "fields", "agents"):
        values = [one["table"].get(setting) for one in about]
        if values[0] != values[1]:
            # Items with random priorities are a fair choice of all items ever inserted, others are none; and the mirror
            # that tells the greatest priority cannot be built from stored items.
            fixed = setting != "initial" or "random" in values or values[1] == "max"
            found.append(Difference(name, setting, repr(values[0]), repr(values[1]), fixed))
    return found


def _fields_text(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[str, str]:
    """The fields that differ, of either."""
    of = [{path: f"{dtype}{shape}" for path, shape, dtype in about["fields"]} for about in (stored, asked)]
    texts = []
    for mine, other in ((of[0], of[1]), (of[1], of[0])):
        texts.append(
            ", ".join(f"{path} {mine[path]}" for path in mine if mine[path] != other.get(path)) or "nothing else"
        )
    if texts[0] == texts[1]:
        return "its fields in another order", "this order"
    return texts[0], texts[1]


def _signature_text(signature: Any) -> str:
    if signature is None:
        return "none"
    specs = [f"{spec.name}: {spec.dtype.name}{spec.shape}" for spec in tf.nest.flatten(signature)]
    return f"{len(specs)} columns ({', '.join(specs)})"


def _bounds_text(bounds: LimiterBounds) -> str:
    if not bounds.is_bounded:
        return f"MinSize(min_size_to_sample={bounds.min_size_to_sample})"
    return (
        f"samples_per_insert={bounds.samples_per_insert:g}, min_size_to_sample={bounds.min_size_to_sample}, "
        f"kept in [{bounds.min_error:g}, {bounds.max_error:g}]"
    )
