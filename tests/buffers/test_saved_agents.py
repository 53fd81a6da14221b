"""Buffers of many agents, saved and restored: all of their buffers, as of one moment, or nothing."""

import dataclasses
import functools
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    BufferConfig,
    EmptyBufferError,
    EpisodicReplayBuffer,
    MultiAgentReplayBuffer,
    ReservoirReplayBuffer,
    TableConfig,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
)
from replayfeed.pipelines import n_step, of_agent

MODES = ("independent", "lockstep")
POLICIES = {"wolf_1": "wolf", "sheep": "sheep", "wolf_0": "wolf"}  # in no order
SPEC = {"value": tf.TensorSpec([], tf.int64)}
MAKERS = {
    "uniform": functools.partial(TFUniformReplayBuffer, max_length=7, seed=3),
    "prioritized": functools.partial(TFPrioritizedReplayBuffer, max_length=7, seed=3),
    "reservoir": functools.partial(ReservoirReplayBuffer, capacity=9, seed=3),
    "episodic": functools.partial(EpisodicReplayBuffer, capacity=7, seed=3),
}


def make(mode: Any = "independent", make_buffer: Any = MAKERS["uniform"], **changed: Any) -> MultiAgentReplayBuffer:
    arguments: dict[str, Any] = {"data_specs": dict.fromkeys(POLICIES, SPEC), "policy_of": POLICIES} | changed
    return MultiAgentReplayBuffer(**arguments, make_buffer=make_buffer, mode=mode)


def values(*numbers: int) -> dict[str, np.ndarray]:
    return {"value": np.array(numbers, np.int64)}


def add(buffer: MultiAgentReplayBuffer, number: int, agents: Any = tuple(POLICIES), **arguments: Any) -> Any:
    """A moment in which each of these agents has the number, plus 100 or 200 for the second and third by name."""
    order = sorted(POLICIES)
    return buffer.add_batch({agent: values(number + 100 * order.index(agent)) for agent in agents}, **arguments)


def held(buffer: MultiAgentReplayBuffer) -> dict[str, Any]:
    """By agent the values that are held of it, by row."""
    return {agent: rows["value"].to_list() for agent, rows in buffer.gather_all().items()}


def times(buffer: MultiAgentReplayBuffer) -> list[set[int]]:
    """Of each part the moments that its frames are of."""
    keys = [None] if buffer.mode == "lockstep" else buffer.policies
    leaves = [buffer.buffer_of(key).gather_all().time for key in keys]
    return [set(tf.reshape(getattr(leaf, "flat_values", leaf), [-1]).numpy().tolist()) for leaf in leaves]


# A random history goes on after a restore as if nothing had happened


