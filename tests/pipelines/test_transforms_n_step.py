"""n-step transitions out of hand-made windows: each number can be checked by eye; odd ends against a plain loop."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tf_agents.trajectories.trajectory import Trajectory

from replayfeed.buffers import BufferInfo, TFUniformReplayBuffer, Transition, Window
from replayfeed.pipelines.transforms import n_step, transitions

FIRST, MID, LAST = 0, 1, 2


def info_of(mask, first_id=100):
    """The info of one window, or of several."""
    mask = np.atleast_2d(np.asarray(mask, bool))
    ids = np.where(mask, first_id + np.arange(mask.size).reshape(mask.shape), -1)
    batch = len(mask)
    return BufferInfo(
        tf.constant(ids, tf.int64),
        tf.fill([batch], 0.5),
        tf.constant(ids[:, 0], tf.int64),
        tf.fill([batch], 2.0),
        tf.constant(mask),
    )


def window_of(real=None, **columns):
    """(items, info) of one window: a dict of columns `[T, ...]`, and where it is real."""
    items = {name: tf.constant(column)[None] for name, column in columns.items()}
    length = len(next(iter(columns.values())))
    return items, info_of(np.arange(length) < (length if real is None else real))


def steps(rewards, real=None, **columns):
    """A window with observations 0, 1, 2, ... and actions 10, 11, 12, ..."""
    length = len(rewards)
    observation = np.arange(length, dtype=np.float32)
    action = np.arange(10, 10 + length)
    if real is not None:
        observation[real:], action[real:] = 0, 0
    return window_of(real, observation=observation, action=action, reward=np.float32(rewards), **columns)


def trajectory(observation, step_type, reward, discount, real=None):
    """A window of a `Trajectory` and its info."""
    step_type = np.int32(step_type)
    frames = Trajectory(
        step_type=step_type,
        observation=np.float32(observation),
        action=np.arange(len(step_type), dtype=np.int64),
        policy_info=(),
        next_step_type=np.append(step_type[1:], FIRST).astype(np.int32),
        reward=np.float32(reward),
        discount=np.float32(discount),
    )
    items = tf.nest.map_structure(lambda leaf: tf.constant(leaf)[None], frames)
    return items, info_of(np.arange(len(step_type)) < (len(step_type) if real is None else real))


def summary(items):
    """(R, discount, next observation, k) of the only row."""
    return (
        float(items.reward[0]),
        float(items.discount[0]),
        float(items.next_observation[0]),
        int(items.num_steps_used[0]),
    )


# -- the cases of the field ---------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4])
def test_fr_008_a_time_limit_ends_the_sum_and_keeps_its_bootstrap(n):
    """R = 1 + 0.5 * 10, one gamma is left to the agent, and the next observation is the final one; windows that
    join episodes included, where TF-Agents' own function gives 18.5, 0.125, 51."""
    columns = ([0, 1, 2, 50, 51], [FIRST, MID, LAST, FIRST, MID], [1, 10, 0, 100, 1000], [1, 1, 1, 1, 1])
    items, info = n_step(n, 0.5)(*trajectory(*(column[: n + 1] for column in columns)))
    assert items.reward.numpy()[0, 0] == 6
    assert items.discount.numpy()[0, 0] == 0.5
    assert items.observation.numpy().tolist() == [[0, 2]]
    assert items.step_type.numpy().tolist() == [[FIRST, LAST]]
    assert items.next_step_type.numpy()[0, 0] == LAST
    assert info.ids.numpy().tolist() == [[100, 102]]
    assert info.mask.numpy().tolist() == [[True, True]]


def test_fr_008_in_a_window_that_is_padded_instead():
    items, info = n_step(4, 0.5)(
        *trajectory([0, 1, 2, 0, 0], [FIRST, MID, LAST, 0, 0], [1, 10, 7, 0, 0], [1, 1, 0, 0, 0], real=3)
    )
    assert (items.reward.numpy()[0, 0], items.discount.numpy()[0, 0]) == (6, 0.5)
    assert items.observation.numpy().tolist() == [[0, 2]]
    assert info.mask.numpy().tolist() == [[True, True]]


