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


def field_names(fields: Sequence[Field]) -> list[str]:
    """A name for each field that no other has: its path, numbered where paths are equal, as of `a: {b}` and `a/b`.

    >>> field_names([Field("a/b", (), tf.bool), Field("a/b", (), tf.int32)])
    ['a/b', 'a/b#1']
    """
    names: list[str] = []
    for field in fields:
        name, number = field.path, 0
        while name in names:
            number += 1
            name = f"{field.path}#{number}"
        names.append(name)
    return names


def describe_differences(stored: Sequence[Field], here: Sequence[Field]) -> list[str]:
    """How the fields of a save differ from those of a buffer, a sentence each.

    >>> describe_differences([Field("a", (4,), tf.float32), Field("b", (), tf.bool)], [Field("a", (8,), tf.float32)])
    ["field 'a': stored [4] float32, here [8] float32", "field 'b' is in the save only: [] bool"]
    """
    before, now = (dict(zip(field_names(fields), fields, strict=True)) for fields in (stored, here))
    told = []
    for path, field in before.items():
        if path not in now:
            told.append(f"field {path!r} is in the save only: {_describe(field)}")
        elif (field.shape, field.dtype) != (now[path].shape, now[path].dtype):
            told.append(f"field {path!r}: stored {_describe(field)}, here {_describe(now[path])}")
    told += [f"field {path!r} is in this buffer only: {_describe(now[path])}" for path in now if path not in before]
    return told


def _describe(field: Field) -> str:
    return f"{list(field.shape)} {field.dtype.name}"
