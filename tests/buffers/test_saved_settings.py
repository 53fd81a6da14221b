"""A ring that is restored into one of other settings: resized, or with the stored settings kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import EmptyBufferError, Fifo, MaxHeap, TFPrioritizedReplayBuffer, TFUniformReplayBuffer, Window

from .rings_to_save import CLASSES, VALUE, histories, run, seen, values


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


def test_what_was_put_on_a_buffer_stays_when_it_takes_the_stored_settings(tmp_path):
    TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 10).save(tmp_path)
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 5)
    buffer.note = "mine"
    buffer.restore(tmp_path, "keep")
    assert (buffer.capacity, buffer.note) == (10, "mine")
