"""Windows to transitions of one or more steps, right at every kind of end.

What an n-step transition out of frame 0 of a window is, with `n = 3`:

    o0 o1 o2 o3             the sum runs over r0 r1 r2, and bootstraps from o3 with gamma^3
    o0 o1 F                 F is a final observation (time limit): r0 r1, from F, with gamma^2
    o0 o1 T                 d1 is 0 (terminal): r0 r1, nothing to bootstrap from
    o0 o1 .  .              cut without a final observation, or the newest frame: r0, from o1, with gamma
    o0 F  o0 o1             another episode's frames are never looked at, whatever the discounts say
"""

from __future__ import annotations

from collections.abc import Sequence

from .layouts import NEXT_OBSERVATION
from .reduce_windows import FieldNames, reduce_windows
from .rlds_steps import ACTION, DISCOUNT, OBSERVATION, REWARD
from .sample_windows import Transform
from .step_fields import TERMINAL_NAMES, TRUNCATED_NAMES, FinalFrame, FlagNames, Names
from .step_sum import StepSum


def n_step(
    n: int,
    gamma: float,
    *,
    observation: str = OBSERVATION,
    action: str | None = ACTION,
    reward: str = REWARD,
    discount: str | None = DISCOUNT,
    next_observation: str | None = NEXT_OBSERVATION,
    terminal: Names = TERMINAL_NAMES,
    truncated: Names = TRUNCATED_NAMES,
    final_frame: FinalFrame = "auto",
    next_action: bool = False,
    next_reward: bool = False,
    extras: Sequence[str] = (),
) -> Transform:
    """A function from windows of `n + 1` frames to n-step transitions out of their first frames.

    With `k <= n` the number of steps that are really there, and `D_j = d_t d_t+1 ... d_t+j-1` the stored
    discounts (`D_0 = 1`), which are 0 where a terminal state was reached:

        R = sum over j < k of gamma^j D_j r_t+j          the target is R + gamma^k D_k V(o_t+k)

    `k` is less than `n` at a terminal step, at a final observation, and where the next frame is padding or another
    episode's first one. A frame without a successor that is not terminal ends the sum before it: nobody knows
    what its action led to, so its own observation is bootstrapped from, with one step fewer.

    Other specs than a `Trajectory` become a `Transition`: `reward` is `R`, `discount` is `gamma^k D_k`, with which the
    value of `next_observation` is to be multiplied (no further gamma), `num_steps_used` is `k`. In `info`,
    `ids` and `mask` are `[B]`. Where a window holds no transition at all, `mask` is False, `weights` is 0, and so are
    reward and discount: a last frame without a final observation that is not terminal starts such a window. Give TD
    errors back with `update_priorities_from(info, td_errors)`, which takes that of such a row for 0.

    A TF-Agents `Trajectory` becomes one of two frames, `[B, 2]`, as TF-Agents' agents take it: `reward` is `R`, and
    because the agent multiplies by one gamma itself, which must be the same gamma,

        discount = gamma^(k - 1) D_k,     so that the agent's  R + gamma * discount * V(o_t+k)  is the target.

    Give the agent `n_step_update=1`, whatever `n` is. The second frame is frame `k` as it was stored (zeros where a
    terminal frame has no successor). Where there is no transition the first frame is a boundary frame
    (`step_type` LAST), which agents such as DQN mask. `ids` and `mask` are `[B, 2]`.

    Args:
      n: steps, at least 1.
      gamma: in [0, 1].
      observation: name of the field; a dict or namedtuple of fields is one too.
      action: its name; None: `Transition.action` is `()`.
      reward: its name.
      discount: its name where there is one; None for none.
      next_observation: where frames have it, each frame is a transition of its own, and windows have `n` frames
        instead of `n + 1`. None: take the next observation from the frame that follows all the same.
      terminal: names of flags that say that a frame's action led to a terminal state; on a final observation, that it
        is one.
      truncated: names of flags that say that the episode was cut after a frame's action.
      final_frame: as the buffer's: whether an episode's last frame is only a final observation.
      next_action: fill `Transition.next_action`, the action at `o_t+k`.
      next_reward: fill `Transition.next_reward`, the reward that followed it.
      extras: further fields of the first frame, a dict in `Transition.extras`.

    Returns:
      `(items, info) -> (items, info)`, for `Dataset.map` or for what `sample` gives, with or without the `B` axis.

    Raises:
      TypeError: `n` is no int.
      ValueError: `n` is below 1, `gamma` is not in [0, 1], or `final_frame` is none of its three.
      When called or traced, ValueError: a field is not there, or windows have another length; the message says
        which `Window` to ask for.

    R as in Sutton & Barto (2018), eq. 7.1, with the discount of each step in it.

    >>> import tensorflow as tf
    >>> from replayfeed.buffers import BufferInfo
    >>> frames = {"observation": tf.constant([[0, 1, 2, 3]]), "action": tf.constant([[5, 6, 7, 8]]),
    ...           "reward": tf.constant([[1.0, 10.0, 100.0, 1000.0]])}
    >>> info = BufferInfo(tf.constant([[4, 5, 6, -1]]), tf.ones([1]), tf.constant([4]), tf.ones([1]),
    ...                   tf.constant([[True, True, True, False]]))
    >>> items, info = n_step(3, 0.5)(frames, info)
    >>> [leaf.numpy().tolist() for leaf in (items.reward, items.discount, items.next_observation)]
    [[6.0], [0.25], [2]]
    """
    return reduce_windows(
        StepSum(n, gamma),
        FieldNames(observation, action, reward, next_observation, next_action, next_reward, tuple(extras)),
        FlagNames(discount, terminal, truncated, final_frame),
        called=f"n_step(n={n})",
    )


def transitions(
    *,
    observation: str = OBSERVATION,
    action: str | None = ACTION,
    reward: str = REWARD,
    discount: str | None = DISCOUNT,
    next_observation: str | None = NEXT_OBSERVATION,
    terminal: Names = TERMINAL_NAMES,
    truncated: Names = TRUNCATED_NAMES,
    final_frame: FinalFrame = "auto",
    next_action: bool = False,
    next_reward: bool = False,
    extras: Sequence[str] = (),
) -> Transform:
    """A function from windows of two frames to transitions of one step, without any gamma: `n_step(1, gamma=1)`.

    `discount` is the stored one, 0 where a terminal state was reached. All else, arguments and errors included, as
    `n_step` has it; of a `Trajectory` reward and discount stay as they are stored.

    >>> import tensorflow as tf
    >>> from replayfeed.buffers import BufferInfo
    >>> frames = {"observation": tf.constant([[0, 1]]), "action": tf.constant([[5, 6]]),
    ...           "reward": tf.constant([[1.0, 10.0]]), "terminal": tf.constant([[False, True]])}
    >>> info = BufferInfo(tf.constant([[4, 5]]), tf.ones([1]), tf.constant([4]), tf.ones([1]), tf.fill([1, 2], True))
    >>> items, info = transitions()(frames, info)
    >>> [leaf.numpy().tolist() for leaf in (items.reward, items.discount, items.next_observation)]
    [[1.0], [1.0], [1]]
    """
    return reduce_windows(
        StepSum(1, 1.0),
        FieldNames(observation, action, reward, next_observation, next_action, next_reward, tuple(extras)),
        FlagNames(discount, terminal, truncated, final_frame),
        called="transitions()",
    )
