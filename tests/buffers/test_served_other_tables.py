"""A server that comes back with something else in its tables: whoever still knows the old ones is told."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReplayServer, ReverbReplayBuffer, ReverbTableGroup, TableConfig

# Frames of both are packed into as many bytes.
BEFORE = {"x": tf.TensorSpec([2], tf.float64), "y": tf.TensorSpec([], tf.int64)}
AFTER = {"x": tf.TensorSpec([2], tf.int64), "y": tf.TensorSpec([], tf.float64)}
FIELDS = (
    r"table 'replay' holds something else than when this buffer was made: field 'x' is int64\[2\], before float64\[2\]"
)


def frames(num: int) -> dict[str, Any]:
    return {"x": np.ones([1, num, 2]), "y": np.arange(num)[None]}


def table(spec: Any = BEFORE, length: int = 2) -> TableConfig:
    return TableConfig("replay", spec, 1000, sequence_length=length, scannable=True)


@pytest.fixture
def restarted() -> Any:
    """`restarted(make, config)`: what `make(address)` made on a server that goes on with another table."""
    opened: list[Any] = []

    def restart(make: Any, config: TableConfig) -> Any:
        with ReplayServer([table()]) as server:
            port = server.port
            opened.append(make(f"localhost:{port}"))
            opened[-1].add_sequence(frames(30))
            opened[-1].flush()
        opened.append(ReplayServer([config], port))
        return opened[-2]

    yield restart
    for one in opened:
        if not isinstance(one, ReplayServer):
            one.close()
    for one in opened:
        if isinstance(one, ReplayServer):
            one.stop()


def buffer_at(address: str) -> ReverbReplayBuffer:
    return ReverbReplayBuffer(BEFORE, "replay", 2, server_address=address)


def until_refused(call: Any, match: str) -> None:
    """The server is asked once a second."""
    deadline = time.monotonic() + 120
    with pytest.raises(ValueError, match=match):
        while time.monotonic() < deadline:
            call()


def test_who_writes_is_told_the_fields_that_differ(restarted):
    buffer = restarted(buffer_at, table(AFTER))
    until_refused(lambda: buffer.add_batch({"x": np.ones([1, 2]), "y": np.zeros(1, np.int64)}), FIELDS)
    with pytest.raises(ValueError, match="Build a new buffer with the table's data_spec"):
        buffer.add_sequence(frames(3))


def test_who_draws_is_told(restarted):
    buffer = restarted(buffer_at, table(AFTER))
    with ReverbReplayBuffer(AFTER, "replay", 2, server_address=buffer.server_address) as other:
        other.add_sequence({"x": np.ones([1, 9, 2], np.int64), "y": np.arange(9.0)[None]})
    until_refused(lambda: buffer.sample(4), FIELDS)


def test_items_of_another_length_are_told(restarted):
    buffer = restarted(buffer_at, table(BEFORE, 3))
    until_refused(buffer.flush, "sequence_length is 3, before 2")


def test_a_dataset_ends_in_what_differs(restarted):
    buffer = restarted(buffer_at, table(AFTER))
    rows = iter(buffer.as_dataset(4))
    deadline = time.monotonic() + 120
    with pytest.raises(tf.errors.InvalidArgumentError, match=FIELDS):
        while time.monotonic() < deadline:
            next(rows)


def test_a_dataset_is_told_also_when_it_had_given_the_server_up():
    """It closes in time, too: the one place for an alarm is taken by then."""
    with ReplayServer([table()]) as server:
        port = server.port
        buffer = ReverbReplayBuffer(BEFORE, "replay", 2, server_address=f"localhost:{port}", timeout_s=1.0)
        buffer.add_sequence(frames(30))
        buffer.flush()
        rows = iter(buffer.as_dataset(4))
        next(rows)
    deadline = time.monotonic() + 120
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not answer"):
        while time.monotonic() < deadline:
            next(rows)
    with ReplayServer([table(AFTER)], port):
        with pytest.raises(tf.errors.InvalidArgumentError, match=FIELDS):
            while time.monotonic() < deadline:
                with contextlib.suppress(tf.errors.UnavailableError):
                    try:
                        next(rows)
                    except tf.errors.InvalidArgumentError as error:
                        if "does not answer" not in str(error):
                            raise
        buffer.close()


def test_a_group_is_told(restarted):
    group = restarted(lambda address: ReverbTableGroup(BEFORE, ["replay"], server_address=address), table(AFTER))
    until_refused(lambda: group.add_batch({"x": np.ones([1, 2]), "y": np.zeros(1, np.int64)}), FIELDS)


def test_a_server_that_comes_back_without_the_table_tells_which_it_has(restarted):
    buffer = restarted(buffer_at, TableConfig("other", BEFORE, 10, sequence_length=2))
    for call in (buffer.flush, lambda: buffer.add_sequence(frames(3)), lambda: buffer.sample(4)):
        until_refused(call, r"has no table 'replay' any more; it has 'other'(, 'other__scan')?\. Start it with that")


def test_a_server_that_comes_back_with_the_same_table_is_gone_on_with():
    with ReplayServer([table()]) as server:
        port = server.port
        buffer = buffer_at(f"localhost:{port}")
        buffer.add_sequence(frames(30))
        buffer.flush()
    with ReplayServer([table()], port):
        deadline = time.monotonic() + 120
        while len(buffer) == 0 and time.monotonic() < deadline:
            buffer.add_sequence(frames(3))
            buffer.flush()
        assert buffer.sample(2)[0]["y"].shape[0] == 2
        buffer.close()
