"""What a save survives: a process that is killed, a disk that is full, files that are damaged, missing or of others."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import TFPrioritizedReplayBuffer, TFUniformReplayBuffer

# Of the buffer whose process is killed: frame `i` holds `i` and 1,000 bytes that follow from it; 2 MB when it is full.
SPEC = {"value": tf.TensorSpec([], tf.int64), "bytes": tf.TensorSpec([1000], tf.uint8)}
CAPACITY, FRAMES_A_SAVE = 2000, 300

# Forks a process for each line that it reads, so that the packages are imported once; nothing of TensorFlow is used
# before the fork. A child saves in a loop what follows from the step, tells when a save is done, and is killed after so
# many times as long as its first save took as the line says, wherever it is then.
WORKER = """
import os, signal, sys, threading, time
import numpy as np
import tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer

folder, capacity, num = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def work(num_saves):
    spec = {"value": tf.TensorSpec([], tf.int64), "bytes": tf.TensorSpec([1000], tf.uint8)}
    buffer = TFUniformReplayBuffer(spec, 1, capacity, seed=0)
    step = 0
    if any(name.startswith("step-") for name in os.listdir(folder)):
        step = buffer.restore(folder).step + 1
    first, began = step, time.monotonic()
    while True:
        values = np.arange(step * num, (step + 1) * num)
        content = np.repeat(values[None, :, None] % 251, 1000, 2).astype(np.uint8)
        buffer.add_sequence({"value": values[None], "bytes": content})
        buffer.save(folder, step=step, keep_last=3)
        # One write to a pipe is whole or not there; with PYTHONUNBUFFERED set `print` writes a line in parts.
        os.write(1, f"saved {step}\\n".encode())
        if step == first:
            seconds = num_saves * (time.monotonic() - began)
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        step += 1

