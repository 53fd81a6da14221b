"""Windows of every kind as items of a Reverb table: what is written, what can be drawn, what is refused.

Frames are int64 counters, `100 * b + t` for stream `b` at time `t`, unless a test says otherwise.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import reverb
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    Fifo,
    ReplayServer,
    ReverbReplayBuffer,
    TableConfig,
    WaitTimeoutError,
    Window,
)

from .steps import EVERY_DTYPE, FIRST, LAST, MID, STEP, Step

COUNTER = tf.TensorSpec([], tf.int64)


KINDS = [
    Window(num_steps, burn_in, stride, short)
    for num_steps, burn_in, stride, short in itertools.product((1, 2, 4), (0, 3), (1, 2, 5), ("drop", "pad"))
]


@pytest.fixture(scope="module")
def server() -> Iterator[ReplayServer]:
    """One table for each kind of window."""
    tables = [
        TableConfig(
            f"kind{n}",
            STEP,
            10_000,
            sequence_length=kind.num_steps,
            stride=kind.stride,
            burn_in=kind.burn_in,
            short=kind.short,
            scannable=True,
        )
        for n, kind in enumerate(KINDS)
    ]
    with ReplayServer(tables) as running:
        yield running


@pytest.fixture
def make() -> Iterator[Any]:
    """Builds embedded buffers, and closes them."""
    built: list[ReverbReplayBuffer] = []

    def build(spec: Any = COUNTER, **changes: Any) -> ReverbReplayBuffer:
        built.append(ReverbReplayBuffer.local(spec, **{"max_size": 100, "timeout_s": 30.0, **changes}))
        return built[-1]

    yield build
    for buffer in built:
        buffer.close()


def shown(items: Any, info: Any) -> list[list[int | None]]:
    """Each row's values, None where there is padding; padding is zeros."""
    values, mask = np.asarray(items), np.asarray(info.mask)
    assert not values[~mask].any()
    np.testing.assert_array_equal(np.asarray(info.ids) == -1, ~mask)
    return [[int(v) if m else None for v, m in zip(*row, strict=True)] for row in zip(values, mask, strict=True)]


def shown_one(items: Any, info: Any) -> list[int | None]:
    """As `shown`, of a sample without a `B` axis."""
    return shown(items[None], info._replace(ids=info.ids[None], mask=info.mask[None]))[0]


def held(buffer: ReverbReplayBuffer, window: Window) -> list[list[int | None]]:
    """What a pass gives, in order."""
    return [
        row for items, info in buffer.as_dataset(7, window=window, single_deterministic_pass=True)
        for row in shown(items, info)
    ]  # fmt: skip


def drawn(buffer: ReverbReplayBuffer, num: int = 300, **what: Any) -> set[tuple[int | None, ...]]:
    """What draws give."""
    return {tuple(row) for row in shown(*buffer.sample(num, **what))}


def add_episode(buffer: ReverbReplayBuffer, values: Any) -> None:
    values = np.asarray(values)
    buffer.add_sequence(values[None], end_of_episode=(np.arange(len(values)) == len(values) - 1)[None])


# Against a naive model


class Episode(NamedTuple):
    """One episode of the model: its values, and how it ends."""

    values: list[int]
    final: bool
    ended: bool


def naive_items(window: Window, episode: Episode) -> list[list[int | None]]:
    """Windows by the words of `Window`, one start after the other."""
    rows, n = [], len(episode.values)
    for start in range(0, n - episode.final, window.stride):
        if start + window.num_steps > n and (window.short == "drop" or not episode.ended):
            break
        around = range(start - window.burn_in, start + window.num_steps)
        rows.append([episode.values[k] if 0 <= k < n else None for k in around])
        if window.stride > 1 and start + window.num_steps >= n:
            break
    return rows


STEPS = st.lists(st.sampled_from(["step", "step", "step", "last", "first", "end_stream"]), max_size=30)


