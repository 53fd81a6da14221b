"""From real buffers to transitions, and TF-Agents' own agent on what comes out."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn.dqn_agent import DqnAgent
from tf_agents.networks.sequential import Sequential
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories.trajectory import Trajectory
from tf_agents.utils import common

from replayfeed.buffers import (
    EpisodicReplayBuffer,
    ReverbReplayBuffer,
    TFUniformReplayBuffer,
    Transition,
    Window,
)
from replayfeed.pipelines.transforms import n_step, recurrent_state, replay_transitions, stack_frames

STEP_SPEC = {
    "observation": tf.TensorSpec([2, 2], tf.uint8),
    "action": tf.TensorSpec([], tf.int64),
    "reward": tf.TensorSpec([], tf.float32),
    "terminated": tf.TensorSpec([], tf.bool),
}


def add_episodes(buffer, lengths, *, terminal=(), first=1):
    """Steps with observation, action and reward first, first + 1, ...; the episodes named end terminally."""
    value = first
    for episode, length in enumerate(lengths):
        for t in range(length):
            is_end = t == length - 1
            buffer.add_batch(
                {
                    "observation": np.full([1, 2, 2], value, np.uint8),
                    "action": np.array([value]),
                    "reward": np.array([value], np.float32),
                    "terminated": np.array([is_end and episode in terminal]),
                },
                end_of_episode=np.array([is_end]),
            )
            value += 1


def drawn(dataset, num_batches=8):
    """All samples of some batches as (transition of numbers, mask)."""
    for transition, info in dataset.take(num_batches):
        rows = tf.nest.map_structure(lambda leaf: leaf.numpy(), transition)
        for row, real in enumerate(info.mask.numpy()):
            yield tf.nest.map_structure(lambda leaf, row=row: leaf[row], rows), bool(real)


def pixel(stack):
    """What a stack `[2, 2, k]` shows, each frame being of one value."""
    assert (stack == stack[0, 0]).all()
    return stack[0, 0].tolist()


def expected_stack(newest, first, k):
    return [value if value >= first else 0 for value in range(newest - k + 1, newest + 1)]


def check_against_episodes(samples, lengths, *, n, k, terminal):
    """Every sample against the episodes as they were added; returns the steps that were drawn."""
    first_of, end_of, is_terminal, value = {}, {}, {}, 1
    for episode, length in enumerate(lengths):
        for step in range(value, value + length):
            first_of[step] = value
            end_of[step], is_terminal[step] = value + length - 1, episode in terminal
        value += length
    seen = set()
    for transition, real in samples:
        start = int(transition.action)
        seen.add(start)
        known_until = end_of[start] + (1 if is_terminal[start] else 0)
        count = min(n, known_until - start)
        ended = is_terminal[start] and start + count == known_until
        assert real == (count > 0)
        assert pixel(transition.observation) == expected_stack(start, first_of[start], k)
        if not real:
            continue
        assert transition.num_steps_used == count
        assert transition.reward == pytest.approx(sum(0.5**j * (start + j) for j in range(count)))
        assert transition.discount == (0 if ended else 0.5**count)
        if not ended:
            assert pixel(transition.next_observation) == expected_stack(start + count, first_of[start], k)
    return seen


LENGTHS = [5, 1, 9, 2, 4, 7, 3, 6]
TERMINAL = (0, 1, 4, 5)


@pytest.mark.parametrize(("n", "stack"), [(1, 1), (1, 4), (3, 1), (3, 2), (3, 4), (5, 3)])
def test_every_step_comes_with_its_own_episodes_frames_only(n, stack):
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64, seed=n * stack)
    add_episodes(buffer, LENGTHS, terminal=TERMINAL)
    dataset = replay_transitions(buffer, 64, n=n, gamma=0.5, stack=stack)
    seen = check_against_episodes(squeezed(dataset, stack), LENGTHS, n=n, k=stack, terminal=TERMINAL)
    assert seen == set(range(1, 38))


def squeezed(dataset, stack):
    """Single frames as stacks of one, so that one check serves both."""
    for transition, real in drawn(dataset):
        if stack == 1:
            observation, following = transition.observation[..., None], transition.next_observation[..., None]
            transition = transition._replace(observation=observation, next_observation=following)
        yield transition, real


@pytest.mark.parametrize("max_length", [7, 20, 23])
def test_o9_both_sides_of_the_write_head_are_right(max_length):
    """The ring is full: no stack and no n-step window joins the oldest with the newest frames."""
    n, stack = 3, 4
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=max_length, seed=9)
    add_episodes(buffer, LENGTHS, terminal=TERMINAL)
    dataset = replay_transitions(buffer, 64, n=n, gamma=0.5, stack=stack)
    oldest = 38 - max_length
    seen = check_against_episodes(drawn(dataset), LENGTHS, n=n, k=stack, terminal=TERMINAL)
    # A step whose stack is not held whole any more is not drawn: it would look like an episode's first.
    begins = np.repeat(np.cumsum([1, *LENGTHS[:-1]]), LENGTHS)
    assert seen == {step for step in range(oldest, 38) if max(step - stack + 1, begins[step - 1]) >= oldest}


def test_fr_004_n_step_windows_never_cross_the_write_cursor():
    """Capacity 10, steps 1..25 in episodes of 4, n = 3."""
    lengths = [4] * 6 + [1]
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=10, seed=4)
    add_episodes(buffer, lengths)
    dataset = replay_transitions(buffer, 250, n=3, gamma=0.5, stack=1)
    check_against_episodes(squeezed(dataset, 1), lengths, n=3, k=1, terminal=())


def test_fr_045_a_stack_may_repeat_the_episodes_first_frame():
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64, seed=45)
    add_episodes(buffer, LENGTHS, terminal=TERMINAL)
    dataset = replay_transitions(buffer, 64, n=2, gamma=0.5, stack=4, pad="repeat")
    starts = np.repeat(np.cumsum([1, *LENGTHS[:-1]]), LENGTHS)
    for transition, _ in drawn(dataset):
        newest = int(transition.action)
        assert (
            pixel(transition.observation) == np.maximum(np.arange(newest - 3, newest + 1), starts[newest - 1]).tolist()
        )


def test_stacking_first_and_summing_then_gives_the_same():
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64, seed=1)
    add_episodes(buffer, LENGTHS, terminal=TERMINAL)
    windows = list(iter(buffer.as_dataset(32, window=Window(4, burn_in=3, short="pad")).take(3)))
    twin = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64, seed=1)
    add_episodes(twin, LENGTHS, terminal=TERMINAL)
    at_once = list(iter(replay_transitions(twin, 32, n=3, gamma=0.5, stack=4).take(3)))
    for window, (transition, info) in zip(windows, at_once, strict=True):
        composed, composed_info = n_step(3, 0.5)(*stack_frames(4)(*window))
        np.testing.assert_array_equal(composed.observation, transition.observation)
        live = transition.discount.numpy() > 0
        np.testing.assert_array_equal(composed.next_observation[live], transition.next_observation[live])
        for one, other in ((composed.reward, transition.reward), (composed_info.ids, info.ids)):
            np.testing.assert_array_equal(one, other)


def test_frames_that_hold_their_next_observation_are_stacked_right():
    spec = {**STEP_SPEC, "next_observation": tf.TensorSpec([2, 2], tf.uint8)}
    buffer = TFUniformReplayBuffer(spec, batch_size=1, max_length=64, seed=2)
    values = np.arange(1, 6)
    pixels = np.broadcast_to(values[None, :, None, None], (1, 5, 2, 2)).astype(np.uint8)
    buffer.add_sequence(
        {
            "observation": pixels,
            "next_observation": pixels + 1,
            "action": values[None],
            "reward": np.ones([1, 5], np.float32),
            "terminated": np.zeros([1, 5], bool),
        },
        end_of_episode=values[None] == 5,
    )
    for n, stack in ((1, 3), (2, 3), (2, 1)):
        for transition, real in drawn(replay_transitions(buffer, 32, n=n, gamma=1.0, stack=stack)):
            start = int(transition.action)
            count = min(n, 6 - start)
            assert real and transition.reward == count
            if stack > 1:
                assert pixel(transition.observation) == expected_stack(start, 1, stack)
                assert pixel(transition.next_observation) == expected_stack(start + count, 1, stack)
            else:
                assert (transition.next_observation == start + count).all()


def test_the_state_of_a_window_with_burn_in_is_that_of_its_first_real_frame():
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64, seed=3)
    add_episodes(buffer, LENGTHS)
    starts = np.repeat(np.cumsum([1, *LENGTHS[:-1]]), LENGTHS)
    items, _ = recurrent_state("action")(*buffer.sample(64, window=Window(2, burn_in=3, short="pad")))
    drawn_at = items.steps["action"].numpy()[:, 3]
    np.testing.assert_array_equal(items.state["action"], np.maximum(drawn_at - 3, starts[drawn_at - 1]))


def test_without_a_batch_size_elements_have_no_batch_axis():
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64, seed=5)
    add_episodes(buffer, LENGTHS)
    transition, info = next(iter(replay_transitions(buffer, None, stack=4)))
    assert transition.observation.shape == (2, 2, 4)
    assert info.mask.shape == ()


def test_shapes_are_static():
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64)
    for pad in ("zero", "repeat"):
        transition, info = replay_transitions(buffer, 8, n=3, stack=4, pad=pad).element_spec
        assert transition.next_observation.shape == (8, 2, 2, 4)
        assert [leaf.shape for leaf in tf.nest.flatten(info)] == [(8,)] * 5


def test_a_sampled_batch_goes_through_the_same_function():
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64, seed=6)
    add_episodes(buffer, [8])
    transition, _ = n_step(3, 0.5)(*buffer.sample(16, window=Window(4, short="pad")))
    assert transition.reward.shape == (16,)


# -- refused ------------------------------------------------------------------------------------------


def test_a_buffer_too_small_is_refused_with_numbers():
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=2, max_length=6)
    with pytest.raises(ValueError, match=r"n=3 with stack=4 needs 7 frames of a stream.*keeps 6 \(capacity 12 for 2"):
        replay_transitions(buffer, 32, n=3, stack=4)
    replay_transitions(buffer, 32, n=3, stack=3)


def test_what_cannot_be_stacked_is_refused():
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64)
    with pytest.raises(ValueError, match="stacked 'reward': only what is in 'observation'"):
        replay_transitions(buffer, 8, stack=4, stacked="reward")
    with pytest.raises(ValueError, match="no field 'observation/image'"):
        replay_transitions(buffer, 8, stack=4, stacked=["observation/image"])
    with pytest.raises(ValueError, match="n must be at least 1"):
        replay_transitions(buffer, 8, n=0)
    with pytest.raises(ValueError, match="gamma must be in"):
        replay_transitions(buffer, 8, gamma=2.0)
    with pytest.raises(ValueError, match="stack must be at least 1"):
        replay_transitions(buffer, 8, stack=0)


# -- TF-Agents -------------------------------------------------------------------------------------------

GAMMA = 0.5
TRAJECTORY_SPEC = Trajectory(
    step_type=tf.TensorSpec([], tf.int32),
    observation=tf.TensorSpec([1], tf.float32),
    action=tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1),
    policy_info=(),
    next_step_type=tf.TensorSpec([], tf.int32),
    reward=tf.TensorSpec([], tf.float32),
    discount=tf.TensorSpec([], tf.float32),
)


@pytest.fixture(scope="module")
def agent():
    """A DQN agent with Q(o, a) = o * (1, 2), so that max Q is twice the observation."""
    network = Sequential(
        [tf.keras.layers.Dense(2, kernel_initializer=tf.constant_initializer([[1.0, 2.0]]), bias_initializer="zeros")],
        input_spec=TRAJECTORY_SPEC.observation,
    )
    agent = DqnAgent(
        ts.time_step_spec(TRAJECTORY_SPEC.observation),
        TRAJECTORY_SPEC.action,
        q_network=network,
        optimizer=tf.keras.optimizers.SGD(0.0),
        td_errors_loss_fn=common.element_wise_squared_loss,
        gamma=GAMMA,
    )
    agent.initialize()
    return agent


def episode_of(observation, reward, discount, step_type):
    """Frames `[1, T]` of one episode."""
    step_type = np.int32(step_type)
    return Trajectory(
        step_type=step_type[None],
        observation=np.float32(observation)[None, :, None],
        action=np.zeros([1, len(step_type)], np.int64),
        policy_info=(),
        next_step_type=np.append(step_type[1:], 0).astype(np.int32)[None],
        reward=np.float32(reward)[None],
        discount=np.float32(discount)[None],
    )


def mean_loss(agent, buffer, n):
    """The agent's own loss on each start, by its observation; its learning rate is 0."""
    losses = {}
    for items, info in buffer.as_dataset(1, window=Window(n + 1, short="pad"), single_deterministic_pass=True):
        experience, _ = n_step(n, GAMMA)(items, info)
        assert experience.reward.shape == (1, 2)
        losses[float(items.observation[0, 0, 0])] = float(agent.train(experience).loss)
    return losses


