"""Actors and learner around a `ReplayServer`: collector processes, and how they follow the learner.

The learner holds a `ReplayServer` and starts collectors with `CollectorProcesses`. Each is a
program of its own that writes into the server by address and gets the policy's variables from
a table of the same server (`variables_table`, TF-Agents' `ReverbVariableContainer`). What else
the two must tell each other goes over the process' standard input and output, a JSON object a
line: the learner says how many environment steps may be taken (`allow`), the collector how many
it has (`LearnerLink.report`). So neither runs away from the other, and a collector whose learner
died reads the end of its input and stops.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any

import tensorflow as tf

from replayfeed.buffers.reverb_import import load_reverb

_STDERR_LINES = 20


class CollectorError(RuntimeError):
    """A collector process ended by itself, or did not get on; the message holds the end of its error output."""


def variables_table(variables: Any, name: str = "variables") -> Any:
    """A `reverb.Table` for TF-Agents' `ReverbVariableContainer`: the newest value of each variable.

    A `ReplayServer` takes it beside its `TableConfig`s. It is no `TableConfig` itself, because the
    container wants values without a time axis.

    Args:
      variables: nest of `tf.Variable`, as it will be pushed and pulled.
      name: the table's name.

    Raises:
      ImportError: reverb is absent or does not fit.
    """
    reverb = load_reverb()
    return reverb.Table(
        name=name,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=tf.nest.map_structure(lambda variable: tf.TensorSpec(variable.shape, variable.dtype), variables),
    )


class CollectorProcesses:
    """Starts collector programs and watches them; leaving the `with` block ends them, by an error at once.

    They run in sessions of their own, so that CTRL-C reaches the learner only, which then ends
    them in order. What they print to their error output is kept for the error message.

    Args:
      commands: one command a collector, each a list of arguments.
      environment: variables set in the collectors beside those of this process.
      stop_timeout_s: seconds that they get to finish before they are killed.

    Raises:
      ValueError: there is no command, or `stop_timeout_s` is not above 0.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        environment: Mapping[str, str] | None = None,
        stop_timeout_s: float = 10.0,
    ) -> None:
        if not commands:
            raise ValueError("CollectorProcesses needs at least one command.")
        if not stop_timeout_s > 0:
            raise ValueError(f"stop_timeout_s must be above 0, got {stop_timeout_s!r}.")
        self._stop_timeout_s = stop_timeout_s
        self._changed = threading.Condition()
        self._stopping = False
        self._steps = [0] * len(commands)
        self._errors = [collections.deque[str](maxlen=_STDERR_LINES) for _ in commands]
        self._ended = [False] * len(commands)
        self._processes: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []
        try:
            for index, command in enumerate(commands):
                self._start(index, command, {**os.environ, **(environment or {})})
        except BaseException:
            self.kill()
            raise

    @property
    def num_steps(self) -> int:
        """Environment steps that all collectors together have reported."""
        with self._changed:
            return sum(self._steps)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes' ids, in the order of the commands."""
        return tuple(process.pid for process in self._processes)

    def allow(self, num_steps: int) -> None:
        """Lets the collectors go on until each has taken its share of `num_steps`, counted from their start.

        Raises:
          CollectorError: a collector has ended.
        """
        share = -(-num_steps // len(self._processes))
        for process in self._processes:
            try:
                _write_line(_pipe(process.stdin), {"allowed": share})
            except (BrokenPipeError, ValueError):
                self._raise_ended(process)

    def wait_for(self, num_steps: int, *, timeout_s: float = 60.0) -> None:
        """Returns when the collectors together have reported `num_steps`.

        Raises:
          CollectorError: a collector has ended, or the time ran out.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while sum(self._steps) < num_steps:
                self._check_running()
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise CollectorError(
                        f"collectors took {sum(self._steps)} of {num_steps} steps in {timeout_s:g} s.{self._tails()}"
                    )
                self._changed.wait(remaining)

    def check(self) -> None:
        """Raises `CollectorError` if a collector has ended; costs nothing else."""
        with self._changed:
            self._check_running()

    def stop(self) -> None:
        """Lets the collectors finish, and returns when they are gone. Stopping twice is fine."""
        self._end(self._stop_timeout_s)

    def kill(self) -> None:
        """Ends the collectors at once, and returns when they are gone."""
        self._end(0.0)

    def __enter__(self) -> CollectorProcesses:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.stop()
        else:
            self.kill()

    def _end(self, timeout_s: float) -> None:
        with self._changed:
            self._stopping = True
        for process in self._processes:
            # The end of its input is what a collector stops at.
            _close(process.stdin)
        deadline = time.monotonic() + timeout_s
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            _close(process.stdout)
            _close(process.stderr)

    def _start(self, index: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        self._processes.append(process)
        errors = threading.Thread(target=self._read_errors, args=(index, process), daemon=True)
        reports = threading.Thread(target=self._read_reports, args=(index, process, errors), daemon=True)
        self._threads += [errors, reports]
        errors.start()
        reports.start()

    def _read_reports(self, index: int, process: subprocess.Popen[str], errors: threading.Thread) -> None:
        for line in _pipe(process.stdout):
            try:
                num_steps = int(json.loads(line)["steps"])
            except (ValueError, TypeError, KeyError):
                # Not a report: something that a library printed.
                with self._changed:
                    self._errors[index].append(line)
                continue
            with self._changed:
                self._steps[index] = num_steps
                self._changed.notify_all()
        process.wait()
        # So that its last words are there when its end is told; a child of its own may hold the pipe open.
        errors.join(timeout=5.0)
        with self._changed:
            self._ended[index] = True
            self._changed.notify_all()

    def _read_errors(self, index: int, process: subprocess.Popen[str]) -> None:
        for line in _pipe(process.stderr):
            with self._changed:
                self._errors[index].append(line)

    def _check_running(self) -> None:
        for index, ended in enumerate(self._ended):
            if ended and not self._stopping:
                code = self._processes[index].returncode
                raise CollectorError(f"collector {index} ended with exit code {code}.{self._tails(index)}")

    def _raise_ended(self, process: subprocess.Popen[str]) -> None:
        """Waits for what the process had to say, and raises it."""
        process.wait()
        for thread in self._threads[2 * self._processes.index(process) :][:2]:
            thread.join()
        self.check()

    def _tails(self, only: int | None = None) -> str:
        chosen = range(len(self._errors)) if only is None else [only]
        return "".join(f"\n{''.join(self._errors[i]).rstrip()}" for i in chosen if self._errors[i])


class LearnerLink:
    """A collector's side of `CollectorProcesses`: how far it may go, and what it has done.

    Takes over the process' standard input and output; what else is printed goes to the error output.

    Args:
      grace_s: seconds after the learner has gone in which the process may end by itself, before
        it is ended here: it could hang in a write to a server that is no more.
    """

    def __init__(self, *, grace_s: float = 5.0) -> None:
        self._input = sys.stdin
        # A library that prints would otherwise write into the reports.
        self._output, sys.stdout = sys.stdout, sys.stderr
        self._grace_s = grace_s
        self._changed = threading.Condition()
        self._allowed = 0
        self._gone = False
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def learner_is_gone(self) -> bool:
        """Whether the learner has stopped or died."""
        with self._changed:
            return self._gone

    def wait_until_allowed(self, num_steps: int) -> bool:
        """Blocks until `num_steps` may be taken; False when the learner has gone instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone or num_steps <= self._allowed)
            return not self._gone

    def report(self, num_steps: int) -> None:
        """Tells the learner how many steps were taken by now."""
        try:
            _write_line(self._output, {"steps": num_steps})
        except BrokenPipeError:
            self._set_gone()

    def _listen(self) -> None:
        for line in self._input:
            with self._changed:
                self._allowed = int(json.loads(line)["allowed"])
                self._changed.notify_all()
        self._set_gone()

    def _set_gone(self) -> None:
        with self._changed:
            if self._gone:
                return
            self._gone = True
            self._changed.notify_all()
        timer = threading.Timer(self._grace_s, os._exit, args=(1,))
        timer.daemon = True
        timer.start()


def follow_learner(
    link: LearnerLink, collect: Callable[[], int], refresh: Callable[[], None], *, refresh_every: int
) -> int:
    """Collects for as long as the learner lives and allows; returns the number of steps.

    Args:
      link: the link to the learner.
      collect: takes some environment steps and returns how many.
      refresh: gets the newest variables; called at the start and every `refresh_every` steps.
      refresh_every: steps between two calls of `refresh`.

    Raises:
      ValueError: `refresh_every` is below 1.
    """
    if refresh_every < 1:
        raise ValueError(f"refresh_every must be at least 1, got {refresh_every!r}.")
    num_steps = next_refresh = 0
    while link.wait_until_allowed(num_steps + 1):
        if num_steps >= next_refresh:
            refresh()
            next_refresh = num_steps + refresh_every
        num_steps += collect()
        link.report(num_steps)
    return num_steps


def _write_line(pipe: IO[str], message: Mapping[str, Any]) -> None:
    pipe.write(json.dumps(message) + "\n")
    pipe.flush()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise ValueError("the process has no such pipe.")
    return pipe


def _close(pipe: IO[str] | None) -> None:
    if pipe is not None:
        try:
            pipe.close()
        except BrokenPipeError:
            # What was buffered for a process that is gone.
            pass
