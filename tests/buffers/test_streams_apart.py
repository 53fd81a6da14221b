"""Adds that bring frames of some streams without the others (`streams=`), on every buffer and backend.

The frame of stream `b` that is its `t`-th holds `1000 * b + t`, so that what is read tells whose it is, and when.
The naive model keeps for each stream a list of its episodes. It is written here and knows nothing of our code.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    Prioritized,
    ReplayBuffer,
    ReservoirReplayBuffer,
    ReverbReplayBuffer,
    RolloutBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
)

COUNTER = tf.TensorSpec([], tf.int64, "counter")
# The second field says whether a frame's fields stay together.
PLAIN = {"pair": tf.TensorSpec([2], tf.float32), "value": tf.TensorSpec([], tf.int64)}
WITH_ENDS = {**PLAIN, "is_last": tf.TensorSpec([], tf.bool)}


pytestmark = pytest.mark.by_some_streams


# The naive model, and a buffer that goes the same way


class Model:
    """For each stream its episodes, oldest first, as lists of values; the last one of each may go on."""

    def __init__(self, num_streams: int, final_observations: bool) -> None:
        self.episodes: dict[int, list[list[int]]] = {b: [[]] for b in range(num_streams)}
        self.final_observations = final_observations
        self.final: set[int] = set()

    def next_value(self, b: int) -> int:
        return 1000 * b + sum(map(len, self.episodes[b]))

    def add(self, b: int, ends: bool) -> int:
        value = self.next_value(b)
        self.episodes[b][-1].append(value)
        if ends:
            self.episodes[b].append([])
            if self.final_observations:
                self.final.add(value)
        return value

    def end(self, b: int) -> None:
        if self.episodes[b][-1]:
            self.episodes[b].append([])

    def held(self) -> list[list[int]]:
        """The episodes that have a frame."""
        return sorted(episode for episodes in self.episodes.values() for episode in episodes if episode)

    def windows(self, num_steps: int) -> list[list[int]]:
        """All windows: within one episode of one stream, and starting at no final observation."""
        return [
            episode[start : start + num_steps]
            for episode in self.held()
            for start in range(len(episode) - num_steps + 1)
            if episode[start] not in self.final
        ]


class Fed:
    """A buffer and the model, fed with the same."""

    def __init__(
        self, make: Callable[..., ReplayBuffer], num_streams: int, num_steps: int, told_by_items: bool
    ) -> None:
        self.spec = WITH_ENDS if told_by_items else PLAIN
        self.backend: str = make.backend  # type: ignore[attr-defined]
        self.buffer = make(self.spec, batch_size=num_streams, num_steps=num_steps)
        self.buffer.let_streams_part()
        self.model = Model(num_streams, told_by_items)
        self.ids: dict[int, int] = {}
        self._in_graph = {sequence: self._compiled(sequence) for sequence in (False, True)}

    def add(self, streams: Sequence[int], ends: np.ndarray, how: str = "arrays", priorities: Any = None) -> None:
        """Adds a frame of each of these streams, ends `[n]`, or `T` frames of each, ends `[n, T]`."""
        values = np.zeros(ends.shape, np.int64)
        for place in np.ndindex(ends.shape):
            values[place] = self.model.add(streams[place[0]], bool(ends[place]))
        items = {"pair": np.stack([values, -values], axis=-1).astype(np.float32), "value": values}
        told = {"end_of_episode": ends}
        if self.spec is WITH_ENDS:
            items, told = {**items, "is_last": ends}, {}
        numbers = np.array(streams, np.int64)
        if how == "graph":
            ids = self._in_graph[ends.ndim == 2](items, ends, numbers)
        else:
            if how == "tensors":
                items, numbers = tf.nest.map_structure(tf.constant, items), tf.constant(numbers, tf.int32)
            add = self.buffer.add_batch if ends.ndim == 1 else self.buffer.add_sequence
            ids = add(items, streams=numbers, priorities=priorities, **told)
        assert isinstance(ids, np.ndarray if how == "arrays" else tf.Tensor)
        assert ids.shape == ends.shape
        self.ids.update(zip(values.reshape(-1).tolist(), np.asarray(ids).reshape(-1).tolist(), strict=True))

    def end(self, b: int | None) -> None:
        self.buffer.end_stream(b)
        for stream in self.model.episodes if b is None else [b]:
            self.model.end(stream)

    def _compiled(self, sequence: bool) -> Callable[..., tf.Tensor]:
        """An add for any number of streams, so that nothing is known of it when the function is traced."""
        rows = [None, None] if sequence else [None]
        leaves = {name: tf.TensorSpec([*rows, *leaf.shape], leaf.dtype) for name, leaf in self.spec.items()}

        @tf.function(input_signature=[leaves, tf.TensorSpec(rows, tf.bool), tf.TensorSpec([None], tf.int64)])
        def add(items: Any, ends: tf.Tensor, streams: tf.Tensor) -> tf.Tensor:
            told = {} if self.spec is WITH_ENDS else {"end_of_episode": ends}
            add = self.buffer.add_sequence if sequence else self.buffer.add_batch
            return add(items, streams=streams, **told)

        return add

    # What is read

    def values(self, items: Any, info: Any) -> Any:
        """The values of what was read, once all that stands beside them was looked at."""
        values, ids = np.asarray(items["value"]), np.asarray(info.ids)
        np.testing.assert_array_equal(items["pair"], np.stack([values, -values], axis=-1))
        expected = [self.ids[value] for value in values.reshape(-1).tolist()]
        assert ids.reshape(-1).tolist() == expected
        return values.tolist()

    def check_frames(self) -> None:
        """A pass gives every frame once, with the id that its add returned."""
        assert len(set(self.ids.values()) - {-1}) == len(self.ids) - self.num_without_id
        frames = [value for episode in self.model.held() for value in episode if value not in self.model.final]
        if not frames:
            return
        passed = self.buffer.as_dataset(single_deterministic_pass=True)
        read = sorted(self.values(*element) for element in passed)
        if self.backend == "episodic":
            assert read == [episode for episode in self.model.held() if episode[0] not in self.model.final]
        else:
            assert read == frames

    @property
    def num_without_id(self) -> int:
        """In a reservoir final observations have none."""
        return len(self.model.final) if self.backend == "reservoir" else 0

    def check_windows(self, num_steps: int) -> None:
        """A pass gives every window once; draws give no others, each with the chance of one among so many."""
        expected = self.model.windows(num_steps)
        if not expected:
            return
        window = Window(num_steps)
        passed = self.buffer.as_dataset(window=window, single_deterministic_pass=True)
        assert sorted(self.values(*element) for element in passed) == expected
        self.check_draws(num_steps)

    def check_draws(self, num_steps: int) -> None:
        expected = self.model.windows(num_steps)
        if not expected:
            return
        items, info = self.buffer.sample(30, num_steps)
        assert all(values in expected for values in self.values(items, info))
        np.testing.assert_allclose(info.probabilities, 1 / len(expected), rtol=1e-5)
        np.testing.assert_allclose(info.weights, 1, rtol=1e-5)


# Random histories


def feed_at_random(fed: Fed, seed: int, num_adds: int, ways: Sequence[str] = ("arrays", "tensors")) -> None:
    """Adds of any streams, one frame or up to 4 of each, of which one in five ends an episode; and ends of streams."""
    rng = np.random.default_rng(seed)
    num_streams = len(fed.model.episodes)
    for _ in range(num_adds):
        if rng.random() < 0.1:
            fed.end(int(rng.integers(num_streams)))
        streams = np.flatnonzero(rng.random(num_streams) < 0.5).tolist()
        shape = (len(streams), int(rng.integers(5)))[: rng.integers(1, 3)]
        fed.add(streams, rng.random(shape) < 0.2, str(rng.choice(ways)))


@pytest.mark.parametrize("told_by_items", [False, True])
def test_every_frame_is_there_once_whichever_streams_came_together(make, told_by_items):
    fed = Fed(make, 3, 1, told_by_items)
    feed_at_random(fed, 1, 40)
    fed.check_frames()
    fed.end(None)
    feed_at_random(fed, 2, 10)
    fed.check_frames()


@pytest.mark.parametrize("told_by_items", [False, True])
@pytest.mark.by_streams
def test_windows_are_those_of_each_streams_own_episodes(make, told_by_items):
    fed = Fed(make, 4, 3, told_by_items)
    for seed in range(3):
        feed_at_random(fed, seed, 14)
        fed.check_windows(3)
    assert len(fed.model.windows(3)) > 30


@dataclasses.dataclass(frozen=True)
class Add:
    """Frames of some streams: `num_steps` of each (None: one, by `add_batch`)."""

    streams: frozenset[int]
    num_steps: int | None
    ends: list[bool]
    with_priorities: bool

    def apply(self, fed: Fed) -> None:
        streams = sorted({b % len(fed.model.episodes) for b in self.streams})
        shape = (len(streams),) if self.num_steps is None else (len(streams), self.num_steps)
        fed.add(streams, np.resize(self.ends, shape), priorities=np.ones(shape) if self.with_priorities else None)


@dataclasses.dataclass(frozen=True)
class End:
    """The end of a stream (None: of all)."""

    stream: int | None

    def apply(self, fed: Fed) -> None:
        fed.end(None if self.stream is None else self.stream % len(fed.model.episodes))


ADDS = st.builds(
    Add,
    streams=st.frozensets(st.integers(0, 3)),
    num_steps=st.sampled_from([None, 3, 0, 1, 5]),
    ends=st.lists(st.sampled_from([False, False, False, True]), min_size=5, max_size=9),
    with_priorities=st.booleans(),
)
OPERATIONS = st.one_of(*[ADDS] * 8, st.builds(End, st.sampled_from([0, 1, 2, 3, None])))


@pytest.mark.by_streams
def test_chances_of_draws_are_those_of_the_models_windows(make):
    @given(st.integers(1, 4), st.booleans(), st.lists(OPERATIONS, min_size=4, max_size=12))
    @settings(max_examples=5 if make.backend.startswith("served") else 40)
    def check(num_streams: int, told_by_items: bool, operations: list[Add | End]) -> None:
        fed = Fed(make, num_streams, 2, told_by_items)
        for operation in operations:
            operation.apply(fed)
            fed.check_draws(2)
        fed.buffer.close()

    check()


# By hand


def add(buffer: ReplayBuffer, streams: Sequence[int], values: Sequence[Any], ends: Any = None) -> list[Any]:
    """Adds these values, `[n]` or `[n, T]`, of COUNTER; returns the ids."""
    array = np.array(values, np.int64)
    adder = buffer.add_batch if array.ndim == 1 else buffer.add_sequence
    return adder(array, streams=streams, end_of_episode=None if ends is None else np.array(ends)).tolist()


def windows_of(buffer: ReplayBuffer, num_steps: int, draws: int = 400) -> set[tuple[int, ...]]:
    """Windows among many draws; each is drawn with the same chance."""
    items, info = buffer.sample(draws, num_steps)
    drawn = set(map(tuple, np.asarray(items).tolist()))
    np.testing.assert_allclose(info.probabilities, 1 / len(drawn), rtol=1e-5)
    return drawn


@pytest.mark.by_streams
def test_streams_that_take_turns_keep_windows_of_their_own(make):
    buffer = make(COUNTER, batch_size=2, num_steps=2)
    buffer.let_streams_part()
    for t in range(3):
        add(buffer, [0], [t])
        add(buffer, [1], [1000 + t])
    assert windows_of(buffer, 2) == {(0, 1), (1, 2), (1000, 1001), (1001, 1002)}


@pytest.mark.by_streams
def test_a_streams_end_leaves_the_others_open(make):
    buffer = make(COUNTER, batch_size=3, num_steps=2)
    buffer.let_streams_part()
    add(buffer, [0, 1, 2], [0, 1000, 2000])
    add(buffer, [1], [1001], ends=[True])
    buffer.end_stream(2)
    add(buffer, [1, 2], [[1002, 1003], [2001, 2002]], ends=[[False, False], [True, False]])
    add(buffer, [0, 2], [1, 2003])
    assert windows_of(buffer, 2) == {(0, 1), (1000, 1001), (1002, 1003), (2002, 2003)}


@pytest.mark.by_streams
def test_an_adds_end_belongs_to_its_own_row(make):
    """The second row is stream 2's, not stream 1's."""
    buffer = make(COUNTER, batch_size=3, num_steps=2)
    buffer.let_streams_part()
    add(buffer, [0, 1, 2], [0, 1000, 2000])
    add(buffer, [0, 2], [1, 2001], ends=[False, True])
    add(buffer, [0, 1, 2], [2, 1001, 2002])
    assert windows_of(buffer, 2) == {(0, 1), (1, 2), (1000, 1001), (2000, 2001)}


@pytest.mark.by_streams
def test_ends_told_by_a_function_are_asked_of_the_rows_that_came(make):
    buffer = make(COUNTER, batch_size=2, num_steps=2, end_of_episode_fn=lambda items: items % 1000 == 1)
    buffer.let_streams_part()
    for t in range(4):
        add(buffer, [1], [1000 + t])
    add(buffer, [0], [[0, 1, 2, 3]])
    assert windows_of(buffer, 2) == {(0, 1), (2, 3), (1000, 1001), (1002, 1003)}


@pytest.mark.by_streams
def test_a_flag_that_no_end_was_told_of_warns_of_its_own_streams_next_frame_only(make):
    """Warnings are errors here: another stream's frame does not follow the one with the flag."""
    buffer = make({"done": tf.TensorSpec([], tf.bool), "value": tf.TensorSpec([], tf.int64)}, batch_size=2, num_steps=2)
    buffer.let_streams_part()
    for b, value, done in ((0, 0, False), (1, 1000, False), (0, 1, True), (1, 1001, False)):
        buffer.add_batch({"done": np.array([done]), "value": np.array([value])}, streams=[b])
    buffer.end_stream(0)
    items, _ = buffer.sample(200, 2)
    assert set(map(tuple, np.asarray(items["value"]).tolist())) == {(0, 1), (1000, 1001)}


