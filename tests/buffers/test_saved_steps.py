"""Which save is kept, found by its step, or cut back to one; and what becomes of settings that differ."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    EmptyBufferError,
    Fifo,
    MaxHeap,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
)

VALUE = tf.TensorSpec([], tf.int64)
CLASSES = [TFUniformReplayBuffer, TFPrioritizedReplayBuffer]


def values(buffer: Any) -> list[int]:
    """Of the only stream."""
    return [int(value) for value in buffer.gather_all().numpy()[0]]


def steps_in(folder: Path) -> list[int]:
    """Of the saves in it, by their names."""
    return sorted(int(name.removeprefix("step-")) for name in os.listdir(folder))


@contextlib.contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# Which saves are kept


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


# Which save is restored


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


# Cut back to a step


@pytest.mark.parametrize("make", CLASSES)
def test_what_was_added_after_a_step_can_be_left_out(make, tmp_path):
    """Ids, counters and the open episode are those of step 10; nothing was evicted since."""
    buffer = make(VALUE, 1, 8, seed=0)
    buffer.add_sequence([[1, 2, 3]], end_of_episode=[[False, True, False]], priorities=[[1.0, 4.0, 2.0]])
    buffer.mark_step(10)
    buffer.add_sequence([[4, 5]], priorities=[[9.0, 9.0]])
    buffer.mark_step(12)
    buffer.add_batch([6])
    buffer.save(tmp_path, step=20)
    other = make(VALUE, 1, 8, seed=0)
    with no_warning():
        report = other.restore(tmp_path, step=10, cut_back=True)
    assert (report.step, report.frames, report.cut, report.dropped) == (10, 3, 3, 0)
    assert values(other) == [1, 2, 3]
    stats = other.stats()
    assert (stats.added, stats.frames, stats.evicted, stats.episodes) == (3, 3, 0, 2)
    with pytest.raises(ValueError, match="id 3 is not held"):
        other.get([3])
    # The ids are given anew, and frame 3 goes on in the episode that frame 2 began.
    assert other.add_batch([14]).tolist() == [3]
    assert other.get([2], 2).numpy().tolist() == [[3, 14]]
    drawn, _ = other.sample(50)
    assert set(drawn.numpy().tolist()) == {1, 2, 3, 14}
    # Marks after the step are gone, too: the training comes there again.
    other.mark_step(11)
    other.add_batch([15])
    other.save(tmp_path, step=13)
    with no_warning():
        assert other.restore(tmp_path, step=11, cut_back=True).frames == 4
    assert values(other) == [1, 2, 3, 14]


def test_the_last_moment_before_a_step_is_taken_with_a_warning(tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 1, 8)
    for step in (2, 4, 6):
        buffer.add_batch([step])
        buffer.mark_step(step)
    buffer.save(tmp_path, step=8)
    with pytest.warns(UserWarning, match="cut back to step 4, the last moment before step 5 that the save of step 8"):
        report = buffer.restore(tmp_path, step=5, cut_back=True)
    assert (report.step, report.cut) == (4, 1)
    assert values(buffer) == [2, 4]
    with pytest.raises(ValueError, match="cannot be cut back to step 1: it knows no moment at or before it"):
        buffer.restore(tmp_path, step=1, cut_back=True)
    assert values(buffer) == [2, 4]


def test_a_save_of_the_step_is_taken_before_anything_is_cut(tmp_path):
    """And an older save before a mark that is older still."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 8)
    buffer.add_batch([1])
    buffer.mark_step(1)
    buffer.add_batch([2])
    buffer.save(tmp_path, step=2)
    buffer.add_batch([3])
    buffer.save(tmp_path, step=6)
    with no_warning():
        report = buffer.restore(tmp_path, step=2, cut_back=True)
    assert (report.step, report.cut, values(buffer)) == (2, 0, [1, 2])
    with pytest.warns(UserWarning, match="saved at step 2, and is restored for step 4"):
        report = buffer.restore(tmp_path, step=4, cut_back=True)
    assert (report.step, values(buffer)) == (2, [1, 2])