def test_fr_004_the_factor_is_gamma_to_the_number_of_steps_really_summed():
    """An episode of 4 ordinary steps, n = 3: from its third step one transition is known."""
    items, _ = n_step(3, 0.5)(*steps([1, 10, 0, 0], real=2))
    assert summary(items) == (1, 0.5, 1, 1)


def test_fr_010_next_observations_near_the_end_are_the_last_one():
    """o = 0..4 with its next observations as views on one array, n = 3: 3, 4, 4, 4."""
    o = np.arange(5, dtype=np.float32)
    items = []
    for start in range(4):
        real = min(3, 4 - start)
        pad = (0, 3 - real)
        window = window_of(
            real,
            observation=np.pad(o[:-1][start : start + 3], pad),
            next_observation=np.pad(o[1:][start : start + 3], pad),
            action=np.zeros(3, np.int64),
            reward=np.pad(np.ones(real, np.float32), pad),
        )
        items.append(n_step(3, 1.0)(*window)[0])
    assert [float(one.observation[0]) for one in items] == [0, 1, 2, 3]
    assert [float(one.next_observation[0]) for one in items] == [3, 4, 4, 4]
    assert [float(one.reward[0]) for one in items] == [3, 3, 2, 1]


@pytest.mark.parametrize("step", range(10))
def test_fr_012_the_reward_of_the_terminal_step_counts(step):
    """Ten steps of reward 1, terminal at the end, n = 5, gamma = 1: the return at t is min(5, 10 - t)."""
    real = min(6, 10 - step)
    terminal = np.arange(step, step + 6) == 9
    items, _ = n_step(5, 1.0)(*steps(np.where(np.arange(6) < real, 1.0, 0.0), real, terminal=terminal))
    assert float(items.reward[0]) == min(5, 10 - step)
    assert float(items.discount[0]) == (1 if step < 5 else 0)


@pytest.mark.parametrize(
    ("flags", "target"),
    [({"terminal": [False, False]}, 10.9), ({"terminal": [True, False]}, 1.0)],
    ids=["time limit", "terminal"],
)
def test_fr_013_a_time_limit_is_no_terminal_state(flags, target):
    """Reward 1, gamma 0.99, V = 10 at the final observation."""
    items, _ = n_step(1, 0.99, final_frame="observation")(*steps([1, 0], **flags))
    assert float(items.reward[0] + items.discount[0] * 10) == pytest.approx(target)


def test_fr_014_the_next_observation_at_a_truncation_is_never_the_next_episodes():
    """Observations 0..5, truncated at 5, then 100: the transition out of 4 leads to 5."""
    observation, is_last = np.float32([4, 5, 100]), [False, True, False]
    items, _ = n_step(2, 1.0)(
        *window_of(observation=observation, action=[1, 2, 3], reward=np.float32([1, 1, 1]), is_last=is_last)
    )
    assert summary(items) == (1, 1, 5, 1)


def test_fr_015_terminated_wins_over_truncated():
    items, _ = n_step(1, 0.99)(*steps([1, 0], real=1, terminated=[True, False], truncated=[True, False]))
    assert float(items.reward[0] + items.discount[0] * 10) == 1.0


@pytest.mark.parametrize(("is_terminal", "discounts"), [(False, [1, 1, 1]), (True, [1, 1, 0])])
def test_fr_019_rlds_steps_pair_each_action_with_what_it_led_to(is_terminal, discounts):
    """Observations 0..3, actions 10..13 (13 is filler), the last reward is filler too (here NaN)."""
    got = []
    for start in range(3):
        window = window_of(
            observation=np.float32([0, 1, 2, 3])[start : start + 2],
            action=np.array([10, 11, 12, 13])[start : start + 2],
            reward=np.float32([1, 2, 3, np.nan])[start : start + 2],
            discount=np.float32([1, 1, 1, np.nan])[start : start + 2],
            is_last=np.array([False, False, False, True])[start : start + 2],
            is_terminal=np.array([False, False, False, is_terminal])[start : start + 2],
        )
        items, _ = transitions()(*window)
        got.append([float(field[0]) for field in items[:5]])
    assert got == [[0, 10, 1, discounts[0], 1], [1, 11, 2, discounts[1], 2], [2, 12, 3, discounts[2], 3]]


