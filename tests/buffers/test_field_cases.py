"""Cases that users of other replay buffers ran into, by their number in our collection."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import TFUniformReplayBuffer

COUNTER = tf.TensorSpec([], tf.int64)


def starts(buffer, num_steps, draws=1000):
    """First values of many windows, each of them seen to be consecutive."""
    values = np.asarray(buffer.sample(draws, num_steps)[0])
    np.testing.assert_array_equal(values, values[:, :1] + np.arange(num_steps))
    return set(values[:, 0].tolist())


@pytest.mark.by_streams
def test_fr_003_slices_start_only_where_a_whole_one_fits(make):
    """Trajectories 3,3 | 0 | 1,1,1 | 2,2,2 | 3: the last 3 is not the first one's continuation."""
    buffer = make(COUNTER, num_steps=3, steps=20)
    trajectory = [3, 3, 0, 1, 1, 1, 2, 2, 2, 3]
    for t, name in enumerate(trajectory):
        ends = t + 1 == len(trajectory) or trajectory[t + 1] != name
        buffer.add_batch(np.array([t]), end_of_episode=np.array([ends]))
    assert starts(buffer, 3) == {3, 6}


def test_fr_004_no_window_crosses_the_write_cursor():
    buffer = TFUniformReplayBuffer(COUNTER, batch_size=1, max_length=10, seed=4)
    for t in range(25):
        buffer.add_batch(np.array([t]), end_of_episode=np.array([t % 4 == 3]))
    # Held: 15..24, of the episodes [12..15], [16..19], [20..23], [24..].
    assert starts(buffer, 3, 2000) == {16, 17, 20, 21}


@pytest.mark.parametrize("capacity", [1, 3, 4096])
def test_fr_066_exactly_full_and_tiny_buffers_keep_to_their_rows(capacity):
    buffer = TFUniformReplayBuffer(COUNTER, batch_size=1, max_length=capacity, seed=66)
    for size in (capacity, 2 * capacity + 1):
        buffer.clear()
        buffer.add_sequence(np.arange(size)[None])
        values = np.concatenate([buffer.sample(10)[0].numpy() for _ in range(1000)])
        assert values.min() >= size - capacity and values.max() < size


@pytest.mark.by_frames
def test_fr_067_every_one_of_three_items_is_drawn_equally_often(make):
    """30,000 draws of 3: 10,000 each within 4 sigma (330)."""
    buffer = make(COUNTER)
    buffer.add_sequence(np.arange(3)[None])
    counts = np.bincount(np.concatenate([buffer.sample(1000)[0].numpy() for _ in range(30)]), minlength=3)
    np.testing.assert_allclose(counts, 10_000, atol=330)


def test_fr_068_a_partly_evicted_episode_serves_while_a_window_fits():
    buffer = TFUniformReplayBuffer(COUNTER, batch_size=1, max_length=60, seed=68)
    for episode in range(10):
        values = np.arange(50 * episode, 50 * (episode + 1))
        ends = np.zeros([1, 50], bool)
        ends[0, -1] = True
        buffer.add_sequence(values[None], end_of_episode=ends)
        oldest = max(0, 50 * (episode + 1) - 60)
        expected = {
            first
            for first in range(oldest, 50 * (episode + 1) - 15)
            if first // 50 == (first + 15) // 50  # within one episode
        }
        assert starts(buffer, 16, 3000) == expected


def test_fr_070_reading_leaves_the_callers_ids_alone():
    buffer = TFUniformReplayBuffer(COUNTER, batch_size=1, max_length=10)
    ids = buffer.add_sequence(np.arange(5)[None])[0]
    asked = ids[1:4].copy()
    first = buffer.get(asked, num_steps=2).numpy()
    np.testing.assert_array_equal(asked, ids[1:4])
    np.testing.assert_array_equal(buffer.get(asked, num_steps=2), first)


def test_fr_074_equal_seeds_give_equal_draws_and_other_seeds_others():
    def draws(seed):
        buffer = TFUniformReplayBuffer(COUNTER, batch_size=1, max_length=100, seed=seed)
        buffer.add_sequence(np.arange(100)[None])
        sampled = [buffer.sample(10)[0].numpy() for _ in range(5)]
        from_dataset = [items.numpy() for items, _ in buffer.as_dataset(10).take(5)]
        return np.concatenate(sampled), np.concatenate(from_dataset)

    first, again, other = draws(1), draws(1), draws(2)
    np.testing.assert_array_equal(first, again)
    assert np.any(first[0] != other[0]) and np.any(first[1] != other[1])
    assert np.any(first[0] != first[1])


def test_fr_076_another_device_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="storage stays on the CPU.*prefetch_to_device"):
        TFUniformReplayBuffer(COUNTER, batch_size=1, max_length=10, device="/gpu:0")
