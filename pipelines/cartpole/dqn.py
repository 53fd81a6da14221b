"""TF-Agents' DQN agent for CartPole, and the loop that trains it from `as_dataset`, whatever the buffer is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray
from tf_agents.agents.dqn.dqn_agent import DqnAgent
from tf_agents.networks.q_network import QNetwork
from tf_agents.utils import common
from tqdm import tqdm

from replayfeed.buffers import ReplayBuffer

from .environments import Player, time_step_and_action_specs
from .monitor import BufferMonitor, Stopwatch
from .report import CurvePoint, PartResult

EVALUATION_EPISODES = 20
_CONFIRMATIONS = 3


@dataclasses.dataclass(frozen=True)
class DqnSettings:
    """What was found to reach the bar with each of the seeds tried.

    Attributes:
      bar: the average return of 20 greedy episodes at which training stops.
      max_steps: environment steps after which it is given up.
      num_streams: environments that are written side by side.
      capacity: frames that the buffer holds (served: windows of two).
      initial_steps: taken before the first update.
      steps_per_round: taken between two calls of the training function.
      updates_per_round: updates in one such call.
      evaluate_every: steps between two evaluations.
      sample_batch_size: windows in an update.
      layers: units of the hidden layers.
      learning_rate: of Adam.
      epsilon: share of random actions while collecting.
    """

    bar: float = 195.0
    max_steps: int = 30_000
    num_streams: int = 4
    capacity: int = 20_000
    initial_steps: int = 1_000
    steps_per_round: int = 8
    updates_per_round: int = 8
    evaluate_every: int = 400
    sample_batch_size: int = 64
    layers: tuple[int, ...] = (100, 50)
    learning_rate: float = 1e-3
    epsilon: float = 0.1


class DqnLearner:
    """The agent, its training function and its evaluation.

    Args:
      settings: the hyperparameters.
      seed: of the network's first weights and of the evaluation's environments.
    """

    def __init__(self, settings: DqnSettings, seed: int) -> None:
        tf.random.set_seed(seed)
        self._settings = settings
        time_step_spec, action_spec = time_step_and_action_specs()
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._network = QNetwork(time_step_spec.observation, action_spec, fc_layer_params=settings.layers)
        # No discount and no lagging target network, as in TF-Agents' tutorial: with a discount a fall
        # and a balanced pole differ too little in value, and each seed takes three times as long or fails.
        self.agent = DqnAgent(
            time_step_spec,
            action_spec,
            q_network=self._network,
            optimizer=tf.keras.optimizers.Adam(settings.learning_rate),
            epsilon_greedy=settings.epsilon,
            td_errors_loss_fn=common.element_wise_squared_loss,
            gamma=1.0,
            train_step_counter=self.updates,
        )
        self.agent.initialize()
        self._player: Player | None = None
        self._seed = seed
        # AutoGraph finds nothing to convert in the agent, and takes ten times as long as the rest of the tracing.
        self._update = tf.autograph.experimental.do_not_convert(self.agent.train)
        self._train = tf.function(self._train_in_graph)

    @property
    def data_spec(self) -> Any:
        """The spec of the frames that the agent's drivers write: TF-Agents' `Trajectory`."""
        return self.agent.collect_data_spec

    @property
    def policy_variables(self) -> dict[str, Any]:
        """What a collector needs, under the names that TF-Agents uses: the weights, and how far training is."""
        return {"train_step": self.updates, "policy_variables": self._network.variables}

    def experience(self, buffer: ReplayBuffer) -> tf.data.Dataset:
        """Windows of two frames, one transition each: what the agent trains on."""
        return buffer.as_dataset(sample_batch_size=self._settings.sample_batch_size, num_steps=2)

    def train(self, experience: Any) -> None:
        """Updates the network `updates_per_round` times from an iterator over `experience(buffer)`."""
        self._train(experience)

    def mean_return(self) -> float:
        """The average return of 20 greedy episodes; one that reaches the bar must do so in three more rounds of 20.

        A policy that is not there yet reaches the bar by luck now and then. What is returned is the
        lowest of the averages.
        """
        if self._player is None:
            self._player = Player(self.agent.policy, EVALUATION_EPISODES, self._seed + 1)
        lowest = self._player.mean_return()
        for _ in range(_CONFIRMATIONS):
            if lowest < self._settings.bar:
                break
            lowest = min(lowest, self._player.mean_return())
        return lowest

    def get_weights(self) -> list[NDArray[Any]]:
        """A copy of the network's weights."""
        return [variable.numpy() for variable in self._network.variables]

    def set_weights(self, weights: list[NDArray[Any]]) -> None:
        """Puts back what `get_weights` gave."""
        for variable, value in zip(self._network.variables, weights, strict=True):
            variable.assign(value)

    def _train_in_graph(self, experience: Any) -> None:
        for _ in tf.range(self._settings.updates_per_round):
            items, _ = next(experience)
            self._update(items)


def train_to_bar(
    name: str,
    learner: DqnLearner,
    buffer: ReplayBuffer,
    collect: Callable[[int], int],
    settings: DqnSettings,
    *,
    after_round: Callable[[], None] = lambda: None,
) -> PartResult:
    """Collects and trains in turns until the greedy policy reaches the bar; ends with the best weights set.

    Args:
      name: of the part, for the progress bar and the table.
      learner: what is trained.
      buffer: where its experience arrives.
      collect: sees to it that this many environment steps were taken in total; returns how many count.
      settings: the learner's.
      after_round: called after each round of updates.
    """
    monitor = BufferMonitor(buffer)
    curve: list[CurvePoint] = []
    best_return, best_weights = -1.0, learner.get_weights()
    steps = next_evaluation = 0
    # Rates are those of the steady state: processes start and graphs are traced before it.
    steady = Stopwatch()
    with tqdm(desc=name, unit=" steps", mininterval=0.5) as bar:
        bar.set_postfix_str("filling the buffer")
        while steps < settings.initial_steps:
            steps = collect(steps + settings.steps_per_round)
            bar.update(steps - bar.n)
            monitor.look()
        bar.set_postfix_str("building the training step")
        experience = iter(learner.experience(buffer))
        learner.train(experience)
        steps_before, updates_before = steps, int(learner.updates)
        while steps < settings.max_steps and best_return < settings.bar:
            with steady:
                steps = collect(steps + settings.steps_per_round)
                learner.train(experience)
                after_round()
            bar.update(steps - bar.n)
            monitor.look()
            if steps < next_evaluation:
                continue
            next_evaluation = steps + settings.evaluate_every
            mean_return = learner.mean_return()
            curve.append(CurvePoint(steps, mean_return))
            if mean_return > best_return:
                best_return, best_weights = mean_return, learner.get_weights()
            bar.set_postfix_str(f"return {mean_return:.0f}, best {best_return:.0f}, bar {settings.bar:.0f}")
    monitor.look_now()
    learner.set_weights(best_weights)
    return PartResult(
        name=name,
        steps=steps,
        updates=int(learner.updates),
        mean_return=best_return,
        bar=settings.bar,
        samples_per_insert=monitor.points[-1].samples_per_insert,
        adds_per_second=(steps - steps_before) / steady.seconds,
        batches_per_second=(int(learner.updates) - updates_before) / steady.seconds,
        seconds=monitor.seconds,
        curve=curve,
        buffer_points=monitor.points,
    )
