"""What is special about the episodic buffer: capacity, eviction, ends, laws, padding, buckets, ids, metadata."""

import logging
import threading
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    EmptyBufferError,
    Episode,
    EpisodicReplayBuffer,
    StatefulEpisodicReplayBuffer,
    TFUniformReplayBuffer,
    Window,
)

COUNTER = tf.TensorSpec([], tf.int64)
FIRST, MID, LAST = 0, 1, 2


class Trajectory(NamedTuple):
    """The flags of a TF-Agents Trajectory and one number."""

    step_type: Any
    value: Any
    next_step_type: Any


TRAJECTORY = Trajectory(tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32))


def frame(step_type: int, value: int, next_step_type: int) -> Trajectory:
    return Trajectory(np.array([step_type], np.int32), np.array([value]), np.array([next_step_type], np.int32))


def filled(*lengths: int, capacity: int = 100, spec: Any = COUNTER, **settings: Any) -> EpisodicReplayBuffer:
    """Episodes of these lengths, numbered `100 e, 100 e + 1, ...`."""
    buffer = EpisodicReplayBuffer(spec, capacity, seed=3, **settings)
    buffer.extend([100 * episode + np.arange(length) for episode, length in enumerate(lengths)])
    return buffer


def held(buffer: EpisodicReplayBuffer) -> list[list[int]]:
    return [episode.items.tolist() for episode in buffer.episodes()]


# Capacity and eviction


def test_capacity_counts_episodes_and_the_oldest_leave_whole():
    buffer = filled(3, 2, 4, capacity=2)
    assert held(buffer) == [[100, 101], [200, 201, 202, 203]]
    stats = buffer.stats()
    assert (buffer.capacity, buffer.capacity_unit, len(buffer)) == (2, "episodes", 6)
    assert (stats.added, stats.evicted, stats.episodes, stats.fill_share) == (9, 3, 2, 1.0)


def test_max_frames_is_exact():
    buffer = filled(4, 3, 3, max_frames=10)
    assert len(buffer) == 10
    buffer.extend([np.array([300])])
    assert held(buffer) == [[100, 101, 102], [200, 201, 202], [300]]


def test_any_episodes_fit_into_max_frames():
    """Pages that are half full take no frame from the others."""
    rng = np.random.default_rng(0)
    buffer = EpisodicReplayBuffer(COUNTER, 50, max_frames=100)
    for _ in range(200):
        lengths = rng.integers(1, 40, 3) if rng.random() < 0.5 else np.ones(50, int)
        buffer.extend([np.arange(length) for length in lengths])
        assert 61 <= len(buffer) <= 100 or len(held(buffer)) == 50


def test_an_open_episode_that_is_the_oldest_goes_whole_and_its_stream_begins_a_new_one(caplog):
    buffer = EpisodicReplayBuffer(COUNTER, 3, batch_size=2)
    ends = [False, True]
    with caplog.at_level(logging.WARNING):
        for t in range(4):
            buffer.add_batch(np.array([t, 100 + t]), end_of_episode=np.array(ends))
    # Episode 0 of stream 0 went when the third episode of stream 1 began: its frame 2 begins another.
    assert held(buffer) == [[2, 3], [102], [103]]
    assert "episode 0 of stream 0 was the oldest" in caplog.text
    assert buffer.num_cut_episodes == 1


def test_an_episode_that_cannot_fit_is_refused_with_numbers_and_nothing_is_written():
    buffer = EpisodicReplayBuffer(COUNTER, 3, max_frames=4)
    buffer.extend([np.array([7])])
    buffer.add_sequence(np.arange(3)[None])
    with pytest.raises(ValueError, match="open episode would hold 5 frames, max_frames is 4"):
        buffer.add_batch(np.array([3])), buffer.add_batch(np.array([4]))
    assert held(buffer) == [[0, 1, 2, 3]]
    with pytest.raises(ValueError, match="1 open episodes would hold 6 frames, max_frames is 4"):
        buffer.add_sequence(np.arange(2)[None])
    with pytest.raises(ValueError, match="5 frames"):
        buffer.extend([np.arange(5)])
    with pytest.raises(ValueError, match="5 frames"):
        buffer.add_sequence(np.arange(5), buffer.create_episode_ids())
    assert held(buffer) == [[0, 1, 2, 3]]
    buffer.end_stream()
    buffer.add_batch(np.array([9]))
    assert held(buffer) == [[9]]


def test_open_streams_that_cannot_fit_together_are_refused():
    buffer = EpisodicReplayBuffer(COUNTER, 5, batch_size=2, max_frames=5)
    buffer.add_sequence(np.array([[0, 1], [10, 11]]))
    with pytest.raises(ValueError, match="2 open episodes would hold 6 frames, max_frames is 5"):
        buffer.add_batch(np.array([2, 12]))
    assert held(buffer) == [[0, 1], [10, 11]]


