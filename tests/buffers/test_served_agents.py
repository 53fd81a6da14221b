"""Many agents on one server: what each policy's table holds, what the table of moments holds, and what they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    AgentFrame,
    JointFrame,
    MomentIds,
    ReverbAgentTables,
    ReverbEpisodicReplayBuffer,
    TableConfig,
    Window,
)

from .wolves_and_sheep import (
    AGENTS,
    TOLD,
    Present,
    batch,
    frames_in,
    joint_items,
    joint_rows,
    leaves_of,
    local,
    moments,
    own,
    told,
    write,
    write_story,
)


def num_stored_chunks(buffer: Any) -> int:
    """Chunks that the server holds: a checkpoint has each of them once."""
    path = Path(buffer.py_client.checkpoint()) / "chunks.tfrecord"
    return sum(1 for _ in tf.data.TFRecordDataset(str(path), compression_type="ZLIB"))


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


def test_another_process_reads_both_kinds_by_address(run_python):
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=3)) as tables:
        write_story(tables)
        tables.flush()
        out = run_python(READER, tables.server_address).splitlines()
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
