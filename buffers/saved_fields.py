"""The fields of a frame as plain values, and how those of a save differ from a buffer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .fields import Field


def fields_to_plain(fields: Sequence[Field]) -> list[Any]:
    """Each as [path, shape, dtype].

    >>> fields_to_plain([Field("observation", (4,), tf.float32)])
    [['observation', [4], 'float32']]
    """
    return [[field.path, list(field.shape), field.dtype.name] for field in fields]


def fields_from_plain(plain: Any) -> tuple[Field, ...]:
    """Of `fields_to_plain`."""
    return tuple(Field(path, tuple(shape), tf.as_dtype(dtype)) for path, shape, dtype in plain)


def describe_differences(stored: Sequence[Field], here: Sequence[Field]) -> list[str]:
    """How the fields of a save differ from those of a buffer, a sentence each.

    >>> describe_differences([Field("a", (4,), tf.float32), Field("b", (), tf.bool)], [Field("a", (8,), tf.float32)])
    ["field 'a': stored [4] float32, here [8] float32", "field 'b' is in the save only: [] bool"]
    """
    before, now = ({field.path: field for field in fields} for fields in (stored, here))
    told = []
    for path, field in before.items():
        if path not in now:
            told.append(f"field {path!r} is in the save only: {_describe(field)}")
        elif field != now[path]:
            told.append(f"field {path!r}: stored {_describe(field)}, here {_describe(now[path])}")
    told += [f"field {path!r} is in this buffer only: {_describe(now[path])}" for path in now if path not in before]
    return told


def _describe(field: Field) -> str:
    return f"{list(field.shape)} {field.dtype.name}"
