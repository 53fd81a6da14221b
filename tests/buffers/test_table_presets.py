"""Tables that the field uses: their settings, what a real server does with them, what they say of themselves."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import reverb
import tensorflow as tf

from replayfeed.buffers import (
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    ReplayServer,
    ReverbReplayBuffer,
    SampleToInsertRatio,
    Stack,
    TableConfig,
    Uniform,
    WaitTimeoutError,
    table_presets,
)

COUNTER = tf.TensorSpec([], tf.int64)

PRESETS = {
    "uniform_replay": (
        table_presets.uniform_replay("t", COUNTER, 100),
        TableConfig("t", COUNTER, 100, Uniform(), Fifo(), MinSize(1)),
    ),
    "prioritized_replay": (
        table_presets.prioritized_replay("t", COUNTER, 100, tracks_least=True),
        TableConfig("t", COUNTER, 100, Prioritized(0.6), Fifo(), MinSize(1), initial="max", tracks_least=True),
    ),
    "queue": (table_presets.queue("t", COUNTER, 8), TableConfig("t", COUNTER, 8, Fifo(), Fifo(), Queue(8), 1)),
    "stack": (table_presets.stack("t", COUNTER, 8), TableConfig("t", COUNTER, 8, Lifo(), Lifo(), Stack(8), 1)),
    "reservoir": (
        table_presets.reservoir("t", COUNTER, 100),
        TableConfig("t", COUNTER, 100, Uniform(), MinHeap(), MinSize(1), initial="random"),
    ),
    "keep_best": (
        table_presets.keep_best("t", COUNTER, 100),
        TableConfig("t", COUNTER, 100, Uniform(), MinHeap(), MinSize(1)),
    ),
    "keep_oldest": (
        table_presets.keep_oldest("t", COUNTER, 100),
        TableConfig("t", COUNTER, 100, Uniform(), Lifo(), MinSize(1)),
    ),
    "dqn_atari": (
        table_presets.dqn_atari("t", COUNTER),
        TableConfig("t", COUNTER, 1_000_000, Uniform(), Fifo(), MinSize(50_000)),
    ),
    "dqn_cartpole": (
        table_presets.dqn_cartpole("t", COUNTER),
        TableConfig("t", COUNTER, 50_000, Uniform(), Fifo(), MinSize(1_000)),
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_it_says(name):
    preset, config = PRESETS[name]
    assert preset == config


def test_batch_sizes_of_the_algorithms():
    assert (table_presets.DQN_ATARI_BATCH_SIZE, table_presets.DQN_CARTPOLE_BATCH_SIZE) == (32, 128)


def test_a_preset_is_changed_by_replace():
    config = dataclasses.replace(table_presets.uniform_replay("t", COUNTER, 100), scannable=True)
    assert config.scan_table == "t__scan" and config.max_size == 100


def test_queues_and_stacks_are_set_as_reverb_sets_its_own():
    for preset, own in (
        (table_presets.queue("t", COUNTER, 8), reverb.Table.queue("t", 8)),
        (table_presets.stack("t", COUNTER, 8), reverb.Table.stack("t", 8)),
    ):
        (built,) = preset.build()
        ours, theirs = built.info, own.info
        assert ours.sampler_options == theirs.sampler_options and ours.remover_options == theirs.remover_options
        assert ours.rate_limiter_info == theirs.rate_limiter_info
        assert (ours.max_size, ours.max_times_sampled) == (theirs.max_size, theirs.max_times_sampled)


# -- on a server -------------------------------------------------------------------------------


@pytest.fixture
def serve():
    """Serves a table, and gives a buffer for it whose reads give up after a second."""
    opened = []

    def open_buffer(config, timeout_s=30.0):
        server = ReplayServer([config])
        buffer = ReverbReplayBuffer(
            config.data_spec,
            config.name,
            1,
            local_server=server,
            timeout_s=timeout_s,
            rate_limiter_timeout_ms=1000,
        )
        opened.append((server, buffer))
        return buffer

    yield open_buffer
    for server, buffer in opened:
        buffer.close()
        server.stop()


def drawn(buffer, num):
    return sorted(buffer.sample(num)[0].numpy().tolist())


def test_fr_093_a_queue_gives_each_item_once_in_order_and_then_waits(serve):
    buffer = serve(table_presets.queue("t", COUNTER, 8))
    buffer.add_sequence([[0, 1, 2]])
    assert [int(buffer.sample(1)[0][0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(WaitTimeoutError, match="table 't'"):
        buffer.sample(1)
    assert len(buffer) == 0
    buffer.add_batch([3])
    assert int(buffer.sample(1)[0][0]) == 3


def test_a_stack_gives_each_item_once_the_newest_first(serve):
    buffer = serve(table_presets.stack("t", COUNTER, 8))
    buffer.add_sequence([[0, 1, 2]])
    assert [int(buffer.sample(1)[0][0]) for _ in range(3)] == [2, 1, 0]
    with pytest.raises(WaitTimeoutError, match="table 't'"):
        buffer.sample(1)


def test_a_full_queue_lets_nothing_in_until_an_item_is_drawn(serve):
    config = table_presets.queue("t", COUNTER, 2)
    buffer = serve(config, timeout_s=2.0)
    buffer.add_sequence([[0, 1]])
    buffer.flush()
    buffer.add_batch([2])
    with pytest.raises(WaitTimeoutError):
        buffer.flush()
    reader = ReverbReplayBuffer(COUNTER, "t", 1, buffer.server_address)
    assert [int(reader.sample(1)[0][0]) for _ in range(3)] == [0, 1, 2]
    reader.close()


def test_a_queue_read_as_a_dataset_gives_each_item_once_and_ends_in_an_error(serve):
    buffer = serve(table_presets.queue("t", COUNTER, 100))
    buffer.add_sequence([list(range(30))])
    got = []
    with pytest.raises(tf.errors.InvalidArgumentError, match="WaitTimeoutError.*table 't'"):
        for items, _ in buffer.as_dataset(5):
            got += items.numpy().tolist()
    assert got == list(range(30))


def test_items_that_may_be_drawn_twice_come_twice_and_then_are_gone(serve):
    config = TableConfig("t", COUNTER, 10, max_times_sampled=2)
    buffer = serve(config)
    buffer.add_sequence([[0, 1, 2]])
    assert drawn(buffer, 6) == [0, 0, 1, 1, 2, 2]
    with pytest.raises(WaitTimeoutError):
        buffer.sample(1)
    assert len(buffer) == 0


def test_several_workers_never_give_an_item_of_max_times_sampled_1_twice(serve):
    buffer = serve(TableConfig("t", COUNTER, 1000, max_times_sampled=1))
    buffer.add_sequence([list(range(500))])
    got = []
    with pytest.raises(tf.errors.InvalidArgumentError, match="WaitTimeoutError"):
        for items, _ in buffer.as_dataset(10):
            got += items.numpy().tolist()
    assert sorted(got) == list(range(500))


def test_two_readers_share_a_queue_without_giving_an_item_twice(serve):
    buffer = serve(table_presets.queue("t", COUNTER, 100))
    buffer.add_sequence([list(range(40))])
    buffer.flush()
    with ReverbReplayBuffer(COUNTER, "t", 1, buffer.server_address) as other:
        got = []
        for _ in range(10):
            got += drawn(buffer, 2) + drawn(other, 2)
    assert sorted(got) == list(range(40))


def test_keep_oldest_keeps_the_first_items(serve):
    buffer = serve(table_presets.keep_oldest("t", COUNTER, 3))
    buffer.add_sequence([list(range(10))])
    assert set(drawn(buffer, 60)) == {0, 1, 2}


def test_keep_best_keeps_the_highest_priorities(serve):
    buffer = serve(table_presets.keep_best("t", COUNTER, 3))
    for value, priority in enumerate([1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 0.0]):
        buffer.add_batch([value], priorities=[priority])
    assert set(drawn(buffer, 60)) == {1, 3, 5}


def test_a_reservoir_keeps_early_and_late_items_alike(serve):
    """The mean of what is kept of 0 .. 1,999 is 999.5; 200 kept ones have a standard error of 39."""
    buffer = serve(table_presets.reservoir("t", COUNTER, 200))
    buffer.add_sequence([list(range(2000))])
    assert len(buffer) == 200
    kept = np.unique(buffer.sample(5000)[0].numpy())
    assert len(kept) > 190
    assert abs(kept.mean() - 999.5) < 4.5 * 39


def test_prioritized_replay_never_draws_priority_0(serve):
    buffer = serve(table_presets.prioritized_replay("t", COUNTER, 10))
    buffer.add_batch([0], priorities=[0.0])
    buffer.add_batch([1], priorities=[2.0])
    assert set(drawn(buffer, 50)) == {1}


# -- in words ----------------------------------------------------------------------------------


def test_a_table_describes_itself():
    config = TableConfig(
        "replay",
        {"image": tf.TensorSpec([84, 84], tf.uint8), "reward": tf.TensorSpec([], tf.float32)},
        1_000_000,
        Prioritized(0.6),
        Fifo(),
        SampleToInsertRatio(4.0, 100, 50.0),
        sequence_length=4,
        burn_in=2,
        short="pad",
        initial="max",
        tracks_least=True,
        scannable=True,
    )
    assert config.describe().splitlines() == [
        "table 'replay', up to 1,000,000 items",
        "  item: 4 frames in a row of one episode, after 2 of burn-in; cut short by the episode's end: padded",
        "  drawn: by chance, in proportion to priority^0.6",
        "  full: the oldest item goes",
        "  waits: sampling until 100 items are there; then sampling and inserting wait for each other, 4 samples an "
        "insert: inserts * 4 - samples stays in [350, 450]",
        "  new priorities: the greatest in the table at the time, where none is given; 1 for the first",
        "  memory: 42,414 bytes an item, of which 7,069 are its own and the rest its neighbours'; about 7.1 GB in all, "
        "before Reverb's compression",
        "  beside it: 'replay__scan' for passes in order, 'replay__max' for the greatest priority, 'replay__min' for "
        "the least: the same items over the same data",
    ]


def line(config, name):
    """The line of `describe` that begins with a name, without it."""
    return next(
        each.strip().partition(": ")[2]
        for each in config.describe().splitlines()
        if each.strip().startswith(f"{name}:")
    )


@pytest.mark.parametrize(
    ("preset", "name", "words"),
    [
        ("queue", "drawn", "the oldest item; removed after its one draw"),
        ("queue", "full", "never: inserting waits before"),
        ("queue", "waits", "sampling for an item; inserting while 8 items wait to be drawn"),
        ("reservoir", "full", "a random item goes, so that each of the stream has stayed with the same chance"),
        ("reservoir", "new priorities", "chosen in U(0, 1); not to be updated"),
        ("keep_best", "full", "the item of the lowest priority goes"),
        ("keep_best", "new priorities", "1 where none is given"),
        ("keep_oldest", "full", "the newest item goes"),
        ("uniform_replay", "new priorities", "without effect"),
        ("dqn_atari", "waits", "sampling until 50,000 items are there; inserting never"),
    ],
)
def test_presets_in_words(preset, name, words):
    assert line(PRESETS[preset][0], name).startswith(words)


CAUTIONS = {
    "R5": (TableConfig("t", COUNTER, 10, MaxHeap()), "sampler MaxHeap gives the same item again and again"),
    "R10": (TableConfig("t", COUNTER, 10, remover=Lifo()), "remover Lifo drops what was just inserted"),
    "R10, a heap": (TableConfig("t", COUNTER, 10, remover=MinHeap()), "remover MinHeap drops the lowest priority"),
    "no reservoir": (TableConfig("t", COUNTER, 10, remover=Uniform()), "remover Uniform keeps no fair sample"),
    "what matters least": (TableConfig("t", COUNTER, 10, remover=Prioritized()), "items of high priority more often"),
    "initial 0": (TableConfig("t", COUNTER, 10, Prioritized(), initial=0), "new items have priority 0"),
    "R8": (table_presets.queue("t", COUNTER, 8), "after 8 deleted items nothing can be inserted"),
}


@pytest.mark.parametrize("case", CAUTIONS)
def test_what_is_often_not_meant_is_said(case):
    config, words = CAUTIONS[case]
    assert any(words in caution for caution in config.cautions)
    assert words in line(config, "beware")


@pytest.mark.parametrize("preset", ["uniform_replay", "prioritized_replay", "reservoir", "dqn_atari"])
def test_plain_replay_needs_no_caution(preset):
    assert PRESETS[preset][0].cautions == ()


def test_r5_a_server_warns_of_a_table_that_gives_one_item_for_ever(caplog):
    with ReplayServer([TableConfig("t", COUNTER, 10, Fifo())]):
        assert "table 't': sampler Fifo gives the same item again and again" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), ReplayServer([table_presets.queue("t", COUNTER, 8)]):
        # By the server's own logger: threads that tests before have left may say something, too.
        assert [record for record in caplog.records if record.name == "replayfeed.buffers.server"] == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"sequence_length": None, "max_episode_length": 100, "over_long": "cut"},
            "a whole episode of up to 100 frames; longer ones become several items",
        ),
        ({"sequence_length": 8, "stride": 4}, "8 frames in a row of one episode, one item every 4 frames; cut short"),
        ({"data_spec": {"a": COUNTER, "b": COUNTER}, "fields": ("b",)}, "1 frame of an episode; of the fields b"),
    ],
)
def test_items_in_words(settings, words):
    assert line(TableConfig(**{"name": "t", "data_spec": COUNTER, "max_size": 10, **settings}), "item").startswith(
        words
    )


def test_memory_of_whole_episodes_in_words():
    config = TableConfig("t", COUNTER, 10, sequence_length=None, max_episode_length=100)
    assert line(config, "memory") == (
        "17 bytes a frame, up to 1,700 bytes an item and 17,000 bytes in all, before Reverb's compression"
    )
