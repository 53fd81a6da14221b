"""A TF-Agents script on Reverb with only the buffer's import and constructor changed; tables of its observers."""

from __future__ import annotations

import numpy as np
import reverb
import tensorflow as tf
from tf_agents.agents.dqn import dqn_agent
from tf_agents.drivers import py_driver
from tf_agents.environments import suite_gym, test_envs
from tf_agents.metrics import py_metrics
from tf_agents.networks import sequential
from tf_agents.policies import py_tf_eager_policy, random_py_policy
from tf_agents.replay_buffers import reverb_utils
from tf_agents.specs import tensor_spec
from tf_agents.train import actor, learner, triggers
from tf_agents.train.utils import spec_utils, train_utils
from tf_agents.trajectories import trajectory

from replayfeed.buffers import ReverbReplayBuffer  # tf_agents.replay_buffers.reverb_replay_buffer in the example


def test_the_dqn_example_of_tf_agents_trains(tmp_path):
    collect_env = suite_gym.load("CartPole-v0")
    observation_spec, action_spec, time_step_spec = spec_utils.get_tensor_specs(collect_env)
    train_step = train_utils.create_train_step()
    layers = [tf.keras.layers.Dense(20, activation="relu"), tf.keras.layers.Dense(2)]
    agent = dqn_agent.DqnAgent(
        time_step_spec,
        action_spec,
        q_network=sequential.Sequential(layers),
        optimizer=tf.keras.optimizers.legacy.Adam(learning_rate=1e-3),
        td_errors_loss_fn=tf.math.squared_difference,
        train_step_counter=train_step,
    )
    agent.initialize()
    assert observation_spec.shape == [4]

    table_name = "uniform_table"
    table = reverb.Table(
        table_name,
        max_size=2000,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    reverb_server = reverb.Server([table])
    reverb_replay = ReverbReplayBuffer(
        agent.collect_data_spec, sequence_length=2, table_name=table_name, local_server=reverb_server
    )
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        reverb_replay.py_client, table_name, sequence_length=2, stride_length=1
    )

    def experience_dataset_fn() -> tf.data.Dataset:
        return reverb_replay.as_dataset(sample_batch_size=32, num_steps=2).prefetch(4)

    random_policy = random_py_policy.RandomPyPolicy(collect_env.time_step_spec(), collect_env.action_spec())
    actor.Actor(collect_env, random_policy, train_step, steps_per_run=200, observers=[observer]).run()
    collect_policy = py_tf_eager_policy.PyTFEagerPolicy(agent.collect_policy, use_tf_function=True)
    env_step = py_metrics.EnvironmentSteps()
    collect_actor = actor.Actor(
        collect_env,
        collect_policy,
        train_step,
        steps_per_run=1,
        metrics=actor.collect_metrics(10),
        observers=[observer, env_step],
    )
    agent_learner = learner.Learner(
        str(tmp_path),
        train_step,
        agent,
        experience_dataset_fn,
        triggers=[triggers.StepPerSecondLogTrigger(train_step, interval=50)],
    )
    losses = []
    for _ in range(60):
        collect_actor.run()
        losses.append(float(agent_learner.run(iterations=1).loss))
    assert int(train_step) == 60 and np.all(np.isfinite(losses))
    assert int(reverb_replay.num_frames()) >= 200
    observer.close()
    reverb_replay.close()
    reverb_server.stop()


def test_a_table_filled_by_tf_agents_observer_gives_what_was_collected():
    environment = test_envs.EpisodeCountingEnv(steps_per_episode=3)
    time_step = tf.nest.map_structure(tensor_spec.from_spec, environment.time_step_spec())
    data_spec = trajectory.Trajectory(
        step_type=time_step.step_type,
        observation=time_step.observation,
        action=tensor_spec.from_spec(environment.action_spec()),
        policy_info=(),
        next_step_type=time_step.step_type,
        reward=time_step.reward,
        discount=time_step.discount,
    )
    table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1))
    server = reverb.Server([table])
    seen: set[tuple[int, ...]] = set()
    with ReverbReplayBuffer(data_spec, "t", 2, local_server=server) as buffer:
        observer = reverb_utils.ReverbAddTrajectoryObserver(buffer.py_client, "t", sequence_length=2)
        policy = random_py_policy.RandomPyPolicy(environment.time_step_spec(), environment.action_spec())
        driver = py_driver.PyDriver(environment, policy, [observer], max_episodes=4)
        driver.run(environment.reset())
        observer.close()
        for _ in range(20):
            items, info = buffer.sample(32, 2)
            episode, step = (leaf.numpy() for leaf in items.observation)
            np.testing.assert_array_equal(episode[:, 0], episode[:, 1])
            np.testing.assert_array_equal(step[:, 0] + 1, step[:, 1])
            assert np.all(info.ids.numpy() == -1) and info.weights.shape == (32,)
            seen |= set(zip(episode[:, 0].tolist(), step[:, 0].tolist(), strict=True))
        batch, _ = next(iter(buffer.as_dataset(8, 2)))
        np.testing.assert_array_equal(batch.observation[1][:, 0] + 1, batch.observation[1][:, 1])
    assert seen == {(e, t) for e in range(4) for t in range(3)}
    server.stop()
