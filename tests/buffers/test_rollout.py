"""RolloutBuffer: which transitions a rollout holds, its advantages, and what it refuses."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import EmptyBufferError, RolloutBuffer, Window

FLOAT, FLAG = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.bool)
REWARD = {"reward": FLOAT}
FIRST, MID, LAST = 0, 1, 2


class Trajectory(NamedTuple):
    """The fields of TF-Agents' Trajectory that count here."""

    step_type: Any
    reward: Any
    discount: Any


TRAJECTORY = Trajectory(tf.TensorSpec([], tf.int32), FLOAT, FLOAT)
RLDS = {"reward": FLOAT, "is_last": FLAG, "is_terminal": FLAG}


def dtypes(**columns):
    """One stream's steps `[1, T]`: bools stay, `step_type` is int32, all else float32."""
    as_array = {
        name: np.array([column], bool if name.startswith(("is_", "term", "trunc")) else np.float32)
        for name, column in columns.items()
    }
    if "step_type" in as_array:
        as_array["step_type"] = as_array["step_type"].astype(np.int32)
    return as_array


def rollout(spec, ends=None, *, gamma=0.9, lam=0.5, **columns):
    """A buffer of one stream that holds these steps."""
    items = dtypes(**columns)
    num_steps = items["reward"].shape[1]
    buffer = RolloutBuffer(spec, 1, num_steps, gamma=gamma, lam=lam, seed=0)
    items = type(spec)(**items)
    buffer.add_sequence(items, end_of_episode=None if ends is None else np.array([ends], bool))
    return buffer


def check(result, advantages, returns):
    np.testing.assert_allclose(result.advantages, [advantages], rtol=1e-6)
    np.testing.assert_allclose(result.returns, [returns], rtol=1e-6)


HALVES = [[0.5, 0.5, 0.5]]
HALVES_AND_2 = [[0.5, 0.5, 2.0, 0.5]]  # the boundary frame's value is 2


# -- which numbers come out ----------------------------------------------------------------------


def test_fr_016_gae_over_a_time_limit_without_a_boundary_frame():
    buffer = rollout(REWARD, [0, 1, 0], reward=[1, 1, 1])
    check(buffer.advantages(HALVES, [0.5], [[np.nan, 2.0, np.nan]]), (1.985, 2.3, 0.95), (2.485, 2.8, 1.45))


def test_fr_016_gae_over_a_time_limit_with_a_boundary_frame():
    spec, step_type = TRAJECTORY, [FIRST, MID, LAST, FIRST]
    buffer = rollout(spec, step_type=step_type, reward=[1, 1, 9, 1], discount=[1, 1, 1, 1])
    result = buffer.advantages(HALVES_AND_2, [0.5])
    check(result, (1.985, 2.3, 0, 0.95), (2.485, 2.8, 2, 1.45))
    assert result.mask.numpy().tolist() == [[True, True, False, True]]


@pytest.mark.parametrize("name", ["terminal", "terminated", "is_terminal"])
def test_fr_016_gae_over_a_real_end_without_a_boundary_frame(name):
    buffer = RolloutBuffer({**REWARD, name: FLAG}, 1, 3, gamma=0.9, lam=0.5, final_frame="ordinary")
    buffer.add_sequence(dtypes(reward=[1, 1, 1], **{name: [0, 1, 0]}))
    check(buffer.advantages(HALVES, [0.5]), (1.175, 0.5, 0.95), (1.675, 1.0, 1.45))


@pytest.mark.parametrize(
    ("spec", "columns"),
    [
        (TRAJECTORY, {"step_type": [FIRST, MID, LAST, FIRST], "discount": [1, 0, 1, 1]}),
        (RLDS, {"is_last": [0, 0, 1, 0], "is_terminal": [0, 0, 1, 0]}),
        # robomimic and others write a discount of 1 into the terminal step: the flag counts
        ({**RLDS, "discount": FLOAT}, {"is_last": [0, 0, 1, 0], "is_terminal": [0, 0, 1, 0], "discount": [1] * 4}),
    ],
)
def test_fr_016_gae_over_a_real_end_with_a_boundary_frame(spec, columns):
    buffer = rollout(spec, reward=[1, 1, np.nan, 1], **columns)
    check(buffer.advantages([[0.5, 0.5, np.nan, 0.5]], [0.5]), (1.175, 0.5, 0, 0.95), (1.675, 1.0, np.nan, 1.45))


