"""Buffers of many agents against naive lists of what each agent did, over random births, deaths and turns."""

import collections
import dataclasses
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    BufferInfo,
    EmptyBufferError,
    EpisodicReplayBuffer,
    MultiAgentReplayBuffer,
    TableConfig,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
)
from replayfeed.pipelines import n_step, of_agent

FIRST, MID, LAST = 0, 1, 2
POISON = -999
FIELDS = {
    "value": tf.TensorSpec([], tf.int64),
    "noise": tf.TensorSpec([2], tf.float32),
    "reward": tf.TensorSpec([], tf.float32),
}
SPECS = {
    "untold": FIELDS,
    "is_last": {**FIELDS, "is_last": tf.TensorSpec([], tf.bool)},
    "step_type": {**FIELDS, "step_type": tf.TensorSpec([], tf.int32)},
}
AGENTS = ("wolf", "sheep", "dog", "ant")  # not in the order in which nests put them


@dataclasses.dataclass(frozen=True)
class Frame:
    """What one agent did in one moment; `life` numbers its lives in its environment, `final` is an observation only."""

    value: int
    time: int
    life: int
    final: bool


@dataclasses.dataclass
class Episode:
    """Consecutive entries: frames of one life of one agent, or moments of an environment."""

    entries: list[Any] = dataclasses.field(default_factory=list)
    is_over: bool = False


@dataclasses.dataclass(frozen=True)
class Moment:
    """What all agents of one environment did, and whether all of it is final observations."""

    time: int
    frames: dict[str, Frame]
    final: bool


class Stream:
    """Episodes one after the other, of which the newest `capacity` entries are held."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.episodes: list[Episode] = []

    def add(self, entry: Any) -> None:
        if not self.episodes or self.episodes[-1].is_over:
            self.episodes.append(Episode())
        self.episodes[-1].entries.append(entry)

    def end(self) -> None:
        if self.episodes:
            self.episodes[-1].is_over = True

    def held(self) -> list[Any]:
        return [entry for episode in self.episodes for entry in episode.entries][-self.capacity :]

    def windows(self, window: Window) -> Iterator[list[Any]]:
        """Every window that may be drawn, None where it is padding."""
        num_gone = sum(len(episode.entries) for episode in self.episodes) - len(self.held())
        for episode in self.episodes:
            entries = episode.entries
            for start, entry in enumerate(entries):
                first = max(start - window.burn_in, 0)
                if num_gone > first or entry.final or start % window.stride:
                    continue
                row = entries[first : start + window.num_steps]
                num_missing = window.num_steps - (len(entries) - start)
                if num_missing > 0 and (window.short == "drop" or not episode.is_over):
                    continue
                yield [*[None] * (window.burn_in - start + first), *row, *[None] * max(num_missing, 0)]
            num_gone -= len(entries)


class World:
    """The model: what was added, of each agent in each environment and of each environment; and who lives."""

    def __init__(self, agents: tuple[str, ...], batch_size: int, capacity: int) -> None:
        self.agents = agents
        self.batch_size = batch_size
        self.capacity = capacity
        self.times = [0] * batch_size
        self.num_lives = collections.Counter[tuple[str, int]]()
        self.alive: list[set[str]] = [set() for _ in range(batch_size)]
        self.forget()

    def forget(self) -> None:
        """All that was held is gone, and everybody's life is over."""
        every = [(agent, b) for agent in self.agents for b in range(self.batch_size)]
        self.of_agents = {each: Stream(self.capacity) for each in every}
        self.of_environments = [Stream(self.capacity) for _ in range(self.batch_size)]
        for b in range(self.batch_size):
            self.alive[b].clear()

    def end(self, b: int, agent: str | None = None) -> None:
        """An environment's episode ends, or one life in it; with the last of its lives the episode does."""
        for each in self.agents if agent is None else (agent,):
            self.of_agents[each, b].end()
        had_alive = bool(self.alive[b])
        self.alive[b] -= set(self.agents) if agent is None else {agent}
        if agent is None or (had_alive and not self.alive[b]):
            self.of_environments[b].end()

    def moment(self, b: int, acts: dict[str, "Act"], is_end: bool) -> None:
        """One moment of one environment, `acts` of the agents that are present in it."""
        for agent, act in acts.items():
            if act.begins:
                self.of_agents[agent, b].end()
        again = [agent for agent, act in acts.items() if act.begins and agent in self.alive[b]]
        if again and all(act.begins for act in acts.values()) and self.alive[b] <= set(again):
            # Nobody goes on: the environment was reset without a word.
            self.of_environments[b].end()
            self.alive[b].clear()
        self.alive[b].difference_update(again)
        frames = {}
        for agent, act in acts.items():
            if agent not in self.alive[b]:
                self.num_lives[agent, b] += 1
            self.alive[b].add(agent)
            frames[agent] = Frame(act.value, self.times[b], self.num_lives[agent, b], act.is_last)
            self.of_agents[agent, b].add(frames[agent])
        for agent, act in acts.items():
            if act.is_last or act.is_told:
                self.of_agents[agent, b].end()
                self.alive[b].discard(agent)
        is_over = is_end or bool(acts) and not self.alive[b]
        if acts:
            final = is_over and all(frame.final for frame in frames.values())
            self.of_environments[b].add(Moment(self.times[b], frames, final))
            self.times[b] += 1
        if is_over:
            self.of_environments[b].end()
            self.alive[b].clear()
        if is_end:
            for agent in self.agents:
                self.of_agents[agent, b].end()


