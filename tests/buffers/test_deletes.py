"""Deleted frames are in nothing that is delivered, whatever the kind of window, and odds stay exact."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import EmptyBufferError, Fifo, TFPrioritizedReplayBuffer, TFUniformReplayBuffer, Window
from replayfeed.buffers.windows import eligible_windows

VALUE = tf.TensorSpec([], tf.int64)
EPISODES = {"value": tf.TensorSpec([], tf.int64), "is_last": tf.TensorSpec([], tf.bool)}

BUFFERS = {
    "uniform": TFUniformReplayBuffer,
    "prioritized": TFPrioritizedReplayBuffer,
    "rank": lambda *sizes, **options: TFPrioritizedReplayBuffer(*sizes, variant="rank", **options),
    "queue": lambda *sizes, **options: TFUniformReplayBuffer(*sizes, sampler=Fifo(), max_times_sampled=9, **options),
}

KINDS = [
    None,
    Window(3),
    Window(2, stride=2),
    Window(2, boundaries="ignore"),
    Window(3, burn_in=2),
    Window(3, short="pad"),
    Window(4, burn_in=1, stride=2, short="pad"),
    Window(3, short="pad", pad_unfinished=True),
]


def filled(kind, num=10, **options):
    buffer = BUFFERS[kind](VALUE, 1, 10, seed=3, **options)
    buffer.add_sequence(np.arange(num)[None])
    return buffer


@pytest.mark.parametrize("kind", BUFFERS)
def test_delete_tells_how_many_were_gone(kind):
    buffer = filled(kind, num=12)  # 2 to 11 are held
    assert buffer.delete([0, 3, 4, 4, 99]) == 2
    assert buffer.delete(tf.constant([3, 5], tf.int64)) == 1
    function = tf.function(lambda keys: buffer.delete(keys))
    assert function(tf.constant([5, 6, 7], tf.int64)).numpy() == 1
    assert buffer.delete(np.zeros(0, np.int64)) == 0
    assert buffer.stats().deleted == 5
    assert len(buffer) == 10
    assert set(buffer.sample(5)[0].numpy().tolist()) <= {2, 8, 9, 10, 11}
    with pytest.raises(ValueError, match="keys and ids are int64 numbers"):
        buffer.delete([0.5])


@pytest.mark.parametrize("kind", BUFFERS)
def test_updates_of_deleted_frames_are_counted_as_gone_and_change_nothing(kind):
    buffer = filled(kind)
    buffer.delete([3, 4])
    assert buffer.update_priorities([3, 4, 5, 99], [9.0, 9.0, 2.0, 1.0]) == 3
    assert not {3, 4} & set(buffer.sample(8)[0].numpy().tolist())


def test_the_priority_of_a_deleted_frame_is_not_the_largest_any_more():
    buffer = TFPrioritizedReplayBuffer(VALUE, 1, 10, alpha=1.0, seed=0)
    buffer.add_sequence([[0, 1, 2]], priorities=[[2.0, 50.0, 1.0]])
    buffer.delete([1])
    buffer.add_batch([3])  # the largest that is left: 2
    items, info = buffer.sample(64)
    chances = dict(zip(items.numpy().tolist(), info.probabilities.numpy().tolist(), strict=True))
    assert chances == pytest.approx({0: 0.4, 2: 0.2, 3: 0.4})


def test_get_refuses_deleted_frames_and_gather_all_shows_them():
    buffer = filled("uniform")
    buffer.delete([4])
    with pytest.raises(ValueError, match="id 4 was deleted; 1 of 2 frames were"):
        buffer.get([3, 4])
    with pytest.raises(ValueError, match="id 4 was deleted; 1 of 4 frames were"):
        buffer.get([3, 6], num_steps=2)
    assert buffer.get([5, 6]).numpy().tolist() == [5, 6]
    assert buffer.gather_all().numpy().tolist() == [list(range(10))]


def test_passes_leave_out_windows_with_deleted_frames():
    buffer = filled("uniform")
    buffer.delete([4])
    ordered = [items.numpy().tolist() for items, _ in buffer.as_dataset(num_steps=2, single_deterministic_pass=True)]
    assert ordered == [[0, 1], [2, 3], [6, 7], [8, 9]]
    every = [items.numpy()[0] for items, _ in buffer.as_dataset(num_steps=3, epochs=1)]
    assert sorted(every) == [0, 1, 5, 6, 7]


def test_all_deleted_is_an_error_that_says_so():
    buffer = filled("uniform")
    iterator = iter(buffer.as_dataset(num_steps=2))
    next(iterator)
    buffer.delete(np.arange(10))
    with pytest.raises(EmptyBufferError, match="none contains a deleted one"):
        buffer.sample(1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="none contains a deleted one"):
        next(iterator)
    buffer.add_sequence([[10, 11]])
    assert next(iterator)[0].numpy().tolist() == [10, 11]


@pytest.mark.parametrize("num_steps", [None, 2])
@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_datasets_and_functions_made_before_a_delete_heed_it_with_exact_odds(kind, num_steps):
    buffer = filled(kind)
    datasets = [iter(buffer.as_dataset(16, num_steps)), iter(buffer.as_dataset(None, num_steps))]
    function = tf.function(lambda: buffer.sample(16, num_steps))
    draws = [lambda: next(datasets[0]), lambda: next(datasets[1]), function, lambda: buffer.sample(16, num_steps)]
    for draw in draws:
        draw()
    buffer.delete([0, 4, 5])
    left = [1, 2, 3, 6, 7, 8, 9] if num_steps is None else [1, 2, 6, 7, 8]
    for draw in draws:
        for _ in range(30):
            draw()  # what was drawn ahead, at most 24 batches
        counts = dict.fromkeys(left, 0)
        rounds = 700 if draw is draws[1] else 60
        for _ in range(rounds):
            items, info = draw()
            for value in np.reshape(items if num_steps is None else items.numpy()[..., 0], -1).tolist():
                counts[value] += 1
            np.testing.assert_allclose(info.probabilities, 1 / len(left), rtol=1e-6)
        expected = sum(counts.values()) / len(left)
        chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
        degrees = len(left) - 1
        assert chi_square < degrees + 5 * (2 * degrees) ** 0.5


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 7)),
        st.tuples(st.just("delete"), st.integers(1, 4)),
        st.tuples(st.just("end_stream"), st.integers(0, 2)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "queue"])
@pytest.mark.parametrize("window", KINDS, ids=str)
def test_what_can_be_drawn_is_what_a_naive_list_says(kind, window):
    @settings(max_examples=25, deadline=None)
    @given(STEPS, st.sampled_from([(1, 7), (2, 5), (3, 4)]), st.booleans(), st.booleans(), st.integers(0, 99))
    def check(steps, sizes, drawn_before, has_predicate, seed):
        rng = np.random.default_rng(seed)
        options = {"eligible_fn": lambda items: items["value"] % 3 > 0} if has_predicate else {}
        buffer = BUFFERS[kind](EPISODES, *sizes, seed=1, **options)
        values, deleted = {}, set()
        if drawn_before:
            with pytest.raises(EmptyBufferError):
                buffer.sample(window=window)
        for name, number in steps:
            ring = buffer._ring
            if name == "add":
                shape = (buffer.batch_size, number)
                items = {"value": rng.integers(0, 99, shape), "is_last": rng.random(shape) < 0.3}
                ids = buffer.add_sequence(items)
                values.update(zip(ids.reshape(-1).tolist(), items["value"].reshape(-1).tolist(), strict=True))
            elif name == "delete" and ring.published:
                keys = rng.integers(max(0, ring.tail - 2), ring.published + 1, number)
                held = [key for key in keys.tolist() if ring.tail <= key < ring.published and key not in deleted]
                assert buffer.delete(keys) == number - len(held)
                deleted |= set(held)
            elif name == "end_stream":
                buffer.end_stream(None if number == 2 else number % buffer.batch_size)
            elif name == "clear":
                buffer.clear()
            self_check(buffer, window, values, deleted, has_predicate=has_predicate)

    def self_check(buffer, window, values, deleted, *, has_predicate):
        ring, asked = buffer._ring, window or Window(1)
        ids = np.stack(ring.ids_by_stream())
        words = ring.joined_words(ids) if asked.boundaries == "ignore" else ring.words_by_stream()
        expected = {}
        for stream, stream_words, is_open in zip(ids, words, ring.unfinished(), strict=True):
            placed = eligible_windows(stream_words, asked, unfinished=bool(is_open))
            for start, before, after in zip(*placed, strict=True):
                frames = stream[start - before : start + after].tolist()
                if not deleted & set(frames) and not (has_predicate and values[int(stream[start])] % 3 == 0):
                    expected[int(stream[start])] = frames
        if not expected:
            with pytest.raises(EmptyBufferError):
                buffer.sample(window=window)
            return
        if buffer.stats().windows and kind != "queue":
            assert buffer._sampler(window).num_eligible() == len(expected)
        num = 1 if kind == "queue" else 40
        try:
            _, info = buffer.sample(num, window=window)
        except EmptyBufferError as error:
            assert kind == "queue" and "max_times_sampled=9" in str(error)
            return
        for key, frames in zip(info.keys.numpy().tolist(), np.reshape(info.ids, (num, -1)).tolist(), strict=True):
            assert [frame for frame in frames if frame >= 0] == expected[key]

    check()


def test_deletes_and_draws_and_adds_of_many_threads_deliver_no_deleted_frame():
    buffer = TFUniformReplayBuffer(VALUE, 1, 256, seed=0)
    buffer.add_sequence(np.arange(256)[None])
    iterator = iter(buffer.as_dataset())  # without a batch nothing is drawn ahead
    next(iterator)
    deleted, errors, done = set(), [], threading.Event()

    def write():
        for number in range(256, 1500):
            buffer.add_batch([number])
            if number % 3 == 0:
                buffer.delete([number - 5])
                deleted.add(number - 5)
        done.set()

    def read(draw):
        try:
            while not done.is_set():
                before = set(deleted)
                assert not before & set(np.reshape(draw(), -1).tolist())
        except Exception as error:
            errors.append(error)

    readers = [lambda: buffer.sample(16)[0], lambda: next(iterator)[0], lambda: buffer.sample(4, num_steps=3)[0]]
    threads = [threading.Thread(target=read, args=(draw,)) for draw in readers]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
