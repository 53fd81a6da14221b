"""What a ring of frames is at one moment, and how another one becomes that.

Frames are told by their ids, and never by rows, so that a ring of another size can take them over. Where nothing else
differs it draws as the other one would have: the sets that draws are made from lie in the same order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from .buffer_state import BufferState, HeldFrames, LiveFrames
from .eligible_starts import EligibleStarts
from .equal_frames import EqualFrames
from .frame_flags import FrameFlags
from .frame_priorities import FramePriorities
from .nests import Array
from .prioritized_starts import PrioritizedStarts
from .ring import FrameRing
from .ring_starts import WindowStarts
from .row_numbers import RingRows, RowNumbers, put, taken
from .sampled_frames import SampledFrames
from .sampled_starts import SampledStarts
from .storage import FrameStorage
from .usage import Usage
from .window_text import window_from_plain, window_to_plain
from .windows import Window

Listener = FramePriorities | SampledFrames | EqualFrames | None


@dataclasses.dataclass(frozen=True)
class RingParts:
    """What a buffer of a ring consists of; the writer's lock is held by who calls.

    Attributes:
      ring: ids and cursors.
      storage: the frames' memory.
      usage: counters.
      flags: of frames that must not be drawn.
      listener: what knows of each frame's priority.
      kinds: the kinds of windows drawn so far, and what draws them.
      tells_starts: whether a predicate says which frames may start a window.
    """

    ring: FrameRing
    storage: FrameStorage
    usage: Usage
    flags: FrameFlags
    listener: Listener
    kinds: Mapping[Window | None, WindowStarts]
    tells_starts: bool

    def values(self) -> dict[str, Any]:
        """Plain values."""
        listener = self.listener
        return {
            "ring": self.ring.state(),
            "usage": self.usage.state(),
            "num_deleted": self.flags.num_deleted,
            "largest_ever": listener.largest_ever if isinstance(listener, FramePriorities) else None,
            "windows": [None if window is None else window_to_plain(window) for window in self.kinds],
        }

    def arrays(self) -> dict[str, Array]:
        """Of the frames held, by ascending id, what may change; and the layouts of what draws are made from."""
        rows = self.ring.held_rows()
        barred, deleted = self.flags.flagged(rows)
        arrays = {"sampled": np.packbits(self.usage.marked(rows)), "deleted": np.packbits(deleted)}
        if self.tells_starts:
            arrays["barred"] = np.packbits(barred)
        if isinstance(self.listener, FramePriorities):
            arrays["priorities"] = self.listener.values_of(rows)
        if isinstance(self.listener, SampledFrames):
            arrays["priorities"] = taken(self.listener.priorities, rows)
        for number, starts in enumerate(self.kinds.values()):
            if isinstance(starts, EligibleStarts):
                arrays.update({f"window {number} {name}": part for name, part in starts.layout().items()})
        return arrays

    def frames(self) -> HeldFrames:
        """The frames held, to be read while others write."""
        ring, rows = self.ring, self.ring.held_rows()
        columns = {"words": taken(ring.words, rows)}
        ids: Array | range = range(0)
        if ring.arrivals is not None:
            columns["arrivals"] = taken(ring.arrivals, rows)
            ids = np.sort(ring.held_ids())
        else:
            ids = range(ring.tail, ring.published)
        return HeldFrames(ids, LiveFrames(self.storage, rows), columns)

    def restore(self, state: BufferState, places: slice | Array, rows: RowNumbers, *, exact: bool) -> None:
        """Everything but the frames, which are in their rows, of those at these places of the state.

        Args:
          state: that fits.
          places: as `kept_places` says.
          rows: as `kept_places` says.
          exact: whether nothing differs, so that draws go on; the kinds of windows are those of the state then.
        """
        frames = state.frames
        if frames is None:
            raise TypeError("the state of a ring holds frames.")
        values, num = state.values, len(frames.ids)
        ids = frames.ids[places] if isinstance(places, slice) else frames.id_array()[places]
        columns = {name: column[places] for name, column in frames.columns.items()}
        self.ring.restore(values["ring"], ids, rows, columns["words"], columns.get("arrivals"))

        def bits(name: str) -> Array:
            if name not in state.arrays:
                return np.zeros(len(ids), bool)
            return np.unpackbits(state.arrays[name], count=num).view(bool)[places]

        self.flags.restore(rows, bits("barred"), bits("deleted"), int(values["num_deleted"]))
        self.usage.restore(values["usage"], rows, bits("sampled"))
        layouts = self._layouts(state) if exact else self._draw_counts(state, places)
        listener = self.listener
        if isinstance(listener, FramePriorities):
            prioritized = {kind: layout for kind, layout in layouts.items() if isinstance(kind, PrioritizedStarts)}
            priorities = state.arrays["priorities"][places]
            listener.restore(rows, priorities, float(values["largest_ever"]), prioritized)
            return
        if isinstance(listener, SampledFrames) and "priorities" in state.arrays:
            put(listener.priorities, rows, state.arrays["priorities"][places])
        if listener is not None:
            listener.start_again()
        for kind, layout in layouts.items():
            kind.lay_out(layout)

    def _draw_counts(self, state: BufferState, places: slice | Array) -> dict[EligibleStarts, dict[str, Array]]:
        """Of windows that may be drawn so many times only: how often they were, of the frames that are kept."""
        return {
            starts: {"order": np.zeros(0, np.int64), "drawn": layout["drawn"][places]}
            for starts, layout in self._layouts(state).items()
            if isinstance(starts, SampledStarts) and "drawn" in layout and len(layout["drawn"])
        }

    def cut(self, moment: Any) -> int:
        """Takes back what was added after `moment`, which `FrameRing.state` called `published`; how many frames."""
        num = self.ring.num_frames
        gone = self.ring.rows(self._after(moment))
        if isinstance(self.listener, SampledFrames):
            self.listener.forget(gone)
        self.flags.renew(gone, None)
        self.usage.forget(gone)
        self.ring.cut(moment)
        if self.listener is not None:
            self.listener.start_again()
        return num - self.ring.num_frames

    def _after(self, moment: Any) -> Array:
        """Ids of the frames held that were added after this moment."""
        held = self.ring.held_ids()
        return held[held >= (np.asarray(moment)[held % self.ring.batch_size] if self.ring.apart else moment)]

    def _layouts(self, state: BufferState) -> dict[EligibleStarts, dict[str, Array]]:
        """The layouts in a state, of the kinds of windows that are drawn here too."""
        layouts = {}
        for number, window in enumerate(windows_of(state)):
            prefix = f"window {number} "
            layout = {name[len(prefix) :]: part for name, part in state.arrays.items() if name.startswith(prefix)}
            starts = self.kinds.get(window)
            if layout and isinstance(starts, EligibleStarts):
                layouts[starts] = layout
        return layouts


def windows_of(state: BufferState) -> list[Window | None]:
    """The kinds of windows that were drawn, in the order in which they were first."""
    return [None if plain is None else window_from_plain(plain) for plain in state.values["windows"]]


def kept_places(state: BufferState, capacity: int, batch_size: int) -> tuple[slice | Array, RowNumbers]:
    """Which of a state's frames a ring of this capacity keeps, the newest of each stream, and their rows."""
    frames, ring = state.frames, state.values["ring"]
    if frames is None:
        raise TypeError("the state of a ring holds frames.")
    num = len(frames.ids)
    if not ring["is_parted"]:
        first = max(0, num - capacity)
        oldest = int(ring["published"]) - (num - first)
        return slice(first, num), RingRows(oldest % capacity, num - first, capacity)
    ids = frames.id_array()
    published = np.asarray(ring["published"], np.int64)
    places = np.flatnonzero(ids >= published[ids % batch_size] - capacity)
    return places, ids[places] % capacity
