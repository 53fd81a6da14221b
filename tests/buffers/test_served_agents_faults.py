"""A writer of many agents that is killed or interrupted leaves whole items, and frames of one life side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import tensorflow as tf

from replayfeed.buffers import ReplayServer, ReverbReplayBuffer, TableConfig, agent_tables

from .wolves_and_sheep import AGENTS, frames_in, joint_items, local, moments, own, write

WRITER = """
import sys
import numpy as np, tensorflow as tf
from replayfeed.buffers import ReverbAgentTables
spec = tf.TensorSpec([], tf.int64)
c = int(sys.argv[2])
tables = ReverbAgentTables(
    {"a": spec, "b": spec}, lambda agent: agent, independent={"a": "a", "b": "b"}, lockstep="moments",
    server_address=sys.argv[1], max_pending_items=8,
)
with tables:
    for t in range(600):
        present = ["a"] + (["b"] if t % 3 else [])
        tables.write_moment(
            {agent: [np.array([1000 * c + t])] for agent in present}, {agent: np.array([0]) for agent in present},
            np.array([t]), codes=np.array([[1, int("b" in present)]], np.uint8),
        )
        if t == 300:
            tables.flush()
            print("ready", flush=True)
            if c == 1:
                sys.stdin.read()  # until it is killed
"""


def test_a_killed_writer_leaves_whole_items_and_another_goes_on():
    spec = tf.TensorSpec([], tf.int64)
    declared = agent_tables(
        {"a": spec, "b": spec},
        lambda agent: agent,
        independent={name: TableConfig(name, spec, 5000, sequence_length=2, scannable=True) for name in ("a", "b")},
        lockstep=TableConfig("moments", spec, 5000, sequence_length=3, scannable=True),
    )
    with ReplayServer(declared) as server:
        writers = []
        try:
            for c in (1, 2):
                writers.append(
                    subprocess.Popen(
                        [sys.executable, "-c", WRITER, server.address, str(c)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        text=True,
                    )
                )
                assert writers[-1].stdout is not None
                assert writers[-1].stdout.readline().strip() == "ready"
            os.kill(writers[0].pid, signal.SIGKILL)
            assert writers[1].wait(timeout=400) == 0
        finally:
            for writer in writers:
                if writer.poll() is None:
                    os.kill(writer.pid, signal.SIGKILL)
                writer.communicate()
        found = {}
        for table, length in (("a", 2), ("b", 2), ("moments", 3)):
            config = next(each for each in declared if each.name == table)
            with ReverbReplayBuffer(config.data_spec, table, length, local_server=server) as buffer:
                rows = buffer.as_dataset(500, window=None, num_steps=length, epochs=1)
                found[table] = [items for items, _ in rows]
    pairs = np.concatenate([items.frame.numpy() for items in found["a"]])
    assert sorted(pairs[:, 0].tolist()) == [*range(1000, 1300), *range(2000, 2599)]
    np.testing.assert_array_equal(pairs[:, 1], pairs[:, 0] + 1)
    pairs = np.concatenate([items.frame.numpy() for items in found["b"]])
    np.testing.assert_array_equal(pairs[:, 1] - pairs[:, 0], np.where(pairs[:, 0] % 1000 % 3 == 1, 1, 2))
    times = np.concatenate([items.time.numpy() for items in found["moments"]])
    assert sorted(times[:, 0].tolist()) == sorted([*range(299), *range(598)])
    codes = np.concatenate([items.codes.numpy() for items in found["moments"]])
    frames = np.concatenate([items.frames["b"].numpy() for items in found["moments"]])
    np.testing.assert_array_equal(codes[..., 1], times % 3 > 0)
    np.testing.assert_array_equal(np.where(codes[..., 1], frames % 1000, 0), np.where(times % 3 > 0, times, 0))


def test_an_interrupt_at_any_line_joins_no_frames_and_leaves_absent_agents_alone(interrupted_at):
    """wolf_0 and the sheep are interrupted; wolf_1, who has no turn then, has every pair."""
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=2)) as tables:
        write(tables, 0, {agent: {0: 0} for agent in AGENTS})
        line, t, going = 0, 1, True
        while going:
            line += 1
            present = {"wolf_0": {0: t}, "sheep": {0: t}}
            going = interrupted_at(line, lambda t=t, present=present: write(tables, t, present))
            for _ in range(2):
                t += 1
                write(tables, t, {agent: {0: t} for agent in AGENTS})
            t += 1
        pairs = [[frame[0] for frame in item] for item in frames_in(tables["wolf"], 2) if item[0][2] == 0]
        assert all(second == first + 1 for first, second in pairs)
        sheep = [[frame[0] for frame in item] for item in frames_in(tables["sheep"], 2)]
        assert all(second == first + 1 for first, second in sheep)
        other = [[frame[0] for frame in item] for item in frames_in(tables["wolf"], 2) if item[0][2] == 1]
        wanted = [0, *(n for first in range(1, t, 3) for n in (first + 1, first + 2))]
        assert other == [list(pair) for pair in zip(wanted[:-1], wanted[1:], strict=True)]
        assert {(first, first + 1) for first in range(2, t, 3)} <= {tuple(pair) for pair in pairs}
        for first, second in joint_items(tables["moments"], 2):
            assert second["wolf_0"] == first["wolf_0"] + 1