def test_fr_018_lambda_1_is_the_return_minus_the_value_with_the_edge_counted_once():
    expected = (2.5745, 1.805, 0.95), (3.0745, 2.305, 1.45)
    buffer = rollout(REWARD, reward=[1, 1, 1], lam=1.0)
    check(buffer.advantages(HALVES, [0.5]), *expected)
    check(buffer.advantages(HALVES, [0.5], method="monte_carlo"), *expected)
    check(buffer.advantages(HALVES, [0.5], method="n_step"), *expected)
    check(buffer.advantages(HALVES, [0.5], method="n_step", n=1), (0.95, 0.95, 0.95), (1.45, 1.45, 1.45))


def test_fr_013_the_target_at_a_time_limit_has_the_final_value_in_it():
    cut = rollout(REWARD, [1], reward=[1], gamma=0.99)
    np.testing.assert_allclose(cut.advantages([[0.0]], [7.0], [[10.0]]).returns, [[10.9]], rtol=1e-6)
    real = rollout({**REWARD, "terminated": FLAG}, reward=[1], terminated=[1], gamma=0.99)
    np.testing.assert_allclose(real.advantages([[0.0]], [7.0], [[10.0]]).returns, [[1.0]], rtol=1e-6)


def test_fr_015_a_real_end_wins_over_a_time_limit_and_both_flags_are_kept():
    spec = {**REWARD, "terminated": FLAG, "truncated": FLAG}
    buffer = rollout(spec, reward=[1, 1], terminated=[1, 0], truncated=[1, 0])
    np.testing.assert_allclose(buffer.advantages([[0.0, 0.0]], [0.0], [[10.0, 0.0]]).returns, [[1.0, 1.0]])
    held = buffer.gather_all()
    assert held["terminated"].numpy().tolist() == [[True, False]]
    assert held["truncated"].numpy().tolist() == [[True, False]]


def test_flags_and_ends_of_the_caller_add_up():
    buffer = RolloutBuffer({**REWARD, "terminated": FLAG}, 1, 3, gamma=0.9, lam=0.5)
    ends = np.array([[True, False, False]])
    buffer.add_sequence(dtypes(reward=[1, 1, 1], terminated=[0, 1, 0]), end_of_episode=ends)
    # Cut with V = 2, a real end, the rollout's end.
    check(buffer.advantages(HALVES, [0.5], [[2.0, 0.0, 0.0]]), (2.3, 0.5, 0.95), (2.8, 1.0, 1.45))


def test_a_truncated_flag_ends_the_episode():
    buffer = rollout({**REWARD, "truncated": FLAG}, reward=[1, 1, 1], truncated=[0, 1, 0])
    check(buffer.advantages(HALVES, [0.5], [[0.0, 2.0, 0.0]]), (1.985, 2.3, 0.95), (2.485, 2.8, 1.45))


@pytest.mark.parametrize("how", ["end_of_episode_fn", "end_stream"])
def test_ends_told_otherwise_are_time_limits(how):
    flagged = {**REWARD, "over": FLAG}
    told = {"end_of_episode_fn": lambda items: items["over"]} if how == "end_of_episode_fn" else {}
    buffer = RolloutBuffer(flagged, 1, 3, gamma=0.9, lam=0.5, **told)
    for done in (False, True, False):
        buffer.add_batch({"reward": np.ones([1], np.float32), "over": np.array([done])})
        if done and how == "end_stream":
            buffer.end_stream(0)
    check(buffer.advantages(HALVES, [0.5], [[0.0, 2.0, 0.0]]), (1.985, 2.3, 0.95), (2.485, 2.8, 1.45))


