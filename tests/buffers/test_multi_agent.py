"""Many agents: what is stored of whom, what a sample of a policy or of all shows, what is refused. Literal numbers."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from replayfeed.buffers import (
    BufferConfig,
    EmptyBufferError,
    EpisodicReplayBuffer,
    Fifo,
    Lifo,
    MinSize,
    MultiAgentReplayBuffer,
    ReplayServer,
    ReverbAgentTables,
    RolloutBuffer,
    TableConfig,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
    agent_tables,
    table_presets,
)
from replayfeed.pipelines import n_step, of_agent, recurrent_state, stack_frames

VALUE = {"value": tf.TensorSpec([], tf.float32)}
ENDING = {"value": tf.TensorSpec([], tf.float32), "is_last": tf.TensorSpec([], tf.bool)}
OWN = {"a": "a", "b": "b"}
SHARED = {"a": "both", "b": "both"}
POISON = np.float32(np.nan)


def values(*numbers):
    return {"value": np.array(numbers, np.float32)}


def ending(*numbers, last=False):
    return {"value": np.array(numbers, np.float32), "is_last": np.broadcast_to(last, len(numbers)).copy()}


def rollout(data_spec, batch_size):
    field = "frames/a/value" if hasattr(data_spec, "frames") else "frame/value"
    return RolloutBuffer(data_spec, batch_size, 5, reward_field=field)


def shown(items, info, agent):
    """A lockstep sample's values of one agent, None where they are masked."""
    mask, found = np.asarray(info.mask[agent]), np.asarray(items[agent]["value"])
    return [
        [value if real else None for value, real in zip(*row, strict=True)] for row in zip(found, mask, strict=True)
    ]


def rows_of(buffer, num_steps, **arguments):
    """All different rows that an ordered pass gives, as lists."""
    window = Window(num_steps)
    dataset = buffer.as_dataset(None, single_deterministic_pass=True, window=window, **arguments)
    return [(np.asarray(items["value"]).tolist(), info) for items, info in dataset]


# Which agents and policies there are


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


# Independent


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


def test_absent_rows_are_not_looked_at_and_other_environments_go_on():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, SHARED, BufferConfig("uniform", 100), batch_size=3)
    buffer.add_batch({"a": values(0, 10, 20), "b": values(5, 15, 25)})
    ids = buffer.add_batch(
        {"a": values(1, POISON, 21), "b": values(POISON, POISON, 26)},
        present={"a": np.array([True, False, True]), "b": np.array([False, False, True])},
    )
    assert (ids["a"] >= 0).tolist() == [True, False, True]
    assert (ids["b"] >= 0).tolist() == [False, False, True]
    buffer.add_batch({"a": values(2, 11, 22)})
    rows = {tuple(row): info.times.numpy().tolist() for row, info in rows_of(buffer, 2, policy="both")}
    # Environment 1 had no moment in the second call.
    expected = {(0, 1): [0, 1], (1, 2): [1, 2], (10, 11): [0, 1], (20, 21): [0, 1], (21, 22): [1, 2], (25, 26): [0, 1]}
    assert rows == expected
    held = {agent: frames["value"].to_list() for agent, frames in buffer.gather_all().items()}
    assert held == {"a": [[0, 1, 2], [10, 11], [20, 21, 22]], "b": [[5], [15], [25, 26]]}


def test_ends_by_agent_by_environment_and_by_items():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 100), batch_size=2)
    buffer.add_batch({"a": values(0, 100), "b": values(10, 110)}, end_of_episode={"a": np.array([True, False])})
    buffer.add_batch({"a": values(1, 101)})
    # The environment ends for b as well, which has no frame now.
    buffer.add_batch({"a": values(2, 102)}, end_of_episode=np.array([False, True]))
    buffer.add_batch({"a": values(3, 103), "b": values(11, 111)})
    assert {tuple(row) for row, _ in rows_of(buffer, 2, policy="a")} == {(1, 2), (2, 3), (100, 101), (101, 102)}
    assert {tuple(row) for row, _ in rows_of(buffer, 2, policy="b")} == {(10, 11)}
    buffer.end_stream(0, agent="b")
    buffer.end_stream(1)
    buffer.add_batch({"a": values(4, 104), "b": values(12, 112)})
    assert {tuple(row) for row, _ in rows_of(buffer, 2, policy="b")} == {(10, 11)}
    assert (3, 4) in {tuple(row) for row, _ in rows_of(buffer, 2, policy="a")}
    assert (103, 104) not in {tuple(row) for row, _ in rows_of(buffer, 2, policy="a")}


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


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_o5_shards_divide_the_capacity_always(mode, shards):
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 100), mode=mode, shards=shards
    )
    assert buffer.capacity_of("a") == {1: 100, 3: 33}[shards]


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