print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        work(float(line))
    print("gone", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_saves_survive_kill_9_at_50_random_moments(tmp_path):
    """FR-029: The last complete save always loads, with what it held; what was not complete is named, and removed."""
    rng = np.random.default_rng(0)
    command = [sys.executable, "-c", WORKER, str(tmp_path), str(CAPACITY), str(FRAMES_A_SAVE)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdin is not None and worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        done, num_partial = -1, 0
        for number in range(50):
            worker.stdin.write(f"{rng.uniform(0, 5)}\n")
            worker.stdin.flush()
            while (words := worker.stdout.readline().split())[0] == "saved":
                done = int(words[1])
            assert words == ["gone", str(-signal.SIGKILL)]
            num_partial += check_folder(tmp_path, done, all_saves=number % 7 == 0)
        worker.stdin.close()
    assert done >= 49 and num_partial > 5


def check_folder(folder: Path, done: int, *, all_saves: bool) -> int:
    """The newest save in it loads, and is at least that of step `done`; returns how many are partial."""
    if not any(path.name.startswith("step-") for path in folder.iterdir()):
        assert done == -1
        return 0
    buffer = TFUniformReplayBuffer(SPEC, 1, CAPACITY, seed=0)
    report = buffer.restore(folder)
    assert report.step >= done
    check_contents(buffer, report.step)
    partial = [path.name for path in folder.iterdir() if path.name.startswith(".save.writing-")]
    for name in partial:
        assert any(told.startswith(name) for told in report.skipped)
    for path in folder.glob("step-*") if all_saves else []:
        if not any(told.startswith(path.name) for told in report.skipped):
            step = buffer.restore(path).step
            check_contents(buffer, step)
    assert len(partial) <= 1
    return len(partial)


def check_contents(buffer: TFUniformReplayBuffer, step: int) -> None:
    stop = (step + 1) * FRAMES_A_SAVE
    values = np.arange(max(0, stop - CAPACITY), stop)
    held = buffer.gather_all()
    np.testing.assert_array_equal(held["value"], values[None])
    np.testing.assert_array_equal(held["bytes"], np.repeat(values[None, :, None] % 251, 1000, 2))


FULL_DISK = """
import os, resource, signal, sys
import numpy as np
import tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer

folder = sys.argv[1]
buffer = TFUniformReplayBuffer(tf.TensorSpec([1000], tf.uint8), 1, 4000)
buffer.add_sequence(np.full([1, 100, 1000], 1, np.uint8))
buffer.save(folder, step=1)
buffer.add_sequence(np.full([1, 3000, 1000], 2, np.uint8))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
try:
    buffer.save(folder, step=2, keep_last=1)
except OSError as error:
    print("OSError", error.errno)
print(sorted(os.listdir(folder)))
# Adds do not wait for what has failed, and what was held is held.
buffer.add_sequence(np.full([1, 3000, 1000], 3, np.uint8))
print(np.unique(buffer.gather_all().numpy(), return_counts=True)[1].tolist())
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
print(buffer.save(folder, step=3).step, sorted(os.listdir(folder)))
"""


def test_a_full_disk_is_an_error_that_leaves_older_saves_and_nothing_else(tmp_path):
    """No file may get larger than 1 MB, as if the disk were full then (27: EFBIG); later there is room."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=400).stdout.splitlines()
    assert told == [
        "OSError 27",
        "['step-000000000001']",
        "[1000000, 3000000]",
        "3 ['step-000000000001', 'step-000000000003']",
    ]
    other = TFUniformReplayBuffer(tf.TensorSpec([1000], tf.uint8), 1, 4000)
    assert other.restore(tmp_path, step=1).frames == 100
    assert other.restore(tmp_path).frames == 4000


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    buffer = build()
    add(buffer, 0, 3)
    (tmp_path / "file").write_text("not a folder")
    before = everything(buffer)
    with pytest.raises(OSError):
        buffer.save(tmp_path / "file")
    assert buffer.save(tmp_path / "new" / "and" / "deep").frames == 6
    assert everything(buffer) == before


# Damage to files. The buffers are small; each file's name tells what it is.

ITEMS_SPEC = {
    "a": tf.TensorSpec([], tf.int64),
    "b": tf.TensorSpec([2], tf.float32),
    "c": tf.TensorSpec([2], tf.float32),
}


def build() -> TFPrioritizedReplayBuffer:
    """Of two streams that go apart."""
    buffer = TFPrioritizedReplayBuffer(ITEMS_SPEC, 2, 4, seed=3)
    buffer.let_streams_part()
    return buffer


def add(buffer: Any, first: int, num: int) -> None:
    values = first + np.arange(2 * num).reshape(num, 2).T
    pairs = np.stack([values, -values], -1).astype(np.float32)
    buffer.add_sequence({"a": values, "b": pairs, "c": 10 * pairs}, priorities=values % 5 + 0.5)


def everything(buffer: Any) -> Any:
    """All that can be seen, and the next draws, made by another buffer of the same state.

    What was drawn is not counted here: a dataset goes on drawing ahead.
    """
    state = buffer.get_state()
    twin = build()
    twin.set_state(state)
    drawn = plain([twin.sample(5) for _ in range(2)]) if len(twin) else []
    del state["values"]["usage"], state["arrays"]["sampled"]
    stats = dataclasses.replace(buffer.stats(), host="", sampled=0, replay_ratio=None)
    return plain(buffer.gather_all()), drawn, stats, repr(state)


def plain(nest: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), nest)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A save of streams that go apart, of 7 frames in two segments, one of them with ids that are no range."""
    buffer = build()
    folder = tmp_path_factory.mktemp("saved")
    add(buffer, 0, 3)
    buffer.save(folder, step=1)
    buffer.add_sequence(
        {"a": [[50]], "b": np.full([1, 1, 2], 51, np.float32), "c": np.full([1, 1, 2], 52, np.float32)}, streams=[1]
    )
    buffer.sample(3, 2)
    return Path(buffer.save(folder, step=2).path)


@pytest.fixture(params=["empty", "with contents"])
def target(request) -> Any:
    """What is restored into: a buffer that must stay as it is, and what can be seen of it."""
    buffer = build()
    if request.param != "empty":
        add(buffer, 900, 6)
        buffer.sample(2)
        # A dataset that lives on.
        buffer.dataset = iter(buffer.as_dataset(2))
        next(buffer.dataset)
    return buffer


def kinds_of_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damaged(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / saved.name))


def assert_refused(target: Any, path: Path, match: str, **arguments: Any) -> str:
    """Nothing of the buffer has changed, and its dataset goes on."""
    before = everything(target)
    with pytest.raises((ValueError, FileNotFoundError), match=match) as error:
        target.restore(path, **arguments)
    assert everything(target) == before
    if hasattr(target, "dataset"):
        items, info = next(target.dataset)
        assert (items["a"].numpy() >= 900).all()
    return str(error.value)


def test_every_kind_of_file_is_there_to_be_damaged(saved):
    kinds = {
        name.split(".", 1)[0].split("-")[0] + "." + ".".join(name.split(".")[-2:]) for name in kinds_of_files(saved)
    }
    assert kinds >= {"manifest.manifest.json", "frames.a.npy", "frames.words.npy", "frames.arrivals.npy"}
    assert any(name.startswith("array.") for name in kinds_of_files(saved))
    assert any(name.endswith("ids.npy") for name in kinds_of_files(saved))


@pytest.mark.parametrize(
    "damage", ["a bit of the end", "a bit of the beginning", "cut off", "longer", "missing", "empty"]
)
def test_any_damaged_file_is_named_and_nothing_is_loaded(damage, saved, target, tmp_path):
    names = kinds_of_files(saved)
    assert len(names) > 12
    for name in names:
        folder = damaged(saved, tmp_path)
        file = folder / name
        content = file.read_bytes()
        if damage.startswith("a bit"):
            place = len(content) - 3 if damage.endswith("end") else 40
            changed = content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
        else:
            changed = {"cut off": content[:-1], "longer": content + b"\0", "empty": b"", "missing": b""}[damage]
        file.unlink()
        if damage != "missing":
            file.write_bytes(changed)
        message = assert_refused(target, folder, "damaged|missing|bytes, expected|no complete save|was cut off")
        assert name in message or (name, damage) == ("manifest.json", "missing")
        shutil.rmtree(folder)


@pytest.mark.parametrize("fields", [("b", "b"), ("b", "c"), ("words", "arrivals")])
def test_files_that_took_each_others_place_are_found(fields, saved, target, tmp_path):
    """Files of two segments of the same size, or of two fields of one: all are sound but for their names."""
    folder = damaged(saved, tmp_path)
    names = kinds_of_files(folder)
    starts = ("frames-000000", "frames-000001" if fields[0] == fields[1] else "frames-000000")
    first, second = (
        next(name for name in names if name.startswith(start) and name.endswith(f".{field}.npy"))
        for start, field in zip(starts, fields, strict=True)
    )
    contents = [(folder / name).read_bytes() for name in (first, second)]
    for name, content in zip((second, first), contents, strict=True):
        (folder / name).unlink()
        (folder / name).write_bytes(content)
    message = assert_refused(target, folder, "is damaged|bytes, expected")
    assert first in message or second in message


def test_a_damaged_newest_save_does_not_hide_an_older_one(saved, target, tmp_path):
    """`restore` of the folder says what is wrong with the newest; that of step 1 loads."""
    folder = Path(shutil.copytree(saved.parent, tmp_path / "copy"))
    newest = folder / saved.name
    file = next(path for path in newest.iterdir() if path.name.startswith("array."))
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-1] + b"\xff")
    assert file.name in assert_refused(target, folder, "is damaged")
    assert target.restore(folder, step=1).frames == 6
    # Without its manifest it is no save, and is skipped.
    (newest / "manifest.json").unlink()
    report = target.restore(folder)
    assert (report.step, len(report.skipped)) == (1, 1)
    assert newest.name in report.skipped[0]


