"""Our TFPrioritizedReplayBuffer: it gives eager tensors, with weights, and takes TD errors as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from worker import Buffer, Experience, cycle, serve

from replayfeed.buffers import TFPrioritizedReplayBuffer

_BATCHES_PER_GRAPH_CALL = 20


class Replayfeed(Buffer):
    units = {"dataset_update_graph": _BATCHES_PER_GRAPH_CALL}

    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        data_spec = {name: tf.TensorSpec(leaf.shape[1:], leaf.dtype, name) for name, leaf in experience.frames.items()}
        self._buffer = TFPrioritizedReplayBuffer(
            data_spec, 1, capacity, alpha=experience.alpha, beta=experience.beta, eps=experience.eps, seed=0
        )

    def fill(self) -> None:
        for frames, td_errors in self.experience.blocks(self.capacity):
            items = {name: leaf[None] for name, leaf in frames.items()}
            self._buffer.add_sequence(items, priorities=self.experience.priorities(td_errors)[None])

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {
            "sample_update": self._sample_update,
            "add": self._add,
            "dataset_update": self._dataset_update,
            "dataset_update_graph": self._dataset_update_graph,
        }

    def _sample_update(self) -> Callable[[], Any]:
        buffer, batch = self._buffer, self.experience.batch
        following = cycle([tf.constant(row) for row in self.experience.written])

        def call() -> Any:
            items, info = buffer.sample(batch)
            buffer.update_priorities(info.keys, td_errors=following())
            return items, info

        return call

    def _dataset_update(self) -> Callable[[], Any]:
        buffer, iterator = self._buffer, iter(self._buffer.as_dataset(self.experience.batch))
        following = cycle([tf.constant(row) for row in self.experience.written])

        def call() -> Any:
            items, info = next(iterator)
            buffer.update_priorities(info.keys, td_errors=following())
            return items, info

        return call

    def _dataset_update_graph(self) -> Callable[[], Any]:
        buffer, iterator = self._buffer, iter(self._buffer.as_dataset(self.experience.batch))
        written = tf.constant(self.experience.written)

        @tf.function
        def call() -> tf.Tensor:
            total = tf.constant(0.0)
            for index in tf.range(_BATCHES_PER_GRAPH_CALL):
                items, info = next(iterator)
                buffer.update_priorities(info.keys, td_errors=written[index])
                total += tf.reshape(tf.nest.flatten(items)[0], [-1])[0] + info.weights[0]
            return total

        return call

    def _add(self) -> Callable[[], Any]:
        buffer = self._buffer
        steps = [
            ({name: leaf[None] for name, leaf in step.items()}, np.array([priority], np.float32))
            for step, priority in self.experience.steps()
        ]
        following = cycle(steps)

        def call() -> None:
            items, priorities = following()
            buffer.add_batch(items, priorities=priorities)

        return call


if __name__ == "__main__":
    serve(Replayfeed)
