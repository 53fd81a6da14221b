"""What may be added to an episode's steps at load: returns, marks, absorbing states, the episode's own fields. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest

from .rlds_steps import Steps, ends_in_zeros

RETURN_TO_GO = "return_to_go"
OBSERVATION_IS_FILLER = "observation_is_filler"
NEXT_OBSERVATION_IS_FILLER = "next_observation_is_filler"
EPISODE_METADATA = "episode_metadata"


def with_return_to_go(steps: Steps, gamma: float) -> Steps:
    """Adds step metadata `'return_to_go'`: what the rest of the episode brought, of the rewards' dtype `[N + 1]`.

        G_t = r_t + gamma d_t G_t+1

    The last step has 0: nothing follows. A truncated episode's sum ends where the episode does;
    nothing is bootstrapped.

    Sutton & Barto (2018), eq. 3.9; as "return-to-go" in Chen et al. (2021), arXiv:2106.01345, section 3.

    Raises:
      ValueError: the dataset has no reward, or it is no single number.

    >>> steps = Steps(np.arange(4), None, np.array([1.0, 2.0, 4.0]), np.ones(3), is_terminal=False)
    >>> with_return_to_go(steps, 0.5).metadata["return_to_go"].tolist()
    [3.0, 4.0, 4.0, 0.0]
    """
    if steps.reward is None or steps.reward.ndim != 1:
        raise ValueError("return_to_go needs a reward of one number a step, which the dataset does not have.")
    discount = gamma * steps.discount.astype(np.float64)
    discount[-1] = 0.0
    returns = _discounted_sums(steps.reward.astype(np.float64), discount)
    with np.errstate(over="ignore"):
        column = np.append(returns, 0.0).astype(steps.reward.dtype)
    return _with_column(steps, RETURN_TO_GO, column)


def with_zero_observation_told(steps: Steps, how: str) -> Steps:
    """What `zero_observation=` asks for of an all-zero observation behind a terminal transition.

    Args:
      steps: a sound episode.
      how: `'mark'` adds step metadata `'observation_is_filler'`, bool `[N + 1]`, True on that step;
        `'repeat'` puts the last recorded observation in its place; `'keep'` changes nothing.

    >>> steps = Steps(np.array([[1, 2], [0, 0]]), None, None, np.zeros(1), is_terminal=True)
    >>> with_zero_observation_told(steps, "repeat").observation.tolist()
    [[1, 2], [1, 2]]
    >>> with_zero_observation_told(steps, "mark").metadata
    {'observation_is_filler': array([False,  True])}
    """
    if how == "keep":
        return steps
    is_filler = ends_in_zeros(steps)
    if how == "mark":
        marks = np.zeros([len(steps.discount) + 1], bool)
        marks[-1] = is_filler
        return _with_column(steps, OBSERVATION_IS_FILLER, marks)
    if not is_filler:
        return steps
    return steps._replace(observation=tf.nest.map_structure(_last_repeated, steps.observation))


def with_absorbing_state(steps: Steps) -> Steps:
    """An episode in which ending is a state: a terminal one gets two more steps, that of an absorbing state.

    Every observation gets a last number, 1 in the absorbing state and 0 elsewhere; the
    absorbing state is zeros but for it. Nothing has discount 0 any more: what was the final
    observation leads into the absorbing state, which leads into itself, so that its value is
    learned like any other. Actions and rewards there are zeros, metadata repeats.

    Kostrikov et al. (2019), arXiv:1809.02925, section 4.2.

    Raises:
      ValueError: the observation is no single vector of floats.

    >>> steps = Steps(np.array([[5.0], [6.0]]), np.array([3]), np.array([2.0]), np.zeros(1), is_terminal=True)
    >>> longer = with_absorbing_state(steps)
    >>> longer.observation.tolist(), longer.action.tolist(), longer.reward.tolist(), longer.discount.tolist()
    ([[5.0, 0.0], [6.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [3, 0, 0], [2.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    """
    observation = steps.observation
    if not isinstance(observation, np.ndarray) or observation.ndim != 2 or observation.dtype.kind != "f":
        raise ValueError("absorbing states need an observation that is one vector of floats a step.")
    num_steps, size = observation.shape
    num_added = 2 if steps.is_terminal else 0
    longer = np.zeros([num_steps + num_added, size + 1], observation.dtype)
    longer[:num_steps, :-1] = observation
    longer[num_steps:, -1] = 1
    if not num_added:
        return steps._replace(observation=longer)

    def extended(column: Array) -> Array:
        return np.concatenate([column, np.zeros([num_added, *column.shape[1:]], column.dtype)])

    discount = np.concatenate([steps.discount, np.ones([num_added], steps.discount.dtype)])
    discount[num_steps - 2] = 1
    return Steps(
        observation=longer,
        action=None if steps.action is None else tf.nest.map_structure(extended, steps.action),
        reward=None if steps.reward is None else extended(steps.reward),
        discount=discount,
        is_terminal=False,
        metadata=tf.nest.map_structure(
            lambda column: np.concatenate([column, np.repeat(column[-1:], num_added, axis=0)]), dict(steps.metadata)
        ),
    )


def value_at(metadata: Mapping[str, Nest], name: str) -> Nest:
    """An episode's own field by its name, or part of one by its place.

    >>> value_at({"policy": {"bias": 3}}, "policy/bias")
    3
    """
    if name in metadata:
        return metadata[name]
    outer, _, inner = name.partition("/")
    while outer not in metadata and inner:
        more, _, inner = inner.partition("/")
        outer = f"{outer}/{more}"
    return value_at(metadata[outer], inner)


def with_episode_fields(steps: Steps, fields: Mapping[str, Nest]) -> Steps:
    """Adds step metadata `'episode_metadata'`: these fields of the episode itself, for each step.

    >>> steps = Steps(np.arange(2), None, None, np.ones(1), is_terminal=False)
    >>> with_episode_fields(steps, {"seed": np.int64(7)}).metadata["episode_metadata"]
    {'seed': array([7, 7])}
    """
    num_steps = len(steps.discount) + 1
    columns = tf.nest.map_structure(
        lambda value: np.broadcast_to(np.asarray(value), [num_steps, *np.shape(value)]), dict(fields)
    )
    return _with_column(steps, EPISODE_METADATA, columns)


def _with_column(steps: Steps, name: str, column: Nest) -> Steps:
    if name in steps.metadata:
        raise ValueError(f"the dataset has step metadata {name!r} already; fields={{{name!r}: Drop()}} leaves it out.")
    return steps._replace(metadata={**steps.metadata, name: column})


def _last_repeated(column: Array) -> Array:
    repeated = np.array(column)
    repeated[-1] = repeated[-2]
    return repeated


def _discounted_sums(r_t: Array, discount_t: Array) -> Array:
    """`G_t = r_t + discount_t G_t+1`, float64 `[N]`, by doubling: each round joins spans twice as long."""
    sums, factors = r_t.copy(), discount_t.copy()
    span = 1
    while span < len(sums):
        sums[:-span] += factors[:-span] * sums[span:]
        joined: Any = factors[:-span] * factors[span:]
        factors[:-span] = joined
        span *= 2
    return sums
