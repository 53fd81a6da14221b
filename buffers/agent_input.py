"""What an add of many agents brings, checked: rows of each agent, and whose environments they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .agent_policies import AgentPolicies
from .episode_ends import as_flags
from .nests import Array
from .priorities import check_priorities
from .spec import ItemChecker


class AgentRows(NamedTuple):
    """Checked frames of one agent, in `n` of the `B` environments.

    Attributes:
      leaves: `[n, ...]`, in a sequence `[n, T, ...]`.
      environments: int64 `[n]`, ascending; all of them where the agent is present everywhere.
      ends: bool `[n]` (`[n, T]`), ends that the items do not tell; None: none.
      priorities: float64, the same shape; None: none were given.
    """

    leaves: list[Array]
    environments: Array
    ends: Array | None
    priorities: Array | None


class AgentAdd(NamedTuple):
    """All that one add brings.

    Attributes:
      rows: by agent, in the order of the agents, those that are present anywhere.
      ended: by agent int64 `[m]`, environments in which it is absent and its life is over; in a sequence bool `[B, T]`.
      ends: bool `[B]` (`[B, T]`), environments that end for all of their agents; None: none, or all agents are there.
      num_steps: `T` of a sequence; None: one moment.
      as_tensors: whether the items are tensors, and ids are to be.
      is_everywhere: whether each of the agents with rows is present in all environments.
    """

    rows: dict[str, AgentRows]
    ended: dict[str, Array]
    ends: Array | None
    num_steps: int | None
    as_tensors: bool = False
    is_everywhere: bool = False

    @property
    def ends_absent_agents(self) -> bool:
        """Whether this is a sequence in which lives end of agents that have no frames in it."""
        return self.num_steps is not None and (bool(self.ended) or (self.ends is not None and bool(self.ends.any())))

    def is_present(self, batch_size: int) -> Array:
        """Environments in which any agent is present, bool `[B]`."""
        present = np.zeros(batch_size, bool)
        for rows in self.rows.values():
            present[rows.environments] = True
        return present


def moments_of(add: AgentAdd) -> Iterator[AgentAdd]:
    """The `T` moments of a sequence one by one."""
    for t in range(add.num_steps or 0):
        rows = {
            agent: AgentRows(
                [leaf[:, t] for leaf in each.leaves],
                each.environments,
                None if each.ends is None else each.ends[:, t],
                None if each.priorities is None else each.priorities[:, t],
            )
            for agent, each in add.rows.items()
        }
        ended = {agent: np.flatnonzero(flags[:, t]) for agent, flags in add.ended.items()}
        ends = None if add.ends is None else add.ends[:, t]
        yield add._replace(rows=rows, ended=ended, ends=ends, num_steps=None)


def add_one_by_one(
    add_moment: Callable[[AgentAdd, Array | None], Any], add: AgentAdd, joint_priorities: Array | None, batch_size: int
) -> Any:
    """Adds the moments of a sequence; their ids int64 `[B, T]`, by agent or of moments as `add_moment` gives them."""
    steps = []
    for t, moment in enumerate(moments_of(add)):
        steps.append(add_moment(moment, None if joint_priorities is None else joint_priorities[:, t]))
    if not steps:
        none = np.zeros((batch_size, 0), np.int64)
        return dict.fromkeys(add.rows, none)
    if isinstance(steps[0], dict):
        return {agent: np.stack([step[agent] for step in steps], axis=1) for agent in add.rows}
    return np.stack(steps, axis=1)


class AgentChecker:
    """Checks what an add brings before anything is written.

    Args:
      known: the agents.
      batch_size: `B`, environments.
      cast: convert within a kind instead of refusing.
    """

    def __init__(self, known: AgentPolicies, batch_size: int, *, cast: bool) -> None:
        self._known = known
        self._batch_size = batch_size
        self._checkers = {agent: ItemChecker(spec, batch_size, cast=cast) for agent, spec in known.specs.items()}
        self._everywhere = np.arange(batch_size)
        self._checks = {
            agent: (known.specs[agent].flatten, checker.check_leaves) for agent, checker in self._checkers.items()
        }

    def moment(self, items: Any, end_of_episode: Any, priorities: Any, present: Any) -> AgentAdd:
        """One moment, leaves `[B, ...]`.

        Raises:
          ValueError: something does not fit; the message names the agent, and the field.
        """
        if end_of_episode is None and priorities is None and present is None:
            return self._plain_moment(items)
        self._check_dicts(items, end_of_episode, priorities, present)
        ends = None
        if end_of_episode is not None and not isinstance(end_of_episode, Mapping):
            ends = as_flags("end_of_episode", end_of_episode, (self._batch_size,))
        by_agent: Mapping[str, Any] = end_of_episode if isinstance(end_of_episode, Mapping) else {}
        rows: dict[str, AgentRows] = {}
        ended: dict[str, Array] = {}
        as_tensors = False
        for agent, checker in self._checkers.items():
            try:
                told = by_agent.get(agent)
                flags = ends if told is None else as_flags("end_of_episode", told, (self._batch_size,))
                there = self._everywhere[:0]
                if agent in items:
                    given = self._known.specs[agent].flatten(items[agent])
                    as_tensors = isinstance(given[0], tf.Tensor)
                    rows[agent] = self._rows(checker, given, flags, _of(priorities, agent), _of(present, agent))
                    there = rows[agent].environments
                if told is not None and flags is not None:
                    ended[agent] = np.setdiff1d(np.flatnonzero(flags), there, assume_unique=True)
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from error
        rows = {agent: each for agent, each in rows.items() if len(each.environments)}
        ended = {agent: each for agent, each in ended.items() if len(each)}
        everywhere = all(len(each.environments) == self._batch_size for each in rows.values())
        return AgentAdd(rows, ended, ends, None, as_tensors, everywhere)

    def _plain_moment(self, items: Any) -> AgentAdd:
        """`moment` without anything but items, which most are."""
        if not isinstance(items, Mapping):
            self._check_dicts(items, None, None, None)
        rows, as_tensors = {}, False
        for agent, (flatten, check_leaves) in self._checks.items():
            if agent in items:
                try:
                    given = flatten(items[agent])
                    as_tensors = isinstance(given[0], tf.Tensor)
                    rows[agent] = AgentRows(check_leaves(given), self._everywhere, None, None)
                except ValueError as error:
                    raise ValueError(f"agent {agent!r}: {error}") from error
        if len(rows) < len(items):
            self._check_dicts(items, None, None, None)
        return AgentAdd(rows, {}, None, None, as_tensors, True)

    def sequence(self, items: Any, end_of_episode: Any, priorities: Any, environments: Array | None = None) -> AgentAdd:
        """`T` moments in which each agent that is named is present, leaves `[n, T, ...]`.

        Args:
          items: by agent.
          end_of_episode: bool `[n, T]`, or by agent.
          priorities: by agent `[n, T]`.
          environments: int64 `[n]`, ascending, whose moments they are; None: of all, so that `n` is `B`.

        Raises:
          ValueError: something does not fit, or agents disagree about `T`.
        """
        self._check_dicts(items, end_of_episode, priorities, None)
        chosen = self._everywhere if environments is None else environments
        by_agent: Mapping[str, Any] = end_of_episode if isinstance(end_of_episode, Mapping) else {}
        rows: dict[str, AgentRows] = {}
        num_steps: int | None = None
        as_tensors = False
        for agent, checker in self._checkers.items():
            if agent not in items:
                continue
            try:
                flat = self._known.specs[agent].flatten(items[agent])
                as_tensors = isinstance(flat[0], tf.Tensor)
                leaves, length = checker.check_sequence_leaves(flat, len(chosen))
                num_steps = length if num_steps is None else num_steps
                if length != num_steps:
                    raise ValueError(f"it has {length} steps, and agents before it have {num_steps}.")
                shape = (len(chosen), length)
                told = by_agent.get(agent) if isinstance(end_of_episode, Mapping) else end_of_episode
                ends = None if told is None else as_flags("end_of_episode", told, shape)
                given = _of(priorities, agent)
                checked = None if given is None else check_priorities(given, None, shape)
                rows[agent] = AgentRows(leaves, chosen, ends, checked)
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from error
        shape = (len(chosen), num_steps or 0)
        absent = [agent for agent in self._checkers if agent not in items]
        ended = {
            agent: self._in_all(as_flags(f"agent {agent!r}: end_of_episode", by_agent[agent], shape), chosen)
            for agent in absent
            if agent in by_agent
        }
        ends = None
        if absent and end_of_episode is not None and not isinstance(end_of_episode, Mapping):
            ends = self._in_all(as_flags("end_of_episode", end_of_episode, shape), chosen)
        everywhere = len(chosen) == self._batch_size
        return AgentAdd(rows if len(chosen) else {}, ended, ends, num_steps or 0, as_tensors, everywhere)

    def _in_all(self, flags: Array, environments: Array) -> Array:
        """Bool `[B, T]` of flags `[n, T]` of some environments: False in the others."""
        if len(environments) == self._batch_size:
            return flags
        everywhere = np.zeros((self._batch_size, flags.shape[1]), bool)
        everywhere[environments] = flags
        return everywhere

    def trace(self, items: Any, *, sequence: bool, num_rows: int | None) -> None:
        """Checks inside a `tf.function` what tracing knows: structure, dtypes and static shapes, `num_rows` rows.

        Raises:
          ValueError: something does not fit.
        """
        self._check_dicts(items, None, None, None)
        for agent in items:
            try:
                self._checkers[agent].trace(items[agent], num_rows=num_rows, sequence=sequence)
            except ValueError as error:
                raise ValueError(f"agent {agent!r}: {error}") from error

    def _rows(
        self, checker: ItemChecker, given: list[Any], ends: Array | None, priorities: Any, present: Any
    ) -> AgentRows:
        shape = (self._batch_size,)
        if present is None:
            checked = None if priorities is None else check_priorities(priorities, None, shape)
            return AgentRows(checker.check_leaves(given), self._everywhere, ends, checked)
        rows = np.flatnonzero(as_flags("present", present, shape))
        # Of absent rows nothing is looked at: they may hold what no check would let through.
        arrays = [leaf.numpy() if isinstance(leaf, tf.Tensor | tf.Variable) else leaf for leaf in given]
        if all(isinstance(leaf, np.ndarray) and leaf.shape[:1] == shape for leaf in arrays):
            leaves = checker.check_leaves([leaf[rows] for leaf in arrays], len(rows))
        else:
            leaves = [leaf[rows] for leaf in checker.check_leaves(arrays)]
        checked = None
        if priorities is not None:
            raw = np.asarray(priorities)
            checked = check_priorities(raw[rows] if raw.shape == shape else raw, None, rows.shape)
        return AgentRows(leaves, rows, None if ends is None else ends[rows], checked)

    def _check_dicts(self, items: Any, end_of_episode: Any, priorities: Any, present: Any) -> None:
        if not isinstance(items, Mapping):
            raise ValueError(f"items must be a dict by agent, got {type(items).__name__}.")
        for agent in items:
            if agent not in self._checkers:
                self._known.check_agents("items", items)
        for name, value in (("priorities", priorities), ("present", present)):
            if value is not None and not isinstance(value, Mapping):
                raise ValueError(f"{name} must be a dict by agent, got {type(value).__name__}.")
        for name, value in (("end_of_episode", end_of_episode), ("priorities", priorities), ("present", present)):
            if isinstance(value, Mapping):
                self._known.check_agents(name, value)
                without = [agent for agent in value if agent not in items]
                # Whose life is over needs no frame.
                if without and name != "end_of_episode":
                    raise ValueError(f"{name} names {without[0]!r}, of which items has no frame.")
        if priorities is not None:
            self._check_whole_policies(items, priorities)

    def _check_whole_policies(self, items: Mapping[str, Any], priorities: Mapping[str, Any]) -> None:
        for agent in priorities:
            policy = self._known.policy_of(agent)
            without = [other for other in self._known.agents_of(policy) if other in items and other not in priorities]
            if without:
                raise ValueError(
                    f"priorities names {agent!r} and not {without[0]!r}, which shares its policy {policy!r}: give "
                    "those of both, or of none."
                )


def _of(by_agent: Mapping[str, Any] | None, agent: str) -> Any:
    return None if by_agent is None else by_agent.get(agent)