def test_burn_in_and_stored_state_by_policy():
    """Policy a takes windows of 2 with 1 frame of context and stored state, policy b single frames."""
    spec = {**VALUE, "state": tf.TensorSpec([1], tf.float32)}
    buffer = MultiAgentReplayBuffer({"a": spec, "b": VALUE}, OWN, BufferConfig("uniform", 100, seed=3))
    for number in range(4):
        state = np.array([[10.0 * number]], np.float32)
        buffer.add_batch({"a": {**values(number), "state": state}, "b": values(100 + number)})
    items, info = buffer.sample(50, window={"a": Window(2, burn_in=1)})
    found = {
        (tuple(row), tuple(mask))
        for row, mask in zip(items["a"]["value"].numpy().tolist(), info["a"].mask.numpy().tolist(), strict=True)
    }
    true, false = True, False
    assert found == {((0, 0, 1), (false, true, true)), ((0, 1, 2), (true,) * 3), ((1, 2, 3), (true,) * 3)}
    assert set(items["b"]["value"].numpy().tolist()) == {100, 101, 102, 103}
    with_state, _ = recurrent_state("state")(items["a"], info["a"])
    # The state of each window's first real row.
    first = np.where(info["a"].mask.numpy()[:, 0], items["a"]["value"].numpy()[:, 0], 0)
    np.testing.assert_array_equal(with_state.state["state"].numpy()[:, 0], 10 * first)


def test_trajectories_end_by_their_step_types():
    spec = trajectory.Trajectory(
        step_type=tf.TensorSpec([], tf.int32),
        observation=tf.TensorSpec([], tf.float32),
        action=tf.TensorSpec([], tf.int32),
        policy_info=(),
        next_step_type=tf.TensorSpec([], tf.int32),
        reward=tf.TensorSpec([], tf.float32),
        discount=tf.TensorSpec([], tf.float32),
    )

    def frame(step_type, number):
        one = np.array([1], np.int32)
        value = np.array([number], np.float32)
        return trajectory.Trajectory(np.array([step_type], np.int32), value, one, (), one, value, value)

    for mode in ("independent", "lockstep"):
        buffer = MultiAgentReplayBuffer({"a": spec, "b": spec}, OWN, BufferConfig("uniform", 100), mode=mode)
        for step_type, number in ((0, 0), (1, 1), (2, 2), (0, 3), (1, 4)):
            buffer.add_batch({"a": frame(step_type, number), "b": frame(step_type, 10 + number)})
        key = {} if mode == "lockstep" else {"policy": "a"}
        items, _ = buffer.sample(100, 2, **key)
        mine = items["a"] if mode == "lockstep" else items
        assert {tuple(row) for row in mine.observation.numpy().tolist()} == {(0, 1), (1, 2), (3, 4)}


# Lockstep


def filled_lockstep(make_buffer, **arguments):
    """FR-080: three agents, of which the third dies at step 2 of 6."""
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE, "c": VALUE}, lambda agent: agent, make_buffer, mode="lockstep", **arguments
    )
    for step in range(6):
        items = {"a": values(step), "b": values(10 + step), "c": values(20 + step if step <= 2 else POISON)}
        ends = {"c": np.array([step == 2])} if step <= 2 else {}
        there = {} if step <= 2 else {"c": np.array([False])}
        buffer.add_batch(items, end_of_episode=ends or None, present=there or None)
    return buffer


MAKERS = {
    "uniform": BufferConfig("uniform", 100, seed=1),
    "prioritized": BufferConfig("prioritized", 100, seed=1),
    "episodic": functools.partial(EpisodicReplayBuffer, capacity=10, seed=1),
    "served": TableConfig("moments", VALUE, 100, sequence_length=4, rate_limiter=MinSize(1)),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("reads", ["sample", "as_dataset"])
def test_fr_080_dead_agents_are_masked_and_the_dying_step_is_not(kind, reads):
    with filled_lockstep(MAKERS[kind]) as buffer:
        items, info = buffer.sample(100, 4) if reads == "sample" else next(iter(buffer.as_dataset(100, 4)))
        rows = {tuple(row) for row in shown(items, info, "c")}
        assert rows == {(20, 21, 22, None), (21, 22, None, None), (22, None, None, None)}
        together = {(tuple(a), tuple(c)) for a, c in zip(shown(items, info, "a"), shown(items, info, "c"), strict=True)}
        assert together == {
            ((0, 1, 2, 3), (20, 21, 22, None)),
            ((1, 2, 3, 4), (21, 22, None, None)),
            ((2, 3, 4, 5), (22, None, None, None)),
        }
        assert {tuple(row) for row in info.times.numpy().tolist()} == {(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5)}


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "episodic"])
def test_a_window_wholly_after_a_death_shows_nothing_of_that_agent(kind):
    buffer = filled_lockstep(MAKERS[kind])
    items, info = buffer.sample(200, 2)
    starts = np.asarray(items["a"]["value"])[:, 0]
    assert not info.mask["c"].numpy()[starts >= 3].any()
    assert (starts >= 3).any()


def test_o10_a_draw_is_the_same_moments_for_all_agents():
    buffer = filled_lockstep(MAKERS["uniform"])
    items, _ = buffer.sample(64)
    np.testing.assert_array_equal(items["a"]["value"] + 10, items["b"]["value"])


def test_whoever_is_born_late_or_again_shows_one_life_in_a_window():
    """b is born at 1, dies at 2, comes back at 4: a window shows the life of its first frame from the drawn one on."""
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 100), mode="lockstep")
    for step in range(6):
        items = {"a": values(step)}
        if step in (1, 2, 4, 5):
            items["b"] = values(10 + step)
        buffer.add_batch(items, end_of_episode={"b": np.array([True])} if step == 2 else None)
    shows = {}
    for window in (Window(5), Window(3, burn_in=2)):
        items, info = buffer.sample(200, window=window)
        for times, row in zip(info.times.numpy(), shown(items, info, "b"), strict=True):
            if info.mask["a"].numpy().all(axis=1).any() and not (np.diff(times) != 1).any():
                shows[window.burn_in, int(times[0])] = row
    none = None
    assert shows[0, 0] == [none, 11, 12, none, none]
    assert shows[0, 1] == [11, 12, none, none, none]
    # Drawn at 3, where b is dead: its next life is shown, and the context of another life is not.
    assert shows[2, 1] == [none, none, none, 14, 15]
    assert shows[2, 0] == [none, 11, 12, none, none]


