"""Import times, each in a fresh process, in turn."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from measure import Bar, Scale, row

_OURS, _TENSORFLOW = "replayfeed.buffers", "tensorflow"
_CODE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def import_time(scale: Scale) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {_OURS: [], _TENSORFLOW: []}
    for name in seconds:  # compiled files and the page cache
        _import_s(name)
    for round_index in range(scale.import_repeats):
        for name in sorted(seconds, reverse=bool(round_index % 2)):
            seconds[name].append(_import_s(name))
    samples = {name: {"values": values} for name, values in seconds.items()}
    bars = [Bar(_TENSORFLOW, 0.3, at_most=True, difference=True)]
    return [row("import replayfeed.buffers", "s", _OURS, samples, bars)]


def _import_s(name: str) -> float:
    done = subprocess.run([sys.executable, "-c", _CODE.format(name)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
