"""Part (b): the same agent, fed by a Reverb server in its process and two collector processes."""

from __future__ import annotations

from tf_agents.experimental.distributed.reverb_variable_container import ReverbVariableContainer

from replayfeed.buffers import MinSize, ReplayServer, ReverbReplayBuffer, TableConfig
from replayfeed.pipelines.collect import CollectorProcesses, variables_table

from . import collector
from .dqn import DqnLearner, DqnSettings, train_to_bar
from .report import PartResult

NAME = "DQN, Reverb"
_TABLE, _VARIABLES = "replay", "variables"
_NUM_COLLECTORS = 2
# Environment steps that the collectors may be ahead of the learner.
_SLACK = 32


def run(settings: DqnSettings, seed: int) -> PartResult:
    """Trains to the bar; returns what was measured."""
    learner = DqnLearner(settings, seed)
    replay = TableConfig(
        _TABLE,
        learner.data_spec,
        max_size=settings.capacity,
        rate_limiter=MinSize(settings.initial_steps // 2),
        sequence_length=2,
    )
    with ReplayServer([replay, variables_table(learner.policy_variables, _VARIABLES)]) as server:
        container = ReverbVariableContainer(server.address, [_VARIABLES])

        def publish() -> None:
            container.push(learner.policy_variables, _VARIABLES)

        publish()
        commands = [
            collector.command(
                address=server.address,
                table=_TABLE,
                variables_table=_VARIABLES,
                num_streams=settings.num_streams // _NUM_COLLECTORS,
                layers=settings.layers,
                seed=seed + 10 * (index + 1),
            )
            for index in range(_NUM_COLLECTORS)
        ]
        with (
            CollectorProcesses(commands) as collectors,
            ReverbReplayBuffer(learner.data_spec, _TABLE, sequence_length=2, local_server=server) as buffer,
        ):

            def collect(num_steps: int) -> int:
                # The collectors go on while the learner trains; neither runs away from the other. They are
                # up to _SLACK ahead of what is returned, which keeps updates and steps in the same ratio as in (a).
                collectors.allow(num_steps + _SLACK)
                collectors.wait_for(num_steps, timeout_s=600.0)
                return num_steps

            return train_to_bar(NAME, learner, buffer, collect, settings, after_round=publish)
