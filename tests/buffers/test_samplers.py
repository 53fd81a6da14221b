"""What a ring of frames draws through samplers: in which order, how often, with which odds, and what is refused."""

from __future__ import annotations

import collections
import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    EmptyBufferError,
    EpisodicReplayBuffer,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    ReservoirReplayBuffer,
    TFUniformReplayBuffer,
    Uniform,
    Window,
)

VALUE = tf.TensorSpec([], tf.int64)
EPISODES = {"value": tf.TensorSpec([], tf.int64), "is_last": tf.TensorSpec([], tf.bool)}


def filled(num=5, max_length=10, **options):
    """One stream of the frames 0, 1, 2 ..., whose values are their ids."""
    buffer = TFUniformReplayBuffer(VALUE, 1, max_length, seed=3, **options)
    buffer.add_sequence(np.arange(num)[None])
    return buffer


def drawn(buffer, num, way="sample"):
    """Values and chances of one batch."""
    items, info = buffer.sample(num) if way == "sample" else next(iter(buffer.as_dataset(num)))
    assert items.numpy().tolist() == info.ids.numpy().tolist() == info.keys.numpy().tolist()
    assert info.mask.numpy().all()
    return items.numpy().tolist(), info.probabilities.numpy().tolist(), info.weights.numpy().tolist()


# Orders


@pytest.mark.parametrize("way", ["sample", "dataset"])
@pytest.mark.parametrize(
    ("sampler", "first", "second"),
    [
        # priorities of 0, 1, 2, 3, 4: 2, 1, 3, 1, 3; then frame 4 gets 0, and frame 1 gets 9
        (Fifo(), 0, 0),
        (Lifo(), 4, 4),
        (MinHeap(), 1, 4),
        (MaxHeap(), 2, 1),
    ],
    ids=str,
)
def test_a_sampler_with_an_order_gives_its_first_again_and_again(sampler, first, second, way):
    buffer = TFUniformReplayBuffer(VALUE, 1, 10, sampler=sampler)
    buffer.add_sequence([[0, 1, 2, 3, 4]], priorities=[[2.0, 1.0, 3.0, 1.0, 3.0]])
    assert drawn(buffer, 3, way) == ([first] * 3, [1.0] * 3, [1.0] * 3)
    assert buffer.update_priorities([4, 1, 77], [0.0, 9.0, 5.0]) == 1
    assert drawn(buffer, 2, way) == ([second] * 2, [1.0] * 2, [1.0] * 2)


@pytest.mark.parametrize("is_known", [False, True], ids=["first drawn later", "drawn before"])
def test_a_heap_takes_the_oldest_of_equal_priorities_first(is_known):
    buffer = filled(4, sampler=MaxHeap(), max_times_sampled=2)  # all 1
    taken = drawn(buffer, 1)[0] if is_known else []
    buffer.update_priorities([1], [7.0])
    buffer.update_priorities([1], [1.0])  # again 1, and later than the others
    assert taken + drawn(buffer, 8 - len(taken))[0] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_td_errors_are_priorities_of_a_heap():
    buffer = filled(4, sampler=MaxHeap())
    buffer.update_priorities([0, 1, 2, 3, 3], td_errors=[0.5, -7.0, 3.0, 9.0, 0.0])
    assert drawn(buffer, 1)[0] == [1]  # of a key given twice the last value counts


def test_priorities_given_before_a_window_is_complete_count():
    buffer = TFUniformReplayBuffer(EPISODES, 1, 10, sampler=MaxHeap(), final_frame="ordinary")
    buffer.add_sequence({"value": [[0, 1, 2]], "is_last": [[False] * 3]}, priorities=[[1.0, 5.0, 9.0]])
    assert buffer.sample(1, num_steps=2)[0]["value"].numpy().tolist() == [[1, 2]]
    buffer.update_priorities([2], [7.0])
    buffer.add_batch({"value": [3], "is_last": [False]})
    assert buffer.sample(1, num_steps=2)[0]["value"].numpy().tolist() == [[2, 3]]