def test_a_reset_without_an_end_joins_nothing():
    buffer = rollout(TRAJECTORY, step_type=[FIRST, MID, FIRST], reward=[1, 1, 1], discount=[1, 1, 1])
    with pytest.raises(ValueError, match="stream 0, step 1"):
        buffer.advantages(HALVES, [0.5])
    check(buffer.advantages(HALVES, [0.5], [[0.0, 2.0, 0.0]]), (1.985, 2.3, 0.95), (2.485, 2.8, 1.45))


def test_the_last_frame_may_end_its_episode():
    """Then the bootstrap value does not count."""
    cut = rollout(REWARD, [0, 0, 1], reward=[1, 1, 1])
    np.testing.assert_allclose(cut.advantages(HALVES, [np.nan], [[0.0, 0.0, 2.0]]).advantages[0, 2], 2.3, rtol=1e-6)
    boundary = rollout(TRAJECTORY, step_type=[FIRST, MID, LAST], reward=[1, 1, 9], discount=[1, 1, 1])
    result = boundary.advantages([[0.5, 0.5, 2.0]], [np.nan])
    np.testing.assert_allclose(result.advantages, [[1.985, 2.3, 0]], rtol=1e-6)


def test_discounts_of_the_data_multiply_gamma():
    buffer = rollout({**REWARD, "discount": FLOAT}, reward=[1, 1], discount=[0.5, 1], gamma=0.8, lam=0.0)
    # 1 + 0.8 * 0.5 * 10 - 10; 1 + 0.8 * 20 - 10
    np.testing.assert_allclose(buffer.advantages([[10.0, 10.0]], [20.0]).advantages, [[-5, 7]], rtol=1e-6)


def test_fields_may_have_other_names_and_an_axis_of_one():
    spec = {"extras": {"r": tf.TensorSpec([1], tf.float32), "gone": tf.TensorSpec([1], tf.int64)}}
    buffer = RolloutBuffer(spec, 1, 3, gamma=0.9, lam=0.5, reward_field="extras/r", terminal_field="extras/gone")
    items = {"extras": {"r": np.ones([1, 3, 1], np.float32), "gone": np.array([[[0], [1], [0]]])}}
    buffer.add_sequence(items)
    check(buffer.advantages(HALVES, [0.5]), (1.175, 0.5, 0.95), (1.675, 1.0, 1.45))


def test_ends_of_the_caller_are_boundary_frames_when_he_says_so():
    buffer = RolloutBuffer({**REWARD, "is_terminal": FLAG}, 1, 7, gamma=0.9, lam=0.5, final_frame="observation")
    buffer.add_sequence(
        dtypes(reward=[1, 1, 9, 1, 1, 9, 1], is_terminal=[0, 0, 1, 0, 0, 0, 0]),
        end_of_episode=np.array([[False, False, False, False, False, True, False]]),
    )
    result = buffer.advantages([[0.5, 0.5, 7.0, 0.5, 0.5, 2.0, 0.5]], [0.5])
    np.testing.assert_allclose(result.advantages, [[1.175, 0.5, 0, 1.985, 2.3, 0, 0.95]], rtol=1e-6)
    assert result.mask.numpy().tolist() == [[True, True, False, True, True, False, True]]


def test_a_field_can_be_left_unread():
    spec = {**REWARD, "discount": FLOAT, "terminal": FLAG}
    buffer = RolloutBuffer(spec, 1, 3, gamma=0.9, lam=1.0, discount_field=None, terminal_field=None)
    buffer.add_sequence(dtypes(reward=[1, 1, 1], discount=[0, 0, 0], terminal=[1, 1, 1]))
    check(buffer.advantages(HALVES, [0.5]), (2.5745, 1.805, 0.95), (3.0745, 2.305, 1.45))


def test_streams_do_not_meet():
    buffer = RolloutBuffer(REWARD, 2, 3, gamma=0.9, lam=0.5)
    for t in range(3):
        buffer.add_batch({"reward": np.float32([1, 1])}, end_of_episode=np.array([t == 1, False]))
    result = buffer.advantages(HALVES * 2, [0.5, 0.5], [[0, 2.0, 0], [9.0, 9.0, 9.0]])
    np.testing.assert_allclose(result.advantages[0], (1.985, 2.3, 0.95), rtol=1e-6)
    # 0.95 each: 0.95 + 0.45 * (0.95 + 0.45 * 0.95), ...
    np.testing.assert_allclose(result.advantages[1], (1.569875, 1.3775, 0.95), rtol=1e-6)


