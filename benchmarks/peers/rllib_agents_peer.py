"""RLlib's MultiAgentReplayBuffer and its prioritized one: a Python list of batches of one step, each policy's or all's.

They give NumPy arrays. What is added is a batch that was made beforehand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.replay_buffers import MultiAgentPrioritizedReplayBuffer, MultiAgentReplayBuffer
from worker import AGENTS, Block, Buffer, cycle, serve


class RLlibAgents(Buffer):
    def fill(self) -> None:
        """Nothing: each contest fills the buffer that it needs."""

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        contests: dict[str, Callable[[], Callable[[], Any]]] = {"sample_update": self._sample_update}
        # Its default cuts what comes into steps of one; fragments are kept as they come, which here are the same.
        for unit, suffix in (("timesteps", ""), ("fragments", "_fragments")):
            for mode, prefix in (("independent", ""), ("lockstep", "lockstep_")):
                full = functools.partial(self._uniform, mode, unit)
                contests[f"{prefix}add{suffix}"] = functools.partial(self._add, full)
                contests[f"{prefix}sample{suffix}"] = functools.partial(self._sample, full)
        return contests

    def _uniform(self, mode: str, unit: str) -> MultiAgentReplayBuffer:
        return self._full(MultiAgentReplayBuffer(capacity=self._per_policy, replay_mode=mode, storage_unit=unit))

    def _prioritized(self) -> MultiAgentPrioritizedReplayBuffer:
        given = self.experience
        buffer = MultiAgentPrioritizedReplayBuffer(
            capacity=self._per_policy,
            prioritized_replay_alpha=given.alpha,
            prioritized_replay_beta=given.beta,
            prioritized_replay_eps=given.eps,
        )
        return self._full(buffer)

    @property
    def _per_policy(self) -> int:
        """Frames of each policy, which is what its capacity means."""
        return self.capacity // len(AGENTS)

    @functools.cached_property
    def _moments(self) -> list[MultiAgentBatch]:
        return [
            MultiAgentBatch({agent: _one(step, time) for agent, step in moment.items()}, 1)
            for time, moment in enumerate(self.experience.moments())
        ]

    def _full(self, buffer: MultiAgentReplayBuffer) -> MultiAgentReplayBuffer:
        following = cycle(self._moments)
        for _ in range(self._per_policy):
            buffer.add(following())
        return buffer

    def _add(self, full: Callable[[], MultiAgentReplayBuffer]) -> Callable[[], Any]:
        buffer, following = full(), cycle(self._moments)
        return lambda: buffer.add(following())

    def _sample(self, full: Callable[[], MultiAgentReplayBuffer]) -> Callable[[], Any]:
        buffer = full()
        return lambda: buffer.sample(self.experience.batch)

    def _sample_update(self) -> Callable[[], Any]:
        buffer, batch = self._prioritized(), self.experience.batch
        following = cycle(list(self.experience.written))

        def call() -> Any:
            drawn = buffer.sample(batch)
            parts = drawn.policy_batches.items()
            buffer.update_priorities({policy: (part["batch_indexes"], following()) for policy, part in parts})
            return drawn

        return call


def _one(step: Block, time: int) -> SampleBatch:
    """A batch of one step, with the columns by which lockstep finds the steps of one moment."""
    columns = {SampleBatch.EPS_ID: [0], SampleBatch.T: [time], SampleBatch.AGENT_INDEX: [0]}
    return SampleBatch({name: leaf[None] for name, leaf in step.items()} | columns)


if __name__ == "__main__":
    serve(RLlibAgents)