def test_all_streams_by_number_are_as_without_and_none_is_nothing(make):
    buffer = make(COUNTER, batch_size=2)
    buffer.let_streams_part()
    assert buffer.add_batch(np.zeros([0], np.int64), streams=[]).shape == (0,)
    assert buffer.add_sequence(np.zeros([0, 3], np.int64), streams=np.zeros(0, int)).shape == (0, 3)
    assert len(buffer) == 0
    named, unnamed = buffer.add_batch(np.array([0, 1000]), streams=[0, 1]), buffer.add_batch(np.array([1, 1001]))
    assert named.shape == unnamed.shape == (2,) and named.dtype == np.int64
    assert buffer.add_sequence(np.array([[2, 3], [1002, 1003]]), streams=range(2)).shape == (2, 2)
    buffer.flush()
    assert len(buffer) == 8
    assert set(np.asarray(buffer.sample(300, 1)[0]).reshape(-1).tolist()) == {0, 1, 2, 3, 1000, 1001, 1002, 1003}


def test_inside_a_tf_function_the_streams_may_change_from_call_to_call(make):
    fed = Fed(make, 3, 1, told_by_items=True)
    feed_at_random(fed, 3, 30, ["graph"])
    fed.check_frames()


def test_inside_a_tf_function_ids_have_the_shape_that_is_known_of_the_streams(make):
    buffer = make(COUNTER, batch_size=3)
    buffer.let_streams_part()
    shapes = []

    @tf.function
    def add_two() -> None:
        shapes.append(buffer.add_batch(tf.constant([0, 2000], tf.int64), streams=[0, 2]).shape.as_list())
        ids = buffer.add_sequence(tf.constant([[1000, 1001]], tf.int64), streams=tf.constant([1]))
        shapes.append(ids.shape.as_list())

    add_two()
    buffer.flush()
    assert shapes == [[2], [1, None]] and len(buffer) == 4