def test_the_episode_ends_with_the_last_agent_and_windows_stop_there():
    buffer = MultiAgentReplayBuffer({"a": ENDING, "b": ENDING}, OWN, BufferConfig("uniform", 100), mode="lockstep")
    buffer.add_batch({"a": ending(0), "b": ending(10)})
    buffer.add_batch({"a": ending(1, last=True), "b": ending(11)})
    buffer.add_batch({"b": ending(12)})
    buffer.add_batch({"b": ending(13, last=True)})
    buffer.add_batch({"a": ending(4), "b": ending(14)})
    buffer.add_batch({"a": ending(5), "b": ending(15)})
    items, info = buffer.sample(300, 2)
    pairs = {(tuple(a), tuple(b)) for a, b in zip(shown(items, info, "a"), shown(items, info, "b"), strict=True)}
    none = None
    assert pairs == {
        ((0, 1), (10, 11)),
        ((1, none), (11, 12)),
        ((none, none), (12, 13)),
        ((4, 5), (14, 15)),
    }
    # The last moment is only a final observation, which is drawn by itself never.
    assert 13.0 not in buffer.sample(300)[0]["b"]["value"].numpy()


def test_a_reset_that_nobody_told_of_joins_nothing():
    spec = {**VALUE, "is_first": tf.TensorSpec([], tf.bool)}
    buffer = MultiAgentReplayBuffer({"a": spec, "b": spec}, OWN, BufferConfig("uniform", 100), mode="lockstep")
    for step, first in enumerate((True, False, True, False)):
        flag = np.array([first])
        buffer.add_batch({"a": {**values(step), "is_first": flag}, "b": {**values(10 + step), "is_first": flag}})
    items, _ = buffer.sample(100, 2)
    assert {tuple(row) for row in items["a"]["value"].numpy().tolist()} == {(0, 1), (2, 3)}


def test_moments_in_which_nobody_is_there_are_none():
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 100), mode="lockstep", batch_size=2
    )
    buffer.add_batch({"a": values(0, 100), "b": values(10, 110)})
    there = np.array([True, False])
    ids = buffer.add_batch({"a": values(1, POISON), "b": values(11, POISON)}, present={"a": there, "b": there})
    assert ids[0] >= 0
    assert ids[1] == -1
    buffer.add_batch({"a": values(2, 101)})
    items, info = buffer.sample(100, 2)
    rows = {(tuple(a), tuple(b)) for a, b in zip(shown(items, info, "a"), shown(items, info, "b"), strict=True)}
    none = None
    assert rows == {((0, 1), (10, 11)), ((1, 2), (11, none)), ((100, 101), (110, none))}


@pytest.mark.parametrize("kind", ["uniform", "episodic"])
def test_padding_is_masked_for_all_agents(kind):
    buffer = filled_lockstep(MAKERS[kind])
    buffer.end_stream()
    items, info = buffer.sample(200, window=Window(4, short="pad"))
    rows = {tuple(row) for row in shown(items, info, "a")}
    assert (5, None, None, None) in rows
    assert (3, 4, 5, None) in rows


def test_whole_episodes_in_lockstep():
    make = functools.partial(EpisodicReplayBuffer, capacity=10, completed_only=True, seed=1)
    buffer = filled_lockstep(make)
    buffer.end_stream()
    for items, info in (buffer.sample(2), next(iter(buffer.as_dataset(2)))):
        assert shown(items, info, "c") == [[20, 21, 22, None, None, None]] * 2


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


def test_one_agents_view_takes_n_step_returns():
    """c, which dies at step 2 with reward 22: rewards 20 + 0.5 * 21, then nothing after its death."""
    spec = {"value": tf.TensorSpec([], tf.float32), "reward": tf.TensorSpec([], tf.float32)}
    spec = {**spec, "action": tf.TensorSpec([], tf.int32), "observation": tf.TensorSpec([], tf.float32)}
    spec = {**spec, "is_last": tf.TensorSpec([], tf.bool), "is_terminal": tf.TensorSpec([], tf.bool)}
    spec = {**spec, "discount": tf.TensorSpec([], tf.float32), "is_first": tf.TensorSpec([], tf.bool)}
    del spec["value"]
    buffer = MultiAgentReplayBuffer(
        {"a": spec, "c": spec}, lambda agent: agent, BufferConfig("uniform", 99), mode="lockstep"
    )

    def frame(step, number, last=False):
        flag = np.array([last])
        number = np.array([number], np.float32)
        one = np.array([0 if last else 1], np.float32)
        first = np.array([step == 0])
        return {
            "observation": number,
            "reward": number,
            "action": np.array([step], np.int32),
            "is_last": flag,
            "is_terminal": flag,
            "discount": one,
            "is_first": first,
        }

    for step in range(5):
        items = {"a": frame(step, step)}
        if step <= 2:
            items["c"] = frame(step, 20 + step, step == 2)
        buffer.add_batch(items)
    transform = n_step(2, gamma=0.5)
    for sample in (buffer.sample(200, 3), next(iter(buffer.as_dataset(200, 3)))):
        batch, info = transform(*of_agent("c")(*sample))
        starts = sample[1].times.numpy()[:, 0]
        real = np.asarray(info.mask).reshape(len(starts), -1).any(axis=1)
        found = {
            int(start): (float(reward), float(discount))
            for start, reward, discount, is_real in zip(
                starts, np.asarray(batch.reward), np.asarray(batch.discount), real, strict=True
            )
            if is_real
        }
        # From 0: 20 + 0.5 * 21, into the terminal step. From 1: 21, too. From 2 on nothing is known.
        assert found == {0: (30.5, 0.0), 1: (21.0, 0.0)}


