"""A restored ring is the one that was saved: the same further history gives the same on both, for ever after.

Most tests are differential: a buffer goes on, and beside it one that was restored from its save does the same. All that
a caller can see is compared after every step.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    EmptyBufferError,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Uniform,
    Window,
)

VALUE = tf.TensorSpec([], tf.int64)
SPECS = {
    "ends are told": {"value": VALUE, "extra": (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.bool))},
    "is_last": {"value": VALUE, "extra": (tf.TensorSpec([2], tf.float32),), "is_last": tf.TensorSpec([], tf.bool)},
}


class Drawer:
    """An `ItemSampler` of a caller's: any key, by chance, among its keys in their order."""

    def __init__(self) -> None:
        self.keys: dict[int, float] = {}

    def on_add(self, keys: Any, priorities: Any) -> None:
        self.keys.update(zip(keys.tolist(), priorities.tolist(), strict=True))

    def on_evict(self, keys: Any) -> None:
        for key in keys.tolist():
            del self.keys[key]

    def update(self, keys: Any, priorities: Any) -> None:
        self.on_add(keys, priorities)

    def draw(self, num: int, rng: np.random.Generator) -> Any:
        keys = np.array(sorted(self.keys))
        heavy = np.array([1.0 + self.keys[key] for key in keys.tolist()])
        chances = heavy / heavy.sum()
        places = rng.choice(len(keys), num, p=chances)
        return keys[places], chances[places]


def plain(nest: Any) -> Any:
    """Tensors as lists; ragged ones too."""
    return tf.nest.map_structure(
        lambda leaf: leaf.to_list() if isinstance(leaf, tf.RaggedTensor) else np.asarray(leaf).tolist(), nest
    )


def outcome(call: Any) -> Any:
    """What a call gives, or how it fails, as plain values."""
    try:
        return plain(call())
    except (EmptyBufferError, ValueError, tf.errors.InvalidArgumentError) as error:
        return type(error).__name__, str(error)


def stats_of(buffer: Any) -> Any:
    stats = dataclasses.replace(buffer.stats(), host="")
    # Which kind of window was drawn first does not matter.
    return dataclasses.replace(stats, windows=tuple(sorted(stats.windows, key=repr)))


def items_of(kind: str, values: np.ndarray, ends: np.ndarray) -> Any:
    """Leaves `[B, T, ...]`, all of which follow from the value."""
    pair = np.stack([values, -values], -1).astype(np.float32)
    if kind == "is_last":
        return {"value": values, "extra": (pair,), "is_last": ends}
    return {"value": values, "extra": (pair, values % 3 == 0)}


@dataclasses.dataclass
class Run:
    """A buffer, the spec that it has, and the ids that it gave."""

    buffer: Any
    kind: str
    ids: list[int] = dataclasses.field(default_factory=list)

    def do(self, step: tuple[Any, ...]) -> Any:
        """One step of a history; what it gives."""
        name, *arguments = step
        if name == "add":
            return self._add(*arguments)
        if name == "end":
            return outcome(lambda: self.buffer.end_stream(*arguments))
        if name == "sample":
            num, window = arguments
            return outcome(lambda: self.buffer.sample(num, window=window))
        if name in ("delete", "update"):
            # Ids counted back from the newest.
            keys = np.array([max([-1, *self.ids]) - back for back in arguments[0]], np.int64)
            if name == "delete":
                return outcome(lambda: self.buffer.delete(keys))
            return outcome(lambda: self.buffer.update_priorities(keys, np.array(arguments[1])))
        assert name == "clear"
        return outcome(self.buffer.clear)

    def _add(self, values: Any, ends: Any, priorities: Any, streams: Any, as_sequence: bool) -> Any:
        items = items_of(self.kind, values, ends)
        told = {} if self.kind == "is_last" else {"end_of_episode": ends}
        if priorities is not None:
            told["priorities"] = priorities
        named = {} if streams is None else {"streams": streams}
        if as_sequence:
            ids = [self.buffer.add_sequence(items, **told, **named)]
        else:
            ids = [
                self.buffer.add_batch(
                    tf.nest.map_structure(lambda leaf, t=t: leaf[:, t], items),
                    **{key: each[:, t] for key, each in told.items()},
                    **named,
                )
                for t in range(values.shape[1])
            ]
        self.ids += np.concatenate(ids, None).tolist()
        return self.ids

    def everything(self) -> Any:
        """All that can be seen without drawing."""
        buffer = self.buffer
        return (
            outcome(buffer.gather_all),
            [outcome(lambda each=each: buffer.get([each])) for each in self.ids[-60:]],
            stats_of(buffer),
            len(buffer),
            int(buffer.num_frames()),
        )


