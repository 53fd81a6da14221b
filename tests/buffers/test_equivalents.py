"""What RLlib, TF-Agents and Acme call their samples, and which calls of ours give the same: the README's table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.trajectories.trajectory import Trajectory

from replayfeed.buffers import EpisodicReplayBuffer, ReplayBuffer, ReverbReplayBuffer, TFUniformReplayBuffer, Window
from replayfeed.pipelines import add_cut_sequences, recurrent_state

VALUE = {"value": tf.TensorSpec([], tf.int64)}


def ring(*lengths: int) -> ReplayBuffer:
    """Episodes of these lengths; their frames count up from 1."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 100, seed=0)
    for first, length in zip(np.cumsum([1, *lengths]), lengths, strict=False):
        ends = np.arange(length)[None] == length - 1
        buffer.add_sequence({"value": np.arange(first, first + length)[None]}, end_of_episode=ends)
    return buffer


def passed(buffer: ReplayBuffer, window: Window | None = None) -> list[Any]:
    dataset = buffer.as_dataset(window=window, single_deterministic_pass=True)
    return [items["value"].numpy().tolist() for items, _ in dataset]


# RLlib's storage units: an episode of 7 steps, then one of 2


def test_rllib_timesteps_are_single_frames():
    assert passed(ring(7, 2)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_rllib_sequences_lie_side_by_side_in_an_episode_and_its_last_is_padded():
    assert passed(ring(7, 2), Window(3, stride=3, short="pad")) == [[1, 2, 3], [4, 5, 6], [7, 0, 0], [8, 9, 0]]


def test_rllib_burn_in_reaches_back_over_the_cut_but_not_over_the_episodes_start():
    """The padded length includes the burn-in, as in RLlib's `replay_burn_in`."""
    expected = [[0, 0, 1, 2, 3], [2, 3, 4, 5, 6], [5, 6, 7, 0, 0], [0, 0, 8, 9, 0]]
    assert passed(ring(7, 2), Window(3, burn_in=2, stride=3, short="pad")) == expected


@pytest.mark.parametrize(("initial_state", "expected"), [("stored", [1, 2, 5, 8]), ("zero", [0, 0, 0, 0])])
def test_rllib_zero_init_states_or_that_of_the_first_real_row(initial_state, expected):
    window = Window(3, burn_in=2, stride=3, short="pad")
    ((items, _),) = (
        ring(7, 2)
        .as_dataset(4, window=window, single_deterministic_pass=True)
        .map(recurrent_state("value", initial_state))
    )
    assert items.state["value"].numpy().tolist() == expected


def episodic() -> EpisodicReplayBuffer:
    return EpisodicReplayBuffer(VALUE, 100, seed=0)


def test_rllib_episodes_come_whole():
    buffer = episodic()
    buffer.extend([{"value": np.arange(1, 8)}, {"value": np.arange(8, 10)}])
    assert passed(buffer) == [[1, 2, 3, 4, 5, 6, 7], [8, 9]]


def test_rllib_fragments_come_as_they_were_delivered():
    """Whole as `add` got them, wherever the episode goes on."""
    buffer = episodic()
    for fragment in ([1, 2, 3], [4, 5], [6, 7, 8, 9]):
        buffer.add_sequence({"value": np.array([fragment])})
        buffer.end_stream()
    assert passed(buffer) == [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    same = episodic()
    cut = {"value": np.array([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 9]])}
    add_cut_sequences(same, cut, [3, 2, 4], replay_sequence_override=False)
    assert passed(same) == [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


def test_o4_items_of_growing_length_never_hold_more_than_the_capacity():
    """RLlib's ring keeps old items beside longer new ones: 18 steps in a capacity of 10."""
    buffer = EpisodicReplayBuffer(VALUE, 100, max_frames=10)
    value = 0
    for length in [1] * 10 + [3] * 6:
        buffer.extend([{"value": np.arange(value, value + length)}])
        value += length
        assert len(buffer) <= 10
    assert passed(buffer) == [[19, 20, 21], [22, 23, 24], [25, 26, 27]]


# TF-Agents' trajectory observer at an episode's end, the real one, against a table of ours


def trajectories(num_steps: int) -> list[Trajectory]:
    """An episode of `num_steps` transitions and its boundary frame; observations count up from 1."""
    step_types = [0, *[1] * (num_steps - 1), 2, 0]
    return [
        Trajectory(
            step_type=np.int32(step_types[t]),
            observation=np.int64(t + 1),
            action=np.int64(0),
            policy_info=(),
            next_step_type=np.int32(step_types[t + 1]),
            reward=np.float32(1),
            discount=np.float32(1),
        )
        for t in range(num_steps + 1)
    ]


def items_of_the_observer(steps: list[Trajectory], **arguments: Any) -> list[list[int]]:
    # An observer hands its last items over without waiting for them, so the first-in-first-out table says how many.
    table = reverb.Table("t", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1), 1)
    server = reverb.Server([table])
    client = reverb.Client(f"localhost:{server.port}")
    observer = reverb_utils.ReverbAddTrajectoryObserver(client, "t", **arguments)
    for step in steps:
        observer(step)
    observer.close()
    num_items = client.server_info()["t"].current_size
    samples = list(client.sample("t", num_items, emit_timesteps=False)) if num_items else []
    server.stop()
    return [sample.data[1].tolist() for sample in samples]


def items_of_ours(steps: list[Trajectory], **arguments: Any) -> list[list[int]]:
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), steps[0])
    with ReverbReplayBuffer.local(spec, max_size=100, timeout_s=30.0, **arguments) as buffer:
        for step in steps:
            buffer.add_batch(tf.nest.map_structure(lambda leaf: leaf[None], step))
        window = Window(arguments["sequence_length"], stride=arguments["stride"], short=arguments["short"])
        dataset = buffer.as_dataset(window=window, single_deterministic_pass=True)
        return [items.observation.numpy().tolist() for items, _ in dataset]