def test_what_is_no_save_is_refused_by_name(target, tmp_path):
    assert_refused(target, tmp_path / "nowhere", "nowhere")
    (tmp_path / "empty").mkdir()
    assert_refused(target, tmp_path / "empty", "no complete save")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "manifest.json").write_text('{"name": "of somebody else"}')
    assert_refused(target, tmp_path / "text", "is not of this package")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "manifest.json").write_text("[1, 2]")
    assert_refused(target, tmp_path / "list", "is not of this package")
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "manifest.json").write_bytes(b"\xff\xfe\x00")
    assert_refused(target, tmp_path / "bytes", "damaged, or none of ours")


def test_other_things_in_the_folder_are_told_and_skipped(saved, tmp_path):
    folder = Path(shutil.copytree(saved.parent, tmp_path / "copy"))
    (folder / "step-000000000007").write_text("a file")
    (folder / "step-000000000008").mkdir()
    (folder / "step-000000000009" / "manifest.json").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "step-12").mkdir()
    (folder / ".save.writing-abc").mkdir()
    buffer = TFPrioritizedReplayBuffer(ITEMS_SPEC, 2, 4, seed=3)
    report = buffer.restore(folder)
    assert report.step == 2
    assert [told.split(":")[0] for told in report.skipped] == [
        ".save.writing-abc",
        "step-000000000007",
        "step-000000000008",
        "step-000000000009",
    ]
    assert buffer.save(folder, step=8).frames == 7
    assert not (folder / ".save.writing-abc").exists()
    assert (folder / "notes.txt").read_text() == "mine"
    assert build().restore(folder).step == 8


