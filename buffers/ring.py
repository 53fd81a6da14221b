"""Ids, cursors and step words of a ring of frames: what is held, and which frames start a window.

The frame of stream `b` at time `t` has the id `t * B + b`, for ever, and lies in row
`id % capacity`; its successor in the stream has the id `id + B`. Frames held are the ids
from `tail` to `published`.

Three cursors bound what a reader may trust while a writer writes, without a lock:

  reserved   raised before the rows are written
  published  raised after they are written
  floor      below it nothing is held, because of `clear` or an interrupted write

A reader draws among the ids below `published`, gathers, and then reads `reserved`: what it
gathered for an id below `reserved - capacity` (or `floor`) may have been overwritten meanwhile, and is
drawn again. Frames are evicted oldest first, so one comparison tells (test:
`tests/buffers/test_torn_reads.py`, which finds torn rows without it).

Where streams go apart (`part`), each has a time `t` of its own, and each of the cursors is an array `[B]`: of a stream
the id of the next frame, so that all that is said of ids holds stream by stream. `at` picks each id's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from .episode_ends import EpisodeMarks
from .memory import SharedMemory
from .nests import Array
from .row_numbers import RingRows, RowNumbers, put
from .windows import StartRule, window_lengths

RESERVED, PUBLISHED, FLOOR = 0, 1, 2


class StartCount:
    """For how many starts that the ring holds a rule holds, kept current by the writer.

    Args:
      rule: says where windows of a kind start.
    """

    def __init__(self, rule: StartRule) -> None:
        self.rule = rule
        self._memory = SharedMemory((1,), np.int64)

    @property
    def value(self) -> int:
        """The count as of now."""
        return int(self._memory.array[0])

    @value.setter
    def value(self, value: int) -> None:
        self._memory.array[0] = value

    def in_graph(self) -> tf.Tensor:
        """`value` in a graph, int64 `[]`."""
        return tf.gather(self._memory.in_graph(), 0)


class FrameRing:
    """Bookkeeping of `capacity` rows that `batch_size` streams fill side by side.

    The caller serialises `reserve`, `publish`, `end_stream`, `clear`, `count_starts` and
    `track_open_episodes`; everything else may be read at any time.

    Args:
      batch_size: `B`, the number of streams.
      capacity: rows, a multiple of `B`.
    """

    def __init__(self, batch_size: int, capacity: int) -> None:
        self.batch_size = batch_size
        self.capacity = capacity
        self._shared_words = SharedMemory((capacity,), np.int64)
        self.words = self._shared_words.array
        self._shared_cursors = SharedMemory((3,), np.int64)
        self._cursors = self._shared_cursors.array
        # Python's own copies of the cursors: reading them costs a reader and the writer less. Ints, or arrays `[B]`
        # that are replaced, never changed.
        self.reserved: Any = 0
        self.published: Any = 0
        self.floor: Any = 0
        # Where the ids of the frames added since the last `clear` begin.
        self.cleared_at: Any = 0
        # Whether streams go apart, and for each row when its frame came, counted in adds: only then.
        self.apart = False
        self.arrivals: Array | None = None
        self._num_arrivals = 0
        # For each stream, how many frames of its open episode were written: the next frame's k.
        self._open_steps = np.zeros(batch_size, np.int64)
        # Adding an array costs NumPy a third of what adding a Python int does.
        self._one_step = np.ones(batch_size, np.int64)
        self._counts: dict[StartRule, StartCount] = {}
        # For each stream the time at which its open episode began, or the next time: only once a reader asks for it.
        self._shared_open_times: SharedMemory | None = None

    def part(self) -> None:
        """From now on each stream goes at its own pace. Nothing may have been written, and no graph have been made."""
        self.apart = True
        first = np.arange(self.batch_size)
        self._shared_cursors = SharedMemory((3, self.batch_size), np.int64)
        self._cursors = self._shared_cursors.array
        self._cursors[:] = first
        self.reserved = self.published = self.floor = self.cleared_at = first
        self.arrivals = np.zeros(self.capacity, np.int64)

    def at(self, bound: Any, ids: Array) -> Any:
        """What a bound, one of the cursors, is for each of these ids; arrays, or tensors in a graph."""
        if not self.apart:
            return bound
        if isinstance(ids, tf.Tensor):
            return tf.gather(bound, ids % self.batch_size)
        return bound[ids % self.batch_size]

    @property
    def tail(self) -> Any:
        """The oldest id held; where streams go apart of each stream, `[B]`."""
        if self.apart:
            return np.maximum(self.floor, self.published - self.capacity)
        return max(self.floor, self.published - self.capacity)

    @property
    def num_frames(self) -> int:
        """Frames held."""
        return self.num_between(self.tail, self.published)

    @property
    def num_added(self) -> int:
        """Frames added since the last `clear`."""
        return self.num_between(self.cleared_at, self.published)

    def num_between(self, low: Any, high: Any) -> Any:
        """How many ids lie between two cursors: an int, or in a graph int64 `[]`."""
        if not self.apart:
            return high - low
        if isinstance(high, tf.Tensor):
            return tf.reduce_sum(high - low) // self.batch_size
        return int((high - low).sum()) // self.batch_size

    def is_held(self, ids: Array) -> Array:
        """Which of these ids are held, bool, their shape."""
        return np.asarray((ids >= self.at(self.tail, ids)) & (ids < self.at(self.published, ids)))

    def held_ids(self, reach: int = 0) -> Array:
        """All ids held, but for those of the newest `reach / B` steps of each stream; ascending, or by stream."""
        if not self.apart:
            return np.arange(self.tail, self.published - reach)
        return self.ids_from(self.tail, self.published - reach)

    def ids_from(self, low: Array, high: Array) -> Array:
        """The ids of streams that go apart, from `low` `[n]` up to below `high` `[n]`, stream by stream."""
        streams = self.batch_size
        if len(low) == 1:
            return np.arange(int(low[0]), int(high[0]), streams)
        nums = np.maximum((high - low) // streams, 0)
        steps = np.arange(int(nums.max(initial=0)))
        return (low[:, None] + steps * streams)[steps < nums[:, None]]

    def next_words(self, marks: EpisodeMarks, num_steps: int, streams: Array | None = None) -> Array:
        """Step words `[B, T]` of the coming frames; of these `streams` `[n]` only, `[n, T]`."""
        open_steps = self._open_steps if streams is None else self._open_steps[streams]
        shape = (len(open_steps), num_steps)
        time = np.arange(num_steps)
        if marks.begins is None and marks.ends is None:
            return 2 * open_steps[:, None] + 2 * time
        began = np.zeros(shape, bool) if marks.begins is None else marks.begins.reshape(shape).copy()
        if marks.ends is not None:
            began[:, 1:] |= marks.ends.reshape(shape)[:, :-1]
        # Time of each frame's episode start; negative where it began before this call.
        start = np.maximum.accumulate(np.where(began, time, -open_steps[:, None]), axis=1)
        words = 2 * (time - start)
        if marks.final is not None:
            words += marks.final.reshape(shape)
        return words

    def open_steps_after(self, words: Array, ends: Array | None) -> Array:
        """What the streams' open episodes count after a step with these words and ends, `[B]` (`[n]`) each."""
        open_steps = (words >> 1) + self._one_step[: len(words)]
        if ends is not None:
            open_steps[ends] = 0
        return open_steps

    def next_step_words(self, marks: EpisodeMarks) -> tuple[Array, Array]:
        """`next_words` for one step: words `[B]`."""
        steps = self._open_steps
        if marks.begins is not None:
            steps = np.where(marks.begins, 0, steps)
        words = steps + steps
        open_steps = steps + self._one_step
        if marks.ends is not None:
            open_steps[marks.ends] = 0
        if marks.final is not None:
            words += marks.final
        return words, open_steps

    def reserve(self, words: Array, open_steps: Array) -> slice:
        """Claims rows for the frames with these words, int64 `[n]` in id order; returns the rows.

        The `n` rows must not run over the ring's end (`contiguous_steps`). `open_steps` `[B]` is
        what the streams' open episodes count after them.
        """
        first, num = self.published, len(words)
        for count in self._counts.values():
            count.value += self._change_by_one(count, int(words[0])) if num == 1 else self._change(count, words)
        self.reserved = first + num
        self._cursors[RESERVED] = first + num
        row = first % self.capacity
        self.words[row : row + num] = words
        self._open_steps = open_steps
        return slice(row, row + num)

    def publish(self) -> None:
        """Makes what was reserved visible to readers."""
        self._cursors[PUBLISHED] = self.reserved
        self.published = self.reserved
        # Last: an episode that a reader finds ended has all its frames published.
        self._show_open_times()

    def ids_ahead(self, streams: Array, num_steps: int) -> Array:
        """The ids `[n, T]` of the next frames of streams that go apart."""
        return self.published[streams][:, None] + np.arange(num_steps) * self.batch_size

    def reserve_apart(self, streams: Array, ids: Array, words: Array, open_steps: Array) -> Array:
        """Claims the rows `[n, T]` of `ids_ahead` for frames with these words, where streams go apart.

        `open_steps` `[n]` is what these streams' open episodes count after them. `T` is at most a quarter of what is
        kept of a stream (`contiguous_steps`).
        """
        reserved = self.published.copy()
        reserved[streams] = ids[:, -1] + self.batch_size
        self.reserved = reserved
        self._cursors[RESERVED] = reserved
        rows = ids % self.capacity
        self.words[rows] = words
        assert self.arrivals is not None  # streams go apart
        # Those of a later step came later.
        self.arrivals[rows] = self._num_arrivals + np.arange(ids.shape[1])
        self._num_arrivals += ids.shape[1]
        all_open = self._open_steps.copy()
        all_open[streams] = open_steps
        self._open_steps = all_open
        return rows

    def _show_open_times(self) -> None:
        if self._shared_open_times is not None:
            self._shared_open_times.array[:] = self.published // self.batch_size - self._open_steps

    def track_open_episodes(self) -> None:
        """From now on `open_times` tells where open episodes began."""
        if self._shared_open_times is None:
            self._shared_open_times = SharedMemory((self.batch_size,), np.int64)
            self._show_open_times()

    def open_times(self) -> Array:
        """For each stream the time at which its open episode began, or the next time; int64 `[B]`, a copy.

        To be read before `published`: what it does not tell as open is then published to its end.
        """
        return self._open_memory().array.copy()

    def open_times_in_graph(self) -> tf.Tensor:
        """The same in a graph."""
        return tf.gather(self._open_memory().in_graph(), tf.range(self.batch_size))

    def _open_memory(self) -> SharedMemory:
        if self._shared_open_times is None:
            raise RuntimeError("call track_open_episodes first.")
        return self._shared_open_times

    def contiguous_steps(self, wanted: int) -> int:
        """How many of `wanted` steps may be written in one piece.

        Up to the ring's end, and at most a quarter of the ring, so that readers always
        find rows that no writer touches.
        """
        most = self.capacity // self.batch_size // 4
        if self.apart:  # rows are named one by one
            return max(1, min(wanted, most))
        to_end = (self.capacity - self.published % self.capacity) // self.batch_size
        return max(1, min(wanted, to_end, most))

    def end_stream(self, b: int | None) -> None:
        """Stream `b`'s next frame (None: every stream's) begins an episode."""
        open_steps = self._open_steps.copy()
        open_steps[slice(None) if b is None else b] = 0
        self._open_steps = open_steps
        self._show_open_times()

    def abandon(self) -> None:
        """Takes back what was reserved but not published: the caller was interrupted while writing.

        The frames that lay in those rows are lost, and every stream's next frame begins an episode.
        """
        self._raise_floor(self.oldest_untouched())
        self.reserved = self.published
        self._cursors[RESERVED] = self.reserved
        self.end_stream(None)
        for count in self._counts.values():
            count.value = self._count_held(count.rule)

    def clear(self) -> None:
        """Holds nothing; ids go on, so that a key from before never means a frame from after."""
        self._raise_floor(self.published)
        self.cleared_at = self.published
        self.end_stream(None)
        for count in self._counts.values():
            count.value = 0

    def state(self) -> dict[str, Any]:
        """All that decides how it goes on, but for what is kept of each frame: plain values."""
        names = ("published", "floor", "cleared_at")
        bounds = {name: getattr(self, name) for name in names}
        return {
            "is_parted": self.apart,
            **{name: bound.tolist() if self.apart else int(bound) for name, bound in bounds.items()},
            "open_steps": self._open_steps.tolist(),
            "num_arrivals": self._num_arrivals,
        }

    def held_rows(self) -> RowNumbers:
        """Rows of all frames held, in the order of their ids."""
        if self.apart:
            return self.rows(np.sort(self.held_ids()))
        return RingRows(self.tail % self.capacity, self.num_frames, self.capacity)

    def restore(
        self, state: Mapping[str, Any], ids: Array | range, rows: RowNumbers, words: Array, arrivals: Array | None
    ) -> None:
        """Goes on as the ring did that this is the `state` of, whose streams went apart if those of this one do.

        Args:
          state: of `state`.
          ids: of the frames held from now on, `[n]`: the newest ones of each stream that are below `published`.
          rows: in which they lie.
          words: their step words, `[n]`.
          arrivals: when they came, `[n]`, where streams go apart.
        """
        published, floor = np.array(state["published"], np.int64), np.array(state["floor"], np.int64)
        self.published = published if self.apart else int(published)
        # What another ring had evicted is not held in a larger one either.
        first = self._first_ids(ids)
        self.floor = floor if self.apart else int(floor)
        if self.apart:
            self.floor = np.where(self.tail < first, first, floor)
        elif self.tail < first:
            self.floor = first
        self.cleared_at = np.array(state["cleared_at"]) if self.apart else int(state["cleared_at"])
        self.reserved = self.published
        for place, bound in ((RESERVED, self.reserved), (PUBLISHED, self.published), (FLOOR, self.floor)):
            self._cursors[place] = bound
        put(self.words, rows, words)
        if self.arrivals is not None and arrivals is not None:
            put(self.arrivals, rows, arrivals)
        self._num_arrivals = int(state["num_arrivals"])
        self._open_steps = np.array(state["open_steps"], np.int64)
        self._count_again()

    def cut(self, published: Any) -> Array:
        """Takes back the frames from `published` on, an int, or of each stream `[B]`; returns their rows."""
        if self.apart:
            published = np.minimum(np.asarray(published, np.int64), self.published)
            gone = self.ids_from(np.maximum(published, self.tail), self.published)
        else:
            published = min(int(published), self.published)
            gone = np.arange(max(published, self.tail), self.published)
        # A stream goes on in the episode of the first frame that is taken back, where it is there to tell.
        first: Array = published if self.apart else published + np.arange(self.batch_size)
        told = (first < self.published) & (first >= self.tail)
        open_steps = np.where(told, self.words[self.rows(first)] >> 1, 0)
        self._open_steps = np.where(first < self.published, open_steps, self._open_steps)
        if self.apart:
            self.floor = np.minimum(self.tail, published)
            self.cleared_at = np.minimum(self.cleared_at, published)
        else:
            self.floor, self.cleared_at = min(self.tail, published), min(self.cleared_at, published)
        self.published = self.reserved = published
        for place, bound in ((RESERVED, published), (PUBLISHED, published), (FLOOR, self.floor)):
            self._cursors[place] = bound
        self._count_again()
        return self.rows(gone)

    def _first_ids(self, ids: Array | range) -> Any:
        """The first of these ids, or `published` where there is none; where streams go apart of each, `[B]`."""
        if not self.apart:
            return int(ids[0]) if len(ids) else self.published
        first, found = self.published.copy(), np.asarray(ids)
        np.minimum.at(first, found % self.batch_size, found)
        return first

    def _count_again(self) -> None:
        self._show_open_times()
        for count in self._counts.values():
            count.value = self._count_held(count.rule)

    def _raise_floor(self, floor: Any) -> None:
        self.floor = floor
        self._cursors[FLOOR] = floor

    def count_starts(self, rule: StartRule) -> StartCount:
        """The running count of starts for which a rule holds; the first call for a rule scans the ring."""
        count = self._counts.get(rule)
        if count is None:
            count = StartCount(rule)
            count.value = self._count_held(rule)
            self._counts[rule] = count
        return count

    def rows(self, ids: Array) -> Array:
        """Rows of these ids."""
        return ids % self.capacity

    def unfinished(self) -> Array:
        """Whether each stream's newest episode may go on, bool `[B]`."""
        return self._open_steps > 0

    def words_by_stream(self) -> list[Array]:
        """Step words of all frames held, of each stream `[n]`, oldest first."""
        return [self.words[self.rows(ids)] for ids in self.ids_by_stream()]

    def joined_words(self, ids: Array) -> Array:
        """Step words of these ids where a stream is one endless episode, which begins where all before is lost."""
        return 2 * ((ids - self.at(self.floor, ids)) // self.batch_size)

    def ids_by_stream(self) -> list[Array]:
        """Ids of all frames held, of each stream `[n]`, oldest first."""
        if self.apart:
            bounds = zip(self.tail.tolist(), self.published.tolist(), strict=True)
            return [np.arange(low, high, self.batch_size) for low, high in bounds]
        return list(np.arange(self.tail, self.published).reshape(-1, self.batch_size).T)

    def held_in_graph(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """`tail`, `published` and `floor` in a graph, int64 `[]`, or `[B]`."""
        published, floor = tf.unstack(tf.gather(self._shared_cursors.in_graph(), [PUBLISHED, FLOOR]))
        return tf.maximum(floor, published - self.capacity), published, floor

    def oldest_untouched(self) -> Any:
        """The oldest id whose row no writer has touched since it was published; of each stream, where they go apart.

        `reserved` is read before `floor`: an interrupted write raises `floor` before it lowers `reserved`.
        """
        if self.apart:
            return np.maximum(self.reserved - self.capacity, self.floor)
        return max(self.reserved - self.capacity, self.floor)

    def oldest_untouched_in_graph(self) -> tf.Tensor:
        """The same in a graph, int64 `[]`, or `[B]`: gathered, since an alias would be read at some later time."""
        reserved, floor = tf.unstack(tf.gather(self._shared_cursors.in_graph(), [RESERVED, FLOOR]))
        return tf.maximum(reserved - self.capacity, floor)

    def words_in_graph(self, ids: tf.Tensor) -> tf.Tensor:
        """Step words of these ids in a graph, int64, their shape."""
        return tf.gather(self._shared_words.in_graph(), ids % self.capacity)

    def num_episodes(self) -> int:
        """Episodes of which at least one frame is held."""
        if self.apart:
            by_stream = [words for words in self.words_by_stream() if len(words)]
            return sum(int(np.count_nonzero(words < 2)) + int(words[0] >= 2) for words in by_stream)
        tail, published = self.tail, self.published
        begun = sum(int(np.count_nonzero(self.words[rows] < 2)) for rows in self._row_slices(tail, published))
        first = self.words[self.rows(np.arange(tail, min(tail + self.batch_size, published)))]
        return begun + int(np.count_nonzero(first >= 2))

    def longest_episode(self) -> int:
        """Frames held of the episode of which most are."""
        return max((int(window_lengths(words).max(initial=0)) for words in self.words_by_stream()), default=0)

    def _count_held(self, rule: StartRule) -> int:
        return self._count_ends(rule, min(self.tail + rule.reach * self.batch_size, self.published), self.published)

    def _count_ends(self, rule: StartRule, start: int, stop: int) -> int:
        return sum(int(np.count_nonzero(rule.holds(self.words[rows]))) for rows in self._row_slices(start, stop))

    def _row_slices(self, start: int, stop: int) -> Iterator[slice]:
        """Rows of the ids from `start` to `stop`, cut at the ring's end."""
        while start < stop:
            row = start % self.capacity
            num = min(stop - start, self.capacity - row)
            yield slice(row, row + num)
            start += num

    def _change(self, count: StartCount, words: Array) -> int:
        """By how much a count changes when `words` are appended; called before they are written."""
        first, rule = self.published, count.rule
        old_start, new_start = self._first_ends(rule, len(words))
        lost = self._count_ends(rule, old_start, min(new_start, first))
        gained = int(np.count_nonzero(rule.holds(words[max(0, new_start - first) :])))
        return gained - lost

    def _change_by_one(self, count: StartCount, word: int) -> int:
        """`_change` for a single frame, in plain ints: what every add of a single stream pays."""
        first, rule = self.published, count.rule
        old_start, new_start = self._first_ends(rule, 1)
        change = int(first >= new_start and rule.holds_for(word))
        if old_start < new_start and old_start < first:
            change -= rule.holds_for(int(self.words[old_start % self.capacity]))
        return change

    def _first_ends(self, rule: StartRule, num_added: int) -> tuple[int, int]:
        """The first id whose word may decide for a held start, now and when `num_added` more frames are there."""
        reach = rule.reach * self.batch_size
        return self.tail + reach, max(self.floor, self.published + num_added - self.capacity) + reach
