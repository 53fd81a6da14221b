import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from replayfeed.pipelines.layouts import (
    check_layout,
    convert_steps,
    example_steps,
    spec_of_frames,
    to_trajectory,
    to_transitions,
)
from replayfeed.pipelines.rlds_steps import cut_steps


def _columns(*, terminal=False, **fields):
    """FR-019: observations 0..3, actions 10..13, rewards 0.5..3.5; 13 and 3.5 are filler."""
    columns = {
        "observation": np.array([0, 1, 2, 3]),
        "action": np.array([10, 11, 12, 13]),
        "reward": np.array([0.5, 1.5, 2.5, 3.5], np.float32),
        "is_first": np.array([True, False, False, False]),
        "is_last": np.array([False, False, False, True]),
        "is_terminal": np.array([False, False, False, terminal]),
    }
    return {**columns, **fields}


def _steps(**fields):
    return cut_steps(_columns(**fields), num_steps=4)


def _rows(columns, *names):
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


def test_fr_019_a_transition_pairs_an_action_with_the_observation_that_it_was_taken_in():
    frames = to_transitions(_steps())
    assert _rows(frames, "observation", "action", "reward", "next_observation") == [
        (0, 10, 0.5, 1),
        (1, 11, 1.5, 2),
        (2, 12, 2.5, 3),
    ]


@pytest.mark.parametrize(
    ("terminal", "stored", "expected"),
    [
        (False, None, [1, 1, 1]),
        (True, None, [1, 1, 0]),
        (False, [1.0, 1, 1, 1], [1, 1, 1]),
        (True, [1.0, 1, 1, 1], [1, 1, 0]),  # T15: constant discounts, as Open X-Embodiment stores them
        (False, [1.0, 1, 1, 0], [1, 1, 1]),  # EnvLogger writes 0 on a truncated last step
        (False, [0.5, 0, 0.25, 7], [0.5, 0, 0.25]),
        (True, [0.5, 0.5, 0.5, 7], [0.5, 0.5, 0]),
    ],
)
@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_the_discount_is_0_into_a_terminal_step_else_the_stored_one_else_1(layout, terminal, stored, expected):
    fields = {} if stored is None else {"discount": np.array(stored)}
    frames = convert_steps(_steps(terminal=terminal, **fields), layout)
    discount = frames["discount"] if layout == "transition" else frames.discount
    assert discount.dtype == np.float32
    assert discount[:3].tolist() == expected


@pytest.mark.parametrize("terminal", [False, True])
def test_a_transition_tells_terminal_and_truncated_apart(terminal):
    frames = to_transitions(_steps(terminal=terminal))
    assert frames["is_terminal"].tolist() == [False, False, terminal]
    assert frames["is_truncated"].tolist() == [False, False, not terminal]


def test_a_trajectory_ends_in_the_boundary_frame():
    frames = to_trajectory(_steps(terminal=True))
    assert isinstance(frames, trajectory.Trajectory)
    assert frames.step_type.tolist() == [0, 1, 1, 2]
    assert frames.next_step_type.tolist() == [1, 1, 2, 0]
    assert frames.observation.tolist() == [0, 1, 2, 3]
    assert frames.action.tolist() == [10, 11, 12, 0]
    assert frames.reward.tolist() == [0.5, 1.5, 2.5, 0]
    assert frames.discount.tolist() == [1, 1, 0, 1]
    assert frames.policy_info == ()
    assert frames.step_type.dtype == frames.next_step_type.dtype == np.int32
    assert frames.is_boundary().tolist() == [False, False, False, True]


