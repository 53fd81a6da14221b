"""Writes that wait too long, or are interrupted: no stream is left broken, and the caller learns what was written."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
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
    ReverbReplayBuffer,
    ReverbTableGroup,
    TableConfig,
    WaitTimeoutError,
)

SPEC = {"x": tf.TensorSpec([], tf.int64), "is_last": tf.TensorSpec([], tf.bool)}

# Small tables: the greatest priority is asked for at each item.
SERVER = """
import tensorflow as tf, replayfeed.buffers as rf
spec = {"x": tf.TensorSpec([], tf.int64), "is_last": tf.TensorSpec([], tf.bool)}
best = rf.Prioritized(0.6)
server = rf.ReplayServer([
    rf.TableConfig("replay", spec, 100, best, initial="max", sequence_length=2, scannable=True),
    rf.TableConfig("padded", spec, 100, best, initial="max", sequence_length=2, scannable=True, short="pad"),
    rf.TableConfig("uniform", spec, 100, sequence_length=2, scannable=True),
])
print(server.address, flush=True)
server.wait()
"""


class Server:
    """A server in another process, which can be stopped and goes on."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


def step(t: int, batch_size: int = 1, last: bool = False) -> dict[str, Any]:
    """Frame `t` of stream `b` holds `1000 * b + t`."""
    return {"x": 1000 * np.arange(batch_size) + t, "is_last": np.full(batch_size, last)}


def windows_of(buffer: Any, num_steps: int = 2) -> list[list[int]]:
    """All items of a table that can be scanned, in order."""
    elements = buffer.as_dataset(100, window=None, num_steps=num_steps, epochs=1)
    return sorted(row for items, _ in elements for row in items["x"].numpy().tolist())


def drain(buffer: Any, num_steps: int = 2) -> list[list[int]]:
    """What a queue gives until nothing is left."""
    rows: list[list[int]] = []
    while buffer.ready():
        rows += buffer.sample(1, num_steps=num_steps)[0]["x"].numpy().tolist()
    return rows


def test_an_episode_that_ends_while_the_server_is_silent_keeps_its_last_window_and_joins_nothing(server):
    with ReverbReplayBuffer(SPEC, "replay", 2, server.address, timeout_s=2.0) as buffer:
        buffer.clear()
        for t in range(8):
            if t == 4:
                buffer.flush()
                with server.stopped():
                    with pytest.raises(WaitTimeoutError, match="gave up after 2 s") as caught:
                        buffer.add_batch(step(t, last=True))
                    assert caught.value.num_written == 1
                    with pytest.raises(WaitTimeoutError, match="not confirmed by the server"):
                        buffer.flush()
            else:
                buffer.add_batch(step(t))
        assert windows_of(buffer) == [[0, 1], [1, 2], [2, 3], [3, 4], [5, 6], [6, 7]]


@pytest.mark.parametrize("chunk", [None, 16])
def test_a_silent_server_costs_no_stream_and_no_table_a_frame(server, chunk):
    names = ["replay", "uniform"]
    with ReverbTableGroup(SPEC, names, server.address, batch_size=2, timeout_s=2.0, max_chunk_length=chunk) as group:
        group.clear()
        for t in range(6):
            if t in (3, 4):
                with server.stopped(), pytest.raises(WaitTimeoutError):
                    group.add_batch(step(t, 2, last=t == 4))
            else:
                group.add_batch(step(t, 2))
        group.add_batch(step(6, 2))
        whole = [[0, 1], [1, 2], [2, 3], [3, 4], [5, 6], [1000, 1001], [1001, 1002], [1002, 1003], [1003, 1004]]
        for name in names:
            assert windows_of(group[name]) == [*whole, [1005, 1006]]


