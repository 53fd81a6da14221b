"""cpprb: Cython over C++ segment trees. It gives NumPy arrays, with weights, and takes priorities without exponent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpprb import PrioritizedReplayBuffer
from worker import Buffer, Experience, cycle, serve


class Cpprb(Buffer):
    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        fields = {name: {"shape": leaf.shape[1:] or 1, "dtype": leaf.dtype} for name, leaf in experience.frames.items()}
        self._buffer = PrioritizedReplayBuffer(capacity, fields, alpha=experience.alpha, eps=experience.eps)

    def fill(self) -> None:
        for frames, td_errors in self.experience.blocks(self.capacity):
            self._buffer.add(**frames, priorities=self.experience.priorities(td_errors))

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"sample_update": self._sample_update, "add": self._add}

    def _sample_update(self) -> Callable[[], Any]:
        buffer, batch, beta = self._buffer, self.experience.batch, self.experience.beta
        following = cycle(list(self.experience.priorities(self.experience.written)))

        def call() -> Any:
            drawn = buffer.sample(batch, beta)
            buffer.update_priorities(drawn["indexes"], following())
            return drawn

        return call

    def _add(self) -> Callable[[], Any]:
        buffer, following = self._buffer, cycle(self.experience.steps())

        def call() -> None:
            step, priority = following()
            buffer.add(**step, priorities=priority)

        return call


if __name__ == "__main__":
    serve(Cpprb)
