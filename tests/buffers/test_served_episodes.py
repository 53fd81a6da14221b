"""Whole episodes as items of a Reverb table: written when they end, drawn whole or as windows cut from them.

Frames are int64 counters; episode `n` of a test holds `10 * n + 1, 10 * n + 2, ...` unless it says otherwise.
"""

from __future__ import annotations

import collections
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    Fifo,
    Lifo,
    ReplayServer,
    ReverbReplayBuffer,
    TableConfig,
    WaitTimeoutError,
    Window,
)
from replayfeed.buffers.reverb_episodes import num_starts_in_graph
from replayfeed.buffers.reverb_episodic import ReverbEpisodicReplayBuffer
from replayfeed.buffers.windows import num_starts

from .steps import FIRST, LAST, MID, STEP, Step

COUNTER = tf.TensorSpec([], tf.int64)


@pytest.fixture
def make() -> Iterator[Any]:
    """Builds embedded buffers, and closes them."""
    built: list[ReverbEpisodicReplayBuffer] = []

    def build(spec: Any = COUNTER, **changes: Any) -> ReverbEpisodicReplayBuffer:
        arguments = {"max_size": 100, "max_episode_length": 50, "timeout_s": 30.0, **changes}
        built.append(ReverbEpisodicReplayBuffer.local(spec, **arguments))
        return built[-1]

    yield build
    for buffer in built:
        buffer.close()


def add_episodes(buffer: Any, lengths: Any, first: int = 0) -> None:
    for n, length in enumerate(lengths, first):
        values = 10 * n + 1 + np.arange(length)
        buffer.add_sequence(values[None], end_of_episode=(np.arange(length) == length - 1)[None])


def shown(items: Any, info: Any) -> list[tuple[int | None, ...]]:
    """Each row's values, None where there is padding; padding is zeros."""
    values, mask = np.asarray(items), np.asarray(info.mask)
    assert not values[~mask].any()
    np.testing.assert_array_equal(np.asarray(info.ids) == -1, ~mask)
    return [tuple(int(v) if m else None for v, m in zip(*row, strict=True)) for row in zip(values, mask, strict=True)]


def in_order(buffer: Any, **what: Any) -> list[list[int]]:
    return [items.numpy().tolist() for items, _ in buffer.as_dataset(single_deterministic_pass=True, **what)]


# Writing


def test_an_episode_is_an_item_when_it_ends(make):
    buffer = make()
    for t in range(5):
        buffer.add_batch(np.array([t]), end_of_episode=np.array([t == 2]))
        assert buffer.num_episodes == int(t >= 2)
    assert in_order(buffer) == [[0, 1, 2]]
    buffer.end_stream()
    assert in_order(buffer) == [[0, 1, 2], [3, 4]]
    assert (len(buffer), int(buffer.num_frames()), buffer.capacity, buffer.capacity_unit) == (5, 5, 100, "episodes")


def test_the_boundary_frame_is_in_the_item_and_first_begins_a_new_one(make):
    buffer = make(STEP, batch_size=2)
    types = np.array([[FIRST, MID, LAST, FIRST, MID], [FIRST, MID, FIRST, LAST, FIRST]], np.int32)
    buffer.add_sequence(Step(types, np.arange(5) + np.array([[0], [100]])))
    episodes = [items.value.numpy().tolist() for items, _ in buffer.as_dataset(single_deterministic_pass=True)]
    assert episodes == [[0, 1, 2], [100, 101], [102, 103]]


def test_several_streams_build_episodes_at_once(make):
    """FR-050: the episodes are those of three single-environment runs."""
    buffer, lengths = make(batch_size=3), [4, 7, 5]
    for t in range(14):
        buffer.add_batch(100 * np.arange(3) + t, end_of_episode=np.array([t % n == n - 1 for n in lengths]))
    expected = [
        list(range(100 * b + start, 100 * b + start + n))
        for b, n in enumerate(lengths)
        for start in range(0, 14 - n + 1, n)
    ]
    assert in_order(buffer) == expected


