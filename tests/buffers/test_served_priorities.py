"""Priorities, weights and keys of tables on a Reverb server.

Data is one int64 counter a frame, an item is one frame unless said otherwise: an item's value names it.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import reverb
import tensorflow as tf

from replayfeed.buffers import (
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    ReplayServer,
    ReverbEpisodicReplayBuffer,
    ReverbReplayBuffer,
    TableConfig,
    Uniform,
)

COUNTER = tf.TensorSpec([], tf.int64)


@pytest.fixture
def make() -> Iterator[Any]:
    """`make(...)`: a buffer with a server of its own, drawing in proportion to priorities unless told otherwise."""
    built = []

    def build(cls: Any = ReverbReplayBuffer, **settings: Any) -> Any:
        if cls is ReverbReplayBuffer:
            settings.setdefault("sequence_length", 1)
        built.append(cls.local(COUNTER, **{"max_size": 10, "sampler": Prioritized(1.0), "timeout_s": 30.0, **settings}))
        return built[-1]

    yield build
    for buffer in built:
        buffer.close()


def fill(buffer: Any, priorities: Any) -> None:
    """Items 0, 1, ... with these priorities."""
    buffer.add_sequence(np.arange(len(priorities))[None], priorities=np.array([priorities], np.float64))


def drawn(buffer: Any, rows: int = 64) -> tuple[np.ndarray, Any]:
    """Values of drawn items, and their info."""
    items, info = buffer.sample(rows)
    return items.numpy(), info


def rounded(values: Any) -> list[float]:
    return [round(value, 4) for value in np.asarray(values, np.float64).tolist()]


def told(buffer: Any, rows: int = 400) -> dict[int, float]:
    """The probability that Reverb tells of each item that was drawn."""
    values, info = drawn(buffer, rows)
    return dict(zip(values.tolist(), rounded(info.probabilities), strict=True))


def keys_of(buffer: Any, values: list[int]) -> np.ndarray:
    """Keys of the items, found by drawing until each was met."""
    found: dict[int, int] = {}
    for _ in range(200):
        items, info = drawn(buffer, 256)
        found.update(zip(items.tolist(), info.keys.numpy().tolist(), strict=True))
        if set(values) <= set(found):
            return np.array([found[value] for value in values])
    raise AssertionError(f"{set(values) - set(found)} were never drawn")


def weights_of(values: np.ndarray, info: Any) -> dict[int, float]:
    return dict(zip(values.tolist(), rounded(info.weights), strict=True))


# Weights

RAW = {0: 2.5, 1: 1.25, 2: 0.8333, 3: 0.625}
BY_BUFFER = {0: 1.0, 1: 0.5, 2: 0.3333, 3: 0.25}


@pytest.mark.parametrize(("norm", "expected"), [(None, RAW), ("buffer", BY_BUFFER)])
def test_fr_063_weights_of_priorities_1_2_3_4(make, norm, expected):
    buffer = make(beta=1.0, weight_norm=norm, tracks_least=True)
    fill(buffer, [1, 2, 3, 4])
    assert weights_of(*drawn(buffer, 200)) == expected
    items, info = next(iter(buffer.as_dataset(200)))
    assert weights_of(items.numpy(), info) == expected


def test_fr_063_weights_are_relative_to_their_batch_by_default(make):
    buffer = make(beta=1.0)
    fill(buffer, [0, 0, 3, 4])
    for values, info in (drawn(buffer, 50), next(iter(buffer.as_dataset(50)))):
        assert weights_of(np.asarray(values), info) == {2: 1.0, 3: 0.75}


def test_beta_is_0_4_by_default(make):
    buffer = make()
    fill(buffer, [1, 0, 0, 4])
    assert weights_of(*drawn(buffer)) == {0: 1.0, 3: round(0.25**0.4, 4)}


def test_weights_with_an_exponent_go_by_probabilities(make):
    buffer = make(sampler=Prioritized(0.5), beta=1.0, weight_norm="buffer", tracks_least=True)
    fill(buffer, [1, 4, 9, 16])
    assert weights_of(*drawn(buffer, 200)) == BY_BUFFER


@pytest.mark.parametrize("sampler", [Uniform(), Fifo(), Lifo(), MinHeap(), MaxHeap()], ids=repr)
@pytest.mark.parametrize("norm", ["batch", "buffer", None])
def test_t8_weights_are_exactly_1_where_draws_do_not_go_by_chance_of_priority(make, sampler, norm):
    buffer = make(sampler=sampler, beta=1.0, weight_norm=norm)
    fill(buffer, [1, 2, 3, 4])
    for _, info in (drawn(buffer, 8), next(iter(buffer.as_dataset(8))), buffer.sample()):
        assert info.weights.dtype == tf.float32
        np.testing.assert_array_equal(info.weights, np.ones(info.weights.shape, np.float32))


def test_single_elements_have_no_batch_to_be_relative_to(make):
    buffer = make(beta=1.0)
    fill(buffer, [1, 2, 3, 4])
    for item, info in (buffer.sample(), next(iter(buffer.as_dataset()))):
        assert round(float(info.weights), 4) == RAW[int(item)]


def test_a_preprocess_function_does_not_change_weights(make):
    buffer = make(beta=1.0, weight_norm=None)
    fill(buffer, [1, 2, 3, 4])
    items, info = next(iter(buffer.as_dataset(100, sequence_preprocess_fn=lambda items: items + 100)))
    assert weights_of(items.numpy() - 100, info) == RAW


def test_a_beta_in_a_variable_is_read_at_each_draw(make):
    beta = tf.Variable(1.0)
    buffer = make(beta=beta, weight_norm=None)
    fill(buffer, [1, 3])
    assert weights_of(*drawn(buffer)) == {0: 2.0, 1: 0.6667}
    beta.assign(0.0)
    assert weights_of(*drawn(buffer)) == {0: 1.0, 1: 1.0}


def test_a_dataset_that_runs_follows_a_beta_in_a_variable(make):
    beta = tf.Variable(1.0)
    buffer = make(beta=beta, weight_norm=None)
    fill(buffer, [1, 3])
    rows = iter(buffer.as_dataset(50))
    items, info = next(rows)
    assert weights_of(items.numpy(), info) == {0: 2.0, 1: 0.6667}
    beta.assign(0.0)
    for _ in range(5):  # what was weighed ahead
        items, info = next(rows)
    assert weights_of(items.numpy(), info) == {0: 1.0, 1: 1.0}


def test_a_schedule_of_beta_gets_the_number_of_batches_drawn(make):
    buffer = make(beta=lambda num: tf.minimum(1.0, tf.cast(num, tf.float32) / 2), weight_norm=None)
    fill(buffer, [1, 3])
    assert [weights_of(*drawn(buffer))[1] for _ in range(4)] == [1.0, round(0.6667**0.5, 4), 0.6667, 0.6667]


@pytest.mark.parametrize(
    ("beta", "error", "message"),
    [
        (-0.1, ValueError, "beta must be finite and at least 0"),
        ("high", TypeError, "beta must be a number"),
        (tf.Variable([1.0]), ValueError, "beta: a variable must hold one floating number"),
        (lambda num: min(1.0, num / 10), ValueError, "made of TensorFlow's operations"),
        (lambda num: tf.constant(-1.0), ValueError, r"beta\(0\) must be finite and at least 0"),
    ],
)
def test_wrong_betas_are_refused(make, beta, error, message):
    with pytest.raises(error, match=message):
        make(beta=beta)


def test_a_wrong_norm_is_refused(make):
    with pytest.raises(ValueError, match="weight_norm must be 'batch', 'buffer' or None, got 'max'"):
        make(weight_norm="max")


def test_o1_normalising_by_the_buffer_needs_a_table_that_tells_its_least_priority(make):
    with pytest.raises(ValueError, match="weight_norm='buffer'.*tracks_least=True"):
        make(weight_norm="buffer")


def test_o1_the_least_priority_is_that_of_items_that_can_be_drawn_and_follows_updates(make):
    buffer = make(beta=1.0, weight_norm="buffer", tracks_least=True)
    fill(buffer, [0, 2, 4, 8])
    assert weights_of(*drawn(buffer, 200)) == {1: 1.0, 2: 0.5, 3: 0.25}
    buffer.update_priorities(keys_of(buffer, [1, 2]), [0.0, 1.0])
    assert weights_of(*drawn(buffer, 200)) == {2: 1.0, 3: 0.125}


def test_all_priorities_zero_is_uniform_with_weights_of_1(make):
    for norm in ("batch", "buffer", None):
        buffer = make(beta=1.0, weight_norm=norm, tracks_least=True)
        fill(buffer, [0, 0, 0, 0])
        assert weights_of(*drawn(buffer, 100)) == {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}


@pytest.mark.parametrize(("num_steps", "shape"), [(None, []), (2, [2])])
def test_fr_065_every_sample_carries_a_key_a_probability_and_a_weight_for_each_row(make, num_steps, shape):
    buffer = make(sequence_length=2)
    fill(buffer, [1, 2, 3, 4])
    for _, info in (buffer.sample(5, num_steps), next(iter(buffer.as_dataset(5, num_steps)))):
        assert info.ids.shape == [5, *shape]
        assert [(leaf.shape, leaf.dtype) for leaf in (info.probabilities, info.keys, info.weights)] == [
            ([5], tf.float32),
            ([5], tf.int64),
            ([5], tf.float32),
        ]
    assert buffer.as_dataset(5, num_steps).element_spec[1].weights == tf.TensorSpec([5], tf.float32)


def test_weights_inside_a_tf_function(make):
    buffer = make(beta=1.0, weight_norm=None)
    fill(buffer, [1, 3])
    items, info = tf.function(lambda: buffer.sample(50))()
    assert weights_of(items.numpy(), info) == {0: 2.0, 1: 0.6667}


def test_items_of_priority_0_count_as_items_of_the_table(make):
    """N is the table's size, which is all that Reverb tells: 4 * 1/4 here."""
    buffer = make(beta=1.0, weight_norm=None)
    fill(buffer, [1, 0, 0, 3])
    assert weights_of(*drawn(buffer)) == {0: 1.0, 3: 0.3333}


