"""Episodes of a table on a server that others write to while it is read: what is known of their ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReverbReplayBuffer
from replayfeed.buffers.held_episodes import held_episodes
from replayfeed.buffers.reverb_scan import TableScanner

NUMBER = tf.TensorSpec([], tf.int64)
LENGTH = 5


def add(buffer: ReverbReplayBuffer, first: int, stop: int) -> None:
    """Frames `first` to `stop` of episodes of five."""
    numbers = np.arange(first, stop)[None]
    buffer.add_sequence(numbers, end_of_episode=numbers % LENGTH == LENGTH - 1)
    buffer.flush()


@pytest.fixture
def meanwhile(monkeypatch) -> Any:
    """`meanwhile(function)`: it is called when a reading has begun, before the table is scanned."""

    def install(function: Any) -> None:
        scan = TableScanner.scan

        def scan_later(self: TableScanner, *arguments: Any) -> Any:
            monkeypatch.undo()
            function()
            return scan(self, *arguments)

        monkeypatch.setattr(TableScanner, "scan", scan_later)

    return install


def read(buffer: ReverbReplayBuffer) -> list[tuple[int, int, bool, bool]]:
    """Of each episode its first and last number, and whether these are known to be its ends."""
    return [(int(one.items[0]), int(one.items[-1]), one.begins, one.ends) for one in held_episodes(buffer)]


def expected(first: int, last: int) -> list[tuple[int, int, bool, bool]]:
    return [(start, start + LENGTH - 1, True, True) for start in range(first, last + 1, LENGTH)]


@pytest.mark.parametrize("others", [False, True], ids=["a table at rest", "others write"])
def test_whole_episodes_are_known_to_be_whole_while_others_write(meanwhile, others):
    """30 frames are there; with 3 more items, of 2 frames, the last 3 + 2 of what is found may have one missing."""
    with (
        ReverbReplayBuffer.local(NUMBER, max_size=1000, sequence_length=2) as writer,
        ReverbReplayBuffer(NUMBER, "replay", 2, server_address=writer.server_address) as reader,
    ):
        add(writer, 0, 30)
        if others:
            meanwhile(lambda: add(writer, 30, 34))
        found = read(reader)
    if not others:
        assert found == [*expected(0, 20), (25, 29, True, False)]
        return
    # 34 frames are found: 29, 30, ... are among the last 5, so that nobody knows whether 29 ends its episode.
    assert found == [*expected(0, 20), (25, 29, True, False), (30, 33, False, False)]


def test_what_left_the_table_meanwhile_ends_nothing(meanwhile):
    """40 items of 2 frames find room, which are those of 10 episodes of 5 frames."""
    with (
        ReverbReplayBuffer.local(NUMBER, max_size=40, sequence_length=2) as writer,
        ReverbReplayBuffer(NUMBER, "replay", 2, server_address=writer.server_address) as reader,
    ):
        add(writer, 0, 50)
        meanwhile(lambda: add(writer, 50, 60))
        found = read(reader)
    # 10 to 59 are held; 8 items came and 8 went: only what has 10 frames before and behind it is sure.
    assert [one[:2] for one in found] == [(start, start + 4) for start in range(10, 60, LENGTH)]
    assert [one[0] for one in found if one[2] and one[3]] == [25, 30, 35, 40]
    for first, last, begins, ends in found:
        assert first % LENGTH == 0 and last % LENGTH == 4
        assert not (begins and first < 20) and not (ends and last > 50)


@pytest.mark.parametrize("window", [1, 2])
def test_where_a_frame_is_in_one_item_only_a_missing_one_is_never_taken_for_an_end(meanwhile, window):
    with (
        ReverbReplayBuffer.local(NUMBER, max_size=1000, sequence_length=window) as writer,
        ReverbReplayBuffer(NUMBER, "replay", window, server_address=writer.server_address) as reader,
    ):
        add(writer, 0, 30)
        meanwhile(lambda: add(writer, 30, 31))
        found = read(reader)
    num_whole = sum(begins and ends for _, _, begins, ends in found)
    assert num_whole == (0 if window == 1 else 5)