@dataclasses.dataclass(frozen=True)
class Act:
    """What is given of one agent in one environment: flags in the items, and by `end_of_episode`."""

    value: int
    begins: bool = False
    is_last: bool = False
    is_told: bool = False


class Writer:
    """Makes a random history, and tells it to the buffer and to the model."""

    def __init__(self, rng: random.Random, buffer: MultiAgentReplayBuffer, world: World, told_by: str) -> None:
        self.rng = rng
        self.buffer = buffer
        self.world = world
        self.told_by = told_by
        self.turns = rng.random() < 0.4
        self.has_priorities = rng.random() < 0.3
        self.next_value = 0
        self.ids: dict[int, int] = {}  # of the value of a frame; in lockstep of that of each of the moment's

    def write(self, num_calls: int) -> None:
        calls = [self.add_moment] * 12 + [self.add_moments] * 2 + [self.end_stream, self.end_life]
        for _ in range(num_calls):
            (self.clear if self.rng.random() < 0.02 else self.rng.choice(calls))()

    def clear(self) -> None:
        self.buffer.clear()
        self.world.forget()

    def end_stream(self) -> None:
        b = self.rng.choice([None, *range(self.world.batch_size)])
        self.buffer.end_stream(b)
        for each in range(self.world.batch_size) if b is None else (b,):
            self.world.end(each)

    def end_life(self) -> None:
        b = self.rng.choice([None, *range(self.world.batch_size)])
        agent = self.rng.choice(self.world.agents)
        self.buffer.end_stream(b, agent=agent)
        for each in range(self.world.batch_size) if b is None else (b,):
            self.world.end(each, agent)

    def act(self, agent: str, b: int) -> Act:
        self.next_value += 1
        is_last = self.told_by != "untold" and self.rng.random() < 0.15
        begins = (
            self.told_by == "step_type"
            and not is_last
            and self.rng.random() < (0.05 if agent in self.world.alive[b] else 0.7)
        )
        return Act(self.next_value, begins, is_last)

    def present(self) -> dict[str, list[bool]]:
        """By agent in which environments it is present."""
        every = range(self.world.batch_size)
        if self.turns:
            whose = [self.rng.choice(self.world.agents) for _ in every]
            return {agent: [whose[b] == agent for b in every] for agent in self.world.agents}
        chance = self.rng.choice([0.5, 0.9, 1.0])
        return {agent: [self.rng.random() < chance for _ in every] for agent in self.world.agents}

    def add_moment(self) -> None:
        every = range(self.world.batch_size)
        present = self.present()
        # An agent that is nowhere may as well be left out.
        items_of = [agent for agent, there in present.items() if any(there) or self.rng.random() < 0.3]
        acts = {agent: [self.act(agent, b) if present[agent][b] else None for b in every] for agent in items_of}
        ends, env_ends = None, [False] * len(every)
        kind = self.rng.random()
        if kind < 0.15:
            ends = env_ends = [self.rng.random() < 0.4 for _ in every]
        elif kind < 0.4:
            # Also of agents that have no frame: killed when it is not their turn.
            named = [agent for agent in self.world.agents if self.rng.random() < 0.6]
            ends = {agent: [self.rng.random() < 0.4 for _ in every] for agent in named}
            acts = {
                agent: [
                    act and dataclasses.replace(act, is_told=agent in ends and ends[agent][b])
                    for b, act in enumerate(acts[agent])
                ]
                for agent in acts
            }
        given = {agent: np.array(present[agent]) for agent in items_of}
        if all(map(all, given.values())) and self.rng.random() < 0.7:
            given = {}
        ids = self.buffer.add_batch(
            {agent: self.items(acts[agent]) for agent in self.shuffled(items_of)},
            end_of_episode=as_arrays(ends),
            priorities=self.priorities({agent: [POISON if a is None else 1 for a in acts[agent]] for agent in acts}),
            present=given or None,
        )
        for b in every:
            here = {agent: acts[agent][b] for agent in items_of if acts[agent][b] is not None}
            self.world.moment(b, here, env_ends[b])
            self.note(ids, (b,), here)
            for agent in ends if isinstance(ends, dict) else ():
                if ends[agent][b] and agent not in here:
                    self.world.end(b, agent)

    def add_moments(self) -> None:
        """A sequence: the same agents present everywhere."""
        every, num_steps = range(self.world.batch_size), self.rng.randrange(4)
        agents = [agent for agent in self.world.agents if self.rng.random() < 0.7] or [self.world.agents[0]]
        acts: dict[str, list[list[Act]]] = {agent: [[] for _ in every] for agent in agents}
        told = self.rng.random() < 0.4
        ends = [[told and self.rng.random() < 0.3 for _ in range(num_steps)] for _ in every]
        for agent in agents:
            for b in every:
                acts[agent][b] = [self.act(agent, b) for _ in range(num_steps)]
        ids = self.buffer.add_sequence(
            {agent: self.items(acts[agent]) for agent in self.shuffled(agents)},
            end_of_episode=np.array(ends, bool).reshape(len(every), num_steps) if told else None,
            priorities=self.priorities({agent: np.ones([len(every), num_steps]) for agent in agents}),
        )
        for b in every:
            for t in range(num_steps):
                here = {agent: acts[agent][b][t] for agent in agents}
                self.world.moment(b, here, ends[b][t])
                self.note(ids, (b, t), here)

    def note(self, ids: Any, place: tuple[int, ...], here: dict[str, Act]) -> None:
        """Ids are -1 where nobody was, and the frame's own otherwise."""
        if self.buffer.mode == "lockstep":
            assert (ids[place] >= 0) == bool(here)
            self.ids.update((act.value, int(ids[place])) for act in here.values())
            return
        for agent in ids:
            assert (ids[agent][place] >= 0) == (agent in here)
        self.ids.update((act.value, int(ids[agent][place])) for agent, act in here.items())

    def priorities(self, by_agent: dict[str, Any]) -> Any:
        if not self.has_priorities or not by_agent:
            return None
        if self.buffer.mode == "lockstep":
            return np.ones(np.shape(next(iter(by_agent.values()))))
        return {agent: np.array(each, float) for agent, each in by_agent.items()}

    def shuffled(self, agents: list[str]) -> list[str]:
        return self.rng.sample(agents, len(agents))

    def items(self, acts: list[Any]) -> dict[str, np.ndarray]:
        """Leaves `[B, ...]` or `[B, T, ...]` of acts; where there is none, what nobody may ever see."""

        def leaf(number: Callable[[Act], Any], poison: Any, dtype: type) -> np.ndarray:
            def each(act: Any) -> Any:
                return [each(one) for one in act] if isinstance(act, list) else poison if act is None else number(act)

            return np.array(each(acts), dtype)

        noise = leaf(lambda act: act.value + 0.5, np.nan, np.float32)
        items = {
            "value": leaf(lambda act: act.value, POISON, np.int64),
            "noise": np.stack([noise, -noise], -1),
            "reward": leaf(lambda act: act.value / 4, np.nan, np.float32),
        }
        if self.told_by == "is_last":
            items["is_last"] = leaf(lambda act: act.is_last, True, bool)
        if self.told_by == "step_type":
            items["step_type"] = leaf(lambda act: FIRST if act.begins else LAST if act.is_last else MID, LAST, np.int32)
        return items


