"""Which columns of an RLDS episode mean what, and which episodes are sound.

Step `i` holds the observation, the action taken in it, and the reward that followed. The
last step's action, reward and discount mean nothing: `cut_steps` leaves them out, so that
nothing behind it can use them. `N` is the number of transitions; an episode has `N + 1` steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

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
"""The fields of a step that RLDS gives a meaning; all others are step metadata."""

Alignment = Literal["sar", "ars", "rsa"]
"""What step `i` of a dataset holds beside `o_i`. RLDS is `'sar'`: `a_i`, and the reward and discount that followed."""

Columns = Mapping[str, Nest]
"""The steps of an episode: a nest of arrays `[N + 1, ...]` for each loaded field."""

_NO_METADATA: Mapping[str, Nest] = MappingProxyType({})


class Steps(NamedTuple):
    """A sound episode of `N >= 1` transitions, without what RLDS leaves meaningless.

    Attributes:
      observation: nest, leaves `[N + 1, ...]`.
      action: nest, leaves `[N, ...]`; None when the dataset has none.
      reward: `[N, ...]`, that of each transition; None when the dataset has none.
      discount: `[N]`, of the rewards' dtype: 0 for the transition into a terminal step, else the stored one, else 1.
      is_terminal: the episode ended; False: it was truncated.
      metadata: the other fields of a step, leaves `[N + 1, ...]`; what those of the last step mean the dataset knows.
    """

    observation: Nest
    action: Nest | None
    reward: Array | None
    discount: Array
    is_terminal: bool
    metadata: Mapping[str, Nest] = _NO_METADATA


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
      ValueError: there is no observation, or an empty one, or no `is_terminal`.
      ValueError: a flag, or the discount, is not one number a step; the reward is no array of real numbers.

    >>> check_step_spec("mine", {"observation": tf.TensorSpec([], tf.float32)})
    Traceback (most recent call last):
    ...
    ValueError: mine: the steps have no 'is_terminal', so terminal and truncated episodes cannot be told apart; found \
['observation']. If fields= leaves it out, let it in; else add it in a map over the episodes, and pass the \
tf.data.Dataset to load_rlds.
    """
    for field, why in (
        (OBSERVATION, "there is nothing to learn from"),
        (IS_TERMINAL, "terminal and truncated episodes cannot be told apart"),
    ):
        if field not in step_spec:
            raise ValueError(
                f"{name}: the steps have no {field!r}, so {why}; found {sorted(step_spec)}. If fields= leaves it out, "
                "let it in; else add it in a map over the episodes, and pass the tf.data.Dataset to load_rlds."
            )
    if not tf.nest.flatten(step_spec[OBSERVATION]):
        raise ValueError(f"{name}: step field 'observation' is an empty nest, so there is nothing to learn from.")
    for field in (*FLAGS, DISCOUNT):
        spec = step_spec.get(field)
        if spec is not None and not _is_one_number(spec):
            raise ValueError(f"{name}: step field {field!r}: expected one number a step, got {spec}.")
    for field in FLAGS:
        spec = step_spec.get(field)
        if spec is not None and not (spec.dtype.is_bool or spec.dtype.is_integer):
            raise ValueError(f"{name}: step field {field!r}: expected a bool a step, got {spec.dtype.name}.")
    reward = step_spec.get(REWARD)
    if reward is not None and (
        not isinstance(reward, tf.TensorSpec) or reward.dtype.is_complex or reward.dtype == tf.string
    ):
        raise ValueError(f"{name}: step field 'reward': expected one array of real numbers a step, got {reward}.")


def aligned(columns: Columns, alignment: Alignment) -> Columns:
    """The same episode with each action, reward and discount in the step that RLDS has it in.

    | alignment | step `i` holds | `rlds`' name |
    | --- | --- | --- |
    | `'sar'` | `o_i`, the action `a_i` taken in it, the reward and discount that followed | SAR |
    | `'ars'` | the action that led to `o_i`, the reward and discount that came with it, `o_i` (dm_env, Dreamer) | ARS |
    | `'rsa'` | the reward and discount that came with `o_i`, `o_i`, and the action `a_i` taken in it | RSA |

    What the first step held of the shifted fields came before the episode, and is left out;
    the last step, where they mean nothing, gets zeros. Step metadata stays where it is.

    Raises:
      ValueError: `alignment` is unknown.

    >>> columns = {"observation": np.arange(3), "action": np.array([0, 10, 11]), "reward": np.array([0.0, 1.0, 2.0])}
    >>> {name: column.tolist() for name, column in aligned(columns, "ars").items()}
    {'observation': [0, 1, 2], 'action': [10, 11, 0], 'reward': [1.0, 2.0, 0.0]}
    """
    if alignment not in get_args(Alignment):
        raise ValueError(f"alignment must be 'sar', 'ars' or 'rsa', got {alignment!r}.")
    if alignment == "sar":
        return columns
    late = (REWARD, DISCOUNT) if alignment == "rsa" else (ACTION, REWARD, DISCOUNT)
    return {
        field: tf.nest.map_structure(_one_step_earlier, column) if field in late else column
        for field, column in columns.items()
    }


