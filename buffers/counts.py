"""Whether arguments are counts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def check_count(name: str, value: Any, *, optional: bool = False) -> None:
    """Refuses a count that is no whole number of at least 1.

    Raises:
      TypeError: `value` is no int (a bool is none either).
      ValueError: `value` is below 1.
    """
    if value is None and optional:
        return
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int{' or None' if optional else ''}, got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}.")


def check_parallel_calls(value: Any) -> None:
    """Refuses a `num_parallel_calls` that is neither None, `tf.data.AUTOTUNE` nor a count.

    Raises:
      TypeError: `value` is no int.
      ValueError: `value` is below 1.
    """
    if value != tf.data.AUTOTUNE:
        check_count("num_parallel_calls", value, optional=True)
