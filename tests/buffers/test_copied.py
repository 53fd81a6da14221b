"""Buffers belong to a process: whoever copies one, or pickles it, is told what to hand over instead."""

from __future__ import annotations

import copy

import pytest
import tensorflow as tf

from replayfeed.buffers import (
    EpisodicReplayBuffer,
    ReservoirReplayBuffer,
    ReverbReplayBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
)

NUMBER = tf.TensorSpec([], tf.int64)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TFUniformReplayBuffer(NUMBER, 1, 10),
        lambda: TFPrioritizedReplayBuffer(NUMBER, 1, 10),
        lambda: EpisodicReplayBuffer(NUMBER, 10),
        lambda: ReservoirReplayBuffer(NUMBER, 10),
        lambda: ReverbReplayBuffer.local(NUMBER, max_size=10, sequence_length=1),
    ],
    ids=["uniform", "prioritized", "episodic", "reservoir", "served"],
)
@pytest.mark.parametrize("call", [copy.deepcopy, copy.copy], ids=["deepcopy", "copy"])
def test_a_buffer_is_no_copy_of_another_and_says_what_to_do(make, call):
    buffer = make()
    told = f"a {type(buffer).__name__} cannot be pickled or copied: .* get_state\\(\\) and set_state\\(\\)"
    with pytest.raises(TypeError, match=told):
        call(buffer)
    if isinstance(buffer, ReverbReplayBuffer):
        buffer.close()
