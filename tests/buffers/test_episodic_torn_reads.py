"""Nothing torn comes out of the episodic buffer: rows `(i, i, i, ...)` and runs of them, under writers that never rest.

Tests in which writers are met on purpose have twins without the second look, in which something must be found.
REPLAYFEED_TORN_READS_S is the time that all long cases take together (20 s), shared among them equally.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import EmptyBufferError, EpisodicReplayBuffer, Window
from replayfeed.buffers.episode_pages import EpisodePages
from replayfeed.buffers.episode_sampler import EpisodeSampler
from replayfeed.buffers.storage import FrameStorage

from .traffic import PATIENCE_S, TOTAL_S, Traffic

# Batches that are enough.
MIN_BATCHES = 3

WIDTH = 64
SPEC = {
    "first": tf.TensorSpec([], tf.int64),
    "float": tf.TensorSpec([WIDTH], tf.float64),
    "large": tf.TensorSpec([40, 10], tf.int32),  # over a kilobyte: an array of its own
    "last": tf.TensorSpec([], tf.int64),
}
BATCH = 16


def frames(first: int, num_steps: int) -> Any:
    """Consecutive numbers, leaves `[T, ...]`."""
    number = np.arange(first, first + num_steps)
    return {
        "first": number,
        "float": np.repeat(number[:, None], WIDTH, 1).astype(np.float64),
        "large": np.repeat(number[:, None], 400, 1).reshape(num_steps, 40, 10).astype(np.int32),
        "last": number,
    }


def count_torn(items: Any, info: Any) -> int:
    """Samples with a row whose parts differ, numbers or ids that do not follow each other, or padding that is not 0."""
    mask, number, ids = np.asarray(info.mask), np.asarray(items["first"]), np.asarray(info.ids)
    torn = np.asarray(items["last"]) != number
    torn |= (np.asarray(items["float"]) != number[..., None]).any(-1)
    torn |= (np.asarray(items["large"]) != number[..., None, None]).any((-1, -2))
    torn |= ~mask & (number != 0)
    both = mask[:, 1:] & mask[:, :-1]
    runs = both & ((np.diff(number, axis=1) != 1) | (np.diff(ids, axis=1) != 1))
    return int((torn.any(1) | runs.any(1)).sum())


def traffic_in(buffer: EpisodicReplayBuffer) -> Traffic:
    """Whole episodes of many lengths, and a stream."""
    rngs = [np.random.default_rng(writer) for writer in (0, 1)]

    def add(writer: int, added: int) -> int:
        num_steps = int(rngs[writer].integers(3, 9))
        items = frames(1 + added, num_steps)
        if writer == 0:
            buffer.extend([items])
        else:
            ends = np.arange(num_steps)[None] == num_steps - 1
            buffer.add_sequence(tf.nest.map_structure(lambda leaf: leaf[None], items), end_of_episode=ends)
        return num_steps

    return Traffic(add)


def build() -> EpisodicReplayBuffer:
    buffer = EpisodicReplayBuffer(SPEC, 8, max_frames=50, seed=1)
    for episode in range(12):
        buffer.extend([frames(1 + 7 * episode, 5)])
    return buffer


KINDS = {
    "windows": {"num_steps": 3},
    "padded windows": {"window": Window(4, burn_in=2, short="pad")},
    "episodes first": {"num_steps": 3, "draw": "episodes"},
    "whole episodes": {},
    "by length": {"draw": "length"},
}


def sample_batches(buffer: EpisodicReplayBuffer, arguments: dict[str, Any]) -> Iterator[Any]:
    while True:
        yield buffer.sample(BATCH, **arguments)


def dataset_batches(buffer: EpisodicReplayBuffer, arguments: dict[str, Any]) -> Iterator[Any]:
    return iter(buffer.as_dataset(BATCH, **arguments))


def function_batches(buffer: EpisodicReplayBuffer, arguments: dict[str, Any]) -> Iterator[Any]:
    draw = tf.function(lambda: buffer.sample(BATCH, **arguments))
    while True:
        yield draw()


READERS = {"sample": sample_batches, "as_dataset": dataset_batches, "sample in a tf.function": function_batches}


def read(reader: Callable[..., Iterator[Any]], arguments: dict[str, Any], seconds: float) -> Any:
    """How many samples were read beside two writers, and how many of them were torn.

    They go on for so long, and on a busy machine until the reader has read and both writers have added something.
    """
    buffer = build()
    batches = reader(buffer, arguments)
    next(batches)
    num_read = num_torn = 0
    with traffic_in(buffer) as traffic:
        deadline = time.monotonic() + seconds
        while True:
            has_begun = num_read > MIN_BATCHES * BATCH and min(traffic.added) > 0
            if time.monotonic() >= deadline + (0 if has_begun else PATIENCE_S):
                break
            items, info = next(batches)
            num_read += BATCH
            num_torn += count_torn(items, info)
    assert min(traffic.added) > 0
    return num_read, num_torn


CASES = [(kind, reader) for kind in KINDS for reader in ("sample", "as_dataset")]
CASES += [("windows", "sample in a tf.function"), ("whole episodes", "sample in a tf.function")]


@pytest.mark.parametrize(("kind", "reader"), CASES)
def test_fr_071_writers_and_a_reader_never_see_a_torn_row(kind, reader):
    num_read, num_torn = read(READERS[reader], KINDS[kind], TOTAL_S / len(CASES))
    assert num_read > MIN_BATCHES * BATCH
    assert num_torn == 0, f"{num_torn} of {num_read}"


def switch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second look: private names of the sampler, changed here only."""
    read_numpy, read_graph = EpisodeSampler._read, EpisodeSampler._read_in_graph

    def trusting(self: EpisodeSampler, keys: Any) -> Any:
        return read_numpy(self, keys)._replace(stale=None)

    def trusting_in_graph(self: EpisodeSampler, keys: Any, *arguments: Any, **named: Any) -> Any:
        drawn, stale = read_graph(self, keys, *arguments, **named)
        return drawn, tf.zeros_like(stale)

    monkeypatch.setattr(EpisodeSampler, "_read", trusting)
    monkeypatch.setattr(EpisodeSampler, "_read_in_graph", trusting_in_graph)


