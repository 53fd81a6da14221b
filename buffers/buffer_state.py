"""What a buffer holds at one moment: plain values, small arrays, and frames that are read one part after the other.

A buffer gives a `BufferState` of itself (`captured_state`) and takes one over in two steps: `plan_restore` says what
would become of it and changes nothing, then the frames are written to their rows, and the plan's `finish` sets the
rest (`saving.py`). On the disk it is a folder (`saved_folder.py`), in memory a dict (`state_dict.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .fields import Field
from .frame_snapshot import FrameSnapshot
from .nests import Array
from .row_numbers import RowNumbers, pieces_of
from .storage import FrameStorage

# Is given places of frames, counted in the order of their ids (a slice, or int64 `[m]`), and these frames field by
# field: uint8 `[m, num_bytes of the field]`.
Put = Callable[[slice | Array, list[Array]], None]


class FrameSource(Protocol):
    """Frames of a state that was saved."""

    def check(self) -> None:
        """Reads all of them.

        Raises:
          ValueError: they are not what was saved; the message names the file.
        """

    def deliver(self, put: Put) -> None:
        """Gives each frame to `put` once, some at a time, from several threads.

        Raises:
          ValueError: as `check`; some may have been given then.
        """


@dataclasses.dataclass(frozen=True)
class HeldFrames:
    """The frames that a buffer held, `n` of them, by ascending id.

    Attributes:
      ids: int64 `[n]`, ascending, or a `range`. Of one buffer equal ids are the same frame, with the same content.
      source: the frames themselves: `LiveFrames` of a buffer, else where they were saved.
      columns: by name what is kept beside each frame and never changes either, arrays `[n, ...]`.
    """

    ids: Array | range
    source: LiveFrames | FrameSource
    columns: Mapping[str, Array] = dataclasses.field(default_factory=dict)

    def id_array(self) -> Array:
        """`ids` as int64 `[n]`."""
        return id_array(self.ids)


def id_array(ids: Array | range) -> Array:
    """Ids as int64 `[n]`.

    >>> id_array(range(4, 10, 2))
    array([4, 6, 8])
    """
    return np.arange(ids.start, ids.stop, ids.step) if isinstance(ids, range) else np.asarray(ids, np.int64)


class LiveFrames:
    """Frames of a storage as they are now, whatever is written meanwhile; to be closed.

    Made while the buffer's lock is held.

    Args:
      storage: the frames' memory.
      rows: of the frames, in the order of their ids.
    """

    def __init__(self, storage: FrameStorage, rows: RowNumbers) -> None:
        self._rows = rows
        whole = [pieces[1] for pieces in pieces_of(rows, slice(0, len(rows)))]
        self._snapshot = FrameSnapshot(storage, whole)

    def read(self, places: slice | Array) -> list[Array]:
        """Frames field by field, uint8 `[m, num_bytes of the field]`; each frame is read once."""
        parts = [self._snapshot.take(rows) for _, rows in pieces_of(self._rows, places)]
        return parts[0] if len(parts) == 1 else [np.concatenate(leaves) for leaves in zip(*parts, strict=True)]

    def skip(self, places: slice | Array) -> None:
        """These frames are not read."""
        for _, rows in pieces_of(self._rows, places):
            self._snapshot.skip(rows)

    def close(self) -> None:
        """Writers go on as without it."""
        self._snapshot.close()


@dataclasses.dataclass(frozen=True)
class BufferState:
    """A buffer at one moment.

    Attributes:
      kind: the name of its class.
      fields: of a frame; empty for a buffer that keeps its frames in others.
      settings: what it was built with, as far as that decides about contents and draws: plain values.
      values: counters, cursors, states of random numbers: plain values, nested in dicts and lists.
      arrays: by name.
      frames: what it holds; None for a buffer that keeps its frames in others.
      parts: by name, the states of buffers that it consists of.
      moment: how far it is, as a plain value, so that it can be cut back to it; None: it cannot be.
    """

    kind: str
    fields: Sequence[Field]
    settings: Mapping[str, Any]
    values: Mapping[str, Any]
    arrays: Mapping[str, Array] = dataclasses.field(default_factory=dict)
    frames: HeldFrames | None = None
    parts: Mapping[str, BufferState] = dataclasses.field(default_factory=dict)
    moment: Any = None

    @property
    def num_frames(self) -> int:
        """Frames held, those of its parts included."""
        own = 0 if self.frames is None else len(self.frames.ids)
        return own + sum(part.num_frames for part in self.parts.values())

    def close(self) -> None:
        """Ends the snapshots of a state that a buffer gave."""
        if self.frames is not None and isinstance(self.frames.source, LiveFrames):
            self.frames.source.close()
        for part in self.parts.values():
            part.close()


@dataclasses.dataclass(frozen=True)
class RestorePlan:
    """What becomes of a buffer that takes a state over; made without changing it.

    Attributes:
      places: which of the state's frames are taken, counted in the order of its ids: a slice, or int64 `[m]`,
        ascending.
      rows: where each of them goes, `m` of them.
      storage: what they are written to; None where `parts` do it.
      lock: held while the buffer is emptied, filled and set.
      is_empty: whether the buffer has never held anything, so that it can be filled before the frames are known to be
        sound, and be emptied again.
      prepare: called between filling and `finish`, without the lock: what takes the lock itself.
      clear: empties the buffer; called with the lock held.
      finish: sets everything but the frames; called with the lock held, when all frames are in their rows.
      num_dropped: frames of the state that the buffer has no room for.
      parts: by name, the plans of the buffers that it consists of.
    """

    places: slice | Array
    rows: RowNumbers
    storage: FrameStorage | None
    lock: Any
    is_empty: bool
    clear: Callable[[], None]
    finish: Callable[[], None]
    prepare: Callable[[], None] | None = None
    num_dropped: int = 0
    parts: Mapping[str, RestorePlan] = dataclasses.field(default_factory=dict)
