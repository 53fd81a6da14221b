"""Tables that begin with offline data: all of it is there, and a ratio counts from there on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    Fifo,
    MinHeap,
    MinSize,
    Queue,
    ReverbReplayBuffer,
    ReverbTableGroup,
    SampleToInsertRatio,
    TableConfig,
    WaitTimeoutError,
    Window,
    preloaded_server,
)
from replayfeed.buffers.reverb_preload import with_preload

NUMBER = tf.TensorSpec([], tf.int64)
RATIO = SampleToInsertRatio(2.0, 1, 4.0)
# 6 and 4 frames: 10 items of one, 6 of three.
EPISODES = [np.arange(6), np.arange(10, 14)]


class Step(NamedTuple):
    step_type: Any
    number: Any


def test_a_ratio_counts_from_the_preloaded_items_on():
    """Of ratio 2 and buffer 4: 4 samples and no more, or 2 inserts and no more, as in a new table."""
    table = TableConfig("replay", NUMBER, 100, rate_limiter=RATIO, scannable=True)
    with preloaded_server(NUMBER, [table], EPISODES) as server:
        with ReverbReplayBuffer(NUMBER, "replay", 1, local_server=server, timeout_s=3.0) as buffer:
            assert buffer.gather_all().numpy().tolist() == [[0, 1, 2, 3, 4, 5, 10, 11, 12, 13]]
            assert buffer.ready(4)
            assert buffer.why_not_ready(5) == (
                "table 'replay': 4 of 5 draws are possible: ratio used up, needs 1 more insert "
                "(10 inserts * 2 - 4 samples = 16, kept in [16, 24])"
            )
            buffer.add_sequence([[20, 21]])
            buffer.flush()
            buffer.add_batch([22])
            with pytest.raises(WaitTimeoutError, match=r"ratio reached, needs 2 more samples \(12 inserts \* 2 - 0"):
                buffer.flush()
            buffer.sample(2)
            buffer.flush()
            assert len(buffer) == 13


def test_each_table_counts_the_items_of_its_own_windows():
    tables = [
        TableConfig("frames", NUMBER, 100, rate_limiter=RATIO),
        TableConfig("windows", NUMBER, 100, rate_limiter=RATIO, sequence_length=3, scannable=True),
        TableConfig("online", NUMBER, 100, rate_limiter=RATIO),
        TableConfig("least", NUMBER, 100, rate_limiter=MinSize(20)),
        TableConfig("reservoir", NUMBER, 5, remover=MinHeap(), initial="random"),
    ]
    into = ["frames", "windows", "least", "reservoir"]
    with preloaded_server(NUMBER, tables, EPISODES, into=into) as server:
        with ReverbTableGroup(NUMBER, [table.name for table in tables], None, server) as group:
            sizes = {name: group[name].get_table_info().current_size for name in group}
            assert sizes == {"frames": 10, "windows": 6, "online": 0, "least": 10, "reservoir": 5}
            assert {name: group[name].ready(4) for name in group} == {
                "frames": True, "windows": True, "online": False, "least": False, "reservoir": True
            }  # fmt: skip
            assert not group["windows"].ready(5)
            rows = group["windows"].as_dataset(window=Window(3), single_deterministic_pass=True)
            assert [items.numpy().tolist() for items, _ in rows] == [
                [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [10, 11, 12], [11, 12, 13]
            ]  # fmt: skip


def test_final_observations_start_no_item():
    """Of each episode the last step is only a final observation."""
    spec = Step(tf.TensorSpec([], tf.int32), NUMBER)
    episodes = [Step(np.array([0, 1, 2], np.int32), np.arange(3)), Step(np.array([0, 2], np.int32), np.arange(2))]
    table = TableConfig("replay", spec, 100, rate_limiter=RATIO)
    with preloaded_server(spec, [table], episodes) as server:
        with ReverbReplayBuffer(spec, "replay", 1, local_server=server) as buffer:
            assert buffer.get_table_info().current_size == 3
            assert buffer.ready(4)
            assert not buffer.ready(5)


def test_after_a_clear_as_many_have_to_come_again():
    table = TableConfig("replay", NUMBER, 100, rate_limiter=RATIO)
    with preloaded_server(NUMBER, [table], EPISODES) as server:
        with ReverbReplayBuffer(NUMBER, "replay", 1, local_server=server) as buffer:
            buffer.clear()
            buffer.add_sequence(np.arange(9)[None])
            assert buffer.why_not_ready().startswith("table 'replay': 9 of 10 items")
            buffer.add_batch([9])
            assert buffer.ready(4)


def test_a_pair_of_bounds_moves_with_what_is_preloaded():
    table = TableConfig("replay", NUMBER, 100, rate_limiter=SampleToInsertRatio(2.0, 3, (1.0, 9.0)))
    assert with_preload(table, 10).rate_limiter == SampleToInsertRatio(2.0, 10, (15.0, 23.0))
    assert with_preload(table, 2).rate_limiter == table.rate_limiter
    assert with_preload(table, 0) is table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TableConfig("t", NUMBER, 9, rate_limiter=RATIO), "holds max_size=9 items, and 10 are to be preloaded"),
        (TableConfig("t", NUMBER, 99, rate_limiter=RATIO, max_times_sampled=3), "has max_times_sampled=3"),
        (TableConfig("t", NUMBER, 99, Fifo(), Fifo(), Queue(99), 1), r"cannot be preloaded: Queue\(size=99\)"),
    ],
)
def test_tables_whose_ratio_would_stop_are_refused(table, message):
    with pytest.raises(ValueError, match=f"table 't' {message}"):
        preloaded_server(NUMBER, [table], EPISODES)


def test_episodes_that_come_only_once_are_refused():
    table = TableConfig("replay", NUMBER, 99)
    with pytest.raises(TypeError, match="give a list"):
        preloaded_server(NUMBER, [table], iter(EPISODES))
    with pytest.raises(ValueError, match="into names 'other'; the tables are replay"):
        preloaded_server(NUMBER, [table], EPISODES, into=["other"])
    with pytest.raises(ValueError, match="int64"):
        preloaded_server(NUMBER, [table], [np.array([0.5])])
