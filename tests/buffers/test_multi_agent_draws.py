"""Buffers of many agents that are drawn from: whose frames a policy sees, which are held, how many there are."""

from __future__ import annotations

import numpy as np
import pytest

from replayfeed.buffers import BufferConfig, EmptyBufferError, MultiAgentReplayBuffer

from .two_agents import OWN, SHARED, VALUE, rows_of, values


def test_each_policy_draws_from_its_own_agents():
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE, "c": VALUE}, {"a": "p", "b": "p", "c": "q"}, BufferConfig("uniform", 100, seed=1)
    )
    ids = buffer.add_batch({"a": values(1), "b": values(10), "c": values(100)})
    assert {agent: len(each) for agent, each in ids.items()} == {"a": 1, "b": 1, "c": 1}
    items, info = buffer.sample(200)
    assert set(items["p"]["value"].numpy().tolist()) == {1.0, 10.0}
    assert set(items["q"]["value"].numpy().tolist()) == {100.0}
    # Agents are numbered as they were given.
    assert {(v, a) for v, a in zip(items["p"]["value"].numpy(), info["p"].agents.numpy(), strict=True)} == {
        (1.0, 0),
        (10.0, 1),
    }
    assert set(info["q"].agents.numpy().tolist()) == {2}
    items, info = buffer.sample(3, policy="q")
    assert items["value"].numpy().tolist() == [100.0] * 3
    np.testing.assert_allclose(info.probabilities, 1.0)


def test_agents_that_take_turns_have_windows_of_their_own_frames_and_the_moments_travel_with_them():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, SHARED, BufferConfig("uniform", 100))
    for turn in range(7):
        agent = "ab"[turn % 2]
        ids = buffer.add_batch({agent: values(turn)})
        assert list(ids) == [agent]
    rows = {tuple(row): info.times.numpy().tolist() for row, info in rows_of(buffer, 3, policy="both")}
    assert rows == {(0, 2, 4): [0, 2, 4], (2, 4, 6): [2, 4, 6], (1, 3, 5): [1, 3, 5]}


@pytest.mark.parametrize("kind", ["uniform", "prioritized"])
def test_fr_082_capacity_is_exact_for_each_agent(kind):
    """Capacity 100 steps for each of 2 agents, sequences of 10, 500 steps added: 100 steps, 91 sequences of each."""
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, SHARED, BufferConfig(kind, 200))
    for step in range(0, 500, 10):
        numbers = np.arange(step, step + 10, dtype=np.float32)[None]
        buffer.add_sequence({"a": {"value": numbers}, "b": {"value": 1000 + numbers}})
    assert buffer.stats("both").frames == buffer.capacity_of("both") == 200
    rows = [row for row, _ in rows_of(buffer, 10, policy="both")]
    assert len(rows) == 182
    assert {row[0] for row in rows} == {*range(400, 491), *range(1400, 1491)}
    # Sequences are drawn by priority, too.
    items, info = buffer.sample(32, 10, policy="both")
    assert items["value"].shape == (32, 10)
    assert buffer.update_priorities({"both": (info.keys, np.ones(32))}) == {"both": 0}


def test_an_agent_that_stopped_keeps_its_frames_however_long_the_others_go_on():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, SHARED, BufferConfig("uniform", 8))
    buffer.add_sequence({"b": {"value": np.arange(3, dtype=np.float32)[None]}})
    for number in range(100, 150):
        buffer.add_batch({"a": values(number)})
    held = {agent: frames["value"].to_list() for agent, frames in buffer.gather_all().items()}
    assert held == {"a": [[146, 147, 148, 149]], "b": [[0, 1, 2]]}


def test_the_newest_are_mixed_in():
    """Of 8 rows round(0.25 * 8) = 2 are the newest windows of the policy, whichever agent's they are."""
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE}, SHARED, BufferConfig("uniform", 100, newest_fraction=0.25, seed=1)
    )
    for number in range(20):
        buffer.add_batch({"a": values(number)})
    buffer.add_batch({"b": values(100)})
    buffer.add_batch({"a": values(20)})
    for _ in range(5):
        assert buffer.sample(8, policy="both")[0]["value"].numpy()[-2:].tolist() == [100, 20]


@pytest.mark.parametrize(("count", "num"), [("agent", 6), ("env", 12)])
def test_steps_are_counted_of_agents_or_of_the_environment(count, num):
    """Every moment has both agents: 12 steps of agents are at least 6 moments, and 12 moments 24 steps."""
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 1000, seed=2), mode="lockstep"
    )
    for number in range(30):
        buffer.add_batch({"a": values(number), "b": values(number)})
    _, info = buffer.sample_at_least(12, 3, count=count)
    assert info.mask["a"].numpy().sum() == num
    with pytest.raises(ValueError, match="count must be 'env' or 'agent', got 'episodes'"):
        buffer.sample_at_least(12, count="episodes")


def test_steps_of_all_policies_count_together():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 1000, seed=2))
    for number in range(30):
        buffer.add_batch({"a": values(number), "b": values(number)})
    items, info = buffer.sample_at_least(12, 3)
    assert {policy: info[policy].ids.shape for policy in "ab"} == {"a": (2, 3), "b": (2, 3)}
    items, info = buffer.sample_at_least(7, policy="a")
    assert items["value"].shape == (7,)
    # Independent policies draw no moments: a frame is a step, as RLlib counts them.
    _, info = buffer.sample_at_least(40, policy="a", count="env")
    assert info.ids.shape == (40,)


def test_a_policy_is_refused_in_lockstep_and_unknown_ones_always():
    buffer = MultiAgentReplayBuffer({"a": VALUE}, {"a": "p"}, BufferConfig("uniform", 100), mode="lockstep")
    buffer.add_batch({"a": values(0)})
    for call in (buffer.sample, buffer.as_dataset):
        with pytest.raises(ValueError, match="policy='p' in lockstep: a draw is of all agents"):
            call(1, policy="p")
    with pytest.raises(ValueError, match="policy='p' in lockstep"):
        buffer.update_priorities([0], [1.0], policy="p")
    with pytest.raises(ValueError, match="priorities by agent in lockstep"):
        buffer.add_batch({"a": values(0)}, priorities={"a": [1.0]})
    buffer = MultiAgentReplayBuffer({"a": VALUE}, {"a": "p"}, BufferConfig("uniform", 100))
    buffer.add_batch({"a": values(0)})
    with pytest.raises(ValueError, match="policy: there is no policy 'z'; there are 'p'"):
        buffer.sample(1, policy="z")
    with pytest.raises(ValueError, match="num_steps: there is no policy 'z'"):
        buffer.sample(1, {"z": 2})


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_an_empty_buffer_says_so(mode):
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 100), mode=mode)
    with pytest.raises(
        EmptyBufferError, match="is empty" if mode == "lockstep" else "policy .a.: TFUniformReplayBuffer is empty"
    ):
        buffer.sample(1)
    buffer.add_batch({"a": values(0)})
    with pytest.raises(EmptyBufferError, match="no window of 2 frames: 1 episodes, longest 1"):
        buffer.sample(1, 2, **({} if mode == "lockstep" else {"policy": "a"}))


def test_policies_with_one_config_draw_different_rows():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 1000, seed=5))
    numbers = {"value": np.arange(1000, dtype=np.float32)[None]}
    buffer.add_sequence({"a": numbers, "b": numbers})
    items, _ = buffer.sample(20)
    assert items["a"]["value"].numpy().tolist() != items["b"]["value"].numpy().tolist()