@pytest.mark.parametrize(("sampler", "expected"), [(Fifo(), 7), (Lifo(), 9), (MinHeap(), 7)], ids=str)
def test_overwritten_frames_leave_the_order(sampler, expected):
    buffer = filled(10, 3, sampler=sampler)
    assert drawn(buffer, 2)[0] == [expected] * 2
    buffer.clear()
    with pytest.raises(EmptyBufferError, match="is empty"):
        buffer.sample(1)
    buffer.add_batch([77])
    assert buffer.sample(1)[0].numpy().tolist() == [77]


# Queues


@pytest.mark.parametrize("way", ["sample", "dataset", "function"])
def test_a_queue_gives_each_frame_once_and_in_order_over_all_batches(way):
    buffer = filled(7, sampler=Fifo(), max_times_sampled=1)
    if way == "sample":
        draw = lambda: buffer.sample(3)[0]  # noqa: E731
    elif way == "dataset":
        iterator = iter(buffer.as_dataset(3))
        draw = lambda: next(iterator)[0]  # noqa: E731
    else:
        draw = tf.function(lambda: buffer.sample(3)[0])
    assert [draw().numpy().tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    # One is left: three are refused, and nothing is taken.
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="3 draws were asked for and 1 are left: 6 of 7 win"):
            draw()
    buffer.add_sequence([[7, 8, 9]])
    # The same iterator goes on.
    assert draw().numpy().tolist() == [6, 7, 8]
    assert buffer.stats().windows[0].eligible == 1
    assert buffer.stats().windows[0].exhausted == 9


def test_each_window_comes_at_most_max_times_sampled_times_in_order():
    buffer = filled(3, sampler=Fifo(), max_times_sampled=2)
    assert drawn(buffer, 3)[0] == [0, 0, 1]
    assert drawn(buffer, 3)[0] == [1, 2, 2]
    with pytest.raises(EmptyBufferError, match="1 draws were asked for and 0 are left"):
        buffer.sample(1)


