"""Reverb by hand, as a person who knows it would write it: one column a field, one writer a stream.

Settings are the fastest of those tried here: reading with four workers and 64 items in flight
each, and items in chunks of one step, so that a draw decodes nothing else.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from reverb import structured_writer
from tf_agents.replay_buffers import reverb_replay_buffer
from workloads import Block, Workload, blocks

WORKERS, IN_FLIGHT = 4, 64
_TABLE, _SCAN_TABLE = "replay", "replay_scan"
# Items that a writer may leave unconfirmed, and after how many steps it looks; above 50 Reverb warns.
_PENDING = 32
# Steps of a stream that may lie in a chunk that is not full yet.
_CHUNK_SLACK = 16


class HandServer:
    """An embedded server with a uniform table of windows, and, with `mirrored`, a heap table of the same items.

    Args:
      workload: the fields.
      sequence_length: frames in an item.
      max_size: items.
      mirrored: whether writers insert each item into a second table too, which can be scanned.
    """

    def __init__(self, workload: Workload, sequence_length: int, max_size: int, *, mirrored: bool = False) -> None:
        self.workload, self.sequence_length, self.table = workload, sequence_length, _TABLE
        signature = {
            name: tf.TensorSpec((sequence_length, *shape), dtype) for name, (shape, dtype) in workload.fields.items()
        }
        selectors = {_TABLE: reverb.selectors.Uniform(), _SCAN_TABLE: reverb.selectors.MinHeap()}
        self.tables = (_TABLE, _SCAN_TABLE) if mirrored else (_TABLE,)
        self._server = reverb.Server(
            [
                reverb.Table(
                    name,
                    selectors[name],
                    reverb.selectors.Fifo(),
                    max_size,
                    reverb.rate_limiters.MinSize(1),
                    signature=signature,
                )
                for name in self.tables
            ]
        )
        self.client = reverb.Client(f"localhost:{self._server.port}")
        self._tf_agents_buffers: list[Any] = []

    def fill(self, num_frames: int) -> None:
        """Writes one stream of that many frames."""
        writer = TrajectoryWriters(self, 1, chunk_length=1)
        for num, block in blocks(self.workload, num_frames, 1000):
            for index in range(num):
                writer.add({name: leaf[index : index + 1] for name, leaf in block.items()})
        writer.flush()

    def num_inserted(self) -> int:
        """Items that ever came into the table."""
        return int(self.client.server_info()[_TABLE].rate_limiter_info.insert_stats.completed)

    def tf_agents_dataset(self, batch: int, *, tuned: bool) -> tf.data.Dataset:
        """Batches from TF-Agents' buffer over the same table, by its defaults or at our settings."""
        settings: dict[str, Any] = {}
        if tuned:
            settings = {"dataset_buffer_size": IN_FLIGHT, "num_workers_per_iterator": WORKERS, "max_cycle_length": 1}
        buffer = reverb_replay_buffer.ReverbReplayBuffer(
            self.workload.data_spec, _TABLE, self.sequence_length, local_server=self._server, **settings
        )
        self._tf_agents_buffers.append(buffer)
        return buffer.as_dataset(sample_batch_size=batch, num_steps=self.sequence_length).prefetch(4)


def raw_dataset(address: str, table: str, batch: int) -> tf.data.Dataset:
    """Batches of a table as Reverb's own dataset gives them."""
    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, table, max_in_flight_samples_per_worker=IN_FLIGHT, num_workers_per_iterator=WORKERS
    )
    return dataset.batch(batch, drop_remainder=True).prefetch(4)


class TrajectoryWriters:
    """One `TrajectoryWriter` a stream; each appends a step and creates the item that it completes."""

    def __init__(self, server: HandServer, streams: int, *, chunk_length: int) -> None:
        self._server, self._length = server, server.sequence_length
        keep = max(self._length, chunk_length)
        self._writers = [server.client.trajectory_writer(keep) for _ in range(streams)]
        for writer in self._writers:
            for name in server.workload.fields:
                writer.configure((name,), num_keep_alive_refs=keep, max_chunk_length=chunk_length)
        self._num_steps = 0

    def add(self, block: Block) -> None:
        """One frame of each stream, leaves `[B, ...]`."""
        self._num_steps += 1
        length, tables = self._length, self._server.tables
        for stream, writer in enumerate(self._writers):
            writer.append({name: leaf[stream] for name, leaf in block.items()})
            if self._num_steps < length:
                continue
            history = writer.history
            item = {name: history[name][-length:] for name in block}
            for table in tables:
                writer.create_item(table, 1.0, item)
            if self._num_steps % _PENDING == 0:
                writer.flush(_PENDING)

    def flush(self) -> None:
        """Returns when the server has everything."""
        for writer in self._writers:
            writer.flush()


class StructuredWriters:
    """One `StructuredWriter` a stream, which cuts the items in C++."""

    def __init__(self, server: HandServer, streams: int) -> None:
        length = server.sequence_length
        step = {name: np.zeros(shape, dtype) for name, (shape, dtype) in server.workload.fields.items()}
        pattern = structured_writer.pattern_from_transform(
            step, lambda reference: {name: reference[name][-length:] for name in step}
        )
        configs = [structured_writer.create_config(pattern, table) for table in server.tables]
        self._server = server
        self._writers = [server.client.structured_writer(configs) for _ in range(streams)]
        self._num_steps = 0

    def add(self, block: Block) -> None:
        """One frame of each stream, leaves `[B, ...]`."""
        self._num_steps += 1
        for stream, writer in enumerate(self._writers):
            writer.append({name: leaf[stream] for name, leaf in block.items()})
        if self._num_steps % _PENDING == 0:
            self._wait(_PENDING)

    def flush(self) -> None:
        """Returns when the server has all but chunks that are not full yet."""
        self._wait(_CHUNK_SLACK)

    def _wait(self, num_may_wait: int) -> None:
        """Until the server lacks at most so many items of each stream.

        Not by the writers' own flush: in a process with other servers it was seen to hang, whatever its timeout.
        """
        wanted = (self._num_steps - self._server.sequence_length + 1 - num_may_wait) * len(self._writers)
        while self._server.num_inserted() < wanted:
            time.sleep(0.0005)
