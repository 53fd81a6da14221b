"""What collectors of many agents share: policies that answer for all their agents at once, and adds of moments."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from replayfeed.buffers.nests import Array, Nest

from .agent_steps import AgentSteps, Frame

Policy = Callable[[Nest], Any]
"""Observations of `n` agents, leaves `[n, ...]`, to an action for each, leaves `[n, ...]`."""


class AgentsBuffer(Protocol):
    """What collectors need of a `MultiAgentReplayBuffer`."""

    @property
    def agents(self) -> Sequence[str]:
        """All of them."""

    @property
    def batch_size(self) -> int:
        """How many environments are written side by side."""

    @property
    def data_spec(self) -> Mapping[str, Nest]:
        """By agent the spec of its frames."""

    def policy_of(self, agent: str) -> str:
        """The policy that an agent follows."""

    def add_batch(self, items: Mapping[str, Nest], *, end_of_episode: Any = None, present: Any = None) -> Any:
        """Stores a moment of each environment."""

    def end_stream(self, b: int | None = None) -> None:
        """The lives in environment `b` (None: in all) stop here."""


class FinishedEpisode(NamedTuple):
    """What the agents of an environment came to, from its reset until the last of them ended.

    Attributes:
      environment: its number, below `batch_size`.
      returns: by agent the sum of what the environment gave it; also before its first action, which no frame holds.
      num_actions: by agent how often it acted.

    >>> FinishedEpisode(0, {"a": 1.5}, {"a": 7}).returns
    {'a': 1.5}
    """

    environment: int
    returns: dict[str, float]
    num_actions: dict[str, int]


class Tally:
    """Counts an episode up.

    >>> tally = Tally()
    >>> tally.reward("a", 1.0)
    >>> tally.action("a")
    >>> tally.finish(2)
    FinishedEpisode(environment=2, returns={'a': 1.0}, num_actions={'a': 1})
    """

    def __init__(self) -> None:
        self._returns: dict[str, float] = collections.defaultdict(float)
        self._num_actions: dict[str, int] = collections.defaultdict(int)

    def reward(self, agent: str, reward: Any) -> None:
        """Adds to an agent's return."""
        self._returns[agent] += float(reward)

    def action(self, agent: str) -> None:
        """Counts an action."""
        self._num_actions[agent] += 1

    def finish(self, environment: int) -> FinishedEpisode:
        """The episode, after which counting starts anew."""
        episode = FinishedEpisode(environment, dict(self._returns), dict(self._num_actions))
        self._returns.clear()
        self._num_actions.clear()
        return episode


