"""Tables of many agents: which can be declared, which are somebody else's, and which moments do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    ReplayServer,
    ReverbAgentTables,
    ReverbReplayBuffer,
    ReverbTableGroup,
    TableConfig,
    agent_tables,
)
from replayfeed.buffers.episode_ends import EpisodeMarks

from .wolves_and_sheep import AGENTS, NUMBER, SPECS, leaves_of, local, moments, own, policy_of


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": {"cow": leaves_of("wolf_0", [1])}, "rows": {"cow": [0]}}, "there is no agent 'cow'"),
        ({"rows": {}}, "agent 'wolf_0': rows must say in which environments"),
        ({"rows": {"wolf_0": [1, 0]}}, r"agent 'wolf_0': expected environments .* got \[1, 0\]"),
        ({"rows": {"wolf_0": [0]}}, r"agent 'wolf_0': expected 2 leaves of 1 rows, got leaves of \[2, 2\]"),
        ({"rows": {"wolf_0": [0, 1], "sheep": [0]}}, "rows: of agent 'sheep' there are no frames"),
        ({"time": np.zeros(3, np.int64)}, r"time: expected \[2\] int64, got \[3\] int64"),
        ({"codes": None}, r"codes: expected \[2, 3\] uint8, got None"),
        ({"codes": np.zeros([2, 3], np.uint8)}, "environment 0: rows say that 'wolf_0' is present, and codes"),
        ({"joint_rows": np.array([0])}, "environment 1: rows say that 'wolf_0' is present"),
        (
            {"marks": {"wolf_0": EpisodeMarks(None, np.zeros(3, bool), None)}},
            r"ends: expected \[2\] bool, got \[3\] bool",
        ),
        ({"joint_marks": EpisodeMarks(np.zeros(1, bool), None, None)}, r"joint_marks: begins: expected \[2\] bool"),
        ({"ended": {"wolf_0": np.array([1])}}, "ended: agent 'wolf_0' is present"),
        ({"priorities": {"wolf_0": np.ones(1)}}, r"agent 'wolf_0': priorities: expected shape \[2\]"),
        ({"joint_priorities": np.array([np.nan, 1.0])}, "joint_priorities: priorities\\[0\\] is nan"),
    ],
)
def test_what_does_not_fit_is_refused_and_writes_nothing(refused, change, message):
    codes = np.array([[1, 0, 0], [1, 0, 0]], np.uint8)
    given_ = {
        "frames": {"wolf_0": leaves_of("wolf_0", [1, 2])},
        "rows": {"wolf_0": [0, 1]},
        "time": np.zeros(2, np.int64),
        "codes": codes,
        **change,
    }
    with pytest.raises(ValueError, match=message):
        refused.write_moment(given_.pop("frames"), given_.pop("rows"), given_.pop("time"), **given_)
    assert [refused[name].get_table_info().current_size for name in refused] == [0, 0, 0]


@pytest.fixture(scope="module")
def refused() -> Iterator[ReverbAgentTables]:
    with local(independent=own(), lockstep=moments(), batch_size=2) as tables:
        yield tables


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give a table"),
        ({"independent": {"cow": TableConfig("cow", NUMBER, 9)}}, "there is no policy 'cow'"),
        ({"independent": {"wolf": TableConfig("wolf", NUMBER, 9)}}, "policy 'sheep' has no table"),
        (
            {"independent": {"wolf": TableConfig("a", NUMBER, 9)}, "lockstep": TableConfig("a", NUMBER, 9)},
            "two tables are named 'a'",
        ),
        (
            {"lockstep": TableConfig("a", {"x": NUMBER, "y": NUMBER}, 9, fields=("x",))},
            "table 'a': fields, agents and layout='plain' are not for tables of many agents",
        ),
    ],
)
def test_tables_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        agent_tables(SPECS, policy_of, **settings)


def test_a_table_of_moments_in_words():
    """A moment has 20 bytes of its own, the sheep 25 and an image, and each wolf 37."""
    *_, table = agent_tables(SPECS, policy_of, lockstep=moments(sequence_length=2))
    assert table.agents == {"wolf_0": True, "sheep": False, "wolf_1": True}
    assert table.describe().splitlines()[1:2] == [
        "  item: 2 frames in a row of one episode; cut short by the episode's end: dropped; a frame is a moment of 3 "
        "agents, in columns of their own"
    ]
    assert table.make_layout().column_bytes == (20, 25, 1100, 37, 37)
    with pytest.raises(ValueError, match="table 'moments' holds moments of the agents 'a': its data_spec must be a Jo"):
        TableConfig("moments", NUMBER, 9, agents={"a": True})
    with pytest.raises(TypeError, match="TableConfig.agents must be None or a dict of bools by agent"):
        dataclasses.replace(table, agents={"wolf_0": 1})
    with pytest.raises(ValueError, match="agents need layout='packed'"):
        dataclasses.replace(table, layout="plain")


def test_tables_of_other_agents_are_refused():
    tables = agent_tables(SPECS, policy_of, independent=own(), lockstep=moments())
    with ReplayServer([*tables, TableConfig("plain", NUMBER, 9)]) as server:
        swapped = {agent: SPECS[agent] for agent in reversed(AGENTS)}
        with pytest.raises(ValueError, match="table 'moments' holds moments of 'wolf_0', 'sheep', 'wolf_1', in this"):
            ReverbAgentTables(swapped, policy_of, lockstep="moments", local_server=server)
        with pytest.raises(ValueError, match="table 'plain' does not tell whose moments it holds"):
            ReverbAgentTables(SPECS, policy_of, lockstep="plain", local_server=server)
        with pytest.raises(ValueError, match="there is no table 'other'"):
            ReverbAgentTables(SPECS, policy_of, lockstep="other", local_server=server)
        with pytest.raises(ValueError, match="table 'sheep' holds frames of 'sheep', in this order"):
            ReverbAgentTables(
                {**SPECS, "sheep": SPECS["wolf_0"]},
                policy_of,
                independent={"wolf": "sheep", "sheep": "wolf"},
                local_server=server,
            )
        with pytest.raises(ValueError, match="table 'moments' holds what many agents do"):
            ReverbTableGroup(tables[2].data_spec, ["moments"], None, server)
        with ReverbReplayBuffer(tables[2].data_spec, "moments", 1, local_server=server) as reader:
            spec = reader.data_spec
            zeros = tf.nest.map_structure(lambda leaf: np.zeros([1, *leaf.shape], leaf.dtype.as_numpy_dtype), spec)
            with pytest.raises(ValueError, match="holds moments of many agents: write it through a ReverbAgentTables"):
                reader.add_batch(zeros)
