"""Moments of many agents: what a window shows of those that die, are born late or again, or have no turn."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import BufferConfig, EmptyBufferError, EpisodicReplayBuffer, MultiAgentReplayBuffer, Window

from .two_agents import ENDING, MAKERS, OWN, POISON, VALUE, ending, filled_lockstep, shown, values


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