class History:
    """Births, deaths, turns, ends and draws, at random; two with equal seeds are the same."""

    def __init__(self, seed: int, batch_size: int, *, together: bool, told: bool) -> None:
        self.rng = random.Random(seed)
        self.batch_size = batch_size
        self.together = together
        self.told = told
        self.number = 0

    def happen(self, buffer: MultiAgentReplayBuffer, num: int) -> None:
        calls = [self.add_moment] * 10 + [self.add_moments] * 2 + [self.draw] * 3
        calls += [self.end_environment, self.end_life] + [self.clear] * (self.rng.random() < 0.1)
        for _ in range(num):
            self.rng.choice(calls)(buffer)

    def some(self, chance: float) -> list[bool]:
        return [self.rng.random() < chance for _ in range(self.batch_size)]

    def items(self, outer: tuple[int, ...]) -> dict[str, np.ndarray]:
        size = int(np.prod(outer))
        numbers = np.arange(self.number, self.number + size).reshape(outer)
        self.number += size
        items = {"value": numbers, "reward": numbers.astype(np.float32) / 4}
        if self.told:
            items["is_last"] = np.array([self.rng.random() < 0.1 for _ in range(size)]).reshape(outer)
        return items

    def add_moment(self, buffer: MultiAgentReplayBuffer) -> None:
        agents = sorted(POLICIES) if self.together else [a for a in sorted(POLICIES) if self.rng.random() < 0.8]
        items = {agent: self.items((self.batch_size,)) for agent in self.rng.sample(agents, len(agents))}
        present = None
        if not self.together and self.rng.random() < 0.5:
            present = {agent: np.array(self.some(0.7)) for agent in items}
        ends: Any = None
        kind = self.rng.random()
        if kind < 0.1:
            ends = np.array(self.some(0.5))
        elif kind < 0.3:
            ends = {agent: np.array(self.some(0.5)) for agent in sorted(POLICIES) if self.rng.random() < 0.6}
        priorities: Any = None
        if self.rng.random() < 0.2:
            weights = np.array([self.rng.random() for _ in range(self.batch_size)])
            priorities = weights if buffer.mode == "lockstep" else dict.fromkeys(items, weights)
        buffer.add_batch(items, end_of_episode=ends, present=present, priorities=priorities)

    def add_moments(self, buffer: MultiAgentReplayBuffer) -> None:
        agents = sorted(POLICIES) if self.together else [a for a in sorted(POLICIES) if self.rng.random() < 0.8]
        outer = (self.batch_size, self.rng.randrange(1, 4))
        buffer.add_sequence({agent: self.items(outer) for agent in agents})

    def end_environment(self, buffer: MultiAgentReplayBuffer) -> None:
        buffer.end_stream(self.rng.choice([None, *range(self.batch_size)]))

    def end_life(self, buffer: MultiAgentReplayBuffer) -> None:
        buffer.end_stream(self.rng.randrange(self.batch_size), agent=self.rng.choice(sorted(POLICIES)))

    def clear(self, buffer: MultiAgentReplayBuffer) -> None:
        buffer.clear()

    def draw(self, buffer: MultiAgentReplayBuffer) -> Any:
        """What is drawn, as plain values; priorities change by it."""
        window = self.rng.choice([None, Window(2), Window(3, burn_in=1, short="pad")])
        if window is not None and isinstance(buffer.buffer_of(own_key(buffer)), ReservoirReplayBuffer):
            window = None
        num, error = self.rng.randrange(1, 6), self.rng.random()
        drawn = []
        for policy in [None] if buffer.mode == "lockstep" else sorted(buffer.policies):
            try:
                items, info = buffer.sample(num, window=window, policy=policy)
            except EmptyBufferError as none:
                drawn.append(str(none))
                continue
            drawn.append(plain((items, by_name(info, buffer))))
            buffer.buffer_of(policy).update_priorities(info.keys, td_errors=np.full(num, error))
            if window is not None and buffer.mode == "lockstep":
                drawn += [plain(of_agent(agent, burn_in=window.burn_in)(items, info)[0]) for agent in sorted(POLICIES)]
        return drawn


def own_key(buffer: MultiAgentReplayBuffer) -> str | None:
    return None if buffer.mode == "lockstep" else buffer.policies[0]


def by_name(info: Any, buffer: MultiAgentReplayBuffer) -> dict[str, Any]:
    """An info whose agents have names: their numbers are those of the order in which they were given."""
    found = info._asdict()
    if "agents" in found:
        found["agents"] = [buffer.agents[number] for number in np.ravel(found["agents"])]
    return found


