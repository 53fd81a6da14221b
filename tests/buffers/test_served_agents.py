"""Many agents on one server: what each policy's table holds, what the table of moments holds, and what they share."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    AgentFrame,
    BufferConfig,
    Fifo,
    JointFrame,
    MaxHeap,
    MomentIds,
    MultiAgentReplayBuffer,
    Prioritized,
    Queue,
    ReplayServer,
    ReverbAgentTables,
    ReverbEpisodicReplayBuffer,
    ReverbReplayBuffer,
    ReverbTableGroup,
    TableConfig,
    WaitTimeoutError,
    Window,
    agent_tables,
)
from replayfeed.buffers.episode_ends import EpisodeMarks

NUMBER = tf.TensorSpec([], tf.int64)
# Two wolves learn by one policy; what the sheep sees has a column of its own.
SPECS = {
    "wolf_0": {"number": NUMBER, "scent": tf.TensorSpec([2], tf.float32)},
    "sheep": {"image": tf.TensorSpec([1100], tf.uint8), "number": NUMBER},
    "wolf_1": {"number": NUMBER, "scent": tf.TensorSpec([2], tf.float32)},
}
AGENTS = tuple(SPECS)

Present = Mapping[str, Mapping[int, int]]


def policy_of(agent: str) -> str:
    return agent.split("_")[0]


def leaves_of(agent: str, numbers: list[int]) -> list[np.ndarray]:
    """Frames of an agent that tell their number, as leaves in the order of its spec."""
    number = np.array(numbers, np.int64)
    if agent == "sheep":
        return [np.repeat((number % 251).astype(np.uint8)[:, None], 1100, axis=1), number]
    return [number, np.stack([number, -number], axis=1).astype(np.float32)]


def write(
    tables: ReverbAgentTables,
    time: int,
    present: Present,
    *,
    last: Mapping[str, Set[int]] | None = None,
    over: Set[int] = frozenset(),
    **more: Any,
) -> MomentIds:
    """A moment of all environments: numbers by agent and environment, whose lives and which episodes end with it."""
    num, last = tables.batch_size, last or {}
    rows = {agent: np.array(sorted(by_env)) for agent, by_env in present.items()}
    codes = np.zeros([num, len(AGENTS)], np.uint8)
    marks = {}
    for agent, environments in rows.items():
        ends = np.array([b in last.get(agent, ()) for b in environments.tolist()], bool)
        marks[agent] = EpisodeMarks(None, ends, None)
        codes[environments, AGENTS.index(agent)] = 1 + 2 * ends
    has_moments = "moments" in tables.tables
    joint = EpisodeMarks(None, np.array([b in over for b in range(num)]), None)
    return tables.write_moment(
        {agent: leaves_of(agent, [present[agent][b] for b in rows[agent].tolist()]) for agent in rows},
        rows,
        np.full(num, time),
        marks=marks,
        codes=codes if has_moments else None,
        joint_marks=joint,
        **more,
    )


def own(**settings: Any) -> dict[str, TableConfig]:
    return {name: TableConfig(name, NUMBER, 10_000, scannable=True, **settings) for name in ("wolf", "sheep")}


def moments(**settings: Any) -> TableConfig:
    return TableConfig("moments", NUMBER, 10_000, scannable=True, **settings)


def local(**settings: Any) -> ReverbAgentTables:
    return ReverbAgentTables.local(SPECS, policy_of, timeout_s=20.0, **settings)


def frames_in(buffer: Any, num_steps: int, **window: Any) -> list[list[tuple[int, ...]]]:
    """Every item of a policy's table as (number, time, stream) by frame; () on padding."""
    rows = buffer.as_dataset(window=Window(num_steps, **window), single_deterministic_pass=True)
    found = []
    for items, info in rows:
        streams = items.stream if not isinstance(items.stream, tuple) else np.zeros_like(items.time)
        triples = zip(
            items.frame["number"].numpy().tolist(),
            items.time.numpy().tolist(),
            np.asarray(streams).tolist(),
            strict=True,
        )
        found.append([triple if real else () for triple, real in zip(triples, info.mask.numpy(), strict=True)])
    return found


def joint_rows(items: Any, info: Any) -> list[dict[str, int]]:
    """The moments of a sample `[T, ...]`: numbers by agent that is present. Whoever is absent shows zeros."""
    found = []
    for t, is_real in enumerate(info.mask.numpy().tolist()):
        shown = {}
        for agent, code in zip(AGENTS, items.codes.numpy()[t].tolist(), strict=True):
            leaves = [leaf.numpy()[t] for leaf in tf.nest.flatten(items.frames[agent])]
            number = int(items.frames[agent]["number"][t])
            if is_real and code & 1:
                shown[agent] = number
                wanted = leaves_of(agent, [number])
                assert all(np.array_equal(leaf, want[0]) for leaf, want in zip(leaves, wanted, strict=True))
            else:
                assert not any(leaf.any() for leaf in leaves)
        assert is_real or not items.codes.numpy()[t].any()
        found.append(shown)
    return found


def joint_items(buffer: Any, num_steps: int, **window: Any) -> list[list[dict[str, int]]]:
    """Every item of the table of moments."""
    rows = buffer.as_dataset(window=Window(num_steps, **window), single_deterministic_pass=True)
    return [joint_rows(items, info) for items, info in rows]


def num_stored_chunks(buffer: Any) -> int:
    """Chunks that the server holds: a checkpoint has each of them once."""
    path = Path(buffer.py_client.checkpoint()) / "chunks.tfrecord"
    return sum(1 for _ in tf.data.TFRecordDataset(str(path), compression_type="ZLIB"))


