"""A collector process of part (b): plays CartPole with the learner's policy and writes into its server.

Started by `served_job.py`; not meant to be called by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from replayfeed.pipelines.collect import LearnerLink, follow_learner

from . import quiet


def command(
    *, address: str, table: str, variables_table: str, num_streams: int, layers: Sequence[int], seed: int
) -> list[str]:
    """The arguments that start a collector whose network has these hidden layers."""
    return [
        *quiet.python_command(__name__),
        f"--address={address}",
        f"--table={table}",
        f"--variables-table={variables_table}",
        f"--num-streams={num_streams}",
        f"--seed={seed}",
        "--layers",
        *map(str, layers),
    ]


def main() -> None:
    """Collects until the learner is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True, help="host:port of the learner's server")
    parser.add_argument("--table", required=True, help="table to write into")
    parser.add_argument("--variables-table", required=True, help="table of the policy's variables")
    parser.add_argument("--num-streams", type=int, required=True, help="environments side by side")
    parser.add_argument("--layers", type=int, nargs="+", required=True, help="units of the network's hidden layers")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    quiet.set_up()
    # The link first: from now on the process ends when the learner does, however long the imports take.
    link = LearnerLink()
    with quiet.without_notices():
        _collect(link, arguments)


def _collect(link: LearnerLink, arguments: argparse.Namespace) -> None:
    from tf_agents.drivers.dynamic_step_driver import DynamicStepDriver
    from tf_agents.experimental.distributed.reverb_variable_container import ReverbVariableContainer
    from tf_agents.metrics.tf_metrics import EnvironmentSteps
    from tf_agents.utils import common

    from replayfeed.buffers import ReverbReplayBuffer

    from .dqn import DqnLearner, DqnSettings
    from .environments import make_environment

    learner = DqnLearner(DqnSettings(layers=tuple(arguments.layers)), arguments.seed)
    container = ReverbVariableContainer(arguments.address, [arguments.variables_table])
    steps = EnvironmentSteps()
    with ReverbReplayBuffer(
        learner.data_spec,
        arguments.table,
        sequence_length=2,
        server_address=arguments.address,
        batch_size=arguments.num_streams,
    ) as buffer:
        driver = DynamicStepDriver(
            make_environment(arguments.num_streams, arguments.seed),
            learner.agent.collect_policy,
            observers=[buffer.add_batch, steps],
            num_steps=arguments.num_streams,
        )
        drive = common.function(driver.run)
        time_step: Any = None

        def collect() -> int:
            nonlocal time_step
            before = int(steps.result())
            time_step, _ = drive(time_step)
            return int(steps.result()) - before

        def refresh() -> None:
            buffer.flush()
            container.update(learner.policy_variables, arguments.variables_table)

        follow_learner(link, collect, refresh, refresh_every=32)


if __name__ == "__main__":
    main()
