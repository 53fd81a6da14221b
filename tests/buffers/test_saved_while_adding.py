"""A save is one moment of its buffer, whatever other threads do meanwhile; and nobody waits for ever.

Frame `i` of stream `b` holds `i * B + b`, which is its id, in three fields of different kinds of memory: what is torn,
of another moment, or missing shows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import TFPrioritizedReplayBuffer, TFUniformReplayBuffer
from replayfeed.buffers.fields import Field
from replayfeed.buffers.frame_snapshot import FrameSnapshot
from replayfeed.buffers.storage import FrameStorage

STREAMS, LENGTH = 3, 400
SPEC = {"id": tf.TensorSpec([], tf.int64), "large": tf.TensorSpec([300], tf.int64), "low": tf.TensorSpec([2], tf.uint8)}
TIMEOUT_S = 60.0


def frames(ids: Any) -> Any:
    """Leaves that follow from the ids, of whatever shape these have."""
    ids = np.asarray(ids)
    return {
        "id": ids,
        "large": np.repeat(ids[..., None], 300, -1),
        "low": np.stack([ids % 251, ids % 13], -1).astype(np.uint8),
    }


def build(make: Any, *, part: bool = False) -> Any:
    buffer = make(SPEC, STREAMS, LENGTH, seed=0)
    if part:
        buffer.let_streams_part()
    return buffer


class Steps:
    """Adds the next frames of all streams, one or some at a time. One thread does it: the ids are those that come."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.time = 0

    def add(self, rng: np.random.Generator) -> None:
        num = int(rng.integers(1, 30))
        ids = (self.time + np.arange(num)) * STREAMS + np.arange(STREAMS)[:, None]
        if num == 1:
            self._buffer.add_batch(frames(ids[:, 0]))
        else:
            self._buffer.add_sequence(frames(ids))
        self.time += num


class Adders:
    """Threads that go on until they are told to stop, and what went wrong in them."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, work: Callable[[np.random.Generator], None]) -> None:
        """Calls `work` again and again."""
        rng = np.random.default_rng(len(self._threads))

        def run() -> None:
            try:
                while not self._stop.is_set():
                    work(rng)
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.errors == []


@contextlib.contextmanager
def adders() -> Iterator[Adders]:
    threads = Adders()
    try:
        yield threads
    finally:
        threads.stop()


def check_moment(buffer: Any) -> None:
    """What is held is the newest frames of each stream, whole, and what the counters say."""
    held, stats = buffer.gather_all(), buffer.stats()
    ids = held["id"].numpy()
    expected = frames(ids)
    np.testing.assert_array_equal(held["large"], expected["large"])
    np.testing.assert_array_equal(held["low"], expected["low"])
    assert stats.frames == ids.size == min(stats.added, STREAMS * LENGTH)
    np.testing.assert_array_equal(ids.T.reshape(-1), np.arange(stats.added - ids.size, stats.added))
    assert stats.added % STREAMS == 0


@pytest.mark.parametrize("make", [TFUniformReplayBuffer, TFPrioritizedReplayBuffer])
def test_each_save_is_one_moment_while_another_thread_adds(make, tmp_path):
    buffer = build(make)

    def draw(rng: np.random.Generator) -> None:
        if len(buffer):
            _, info = buffer.sample(8)
            buffer.update_priorities(info.keys, rng.random(8) + 0.1)

    with adders() as threads:
        threads.start(Steps(buffer).add)
        threads.start(draw)
        added = -1
        for number in range(12):
            report = buffer.save(tmp_path, step=number, keep_last=2)
            other = build(make)
            if number % 4 == 3:
                other.set_state(buffer.get_state())
            else:
                other.restore(report.path)
                assert other.stats().frames == report.frames
            check_moment(other)
            assert other.stats().added >= added
            added = other.stats().added
    check_moment(buffer)


def test_each_save_is_one_moment_where_streams_go_apart(tmp_path):
    """Each of three threads adds to a stream of its own; of each the newest frames are there, without a gap."""
    buffer = build(TFUniformReplayBuffer, part=True)
    times = [0] * STREAMS

    def add(stream: int, rng: np.random.Generator) -> None:
        num = int(rng.integers(1, 20))
        ids = (times[stream] + np.arange(num)) * STREAMS + stream
        buffer.add_sequence(frames(ids[None]), streams=[stream])
        times[stream] += num

    with adders() as threads:
        for stream in range(STREAMS):
            threads.start(lambda rng, stream=stream: add(stream, rng))
        for number in range(8):
            other = build(TFUniformReplayBuffer, part=True)
            other.restore(buffer.save(tmp_path, step=number).path)
            held = other.gather_all()
            total = 0
            for stream, ids in enumerate(held["id"]):
                values = ids.numpy()
                expected = frames(values)
                np.testing.assert_array_equal(held["large"][stream], expected["large"])
                np.testing.assert_array_equal(held["low"][stream], expected["low"])
                if len(values):
                    newest = int(values[-1])
                    times_held = min(newest // STREAMS + 1, LENGTH)
                    np.testing.assert_array_equal(values, newest - STREAMS * np.arange(times_held)[::-1])
                    total += newest // STREAMS + 1
            assert other.stats().added == total


def test_deletes_and_clears_beside_a_save_are_in_it_wholly_or_not_at_all(tmp_path):
    buffer = build(TFUniformReplayBuffer)
    steps = Steps(buffer)

    def change(rng: np.random.Generator) -> None:
        steps.add(rng)
        if rng.random() < 0.2:
            # All streams of one step: none or all of them are deleted in a save.
            newest = steps.time - 1 - int(rng.integers(0, 5))
            buffer.delete(np.maximum(newest, 0) * STREAMS + np.arange(STREAMS))

    with adders() as threads:
        threads.start(change)
        for number in range(8):
            other = build(TFUniformReplayBuffer)
            other.restore(buffer.save(tmp_path, step=number).path)
            check_moment(other)
            ids = other.gather_all()["id"].numpy()
            told = [[is_told(other, each) for each in stream] for stream in ids.tolist()]
            assert told[0] == told[1] == told[2]


def is_told(buffer: Any, each: int) -> bool:
    try:
        buffer.get([each])
    except ValueError:
        return False
    return True


def test_saves_from_two_threads_follow_each_other(tmp_path):
    """Each of them is whole, and none has the other's number."""
    buffer = build(TFUniformReplayBuffer)
    reports: list[Any] = []
    with adders() as threads:
        threads.start(Steps(buffer).add)
        savers = [
            threading.Thread(target=lambda: reports.extend(buffer.save(tmp_path) for _ in range(5))) for _ in range(2)
        ]
        for saver in savers:
            saver.start()
        for saver in savers:
            saver.join(TIMEOUT_S)
    assert sorted(report.step for report in reports) == list(range(10))
    for report in reports:
        other = build(TFUniformReplayBuffer)
        other.restore(report.path)
        check_moment(other)


