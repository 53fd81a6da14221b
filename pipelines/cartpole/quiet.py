"""Keeps what libraries print at their start, and what nobody can act on, off the terminal.

Nothing here imports TensorFlow: its environment variables must be set before it is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator

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
    """Drops Reverb's notices from file descriptor 2, where its C++ code writes; `sys.stderr` goes past the filter."""
    sys.stderr.flush()
    real = os.dup(2)
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)
    thread = threading.Thread(target=_filter, args=(read_end, real), daemon=True)
    thread.start()
    before = sys.stderr
    sys.stderr = open(os.dup(real), "w", buffering=1, encoding=before.encoding, errors=before.errors)
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = before
        # The last writing end is closed by this, which is what the thread ends at.
        os.dup2(real, 2)
        thread.join(timeout=5.0)
        os.close(real)


def _filter(read_end: int, real: int) -> None:
    with open(read_end, "rb", buffering=0) as pipe:
        rest = b""
        while chunk := pipe.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if not any(notice in line for notice in _NOTICES):
                    os.write(real, line + b"\n")
        if rest:
            os.write(real, rest)
