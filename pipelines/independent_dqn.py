"""Independent DQN: each policy learns from what its own agents did, as if there were no others.

Mnih et al. 2015, Human-level control through deep reinforcement learning, https://doi.org/10.1038/nature14236; with the
action of the next value chosen by the network that learns (van Hasselt et al. 2016, Deep Reinforcement Learning with
Double Q-learning, https://arxiv.org/abs/1509.06461, eq. 4) and the loss of Huber.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from replayfeed.buffers import MultiAgentReplayBuffer, Window
from replayfeed.buffers.nests import Array, Nest

from .agent_moments import FinishedEpisode
from .feed import iterate
from .n_step import n_step

ACTION_MASK = "action_mask"
"""Beside `observation` in observations of games (PettingZoo): which actions are legal now."""


@dataclasses.dataclass(frozen=True)
class QSettings:
    """How a policy learns.

    Attributes:
      layers: units of the hidden layers.
      learning_rate: of Adam.
      target_period: updates after which the target network is made equal.
    """

    layers: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    target_period: int = 100


class QPolicy:
    """An epsilon-greedy policy and the network behind it, for any number of agents with equal spaces.

    Called with observations `[n, ...]` it gives actions, int64 `[n]`. Observations are arrays, or dicts as PettingZoo's
    games have them, with `observation` and `action_mask`.

    Args:
      data_spec: of its agents, as `agent_data_specs` gives it.
      num_actions: how many there are.
      settings: of learning.
      seed: of the first weights and of random actions.

    Attributes:
      epsilon: share of random actions.

    >>> spec = {"observation": tf.TensorSpec([3], tf.float32), "action": tf.TensorSpec([], tf.int64)}
    >>> policy = QPolicy(spec, num_actions=4, seed=0)
    >>> policy(np.zeros([2, 3], np.float32)).shape
    (2,)
    """

    def __init__(
        self, data_spec: Mapping[str, Nest], num_actions: int, settings: QSettings | None = None, *, seed: int
    ) -> None:
        settings = QSettings() if settings is None else settings
        observation = data_spec["observation"]
        features = observation["observation"] if isinstance(observation, Mapping) else observation
        self.epsilon = 1.0
        self._num_actions = num_actions
        self._rng = np.random.default_rng(seed)
        self._period = settings.target_period
        self._num_updates = 0
        width = math.prod(features.shape)
        self._network = _network(width, num_actions, settings.layers, seed)
        self._target = _network(width, num_actions, settings.layers, seed)
        self._optimizer = tf.keras.optimizers.Adam(settings.learning_rate)
        self._optimizer.build(self._network.trainable_variables)
        # What the network was at the last call; None after an update.
        self._layers: list[tuple[Array, Array]] | None = None
        self._learn = tf.function(self._update, reduce_retracing=True)

    def __call__(self, observations: Nest) -> Array:
        rows, legal = _features_and_mask(observations)
        count = len(rows)
        explores = self._rng.random(count) < self.epsilon
        chances = self._rng.random([count, self._num_actions])
        if not explores.all():
            chances = np.where(explores[:, None], chances, self._values(np.asarray(rows, np.float32)))
        if legal is not None:
            chances = np.where(legal, chances, -np.inf)
        return np.argmax(chances, axis=1)

    def _values(self, rows: Array) -> Array:
        """The network in NumPy, which for a few rows is done before TensorFlow has begun."""
        if self._layers is None:
            self._layers = [(layer.kernel.numpy(), layer.bias.numpy()) for layer in self._network.layers]
        values = rows.reshape([len(rows), -1])
        for index, (kernel, bias) in enumerate(self._layers):
            values = (np.maximum(values, 0) if index else values) @ kernel + bias
        return values

    def update(self, transitions: Any, weights: tf.Tensor) -> tf.Tensor:
        """Learns from a batch; returns the TD errors that it had before, `[B]`.

        Args:
          transitions: as `n_step` or `transitions` give them: `discount` is the factor of the next value.
          weights: float32 `[B]`, as in `info.weights`; rows without a transition have 0.
        """
        td_errors = self._learn(
            transitions.observation,
            transitions.action,
            transitions.reward,
            transitions.discount,
            transitions.next_observation,
            weights,
        )
        self._layers = None
        self._num_updates += 1
        if self._num_updates % self._period == 0:
            self._target.set_weights(self._network.get_weights())
        return td_errors

    def _update(
        self,
        observation: Nest,
        action: tf.Tensor,
        reward: tf.Tensor,
        discount: tf.Tensor,
        next_observation: Nest,
        weights: tf.Tensor,
    ) -> tf.Tensor:
        rows, _ = _flat(observation)
        next_rows, legal = _flat(next_observation)
        choice = self._network(next_rows)
        if legal is not None:
            choice = tf.where(legal, choice, choice.dtype.min)
        following = tf.gather(self._target(next_rows), tf.argmax(choice, axis=1), batch_dims=1)
        targets = reward + discount * following
        with tf.GradientTape() as tape:
            td_errors = targets - tf.gather(self._network(rows), action, batch_dims=1)
            size = tf.abs(td_errors)
            loss = tf.reduce_mean(weights * tf.where(size < 1, 0.5 * tf.square(td_errors), size - 0.5))
        variables = self._network.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return td_errors


class Collector(Protocol):
    """What plays: a `ParallelCollector`, or a `TurnCollector`."""

    def collect(self, num_moments: int, /) -> list[FinishedEpisode]:
        """Goes on for so many moments; the episodes that ended meanwhile."""


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """A training run.

    Attributes:
      num_moments: that are collected in all.
      initial_moments: collected, with random actions, before the first update.
      moments_per_round: collected between updates.
      updates_per_round: of each policy that learns.
      sample_batch_size: transitions in an update.
      n: steps of a transition.
      gamma: factor of each step.
      exploring_share: of the moments until the share of random actions has fallen to the last one.
      last_epsilon: the share of random actions from then on.
      priorities: tell the buffer of the TD errors of each batch.
    """

    num_moments: int = 12_000
    initial_moments: int = 1_000
    moments_per_round: int = 8
    updates_per_round: int = 8
    sample_batch_size: int = 64
    n: int = 3
    gamma: float = 0.97
    exploring_share: float = 0.5
    last_epsilon: float = 0.05
    priorities: bool = False


def train(
    collector: Collector,
    learners: Mapping[str, QPolicy],
    buffer: MultiAgentReplayBuffer,
    settings: TrainSettings,
    *,
    progress: bool = False,
) -> list[FinishedEpisode]:
    """Collects and learns in turn; each policy from n-step transitions of its own agents.

    Args:
      collector: plays with the learners' policies, among others maybe, and writes into `buffer`.
      learners: by name the policies that learn.
      buffer: of mode `'independent'`.
      settings: of the run.
      progress: a bar on stderr.

    Returns:
      The episodes, in the order in which they ended.
    """
    for learner in learners.values():
        learner.epsilon = 1.0
    episodes = collector.collect(settings.initial_moments)
    window = Window(settings.n + 1, short="pad")
    batches = {
        name: iterate(
            buffer.as_dataset(settings.sample_batch_size, window=window, policy=name).map(
                n_step(settings.n, settings.gamma)
            )
        )
        for name in learners
    }
    exploring = settings.exploring_share * settings.num_moments
    rounds = range(settings.initial_moments, settings.num_moments, settings.moments_per_round)
    for num_moments in tqdm(rounds, desc="rounds", disable=not progress):
        for learner in learners.values():
            learner.epsilon = max(settings.last_epsilon, 1 - num_moments / exploring)
        episodes += collector.collect(settings.moments_per_round)
        for name, learner in learners.items():
            for _ in range(settings.updates_per_round):
                transitions, info = next(batches[name])
                td_errors = learner.update(transitions, info.weights * tf.cast(info.mask, tf.float32))
                if settings.priorities:
                    buffer.update_priorities_from({name: info}, {name: td_errors})
    return episodes


def _network(width: int, num_actions: int, layers: tuple[int, ...], seed: int) -> tf.keras.Sequential:
    def dense(units: int, activation: str | None, index: int) -> tf.keras.layers.Dense:
        initializer = tf.keras.initializers.GlorotUniform(seed=1000 * seed + index)
        return tf.keras.layers.Dense(units, activation, kernel_initializer=initializer)

    hidden = [dense(units, "relu", index) for index, units in enumerate(layers)]
    network = tf.keras.Sequential([*hidden, dense(num_actions, None, len(layers))])
    network.build([None, width])
    return network


def _features_and_mask(observations: Nest) -> tuple[Any, Any]:
    if isinstance(observations, Mapping):
        return observations["observation"], observations[ACTION_MASK]
    return observations, None


def _flat(observations: Nest) -> tuple[tf.Tensor, tf.Tensor | None]:
    rows, legal = _features_and_mask(observations)
    width = math.prod(rows.shape[1:])
    return tf.reshape(tf.cast(rows, tf.float32), [-1, width]), None if legal is None else tf.cast(legal, tf.bool)
