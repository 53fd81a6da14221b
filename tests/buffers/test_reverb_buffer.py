"""What is special about the buffer on Reverb; the shared contract is tested in test_contract.py."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import reverb
import tensorflow as tf

from replayfeed.buffers import (
    Fifo,
    Lifo,
    ReplayServer,
    ReverbReplayBuffer,
    TableConfig,
    TFUniformReplayBuffer,
    WaitTimeoutError,
)

from .steps import EVERY_DTYPE

COUNTER = tf.TensorSpec([], tf.int64)


@pytest.fixture
def make() -> Iterator[Any]:
    """Builds embedded buffers of counters, and closes them."""
    built: list[ReverbReplayBuffer] = []

    def build(spec: Any = COUNTER, **settings: Any) -> ReverbReplayBuffer:
        built.append(
            ReverbReplayBuffer.local(spec, **{"max_size": 100, "sequence_length": 1, "timeout_s": 30.0, **settings})
        )
        return built[-1]

    yield build
    for buffer in built:
        buffer.close()


def starts(buffer: ReverbReplayBuffer, num_steps: int | None, draws: int = 400) -> set[int]:
    items, _ = buffer.sample(draws, num_steps)
    return set(np.asarray(items).reshape(draws, -1)[:, 0].tolist())


def sampled(buffer: ReverbReplayBuffer) -> int:
    return int(buffer.get_table_info().rate_limiter_info.sample_stats.completed)


# Items


def test_items_start_every_stride_frames_in_each_episode(make):
    buffer = make(sequence_length=3, stride=2)
    ends = np.array([[t == 6 for t in range(12)]])
    buffer.add_sequence(np.arange(12)[None], end_of_episode=ends)
    assert starts(buffer, 3) == {0, 2, 4, 7, 9}
    assert len(buffer) == 5 * 2


def test_an_episode_shorter_than_an_item_is_told_and_the_timeout_says_why(make, caplog):
    """FR-007, FR-023: five episodes of two frames hold no window of five."""
    buffer = make(sequence_length=5, timeout_s=3.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            buffer.add_sequence(np.array([[1, 2]]), end_of_episode=np.array([[False, True]]))
    assert "an episode of 2 frames is shorter than sequence_length=5" in caplog.text
    with pytest.raises(WaitTimeoutError, match="no window of 5 frames: this buffer wrote 5 episodes, longest 2"):
        buffer.sample(2, 5)


@pytest.mark.parametrize("num_steps", [None, 2])
def test_a_shorter_num_steps_takes_first_frames_and_says_what_is_lost(make, caplog, num_steps):
    buffer = make(sequence_length=4)
    buffer.add_sequence(np.arange(6)[None])
    with caplog.at_level(logging.WARNING):
        assert starts(buffer, num_steps) == {0, 1, 2}
    assert "none starts at the last 3 frames of an episode" in caplog.text


def test_more_steps_than_an_item_has_are_refused(make):
    with pytest.raises(ValueError, match=r"num_steps > sequence_length \(3 > 2\)"):
        make(sequence_length=2).as_dataset(4, 3)


def test_a_lifo_remover_keeps_the_oldest(make):
    """R10."""
    buffer = make(max_size=3, remover=Lifo(), scannable=False)
    buffer.add_sequence(np.arange(10)[None])
    assert starts(buffer, None) == {0, 1, 2}


def test_a_fifo_sampler_with_one_draw_each_is_a_queue_in_order(make):
    """FR-093."""
    buffer = make(sampler=Fifo(), max_times_sampled=1, scannable=False)
    buffer.add_sequence(np.arange(20)[None])
    iterator = iter(buffer.as_dataset(4))
    assert [next(iterator)[0].numpy().tolist() for _ in range(4)] == [[4 * n + k for k in range(4)] for n in range(4)]


def test_a_pass_that_empties_a_queue_delivers_the_last_few_too(make):
    """What is delivered is removed: a last batch of fewer would else be lost."""
    buffer = make(sampler=Fifo(), max_times_sampled=1, scannable=False)
    buffer.add_sequence(np.arange(10)[None])
    batches = [items.numpy().tolist() for items, _ in buffer.as_dataset(4, single_deterministic_pass=True)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(buffer) == 0


def test_ids_follow_each_other_only_inside_an_episode(make):
    buffer = make()
    ids = buffer.add_sequence(np.arange(5)[None], end_of_episode=np.array([[False, True, False, False, False]]))[0]
    assert np.diff(ids).tolist() == [1, 2, 1, 1]
    buffer.end_stream()
    assert buffer.add_batch(np.array([5]))[0] - ids[-1] == 2


def test_priorities_are_stored_with_the_item_that_starts_at_the_frame(make):
    buffer = make(sequence_length=2)
    buffer.add_sequence(np.arange(3)[None], priorities=np.array([[2.0, 3.0, 4.0]]))
    buffer.flush()
    client, found = buffer.py_client, {}
    for sample in client.sample("replay", 50, emit_timesteps=False):
        found[int(sample.data[0][0, 8])] = sample.info.priority
    assert found == {0: 2.0, 1: 3.0}
    keys = buffer.sample(20, 2)[1].keys
    assert buffer.update_priorities(keys, np.full(20, 7.0)) is None
    assert {sample.info.priority for sample in client.sample("replay", 50, emit_timesteps=False)} == {7.0}
    buffer.update_priorities(keys, td_errors=np.full(20, -2.0))
    assert {sample.info.priority for sample in client.sample("replay", 50, emit_timesteps=False)} == {2.0 + 1e-6}


def test_every_dtype_comes_back_as_it_went_in(make):
    buffer = make(EVERY_DTYPE, sequence_length=2)
    rng = np.random.default_rng(0)
    steps = {
        name: tf.cast(rng.integers(0, 2 if leaf.dtype == tf.bool else 100, [1, 3, *leaf.shape]), leaf.dtype)
        for name, leaf in EVERY_DTYPE.items()
    }
    buffer.add_sequence(steps)
    everything = buffer.gather_all()
    items, info = next(iter(buffer.as_dataset(8, 2)))
    first = [int(i) for i in info.ids[:, 0] - tf.reduce_min(info.ids)]
    for name in EVERY_DTYPE:
        np.testing.assert_array_equal(everything[name], steps[name])
        np.testing.assert_array_equal(items[name], np.stack([steps[name][0, k : k + 2] for k in first]))


def test_a_slice_of_the_callers_array_that_is_not_contiguous_is_written_right(make):
    buffer = make({"image": tf.TensorSpec([40, 40], tf.float32)})
    images = np.arange(2 * 40 * 40, dtype=np.float32).reshape(1, 40, 2, 40).transpose(0, 2, 1, 3)
    buffer.add_batch({"image": images[:, 0]})
    np.testing.assert_array_equal(buffer.gather_all()["image"][0, 0], images[0, 0])


# The scan


def test_a_scan_of_a_full_table_with_overlapping_windows_holds_each_frame_once(make):
    buffer = make(max_size=500, sequence_length=3, batch_size=2)
    values = np.arange(600)[None] + np.array([[0], [10_000]])
    buffer.add_sequence(values)
    np.testing.assert_array_equal(buffer.gather_all(), values[:, -252:])


def test_a_scan_that_was_interrupted_is_repaired_by_the_next(make):
    buffer = make(max_size=300)
    buffer.add_sequence(np.arange(300)[None])
    buffer.flush()
    keys = {int(sample.info.key) for sample in buffer.py_client.sample("replay__scan", 400, emit_timesteps=False)}
    # As a process that died twice in its scan leaves them.
    buffer.py_client.mutate_priorities("replay__scan", dict.fromkeys(list(keys)[: len(keys) // 2], 2.0**-16))
    buffer.py_client.mutate_priorities("replay__scan", dict.fromkeys(list(keys)[: len(keys) // 4], 2.0**-32))
    for _ in range(2):
        np.testing.assert_array_equal(buffer.gather_all()[0], np.arange(300))


def test_update_priorities_and_scans_do_not_meet(make):
    buffer = make()
    buffer.add_sequence(np.arange(20)[None], priorities=np.full([1, 20], 0.0))
    np.testing.assert_array_equal(buffer.gather_all()[0], np.arange(20))


def test_streams_of_different_lengths_have_no_gather_all(make):
    buffer = make(batch_size=2, sequence_length=2)
    for t in range(4):
        buffer.add_batch(np.array([t, t]), end_of_episode=np.array([False, t % 2 == 0]))
    with pytest.raises(
        ValueError, match=r"have 2 to 4 frames; read them with as_dataset\(single_deterministic_pass=True\)"
    ):
        buffer.gather_all()


@pytest.mark.parametrize("read", [lambda b: b.gather_all(), lambda b: b.as_dataset(2, epochs=1)])
def test_a_table_without_scan_table_says_what_is_missing(make, read):
    buffer = make(scannable=False)
    with pytest.raises(ValueError, match=r"it has no scan table; make it with TableConfig\(..., scannable=True\)"):
        read(buffer)


def test_an_ordered_pass_leaves_out_what_is_added_while_it_runs(make):
    buffer = make()
    buffer.add_sequence(np.arange(5)[None])
    values = []
    for items, _ in buffer.as_dataset(single_deterministic_pass=True):
        values.append(int(items))
        buffer.add_batch(np.array([100]))
    assert values == [0, 1, 2, 3, 4]


# Other processes, other writers


READER = """
import sys, tensorflow as tf, replayfeed.buffers as rf
with rf.ReverbReplayBuffer(tf.TensorSpec([], tf.int64), "replay", None, sys.argv[1], timeout_s=20.0) as buffer:
    print(sorted({int(v) for v in buffer.sample(500)[0]}), buffer.gather_all().numpy().tolist(), len(buffer))
    print(next(iter(buffer.as_dataset(2, 2)))[1].ids.shape, buffer.stats().added)
