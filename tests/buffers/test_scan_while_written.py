"""What a table held when a scan began is met, however much others write meanwhile."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReverbReplayBuffer
from replayfeed.buffers.held_episodes import held_episodes

NUMBER = tf.TensorSpec([], tf.int64)


def test_nothing_that_was_held_is_missed_while_another_writes():
    """10,000 frames are held; more come until some are met, and 30,000 at most: no table that nothing leaves loses any.

    A scan that ended when it had met as many items as there were at first, whichever they are, missed a tenth.
    """
    pytest.importorskip("reverb")
    with ReverbReplayBuffer.local(NUMBER, max_size=1_000_000, sequence_length=1, timeout_s=60.0) as held:
        held.add_sequence(np.arange(10_000)[None])
        held.flush()
        address, is_written, is_read = held.server_address, threading.Event(), threading.Event()
        with (
            ReverbReplayBuffer(NUMBER, "replay", 1, address, timeout_s=60.0) as writer,
            ReverbReplayBuffer(NUMBER, "replay", 1, address, timeout_s=60.0) as reader,
        ):

            def write():
                for first in range(10_000, 40_000, 200):
                    writer.add_sequence(np.arange(first, first + 200)[None])
                    is_written.set()
                    if is_read.is_set():
                        break

            thread = threading.Thread(target=write)
            thread.start()
            try:
                assert is_written.wait(60.0)
                found = np.concatenate([run.items for run in held_episodes(reader)])
            finally:
                is_read.set()
                thread.join()
        assert np.sort(found)[:10_000].tolist() == list(range(10_000))
        assert len(np.unique(found)) == len(found)
