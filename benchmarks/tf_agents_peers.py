"""TF-Agents' uniform buffer at the settings that were fastest here.

`add_batch` runs in a `tf.function` that gets NumPy arrays as tensors; `as_dataset` maps with
two parallel calls and prefetches. A buffer takes batches of exactly its own `batch_size`.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from tf_agents.replay_buffers import tf_uniform_replay_buffer
from workloads import Block, Workload

# Divides every capacity that is measured, so that 1,000 adds fill 1,000,000 frames.
_FILL_STREAMS = 1_000


def full_buffer(workload: Workload, capacity: int) -> tf_uniform_replay_buffer.TFUniformReplayBuffer:
    """A buffer that holds `capacity` frames."""
    streams = min(_FILL_STREAMS, capacity // 20)
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(workload.data_spec, streams, capacity // streams)
    add = _adder(buffer)
    block = tf.nest.map_structure(tf.constant, workload.frames(streams))
    for _ in range(capacity // streams):
        add(block)
    return buffer


def add_call(workload: Workload, streams: int, capacity: int) -> Callable[[Block], None]:
    """A function that adds one frame a stream, leaves `[streams, ...]`, to a buffer of `capacity` frames."""
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(workload.data_spec, streams, max(1, capacity // streams))
    add = _adder(buffer)
    return lambda block: add({name: tf.constant(leaf) for name, leaf in block.items()})


def dataset(
    buffer: tf_uniform_replay_buffer.TFUniformReplayBuffer, batch: int, num_steps: int | None = None
) -> tf.data.Dataset:
    """Batches `[batch, ...]` of a full buffer."""
    return buffer.as_dataset(sample_batch_size=batch, num_steps=num_steps, num_parallel_calls=2).prefetch(4)


def _adder(buffer: tf_uniform_replay_buffer.TFUniformReplayBuffer) -> Callable[[Block], None]:
    @tf.function
    def add(items: Block) -> None:
        buffer.add_batch(items)

    return add
