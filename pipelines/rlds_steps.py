"""Which columns of an RLDS episode mean what, and which episodes are sound.

Step `i` holds the observation, the action taken in it, and the reward that followed. The
last step's action, reward and discount mean nothing: `cut_steps` leaves them out, so that
nothing behind it can use them. `N` is the number of transitions; an episode has `N + 1` steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, field_path, leaves_with_paths

STEPS = "steps"
INVALID = "invalid"
OBSERVATION = "observation"
ACTION = "action"
REWARD = "reward"
DISCOUNT = "discount"
IS_FIRST = "is_first"
IS_LAST = "is_last"
IS_TERMINAL = "is_terminal"

FLAGS = (IS_FIRST, IS_LAST, IS_TERMINAL)
"""Bool fields of a step."""

LOADED_FIELDS = (OBSERVATION, ACTION, REWARD, DISCOUNT, *FLAGS)
"""The fields of a step that are loaded; all others are step metadata."""

Columns = Mapping[str, Nest]
"""The steps of an episode: a nest of arrays `[N + 1, ...]` for each loaded field."""


class Steps(NamedTuple):
    """A sound episode of `N >= 1` transitions, without what RLDS leaves meaningless.

    Attributes:
      observation: nest, leaves `[N + 1, ...]`.
      action: nest, leaves `[N, ...]`; None when the dataset has none.
      reward: float32 `[N, ...]`, that of each transition; None when the dataset has none.
      discount: float32 `[N]`: 0 for the transition into a terminal step, else the stored one, else 1.
      is_terminal: the episode ended; False: it was truncated.
    """

    observation: Nest
    action: Nest | None
    reward: Array | None
    discount: Array
    is_terminal: bool


class Fault(NamedTuple):
    """What is wrong with an episode.

    Attributes:
      reason: in few words, the same for each episode with this fault.
      detail: the sentence that an error needs, with numbers.
      num_kept: how many of the first steps form a sound episode; None: none do.
    """

    reason: str
    detail: str
    num_kept: int | None


def check_step_spec(name: str, step_spec: Mapping[str, Nest]) -> None:
    """Refuses steps that cannot be loaded, before any data is read.

    Args:
      name: the dataset's, for messages.
      step_spec: for each loaded field a nest of type specs, of one step.

    Raises:
      ValueError: there is no observation or no `is_terminal`.
      ValueError: a field is of variable length, ragged, a string, or holds no number.
      ValueError: a flag, or the discount, is not one number a step.

    >>> spec = {"observation": tf.TensorSpec([], tf.string), "is_terminal": tf.TensorSpec([], tf.bool)}
    >>> check_step_spec("mine", spec)
    Traceback (most recent call last):
    ...
    ValueError: mine: step field 'observation' is a string, which has no fixed width; map the episodes first: \
