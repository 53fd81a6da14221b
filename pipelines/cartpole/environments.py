"""CartPole-v0 as TF-Agents gives it, and whole episodes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tf_agents.environments import suite_gym
from tf_agents.environments.batched_py_environment import BatchedPyEnvironment
from tf_agents.environments.tf_py_environment import TFPyEnvironment
from tf_agents.utils import common

from replayfeed.pipelines.played_episode import PlayedEpisode

_NAME = "CartPole-v0"

# Where gym's CartPole ends an episode: the cart has left the track, or the pole leans too far (12 degrees).
_MAX_POSITION = 2.4
_MAX_ANGLE = 12 * 2 * np.pi / 360


def make_environment(num_streams: int, seed: int) -> TFPyEnvironment:
    """`num_streams` CartPoles side by side, each with a seed of its own."""
    environments = [suite_gym.load(_NAME) for _ in range(num_streams)]
    for index, environment in enumerate(environments):
        environment.seed(1000 * seed + index)
    return TFPyEnvironment(BatchedPyEnvironment(environments, multithreading=False))


class Player:
    """Plays whole episodes with a policy, each in a CartPole of its own.

    Args:
      policy: a TF-Agents policy.
      num_episodes: how many are played at a time.
      seed: of the environments; where they start goes on from one call of `play` to the next.
    """

    def __init__(self, policy: Any, num_episodes: int, seed: int) -> None:
        self._environment = make_environment(num_episodes, seed)
        self._action = common.function(policy.action)

    def play(self) -> list[PlayedEpisode]:
        """One episode from each environment: none is preferred for being short.

        Observations are float32 `[N + 1, 4]`, actions int64 `[N]`; terminal where the pole fell, not where the time
        limit of 200 steps cut.
        """
        time_step = self._environment.reset()
        observations, actions, rewards = [time_step.observation.numpy()], [], []
        lengths = np.zeros(self._environment.batch_size, np.int64)
        while not lengths.all():
            action = self._action(time_step).action
            time_step = self._environment.step(action)
            observations.append(time_step.observation.numpy())
            actions.append(action.numpy())
            rewards.append(time_step.reward.numpy())
            ended = (lengths == 0) & time_step.is_last().numpy()
            lengths[ended] = len(actions)
        steps = [np.stack(arrays, axis=1) for arrays in (observations, actions, rewards)]
        return [
            PlayedEpisode(steps[0][b, : n + 1], steps[1][b, :n], steps[2][b, :n], has_fallen(steps[0][b, n]))
            for b, n in enumerate(lengths)
        ]

    def mean_return(self) -> float:
        """The average return of one call of `play`."""
        return float(np.mean([episode.total_reward for episode in self.play()]))


def has_fallen(observation: NDArray[Any]) -> bool:
    """Whether an episode ended by itself at this observation, float32 `[4]`; else the time limit cut it.

    The environment does not tell: gym 0.23 reports its time limit as `done`, of which TF-Agents
    makes a terminal step with discount 0.

    >>> has_fallen(np.array([0.0, 0.0, 0.3, 0.0])), has_fallen(np.array([0.1, 0.0, 0.1, 0.0]))
    (True, False)
    """
    return bool(abs(observation[0]) > _MAX_POSITION or abs(observation[2]) > _MAX_ANGLE)


def time_step_and_action_specs() -> tuple[Any, tf.TensorSpec]:
    """What an agent for CartPole is built from."""
    environment = make_environment(1, seed=0)
    return environment.time_step_spec(), environment.action_spec()