def test_a_save_that_fails_midway_lets_adders_go_on(tmp_path):
    """Something is wrong with the disk once frames are written: here an iterator's file that is none."""
    buffer = build(TFUniformReplayBuffer)
    with adders() as threads:
        threads.start(Steps(buffer).add)
        for number in range(4):
            with pytest.raises((TypeError, ValueError)):
                buffer.save(tmp_path, step=number, iterators={"mine": iter([1, 2])})
        assert list(Path(tmp_path).iterdir()) == []
        report = buffer.save(tmp_path, step=9)
        other = build(TFUniformReplayBuffer)
        other.restore(tmp_path)
        check_moment(other)
    assert os.listdir(tmp_path) == [os.path.basename(report.path)]


def test_a_buffer_that_is_closed_while_it_is_saved_leaves_no_save_that_is_wrong(tmp_path):
    """Either all of it was read before, or there is no save."""
    for number in range(6):
        buffer = build(TFUniformReplayBuffer)
        buffer.add_sequence(frames(np.arange(STREAMS * LENGTH).reshape(LENGTH, STREAMS).T))
        closer = threading.Thread(target=buffer.close)
        closer.start()
        try:
            path = buffer.save(tmp_path / str(number)).path
        except Exception as error:
            assert isinstance(error, ValueError), error
            continue
        finally:
            closer.join(TIMEOUT_S)
        other = build(TFUniformReplayBuffer)
        other.restore(path)
        check_moment(other)


# The snapshot by itself, at its limit: 4 MiB of copies.

FIELDS = [Field("a", (1_000_000,), tf.uint8), Field("b", (), tf.int64)]


def storage_of(num_rows: int) -> FrameStorage:
    """Row `i` holds `i`, and a megabyte of it."""
    storage = FrameStorage(FIELDS, num_rows)
    for row in range(num_rows):
        write(storage, row, row)
    return storage


def write(storage: FrameStorage, row: int, value: int) -> None:
    storage.write(slice(row, row + 1), [np.full((1, 1_000_000), value, np.uint8), np.array([value])])


def values_of(leaves: Any) -> list[int]:
    """What rows hold; that all of a row is of one write."""
    values = leaves[1].view(np.int64).ravel()
    assert (leaves[0] == values[:, None].astype(np.uint8)).all()
    return values.tolist()


def test_a_snapshot_gives_rows_as_they_were_in_any_order():
    storage = storage_of(8)
    with FrameSnapshot(storage, [slice(1, 4), np.array([5, 7])]) as snapshot:
        write(storage, 2, 102)
        write(storage, 2, 202)
        write(storage, 6, 106)
        assert values_of(snapshot.take(np.array([7, 2]))) == [7, 2]
        # Taken: written without a copy.
        write(storage, 7, 107)
        write(storage, 5, 105)
        assert values_of(snapshot.take(slice(1, 2))) == [1]
        assert values_of(snapshot.take(slice(3, 4))) == [3]
        assert values_of(snapshot.take(np.array([5]))) == [5]
    assert values_of(storage.copy_raw(slice(0, 8))) == [0, 1, 202, 3, 4, 105, 106, 107]