# Odds


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_draws_are_proportional_to_the_powers_of_priorities(make, exponent):
    """Chi-square with 3 degrees of freedom; 16.27 is passed by one right sampler in a thousand, 30 by 10^-6."""
    buffer = make(sampler=Prioritized(exponent))
    fill(buffer, [1, 2, 3, 4])
    expected = np.arange(1, 5) ** exponent
    expected = expected / expected.sum()
    values, info = drawn(buffer, 8000)
    counts = np.bincount(values, minlength=4)
    assert ((counts - 8000 * expected) ** 2 / (8000 * expected)).sum() < 30
    np.testing.assert_allclose(info.probabilities, expected[values], rtol=1e-6)


def test_fr_057_signs_of_td_errors_do_not_count_and_eps_is_added_before_the_power(make):
    buffer = make(sampler=Prioritized(0.5), eps=0.01)
    fill(buffer, [1, 1])
    buffer.update_priorities(keys_of(buffer, [0, 1]), td_errors=[-5.0, 1.0])
    assert told(buffer) == {0: 0.6901, 1: 0.3099}


def test_fr_059_evictions_leave_priorities_with_their_items(make):
    buffer = make(max_size=4)
    fill(buffer, [1, 2, 3, 4, 5])
    assert told(buffer) == {1: 0.1429, 2: 0.2143, 3: 0.2857, 4: 0.3571}