@pytest.mark.parametrize(("ended", "discount"), [("time limit", 1.0), ("terminal", 0.0)])
def test_dqns_loss_on_n_step_trajectories_is_the_one_worked_out_by_hand(agent, ended, discount):
    """Observations 1, 2, 3 and a final 4; rewards 1, 10, 100; Q(o, 0) = o, max Q(4) = 8."""
    buffer = TFUniformReplayBuffer(TRAJECTORY_SPEC, batch_size=1, max_length=20)
    buffer.add_sequence(episode_of([1, 2, 3, 4], [1, 10, 100, 55], [1, 1, discount, 0], [0, 1, 1, 2]))
    buffer.add_sequence(episode_of([50, 60], [1000, 0], [1, 1], [0, 1]))
    bootstrap = 8 * discount
    # R + gamma^k V - Q, squared, for n = 2 and n = 3.
    targets = {
        2: {1: 1 + 5 + 0.25 * 6, 2: 10 + 50 + 0.25 * bootstrap, 3: 100 + 0.5 * bootstrap},
        3: {1: 1 + 5 + 25 + bootstrap / 8, 2: 10 + 50 + bootstrap / 4, 3: 100 + bootstrap / 2},
    }
    for n, target in targets.items():
        got = mean_loss(agent, buffer, n)
        assert {o: got[o] for o in (1, 2, 3)} == pytest.approx({o: (y - o) ** 2 for o, y in target.items()})


