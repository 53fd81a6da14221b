"""How items become frames of a ring: checked, marked, written, published."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np

from .episode_ends import EpisodeMarks, EpisodeRule
from .frame_flags import FrameFlags, StartPredicate
from .nests import Array
from .priorities import check_priorities
from .ring import FrameRing
from .storage import FrameStorage
from .usage import Usage


class RingListener(Protocol):
    """What keeps something of each frame beside the ring, such as its priority. Called with the writer's lock held."""

    def prepare(self, priorities: Array) -> Array:
        """What is kept of these priorities, float64 `[...]`; raises before anything is written."""

    def before_overwrite(self, first: int, num: int) -> None:
        """The rows of the ids from `first` on are about to be written anew; the ids are new, and `num` of them come."""

    def after_publish(self, first: int, num: int, prepared: Array | None) -> None:
        """These ids are held now; `prepared` `[num]` is what `prepare` gave for them, or None."""

    def before_overwrite_apart(self, ids: Array, held: Array) -> None:
        """`before_overwrite` where streams go apart: new ids `[n, T]`, and which of their rows hold frames, bool."""

    def after_publish_apart(self, ids: Array, prepared: Array | None) -> None:
        """`after_publish` where streams go apart; ids and `prepared` `[n, T]`."""

    def start_again(self) -> None:
        """What is held is not what the calls so far tell: the ring was cleared, or a write interrupted."""

    def after_end_stream(self) -> None:
        """Streams have ended."""


