"""The sum of the steps of a window: how many there are, their return, and the factor of what comes after."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from replayfeed.buffers.counts import check_count

from .sample_windows import like
from .step_fields import Flow


class StepSum:
    """Sums up to `n` steps of windows whose first frame is the drawn one.

    Args:
      n: steps.
      gamma: factor of each.

    Raises:
      TypeError: `n` is no int.
      ValueError: `n` is below 1, or `gamma` is not in [0, 1].

    >>> StepSum(3, 1.5)
    Traceback (most recent call last):
    ...
    ValueError: gamma must be in [0, 1], got 1.5.
    """

    def __init__(self, n: int, gamma: float) -> None:
        check_count("n", n)
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma!r}.")
        self.n, self.gamma = int(n), float(gamma)
        # gamma^0 to gamma^n; 0^0 is 1.
        self._powers = float(gamma) ** np.arange(n + 1)

    def __call__(self, flow: Flow, reward: tf.Tensor, *, in_place: bool) -> Summed:
        """What the steps come to.

        Args:
          flow: of the windows, `[B, n + 1]`, or `[B, n]` with `in_place`.
          reward: `[B, n + 1, ...]` or `[B, n, ...]`.
          in_place: whether each frame holds its own next observation.
        """
        n = self.n
        # Of the last of n + 1 frames only the observation counts.
        discount, reward = (leaf if in_place else leaf[:, :n] for leaf in (flow.discount, reward))
        linked = tf.pad(flow.linked, [[0, 0], [0, 1]]) if in_place else flow.linked
        if in_place:
            known = flow.is_step
        else:
            known = linked | tf.equal(discount, 0.0) if flow.tells_ends else linked
            if flow.is_step is not flow.real:
                known &= flow.is_step[:, :n]
        exact = tf.float64 if reward.dtype == tf.float64 else tf.float32
        reward = tf.cast(reward, exact)
        # Where the drawn frame is not real (an agent was absent), a discount of 0 there ends nothing.
        summed = known & flow.real[:, :1]
        if n > 1:
            # At an end the discount is 0, so this is above 0 just as far as the sum may go, and never on padding.
            weights = tf.math.cumprod(tf.where(linked, discount, 0.0), axis=1, exclusive=True)
            summed &= weights > 0
            reward *= like(tf.cast(weights, exact) * tf.constant(self._powers[:n], exact), reward)
        return Summed(
            # Chosen, not multiplied: what does not count may be anything, NaN too.
            reward=tf.reduce_sum(tf.where(like(summed, reward), reward, tf.zeros([], exact)), axis=1),
            discounts=tf.reduce_prod(tf.where(summed, discount, 1.0), axis=1),
            discount=tf.reduce_prod(tf.where(summed, discount * self.gamma, 1.0), axis=1),
            count=tf.reduce_sum(tf.cast(summed, tf.int32), axis=1),
            has_successor=None if in_place else ~tf.reduce_any(summed & ~linked, axis=1),
            without_successor=self._without_successor(flow, summed, in_place=in_place),
        )

    def _without_successor(self, flow: Flow, summed: tf.Tensor, *, in_place: bool) -> tf.Tensor | None:
        if in_place or flow.broken is None:
            return None
        # With one step frame 1 is taken unseen, whether or not it was reached.
        return flow.broken[:, 0] if self.n == 1 else tf.reduce_any(summed & flow.broken, axis=1)

    def power(self, count: tf.Tensor) -> tf.Tensor:
        """`gamma^count`, float32, the shape of `count`."""
        return tf.gather(tf.constant(self._powers, tf.float32), count)


class Summed(NamedTuple):
    """Steps summed, `[B]` each.

    Attributes:
      reward: float `[B, ...]`, `R`.
      discounts: float32, `D_k`.
      discount: float32, `gamma^k D_k`.
      count: int32, `k`.
      has_successor: bool, whether frame `k` is of the same episode; None with `in_place`.
      without_successor: bool, whether frame `k` is real, but another episode's; None where no flag could tell.
    """

    reward: tf.Tensor
    discounts: tf.Tensor
    discount: tf.Tensor
    count: tf.Tensor
    has_successor: tf.Tensor | None
    without_successor: tf.Tensor | None