def test_t9_frames_without_a_transition_weigh_nothing_in_dqns_loss(agent):
    buffer = TFUniformReplayBuffer(TRAJECTORY_SPEC, batch_size=1, max_length=20)
    buffer.add_sequence(episode_of([1, 2], [1, 10], [1, 1], [0, 1]))
    buffer.end_stream()
    assert mean_loss(agent, buffer, 2) == pytest.approx({1: (1 + 0.5 * 4 - 1) ** 2, 2: 0})


def test_dqn_trains_from_replay_transitions(agent):
    buffer = TFUniformReplayBuffer(agent.collect_data_spec, batch_size=1, max_length=20, seed=0)
    buffer.add_sequence(episode_of([1, 2, 3, 4], [1, 10, 100, 55], [1, 1, 0, 0], [0, 1, 1, 2]))
    experience, info = next(iter(replay_transitions(buffer, 16, n=2, gamma=GAMMA)))
    assert isinstance(experience, Trajectory)
    assert np.isfinite(agent.train(experience, weights=info.weights).loss)


def test_stacked_trajectories_have_two_stacked_frames():
    spec = TRAJECTORY_SPEC._replace(observation={"image": tf.TensorSpec([2, 2, 1], tf.uint8), "x": tf.TensorSpec([1])})
    buffer = TFUniformReplayBuffer(spec, batch_size=1, max_length=20, seed=0)
    frames = episode_of([1, 2, 3, 4], [1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 2])
    image = np.broadcast_to(np.arange(1, 5, dtype=np.uint8)[None, :, None, None, None], (1, 4, 2, 2, 1))
    buffer.add_sequence(frames._replace(observation={"image": image, "x": frames.observation}))
    for n, following in ((1, [2, 3, 4]), (2, [3, 4, 4])):
        dataset = replay_transitions(buffer, 32, n=n, gamma=0.5, stack=3, stacked="observation/image")
        experience, _ = next(iter(dataset))
        assert experience.observation["image"].shape == (32, 2, 2, 2, 3)
        for images, x in zip(experience.observation["image"].numpy(), experience.observation["x"].numpy(), strict=True):
            start = int(x[0, 0])
            assert pixel(images[0]) == expected_stack(start, 1, 3)
            assert pixel(images[1]) == expected_stack(following[start - 1], 1, 3)