class RingWriter:
    """Writes into a ring; any number of threads may call it.

    Everything that can be wrong with the items is found before the lock is taken, so that a
    refused write leaves no frame and moves no cursor.

    Args:
      rule: tells where episodes begin and end.
      ring: ids and cursors.
      storage: the frames' memory.
      usage: told what is overwritten.
      lock: held while the ring changes.
      predicate: says which frames may start a window; None: all.
    """

    def __init__(
        self,
        rule: EpisodeRule,
        ring: FrameRing,
        storage: FrameStorage,
        usage: Usage,
        lock: threading.Lock,
        predicate: StartPredicate | None = None,
    ) -> None:
        self._rule = rule
        self._ring = ring
        self._storage = storage
        self._usage = usage
        self._lock = lock
        self._closed = False
        self._predicate = predicate
        self._listener: RingListener | None = None
        self._flags: FrameFlags | None = None

    @property
    def tells_starts(self) -> bool:
        """Whether a predicate says which frames may start a window."""
        return self._predicate is not None

    def flag(self, flags: FrameFlags) -> None:
        """From now on `flags` is told of each frame written."""
        self._flags = flags

    def listen(self, listener: RingListener) -> None:
        """From now on `listener` is told of what is written."""
        self._listener = listener

    def close(self) -> None:
        """Refuses further writes."""
        self._closed = True

    def add_step(
        self, leaves: list[Array], end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        if self._ring.apart or streams is not None:
            return self._add_apart(leaves, None, end_of_episode, priorities, streams)[:, 0]
        marks = self._rule.marks(leaves, end_of_episode)
        prepared = None if priorities is None else self._prepare(priorities, (self._ring.batch_size,))
        may_start = None if self._predicate is None else self._predicate(leaves)
        ring, listener = self._ring, self._listener
        with self._lock:
            if self._closed:
                self._refuse()
            first = ring.published
            words, open_steps = ring.next_step_words(marks)
            try:
                rows = self._claim(words, open_steps)
                if self._flags is not None:
                    self._flags.renew(rows, may_start)
                self._storage.write(rows, leaves)
                ring.publish()
                if listener is not None:
                    listener.after_publish(first, ring.batch_size, prepared)
            except BaseException:  # Ctrl-C too: no half-written frame may ever be read
                self._abandon()
                raise
        return np.arange(first, first + ring.batch_size)

    def add_steps(
        self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        if self._ring.apart or streams is not None:
            return self._add_apart(leaves, num_steps, end_of_episode, priorities, streams)
        return self._add_steps_together(leaves, num_steps, end_of_episode, priorities)

    def _add_steps_together(self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any) -> Array:
        ring, streams = self._ring, self._ring.batch_size
        prepared = None if priorities is None else self._prepare(priorities, (streams, num_steps))
        if num_steps == 0:
            return np.zeros((streams, 0), np.int64)
        marks = self._rule.marks(leaves, end_of_episode)
        may_start = None if self._predicate is None else self._predicate(leaves)
        with self._lock:
            if self._closed:
                self._refuse()
            first = ring.published
            words = ring.next_words(marks, num_steps)
            ends = None if marks.ends is None else marks.ends.reshape(words.shape)
            done = 0
            while done < num_steps:
                num = ring.contiguous_steps(num_steps - done)
                last = done + num - 1
                open_steps = ring.open_steps_after(words[:, last], None if ends is None else ends[:, last])
                chunk = leaves if num == num_steps else [leaf[:, done : done + num] for leaf in leaves]
                try:
                    claimed = words[:, done : done + num].T.reshape(-1)
                    rows = self._claim(claimed, open_steps)
                    if self._flags is not None:
                        told = None if may_start is None else may_start[:, done : done + num].T.reshape(-1)
                        self._flags.renew(rows, told)
                    self._storage.write_sequence(rows, chunk, streams)
                    ring.publish()
                    if self._listener is not None:
                        part = None if prepared is None else prepared[:, done : done + num].T.reshape(-1)
                        self._listener.after_publish(first + done * streams, num * streams, part)
                except BaseException:
                    self._abandon()
                    raise
                done += num
        return np.arange(first, first + num_steps * streams).reshape(num_steps, streams).T

    def _add_apart(
        self, leaves: list[Array], num_steps: int | None, end_of_episode: Any, priorities: Any, streams: Array | None
    ) -> Array:
        """Frames `[n, ...]` (`num_steps` None) or `[n, T, ...]` of these streams (None: all); ids int64 `[n, T]`."""
        ring = self._ring
        if not ring.apart:
            raise ValueError(
                "streams: in this ring all streams go side by side; call let_streams_part() before its first frame."
            )
        chosen = np.arange(ring.batch_size) if streams is None else streams
        outer = (len(chosen),) if num_steps is None else (len(chosen), num_steps)
        shape = (len(chosen), 1 if num_steps is None else num_steps)
        prepared = None if priorities is None else self._prepare(priorities, outer).reshape(shape)
        if num_steps == 0:
            return np.zeros(shape, np.int64)
        marks = EpisodeMarks(
            *(
                None if flags is None else flags.reshape(shape)
                for flags in self._rule.marks(leaves, end_of_episode, chosen)
            )
        )
        may_start = None if self._predicate is None else self._predicate(leaves).reshape(shape)
        if num_steps is None:
            leaves = [leaf[:, None] for leaf in leaves]
        with self._lock:
            if self._closed:
                self._refuse()
            ids = ring.ids_ahead(chosen, shape[1])
            words = ring.next_words(marks, shape[1], chosen)
            done = 0
            while done < shape[1]:
                num = ring.contiguous_steps(shape[1] - done)
                part = slice(done, done + num)
                ends = None if marks.ends is None else marks.ends[:, part.stop - 1]
                chunk = leaves if num == shape[1] else [leaf[:, part] for leaf in leaves]
                told = [None if each is None else each[:, part] for each in (may_start, prepared)]
                open_steps = ring.open_steps_after(words[:, part.stop - 1], ends)
                try:
                    self._write_apart(chunk, chosen, ids[:, part], words[:, part], open_steps, *told)
                except BaseException:  # as in `add_step`
                    self._abandon()
                    raise
                done += num
        return ids

    def _write_apart(
        self,
        leaves: list[Array],
        streams: Array,
        ids: Array,
        words: Array,
        open_steps: Array,
        may_start: Array | None,
        prepared: Array | None,
    ) -> None:
        ring = self._ring
        held = ids - ring.capacity >= ring.tail[streams][:, None]
        if self._listener is not None:
            self._listener.before_overwrite_apart(ids, held)
        rows = ring.reserve_apart(streams, ids, words, open_steps)
        self._usage.count_overwritten_apart(rows, held)
        if self._flags is not None:
            self._flags.renew(rows, may_start)
        self._storage.write(rows, leaves)
        ring.publish()
        if self._listener is not None:
            self._listener.after_publish_apart(ids, prepared)

    def _claim(self, words: Array, open_steps: Array) -> slice:
        ring, num = self._ring, len(words)
        if self._listener is not None:
            self._listener.before_overwrite(ring.published, num)
        # Of these rows so many hold frames: none until the ring is full, then all.
        num_held = min(num, ring.published + num - ring.capacity - ring.floor)
        rows = ring.reserve(words, open_steps)
        self._usage.count_overwritten(rows, max(0, num_held))
        return rows

    def _prepare(self, priorities: Any, shape: tuple[int, ...]) -> Array:
        checked = check_priorities(priorities, None, shape)
        return checked if self._listener is None else self._listener.prepare(checked)

    def _abandon(self) -> None:
        self._ring.abandon()
        if self._listener is not None:
            self._listener.start_again()

    def _refuse(self) -> None:
        raise ValueError("this buffer is closed; build a new one.")