def plain(value: Any) -> Any:
    """Nests of tensors as nests of lists, in which NaN equals itself."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in sorted(value.items())}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    return value if isinstance(value, str) else np.asarray(value).tolist()


def seen(buffer: MultiAgentReplayBuffer) -> Any:
    """All that can be seen of a buffer without drawing."""
    keys = [None] if buffer.mode == "lockstep" else sorted(buffer.policies)
    parts = [buffer.buffer_of(key) for key in keys]
    return [
        plain(buffer.gather_all()),
        [plain(part.gather_all()) for part in parts],
        [dataclasses.asdict(part.stats()) for part in parts],
        dataclasses.asdict(buffer.stats()),
    ]


quiet = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])

histories = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "batch_size": st.integers(1, 3),
        "together": st.booleans(),
        "told": st.booleans(),
        "before": st.integers(0, 40),
    }
)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("mode", MODES)
@quiet
@given(drawn=histories)
def test_a_restored_buffer_goes_on_as_the_one_that_was_saved(tmp_path_factory, mode, kind, drawn):
    told, together, batch_size = drawn["told"], drawn["together"], drawn["batch_size"]
    spec = {**SPEC, "reward": tf.TensorSpec([], tf.float32)} | ({"is_last": tf.TensorSpec([], tf.bool)} if told else {})
    build = functools.partial(
        make,
        mode,
        MAKERS[kind],
        batch_size=batch_size,
        streams="together" if together else "apart",
    )
    saved = build(data_specs=dict.fromkeys(POLICIES, spec))
    before = History(drawn["seed"], batch_size, together=together, told=told)
    before.happen(saved, drawn["before"])
    folder = tmp_path_factory.mktemp("saves")
    saved.save(folder)
    # In the next process a set of agents has another order.
    restored = build(
        data_specs=dict.fromkeys(reversed(POLICIES), spec),
        policy_of={agent: POLICIES[agent] for agent in sorted(POLICIES)},
    )
    restored.restore(folder)
    assert seen(restored) == seen(saved)
    for buffer in (saved, restored):
        after = History(drawn["seed"] + 1, batch_size, together=together, told=told)
        after.number = before.number
        found = []
        for _ in range(3):
            after.happen(buffer, 8)
            found.append([after.draw(buffer), seen(buffer)])
        if buffer is saved:
            expected = found
    assert found == expected


def test_a_new_process_goes_on_whatever_the_order_of_its_agents(tmp_path, mode="independent"):
    buffer = make(mode, BufferConfig("prioritized", 20, seed=5), batch_size=2)
    for t in range(15):
        agents = ["wolf_0", "sheep", "wolf_1"] if t % 3 else ["wolf_1", "sheep"]
        items = {agent: values(t + 100 * sorted(POLICIES).index(agent), -t) for agent in agents}
        buffer.add_batch(items, end_of_episode=np.array([t == 6, t == 9]))
    buffer.sample(4)
    buffer.save(tmp_path, step=15)
    program = f"""
        import json, sys
        import numpy as np, tensorflow as tf
        from replayfeed.buffers import BufferConfig, MultiAgentReplayBuffer

        policy_of = lambda agent: agent.split("_")[0]
        buffer = MultiAgentReplayBuffer(
            dict.fromkeys(["sheep", "wolf_0", "wolf_1"], {{"value": tf.TensorSpec([], tf.int64)}}),
            policy_of, BufferConfig("prioritized", 20, seed=5), mode={mode!r}, batch_size=2,
        )
        buffer.restore({str(tmp_path)!r})
        items, info = buffer.sample(6)
        buffer.add_batch({{"wolf_1": {{"value": np.array([1000, 1001])}}}})
        held = {{agent: rows["value"].to_list() for agent, rows in buffer.gather_all().items()}}
        print(json.dumps([tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), items), held]))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=100
    )
    items, _ = buffer.sample(6)
    buffer.add_batch({"wolf_1": values(1000, 1001)})
    assert json.loads(ran.stdout) == [tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), items), held(buffer)]