def test_memory_that_is_reserved_without_max_frames_says_when_it_is_full(monkeypatch):
    monkeypatch.setattr("replayfeed.buffers.episode_pages.memory_limit", lambda: 2 * 24 * 32 + 2 * 25 * 8)
    buffer = EpisodicReplayBuffer(COUNTER, 8)
    rows = buffer.stats().bytes_capacity // 8
    buffer.extend([np.arange(rows - 2)])
    with pytest.raises(ValueError, match=f"reserved is full: {rows - 2} frames in 1 of at most 8.*Give max_frames"):
        buffer.extend([np.arange(9)])
    with pytest.raises(ValueError, match="Give max_frames"):
        buffer.add_sequence(np.arange(9)[None])
    assert len(buffer) == rows - 2


def test_memory_stays_level_over_many_evictions():
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    spec = tf.TensorSpec([1000], tf.float32)
    buffer = EpisodicReplayBuffer(spec, 20)
    rng = np.random.default_rng(0)
    episodes = [np.zeros((int(length), 1000), np.float32) for length in rng.integers(1, 80, 50)]
    for _ in range(4):
        buffer.extend(episodes)
    before = resident()
    for _ in range(40):
        buffer.extend(episodes)
    # 80,000 frames of 4 kB came and went: 320 MB.
    assert resident() - before < 40e6


def test_lists_of_pages_are_moved_together_when_the_directory_is_full():
    buffer = EpisodicReplayBuffer(COUNTER, 40, batch_size=4, max_frames=400)
    rng = np.random.default_rng(1)
    compacted = []
    original = buffer._pages.compact
    buffer._pages.compact = lambda *lists: compacted.append(1) or original(*lists)  # type: ignore[method-assign]
    buffer._pages._directory_size = 2 * buffer._pages._num_pages + 8  # half of it, so that it happens
    following, open_values, ended = 0, [[] for _ in range(4)], []
    for _ in range(3000):
        values = np.arange(following, following + 4)
        following += 4
        ends = (rng.random(4) < 0.05) | np.array([len(one) > 70 for one in open_values])
        buffer.add_batch(values, end_of_episode=ends)
        for b in range(4):
            open_values[b].append(int(values[b]))
            if ends[b]:
                ended.append(open_values[b])
                open_values[b] = []
    assert compacted
    for episode in held(buffer):
        assert episode in ended or episode in open_values


# Ends


def test_the_boundary_frame_joins_the_episode_that_is_complete():
    buffer = EpisodicReplayBuffer(TRAJECTORY, 10, completed_only=True, seed=1)
    for step, (step_type, following) in enumerate([(FIRST, MID), (MID, LAST), (LAST, FIRST), (FIRST, MID)]):
        if step < 2:
            with pytest.raises(EmptyBufferError):
                buffer.sample(1)
        buffer.add_batch(frame(step_type, step, following))
        if step == 1:
            assert buffer.sample()[0].value.numpy().tolist() == [0, 1]
    assert [episode.items.value.tolist() for episode in buffer.episodes()] == [[0, 1, 2], [3]]
    assert [(one.completed, one.finished) for one in buffer.episodes()] == [(True, True), (False, False)]
    # Frame 2 is only a final observation: it starts no window.
    assert set(buffer.sample(50, 1)[0].value.numpy().reshape(-1)) == {0, 1}
    assert {tuple(row) for row in buffer.sample(50, 2)[0].value.numpy()} == {(0, 1), (1, 2)}


def test_completed_only_says_how_many_are_complete():
    buffer = EpisodicReplayBuffer(COUNTER, 10, batch_size=3, completed_only=True)
    buffer.add_batch(np.arange(3))
    for draw in (lambda: buffer.sample(2), lambda: buffer.sample(2, 1), lambda: next(iter(buffer.as_dataset(2, 1)))):
        with pytest.raises((EmptyBufferError, tf.errors.InvalidArgumentError), match="0 of 3 episodes are completed"):
            draw()
    with pytest.raises(tf.errors.InvalidArgumentError, match="0 of 3 episodes are completed"):
        next(iter(buffer.as_dataset(single_deterministic_pass=True)))
    buffer.end_stream(1)
    assert buffer.sample()[0].numpy().tolist() == [1]


def test_a_reset_without_a_flag_ends_the_episode_before_it():
    buffer = EpisodicReplayBuffer(TRAJECTORY, 10)
    for value, step_type in enumerate([FIRST, MID, FIRST, MID]):
        buffer.add_batch(frame(step_type, value, MID))
    assert [episode.items.value.tolist() for episode in buffer.episodes()] == [[0, 1], [2, 3]]
    assert [episode.finished for episode in buffer.episodes()] == [True, False]


def test_functions_tell_beginnings_and_ends_where_the_spec_does_not():
    buffer = EpisodicReplayBuffer(COUNTER, 10, end_episode_fn=lambda value: value % 3 == 2)
    buffer.add_sequence(np.arange(7)[None])
    assert held(buffer) == [[0, 1, 2], [3, 4, 5], [6]]
    both = EpisodicReplayBuffer(
        COUNTER, 10, begin_episode_fn=lambda value: value % 4 == 0, end_episode_fn=lambda value: value % 4 == 2
    )
    both.add_sequence(np.arange(7)[None])
    assert held(both) == [[0, 1, 2, 3], [4, 5, 6]]
    assert [(one.completed, one.finished) for one in both.episodes()] == [(True, True), (True, False)]