# Updates


@pytest.mark.parametrize("mirrors", [{}, {"initial": "max", "tracks_least": True}], ids=["alone", "mirrored"])
@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_r1_a_wrong_priority_is_refused_with_its_position_and_nothing_is_sent(make, mirrors, wrong):
    buffer = make(**mirrors)
    fill(buffer, [1, 1, 2])
    keys = keys_of(buffer, [0, 1, 2])
    with pytest.raises(ValueError, match=r"priorities\[2\] is .*: a priority must be finite and at least 0"):
        buffer.update_priorities(keys, [5.0, 5.0, wrong])
    if not wrong < 0:
        with pytest.raises(ValueError, match=r"td_errors\[1\] is .*: a TD error must be finite"):
            buffer.update_priorities(keys, td_errors=[5.0, wrong, 5.0])
    with pytest.raises(ValueError, match=r"priorities\[0\] is"):
        buffer.add_batch([3], priorities=[wrong])
    assert told(buffer) == {0: 0.25, 1: 0.25, 2: 0.5}


def test_priorities_that_a_full_table_could_not_add_up_are_refused(make):
    """Reverb would draw one item for ever, with probability NaN or 0."""
    buffer = make(sampler=Prioritized(2.0))
    fill(buffer, [1, 1])
    keys = keys_of(buffer, [0, 1])
    with pytest.raises(ValueError, match=r"priorities\[1\] is 1e\+160: to the power of 2.0, times the 10 items"):
        buffer.update_priorities(keys, [1.0, 1e160])
    with pytest.raises(ValueError, match=r"priorities\[0\] is 1e\+154"):
        buffer.add_batch([2], priorities=[1e154])
    with pytest.raises(ValueError, match=r"priorities\[0, 1\] is 1e\+154"):
        buffer.add_sequence(np.array([[2, 3]]), priorities=np.array([[1.0, 1e154]]))
    buffer.update_priorities(keys, [1e153, 1e153])
    assert told(buffer) == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize("mirrors", [{}, {"initial": "max", "tracks_least": True}], ids=["alone", "mirrored"])
