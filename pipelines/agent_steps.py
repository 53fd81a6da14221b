"""What the frames of an agent's life are, from the spaces of its environment and from what the environment gave.

A life of `N` actions is `N + 1` frames, steps as RLDS has them. `0 <= i < N`:

| field | frame `i` | frame `N`, the final observation |
| --- | --- | --- |
| `observation` | `o_i` | `o_N` |
| `action` | `a_i`, taken at `o_i` | zeros, meaningless |
| `reward` | what the agent got from then on until its next observation | 0, meaningless |
| `discount` | 0 where the agent was terminated by then, else 1 | the same, meaningless |
| `is_first` | True in frame 0 only | False |
| `is_last` | False | True |
| `is_terminal` | False | whether it was terminated; not: truncated |

So `n_step` bootstraps from where an agent was truncated, and from nothing where it was terminated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, field_path, leaves_with_paths

from .rlds_steps import ACTION, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD

Frame = dict[str, Any]
"""One frame of one agent: arrays without outer axes, by field."""


def agent_data_specs(environment: Any) -> dict[str, Nest]:
    """The `data_specs` of `MultiAgentReplayBuffer` for an environment that speaks PettingZoo's API.

    Args:
      environment: parallel or turn-based; its `possible_agents` are asked for their spaces.

    Returns:
      By agent a dict of specs: observation and action as their spaces have them, reward and discount float32, and the
      flags `is_first`, `is_last` and `is_terminal`.

    Raises:
      ValueError: the environment does not say who its `possible_agents` are.
      ValueError: a space has no fixed shape, such as text; the message names the agent and the field.

    >>> from pettingzoo import make
    >>> specs = agent_data_specs(make("aec", "classic/tictactoe-v3"))
    >>> specs["player_1"]["observation"]["action_mask"]
    TensorSpec(shape=(9,), dtype=tf.int8, name=None)
    >>> specs["player_1"]["action"]
    TensorSpec(shape=(), dtype=tf.int64, name=None)
    """
    agents = getattr(environment, "possible_agents", None)
    if not agents:
        raise ValueError("the environment has no possible_agents: write the data_specs by hand, by agent.")
    number, flag = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.bool)
    return {
        str(agent): {
            OBSERVATION: _spec_of(environment.observation_space(agent), f"agent {agent!r}, field {OBSERVATION!r}"),
            ACTION: _spec_of(environment.action_space(agent), f"agent {agent!r}, field {ACTION!r}"),
            REWARD: number,
            DISCOUNT: number,
            IS_FIRST: flag,
            IS_LAST: flag,
            IS_TERMINAL: flag,
        }
        for agent in agents
    }


def _spec_of(space: Any, where: str) -> Nest:
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {name: _spec_of(part, f"{where}/{name}") for name, part in parts.items()}
    if parts is not None:
        return tuple(_spec_of(part, f"{where}/{index}") for index, part in enumerate(parts))
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        raise ValueError(f"{where}: a space of arrays of one shape is expected, got {space}.")
    return tf.TensorSpec(shape, tf.as_dtype(dtype))


def for_environment(action: Nest) -> Nest:
    """The action as an environment takes it: NumPy scalars for single numbers, copies of arrays.

    >>> for_environment(np.array(3)), for_environment({"speed": np.array([0.5])})
    (3, {'speed': array([0.5])})
    """
    if isinstance(action, Mapping):
        return {name: for_environment(part) for name, part in action.items()}
    if isinstance(action, tuple):
        return tuple(for_environment(part) for part in action)
    return action.copy() if action.ndim else action[()]


class AgentSteps:
    """Makes the frames of one agent. What it takes is copied: environments write into their arrays again.

    Args:
      agent: its name, for messages.
      data_spec: of its frames, as `agent_data_specs` gives it.

    Raises:
      ValueError: the spec lacks a field of these frames, or has another.

    >>> number, flag = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.bool)
    >>> spec = {"observation": tf.TensorSpec([2], tf.float32), "action": tf.TensorSpec([], tf.int64), "reward": number,
    ...         "discount": number, "is_first": flag, "is_last": flag, "is_terminal": flag}
    >>> steps = AgentSteps("walker", spec)
    >>> frame = steps.frame(
    ...     steps.observation([0.5, 1.0]), steps.action(3), reward=steps.reward(2), is_first=True, terminated=True
    ... )
    >>> int(frame["action"]), float(frame["reward"]), float(frame["discount"]), bool(frame["is_last"])
    (3, 2.0, 0.0, False)
    """

    def __init__(self, agent: str, data_spec: Nest) -> None:
        fields = (OBSERVATION, ACTION, REWARD, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL)
        found = sorted(data_spec) if isinstance(data_spec, Mapping) else type(data_spec).__name__
        if found != sorted(fields):
            raise ValueError(
                f"agent {agent!r}: expected a data_spec of the fields {sorted(fields)}, got {found}; agent_data_specs "
                "gives it."
            )
        self._agent = agent
        self._observation = _Part(agent, OBSERVATION, data_spec[OBSERVATION])
        self._action = _Part(agent, ACTION, data_spec[ACTION])
        self._reward = _Part(agent, REWARD, data_spec[REWARD])
        self._no_action = tf.nest.map_structure(
            lambda spec: np.zeros(spec.shape, spec.dtype.as_numpy_dtype), data_spec[ACTION]
        )
        self._no_reward = self._reward.checked(0.0)

    def observation(self, value: Any) -> Nest:
        """An observation of the environment in the spec's dtypes.

        Raises:
          ValueError: its structure, shape or kind is another, or a value does not survive.
        """
        return self._observation.checked(value)

    def action(self, value: Any) -> Nest:
        """A policy's action in the spec's dtypes.

        Raises:
          As `observation`.
        """
        return self._action.checked(value)

    def reward(self, value: Any) -> Array:
        """A reward of the environment, float32 `[]`.

        Raises:
          ValueError: it is not one number, or none that float32 holds.
        """
        return self._reward.checked(value)

    def frame(self, observation: Nest, action: Nest, *, reward: Array, is_first: bool, terminated: bool) -> Frame:
        """The frame of an action.

        Args:
          observation: as `observation` gave it.
          action: as `action` gave it.
          reward: as `reward` gave it, what followed.
          is_first: whether it is the agent's first action in its life.
          terminated: whether it was terminated before it could act again.
        """
        return {
            OBSERVATION: observation,
            ACTION: action,
            REWARD: reward,
            DISCOUNT: _NUMBERS[not terminated],
            IS_FIRST: _FLAGS[is_first],
            IS_LAST: _FLAGS[False],
            IS_TERMINAL: _FLAGS[False],
        }

    def final_frame(self, observation: Nest, *, terminated: bool) -> Frame:
        """The frame of the final observation, with which the life ends."""
        return {
            OBSERVATION: observation,
            ACTION: self._no_action,
            REWARD: self._no_reward,
            DISCOUNT: _NUMBERS[not terminated],
            IS_FIRST: _FLAGS[False],
            IS_LAST: _FLAGS[True],
            IS_TERMINAL: _FLAGS[terminated],
        }


_FLAGS = (np.zeros([], bool), np.ones([], bool))
_NUMBERS = (np.zeros([], np.float32), np.ones([], np.float32))


class _Part:
    """One field of a frame, which may be a nest."""

    def __init__(self, agent: str, name: str, spec: Nest) -> None:
        self._where = f"agent {agent!r}, field"
        self._name = name
        self._spec = spec
        self._is_leaf = isinstance(spec, tf.TensorSpec)
        self._leaves = [
            (field_path((name, *path)), tuple(leaf.shape), np.dtype(leaf.dtype.as_numpy_dtype))
            for path, leaf in leaves_with_paths(spec, ())
        ]

    def checked(self, value: Any) -> Nest:
        if self._is_leaf:
            return self._leaf(value, *self._leaves[0])
        found = {field_path((self._name, *path)): leaf for path, leaf in leaves_with_paths(value, (), self._spec)}
        expected = [path for path, _, _ in self._leaves]
        if list(found) != expected:
            raise ValueError(f"{self._where}s: expected {expected} as in the space, got {list(found)}.")
        leaves = [self._leaf(found[leaf[0]], *leaf) for leaf in self._leaves]
        return tf.nest.pack_sequence_as(self._spec, leaves)

    def _leaf(self, value: Any, path: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        given = np.asarray(value)
        if given.shape == shape and given.dtype == dtype:
            return given.copy()
        if given.shape != shape or given.dtype.kind not in "biuf":
            raise ValueError(
                f"{self._where} {path!r}: expected {list(shape)} {dtype}, got {list(given.shape)} {given.dtype}."
            )
        with np.errstate(all="ignore"):
            kept = given.astype(dtype)
            if given.dtype.kind == dtype.kind == "f":
                survives = np.isfinite(kept) | ~np.isfinite(given)
            else:
                # Compared both ways, so that a wrapped sign (255 in int8) is seen too.
                survives = (kept.astype(given.dtype) == given) & ((kept < 0) == (given < 0))
        if not survives.all():
            raise ValueError(f"{self._where} {path!r}: {given[~survives].flat[0]} does not survive in {dtype}.")
        return kept
