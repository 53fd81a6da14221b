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

    Attributes:
      updates: of its networks; a multiple of `evaluate_every`.
      evaluate_every: updates between two evaluations of 20 episodes.
      bar: what the last evaluation must return on average.
    """

    updates: int
    evaluate_every: int
    bar: float

    def __post_init__(self) -> None:
        if self.evaluate_every < 1 or self.updates < 1 or self.updates % self.evaluate_every:
            raise ValueError(
                f"updates must be a multiple of evaluate_every, and both positive, got {self.updates} and "
                f"{self.evaluate_every}."
            )


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
        for position in range(schedule.evaluate_every, schedule.updates + 1, schedule.evaluate_every):
            with training:
                train_round(experience)
            curve.append(CurvePoint(position, player.mean_return()))
            after_round()
            bar.update(schedule.evaluate_every)
            bar.set_postfix_str(f"return {curve[-1].mean_return:.0f}, bar {schedule.bar:.0f}")
    return curve, training.seconds
