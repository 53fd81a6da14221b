"""What a rollout's frames say about their transitions: rewards, discounts, ends; in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .advantages import Transitions
from .episode_ends import EpisodeMarks
from .nests import Array

# What is kept of each frame, by name.
COLUMNS: dict[str, type[np.generic]] = {
    "rewards": np.float32,
    "discounts": np.float32,
    "terminal": np.bool_,
    "begins": np.bool_,
    "ends": np.bool_,
    "final": np.bool_,
}


class RolloutRecord:
    """Reward, discount and marks of `T` frames of `B` streams, beside the frames themselves.

    Args:
      batch_size: `B`.
      num_steps: `T`.
    """

    def __init__(self, batch_size: int, num_steps: int) -> None:
        self._batch_size = batch_size
        shape = (num_steps, batch_size)  # time first: a step is one piece of memory
        self._rewards = np.zeros(shape, np.float32)
        self._discounts = np.ones(shape, np.float32)
        self._terminal = np.zeros(shape, bool)
        self._begins = np.zeros(shape, bool)
        self._ends = np.zeros(shape, bool)
        self._final = np.zeros(shape, bool)

    def write(
        self, step: int, num: int, rewards: Array, discounts: Array | None, terminal: Array | None, marks: EpisodeMarks
    ) -> None:
        """Notes `num` steps from `step` on, arrays `[B]` or `[B, num]`; None: discount 1, no flag."""
        rows = slice(step, step + num)
        columns: list[tuple[Array, Any, Any]] = [
            (self._rewards, rewards, 0),
            (self._discounts, discounts, 1),
            (self._terminal, terminal, False),
            (self._begins, marks.begins, False),
            (self._ends, marks.ends, False),
            (self._final, marks.final, False),
        ]
        for target, source, default in columns:
            target[rows] = default if source is None else source.reshape(self._batch_size, num).T

    def columns(self, num_steps: int) -> dict[str, Array]:
        """Copies of what is noted of the first steps, `[num_steps, B]` each, by the names in `COLUMNS`."""
        return {name: getattr(self, f"_{name}")[:num_steps].copy() for name in COLUMNS}

    def restore(self, columns: Mapping[str, Array]) -> None:
        """Notes anew what `columns` gave, from the first step on."""
        for name, column in columns.items():
            getattr(self, f"_{name}")[: len(column)] = column

    def end(self, num_steps: int, b: int | None) -> None:
        """Stream `b` (None: all of them) stops after the newest of `num_steps` frames."""
        if num_steps:
            self._ends[num_steps - 1, slice(None) if b is None else b] = True

    def transitions(self, gamma: float) -> Transitions:
        """Transitions of all frames, leaves `[B, T]`; rewards and discounts are 0 where there is none.

        A terminal flag on a final observation speaks of the transition into it, on another frame of
        the one that starts there.
        """
        into_next = np.zeros_like(self._ends)  # the next frame is this transition's state, not another episode's
        into_next[:-1] = ~self._begins[1:] & ~self._ends[:-1]
        mask = ~self._final
        is_terminal = self._terminal.copy()
        is_terminal[:-1] |= into_next[:-1] & self._final[1:] & self._terminal[1:]
        cut = np.zeros_like(mask)
        cut[-1] = self._ends[-1]
        cut[:-1] = ~into_next[:-1]
        goes_on = into_next & mask
        goes_on[:-1] &= mask[1:]
        discounts = np.where(is_terminal | ~mask, np.float32(0), np.float32(gamma) * self._discounts)
        rewards = np.where(mask, self._rewards, np.float32(0))
        return Transitions(*(np.ascontiguousarray(leaf.T) for leaf in (rewards, discounts, mask, cut & mask, goes_on)))
