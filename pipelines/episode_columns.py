"""The RLDS columns of one episode, from the rows in which files of arrays hold it. Pure.

Such files keep a row for each transition: the observation before it, the action, the reward
that followed, and whether it ended the episode. RLDS keeps a step for each observation, and
the flags lie on the step that was reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, field_path, leaves_with_paths

from .rlds_steps import IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, Columns

FLAG_SPECS: Mapping[str, tf.TensorSpec] = {
    flag: tf.TensorSpec([], tf.bool) for flag in (IS_FIRST, IS_LAST, IS_TERMINAL)
}
"""Specs of the flags that `step_columns` makes."""

_NUMBERS = "biufc"


def step_columns(
    observation: Nest, rows: Mapping[str, Nest], terminals: Array, ends: Array, *, num_steps: int
) -> dict[str, Nest]:
    """The steps of an episode of `N` rows. What the final step has no row for is filled with zeros.

    Lengths that do not fit are kept, so that the rules of loading find and name them.

    Args:
      observation: nest, leaves `[num_steps, ...]`.
      rows: other fields, leaves `[N, ...]`; one that is `num_steps` long already stays.
      terminals: bool `[N]`, whether the transition of a row reached a terminal state.
      ends: bool `[N]`, whether it was the last of its episode.
      num_steps: `N + 1`; or `N` where the observation after the last row was never recorded:
        that row's transition is lost.

    >>> columns = step_columns(np.array([5, 6, 7]), {"action": np.array([1, 2])}, terminals=np.array([False, True]),
    ...                        ends=np.array([False, True]), num_steps=3)
    >>> {field: column.tolist() for field, column in columns.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'observation': [5, 6, 7], 'action': [1, 2, 0], 'is_first': [True, False, False],
     'is_last': [False, False, True], 'is_terminal': [False, False, True]}
    """
    fitted = tf.nest.map_structure(lambda leaf: extend(leaf) if len(leaf) == num_steps - 1 else leaf, dict(rows))
    is_first = np.zeros([num_steps], bool)
    is_first[:1] = True
    return {
        OBSERVATION: observation,
        **fitted,
        IS_FIRST: is_first,
        IS_LAST: _on_reached_steps(ends, num_steps),
        IS_TERMINAL: _on_reached_steps(terminals, num_steps),
    }


def extend(rows: Array, final: Array | None = None) -> Array:
    """`[N + 1, ...]` from `[N, ...]`: with `final`, `[1, ...]`, at the end, or zeros.

    >>> extend(np.array([[1, 2]])).tolist()
    [[1, 2], [0, 0]]
    """
    extended = np.empty([len(rows) + 1, *rows.shape[1:]], rows.dtype)
    extended[:-1] = rows
    extended[-1:] = 0 if final is None else final
    return extended


def nest_of_paths(leaves: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Nested dicts from leaves by path.

    >>> nest_of_paths({("infos", "qpos"): 1, ("infos", "qvel"): 2, ("action",): 3})
    {'infos': {'qpos': 1, 'qvel': 2}, 'action': 3}
    """
    nest: dict[str, Any] = {}
    for path, leaf in leaves.items():
        place = nest
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = leaf
    return nest