def test_t10_a_truncated_boundary_frame_never_bootstraps_from_the_next_episode():
    items, _ = n_step(3, 0.9)(*trajectory([5, 6, 90, 91], [MID, LAST, FIRST, MID], [1, 0, 1, 1], [1, 1, 1, 1]))
    assert (items.reward.numpy()[0, 0], items.discount.numpy()[0, 0]) == (1, 1)
    assert items.observation.numpy().tolist() == [[5, 6]]


def test_o7_gamma_zero_keeps_the_first_reward():
    items, _ = n_step(3, 0.0)(*steps([1, 10, 100, 0]))
    assert summary(items) == (1, 0, 3, 3)
    items, _ = n_step(1, 0.0)(*trajectory([0, 1], [FIRST, MID], [1, 10], [1, 1]))
    assert items.discount.numpy()[0, 0] == 1  # the agent's own gamma is the 0


def test_o8_without_a_done_the_tail_bootstraps_from_the_newest_observation():
    """Five steps, n = 3, no done: never a constant filler with done = 0."""
    got = [summary(n_step(3, 0.5)(*steps(np.where(np.arange(4) < real, 1.0, 0.0), real))[0]) for real in (4, 3, 2)]
    assert got == [(1.75, 0.125, 3, 3), (1.5, 0.25, 2, 2), (1, 0.5, 1, 1)]


# -- ends -------------------------------------------------------------------------------------------


def test_a_stored_discount_of_zero_ends_the_sum_inclusive():
    items, _ = n_step(3, 0.5)(*steps([1, 10, 100, 1000], discount=np.float32([1, 0, 1, 1])))
    assert summary(items)[:2] == (6, 0)
    assert int(items.num_steps_used[0]) == 2


def test_discounts_between_zero_and_one_multiply_rewards_and_bootstrap():
    items, _ = n_step(2, 0.5)(*steps([1, 10, 100], discount=np.float32([0.5, 0.25, 1])))
    assert summary(items) == (1 + 0.5 * 0.5 * 10, 0.25 * 0.125, 2, 2)


def test_on_a_trajectory_the_agents_gamma_makes_the_discount_whole():
    items, _ = n_step(2, 0.5)(*trajectory([0, 1, 2], [FIRST, MID, MID], [1, 10, 100], [0.5, 0.25, 1]))
    assert items.reward.numpy()[0, 0] == 1 + 0.5 * 0.5 * 10
    assert items.discount.numpy()[0, 0] * 0.5 == 0.25 * 0.125


def test_a_terminal_frame_without_successor_counts_and_shows_nothing():
    items, info = n_step(3, 0.5)(*steps([1, 10, 0, 0], real=2, terminated=[False, True, False, False]))
    assert summary(items) == (6, 0, 0, 2)
    assert info.mask.numpy().tolist() == [True]


def test_a_terminal_frame_followed_by_another_episode_shows_nothing_of_it():
    items, _ = n_step(2, 0.5)(*steps([1, 10, 100], terminated=[True, False, False]))
    assert summary(items) == (1, 0, 0, 1)
    items, info = n_step(3, 0.5)(*trajectory([7, 8, 90, 91], [MID, MID, FIRST, MID], [1, 10, 5, 5], [1, 0, 1, 1]))
    assert (items.reward.numpy()[0, 0], items.discount.numpy()[0, 0]) == (6, 0)
    assert items.observation.numpy().tolist() == [[7, 0]]
    assert items.next_step_type.numpy()[0, 0] == LAST
    assert info.mask.numpy().tolist() == [[True, False]]
    assert info.ids.numpy().tolist() == [[100, -1]]


