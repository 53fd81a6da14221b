"""Buffers of three agents of two policies for tests that save them: what is added, and all that can be seen."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers import (
    EpisodicReplayBuffer,
    MultiAgentReplayBuffer,
    ReservoirReplayBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
)

MODES = ("independent", "lockstep")
POLICIES = {"wolf_1": "wolf", "sheep": "sheep", "wolf_0": "wolf"}  # in no order
SPEC = {"value": tf.TensorSpec([], tf.int64)}
MAKERS = {
    "uniform": functools.partial(TFUniformReplayBuffer, max_length=7, seed=3),
    "prioritized": functools.partial(TFPrioritizedReplayBuffer, max_length=7, seed=3),
    "reservoir": functools.partial(ReservoirReplayBuffer, capacity=9, seed=3),
    "episodic": functools.partial(EpisodicReplayBuffer, capacity=7, seed=3),
}


def make(mode: Any = "independent", make_buffer: Any = MAKERS["uniform"], **changed: Any) -> MultiAgentReplayBuffer:
    arguments: dict[str, Any] = {"data_specs": dict.fromkeys(POLICIES, SPEC), "policy_of": POLICIES} | changed
    return MultiAgentReplayBuffer(**arguments, make_buffer=make_buffer, mode=mode)


def values(*numbers: int) -> dict[str, np.ndarray]:
    return {"value": np.array(numbers, np.int64)}


def add(buffer: MultiAgentReplayBuffer, number: int, agents: Any = tuple(POLICIES), **arguments: Any) -> Any:
    """A moment in which each of these agents has the number, plus 100 or 200 for the second and third by name."""
    order = sorted(POLICIES)
    return buffer.add_batch({agent: values(number + 100 * order.index(agent)) for agent in agents}, **arguments)


def held(buffer: MultiAgentReplayBuffer) -> dict[str, Any]:
    """By agent the values that are held of it, by row."""
    return {agent: rows["value"].to_list() for agent, rows in buffer.gather_all().items()}


def times(buffer: MultiAgentReplayBuffer) -> list[set[int]]:
    """Of each part the moments that its frames are of."""
    keys = [None] if buffer.mode == "lockstep" else buffer.policies
    leaves = [buffer.buffer_of(key).gather_all().time for key in keys]
    return [set(tf.reshape(getattr(leaf, "flat_values", leaf), [-1]).numpy().tolist()) for leaf in leaves]


def own_key(buffer: MultiAgentReplayBuffer) -> str | None:
    return None if buffer.mode == "lockstep" else buffer.policies[0]


def by_name(info: Any, buffer: MultiAgentReplayBuffer) -> dict[str, Any]:
    """An info whose agents have names: their numbers are those of the order in which they were given."""
    found = info._asdict()
    if "agents" in found:
        found["agents"] = [buffer.agents[number] for number in np.ravel(found["agents"])]
    return found


def plain(value: Any) -> Any:
    """Nests of tensors as nests of lists, in which NaN equals itself."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in sorted(value.items())}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    return value if isinstance(value, str) else np.asarray(value).tolist()


def seen(buffer: MultiAgentReplayBuffer) -> Any:
    """All that can be seen of a buffer without drawing."""
    keys = [None] if buffer.mode == "lockstep" else sorted(buffer.policies)
    parts = [buffer.buffer_of(key) for key in keys]
    return [
        plain(buffer.gather_all()),
        [plain(part.gather_all()) for part in parts],
        [dataclasses.asdict(part.stats()) for part in parts],
        dataclasses.asdict(buffer.stats()),
    ]