def test_a_stream_that_is_ended_while_the_server_is_silent_has_ended(server):
    with ReverbReplayBuffer(SPEC, "padded", 2, server.address, timeout_s=2.0, batch_size=2) as buffer:
        buffer.clear()
        for t in range(2):
            buffer.add_batch(step(t, 2))
        buffer.flush()
        with server.stopped(), pytest.raises(WaitTimeoutError):
            buffer.end_stream()
        for t in range(2, 4):
            buffer.add_batch(step(t, 2))
        buffer.end_stream()
        elements = buffer.as_dataset(100, window=None, num_steps=2, epochs=1)
        rows = [
            [int(x) for x, is_real in zip(xs, real, strict=True) if is_real]
            for items, info in elements
            for xs, real in zip(items["x"].numpy(), info.mask.numpy(), strict=True)
        ]
    assert sorted(rows) == [[0, 1], [1], [2, 3], [3], [1000, 1001], [1001], [1002, 1003], [1003]]


class Interrupt(logging.Filter):
    """Interrupts at the first line on a log: a wait writes it."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted_waits() -> Iterator[None]:
    logger, interrupt = logging.getLogger("replayfeed.buffers.reverb_link"), Interrupt()
    logger.addFilter(interrupt)
    try:
        yield
    finally:
        logger.removeFilter(interrupt)


@pytest.mark.parametrize("chunk", [None, 8])
def test_an_interrupt_while_a_limiter_holds_items_back_costs_no_stream_a_frame(chunk):
    table = TableConfig("queue", SPEC, 8, Fifo(), Fifo(), Queue(8), 1, sequence_length=2)
    with (
        ReplayServer([table]) as server,
        ReverbReplayBuffer(
            SPEC,
            "queue",
            2,
            local_server=server,
            batch_size=2,
            max_pending_items=5,
            max_chunk_length=chunk,
            log_interval_s=0.2,
        ) as buffer,
    ):
        t = 0
        with interrupted_waits(), pytest.raises(KeyboardInterrupt):
            for t in range(20):
                buffer.add_batch(step(t, 2))
        rows = drain(buffer)
        for later in range(t + 1, t + 4):
            buffer.add_batch(step(later, 2))
            rows += drain(buffer)
    assert t < 19
    assert sorted(rows) == [[x, x + 1] for first in (0, 1000) for x in range(first, first + t + 3)]


def test_an_interrupt_at_any_line_of_a_write_joins_no_frames_and_costs_only_what_it_cuts(caplog, interrupted_at):
    tables = [
        TableConfig("queue", SPEC, 5000, Fifo(), Fifo(), Queue(5000), 1, sequence_length=2),
        TableConfig("replay", SPEC, 5000, Prioritized(0.6), initial="max", sequence_length=3, scannable=True),
    ]
    with ReverbTableGroup.local(SPEC, tables, batch_size=2, timeout_s=30.0) as group:
        whole, t, line = [], 0, 0
        going = True
        while going:
            line += 1
            is_last = line % 2 == 1
            going = interrupted_at(line, lambda t=t, is_last=is_last: group.add_batch(step(t, 2, is_last)))
            for later in (t + 1, t + 2):
                group.add_batch(step(later, 2))
            whole += [[x + t + 1, x + t + 2] for x in (0, 1000)]
            # More than 1,000 frames would not tell streams apart.
            t += 3
            if t > 900:
                group.end_stream()
                t = 0
        group.flush()
        pairs = []
        while group["queue"].ready(1):
            items, _ = group["queue"].sample(1, num_steps=2)
            pairs += list(zip(items["x"].numpy().tolist(), items["is_last"].numpy().tolist(), strict=True))
        elements = group["replay"].as_dataset(100, window=None, num_steps=3, epochs=1)
        triples = [
            (xs, flags)
            for items, _ in elements
            for xs, flags in zip(items["x"].numpy().tolist(), items["is_last"].numpy().tolist(), strict=True)
        ]
    assert line > 50
    assert all(xs[1] == xs[0] + 1 and not flags[0] for xs, flags in pairs)
    assert all(xs == [xs[0], xs[0] + 1, xs[0] + 2] and flags[:2] == [False, False] for xs, flags in triples)
    found = [xs for xs, _ in pairs]
    assert [pair for pair in whole if found.count(pair) < whole.count(pair)] == []
    assert "a write was interrupted; no item goes over it" in caplog.text


def test_a_sequence_that_is_late_tells_how_much_is_written_and_can_go_on():
    table = TableConfig("queue", SPEC, 4, Fifo(), Fifo(), Queue(4), 1, sequence_length=2)
    with (
        ReplayServer([table]) as server,
        ReverbReplayBuffer(SPEC, "queue", 2, local_server=server, timeout_s=1.0, max_pending_items=3) as buffer,
    ):
        frames = {"x": np.arange(30)[None], "is_last": np.zeros([1, 30], bool)}
        rows, begin = [], 0
        with pytest.raises(
            WaitTimeoutError, match=r"gave up after 1 s\. 8 of 30 frames of each stream are written: go"
        ):
            buffer.add_sequence(frames)
        begin = 8
        rows += drain(buffer)
        while begin < 30:
            try:
                buffer.add_sequence({name: values[:, begin:] for name, values in frames.items()})
                begin = 30
            except WaitTimeoutError as error:
                assert error.num_written is not None and error.num_written > 0
                begin += error.num_written
            rows += drain(buffer)
    assert rows == [[x, x + 1] for x in range(29)]


def test_an_interrupted_sequence_is_not_joined_to_what_comes_next(caplog):
    table = TableConfig("queue", SPEC, 4, Fifo(), Fifo(), Queue(4), 1, sequence_length=2)
    with (
        ReplayServer([table]) as server,
        ReverbReplayBuffer(SPEC, "queue", 2, local_server=server, max_pending_items=3, log_interval_s=0.2) as buffer,
    ):
        with interrupted_waits(), pytest.raises(KeyboardInterrupt):
            buffer.add_sequence({"x": np.arange(30)[None], "is_last": np.zeros([1, 30], bool)})
        rows = drain(buffer)
        buffer.add_sequence({"x": np.arange(30, 33)[None], "is_last": np.zeros([1, 3], bool)})
        rows += drain(buffer)
    assert rows == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [30, 31], [31, 32]]
    assert caplog.text.count("the next frame of each stream begins an episode") == 1


@pytest.mark.parametrize("beside", ["replay__scan", "replay__max", "replay__min"])
def test_tables_beside_a_table_cannot_be_opened_and_are_not_offered(beside):
    table = TableConfig("replay", SPEC, 10, Prioritized(), initial="max", tracks_least=True, scannable=True)
    with ReplayServer([table]) as server:
        with pytest.raises(ValueError, match=f"table '{beside}' at .* is kept beside table 'replay'.*: open 'replay'"):
            ReverbReplayBuffer(SPEC, beside, 1, local_server=server)
        with pytest.raises(ValueError, match=r"there is no table 'nope' at localhost:\d+; it has replay\.$"):
            ReverbReplayBuffer(SPEC, "nope", 1, local_server=server)
        with pytest.raises(ValueError, match=r"there is no table 'replay__max' at localhost:\d+; it has replay\.$"):
            ReverbTableGroup(SPEC, ["replay", "replay__max"], local_server=server)


def test_items_that_a_killed_writer_had_not_sent_to_the_mirrors_come_there_with_an_update():
    table = TableConfig("replay", SPEC, 100, Prioritized(1.0), initial="max")
    with ReplayServer([table]) as server, ReverbReplayBuffer(SPEC, "replay", 1, local_server=server) as buffer:
        client = buffer.py_client
        for t in range(3):
            buffer.add_batch(step(t))
        buffer.flush()
        client.reset("replay__max")  # as if their writer had been killed in between
        for t in range(3, 5):
            buffer.add_batch(step(t))
        items, info = buffer.sample(200)
        keys = dict(zip(items["x"].numpy().tolist(), info.keys.numpy().tolist(), strict=True))
        give_up = time.monotonic() + 60.0
        while client.server_info()["replay__max"].current_size == 2 and time.monotonic() < give_up:
            buffer.update_priorities([keys[t] for t in range(5)], [50.0, 2.0, 3.0, 1.0, 1.0])
        assert client.server_info()["replay__max"].current_size == 5
        buffer.add_batch(step(5))
        buffer.flush()
        items, info = buffer.sample(200)
        odds = dict(zip(items["x"].numpy().tolist(), info.probabilities.numpy().tolist(), strict=True))
    assert odds[0] == odds[5] == pytest.approx(50 / 107)
