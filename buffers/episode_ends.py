"""Where episodes begin and end, as the data tells it.

An episode ends where a top-level `step_type` is LAST (a TF-Agents `Trajectory`, or any namedtuple
or dict with that field) or a top-level `is_last` is true; other specs take `end_of_episode_fn` or
the `end_of_episode` argument of `add_batch`. Where `step_type` is FIRST or `is_first` is true, an
episode begins, whether or not the one before was ended: a reset without a flag joins nothing. Of an `AgentFrame` the
agent's own frame is what is looked at.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from .agent_frames import AgentFrame, JointFrame
from .nests import Array, Nest
from .spec import DataSpec

_STEP_TYPE_FIRST, _STEP_TYPE_LAST = 0, 2

# Fields that sound like an end, and are none to a buffer: some hold them beside each transition.
_LOOSE_FLAGS = ("done", "dones", "terminal", "terminated", "truncated", "is_terminal")

FinalFrame = Literal["auto", "observation", "ordinary"]


class EpisodeMarks(NamedTuple):
    """Bool arrays `[B]` or `[B, T]`; None stands for all False.

    Attributes:
      begins: the frame is the first of its episode.
      ends: the frame is the last of its episode.
      final: the frame ends its episode and is only a final observation.
    """

    begins: Array | None
    ends: Array | None
    final: Array | None


class EpisodeRule:
    """Tells beginnings and ends of episodes from items that match a spec.

    Args:
      spec: the spec that the items match.
      end_of_episode_fn: `items -> bool [B]` (in `add_sequence` `[B, T]`), for specs that
        carry no end themselves; called with the caller's nest of NumPy arrays.
      final_frame: whether the frame that ends an episode is only a final observation, which
        starts no window. `'auto'`: it is where the spec itself tells the end (`step_type`,
        `is_last`), and is not where the function or the argument does.

    Warns (`UserWarning`) when a `step_type` or `is_last` stands elsewhere in the spec and nothing else tells ends; and
    when a frame follows one whose `done`, `terminal`, `terminated`, `truncated` or `is_terminal` is true without an end
    between them, in a buffer of which windows are drawn (`expect_windows`).

    Raises:
      TypeError: `end_of_episode_fn` cannot be called.
      ValueError: `final_frame` is none of the three.
    """

    def __init__(
        self,
        spec: DataSpec,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
    ) -> None:
        if end_of_episode_fn is not None and not callable(end_of_episode_fn):
            raise TypeError(f"end_of_episode_fn must be a function items -> bool [B], got {end_of_episode_fn!r}.")
        if final_frame not in ("auto", "observation", "ordinary"):
            raise ValueError(f"final_frame must be 'auto', 'observation' or 'ordinary', got {final_frame!r}.")
        self._spec = spec
        self._function = end_of_episode_fn
        self._final_by_spec = final_frame in ("auto", "observation")
        self._final_by_caller = final_frame == "observation"
        self._step_type = self._flag_field("step_type")
        self._is_last = self._flag_field("is_last")
        self._is_first = self._flag_field("is_first")
        self._loose_flags: list[int] = []
        # Of these fields one that came true, with the frame added last, and with a frame that the next one followed.
        self._loose_now: str | None = None
        self._loose_joined: str | None = None
        self._expects_windows = False
        # Of a moment of many agents whoever writes it tells the ends.
        if not self.told_by_items and not isinstance(spec.nest, JointFrame):
            self._warn_of_overlooked_ends()
            found = [self._flag_field(name) for name in _LOOSE_FLAGS]
            self._loose_flags = [index for index in found if index is not None]

    @property
    def told_by_spec(self) -> bool:
        """Whether the items themselves say where an episode ends."""
        return self._step_type is not None or self._is_last is not None

    @property
    def told_by_items(self) -> bool:
        """Whether items tell ends, by themselves or through `end_of_episode_fn`."""
        return self.told_by_spec or self._function is not None

    @property
    def is_silent(self) -> bool:
        """Whether items tell nothing: neither ends nor beginnings, nor anything that is worth a warning."""
        return not (self.told_by_items or self._loose_flags) and self._is_first is None

    @property
    def has_final_observations(self) -> bool:
        """Whether an episode's last frame may be only a final observation."""
        return (self.told_by_spec and self._final_by_spec) or self._final_by_caller

    def marks(self, leaves: Sequence[Array], end_of_episode: Any = None, streams: Array | None = None) -> EpisodeMarks:
        """Marks for checked leaves `[B, ...]` or `[B, T, ...]`, in the order of the spec's fields.

        With `streams` int64 `[n]` the leaves are `[n, ...]` (`[n, T, ...]`), of these only.

        Raises:
          ValueError: `end_of_episode`, or what `end_of_episode_fn` returned, is not bool `[B]` (`[B, T]`).
        """
        begins = told = None
        if self._step_type is not None:
            step_type = self._flag(leaves, self._step_type)
            begins, told = step_type == _STEP_TYPE_FIRST, step_type == _STEP_TYPE_LAST
        if self._is_last is not None:
            is_last = self._flag(leaves, self._is_last).astype(bool, copy=False)
            told = is_last if told is None else told | is_last
        if self._is_first is not None:
            is_first = self._flag(leaves, self._is_first).astype(bool, copy=False)
            begins = is_first if begins is None else begins | is_first
        if self._function is None and end_of_episode is None:
            if self._loose_flags:
                self._look_for_loose_flags(leaves, streams)
            return EpisodeMarks(begins, told, told if self._final_by_spec else None)
        return self._with_callers_ends(leaves, begins, told, end_of_episode)

    def expect_windows(self) -> None:
        """Says that frames which follow each other are drawn together, so that ends matter."""
        self._expects_windows = True
        self._warn_of_loose_flags()

    def forget_loose_flags(self) -> None:
        """Says that the frames added last were ends after all: their streams were ended."""
        self._loose_now = None

    @property
    def loose_flag(self) -> str | None:
        """Of the frame added last, the field by which it looks like an end that nothing told; None: it does not."""
        return self._loose_now

    def restore_loose_flag(self, path: str | None) -> None:
        """Goes on after a frame of which `loose_flag` told this."""
        self._loose_now = path if self._loose_flags else None

    def _look_for_loose_flags(self, leaves: Sequence[Array], streams: Array | None) -> None:
        if streams is not None:
            # Of what follows what nothing is known here but inside of a sequence.
            self._loose_now = None
        joined, now = self._loose_now, None
        for index in self._loose_flags:
            flags = self._flag(leaves, index)
            if not flags.any():
                continue
            path = self._shown_path(index)
            if flags.ndim == 2 and flags[:, :-1].any():
                joined = path
            if flags.ndim == 1 or flags[:, -1].any():
                now = path
        self._loose_now = now if streams is None else None
        if joined is not None:
            self._loose_joined, self._loose_flags = joined, []
            self._warn_of_loose_flags()

    def _warn_of_loose_flags(self) -> None:
        if self._loose_joined is None or not self._expects_windows:
            return
        path, self._loose_joined = self._loose_joined, None
        warnings.warn(
            f"a frame followed one with {path!r}, and no end was told between them: windows run on from one episode "
            "into the next. Say end_of_episode at each add, or end_of_episode_fn at construction.",
            UserWarning,
            stacklevel=6,
        )

    def _with_callers_ends(
        self, leaves: Sequence[Array], begins: Array | None, told: Array | None, end_of_episode: Any
    ) -> EpisodeMarks:
        # Every leaf starts with the same outer axes: what is left of the field's own shape.
        outer = leaves[0].shape[: leaves[0].ndim - len(self._spec.fields[0].shape)]
        ends = np.zeros(outer, bool)
        if self._function is not None:
            ends |= as_flags("end_of_episode_fn's result", self._function(self._spec.pack(leaves)), outer)
        if end_of_episode is not None:
            ends |= as_flags("end_of_episode", end_of_episode, outer)
        final = ends if self._final_by_caller else np.zeros(outer, bool)
        if told is not None:
            ends = ends | told
            if self._final_by_spec:
                final = final | told
        return EpisodeMarks(begins, ends, final)

    def _flag_field(self, name: str) -> int | None:
        """Index of the top-level field of that name when it is one real number a frame, else None."""
        path = f"frame/{name}" if isinstance(self._spec.nest, AgentFrame) else name
        for index, field in enumerate(self._spec.fields):
            if field.path == path and field.shape in ((), (1,)) and not field.dtype.is_complex:
                return index
        return None

    def _shown_path(self, index: int) -> str:
        """A field's path as the caller knows it."""
        path = self._spec.fields[index].path
        return path.removeprefix("frame/") if isinstance(self._spec.nest, AgentFrame) else path

    def _flag(self, leaves: Sequence[Array], index: int) -> Array:
        """The field's numbers, `[B]` or `[B, T]`, without the axis of one that some specs give them."""
        return leaves[index][..., 0] if self._spec.fields[index].shape else leaves[index]

    def _warn_of_overlooked_ends(self) -> None:
        for index, field in enumerate(self._spec.fields):
            if field.path.split("/")[-1] in ("step_type", "is_last"):
                warnings.warn(
                    f"data_spec has the field {self._shown_path(index)!r}, but ends of episodes are read from a "
                    "top-level "
                    "'step_type' or 'is_last' of one number a frame only: without end_of_episode_fn, or end_of_episode "
                    "at each add, windows run on from one episode into the next.",
                    UserWarning,
                    stacklevel=4,
                )
                return


def as_flags(name: str, value: Any, outer: tuple[int, ...]) -> Array:
    """`value` as a bool array of this shape.

    Raises:
      ValueError: it is none; the message begins with `name`.

    >>> as_flags("present", [True, False], (2,))
    array([ True, False])
    """
    flags = np.asarray(value.numpy() if isinstance(value, tf.Tensor) else value)
    if flags.dtype != bool or flags.shape != outer:
        raise ValueError(f"{name}: expected {list(outer)} bool, got {list(flags.shape)} {flags.dtype}.")
    return flags