# Odds


def chi_square_bound(freedom: int) -> float:
    """What a chi-square passes once in 50 million times (Wilson and Hilferty 1931), as in `test_odds.py`."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 5.5 * spread**0.5) ** 3


@pytest.mark.by_streams
def test_each_window_is_drawn_as_often_as_any_other(make):
    """Whether many are drawn at once or few, and in the graph of a dataset as well."""
    fed = Fed(make, 3, 2, told_by_items=True)
    feed_at_random(fed, 4, 25)
    expected = fed.model.windows(2)
    num = 25 * len(expected)
    ways = {
        "at once": lambda: [fed.buffer.sample(num, 2)],
        "few at a time": lambda: [fed.buffer.sample(4, 2) for _ in range(num // 4)],
        "dataset": lambda: fed.buffer.as_dataset(64, 2).take(num // 64 + 1),
    }
    for name, draw in ways.items():
        windows = [window for items, info in draw() for window in fed.values(items, info)]
        _, counts = np.unique([expected.index(window) for window in windows], return_counts=True)
        assert len(counts) == len(expected), name
        mean = len(windows) / len(expected)
        assert float(((counts - mean) ** 2).sum() / mean) <= chi_square_bound(len(expected) - 1), name


def _prioritized(num_streams: int) -> ReplayBuffer:
    return TFPrioritizedReplayBuffer(COUNTER, num_streams, 64, seed=7)


def _served_prioritized(num_streams: int) -> ReplayBuffer:
    return ReverbReplayBuffer.local(
        COUNTER,
        batch_size=num_streams,
        max_size=64,
        sequence_length=1,
        sampler=Prioritized(),
        initial="max",
        timeout_s=30.0,
    )


@pytest.mark.parametrize("build", [_prioritized, _served_prioritized])
def test_priorities_go_to_the_frames_that_they_came_with(build):
    """By p^0.6: 32^0.6 is 8, 243^0.6 is 27."""
    with build(3) as buffer:
        buffer.let_streams_part()
        buffer.add_batch(np.array([0, 2000]), streams=[0, 2], priorities=[1.0, 32.0])
        buffer.add_sequence(np.array([[1000, 1001]]), streams=[1], priorities=[[243.0, 0.0]])
        items, info = buffer.sample(1000)
        values = items.numpy().tolist()
        chances = dict(zip(values, info.probabilities.numpy().tolist(), strict=True))
        assert chances == pytest.approx({0: 1 / 36, 2000: 8 / 36, 1000: 27 / 36}, rel=1e-5)
        keys = dict(zip(values, info.keys.numpy().tolist(), strict=True))
        buffer.update_priorities(np.array([keys[1000], keys[2000]]), [1.0, 0.0])
        items, info = buffer.sample(100)
        assert set(items.numpy().tolist()) == {0, 1000}
        np.testing.assert_allclose(info.probabilities, 1 / 2, rtol=1e-5)


# A thread for each stream


@pytest.mark.by_streams
def test_a_thread_for_each_stream_and_one_that_reads(make):
    """What is read is of one stream and one episode, while three threads overwrite what there is."""
    buffer = make(COUNTER, batch_size=3, num_steps=2, steps=8)
    buffer.let_streams_part()
    failures: list[BaseException] = []

    def write(b: int) -> None:
        try:
            for t in range(5, 120):
                add(buffer, [b], [1000 * b + t], ends=[t % 5 == 4])
        except BaseException as error:
            failures.append(error)

    add(buffer, range(3), [[1000 * b + t for t in range(5)] for b in range(3)], ends=[[False] * 4 + [True]] * 3)
    threads = [threading.Thread(target=write, args=[b]) for b in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drawn = np.asarray(buffer.sample(16, 2)[0])
        np.testing.assert_array_equal(drawn[:, 1], drawn[:, 0] + 1)
        assert (drawn[:, 0] % 5 != 4).all()
    for thread in threads:
        thread.join()
    assert not failures
    add(buffer, range(3), [[120, 121], [1120, 1121], [2120, 2121]])
    assert {(120, 121), (1120, 1121), (2120, 2121)} <= windows_of(buffer, 2, draws=1000)


# Refusing what does not fit

TWO = np.array([1, 2001])
BAD_ADDS: dict[str, tuple[dict[str, Any], str]] = {
    "not ascending": ({"streams": [2, 0]}, r"streams: expected int \[n\], ascending, .* got \[2, 0\]"),
    "one twice": ({"streams": [1, 1]}, r"each of 0 to 2 at most once, got \[1, 1\]"),
    "there are three": ({"streams": [0, 3]}, r"each of 0 to 2 at most once, got \[0, 3\]"),
    "below 0": ({"streams": [-1, 0]}, r"each of 0 to 2 at most once, got \[-1, 0\]"),
    "a mask": ({"streams": [True, False]}, r"streams: expected int \[n\]"),
    "floats": ({"streams": [0.0, 2.0]}, r"streams: expected int \[n\]"),
    "an axis too many": ({"streams": [[0, 2]]}, r"streams: expected int \[n\]"),
    "a number": ({"streams": 2, "items": TWO[:1]}, r"streams: expected int \[n\]"),
    "a tensor": ({"streams": tf.constant([2, 0])}, r"streams: expected int \[n\]"),
    "rows of all": ({"items": np.array([1, 2, 3])}, r"'counter': expected \[2\] int64, got \[3\] int64"),
    "a row too few": ({"items": TWO[:1]}, r"'counter': expected \[2\] int64, got \[1\] int64"),
    "ends of all": ({"end_of_episode": np.zeros(3, bool)}, r"end_of_episode: expected \[2\] bool, got \[3\]"),
    "priorities of all": ({"priorities": np.ones(3)}, r"priorities: expected shape \[2\], got \[3\]"),
    "a bad priority": ({"priorities": [1.0, -1.0]}, r"priorities\[1\] is -1.0"),
}
BAD_SEQUENCES: dict[str, tuple[dict[str, Any], str]] = {
    "not ascending": ({"streams": [2, 0]}, r"streams: expected int \[n\], ascending, .* got \[2, 0\]"),
    "rows of all": ({"items": np.ones([3, 4], np.int64)}, r"'counter': expected \[2, T\] int64, got \[3, 4\] int64"),
    "ends of all": ({"end_of_episode": np.zeros([3, 1], bool)}, r"end_of_episode: expected \[2, 1\] bool"),
    "priorities of all": ({"priorities": np.ones([3, 1])}, r"priorities: expected shape \[2, 1\], got \[3, 1\]"),
}


def test_what_does_not_fit_the_streams_is_refused_and_changes_nothing(make):
    buffer = make(COUNTER, batch_size=3, num_steps=1)
    buffer.let_streams_part()
    add(buffer, [0, 2], [0, 2000])
    for change, message in BAD_ADDS.values():
        with pytest.raises(ValueError, match=message):
            buffer.add_batch(**{"items": TWO, "streams": [0, 2], **change})
    for change, message in BAD_SEQUENCES.values():
        with pytest.raises(ValueError, match=message):
            buffer.add_sequence(**{"items": TWO[:, None], "streams": [0, 2], **change})
    buffer.flush()
    assert len(buffer) == 2
    add(buffer, [1, 2], [1000, 2001])
    buffer.flush()
    assert len(buffer) == 4
    assert set(np.asarray(buffer.sample(200, 1)[0]).reshape(-1).tolist()) == {0, 1000, 2000, 2001}


def test_inside_a_tf_function_what_does_not_fit_has_the_same_text(make):
    buffer = make(COUNTER, batch_size=3, num_steps=1)
    buffer.let_streams_part()
    one = tf.TensorSpec([None], tf.int64)
    add_some = tf.function(lambda items, streams: buffer.add_batch(items, streams=streams), input_signature=[one, one])
    for streams, message in (([2, 0], r"at most once, got \[2, 0\]"), ([1], r"expected \[1\] int64, got \[2\] int64")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            add_some(TWO, streams)
    with pytest.raises(ValueError, match=r"'counter': expected \[1\] int64, got \[2\] int64"):
        tf.function(lambda: buffer.add_batch(tf.constant(TWO), streams=[1])).get_concrete_function()
    add_some(TWO, [0, 2])
    buffer.flush()
    assert len(buffer) == 2


# Rings


@pytest.mark.parametrize("kind", [TFUniformReplayBuffer, TFPrioritizedReplayBuffer])
def test_each_stream_of_a_ring_keeps_its_own_newest_frames(kind):
    buffer = kind(COUNTER, 2, 3, seed=7)
    buffer.let_streams_part()
    add(buffer, [1], [[1000, 1001]])
    for t in range(10):
        add(buffer, [0], [t])
    assert [int(items) for items, _ in buffer.as_dataset(single_deterministic_pass=True)] == [7, 8, 9, 1000, 1001]
    assert windows_of(buffer, 2) == {(7, 8), (8, 9), (1000, 1001)}


@pytest.mark.parametrize("kind", [TFUniformReplayBuffer, TFPrioritizedReplayBuffer])
def test_a_ring_is_told_before_its_first_frame(kind):
    buffer = kind(COUNTER, 2, 3, seed=7)
    with pytest.raises(ValueError, match="let_streams_part"):
        add(buffer, [0], [0])
    assert len(buffer) == 0
    buffer.add_batch(np.array([0, 1000]))
    with pytest.raises(ValueError, match="let_streams_part: call it before anything is added"):
        buffer.let_streams_part()


# Reservoirs


def test_a_reservoir_keeps_the_same_items_however_streams_are_cut_into_adds():
    whole = ReservoirReplayBuffer(COUNTER, 5, batch_size=3, seed=3)
    apart = ReservoirReplayBuffer(COUNTER, 5, batch_size=3, seed=3)
    rng = np.random.default_rng(0)
    for t in range(60):
        values = 1000 * np.arange(3) + t
        ids = whole.add_batch(values).tolist()
        cut = int(rng.integers(4))
        parts = [part for part in (list(range(cut)), list(range(cut, 3))) if part]
        assert [each for part in parts for each in add(apart, part, values[part])] == ids
    assert apart.num_seen == 180
    np.testing.assert_array_equal(apart.gather_all(), whole.gather_all())


def test_a_sequence_of_some_streams_is_offered_step_by_step():
    buffer = ReservoirReplayBuffer(COUNTER, 9, batch_size=3, seed=3)
    assert add(buffer, [0, 2], [[0, 1, 2], [2000, 2001, 2002]]) == [[0, 2, 4], [1, 3, 5]]
    assert buffer.gather_all().numpy().tolist() == [[0, 2000, 1, 2001, 2, 2002]]


# Rollouts


@pytest.mark.parametrize("streams", [[0], [0, 1], []])
def test_a_rollout_says_why_its_streams_stay_together(streams):
    buffer = RolloutBuffer({"reward": tf.TensorSpec([], tf.float32)}, 2, 3)
    rewards = np.zeros([len(streams)], np.float32)
    message = r"a rollout is \[B, T\], .* one RolloutBuffer for each stream that goes at its own pace"
    with pytest.raises(ValueError, match=message):
        buffer.add_batch({"reward": rewards}, streams=streams)
    with pytest.raises(ValueError, match=message):
        buffer.add_sequence({"reward": rewards[:, None]}, streams=streams)
    with pytest.raises(ValueError, match=message):
        buffer.let_streams_part()
    assert len(buffer) == 0