def write_story(tables: ReverbAgentTables) -> None:
    """One environment, two episodes. The sheep comes late and dies; wolf_1 has no turn at moment 1."""
    write(tables, 0, {"wolf_0": {0: 10}, "wolf_1": {0: 20}})
    write(tables, 1, {"wolf_0": {0: 11}, "sheep": {0: 30}})
    write(tables, 2, {"wolf_0": {0: 12}, "wolf_1": {0: 22}, "sheep": {0: 31}}, last={"sheep": {0}})
    write(tables, 3, {"wolf_0": {0: 13}, "wolf_1": {0: 23}}, last={"wolf_0": {0}, "wolf_1": {0}}, over={0})
    write(tables, 4, {"wolf_0": {0: 110}, "wolf_1": {0: 120}, "sheep": {0: 130}})
    write(tables, 5, {"wolf_1": {0: 121}, "sheep": {0: 131}})


def test_policies_have_windows_of_their_agents_own_frames_and_moments_those_of_all():
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=3)) as tables:
        assert tables.tables == ("wolf", "sheep", "moments")
        write_story(tables)
        wolf, sheep = tables.of_policy("wolf"), tables["sheep"]
        # wolf_1's moments 0 and 2 follow each other: it was not its turn between. Its streams are 0 and 1.
        assert frames_in(wolf, 2) == [
            [(10, 0, 0), (11, 1, 0)],
            [(11, 1, 0), (12, 2, 0)],
            [(12, 2, 0), (13, 3, 0)],
            [(20, 0, 1), (22, 2, 1)],
            [(22, 2, 1), (23, 3, 1)],
            [(120, 4, 1), (121, 5, 1)],
        ]
        assert isinstance(sheep.data_spec, AgentFrame)
        assert sheep.data_spec.stream == ()
        assert frames_in(sheep, 2) == [[(30, 1, 0), (31, 2, 0)], [(130, 4, 0), (131, 5, 0)]]
        assert isinstance(tables.lockstep.data_spec, JointFrame)
        assert joint_items(tables.lockstep, 3) == [
            [
                {"wolf_0": 10, "wolf_1": 20},
                {"wolf_0": 11, "sheep": 30},
                {"wolf_0": 12, "sheep": 31, "wolf_1": 22},
            ],
            [
                {"wolf_0": 11, "sheep": 30},
                {"wolf_0": 12, "sheep": 31, "wolf_1": 22},
                {"wolf_0": 13, "wolf_1": 23},
            ],
        ]
        items, _ = tables.lockstep.sample(64, num_steps=3)
        assert set(items.time.numpy()[:, 0].tolist()) == {0, 1}
        assert set(items.codes.numpy()[items.time.numpy() == 2][:, 1].tolist()) == {3}  # the sheep's last frame
        assert tables.lockstep.gather_all().time.numpy().tolist() == [[0, 1, 2, 3]]


def test_either_kind_alone():
    with local(independent=own(sequence_length=2)) as tables:
        write_story(tables)
        assert len(frames_in(tables["wolf"], 2)) == 6
        with pytest.raises(KeyError, match="no table of moments"):
            _ = tables.lockstep
    with local(lockstep=moments(sequence_length=3)) as tables:
        write_story(tables)
        assert len(joint_items(tables["moments"], 3)) == 2
        with pytest.raises(KeyError, match="policy 'wolf' has no table"):
            tables.of_policy("wolf")
    with local(independent={"sheep": own()["sheep"]}, lockstep=moments(sequence_length=3)) as tables:
        write_story(tables)
        assert frames_in(tables["sheep"], 1) == [[(30, 1, 0)], [(31, 2, 0)], [(130, 4, 0)], [(131, 5, 0)]]
        assert len(joint_items(tables["moments"], 3)) == 2


def test_a_frame_is_stored_once_for_both_kinds():
    """The story has 9 frames of wolves in a column, 4 of the sheep in two, 6 moments; and 2 chunks of each of the
    three kinds of padding (header, wolf, sheep's record, image), of which an item uses one."""
    chunks = {}
    for kind in ("policies", "moments", "both"):
        settings: dict[str, Any] = {}
        if kind != "moments":
            settings["independent"] = own()
        if kind != "policies":
            settings["lockstep"] = moments(sequence_length=2)
        with local(max_chunk_length=1, **settings) as tables:
            write_story(tables)
            tables.end_stream()
            tables.flush()
            chunks[kind] = num_stored_chunks(tables[tables.tables[0]])
    num_wolf, num_sheep, num_moments = 10, 4, 6
    assert chunks["policies"] == num_wolf + 2 * num_sheep
    # Padding: of a wolf, and of the two columns of the sheep.
    assert chunks["moments"] == num_wolf + 2 * num_sheep + num_moments + 3
    assert chunks["both"] == chunks["moments"]


