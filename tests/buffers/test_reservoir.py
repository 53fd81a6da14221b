"""The reservoir: every item of the stream held with the same chance, however it was added, and drawn with the same.

Frames hold their place in the stream, so that an item equals its id until the first `clear`.
"""

import collections
import gc
import itertools
import json
import threading
import weakref
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import EmptyBufferError, ReservoirReplayBuffer, Window, WindowCount
from replayfeed.buffers.reservoir_rows import NOT_HELD, ReservoirRows
from replayfeed.buffers.reservoir_rule import ReservoirRule
from replayfeed.buffers.storage import FrameStorage

from .steps import STEP, Step

NUMBER = tf.TensorSpec([], tf.int64, "number")


def reservoir(capacity: int, **arguments: Any) -> ReservoirReplayBuffer:
    return ReservoirReplayBuffer(NUMBER, capacity, **{"seed": 0, **arguments})


def add_numbers(buffer: ReservoirReplayBuffer, start: int, stop: int) -> np.ndarray:
    return buffer.add_sequence(np.arange(start, stop)[None])


def held(buffer: ReservoirReplayBuffer) -> list[int]:
    return buffer.gather_all().numpy()[0].tolist()


# Which items are kept


def kept_of(capacity: int, num: int, seed: int, cuts: Any = None, most: int = 2**62) -> dict[int, int]:
    """Row -> position of what a rule holds after `num` items, asked about pieces of these sizes."""
    rule = ReservoirRule(capacity, np.random.default_rng(seed))
    rows: dict[int, int] = {}
    for size in [num] if cuts is None else cuts:
        stop = rule.num_seen + size
        while rule.num_seen < stop:
            seen = rule.num_seen
            kept = rule.next_kept(stop - seen, most)
            assert len(kept.rows) <= most
            assert len(set(kept.rows.tolist())) == len(kept.rows)
            rows.update(zip(kept.rows.tolist(), (kept.offsets + seen).tolist(), strict=True))
            rule.advance_to(seen + kept.num)
    assert rule.num_seen == num
    return rows


def naive_rule(capacity: int, num: int, seed: int, block: int) -> dict[int, int]:
    """Algorithm L as it is printed, item by item, with the same random numbers in the same order."""
    rng = np.random.default_rng(seed)
    rows = {position: position for position in range(min(capacity, num))}
    position, weight = capacity - 1, 1.0
    while True:
        first, second = rng.standard_exponential(block), rng.standard_exponential(block)
        for e_weight, e_skip, row in zip(first, second, rng.integers(0, capacity, block), strict=True):
            weight *= np.exp(-e_weight / capacity)
            position += int(np.floor(e_skip / -np.log1p(-weight))) + 1
            if position >= num:
                return rows
            rows[int(row)] = position