# One moment of all


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by_state", [False, True])
def test_what_is_saved_while_threads_add_is_one_moment_of_all_agents(mode, by_state, tmp_path):
    """No policy has a frame of a moment of which another one has none, or has lost it."""
    build = functools.partial(make, mode, functools.partial(TFUniformReplayBuffer, max_length=50))
    buffer, is_over = build(), threading.Event()

    def add_on() -> None:
        while not is_over.is_set():
            add(buffer, 0)

    for number in range(60):
        add(buffer, number)
    threads = [threading.Thread(target=add_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    newest = []
    try:
        for _ in range(10):
            restored = build()
            if by_state:
                restored.set_state(buffer.get_state())
            else:
                buffer.save(tmp_path, keep_last=1)
                restored.restore(tmp_path)
            newest.append(max(max(each) for each in times(restored)))
            parts = 1 if mode == "lockstep" else 2
            assert times(restored) == [set(range(newest[-1] - 49, newest[-1] + 1))] * parts
            # The next moment is the next one of all.
            add(restored, 7)
            assert times(restored) == [set(range(newest[-1] - 48, newest[-1] + 2))] * parts
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert newest == sorted(newest)


def test_a_buffer_that_cannot_be_captured_leaves_the_others_free(monkeypatch):
    """Frames of the first one are not kept for a save that never comes: beyond 4 MB of them adds would wait."""
    spec = {"value": tf.TensorSpec([2**20], tf.uint8)}
    buffer = make(data_specs=dict.fromkeys(POLICIES, spec))
    frames = dict.fromkeys(POLICIES, {"value": np.zeros([1, 7, 2**20], np.uint8)})
    buffer.add_sequence(frames)
    monkeypatch.setattr(buffer.buffer_of("wolf"), "_capture", lambda: int("a part that fails"))
    with pytest.raises(ValueError, match="a part that fails"):
        buffer.get_state()
    monkeypatch.undo()
    overwrites = threading.Thread(target=buffer.add_sequence, args=(frames,), daemon=True)
    overwrites.start()
    overwrites.join(timeout=60)
    assert not overwrites.is_alive()


def test_who_could_go_on_is_ended_with_the_environment_though_absent(tmp_path):
    saved, other = make(), make()
    add(saved, 0)
    saved.save(tmp_path)
    other.restore(tmp_path)
    add(other, 1, ["sheep"], end_of_episode=np.array([True]))
    add(other, 2, ["wolf_0"])
    with pytest.raises(EmptyBufferError, match="no window of 2 frames"):
        other.sample(1, num_steps=2, policy="wolf")
    assert other.sample(1, num_steps=2, policy="sheep")[0]["value"].numpy().tolist() == [[0, 1]]


def test_an_end_that_nobody_told_is_warned_of_after_a_restore_too(tmp_path):
    build = functools.partial(
        make, "lockstep", data_specs=dict.fromkeys(POLICIES, {**SPEC, "done": tf.TensorSpec([], tf.bool)})
    )
    saved, other = build(), build()
    saved.add_batch({"sheep": {**values(1), "done": np.array([True])}})
    saved.save(tmp_path)
    other.restore(tmp_path)
    with pytest.raises(EmptyBufferError):
        other.sample(1, num_steps=2)
    with pytest.warns(UserWarning, match="a frame followed one with 'done', and no end was told"):
        other.add_batch({"sheep": {**values(2), "done": np.array([False])}})


# All or nothing


def damaged(folder: Any, name: str) -> None:
    """One bit of one file is another one."""
    (file,) = (file for file in sorted(folder.glob(f"step-*/*{name}*")))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("num_here", [0, 3])
@pytest.mark.parametrize("part", [0, 1])
def test_a_part_with_damaged_frames_leaves_all_parts_as_they_are(part, num_here, tmp_path):
    saved, other = make(), make()
    for number in range(5):
        add(saved, number)
    saved.save(tmp_path)
    damaged(tmp_path, f"part-{part}.frames-000000.0")
    for number in range(num_here):
        add(other, 50 + number, ["sheep", "wolf_0"])
    before = seen(other)
    with pytest.raises(ValueError, match=rf"part-{part}\.frames-000000.*damaged"):
        other.restore(tmp_path)
    assert seen(other) == before
    ids = add(other, 7)
    assert (ids["sheep"].tolist(), ids["wolf_1"].tolist()) == ([num_here], [1])
    assert times(other)[0] == set(range(num_here + 1))


@pytest.mark.parametrize("part", ["sheep", "wolf"])
@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("values", "ring"), None, "ring"),
        (("arrays", "sampled"), np.zeros(9, np.uint8), "'sampled' does not fit"),
        (("kind",), "TFPrioritizedReplayBuffer", "a TFPrioritizedReplayBuffer was saved, and this is a TFUniform"),
    ],
)
def test_a_part_that_contradicts_itself_leaves_all_parts_as_they_are(part, path, value, told):
    saved, other = make(), make()
    for number in range(3):
        add(saved, number)
    add(other, 9)
    before, state = seen(other), saved.get_state()
    place = state["parts"][part]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=rf"policy '{part}': .*{told}"):
        other.set_state(state)
    assert seen(other) == before


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("times", np.array([3, 4]), r"'times': expected \[1\] int64, got \[2\] int64"),
        ("times", np.array([-3]), "'times': expected numbers of moments, got -3"),
        ("open", np.zeros([3, 1], np.int8), r"'open': expected \[3, 1\] bool, got \[3, 1\] int8"),
        ("open", None, r"'open': expected \[3, 1\] bool, got nothing"),
    ],
)
def test_who_is_alive_is_checked(name, value, told):
    saved, other = make(), make()
    add(saved, 1)
    state = saved.get_state()
    if value is None:
        del state["arrays"][name]
    else:
        state["arrays"][name] = value
    with pytest.raises(ValueError, match=told):
        other.set_state(state)
    assert len(other) == 0