def as_arrays(ends: Any) -> Any:
    if isinstance(ends, dict):
        return {agent: np.array(each, bool) for agent, each in ends.items()}
    return None if ends is None else np.array(ends, bool)


# What the model says, and what the buffer gives, in the same words: a row is a tuple of (value or None) by frame.


def expected_of_policy(world: World, agents: tuple[str, ...], window: Window) -> list[Any]:
    """Of an independent policy: (agent, frames) of each window."""
    rows = [
        (agent, tuple(frame and (frame.value, frame.time) for frame in row))
        for agent in agents
        for b in range(world.batch_size)
        for row in world.of_agents[agent, b].windows(window)
    ]
    return sorted(rows, key=str)


def expected_in_lockstep(world: World, window: Window) -> list[Any]:
    """(times, {agent: values}) of each window: of each agent one life, that of its first frame from the drawn one."""
    rows = []
    for stream in world.of_environments:
        for row in stream.windows(window):
            by_agent = []
            for agent in world.agents:
                frames = [moment.frames.get(agent) if moment else None for moment in row]
                lives = [frame.life for frame in frames[window.burn_in :] if frame]
                shown = lives[0] if lives else None
                by_agent.append(tuple(frame.value if frame and frame.life == shown else None for frame in frames))
            rows.append((tuple(moment and moment.time for moment in row), tuple(by_agent)))
    return sorted(rows, key=str)


