"""Advantages of on-policy rollouts: GAE, n-step and Monte Carlo, over whole rollouts at once. Pure.

All three are a discounted sum of one-step errors, here with V' the value of the next state:

    delta_t = r_t + d_t V'_t - V_t          (d_t: gamma times the transition's discount, 0 if terminal)
    A_t     = delta_t + c_t A_{t+1}         (c_t: d_t lambda; 0 where the next frame does not go on from this one)

With lambda 1 the values between cancel, which leaves the return minus V_t. Letters: `B` streams, `T` time.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import tensorflow as tf

Method = Literal["gae", "n_step", "monte_carlo"]

METHODS: tuple[Method, ...] = ("gae", "n_step", "monte_carlo")

# From here on steps are taken one after the other: cheaper than a further halving.
_UNROLLED = 8


class Advantages(NamedTuple):
    """What a rollout is trained on; no gradient flows through any of it.

    Attributes:
      advantages: float32 `[B, T]`; 0 where `mask` is False.
      returns: float32 `[B, T]`, `advantages + values`: what the value function should give.
      values: float32 `[B, T]`, as they were given.
      mask: bool `[B, T]`; False on frames that hold no transition, an episode's final observation.

    >>> Advantages(advantages=[[1.5]], returns=[[2.0]], values=[[0.5]], mask=[[True]]).returns
    [[2.0]]
    """

    advantages: Any
    returns: Any
    values: Any
    mask: Any


class Transitions(NamedTuple):
    """The transitions of a rollout, each in the row of the frame it starts from.

    Attributes:
      rewards: float32 `[B, T]`.
      discounts: float32 `[B, T]`, gamma included; 0 where the transition ends in a terminal state.
      mask: bool `[B, T]`, False on frames from which no transition starts.
      cut: bool `[B, T]`, the episode ends after this transition and the final observation is not in the next frame.
      goes_on: bool `[B, T]`, the next frame's transition belongs to the same episode; False in the last column.
    """

    rewards: Any
    discounts: Any
    mask: Any
    cut: Any
    goes_on: Any


def next_values(cut: Any, values: Any, bootstrap_value: Any, final_values: Any = None) -> tf.Tensor:
    """The value of the state that each transition leads to, float32 `[B, T]`.

    Args:
      cut: bool `[B, T]`, see `Transitions`.
      values: float32 `[B, T]`, V of each frame's observation.
      bootstrap_value: float32 `[B]`, V of the observation after the last frame.
      final_values: float32 `[B, T]`, V of the final observation, read where `cut`; None: there is none that counts.

    >>> next_values([[False, True, False]], [[1.0, 2.0, 3.0]], [4.0], [[9.0, 5.0, 9.0]]).numpy().tolist()
    [[2.0, 5.0, 4.0]]
    """
    values = tf.convert_to_tensor(values, tf.float32)
    following = tf.concat([values[:, 1:], tf.convert_to_tensor(bootstrap_value, tf.float32)[:, None]], axis=1)
    return following if final_values is None else tf.where(cut, final_values, following)


def one_step_errors(transitions: Transitions, values: Any, successors: Any) -> tf.Tensor:
    """`delta`, float32 `[B, T]`; 0 where `mask` is False.

    What does not count may be anything, NaN too: the reward of a final observation, the value after a terminal.

    Args:
      transitions: leaves `[B, T]`.
      values: float32 `[B, T]`.
      successors: float32 `[B, T]`, what `next_values` gave.
    """
    discounts = transitions.discounts
    after = tf.where(discounts > 0, discounts * successors, 0.0)
    return tf.where(transitions.mask, transitions.rewards + after - values, 0.0)


def generalized_advantages(transitions: Transitions, values: Any, successors: Any, lam: float) -> tf.Tensor:
    """Generalized advantage estimates, float32 `[B, T]`.

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438, equation 16, cut at the ends of episodes
    and of the rollout, where the sum goes no further than the value of the state reached.

    Args:
      transitions: leaves `[B, T]`; `T` static.
      values: float32 `[B, T]`.
      successors: float32 `[B, T]`, what `next_values` gave.
      lam: lambda, 0 to 1.

    Three steps of reward 1, gamma 0.9; the second is cut by a time limit, V of its final observation is 2:

    >>> steps = Transitions(tf.ones([1, 3]), tf.fill([1, 3], 0.9), [[True] * 3], None, [[True, False, False]])
    >>> generalized_advantages(steps, tf.fill([1, 3], 0.5), tf.constant([[0.5, 2.0, 0.5]]), lam=0.5).numpy().round(4)
    array([[1.985, 2.3  , 0.95 ]], dtype=float32)
    """
    return backward_sum(one_step_errors(transitions, values, successors), _factors(transitions, lam))


def n_step_advantages(transitions: Transitions, values: Any, successors: Any, n: int | None = None) -> tf.Tensor:
    """Return of `n` steps minus V, float32 `[B, T]`: `r_t + ... + d^(n-1) r_{t+n-1} + d^n V(s_{t+n}) - V(s_t)`.

    Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S3. Fewer steps are taken where the episode
    or the rollout ends first, with the value of the state reached there, 0 if it is terminal.

    Args:
      transitions: leaves `[B, T]`; `T` static.
      values: float32 `[B, T]`.
      successors: float32 `[B, T]`, what `next_values` gave.
      n: at least 1; None: to the end of the episode or the rollout, which is A2C's choice, and Monte Carlo.

    >>> steps = Transitions(tf.ones([1, 3]), tf.fill([1, 3], 0.9), [[True] * 3], None, [[True, True, False]])
    >>> half = tf.fill([1, 3], 0.5)
    >>> n_step_advantages(steps, half, half).numpy().round(4)
    array([[2.5745, 1.805 , 0.95  ]], dtype=float32)
    >>> n_step_advantages(steps, half, half, n=1).numpy().round(4)
    array([[0.95, 0.95, 0.95]], dtype=float32)
    """
    errors, factors = one_step_errors(transitions, values, successors), _factors(transitions, 1.0)
    num_steps = errors.shape[1]
    if n is None or n >= num_steps:
        return backward_sum(errors, factors)
    return _sum_of_n(errors, factors, n)


@tf.function(autograph=False)
def backward_sum(increments: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`x` with `x_t = increments_t + factors_t x_{t+1}`, nothing after the end; float32 `[B, T]`.

    In about log2(T) steps over all streams, each half as long as the one before: two neighbours are joined into
    one, the half as long problem is solved, and gives every second result; the others follow from
    their neighbour. That is about 2T multiplications, where doubling takes T log2(T).

    Args:
      increments: float32 `[B, T]`; `T` static.
      factors: float32 `[B, T]`.

    >>> backward_sum(tf.constant([[1.0, 2.0, 4.0]]), tf.constant([[0.5, 0.5, 0.5]])).numpy().tolist()
    [[3.0, 4.0, 4.0]]
    """
    # Time first: a step's rows of all streams are one piece of memory.
    return tf.transpose(_solve(tf.transpose(increments), tf.transpose(factors)))


