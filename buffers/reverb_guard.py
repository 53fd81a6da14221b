"""Tells a dataset that waits inside Reverb that its server is gone.

Reverb's dataset tries for ever to reach a server that does not answer, without a word. So a thread
asks the server every few seconds while an iterator lives; the dataset is interleaved with a second
one that gives nothing, and fails when the thread says so. A server in this process needs none of it.
"""

from __future__ import annotations

import logging
import threading

import numpy as np
import tensorflow as tf

from .base import WaitTimeoutError
from .reverb_import import load_reverb
from .reverb_link import ServerLink, Watch

_logger = logging.getLogger(__name__)

_ASK_EVERY_SECONDS = 1.0


class ServerGuard:
    """Watches one server for any number of datasets.

    Args:
      link: the server.
      timeout_s: how long it may be silent.
    """

    def __init__(self, link: ServerLink, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        # Holds the error's text while the server has been silent for too long, and is empty otherwise. A wait for it
        # inside a graph holds no Python, and ends when its iterator is dropped.
        self._alarm = tf.queue.FIFOQueue(1, [tf.string], shapes=[[]])
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def over(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The same elements; `next` fails when the server has been silent for the timeout.

        A few elements are taken ahead.
        """

        def one_of(is_alarm: tf.Tensor) -> tf.data.Dataset:
            given = dataset.take(tf.where(is_alarm, tf.constant(0, tf.int64), -1))
            failing = tf.data.Dataset.from_tensors(0).map(self._fail_on_alarm).flat_map(lambda _: dataset.take(0))
            return given.concatenate(failing.take(tf.where(is_alarm, tf.constant(-1, tf.int64), 0)))

        both = tf.data.Dataset.from_tensor_slices([False, True])
        return both.interleave(one_of, cycle_length=2, num_parallel_calls=2, deterministic=False)

    def _fail_on_alarm(self, _: tf.Tensor) -> tf.Tensor:
        started = tf.numpy_function(self._start, [], tf.bool, stateful=True)
        with tf.control_dependencies([started]):
            text = self._alarm.dequeue()
        with tf.control_dependencies([self._alarm.enqueue(text)]):  # for the next one
            return tf.numpy_function(_fail, [text], tf.bool, stateful=True)

    def _start(self) -> np.bool_:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_watch_server,
                    args=(self._link, self._alarm, self._timeout_s),
                    name="replayfeed-guard",
                    daemon=True,
                )
                self._thread.start()
        return np.True_


def _fail(text: bytes) -> np.bool_:
    raise WaitTimeoutError(text.decode())


def _watch_server(link: ServerLink, alarm: tf.queue.FIFOQueue, timeout_s: float) -> None:
    """Runs until the link's buffer is closed."""
    watch: Watch | None = None
    given_up = False
    while not link.is_ended(_ASK_EVERY_SECONDS):
        try:
            info = link.ask().get(link.table)
        except (RuntimeError, load_reverb().DeadlineExceededError):
            watch = watch or Watch(link, timeout_s)
            if not given_up:
                try:
                    watch.tell_or_raise(link.no_answer())
                except WaitTimeoutError as error:
                    given_up = True
                    alarm.enqueue(str(error))
            continue
        if watch is not None:
            items = "is gone" if info is None else f"holds {info.current_size} items"
            _logger.warning("server %s answers again; table %r %s", link.address, link.table, items)
            watch = None
        if given_up:
            given_up = False
            alarm.dequeue()