# Interleavings made on purpose, in a single thread: the same in every run


def numbers(num_episodes: int, capacity: int = 4) -> tuple[EpisodicReplayBuffer, Callable[[], None]]:
    """Episodes of two numbers `(2 e, 2 e + 1)`, and a function that adds the next."""
    buffer = EpisodicReplayBuffer(tf.TensorSpec([], tf.int64), capacity, max_frames=2 * capacity, seed=1)
    following = iter(range(10**6))

    def add() -> None:
        episode = next(following)
        buffer.extend([np.array([2 * episode, 2 * episode + 1])])

    for _ in range(num_episodes):
        add()
    return buffer, add


# Between the draw and the base, the base and the list of pages, the list and the frames.
BETWEEN = [(EpisodeSampler, "_read"), (EpisodePages, "rows"), (FrameStorage, "gather")]


def add_before(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, add: Callable[[], None], adds: int) -> None:
    """Calls `add` so often before the first call of a method."""
    original, calls = getattr(owner, method), [0]

    def patched(self: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            for _ in range(adds):
                add()
        return original(self, *arguments)

    monkeypatch.setattr(owner, method, patched)


@pytest.mark.parametrize("adds", [1, 3, 4, 9])
@pytest.mark.parametrize("arguments", [{"num_steps": 2}, {}, {"num_steps": 1}], ids=str)
@pytest.mark.parametrize(
    ("owner", "method"), [(EpisodeSampler, "_read"), (EpisodePages, "rows"), (FrameStorage, "gather")]
)
def test_episodes_evicted_after_the_draw_are_drawn_again(monkeypatch, owner, method, arguments, adds):
    buffer, add = numbers(6)
    add_before(monkeypatch, owner, method, add, adds)
    items, info = buffer.sample(50, **arguments)
    monkeypatch.undo()
    held = {value for episode in buffer.episodes() for value in episode.items.tolist()}
    assert set(items.numpy().reshape(-1).tolist()) <= held
    np.testing.assert_array_equal(buffer.get(info.ids), items)


@pytest.mark.parametrize("arguments", [{"num_steps": 2}, {}], ids=str)
def test_without_the_second_look_they_are_delivered(monkeypatch, arguments):
    buffer, add = numbers(6)
    switch_off(monkeypatch)
    add_before(monkeypatch, FrameStorage, "gather", add, 9)
    items, _ = buffer.sample(50, **arguments)
    drawn_from = set(range(4, 12))  # episodes 2 to 5
    assert not set(items.numpy().reshape(-1).tolist()) <= drawn_from


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("arguments", [{"num_steps": 2}, {}, {"window": Window(3, short="pad")}], ids=str)
def test_a_graph_in_which_all_is_evicted_before_each_gather(monkeypatch, arguments, protected):
    """Frame `k` of episode `e` is the number `2 e + k`; without the second look others come under its id."""
    buffer, add = numbers(6)
    original = EpisodeSampler._gather_in_graph

    def add_nine() -> np.ndarray:
        for _ in range(9):
            add()
        return np.array(True)

    def patched(self: EpisodeSampler, rows: tf.Tensor) -> Any:
        with tf.control_dependencies([tf.numpy_function(add_nine, [], tf.bool)]):
            return original(self, tf.identity(rows))

    monkeypatch.setattr(EpisodeSampler, "_gather_in_graph", patched)
    if not protected:
        switch_off(monkeypatch)
    wrong = 0
    for items, info in buffer.as_dataset(8, **arguments).take(10):
        ids, mask = info.ids.numpy(), info.mask.numpy()
        expected = 2 * buffer.episode_ids(ids) + (ids & 2**28 - 1)
        wrong += int((items.numpy()[mask] != expected[mask]).sum())
    assert (wrong == 0) == protected


def test_a_writer_that_is_always_faster_is_stopped_for_the_moment_of_a_gather(monkeypatch):
    """Each read finds all that was drawn evicted, until the sampler takes the writer's lock for the last one."""
    buffer, add = numbers(6)
    original = EpisodeSampler._read

    def patched(self: EpisodeSampler, keys: Any) -> Any:
        if not buffer._lock.locked():
            for _ in range(5):
                add()
        return original(self, keys)

    monkeypatch.setattr(EpisodeSampler, "_read", patched)
    items, info = buffer.sample(10, 2)
    np.testing.assert_array_equal(buffer.get(info.ids), items)


def test_a_list_of_pages_that_moves_between_two_looks_is_noticed(monkeypatch):
    """An open episode outgrows its list, another episode gets the list's place: what was read is read again."""
    buffer = EpisodicReplayBuffer(tf.TensorSpec([], tf.int64), 8, seed=1)
    rows = buffer._pages.page_rows
    buffer.add_sequence(np.arange(rows)[None])
    original, calls = type(buffer._pages).rows, [0]

    def patched(self: Any, bases: Any, ids: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:  # after the base was read, before the list is
            buffer.add_sequence(np.arange(rows, 2 * rows)[None])  # a list of two pages: it moves
            buffer.extend([np.full(rows, -7)])  # takes the place of the list of one
        return original(self, bases, ids)

    sampler = buffer._reader._sampler(Window(2), None)
    keys = sampler._draws.draw(np.random.default_rng(0), 4).keys
    monkeypatch.setattr(type(buffer._pages), "rows", patched)
    assert sampler._read(keys).stale.all()
    read = sampler._read(keys)
    assert read.stale is None
    assert (read.leaves[0] >= 0).all()


def test_a_dataset_over_few_episodes_never_says_that_there_is_nothing():
    buffer, add = numbers(4, capacity=2)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            add()

    writer = threading.Thread(target=write, daemon=True)
    batches = iter(buffer.as_dataset(4, 2))
    next(batches)
    writer.start()
    failed = 0
    try:
        for _ in range(300):
            try:
                items, _ = next(batches)
                np.testing.assert_array_equal(items.numpy()[:, 1], items.numpy()[:, 0] + 1)
                assert (items.numpy()[:, 0] % 2 == 0).all()
            except (EmptyBufferError, tf.errors.InvalidArgumentError):
                failed += 1
    finally:
        stop.set()
        writer.join(60)
    assert failed == 0
