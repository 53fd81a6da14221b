"""Prioritized replay in process: field cases, literal numbers, weights, keys, errors, odds."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import PRIORITIZED_PRESETS, EmptyBufferError, TFPrioritizedReplayBuffer, Window
from replayfeed.buffers.priorities import sequence_priority

NUMBER = tf.TensorSpec([], tf.int64)


def numbers(capacity, values=(), **settings):
    """A buffer of numbers with alpha and beta 1."""
    settings = {"alpha": 1.0, "beta": 1.0, "seed": 0, **settings}
    buffer = TFPrioritizedReplayBuffer(NUMBER, 1, capacity, **settings)
    for number, priority in enumerate(values):
        buffer.add_batch([number], priorities=None if priority is None else [priority])
    return buffer


def chances(buffer, num=4096, **how):
    """Each number's chance as the buffer tells it; those that never came are missing."""
    items, info = buffer.sample(num, **how)
    found = np.asarray(items).reshape(num, -1)[:, 0].tolist()
    return dict(sorted(zip(found, told(info), strict=True)))


def told(info):
    return info.probabilities.numpy().astype(np.float64).round(6).tolist()


def test_fr_055_new_frames_get_the_largest_priority_held():
    buffer = numbers(10, [0.1, 0.2, 0.4, None])
    assert chances(buffer) == {0: 0.090909, 1: 0.181818, 2: 0.363636, 3: 0.363636}  # 1, 2, 4, 4 of 11


def test_fr_055_the_first_frame_gets_one_and_an_evicted_outlier_does_not_rule():
    buffer = numbers(3, [None, None])
    buffer.update_priorities([0, 1], [100.0, 0.5])
    buffer.add_batch([2], priorities=[0.5])
    buffer.add_batch([3])  # overwrites the one with 100
    assert chances(buffer) == {1: 0.333333, 2: 0.333333, 3: 0.333333}


@pytest.mark.parametrize(("initial", "expected"), [("ever", 100 / 101), (4.0, 0.8), (0.0, 0.0)])
def test_what_new_frames_get_can_be_chosen(initial, expected):
    buffer = numbers(2, [100.0, 1.0], initial=initial)
    buffer.add_batch([2])  # overwrites the one with 100
    assert chances(buffer).get(2, 0.0) == pytest.approx(expected, abs=1e-6)


def test_where_all_priorities_are_zero_a_new_frame_gets_one():
    assert chances(numbers(4, [0.0, 0.0])) == {0: 0.5, 1: 0.5}
    assert chances(numbers(4, [0.0, 0.0, None])) == {2: 1.0}


def test_fr_057_absolute_td_errors_and_eps_before_the_power():
    buffer = numbers(4, [None, None], alpha=0.5, eps=0.01)
    buffer.update_priorities([0, 1], td_errors=[-5.0, 1.0])
    assert chances(buffer) == {0: 0.690133, 1: 0.309867}  # 2.2383 and 1.0050


