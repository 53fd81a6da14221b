"""Buffers of many agents that are built: agents, policies and capacities, and what is refused."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf

from replayfeed.buffers import BufferConfig, MultiAgentReplayBuffer, RolloutBuffer, TableConfig, TFUniformReplayBuffer

from .two_agents import ENDING, OWN, SHARED, VALUE


def rollout(data_spec, batch_size):
    field = "frames/a/value" if hasattr(data_spec, "frames") else "frame/value"
    return RolloutBuffer(data_spec, batch_size, 5, reward_field=field)


def test_agents_policies_and_capacities_are_told():
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE, "c": ENDING},
        {"a": "p", "b": "p", "c": "q"},
        BufferConfig("uniform", 100),
        batch_size=2,
    )
    assert (buffer.agents, buffer.policies, buffer.mode) == (("a", "b", "c"), ("p", "q"), "independent")
    assert (buffer.policy_of("b"), buffer.agents_of("p")) == ("p", ("a", "b"))
    assert (buffer.capacity, buffer.capacity_of("p"), buffer.capacity_of("q")) == (200, 100, 100)
    assert buffer.capacity_unit == "frames"
    assert buffer.buffer_of("p").batch_size == 4


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"data_specs": {}}, ValueError, "data_specs is empty"),
        ({"data_specs": [VALUE]}, TypeError, "data_specs must be a dict of specs by agent, got list"),
        ({"data_specs": {1: VALUE, "b": VALUE}}, TypeError, "agents are named by str, got 1"),
        ({"data_specs": {"a": VALUE, "b": {"value": 3}}}, TypeError, "agent 'b': data_spec field 'value'"),
        ({"policy_of": {"a": "p"}}, ValueError, "policy_of has no policy for agent 'b'"),
        ({"policy_of": {**OWN, "z": "p"}}, ValueError, "policy_of: there is no agent 'z'; there are 'a', 'b'"),
        ({"policy_of": lambda agent: None}, TypeError, "policies are named by str, got None for agent 'a'"),
        ({"policy_of": "a"}, TypeError, "policy_of must be a dict or a function"),
        (
            {"data_specs": {"a": VALUE, "b": ENDING}, "policy_of": SHARED},
            ValueError,
            "agents 'a' and 'b' share policy 'both', and their specs differ: field 'is_last' is missing and [] bool",
        ),
        ({"make_buffer": 3}, TypeError, "make_buffer must be a BufferConfig, a TableConfig, or a function"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"shards": 0}, ValueError, "shards must be at least 1"),
        ({"mode": "synchronized"}, ValueError, "mode must be 'independent' or 'lockstep', got 'synchronized'"),
        (
            {"make_buffer": lambda data_spec, batch_size: rollout(data_spec, batch_size)},
            ValueError,
            "a RolloutBuffer holds [B, T] frames of streams side by side, and each agent acts when it does",
        ),
        (
            {"make_buffer": lambda data_spec, batch_size: TFUniformReplayBuffer(data_spec, 7)},
            ValueError,
            "made a buffer of batch_size 7, asked for was 1",
        ),
        ({"make_buffer": lambda data_spec, batch_size: "buffer"}, TypeError, "must make one of"),
        (
            {"make_buffer": functools.partial(TFUniformReplayBuffer, max_length=10), "shards": 2},
            ValueError,
            "shards=2 with a function",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_construction(mode, change, kind, text):
    arguments = {"data_specs": {"a": VALUE, "b": VALUE}, "policy_of": OWN, "make_buffer": BufferConfig("uniform", 10)}
    with pytest.raises(kind, match=text.replace("[", r"\[").replace("]", r"\]").replace("(", r"\(")):
        MultiAgentReplayBuffer(**{**arguments, "mode": mode, **change})


def test_buffers_by_policy_have_no_meaning_in_lockstep():
    by_policy = dict.fromkeys("ab", BufferConfig("uniform", 10))
    with pytest.raises(ValueError, match="make_buffer by policy in lockstep: there is one buffer for all"):
        MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, by_policy, mode="lockstep")
    with pytest.raises(ValueError, match="make_buffer has nothing for policy 'b'"):
        MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, {"a": BufferConfig("uniform", 10)})
    with pytest.raises(ValueError, match="make_buffer: there is no policy 'z'; there are 'a', 'b'"):
        MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, {**by_policy, "z": BufferConfig("uniform", 10)})


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_o5_shards_divide_the_capacity_always(mode, shards):
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 100), mode=mode, shards=shards
    )
    assert buffer.capacity_of("a") == {1: 100, 3: 33}[shards]


def test_one_table_config_makes_a_table_for_each_policy():
    table = TableConfig("replay", VALUE, 30)
    with MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, table, shards=3) as buffer:
        assert [buffer.buffer_of(policy).table_name for policy in buffer.policies] == ["replay_a", "replay_b"]
        assert buffer.capacity_of("a") == 10
        assert buffer.capacity_unit == "items"


def test_policies_are_served_all_or_none():
    makers = {"a": TableConfig("own", VALUE, 50), "b": BufferConfig("uniform", 10)}
    with pytest.raises(ValueError, match="the policies 'a' have tables and the others have not"):
        MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, makers)


def test_make_buffer_makes_a_new_buffer_of_what_it_was_asked_for():
    one = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 10)
    with pytest.raises(ValueError, match="another data_spec than it was called with: it has items, asked"):
        MultiAgentReplayBuffer({"a": VALUE}, {"a": "a"}, lambda data_spec, batch_size: one)

    def same(data_spec, batch_size, made=[]):  # noqa: B006 (the same list at each call is the point)
        if not made:
            made.append(TFUniformReplayBuffer(data_spec, batch_size, 10))
        return made[0]

    with pytest.raises(ValueError, match="make_buffer made one buffer for two policies"):
        MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, same)
