"""What a `MultiAgentReplayBuffer` is made of: its buffers, what writes into them, and what has to be closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from .agent_buffers import MakeBuffer, build_all, check_tables, divided_maker, makers_by_policy, served
from .agent_input import AgentAdd
from .agent_policies import AgentPolicies
from .base import ReplayBuffer
from .episode_ends import EpisodeRule
from .independent_agents import IndependentAgents
from .lockstep_agents import LockstepAgents
from .nests import Array, Nest
from .reverb_agents import ReverbAgentTables
from .served_agents import ServedAgents


class AgentWriter(Protocol):
    """Writes what agents do."""

    def add(self, add: AgentAdd, joint_priorities: Array | None) -> Any:
        """A moment, or a sequence of them: ids int64 `[B]` (`[B, T]`) by agent, in lockstep of moments."""

    def end_stream(self, environment: int | None, agent: str | None) -> None:
        """The episode of an environment (None: of all) ends; or only the life of one agent in it."""

    def clear(self) -> None:
        """Everything is empty, and moments are counted on."""


class AgentParts(NamedTuple):
    """What a buffer of many agents has.

    Attributes:
      known: the agents, in the order in which they are stored.
      buffers: by policy; in lockstep the one of all under `''`.
      independent: reads those of policies; None in lockstep.
      lockstep: reads the one of all; None where policies are independent.
      writer: writes into them.
      owned: what is to be closed with them.
    """

    known: AgentPolicies
    buffers: dict[str, ReplayBuffer]
    independent: IndependentAgents | None
    lockstep: LockstepAgents | None
    writer: AgentWriter
    owned: tuple[Any, ...]


def make_parts(
    known: AgentPolicies,
    make_buffer: MakeBuffer | Mapping[str, MakeBuffer] | ReverbAgentTables,
    batch_size: int,
    *,
    is_lockstep: bool,
    shards: int,
    together: bool,
    cast: bool,
    end_of_episode_fn: Callable[[Nest], Any] | None,
) -> AgentParts:
    """The parts that the arguments of `MultiAgentReplayBuffer` ask for.

    Raises:
      TypeError, ValueError, ImportError: as there.
    """
    if is_lockstep and isinstance(make_buffer, Mapping):
        raise ValueError("make_buffer by policy in lockstep: there is one buffer for all; give one.")
    tables, makers, joint = None, dict[str, MakeBuffer](), None
    if isinstance(make_buffer, ReverbAgentTables):
        if end_of_episode_fn is not None or shards != 1:
            raise ValueError("end_of_episode_fn and shards are settings of the ReverbAgentTables that were given.")
        check_tables(make_buffer, known, batch_size)
        tables = make_buffer
    else:
        if is_lockstep:
            joint = divided_maker(make_buffer, shards)
        else:
            makers = makers_by_policy(known, make_buffer, shards)
        tables = served(known, makers, joint, batch_size, cast=cast, end_of_episode_fn=end_of_episode_fn)
    if tables is None and not is_lockstep and end_of_episode_fn is not None:
        raise ValueError("end_of_episode_fn: independent policies have buffers of their own; give it to make_buffer.")
    if tables is not None and together:
        raise ValueError("streams='together' is for buffers in this process; tables take agents as they come.")
    if tables is None:
        known = known.in_alphabetical_order()
    owned: tuple[Any, ...] = () if tables is None or tables is make_buffer else (tables,)
    buffers: dict[str, ReplayBuffer]
    if is_lockstep:
        rules = {agent: EpisodeRule(spec, end_of_episode_fn) for agent, spec in known.specs.items()}
        if tables is not None:
            if tables._joint_table is None:
                raise ValueError("make_buffer: there is no table of moments in the tables given: give them lockstep=.")
            buffers = {"": tables.lockstep}
        else:
            assert joint is not None  # it is not served
            spec = LockstepAgents.frame_spec(known, rules)
            buffers = build_all({"": joint}, {"": spec}, {"": batch_size}, part=not together)
        lockstep = LockstepAgents(known, buffers[""], batch_size, rules, together=together)
        if tables is not None:
            return AgentParts(known, buffers, None, lockstep, ServedAgents(tables, is_lockstep=True), owned)
        return AgentParts(known, buffers, None, lockstep, lockstep, tuple(buffers.values()))
    if tables is not None:
        without = [policy for policy in known.policies if policy not in tables._table_of]
        if without:
            raise ValueError(
                f"make_buffer: policy {without[0]!r} has no table in the tables given: give them independent=, or read "
                "their moments with mode='lockstep'."
            )
        buffers = {policy: tables.of_policy(policy) for policy in known.policies}
    else:
        specs = {policy: IndependentAgents.frame_spec(known, policy, batch_size) for policy in known.policies}
        num_streams = {policy: IndependentAgents.num_streams(known, policy, batch_size) for policy in known.policies}
        buffers = build_all(makers, specs, num_streams, part=not together)
    independent = IndependentAgents(known, buffers, batch_size, together=together)
    if tables is not None:
        return AgentParts(known, buffers, independent, None, ServedAgents(tables, is_lockstep=False), owned)
    return AgentParts(known, buffers, independent, None, independent, tuple(buffers.values()))