# Both


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"items": {"z": values(1)}}, "items: there is no agent 'z'; there are 'a', 'b'"),
        ({"items": values(1)}, "items: there is no agent 'value'"),
        ({"items": [values(1)]}, "items must be a dict by agent, got list"),
        ({"items": {"a": values(1), "b": {"value": 1.0}}}, r"agent 'b': field 'value': expected \[1\] float32"),
        ({"items": {"a": values(1), "b": {"x": [1.0]}}}, "agent 'b': items do not have the structure"),
        ({"items": {"a": values(1)}, "present": {"a": [1]}}, r"agent 'a': present: expected \[1\] bool"),
        ({"items": {"a": values(1)}, "present": {"b": [True]}}, "present names 'b', of which items has no frame"),
        ({"items": {"a": values(1)}, "present": [True]}, "present must be a dict by agent, got list"),
        ({"items": {"a": values(1)}, "end_of_episode": [True, False]}, r"end_of_episode: expected \[1\] bool"),
        ({"items": {"a": values(1)}, "end_of_episode": {"a": [0]}}, r"agent 'a': end_of_episode: expected \[1\] bool"),
        ({"items": {"a": values(1)}, "streams": [0]}, "streams: say which agents are there by present="),
    ],
)
def test_wrong_adds_leave_the_buffer_as_it_was(mode, arguments, text):
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 100), mode=mode)
    buffer.add_batch({"a": values(0), "b": values(10)})
    with pytest.raises(ValueError, match=text):
        buffer.add_batch(**arguments)
    assert buffer.stats().added == (2 if mode == "independent" else 1)
    ids = buffer.add_batch({"a": values(1), "b": values(11)})
    assert (ids["a"] if mode == "independent" else ids).tolist() == [1]
    items, info = buffer.sample(5, 2, **({} if mode == "lockstep" else {"policy": "a"}))
    assert info.times.numpy().tolist() == [[0, 1]] * 5


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


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_adds_and_draws_inside_a_tf_function(mode):
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 100, seed=1), mode=mode)

    @tf.function
    def step(number, there):
        ids = buffer.add_batch({"a": {"value": number}, "b": {"value": -number}}, present={"b": there})
        return ids, buffer.sample(4, **({} if mode == "lockstep" else {"policy": "a"}))

    for number in range(3):
        ids, (items, info) = step(tf.constant([float(number)]), tf.constant([number == 0]))
    if mode == "lockstep":
        assert ids.numpy().tolist() == [2]
        assert items["a"]["value"].shape == (4,)
        assert info.mask["b"].shape == (4,)
    else:
        assert {agent: each.numpy().tolist() for agent, each in ids.items()} == {"a": [2], "b": [-1]}
        assert info.times.shape == items["value"].shape == (4,)
    held = {agent: frames["value"].to_list() for agent, frames in buffer.gather_all().items()}
    assert held == {"a": [[0, 1, 2]], "b": [[0]]}


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_sequences_are_the_same_as_moments_one_by_one(mode):
    def one_by_one(buffer):
        for t in range(5):
            buffer.add_batch(
                {"a": ending(t, 100 + t, last=np.array([t == 3, False])), "b": ending(10 + t, 110 + t)},
                end_of_episode={"b": np.array([t == 3, t == 1])},
            )

    def at_once(buffer):
        t = np.arange(5, dtype=np.float32)
        last = np.stack([t == 3, t == 9])
        ends = np.stack([t == 3, t == 1])
        a = {"value": np.stack([t, 100 + t]), "is_last": last}
        b = {"value": np.stack([10 + t, 110 + t]), "is_last": np.zeros([2, 5], bool)}
        buffer.add_sequence({"a": a, "b": b}, end_of_episode={"b": ends})

    found = []
    for add in (one_by_one, at_once):
        buffer = MultiAgentReplayBuffer(
            {"a": ENDING, "b": ENDING}, OWN, BufferConfig("uniform", 100, seed=3), mode=mode, batch_size=2
        )
        add(buffer)
        items, info = buffer.sample(300, 2)
        leaves = [np.asarray(leaf).tolist() for leaf in tf.nest.flatten((items, info))]
        found.append(leaves)
    assert found[0] == found[1]


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_clear_and_stats(mode):
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 4), mode=mode)
    for number in range(6):
        buffer.add_batch({"a": values(number), "b": values(number)})
    buffer.sample(5)
    stats = buffer.stats()
    if mode == "independent":
        assert (stats.frames, stats.capacity, stats.added, stats.evicted, stats.sampled) == (8, 8, 12, 4, 10)
        assert (buffer.stats("a").frames, buffer.stats("a").sampled) == (4, 5)
        assert stats.fill_share == 1.0
    else:
        assert (stats.frames, stats.capacity, stats.added, stats.evicted, stats.sampled) == (4, 4, 6, 2, 5)
    buffer.clear()
    assert len(buffer) == 0
    assert buffer.stats().added == 0
    buffer.add_batch({"a": values(9), "b": values(9)})
    items, info = buffer.sample(3, **({} if mode == "lockstep" else {"policy": "a"}))
    # Moments are not counted anew.
    assert info.times.numpy().tolist() == [6] * 3
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.add_batch({"a": values(9)})
    assert items is not None


