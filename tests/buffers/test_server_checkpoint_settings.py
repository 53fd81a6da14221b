"""Checkpoints whose settings are not those that a server is asked for: told, kept or overridden."""

from __future__ import annotations

import math
import pathlib

import hypothesis
import hypothesis.strategies as st
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
    ReverbTableGroup,
    SampleToInsertRatio,
    TableConfig,
    Uniform,
)
from replayfeed.buffers.rate_limiters import LimiterBounds
from replayfeed.buffers.server_checkpoint_rewrite import fitting_counts, removed_first

COUNTER = tf.TensorSpec([], tf.int64)


def table(name: str = "replay", **settings) -> TableConfig:
    return TableConfig(name, COUNTER, **{"max_size": 8, **settings})


@pytest.fixture
def stored(tmp_path):
    """A function that makes a checkpoint of a table with the frames 0, 1, ... of given priorities."""

    def make(config: TableConfig, priorities: list[float], num_samples: int = 0) -> pathlib.Path:
        with ReplayServer([config], checkpoint_dir=tmp_path) as server:
            with ReverbReplayBuffer(COUNTER, config.name, None, local_server=server) as buffer:
                buffer.add_sequence([list(range(len(priorities)))], priorities=[priorities])
                buffer.flush()
                if num_samples:
                    buffer.sample(num_samples)
                server.checkpoint()
        return tmp_path

    return make


def served(folder: pathlib.Path, *tables: TableConfig, on_mismatch: str = "error") -> ReplayServer:
    return ReplayServer(tables, checkpoint_dir=folder, on_mismatch=on_mismatch)


def frames(server: ReplayServer, name: str = "replay") -> dict[int, float]:
    """Raw priorities by frame, as Reverb's samples tell them."""
    client = reverb.Client(server.address)
    size = client.server_info()[name].current_size
    found: dict[int, float] = {}
    while len(found) < size:
        for sample in client.sample(name, num_samples=20, emit_timesteps=False):
            found[int(np.asarray(sample.data[0])[0, 8])] = float(sample.info.priority)
    return found


# -- told --------------------------------------------------------------------------------------


def test_every_difference_is_told_with_both_values_and_the_ways_out(stored):
    folder = stored(table(), [1.0, 1.0])
    asked = table(
        max_size=9,
        max_times_sampled=2,
        sampler=Prioritized(0.5),
        remover=Lifo(),
        rate_limiter=SampleToInsertRatio(2.0, 3, 8.0),
        initial=0.5,
    )
    with pytest.raises(ValueError) as raised:
        served(folder, asked)
    lines = str(raised.value).splitlines()
    assert lines[1:7] == [
        "  table 'replay': max_size: stored 8, asked for 9",
        "  table 'replay': max_times_sampled: stored 0, asked for 2",
        "  table 'replay': sampler: stored Uniform(), asked for Prioritized(priority_exponent=0.5)",
        "  table 'replay': remover: stored Fifo(), asked for Lifo()",
        "  table 'replay': rate_limiter: stored MinSize(min_size_to_sample=1), asked for SampleToInsertRatio("
        "samples_per_insert=2.0, min_size_to_sample=3, error_buffer=8.0)",
        "  table 'replay': initial: stored 1.0, asked for 0.5",
    ]
    for way in (
        "ask for the stored settings",
        "on_mismatch='keep'",
        "on_mismatch='override'",
        "another checkpoint_dir",
    ):
        assert way in lines[7]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (table(sequence_length=2), "table 'replay': sequence_length: stored 1, asked for 2"),
        (table(stride=3), "table 'replay': stride: stored 1, asked for 3"),
        (table(short="pad"), "table 'replay': short: stored 'drop', asked for 'pad'"),
        (table(layout="plain"), "table 'replay': signature: stored 1 columns"),
        (
            TableConfig("replay", {"a": COUNTER, "b": tf.TensorSpec([3], tf.float32)}, 8),
            r"table 'replay': data_spec: stored .*int64\[\], asked for a int64\[\], b float32\[3\]",
        ),
        (table(remover=MinHeap(), initial="random"), "table 'replay': initial: stored 1.0, asked for 'random'"),
        (table(sampler=Prioritized(), initial="max"), "table 'replay': initial: stored 1.0, asked for 'max'"),
        (table(sampler=Prioritized(), tracks_least=True), "table 'replay': tracks_least: stored False, asked for True"),
    ],
)
def test_what_the_data_are_cannot_be_overridden(stored, asked, told):
    folder = stored(table(), [1.0])
    with pytest.raises(ValueError, match=told) as raised:
        served(folder, asked)
    assert "on_mismatch='override'" not in str(raised.value), "it would not do"
    with pytest.raises(ValueError, match=told + r".* \(the stored data are as they are: cannot be overridden\)"):
        served(folder, asked, on_mismatch="override")