def waiting_writer(storage: FrameStorage, rows: range) -> tuple[threading.Thread, list[int]]:
    """Overwrites rows, one after the other; the list tells which are done."""
    done: list[int] = []

    def run() -> None:
        for row in rows:
            write(storage, row, 100 + row)
            done.append(row)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, done


def test_a_writer_waits_at_the_limit_of_copies_until_rows_are_taken():
    """4 MiB are 4 rows and a bit: the writer copies 5, and waits before the 6th."""
    storage = storage_of(12)
    snapshot = FrameSnapshot(storage, [slice(0, 12)])
    thread, done = waiting_writer(storage, range(12))
    taken: list[int] = []
    # A writer that waits is in the middle of what it does: only the reader can end that.
    for row in range(12):
        taken += values_of(snapshot.take(slice(row, row + 1)))
        assert len(done) <= row + 1 + 6
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert taken == list(range(12))
    snapshot.close()
    assert values_of(storage.copy_raw(slice(0, 12))) == [100 + row for row in range(12)]


class Told(logging.Handler):
    """Waits for a line on the log."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.happened = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.happened.set()


def test_a_writer_that_waits_says_so_and_goes_on_when_the_snapshot_is_closed():
    storage = storage_of(12)
    snapshot = FrameSnapshot(storage, [slice(0, 12)])
    logger, told = logging.getLogger("replayfeed"), Told("an add waits for a save that is under way")
    logger.addHandler(told)
    try:
        thread, done = waiting_writer(storage, range(12))
        assert told.happened.wait(TIMEOUT_S)
    finally:
        logger.removeHandler(told)
    assert thread.is_alive()
    assert done == list(range(4))
    snapshot.close()
    thread.join(TIMEOUT_S)
    assert done == list(range(12))


def test_a_writer_that_waits_goes_on_when_rows_are_not_wanted_any_more():
    storage = storage_of(12)
    with FrameSnapshot(storage, [slice(0, 12)]) as snapshot:
        thread, done = waiting_writer(storage, range(12))
        snapshot.skip(slice(0, 11))
        thread.join(TIMEOUT_S)
        assert done == list(range(12))
        assert values_of(snapshot.take(slice(11, 12))) == [11]


def test_a_save_beside_adds_beyond_the_limit_of_copies_is_one_moment(tmp_path):
    """20 MB, of which copies may take 4 MiB: adds that overwrite all of it wait for the save, and both end."""
    spec = {"id": tf.TensorSpec([], tf.int64), "pixels": tf.TensorSpec([100_000], tf.uint8)}

    def items(first: int) -> Any:
        ids = first + np.arange(50)
        return {"id": ids[None], "pixels": np.repeat(ids[:, None] % 251, 100_000, 1).astype(np.uint8)[None]}

    buffer, other = (TFUniformReplayBuffer(spec, 1, 200) for _ in range(2))
    for first in range(0, 200, 50):
        buffer.add_sequence(items(first))
    next_id = [200]

    def add(rng: np.random.Generator) -> None:
        buffer.add_sequence(items(next_id[0]))
        next_id[0] += 50

    with adders() as threads:
        threads.start(add)
        for number in range(3):
            other.restore(buffer.save(tmp_path, step=number, keep_last=1).path)
            held = other.gather_all()
            ids = held["id"].numpy()[0]
            np.testing.assert_array_equal(ids, np.arange(ids[-1] - 199, ids[-1] + 1))
            np.testing.assert_array_equal(held["pixels"][0], np.repeat(ids[:, None] % 251, 100_000, 1))
            assert other.stats().added == ids[-1] + 1


def test_iterators_are_saved_while_adds_wait_at_the_limit_of_copies(tmp_path):
    """Draws of this dataset, in Python since the delete, need the lock that an add holds which waits for the save."""
    spec = {"id": tf.TensorSpec([], tf.int64), "pixels": tf.TensorSpec([100_000], tf.uint8)}
    buffer = TFUniformReplayBuffer(spec, 1, 200, seed=0)
    next_id = [0]

    def add(rng: np.random.Generator) -> None:
        ids = next_id[0] + np.arange(50)
        pixels = np.repeat(ids[:, None] % 251, 100_000, 1).astype(np.uint8)
        buffer.add_sequence({"id": ids[None], "pixels": pixels[None]})
        next_id[0] += 50

    for _ in range(4):
        add(np.random.default_rng(0))
    buffer.delete([3])
    iterator = iter(buffer.as_dataset(32))
    with adders() as threads:
        threads.start(add)
        for number in range(5):
            for _ in range(4):
                items, _ = next(iterator)
                np.testing.assert_array_equal(items["pixels"][:, 7], items["id"] % 251)
            assert buffer.save(tmp_path, step=number, keep_last=1, iterators={"mine": iterator}).seconds < TIMEOUT_S
