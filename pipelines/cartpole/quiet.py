"""Keeps what libraries print at their start, and what nobody can act on, off the terminal.

Nothing here imports TensorFlow: its environment variables must be set before it is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import BinaryIO

# Lines that Reverb's C++ code prints on every run; it has no level to set. All else is let through.
_NOTICES = (
    b"Shutting down replay server",
    b"Started replay server",
    b"Initializing TFRecordCheckpointer",
    b"Loading latest checkpoint from",
    b"are owned by the same process",
    # ReverbReplayBuffer bounds what is pending by itself.
    b"The number of pending items is alarmingly high",
)


def python_command(module: str) -> list[str]:
    """The start of a command that runs a module with this interpreter, without a word about warnings."""
    return [sys.executable, "-W", "ignore", "-m", module]


def set_up() -> None:
    """Sets levels and filters for TensorFlow, gym and pygame, and imports the first two."""
    # No GPU is looked for, so none is missed; notices below errors say nothing to a user of this job.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    import absl.logging
    import gym
    import tensorflow as tf

    absl.logging.set_verbosity(absl.logging.ERROR)
    gym.logger.set_level(gym.logger.ERROR)
    tf.get_logger().setLevel(logging.ERROR)


@contextlib.contextmanager
def without_notices() -> Iterator[None]:
    """Drops Reverb's notices from file descriptor 2, where its C++ code writes; `sys.stderr` goes past the filter.

    A process of its own filters, and not a thread: Reverb writes while it holds Python's lock, so
    that a thread could never empty a full pipe. It also tells the last words of a process that crashes.
    """
    sys.stderr.flush()
    real = os.dup(2)
    # A session of its own: CTRL-C must not end it before this process has had its say.
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, stderr=real, start_new_session=True
    )
    if child.stdin is None:
        raise RuntimeError("the filter has no input.")
    os.dup2(child.stdin.fileno(), 2)
    child.stdin.close()
    before = sys.stderr
    sys.stderr = open(os.dup(real), "w", buffering=1, encoding=before.encoding, errors=before.errors)
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = before
        # The last writing end is closed by this, which is what the filter ends at.
        os.dup2(real, 2)
        os.close(real)
        try:
            child.wait(timeout=60.0)
        except subprocess.TimeoutExpired:
            # Something else that was started meanwhile holds the writing end.
            child.kill()
            child.wait()


def _filter(source: BinaryIO, target: BinaryIO) -> None:
    for line in source:
        if not any(notice in line for notice in _NOTICES):
            target.write(line)
            target.flush()


if __name__ == "__main__":
    _filter(sys.stdin.buffer, sys.stderr.buffer)
