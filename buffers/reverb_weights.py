"""Importance weights of what a served table draws: from the chance that Reverb tells, in the graph.

An item of a table with `Prioritized` sampler weighs `(N P)^-beta` (Schaul et al. 2016, section 3.4): `P` is its
chance at the moment of its draw, `N` the number of items that the table held then, both told by Reverb with the
item. (Items of priority 0, which are never drawn, count in `N`.) In tables with another sampler weights are 1: what
their samplers tell as probability (1 of heaps and FIFO) says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .item_selectors import Prioritized, Sampler
from .priorities import WeightNorm, check_exponent, check_weight_norm, importance_weights

Beta = float | Callable[[Any], Any] | Any
"""How far weights correct: a number, a variable that is read at each draw, or a schedule: a function of the number of
batches drawn so far, int64 `[]`, made of TensorFlow's operations."""


class ServedWeights:
    """The weights of one buffer's draws.

    Rows are drawn one by one, while a weight needs the batch: so a row carries what `carried` gives, and
    `finished` makes the weights of a batch of it.

    Args:
      sampler: the table's.
      beta: see `Beta`.
      norm: what weights are divided by: the largest of their batch, the largest that an item of the table could have
        (`'buffer'`), or nothing. Single elements have no batch, so that `'batch'` divides them by nothing.
      least: the least priority above 0 in the table, float64 `[]`, at most a second old; None: not known.
      table: the table's name, for messages.

    Raises:
      TypeError: `beta` is none of the three.
      ValueError: `beta` is negative or not finite, or no function of a tensor that gives one number.
      ValueError: `norm` is unknown, or is `'buffer'` and the least priority is not known.
    """

    def __init__(
        self, sampler: Sampler, beta: Beta, norm: WeightNorm, least: tf.Variable | None, *, table: str
    ) -> None:
        self._exponent = sampler.priority_exponent if isinstance(sampler, Prioritized) else None
        self._beta = _check_beta(beta)
        self._norm = check_weight_norm(norm)
        self._least = least
        self._table = table
        self._num_batches = tf.Variable(0, trainable=False, dtype=tf.int64)
        if self._norm == "buffer" and self._exponent is not None and least is None:
            raise ValueError(
                f"weight_norm='buffer': Reverb does not tell the least priority in table {table!r}; make the table "
                "with tracks_least=True, or give weight_norm='batch' or None."
            )

    def of_windows(self, carried: tf.Tensor, num_windows: Any) -> tf.Tensor:
        """What a row carries that is one of so many windows of its item, where items differ in how many they have.

        As the number of all windows is not known, weights are NaN but for those that are relative to their batch.
        """
        if self._exponent is None:
            return carried
        return carried / tf.cast(num_windows, carried.dtype) if self._norm == "batch" else carried * np.nan

    def check_windows_of_episodes(self) -> None:
        """Refuses weights of windows that are cut from drawn episodes where the number of all windows matters.

        Raises:
          ValueError: it does: only `'batch'` does without.
        """
        if self._exponent is not None and self._norm != "batch":
            raise ValueError(
                f"weight_norm={self._norm!r}: weights of windows cut from episodes need the number of windows in table "
                f"{self._table!r}, which Reverb does not tell; give weight_norm='batch', or draw whole episodes."
            )

    def carried(self, info: Any) -> tf.Tensor:
        """What a row carries until its batch is there, of Reverb's `SampleInfo`, like its `probability`."""
        if self._exponent is None:
            return tf.ones_like(info.probability, tf.float32)
        if self._norm == "buffer":
            return tf.cast(info.priority, tf.float64)
        return tf.cast(info.probability, tf.float64) * tf.cast(info.table_size, tf.float64)

    def finished(self, carried: tf.Tensor, *, is_batch: bool) -> tf.Tensor:
        """The weights, float32, of what rows carry: `[B]`, or `[]` where it is no batch."""
        if self._exponent is None:
            return carried
        beta = self._beta_now()
        if self._norm != "buffer":
            norm = self._norm if is_batch else None
            return importance_weights(carried, 1, beta, norm=norm)
        assert self._least is not None  # checked
        # P_min / P is (p_min / p)^alpha: the sum of all priorities cancels.
        least = tf.minimum(self._least, carried)
        ratio = tf.where(carried > 0, least / tf.where(carried > 0, carried, 1.0), 1.0)
        return tf.cast(ratio ** (self._exponent * tf.cast(beta, tf.float64)), tf.float32)

    def _beta_now(self) -> Any:
        if callable(self._beta) and not isinstance(self._beta, tf.Variable):
            return self._beta(self._num_batches.assign_add(1) - 1)
        return self._beta


def _check_beta(beta: Any) -> Any:
    if isinstance(beta, tf.Variable):
        if beta.shape.rank != 0 or not beta.dtype.is_floating:
            raise ValueError(f"beta: a variable must hold one floating number, got {beta.dtype.name} {beta.shape}.")
        return beta
    if not callable(beta):
        return check_exponent("beta", beta)
    spec = tf.TensorSpec([], tf.int64)
    try:
        value = tf.function(lambda num: tf.cast(beta(num), tf.float64), autograph=False).get_concrete_function(spec)
        first = np.asarray(value(tf.constant(0, tf.int64)))
    except Exception as error:  # whatever the caller's function raises of a tensor
        raise ValueError(
            "beta: a schedule is a function of the number of batches, a tensor int64 [], made of TensorFlow's "
            f"operations (tf.minimum, not min); it failed: {error}"
        ) from error
    if first.shape != ():
        raise ValueError(f"beta: a schedule must give one number, got shape {list(first.shape)}.")
    check_exponent("beta(0)", float(first))
    return beta
