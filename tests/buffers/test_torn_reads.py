"""Nothing torn is ever delivered: rows `(i, i, i, ...)` and runs of windows, under writers that never rest.

Each test that finds nothing has a twin in which the protection is switched off and something
must be found: without it the test would prove nothing. REPLAYFEED_TORN_READS_S is the time
that all long cases take together (20 s), shared among them equally.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    EmptyBufferError,
    ReplayBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
    ring_sampler,
)
from replayfeed.buffers.ring_sampler import RingSampler
from replayfeed.buffers.ring_starts import WindowStarts

from .traffic import PATIENCE_S, TOTAL_S, UNPROTECTED_S, Traffic

# Batches of each reader that are enough.
MIN_BATCHES = 10

# Fields of several dtypes and sizes, so that a frame lies in several records; each holds the frame's number.
WIDTH = 64
SPEC = {
    "first": tf.TensorSpec([], tf.int64),
    "float": tf.TensorSpec([WIDTH], tf.float64),
    "large": tf.TensorSpec([40, 10], tf.int32),  # over a kilobyte: an array of its own
    "last": tf.TensorSpec([], tf.int64),
    "writer": tf.TensorSpec([], tf.int32),
}


def frames(writer: int, first: int, num_streams: int, num_steps: int) -> Any:
    """Leaves `[B, T, ...]`: consecutive numbers of one writer, the same for all streams."""
    number = np.broadcast_to(np.arange(first, first + num_steps), (num_streams, num_steps))
    return {
        "first": number.copy(),
        "float": np.repeat(number[..., None], WIDTH, -1).astype(np.float64),
        "large": np.repeat(number[..., None], 400, -1).reshape(num_streams, num_steps, 40, 10).astype(np.int32),
        "last": number.copy(),
        "writer": np.full((num_streams, num_steps), writer, np.int32),
    }


def count_torn(items: Any, info: Any) -> int:
    """Rows whose parts differ, and windows `[n, T]` whose real frames do not follow each other."""
    number = np.asarray(items["first"])
    torn = np.asarray(items["last"]) != number
    torn |= (np.asarray(items["float"]) != number[..., None]).any(-1)
    torn |= (np.asarray(items["large"]) != number[..., None, None]).any((-1, -2))
    if number.ndim == 1:
        return int(torn.sum())
    ids, writer, mask = np.asarray(info.ids), np.asarray(items["writer"]), np.asarray(info.mask)
    both = mask[:, 1:] & mask[:, :-1]
    mixed = (both & (np.diff(writer, axis=1) != 0)).any(1)
    mixed |= (both & (np.diff(number, axis=1) != 1)).any(1)
    steps = np.diff(ids, axis=1)
    mixed |= (both & (steps != steps[both][0])).any(1) if both.any() else False
    return int((torn.any(1) | mixed).sum())


def count_cut(items: Any, info: Any, window: Window, episode: int) -> int:
    """Padded windows that show less or more than their episode of so many frames has from the drawn frame on."""
    left = episode - np.asarray(items["first"])[:, window.burn_in] % episode
    shown = np.asarray(info.mask)[:, window.burn_in :].sum(1)
    return int((shown != np.minimum(left, window.num_steps)).sum())


@dataclasses.dataclass(frozen=True)
class Ring:
    """A ring and how it is written: `num_steps` frames a stream in each add, each add an episode of its own."""

    num_streams: int
    max_length: int
    steps_an_add: int
    window: Window | None
    sample_batch_size: int
    kind: type[TFUniformReplayBuffer] | type[TFPrioritizedReplayBuffer] = TFUniformReplayBuffer
    # Each stream is written by itself, by turns of different length.
    apart: bool = False

    def build(self) -> ReplayBuffer:
        buffer = self.kind(SPEC, self.num_streams, self.max_length, seed=1)
        if self.apart:
            buffer.let_streams_part()
        while len(buffer) < buffer.capacity:
            self.add(buffer, 0, 0)
        return buffer

    def add(self, buffer: ReplayBuffer, writer: int, first: int) -> None:
        ends = np.zeros((self.num_streams, self.steps_an_add), bool)
        ends[:, -1] = True
        if self.apart:
            for b in range(self.num_streams):
                for _ in range(1 + (first // self.steps_an_add + b) % 3):
                    ids = buffer.add_sequence(
                        frames(writer, first, 1, self.steps_an_add), end_of_episode=ends[:1], streams=[b]
                    )
        else:
            ids = buffer.add_sequence(frames(writer, first, self.num_streams, self.steps_an_add), end_of_episode=ends)
        if self.kind is TFPrioritizedReplayBuffer:
            # Priorities of old and new frames, over many exponents, 0 among them.
            keys = np.concatenate([ids.reshape(-1), ids.reshape(-1) - buffer.capacity // 2])
            buffer.update_priorities(keys, 2.0 ** (keys % 13) * (keys % 5 > 0))


RINGS = {
    "small": Ring(1, 32, 1, None, 16),
    "small, windows": Ring(2, 18, 6, Window(3), 16),
    "small, padded": Ring(2, 18, 6, Window(4, burn_in=2, short="pad"), 16),
    "large": Ring(1, 4096, 64, None, 256),
    "large, windows": Ring(2, 1024, 64, Window(3), 128),
    "small, apart": Ring(2, 18, 6, Window(3), 16, apart=True),
    "apart, padded": Ring(3, 18, 6, Window(4, burn_in=2, short="pad"), 16, apart=True),
    "apart, prioritized": Ring(3, 18, 6, Window(4, burn_in=2, short="pad"), 16, TFPrioritizedReplayBuffer, apart=True),
    "prioritized": Ring(1, 32, 1, None, 16, TFPrioritizedReplayBuffer),
    "prioritized, windows": Ring(2, 18, 6, Window(3), 16, TFPrioritizedReplayBuffer),
    "prioritized, padded": Ring(2, 18, 6, Window(4, burn_in=2, short="pad"), 16, TFPrioritizedReplayBuffer),
    "prioritized, large": Ring(2, 1024, 64, Window(3), 128, TFPrioritizedReplayBuffer),
}


def sample_batches(buffer: ReplayBuffer, ring: Ring) -> Iterator[Any]:
    while True:
        yield buffer.sample(ring.sample_batch_size, window=ring.window)


def dataset_batches(buffer: ReplayBuffer, ring: Ring) -> Iterator[Any]:
    return iter(buffer.as_dataset(ring.sample_batch_size, window=ring.window))


def function_batches(buffer: ReplayBuffer, ring: Ring) -> Iterator[Any]:
    draw = tf.function(lambda: buffer.sample(ring.sample_batch_size, window=ring.window))
    while True:
        yield draw()


READERS = {"sample": sample_batches, "as_dataset": dataset_batches, "sample in a tf.function": function_batches}


def traffic_in(buffer: ReplayBuffer, ring: Ring) -> Traffic:
    def add(writer: int, added: int) -> int:
        ring.add(buffer, writer, added)
        return ring.steps_an_add

    return Traffic(add)


def read(
    buffer: ReplayBuffer,
    ring: Ring,
    reader: Callable[[ReplayBuffer, Ring], Iterator[Any]],
    seconds: float,
    *,
    until_torn: bool = False,
) -> tuple[int, int]:
    """Two readers beside two writers: how many rows were read, and how many of them were torn.

    They go on for so long, and on a busy machine until both readers have read and both writers have added something.
    """
    read_rows, torn_rows = [0, 0], [0, 0]
    errors: list[BaseException] = []
    # Building a dataset takes long; the clock starts with the first batch of both.
    ready = threading.Barrier(2)

    def run(index: int) -> None:
        try:
            batches = reader(buffer, ring)
            next(batches)
            ready.wait(120)
            deadline = time.monotonic() + seconds
            while not (until_torn and any(torn_rows)):
                has_begun = read_rows[index] > MIN_BATCHES * ring.sample_batch_size and min(traffic.added) > 0
                if time.monotonic() >= deadline + (0 if has_begun or until_torn else PATIENCE_S):
                    break
                items, info = next(batches)
                read_rows[index] += ring.sample_batch_size
                torn_rows[index] += count_torn(items, info)
                if ring.window is not None and ring.window.short == "pad":
                    torn_rows[index] += count_cut(items, info, ring.window, ring.steps_an_add)
        except BaseException as error:
            ready.abort()
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in (0, 1)]
    with traffic_in(buffer, ring) as traffic:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + PATIENCE_S + 240)
        assert until_torn or min(traffic.added) > 0
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)
    return sum(read_rows), sum(torn_rows)


CASES = [(name, reader) for name in RINGS for reader in ("sample", "as_dataset")]
CASES += [("small", "sample in a tf.function"), ("small, windows", "sample in a tf.function")]


@pytest.mark.parametrize(("name", "reader"), CASES)
def test_fr_071_two_writers_and_two_readers_never_see_a_torn_row(name, reader):
    ring = RINGS[name]
    rows, torn = read(ring.build(), ring, READERS[reader], TOTAL_S / len(CASES))
    assert rows > 2 * MIN_BATCHES * ring.sample_batch_size
    assert torn == 0, f"{torn} of {rows}"


@pytest.mark.parametrize(("name", "reader"), [case for case in CASES if case[0].startswith("small")])
def test_without_the_protection_the_same_readers_find_torn_rows(monkeypatch, name, reader):
    """The readers never look at `reserved` again: private names of the sampler, changed here only."""
    monkeypatch.setattr(RingSampler, "_stale", lambda self, keys, mask: None)
    monkeypatch.setattr(RingSampler, "_stale_in_graph", lambda self, keys, *_: tf.zeros_like(keys, tf.bool))
    ring = RINGS[name]
    _, torn = read(ring.build(), ring, READERS[reader], UNPROTECTED_S, until_torn=True)
    assert torn > 0


# Interleavings made on purpose, one after the other in a single thread: the same in every run


def add_between(
    monkeypatch: pytest.MonkeyPatch, kind: type, method: str, add: Callable[[], None], times: int
) -> list[int]:
    """Calls `add` before each of the first calls of a private method of `kind`; counts the calls."""
    original = getattr(kind, method)
    calls = [0]

    def patched(self: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] <= times:
            add()
        return original(self, *arguments)

    monkeypatch.setattr(kind, method, patched)
    return calls


def numbers(max_length: int, num: int) -> tuple[ReplayBuffer, Callable[[], None]]:
    """A ring of numbers 0, 1, 2, ..., each odd one an episode's end, and a function that adds the next."""
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, max_length, seed=1)
    following = iter(range(10**9))

    def add() -> None:
        number = next(following)
        buffer.add_batch(np.array([number]), end_of_episode=np.array([number % 2 == 1]))

    for _ in range(num):
        add()
    return buffer, add