def test_close_ends_unfinished_episodes():
    table = TableConfig("e", COUNTER, 10, sequence_length=None, max_episode_length=9, scannable=True)
    with ReplayServer([table]) as server, ReverbEpisodicReplayBuffer(COUNTER, "e", local_server=server) as reader:
        with ReverbEpisodicReplayBuffer(COUNTER, "e", server_address=server.address, batch_size=2) as writer:
            writer.add_sequence(np.array([[1, 2], [3, 4]]))
        assert in_order(reader) == [[1, 2], [3, 4]]
        assert len(reader) == 4


def test_the_oldest_episodes_go_when_the_table_is_full(make):
    buffer = make(max_size=3)
    add_episodes(buffer, [5, 4, 3, 2, 1])
    assert in_order(buffer) == [[21, 22, 23], [31, 32], [41]]
    assert len(buffer) == 6
    stats = buffer.stats()
    assert (stats.frames, stats.episodes, stats.added, stats.evicted, stats.capacity_unit) == (6, 3, 15, 9, "episodes")


def test_a_clear_leaves_nothing(make):
    buffer = make()
    add_episodes(buffer, [2, 3])
    buffer.add_sequence(np.array([[7, 8]]))
    buffer.clear()
    assert (buffer.num_episodes, len(buffer), buffer.gather_all().shape) == (0, 0, (1, 0))
    add_episodes(buffer, [2])
    assert in_order(buffer) == [[1, 2]] and len(buffer) == 2


def test_frames_are_counted_where_others_wrote_too(make):
    buffer = make()
    add_episodes(buffer, [2, 3])
    buffer.flush()
    with ReverbEpisodicReplayBuffer(COUNTER, "episodes", server_address=buffer.server_address) as other:
        add_episodes(other, [4])
        assert len(other) == len(buffer) == 9
    assert buffer.stats().frames is None
    lone = make(scannable=False)
    add_episodes(lone, [2, 3])
    assert len(lone) == 5
    with ReverbEpisodicReplayBuffer(COUNTER, "episodes", server_address=lone.server_address) as other:
        with pytest.raises(ValueError, match="it has no scan table"):
            len(other)
        assert other.stats().episodes == 2


# Episodes that are too long


def test_a_frame_too_many_is_refused_and_nothing_is_written(make):
    buffer = make(max_episode_length=3, batch_size=2)
    buffer.add_sequence(np.array([[1, 2], [11, 12]]))
    with pytest.raises(ValueError, match=r"up to max_episode_length=3 frames, and the one of stream 0 goes on: end it"):
        buffer.add_sequence(np.array([[3, 4], [13, 14]]))
    buffer.add_sequence(np.array([[3, 4], [13, 14]]), end_of_episode=np.array([[True, False], [True, False]]))
    with pytest.raises(ValueError, match="the one of stream 1 goes on"):
        buffer.add_sequence(np.array([[5, 6, 7], [15, 16, 17]]), end_of_episode=np.array([[0, 1, 0], [0, 0, 1]], bool))
    for value in (5, 6):
        buffer.add_batch(np.array([value, 10 + value]))
    with pytest.raises(ValueError, match="the one of stream 0 goes on"):
        buffer.add_batch(np.array([7, 17]))
    buffer.end_stream()
    assert in_order(buffer) == [[1, 2, 3], [4, 5, 6], [11, 12, 13], [14, 15, 16]]


def test_long_episodes_are_left_out_and_counted(make, caplog):
    buffer = make(max_episode_length=3, over_long="drop")
    with caplog.at_level(logging.WARNING):
        add_episodes(buffer, [4, 3, 9, 2, 1])
    assert in_order(buffer) == [[11, 12, 13], [31, 32], [41]]
    assert buffer.num_over_long == 2
    assert caplog.text.count("an episode has more than max_episode_length=3 frames and is left out") == 1


