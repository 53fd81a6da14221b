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
