"""What every buffer and backend does when it is saved: go on as it was, or say what to do instead."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import Prioritized, ReplayBuffer, ReverbReplayBuffer

COUNTER = tf.TensorSpec([], tf.int64, "counter")


def add_counters(buffer: ReplayBuffer, times: range) -> None:
    """The frame of stream `b` at time `t` holds `100 * b + t`; episodes end with every fourth."""
    steps = np.arange(times.start, times.stop)
    ends = np.broadcast_to(steps % 4 == 3, (buffer.batch_size, len(steps)))
    buffer.add_sequence(100 * np.arange(buffer.batch_size)[:, None] + steps, end_of_episode=ends)


def held(buffer: ReplayBuffer) -> list[list[int]]:
    """All values held, stream by stream."""
    contents = buffer.gather_all()
    lists = contents.to_list() if isinstance(contents, tf.RaggedTensor) else np.asarray(contents).tolist()
    return lists


def assert_same(one: ReplayBuffer, other: ReplayBuffer) -> None:
    """The same contents, counts and draws to come."""
    assert len(one) == len(other)
    assert held(one) == held(other)
    assert one.stats() == other.stats()
    for _ in range(3):
        drawn = [tf.nest.flatten(buffer.sample(16)) for buffer in (one, other)]
        for leaf, expected in zip(*drawn, strict=True):
            np.testing.assert_array_equal(leaf, expected)


@pytest.mark.in_process
@pytest.mark.parametrize("num_added", [0, 3, 25])
def test_a_restored_buffer_goes_on_as_the_saved_one(make, tmp_path, num_added):
    """Empty, filled in part, and full: then the same adds and draws give the same for ever."""
    saved = make(COUNTER, batch_size=2, steps=8)
    add_counters(saved, range(num_added))
    if num_added:
        saved.sample(5)
    report = saved.save(tmp_path)
    assert report.frames == len(saved)
    restored = make(COUNTER, batch_size=2, steps=8)
    assert restored.restore(tmp_path).frames == len(saved)
    for start in (100, 103):
        add_counters(saved, range(start, start + 3))
        add_counters(restored, range(start, start + 3))
        assert_same(saved, restored)


@pytest.mark.in_process
def test_a_state_in_memory_is_the_same(make):
    saved, restored = make(COUNTER, batch_size=2, steps=8), make(COUNTER, batch_size=2, steps=8)
    add_counters(saved, range(11))
    restored.set_state(saved.get_state())
    assert_same(saved, restored)


@pytest.mark.in_process
def test_what_was_held_is_lost_and_live_datasets_read_the_new_contents(make, tmp_path):
    saved, restored = make(COUNTER, steps=8), make(COUNTER, steps=8)
    add_counters(saved, range(5))
    add_counters(restored, range(50, 58))
    dataset = restored.as_dataset(64)
    next(iter(dataset))
    saved.save(tmp_path)
    restored.restore(tmp_path)
    items, _ = next(iter(dataset))
    assert set(np.asarray(items).reshape(-1).tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.in_process
def test_another_spec_is_refused_and_nothing_changed(make, tmp_path):
    saved, other = make(COUNTER, steps=8), make(tf.TensorSpec([], tf.float32, "counter"), steps=8)
    add_counters(saved, range(5))
    other.add_batch(np.array([7.0], np.float32))
    saved.save(tmp_path)
    with pytest.raises(ValueError, match=r"stored \[\] int64, here \[\] float32"):
        other.restore(tmp_path)
    assert held(other) == [[7.0]]


@pytest.mark.in_process
def test_a_closed_buffer_is_not_saved(make, tmp_path):
    buffer = make(COUNTER)
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sampler", [None, "prioritized"])
def test_served_buffers_name_the_servers_checkpoint(tmp_path, sampler):
    arguments = {} if sampler is None else {"sampler": Prioritized()}
    with ReverbReplayBuffer.local(COUNTER, max_size=8, sequence_length=1, **arguments) as buffer:
        calls = (buffer.save, buffer.restore, buffer.saved_in)
        for call in (*(functools.partial(call, tmp_path) for call in calls), buffer.get_state):
            with pytest.raises(ValueError, match="checkpoint"):
                call()
