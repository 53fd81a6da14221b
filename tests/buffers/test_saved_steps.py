"""Which saves are kept in a folder, and which is restored: the newest, that of a step, or one that is named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import TFUniformReplayBuffer

from .rings_to_save import VALUE, no_warning, values


def steps_in(folder: Path) -> list[int]:
    """Of the saves in it, by their names."""
    return sorted(int(name.removeprefix("step-")) for name in os.listdir(folder))


def test_folders_are_named_by_their_steps(tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 1, 4)
    assert os.path.basename(buffer.save(tmp_path, step=1000).path) == "step-000000001000"
    # Without a step it is one more than the last one that was written.
    assert buffer.save(tmp_path).step == 1001
    assert buffer.save(tmp_path, step=7).step == 7
    assert buffer.save(tmp_path).step == 8
    assert steps_in(tmp_path) == [7, 8, 1000, 1001]
    assert buffer.save(tmp_path / "other").step == 0
    assert buffer.save(tmp_path / "numpy", step=np.int64(3)).step == 3
    # Such as a time in nanoseconds.
    assert buffer.save(tmp_path / "long", step=10**18).path.endswith("step-1000000000000000000")
    assert buffer.restore(tmp_path / "long").step == 10**18


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({}, [0, 10, 20, 30, 40, 50, 60, 70]),
        ({"keep_last": 1}, [70]),
        ({"keep_last": 3}, [50, 60, 70]),
        # As Dopamine's checkpoint_duration=3, keep_every=40.
        ({"keep_last": 3, "keep_every": 40}, [0, 40, 50, 60, 70]),
        ({"keep_last": 1, "keep_every": 30}, [0, 30, 60, 70]),
        ({"keep_last": 2, "keep_every": 1}, [0, 10, 20, 30, 40, 50, 60, 70]),
    ],
)
def test_the_last_saves_and_every_nth_are_kept(arguments, kept, tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 1, 100)
    removed = []
    for step in range(0, 80, 10):
        buffer.add_batch([step])
        removed += buffer.save(tmp_path, step=step, **arguments).removed
    assert steps_in(tmp_path) == kept
    assert removed == [f"step-{step:012d}" for step in range(0, 80, 10) if step not in kept]
    # Each holds what it held, whatever was removed since.
    for step in kept:
        other = TFUniformReplayBuffer(VALUE, 1, 100)
        assert other.restore(tmp_path, step=step).frames == step // 10 + 1
        assert values(other) == list(range(0, step + 1, 10))


def test_of_one_step_saved_twice_the_last_one_counts(tmp_path):
    """All are there as long as nothing is to be removed, in folders with a number behind their names."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 4)
    for value in (1, 2, 3):
        buffer.add_batch([value])
        path = buffer.save(tmp_path, step=5).path
        assert values_at(tmp_path, 5) == list(range(1, value + 1))
    assert sorted(os.listdir(tmp_path)) == [f"step-000000000005{end}" for end in ("", ".1", ".2")]
    other = TFUniformReplayBuffer(VALUE, 1, 4)
    other.restore(tmp_path / "step-000000000005.1")
    assert values(other) == [1, 2]
    # Of those that would be kept for ever only the last one of a step is.
    buffer.save(tmp_path, step=6, keep_last=1, keep_every=5)
    assert sorted(os.listdir(tmp_path)) == [os.path.basename(path), "step-000000000006"]
    assert values_at(tmp_path, 5) == [1, 2, 3]


def values_at(folder: Path, step: int) -> list[int]:
    other = TFUniformReplayBuffer(VALUE, 1, 4)
    assert other.restore(folder, step=step).step == step
    return values(other)


