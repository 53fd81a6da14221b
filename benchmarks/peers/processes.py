"""Peers as contenders: a process each, stopped while another one is measured, so that none of its threads runs."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import select
import signal
import subprocess
import tempfile
from typing import Any

from .environments import Peer, peer_of, python_of
from .worker import Experience

_HERE = pathlib.Path(__file__).resolve().parent
# To import, to fill, to compile what a contest calls, and to measure one window.
_TIMEOUT_S = 180


class PeerError(Exception):
    """A peer answered that something went wrong, or did not answer."""


@dataclasses.dataclass(frozen=True)
class PeerContender:
    """A contest of a peer, timed by itself in its own process (`measure.Timed`)."""

    name: str
    process: PeerProcess
    contest: str

    def window(self, window_s: float) -> dict[str, float]:
        return self.process.ask(command="measure", contest=self.contest, window_s=window_s)


class PeerProcess:
    """A peer's process; it runs only while it is asked something.

    Args:
      peer: what runs.
      python: the interpreter of its environment.
      quiet: drop what its libraries print.
    """

    def __init__(self, peer: Peer, python: pathlib.Path, *, quiet: bool = True) -> None:
        self._title = peer.title
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **peer.variables}
        environment.pop("PYTHONPATH", None)
        # A session of its own: what it starts itself is stopped, and ended, with it.
        self._process = subprocess.Popen(
            [str(python), str(_HERE / peer.script)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            start_new_session=True,
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """The answer.

        Raises:
          PeerError: the answer is an error, or the process ended, or it took too long and was ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise PeerError(f"{self._title} has no pipes")
        self._signal(signal.SIGCONT)
        try:
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"its process ended with code {self._process.wait()}") from None
        if not select.select([stdout], [], [], _TIMEOUT_S)[0]:
            self._signal(signal.SIGKILL)
            raise PeerError(f"no answer to {question.get('command')!r} within {_TIMEOUT_S} s")
        line = stdout.readline()
        if not line:
            raise PeerError(f"its process ended with code {self._process.wait()}")
        self._signal(signal.SIGSTOP)
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def contender(self, name: str, contest: str) -> PeerContender:
        """A contest of a full peer, tried once.

        Raises:
          PeerError: it could not.
        """
        self.ask(command="prepare", contest=contest)
        return PeerContender(name, self, contest)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # it ended by itself; whoever asks it next is told


class Peers:
    """Peers with full buffers; a context, at whose end their processes end.

    Args:
      experience: what they store and write back.
      capacity: items of each, but for peers that hold fewer (`Peer.max_items`).
      quiet: drop what libraries print.
    """

    def __init__(self, experience: Experience, capacity: int, *, quiet: bool = True) -> None:
        self._capacity, self._quiet = capacity, quiet
        self._processes: list[PeerProcess] = []
        self._folder = tempfile.TemporaryDirectory()
        self._experience = pathlib.Path(self._folder.name, "experience.npz")
        experience.save(self._experience)

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.close()
        self._folder.cleanup()

    def contender(self, name: str, contest: str) -> PeerContender:
        """A contest of a peer of `environments.py`, full and tried once.

        Raises:
          PeerError: there is no environment for it, or it could not.
        """
        python = python_of(name)
        if isinstance(python, str):
            raise PeerError(python)
        title, process = self.full(peer_of(name), python)
        return process.contender(title, contest)

    def full(self, peer: Peer, python: pathlib.Path) -> tuple[str, PeerProcess]:
        """Starts a peer and fills it: its name in the table, and its process.

        Raises:
          PeerError: it could not.
        """
        process = PeerProcess(peer, python, quiet=self._quiet)
        self._processes.append(process)
        num_items = min(self._capacity, peer.max_items or self._capacity)
        process.ask(command="fill", experience=str(self._experience), capacity=num_items)
        return peer.title if num_items == self._capacity else f"{peer.title}, {num_items:,} items", process