def test_a_newer_format_is_refused_by_its_number(saved, target, tmp_path):
    folder = damaged(saved, tmp_path)
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    assert '"version": 1,' in text
    manifest.unlink()
    manifest.write_text(text.replace('"version": 1,', '"version": 2,'))
    assert_refused(target, folder, r"was written by a later replayfeed: it has format 2, and this one reads up to 1")
    state = {**target.get_state(), "version": 2}
    with pytest.raises(ValueError, match="made by a later replayfeed: it has version 2"):
        target.set_state(state)


def test_another_class_is_refused_by_both_names(saved):
    buffer = TFUniformReplayBuffer(ITEMS_SPEC, 2, 4, seed=3)
    message = "a TFPrioritizedReplayBuffer was saved, and this is a TFUniformReplayBuffer"
    for on_mismatch in ("error", "resize", "keep"):
        with pytest.raises(ValueError, match=message):
            buffer.restore(saved, on_mismatch)
    assert len(buffer) == 0


INT, FLOATS = tf.TensorSpec([], tf.int64), tf.TensorSpec([2], tf.float32)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            {"a": INT, "b": FLOATS, "c": tf.TensorSpec([3], tf.float32)},
            ["field 'c': stored [2] float32, here [3] float32"],
        ),
        ({"a": INT, "b": FLOATS, "c": tf.TensorSpec([2], tf.int32)}, ["field 'c': stored [2] float32, here [2] int32"]),
        (
            {"a": INT, "b": FLOATS, "d": FLOATS},
            ["field 'c' is in the save only: [2] float32", "field 'd' is in this buffer only: [2] float32"],
        ),
        ({"a": INT, "b": FLOATS}, ["field 'c' is in the save only: [2] float32"]),
        (
            {"a": INT, "b": FLOATS, "c": FLOATS, "is_last": tf.TensorSpec([], tf.bool)},
            ["field 'is_last' is in this buffer only: [] bool"],
        ),
        (
            {"a": tf.TensorSpec([], tf.int32), "b": {"c": FLOATS}, "c": FLOATS},
            [
                "field 'a': stored [] int64, here [] int32",
                "field 'b' is in the save only",
                "field 'b/c' is in this buffer",
            ],
        ),
        (INT, ["field 'a' is in the save only", "field 'b' is", "field 'c' is"]),
    ],
)
def test_a_spec_that_differs_is_refused_by_all_fields_that_do(spec, told, saved):
    buffer = TFPrioritizedReplayBuffer(spec, 2, 4, seed=3)
    state = build().get_state()
    for on_mismatch in ("error", "resize", "keep"):
        for call in (lambda: buffer.restore(saved, on_mismatch), lambda: buffer.set_state(state, on_mismatch)):  # noqa: B023
            with pytest.raises(ValueError, match="data_spec differs") as error:
                call()
            assert all(each in str(error.value) for each in told)
    assert buffer.stats() == TFPrioritizedReplayBuffer(spec, 2, 4, seed=3).stats()


