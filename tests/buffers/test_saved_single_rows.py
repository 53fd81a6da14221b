"""What is saved is a copy, also of a single row, whose fields are contiguous as if they were one already."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReservoirReplayBuffer, TFPrioritizedReplayBuffer, TFUniformReplayBuffer
from replayfeed.buffers.spec import DataSpec
from replayfeed.buffers.storage import FrameStorage

SPEC = {"number": tf.TensorSpec([2], tf.int64), "time": tf.TensorSpec([], tf.int64)}


def frame(number: int) -> dict[str, np.ndarray]:
    return {"number": np.array([[number, number]]), "time": np.array([number])}


@pytest.mark.parametrize("rows", [slice(1, 2), slice(0, 3), np.array([1])], ids=["one", "all", "numbers"])
def test_copies_of_rows_do_not_show_later_writes(rows):
    storage = FrameStorage(DataSpec(SPEC).fields, 3)
    storage.write(slice(0, 3), [np.full([3, 2], 7), np.full([3], 7)])
    copies = storage.copy_raw(rows)
    storage.write(slice(0, 3), [np.zeros([3, 2], np.int64), np.zeros([3], np.int64)])
    for copied in copies:
        assert set(copied.view(np.int64).ravel().tolist()) == {7}


@pytest.mark.parametrize("make", [TFUniformReplayBuffer, TFPrioritizedReplayBuffer])
@pytest.mark.parametrize("num", [1, 3, 4, 5])
def test_a_state_stays_as_it_was_while_the_ring_goes_on(make, num):
    """Room for 3: with 1, 4 and 5 frames there is a part of the ring of a single row."""
    buffer, other = make(SPEC, 1, 3), make(SPEC, 1, 3)
    for number in range(num):
        buffer.add_batch(frame(number))
    state = buffer.get_state()
    for number in range(100, 106):
        buffer.add_batch(frame(number))
    other.set_state(state)
    held = list(range(max(0, num - 3), num))
    assert other.gather_all()["time"].numpy()[0].tolist() == held
    assert other.gather_all()["number"].numpy()[0].tolist() == [[number, number] for number in held]


def test_a_state_of_a_reservoir_of_one_stays_as_it_was():
    spec = {**SPEC, "next_time": tf.TensorSpec([], tf.int64)}
    buffer, other = ReservoirReplayBuffer(spec, 1, seed=0), ReservoirReplayBuffer(spec, 1, seed=0)
    buffer.add_batch({**frame(7), "next_time": np.array([8])})
    state = buffer.get_state()
    for number in range(100, 120):
        buffer.add_batch({**frame(number), "next_time": np.array([number])})
    other.set_state(state)
    assert other.sample(1)[0]["time"].numpy().tolist() == [7]