def test_fr_059_priorities_stay_with_their_frames_when_the_ring_turns():
    buffer = numbers(4, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert chances(buffer) == {1: 0.142857, 2: 0.214286, 3: 0.285714, 4: 0.357143}


def test_fr_060_a_key_whose_frame_was_overwritten_changes_nothing_and_is_counted():
    buffer = numbers(3, [1.0, 1.0, 1.0])
    _, info = buffer.sample(1)
    buffer.add_sequence([[3, 4, 5]], priorities=[[1.0, 1.0, 1.0]])
    assert buffer.update_priorities(info.keys, [99.0]) == 1
    assert chances(buffer) == {3: 0.333333, 4: 0.333333, 5: 0.333333}
    assert buffer.stats().stale_updates == 1
    assert buffer.update_priorities([2**62, -1], [1.0, 1.0]) == 2


def test_fr_062_neighbours_in_time_have_keys_of_their_own():
    """Ids of a stream's frames lie `batch_size` apart, and `info.ids` has those of a window."""
    buffer = TFPrioritizedReplayBuffer(NUMBER, 2, 10, alpha=1.0, seed=0)
    ids = buffer.add_sequence([[0, 1, 2, 3], [10, 11, 12, 13]], priorities=np.ones((2, 4)))
    _, info = buffer.sample(8, num_steps=2)
    neighbours = info.ids[:, 1]
    buffer.update_priorities(neighbours, np.zeros(8))
    buffer.update_priorities(ids[:, 0], [5.0, 5.0])
    assert {0, 10} <= set(chances(buffer))
    assert not set(neighbours.numpy().tolist()) & set(buffer.sample(512)[1].keys.numpy().tolist())


@pytest.mark.parametrize(
    ("norm", "expected"),
    [(None, [2.5, 1.25, 0.8333333, 0.625]), ("buffer", [1.0, 0.5, 0.3333333, 0.25])],
)
@pytest.mark.parametrize("way", ["sample", "as_dataset", "parallel calls", "tf.function"])
def test_fr_063_weights_by_each_norm(norm, expected, way):
    buffer = numbers(4, [1.0, 2.0, 3.0, 4.0], weight_norm=norm)
    if way == "sample":
        items, info = buffer.sample(64)
    elif way == "as_dataset":
        items, info = next(iter(buffer.as_dataset(64)))
    elif way == "parallel calls":
        items, info = next(iter(buffer.as_dataset(64, num_parallel_calls=2)))
    else:
        items, info = tf.function(lambda: buffer.sample(64))()
    np.testing.assert_allclose(info.weights, np.array(expected)[items.numpy()], rtol=1e-6)
    assert len(set(items.numpy().tolist())) == 4


@pytest.mark.parametrize("way", ["sample", "as_dataset", "tf.function", "preprocessed", "sample_at_least"])
def test_fr_063_weights_are_divided_by_the_largest_of_their_own_batch(way):
    buffer = numbers(4, [0.0, 2.0, 3.0, 4.0])
    if way == "as_dataset":
        batches = list(buffer.as_dataset(3).take(40))
    elif way == "preprocessed":
        batches = list(buffer.as_dataset(3, sequence_preprocess_fn=lambda items: items).take(40))
    else:
        draw = {
            "sample": lambda: buffer.sample(3),
            "tf.function": tf.function(lambda: buffer.sample(3)),
            "sample_at_least": lambda: buffer.sample_at_least(3),
        }[way]
        batches = [draw() for _ in range(40)]
    for items, info in batches:
        raw = 1 / np.array([np.nan, 2.0, 3.0, 4.0])[items.numpy()]
        np.testing.assert_allclose(info.weights, raw / raw.max(), rtol=1e-5)


def test_o1_one_item_of_almost_no_priority_scales_every_batch_down_by_buffer_but_not_by_batch():
    priorities = [1e-4, 1.0, 1.0, 1.0]
    for norm, expected in (("batch", 1.0), ("buffer", 1e-4)):
        _, info = numbers(4, priorities, weight_norm=norm, seed=2).sample(8)
        np.testing.assert_allclose(info.weights, expected, rtol=1e-5)


def test_o5_each_frame_of_one_add_keeps_a_priority_of_its_own():
    buffer = numbers(8)
    buffer.add_sequence([[0, 1, 2]], priorities=[[1.0, 2.0, 5.0]])
    assert chances(buffer) == {0: 0.125, 1: 0.25, 2: 0.625}


def test_o11_alpha_is_applied_once_and_the_largest_priority_is_a_raw_one():
    buffer = numbers(8, [4.0], alpha=0.5)
    for number in (1, 2, 3):
        buffer.add_batch([number])
    buffer.update_priorities([3], [1.0])
    assert chances(buffer) == {0: 0.285714, 1: 0.285714, 2: 0.285714, 3: 0.142857}  # 2, 2, 2, 1 of 7


def test_fr_065_weights_have_one_value_a_row_for_windows_too():
    buffer = numbers(100, range(1, 50))
    _, info = buffer.sample(5, num_steps=3)
    assert info.weights.shape == info.probabilities.shape == info.keys.shape == [5]
    assert info.mask.shape == info.ids.shape == [5, 3]


def test_without_a_batch_weights_are_not_divided():
    buffer = numbers(4, [1.0, 3.0])
    for _, info in [buffer.sample(), *buffer.as_dataset().take(5)]:
        assert info.weights.shape == []
        assert float(info.weights) == pytest.approx(1 / (2 * float(info.probabilities)), rel=1e-6)


def test_beta_can_be_a_variable_or_a_schedule():
    beta = tf.Variable(0.0)
    live = numbers(4, [1.0, 4.0], beta=beta, weight_norm=None)
    dataset = iter(live.as_dataset(64))
    draw = tf.function(lambda: live.sample(64))
    for value in (0.0, 1.0):
        beta.assign(value)
        for _ in range(30):  # what was drawn ahead is used up
            items, info = next(dataset)
        for numbers_drawn, told_of in ((items, info), live.sample(64), draw()):
            chance = np.array([0.2, 0.8])[numbers_drawn.numpy()]
            np.testing.assert_allclose(told_of.weights, (2 * chance) ** -value, rtol=1e-6)
    schedule = tf.keras.optimizers.schedules.PolynomialDecay(0.0, 4, 1.0)
    scheduled = numbers(4, [1.0, 4.0], beta=schedule, weight_norm=None)
    for step in range(6):
        items, info = scheduled.sample(8)
        chance = np.array([0.2, 0.8])[items.numpy()]
        np.testing.assert_allclose(info.weights, (2 * chance) ** -min(1.0, step / 4), rtol=1e-5)
    # A dataset counts batches, whether or not a function takes samples one by one.
    for settings in ({}, {"sequence_preprocess_fn": lambda items: items}):
        by_batch = numbers(4, [1.0, 4.0], beta=lambda n: tf.cast(n, tf.float64) / 100, weight_norm=None)
        items, info = next(iter(by_batch.as_dataset(16, **settings)))
        np.testing.assert_array_equal(info.weights, 1)  # the first: beta 0
    # In a dataset it counts on, once for the eight batches of a call.
    steps = []
    counted = numbers(4, [1.0, 4.0], beta=lambda step: [steps.append(step), 0.5][1], weight_norm=None)
    for _ in counted.as_dataset(4).take(3):
        pass
    assert counted._weigher._num_batches.array[0] >= 8
    assert steps and all(isinstance(step, tf.Tensor) for step in steps)


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        ([0, 1], {"priorities": [1.0, -1.0]}, r"priorities\[1\] is -1.0: a priority must be finite and at least 0"),
        ([0, 1], {"priorities": [np.nan, 1.0]}, r"priorities\[0\] is nan"),
        ([0, 1], {"td_errors": [0.0, np.inf]}, r"td_errors\[1\] is inf"),
        ([0, 1], {"td_errors": [0.0]}, r"td_errors: expected shape \[2\], got \[1\]"),
        ([0.5], {"priorities": [1.0]}, "keys and ids are int64"),
        ([0], {}, "exactly one of them"),
        (
            [0, 1],
            {"priorities": [1.0, 1e200]},
            r"priorities\[1\] is 1e\+200: its power alpha=1.0 .*scale the priorities",
        ),
    ],
)
@pytest.mark.parametrize("graph", [False, True])
def test_bad_updates_name_the_position_and_change_nothing(keys, values, message, graph):
    buffer = numbers(4, [1.0, 3.0])
    if graph:
        tensors = {name: tf.constant(value, tf.float64) for name, value in values.items()}
        update = tf.function(lambda: buffer.update_priorities(tf.constant(keys), **tensors))
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError, tf.errors.UnknownError), match=message):
            update()
    else:
        with pytest.raises(ValueError, match=message):
            buffer.update_priorities(keys, **values)
    assert chances(buffer) == {0: 0.25, 1: 0.75}