def test_frames_that_were_evicted_since_a_step_stay_lost(tmp_path):
    """Of 4 places: at step 1 the frames 1 to 4 were there, at step 2 frames 3 to 6: 3 and 4 are in both."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 4)
    buffer.add_sequence([[1, 2, 3, 4]])
    buffer.mark_step(1)
    buffer.add_sequence([[5, 6]])
    buffer.save(tmp_path, step=2)
    report = buffer.restore(tmp_path, step=1, cut_back=True)
    assert (report.frames, report.cut) == (2, 2)
    assert values(buffer) == [3, 4]
    assert buffer.add_sequence([[15, 16, 17]]).tolist() == [[4, 5, 6]]
    assert values(buffer) == [4, 15, 16, 17]
    buffer.add_sequence([list(range(20, 40))])
    buffer.save(tmp_path, step=3)
    report = buffer.restore(tmp_path, step=1, cut_back=True)
    assert (report.frames, report.cut) == (2, 2)


def test_a_moment_of_which_nothing_is_left_leaves_an_empty_buffer(tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 1, 4)
    buffer.add_sequence([[1, 2, 3, 4]])
    buffer.mark_step(1)
    buffer.add_sequence([[5, 6, 7, 8, 9]])
    buffer.save(tmp_path, step=2)
    report = buffer.restore(tmp_path, step=1, cut_back=True)
    assert (report.frames, report.cut, values(buffer)) == (0, 4, [])
    assert buffer.add_batch([10]).tolist() == [4]


@pytest.mark.parametrize("make", CLASSES)
def test_streams_that_go_apart_are_cut_back_each_to_its_own_place(make, tmp_path):
    buffer, other = (make(VALUE, 2, 4, seed=0) for _ in range(2))
    buffer.let_streams_part()
    buffer.add_sequence([[1, 2]], streams=[0])
    buffer.add_batch([11], streams=[1])
    buffer.mark_step(1)
    buffer.add_sequence([[12, 13, 14]], streams=[1])
    buffer.add_batch([3], streams=[0])
    buffer.save(tmp_path, step=2)
    report = other.restore(tmp_path, step=1, cut_back=True)
    assert (report.frames, report.cut) == (3, 4)
    assert other.gather_all().to_list() == [[1, 2], [11]]
    assert other.add_batch([30], streams=[0]).tolist() == [4]
    assert other.add_batch([40], streams=[1]).tolist() == [3]
    assert other.get([0, 1], 2).numpy().tolist() == [[1, 2], [11, 40]]


def test_a_cut_buffer_never_shares_files_with_what_was_cut_off(tmp_path):
    """The ids of what was cut are given again; both saves hold what they held."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 8)
    buffer.add_batch([1])
    buffer.mark_step(1)
    buffer.add_batch([2])
    buffer.save(tmp_path, step=2)
    buffer.restore(tmp_path, step=1, cut_back=True)
    buffer.add_batch([3])
    buffer.save(tmp_path, step=3)
    other = TFUniformReplayBuffer(VALUE, 1, 8)
    other.restore(tmp_path, step=2)
    assert values(other) == [1, 2]
    other.restore(tmp_path, step=3)
    assert values(other) == [1, 3]


def test_marks_of_steps_to_which_the_training_comes_again_are_forgotten(tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 1, 8)
    for step in (5, 5, 7):
        buffer.add_batch([step])
        buffer.mark_step(step)
    # Numbers that nobody gave are no steps.
    buffer.save(tmp_path / "other")
    buffer.add_batch([6])
    buffer.mark_step(6)
    buffer.add_batch([9])
    buffer.save(tmp_path, step=9)
    for step, left in ((5, [5, 5]), (6, [5, 5, 7, 6])):
        with no_warning():
            buffer.restore(tmp_path, step=step, cut_back=True)
        assert values(buffer) == left
    with pytest.warns(UserWarning, match="cut back to step 6, the last moment before step 8"):
        buffer.restore(tmp_path, step=8, cut_back=True)


def test_a_mark_is_a_whole_number(tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 1, 8)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        buffer.mark_step(-1)
    with pytest.raises(TypeError, match=r"step must be an int, got 1\.5"):
        buffer.mark_step(1.5)


def test_the_last_1000_moments_are_kept(tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 1, 2000)
    for step in range(1200):
        buffer.add_batch([step])
        buffer.mark_step(step)
    buffer.save(tmp_path, step=5000)
    other = TFUniformReplayBuffer(VALUE, 1, 2000)
    assert other.restore(tmp_path, step=201, cut_back=True).frames == 202
    with pytest.raises(ValueError, match="cannot be cut back to step 200"):
        other.restore(tmp_path, step=200, cut_back=True)