def test_a_truncated_ordinary_frame_is_bootstrapped_from_with_one_step_fewer():
    items, _ = n_step(3, 0.5)(*steps([1, 10, 100, 1000], truncated=[False, False, True, False]))
    assert summary(items) == (6, 0.25, 2, 2)


def test_a_reset_without_a_flag_before_it_ends_the_sum():
    items, _ = n_step(3, 0.5)(*steps([1, 10, 100, 1000], is_first=[False, False, True, False]))
    assert summary(items) == (1, 0.5, 1, 1)


@pytest.mark.parametrize("n", [1, 3])
def test_a_start_without_any_transition_is_masked_and_weighs_nothing(n):
    items, info = n_step(n, 0.5)(*steps([1] + [0] * n, real=1))
    assert (float(items.reward[0]), int(items.num_steps_used[0])) == (0, 0)
    assert (info.mask.numpy().tolist(), info.weights.numpy().tolist()) == ([False], [0])


@pytest.mark.parametrize("n", [1, 3])
def test_a_trajectory_without_any_transition_starts_with_a_boundary_frame(n):
    window = trajectory([7] + [0] * n, [MID] + [0] * n, [1] + [0] * n, [1] + [0] * n, real=1)
    items, info = n_step(n, 0.5)(*window)
    assert items.is_boundary().numpy()[0, 0]
    assert (info.mask.numpy().tolist(), info.weights.numpy().tolist()) == ([[False, False]], [0])


def test_a_single_truncated_frame_in_a_joined_window_shows_nothing_of_the_next_episode():
    items, info = n_step(1, 0.5)(*steps([1, 10], truncated=[True, False]))
    assert summary(items) == (0, 0, 0, 0)
    assert info.mask.numpy().tolist() == [False]


def test_final_frames_that_only_the_buffer_knows_of_are_bootstrapped_from():
    """end_of_episode_fn with final_frame='observation': reward and discount of the last frame mean nothing."""
    window = steps([1, 10, 77, 0], real=3, discount=np.float32([1, 1, 0, 0]))
    assert summary(n_step(3, 0.5, final_frame="observation")(*window)[0]) == (6, 0.25, 2, 2)
    assert summary(n_step(3, 0.5)(*window)[0])[:2] == (1 + 5 + 77 / 4, 0)


def test_an_is_last_frame_may_be_an_ordinary_one():
    window = steps([1, 10, 100], is_last=[False, True, False])
    assert summary(n_step(2, 0.5, final_frame="ordinary")(*window)[0]) == (1, 0.5, 1, 1)
    window = steps([1, 10, 100], is_last=[False, True, False], terminated=[False, True, False])
    assert summary(n_step(2, 0.5, final_frame="ordinary")(*window)[0])[:2] == (6, 0)


def test_transitions_that_hold_their_next_observation_need_one_frame_less():
    window = window_of(
        3,
        observation=np.float32([0, 1, 2]),
        next_observation=np.float32([1, 2, 9]),
        action=[0, 0, 0],
        reward=np.float32([1, 10, 100]),
        is_terminal=[False, False, True],
    )
    assert summary(n_step(3, 0.5)(*window)[0]) == (31, 0, 9, 3)
    assert summary(n_step(2, 0.5, next_observation=None, final_frame="ordinary")(*window)[0]) == (6, 0.25, 2, 2)


# -- shapes, names and what else comes along ------------------------------------------------------------


def test_without_a_batch_axis():
    items, info = steps([1, 10, 100])
    items, info = tf.nest.map_structure(lambda leaf: leaf[0], (items, info))
    transition, info = n_step(2, 0.5)(items, info)
    assert [float(value) for value in transition[:6]] == [0, 10, 6, 0.25, 2, 2]
    assert (info.ids.shape, info.mask.shape, info.weights.shape) == ((), (), ())


