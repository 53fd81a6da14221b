"""A reservoir on Reverb: every item of the stream stays with the same chance, whoever wrote it.

The table drops the item with the least of independent random priorities, so that the `k` items with the greatest ones
stay: of `n` items each with the chance `k / n`, in any order and from any number of writers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    MinHeap,
    ReplayServer,
    ReverbReplayBuffer,
    ReverbTableGroup,
    TableConfig,
    Uniform,
)

NUMBER = tf.TensorSpec([], tf.int64)
SIZE = 50
PER_WRITER = 100
ROUNDS = 400

RESERVOIR = TableConfig("reservoir", NUMBER, SIZE, Uniform(), MinHeap(), initial="random")

# In each round it writes its items one by one, or with "all" at once.
WRITER = """
import sys, numpy as np, tensorflow as tf, replayfeed.buffers as rf
first, num = int(sys.argv[2]), int(sys.argv[3])
with rf.ReverbReplayBuffer(tf.TensorSpec([], tf.int64), "reservoir", 1, sys.argv[1]) as buffer:
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "all\\n":
            buffer.add_sequence(np.arange(first, first + num)[None])
        else:
            for number in range(first, first + num):
                buffer.add_batch(np.array([number]))
        buffer.flush()
        print("done", flush=True)
"""


@pytest.fixture
def server() -> Iterator[ReplayServer]:
    with ReplayServer([RESERVOIR]) as server:
        yield server


@pytest.fixture
def writers(server: ReplayServer) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes, of which one writes 0 to 99 and the other 100 to 199."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, server.address, str(first), str(PER_WRITER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for first in (0, PER_WRITER)
    ]
    for process in processes:
        expect(process, "ready")
    yield processes
    for process in processes:
        process.communicate()


def expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def held(buffer: ReverbReplayBuffer) -> set[int]:
    """The numbers in the table, drawn until all have come."""
    size = int(buffer.get_table_info().current_size)
    numbers: set[int] = set()
    while len(numbers) < size:
        numbers.update(buffer.sample(500)[0].numpy().tolist())
    return numbers


def test_items_of_two_processes_stay_with_the_same_chance(server, writers):
    """400 rounds of 200 items for 50 places, the two writing side by side, or one after the other.

    Counted in 40 groups of 5 items that follow each other in a stream, 500 expected in each. Items stay without
    replacement, so that chi-square with 39 degrees of freedom is the usual sum times 199 / 150. It is below 97 but once
    in 10^6 times. (A table with a Uniform remover comes to 26,000.)
    """
    counts = np.zeros(2 * PER_WRITER)
    with ReverbReplayBuffer(NUMBER, "reservoir", 1, local_server=server) as buffer:
        for number in range(ROUNDS):
            buffer.clear()
            turns = [writers] if number % 2 else [[writer] for writer in writers]
            for together in turns:
                for writer in together:
                    tell(writer, "all" if number % 4 < 2 else "each")
                for writer in together:
                    expect(writer, "done")
            numbers = held(buffer)
            assert len(numbers) == SIZE
            counts[list(numbers)] += 1
    groups = counts.reshape(40, 5).sum(1)
    assert groups.sum() == ROUNDS * SIZE
    chi_square = ((groups - 500) ** 2 / 500).sum() * (2 * PER_WRITER - 1) / (2 * PER_WRITER - SIZE)
    assert chi_square < 97
    # The first and the last item of each writer as any other one: 100 of 400, within 6 standard deviations of 8.7.
    assert (abs(counts[[0, 99, 100, 199]] - 100) < 52).all()


def test_of_two_items_for_one_place_each_stays_half_the_time():
    """400 rounds: 200 expected, 5 standard deviations of 10."""
    with ReverbReplayBuffer.local(
        NUMBER, max_size=1, sequence_length=1, remover=MinHeap(), initial="random", scannable=False
    ) as buffer:
        counts = np.zeros(2)
        for _ in range(400):
            buffer.clear()
            buffer.add_sequence([[0, 1]])
            counts[int(buffer.sample()[0])] += 1
    assert 150 <= counts[0] <= 250


def test_priorities_of_a_reservoir_are_nobodys_to_set(server):
    with ReverbReplayBuffer(NUMBER, "reservoir", 1, local_server=server) as buffer:
        with pytest.raises(ValueError, match="table 'reservoir' has initial='random'"):
            buffer.add_batch([1], priorities=[2.0])
        buffer.add_batch([1])
        _, info = buffer.sample(1)
        with pytest.raises(ValueError, match="table 'reservoir' has initial='random'"):
            buffer.update_priorities(info.keys, [2.0])
        assert info.weights.numpy().tolist() == [1.0]


def test_a_reservoir_of_windows_beside_a_replay_table_keeps_whole_windows():
    tables = [
        TableConfig("reservoir", NUMBER, 5, remover=MinHeap(), initial="random", sequence_length=2),
        TableConfig("replay", NUMBER, 100),
    ]
    with ReverbTableGroup.local(NUMBER, tables) as group:
        group.add_sequence(np.arange(50)[None])
        rows = group["reservoir"].sample(200, num_steps=2)[0].numpy()
        assert (rows[:, 1] - rows[:, 0] == 1).all()
        assert len(set(rows[:, 0].tolist())) == 5
        assert len(group["replay"]) == 50