def test_no_gradient_flows_through_targets():
    buffer = rollout(REWARD, reward=[1, 1, 1])
    values = tf.Variable(HALVES)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(buffer.advantages(values, [0.5]).returns)
    assert tape.gradient(loss, values) is None


def test_advantages_are_the_same_inside_a_function_and_read_live():
    buffer = RolloutBuffer(REWARD, 1, 3, gamma=0.9, lam=0.5)

    @tf.function
    def collect_and_estimate(rewards):
        buffer.add_sequence({"reward": rewards}, end_of_episode=tf.constant([[False, True, False]]))
        return buffer.advantages(tf.constant(HALVES), tf.constant([0.5]), tf.constant([[0.0, 2.0, 0.0]]))

    check(collect_and_estimate(tf.ones([1, 3])), (1.985, 2.3, 0.95), (2.485, 2.8, 1.45))
    buffer.clear()
    result = collect_and_estimate(tf.zeros([1, 3]))
    assert result.advantages.shape == [1, 3]
    # -0.05 + 0.45 * 1.3, 1.3, -0.05
    check(result, (0.535, 1.3, -0.05), (1.035, 1.8, 0.45))


# -- rollouts that follow each other ------------------------------------------------------------


def test_an_open_episode_goes_on_in_the_next_rollout():
    buffer = RolloutBuffer(TRAJECTORY, 1, 2, gamma=0.9, lam=0.5)
    step_types = [FIRST, MID, MID, LAST, FIRST, MID]
    results = []
    for start in (0, 2, 4):
        buffer.add_sequence(
            Trajectory(**dtypes(step_type=step_types[start : start + 2], reward=[1, 1], discount=[1, 1]))
        )
        results.append(buffer.advantages([[0.5, 0.5 if start != 2 else 2.0]], [0.5]))
        buffer.clear()
    np.testing.assert_allclose(results[0].advantages, [[1.3775, 0.95]], rtol=1e-6)
    np.testing.assert_allclose(results[1].advantages, [[2.3, 0]], rtol=1e-6)
    np.testing.assert_allclose(results[2].advantages, [[1.3775, 0.95]], rtol=1e-6)


def test_a_boundary_frame_alone_at_the_start_of_a_rollout_is_masked():
    buffer = RolloutBuffer(RLDS, 1, 2, gamma=0.9, lam=0.5)
    for rewards in ([1, 1], [9, 1]):
        is_end = [rewards[0] == 9, False]
        buffer.clear()
        buffer.add_sequence(dtypes(reward=rewards, is_last=is_end, is_terminal=is_end))
    result = buffer.advantages([[np.nan, 0.5]], [0.5])
    assert result.mask.numpy().tolist() == [[False, True]]
    np.testing.assert_allclose(result.advantages, [[0, 0.95]], rtol=1e-6)


def test_what_an_earlier_rollout_said_is_forgotten():
    buffer = RolloutBuffer({**REWARD, "terminated": FLAG}, 1, 3, gamma=0.9, lam=0.5)
    buffer.add_sequence(dtypes(reward=[5, 5, 5], terminated=[1, 1, 1]))
    buffer.clear()
    buffer.end_stream()
    buffer.add_sequence(dtypes(reward=[1, 1, 1], terminated=[0, 1, 0]))
    check(buffer.advantages(HALVES, [0.5]), (1.175, 0.5, 0.95), (1.675, 1.0, 1.45))


# -- too few, too many, and wrong ---------------------------------------------------------------


def test_one_step_too_many_is_refused_and_nothing_is_written():
    buffer = RolloutBuffer(REWARD, 2, 3)
    buffer.add_sequence({"reward": np.zeros([2, 2], np.float32)})
    with pytest.raises(ValueError, match=r"holds 2 of 3 steps.*no room for 2 more.*clear\(\)"):
        buffer.add_sequence({"reward": np.ones([2, 2], np.float32)})
    assert len(buffer) == 4
    buffer.add_batch({"reward": np.float32([1, 1])})
    with pytest.raises(ValueError, match="holds 3 of 3 steps.*no room for 1 more"):
        buffer.add_batch({"reward": np.float32([7, 7])})
    assert buffer.gather_all()["reward"].numpy().tolist() == [[0, 0, 1], [0, 0, 1]]