def windows(max_length: int) -> st.SearchStrategy[Window | None]:
    sizes = {"num_steps": st.integers(1, min(3, max_length)), "burn_in": st.integers(0, 2), "stride": st.integers(1, 3)}
    return (
        st.none()
        | st.builds(Window, **sizes)
        | st.builds(Window, **sizes, short=st.just("pad"), pad_unfinished=st.booleans())
        | st.builds(Window, **sizes, boundaries=st.just("ignore"))
    )


@dataclasses.dataclass
class Case:
    """A buffer to be built, as often as one likes, and what happens to it before and after a save."""

    build: Any
    text: str
    kind: str
    before: list[tuple[Any, ...]]
    after: list[tuple[Any, ...]]

    def __repr__(self) -> str:
        return f"{self.text}\nbefore: {self.before}\nafter: {self.after}"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(sorted(SPECS)))
    num_streams, max_length = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    arguments: dict[str, Any] = {
        "seed": draw(st.integers(0, 99)),
        "min_size_to_sample": draw(st.sampled_from([1, 1, 3])) if max_length > 2 else 1,
        "final_frame": draw(st.sampled_from(["auto", "ordinary"])),
    }
    if draw(st.integers(0, 3)) == 0:
        arguments["eligible_fn"] = lambda items: np.asarray(items["value"]) % 4 != 0
    is_prioritized = draw(st.booleans())
    if is_prioritized:
        arguments |= {
            "alpha": draw(st.sampled_from([0.0, 0.5, 1.0])),
            "beta": draw(st.sampled_from([0.4, 1.0]) | st.just("schedule")),
            "weight_norm": draw(st.sampled_from(["batch", "buffer", None])),
            "initial": draw(st.sampled_from(["max", "ever", 2.5])),
            "variant": draw(st.sampled_from(["proportional", "rank"])),
            "stratified": draw(st.booleans()),
        }
    else:
        arguments |= {
            "sampler": draw(
                st.sampled_from([None, None, Uniform(), Fifo(), Lifo(), MinHeap(), MaxHeap(), Drawer]),
            ),
            "max_times_sampled": draw(st.sampled_from([0, 0, 1, 3])),
        }
        if arguments["sampler"] in (None, Uniform(), Drawer):
            arguments["newest_fraction"] = draw(st.sampled_from([0.0, 0.0, 0.4]))
    parted = draw(st.integers(0, 2)) == 0

    def build(*, part: bool = True, **others: Any) -> Any:
        chosen = {**arguments, **others}
        if chosen.get("beta") == "schedule":
            chosen["beta"] = lambda step: tf.minimum(1.0, 0.1 * tf.cast(step, tf.float32))
        make = TFPrioritizedReplayBuffer if is_prioritized else TFUniformReplayBuffer
        buffer = make(SPECS[kind], num_streams, max_length, **chosen)
        if parted and part:
            buffer.let_streams_part()
        return buffer

    kinds = draw(st.lists(windows(max_length), min_size=1, max_size=3))
    before = [("sample", 2, draw(st.sampled_from(kinds)))] if draw(st.booleans()) else []
    before += draw(steps(num_streams, max_length, parted, kinds))
    after = draw(steps(num_streams, max_length, parted, kinds))
    text = f"{'prioritized' if is_prioritized else 'uniform'} {kind} {num_streams}x{max_length} {parted=} {arguments}"
    return Case(build, text, kind, before, after)