@settings(max_examples=40, deadline=None)
@given(kind=st.integers(0, len(KINDS) - 1), streams=st.lists(STEPS, min_size=1, max_size=3))
def test_the_items_of_a_table_are_those_of_a_naive_model(server, kind, streams):
    window, num_streams = KINDS[kind], len(streams)
    length = max(len(stream) for stream in streams)
    streams = [stream + ["step"] * (length - len(stream)) for stream in streams]
    with ReverbReplayBuffer(
        STEP, f"kind{kind}", None, local_server=server, batch_size=num_streams, timeout_s=10.0
    ) as buffer:
        buffer.clear()
        open_values: list[list[int]] = [[] for _ in streams]
        episodes: list[list[Episode]] = [[] for _ in streams]

        def end(b: int, final: bool) -> None:
            if open_values[b]:
                episodes[b].append(Episode(open_values[b], final, True))
            open_values[b] = []

        for t in range(length):
            types = []
            for b, stream in enumerate(streams):
                if stream[t] == "first":
                    end(b, False)
                if stream[t] == "end_stream":
                    buffer.end_stream(b)
                    end(b, False)
                open_values[b].append(100 * b + t + 1)
                if stream[t] == "last":
                    end(b, True)
                types.append({"first": FIRST, "last": LAST}.get(stream[t], MID))
            buffer.add_batch(Step(np.array(types, np.int32), 100 * np.arange(num_streams) + t + 1))
        for b, values in enumerate(open_values):
            episodes[b].append(Episode(values, False, False))
        expected = [row for of_stream in episodes for episode in of_stream for row in naive_items(window, episode)]
        if expected:
            rows = [
                row
                for items, info in buffer.as_dataset(5, window=window, single_deterministic_pass=True)
                for row in shown(items.value, info)
            ]
            assert rows == expected
            frames = {v for row in expected for v in row if v is not None}
            singles = [int(step.value) for step, _ in buffer.as_dataset(single_deterministic_pass=True)]
            finals = {e.values[-1] for of_stream in episodes for e in of_stream if e.final}
            assert set(singles) == frames - finals and len(singles) == len(set(singles))
        assert buffer.get_table_info().current_size == len(expected)
        dropped = sum(
            len(range(0, len(e.values) - e.final, window.stride)) - len(naive_items(window, e))
            for of_stream in episodes
            for e in of_stream
            if e.ended
        )
        count = buffer.stats().windows_of(window)
        assert (count.eligible, count.dropped_short) == (len(expected), 0 if window.short == "pad" else dropped)


# The field cases


def test_fr_002_burn_in_never_comes_from_an_earlier_episode_of_either_writer():
    spec = {"episode": COUNTER, "step": COUNTER}
    table = TableConfig("replay", spec, 1000, sequence_length=20, burn_in=20, scannable=True)
    with ReplayServer([table]) as server:
        writers = [ReverbReplayBuffer(spec, "replay", 20, local_server=server, burn_in=20) for _ in range(2)]
        for number, length in enumerate([30, 25, 30, 25]):
            step = np.arange(length)
            writers[number % 2].add_sequence(
                {"episode": np.full([1, length], number + 1), "step": step[None]},
                end_of_episode=(step == length - 1)[None],
            )
        for writer in writers:
            writer.flush()
        items, info = writers[0].sample(1000, window=Window(20, burn_in=20))
        for writer in writers:
            writer.close()
    episode, step, mask = items["episode"].numpy(), items["step"].numpy(), info.mask.numpy()
    assert episode.shape == (1000, 40) and set(episode[:, 20]) == {1, 2, 3, 4}
    start = step[:, 20:21]
    np.testing.assert_array_equal(mask, start - 20 + np.arange(40) >= 0)
    np.testing.assert_array_equal(episode, np.where(mask, episode[:, 20:21], 0))
    np.testing.assert_array_equal(step, np.where(mask, start - 20 + np.arange(40), 0))
    assert start.max() == 10 and start.min() == 0


def test_fr_003_no_window_runs_into_the_next_trajectory(make):
    buffer = make(sequence_length=3)
    for first, length in [(0, 2), (2, 1), (3, 3), (6, 3), (9, 1)]:
        add_episode(buffer, first + np.arange(length))
    assert drawn(buffer, 1000, num_steps=3) == {(3, 4, 5), (6, 7, 8)}
    assert buffer.stats().windows_of(Window(3)).dropped_short == 8


def test_fr_007_episodes_that_are_too_short_are_padded_when_asked(make):
    buffer = make(sequence_length=5, short="pad")
    for n in range(5):
        add_episode(buffer, [10 * n, 10 * n + 1])
    whole = {(10 * n, 10 * n + 1, None, None, None) for n in range(5)}
    assert drawn(buffer, num_steps=5) == whole | {(10 * n + 1, None, None, None, None) for n in range(5)}


