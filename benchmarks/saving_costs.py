"""What saving costs beside its pace: a second save, bytes on the disk, and adds that go on meanwhile."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from measure import Bar, Scale, interleave, row
from numpy_peers import NumpyRing
from saving_data import add_frames, full_buffer, num_pixel_frames
from saving_files import FreshFolder, bytes_by_file, write_arrays
from workloads import FRAMES, W1, Workload

from replayfeed.buffers import TFUniformReplayBuffer

_FIRST, _SECOND = "first save", "second save, after 1 % new frames"
_ALONE, _SAVING, _NUMPY_SAVING = "no save", "another thread saves", "another thread writes the same with np.save"
_REPEATS, _PIXELS_REPEATS = 7, 3
_PICTURES, _PICTURE = 5_000, (84, 84)
_MEGABYTE = 1e6


def saving_incremental(scale: Scale) -> list[dict[str, Any]]:
    """Each round saves a full buffer into a folder of its own, adds a hundredth, and saves again into the same."""
    num_new = max(1, scale.w1_capacity // 100)
    seconds: dict[str, list[float]] = {_FIRST: [], _SECOND: []}
    megabytes: dict[str, list[float]] = {_FIRST: [], _SECOND: []}
    with tempfile.TemporaryDirectory() as folder:
        buffer, fresh = full_buffer(W1, scale.w1_capacity), FreshFolder(folder, "saves")
        for round_index in range(min(scale.repeats, _REPEATS) + 1):
            fresh.renew()
            known: dict[int, int] = {}
            for name in (_FIRST, _SECOND):
                start = time.perf_counter()
                buffer.save(fresh.path)
                took = time.perf_counter() - start
                found = bytes_by_file(fresh.path)
                if round_index:
                    seconds[name].append(took)
                    megabytes[name].append(sum(found[one] for one in found.keys() - known.keys()) / _MEGABYTE)
                known = found
                add_frames(buffer, W1, num_new)
    told = f"full buffer of W1, {scale.w1_capacity:,} frames, then {num_new:,} new ones"
    bars = [Bar(_FIRST, 0.1, at_most=True)]
    return [
        row(f"time of a save, {told}", "s", _SECOND, _samples(seconds), bars),
        row(f"new bytes on the disk, {told}", "MB", _SECOND, _samples(megabytes), bars),
    ]


def saving_size(scale: Scale) -> list[dict[str, Any]]:
    """Pictures alone, as the bytes of a file follow the fill and not the capacity."""
    spec = tf.TensorSpec(_PICTURE, tf.uint8, "picture")
    rows = []
    for fill, limit, bound in ((1, "1 MB", 1.0), (_PICTURES, "the pictures' bytes", 1.01)):
        buffer = TFUniformReplayBuffer(spec, batch_size=1, max_length=_PICTURES)
        buffer.add_sequence(np.random.default_rng(0).integers(0, 256, (1, fill, *_PICTURE), np.uint8))
        with tempfile.TemporaryDirectory() as folder:
            buffer.save(folder)
            saved = sum(bytes_by_file(pathlib.Path(folder)).values()) / _MEGABYTE
        picture_megabytes = fill * _PICTURE[0] * _PICTURE[1] / _MEGABYTE
        samples = _samples({"replayfeed": [saved], limit: [1.0 if fill == 1 else picture_megabytes]})
        measure = f"bytes on the disk, {fill:,} of {_PICTURES:,} frames of 84x84 uint8"
        rows.append(row(measure, "MB", "replayfeed", samples, [Bar(limit, bound, at_most=True)]))
    return rows


def saving_adds_w1(scale: Scale) -> list[dict[str, Any]]:
    return _adding(W1, scale.w1_capacity, scale, _REPEATS)


def saving_adds_pixels(scale: Scale) -> list[dict[str, Any]]:
    return _adding(FRAMES, num_pixel_frames(scale.num_frames) // 2, scale, _PIXELS_REPEATS)


def _adding(workload: Workload, capacity: int, scale: Scale, most_repeats: int) -> list[dict[str, Any]]:
    """Frames a second of one thread while another one saves, and the longest that a single add took."""
    buffer, arrays = full_buffer(workload, capacity), NumpyRing(workload, capacity).arrays
    with tempfile.TemporaryDirectory() as folder:
        ours, numpys = FreshFolder(folder, "ours"), FreshFolder(folder, "numpy")
        contenders = [
            _Adding(_ALONE, buffer, workload, FreshFolder(folder, "nothing"), lambda: time.sleep(scale.window_s)),
            _Adding(_SAVING, buffer, workload, ours, lambda: buffer.save(ours.path)),
            _Adding(_NUMPY_SAVING, buffer, workload, numpys, lambda: write_arrays(numpys.path, arrays, sync=True)),
        ]
        samples = interleave(contenders, dataclasses.replace(scale, repeats=min(scale.repeats, most_repeats)))
    rates = {name: {"values": one["values"]} for name, one in samples.items()}
    # Without the first round, as all that is measured.
    longest = {one.name: {"values": one.longest_ms[1:]} for one in contenders}
    told = f"{workload.name}, {capacity:,} frames, one stream, frame after frame"
    return [
        row(
            f"add_batch while another thread saves, {told}",
            "frames/s",
            _SAVING,
            rates,
            [Bar(_ALONE, 0.5, aim=True), Bar(_NUMPY_SAVING, 1, aim=True)],
        ),
        row(f"longest add_batch while another thread saves, {told}", "ms", _SAVING, longest, []),
    ]


@dataclasses.dataclass(frozen=True)
class _Adding:
    """Adds for as long as something else goes on in another thread.

    Attributes:
      name: as the table calls it.
      buffer: full.
      workload: its fields.
      fresh: where the other thread may write; renewed beforehand.
      meanwhile: what the other thread does.
      longest_ms: for each window the longest time between two adds.
    """

    name: str
    buffer: TFUniformReplayBuffer
    workload: Workload
    fresh: FreshFolder
    meanwhile: Callable[[], Any]
    longest_ms: list[float] = dataclasses.field(default_factory=list)

    def window(self, window_s: float) -> dict[str, float]:
        """Frames a second, for as long as the other thread is busy, whatever `window_s` is."""
        self.fresh.renew()
        following = itertools.cycle([self.workload.frames(1, seed=seed) for seed in range(4)]).__next__
        num_adds, longest = 0, 0.0
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            other = executor.submit(self.meanwhile)
            start = last = time.perf_counter()
            while not other.done():
                self.buffer.add_batch(following())
                now = time.perf_counter()
                longest = max(longest, now - last)
                last = now
                num_adds += 1
            other.result()
        self.longest_ms.append(longest * 1e3)
        return {"values": num_adds / (last - start)}


def _samples(values: Mapping[str, list[float]]) -> dict[str, dict[str, Any]]:
    return {name: {"values": list(one)} for name, one in values.items()}
