"""What `make_buffer` may be, and the buffers that come of it: one for each policy, or one for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from .agent_policies import AgentPolicies
from .base import ReplayBuffer
from .buffer_config import BufferConfig
from .counts import check_count
from .episodic import EpisodicReplayBuffer
from .nests import Nest
from .reservoir import ReservoirReplayBuffer
from .reverb_agents import ReverbAgentTables
from .ring_buffer import RingReplayBuffer
from .rollout import RolloutBuffer
from .spec import DataSpec
from .tables import TableConfig

_KINDS = (RingReplayBuffer, EpisodicReplayBuffer, ReservoirReplayBuffer)

MakeBuffer = BufferConfig | TableConfig | Callable[..., ReplayBuffer]


def makers_by_policy(
    known: AgentPolicies, make_buffer: MakeBuffer | Mapping[str, MakeBuffer], shards: int
) -> dict[str, MakeBuffer]:
    """For each policy what makes its buffer, of the capacity that one of so many shards has.

    Raises:
      TypeError: `make_buffer`, or that of a policy, is none of what it may be.
      ValueError: a policy has none, or there is no such policy.
      TypeError, ValueError: as `divided_maker`.
    """
    if isinstance(make_buffer, Mapping):
        known.check_policies("make_buffer", make_buffer)
        without = [policy for policy in known.policies if policy not in make_buffer]
        if without:
            raise ValueError(f"make_buffer has nothing for policy {without[0]!r}.")
        return {policy: divided_maker(make_buffer[policy], shards) for policy in known.policies}
    maker = divided_maker(make_buffer, shards)
    if isinstance(maker, TableConfig) and len(known.policies) > 1:
        # One table cannot have the frames of several policies.
        return {policy: dataclasses.replace(maker, name=f"{maker.name}_{policy}") for policy in known.policies}
    if isinstance(maker, BufferConfig):
        # Each draws by itself: with one seed all would draw the same rows. Seeds do not depend on the order of a dict.
        return {policy: maker.seeded(index) for index, policy in enumerate(sorted(known.policies))}
    return dict.fromkeys(known.policies, maker)


def divided_maker(maker: Any, shards: int) -> MakeBuffer:
    """`make_buffer` for one of so many buffers that divide the capacity between them; rounded down.

    Raises:
      TypeError: it is none of what it may be, or `shards` is no int.
      ValueError: `shards` is below 1, or leaves nothing.
      ValueError: it is a function, and `shards` is above 1.
    """
    check_count("shards", shards)
    if isinstance(maker, BufferConfig):
        return maker.divided(shards) if shards > 1 else maker
    if isinstance(maker, TableConfig):
        if maker.max_size < shards:
            raise ValueError(f"make_buffer: max_size {maker.max_size} divided among {shards} shards leaves nothing.")
        return dataclasses.replace(maker, max_size=maker.max_size // shards) if shards > 1 else maker
    if not callable(maker):
        raise TypeError(
            "make_buffer must be a BufferConfig, a TableConfig, or a function called with data_spec= and batch_size=, "
            f"such as functools.partial(TFUniformReplayBuffer, max_length=1000); got {maker!r}."
        )
    if shards > 1:
        raise ValueError(
            f"shards={shards} with a function: it says itself how much its buffer holds; divide there, or give a "
            "BufferConfig."
        )
    return maker


def built(
    maker: Callable[..., ReplayBuffer] | BufferConfig, data_spec: Nest, batch_size: int, *, part: bool
) -> ReplayBuffer:
    """The buffer in this process that `make_buffer` makes; with `part` its streams are let go apart.

    Raises:
      TypeError: what was made is no buffer.
      ValueError: it is a rollout of several streams, has another spec or another number of streams.
    """
    if isinstance(maker, BufferConfig):
        buffer = maker.build(data_spec, batch_size)
    else:
        buffer = maker(data_spec=data_spec, batch_size=batch_size)
    if isinstance(buffer, RolloutBuffer):
        raise ValueError(
            "make_buffer: a RolloutBuffer holds [B, T] frames of streams side by side, and each agent acts when it "
            "does; give each agent a RolloutBuffer of its own."
        )
    if not isinstance(buffer, _KINDS):
        raise TypeError(
            f"make_buffer must make one of {', '.join(kind.__name__ for kind in _KINDS)}, got {type(buffer).__name__}."
        )
    if buffer.batch_size != batch_size:
        raise ValueError(f"make_buffer made a buffer of batch_size {buffer.batch_size}, asked for was {batch_size}.")
    given, expected = (
        [(field.path, field.shape, field.dtype) for field in DataSpec(nest).fields]
        for nest in (
            buffer.data_spec,
            data_spec,
        )
    )
    if given != expected:
        raise ValueError(
            "make_buffer made a buffer of another data_spec than it was called with: it has "
            f"{', '.join(path for path, _, _ in given)}, asked for was {', '.join(path for path, _, _ in expected)}."
        )
    if part and batch_size > 1:
        buffer.let_streams_part()
    return buffer


def looks_ahead(buffer: ReplayBuffer) -> bool:
    """Whether datasets of this buffer may draw before a batch is asked for."""
    return not isinstance(buffer, RingReplayBuffer) or buffer._draw_rule.looks_ahead


def build_all(
    makers: Mapping[str, MakeBuffer], specs: Mapping[str, Nest], num_streams: Mapping[str, int], *, part: bool
) -> dict[str, ReplayBuffer]:
    """The buffers in this process by their keys.

    Args:
      makers: what makes each; no tables.
      specs: of what each stores.
      num_streams: of each.
      part: let their streams go apart.

    Raises:
      TypeError, ValueError: as `built`; what was built is closed.
    """
    buffers: dict[str, ReplayBuffer] = {}
    try:
        for key, maker in makers.items():
            assert not isinstance(maker, TableConfig)  # those are served
            made = built(maker, specs[key], num_streams[key], part=part)
            if any(made is other for other in buffers.values()):
                raise ValueError("make_buffer made one buffer for two policies: make a new one at each call.")
            buffers[key] = made
    except BaseException:
        for buffer in buffers.values():
            buffer.close()
        raise
    return buffers


def served(
    known: AgentPolicies,
    makers: Mapping[str, MakeBuffer],
    lockstep: MakeBuffer | None,
    batch_size: int,
    *,
    cast: bool,
    end_of_episode_fn: Callable[[Nest], Any] | None,
) -> ReverbAgentTables | None:
    """The tables that `make_buffer` asks for, on a server of their own; None where it asks for none.

    Args:
      known: the agents.
      makers: by policy, of independent ones.
      lockstep: of all agents together; None: policies are independent.
      batch_size: `B`, environments.
      cast: as in `ReverbAgentTables`.
      end_of_episode_fn: as in `ReverbAgentTables`.

    Raises:
      ValueError: some are tables, and others are not.
      TypeError, ValueError, ImportError: as `ReverbAgentTables.local`.
    """
    all_makers = [*makers.values()] if lockstep is None else [lockstep]
    tables = {policy: maker for policy, maker in makers.items() if isinstance(maker, TableConfig)}
    if not any(isinstance(maker, TableConfig) for maker in all_makers):
        return None
    if not all(isinstance(maker, TableConfig) for maker in all_makers):
        raise ValueError(
            f"make_buffer: the policies {', '.join(map(repr, tables))} have tables and the others have not: give each "
            "a TableConfig, or none."
        )
    return ReverbAgentTables.local(
        known.data_specs,
        known.policy_of,
        independent=tables if lockstep is None else None,
        lockstep=lockstep if isinstance(lockstep, TableConfig) else None,
        batch_size=batch_size,
        cast=cast,
        end_of_episode_fn=end_of_episode_fn,
    )


def check_tables(tables: ReverbAgentTables, known: AgentPolicies, batch_size: int) -> None:
    """Refuses tables that were made for others.

    Raises:
      ValueError: agents, policies or `batch_size` differ.
    """
    theirs = tables._known
    if theirs.agents != known.agents or any(
        theirs.policy_of(agent) != known.policy_of(agent) for agent in known.agents
    ):
        raise ValueError(
            f"make_buffer: the tables are of the agents {', '.join(map(repr, theirs.agents))}, in this order, with "
            "policies of their own; give the same data_specs and policy_of."
        )
    if tables.batch_size != batch_size:
        raise ValueError(f"make_buffer: the tables have batch_size {tables.batch_size}, given was {batch_size}.")
