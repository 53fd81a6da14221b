"""Adds that bring frames of some streams only, on a server: windows and episodes are those of each stream alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    Fifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    Queue,
    ReverbReplayBuffer,
    ReverbTableGroup,
    TableConfig,
    Window,
)

NUMBER = tf.TensorSpec([], tf.int64)
# An image has a column of its own.
IMAGE = {"image": tf.TensorSpec([1100], tf.uint8), "number": NUMBER}


def windows(buffer: Any, num_steps: int, burn_in: int = 0, short: str = "drop") -> list[list[int]]:
    """Every item, in an ordered pass."""
    window = Window(num_steps, burn_in, short=short)
    rows = buffer.as_dataset(window=window, single_deterministic_pass=True)
    return [(items["number"] if isinstance(items, dict) else items).numpy().tolist() for items, _ in rows]


@pytest.mark.parametrize("chunk", [1, 4, 16, None])
def test_a_stream_that_pauses_for_a_thousand_adds_goes_on_in_the_middle_of_its_episode(chunk):
    """Stream 1 adds 0, 1, 2, pauses, and adds 3, 4: its windows of 4 go over the pause, as does its context of 1."""
    with ReverbReplayBuffer.local(
        IMAGE, batch_size=2, max_size=5000, sequence_length=4, burn_in=1, max_chunk_length=chunk
    ) as buffer:

        def add(numbers: list[int], **settings: Any) -> Any:
            image = np.repeat(np.array(numbers, np.uint8)[:, None], 1100, axis=1)
            return buffer.add_batch({"image": image, "number": np.array(numbers)}, **settings)

        first = [int(add([100 + n, n])[1]) for n in range(3)]
        for n in range(1000):
            add([n % 50], streams=[0])
        after = [int(add([n], streams=[1])[0]) for n in (3, 4)]
        assert [*first, *after] == list(range(first[0], first[0] + 5))
        rows = buffer.as_dataset(window=Window(4, 1), single_deterministic_pass=True)
        of_stream = [(items, info) for items, info in rows if int(info.ids[-1]) >= first[0]]
        assert [items["number"].numpy().tolist() for items, _ in of_stream] == [[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]
        assert [items["image"].numpy()[:, 1099].tolist() for items, _ in of_stream] == [
            [0, 0, 1, 2, 3],
            [0, 1, 2, 3, 4],
        ]
        assert of_stream[0][1].mask.numpy().tolist() == [False, True, True, True, True]
        assert len(buffer) == 1000 + 2


def test_absent_streams_keep_their_ids_and_open_episodes():
    with ReverbReplayBuffer.local(NUMBER, batch_size=3, max_size=100, sequence_length=2) as buffer:
        buffer.let_streams_part()
        a = buffer.add_batch(np.array([0, 10, 20]))
        b = buffer.add_batch(np.array([1, 21]), streams=[0, 2])
        assert b.tolist() == [a[0] + 1, a[2] + 1]
        c = buffer.add_batch(np.array([2, 22]), streams=np.array([0, 2]), end_of_episode=np.array([True, False]))
        assert c.tolist() == [a[0] + 2, a[2] + 2]
        d = buffer.add_batch(np.array([3, 11, 23]))
        assert d.tolist() == [a[0] + 4, a[1] + 1, a[2] + 3]
        assert windows(buffer, 2) == [[0, 1], [1, 2], [10, 11], [20, 21], [21, 22], [22, 23]]


def test_a_sequence_of_some_streams():
    with ReverbReplayBuffer.local(NUMBER, batch_size=3, max_size=100, sequence_length=3) as buffer:
        first = buffer.add_sequence(np.array([[0, 1], [10, 11], [20, 21]]))
        ids = buffer.add_sequence(
            np.array([[12, 13], [22, 23]]),
            streams=[1, 2],
            end_of_episode=np.array([[False, False], [True, False]]),
        )
        assert ids.tolist() == [[first[1, 1] + 1, first[1, 1] + 2], [first[2, 1] + 1, first[2, 1] + 3]]
        assert buffer.add_sequence(np.zeros([2, 0], np.int64), streams=[0, 2]).shape == (2, 0)
        assert buffer.add_batch(np.zeros(0, np.int64), streams=[]).shape == (0,)
        buffer.add_batch(np.array([2]), streams=[0])
        assert windows(buffer, 3) == [[0, 1, 2], [10, 11, 12], [11, 12, 13], [20, 21, 22]]


def test_all_streams_named_are_all_streams():
    with ReverbReplayBuffer.local(NUMBER, batch_size=2, max_size=100, sequence_length=1) as buffer:
        buffer.add_batch(np.array([0, 10]), streams=[0, 1])
        assert windows(buffer, 1) == [[0], [10]]


def test_in_a_graph_streams_may_be_tensors():
    with ReverbReplayBuffer.local(NUMBER, batch_size=3, max_size=100, sequence_length=2) as buffer:

        @tf.function
        def add(items: tf.Tensor, streams: tf.Tensor) -> tf.Tensor:
            return buffer.add_batch(items, streams=streams)

        buffer.add_batch(np.array([0, 10, 20]))
        assert add(tf.constant([1, 21], tf.int64), tf.constant([0, 2])).shape == [2]
        add(tf.constant([11], tf.int64), tf.constant([1]))
        assert windows(buffer, 2) == [[0, 1], [10, 11], [20, 21]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"streams": [1, 0]}, r"streams: expected int \[n\], ascending, each of 0 to 2 at most once, got \[1, 0\]"),
        ({"streams": [1, 3]}, r"streams: expected .* got \[1, 3\]"),
        ({"streams": [0]}, r"expected \[1\] int64, got \[2\]"),
        ({"streams": [0, 1], "priorities": [1.0, 1.0, 1.0]}, r"priorities"),
        ({"streams": [0, 1], "end_of_episode": np.zeros(3, bool)}, r"end_of_episode: expected \[2\] bool, got \[3\]"),
    ],
)
def test_what_does_not_fit_is_refused_and_writes_nothing(settings, message):
    with ReverbReplayBuffer.local(NUMBER, batch_size=3, max_size=100, sequence_length=2) as buffer:
        buffer.add_batch(np.array([0, 10, 20]))
        with pytest.raises(ValueError, match=message):
            buffer.add_batch(np.array([7, 17]), **settings)
        buffer.add_batch(np.array([1, 11, 21]))
        assert windows(buffer, 2) == [[0, 1], [10, 11], [20, 21]]


def test_priorities_of_some_streams_for_every_table_or_by_table():
    tables = [TableConfig("most", NUMBER, 100, MaxHeap()), TableConfig("least", NUMBER, 100, MinHeap())]
    with ReverbTableGroup.local(NUMBER, tables, batch_size=3) as group:
        group.add_batch(np.array([1, 2]), priorities=np.array([3.0, 0.5]), streams=[0, 2])
        assert [int(group[name].sample()[0]) for name in group] == [1, 2]
        group.add_batch(np.array([3, 4]), priorities={"most": [4.0, 5.0], "least": [0.25, 9.0]}, streams=[1, 2])
        assert [int(group[name].sample()[0]) for name in group] == [4, 3]

        @tf.function
        def add(items: tf.Tensor, most: tf.Tensor) -> tf.Tensor:
            return group.add_batch(items, priorities={"most": most}, streams=[1])

        add(tf.constant([5], tf.int64), tf.constant([6.0]))
        assert [int(group[name].sample()[0]) for name in group] == [5, 3]


def test_an_episode_that_is_too_long_is_that_of_the_stream_that_came():
    tables = [TableConfig("episodes", NUMBER, 10, sequence_length=None, max_episode_length=2, scannable=True)]
    with ReverbTableGroup.local(NUMBER, tables, batch_size=2) as group:
        group.add_batch(np.array([0, 10]))
        group.add_batch(np.array([11]), streams=[1])
        with pytest.raises(ValueError, match=r"max_episode_length=2 frames, and the one of stream 1 goes on"):
            group.add_batch(np.array([12]), streams=[1])
        group.add_batch(np.array([1]), streams=[0], end_of_episode=np.array([True]))
        group.end_stream(1)
        rows = group["episodes"].as_dataset(single_deterministic_pass=True)
        assert [items.numpy().tolist() for items, _ in rows] == [[0, 1], [10, 11]]


def naive(episode: list[int], window: Window) -> list[list[int]]:
    """The items of an episode by the rule in words; padding is -1."""
    padded = [-1] * window.burn_in + episode + [-1] * window.num_steps
    made = []
    for start in range(0, len(episode), window.stride):
        shown = padded[start : start + window.length]
        is_whole = start + window.num_steps <= len(episode)
        if not is_whole and window.short == "drop":
            break
        made.append(shown)
        if not is_whole or start + window.num_steps == len(episode):
            if window.stride > 1:
                break  # the first item that reaches the end is the last one
    return made


KINDS = {
    "singles": Window(1),
    "triples": Window(3, stride=2),
    "padded": Window(3, 1, short="pad"),
    "strides": Window(4, 2, 3, "pad"),
}


@pytest.fixture(scope="module")
def mixed() -> Iterator[ReverbTableGroup]:
    tables = [
        TableConfig(
            name,
            NUMBER,
            1000,
            sequence_length=kind.num_steps,
            burn_in=kind.burn_in,
            stride=kind.stride,
            short=kind.short,
            scannable=True,
        )
        for name, kind in KINDS.items()
    ]
    tables.append(TableConfig("episodes", NUMBER, 100, sequence_length=None, max_episode_length=40, scannable=True))
    with ReverbTableGroup.local(NUMBER, tables, batch_size=3, timeout_s=10.0) as group:
        yield group


@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.tuples(st.sets(st.integers(0, 2)), st.sets(st.integers(0, 2)), st.integers(1, 2)), min_size=1, max_size=25
    )
)
def test_any_coming_and_going_gives_the_items_of_each_stream_alone(mixed, steps):
    """Steps say which streams come, which of these end, and how many frames each brings."""
    mixed.clear()
    episodes: list[list[list[int]]] = [[[]], [[]], [[]]]
    for number, (come, end, num_steps) in enumerate(steps):
        streams = sorted(come)
        values = np.array([[1000 * b + 2 * number + t for t in range(num_steps)] for b in streams], np.int64)
        ends = np.zeros([len(streams), num_steps], bool)
        for row, b in enumerate(streams):
            episodes[b][-1] += values[row].tolist()
            if b in end:
                ends[row, -1] = True
                episodes[b].append([])
        if num_steps == 1 and streams:
            mixed.add_batch(values[:, 0], end_of_episode=ends[:, 0], streams=streams)
        elif streams:
            mixed.add_sequence(values, end_of_episode=ends, streams=streams)
    mixed.end_stream()
    mixed.flush()
    for name, kind in KINDS.items():
        wanted = [item for of_stream in episodes for episode in of_stream for item in naive(episode, kind)]
        assert mixed[name].get_table_info().current_size == len(wanted)
        if wanted:  # of an empty table a pass waits
            rows = mixed[name].as_dataset(window=kind, single_deterministic_pass=True)
            assert [np.where(info.mask, items, -1).tolist() for items, info in rows] == wanted
    whole = sorted(episode for of_stream in episodes for episode in of_stream if episode)
    assert mixed["episodes"].get_table_info().current_size == len(whole)
    if whole:
        rows = mixed["episodes"].as_dataset(single_deterministic_pass=True)
        assert sorted(items.numpy().tolist() for items, _ in rows) == whole


def test_an_interrupt_at_any_line_cuts_the_streams_that_came_and_no_others(caplog, interrupted_at):
    """Of streams 0, 1 and 2 the first two come and are interrupted; then all go on: stream 2 has every pair."""
    tables = [
        TableConfig("queue", NUMBER, 9000, Fifo(), Fifo(), Queue(9000), 1, sequence_length=2),
        TableConfig("replay", NUMBER, 9000, Prioritized(0.6), initial="max", sequence_length=2),
    ]
    with ReverbTableGroup.local(NUMBER, tables, batch_size=3, timeout_s=30.0) as group:
        line, t, going = 0, 0, True
        wanted: set[tuple[int, int]] = set()
        ended: set[int] = set()
        while going:
            line += 1
            ends = np.array([line % 2 == 1, False])
            values = np.array([t, 10_000 + t])
            going = interrupted_at(line, lambda v=values, e=ends: group.add_batch(v, end_of_episode=e, streams=[0, 1]))
            ended |= {t} if ends[0] else set()
            group.add_batch(np.array([t + 1, 10_001 + t, 20_001 + t]))
            group.add_batch(np.array([t + 2, 10_002 + t, 20_002 + t]))
            wanted |= {(b * 10_000 + t + 1, b * 10_000 + t + 2) for b in range(3)}
            if t:
                wanted.add((19_999 + t, 20_001 + t))
            t += 3
        group.flush()
        pairs = []
        while group["queue"].ready():
            first, second = group["queue"].sample(1, num_steps=2)[0].numpy()[0].tolist()
            pairs.append((first, second))
        assert len(set(pairs)) == len(pairs)
        assert wanted <= set(pairs)
        # Of the streams that came each pair is of neighbours, and none goes over an end; of the other none is missing.
        assert not [pair for pair in pairs if pair[0] < 20_000 and (pair[1] != pair[0] + 1 or pair[0] in ended)]
        assert len([pair for pair in pairs if pair[0] >= 20_000]) == 2 * line - 1
        assert "a write was interrupted; no item goes over it" in caplog.text