def test_fr_019_the_final_observation_ends_windows_and_starts_none(make):
    buffer = make(STEP, sequence_length=2, short="pad")
    buffer.add_sequence(Step(np.array([[FIRST, MID, MID, LAST]], np.int32), np.arange(4)[None]))
    rows = [items.value.numpy().tolist() for items, _ in buffer.as_dataset(window=Window(2, short="pad"), epochs=1)]
    assert sorted(rows) == [[0, 1], [1, 2], [2, 3]]


def test_fr_023_an_episodes_tail_is_padded(make):
    buffer = make(sequence_length=4, stride=2, short="pad")
    add_episode(buffer, range(7))
    assert held(buffer, Window(4, stride=2, short="pad")) == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, None]]


@pytest.mark.parametrize("window", [Window(3), Window(4, 2, 2, "pad"), Window(2, 1)], ids=str)
def test_fr_050_items_equal_those_of_single_environment_runs(make, window):
    def build(batch_size: int) -> ReverbReplayBuffer:
        return make(
            batch_size=batch_size,
            sequence_length=window.num_steps,
            burn_in=window.burn_in,
            stride=window.stride,
            short=window.short,
        )

    lengths, together, alone = [4, 7, 5], build(3), []
    for t in range(28):
        together.add_batch(100 * np.arange(3) + t, end_of_episode=np.array([t % n == n - 1 for n in lengths]))
    for b, n in enumerate(lengths):
        single = build(1)
        for t in range(28):
            single.add_batch(np.array([100 * b + t]), end_of_episode=np.array([t % n == n - 1]))
        alone += held(single, window)
    assert held(together, window) == alone


def test_t20_no_frame_of_an_episode_is_lost_at_its_end(make):
    buffer = make(sequence_length=4, stride=3, short="pad")
    for n, length in enumerate(range(1, 9)):
        add_episode(buffer, 10 * n + np.arange(length))
    rows = held(buffer, Window(4, stride=3, short="pad"))
    everything = {10 * n + k for n, length in enumerate(range(1, 9)) for k in range(length)}
    assert {v for row in rows for v in row if v is not None} == everything


# When an episode has ended


@pytest.mark.parametrize("how", ["end_of_episode", "end_stream", "the next is FIRST", "close"])
def test_an_unfinished_episodes_tail_waits_until_the_episode_ends(how):
    table = TableConfig("replay", STEP, 100, sequence_length=3, short="pad", scannable=True)
    with ReplayServer([table]) as server, ReverbReplayBuffer(STEP, "replay", None, local_server=server) as reader:

        def rows() -> list[list[int | None]]:
            return [
                row
                for items, info in reader.as_dataset(4, window=Window(3, short="pad"), single_deterministic_pass=True)
                for row in shown(items.value, info)
            ]

        writer = ReverbReplayBuffer(STEP, "replay", None, local_server=server)
        writer.add_sequence(Step(np.array([[FIRST, MID, MID, MID]], np.int32), np.arange(1, 5)[None]))
        writer.flush()
        assert rows() == [[1, 2, 3], [2, 3, 4]]
        tail = [[3, 4, None], [4, None, None]]
        if how == "end_of_episode":
            writer.add_batch(Step(np.array([MID], np.int32), np.array([5])), end_of_episode=np.array([True]))
            tail = [[3, 4, 5], [4, 5, None], [5, None, None]]
        elif how == "end_stream":
            writer.end_stream()
        elif how == "the next is FIRST":
            writer.add_batch(Step(np.array([FIRST], np.int32), np.array([9])))
        else:
            writer.close()
        writer.close() if how == "close" else writer.flush()
        assert rows() == [[1, 2, 3], [2, 3, 4], *tail]
        writer.close()


def test_a_clear_leaves_nothing_of_an_unfinished_episode(make):
    buffer = make(sequence_length=3, short="pad")
    buffer.add_sequence(np.arange(5)[None])
    buffer.clear()
    add_episode(buffer, [7, 8])
    assert held(buffer, Window(3, short="pad")) == [[7, 8, None], [8, None, None]]
    assert buffer.get_table_info().current_size == 2


