"""Experience of environments in which agents act one after the other (PettingZoo's `AECEnv`)."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from replayfeed.buffers.counts import check_count
from replayfeed.buffers.nests import Array, Nest

from .agent_moments import AgentMoments, AgentsBuffer, FinishedEpisode, Policy, Tally
from .agent_steps import Frame, for_environment


class TurnCollector:
    """Plays turn-based environments with policies, and stores each turn in a buffer of many agents.

    Each turn is a moment in which only the agent whose turn it is is present. Its frame holds what it observed, what it
    did, and what it got from then on until its next turn: whatever others brought about meanwhile is in it
    (`env.last()` sums it up). So a frame is complete at its agent's next turn, and is added then; turns are added in
    the order in which they were taken, so one that waits holds back those after it. An agent that was terminated or
    truncated takes no action in its last turn, which holds its final observation.

    What an environment gives an agent before its first action belongs to no action, and is in no frame; an agent that
    ends before it ever acted has no frames.

    Args:
      environments: one `AECEnv`, or a list of as many as the buffer's `batch_size`.
      policies: by name; each is called with what its agents whose turn it is observe, leaves `[n, ...]`, and answers
        with an action for each, `[n, ...]`.
      buffer: a `MultiAgentReplayBuffer` whose `data_specs` are `agent_data_specs(environment)`.
      seed: environment `b` is first reset with `seed + b`; later resets go on from there.

    Raises:
      ValueError: there are more or fewer environments than `batch_size`, or one comes twice.
      ValueError: an agent of an environment is none of the buffer's.
      ValueError: a policy is missing, or one that no agent follows is there.
      TypeError: a policy cannot be called, or an environment is for `ParallelCollector`.
      ValueError: the buffer's `data_spec` is not as `agent_data_specs` gives it.

    >>> import numpy as np
    >>> from pettingzoo import make
    >>> from replayfeed.buffers import BufferConfig, MultiAgentReplayBuffer
    >>> from replayfeed.pipelines import agent_data_specs
    >>> environment = make("aec", "classic/tictactoe-v3")
    >>> specs = agent_data_specs(environment)
    >>> buffer = MultiAgentReplayBuffer(specs, lambda agent: agent, BufferConfig("uniform", 100))
    >>> first_free = lambda observations: np.argmax(observations["action_mask"], axis=1)
    >>> collector = TurnCollector(environment, {"player_1": first_free, "player_2": first_free}, buffer)
    >>> [episode.returns for episode in collector.collect(9)]  # seven moves, and a last turn for each
    [{'player_1': 1.0, 'player_2': -1.0}]
    >>> buffer.stats("player_1").frames, buffer.stats("player_2").frames
    (5, 4)
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
            if not hasattr(environment, "last"):
                raise TypeError(f"{environment} is parallel (it has no last()): use ParallelCollector.")
        self._places = [_Place(environment) for environment in self._moments.environments]
        for b, place in enumerate(self._places):
            self._reset(place, None if seed is None else seed + b)

    def collect(self, num_turns: int, *, progress: bool = False) -> list[FinishedEpisode]:
        """Takes so many turns in each environment, from where the last call stopped, and adds those that are complete.

        Args:
          num_turns: at least 1; last turns, in which no action is taken, count.
          progress: a bar on stderr.

        Returns:
          The episodes that ended meanwhile.

        Raises:
          TypeError: `num_turns` is no int.
          ValueError: it is below 1.
          ValueError: an environment does not keep to the API: an observation or a reward has not the shape and dtype of
            its space, an agent that acted got no last turn, or nobody is there after a reset. The message names the
            agent.
          ValueError: a policy gives another number of actions, or some of another shape or dtype.
        """
        check_count("num_turns", num_turns)
        episodes: list[FinishedEpisode] = []
        for _ in tqdm(range(num_turns), desc="turns", disable=not progress):
            self._collect_one(episodes)
        return episodes

    def _collect_one(self, episodes: list[FinishedEpisode]) -> None:
        seen = [self._look(place) for place in self._places]
        acting = [b for b, turn in enumerate(seen) if not turn.ends]
        actions = self._moments.choose([(seen[b].agent, seen[b].observation) for b in acting])
        by_place = dict(zip(acting, actions, strict=True))
        for b, (place, turn) in enumerate(zip(self._places, seen, strict=True)):
            self._take(place, turn, by_place.get(b))
            if not place.environment.agents:
                self._check_all_ended(place)
                if place.turns:
                    place.turns[-1].ends_episode = True
                else:
                    # The last one to go never acted, and the turns before its own are added.
                    self._moments.end_stream(b)
                episodes.append(place.tally.finish(b))
                self._reset(place, None)
        self._add_complete()

    def _reset(self, place: _Place, seed: int | None) -> None:
        place.environment.reset(seed=seed)
        if not place.environment.agents:
            raise ValueError("the environment has no agents after its reset.")

    def _check_all_ended(self, place: _Place) -> None:
        if place.waiting:
            raise ValueError(
                f"the environment has no agents any more, and {sorted(place.waiting)} got no last turn, in which they "
                "would have been told what their last action led to."
            )

    def _look(self, place: _Place) -> _Seen:
        observation, reward, terminated, truncated, _ = place.environment.last()
        agent = place.environment.agent_selection
        steps = self._moments.steps(agent)
        return _Seen(agent, steps.observation(observation), steps.reward(reward), bool(terminated), bool(truncated))

    def _take(self, place: _Place, seen: _Seen, action: Nest | None) -> None:
        steps = self._moments.steps(seen.agent)
        place.tally.reward(seen.agent, seen.reward)
        acted = place.waiting.pop(seen.agent, None)
        if acted is not None:
            acted.frame = steps.frame(
                acted.observation,
                acted.action,
                reward=seen.reward,
                is_first=acted.is_first,
                terminated=seen.terminated,
            )
        if seen.ends:
            if acted is not None:
                final = steps.final_frame(seen.observation, terminated=seen.terminated)
                place.turns.append(_Turn(seen.agent, frame=final))
            place.environment.step(None)
            return
        place.tally.action(seen.agent)
        turn = _Turn(seen.agent, observation=seen.observation, action=action, is_first=acted is None)
        place.waiting[seen.agent] = turn
        place.turns.append(turn)
        place.environment.step(for_environment(action))

    def _add_complete(self) -> None:
        while any(place.next_is_complete for place in self._places):
            moments: list[dict[str, Frame]] = []
            ended: list[bool] = []
            for place in self._places:
                turn = place.turns.popleft() if place.next_is_complete else None
                moments.append({} if turn is None or turn.frame is None else {turn.agent: turn.frame})
                ended.append(turn is not None and turn.ends_episode)
            self._moments.add(moments, ended)


@dataclasses.dataclass
class _Seen:
    """What the agent whose turn it is sees, copied, and what it got since its last action."""

    agent: str
    observation: Nest
    reward: Array
    terminated: bool
    truncated: bool

    @property
    def ends(self) -> bool:
        return self.terminated or self.truncated


@dataclasses.dataclass
class _Turn:
    """A turn that was taken: `frame` is None until what followed is known."""

    agent: str
    frame: Frame | None = None
    observation: Nest = None
    action: Nest = None
    is_first: bool = False
    ends_episode: bool = False


@dataclasses.dataclass
class _Place:
    """An environment and where it stands.

    Attributes:
      environment: an `AECEnv`.
      turns: taken and not yet added, in order.
      waiting: by agent its newest turn, whose reward is not known yet.
      tally: of the episode.
    """

    environment: Any
    turns: collections.deque[_Turn] = dataclasses.field(default_factory=collections.deque)
    waiting: dict[str, _Turn] = dataclasses.field(default_factory=dict)
    tally: Tally = dataclasses.field(default_factory=Tally)

    @property
    def next_is_complete(self) -> bool:
        return bool(self.turns) and self.turns[0].frame is not None
