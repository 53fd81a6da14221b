"""Which fields of a `data_spec` a table holds: the nest that is left of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .nests import Nest, field_path, leaves_with_paths


def check_field_names(value: Any) -> tuple[str, ...] | None:
    """`TableConfig.fields` as a tuple, or None.

    Raises:
      TypeError: it is neither None nor a sequence of str.
      ValueError: it is empty, or names a field twice.

    >>> check_field_names(["action", "observation/image"])
    ('action', 'observation/image')
    """
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"TableConfig.fields must be None or a tuple of paths as ('observation',), got {value!r}.")
    if not value:
        raise ValueError("TableConfig.fields is empty: a table must hold a field; None holds all.")
    if len(set(value)) != len(value):
        raise ValueError(f"TableConfig.fields names a field twice: {tuple(value)!r}.")
    return tuple(value)


def select_fields(data_spec: Nest, fields: Sequence[str] | None) -> Nest:
    """The nest of the named fields: what a frame of such a table looks like, and what its readers give as `data_spec`.

    A path names a leaf, or everything below it. Of dicts the other keys are left out; in tuples and namedtuples,
    which keep their length, `()` stands for what is not held.

    Args:
      data_spec: any nest; of specs, or of the arrays of a frame.
      fields: paths as messages write them, `'observation/image'`; None: all.

    Raises:
      ValueError: there is no such field.

    >>> select_fields({"obs": {"image": 1, "speed": 2}, "action": 3, "reward": 4}, ("obs/image", "reward"))
    {'obs': {'image': 1}, 'reward': 4}
    """
    if fields is None:
        return data_spec
    paths = [field_path(path) for path, _ in leaves_with_paths(data_spec, ())]
    unknown = [name for name in fields if not any(_is_in(path, name) for path in paths)]
    if unknown:
        raise ValueError(
            f"TableConfig.fields names {', '.join(map(repr, unknown))}, which data_spec does not have; its fields are "
            f"{', '.join(map(repr, paths))}."
        )
    return _selected(data_spec, (), tuple(fields))


def _selected(nest: Nest, path: tuple[str, ...], fields: tuple[str, ...]) -> Nest:
    here = field_path(path)
    if path and any(_is_in(here, name) for name in fields):
        return nest
    if not any(_is_in(name, here) for name in fields) and path:
        return ()
    if isinstance(nest, Mapping):
        kept = {key: _selected(value, (*path, str(key)), fields) for key, value in nest.items()}
        return {key: value for key, value in kept.items() if not (isinstance(value, tuple) and not value)}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return nest.__class__(
            *(_selected(value, (*path, name), fields) for name, value in zip(nest._fields, nest, strict=True))
        )
    return tuple(_selected(value, (*path, str(index)), fields) for index, value in enumerate(nest))


def _is_in(path: str, name: str) -> bool:
    """Whether a path is the one named, or below it."""
    return path == name or path.startswith(f"{name}/")
