"""How items come to a reservoir: checked, offered to its rule, and only those that it keeps are copied."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from .episode_ends import EpisodeRule
from .nests import Array
from .priorities import check_priorities
from .reservoir_rows import ReservoirRows
from .reservoir_rule import Kept, ReservoirRule
from .reservoir_usage import ReservoirUsage
from .storage import FrameStorage

# Kept frames are copied together before they are written; so many bytes of them at a time.
_CHUNK_BYTES = 4 * 2**20

# The id of a frame that is no item of the stream.
NO_ID = -1


class ReservoirWriter:
    """Writes into a reservoir; any number of threads may call it.

    Everything that can be wrong with the items is found before the lock is taken, so that a
    refused write changes nothing.

    Args:
      ends: tells which frames are only final observations.
      rule: decides what is kept, and where.
      held: told what is kept.
      storage: the frames' memory.
      usage: told what is replaced.
      lock: held while the reservoir changes.
      batch_size: `B`.
      capacity: rows.
    """

    def __init__(
        self,
        ends: EpisodeRule,
        rule: ReservoirRule,
        held: ReservoirRows,
        storage: FrameStorage,
        usage: ReservoirUsage,
        lock: threading.Lock,
        *,
        batch_size: int,
        capacity: int,
    ) -> None:
        self._ends = ends
        self._rule = rule
        self._held = held
        self._storage = storage
        self._usage = usage
        self._lock = lock
        self._batch_size = batch_size
        self._capacity = capacity
        # At most a quarter of the rows at a time, so that readers always find some that no writer touches.
        self._chunk = max(1, min(capacity // 4, _CHUNK_BYTES // storage.frame_bytes))
        # The id of the stream's first item: ids go on where the stream before `clear` ended.
        self.first_id = 0
        self._closed = False

    def close(self) -> None:
        """Refuses further writes."""
        self._closed = True

    def clear(self) -> None:
        """The next item is the first of a new stream; the caller holds the lock."""
        self.first_id += self._rule.num_seen
        self._rule.clear()

    def add_step(
        self, leaves: list[Array], end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        # Whose items they are no row tells, so that it matters only how many come.
        num_streams = self._batch_size if streams is None else len(streams)
        return self._add(leaves, (num_streams,), end_of_episode, priorities, streams)

    def add_steps(
        self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        num_streams = self._batch_size if streams is None else len(streams)
        return self._add(leaves, (num_streams, num_steps), end_of_episode, priorities, streams)

    def _add(
        self,
        leaves: list[Array],
        outer: tuple[int, ...],
        end_of_episode: Any,
        priorities: Any,
        streams: Array | None,
    ) -> Array:
        """Offers frames `[B, ...]` or `[B, T, ...]`, step by step; their ids, int64 `outer`."""
        if priorities is not None:
            check_priorities(priorities, None, outer)
        final = None
        if self._ends.has_final_observations or end_of_episode is not None:
            final = self._ends.marks(leaves, end_of_episode, streams).final
        # Which frames are items, in the order of the stream: all streams of a step, then the next step.
        items = None if final is None or not final.any() else np.flatnonzero(~final.T.reshape(-1))
        num_frames = outer[0] if len(outer) == 1 else outer[0] * outer[1]
        num_items = num_frames if items is None else len(items)
        with self._lock:
            if self._closed:
                raise ValueError("this buffer is closed; build a new one.")
            first = self.first_id + self._rule.num_seen
            self._offer(leaves, items, num_items, is_sequence=len(outer) == 2)
        if items is None:
            ids = np.arange(first, first + num_frames)
        else:
            ids = np.full(num_frames, NO_ID)
            ids[items] = np.arange(first, first + num_items)
        return ids if len(outer) == 1 else ids.reshape(outer[1], outer[0]).T

    def _offer(self, leaves: list[Array], items: Array | None, num_items: int, *, is_sequence: bool) -> None:
        done = 0
        while done < num_items:
            kept = self._rule.next_kept(num_items - done, self._chunk)
            if len(kept.rows):
                index = kept.offsets + done
                if items is not None:
                    index = items[index]
                self._keep(self._frames(leaves, index, is_sequence=is_sequence), kept)
            else:
                self._rule.advance_to(self._rule.num_seen + kept.num)
            done += kept.num

    def _frames(self, leaves: list[Array], index: Array, *, is_sequence: bool) -> list[Array]:
        """Those of the frames, counted in the order of the stream: `[m, ...]`."""
        if not is_sequence:
            return leaves if len(index) == len(leaves[0]) else [leaf[index] for leaf in leaves]
        num_streams = leaves[0].shape[0]
        if num_streams == 1:
            # Ascending and each once: so many numbers in a row are all between their ends, and need no copy.
            first, stop = int(index[0]), int(index[-1]) + 1
            return [leaf[0, slice(first, stop) if stop - first == len(index) else index] for leaf in leaves]
        time, stream = np.divmod(index, num_streams)
        return [leaf[stream, time] for leaf in leaves]

    def _keep(self, frames: list[Array], kept: Kept) -> None:
        seen = self._rule.num_seen
        ids = kept.offsets + (self.first_id + seen)
        # Until all rows are filled nothing is replaced, then something in each row.
        if self._held.size == self._capacity:
            self._usage.count_replaced(kept.rows)
        try:
            self._write(frames, ids, kept.rows, seen + kept.num)
        except BaseException:  # Ctrl-C: no row may stay half written, and nothing else can go wrong
            self._write(frames, ids, kept.rows, seen + kept.num)
            raise

    def _write(self, frames: list[Array], ids: Array, rows: Array, seen: int) -> None:
        """Done twice, it is as once."""
        self._held.hide(rows)
        # Rows are filled in a row, and a slice costs NumPy a fraction of what numbers of rows do.
        in_a_row = len(rows) == 1 or self._held.size < self._capacity
        self._storage.write(slice(rows[0], rows[0] + len(rows)) if in_a_row else rows, frames)
        self._held.publish(rows, ids)
        self._rule.advance_to(seen)
