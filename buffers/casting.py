"""Conversions into a field's dtype that refuse every value that would not survive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from .fields import BOOL, COMPLEX, FLOAT, INTEGER, Field
from .nests import Array

# What a plain Python number (weakly typed) may become.
_WEAK_KINDS: dict[type, frozenset[str]] = {
    bool: frozenset({BOOL}),
    int: frozenset({INTEGER, FLOAT, COMPLEX}),
    float: frozenset({FLOAT, COMPLEX}),
    complex: frozenset({COMPLEX}),
}


def from_plain_numbers(value: Any, field: Field, outer: tuple[int | None, ...]) -> Array:
    """Python numbers, alone or in lists, in the field's dtype.

    NumPy scalars or arrays in a list are as strict as they are alone: they keep their dtype.

    Raises:
      ValueError: something else than numbers, a ragged list, or a value that does not survive.
    """
    numbers = list(_scalars(value))
    is_plain = [_is_plain(number, field, outer) for number in numbers]
    is_exact = all(is_plain) and field.kind == INTEGER
    if is_exact:
        bounds = np.iinfo(field.numpy_dtype)
        for number in numbers:
            if not bounds.min <= number <= bounds.max:
                raise ValueError(f"field {field.path!r}: {number} does not survive in {field.dtype.name}.")
    try:
        # Straight into the field's dtype: NumPy would make floats of a list like [2**63, 1].
        array = np.asarray(value, field.numpy_dtype if is_exact else None)
    except (ValueError, OverflowError):
        raise ValueError(f"field {field.path!r}: expected {field.expected(outer)}, got a ragged list.") from None
    if is_exact or not all(is_plain):
        return array
    result = cast_values(array, field) if array.size else array.astype(field.numpy_dtype)
    for number, kept in zip(numbers, result.flat, strict=True):
        if type(number) is int and kept != number:  # a float may be rounded, an int may not
            raise ValueError(f"field {field.path!r}: {number} does not survive in {field.dtype.name}.")
    return result


def cast_values(array: Array, field: Field) -> Array:
    """`array` in the field's dtype.

    Floats may be rounded, as every float64 to float32 is; they may not overflow.

    Raises:
      ValueError: a value would change; the message names it.
    """
    with np.errstate(all="ignore"):
        result = array.astype(field.numpy_dtype)
        if field.kind in (FLOAT, COMPLEX):
            wide = np.complex128 if field.kind == COMPLEX else np.float64  # bfloat16 itself has no isfinite
            lost = np.isfinite(array.astype(wide)) & ~np.isfinite(result.astype(wide))
        else:
            # Compared both ways, so that a wrapped sign (2**63 in int64) is seen too.
            lost = (result.astype(array.dtype) != array) | ((result < 0) != (array < 0))
    if lost.any():
        raise ValueError(f"field {field.path!r}: {array[lost].flat[0]} does not survive in {field.dtype.name}.")
    return result


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _scalars(entry)
    else:
        yield value


def _is_plain(number: Any, field: Field, outer: tuple[int | None, ...]) -> bool:
    if isinstance(number, np.ndarray | np.generic | tf.Tensor):
        return False
    allowed = _WEAK_KINDS.get(type(number))
    if allowed is None:
        raise ValueError(f"field {field.path!r}: expected {field.expected(outer)}, got {type(number).__name__}.")
    if field.kind not in allowed:
        raise ValueError(f"field {field.path!r}: {number!r} does not survive in {field.dtype.name}.")
    return True
