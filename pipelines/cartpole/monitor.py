"""Watches a buffer while a part of the job runs: how full it is, and how often its frames are drawn."""

from __future__ import annotations

import dataclasses
import time
from types import TracebackType

from replayfeed.buffers import ReplayBuffer


@dataclasses.dataclass(frozen=True)
class BufferPoint:
    """What a buffer told at one moment.

    Attributes:
      seconds: since the part began.
      fill_share: held / capacity, 0 to 1.
      samples_per_insert: draws by frames added, so far; None while nothing was added.
    """

    seconds: float
    fill_share: float
    samples_per_insert: float | None


class BufferMonitor:
    """Asks a buffer for its counters, at most every `interval_s` seconds."""

    def __init__(self, buffer: ReplayBuffer, interval_s: float = 0.25) -> None:
        self.points: list[BufferPoint] = []
        self._buffer = buffer
        self._interval_s = interval_s
        self._started = time.perf_counter()
        self._next = 0.0

    @property
    def seconds(self) -> float:
        """Since the monitor was made."""
        return time.perf_counter() - self._started

    def look(self) -> None:
        """Adds a point if it is time for one."""
        if self.seconds >= self._next:
            self.look_now()

    def look_now(self) -> None:
        """Adds a point."""
        stats = self._buffer.stats()
        self.points.append(BufferPoint(self.seconds, stats.fill_share, stats.replay_ratio))
        self._next = self.seconds + self._interval_s


class Stopwatch:
    """Adds up the seconds spent in its `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> Stopwatch:
        self._since = time.perf_counter()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.seconds += time.perf_counter() - self._since
