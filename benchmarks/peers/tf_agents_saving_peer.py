"""TF-Agents' TFUniformReplayBuffer to files and back: `tf.train.Checkpoint`, into the variables that are there."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from worker import Buffer, Experience, serve


class TfAgentsSaving(Buffer):
    calls_are_long = True

    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        data_spec = {name: tf.TensorSpec(leaf.shape[1:], leaf.dtype, name) for name, leaf in experience.frames.items()}
        # A block of the experience is a frame of each stream.
        streams = len(next(iter(experience.frames.values())))
        self._buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(data_spec, streams, capacity // streams)
        self._checkpoint = tf.train.Checkpoint(buffer=self._buffer)
        self._prefix = str(pathlib.Path(tempfile.mkdtemp(), "checkpoint"))

    def fill(self) -> None:
        @tf.function
        def add(items: dict[str, tf.Tensor]) -> None:
            self._buffer.add_batch(items)

        for frames, _ in self.experience.blocks(self.capacity):
            add({name: tf.constant(leaf) for name, leaf in frames.items()})

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"save": self._save, "load": self._load}

    def _save(self) -> Callable[[], Any]:
        return lambda: self._checkpoint.write(self._prefix)

    def _load(self) -> Callable[[], Any]:
        self._checkpoint.write(self._prefix)
        return lambda: self._checkpoint.read(self._prefix).assert_consumed()


if __name__ == "__main__":
    serve(TfAgentsSaving)
