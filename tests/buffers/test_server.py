"""ReplayServer: tables on a port."""

from __future__ import annotations

import subprocess
import sys

import pytest
import reverb
import tensorflow as tf

from replayfeed.buffers import ReplayServer, ReverbReplayBuffer, TableConfig

COUNTER = tf.TensorSpec([], tf.int64)


def test_a_server_serves_its_tables_and_their_scan_tables():
    with ReplayServer([TableConfig("a", COUNTER, 10), TableConfig("b", COUNTER, 10, scannable=True)]) as server:
        assert server.table_names == ("a", "b", "b__scan")
        assert server.address == f"localhost:{server.port}"
        with ReverbReplayBuffer(COUNTER, "a", 1, server.address) as buffer:
            assert buffer.capacity == 10


def test_stopping_twice_is_fine():
    server = ReplayServer([TableConfig("a", COUNTER, 10)])
    server.stop()
    server.stop()
    server.wait()


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"the same name: \['a', 'a'\]"):
        ReplayServer([TableConfig("a", COUNTER, 10), TableConfig("a", COUNTER, 20)])


def test_r2_ready_tables_that_share_a_selector_are_refused():
    shared = reverb.selectors.Uniform()

    def ready(name, sampler, remover):
        return reverb.Table(name, sampler, remover, 10, reverb.rate_limiters.MinSize(1))

    with pytest.raises(ValueError, match="one selector object is sampler of table 'a' and remover of table 'a'"):
        ReplayServer([ready("a", shared, shared)])
    with pytest.raises(ValueError, match="is sampler of table 'a' and sampler of table 'b': .*would die at the first"):
        ReplayServer([ready(name, shared, reverb.selectors.Fifo()) for name in "ab"])
    ReplayServer([ready("a", reverb.selectors.Uniform(), reverb.selectors.Fifo())]).stop()


def test_no_table_is_refused():
    with pytest.raises(ValueError, match="at least one TableConfig"):
        ReplayServer([])


def test_what_is_no_table_is_refused():
    with pytest.raises(TypeError, match="ReplayServer.tables must be TableConfigs, got 'a'"):
        ReplayServer(["a"])


WITHOUT_REVERB = """
import sys
import replayfeed.buffers as rf
assert "reverb" not in sys.modules, "importing the buffers must not load reverb"
import tensorflow as tf
sys.modules["reverb"] = None
table = rf.TableConfig("a", tf.TensorSpec([], tf.int64), 10)
spec = tf.TensorSpec([], tf.int64)
for build in (lambda: rf.ReplayServer([table]), lambda: rf.ReverbReplayBuffer(spec, "a", 1, "x:1")):
    try:
        build()
    except ImportError as error:
        print(error)
"""


def test_reverb_is_loaded_late_and_its_absence_is_one_sentence():
    """FR-083."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_REVERB], capture_output=True, text=True, timeout=400, check=True
    )
    lines = run.stdout.strip().splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]
    assert lines[0].startswith("Reverb buffers need dm-reverb 0.14.0") and "found dm-reverb" in lines[0]


def test_a_port_on_which_another_server_listens_is_refused():
    """Reverb lets both listen, and clients come to the one or the other at random."""
    table = TableConfig("replay", tf.TensorSpec([], tf.float32), max_size=10)
    with ReplayServer([table]) as first:
        with pytest.raises(ValueError, match=rf"port {first.port} cannot be had .*stop the server that listens there"):
            ReplayServer([table], first.port)
    with ReplayServer([table], first.port) as second:  # now it is free
        assert second.port == first.port