def test_two_steps_are_one_transition_and_two_trajectory_frames():
    steps = cut_steps({name: column[2:] for name, column in _columns(terminal=True).items()}, num_steps=2)
    assert _rows(to_transitions(steps), "observation", "action", "next_observation", "discount") == [(2, 12, 3, 0)]
    frames = to_trajectory(steps)
    assert (frames.step_type.tolist(), frames.next_step_type.tolist()) == ([0, 2], [2, 0])


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_nothing_of_the_last_step_but_its_observation_is_used(layout):
    nan = float("nan")
    clean = _steps(discount=np.array([1.0, 1, 1, 1]))
    poisoned = _steps(
        discount=np.array([1.0, 1, 1, nan]),
        reward=np.array([0.5, 1.5, 2.5, nan], np.float32),
        action=np.array([10, 11, 12, -(2**40)]),
    )
    tf.nest.map_structure(np.testing.assert_array_equal, convert_steps(clean, layout), convert_steps(poisoned, layout))


def test_t16_nested_observations_and_actions_are_split_leaf_by_leaf():
    image = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2)
    observation = {"image": image, "state": (np.arange(4.0), {"pole/x y": np.arange(4, 8)})}
    action = {"gripper": np.array([True, False, True, False]), "arm": np.zeros([4, 2], np.float16)}
    frames = to_transitions(_steps(observation=observation, action=action))
    assert frames["observation"]["image"].tolist() == image[:3].tolist()
    assert frames["next_observation"]["image"].tolist() == image[1:].tolist()
    assert frames["next_observation"]["state"][1]["pole/x y"].tolist() == [5, 6, 7]
    assert frames["action"]["gripper"].tolist() == [True, False, True]
    boundary = to_trajectory(_steps(observation=observation, action=action)).action
    assert boundary["gripper"].tolist() == [True, False, True, False]
    assert boundary["arm"].shape == (4, 2)


def test_without_actions_and_rewards_a_transition_has_no_such_key():
    columns = _columns()
    del columns["action"], columns["reward"]
    steps = cut_steps(columns, num_steps=4)
    assert sorted(to_transitions(steps)) == [
        "discount", "is_terminal", "is_truncated", "next_observation", "observation"
    ]  # fmt: skip
    frames = to_trajectory(steps)
    assert frames.action == ()
    assert frames.reward.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint8, bool])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_rewards_and_discounts_come_as_float32_scalars(dtype, shape):
    ones = np.ones([4, *shape], dtype)
    frames = to_transitions(_steps(reward=ones, discount=ones))
    for name in "reward", "discount":
        assert frames[name].dtype == np.float32
        assert frames[name].tolist() == [1, 1, 1]


def test_a_reward_of_several_numbers_keeps_its_shape():
    assert to_transitions(_steps(reward=np.ones([4, 3])))["reward"].shape == (3, 3)


def test_observations_and_actions_keep_their_dtypes():
    frames = to_transitions(_steps(observation=np.zeros([4, 2], np.float64), action=np.zeros([4], np.uint16)))
    assert frames["observation"].dtype == frames["next_observation"].dtype == np.float64
    assert frames["action"].dtype == np.uint16


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
@pytest.mark.parametrize("without", [(), ("discount",), ("reward",), ("action", "reward", "discount")])
def test_the_frame_spec_is_that_of_the_converted_frames(layout, without):
    columns = _columns(
        observation={"image": np.zeros([4, 2, 2], np.uint8), "speed": np.zeros([4], tf.bfloat16.as_numpy_dtype)},
        reward=np.zeros([4, 1]),
        discount=np.ones([4], np.int32),
    )
    columns = {name: column for name, column in columns.items() if name not in without}
    step_spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), columns)
    frames = convert_steps(cut_steps(columns, num_steps=4), layout)
    found = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), frames)
    assert spec_of_frames(convert_steps(example_steps(step_spec), layout)) == found


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match=r"layout must be one of 'trajectory', 'transition', 'step', got 'sar'\."):
        check_layout("sar")


def test_trajectories_without_tf_agents_are_refused_in_a_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tf_agents.trajectories.trajectory", None)
    with pytest.raises(ImportError, match=r"install replayfeed\[agents\], or load with layout='transition'\."):
        check_layout("trajectory")
    check_layout("transition")
