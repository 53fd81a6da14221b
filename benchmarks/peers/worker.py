"""What runs in a peer's process: it obeys one JSON command a line, and answers each with one JSON line.

    {"command": "fill", "experience": "folder/x.npz", "capacity": 10000}   builds the buffer and fills it
    {"command": "prepare", "contest": "add"}                               builds a contest's call and tries it
    {"command": "measure", "contest": "add", "window_s": 0.25}             one window (measure.Contender.window)

An answer with "error" tells what went wrong. The end of the input ends the process, and so does the end of the one
that started it, be this one stopped or not. What libraries print goes to the error stream.
"""

from __future__ import annotations

import abc
import ctypes
import dataclasses
import itertools
import json
import os
import pathlib
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

# Last in the path, and not for long: it has modules called as some libraries are (datasets).
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from measure import Contender

sys.path.pop()

Block = dict[str, np.ndarray]

# Who acts where there are many agents, each with a policy of its own.
AGENTS = ("agent_0", "agent_1", "agent_2", "agent_3")
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Experience:
    """What every peer stores and writes back: the same for all, made once.

    Attributes:
      frames: leaves `[N, ...]`; a fill stores them again and again.
      batch: items of a draw, B.
      td_errors: float32 `[M]`, what the frames of a fill get one after the other, from the start again at the end.
      written: float32 `[K, B]`, TD errors that are written back, one row a batch.
      alpha: exponent of a priority.
      beta: exponent of a weight.
      eps: what is added to a TD error's magnitude.
    """

    frames: Block
    batch: int
    # Defaults for draws without priorities.
    td_errors: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(1, np.float32))
    written: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0), np.float32))
    alpha: float = 0.0
    beta: float = 0.0
    eps: float = 0.0

    @classmethod
    def load(cls, path: str) -> Experience:
        with np.load(path) as arrays:
            frames = {name.partition("/")[2]: arrays[name] for name in arrays if name.startswith("frames/")}
            numbers = {name: float(arrays[name]) for name in ("alpha", "beta", "eps")}
            return cls(frames, int(arrays["batch"]), arrays["td_errors"], arrays["written"], **numbers)

    def save(self, path: pathlib.Path) -> None:
        frames = {f"frames/{name}": leaf for name, leaf in self.frames.items()}
        numbers = {name: np.float64(getattr(self, name)) for name in ("alpha", "beta", "eps")}
        batch = np.int64(self.batch)
        np.savez(path, batch=batch, td_errors=self.td_errors, written=self.written, **frames, **numbers)

    def blocks(self, num_items: int) -> Iterator[tuple[Block, np.ndarray]]:
        """A fill of so many items: blocks of frames `[n, ...]` with their TD errors `[n]`, all of one length but the
        last."""
        length = len(next(iter(self.frames.values())))
        for start in range(0, num_items, length):
            num = min(length, num_items - start)
            # Not `take` with mode="wrap": it subtracts the length as often as it fits, for each index again.
            td_errors = self.td_errors[np.arange(start, start + num) % len(self.td_errors)]
            yield {name: leaf[:num] for name, leaf in self.frames.items()}, td_errors

    def steps(self, num: int = 200) -> list[tuple[Block, float]]:
        """Single frames without an outer dimension, each with its priority."""
        priorities = self.priorities(self.td_errors[:num])
        return [
            ({name: leaf[index] for name, leaf in self.frames.items()}, float(priorities[index]))
            for index in range(num)
        ]

    def moments(self, num: int = 50) -> list[dict[str, Block]]:
        """What each of `AGENTS` does at each of so many times: single frames without an outer dimension."""
        steps = iter(self.steps(num * len(AGENTS)))
        return [{agent: next(steps)[0] for agent in AGENTS} for _ in range(num)]

    def priorities(self, td_errors: np.ndarray) -> np.ndarray:
        """|TD error| + eps, for libraries that want priorities."""
        return np.abs(td_errors) + np.float32(self.eps)


class Buffer(abc.ABC):
    """A library's buffer.

    Args:
      experience: what goes in.
      capacity: items.

    Attributes:
      units: batches or items of one call of a contest, where that is not one.
      calls_are_long: a window is one call, and nothing warms up but the one call by which a contest is tried.
    """

    units: Mapping[str, int] = types.MappingProxyType({})
    calls_are_long = False

    def __init__(self, experience: Experience, capacity: int) -> None:
        self.experience, self.capacity = experience, capacity

    @abc.abstractmethod
    def fill(self) -> None:
        """Stores `capacity` items, each with its priority where it takes one."""

    @abc.abstractmethod
    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        """How to make the call that is timed, by what the contest is called: `sample_update`, `add`, `sample`."""


def serve(make: Callable[[Experience, int], Buffer]) -> None:
    """Obeys until the input ends."""
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = _Worker(make)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = getattr(worker, question.pop("command"))(**question)
        except Exception as error:  # the other side decides what to do without this peer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".partition("\n")[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # Not the interpreter's own exit: some libraries wait there for threads of theirs.
    os._exit(0)


def cycle(items: list[Any]) -> Callable[[], Any]:
    """A call gives the next of the items, from the start again at the end."""
    return itertools.cycle(items).__next__


class _Worker:
    def __init__(self, make: Callable[[Experience, int], Buffer]) -> None:
        self._make = make
        self._buffer: Buffer | None = None
        self._contenders: dict[str, Contender] = {}

    def fill(self, experience: str, capacity: int) -> dict[str, Any]:
        self._buffer = self._make(Experience.load(experience), capacity)
        self._buffer.fill()
        return {}

    def prepare(self, contest: str) -> dict[str, Any]:
        if self._buffer is None:
            raise RuntimeError("prepare before fill")
        call, is_long = self._buffer.contests()[contest](), self._buffer.calls_are_long
        units, prepare = self._buffer.units.get(contest, 1), (lambda: None) if is_long else None
        self._contenders[contest] = Contender(contest, call, units, prepare=prepare)
        for _ in range(1 if is_long else 3):
            call()
        return {}

    def measure(self, contest: str, window_s: float) -> dict[str, float]:
        return self._contenders[contest].window(window_s)


def _end_with_parent() -> None:
    """A stopped process does not see its input end; it would outlive the benchmark for ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
