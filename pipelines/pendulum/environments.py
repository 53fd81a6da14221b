"""Pendulum-v1 as TF-Agents gives it, with time limits that are no terminals, and whole episodes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gym
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tf_agents.environments import suite_gym
from tf_agents.environments.batched_py_environment import BatchedPyEnvironment
from tf_agents.environments.tf_py_environment import TFPyEnvironment
from tf_agents.policies.greedy_policy import GreedyPolicy
from tf_agents.trajectories.time_step import TimeStep

from replayfeed.pipelines.played_episode import PlayedEpisode

_NAME = "Pendulum-v1"


def make_environment(num_streams: int, seed: int) -> BatchedPyEnvironment:
    """`num_streams` pendulums side by side, each with a seed of its own.

    Not by `suite_gym.load`: that keeps gym's own time limit, whose `done` TF-Agents takes for a
    terminal step. It would come with discount 0, and nobody could tell it from a real end any more.
    """
    limit = gym.spec(_NAME).max_episode_steps
    environments = [suite_gym.wrap_env(gym.make(_NAME).unwrapped, max_episode_steps=limit) for _ in range(num_streams)]
    for index, environment in enumerate(environments):
        environment.seed(1000 * seed + index)
    return BatchedPyEnvironment(environments, multithreading=False)


def time_step_and_action_specs() -> tuple[Any, Any]:
    """What an agent for Pendulum is built from."""
    environment = TFPyEnvironment(make_environment(1, seed=0))
    return environment.time_step_spec(), environment.action_spec()


def play(environment: BatchedPyEnvironment, choose: Callable[[TimeStep], NDArray[np.float32]]) -> list[PlayedEpisode]:
    """One episode from each of the environments.

    Args:
      environment: as `make_environment` gives it; it is reset first.
      choose: actions `[B, 1]` for a batch of time steps, NumPy arrays `[B, ...]`.

    Returns:
      Observations float32 `[N + 1, 3]`: cosine and sine of the angle (0 is upright), and its speed. Actions float32
      `[N, 1]`, torques from -2 to 2. Rewards from -16.3 to 0, which is upright and at rest. `is_terminal` is what the
      environment says: False, for a pendulum never ends, its time limit cuts it.
    """
    time_step = environment.reset()
    observations, actions, rewards = [time_step.observation], [], []
    # All episodes are of the same length, since only the time limit ends them.
    while not time_step.is_last().all():
        action = choose(time_step)
        time_step = environment.step(action)
        observations.append(time_step.observation)
        actions.append(action)
        rewards.append(time_step.reward)
    observed, acted, rewarded = (np.stack(arrays, axis=1) for arrays in (observations, actions, rewards))
    is_terminal = time_step.discount == 0
    return [PlayedEpisode(observed[b], acted[b], rewarded[b], bool(is_terminal[b])) for b in range(len(observed))]


class Player:
    """Plays whole episodes with an agent's policy, each in a pendulum of its own.

    Args:
      policy: a TF-Agents policy; its most likely actions are taken.
      num_episodes: how many are played at a time.
      seed: of the environments; where they start goes on from one call to the next.
    """

    def __init__(self, policy: Any, num_episodes: int, seed: int) -> None:
        self._environment = make_environment(num_episodes, seed)
        # There is nothing in a policy for AutoGraph to convert; without it the function is traced quicker.
        self._action = tf.function(GreedyPolicy(policy).action, autograph=False)

    def mean_return(self) -> float:
        """The average return of an episode from each environment."""
        episodes = play(self._environment, lambda time_step: self._action(time_step).action.numpy())
        return float(np.mean([episode.total_reward for episode in episodes]))
