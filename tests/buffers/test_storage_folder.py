"""Rings whose frames are on disk: the same in all that a caller sees, and larger than memory."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import TFPrioritizedReplayBuffer, TFUniformReplayBuffer, memory

SPEC = {"image": tf.TensorSpec([40, 40], tf.uint8), "number": tf.TensorSpec([], tf.int64)}


def frames(start, stop):
    number = np.arange(start, stop)
    image = np.broadcast_to(number[:, None, None] % 256, [stop - start, 40, 40]).astype(np.uint8)
    return {"image": image[np.newaxis], "number": number[np.newaxis]}


@pytest.mark.parametrize("make", [TFUniformReplayBuffer, TFPrioritizedReplayBuffer])
@pytest.mark.filterwarnings("ignore:numba is not installed")
def test_a_buffer_on_disk_gives_what_one_in_memory_gives(make, tmp_path):
    on_disk = make(SPEC, 1, 50, seed=3, storage_folder=tmp_path)
    in_memory = make(SPEC, 1, 50, seed=3)
    for buffer in on_disk, in_memory:
        buffer.add_sequence(frames(0, 70))
        buffer.add_batch({"image": np.full([1, 40, 40], 7, np.uint8), "number": np.array([70])})
    tf.nest.map_structure(np.testing.assert_array_equal, on_disk.gather_all(), in_memory.gather_all())
    assert on_disk.gather_all()["number"].numpy()[0, [0, -1]].tolist() == [21, 70]
    for _ in range(3):
        tf.nest.map_structure(np.testing.assert_array_equal, on_disk.sample(8, 2), in_memory.sample(8, 2))
    for of_disk, of_memory in zip(on_disk.as_dataset(5).take(3), in_memory.as_dataset(5).take(3), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, of_disk, of_memory)


def test_the_files_have_no_names_and_go_with_the_buffer(tmp_path):
    with TFUniformReplayBuffer(SPEC, 1, 50, storage_folder=tmp_path) as buffer:
        buffer.add_sequence(frames(0, 3))
        assert list(tmp_path.iterdir()) == []
        assert buffer.num_frames() == 3


def test_a_capacity_that_memory_cannot_hold_fits_on_a_disk(monkeypatch, tmp_path):
    """1,000 frames of 1,608 bytes, and a machine of 1 MB."""
    monkeypatch.setattr(memory, "memory_limit", lambda: 1_000_000)
    with pytest.raises(ValueError, match="lower max_length or batch_size"):
        TFUniformReplayBuffer(SPEC, 1, 1000)
    buffer = TFUniformReplayBuffer(SPEC, 1, 1000, storage_folder=tmp_path)
    buffer.add_sequence(frames(0, 1000))
    assert buffer.get([999])["number"].numpy().tolist() == [999]


def test_a_folder_that_is_not_there_or_has_no_room_is_refused(tmp_path):
    with pytest.raises(OSError, match="absent"):
        TFUniformReplayBuffer(SPEC, 1, 50, storage_folder=tmp_path / "absent")
    huge = tf.TensorSpec([2**20], tf.float32)
    with pytest.raises(OSError, match=r"has no room for .* GB \(.* are free\)"):
        TFUniformReplayBuffer(huge, 1, 2**27, storage_folder=tmp_path)
