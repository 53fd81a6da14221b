"""TF-Agents' PPO agent, unmodified, trained through a RolloutBuffer in the two ways that it knows."""

from __future__ import annotations

import pytest
import tensorflow as tf

from replayfeed.buffers import RolloutBuffer

pytest.importorskip("tf_agents")

from tf_agents.agents.ppo.ppo_clip_agent import PPOClipAgent
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.networks.value_network import ValueNetwork
from tf_agents.trajectories import trajectory

from replayfeed.pipelines.cartpole.environments import Player, make_environment

pytestmark = [
    pytest.mark.slow,
    # TF-Agents' projection network makes an int of an array of one.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"),
]

NUM_STREAMS, NUM_STEPS = 8, 128
EPOCHS, MINIBATCH = 10, 128
GAMMA, LAM = 0.99, 0.95


@pytest.fixture(autouse=True)
def _gym_is_quiet():
    """Gym warns of what TF-Agents does with it."""
    import gym

    level = gym.logger.min_level
    gym.logger.set_level(gym.logger.ERROR)
    yield
    gym.logger.set_level(level)


class Collector:
    """Steps environments with the agent's collecting policy; each step goes into the buffer."""

    def __init__(self, agent, buffer, seed):
        self._environment = make_environment(NUM_STREAMS, seed)
        self._policy = agent.collect_policy
        self._buffer = buffer
        self.time_step = self._environment.reset()
        self._step = tf.function(self._step_once, autograph=False)

    def _step_once(self, time_step):
        action = self._policy.action(time_step)
        following = self._environment.step(action.action)
        self._buffer.add_batch(trajectory.from_transition(time_step, action, following))
        return following

    def fill(self):
        """`NUM_STEPS` frames of each stream. TF-Agents' step driver would leave boundary frames out of its count."""
        for _ in range(NUM_STEPS):
            self.time_step = self._step(self.time_step)


def make_agent(seed, *, advantages_from_buffer):
    tf.random.set_seed(seed)
    environment = make_environment(1, seed)
    observation_spec, action_spec = environment.observation_spec(), environment.action_spec()
    agent = PPOClipAgent(
        environment.time_step_spec(),
        action_spec,
        optimizer=tf.keras.optimizers.Adam(1e-3),
        actor_net=ActorDistributionNetwork(
            observation_spec, action_spec, fc_layer_params=(64, 64), activation_fn=tf.nn.tanh, seed=seed
        ),
        value_net=ValueNetwork(observation_spec, fc_layer_params=(64, 64), activation_fn=tf.nn.tanh),
        importance_ratio_clipping=0.2,
        discount_factor=GAMMA,
        lambda_value=LAM,
        use_gae=True,
        use_td_lambda_return=True,
        num_epochs=1 if advantages_from_buffer else 20,
        normalize_observations=False,
        normalize_rewards=False,
        gradient_clipping=0.5,
        compute_value_and_advantage_in_train=not advantages_from_buffer,
        # Only updated by hand where training is cut into minibatches.
        update_normalizers_in_train=not advantages_from_buffer,
    )
    agent.initialize()
    return agent


def with_time_axis(items, info):
    """What the agent asks for: `[N, 1, ...]`, with the results in the policy's info."""
    results = {**items.policy_info, "return": info.returns, "advantage": info.advantages}
    return tf.nest.map_structure(lambda leaf: leaf[:, None], items.replace(policy_info=results))


@pytest.mark.parametrize("seed", [0])
def test_ppo_learns_cartpole_from_minibatches(seed):
    agent = make_agent(seed, advantages_from_buffer=True)
    buffer = RolloutBuffer(agent.collect_data_spec, NUM_STREAMS, NUM_STEPS, gamma=GAMMA, lam=LAM, seed=seed)
    collector, player = Collector(agent, buffer, seed), Player(agent.policy, 20, seed=seed + 1)
    value = tf.function(lambda step: agent.collect_policy.apply_value_network(step.observation, step.step_type)[0])
    train = tf.function(agent.train, autograph=False)
    mean_returns = []
    assert player.mean_return() < 100  # before any training
    while not mean_returns or (mean_returns[-1] < 195 and len(mean_returns) < 30):
        for _ in range(4):
            collector.fill()
            # The collecting policy stores V of what it saw, final observations included.
            buffer.advantages(buffer.gather_all().policy_info["value_prediction"], value(collector.time_step))
            for items, info in buffer.minibatches(MINIBATCH, EPOCHS, drop_remainder=True):
                train(with_time_axis(items, info))
            buffer.clear()
        mean_returns.append(player.mean_return())
    assert mean_returns[-1] >= 195, mean_returns


@pytest.mark.parametrize("seed", [0])
def test_ppo_learns_cartpole_from_whole_rollouts(seed):
    agent = make_agent(seed, advantages_from_buffer=False)
    buffer = RolloutBuffer(agent.collect_data_spec, NUM_STREAMS, NUM_STEPS)
    collector, player = Collector(agent, buffer, seed), Player(agent.policy, 20, seed=seed + 1)
    train = tf.function(agent.train, autograph=False)
    mean_returns = []
    assert player.mean_return() < 100  # before any training
    while not mean_returns or (mean_returns[-1] < 195 and len(mean_returns) < 40):
        for _ in range(4):
            collector.fill()
            train(buffer.gather_all())
            buffer.clear()
        mean_returns.append(player.mean_return())
    assert mean_returns[-1] >= 195, mean_returns