# Settings that differ


@pytest.mark.parametrize("make", CLASSES)
def test_a_smaller_ring_keeps_the_newest_frames_and_evicts_the_oldest_of_them(make, tmp_path):
    buffer, other = make(VALUE, 1, 6, seed=0), make(VALUE, 1, 3, seed=0)
    buffer.add_sequence([[1, 2, 3, 4, 5, 6, 7, 8]], priorities=[[1.0, 1, 1, 1, 1, 3, 0.0, 1]])
    buffer.save(tmp_path)
    with pytest.raises(ValueError, match="max_length: stored 6, here 3"):
        other.restore(tmp_path)
    report = other.restore(tmp_path, "resize")
    assert (report.frames, report.dropped, report.changed) == (3, 3, {"max_length": (6, 3)})
    assert "dropped 3 frames that have no room" in str(report)
    assert values(other) == [6, 7, 8]
    stats = other.stats()
    assert (stats.frames, stats.capacity, stats.added, stats.evicted) == (3, 3, 8, 5)
    assert other.add_batch([9]).tolist() == [8]
    assert values(other) == [7, 8, 9]
    if make is TFPrioritizedReplayBuffer:
        # 7 has no priority, 8 has 1, and 9 the largest of 1 and 0.
        assert set(other.sample(50)[0].numpy().tolist()) == {8, 9}
    # It is saved as what it is.
    third = make(VALUE, 1, 3, seed=0)
    third.restore(other.save(tmp_path).path)
    assert values(third) == [7, 8, 9]


@pytest.mark.parametrize("make", CLASSES)
def test_a_larger_ring_keeps_all_frames_and_grows(make, tmp_path):
    buffer, other = make(VALUE, 1, 3, seed=0), make(VALUE, 1, 5, seed=0)
    buffer.add_sequence([[1, 2, 3, 4]], end_of_episode=[[False, False, True, False]])
    buffer.save(tmp_path)
    report = other.restore(tmp_path, "resize")
    assert (report.frames, report.dropped) == (3, 0)
    assert values(other) == [2, 3, 4]
    assert other.add_sequence([[5, 6]]).tolist() == [[4, 5]]
    assert values(other) == [2, 3, 4, 5, 6]
    assert other.add_batch([7]).tolist() == [6]
    assert values(other) == [3, 4, 5, 6, 7]
    # The frame that the smaller ring had evicted does not come back, and 4 to 7 are one episode.
    with pytest.raises(ValueError, match="id 0 is not held"):
        other.get([0])
    assert other.get([3], 4).numpy().tolist() == [[4, 5, 6, 7]]
    with pytest.raises(ValueError, match="no window of 2 frames starts at id 2"):
        other.get([2], 2)


def test_streams_that_go_apart_keep_the_newest_of_each_in_another_size(tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 2, 4)
    buffer.let_streams_part()
    buffer.add_sequence([[1, 2, 3, 4, 5]], streams=[0])
    buffer.add_batch([11], streams=[1])
    buffer.save(tmp_path)
    for length, kept, dropped in ((2, [[4, 5], [11]], 2), (6, [[2, 3, 4, 5], [11]], 0)):
        other = TFUniformReplayBuffer(VALUE, 2, length)
        report = other.restore(tmp_path, "resize")
        assert (report.dropped, other.gather_all().to_list()) == (dropped, kept)
        assert other.add_batch([6], streams=[0]).tolist() == [10]