def test_the_timeout_says_that_nothing_has_ended(make):
    buffer = make(sequence_length=5, short="pad", timeout_s=3.0)
    buffer.add_sequence(np.arange(3)[None])
    with pytest.raises(WaitTimeoutError, match="wrote 1 episodes, longest 3 so far; shorter ones are padded when they"):
        buffer.sample(2, 5)


# What can be drawn of it


@pytest.fixture(scope="module")
def padded() -> Iterator[ReverbReplayBuffer]:
    """Items `Window(3, burn_in=2, short='pad')` of an episode of five frames."""
    with ReverbReplayBuffer.local(COUNTER, max_size=100, sequence_length=3, burn_in=2, short="pad") as buffer:
        add_episode(buffer, [1, 2, 3, 4, 5])
        yield buffer


PARTS = {
    "all": (
        {"window": Window(3, 2, short="pad")},
        [(None, None, 1, 2, 3), (None, 1, 2, 3, 4), (1, 2, 3, 4, 5), (2, 3, 4, 5, None), (3, 4, 5, None, None)],
    ),
    "less context": (
        {"window": Window(3, 1, short="pad")},
        [(None, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, None), (4, 5, None, None)],
    ),
    "shorter": ({"window": Window(1, 1, short="pad")}, [(None, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
    "num_steps is without context": ({"num_steps": 2}, [(1, 2), (2, 3), (3, 4), (4, 5), (5, None)]),
    "num_steps": ({"num_steps": 3}, [(1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, None), (5, None, None)]),
}


@pytest.mark.parametrize("part", PARTS)
def test_draws_datasets_and_passes_show_the_frames_asked_for(padded, part):
    what, rows = PARTS[part]
    assert drawn(padded, **what) == set(rows)
    items, info = next(iter(padded.as_dataset(200, **what)))
    assert {tuple(row) for row in shown(items, info)} == set(rows)
    np.testing.assert_allclose(info.probabilities, 1 / 5, rtol=1e-6)
    assert info.weights.numpy().tolist() == [1.0] * 200
    assert tuple(shown_one(*padded.sample(**what))) in rows
    in_graph = tf.function(lambda: padded.sample(50, **what))()
    assert {tuple(row) for row in shown(*in_graph)} <= set(rows)
    if "window" in what:
        assert [tuple(row) for row in held(padded, what["window"])] == rows
    shuffled = [tuple(shown_one(*sample)) for sample in padded.as_dataset(epochs=2, **what)]
    assert sorted(map(str, shuffled)) == sorted(map(str, 2 * rows))


def test_single_frames_are_the_drawn_ones(padded):
    items, info = padded.sample(200)
    assert set(items.numpy().tolist()) == {1, 2, 3, 4, 5} and info.mask.numpy().all() and (info.ids.numpy() >= 0).all()
    assert padded.gather_all().numpy().tolist() == [[1, 2, 3, 4, 5]]
    assert [int(x) for x, _ in padded.as_dataset(single_deterministic_pass=True)] == [1, 2, 3, 4, 5]
    steps = [x.numpy().tolist() for x, _ in padded.as_dataset(num_steps=2, single_deterministic_pass=True)]
    assert steps == [[1, 2], [3, 4], [5]]
    assert len(padded) == 5


def test_a_function_gets_the_whole_item_and_its_result_is_cut(padded):
    dataset = padded.as_dataset(100, sequence_preprocess_fn=lambda x: x * 10, window=Window(2, 1, short="pad"))
    items, info = next(iter(dataset))
    rows = {tuple(row) for row in shown(items, info)}
    assert rows == {(None, 10, 20), (10, 20, 30), (20, 30, 40), (30, 40, 50), (40, 50, None)}


def test_padding_is_zeros_of_every_dtype(make):
    buffer = make(EVERY_DTYPE, sequence_length=3, burn_in=1, short="pad")
    ones = {name: tf.cast(tf.ones([1, 2, *leaf.shape]), leaf.dtype) for name, leaf in EVERY_DTYPE.items()}
    buffer.add_sequence(ones, end_of_episode=np.array([[False, True]]))
    items, info = buffer.sample(20, window=Window(3, 1, short="pad"))
    mask = info.mask.numpy()
    assert set(map(tuple, mask.tolist())) == {(False, True, True, False), (True, True, False, False)}
    for name, leaf in EVERY_DTYPE.items():
        assert items[name].dtype == leaf.dtype
        given = tf.cast(items[name], tf.float32).numpy().reshape(20, 4, -1)
        np.testing.assert_array_equal(given, np.broadcast_to(mask[..., None], given.shape))


def test_priorities_are_those_of_the_drawn_frames(make):
    buffer = make(sequence_length=3, burn_in=2, short="pad")
    buffer.add_sequence(
        np.arange(1, 5)[None],
        priorities=np.array([[1.0, 2.0, 3.0, 4.0]]),
        end_of_episode=np.array([[0, 0, 0, 1]], bool),
    )
    buffer.flush()
    samples = buffer.py_client.sample("replay", 60, emit_timesteps=False)
    assert {(int(sample.data[0][2, 8]), sample.info.priority) for sample in samples} == {
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 4.0),
    }


def test_a_full_padded_table_keeps_its_newest_items_in_every_reading(make):
    buffer = make(max_size=4, sequence_length=3, burn_in=1, short="pad")
    for n in range(5):
        add_episode(buffer, 10 * n + np.arange(1, 4))
    rows = [[32, 33, None, None], [None, 41, 42, 43], [41, 42, 43, None], [42, 43, None, None]]
    assert held(buffer, Window(3, 1, short="pad")) == rows
    assert drawn(buffer, window=Window(3, 1, short="pad")) == set(map(tuple, rows))
    assert buffer.gather_all().numpy().tolist() == [[32, 33, 41, 42, 43]]


def test_a_queue_of_padded_windows_comes_in_order(make):
    buffer = make(sequence_length=2, short="pad", sampler=Fifo(), max_times_sampled=1, scannable=False)
    add_episode(buffer, [1, 2, 3])
    dataset = buffer.as_dataset(num_steps=2, single_deterministic_pass=True)
    rows = [shown_one(*sample) for sample in dataset]
    assert rows == [[1, 2], [2, 3], [3, None]]


READER = """
import sys, tensorflow as tf, replayfeed.buffers as rf
with rf.ReverbReplayBuffer(tf.TensorSpec([], tf.int64), "replay", None, sys.argv[1], timeout_s=20.0) as buffer:
    window = rf.Window(3, 1, 2, "pad")
    print([x.numpy().tolist() for x, _ in buffer.as_dataset(window=window, single_deterministic_pass=True)])
    masks = [info.mask for _, info in buffer.as_dataset(window=window, single_deterministic_pass=True)]
    print([mask.numpy().astype(int).tolist() for mask in masks])
    print(sorted({tuple(row) for row in buffer.sample(300, window=window)[0].numpy().tolist()}))
"""


def test_a_second_process_that_wrote_nothing_reads_padded_windows(make):
    buffer = make(sequence_length=3, burn_in=1, stride=2, short="pad")
    add_episode(buffer, [1, 2, 3, 4])
    buffer.flush()
    run = subprocess.run(
        [sys.executable, "-c", READER, buffer.server_address], capture_output=True, text=True, timeout=400, check=True
    )
    assert run.stdout.splitlines() == [
        "[[0, 1, 2, 3], [2, 3, 4, 0]]",
        "[[0, 1, 1, 1], [1, 1, 1, 0]]",
        "[(0, 1, 2, 3), (2, 3, 4, 0)]",
    ]


def test_many_padded_items_over_a_long_time_refer_to_the_same_padding(make):
    buffer = make(max_size=50, sequence_length=4, burn_in=3, short="pad", max_chunk_length=2)
    for n in range(600):
        add_episode(buffer, [n + 1])
    rows = held(buffer, Window(4, 3, short="pad"))
    assert rows == [[None, None, None, n + 1, None, None, None] for n in range(550, 600)]


def test_padding_is_sent_again_to_a_server_that_started_anew():
    table = TableConfig("replay", COUNTER, 100, sequence_length=3, burn_in=2, short="pad", scannable=True)
    server = ReplayServer([table])
    writer = ReverbReplayBuffer(COUNTER, "replay", None, server.address, timeout_s=30.0)
    add_episode(writer, [1, 2, 3])
    writer.flush()
    writer.add_sequence(np.array([[11]]))
    server.stop()
    with ReplayServer([table], server.port):
        writer.add_batch(np.array([12]), end_of_episode=np.array([True]))
        assert held(writer, Window(3, 2, short="pad")) == [[None, None, 11, 12, None], [None, 11, 12, None, None]]
        writer.close()


# What is refused


GIVES = "table 'replay' was written as Window(num_steps=4, burn_in=2, stride=2, short='pad'): it gives num_steps=4"
WRONG_WINDOWS = [
    Window(5, stride=2, short="pad"),
    Window(3, stride=2, short="pad"),  # its last one would start where none was written
    Window(4, 3, stride=2, short="pad"),
    Window(4, stride=1, short="pad"),
    Window(4, stride=2),
    Window(4, stride=2, short="pad", pad_unfinished=True),
]


def test_windows_that_were_not_written_are_refused_with_those_that_were(make):
    buffer = make(sequence_length=4, burn_in=2, stride=2, short="pad")
    for window in WRONG_WINDOWS:
        for read in (buffer.sample, buffer.as_dataset):
            with pytest.raises(ValueError) as error:
                read(3, window=window)
            assert f"{window!r} cannot be drawn: {GIVES}, burn_in up to 2, stride=2, short='pad'" in str(error.value)
            assert str(error.value).endswith(", and never pad_unfinished.") == window.pad_unfinished
    with pytest.raises(ValueError, match="boundaries='ignore' cannot be drawn"):
        buffer.sample(3, window=Window(2, stride=2, boundaries="ignore"))


def test_plain_tables_have_no_place_for_padding():
    for change in ({"burn_in": 1}, {"short": "pad"}):
        with pytest.raises(ValueError, match="burn_in, short='pad' and sequence_length=None need layout='packed'"):
            TableConfig("replay", COUNTER, 10, sequence_length=2, layout="plain", **change)
    table = reverb.Table(
        "t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1), signature=None
    )
    server = reverb.Server([table])
    for change in ({"burn_in": 1}, {"short": "pad"}):
        with pytest.raises(ValueError, match="has plain columns, which have no place for what is padding"):
            ReverbReplayBuffer({"x": COUNTER}, "t", 2, local_server=server, **change)
    for length, window in [(2, Window(2, short="pad")), (None, Window(2, burn_in=1))]:
        with ReverbReplayBuffer({"x": COUNTER}, "t", length, local_server=server) as buffer:
            with pytest.raises(ValueError, match="cannot be drawn"):
                buffer.sample(2, window=window)
    server.stop()


def test_what_is_said_of_a_table_has_to_be_what_it_says_itself():
    table = TableConfig("a", COUNTER, 10, sequence_length=2, burn_in=1, short="pad")
    with ReplayServer([table]) as server:
        for change, message in [
            ({"burn_in": 0}, "was made for burn_in=1, got burn_in=0"),
            ({"short": "drop"}, "was made for short='pad', got short='drop'"),
        ]:
            with pytest.raises(ValueError, match=message):
                ReverbReplayBuffer(COUNTER, "a", None, server.address, **change)
        with ReverbReplayBuffer(COUNTER, "a", 2, server.address, stride=1, burn_in=1, short="pad") as buffer:
            assert [count.window for count in buffer.stats().windows] == [Window(2, 1, 1, "pad")]


WRONG = {
    "burn_in": ({"burn_in": -1}, ValueError, "Window.burn_in must be at least 0, got -1"),
    "short": ({"short": "cut"}, ValueError, "Window.short must be 'drop' or 'pad', got 'cut'"),
    "no length": ({"sequence_length": None}, ValueError, "give max_episode_length"),
    "length of episodes": ({"max_episode_length": 5}, ValueError, "give sequence_length=None with them"),
    "episodes have no burn_in": (
        {"sequence_length": None, "max_episode_length": 5, "burn_in": 1},
        ValueError,
        "burn_in=1 is of windows",
    ),
    "episodes have no stride": (
        {"sequence_length": None, "max_episode_length": 5, "stride": 2},
        ValueError,
        "stride=2 is of windows",
    ),
    "over_long": (
        {"sequence_length": None, "max_episode_length": 5, "over_long": "skip"},
        ValueError,
        "over_long must be 'error', 'drop' or 'cut', got 'skip'",
    ),
    "no int": (
        {"sequence_length": None, "max_episode_length": 5.0},
        TypeError,
        "max_episode_length must be an int, got 5.0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_table_config_refuses_items_that_cannot_be(case):
    change, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        TableConfig("replay", COUNTER, 10, **change)