@pytest.mark.parametrize("steps", [1, 100], ids=["single adds", "one add"])
def test_fr_089_each_of_100_items_survives_1000_of_10000_runs_within_120(steps):
    survived = np.zeros(100, np.int64)
    for seed in range(10_000):
        rows = kept_of(10, 100, seed, [steps] * (100 // steps))
        assert len(rows) == 10
        survived[list(rows.values())] += 1
    assert np.abs(survived - 1000).max() <= 120, survived
    assert abs(survived[0] - 1000) <= 120 and abs(survived[-1] - 1000) <= 120


def test_fr_089_a_reservoir_of_one_holds_each_of_two_items_half_the_time():
    first = sum(kept_of(1, 2, seed)[0] == 0 for seed in range(10_000))
    assert abs(first - 5000) <= 200  # 4 sigma


@pytest.mark.parametrize("as_sequence", [False, True])
def test_fr_089_the_buffer_itself_follows_the_law(as_sequence):
    """One buffer, cleared between its runs: its random numbers go on."""
    buffer, survived, runs = reservoir(10, batch_size=10), np.zeros(100, np.int64), 1000
    for _ in range(runs):
        if as_sequence:
            buffer.add_sequence(np.arange(100).reshape(10, 10).T)
        else:
            for first in range(0, 100, 10):
                buffer.add_batch(np.arange(first, first + 10))
        assert len(buffer) == 10
        survived[held(buffer)] += 1
        buffer.clear()
    assert np.abs(survived - runs / 10).max() <= 4.5 * np.sqrt(runs * 0.1 * 0.9)


def test_every_set_of_items_is_held_with_the_same_chance():
    """Not only each item: 2 of 5 are 10 sets. The first two items are not rarer together than others."""
    runs = 20_000
    sets = collections.Counter(tuple(sorted(kept_of(2, 5, seed).values())) for seed in range(runs))
    assert set(sets) == set(itertools.combinations(range(5), 2))
    chi_square = sum((count - runs / 10) ** 2 / (runs / 10) for count in sets.values())
    assert chi_square < 27.88  # 9 degrees of freedom, 0.1 %


def test_a_long_stream_is_held_evenly():
    """Over many blocks of random numbers: 10 parts of a stream of 100,000 each have a tenth of 1,000 rows."""
    parts = np.zeros(10)
    for seed in range(20):
        parts += np.bincount(np.array(list(kept_of(1000, 100_000, seed).values())) // 10_000, minlength=10)
    # 2,000 expected in each, variance 2000 * 0.9 * (1 - 1000 / 100000).
    assert ((parts - 2000) ** 2 / (2000 * 0.99)).sum() < 27.88


def test_rows_are_replaced_evenly():
    """Each row of a reservoir of four is as likely as another to hold the newest kept item."""
    rows = collections.Counter(max(kept_of(4, 40, seed).items(), key=lambda one: one[1])[0] for seed in range(4000))
    assert all(abs(rows[row] - 1000) <= 110 for row in range(4))


@hypothesis.given(
    capacity=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 120), max_size=8),
    seed=st.integers(0, 2**32 - 1),
    most=st.sampled_from([1, 2, 7, 2**62]),
)
def test_a_rule_keeps_what_a_naive_model_keeps_however_the_stream_is_cut(capacity, cuts, seed, most):
    num = sum(cuts)
    expected = naive_rule(capacity, num, seed, max(16, capacity))
    assert kept_of(capacity, num, seed, cuts, most) == expected
    assert kept_of(capacity, num, seed) == expected


def test_a_rule_tells_the_same_until_it_is_told_that_the_items_came():
    rule = ReservoirRule(2, np.random.default_rng(3))
    rule.advance_to(2)
    first, second = rule.next_kept(50), rule.next_kept(50)
    assert first.num == second.num
    np.testing.assert_array_equal(first.offsets, second.offsets)
    np.testing.assert_array_equal(first.rows, second.rows)


def test_no_stream_is_too_long():
    """Positions that no stream reaches do not overflow: about log(2^60) items are kept on the way there."""
    rule = ReservoirRule(1, np.random.default_rng(0))
    positions = []
    while rule.num_seen < 2**60:
        seen = rule.num_seen
        kept = rule.next_kept(2**60 - seen, most=1)
        positions += (kept.offsets + seen).tolist()
        rule.advance_to(seen + kept.num)
    assert positions == sorted(set(positions))
    assert 20 < len(positions) < 65
    assert rule.num_seen == 2**60


@pytest.mark.parametrize("num_seen", [0, 3, 5, 200])
def test_a_rule_goes_on_from_its_state(num_seen):
    rule, other = ReservoirRule(5, np.random.default_rng(1)), ReservoirRule(5, np.random.default_rng(2))
    while rule.num_seen < num_seen:
        rule.advance_to(rule.num_seen + rule.next_kept(num_seen - rule.num_seen).num)
    other.restore(json.loads(json.dumps(rule.state())))
    for _ in range(300):
        expected, got = rule.next_kept(10), other.next_kept(10)
        assert (expected.num, expected.offsets.tolist(), expected.rows.tolist()) == (
            got.num,
            got.offsets.tolist(),
            got.rows.tolist(),
        )
        for one in (rule, other):
            one.advance_to(one.num_seen + expected.num)


# Adding


@pytest.mark.parametrize("capacity", [1, 3, 8, 50])
@pytest.mark.parametrize("num_streams", [1, 3])
def test_batches_sequences_and_single_steps_hold_the_same(capacity, num_streams):
    values = np.arange(240).reshape(240 // num_streams, num_streams)
    buffers = [reservoir(capacity, batch_size=num_streams) for _ in range(3)]
    for step in values:
        assert buffers[0].add_batch(step).tolist() == step.tolist()
    np.testing.assert_array_equal(buffers[1].add_sequence(values.T), values.T)
    for first in range(0, len(values), 7):
        buffers[2].add_sequence(values[first : first + 7].T)
    assert held(buffers[0]) == held(buffers[1]) == held(buffers[2])
    assert [buffer.num_seen for buffer in buffers] == [240] * 3


def test_the_capacity_is_reached_and_kept_exactly():
    """RLlib's holds one less."""
    buffer = reservoir(5)
    for num in range(1, 40):
        add_numbers(buffer, num - 1, num)
        assert len(buffer) == min(num, 5) == int(buffer.num_frames())
        assert len(set(held(buffer))) == min(num, 5)
    assert (buffer.capacity, buffer.capacity_unit, buffer.batch_size) == (5, "frames", 1)


def test_what_fits_is_all_there_in_order():
    buffer = reservoir(5)
    add_numbers(buffer, 0, 5)
    assert held(buffer) == [0, 1, 2, 3, 4]


def test_equal_seeds_keep_and_draw_the_same():
    def run(seed: int) -> Any:
        buffer = reservoir(10, seed=seed)
        add_numbers(buffer, 0, 500)
        batches = [items.numpy().tolist() for items, _ in buffer.as_dataset(8).take(3)]
        return held(buffer), buffer.sample(8)[0].numpy().tolist(), batches

    assert run(4) == run(4)
    kept, sampled, batches = run(5)
    assert kept != run(4)[0] and sampled != run(4)[1] and batches != run(4)[2]


def test_without_a_seed_runs_differ():
    runs = set()
    for _ in range(3):
        buffer = reservoir(20, seed=None)
        add_numbers(buffer, 0, 500)
        runs.add(tuple(held(buffer)))
    assert len(runs) > 1


def test_fields_of_many_dtypes_and_sizes_stay_together():
    spec = {
        "number": tf.TensorSpec([], tf.int64),
        "flag": tf.TensorSpec([], tf.bool),
        "half": tf.TensorSpec([3], tf.bfloat16),
        "large": tf.TensorSpec([40, 10], tf.int32),
    }
    buffer = ReservoirReplayBuffer(spec, 16, batch_size=2, seed=0)
    for first in range(0, 300, 10):
        number = np.arange(first, first + 10).reshape(5, 2).T
        buffer.add_sequence(
            {
                "number": number,
                "flag": number % 3 == 0,
                "half": np.repeat(number[..., None] % 100, 3, -1).astype(tf.bfloat16.as_numpy_dtype),
                "large": np.repeat(number[..., None], 400, -1).reshape(2, 5, 40, 10).astype(np.int32),
            }
        )
    for items in (buffer.gather_all(), buffer.sample(50)[0], next(iter(buffer.as_dataset(50)))[0]):
        number = items["number"].numpy()
        np.testing.assert_array_equal(items["flag"], number % 3 == 0)
        np.testing.assert_array_equal(tf.cast(items["half"], tf.int64)[..., 2], number % 100)
        np.testing.assert_array_equal(items["large"][..., 39, 9], number)


def test_adds_inside_a_tf_function_and_of_tensors_give_tensors():
    buffer = reservoir(4, batch_size=2)
    assert tf.is_tensor(buffer.add_batch(tf.constant([0, 1], tf.int64)))
    add = tf.function(lambda items: buffer.add_sequence(items))
    ids = add(tf.reshape(tf.range(2, 8, dtype=tf.int64), [2, 3]))
    assert ids.numpy().tolist() == [[2, 4, 6], [3, 5, 7]]
    assert buffer.num_seen == 8


def test_no_steps_change_nothing():
    buffer = reservoir(4, batch_size=2)
    assert buffer.add_sequence(np.zeros([2, 0], np.int64)).shape == (2, 0)
    assert (len(buffer), buffer.num_seen) == (0, 0)


@pytest.mark.parametrize(
    ("items", "arguments", "message"),
    [
        (np.zeros([3], np.int64), {}, r"field 'number': expected \[2\] int64, got \[3\] int64"),
        (np.zeros([2], np.float32), {}, r"field 'number': expected \[2\] int64, got \[2\] float32"),
        (np.zeros([2], np.int64), {"priorities": [1.0, -1.0]}, r"priorities\[1\] is -1.0"),
        (np.zeros([2], np.int64), {"priorities": [1.0]}, r"priorities: expected shape \[2\]"),
        (np.zeros([2], np.int64), {"end_of_episode": [True]}, r"end_of_episode: expected \[2\] bool"),
    ],
)
def test_what_is_refused_is_not_counted(items, arguments, message):
    buffer = reservoir(2, batch_size=2)
    with pytest.raises(ValueError, match=message):
        buffer.add_batch(items, **arguments)
    assert (len(buffer), buffer.num_seen) == (0, 0)


def test_an_interrupted_add_leaves_no_half_of_a_frame(monkeypatch):
    """Ctrl-C between two fields: the frame is finished, the interrupt goes on, and the next add is as always."""
    spec = {"a": NUMBER, "b": tf.TensorSpec([], tf.float32)}
    buffer = ReservoirReplayBuffer(spec, 4, seed=0)
    undisturbed = ReservoirReplayBuffer(spec, 4, seed=0)
    write, calls = FrameStorage.write, itertools.count()

    def interrupted(self: Any, rows: Any, leaves: Any) -> None:
        if next(calls) == 6:
            write(self, rows, [leaves[0], np.full_like(leaves[1], -1)])
            raise KeyboardInterrupt
        write(self, rows, leaves)

    def add(to: ReservoirReplayBuffer, number: int) -> None:
        to.add_batch({"a": np.array([number]), "b": np.array([number], np.float32)})

    for number in range(60):
        add(undisturbed, number)
    interrupts = 0
    with monkeypatch.context() as patch:
        patch.setattr(FrameStorage, "write", interrupted)
        for number in range(60):
            try:
                add(buffer, number)
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 1
    assert buffer.num_seen == 60
    kept = buffer.gather_all()
    np.testing.assert_array_equal(kept["a"], undisturbed.gather_all()["a"])
    np.testing.assert_array_equal(kept["a"], kept["b"])


# Final observations


def test_a_final_observation_is_no_item():
    buffer = ReservoirReplayBuffer(STEP, 100, batch_size=2, seed=0)
    step_type = np.array([[0, 1, 2, 0], [0, 2, 0, 2]], np.int32)
    ids = buffer.add_sequence(Step(step_type, np.array([[0, 1, 2, 3], [100, 101, 102, 103]])))
    assert ids.tolist() == [[0, 2, -1, 4], [1, -1, 3, -1]]
    assert buffer.gather_all().value.numpy().tolist() == [[0, 100, 1, 102, 3]]
    assert buffer.add_batch(Step(np.array([2, 1], np.int32), np.array([9, 104]))).tolist() == [-1, 5]
    assert buffer.num_seen == 6 == buffer.stats().added


def test_final_observations_do_not_bias_what_is_kept():
    """Every third frame is one: the others are held as if they had come alone."""
    alone = reservoir(10)
    add_numbers(alone, 0, 200)
    number = np.arange(300)
    steps = Step(np.where(number % 3 == 2, 2, 1).astype(np.int32)[None], (number - number // 3)[None])
    together = ReservoirReplayBuffer(STEP, 10, seed=0)
    together.add_sequence(steps)
    assert together.gather_all().value.numpy().tolist()[0] == held(alone)


def test_ends_told_by_the_argument_are_ordinary_unless_said_otherwise():
    for final_frame, expected in (("auto", [0, 1, 2]), ("observation", [0, -1, 1])):
        buffer = reservoir(10, final_frame=final_frame)
        ids = buffer.add_sequence(np.arange(3)[None], end_of_episode=np.array([[False, True, False]]))
        assert ids.tolist() == [expected]


def test_ends_told_by_a_function():
    buffer = reservoir(10, final_frame="observation", end_of_episode_fn=lambda number: number % 2 == 1)
    assert add_numbers(buffer, 0, 5).tolist() == [[0, -1, 1, -1, 2]]
    assert held(buffer) == [0, 2, 4]


# Drawing


def test_draws_are_uniform_over_what_is_held():
    buffer = reservoir(20)
    add_numbers(buffer, 0, 1000)
    kept = held(buffer)
    sampled = np.concatenate([buffer.sample(1000)[0].numpy() for _ in range(20)])
    streamed = np.concatenate([items.numpy() for items, _ in buffer.as_dataset(1000).take(20)])
    for drawn in (sampled, streamed):
        values, counts = np.unique(drawn, return_counts=True)
        assert values.tolist() == kept
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # 19 degrees of freedom, 0.1 %


@pytest.mark.parametrize(("batch", "num_steps"), [(None, None), (5, None), (None, 1), (5, 1)])
def test_sample_dataset_and_function_have_the_documented_shapes(batch, num_steps):
    buffer = ReservoirReplayBuffer({"x": tf.TensorSpec([2], tf.float32)}, 4, seed=0)
    buffer.add_sequence({"x": np.zeros([1, 9, 2], np.float32)})
    dataset = buffer.as_dataset(batch, num_steps)
    outer = [size for size in (batch, num_steps) if size is not None]
    elements = [buffer.sample(batch, num_steps), next(iter(dataset)), tf.function(buffer.sample)(batch, num_steps)]
    for items, info in [*elements, dataset.element_spec]:
        assert items["x"].shape == [*outer, 2]
        assert (info.ids.shape, info.ids.dtype) == (outer, tf.int64)
        assert (info.mask.shape, info.mask.dtype) == (outer, tf.bool)
        assert info.keys.dtype == tf.int64 and info.probabilities.dtype == info.weights.dtype == tf.float32
        assert info.keys.shape == info.probabilities.shape == info.weights.shape == outer[:1] * (batch is not None)
    for _, info in elements:
        assert np.all(info.mask) and np.all(info.weights.numpy() == 1) and np.all(info.probabilities.numpy() == 0.25)


def test_ids_and_keys_are_those_of_the_items():
    buffer = reservoir(8)
    add_numbers(buffer, 0, 300)
    for items, info in (buffer.sample(9), next(iter(buffer.as_dataset(9))), tf.function(buffer.sample)(9)):
        np.testing.assert_array_equal(items, info.ids)
        np.testing.assert_array_equal(items, info.keys)
        np.testing.assert_array_equal(buffer.get(info.ids), items)


def test_what_every_buffer_has_works_here_too():
    """`get_next` and `sample_at_least` are built on `sample`."""
    buffer = reservoir(8)
    add_numbers(buffer, 0, 50)
    (only,), info = buffer.get_next(4, 1, time_stacked=False)
    np.testing.assert_array_equal(only, info.ids[:, 0])
    for num_steps in (None, 1):
        items, info = buffer.sample_at_least(20, num_steps)
        assert items.shape[0] == 20
        np.testing.assert_array_equal(items, info.ids)


def test_a_window_of_one_is_the_same_as_one_step():
    buffer = reservoir(8)
    add_numbers(buffer, 0, 20)
    for window in (Window(1), Window(1, short="pad"), Window(1, boundaries="ignore")):
        assert buffer.sample(3, window=window)[0].shape == [3, 1]


@pytest.mark.parametrize("window", [Window(2), Window(1, burn_in=1), Window(1, stride=2), Window(3, short="pad")])
def test_windows_of_several_frames_are_refused_with_the_way_out(window):
    buffer = reservoir(8)
    add_numbers(buffer, 0, 20)
    for call in (buffer.sample, buffer.as_dataset):
        with pytest.raises(
            ValueError, match=r"ReservoirReplayBuffer keeps single frames.*EpisodicReplayBuffer.*Reverb"
        ):
            call(3, window=window)
    with pytest.raises(ValueError, match="transitions"):
        buffer.sample(3, 2)
    with pytest.raises(ValueError, match="transitions"):
        buffer.get([0], 2)


def test_a_dataset_is_live():
    buffer = reservoir(3)
    add_numbers(buffer, 0, 3)
    batches = iter(buffer.as_dataset())  # without a batch size nothing is drawn ahead
    assert int(next(batches)[0]) < 3
    while held(buffer)[0] < 3:
        add_numbers(buffer, buffer.num_seen, buffer.num_seen + 50)
    assert int(next(batches)[0]) >= 3


def test_draws_of_one_tf_function_are_independent_and_repeat_with_the_seed():
    def run() -> list[list[int]]:
        buffer = reservoir(1000)
        add_numbers(buffer, 0, 1000)
        draw = tf.function(lambda: (buffer.sample(4)[0], buffer.sample(4)[0]))
        tf.random.set_seed(1)
        return [drawn.numpy().tolist() for _ in range(2) for drawn in draw()]

    first = run()
    assert len({tuple(drawn) for drawn in first}) == 4
    assert first == run()


def test_sequence_preprocess_fn_sees_one_sample_without_batch_axis():
    buffer = reservoir(8)
    add_numbers(buffer, 0, 8)
    shapes = []

    def double(items: tf.Tensor) -> tf.Tensor:
        shapes.append(items.shape)
        return 2 * items

    items, info = next(iter(buffer.as_dataset(4, 1, sequence_preprocess_fn=double)))
    np.testing.assert_array_equal(items, 2 * info.ids)
    assert shapes[0] == [1]


@pytest.mark.parametrize("parallel", [None, 2, tf.data.AUTOTUNE])
def test_parallel_calls_draw_the_same_and_count_each(parallel):
    buffer = reservoir(8)
    add_numbers(buffer, 0, 8)
    batches = [items.numpy().tolist() for items, _ in buffer.as_dataset(4, num_parallel_calls=parallel).take(20)]
    other = reservoir(8)
    add_numbers(other, 0, 8)
    assert batches == [items.numpy().tolist() for items, _ in other.as_dataset(4).take(20)]
    assert buffer.stats().sampled >= 80


@pytest.mark.parametrize(
    ("frames", "min_size", "message"),
    [(0, 1, "ReservoirReplayBuffer is empty"), (2, 3, r"2 of 3 frames \(min_size_to_sample\)")],
)
def test_too_little_is_an_error_never_a_hang(frames, min_size, message):
    buffer = reservoir(8, min_size_to_sample=min_size)
    add_numbers(buffer, 0, frames)
    with pytest.raises(EmptyBufferError, match=message):
        buffer.sample(2)
    for dataset in (buffer.as_dataset(2), buffer.as_dataset(2, epochs=1), buffer.as_dataset()):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            next(iter(dataset))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.function(buffer.sample)(2)
    add_numbers(buffer, 0, 8)
    assert buffer.sample(2)[0].shape == [2]


# Passes


def test_an_ordered_pass_gives_each_frame_once_in_the_order_of_the_stream():
    buffer = reservoir(100)
    add_numbers(buffer, 0, 3000)
    for batch, num_steps in ((None, None), (7, None), (7, 1)):
        dataset = buffer.as_dataset(batch, num_steps, single_deterministic_pass=True)
        elements = list(dataset)
        assert np.concatenate([np.ravel(items) for items, _ in elements]).tolist() == held(buffer)
        assert all(np.all(info.probabilities.numpy() == 1) for _, info in elements)
        assert np.all(elements[-1][0] == elements[-1][1].ids)
        if batch is not None:
            assert [len(items) for items, _ in elements[-2:]] == [7, 2]


def test_a_pass_may_leave_out_its_last_small_batch():
    buffer = reservoir(10, dataset_drop_remainder=True)
    add_numbers(buffer, 0, 30)
    assert [items.shape.as_list() for items, _ in buffer.as_dataset(4, single_deterministic_pass=True)] == [[4], [4]]
    with pytest.raises(ValueError, match="sample_batch_size 11 > capacity 10"):
        buffer.as_dataset(11, single_deterministic_pass=True)


def test_epochs_are_permutations_of_what_is_held_when_they_begin():
    buffer = reservoir(6)
    add_numbers(buffer, 0, 60)
    items = [
        int(items) for items, info in buffer.as_dataset(epochs=2) if float(info.probabilities) == np.float32(1 / 6)
    ]
    assert sorted(items[:6]) == sorted(items[6:]) == held(buffer)
    assert items[:6] != items[6:]


def test_frames_replaced_before_a_pass_reaches_them_are_skipped_and_counted(caplog):
    buffer = reservoir(200)
    add_numbers(buffer, 0, 200)
    elements = iter(buffer.as_dataset(single_deterministic_pass=True))
    seen = [int(next(elements)[0])]  # 64 frames are gathered at a time
    add_numbers(buffer, 200, 100_000)
    with caplog.at_level("WARNING"):
        seen += [int(items) for items, _ in elements]
    assert seen[:64] == list(range(64))
    assert set(seen[64:]) <= set(held(buffer)) | set(range(64, 192))
    assert buffer.stats().skipped == 200 - len(seen) > 0
    assert "replaced before a pass reached them" in caplog.text


# Ids


@hypothesis.given(
    capacity=st.integers(1, 6),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.randoms(use_true_random=False)), max_size=40),
)
def test_rows_are_found_by_id_as_in_a_naive_model(capacity, steps):
    rows = ReservoirRows(capacity)
    model: dict[int, int] = {}
    next_id = 0
    for clear, num, random in steps:
        if clear and num == 4:
            rows.clear()
            model.clear()
        chosen = list(range(len(model), min(capacity, len(model) + num)))
        if not chosen:
            chosen = random.sample(range(capacity), min(num, capacity))
        ids = np.arange(next_id, next_id + len(chosen))
        next_id += len(chosen) + random.randrange(3)
        rows.hide(np.array(chosen))
        rows.publish(np.array(chosen), ids)
        model.update(zip(chosen, ids.tolist(), strict=True))
        by_id = {one: row for row, one in model.items()}
        assert rows.size == len(model)
        held_ids, held_rows = rows.in_order()
        assert dict(zip(held_ids.tolist(), held_rows.tolist(), strict=True)) == by_id
        assert held_ids.tolist() == sorted(by_id)
        asked = np.arange(-2, next_id + 2)
        assert rows.rows_of(asked).tolist() == [by_id.get(one, NOT_HELD) for one in asked.tolist()]


def test_get_refuses_ids_that_are_not_held():
    buffer = reservoir(4)
    add_numbers(buffer, 0, 100)
    kept = held(buffer)
    assert buffer.get(np.array([kept[:2], kept[2:]])).numpy().tolist() == [kept[:2], kept[2:]]
    assert buffer.get(kept[0], 1).shape == [1]
    lost = next(number for number in range(100) if number not in kept)
    with pytest.raises(ValueError, match=rf"id {lost} is not held: 4 of 100 items are; 2 of 3 ids"):
        buffer.get([kept[0], lost, 100])
    with pytest.raises(ValueError, match="id -1 is not held"):
        buffer.get([-1])


def test_priorities_may_be_written_back_and_tell_how_many_are_gone():
    buffer = reservoir(4)
    add_numbers(buffer, 0, 100)
    _, info = buffer.sample(8)
    keys = np.append(info.keys.numpy(), [-1, 100])
    assert buffer.update_priorities(keys, td_errors=np.linspace(-1, 1, 10)) == 2
    assert int(tf.function(lambda keys: buffer.update_priorities(keys, tf.ones([10])))(tf.constant(keys))) == 2
    assert buffer.update_priorities_from(buffer.sample(8, 1)[1], np.ones([8, 1])) == 0
    with pytest.raises(ValueError, match=r"priorities\[1\] is nan"):
        buffer.update_priorities(keys[:2], [1.0, np.nan])


def test_clear_begins_a_new_stream_and_ids_go_on():
    buffer = reservoir(4)
    add_numbers(buffer, 0, 100)
    old = buffer.sample(4)[1].keys
    buffer.clear()
    assert (len(buffer), buffer.num_seen, buffer.gather_all().shape) == (0, 0, [1, 0])
    assert buffer.update_priorities(old, np.ones(4)) == 4
    assert add_numbers(buffer, 0, 3).tolist() == [[100, 101, 102]]
    assert held(buffer) == [0, 1, 2]
    assert buffer.stats().added == 3


def test_ids_go_on_where_final_observations_were_left_out():
    buffer = ReservoirReplayBuffer(STEP, 2, seed=0)
    assert buffer.add_sequence(Step(np.array([[1, 2]], np.int32), np.array([[0, 1]]))).tolist() == [[0, -1]]
    buffer.clear()
    assert buffer.add_batch(Step(np.array([1], np.int32), np.array([2]))).tolist() == [1]


# What it tells of itself


def test_stats_count():
    buffer = reservoir(4, batch_size=2)
    for first in range(0, 4, 2):
        buffer.add_batch(np.array([first, first + 1]))
    buffer.sample(10)
    stats = buffer.stats()
    assert (stats.frames, stats.added, stats.evicted, stats.evicted_unsampled, stats.sampled) == (4, 4, 0, 0, 10)
    assert (stats.fill_share, stats.bytes_held, stats.bytes_capacity, stats.replay_ratio) == (1.0, 32, 32, 2.5)
    assert stats.windows == (WindowCount(Window(1), 4, 0),)
    buffer.add_sequence(np.arange(4, 104).reshape(50, 2).T)
    stats = buffer.stats()
    assert (stats.frames, stats.added, stats.evicted) == (4, 104, 100)
    # Only of the first four any were drawn.
    assert 96 <= stats.evicted_unsampled <= 99
    assert stats.episodes is None


@pytest.mark.parametrize("draw", ["sample", "dataset", "function", "pass"])
def test_what_was_drawn_is_not_evicted_unsampled(draw):
    """A reservoir of one: its item is drawn, then replaced."""
    buffer = reservoir(1)
    add_numbers(buffer, 0, 1)
    if draw == "sample":
        buffer.sample(1)
    elif draw == "function":
        tf.function(buffer.sample)(1)
    else:
        next(iter(buffer.as_dataset(single_deterministic_pass=draw == "pass")))
    assert buffer.stats().sampled == 1
    while held(buffer) == [0]:
        add_numbers(buffer, buffer.num_seen, buffer.num_seen + 1)
    assert buffer.stats().evicted_unsampled == buffer.num_seen - 2


def test_close_is_final_and_may_be_called_twice():
    with reservoir(4) as buffer:
        add_numbers(buffer, 0, 10)
        batches = iter(buffer.as_dataset(2))
        next(batches)
    buffer.close()
    next(batches)
    for call in (buffer.sample, buffer.gather_all, buffer.clear, buffer.end_stream, lambda: add_numbers(buffer, 0, 1)):
        with pytest.raises(ValueError, match="closed; build a new one"):
            call()


def test_end_stream_changes_nothing_but_names_streams_that_are_not_there():
    buffer = reservoir(4, batch_size=2)
    buffer.end_stream()
    buffer.end_stream(1)
    with pytest.raises(ValueError, match="there is no stream 2: this buffer has streams 0 to 1"):
        buffer.end_stream(2)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"capacity": 0}, ValueError, "capacity must be at least 1, got 0"),
        ({"capacity": 2.5}, TypeError, "capacity must be an int"),
        ({"batch_size": True}, TypeError, "batch_size must be an int"),
        ({"min_size_to_sample": 9}, ValueError, "min_size_to_sample 9 is above the capacity of 8 frames"),
        ({"seed": -1}, ValueError, "seed must be an int of at least 0, or None, got -1"),
        ({"capacity": 2**31}, ValueError, r"over the limit of 2\*\*31 - 1; lower capacity"),
        ({"final_frame": "last"}, ValueError, "final_frame must be"),
        ({"end_of_episode_fn": 3}, TypeError, "end_of_episode_fn must be a function"),
    ],
)
def test_wrong_settings_are_refused_at_construction(arguments, kind, message):
    with pytest.raises(kind, match=message):
        ReservoirReplayBuffer(NUMBER, **{"capacity": 8, **arguments})


def test_a_capacity_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"the full capacity needs .*lower capacity"):
        ReservoirReplayBuffer(tf.TensorSpec([1000, 1000], tf.float64), 2**30)


def test_epochs_and_an_ordered_pass_exclude_each_other():
    with pytest.raises(ValueError, match="not both"):
        reservoir(4).as_dataset(epochs=1, single_deterministic_pass=True)


def test_graphs_do_not_keep_the_buffer_alive():
    buffer = reservoir(4)
    add_numbers(buffer, 0, 10)
    tf.function(buffer.sample).get_concrete_function(2)
    next(iter(buffer.as_dataset(2)))
    gone = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert gone() is None


def test_threads_may_add_and_sample_together():
    buffer = reservoir(50)
    add_numbers(buffer, 0, 10)
    errors: list[BaseException] = []

    def run(function: Any) -> None:
        try:
            for _ in range(200):
                function()
        except BaseException as error:
            errors.append(error)

    functions = [lambda: buffer.add_batch(np.array([1])), lambda: buffer.sample(16), buffer.gather_all]
    threads = [threading.Thread(target=run, args=(function,)) for function in [*functions, *functions]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert buffer.num_seen == 410