def test_frames_overwritten_between_draw_and_gather_are_drawn_again(monkeypatch):
    buffer, add = numbers(4, 8)
    add_between(monkeypatch, RingSampler, "_read", lambda: [add(), add()], times=1)
    items, info = buffer.sample(50, 1)
    np.testing.assert_array_equal(items, info.ids)
    assert set(np.asarray(items)[:, 0].tolist()) <= {6, 7, 8, 9}


def test_a_writer_that_is_always_faster_is_stopped_for_the_moment_of_a_gather(monkeypatch):
    """Each gather finds all its frames overwritten, until the sampler takes the writer's lock for the last one."""
    buffer, add = numbers(4, 8)
    overwritten = ring_sampler._ROUNDS_BEFORE_LOCK + 1
    calls = add_between(monkeypatch, RingSampler, "_read", lambda: [add() for _ in range(5)], times=overwritten)
    items, info = buffer.sample(10, 1)
    np.testing.assert_array_equal(items, info.ids)
    assert calls[0] == overwritten + 1


@pytest.mark.parametrize("adds", [1, 2, 3, 4, 5])
def test_a_window_that_moves_while_it_is_looked_for_is_found_again(monkeypatch, adds):
    """Three frames always hold a whole episode of two: `sample` may never say that there is none."""
    for filled in (6, 7, 8):
        buffer, add = numbers(3, filled)
        with monkeypatch.context() as patch:
            add_between(patch, WindowStarts, "_starting", lambda add=add: [add() for _ in range(adds)], times=1)
            items, _ = buffer.sample(8, 2)
        np.testing.assert_array_equal(np.asarray(items)[:, 0] % 2, 0)


