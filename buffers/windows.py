"""Index arithmetic: which frames start a window, and in which order windows come. Pure.

A stream's frames are described by one number each, the *step word*:
`2 * k + f`, where `k` counts the frames of the same episode before this one, and `f` is 1
when the frame is only a final observation (its action and reward mean nothing). The word
is known when the frame is written and never changes afterwards. A window of `T` frames
ends at a frame whose word is at least `2 * (T - 1)`: then its `T - 1` predecessors are of
the same episode. So the ring's seam, open episodes and evicted beginnings need no case of
their own (test: `tests/buffers/test_windows.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from .nests import Array


@dataclasses.dataclass(frozen=True)
class Window:
    """What one sample is: `num_steps` consecutive frames of one stream.

    Args:
      num_steps: frames in a window, `T`.
      boundaries: `'exclude'`: no frame but the last may be an episode's end, so that no
        window joins two episodes. `'ignore'`: windows run on over episode ends, as in
        TF-Agents; only the ring's seam bounds them.

    Raises:
      TypeError: `num_steps` is no int.
      ValueError: `num_steps` is below 1, or `boundaries` is none of the two.

    >>> Window(5)
    Window(num_steps=5, boundaries='exclude')
    """

    num_steps: int
    boundaries: Literal["exclude", "ignore"] = "exclude"

    def __post_init__(self) -> None:
        if isinstance(self.num_steps, bool) or not hasattr(self.num_steps, "__index__"):
            raise TypeError(f"Window.num_steps must be an int, got {self.num_steps!r}.")
        if self.num_steps < 1:
            raise ValueError(f"Window.num_steps must be at least 1, got {self.num_steps}.")
        if self.boundaries not in ("exclude", "ignore"):
            raise ValueError(f"Window.boundaries must be 'exclude' or 'ignore', got {self.boundaries!r}.")

    def ends_at(self, word: int) -> bool:
        """`ends_window` for one step word."""
        if self.boundaries == "ignore":
            return True
        return word & 1 == 0 if self.num_steps == 1 else word >= 2 * (self.num_steps - 1)


def resolve_window(num_steps: int | None, window: Window | None) -> Window | None:
    """The window that `num_steps` or `window` asks for; None for single frames without a `T` axis.

    Raises:
      TypeError: `window` is no `Window`, or `num_steps` is no int.
      ValueError: both are given, or `num_steps` is below 1.

    >>> resolve_window(2, None)
    Window(num_steps=2, boundaries='exclude')
    """
    if window is not None and not isinstance(window, Window):
        raise TypeError(f"window must be a Window, got {window!r}.")
    if num_steps is not None and window is not None:
        raise ValueError(f"give num_steps or window, not both: got num_steps={num_steps!r} and {window!r}.")
    if num_steps is None:
        return window
    if isinstance(num_steps, bool) or not hasattr(num_steps, "__index__"):
        raise TypeError(f"num_steps must be an int or None, got {num_steps!r}.")
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}.")
    return Window(int(num_steps))


def ends_window(words: Array, window: Window) -> Array:
    """Whether a window ends at frames with these step words; bool, the shape of `words`.

    It takes for granted that the window's frames are all still held.

    >>> episode = np.array([0, 2, 4, 7])  # three steps, then a final observation
    >>> ends_window(episode, Window(2)).tolist()
    [False, True, True, True]
    >>> ends_window(episode, Window(1)).tolist()
    [True, True, True, False]
    """
    if window.boundaries == "ignore":
        return np.ones(words.shape, bool)
    if window.num_steps == 1:
        return np.asarray(words & 1 == 0)
    return np.asarray(words >= 2 * (window.num_steps - 1))


def episode_bounds(words: Array) -> tuple[Array, Array]:
    """For each frame of one stream `[n]`, oldest first, where its episode starts and stops, int64 `[n]`.

    The oldest episode may have lost its beginning: it starts at 0 all the same.

    >>> episode_bounds(np.array([6, 9, 0, 2]))
    (array([0, 0, 2, 2]), array([2, 2, 4, 4]))
    """
    index = np.arange(len(words))
    begins = words >> 1 == 0
    starts = np.maximum.accumulate(np.where(begins, index, 0))
    firsts = np.flatnonzero(begins | (index == 0))
    stops = np.append(firsts[1:], len(words))
    return starts, np.repeat(stops, stops - firsts)


def window_lengths(words: Array) -> Array:
    """Frames of each episode of one stream, oldest first: the longest window in each.

    >>> window_lengths(np.array([6, 9, 0, 2, 4])).tolist()
    [2, 3]
    """
    firsts = np.flatnonzero((words >> 1 == 0) | (np.arange(len(words)) == 0))
    return np.diff(np.append(firsts, len(words)))


def ordered_starts(words: Array, window: Window, shift: int, *, keep_short: bool) -> tuple[Array, Array]:
    """Starts and lengths of the windows of an ordered pass over one stream, int64 `[m]` each.

    In each episode windows start at every `shift`-th of its frames that are held. Those that
    the episode's end cuts short are kept when `keep_short`; a final observation alone is none.

    >>> starts, lengths = ordered_starts(np.array([0, 2, 4, 7, 0, 2]), Window(2), 2, keep_short=True)
    >>> starts.tolist(), lengths.tolist()
    ([0, 2, 4], [2, 2, 2])
    """
    index = np.arange(len(words))
    if window.boundaries == "ignore":
        starts, stops, alone = np.zeros_like(index), np.full_like(index, len(words)), np.zeros(len(words), bool)
    else:
        starts, stops = episode_bounds(words)
        alone = words & 1 == 1
    lengths = np.minimum(stops - index, window.num_steps)
    chosen = ((index - starts) % shift == 0) & ~alone
    if not keep_short:
        chosen &= lengths == window.num_steps
    return index[chosen], lengths[chosen]