def test_final_frame_says_what_a_function_ends_an_episode_with():
    for final_frame, starts in (("auto", {0, 1, 2, 3, 4, 5}), ("observation", {0, 1, 3, 4})):
        buffer = EpisodicReplayBuffer(
            COUNTER, 10, seed=1, end_episode_fn=lambda value: value % 3 == 2, final_frame=final_frame
        )
        buffer.add_sequence(np.arange(6)[None])
        assert set(chances(buffer, 500, num_steps=1)) == starts


def test_what_a_function_returns_is_checked():
    buffer = EpisodicReplayBuffer(COUNTER, 10, begin_episode_fn=lambda value: value)
    with pytest.raises(ValueError, match=r"begin_episode_fn's result: expected \[1\] bool, got \[1\] int64"):
        buffer.add_batch(np.array([1]))
    with pytest.raises(TypeError, match="end_episode_fn must be a function"):
        EpisodicReplayBuffer(COUNTER, 10, end_episode_fn=True)


# Windows and laws


def chances(buffer: EpisodicReplayBuffer, num: int, **arguments: Any) -> dict[Any, float]:
    items, _ = buffer.sample(num, **arguments)
    return {first: count / num for first, count in Counter(items.numpy()[:, 0].tolist()).items()}


@pytest.mark.parametrize("reader", ["sample", "as_dataset"])
@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        # Lengths 3, 2, 4 with windows of 2: 2, 1 and 3 starts.
        ("windows", {0: 1 / 6, 1: 1 / 6, 100: 1 / 6, 200: 1 / 6, 201: 1 / 6, 202: 1 / 6}),
        ("episodes", {0: 1 / 6, 1: 1 / 6, 100: 1 / 3, 200: 1 / 9, 201: 1 / 9, 202: 1 / 9}),
        ("length", {0: 1 / 6, 1: 1 / 6, 100: 2 / 9, 200: 4 / 27, 201: 4 / 27, 202: 4 / 27}),
    ],
)
def test_t11_each_law_has_the_odds_that_it_promises(reader, draw, expected):
    """30,000 draws: chi-square with 5 degrees of freedom, below 20.5 in 99.9 %; and `probabilities` says the same."""
    buffer = filled(3, 2, 4)
    if reader == "sample":
        items, info = buffer.sample(30_000, 2, draw=draw)
    else:
        items, info = next(iter(buffer.as_dataset(30_000, 2, draw=draw)))
    counts = Counter(items.numpy()[:, 0].tolist())
    assert set(counts) == set(expected)
    chi_square = sum((counts[first] - 30_000 * chance) ** 2 / (30_000 * chance) for first, chance in expected.items())
    assert chi_square < 20.5
    told = {int(first): chance for first, chance in zip(items.numpy()[:, 0], info.probabilities.numpy(), strict=True)}
    assert told == pytest.approx(expected)


