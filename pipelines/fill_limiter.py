"""Whether the limiters of served tables let an episode in, found before any of it is written.

A table that has reached its ratio lets an insert wait until somebody draws. Where nobody does, a load would stand still
until the buffer's timeout is up. So before each episode the items that it makes are compared with those that still go
in without a draw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from replayfeed.buffers import (
    MultiAgentReplayBuffer,
    ReplayBuffer,
    ReverbEpisodicReplayBuffer,
    ReverbReplayBuffer,
    ReverbTableGroup,
    WaitTimeoutError,
    Window,
)
from replayfeed.buffers.reverb_cutter import WindowCutter
from replayfeed.buffers.reverb_limits import LimiterState, limiter_state

# How long a first draw may take to come where a limiter lets nothing more in.
_GRACE_SECONDS = 2.0
_POLL_SECONDS = 0.05

Target = ReplayBuffer | ReverbTableGroup


def num_items(window: Window | None, num_frames: int, *, ends_in_observation: bool) -> int:
    """Items that an episode makes in a table; of a table whose items are not known, at most so many.

    Args:
      window: of the table's items; None: not known.
      num_frames: of the episode.
      ends_in_observation: the last frame is only a final observation, which starts no item.

    >>> num_items(Window(2), 5, ends_in_observation=False), num_items(Window(1), 5, ends_in_observation=True)
    (4, 4)
    >>> num_items(Window(3, stride=2, short="pad"), 6, ends_in_observation=False)
    3
    """
    if window is None:
        return num_frames
    # A frame that is only a final observation completes windows, and starts none.
    num_whole = num_frames - window.num_steps + (window.num_steps > 1 or not ends_in_observation)
    num_cut = len(list(WindowCutter(window).at_end(num_frames, final=ends_in_observation)))
    return max(0, -(-num_whole // window.stride)) + num_cut


def num_free_inserts(state: LimiterState) -> float:
    """Inserts that go through while nobody draws.

    >>> from replayfeed.buffers.rate_limiters import SampleToInsertRatio
    >>> bounds = SampleToInsertRatio(2.0, 10, 4.0).bounds  # the error begins at 20, and may reach 24
    >>> num_free_inserts(LimiterState("replay", bounds, inserts=3, samples=0, size=3, max_size=99, removes=False))
    9
    """
    bounds = state.bounds
    if not bounds.is_bounded:
        return float("inf")
    by_error = int((bounds.max_error - state.diff) // bounds.samples_per_insert)
    return max(0, bounds.min_size_to_sample - state.size, by_error)


class _Table(NamedTuple):
    """A served table: how to ask for its `TableInfo`, and what episodes become there."""

    info: Callable[[], Any]
    is_whole: bool
    window: Window | None


class InsertWatch:
    """Looks before each episode whether all served tables of a buffer let it in.

    Args:
      buffer: any buffer; of one without limiters nothing is asked.
      ends_in_observation: the episodes' last frames are only final observations.
    """

    def __init__(self, buffer: Target, *, ends_in_observation: bool) -> None:
        self._flush = buffer.flush
        self._ends_in_observation = ends_in_observation
        self._tables = [
            table
            for table in (_table_of(part) for part in _served_parts(buffer))
            if limiter_state(table.info()).bounds.is_bounded
        ]
        # Of each table how many items surely go in, and how many were drawn when the load began.
        self._free = [0.0] * len(self._tables)
        self._samples = [limiter_state(table.info()).samples for table in self._tables]

    def before_episode(self, name: str, num_frames: int) -> None:
        """Returns when the episode goes in, or when somebody draws, so that it will.

        Raises:
          WaitTimeoutError: it does not, and nobody draws; the message has the numbers and the way out.
        """
        for index, table in enumerate(self._tables):
            needed = 1
            if not table.is_whole:
                needed = num_items(table.window, num_frames, ends_in_observation=self._ends_in_observation)
            if self._free[index] < needed:
                self._free[index] = self._wait_for(table, index, name, needed)
            self._free[index] -= needed

    def _wait_for(self, table: _Table, index: int, name: str, needed: int) -> float:
        # What was written and is on its way counts too.
        self._flush()
        until = time.monotonic() + _GRACE_SECONDS
        while True:
            state = limiter_state(table.info())
            free = num_free_inserts(state)
            if free >= needed or state.samples > self._samples[index]:
                return max(free, needed)
            if time.monotonic() > until:
                raise WaitTimeoutError(_blocked(state, name, needed, int(free)))
            time.sleep(_POLL_SECONDS)


def _blocked(state: LimiterState, name: str, needed: int, free: int) -> str:
    bounds = state.bounds
    return (
        f"episode {name} makes {needed:,} items, and the limiter of table {state.table!r} lets in {free:,} more while "
        f"nobody draws ({state.inserts:,} inserts * {bounds.samples_per_insert:g} - {state.samples:,} samples = "
        f"{state.diff:g}, kept in [{bounds.min_error:g}, {bounds.max_error:g}]): nothing of it was written. Load "
        "offline data with preloaded_server(data_spec, tables, episodes), whose ratios do not count it; or draw from "
        "the table while it is filled."
    )


def _served_parts(buffer: Target) -> Iterator[ReverbReplayBuffer | ReverbEpisodicReplayBuffer]:
    if isinstance(buffer, ReverbTableGroup):
        parts: list[Any] = [buffer[name] for name in buffer.tables]
    elif isinstance(buffer, MultiAgentReplayBuffer):
        policies = buffer.policies if buffer.mode == "independent" else (None,)
        parts = [buffer.buffer_of(policy) for policy in policies]
    else:
        parts = [buffer]
    return (part for part in parts if isinstance(part, ReverbReplayBuffer | ReverbEpisodicReplayBuffer))


def _table_of(part: ReverbReplayBuffer | ReverbEpisodicReplayBuffer) -> _Table:
    windows = part.stats().windows
    window = windows[0].window if windows else None
    return _Table(part.get_table_info, isinstance(part, ReverbEpisodicReplayBuffer), window)


def num_added(buffer: Target) -> int:
    """What was ever added to a buffer, in whatever unit: it grows until the buffer is emptied."""
    parts = list(_served_parts(buffer))
    if parts:
        return sum(int(part.get_table_info().rate_limiter_info.insert_stats.completed) for part in parts)
    return 0 if isinstance(buffer, ReverbTableGroup) else buffer.stats().added or 0