def test_a_state_of_other_parts_is_refused():
    saved, other = make(), make()
    state = saved.get_state()
    del state["parts"]["wolf"]
    with pytest.raises(ValueError, match="the state holds buffers of 'sheep', and this is one of 'sheep', 'wolf'"):
        other.set_state(state)
    state = make().get_state()
    state["values"]["agents"] = ["sheep"]
    with pytest.raises(ValueError, match=r"'agents': expected 'sheep', 'wolf_0', 'wolf_1', got \['sheep'\]"):
        make().set_state(state)
    state = make("lockstep").get_state()
    state["values"]["loose_flags"] = {"sheep": None}
    with pytest.raises(ValueError, match="'loose_flags': expected one by agent, got {'sheep': None}"):
        make("lockstep").set_state(state)


# What must be the same, and what may be another


def test_a_function_is_compared_by_what_it_says_of_each_agent(tmp_path):
    saved = make(policy_of=lambda agent: agent.split("_")[0])
    add(saved, 1)
    saved.save(tmp_path)
    assert make().restore(tmp_path).frames == 3
    with pytest.raises(ValueError, match=r"policy_of: stored .*'wolf_1': 'wolf'.*, here .*'wolf_1': 'wolf_1'"):
        make(policy_of=lambda agent: agent).restore(tmp_path)


@pytest.mark.parametrize("on_mismatch", ["error", "resize", "keep"])
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"mode": "lockstep"}, "mode"),
        ({"policy_of": dict.fromkeys(POLICIES, "one")}, "policy_of"),
        (
            {"policy_of": {**POLICIES, "cow": "cow"}, "data_specs": dict.fromkeys([*POLICIES, "cow"], SPEC)},
            "policy_of",
        ),
        (
            {"make_buffer": {"sheep": MAKERS["uniform"], "wolf": MAKERS["prioritized"]}},
            r"wolf\.class|policy 'wolf': a TFUniformReplayBuffer was saved, and this is a TFPrioritizedReplayBuffer",
        ),
        (
            {"data_specs": {**dict.fromkeys(POLICIES, SPEC), "sheep": {"value": tf.TensorSpec([], tf.int32)}}},
            "policy 'sheep': data_spec differs from what was saved: .*frame/value",
        ),
    ],
)
def test_whose_frames_they_are_and_of_what_kind_must_be_the_same(changed, told, on_mismatch, tmp_path):
    saved, other = make(), make(**changed)
    add(saved, 1)
    saved.save(tmp_path)
    with pytest.raises(ValueError, match=told):
        other.restore(tmp_path, on_mismatch)
    assert len(other) == 0


def test_settings_that_differ_are_named_after_their_policy(tmp_path):
    saved = make(make_buffer=BufferConfig("uniform", 10))
    saved.save(tmp_path)
    other = make(make_buffer={"wolf": BufferConfig("uniform", 8), "sheep": BufferConfig("uniform", 10)})
    # A wolf pack of two has half of it each.
    with pytest.raises(ValueError, match=r"settings differ from what was saved: wolf\.max_length: stored 5, here 4\."):
        other.restore(tmp_path)
    lockstep = make("lockstep", BufferConfig("uniform", 10))
    lockstep.save(tmp_path)
    with pytest.raises(ValueError, match=r"moments\.max_length: stored 10, here 8\."):
        make("lockstep", BufferConfig("uniform", 8)).restore(tmp_path)


@pytest.mark.parametrize("streams", ["apart", "together"])
def test_streams_that_part_are_not_those_that_do_not(streams, tmp_path):
    make(streams=streams).save(tmp_path)
    other = {"apart": "together", "together": "apart"}[streams]
    for on_mismatch in ("error", "resize"):
        with pytest.raises(ValueError, match=f"streams: stored {streams}|streams: stored '{streams}'"):
            make(streams=other).restore(tmp_path, on_mismatch)
    kept = make(streams=other)
    kept.restore(tmp_path, "keep")
    if streams == "together":
        with pytest.raises(ValueError, match="agent 'wolf_1' is absent"):
            add(kept, 1, ["wolf_0"])
    else:
        add(kept, 1, ["wolf_0"])


