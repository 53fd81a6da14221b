"""`update_priorities` where draws do not go by priority: values are checked, and it is told how many keys are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from .callbacks import call_weakly
from .nests import Array
from .priorities import check_keys, check_priorities

_BufferT = TypeVar("_BufferT")


def check_update(
    buffer: _BufferT, num_gone: Callable[[_BufferT, Array], int], keys: Any, priorities: Any, td_errors: Any
) -> Any:
    """How many of the keys are gone: an int, or in a graph int64 `[]`.

    Args:
      buffer: whose keys they are; a graph does not keep it alive.
      num_gone: counts those of `keys` int64 `[n]` that it holds no more; a method of the buffer's class.
      keys: int64 `[n]`.
      priorities: `[n]`, finite and at least 0, or None.
      td_errors: `[n]`, finite, or None.

    Raises:
      ValueError: not exactly one of `priorities` and `td_errors` is given.
      ValueError: shapes differ, or a value is refused; the message names the position.

    >>> check_update(range(3), lambda held, keys: sum(key not in held for key in keys), [2, 3], [1.0, 1.0], None)
    1
    """
    is_raw = priorities is not None

    def count(buffer: _BufferT, keys: Any, values: Any) -> np.int64:
        checked = check_keys(keys)
        check_priorities(values if is_raw else None, None if is_raw else values, checked.shape)
        return np.int64(num_gone(buffer, checked))

    if (priorities is None) == (td_errors is None):
        check_priorities(priorities, td_errors, ())  # tells what is wrong
    values = priorities if is_raw else td_errors
    if tf.executing_eagerly():
        return int(count(buffer, keys, values))
    gone = call_weakly(buffer, count, [keys, values], tf.int64)
    gone.set_shape([])
    return gone
