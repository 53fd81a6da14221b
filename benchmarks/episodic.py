"""Episodes: windows and whole ones, against NumPy, TF-Agents' episodic buffer, and our own uniform one.

W3  steps of a continuous-control task in episodes of 200: two float32 fields, 17 and 8 numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from datasets import BATCHES_PER_GRAPH_CALL, eagerly, in_function
from measure import Bar, Contender, Scale, interleave, row
from numpy_peers import NumpyRing
from tf_agents.replay_buffers import episodic_replay_buffer
from workloads import W1, Workload

from replayfeed.buffers import EpisodicReplayBuffer, TFUniformReplayBuffer

OURS, TF_AGENTS, NUMPY, UNIFORM = "replayfeed", "TF-Agents Episodic", "NumPy fancy index", "replayfeed uniform"

_F = np.dtype(np.float32)
W3 = Workload("W3", {"obs": ((17,), _F), "action": ((8,), _F)})
_EPISODE_STEPS = 200
_WINDOWS, _WINDOW_STEPS = 64, 80
_EPISODES = 32
_SHORT_STEPS, _SHORT_BATCH = 10, 256


def episodic_windows(scale: Scale) -> list[dict[str, Any]]:
    """64 windows of 80 frames from episodes of 200."""
    num = max(5, scale.w1_capacity // 10 // _EPISODE_STEPS)
    ours, theirs, ring = (
        full_buffer(W3, num, _EPISODE_STEPS),
        _tf_agents_buffer(num),
        NumpyRing(W3, num * _EPISODE_STEPS),
    )
    dataset = ours.as_dataset(_WINDOWS, _WINDOW_STEPS)
    contenders = [
        Contender(OURS, lambda: ours.sample(_WINDOWS, _WINDOW_STEPS)),
        Contender(f"{OURS}, as_dataset", eagerly(dataset)),
        Contender(f"{OURS}, as_dataset in a tf.function", in_function(dataset), BATCHES_PER_GRAPH_CALL),
        Contender(NUMPY, _fancy_index(ring)),
        Contender(TF_AGENTS, eagerly(theirs.as_dataset(_WINDOWS, _WINDOW_STEPS))),
    ]
    bars = [Bar(NUMPY, 0.6), Bar(TF_AGENTS, 20)]
    return [row("episodic sample, W3, 64 windows of 80", "batches/s", OURS, interleave(contenders, scale), bars)]


def episodic_whole(scale: Scale) -> list[dict[str, Any]]:
    """Batches of 32 whole episodes of 200 frames."""
    num = max(5, scale.w1_capacity // 10 // _EPISODE_STEPS)
    ours, theirs = full_buffer(W3, num, _EPISODE_STEPS), _tf_agents_buffer(num)
    contenders = [
        Contender(OURS, lambda: ours.sample(_EPISODES)),
        Contender(f"{OURS}, as_dataset", eagerly(ours.as_dataset(_EPISODES))),
        Contender(f"{OURS}, as_dataset in buckets", eagerly(ours.as_dataset(_EPISODES, buckets="auto"))),
        # All are of one length here: theirs have no padding.
        Contender(TF_AGENTS, eagerly(theirs.as_dataset().batch(_EPISODES))),
    ]
    bars = [Bar(TF_AGENTS, 20)]
    measure = "episodic sample, W3, 32 whole episodes of 200"
    return [row(measure, "batches/s", OURS, interleave(contenders, scale), bars)]


def episodic_exact(scale: Scale) -> list[dict[str, Any]]:
    """Windows of 2, 3, 4 and 5 in turn from episodes of 10: each with the same chance."""
    num = scale.w1_capacity // _SHORT_STEPS
    ours = full_buffer(W1, num, _SHORT_STEPS)
    uniform = TFUniformReplayBuffer(W1.data_spec, 1, num * _SHORT_STEPS)
    _fill(uniform.add_sequence, W1, num, _SHORT_STEPS)
    contenders = [Contender(OURS, _in_turn(ours)), Contender(UNIFORM, _in_turn(uniform))]
    samples = interleave(contenders, scale)
    for one in samples.values():
        one["values"] = [1e6 / rate for rate in one["values"]]
    measure = f"episodic sample, W1, batch 256, T=2..5 of {num:,} episodes of 10"
    rows = [row(measure, "us", OURS, samples, [Bar(UNIFORM, 1.5, at_most=True)])]
    datasets = [
        Contender(name, eagerly(one.as_dataset(_SHORT_BATCH, 3))) for name, one in ((OURS, ours), (UNIFORM, uniform))
    ]
    bars = [Bar(UNIFORM, 1 / 1.5)]
    measure = f"episodic as_dataset, W1, batch 256, T=3 of {num:,} episodes of 10"
    return [*rows, row(measure, "batches/s", OURS, interleave(datasets, scale), bars)]


def episodic_adds(scale: Scale) -> list[dict[str, Any]]:
    """Frames of one stream, and of 64, in episodes of 200, with the oldest leaving."""
    rows = []
    max_frames = max(scale.w1_capacity // 10, 2 * 64 * _EPISODE_STEPS)
    for streams in (1, 64):
        ours = EpisodicReplayBuffer(W3.data_spec, 1000, batch_size=streams, max_frames=max_frames)
        uniform = TFUniformReplayBuffer(W3.data_spec, streams, max_frames // streams)
        contenders = [
            Contender(OURS, _adder(ours.add_batch, streams), streams),
            Contender(UNIFORM, _adder(uniform.add_batch, streams), streams),
        ]
        name = f"episodic add_batch, W3, {streams} streams"
        rows.append(row(name, "frames/s", OURS, interleave(contenders, scale), [Bar(UNIFORM, 0.5, aim=True)]))
    return rows


def full_buffer(workload: Workload, num_episodes: int, num_steps: int) -> EpisodicReplayBuffer:
    """Our buffer, full of episodes of this length."""
    buffer = EpisodicReplayBuffer(workload.data_spec, num_episodes, max_frames=num_episodes * num_steps)
    _fill(buffer.add_sequence, workload, num_episodes, num_steps)
    return buffer


def _fill(add_sequence: Callable[..., Any], workload: Workload, num_episodes: int, num_steps: int) -> None:
    block = workload.frames(1, 100 * num_steps)
    ends = np.arange(100 * num_steps)[None] % num_steps == num_steps - 1
    for start in range(0, num_episodes, 100):
        num = min(100, num_episodes - start) * num_steps
        add_sequence({name: leaf[:, :num] for name, leaf in block.items()}, end_of_episode=ends[:, :num])


def _tf_agents_buffer(num_episodes: int) -> episodic_replay_buffer.EpisodicReplayBuffer:
    buffer = episodic_replay_buffer.EpisodicReplayBuffer(
        W3.data_spec, num_episodes, begin_episode_fn=lambda _: True, end_episode_fn=lambda _: True
    )
    block = tf.nest.map_structure(tf.constant, W3.frames(_EPISODE_STEPS))
    episode_id = buffer.create_episode_ids()
    for _ in range(num_episodes):
        episode_id = buffer.add_sequence(block, episode_id)
    return buffer


def _fancy_index(ring: NumpyRing) -> Callable[[], Any]:
    rng, steps = np.random.default_rng(0), np.arange(_WINDOW_STEPS)
    num_rows = len(ring.arrays["obs"])

    def take() -> Any:
        rows = rng.integers(0, num_rows - _WINDOW_STEPS, _WINDOWS)[:, None] + steps
        return {name: array[rows] for name, array in ring.arrays.items()}

    return take


def _in_turn(buffer: Any) -> Callable[[], Any]:
    lengths = itertools.cycle((2, 3, 4, 5)).__next__
    return lambda: buffer.sample(_SHORT_BATCH, lengths())


def _adder(add: Callable[..., Any], streams: int) -> Callable[[], Any]:
    block = W3.frames(streams)
    ends = itertools.cycle([np.full(streams, step == _EPISODE_STEPS - 1) for step in range(_EPISODE_STEPS)]).__next__
    return lambda: add(block, end_of_episode=ends())