def test_too_few_steps_are_refused_with_the_numbers():
    buffer = RolloutBuffer(REWARD, 1, 3)
    buffer.add_sequence({"reward": np.zeros([1, 2], np.float32)})
    with pytest.raises(ValueError, match="holds 2 of 3 steps: add 1 more"):
        buffer.advantages(HALVES, [0.5])

    @tf.function
    def in_graph():
        return buffer.advantages(tf.constant(HALVES), tf.constant([0.5]))

    with pytest.raises(tf.errors.InvalidArgumentError, match="holds 2 of 3 steps: add 1 more"):
        in_graph()


def test_a_missing_final_value_is_refused_with_the_place():
    buffer = RolloutBuffer(REWARD, 2, 3)
    ends = np.array([[False, False, False], [False, True, True]])
    buffer.add_sequence({"reward": np.zeros([2, 3], np.float32)}, end_of_episode=ends)
    with pytest.raises(ValueError, match=r"2 frames end.*stream 1, step 1: pass final_values \[2, 3\]"):
        buffer.advantages(HALVES * 2, [0.5, 0.5])


def test_plain_numbers_may_be_ints():
    estimates = rollout(REWARD, reward=[1, 1, 1]).advantages([[0, 0, 0]], [0], method="monte_carlo")
    assert estimates.values.dtype == tf.float32


@pytest.mark.parametrize("discount", [np.nan, -1.0, np.inf])
def test_a_discount_that_is_none_is_refused(discount):
    buffer = rollout({**REWARD, "discount": FLOAT}, reward=[1, 1, 1], discount=[1, discount, 1])
    with pytest.raises(ValueError, match="discount of stream 0, step 1"):
        buffer.advantages(HALVES, [0.5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[[0.5], [0.5], [0.5]]], [0.5]), r"values: expected \[1, 3\] float32, got \[1, 3, 1\] float32"),
        ((np.ones([1, 3], np.int32), [0.5]), r"values: expected \[1, 3\] float32, got \[1, 3\] int32"),
        ((HALVES, [[0.5]]), r"bootstrap_value: expected \[1\] float32, got \[1, 1\]"),
        ((HALVES, 0.5), r"bootstrap_value: expected \[1\] float32, got \[\]"),
        ((HALVES, [0.5], [[0.5, 0.5]]), r"final_values: expected \[1, 3\] float32, got \[1, 2\]"),
    ],
)
def test_values_of_another_shape_are_never_broadcast(arguments, message):
    with pytest.raises(ValueError, match=message):
        rollout(REWARD, reward=[1, 1, 1]).advantages(*arguments)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"method": "vtrace"}, "'gae', 'n_step', 'monte_carlo', got 'vtrace'"),
        ({"n": 2}, "n=2 belongs to method='n_step'"),
        ({"method": "n_step", "n": 0}, "n must be at least 1"),
    ],
)
def test_methods_that_are_none_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        rollout(REWARD, reward=[1, 1, 1]).advantages(HALVES, [0.5], **keywords)


