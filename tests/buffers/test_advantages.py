"""Advantages against numbers worked out by hand, and against sums taken straight from the definitions."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers.advantages import (
    Transitions,
    backward_sum,
    generalized_advantages,
    n_step_advantages,
    next_values,
    one_step_errors,
)


def steps(rewards, *, gamma=0.9, terminal=(), cut=(), boundary=()):
    """The transitions of one stream; `terminal`, `cut` and `boundary` are the frames' indices."""
    t = np.arange(len(rewards))
    mask = ~np.isin(t, boundary)
    is_terminal, is_cut = np.isin(t, terminal), np.isin(t, cut)
    goes_on = mask & ~is_terminal & ~is_cut & np.append(mask[1:], False)
    rows = (np.float32(rewards), np.where(is_terminal | ~mask, 0, gamma).astype(np.float32), mask, is_cut, goes_on)
    return Transitions(*(row[None] for row in rows))


HALVES = np.full([1, 3], 0.5, np.float32)


def test_the_value_after_a_frame_is_the_next_ones_the_final_one_or_the_bootstrap():
    cut = np.array([[False, True, False]])
    result = next_values(cut, [[1.0, 2.0, 3.0]], [4.0], [[np.nan, 5.0, np.nan]])
    assert result.numpy().tolist() == [[2, 5, 4]]
    assert next_values(cut, [[1.0, 2.0, 3.0]], [4.0]).numpy().tolist() == [[2, 3, 4]]


def test_gae_cut_by_a_time_limit_bootstraps_once_and_goes_no_further():
    result = generalized_advantages(steps([1, 1, 1], cut=[1]), HALVES, np.float32([[0.5, 2, 0.5]]), 0.5)
    np.testing.assert_allclose(result, [[1.985, 2.3, 0.95]], rtol=1e-6)


def test_gae_at_a_real_end_has_nothing_after_it():
    result = generalized_advantages(steps([1, 1, 1], terminal=[1]), HALVES, np.float32([[0.5, np.nan, 0.5]]), 0.5)
    np.testing.assert_allclose(result, [[1.175, 0.5, 0.95]], rtol=1e-6)


def test_lambda_0_is_the_one_step_error_and_lambda_1_the_return_minus_the_value():
    transitions = steps([1, 1, 1])
    np.testing.assert_allclose(generalized_advantages(transitions, HALVES, HALVES, 0.0), [[0.95] * 3], rtol=1e-6)
    expected = [[2.5745, 1.805, 0.95]]  # 1 + 0.9 + 0.81 + 0.729 * 0.5 - 0.5, ...
    np.testing.assert_allclose(generalized_advantages(transitions, HALVES, HALVES, 1.0), expected, rtol=1e-6)
    np.testing.assert_allclose(n_step_advantages(transitions, HALVES, HALVES), expected, rtol=1e-6)


def test_n_steps_are_counted_and_fewer_taken_where_the_rollout_ends():
    # Two steps: 1 + 0.9 * 2 + 0.81 * 8 - 8 = 1.28; 2 + 0.9 * 4 + 0.81 * 8 - 8 = 4.08; one step: 4 + 0.9 * 8 - 8 = 3.2.
    eights = np.full([1, 3], 8, np.float32)
    result = n_step_advantages(steps([1, 2, 4]), eights, eights, n=2)
    np.testing.assert_allclose(result, [[1.28, 4.08, 3.2]], rtol=1e-6)


def test_gamma_0_leaves_the_reward_minus_the_value():
    transitions = steps([1, 2, 4], gamma=0.0)
    for result in (
        generalized_advantages(transitions, HALVES, HALVES, 0.5),
        n_step_advantages(transitions, HALVES, HALVES),
        n_step_advantages(transitions, HALVES, HALVES, n=2),
    ):
        np.testing.assert_allclose(result, [[0.5, 1.5, 3.5]], rtol=1e-6)


def test_what_stands_on_a_boundary_frame_goes_nowhere_but_its_value():
    transitions = steps([1, 1, np.nan, 1], boundary=[2])
    values = np.float32([[0.5, 0.5, 2, 0.5]])
    successors = next_values(transitions.cut, values, [0.5])
    np.testing.assert_allclose(one_step_errors(transitions, values, successors), [[0.95, 2.3, 0, 0.95]], rtol=1e-6)
    np.testing.assert_allclose(
        generalized_advantages(transitions, values, successors, 0.5), [[1.985, 2.3, 0, 0.95]], rtol=1e-6
    )


