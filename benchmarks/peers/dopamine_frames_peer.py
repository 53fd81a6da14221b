"""Dopamine's circular buffer, which stores each frame once and stacks at sampling. It gives NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dopamine.tf.replay_memory.circular_replay_buffer import OutOfGraphReplayBuffer
from worker import Buffer, Experience, serve

_STACK = 4


class DopamineFrames(Buffer):
    """The given frames are an episode."""

    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        self._frames = experience.frames["observation"]
        self._buffer = OutOfGraphReplayBuffer(
            self._frames.shape[1:], _STACK, capacity, experience.batch, update_horizon=1, gamma=0.99
        )

    def fill(self) -> None:
        length = len(self._frames)
        for step in range(self.capacity):
            self._buffer.add(self._frames[step % length], step % 6, 1.0, step % length == length - 1)

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"sample": lambda: self._buffer.sample_transition_batch}


if __name__ == "__main__":
    serve(DopamineFrames)
