"""Reverb by hand, with its server in the same process: a table of items of one step. It gives eager tensors.

Read as the raw Reverb of `reverb_peers.py`: four workers, 64 items in flight each, chunks of one step. Weights are
made by its caller, of the probabilities and table sizes that it tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reverb
import tensorflow as tf
from worker import Block, Buffer, Experience, cycle, serve

_TABLE = "replay"
_WORKERS, _IN_FLIGHT = 4, 64
# Items that the writer may leave unconfirmed, and after how many it looks; above 50 Reverb warns, which takes time.
_PENDING = 20


class Reverb(Buffer):
    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        signature = {name: tf.TensorSpec(leaf.shape[1:], leaf.dtype) for name, leaf in experience.frames.items()}
        table = reverb.Table(
            _TABLE,
            reverb.selectors.Prioritized(experience.alpha),
            reverb.selectors.Fifo(),
            capacity,
            reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        self._server = reverb.Server([table])
        self._client = reverb.Client(f"localhost:{self._server.port}")
        self._writer = self._client.trajectory_writer(1)
        self._num_items = 0

    def fill(self) -> None:
        for frames, td_errors in self.experience.blocks(self.capacity):
            for index, priority in enumerate(self.experience.priorities(td_errors)):
                self._add_one({name: leaf[index] for name, leaf in frames.items()}, float(priority))
        self._writer.flush()

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"sample_update": self._sample_update, "add": self._add}

    def _sample_update(self) -> Callable[[], Any]:
        dataset = reverb.TrajectoryDataset.from_table_signature(
            f"localhost:{self._server.port}",
            _TABLE,
            max_in_flight_samples_per_worker=_IN_FLIGHT,
            num_workers_per_iterator=_WORKERS,
        )
        iterator = iter(dataset.batch(self.experience.batch, drop_remainder=True).prefetch(4))
        client, beta = self._client, self.experience.beta
        following = cycle(self.experience.priorities(self.experience.written).tolist())

        def call() -> Any:
            drawn = next(iterator)
            weights = tf.pow(drawn.info.probability * tf.cast(drawn.info.table_size, tf.float64), -beta)
            weights /= tf.reduce_max(weights)
            client.mutate_priorities(_TABLE, dict(zip(drawn.info.key.numpy().tolist(), following(), strict=True)))
            return drawn, weights

        return call

    def _add(self) -> Callable[[], Any]:
        following = cycle(self.experience.steps())
        return lambda: self._add_one(*following())

    def _add_one(self, step: Block, priority: float) -> None:
        writer = self._writer
        writer.append(step)
        writer.create_item(_TABLE, priority, {name: column[-1] for name, column in writer.history.items()})
        self._num_items += 1
        if self._num_items % _PENDING == 0:
            writer.flush(_PENDING)


if __name__ == "__main__":
    serve(Reverb)
