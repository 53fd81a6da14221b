"""Buffers of many agents as episodes: each life of each agent, whoever stores it."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    BufferConfig,
    EpisodicReplayBuffer,
    MultiAgentReplayBuffer,
    ReservoirReplayBuffer,
    ReverbAgentTables,
    TableConfig,
    TFUniformReplayBuffer,
)
from replayfeed.pipelines.buffer_episodes import buffer_source

NUMBER, FLOAT, FLAG = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.bool)
TRANSITION = {"observation": NUMBER, "next_observation": NUMBER, "is_terminal": FLAG, "is_truncated": FLAG}
STEP = {"observation": NUMBER, "is_first": FLAG, "is_last": FLAG, "is_terminal": FLAG}
WHOLE = ["is_first", "is_last"]


def transitions(*episodes):
    """`(first, num, ending)` each: transitions first -> first + 1 -> ..., `[1, T]`; ending `''` goes on."""
    rows = [
        (first + t, first + t + 1, t == num - 1 and ending == "terminal", t == num - 1 and ending == "truncated")
        for first, num, ending in episodes
        for t in range(num)
    ]
    return {name: np.array([column]) for name, column in zip(TRANSITION, zip(*rows, strict=True), strict=True)}


def told(episode):
    """An episode in short: observations, which flags are set, whether it is partial."""
    columns = episode.columns
    flags = [name for name in ("is_first", "is_last", "is_terminal") if columns[name].any()]
    return columns["observation"].tolist(), flags, bool(episode.metadata["partial"])


def step(observation, *, first=False, last=False, terminal=False):
    return {
        "observation": np.array([observation]),
        "is_first": np.array([first]),
        "is_last": np.array([last]),
        "is_terminal": np.array([terminal]),
    }


MAKE_AGENTS = {
    "independent": lambda policies, specs: MultiAgentReplayBuffer(specs, policies, BufferConfig("uniform", 100)),
    "lockstep": lambda policies, specs: MultiAgentReplayBuffer(
        specs, policies, BufferConfig("uniform", 100), mode="lockstep"
    ),
    "episodic": lambda policies, specs: MultiAgentReplayBuffer(
        specs, policies, lambda data_spec, batch_size: EpisodicReplayBuffer(data_spec, 20, batch_size=batch_size)
    ),
}


def add_lives(buffer):
    """The wolf lives throughout; the sheep dies at the second moment, and is born again at the fourth."""
    buffer.add_batch({"wolf": step(0, first=True), "sheep": step(50, first=True)})
    buffer.add_batch({"wolf": step(1), "sheep": step(51, last=True, terminal=True)})
    buffer.add_batch({"wolf": step(2)})
    buffer.add_batch({"wolf": step(3), "sheep": step(60, first=True)})
    buffer.add_batch({"wolf": step(4, last=True), "sheep": step(61)})


LIVES = {
    "wolf": [([0, 1, 2, 3, 4], WHOLE, False)],
    "sheep": [([50, 51], [*WHOLE, "is_terminal"], False), ([60, 61], ["is_first"], True)],
}


def lives_by_agent(source):
    found_lives = {}
    for episode in source.read(None):
        found_lives.setdefault(episode.metadata["agent_id"].decode(), []).append(told(episode))
    return found_lives


@pytest.mark.parametrize("mode", MAKE_AGENTS)
@pytest.mark.parametrize("policies", [{"wolf": "own", "sheep": "other"}, {"wolf": "both", "sheep": "both"}])
def test_each_life_of_each_agent_is_an_episode(mode, policies):
    buffer = MAKE_AGENTS[mode](policies, {"wolf": STEP, "sheep": STEP})
    add_lives(buffer)
    source = buffer_source(buffer)
    assert lives_by_agent(source) == LIVES
    assert source.metadata_spec == {"partial": FLAG, "agent_id": tf.TensorSpec([], tf.string)}
    assert lives_by_agent(buffer_source(buffer, agent="sheep")) == {"sheep": LIVES["sheep"]}


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
@pytest.mark.parametrize("policies", [{"wolf": "own", "sheep": "other"}, {"wolf": "both", "sheep": "both"}])
def test_agents_have_a_life_in_each_environment(mode, policies):
    specs = {"wolf": TRANSITION, "sheep": TRANSITION}
    buffer = MultiAgentReplayBuffer(specs, policies, BufferConfig("uniform", 100), mode=mode, batch_size=2)
    rows = [transitions((first, 2, "terminal")) for first in (0, 10, 50, 60)]
    both = [
        {name: np.concatenate([one[name], other[name]]) for name in TRANSITION}
        for one, other in zip(rows[::2], rows[1::2], strict=True)
    ]
    buffer.add_sequence({"wolf": both[0], "sheep": both[1]})
    buffer.end_stream()
    ended = [*WHOLE, "is_terminal"]
    assert lives_by_agent(buffer_source(buffer)) == {
        "wolf": [([0, 1, 2], ended, False), ([10, 11, 12], ended, False)],
        "sheep": [([50, 51, 52], ended, False), ([60, 61, 62], ended, False)],
    }


def test_agents_whose_steps_differ_are_written_one_by_one():
    specs = {"wolf": STEP, "sheep": {**STEP, "observation": FLOAT}}
    buffer = MAKE_AGENTS["lockstep"]({"wolf": "own", "sheep": "other"}, specs)
    with pytest.raises(ValueError, match=r"the steps of agents 'sheep' and 'wolf' differ, .*agent='sheep'"):
        buffer_source(buffer)
    assert buffer_source(buffer, agent="sheep").step_spec["observation"] == FLOAT
    with pytest.raises(ValueError, match=r"there is no agent 'cow' in this buffer: 'sheep', 'wolf'\."):
        buffer_source(buffer, agent="cow")


def test_an_agent_of_a_buffer_without_agents_is_refused():
    with pytest.raises(ValueError, match=r"no agent 'wolf' in this buffer: it is a buffer of one agent\."):
        buffer_source(TFUniformReplayBuffer(STEP, 1, 5), agent="wolf")


def test_frames_of_agents_without_their_names_are_refused():
    buffer = MAKE_AGENTS["independent"]({"wolf": "own", "sheep": "other"}, {"wolf": STEP, "sheep": STEP})
    with pytest.raises(TypeError, match="give the MultiAgentReplayBuffer that it belongs to"):
        buffer_source(buffer.buffer_of("own"))


def test_transitions_of_agents_in_lockstep_without_ends_told_by_the_spec():
    specs = {"wolf": TRANSITION, "sheep": TRANSITION}
    buffer = MAKE_AGENTS["lockstep"]({"wolf": "own", "sheep": "other"}, specs)
    frames = transitions((0, 3, "truncated"))
    buffer.add_sequence({"wolf": frames, "sheep": transitions((50, 2, "terminal"), (60, 1, ""))})
    assert lives_by_agent(buffer_source(buffer)) == {
        "wolf": [([0, 1, 2, 3], WHOLE, False)],
        "sheep": [([50, 51, 52], [*WHOLE, "is_terminal"], False), ([60, 61], ["is_first"], True)],
    }


def test_a_reservoir_of_agents_gives_transitions_of_each():
    specs = {"wolf": TRANSITION, "sheep": TRANSITION}
    for mode in ("independent", "lockstep"):
        buffer = MultiAgentReplayBuffer(
            specs,
            lambda agent: "both",
            lambda data_spec, batch_size: ReservoirReplayBuffer(data_spec, 50, batch_size=batch_size),
            mode=mode,
        )
        buffer.add_sequence({"wolf": transitions((0, 3, "")), "sheep": transitions((50, 3, ""))})
        assert lives_by_agent(buffer_source(buffer)) == {
            "wolf": [([0, 1], [], True), ([1, 2], [], True), ([2, 3], [], True)],
            "sheep": [([50, 51], [], True), ([51, 52], [], True), ([52, 53], [], True)],
        }


def test_tables_of_agents_give_lives():
    pytest.importorskip("reverb")
    policies, specs = {"wolf": "own", "sheep": "other"}, {"wolf": STEP, "sheep": STEP}
    own = {name: TableConfig(name, STEP, 100, sequence_length=2, scannable=True) for name in ("own", "other")}
    joint = TableConfig("all", STEP, 100, sequence_length=2, scannable=True)
    tables = ReverbAgentTables.local(specs, policies, independent=own, lockstep=joint, timeout_s=20.0)
    try:
        add_lives(tables)
        for mode in ("independent", "lockstep"):
            buffer = MultiAgentReplayBuffer(specs, policies, tables, mode=mode)
            assert lives_by_agent(buffer_source(buffer)) == LIVES
        assert lives_by_agent(buffer_source(tables["all"])) == LIVES
        with pytest.raises(TypeError, match=r"a ReverbAgentTables cannot be read"):
            buffer_source(tables)
    finally:
        tables.close()
