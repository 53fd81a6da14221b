"""How a buffer of a ring of frames is saved and restored."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from .adds import Adds
from .buffer_state import BufferState, RestorePlan
from .frame_priorities import FramePriorities
from .graph_seeds import GraphSeeds
from .restorable import Restorable
from .ring_sampler import RingSampler
from .ring_state import RingParts, kept_places, windows_of
from .ring_state_check import check_ring_state
from .sampled_starts import SampledStarts
from .windows import Window


class SavedRing(Restorable):
    """The part of `RingReplayBuffer` that saves and restores it."""

    _FIXED_SETTINGS: ClassVar[frozenset[str]] = frozenset({"batch_size", "final_frame", "eligible_fn"})

    # Of `RingReplayBuffer`.
    _lock: threading.Lock
    _rng: np.random.Generator
    _num_seeds: int
    _graph_seeds: GraphSeeds
    _samplers: dict[Window | None, RingSampler]
    _heeds_flags: bool
    _adds: Adds
    # Whether a graph may have been made that reads how many frames there are.
    _is_traced: bool

    def _capture(self) -> BufferState:
        with self._kinds_lock, self._lock:
            self._check_open()
            parts = self._parts()
            return BufferState(
                kind=type(self).__name__,
                fields=self._spec.fields,
                settings=self._settings(),
                values={
                    **parts.values(),
                    "heeds_flags": self._heeds_flags,
                    "random": self._rng.bit_generator.state,
                    "num_seeds": self._num_seeds,
                    "loose_flag": self._rule.loose_flag,
                    **self._own_values(),
                },
                arrays={**parts.arrays(), "graph_seeds": self._graph_seeds.state()},
                frames=parts.frames(),
                moment=self._reached(),
            )

    def _plan_restore(self, state: BufferState, *, resize: bool) -> RestorePlan:
        with self._lock:
            self._check_open()
        ring = self._ring
        check_ring_state(
            state,
            ring.batch_size,
            own_values=list(self._own_values()),
            needs_priorities=isinstance(self._listener, FramePriorities),
            tells_starts=self._writer.tells_starts,
        )
        self._graph_seeds.check(state.arrays["graph_seeds"])
        loose_flag = state.values.get("loose_flag")
        if not isinstance(loose_flag, str | None):
            raise ValueError(f"the state's values/loose_flag must be a field's name or None, got {loose_flag!r}.")
        windows = windows_of(state)
        is_parted = bool(state.values["ring"]["is_parted"])
        if ring.apart and not is_parted:
            raise ValueError(
                "streams of this buffer go apart, those of the save did not: restore before let_streams_part(), and "
                "into a buffer without it."
            )
        if is_parted and not ring.apart and (ring.reserved or self._samplers):
            raise ValueError("streams of the save go apart: call let_streams_part() before anything is added or drawn.")
        places, rows = kept_places(state, ring.capacity, ring.batch_size)
        same_seed = state.settings["seed"] == self._settings()["seed"]

        reserved: list[Any] = []

        def clear() -> None:
            self._clear_locked()
            reserved[:] = [np.copy(ring.reserved)]

        def prepare() -> None:
            if is_parted:
                self.let_streams_part()
            if state.values["heeds_flags"] and not self._heeds_flags:
                self._heed_flags()
            for window in windows:
                if (window or Window(1)).num_steps <= ring.capacity // ring.batch_size:
                    self._sampler(window)

        def finish() -> None:
            # A ring that is parted has new cursors.
            if not is_parted and not np.array_equal(reserved[0], ring.reserved):
                raise RuntimeError("another thread added while this buffer was restored: it is empty now.")
            self._parts().restore(state, places, rows, exact=not resize)
            self._rule.restore_loose_flag(loose_flag)
            if same_seed:
                self._rng.bit_generator.state = state.values["random"]
                self._num_seeds = max(self._num_seeds, int(state.values["num_seeds"]))
                self._graph_seeds.restore(state.arrays["graph_seeds"])
            self._restore_own(state.values)

        return RestorePlan(
            places=places,
            rows=rows,
            storage=self._storage,
            lock=self._lock,
            # One that has to part its streams does so for frames that are known to be sound.
            is_empty=ring.num_added == 0 and ring.num_frames == 0 and is_parted == ring.apart,
            prepare=prepare,
            clear=clear,
            finish=finish,
            num_dropped=len(state.frames.ids) - len(rows) if state.frames is not None else 0,
        )

    def _has_drawn(self) -> bool:
        return bool(self._samplers) or self._adds.is_traced or self._is_traced

    def _draws(self) -> int:
        kinds = self._parts().kinds.values()
        return sum(starts.num_calls for starts in kinds if isinstance(starts, SampledStarts))

    def _moment(self) -> Any:
        with self._lock:
            return self._reached()

    def _reached(self) -> Any:
        """How far it is: `published`; where the frame added last looks like an end, a dict with the flag beside it."""
        published, loose_flag = self._ring.state()["published"], self._rule.loose_flag
        return published if loose_flag is None else {"published": published, "loose_flag": loose_flag}

    def _cut_back(self, moment: Any) -> int:
        reached = moment if isinstance(moment, Mapping) else {"published": moment, "loose_flag": None}
        with self._lock:
            self._check_open()
            num = self._parts().cut(reached["published"])
            self._rule.restore_loose_flag(reached["loose_flag"])
            return num

    def _own_values(self) -> dict[str, Any]:
        """What a class adds to the values of a state."""
        return {}

    def _restore_own(self, values: Mapping[str, Any]) -> None:
        """Of `_own_values`."""

    def _parts(self) -> RingParts:
        return RingParts(
            ring=self._ring,
            storage=self._storage,
            usage=self._usage,
            flags=self._flags,
            listener=self._listener,
            kinds={window: sampler.starts.current for window, sampler in self._samplers.items()},
            tells_starts=self._writer.tells_starts,
        )
