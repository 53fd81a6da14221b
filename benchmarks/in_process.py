"""The in-process engine against TF-Agents, plain NumPy and the floor of tf.data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tf_agents_peers
from datasets import BATCHES_PER_GRAPH_CALL, eagerly, floor_dataset, in_function
from measure import Bar, Contender, Scale, interleave, row
from numpy_peers import NumpyRing, copy_bandwidth
from workloads import W1, W2, Block, Workload, blocks

from replayfeed.buffers import TFUniformReplayBuffer
from replayfeed.pipelines.feed import iterate

OURS, TF_AGENTS, NUMPY, FLOOR = "replayfeed", "TF-Agents TFUniform", "NumPy", "floor (tf.data constants)"
_W1_BATCH = 256
# cpprb, the fastest library of any framework at sampling W1, delivers this many NumPy batches a second here.
_AIM_BATCHES_PER_S = 14_000


def add_batch_1(scale: Scale) -> list[dict[str, Any]]:
    return [_add_batch(scale, 1, "add_batch, one stream, W1")]


def add_batch_64(scale: Scale) -> list[dict[str, Any]]:
    return [_add_batch(scale, 64, "add_batch, 64 streams, W1")]


def add_sequence(scale: Scale) -> list[dict[str, Any]]:
    num_steps = 256
    buffer, ring = full_buffer(W1, scale.w1_capacity), NumpyRing(W1, scale.w1_capacity)
    contenders = [
        cycle(OURS, buffer.add_sequence, [W1.frames(1, num_steps, seed=seed) for seed in range(4)], num_steps),
        cycle(NUMPY, lambda block: ring.add(num_steps, block), _blocks_of(num_steps), num_steps),
    ]
    samples = interleave(contenders, scale)
    return [row("add_sequence, 256 frames, W1", "frames/s", OURS, samples, [Bar(NUMPY, 0.5)])]


def as_dataset_eager(scale: Scale) -> list[dict[str, Any]]:
    datasets = _w1_datasets(scale)
    samples = interleave([Contender(name, eagerly(dataset)) for name, dataset in datasets.items()], scale)
    bars = [Bar(TF_AGENTS, 1.5), Bar(FLOOR, 0.9)]
    return [row("as_dataset, W1, batch 256, eager loop", "batches/s", OURS, samples, bars)]


def as_dataset_graph(scale: Scale) -> list[dict[str, Any]]:
    datasets = _w1_datasets(scale)
    contenders = [Contender(name, in_function(dataset), BATCHES_PER_GRAPH_CALL) for name, dataset in datasets.items()]
    bars = [Bar(TF_AGENTS, 3), Bar(FLOOR, 0.7)]
    samples = interleave(contenders, scale)
    return [row("as_dataset, W1, batch 256, in a tf.function", "batches/s", OURS, samples, bars)]


def iterate_dataset(scale: Scale) -> list[dict[str, Any]]:
    ours = full_buffer(W1, scale.w1_capacity).as_dataset(_W1_BATCH)
    rows = []
    for name, dataset in (("constants", floor_dataset(ours.element_spec)), ("our as_dataset", ours)):
        lean, plain = f"iterate over {name}", f"iter over {name}"
        contenders = [Contender(lean, iterate(dataset).__next__), Contender(plain, eagerly(dataset))]
        samples = interleave(contenders, scale)
        # A dataset that works for its elements hides what its iterator costs, so only the first has a bar.
        rows.append(
            row(
                f"iterate(dataset), W1, {name}",
                "batches/s",
                lean,
                samples,
                [Bar(plain, 1.8, aim=dataset is ours)],
            )
        )
    return rows


def sample(scale: Scale) -> list[dict[str, Any]]:
    buffer, ring = full_buffer(W1, scale.w1_capacity), NumpyRing(W1, scale.w1_capacity)
    theirs = tf_agents_peers.full_buffer(W1, scale.w1_capacity)
    out = W1.frames(_W1_BATCH)
    contenders = [
        Contender(OURS, lambda: buffer.sample(_W1_BATCH)),
        Contender(f"{TF_AGENTS}, as_dataset", eagerly(tf_agents_peers.dataset(theirs, _W1_BATCH))),
        Contender(f"{NUMPY} take", lambda: ring.take(_W1_BATCH)),
        Contender(f"{NUMPY} take into the same memory", lambda: ring.take_into(out)),
    ]
    samples = interleave(contenders, scale)
    samples["14,000 batches/s"] = {"values": [_AIM_BATCHES_PER_S]}
    bars = [Bar(f"{TF_AGENTS}, as_dataset", 4), Bar(f"{NUMPY} take", 0.4), Bar("14,000 batches/s", 1, aim=True)]
    return [row("sample, W1, batch 256, eager tensors with info", "batches/s", OURS, samples, bars)]


def sample_windows(scale: Scale) -> list[dict[str, Any]]:
    """`sample` of windows, and of frames among episodes: not in the table of the issue, but what agents do."""
    buffer, episodic = full_buffer(W1, scale.w1_capacity), full_buffer(W1, scale.w1_capacity, episode_steps=200)
    theirs = tf_agents_peers.full_buffer(W1, scale.w1_capacity)
    contenders = [
        Contender(OURS, lambda: buffer.sample(_W1_BATCH, 2)),
        Contender("replayfeed, episodes of 200", lambda: episodic.sample(_W1_BATCH, 2)),
        Contender("replayfeed, one frame each", lambda: buffer.sample(_W1_BATCH)),
        Contender(f"{TF_AGENTS}, as_dataset", eagerly(tf_agents_peers.dataset(theirs, _W1_BATCH, 2))),
    ]
    samples = interleave(contenders, scale)
    bars = [Bar(f"{TF_AGENTS}, as_dataset", 4, aim=True)]
    return [row("sample, W1, batch 256, windows of 2", "batches/s", OURS, samples, bars)]


def as_dataset_pixels_32(scale: Scale) -> list[dict[str, Any]]:
    return [_pixels(scale, 32, aim=True)]


def as_dataset_pixels_256(scale: Scale) -> list[dict[str, Any]]:
    return [_pixels(scale, 256, aim=False)]


def sample_growth(scale: Scale) -> list[dict[str, Any]]:
    """Time of one `sample` at growing capacities; beside it what NumPy's `take` alone grows by."""
    contenders = []
    for capacity in scale.growth_capacities:
        buffer, ring = full_buffer(W1, capacity), NumpyRing(W1, capacity)
        contenders += [
            Contender(_at(OURS, capacity), lambda buffer=buffer: buffer.sample(_W1_BATCH)),
            Contender(_at(NUMPY, capacity), lambda ring=ring: ring.take(_W1_BATCH)),
        ]
    samples = interleave(contenders, scale)
    for one in samples.values():
        one["values"] = [1e6 / rate for rate in one["values"]]
    small, large = scale.growth_capacities[0], scale.growth_capacities[-1]
    name = f"sample, W1, cost at {large:,} over {small:,} frames"
    bars = [Bar(_at(OURS, small), 3, at_most=True)]
    return [row(name, "us", _at(OURS, large), samples, bars, "The growth is cache misses: see NumPy's.")]