@pytest.mark.parametrize("priorities", [[-1.0], [np.nan], [np.inf], [1.0, 1.0], [1e200]])
def test_a_bad_priority_of_a_new_frame_stores_nothing(priorities):
    buffer = numbers(4, [1.0])
    with pytest.raises(ValueError, match="priorit"):
        buffer.add_batch([7], priorities=priorities)
    with pytest.raises(ValueError, match="priorit"):
        buffer.add_sequence([[7]], priorities=[priorities])
    assert len(buffer) == 1


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_updates_take_arrays_and_tensors_eagerly_and_in_a_function(tensors, graph):
    buffer = numbers(10, [1.0] * 4)
    keys, errors = np.array([3, 0, 1, 2, 99]), np.array([8.0, -1.0, 4.0, 2.0, 1.0], np.float32)
    if tensors:
        keys, errors = tf.constant(keys), tf.constant(errors)
    update = tf.function(buffer.update_priorities) if graph else buffer.update_priorities
    gone = update(keys, td_errors=errors)
    assert int(gone) == 1 and isinstance(gone, tf.Tensor) == graph
    assert chances(buffer) == {0: 0.066667, 1: 0.266667, 2: 0.133333, 3: 0.533333}


def test_of_a_key_given_twice_the_last_value_counts():
    buffer = numbers(10, [1.0, 1.0])
    buffer.update_priorities([1, 1, 1], [5.0, 0.0, 3.0])
    assert chances(buffer) == {0: 0.25, 1: 0.75}


