"""Returns of every frame of a window: to go, and lambda-returns.

Time-indexed as they are used: `r_t` is the reward that followed `a_t`, `discount_t` everything that what comes after is
multiplied by (`gamma` and the stored discount, 0 where a terminal state was reached), `v_tp1` the value of the state
that `a_t` led to.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from replayfeed.buffers import BufferInfo
from replayfeed.buffers.nests import Nest

from .rlds_steps import DISCOUNT, REWARD
from .sample_windows import Transform, like, on_windows
from .step_fields import (
    TERMINAL_NAMES,
    TRUNCATED_NAMES,
    FinalFrame,
    FlagNames,
    Names,
    per_frame,
    read_flow,
    require_field,
    top_level_fields,
)


class WithReturns(NamedTuple):
    """A window and a return for each of its frames.

    Attributes:
      steps: the items as they were, leaves `[B, T, ...]`.
      returns: float `[B, T]` (`[B, T, ...]` where rewards are vectors); 0 where `info.mask` is False.

    >>> WithReturns(steps={"reward": [1.0]}, returns=[1.0]).returns
    [1.0]
    """

    steps: Nest
    returns: tf.Tensor


def returns_to_go(
    gamma: float,
    *,
    reward: str = REWARD,
    discount: str | None = DISCOUNT,
    terminal: Names = TERMINAL_NAMES,
    truncated: Names = TRUNCATED_NAMES,
    final_frame: FinalFrame = "auto",
) -> Transform:
    """A function that adds the discounted return from each frame to the end of its window or episode.

        G_t = r_t + gamma d_t G_t+1,   and just r_t where a terminal state follows, or nothing of this episode

    Nothing is bootstrapped: what lies behind the window is not in the sum. In `info`, `mask` becomes False on final
    observations, which have no return, as it is on padding.

    Args:
      gamma: in [0, 1].
      reward: name of the field.
      discount: its name where there is one; None for none.
      terminal: names of flags that say that a frame's action led to a terminal state.
      truncated: names of flags that say that the episode was cut after a frame's action.
      final_frame: as the buffer's.

    Returns:
      `(items, info) -> (WithReturns, info)`.

    Raises:
      ValueError: `gamma` is not in [0, 1], or `final_frame` is none of its three.
      When called or traced, ValueError: a field is not there.

    Sutton & Barto (2018), eq. 3.9; as "return-to-go" in Chen et al. (2021), arXiv:2106.01345, section 3.

    >>> info = BufferInfo(tf.constant([[4, 5, 6]]), tf.ones([1]), tf.constant([4]), tf.ones([1]), tf.fill([1, 3], True))
    >>> items, info = returns_to_go(0.5)({"reward": tf.constant([[1.0, 2.0, 4.0]])}, info)
    >>> items.returns.numpy().tolist()
    [[3.0, 4.0, 4.0]]
    """
    check_share("gamma", gamma)
    flags = FlagNames(discount, terminal, truncated, final_frame)

    def transform(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
        fields = top_level_fields(items)
        r_t = tf.convert_to_tensor(require_field(fields, "reward", reward))
        flow = read_flow(fields, info.mask, flags, in_place="next_observation" in fields)
        exact = tf.float64 if r_t.dtype == tf.float64 else tf.float32
        r_t = tf.where(like(flow.is_step, r_t), tf.cast(r_t, exact), 0)
        # At an end the discount is 0.
        goes_on = tf.pad(flow.is_step[:, 1:] & flow.linked, [[0, 0], [0, 1]])
        discount_t = tf.where(goes_on, gamma * flow.discount, 0.0)
        returns = discounted_sums(r_t, like(tf.cast(discount_t, exact), r_t))
        return WithReturns(items, returns), info._replace(mask=flow.is_step)

    return on_windows("returns_to_go", transform, any_length=True)


def lambda_returns(
    gamma: float,
    lam: float,
    *,
    value: str = "value",
    next_value: str | None = None,
    reward: str = REWARD,
    discount: str | None = DISCOUNT,
    terminal: Names = TERMINAL_NAMES,
    truncated: Names = TRUNCATED_NAMES,
    final_frame: FinalFrame = "auto",
) -> Transform:
    """A function that adds the lambda-return of each frame, from values that are a field of the items.

    `lambda_return` with `discount_t = gamma d_t`. The value of the state that `a_t` led to is `value` of the
    frame that follows (a final observation's too), or `next_value` of the frame itself. The recursion ends, with a
    bootstrap, at a truncation and at the window's last frame; a frame without a successor that is
    not terminal has no return (unless there is `next_value`), as the last of a window has none. In `info`, `mask`
    becomes False on such frames and on final observations.

    Args:
      gamma: in [0, 1].
      lam: in [0, 1]; 0 is one step, 1 sums to the end.
      value: name of the field with the value of each frame's state.
      next_value: name of the field with the value of the state that the frame's action led to; None: there is none.
      reward: name of the field.
      discount: its name where there is one; None for none.
      terminal: names of flags that say that a frame's action led to a terminal state.
      truncated: names of flags that say that the episode was cut after a frame's action.
      final_frame: as the buffer's.

    Returns:
      `(items, info) -> (WithReturns, info)`.

    Raises:
      ValueError: `gamma` or `lam` is not in [0, 1], or `final_frame` is none of its three.
      When called or traced, ValueError: a field is not there, or is not one number a frame.

    Sutton & Barto (2018), eq. 12.18.

    >>> info = BufferInfo(tf.constant([[4, 5, 6]]), tf.ones([1]), tf.constant([4]), tf.ones([1]), tf.fill([1, 3], True))
    >>> items = {"reward": tf.constant([[1.0, 2.0, 4.0]]), "value": tf.constant([[0.0, 8.0, 16.0]])}
    >>> items, info = lambda_returns(0.5, 0.0)(items, info)
    >>> items.returns.numpy().tolist(), info.mask.numpy().tolist()
    ([[5.0, 10.0, 0.0]], [[True, True, False]])
    """
    check_share("gamma", gamma)
    check_share("lam", lam)
    flags = FlagNames(discount, terminal, truncated, final_frame)

    def transform(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
        fields = top_level_fields(items)
        for role, name in (("reward", reward), ("value", value), ("next_value", next_value)):
            if name is not None:
                require_field(fields, role, name)
        flow = read_flow(fields, info.mask, flags, in_place="next_observation" in fields)
        after = [[0, 0], [0, 1]]
        linked = tf.pad(flow.linked, after)
        r_t = tf.cast(per_frame(fields, reward), tf.float32)
        if next_value is None:
            v_tp1 = tf.pad(tf.cast(per_frame(fields, value), tf.float32)[:, 1:], after)
            known = flow.is_step & (linked | tf.equal(flow.discount, 0.0))
        else:
            v_tp1, known = tf.cast(per_frame(fields, next_value), tf.float32), flow.is_step
        goes_on = linked & known & tf.pad(known[:, 1:], after)
        r_t = tf.where(known, r_t, 0.0)
        # What a terminal state is worth is multiplied by a discount of 0; it may be anything, NaN too.
        v_tp1 = tf.where(known & (flow.discount > 0), v_tp1, 0.0)
        discount_t = tf.where(known, gamma * flow.discount, 0.0)
        lam_t = tf.where(goes_on, tf.cast(lam, tf.float32), 0.0)
        return WithReturns(items, lambda_return(r_t, discount_t, v_tp1, lam_t)), info._replace(mask=known)

    return on_windows("lambda_returns", transform, any_length=True)


def lambda_return(r_t: tf.Tensor, discount_t: tf.Tensor, v_tp1: tf.Tensor, lam_t: tf.Tensor | float) -> tf.Tensor:
    """Lambda-returns of sequences, float `[B, T]`.

        G_t = r_t + discount_t ((1 - lam_t) v_tp1 + lam_t G_t+1),   with v_tp1 in the place of G_t+1 at the last

    Args:
      r_t: `[B, T]`.
      discount_t: `[B, T]`; 0 where `a_t` led to a terminal state.
      v_tp1: `[B, T]`, value of the state that `a_t` led to.
      lam_t: `[B, T]` or one number; 0 cuts the recursion there.

    Sutton & Barto (2018), eq. 12.18 (state values), with a discount and a lambda of each step.

    >>> r_t, discount_t, v_tp1 = tf.constant([[1.0, 1.0]]), tf.constant([[0.5, 0.5]]), tf.constant([[2.0, 4.0]])
    >>> lambda_return(r_t, discount_t, v_tp1, 1.0).numpy().tolist()
    [[2.5, 3.0]]
    """
    lam_t = tf.broadcast_to(tf.cast(lam_t, r_t.dtype), tf.shape(r_t))
    lam_t = tf.concat([lam_t[:, :-1], tf.zeros_like(lam_t[:, -1:])], axis=1)
    lam_t.set_shape(r_t.shape)
    return discounted_sums(r_t + discount_t * (1 - lam_t) * v_tp1, discount_t * lam_t)


def discounted_sums(terms: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """`x_t = terms_t + factors_t x_t+1` along axis 1, with nothing after the last.

    In `log2(T)` steps, each of which doubles how far `x_t` reaches (Hillis & Steele 1986), so that long windows
    need no loop over time.

    Args:
      terms: float `[B, T, ...]`; `T` may be unknown until the graph runs.
      factors: float `[B, T, ...]`, the same number of axes.

    >>> discounted_sums(tf.constant([[1.0, 1.0, 1.0]]), tf.constant([[0.5, 0.5, 9.0]])).numpy().tolist()
    [[1.75, 1.5, 1.0]]
    """

    def double(reach: Any, terms: tf.Tensor, factors: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
        def later(values: tf.Tensor) -> tf.Tensor:
            return tf.pad(values[:, reach:], [[0, 0], [0, reach]] + [[0, 0]] * (values.shape.rank - 2))

        # Behind a factor of 0 may stand anything: another episode's NaN too.
        return reach * 2, terms + tf.math.multiply_no_nan(later(terms), factors), factors * later(factors)

    length = terms.shape[1]
    if length is None:
        length = tf.shape(terms)[1]
        state = (tf.constant(1), terms, factors)
        shapes = (tf.TensorShape([]), terms.shape, factors.shape)
        return tf.while_loop(lambda reach, *_: reach < length, double, state, shape_invariants=shapes)[1]
    reach = 1
    while reach < length:
        reach, terms, factors = double(reach, terms, factors)
    return terms


def check_share(name: str, value: float) -> None:
    """Refuses what is not in [0, 1].

    Raises:
      ValueError: `value` is not in [0, 1].

    >>> check_share("gamma", 1.5)
    Traceback (most recent call last):
    ...
    ValueError: gamma must be in [0, 1], got 1.5.
    """
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}.")
