"""Tables that run dry while somebody reads: what comes when Reverb has just waited for long enough is delivered."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReverbReplayBuffer, SampleToInsertRatio

COUNTER = tf.TensorSpec([], tf.int64)

# Reverb looks for items for half a second: that is over just before, and just after, what comes next.
PAUSES = (0.45, 0.5, 0.5, 0.5, 0.55, 0.02) * 3
SIZES = np.random.default_rng(0).integers(1, 13, len(PAUSES)).tolist()
NUM_ITEMS = sum(SIZES)


def add_now_and_then(buffer: ReverbReplayBuffer) -> None:
    """Items 0, 1, 2, ... in pieces."""
    start, never = 0, threading.Event()
    for pause, size in zip(PAUSES, SIZES, strict=True):
        buffer.add_sequence(np.arange(start, start + size)[None])
        buffer.flush()
        start += size
        never.wait(pause)


@pytest.mark.parametrize("num_workers", [-1, 1])
def test_a_table_that_removes_what_it_delivers_loses_nothing_when_it_runs_dry(num_workers):
    with ReverbReplayBuffer.local(
        COUNTER,
        max_size=1000,
        sequence_length=1,
        max_times_sampled=1,
        scannable=False,
        num_workers_per_iterator=num_workers,
        timeout_s=30.0,
    ) as buffer:
        writer = threading.Thread(target=add_now_and_then, args=(buffer,))
        writer.start()
        items = iter(buffer.as_dataset())
        found = sorted(int(next(items)[0]) for _ in range(NUM_ITEMS))
        writer.join()
    assert found == list(range(NUM_ITEMS))


def test_no_draw_that_a_ratio_counts_is_lost_when_it_is_used_up():
    """`inserts * 1 - samples` is kept at -99 and above: 99 draws more than inserts, each of which is delivered."""
    limiter = SampleToInsertRatio(1.0, min_size_to_sample=1, error_buffer=100.0)
    with ReverbReplayBuffer.local(
        COUNTER, max_size=1000, sequence_length=1, rate_limiter=limiter, timeout_s=30.0
    ) as buffer:
        writer = threading.Thread(target=add_now_and_then, args=(buffer,))
        writer.start()
        items = iter(buffer.as_dataset())
        for _ in range(NUM_ITEMS + 99):
            next(items)
        writer.join()
        assert buffer.get_table_info().rate_limiter_info.sample_stats.completed == NUM_ITEMS + 99
