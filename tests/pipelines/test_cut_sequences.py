"""Sequences that arrive cut: RLlib's `replay_sequence_override`, both ways."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import TFUniformReplayBuffer, Window
from replayfeed.pipelines import add_cut_sequences

SPEC = {"value": tf.TensorSpec([], tf.int64), "is_last": tf.TensorSpec([], tf.bool)}
# One episode of six frames, of which the last is the final observation, in sequences of at most three; then a new one.
CUT = {
    "value": np.array([[1, 2, 3], [4, 0, 0], [5, 6, 0], [7, 8, 9]]),
    "is_last": np.array([[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]], bool),
}
LENGTHS = np.array([3, 1, 2, 3])


def stored(override: bool) -> TFUniformReplayBuffer:
    buffer = TFUniformReplayBuffer(SPEC, 1, 20, seed=0)
    ids = add_cut_sequences(buffer, CUT, LENGTHS, replay_sequence_override=override)
    assert ids.tolist() == list(range(9))
    return buffer


def passed(buffer: TFUniformReplayBuffer, window: Window) -> list[list[int]]:
    dataset = buffer.as_dataset(window=window, single_deterministic_pass=True)
    return [items["value"].numpy().tolist() for items, _ in dataset]


def test_overriding_cuts_windows_anew_over_the_arrived_cuts():
    assert passed(stored(True), Window(4)) == [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]


def test_without_overriding_each_sequence_stays_a_unit():
    whole = Window(3, stride=3, short="pad")
    assert passed(stored(False), whole) == [[1, 2, 3], [4, 0, 0], [5, 6, 0], [7, 8, 9]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="no window of 4 frames: 4 episodes, longest 3"):
        passed(stored(False), Window(4))


@pytest.mark.parametrize(
    ("change", "lengths", "message"),
    [
        ({}, [3, 0, 2, 3], r"lengths must be 1 to 3, got \[3, 0, 2, 3\]"),
        ({}, [3, 1, 2, 4], r"lengths must be 1 to 3, got \[3, 1, 2, 4\]"),
        ({}, [3, 1, 2], r"lengths must be int \[4\], got int64 \[3\]"),
        ({}, [3.0, 1.0, 2.0, 3.0], r"lengths must be int \[4\], got float64 \[4\]"),
        ({"is_last": np.zeros([4, 2], bool)}, LENGTHS, r"leaves must be \[N, T, ...\] alike"),
        ({"value": CUT["value"].astype(np.int32)}, LENGTHS, "field 'value': expected .* int64, got .* int32"),
    ],
)
def test_wrong_sequences_are_refused_and_nothing_is_stored(change, lengths, message):
    buffer = TFUniformReplayBuffer(SPEC, 1, 20)
    with pytest.raises(ValueError, match=message):
        add_cut_sequences(buffer, {**CUT, **change}, lengths)
    assert len(buffer) == 0


def test_several_streams_are_refused():
    with pytest.raises(ValueError, match="the buffer has 2 streams, and the sequences are of one"):
        add_cut_sequences(TFUniformReplayBuffer(SPEC, 2, 20), CUT, LENGTHS)


def test_units_do_not_join_what_the_stream_has_open():
    buffer = TFUniformReplayBuffer(SPEC, 1, 20, seed=0)
    buffer.add_batch({"value": np.array([99]), "is_last": np.array([False])})
    add_cut_sequences(buffer, CUT, LENGTHS, replay_sequence_override=False)
    whole = Window(3, stride=3, short="pad")
    assert passed(buffer, whole) == [[99, 0, 0], [1, 2, 3], [4, 0, 0], [5, 6, 0], [7, 8, 9]]