# Served


def test_a_table_for_each_policy_with_its_own_limiter():
    tables = {
        "p": TableConfig("wolves", VALUE, 50, sequence_length=2, rate_limiter=MinSize(1)),
        "q": TableConfig("sheep", VALUE, 50, rate_limiter=MinSize(3)),
    }
    with MultiAgentReplayBuffer({"a": VALUE, "b": VALUE, "c": VALUE}, {"a": "p", "b": "p", "c": "q"}, tables) as buffer:
        for turn in range(6):
            agent = "abc"[turn % 3]
            buffer.add_batch({agent: values(turn)})
        items, info = buffer.sample(50, 2, policy="p")
        rows = {tuple(row) for row in items["value"].numpy().tolist()}
        assert rows == {(0, 3), (1, 4)}
        pairs = set(zip(info.agents.numpy().tolist(), items["value"].numpy()[:, 0].tolist(), strict=True))
        assert pairs == {(0, 0), (1, 1)}
        assert {tuple(row) for row in info.times.numpy().tolist()} == {(0, 3), (1, 4)}
        assert buffer.capacity_of("q") == 50
        assert "1 of 3" in buffer.buffer_of("q").why_not_ready() or "2 of 3" in buffer.buffer_of("q").why_not_ready()
        buffer.add_batch({"c": values(6)})
        assert set(buffer.sample(20, policy="q")[0]["value"].numpy().tolist()) == {2, 5, 6}


def test_one_table_config_makes_a_table_for_each_policy():
    table = TableConfig("replay", VALUE, 30)
    with MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, table, shards=3) as buffer:
        assert [buffer.buffer_of(policy).table_name for policy in buffer.policies] == ["replay_a", "replay_b"]
        assert buffer.capacity_of("a") == 10
        assert buffer.capacity_unit == "items"


# What reviewers found


def test_agents_may_be_named_in_any_order():
    """Nests sort the keys of dicts; codes go by the order of the agents."""
    buffer = MultiAgentReplayBuffer({"b": VALUE, "a": VALUE}, OWN, BufferConfig("uniform", 9), mode="lockstep")
    buffer.add_batch({"a": values(1)})
    buffer.add_batch({"b": values(12)})
    held = {agent: frames["value"].to_list() for agent, frames in buffer.gather_all().items()}
    assert held == {"b": [[12]], "a": [[1]]}
    items, info = buffer.sample(50, 2)
    assert {tuple(row) for row in shown(items, info, "a")} == {(1, None)}
    assert {tuple(row) for row in shown(items, info, "b")} == {(None, 12)}


@pytest.mark.parametrize("how", ["end_stream", "end_of_episode without a frame", "is_first"])
def test_a_life_that_no_frame_ended_is_not_joined_with_the_next(how):
    spec = {**VALUE, "is_first": tf.TensorSpec([], tf.bool)}
    buffer = MultiAgentReplayBuffer({"a": spec, "b": spec}, OWN, BufferConfig("uniform", 9), mode="lockstep")

    def frames(number, first=False):
        flags = {"is_first": np.array([False])}
        return {"a": {**values(number), "is_first": np.array([first])}, "b": {**values(10 + number), **flags}}

    buffer.add_batch(frames(1))
    if how == "end_stream":
        buffer.end_stream(agent="a")
    elif how != "is_first":
        buffer.add_batch({"b": frames(2)["b"]}, end_of_episode={"a": np.array([True])})
    buffer.add_batch(frames(3, first=how == "is_first"))
    num = 3 if "without" in how else 2
    for items, info in (buffer.sample(20, num), next(iter(buffer.as_dataset(20, num)))):
        rows = {tuple(row) for row in shown(items, info, "a")}
        assert rows == {(1, *[None] * (num - 1))}
        assert info.mask["b"].numpy().all()


def test_the_last_life_that_is_ended_ends_the_episode():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 9), mode="lockstep")
    buffer.add_batch({"a": values(0), "b": values(10)}, end_of_episode={"b": np.array([True])})
    buffer.end_stream(agent="a")
    buffer.add_batch({"a": values(1), "b": values(11)})
    with pytest.raises(EmptyBufferError, match="no window of 2 frames: 2 episodes, longest 1"):
        buffer.sample(1, 2)


@pytest.mark.parametrize("graph", [False, True])
def test_context_of_an_agent_that_has_no_frame_afterwards_is_not_shown(graph):
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 9), mode="lockstep")
    buffer.add_batch({"a": values(0), "b": values(10)})
    buffer.add_batch({"b": values(11)})
    window = Window(1, burn_in=1)
    items, info = next(iter(buffer.as_dataset(50, window=window))) if graph else buffer.sample(50, window=window)
    drawn = info.times.numpy()[:, 1]
    assert {tuple(row) for row in info.mask["a"].numpy()[drawn == 1].tolist()} == {(False, False)}
    assert {tuple(row) for row in info.mask["b"].numpy()[drawn == 1].tolist()} == {(True, True)}