def test_fr_060_a_key_of_an_evicted_item_changes_nothing(make, mirrors):
    buffer = make(max_size=3, **mirrors)
    fill(buffer, [1, 1, 1])
    keys = keys_of(buffer, [0, 1, 2])
    buffer.add_sequence(np.array([[3, 4, 5]]), priorities=np.array([[1.0, 2.0, 1.0]]))
    assert buffer.update_priorities(keys[:1], [99.0]) is None
    assert told(buffer) == {3: 0.25, 4: 0.5, 5: 0.25}
    if mirrors:
        buffer.add_batch([6])  # gets the greatest: 2, not 99
        assert told(buffer) == {4: 0.4, 5: 0.2, 6: 0.4}


@pytest.mark.parametrize("kind", ["numpy", "tensor", "uint64", "tf.function"])
@pytest.mark.parametrize("mirrors", [{}, {"initial": "max"}], ids=["alone", "mirrored"])
def test_t7_keys_are_taken_as_they_come_in_the_order_of_the_batch(make, kind, mirrors):
    buffer = make(**mirrors)
    fill(buffer, [1, 1, 1, 1])
    keys = keys_of(buffer, [2, 0, 3, 1])
    priorities = np.array([3.0, 1.0, 4.0, 2.0])
    if kind == "numpy":
        buffer.update_priorities(keys, priorities)
    elif kind == "uint64":
        buffer.update_priorities(keys.view(np.uint64), priorities)
    elif kind == "tensor":
        buffer.update_priorities(tf.constant(keys), tf.constant(priorities, tf.float32))
    else:
        tf.function(lambda: buffer.update_priorities(tf.constant(keys), td_errors=-tf.constant(priorities)))()
    assert told(buffer) == {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}


def test_a_key_that_comes_twice_gets_the_last_priority(make):
    buffer = make(initial="max")
    fill(buffer, [1, 1])
    key = keys_of(buffer, [0])[0]
    buffer.update_priorities([key, key], [7.0, 3.0])
    assert told(buffer) == {0: 0.75, 1: 0.25}


def test_windows_get_one_priority_each(make):
    buffer = make(sequence_length=3, initial="max", beta=1.0)
    fill(buffer, [1, 1, 1, 1, 1])
    items, info = buffer.sample(200, 3)
    errors = np.where(items.numpy()[:, :1] == 2, [[0.0, -3.0, 0.0]], [[1.0, 1.0, 1.0]])
    buffer.update_priorities_from(info, errors, eta=1.0)
    items, info = buffer.sample(200, 3)
    chances = dict(zip(items.numpy()[:, 0].tolist(), rounded(info.probabilities), strict=True))
    assert chances == {0: 0.2, 1: 0.2, 2: 0.6}


@pytest.mark.parametrize("mirrors", [{"initial": "max"}, {"tracks_least": True}], ids=["max", "least"])
def test_tables_with_mirrors_refuse_keys_that_were_not_drawn(make, mirrors):
    buffer = make(**mirrors)
    fill(buffer, [1, 1])
    keys = keys_of(buffer, [0, 1])
    with pytest.raises(ValueError, match=r"keys\[1\] is 12345, which this buffer has not drawn"):
        buffer.update_priorities([keys[0], 12345], [9.0, 9.0])
    assert told(buffer) == {0: 0.5, 1: 0.5}