def test_a_limit_that_is_never_reached_costs_no_memory():
    buffer = filled(3, sampler=Fifo(), max_times_sampled=2**62 // 3)
    assert drawn(buffer, 100)[0] == [0] * 100


def test_a_stack_takes_the_newest_first_and_once():
    buffer = filled(4, sampler=Lifo(), max_times_sampled=1)
    assert drawn(buffer, 2)[0] == [3, 2]
    buffer.add_batch([4])
    assert drawn(buffer, 3)[0] == [4, 1, 0]


def test_a_frame_drawn_as_often_as_it_may_be_is_still_part_of_windows():
    buffer = filled(4, sampler=Fifo(), max_times_sampled=1)
    assert drawn(buffer, 2)[0] == [0, 1]
    items, _ = buffer.sample(3, num_steps=2)  # another kind of window has a count of its own
    assert items.numpy().tolist() == [[0, 1], [1, 2], [2, 3]]
    assert len(buffer) == 4
    assert [int(items) for items, _ in buffer.as_dataset(single_deterministic_pass=True)] == [0, 1, 2, 3]


def test_single_frames_and_windows_of_one_are_one_kind():
    buffer = filled(3, sampler=Fifo(), max_times_sampled=1)
    assert drawn(buffer, 1)[0] == [0]
    assert buffer.sample(1, num_steps=1)[0].numpy().tolist() == [[1]]
    assert buffer.sample()[0].numpy() == 2


def test_a_padded_window_that_grew_comes_once():
    buffer = TFUniformReplayBuffer(EPISODES, 1, 20, sampler=Fifo(), max_times_sampled=1, final_frame="ordinary")
    window = Window(3, stride=2, short="pad", pad_unfinished=True)
    starts = []
    for step in range(9):
        buffer.add_batch({"value": [step], "is_last": [step == 8]})
        try:
            while True:
                starts.append(int(buffer.sample(window=window)[1].keys))
        except EmptyBufferError:
            pass
    assert len(starts) == len(set(starts))


def test_uniform_draws_with_a_limit_give_each_window_so_often_and_no_more():
    buffer = filled(6, sampler=Uniform(), max_times_sampled=2)
    values = drawn(buffer, 5)[0] + drawn(buffer, 7)[0]
    assert collections.Counter(values) == dict.fromkeys(range(6), 2)
    with pytest.raises(EmptyBufferError, match="0 are left"):
        buffer.sample(1)


def test_uniform_draws_with_a_limit_are_as_if_made_one_by_one():
    # Two of three frames, each once: the six ordered pairs are equally likely.
    counts = collections.Counter()
    for seed in range(3000):
        buffer = TFUniformReplayBuffer(VALUE, 1, 4, seed=seed, max_times_sampled=1)
        buffer.add_sequence([[0, 1, 2]])
        counts[tuple(buffer.sample(2)[0].numpy().tolist())] += 1
    assert len(counts) == 6
    chi_square = sum((count - 500) ** 2 / 500 for count in counts.values())
    assert chi_square < 5 + 5 * (2 * 5) ** 0.5


QUEUE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6)),
        st.tuples(st.just("draw"), st.integers(1, 5)),
        st.tuples(st.just("delete"), st.integers(0, 40)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("sampler", [Fifo(), Lifo(), MinHeap(), MaxHeap()], ids=str)
@settings(max_examples=100, deadline=None)
@given(
    QUEUE_STEPS,
    st.sampled_from([(1, 5), (2, 4), (3, 3)]),
    st.integers(0, 3),
    st.sampled_from([None, Window(2), Window(3, burn_in=1)]),
    st.integers(0, 9),
)
def test_orders_and_counts_are_those_of_a_naive_list(sampler, steps, sizes, max_times, window, seed):
    streams, max_length = sizes
    capacity = streams * max_length
    rng = np.random.default_rng(seed)
    buffer = TFUniformReplayBuffer(VALUE, streams, max_length, sampler=sampler, max_times_sampled=max_times)
    num_after = 1 if window is None else window.num_steps
    burn_in = 0 if window is None else window.burn_in
    next_id, floor, deleted, priorities = 0, 0, set(), {}
    items = []  # [start, priority, times left, ids of the frames in its window], in the order of their completion

    def prune():
        gone = set(range(max(floor, next_id - capacity))) | deleted
        items[:] = [item for item in items if not gone & item[3]]

    with pytest.raises(EmptyBufferError):
        buffer.sample(1, window=window)  # the kind is known from the beginning
    for kind, number in steps:
        if kind == "add":
            for _ in range(number):
                given = rng.choice([0.0, 1.0, 2.0], streams)
                buffer.add_batch(np.arange(next_id, next_id + streams), priorities=given)
                priorities.update({next_id + b: float(given[b]) for b in range(streams)})
                next_id += streams
                prune()
                first_held = max(floor, next_id - capacity)
                for start in range(next_id - num_after * streams, next_id - (num_after - 1) * streams):
                    # What would lie before the first frame ever, or since `clear`, is padding.
                    frames = {start + step * streams for step in range(-burn_in, num_after)}
                    frames = {frame for frame in frames if frame >= floor}
                    if start >= first_held <= min(frames) and not deleted & frames:
                        items.append([start, priorities[start], max_times or 10**9, frames])
        elif kind == "delete":
            key = number
            if max(floor, next_id - capacity) <= key < next_id:
                assert buffer.delete([key]) == int(key in deleted)
                deleted.add(key)
                prune()
            else:
                assert buffer.delete([key]) == 1
        elif kind == "clear":
            buffer.clear()
            floor = next_id
            items.clear()
        else:
            order = list(items)
            if isinstance(sampler, Lifo):
                order = order[::-1]
            elif isinstance(sampler, MinHeap | MaxHeap):
                sign = 1 if isinstance(sampler, MinHeap) else -1
                order.sort(key=lambda item: (sign * item[1], item[0]))
            if sum(item[2] for item in items) < number or not items:
                with pytest.raises(EmptyBufferError):
                    buffer.sample(number, window=window)
                continue
            expected = []
            for item in order:
                while item[2] and len(expected) < number:
                    expected.append(item[0])
                    item[2] -= 1 if max_times else 0
            items[:] = [item for item in items if item[2]]
            assert buffer.sample(number, window=window)[1].keys.numpy().tolist() == expected


def test_fr_093_each_item_once_and_batches_half_new_half_replayed():
    """google-deepmind/reverb#40: insert 3, take 3, take again; then a queue (50) and a replay (50) in each batch."""
    queue = filled(3, sampler=Fifo(), max_times_sampled=1)
    assert sorted(drawn(queue, 3)[0]) == [0, 1, 2]
    with pytest.raises(EmptyBufferError, match="1 draws were asked for and 0 are left"):
        queue.sample(1)
    queue = filled(300, 300, sampler=Fifo(), max_times_sampled=1)
    replay = filled(300, 300)
    mixed = tf.data.Dataset.zip((queue.as_dataset(50), replay.as_dataset(50)))
    for step, ((new, _), (old, _)) in enumerate(mixed.take(6)):
        assert new.numpy().tolist() == list(range(50 * step, 50 * step + 50))
        assert old.shape == [50]
    # The same from one buffer: of each batch the newest half.
    items, _ = filled(300, 300, newest_fraction=0.5).sample(100)
    assert items.numpy()[50:].tolist() == list(range(250, 300))


def test_an_interrupted_add_leaves_the_queue_in_order_and_draws_no_lost_frame(monkeypatch):
    buffer = filled(6, 6, sampler=Fifo(), max_times_sampled=1)
    assert drawn(buffer, 2)[0] == [0, 1]
    write = buffer._storage.write

    def interrupted(rows, leaves):
        raise KeyboardInterrupt

    monkeypatch.setattr(buffer._storage, "write", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            buffer.add_batch([99])
    monkeypatch.setattr(buffer._storage, "write", write)
    assert len(buffer) == 5  # the row of frame 0 was to be written anew
    buffer.add_batch([6])
    assert drawn(buffer, 5)[0] == [2, 3, 4, 5, 6]
    with pytest.raises(EmptyBufferError, match="0 are left"):
        buffer.sample(1)


# The newest


@pytest.mark.parametrize("way", ["sample", "dataset"])
def test_a_share_of_each_batch_is_the_newest(way):
    buffer = filled(10, newest_fraction=0.5)
    values, chances, weights = drawn(buffer, 6, way)
    assert values[3:] == [7, 8, 9]
    assert chances == pytest.approx([0.1] * 3 + [1.0] * 3)
    assert weights == [1.0] * 6


def test_of_fewer_windows_than_the_share_all_are_the_newest():
    buffer = filled(2, newest_fraction=1.0)
    values, chances, _ = drawn(buffer, 5)
    assert values[3:] == [0, 1]
    assert chances == [0.5] * 3 + [1.0] * 2


def test_the_rest_of_a_batch_with_the_newest_has_uniform_odds():
    buffer = filled(8, newest_fraction=0.25)
    counts = collections.Counter()
    for _ in range(200):
        values = drawn(buffer, 16)[0]
        assert values[12:] == [4, 5, 6, 7]
        counts.update(values[:12])
    chi_square = sum((counts[value] - 300) ** 2 / 300 for value in range(8))
    assert chi_square < 7 + 5 * (2 * 7) ** 0.5


def test_the_newest_of_a_batch_that_a_function_prepares_one_by_one():
    buffer = filled(10, newest_fraction=0.5)
    items, _ = next(iter(buffer.as_dataset(4, sequence_preprocess_fn=lambda value: value * 10)))
    assert items.numpy().tolist()[2:] == [80, 90]


def test_the_newest_windows_are_complete_ones():
    buffer = filled(6, newest_fraction=1.0)
    assert buffer.sample(2, num_steps=3)[0].numpy().tolist() == [[2, 3, 4], [3, 4, 5]]


# What may start a window


@pytest.mark.parametrize("way", ["sample", "dataset"])
def test_only_frames_that_the_predicate_takes_start_windows_with_even_odds(way):
    buffer = TFUniformReplayBuffer(VALUE, 2, 8, seed=1, eligible_fn=lambda value: value % 3 == 0)
    for step in range(12):
        buffer.add_batch([2 * step, 2 * step + 1])  # values are ids; held are 8 to 23
    expected = [9, 12, 15, 18, 21]
    counts = collections.Counter()
    iterator = iter(buffer.as_dataset(100))
    for _ in range(10):
        items, info = buffer.sample(100) if way == "sample" else next(iterator)
        counts.update(items.numpy().tolist())
        np.testing.assert_allclose(info.probabilities, 0.2)
    assert sorted(counts) == expected
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 4 + 5 * (2 * 4) ** 0.5
    items, info = buffer.sample(50, num_steps=2)
    # 21's successor is 23; 18's 20: whatever they are, windows only start at multiples of three
    assert set(items.numpy()[:, 0].tolist()) == {9, 12, 15, 18, 21}
    ordered = [int(items) for items, _ in buffer.as_dataset(single_deterministic_pass=True)]
    assert sorted(ordered) == expected


def test_the_predicate_sees_arrays_of_a_sequence_and_of_a_graphs_adds():
    seen = []

    def function(value):
        seen.append((type(value), value.shape))
        return value > 1

    buffer = TFUniformReplayBuffer(VALUE, 1, 8, eligible_fn=function)
    buffer.add_sequence([[0, 1, 2]])
    tf.function(lambda: buffer.add_batch(tf.constant([3], tf.int64)))()
    assert seen == [(np.ndarray, (1, 3)), (np.ndarray, (1,))]
    assert set(drawn(buffer, 30)[0]) == {2, 3}


def test_a_predicate_that_takes_nothing_is_an_error_that_says_so():
    buffer = filled(4, eligible_fn=lambda value: value > 99)
    with pytest.raises(EmptyBufferError, match="none starts at a frame that eligible_fn refuses"):
        buffer.sample(1)


def test_a_predicate_that_returns_no_flags_stores_nothing():
    buffer = TFUniformReplayBuffer(VALUE, 1, 8, eligible_fn=lambda value: value)
    with pytest.raises(ValueError, match=r"eligible_fn's result: expected \[1\] bool, got \[1\] int64"):
        buffer.add_batch([3])
    assert len(buffer) == 0
    with pytest.raises(TypeError, match="eligible_fn must be a function"):
        TFUniformReplayBuffer(VALUE, 1, 8, eligible_fn=3)


# Samplers of the caller's


class Recorder:
    """Draws the smallest key, and writes down what it is told."""

    def __init__(self):
        self.keys = {}
        self.told = []

    def on_add(self, keys, priorities):
        self.told.append(("add", keys.tolist(), priorities.tolist()))
        self.keys.update(zip(keys.tolist(), priorities.tolist(), strict=True))

    def on_evict(self, keys):
        self.told.append(("evict", keys.tolist()))
        for key in keys.tolist():
            del self.keys[key]

    def update(self, keys, priorities):
        self.told.append(("update", keys.tolist(), priorities.tolist()))

    def draw(self, num, rng):
        return np.full(num, min(self.keys)), np.full(num, 1 / len(self.keys))


def test_a_sampler_is_told_of_complete_windows_only():
    sampler = Recorder()
    buffer = TFUniformReplayBuffer(EPISODES, 1, 4, sampler=sampler, final_frame="ordinary")
    with pytest.raises(EmptyBufferError):
        buffer.sample(1, num_steps=2)
    for step, is_last in enumerate([False, False, True, False, False, False]):
        buffer.add_batch({"value": [step], "is_last": [is_last]}, priorities=[step + 0.5])
    # 2 ends an episode, so that no window of two starts there; frame 4 overwrites frame 0, and 5 overwrites 1.
    assert sampler.told == [
        ("add", [0], [0.5]),
        ("add", [1], [1.5]),
        ("evict", [0]),
        ("add", [3], [3.5]),
        ("evict", [1]),
        ("add", [4], [4.5]),
    ]
    sampler.told.clear()
    buffer.update_priorities([4, 3, 3, 5, 2, 0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert sampler.told == [("update", [3, 4], [3.0, 1.0])]
    items, info = buffer.sample(2, num_steps=2)
    assert items["value"].numpy().tolist() == [[3, 4], [3, 4]]
    assert info.probabilities.numpy().tolist() == [0.5, 0.5]
    sampler.told.clear()
    buffer.delete([5])
    assert sampler.told == [("evict", [4])]


def test_a_sampler_that_counts_draws_loses_the_keys_that_are_used_up():
    sampler = Recorder()
    buffer = filled(3, sampler=sampler, max_times_sampled=2)
    assert drawn(buffer, 3)[0] == [0, 0, 1]
    assert sampler.told == [("add", [0, 1, 2], [1.0] * 3), ("evict", [0])]


def test_an_object_serves_one_kind_of_window_and_a_class_any_number():
    buffer = filled(5, sampler=Recorder())
    buffer.sample(1)
    with pytest.raises(ValueError, match=r"already draws Window\(num_steps=1\): one object serves one kind of window"):
        buffer.sample(1, num_steps=2)
    several = filled(5, sampler=Recorder)
    assert several.sample(1)[0].numpy().tolist() == [0]
    assert several.sample(1, num_steps=2)[0].numpy().tolist() == [[0, 1]]


def returning(result):
    class Wrong(Recorder):
        def draw(self, num, rng):
            return result

    return Wrong


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (([77, 0], [1.0, 1.0]), ValueError, "sampler Wrong: draw returned key 77, which cannot be drawn now"),
        (([0], [1.0]), ValueError, r"draw must return keys \[2\] int64, got \[1\] int64"),
        (([0.0, 1.0], [1.0, 1.0]), ValueError, r"draw must return keys \[2\] int64, got \[2\] float64"),
        (([0, 1], [1.0]), ValueError, r"draw must return probabilities \[2\], got \[1\]"),
        (([0, 1], [1.0, 0.0]), ValueError, "probability 0.0 at position 1"),
        (([0, 1], [1.0, float("nan")]), ValueError, "probability nan at position 1"),
        (None, TypeError, "draw must return"),
    ],
)
def test_what_a_sampler_draws_is_checked(result, error, message):
    buffer = filled(3, sampler=returning(result))
    with pytest.raises(error, match=message):
        buffer.sample(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(buffer.as_dataset(2)))


def test_a_sampler_gets_the_buffers_random_numbers_so_that_seeds_repeat():
    class Random(Recorder):
        def draw(self, num, rng):
            return rng.choice(sorted(self.keys), num), np.full(num, 1 / len(self.keys))

    for draw in (lambda b: b.sample(20)[0], lambda b: next(iter(b.as_dataset(20)))[0]):
        first, second = draw(filled(9, sampler=Random)), draw(filled(9, sampler=Random))
        assert first.numpy().tolist() == second.numpy().tolist()
        assert len(set(first.numpy().tolist())) > 3


# What is refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sampler": Prioritized(0.7)}, ValueError, r"use TFPrioritizedReplayBuffer\(alpha=0.7\)"),
        (
            {"sampler": "fifo"},
            TypeError,
            r"sampler must be Uniform\(\), .*got 'fifo', which has no draw, on_add",
        ),
        ({"remover": Lifo()}, ValueError, r"remover=Lifo\(\): a ring overwrites its oldest.*served table"),
        ({"remover": Uniform()}, ValueError, "ReservoirReplayBuffer"),
        ({"remover": MinHeap()}, ValueError, r"TableConfig\(..., remover=MinHeap\(\)\)"),
        ({"remover": Prioritized()}, ValueError, r"TableConfig\(..., remover=Prioritized"),
        ({"remover": "oldest"}, TypeError, r"remover must be Fifo\(\) or None, got 'oldest'"),
        ({"max_times_sampled": 1.5}, TypeError, "max_times_sampled must be an int"),
        ({"max_times_sampled": -1}, ValueError, "max_times_sampled must be at least 0"),
        ({"newest_fraction": "half"}, TypeError, "newest_fraction must be a number"),
        ({"newest_fraction": 1.5}, ValueError, "newest_fraction must be between 0 and 1, got 1.5"),
        ({"newest_fraction": float("nan")}, ValueError, "newest_fraction must be between 0 and 1"),
        ({"newest_fraction": 0.5, "sampler": Fifo()}, ValueError, r"newest_fraction=0.5 with sampler=Fifo\(\)"),
    ],
    ids=str,
)
def test_what_makes_no_sense_here_is_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        TFUniformReplayBuffer(VALUE, 1, 10, **options)