def test_what_a_table_without_items_is_can_be_overridden(stored):
    folder = stored(table(), [])
    with served(folder, table(sequence_length=2, scannable=True), on_mismatch="override") as server:
        with ReverbReplayBuffer(COUNTER, "replay", 2, local_server=server) as buffer:
            buffer.add_sequence([[1, 2, 3]])
            assert buffer.gather_all().numpy().tolist() == [[1, 2, 3]]


def test_tables_that_are_missing_on_either_side_are_named(stored, caplog):
    folder = stored(table("a"), [1.0, 1.0])
    with pytest.raises(ValueError) as raised:
        served(folder, table("b"))
    assert str(raised.value).splitlines()[1:3] == [
        "  table 'b': table: stored (no such table), asked for one",
        "  table 'a': table: stored 2 items, asked for (no such table)",
    ]
    with served(folder, table("b"), on_mismatch="keep") as server:
        assert server.table_names == ("b", "a")
        assert [one.name for one in server.tables] == ["b", "a"]
        assert frames(server, "a") == {0: 1.0, 1: 1.0}
    with served(folder, table("b"), on_mismatch="override") as server:
        assert server.table_names == ("b",)
    assert "table 'a': 0 of 2 items go into it, 2 are left out; it is not asked for" in caplog.text


def test_a_checkpoint_of_plain_reverb_is_compared_by_what_reverb_stores(tmp_path):
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
    plain = reverb.Server(
        table(rate_limiter=SampleToInsertRatio(2.0, 1, (0.0, 9.0))).build(), checkpointer=checkpointer
    )
    with ReverbReplayBuffer(COUNTER, "replay", 1, f"localhost:{plain.port}") as buffer:
        buffer.add_sequence([[5, 6]])
        buffer.flush()
        report = buffer.checkpoint()
        with pytest.raises(ValueError, match="was not started with ReplayServer.*cannot be told a step"):
            buffer.checkpoint(3)
    plain.stop()
    assert pathlib.Path(report.path).parent == tmp_path and report.items == {}
    with pytest.raises(ValueError) as raised:
        served(tmp_path, table(max_size=5))
    assert str(raised.value).splitlines()[1:3] == [
        "  table 'replay': max_size: stored 8, asked for 5",
        "  table 'replay': rate_limiter: stored samples_per_insert=2, min_size_to_sample=1, kept in [0, 9], asked for "
        "MinSize(min_size_to_sample=1)",
    ]
    with served(tmp_path, table(max_size=5), on_mismatch="keep") as server:
        assert server.tables == (table(rate_limiter=SampleToInsertRatio(2.0, 1, (0.0, 9.0))),)
        assert server.started_from is not None and server.started_from.step is None


def test_a_limiter_that_no_config_can_tell_is_kept_for_a_ready_table(tmp_path):
    def ready() -> reverb.Table:
        limiter = reverb.rate_limiters.RateLimiter(1.0, 1, 0.5, 1.5)
        return table().build()[0].replace(rate_limiter=limiter)

    plain = reverb.Server([ready()], checkpointer=reverb.checkpointers.DefaultCheckpointer(str(tmp_path)))
    plain.localhost_client().checkpoint()
    plain.stop()
    with pytest.raises(ValueError, match="nothing that a TableConfig can tell .* give a ready reverb.Table"):
        served(tmp_path, table(rate_limiter=MinSize(2)), on_mismatch="keep")
    ReplayServer([ready()], checkpoint_dir=tmp_path).stop()


# -- kept --------------------------------------------------------------------------------------


def test_data_that_no_manifest_tells_of_are_not_kept(stored):
    """The server could not tell what it serves."""
    folder = stored(table(), [1.0])
    (next(folder.glob("20*")) / "manifest.json").unlink()
    with pytest.raises(
        ValueError, match="has no manifest that tells its tables, and what their data are is not what is"
    ):
        served(folder, table(sequence_length=2), on_mismatch="keep")
    with served(folder, table(max_size=3), on_mismatch="keep") as server:
        assert server.tables == (table(),)


