"""Who is alive in each environment, and what that makes of a moment: births, deaths, the episode's end. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .agent_frames import LAST_OF_LIFE, PRESENT
from .nests import Array


class Moment(NamedTuple):
    """What a moment is for its environments.

    Attributes:
      codes: uint8 `[B, agents]`, `JointFrame.codes`.
      begins: bool `[B]`, the environment was started anew before this moment without being ended.
      ends: bool `[B]`, the moment is the last of its environment's episode.
      final: bool `[B]`, it is that, and the frame of each agent present is only a final observation.
      alive: bool `[agents, B]`, who lives on: for `commit`.
    """

    codes: Array
    begins: Array
    ends: Array
    final: Array
    alive: Array


class AgentLives:
    """Follows the lives of agents. A life ends by the agent's own last frame, or with the environment's episode.

    The environment's episode ends where it is told to, or when all agents that have lived in it have died.

    Args:
      num_agents: agents.
      batch_size: `B`, environments.

    >>> lives, yes, no = AgentLives(2, 1), np.ones([2, 1], bool), np.zeros([2, 1], bool)
    >>> moment = lives.step(yes, no, np.array([[True], [False]]), no, np.array([False]))
    >>> moment.codes.tolist()
    [[3, 1]]
    >>> lives.commit(moment)
    >>> lives.step(np.array([[False], [True]]), no, yes, no, np.array([False])).ends.tolist()
    [True]
    """

    def __init__(self, num_agents: int, batch_size: int) -> None:
        self._alive = np.zeros((num_agents, batch_size), bool)

    def step(self, present: Array, begins: Array, ends: Array, final: Array, env_ends: Array) -> Moment:
        """What this moment is; the first four are bool `[agents, B]`, `env_ends` bool `[B]`. `commit` says that it was.

        Args:
          present: which agents have a frame.
          begins: whose frame is the first of its life.
          ends: whose frame is the last of its life.
          final: whose frame is only a final observation.
          env_ends: environments that end for all.
        """
        # A life that begins while it goes on: nobody told of the reset.
        restarted = (begins & present & self._alive).any(axis=0)
        alive = (self._alive & ~restarted) | present
        ended = present & ends
        alive &= ~ended
        over = env_ends | (ended.any(axis=0) & ~alive.any(axis=0))
        all_final = present.any(axis=0) & ~(present & ~final).any(axis=0)
        alive[:, over] = False
        codes = (PRESENT * present + LAST_OF_LIFE * ended).astype(np.uint8).T
        return Moment(np.ascontiguousarray(codes), restarted, over, over & all_final, alive)

    @property
    def alive(self) -> Array:
        """Who is alive, bool `[agents, B]`."""
        return self._alive

    def copy(self) -> AgentLives:
        """Another that goes on from here."""
        other = AgentLives(*self._alive.shape)
        other._alive = self._alive
        return other

    def commit(self, moment: Moment) -> None:
        """The moment was stored."""
        self._alive = moment.alive

    def end(self, environments: Array | slice, agent: int | None = None) -> None:
        """Lives of these environments end; of one agent only, where it is named."""
        alive = self._alive.copy()
        alive[slice(None) if agent is None else agent, environments] = False
        self._alive = alive