READER = """
import sys, tensorflow as tf
from replayfeed.buffers import ReverbReplayBuffer, Window
from replayfeed.buffers.agent_frames import agent_frame_spec, joint_frame_spec
number = tf.TensorSpec([], tf.int64)
wolf = {"number": number, "scent": tf.TensorSpec([2], tf.float32)}
sheep = {"image": tf.TensorSpec([1100], tf.uint8), "number": number}
spec = agent_frame_spec(wolf, has_stream=True)
with ReverbReplayBuffer(spec, "wolf", 2, sys.argv[1], batch_size=2) as buffer:
    rows = buffer.as_dataset(window=Window(2), single_deterministic_pass=True)
    print([[items.frame["number"].numpy().tolist(), items.time.numpy().tolist()] for items, _ in rows])
spec = joint_frame_spec({"wolf_0": wolf, "sheep": sheep, "wolf_1": wolf}, told_by_spec=False)
with ReverbReplayBuffer(spec, "moments", 3, sys.argv[1]) as buffer:
    rows = buffer.as_dataset(window=Window(3), single_deterministic_pass=True)
    print([[items.frames["sheep"]["number"].numpy().tolist(), items.codes.numpy()[:, 1].tolist()] for items, _ in rows])
    print(len(buffer.sample(4, 3)[0].frames["wolf_0"]["scent"]))
spec = joint_frame_spec({"sheep": sheep, "wolf_0": wolf, "wolf_1": wolf}, told_by_spec=False)
try:
    ReverbReplayBuffer(spec, "moments", 3, sys.argv[1])
except ValueError as error:
    print(error)
"""


def test_another_process_reads_both_kinds_by_address():
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=3)) as tables:
        write_story(tables)
        tables.flush()
        out = subprocess.run(
            [sys.executable, "-c", READER, tables.server_address],
            check=True,
            env=dict(os.environ),
            capture_output=True,
            text=True,
        ).stdout.splitlines()
    assert out[0] == str(
        [
            [[10, 11], [0, 1]],
            [[11, 12], [1, 2]],
            [[12, 13], [2, 3]],
            [[20, 22], [0, 2]],
            [[22, 23], [2, 3]],
            [[120, 121], [4, 5]],
        ]
    )
    assert out[1:3] == [str([[[0, 30, 31], [0, 1, 3]], [[30, 31, 0], [1, 3, 0]]]), "4"]
    assert out[3].startswith("table 'moments' holds moments of the agents 'wolf_0', 'sheep', 'wolf_1', in this order")


def test_an_agent_that_is_absent_for_long_leaves_padding_and_no_frame_out():
    """Windows of 40 moments; the sheep is there in moments 0, 1, 38 and 39: 36 cells of padding in a row."""
    with local(independent=own(sequence_length=3), lockstep=moments(sequence_length=40)) as tables:
        for t in range(41):
            present = {"wolf_0": {0: 100 + t}}
            if t in (0, 1, 38, 39):
                present["sheep"] = {0: t}
            write(tables, t, present)
        first, second = joint_items(tables["moments"], 40)
        assert [moment.get("sheep") for moment in first] == [0, 1, *[None] * 36, 38, 39]
        assert [moment.get("sheep") for moment in second] == [1, *[None] * 36, 38, 39, None]
        assert frames_in(tables["sheep"], 3) == [
            [(0, 0, 0), (1, 1, 0), (38, 38, 0)],
            [(1, 1, 0), (38, 38, 0), (39, 39, 0)],
        ]


def test_whole_episodes_of_moments_and_of_agents():
    whole = {"sequence_length": None, "max_episode_length": 50}
    with local(independent=own(**whole), lockstep=moments(**whole)) as tables:
        write_story(tables)
        tables.end_stream()
        wolf, lockstep = tables["wolf"], tables.lockstep
        assert isinstance(wolf, ReverbEpisodicReplayBuffer)
        assert isinstance(lockstep, ReverbEpisodicReplayBuffer)
        found = [items.frame["number"].numpy().tolist() for items, _ in wolf.as_dataset(single_deterministic_pass=True)]
        assert sorted(found) == [[10, 11, 12, 13], [20, 22, 23], [110], [120, 121]]
        episodes = [joint_rows(items, info) for items, info in lockstep.as_dataset(single_deterministic_pass=True)]
        assert [[sorted(moment) for moment in episode] for episode in episodes] == [
            [
                ["wolf_0", "wolf_1"],
                ["sheep", "wolf_0"],
                ["sheep", "wolf_0", "wolf_1"],
                ["wolf_0", "wolf_1"],
            ],
            [["sheep", "wolf_0", "wolf_1"], ["sheep", "wolf_1"]],
        ]


def test_an_episode_that_is_too_long_is_refused_and_nothing_is_written():
    whole = {"sequence_length": None, "max_episode_length": 2}
    with local(independent=own(sequence_length=1), lockstep=moments(**whole)) as tables:
        write(tables, 0, {"wolf_0": {0: 0}})
        write(tables, 1, {"wolf_0": {0: 1}})
        with pytest.raises(ValueError, match="table 'moments' holds episodes of up to max_episode_length=2"):
            write(tables, 2, {"wolf_0": {0: 2}})
        assert frames_in(tables["wolf"], 1) == [[(0, 0, 0)], [(1, 1, 0)]]


def test_a_life_that_ends_in_absence_is_not_joined_to_the_next():
    """wolf_1 had no turn when the episode ended."""
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=2)) as tables:
        write(tables, 0, {"wolf_0": {0: 1}, "wolf_1": {0: 2}})
        write(tables, 1, {"wolf_0": {0: 3}}, last={"wolf_0": {0}}, over={0}, ended={"wolf_1": np.array([0])})
        write(tables, 2, {"wolf_0": {0: 4}, "wolf_1": {0: 5}})
        tables.end_stream(0, agent="wolf_0")
        write(tables, 3, {"wolf_0": {0: 6}, "wolf_1": {0: 7}})
        assert frames_in(tables["wolf"], 2) == [[(1, 0, 0), (3, 1, 0)], [(5, 2, 1), (7, 3, 1)]]
        assert len(joint_items(tables["moments"], 2)) == 2


