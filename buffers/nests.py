"""The structure of nests: their leaves with paths, and functions that take them apart and build them.

The order of leaves is that of `tf.nest`: dicts by sorted key, everything else as it stands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array; the docstring where it is used gives its shape and dtype."""

Nest = Any
"""A nest of leaves; the docstring where it is used gives the leaves' shapes."""


class StructureError(Exception):
    """Items and spec differ in structure; turned into a ValueError that says how."""


def field_path(path: tuple[str, ...]) -> str:
    """How a leaf's place in a nest is written in messages: `'observation/image'`."""
    return "/".join(path)


def _children(nest: Nest) -> list[tuple[str, Any]] | None:
    """Name and value of each child in `tf.nest` order, or None for a leaf."""
    if isinstance(nest, Mapping):
        return [(str(key), nest[key]) for key in sorted(nest)]
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return list(zip(nest._fields, nest, strict=True))
    if isinstance(nest, list | tuple):
        return [(str(index), value) for index, value in enumerate(nest)]
    return None


def leaves_with_paths(nest: Nest, path: tuple[str, ...], until: Nest | None = None) -> Any:
    """Yields (path, leaf); stops early where `until` has a leaf."""
    children = _children(nest)
    expected = _children(until) if until is not None else None
    if children is None or (until is not None and expected is None):
        yield path, nest
        return
    by_name = dict(expected or [])
    for name, child in children:
        if until is not None and name not in by_name:
            yield (*path, name), child
        else:
            yield from leaves_with_paths(child, (*path, name), by_name.get(name))


def lists_to_tuples(nest: Nest) -> Nest:
    """The same nest with a tuple for each list."""
    if isinstance(nest, Mapping):
        return _rebuild_mapping(nest, [(key, lists_to_tuples(value)) for key, value in nest.items()])
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return nest.__class__(*(lists_to_tuples(value) for value in nest))
    if isinstance(nest, list | tuple):
        return tuple(lists_to_tuples(value) for value in nest)
    return nest


def compile_flatten(spec: Nest) -> Callable[[Nest, list[Any]], None]:
    """A function that appends the leaves of a nest of this structure to a list.

    The walk over the spec is made once, here; `add_batch` calls only what is left of it.
    """
    children = _children(spec)
    if children is None:
        return lambda items, leaves: leaves.append(items)
    if isinstance(spec, Mapping):
        return _compile_mapping(spec)
    parts = [compile_flatten(child) for _, child in children]
    names = getattr(spec, "_fields", None)

    def flatten_sequence(items: Nest, leaves: list[Any]) -> None:
        if not isinstance(items, list | tuple) or len(items) != len(parts) or getattr(items, "_fields", None) != names:
            raise StructureError
        for part, item in zip(parts, items, strict=True):
            part(item, leaves)

    return flatten_sequence


def _compile_mapping(spec: Mapping[Any, Any]) -> Callable[[Nest, list[Any]], None]:
    keys = sorted(spec)
    parts = [None if _children(spec[key]) is None else compile_flatten(spec[key]) for key in keys]
    # One call for all values of a flat dict, which is what most specs are.
    values_of: Callable[[Any], Sequence[Any]]
    if len(keys) > 1:
        values_of = operator.itemgetter(*keys)
    else:
        values_of = lambda items: [items[key] for key in keys]  # noqa: E731 (itemgetter of one key gives no tuple)
    all_leaves = not any(parts)

    def flatten_mapping(items: Nest, leaves: list[Any]) -> None:
        if not isinstance(items, Mapping) or len(items) != len(keys):
            raise StructureError
        try:
            values = values_of(items)
        except KeyError:
            raise StructureError from None
        if all_leaves:
            leaves.extend(values)
            return
        for part, value in zip(parts, values, strict=True):
            if part is None:
                leaves.append(value)
            else:
                part(value, leaves)

    return flatten_mapping


def compile_pack(spec: Nest) -> Callable[[Iterator[Any]], Nest]:
    """A function that builds a nest of this structure from an iterator over its leaves.

    A container that a `tf.Module` holds is wrapped: its `__class__` is what was wrapped, its type is not.
    """
    children = _children(spec)
    if children is None:
        return next
    parts = [compile_pack(child) for _, child in children]
    if isinstance(spec, Mapping):
        keys = sorted(spec)
        if all(part is next for part in parts) and spec.__class__ is dict:
            return lambda leaves: dict(zip(keys, leaves))  # noqa: B905 (the iterator may go on after this dict)
        return lambda leaves: _rebuild_mapping(
            spec, [(key, part(leaves)) for key, part in zip(keys, parts, strict=True)]
        )
    if hasattr(spec, "_fields"):
        return lambda leaves: spec.__class__(*[part(leaves) for part in parts])
    make_sequence = spec.__class__
    return lambda leaves: make_sequence([part(leaves) for part in parts])


def _rebuild_mapping(like: Mapping[Any, Any], entries: list[tuple[Any, Any]]) -> Mapping[Any, Any]:
    make: Callable[[list[tuple[Any, Any]]], Mapping[Any, Any]] = like.__class__
    return make(entries)
