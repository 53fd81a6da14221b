"""Many agents whose tables are on a server: moments are written once, and feed the tables of both modes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .agent_input import AgentAdd, add_one_by_one
from .nests import Array
from .reverb_agents import ReverbAgentTables


class ServedAgents:
    """Writes what agents do into tables.

    Args:
      tables: what is written into.
      is_lockstep: ids are wanted of moments, not of the agents' frames.
    """

    def __init__(self, tables: ReverbAgentTables, *, is_lockstep: bool) -> None:
        self._tables = tables
        self._is_lockstep = is_lockstep

    def add(self, add: AgentAdd, joint_priorities: Array | None) -> Any:
        """Writes a moment, or a sequence of them: ids by agent, or of moments, int64 `[B]` (`[B, T]`)."""
        if add.num_steps is None:
            ids = self._tables._moments.add(self._tables, add, joint_priorities)
            return ids.joint if self._is_lockstep else ids.agents
        ids = add_one_by_one(self.add, add, joint_priorities, self._tables.batch_size)
        return np.zeros((self._tables.batch_size, 0), np.int64) if self._is_lockstep and not add.num_steps else ids

    def end_stream(self, environment: int | None, agent: str | None) -> None:
        """The episode of an environment (None: of all) ends; or only the life of one agent in it."""
        self._tables.end_stream(environment, agent=agent)

    def clear(self) -> None:
        """All tables are empty, and moments are counted on."""
        self._tables.end_stream()
        self._tables.clear()
