"""The RLDS columns of one episode, from the rows in which files of arrays hold it. Pure.

Such files keep a row for each transition: the observation before it, the action, the reward
that followed, and whether it ended the episode. RLDS keeps a step for each observation, and
the flags lie on the step that was reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    observation: Nest,
    rows: Mapping[str, Nest],
    terminals: Array,
    ends: Array,
    *,
    num_rows: int,
    has_final: bool = True,
) -> dict[str, Nest]:
    """The steps of an episode of `N` rows. What the final step has no row for is filled with zeros.

    Lengths that do not fit are kept, so that the rules of loading find and name them.

    Args:
      observation: nest, leaves `[N + 1, ...]`; `[N, ...]` without `has_final`.
      rows: other fields, leaves `[N, ...]`.
      terminals: bool `[N]`, whether the transition of a row reached a terminal state.
      ends: bool `[N]`, whether it was the last of its episode.
      num_rows: `N`.
      has_final: False where the observation after the last row was never recorded: there are `N`
        steps then, and the last row's transition is lost.

    >>> columns = step_columns(np.array([5, 6, 7]), {"action": np.array([1, 2])}, terminals=np.array([False, True]),
    ...                        ends=np.array([False, True]), num_rows=2)
    >>> {field: column.tolist() for field, column in columns.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'observation': [5, 6, 7], 'action': [1, 2, 0], 'is_first': [True, False, False],
     'is_last': [False, False, True], 'is_terminal': [False, False, True]}
    """
    # Whatever its length: one that differs goes on differing.
    fitted = tf.nest.map_structure(extend, dict(rows)) if has_final else dict(rows)
    is_first = np.zeros([num_rows + has_final], bool)
    is_first[:1] = True
    return {
        OBSERVATION: observation,
        **fitted,
        IS_FIRST: is_first,
        IS_LAST: _on_reached_steps(ends, has_final),
        IS_TERMINAL: _on_reached_steps(terminals, has_final),
    }


def extend(rows: Array, final: Array | None = None) -> Array:
    """`[N + 1, ...]` from `[N, ...]`: with `final`, `[1, ...]`, at the end, or zeros (empty strings).

    >>> extend(np.array([[1, 2]])).tolist()
    [[1, 2], [0, 0]]
    """
    extended = np.empty([len(rows) + 1, *rows.shape[1:]], rows.dtype)
    extended[:-1] = rows
    filler = b"" if rows.dtype == object else 0
    extended[-1:] = filler if final is None else final
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


def why_not_loaded(array: Any) -> str | None:
    """Why an array (or an HDF5 dataset) `[R, ...]` cannot be a field of a step; None when it can: numbers and strings.

    >>> why_not_loaded(np.array([np.zeros(1), np.zeros(2)], object))
    'of dtype object'
    """
    return None if array.dtype.kind in _NUMBERS or _holds_strings(array) else f"of dtype {array.dtype}"


def step_spec_of(name: str, leaves: Mapping[tuple[str, ...], Any]) -> dict[str, Nest]:
    """The specs of a step, from arrays, or HDF5 datasets, `[R, ...]` by path.

    Raises:
      ValueError: one holds neither numbers nor strings.

    >>> step_spec_of("mine", {("observation",): np.zeros([5, 2], ">f4")})
    {'observation': TensorSpec(shape=(2,), dtype=tf.float32, name=None)}
    """
    for path, leaf in leaves.items():
        if why_not_loaded(leaf):
            raise ValueError(
                f"{name}: step field {field_path(path)!r} is {why_not_loaded(leaf)}; numbers and strings can be read."
            )
    return nest_of_paths({path: _row_spec(leaf) for path, leaf in leaves.items()})


def specs_of_columns(name: str, columns: Columns) -> dict[str, Nest]:
    """The specs of a step, from an episode's columns `[N + 1, ...]`.

    Raises:
      ValueError: one holds neither numbers nor strings.

    >>> specs_of_columns("mine", {"observation": (np.zeros([3, 2]), np.array([b"a", b"b", b"c"]))})["observation"][1]
    TensorSpec(shape=(), dtype=tf.string, name=None)
    """
    step_spec_of(name, dict(leaves_with_paths(columns, ())))
    return tf.nest.map_structure(_row_spec, dict(columns))


def read_rows(array: Any, start: int, stop: int) -> Array:
    """Rows `[start, stop)` of an array or HDF5 dataset: numbers in this machine's byte order, strings as bytes.

    >>> read_rows(np.array(["a", "b"]), 0, 2)
    array([b'a', b'b'], dtype=object)
    """
    rows = np.asarray(array[start:stop])
    return rows.astype(rows.dtype.newbyteorder("="), copy=False) if rows.dtype.kind in _NUMBERS else _as_bytes(rows)


def metadata_value(value: Any) -> Any:
    """An episode's own value as sources give it: a NumPy scalar or array; strings are bytes.

    >>> metadata_value("sac"), metadata_value(np.array([1, 2]))
    (b'sac', array([1, 2]))
    """
    array = np.asarray(value)
    return (array if array.dtype.kind in _NUMBERS else _as_bytes(array))[()]


def metadata_spec_of(metadata: Mapping[str, Nest]) -> dict[str, Nest]:
    """Specs of what `metadata_value` gave.

    >>> metadata_spec_of({"algorithm": b"sac"})
    {'algorithm': TensorSpec(shape=(), dtype=tf.string, name=None)}
    """

    def spec_of(value: Any) -> tf.TensorSpec:
        array = np.asarray(value)
        return tf.TensorSpec(array.shape, tf.string if array.dtype.kind in "SO" else array.dtype)

    return tf.nest.map_structure(spec_of, dict(metadata))


def common_metadata(own: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Nest]], tuple[str, ...]]:
    """Episodes' own fields as sources give them: nested dicts of those that each has, of one kind and shape in all.

    Returns:
      The fields of each episode; and a note on those that are left out, if any.

    >>> common_metadata([{"seed": 3, "options/x": 1.5}, {"seed": 4, "options/x": 0.5, "more": 1}])[0]
    [{'options': {'x': 1.5}, 'seed': 3}, {'options': {'x': 0.5}, 'seed': 4}]
    """
    values = [{path: metadata_value(value) for path, value in paths_of(of_one) if value is not None} for of_one in own]
    first, *others = values
    same = {path for path in first if all(path in of_one and _alike(first[path], of_one[path]) for of_one in others)}
    left_out = sorted({field_path(path) for of_one in values for path in of_one if path not in same})
    notes = (
        (f"episode metadata that episodes do not have alike is left out: {', '.join(left_out)}",) if left_out else ()
    )
    return [nest_of_paths({path: of_one[path] for path in sorted(same)}) for of_one in values], notes


def _alike(left: Any, right: Any) -> bool:
    arrays = np.asarray(left), np.asarray(right)
    shapes, kinds = {array.shape for array in arrays}, {array.dtype.kind for array in arrays}
    return len(shapes) == 1 and (len({array.dtype for array in arrays}) == 1 or kinds <= set("SUO"))


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


def rows_equal(left: Array, right: Array) -> Array:
    """Bool `[R]`: which rows of two arrays `[R, ...]` are equal exactly; NaN equals NaN.

    >>> rows_equal(np.array([[1, np.nan], [2, 3]]), np.array([[1, np.nan], [2, 4]])).tolist()
    [True, False]
    """
    equal = left == right
    if left.dtype.kind in "fc":
        equal |= (left != left) & (right != right)
    return equal.reshape(len(left), -1).all(axis=1)


def _on_reached_steps(of_rows: Array, has_final: bool) -> Array:
    """Bool, by step: that of row `i` on step `i + 1`; without a final step the last row's on the last one there is."""
    flags = np.concatenate([[False], np.asarray(of_rows).reshape(-1) != 0])
    if not has_final and len(flags) > 1:
        flags[-2] |= flags[-1]
        flags = flags[:-1]
    return flags


def _row_spec(array: Any) -> tf.TensorSpec:
    is_number = array.dtype.kind in _NUMBERS
    return tf.TensorSpec(array.shape[1:], array.dtype.newbyteorder("=") if is_number else tf.string)


def _holds_strings(array: Any) -> bool:
    if array.dtype.kind in "SU":
        return True
    if (array.dtype.metadata or {}).get("vlen") in (str, bytes):  # an HDF5 dataset
        return True
    return isinstance(array, np.ndarray) and array.dtype == object and isinstance(next(array.flat, None), str | bytes)


def _as_bytes(strings: Array) -> Array:
    """An array of objects that are bytes; None, which Arrow has behind the last action, is empty."""
    encoded = np.empty([strings.size], object)
    encoded[:] = [
        text if isinstance(text, bytes) else b"" if text is None else str(text).encode()
        for text in strings.reshape(-1).tolist()
    ]
    return encoded.reshape(strings.shape)