@pytest.mark.parametrize("num_steps", [1, 2, 7, 8, 9, 16, 17, 63, 100])
def test_the_sum_by_halves_is_the_sum_step_by_step(num_steps):
    rng = np.random.default_rng(num_steps)
    increments, factors = rng.normal(size=(2, 3, num_steps)).astype(np.float32)
    last, expected = np.zeros(3), np.zeros([3, num_steps])
    for t in reversed(range(num_steps)):
        last = expected[:, t] = increments[:, t] + factors[:, t].astype(float) * last
    np.testing.assert_allclose(backward_sum(increments, factors), expected, rtol=1e-3, atol=1e-4)


def test_an_unknown_number_of_streams_is_fine_in_a_graph():
    @tf.function(input_signature=[tf.TensorSpec([None, 9]), tf.TensorSpec([None, 9])])
    def summed(increments, factors):
        return backward_sum(increments, factors)

    assert summed(tf.ones([2, 9]), tf.ones([2, 9])).numpy().tolist() == [[9, 8, 7, 6, 5, 4, 3, 2, 1]] * 2


def test_real_ends_alone_give_what_tf_agents_helper_gives():
    value_ops = pytest.importorskip("tf_agents.utils.value_ops")
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 1, 40)).astype(np.float32)
    transitions = steps(rewards[0], terminal=[3, 4, 20])
    theirs = value_ops.generalized_advantage_estimation(
        values, np.float32([0.7]), transitions.discounts, rewards, td_lambda=0.8, time_major=False
    )
    ours = generalized_advantages(transitions, values, next_values(transitions.cut, values, [0.7]), 0.8)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@st.composite
def streams(draw):
    """Rewards, values and value after each frame, all `[T]`, with ends and boundary frames anywhere."""
    num_steps = draw(st.sampled_from([1, 2, 5, 9, 20]))
    numbers = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=num_steps, max_size=num_steps)
    kinds = st.sampled_from(["step", "step", "step", "terminal", "cut", "boundary"])
    kinds = draw(st.lists(kinds, min_size=num_steps, max_size=num_steps))
    rewards, values, finals = draw(numbers), draw(numbers), draw(numbers)
    transitions = steps(
        rewards,
        gamma=draw(st.sampled_from([0.0, 0.5, 0.99])),
        **{name: [t for t, kind in enumerate(kinds) if kind == name] for name in ("terminal", "cut", "boundary")},
    )
    return transitions, np.float32([values]), draw(st.integers(-4, 4)), np.float32([finals])


@hypothesis.given(streams(), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_is_the_sum_of_equation_16(stream, lam):
    transitions, values, bootstrap, finals = stream
    successors = next_values(transitions.cut, values, [float(bootstrap)], finals).numpy()
    expected = np.zeros(values.shape)
    for t in range(values.shape[1]):
        weight = 1.0
        for later in range(t, values.shape[1]):
            if not transitions.mask[0, later]:
                break
            after = transitions.discounts[0, later] * successors[0, later] if transitions.discounts[0, later] else 0
            expected[0, t] += weight * (transitions.rewards[0, later] + after - values[0, later])
            if not transitions.goes_on[0, later]:
                break
            weight *= lam * transitions.discounts[0, later]
    result = generalized_advantages(transitions, values, successors, lam)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@hypothesis.given(streams(), st.sampled_from([1, 2, 3, 4, 5, 6, 8, 19, 50, None]))
def test_n_steps_are_a_return_and_a_value(stream, n):
    transitions, values, bootstrap, finals = stream
    successors = next_values(transitions.cut, values, [float(bootstrap)], finals).numpy()
    expected = np.zeros(values.shape)
    for t in np.flatnonzero(transitions.mask[0]):
        discount, later = 1.0, t
        expected[0, t] = -values[0, t]
        while True:
            expected[0, t] += discount * transitions.rewards[0, later]
            discount *= transitions.discounts[0, later]
            if not transitions.goes_on[0, later] or later - t + 1 == n:
                break
            later += 1
        expected[0, t] += discount * successors[0, later]
    result = n_step_advantages(transitions, values, successors, n)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