def test_a_smaller_buffer_keeps_the_newest_frames_of_each_stream(tmp_path):
    saved = make(make_buffer=functools.partial(TFUniformReplayBuffer, max_length=6))
    for number in range(8):
        add(saved, number)
    saved.save(tmp_path)
    other = make(
        make_buffer={
            "wolf": functools.partial(TFUniformReplayBuffer, max_length=2),
            "sheep": functools.partial(TFUniformReplayBuffer, max_length=9),
        }
    )
    report = other.restore(tmp_path, "resize")
    assert (report.frames, report.dropped) == (2 * 2 + 6, 2 * 4)
    assert report.changed == {"sheep.max_length": (6, 9), "wolf.max_length": (6, 2)}
    add(other, 8)
    assert held(other) == {"wolf_1": [[207, 208]], "sheep": [[2, 3, 4, 5, 6, 7, 8]], "wolf_0": [[107, 108]]}


def test_a_smaller_lockstep_keeps_the_newest_moments(tmp_path):
    saved = make("lockstep", BufferConfig("uniform", 6))
    for number in range(8):
        add(saved, number, ["sheep", "wolf_0"] if number == 7 else tuple(POLICIES))
    saved.save(tmp_path)
    other = make("lockstep", BufferConfig("uniform", 3))
    assert other.restore(tmp_path, "resize").dropped == 3
    add(other, 8)
    assert held(other) == {"wolf_1": [[206, 208]], "sheep": [[6, 7, 8]], "wolf_0": [[106, 107, 108]]}


@pytest.mark.parametrize("mode", MODES)
def test_what_was_stored_can_be_kept(mode, tmp_path):
    saved = make(mode, BufferConfig("uniform", 12, seed=4), batch_size=2)
    for number in range(4):
        saved.add_batch({agent: values(number, 10 + number) for agent in POLICIES})
    saved.save(tmp_path)
    other = make(mode, BufferConfig("uniform", 4, seed=5))
    inner = other.buffer_of(own_key(other))
    other.restore(tmp_path, "keep")
    assert (other.batch_size, other.capacity, seen(other)) == (2, saved.capacity, seen(saved))
    assert plain(other.sample(5)[0]) == plain(saved.sample(5)[0])
    for buffer in (saved, other):
        for number in range(9):
            buffer.add_batch({agent: values(20 + number, 30 + number) for agent in POLICIES})
    assert seen(other) == seen(saved)
    with pytest.raises(ValueError, match="closed"):  # it is no part of it any more
        inner.sample(1)


def test_what_is_read_already_cannot_be_built_anew(tmp_path):
    make(make_buffer=BufferConfig("uniform", 12)).save(tmp_path)
    other = make(make_buffer=BufferConfig("uniform", 4))
    add(other, 1)
    inner = other.buffer_of("sheep")
    other.sample(1, policy="sheep")
    with pytest.raises(ValueError, match="on_mismatch='keep': datasets were made of this buffer"):
        other.restore(tmp_path, "keep")
    assert len(inner) == 1


# Back to a step


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "episodic"])
@pytest.mark.parametrize("mode", MODES)
def test_all_parts_go_back_to_one_moment(mode, kind, tmp_path):
    """What was added since is gone from all of them, and who was alive then is again."""
    build = functools.partial(make, mode, MAKERS[kind])
    buffer, then = build(), build()
    for each in (buffer, then):
        add(each, 0)
        add(each, 1, ["sheep", "wolf_0"], end_of_episode={"sheep": np.array([True])})
        buffer.mark_step(10)
    add(buffer, 2, ["wolf_1"])
    add(buffer, 3, end_of_episode=np.array([True]))
    buffer.save(tmp_path, step=20)
    other = build()
    report = other.restore(tmp_path, step=10, cut_back=True)
    assert (report.step, report.frames) == (10, len(then))
    assert report.cut == len(buffer) - len(then)
    for number in range(4, 7):
        for each in (other, then):
            add(each, number, ["wolf_0"] if number == 4 else ["sheep", "wolf_1"])
    assert plain(other.gather_all()) == plain(then.gather_all())
    assert times(other) == times(then)
    if kind != "uniform":
        return
    windows = [
        plain(list(each.as_dataset(window=Window(2, short="pad"), single_deterministic_pass=True)))
        for each in (other, then)
    ]
    assert windows[0] == windows[1]


