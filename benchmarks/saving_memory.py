"""Resident memory beyond the buffer while it is saved and restored, and after rounds of both.

In processes of their own, after a small buffer went through the same, so that what is allocated once does not count.
Files that are restored were written by another process.
"""

from __future__ import annotations

import concurrent.futures
import gc
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

from measure import Bar, Scale, row
from saving_data import add_frames, empty_buffer, full_buffer, num_pixel_frames, save_elsewhere
from workloads import FRAMES, W1, Workload

_OURS, _LIMIT, _BEFORE = "replayfeed", "a tenth of the buffer", "before"
_SMALL, _ROUNDS = 1_000, 3
_MEGABYTE = 1e6


def saving_memory_save_w1(scale: Scale) -> list[dict[str, Any]]:
    return [_saving(W1, scale.w1_capacity, adding=False)]


def saving_memory_save_pixels(scale: Scale) -> list[dict[str, Any]]:
    return [_saving(FRAMES, num_pixel_frames(scale.num_frames), adding=False)]


def saving_memory_adding_w1(scale: Scale) -> list[dict[str, Any]]:
    return [_saving(W1, scale.w1_capacity, adding=True)]


def saving_memory_adding_pixels(scale: Scale) -> list[dict[str, Any]]:
    return [_saving(FRAMES, num_pixel_frames(scale.num_frames), adding=True)]


def saving_memory_restore_w1(scale: Scale) -> list[dict[str, Any]]:
    return [_restoring(W1, scale.w1_capacity)]


def saving_memory_restore_pixels(scale: Scale) -> list[dict[str, Any]]:
    return [_restoring(FRAMES, num_pixel_frames(scale.num_frames))]


def saving_rounds(scale: Scale) -> list[dict[str, Any]]:
    """Into the same buffer again and again, and into a new one that takes its place."""
    rows, size = [], scale.w1_capacity * W1.frame_bytes / _MEGABYTE
    for renewed, told in ((False, "into the same buffer"), (True, "into a new buffer each time")):
        buffer = full_buffer(W1, scale.w1_capacity)
        _warm_up(W1)
        before, num_frames = _status_bytes("VmRSS"), int(buffer.num_frames())
        for _ in range(_ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                buffer.save(folder)
                if renewed:
                    del buffer
                    buffer = empty_buffer(W1, scale.w1_capacity)
                buffer.restore(folder)
        if int(buffer.num_frames()) != num_frames:
            raise RuntimeError(f"{num_frames} frames were saved, and {int(buffer.num_frames())} came back.")
        after = _status_bytes("VmRSS")
        samples = {_OURS: {"values": [after / _MEGABYTE]}, _BEFORE: {"values": [before / _MEGABYTE]}}
        measure = f"resident memory after {_ROUNDS} saves and restores {told}, W1, {scale.w1_capacity:,} frames"
        note = f"{(after - before) / _MEGABYTE:.1f} MB more than before, the buffer is {size:,.0f} MB"
        rows.append(row(measure, "MB", _OURS, samples, [Bar(_BEFORE, 1.05, at_most=True)], note))
        del buffer
    return rows


def _saving(workload: Workload, capacity: int, *, adding: bool) -> dict[str, Any]:
    buffer = full_buffer(workload, capacity)
    _warm_up(workload)
    with tempfile.TemporaryDirectory() as folder:
        peak = _peak_beyond(lambda: _save(buffer, workload, folder, adding=adding))
    meanwhile = " while another thread adds" if adding else ""
    return _row(f"peak memory beyond the buffer, save{meanwhile}", workload, capacity, peak)


def _save(buffer: Any, workload: Workload, folder: str, *, adding: bool) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        saving = executor.submit(buffer.save, folder)
        while adding and not saving.done():
            # From the oldest frame on, as fast as it goes: what is overwritten before it was written must be copied.
            add_frames(buffer, workload, 200)
        saving.result()


def _restoring(workload: Workload, capacity: int) -> dict[str, Any]:
    _warm_up(workload)
    # What a full buffer takes: its frames, and what it keeps of each of them.
    before = _status_bytes("VmRSS")
    filled = full_buffer(workload, capacity)
    own = _status_bytes("VmRSS") - before
    del filled
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        save_elsewhere(workload, capacity, pathlib.Path(folder))
        buffer = empty_buffer(workload, capacity)
        peak = _peak_beyond(lambda: buffer.restore(folder)) - own
    return _row("peak memory beyond the buffer, restore", workload, capacity, peak)


def _warm_up(workload: Workload) -> None:
    with tempfile.TemporaryDirectory() as folder:
        full_buffer(workload, _SMALL).save(folder)
        empty_buffer(workload, _SMALL).restore(folder)


def _row(measure: str, workload: Workload, capacity: int, peak: float) -> dict[str, Any]:
    size = capacity * workload.frame_bytes
    samples = {_OURS: {"values": [peak / _MEGABYTE]}, _LIMIT: {"values": [size / 10 / _MEGABYTE]}}
    told = f"{workload.name}, {capacity:,} frames, {size / _MEGABYTE:,.0f} MB"
    return row(f"{measure}, {told}", "MB", _OURS, samples, [Bar(_LIMIT, 1, at_most=True)])


def _peak_beyond(work: Callable[[], Any]) -> float:
    """Bytes of resident memory at most, above what there was before."""
    # Forgets the peak until now.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    work()
    return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status tells no {name}.")