def test_a_zero_priority_is_never_drawn_beside_others():
    buffer = numbers(10, [0.0, 1.0, 0.0, 1e-30])
    assert set(chances(buffer)) <= {1, 3}
    assert set(np.concatenate([i.numpy() for i, _ in buffer.as_dataset(512).take(4)]).tolist()) <= {1, 3}


def test_alpha_zero_is_uniform_over_priorities_above_zero():
    assert chances(numbers(10, [0.0, 1.0, 7.0, 100.0], alpha=0.0)) == {1: 0.333333, 2: 0.333333, 3: 0.333333}


def test_a_training_loop_in_one_function_updates_what_it_drew():
    buffer = numbers(100, [1.0] * 64)
    iterator = iter(buffer.as_dataset(16))

    @tf.function
    def train(num):
        for _ in tf.range(num):
            items, info = next(iterator)
            buffer.update_priorities(info.keys, td_errors=tf.cast(items, tf.float32))

    train(40)
    index = buffer._sampler(None)._starts._index
    masses = index.masses(np.arange(64))
    changed = np.flatnonzero(masses != 1)
    np.testing.assert_allclose(masses[changed], changed + 1e-6, rtol=1e-6)
    assert len(changed) > 50


def test_windows_take_one_priority_each_from_errors_of_each_frame():
    buffer = numbers(100, [1.0] * 8)
    _, info = buffer.sample(2, window=Window(3))
    errors = np.array([[1.0, -4.0, 1.0], [0.0, 0.0, 3.0]], np.float32)
    assert buffer.update_priorities_from(info, errors, eta=0.5) == 0
    index = buffer._sampler(Window(3))._starts._index
    expected = dict(zip(info.keys.numpy().tolist(), (sequence_priority(errors, 0.5) + 1e-6).tolist(), strict=True))
    for key, value in expected.items():
        assert index.masses(np.array([key]))[0] == pytest.approx(value, rel=1e-6)


def test_fr_066_a_buffer_that_is_just_full_and_tiny_ones():
    for capacity in (1, 3, 4096):
        buffer = numbers(capacity, [1.0] * min(capacity, 3))
        if capacity == 4096:
            buffer.add_sequence([np.arange(4093)])
        assert len(buffer) == capacity
        for _ in range(200):
            items, _ = buffer.sample(1)
            assert 0 <= int(items[0]) < 4096


