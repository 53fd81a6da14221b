"""What a draw took from a served table is never lost in an error: the next one delivers it."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    Fifo,
    Prioritized,
    Queue,
    ReplayServer,
    ReverbEpisodicReplayBuffer,
    ReverbReplayBuffer,
    SampleToInsertRatio,
    TableConfig,
    WaitTimeoutError,
    table_presets,
)

COUNTER = tf.TensorSpec([], tf.int64)
LATE = (WaitTimeoutError, tf.errors.InvalidArgumentError)


@pytest.fixture
def buffer_of() -> Iterator[Any]:
    """`buffer_of(table, ...)`: a buffer on a server of this table, whose reads give up after a second."""
    made: list[Any] = []

    def make(table: TableConfig, **settings: Any) -> ReverbReplayBuffer:
        made.append(ReplayServer([table]))
        settings = {"timeout_s": 30.0, "rate_limiter_timeout_ms": 1000, **settings}
        made.append(ReverbReplayBuffer(COUNTER, table.name, 1, local_server=made[-1], **settings))
        return made[-1]

    yield make
    for one in reversed(made):
        one.close() if isinstance(one, ReverbReplayBuffer) else one.stop()


def add(buffer: ReverbReplayBuffer, first: int, stop: int) -> None:
    for value in range(first, stop):
        buffer.add_batch(np.array([value]))
    buffer.flush()


def values(row: Any) -> list[int]:
    return row[0].numpy().tolist()


QUEUE = table_presets.queue("queue", COUNTER, 40)


def test_a_next_that_times_out_keeps_its_half_batch_for_the_next_one(buffer_of):
    buffer = buffer_of(QUEUE)
    add(buffer, 0, 7)
    batches = iter(buffer.as_dataset(4))
    assert values(next(batches)) == [0, 1, 2, 3]
    with pytest.raises(LATE, match=r"0 of 1 items \(7 inserts \* 1 - 7 samples = 0, .* gave up after 1 s"):
        next(batches)
    add(buffer, 7, 12)
    assert values(next(batches)) == [4, 5, 6, 7]
    assert values(next(batches)) == [8, 9, 10, 11]
    with pytest.raises(LATE, match="12 inserts"):
        next(batches)
    with pytest.raises(LATE, match="12 inserts"):
        next(batches)
    add(buffer, 12, 16)
    assert values(next(batches)) == [12, 13, 14, 15]


def test_a_dataset_on_a_ratio_delivers_what_it_drew_before_it_timed_out(buffer_of):
    """Each insert allows one draw: of the first four one is left over."""
    table = TableConfig("ratio", COUNTER, 100, rate_limiter=SampleToInsertRatio(1.0, 2, 2.0))
    buffer = buffer_of(table)
    add(buffer, 0, 4)
    batches = iter(buffer.as_dataset(3))
    next(batches)
    with pytest.raises(LATE, match="ratio used up"):
        next(batches)
    add(buffer, 4, 6)
    next(batches)
    assert buffer.stats().sampled == 6


def test_episodes_of_a_queue_survive_a_timeout_too():
    with ReverbEpisodicReplayBuffer.local(
        COUNTER,
        max_size=40,
        max_episode_length=4,
        sampler=Fifo(),
        rate_limiter=Queue(40),
        max_times_sampled=1,
        scannable=False,
        timeout_s=3.0,
    ) as buffer:
        for value in range(3):
            buffer.add_batch([value], end_of_episode=np.array([True]))
        batches = iter(buffer.as_dataset(2))
        assert values(next(batches)) == [[0], [1]]
        with pytest.raises(LATE, match="gave up after 3 s"):
            next(batches)
        buffer.add_batch([3], end_of_episode=np.array([True]))
        assert values(next(batches)) == [[2], [3]]


def test_samples_of_a_ratio_that_time_out_burn_no_draws(buffer_of):
    """Twenty inserts at ratio 2 are ten batches of four, however often it was tried too early."""
    table = TableConfig("ratio", COUNTER, 100, rate_limiter=SampleToInsertRatio(2.0, 2, 4.0))
    buffer = buffer_of(table, timeout_s=10.0, rate_limiter_timeout_ms=10)
    num_batches, told = 0, []
    for value in range(20):
        add(buffer, value, value + 1)
        try:
            buffer.sample(4)
            num_batches += 1
        except WaitTimeoutError as error:
            told.append("2 of 4 rows are kept for the next call" in str(error))
    assert num_batches == 10
    # At the first insert the table has too few items; then every second one comes too early.
    assert told == [False, *[True] * 9]


def test_an_interrupted_sample_keeps_what_it_took(buffer_of):
    """Interrupted while the other three of eight do not come."""
    buffer = buffer_of(QUEUE, rate_limiter_timeout_ms=-1)
    add(buffer, 0, 5)

    def interrupt_when_drawn() -> None:
        while buffer.get_table_info().current_size:
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt_when_drawn)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        buffer.sample(8)
    thread.join()
    # The draw that was interrupted may still be on its way.
    assert values(buffer.sample(5)) == [0, 1, 2, 3, 4]


def test_clear_forgets_what_an_unfinished_draw_took(buffer_of):
    buffer = buffer_of(QUEUE)
    add(buffer, 0, 2)
    with pytest.raises(WaitTimeoutError, match="2 of 3 rows are kept"):
        buffer.sample(3)
    assert buffer.ready(2)
    buffer.clear()
    assert not buffer.ready()
    add(buffer, 5, 6)
    assert values(buffer.sample(1)) == [5]


@pytest.mark.parametrize("owns_server", [True, False])
def test_closing_ends_a_sample_that_waits_in_another_thread(owns_server):
    if owns_server:
        server = None
        buffer = ReverbReplayBuffer.local(COUNTER, max_size=9, sequence_length=1, timeout_s=600.0)
    else:
        server = ReplayServer([QUEUE])
        buffer = ReverbReplayBuffer(COUNTER, "queue", 1, local_server=server, timeout_s=600.0)
    errors: list[BaseException] = []
    is_begun = threading.Event()

    def sample() -> None:
        is_begun.set()
        try:
            buffer.sample(3)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=sample)
    thread.start()
    is_begun.wait()
    buffer.close()
    thread.join(300.0)
    assert not thread.is_alive()
    assert [str(error) for error in errors] == ["this buffer is closed; build a new one."]
    if server is not None:
        server.stop()


def test_a_silent_server_is_given_up_after_the_timeout_that_was_given():
    server = ReplayServer([QUEUE])
    buffer = ReverbReplayBuffer(COUNTER, "queue", 1, server.address, timeout_s=2.0)
    server.stop()
    with pytest.raises(WaitTimeoutError, match="gave up after 2 s"):
        buffer.sample(1)
    buffer.close()


def test_sampling_many_buffers_does_not_look_like_retracing(caplog):
    tables = [TableConfig(f"table{index}", COUNTER, 9) for index in range(8)]
    with ReplayServer(tables) as server, warnings.catch_warnings():
        for table in tables:
            with ReverbReplayBuffer(COUNTER, table.name, 1, local_server=server, timeout_s=10.0) as buffer:
                add(buffer, 0, 2)
                for num in (1, 2, 3):
                    buffer.sample(num)
    assert "retracing" not in caplog.text


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_dataset_that_has_run_long_draws_ahead_what_stats_tell_and_no_more(batch):
    """One item in flight, so that it is the batches that count."""
    with ReverbReplayBuffer.local(
        COUNTER,
        max_size=100,
        sequence_length=1,
        sampler=Prioritized(1.0),
        num_workers_per_iterator=1,
        max_in_flight_samples_per_worker=1,
        timeout_s=20.0,
    ) as buffer:
        add(buffer, 0, 50)
        batches = iter(buffer.as_dataset(batch))
        for num in range(1, 101):
            next(batches)
            if num % 10 == 0:
                stats = buffer.stats()
                assert stats.sampled - num * batch <= stats.priority_age.look_ahead == 1 + 3 * batch


def test_priorities_too_far_apart_to_be_added_up_are_told_once(caplog):
    with ReverbReplayBuffer.local(
        COUNTER, max_size=9, sequence_length=1, sampler=Prioritized(1.0), timeout_s=20.0
    ) as buffer:
        add(buffer, 0, 1)
        keys = buffer.sample(1)[1].keys
        for priority in (1e6, 1e-6):
            buffer.update_priorities(keys, [priority])
        assert "wrong from now on" not in caplog.text
        for priority in (1e7, 1e-6, 1e-6):
            buffer.update_priorities(keys, [priority])
        assert caplog.text.count("odds of the small ones may be wrong from now on") == 1