@pytest.mark.parametrize(
    ("build", "options", "error", "message"),
    [
        (EpisodicReplayBuffer, {"sampler": Fifo()}, ValueError, r"sequence_length=None, sampler=Fifo\(\)"),
        (
            EpisodicReplayBuffer,
            {"sampler": "uniform"},
            TypeError,
            r"must be Uniform\(\) or None, got 'uniform'",
        ),
        (EpisodicReplayBuffer, {"remover": Lifo()}, ValueError, r"sequence_length=None, remover=Lifo\(\)"),
        (ReservoirReplayBuffer, {"sampler": MaxHeap()}, ValueError, r"reservoir, and draw by MaxHeap\(\) there"),
        (ReservoirReplayBuffer, {"remover": Fifo()}, ValueError, r"remover=Fifo\(\): what a reservoir keeps"),
    ],
    ids=str,
)
def test_buffers_that_draw_uniformly_refuse_other_words_by_name(build, options, error, message):
    with pytest.raises(error, match=message):
        build(VALUE, 10, **options)
    EpisodicReplayBuffer(VALUE, 10, sampler=Uniform(), remover=Fifo()).close()
    ReservoirReplayBuffer(VALUE, 10, sampler=Uniform()).close()


def test_the_words_of_tables_that_say_what_a_ring_does_anyway():
    buffer = filled(4, sampler=Uniform(), remover=Fifo())
    assert sorted(set(drawn(buffer, 60)[0])) == [0, 1, 2, 3]


