"""The arithmetic of prioritized replay, the same on every backend: checks, exponents, importance weights. Pure.

Schaul et al. 2016, Prioritized Experience Replay: an item with priority `p` is drawn with the chance
`P = p^alpha / sum p^alpha` (eq. 1), and weighs `(N P)^-beta` in the loss (section 3.4).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from .nests import Array

WeightNorm = Literal["batch", "buffer"] | None

# So few numbers are looked at one by one: a frame's priority costs NumPy ten times as much.
_FEW = 4

# What is added to an absolute TD error, so that no item is lost for ever.
DEFAULT_EPS = 1e-6


def check_priorities(priorities: Any, td_errors: Any, shape: tuple[int, ...]) -> Array:
    """Raw priorities, or absolute TD errors, as float64 of this shape.

    Raises:
      ValueError: not exactly one of the two is given.
      ValueError: they are no real numbers, or their shape differs.
      ValueError: a value is not finite, or a priority is negative; the message names the position.

    >>> check_priorities([1, 2.5], None, (2,))
    array([1. , 2.5])
    >>> check_priorities([1.0, -1.0], None, (2,))
    Traceback (most recent call last):
    ...
    ValueError: priorities[1] is -1.0: a priority must be finite and at least 0 (TD errors go into td_errors=).
    """
    if (priorities is None) == (td_errors is None):
        raise ValueError("give priorities or td_errors, exactly one of them.")
    name = "td_errors" if priorities is None else "priorities"
    given = np.asarray(td_errors if priorities is None else priorities)
    if given.dtype.kind in "cOSUmM":  # bfloat16 is of a kind of its own
        raise ValueError(f"{name}: expected real numbers, got {given.dtype}.")
    values = given.astype(np.float64, copy=False)
    if values.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape {list(shape)}, got {list(values.shape)}.")
    if name == "priorities" and values.size <= _FEW and all(0.0 <= value < math.inf for value in values.flat):
        return values
    wrong = ~np.isfinite(values) | ((values < 0) & (name == "priorities"))
    if wrong.any():
        position = tuple(int(index[0]) for index in np.nonzero(wrong))
        rule = "a priority must be finite and at least 0" if name == "priorities" else "a TD error must be finite"
        if values[position] < 0:
            rule += " (TD errors go into td_errors=)"
        raise ValueError(f"{name}[{', '.join(map(str, position))}] is {values[position]}: {rule}.")
    return np.abs(values)


def check_keys(keys: Any) -> Array:
    """Keys or ids as int64, of whatever shape.

    Raises:
      ValueError: they are no whole numbers.

    >>> check_keys([3, 4])
    array([3, 4])
    """
    values = np.asarray(keys)
    if values.size and values.dtype.kind not in "iu":
        raise ValueError(f"keys and ids are int64 numbers as `BufferInfo` has them, got {values.dtype}.")
    return values.astype(np.int64)


def check_exponent(name: str, value: Any) -> float:
    """`alpha`, a fixed `beta` or an `eps`: a finite number of at least 0.

    Raises:
      TypeError: it is no number.
      ValueError: it is negative or not finite.

    >>> check_exponent("alpha", 0)
    0.0
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be finite and at least 0, got {value!r}.")
    return float(value)


def check_weight_norm(value: Any) -> WeightNorm:
    """One of `'batch'`, `'buffer'` and None.

    Raises:
      ValueError: it is something else.

    >>> check_weight_norm("batch")
    'batch'
    """
    if value not in ("batch", "buffer", None):
        raise ValueError(f"weight_norm must be 'batch', 'buffer' or None, got {value!r}.")
    return value


def importance_weights(
    probabilities: Any,
    num_items: Any,
    beta: Any,
    *,
    norm: WeightNorm = "batch",
    least_probability: Any = None,
) -> Any:
    """Weights that make up for drawing by priority, float32, the shape of `probabilities`.

    `w = (N P)^-beta`, divided by the largest weight: of the batch (`'batch'`), of the buffer (`'buffer'`: that
    of the least probable item, `(N P_min)^-beta`; one item with almost no priority then makes all other weights small),
    or by nothing (None). Where all items have the same chance weights are 1.

    Args:
      probabilities: `P` of each draw, `[..., B]`, above 0; the last axis is the batch.
      num_items: `N`, how many items could be drawn.
      beta: 0: no correction; 1: the full one.
      norm: what to divide by.
      least_probability: `P_min`, the chance of the least probable item that can be drawn; for `'buffer'`.

    Returns:
      A tensor where `probabilities` is one, else an array.

    Raises:
      ValueError: `norm='buffer'` without `least_probability`, or an unknown norm.

    >>> chances = np.array([0.1, 0.2, 0.3, 0.4])
    >>> importance_weights(chances, 4, 1.0, norm=None)
    array([2.5      , 1.25     , 0.8333333, 0.625    ], dtype=float32)
    >>> importance_weights(chances[2:], 4, 1.0).round(4).tolist()
    [1.0, 0.75]
    >>> importance_weights(chances[2:], 4, 1.0, norm="buffer", least_probability=0.1)
    array([0.33333334, 0.25      ], dtype=float32)
    """
    check_weight_norm(norm)
    if norm == "buffer" and least_probability is None:
        raise ValueError("importance_weights: norm='buffer' needs least_probability, that of the least probable item.")
    # Arrays first: to ask TensorFlow costs more than the weights themselves.
    if not isinstance(probabilities, np.ndarray) and tf.is_tensor(probabilities):
        chances = tf.cast(probabilities, tf.float64)
        # Divided before it is raised: the quotient is at most 1, so that no power overflows.
        if norm is None:
            base = 1.0 / (chances * tf.cast(num_items, tf.float64))
        elif norm == "batch":
            base = tf.reduce_min(chances, axis=-1, keepdims=True) / chances
        else:
            base = tf.cast(least_probability, tf.float64) / chances
        return tf.cast(base, tf.float32) ** tf.cast(beta, tf.float32)
    chances = np.asarray(probabilities, np.float64)
    if norm is None:
        base = 1.0 / (chances * num_items)
    elif norm == "batch":
        base = chances.min(axis=-1, keepdims=True, initial=1.0) / chances
    else:
        base = least_probability / chances
    return np.asarray(base ** float(beta), np.float32)


