"""Trains an agent from a dataset of samples, whatever they come from, and evaluates it meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from replayfeed.pipelines.cartpole.monitor import Stopwatch
from replayfeed.pipelines.cartpole.report import CurvePoint

from .environments import Player

EVALUATION_EPISODES = 20


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long an agent trains.

    After `updates` it ends with the first evaluation that reaches the bar: a policy that has learnt its task still
    fails an episode or two now and then.

    Attributes:
      updates: of its networks, at least.
      evaluate_every: updates between two evaluations of 20 episodes; divides both other numbers.
      bar: what the last evaluation must return on average.
      max_updates: when it is given up; None for no more than `updates`.

    >>> schedule = Schedule(updates=1_000, evaluate_every=500, bar=-250.0, max_updates=2_000)
    >>> schedule.goes_on(500, -100.0), schedule.goes_on(1_000, -100.0), schedule.goes_on(1_000, -300.0)
    (True, False, True)
    """

    updates: int
    evaluate_every: int
    bar: float
    max_updates: int | None = None

    def __post_init__(self) -> None:
        numbers = [self.updates, self.updates if self.max_updates is None else self.max_updates]
        if self.evaluate_every < 1 or not 0 < numbers[0] <= numbers[1] or any(n % self.evaluate_every for n in numbers):
            raise ValueError(
                "updates must be at least one and at most max_updates, both multiples of evaluate_every, got "
                f"updates={self.updates}, max_updates={self.max_updates}, evaluate_every={self.evaluate_every}."
            )

    def goes_on(self, position: int, mean_return: float) -> bool:
        """Whether there is more to do after so many updates, the last evaluation of which returned so much."""
        if position < self.updates:
            return True
        return mean_return < self.bar and position < (self.max_updates or self.updates)


def train(
    name: str,
    agent: Any,
    samples: tf.data.Dataset,
    schedule: Schedule,
    *,
    seed: int,
    progress: bool = True,
    after_round: Callable[[], None] = lambda: None,
) -> tuple[list[CurvePoint], float]:
    """Updates the agent; returns its evaluations, and the seconds that the updates took.

    Args:
      name: for the progress bar.
      agent: of TF-Agents.
      samples: endless, of `(items, info)`; the agent takes the items.
      schedule: how long, and what is to be reached.
      seed: of the environments that it is evaluated in.
      progress: a bar on stderr.
      after_round: called after each evaluation.
    """
    # There is nothing in an agent for AutoGraph to convert; without it the function is traced quicker.
    update = tf.autograph.experimental.do_not_convert(agent.train)

    @tf.function
    def train_round(experience: Any) -> None:
        for _ in tf.range(schedule.evaluate_every):
            items, _ = next(experience)
            update(items)

    player = Player(agent.policy, EVALUATION_EPISODES, seed)
    experience = iter(samples)
    curve = [CurvePoint(0, player.mean_return())]
    training = Stopwatch()
    with tqdm(total=schedule.updates, desc=name, unit=" updates", mininterval=0.5, disable=not progress) as bar:
        while schedule.goes_on(curve[-1].position, curve[-1].mean_return):
            with training:
                train_round(experience)
            curve.append(CurvePoint(curve[-1].position + schedule.evaluate_every, player.mean_return()))
            after_round()
            bar.total = max(bar.total, curve[-1].position)
            bar.update(schedule.evaluate_every)
            bar.set_postfix_str(f"return {curve[-1].mean_return:.0f}, bar {schedule.bar:.0f}")
    return curve, training.seconds
