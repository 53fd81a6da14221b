"""Checks of priorities, the same on every backend. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from .nests import Array


def check_priorities(priorities: Any, td_errors: Any, shape: tuple[int, ...]) -> Array:
    """Raw priorities, or absolute TD errors, as float64 of this shape.

    Raises:
      ValueError: not exactly one of the two is given.
      ValueError: the shape differs.
      ValueError: a value is not finite, or a priority is negative; the message names the position.

    >>> check_priorities([1, 2.5], None, (2,))
    array([1. , 2.5])
    >>> check_priorities([1.0, -1.0], None, (2,))
    Traceback (most recent call last):
    ...
    ValueError: priorities[1] is -1.0: a priority must be finite and at least 0.
    """
    if (priorities is None) == (td_errors is None):
        raise ValueError("give priorities or td_errors, exactly one of them.")
    name = "td_errors" if priorities is None else "priorities"
    values = np.asarray(td_errors if priorities is None else priorities, np.float64)
    if values.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape {list(shape)}, got {list(values.shape)}.")
    wrong = ~np.isfinite(values) | ((values < 0) & (name == "priorities"))
    if wrong.any():
        position = tuple(int(index[0]) for index in np.nonzero(wrong))
        rule = "a priority must be finite and at least 0" if name == "priorities" else "a TD error must be finite"
        raise ValueError(f"{name}[{', '.join(map(str, position))}] is {values[position]}: {rule}.")
    return np.abs(values)


def check_keys(keys: Any) -> Array:
    """Keys or ids as int64, of whatever shape.

    Raises:
      ValueError: they are no whole numbers.

    >>> check_keys([3, 4])
    array([3, 4])
    """
    values = np.asarray(keys)
    if values.size and values.dtype.kind not in "iu":
        raise ValueError(f"keys and ids are int64 numbers as `BufferInfo` has them, got {values.dtype}.")
    return values.astype(np.int64)