def test_environments_may_have_no_moment():
    with local(independent=own(), lockstep=moments(sequence_length=2), batch_size=2) as tables:
        ids = [
            write(tables, 0, {"wolf_0": {0: 1, 1: 2}}),
            write_some(tables, 1, {"wolf_0": {1: 3}}, [1]),
            write_some(tables, 1, {"wolf_0": {0: 4}}, [0]),
        ]
        assert ids[1].joint.tolist() == [ids[0].joint[1] + 1]
        assert ids[2].agents["wolf_0"].tolist() == [ids[0].agents["wolf_0"][0] + 1]
        assert joint_items(tables["moments"], 2) == [[{"wolf_0": 1}, {"wolf_0": 4}], [{"wolf_0": 2}, {"wolf_0": 3}]]
        assert write_some(tables, 2, {}, []).joint.tolist() == []


def write_some(tables: ReverbAgentTables, time: int, present: Present, environments: list[int]) -> MomentIds:
    """A moment of some environments."""
    rows = {agent: np.array(sorted(by_env)) for agent, by_env in present.items()}
    codes = np.zeros([tables.batch_size, len(AGENTS)], np.uint8)
    for agent, each in rows.items():
        codes[each, AGENTS.index(agent)] = 1
    frames = {agent: leaves_of(agent, [present[agent][b] for b in each.tolist()]) for agent, each in rows.items()}
    time_of = np.full(tables.batch_size, time)
    return tables.write_moment(frames, rows, time_of, codes=codes, joint_rows=np.array(environments, np.int64))


def test_a_full_queue_of_one_policy_does_not_hold_back_the_others():
    """The wolves' queue takes 2 items, and nobody draws; sheep and moments have all 10."""
    queue = TableConfig("wolf", NUMBER, 480, Fifo(), Fifo(), Queue(2), max_times_sampled=1)
    tables = local(independent={**own(), "wolf": queue}, lockstep=moments(sequence_length=1))
    with tables:
        for t in range(10):
            write(tables, t, {"wolf_0": {0: t}, "sheep": {0: 100 + t}})
        assert [number for [(number, _, _)] in frames_in(tables["sheep"], 1)] == list(range(100, 110))
        assert len(joint_items(tables["moments"], 1)) == 10
        assert tables["wolf"].get_table_info().current_size == 2
        assert tables["sheep"].ready(5)
        # Each frame of the queue comes once, in order.
        drawn = [int(tables["wolf"].sample(1)[0].frame["number"][0]) for _ in range(10)]
        assert drawn == list(range(10))


def test_a_small_table_whose_limiter_may_hold_up_the_others_is_told(caplog):
    small = TableConfig("wolf", NUMBER, 479, Fifo(), Fifo(), Queue(2), max_times_sampled=1)
    with local(independent={**own(), "wolf": small}):
        assert "table 'wolf': while its limiter holds items back it may hold up the other tables too" in caplog.text
    caplog.clear()
    with local(independent={**own(), "wolf": dataclasses.replace(small, max_size=480)}):
        assert "hold up" not in caplog.text


def test_a_queue_that_nobody_draws_from_ends_in_an_error_that_names_it():
    queue = TableConfig("wolf", NUMBER, 40, Fifo(), Fifo(), Queue(2), max_times_sampled=1)
    tables = ReverbAgentTables.local(
        SPECS, policy_of, independent={**own(), "wolf": queue}, timeout_s=1.0, max_pending_items=4
    )
    with tables:
        with pytest.raises(WaitTimeoutError, match=r"table 'wolf': full, needs 1 more sample") as raised:
            for t in range(20):
                write(tables, t, {"wolf_0": {0: t}, "sheep": {0: 100 + t}})
        assert raised.value.num_written == 1
        numbers = [number for [(number, _, _)] in frames_in(tables["sheep"], 1)]
        assert numbers == list(range(100, 100 + len(numbers)))
        assert len(numbers) >= 4  # also that of the moment that raised


def test_a_moment_that_is_late_is_written_and_counted():
    """Of two places in the wolf's queue nobody draws until the add has given up; the sheep's windows go over it."""
    spec = {"wolf": NUMBER, "sheep": NUMBER}
    tables = ReverbAgentTables.local(
        spec,
        lambda agent: agent,
        independent={
            "wolf": TableConfig("wolf", NUMBER, 480, Fifo(), Fifo(), Queue(2), max_times_sampled=1),
            "sheep": TableConfig("sheep", NUMBER, 100, sequence_length=2, scannable=True),
        },
        timeout_s=1.0,
        max_pending_items=4,
    )
    with tables:
        late = []
        for t in range(12):
            try:
                tables.add_batch({agent: np.array([t]) for agent in spec})
            except WaitTimeoutError as error:
                late.append(t)
                assert error.num_written == 1
                for _ in range(3):
                    tables["wolf"].sample(1)
        assert late
        tables["wolf"].sample(2)
        rows = tables["sheep"].as_dataset(window=Window(2), single_deterministic_pass=True)
        found = [(items.frame.numpy().tolist(), items.time.numpy().tolist()) for items, _ in rows]
        assert found == [([t, t + 1], [t, t + 1]) for t in range(11)]


