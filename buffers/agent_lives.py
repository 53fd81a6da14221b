"""Who is alive in each environment, and what that makes of a moment: births, deaths, the episode's end. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .agent_frames import FIRST_OF_LIFE, LAST_OF_LIFE, PRESENT
from .nests import Array


class Moment(NamedTuple):
    """What a moment is for its environments.

    Attributes:
      codes: uint8 `[B, agents]`, `JointFrame.codes`.
      begins: bool `[B]`, the environment was started anew before this moment without being ended.
      ends: bool `[B]`, the moment is the last of its environment's episode.
      final: bool `[B]`, it is that, and the frame of each agent present is only a final observation.
      alive: bool `[agents, B]`, who lives on: for `commit`.
      parted: bool `[agents, B]`, whose next frame does not go on with the one before, which did not end its life.
    """

    codes: Array
    begins: Array
    ends: Array
    final: Array
    alive: Array
    parted: Array


class AgentLives:
    """Follows the lives of agents.

    A life ends by the agent's own last frame, with the environment's episode, or because somebody says so. The
    environment's episode ends where it is told to, or when all agents that have lived in it have died.

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
        # Arrays are replaced, never changed.
        self._alive = np.zeros((num_agents, batch_size), bool)
        self._parted = np.zeros((num_agents, batch_size), bool)
        self._is_quiet = True

    @property
    def is_quiet(self) -> bool:
        """Whether no agent is parted from its last frame."""
        return self._is_quiet

    @property
    def alive(self) -> Array:
        """Who is alive, bool `[agents, B]`."""
        return self._alive

    @property
    def parted(self) -> Array:
        """Who is parted from its last frame, bool `[agents, B]`."""
        return self._parted

    def step(self, present: Array, begins: Array, ends: Array, final: Array, env_ends: Array) -> Moment:
        """What this moment is; the first four are bool `[agents, B]`, `env_ends` bool `[B]`. `commit` says that it was.

        Args:
          present: which agents have a frame.
          begins: whose frame is the first of its life.
          ends: whose frame is the last of its life.
          final: whose frame is only a final observation.
          env_ends: environments that end for all.
        """
        begins = begins & present
        # All that were alive begin anew, and nobody goes on: nobody told of the reset.
        goes_on = (self._alive | present) & ~begins
        restarted = (begins & self._alive).any(axis=0) & ~goes_on.any(axis=0)
        alive = (self._alive & ~restarted) | present
        first = present & ((begins & self._alive) | self._parted) & ~restarted
        ended = present & ends
        alive &= ~ended
        over = env_ends | (ended.any(axis=0) & ~alive.any(axis=0))
        all_final = present.any(axis=0) & ~(present & ~final).any(axis=0)
        alive[:, over] = False
        parted = self._parted & ~present & ~over & ~restarted
        codes = (PRESENT * present + LAST_OF_LIFE * ended + FIRST_OF_LIFE * first).astype(np.uint8).T
        return Moment(np.ascontiguousarray(codes), restarted, over, over & all_final, alive, parted)

    def copy(self) -> AgentLives:
        """Another that goes on from here."""
        other = AgentLives(*self._alive.shape)
        other._alive, other._parted, other._is_quiet = self._alive, self._parted, self._is_quiet
        return other

    def take_over(self, alive: Array, parted: Array) -> None:
        """Goes on where another was, bool `[agents, B]` each, which it keeps."""
        self._alive, self._parted = alive, parted
        self._is_quiet = not bool(parted.any())

    def commit(self, moment: Moment) -> None:
        """The moment was stored."""
        self._alive, self._parted = moment.alive, moment.parted
        if not self._is_quiet:
            self._is_quiet = not moment.parted.any()

    def end_environments(self, environments: Array) -> None:
        """The episodes of these environments, int64 `[n]`, are over, and with them all lives."""
        alive, parted = self._alive.copy(), self._parted.copy()
        alive[:, environments] = parted[:, environments] = False
        self._alive, self._parted = alive, parted

    def end_lives(self, agent: int, environments: Array) -> Array:
        """The agent's lives in these environments are over; gives those, int64 `[m]`, whose episode is by that."""
        alive, parted = self._alive.copy(), self._parted.copy()
        ending = environments[alive[agent, environments]]
        alive[agent, ending] = False
        parted[agent, ending] = True
        self._is_quiet = False
        self._alive, self._parted = alive, parted
        return ending[~alive[:, ending].any(axis=0)]
