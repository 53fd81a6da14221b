"""Which items the frames of one stream make: windows, or whole episodes. Pure.

A cutter is told of each frame and of each episode's end, and answers with the items that are
complete by then. An item is told by the number of its drawn frame in the episode: it holds the
`burn_in` frames before, as far as there are so many, and the frames from it on up to the newest.
"""

from __future__ import annotations

from collections.abc import Iterable

from .reverb_items import ItemKind, WholeEpisodes
from .windows import Window

NO_ITEM = -1


class WindowCutter:
    """Cuts windows: each when its last frame is there, those that are padded when the episode ends.

    Args:
      window: what an item is.

    Attributes:
      num_kept: newest frames of an episode that later items may hold.
      num_dropped_short: frames of ended episodes where a window would have started, had the episode been longer.

    >>> cutter = WindowCutter(Window(4, stride=2, short="pad"))
    >>> [cutter.after_frame(n, final=False) for n in range(1, 8)]
    [-1, -1, -1, 0, -1, 2, -1]
    >>> list(cutter.at_end(7, final=False))
    [4]
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._num_steps = window.num_steps
        self._stride = window.stride
        self.num_kept = window.length
        self.num_dropped_short = 0

    def after_frame(self, num_frames: int, *, final: bool) -> int:
        """The drawn frame of the item that an episode's newest frame completes, or `NO_ITEM`.

        Args:
          num_frames: of the episode so far.
          final: whether the newest is only a final observation.
        """
        start = num_frames - self._num_steps
        if start < 0 or start % self._stride or (final and self._num_steps == 1):
            return NO_ITEM
        return start

    def at_end(self, num_frames: int, *, final: bool) -> Iterable[int]:
        """The drawn frames of the items that an episode's end completes."""
        # The first start whose window the end cuts short: those before it had theirs.
        cut = -(-max(0, num_frames - self._num_steps + 1) // self._stride) * self._stride
        if self._window.short == "drop":
            self.num_dropped_short += len(range(cut, num_frames - final, self._stride))
            return ()
        if num_frames == final:
            return ()  # a final observation alone
        # A later window has to show a frame that none before it shows; the first one is always there.
        needed = self._window.num_needed
        stop = num_frames - (final if needed == 1 else needed - 1)
        return range(cut, max(stop, 1), self._stride)


class EpisodeCutter:
    """Cuts nothing: an item is an episode.

    Args:
      kind: how long it may be.

    Attributes:
      num_kept: frames of an episode that its item may hold.
      num_dropped_short: 0.

    >>> list(EpisodeCutter(WholeEpisodes(100)).at_end(7, final=True))
    [0]
    """

    def __init__(self, kind: WholeEpisodes) -> None:
        self.num_kept = kind.max_length
        self.num_dropped_short = 0

    def after_frame(self, num_frames: int, *, final: bool) -> int:
        """`NO_ITEM`."""
        return NO_ITEM

    def at_end(self, num_frames: int, *, final: bool) -> Iterable[int]:
        """The whole episode, unless it is a final observation alone, from which there is nothing to learn."""
        return () if num_frames == final else (0,)


Cutter = WindowCutter | EpisodeCutter


def make_cutter(kind: ItemKind) -> Cutter:
    """The cutter for items of this kind.

    >>> make_cutter(Window(5, burn_in=2)).num_kept
    7
    """
    return EpisodeCutter(kind) if isinstance(kind, WholeEpisodes) else WindowCutter(kind)
