import os
import select
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.experimental.distributed.reverb_variable_container import ReverbVariableContainer

from replayfeed.buffers import ReplayServer
from replayfeed.pipelines.collect import CollectorError, CollectorProcesses, variables_table

# Speaks the protocol without the imports of a real collector: takes exactly what it is allowed.
_OBEDIENT = """
import json, sys
for line in sys.stdin:
    print(json.dumps({"steps": json.loads(line)["allowed"]}), flush=True)
"""

_REAL = """
from replayfeed.pipelines.collect import LearnerLink, follow_learner

link = LearnerLink()
print("printed by a library")
refreshed_at = []
steps = 0

def collect():
    global steps
    steps += 2
    return 2

total = follow_learner(link, collect, lambda: refreshed_at.append(steps), refresh_every=4)
assert link.learner_is_gone
assert total == steps
assert refreshed_at == list(range(0, steps, 4)), refreshed_at
"""


def _python(program: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(program)]


def _is_gone_within(pid: int, seconds: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    gone = bool(poll.poll(1000 * seconds))
    os.close(descriptor)
    return gone


def test_collectors_take_their_share_of_what_is_allowed():
    with CollectorProcesses([_python(_OBEDIENT)] * 2) as collectors:
        collectors.allow(5)
        collectors.wait_for(5)
        # Three each: a share is rounded up, or the last step would never come.
        collectors.wait_for(6)
        assert collectors.num_steps == 6
        collectors.allow(8)
        collectors.wait_for(8)
        collectors.check()


def test_a_real_collector_follows_refreshes_and_ends_with_the_learner():
    with CollectorProcesses([_python(_REAL)], stop_timeout_s=60.0) as collectors:
        collectors.allow(7)
        collectors.wait_for(7, timeout_s=400.0)
        assert collectors.num_steps == 8
        (pid,) = collectors.pids
    assert _is_gone_within(pid, 0)


def test_stop_kills_a_collector_that_does_not_listen():
    deaf = "import signal, sys\nprint('{\"steps\": 1}', flush=True)\nwhile True: signal.pause()"
    collectors = CollectorProcesses([_python(deaf)], stop_timeout_s=0.1)
    collectors.wait_for(1)
    (pid,) = collectors.pids
    collectors.stop()
    collectors.stop()
    assert _is_gone_within(pid, 0)


def test_an_error_in_the_learner_ends_collectors_at_once():
    deaf = "import signal\nprint('{\"steps\": 1}', flush=True)\nwhile True: signal.pause()"
    with pytest.raises(KeyboardInterrupt), CollectorProcesses([_python(deaf)], stop_timeout_s=600.0) as collectors:
        collectors.wait_for(1)
        (pid,) = collectors.pids
        raise KeyboardInterrupt
    assert _is_gone_within(pid, 0)


def test_what_a_collector_died_of_is_told():
    with CollectorProcesses([_python(_OBEDIENT), _python("raise OSError('no pole left')")]) as collectors:
        with pytest.raises(CollectorError, match=r"(?s)collector 1 ended with exit code 1\..*OSError: no pole left"):
            collectors.wait_for(1)
        with pytest.raises(CollectorError, match="collector 1 ended"):
            collectors.check()
        with pytest.raises(CollectorError, match="no pole left"):
            collectors.allow(10)


def test_waiting_has_an_end_and_tells_the_numbers():
    with CollectorProcesses([_python(_OBEDIENT)]) as collectors:
        collectors.allow(2)
        collectors.wait_for(2)
        with pytest.raises(CollectorError, match=r"collectors took 2 of 3 steps in 0\.01 s"):
            collectors.wait_for(3, timeout_s=0.01)


def test_collectors_end_when_the_learner_is_killed():
    learner = """
    import sys
    from replayfeed.pipelines.collect import CollectorProcesses

    collectors = CollectorProcesses([[sys.executable, "-c", sys.argv[1]]])
    collectors.allow(1)
    collectors.wait_for(1)
    print(*collectors.pids, flush=True)
    sys.stdin.read()
    """
    process = subprocess.Popen(
        [*_python(learner), _OBEDIENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        pid = int(process.stdout.readline())
        assert not _is_gone_within(pid, 0)
        process.kill()
        assert _is_gone_within(pid, 300)


def test_collector_processes_refuses_wrong_arguments():
    with pytest.raises(ValueError, match="at least one command"):
        CollectorProcesses([])
    with pytest.raises(ValueError, match="stop_timeout_s must be above 0, got 0"):
        CollectorProcesses([["true"]], stop_timeout_s=0)
    with pytest.raises(FileNotFoundError):
        CollectorProcesses([_python(_OBEDIENT), ["no-such-program"]])


def test_a_policys_variables_go_through_a_table_of_the_server():
    variables = {"train_step": tf.Variable(7, dtype=tf.int64), "weights": [tf.Variable([[1.0, 2.0]])]}
    with ReplayServer([variables_table(variables, "policy")]) as server:
        container = ReverbVariableContainer(server.address, ["policy"])
        container.push(variables, "policy")
        variables["train_step"].assign(8)
        container.push(variables, "policy")
        copies = tf.nest.map_structure(lambda variable: tf.Variable(tf.zeros_like(variable)), variables)
        container.update(copies, "policy")
    assert int(copies["train_step"]) == 8
    np.testing.assert_array_equal(copies["weights"][0].numpy(), [[1.0, 2.0]])