def test_fr_067_o2_the_newest_frame_is_drawn_as_often_as_the_others():
    items, _ = numbers(3, [1.0, 1.0, 1.0]).sample(30_000)
    assert abs(np.bincount(items.numpy(), minlength=3) - 10_000).max() < 330  # 4 sigma
    items, _ = numbers(3, [2.0]).sample(5)  # one frame alone recursed without end elsewhere
    assert items.numpy().tolist() == [0] * 5


def test_fr_003_prioritized_windows_stay_in_their_trajectory():
    buffer = TFPrioritizedReplayBuffer(NUMBER, 1, 20, seed=0)
    trajectories = [3, 3, 0, 1, 1, 1, 2, 2, 2, 3]
    for step, (now, following) in enumerate(zip(trajectories, [*trajectories[1:], None], strict=True)):
        buffer.add_batch([step], end_of_episode=[now != following], priorities=[1.0 + step])
    items, _ = buffer.sample(1000, num_steps=3)
    assert set(items[:, 0].numpy().tolist()) == {3, 6}


@pytest.mark.parametrize("graph", [False, True])
def test_ranks_decide_whatever_the_priorities_are(graph):
    buffer = numbers(16, [1e-9, 5.0, 1e9, 7.0, 0.0], variant="rank")
    if graph:
        batches = list(buffer.as_dataset(4096).take(1))
        items = np.concatenate([items for items, _ in batches])
        found = dict(zip(items.tolist(), told(batches[0][1]), strict=True))
    else:
        found = chances(buffer)
    assert found == {2: 0.48, 3: 0.24, 1: 0.16, 0: 0.12}  # 1, 1/2, 1/3, 1/4 of 25/12


def test_ranks_follow_updates_evictions_and_new_frames():
    buffer = numbers(4, [1.0, 2.0, 3.0, 4.0], variant="rank")
    buffer.update_priorities([0], [10.0])
    assert chances(buffer) == {0: 0.48, 1: 0.12, 2: 0.16, 3: 0.24}
    buffer.add_batch([4])  # overwrites 0, and gets the largest left, 4, as 3 has
    found = chances(buffer)
    assert {number: found[number] for number in (1, 2)} == {1: 0.12, 2: 0.16}
    assert sorted([found[3], found[4]]) == [0.24, 0.48]
    buffer.clear()
    buffer.add_batch([9])
    assert chances(buffer) == {9: 1.0}


def test_no_two_frames_share_a_rank_however_many_priorities_changed():
    """Frames of equal priorities, and more of them changed than are sorted at once."""
    buffer = numbers(10_000, variant="rank")
    buffer.add_sequence([np.zeros(10_000, np.int64)])
    buffer.sample(1)
    total = (1 / np.arange(1, 10_001)).sum()
    for first in range(0, 3000, 600):
        buffer.update_priorities(np.arange(first, first + 600), np.full(600, 1.0))
        masses = np.sort(buffer._sampler(None)._starts._index.masses(np.arange(10_000)))[::-1]
        np.testing.assert_allclose(masses, 1 / np.arange(1, 10_001), rtol=1e-6)
        # Six hundred frames that are alike have the share of so many places at most.
        share = np.mean(buffer.sample(20_000)[1].keys.numpy() < 600)
        assert share < (1 / np.arange(1, 601)).sum() / total + 0.013  # 4 sigma


def test_ranks_of_many_frames_are_those_of_a_sort_once_all_have_changed():
    buffer = numbers(1600, variant="rank")
    rng = np.random.default_rng(0)
    buffer.add_sequence([np.arange(1600)])
    buffer.sample(1)
    values = rng.permutation(1600) + 1.0
    buffer.update_priorities(np.arange(1600), values)
    ranks = np.empty(1600)
    ranks[np.argsort(-values)] = np.arange(1, 1601)
    _, info = buffer.sample(256)
    total = (1 / np.arange(1, 1601)).sum()
    np.testing.assert_allclose(info.probabilities, 1 / ranks[info.keys.numpy()] / total, rtol=1e-5)