def find_fault(columns: Columns, *, invalid: bool = False, dtype: np.dtype[Any] | type = np.float32) -> Fault | None:
    """What makes an episode unsound, or None. Too short to hold a transition is no fault.

    A last step without `is_last` is none either: the nesting tells where the episode ends.

    Args:
      columns: arrays `[N + 1, ...]`.
      invalid: the episode's own `invalid` flag.
      dtype: that rewards and discounts will have.

    >>> flags = np.array([False, True, False])
    >>> find_fault({"observation": np.zeros([3, 2]), "is_terminal": flags}).detail
    'is_terminal is set at step 1 of 3, before the last one'
    """
    if invalid:
        return Fault("flagged invalid", "the dataset flags it as invalid", None)
    if len({len(leaf) for leaf in tf.nest.flatten(dict(columns))}) > 1:
        lengths = {path: len(leaf) for path, leaf in _named_leaves(columns)}
        return Fault("with fields of different lengths", f"its fields differ in length: {lengths}", None)
    for field in (REWARD, DISCOUNT):
        if field not in columns:
            continue
        values = np.asarray(columns[field][:-1])
        if not np.isfinite(values if values.dtype.kind == "f" else values.astype(np.float64)).all():
            return Fault(f"with a {field} that is not finite", f"a {field} is NaN or infinite", None)
        if dtype == np.float32 and not _survives_float32(values):
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


def cut_steps(columns: Columns, num_steps: int, dtype: np.dtype[Any] | type = np.float32) -> Steps:
    """The first `num_steps` steps of an episode, as one that ends with the last of them.

    Args:
      columns: arrays `[N + 1, ...]` that `find_fault` finds sound up to `num_steps`.
      num_steps: 1 or more; the episode is terminal when the last of them is.
      dtype: of rewards and discounts.

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
        action = map_leaves(lambda leaf: leaf[:last], columns[ACTION])
    if REWARD in columns:
        reward = _drop_unit_axis(columns[REWARD])[:last].astype(dtype)
    if DISCOUNT in columns:
        discount = _drop_unit_axis(columns[DISCOUNT])[:last].astype(dtype)
    else:
        discount = np.ones([last], dtype)
    if is_terminal and last:
        discount[-1] = 0.0
    observation = map_leaves(lambda leaf: leaf[:num_steps], columns[OBSERVATION])
    metadata = {
        field: map_leaves(lambda leaf: leaf[:num_steps], column)
        for field, column in columns.items()
        if field not in LOADED_FIELDS
    }
    return Steps(observation, action, reward, discount, is_terminal, metadata)


def ends_in_zeros(steps: Steps) -> bool:
    """Whether a terminal episode's final observation is all zeros, as in D4RL files, where none was recorded.

    >>> zeros = np.zeros([2, 3], np.float32)
    >>> ends_in_zeros(Steps(zeros, None, None, np.zeros([1], np.float32), is_terminal=True))
    True
    """
    if not steps.is_terminal:
        return False
    final = [leaf[-1:] for leaf in tf.nest.flatten(steps.observation)]
    return sum(leaf.size for leaf in final) > 1 and not any(leaf.any() for leaf in final)


def filler_of(column: Array) -> Any:
    """What stands where a value would mean nothing: zero, or the empty string.

    >>> filler_of(np.array([b"left"], object)), filler_of(np.array([3]))
    (b'', 0)
    """
    return b"" if column.dtype == object else 0


def map_leaves(function: Callable[[Any], Any], nest: Nest) -> Nest:
    """`tf.nest.map_structure` of one nest, at a tenth of its cost for arrays and dicts of them.

    That cost, some 10 us, counts: episodes may have few steps, and be mapped several times each.

    >>> map_leaves(lambda leaf: leaf[:1], {"image": np.array([1, 2]), "state": (np.array([3, 4]),)})
    {'image': array([1]), 'state': (array([3]),)}
    """
    if isinstance(nest, np.ndarray):
        return function(nest)
    if type(nest) is dict:
        return {key: map_leaves(function, child) for key, child in nest.items()}
    return tf.nest.map_structure(function, nest)


def num_steps_of(columns: Columns) -> int:
    """Steps in an episode, `N + 1`."""
    return len(tf.nest.flatten(columns[OBSERVATION])[0])


def _named_leaves(nest: Nest) -> Iterator[tuple[str, Any]]:
    """Each leaf with its place, as `'observation/image'`."""
    return ((field_path(path), leaf) for path, leaf in leaves_with_paths(nest, ()))


def _is_one_number(spec: Any) -> bool:
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        return False
    return spec.shape.as_list() in ([], [1]) and not spec.dtype.is_complex and spec.dtype != tf.string


def _misplaced(field: str, step: int, where: str, num_steps: int, num_kept: int) -> Fault:
    return Fault(f"with {field} in mid-episode", f"{field} is set at step {step} of {num_steps}, {where}", num_kept)


def _flags(columns: Columns, field: str) -> Array:
    """Bool `[N + 1]`; all False when the dataset has no such field."""
    if field not in columns:
        return np.zeros([num_steps_of(columns)], bool)
    return _drop_unit_axis(np.asarray(columns[field])).astype(bool, copy=False)


def _one_step_earlier(column: Array) -> Array:
    shifted = np.empty_like(column)
    shifted[:-1] = column[1:]
    shifted[-1:] = filler_of(column)
    return shifted


def _drop_unit_axis(array: Array) -> Array:
    """`[N + 1]` from `[N + 1]` or `[N + 1, 1]`; any other shape as it is."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _survives_float32(array: Array) -> bool:
    if array.dtype != np.float64 or not array.size:
        return True
    with np.errstate(invalid="ignore"):
        return not bool((np.isfinite(array) & (np.abs(array) > np.finfo(np.float32).max)).any())
