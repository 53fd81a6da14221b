"""Items taken out of a table on a Reverb server, and of the tables beside it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import Prioritized, ReplayServer, ReverbReplayBuffer, TableConfig

COUNTER = tf.TensorSpec([], tf.int64)


def served(**settings):
    """A buffer that holds 0 to 5, one item a frame, and the keys of these."""
    settings = {"max_size": 10, "timeout_s": 30.0, "scannable": False, "sequence_length": 1, **settings}
    buffer = ReverbReplayBuffer.local(COUNTER, **settings)
    buffer.add_sequence([[0, 1, 2, 3, 4, 5]], priorities=[[1.0, 2.0, 3.0, 50.0, 4.0, 0.5]])
    buffer.flush()
    return buffer, keys_of(buffer)


def keys_of(buffer):
    items, info = buffer.sample(3000)  # the rarest has a chance of 1 in 121: one miss in 10^10 runs
    return dict(zip(items.numpy().reshape(-1).tolist(), info.keys.numpy().tolist(), strict=True))


@pytest.mark.parametrize("way", ["array", "tensor", "function"])
def test_deleted_items_are_not_drawn_any_more(way):
    buffer, keys = served()
    with buffer:
        assert sorted(keys) == [0, 1, 2, 3, 4, 5]
        gone = np.array([keys[1], keys[4]])
        if way == "function":
            tf.function(lambda: buffer.delete(tf.constant(gone)))()
        else:
            buffer.delete(gone if way == "array" else tf.constant(gone))
        buffer.delete(gone)  # gone already
        buffer.delete(np.zeros(0, np.int64))
        assert sorted(keys_of(buffer)) == [0, 2, 3, 5]
        assert buffer.get_table_info().current_size == 4


def test_mirrors_lose_what_the_table_loses():
    buffer, keys = served(sampler=Prioritized(1.0), initial="max", tracks_least=True, weight_norm="buffer")
    with buffer:
        buffer.delete([keys[3], keys[5]])  # the greatest and the least priority
        buffer.add_batch([6])  # gets the greatest that is left: 4
        buffer.flush()
        items, info = buffer.sample(300)
        chances = dict(zip(items.numpy().reshape(-1).tolist(), info.probabilities.numpy().tolist(), strict=True))
        assert chances == pytest.approx({0: 1 / 14, 1: 2 / 14, 2: 3 / 14, 4: 4 / 14, 6: 4 / 14})
        with pytest.raises(ValueError, match=r"delete: keys\[0\] is 77, which this buffer has not drawn"):
            buffer.delete([77])


def test_a_table_that_is_scanned_refuses_deletes():
    buffer, keys = served(scannable=True)
    with buffer, pytest.raises(ValueError, match="has a scan table, which deletes cannot reach.*scannable=False"):
        buffer.delete([keys[0]])


def test_keys_are_checked():
    buffer, _ = served()
    with buffer:
        with pytest.raises(ValueError, match="keys and ids are int64 numbers"):
            buffer.delete([0.5])
        with pytest.raises(ValueError, match=r"keys: expected int64 \[n\], got shape \[1, 1\]"):
            buffer.delete([[3]])


def test_a_buffer_in_another_place_deletes_by_the_keys_that_it_drew():
    table = TableConfig("t", COUNTER, 10)
    with ReplayServer([table]) as server:
        writer = ReverbReplayBuffer(COUNTER, "t", 1, server_address=server.address)
        reader = ReverbReplayBuffer(COUNTER, "t", 1, server_address=server.address)
        with writer, reader:
            writer.add_sequence([[0, 1, 2]])
            writer.flush()
            reader.delete([keys_of(reader)[1]])
            assert sorted(keys_of(writer)) == [0, 2]
