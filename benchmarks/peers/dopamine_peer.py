"""Dopamine's JAX-era ReplayBuffer: a dictionary of Python objects and a sum tree in NumPy. It gives NumPy arrays.

It makes transitions of steps by itself, so that it is given no next observation. Weights are made by its caller, of
the priorities that it tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from dopamine.jax.replay_memory import accumulator, elements, replay_buffer, samplers
from worker import Buffer, Experience, cycle, serve


class Dopamine(Buffer):
    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        self._buffer = replay_buffer.ReplayBuffer(
            accumulator.TransitionAccumulator(stack_size=1, update_horizon=1, gamma=0.99),
            samplers.PrioritizedSamplingDistribution(seed=0, max_capacity=capacity, priority_exponent=experience.alpha),
            batch_size=experience.batch,
            max_capacity=capacity,
            compress=False,
        )

    def fill(self) -> None:
        # The accumulator keeps the last step for itself until it sees the next one.
        for frames, td_errors in self.experience.blocks(self.capacity + 1):
            priorities = self.experience.priorities(td_errors)
            for index, priority in enumerate(priorities):
                step = {name: leaf[index] for name, leaf in frames.items()}
                self._buffer.add(_element(step), priority=float(priority))

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"sample_update": self._sample_update, "add": self._add}

    def _sample_update(self) -> Callable[[], Any]:
        buffer, num_items, beta = self._buffer, self.capacity, self.experience.beta
        following = cycle(list(self.experience.priorities(self.experience.written)))

        def call() -> Any:
            drawn, about = buffer.sample(with_sample_metadata=True)
            weights = (num_items * about.probabilities) ** -beta
            weights /= np.max(weights)
            buffer.update(about.keys, priorities=following())
            return drawn, weights

        return call

    def _add(self) -> Callable[[], Any]:
        buffer = self._buffer
        following = cycle([(_element(step), priority) for step, priority in self.experience.steps()])

        def call() -> None:
            element, priority = following()
            buffer.add(element, priority=priority)

        return call


def _element(step: dict[str, Any]) -> Any:
    return elements.TransitionElement(step["obs"], step["action"], step["reward"], False)


if __name__ == "__main__":
    serve(Dopamine)