def test_tables_without_mirrors_ignore_keys_that_nobody_has(make):
    buffer = make()
    fill(buffer, [1, 3])
    buffer.update_priorities([12345], [9.0])
    assert told(buffer) == {0: 0.25, 1: 0.75}


def test_fr_062_neighbours_are_found_by_their_ids_once_they_were_drawn(make):
    """Reverb tells no keys at insert; ids are told, those of neighbours differ by 1, and draws tell both."""
    buffer = make(sequence_length=2, max_size=5)
    ids = buffer.add_sequence(np.arange(6)[None])[0]
    _, info = buffer.sample(500, 2)
    key_by_id = dict(zip(info.ids.numpy()[:, 0].tolist(), info.keys.numpy().tolist(), strict=True))
    assert set(key_by_id) == set(ids[:5].tolist())
    sampled = int(ids[3])
    buffer.update_priorities([key_by_id[sampled - 1], key_by_id[sampled - 2]], [3.0, 4.0])
    items, info = buffer.sample(500, 2)
    chances = dict(zip(items.numpy()[:, 0].tolist(), rounded(info.probabilities), strict=True))
    assert chances == {0: 0.1, 1: 0.4, 2: 0.3, 3: 0.1, 4: 0.1}


def test_random_priorities_of_a_reservoir_are_not_to_be_set(make):
    buffer = make(sampler=Uniform(), remover=MinHeap(), initial="random", scannable=False)
    buffer.add_sequence(np.arange(4)[None])
    _, info = buffer.sample(2)
    with pytest.raises(ValueError, match="table 'replay' has initial='random'"):
        buffer.update_priorities(info.keys, [1.0, 1.0])
    with pytest.raises(ValueError, match="table 'replay' has initial='random'"):
        buffer.add_batch([4], priorities=[1.0])


# Priorities of new items


def test_fr_055_a_new_item_gets_the_greatest_priority_of_now(make):
    buffer = make(initial="max")
    fill(buffer, [1, 1, 1])
    buffer.update_priorities(keys_of(buffer, [0, 1, 2]), [0.1, 0.2, 0.4])
    buffer.add_batch([3])
    assert told(buffer) == {0: 0.0909, 1: 0.1818, 2: 0.3636, 3: 0.3636}


def test_fr_055_the_first_item_gets_1_and_so_does_one_among_zeros(make):
    buffer = make(initial="max", max_size=2)
    buffer.add_batch([0])
    buffer.add_batch([1], priorities=[3.0])
    assert told(buffer) == {0: 0.25, 1: 0.75}
    buffer.add_sequence(np.array([[2, 3]]), priorities=np.zeros([1, 2]))
    buffer.add_batch([4])
    assert told(buffer) == {4: 1.0}
    buffer.clear()
    buffer.add_batch([5])
    buffer.add_batch([6], priorities=[3.0])
    assert told(buffer) == {5: 0.25, 6: 0.75}


def test_fr_055_an_outlier_that_was_evicted_does_not_rule(make):
    buffer = make(initial="max", max_size=3)
    fill(buffer, [100, 1, 2])
    buffer.add_batch([3], priorities=[1.0])
    buffer.add_batch([4])
    assert told(buffer) == {2: 0.4, 3: 0.2, 4: 0.4}


def test_o11_the_exponent_is_applied_once_to_the_greatest_raw_priority(make):
    buffer = make(sampler=Prioritized(0.5), initial="max")
    fill(buffer, [1, 16])
    buffer.add_batch([2])
    assert told(buffer) == {0: 0.1111, 1: 0.4444, 2: 0.4444}


def test_a_number_can_be_what_new_items_get(make):
    buffer = make(initial=3.0)
    buffer.add_batch([0], priorities=[1.0])
    buffer.add_batch([1])
    assert told(buffer) == {0: 0.25, 1: 0.75}


LEARNER = """
import sys
import numpy as np, tensorflow as tf
from replayfeed.buffers import ReverbReplayBuffer
buffer = ReverbReplayBuffer(tf.TensorSpec([], tf.int64), "replay", 1, sys.argv[1], timeout_s=30.0)
items, info = buffer.sample(64)
buffer.update_priorities(info.keys, np.where(items.numpy() == 1, 50.0, 10.0))
buffer.close()
print(sorted(set(items.numpy().tolist())), flush=True)
"""


