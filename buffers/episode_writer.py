"""How frames become episodes: marked, made room for, written."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .episode_kinds import COMPLETED, FINAL, FINISHED, FLAG_BITS, is_finished, lengths_of
from .episode_marks import FrameMarker, FrameMarks
from .episode_pages import MAX_EPISODE_FRAMES, STEP_BITS, frame_id
from .episode_table import EpisodeTable, flags_of
from .nests import Array
from .priorities import check_priorities

_NO_EPISODE = -1

_logger = logging.getLogger(__name__)


class _Plan(NamedTuple):
    """What adding `T` frames to each of `B` streams, or of some `B` of them, comes to.

    Attributes:
      starts: bool `[B, T]`, the frame begins an episode.
      episodes: the id of each frame's episode, int64 `[B, T]`.
      steps: each frame's number within it, int64 `[B, T]`.
      continued: ids of the episodes that go on at the first step.
      oldest: the oldest episode held afterwards.
    """

    starts: Array
    episodes: Array
    steps: Array
    continued: Array
    oldest: int


class EpisodeWriter:
    """Writes frames of `batch_size` streams, or of episodes by their ids; any number of threads may call it.

    Everything that can be wrong is found before anything is written or evicted.

    Args:
      marker: tells where episodes begin and end.
      table: the episodes.
      batch_size: `B`.
      max_frames: frames held at most; None: as many as there are pages for.
      lock: held while episodes change.
    """

    def __init__(
        self, marker: FrameMarker, table: EpisodeTable, batch_size: int, max_frames: int | None, lock: threading.Lock
    ) -> None:
        self._marker = marker
        self._table = table
        self._batch_size = batch_size
        self._max_frames = max_frames
        self._lock = lock
        self._closed = False
        # For each stream the episode that its next frame continues.
        self._open = np.full(batch_size, _NO_EPISODE, np.int64)
        self.num_lost = 0

    def close(self) -> None:
        """Refuses further writes."""
        self._closed = True

    def end_stream(self, b: int | None) -> None:
        """Stream `b`'s episode (None: every stream's) gets no more frames; the lock is held."""
        chosen = self._open[slice(None) if b is None else slice(b, b + 1)]
        self._table.finish(chosen[chosen >= self._table.oldest])
        chosen[:] = _NO_EPISODE

    @property
    def open_episodes(self) -> Array:
        """For each stream the episode that its next frame continues while it is held, or -1, int64 `[B]`; a copy."""
        return self._open.copy()

    def restore(self, open_episodes: Array, num_lost: int) -> None:
        """Goes on where a writer stood that was saved; the lock is held."""
        self._open[:] = open_episodes
        self.num_lost = num_lost

    def clear(self) -> None:
        """Every stream's next frame begins an episode; the lock is held."""
        self._open[:] = _NO_EPISODE
        self.num_lost = 0

    # Streams

    def add_step(
        self, leaves: list[Array], end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """One frame a stream, leaves `[B, ...]`; returns ids int64 `[B]`.

        With `streams`, int64 `[n]` in ascending order, of these only: `n` stands for `B` everywhere.
        """
        marks = self._marker.marks(leaves, end_of_episode, streams)
        num_streams = self._batch_size if streams is None else len(streams)
        if priorities is not None:
            check_priorities(priorities, None, (num_streams,))
        with self._lock:
            self._check_open()
            if num_streams == 1:
                return self._add_frame(leaves, marks, 0 if streams is None else int(streams[0]))
            ids = self._add_quiet_step(leaves, marks, streams)
            if ids is not None:
                return ids
            grown = [leaf[:, None] for leaf in leaves]
            grown_marks = FrameMarks(*(None if mark is None else mark[:, None] for mark in marks))
            return self._add(grown, grown_marks, streams)[:, 0]

    def add_steps(
        self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """`T` frames a stream, leaves `[B, T, ...]`; returns ids int64 `[B, T]`; `streams` as in `add_step`."""
        num_streams = self._batch_size if streams is None else len(streams)
        if priorities is not None:
            check_priorities(priorities, None, (num_streams, num_steps))
        if num_steps == 0:
            return np.zeros((num_streams, 0), np.int64)
        marks = self._marker.marks(leaves, end_of_episode, streams)
        with self._lock:
            self._check_open()
            return self._add(leaves, marks, streams)

    def _add_frame(self, leaves: list[Array], marks: FrameMarks, b: int) -> Array:
        """`_add` for one frame of stream `b` alone, in plain ints."""
        table = self._table
        begins, completes, ends, final = [mark is not None and bool(mark[0]) for mark in marks]
        episode = int(self._open[b])
        if episode < table.oldest or is_finished(int(table.states[table.slot(episode)])):
            episode = _NO_EPISODE
        length = table.length(episode) if episode >= 0 and not begins else 0
        self._check_episode_fits(length + 1)
        oldest = table.oldest
        if self._max_frames is None:
            self._check_pages(int(length % table.pages.page_rows == 0), int(length == 0))
        elif table.num_frames >= self._max_frames:
            if self._batch_size > 1:
                self._check_open_fit(length + 1, np.array([b]))
            held = table.num_frames
            while held >= self._max_frames:
                held -= table.length(oldest)
                oldest += 1
            if episode < oldest:
                length = 0  # it is among those that have to go: the frame begins another
        if length == 0:
            oldest = max(oldest, table.next_id + 1 - table.capacity)
        if begins and episode >= 0:
            table.finish(np.array([episode]))
            self._open[b] = _NO_EPISODE
        evicts = oldest > table.oldest
        if evicts:
            table.evict_until(oldest)
        if length == 0 or (evicts and self._batch_size > 1):
            self._tell_lost()
        if length == 0:
            episode = int(table.begin(1)[0])
        self._open[b] = _NO_EPISODE  # for the case that the write is interrupted
        identity = table.write_frame(episode, leaves, completes * COMPLETED | ends * FINISHED | final * FINAL)
        if not ends:
            self._open[b] = episode
        return np.array([identity])

    def _add_quiet_step(self, leaves: list[Array], marks: FrameMarks, streams: Array | None) -> Array | None:
        """`_add` for a step in which no episode begins or leaves, which most are; None where one does."""
        table = self._table
        if self._max_frames is not None and table.num_frames + len(leaves[0]) > self._max_frames:
            return None
        episodes = self._continued(streams)
        if int(episodes.min()) < 0 or (marks.begins is not None and marks.begins.any()):
            return None
        nums = np.ones_like(episodes)
        lengths = lengths_of(table.states_of(episodes))
        if int(lengths.max()) + 1 >= MAX_EPISODE_FRAMES:
            return None
        if self._max_frames is None:
            self._check_pages(table.pages_needed(lengths, nums), 0)
        completed, ended, final = [np.zeros(len(episodes), bool) if mark is None else mark for mark in marks[1:]]
        ids = ((episodes + 1) << STEP_BITS) + lengths
        chosen = slice(None) if streams is None else streams
        self._open[chosen] = _NO_EPISODE  # for the case that the write is interrupted
        table.write(ids, leaves, episodes, nums, flags_of(completed, ended, final))
        self._open[chosen] = np.where(ended, _NO_EPISODE, episodes)
        return ids

    def _add(self, leaves: Sequence[Array], marks: FrameMarks, streams: Array | None) -> Array:
        """Frames of all streams, or of these, leaves `[B, T, ...]`; the lock is held."""
        num_streams, num_steps = leaves[0].shape[:2]
        plan = self._plan(marks, num_steps, streams)
        if self._max_frames is not None:
            self._check_open_fit(int(plan.steps.sum(axis=0).max()) + num_streams, streams)
        if int(plan.steps.max()) >= MAX_EPISODE_FRAMES:
            self._check_episode_fits(int(plan.steps.max()) + 1)
        touched = min(plan.continued.min(initial=self._table.next_id), self._table.next_id)
        if plan.oldest > touched and num_steps > 1:
            # An episode would go that these frames go on with: as in single steps, it matters when it goes.
            middle = num_steps // 2
            halves = [
                self._add([leaf[:, part] for leaf in leaves], _part(marks, part), streams)
                for part in (slice(None, middle), slice(middle, None))
            ]
            return np.concatenate(halves, axis=1)
        while plan.oldest > touched:
            plan = self._plan(marks, num_steps, streams, oldest=plan.oldest)
            touched = min(plan.continued.min(initial=self._table.next_id), self._table.next_id)
        return self._write(plan, leaves, marks, streams)

    def _plan(self, marks: FrameMarks, num_steps: int, streams: Array | None, oldest: int = 0) -> _Plan:
        """What the frames come to when the episodes before `oldest` are gone."""
        table = self._table
        time = np.arange(num_steps)
        continued = self._continued(streams)
        continued[continued < oldest] = _NO_EPISODE
        starts = np.zeros((len(continued), num_steps), bool)
        if marks.begins is not None:
            starts |= marks.begins
        if marks.ends is not None:
            starts[:, 1:] |= marks.ends[:, :-1]
        starts[:, 0] |= continued < 0
        goes_on = ~starts[:, 0]
        lengths = np.zeros(len(continued), np.int64)
        lengths[goes_on] = lengths_of(table.states_of(continued[goes_on]))
        first_steps = np.maximum.accumulate(np.where(starts, time, -lengths[:, None]), axis=1)
        # Ids in the order of time, then of streams, as single steps give them.
        steps, rows = np.nonzero(starts.T)
        episodes = np.full(starts.shape, _NO_EPISODE)
        episodes[:, 0] = continued
        episodes[rows, steps] = table.next_id + np.arange(len(steps))
        episodes = np.maximum.accumulate(episodes, axis=1)
        oldest = self._oldest_after(episodes, len(steps))
        return _Plan(starts, episodes, time - first_steps, continued[goes_on], oldest)

    def _oldest_after(self, episodes: Array, num_new: int) -> int:
        """The oldest episode held once these frames, of episodes `[B, T]`, are added."""
        table = self._table
        oldest = max(table.oldest, table.next_id + num_new - table.capacity)
        if self._max_frames is None:
            return oldest
        held = table.num_frames + episodes.size
        if held <= self._max_frames:
            return oldest
        for episode in range(table.oldest, table.next_id):
            if episode >= oldest and held <= self._max_frames:
                return episode
            held -= table.length(episode) + int(np.count_nonzero(episodes == episode))
        return max(oldest, table.next_id) if held <= self._max_frames else table.next_id + 1

    def _write(self, plan: _Plan, leaves: Sequence[Array], marks: FrameMarks, streams: Array | None) -> Array:
        table, (num_streams, num_steps) = self._table, plan.starts.shape
        # Runs of frames of one episode, stream after stream: where they start and end in the flattened frames.
        is_first = plan.starts.copy()
        is_first[:, 0] = True
        firsts = np.flatnonzero(is_first)
        stops = np.append(firsts[1:], plan.starts.size)
        episodes, first_steps = plan.episodes.reshape(-1)[firsts], plan.steps.reshape(-1)[firsts]
        nums = stops - firsts
        no_marks = np.zeros(plan.starts.shape, bool)
        completed, ended, final = [no_marks if mark is None else mark for mark in marks[1:]]
        ended = ended.reshape(-1)[stops - 1]
        superseded = ~ended & (stops % num_steps != 0)
        flags = flags_of(
            np.logical_or.reduceat(completed.reshape(-1), firsts) | superseded,
            ended | superseded,
            final.reshape(-1)[stops - 1],
        )
        num_new = int(np.count_nonzero(plan.starts))
        if self._max_frames is None:
            self._check_pages(table.pages_needed(first_steps, nums), num_new)
        chosen = slice(None) if streams is None else streams
        if marks.begins is not None and marks.begins[:, 0].any():
            # They go no further, though nothing said that they ended.
            begun = np.flatnonzero(marks.begins[:, 0])
            begun = begun if streams is None else streams[begun]
            left = self._continued(begun)
            table.finish(left[left >= 0])
            self._open[begun] = _NO_EPISODE
        table.evict_until(plan.oldest)
        self._tell_lost()
        table.begin(num_new)
        open_after = np.where(ended[stops % num_steps == 0], _NO_EPISODE, plan.episodes[:, -1])
        self._open[chosen] = _NO_EPISODE  # for the case that the write is interrupted
        ids = ((plan.episodes + 1) << STEP_BITS) + plan.steps
        flat = [leaf.reshape(num_streams * num_steps, *leaf.shape[2:]) for leaf in leaves]
        table.write(ids.reshape(-1), flat, episodes, nums, flags)
        self._open[chosen] = open_after
        return ids

    def _continued(self, streams: Array | None = None) -> Array:
        """For each stream, or these, the episode that its next frame continues, or -1; int64 `[B]`."""
        table = self._table
        opened = self._open if streams is None else self._open[streams]
        held = np.where(opened >= table.oldest, opened, _NO_EPISODE)
        # One that was ended by its id is continued by no stream.
        held[table.states_of(held) & FINISHED != 0] = _NO_EPISODE
        return held

    def _tell_lost(self) -> None:
        lost = (self._open != _NO_EPISODE) & (self._open < self._table.oldest)
        for b in np.flatnonzero(lost).tolist():
            self.num_lost += 1
            _logger.warning(
                "episode %d of stream %d was the oldest and went before it ended; its next frame begins a new one.",
                self._open[b],
                b,
            )
        self._open[lost] = _NO_EPISODE

    # By id

    def add_by_id(self, leaves: list[Array], episode_ids: Array) -> Array:
        """One frame for each of these episodes, leaves `[n, ...]`; returns the ids of those they went to, `[n]`.

        Ids below 0 begin episodes. Frames of episodes that are gone are dropped, as in TF-Agents, and logged.

        Raises:
          ValueError: an id was never given out, or stands twice.
        """
        marks = self._marker.marks(leaves)
        table = self._table
        with self._lock:
            self._check_open()
            self._check_ids(episode_ids)
            held = np.array([table.holds(episode) for episode in episode_ids.tolist()], bool)
            states = np.zeros(len(episode_ids), np.int64)
            states[held] = table.states_of(episode_ids[held])
            starts = (episode_ids < 0) | (states & FINISHED).astype(bool)
            if marks.begins is not None:
                starts |= marks.begins
            lengths = np.where(starts, 0, lengths_of(states))
            self._check_room(lengths, np.ones_like(lengths), int(np.count_nonzero(starts)))
            result = episode_ids.copy()
            result[starts] = table.begin(int(np.count_nonzero(starts)))
            kept = self._make_room(result, np.ones_like(lengths))
            no_marks = np.zeros(len(result), bool)
            completed, ended, final = [no_marks if mark is None else mark for mark in marks[1:]]
            flags = flags_of(completed, ended, final)
            lengths = lengths_of(table.states_of(result[kept]))
            ids = ((result[kept] + 1) << STEP_BITS) + lengths
            if len(ids):
                table.write(ids, [leaf[kept] for leaf in leaves], result[kept], np.ones_like(ids), flags[kept])
            return result

    def add_run_by_id(self, leaves: list[Array], episode_id: int, *, whole: bool = False) -> int:
        """`T` frames for one episode, leaves `[T, ...]`; returns the id of the one that the last went to.

        With `whole` they are all of it, whether or not they say where it ends.

        Raises:
          ValueError: the id was never given out; or a whole episode begins or ends inside.
        """
        num_steps = len(leaves[0])
        if num_steps == 0:
            return episode_id
        marks = self._marker.marks(leaves, one_episode=True)
        starts = np.zeros(num_steps, bool)
        if marks.begins is not None:
            starts |= marks.begins
        if marks.ends is not None:
            starts[1:] |= marks.ends[:-1]
        if whole and starts[1:].any():
            at = int(np.flatnonzero(starts[1:])[0])
            raise ValueError(f"the episode of {num_steps} frames ends at its frame {at}; cut it there.")
        with self._lock:
            self._check_open()
            self._check_ids(np.array([episode_id]))
            inner = np.flatnonzero(starts[1:]) + 1
            for first, stop in zip([0, *inner], [*inner, num_steps], strict=True):
                part = slice(first, stop)
                episode_id = self._add_run(
                    [leaf[part] for leaf in leaves], episode_id, bool(starts[first]), _part(marks, part), whole=whole
                )
            return episode_id

    def _add_run(self, leaves: list[Array], episode: int, begins: bool, marks: FrameMarks, *, whole: bool) -> int:
        table, num = self._table, len(leaves[0])
        state = int(table.states[table.slot(episode)]) if table.holds(episode) else 0
        starts = episode < 0 or begins or is_finished(state)
        length = 0 if starts else state >> FLAG_BITS
        self._check_room(np.array([length]), np.array([num]), int(starts))
        if starts:
            episode = int(table.begin(1)[0])
        kept = self._make_room(np.array([episode]), np.array([num]))
        if not kept[0]:
            return episode
        completed, ended, final = [np.zeros(1, bool) if mark is None else mark for mark in marks[1:]]
        flags = flags_of(completed.any(keepdims=True) | whole, ended[-1:] | whole, final[-1:])
        length = table.length(episode)
        table.write(frame_id(episode, length) + np.arange(num), leaves, np.array([episode]), np.array([num]), flags)
        return episode

    def extend_by_id(self, runs: list[list[Array]], episode_ids: Array, begins: Array, completed: Array) -> Array:
        """Runs of frames, leaves `[T, ...]`, one for each of these episodes; returns the ids they went to, `[n]`."""
        table = self._table
        nums = np.array([len(leaves[0]) for leaves in runs], np.int64)
        with self._lock:
            self._check_open()
            self._check_ids(episode_ids)
            held = (episode_ids >= table.oldest) & (episode_ids < table.next_id)
            states = np.where(held, table.states_of(episode_ids), 0)
            starts = begins | (episode_ids < 0) | (states & FINISHED != 0)
            self._check_room(np.where(starts, 0, lengths_of(states)), nums, int(np.count_nonzero(starts)))
            result = episode_ids.copy()
            result[starts] = table.begin(int(np.count_nonzero(starts)))
            kept = self._make_room(result, nums)
            for leaves, episode, num, is_kept, is_complete in zip(runs, result, nums, kept, completed, strict=True):
                if not is_kept:
                    continue
                if num:
                    ids = frame_id(int(episode), table.length(int(episode))) + np.arange(num)
                    table.write(ids, leaves, episode[None], num[None], np.zeros(1, np.int64))
                if is_complete:
                    table.set_flags(episode[None], COMPLETED)
            return result

    def _make_room(self, episodes: Array, nums: Array) -> Array:
        """Evicts until there is room for these frames; which of the episodes are still held, bool."""
        table = self._table
        kept = (episodes >= table.oldest) & (episodes < table.next_id)
        if self._max_frames is not None:
            while table.num_frames + int(nums[kept].sum()) > self._max_frames:
                table.evict_oldest()
                kept = episodes >= table.oldest
        if not kept.all():
            gone = episodes[~kept].tolist()
            _logger.warning("episodes %s are gone: %d frames dropped.", gone, int(nums[~kept].sum()))
        return kept

    # Checks

    def _check_ids(self, episode_ids: Array) -> None:
        given = episode_ids[episode_ids >= 0]
        if len(given) and given.max() >= self._table.next_id:
            raise ValueError(f"episode id {given.max()} was never given out: the next one is {self._table.next_id}.")
        if len(np.unique(given)) < len(given):
            raise ValueError(f"episode ids {episode_ids.tolist()}: one stands twice; add its frames one after another.")

    def _check_open_fit(self, num_frames: int, streams: Array | None) -> None:
        """Refuses so many frames in open episodes of all streams, or of these beside the others'."""
        if self._max_frames is None:
            return
        num_open = self._batch_size
        if streams is not None:
            others = self._continued()
            others[streams] = _NO_EPISODE
            others = others[others >= 0]
            num_open = len(streams) + len(others)
            num_frames += int(lengths_of(self._table.states_of(others)).sum())
        if num_frames > self._max_frames:
            raise ValueError(
                f"{num_open} open episodes would hold {num_frames} frames, max_frames is {self._max_frames}; "
                "raise max_frames, or end episodes earlier. Nothing was added."
            )

    def _check_room(self, lengths: Array, nums: Array, num_new: int) -> None:
        table = self._table
        if num_new > table.capacity:
            raise ValueError(f"{num_new} new episodes are more than the capacity of {table.capacity}; raise capacity.")
        self._check_episode_fits(int((lengths + nums).max(initial=0)))
        if self._max_frames is None:
            self._check_pages(table.pages_needed(lengths, nums), num_new)
        elif int(nums.sum()) > self._max_frames:
            raise ValueError(f"{int(nums.sum())} frames at once are more than max_frames {self._max_frames}.")

    def _check_episode_fits(self, length: int) -> None:
        most = min(MAX_EPISODE_FRAMES, self._max_frames or MAX_EPISODE_FRAMES)
        if length > most:
            name = "max_frames is" if most == self._max_frames else "the limit of an episode is"
            raise ValueError(
                f"an open episode would hold {length} frames, {name} {most}; end episodes earlier, or raise "
                "max_frames. Nothing was added."
            )

    def _check_pages(self, needed: int, num_new: int) -> None:
        """Refuses what does not fit into memory even when the oldest episodes have made place for the new ones."""
        table = self._table
        available = table.pages.num_available
        if needed <= available:
            return
        for episode in range(table.oldest, min(table.next_id, table.next_id + num_new - table.capacity)):
            available += table.pages.pages_for(table.length(episode))
        if needed > available:
            raise ValueError(
                f"the memory that was reserved is full: {table.num_frames} frames in {table.next_id - table.oldest} "
                f"of at most {table.capacity} episodes. Give max_frames, so that the oldest episodes make place, or "
                "lower capacity."
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this buffer is closed; build a new one.")


def _part(marks: FrameMarks, steps: slice) -> FrameMarks:
    """The marks of some steps: of the last axis."""
    return FrameMarks(*(None if mark is None else mark[..., steps] for mark in marks))