def test_in_a_dataset_shapes_stay_static_and_the_last_batch_may_be_smaller():
    items, info = tf.nest.map_structure(lambda leaf: tf.repeat(leaf, 3, axis=0), steps([1, 10, 100]))
    dataset = tf.data.Dataset.from_tensor_slices((items, info))
    mapped = dataset.batch(2, drop_remainder=True).map(n_step(2, 0.5))
    assert {leaf.shape.as_list()[0] for leaf in tf.nest.flatten(mapped.element_spec)} == {2}
    assert [len(one.reward) for one, _ in dataset.batch(2).map(n_step(2, 0.5))] == [2, 1]


def test_nested_fields_other_names_and_further_fields():
    Step = collections.namedtuple("Step", "obs act rew done hidden")
    items = Step(
        obs={"image": tf.constant([[[1], [2], [3]]], tf.uint8), "speed": tf.constant([[1.0, 2.0, 3.0]])},
        act=(tf.constant([[1, 2, 3]]), tf.constant([[4, 5, 6]])),
        rew=tf.constant([[[1.0], [10.0], [100.0]]]),
        done=tf.constant([[[0], [0], [0]]], tf.uint8),
        hidden=tf.constant([[7.0, 8.0, 9.0]]),
    )
    transform = n_step(
        2,
        0.5,
        observation="obs",
        action="act",
        reward="rew",
        terminal="done",
        next_action=True,
        next_reward=True,
        extras=["hidden", "obs/speed"],
    )
    got, _ = transform(items, info_of([True] * 3))
    assert isinstance(got, Transition)
    assert got.next_observation["image"].numpy().tolist() == [[3]]
    assert [int(leaf[0]) for leaf in got.action + got.next_action] == [1, 4, 3, 6]
    assert got.reward.numpy().tolist() == [6]
    assert got.next_reward.numpy().tolist() == [100]
    assert {name: float(leaf[0]) for name, leaf in got.extras.items()} == {"hidden": 7, "obs/speed": 1}


def test_rewards_of_float64_are_summed_in_float64():
    items, _ = n_step(2, 1.0)(
        *window_of(observation=[0, 1, 2], action=[0, 1, 2], reward=np.array([1.0, 1e-12, 0.0]), terminal=[False] * 3)
    )
    assert items.reward.numpy()[0] == 1.0 + 1e-12


@pytest.mark.parametrize("n", [0, -1])
def test_n_below_one_is_refused(n):
    with pytest.raises(ValueError, match="n must be at least 1"):
        n_step(n, 0.9)


def test_n_that_is_no_int_is_refused():
    with pytest.raises(TypeError, match="n must be an int"):
        n_step(1.5, 0.9)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_gamma_outside_its_range_is_refused(gamma):
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\]"):
        n_step(1, gamma)


def test_a_window_of_another_length_is_told_which_to_ask_for():
    with pytest.raises(ValueError, match=r"n_step\(n=3\) takes windows of 4 frames.*got 3.*Window\(4, short='pad'\)"):
        n_step(3, 0.9)(*steps([1, 2, 3]))
    window = window_of(observation=[0, 1], next_observation=[1, 2], action=[0, 0], reward=np.float32([1, 1]))
    with pytest.raises(ValueError, match=r"takes windows of 3 frames \(each frame holds.*got 2"):
        n_step(3, 0.9)(*window)


def test_single_frames_are_told_so():
    items, info = steps([1, 2])
    single = (
        tf.nest.map_structure(lambda leaf: leaf[:, 0], items),
        info._replace(ids=info.ids[:, 0], mask=info.mask[:, 0]),
    )
    with pytest.raises(ValueError, match="takes windows, and this sample holds single frames"):
        n_step(1, 0.9)(*single)


