"""What happens to readers and writers when something dies, blocks or never comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReplayServer, ReverbReplayBuffer, TableConfig, WaitTimeoutError

COUNTER = tf.TensorSpec([], tf.int64)

SERVER = """
import sys, tensorflow as tf, replayfeed.buffers as rf
table = rf.TableConfig("replay", tf.TensorSpec([], tf.int64), 1000, sequence_length=2, scannable=True)
server = rf.ReplayServer([table], port=int(sys.argv[1]) or None)
print(server.port, flush=True)
server.wait()
"""

# Episodes of 5 frames; frame t of episode e of collector c holds 10000 * c + 10 * e + t.
COLLECTOR = """
import itertools, sys
import numpy as np, tensorflow as tf, replayfeed.buffers as rf
c = int(sys.argv[2])
with rf.ReverbReplayBuffer(tf.TensorSpec([], tf.int64), "replay", 2, sys.argv[1], max_pending_items=8) as buffer:
    for e in range(900):
        for t in range(5):
            buffer.add_batch(np.array([10000 * c + 10 * e + t]), end_of_episode=np.array([t == 4]))
            if e == 20 and t == 2:
                buffer.flush()
                print("ready", flush=True)
                if c == 1:
                    sys.stdin.read()  # in mid-episode, until it is killed
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture
def empty() -> Iterator[ReverbReplayBuffer]:
    with ReverbReplayBuffer.local(
        COUNTER,
        max_size=100,
        sequence_length=1,
        min_size_to_sample=5,
        timeout_s=3.0,
        log_interval_s=0.4,
    ) as buffer:
        buffer.add_sequence(np.array([[1, 2]]))
        yield buffer


def waiting_lines(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("table 'replay': 2 of 5 items; waiting")


@pytest.mark.parametrize("in_graph", [False, True])
def test_sample_tells_what_it_waits_for_and_then_raises(empty, caplog, in_graph):
    """FR-031."""
    draw = tf.function(lambda: empty.sample(3)) if in_graph else lambda: empty.sample(3)
    kind = tf.errors.InvalidArgumentError if in_graph else WaitTimeoutError
    with pytest.raises(kind, match=r"table 'replay': 2 of 5 items; waiting; gave up after 3 s"):
        draw()
    assert waiting_lines(caplog) >= 2


@pytest.mark.parametrize("in_graph", [False, True])
def test_next_tells_what_it_waits_for_and_then_raises_and_never_just_ends(empty, caplog, in_graph):
    """R9."""
    iterator = iter(empty.as_dataset(3))
    draw = tf.function(lambda: next(iterator)) if in_graph else lambda: next(iterator)
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 'replay': 2 of 5 items; waiting; gave up"):
            draw()
    assert waiting_lines(caplog) >= 2


def test_next_goes_on_when_another_thread_brings_what_is_missing(empty):
    iterator = iter(empty.as_dataset(3))

    def add() -> None:
        empty.add_sequence(np.array([[3, 4, 5]]))
        empty.flush()

    adder = threading.Timer(0.3, add)
    adder.start()
    assert next(iterator)[0].shape == (3,)
    adder.join()


def test_rate_limiter_timeout_ms_bounds_a_read():
    with ReplayServer([TableConfig("replay", COUNTER, 10)]) as server:
        buffer = ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server, rate_limiter_timeout_ms=100)
        with buffer, pytest.raises(WaitTimeoutError, match="gave up after 0.1 s"):
            buffer.sample(1)


def test_clear_while_an_iterator_lives_makes_it_wait_and_go_on(empty):
    empty.add_sequence(np.arange(10)[None])
    iterator = iter(empty.as_dataset(3))
    next(iterator)
    empty.clear()
    empty.add_sequence(np.full([1, 10], 7))
    empty.flush()
    for _ in range(300):
        newest = next(iterator)[0].numpy().tolist()
    assert newest == [7, 7, 7]


def test_a_closed_buffer_ends_its_iterators_in_an_error():
    buffer = ReverbReplayBuffer.local(COUNTER, max_size=10, sequence_length=1, timeout_s=30.0)
    buffer.add_batch(np.array([1]))
    iterator = iter(buffer.as_dataset(2))
    next(iterator)
    buffer.close()
    with pytest.raises(tf.errors.InvalidArgumentError, match="this buffer is closed; build a new one"):
        for _ in range(100_000):
            next(iterator)
    for call in (lambda: buffer.sample(2), lambda: buffer.add_batch(np.array([1])), lambda: buffer.as_dataset(2)):
        with pytest.raises(ValueError, match="this buffer is closed; build a new one"):
            call()


def test_no_server_at_all_is_an_error_in_time():
    with pytest.raises(
        WaitTimeoutError, match="server localhost:1 does not answer; waiting for table 'replay'; gave up"
    ):
        ReverbReplayBuffer(COUNTER, "replay", 1, "localhost:1", timeout_s=1.0)


def test_a_killed_server_is_told_and_everything_ends_in_time(caplog):
    """FR-039."""
    process = start(SERVER, "0")
    try:
        address = f"localhost:{first_line(process)}"
        buffer = ReverbReplayBuffer(COUNTER, "replay", 2, address, timeout_s=3.0, log_interval_s=1.0)
        buffer.add_sequence(np.arange(50)[None])
        iterator = iter(buffer.as_dataset(8, 2))
        next(iterator)
        kill(process)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="does not answer; waiting for table 'replay'; gave up"
        ):
            for _ in range(100_000):
                next(iterator)
        assert f"server {address} does not answer" in caplog.text
        with pytest.raises(WaitTimeoutError, match="does not answer"):
            buffer.sample(4, 2)
        buffer.add_sequence(np.arange(3)[None])
        with pytest.raises(WaitTimeoutError, match=r"up to \d+ items are not confirmed by the server"):
            buffer.flush()
        with pytest.raises(WaitTimeoutError):
            buffer.close()
    finally:
        kill(process)


def test_a_killed_collector_leaves_whole_items_and_the_others_go_on():
    table = TableConfig("replay", COUNTER, 20_000, sequence_length=2, scannable=True)
    with ReplayServer([table]) as server:
        collectors = [start(COLLECTOR, server.address, str(c)) for c in (1, 2)]
        try:
            assert first_line(collectors[0]) == "ready"
            kill(collectors[0])
            assert first_line(collectors[1]) == "ready"
            assert collectors[1].wait(timeout=400) == 0
        finally:
            for collector in collectors:
                kill(collector)
        with ReverbReplayBuffer(COUNTER, "replay", 2, local_server=server) as buffer:
            passes = buffer.as_dataset(1000, window=None, num_steps=2, epochs=1)
            windows = np.concatenate([items.numpy() for items, _ in passes])
    np.testing.assert_array_equal(windows[:, 1], windows[:, 0] + 1)  # no item joins episodes or collectors
    firsts = sorted(windows[:, 0].tolist())
    assert [value for value in firsts if value >= 20_000] == [20_000 + 10 * e + t for e in range(900) for t in range(4)]
    assert [value for value in firsts if value < 20_000][-2:] == [10_200, 10_201]