def test_long_episodes_are_cut_and_counted(make):
    buffer = make(max_episode_length=3, over_long="cut")
    add_episodes(buffer, [3, 7, 1])
    assert in_order(buffer) == [[1, 2, 3], [11, 12, 13], [14, 15, 16], [17], [21]]
    assert buffer.num_over_long == 2
    ids = [info.ids.numpy().tolist() for _, info in buffer.as_dataset(single_deterministic_pass=True)]
    assert [part[0] - before[-1] for before, part in zip(ids[:-1], ids[1:], strict=True)] == [2, 2, 2, 2]


@pytest.fixture(scope="module")
def short_tables() -> Iterator[ReplayServer]:
    """A table of episodes of up to four frames for each way with longer ones."""
    tables = [
        TableConfig(way, STEP, 1000, sequence_length=None, max_episode_length=4, over_long=way, scannable=True)
        for way in ("drop", "cut")
    ]
    with ReplayServer(tables) as server:
        yield server


EVENTS = st.lists(st.sampled_from(["step", "step", "step", "step", "last", "first", "end_stream"]), max_size=30)


@settings(max_examples=25, deadline=None)
@given(over_long=st.sampled_from(["drop", "cut"]), streams=st.lists(EVENTS, min_size=1, max_size=3))
def test_the_items_of_a_table_are_the_episodes_of_a_naive_model(short_tables, over_long, streams):
    num_streams, length = len(streams), max(len(stream) for stream in streams)
    streams = [stream + ["step"] * (length - len(stream)) for stream in streams]
    with ReverbEpisodicReplayBuffer(STEP, over_long, local_server=short_tables, batch_size=num_streams) as buffer:
        buffer.clear()
        ended: list[list[list[int]]] = [[] for _ in streams]
        unfinished: list[list[int]] = [[] for _ in streams]
        final_alone = [[100 * b + t + 1] for b in range(num_streams) for t in range(length) if streams[b][t] == "last"]
        for t in range(length):
            types = []
            for b, stream in enumerate(streams):
                if stream[t] == "end_stream":
                    buffer.end_stream(b)
                if stream[t] in ("first", "end_stream"):
                    ended[b].append(unfinished[b])
                    unfinished[b] = []
                unfinished[b].append(100 * b + t + 1)
                if stream[t] == "last":
                    ended[b].append(unfinished[b])
                    unfinished[b] = []
                types.append({"first": FIRST, "last": LAST}.get(stream[t], MID))
            buffer.add_batch(Step(np.array(types, np.int32), 100 * np.arange(num_streams) + t + 1))
        expected = []
        for b in range(num_streams):
            for episode in ended[b]:
                pieces = [episode[k : k + 4] for k in range(0, len(episode), 4)]
                expected += pieces if over_long == "cut" else pieces[: len(pieces) == 1]
            # What is full is only known to be cut when a frame more has come.
            full = [unfinished[b][k : k + 4] for k in range(0, max(0, len(unfinished[b]) - 4), 4)]
            expected += full if over_long == "cut" else []
        # There is nothing to learn from a final observation alone.
        expected = [piece for piece in expected if piece not in final_alone]
        buffer.flush()
        assert buffer.num_episodes == len(expected)
        assert len(buffer) == sum(map(len, expected))
        if expected:
            rows = [items.value.numpy().tolist() for items, _ in buffer.as_dataset(single_deterministic_pass=True)]
            assert rows == expected


# Whole episodes


