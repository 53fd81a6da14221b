"""Buffers of many agents that are added to: who is there, whose episodes end, and what is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from replayfeed.buffers import (
    BufferConfig,
    EmptyBufferError,
    Fifo,
    Lifo,
    MultiAgentReplayBuffer,
    TableConfig,
    TFUniformReplayBuffer,
)

from .two_agents import ENDING, OWN, POISON, SHARED, VALUE, ending, rows_of, shown, values


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
