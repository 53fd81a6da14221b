"""Part (a): the agent, its environments and the buffer in one process."""

from __future__ import annotations

from typing import Any

from tf_agents.drivers.dynamic_step_driver import DynamicStepDriver
from tf_agents.metrics.tf_metrics import EnvironmentSteps
from tf_agents.utils import common

from replayfeed.buffers import TFUniformReplayBuffer

from .dqn import DqnLearner, DqnSettings, train_to_bar
from .environments import make_environment
from .report import PartResult

NAME = "DQN, in process"


def run(settings: DqnSettings, seed: int) -> tuple[PartResult, DqnLearner]:
    """Trains to the bar; returns what was measured, and the learner with its best weights."""
    learner = DqnLearner(settings, seed)
    max_length = settings.capacity // settings.num_streams
    steps = EnvironmentSteps()
    with TFUniformReplayBuffer(learner.data_spec, settings.num_streams, max_length, seed=seed) as buffer:
        driver = DynamicStepDriver(
            make_environment(settings.num_streams, seed),
            learner.agent.collect_policy,
            observers=[buffer.add_batch, steps],
            num_steps=settings.steps_per_round,
        )
        drive = common.function(driver.run)
        time_step: Any = None

        def collect(num_steps: int) -> int:
            nonlocal time_step
            while int(steps.result()) < num_steps:
                time_step, _ = drive(time_step)
            return int(steps.result())

        return train_to_bar(NAME, learner, buffer, collect, settings), learner