def _solve(increments: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`backward_sum` with time first, `[T, B]`."""
    num_steps = increments.shape[0]
    if num_steps <= _UNROLLED:
        steps, ratios = tf.unstack(increments), tf.unstack(factors)
        sums = [steps[-1]]
        for step, ratio in zip(steps[-2::-1], ratios[-2::-1], strict=True):
            sums.append(step + ratio * sums[-1])
        return tf.stack(sums[::-1])
    if num_steps % 2:
        one_more = [[0, 1], [0, 0]]
        increments, factors = tf.pad(increments, one_more), tf.pad(factors, one_more)
    first_steps, second_steps = _halves(increments)
    first_ratios, second_ratios = _halves(factors)
    first = _solve(first_steps + first_ratios * second_steps, first_ratios * second_ratios)
    second = second_steps + second_ratios * tf.pad(first[1:], [[0, 1], [0, 0]])
    return tf.reshape(tf.stack([first, second], axis=1), tf.shape(increments))[:num_steps]


def _halves(rows: tf.Tensor) -> list[tf.Tensor]:
    """Rows 0, 2, 4, ... and rows 1, 3, 5, ... of `[T, B]`."""
    pairs = tf.reshape(rows, [rows.shape[0] // 2, 2, tf.shape(rows)[1]])
    return tf.unstack(pairs, axis=1)


def _sum_of_n(increments: tf.Tensor, factors: tf.Tensor, n: int) -> tf.Tensor:
    """`backward_sum` of the `n` steps from each on: sums of 1, 2, 4, ... steps, put together as `n` is in binary."""
    total = tf.zeros_like(increments)
    done = 0
    while True:
        if n & 1:
            total = increments + factors * _later(total, 1 << done)
        n >>= 1
        if not n:
            return total
        increments = increments + factors * _later(increments, 1 << done)
        factors = factors * _later(factors, 1 << done)
        done += 1


def _later(rows: tf.Tensor, num_steps: int) -> tf.Tensor:
    """What stands `num_steps` later, 0 after the end."""
    return tf.pad(rows[:, num_steps:], [[0, 0], [0, min(num_steps, rows.shape[1])]])


def _factors(transitions: Transitions, lam: float) -> tf.Tensor:
    return tf.where(transitions.goes_on, transitions.discounts * lam, 0.0)
