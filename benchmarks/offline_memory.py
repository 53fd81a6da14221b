"""Peak of resident memory while offline data are loaded, written and checked, beyond the buffer that holds them.

Each in a process of its own; the data are made by another one. What TensorFlow allocates on
first use counts as well, only imports and the source itself do not.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_datasets  # noqa: F401 - an import is not the reader's memory
from measure import Bar, Scale, row
from offline_data import Offline, floats, pixels

from replayfeed.buffers import TFUniformReplayBuffer
from replayfeed.pipelines import fill, load_rlds
from replayfeed.pipelines.rlds_check import validate_rlds
from replayfeed.pipelines.rlds_write import write_rlds

_MEGABYTE = 1e6
_LIMIT = "300 MB"


def offline_memory_fill(scale: Scale) -> list[dict[str, Any]]:
    return [_filling(floats(scale))]


def offline_memory_fill_pixels(scale: Scale) -> list[dict[str, Any]]:
    return [_filling(pixels(scale))]


def offline_memory_write(scale: Scale) -> list[dict[str, Any]]:
    """From the folder into another one: reading is part of it."""
    data = pixels(scale)

    def write(path: str, folder: str) -> float:
        write_rlds(path, f"{folder}/copy", name="copy", progress=False)
        return 0

    return [_measured(f"write_rlds, {data.name}, {data.steps:,} steps", data, write)]


def offline_memory_validate(scale: Scale) -> list[dict[str, Any]]:
    data = pixels(scale)

    def check(path: str, folder: str) -> float:
        validate_rlds(path, progress=False)
        return 0

    return [_measured(f"validate_rlds, {data.name}, {data.steps:,} steps", data, check)]


def _filling(data: Offline) -> dict[str, Any]:
    def load(path: str, folder: str) -> float:
        episodes = load_rlds(path, layout="transition")
        buffer = TFUniformReplayBuffer(episodes.element_spec, batch_size=1, max_length=data.transitions)
        fill(buffer, episodes, progress=False)
        specs = tf.nest.flatten(episodes.element_spec)
        return data.transitions * sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)

    return _measured(f"fill of an in-process buffer, {data.name}, {data.steps:,} steps", data, load)


def _measured(measure: str, data: Offline, work: Callable[[str, str], float]) -> dict[str, Any]:
    """The row of what `work(path, folder)` takes at most, beyond the bytes that it says belong to a buffer."""
    with tempfile.TemporaryDirectory() as folder:
        maker = pathlib.Path(__file__).with_name("offline_data.py")
        sizes = (str(data.num_episodes), str(data.num_steps))
        subprocess.run([sys.executable, str(maker), data.name, *sizes, folder], check=True, capture_output=True)
        # Forgets the peak of the imports.
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
        own = work(f"{folder}/{data.name}", folder)
        peak = _status_bytes("VmHWM") - before
    samples = {"replayfeed": {"values": [(peak - own) / _MEGABYTE]}, _LIMIT: {"values": [300.0]}}
    note = f"the peak was {peak / _MEGABYTE:,.0f} MB, {own / _MEGABYTE:,.0f} MB of it the buffer's" if own else ""
    bars = [Bar(_LIMIT, 1, at_most=True)]
    return row(f"peak memory beyond the buffer, {measure}", "MB", "replayfeed", samples, bars, note)


def _status_bytes(name: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status tells no {name}.")
