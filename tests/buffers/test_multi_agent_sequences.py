"""Sequences of some environments are as moments in which nobody is present elsewhere, without a loop over steps."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    BufferConfig,
    EmptyBufferError,
    MultiAgentReplayBuffer,
    TFPrioritizedReplayBuffer,
    Window,
)

VALUE = {"value": tf.TensorSpec([], tf.int64)}
TOLD = {**VALUE, "is_first": tf.TensorSpec([], tf.bool), "is_last": tf.TensorSpec([], tf.bool)}
AGENTS = ("wolf", "sheep")


def buffer_of(mode, spec=VALUE, batch_size=3, policy_of=lambda agent: "all", **arguments):
    config = BufferConfig("uniform", 600, seed=1)
    return MultiAgentReplayBuffer(
        dict.fromkeys(AGENTS, spec), policy_of, config, mode=mode, batch_size=batch_size, **arguments
    )


def rows(*numbers):
    return {"value": np.array(numbers, np.int64)}


def contents(buffer):
    """All frames with their moments, and windows: equal eligible ones give equal draws, of equal seeds."""
    held, drawn = [], []
    for policy in buffer.policies if buffer.mode == "independent" else [None]:
        part = buffer.buffer_of(policy)
        held.append(tf.nest.map_structure(lambda leaf: leaf.to_list(), part.gather_all()))
        try:
            sample = part.sample(60, window=Window(3, short="pad"))
        except EmptyBufferError as error:
            drawn.append(str(error))
        else:
            drawn.append(tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), sample))
    return held, drawn


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_the_other_environments_have_no_moment(mode):
    buffer = buffer_of(mode)
    ids = buffer.add_sequence({"wolf": rows([1, 2], [5, 6])}, streams=[0, 2])
    assert np.asarray(ids if mode == "lockstep" else ids["wolf"]).shape == (2, 2)
    buffer.add_batch({"wolf": rows(3, 4, 7)})
    held = buffer.gather_all()["wolf"]["value"].to_list()
    assert held == [[1, 2, 3], [4], [5, 6, 7]]
    pass_ = {} if mode == "lockstep" else {"policy": "all"}
    windows = {
        tuple(row)
        for items, info in buffer.as_dataset(2, 2, single_deterministic_pass=True, **pass_)
        for row in (items["wolf"] if mode == "lockstep" else items)["value"].numpy().tolist()
    }
    assert {(1, 2), (5, 6)} <= windows and not any((a <= 4) != (b <= 4) for a, b in windows)


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
@pytest.mark.parametrize("spec", [VALUE, TOLD], ids=["untold", "told"])
@settings(max_examples=15)
@given(data=st.data())
def test_a_sequence_of_some_environments_is_as_its_moments_one_by_one(mode, spec, data):
    whole, single = buffer_of(mode, spec), buffer_of(mode, spec)
    number = 0
    for _ in range(data.draw(st.integers(1, 5))):
        streams = np.array(sorted(data.draw(st.sets(st.integers(0, 2), min_size=1))))
        agents = data.draw(st.lists(st.sampled_from(AGENTS), min_size=1, unique=True))
        shape = (len(streams), data.draw(st.integers(0, 4)))
        bools = st.lists(st.booleans(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))
        items, ends = {}, {}
        for agent in agents:
            items[agent] = {"value": number + np.arange(np.prod(shape), dtype=np.int64).reshape(shape)}
            number += int(np.prod(shape))
            for flag in set(spec) - {"value"}:
                items[agent][flag] = np.array(data.draw(bools), bool).reshape(shape)
            if spec is VALUE:
                ends[agent] = np.array(data.draw(bools), bool).reshape(shape)
        ended = data.draw(st.sampled_from(["none", "by agent", "all"])) if spec is VALUE else "none"
        told = {"none": None, "by agent": ends, "all": next(iter(ends.values()), None)}[ended]
        given_ids = whole.add_sequence(items, end_of_episode=told, streams=streams)
        expected = {agent: np.full(shape, -1) for agent in agents} if mode == "independent" else np.full(shape, -1)
        present = np.isin(np.arange(3), streams)
        for t in range(shape[1]):
            moment = {
                agent: {name: _spread(column[:, t], streams) for name, column in nest.items()}
                for agent, nest in items.items()
            }
            now = told
            if isinstance(told, dict):
                now = {agent: _spread(flags[:, t], streams) for agent, flags in told.items()}
            elif told is not None:
                now = _spread(told[:, t], streams)
            ids = single.add_batch(moment, end_of_episode=now, present=dict.fromkeys(agents, present))
            if mode == "lockstep":
                expected[:, t] = ids[streams]
            else:
                for agent in agents:
                    expected[agent][:, t] = ids[agent][streams]
        np.testing.assert_equal(given_ids, expected)
        if data.draw(st.booleans()):
            b = data.draw(st.sampled_from([None, 0, 2]))
            agent = data.draw(st.sampled_from([None, *AGENTS]))
            whole.end_stream(b, agent=agent)
            single.end_stream(b, agent=agent)
    assert contents(whole) == contents(single)


def _spread(values, streams):
    everywhere = np.zeros(3, values.dtype)
    everywhere[streams] = values
    return everywhere


def test_priorities_are_those_of_the_rows_that_are_given():
    def make(data_spec, batch_size):
        return TFPrioritizedReplayBuffer(data_spec, batch_size, max_length=10, alpha=1.0)

    specs = {"wolf": VALUE}
    alone = MultiAgentReplayBuffer(specs, {"wolf": "wolf"}, make, batch_size=2)
    alone.add_sequence({"wolf": rows([1, 2])}, priorities={"wolf": np.array([[0.0, 1.0]])}, streams=[1])
    assert alone.sample(4, policy="wolf")[0]["value"].numpy().tolist() == [2] * 4
    together = MultiAgentReplayBuffer(specs, {"wolf": "wolf"}, make, batch_size=2, mode="lockstep")
    together.add_sequence({"wolf": rows([1, 2])}, priorities=np.array([[0.0, 1.0]]), streams=[1])
    assert together.sample(4)[0]["wolf"]["value"].numpy().tolist() == [2] * 4


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_graphs_may_add_them_too(mode):
    buffer = buffer_of(mode)

    @tf.function
    def add(values, streams):
        return buffer.add_sequence({"wolf": {"value": values}}, streams=streams)

    ids = add(tf.constant([[1, 2]], tf.int64), tf.constant([1]))
    assert (ids if mode == "lockstep" else ids["wolf"]).shape == [1, 2]
    assert buffer.gather_all()["wolf"]["value"].to_list() == [[], [1, 2], []]


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_what_does_not_fit_the_streams_is_refused_and_leaves_nothing(mode):
    buffer = buffer_of(mode)
    for streams, message in ([3], "3"), ([1, 1], "1"), ([2, 0], "2, 0"):
        with pytest.raises(ValueError, match=message):
            buffer.add_sequence({"wolf": rows(*[[1]] * len(streams))}, streams=streams)
    with pytest.raises(ValueError, match=r"agent 'wolf': field 'value': expected \[1, T\] int64, got \[3, 1\]"):
        buffer.add_sequence({"wolf": rows([1], [2], [3])}, streams=[1])
    with pytest.raises(ValueError, match=r"end_of_episode: expected \[1, 2\] bool"):
        buffer.add_sequence({"wolf": rows([1, 2])}, streams=[1], end_of_episode=np.zeros([3, 2], bool))
    assert buffer.stats().added == 0
    ids = buffer.add_sequence({"wolf": {"value": np.zeros([0, 2], np.int64)}}, streams=[])
    assert np.shape(ids if mode == "lockstep" else ids["wolf"]) == (0, 2)
    assert buffer.stats().added == 0


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_streams_that_stay_together_take_sequences_of_all_only(mode):
    buffer = buffer_of(mode, streams="together")
    with pytest.raises(ValueError, match="this buffer was built with streams='together'"):
        buffer.add_sequence(dict.fromkeys(AGENTS, rows([1, 2])), streams=[1])
    buffer.add_sequence(dict.fromkeys(AGENTS, rows([1], [2], [3])), streams=[0, 1, 2])
    assert buffer.gather_all()["wolf"]["value"].to_list() == [[1], [2], [3]]
