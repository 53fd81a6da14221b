"""Exports of tables on a server in another process: memory stays at a few draws, and nothing is left on the disk."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReplayServer, ReverbReplayBuffer, TableConfig
from replayfeed.pipelines.buffer_episodes import buffer_source
from replayfeed.pipelines.rlds_write import write_rlds

NUM_FRAMES, SIDE = 4_000, 168  # 84,672 bytes each: 339 MB
FLAG, NUMBER = tf.TensorSpec([], tf.bool), tf.TensorSpec([], tf.int64)
STEP = {
    "observation": tf.TensorSpec([SIDE, SIDE, 3], tf.uint8),
    "index": NUMBER,
    "is_first": FLAG,
    "is_last": FLAG,
    "is_terminal": FLAG,
}

READ = """
import os, resource, sys
from pathlib import Path
import numpy as np
import tensorflow as tf
from replayfeed.buffers import ReverbReplayBuffer
from replayfeed.pipelines.buffer_episodes import buffer_source

address, folder = sys.argv[1:]
flag, number = tf.TensorSpec([], tf.bool), tf.TensorSpec([], tf.int64)
pixels = tf.TensorSpec([168, 168, 3], tf.uint8)
spec = {"observation": pixels, "index": number, "is_first": flag, "is_last": flag, "is_terminal": flag}

def status_mb(name):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1]) / 1024

def num_files():
    paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(path) and os.readlink(path).startswith(folder) for path in paths)

def read(source):
    lengths, files = [], set()
    for episode in source.read(None):
        index, observation = episode.columns["index"], episode.columns["observation"]
        expected = (index[0] + np.arange(len(index))) % 251
        assert index[0] % 100 == 0 and (index == index[0] + np.arange(len(index))).all()
        assert (observation[:, 0, 0, 0] == expected).all() and (observation[:, -1, -1, -1] == expected).all()
        lengths.append(len(index))
        files.add((num_files(), len(os.listdir(folder))))
    return f"{len(lengths)} episodes of {set(lengths)}, files {files}, then {num_files()}"

Path("/proc/self/clear_refs").write_text("5")  # the peak counts anew
before = status_mb("VmRSS")
with ReverbReplayBuffer(spec, "frames", 1, address, timeout_s=100.0) as buffer:
    source = buffer_source(buffer, temporary_folder=folder)
    told = [read(source), int(status_mb("VmHWM") - before)]
    # A disk that gets full: one error, and the table is as it was.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000_000, limits[1]))
    try:
        next(iter(source.read(None)))
    except OSError as error:
        told.append(f"{error.errno} {num_files()} {error}")
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    reading = source.read(None)
    next(reading)
    told.append(num_files())
    del reading  # long before its end
    told.append(num_files())
with ReverbReplayBuffer(spec, "windows", 20, address, timeout_s=100.0) as buffer:
    told += [read(buffer_source(buffer, temporary_folder=folder)), int(status_mb("VmHWM") - before)]
print("\\n".join(map(str, told)))
"""


def fill(buffer: ReverbReplayBuffer, num_frames: int) -> None:
    """Episodes of 100 frames, each of one colour."""
    is_first, is_last = np.arange(100)[None] == 0, np.arange(100)[None] == 99
    for first in range(0, num_frames, 100):
        index = first + np.arange(100)[None]
        colour = (index % 251).astype(np.uint8)[..., None, None, None]
        frames = {
            "observation": np.broadcast_to(colour, (1, 100, SIDE, SIDE, 3)),
            "index": index,
            "is_first": is_first,
            "is_last": is_last,
            "is_terminal": is_last,
        }
        buffer.add_sequence(frames)
    buffer.flush()


def test_an_export_takes_less_memory_than_the_table_holds_and_leaves_no_file(run_python, tmp_path: pathlib.Path):
    """Of 339 MB of frames, and then of windows of 20 frames, a few of which are drawn at once.

    Measured are 140 and 200 MB; as a whole in memory, and 512 windows at once, they took 1,700 and 3,000.
    """
    pytest.importorskip("reverb")
    tables = [
        TableConfig("frames", STEP, NUM_FRAMES, scannable=True),
        TableConfig("windows", STEP, 1000, sequence_length=20, scannable=True),
    ]
    with ReplayServer(tables) as server:
        address = f"localhost:{server.port}"
        for table, length, num_frames in [("frames", 1, NUM_FRAMES), ("windows", 20, 300)]:
            with ReverbReplayBuffer(STEP, table, length, address, timeout_s=60.0) as buffer:
                fill(buffer, num_frames)
        told = run_python(READ, address, str(tmp_path)).splitlines()
    read_frames, peak_mb, full, begun, left, read_windows, both_peak_mb = told
    # A final frame makes no item of one frame. The file has no name, so that no listing of its folder has it.
    assert read_frames == "40 episodes of {99}, files {(1, 0)}, then 0"
    assert int(peak_mb) < 300
    assert full.startswith(
        f"27 0 [Errno 27] File too large: what a scan finds is kept in the temporary folder {str(tmp_path)!r} ("
    )
    assert (begun, left) == ("1", "0")
    # 25 MB stay in memory.
    assert read_windows == "3 episodes of {100}, files {(0, 0)}, then 0"
    assert int(both_peak_mb) < 450


def test_the_folder_of_a_temporary_file_is_looked_for_before_a_table_is_read(tmp_path: pathlib.Path):
    """That of a dataset, which `write_rlds` makes, is there in time."""
    pytest.importorskip("reverb")
    spec = {name: STEP[name] for name in ("is_first", "is_last", "is_terminal")} | {"observation": NUMBER}
    with ReverbReplayBuffer.local(spec, max_size=10, sequence_length=1, timeout_s=20.0) as buffer:
        last = np.array([[False, False, True]])
        flags = {"is_first": last[:, ::-1], "is_last": last, "is_terminal": last}
        buffer.add_sequence({"observation": np.arange(3)[None], **flags})
        with pytest.raises(FileNotFoundError, match="temporary_folder '.*gone' is no folder: make it, or leave it out"):
            next(iter(buffer_source(buffer, temporary_folder=tmp_path / "gone").read(None)))
        report = write_rlds(buffer, tmp_path / "new" / "folder" / "mine", name="mine", progress=False)
    assert report.steps == 2  # the final frame makes no item of one frame