@pytest.mark.parametrize("adds", [1, 2, 3, 4, 5])
def test_a_window_that_moves_while_a_dataset_looks_for_it_is_found_again(monkeypatch, adds):
    original = WindowStarts._list_in_graph
    buffer, add = numbers(3, 6)
    left = [adds]

    def add_left() -> np.ndarray:
        while left[0] > 0:  # two draws at a time may both take the last one
            left[0] -= 1
            add()
        return np.array(True)

    def patched(self: WindowStarts, *arguments: Any) -> tf.Tensor:
        with tf.control_dependencies([tf.numpy_function(add_left, [], tf.bool)]):
            return original(self, *arguments)

    monkeypatch.setattr(WindowStarts, "_list_in_graph", patched)
    batches = iter(buffer.as_dataset(8, 2))
    for _ in range(3):
        items, _ = next(batches)
        np.testing.assert_array_equal(np.asarray(items)[:, 0] % 2, 0)
        for _ in range(8):  # what was drawn ahead
            next(batches)
        add()
        left[0] = adds


# Tiny rings: neither side starves


@pytest.mark.parametrize(("num_streams", "max_length"), [(1, 1), (1, 2), (1, 3), (64, 1)])
@pytest.mark.parametrize("reader", ["sample", "as_dataset"])
def test_tiny_rings_are_read_and_written_without_a_standstill(num_streams, max_length, reader):
    ring = Ring(num_streams, max_length, 1, None, 4)
    buffer = ring.build()
    batches = READERS[reader](buffer, ring)
    next(batches)
    with traffic_in(buffer, ring) as traffic:
        before, num_read = sum(traffic.added), 0
        deadline = time.monotonic() + 300
        # Both get on: the readers have their hundred batches, and the writers some adds meanwhile.
        while num_read < 100 or sum(traffic.added) - before < 20:
            items, info = next(batches)
            assert count_torn(items, np.asarray(info.ids)) == 0
            num_read += 1
            assert time.monotonic() < deadline, f"a standstill: {num_read} batches, {sum(traffic.added) - before} adds"


