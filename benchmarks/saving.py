"""To files and back at what pace: a buffer's frames beside the same bytes by NumPy, other libraries, and the limits.

Before a clock starts, what was written last is gone and everything else is on the disk, so that nobody waits for
another one's bytes. Ours is on the disk when `save` returns; NumPy stands beside it with and without that. Files are
read twice over: out of the kernel's cache, and without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from measure import Bar, Contender, Scale, Timed, interleave, row
from numpy_peers import NumpyRing, copy_bandwidth
from saving_data import empty_buffer, full_buffer, num_pixel_frames
from saving_files import FreshFolder, forget, read_arrays, write_arrays, write_plainly
from saving_peers import Elsewhere
from workloads import FRAMES, W1, Workload

OURS = "replayfeed"
_SYNCED, _UNSYNCED, _CHECKED = "np.save, fsynced", "np.save, not fsynced", "np.save, fsynced, and zlib.crc32"
_LOADED, _LOADED_CHECKED = "np.load", "np.load and zlib.crc32"
_PLAIN, _COPY = "one file in pieces, fsynced", "memory copy"
_MEGABYTE = 1e6
# A call with gigabytes of pixels takes seconds.
_PIXELS_REPEATS = 3


def saving_save_w1(scale: Scale) -> list[dict[str, Any]]:
    return [_saving(W1, scale.w1_capacity, scale, limits=True)]


def saving_save_pixels(scale: Scale) -> list[dict[str, Any]]:
    return [_saving(FRAMES, num_pixel_frames(scale.num_frames), _fewer(scale), limits=False)]


def saving_restore_w1(scale: Scale) -> list[dict[str, Any]]:
    return _restoring(W1, scale.w1_capacity, scale)


def saving_restore_pixels(scale: Scale) -> list[dict[str, Any]]:
    return _restoring(FRAMES, num_pixel_frames(scale.num_frames), _fewer(scale))


def _saving(workload: Workload, capacity: int, scale: Scale, *, limits: bool) -> dict[str, Any]:
    """Ours beside NumPy and other libraries, with `limits` also beside what disk, checksum and memory take."""
    megabytes = capacity * workload.frame_bytes / _MEGABYTE
    with _folder() as folder, Elsewhere(workload, capacity, folder) as elsewhere:
        buffer, arrays = full_buffer(workload, capacity), NumpyRing(workload, capacity).arrays

        def writing(name: str, write: Callable[[pathlib.Path], Any]) -> Contender:
            fresh = FreshFolder(folder, name)
            return Contender(name, lambda: write(fresh.path), megabytes, prepare=fresh.renew)

        contenders: list[Timed] = [
            writing(OURS, buffer.save),
            writing(_SYNCED, lambda path: write_arrays(path, arrays, sync=True)),
            writing(_UNSYNCED, lambda path: write_arrays(path, arrays, sync=False)),
            *elsewhere.contenders("save"),
        ]
        if limits:
            source, target = copy_bandwidth(capacity * workload.frame_bytes)
            contenders += [
                writing(_CHECKED, lambda path: write_arrays(path, arrays, sync=True, check=True)),
                writing(_PLAIN, lambda path: write_plainly(path, source)),
                Contender(_COPY, lambda: np.copyto(target, source), megabytes),
            ]
        samples = interleave(contenders, scale)
    measure = f"save, {_told(workload, capacity)}"
    bars = [Bar(_SYNCED, 0.5), Bar(_UNSYNCED, 0.5, aim=True), *_at_least_as_fast(contenders)]
    return row(measure, "MB/s", OURS, samples, bars, not_measured=elsewhere.not_measured)


def _restoring(workload: Workload, capacity: int, scale: Scale) -> list[dict[str, Any]]:
    rows = []
    with _folder() as folder, Elsewhere(workload, capacity, folder) as elsewhere:
        files = _saved(workload, capacity, folder)
        for cold in (False, True):
            megabytes = capacity * workload.frame_bytes / _MEGABYTE
            contenders: list[Timed] = [
                files.restoring(megabytes, cold=cold),
                files.loading(_LOADED, megabytes, cold=cold, check=False),
                files.loading(_LOADED_CHECKED, megabytes, cold=cold, check=True),
                *(() if cold else elsewhere.contenders("load")),
            ]
            samples = interleave(contenders, scale)
            measure = f"restore into a new buffer, {_told(workload, capacity)}, {_CACHES[cold]}"
            bars = [Bar(_LOADED, 0.5), Bar(_LOADED_CHECKED, 1, aim=True), *_at_least_as_fast(contenders)]
            missing = {} if cold else elsewhere.not_measured
            rows.append(row(measure, "MB/s", OURS, samples, bars, not_measured=missing))
    return rows


_CACHES = {False: "files in the kernel's cache", True: "files not in the kernel's cache"}


@dataclasses.dataclass(frozen=True)
class _Saved:
    """Files of ours and of NumPy with the same frames, and where they are loaded to."""

    workload: Workload
    capacity: int
    ours: pathlib.Path
    numpy: pathlib.Path
    # What was loaded last: it is let go before the next clock starts.
    loaded: list[Any] = dataclasses.field(default_factory=list)

    def restoring(self, megabytes: float, *, cold: bool) -> Contender:
        def prepare() -> None:
            self.loaded.clear()
            self.loaded.append(empty_buffer(self.workload, self.capacity))
            self._forget_or_not(self.ours, cold=cold)

        return Contender(OURS, lambda: self.loaded[0].restore(self.ours), megabytes, prepare=prepare)

    def loading(self, name: str, megabytes: float, *, cold: bool, check: bool) -> Contender:
        def prepare() -> None:
            self.loaded.clear()
            self._forget_or_not(self.numpy, cold=cold)

        def load() -> None:
            self.loaded.extend(read_arrays(self.numpy, check=check))

        return Contender(name, load, megabytes, prepare=prepare)

    def _forget_or_not(self, folder: pathlib.Path, *, cold: bool) -> None:
        if cold:
            forget(folder)


def _saved(workload: Workload, capacity: int, folder: pathlib.Path) -> _Saved:
    saved = _Saved(workload, capacity, folder / "ours", folder / "numpy")
    full_buffer(workload, capacity).save(saved.ours)
    write_arrays(saved.numpy, NumpyRing(workload, capacity).arrays, sync=True)
    return saved


def _at_least_as_fast(contenders: Sequence[Timed]) -> list[Bar]:
    """Bars against the other libraries."""
    others = [one.name for one in contenders if one.name.startswith(("TF-Agents", "cpprb", "Reverb"))]
    return [Bar(name, 1, aim=True) for name in others]


def _fewer(scale: Scale) -> Scale:
    return dataclasses.replace(scale, repeats=min(scale.repeats, _PIXELS_REPEATS))


def _told(workload: Workload, capacity: int) -> str:
    return f"{workload.name}, {capacity:,} frames, {capacity * workload.frame_bytes / _MEGABYTE:,.0f} MB"


@contextlib.contextmanager
def _folder() -> Iterator[pathlib.Path]:
    """On the disk that holds temporary files."""
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)