def test_an_observer_that_neither_pads_nor_tiles_is_short_drop():
    steps = trajectories(4)
    expected = [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert items_of_the_observer(steps, sequence_length=3) == expected
    assert items_of_ours(steps, sequence_length=3, stride=1, short="drop") == expected


def test_an_observer_that_pads_and_tiles_is_short_pad():
    """But for the tile that is nothing but the final observation, from which there is nothing to learn."""
    steps = trajectories(4)
    tiles = items_of_the_observer(steps, sequence_length=3, pad_end_of_episodes=True, tile_end_of_episodes=True)
    assert tiles == [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 0], [5, 0, 0]]
    assert items_of_ours(steps, sequence_length=3, stride=1, short="pad") == tiles[:-1]


def test_an_observer_that_only_pads_is_short_pad_with_a_stride():
    """An episode shorter than the sequence: one item, padded."""
    steps = trajectories(2)
    assert items_of_the_observer(steps, sequence_length=5, stride_length=5, pad_end_of_episodes=True) == [
        [1, 2, 3, 0, 0]
    ]
    assert items_of_ours(steps, sequence_length=5, stride=5, short="pad") == [[1, 2, 3, 0, 0]]


def drawn_starts(batches: Any) -> dict[tuple[int, ...], float]:
    """The windows that came, with the chance that was told."""
    return {
        tuple(row.tolist()): float(chance)
        for items, info in batches
        for row, chance in zip(items.observation.numpy(), info.probabilities.numpy(), strict=True)
    }


def test_shorter_windows_of_an_observers_table_are_all_drawn_with_their_chance():
    """Items of 4 cut into windows of 2 side by side, as TF-Agents does, by `sample` too."""
    steps = trajectories(7)
    table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1))
    server = reverb.Server([table])
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), steps[0])
    with ReverbReplayBuffer(spec, "t", 4, local_server=server, timeout_s=30.0) as buffer:
        observer = reverb_utils.ReverbAddTrajectoryObserver(buffer.py_client, "t", 4, stride_length=4)
        for step in steps:
            observer(step)
        observer.flush()
        expected = {(1, 2): 0.25, (3, 4): 0.25, (5, 6): 0.25, (7, 8): 0.25}
        assert drawn_starts([buffer.sample(100, 2)]) == expected
        assert drawn_starts(buffer.as_dataset(50, 2).take(4)) == expected
        observer.close()
    server.stop()


def test_windows_of_items_that_differ_in_length_are_drawn_and_no_chance_is_told():
    steps = [*trajectories(1)[:1], *trajectories(5)]
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), steps[0])
    signature = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), spec)
    table = reverb.Table(
        "t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 9, reverb.rate_limiters.MinSize(1), 0, (), signature
    )
    server = reverb.Server([table])
    with ReverbReplayBuffer(spec, "t", None, local_server=server, timeout_s=30.0) as buffer:
        observer = reverb_utils.ReverbAddEpisodeObserver(buffer.py_client, "t", max_sequence_length=50)
        for length in (1, 5):
            for step in trajectories(length):
                observer(step)
        observer.flush()
        items, info = buffer.sample(60, 2)
        assert {tuple(row) for row in items.observation.numpy().tolist()} == {(1, 2), (3, 4), (5, 6)}
        assert np.isnan(info.probabilities).all()
        with pytest.raises(
            ValueError, match="the table's items differ in length: give num_steps, or sample one at a time"
        ):
            buffer.sample(2)
        observer.close()
    server.stop()
