"""Which agents there are, what a frame of each holds, and which policy learns from it. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .nests import Nest
from .spec import DataSpec


class AgentPolicies:
    """Agents and their policies, each in the order in which the agents were given.

    That order numbers agents for the user (`given`), and places them in what is stored (`agents`), where other programs
    know them by it: tables on a server. What is stored in this process does not depend on the order of a dict, which
    may be another one in the process that takes it over: `in_alphabetical_order`.

    Args:
      data_specs: by agent the nest of `tf.TensorSpec` of its frames.
      policy_of: by agent its policy: a mapping, or a function of the agent.

    Raises:
      TypeError: `data_specs` is no mapping, `policy_of` neither mapping nor function, or an agent or policy no str.
      ValueError: there is no agent, or one has no policy.
      ValueError: agents of one policy have different specs.
      TypeError, ValueError: as `DataSpec` raises them; the message names the agent.

    >>> import tensorflow as tf
    >>> spec = tf.TensorSpec([], tf.float32)
    >>> known = AgentPolicies({"wolf_0": spec, "wolf_1": spec, "sheep": spec}, lambda agent: agent.split("_")[0])
    >>> known.policies, known.agents_of("wolf"), known.place_of("wolf_1")
    (('wolf', 'sheep'), ('wolf_0', 'wolf_1'), 1)
    """

    def __init__(self, data_specs: Mapping[str, Nest], policy_of: Mapping[str, str] | Callable[[str], str]) -> None:
        if not isinstance(data_specs, Mapping):
            raise TypeError(f"data_specs must be a dict of specs by agent, got {type(data_specs).__name__}.")
        if not data_specs:
            raise ValueError("data_specs is empty: there must be at least one agent.")
        if not isinstance(policy_of, Mapping) and not callable(policy_of):
            raise TypeError(f"policy_of must be a dict or a function agent -> policy, got {policy_of!r}.")
        self.given = tuple(data_specs)
        for agent in self.given:
            if not isinstance(agent, str):
                raise TypeError(f"data_specs: agents are named by str, got {agent!r}.")
        self.agents = self.given
        if isinstance(policy_of, Mapping):
            self._check_names("policy_of", policy_of)
        self._policy_of: dict[str, str] = {agent: _policy(policy_of, agent) for agent in self.given}
        self.policies = tuple(dict.fromkeys(self._policy_of.values()))
        self._agents_of = self._grouped()
        self.specs = {agent: _data_spec(agent, data_specs[agent]) for agent in self.agents}
        for agents in self._agents_of.values():
            first = self.specs[agents[0]]
            for other in agents[1:]:
                self._check_alike(agents[0], first, other, self.specs[other])

    def in_alphabetical_order(self) -> AgentPolicies:
        """The same agents, stored in the order of their names; they keep the numbers of `given`.

        >>> import tensorflow as tf
        >>> spec = tf.TensorSpec([], tf.float32)
        >>> known = AgentPolicies({"wolf": spec, "sheep": spec}, lambda agent: "animal").in_alphabetical_order()
        >>> known.given, known.agents, known.agents_of("animal"), known.place_of("wolf")
        (('wolf', 'sheep'), ('sheep', 'wolf'), ('sheep', 'wolf'), 1)
        """
        other = copy.copy(self)
        other.agents = tuple(sorted(self.given))
        other._agents_of = other._grouped()
        other.specs = {agent: self.specs[agent] for agent in other.agents}
        return other

    @property
    def data_specs(self) -> dict[str, Nest]:
        """By agent the nest that was given, in the order of `agents`."""
        return {agent: spec.nest for agent, spec in self.specs.items()}

    def policy_of(self, agent: str) -> str:
        """The policy that learns from this agent.

        Raises:
          ValueError: there is no such agent.
        """
        self._check_names("agent", (agent,))
        return self._policy_of[agent]

    def agents_of(self, policy: str) -> tuple[str, ...]:
        """The agents of a policy, in the order of `agents`.

        Raises:
          ValueError: there is no such policy.
        """
        self.check_policies("policy", (policy,))
        return self._agents_of[policy]

    def place_of(self, agent: str) -> int:
        """The agent's place among those of its policy."""
        return self._agents_of[self._policy_of[agent]].index(agent)

    def check_agents(self, name: str, given: Iterable[Any]) -> None:
        """Refuses what is no agent.

        Raises:
          ValueError: one of them is none; the message names all that are.
        """
        self._check_names(name, given)

    def check_policies(self, name: str, given: Iterable[Any]) -> None:
        """Refuses what is no policy.

        Raises:
          ValueError: one of them is none; the message names all that are.
        """
        unknown = [policy for policy in given if policy not in self.policies]
        if unknown:
            raise ValueError(
                f"{name}: there is no policy {', '.join(map(repr, unknown))}; there are "
                f"{', '.join(map(repr, self.policies))}."
            )

    def _grouped(self) -> dict[str, tuple[str, ...]]:
        """By policy its agents."""
        return {
            policy: tuple(agent for agent in self.agents if self._policy_of[agent] == policy)
            for policy in self.policies
        }

    def _check_names(self, name: str, given: Iterable[Any]) -> None:
        unknown = [agent for agent in given if agent not in self.agents]
        if unknown:
            raise ValueError(
                f"{name}: there is no agent {', '.join(map(repr, unknown))}; there are "
                f"{', '.join(map(repr, self.agents))}."
            )

    def _check_alike(self, agent: str, spec: DataSpec, other: str, its_spec: DataSpec) -> None:
        mine, its = ({field.path: field.expected(()) for field in each.fields} for each in (spec, its_spec))
        for path in sorted({*mine, *its}):
            if mine.get(path) != its.get(path):
                raise ValueError(
                    f"agents {agent!r} and {other!r} share policy {self._policy_of[agent]!r}, and their specs differ: "
                    f"field {path!r} is {mine.get(path, 'missing')} and {its.get(path, 'missing')}; give them equal "
                    "specs, or policies of their own."
                )


def _policy(policy_of: Mapping[str, str] | Callable[[str], str], agent: str) -> str:
    if isinstance(policy_of, Mapping):
        if agent not in policy_of:
            raise ValueError(f"policy_of has no policy for agent {agent!r}.")
        policy = policy_of[agent]
    else:
        policy = policy_of(agent)
    if not isinstance(policy, str):
        raise TypeError(f"policy_of: policies are named by str, got {policy!r} for agent {agent!r}.")
    return policy


def _data_spec(agent: str, spec: Nest) -> DataSpec:
    try:
        return DataSpec(spec)
    except (TypeError, ValueError) as error:
        raise type(error)(f"agent {agent!r}: {error}") from error