def test_kept_settings_are_those_that_hold_and_that_the_server_tells(stored, caplog):
    kept = table(max_size=3, sampler=Prioritized(0.9), scannable=True)
    folder = stored(kept, [1.0, 2.0, 3.0, 4.0])
    with served(folder, table(max_size=50), on_mismatch="keep") as server:
        assert server.tables == (kept,)
        assert server.table_names == ("replay", "replay__scan")
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            assert buffer.capacity == 3
            assert buffer.gather_all().numpy().tolist() == [[1, 2, 3]]
            server.checkpoint()
    assert (
        "on_mismatch='keep': the stored settings hold: table 'replay': max_size: stored 3, asked for 50" in caplog.text
    )
    with served(folder, kept) as server:
        assert server.tables == (kept,)


def test_a_scan_table_that_was_not_stored_is_not_served_when_the_stored_settings_are_kept(stored):
    folder = stored(table(), [1.0])
    with served(folder, table(scannable=True), on_mismatch="keep") as server:
        assert server.table_names == ("replay",)
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            with pytest.raises(ValueError, match="it has no scan table"):
                buffer.gather_all()


# -- overridden --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remover", "left"),
    [
        (Fifo(), {2: 1.0, 3: 5.0, 4: 3.0}),
        (Lifo(), {0: 2.0, 1: 4.0, 2: 1.0}),
        (MinHeap(), {1: 4.0, 3: 5.0, 4: 3.0}),
        (MaxHeap(), {0: 2.0, 2: 1.0, 4: 3.0}),
    ],
)
def test_a_smaller_table_keeps_what_its_remover_leaves(stored, caplog, remover, left):
    folder = stored(table(), [2.0, 4.0, 1.0, 5.0, 3.0])
    with served(folder, table(max_size=3, remover=remover), on_mismatch="override") as server:
        assert frames(server) == left
        info = reverb.Client(server.address).server_info()["replay"]
        assert (info.max_size, info.rate_limiter_info.insert_stats.completed) == (3, 5)
        assert server.checkpoint().items["replay"] == 3
    assert "table 'replay': 3 of 5 items go into it, 2 are left out" in caplog.text


@pytest.mark.parametrize("remover", [Uniform(), Prioritized(2.0)])
def test_a_smaller_table_whose_remover_goes_by_chance_keeps_as_many(stored, remover):
    folder = stored(table(), [2.0, 0.0, 1.0, 5.0, 3.0])
    with served(folder, table(max_size=3, remover=remover), on_mismatch="override") as server:
        assert len(frames(server)) == 3


def test_a_full_reservoir_becomes_smaller_but_not_larger(tmp_path):
    """In a larger one what comes next would all find room, and stay with a greater chance than the stored items."""

    def reservoir(size: int) -> TableConfig:
        return table(max_size=size, remover=MinHeap(), initial="random")

    with (
        served(tmp_path, reservoir(4)) as server,
        ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer,
    ):
        buffer.add_sequence([list(range(6))])
        buffer.flush()
        server.checkpoint()
        stored = frames(server)
    with pytest.raises(ValueError, match="max_size: stored 4, asked for 5 .the stored data are as they are"):
        served(tmp_path, reservoir(5), on_mismatch="override")
    with served(tmp_path, reservoir(2), on_mismatch="override") as server:
        assert frames(server) == dict(sorted(stored.items(), key=lambda item: item[1])[2:])


def test_tables_that_tell_priorities_go_when_they_are_not_asked_for_any_more(stored):
    folder = stored(table(sampler=Prioritized(), initial="max", tracks_least=True), [1.0, 4.0])
    with served(folder, table(sampler=Prioritized(), initial=2.0), on_mismatch="override") as server:
        assert server.table_names == ("replay",)
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_batch([7])
            buffer.flush()
        assert frames(server) == {0: 1.0, 1: 4.0, 7: 2.0}


def test_items_that_were_drawn_as_often_as_they_may_be_are_left_out(stored):
    folder = stored(table(sampler=Fifo()), [1.0, 1.0, 1.0], num_samples=4)
    with served(folder, table(sampler=Fifo(), max_times_sampled=4), on_mismatch="override") as server:
        assert frames_of_queue(server) == [1, 1, 1, 1, 2, 2, 2, 2]


def frames_of_queue(server: ReplayServer) -> list[int]:
    with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
        return [int(buffer.sample()[0]) for _ in range(8)]


