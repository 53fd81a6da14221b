"""One add feeds several tables: what each of them holds, what they share, and who waits for whom."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    Fifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    Queue,
    ReplayServer,
    ReverbEpisodicReplayBuffer,
    ReverbReplayBuffer,
    ReverbTableGroup,
    TableConfig,
    WaitTimeoutError,
    Window,
)

NUMBER = tf.TensorSpec([], tf.int64)
# An image has a column of its own; number and reward lie side by side in a record.
SPEC = {"image": tf.TensorSpec([1200], tf.uint8), "number": NUMBER, "reward": tf.TensorSpec([], tf.float32)}


def frames(numbers: Any) -> dict[str, np.ndarray]:
    """Frames `[...]` whose fields tell their number."""
    number = np.asarray(numbers, np.int64)
    image = np.broadcast_to((number % 256)[..., None], (*number.shape, 1200)).astype(np.uint8)
    return {"image": image, "number": number, "reward": (number / 2).astype(np.float32)}


def queue(name: str, spec: Any, size: int, **settings: Any) -> TableConfig:
    return TableConfig(name, spec, size, Fifo(), Fifo(), Queue(size), max_times_sampled=1, **settings)


def windows(buffer: Any, num_steps: int, field: str | None = "number") -> list[list[int]]:
    """Every item, in an ordered pass."""
    rows = buffer.as_dataset(window=Window(num_steps), single_deterministic_pass=True)
    return [(items if field is None else items[field]).numpy().tolist() for items, _ in rows]


def num_stored_chunks(buffer: Any) -> int:
    """Chunks that the server holds: a checkpoint has each of them once."""
    path = Path(buffer.py_client.checkpoint()) / "chunks.tfrecord"
    return sum(1 for _ in tf.data.TFRecordDataset(str(path), compression_type="ZLIB"))


def test_each_table_gets_one_item_for_each_of_its_own_windows():
    """Episodes of 5 and 4 frames. Single frames, windows of 3, and pairs side by side in a queue."""
    tables = [
        TableConfig("frames", SPEC, 100, scannable=True),
        TableConfig("windows", SPEC, 100, Prioritized(0.6), sequence_length=3, scannable=True),
        queue("pairs", SPEC, 100, sequence_length=2, stride=2),
    ]
    with ReverbTableGroup.local(SPEC, tables) as group:
        for number in (0, 1, 2, 3, 4, 10, 11, 12, 13):
            group.add_batch(frames([number]), end_of_episode=np.array([number in (4, 13)]))
        assert windows(group["frames"], 1) == [[0], [1], [2], [3], [4], [10], [11], [12], [13]]
        assert windows(group["windows"], 3) == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [10, 11, 12], [11, 12, 13]]
        items, info = group["pairs"].sample(4, num_steps=2)
        assert items["number"].numpy().tolist() == [[0, 1], [2, 3], [10, 11], [12, 13]]
        assert items["image"].numpy()[..., 7].tolist() == [[0, 1], [2, 3], [10, 11], [12, 13]]
        assert items["reward"].numpy().tolist() == [[0.0, 0.5], [1.0, 1.5], [5.0, 5.5], [6.0, 6.5]]
        assert info.mask.numpy().all()
        assert not group["pairs"].ready()
        assert group.tables == ("frames", "windows", "pairs")


def test_tables_share_what_is_stored():
    """Nine frames of two columns are 18 chunks, for three tables as for one."""
    tables = [
        TableConfig("frames", SPEC, 100),
        TableConfig("windows", SPEC, 100, sequence_length=3, scannable=True),
        queue("pairs", SPEC, 100, sequence_length=2),
    ]
    with ReverbTableGroup.local(SPEC, tables, max_chunk_length=1) as group:
        group.add_sequence(frames([range(9)]))
        group.flush()
        assert [len(group[name]) for name in group] == [9, 7, 8]
        assert num_stored_chunks(group["frames"]) == 18


def test_tables_with_fewer_fields_refer_to_fewer_columns():
    """Images are stored once; number and reward once for the two tables that have both; the third has a record of its
    own, in which only ids are."""
    tables = [
        TableConfig("all", SPEC, 100, scannable=True),
        TableConfig("small", SPEC, 100, sequence_length=2, scannable=True, fields=("number", "reward")),
        TableConfig("images", SPEC, 100, fields=("image",)),
    ]
    with ReverbTableGroup.local(SPEC, tables, max_chunk_length=1) as group:
        group.add_sequence(frames([range(5)]))
        group.flush()
        assert num_stored_chunks(group["all"]) == 15
        assert set(group["small"].data_spec) == {"number", "reward"}
        assert set(group["images"].data_spec) == {"image"}
        assert windows(group["all"], 1) == [[0], [1], [2], [3], [4]]
        assert windows(group["small"], 2) == [[0, 1], [1, 2], [2, 3], [3, 4]]
        assert windows(group["small"], 2, "reward")[1] == [0.5, 1.0]
        items, info = group["images"].sample(64)
        assert set(items) == {"image"}
        assert set(items["image"].numpy()[:, 1199].tolist()) == {0, 1, 2, 3, 4}
        assert np.array_equal(items["image"].numpy()[:, 0], info.ids.numpy() - info.ids.numpy().min())


def test_fr_050_streams_of_different_episodes_do_not_mix():
    """Episodes of 4, 7 and 5 frames, stepped together; the items are those of three runs alone."""
    lengths = (4, 7, 5)
    tables = [
        TableConfig("frames", NUMBER, 100, scannable=True),
        TableConfig("windows", NUMBER, 100, sequence_length=3, scannable=True),
        TableConfig("padded", NUMBER, 100, sequence_length=2, burn_in=1, short="pad", scannable=True),
    ]
    with ReverbTableGroup.local(NUMBER, tables, batch_size=3) as group:
        steps = [0, 0, 0]
        for t in range(14):
            ends = [step == length - 1 for step, length in zip(steps, lengths, strict=True)]
            ids = group.add_batch(100 * np.arange(3) + t, end_of_episode=np.array(ends))
            assert ids.shape == (3,)
            steps = [0 if end else step + 1 for step, end in zip(steps, ends, strict=True)]
        group.end_stream()

        def episodes(b: int) -> list[list[int]]:
            return [
                list(range(100 * b + first, 100 * b + min(first + lengths[b], 14)))
                for first in range(0, 14, lengths[b])
            ]

        assert [row[0] for row in windows(group["frames"], 1, None)] == [
            100 * b + t for b in range(3) for t in range(14)
        ]
        assert windows(group["windows"], 3, None) == [
            episode[n : n + 3] for b in range(3) for episode in episodes(b) for n in range(len(episode) - 2)
        ]
        padded = group["padded"].as_dataset(window=Window(2, 1, short="pad"), single_deterministic_pass=True)
        assert [items.numpy().tolist() for items, _ in padded] == [
            [([0, *episode, 0])[n], episode[n], ([*episode, 0])[n + 1]]
            for b in range(3)
            for episode in episodes(b)
            for n in range(len(episode))
        ]


def test_final_observations_and_padding_in_tables_that_do_not_hold_the_step_type():
    """The steps of a stream are FIRST 0, MID 1, LAST 2, FIRST 10: frame 2 is only a final observation."""
    spec = {"step_type": tf.TensorSpec([], tf.int32), **SPEC}
    tables = [
        TableConfig("frames", spec, 100, scannable=True, fields=("number",)),
        TableConfig(
            "padded", spec, 100, sequence_length=2, burn_in=1, short="pad", scannable=True, fields=("image", "number")
        ),
        TableConfig("pairs", spec, 100, sequence_length=2, scannable=True, fields=("image",)),
    ]
    with ReverbTableGroup.local(spec, tables) as group:
        for step_type, number in ((0, 0), (1, 1), (2, 2), (0, 10)):
            group.add_batch({"step_type": np.array([step_type], np.int32), **frames([number])})
        assert windows(group["frames"], 1) == [[0], [1], [10]]
        assert windows(group["pairs"], 2, "image") == [[[0] * 1200, [1] * 1200], [[1] * 1200, [2] * 1200]]
        rows = group["padded"].as_dataset(window=Window(2, 1, short="pad"), single_deterministic_pass=True)
        shown = [(items["number"].numpy().tolist(), items["image"].numpy()[:, 5].tolist()) for items, _ in rows]
        assert shown == [([0, 0, 1], [0, 0, 1]), ([0, 1, 2], [0, 1, 2])]
        masks = [info.mask.numpy().tolist() for _, info in rows]
        assert masks == [[False, True, True], [True, True, True]]
        group.end_stream()
        assert [info.mask.numpy().tolist() for _, info in rows][2] == [False, True, False]


def test_a_table_of_whole_episodes_beside_windows():
    tables = [
        TableConfig("episodes", NUMBER, 10, sequence_length=None, max_episode_length=5, scannable=True),
        TableConfig("short", NUMBER, 10, sequence_length=None, max_episode_length=2, over_long="drop"),
        TableConfig("pairs", NUMBER, 10, sequence_length=2, scannable=True),
    ]
    with ReverbTableGroup.local(NUMBER, tables) as group:
        group.add_sequence([[0, 1, 2]], end_of_episode=[[False, False, True]])
        group.add_sequence([[10, 11]], end_of_episode=[[False, True]])
        episodes = group["episodes"]
        assert isinstance(episodes, ReverbEpisodicReplayBuffer)
        held = episodes.as_dataset(single_deterministic_pass=True)
        assert [items.numpy().tolist() for items, _ in held] == [[0, 1, 2], [10, 11]]
        assert group["short"].sample(1)[0].numpy().tolist() == [[10, 11]]
        assert windows(group["pairs"], 2, None) == [[0, 1], [1, 2], [10, 11]]
        with pytest.raises(ValueError, match="table 'episodes' holds episodes of up to max_episode_length=5"):
            group.add_sequence(np.arange(6)[None])
        assert windows(group["pairs"], 2, None) == [[0, 1], [1, 2], [10, 11]]


def test_fr_093_each_item_of_a_queue_once_and_then_waiting():
    with ReverbTableGroup.local(NUMBER, [queue("queue", NUMBER, 10)], timeout_s=3.0) as group:
        group.add_sequence([[1, 2, 3]])
        assert group["queue"].sample(3)[0].numpy().tolist() == [1, 2, 3]
        assert len(group["queue"]) == 0
        with pytest.raises(WaitTimeoutError, match="table 'queue': 0 of 1 items"):
            group["queue"].sample(3)


def test_fr_093_batches_of_half_new_and_half_replayed_items():
    """Of each batch of 100, 50 are the next ones of the queue, each once; the other 50 are replayed."""
    tables = [queue("new", NUMBER, 200), TableConfig("replay", NUMBER, 1000)]
    with ReverbTableGroup.local(NUMBER, tables) as group:
        group.add_sequence(np.arange(150)[None])
        halves = [group[name].as_dataset(50) for name in ("new", "replay")]
        both = tf.data.Dataset.zip(tuple(halves)).map(
            lambda new, old: tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), new, old)
        )
        iterator = iter(both)
        for first in (0, 50, 100):
            items, info = next(iterator)
            assert items.numpy()[:50].tolist() == list(range(first, first + 50))
            assert items.shape == info.keys.shape == (100,)
            assert len(set(items.numpy()[50:].tolist())) > 25  # of 150, drawn with replacement


def test_one_array_of_priorities_is_for_every_table_and_a_dict_is_by_table():
    """Heaps show the greatest and the least priority."""
    tables = [TableConfig("most", NUMBER, 100, MaxHeap()), TableConfig("least", NUMBER, 100, MinHeap())]
    with ReverbTableGroup.local(NUMBER, tables, batch_size=2) as group:
        group.add_batch(np.array([1, 2]), priorities=np.array([3.0, 0.5]))
        assert [int(group[name].sample()[0]) for name in group] == [1, 2]
        group.add_batch(np.array([3, 4]), priorities={"most": [4.0, 5.0], "least": [0.25, 9.0]})
        assert [int(group[name].sample()[0]) for name in group] == [4, 3]
        group.add_sequence(np.array([[5], [6]]), priorities={"most": [[6.0], [0.0]]})  # 1 in the other one
        assert [int(group[name].sample()[0]) for name in group] == [5, 3]


def test_priorities_inside_a_graph():
    tables = [TableConfig("most", NUMBER, 100, MaxHeap()), TableConfig("least", NUMBER, 100, MinHeap())]
    with ReverbTableGroup.local(NUMBER, tables, batch_size=2) as group:

        @tf.function
        def add(items: tf.Tensor, most: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            first = group.add_batch(items, priorities={"most": most})
            return first, group.add_sequence(items[:, None] + 10, priorities=most[:, None] / 10)

        first, second = add(tf.constant([1, 2], tf.int64), tf.constant([3.0, 2.0]))
        assert first.shape == [2]
        assert second.shape[0] == 2
        assert [int(group[name].sample()[0]) for name in group] == [1, 12]
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 'most': priorities\[1\] is -2.0"):
            add(tf.constant([1, 2], tf.int64), tf.constant([3.0, -2.0]))


def test_a_reservoir_leaves_given_priorities_to_the_other_tables():
    tables = [
        TableConfig("most", NUMBER, 100, MaxHeap()),
        TableConfig("reservoir", NUMBER, 2, remover=MinHeap(), initial="random"),
    ]
    with ReverbTableGroup.local(NUMBER, tables) as group:
        group.add_sequence(np.arange(5)[None], priorities=[[0.0, 9.0, 0.0, 0.0, 0.0]])
        assert int(group["most"].sample()[0]) == 1
        assert len(group["reservoir"]) == 2
        with pytest.raises(ValueError, match="table 'reservoir' has initial='random'"):
            group.add_batch([5], priorities={"reservoir": [1.0]})


def test_new_items_of_one_table_get_its_greatest_priority():
    tables = [TableConfig("replay", NUMBER, 100, Prioritized(1.0), initial="max"), TableConfig("frames", NUMBER, 100)]
    with ReverbTableGroup.local(NUMBER, tables) as group:
        group.add_batch([1])
        _, info = group["replay"].sample(1)
        group["replay"].update_priorities(info.keys, [3.0])
        group.add_batch([2])
        items, info = group["replay"].sample(64)
        assert set(items.numpy().tolist()) == {1, 2}
        assert info.probabilities.numpy().tolist() == [0.5] * 64


def test_a_full_queue_keeps_nobody_else_from_items_and_is_named():
    """Three of 20 items fit into the queue; all 20 are in the other table."""
    tables = [queue("queue", NUMBER, 3), TableConfig("replay", NUMBER, 100)]
    with ReverbTableGroup.local(NUMBER, tables, timeout_s=3.0) as group:
        group.add_sequence(np.arange(20)[None])
        # While the queue holds items back a read gives pending ones a moment only: the server takes what it takes.
        deadline = time.monotonic() + 300
        while len(group["replay"]) < 20:
            assert time.monotonic() < deadline, f"{len(group['replay'])} of 20 items"
        assert set(group["replay"].sample(1000)[0].numpy().tolist()) == set(range(20))
        with pytest.raises(
            WaitTimeoutError, match=r"tables 'queue', 'replay' at .*: table 'queue': full, needs 1 more"
        ):
            group.flush()
        assert [int(group["queue"].sample()[0]) for _ in range(20)] == list(range(20))
        group.flush()


def test_clearing_one_table_leaves_the_others_and_their_episodes():
    tables = [
        TableConfig("frames", NUMBER, 100, scannable=True),
        TableConfig("pairs", NUMBER, 100, sequence_length=2, scannable=True),
    ]
    with ReverbTableGroup.local(NUMBER, tables) as group:
        group.add_sequence([[0, 1, 2]])
        group["pairs"].clear()
        group.add_sequence([[3, 4, 5]])
        assert windows(group["pairs"], 2, None) == [[3, 4], [4, 5]]
        assert windows(group["frames"], 1, None) == [[0], [1], [2], [3], [4], [5]]
        group.clear()
        assert [len(group[name]) for name in group] == [0, 0]
        group.add_sequence([[6, 7]])
        assert windows(group["pairs"], 2, None) == [[6, 7]]


WRITER = """
import sys, numpy as np, tensorflow as tf, replayfeed.buffers as rf
spec = {"image": tf.TensorSpec([1200], tf.uint8), "number": tf.TensorSpec([], tf.int64),
        "reward": tf.TensorSpec([], tf.float32)}
