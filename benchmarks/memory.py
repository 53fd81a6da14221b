"""Resident memory of a full buffer. Runs in a process of its own, or what others freed would be counted."""

from __future__ import annotations

import pathlib
from typing import Any

from in_process import OURS, full_buffer
from measure import Bar, Scale, row
from workloads import FRAMES, W1, W2, Workload

# What a frame may take beside its bytes: a share, and its bookkeeping.
_SHARE, _BYTES = 1.02, 16


def memory_w1(scale: Scale) -> list[dict[str, Any]]:
    return [_memory(W1, scale.w1_capacity)]


def memory_w2(scale: Scale) -> list[dict[str, Any]]:
    return [_memory(W2, scale.w2_capacity)]


def memory_frames(scale: Scale) -> list[dict[str, Any]]:
    """A million frames that are stored once: with stacks of four they would take four times as much."""
    return [_memory(FRAMES, scale.num_frames)]


def _memory(workload: Workload, capacity: int) -> dict[str, Any]:
    # A small one first: what TensorFlow and NumPy allocate once is not the buffer's.
    warm_up = full_buffer(workload, 2 * min(capacity, 200))
    before = _resident_bytes()
    buffer = full_buffer(workload, capacity)
    each = (_resident_bytes() - before) / capacity
    del warm_up, buffer
    samples = {OURS: {"values": [each]}, "raw": {"values": [workload.frame_bytes]}}
    limit = "raw x 1.02 + 16"
    samples[limit] = {"values": [_SHARE * workload.frame_bytes + _BYTES]}
    measure = f"memory, {workload.name}, full with {capacity:,} frames"
    return row(measure, "bytes/frame", OURS, samples, [Bar(limit, 1, at_most=True)])


def _resident_bytes() -> int:
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/smaps_rollup tells no Rss.")
