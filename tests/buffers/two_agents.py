"""Buffers of agents a, b (and c) for tests: what is added of them, and what a sample shows of each."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from replayfeed.buffers import BufferConfig, EpisodicReplayBuffer, MinSize, MultiAgentReplayBuffer, TableConfig, Window

VALUE = {"value": tf.TensorSpec([], tf.float32)}
ENDING = {"value": tf.TensorSpec([], tf.float32), "is_last": tf.TensorSpec([], tf.bool)}
OWN = {"a": "a", "b": "b"}
SHARED = {"a": "both", "b": "both"}
POISON = np.float32(np.nan)


def values(*numbers):
    return {"value": np.array(numbers, np.float32)}


def ending(*numbers, last=False):
    return {"value": np.array(numbers, np.float32), "is_last": np.broadcast_to(last, len(numbers)).copy()}


def shown(items, info, agent):
    """A lockstep sample's values of one agent, None where they are masked."""
    mask, found = np.asarray(info.mask[agent]), np.asarray(items[agent]["value"])
    return [
        [value if real else None for value, real in zip(*row, strict=True)] for row in zip(found, mask, strict=True)
    ]


def rows_of(buffer, num_steps, **arguments):
    """All different rows that an ordered pass gives, as lists."""
    window = Window(num_steps)
    dataset = buffer.as_dataset(None, single_deterministic_pass=True, window=window, **arguments)
    return [(np.asarray(items["value"]).tolist(), info) for items, info in dataset]


def filled_lockstep(make_buffer, **arguments):
    """FR-080: three agents, of which the third dies at step 2 of 6."""
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE, "c": VALUE}, lambda agent: agent, make_buffer, mode="lockstep", **arguments
    )
    for step in range(6):
        items = {"a": values(step), "b": values(10 + step), "c": values(20 + step if step <= 2 else POISON)}
        ends = {"c": np.array([step == 2])} if step <= 2 else {}
        there = {} if step <= 2 else {"c": np.array([False])}
        buffer.add_batch(items, end_of_episode=ends or None, present=there or None)
    return buffer


MAKERS = {
    "uniform": BufferConfig("uniform", 100, seed=1),
    "prioritized": BufferConfig("prioritized", 100, seed=1),
    "episodic": functools.partial(EpisodicReplayBuffer, capacity=10, seed=1),
    "served": TableConfig("moments", VALUE, 100, sequence_length=4, rate_limiter=MinSize(1)),
}