def test_priorities_of_each_table():
    best = {"sampler": MaxHeap()}
    tables = local(
        independent={name: TableConfig(name, NUMBER, 100, **best) for name in ("wolf", "sheep")},
        lockstep=TableConfig("moments", NUMBER, 100, Prioritized(1.0), initial="max", tracks_least=True),
        batch_size=2,
    )
    with tables:
        present = {"wolf_0": {0: 1, 1: 2}, "wolf_1": {1: 3}, "sheep": {0: 4}}
        given_ = {"wolf_0": np.array([1.0, 5.0]), "wolf_1": np.array([2.0])}
        write(tables, 0, present, priorities=given_, joint_priorities=np.array([0.0, 3.0]))
        wolf, lockstep = tables["wolf"], tables.lockstep
        items, info = wolf.sample(1)
        assert items.frame["number"].numpy().tolist() == [2]
        wolf.update_priorities(info.keys, [0.5])
        assert wolf.sample(1)[0].frame["number"].numpy().tolist() == [3]
        items, info = lockstep.sample(8)
        assert items.frames["wolf_0"]["number"].numpy().tolist() == [2] * 8
        np.testing.assert_allclose(info.probabilities.numpy(), 1.0)
        lockstep.update_priorities(info.keys[:1], [6.0])
        write(tables, 1, {"wolf_0": {0: 7}, "sheep": {1: 8}})  # both moments get 6, the greatest
        _, info = lockstep.sample(64)
        np.testing.assert_allclose(info.probabilities.numpy(), 1 / 3, rtol=1e-6)
        with pytest.raises(ValueError, match=r"agent 'sheep': priorities\[0\] is -1.0"):
            write(tables, 2, {"sheep": {0: 1}}, priorities={"sheep": np.array([-1.0])})


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


def test_a_reader_refuses_to_write_and_clear_empties_all():
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=2)) as tables:
        write(tables, 0, {"wolf_0": {0: 1}})
        with pytest.raises(ValueError, match="is written through its ReverbAgentTables"):
            tables["wolf"].end_stream()
        tables.clear()
        write(tables, 1, {"wolf_0": {0: 2}})
        write(tables, 2, {"wolf_0": {0: 3}})
        assert frames_in(tables["wolf"], 2) == [[(2, 1, 0), (3, 2, 0)]]
        assert joint_items(tables["moments"], 2) == [[{"wolf_0": 2}, {"wolf_0": 3}]]


WRITER = """
import sys
import numpy as np, tensorflow as tf
from replayfeed.buffers import ReverbAgentTables
spec = tf.TensorSpec([], tf.int64)
c = int(sys.argv[2])
tables = ReverbAgentTables(
    {"a": spec, "b": spec}, lambda agent: agent, independent={"a": "a", "b": "b"}, lockstep="moments",
    server_address=sys.argv[1], max_pending_items=8,
)
with tables:
    for t in range(600):
        present = ["a"] + (["b"] if t % 3 else [])
        tables.write_moment(
            {agent: [np.array([1000 * c + t])] for agent in present}, {agent: np.array([0]) for agent in present},
            np.array([t]), codes=np.array([[1, int("b" in present)]], np.uint8),
        )
        if t == 300:
            tables.flush()
            print("ready", flush=True)
            if c == 1:
                sys.stdin.read()  # until it is killed
"""


def test_a_killed_writer_leaves_whole_items_and_another_goes_on():
    spec = tf.TensorSpec([], tf.int64)
    declared = agent_tables(
        {"a": spec, "b": spec},
        lambda agent: agent,
        independent={name: TableConfig(name, spec, 5000, sequence_length=2, scannable=True) for name in ("a", "b")},
        lockstep=TableConfig("moments", spec, 5000, sequence_length=3, scannable=True),
    )
    with ReplayServer(declared) as server:
        writers = []
        try:
            for c in (1, 2):
                writers.append(
                    subprocess.Popen(
                        [sys.executable, "-c", WRITER, server.address, str(c)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        text=True,
                    )
                )
                assert writers[-1].stdout is not None
                assert writers[-1].stdout.readline().strip() == "ready"
            os.kill(writers[0].pid, signal.SIGKILL)
            assert writers[1].wait(timeout=120) == 0
        finally:
            for writer in writers:
                if writer.poll() is None:
                    os.kill(writer.pid, signal.SIGKILL)
                writer.communicate()
        found = {}
        for table, length in (("a", 2), ("b", 2), ("moments", 3)):
            config = next(each for each in declared if each.name == table)
            with ReverbReplayBuffer(config.data_spec, table, length, local_server=server) as buffer:
                rows = buffer.as_dataset(500, window=None, num_steps=length, epochs=1)
                found[table] = [items for items, _ in rows]
    pairs = np.concatenate([items.frame.numpy() for items in found["a"]])
    assert sorted(pairs[:, 0].tolist()) == [*range(1000, 1300), *range(2000, 2599)]
    np.testing.assert_array_equal(pairs[:, 1], pairs[:, 0] + 1)
    pairs = np.concatenate([items.frame.numpy() for items in found["b"]])
    np.testing.assert_array_equal(pairs[:, 1] - pairs[:, 0], np.where(pairs[:, 0] % 1000 % 3 == 1, 1, 2))
    times = np.concatenate([items.time.numpy() for items in found["moments"]])
    assert sorted(times[:, 0].tolist()) == sorted([*range(299), *range(598)])
    codes = np.concatenate([items.codes.numpy() for items in found["moments"]])
    frames = np.concatenate([items.frames["b"].numpy() for items in found["moments"]])
    np.testing.assert_array_equal(codes[..., 1], times % 3 > 0)
    np.testing.assert_array_equal(np.where(codes[..., 1], frames % 1000, 0), np.where(times % 3 > 0, times, 0))


def test_an_interrupt_at_any_line_joins_no_frames_and_leaves_absent_agents_alone(interrupted_at):
    """wolf_0 and the sheep are interrupted; wolf_1, who has no turn then, has every pair."""
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=2)) as tables:
        write(tables, 0, {agent: {0: 0} for agent in AGENTS})
        line, t, going = 0, 1, True
        while going:
            line += 1
            present = {"wolf_0": {0: t}, "sheep": {0: t}}
            going = interrupted_at(line, lambda t=t, present=present: write(tables, t, present))
            for _ in range(2):
                t += 1
                write(tables, t, {agent: {0: t} for agent in AGENTS})
            t += 1
        pairs = [[frame[0] for frame in item] for item in frames_in(tables["wolf"], 2) if item[0][2] == 0]
        assert all(second == first + 1 for first, second in pairs)
        sheep = [[frame[0] for frame in item] for item in frames_in(tables["sheep"], 2)]
        assert all(second == first + 1 for first, second in sheep)
        other = [[frame[0] for frame in item] for item in frames_in(tables["wolf"], 2) if item[0][2] == 1]
        wanted = [0, *(n for first in range(1, t, 3) for n in (first + 1, first + 2))]
        assert other == [list(pair) for pair in zip(wanted[:-1], wanted[1:], strict=True)]
        assert {(first, first + 1) for first in range(2, t, 3)} <= {tuple(pair) for pair in pairs}
        for first, second in joint_items(tables["moments"], 2):
            assert second["wolf_0"] == first["wolf_0"] + 1


