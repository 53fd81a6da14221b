"""Checkpoints as clients see them, in this process and in others; servers that are killed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import reverb
import tensorflow as tf

from replayfeed.buffers import (
    ReplayServer,
    ReverbAgentTables,
    ReverbReplayBuffer,
    ReverbTableGroup,
    TableConfig,
    WaitTimeoutError,
)
from replayfeed.buffers.reverb_again import call_again
from replayfeed.buffers.reverb_control import CheckpointReport
from replayfeed.buffers.reverb_link import ServerLink, Watch

COUNTER = tf.TensorSpec([], tf.int64)
TABLE = TableConfig("replay", COUNTER, 20_000, scannable=True)

SERVER = """
import logging, sys, tensorflow as tf, replayfeed.buffers as rf
logging.basicConfig(level=logging.INFO)
table = rf.TableConfig("replay", tf.TensorSpec([], tf.int64), 20_000, scannable=True)
server = rf.ReplayServer([table], int(sys.argv[2]) or None, checkpoint_dir=sys.argv[1])
print(server.port, flush=True)
if sys.argv[3] == "loop":
    while True:
        print(server.checkpoint().path, flush=True)
server.wait()
"""


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """A function that starts a server on `tmp_path` in a process of its own, which ends with the test."""
    processes: list[subprocess.Popen[str]] = []

    def run(port: int = 0, what: str = "wait") -> tuple[subprocess.Popen[str], int]:
        with (tmp_path / "log.txt").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(tmp_path / "checkpoints"), str(port), what],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        processes.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield run
    for process in processes:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_fr_039_a_server_that_is_killed_comes_back_with_its_checkpoint_and_clients_go_on(start, tmp_path, caplog):
    process, port = start()
    old = ReverbReplayBuffer(COUNTER, "replay", 1, f"localhost:{port}", timeout_s=3.0, log_interval_s=1.0)
    old.add_sequence([[1, 2, 3]])
    report = old.checkpoint(step=5)
    assert (report.step, report.items) == (5, {"replay": 3, "replay__scan": 3})
    assert pathlib.Path(report.path).parent == tmp_path / "checkpoints"
    iterator = iter(old.as_dataset(2))
    next(iterator)
    kill(process)
    no_answer = f"server localhost:{port} does not answer; waiting for table 'replay'"
    with pytest.raises(tf.errors.InvalidArgumentError, match=no_answer + "; gave up after 3 s"):
        for _ in range(100_000):
            next(iterator)
    assert no_answer in caplog.text
    with pytest.raises(WaitTimeoutError, match=no_answer):
        old.checkpoint(timeout_s=1.0)
    model = tf.train.Checkpoint(buffer=old)
    model.save(str(tmp_path / "model" / "without"))  # a server that is away does not keep the model from being saved
    start(port)
    log = (tmp_path / "log.txt").read_text()
    assert f"the tables begin with checkpoint {report.path} (step 5): 3 items in table 'replay'" in log
    first = None
    while first is None:  # until its thread has seen that the server answers again
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            first = next(iterator)
    for _ in range(20):
        assert set(next(iterator)[0].numpy().tolist()) <= {1, 2, 3}
    assert "new iterator" not in caplog.text and "still read from the old one" not in caplog.text
    old.add_batch([4])
    with ReverbReplayBuffer(COUNTER, "replay", 1, f"localhost:{port}") as new:
        old.flush()
        assert sorted(new.gather_all().numpy()[0].tolist()) == [1, 2, 3, 4]
        assert new.checkpoint().step == 5, "the server goes on from the step that it was started from"
    old.close()


@pytest.mark.parametrize("knows_server", [False, True])
def test_an_iterator_that_reads_from_a_server_that_is_gone_in_its_own_process_says_so_and_a_new_one_goes_on(
    tmp_path, caplog, knows_server
):
    """Reverb's reader holds on to the tables of a server in its own process, and would wait for ever."""
    server = ReplayServer([TABLE], checkpoint_dir=tmp_path)
    given = {"local_server": server} if knows_server else {"server_address": server.address}
    anew = f"server {server.address} was started anew; iterators of before "
    if knows_server:
        told = f"{anew}still read from the old one, which was in this process; waiting"
        advice = "Make a new iterator of the dataset."
    else:
        told = (
            f"{anew}come to the new one by themselves, some 10 s later, unless the old one was in this process; waiting"
        )
        advice = "Call next again; where the server is in this process, make a new iterator of the dataset."
    with ReverbReplayBuffer(COUNTER, "replay", 1, timeout_s=2.0, log_interval_s=1.0, **given) as buffer:
        buffer.add_sequence([[1, 2, 3]])
        buffer.checkpoint()
        dataset = buffer.as_dataset(2)
        iterator = iter(dataset)
        # That a server is another one is told by how long it has run: the first one must have, for a while.
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            next(iterator)
        server.stop()
        with ReplayServer([TABLE], server.port, checkpoint_dir=tmp_path):
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"{told}; gave up after 2 s. {advice}"):
                for _ in range(100_000):
                    through_broken_connections(lambda: next(iterator))
            assert told in caplog.text
            assert set(through_broken_connections(lambda: next(iter(dataset)))[0].numpy().tolist()) <= {1, 2, 3}
            assert int(buffer.sample()[0]) in {1, 2, 3}