def full_buffer(workload: Workload, capacity: int, *, streams: int = 1, episode_steps: int = 0) -> Any:
    """Our buffer with `capacity` frames in it, the streams' episodes of a length, or endless."""
    buffer = TFUniformReplayBuffer(workload.data_spec, streams, capacity // streams)
    block_steps = max(1, 10_000 // streams) if workload is W1 else max(1, 200 // streams)
    for num, block in blocks(workload, capacity // streams, block_steps):
        ends = np.arange(num) % episode_steps == episode_steps - 1 if episode_steps else np.zeros(num, bool)
        block = {name: np.broadcast_to(leaf, (streams, *leaf.shape)) for name, leaf in block.items()}
        buffer.add_sequence(block, end_of_episode=np.broadcast_to(ends, (streams, num)))
    return buffer


def cycle(
    name: str,
    add: Callable[[Block], Any],
    given: Sequence[Block],
    units: int,
    finish: Callable[[], None] | None = None,
) -> Contender:
    """A contender that adds the given blocks in turn."""
    following = itertools.cycle(given).__next__
    return Contender(name, lambda: add(following()), units, finish)


def _add_batch(scale: Scale, streams: int, measure: str) -> dict[str, Any]:
    buffer = full_buffer(W1, scale.w1_capacity // streams * streams, streams=streams)
    ring = NumpyRing(W1, scale.w1_capacity)
    theirs = tf_agents_peers.add_call(W1, streams, scale.w1_capacity)
    contenders = [
        cycle(OURS, buffer.add_batch, _blocks_of(streams), streams),
        cycle(TF_AGENTS, theirs, _blocks_of(streams), streams),
        cycle(NUMPY, lambda block: ring.add(streams, block), _blocks_of(streams), streams),
    ]
    return row(measure, "frames/s", OURS, interleave(contenders, scale), [Bar(TF_AGENTS, 60)])


def _pixels(scale: Scale, batch: int, *, aim: bool) -> dict[str, Any]:
    ours = full_buffer(W2, scale.w2_capacity).as_dataset(batch)
    theirs = tf_agents_peers.dataset(tf_agents_peers.full_buffer(W2, scale.w2_capacity), batch)
    ring, out = NumpyRing(W2, scale.w2_capacity), W2.frames(batch)
    source, target = copy_bandwidth(batch * W2.frame_bytes)
    contenders = [
        Contender(OURS, eagerly(ours)),
        Contender(f"{OURS}, in a tf.function", in_function(ours), BATCHES_PER_GRAPH_CALL),
        Contender(TF_AGENTS, eagerly(theirs)),
        Contender(f"{TF_AGENTS}, in a tf.function", in_function(theirs), BATCHES_PER_GRAPH_CALL),
        Contender(f"{NUMPY} take", lambda: ring.take(batch)),
        Contender(f"{NUMPY} take into the same memory", lambda: ring.take_into(out)),
        Contender("memory copy of as many bytes", lambda: np.copyto(target, source)),
    ]
    bars = [Bar(f"{NUMPY} take", 0.8, aim=aim), Bar(TF_AGENTS, 1, aim=True)]
    return row(f"as_dataset, W2, batch {batch}, eager loop", "batches/s", OURS, interleave(contenders, scale), bars)


def _w1_datasets(scale: Scale) -> dict[str, Any]:
    ours = full_buffer(W1, scale.w1_capacity).as_dataset(_W1_BATCH)
    theirs = tf_agents_peers.full_buffer(W1, scale.w1_capacity)
    return {
        OURS: ours,
        TF_AGENTS: tf_agents_peers.dataset(theirs, _W1_BATCH),
        FLOOR: floor_dataset(ours.element_spec),
    }


def _blocks_of(num: int) -> list[Block]:
    return [W1.frames(num, seed=seed) for seed in range(4)]


def _at(name: str, capacity: int) -> str:
    return f"{name}, {capacity:,} frames"