def test_a_function_that_makes_no_sampler_is_refused():
    buffer = filled(3, sampler=dict)
    with pytest.raises(TypeError, match=r"must make an ItemSampler \(draw, on_add, on_evict, update\), got \{\}"):
        buffer.sample(1)


def test_draws_that_follow_each_other_are_not_made_in_parallel():
    buffer = filled(5, sampler=Fifo(), max_times_sampled=1)
    with pytest.raises(ValueError, match=r"num_parallel_calls=2 with sampler=Fifo\(\)"):
        buffer.as_dataset(2, num_parallel_calls=2)


def test_a_closed_buffer_draws_nothing_more_through_a_sampler():
    buffer = filled(5, sampler=Fifo())
    iterator = iter(buffer.as_dataset(2))
    next(iterator)
    buffer.close()
    with pytest.raises(ValueError, match="is closed"):
        buffer.sample(1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is closed"):
        next(iterator)


# Threads


@pytest.mark.parametrize("sampler", [Fifo(), Uniform()], ids=str)
def test_a_writer_that_overtakes_its_readers_makes_them_miss_frames_and_take_none_twice(sampler):
    buffer = TFUniformReplayBuffer({"wide": tf.TensorSpec([64], tf.int64)}, 1, 32, sampler=sampler, max_times_sampled=1)
    taken, errors, done = [], [], threading.Event()
    iterator = iter(buffer.as_dataset(4))

    def write():
        # So many frames, and more where readers had no turn yet.
        for number in range(400_000):
            buffer.add_batch({"wide": np.full((1, 64), number)})
            if number >= 4000 and len(taken) > 20:
                break
        done.set()

    def read(draw):
        try:
            while not done.is_set():
                try:
                    items, info = draw()
                except tf.errors.InvalidArgumentError:
                    continue
                assert (items["wide"].numpy() == info.ids.numpy()[:, None]).all()
                taken.extend(info.ids.numpy().tolist())
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=read, args=(draw,)) for draw in (lambda: buffer.sample(3), lambda: next(iterator))
    ]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(taken) > 20
    assert len(taken) == len(set(taken))


