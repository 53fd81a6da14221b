"""Returns of every frame of a window, and the recurrent state it starts with."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tf_agents.trajectories.trajectory import Trajectory

from replayfeed.buffers import BufferInfo, EpisodicReplayBuffer
from replayfeed.pipelines.transforms import lambda_return, lambda_returns, recurrent_state, returns_to_go


def window_of(mask=None, **columns):
    items = {name: tf.constant(column)[None] for name, column in columns.items()}
    length = len(next(iter(columns.values())))
    mask = np.ones([1, length], bool) if mask is None else np.array([mask], bool)
    ids = np.where(mask, np.arange(length), -1)
    return items, BufferInfo(
        tf.constant(ids, tf.int64), tf.ones([1]), tf.constant([0], tf.int64), tf.ones([1]), tf.constant(mask)
    )


def returns_of(result):
    items, info = result
    return items.returns.numpy()[0].tolist(), info.mask.numpy()[0].tolist()


# -- returns to go ----------------------------------------------------------------------------------


def test_returns_go_to_the_windows_end():
    assert returns_of(returns_to_go(0.5)(*window_of(reward=np.float32([1, 2, 4])))) == ([3, 4, 4], [True] * 3)


def test_returns_stop_at_a_terminal_step_and_at_padding():
    window = window_of([True, True, True, False], reward=np.float32([1, 2, 4, 9]), terminal=[False, True, False, False])
    assert returns_of(returns_to_go(0.5)(*window)) == ([2, 2, 4, 0], [True, True, True, False])


def test_a_final_observation_has_no_return_and_adds_none():
    window = window_of(reward=np.float32([1, 2, np.nan, 8]), is_last=[False, False, True, False])
    assert returns_of(returns_to_go(0.5)(*window)) == ([2, 2, 0, 8], [True, True, False, True])


def test_burn_in_padding_has_no_return():
    window = window_of([False, True, True], reward=np.float32([9, 2, 4]))
    assert returns_of(returns_to_go(0.5)(*window)) == ([0, 4, 4], [False, True, True])


def test_a_truncated_frame_keeps_its_reward_and_nothing_of_the_next_episode():
    window = window_of(reward=np.float32([1, 2, 4]), truncated=[False, True, False])
    assert returns_of(returns_to_go(0.5)(*window))[0] == [2, 2, 4]


def test_stored_discounts_multiply_and_vectors_stay_vectors():
    window = window_of(reward=np.float32([[1, 10], [2, 20], [4, 40]]), discount=np.float32([0.5, 1, 1]))
    items, _ = returns_to_go(1.0)(*window)
    assert items.returns.numpy()[0].tolist() == [[4, 40], [6, 60], [4, 40]]


def test_returns_of_a_trajectory_leave_its_boundary_frames_out():
    step_type = np.int32([0, 1, 2, 0])
    items, info = window_of(step_type=step_type, reward=np.float32([1, 2, 7, 4]), discount=np.float32([1, 1, 1, 1]))
    trajectory = Trajectory(
        step_type=items["step_type"],
        observation=(),
        action=(),
        policy_info=(),
        next_step_type=tf.roll(items["step_type"], -1, axis=1),
        reward=items["reward"],
        discount=items["discount"],
    )
    assert returns_of(returns_to_go(0.5)(trajectory, info)) == ([2, 2, 0, 4], [True, True, False, True])


# -- lambda-returns --------------------------------------------------------------------------------------


def test_fr_018_the_edge_is_bootstrapped_once():
    """gamma 0.9, lambda 1, rewards 1, V 0.5 everywhere: advantages 2.5745, 1.805, 0.95."""
    v = tf.fill([1, 3], 0.5)
    returns = lambda_return(tf.ones([1, 3]), tf.fill([1, 3], 0.9), v, 1.0)
    np.testing.assert_allclose((returns - v)[0], [2.5745, 1.805, 0.95], rtol=1e-6)
    window = window_of(reward=np.ones(4, np.float32), value=np.full(4, 0.5, np.float32))
    got, mask = returns_of(lambda_returns(0.9, 1.0)(*window))
    np.testing.assert_allclose(np.array(got[:3]) - 0.5, [2.5745, 1.805, 0.95], rtol=1e-6)
    assert mask == [True, True, True, False]


def test_fr_016_a_truncation_bootstraps_from_its_final_observation():
    """gamma 0.9, lambda 0.5: returns 2.485, 2.8 | 1.45, with the final observation as a frame of its own."""
    window = window_of(
        reward=np.float32([1, 1, 0, 1, 0]),
        value=np.float32([0.5, 0.5, 2.0, 0.5, 0.5]),
        is_last=[False, False, True, False, False],
    )
    got, mask = returns_of(lambda_returns(0.9, 0.5)(*window))
    np.testing.assert_allclose(got, [2.485, 2.8, 0, 1.45, 0], rtol=1e-6)
    assert mask == [True, True, False, True, False]


def test_fr_016_a_terminal_step_is_not_bootstrapped():
    window = window_of(
        reward=np.float32([1, 1, 1]), value=np.float32([0.5] * 3), next_v=np.float32([0.5] * 3),
        terminal=[False, True, False],
    )  # fmt: skip
    got, mask = returns_of(lambda_returns(0.9, 0.5, next_value="next_v")(*window))
    np.testing.assert_allclose(np.array(got) - 0.5, [1.175, 0.5, 0.95], rtol=1e-6)
    assert mask == [True] * 3


def test_a_truncated_frame_without_a_final_observation_has_no_lambda_return():
    window = window_of(reward=np.float32([1, 1, 1]), value=np.float32([0, 8, 80]), truncated=[False, True, False])
    assert returns_of(lambda_returns(0.5, 0.0)(*window)) == ([5, 0, 0], [True, False, False])
    assert returns_of(lambda_returns(0.5, 1.0)(*window)) == ([5, 0, 0], [True, False, False])


@given(
    length=st.integers(1, 33),
    seed=st.integers(0, 999),
    lam=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
)
def test_lambda_returns_are_those_of_a_plain_loop(length, seed, lam):
    rng = np.random.default_rng(seed)
    r_t, v_tp1 = rng.normal(size=(2, 3, length)).astype(np.float32)
    discount_t = np.where(rng.random((3, length)) < 0.2, 0, 0.9).astype(np.float32)
    expected, following = np.zeros_like(r_t), v_tp1[:, -1]
    for t in reversed(range(length)):
        following = r_t[:, t] + discount_t[:, t] * ((1 - lam) * v_tp1[:, t] + lam * following)
        expected[:, t] = following
    got = lambda_return(tf.constant(r_t), tf.constant(discount_t), tf.constant(v_tp1), lam)
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


@given(length=st.integers(1, 33), seed=st.integers(0, 999))
def test_returns_to_go_are_those_of_a_plain_loop(length, seed):
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=length).astype(np.float32)
    terminal, truncated = rng.random((2, length)) < 0.15
    real = rng.integers(1, length + 1)
    expected, following = np.zeros(length), 0.0
    for t in reversed(range(real)):
        following = reward[t] + (0 if terminal[t] or truncated[t] else 0.9 * following)
        expected[t] = following
    window = window_of(np.arange(length) < real, reward=reward, terminal=terminal, truncated=truncated)
    np.testing.assert_allclose(returns_of(returns_to_go(0.9)(*window))[0], expected, rtol=2e-4, atol=2e-5)


def test_bad_arguments_of_returns_are_refused():
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\]"):
        returns_to_go(1.1)
    with pytest.raises(ValueError, match=r"lam must be in \[0, 1\]"):
        lambda_returns(0.9, -0.1)
    with pytest.raises(ValueError, match="no field 'value' for the value"):
        lambda_returns(0.9, 0.5)(*window_of(reward=np.float32([1, 1])))
    with pytest.raises(ValueError, match="field 'value': expected one number a frame"):
        lambda_returns(0.9, 0.5)(*window_of(reward=np.float32([1, 1]), value=np.ones([2, 3], np.float32)))


# -- recurrent state ---------------------------------------------------------------------------------------


def test_the_state_is_that_of_the_first_real_row():
    window = window_of([False, False, True, True], lstm=np.float32([[0], [0], [7], [8]]))
    items, _ = recurrent_state("lstm")(*window)
    assert items.state["lstm"].numpy().tolist() == [[7]]
    assert items.steps["lstm"].shape == (1, 4, 1)
    window = window_of([True, True, True], lstm=np.float32([[5], [6], [7]]))
    assert recurrent_state("lstm")(*window)[0].state["lstm"].numpy().tolist() == [[5]]


def test_the_state_may_be_zeros_and_a_group_of_fields():
    items, info = window_of(x=np.float32([1, 2]))
    items = {"policy_info": {"state": (items["x"], items["x"][..., None])}}
    stored, _ = recurrent_state(["policy_info/state"])(items, info)
    assert [leaf.numpy().tolist() for leaf in stored.state["policy_info/state"]] == [[1], [[1]]]
    zero, _ = recurrent_state("policy_info/state", initial_state="zero")(items, info)
    assert [leaf.numpy().tolist() for leaf in zero.state["policy_info/state"]] == [[0], [[0]]]


def test_bad_arguments_of_recurrent_state_are_refused():
    with pytest.raises(ValueError, match="at least one field"):
        recurrent_state([])
    with pytest.raises(ValueError, match="initial_state must be 'stored' or 'zero'"):
        recurrent_state("lstm", "random")
    with pytest.raises(ValueError, match="no field 'lstm'"):
        recurrent_state("lstm")(*window_of(x=[1, 2]))


def test_whole_episodes_of_a_dataset_have_returns_although_their_length_is_not_known():
    """Episodes of 3 and 5 steps with rewards 1, gamma 0.5: padded in a batch, and one by one."""
    spec = {"reward": tf.TensorSpec([], tf.float32), "value": tf.TensorSpec([], tf.float32)}
    buffer = EpisodicReplayBuffer(spec, capacity=10)
    buffer.extend({"reward": np.ones(n, np.float32), "value": np.zeros(n, np.float32)} for n in (3, 5))
    to_go = [[1.75, 1.5, 1.0, 0.0, 0.0], [1.9375, 1.875, 1.75, 1.5, 1.0]]
    ((items, info),) = buffer.as_dataset(2, single_deterministic_pass=True).map(returns_to_go(0.5))
    np.testing.assert_array_equal(items.returns, to_go)
    np.testing.assert_array_equal(info.mask, np.array(to_go) > 0)
    single = [
        items.returns.numpy().tolist()
        for items, _ in buffer.as_dataset(single_deterministic_pass=True).map(returns_to_go(0.5))
    ]
    assert single == [to_go[0][:3], to_go[1]]
    ((items, _),) = buffer.as_dataset(2, single_deterministic_pass=True).map(lambda_returns(0.5, 1.0))
    # All but the last step, whose successor has no known value.
    np.testing.assert_allclose(items.returns[1, :4], [1.875, 1.75, 1.5, 1.0])
    ((items, _),) = buffer.as_dataset(2, single_deterministic_pass=True).map(recurrent_state("value"))
    assert items.state["value"].shape == [2]


def test_what_stands_behind_an_end_is_in_no_return_not_even_nan():
    items, info = window_of(reward=[1.0, 2.0, np.nan, np.nan], terminal=[False, True, False, False])
    items, _ = returns_to_go(0.5)(items, info)
    assert items.returns[0, :2].numpy().tolist() == [2.0, 2.0]
