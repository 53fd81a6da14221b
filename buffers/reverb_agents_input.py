"""What a moment of many agents brings, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .agent_frames import PRESENT, stream_of
from .agent_policies import AgentPolicies
from .episode_ends import EpisodeMarks
from .nests import Array
from .priorities import check_priorities
from .reverb_agents_writer import StepRows
from .reverb_priorities import TablePriorities

NO_MARKS = EpisodeMarks(None, None, None)


class MomentChecker:
    """Checks moments, and makes of them what is stored.

    Args:
      known: the agents.
      agents: the agents in the order of their numbers.
      batch_size: `B`, environments.
      has_stream: by agent whether its stored frames tell their stream.
      priorities_of: by agent the priorities of its policy's table; agents without one are left out.
      joint: the priorities of the table of moments; None: there is none.
      tells_ends: moments have an `is_last`.
    """

    def __init__(
        self,
        known: AgentPolicies,
        agents: Sequence[str],
        batch_size: int,
        *,
        has_stream: Mapping[str, bool],
        priorities_of: Mapping[str, TablePriorities],
        joint: TablePriorities | None,
        tells_ends: bool,
    ) -> None:
        self._known = known
        self._agents = tuple(agents)
        self._number_of = {agent: number for number, agent in enumerate(agents)}
        # The place of each agent in codes, which are in the order of `data_specs`.
        self._code_of = [known.agents.index(agent) for agent in agents]
        self._batch_size = batch_size
        self._everywhere = np.arange(batch_size)
        self._streams = {
            agent: stream_of(known.place_of(agent), np.arange(batch_size), len(known.agents_of(known.policy_of(agent))))
            for agent, there_is_one in has_stream.items()
            if there_is_one
        }
        self._priorities_of = dict(priorities_of)
        self._joint = joint
        self._tells_ends = tells_ends

    def steps(
        self,
        frames: Mapping[str, Sequence[Array]],
        rows: Mapping[str, Array],
        time: Array,
        marks: Mapping[str, EpisodeMarks],
        priorities: Mapping[str, Any],
    ) -> list[tuple[int, StepRows]]:
        """What each agent does, by their numbers in ascending order; arguments as in `write_moment`.

        Raises:
          ValueError: something does not fit; the message names the agent.
        """
        if time.shape != (self._batch_size,) or time.dtype != np.int64:
            raise ValueError(f"time: expected [{self._batch_size}] int64, got {list(time.shape)} {time.dtype}.")
        parts: tuple[tuple[str, Mapping[str, Any]], ...] = (
            ("rows", rows),
            ("marks", marks),
            ("priorities", priorities),
        )
        for name, part in parts:
            without = [agent for agent in part if agent not in frames]
            if without:
                raise ValueError(f"{name}: of agent {without[0]!r} there are no frames.")
        steps = []
        for agent, leaves in frames.items():
            number, where = self.number(agent), f"agent {agent!r}"
            if agent not in rows:
                raise ValueError(f"{where}: rows must say in which environments it is present.")
            environments = self.rows(where, rows[agent])
            if not len(environments):
                continue
            num_leaves = len(self._known.specs[agent].fields)
            if [len(leaf) for leaf in leaves] != [len(environments)] * num_leaves:
                raise ValueError(
                    f"{where}: expected {num_leaves} leaves of {len(environments)} rows, got leaves of "
                    f"{[len(leaf) for leaf in leaves]}."
                )
            stored = [*leaves, time[environments]]
            if agent in self._streams:
                stored.append(self._streams[agent][environments])
            its_marks = _checked_marks(where, marks.get(agent, NO_MARKS), len(environments))
            table = self._priorities_of.get(agent)
            given = _checked_priorities(where, table, priorities.get(agent), len(environments))
            steps.append((number, StepRows(environments, stored, its_marks, given)))
        steps.sort(key=lambda step: step[0])
        return steps

    def joint_step(
        self,
        steps: Sequence[tuple[int, StepRows]],
        time: Array,
        codes: Array | None,
        rows: Array | None,
        marks: EpisodeMarks,
        priorities: Any,
    ) -> StepRows | None:
        """The moments themselves; None where no table holds them, or no environment has one.

        Raises:
          ValueError: something does not fit; codes and rows must say the same about who is present.
        """
        if self._joint is None:
            if codes is not None or priorities is not None:
                raise ValueError("codes, joint_priorities: there is no table of moments here; give lockstep=.")
            return None
        environments = self._everywhere if rows is None else self.rows("joint_rows", rows)
        shape = (self._batch_size, len(self._agents))
        if codes is None or codes.dtype != np.uint8 or codes.shape != shape:
            found = "None" if codes is None else f"{list(codes.shape)} {codes.dtype}"
            raise ValueError(f"codes: expected {list(shape)} uint8, got {found}.")
        present = np.zeros(shape, np.uint8)
        for number, step in steps:
            present[step.environments, self._code_of[number]] = PRESENT
        differs = ((codes & PRESENT) != present).any(axis=1)
        if len(environments) < self._batch_size:
            has_moment = np.zeros(self._batch_size, bool)
            has_moment[environments] = True
            differs = np.where(has_moment, differs, present.any(axis=1))
        if differs.any():
            b = int(np.flatnonzero(differs)[0])
            there = [agent for agent, is_there in zip(self._known.agents, present[b].tolist(), strict=True) if is_there]
            raise ValueError(
                f"environment {b}: rows say that {', '.join(map(repr, there)) or 'nobody'} is present, and codes "
                f"{codes[b].tolist()}, with joint_rows, say otherwise."
            )
        if not len(environments):
            return None
        checked = _checked_marks("joint_marks", marks, len(environments))
        stored = [codes[environments], time[environments]]
        if self._tells_ends:
            stored.append(np.zeros(len(environments), bool) if checked.final is None else checked.final)
        given = _checked_priorities("joint_priorities", self._joint, priorities, len(environments))
        return StepRows(environments, stored, checked, given)

    def ended(self, ended: Mapping[str, Array], steps: Sequence[tuple[int, StepRows]]) -> list[tuple[int, Array]]:
        """Whose lives end in which environments, by the numbers of the agents.

        Args:
          ended: int64 `[n]` by agent.
          steps: what agents do in this moment, who must be others.

        Raises:
          ValueError: there is no such agent or environment, or the agent is present there.
        """
        there = {number: step.environments for number, step in steps}
        found = []
        for agent, environments in ended.items():
            number, checked = self.number(agent), self.rows(f"agent {agent!r}", environments)
            if number in there and np.isin(checked, there[number]).any():
                raise ValueError(f"ended: agent {agent!r} is present: its marks say whether its life ends.")
            found.append((number, checked))
        return found

    def number(self, agent: str) -> int:
        """The agent's number.

        Raises:
          ValueError: there is no such agent.
        """
        if agent not in self._number_of:
            self._known.check_agents("frames", (agent,))
        return self._number_of[agent]

    def rows(self, where: str, rows: Array) -> Array:
        """Environments, int64 `[n]`, ascending, each once.

        Raises:
          ValueError: they are not.
        """
        given, num = np.asarray(rows), self._batch_size
        right = given.ndim == 1 and (given.dtype.kind in "iu" or not given.size)
        if right and given.size:
            right = given[0] >= 0 and given[-1] < num and bool((given[1:] > given[:-1]).all())
        if not right:
            raise ValueError(
                f"{where}: expected environments int [n], ascending, each of 0 to {num - 1} at most once, got "
                f"{given.tolist()}."
            )
        return given.astype(np.int64, copy=False)


def _checked_marks(where: str, marks: EpisodeMarks, num: int) -> EpisodeMarks:
    for name, flags in zip(EpisodeMarks._fields, marks, strict=True):
        if flags is not None and (flags.dtype != bool or flags.shape != (num,)):
            raise ValueError(f"{where}: {name}: expected [{num}] bool, got {list(flags.shape)} {flags.dtype}.")
    return marks


def _checked_priorities(where: str, table: TablePriorities | None, priorities: Any, num: int) -> Array | None:
    if priorities is None:
        return None
    if table is None:
        raise ValueError(f"{where}: there is no table that could take its priorities.")
    try:
        refused = table.why_refused()
        if refused:
            raise ValueError(refused)
        given = check_priorities(priorities, None, (num,))
        table.check_sum(given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return given
