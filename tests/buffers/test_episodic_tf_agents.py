"""The episodic buffer in the hands of unmodified TF-Agents drivers and agents, on a real environment."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.reinforce import reinforce_agent
from tf_agents.drivers import dynamic_episode_driver
from tf_agents.environments import suite_gym, tf_py_environment
from tf_agents.networks import actor_distribution_network

from replayfeed.buffers import EpisodicReplayBuffer, StatefulEpisodicReplayBuffer

# Its distribution networks make an int of an array of one.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")


@pytest.fixture(scope="module")
def environment():
    env = tf_py_environment.TFPyEnvironment(suite_gym.load("CartPole-v0"))
    yield env
    env.close()


def make_agent(environment: tf_py_environment.TFPyEnvironment) -> reinforce_agent.ReinforceAgent:
    agent = reinforce_agent.ReinforceAgent(
        environment.time_step_spec(),
        environment.action_spec(),
        actor_network=actor_distribution_network.ActorDistributionNetwork(
            environment.observation_spec(), environment.action_spec(), fc_layer_params=(8,)
        ),
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
    )
    agent.initialize()
    return agent


def test_an_episode_driver_fills_it_and_a_reinforce_agent_trains_on_whole_episodes(environment):
    agent = make_agent(environment)
    buffer = EpisodicReplayBuffer(agent.collect_data_spec, 10, completed_only=True, seed=1)
    dynamic_episode_driver.DynamicEpisodeDriver(
        environment, agent.collect_policy, observers=[buffer.add_batch], num_episodes=3
    ).run()
    episodes = [one.items for one in buffer.episodes() if one.finished]
    assert len(episodes) == 3
    for items in episodes:
        assert items.step_type[0] == 0 and items.step_type[-1] == 2 and (items.step_type[1:-1] == 1).all()
    items, info = buffer.sample()
    length = int(info.mask.shape[0])
    assert int(np.sum(items.is_last())) == 1 and length >= 3
    loss = agent.train(tf.nest.map_structure(lambda leaf: leaf[None, :-1], items)).loss
    assert np.isfinite(float(loss))


def test_tf_agents_stateful_wrapper_keeps_the_ids_for_a_driver(environment):
    agent = make_agent(environment)
    buffer = EpisodicReplayBuffer(agent.collect_data_spec, 10)
    stateful = StatefulEpisodicReplayBuffer(buffer, num_episodes=environment.batch_size)
    dynamic_episode_driver.DynamicEpisodeDriver(
        environment, agent.collect_policy, observers=[lambda step: stateful.add_batch(step)], num_episodes=2
    ).run()
    finished = [one.items for one in buffer.episodes() if one.finished]
    assert len(finished) == 2 and all(items.step_type[0] == 0 and items.step_type[-1] == 2 for items in finished)
