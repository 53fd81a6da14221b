"""Which fields of a spec hold reward, discount and the flags that end an episode."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from .nests import Array
from .spec import DataSpec

# Looked for at the top of the spec where a name is left to 'auto'.
_DISCOUNT = ("discount",)
_TERMINAL = ("is_terminal", "terminal", "terminated")
_TRUNCATED = ("truncated",)

# Says neither whether an end is real nor, by its name alone, that it is one.
_UNCLEAR = ("done", "dones")

# RLDS's flag speaks of the step's own state, the others of the transition that starts at it.
STATE_FLAG = "is_terminal"


class RolloutFields(NamedTuple):
    """Indices of fields in the order of `DataSpec.fields`; None where the spec has none.

    Attributes:
      reward: the transition's reward.
      discount: its discount, without gamma.
      terminal: flag of a terminal state.
      truncated: flag of an end that is none.
      terminal_path: the terminal field's path, for messages.
    """

    reward: int
    discount: int | None
    terminal: int | None
    truncated: int | None
    terminal_path: str | None


def find_fields(
    spec: DataSpec, reward: str, discount: str | None, terminal: str | None, truncated: str | None
) -> RolloutFields:
    """The fields by these paths; `'auto'`: by the usual names, if there; None: not read.

    Raises:
      ValueError: a field that was named is not in the spec.
      ValueError: `'auto'` finds more than one.
      ValueError: a field is not one real number a frame.

    >>> import tensorflow as tf
    >>> names = ("action", "reward", "terminated")
    >>> spec = DataSpec({name: tf.TensorSpec([], tf.float32) for name in names})
    >>> find_fields(spec, "reward", "auto", "auto", "auto")
    RolloutFields(reward=1, discount=None, terminal=2, truncated=None, terminal_path='terminated')
    """
    found_reward = _find(spec, "reward_field", reward, ())
    if found_reward is None:
        raise ValueError(f"reward_field must name a field of data_spec: {_paths(spec)}; got {reward!r}.")
    found_terminal = _find(spec, "terminal_field", terminal, _TERMINAL)
    return RolloutFields(
        found_reward,
        _find(spec, "discount_field", discount, _DISCOUNT),
        found_terminal,
        _find(spec, "truncated_field", truncated, _TRUNCATED),
        None if found_terminal is None else spec.fields[found_terminal].path,
    )


def warn_of_unclear_flag(spec: DataSpec, *, stacklevel: int) -> None:
    """Warns (`UserWarning`) of a top-level `done`, for specs that nothing else tells the ends of.

    >>> import tensorflow as tf
    >>> with warnings.catch_warnings(record=True) as warned:
    ...     warnings.simplefilter("always")
    ...     warn_of_unclear_flag(DataSpec({"done": tf.TensorSpec([], tf.bool)}), stacklevel=1)
    >>> str(warned[0].message)
    "data_spec has the field 'done', which is not read: it does not say whether an end is real. Give ..."
    """
    for field in spec.fields:
        if field.path in _UNCLEAR:
            warnings.warn(
                f"data_spec has the field {field.path!r}, which is not read: it does not say whether an end is real. "
                f"Give terminal_field={field.path!r} where each is, truncated_field={field.path!r} where none is, or "
                "end_of_episode_fn, or end_of_episode at each add; else advantages run on into the next episode.",
                UserWarning,
                stacklevel=stacklevel + 1,
            )
            return


def column(leaves: Sequence[Array], index: int, outer: tuple[int, ...]) -> Array:
    """One field's numbers with these outer axes, `[B]` or `[B, T]`, without the axis of one that some specs give them.

    >>> import numpy as np
    >>> column([np.zeros([2, 3, 1])], 0, (2, 3)).shape
    (2, 3)
    """
    return leaves[index].reshape(outer)


def flags(leaves: Sequence[Array], index: int | None, outer: tuple[int, ...]) -> Array | None:
    """`column` as bool, None for a field that is not there."""
    return None if index is None else column(leaves, index, outer).astype(bool, copy=False)


def _find(spec: DataSpec, argument: str, name: Any, usual: Sequence[str]) -> int | None:
    if name is None:
        return None
    wanted = usual if name == "auto" and usual else (name,)
    found = [index for index, field in enumerate(spec.fields) if field.path in wanted]
    if name == "auto" and usual and not found:
        return None
    if not found:
        raise ValueError(f"{argument}: data_spec has no field {name!r}, it has {_paths(spec)}.")
    if len(found) > 1:
        paths = [spec.fields[index].path for index in found]
        raise ValueError(f"data_spec has {paths}: say with {argument} which of them counts.")
    field = spec.fields[found[0]]
    if field.shape not in ((), (1,)) or field.dtype.is_complex:
        raise ValueError(
            f"{argument}: field {field.path!r} is {field.expected(())}, expected one real number a frame; "
            "name another field, or keep one buffer for each reward."
        )
    return found[0]


def _paths(spec: DataSpec) -> list[str]:
    return [field.path for field in spec.fields]