def test_a_missing_field_is_named_with_those_that_are_there():
    items, info = steps([1, 2])
    with pytest.raises(ValueError, match=r"no field 'rew' for the reward: the items have \['action', 'obs"):
        n_step(1, 0.9, reward="rew")(items, info)
    with pytest.raises(ValueError, match="no field 'done' for the terminal"):
        n_step(1, 0.9, terminal="done")(items, info)
    with pytest.raises(ValueError, match="fields are found by name"):
        n_step(1, 0.9)(items["reward"], info)


def test_an_is_terminal_that_may_mean_two_things_is_refused():
    window = steps([1, 2], is_terminal=[False, True])
    with pytest.raises(ValueError, match="say final_frame='observation' or final_frame='ordinary'"):
        n_step(1, 0.9)(*window)
    assert summary(n_step(1, 0.5, final_frame="observation")(*window)[0]) == (1, 0, 1, 1)
    assert summary(n_step(1, 0.5, final_frame="ordinary")(*window)[0]) == (1, 0.5, 1, 1)


def test_what_a_layout_cannot_give_is_refused():
    window = window_of(observation=[0], next_observation=[1], action=[0], reward=np.float32([1]))
    with pytest.raises(ValueError, match="next_action and next_reward stand in the frame after"):
        n_step(1, 0.9, next_action=True)(*window)
    with pytest.raises(ValueError, match="a Trajectory becomes a Trajectory"):
        n_step(1, 0.9, extras=["policy_info"])(*trajectory([0, 1], [FIRST, MID], [1, 1], [1, 1]))
    with pytest.raises(ValueError, match="final_frame must be"):
        n_step(1, 0.9, final_frame="last")


def test_transitions_leave_gamma_out():
    items, _ = transitions()(*steps([1, 10], discount=np.float32([0.5, 1])))
    assert summary(items) == (1, 0.5, 1, 1)


# -- against a plain loop ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Step:
    """One frame of a made-up stream; `follows` is the next observation, None where nobody knows it."""

    observation: int
    reward: float
    discount: float
    is_last: bool
    terminated: bool
    truncated: bool
    is_first: bool
    is_terminal: bool


def make_stream(episodes, *, final_frames):
    """Frames of episodes (rewards, discounts, how it ended), with or without final observations."""
    frames = []
    for rewards, discounts, ended in episodes:
        length = len(rewards)
        for t in range(length):
            is_end = t == length - 1
            terminated, truncated = is_end and ended == "terminal", is_end and ended == "truncated"
            discount = 0.0 if terminated else discounts[t]
            frames.append(Step(len(frames) + 1, rewards[t], discount, False, terminated, truncated, t == 0, False))
        if final_frames:
            frames.append(Step(len(frames) + 1, 999.0, 0.5, True, False, False, False, ended == "terminal"))
    return frames


def expected(frames, start, n, gamma, *, final_frames):
    """(R, discount, next observation, k), by walking on from `start`."""
    total, factor, k, t = 0.0, 1.0, 0, start
    while k < n:
        step = frames[t]
        if step.is_last or (step.truncated and not final_frames):
            break
        if t + 1 == len(frames) and not step.terminated:
            break
        total += factor * step.reward
        k += 1
        if step.terminated:
            return total, 0.0, None, k
        factor *= gamma * step.discount
        t += 1
    return total, factor, frames[t].observation, k


EPISODES = st.lists(
    st.integers(1, 5).flatmap(
        lambda length: st.tuples(
            st.lists(st.integers(-9, 9), min_size=length, max_size=length),
            st.lists(st.sampled_from([1.0, 0.5]), min_size=length, max_size=length),
            st.sampled_from(["terminal", "truncated"]),
        )
    ),
    min_size=1,
    max_size=3,
)


def column(frames, name, dtype, window):
    values = [getattr(frames[t], name) if t is not None else 0 for t in window]
    return np.array(values).astype(dtype)