def test_a_moment_that_one_policy_refused_is_counted():
    def make(data_spec, batch_size):
        refuses = lambda frame: 1 / 0 if frame.frame["value"][0] == 13 else np.zeros(1, bool)  # noqa: E731
        return TFUniformReplayBuffer(data_spec, batch_size, 10, end_of_episode_fn=refuses)

    plain = functools.partial(TFUniformReplayBuffer, max_length=10)
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, {"a": plain, "b": make})
    buffer.add_batch({"a": values(0), "b": values(10)})
    with pytest.raises(ZeroDivisionError):
        buffer.add_batch({"a": values(1), "b": values(13)})
    buffer.add_batch({"a": values(2), "b": values(12)})
    found = {policy: [info.times.numpy().tolist() for _, info in rows_of(buffer, 1, policy=policy)] for policy in "ab"}
    assert found == {"a": [[0], [1], [2]], "b": [[0], [2]]}


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_cast_does_not_look_at_absent_rows(mode):
    spec = tf.TensorSpec([], tf.uint8)
    buffer = MultiAgentReplayBuffer(
        {"a": spec}, {"a": "a"}, BufferConfig("uniform", 10), mode=mode, batch_size=2, cast=True
    )
    buffer.add_batch({"a": np.array([7, -999])}, present={"a": np.array([True, False])})
    assert buffer.gather_all()["a"].to_list() == [[7], []]
    with pytest.raises(ValueError, match="-999"):
        buffer.add_batch({"a": np.array([7, -999])})


def test_policies_with_one_config_draw_different_rows():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 1000, seed=5))
    numbers = {"value": np.arange(1000, dtype=np.float32)[None]}
    buffer.add_sequence({"a": numbers, "b": numbers})
    items, _ = buffer.sample(20)
    assert items["a"]["value"].numpy().tolist() != items["b"]["value"].numpy().tolist()


def test_agents_that_take_turns_have_n_step_returns_over_their_own_steps():
    """In lockstep a acts at 0, 2, 4 and b at 1, 3, 5: a's next step after 0 is 2, not the absent row at 1."""
    spec = {name: tf.TensorSpec([], tf.float32) for name in ("observation", "reward", "discount", "action")}
    config = BufferConfig("uniform", 99)
    buffer = MultiAgentReplayBuffer({"a": spec, "b": spec}, OWN, config, mode="lockstep")
    for turn in range(6):
        frame = {name: np.array([turn], np.float32) for name in spec} | {"discount": np.ones(1, np.float32)}
        buffer.add_batch({"ab"[turn % 2]: frame})
    for sample in (buffer.sample(100, 5), next(iter(buffer.as_dataset(100, 5)))):
        batch, info = n_step(2, gamma=0.5)(*of_agent("a", num_steps=3)(*sample))
        rows = zip(sample[1].times.numpy()[:, 0], batch.reward.numpy(), batch.next_observation.numpy(), strict=True)
        found = {start: (reward, following) for start, reward, following in rows if start == 0}
        # Rewards 0 + 0.5 * 2, then observation 4. At 1 a is absent, and no step begins.
        assert found == {0: (1.0, 4.0)}
        mask = dict(zip(sample[1].times.numpy()[:, 0].tolist(), info.mask.numpy().tolist(), strict=True))
        assert mask == {0: True, 1: False}


def test_both_modes_read_what_was_written_once_and_other_processes_may_write():
    specs, policy_of = {"a": VALUE, "b": VALUE}, {"a": "p", "b": "p"}
    own = {"p": TableConfig("own", VALUE, 50, sequence_length=2)}
    moments = TableConfig("moments", VALUE, 50, sequence_length=2)
    with ReverbAgentTables.local(specs, policy_of, independent=own, lockstep=moments) as tables:
        independent = MultiAgentReplayBuffer(specs, policy_of, tables)
        lockstep = MultiAgentReplayBuffer(specs, policy_of, tables, mode="lockstep")
        independent.add_batch({"a": values(0), "b": values(10)})
        lockstep.add_batch({"a": values(1)})
        ids = independent.add_batch({"a": values(2), "b": values(12)})
        assert set(ids) == {"a", "b"}
        items, info = independent.sample(50, 2, policy="p")
        assert {tuple(row) for row in items["value"].numpy().tolist()} == {(0, 1), (1, 2), (10, 12)}
        assert {tuple(row) for row in info.times.numpy().tolist()} == {(0, 1), (1, 2), (0, 2)}
        items, info = lockstep.sample(50, 2)
        rows = {(tuple(a), tuple(b)) for a, b in zip(shown(items, info, "a"), shown(items, info, "b"), strict=True)}
        assert rows == {((0, 1), (10, None)), ((1, 2), (None, 12))}
        # A collector that knows only the address.
        with ReverbAgentTables(
            specs, policy_of, independent={"p": "own"}, lockstep="moments", server_address=tables.server_address
        ) as remote:
            MultiAgentReplayBuffer(specs, policy_of, remote).add_sequence(
                {"a": {"value": np.array([[100, 101]], np.float32)}}
            )
        assert (100, 101) in {tuple(row) for row in independent.sample(200, 2, policy="p")[0]["value"].numpy().tolist()}
        with pytest.raises(ValueError, match="the tables have batch_size 1, given was 2"):
            MultiAgentReplayBuffer(specs, policy_of, tables, batch_size=2)
        with pytest.raises(ValueError, match="the tables are of the agents 'a', 'b', in this order"):
            MultiAgentReplayBuffer({"b": VALUE, "a": VALUE}, policy_of, tables)


