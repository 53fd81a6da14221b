"""Part (c): an RLDS dataset recorded from the agent, into both buffers, and a cloning agent trained from each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.networks.q_network import QNetwork
from tqdm import tqdm

from replayfeed.buffers import ReplayBuffer, ReverbReplayBuffer, TFUniformReplayBuffer
from replayfeed.pipelines.fill import fill
from replayfeed.pipelines.rlds_read import load_rlds

from .dqn import EVALUATION_EPISODES, DqnLearner
from .environments import Player, time_step_and_action_specs
from .monitor import BufferMonitor, Stopwatch
from .recording import write_rlds
from .report import CurvePoint, PartResult

LOCAL_NAME, SERVED_NAME = "cloning, in process", "cloning, Reverb"


@dataclasses.dataclass(frozen=True)
class CloningSettings:
    """Hyperparameters of the cloning agent.

    Attributes:
      bar: the average return of 20 greedy episodes at which training stops.
      recorded_bar: what the recorded episodes must average.
      num_recordings: times 20 episodes that are recorded.
      max_updates: updates after which it is given up.
      evaluate_every: updates between two evaluations.
      sample_batch_size: frames in an update.
      layers: units of the hidden layers.
      learning_rate: of Adam.
    """

    bar: float = 150.0
    recorded_bar: float = 195.0
    num_recordings: int = 2
    max_updates: int = 10_000
    evaluate_every: int = 50
    sample_batch_size: int = 128
    layers: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3


@dataclasses.dataclass(frozen=True)
class Recording:
    """A dataset on disk.

    Attributes:
      folder: what `load_rlds` takes.
      num_episodes: how many it has.
      mean_return: of these episodes.
    """

    folder: Path
    num_episodes: int
    mean_return: float


def record(learner: DqnLearner, settings: CloningSettings, seed: int, folder: Path) -> Recording:
    """Plays the learner's greedy policy in real environments and writes the episodes as an RLDS dataset."""
    player = Player(learner.agent.policy, EVALUATION_EPISODES, seed + 2)
    rounds = tqdm(range(settings.num_recordings), desc="recording RLDS", unit=f" x {EVALUATION_EPISODES} episodes")
    episodes = [episode for _ in rounds for episode in player.play()]
    write_rlds(episodes, folder)
    return Recording(folder, len(episodes), float(np.mean([episode.total_reward for episode in episodes])))


def run(recording: Recording, settings: CloningSettings, seed: int) -> list[PartResult]:
    """Loads the dataset into both buffers and trains an agent from each."""
    episodes = load_rlds(recording.folder, layout="trajectory")
    # Every frame has room: a frame more an episode than it has actions.
    capacity = recording.num_episodes * 201
    results = []
    with TFUniformReplayBuffer(episodes.element_spec, 1, capacity, seed=seed) as local:
        results.append(_clone(LOCAL_NAME, local, episodes, settings, seed))
    with ReverbReplayBuffer.local(episodes.element_spec, max_size=capacity, sequence_length=1) as served:
        results.append(_clone(SERVED_NAME, served, episodes, settings, seed))
    return results


def _clone(name: str, buffer: ReplayBuffer, episodes: Any, settings: CloningSettings, seed: int) -> PartResult:
    monitor = BufferMonitor(buffer)
    loaded = fill(buffer, episodes)
    tf.random.set_seed(seed)
    time_step_spec, action_spec = time_step_and_action_specs()
    updates = tf.Variable(0, dtype=tf.int64, trainable=False)
    agent = BehavioralCloningAgent(
        time_step_spec,
        action_spec,
        cloning_network=QNetwork(time_step_spec.observation, action_spec, fc_layer_params=settings.layers),
        optimizer=tf.keras.optimizers.Adam(settings.learning_rate),
        num_outer_dims=1,
        train_step_counter=updates,
    )
    agent.initialize()

    update = tf.autograph.experimental.do_not_convert(agent.train)

    @tf.function
    def train(experience: Any) -> None:
        for _ in tf.range(settings.evaluate_every):
            items, _ = next(experience)
            update(items)

    player = Player(agent.policy, EVALUATION_EPISODES, seed + 1)
    experience = iter(buffer.as_dataset(sample_batch_size=settings.sample_batch_size))
    curve = [CurvePoint(0, player.mean_return())]
    training = Stopwatch()
    with tqdm(desc=name, unit=" updates", mininterval=0.5) as bar:
        while int(updates) < settings.max_updates and (len(curve) == 1 or curve[-1].mean_return < settings.bar):
            with training:
                train(experience)
            curve.append(CurvePoint(int(updates), player.mean_return()))
            monitor.look()
            bar.update(int(updates) - bar.n)
            bar.set_postfix_str(f"return {curve[-1].mean_return:.0f}, bar {settings.bar:.0f}")
    monitor.look_now()
    return PartResult(
        name=name,
        steps=loaded.frames,
        updates=int(updates),
        mean_return=curve[-1].mean_return,
        bar=settings.bar,
        samples_per_insert=monitor.points[-1].samples_per_insert,
        adds_per_second=loaded.frames / loaded.seconds,
        batches_per_second=int(updates) / training.seconds,
        seconds=monitor.seconds,
        curve=curve,
        buffer_points=monitor.points,
    )