def test_a_dataset_over_three_frames_never_says_that_nothing_is_eligible():
    """Episodes of two in a ring of three: whatever the writer does, one window of two is whole."""
    buffer, add = numbers(3, 6)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            add()

    writer = threading.Thread(target=write, daemon=True)
    batches = iter(buffer.as_dataset(4, 2))
    next(batches)
    failed = 0
    writer.start()
    try:
        for _ in range(1000):
            try:
                items, _ = next(batches)
                np.testing.assert_array_equal(np.asarray(items)[:, 1], np.asarray(items)[:, 0] + 1)
            except (EmptyBufferError, tf.errors.InvalidArgumentError):
                failed += 1
    finally:
        stop.set()
        writer.join(60)
    assert failed == 0


def test_adds_and_samples_both_go_on_beside_each_other():
    """Neither waits for the other's pauses; how much rate each keeps is a benchmark's question."""
    ring = Ring(1, 4096, 64, None, 64)
    buffer = ring.build()
    ring.add(buffer, 0, 0)
    num_sampled = 0
    stop = threading.Event()

    def sample() -> None:
        nonlocal num_sampled
        while not stop.is_set():
            buffer.sample(64)
            num_sampled += 1

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    deadline = time.monotonic() + 300
    num_added = 1
    while num_added < 1000 or num_sampled < 100:
        ring.add(buffer, 0, num_added)
        num_added += 1
        assert time.monotonic() < deadline, f"a standstill: {num_added} adds, {num_sampled} samples"
    stop.set()
    sampler.join(60)
    assert not sampler.is_alive()