def test_policies_are_served_all_or_none():
    makers = {"a": TableConfig("own", VALUE, 50), "b": BufferConfig("uniform", 10)}
    with pytest.raises(ValueError, match="the policies 'a' have tables and the others have not"):
        MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, makers)


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_streams_that_stay_together_are_the_same_and_refuse_to_part(mode):
    found = []
    for streams in ("apart", "together"):
        buffer = MultiAgentReplayBuffer(
            {"a": VALUE, "b": VALUE}, SHARED, BufferConfig("uniform", 80), mode=mode, batch_size=2, streams=streams
        )
        for step in range(5):
            buffer.add_batch({"a": values(step, 100 + step), "b": values(10 + step, 110 + step)})
        rows = [np.asarray(leaf["value"]).tolist() for leaf in buffer.gather_all().values()]
        found.append([[list(row) for row in each] for each in rows])
    assert found[0] == found[1]
    if mode == "independent":
        with pytest.raises(ValueError, match="agent 'b' is absent, and this buffer was built with streams='together'"):
            buffer.add_batch({"a": values(5, 105)})
        assert buffer.stats().added == 20
    with pytest.raises(ValueError, match="streams must be 'apart' or 'together', got 'both'"):
        MultiAgentReplayBuffer({"a": VALUE}, {"a": "a"}, BufferConfig("uniform", 10), streams="both")


@pytest.mark.parametrize("how", ["of all", "by agent"])
@pytest.mark.parametrize("mode", ["independent", "lockstep", "served"])
def test_ends_in_a_sequence_are_those_of_absent_agents_too(mode, how):
    make = TableConfig("own", VALUE, 50, sequence_length=2) if mode == "served" else BufferConfig("uniform", 80)
    mode = "independent" if mode == "served" else mode
    with MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, make, mode=mode) as buffer:
        buffer.add_batch({"a": values(1), "b": values(11)})
        ends = np.array([[True, False]])
        ids = buffer.add_sequence(
            {"a": {"value": np.array([[2, 3]], np.float32)}}, end_of_episode=ends if how == "of all" else {"b": ends}
        )
        assert (ids["a"] if mode == "independent" else ids).shape == (1, 2)
        buffer.add_batch({"a": values(4), "b": values(12)})
        if mode == "independent":
            if not isinstance(make, TableConfig):  # which would wait for an item
                with pytest.raises(EmptyBufferError):
                    buffer.sample(1, 2, policy="b")
            items, _ = buffer.sample(50, 2, policy="a")
            pairs = {tuple(row) for row in items["value"].numpy().tolist()}
            assert pairs == ({(1, 2), (3, 4)} if how == "of all" else {(1, 2), (2, 3), (3, 4)})
        else:
            items, info = buffer.sample(100, 4) if how == "by agent" else buffer.sample(100, 2)
            rows = {(tuple(a), tuple(b)) for a, b in zip(shown(items, info, "a"), shown(items, info, "b"), strict=True)}
            none = None
            apart = {((1, 2), (11, none)), ((3, 4), (none, 12))}
            assert rows == (apart if how == "of all" else {((1, 2, 3, 4), (11, none, none, none))})


def test_flags_that_are_no_ends_are_told_of_by_their_own_names():
    spec = {**VALUE, "terminal": tf.TensorSpec([], tf.bool)}
    for mode in ("independent", "lockstep"):
        buffer = MultiAgentReplayBuffer({"a": spec}, {"a": "a"}, BufferConfig("uniform", 10), mode=mode)
        for step in range(3):
            buffer.add_batch({"a": {**values(step), "terminal": np.array([step == 1])}})
        with pytest.warns(UserWarning, match="a frame followed one with 'terminal', and no end was told"):
            buffer.sample(1, 2, **({} if mode == "lockstep" else {"policy": "a"}))


def test_stacks_of_one_agents_view_hold_no_other_life():
    """a dies at 3 and is back at 4: no stack of the new life shows a frame of the old one."""
    spec = {"observation": tf.TensorSpec([], tf.float32), "is_last": tf.TensorSpec([], tf.bool)}
    config = BufferConfig("uniform", 99)
    buffer = MultiAgentReplayBuffer({"a": spec, "b": spec}, OWN, config, mode="lockstep")

    def frame(number, last=False):
        return {"observation": np.array([number], np.float32), "is_last": np.array([last])}

    for t in range(8):
        buffer.add_batch({"a": frame(t + 1, t == 3), "b": frame(101 + t)})
    sample = buffer.sample(200, window=Window(2, burn_in=2, short="pad"))
    items, info = stack_frames(3)(*of_agent("a", burn_in=2)(*sample))
    stacks = {
        int(time): row.tolist()
        for time, row, real in zip(info.times[:, 0], items["observation"].numpy()[:, 0], info.mask[:, 0], strict=True)
        if real
    }
    assert stacks == {0: [0, 0, 1], 1: [0, 1, 2], 2: [1, 2, 3], 4: [0, 0, 5], 5: [0, 5, 6], 6: [5, 6, 7]} | (
        {3: [2, 3, 4]} if 3 in stacks else {}
    ) | ({7: [6, 7, 8]} if 7 in stacks else {})
    with pytest.raises(tf.errors.InvalidArgumentError, match="were drawn with another burn_in"):
        of_agent("a")(*sample)


