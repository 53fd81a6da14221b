"""Which episodes are held, how long they are, and how many samples of each kind they hold.

Episodes have the ids 0, 1, 2, ... in the order in which they began. Those held are the ids from `oldest` to
`next_id`; episode `e` has slot `(e + 1) % capacity`. They go oldest first, whole. An episode may hold no frame yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .episode_kinds import COMPLETED, FINAL, FINISHED, FLAG_BITS, Kind, lengths_of, state_of
from .episode_pages import STEP_BITS, EpisodePages, frame_id
from .episode_usage import EpisodeUsage
from .memory import SharedMemory, allocate
from .nests import Array
from .storage import FrameStorage

OLDEST, NEXT, FRAMES = 0, 1, 2

# Slots: state, base and number of pages of each.
SLOT_BYTES = 24


class KindCount:
    """The sum of a kind's weights over all episodes held, kept current by the writer."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._memory = SharedMemory((1,), np.int64)

    @property
    def value(self) -> int:
        """The sum as of now."""
        return int(self._memory.array[0])

    @value.setter
    def value(self, value: int) -> None:
        self._memory.array[0] = value

    def in_graph(self) -> tf.Tensor:
        """`value` in a graph, int64 `[]`."""
        return tf.gather(self._memory.in_graph(), 0)


