"""Priorities of many agents: whose they are, what a moment's are, and that wrong ones change nothing."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from replayfeed.buffers import MultiAgentReplayBuffer, TFPrioritizedReplayBuffer

from .two_agents import OWN, VALUE, filled_lockstep, values


def test_priorities_are_those_of_the_policy():
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE, "c": VALUE},
        {"a": "p", "b": "p", "c": "q"},
        functools.partial(TFPrioritizedReplayBuffer, max_length=100, alpha=1.0, seed=1),
    )
    given = {"a": [1.0], "b": [3.0], "c": [5.0]}
    ids = buffer.add_batch({"a": values(1), "b": values(2), "c": values(3)}, priorities=given)
    _, info = buffer.sample(400)
    by_agent = dict(zip(info["p"].agents.numpy().tolist(), info["p"].probabilities.numpy().tolist(), strict=True))
    assert by_agent == {0: 0.25, 1: 0.75}
    assert buffer.update_priorities({"p": (ids["a"], [7.0]), "q": (ids["c"], [2.0])}) == {"p": 0, "q": 0}
    _, info = buffer.sample(400)
    by_agent = dict(zip(info["p"].agents.numpy().tolist(), info["p"].probabilities.numpy().tolist(), strict=True))
    assert by_agent == pytest.approx({0: 0.7, 1: 0.3}, rel=1e-5)
    assert buffer.update_priorities(ids["b"], priorities=[0.0], policy="p") == 0
    assert set(buffer.sample(50, policy="p")[1].agents.numpy().tolist()) == {0}


@pytest.mark.parametrize(
    ("update", "text"),
    [
        ({"z": ([0], [1.0])}, "keys: there is no policy 'z'; there are 'a', 'b'"),
        ({"a": ([0], [1.0]), "b": ([0], [np.nan])}, "policy 'b': td_errors"),
        ({"a": ([0], [1.0]), "b": ([0], [1.0, 2.0])}, "policy 'b': td_errors: expected shape"),
        ({"a": [0]}, "expected .keys, td_errors. for policy 'a'"),
        ([0], "keys must be a dict by policy where no policy is named, got list"),
    ],
)
def test_wrong_priorities_change_nothing_of_any_policy(update, text):
    make = functools.partial(TFPrioritizedReplayBuffer, max_length=100, alpha=1.0)
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, make)
    for number in (1, 2):
        buffer.add_batch({"a": values(number), "b": values(number)})
    with pytest.raises(ValueError, match=text):
        buffer.update_priorities(update)
    _, info = buffer.sample(10)
    for policy in "ab":
        np.testing.assert_allclose(info[policy].probabilities, 0.5)


def test_o5_each_frame_of_a_sequence_has_its_own_priority():
    """RLlib gives all slices of one add the priority of the first."""
    make = functools.partial(TFPrioritizedReplayBuffer, max_length=10, alpha=1.0)
    buffer = MultiAgentReplayBuffer({"a": VALUE}, {"a": "a"}, make)
    buffer.add_sequence({"a": {"value": np.array([[0, 1, 2]], np.float32)}}, priorities={"a": [[1.0, 2.0, 5.0]]})
    items, info = buffer.sample(200, policy="a")
    chances = dict(zip(items["value"].numpy().tolist(), info.probabilities.numpy().tolist(), strict=True))
    assert chances == pytest.approx({0: 0.125, 1: 0.25, 2: 0.625})


def test_priorities_in_lockstep_are_of_moments():
    make = functools.partial(TFPrioritizedReplayBuffer, max_length=100, alpha=1.0, seed=1)
    buffer = filled_lockstep(make)
    _, info = buffer.sample(100)
    assert buffer.update_priorities(info.keys, td_errors=np.ones(100)) == 0
    # Errors by agent: the mean over the agents that are there. c is not there from step 3 on.
    items, info = buffer.sample(200, 2)
    errors = {"a": np.full([200, 2], 3.0), "b": np.full([200, 2], 1.0), "c": np.full([200, 2], 8.0)}
    buffer.update_priorities_from(info, errors)
    items, info = buffer.sample(400, 2)
    starts = items["a"]["value"].numpy()[:, 0].astype(int)
    chances = dict(zip(starts.tolist(), info.probabilities.numpy().tolist(), strict=True))
    # 0, 1, 2: (3 + 1 + 8) / 3 = 4; 3 and 4: (3 + 1) / 2 = 2; in sum 16.
    assert chances == pytest.approx({0: 0.25, 1: 0.25, 2: 0.25, 3: 0.125, 4: 0.125}, rel=1e-4)


def test_errors_of_several_policies_change_all_priorities_or_none():
    make = functools.partial(TFPrioritizedReplayBuffer, max_length=100, alpha=1.0, seed=1)
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, make)
    for number in range(4):
        buffer.add_batch({"a": values(number), "b": values(number)})
    _, info = buffer.sample(4)
    for wrong in (np.ones(5), np.array([1.0, 1.0, np.inf, 1.0])):
        with pytest.raises(ValueError, match="policy 'b': td_errors"):
            buffer.update_priorities_from(info, {"a": np.full(4, 50.0), "b": wrong})
        np.testing.assert_allclose(buffer.sample(20)[1]["a"].probabilities, 0.25)
    assert buffer.update_priorities_from(info, {"a": np.full(4, 50.0)}) == {"a": 0}