@pytest.mark.parametrize("spec", ["trajectory", "rlds", "flags", "in place"])
@pytest.mark.parametrize("joined", [False, True], ids=["padded", "joined"])
@given(episodes=EPISODES, n=st.integers(1, 4), gamma=st.sampled_from([0.0, 0.5, 1.0]))
def test_every_start_gives_what_a_plain_loop_gives(spec, joined, episodes, n, gamma):
    final_frames = spec in ("trajectory", "rlds")
    frames = make_stream(episodes, final_frames=final_frames)
    num_frames = n if spec == "in place" else n + 1
    windows, masks = [], []
    for start, frame in enumerate(frames):
        if frame.is_last:
            continue
        window = list(range(start, min(start + num_frames, len(frames))))
        if not joined:
            stop = next((i for i in window[1:] if frames[i].is_first), len(frames))
            window = [i for i in window if i < stop]
        windows.append(window + [None] * (num_frames - len(window)))
        masks.append([i is not None for i in windows[-1]])
    columns = {
        name: np.stack([column(frames, name, dtype, window) for window in windows])
        for name, dtype in (
            ("observation", np.float32),
            ("reward", np.float32),
            ("discount", np.float32),
            *((flag, bool) for flag in ("is_last", "terminated", "truncated", "is_first", "is_terminal")),
        )
    }
    columns["action"] = np.zeros(columns["reward"].shape, np.int64)
    got, info = reduce_as(spec, columns, masks, n, gamma)
    starts = [window[0] for window in windows]
    for row, start in enumerate(starts):
        if spec == "in place":
            reward, discount, k = expected_in_place(frames, start, n, gamma)
            following = None
        else:
            reward, discount, following, k = expected(frames, start, n, gamma, final_frames=final_frames)
        assert got["k"][row] == k or spec == "trajectory"
        assert info.mask.numpy().reshape(len(starts), -1)[row, 0] == (k > 0)
        assert info.weights.numpy()[row] == (2 if k else 0)
        if k:
            assert got["reward"][row] == pytest.approx(reward)
            assert got["discount"][row] == pytest.approx(discount)
            if following is not None:
                assert got["next"][row] == following
            elif spec != "in place":
                # What a terminal frame leads to: its final observation where it is stored, else nothing.
                assert got["next"][row] in (0, frames[start + k].observation if final_frames else 0)


def expected_in_place(frames, start, n, gamma):
    """As `expected`, where no transition is ever unknown."""
    total, factor, k = 0.0, 1.0, 0
    for step in frames[start : start + n]:
        total += factor * step.reward
        factor *= gamma * step.discount
        k += 1
        if step.terminated or step.truncated:
            break
    return total, factor, k


def reduce_as(spec, columns, masks, n, gamma):
    """n-step transitions of the columns, presented as one kind of spec."""
    info = info_of(masks)
    tensors = {name: tf.constant(values) for name, values in columns.items()}
    if spec == "trajectory":
        step_type = np.where(columns["is_last"], LAST, np.where(columns["is_first"], FIRST, MID)).astype(np.int32)
        items = Trajectory(
            step_type=tf.constant(step_type),
            observation=tensors["observation"],
            action=tensors["action"],
            policy_info=(),
            next_step_type=tf.constant(np.roll(step_type, -1, axis=1)),
            reward=tensors["reward"],
            discount=tensors["discount"],
        )
        items, info = n_step(n, gamma)(items, info)
        k = items.discount  # the agent's gamma makes it whole
        return {
            "k": [None] * len(masks),
            "reward": items.reward.numpy()[:, 0],
            "discount": gamma * k.numpy()[:, 0],
            "next": items.observation.numpy()[:, 1],
        }, info
    if spec == "rlds":
        keys = ["observation", "action", "reward", "discount", "is_first", "is_last", "is_terminal"]
        # RLDS says it by is_terminal alone.
        tensors["discount"] = tf.where(tensors["terminated"], 1.0, tensors["discount"])
    else:
        keys = ["observation", "action", "reward", "discount", "terminated", "truncated"]
    items = {key: tensors[key] for key in keys}
    if spec == "in place":
        items["next_observation"] = tensors["observation"] + 0.5
    items, info = n_step(n, gamma)(items, info)
    return {
        "k": items.num_steps_used.numpy(),
        "reward": items.reward.numpy(),
        "discount": items.discount.numpy(),
        "next": items.next_observation.numpy(),
    }, info