@st.composite
def steps(draw: st.DrawFn, num_streams: int, max_length: int, parted: bool, kinds: list[Any]) -> list[Any]:
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    names = ["add", "add", "add", "sample", "sample", "end", "delete", "update", "clear"]
    history: list[tuple[Any, ...]] = []
    for name in draw(st.lists(st.sampled_from(names), max_size=8)):
        if name == "add":
            streams = None
            if parted and draw(st.booleans()):
                streams = np.flatnonzero(rng.random(num_streams) < 0.6)
                streams = streams if len(streams) else np.array([0])
            shape = (num_streams if streams is None else len(streams), draw(st.integers(1, 2 * max_length + 2)))
            values = rng.integers(1, 1000, shape)
            priorities = rng.choice([0.0, 0.5, 1.0, 2.0, 9.0], shape) if draw(st.booleans()) else None
            history.append((name, values, rng.random(shape) < 0.25, priorities, streams, draw(st.booleans())))
        elif name == "end":
            history.append((name, draw(st.none() | st.integers(0, num_streams - 1))))
        elif name == "sample":
            history.append((name, draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from(kinds))))
        elif name in ("delete", "update"):
            backs = draw(st.lists(st.integers(0, num_streams * max_length + 2), min_size=1, max_size=4))
            history.append((name, backs, rng.choice([0.0, 0.25, 1.0, 4.0], len(backs)).tolist()))
        elif draw(st.integers(0, 2)) == 0:
            history.append((name,))
    return history


def assert_goes_on_alike(case: Case, one: Run, other: Run) -> None:
    assert other.everything() == one.everything()
    for step in case.after:
        assert other.do(step) == one.do(step), step
        assert other.everything() == one.everything(), step


@settings(max_examples=60)
@given(cases(), st.sampled_from(["save", "save", "state", "bytes"]), st.booleans())
def test_a_restored_ring_goes_on_as_the_one_that_was_saved(tmp_path_factory, case, way, parted_before):
    one = Run(case.build(), case.kind)
    for step in case.before:
        one.do(step)
    # With or without `let_streams_part` before: the save says it.
    other = Run(case.build(part=parted_before), case.kind, list(one.ids))
    if way == "save":
        folder = tmp_path_factory.mktemp("ring")
        one.buffer.save(folder)
        other.buffer.restore(folder)
    elif way == "state":
        other.buffer.set_state(one.buffer.get_state())
    else:
        other.buffer.deserialize(one.buffer.serialize())
    assert_goes_on_alike(case, one, other)


DRAWS = {
    "uniform": lambda: TFUniformReplayBuffer(VALUE, 1, 8, seed=3),
    "fifo once": lambda: TFUniformReplayBuffer(VALUE, 1, 8, seed=3, sampler=Fifo(), max_times_sampled=2),
    "newest": lambda: TFUniformReplayBuffer(VALUE, 1, 8, seed=3, newest_fraction=0.5),
    "own sampler": lambda: TFUniformReplayBuffer(VALUE, 1, 8, seed=3, sampler=Drawer),
    "prioritized": lambda: TFPrioritizedReplayBuffer(VALUE, 1, 8, seed=3, weight_norm="buffer"),
    "by rank, beta grows": lambda: TFPrioritizedReplayBuffer(
        VALUE, 1, 8, seed=3, variant="rank", beta=lambda step: 0.1 * tf.cast(step, tf.float32)
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_in_graphs_and_datasets_go_on_too(name, tmp_path):
    """Of the buffer that goes on the graph was traced before the save, of the other one before the restore or after."""
    one, early, late = (DRAWS[name]() for _ in range(3))
    draw = {buffer: tf.function(functools.partial(buffer.sample, 2)) for buffer in (one, early)}
    one.add_sequence([np.arange(11)], priorities=[np.arange(11) % 4 + 0.5])
    early.add_sequence([[90, 91]])
    draw[one]()
    draw[early]()
    one.delete([4])
    draw[one]()
    one.save(tmp_path)
    early.restore(tmp_path)
    late.restore(tmp_path)
    # An op of the second graph of a buffer draws from the same stream as the first.
    draw[late] = tf.function(functools.partial(late.sample, 2))
    for buffer in (early, late):
        assert stats_of(buffer) == stats_of(one)
    for number in range(3):
        drawn = plain(draw[one]())
        assert plain(draw[early]()) == drawn
        assert plain(draw[late]()) == drawn
        for buffer in (one, early, late):
            buffer.add_sequence([[20 + number]], priorities=[[3.0]])
            buffer.update_priorities(drawn[1].keys, [0.25, 7.0])
        assert stats_of(late) == stats_of(early) == stats_of(one)
    # `early` has drawn through a graph, but made no dataset: the first one has the same seed in all of them.
    batches = [plain(next(iter(buffer.as_dataset(3)))) for buffer in (one, early, late)]
    assert batches[0] == batches[1] == batches[2]


@pytest.mark.parametrize(
    "dtype",
    ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]
    + ["uint64", "bool", "complex64", "complex128"],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 300)])
