"""Import times, in fresh processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from measure import Bar, Scale, row

_OURS, _TENSORFLOW = "tensorflow, then replayfeed.buffers", "tensorflow"
# Both in one process, so that what TensorFlow takes, seconds that differ from run to run, is the same in both.
_CODE = """
import time
start = time.perf_counter()
import tensorflow
tensorflow.TensorSpec
middle = time.perf_counter()
import replayfeed.buffers
print(middle - start, time.perf_counter() - start)
"""


def import_time(scale: Scale) -> list[dict[str, Any]]:
    _import_s()  # compiled files and the page cache
    tensorflow_s, both_s = zip(*(_import_s() for _ in range(scale.import_repeats)), strict=True)
    samples = {_OURS: {"values": list(both_s)}, _TENSORFLOW: {"values": list(tensorflow_s)}}
    bars = [Bar(_TENSORFLOW, 0.3, at_most=True, difference=True)]
    return [row("import replayfeed.buffers", "s", _OURS, samples, bars)]


def _import_s() -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    tensorflow_s, both_s = done.stdout.split()[-2:]
    return float(tensorflow_s), float(both_s)
