"""Where streams of frames are cut, by ends and by interrupted writes, and the ids that tell of it."""

from __future__ import annotations

import collections
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .nests import Array
from .reverb_targets import TableItems

_logger = logging.getLogger(__name__)

# A frame's id is [stream: 34 bits][count: 28 bits]; the stream part is drawn anew for each writer.
_COUNT_BITS = 28
_STREAM_BITS = 34

# The items of a table that the frames of a stream make, and the stream's number there.
Place = tuple[TableItems, int]


def stream_of(ids: Array) -> Array:
    """The stream part of frame ids, int64 of the same shape.

    >>> stream_of(np.array([(5 << 28) + 3]))
    array([5])
    """
    return ids >> _COUNT_BITS


def is_first_count(ids: Array) -> Array:
    """Whether these ids are the first of their streams, which begin episodes: bool of the same shape.

    >>> is_first_count(np.array([5 << 28, (5 << 28) + 3]))
    array([ True, False])
    """
    return (ids & ((1 << _COUNT_BITS) - 1)) == 0


class StreamCuts:
    """The ids of some streams' frames, and what goes over none of their cuts.

    Ids of one stream count up by one inside an episode and skip a number where an episode is cut:
    two frames follow each other in one episode if and only if their ids do.

    A step says which streams it is of when it begins, and when it is done. What interrupts between the two cuts these
    streams: their next frames begin episodes. Others do not notice.

    Args:
      num_streams: how many there are.
      where: the tables, as messages name them.

    Attributes:
      next_ids: int64 `[num_streams]`, ids that no frame has yet.
      has_frames: for each stream, whether its episode has a frame.
    """

    def __init__(self, num_streams: int, where: str) -> None:
        self._where = where
        self.has_frames = [False] * num_streams
        self.next_ids = np.zeros(num_streams, np.int64)
        self._places: Callable[[int], Iterable[Place]] = lambda stream: ()
        # The streams of a step that was begun and is not done; and those whose next frame may not follow the newest one
        # (other threads add to it).
        self._torn: Sequence[int] = ()
        self._asked: collections.deque[Sequence[int]] = collections.deque()
        self._draw_stream_ids()

    def feed(self, places: Callable[[int], Iterable[Place]]) -> None:
        """Says what items the frames of each stream make."""
        self._places = places

    def begin(self, streams: Sequence[int]) -> None:
        """A step of these streams, or their end, begins; what is torn or was asked for is cut first."""
        torn, num_asked = self._torn, len(self._asked)
        if not torn and not num_asked:
            self._torn = streams
            return
        asked = sorted({b for some in list(self._asked)[:num_asked] for b in some})
        self._torn = sorted({*torn, *asked, *streams})
        # What is held of torn episodes may be halves: it makes no items.
        for b in torn:
            for items, place in self._places(b):
                items.forget_episode(place)
            self.skip_id(b)
            self.has_frames[b] = False
        for b in asked:
            self.end(b)
        for _ in range(num_asked):
            self._asked.popleft()
        _logger.warning(
            "%s: a write was interrupted; no item goes over it: the next frame of each stream begins an episode%s.",
            self._where,
            ", and what was to be made when the episode before had ended is not made" if torn else "",
        )

    def done(self) -> None:
        """The step that began is done."""
        self._torn = ()

    def cut_before_next_frame(self, streams: Sequence[int]) -> None:
        """Their next frames begin episodes: whether they follow the newest is not known. Any thread may call it."""
        self._asked.append(streams)

    def end(self, b: int, *, final: bool = False) -> None:
        """Stream `b` stops; `final`: its newest frame is only a final observation."""
        if not self.has_frames[b]:
            return
        for items, place in self._places(b):
            items.end_episode(place, final=final)
        self.skip_id(b)
        self.has_frames[b] = False

    def skip_id(self, b: int) -> None:
        """The next frame of stream `b` begins an episode, which its id tells."""
        self.next_ids[b] += 1
        if int(self.next_ids[b]) & ((1 << _COUNT_BITS) - 1) > 1 << (_COUNT_BITS - 1):
            self._draw_stream_ids(b)

    def _draw_stream_ids(self, b: int | None = None) -> None:
        """Gives each stream (or stream `b`) numbers that no other writer has.

        Those of one writer ascend, so that frames in the order of their ids are in the order of streams.
        """
        if b is None:
            num = len(self.next_ids)
            first = secrets.randbelow((1 << _STREAM_BITS) - num)
            self.next_ids[:] = (first + np.arange(num)) << _COUNT_BITS
        else:
            self.next_ids[b] = secrets.randbelow(1 << _STREAM_BITS) << _COUNT_BITS