# -- every buffer ------------------------------------------------------------------------------------------

BUFFERS = {
    "uniform": lambda: TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64, seed=8),
    "episodic": lambda: EpisodicReplayBuffer(STEP_SPEC, capacity=20, seed=8),
    "served": lambda: ReverbReplayBuffer.local(STEP_SPEC, max_size=100, sequence_length=4, burn_in=1, short="pad"),
}


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS.keys())
def test_every_buffer_gives_the_same_transitions(make):
    with make() as buffer:
        add_episodes(buffer, LENGTHS, terminal=TERMINAL)
        dataset = replay_transitions(buffer, 64, n=3, gamma=0.5, stack=2)
        assert all(isinstance(transition, Transition) for transition, _ in dataset.take(1))
        seen = check_against_episodes(drawn(dataset), LENGTHS, n=3, k=2, terminal=TERMINAL)
        assert seen == set(range(1, 38))


def test_an_unfinished_episode_gives_what_is_known_when_asked():
    buffer = TFUniformReplayBuffer(STEP_SPEC, batch_size=1, max_length=64, seed=10)
    for value in (1, 2, 3, 4):
        step = {"observation": np.full([1, 2, 2], value, np.uint8), "action": np.array([value])}
        buffer.add_batch({**step, "reward": np.ones([1], np.float32), "terminated": np.array([False])})
    waiting = {int(transition.action) for transition, _ in drawn(replay_transitions(buffer, 32, n=2, gamma=1.0))}
    assert waiting == {1, 2}
    dataset = replay_transitions(buffer, 32, n=2, gamma=1.0, pad_unfinished=True)
    known = {int(row.action): (int(row.num_steps_used), real) for row, real in drawn(dataset)}
    assert known == {1: (2, True), 2: (2, True), 3: (1, True), 4: (0, False)}