def test_the_largest_rank_is_always_the_largest_priority():
    buffer = numbers(5000, variant="rank")
    buffer.add_sequence([np.arange(5000)], priorities=[np.arange(5000) + 1.0])
    buffer.sample(1)
    for step, key in enumerate([7, 4000, 7, 123]):
        buffer.update_priorities([key], [10_000.0 + step])
        index = buffer._sampler(None)._starts._index
        assert index.masses(np.array([key]))[0] == 1.0 and index.largest == 10_000.0 + step


def test_what_can_not_be_drawn_does_not_rule_new_frames():
    """Final observations come with the largest priority, too, and nothing ever lowers it."""
    spec = {"value": tf.TensorSpec([], tf.int64), "is_last": tf.TensorSpec([], tf.bool)}
    buffer = TFPrioritizedReplayBuffer(spec, 1, 100, alpha=1.0, seed=0)
    buffer.add_sequence({"value": [[0, 1, 2]], "is_last": [[False, False, True]]}, priorities=[[100.0] * 3])
    _, info = buffer.sample(4)
    buffer.update_priorities([0, 1], [0.5, 0.25])
    buffer.add_batch({"value": [3], "is_last": [False]})
    assert buffer._sampler(None)._starts._index.masses(np.array([3]))[0] == 0.5


def test_stratified_batches_hold_each_frame_by_its_share():
    buffer = numbers(4, [1.0, 2.0, 4.0, 8.0], stratified=True)
    share = np.array([1.0, 2.0, 4.0, 8.0]) / 15
    for items, _ in [buffer.sample(100), *buffer.as_dataset(100).take(3), tf.function(lambda: buffer.sample(100))()]:
        assert abs(np.bincount(items.numpy(), minlength=4) - share * 100).max() <= 1


def test_equal_seeds_repeat():
    draws = []
    for seed in (5, 5, 6):
        buffer = numbers(100, np.arange(100) + 1.0, seed=seed)
        batches = [buffer.sample(8)[0], *(items for items, _ in buffer.as_dataset(8).take(3))]
        draws.append(np.concatenate([items.numpy() for items in batches]).tolist())
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"alpha": -0.1}, ValueError, "alpha must be finite and at least 0, got -0.1"),
        ({"alpha": "1"}, TypeError, "alpha must be a number"),
        ({"beta": -1.0}, ValueError, "beta must be finite and at least 0"),
        ({"beta": tf.Variable([1.0])}, ValueError, "beta must be a scalar"),
        ({"eps": np.inf}, ValueError, "eps must be finite"),
        ({"weight_norm": "max"}, ValueError, "weight_norm must be 'batch', 'buffer' or None, got 'max'"),
        ({"initial": "highest"}, ValueError, "initial must be 'max', 'ever' or a priority"),
        ({"initial": -1.0}, ValueError, "initial must be finite and at least 0"),
        ({"variant": "ranked"}, ValueError, "variant must be 'proportional' or 'rank'"),
        ({"variant": "rank", "alpha": 5.0}, ValueError, "alpha must be at most 4"),
    ],
)
def test_settings_are_checked_at_construction(settings, error, message):
    with pytest.raises(error, match=message):
        numbers(4, **settings)


def test_presets():
    rainbow, rllib = PRIORITIZED_PRESETS["rainbow"], PRIORITIZED_PRESETS["rllib"]
    assert (rainbow.alpha, rainbow.beta, rainbow.num_steps) == (0.5, 0.5, 3)
    assert (rllib.alpha, rllib.beta, rllib.weight_norm, rllib.initial) == (0.6, 0.4, "buffer", "ever")
    buffer = TFPrioritizedReplayBuffer.from_preset("rainbow", NUMBER, 1, 10, seed=0)
    buffer.add_sequence([[0, 1]], priorities=[[1.0, 4.0]])
    assert chances(buffer) == {0: 0.333333, 1: 0.666667}
    with pytest.raises(ValueError, match="there is no preset 'apex': there are rainbow, rllib"):
        TFPrioritizedReplayBuffer.from_preset("apex", NUMBER, 1, 10)