with rf.ReverbTableGroup(spec, ["frames", "pairs"], sys.argv[1], batch_size=2) as group:
    number = np.arange(6).reshape(2, 3)
    group.add_sequence({"image": np.zeros((2, 3, 1200), np.uint8), "number": number,
                        "reward": np.zeros((2, 3), np.float32)})
"""


def test_another_process_writes_by_address_what_the_tables_say():
    """It knows the windows and fields from the server."""
    tables = [
        TableConfig("frames", SPEC, 100, scannable=True, fields=("number",)),
        TableConfig("pairs", SPEC, 100, sequence_length=2, scannable=True, fields=("number", "image")),
    ]
    with ReplayServer(tables) as server:
        subprocess.run([sys.executable, "-c", WRITER, server.address], check=True, env=dict(os.environ))
        frames_, pairs = (
            ReverbReplayBuffer(config.held_spec, config.name, None, local_server=server, batch_size=2)
            for config in tables
        )
        with frames_, pairs:
            assert sorted(windows(frames_, 1)) == [[0], [1], [2], [3], [4], [5]]
            assert sorted(windows(pairs, 2)) == [[0, 1], [1, 2], [3, 4], [4, 5]]


def test_readers_keep_settings_of_their_own():
    tables = [TableConfig("replay", NUMBER, 100, Prioritized(1.0)), TableConfig("frames", NUMBER, 100)]
    with ReplayServer(tables) as server:
        reader = ReverbReplayBuffer(NUMBER, "replay", 1, local_server=server, weight_norm=None, beta=1.0)
        with ReverbTableGroup(NUMBER, ["replay", "frames"], None, server, readers={"replay": reader}) as group:
            assert group["replay"] is reader
            group.add_sequence([[0, 1]], priorities=[[3.0, 1.0]])
            items, info = reader.sample(64)
            expected = np.where(items.numpy() == 0, 1 / (2 * 0.75), 1 / (2 * 0.25))
            np.testing.assert_allclose(info.weights.numpy(), expected, rtol=1e-5)
        with pytest.raises(ValueError, match="closed"):
            reader.sample()


@pytest.fixture(scope="module")
def three_tables() -> Iterator[ReplayServer]:
    tables = [
        TableConfig("frames", SPEC, 1000, scannable=True),
        TableConfig("windows", SPEC, 1000, sequence_length=3, scannable=True, fields=("number",)),
        TableConfig("strided", SPEC, 1000, sequence_length=2, stride=3, scannable=True, fields=("number", "image")),
        TableConfig("plain", NUMBER, 10, layout="plain"),
        TableConfig("cut", NUMBER, 10, sequence_length=None, max_episode_length=5, over_long="cut"),
    ]
    with ReplayServer(tables) as server:
        yield server


def naive_windows(streams: Sequence[Sequence[Sequence[int]]], num_steps: int, stride: int) -> list[list[int]]:
    return [
        list(episode[n : n + num_steps])
        for episodes in streams
        for episode in episodes
        for n in range(0, len(episode) - num_steps + 1, stride)
    ]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_tables_hold_what_a_naive_list_of_windows_holds(three_tables, data):
    num_streams = data.draw(st.integers(1, 3))
    with ReverbTableGroup(
        SPEC, ["frames", "windows", "strided"], None, three_tables, batch_size=num_streams, max_chunk_length=2
    ) as group:
        group.clear()
        streams: list[list[list[int]]] = [[[]] for _ in range(num_streams)]
        for t in range(data.draw(st.integers(0, 12))):
            numbers = [20 * b + t for b in range(num_streams)]
            ends = data.draw(st.lists(st.booleans(), min_size=num_streams, max_size=num_streams))
            group.add_batch(frames(numbers), end_of_episode=np.array(ends))
            for b, (number, end) in enumerate(zip(numbers, ends, strict=True)):
                streams[b][-1].append(number)
                if end:
                    streams[b].append([])
        if any(any(episodes) for episodes in streams):
            assert windows(group["frames"], 1) == naive_windows(streams, 1, 1)
        for name, num_steps, stride in (("windows", 3, 1), ("strided", 2, 3)):
            expected = naive_windows(streams, num_steps, stride)
            assert group[name].get_table_info().current_size == len(expected)
            if expected:
                rows = group[name].as_dataset(window=Window(num_steps, stride=stride), single_deterministic_pass=True)
                assert [items["number"].numpy().tolist() for items, _ in rows] == expected


def test_readers_write_nothing(three_tables):
    with ReverbTableGroup(SPEC, ["frames", "windows"], None, three_tables) as group:
        reader = group["frames"]
        with pytest.raises(ValueError, match="add_batch: this table is written through its ReverbTableGroup"):
            reader.add_batch(frames([1]))
        with pytest.raises(ValueError, match="add_sequence: this table is written through its ReverbTableGroup"):
            reader.add_sequence(frames([[1]]))
        with pytest.raises(ValueError, match="end_stream: this table is written through its ReverbTableGroup"):
            reader.end_stream()
        with pytest.raises(KeyError, match="there is no table 'replay' in this group; it has frames, windows"):
            group["replay"]


@pytest.mark.parametrize(
    ("items", "arguments", "message"),
    [
        (frames([1, 2]), {}, "image"),
        ({"number": np.array([1])}, {}, "missing"),
        (frames([1]), {"priorities": [-1.0]}, r"priorities\[0\] is -1.0"),
        (frames([1]), {"priorities": {"windows": [np.nan]}}, r"table 'windows': priorities\[0\] is nan"),
        (frames([1]), {"priorities": {"replay": [1.0]}}, "there is no table 'replay' here; there are frames, windows"),
        (frames([1]), {"priorities": {"frames": [1.0, 2.0]}}, r"table 'frames': .*shape \[1\]"),
        (frames([1]), {"end_of_episode": [1]}, "end_of_episode"),
    ],
)
def test_what_is_refused_writes_nothing(three_tables, items, arguments, message):
    with ReverbTableGroup(SPEC, ["frames", "windows"], None, three_tables) as group:
        group.clear()
        with pytest.raises(ValueError, match=message):
            group.add_batch(items, **arguments)
        with pytest.raises(ValueError, match="there is no stream 1: this group has streams 0 to 0"):
            group.end_stream(1)
        assert [len(group[name]) for name in group] == [0, 0]


@pytest.mark.parametrize(
    ("spec", "tables", "error", "message"),
    [
        (SPEC, [], ValueError, "at least one table"),
        (SPEC, "frames", TypeError, "sequence of table names"),
        (SPEC, ["frames", "frames"], ValueError, "a table comes twice"),
        (SPEC, ["frames", "nowhere"], ValueError, "there is no table 'nowhere' at"),
        (NUMBER, ["plain"], ValueError, "table 'plain' has plain columns"),
        (NUMBER, ["cut"], ValueError, "table 'cut' has over_long='cut', which would cut the episodes of the group's"),
        ({"number": NUMBER}, ["windows", "frames"], ValueError, "data_spec does not fit table 'frames': missing"),
        ({"reward": NUMBER}, ["windows"], ValueError, "'number'"),
    ],
)
def test_groups_that_cannot_be_are_refused(three_tables, spec, tables, error, message):
    with pytest.raises(error, match=message):
        ReverbTableGroup(spec, tables, None, three_tables)


def test_a_reader_that_has_written_is_refused(three_tables):
    reader = ReverbReplayBuffer(SPEC, "frames", 1, local_server=three_tables)
    with reader:
        reader.add_batch(frames([1]))
        with pytest.raises(ValueError, match="has written by itself"):
            ReverbTableGroup(SPEC, ["frames"], None, three_tables, readers={"frames": reader})
        with pytest.raises(ValueError, match="readers: 'frames' is none of the group's tables windows"):
            ReverbTableGroup(SPEC, ["windows"], None, three_tables, readers={"frames": reader})
        reader.clear()


def test_a_closed_group_takes_nothing(three_tables):
    group = ReverbTableGroup(SPEC, ["frames"], None, three_tables)
    group.close()
    group.close()
    with pytest.raises(ValueError, match="closed"):
        group.add_batch(frames([1]))