def test_a_queue_between_threads_loses_nothing_gives_nothing_twice_and_tears_nothing():
    spec = {"first": tf.TensorSpec([], tf.int64), "wide": tf.TensorSpec([256], tf.int64)}
    buffer = TFUniformReplayBuffer(spec, 1, 64, sampler=Fifo(), max_times_sampled=1)
    num, taken, errors = 3000, [], []
    room = threading.Semaphore(48)

    def write():
        for number in range(num):
            room.acquire()
            buffer.add_batch({"first": np.array([number]), "wide": np.full((1, 256), number)})

    def read(draw):
        mine = []
        try:
            while len(taken) < num:
                try:
                    items = draw()
                except tf.errors.InvalidArgumentError:
                    continue
                values = items["first"].numpy()
                assert (items["wide"].numpy() == values[:, None]).all()
                assert mine == [] or mine[-1] < values[0]
                mine += values.tolist()
                taken.extend(values.tolist())
                for _ in values:
                    room.release()
        except Exception as error:
            errors.append(error)

    iterator = iter(buffer.as_dataset(1))
    threads = [
        threading.Thread(target=write),
        threading.Thread(target=read, args=(lambda: buffer.sample(1)[0],)),
        threading.Thread(target=read, args=(lambda: next(iterator)[0],)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(taken) == list(range(num))