def batch(tables_size: int, numbers: Mapping[str, list[int | None]]) -> dict[str, Any]:
    """Arguments of `add_batch`: numbers by agent and environment; None: it is absent, and its row holds poison."""
    items, present = {}, {}
    for agent, by_env in numbers.items():
        assert len(by_env) == tables_size
        leaves = leaves_of(agent, [-999 if number is None else number for number in by_env])
        items[agent] = tf.nest.pack_sequence_as(SPECS[agent], leaves)
        present[agent] = np.array([number is not None for number in by_env])
    return {"items": items, "present": present}


def test_add_batch_finds_out_whose_lives_end():
    """Two environments. In the first wolf_1 dies in absence and the episode ends when all have died; the second is
    ended for all, while the sheep is absent."""
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=2), batch_size=2) as tables:
        ids = tables.add_batch(**batch(2, {"wolf_0": [10, 20], "wolf_1": [11, None], "sheep": [None, 22]}))
        assert ids.agents["wolf_1"][1] == -1
        assert ids.joint.shape == (2,)
        yes, no = np.array([True, False]), np.array([False, True])
        tables.add_batch(**batch(2, {"wolf_0": [12, 24]}), end_of_episode={"wolf_0": yes})
        tables.add_batch(**batch(2, {"wolf_1": [13, None], "wolf_0": [None, 25]}), end_of_episode={"wolf_1": yes})
        tables.add_batch(**batch(2, {"wolf_0": [14, 26]}), end_of_episode=no)
        ids = tables.add_batch(**batch(2, {"wolf_0": [15, None], "wolf_1": [16, None]}))
        assert ids.joint[1] == -1
        tables.add_batch(**batch(2, {"sheep": [None, 27], "wolf_1": [17, None]}))
        assert frames_in(tables["wolf"], 2) == [
            [(10, 0, 0), (12, 1, 0)],
            [(14, 3, 0), (15, 4, 0)],
            [(20, 0, 2), (24, 1, 2)],
            [(24, 1, 2), (25, 2, 2)],
            [(25, 2, 2), (26, 3, 2)],
            [(11, 0, 1), (13, 2, 1)],
            [(16, 4, 1), (17, 5, 1)],
        ]
        # The sheep's 27 begins a life.
        assert tables["sheep"].get_table_info().current_size == 0
        assert joint_items(tables["moments"], 2) == [
            [{"wolf_0": 10, "wolf_1": 11}, {"wolf_0": 12}],
            [{"wolf_0": 12}, {"wolf_1": 13}],
            [{"wolf_0": 14}, {"wolf_0": 15, "wolf_1": 16}],
            [{"wolf_0": 15, "wolf_1": 16}, {"wolf_1": 17}],
            [{"wolf_0": 20, "sheep": 22}, {"wolf_0": 24}],
            [{"wolf_0": 24}, {"wolf_0": 25}],
            [{"wolf_0": 25}, {"wolf_0": 26}],
        ]
        with pytest.raises(ValueError, match="there is no environment 2"):
            tables.end_stream(2)
        with pytest.raises(ValueError, match=r"agent 'wolf_0': field 'number': expected \[2\] int64"):
            tables.add_batch({"wolf_0": {"number": np.zeros(3, np.int64), "scent": np.zeros([3, 2], np.float32)}})


