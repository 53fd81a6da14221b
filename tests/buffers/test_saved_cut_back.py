"""A ring that is restored as of a step at which it was not saved: what came afterwards is left out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import TFPrioritizedReplayBuffer, TFUniformReplayBuffer

from .rings_to_save import CLASSES, VALUE, histories, no_warning, run, seen, values


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