class AgentMoments:
    """Asks policies and writes moments, for the environments side by side that a buffer has room for.

    Args:
      environments: one, or as many as the buffer's `batch_size`; they speak PettingZoo's API.
      policies: by name, for each policy that an agent of the buffer follows.
      buffer: where moments go. What it held before stops: none of its lives goes on in these environments.

    Raises:
      ValueError: there are more or fewer environments than `batch_size`.
      ValueError: the same environment comes twice.
      ValueError: an agent of an environment is none of the buffer's.
      ValueError: a policy is missing, or one that no agent follows is there.
      TypeError: a policy cannot be called.
      ValueError: the buffer's `data_spec` is not as `agent_data_specs` gives it.
    """

    def __init__(self, environments: Any, policies: Mapping[str, Policy], buffer: AgentsBuffer) -> None:
        self.environments = tuple(environments) if isinstance(environments, list | tuple) else (environments,)
        self._policies, self._buffer = dict(policies), buffer
        self._batch_size = buffer.batch_size
        if len(self.environments) != self._batch_size:
            raise ValueError(
                f"the buffer takes {self._batch_size} environments side by side (its batch_size), "
                f"got {len(self.environments)}."
            )
        if len({id(environment) for environment in self.environments}) < self._batch_size:
            raise ValueError("the same environment comes twice: build one for each place.")
        for environment in self.environments:
            for agent in getattr(environment, "possible_agents", ()):
                self._check_known(agent)
        followed = {buffer.policy_of(agent) for agent in buffer.agents}
        if set(self._policies) != followed:
            raise ValueError(
                f"policies: expected {sorted(followed)}, which agents follow, got {sorted(self._policies)}."
            )
        for name, policy in self._policies.items():
            if not callable(policy):
                raise TypeError(f"policy {name!r} must be a function of observations, got {type(policy).__name__}.")
        self._steps = {agent: AgentSteps(agent, buffer.data_spec[agent]) for agent in buffer.agents}
        self._policy_of = {agent: buffer.policy_of(agent) for agent in buffer.agents}
        buffer.end_stream()

    def steps(self, agent: str) -> AgentSteps:
        """What makes an agent's frames.

        Raises:
          ValueError: the buffer knows no such agent.
        """
        if agent not in self._steps:
            self._check_known(agent)
        return self._steps[agent]

    def choose(self, observed: Sequence[tuple[str, Nest]]) -> list[Nest]:
        """An action for each agent and its observation, as `AgentSteps` makes both; each policy is asked once.

        Raises:
          ValueError: a policy gives another number of actions, or some that do not fit the agent's spec.
        """
        rows: dict[str, list[int]] = collections.defaultdict(list)
        for row, (agent, _) in enumerate(observed):
            rows[self._policy_of[agent]].append(row)
        actions: list[Nest] = [None] * len(observed)
        for name, asked in rows.items():
            answer = self._policies[name](_stack([observed[row][1] for row in asked]))
            for row, action in zip(asked, _unstack(answer, len(asked), name), strict=True):
                actions[row] = self._steps[observed[row][0]].action(action)
        return actions

    def add(self, moments: Sequence[Mapping[str, Frame]], ended: Sequence[bool]) -> None:
        """Stores a moment of each environment.

        Args:
          moments: of each environment the frames of those of its agents that are present; maybe none.
          ended: whether it is the last moment of its episode.
        """
        places: dict[str, list[int]] = {}
        for b, frames in enumerate(moments):
            for agent in frames:
                places.setdefault(agent, []).append(b)
        items, present = {}, {}
        for agent, at in places.items():
            items[agent] = _rows([moments[b][agent] for b in at], at, self._batch_size)
            present[agent] = np.zeros([self._batch_size], bool)
            present[agent][at] = True
        self._buffer.add_batch(items, end_of_episode=np.array(ended, bool), present=present)

    def end_stream(self, b: int) -> None:
        """Says that what was added of environment `b` last was the end of an episode."""
        self._buffer.end_stream(b)

    def _check_known(self, agent: Any) -> None:
        if agent not in self._buffer.agents:
            raise ValueError(
                f"the environment has the agent {agent!r}, which the buffer does not know: {list(self._buffer.agents)}."
            )


def _stack(values: Sequence[Nest]) -> Nest:
    """One nest of leaves `[n, ...]` of `n` nests."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _stack([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stack(parts) for parts in zip(*values, strict=True))
    return np.stack(values)


def _rows(values: Sequence[Nest], at: Sequence[int], batch_size: int) -> Nest:
    """Leaves `[B, ...]` with these values in their places, zeros elsewhere."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _rows([value[name] for value in values], at, batch_size) for name in first}
    if isinstance(first, tuple):
        return tuple(_rows(parts, at, batch_size) for parts in zip(*values, strict=True))
    if batch_size == 1:
        return first[None]
    rows: Array = np.zeros([batch_size, *first.shape], first.dtype)
    for b, value in zip(at, values, strict=True):
        rows[b] = value
    return rows


def _unstack(answer: Nest, count: int, policy: str) -> list[Nest]:
    """What a policy answered, agent by agent."""
    if isinstance(answer, Mapping):
        parts = {name: _unstack(part, count, policy) for name, part in answer.items()}
        return [{name: part[index] for name, part in parts.items()} for index in range(count)]
    if isinstance(answer, tuple):
        return list(zip(*(_unstack(part, count, policy) for part in answer), strict=True))
    actions = np.asarray(answer)
    if actions.ndim == 0 or len(actions) != count:
        raise ValueError(
            f"policy {policy!r}: expected an action for each of {count} agents, [{count}, ...], "
            f"got {list(actions.shape)} {actions.dtype}."
        )
    return list(actions)