def test_fr_052_whole_episodes_are_padded_in_batches(make):
    buffer = make()
    add_episodes(buffer, [2, 3])
    rows = {(1, 2, None), (11, 12, 13)}
    items, info = buffer.sample(50)
    assert items.shape == (50, 3) and set(shown(items, info)) == rows
    np.testing.assert_allclose(info.probabilities, 0.5)
    assert info.weights.numpy().tolist() == [1.0] * 50 and info.keys.shape == (50,)
    batches = list(buffer.as_dataset(2).take(8))
    assert {row for batch in batches for row in shown(*batch)} <= rows | {(1, 2)}
    assert {sum(row) for batch in batches for row in batch[1].mask.numpy()} == {2, 3}
    assert {len(items) for items, _ in buffer.as_dataset().take(40)} == {2, 3}
    assert len(buffer.sample()[0]) in (2, 3)
    in_graph = tf.function(lambda: buffer.sample(40))()
    assert set(shown(*in_graph)) == rows
    passed = [shown(*batch) for batch in buffer.as_dataset(2, single_deterministic_pass=True)]
    assert passed == [[(1, 2, None), (11, 12, 13)]]


def test_fr_052_buckets_hold_padding_under_30_percent_and_lose_nothing(make):
    buffer = make(max_episode_length=300, max_in_flight_samples_per_worker=2)
    for n in range(40):
        length = 300 if n % 10 == 9 else 15
        ends = (np.arange(length) == length - 1)[None]
        buffer.add_sequence(np.full([1, length], n + 1), end_of_episode=ends)
    for buckets in ([100], 2, "auto"):
        for what in ({}, {"sequence_preprocess_fn": lambda x: x}):
            mask = [info.mask.numpy() for _, info in buffer.as_dataset(4, buckets=buckets, **what).take(40)]
            assert 1 - sum(m.sum() for m in mask) / sum(m.size for m in mask) < 0.3
            assert {m.shape for m in mask} <= {(4, 15), (4, 300)}
            batches = buffer.as_dataset(7, buckets=buckets, epochs=1, **what)
            seen = sorted(int(row[0]) for items, _ in batches for row in items)
            assert seen == list(range(1, 41))


def test_shuffled_passes_give_each_episode_once(make):
    buffer = make()
    add_episodes(buffer, [1, 2, 3, 1, 2])
    firsts = [int(items[0]) for items, info in buffer.as_dataset(epochs=3)]
    assert [sorted(firsts[k : k + 5]) for k in (0, 5, 10)] == [[1, 11, 21, 31, 41]] * 3
    chances = {float(info.probabilities) for _, info in buffer.as_dataset(epochs=1)}
    assert chances == {float(np.float32(0.2))}


def test_a_function_gets_single_episodes(make):
    buffer = make()
    add_episodes(buffer, [2, 3])
    preprocess = {"sequence_preprocess_fn": lambda x: x - tf.reduce_min(x) + 1}
    rows = {(1, 2, None), (1, 2, 3)}
    assert {row for batch in buffer.as_dataset(20, **preprocess).take(1) for row in shown(*batch)} == rows
    assert [shown(*b) for b in buffer.as_dataset(2, single_deterministic_pass=True, **preprocess)] == [
        [(1, 2, None), (1, 2, 3)]
    ]
    windows = [items.numpy().tolist() for items, _ in buffer.as_dataset(3, 2, **preprocess).take(5)]
    assert windows == [[[1, 2]] * 3] * 5


def test_priorities_belong_to_episodes(make):
    buffer = make()
    add_episodes(buffer, [2, 3])
    keys = {int(info.ids[0]): int(info.keys) for _, info in buffer.as_dataset().take(40)}
    buffer.update_priorities(np.array(list(keys.values())), np.full(2, 3.0))
    assert {s.info.priority for s in buffer.py_client.sample("episodes", 20, emit_timesteps=False)} == {3.0}


def test_gather_all_is_one_row_of_all_frames(make):
    buffer = make()
    assert buffer.gather_all().shape == (1, 0)
    add_episodes(buffer, [2, 1, 3])
    assert buffer.gather_all().numpy().tolist() == [[1, 2, 11, 21, 22, 23]]


SPEC = {
    "bool": tf.TensorSpec([3], tf.bool),
    "bf": tf.TensorSpec([2], tf.bfloat16),
    "image": tf.TensorSpec([40, 40], tf.uint8),
}


