"""A process ends while iterators are alive whose datasets draw by Python callbacks."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import end_of_process
from replayfeed.buffers.end_of_process import CallsOfGraphs

_BUFFERS = """
import sys
import numpy as np, tensorflow as tf
from replayfeed.buffers import Fifo, TFPrioritizedReplayBuffer, TFUniformReplayBuffer

SPEC = tf.TensorSpec([300_000], tf.uint8)
FRAMES = np.zeros((1, 100, 300_000), np.uint8)

def with_deletes(buffer_class):
    buffer = buffer_class(SPEC, 1, 100, seed=0)
    buffer.add_sequence(FRAMES)
    buffer.delete([3])
    return buffer

def uniform():
    return with_deletes(TFUniformReplayBuffer).as_dataset(32)

def windows():
    return with_deletes(TFUniformReplayBuffer).as_dataset(32, num_steps=2)

def parallel():
    return with_deletes(TFUniformReplayBuffer).as_dataset(32, num_parallel_calls=4)

def prioritized():
    return with_deletes(TFPrioritizedReplayBuffer).as_dataset(32)

def fifo():
    buffer = TFUniformReplayBuffer(SPEC, 1, 100, sampler=Fifo())
    buffer.add_sequence(FRAMES)
    return buffer.as_dataset(32)

def passes():
    return with_deletes(TFUniformReplayBuffer).as_dataset(single_deterministic_pass=True).repeat()

# Large and far ahead, so that callbacks are under way when the process ends.
iterators = [iter(globals()[name]().prefetch(20)) for name in sys.argv[1:]]
for iterator in iterators:
    next(iterator)
print("end")
"""


@pytest.mark.parametrize("names", [["uniform"], ["parallel", "windows"], ["prioritized", "fifo", "passes"]])
def test_a_process_ends_while_its_iterators_draw(names, run_python):
    assert run_python(_BUFFERS, *names) == "end\n"


def test_what_a_program_does_at_exit_may_still_draw(run_python):
    """Hooks run in reverse: ours, of the import, comes after those of whoever uses a buffer."""
    code = f"import atexit\n{_BUFFERS}\natexit.register(lambda: print(next(iterators[0])[0].shape))"
    assert run_python(code, "uniform") == "end\n(32, 300000)\n"


def _three(calls: CallsOfGraphs, told: list[int]) -> tf.types.experimental.GenericFunction:
    @tf.function(autograph=False)
    def three() -> tf.Tensor:
        with tf.control_dependencies([calls.check_in_graph([])]):
            return tf.numpy_function(calls.noted(lambda: told.append(1) or np.int64(3)), [], tf.int64)

    return three


def test_graphs_fail_without_calling_python_once_the_process_ends():
    calls, told = CallsOfGraphs(), []
    three = _three(calls, told)
    assert int(three()) == 3
    calls.end()
    with pytest.raises(tf.errors.InvalidArgumentError, match="the process ends; graphs call no Python any more"):
        three()
    assert told == [1]


def test_other_graphs_of_the_process_look_at_their_own_memory():
    ended, calls = CallsOfGraphs(), CallsOfGraphs()
    ended.end()
    assert int(_three(calls, [])()) == 3


def _blocked(calls: CallsOfGraphs) -> tuple[threading.Thread, threading.Event]:
    """A thread that is in a callback until the event is set."""
    is_inside, may_leave = threading.Event(), threading.Event()

    def block() -> None:
        is_inside.set()
        may_leave.wait()

    thread = threading.Thread(target=calls.noted(block), daemon=True)
    thread.start()
    is_inside.wait()
    return thread, may_leave


def test_the_end_waits_for_a_callback_under_way():
    calls = CallsOfGraphs()
    thread, may_leave = _blocked(calls)
    end = threading.Thread(target=calls.end)
    end.start()
    end.join(0.2)
    assert end.is_alive()
    may_leave.set()
    end.join(300.0)
    assert not end.is_alive()
    thread.join()


def test_a_callback_that_never_returns_is_given_up_and_told_of(monkeypatch, caplog):
    monkeypatch.setattr(end_of_process, "_LONGEST_CALL_S", 0.1)
    calls = CallsOfGraphs()
    thread, may_leave = _blocked(calls)
    with caplog.at_level(logging.WARNING):
        calls.end()
    assert "the process ends while a graph is in Python, after 0.1 s of waiting" in caplog.text
    may_leave.set()
    thread.join()


def test_a_callback_that_fails_is_no_longer_waited_for(caplog):
    calls = CallsOfGraphs()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        calls.noted(fail)()
    calls.end()
    assert own_lines(caplog, end_of_process.__name__) == []


def own_lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """What one logger said: threads that tests before have left may say something, too."""
    return [record.getMessage() for record in caplog.records if record.name == logger]


_FORKS = """
import os, threading
from replayfeed.buffers.end_of_process import CallsOfGraphs
calls, inside = CallsOfGraphs(), threading.Event()
def block():
    inside.set()
    threading.Event().wait()
threading.Thread(target=calls.noted(block), daemon=True).start()
inside.wait()
child = os.fork()
if not child:
    calls.end()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_waits_for_no_callback_of_its_parent(run_python):
    assert run_python(_FORKS) == "7\n"


def test_importing_starts_no_tensorflow(run_python):
    """Its devices and threads can be configured as long as it has not started."""
    code = "import tensorflow as tf, replayfeed.buffers\ntf.config.threading.set_intra_op_parallelism_threads(1)"
    assert run_python(code) == ""