def test_windows_that_were_drawn_out_stay_so_in_another_size(tmp_path):
    """A queue goes on with what was not yet delivered."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 6, sampler=Fifo(), max_times_sampled=1)
    buffer.add_sequence([[1, 2, 3, 4, 5]])
    assert buffer.sample(2)[0].numpy().tolist() == [1, 2]
    buffer.save(tmp_path)
    for length in (4, 9):
        other = TFUniformReplayBuffer(VALUE, 1, length, sampler=Fifo(), max_times_sampled=1)
        other.restore(tmp_path, "resize")
        assert other.sample(3)[0].numpy().tolist() == [3, 4, 5]
        with pytest.raises(EmptyBufferError):
            other.sample(1)


def test_deleted_frames_stay_deleted_in_another_size(tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 1, 6, seed=0)
    buffer.add_sequence([[1, 2, 3, 4, 5]])
    buffer.delete([2, 3])
    buffer.save(tmp_path)
    for length in (4, 9):
        other = TFUniformReplayBuffer(VALUE, 1, length, seed=0)
        other.restore(tmp_path, "resize")
        expected = {2, 5} if length == 4 else {1, 2, 5}
        assert set(other.sample(60)[0].numpy().tolist()) == expected
        assert other.delete([2]) == 1


def test_keep_takes_the_stored_settings_as_if_the_buffer_had_been_built_with_them(tmp_path):
    """Until it goes on exactly as the one that was saved: draws, evictions, capacity."""
    buffer = TFPrioritizedReplayBuffer(VALUE, 1, 3, alpha=1.0, eps=0.5, seed=4, initial="ever")
    buffer.add_sequence([[1, 2, 3, 4]], priorities=[[1.0, 2.0, 3.0, 4.0]])
    buffer.save(tmp_path)
    other = TFPrioritizedReplayBuffer(VALUE, 1, 100, seed=9)
    report = other.restore(tmp_path, "keep")
    assert dict(report.changed) == {
        "max_length": (3, 100),
        "alpha": (1.0, 0.6),
        "eps": (0.5, 1e-6),
        "initial": ("ever", "max"),
        "seed": (4, 9),
    }
    assert other.capacity == 3
    for number in range(5):
        one, two = buffer.sample(4), other.sample(4)
        assert one[0].numpy().tolist() == two[0].numpy().tolist()
        assert one[1].weights.numpy().tolist() == two[1].weights.numpy().tolist()
        assert buffer.add_batch([number]).tolist() == other.add_batch([number]).tolist()
        for each in (buffer, other):
            each.update_priorities(one[1].keys, td_errors=[0.5, 1.0, 0.25, 2.0])
    assert values(buffer) == values(other)
    # It can be saved, and is one of those settings.
    third = TFPrioritizedReplayBuffer(VALUE, 1, 3, alpha=1.0, eps=0.5, seed=4, initial="ever")
    third.restore(other.save(tmp_path).path)
    assert values(third) == values(other)


def test_keep_takes_a_sampler_too(tmp_path):
    buffer = TFUniformReplayBuffer(VALUE, 1, 4, sampler=MaxHeap(), max_times_sampled=1)
    buffer.add_sequence([[1, 2, 3]], priorities=[[5.0, 9.0, 7.0]])
    assert buffer.sample(1)[0].numpy().tolist() == [2]
    buffer.save(tmp_path)
    other = TFUniformReplayBuffer(VALUE, 1, 4)
    other.restore(tmp_path, "keep")
    assert other.sample(2)[0].numpy().tolist() == [3, 1]


@pytest.mark.parametrize("what", ["sample", "dataset", "function", "add in a function"])
def test_keep_is_refused_once_something_reads_the_buffers_memory(what, tmp_path):
    buffer, other = TFUniformReplayBuffer(VALUE, 1, 4), TFUniformReplayBuffer(VALUE, 1, 8)
    buffer.add_sequence([[1, 2]])
    buffer.save(tmp_path)
    other.add_batch([9])
    if what == "sample":
        other.sample(1)
    elif what == "dataset":
        other.as_dataset(2)
    elif what == "function":
        tf.function(lambda: other.sample(1))()
    else:
        tf.function(lambda: other.add_batch(tf.constant([7], tf.int64)))()
    held = values(other)
    with pytest.raises(ValueError, match="Restore before anything is drawn, or build the buffer"):
        other.restore(tmp_path, "keep")
    assert values(other) == held
    # Nothing has to be kept where nothing differs.
    same = TFUniformReplayBuffer(VALUE, 1, 4)
    same.add_batch([3])
    same.sample(1)
    same.restore(tmp_path, "keep")
    assert values(same) == [1, 2]


@pytest.mark.parametrize("name", ["eligible_fn", "end_of_episode_fn", "sampler"])
def test_functions_cannot_be_kept_and_are_named(name, tmp_path):
    def function(items: Any) -> Any:
        return np.asarray(items) % 2 == 0

    class Mine:
        """A sampler."""

        def on_add(self, keys: Any, priorities: Any) -> None: ...

        def on_evict(self, keys: Any) -> None: ...

        def update(self, keys: Any, priorities: Any) -> None: ...

        def draw(self, num: int, rng: Any) -> Any: ...

    buffer = TFUniformReplayBuffer(VALUE, 1, 4, **{name: Mine if name == "sampler" else function})
    buffer.add_sequence([[1, 2]])
    buffer.save(tmp_path)
    other = TFUniformReplayBuffer(VALUE, 1, 4)
    with pytest.raises(ValueError, match=f"{name}: stored '<function>', here None"):
        other.restore(tmp_path)
    with pytest.raises(ValueError, match=f"cannot make what is no plain value: {name}"):
        other.restore(tmp_path, "keep")
    assert (len(other), other.stats().added) == (0, 0)


def test_keep_is_refused_where_it_would_not_fit_into_memory_and_changes_nothing(tmp_path):
    """A save may say what this machine cannot do: here by a state that somebody wrote."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 4)
    buffer.add_batch([1])
    state = buffer.get_state()
    state["settings"]["max_length"] = 2**31
    with pytest.raises(ValueError, match="max_length"):
        buffer.set_state(state, "keep")
    assert values(buffer) == [1]