def test_padding_is_zeros_of_every_dtype(make):
    buffer = make(SPEC)
    for length in (1, 3):
        ones = {name: tf.cast(tf.ones([1, length, *leaf.shape]), leaf.dtype) for name, leaf in SPEC.items()}
        buffer.add_sequence(ones, end_of_episode=(np.arange(length) == length - 1)[None])
    for items, info in (buffer.sample(30), next(iter(buffer.as_dataset(30)))):
        mask = info.mask.numpy()
        assert set(map(tuple, mask.tolist())) == {(True, False, False), (True, True, True)}
        for name, leaf in SPEC.items():
            assert items[name].dtype == leaf.dtype
            numbers = tf.cast(items[name], tf.float32).numpy().reshape(30, 3, -1)
            np.testing.assert_array_equal(numbers, np.broadcast_to(mask[..., None], numbers.shape))


# Windows


@settings(max_examples=200, deadline=None)
@given(
    num_steps=st.integers(1, 6),
    stride=st.integers(1, 7),
    short=st.sampled_from(["drop", "pad"]),
    lengths=st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=5),
)
def test_the_number_of_windows_in_the_graph_is_that_of_the_rules(num_steps, stride, short, lengths):
    window = Window(num_steps, stride=stride, short=short)
    frames, final = (np.array(column) for column in zip(*lengths, strict=True))
    expected = num_starts(window, frames, final=final, finished=np.array(True))
    given = num_starts_in_graph(window, tf.constant(frames, tf.int64), tf.constant(final, tf.int64))
    assert given.numpy().tolist() == expected.tolist()


