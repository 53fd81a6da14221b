"""Buffers of episodes that get frames of some streams only: which episodes leave, and when, what is refused, by id.

That every frame and window is there is a matter of the contract (`test_streams_apart.py`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import EpisodicReplayBuffer
from replayfeed.buffers.agent_frames import AgentFrame
from replayfeed.buffers.storage import FrameStorage

COUNTER = tf.TensorSpec([], tf.int64, "counter")
FIRST, MID, LAST = 0, 1, 2
STEP = {"step_type": tf.TensorSpec([], tf.int32), "value": tf.TensorSpec([], tf.int64)}


@dataclasses.dataclass
class Episode:
    """One episode as the model of a full buffer knows it."""

    values: list[int]
    finished: bool = False


class FullModel:
    """All episodes that ever began; those from `oldest` on are held."""

    def __init__(self, num_streams: int, capacity: int, max_frames: int | None) -> None:
        self.capacity, self.max_frames = capacity, max_frames
        self.episodes: list[Episode] = []
        self.oldest = self.num_cut = self.next_value = 0
        self.open = [-1] * num_streams

    def held(self) -> list[tuple[int, list[int], bool]]:
        found = [(e, one.values, one.finished) for e, one in enumerate(self.episodes)]
        return [episode for episode in found[self.oldest :] if episode[1]]

    def num_frames(self, oldest: int) -> int:
        return sum(len(one.values) for one in self.episodes[oldest:])

    def continued(self, b: int) -> int:
        e = self.open[b]
        return e if e >= self.oldest and not self.episodes[e].finished else -1

    def fits(self, num_streams: int) -> bool:
        """Whether a frame of so many streams fits beside what all streams have open."""
        lengths = [len(self.episodes[e].values) for e in map(self.continued, range(len(self.open))) if e >= 0]
        return self.max_frames is None or sum(lengths) + num_streams <= self.max_frames

    def add_step(self, streams: list[int], step_types: list[int]) -> list[int]:
        """One frame of each of these: who must go for all of them goes before any is written."""
        for b, step_type in zip(streams, step_types, strict=True):
            if step_type == FIRST:
                self.end(b)
        news = {b for b in streams if self.continued(b) < 0}
        while True:
            oldest = max(self.oldest, len(self.episodes) + len(news) - self.capacity)
            while self.max_frames is not None and self.num_frames(oldest) + len(streams) > self.max_frames:
                oldest += 1
            cut = {b for b in streams if b not in news and self.open[b] < oldest}
            if not cut:
                break
            news |= cut
        self.evict(oldest)
        values = []
        for b, step_type in zip(streams, step_types, strict=True):
            if b in news:
                self.open[b] = len(self.episodes)
                self.episodes.append(Episode([]))
            self.episodes[self.open[b]].values.append(self.next_value)
            values.append(self.next_value)
            self.next_value += 1
            if step_type == LAST:
                self.end(b)
        return values

    def evict(self, oldest: int) -> None:
        self.oldest = max(self.oldest, oldest)
        for b, e in enumerate(self.open):
            if -1 < e < self.oldest:
                self.num_cut += 1
                self.open[b] = -1

    def end(self, b: int) -> None:
        if self.open[b] >= 0:
            self.episodes[self.open[b]].finished = True
        self.open[b] = -1


@dataclasses.dataclass(frozen=True)
class FullAdd:
    """Frames of some streams of a full buffer, `[T][n]` step types, in one call or one by one."""

    streams: frozenset[int]
    num_steps: int
    step_types: list[int]
    one_by_one: bool

    def apply(self, buffer: EpisodicReplayBuffer, model: FullModel) -> None:
        streams = sorted({b % len(model.open) for b in self.streams})
        steps: list[tuple[list[int], list[int]]] = []
        for step_types in np.resize(self.step_types, (self.num_steps, len(streams))).tolist():
            if not model.fits(len(streams)):  # is refused: below
                break
            steps.append((step_types, model.add_step(streams, step_types)))
        if not steps:
            return
        items = [np.array(leaf).T for leaf in zip(*steps, strict=True)]
        items = {"step_type": items[0].astype(np.int32), "value": items[1]}
        if not self.one_by_one:
            try:
                buffer.add_sequence(items, streams=streams)
                return
            except ValueError as error:  # the bound is one of all steps together: what goes meanwhile does not count
                assert "open episodes would hold" in str(error)
        for t in range(len(steps)):
            buffer.add_batch({name: leaf[:, t] for name, leaf in items.items()}, streams=streams)


FULL_ADDS = st.builds(
    FullAdd,
    streams=st.frozensets(st.integers(0, 2), min_size=1),
    num_steps=st.integers(1, 5),
    step_types=st.lists(st.sampled_from([MID] * 5 + [LAST, FIRST]), min_size=7, max_size=11),
    one_by_one=st.booleans(),
)


@given(
    num_streams=st.integers(1, 3),
    spare=st.integers(0, 2),
    max_frames=st.sampled_from([None, 7, 9, 14]),
    operations=st.lists(st.one_of(*[FULL_ADDS] * 6, st.integers(0, 2)), min_size=8, max_size=24),
)
@settings(max_examples=200)
def test_a_full_buffer_of_episodes_holds_what_the_model_holds(num_streams, spare, max_frames, operations):
    model = FullModel(num_streams, num_streams + spare, max_frames)
    buffer = EpisodicReplayBuffer(STEP, num_streams + spare, batch_size=num_streams, max_frames=max_frames)
    for operation in operations:
        if isinstance(operation, FullAdd):
            operation.apply(buffer, model)
        else:
            buffer.end_stream(operation % num_streams)
            model.end(operation % num_streams)
        held = [(one.episode_id, one.items["value"].tolist(), one.finished) for one in buffer.episodes()]
        assert held == model.held()
        assert buffer.num_cut_episodes == model.num_cut
    assert len(buffer) == model.num_frames(model.oldest)


def add(buffer: EpisodicReplayBuffer, streams: Sequence[int], values: Sequence[Any], ends: Any = None) -> None:
    """Adds these values, `[n]` or `[n, T]`, of COUNTER."""
    array = np.array(values, np.int64)
    adder = buffer.add_batch if array.ndim == 1 else buffer.add_sequence
    adder(array, streams=streams, end_of_episode=None if ends is None else np.array(ends))


def held(buffer: EpisodicReplayBuffer) -> list[list[int]]:
    return [one.items.tolist() for one in buffer.episodes()]


def test_the_open_episode_of_a_stream_that_waits_goes_when_it_is_the_oldest(caplog):
    buffer = EpisodicReplayBuffer(COUNTER, 2, batch_size=2)
    add(buffer, [0, 1], [0, 1000], ends=[False, True])
    for value in (1001, 1002):
        add(buffer, [1], [value], ends=[True])
    assert held(buffer) == [[1001], [1002]]
    assert buffer.num_cut_episodes == 1
    assert "episode 0 of stream 0 was the oldest and went before it ended" in caplog.text
    add(buffer, [0], [1])
    assert held(buffer) == [[1002], [1]]


def test_that_a_waiting_streams_episode_went_is_told_at_once():
    """Also where the frame that it made room for goes on with an episode."""
    buffer = EpisodicReplayBuffer(COUNTER, 9, batch_size=2, max_frames=4)
    add(buffer, [0, 1], [0, 1000], ends=[False, True])
    add(buffer, [1], [1001])
    add(buffer, [1], [1002])
    assert buffer.num_cut_episodes == 0
    add(buffer, [1], [1003])
    assert held(buffer) == [[1000], [1001, 1002, 1003]]
    assert buffer.num_cut_episodes == 1


@pytest.mark.parametrize("values", [[1003], [[1003]]])
def test_what_streams_have_open_together_must_fit(values):
    buffer = EpisodicReplayBuffer(COUNTER, 9, batch_size=3, max_frames=6)
    add(buffer, [0, 1], [[0, 1, 2], [1000, 1001, 1002]])
    with pytest.raises(ValueError, match="2 open episodes would hold 7 frames, max_frames is 6"):
        add(buffer, [1], values)
    assert held(buffer) == [[0, 1, 2], [1000, 1001, 1002]]
    buffer.end_stream(0)
    add(buffer, [1], values)
    assert held(buffer) == [[1000, 1001, 1002, 1003]]


def test_an_episode_that_others_push_out_while_it_is_written_begins_anew():
    """The oldest one held has no frame any more, so that the one being written is not the oldest, and must go."""
    buffer = EpisodicReplayBuffer(COUNTER, 9, batch_size=2, max_frames=10)
    buffer.extend([np.array([7])])
    buffer.extract([0], clear_data=True)
    for t in range(5):
        add(buffer, [1], [1000 + t])
    buffer.extend([np.arange(5)])
    add(buffer, [1], [1005])
    assert held(buffer) == [[0, 1, 2, 3, 4], [1005]]
    assert len(buffer) == 6


@pytest.mark.parametrize(
    ("streams", "values", "expected"),
    [
        ([1], [1001], [[0, 1], [1000], [2000, 2001], [1001]]),
        ([1, 2], [1001, 2001], [[0, 1], [1000], [2000], [1001], [2001]]),
        ([1], [[1001, 1002]], [[0, 1], [1000], [2000, 2001], [1001]]),
    ],
)
def test_an_interrupted_add_leaves_the_other_streams_episodes_open(monkeypatch, streams, values, expected):
    """Its own streams begin anew: a frame may be missing."""
    buffer = EpisodicReplayBuffer(COUNTER, 20, batch_size=3)
    add(buffer, [0, 1, 2], [0, 1000, 2000])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FrameStorage, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            add(buffer, streams, values)
    add(buffer, [0, 1, 2], [1, 1001, 2001])
    assert held(buffer) == expected
    assert len(buffer) == 6


def test_streams_and_episode_ids_are_not_given_together():
    buffer = EpisodicReplayBuffer(COUNTER, 9, batch_size=2)
    for adder, episodes in ((buffer.add_batch, [-1]), (buffer.add_sequence, -1)):
        with pytest.raises(ValueError, match="streams beside episode ids"):
            adder(np.array([0]), np.array(episodes), streams=[0])
    assert len(buffer) == 0


def test_an_agents_episode_is_complete_with_its_last_transition():
    """As that of a Trajectory: what `AgentFrame` puts beside the agent's own frame changes nothing."""
    spec = AgentFrame({**STEP, "next_step_type": STEP["step_type"]}, tf.TensorSpec([], tf.int64))
    buffer = EpisodicReplayBuffer(spec, 9, completed_only=True)
    for t, (step_type, next_step_type) in enumerate([(FIRST, MID), (MID, LAST)]):
        flags = {"step_type": np.array([step_type], np.int32), "next_step_type": np.array([next_step_type], np.int32)}
        buffer.add_batch(AgentFrame({**flags, "value": np.array([t])}, np.array([t])))
    items, _ = buffer.sample()
    assert items.frame["value"].numpy().tolist() == [0, 1]