def test_settings_that_differ_are_all_told_with_both_values(saved, target):
    others = TFPrioritizedReplayBuffer(ITEMS_SPEC, 1, 3, alpha=0.5, beta=lambda step: 0.4, seed=None, initial="ever")
    with pytest.raises(ValueError, match="settings differ") as error:
        others.restore(saved)
    for each in (
        "batch_size: stored 2, here 1",
        "max_length: stored 4, here 3",
        "alpha: stored 0.6, here 0.5",
        "seed: stored 3, here None",
        "initial: stored 'max', here 'ever'",
        "on_mismatch='keep'",
    ):
        assert each in str(error.value)
    with pytest.raises(
        ValueError, match=r"'resize' cannot change these: batch_size: stored 2, here 1; alpha: stored 0.6"
    ):
        others.restore(saved, "resize")
    with pytest.raises(ValueError, match="on_mismatch must be 'error', 'resize' or 'keep', got 'force'"):
        target.restore(saved, "force")


def test_arguments_that_cannot_be_are_refused(tmp_path):
    buffer = build()
    for arguments, message in [
        ({"step": -1}, "step must be at least 0, got -1"),
        ({"keep_last": 0}, "keep_last"),
        ({"keep_every": 2}, "keep_every says which saves keep_last does not remove"),
        ({"keep_last": 1, "keep_every": 0}, "keep_every"),
    ]:
        with pytest.raises(ValueError, match=message):
            buffer.save(tmp_path, **arguments)
    for name in ("step", "keep_last"):
        with pytest.raises(TypeError, match=name):
            buffer.save(tmp_path, **{name: 1.5})
    for path in ("s3://bucket/run", "gs://bucket/run"):
        with pytest.raises(ValueError, match="path must be of this machine"):
            buffer.save(path)
    with pytest.raises(ValueError, match="give step too"):
        buffer.restore(tmp_path, cut_back=True)
    assert list(tmp_path.iterdir()) == []
    buffer.close()
    for call in (lambda: buffer.save(tmp_path), buffer.get_state, buffer.serialize):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_bytes_and_states_that_are_damaged_are_refused(target):
    """Each third byte of what `serialize` gave, one bit of it changed: what is taken is what was given."""
    one = build()
    add(one, 0, 3)
    one.sample(2)
    content = one.serialize()
    rng = np.random.default_rng(0)
    other = build()
    for place in range(0, len(content), 29):
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        try:
            other.deserialize(bytes(changed))
        except ValueError:
            continue
        assert repr(other.gather_all()) == repr(one.gather_all())
    before = everything(target)
    for cut in (0, 1, 100, len(content) - 1):
        with pytest.raises(ValueError, match="no state of a buffer"):
            target.deserialize(content[:cut])
    for wrong in ({}, {"format": "mine"}, [1], None):
        with pytest.raises(ValueError, match=r"expected what get_state\(\) gave"):
            target.set_state(wrong)
    assert everything(target) == before


def test_a_state_that_lacks_a_part_changes_nothing(target):
    """Every value and array of it, one after the other."""
    one = build()
    add(one, 0, 3)
    one.sample(2)
    one.delete([1])
    state = one.get_state()
    before = everything(target)
    for path in inner_paths(state):
        lacking = copy.deepcopy(state)
        holder = lacking
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]
        try:
            target.set_state(lacking)
        except ValueError:
            assert everything(target) == before, path
            continue
        # No part of what is held: moments to go back to, settings that are None, a warning that is due, and in which
        # order draws are made.
        assert path in {
            ("marks",),
            ("values", "loose_flag"),
            ("settings", "eligible_fn"),
            ("settings", "end_of_episode_fn"),
            ("arrays", "window 0 order"),
        }
        target = build()
        before = everything(target)


def inner_paths(state: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(state, dict):
        for key, inner in state.items():
            yield (*path, key)
            yield from inner_paths(inner, (*path, key))
