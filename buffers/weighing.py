"""Importance weights of what a buffer in this process draws: with a fixed, a live or a scheduled `beta`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .memory import SharedMemory
from .nests import Array
from .priorities import WeightNorm, check_exponent, importance_weights
from .ring_sampler import Drawn


class ImportanceWeigher:
    """Weights of batches as they are drawn (`importance_weights`).

    Args:
      beta: a number of at least 0; a scalar `tf.Variable`, read at each draw; or a function of the number
        of batches drawn before (an int, in a graph int64 `[]`) to a number, such as a Keras schedule.
      norm: what weights are divided by.

    Raises:
      TypeError: `beta` is none of these.
      ValueError: `beta` is negative, or no scalar.

    >>> weigher = ImportanceWeigher(lambda batch: 0.5 if batch < 1 else 1.0, "batch")
    >>> drawn = Drawn(None, None, None, [], 4, np.array([0.1, 0.4]))
    >>> [weigher.weigh(drawn).tolist() for _ in range(2)]
    [[1.0, 0.5], [1.0, 0.25]]
    """

    def __init__(self, beta: Any, norm: WeightNorm) -> None:
        is_live = isinstance(beta, tf.Variable)
        if is_live and (beta.shape.rank != 0 or not (beta.dtype.is_floating or beta.dtype.is_integer)):
            raise ValueError(f"beta must be a scalar number, got a tf.Variable {beta.shape} {beta.dtype.name}.")
        if not is_live and not callable(beta):
            check_exponent("beta", beta)
        self._beta = beta
        self._norm = norm
        self._num_batches = SharedMemory((1,), np.int64)

    @property
    def norm(self) -> WeightNorm:
        """What weights are divided by."""
        return self._norm

    @property
    def num_batches(self) -> int:
        """Batches that a schedule of `beta` has counted."""
        return int(self._num_batches.array[0])

    @num_batches.setter
    def num_batches(self, value: int) -> None:
        self._num_batches.array[0] = value

    def weigh(self, drawn: Drawn, *, alone: bool = False) -> Array:
        """Weights float32 `[n]` of a batch drawn in NumPy; `alone` as in `in_graph`."""
        beta = self._beta
        if isinstance(beta, tf.Variable):
            beta = check_exponent("beta", float(beta.numpy()))
        elif callable(beta):
            beta = check_exponent("beta", float(beta(int(self._num_batches.array[0]))))
            self._num_batches.array[0] += 1
        weights: Array = importance_weights(
            drawn.chances, drawn.num_eligible, beta, norm=self._norm_of(alone), least_probability=drawn.least_chance
        )
        return weights

    def in_graph(self, *, alone: bool) -> Callable[[Drawn, tf.Tensor], tf.Tensor]:
        """A function from what was drawn, and its chances float32 `[..., B]`, to weights of that shape.

        Args:
          alone: the draws are no batch: `norm='batch'` divides by nothing.
        """
        norm = self._norm_of(alone)

        def weigh(drawn: Drawn, chances: tf.Tensor) -> tf.Tensor:
            num = 1 if chances.shape.rank == 1 else chances.shape[0]
            beta = self.beta_in_graph(num)
            return importance_weights(
                chances, drawn.num_eligible, beta, norm=norm, least_probability=drawn.least_chance
            )

        return weigh

    def beta_in_graph(self, num_batches: int) -> tf.Tensor:
        """`beta` as of now, float64 `[]`; counts so many batches.

        Raises:
          TypeError: the schedule does not take a tensor.
          tf.errors.InvalidArgumentError: when it runs: `beta` is negative or not finite.
        """
        beta = self._beta
        if isinstance(beta, tf.Variable):
            return _checked(tf.cast(beta, tf.float64))
        if not callable(beta):
            return tf.constant(beta, tf.float64)
        before = tf.gather(self._num_batches.in_graph(), 0)
        with tf.control_dependencies([before]):
            counted = tf.raw_ops.InplaceAdd(x=self._num_batches.in_graph(), i=[0], v=[num_batches])
        with tf.control_dependencies([counted]):  # or nothing would need the count, and it would be left out
            try:
                return _checked(tf.cast(beta(before), tf.float64))
            except TypeError as error:
                raise TypeError(
                    "beta: in a dataset or a tf.function the schedule gets the number of batches as an int64 tensor; "
                    "write it with TensorFlow's operations (tf.minimum), or give one of Keras's or a tf.Variable."
                ) from error

    def _norm_of(self, alone: bool) -> WeightNorm:
        return None if alone and self._norm == "batch" else self._norm


def _checked(beta: tf.Tensor) -> tf.Tensor:
    right = tf.math.is_finite(beta) & (beta >= 0)
    with tf.control_dependencies([tf.debugging.Assert(right, ["beta must be finite and at least 0, got", beta])]):
        return tf.identity(beta)