def through_broken_connections(call: Callable[[], Any]) -> Any:
    """`call()`, again where Reverb was about to use a connection that the old server had left."""
    while True:
        with contextlib.suppress(tf.errors.UnavailableError):
            return call()


def test_a_kill_at_any_moment_of_a_checkpoint_leaves_the_last_complete_one(start, tmp_path):
    """FR-033."""
    rng = np.random.default_rng(3)
    folder = tmp_path / "checkpoints"
    with ReplayServer([TABLE], checkpoint_dir=folder) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_sequence([list(range(10_000))])
            buffer.flush()
        last = server.checkpoint().path
    for _ in range(2):
        process, _ = start(what="loop")
        assert process.stdout is not None
        for _ in range(int(rng.integers(1, 3))):
            last = process.stdout.readline().strip()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=float(rng.uniform(0.0, 0.3)))
        kill(process)
    with ReplayServer([TABLE], checkpoint_dir=folder) as server:
        assert server.started_from is not None
        assert os.path.basename(server.started_from.path) >= os.path.basename(last)
        assert server.started_from.items == {"replay": 10_000, "replay__scan": 10_000}
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            assert buffer.gather_all().numpy().tolist() == [list(range(10_000))]


def test_what_a_kill_can_leave_at_each_step_of_completing_a_checkpoint_is_recognised(tmp_path, monkeypatch):
    """The steps of our own part, cut short one after the other."""
    folder = tmp_path / "checkpoints"
    with ReplayServer([TABLE], checkpoint_dir=folder) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            buffer.add_sequence([[1, 2, 3]])
            buffer.flush()
        server.checkpoint()
    for function in ("link", "fsync", "replace", "rename", "unlink", "rmdir"):
        for time_of_it in (1, 2, 3):
            cut_short(monkeypatch, function, time_of_it, lambda: take_one(folder))
            with ReplayServer([TABLE], checkpoint_dir=folder) as server:
                assert server.started_from is not None
                assert server.started_from.items == {"replay": 3, "replay__scan": 3}


class Cut(BaseException):
    """The process ends here."""


def cut_short(monkeypatch: pytest.MonkeyPatch, name: str, time_of_it: int, call: Callable[[], object]) -> None:
    """Calls `call`, which ends when it calls a function of `os` for that time."""
    real, num_calls = getattr(os, name), 0

    def counted(*arguments, **named):
        nonlocal num_calls
        if threading.current_thread() is threading.main_thread():
            num_calls += 1
            if num_calls == time_of_it:
                raise Cut
        elif num_calls >= time_of_it:
            # The server's thread would complete what was cut short, where it gets to look before the server stops.
            raise OSError("the process has ended")
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, name, counted)
        try:
            call()
        except Cut:
            pass


def take_one(folder: pathlib.Path) -> None:
    server = ReplayServer([TABLE], checkpoint_dir=folder)
    try:
        server.checkpoint()
    finally:
        server.stop()


def test_a_client_gets_the_servers_answer_and_the_step_goes_with_it(tmp_path):
    with ReplayServer([TABLE], checkpoint_dir=tmp_path) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, server.address) as buffer:
            buffer.add_batch([1])
            first = buffer.checkpoint(7)
            assert (first.step, first.items["replay"]) == (7, 1)
            buffer.mark_step(9)
            assert buffer.checkpoint().step == 9
            assert server.checkpoint().step == 9
            assert buffer.checkpoint(0).step == 0
            with pytest.raises(ValueError, match="step must be 0 to 2"):
                buffer.mark_step(-1)
        # Reverb's own call, as others' scripts make it: the server looks after that one as well.
        path = reverb.Client(server.address).checkpoint()
        server.checkpoint()
        assert os.path.basename(path) in {one.name for one in tmp_path.iterdir()}


