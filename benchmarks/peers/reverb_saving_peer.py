"""A Reverb server's checkpoint of a table of items of one step, and a server that starts from it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import reverb
import tensorflow as tf
from reverb.platform.default import checkpointers
from worker import Buffer, Experience, serve

_TABLE = "replay"
# Items that the writer may leave unconfirmed, and after how many it looks; above 50 Reverb warns, which takes time.
_PENDING = 20


class ReverbSaving(Buffer):
    calls_are_long = True

    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        self._folder = tempfile.mkdtemp()
        self._server = self._start()
        self._client = reverb.Client(f"localhost:{self._server.port}")

    def fill(self) -> None:
        writer = self._client.trajectory_writer(1)
        num_items = 0
        for frames, _ in self.experience.blocks(self.capacity):
            for index in range(len(next(iter(frames.values())))):
                writer.append({name: leaf[index] for name, leaf in frames.items()})
                writer.create_item(_TABLE, 1.0, {name: column[-1] for name, column in writer.history.items()})
                num_items += 1
                if num_items % _PENDING == 0:
                    writer.flush(_PENDING)
        writer.flush()
        writer.close()

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"save": lambda: self._client.checkpoint, "load": self._load}

    def _load(self) -> Callable[[], Any]:
        self._client.checkpoint()
        started: list[reverb.Server] = []

        def call() -> None:
            for server in started:
                server.stop()
            started[:] = [self._start()]

        return call

    def _start(self) -> reverb.Server:
        """A server; it begins with what the last checkpoint holds."""
        fields = self.experience.frames
        signature = {name: tf.TensorSpec(leaf.shape[1:], leaf.dtype) for name, leaf in fields.items()}
        table = reverb.Table(
            _TABLE,
            reverb.selectors.Uniform(),
            reverb.selectors.Fifo(),
            self.capacity,
            reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        return reverb.Server([table], checkpointer=checkpointers.DefaultCheckpointer(self._folder))


if __name__ == "__main__":
    serve(ReverbSaving)
