"""An episodic buffer that is saved and restored, resized, or cut back goes on as if nothing had happened."""

import copy
import dataclasses
import json
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import event, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import EpisodicReplayBuffer, StatefulEpisodicReplayBuffer, Window
from replayfeed.buffers.episode_reader import EpisodeReader

COUNTER = tf.TensorSpec([], tf.int64)
SPECS = {
    "plain": {"value": COUNTER},
    "told": {"value": COUNTER, "is_first": tf.TensorSpec([], tf.bool), "is_last": tf.TensorSpec([], tf.bool)},
}
KINDS: list[dict[str, Any]] = [
    {"draw": "episodes"},
    {"draw": "length"},
    {"num_steps": 1},
    {"num_steps": 2},
    {"num_steps": 2, "draw": "episodes"},
    {"window": Window(3, burn_in=1, stride=2, short="pad", pad_unfinished=True), "draw": "length"},
]


# -- histories -----------------------------------------------------------------------------------


@dataclasses.dataclass
class World:
    """A buffer, and the number that its next frame holds."""

    buffer: EpisodicReplayBuffer
    kind: str
    value: int = 0

    @classmethod
    def build(cls, kind: str = "plain", **arguments: Any) -> "World":
        return cls(EpisodicReplayBuffer(SPECS[kind], **arguments), kind)

    def twin(self, **arguments: Any) -> "World":
        """A new buffer that took over what this one holds, through bytes."""
        other = World.build(**{"kind": self.kind, **arguments})
        other.buffer.deserialize(self.buffer.serialize())
        other.value = self.value
        return other

    def do(self, operation: tuple[Any, ...]) -> Any:
        """What came of an operation: ids, what was drawn, or the error."""
        name, *arguments = operation
        try:
            return getattr(self, name)(*arguments)
        except ValueError as error:
            return f"{type(error).__name__}: {error}"

    def frames(self, flags: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Items `[*flags.shape]`, and the arguments that tell ends; flags: 1 begins an episode, 2 ends it."""
        values = self.value + np.arange(flags.size).reshape(flags.shape)
        self.value += flags.size
        ends = flags & 2 > 0
        if self.kind == "plain":
            return {"value": values}, {"end_of_episode": ends}
        return {"value": values, "is_first": flags & 1 > 0, "is_last": ends}, {}

    # Operations

    def add(self, streams: list[int] | None, num_steps: int, flags: list[int], one_by_one: bool) -> Any:
        chosen = sorted({b % self.buffer.batch_size for b in streams}) if streams else None
        num_streams = self.buffer.batch_size if chosen is None else len(chosen)
        items, told = self.frames(np.resize(flags, (num_streams, num_steps)))
        if not one_by_one:
            return self.buffer.add_sequence(items, streams=chosen, **told).tolist()
        ids = []
        for t in range(num_steps):
            step, ends = ({name: leaf[:, t] for name, leaf in part.items()} for part in (items, told))
            ids.append(self.buffer.add_batch(step, streams=chosen, **ends).tolist())
        return ids

    def end(self, b: int) -> None:
        self.buffer.end_stream(None if b < 0 else b % self.buffer.batch_size)

    def clear(self) -> None:
        self.buffer.clear()

    def extend(self, length: int, seed: int) -> Any:
        items, _ = self.frames(np.zeros(length, int))
        return self.buffer.extend([items]).tolist() + [self.set_metadata(seed, -1)]

    def set_metadata(self, seed: int, which: int) -> Any:
        held = [episode.episode_id for episode in self.buffer.episodes()]
        if not held:
            return None
        self.buffer.set_metadata(held[which % len(held)], {"seed": seed, "goal": np.arange(seed % 3)})
        return held[which % len(held)]

    def by_id(self, which: int, flag: int) -> Any:
        held = [-1, *(episode.episode_id for episode in self.buffer.episodes())]
        items, _ = self.frames(np.array([flag]))
        return self.buffer.add_batch(items, np.array([held[which % len(held)]])).tolist()

    def take_out(self, location: int) -> Any:
        return self.buffer.extract([location % self.buffer.capacity], clear_data=True).length.numpy().tolist()

    def draw(self, kind: int) -> Any:
        items, info = self.buffer.sample(3, **KINDS[kind % len(KINDS)])
        return [np.asarray(part).tolist() for part in (items["value"], *info)]


FLAGS = st.lists(st.sampled_from([0, 0, 0, 0, 0, 1, 2, 2]), min_size=1, max_size=9)
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 2), max_size=2), st.integers(1, 12), FLAGS, st.booleans()),
    st.tuples(st.just("add"), st.none(), st.integers(1, 12), FLAGS, st.booleans()),
    st.tuples(st.just("end"), st.integers(-1, 2)),
    st.tuples(st.just("extend"), st.integers(1, 9), st.integers(0, 9)),
    st.tuples(st.just("set_metadata"), st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.just("by_id"), st.integers(0, 9), st.sampled_from([0, 1, 2])),
    st.tuples(st.just("draw"), st.integers(0, len(KINDS) - 1)),
    st.sampled_from([("clear",), ("take_out", 0), ("take_out", 1)]),
)
HISTORIES = st.lists(OPERATIONS, max_size=10)


@st.composite
def arguments_of_buffers(draw: Any) -> dict[str, Any]:
    batch_size = draw(st.integers(1, 3))
    capacity = draw(st.integers(batch_size, 8))
    # Seldom without: that reserves half of the machine's memory.
    max_frames = draw(st.one_of(*[st.integers(max(6, 3 * batch_size), 60)] * 9, st.none()))
    return {
        "kind": draw(st.sampled_from(sorted(SPECS))),
        "capacity": capacity,
        "batch_size": batch_size,
        "max_frames": max_frames,
        "completed_only": draw(st.booleans()),
        "seed": 5,
    }


def held(buffer: EpisodicReplayBuffer) -> list[tuple[Any, ...]]:
    """All that is known of each episode."""
    return [
        (
            one.episode_id,
            one.ids.tolist(),
            one.items["value"].tolist(),
            one.completed,
            one.finished,
            {name: np.asarray(value).tolist() for name, value in one.metadata.items()},
        )
        for one in buffer.episodes()
    ]


def told(buffer: EpisodicReplayBuffer) -> Any:
    """What it says of itself."""
    return buffer.stats(), buffer.num_cut_episodes, len(buffer), buffer.gather_all()["value"].numpy().tolist()


def plain(state: Any) -> Any:
    """What `get_state` gave, comparable: contents, ids, marks, counters, random numbers, what draws find where."""
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items() if name != "marks"}
    return state.tolist() if isinstance(state, np.ndarray) else state


def assert_same_state(one: EpisodicReplayBuffer, other: EpisodicReplayBuffer) -> None:
    assert plain(one.get_state()) == plain(other.get_state())


def assert_same(one: EpisodicReplayBuffer, other: EpisodicReplayBuffer) -> None:
    assert_same_state(one, other)
    assert held(one) == held(other)
    assert told(one) == told(other)


def passes(buffer: EpisodicReplayBuffer) -> list[Any]:
    """Ids of an ordered pass, of two shuffled ones, and of what a dataset and a graph draw."""
    datasets = [
        buffer.as_dataset(single_deterministic_pass=True),
        buffer.as_dataset(num_steps=2, epochs=2),
        buffer.as_dataset(4, num_steps=1).take(2),
    ]
    found: list[Any] = []
    for dataset in datasets:
        found.append([np.asarray(info.ids).tolist() for _, info in dataset])
    found.append(tf.function(lambda: buffer.sample(3, num_steps=1)[1].ids)().numpy().tolist())
    return found


# -- as if nothing had happened ------------------------------------------------------------------


@given(arguments=arguments_of_buffers(), before=HISTORIES, after=HISTORIES)
@settings(max_examples=80, deadline=None)
def test_after_a_restore_all_goes_on_as_if_nothing_had_happened(arguments, before, after):
    world = World.build(**arguments)
    for operation in before:
        world.do(operation)
    twin = world.twin(**arguments)
    assert_same(world.buffer, twin.buffer)
    for operation in after:
        assert world.do(operation) == twin.do(operation)
        assert_same_state(world.buffer, twin.buffer)
    for kind in range(len(KINDS)):
        assert world.do(("draw", kind)) == twin.do(("draw", kind))
    assert_same(world.buffer, twin.buffer)
    event(f"{len(held(twin.buffer))} episodes at the end")


@given(arguments=arguments_of_buffers(), first=HISTORIES, before=HISTORIES, after=HISTORIES)
@settings(max_examples=40, deadline=None)
def test_what_was_held_before_a_restore_leaves_no_trace(arguments, first, before, after):
    used, world = World.build(**arguments), World.build(**arguments)
    for operation in first:
        used.do(operation)
    for operation in before:
        world.do(operation)
    used.buffer.set_state(world.buffer.get_state())
    used.value = world.value
    for operation in after:
        assert world.do(operation) == used.do(operation)
    # Which kinds of samples were ever drawn from an object stays known: graphs may have been made that draw them.
    states = [plain(each.buffer.get_state()) for each in (world, used)]
    for state in states:
        del state["values"]["reading"]["kinds"]
    assert states[0] == states[1]
    assert held(world.buffer) == held(used.buffer)


def test_passes_datasets_and_graphs_made_after_a_restore_give_what_they_would_have_given():
    arguments = {"kind": "told", "capacity": 6, "batch_size": 2, "max_frames": 40, "seed": 5}
    world = World.build(**arguments)
    world.add(None, 30, [0, 0, 0, 2, 0, 1, 0], False)
    passes(world.buffer)
    twin = world.twin(**arguments)
    for each in (world, twin):
        each.add([1], 9, [0, 0, 2, 0], False)
    assert passes(world.buffer) == passes(twin.buffer)


SCRIPT = """
import json, sys
import numpy as np, tensorflow as tf
from replayfeed.buffers import EpisodicReplayBuffer
buffer = EpisodicReplayBuffer({"value": tf.TensorSpec([], tf.int64)}, 4, batch_size=2, max_frames=40, seed=3)
buffer.restore(sys.argv[1])
told = [buffer.sample(5, num_steps=2)[0]["value"].numpy().tolist()]
told.append(buffer.add_sequence({"value": np.arange(100, 106).reshape(2, 3)}).tolist())
told.append([[e.episode_id, e.items["value"].tolist(), dict(e.metadata)] for e in buffer.episodes()])
told.append(buffer.sample(5)[1].keys.numpy().tolist())
print(json.dumps(told))
"""


def test_fr_035_a_new_process_evicts_what_would_have_been_evicted_and_goes_on_with_open_episodes(tmp_path):
    world = World.build("plain", capacity=4, batch_size=2, max_frames=40, seed=3)
    buffer = world.buffer
    world.add(None, 4, [0, 0, 0, 2], False)  # episodes 0 and 1, of four frames
    world.add([0], 3, [0], False)  # episode 2 of stream 0 goes on
    world.add([1], 2, [0], False)  # episode 3 of stream 1 as well
    buffer.set_metadata(2, {"seed": 7})
    buffer.sample(3, num_steps=2)
    buffer.save(tmp_path)
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stderr
    drawn, ids, episodes, keys = json.loads(run.stdout)
    # Episode 2 had three frames, episode 3 two.
    assert [[identity & 0xFF for identity in line] for line in ids] == [[3, 4, 5], [2, 3, 4]]
    assert episodes == [
        [0, [0, 1, 2, 3], {}],
        [1, [4, 5, 6, 7], {}],
        [2, [8, 9, 10, 100, 101, 102], {"seed": 7}],
        [3, [11, 12, 103, 104, 105], {}],
    ]
    assert drawn == buffer.sample(5, num_steps=2)[0]["value"].numpy().tolist()
    assert ids == buffer.add_sequence({"value": np.arange(100, 106).reshape(2, 3)}).tolist()
    assert keys == buffer.sample(5)[1].keys.numpy().tolist()
    # The next two episodes take the place of the oldest two.
    restored = World.build("plain", capacity=4, batch_size=2, max_frames=40, seed=3)
    restored.buffer.restore(tmp_path)
    restored.buffer.end_stream()
    restored.add(None, 1, [0], False)
    assert [one.episode_id for one in restored.buffer.episodes()] == [2, 3, 4, 5]


def test_datasets_and_graphs_made_before_read_what_was_restored():
    arguments = {"capacity": 4, "max_frames": 40, "seed": 3}
    world, other = (World.build("plain", **arguments) for _ in range(2))
    other.value = 1000
    other.add(None, 30, [0, 0, 0, 2], False)
    draw = tf.function(lambda: other.buffer.sample(4, num_steps=2)[0]["value"])
    count = tf.function(lambda: other.buffer.num_frames())
    iterator = iter(other.buffer.as_dataset(num_steps=2))
    assert int(draw().numpy().min()) >= 1000 and int(count()) == 30 - 4 * 4
    next(iterator)
    world.add(None, 9, [0, 0, 2], False)
    other.buffer.set_state(world.buffer.get_state())
    assert int(draw().numpy().max()) < 9 and int(count()) == 9
    assert next(iterator)[0]["value"].numpy().max() < 9


def test_what_a_smaller_buffer_gives_up_counts_as_drawn_where_it_was():
    world = World.build("plain", capacity=3, max_frames=40, seed=3)
    world.add(None, 6, [0, 2], False)
    world.buffer.sample(50)  # whole episodes
    world.extend(3, 0)  # instead of the first of them
    small = World.build("plain", capacity=1, max_frames=40, seed=3).buffer
    small.set_state(world.buffer.get_state(), "resize")
    stats = small.stats()
    assert (stats.frames, stats.evicted, stats.evicted_unsampled, stats.sampled) == (3, 6, 0, 50)


def test_marks_of_what_was_drawn_are_restored_with_the_frames():
    world = World.build("plain", capacity=2, max_frames=40, seed=3)
    world.add(None, 6, [0, 0, 2], False)
    world.buffer.sample(50, num_steps=1)
    twin = world.twin(capacity=2, max_frames=40, seed=3)
    assert twin.buffer.stats().sampled == 50
    twin.add(None, 6, [0, 0, 2], False)
    assert twin.buffer.stats().evicted == 6 and twin.buffer.stats().evicted_unsampled == 0


def test_a_warning_of_an_end_that_nothing_told_comes_after_a_restore_too():
    spec = {"value": COUNTER, "done": tf.TensorSpec([], tf.bool)}
    buffer, restored = (EpisodicReplayBuffer(spec, 4) for _ in range(2))
    buffer.add_batch({"value": [1], "done": [True]})
    restored.set_state(buffer.get_state())
    with pytest.warns(UserWarning, match="windows run on from one episode into the next"):
        restored.add_batch({"value": [2], "done": [False]})
    moment = buffer._moment()
    buffer.end_stream()
    buffer._cut_back(moment)
    with pytest.warns(UserWarning, match="windows run on from one episode into the next"):
        buffer.add_batch({"value": [2], "done": [False]})


# -- metadata ------------------------------------------------------------------------------------


def test_metadata_comes_back_with_its_types(tmp_path):
    kept = {
        "seed": 7,
        "name": "left",
        "raw": b"\x00\xff",
        "nothing": None,
        "shares": (0.5, float("inf")),
        "inside": {"$odd": [1, True], 3: "three"},
        "goal": np.arange(4, dtype=np.float32).reshape(2, 2)[:, ::-1],
        "scalar": np.int16(3),
        "words": np.array([b"a", None], object),
        "tensor": tf.constant([1.5, 2.5]),
    }
    buffer, restored = (EpisodicReplayBuffer({"value": COUNTER}, 4) for _ in range(2))
    (episode,) = buffer.extend([{"value": np.arange(3)}])
    buffer.set_metadata(int(episode), kept)
    buffer.save(tmp_path)
    restored.restore(tmp_path)
    found = next(iter(restored.episodes())).metadata
    assert list(found) == list(kept)
    assert {name: type(value) for name, value in found.items()} == {name: type(value) for name, value in kept.items()}
    for name, value in kept.items():
        np.testing.assert_array_equal(found[name], value)
        assert np.asarray(found[name]).dtype == np.asarray(value).dtype


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {1, 2}}, r"metadata of episode 0\['a'\] is a set, which cannot be saved"),
        ({"a": [0, object()]}, r"metadata of episode 0\['a'\]\[1\] is a object"),
        ({"a": np.zeros(2, [("x", int)])}, r"metadata of episode 0\['a'\] is an array of \[\('x'"),
    ],
)
def test_metadata_of_which_no_plain_text_can_be_made_is_refused_by_name(tmp_path, value, message):
    buffer = EpisodicReplayBuffer({"value": COUNTER}, 4)
    buffer.extend([{"value": np.arange(3)}])
    buffer.set_metadata(0, value)
    with pytest.raises(ValueError, match=message):
        buffer.save(tmp_path)
    buffer.set_metadata(0, {})
    buffer.save(tmp_path)  # the buffer is not stuck in the save that failed
    buffer.extend([{"value": np.arange(3)}])


# -- other settings ------------------------------------------------------------------------------


def four_episodes(**arguments: Any) -> World:
    """Episodes 0 to 3 of three frames each, the last of them unfinished; frames hold 0 to 11."""
    world = World.build("plain", **{"capacity": 4, "max_frames": 12, "seed": 3, **arguments})
    world.add(None, 11, [0, 0, 2], False)
    world.add(None, 1, [0], False)
    world.buffer.set_metadata(0, {"seed": 0})
    world.buffer.set_metadata(3, {"seed": 3})
    return world


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        ({"capacity": 2}, 2),
        ({"max_frames": 8}, 2),
        ({"max_frames": 6}, 2),
        ({"max_frames": 5}, 3),
        ({"max_frames": 2}, 4),
        ({"capacity": 3, "max_frames": 100}, 1),
        ({"capacity": 9}, 0),
        ({"max_frames": None}, 0),
        ({"capacity": 9, "max_frames": 50}, 0),
    ],
)
def test_resize_keeps_the_newest_episodes_whole(tmp_path, arguments, first):
    world = four_episodes()
    world.buffer.save(tmp_path)
    new = {"capacity": 4, "max_frames": 12, "seed": 3, **arguments}
    restored = World.build("plain", **new)
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}"):
        restored.buffer.restore(tmp_path)
    assert len(restored.buffer) == 0
    report = restored.buffer.restore(tmp_path, "resize")
    assert report.dropped == 3 * first and set(report.changed) == set(arguments)
    assert held(restored.buffer) == held(world.buffer)[first:]
    stats = restored.buffer.stats()
    assert (stats.added, stats.evicted, stats.evicted_unsampled) == (12, 3 * first, 3 * first)
    if first < 4:
        # The open episode goes on, unless the frame has no room beside it.
        goes_on = new["max_frames"] is None or new["max_frames"] > 3
        (identity,) = restored.buffer.add_batch({"value": [99]})
        assert restored.buffer.episode_ids(identity) == (3 if goes_on else 4)
        items, _ = restored.buffer.sample(20, num_steps=1)
        assert set(items["value"].numpy().ravel().tolist()) <= {*range(3 * first, 12), 99}
        return
    (identity,) = restored.buffer.add_batch({"value": [99]})
    assert restored.buffer.episode_ids(identity) == 4 and restored.buffer.num_cut_episodes == 1


@given(
    arguments=arguments_of_buffers(),
    before=HISTORIES,
    after=HISTORIES,
    capacity=st.integers(3, 9),
    max_frames=st.integers(9, 60),
)
@settings(max_examples=50, deadline=None)
def test_resize_is_what_the_buffers_own_rule_keeps(arguments, before, after, capacity, max_frames):
    world = World.build(**arguments)
    for operation in before:
        world.do(operation)
    resized = World.build(**{**arguments, "capacity": capacity, "max_frames": max_frames})
    report = resized.buffer.set_state(world.buffer.get_state(), "resize")
    every, kept = held(world.buffer), held(resized.buffer)
    assert kept == every[len(every) - len(kept) :]
    assert report.dropped == len(world.buffer) - len(resized.buffer)
    episodes = world.buffer.get_state()["arrays"]["states"]
    oldest_kept = every[-len(kept) - 1][0] if len(kept) < len(every) else None
    if oldest_kept is not None:  # one more would not have fitted
        newest = world.buffer.get_state()["values"]["next_id"] - 1
        num_frames = sum(len(one[1]) for one in every[-len(kept) - 1 :])
        assert newest - oldest_kept >= capacity or num_frames > max_frames
    assert len(episodes) >= len(every)
    twin = World.build(**{**arguments, "capacity": capacity, "max_frames": max_frames})
    twin.buffer.set_state(resized.buffer.get_state())
    twin.value = resized.value = world.value
    for operation in after:
        assert resized.do(operation) == twin.do(operation)
    assert_same(resized.buffer, twin.buffer)


def test_the_settings_of_the_save_can_be_kept(tmp_path):
    world = four_episodes(completed_only=True)
    world.buffer.save(tmp_path)
    other = EpisodicReplayBuffer(SPECS["plain"], 2)
    other.restore(tmp_path, "keep")
    assert (other.capacity, other.max_frames) == (4, 12)
    assert_same(world.buffer, other)
    assert other.sample(9)[1].keys.numpy().tolist() == world.buffer.sample(9)[1].keys.numpy().tolist()


def test_settings_that_say_what_frames_mean_are_not_resized():
    world = World.build("told", capacity=4)
    world.add(None, 3, [0, 0, 2], False)
    for changed in ({"batch_size": 2}, {"final_frame": "ordinary"}):
        other = EpisodicReplayBuffer(SPECS["told"], 4, **changed)
        with pytest.raises(ValueError, match=f"on_mismatch='resize' cannot change these: {next(iter(changed))}"):
            other.set_state(world.buffer.get_state(), "resize")


def test_what_the_reserved_memory_cannot_hold_is_refused(monkeypatch):
    world = World.build("plain", capacity=4)
    world.add(None, 200, [0], False)
    state = world.buffer.get_state()
    monkeypatch.setattr("replayfeed.buffers.episode_pages.memory_limit", lambda: 2 * 24 * 32 + 2 * 25 * 8)
    small = EpisodicReplayBuffer(SPECS["plain"], 4)
    with pytest.raises(ValueError, match="the save holds 200 frames, and here memory for .* is reserved"):
        small.set_state(state)
    assert len(small) == 0


# -- damaged, foreign, closed --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state["values"].update(oldest=-1), "oldest is -1"),
        (lambda state: state["values"].update(oldest=9), "the episodes 9 to 4 are none"),
        (lambda state: state["values"].pop("next_id"), "next_id is None"),
        (lambda state: state["values"].update(page_rows=3), "page_rows is 3"),
        (lambda state: state["values"].update(loose_flag=3), "loose_flag is 3"),
        (lambda state: state["values"]["reading"].pop("random"), "random: the saved state of random numbers is none"),
        (lambda state: state["values"]["reading"].update(num_seeds=-1), "num_seeds of the save is -1"),
        (lambda state: state["values"]["reading"].update(kinds=[3]), "the kinds of samples in the save cannot be read"),
        (lambda state: state["values"].pop("reading"), "reading is None"),
        (lambda state: state["arrays"].pop("graph_seeds"), "graph_seeds: expected int64"),
        (lambda state: state["arrays"].pop("states"), r"states: expected int64 \[4\], found missing"),
        (lambda state: state["arrays"]["states"].__setitem__(0, -8), "states of episodes are out of range"),
        (lambda state: state["arrays"]["states"].__setitem__(0, 8), "the 12 frames are not those of its 4 episodes"),
        (lambda state: state["frames"]["ids"].__setitem__(0, 5), "the 12 frames are not those of its 4 episodes"),
        (lambda state: state["arrays"]["open"].__setitem__(0, 4), r"open: \[4\] are not all episodes before 4"),
        (lambda state: state["arrays"]["page_places"].__setitem__(0, 1), "page_places has no place for each page"),
        (lambda state: state["arrays"].update(sampled_frames=np.zeros(1, np.uint8)), "sampled_frames: expected uint8"),
        (lambda state: state["arrays"].update(metadata=np.zeros(1, np.uint8)), "the metadata of episodes cannot be"),
        (lambda state: state["arrays"].pop("metadata"), "metadata is missing"),
        (lambda state: state["values"].update(oldest=1, next_id=5), "the 12 frames are not those of its 4 episodes"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused_and_changes_nothing(change, message):
    state = copy.deepcopy(four_episodes().buffer.get_state())
    state["arrays"] = {name: array.copy() for name, array in state["arrays"].items()}
    change(state)
    other = World.build("plain", capacity=4, max_frames=12, seed=3)
    other.add(None, 2, [0], False)
    before = held(other.buffer), told(other.buffer)
    with pytest.raises(ValueError, match=message):
        other.buffer.set_state(state)
    assert (held(other.buffer), told(other.buffer)) == before


def test_a_closed_buffer_is_neither_saved_nor_restored(tmp_path):
    world = four_episodes()
    world.buffer.save(tmp_path)
    world.buffer.close()
    with pytest.raises(ValueError, match="closed"):
        world.buffer.save(tmp_path)
    with pytest.raises(ValueError, match="closed"):
        world.buffer.restore(tmp_path)


def test_an_add_of_another_thread_in_the_middle_of_a_restore_is_found(monkeypatch):
    state, other = four_episodes().buffer.get_state(), World.build("plain", capacity=4, max_frames=12, seed=3)

    def add(reader: EpisodeReader, kinds: Any) -> None:
        other.add(None, 2, [0], False)

    monkeypatch.setattr(EpisodeReader, "prepare", add)
    with pytest.raises(RuntimeError, match="another thread added while this buffer was restored"):
        other.buffer.set_state(state)
    assert len(other.buffer) == 0


def test_what_is_saved_while_another_thread_adds_is_one_moment():
    world = World.build("plain", capacity=50, max_frames=400, seed=3)
    world.add(None, 350, [0, 0, 0, 2], False)
    stop, states = threading.Event(), {}

    def add() -> None:
        while not stop.is_set():
            world.add(None, 5, [0, 0, 2, 0, 0], False)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        deadline = time.monotonic() + 300
        while len(states) < 20 and time.monotonic() < deadline:
            state = world.buffer.get_state()
            states[state["values"]["num_added"]] = state
    finally:
        stop.set()
        thread.join()
    assert len(states) == 20
    for state in states.values():
        restored = World.build("plain", capacity=50, max_frames=400, seed=3).buffer
        restored.set_state(state)
        values = restored.gather_all()["value"].numpy()[0]
        added = state["values"]["num_added"]
        assert values.tolist() == list(range(added - len(values), added))


# -- checkpoints of TensorFlow -------------------------------------------------------------------


def test_a_checkpoint_saves_the_wrapper_that_keeps_episode_ids_with_its_buffer(tmp_path):
    buffer, other = (EpisodicReplayBuffer(SPECS["plain"], 8, seed=1) for _ in range(2))
    stateful, restored = (StatefulEpisodicReplayBuffer(each, num_episodes=2) for each in (buffer, other))
    for t in range(3):
        stateful.add_batch({"value": tf.constant([t, 10 + t], tf.int64)})
    checkpoint = tf.train.Checkpoint(replay=stateful)
    path = checkpoint.save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(replay=restored).restore(path).assert_consumed()
    for each in (stateful, restored):
        each.add_batch({"value": tf.constant([3, 13], tf.int64)})
    assert held(other) == held(buffer)
    assert [values for _, _, values, *_ in held(other)] == [[0, 1, 2, 3], [10, 11, 12, 13]]


# -- back to a moment ----------------------------------------------------------------------------


def test_a_buffer_is_cut_back_to_the_step_of_the_model(tmp_path):
    arguments = {"capacity": 8, "batch_size": 2, "max_frames": 40, "seed": 3}
    world = World.build("plain", **arguments)
    world.add(None, 3, [0], False)  # episodes 0 and 1, of streams 0 and 1
    world.buffer.mark_step(10)
    at_the_step = world.twin(**arguments)
    world.add([0], 4, [0, 2], False)  # episode 0 gets two frames and ends, episode 2 as many
    world.add([1], 1, [0], False)
    world.buffer.set_metadata(2, {"seed": 2})
    world.buffer.save(tmp_path, step=20)
    restored = World.build("plain", **arguments)
    report = restored.buffer.restore(tmp_path, step=10, cut_back=True)
    assert (report.step, report.cut, report.frames) == (10, 5, 6)
    assert held(restored.buffer) == held(at_the_step.buffer)
    restored.value = at_the_step.value
    assert restored.add(None, 2, [0], False) == at_the_step.add(None, 2, [0], False)
    assert_same(at_the_step.buffer, restored.buffer)
    # What is saved next is what is held, although ids were given twice.
    restored.buffer.save(tmp_path, step=30)
    third = World.build("plain", **arguments)
    third.buffer.restore(tmp_path)
    assert_same(at_the_step.buffer, third.buffer)


def test_frames_that_were_taken_back_are_neither_found_nor_drawn_nor_counted():
    world = World.build("plain", capacity=4, max_frames=40, seed=3)
    world.add(None, 3, [0], False)
    moment = world.buffer._moment()
    (ids,) = world.add(None, 6, [0], False)  # within the page of four rows, and in two more
    world.buffer.sample(300, num_steps=1)
    assert world.buffer._cut_back(moment) == 6
    for identity in ids:
        with pytest.raises(ValueError, match="is not held"):
            world.buffer.get(identity)
    twin = world.twin(capacity=4, max_frames=40, seed=3)
    drawn = world.buffer.sample(50, num_steps=1)[0]["value"].numpy().ravel().tolist()
    assert set(drawn) == {0, 1, 2}
    assert drawn == twin.buffer.sample(50, num_steps=1)[0]["value"].numpy().ravel().tolist()
    for _ in range(30):  # their memory is free again
        assert world.add(None, 6, [0], False) == [ids]
        assert world.buffer._cut_back(moment) == 6
    world.value = 9
    assert world.add(None, 6, [0], False) == [ids]
    assert world.buffer.get(ids)["value"].numpy().tolist() == [9, 10, 11, 12, 13, 14]
    for _ in range(4):
        world.extend(1, 0)
    stats = world.buffer.stats()
    assert (stats.added, stats.evicted, stats.evicted_unsampled) == (13, 9, 6)


def test_an_open_episode_that_was_evicted_since_is_lost_and_told(caplog):
    world = World.build("plain", capacity=2, batch_size=2, seed=3)
    world.add(None, 3, [0], False)
    moment = world.buffer._moment()
    world.end(0)
    world.add([0], 2, [0], False)  # episode 2 takes the place of episode 0
    assert world.buffer._cut_back(moment) == 2
    assert [(episode, values) for episode, _, values, *_ in held(world.buffer)] == [(1, [3, 4, 5])]
    assert "episode 0 of stream 0 was open at the moment" in caplog.text
    assert world.buffer.num_cut_episodes == 1
    assert world.buffer.stats().added - world.buffer.stats().evicted == 3
    (identity,) = world.buffer.add_batch({"value": [99]}, streams=[0])
    assert world.buffer.episode_ids(identity) == 2


@given(arguments=arguments_of_buffers(), before=HISTORIES, between=HISTORIES, after=HISTORIES)
@settings(max_examples=60, deadline=None)
def test_cutting_back_leaves_what_was_there_at_the_moment(arguments, before, between, after):
    world = World.build(**arguments)
    for operation in before:
        world.do(operation)
    then = world.twin(**arguments)
    moment = json.loads(json.dumps(world.buffer._moment()))
    for operation in between:
        world.do(operation)
    num_before = len(world.buffer)
    still_held = {episode for episode, *_ in held(world.buffer)}
    num_cut = world.buffer._cut_back(moment)
    assert len(world.buffer) == num_before - num_cut
    # What is kept beside episodes is not taken back.
    expected = [one[:5] for one in held(then.buffer) if one[0] in still_held]
    assert [one[:5] for one in held(world.buffer)] == expected
    stats = world.buffer.stats()
    assert stats.added - stats.evicted == len(world.buffer)
    # A buffer that is built anew from what is left goes the same way: nothing of what was cut is left anywhere.
    twin = world.twin(**arguments)
    for operation in after:
        assert world.do(operation) == twin.do(operation)
        assert_same_state(world.buffer, twin.buffer)
    assert_same(world.buffer, twin.buffer)


def test_with_too_many_unfinished_episodes_there_is_no_moment_to_go_back_to():
    buffer = EpisodicReplayBuffer(SPECS["plain"], 2000)
    ids = buffer.create_episode_ids(1001).numpy()
    buffer.add_batch({"value": np.arange(1001)}, ids)
    buffer.mark_step(1)
    buffer.add_batch({"value": np.arange(1)}, np.array([-1]))
    with pytest.raises(ValueError, match="at most 1000 unfinished episodes beside the streams', and there are more"):
        buffer.mark_step(2)
    buffer.get_state()  # saving is another matter


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"next_id": 99}, "comes after what is held"),
        ({"next_id": -1}, "is no moment of an episodic buffer"),
        ({"open": []}, "is no moment of an episodic buffer"),
        ({"growing": [[0, "a"]]}, "is no moment of an episodic buffer"),
        ({"growing": None}, "is no moment of an episodic buffer"),
    ],
)
def test_a_moment_of_another_buffer_is_refused(change, message):
    world = four_episodes()
    before = held(world.buffer)
    with pytest.raises(ValueError, match=message):
        world.buffer._cut_back({**world.buffer._moment(), **change})
    assert held(world.buffer) == before
