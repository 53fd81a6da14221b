"""Tells a dataset that waits inside Reverb that its server is gone, and who asks it for an element that time is up.

Reverb's dataset tries for ever to reach a server that does not answer, without a word. So a thread
asks the server every few seconds; the dataset is interleaved with a second one that gives nothing,
and fails when the thread says so. (Measured: no slower, at the price of three elements ahead.)

How long a `next` lasts is measured here too, by signs of life that come through instead of an element: behind the
interleave only that counts for which somebody waits, and nothing that is on its way is lost in the error.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .base import WaitTimeoutError
from .callbacks import call_weakly
from .nests import Array
from .reverb_import import load_reverb
from .reverb_link import CLOSED, ServerLink, Watch
from .reverb_wait import WaitStage

_logger = logging.getLogger(__name__)

_ASK_EVERY_SECONDS = 1.0
_TICK_SECONDS = 0.1
# What the interleave has ready or in its hands, measured with batches of 1, 8 and 256 over hundreds of them.
ELEMENTS_AHEAD = 3
# What runs through the interleave: an element, its end, or a sign of life of the second branch.
_ELEMENT, _END, _TICK = 0, 1, 2
# What a sign of life becomes when time is up.
_LATE = 3
_NOT_WAITING = -1.0


class ServerGuard:
    """Watches one server for any number of datasets.

    Args:
      link: the server.
      timeout_s: how long it may be silent.
      look: called every second while datasets run.
      stage: knows why the table gives nothing.
      removes: the table removes what it delivers: nothing is to be taken further ahead.
    """

    def __init__(
        self, link: ServerLink, timeout_s: float, look: Callable[[], None], stage: WaitStage, *, removes: bool
    ) -> None:
        self._link = link
        self._stage = stage
        self._removes = removes
        self._look = look
        self._timeout_s = timeout_s
        self._gave_up = f"; gave up after {timeout_s:g} s."
        # Holds something while datasets must fail: the graph looks at it without any Python.
        self._alarm = tf.queue.FIFOQueue(1, [tf.bool], shapes=[[]])
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def over(self, dataset: tf.data.Dataset, *, gives_up: bool = True) -> tf.data.Dataset:
        """The same elements; `next` fails when the server has been silent for the timeout, or the table gave nothing.

        The latter loses nothing: the next `next` waits anew. Up to `ELEMENTS_AHEAD` elements are taken ahead.

        Args:
          dataset: the elements.
          gives_up: False: a dataset that itself fails when it has waited too long, and ends.
        """
        # The second branch must come back to the interleave often: a branch that blocks there cannot be dropped.
        ticks = _ticks(_TICK_SECONDS).map(lambda tick: self._empty_or_fail(tick, dataset.element_spec))
        nothing = tf.experimental.Optional.empty
        given = dataset.map(_to_optional).concatenate(
            tf.data.Dataset.from_tensors(_END).map(lambda kind: (kind, nothing(dataset.element_spec)))
        )

        def one_of(is_tick: tf.Tensor) -> tf.data.Dataset:
            all_of, none_of = tf.constant(-1, tf.int64), tf.constant(0, tf.int64)
            return given.take(tf.where(is_tick, none_of, all_of)).concatenate(
                ticks.take(tf.where(is_tick, all_of, none_of))
            )

        both, alive = _interleaved(one_of, given.element_spec)
        nobody_waits = [tf.constant(number, tf.float64) for number in (_NOT_WAITING, 0.0, 0.0)]
        start = (*nobody_waits, tf.constant(-1, tf.int64))
        timed = both.scan(start, self._timed) if gives_up else both.map(lambda kind, maybe: (kind, maybe, ""))
        elements = timed.take_while(_goes_on).filter(self._is_element)
        # Holds what the interleave was made of, for as long as there is the dataset.
        elements = elements.map(lambda kind, maybe, text: _get_value(maybe, (given, ticks, alive)))
        # TensorFlow would put a prefetch behind it, which grows while the iterator runs, and holds errors back.
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        if self._removes:
            # It would also make maps parallel that it takes for pure, and they would take one or two more.
            options.experimental_optimization.map_parallelization = False
        return elements.with_options(options)

    def close(self) -> None:
        """Makes every dataset fail: nothing comes any more, and Reverb would wait for it for ever."""
        with self._lock:
            thread, self._closed = self._thread, True
        if thread is not None:
            thread.join()  # it ends with the link's waits
        if self._alarm.size() == 0:
            self._alarm.enqueue(True)

    def _timed(self, state: tuple[tf.Tensor, ...], come: tuple[tf.Tensor, Any]) -> tuple[Any, Any]:
        """Counts how long there has been no element, by the ticks that come instead.

        Args:
          state: since when, when to look, when the next line is due, and the draws there were then.
          come: what came.
        """
        kind, maybe = come
        since, check, line, num_samples = state
        nobody_waits = (tf.constant(_NOT_WAITING, tf.float64), check, line, tf.constant(-1, tf.int64))
        none = tf.constant("")

        def tick() -> Any:
            now = tf.timestamp()
            first_check, first_line = self._stage.first_look()
            is_first = since == _NOT_WAITING
            begun = (
                tf.where(is_first, now, since),
                tf.where(is_first, now + first_check, check),
                tf.where(is_first, now + first_line, line),
                num_samples,
            )
            return tf.cond(now >= begun[1], lambda: look(begun), lambda: (begun, none))

        def look(begun: tuple[tf.Tensor, ...]) -> Any:
            types = [tf.float64, tf.float64, tf.float64, tf.int64, tf.string]
            seen = call_weakly(self, ServerGuard._look_why, [begun[0], begun[2], begun[3]], types)
            for scalar in seen:
                scalar.set_shape([])
            given_up = seen[4] != ""
            # Whoever asks again waits anew.
            anew = (tf.where(given_up, tf.constant(_NOT_WAITING, tf.float64), seen[0]), seen[1], seen[2])
            return (*anew, tf.where(given_up, tf.constant(-1, tf.int64), seen[3])), seen[4]

        state, text = tf.cond(kind == _TICK, tick, lambda: (nobody_waits, none))
        return state, (tf.where(text != "", _LATE, kind), maybe, text)

    def _look_why(self, since: Array, next_line: Array, num_samples: Array) -> Any:
        with self._link.in_python():
            return self._stage.look(since, next_line, num_samples)

    def _is_element(self, kind: tf.Tensor, _: Any, text: tf.Tensor) -> tf.Tensor:
        """Whether it is; fails where time is up."""

        def give_up() -> tf.Tensor:
            failed = call_weakly(self, ServerGuard._give_up, [text], tf.bool)
            failed.set_shape([])
            return failed

        return tf.cond(kind == _LATE, give_up, lambda: kind == _ELEMENT)

    def _give_up(self, text: Any) -> np.bool_:
        raise WaitTimeoutError(text.decode() if isinstance(text, bytes) else str(text))

    def _empty_or_fail(self, tick: tf.Tensor, element_spec: Any) -> tuple[tf.Tensor, tf.experimental.Optional]:
        started = tf.cond(tick == 0, lambda: self._call(ServerGuard._start), lambda: True)
        with tf.control_dependencies([started]):
            failed = tf.cond(self._alarm.size() > 0, lambda: self._call(ServerGuard._fail), lambda: True)
        with tf.control_dependencies([failed]):
            return tf.constant(_TICK), tf.experimental.Optional.empty(element_spec)

    def _call(self, method: Callable[[ServerGuard], np.bool_]) -> tf.Tensor:
        done = call_weakly(self, method, [], tf.bool)
        done.set_shape([])
        return done

    def _fail(self) -> np.bool_:
        if self._closed or self._link.is_other:
            raise ValueError(CLOSED if self._closed else self._link.is_other)
        raise WaitTimeoutError(self._link.no_answer() + self._gave_up)

    def _start(self) -> np.bool_:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=_watch_server,
                    args=(self._link, self._alarm, self._timeout_s, self._look),
                    name="replayfeed-guard",
                    daemon=True,
                )
                self._thread.start()
        return np.True_


def _to_optional(*element: Any) -> tuple[tf.Tensor, tf.experimental.Optional]:
    given = element[0] if len(element) == 1 else element
    return tf.constant(_ELEMENT), tf.experimental.Optional.from_value(given)


def _goes_on(kind: tf.Tensor, _: tf.experimental.Optional, __: tf.Tensor) -> tf.Tensor:
    return kind != _END


def _get_value(maybe: tf.experimental.Optional, _: Any) -> Any:
    return maybe.get_value()


def _interleaved(branch_of: Callable[[tf.Tensor], tf.data.Dataset], spec: Any) -> tuple[tf.data.Dataset, Any]:
    """The elements of `branch_of(False)` and `branch_of(True)` as they come, and what has to live as long.

    `Dataset.interleave` lets TensorFlow choose how many elements are kept ready, which grows while it runs: 69 batches
    were seen. Here there is one for each branch.
    """
    function = tf.function(lambda is_tick: tf.data.experimental.to_variant(branch_of(is_tick)), autograph=False)
    concrete = function.get_concrete_function(tf.TensorSpec([], tf.bool))
    branches = tf.data.Dataset.from_tensor_slices([False, True])
    variant = tf.raw_ops.ParallelInterleaveDatasetV4(
        input_dataset=tf.data.experimental.to_variant(branches),
        other_arguments=concrete.captured_inputs,
        cycle_length=tf.constant(2, tf.int64),
        block_length=tf.constant(1, tf.int64),
        buffer_output_elements=tf.constant(1, tf.int64),
        prefetch_input_elements=tf.constant(0, tf.int64),
        num_parallel_calls=tf.constant(2, tf.int64),
        f=concrete,
        deterministic="false",
        output_types=[tf.int32, tf.variant],
        output_shapes=[[], []],
    )
    return tf.data.experimental.from_variant(variant, spec), (concrete, branches)


def _ticks(seconds: float) -> tf.data.Dataset:
    """0, 1, 2, ... without end, one every so many seconds; no Python runs."""
    count = tf.data.Dataset.range(sys.maxsize)
    spec = count.element_spec
    slow = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(count),
        sleep_microseconds=tf.constant(int(seconds * 1e6), tf.int64),
        output_types=[spec.dtype],
        output_shapes=[spec.shape],
    )
    return tf.data.experimental.from_variant(slow, spec)


def _watch_server(link: ServerLink, alarm: tf.queue.FIFOQueue, timeout_s: float, look: Callable[[], None]) -> None:
    """Runs until the link's buffer is closed."""
    watch = Watch(link, timeout_s)  # begins anew with each answer
    is_silent = given_up = False
    while not link.is_ended(_ASK_EVERY_SECONDS):
        try:
            # A thread that is inside Reverb when Python goes would abort the process: `end_waits` waits for it.
            with link.in_python():
                asked_at = time.monotonic()
                info = link.ask().get(link.table)
        except ValueError:
            return  # closed
        except (RuntimeError, load_reverb().DeadlineExceededError):
            is_silent = True
            if not given_up:
                try:
                    watch.tell_or_raise(link.no_answer())
                except WaitTimeoutError:
                    given_up = True
                    alarm.enqueue(True)
            continue
        if link.is_other:
            if not given_up:  # the queue has room for one
                alarm.enqueue(True)
            return
        look()
        if info is not None:
            link.note_age(info, asked_at)
        watch = Watch(link, timeout_s)
        if is_silent:
            is_silent = False
            items = "is gone" if info is None else f"holds {info.current_size} items"
            _logger.warning("server %s answers again; table %r %s", link.address, link.table, items)
        if given_up:
            given_up = False
            alarm.dequeue()