def test_a_scan_table_that_is_asked_for_anew_gets_the_stored_items(stored, caplog):
    folder = stored(table(), [1.0, 1.0, 1.0])
    asked = table(scannable=True, max_size=2)
    with served(folder, asked, on_mismatch="override") as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            assert buffer.gather_all().numpy().tolist() == [[1, 2]]
            buffer.add_batch([9])
            passed = [int(frame) for frame, _ in buffer.as_dataset(single_deterministic_pass=True)]
            assert sorted(passed) == [2, 9]
            server.checkpoint()
    assert "table 'replay__scan': 2 of 2 items go into it; from table 'replay'" in caplog.text
    with served(folder, asked) as server, ReverbTableGroup(COUNTER, ["replay"], None, server) as group:
        assert len(group["replay"]) == 2


def test_a_new_limiter_begins_with_counts_that_let_both_sides_go_on(stored, caplog):
    folder = stored(table(), [1.0] * 6, num_samples=100)
    ratio = SampleToInsertRatio(2.0, 2, 4.0)
    with served(folder, table(rate_limiter=ratio), on_mismatch="override") as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            assert buffer.ready(4) and not buffer.ready(5)
            buffer.add_sequence([[7, 8]])
            buffer.flush()
    told = "its limiter begins anew, as with 6 inserts and 8 samples in place of 6 and 100"
    assert told in caplog.text


def test_a_table_becomes_a_queue_of_its_items(stored):
    folder = stored(table(sampler=Fifo()), [1.0, 1.0, 1.0])
    asked = table(sampler=Fifo(), max_times_sampled=1, rate_limiter=Queue(8))
    with served(folder, asked, on_mismatch="override") as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            assert buffer.ready(3) and not buffer.ready(4)
            assert [int(buffer.sample()[0]) for _ in range(3)] == [0, 1, 2]


# -- the rules alone ---------------------------------------------------------------------------


@hypothesis.given(
    remover=st.sampled_from([Fifo(), Lifo(), MinHeap(), MaxHeap(), Uniform(), Prioritized(0.7)]),
    priorities=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=9),
    share=st.floats(0, 1),
)
def test_a_remover_takes_out_what_it_would_one_after_the_other(remover, priorities, share):
    num = int(share * len(priorities))
    gone = removed_first(remover, np.array(priorities), num, np.random.default_rng(0)).tolist()
    assert len(set(gone)) == num and set(gone) <= set(range(len(priorities)))
    left = list(range(len(priorities)))
    for _ in range(num):
        if isinstance(remover, Fifo | Lifo):
            left.pop(0 if isinstance(remover, Fifo) else -1)
        elif isinstance(remover, MinHeap | MaxHeap):
            least = min if isinstance(remover, MinHeap) else max
            left.remove(least(left, key=lambda place: priorities[place]))
        else:
            return
    assert sorted(set(range(len(priorities))) - set(gone)) == left


def test_a_prioritized_remover_takes_out_in_proportion():
    rng = np.random.default_rng(1)
    first = [int(removed_first(Prioritized(1.0), np.array([1.0, 3.0, 0.0]), 1, rng)[0]) for _ in range(4000)]
    assert np.bincount(first, minlength=3)[2] == 0
    assert np.mean(np.array(first) == 1) == pytest.approx(0.75, abs=0.03)


@hypothesis.given(
    ratio=st.floats(0.1, 20),
    min_size=st.integers(1, 50),
    width=st.floats(1.01, 5),
    inserts=st.integers(0, 10_000),
    samples=st.integers(0, 100_000),
)
def test_counts_that_fit_stay_and_others_lie_in_the_limiters_range(ratio, min_size, width, inserts, samples):
    bounds = SampleToInsertRatio(ratio, min_size, width * max(1.0, ratio)).bounds
    fitted = fitting_counts(bounds, inserts, samples)
    error = fitted[0] * ratio - fitted[1]
    assert fitted[1] >= 0
    assert bounds.min_error - 1e-6 <= error <= bounds.max_error + 1e-6
    if bounds.min_error <= inserts * ratio - samples <= bounds.max_error:
        assert fitted == (inserts, samples)


def test_counts_of_a_table_without_ratio_stay():
    assert fitting_counts(MinSize(5).bounds, 3, 1000) == (3, 1000)
    assert fitting_counts(LimiterBounds(1.0, 1, -math.inf, math.inf), 3, 1000) == (3, 1000)