WINDOWS = {
    "plain": (Window(2), [[1, 2], [2, 3], [11, 12], [12, 13], [13, 14]]),
    "stride": (Window(2, stride=2), [[1, 2], [11, 12], [13, 14]]),
    "burn-in and padding": (
        Window(3, 1, 2, "pad"),
        [[None, 1, 2, 3], [None, 11, 12, 13], [12, 13, 14, None]],
    ),
    "of one frame": (Window(1), [[1], [2], [3], [11], [12], [13], [14]]),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_are_cut_from_drawn_episodes(make, case):
    window, rows = WINDOWS[case]
    buffer = make()
    add_episodes(buffer, [3, 4])
    expected = [tuple(row) for row in rows]
    per_episode = collections.Counter((row[-1] or row[-2]) > 10 for row in expected)
    for items, info in (buffer.sample(400, window=window), next(iter(buffer.as_dataset(400, window=window)))):
        assert items.shape == (400, window.length)
        drawn = shown(items, info)
        assert set(drawn) == set(expected)
        for row, chance in zip(drawn, info.probabilities.numpy(), strict=True):
            known = window.short == "pad" or window.num_steps == 1
            expected_chance = 0.5 / per_episode[(row[-1] or row[-2]) > 10] if known else np.nan
            assert chance == pytest.approx(expected_chance, nan_ok=True)
    passed = [
        row for batch in buffer.as_dataset(2, window=window, single_deterministic_pass=True) for row in shown(*batch)
    ]
    assert passed == expected
    shuffled = [row for batch in buffer.as_dataset(2, window=window, epochs=1) for row in shown(*batch)]
    assert sorted(map(str, shuffled)) == sorted(map(str, expected))


def test_an_ordered_pass_steps_by_num_steps(make):
    buffer = make()
    add_episodes(buffer, [3, 4])
    assert in_order(buffer, num_steps=2) == [[1, 2], [3], [11, 12], [13, 14]]


def test_a_final_observation_starts_no_window_however_it_was_told(make):
    by_spec = make(STEP)
    by_spec.add_sequence(Step(np.array([[FIRST, MID, LAST]], np.int32), np.array([[1, 2, 3]])))
    by_argument = make({"value": COUNTER}, final_frame="observation")
    by_argument.add_sequence({"value": np.array([[1, 2, 3]])}, end_of_episode=np.array([[False, False, True]]))
    for buffer, value in ((by_spec, lambda items: items.value), (by_argument, lambda items: items["value"])):
        assert set(np.ravel(value(buffer.sample(100, 1)[0]))) == {1, 2}
        steps = buffer.as_dataset(num_steps=1, single_deterministic_pass=True)
        assert [value(items).numpy().tolist() for items, _ in steps] == [[1], [2]]
        windows = buffer.as_dataset(window=Window(2, short="pad"), single_deterministic_pass=True)
        assert [value(items).numpy().tolist() for items, _ in windows] == [[1, 2], [2, 3]]


def test_draws_follow_the_stated_law(make):
    """An episode with the same chance each, then a start: 8,000 draws, each count within 4.5 standard deviations."""
    buffer = make()
    add_episodes(buffer, [3, 2, 6])
    items, _ = buffer.sample(8000, 2)
    counts = collections.Counter(items.numpy()[:, 0].tolist())
    expected = {start: 1 / 3 / num for first, num in ((1, 2), (11, 1), (21, 5)) for start in range(first, first + num)}
    assert set(counts) == set(expected)
    for start, chance in expected.items():
        assert abs(counts[start] - 8000 * chance) < 4.5 * (8000 * chance * (1 - chance)) ** 0.5


def test_episodes_that_are_too_short_are_skipped_and_counted(make):
    buffer = make()
    add_episodes(buffer, [2, 2, 2, 5])
    assert set(buffer.sample(50, 5)[0].numpy()[:, 0]) == {31}
    assert buffer.num_skipped_episodes > 50
    before = buffer.num_skipped_episodes
    items, _ = next(iter(buffer.as_dataset(50, 5)))
    assert set(items.numpy()[:, 0]) == {31}
    assert buffer.num_skipped_episodes > before + 50


@pytest.mark.parametrize("read", ["sample", "dataset"])
def test_fr_007_only_short_episodes_end_in_an_error_with_the_numbers(make, caplog, read):
    buffer = make(timeout_s=1.5, log_interval_s=0.3)
    add_episodes(buffer, [2] * 5)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"no window of 5 frames: \d+ episodes drawn in a row, longest 2; gave up after 1.5 s",
        ),
    ):
        buffer.sample(2, 5) if read == "sample" else next(iter(buffer.as_dataset(2, 5)))
    assert "no window of 5 frames" in caplog.text


def test_the_timeout_says_that_no_episode_has_ended(make):
    buffer = make(timeout_s=3.0)
    buffer.add_sequence(np.arange(7)[None])
    with pytest.raises(WaitTimeoutError, match="wrote 1 episodes, longest 7 so far; an episode is an item when it has"):
        buffer.sample(2)


def test_rows_drawn_before_a_timeout_are_kept_for_the_next_call(make):
    buffer = make(max_times_sampled=1, scannable=False, timeout_s=3.0)
    add_episodes(buffer, [2, 1])
    with pytest.raises(WaitTimeoutError, match="2 of 3 rows are kept for the next call"):
        buffer.sample(3)
    add_episodes(buffer, [3], first=2)
    assert sorted(shown(*buffer.sample(3)), key=str) == [(1, 2, None), (11, None, None), (21, 22, 23)]


# Readers and other settings


READER = """
import sys, tensorflow as tf
from replayfeed.buffers.reverb_episodic import ReverbEpisodicReplayBuffer
with ReverbEpisodicReplayBuffer(tf.TensorSpec([], tf.int64), "episodes", sys.argv[1], timeout_s=20.0) as buffer:
    print([x.numpy().tolist() for x, _ in buffer.as_dataset(single_deterministic_pass=True)], len(buffer))
    print(sorted({tuple(row) for row in buffer.sample(100)[0].numpy().tolist()}), buffer.max_episode_length)
    print(sorted({tuple(row) for row in buffer.sample(200, 2)[0].numpy().tolist()}))
"""