@pytest.mark.parametrize(
    ("spec", "keywords", "message"),
    [
        (REWARD, {"gamma": 1.5}, "gamma must be a number from 0 to 1, got 1.5"),
        (REWARD, {"lam": -0.1}, "lam must be a number from 0 to 1, got -0.1"),
        (REWARD, {"lam": "1"}, "lam must be a number from 0 to 1, got '1'"),
        (REWARD, {"num_steps": 0}, "num_steps must be at least 1"),
        (REWARD, {"batch_size": 0}, "batch_size must be at least 1"),
        (REWARD, {"seed": -1}, "seed must be an int of at least 0"),
        ({"obs": FLOAT}, {}, r"reward_field: data_spec has no field 'reward', it has \['obs'\]"),
        (REWARD, {"reward_field": None}, "reward_field must name a field"),
        (REWARD, {"discount_field": "gamma"}, "discount_field: data_spec has no field 'gamma'"),
        ({"reward": tf.TensorSpec([2], tf.float32)}, {}, r"field 'reward' is \[2\] float32, expected one real number"),
        (
            {**REWARD, "terminal": FLAG, "terminated": FLAG},
            {},
            r"\['terminal', 'terminated'\]: say with terminal_field",
        ),
        ({**REWARD, "is_terminal": FLAG}, {}, "final_frame='observation'.*final_frame='ordinary'"),
        (REWARD, {"final_frame": "maybe"}, "final_frame must be"),
    ],
)
def test_bad_settings_are_refused_at_construction(spec, keywords, message):
    settings = {"batch_size": 1, "num_steps": 3, **keywords}
    with pytest.raises(ValueError, match=message):
        RolloutBuffer(spec, **settings)


def test_is_terminal_before_the_last_step_is_refused_and_nothing_is_written():
    buffer = RolloutBuffer(RLDS, 1, 3)
    with pytest.raises(ValueError, match="'is_terminal' is true for stream 0, step 1.*last step"):
        buffer.add_sequence(dtypes(reward=[1, 1, 1], is_last=[0, 0, 1], is_terminal=[0, 1, 1]))
    with pytest.raises(ValueError, match="'is_terminal' is true for stream 0,"):
        buffer.add_batch(
            {name: column[:, 0] for name, column in dtypes(reward=[1], is_last=[0], is_terminal=[1]).items()}
        )
    assert len(buffer) == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"items": {"reward": np.zeros([2], np.float64)}},
        {"items": {"reward": np.zeros([3], np.float32)}},
        {"items": {"rewards": np.zeros([2], np.float32)}},
        {"end_of_episode": np.array([1, 0])},
        {"priorities": np.array([-1.0, 1.0])},
    ],
)
def test_a_refused_add_leaves_everything_as_it_was(bad):
    buffer = RolloutBuffer(REWARD, 2, 2, gamma=0.9, lam=0.5)
    buffer.add_batch({"reward": np.float32([1, 1])})
    with pytest.raises(ValueError):
        buffer.add_batch(**{"items": {"reward": np.float32([8, 8])}, **bad})
    buffer.add_batch({"reward": np.float32([1, 1])})
    result = buffer.advantages(np.full([2, 2], 0.5), np.full([2], 0.5))
    np.testing.assert_allclose(result.advantages, [[1.3775, 0.95]] * 2, rtol=1e-6)


def test_ends_overlooked_in_the_spec_are_warned_of_once():
    with pytest.warns(UserWarning, match="'info/is_last'") as warned:
        RolloutBuffer({**REWARD, "info": {"is_last": FLAG}}, 1, 2)
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_a_done_that_nobody_reads_is_warned_of():
    spec = {**REWARD, "done": FLAG}
    with pytest.warns(UserWarning, match="'done', which is not read.*terminal_field='done'") as warned:
        RolloutBuffer(spec, 1, 2)
    assert warned[0].filename == __file__
    RolloutBuffer(spec, 1, 2, end_of_episode_fn=lambda items: items["done"])
    buffer = RolloutBuffer(spec, 1, 3, gamma=0.9, lam=0.5, terminal_field="done")
    buffer.add_sequence({"reward": np.ones([1, 3], np.float32), "done": np.array([[False, True, False]])})
    check(buffer.advantages(HALVES, [0.5]), (1.175, 0.5, 0.95), (1.675, 1.0, 1.45))


# -- the members that every buffer has ----------------------------------------------------------