def test_fr_055_the_greatest_priority_may_come_from_a_learner_in_another_process(make):
    buffer = make(initial="max")
    fill(buffer, [1, 1])
    run = subprocess.run(
        [sys.executable, "-c", LEARNER, buffer.server_address], capture_output=True, text=True, timeout=400, check=True
    )
    assert run.stdout.strip() == "[0, 1]"
    buffer.add_batch([2])
    assert told(buffer) == {0: 0.0909, 1: 0.4545, 2: 0.4545}


def test_two_writers_see_each_others_greatest_priority():
    table = TableConfig("replay", COUNTER, 10, Prioritized(1.0), initial="max")
    with (
        ReplayServer([table]) as server,
        ReverbReplayBuffer(COUNTER, "replay", 1, local_server=server) as one,
        ReverbReplayBuffer(COUNTER, "replay", 1, server.address) as two,
    ):
        one.add_batch([0], priorities=[8.0])
        one.flush()
        two.add_batch([1])
        two.flush()
        assert told(one) == {0: 0.5, 1: 0.5}


def test_mirrors_never_come_apart_from_their_table(make):
    """Against a naive list, over 150 random calls: new items tell the greatest, weights the least priority."""
    rng = np.random.default_rng(5)
    buffer = make(max_size=5, initial="max", tracks_least=True, beta=1.0, weight_norm="buffer")
    held: dict[int, float] = {}
    gone: list[int] = []
    keys: dict[int, int] = {}
    for value in range(150):
        action = rng.integers(3)
        if action == 0 and held:
            values, info = drawn(buffer, 32)
            keys.update(zip(values.tolist(), info.keys.numpy().tolist(), strict=True))
            chosen = list(dict.fromkeys(values[:3].tolist())) + gone[-1:]
            chosen = [name for name in chosen if name in keys]
            given = rng.integers(1, 9, len(chosen)).astype(float)
            buffer.update_priorities([keys[name] for name in chosen], given)
            held.update((name, new) for name, new in zip(chosen, given.tolist(), strict=True) if name in held)
        else:
            given = float(rng.integers(1, 9)) if action == 1 else None
            buffer.add_batch([value], priorities=None if given is None else [given])
            held[value] = max(held.values(), default=1.0) if given is None else given
            if len(held) > 5:
                gone.append(min(held))
                del held[min(held)]
    values, info = drawn(buffer, 2000)
    total, least = sum(held.values()), min(held.values())
    assert told(buffer, 2000) == {name: round(p / total, 4) for name, p in held.items()}
    assert weights_of(values, info) == {name: round(least / p, 4) for name, p in held.items()}


# Late feedback


def test_r11_stats_tell_how_old_priorities_are_when_rows_are_delivered(make):
    buffer = make(max_size=2)
    fill(buffer, [1, 1])
    rows = iter(buffer.as_dataset(4))
    age = buffer.stats().priority_age
    assert (age.look_ahead, age.rows, age.outdated) == (4 * 64 + 3 * 4, 0, 0)
    for _ in range(3):
        next(rows)
    assert buffer.stats().priority_age.outdated == 0
    keys = keys_of(buffer, [0, 1])
    for priority in (2.0, 3.0):
        buffer.update_priorities(keys, [priority, priority])
    next(rows)
    age = buffer.stats().priority_age
    assert age.outdated >= 4 and age.updates_behind >= 1
    assert 0 < age.outdated_share < 1


def test_r11_what_is_drawn_at_once_is_never_outdated(make):
    buffer = make()
    fill(buffer, [1, 2, 3])
    for round_ in range(3):
        values, info = drawn(buffer, 8)
        buffer.update_priorities(info.keys, values + 1.0 + round_)
    age = buffer.stats().priority_age
    assert (age.rows, age.outdated, age.updates_behind) == (24, 0, 0)


def test_stats_have_no_age_where_draws_do_not_go_by_priority(make):
    buffer = make(sampler=Uniform())
    fill(buffer, [1, 2])
    assert buffer.stats().priority_age is None


# Whole episodes