"""


def test_a_second_process_that_wrote_nothing_reads_what_is_there(make):
    buffer = make(sequence_length=2, batch_size=2)
    buffer.add_sequence(np.array([[0, 1, 2], [10, 11, 12]]))
    buffer.flush()
    run = subprocess.run(
        [sys.executable, "-c", READER, buffer.server_address], capture_output=True, text=True, timeout=400, check=True
    )
    assert run.stdout.splitlines() == ["[0, 1, 10, 11] [[0, 1, 2], [10, 11, 12]] 4", "(2, 2) 4"]


def test_element_specs_are_those_of_the_in_process_buffer(make):
    spec = {"a": tf.TensorSpec([2], tf.float32), "b": [tf.TensorSpec([], tf.bool)]}
    served, local = make(spec, sequence_length=2), TFUniformReplayBuffer(spec, 1, 10)
    for arguments in [(), (3,), (None, 2), (3, 2)]:
        assert served.as_dataset(*arguments).element_spec == local.as_dataset(*arguments).element_spec


@pytest.mark.parametrize("with_signature", [False, True])
def test_a_plain_table_that_others_write_is_read_and_written(with_signature):
    signature = {"x": tf.TensorSpec([None], tf.int64)} if with_signature else None
    table = reverb.Table(
        "t",
        reverb.selectors.Uniform(),
        reverb.selectors.Fifo(),
        100,
        reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    server = reverb.Server([table])
    with ReverbReplayBuffer({"x": COUNTER}, "t", 2, local_server=server, timeout_s=30.0) as buffer:
        assert buffer.add_sequence({"x": np.arange(3)[None]}).tolist() == [[-1, -1, -1]]
        items, info = buffer.sample(50, 2)
        assert set(map(tuple, items["x"].numpy().tolist())) == {(0, 1), (1, 2)}
        assert np.all(info.ids.numpy() == -1) and info.keys.shape == (50,)
        assert next(iter(buffer.as_dataset(4)))[0]["x"].shape == (4, 2)
        assert len(buffer) == 2
        with pytest.raises(ValueError, match="not made by a TableConfig with scannable=True"):
            buffer.gather_all()
    server.stop()


# Constructor


def test_the_table_must_exist_and_fit():
    with ReplayServer([TableConfig("a", {"x": COUNTER}, 10, sequence_length=2)]) as server:
        for arguments, message in [
            (({"x": COUNTER}, "b", 2), "there is no table 'b' at localhost:.*; it has a"),
            (({"x": COUNTER}, "a", 3), "was made for sequence_length=2, got sequence_length=3"),
            (({"y": COUNTER}, "a", 2), r"does not fit table 'a': missing \['x'\]; extra \['y'\]"),
            (
                ({"x": tf.TensorSpec([], tf.int32)}, "a", 2),
                r"field 'x': the table holds \[\] int64, data_spec says \[\] int32",
            ),
        ]:
            with pytest.raises(ValueError, match=message):
                ReverbReplayBuffer(*arguments, server_address=server.address)
        with pytest.raises(ValueError, match="was made for stride=1, got stride=2"):
            ReverbReplayBuffer({"x": COUNTER}, "a", 2, server.address, stride=2)
        with pytest.raises(ValueError, match="give exactly one of server_address and local_server"):
            ReverbReplayBuffer({"x": COUNTER}, "a", 2, server.address, server)


WRONG = {
    "timeout": ({"timeout_s": float("inf")}, ValueError, "timeout_s must be positive and finite, got inf"),
    "no timeout": ({"timeout_s": None}, TypeError, "timeout_s must be a number of seconds, got None"),
    "interval": ({"log_interval_s": 0}, ValueError, "log_interval_s must be positive"),
    "batch": ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    "workers": (
        {"num_workers_per_iterator": 0},
        ValueError,
        "num_workers_per_iterator must be -1 or at least 1, got 0",
    ),
    "in flight": ({"max_in_flight_samples_per_worker": 0}, ValueError, "max_in_flight_samples_per_worker must be"),
    "chunk": ({"max_chunk_length": 0}, ValueError, "max_chunk_length must be at least 1, got 0"),
    "pending": ({"max_pending_items": 0}, ValueError, "max_pending_items must be at least 1, got 0"),
    "max_samples": ({"max_samples": 0}, ValueError, "max_samples must be -1 or at least 1, got 0"),
    "order": (
        {"sampler": Fifo(), "num_workers_per_iterator": 2},
        ValueError,
        "is drawn in order: num_workers_per_iterator must be 1 or -1, got 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_settings_are_refused_by_the_constructor(make, case):
    change, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        make(**change)


def test_get_refuses_by_name_with_the_way_out(make):
    with pytest.raises(TypeError, match="a Reverb table cannot be read by frame id; draw with sample"):
        make().get(np.array([1]))


# Each of Reverb's own settings has an effect


def look_ahead(buffer: ReverbReplayBuffer, batch: int, at_least: int = 0) -> int:
    """Items that an iterator has drawn when it has delivered one batch and rests, which is once there are so many."""
    iterator = iter(buffer.as_dataset(batch))
    next(iterator)
    wait_until(lambda: sampled(buffer) >= at_least)
    count = sampled(buffer)
    for _ in range(200):
        tf.py_function(lambda: None, [], [])
        now = sampled(buffer)
        count = max(count, now)
    del iterator
    return count


def wait_until(is_so: Callable[[], bool]) -> None:
    """Asks again and again, for as long as a machine may be busy with something else."""
    deadline = time.monotonic() + 120
    while not is_so() and time.monotonic() < deadline:
        pass


def test_max_samples_ends_a_dataset(make):
    buffer = make(max_samples=10)
    buffer.add_sequence(np.arange(20)[None])
    assert sum(1 for _ in buffer.as_dataset()) == 10


def test_fewer_items_in_flight_are_drawn_ahead(make):
    few, many = make(max_in_flight_samples_per_worker=1, num_workers_per_iterator=1), make()
    for buffer in (few, many):
        buffer.add_sequence(np.arange(20)[None])
    assert look_ahead(few, 2) < 32 < look_ahead(many, 2, at_least=33)


def test_chunk_length_decides_when_frames_are_sent(make):
    for length, visible in [(1, 7), (5, 5)]:
        buffer = make(max_chunk_length=length)
        buffer.add_sequence(np.arange(7)[None])
        wait_until(lambda buffer=buffer, visible=visible: buffer.get_table_info().current_size >= visible)
        assert buffer.get_table_info().current_size == visible
        assert len(buffer) == 7


def test_what_is_pending_is_bounded_without_a_flush(make):
    """FR-042."""
    buffer = make(max_pending_items=10, max_size=10_000, scannable=False)
    for t in range(1000):
        buffer.add_batch(np.array([t]))
        if t % 100 == 99:
            assert t + 1 - buffer.get_table_info().current_size <= 20 + 1


def test_num_parallel_calls_is_at_most_the_batch(make):
    with pytest.raises(ValueError, match="num_parallel_calls cannot be bigger than sample_batch_size 3 > 2"):
        make().as_dataset(2, num_parallel_calls=3)


def test_a_batch_is_drawn_from_several_reverb_iterators_when_asked(make):
    one, two = (
        make(max_in_flight_samples_per_worker=1, num_workers_per_iterator=1),
        make(max_in_flight_samples_per_worker=1, num_workers_per_iterator=1, max_cycle_length=8),
    )
    for buffer in (one, two):
        buffer.add_sequence(np.arange(20)[None])
    assert next(iter(two.as_dataset(8)))[0].shape == (8,)
    assert next(iter(one.as_dataset(8)))[0].shape == (8,)


def test_two_buffers_that_scan_one_table_at_once_both_get_all_of_it():
    """Each hides from the other what it has met: a scan is done only when its count is right."""
    spec = tf.TensorSpec([], tf.int64)
    with ReverbReplayBuffer.local(spec, max_size=10_000, sequence_length=3) as owner:
        owner.add_sequence(np.arange(500)[None])
        owner.flush()
        with ReverbReplayBuffer(spec, "replay", 3, server_address=owner.server_address) as other:
            found: list[list[int]] = []

            def scan(buffer: ReverbReplayBuffer) -> None:
                found.extend(buffer.gather_all().numpy()[0].tolist() for _ in range(8))

            threads = [threading.Thread(target=scan, args=[buffer]) for buffer in (owner, other)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    assert found == [list(range(500))] * 16


def test_rows_drawn_before_a_timeout_are_kept_for_the_next_call():
    """A table that removes what it delivers must not lose them."""
    with ReverbReplayBuffer.local(
        tf.TensorSpec([], tf.int64),
        max_size=50,
        sequence_length=1,
        scannable=False,
        max_times_sampled=1,
        timeout_s=3.0,
    ) as buffer:
        buffer.add_sequence(np.array([[0, 1]]))
        with pytest.raises(WaitTimeoutError, match="2 of 5 rows are kept for the next call"):
            buffer.sample(5)
        buffer.add_sequence(np.array([[2, 3, 4]]))
        assert sorted(buffer.sample(5)[0].numpy().tolist()) == [0, 1, 2, 3, 4]
