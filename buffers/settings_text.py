"""A buffer's settings as plain values, to be saved beside its contents and compared with those of another buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from .item_selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform

# Stands for what has no plain value: whether there is one is all that can be compared.
FUNCTION = "<function>"

_SELECTORS = (Uniform, Prioritized, Fifo, Lifo, MinHeap, MaxHeap)


def settings_to_plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments as plain values: numbers, text and None as they are, functions and variables as such.

    >>> settings_to_plain({"alpha": np.float32(0.5), "beta": lambda step: 0.4, "seed": None})
    {'alpha': 0.5, 'beta': '<function>', 'seed': None}
    """
    return {name: _to_plain(value) for name, value in settings.items()}


def _to_plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"kind": type(value).__name__, **settings_to_plain(dataclasses.asdict(value))}
    if isinstance(value, Mapping):
        return {str(key): _to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(each) for each in value]
    if callable(value) or isinstance(value, tf.Variable):
        return FUNCTION
    return f"<{type(value).__name__}>"


def differences(stored: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By name, settings that differ: (stored, here); one that only one of them has is None in the other.

    >>> differences({"max_length": 100, "seed": 1}, {"max_length": 50, "seed": 1})
    {'max_length': (100, 50)}
    """
    names = [*stored, *(name for name in here if name not in stored)]
    pairs = {name: (stored.get(name), here.get(name)) for name in names}
    return {name: both for name, both in pairs.items() if both[0] != both[1] and not _is_number_or_schedule(*both)}


def _is_number_or_schedule(stored: Any, here: Any) -> bool:
    """Whether one is a number and the other what gives numbers: a schedule says nothing about a moment's value."""
    numbers = [value for value in (stored, here) if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(numbers) == 1 and FUNCTION in (stored, here)


def settings_from_plain(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Of `settings_to_plain`; those that have no plain value are left out.

    >>> settings_from_plain({"max_length": 100, "beta": "<function>", "sampler": {"kind": "MaxHeap"}})
    {'max_length': 100, 'sampler': MaxHeap()}
    """
    return {name: _from_plain(value) for name, value in plain.items() if not is_opaque(value)}


def _from_plain(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    arguments = {name: each for name, each in value.items() if name != "kind"}
    return next((kind(**arguments) for kind in _SELECTORS if kind.__name__ == value.get("kind")), value)


def is_opaque(value: Any) -> bool:
    """Whether a plain value stands for one that is not plain: a function, an object."""
    return isinstance(value, str) and value.startswith("<") and value.endswith(">")