def values_of(items: Any, mask: np.ndarray) -> list[list[int | None]]:
    """Values `[n, T]`, None where the mask is False; each real frame is whole, and no poison, no zero is one."""
    values, noise = np.asarray(items["value"]), np.asarray(items["noise"])
    assert (values[mask] > 0).all()
    np.testing.assert_array_equal(noise[mask], np.stack([values[mask] + 0.5, -values[mask] - 0.5], -1))
    return np.where(mask, values, None).tolist()


def got_of_policy(items: Any, info: BufferInfo, writer: Writer) -> list[Any]:
    mask, times = np.asarray(info.mask), np.asarray(info.times)
    rows = values_of(items, mask)
    expected_ids = [[-1 if value is None else writer.ids[value] for value in row] for row in rows]
    np.testing.assert_array_equal(info.ids, expected_ids)
    assert (times[~mask] == -1).all()
    return [
        (writer.world.agents[agent], tuple(v and (v, t) for v, t in zip(row, its_times, strict=True)))
        for agent, row, its_times in zip(np.asarray(info.agents).tolist(), rows, times.tolist(), strict=True)
    ]


def got_in_lockstep(items: Any, info: BufferInfo, writer: Writer) -> list[Any]:
    ids, times = np.asarray(info.ids), np.asarray(info.times)
    assert list(items) == list(writer.world.agents) == list(info.mask) or set(items) == set(writer.world.agents)
    by_agent = [values_of(items[agent], np.asarray(info.mask[agent])) for agent in writer.world.agents]
    for values in by_agent:
        for row, its_ids in zip(values, ids.tolist(), strict=True):
            assert all(v is None or writer.ids[v] == i for v, i in zip(row, its_ids, strict=True))
    return [
        (
            tuple(None if i == -1 else t for i, t in zip(ids[row].tolist(), times[row].tolist(), strict=True)),
            tuple(tuple(values[row]) for values in by_agent),
        )
        for row in range(len(ids))
    ]


def held(writer: Writer, window: Window, policy: str | None) -> list[Any]:
    """What the model says may be drawn."""
    if policy is None:
        return expected_in_lockstep(writer.world, window)
    return expected_of_policy(writer.world, writer.buffer.agents_of(policy), window)


