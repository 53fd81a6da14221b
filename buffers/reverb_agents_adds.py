"""How what agents do becomes moments with ends: who lives on, which episodes are over, what is counted."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from .agent_input import AgentAdd
from .agent_lives import AgentLives, Moment
from .agent_policies import AgentPolicies
from .base import WaitTimeoutError
from .episode_ends import EpisodeMarks, EpisodeRule
from .nests import Array

_NO_ID = -1


class MomentIds(NamedTuple):
    """The ids of what a moment stored.

    Attributes:
      agents: by agent that was present anywhere, int64, of its frames: `[n]` of `write_moment`; of `add_batch` `[B]`,
        -1 where it was absent.
      joint: int64, of the moments of environments: `[m]` of `write_moment`; of `add_batch` `[B]`, -1 where there was
        none. `[0]` where no table holds them.
    """

    agents: dict[str, Array]
    joint: Array


class MomentTables(Protocol):
    """What moments are written into."""

    def write_moment(
        self,
        frames: Mapping[str, list[Array]],
        rows: Mapping[str, Array],
        time: Array,
        *,
        marks: Mapping[str, EpisodeMarks] | None = None,
        ended: Mapping[str, Array] | None = None,
        codes: Array | None = None,
        joint_rows: Array | None = None,
        joint_marks: EpisodeMarks = ...,
        priorities: Mapping[str, Array] | None = None,
        joint_priorities: Array | None = None,
    ) -> MomentIds:
        """As `ReverbAgentTables.write_moment`."""

    def end_streams(self, agents: Mapping[str, Array] | None = None, environments: Array | None = None) -> None:
        """As `ReverbAgentTables.end_streams`."""


class AgentMoments:
    """Follows the lives of agents over moments, and writes those.

    A life ends by the agent's own last frame, or with the environment's episode, also where it is absent. The
    environment's episode ends where it is told to, or when all agents that lived in it have died; where a life begins
    that had not ended, the environment was started anew.

    Args:
      known: the agents.
      batch_size: `B`, environments.
      rules: by agent, tells where its episodes begin and end.
      has_joint: there is a table of moments.
    """

    def __init__(
        self, known: AgentPolicies, batch_size: int, rules: Mapping[str, EpisodeRule], *, has_joint: bool
    ) -> None:
        self._known = known
        self._batch_size = batch_size
        self._rules = dict(rules)
        self._tells_ends = any(rule.told_by_spec for rule in rules.values())
        self._has_joint = has_joint
        self._lock = threading.Lock()
        self._lives = AgentLives(len(known.agents), batch_size)
        self._times = np.zeros(batch_size, np.int64)

    def add(self, tables: MomentTables, add: AgentAdd, joint_priorities: Array | None) -> MomentIds:
        """Writes a moment of the environments in which anybody is present; ids `[B]`.

        Args:
          tables: what is written into.
          add: what the agents do.
          joint_priorities: float64 `[B]`, or None.

        Raises:
          ValueError, WaitTimeoutError: as `write_moment`.
        """
        agents, num = self._known.agents, self._batch_size
        with self._lock:
            flags = np.zeros((4, len(agents), num), bool)
            for agent, rows in add.rows.items():
                index, streams = agents.index(agent), None if add.is_everywhere else rows.environments
                marks = self._rules[agent].marks(rows.leaves, rows.ends, streams)
                flags[0, index, rows.environments] = True
                for flag, told in zip(flags[1:], marks, strict=True):
                    if told is not None:
                        flag[index, rows.environments] = told
            present, begins, ends, final = flags
            told_ends = np.zeros(num, bool) if add.ends is None else add.ends
            moment = self._lives.step(present, begins, ends, final, told_ends)
            # Who is absent where the episode is over, or the environment was started anew, does not live on.
            gone = self._lives.alive & ~present & (moment.begins | moment.ends)
            for agent, unseen in add.ended.items():
                gone[agents.index(agent), unseen] = True
            there = present.any(axis=0)
            environments = np.flatnonzero(there)
            ids = self._write(tables, add, flags, moment, gone, environments, joint_priorities)
            # Episodes that are over without a moment.
            if add.ends is not None:
                self._end_episodes(tables, np.flatnonzero(told_ends & ~there))
            for agent, unseen in add.ended.items():
                self._end_episodes(tables, self._lives.end_lives(agents.index(agent), unseen))
        return self._of_all(add, ids, environments)

    def end(self, tables: MomentTables, environment: int | None, agent: str | None) -> None:
        """The episode of an environment (None: of all) ends, or only the life of one agent in it."""
        agents = self._known.agents
        for rule in self._rules.values() if agent is None else (self._rules[agent],):
            rule.forget_loose_flags()
        chosen = np.arange(self._batch_size) if environment is None else np.array([environment])
        with self._lock:
            if agent is None:
                tables.end_streams(dict.fromkeys(agents, chosen))
                self._end_episodes(tables, chosen)
            else:
                tables.end_streams({agent: chosen})
                self._end_episodes(tables, self._lives.end_lives(agents.index(agent), chosen))

    def _end_episodes(self, tables: MomentTables, environments: Array) -> None:
        """The episodes of these environments, int64 `[n]`, are over without a moment."""
        if len(environments):
            tables.end_streams(environments=environments if self._has_joint else None)
            self._lives.end_environments(environments)

    def _write(
        self,
        tables: MomentTables,
        add: AgentAdd,
        flags: Array,
        moment: Moment,
        gone: Array,
        environments: Array,
        joint_priorities: Array | None,
    ) -> MomentIds:
        """Writes the moment, and notes it where it is written.

        Args:
          tables: what is written into.
          add: what the agents do.
          flags: bool `[4, agents, B]`: who is present, and of those whose frames begin, end, are only final.
          moment: what that is for the environments.
          gone: bool `[agents, B]`, who is absent and does not live on.
          environments: int64 `[m]`, those in which anybody is present.
          joint_priorities: float64 `[B]`, or None.
        """
        _, begins, ends, final = flags
        marks = {}
        for agent, rows in add.rows.items():
            index = self._known.agents.index(agent)
            marks[agent] = EpisodeMarks(*(flag[index, rows.environments] for flag in (begins, ends, final)))
        joint_final = moment.final[environments] if self._tells_ends else None
        joint_marks = EpisodeMarks(moment.begins[environments], moment.ends[environments], joint_final)
        try:
            ids = tables.write_moment(
                {agent: rows.leaves for agent, rows in add.rows.items()},
                {agent: rows.environments for agent, rows in add.rows.items()},
                self._times,
                marks=marks,
                ended={
                    self._known.agents[index]: np.flatnonzero(gone[index]) for index in np.flatnonzero(gone.any(axis=1))
                },
                codes=moment.codes if self._has_joint else None,
                joint_rows=environments,
                joint_marks=joint_marks,
                priorities={agent: rows.priorities for agent, rows in add.rows.items() if rows.priorities is not None},
                joint_priorities=None if joint_priorities is None else joint_priorities[environments],
            )
        except WaitTimeoutError as error:
            if error.num_written:
                self._note(moment, environments)
            raise
        except BaseException as error:
            if not isinstance(error, Exception):
                # Whether it is written is not known, and its streams are cut: no other moment gets its number.
                self._times[environments] += 1
            raise
        self._note(moment, environments)
        return ids

    def _note(self, moment: Moment, environments: Array) -> None:
        self._lives.commit(moment)
        self._times[environments] += 1

    def _of_all(self, add: AgentAdd, ids: MomentIds, environments: Array) -> MomentIds:
        """The ids of all environments, `[B]`."""
        by_agent = {}
        for agent, own in ids.agents.items():
            by_agent[agent] = np.full(self._batch_size, _NO_ID)
            by_agent[agent][add.rows[agent].environments] = own
        if not self._has_joint:
            return MomentIds(by_agent, ids.joint)
        joint = np.full(self._batch_size, _NO_ID)
        joint[environments] = ids.joint
        return MomentIds(by_agent, joint)
