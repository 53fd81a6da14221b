"""How many samples of a kind an episode holds, and with what chance each is drawn. Pure.

An episode's *state* is one number: `8 * length + flags`, so that whoever reads it finds length and flags of
one moment. Its windows start at its frames `0, s, 2 s, ...` with the window's stride `s`: how many of
them do is all there is to know (`num_starts`; test: the same numbers as `windows.num_starts`).
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from .nests import Array
from .windows import Window

# Flags of an episode: its last real transition is in; no frame is to come; its last frame is only a final observation.
COMPLETED, FINISHED, FINAL = 1, 2, 4
FLAG_BITS = 3

Draw = Literal["windows", "episodes", "length"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is drawn, and by which law.

    Attributes:
      window: the kind of window; None for whole episodes.
      draw: `'windows'`: each window with the same chance; `'episodes'`: each episode with the same chance, then
        each of its windows; `'length'`: each episode by its number of frames, then each of its windows.
      completed_only: leave episodes out whose last real transition is not in.
    """

    window: Window | None
    draw: Draw
    completed_only: bool

    @property
    def by_frame(self) -> bool:
        """Whether a draw begins with a frame, not with an episode."""
        return self.draw != "episodes"

    @property
    def only_by_step(self) -> bool:
        """Whether a frame's number within its episode tells that a window ends there: nothing else is to be read."""
        window = self.window
        if window is None or self.draw != "windows" or self.completed_only:
            return False
        return window.short == "drop" and window.num_steps > 1

    def num_starts(self, states: Any) -> Any:
        """Samples in episodes with these states; int64, their shape: an array, or a tensor for a tensor."""
        ops: ModuleType = tf if isinstance(states, tf.Tensor) else np
        window = self.window or Window(1)
        length = states // (1 << FLAG_BITS)
        real = length - states % 8 // FINAL
        stride, steps = window.stride, window.num_steps
        num = _at_least_0(ops, _ceil_div((real if steps == 1 else length) - (steps - 1), stride))
        if window.short == "pad" and steps > 1:
            padded = _ceil_div(real, stride)
            needed = window.num_needed
            if needed > 1:
                # The episode's first window however short it is; later ones only if they show a frame more.
                later = _at_least_0(ops, _ceil_div(length - needed + 1, stride) - 1)
                padded = ops.where(real >= 1, later + 1, ops.zeros_like(later))
            padded = _at_least_0(ops, padded)
            num = padded if window.pad_unfinished else ops.where(states % 4 >= FINISHED, padded, num)
        if self.completed_only:
            num = ops.where(ops.equal(states % 2, COMPLETED), num, ops.zeros_like(num))
        return num

    def weights(self, states: Any) -> Any:
        """For each episode the sum of the chances of its samples, times `total`; int64, the shape of `states`."""
        num = self.num_starts(states)
        if self.draw == "windows" and self.window is not None:
            return num
        ops: ModuleType = tf if isinstance(states, tf.Tensor) else np
        unit = states // (1 << FLAG_BITS) if self.draw == "length" else ops.ones_like(states)
        return ops.where(num > 0, unit, ops.zeros_like(states))

    def weight(self, state: int) -> int:
        """`weights` for one episode, in plain ints: what every add of a single frame pays."""
        window = self.window
        if state == 0 or (self.completed_only and not state & COMPLETED):
            return 0
        if window is not None and window.short == "pad" and window.num_steps > 1:
            return int(self.weights(np.array(state)))
        length, stride = state >> FLAG_BITS, 1
        num = length - ((state & FINAL) >> 2)
        if window is not None:
            stride = window.stride
            if window.num_steps > 1:
                num = length - window.num_steps + 1
        if num <= 0:
            return 0
        if self.draw == "windows" and window is not None:
            return num if stride == 1 else -(-num // stride)
        return length if self.draw == "length" else 1


def state_of(length: Any, flags: Any) -> Any:
    """The state of an episode.

    >>> state_of(5, COMPLETED | FINISHED)
    43
    """
    return (length << FLAG_BITS) + flags


def lengths_of(states: Array) -> Array:
    """Frames of episodes with these states.

    >>> lengths_of(np.array([43, 0])).tolist()
    [5, 0]
    """
    return states >> FLAG_BITS


def is_finished(state: int) -> bool:
    """Whether an episode with this state gets no more frames.

    >>> is_finished(43)
    True
    """
    return bool(state & FINISHED)


def _ceil_div(value: Any, stride: int) -> Any:
    return value if stride == 1 else -(-value // stride)


def _at_least_0(ops: ModuleType, value: Any) -> Any:
    return ops.maximum(value, ops.zeros_like(value))