def test_a_second_process_that_wrote_nothing_reads_episodes(make):
    buffer = make()
    add_episodes(buffer, [2, 3])
    buffer.flush()
    run = subprocess.run(
        [sys.executable, "-c", READER, buffer.server_address], capture_output=True, text=True, timeout=400, check=True
    )
    assert run.stdout.splitlines() == [
        "[[1, 2], [11, 12, 13]] 5",
        "[(1, 2, 0), (11, 12, 13)] 50",
        "[(1, 2), (11, 12), (12, 13)]",
    ]


def test_a_queue_gives_episodes_in_order(make):
    buffer = make(sampler=Fifo(), max_times_sampled=1, scannable=False, max_samples=4)
    add_episodes(buffer, [2, 1, 3, 2])
    assert [items.numpy().tolist() for items, _ in buffer.as_dataset()] == [[1, 2], [11], [21, 22, 23], [31, 32]]


def test_a_table_that_keeps_its_oldest_counts_by_a_scan_or_not_at_all(make):
    buffer = make(remover=Lifo(), scannable=False, max_size=2)
    add_episodes(buffer, [2, 1, 3])
    with pytest.raises(ValueError, match="it has no scan table"):
        len(buffer)


def test_each_kind_of_table_names_the_class_that_reads_it():
    tables = [
        TableConfig("episodes", COUNTER, 10, sequence_length=None, max_episode_length=9),
        TableConfig("windows", COUNTER, 10, sequence_length=2),
    ]
    with ReplayServer(tables) as server:
        with pytest.raises(ValueError, match="holds whole episodes: read it with ReverbEpisodicReplayBuffer"):
            ReverbReplayBuffer(COUNTER, "episodes", None, server.address)
        with pytest.raises(
            ValueError, match=r"holds Window\(num_steps=2\), not whole episodes: read it with ReverbRepl"
        ):
            ReverbEpisodicReplayBuffer(COUNTER, "windows", server.address)
        with pytest.raises(ValueError, match="was made for whole episodes, got sequence_length=2"):
            ReverbReplayBuffer(COUNTER, "episodes", 2, server.address)


REFUSED = {
    "buckets without a batch": (lambda b: b.as_dataset(buckets=[4]), ValueError, "buckets are for batches of whole"),
    "buckets of windows": (lambda b: b.as_dataset(2, 2, buckets=[4]), ValueError, "buckets are for batches of whole"),
    "both": (lambda b: b.sample(2, 2, window=Window(2)), ValueError, "give num_steps or window, not both"),
    "ignored ends": (
        lambda b: b.sample(2, window=Window(2, boundaries="ignore")),
        ValueError,
        "boundaries='ignore' cannot be drawn",
    ),
    "two passes": (
        lambda b: b.as_dataset(epochs=1, single_deterministic_pass=True),
        ValueError,
        "give epochs .shuffled. or single_deterministic_pass",
    ),
    "batch": (lambda b: b.sample(0), ValueError, "sample_batch_size must be at least 1"),
    "get": (lambda b: b.get([1]), TypeError, "a Reverb table cannot be read by frame id"),
}


@pytest.fixture(scope="module")
def idle() -> Iterator[ReverbEpisodicReplayBuffer]:
    with ReverbEpisodicReplayBuffer.local(COUNTER, max_size=5, max_episode_length=5) as buffer:
        yield buffer


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(idle, case):
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        call(idle)


def test_a_table_without_scan_table_says_what_is_missing(make):
    buffer = make(scannable=False)
    for read in (lambda: buffer.as_dataset(epochs=1), buffer.gather_all):
        with pytest.raises(ValueError, match="it has no scan table"):
            read()


def test_a_closed_buffer_says_so(make):
    buffer = make()
    buffer.close()
    for call in (lambda: buffer.add_batch(np.array([1])), lambda: buffer.sample(2), buffer.as_dataset):
        with pytest.raises(ValueError, match="this buffer is closed"):
            call()