@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(AGENTS), st.tuples(st.booleans(), st.booleans()), min_size=1),
            st.none()
            | st.sets(st.integers(0, 1))
            | st.dictionaries(st.sampled_from(AGENTS), st.sets(st.integers(0, 1))),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_add_batch_gives_what_buffers_in_this_process_give(pair_tables, steps):
    """Each window of two frames of a `MultiAgentReplayBuffer` of either mode, and no other."""
    tables = pair_tables
    tables.clear()
    config = BufferConfig("uniform", 10_000)
    others = [
        MultiAgentReplayBuffer(SPECS, policy_of, config, mode=mode, batch_size=2)
        for mode in ("independent", "lockstep")
    ]
    for time, (present, told) in enumerate(steps):
        numbers = {
            agent: [1000 * AGENTS.index(agent) + 100 * b + time + 1 if there[b] else None for b in range(2)]
            for agent, there in present.items()
        }
        ends: Any = None
        if isinstance(told, dict):
            ends = {agent: np.array([b in rows for b in range(2)]) for agent, rows in told.items()}
        elif told is not None:
            ends = np.array([b in told for b in range(2)])
        arguments = batch(2, numbers)
        tables.add_batch(**arguments, end_of_episode=ends)
        for other in others:
            other.add_batch(**arguments, end_of_episode=ends)
    tables.flush()

    def windows_of(buffer: Any) -> list[Any]:
        rows = buffer.as_dataset(window=Window(2), single_deterministic_pass=True)
        try:
            return [items for items, _ in rows]
        except tf.errors.InvalidArgumentError as error:  # no window of so many frames
            assert "no window of 2 frames" in str(error)
            return []

    def pairs_of(windows: list[AgentFrame]) -> list[Any]:
        return sorted(
            (items.frame["number"].numpy().tolist(), np.diff(items.time.numpy()).tolist()) for items in windows
        )

    def moments_of(windows: list[JointFrame], agents: list[str]) -> list[Any]:
        order = [agents.index(agent) for agent in AGENTS]
        return sorted(
            [
                items.codes.numpy()[:, order].tolist(),
                [items.frames[agent]["number"].numpy().tolist() for agent in AGENTS],
            ]
            for items in windows
        )

    independent, lockstep = others
    for policy in ("wolf", "sheep"):
        other = independent.buffer_of(policy)
        wanted = windows_of(other) if len(other) else []
        assert tables[policy].get_table_info().current_size == len(wanted)
        assert not wanted or pairs_of(windows_of(tables[policy])) == pairs_of(wanted)
    wanted = windows_of(lockstep.buffer_of()) if len(lockstep.buffer_of()) else []
    assert tables.lockstep.get_table_info().current_size == len(wanted)
    if wanted:
        served, joint = (list(buffer.data_spec.frames) for buffer in (tables.lockstep, lockstep.buffer_of()))
        assert moments_of(windows_of(tables.lockstep), served) == moments_of(wanted, joint)


@pytest.fixture(scope="module")
def pair_tables() -> Iterator[ReverbAgentTables]:
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=2), batch_size=2) as tables:
        yield tables


def naive(episode: list[Any], window: Window) -> list[list[Any]]:
    """The items of an episode by the rule in words (stride 1); padding is None."""
    padded = [None] * window.burn_in + episode + [None] * window.num_steps
    starts = len(episode) if window.short == "pad" else len(episode) - window.num_steps + 1
    return [padded[start : start + window.length] for start in range(starts)]


PADDED, DROPPED = Window(3, 1, short="pad"), Window(2)


@pytest.fixture(scope="module")
def random_tables() -> Iterator[ReverbAgentTables]:
    independent = {
        "wolf": TableConfig("wolf", NUMBER, 2000, sequence_length=3, burn_in=1, short="pad", scannable=True),
        "sheep": TableConfig("sheep", NUMBER, 2000, sequence_length=2, scannable=True),
    }
    lockstep = moments(sequence_length=3, burn_in=1, short="pad")
    with local(independent=independent, lockstep=lockstep, batch_size=2) as tables:
        yield tables


PAIRS = st.sets(st.tuples(st.sampled_from(AGENTS), st.integers(0, 1)))


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(st.tuples(PAIRS, PAIRS, st.sets(st.integers(0, 1))), min_size=1, max_size=20))
def test_random_births_deaths_and_turns_give_the_items_of_a_naive_model(random_tables, steps):
    """Steps say who is present, whose life ends (also in absence), and which environments' episodes end."""
    tables = random_tables
    tables.clear()
    lives: dict[tuple[str, int], list[list[Any]]] = {(agent, b): [[]] for agent in AGENTS for b in range(2)}
    episodes: list[list[list[dict[str, int]]]] = [[[]], [[]]]
    for time, (present, dying, over) in enumerate(steps):
        by_agent: dict[str, dict[int, int]] = {}
        for agent, b in present:
            # What absent agents' rows would hold is never given to the tables.
            by_agent.setdefault(agent, {})[b] = 1000 * AGENTS.index(agent) + 100 * b + time + 1
        last = {agent: {b for name, b in dying & present if name == agent} for agent in AGENTS}
        absent = {agent: sorted(b for name, b in dying - present if name == agent) for agent in AGENTS}
        ended = {agent: np.array(rows) for agent, rows in absent.items() if rows}
        for (agent, b), of_agent in lives.items():
            if (agent, b) in present:
                stream = {"wolf_0": 2 * b, "wolf_1": 2 * b + 1, "sheep": b}[agent]
                of_agent[-1].append((by_agent[agent][b], time, stream))
            if (agent, b) in dying:
                of_agent.append([])
        for b in range(2):
            episodes[b][-1].append({agent: by_agent[agent][b] for agent in AGENTS if b in by_agent.get(agent, {})})
            if b in over:
                episodes[b].append([])
        write(tables, time, by_agent, last=last, over=over, ended=ended)
    tables.end_stream()
    tables.flush()

    def items_of(agents: tuple[str, ...], kind: Window) -> list[list[Any]]:
        return [
            [() if frame is None else frame for frame in item]
            for agent in agents
            for b in range(2)
            for life in lives[agent, b]
            for item in naive(life, kind)
        ]

    for name, agents, kind in (("wolf", ("wolf_0", "wolf_1"), PADDED), ("sheep", ("sheep",), DROPPED)):
        wanted = items_of(agents, kind)
        assert tables[name].get_table_info().current_size == len(wanted)
        if wanted:  # of an empty table a pass waits
            assert frames_in(tables[name], kind.num_steps, burn_in=kind.burn_in, short=kind.short) == wanted
    wanted_moments = [
        [moment or {} for moment in item]
        for of_environment in episodes
        for episode in of_environment
        for item in naive(episode, PADDED)
    ]
    assert joint_items(tables.lockstep, 3, burn_in=1, short="pad") == wanted_moments


