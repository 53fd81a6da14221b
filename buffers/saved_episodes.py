"""How a buffer of episodes is saved and restored."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from .adds import Adds
from .buffer_state import BufferState, RestorePlan
from .episode_ids import EpisodeIds
from .episode_reader import EpisodeReader
from .episodic_state import MOST_UNFINISHED, EpisodicState
from .restorable import Restorable


class SavedEpisodes(Restorable):
    """The part of `EpisodicReplayBuffer` that saves and restores it."""

    _SAVED_SETTINGS: ClassVar[tuple[str, ...]] = (
        "capacity",
        "completed_only",
        "seed",
        "begin_episode_fn",
        "end_episode_fn",
        "batch_size",
        "max_frames",
        "end_of_episode_fn",
        "final_frame",
        "min_size_to_sample",
    )
    # Which frames are final observations is kept with the episodes.
    _FIXED_SETTINGS: ClassVar[frozenset[str]] = frozenset({"batch_size", "final_frame"})

    # Of `EpisodicReplayBuffer`.
    _lock: threading.Lock
    _state: EpisodicState
    _reader: EpisodeReader
    _adds: Adds
    _episode_ids: EpisodeIds
    # Whether a graph may have been made that reads how many frames there are.
    _is_traced: bool

    def _capture(self) -> BufferState:
        self._check_open()
        return self._state.capture(type(self).__name__, self._settings())

    def _plan_restore(self, state: BufferState, *, resize: bool) -> RestorePlan:
        self._check_open()
        # With a seed of its own this buffer draws its own random numbers.
        same_seed = state.settings["seed"] == self._settings()["seed"]
        return self._state.plan(state, resize=resize, same_seed=same_seed)

    def _has_drawn(self) -> bool:
        is_traced = self._is_traced or self._adds.is_traced or self._episode_ids.is_traced
        return is_traced or self._reader.has_drawn

    def _moment(self) -> Any:
        with self._lock:
            self._check_open()
            moment = self._state.moment()
        if moment is None:
            raise ValueError(
                f"a moment tells of at most {MOST_UNFINISHED} unfinished episodes beside the streams', and there are "
                "more; end those that get no more frames (end_of_episode, is_last, step_type), or save at this step."
            )
        return moment

    def _cut_back(self, moment: Any) -> int:
        with self._lock:
            self._check_open()
            return self._state.cut_back(moment)

    def _check_open(self) -> None:
        """Refuses, if the buffer is closed."""
        raise NotImplementedError