def test_every_dtype_and_shape_is_kept_bit_for_bit(dtype, shape, tmp_path):
    """Random bits: NaNs with payloads, negative zeros and denormal numbers among them."""
    spec = {"field": tf.TensorSpec(shape, tf.as_dtype(dtype)), "other": tf.TensorSpec([], tf.uint8)}
    known = tf.as_dtype(dtype).as_numpy_dtype
    rng = np.random.default_rng(1)
    if dtype == "bool":
        values = rng.random((1, 5, *shape)) < 0.5
    else:
        values = rng.integers(0, 256, (1, 5, *shape, np.dtype(known).itemsize), np.uint8).view(known)[..., 0]
    one, other, third = (TFUniformReplayBuffer(spec, 1, 4) for _ in range(3))
    one.add_sequence({"field": values, "other": np.arange(5, dtype=np.uint8)[None]})
    one.save(tmp_path)
    other.restore(tmp_path)
    third.deserialize(one.serialize())
    for buffer in (other, third):
        held = buffer.gather_all()
        assert held["field"].numpy().tobytes() == values[:, 1:].tobytes()
        assert held["other"].numpy().tolist() == [[1, 2, 3, 4]]


def test_long_and_strange_names_of_fields_are_kept(tmp_path):
    spec = {"a/b c": {"ü": VALUE, "x" * 300: VALUE, "..": VALUE, "%": VALUE}, "": VALUE}
    one, other = (TFUniformReplayBuffer(spec, 1, 4) for _ in range(2))
    flat = [np.array([[10 * number, 10 * number + 1]]) for number in range(5)]
    one.add_sequence(tf.nest.pack_sequence_as(spec, flat))
    one.save(tmp_path)
    other.restore(tmp_path)
    assert plain(other.gather_all()) == plain(one.gather_all())


def test_fields_of_the_same_names_in_another_order_are_not_mixed_up(tmp_path):
    one_way, other_way = (collections.namedtuple("Frame", names) for names in ("x y", "y x"))
    one = TFUniformReplayBuffer(one_way(VALUE, VALUE), 1, 4)
    one.add_sequence(one_way(x=[[1, 2]], y=[[11, 12]]))
    one.save(tmp_path)
    for way in ("save", "state"):
        other = TFUniformReplayBuffer(other_way(y=VALUE, x=VALUE), 1, 4)
        if way == "save":
            other.restore(tmp_path)
        else:
            other.set_state(one.get_state())
        held = other.gather_all()
        assert (held.x.numpy().tolist(), held.y.numpy().tolist()) == ([[1, 2]], [[11, 12]])


def test_frames_in_files_are_saved_and_restored_as_those_in_memory(tmp_path):
    one = TFUniformReplayBuffer(VALUE, 1, 4, storage_folder=tmp_path, seed=0)
    other = TFUniformReplayBuffer(VALUE, 1, 4, seed=0)
    third = TFUniformReplayBuffer(VALUE, 1, 4, storage_folder=tmp_path, seed=0)
    one.add_sequence([[0, 1, 2, 3, 4, 5]])
    one.save(tmp_path / "saves")
    for buffer in (other, third):
        buffer.restore(tmp_path / "saves")
        assert buffer.add_batch([6]).tolist() == [6]
        assert buffer.gather_all().numpy().tolist() == [[3, 4, 5, 6]]


