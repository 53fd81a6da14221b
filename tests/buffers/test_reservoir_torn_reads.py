"""Nothing torn comes out of the reservoir: rows `(i, i, i, ...)`, under writers that never rest.

A real reservoir keeps fewer and fewer items, and is soon quiet: here its rule is replaced by one that keeps every
item. Each test that finds nothing has a twin in which the second look at the ids is switched off and something must be
found. REPLAYFEED_TORN_READS_S is the time that all long cases take together (20 s), shared among them equally.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReservoirReplayBuffer, reservoir_sampler
from replayfeed.buffers.reservoir_rule import Kept, ReservoirRule
from replayfeed.buffers.reservoir_sampler import ReservoirSampler
from replayfeed.buffers.storage import FrameStorage

from .traffic import PATIENCE_S, TOTAL_S, UNPROTECTED_S, Traffic

# Batches that are enough.
MIN_BATCHES = 3

WIDTH, BATCH = 64, 16
# Fields of several dtypes and sizes, so that a frame lies in several records; each holds the frame's number.
SPEC = {
    "first": tf.TensorSpec([], tf.int64),
    "float": tf.TensorSpec([WIDTH], tf.float64),
    "large": tf.TensorSpec([40, 10], tf.int32),  # over a kilobyte: an array of its own
    "last": tf.TensorSpec([], tf.int64),
}


def frames(first: int, num_steps: int) -> Any:
    """Leaves `[1, T, ...]`: consecutive numbers."""
    number = np.arange(first, first + num_steps)[None]
    return {
        "first": number,
        "float": np.repeat(number[..., None], WIDTH, -1).astype(np.float64),
        "large": np.repeat(number[..., None], 400, -1).reshape(1, num_steps, 40, 10).astype(np.int32),
        "last": number.copy(),
    }


def count_torn(items: Any) -> int:
    """Rows whose parts differ."""
    number = np.asarray(items["first"])
    torn = np.asarray(items["last"]) != number
    torn |= (np.asarray(items["float"]) != number[..., None]).any(-1)
    torn |= (np.asarray(items["large"]) != number[..., None, None]).any((-1, -2))
    return int(torn.sum())


@pytest.fixture(autouse=True)
def every_item_is_kept(monkeypatch):
    """In the rows of the reservoir in turn, several at a time."""

    def next_kept(self: ReservoirRule, num: int, most: int = 2**62) -> Kept:
        num = min(num, most)
        return Kept(num, np.arange(num), (self.num_seen + np.arange(num)) % self._capacity)

    monkeypatch.setattr(ReservoirRule, "next_kept", next_kept)


def sample_batches(buffer: ReservoirReplayBuffer) -> Iterator[Any]:
    while True:
        yield buffer.sample(BATCH)


def dataset_batches(buffer: ReservoirReplayBuffer) -> Iterator[Any]:
    return iter(buffer.as_dataset(BATCH))


def function_batches(buffer: ReservoirReplayBuffer) -> Iterator[Any]:
    draw = tf.function(lambda: buffer.sample(BATCH))
    while True:
        yield draw()


def pass_batches(buffer: ReservoirReplayBuffer) -> Iterator[Any]:
    yield from buffer.as_dataset(BATCH, epochs=10**6)


READERS = {
    "sample": sample_batches,
    "as_dataset": dataset_batches,
    "sample in a tf.function": function_batches,
    "passes": pass_batches,
}


def traffic_in(buffer: ReservoirReplayBuffer, steps_an_add: int) -> Traffic:
    def add(writer: int, added: int) -> int:
        buffer.add_sequence(frames(added, steps_an_add))
        return steps_an_add

    return Traffic(add)


# Rows of the reservoir, and frames an add.
SIZES = {"small": (32, 1), "large": (1024, 64)}


def read(
    size: str, reader: Callable[[Any], Iterator[Any]], seconds: float, *, until_torn: bool = False
) -> tuple[int, int]:
    """How many rows were read beside two writers, and how many of them were torn.

    They go on for so long, and on a busy machine until the reader has read and both writers have added something.
    """
    capacity, steps_an_add = SIZES[size]
    buffer = ReservoirReplayBuffer(SPEC, capacity, seed=1)
    buffer.add_sequence(frames(0, capacity))
    batches = reader(buffer)
    next(batches)
    num_read = num_torn = 0
    with traffic_in(buffer, steps_an_add) as traffic:
        deadline = time.monotonic() + seconds
        while not (until_torn and num_torn):
            has_begun = num_read > MIN_BATCHES * BATCH and min(traffic.added) > 0
            if time.monotonic() >= deadline + (0 if has_begun or until_torn else PATIENCE_S):
                break
            items, _ = next(batches)
            num_read += BATCH
            num_torn += count_torn(items)
    assert until_torn or min(traffic.added) > 0
    return num_read, num_torn


CASES = [(size, reader) for size in SIZES for reader in READERS]


@pytest.mark.parametrize(("size", "reader"), CASES)
def test_fr_071_writers_and_a_reader_never_see_a_torn_row(size, reader):
    num_read, num_torn = read(size, READERS[reader], TOTAL_S / len(CASES))
    assert num_read > MIN_BATCHES * BATCH
    assert num_torn == 0, f"{num_torn} of {num_read}"


@pytest.mark.parametrize("reader", READERS)
def test_without_the_second_look_the_same_readers_find_torn_rows(monkeypatch, reader):
    """Private names of the sampler, changed here only."""
    monkeypatch.setattr(ReservoirSampler, "_stale", lambda self, *_: None)
    monkeypatch.setattr(ReservoirSampler, "_stale_in_graph", lambda self, before, _: tf.zeros_like(before, tf.bool))
    _, num_torn = read("small", READERS[reader], UNPROTECTED_S, until_torn=True)
    assert num_torn > 0


# Interleavings made on purpose, one after the other in a single thread: the same in every run


def numbers(capacity: int, num: int) -> tuple[ReservoirReplayBuffer, Callable[[], None]]:
    """A reservoir of numbers, each the same as its id, and a function that adds the next."""
    buffer = ReservoirReplayBuffer(tf.TensorSpec([], tf.int64), capacity, seed=1)
    following = iter(range(10**9))

    def add() -> None:
        buffer.add_batch(np.array([next(following)]))

    for _ in range(num):
        add()
    return buffer, add


def add_before(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, add: Callable[[], None], times: int) -> Any:
    """Calls `add` before each of the first calls of a method; counts the calls."""
    original, calls = getattr(owner, method), [0]

    def patched(self: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] <= times:
            add()
        return original(self, *arguments)

    monkeypatch.setattr(owner, method, patched)
    return calls


@pytest.mark.parametrize("adds", [1, 2, 4, 9])
def test_frames_replaced_between_ids_and_gather_are_drawn_again(monkeypatch, adds):
    buffer, add = numbers(4, 8)
    add_before(monkeypatch, FrameStorage, "gather", lambda: [add() for _ in range(adds)], times=1)
    items, info = buffer.sample(50)
    np.testing.assert_array_equal(items, info.ids)
    assert set(items.numpy().tolist()) == set(range(4 + adds, 8 + adds))


def test_without_the_second_look_they_are_delivered(monkeypatch):
    buffer, add = numbers(4, 8)
    monkeypatch.setattr(ReservoirSampler, "_stale", lambda self, *_: None)
    add_before(monkeypatch, FrameStorage, "gather", lambda: [add() for _ in range(4)], times=1)
    items, info = buffer.sample(50)
    assert not np.array_equal(items, info.ids)


def test_a_writer_that_is_always_faster_is_stopped_for_the_moment_of_a_gather(monkeypatch):
    """Each gather finds all its frames replaced, until the sampler takes the writer's lock for the last one."""
    buffer, add = numbers(4, 8)
    replaced = reservoir_sampler._ROUNDS_BEFORE_LOCK + 1
    calls = add_before(monkeypatch, FrameStorage, "gather", lambda: [add() for _ in range(4)], times=replaced)
    items, info = buffer.sample(10)
    np.testing.assert_array_equal(items, info.ids)
    assert calls[0] == replaced + 1