def fill_episodes(buffer: Any, lengths: list[int], priorities: list[float]) -> None:
    """Frames of episode `n` have the value `n`."""
    for n, (length, priority) in enumerate(zip(lengths, priorities, strict=True)):
        ends = np.arange(length)[None] == length - 1
        given = np.full([1, length], priority)
        buffer.add_sequence(np.full([1, length], n), end_of_episode=ends, priorities=given)


def first_values(items: Any) -> np.ndarray:
    return items.numpy()[:, 0]


def test_episodes_have_weights_and_keys_as_windows_have(make):
    buffer = make(
        ReverbEpisodicReplayBuffer,
        max_episode_length=5,
        initial="max",
        tracks_least=True,
        beta=1.0,
        weight_norm="buffer",
    )
    fill_episodes(buffer, [2, 3, 4, 5], [1, 2, 3, 4])
    for items, info in (buffer.sample(200), next(iter(buffer.as_dataset(200)))):
        assert weights_of(first_values(items), info) == BY_BUFFER
    items, info = buffer.sample(200)
    buffer.update_priorities(info.keys, np.where(first_values(items) == 1, 8.0, 16.0))
    items, info = buffer.sample(200)
    assert weights_of(first_values(items), info) == {0: 0.5, 1: 1.0, 2: 0.5, 3: 0.5}


def test_windows_of_episodes_weigh_by_the_chance_of_the_window(make):
    """An episode of 2 frames has one window of 2, one of 4 has three: equal priorities make those a third as likely."""
    buffer = make(ReverbEpisodicReplayBuffer, max_episode_length=4, beta=1.0, initial="max")
    fill_episodes(buffer, [2, 4], [1, 1])
    for items, info in (buffer.sample(100, 2), next(iter(buffer.as_dataset(100, 2)))):
        assert weights_of(first_values(items), info) == {0: 0.3333, 1: 1.0}
    items, info = buffer.sample(100, 2)
    buffer.update_priorities(info.keys, np.where(first_values(items) == 0, 3.0, 1.0))
    assert weights_of(*(lambda items, info: (first_values(items), info))(*buffer.sample(100, 2)))[0] == 0.1111


@pytest.mark.parametrize("norm", ["buffer", None])
def test_windows_of_episodes_have_only_weights_relative_to_their_batch(make, norm):
    buffer = make(ReverbEpisodicReplayBuffer, max_episode_length=4, weight_norm=norm, tracks_least=True)
    fill_episodes(buffer, [2, 4], [1, 1])
    for draw in (buffer.sample, buffer.as_dataset):
        with pytest.raises(ValueError, match="need the number of windows in table 'episodes'"):
            draw(4, 2)


# Tables that others made


@pytest.mark.parametrize(("norm", "expected"), [(None, (2.0, 0.6667)), ("batch", (1.0, 0.3333))])
def test_a_prioritized_table_with_plain_columns_has_weights_too(norm, expected):
    """Of TF-Agents' kind: two items of 4 frames; windows of 2 lie side by side in them and weigh what those do."""
    selectors = reverb.selectors
    table = reverb.Table("plain", selectors.Prioritized(1.0), selectors.Fifo(), 10, reverb.rate_limiters.MinSize(1))
    with (
        ReplayServer([table]) as server,
        ReverbReplayBuffer(COUNTER, "plain", 4, local_server=server, stride=4, beta=1.0, weight_norm=norm) as buffer,
    ):
        buffer.add_sequence(np.arange(8)[None], priorities=np.array([[1.0] * 4 + [3.0] * 4]))
        first, second = expected
        for num_steps in (4, 2):
            for items, info in (buffer.sample(200, num_steps), next(iter(buffer.as_dataset(200, num_steps)))):
                for start, weight in weights_of(items.numpy()[:, 0], info).items():
                    assert weight == (first if start < 4 else second)


# The buffer's own table


def test_a_limiter_takes_the_place_of_its_short_form(make):
    buffer = make(rate_limiter=MinSize(3))
    assert buffer.get_table_info().rate_limiter_info.min_size_to_sample == 3
    with pytest.raises(ValueError, match="give min_size_to_sample or rate_limiter, not both"):
        make(rate_limiter=MinSize(3), min_size_to_sample=3)


def test_a_wrong_eps_is_refused(make):
    with pytest.raises(ValueError, match="eps must be finite and at least 0, got -1"):
        make(eps=-1)
