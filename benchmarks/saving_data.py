"""Our buffers that are saved, full or empty, and a process of its own that saves one.

python benchmarks/saving_data.py W1 1000000 folder
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
from workloads import FRAMES, W1, Workload, blocks

from replayfeed.buffers import TFUniformReplayBuffer

_WORKLOADS = {"W1": W1, "FRAMES": FRAMES}
_PIXEL_BYTES = 2_000_000_000
# So often they may be in memory: two buffers, NumPy's arrays, what NumPy loads, and files in the kernel's cache.
_COPIES = 6


def num_pixel_frames(most: int) -> int:
    """Single 84x84 frames of 2 GB, but not above `most`, nor more than this machine has memory for."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(most, int(min(_PIXEL_BYTES, available / _COPIES)) // FRAMES.frame_bytes)


def empty_buffer(workload: Workload, capacity: int) -> TFUniformReplayBuffer:
    return TFUniformReplayBuffer(workload.data_spec, batch_size=1, max_length=capacity)


def full_buffer(workload: Workload, capacity: int) -> TFUniformReplayBuffer:
    """`capacity` frames of one stream."""
    buffer = empty_buffer(workload, capacity)
    add_frames(buffer, workload, capacity)
    return buffer


def add_frames(buffer: TFUniformReplayBuffer, workload: Workload, num: int) -> None:
    for _, block in blocks(workload, num, max(1, 2**21 // workload.frame_bytes)):
        buffer.add_sequence({name: leaf[np.newaxis] for name, leaf in block.items()})


def save_elsewhere(workload: Workload, capacity: int, folder: pathlib.Path) -> None:
    """Saves a full buffer in another process, so that none of its memory is this one's."""
    (name,) = [name for name, one in _WORKLOADS.items() if one is workload]
    subprocess.run([sys.executable, __file__, name, str(capacity), str(folder)], check=True, capture_output=True)


def _main(name: str, capacity: str, folder: str) -> Any:
    workload = _WORKLOADS[name]
    return full_buffer(workload, int(capacity)).save(folder)


if __name__ == "__main__":
    _main(*sys.argv[1:])