def test_a_rollout_can_be_read_like_any_buffer():
    buffer = rollout({**REWARD}, [0, 1, 0, 0], reward=[1, 2, 3, 4])
    assert (len(buffer), int(buffer.num_frames()), buffer.capacity, buffer.capacity_unit) == (4, 4, 4, "frames")
    assert (buffer.batch_size, buffer.num_steps, buffer.data_spec) == (1, 4, REWARD)
    assert buffer.gather_all()["reward"].numpy().tolist() == [[1, 2, 3, 4]]
    windows, info = buffer.sample(100, num_steps=2)
    assert {tuple(row) for row in windows["reward"].numpy().tolist()} == {(1, 2), (3, 4)}
    assert buffer.get(info.ids)["reward"].numpy().tolist() == windows["reward"].numpy().tolist()
    assert buffer.update_priorities(info.keys, td_errors=np.ones(100)) == 0
    shuffled = buffer.as_dataset(window=Window(2), epochs=1)
    assert sorted(items["reward"].numpy().tolist() for items, _ in shuffled) == [[1, 2], [3, 4]]
    stats = buffer.stats()
    assert (stats.frames, stats.added, stats.evicted, stats.episodes, stats.fill_share) == (4, 4, 0, 2, 1.0)
    buffer.flush()
    buffer.clear()
    assert (len(buffer), buffer.stats().added) == (0, 0)
    with pytest.raises(EmptyBufferError):
        buffer.sample()


def test_ids_are_given_back_and_never_used_twice():
    buffer = RolloutBuffer(REWARD, 2, 2)
    ids = [buffer.add_batch({"reward": np.zeros([2], np.float32)}) for _ in range(2)]
    buffer.clear()
    ids.append(buffer.add_sequence({"reward": tf.zeros([2, 2])}))
    assert len({int(one) for some in ids for one in np.ravel(some)}) == 8


def test_a_closed_buffer_takes_no_more():
    with RolloutBuffer(REWARD, 1, 2) as buffer:
        buffer.add_batch({"reward": np.zeros([1], np.float32)})
    with pytest.raises(ValueError, match="closed"):
        buffer.add_batch({"reward": np.zeros([1], np.float32)})


def test_cast_converts_within_a_kind():
    buffer = RolloutBuffer(REWARD, 1, 1, cast=True)
    buffer.add_batch({"reward": np.array([0.5])})
    assert buffer.gather_all()["reward"].numpy().tolist() == [[0.5]]


# -- against a plain loop -----------------------------------------------------------------------


def loop_over_episodes(episodes, values, bootstrap, gamma, lam):
    """GAE of one stream, episode after episode.

    `episodes` are (rewards, discounts, value at the end, whether a boundary frame follows); the value is None where
    the episode is still open.
    """
    result, start = [], 0
    for rewards, discounts, end_value, has_boundary in episodes:
        num = len(rewards)
        after = [*values[start + 1 : start + num], bootstrap if end_value is None else end_value]
        advantage, backwards = 0.0, []
        for t in reversed(range(num)):
            keep = gamma * discounts[t]
            advantage = rewards[t] + keep * after[t] - values[start + t] + keep * lam * advantage
            backwards.append(advantage)
        result += [*backwards[::-1], *([0.0] if has_boundary else [])]
        start += num + has_boundary
    return result


@st.composite
def one_stream(draw, num_steps):
    """Frames of episodes that end in one of four ways, cut off after `num_steps` frames."""
    frames, episodes = [], []
    number = st.integers(-8, 8).map(lambda n: n / 2)
    while len(frames) < num_steps:
        length = draw(st.integers(1, 6))
        kind = draw(st.sampled_from(["terminal", "truncated", "terminal boundary", "truncated boundary"]))
        has_boundary = "boundary" in kind
        room = num_steps - len(frames)
        rewards = [draw(number) for _ in range(min(length, room))]
        is_open = length > room
        discounts = [1.0] * len(rewards)
        if not is_open and "terminal" in kind:
            discounts[-1] = 0.0
        steps = [
            {"reward": reward, "discount": discount, "is_last": False, "end": False}
            for reward, discount in zip(rewards, discounts, strict=True)
        ]
        steps[-1]["end"] = not is_open and not has_boundary
        boundary_comes = has_boundary and not is_open and room > length
        if boundary_comes:
            steps.append({"reward": 99.0, "discount": draw(st.sampled_from([0.0, 1.0])), "is_last": True, "end": False})
        frames += steps
        end_value = None if is_open or (has_boundary and not boundary_comes) else kind
        episodes.append((rewards, discounts, end_value, boundary_comes))
    return frames, episodes


