"""torchrl's TensorDictReplayBuffer with its PrioritizedSampler, a C++ tree. It gives torch tensors, with weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from worker import Block, Buffer, Experience, cycle, serve

_PRIORITY = "td_error"


class TorchRL(Buffer):
    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        self._buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity),
            sampler=PrioritizedSampler(capacity, alpha=experience.alpha, beta=experience.beta, eps=experience.eps),
            batch_size=experience.batch,
            priority_key=_PRIORITY,
        )

    def fill(self) -> None:
        for frames, td_errors in self.experience.blocks(self.capacity):
            self._buffer.extend(_tensors(frames, self.experience.priorities(td_errors)))

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"sample_update": self._sample_update, "add": self._add}

    def _sample_update(self) -> Callable[[], Any]:
        buffer = self._buffer
        following = cycle([torch.from_numpy(row) for row in self.experience.priorities(self.experience.written)])

        def call() -> Any:
            drawn = buffer.sample()
            buffer.update_priority(drawn["index"], following())
            return drawn

        return call

    def _add(self) -> Callable[[], Any]:
        buffer = self._buffer
        following = cycle([_tensors(step, np.float32(priority)) for step, priority in self.experience.steps()])
        return lambda: buffer.add(following())


def _tensors(frames: Block, priorities: Any) -> TensorDict:
    leaves = {name: torch.as_tensor(leaf) for name, leaf in frames.items()}
    return TensorDict({**leaves, _PRIORITY: torch.as_tensor(priorities)}, np.shape(priorities))


if __name__ == "__main__":
    serve(TorchRL)