def test_a_moment_of_other_buffers_is_refused():
    buffer = make()
    buffer.mark_step(1)
    with pytest.raises(ValueError, match="is no moment of a MultiAgentReplayBuffer"):
        buffer._cut_back(7)
    moment = buffer._moment()
    with pytest.raises(ValueError, match="the moment is of the buffers 'sheep', not 'sheep', 'wolf'"):
        buffer._cut_back({**moment, "parts": {"sheep": moment["parts"]["sheep"]}})


def test_where_one_part_cannot_go_back_none_can():
    buffer = make(make_buffer={"wolf": MAKERS["uniform"], "sheep": MAKERS["reservoir"]})
    with pytest.raises(ValueError, match="mark_step: a MultiAgentReplayBuffer cannot be cut back to a step"):
        buffer.mark_step(1)


# Where it goes, and what reads it


def leaves_of(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for each in state.values() for leaf in leaves_of(each)]
    return [leaf for each in state for leaf in leaves_of(each)] if isinstance(state, list | tuple) else [state]


@pytest.mark.parametrize("mode", MODES)
def test_a_state_is_arrays_and_plain_values_for_object_stores(mode):
    saved = make(mode, BufferConfig("prioritized", 20, seed=1))
    for number in range(5):
        add(saved, number)
    state = saved.get_state()
    assert {type(leaf) for leaf in leaves_of(state)} <= {np.ndarray, int, float, str, bool, type(None)}
    add(saved, 9)  # the state is a copy
    other = make(mode, BufferConfig("prioritized", 20, seed=1))
    other.set_state(ForkingPickler.loads(ForkingPickler.dumps(state)))  # as actors send it
    assert held(other)["sheep"] == [[0, 1, 2, 3, 4]]
    other.set_state(other.get_state())
    assert held(other)["sheep"] == [[0, 1, 2, 3, 4]]


def test_datasets_and_graphs_made_before_read_what_was_restored(tmp_path):
    saved, other = make(), make()
    add(saved, 5)
    saved.save(tmp_path)
    add(other, 1)
    dataset = other.as_dataset(4, policy="wolf")
    draw = tf.function(lambda: other.sample(4, policy="sheep")[0]["value"])
    assert draw().numpy().tolist() == [1] * 4
    other.restore(tmp_path)
    assert draw().numpy().tolist() == [5] * 4
    items, info = next(iter(dataset))
    agents = [other.agents[number] for number in info.agents.numpy()]
    assert items["value"].numpy().tolist() == [{"wolf_0": 105, "wolf_1": 205}[agent] for agent in agents]


def test_tensorflows_checkpoint_restores_it(tmp_path):
    saved, other = make("lockstep"), make("lockstep")
    add(saved, 5)
    path = tf.train.Checkpoint(buffer=saved).save(str(tmp_path / "model"))
    tf.train.Checkpoint(buffer=other).restore(path).assert_consumed()
    assert held(other) == held(saved)


def test_a_second_save_writes_new_frames_only(tmp_path):
    spec = {"value": tf.TensorSpec([1000], tf.float32)}
    buffer = make(make_buffer=BufferConfig("uniform", 400), data_specs=dict.fromkeys(POLICIES, spec))
    frames = dict.fromkeys(POLICIES, {"value": np.zeros([1, 200, 1000], np.float32)})
    buffer.add_sequence(frames)
    first = buffer.save(tmp_path)
    buffer.add_batch({agent: {"value": np.ones([1, 1000], np.float32)} for agent in POLICIES})
    second = buffer.save(tmp_path)
    assert first.num_bytes_written > 3 * 200 * 4000
    assert second.num_bytes_written < 0.1 * first.num_bytes_written
    other = make(make_buffer=BufferConfig("uniform", 400), data_specs=dict.fromkeys(POLICIES, spec))
    assert other.restore(tmp_path).frames == 2 * 200 + 201


def test_tables_are_saved_by_their_server(tmp_path):
    with make("lockstep", TableConfig("replay", SPEC, max_size=10, sequence_length=1)) as buffer:
        for call in (
            functools.partial(buffer.save, tmp_path),
            buffer.get_state,
            functools.partial(buffer.mark_step, 1),
            functools.partial(buffer.set_state, make("lockstep").get_state()),
        ):
            with pytest.raises(ValueError, match="on a Reverb server, .* checkpoint_dir"):
                call()