def test_a_closed_buffer_refuses_updates():
    buffer = numbers(4, [1.0])
    buffer.close()
    with pytest.raises(ValueError, match="is closed"):
        buffer.update_priorities([0], [1.0])


def test_min_size_to_sample_holds_by_priority_too():
    buffer = numbers(10, [1.0, 1.0], min_size_to_sample=3)
    with pytest.raises(EmptyBufferError, match="2 of 3 frames"):
        buffer.sample(1)
    buffer.add_batch([2])
    assert buffer.sample(1)[0].shape == [1]


def test_rows_without_a_transition_do_not_take_over():
    """Cut episodes without a final observation: their last frames have no transition, and their errors never fall."""
    buffer = numbers(10, [1.0] * 4)
    _, info = buffer.sample(4)
    info = info._replace(mask=tf.constant([True, False, True, False]))
    keys = info.keys.numpy()
    for errors in ([1.0, 9.0, 1.0, 9.0], np.full([4, 1], 9.0), tf.fill([4], 9.0), tf.fill([4, 1], 9.0)):
        buffer.update_priorities_from(info._replace(keys=[0, 1, 2, 3]), errors)
        assert set(chances(buffer)) == {0, 2}, keys
    pairs = info._replace(
        keys=[0, 1, 2, 3], mask=tf.constant([[True, True], [False, False], [True, False], [True, True]])
    )
    tf.function(lambda: buffer.update_priorities_from(pairs, tf.fill([4], 1.0)))()
    assert set(chances(buffer)) == {0, 2, 3}


def test_a_preset_takes_another_beta():
    buffer = TFPrioritizedReplayBuffer.from_preset("rllib", NUMBER, 1, 10, beta=0.0)
    buffer.add_sequence([[0, 1]], priorities=[[1.0, 4.0]])
    assert buffer.sample(8)[1].weights.numpy().tolist() == [1.0] * 8


def test_a_schedule_that_cannot_be_in_a_graph_says_what_to_do():
    buffer = numbers(4, [1.0], beta=lambda n: min(1.0, 0.4 + n * 0.01))
    buffer.sample(2)
    with pytest.raises(TypeError, match="beta: .* write it with TensorFlow's operations"):
        buffer.as_dataset(2)


@pytest.mark.parametrize("value", [-1.0, np.nan])
def test_a_live_beta_is_checked_wherever_it_is_read(value):
    beta = tf.Variable(0.5)
    buffer = numbers(4, [1.0, 2.0], beta=beta)
    beta.assign(value)
    with pytest.raises(ValueError, match="beta must be finite and at least 0"):
        buffer.sample(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="beta must be finite and at least 0"):
        next(iter(buffer.as_dataset(2)))
    with pytest.raises(ValueError, match="beta must be a scalar number"):
        numbers(4, beta=tf.Variable(True))


def test_settings_given_by_place_are_refused():
    with pytest.raises(TypeError, match=r"scope must be a str, got 0.6; settings of this package are given by name"):
        TFPrioritizedReplayBuffer(NUMBER, 1, 10, 0.6)
    with pytest.raises(TypeError, match="stratified must be a bool, got 'no'"):
        numbers(4, stratified="no")


def test_context_of_a_window_counts_for_no_priority():
    buffer = numbers(100, [1.0] * 8)
    _, info = buffer.sample(2, window=Window(3, burn_in=2, short="pad"))
    whole = np.ones((2, 5))
    whole[:, :2] = 100.0
    for errors in (whole, whole[:, 2:], tf.constant(whole)):
        buffer.update_priorities_from(info, errors, burn_in=2)
        index = buffer._sampler(None)._starts._index
        np.testing.assert_allclose(index.masses(info.keys.numpy()), 1.000001, rtol=1e-6)
