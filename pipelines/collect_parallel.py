"""Experience of environments in which all living agents act at once (PettingZoo's `ParallelEnv`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from replayfeed.buffers.counts import check_count
from replayfeed.buffers.nests import Nest

from .agent_moments import AgentMoments, AgentsBuffer, FinishedEpisode, Policy, Tally
from .agent_steps import Frame, for_environment


class ParallelCollector:
    """Plays parallel environments with policies, and stores each moment in a buffer of many agents.

    A moment holds what the agents of an environment observed at one time, what they did then, and what that gave them.
    An agent that ends (it is terminated or truncated while others go on) is present in one moment more, with its final
    observation; then it is absent. One that joins late is present from its first observation on. The last moment of an
    episode holds the final observations of those that ended last, and no action is taken in it; the environment is
    reset after it. So an episode of `n` steps is `n + 1` moments.

    What an environment gives an agent before its first action or after its death belongs to no action of its, and is
    in no frame.

    Args:
      environments: one `ParallelEnv`, or a list of as many as the buffer's `batch_size`.
      policies: by name; each is called with the observations of all its living agents at once, leaves `[n, ...]`, and
        answers with an action for each, `[n, ...]`.
      buffer: a `MultiAgentReplayBuffer` whose `data_specs` are `agent_data_specs(environment)`.
      seed: environment `b` is first reset with `seed + b`; later resets go on from there.

    Raises:
      ValueError: there are more or fewer environments than `batch_size`, or one comes twice.
      ValueError: an agent of an environment is none of the buffer's.
      ValueError: a policy is missing, or one that no agent follows is there.
      TypeError: a policy cannot be called, or an environment is for `TurnCollector`.
      ValueError: the buffer's `data_spec` is not as `agent_data_specs` gives it.

    >>> import numpy as np
    >>> from pettingzoo import make
    >>> from replayfeed.buffers import BufferConfig, MultiAgentReplayBuffer
    >>> from replayfeed.pipelines import agent_data_specs
    >>> environment = make("parallel", "butterfly/knights_archers_zombies-v11", max_cycles=8)
    >>> kind_of = lambda agent: agent.split("_")[0]
    >>> buffer = MultiAgentReplayBuffer(agent_data_specs(environment), kind_of, BufferConfig("uniform", 1000))
    >>> attack = lambda observations: np.full([len(observations)], 4)
    >>> collector = ParallelCollector(environment, {"archer": attack, "knight": attack}, buffer, seed=0)
    >>> [episode.num_actions["knight_1"] for episode in collector.collect(20)]
    [8, 8]
    >>> buffer.stats("archer").frames
    40
    """

    def __init__(
        self,
        environments: Any,
        policies: Mapping[str, Policy],
        buffer: AgentsBuffer,
        *,
        seed: int | None = None,
    ) -> None:
        self._moments = AgentMoments(environments, policies, buffer)
        for environment in self._moments.environments:
            if hasattr(environment, "last"):
                raise TypeError(f"{environment} is turn-based (it has last()): use TurnCollector.")
        self._places = [_Place(environment) for environment in self._moments.environments]
        for b, place in enumerate(self._places):
            self._reset(place, None if seed is None else seed + b)

    def collect(self, num_moments: int, *, progress: bool = False) -> list[FinishedEpisode]:
        """Adds so many moments of each environment, from where the last call stopped.

        Args:
          num_moments: at least 1.
          progress: a bar on stderr.

        Returns:
          The episodes that ended meanwhile.

        Raises:
          TypeError: `num_moments` is no int.
          ValueError: it is below 1.
          ValueError: an environment does not keep to the API: an agent that is neither in its `agents` after a step nor
            was terminated or truncated, or that is both; an observation, reward or flag is missing, or has
            not the shape and dtype of its space; nobody is there after a reset. The message names the agent.
          ValueError: a policy gives another number of actions, or some of another shape or dtype.
        """
        check_count("num_moments", num_moments)
        episodes: list[FinishedEpisode] = []
        for _ in tqdm(range(num_moments), desc="moments", disable=not progress):
            self._collect_one(episodes)
        return episodes

    def _collect_one(self, episodes: list[FinishedEpisode]) -> None:
        observed = [pair for place in self._places for pair in place.living.items()]
        actions = iter(self._moments.choose(observed))
        # Before any environment takes its step, so that a policy's mistake leaves all of them where they were.
        chosen = [{agent: next(actions) for agent in place.living} for place in self._places]
        moments = [self._step(place, acts) for place, acts in zip(self._places, chosen, strict=True)]
        ended = [not place.living and not place.finals for place in self._places]
        self._moments.add(moments, ended)
        for b, place in enumerate(self._places):
            if ended[b]:
                episodes.append(place.tally.finish(b))
                self._reset(place, None)

    def _reset(self, place: _Place, seed: int | None) -> None:
        observations, _ = place.environment.reset(seed=seed)
        place.living = {
            agent: self._observation(agent, observations, "its reset") for agent in list(place.environment.agents)
        }
        place.newborn = set(place.living)
        if not place.living:
            raise ValueError("the environment has no agents after its reset.")

    def _step(self, place: _Place, actions: Mapping[str, Nest]) -> dict[str, Frame]:
        """Takes a step; returns the frames of the moment before it."""
        frames, place.finals = place.finals, {}
        if not actions:
            return frames
        observations, rewards, terminations, truncations, _ = place.environment.step(
            {agent: for_environment(action) for agent, action in actions.items()}
        )
        present = list(place.environment.agents)
        rewards = {agent: self._moments.steps(agent).reward(reward) for agent, reward in rewards.items()}
        for agent, reward in rewards.items():
            place.tally.reward(agent, reward)
        for agent, action in actions.items():
            steps = self._moments.steps(agent)
            terminated = bool(_given(agent, terminations, "a termination"))
            ends = terminated or bool(_given(agent, truncations, "a truncation"))
            if ends == (agent in present):
                found = "ended and is still" if ends else "was neither terminated nor truncated and is no longer"
                raise ValueError(
                    f"agent {agent!r} {found} among the environment's agents: an agent leaves them with the step that "
                    "ends it."
                )
            frames[agent] = steps.frame(
                place.living[agent],
                action,
                reward=_given(agent, rewards, "a reward"),
                is_first=agent in place.newborn,
                terminated=terminated,
            )
            place.tally.action(agent)
            if ends:
                final = self._observation(agent, observations, "the step that ended it")
                place.finals[agent] = steps.final_frame(final, terminated=terminated)
        place.newborn = set(present) - set(actions)
        place.living = {agent: self._observation(agent, observations, "a step") for agent in present}
        return frames

    def _observation(self, agent: str, observations: Mapping[str, Any], when: str) -> Nest:
        return self._moments.steps(agent).observation(_given(agent, observations, f"an observation of {when}"))


@dataclasses.dataclass
class _Place:
    """An environment and where it stands.

    Attributes:
      environment: a `ParallelEnv`.
      living: by agent what it observes now, of those that are to act.
      newborn: those of them that have not acted yet in this life.
      finals: by agent its final frame, of those that ended with the last step.
      tally: of the episode.
    """

    environment: Any
    living: dict[str, Nest] = dataclasses.field(default_factory=dict)
    newborn: set[str] = dataclasses.field(default_factory=set)
    finals: dict[str, Frame] = dataclasses.field(default_factory=dict)
    tally: Tally = dataclasses.field(default_factory=Tally)


def _given(agent: str, values: Mapping[str, Any], what: str) -> Any:
    if agent not in values:
        raise ValueError(f"agent {agent!r}: the environment gave {what} to {sorted(values)} only.")
    return values[agent]