def test_the_next_add_evicts_what_it_would_have_evicted(tmp_path):
    """A ring of 3 of each of 2 streams, wrapped around once and a half."""
    spec = {"value": VALUE}
    one, other = (TFUniformReplayBuffer(spec, 2, 3, seed=5) for _ in range(2))
    one.add_sequence({"value": [[0, 1, 2, 3], [10, 11, 12, 13]]}, end_of_episode=[[False, True, False, False]] * 2)
    one.save(tmp_path)
    report = other.restore(tmp_path)
    assert (report.frames, report.dropped, report.cut, dict(report.changed)) == (6, 0, 0, {})
    assert other.gather_all()["value"].numpy().tolist() == [[1, 2, 3], [11, 12, 13]]
    assert other.add_batch({"value": [4, 14]}).tolist() == [8, 9]
    assert other.gather_all()["value"].numpy().tolist() == [[2, 3, 4], [12, 13, 14]]
    # The open episode went on: one of three frames, whose first one was added before the save.
    assert other.get([4], 3)["value"].numpy().tolist() == [[2, 3, 4]]
    with pytest.raises(ValueError, match="id 3 is not held"):
        other.get([3])
    assert other.stats().evicted == 4


def contents(buffer: Any) -> Any:
    return plain(buffer.gather_all()), stats_of(buffer)


@pytest.mark.parametrize("seed", [1, 2])
def test_each_of_a_chain_of_saves_can_be_restored_alone(seed, tmp_path):
    """30 saves into three folders, all that changes what is held in between, and another buffer saves there too."""
    rng = np.random.default_rng(seed)
    parted = seed % 2 == 1
    make = TFPrioritizedReplayBuffer if seed < 2 else TFUniformReplayBuffer
    spec = {"value": VALUE, "bytes": tf.TensorSpec([1100], tf.uint8)}

    def build() -> Any:
        buffer = make(spec, 2, 20, seed=1)
        if parted:
            buffer.let_streams_part()
        return buffer

    def add(buffer: Any, num: int) -> None:
        values = rng.integers(0, 2**40, (2, num))
        streams = {"streams": [int(rng.integers(2))]} if parted and rng.random() < 0.5 else {}
        values = values[:1] if streams else values
        buffer.add_sequence(
            {"value": values, "bytes": np.repeat(values[..., None] % 251, 1100, -1).astype("u1")}, **streams
        )

    buffer, stranger = build(), build()
    expected: dict[str, Any] = {}
    folders = [tmp_path / name for name in "abc"]
    for step in range(1, 31):
        action = rng.integers(8)
        if action == 0:
            buffer.clear()
        elif action == 1:
            buffer.delete(rng.integers(0, 100, 5))
        elif action == 2 and expected:
            path = str(rng.choice(sorted(expected)))
            buffer.restore(path)
            assert contents(buffer) == expected[path]
        elif action == 3:
            # Ids are given again from here on.
            buffer.mark_step(100 * step - 50)
            add(buffer, 3)
            buffer.save(tmp_path / "cut", step=100 * step - 20)
            cut = buffer.restore(tmp_path / "cut", step=100 * step - 50, cut_back=True).cut
            assert cut in (3, 6)
        elif action == 4:
            add(stranger, 2)
            path = stranger.save(rng.choice(folders), step=100 * (step - int(rng.integers(2)))).path
            expected[path] = contents(stranger)
        else:
            add(buffer, int(rng.integers(1, 25)))
        report = buffer.save(rng.choice(folders), step=100 * step, keep_last=rng.choice([None, 6]))
        expected[report.path] = contents(buffer)
        expected = {path: held for path, held in expected.items() if Path(path).exists()}
        if step % 6 == 5:
            for path, held in expected.items():
                other = build()
                other.restore(path)
                assert contents(other) == held, path
    copies = {
        shutil.copytree(path, tmp_path / f"copy {number}"): held for number, (path, held) in enumerate(expected.items())
    }
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for path, held in copies.items():
        other = build()
        other.restore(path)
        assert contents(other) == held, path