@hypothesis.given(st.data(), st.sampled_from([(1, 1), (2, 7), (1, 12), (3, 20)]), st.sampled_from([0.0, 0.5, 1.0]))
def test_gae_is_that_of_a_loop_over_episodes(data, sizes, lam):
    num_streams, num_steps = sizes
    streams = [data.draw(one_stream(num_steps)) for _ in range(num_streams)]
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    values, finals = rng.normal(size=(2, num_streams, num_steps)).astype(np.float32)
    bootstrap = rng.normal(size=num_streams).astype(np.float32)
    spec = {"reward": FLOAT, "discount": FLOAT, "is_last": FLAG}
    buffer = RolloutBuffer(spec, num_streams, num_steps, gamma=0.9, lam=lam)

    def column(name, dtype):
        return np.array([[frame[name] for frame in frames] for frames, _ in streams], dtype)

    items = {name: column(name, leaf.dtype.as_numpy_dtype) for name, leaf in spec.items()}
    cut = data.draw(st.integers(0, num_steps))  # in two adds
    ends = column("end", bool)
    for part in (slice(0, cut), slice(cut, None)):
        buffer.add_sequence({name: leaf[:, part] for name, leaf in items.items()}, end_of_episode=ends[:, part])
    result = buffer.advantages(values, bootstrap, finals)
    expected = []
    for b, (_, episodes) in enumerate(streams):
        told, start = [], 0
        for rewards, discounts, kind, has_boundary in episodes:
            last = start + len(rewards) - 1
            end_value = None if kind is None else values[b, last + 1] if has_boundary else finals[b, last]
            told.append((rewards, discounts, end_value, has_boundary))
            start = last + 1 + has_boundary
        expected.append(loop_over_episodes(told, values[b], bootstrap[b], 0.9, lam))
    np.testing.assert_allclose(result.advantages, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(result.mask, ~items["is_last"])


# -- interrupted and concurrent adds ------------------------------------------------------------


@pytest.mark.parametrize("sequence", [False, True])
def test_an_interrupted_add_loses_no_whole_step_and_joins_nothing_over_the_gap(monkeypatch, sequence):
    buffer = RolloutBuffer(REWARD, 1, 3, gamma=0.9, lam=0.5)
    buffer.add_batch({"reward": np.float32([1])})

    def interrupted(*arguments):
        raise KeyboardInterrupt

    name = "write_sequence" if sequence else "write"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"replayfeed.buffers.storage.FrameStorage.{name}", interrupted)
        if sequence:
            buffer.add_sequence({"reward": np.float32([[9]])})
        else:
            buffer.add_batch({"reward": np.float32([9])})
    buffer.add_sequence({"reward": np.float32([[1, 1]])})
    assert buffer.gather_all()["reward"].numpy().tolist() == [[1, 1, 1]]
    with pytest.raises(ValueError, match="stream 0, step 0: pass final_values"):
        buffer.advantages(HALVES, [0.5])
    result = buffer.advantages(HALVES, [0.5], [[2.0, 0.0, 0.0]])
    np.testing.assert_allclose(result.advantages, [[2.3, 1.3775, 0.95]], rtol=1e-6)
    rewards = [info.returns.numpy().tolist() for _, info in buffer.minibatches(1)]
    assert len(rewards) == 3


def test_threads_that_add_fill_a_rollout_exactly():
    buffer = RolloutBuffer({"reward": FLOAT, "terminal": FLAG}, 1, 400, gamma=0.0)
    refused = []

    def add(value):
        for _ in range(150):
            try:
                buffer.add_batch({"reward": np.float32([value]), "terminal": np.array([value == 2])})
            except ValueError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=add, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(buffer) == 400 and len(refused) == 200
    assert all("holds 400 of 400 steps" in text for text in refused)
    held = buffer.gather_all()
    # What a frame says is kept beside the right frame.
    np.testing.assert_array_equal(buffer.advantages(np.zeros([1, 400]), [0.0]).returns, held["reward"])
    np.testing.assert_array_equal(held["terminal"], held["reward"] == 2)
