"""An episodic buffer at one moment: what is saved of it, how it takes that over, and how it goes back to a moment.

Frames are told by their ids, (episode, step). Of the pages that they lie in only that is kept on which seeded draws
depend: the order in which draws find them. Rows are dealt out anew, the oldest episode first.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from .buffer_state import BufferState, HeldFrames, LiveFrames, RestorePlan
from .episode_ends import EpisodeRule
from .episode_kinds import FINISHED, FLAG_BITS, is_finished, lengths_of
from .episode_metadata import metadata_from_text, metadata_to_text
from .episode_pages import MAX_EPISODE_FRAMES, STEP_BITS
from .episode_reader import EpisodeReader
from .episode_table import EpisodeTable, frame_ids, rows_of_pages
from .episode_usage import EpisodeUsage
from .episode_writer import EpisodeWriter
from .fields import Field
from .memory import format_bytes
from .nests import Array
from .storage import FrameStorage

_NO_EPISODE = -1

# A moment tells the states of unfinished episodes; with more of them than this beside the streams' there is none.
MOST_UNFINISHED = 1000

# Episodes that can ever begin.
_MOST_EPISODES = 1 << (63 - STEP_BITS)

_COUNTERS = ("oldest", "next_id", "num_added", "num_evicted", "num_lost", "sampled", "skipped", "evicted_unsampled")

_logger = logging.getLogger(__name__)


class EpisodicState:
    """Takes the state of an episodic buffer, and sets it.

    Args:
      fields: of a frame.
      table: the episodes.
      storage: their frames.
      usage: what was drawn.
      writer: which episodes streams go on with.
      rule: what it knows of the frame added last.
      reader: how far its random numbers are.
      lock: held while episodes change.
      batch_size: `B`.
      max_frames: frames held at most; None: as many as there are pages for.
    """

    def __init__(
        self,
        fields: tuple[Field, ...],
        table: EpisodeTable,
        storage: FrameStorage,
        usage: EpisodeUsage,
        writer: EpisodeWriter,
        rule: EpisodeRule,
        reader: EpisodeReader,
        lock: threading.Lock,
        batch_size: int,
        max_frames: int | None,
    ) -> None:
        self._fields = fields
        self._table = table
        self._storage = storage
        self._usage = usage
        self._writer = writer
        self._rule = rule
        self._reader = reader
        self._lock = lock
        self._batch_size = batch_size
        self._max_frames = max_frames

    def capture(self, kind: str, settings: Mapping[str, Any]) -> BufferState:
        """The state at this moment.

        Args:
          kind: the name of the buffer's class.
          settings: that are saved with it.

        Raises:
          ValueError: metadata of an episode is of a kind that cannot be saved.
        """
        table, usage = self._table, self._usage
        with self._lock:
            reading, graph_seeds = self._reader.state()
            ids, rows = table.frames()
            episodes = table.ids()
            values = {
                "oldest": table.oldest,
                "next_id": table.next_id,
                "num_added": table.num_added,
                "num_evicted": table.num_evicted,
                "num_lost": self._writer.num_lost,
                "sampled": usage.sampled,
                "skipped": usage.skipped,
                "evicted_unsampled": usage.evicted_unsampled,
                "page_rows": table.pages.page_rows,
                "loose_flag": self._rule.loose_flag,
                "reading": reading,
            }
            arrays = {
                "states": table.states_of(episodes),
                "open": self._writer.open_episodes,
                "graph_seeds": graph_seeds,
                "page_places": _ranks(table.places()).astype(np.int32),
                "sampled_frames": np.packbits(usage.marked(rows)),
                "sampled_episodes": np.packbits(usage.marked(usage.num_rows + table.slot(episodes))),
            }
            metadata = table.all_metadata()
            moment = self.moment()
            frames = LiveFrames(self._storage, rows)
        try:
            arrays["metadata"] = np.frombuffer(metadata_to_text(metadata).encode(), np.uint8)
        except BaseException:
            frames.close()
            raise
        return BufferState(kind, self._fields, settings, values, arrays, HeldFrames(ids, frames), moment=moment)

    def plan(self, state: BufferState, *, resize: bool, same_seed: bool) -> RestorePlan:
        """What becomes of the buffer that takes this over; changes nothing.

        Where there is room for less, the oldest episodes go, whole, also those that are being written.

        Args:
          state: that was saved.
          resize: whether settings differ that decide about the room there is, and about what is drawn.
          same_seed: whether random numbers go on as well.

        Raises:
          ValueError: the state contradicts itself, or does not fit; the message says what.
        """
        table = self._table
        saved = _Saved.of(state, self._batch_size)
        self._reader.check_state(saved.reading, saved.graph_seeds)
        lengths = lengths_of(saved.states)
        kept_from = _oldest_that_fits(lengths, table.capacity, self._max_frames)
        if kept_from and not resize:
            raise ValueError(
                f"the save holds {int(lengths.sum())} frames in {len(lengths)} episodes, more than its own settings "
                "allow: it is damaged."
            )
        kept = saved.without(kept_from, table.pages.page_rows)
        nums_pages = table.pages.pages_for(lengths_of(kept.states))
        if int(nums_pages.sum()) > table.pages.num_pages:
            room = table.pages.num_pages * table.pages.page_rows * self._storage.frame_bytes
            raise ValueError(
                f"the save holds {kept.num_frames} frames, and here memory for {format_bytes(room)} of frames is "
                "reserved, which is too little: give max_frames, and on_mismatch='resize', to keep the newest episodes."
            )

        def clear() -> None:
            table.clear()
            self._writer.clear()

        return RestorePlan(
            places=slice(saved.num_frames - kept.num_frames, saved.num_frames),
            rows=rows_of_pages(lengths_of(kept.states), table.pages.page_rows),
            storage=self._storage,
            lock=self._lock,
            is_empty=table.next_id == 0,
            clear=clear,
            # Which kinds of samples were drawn before is of use where they can be drawn still.
            prepare=None if resize else lambda: self._reader.prepare(saved.reading["kinds"]),
            finish=lambda: self._set(kept, same_seed=same_seed),
            num_dropped=saved.num_frames - kept.num_frames,
        )

    def _set(self, saved: _Saved, *, same_seed: bool) -> None:
        table, usage, counters = self._table, self._usage, saved.counters
        if table.num_added:  # since it was emptied; to rows that frames of the save were to be in
            raise RuntimeError("another thread added while this buffer was restored: it is empty now.")
        table.rebuild(saved.oldest, saved.states, saved.page_places, saved.metadata)
        table.num_added, table.num_evicted = counters["num_added"], counters["num_evicted"]
        rows = rows_of_pages(lengths_of(saved.states), table.pages.page_rows)
        slots = usage.num_rows + table.slot(table.ids())
        usage.restore(
            np.concatenate([rows[saved.sampled_frames], slots[saved.sampled_episodes]]),
            counters["sampled"],
            counters["skipped"],
            counters["evicted_unsampled"],
        )
        self._writer.restore(saved.open, counters["num_lost"])
        self._rule.restore_loose_flag(saved.loose_flag)
        if same_seed:
            self._reader.restore(saved.reading, saved.graph_seeds)

    # Back to a moment

    def moment(self) -> dict[str, Any] | None:
        """How far the buffer is; None where too many episodes can still grow to tell them all. The lock is held.

        Episodes that get no more frames need not be told: they are as they are, or gone.
        """
        table, open_episodes = self._table, self._writer.open_episodes
        episodes = table.ids()
        states = table.states_of(episodes)
        growing = np.flatnonzero(states & FINISHED == 0)
        if len(growing) > self._batch_size + MOST_UNFINISHED:
            return None
        return {
            "next_id": table.next_id,
            "num_lost": self._writer.num_lost,
            "loose_flag": self._rule.loose_flag,
            "open": open_episodes.tolist(),
            "growing": np.stack([episodes[growing], states[growing]], axis=1).tolist(),
        }

    def cut_back(self, moment: Any) -> int:
        """Takes back what was added after a moment; returns how many frames that were. The lock is held.

        Episodes that began after it are gone. Those that were open then have the frames that they had, and go on from
        there; one that was evicted meanwhile is lost, counted as cut, and its stream begins a new one. What was drawn
        stays drawn, what is kept beside an episode stays as it is.

        Raises:
          ValueError: it is no moment of this buffer. Nothing is changed.
        """
        table = self._table
        next_id, num_lost, open_episodes, growing = self._check_moment(moment)
        num = table.forget_from(next_id)
        for episode, state in growing.items():
            # One that was taken out meanwhile (`extract`) has fewer frames than then, and gets no others.
            if table.holds(episode) and table.length(episode) >= state >> FLAG_BITS:
                num += table.cut(episode, state)
        goes_on = [episode in growing and table.holds(episode) for episode in open_episodes]
        for b, episode in enumerate(open_episodes):
            if episode in growing and not goes_on[b]:
                num_lost += 1
                _logger.warning(
                    "episode %d of stream %d was open at the moment that the buffer is cut back to, and was evicted "
                    "since; the stream's next frame begins a new one.",
                    episode,
                    b,
                )
        self._writer.restore(np.where(goes_on, open_episodes, _NO_EPISODE), num_lost)
        self._rule.restore_loose_flag(moment["loose_flag"])
        return num

    def _check_moment(self, moment: Any) -> tuple[int, int, list[int], dict[int, int]]:
        try:
            next_id, num_lost, loose_flag = moment["next_id"], moment["num_lost"], moment["loose_flag"]
            open_episodes = list(moment["open"])
            growing = dict(moment["growing"])
            numbers = [next_id, num_lost, *open_episodes, *growing, *growing.values()]
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{moment!r} is no moment of an episodic buffer: {error!r}.") from error
        is_sound = all(type(number) is int for number in numbers) and min(next_id, num_lost) >= 0
        is_sound = is_sound and all(0 <= episode < next_id for episode in growing)
        is_sound = is_sound and not any(state < 0 or is_finished(state) for state in growing.values())
        is_sound = is_sound and (loose_flag is None or isinstance(loose_flag, str))
        if not is_sound or len(open_episodes) != self._batch_size:
            raise ValueError(f"{moment!r} is no moment of an episodic buffer of {self._batch_size} streams.")
        if next_id > self._table.next_id:
            raise ValueError(
                f"the moment, at which {next_id} episodes had begun, comes after what is held: {self._table.next_id} "
                "have."
            )
        return next_id, num_lost, open_episodes, growing


@dataclasses.dataclass(frozen=True)
class _Saved:
    """A state, checked.

    Attributes:
      counters: of `_COUNTERS`.
      states: of the episodes from `oldest` on, int64 `[n]`.
      open: int64 `[B]`.
      page_places: as `EpisodeTable.places`, int64 `[m]`.
      page_rows: rows of those pages.
      sampled_frames: bool, by frame.
      sampled_episodes: bool `[n]`.
      metadata: by episode.
      loose_flag: as `EpisodeRule.loose_flag`.
      reading: as `EpisodeReader.state`.
      graph_seeds: as `EpisodeReader.state`.
    """

    counters: Mapping[str, int]
    states: Array
    open: Array
    page_places: Array
    page_rows: int
    sampled_frames: Array
    sampled_episodes: Array
    metadata: Mapping[int, Mapping[str, Any]]
    loose_flag: str | None
    reading: Mapping[str, Any]
    graph_seeds: Array

    @classmethod
    def of(cls, state: BufferState, batch_size: int) -> _Saved:
        """Checks a state that was saved.

        Raises:
          ValueError: it contradicts itself; the message names what.
        """
        values = state.values
        counters = {name: _count(values, name) for name in _COUNTERS}
        oldest, next_id = counters["oldest"], counters["next_id"]
        if oldest > next_id or next_id > _MOST_EPISODES:
            raise _damaged(f"the episodes {oldest} to {next_id} are none")
        states = _array(state, "states", np.int64, next_id - oldest)
        lengths = lengths_of(states)
        if (states < 0).any() or (lengths > MAX_EPISODE_FRAMES).any():
            raise _damaged("states of episodes are out of range")
        ids = np.zeros(0, np.int64) if state.frames is None else state.frames.id_array()
        if len(ids) != lengths.sum() or (ids != frame_ids(np.arange(oldest, next_id), lengths)).any():
            raise _damaged(f"the {len(ids)} frames are not those of its {len(lengths)} episodes")
        open_episodes = _array(state, "open", np.int64, batch_size)
        if (open_episodes < _NO_EPISODE).any() or (open_episodes >= next_id).any():
            raise _damaged(f"open: {open_episodes.tolist()} are not all episodes before {next_id}")
        page_rows = _count(values, "page_rows")
        if page_rows < 1 or page_rows & (page_rows - 1):
            raise _damaged(f"page_rows is {page_rows}")
        num_pages = int((-(-lengths // page_rows)).sum())
        places = _array(state, "page_places", np.int32, num_pages).astype(np.int64)
        if (np.sort(places) != np.arange(num_pages)).any():
            raise _damaged("page_places has no place for each page")
        loose_flag = values.get("loose_flag")
        if loose_flag is not None and not isinstance(loose_flag, str):
            raise _damaged(f"loose_flag is {loose_flag!r}")
        reading = values.get("reading")
        if not isinstance(reading, Mapping):
            raise _damaged(f"reading is {reading!r}")
        return cls(
            counters,
            states,
            open_episodes,
            places,
            page_rows,
            _bits(state, "sampled_frames", len(ids)),
            _bits(state, "sampled_episodes", len(states)),
            _metadata(state, oldest, next_id),
            loose_flag,
            reading,
            _array(state, "graph_seeds", np.int64, 3),
        )

    @property
    def oldest(self) -> int:
        """The oldest episode."""
        return self.counters["oldest"]

    @property
    def num_frames(self) -> int:
        """Frames of all episodes."""
        return len(self.sampled_frames)

    def without(self, num: int, page_rows: int) -> _Saved:
        """After the eviction of the `num` oldest episodes, in pages of so many rows."""
        kept = self
        if num:
            lengths = lengths_of(self.states[:num])
            num_frames, num_pages = int(lengths.sum()), int((-(-lengths // self.page_rows)).sum())
            sampled = self.sampled_frames[:num_frames] | np.repeat(self.sampled_episodes[:num], lengths)
            oldest = self.oldest + num
            counters = {
                **self.counters,
                "oldest": oldest,
                "num_evicted": self.counters["num_evicted"] + num_frames,
                "evicted_unsampled": self.counters["evicted_unsampled"] + int(np.count_nonzero(~sampled)),
            }
            kept = dataclasses.replace(
                self,
                counters=counters,
                states=self.states[num:],
                page_places=_ranks(self.page_places[num_pages:]),
                sampled_frames=self.sampled_frames[num_frames:],
                sampled_episodes=self.sampled_episodes[num:],
                metadata={episode: values for episode, values in self.metadata.items() if episode >= oldest},
            )
        if page_rows != self.page_rows:
            num_pages = int((-(-lengths_of(kept.states) // page_rows)).sum())
            kept = dataclasses.replace(kept, page_places=np.arange(num_pages), page_rows=page_rows)
        return kept


def _oldest_that_fits(lengths: Array, capacity: int, max_frames: int | None) -> int:
    """How many of the oldest episodes have to go, of episodes of these lengths, oldest first.

    >>> _oldest_that_fits(np.array([3, 4, 2]), 2, None), _oldest_that_fits(np.array([3, 4, 2]), 5, 5)
    (1, 2)
    """
    num = max(0, len(lengths) - capacity)
    if max_frames is not None:
        newer = np.cumsum(lengths[::-1])
        num = max(num, len(lengths) - int(np.searchsorted(newer, max_frames, "right")))
    return num


def _ranks(places: Array) -> Array:
    """Places without gaps, in the same order, int64 `[m]`.

    >>> _ranks(np.array([7, 2, 5]))
    array([2, 0, 1])
    """
    num = len(places)
    taken = np.zeros(num, bool)
    taken[places[places < num]] = True
    if taken.all():
        return places
    ranks = np.empty(num, np.int64)
    ranks[np.argsort(places, kind="stable")] = np.arange(num)
    return ranks


def _damaged(what: str) -> ValueError:
    return ValueError(f"the save of an episodic buffer contradicts itself: {what}. It is damaged.")


def _count(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or value < 0:
        raise _damaged(f"{name} is {value!r}")
    return value


def _array(state: BufferState, name: str, dtype: Any, num: int) -> Array:
    array = state.arrays.get(name)
    if array is None or array.dtype != dtype or array.shape != (num,):
        found = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
        raise _damaged(f"{name}: expected {np.dtype(dtype)} [{num}], found {found}")
    return array


def _bits(state: BufferState, name: str, num: int) -> Array:
    return np.unpackbits(_array(state, name, np.uint8, -(-num // 8)), count=num).astype(bool)


def _metadata(state: BufferState, oldest: int, next_id: int) -> dict[int, dict[str, Any]]:
    text = state.arrays.get("metadata")
    if text is None or text.dtype != np.uint8 or text.ndim != 1:
        raise _damaged("metadata is missing")
    try:
        metadata = metadata_from_text(text.tobytes().decode())
    except ValueError as error:
        raise _damaged(str(error)) from error
    if not all(oldest <= episode < next_id for episode in metadata):
        raise _damaged(f"metadata is of other episodes than {oldest} to {next_id - 1}")
    return metadata