def test_a_closed_buffer_is_not_saved(tmp_path):
    buffer = make()
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.save(tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_agents_keep_the_numbers_in_which_they_were_given(mode, tmp_path, caplog):
    saved, other = make(mode), make(mode, data_specs=dict.fromkeys(sorted(POLICIES), SPEC))
    add(saved, 5)
    saved.save(tmp_path)
    other.restore(tmp_path)
    assert (saved.agents, other.agents) == (("wolf_1", "sheep", "wolf_0"), ("sheep", "wolf_0", "wolf_1"))
    if mode == "lockstep":
        items, info = other.sample(1)
        assert {agent: items[agent]["value"].numpy().tolist() for agent in POLICIES} == {
            "sheep": [5],
            "wolf_0": [105],
            "wolf_1": [205],
        }
        assert "another order" not in caplog.text
        return
    assert "info.agents numbers them as ['sheep', 'wolf_0', 'wolf_1'] now, and did as ['wolf_1', 'sheep'" in caplog.text
    for buffer in (saved, other):
        items, info = buffer.sample(20, policy="wolf")
        found = {(buffer.agents[n], v) for n, v in zip(info.agents.numpy(), items["value"].numpy(), strict=True)}
        assert found == {("wolf_0", 105), ("wolf_1", 205)}


def test_transforms_see_a_restored_life_as_one(tmp_path):
    build = functools.partial(
        make, "lockstep", data_specs=dict.fromkeys(POLICIES, {**SPEC, "reward": tf.TensorSpec([], tf.float32)})
    )

    def add_rewarded(buffer: MultiAgentReplayBuffer, number: int, *agents: str) -> None:
        reward = np.array([number], np.float32)
        buffer.add_batch({agent: {**values(number), "reward": reward} for agent in agents})

    saved, other = build(), build()
    for number in range(2):
        add_rewarded(saved, number, *POLICIES)
    saved.save(tmp_path)
    other.restore(tmp_path)
    add_rewarded(other, 2, "sheep")
    add_rewarded(other, 3, "sheep", "wolf_0")
    drawn, info = other.sample(1, window=Window(4))  # there is only one
    transition, _ = n_step(3, 0.5, observation="value", action=None)(*of_agent("wolf_0")(drawn, info))
    # Frames 0, 1 and 3 of one life: at 2 it had no turn.
    assert transition.reward.numpy().tolist() == [0 + 0.5 * 1]
    assert transition.next_observation.numpy().tolist() == [3]


@pytest.mark.parametrize("names", [["", "x/y"], ["..", "moments"], ["a.b", "A.B"]])
def test_policies_may_have_any_names(names, tmp_path):
    policy_of = dict(zip(["one", "two"], names, strict=True))

    def build(capacity: int) -> MultiAgentReplayBuffer:
        specs = dict.fromkeys(policy_of, SPEC)
        return MultiAgentReplayBuffer(specs, policy_of, functools.partial(TFUniformReplayBuffer, max_length=capacity))

    saved = build(6)
    for number in range(8):
        saved.add_batch({"one": values(number), "two": values(100 + number)})
        saved.save(tmp_path, keep_last=1)
    for other, on_mismatch in ((build(6), "error"), (build(2), "keep"), (build(9), "resize")):
        assert other.restore(tmp_path, on_mismatch).frames == 12
        assert held(other) == {"one": [[2, 3, 4, 5, 6, 7]], "two": [[102, 103, 104, 105, 106, 107]]}
        other.save(tmp_path / on_mismatch)
        again = build(other.capacity_of(names[0]))
        again.restore(tmp_path / on_mismatch)
        assert held(again) == held(other)


def test_an_iterator_of_all_policies_goes_on_where_it_stood(tmp_path):
    buffers = [make(make_buffer=BufferConfig("uniform", 20, seed=3)) for _ in range(2)]
    for number in range(30):
        add(buffers[0], number)
    iterators = [iter(buffer.as_dataset(4)) for buffer in buffers]
    for _ in range(3):
        next(iterators[0])
    buffers[0].save(tmp_path, iterators={"train": iterators[0]})
    buffers[1].restore(tmp_path, iterators={"train": iterators[1]})
    for _ in range(8):
        assert plain(next(iterators[1])) == plain(next(iterators[0]))