@pytest.mark.parametrize("num_steps", [None, 1])
def test_a_graph_that_finds_a_changed_row_leaves_the_batch_to_numpy(monkeypatch, num_steps):
    """Always, where every row is called changed: the batches have the same shapes, dtypes and odds, and are counted."""
    spec = {"number": tf.TensorSpec([], tf.int64), "odd": tf.TensorSpec([2], tf.bool)}
    buffer = ReservoirReplayBuffer(spec, 4, seed=1)
    number = np.arange(9)[None]
    buffer.add_sequence({"number": number, "odd": np.repeat(number[..., None] % 2 == 1, 2, -1)})
    as_always = buffer.as_dataset(8, num_steps).element_spec
    monkeypatch.setattr(ReservoirSampler, "_stale_in_graph", lambda self, before, _: tf.ones_like(before, tf.bool))
    dataset = buffer.as_dataset(8, num_steps)
    assert dataset.element_spec == as_always
    seen = set()
    for items, info in (*iter(dataset.take(10)), tf.function(buffer.sample)(8, num_steps)):
        np.testing.assert_array_equal(items["number"], info.ids)
        np.testing.assert_array_equal(items["odd"][..., 1], items["number"] % 2 == 1)
        assert np.all(info.probabilities.numpy() == 0.25)
        seen |= set(np.ravel(items["number"]).tolist())
    assert seen == {5, 6, 7, 8}
    assert buffer.stats().sampled >= 88


# Tiny reservoirs: neither side starves


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("reader", ["sample", "as_dataset"])
def test_tiny_reservoirs_are_read_and_written_without_a_standstill(capacity, reader):
    buffer = ReservoirReplayBuffer(SPEC, capacity, seed=1)
    buffer.add_sequence(frames(0, capacity))
    batches = READERS[reader](buffer)
    next(batches)
    with traffic_in(buffer, 1) as traffic:
        before, num_read = sum(traffic.added), 0
        deadline = time.monotonic() + 300
        # Both get on: the reader has its hundred batches, and the writers some adds meanwhile.
        while num_read < 100 or sum(traffic.added) - before < 20:
            items, _ = next(batches)
            assert count_torn(items) == 0
            num_read += 1
            assert time.monotonic() < deadline, f"a standstill: {num_read} batches, {sum(traffic.added) - before} adds"


# XLA


@pytest.mark.parametrize("num_steps", [None, 1])
def test_jit_compile_of_a_function_that_samples_raises(num_steps):
    """XLA drops the order of reads and would deliver torn rows."""
    buffer, _ = numbers(4, 8)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(lambda: buffer.sample(4, num_steps)[0], jit_compile=True)()
