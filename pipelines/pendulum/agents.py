"""The two agents of TF-Agents that learn from the recorded episodes alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.agents.cql.cql_sac_agent import CqlSacAgent
from tf_agents.agents.ddpg.actor_network import ActorNetwork
from tf_agents.agents.ddpg.critic_network import CriticNetwork
from tf_agents.agents.sac.tanh_normal_projection_network import TanhNormalProjectionNetwork
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork

from .environments import time_step_and_action_specs
from .training import Schedule


@dataclasses.dataclass(frozen=True)
class CloningSettings:
    """Of behavioural cloning: the mean squared error between the network's actions and the recorded ones.

    Attributes:
      schedule: how long it trains, and what it must reach.
      sample_batch_size: frames in an update.
      layers: units of the hidden layers.
      learning_rate: of Adam.
    """

    schedule: Schedule = Schedule(updates=3_000, evaluate_every=500, bar=-1000.0, max_updates=6_000)
    sample_batch_size: int = 256
    layers: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3


@dataclasses.dataclass(frozen=True)
class CqlSettings:
    """Of conservative Q-learning (Kumar and others, 2020, https://arxiv.org/abs/2006.04779, eq. 4, CQL(H)).

    Attributes:
      schedule: how long it trains, and what it must reach.
      sample_batch_size: transitions in an update.
      layers: units of the hidden layers.
      learning_rate: of Adam.
      conservatism: weight of the term that lowers the values of actions which are not in the data.
      num_action_samples: actions of each kind that this term is estimated from.
      gamma: the agent's discount.
      target_update_tau: how far the target networks follow in an update.
      reward_scale: what rewards are multiplied with, so that values stay in tens.
    """

    schedule: Schedule = Schedule(updates=3_000, evaluate_every=500, bar=-250.0, max_updates=6_000)
    sample_batch_size: int = 256
    layers: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    conservatism: float = 0.2
    num_action_samples: int = 4
    gamma: float = 0.99
    target_update_tau: float = 0.01
    reward_scale: float = 0.1


def cloning_agent(settings: CloningSettings) -> Any:
    """An agent that imitates all it is shown, good or bad; `train` takes frames `[B, ...]`."""
    time_step_spec, action_spec = time_step_and_action_specs()
    agent = BehavioralCloningAgent(
        time_step_spec,
        action_spec,
        cloning_network=ActorNetwork(time_step_spec.observation, action_spec, fc_layer_params=settings.layers),
        optimizer=tf.keras.optimizers.Adam(settings.learning_rate),
        num_outer_dims=1,
        train_step_counter=_counter(),
    )
    agent.initialize()
    return agent


def cql_agent(settings: CqlSettings, seed: int) -> Any:
    """An agent that learns which of the recorded actions were good; `train` takes windows `[B, 2, ...]`.

    It bootstraps by the discount of each transition, so a truncated episode's last transition goes on to the value of
    the observation after it.
    """
    time_step_spec, action_spec = time_step_and_action_specs()
    observation_spec = time_step_spec.observation
    optimizers = [tf.keras.optimizers.Adam(settings.learning_rate) for _ in range(3)]
    agent = CqlSacAgent(
        time_step_spec,
        action_spec,
        critic_network=CriticNetwork((observation_spec, action_spec), joint_fc_layer_params=settings.layers),
        actor_network=ActorDistributionNetwork(
            observation_spec,
            action_spec,
            fc_layer_params=settings.layers,
            continuous_projection_net=TanhNormalProjectionNetwork,
        ),
        actor_optimizer=optimizers[0],
        critic_optimizer=optimizers[1],
        alpha_optimizer=optimizers[2],
        cql_alpha=settings.conservatism,
        num_cql_samples=settings.num_action_samples,
        include_critic_entropy_term=False,
        use_lagrange_cql_alpha=False,
        target_update_tau=settings.target_update_tau,
        gamma=settings.gamma,
        reward_scale_factor=settings.reward_scale,
        random_seed=seed,
        train_step_counter=_counter(),
    )
    agent.initialize()
    return agent


def _counter() -> tf.Variable:
    # Not TF-Agents' default, which all agents of a process share.
    return tf.Variable(0, dtype=tf.int64, trainable=False)