class EpisodeTable:
    """The episodes held; the caller serialises everything that writes.

    Args:
      capacity: episodes held at most.
      pages: where their frames lie.
      storage: the frames themselves.
      usage: told what is evicted.
    """

    def __init__(self, capacity: int, pages: EpisodePages, storage: FrameStorage, usage: EpisodeUsage) -> None:
        self.capacity = capacity
        self.pages = pages
        self.storage = storage
        self._usage = usage
        self._shared_states = SharedMemory((capacity,), np.int64)
        self.states = self._shared_states.array
        self._shared_bases = SharedMemory((capacity,), np.int64)
        self.bases = self._shared_bases.array
        self._nums_pages = allocate((capacity,), np.int64)
        self._shared_cursors = SharedMemory((3,), np.int64)
        self._cursors = self._shared_cursors.array
        self._counts: dict[Kind, KindCount] = {}
        self._metadata: dict[int, Mapping[str, Any]] = {}
        # Python's own copies of the cursors: reading them costs less.
        self.oldest = 0
        self.next_id = 0
        self.num_frames = 0
        # Frames ever added, and episodes that left unfinished, since the last `clear`.
        self.num_added = 0
        self.num_evicted = 0

    # What is held

    def slot(self, episode: Any) -> Any:
        """Slot of these episodes."""
        return (episode + 1) % self.capacity

    def holds(self, episode: int) -> bool:
        """Whether this episode is held."""
        return self.oldest <= episode < self.next_id

    def ids(self) -> Array:
        """Ids of the episodes held, oldest first."""
        return np.arange(self.oldest, self.next_id)

    def states_of(self, episodes: Array) -> Array:
        """States of these episodes, which are held; a copy."""
        return self.states[self.slot(episodes)]

    def length(self, episode: int) -> int:
        """Frames of an episode that is held."""
        return int(self.states[(episode + 1) % self.capacity]) >> FLAG_BITS

    def rows_of(self, episode: int) -> Array:
        """Rows of an episode's frames, oldest first."""
        slot = (episode + 1) % self.capacity
        length = int(self.states[slot]) >> FLAG_BITS
        if not length:
            return np.zeros(0, np.int64)
        return self.pages.rows(self.bases[slot : slot + 1], frame_id(episode) + np.arange(length)[None])[0]

    def frames(self) -> tuple[Array, Array]:
        """Ids of all frames held, int64 `[n]` in ascending order, and the rows they lie in, `[n]`."""
        episodes = self.ids()
        ids = frame_ids(episodes, lengths_of(self.states_of(episodes)))
        return ids, self.pages.rows(self.bases[(ids >> STEP_BITS) % self.capacity], ids[:, None])[:, 0]

    def places(self) -> Array:
        """Of each page of the episodes held, the oldest first, where it stands among those that draws pick from."""
        slots = self.slot(self.ids())
        nums_pages = self.pages.pages_for(lengths_of(self.states[slots]))
        index = np.repeat(np.arange(len(slots)), nums_pages)
        within = np.arange(len(index)) - np.repeat(np.cumsum(nums_pages) - nums_pages, nums_pages)
        ids = ((self.oldest + index + 1) << STEP_BITS) + within * self.pages.page_rows
        return self.pages.places_of(self.pages.rows(self.bases[slots[index]], ids[:, None])[:, 0])

    def all_metadata(self) -> dict[int, Mapping[str, Any]]:
        """What `set_metadata` was given, by episode."""
        return dict(self._metadata)

    def count(self, kind: Kind) -> KindCount:
        """The running count of a kind; the first call for a kind adds it up."""
        count = self._counts.get(kind)
        if count is None:
            count = KindCount(kind)
            count.value = int(kind.weights(self.states_of(self.ids())).sum())
            self._counts[kind] = count
        return count

    def metadata(self, episode: int) -> Mapping[str, Any]:
        """What `set_metadata` was given for an episode."""
        return self._metadata.get(episode, {})

    def set_metadata(self, episode: int, metadata: Mapping[str, Any]) -> None:
        """Keeps something beside an episode that is held, for as long as it is."""
        self._metadata[episode] = metadata

    # Writing

    def begin(self, num: int) -> Array:
        """Ids of `num` new episodes, without frames; the oldest leave when there are too many."""
        first = self.next_id
        self.evict_until(first + num - self.capacity)
        self.states[self.slot(np.arange(first, first + num))] = 0
        self.next_id = first + num
        self._cursors[NEXT] = self.next_id
        return np.arange(first, first + num)

    def evict_until(self, oldest: int) -> None:
        """Evicts the episodes before `oldest`."""
        while self.oldest < min(oldest, self.next_id):
            self.evict_oldest()

    def evict_oldest(self) -> None:
        """Evicts the oldest episode, whole."""
        episode, slot = self.oldest, (self.oldest + 1) % self.capacity
        self.oldest += 1
        self._cursors[OLDEST] = self.oldest
        self.num_evicted += self.drop_frames(episode)
        self.states[slot] = 0
        self._metadata.pop(episode, None)

    def drop_frames(self, episode: int, *, evicted: bool = True) -> int:
        """An episode that is held loses its frames and becomes one without any; returns how many they were.

        With `evicted` those that were never sampled count as such.
        """
        slot = (episode + 1) % self.capacity
        state = int(self.states[slot])
        length = state >> FLAG_BITS
        if not state:
            return 0
        for count in self._counts.values():
            count.value -= count.kind.weight(state)
        if length:
            if evicted:
                self._usage.count_evicted(self.rows_of(episode), slot)
            else:
                self._usage.forget(self.rows_of(episode), slot)
            self.pages.release(int(self.bases[slot]), int(self._nums_pages[slot]), frame_id(episode))
        self._nums_pages[slot] = 0
        self.states[slot] = 0
        self._set_num_frames(self.num_frames - length)
        return length

    def take_out(self, episode: int) -> None:
        """An episode that is held loses its frames, and gets no others: their ids are taken."""
        self.num_evicted += self.drop_frames(episode)
        self.states[(episode + 1) % self.capacity] = FINISHED

    def write_frame(self, episode: int, leaves: Sequence[Array], flags: int) -> int:
        """Appends one frame, leaves `[1, ...]`, and sets flags; returns its id."""
        slot, pages = (episode + 1) % self.capacity, self.pages
        old = int(self.states[slot])
        step = old >> FLAG_BITS
        identity = frame_id(episode, step)
        added = None
        if step & (pages.page_rows - 1) == 0:
            added = self._extend(episode, step, step + 1)
        try:
            row = pages.row(int(self.bases[slot]), identity)
            self.storage.write(slice(row, row + 1), leaves)
        except BaseException:
            if added is not None:
                self._take_back(np.array([slot]), added)
            raise
        pages.tags[row] = identity
        new = old + (1 << FLAG_BITS) | flags
        for count in self._counts.values():
            count.value += count.kind.weight(new) - count.kind.weight(old)
        self.states[slot] = new
        if added is not None:
            pages.show(added)
        self.num_added += 1
        self._set_num_frames(self.num_frames + 1)
        return identity

    def write(self, ids: Array, leaves: Sequence[Array], episodes: Array, nums: Array, flags: Array) -> None:
        """Appends frames to episodes that are held, and sets flags.

        Args:
          ids: of the frames, int64 `[m]`, in the order of the leaves; each episode's own continue it.
          leaves: `[m, ...]`.
          episodes: those that get frames, each once, int64 `[n]`.
          nums: how many frames each gets, int64 `[n]`.
          flags: to be set in each, int64 `[n]`.
        """
        slots = self.slot(episodes)
        old = self.states[slots]
        lengths = lengths_of(old)
        added: list[tuple[Array, Array]] = []
        try:
            self._extend_all(episodes, lengths, nums, added)
            rows = self.pages.rows(self.bases[(ids >> STEP_BITS) % self.capacity], ids[:, None])[:, 0]
            self.storage.write(rows, leaves)
        except BaseException:
            for slots_extended, fresh in added:
                self._take_back(slots_extended, fresh)
            raise
        self.pages.tags[rows] = ids
        self._set_states(slots, old, state_of(lengths + nums, (old & 7) | flags))
        if added:
            self.pages.show(np.concatenate([fresh for _, fresh in added]))
        self.num_added += len(ids)
        self._set_num_frames(self.num_frames + len(ids))

    def set_flags(self, episodes: Array, flags: int) -> None:
        """Sets flags of episodes that are held, int64 `[n]`, each once."""
        slots = self.slot(episodes)
        old = self.states[slots]
        self._set_states(slots, old, old | flags)

    def finish(self, episodes: Array) -> None:
        """No frame is to come for these episodes, which are held."""
        self.set_flags(episodes, COMPLETED | FINISHED)

    def rebuild(self, oldest: int, states: Array, places: Array, metadata: Mapping[int, Mapping[str, Any]]) -> None:
        """Becomes a table that was saved; nothing may be held, and the frames lie in their rows already.

        Those are the rows of `rows_of_pages`. Counters of what was added and evicted are the caller's to set.

        Args:
          oldest: the oldest episode.
          states: of it and those after it, int64 `[n]`.
          places: what `places` told of them.
          metadata: what is kept beside them.
        """
        episodes = np.arange(oldest, oldest + len(states))
        slots, lengths = self.slot(episodes), lengths_of(states)
        self.oldest, self.next_id = oldest, oldest + len(states)
        filled = lengths > 0
        nums_pages = self.pages.pages_for(lengths)
        self._nums_pages[slots] = nums_pages
        first_ids = (episodes[filled] + 1) << STEP_BITS
        self.bases[slots[filled]] = self.pages.rebuild(first_ids, nums_pages[filled], places)
        ids = frame_ids(episodes, lengths)
        self.pages.tags[rows_of_pages(lengths, self.pages.page_rows)] = ids
        self.states[slots] = states
        self._metadata.update(metadata)
        self._cursors[OLDEST], self._cursors[NEXT] = self.oldest, self.next_id
        self._set_num_frames(len(ids))
        for count in self._counts.values():
            count.value = int(count.kind.weights(states).sum())

    def forget_from(self, episode: int) -> int:
        """Takes back this episode and all that began after it, ids included; returns how many frames they had."""
        num = 0
        for later in range(max(episode, self.oldest), self.next_id):
            num += self.drop_frames(later, evicted=False)
            self.states[self.slot(later)] = 0
            self._metadata.pop(later, None)
        self.next_id = min(self.next_id, episode)
        self.oldest = min(self.oldest, self.next_id)
        self._cursors[OLDEST], self._cursors[NEXT] = self.oldest, self.next_id
        self.num_added -= num
        return num

    def cut(self, episode: int, state: int) -> int:
        """Takes back the newest frames of an episode that is held, so that it gets this state; returns how many."""
        slot, length = self.slot(episode), state >> FLAG_BITS
        old = int(self.states[slot])
        num = (old >> FLAG_BITS) - length
        if num and not length:
            self.drop_frames(episode, evicted=False)
        elif num:
            rows = self.rows_of(episode)[length:]
            self._usage.forget(rows)
            self.pages.tags[rows] = 0
            needed = int(self.pages.pages_for(length))
            if needed < self._nums_pages[slot]:
                self.pages.shorten(int(self.bases[slot]), int(self._nums_pages[slot]), needed, frame_id(episode))
                self._nums_pages[slot] = needed
            self._set_num_frames(self.num_frames - num)
        self.num_added -= num
        self._set_states(np.array([slot]), self.states[[slot]], np.array([state]))
        return num

    def clear(self) -> None:
        """Holds nothing; ids go on, so that one from before never means something from after."""
        self.oldest = self.next_id
        self._cursors[OLDEST] = self.oldest
        for count in self._counts.values():
            count.value = 0
        self._usage.clear(self.pages.num_rows_touched)
        self.pages.clear()
        self.states[:] = 0
        self._nums_pages[:] = 0
        self._metadata.clear()
        self._set_num_frames(0)
        self.num_added = self.num_evicted = 0

    def pages_needed(self, lengths: Array, nums: Array) -> int:
        """Pages that episodes of these lengths take when so many frames are added to each."""
        return int((self.pages.pages_for(lengths + nums) - self.pages.pages_for(lengths)).sum())

    def _set_states(self, slots: Array, old: Array, new: Array) -> None:
        for count in self._counts.values():
            count.value += int(count.kind.weights(new).sum() - count.kind.weights(old).sum())
        self.states[slots] = new

    def _extend(self, episode: int, length: int, new_length: int) -> Array:
        """Pages for an episode that needs more of them."""
        pages, slot, first_id = self.pages, self.slot(episode), frame_id(episode)
        have, needed = int(pages.pages_for(length)), int(pages.pages_for(new_length))
        added = pages.take(needed - have)
        try:
            base = pages.extend(int(self.bases[slot]), have, added, first_id)
        except MemoryError:
            self._compact()
            base = pages.extend(int(self.bases[slot]), have, added, first_id)
        self.bases[slot] = base
        self._nums_pages[slot] = needed
        return added

    def _extend_all(self, episodes: Array, lengths: Array, nums: Array, added: list[tuple[Array, Array]]) -> None:
        """Pages for those episodes that need more; appends (slots, pages) to `added` as they get them."""
        pages = self.pages
        have, needed = pages.pages_for(lengths), pages.pages_for(lengths + nums)
        # One more in a list that has room, not full at a power of two: many at once.
        simple = (needed == have + 1) & (have & (have - 1) != 0)
        if simple.any():
            slots, have_simple = self.slot(episodes[simple]), have[simple]
            fresh = pages.take(len(slots))
            pages.append_each(self.bases[slots], have_simple, fresh, (episodes[simple] + 1) << STEP_BITS)
            self._nums_pages[slots] = have_simple + 1
            added.append((slots, fresh))
        other = (needed > have) & ~simple
        if other.any():
            grown = zip(episodes[other].tolist(), lengths[other].tolist(), nums[other].tolist(), strict=True)
            for episode, length, num in grown:
                added.append((np.array([self.slot(episode)]), self._extend(episode, length, length + num)))

    def _take_back(self, slots: Array, added: Array) -> None:
        """Undoes `_extend` or `_extend_all`: as many pages of each slot. Lists keep their room."""
        each = len(added) // len(slots)
        for slot, pages in zip(slots.tolist(), added.reshape(-1, each), strict=True):
            num_pages = int(self._nums_pages[slot])
            self.pages.give_back(int(self.bases[slot]), num_pages, pages)
            self._nums_pages[slot] = num_pages - each

    def _compact(self) -> None:
        slots = np.flatnonzero(self._nums_pages)
        self.bases[slots] = self.pages.compact(self.bases[slots], self._nums_pages[slots])

    def _set_num_frames(self, num: int) -> None:
        self.num_frames = num
        self._cursors[FRAMES] = num

    # Graph

    def cursors_in_graph(self) -> tf.Tensor:
        """`oldest`, `next_id` and `num_frames`, int64 `[3]`, gathered."""
        return tf.gather(self._shared_cursors.in_graph(), [OLDEST, NEXT, FRAMES])

    def states_in_graph(self, slots: tf.Tensor) -> tf.Tensor:
        """States in these slots."""
        return tf.gather(self._shared_states.in_graph(), slots)

    def bases_in_graph(self, slots: tf.Tensor) -> tf.Tensor:
        """Bases of the lists of pages in these slots."""
        return tf.gather(self._shared_bases.in_graph(), slots)


def flags_of(completed: Array, finished: Array, final: Array) -> Array:
    """Flags as a state has them, int64, the arguments' common shape."""
    return completed * COMPLETED | finished * FINISHED | final * FINAL


def frame_ids(episodes: Array, lengths: Array) -> Array:
    """Ids of all frames of episodes of these lengths, int64, one episode after the other.

    >>> (frame_ids(np.array([0, 1]), np.array([2, 1])) >> STEP_BITS).tolist()
    [1, 1, 2]
    """
    ids = np.repeat(((episodes + 1) << STEP_BITS) - (np.cumsum(lengths) - lengths), lengths)
    ids += np.arange(len(ids))
    return ids


def rows_of_pages(lengths: Array, page_rows: int) -> Array:
    """Rows of all frames of episodes of these lengths, where their pages of so many rows lie one after the other.

    >>> rows_of_pages(np.array([3, 1]), 2).tolist()
    [0, 1, 2, 4]
    """
    whole = -(-lengths // page_rows) * page_rows
    rows = np.repeat(np.cumsum(whole) - whole - (np.cumsum(lengths) - lengths), lengths)
    rows += np.arange(len(rows))
    return rows
