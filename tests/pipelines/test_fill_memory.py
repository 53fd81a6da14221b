"""What a load costs in memory: nothing that grows with the dataset."""

import json
import subprocess
import sys

# 500 episodes of 2 MB through a buffer of 2,000 frames (20 MB). Resident memory after each fiftieth one.
LOAD = """
import json, resource
import numpy as np, tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer
from replayfeed.pipelines import fill, load_rlds
steps = tf.range(201)
dataset = tf.data.Dataset.range(500).map(
    lambda e: {"steps": {"observation": tf.fill([201, 2500], tf.cast(e, tf.float32)), "is_terminal": steps == 200}}
)
episodes = load_rlds(dataset, layout="trajectory")
buffer = TFUniformReplayBuffer(episodes.element_spec, 1, 2000)
write, resident = buffer.add_sequence, []

def measured(items, **rest):
    ids = write(items, **rest)
    if ids.size and ids[0, -1] // 201 % 50 == 49:
        with open("/proc/self/statm") as file:
            resident.append(int(file.read().split()[1]) * resource.getpagesize())
    return ids

buffer.add_sequence = measured
report = fill(buffer, episodes, progress=False)
assert report.frames == 100_500
print(json.dumps(resident))
"""


def test_memory_stays_level_over_fifty_times_what_the_buffer_holds():
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    resident = json.loads(done.stdout)
    assert len(resident) == 10
    # 1 GB has gone through. A few episodes are in flight, of 2 MB each.
    assert max(resident) - resident[0] < 20e6, resident
