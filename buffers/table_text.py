"""A `TableConfig` as plain values, JSON and YAML, and back; several in one file.

Every setting is written, so that a file means the same whatever the defaults of a later version are; a file that
was written by hand may leave out what has a default. A selector or limiter without settings is its name, one with
settings a mapping: `{kind: Prioritized, priority_exponent: 0.6}`. How a `data_spec` is written: `spec_text.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .spec_text import spec_from_plain, spec_to_plain
from .table_checks import SLOTS

if TYPE_CHECKING:
    from .tables import TableConfig

_KIND = "kind"


def config_to_plain(config: TableConfig) -> dict[str, Any]:
    """What `TableConfig.to_dict` gives: every setting, by its name, as values that JSON and YAML can hold.

    Raises:
      TypeError, ValueError: `data_spec` cannot be written (`spec_text.py`).
    """
    plain: dict[str, Any] = {}
    for name in _names_of(type(config)):
        value = getattr(config, name)
        if name == "data_spec":
            plain[name] = spec_to_plain(value)
        elif name in SLOTS:
            plain[name] = _choice_to_plain(value)
        elif name == "agents":
            if value is not None:  # only tables of moments have them
                plain[name] = dict(value)
        else:
            plain[name] = _number_or_text(value)
    return plain


def arguments_from_plain(plain: Any, kind: type[TableConfig]) -> dict[str, Any]:
    """The arguments of the `TableConfig` that a mapping tells; the constructor checks their values.

    Raises:
      TypeError: it is no mapping, or a part of it is of the wrong type.
      ValueError: it has a key that is no setting, or lacks one that has no default; all are named.
    """
    if not isinstance(plain, Mapping):
        raise TypeError(f"a table must be a mapping of settings, got {plain!r}.")
    where = f"table {plain['name']!r}" if "name" in plain else "a table"
    allowed = _names_of(kind)
    unknown = [key for key in plain if key not in allowed]
    if unknown:
        raise ValueError(f"{where} has unknown settings {unknown}; allowed are {', '.join(allowed)}.")
    required = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in required if name not in plain]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}.")
    arguments: dict[str, Any] = {}
    for name, value in plain.items():
        if name == "data_spec":
            arguments[name] = spec_from_plain(value)
        elif name in SLOTS:
            arguments[name] = _choice_from_plain(value, name, where)
        else:
            arguments[name] = value
    return arguments


def to_json(plain: Any) -> str:
    """Plain values as JSON, indented."""
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def from_json(text: str) -> Any:
    """Plain values from JSON.

    Raises:
      ValueError: it is no JSON, or names a key twice in one place.
    """
    try:
        return json.loads(text, object_pairs_hook=_once_each)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is no JSON: {error}.") from error


def to_yaml(plain: Any) -> str:
    """Plain values as YAML, in their order.

    Raises:
      ImportError: PyYAML is not installed.
    """
    text: str = load_yaml().safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return text


def from_yaml(text: str) -> Any:
    """Plain values from YAML: nothing but numbers, text, lists and mappings is read from it.

    Raises:
      ImportError: PyYAML is not installed.
      ValueError: it is no YAML, asks for objects, or names a key twice in one place.
    """
    yaml = load_yaml()
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            _refuse_repeated_keys(root, set())
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"this is no YAML that can be read: {error}.") from error


def load_yaml() -> Any:
    """The `yaml` module, loaded when it is used.

    Raises:
      ImportError: it is not installed.
    """
    try:
        return importlib.import_module("yaml")
    except ImportError as error:
        raise ImportError(
            "YAML needs PyYAML, which is not installed: pip install 'replayfeed[yaml]', or use JSON."
        ) from error


def _names_of(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _choice_to_plain(choice: Any) -> Any:
    settings = {name: _number_or_text(getattr(choice, name)) for name in _names_of(type(choice))}
    return {_KIND: type(choice).__name__, **settings} if settings else type(choice).__name__


def _choice_from_plain(plain: Any, slot: str, where: str) -> Any:
    """The selector or limiter that a name, or a mapping with its `kind`, tells."""
    kinds = {kind.__name__: kind for kind in SLOTS[slot]}
    settings = dict(plain) if isinstance(plain, Mapping) else {_KIND: plain}
    name = settings.pop(_KIND, None)
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(
            f"{where}: {slot} must be one of {', '.join(kinds)}, or a mapping with such a {_KIND!r} and its settings, "
            f"got {plain!r}."
        )
    fields = dataclasses.fields(kinds[name])
    allowed = [field.name for field in fields]
    unknown = [key for key in settings if key not in allowed]
    missing = [field.name for field in fields if field.default is dataclasses.MISSING and field.name not in settings]
    if unknown or missing:
        raise ValueError(
            f"{where}: {slot} {name} has the settings {', '.join(allowed) or '(none)'}; unknown {unknown}, "
            f"missing {missing}."
        )
    try:
        return kinds[name](**settings)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: {slot}: {error}") from error


def _number_or_text(value: Any) -> Any:
    """None, bool, int, float, str as they are; counts and numbers of other types as Python's own; tuples as lists."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, tuple):
        return [_number_or_text(part) for part in value]
    return int(value) if hasattr(value, "__index__") else float(value)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    _refuse_repeats(keys)
    return dict(pairs)


def _refuse_repeated_keys(node: Any, seen: set[int]) -> None:
    """Refuses a key that stands twice in one mapping, of which the loader would take the last without a word."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node.value, str):
        return
    if node.id == "mapping":
        _refuse_repeats([key.value for key, _ in node.value if isinstance(key.value, str)])
    for child in node.value:
        for part in child if isinstance(child, tuple) else (child,):
            _refuse_repeated_keys(part, seen)


def _refuse_repeats(keys: list[str]) -> None:
    repeated = sorted({key for key in keys if keys.count(key) > 1})
    if repeated:
        raise ValueError(f"the same key stands twice in one place: {', '.join(map(repr, repeated))}.")
