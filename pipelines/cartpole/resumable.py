"""A DQN run on CartPole that goes on where it was when its process was killed; also the process that does it.

All that decides how the run goes on is in its checkpoints: the agent with its optimizer, the counters, the collector's
random numbers, and the buffer with everything that decides about its draws. What is not: the environments. In general
they cannot be saved, so a run that goes on starts new episodes. The buffer knows by their first frames that these do
not continue the old ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from . import quiet

# What a run tells, as one line of JSON on stdout each: {"resumed": steps, ...}, {"steps": steps} after each round,
# {"steps": steps, "return": return} at the end of each episode, {"saved": steps, ...}.
Tell = Callable[[dict[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """With these the returns rise steadily: three seeds of three reach 170 by step 6,000.

    Attributes:
      num_streams: environments side by side.
      capacity: frames that the buffer holds.
      initial_steps: taken before the first update.
      steps_per_round: taken between two calls of the training function.
      updates_per_round: updates in one such call.
      sample_batch_size: windows in an update.
      layers: units of the hidden layers.
      learning_rate: of Adam.
      gamma: the discount.
      target_update_tau: share of the network that goes into the target network at each update.
      epsilon: share of random actions while collecting.
      save_every: steps between two checkpoints.
    """

    num_streams: int = 4
    capacity: int = 20_000
    initial_steps: int = 1_000
    steps_per_round: int = 8
    updates_per_round: int = 2
    sample_batch_size: int = 64
    layers: tuple[int, ...] = (100, 50)
    learning_rate: float = 2e-3
    gamma: float = 0.98
    target_update_tau: float = 0.02
    epsilon: float = 0.1
    save_every: int = 500


class ResumableRun:
    """A run in a folder: begins, or goes on from the newest checkpoint there.

    Args:
      folder: of the run: checkpoints in `checkpoints`, the buffer's saves in `buffer`.
      settings: of the run; those that it began with.
      seed: of environments, networks and draws.
      tell: is given what happens.
    """

    def __init__(self, folder: Path, settings: RunSettings, seed: int, *, tell: Tell = lambda told: None) -> None:
        from replayfeed.buffers import TFUniformReplayBuffer

        tf.random.set_seed(seed)
        self._settings = settings
        self._seed = seed
        self._tell = tell
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._agent = _agent(settings)
        self._policy = self._agent.policy
        # The numbers of a tf.random.Generator are variables; those of tf.random.uniform cannot be saved.
        self._random = tf.random.Generator.from_seed(seed)
        self._act = tf.function(self._act_in_graph)
        # AutoGraph finds nothing to convert in the agent, and takes ten times as long as the rest of the tracing.
        self._update = tf.autograph.experimental.do_not_convert(self._agent.train)
        self._train = tf.function(self._train_in_graph)
        self.buffer = TFUniformReplayBuffer(
            self._agent.collect_data_spec, settings.num_streams, settings.capacity // settings.num_streams, seed=seed
        )
        checkpoint = tf.train.Checkpoint(
            agent=self._agent,
            updates=self._agent.train_step_counter,
            steps=self.steps,
            random=self._random,
            buffer=self.buffer.saved_in(folder / "buffer", step=self.steps, keep_last=3),
        )
        self._manager = tf.train.CheckpointManager(checkpoint, folder / "checkpoints", max_to_keep=3)
        if self._manager.latest_checkpoint:
            checkpoint.restore(self._manager.latest_checkpoint).assert_existing_objects_matched()
            tell({"resumed": int(self.steps), **self.fingerprint()})
        self.restart_environments()

    def restart_environments(self) -> None:
        """Begins new episodes, with random numbers of their own: the first ones would come a second time."""
        from .environments import make_environment

        self._environment = make_environment(self._settings.num_streams, self._seed + int(self.steps))
        self._time_step = self._environment.reset()
        self._returns = np.zeros(self._settings.num_streams)

    def run(self, max_steps: int) -> None:
        """Collects and trains in turns until so many steps have been taken in all, and saves now and then."""
        next_save = int(self.steps) + self._settings.save_every
        while int(self.steps) < max_steps:
            for _ in range(self._settings.steps_per_round // self._settings.num_streams):
                self.collect()
            if int(self.steps) >= self._settings.initial_steps:
                self.train()
            self._tell({"steps": int(self.steps)})
            if int(self.steps) >= next_save:
                next_save += self._settings.save_every
                self.save()

    def collect(self) -> None:
        """One step of each environment."""
        from tf_agents.trajectories.policy_step import PolicyStep
        from tf_agents.trajectories.trajectory import from_transition

        action = self._act(self._time_step)
        following = self._environment.step(action)
        self.buffer.add_batch(from_transition(self._time_step, PolicyStep(action), following))
        # Where an episode had ended, this step only began the next one.
        self.steps.assign_add(int(np.sum(~self._time_step.is_last().numpy())))
        self._time_step = following
        self._returns += following.reward.numpy()
        for stream in np.flatnonzero(following.is_last().numpy()):
            self._tell({"steps": int(self.steps), "return": float(self._returns[stream])})
            self._returns[stream] = 0.0

    def train(self) -> None:
        """The updates of a round, all drawn at once."""
        updates, batch_size = self._settings.updates_per_round, self._settings.sample_batch_size
        items, _ = self.buffer.sample(updates * batch_size, num_steps=2)
        self._train(tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [updates, batch_size, *leaf.shape[1:]]), items))

    def save(self) -> None:
        """Writes a checkpoint."""
        self._manager.save(checkpoint_number=self.steps)
        self._tell({"saved": int(self.steps), **self.fingerprint()})

    def fingerprint(self) -> dict[str, int]:
        """What two runs at the same place have in common: how many frames, and checksums of frames and weights."""
        frames = tf.nest.flatten(self.buffer.gather_all())
        weights = self._agent.variables
        return {
            "frames": len(self.buffer),
            "contents": zlib.crc32(b"".join(leaf.numpy().tobytes() for leaf in frames)),
            "weights": zlib.crc32(b"".join(leaf.numpy().tobytes() for leaf in weights)),
        }

    def _act_in_graph(self, time_step: Any) -> tf.Tensor:
        greedy = self._policy.action(time_step).action
        explores = self._random.uniform(tf.shape(greedy)) < self._settings.epsilon
        return tf.where(explores, self._random.uniform(tf.shape(greedy), 0, 2, tf.int64), greedy)

    def _train_in_graph(self, items: Any) -> None:
        for i in tf.range(self._settings.updates_per_round):
            self._update(tf.nest.map_structure(lambda leaf, i=i: leaf[i], items))


def _agent(settings: RunSettings) -> Any:
    from tf_agents.agents.dqn.dqn_agent import DqnAgent
    from tf_agents.networks.q_network import QNetwork
    from tf_agents.utils.common import element_wise_squared_loss

    from .environments import time_step_and_action_specs

    time_step_spec, action_spec = time_step_and_action_specs()
    agent = DqnAgent(
        time_step_spec,
        action_spec,
        q_network=QNetwork(time_step_spec.observation, action_spec, fc_layer_params=settings.layers),
        optimizer=tf.keras.optimizers.Adam(settings.learning_rate),
        target_update_tau=settings.target_update_tau,
        td_errors_loss_fn=element_wise_squared_loss,
        gamma=settings.gamma,
        train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False),
    )
    agent.initialize()
    return agent


def command(folder: Path, seed: int, max_steps: int) -> list[str]:
    """The arguments that start a process which begins or goes on with the run in a folder."""
    return [
        *quiet.python_command(__name__),
        f"--folder={os.fspath(folder)}",
        f"--seed={seed}",
        f"--max-steps={max_steps}",
    ]


def main() -> None:
    """Begins, or goes on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the run")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--max-steps", type=int, required=True, help="environment steps, in all")
    arguments = parser.parse_args()
    quiet.set_up()
    with quiet.without_notices():

        def tell(told: dict[str, Any]) -> None:
            print(json.dumps(told), flush=True)

        ResumableRun(arguments.folder, RunSettings(), arguments.seed, tell=tell).run(arguments.max_steps)


if __name__ == "__main__":
    main()