def test_windows_with_burn_in_are_refused_although_their_length_fits():
    """The frame in front would be taken for the drawn one, padding included."""
    spec = {"observation": tf.TensorSpec([], tf.int64), "reward": tf.TensorSpec([], tf.float32)}
    buffer = TFUniformReplayBuffer(spec, 1, 20, seed=0)
    items = {"observation": np.arange(10)[None], "reward": np.ones([1, 10], np.float32)}
    buffer.add_sequence(items, end_of_episode=np.arange(10)[None] % 5 == 4)
    for window in (Window(2, burn_in=1, short="pad"), Window(2, burn_in=1)):
        sample = buffer.sample(20, window=window)
        with pytest.raises(tf.errors.InvalidArgumentError, match="takes windows without burn_in"):
            n_step(2, 0.5, action=None)(*sample)
        with pytest.raises(tf.errors.InvalidArgumentError, match="takes windows without burn_in"):
            next(iter(buffer.as_dataset(20, window=window).map(n_step(2, 0.5, action=None))))


def test_a_done_that_says_not_whether_the_end_is_real_is_refused():
    items = {"observation": tf.zeros([1, 2]), "action": tf.zeros([1, 2]), "reward": tf.ones([1, 2])}
    items["done"] = tf.constant([[True, False]])
    info = BufferInfo(tf.constant([[4, 5]]), tf.ones([1]), tf.constant([4]), tf.ones([1]), tf.fill([1, 2], True))
    with pytest.raises(ValueError, match="'done' does not say whether an end is real: say terminal='done' where each"):
        n_step(1, 0.5)(items, info)
    assert n_step(1, 0.5, terminal="done")(items, info)[0].discount.numpy().tolist() == [0.0]
    assert n_step(1, 0.5, terminal=())(items, info)[0].discount.numpy().tolist() == [0.5]
    with_discount = {**items, "discount": tf.ones([1, 2])}
    assert n_step(1, 0.5)(with_discount, info)[0].discount.numpy().tolist() == [0.5]


def test_a_terminal_flag_on_a_final_observation_says_that_the_state_is_terminal():
    """As in RLDS: no action was taken there, so it cannot have led anywhere. Three steps, then that observation."""
    flags = tf.constant([[False, False, False, True]])
    items = {"observation": tf.constant([[0, 1, 2, 3]]), "reward": tf.ones([1, 4]), "terminal": flags, "is_last": flags}
    ids = tf.constant([[4, 5, 6, 7]])
    info = BufferInfo(ids, tf.ones([1]), ids[:, 0], tf.ones([1]), tf.fill([1, 4], True))
    transition, _ = n_step(3, 0.5, action=None)(items, info)
    assert transition.reward.numpy().tolist() == [1.75] and transition.discount.numpy().tolist() == [0.0]
    transition, _ = n_step(3, 0.5, action=None)({**items, "terminal": tf.zeros_like(flags)}, info)
    assert transition.reward.numpy().tolist() == [1.75] and transition.discount.numpy().tolist() == [0.125]


def test_a_reward_with_an_axis_of_one_comes_without_it():
    """Beside a discount of `[B]` it would make a target of `[B, B]`."""
    items = {"observation": tf.constant([[0, 1], [5, 6]]), "reward": tf.constant([[[1.0], [2.0]], [[3.0], [4.0]]])}
    ids = tf.constant([[4, 5], [8, 9]])
    info = BufferInfo(ids, tf.ones([2]), ids[:, 0], tf.ones([2]), tf.fill([2, 2], True))
    transition, _ = n_step(1, 0.5, action=None, next_reward=True)(items, info)
    assert transition.reward.numpy().tolist() == [1.0, 3.0]
    assert transition.next_reward.numpy().tolist() == [2.0, 4.0]
