"""What `make_buffer` may be, and the buffers that come of it: one for each policy, or one for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from .agent_policies import AgentPolicies
from .base import ReplayBuffer, check_count
from .buffer_config import BufferConfig
from .episodic import EpisodicReplayBuffer
from .nests import Nest
from .reservoir import ReservoirReplayBuffer
from .reverb_buffer import ReverbReplayBuffer
from .reverb_episodic import ReverbEpisodicReplayBuffer
from .ring_buffer import RingReplayBuffer
from .rollout import RolloutBuffer
from .server import ReplayServer
from .spec import DataSpec
from .tables import TableConfig

_KINDS = (RingReplayBuffer, EpisodicReplayBuffer, ReservoirReplayBuffer, ReverbReplayBuffer, ReverbEpisodicReplayBuffer)

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
        # Each draws by itself: with one seed all would draw the same rows.
        return {policy: maker.seeded(index) for index, policy in enumerate(known.policies)}
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


def check_table_spec(table: TableConfig, whose: str, expected: Nest) -> None:
    """Refuses a table that was meant for other frames.

    Raises:
      ValueError: `data_spec` differs from what agents' specs say.
    """
    given, wanted = DataSpec(table.data_spec), DataSpec(expected)
    mine = [(field.path, field.shape, field.dtype) for field in given.fields]
    theirs = [(field.path, field.shape, field.dtype) for field in wanted.fields]
    if mine != theirs:
        raise ValueError(
            f"make_buffer: table {table.name!r} has another data_spec than {whose}: {table.data_spec!r}, expected "
            f"{expected!r}."
        )


def built(maker: Callable[..., ReplayBuffer] | BufferConfig, data_spec: Nest, batch_size: int) -> ReplayBuffer:
    """The buffer in this process that `make_buffer` makes, its streams let go apart.

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
    if batch_size > 1:
        buffer.let_streams_part()
    return buffer


def looks_ahead(buffer: ReplayBuffer) -> bool:
    """Whether datasets of this buffer may draw before a batch is asked for."""
    return not isinstance(buffer, RingReplayBuffer) or buffer._draw_rule.looks_ahead


def build_all(
    makers: Mapping[str, MakeBuffer], specs: Mapping[str, Nest], num_streams: Mapping[str, int]
) -> tuple[dict[str, ReplayBuffer], list[ReplayServer]]:
    """The buffers by their keys, and the server that was started for those of them that are tables.

    Args:
      makers: what makes each.
      specs: of what each stores.
      num_streams: of each.

    Raises:
      TypeError, ValueError, ImportError: as `built`, `ReplayServer` and the buffers; what was built is closed.
    """
    tables = {
        key: dataclasses.replace(maker, data_spec=specs[key])
        for key, maker in makers.items()
        if isinstance(maker, TableConfig)
    }
    servers = [ReplayServer(list(tables.values()))] if tables else []
    buffers: dict[str, ReplayBuffer] = {}
    try:
        for key, maker in makers.items():
            if key in tables:
                buffers[key] = _reader(tables[key], servers[0], num_streams[key])
            else:
                assert not isinstance(maker, TableConfig)  # those are tables
                buffers[key] = built(maker, specs[key], num_streams[key])
    except BaseException:
        for buffer in buffers.values():
            buffer.close()
        for server in servers:
            server.stop()
        raise
    return buffers, servers


def _reader(table: TableConfig, server: ReplayServer, num_streams: int) -> ReplayBuffer:
    if table.sequence_length is None:
        return ReverbEpisodicReplayBuffer(
            table.data_spec, table_name=table.name, local_server=server, batch_size=num_streams
        )
    return ReverbReplayBuffer(
        table.data_spec,
        table_name=table.name,
        sequence_length=table.sequence_length,
        local_server=server,
        batch_size=num_streams,
        stride=table.stride,
    )
