"""Index arithmetic: which frames start a window, how much of it is real, and in which order windows come. Pure.

A stream's frames are described by one number each, the *step word*:
`2 * k + f`, where `k` counts the frames of the same episode before this one, and `f` is 1
when the frame is only a final observation (its action and reward mean nothing). The word
is known when the frame is written and never changes afterwards. Two frames that lie `d` apart
in a stream are of one episode exactly where their `k` differ by `d`. So the ring's seam, open
episodes and evicted beginnings need no case of their own (test: `tests/buffers/test_windows.py`).

A window of `num_steps=3` with `burn_in=2` in an episode of five frames, drawn at frame 1 and at frame 3:

    frame        0   1   2   3   4
    drawn at 1   b [ 1   2   3 ]          one frame of context is missing: padding in front
    drawn at 3       b   b [ 3   4 ] pad  the end cuts it: only with short='pad'
"""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import numpy as np

from .nests import Array


@dataclasses.dataclass(frozen=True)
class Window:
    """What one sample is: `num_steps` consecutive frames of one stream, from the drawn frame on.

    Leaves are `[B, burn_in + num_steps, ...]`; the drawn frame is at index `burn_in`. Padding is
    zeros, with `BufferInfo.mask` False and id -1.

    Args:
      num_steps: frames from the drawn one on, `T`.
      burn_in: frames of context before the drawn one. Where the episode has fewer, the rest is padding in
        front. Where they are evicted no window starts: padding would look like an episode's beginning.
      stride: also called period; windows start at every `stride`-th frame of an episode only.
      short: what becomes of windows that the episode's end cuts short. `'drop'`: they are not
        drawn. `'pad'`: they are padded at the end, so that every frame of every ended episode is in a
        window. With `stride=1` each frame starts one (but a final observation, which starts
        none); with more, an episode's last window is the first that reaches its end.
      boundaries: `'exclude'`: no window joins two episodes. `'ignore'`: a stream is one endless
        episode, as in TF-Agents; only what is held bounds windows.
      pad_unfinished: with `short='pad'`, also draw and pad windows that the newest frame of an
        unfinished episode cuts short. By default they wait for the frames to come.

    Raises:
      TypeError: a count is no int.
      ValueError: `num_steps` or `stride` is below 1, or `burn_in` below 0.
      ValueError: `short` or `boundaries` is none of its two.
      ValueError: `pad_unfinished` without `short='pad'`, or `short='pad'` with `boundaries='ignore'`.

    >>> Window(5)
    Window(num_steps=5)
    >>> Window(20, burn_in=4, stride=10, short="pad").length
    24
    """

    num_steps: int
    burn_in: int = 0
    stride: int = 1
    short: Literal["drop", "pad"] = "drop"
    boundaries: Literal["exclude", "ignore"] = "exclude"
    pad_unfinished: bool = False

    def __post_init__(self) -> None:
        for name, least in (("num_steps", 1), ("burn_in", 0), ("stride", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise TypeError(f"Window.{name} must be an int, got {value!r}.")
            if value < least:
                raise ValueError(f"Window.{name} must be at least {least}, got {value}.")
        if self.short not in ("drop", "pad"):
            raise ValueError(f"Window.short must be 'drop' or 'pad', got {self.short!r}.")
        if self.boundaries not in ("exclude", "ignore"):
            raise ValueError(f"Window.boundaries must be 'exclude' or 'ignore', got {self.boundaries!r}.")
        if self.pad_unfinished and self.short == "drop":
            raise ValueError("Window.pad_unfinished=True needs short='pad': with 'drop' nothing is padded.")
        if self.short == "pad" and self.boundaries == "ignore":
            raise ValueError("Window: with boundaries='ignore' no episode's end cuts a window; leave short='drop'.")

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        fields = dataclasses.fields(self)
        given = [f for f in fields if f.default is dataclasses.MISSING or getattr(self, f.name) != f.default]
        return f"Window({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in given)})"

    @property
    def length(self) -> int:
        """Frames of a sample, `burn_in + num_steps`."""
        return self.burn_in + self.num_steps

    @property
    def is_plain(self) -> bool:
        """Whether every frame of every window is real, so that there is nothing to mask."""
        return self.burn_in == 0 and self.short == "drop"

    @property
    def num_needed(self) -> int:
        """Real frames, from its start on, without which a window that is not its episode's first is not drawn."""
        if self.short == "drop":
            return self.num_steps
        # One that starts `stride` earlier shows as much if fewer are there.
        return 1 if self.stride == 1 else max(1, self.num_steps - self.stride + 1)


class StartRule(NamedTuple):
    """A window starts `reach` frames before each frame whose step word this rule holds for.

    Attributes:
      reach: frames from the start to the frame whose word decides.
      first: the least number of the start within its episode.
      stride: the start's number is a multiple of it.
      only_first: the start is its episode's first frame.
    """

    reach: int
    first: int = 0
    stride: int = 1
    only_first: bool = False

    def holds(self, words: Array) -> Array:
        """Whether it holds, bool, the shape of `words`. It takes for granted that the start is still held.

        >>> episode = np.array([0, 2, 4, 7])  # three steps, then a final observation
        >>> StartRule(1).holds(episode).tolist()
        [False, True, True, True]
        >>> StartRule(0).holds(episode).tolist()
        [True, True, True, False]
        """
        if self.only_first:
            return np.asarray(words == 2 * self.reach)
        right = words & 1 == 0 if self.reach == 0 else words >= 2 * (self.reach + self.first)
        if self.reach == 0 and self.first:
            right &= words >= 2 * self.first
        if self.stride > 1:
            right &= ((words >> 1) - self.reach) % self.stride == 0
        return np.asarray(right)

    def holds_for(self, word: int) -> bool:
        """`holds` for one step word, in plain ints."""
        if self.only_first:
            return word == 2 * self.reach
        if (word & 1 and self.reach == 0) or word < 2 * (self.reach + self.first):
            return False
        return self.stride == 1 or ((word >> 1) - self.reach) % self.stride == 0


def start_rules(window: Window) -> tuple[StartRule, ...]:
    """The rules of which exactly one holds for each start of such a window, but for unfinished episodes.

    What an unfinished episode's newest frame cuts short is not excluded by them (`num_cut_starts`).

    >>> start_rules(Window(4))
    (StartRule(reach=3, first=0, stride=1, only_first=False),)
    """
    needed = window.num_needed
    if needed == 1 or window.short == "drop":
        return (StartRule(needed - 1, stride=window.stride),)
    # The first window of an episode is there however short it is; later ones show a frame that none before shows.
    return StartRule(0, only_first=True), StartRule(needed - 1, first=window.stride, stride=window.stride)


def num_starts(window: Window, num_frames: Array, *, final: Array, finished: Array, gone: Array | int = 0) -> Array:
    """How many windows start in episodes of `num_frames` frames, int64, the arguments' common shape.

    Starts whose context (`burn_in`) is gone count too.

    Args:
      window: the kind of window.
      num_frames: frames of each episode, those included that are gone.
      final: whether its last frame is only a final observation.
      finished: whether no frame is to come.
      gone: frames of its beginning that are not held any more.

    >>> window, yes = Window(4, stride=2, short="pad"), np.array(True)
    >>> num_starts(window, np.array([7, 2, 6]), final=~yes, finished=yes)
    array([3, 1, 2])
    """
    full = _multiples(gone, num_frames - max(window.num_steps - 1, 0) - (final if window.num_steps == 1 else 0), window)
    if window.short == "drop":
        return full
    needed = window.num_needed
    if needed == 1:
        padded = _multiples(gone, num_frames - final, window)
    else:
        has_first = (np.asarray(gone) == 0) & (num_frames - final >= 1)
        padded = has_first + _multiples(np.maximum(gone, window.stride), num_frames - needed + 1, window)
    return np.where(finished | window.pad_unfinished, padded, full)


def num_cut_starts(window: Window, num_frames: Array, gone: Array) -> Array:
    """How many starts of unfinished episodes their newest frame cuts short, so that they are not drawn yet.

    Args:
      window: the kind of window.
      num_frames: frames of each unfinished episode so far, int64.
      gone: frames of its beginning that are not held any more.

    >>> num_cut_starts(Window(4, short="pad"), np.array([2, 9]), np.array([0, 0]))
    array([2, 3])
    """
    if window.short == "drop" or window.pad_unfinished:
        return np.zeros_like(num_frames)
    if window.stride == 1:
        return np.minimum(num_frames - gone, window.num_steps - 1)
    none = np.zeros(num_frames.shape, bool)
    padded = num_starts(window, num_frames, final=none, finished=~none, gone=gone)
    return padded - num_starts(window, num_frames, final=none, finished=none, gone=gone)


def _multiples(low: Array | int, high: Array, window: Window) -> Array:
    """How many multiples of the stride lie in `[low, high)`."""
    stride = window.stride
    return np.maximum(0, -(-high // stride) - -(-np.asarray(low) // stride))


def resolve_window(num_steps: int | None, window: Window | None) -> Window | None:
    """The window that `num_steps` or `window` asks for; None for single frames without a `T` axis.

    Raises:
      TypeError: `window` is no `Window`, or `num_steps` is no int.
      ValueError: both are given, or `num_steps` is below 1.

    >>> resolve_window(2, None)
    Window(num_steps=2)
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
    stops = np.append(firsts[1:], len(words))[: len(firsts)]
    return starts, np.repeat(stops, stops - firsts)


def window_lengths(words: Array) -> Array:
    """Frames of each episode of one stream, oldest first: the longest window in each.

    >>> window_lengths(np.array([6, 9, 0, 2, 4])).tolist()
    [2, 3]
    """
    firsts = np.flatnonzero((words >> 1 == 0) | (np.arange(len(words)) == 0))
    return np.diff(np.append(firsts, len(words)))


class Placed(NamedTuple):
    """Windows of one stream: where they start and how much of them is real, int64 `[m]` each.

    Attributes:
      starts: index of the drawn frame among the stream's frames.
      num_before: real frames before it, at most `burn_in`.
      num_after: real frames from it on, at most `num_steps`.
    """

    starts: Array
    num_before: Array
    num_after: Array


def eligible_windows(words: Array, window: Window, *, unfinished: bool = False) -> Placed:
    """Every eligible window of one stream, oldest first.

    Args:
      words: the stream's step words, oldest first; with `boundaries='ignore'` twice the frames' times.
      window: the kind of window.
      unfinished: whether the newest episode may go on.

    >>> seven_steps = 2 * np.arange(7)
    >>> eligible_windows(seven_steps, Window(4, burn_in=1, stride=2, short="pad"))
    Placed(starts=array([0, 2, 4]), num_before=array([0, 1, 1]), num_after=array([4, 4, 3]))
    """
    index = np.arange(len(words))
    begins, stops = episode_bounds(words)
    chosen = np.zeros(len(words), bool)
    for rule in start_rules(window):
        ends = np.flatnonzero(rule.holds(words))
        chosen[ends[ends >= rule.reach] - rule.reach] = True
    num_after = np.minimum(stops - index, window.num_steps)
    num_held = index - begins
    chosen &= (num_held >= window.burn_in) | (words >> 1 <= num_held)
    if unfinished and not window.pad_unfinished:
        chosen &= (num_after == window.num_steps) | (stops < len(words))
    starts = np.flatnonzero(chosen)
    return Placed(starts, np.minimum(num_held[starts], window.burn_in), num_after[starts])


def stepped_windows(words: Array, num_steps: int, shift: int, *, keep_short: bool) -> Placed:
    """The windows of TF-Agents' ordered pass over one stream: in each episode at every `shift`-th frame held.

    Those that the episode's end cuts short are kept when `keep_short`; a final observation alone is none.

    >>> stepped_windows(np.array([0, 2, 4, 7, 0, 2]), 2, 2, keep_short=True)
    Placed(starts=array([0, 2, 4]), num_before=array([0, 0, 0]), num_after=array([2, 2, 2]))
    """
    index = np.arange(len(words))
    begins, stops = episode_bounds(words)
    num_after = np.minimum(stops - index, num_steps)
    chosen = ((index - begins) % shift == 0) & (words & 1 == 0)
    if not keep_short:
        chosen &= num_after == num_steps
    starts = np.flatnonzero(chosen)
    return Placed(starts, np.zeros(len(starts), np.int64), num_after[starts])