def test_the_newest_save_is_the_one_written_last_and_not_that_of_the_highest_step(tmp_path):
    """A run goes back to step 10 and on from there: its step 15 is newer than step 20 of before."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 8)
    for step, value in ((10, 1), (20, 2)):
        buffer.add_batch([value])
        buffer.save(tmp_path, step=step)
    buffer.restore(tmp_path, step=10)
    assert buffer.add_batch([3]).tolist() == [1]
    buffer.save(tmp_path, step=15)
    other = TFUniformReplayBuffer(VALUE, 1, 8)
    assert other.restore(tmp_path).step == 15
    assert values(other) == [1, 3]
    assert other.restore(tmp_path, step=20).step == 20
    assert values(other) == [1, 2]
    buffer.add_batch([4])
    buffer.save(tmp_path, step=20, keep_last=2)
    assert other.restore(tmp_path, step=20).frames == 3
    assert values(other) == [1, 3, 4]
    assert sorted(name[:17] for name in os.listdir(tmp_path)) == ["step-000000000015", "step-000000000020"]


@pytest.fixture
def folder(tmp_path) -> Path:
    """Saves of steps 10, 20 and 30, of 1, 2 and 3 frames."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 8)
    for step in (10, 20, 30):
        buffer.add_batch([step])
        buffer.save(tmp_path, step=step)
    return tmp_path


@pytest.mark.parametrize(
    ("step", "restored", "message"),
    [
        (None, 30, None),
        (10, 10, None),
        (20, 20, None),
        (25, 20, "the buffer was saved at step 20, and is restored for step 25: .* these 5 steps"),
        (99, 30, "the buffer was saved at step 30, and is restored for step 99: .* these 69 steps"),
        (0, 10, "the buffer was saved at step 10, and is restored for step 0: it holds .* 10 steps"),
    ],
)
def test_a_save_is_found_by_its_step_or_what_is_nearest_with_a_warning(step, restored, message, folder):
    buffer = TFUniformReplayBuffer(VALUE, 1, 8)
    with no_warning() if message is None else pytest.warns(UserWarning, match=message) as told:
        report = buffer.restore(folder, step=step)
    assert (report.step, report.cut) == (restored, 0)
    assert values(buffer) == list(range(10, restored + 1, 10))
    if message is not None:
        # It is told where it was called.
        assert told[0].filename == __file__


def test_the_folder_of_one_save_is_restored_whatever_else_is_there(folder):
    buffer = TFUniformReplayBuffer(VALUE, 1, 8)
    assert buffer.restore(folder / "step-000000000020").step == 20
    assert buffer.restore(str(folder / "step-000000000020") + "/").step == 20
    with pytest.warns(UserWarning, match="saved at step 20, and is restored for step 30"):
        buffer.restore(folder / "step-000000000020", step=30)
    assert values(buffer) == [10, 20]
    with pytest.raises(ValueError, match="is itself a save"):
        buffer.save(folder / "step-000000000020")


def test_a_folder_of_another_class_or_spec_is_refused(tmp_path):
    TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 10).save(tmp_path)
    other = TFUniformReplayBuffer({"x": tf.TensorSpec([2], tf.float32)}, 1, 10)
    with pytest.raises(ValueError, match=r"holds saves .*a folder of its own"):
        other.save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["step-000000000000"]


def test_keep_last_leaves_the_saves_of_another_buffer_alone(tmp_path):
    one, other = (TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 10) for _ in range(2))
    one.save(tmp_path, step=1, keep_last=1)
    for step in (2, 3):
        other.save(tmp_path, step=step, keep_last=1)
    assert sorted(os.listdir(tmp_path)) == ["step-000000000001", "step-000000000003"]
    # What was restored from a save goes on with it.
    other.restore(tmp_path, step=1)
    other.save(tmp_path, step=4, keep_last=1)
    assert sorted(os.listdir(tmp_path)) == ["step-000000000003", "step-000000000004"]


def test_a_step_may_be_a_variable_and_folders_around_saves_are_told(tmp_path):
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 10)
    report = buffer.save(tmp_path / "run", step=tf.Variable(7, dtype=tf.int64))
    assert (report.step, os.listdir(tmp_path / "run")) == (7, ["step-000000000007"])
    with pytest.raises(FileNotFoundError, match="there are saves in .*run"):
        buffer.restore(tmp_path)
    with pytest.raises(TypeError, match="mapping of names"):
        buffer.save(tmp_path / "run", iterators=[iter(buffer.as_dataset(4))])
