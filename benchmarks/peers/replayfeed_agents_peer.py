"""Our MultiAgentReplayBuffer, independent, in lockstep, and of prioritized buffers: it gives eager tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from worker import AGENTS, Buffer, cycle, serve

from replayfeed.buffers import MultiAgentReplayBuffer, TFPrioritizedReplayBuffer, TFUniformReplayBuffer


class ReplayfeedAgents(Buffer):
    def fill(self) -> None:
        """Nothing: each contest fills the buffer that it needs."""

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        contests: dict[str, Callable[[], Callable[[], Any]]] = {"sample_update": self._sample_update}
        for mode, prefix in (("independent", ""), ("lockstep", "lockstep_")):
            full = functools.partial(self._uniform, mode)
            contests[f"{prefix}add"] = functools.partial(self._add, full)
            contests[f"{prefix}sample"] = functools.partial(self._sample, full)
        return contests

    def _uniform(self, mode: Any) -> MultiAgentReplayBuffer:
        return self._full(mode, functools.partial(TFUniformReplayBuffer, max_length=self._per_policy, seed=0))

    def _prioritized(self) -> MultiAgentReplayBuffer:
        given = self.experience
        make_buffer = functools.partial(
            TFPrioritizedReplayBuffer,
            max_length=self._per_policy,
            alpha=given.alpha,
            beta=given.beta,
            eps=given.eps,
            seed=0,
        )
        return self._full("independent", make_buffer)

    @property
    def _per_policy(self) -> int:
        return self.capacity // len(AGENTS)

    def _full(self, mode: Any, make_buffer: Callable[..., Any]) -> MultiAgentReplayBuffer:
        frames = self.experience.frames
        spec = {name: tf.TensorSpec(leaf.shape[1:], leaf.dtype, name) for name, leaf in frames.items()}
        buffer = MultiAgentReplayBuffer(dict.fromkeys(AGENTS, spec), lambda agent: agent, make_buffer, mode=mode)
        for block, _ in self.experience.blocks(self._per_policy):
            buffer.add_sequence(dict.fromkeys(AGENTS, {name: leaf[None] for name, leaf in block.items()}))
        return buffer

    def _add(self, full: Callable[[], MultiAgentReplayBuffer]) -> Callable[[], Any]:
        buffer = full()
        moments = [
            {agent: {name: leaf[None] for name, leaf in step.items()} for agent, step in moment.items()}
            for moment in self.experience.moments()
        ]
        following = cycle(moments)
        return lambda: buffer.add_batch(following())

    def _sample(self, full: Callable[[], MultiAgentReplayBuffer]) -> Callable[[], Any]:
        buffer = full()
        return lambda: buffer.sample(self.experience.batch)

    def _sample_update(self) -> Callable[[], Any]:
        buffer, batch = self._prioritized(), self.experience.batch
        following = cycle([tf.constant(row) for row in self.experience.written])

        def call() -> Any:
            items, infos = buffer.sample(batch)
            buffer.update_priorities({policy: (info.keys, following()) for policy, info in infos.items()})
            return items, infos

        return call


if __name__ == "__main__":
    serve(ReplayfeedAgents)