# What a new process does with saves, and this one with the buffers that were saved.
GO_ON = """
import json
import sys
import numpy as np
import tensorflow as tf
from replayfeed.buffers import MaxHeap, TFPrioritizedReplayBuffer, TFUniformReplayBuffer, Window

SPEC = {"value": tf.TensorSpec([], tf.int64), "half": tf.TensorSpec([2], tf.bfloat16)}
BUILD = {
    "uniform": lambda: TFUniformReplayBuffer(SPEC, 2, 5, seed=1),
    "heap": lambda: TFUniformReplayBuffer(SPEC, 2, 5, seed=1, sampler=MaxHeap(), max_times_sampled=2),
    "proportional": lambda: TFPrioritizedReplayBuffer(SPEC, 2, 5, seed=1, weight_norm="buffer"),
    "rank": lambda: TFPrioritizedReplayBuffer(SPEC, 2, 5, seed=1, variant="rank", stratified=True),
}

def items(values):
    values = np.asarray(values)
    return {"value": values, "half": np.stack([values, -values], -1).astype(tf.bfloat16.as_numpy_dtype)}

def plain(nest):
    return [np.asarray(leaf).astype(np.float64).tolist() for leaf in tf.nest.flatten(nest)]

def go_on(buffer):
    tf.random.set_seed(7)  # which is part of every dataset's seed, and which other tests set
    told = []
    in_graph = tf.function(lambda: buffer.sample(2))
    for number in range(4):
        told.append(plain(buffer.sample(4)))
        told.append(plain(buffer.sample(2, window=Window(2))))
        told.append(plain(in_graph()))
        told.append(buffer.add_batch(items([100 + number, 200 + number]), priorities=[number, 2.0]).tolist())
        told.append(buffer.update_priorities([10, 11, 12 + number], [3.0, 0.5, 7.0]))
        told.append(plain(buffer.gather_all()))
        told.append([str(buffer.stats().evicted_unsampled), str(buffer.stats().windows)])
    told.append(plain(next(iter(buffer.as_dataset(3, 2)))))
    return told
"""
IN_A_NEW_PROCESS = """
folder = sys.argv[1]
told = {}
for name, build in BUILD.items():
    buffer = build()
    buffer.restore(folder + "/" + name)
    told[name] = go_on(buffer)
    # A stranger in the folder of the process that goes on.
    buffer.save(folder + "/" + name, step=0)
train = TFPrioritizedReplayBuffer(tf.TensorSpec([2], tf.float32), 1, 1000, seed=2)
report = train.restore(folder + "/train")
items, info = train.sample(100)
told["train"] = [report.frames, plain(train.get(np.arange(500, 600))), plain(items), plain(info)]
told["train"].append([train.add_batch(np.zeros([1, 2], np.float32)).tolist(), plain(train.gather_all()[:, :1])])
print(json.dumps(told))
"""


def test_fr_035_a_new_process_goes_on_with_the_same_items_priorities_and_write_position(tmp_path):
    """All that is drawn from then on is the same, in graphs and datasets too; and it may save to the same folder."""
    names: dict[str, Any] = {}
    exec(GO_ON, names)
    buffers = {name: build() for name, build in names["BUILD"].items()}
    for name, buffer in buffers.items():
        buffer.add_sequence(names["items"]([range(8), range(20, 28)]), priorities=[[1, 2, 3, 4, 5, 6, 7, 8]] * 2)
        buffer.sample(3)
        buffer.sample(3, window=Window(2))
        buffer.delete([7])
        buffer.save(tmp_path / name, step=0)
    train = TFPrioritizedReplayBuffer(tf.TensorSpec([2], tf.float32), 1, 1000, seed=2)
    for step in range(1100):
        train.add_batch(np.full([1, 2], step, np.float32))
        if step % 100 == 99:
            _, info = train.sample(32)
            train.update_priorities(info.keys, td_errors=np.arange(32) / 8)
        if step == 999:
            train.save(tmp_path / "train", step=1)
            kept = train.serialize()
    train.deserialize(kept)
    command = [sys.executable, "-c", GO_ON + IN_A_NEW_PROCESS, str(tmp_path)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=400).stdout)
    for name, buffer in buffers.items():
        # Saved after the other process has taken the place of the files of the save before.
        report = buffer.save(tmp_path / name, step=1)
        again = names["BUILD"][name]()
        again.restore(report.path)
        assert names["plain"](again.gather_all()) == names["plain"](buffer.gather_all())
        assert told[name] == json.loads(json.dumps(names["go_on"](buffer)))
    items, info = train.sample(100)
    assert told["train"][:2] == [1000, names["plain"](train.get(np.arange(500, 600)))]
    assert told["train"][2:4] == [names["plain"](items), names["plain"](info)]
    # The oldest of 1,000 frames made room for frame 1,000.
    assert told["train"][4] == [[1000], [[[[1.0, 1.0]]]]]


