"""Dopamine's circular buffer, which wants another TensorFlow: a process of its own, driven over pipes.

    REPLAYFEED_DOPAMINE_PYTHON   an interpreter that has dopamine-rl (tried: 4.1.2); without it rows lack this contender

Run as a script by that interpreter it is the peer: it fills a buffer, says so, and then draws one batch for each
line that it reads.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable

_PYTHON = "REPLAYFEED_DOPAMINE_PYTHON"
_EPISODE_STEPS = 200


def sample_call(capacity: int, batch: int, stack: int) -> Callable[[], None] | None:
    """A function that lets the peer draw one batch of (stack, next stack); None where there is no such interpreter."""
    python = os.environ.get(_PYTHON)
    if not python:
        return None
    peer = subprocess.Popen(
        [python, __file__, str(capacity), str(batch), str(stack)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    )
    assert peer.stdin is not None and peer.stdout is not None
    answers, questions = peer.stdout, peer.stdin

    def ask() -> None:
        questions.write("\n")
        questions.flush()
        if answers.readline() != "drawn\n":
            raise RuntimeError(f"{_PYTHON}={python}: the peer ended; run it by hand to see why.")

    ask()
    return ask


def _serve(capacity: int, batch: int, stack: int) -> None:
    import numpy as np
    from dopamine.tf.replay_memory.circular_replay_buffer import OutOfGraphReplayBuffer

    buffer = OutOfGraphReplayBuffer((84, 84), stack, capacity, batch, update_horizon=1, gamma=0.99)
    frames = np.random.default_rng(0).integers(0, 256, (_EPISODE_STEPS, 84, 84), np.uint8)
    for step in range(capacity):
        buffer.add(frames[step % _EPISODE_STEPS], step % 6, 1.0, step % _EPISODE_STEPS == _EPISODE_STEPS - 1)
    for _ in sys.stdin:
        buffer.sample_transition_batch()
        print("drawn", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _serve(*map(int, sys.argv[1:]))
