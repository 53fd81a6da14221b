"""Tables in a file: one, or several, as YAML or JSON."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from .table_text import from_json, from_yaml, to_json, to_yaml
from .tables import TableConfig

_TABLES = "tables"
_SHARED = "x-"
_JSON = (".json",)
_YAML = (".yaml", ".yml")


def save_tables(path: str | os.PathLike[str], tables: Sequence[TableConfig]) -> None:
    """Writes tables to a file that `load_tables` reads: `.json`, `.yaml` or `.yml`.

    The file is complete or is not there: it is written beside its place first.

    Raises:
      TypeError: one of them is no `TableConfig`, or its `data_spec` cannot be written (`spec_text.py`).
      ValueError: there is none, or two have the same name.
      ValueError: the file's name ends otherwise.
      ImportError: YAML, and PyYAML is not installed.

    >>> import tempfile, tensorflow as tf
    >>> path = tempfile.mkdtemp() + "/tables.json"
    >>> save_tables(path, [TableConfig("replay", tf.TensorSpec([], tf.float32), 100)])
    >>> load_tables(path)[0].max_size
    100
    """
    for table in tables:
        if type(table) is not TableConfig:
            raise TypeError(f"save_tables writes TableConfigs, got {table!r}.")
    _check_names(tables)
    plain = {_TABLES: [table.to_dict() for table in tables]}
    path = pathlib.Path(path)
    text = to_json(plain) if _suffix(path) in _JSON else to_yaml(plain)
    beside = path.with_name(path.name + ".partial")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def load_tables(path: str | os.PathLike[str]) -> list[TableConfig]:
    """The tables that a `.json`, `.yaml` or `.yml` file tells: `tables:` and a list of them, or one alone.

    Raises:
      ValueError: the file's name ends otherwise, or its text cannot be read; the message begins with the path.
      TypeError, ValueError: a table is wrong, as its constructor says; the message begins with the path.
      ImportError: YAML, and PyYAML is not installed; or a namedtuple of TF-Agents, and that is not.
    """
    path = pathlib.Path(path)
    suffix = _suffix(path)
    text = path.read_text(encoding="utf-8")
    try:
        return _tables_of(from_json(text) if suffix in _JSON else from_yaml(text))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{path}: {error}") from error


def _tables_of(plain: Any) -> list[TableConfig]:
    if not isinstance(plain, Mapping):
        raise TypeError(f"there must be {_TABLES!r} with a list of tables, or the settings of one, got {plain!r}.")
    if _TABLES not in plain:
        return [TableConfig.from_dict(plain)]
    unknown = [key for key in plain if key != _TABLES and not str(key).startswith(_SHARED)]
    if unknown:
        raise ValueError(
            f"unknown {unknown} beside {_TABLES!r}; allowed are keys that begin with {_SHARED!r}, for what tables "
            "share by YAML's anchors."
        )
    listed = plain[_TABLES]
    if not isinstance(listed, list):
        raise TypeError(f"{_TABLES!r} must be a list of tables, got {listed!r}.")
    tables = [TableConfig.from_dict(table) for table in listed]
    _check_names(tables)
    return tables


def _check_names(tables: Sequence[TableConfig]) -> None:
    names = [table.name for table in tables]
    if not names:
        raise ValueError("there is no table.")
    if len(set(names)) != len(names):
        raise ValueError(f"two tables have the same name: {sorted(names)}.")


def _suffix(path: pathlib.Path) -> str:
    if path.suffix.lower() not in (*_JSON, *_YAML):
        raise ValueError(f"{path}: tables are read from and written to .json, .yaml and .yml.")
    return path.suffix.lower()
