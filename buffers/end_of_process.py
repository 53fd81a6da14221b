"""Python callbacks of graphs stop before the interpreter goes, so that the process ends.

A thread of tf.data that is in Python, or on its way there, when the interpreter goes never comes back. Its iterator,
if it is still alive, waits for that thread when it is destroyed, and the process would not end. So at exit graphs are
told first, through memory that they look at before each callback: from then on they fail instead of calling Python.
Then the callbacks under way are waited for.
"""

from __future__ import annotations

import atexit
import collections
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .memory import SharedMemory

# A callback that takes longer is left to itself.
_LONGEST_CALL_S = 5.0

# For so many short sleeps on end no callback came: what was on its way has arrived, and what was leaving has left.
# Many short ones and not one long, so that a machine that gives this process no time gives its other threads none.
_QUIET_SLEEPS = 50
_SLEEP_S = 0.001

_ENDS = "the process ends; graphs call no Python any more."

# `functools.cache` may call its function twice at once.
_ONE_AT_A_TIME = threading.Lock()

_logger = logging.getLogger(__name__)


class CallsOfGraphs:
    """The callbacks of the graphs of one process: which are under way, and whether more may come.

    >>> calls = CallsOfGraphs()
    >>> @tf.function(autograph=False)
    ... def three():
    ...     with tf.control_dependencies([calls.check_in_graph([])]):
    ...         return tf.numpy_function(calls.noted(lambda: np.int64(3)), [], tf.int64)
    >>> int(three())
    3
    >>> calls.end()
    >>> three()
    Traceback (most recent call last):
    ...
    tensorflow.python.framework.errors_impl.InvalidArgumentError: ...the process ends; ...
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._may_call = SharedMemory((1,), np.uint8)
        self._may_call.array[0] = 1
        # One for each, put in and taken out without a lock, which a fork could leave locked.
        self._under_way: collections.deque[None] = collections.deque()
        self._num_begun = 0

    def check_in_graph(self, arguments: Sequence[Any]) -> tf.Operation:
        """An op for a callback to depend on, which fails once `end` was called.

        Args:
          arguments: of the callback; looked at last, when they are there.

        Raises:
          tf.errors.InvalidArgumentError: when it runs: the process ends.
        """
        # No tf.cond: its branch could wait for a thread between the look and the call.
        given = [argument for argument in arguments if tf.is_tensor(argument)]
        with tf.device("CPU:0"), tf.control_dependencies(given):
            may_call = tf.cast(tf.reshape(self._may_call.in_graph(), []), tf.bool)
            return tf.raw_ops.Assert(condition=may_call, data=[tf.constant(_ENDS)])

    def noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, for which `end` waits."""

        def call(*arguments: Any) -> Any:
            self._under_way.append(None)
            self._num_begun += 1
            try:
                return function(*arguments)
            finally:
                self._under_way.pop()

        return call

    def end(self) -> None:
        """No more callbacks; waits for those under way, a few seconds at most."""
        if os.getpid() != self._process:
            return  # a fork has no threads of its parent
        self._may_call.array[0] = 0
        latest = time.monotonic() + _LONGEST_CALL_S
        num_begun, num_quiet = self._num_begun, 0
        while num_quiet < _QUIET_SLEEPS:
            if time.monotonic() > latest:
                _logger.warning("the process ends while a graph is in Python, after %g s of waiting", _LONGEST_CALL_S)
                return
            time.sleep(_SLEEP_S)
            is_quiet = not self._under_way and num_begun == self._num_begun
            num_begun, num_quiet = self._num_begun, num_quiet + 1 if is_quiet else 0


def calls_of_this_process() -> CallsOfGraphs:
    """The one of this process; made when the first graph asks, because importing must not start TensorFlow."""
    with _ONE_AT_A_TIME:
        return _calls_of_this_process()


@functools.cache
def _calls_of_this_process() -> CallsOfGraphs:
    return CallsOfGraphs()


def _end() -> None:
    if _calls_of_this_process.cache_info().currsize:
        _calls_of_this_process().end()


# On import, because hooks run in reverse: those of programs that use a buffer come first, and may still draw.
atexit.register(_end)