def paths_of(mapping: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each array of a mapping (a dict, an NPZ file, an HDF5 group) with its path; `'a/b'` is `b` in `a`.

    >>> list(paths_of({"infos/qpos": 1, "infos": {"qvel": 2}}))
    [(('infos', 'qpos'), 1), (('infos', 'qvel'), 2)]
    """
    for key in mapping:
        value = mapping[key]
        place = (*path, *(part for part in str(key).split("/") if part))
        if isinstance(value, Mapping):
            yield from paths_of(value, place)
        else:
            yield place, value


def why_not_numbers(array: Any) -> str | None:
    """Why an array (or an HDF5 dataset) `[R, ...]` cannot be a field of numbers; None when it can.

    >>> why_not_numbers(np.array(["a", "b"]))
    'a string'
    """
    kind = array.dtype.kind
    if kind not in _NUMBERS:
        return "a string" if kind in "SU" else f"of dtype {array.dtype}"
    return "without a number in it" if 0 in array.shape[1:] else None


def row_spec(array: Any) -> tf.TensorSpec:
    """The spec of one row of an array, or HDF5 dataset, `[R, ...]`.

    >>> row_spec(np.zeros([5, 2], ">f4"))
    TensorSpec(shape=(2,), dtype=tf.float32, name=None)
    """
    return tf.TensorSpec(array.shape[1:], array.dtype.newbyteorder("="))


def read_rows(array: Any, start: int, stop: int) -> Array:
    """Rows `[start, stop)` of an array or HDF5 dataset, in this machine's byte order."""
    rows = np.asarray(array[start:stop])
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def metadata_value(value: Any) -> Any:
    """An episode's own value as sources give it: a NumPy scalar or array; strings are bytes.

    >>> metadata_value("sac"), metadata_value(np.array([1, 2]))
    (b'sac', array([1, 2]))
    """
    array = np.asarray(value)
    if array.dtype.kind in "SUO":
        encoded = [text.encode() if isinstance(text, str) else bytes(text) for text in array.reshape(-1).tolist()]
        objects = np.empty([len(encoded)], object)
        objects[:] = encoded
        array = objects.reshape(array.shape)
    return array[()]


def metadata_spec_of(metadata: Mapping[str, Nest]) -> dict[str, Nest]:
    """Specs of what `metadata_value` gave.

    >>> metadata_spec_of({"algorithm": b"sac"})
    {'algorithm': TensorSpec(shape=(), dtype=tf.string, name=None)}
    """

    def spec_of(value: Any) -> tf.TensorSpec:
        array = np.asarray(value)
        return tf.TensorSpec(array.shape, tf.string if array.dtype.kind in "SO" else array.dtype)

    return tf.nest.map_structure(spec_of, dict(metadata))


def check_columns(where: str, columns: Columns, step_spec: Mapping[str, Nest]) -> None:
    """Refuses an episode whose fields are not those of the first one.

    Args:
      where: source and episode, for messages.
      columns: arrays `[N + 1, ...]`.
      step_spec: of one step.

    Raises:
      ValueError: a field is missing, or has another dtype or shape.

    >>> check_columns("mine, episode 3", {"action": np.zeros([4, 2])}, {"action": tf.TensorSpec([3], tf.float64)})
    Traceback (most recent call last):
    ...
    ValueError: mine, episode 3: field 'action': the episodes before hold float64 (3,) a step, this one float64 (2,).
    """
    found = {field_path(path): leaf for path, leaf in leaves_with_paths(columns, ())}
    expected = {field_path(path): spec for path, spec in leaves_with_paths(step_spec, ())}
    if set(found) != set(expected):
        missing, more = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
        raise ValueError(
            f"{where}: its fields are not those of the episodes before: without {missing}, with {more} beside them. "
            "Load the files that agree."
        )
    for path, spec in expected.items():
        leaf = found[path]
        if tf.as_dtype(leaf.dtype) != spec.dtype or leaf.shape[1:] != tuple(spec.shape):
            raise ValueError(
                f"{where}: field {path!r}: the episodes before hold {spec.dtype.name} {tuple(spec.shape)} a step, "
                f"this one {leaf.dtype.name} {leaf.shape[1:]}."
            )


def _on_reached_steps(of_rows: Array, num_steps: int) -> Array:
    """Bool `[num_steps]`: what ended row `i` lies on step `i + 1`, or on the last one where that was not recorded."""
    flags = np.concatenate([[False], np.asarray(of_rows, bool).reshape(-1)])
    if len(flags) == num_steps + 1:
        flags[-2] |= flags[-1]
        flags = flags[:-1]
    return flags
