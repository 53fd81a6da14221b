"""`update_priorities`, eager or in a graph: values are checked, and it is told how many keys are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from .callbacks import call_weakly
from .nests import Array
from .priorities import check_keys, check_priorities

_BufferT = TypeVar("_BufferT")


class WithoutPriorities:
    """The part of a buffer whose draws do not go by priority that takes priorities all the same."""

    # Of the buffer: how many of these ids `[n]` it holds no more.
    _num_gone: Callable[[Array], int]

    def update_priorities(self, keys: Any, priorities: Any = None, *, td_errors: Any = None) -> Any:
        """Checks the values and tells how many keys are gone (an int; in a graph int64 `[]`); draws do not change.

        So a training loop that writes priorities back runs on this buffer too.

        Args:
          keys: int64 `[n]`, `BufferInfo.keys`.
          priorities: `[n]`, finite and at least 0.
          td_errors: `[n]`, finite, instead of `priorities`.

        Raises:
          ValueError: not exactly one of `priorities` and `td_errors` is given.
          ValueError: shapes differ, or a value is refused; the message names the position.
        """

        def count(buffer: WithoutPriorities, keys: Array, _: Array) -> int:
            return buffer._num_gone(keys)

        return apply_update(self, count, keys, priorities, td_errors, eps=0.0)


def apply_update(
    buffer: _BufferT,
    apply: Callable[[_BufferT, Array, Array], int],
    keys: Any,
    priorities: Any,
    td_errors: Any,
    *,
    eps: float,
) -> Any:
    """Sets raw priorities, or `abs(td_errors) + eps`; how many keys are gone: an int, or in a graph int64 `[]`.

    Args:
      buffer: whose keys they are; a graph does not keep it alive.
      apply: gives the items of `keys` int64 `[n]` the priorities float64 `[n]` and returns how many of them it holds no
        more; a method of the buffer's class. It sees values that are checked.
      keys: int64 `[n]`.
      priorities: `[n]`, finite and at least 0, or None.
      td_errors: `[n]`, finite, or None.
      eps: added to absolute errors.

    Raises:
      ValueError: not exactly one of `priorities` and `td_errors` is given.
      ValueError: shapes differ, or a value is refused; the message names the position.

    >>> held = {7: 1.0}
    >>> def apply(held, keys, priorities):
    ...     held.update((key, p) for key, p in zip(keys.tolist(), priorities.tolist()) if key in held)
    ...     return sum(key not in held for key in keys.tolist())
    >>> apply_update(held, apply, [7, 8], None, [-2.0, 1.0], eps=0.5), held
    (1, {7: 2.5})
    """
    is_raw = priorities is not None

    def checked(buffer: _BufferT, keys: Any, values: Any) -> np.int64:
        given = check_keys(keys)
        values = check_priorities(values if is_raw else None, None if is_raw else values, given.shape)
        if given.ndim != 1:
            given, values = given.reshape(-1), values.reshape(-1)
        return np.int64(apply(buffer, given, values if is_raw else values + eps))

    if (priorities is None) == (td_errors is None):
        check_priorities(priorities, td_errors, ())  # tells what is wrong
    values = priorities if is_raw else td_errors
    if tf.executing_eagerly():
        return int(checked(buffer, keys, values))
    gone = call_weakly(buffer, checked, [keys, values], tf.int64)
    gone.set_shape([])
    return gone