drop the field, or give it a fixed width, and pass the tf.data.Dataset to load_rlds.
    """
    for field, why in (
        (OBSERVATION, "there is nothing to learn from"),
        (IS_TERMINAL, "terminal and truncated episodes cannot be told apart"),
    ):
        if field not in step_spec:
            raise ValueError(
                f"{name}: the steps have no {field!r}, so {why}; found {sorted(step_spec)}. "
                "Add it in a map over the episodes, and pass the tf.data.Dataset to load_rlds."
            )
    for path, spec in _named_leaves(step_spec):
        fault = _spec_fault(spec)
        if fault:
            raise ValueError(
                f"{name}: step field {path!r} {fault}; map the episodes first: drop the field, or give it "
                "a fixed width, and pass the tf.data.Dataset to load_rlds."
            )
    for field in (*FLAGS, DISCOUNT):
        spec = step_spec.get(field)
        if spec is not None and not _is_one_number(spec):
            raise ValueError(f"{name}: step field {field!r}: expected one number a step, got {spec}.")
    for field in FLAGS:
        spec = step_spec.get(field)
        if spec is not None and not (spec.dtype.is_bool or spec.dtype.is_integer):
            raise ValueError(f"{name}: step field {field!r}: expected a bool a step, got {spec.dtype.name}.")
    reward = step_spec.get(REWARD)
    if reward is not None and (not isinstance(reward, tf.TensorSpec) or reward.dtype.is_complex):
        raise ValueError(f"{name}: step field 'reward': expected one array of real numbers a step, got {reward}.")


def find_fault(columns: Columns, *, invalid: bool = False) -> Fault | None:
    """What makes an episode unsound, or None. Too short to hold a transition is no fault.

    A last step without `is_last` is none either: the nesting tells where the episode ends.

    Args:
      columns: arrays `[N + 1, ...]`.
      invalid: the episode's own `invalid` flag.

    >>> flags = np.array([False, True, False])
    >>> find_fault({"observation": np.zeros([3, 2]), "is_terminal": flags}).detail
    'is_terminal is set at step 1 of 3, before the last one'
    """
    if invalid:
        return Fault("flagged invalid", "the dataset flags it as invalid", None)
    lengths = {path: len(leaf) for path, leaf in _named_leaves(columns)}
    if len(set(lengths.values())) > 1:
        return Fault("with fields of different lengths", f"its fields differ in length: {lengths}", None)
    for field in (REWARD, DISCOUNT):
        values = np.asarray(columns[field][:-1]) if field in columns else np.zeros(0)
        if not np.isfinite(values.astype(np.float64)).all():
            return Fault(f"with a {field} that is not finite", f"a {field} is NaN or infinite", None)
        if not _survives_float32(values):
            return Fault(f"with a {field} beyond float32", f"a {field} is too large for float32", None)
    num_steps = num_steps_of(columns)
    faults = []
    for field in (IS_TERMINAL, IS_LAST):
        early = np.flatnonzero(_flags(columns, field)[:-1])
        if early.size:
            faults.append(_misplaced(field, int(early[0]), "before the last one", num_steps, int(early[0]) + 1))
    late = np.flatnonzero(_flags(columns, IS_FIRST)[1:])
    if late.size:
        faults.append(_misplaced(IS_FIRST, int(late[0]) + 1, "after the first one", num_steps, int(late[0]) + 1))
    # The one that leaves the shortest sound beginning.
    return min(faults, key=lambda fault: fault.num_kept or 0) if faults else None


def unset_flags(columns: Columns) -> list[str]:
    """Flags that the nesting implies and the file does not set, as reasons for the report.

    >>> unset_flags({"observation": np.zeros([2]), "is_first": [True, False], "is_last": [False, False]})
    ['with is_last not set on the last step']
    """
    unset = []
    if IS_FIRST in columns and not _flags(columns, IS_FIRST)[0]:
        unset.append("with is_first not set on the first step")
    if IS_LAST in columns and not _flags(columns, IS_LAST)[-1]:
        unset.append("with is_last not set on the last step")
    return unset


def cut_steps(columns: Columns, num_steps: int) -> Steps:
    """The first `num_steps` steps of an episode, as one that ends with the last of them.

    Args:
      columns: arrays `[N + 1, ...]` that `find_fault` finds sound up to `num_steps`.
      num_steps: 2 or more; the episode is terminal when the last of them is.

    >>> steps = cut_steps(
    ...     {"observation": np.array([0, 1, 2]), "is_terminal": np.array([False, False, True]),
    ...      "reward": np.array([1.0, 2.0, 99.0]), "discount": np.array([0.9, 0.9, 0.9])}, num_steps=3)
    >>> steps.reward.tolist(), steps.discount.round(2).tolist(), steps.is_terminal
    ([1.0, 2.0], [0.8999999761581421, 0.0], True)
    """
    is_terminal = bool(_flags(columns, IS_TERMINAL)[num_steps - 1])
    last = num_steps - 1
    action = reward = None
    if ACTION in columns:
        action = tf.nest.map_structure(lambda leaf: leaf[:last], columns[ACTION])
    if REWARD in columns:
        reward = _drop_unit_axis(columns[REWARD])[:last].astype(np.float32)
    if DISCOUNT in columns:
        discount = _drop_unit_axis(columns[DISCOUNT])[:last].astype(np.float32)
    else:
        discount = np.ones([last], np.float32)
    if is_terminal:
        discount[-1] = 0.0
    observation = tf.nest.map_structure(lambda leaf: leaf[:num_steps], columns[OBSERVATION])
    return Steps(observation, action, reward, discount, is_terminal)


def ends_in_zeros(steps: Steps) -> bool:
    """Whether a terminal episode's final observation is all zeros, as in D4RL files, where none was recorded.

    >>> zeros = np.zeros([2, 3], np.float32)
    >>> ends_in_zeros(Steps(zeros, None, None, np.zeros([1], np.float32), is_terminal=True))
    True
    """
    if not steps.is_terminal:
        return False
    final = [leaf[-1] for leaf in tf.nest.flatten(steps.observation)]
    return sum(leaf.size for leaf in final) > 1 and not any(leaf.any() for leaf in final)


def num_steps_of(columns: Columns) -> int:
    """Steps in an episode, `N + 1`."""
    return len(tf.nest.flatten(columns[OBSERVATION])[0])


def _named_leaves(nest: Nest) -> Iterator[tuple[str, Any]]:
    """Each leaf with its place, as `'observation/image'`."""
    return ((field_path(path), leaf) for path, leaf in leaves_with_paths(nest, ()))


def _spec_fault(spec: Any) -> str | None:
    if not isinstance(spec, tf.TensorSpec):
        return f"is a {type(spec).__name__.removesuffix('Spec')}, which is of variable length"
    if spec.dtype == tf.string:
        return "is a string, which has no fixed width"
    if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool or spec.dtype.is_complex):
        return f"is {spec.dtype.name}, which holds no number"
    if not spec.shape.is_fully_defined():
        return f"has the shape {spec.shape}, which is of variable length"
    if 0 in spec.shape.as_list():
        return f"has the shape {spec.shape}, which holds no number"
    return None


def _is_one_number(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.as_list() in ([], [1]) and not spec.dtype.is_complex


def _misplaced(field: str, step: int, where: str, num_steps: int, num_kept: int) -> Fault:
    return Fault(f"with {field} in mid-episode", f"{field} is set at step {step} of {num_steps}, {where}", num_kept)


def _flags(columns: Columns, field: str) -> Array:
    """Bool `[N + 1]`; all False when the dataset has no such field."""
    if field not in columns:
        return np.zeros([num_steps_of(columns)], bool)
    return _drop_unit_axis(np.asarray(columns[field])).astype(bool, copy=False)


def _drop_unit_axis(array: Array) -> Array:
    """`[N + 1]` from `[N + 1]` or `[N + 1, 1]`; any other shape as it is."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _survives_float32(array: Array) -> bool:
    if array.dtype != np.float64 or not array.size:
        return True
    with np.errstate(invalid="ignore"):
        return not bool((np.isfinite(array) & (np.abs(array) > np.finfo(np.float32).max)).any())