def sequence_priority(td_errors: Any, eta: float = 0.9, mask: Any = None) -> Any:
    """One priority for each window: `eta * max |td| + (1 - eta) * mean |td|` over its real frames.

    Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning, section 2.3.

    Args:
      td_errors: `[..., T]`, one for each frame of a window.
      eta: 1: the largest alone; 0: the mean alone.
      mask: bool `[..., T]`, False where a frame is padding or context; None: all count.

    Returns:
      `[...]`: a float32 tensor where `td_errors` is a tensor, else float64. 0 for a window without a real frame.

    Raises:
      ValueError: `eta` is not between 0 and 1.
      ValueError: the mask's shape is not that of the errors.

    >>> sequence_priority([[1.0, -3.0, 2.0]], eta=0.5)
    array([2.5])
    >>> sequence_priority(np.array([[1.0, -3.0, 99.0]]), eta=0.5, mask=np.array([[True, True, False]]))
    array([2.5])
    """
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must be between 0 and 1, got {eta!r}.")
    if tf.is_tensor(td_errors):
        errors = tf.abs(tf.cast(td_errors, tf.float32))
        if errors.shape[-1] == 0:
            return tf.zeros(tf.shape(errors)[:-1])
        real = tf.ones_like(errors) if mask is None else tf.cast(mask, tf.float32)
        _check_mask_shape(errors.shape.as_list(), real.shape.as_list())
        errors = tf.where(real > 0, errors, 0.0)
        mean = tf.math.divide_no_nan(tf.reduce_sum(errors, -1), tf.reduce_sum(real, -1))
        return eta * tf.reduce_max(errors, -1) + (1 - eta) * mean
    errors = np.abs(np.asarray(td_errors, np.float64))
    real = np.ones(errors.shape, bool) if mask is None else np.asarray(mask, bool)
    _check_mask_shape(list(errors.shape), list(real.shape))
    errors = np.where(real, errors, 0.0)
    mean = errors.sum(-1) / np.maximum(real.sum(-1), 1)
    return eta * errors.max(-1, initial=0.0) + (1 - eta) * mean


def errors_of_rows(td_errors: Any, mask: Any, eta: float, burn_in: int = 0) -> Any:
    """One TD error for each row of a batch; 0 for rows whose mask is False throughout.

    Args:
      td_errors: `[B]` or `[B, 1]`, or `[B, T]` where the mask is.
      mask: bool `[B]` or `[B, T]`, False where a frame is padding or no transition.
      eta: as in `sequence_priority`.
      burn_in: so many frames at the front of a window are context, and do not count; errors may leave them out.

    Returns:
      `[B]`, a tensor where one of the two is symbolic or the errors are a tensor.

    Raises:
      ValueError: the shape of the errors is none of these.

    >>> errors_of_rows([5.0, -3.0], np.array([[True, True], [False, False]]), 0.9)
    array([5., 0.])
    """
    if tf.is_tensor(td_errors) or not tf.executing_eagerly():
        errors, mask = tf.convert_to_tensor(td_errors), tf.convert_to_tensor(mask)
    else:
        errors, mask = np.asarray(td_errors, np.float64), np.asarray(mask, bool)
    if burn_in:
        if len(errors.shape) == 2 and errors.shape[1] == mask.shape[1]:
            errors = errors[:, burn_in:]
        mask = mask[:, burn_in:]
    shape, mask_shape = list(errors.shape), list(mask.shape)
    if len(shape) == 2 and shape[1] == 1 and mask_shape != shape:
        errors, shape = errors[:, 0], shape[:1]
    fits = len(shape) == 1 or len(shape) == len(mask_shape)
    if not fits or any(None not in pair and pair[0] != pair[1] for pair in zip(shape, mask_shape, strict=False)):
        raise ValueError(
            f"td_errors: expected {mask_shape}, the mask's shape without burn_in, or {mask_shape[:1]}; got {shape}."
        )
    if len(shape) == 2:
        return sequence_priority(errors, eta, mask)
    if tf.is_tensor(errors):
        real = mask if len(mask_shape) == 1 else tf.reduce_any(mask, axis=1)
        return tf.where(real, errors, tf.zeros_like(errors))
    return np.where(mask if mask.ndim == 1 else mask.any(axis=1), errors, 0.0)


def _check_mask_shape(errors: list[int | None], mask: list[int | None]) -> None:
    if len(errors) != len(mask) or any(
        None not in pair and pair[0] != pair[1] for pair in zip(errors, mask, strict=True)
    ):
        raise ValueError(f"mask: expected the shape of td_errors, {errors}, got {mask}.")