def test_fr_040_size_follows_what_is_held(tmp_path):
    """1 frame of 5,000 of 84 x 84 is small; 5,000 of them take their 35.28 MB."""
    buffer = TFUniformReplayBuffer(tf.TensorSpec([84, 84, 1], tf.uint8), 1, 5000)
    buffer.add_batch(np.full([1, 84, 84, 1], 7, np.uint8))
    first = buffer.save(tmp_path, step=1)
    assert 84 * 84 < first.num_bytes == size_of(first.path) < 20_000
    buffer.add_sequence(np.zeros([1, 4999, 84, 84, 1], np.uint8))
    full = buffer.save(tmp_path, step=2)
    assert 35_280_000 < full.num_bytes == size_of(full.path) < 35_400_000
    assert full.num_bytes_written < full.num_bytes
    other = TFUniformReplayBuffer(tf.TensorSpec([84, 84, 1], tf.uint8), 1, 5000)
    other.restore(tmp_path)
    assert other.gather_all()[0, :2, 0, 0, 0].numpy().tolist() == [7, 0]


def size_of(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).iterdir())


def test_later_saves_write_what_is_new_and_keep_few_files(tmp_path):
    """1,000 frames of 1,000 bytes; then 1 % new ones before each of 30 saves, and none before the last."""
    buffer = TFUniformReplayBuffer(tf.TensorSpec([1000], tf.uint8), 1, 1000)
    buffer.add_sequence(np.zeros([1, 1000, 1000], np.uint8))
    first = buffer.save(tmp_path)
    assert first.num_bytes_written == first.num_bytes > 1_000_000
    written = []
    for number in range(1, 31):
        buffer.add_sequence(np.full([1, 10, 1000], number, np.uint8))
        report = buffer.save(tmp_path, keep_last=2)
        written.append(report.num_bytes_written)
        assert report.num_bytes < 2 * first.num_bytes
        assert len(list(Path(report.path).glob("frames-*"))) <= 2 * 12
    # 10,000 bytes, flags, words and a manifest; now and then what stands in small files, here all, is made one.
    assert sum(num > 20_000 for num in written) == 3
    assert max(written) < 1_100_000
    again = buffer.save(tmp_path)
    assert again.num_bytes_written < 10_000
    other = TFUniformReplayBuffer(tf.TensorSpec([1000], tf.uint8), 1, 1000)
    other.restore(tmp_path)
    assert other.gather_all()[0, ::100, 0].numpy().tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 11, 21]


def resident_mb(call: Any) -> tuple[float, float, float]:
    """Resident memory before a call, at its peak, and after it."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts anew
    before = status_mb("VmRSS")
    call()
    return before, status_mb("VmHWM"), status_mb("VmRSS")


def status_mb(name: str) -> float:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def test_saving_and_restoring_take_little_memory_and_leave_none(tmp_path):
    """Of 200 MB of frames a tenth are 20 MB; after three rounds memory is within 5 % of what it was."""
    num = 28_000
    spec = {"pixels": tf.TensorSpec([84, 84], tf.uint8), "reward": tf.TensorSpec([], tf.float32)}
    one, other = (TFPrioritizedReplayBuffer(spec, 1, num, seed=0) for _ in range(2))

    def add(first: int, num: int) -> None:
        pixels = np.broadcast_to((first + np.arange(num)).astype(np.uint8)[None, :, None, None], (1, num, 84, 84))
        one.add_sequence({"pixels": pixels, "reward": np.zeros((1, num), np.float32)})

    for first in range(0, num, 2000):
        add(first, 2000)
    assert one.stats().bytes_held > 197_000_000
    before, peak, _ = resident_mb(lambda: one.save(tmp_path, keep_last=1))
    assert peak - before < 20
    # The first one fills memory that the buffer has asked for when it was built.
    _, peak, level = resident_mb(lambda: other.restore(tmp_path))
    assert peak - level < 20
    for number in range(3):
        add(num + 1000 * number, 1000)

        def again() -> None:
            one.save(tmp_path, keep_last=1)
            other.restore(tmp_path)

        before, peak, after = resident_mb(again)
        assert peak - before < 20
        assert len(other) == num
    assert after < 1.05 * level
    np.testing.assert_array_equal(other.get([num + 2999])["pixels"][0], np.full((84, 84), (num + 2999) % 256))