def test_whoever_asks_while_another_one_is_written_gets_one_of_his_own_step(tmp_path):
    with ReplayServer([TABLE], checkpoint_dir=tmp_path, keep_last=None, checkpoint_every_s=0.1) as server:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(ReverbReplayBuffer(COUNTER, "replay", 1, server.address)) for _ in range(3)]
            clients[0].add_sequence([list(range(5_000))])
            clients[0].flush()

            def ask(number: int) -> list[CheckpointReport]:
                if number == len(clients):
                    return [server.checkpoint(3_000 + n) for n in range(3)]
                return [clients[number].checkpoint(1_000 * number + n, timeout_s=60.0) for n in range(3)]

            with concurrent.futures.ThreadPoolExecutor() as pool:
                reports = list(pool.map(ask, range(4)))
    for number, of_one in enumerate(reports):
        assert [report.step for report in of_one] == [1_000 * number + n for n in range(3)]
        for report in of_one:
            assert report.items == {"replay": 5_000, "replay__scan": 5_000} and report.seconds > 0
            assert (pathlib.Path(report.path) / "DONE").exists()


def test_a_failure_is_told_to_the_client_who_asked_and_one_that_was_given_up_is_not(tmp_path, monkeypatch):
    with ReplayServer([TABLE], checkpoint_dir=tmp_path) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, server.address) as buffer:
            real, begun, given_up, num_calls = reverb.Client.checkpoint, threading.Event(), threading.Event(), 0

            def slow_then_full(client: reverb.Client) -> str:
                nonlocal num_calls
                num_calls += 1
                if num_calls == 1:
                    begun.set()
                    given_up.wait(300.0)
                if num_calls == 3:
                    raise RuntimeError("the disk is full")
                return str(real(client))

            monkeypatch.setattr(reverb.Client, "checkpoint", slow_then_full)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                impatient = pool.submit(server.checkpoint, 1, timeout_s=0.3)
                assert begun.wait(300.0)
                patient = pool.submit(buffer.checkpoint, 2, timeout_s=60.0)
                with pytest.raises(WaitTimeoutError, match="gave up after 0.3 s"):
                    impatient.result()
                given_up.set()
                assert patient.result().step == 2
            with pytest.raises(RuntimeError, match="could not complete a checkpoint: RuntimeError: the disk is full"):
                buffer.checkpoint(3)
            assert buffer.checkpoint(3).step == 3


def test_a_checkpoint_that_reverbs_own_call_deletes_is_taken_anew(tmp_path, monkeypatch, caplog):
    with ReplayServer([TABLE], checkpoint_dir=tmp_path) as server:
        real, other, num_calls = reverb.Client.checkpoint, reverb.Client(server.address), 0

        def and_another(client: reverb.Client) -> str:
            nonlocal num_calls
            num_calls += 1
            path = real(client)
            if num_calls == 1:
                real(other)  # deletes it
            return str(path)

        monkeypatch.setattr(reverb.Client, "checkpoint", and_another)
        report = server.checkpoint(4)
        assert (report.step, num_calls) == (4, 2)
        assert "somebody has asked Reverb itself for one, which deleted it; it is taken anew" in caplog.text
        assert len([one for one in tmp_path.iterdir() if (one / "DONE").exists()]) == 2  # the other's, too


def test_a_client_that_gets_no_checkpoint_gives_up_in_its_own_time(tmp_path):
    server = ReplayServer([TABLE], checkpoint_dir=tmp_path)
    buffer = ReverbReplayBuffer(COUNTER, "replay", 1, server.address, timeout_s=60.0)
    server.stop()
    with pytest.raises(WaitTimeoutError, match="does not answer; waiting for table 'replay'; gave up after 0.3 s"):
        buffer.checkpoint(timeout_s=0.3)
    buffer.close()


def test_a_call_that_may_be_made_twice_is_made_again_until_the_server_is_back(tmp_path):
    """A connection that breaks in the middle of an update is a RuntimeError of Reverb's, which names neither."""
    server = ReplayServer([TABLE], checkpoint_dir=tmp_path)
    link, hasty = (ServerLink(server.address, "replay", timeout_s=s, log_interval_s=1.0) for s in (60.0, 0.5))
    results: list[Any] = [RuntimeError("Connection reset by peer"), RuntimeError("Socket closed"), 7]

    def call() -> int:
        result = results.pop(0)
        if isinstance(result, RuntimeError):
            raise result
        return int(result)

    assert call_again(link, Watch(link), call, "an update") == 7
    results = [RuntimeError(f"table is gone {n}") for n in range(4)]
    with pytest.raises(RuntimeError, match="table is gone 2"):
        call_again(link, Watch(link), call, "an update")
    server.stop()
    results = [RuntimeError("Connection reset by peer")] * 1_000
    with pytest.raises(WaitTimeoutError, match="does not answer; waiting for table 'replay'; gave up after 0.5 s"):
        call_again(hasty, Watch(hasty), call, "an update")
    for one in (link, hasty):
        one.end_waits()


