"""From the frames that a buffer stores back to the steps of RLDS: the inverse of `layouts.py`. Pure.

| layout | told by | `T` frames are | terminal |
| --- | --- | --- | --- |
| `'trajectory'` | `step_type`, `observation`, `discount` | `T` steps | a LAST frame after a discount of 0 |
| `'transition'` | `observation`, `next_observation`, `is_terminal` | `T + 1` steps | `is_terminal` |
| `'step'` | `observation`, `is_last`, `is_terminal` | `T` steps | `is_terminal` |

Further fields are step metadata; so is a Trajectory's `policy_info`, a dict by its keys, anything
else as `'policy_info'`.

An episode is *partial* where its beginning is not known (`is_first` stays False in its first
step) or its end is not (`is_last` stays False in its last step). `load_rlds` takes a partial
episode as one that was truncated: the nesting tells where it begins and ends, so that it sets both
flags and counts that as repaired. The action and reward of its last step, which may be real, have
no successor, and are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, leaves_with_paths

from .layouts import IS_TRUNCATED, NEXT_OBSERVATION
from .rlds_steps import ACTION, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD

ToSteps = Callable[[Nest], Mapping[str, Nest]]
"""Frames `[T, ...]` of one episode to step columns `[N + 1, ...]`: `observation`, `is_terminal`, and whatever else."""

_STEP_TYPE, _NEXT_STEP_TYPE, _POLICY_INFO = "step_type", "next_step_type", "policy_info"
_FIRST_TYPE, _LAST_TYPE = 0, 2

_FLAG_SPEC = tf.TensorSpec([], tf.bool)


class FoundSteps(NamedTuple):
    """An episode, or what there is of it.

    Attributes:
      columns: RLDS's steps, arrays `[N + 1, ...]`, the three flags among them.
      partial: its beginning or its end is not known.
      first_frame: the index of the frame that its first step is from.
    """

    columns: dict[str, Nest]
    partial: bool
    first_frame: int


class FramesToSteps:
    """Makes steps of frames that match a `data_spec`.

    Discounts and rewards come back as they are stored. What RLDS leaves without a meaning, the
    last step's action and reward, are zeros, and its discount is 0 in a terminal step, else 1;
    so are the step metadata that a transition does not have of its last step.

    A Trajectory does not say whether its episode was terminal: it was where its last transition,
    the one into the LAST frame, has the discount 0. A discount of 0 elsewhere ends nothing and
    stays what it is. Where an environment's discounts are 0 at ends that are none (all of them, in
    a bandit), give `to_steps`. TF-Agents' own converter of RLDS writes that 0 one frame late,
    where it means nothing: such episodes come back as truncated.

    Transitions whose `next_observation` is not, bit by bit, the next frame's `observation` are of
    different episodes, whatever the buffer says.

    Args:
      data_spec: the nest of `tf.TensorSpec` of one frame.
      to_steps: frames `[T, ...]` of one episode to step columns, for a `data_spec` that is none of
        the layouts. It is asked once for zeros of two frames, to learn the columns' specs. Flags
        that it does not give are set by what the buffer knows.

    Attributes:
      layout: `'trajectory'`, `'transition'`, `'step'`, or None with `to_steps`.
      step_spec: specs of one step.

    Raises:
      ValueError: `data_spec` is none of the layouts, and there is no `to_steps`.
      ValueError: `to_steps` gives no `observation` or no `is_terminal`, or columns that differ in length.

    >>> number, flag = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.bool)
    >>> steps = FramesToSteps({"observation": number, "next_observation": number, "is_terminal": flag})
    >>> frames = {"observation": np.array([0, 1]), "next_observation": np.array([1, 2]),
    ...           "is_terminal": np.array([False, True])}
    >>> for episode in steps.episodes(frames, begins=True, ends=True):
    ...     print({name: column.tolist() for name, column in episode.columns.items()}, episode.partial)
    {'observation': [0, 1, 2], 'is_first': [True, False, False], 'is_last': [False, False, True], \
'is_terminal': [False, False, True]} False
    """

    def __init__(self, data_spec: Nest, to_steps: ToSteps | None = None) -> None:
        if to_steps is not None and not callable(to_steps):
            raise TypeError(f"to_steps must be a function of frames [T, ...], got {to_steps!r}.")
        self._to_steps = to_steps
        self._fields = _fields_of(data_spec)
        self.layout = None if to_steps is not None else _layout_of(data_spec, self._fields)
        example = tf.nest.map_structure(lambda spec: np.zeros([2, *spec.shape], spec.dtype.as_numpy_dtype), data_spec)
        columns = next(self.episodes(example, begins=True, ends=True)).columns
        self.step_spec: dict[str, Nest] = {name: _specs_of(column) for name, column in columns.items()}

    def episodes(self, frames: Nest, *, begins: bool, ends: bool) -> Iterator[FoundSteps]:
        """The episodes in frames that follow each other in one stream; mostly one.

        Args:
          frames: leaves `[T, ...]`, `T >= 1`.
          begins: the first frame is known to be the first of its episode.
          ends: the last frame is known to be the last of its episode.

        Raises:
          ValueError: what `to_steps` gave is none; the message says why.
        """
        if self._to_steps is not None:
            return iter([_told_steps(self._to_steps(frames), begins=begins, ends=ends)])
        fields = _fields_of(frames)
        if self.layout == "trajectory":
            return _of_trajectory(fields)
        if self.layout == "transition":
            return _of_transitions(fields, begins=begins, ends=ends)
        return _of_steps(fields, begins=begins)

    def check_single(self, where: str) -> None:
        """Refuses single frames, of whatever episodes, where they make no steps.

        Raises:
          ValueError: a frame is less than a transition; the message names `where`.
        """
        if self.layout in ("trajectory", "step"):
            raise ValueError(
                f"{where} holds single frames without their order, of layout {self.layout!r}: a frame is a state and "
                "an action without what followed, so that no transition could be written. Keep transitions in it "
                "(load_rlds(..., layout='transition')), or give to_steps, which gets one frame [1, ...] at a time."
            )

    def single_episodes(self, frames: Nest) -> Iterator[FoundSteps]:
        """Each of these frames `[T, ...]` as an episode of its own, whose beginning is not known."""
        for index in range(len(tf.nest.flatten(frames)[0])):
            frame = tf.nest.map_structure(lambda leaf: leaf[index : index + 1], frames)  # noqa: B023
            for found in self.episodes(frame, begins=False, ends=False):
                yield found._replace(first_frame=index)


def _fields_of(nest: Nest) -> Mapping[str, Nest]:
    """The top-level fields of a dict or a namedtuple; none of anything else."""
    if isinstance(nest, Mapping):
        return nest
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return dict(zip(nest._fields, nest, strict=True))
    return {}


def _layout_of(data_spec: Nest, fields: Mapping[str, Nest]) -> str:
    flags = {
        _STEP_TYPE: fields.get(_STEP_TYPE),
        DISCOUNT: fields.get(DISCOUNT),
        **{name: fields.get(name) for name in (IS_FIRST, IS_LAST, IS_TERMINAL, IS_TRUNCATED)},
    }
    is_told = all(spec is None or (isinstance(spec, tf.TensorSpec) and not spec.shape.rank) for spec in flags.values())
    if OBSERVATION in fields and is_told:
        if NEXT_OBSERVATION in fields:
            is_alike = _is_like(fields[OBSERVATION], fields[NEXT_OBSERVATION])
            if IS_TERMINAL in fields and is_alike and not {IS_FIRST, IS_LAST, _STEP_TYPE} & set(fields):
                return "transition"
        elif _STEP_TYPE in fields:
            if DISCOUNT in fields and not {IS_FIRST, IS_LAST, IS_TERMINAL} & set(fields):
                return "trajectory"
        elif IS_TERMINAL in fields and IS_LAST in fields:
            return "step"
    found = f"the fields {', '.join(map(repr, fields))}" if fields else f"a {type(data_spec).__name__}"
    raise ValueError(
        f"data_spec has {found}, which is none of the layouts that load_rlds makes: a Trajectory (step_type, "
        "observation, discount, ...), a dict of transitions (observation, next_observation, is_terminal, ..., without "
        "is_first and is_last), or one of steps (observation, is_last, is_terminal, ...), discount and flags one "
        "number each. Give to_steps, a function of frames [T, ...] of one episode that returns a dict of step columns "
        "[N + 1, ...]."
    )


def _is_like(nest: Nest, other: Nest) -> bool:
    """Whether two nests of specs have the same structure, shapes and dtypes; names do not count."""
    specs = [[(path, leaf.shape, leaf.dtype) for path, leaf in leaves_with_paths(each, ())] for each in (nest, other)]
    return specs[0] == specs[1]


def _of_trajectory(fields: Mapping[str, Nest]) -> Iterator[FoundSteps]:
    types = fields[_STEP_TYPE]
    is_new = (types[1:] == _FIRST_TYPE) | (types[:-1] == _LAST_TYPE)
    if _NEXT_STEP_TYPE in fields:
        is_new |= fields[_NEXT_STEP_TYPE][:-1] != types[1:]
    rows: dict[str, Nest] = {
        name: column for name, column in fields.items() if name not in (_STEP_TYPE, _NEXT_STEP_TYPE, _POLICY_INFO)
    }
    if not tf.nest.flatten(rows.get(ACTION, ())):
        rows.pop(ACTION, None)
    rows.update(_metadata_of(fields.get(_POLICY_INFO, ()), fields))
    for start, stop in _pieces(is_new):
        begins, ends = bool(types[start] == _FIRST_TYPE), bool(types[stop - 1] == _LAST_TYPE)
        if ends and stop - start == 1:
            continue  # of its only transition nothing is left
        columns = {name: _cut(column, start, stop) for name, column in rows.items()}
        is_terminal = ends and not columns[DISCOUNT][-2]
        if ends:
            columns.update(_with_meaningless(columns, is_terminal=is_terminal, num_real=stop - start - 1))
        yield _found(columns, start, begins=begins, ends=ends, is_terminal=is_terminal)


def _of_transitions(fields: Mapping[str, Nest], *, begins: bool, ends: bool) -> Iterator[FoundSteps]:
    terminal = fields[IS_TERMINAL].astype(bool)
    has_truncated = IS_TRUNCATED in fields
    told = terminal | fields[IS_TRUNCATED].astype(bool) if has_truncated else terminal
    is_new = told[:-1].copy()
    pairs = zip(tf.nest.flatten(fields[NEXT_OBSERVATION]), tf.nest.flatten(fields[OBSERVATION]), strict=True)
    for following, observation in pairs:
        is_new |= _differ(following[:-1], observation[1:])
    rest = {
        name: column
        for name, column in fields.items()
        if name not in (OBSERVATION, NEXT_OBSERVATION, IS_TERMINAL, IS_TRUNCATED)
    }
    for start, stop in _pieces(is_new):
        # Frames that tell truncation tell all ends; else the buffer knows where one stopped.
        is_over = bool(told[stop - 1]) or (ends and stop == len(told) and not has_truncated)
        is_begun = bool(told[start - 1]) if start else begins
        is_terminal = bool(terminal[stop - 1])
        columns = {OBSERVATION: tf.nest.map_structure(
            lambda first, last: np.concatenate([first[start:stop], last[stop - 1 : stop]]),  # noqa: B023
            fields[OBSERVATION], fields[NEXT_OBSERVATION],
        )}  # fmt: skip
        columns.update({name: _extended(column, start, stop) for name, column in rest.items()})
        columns.update(_with_meaningless(columns, is_terminal=is_terminal, num_real=stop - start))
        yield _found(columns, start, begins=is_begun, ends=is_over, is_terminal=is_terminal)


def _of_steps(fields: Mapping[str, Nest], *, begins: bool) -> Iterator[FoundSteps]:
    is_new = fields[IS_LAST][:-1].astype(bool)
    if IS_FIRST in fields:
        is_new |= fields[IS_FIRST][1:].astype(bool)
    for start, stop in _pieces(is_new):
        columns = {name: _cut(column, start, stop) for name, column in fields.items()}
        if IS_FIRST in columns:
            is_first = bool(columns[IS_FIRST][0])
        else:
            is_first = bool(fields[IS_LAST][start - 1]) if start else begins
        is_last = bool(columns[IS_LAST][-1])
        yield FoundSteps(_with_flags(columns, begins=is_first, ends=is_last), not (is_first and is_last), start)


def _told_steps(given: Any, *, begins: bool, ends: bool) -> FoundSteps:
    """What `to_steps` returned, with the flags that it lacks."""
    missing = [name for name in (OBSERVATION, IS_TERMINAL) if name not in given] if isinstance(given, Mapping) else None
    if missing is None or missing:
        what = f"a {type(given).__name__}" if missing is None else f"a dict without {' and '.join(map(repr, missing))}"
        raise ValueError(f"to_steps must return a dict of step columns [N + 1, ...], got {what}.")
    columns: dict[str, Nest] = {name: tf.nest.map_structure(np.asarray, column) for name, column in given.items()}
    lengths = {name: sorted({leaf.shape[:1] for leaf in tf.nest.flatten(column)}) for name, column in columns.items()}
    if len({length for each in lengths.values() for length in each}) != 1 or () in lengths[OBSERVATION]:
        raise ValueError(f"to_steps must return columns [N + 1, ...] of one length, got leading axes {lengths}.")
    is_first = bool(columns[IS_FIRST].reshape(-1)[0]) if IS_FIRST in columns else begins
    is_last = bool(columns[IS_LAST].reshape(-1)[-1]) if IS_LAST in columns else ends
    return FoundSteps(_with_flags(columns, begins=is_first, ends=is_last), not (is_first and is_last), 0)


def _found(columns: dict[str, Nest], start: int, *, begins: bool, ends: bool, is_terminal: bool) -> FoundSteps:
    flags = _with_flags(columns, begins=begins, ends=ends)
    flags[IS_TERMINAL] = np.zeros([_num_steps(columns)], bool)
    flags[IS_TERMINAL][-1] = is_terminal
    return FoundSteps(flags, not (begins and ends), start)


def _with_flags(columns: dict[str, Nest], *, begins: bool, ends: bool) -> dict[str, Nest]:
    """The columns with `is_first` and `is_last`, where they are not there."""
    is_first, is_last = np.zeros([2, _num_steps(columns)], bool)
    is_first[0], is_last[-1] = begins, ends
    return {**columns, **{name: columns.get(name, flag) for name, flag in ((IS_FIRST, is_first), (IS_LAST, is_last))}}


def _with_meaningless(columns: Mapping[str, Nest], *, is_terminal: bool, num_real: int) -> dict[str, Nest]:
    """Action, reward and discount with what they are in a last step; copies."""

    def filled(column: Array, filler: int) -> Array:
        changed = column.copy()
        changed[num_real:] = filler
        return changed

    fillers = {ACTION: 0, REWARD: 0, DISCOUNT: int(not is_terminal)}
    return {
        name: tf.nest.map_structure(lambda column: filled(column, filler), columns[name])  # noqa: B023
        for name, filler in fillers.items()
        if name in columns
    }


def _metadata_of(policy_info: Nest, fields: Mapping[str, Nest]) -> dict[str, Nest]:
    """What `policy_info` is as step metadata: its keys, as `load_rlds` took them; or one field."""
    if not tf.nest.flatten(policy_info):
        return {}
    reserved = {OBSERVATION, ACTION, REWARD, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, *fields}
    if isinstance(policy_info, Mapping) and not reserved & set(policy_info):
        return dict(policy_info)
    return {_POLICY_INFO: policy_info}


def _pieces(is_new: Array) -> Iterator[tuple[int, int]]:
    """Starts and stops of `T` frames, where `is_new` `[T - 1]` tells of each but the first whether a piece begins."""
    edges = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(is_new) + 1]
    return zip(edges[:-1], edges[1:], strict=True)


def _differ(left: Array, right: Array) -> Array:
    """Which rows differ in any bit (NaN equals itself), bool `[n]`."""
    num = len(left)
    if not num:
        return np.zeros([0], bool)
    both = [np.ascontiguousarray(array).reshape(num, -1).view(np.uint8) for array in (left, right)]
    return np.asarray((both[0] != both[1]).any(axis=1))


def _cut(nest: Nest, start: int, stop: int) -> Nest:
    return tf.nest.map_structure(lambda leaf: leaf[start:stop], nest)


def _extended(nest: Nest, start: int, stop: int) -> Nest:
    """The rows, and one of zeros."""

    def extended(leaf: Array) -> Array:
        rows = np.zeros([stop - start + 1, *leaf.shape[1:]], leaf.dtype)
        rows[:-1] = leaf[start:stop]
        return rows

    return tf.nest.map_structure(extended, nest)


def _num_steps(columns: Mapping[str, Nest]) -> int:
    return len(tf.nest.flatten(columns[OBSERVATION])[0])


def _specs_of(column: Nest) -> Nest:
    return tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape[1:], tf.string if leaf.dtype.kind in "OSU" else leaf.dtype), column
    )
