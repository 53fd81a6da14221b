"""How frames become a rollout: room is checked first, ends are told, then the frame and what it says are written."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from .advantages import Transitions
from .base import ReplayBuffer
from .episode_ends import EpisodeMarks, EpisodeRule
from .nests import Array
from .rollout_fields import STATE_FLAG, RolloutFields, column, flags
from .rollout_record import RolloutRecord
from .spec import DataSpec

# Why a rollout takes frames of all streams only, and what does instead.
WHY_STREAMS_STAY = (
    "a rollout is [B, T], the streams of a step side by side, so each step brings a frame of every stream. Build one "
    "RolloutBuffer for each stream that goes at its own pace."
)


class RolloutWriter:
    """Writes frames into a buffer that holds one rollout, and keeps the record of their transitions.

    Args:
      frames: an empty buffer of `B * T` frames that gets its episode ends from here.
      spec: the spec of a frame.
      fields: where reward, discount and flags are.
      rule: tells where episodes begin and end.
      num_steps: `T`.
    """

    def __init__(
        self, frames: ReplayBuffer, spec: DataSpec, fields: RolloutFields, rule: EpisodeRule, num_steps: int
    ) -> None:
        self._frames = frames
        self._spec = spec
        self._fields = fields
        self._rule = rule
        self._num_steps = num_steps
        self._record = RolloutRecord(frames.batch_size, num_steps)
        # The id of the rollout's first frame.
        self.first_id = 0
        # Held while the rollout changes; the frames' own is taken inside of it.
        self.lock = threading.Lock()
        # Counts changes, so that what was computed from the rollout is known to be of this one.
        self.version = 0

    @property
    def num_steps_held(self) -> int:
        """Frames of each stream."""
        return len(self._frames) // self._frames.batch_size

    def ids(self) -> Array:
        """Ids of the frames held, int64 `[B, n]`."""
        with self.lock:
            # A ring's ids count all frames ever added, the streams of a step side by side (`ring.py`).
            num_frames = len(self._frames)
            ids = np.arange(self.first_id, self.first_id + num_frames)
            return ids.reshape(-1, self._frames.batch_size).T

    def add_step(
        self, leaves: list[Array], end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """One frame a stream, leaves `[B, ...]`; returns ids int64 `[B]`. Refuses `streams`."""
        refuse_streams(streams)
        return self._add(leaves, 1, (self._frames.batch_size,), end_of_episode, priorities)

    def add_steps(
        self, leaves: list[Array], num_steps: int, end_of_episode: Any, priorities: Any, streams: Array | None = None
    ) -> Array:
        """`T` frames a stream, leaves `[B, T, ...]`; returns ids int64 `[B, T]`. Refuses `streams`."""
        refuse_streams(streams)
        return self._add(leaves, num_steps, (self._frames.batch_size, num_steps), end_of_episode, priorities)

    def end_stream(self, b: int | None) -> None:
        """Stream `b` (None: all of them) stops at its newest frame.

        Raises:
          ValueError: there is no stream `b`, or the buffer is closed.
        """
        with self.lock:
            self._frames.end_stream(b)
            self._record.end(self.num_steps_held, b)
            self.version += 1

    def clear(self) -> None:
        """Makes room for the next rollout."""
        with self.lock:
            num_frames = len(self._frames)
            self._frames.clear()
            self.begin(self.first_id + num_frames)

    def begin(self, first_id: int) -> None:
        """A rollout begins, whose frames get the ids from this one on; the caller holds the lock, and cleared them."""
        self.first_id = first_id
        self.version += 1

    def columns(self) -> dict[str, Array]:
        """What is noted of the frames held, `[n, B]` each; the caller holds the lock."""
        return self._record.columns(self.num_steps_held)

    def restore(self, first_id: int, columns: Mapping[str, Array]) -> None:
        """Goes on with frames from this id on, of which `columns` says what it gave; the caller holds the lock."""
        self._record.restore(columns)
        self.first_id = first_id
        self.version += 1

    def transitions(self, gamma: float, *, has_final_values: bool) -> Transitions:
        """The transitions of the whole rollout, leaves `[B, T]`.

        Raises:
          ValueError: fewer than `T` steps are held.
          ValueError: a discount is negative or not finite.
          ValueError: an episode was cut without its final observation, and there are no final values.
        """
        with self.lock:
            held = self.num_steps_held
            if held < self._num_steps:
                raise ValueError(
                    f"advantages need the whole rollout, and it holds {held} of {self._num_steps} steps: add "
                    f"{self._num_steps - held} more, or build the buffer with a smaller num_steps."
                )
            transitions = self._record.transitions(gamma)
        wrong = ~(np.isfinite(transitions.discounts) & (transitions.discounts >= 0))
        if wrong.any():
            b, t = np.argwhere(wrong)[0]
            raise ValueError(
                f"gamma times the discount of stream {b}, step {t} is {transitions.discounts[b, t]}, "
                f"expected a finite number of at least 0; {int(wrong.sum())} such frames."
            )
        unknown = transitions.cut & (transitions.discounts > 0)
        if unknown.any() and not has_final_values:
            b, t = np.argwhere(unknown)[0]
            raise ValueError(
                f"{int(unknown.sum())} frames end an episode that is not terminal and hold no final observation after "
                f"them, the first is stream {b}, step {t}: pass final_values [{self._frames.batch_size}, "
                f"{self._num_steps}] with V(final observation) there, or mark true ends with a discount of 0 or a "
                "terminal flag."
            )
        return transitions

    def _add(
        self, leaves: list[Array], num: int, outer: tuple[int, ...], end_of_episode: Any, priorities: Any
    ) -> Array:
        fields = self._fields
        terminal = flags(leaves, fields.terminal, outer)
        marks = self._marks(leaves, outer, end_of_episode, terminal)
        if terminal is not None:
            self._check_state_flags(terminal, marks)
        rewards = column(leaves, fields.reward, outer)
        discounts = None if fields.discount is None else column(leaves, fields.discount, outer)
        items = self._spec.pack(leaves)
        with self.lock:
            held = self.num_steps_held
            if held + num > self._num_steps:
                raise ValueError(
                    f"the rollout holds {held} of {self._num_steps} steps, so there is no room for {num} more: nothing "
                    "was written. Train on it and clear() it first, or build the buffer with a larger num_steps."
                )
            # Beyond what is held nobody reads: what stands there counts only once the frames are in.
            self._record.write(held, num, rewards, discounts, terminal, marks)
            add = self._frames.add_batch if len(outer) == 1 else self._frames.add_sequence
            try:
                return add(items, end_of_episode=marks.ends, priorities=priorities)
            except Exception:
                raise  # refused, nothing is written
            except BaseException:  # Ctrl-C: a frame may be missing, so that the next one follows none
                self._record.end(self.num_steps_held, None)
                raise
            finally:
                self.version += 1

    def _marks(
        self, leaves: list[Array], outer: tuple[int, ...], end_of_episode: Any, terminal: Array | None
    ) -> EpisodeMarks:
        """Where the items do not tell ends otherwise, their terminal and truncated flags do."""
        truncated = flags(leaves, self._fields.truncated, outer)
        told = [flag for flag in (terminal, truncated) if flag is not None]
        if self._rule.told_by_spec or not told:
            return self._rule.marks(leaves, end_of_episode)
        if end_of_episode is not None:
            given = self._rule.marks(leaves, end_of_episode).ends  # checked, and of the right shape
            told += [] if given is None else [given]
        return self._rule.marks(leaves, np.logical_or.reduce(told))

    def _check_state_flags(self, terminal: Array, marks: EpisodeMarks) -> None:
        """Refuses an `is_terminal` on a frame that is no final observation, where there are such frames."""
        if self._fields.terminal_path != STATE_FLAG or not self._rule.has_final_observations:
            return
        stray = terminal if marks.final is None else terminal & ~marks.final
        if stray.any():
            where = "stream {}, step {}" if stray.ndim == 2 else "stream {}"
            raise ValueError(
                f"field {STATE_FLAG!r} is true for {where.format(*np.argwhere(stray)[0])}, which is not an episode's "
                "last frame: in RLDS it belongs to the last step. Move it there, or name a field that speaks of the "
                "transition with terminal_field."
            )


def refuse_streams(streams: Any) -> None:
    """Refuses adds to some streams only.

    Raises:
      ValueError: `streams` is not None.

    >>> refuse_streams(None)
    """
    if streams is not None:
        raise ValueError(f"streams: {WHY_STREAMS_STAY}")
