"""`ReverbReplayBuffer` against Reverb by hand and TF-Agents' buffer, all with a server in this process."""

from __future__ import annotations

from typing import Any

from datasets import eagerly
from in_process import cycle
from measure import Bar, Contender, Scale, interleave, row
from reverb_peers import HandServer, StructuredWriters, TrajectoryWriters, raw_dataset
from workloads import W1, blocks

from replayfeed.buffers import ReverbReplayBuffer

_OURS, _RAW, _TF_AGENTS, _TUNED = "replayfeed", "raw Reverb", "TF-Agents' defaults", "TF-Agents, tuned like raw"
_BATCH, _STREAMS = 256, 64
# What our buffer takes for small frames in items of two.
_CHUNK_LENGTH = 2
# Writers and servers of one process wait for each other when they are taken down, so they live until it exits.
_kept: list[Any] = []


def served_as_dataset(scale: Scale) -> list[dict[str, Any]]:
    ours = ReverbReplayBuffer.local(W1.data_spec, max_size=scale.served_items, sequence_length=1, scannable=False)
    for _, block in blocks(W1, scale.served_items, 1000):
        ours.add_sequence({name: leaf[None] for name, leaf in block.items()})
    ours.flush()
    theirs = HandServer(W1, 1, scale.served_items)
    theirs.fill(scale.served_items)
    _kept.extend((ours, theirs))
    contenders = [
        Contender(_OURS, eagerly(ours.as_dataset(_BATCH))),
        Contender(_RAW, eagerly(raw_dataset(theirs.client.server_address, theirs.table, _BATCH))),
        Contender("raw Reverb on our packed table", eagerly(raw_dataset(ours.server_address, ours.table_name, _BATCH))),
        Contender(_TUNED, eagerly(theirs.tf_agents_dataset(_BATCH, tuned=True))),
        Contender(_TF_AGENTS, eagerly(theirs.tf_agents_dataset(_BATCH, tuned=False))),
    ]
    bars = [Bar(_RAW, 0.95), Bar(_TUNED, 1), Bar(_TF_AGENTS, 1)]
    measure = f"ReverbReplayBuffer.as_dataset, W1, batch {_BATCH}, {scale.served_items:,} items"
    return [row(measure, "batches/s", _OURS, interleave(contenders, scale), bars)]


def served_add_batch(scale: Scale) -> list[dict[str, Any]]:
    return [_served_add_batch(scale, mirrored=False)]


def served_add_batch_mirrored(scale: Scale) -> list[dict[str, Any]]:
    return [_served_add_batch(scale, mirrored=True)]


def _served_add_batch(scale: Scale, *, mirrored: bool) -> dict[str, Any]:
    """Windows of two frames of 64 streams; each window of time ends with a flush, so that nothing is left over."""
    given = [W1.frames(_STREAMS, seed=seed) for seed in range(4)]
    # Small tables, so that they are full, and removing counts, from the first round on.
    max_size, length = scale.served_items // 10, 2
    ours = ReverbReplayBuffer.local(
        W1.data_spec, batch_size=_STREAMS, max_size=max_size, sequence_length=length, scannable=mirrored
    )
    trajectory = TrajectoryWriters(
        HandServer(W1, length, max_size, mirrored=mirrored), _STREAMS, chunk_length=_CHUNK_LENGTH
    )
    structured = StructuredWriters(HandServer(W1, length, max_size, mirrored=mirrored), _STREAMS)
    _kept.extend((ours, trajectory, structured))
    contenders = [
        cycle(_OURS, ours.add_batch, given, _STREAMS, ours.flush),
        cycle("trajectory writers", trajectory.add, given, _STREAMS, trajectory.flush),
        cycle("structured writers", structured.add, given, _STREAMS, structured.flush),
    ]
    bars = [Bar("trajectory writers", 0.9), Bar("structured writers", 0.9)]
    measure = f"ReverbReplayBuffer.add_batch, 64 streams, W1, {'with' if mirrored else 'without'} the scan mirror"
    return row(measure, "frames/s", _OURS, interleave(contenders, scale), bars)