def check(writer: Writer, window: Window, *, policy: str | None, by_dataset: bool) -> int:
    """A pass gives each of the model's windows once, draws only those; how many there are."""
    buffer = writer.buffer
    expected = held(writer, window, policy)
    got = got_in_lockstep if policy is None else got_of_policy
    if not expected:
        with pytest.raises(EmptyBufferError):
            buffer.sample(2, window=window, policy=policy)
        return 0
    items, info = buffer.sample(5 * len(expected), window=window, policy=policy)
    rows = got(items, info, writer)
    assert set(rows) <= set(expected), (sorted(set(rows) - set(expected), key=str)[:3], window)
    # Each of up to some 100 is in 5 draws on average.
    assert len(set(rows)) > len(expected) / 3
    assert np.asarray(info.probabilities) == pytest.approx(1 / len(expected), rel=1e-3)
    if by_dataset:
        dataset = buffer.as_dataset(3, window=window, policy=policy, single_deterministic_pass=True)
        passed = [row for element in dataset for row in got(*element, writer)]
        assert sorted(passed, key=str) == expected, window
    return len(expected)


def check_held(writer: Writer) -> None:
    """What is held is exactly the newest of each stream."""
    buffer, world = writer.buffer, writer.world
    gathered = buffer.gather_all()
    assert set(gathered) == set(world.agents)
    for agent in world.agents:
        if buffer.mode == "lockstep":
            moments = [stream.held() for stream in world.of_environments]
            rows = [[moment.frames[agent].value for moment in each if agent in moment.frames] for each in moments]
        else:
            rows = [[f.value for f in world.of_agents[agent, b].held()] for b in range(world.batch_size)]
        assert gathered[agent]["value"].to_list() == rows
    streams = world.of_environments if buffer.mode == "lockstep" else world.of_agents.values()
    assert len(buffer) == sum(len(stream.held()) for stream in streams) == int(buffer.num_frames())


WINDOWS = [
    Window(1),
    Window(2),
    Window(3),
    Window(2, burn_in=2),
    Window(3, burn_in=1, short="pad"),
    Window(2, stride=2),
]
RINGS = {"uniform": TFUniformReplayBuffer, "prioritized": TFPrioritizedReplayBuffer}

histories = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "num_agents": st.integers(1, 4),
        "num_policies": st.integers(1, 3),
        "batch_size": st.integers(1, 3),
        "capacity": st.integers(3, 14),
        "num_calls": st.integers(0, 40),
        "told_by": st.sampled_from(list(SPECS)),
    }
)


def written(mode: Any, make_buffer: Any, history: dict[str, Any], *, capacity: int | None = None) -> Writer:
    """A buffer and its model after a random history; `capacity` None: that of the history, of each stream."""
    agents = AGENTS[: history["num_agents"]]
    policy_of = {agent: f"policy_{index % history['num_policies']}" for index, agent in enumerate(agents)}
    if capacity is None:
        make_buffer, capacity = functools.partial(make_buffer, max_length=history["capacity"]), history["capacity"]
    buffer = MultiAgentReplayBuffer(
        dict.fromkeys(agents, SPECS[history["told_by"]]),
        policy_of,
        make_buffer,
        mode=mode,
        batch_size=history["batch_size"],
    )
    world = World(agents, history["batch_size"], capacity)
    writer = Writer(random.Random(history["seed"]), buffer, world, history["told_by"])
    writer.write(history["num_calls"])
    return writer


def checked(writer: Writer, *, windows: list[Window] = WINDOWS) -> None:
    """Each kind of window by draws, of each policy; of one, now and then, a pass: a dataset takes time to build."""
    policies = [None] if writer.buffer.mode == "lockstep" else list(writer.buffer.policies)
    passed = (writer.rng.choice(policies), writer.rng.choice(windows)) if writer.rng.random() < 0.25 else None
    num = 0
    for policy in policies:
        for window in windows:
            num += check(writer, window, policy=policy, by_dataset=(policy, window) == passed)
    event(f"windows: {'none' if not num else 'some'}")


