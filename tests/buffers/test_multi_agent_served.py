"""Buffers of many agents whose frames are on a server, for both modes and for other processes."""

from __future__ import annotations

import numpy as np
import pytest

from replayfeed.buffers import (
    MinSize,
    MultiAgentReplayBuffer,
    ReplayServer,
    ReverbAgentTables,
    TableConfig,
    agent_tables,
    table_presets,
)

from .two_agents import OWN, SHARED, VALUE, shown, values


def test_a_table_for_each_policy_with_its_own_limiter():
    tables = {
        "p": TableConfig("wolves", VALUE, 50, sequence_length=2, rate_limiter=MinSize(1)),
        "q": TableConfig("sheep", VALUE, 50, rate_limiter=MinSize(3)),
    }
    with MultiAgentReplayBuffer({"a": VALUE, "b": VALUE, "c": VALUE}, {"a": "p", "b": "p", "c": "q"}, tables) as buffer:
        for turn in range(6):
            agent = "abc"[turn % 3]
            buffer.add_batch({agent: values(turn)})
        items, info = buffer.sample(50, 2, policy="p")
        rows = {tuple(row) for row in items["value"].numpy().tolist()}
        assert rows == {(0, 3), (1, 4)}
        pairs = set(zip(info.agents.numpy().tolist(), items["value"].numpy()[:, 0].tolist(), strict=True))
        assert pairs == {(0, 0), (1, 1)}
        assert {tuple(row) for row in info.times.numpy().tolist()} == {(0, 3), (1, 4)}
        assert buffer.capacity_of("q") == 50
        assert "1 of 3" in buffer.buffer_of("q").why_not_ready() or "2 of 3" in buffer.buffer_of("q").why_not_ready()
        buffer.add_batch({"c": values(6)})
        assert set(buffer.sample(20, policy="q")[0]["value"].numpy().tolist()) == {2, 5, 6}


def test_both_modes_read_what_was_written_once_and_other_processes_may_write():
    specs, policy_of = {"a": VALUE, "b": VALUE}, {"a": "p", "b": "p"}
    own = {"p": TableConfig("own", VALUE, 50, sequence_length=2)}
    moments = TableConfig("moments", VALUE, 50, sequence_length=2)
    with ReverbAgentTables.local(specs, policy_of, independent=own, lockstep=moments) as tables:
        independent = MultiAgentReplayBuffer(specs, policy_of, tables)
        lockstep = MultiAgentReplayBuffer(specs, policy_of, tables, mode="lockstep")
        independent.add_batch({"a": values(0), "b": values(10)})
        lockstep.add_batch({"a": values(1)})
        ids = independent.add_batch({"a": values(2), "b": values(12)})
        assert set(ids) == {"a", "b"}
        items, info = independent.sample(50, 2, policy="p")
        assert {tuple(row) for row in items["value"].numpy().tolist()} == {(0, 1), (1, 2), (10, 12)}
        assert {tuple(row) for row in info.times.numpy().tolist()} == {(0, 1), (1, 2), (0, 2)}
        items, info = lockstep.sample(50, 2)
        rows = {(tuple(a), tuple(b)) for a, b in zip(shown(items, info, "a"), shown(items, info, "b"), strict=True)}
        assert rows == {((0, 1), (10, None)), ((1, 2), (None, 12))}
        # A collector that knows only the address.
        with ReverbAgentTables(
            specs, policy_of, independent={"p": "own"}, lockstep="moments", server_address=tables.server_address
        ) as remote:
            MultiAgentReplayBuffer(specs, policy_of, remote).add_sequence(
                {"a": {"value": np.array([[100, 101]], np.float32)}}
            )
        assert (100, 101) in {tuple(row) for row in independent.sample(200, 2, policy="p")[0]["value"].numpy().tolist()}
        with pytest.raises(ValueError, match="the tables have batch_size 1, given was 2"):
            MultiAgentReplayBuffer(specs, policy_of, tables, batch_size=2)
        with pytest.raises(ValueError, match="the tables are of the agents 'a', 'b', in this order"):
            MultiAgentReplayBuffer({"b": VALUE, "a": VALUE}, policy_of, tables)


def test_agents_are_known_by_their_order_and_whatever_the_number_of_environments():
    specs, policy_of = {"a": VALUE, "b": VALUE, "c": VALUE}, {"a": "p", "b": "p", "c": "q"}
    own = {"p": TableConfig("tp", VALUE, 1000), "q": TableConfig("tq", VALUE, 1000)}
    names = {"p": "tp", "q": "tq"}
    with ReplayServer(agent_tables(specs, policy_of, independent=own)) as server:
        for num in (1, 3):
            with ReverbAgentTables(
                specs, policy_of, independent=names, server_address=server.address, batch_size=num
            ) as tables:
                writer = MultiAgentReplayBuffer(specs, policy_of, tables, batch_size=num)
                for step in range(4):
                    writer.add_batch(
                        {"a": values(*range(step, step + num)), "b": values(*range(100 + step, 100 + step + num))}
                    )
        with ReverbAgentTables(specs, policy_of, independent=names, server_address=server.address) as tables:
            reader = MultiAgentReplayBuffer(specs, policy_of, tables)
            items, info = reader.sample(200, policy="p")
            assert set(zip((items["value"].numpy() // 100).tolist(), info.agents.numpy().tolist(), strict=True)) == {
                (0, 0),
                (1, 1),
            }
        other = {"b": VALUE, "a": VALUE, "c": VALUE}
        with pytest.raises(ValueError, match="table 'tp' holds frames of 'a', 'b', in this order, and"):
            ReverbAgentTables(other, policy_of, independent=names, server_address=server.address)


def test_all_frames_of_served_agents_of_different_lengths():
    own = {"both": TableConfig("own", VALUE, 50, scannable=True)}
    with MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, SHARED, own) as buffer:
        buffer.add_batch({"a": values(1), "b": values(2)})
        buffer.add_batch({"a": values(3)})
        held = {agent: frames["value"].to_list() for agent, frames in buffer.gather_all().items()}
    assert held == {"a": [[1, 3]], "b": [[2]]}


def test_clearing_tables_waits_for_no_limiter():
    specs, policy_of = {"a": VALUE, "b": VALUE}, OWN
    own = {"a": TableConfig("replay", VALUE, 1000), "b": table_presets.queue("queue", VALUE, max_size=3)}
    with ReverbAgentTables.local(specs, policy_of, independent=own, timeout_s=30.0) as tables:
        buffer = MultiAgentReplayBuffer(specs, policy_of, tables)
        for number in range(8):  # the last ones of b wait
            buffer.add_batch({"a": values(number), "b": values(number)})
        buffer.clear()
        assert [len(buffer.buffer_of(policy)) for policy in "ab"] == [0, 0]
        buffer.add_batch({"a": values(9), "b": values(9)})
        assert buffer.sample(1)[0]["b"]["value"].numpy().tolist() == [9]
        with pytest.raises(ValueError, match="there is no table of moments in the tables given"):
            MultiAgentReplayBuffer(specs, policy_of, tables, mode="lockstep")
