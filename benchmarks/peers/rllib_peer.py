"""RLlib's PrioritizedReplayBuffer of its old API stack: a Python list of batches of one step. It gives NumPy arrays.

It is the faster of RLlib's two: PrioritizedEpisodeReplayBuffer of the new stack puts every batch together step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.replay_buffers import PrioritizedReplayBuffer
from worker import Block, Buffer, Experience, cycle, serve


class RLlib(Buffer):
    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        self._buffer = PrioritizedReplayBuffer(capacity=capacity, alpha=experience.alpha)

    def fill(self) -> None:
        for frames, td_errors in self.experience.blocks(self.capacity):
            for index, priority in enumerate(self.experience.priorities(td_errors)):
                step = {name: leaf[index] for name, leaf in frames.items()}
                self._buffer.add(_one(step), weight=float(priority))

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"sample_update": self._sample_update, "add": self._add}

    def _sample_update(self) -> Callable[[], Any]:
        buffer, batch, beta = self._buffer, self.experience.batch, self.experience.beta
        following = cycle(list(self.experience.priorities(self.experience.written)))

        def call() -> Any:
            drawn = buffer.sample(batch, beta=beta)
            buffer.update_priorities(drawn["batch_indexes"], following())
            return drawn

        return call

    def _add(self) -> Callable[[], Any]:
        buffer, following = self._buffer, cycle(self.experience.steps())

        def call() -> None:
            step, priority = following()
            buffer.add(_one(step), weight=priority)

        return call


def _one(step: Block) -> Any:
    return SampleBatch({name: leaf[None] for name, leaf in step.items()})


if __name__ == "__main__":
    serve(RLlib)