def test_groups_and_agents_ask_for_checkpoints(tmp_path):
    tables = [TableConfig(name, COUNTER, 10, scannable=True) for name in ("a", "b")]
    with ReverbTableGroup.local(COUNTER, tables, checkpoint_dir=tmp_path / "group") as group:
        group.add_batch([5])
        group.mark_step(3)
        assert group.checkpoint().items == {"a": 1, "a__scan": 1, "b": 1, "b__scan": 1}
        assert group["a"].checkpoint().step == 3
    with ReverbTableGroup.local(COUNTER, tables, checkpoint_dir=tmp_path / "group") as group:
        assert group["b"].gather_all().numpy().tolist() == [[5]]

    def agents() -> ReverbAgentTables:
        config = TableConfig("p", COUNTER, 10, scannable=True)
        return ReverbAgentTables.local(
            {"x": COUNTER, "y": COUNTER},
            {"x": "p", "y": "p"},
            independent={"p": config},
            checkpoint_dir=tmp_path / "agents",
        )

    with agents() as made:
        made.add_batch({"x": np.array([1]), "y": np.array([2])})
        assert made.checkpoint(4).items == {"p": 2, "p__scan": 2}
    with agents() as made:
        assert len(made.of_policy("p")) == 2
        made.add_batch({"x": np.array([3]), "y": np.array([4])})
        made.flush()
        frames = [items for items, _ in made.of_policy("p").as_dataset(single_deterministic_pass=True)]
        assert len(frames) == 4


def test_a_buffer_with_its_own_server_begins_with_what_it_held(tmp_path):
    def local(**settings) -> ReverbReplayBuffer:
        return ReverbReplayBuffer.local(
            COUNTER, sequence_length=1, checkpoint_dir=tmp_path, **{"max_size": 10, **settings}
        )

    with local() as buffer:
        buffer.add_sequence([[1, 2, 3]])
        buffer.checkpoint()
    with pytest.raises(ValueError, match="table 'replay': max_size: stored 10, asked for 2"):
        local(max_size=2)
    with local(max_size=2, on_mismatch="override") as buffer:
        assert buffer.gather_all().numpy().tolist() == [[2, 3]]


def test_what_is_served_is_not_saved_by_its_client():
    with ReverbReplayBuffer.local(COUNTER, max_size=10, sequence_length=1) as buffer:
        for call in (
            lambda: buffer.save("x"),
            lambda: buffer.restore("x"),
            buffer.get_state,
            lambda: buffer.set_state({}),
        ):
            with pytest.raises(
                ValueError, match=r"start it with ReplayServer\(\.\.\., checkpoint_dir=\.\.\.\), and call"
            ):
                call()
        with pytest.raises(ValueError, match="this server keeps no checkpoints"):
            buffer.checkpoint()
        with pytest.raises(ValueError, match="keeps no checkpoints, which could have a step"):
            buffer.mark_step(1)


def test_a_models_checkpoint_tells_which_one_of_the_server_it_goes_with(tmp_path, caplog):
    folder = tmp_path / "server"
    with ReplayServer([TABLE], checkpoint_dir=folder) as server:
        with ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as buffer:
            model = tf.train.Checkpoint(buffer=buffer, number=tf.Variable(3))
            model.save(str(tmp_path / "none"))
            assert "of which no checkpoint is known: call checkpoint() before" in caplog.text
            buffer.add_batch([1])
            first = buffer.checkpoint(10)
            path = model.save(str(tmp_path / "model"))
            caplog.clear()
            model.restore(path).assert_consumed()
            assert f"saved with checkpoint {first.path} (step 10)" in caplog.text
            assert f"began empty, and has taken {first.path} (step 10) since" in caplog.text
    for expected in (None, "with .* \\(step 20\\): what is drawn is older or newer than the model"):
        with ReplayServer([TABLE], checkpoint_dir=folder) as server:
            with ReverbReplayBuffer(COUNTER, "replay", 1, server.address) as buffer:
                model = tf.train.Checkpoint(buffer=buffer, number=tf.Variable(0))
                caplog.clear()
                caplog.set_level(logging.WARNING)
                model.restore(path).assert_consumed()
                assert int(model.number) == 3
                told = [
                    record.getMessage() for record in caplog.records if "the model was saved" in record.getMessage()
                ]
                assert bool(told) == (expected is not None)
                assert expected is None or re.search(expected, told[0])
                buffer.checkpoint(20)
                if expected is None:
                    model.restore(path).assert_consumed()
                    assert "began with it and has gone on" in caplog.text
    with ReverbReplayBuffer.local(COUNTER, max_size=10, sequence_length=1) as buffer:
        with pytest.raises(ValueError, match="this is not what a served buffer has saved"):
            buffer.deserialize(b"\x00\x01")
        with pytest.raises(ValueError, match="but 'other'"):
            buffer.deserialize(b'{"kind": "other"}')