TOLD = {"x": NUMBER, "is_last": tf.TensorSpec([], tf.bool)}


def told(*frames: tuple[int, bool]) -> dict[str, np.ndarray]:
    """Frames that tell their ends."""
    return {"x": np.array([x for x, _ in frames]), "is_last": np.array([last for _, last in frames])}


def test_final_observations_start_no_item_and_are_told_of_moments():
    """a sees its last observation at moment 1, b at 2: for the environment only moment 2 is final."""
    tables = ReverbAgentTables.local(
        {"a": TOLD, "b": TOLD},
        lambda agent: agent,
        independent={name: TableConfig(name, TOLD, 100, scannable=True) for name in ("a", "b")},
        lockstep=TableConfig("moments", TOLD, 100, sequence_length=2, short="pad", scannable=True),
    )
    with tables:
        tables.add_batch({"a": told((1, False)), "b": told((11, False))})
        tables.add_batch({"a": told((2, True)), "b": told((12, False))})
        tables.add_batch({"b": told((13, True))})
        tables.add_batch({"a": told((3, False)), "b": told((14, False))})

        def numbers(name: str) -> list[int]:
            rows = tables[name].as_dataset(window=Window(1), single_deterministic_pass=True)
            return [int(items.frame["x"][0]) for items, _ in rows]

        assert numbers("a") == [1, 3]
        assert numbers("b") == [11, 12, 14]
        rows = tables.lockstep.as_dataset(window=Window(2, short="pad"), single_deterministic_pass=True)
        # Moment 2 alone starts nothing; the second episode is not over.
        assert [items.time.numpy().tolist() for items, _ in rows] == [[0, 1], [1, 2]]
        assert [items.is_last.numpy().tolist() for items, _ in rows] == [[False, False], [False, True]]
        assert [items.codes.numpy().tolist() for items, _ in rows] == [[[1, 1], [3, 1]], [[3, 1], [0, 3]]]
        assert [items.frames["a"]["x"].numpy().tolist() for items, _ in rows] == [[1, 2], [2, 0]]


@pytest.mark.parametrize(("over_long", "lengths"), [("cut", [2, 2, 1]), ("drop", [])])
def test_episodes_that_are_too_long_are_cut_or_left_out_in_their_own_table(over_long, lengths):
    whole = {"sequence_length": None, "max_episode_length": 2, "over_long": over_long}
    with local(independent=own(**whole), lockstep=moments(sequence_length=5)) as tables:
        for t in range(5):
            write(tables, t, {"wolf_0": {0: t}})
        tables.end_stream()
        write(tables, 5, {"wolf_0": {0: 5}})
        tables.end_stream()
        rows = tables["wolf"].as_dataset(single_deterministic_pass=True)
        assert [len(items.time) for items, _ in rows] == [*lengths, 1]
        assert [[moment["wolf_0"] for moment in item] for item in joint_items(tables["moments"], 5)] == [
            [0, 1, 2, 3, 4]
        ]


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.dictionaries(
            st.sampled_from(["a", "b"]), st.tuples(*[st.sampled_from(["no", "yes", "last"])] * 2), min_size=1
        ),
        min_size=1,
        max_size=16,
    )
)
def test_ends_that_frames_tell_give_what_buffers_in_this_process_give(told_tables, steps):
    """Steps say who is present in two environments, and whose frame is its last."""
    tables = told_tables
    tables.clear()
    specs, config = {"a": TOLD, "b": TOLD}, BufferConfig("uniform", 10_000)
    others = [
        MultiAgentReplayBuffer(specs, lambda agent: agent, config, mode=mode, batch_size=2)
        for mode in ("independent", "lockstep")
    ]
    for time, step in enumerate(steps):
        items = {
            agent: told(*((1000 * (agent == "b") + 100 * b + time + 1, word == "last") for b, word in enumerate(words)))
            for agent, words in step.items()
        }
        present = {agent: np.array([word != "no" for word in words]) for agent, words in step.items()}
        for buffer in (tables, *others):
            buffer.add_batch(items, present=present)
    tables.flush()

    def windows_of(buffer: Any) -> list[Any]:
        rows = buffer.as_dataset(window=Window(2), single_deterministic_pass=True)
        try:
            # Times of tables go on from one example to the next.
            return sorted(
                tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), tf.nest.flatten(items._replace(time=())))
                for items, _ in rows
            )
        except tf.errors.InvalidArgumentError as error:  # no window of so many frames
            assert "no window of 2 frames" in str(error)
            return []

    independent, lockstep = others
    for table, other in (
        ("a", independent.buffer_of("a")),
        ("b", independent.buffer_of("b")),
        ("moments", lockstep.buffer_of()),
    ):
        wanted = windows_of(other) if len(other) else []
        assert tables[table].get_table_info().current_size == len(wanted)
        assert not wanted or windows_of(tables[table]) == wanted


@pytest.fixture(scope="module")
def told_tables() -> Iterator[ReverbAgentTables]:
    tables = ReverbAgentTables.local(
        {"a": TOLD, "b": TOLD},
        lambda agent: agent,
        independent={name: TableConfig(name, TOLD, 5000, sequence_length=2, scannable=True) for name in ("a", "b")},
        lockstep=TableConfig("moments", TOLD, 5000, sequence_length=2, scannable=True),
        batch_size=2,
        timeout_s=20.0,
    )
    with tables:
        yield tables
