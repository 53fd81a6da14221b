"""Our buffer in the hands of unmodified TF-Agents drivers and agents, on real environments."""

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.drivers import dynamic_step_driver, py_driver
from tf_agents.environments import suite_gym, tf_py_environment
from tf_agents.networks import sequential
from tf_agents.policies import random_py_policy, random_tf_policy
from tf_agents.trajectories import trajectory
from tf_agents.utils import common, nest_utils

from replayfeed.buffers import TFUniformReplayBuffer


@pytest.fixture(scope="module")
def environment():
    env = tf_py_environment.TFPyEnvironment(suite_gym.load("CartPole-v0"))
    yield env
    env.close()


def make_agent(environment: tf_py_environment.TFPyEnvironment) -> dqn_agent.DqnAgent:
    network = sequential.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])
    agent = dqn_agent.DqnAgent(
        environment.time_step_spec(),
        environment.action_spec(),
        q_network=network,
        optimizer=tf.keras.optimizers.legacy.Adam(1e-3),
        td_errors_loss_fn=common.element_wise_squared_loss,
    )
    agent.initialize()
    return agent


def test_as_the_observer_of_a_dynamic_step_driver(environment):
    policy = random_tf_policy.RandomTFPolicy(environment.time_step_spec(), environment.action_spec())
    buffer = TFUniformReplayBuffer(policy.trajectory_spec, batch_size=environment.batch_size, max_length=500)
    driver = dynamic_step_driver.DynamicStepDriver(environment, policy, observers=[buffer.add_batch], num_steps=100)
    driver.run()
    # The driver counts real steps; boundary frames come beside them.
    frames = buffer.gather_all()
    assert int(np.sum(frames.step_type != 2)) == 100
    windows = list(buffer.as_dataset(None, 2, single_deterministic_pass=True).take(20))
    assert windows and all(not bool(items.is_boundary()[0]) for items, _ in windows)


def test_as_the_observer_of_a_py_driver_batched_by_the_caller():
    env = suite_gym.load("CartPole-v0")
    policy = random_py_policy.RandomPyPolicy(env.time_step_spec(), env.action_spec())
    spec = trajectory.from_transition(env.time_step_spec(), policy.policy_step_spec, env.time_step_spec())
    spec = tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, array.dtype, array.name), spec)
    buffer = TFUniformReplayBuffer(spec, batch_size=1, max_length=500)
    driver = py_driver.PyDriver(
        env, policy, observers=[lambda step: buffer.add_batch(nest_utils.batch_nested_array(step))], max_steps=50
    )
    driver.run(env.reset())
    assert len(buffer) >= 50


def test_an_unmodified_dqn_agent_trains_from_as_dataset(environment):
    agent = make_agent(environment)
    buffer = TFUniformReplayBuffer(agent.collect_data_spec, batch_size=environment.batch_size, max_length=1000)
    driver = dynamic_step_driver.DynamicStepDriver(
        environment, agent.collect_policy, observers=[buffer.add_batch], num_steps=64
    )
    driver.run()
    iterator = iter(buffer.as_dataset(sample_batch_size=16, num_steps=2, num_parallel_calls=3).prefetch(3))
    train = common.function(agent.train)
    losses = []
    for _ in range(5):
        experience, _ = next(iterator)
        # Every pair is a real transition: the agent has nothing to mask.
        assert not np.any(experience.is_boundary()[:, 0])
        losses.append(float(train(experience).loss))
    assert np.all(np.isfinite(losses))


def test_train_step_with_next_inside_the_tf_function(environment):
    agent = make_agent(environment)
    buffer = TFUniformReplayBuffer(agent.collect_data_spec, batch_size=environment.batch_size, max_length=1000)
    dynamic_step_driver.DynamicStepDriver(
        environment, agent.collect_policy, observers=[buffer.add_batch], num_steps=32
    ).run()
    iterator = iter(buffer.as_dataset(8, 2))

    @tf.function
    def train_steps() -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(3):
            experience, _ = next(iterator)
            loss = agent.train(experience).loss
        return loss

    assert np.isfinite(float(train_steps()))