def test_windows_are_drawn_from_the_kept_frames_only_in_a_smaller_ring(tmp_path):
    buffer, other = (TFPrioritizedReplayBuffer(VALUE, 1, length, seed=0) for length in (8, 3))
    buffer.add_sequence([[1, 2, 3, 4, 5, 6]], end_of_episode=[[False, False, False, True, False, False]])
    buffer.sample(2, window=Window(2))
    buffer.save(tmp_path)
    other.restore(tmp_path, "resize")
    items, _ = other.sample(20, window=Window(2))
    assert {tuple(row) for row in items.numpy().tolist()} == {(5, 6)}


# Both by random histories: a ring that was cut, or taken over in another size, against one that never knew better.


@st.composite
def histories(draw: st.DrawFn, streams: int, *, changes: bool) -> list[tuple[Any, ...]]:
    """Adds and ends of streams; where `changes` also deletes (of ids counted back) and clears."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    names = ["add", "add", "add", "end"] + (["delete", "clear"] if changes else [])
    history: list[tuple[Any, ...]] = []
    for name in draw(st.lists(st.sampled_from(names), max_size=6)):
        if name == "add":
            shape = (streams, draw(st.integers(1, 9)))
            ends, priorities = rng.random(shape) < 0.25, rng.choice([0.5, 1.0, 3.0], shape)
            history.append((name, rng.integers(0, 1000, shape), ends, priorities))
        elif name == "end":
            history.append((name, draw(st.none() | st.integers(0, streams - 1))))
        elif name == "delete":
            history.append((name, draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))))
        else:
            history.append((name,))
    return history


def run(buffer: Any, history: list[tuple[Any, ...]]) -> None:
    for name, *arguments in history:
        if name == "add":
            told, ends, priorities = arguments
            buffer.add_sequence(told, end_of_episode=ends, priorities=priorities)
        elif name == "end":
            buffer.end_stream(*arguments)
        elif name == "delete":
            newest = newest_id(buffer)
            buffer.delete([newest - back for back in arguments[0]])
        else:
            buffer.clear()


def newest_id(buffer: Any) -> int:
    """By asking: of a buffer of at most 400 frames."""
    held = [each for each in range(400) if is_held(buffer, each)]
    return held[-1] if held else -1


def is_held(buffer: Any, each: int, num_steps: int | None = None) -> bool:
    try:
        buffer.get([each], num_steps)
    except ValueError:
        return False
    return True


KINDS = (Window(1), Window(2), Window(3, burn_in=1))


def seen(buffer: Any) -> Any:
    """What is held, which windows it has, with which chances; not what was counted before."""
    passes = []
    for kind in KINDS:
        try:
            _, info = buffer.sample(40, window=kind)
        except EmptyBufferError:
            passes.append(None)
            continue
        chances = dict(zip(info.keys.numpy().tolist(), info.probabilities.numpy().round(5).tolist(), strict=True))
        passes.append(chances if len(chances) == buffer.stats().windows_of(kind).eligible else "not all were drawn")
    stats = buffer.stats()
    counts = [(each.window, each.eligible, each.dropped_short) for each in stats.windows if each.window in KINDS]
    return buffer.gather_all().numpy().tolist(), sorted(counts, key=repr), stats.episodes, len(buffer), passes


@settings(max_examples=30)
@given(st.data())
def test_a_smaller_ring_that_took_over_is_one_that_was_smaller_all_the_time(tmp_path_factory, data):
    streams, length = data.draw(st.integers(1, 2)), data.draw(st.integers(4, 7))
    smaller = data.draw(st.integers(3, length))
    make = data.draw(st.sampled_from(CLASSES))
    # What a new frame gets by itself depends on what is held.
    named = {"initial": 1.0} if make is TFPrioritizedReplayBuffer else {}
    large, small, other = (make(VALUE, streams, num, seed=0, **named) for num in (length, smaller, smaller))
    before, after = (data.draw(histories(streams, changes=True)) for _ in range(2))
    # Frames that only the larger one still holds cannot be deleted in both.
    for buffer in (large, small):
        run(buffer, before)
    folder = tmp_path_factory.mktemp("smaller")
    large.save(folder)
    other.restore(folder, "resize")
    for step in [None, *after]:
        for buffer in (small, other):
            run(buffer, [step] if step else [])
        one, two = seen(small), seen(other)
        assert one[:4] == two[:4]
        assert all(
            first == second
            for first, second in zip(one[4], two[4], strict=True)
            if isinstance(first, dict) and isinstance(second, dict)
        )


@settings(max_examples=30)
@given(st.data())
def test_a_ring_that_was_cut_back_is_one_that_was_never_ahead(tmp_path_factory, data):
    """Nothing was evicted meanwhile: 200 places."""
    streams = data.draw(st.integers(1, 2))
    make = data.draw(st.sampled_from(CLASSES))
    named = {"initial": 1.0} if make is TFPrioritizedReplayBuffer else {}
    ahead, one, other = (make(VALUE, streams, 200, seed=0, **named) for _ in range(3))
    before, after = data.draw(histories(streams, changes=True)), data.draw(histories(streams, changes=True))
    meanwhile = data.draw(histories(streams, changes=False))
    # An end that no frame follows is not known to have been there.
    meanwhile = [step for step in meanwhile if step[0] == "add"]
    for buffer in (ahead, one):
        run(buffer, before)
    ahead.mark_step(1)
    run(ahead, meanwhile)
    folder = tmp_path_factory.mktemp("cut")
    ahead.save(folder, step=2)
    report = other.restore(folder, step=1, cut_back=True)
    assert report.cut == sum(step[1].size for step in meanwhile)
    for step in [None, *after]:
        for buffer in (one, other):
            run(buffer, [step] if step else [])
        assert seen(one)[:4] == seen(other)[:4]
        assert (one.stats().added, one.stats().evicted) == (other.stats().added, other.stats().evicted)


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


def test_what_was_put_on_a_buffer_stays_when_it_takes_the_stored_settings(tmp_path):
    TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 10).save(tmp_path)
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 5)
    buffer.note = "mine"
    buffer.restore(tmp_path, "keep")
    assert (buffer.capacity, buffer.note) == (10, "mine")


class Ab(NamedTuple):
    a: Any
    b: Any


class Ba(NamedTuple):
    b: Any
    a: Any


def test_fields_in_another_order_keep_their_names_through_saves_that_link(tmp_path):
    counter = tf.TensorSpec([], tf.int64)
    saved = TFUniformReplayBuffer(Ab(counter, counter), 1, 5)
    saved.add_sequence(Ab(a=[[0, 1, 2]], b=[[10, 11, 12]]))
    saved.save(tmp_path)
    for _ in range(2):
        turned = TFUniformReplayBuffer(Ba(counter, counter), 1, 5)
        turned.restore(tmp_path)
        assert turned.gather_all().a.numpy().tolist() == [[0, 1, 2]]
        assert turned.gather_all().b.numpy().tolist() == [[10, 11, 12]]
        turned.save(tmp_path)


def test_fields_whose_paths_are_equal_are_kept_apart(tmp_path):
    counter = tf.TensorSpec([], tf.int64)
    spec = {"a": {"b": counter}, "a/b": counter}
    saved, restored = (TFUniformReplayBuffer(spec, 1, 5) for _ in range(2))
    saved.add_batch({"a": {"b": [1]}, "a/b": [2]})
    saved.save(tmp_path)
    for take in (lambda: restored.restore(tmp_path), lambda: restored.set_state(saved.get_state())):
        take()
        held = restored.gather_all()
        assert (held["a"]["b"].numpy().tolist(), held["a/b"].numpy().tolist()) == ([[1]], [[2]])