@pytest.mark.parametrize("num_episodes", [3, 3000])
@pytest.mark.parametrize(("draw", "weights"), [("episodes", [1, 1, 1]), ("length", [1, 5, 2])])
def test_whole_episodes_are_drawn_uniformly_or_by_length(num_episodes, draw, weights):
    """Chi-square with 2 degrees of freedom, below 13.8 in 99.9 %, with few and with many episodes."""
    buffer = filled(*([1, 5, 2] * (num_episodes // 3)), capacity=num_episodes)
    by_dataset = np.concatenate(
        [(items.numpy()[:, 0] // 100 % 3) for items, _ in buffer.as_dataset(1000, draw=draw).take(12)]
    )
    by_sample = buffer.sample(12_000, draw=draw)[0].numpy()[:, 0] // 100 % 3
    for drawn in (by_dataset, by_sample):
        expected = 12_000 * np.array(weights) / sum(weights)
        assert ((np.bincount(drawn, minlength=3) - expected) ** 2 / expected).sum() < 13.8


def test_draws_stay_exact_where_windows_are_rare():
    """2,000 episodes of one frame, and two that have windows: 3 starts of 12,009 rows in use."""
    buffer = filled(*([1] * 1000), 4, *([1] * 1000), 3, capacity=3000)
    for items, info in (buffer.sample(9000, 3), next(iter(buffer.as_dataset(9000, 3)))):
        counts = np.array(list(Counter(items.numpy()[:, 0].tolist()).values()))
        assert len(counts) == 3 and ((counts - 3000) ** 2 / 3000).sum() < 13.8
        np.testing.assert_allclose(info.probabilities, 1 / 3)


def test_an_unfinished_episode_is_drawn_and_goes_on():
    buffer = EpisodicReplayBuffer(COUNTER, 10)
    buffer.add_sequence(np.arange(2)[None])
    assert buffer.sample(1, 2)[0].numpy().tolist() == [[0, 1]]
    dataset = iter(buffer.as_dataset())
    assert next(dataset)[0].numpy().tolist() == [0, 1]
    buffer.add_batch(np.array([2]))
    assert next(dataset)[0].numpy().tolist() == [0, 1, 2]


def test_fr_002_burn_in_is_padding_at_an_episodes_start_never_another_episode():
    """Two writers, episodes of 30 and 25 steps, sequences of 40 with a burn-in of 20."""
    spec = {"episode": COUNTER, "step": COUNTER}
    buffer = EpisodicReplayBuffer(spec, 100, batch_size=2, seed=2)
    for episode in range(6):
        shape = (2, 30)
        items = {
            "episode": np.broadcast_to(np.array([[2 * episode], [2 * episode + 1]]), shape),
            "step": np.broadcast_to(np.arange(30), shape),
        }
        ends = np.zeros(shape, bool)
        ends[0, 29] = ends[1, 24] = True
        # Stream 1's steps 25 to 29 are an episode of their own: those of the next number.
        items["episode"] = np.where(
            np.arange(30) + 0 * items["episode"] > np.array([[29], [24]]), 1000 + episode, items["episode"]
        )
        buffer.add_sequence(items, end_of_episode=ends)
        buffer.end_stream()
    items, info = buffer.sample(1000, window=Window(20, burn_in=20, short="pad"))
    mask, episode, step = info.mask.numpy(), items["episode"].numpy(), items["step"].numpy()
    own = np.where(mask, episode, episode[:, 20:21])
    assert (own == episode[:, 20:21]).all()
    assert (np.where(mask, step - np.arange(-20, 20), step[:, 20:21]) == step[:, 20:21]).all()
    begins = np.where(episode[:, 20] >= 1000, 25, 0)
    np.testing.assert_array_equal(mask[:, :20].sum(1), np.minimum(step[:, 20] - begins, 20))


def test_fr_003_slices_start_only_where_a_whole_one_fits():
    buffer = EpisodicReplayBuffer(COUNTER, 20, seed=3)
    trajectory = [3, 3, 0, 1, 1, 1, 2, 2, 2, 3]
    for t, name in enumerate(trajectory):
        ends = t + 1 == len(trajectory) or trajectory[t + 1] != name
        buffer.add_batch(np.array([t]), end_of_episode=np.array([ends]))
    assert set(chances(buffer, 1000, num_steps=3)) == {3, 6}


def test_fr_007_no_window_is_said_with_numbers():
    buffer = filled(2, 2, 2, 2, 2)
    message = "no window of 5 frames: 5 episodes, longest 2"
    with pytest.raises(EmptyBufferError, match=message):
        buffer.sample(3, 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(buffer.as_dataset(3, 5)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(buffer.as_dataset(3, 5, epochs=1)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.function(lambda: buffer.sample(3, 5))()


def test_fr_050_streams_of_three_environments_stay_apart():
    """Episode lengths 4, 7, 5 stepped together: the same episodes as three single runs."""
    lengths = np.array([4, 7, 5])
    together = EpisodicReplayBuffer(COUNTER, 100, batch_size=3)
    for t in range(28):
        ends = t % lengths == lengths - 1
        together.add_batch(1000 * np.arange(3) + t, end_of_episode=ends)
    alone = []
    for b in range(3):
        buffer = EpisodicReplayBuffer(COUNTER, 100)
        for t in range(28):
            buffer.add_batch(np.array([1000 * b + t]), end_of_episode=np.array([t % lengths[b] == lengths[b] - 1]))
        alone += held(buffer)
    assert sorted(held(together)) == sorted(alone)


def test_fr_068_capacity_of_60_frames_and_episodes_of_50():
    """By whole episodes only the newest is held at each fill level."""
    buffer = EpisodicReplayBuffer(COUNTER, 100, max_frames=60, seed=68)
    for episode in range(10):
        buffer.extend([np.arange(50 * episode, 50 * episode + 50)])
        assert set(chances(buffer, 3000, num_steps=16)) == set(range(50 * episode, 50 * episode + 35))


def test_other_windows_are_refused_by_name():
    buffer = filled(3)
    with pytest.raises(ValueError, match="boundaries='ignore' is for TFUniformReplayBuffer"):
        buffer.sample(2, window=Window(2, boundaries="ignore"))
    with pytest.raises(ValueError, match="draw must be"):
        buffer.sample(2, 2, draw="steps")
    with pytest.raises(ValueError, match="draw='windows' needs num_steps or window"):
        buffer.sample(2, draw="windows")
    with pytest.raises(ValueError, match="a pass visits each once"):
        buffer.as_dataset(2, epochs=1, draw="length")
    with pytest.raises(ValueError, match="num_steps 9 > max_frames 8"):
        filled(3, max_frames=8).sample(2, 9)


# Padding, buckets, passes


def test_fr_052_episodes_are_padded_and_buckets_keep_the_padding_small():
    items, info = next(iter(filled(2, 3).as_dataset(2, single_deterministic_pass=True)))
    assert items.numpy().tolist() == [[0, 1, 0], [100, 101, 102]]
    assert info.mask.numpy().sum(axis=1).tolist() == [2, 3]
    assert info.ids.numpy()[0, 2] == -1
    lengths = [300 if episode % 10 == 9 else 15 for episode in range(200)]
    buffer = filled(*lengths, capacity=200)
    for buckets in ("auto", 2, [16]):
        for arguments in ({"epochs": 1}, {}):
            dataset = buffer.as_dataset(8, buckets=buckets, **arguments)
            masks = [info.mask.numpy() for _, info in dataset.take(60)]
            padded = 1 - sum(mask.sum() for mask in masks) / sum(mask.size for mask in masks)
            assert padded < 0.3
    plain = [info.mask.numpy() for _, info in buffer.as_dataset(8).take(60)]
    assert 1 - sum(mask.sum() for mask in plain) / sum(mask.size for mask in plain) > 0.4


def test_buckets_lose_no_episode_and_keep_the_odds():
    buffer = filled(*range(1, 41))
    visited = [
        first for items, _ in buffer.as_dataset(8, epochs=1, buckets=4) for first in items.numpy()[:, 0].tolist()
    ]
    assert sorted(visited) == [100 * episode for episode in range(40)]
    drawn = [first for items, _ in buffer.as_dataset(8, buckets=4).take(1000) for first in items.numpy()[:, 0].tolist()]
    counts = np.bincount(np.array(drawn) // 100, minlength=40)
    # Chi-square with 39 degrees of freedom, below 72 in 99.9 %.
    assert ((counts - 200) ** 2 / 200).sum() < 72


def test_buckets_ask_for_batches_of_whole_episodes():
    buffer = filled(2, 3)
    with pytest.raises(ValueError, match="buckets are for batches of whole episodes"):
        buffer.as_dataset(2, 2, buckets=2)
    with pytest.raises(ValueError, match="buckets must rise"):
        buffer.as_dataset(2, buckets=[5, 5])
    with pytest.raises(TypeError, match="buckets must be"):
        buffer.as_dataset(2, buckets="some")
    with pytest.raises(ValueError, match="give boundaries"):
        EpisodicReplayBuffer(COUNTER).as_dataset(2, buckets=3)


@pytest.mark.parametrize("num_parallel_calls", [None, 2])
def test_t4_an_ordered_pass_is_the_same_on_any_number_of_cores(num_parallel_calls):
    buffer = filled(3, 5, 2)
    arguments = {"num_parallel_calls": num_parallel_calls, "single_deterministic_pass": True}
    batches = [items.numpy().tolist() for items, _ in buffer.as_dataset(2, 2, **arguments)]
    assert batches == [[[0, 1], [100, 101]], [[102, 103], [200, 201]]]
    whole = [items.numpy().tolist() for items, _ in buffer.as_dataset(**arguments)]
    assert whole == held(buffer)


def test_t20_the_tail_of_an_episode_is_in_the_pass():
    """Lengths 5 and 3 in windows of 2: the last one of each is shorter."""
    buffer = filled(5, 3)
    windows = [items.numpy().tolist() for items, _ in buffer.as_dataset(num_steps=2, single_deterministic_pass=True)]
    assert windows == [[0, 1], [2, 3], [4], [100, 101], [102]]


def test_epochs_visit_each_episode_once_in_orders_of_their_own():
    buffer = filled(*range(1, 21))
    firsts = [int(items[0]) for items, _ in buffer.as_dataset(epochs=2)]
    assert sorted(firsts[:20]) == sorted(firsts[20:]) == [100 * episode for episode in range(20)]
    assert firsts[:20] != firsts[20:]


def test_a_pass_skips_what_is_evicted_meanwhile(caplog):
    buffer = filled(*([2] * 10), capacity=10)
    visited = []
    for items, _ in buffer.as_dataset(single_deterministic_pass=True):
        visited.append(int(items[0]))
        if len(visited) == 1:
            buffer.extend([np.array([9000 + episode]) for episode in range(5)])
    skipped = buffer.stats().skipped
    # One or two were looked ahead.
    expected = range(0, 1000, 100)
    assert skipped >= 1 and visited == [*expected[: 5 - skipped], *expected[5:]]
    assert "evicted before an ordered pass reached them" in caplog.text


def test_sequence_preprocess_fn_sees_single_episodes_before_they_are_padded():
    buffer = filled(2, 3)
    dataset = buffer.as_dataset(2, None, None, lambda value: {"sum": tf.reduce_sum(value), "value": value}, True)
    items, _ = next(iter(dataset))
    assert items["sum"].numpy().tolist() == [1, 303]
    assert items["value"].numpy().tolist() == [[0, 1, 0], [100, 101, 102]]


def test_equal_seeds_give_equal_draws():
    def draws(seed: int) -> Any:
        buffer = EpisodicReplayBuffer(COUNTER, 100, seed=seed)
        buffer.extend([np.arange(100 * e, 100 * e + 5) for e in range(50)])
        arguments = [{}, {"num_steps": 2}, {"num_steps": 2, "draw": "length"}, {"window": Window(9, short="pad")}]
        sampled = [buffer.sample(8, **each)[0].numpy() for each in arguments]
        sampled += [items.numpy() for each in arguments for items, _ in buffer.as_dataset(8, **each).take(3)]
        return np.concatenate([each.reshape(-1) for each in sampled])

    np.testing.assert_array_equal(draws(1), draws(1))
    assert (draws(1) != draws(2)).any()


# Reading by other ways


def test_t12_gather_all_and_completed_episodes_work_after_many_evictions():
    buffer = filled(*([3, 1, 2] * 10), capacity=4, completed_only=True)
    expected = [
        value for episode in range(26, 30) for value in (100 * episode + np.arange([3, 1, 2][episode % 3])).tolist()
    ]
    assert buffer.gather_all().numpy().tolist() == [expected]
    assert EpisodicReplayBuffer({"a": tf.TensorSpec([2, 3], tf.bfloat16)}).gather_all()["a"].shape == (1, 0, 2, 3)


def test_t13_clear_empties_and_what_was_begun_before_it_is_gone():
    buffer = EpisodicReplayBuffer(COUNTER, 5, seed=1)
    ids = buffer.add_sequence(np.arange(3)[None])
    batches = iter(buffer.as_dataset(2, 1))
    next(batches)
    buffer.clear()
    assert (len(buffer), held(buffer), buffer.stats().added) == (0, [], 0)
    for draw in (lambda: buffer.sample(2, 1), lambda: buffer.sample(), lambda: buffer.sample(1, 5)):
        with pytest.raises(EmptyBufferError, match="EpisodicReplayBuffer is empty"):
            draw()
    with pytest.raises(tf.errors.InvalidArgumentError, match="EpisodicReplayBuffer is empty"):
        for _ in range(50):  # what was drawn ahead
            next(batches)
    with pytest.raises(ValueError, match="is not held"):
        buffer.get(ids)
    buffer.add_batch(np.array([7]))
    assert held(buffer) == [[7]]


def test_get_gives_frames_and_windows_by_their_ids():
    buffer = EpisodicReplayBuffer(COUNTER, 5)
    ids = buffer.add_sequence(np.arange(40)[None])[0]
    assert buffer.get(ids[[3, 9, 39]]).numpy().tolist() == [3, 9, 39]
    assert buffer.get(ids[[[3], [9]]], num_steps=2).numpy().tolist() == [[[3, 4]], [[9, 10]]]
    with pytest.raises(ValueError, match="no window of 3 frames starts at id"):
        buffer.get(ids[38:39], num_steps=3)
    with pytest.raises(ValueError, match="of episode 0 is not held"):
        buffer.get(ids[-1:] + 1)
    assert buffer.update_priorities([*ids[:2], 5, -1], [1.0, 1, 1, 1]) == 2


def test_metadata_follows_each_sample_and_goes_with_its_episode():
    buffer = EpisodicReplayBuffer(COUNTER, 2, seed=1)
    first, second = buffer.extend([Episode(np.array([1, 2]), {"level": 1}), Episode(np.array([5]), {"level": 2})])
    items, info = buffer.sample(20, 1)
    expected = [{"level": 1 if value < 5 else 2} for value in items.numpy()[:, 0].tolist()]
    assert buffer.metadata(info.keys) == expected
    assert set(buffer.episode_ids(info.ids).reshape(-1).tolist()) == {first, second}
    given = {"level": 3}
    buffer.set_metadata(second, given)
    given["level"] = 4
    assert [dict(episode.metadata) for episode in buffer.episodes()] == [{"level": 1}, {"level": 3}]
    buffer.add_batch(np.array([9]))
    assert buffer.metadata(info.keys[:0]) == []
    with pytest.raises(ValueError, match="episode 0 is not held: 1 to 2 are"):
        buffer.set_metadata(first, {})
    assert buffer.metadata([2**28]) == [{}]
    copied = EpisodicReplayBuffer(COUNTER, 5)
    copied.extend(buffer.episodes())
    assert [(one.items.tolist(), dict(one.metadata)) for one in copied.episodes()] == [([5], {"level": 3}), ([9], {})]


def test_extend_takes_whole_episodes_only():
    buffer = EpisodicReplayBuffer(TRAJECTORY, 5)
    step_type = np.array([FIRST, LAST, FIRST], np.int32)
    with pytest.raises(ValueError, match="the episode of 3 frames ends at its frame 1; cut it there"):
        buffer.extend([Trajectory(step_type, np.arange(3), np.full(3, MID, np.int32))])
    with pytest.raises(ValueError, match="at least one frame"):
        buffer.extend([tf.nest.map_structure(lambda spec: np.zeros(0, spec.dtype.as_numpy_dtype), TRAJECTORY)])
    with pytest.raises(ValueError, match=r"field 'value': expected \[3\] int64, got \[2\] int64"):
        buffer.extend([Trajectory(step_type, np.arange(2), np.full(3, MID, np.int32))])
    assert len(buffer) == 0


def test_what_was_drawn_is_counted():
    buffer = filled(3, 2, 4, capacity=3)
    buffer.sample(5, 2)
    buffer.sample(2)
    next(iter(buffer.as_dataset(single_deterministic_pass=True)))
    assert 8 <= buffer.stats().sampled <= 10  # the pass counts what it has looked ahead
    fresh = filled(3, 2, 4, capacity=3)
    list(fresh.as_dataset(single_deterministic_pass=True))
    fresh.extend([np.array([1]), np.array([2])])
    assert (fresh.stats().evicted, fresh.stats().evicted_unsampled) == (5, 0)
    fresh.extend([np.array([3]), np.array([4])])
    assert (fresh.stats().evicted, fresh.stats().evicted_unsampled) == (10, 1)


def test_all_dtypes_come_back():
    spec = {
        "bool": tf.TensorSpec([2], tf.bool),
        "bfloat16": tf.TensorSpec([], tf.bfloat16),
        "image": tf.TensorSpec([30, 40], tf.uint8),
    }
    buffer = EpisodicReplayBuffer(spec, 5, seed=1)
    length = 11
    items = {
        "bool": np.arange(2 * length).reshape(length, 2) % 3 == 0,
        "bfloat16": np.arange(length).astype(tf.bfloat16.as_numpy_dtype),
        "image": np.arange(length * 1200).reshape(length, 30, 40).astype(np.uint8),
    }
    buffer.extend([items])
    for given in (buffer.sample()[0], next(iter(buffer.as_dataset()))[0], next(iter(buffer.as_dataset(1, length)))[0]):
        for name, leaf in items.items():
            assert given[name].dtype == spec[name].dtype
            np.testing.assert_array_equal(np.asarray(given[name]).reshape(leaf.shape), leaf)


# Explicit episode ids


def test_frames_go_to_the_episodes_that_their_ids_name():
    buffer = EpisodicReplayBuffer(COUNTER, 10)
    ids = buffer.create_episode_ids(2)
    ids = buffer.add_batch(np.array([0, 10]), ids)
    ids = buffer.add_batch(np.array([1, 11]), ids)
    assert ids.numpy().tolist() == [0, 1]
    assert buffer.add_sequence(np.array([2, 3]), ids[0]).numpy() == 0
    assert held(buffer) == [[0, 1, 2, 3], [10, 11]]
    assert buffer.add_batch(np.array([4]), np.array([0])).tolist() == [0]
    with pytest.raises(ValueError, match="episode id 7 was never given out"):
        buffer.add_batch(np.array([4]), np.array([7]))
    with pytest.raises(ValueError, match="one stands twice"):
        buffer.add_batch(np.array([4, 5]), np.array([1, 1]))
    with pytest.raises(ValueError, match="give them without episode ids"):
        buffer.add_batch(np.array([4]), np.array([1]), end_of_episode=np.array([True]))
    assert buffer.get_valid_ids_mask([-1, 0, 1, 2]).numpy().tolist() == [False, True, True, False]


def test_an_episode_that_ended_is_not_continued_by_its_id():
    buffer = EpisodicReplayBuffer(TRAJECTORY, 10)
    ids = np.array([-1])
    for step_type, value, following in [(FIRST, 0, LAST), (LAST, 1, FIRST), (MID, 2, MID)]:
        ids = buffer.add_batch(frame(step_type, value, following), ids)
    assert ids.tolist() == [1]
    assert [episode.items.value.tolist() for episode in buffer.episodes()] == [[0, 1], [2]]


def test_ids_work_in_a_graph_and_in_the_stateful_wrapper():
    buffer = EpisodicReplayBuffer(COUNTER, 10, begin_episode_fn=lambda value: value % 10 == 0)
    stateful = StatefulEpisodicReplayBuffer(buffer, num_episodes=2)
    add = tf.function(lambda values: stateful.add_batch(values))
    for t in (0, 1, 2):
        add(tf.constant([t, 20 + t], tf.int64))
    add(tf.constant([10, 23], tf.int64))
    assert held(buffer) == [[0, 1, 2], [20, 21, 22, 23], [10]]
    assert stateful.episode_ids.numpy().tolist() == [2, 1]
    assert int(stateful.num_frames()) == 8 and stateful.capacity == 10
    stateful.clear()
    assert stateful.episode_ids.numpy().tolist() == [-1, -1] and len(buffer) == 0
    with pytest.raises(TypeError, match="Expected an EpisodicReplayBuffer"):
        StatefulEpisodicReplayBuffer(TFUniformReplayBuffer(COUNTER, 1, 5))


def test_ids_of_frames_that_were_extracted_are_never_given_again():
    buffer = EpisodicReplayBuffer(COUNTER, 3)
    ids = buffer.add_sequence(np.arange(3)[None])[0]
    episodes = buffer.extract([0], clear_data=True)
    assert episodes.length.numpy().tolist() == [3] and len(buffer) == 0
    again = buffer.add_sequence(np.arange(3)[None])[0]
    assert not set(ids) & set(again)
    other = EpisodicReplayBuffer(COUNTER, 3)
    assert other.extend_episodes(other.create_episode_ids(1), [0], episodes).numpy().tolist() == [0]
    assert held(other) == [[0, 1, 2]]
    with pytest.raises(ValueError, match="locations"):
        buffer.extract([3])


# Threads and construction


def test_threads_add_and_each_finds_its_episodes_whole():
    buffer = EpisodicReplayBuffer(COUNTER, 400)
    errors = []

    def add(writer: int) -> None:
        try:
            for episode in range(100):
                first = 10_000 * writer + 100 * episode
                buffer.extend([np.arange(first, first + 1 + (episode + writer) % 13)])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    episodes = held(buffer)
    assert sorted(episode[0] for episode in episodes) == [10_000 * w + 100 * e for w in range(4) for e in range(100)]
    assert all(episode == list(range(episode[0], episode[0] + len(episode))) for episode in episodes)


def test_a_write_that_is_interrupted_leaves_nothing(monkeypatch):
    buffer = EpisodicReplayBuffer(COUNTER, 5, seed=1)
    buffer.add_sequence(np.arange(8)[None])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(buffer._storage, "write", interrupted)
        for add in (
            lambda: buffer.add_batch(np.array([8])),
            lambda: buffer.add_sequence(np.arange(20)[None]),
            lambda: buffer.extend([np.arange(20)]),
        ):
            with pytest.raises(KeyboardInterrupt):
                add()
    assert held(buffer) == [list(range(8))]
    buffer.add_sequence(np.arange(100, 120)[None])
    assert held(buffer) == [list(range(8)), list(range(100, 120))]
    assert set(chances(buffer, 3000, num_steps=1)) == {*range(8), *range(100, 120)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"capacity": 0}, ValueError, "capacity must be at least 1"),
        ({"capacity": 2.5}, TypeError, "capacity must be an int"),
        ({"buffer_size": 0}, ValueError, "buffer_size must be at least 1"),
        ({"max_frames": 0}, ValueError, "max_frames must be at least 1"),
        ({"capacity": 2, "batch_size": 3}, ValueError, "capacity 2 is below batch_size 3"),
        ({"max_frames": 2, "batch_size": 3}, ValueError, "max_frames 2 is below batch_size 3"),
        ({"max_frames": 2, "min_size_to_sample": 3}, ValueError, "min_size_to_sample 3 is above max_frames 2"),
        ({"device": "/gpu:0"}, ValueError, "storage stays on the CPU"),
        ({"seed": -1}, ValueError, "seed must be an int of at least 0"),
        ({"max_frames": 10**12}, ValueError, "lower max_frames or capacity"),
        ({"capacity": 10**13}, ValueError, "lower capacity"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        EpisodicReplayBuffer(COUNTER, **arguments)


def test_address_space_that_the_system_refuses_is_said(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("[Errno 12] Cannot allocate memory")

    monkeypatch.setattr("replayfeed.buffers.memory.mmap.mmap", refuse)
    with pytest.raises(ValueError, match="no .* of address space.*Cannot allocate memory.*; give max_frames"):
        EpisodicReplayBuffer(COUNTER)
    with pytest.raises(ValueError, match="lower max_frames"):
        EpisodicReplayBuffer(COUNTER, max_frames=10)


def test_min_size_to_sample_counts_frames():
    buffer = filled(3, min_size_to_sample=4)
    with pytest.raises(EmptyBufferError, match="3 of 4 frames"):
        buffer.sample(1, 1)
    buffer.extend([np.array([7])])
    buffer.sample(1, 1)


def test_a_closed_buffer_refuses_and_its_datasets_go_on():
    buffer = filled(3)
    batches = iter(buffer.as_dataset(2, 1))
    next(batches)
    buffer.close()
    next(batches)
    for call in (
        lambda: buffer.add_batch(np.array([1])),
        lambda: buffer.extend([np.array([1])]),
        lambda: buffer.sample(1),
    ):
        with pytest.raises(ValueError, match="closed"):
            call()


ODDS = [
    {"window": Window(1)},
    {"window": Window(2, stride=2)},
    {"window": Window(3, burn_in=2, short="pad")},
    {"window": Window(4, stride=3, short="pad")},
    {"window": Window(4, short="pad", pad_unfinished=True)},
    {"window": Window(3, short="pad"), "draw": "episodes"},
    {"window": Window(2, stride=2), "draw": "length"},
    {},
    {"draw": "length"},
]


@pytest.mark.parametrize("completed_only", [False, True])
@pytest.mark.parametrize("arguments", ODDS, ids=str)
def test_samples_come_as_often_as_their_probabilities_say(arguments, completed_only):
    """Twelve episodes, every third without an end; boundary frames; by `sample` and by a graph."""
    buffer = EpisodicReplayBuffer(TRAJECTORY, 20, batch_size=2, completed_only=completed_only, seed=5)
    for episode in range(6):
        length = 2 + episode
        step_type = np.full((2, length), MID, np.int32)
        step_type[:, 0] = FIRST
        following = np.full((2, length), MID, np.int32)
        if episode % 3:
            step_type[:, -1], following[:, -2] = LAST, LAST
        buffer.add_sequence(Trajectory(step_type, 100 * episode + np.arange(2 * length).reshape(2, length), following))
    num = 40_000
    for _, info in (buffer.sample(num, **arguments), next(iter(buffer.as_dataset(num, **arguments)))):
        keys, first, counts = np.unique(info.keys.numpy(), return_index=True, return_counts=True)
        chances = info.probabilities.numpy()[first].astype(np.float64)
        assert chances.sum() == pytest.approx(1, abs=1e-5)
        chi_square = ((counts - num * chances) ** 2 / (num * chances)).sum()
        # 3.5 standard deviations of chi-square with that many degrees of freedom.
        assert chi_square < len(keys) - 1 + 3.5 * np.sqrt(2 * (len(keys) - 1)) + 8