def test_context_with_gaps_is_refused_and_windows_drawn_elsewhere_are_not_the_agents():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 99), mode="lockstep")
    for turn in range(9):
        buffer.add_batch({"ab"[turn % 2]: values(turn)})
    items, info = of_agent("a")(*buffer.sample(100, 4))
    rows = {tuple(row) for row in np.where(info.mask, items["value"], -1).tolist()}
    assert rows == {(0, 2, -1, -1), (2, 4, -1, -1), (4, 6, -1, -1), (-1, -1, -1, -1)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="draw windows with context from independent policies"):
        of_agent("a", burn_in=2)(*buffer.sample(100, window=Window(2, burn_in=2)))


def test_agents_are_known_by_their_order_and_whatever_the_number_of_environments():
    specs, policy_of = {"a": VALUE, "b": VALUE, "c": VALUE}, {"a": "p", "b": "p", "c": "q"}
    own = {"p": TableConfig("tp", VALUE, 1000), "q": TableConfig("tq", VALUE, 1000)}
    names = {"p": "tp", "q": "tq"}
    with ReplayServer(agent_tables(specs, policy_of, independent=own)) as server:
        for num in (1, 3):
            with ReverbAgentTables(
                specs, policy_of, independent=names, server_address=server.address, batch_size=num
            ) as tables:
                writer = MultiAgentReplayBuffer(specs, policy_of, tables, batch_size=num)
                for step in range(4):
                    writer.add_batch(
                        {"a": values(*range(step, step + num)), "b": values(*range(100 + step, 100 + step + num))}
                    )
        with ReverbAgentTables(specs, policy_of, independent=names, server_address=server.address) as tables:
            reader = MultiAgentReplayBuffer(specs, policy_of, tables)
            items, info = reader.sample(200, policy="p")
            assert set(zip((items["value"].numpy() // 100).tolist(), info.agents.numpy().tolist(), strict=True)) == {
                (0, 0),
                (1, 1),
            }
        other = {"b": VALUE, "a": VALUE, "c": VALUE}
        with pytest.raises(ValueError, match="table 'tp' holds frames of 'a', 'b', in this order, and"):
            ReverbAgentTables(other, policy_of, independent=names, server_address=server.address)


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


def test_an_environment_without_agents_parts_streams_that_stay_together():
    config = BufferConfig("uniform", 10)
    buffer = MultiAgentReplayBuffer({"a": VALUE}, {"a": "a"}, config, mode="lockstep", batch_size=2, streams="together")
    with pytest.raises(ValueError, match="no agent is present in environment 1, and this buffer was built with"):
        buffer.add_batch({"a": values(0, 1)}, present={"a": np.array([True, False])})
    assert len(buffer) == 0


def test_a_queue_of_streams_that_part_is_in_the_order_in_which_frames_came():
    for sampler, expected in ((Fifo(), [1, 2, 3, 4, 5]), (Lifo(), [5, 4, 3, 2, 1])):
        buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 3, 50, sampler=sampler, max_times_sampled=1)
        buffer.let_streams_part()
        for number, stream in ((1, 2), (2, 1), (3, 2), (4, 0), (5, 2)):
            buffer.add_batch(np.array([number]), streams=[stream])
        assert buffer.sample(5)[0].numpy().tolist() == expected


def test_a_rebirth_while_others_are_absent_ends_nobody_elses_episode():
    spec = {**VALUE, "is_first": tf.TensorSpec([], tf.bool)}
    buffer = MultiAgentReplayBuffer({"a": spec, "b": spec}, OWN, BufferConfig("uniform", 99), mode="lockstep")
    for t in range(6):
        moment = {"a": {**values(t), "is_first": np.array([t in (0, 3)])}}
        if t != 3:
            moment["b"] = {**values(10 + t), "is_first": np.array([t == 0])}
        buffer.add_batch(moment)
    items, info = buffer.sample(200, 6)
    none = None
    assert {tuple(row) for row in shown(items, info, "b")} == {(10, 11, 12, none, 14, 15)}
    assert {tuple(row) for row in shown(items, info, "a")} == {(0, 1, 2, none, none, none)}


def test_all_frames_of_served_agents_of_different_lengths():
    own = {"both": TableConfig("own", VALUE, 50, scannable=True)}
    with MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, SHARED, own) as buffer:
        buffer.add_batch({"a": values(1), "b": values(2)})
        buffer.add_batch({"a": values(3)})
        held = {agent: frames["value"].to_list() for agent, frames in buffer.gather_all().items()}
    assert held == {"a": [[1, 3]], "b": [[2]]}


def test_clearing_tables_waits_for_no_limiter():
    specs, policy_of = {"a": VALUE, "b": VALUE}, OWN
    own = {"a": TableConfig("replay", VALUE, 1000), "b": table_presets.queue("queue", VALUE, max_size=3)}
    with ReverbAgentTables.local(specs, policy_of, independent=own, timeout_s=30.0) as tables:
        buffer = MultiAgentReplayBuffer(specs, policy_of, tables)
        for number in range(8):  # the last ones of b wait
            buffer.add_batch({"a": values(number), "b": values(number)})
        buffer.clear()
        assert [len(buffer.buffer_of(policy)) for policy in "ab"] == [0, 0]
        buffer.add_batch({"a": values(9), "b": values(9)})
        assert buffer.sample(1)[0]["b"]["value"].numpy().tolist() == [9]
        with pytest.raises(ValueError, match="there is no table of moments in the tables given"):
            MultiAgentReplayBuffer(specs, policy_of, tables, mode="lockstep")