quiet = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("kind", RINGS)
@pytest.mark.parametrize("mode", ["independent", "lockstep"])
@quiet
@given(history=histories)
def test_rings_give_the_models_windows_whoever_lives_and_dies(mode, kind, history):
    writer = written(mode, RINGS[kind], history)
    check_held(writer)
    checked(writer)


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
@quiet
@given(history=histories)
def test_buffers_of_episodes_give_the_models_windows_whoever_lives_and_dies(mode, history):
    make = functools.partial(EpisodicReplayBuffer, capacity=10_000, seed=3)
    checked(written(mode, make, history, capacity=10_000))


@pytest.mark.parametrize("window", [Window(2), Window(3, burn_in=1, short="pad")], ids=["plain", "padded"])
@pytest.mark.parametrize("mode", ["independent", "lockstep"])
@settings(quiet, max_examples=5, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # each example starts a server
@given(history=histories)
def test_served_tables_give_the_models_windows_whoever_lives_and_dies(mode, window, history):
    table = TableConfig(
        "replay",
        FIELDS,  # replaced by what is stored
        max_size=10_000,
        sequence_length=window.num_steps,
        burn_in=window.burn_in,
        short=window.short,
        scannable=True,
    )
    writer = written(mode, table, history, capacity=10_000)
    with writer.buffer as buffer:
        buffer.flush()
        for policy in [None] if mode == "lockstep" else buffer.policies:
            if held(writer, window, policy):  # a table that is empty is waited for
                check(writer, window, policy=policy, by_dataset=True)


# One agent's view


def transition_of(frames: list[Frame | None], n: int, gamma: float) -> tuple[float, float, int] | None:
    """(reward, discount, next observation) of `n + 1` rows of one agent, by hand; None: there is none."""
    real = [frame for frame in frames if frame]
    if frames[0] is None or len(real) == 1:
        return None
    steps = min(n, len(real) - 1)
    return sum(gamma**j * real[j].value / 4 for j in range(steps)), gamma**steps, real[steps].value


def rows_of_view(row: list[Moment | None], agent: str) -> list[Frame | None]:
    """The agent's frames in a window of moments: one life of it, without the moments in which it had no turn."""
    frames = [moment.frames.get(agent) if moment else None for moment in row]
    life = next((frame.life for frame in frames if frame), None)
    shown = [frame for frame in frames if frame and frame.life == life]
    num_before = frames.index(shown[0]) if shown else len(frames)
    return [None] * num_before + shown + [None] * (len(frames) - num_before - len(shown))


@quiet
@given(history=histories.filter(lambda history: history["told_by"] != "step_type"))
def test_n_step_of_one_agents_view_is_that_of_its_own_frames(history):
    writer = written("lockstep", TFUniformReplayBuffer, history)
    window, gamma = Window(4, short="pad"), 0.5
    rows = [row for stream in writer.world.of_environments for row in stream.windows(window)]
    if not rows:
        return
    row_of = {tuple(moment and moment.time for moment in row): [] for row in rows}
    for row in rows:
        row_of[tuple(moment and moment.time for moment in row)].append(row)
    items, info = writer.buffer.sample(5 * len(rows), window=window)
    times = [tuple(None if i == -1 else t for i, t in zip(*each, strict=True)) for each in zip_rows(info)]
    for agent in writer.world.agents:
        transition, its_info = n_step(2, gamma, observation="value", action=None)(*of_agent(agent, 3)(items, info))
        got = zip(
            *(np.asarray(leaf).tolist() for leaf in (transition.reward, transition.discount)),
            np.asarray(transition.next_observation).tolist(),
            strict=True,
        )
        for drawn_at, mask, weight, mine in zip(times, its_info.mask, its_info.weights, got, strict=True):
            # Environments may have the same times: one of their windows it is.
            allowed = [transition_of(rows_of_view(row, agent)[:3], 2, gamma) for row in row_of[drawn_at]]
            assert bool(mask) == bool(weight)
            assert (mine if mask else None) in allowed
            assert mask or mine[:2] == (0, 0)


def zip_rows(info: BufferInfo) -> Iterator[tuple[list[int], list[int]]]:
    return zip(np.asarray(info.ids).tolist(), np.asarray(info.times).tolist(), strict=True)
