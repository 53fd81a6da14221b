"""Where the frames of an episodic buffer begin, complete and end episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .agent_frames import AgentFrame
from .episode_ends import EpisodeRule
from .nests import Array, Nest
from .spec import DataSpec

_STEP_TYPE_LAST = 2


class FrameMarks(NamedTuple):
    """Bool arrays `[B]` or `[B, T]`; None stands for all False.

    Attributes:
      begins: the frame is the first of its episode.
      completes: with the frame the episode's last real transition is in.
      ends: the frame is the last of its episode.
      final: the frame ends its episode and is only a final observation.
    """

    begins: Array | None
    completes: Array | None
    ends: Array | None
    final: Array | None


class FrameMarker:
    """Reads marks from frames.

    An episode is complete where a top-level `next_step_type` is LAST: the frame before the boundary frame, what
    TF-Agents' `is_last()` tells; of an `AgentFrame` the agent's own frame is looked at. In other specs it is complete
    where it ends.

    Args:
      spec: the spec of a frame.
      rule: tells where episodes begin and end.
      begin_episode_fn: `items -> bool [B]` (`[B, T]`) or one bool for all; takes the place of what the rule says.
      end_episode_fn: the same, for the frames that complete an episode. Where nothing tells beginnings, it ends there.
      final_by_function: whether a frame that `end_episode_fn` ends an episode with is only a final observation.
    """

    def __init__(
        self,
        spec: DataSpec,
        rule: EpisodeRule,
        begin_episode_fn: Callable[[Nest], Any] | None = None,
        end_episode_fn: Callable[[Nest], Any] | None = None,
        *,
        final_by_function: bool = False,
    ) -> None:
        for name, function in (("begin_episode_fn", begin_episode_fn), ("end_episode_fn", end_episode_fn)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function items -> bool [B], got {function!r}.")
        self._spec = spec
        self._rule = rule
        self.begin_episode_fn = begin_episode_fn
        self.end_episode_fn = end_episode_fn
        self._final_by_function = final_by_function
        self._next_step_type = None
        path = "frame/next_step_type" if isinstance(spec.nest, AgentFrame) else "next_step_type"
        for index, field in enumerate(spec.fields):
            if field.path == path and field.shape in ((), (1,)) and rule.told_by_spec:
                self._next_step_type = index

    def marks(
        self,
        leaves: Sequence[Array],
        end_of_episode: Any = None,
        streams: Array | None = None,
        *,
        one_episode: bool = False,
    ) -> FrameMarks:
        """Marks for checked leaves `[B, ...]` or `[B, T, ...]`.

        With `streams` int64 `[n]` the leaves are `[n, ...]` (`[n, T, ...]`), of these only.
        With `one_episode` leaves are `[T, ...]`, and one bool from a function means the first frame (that it
        begins) or the last (that it completes).

        Raises:
          ValueError: `end_of_episode`, or what a function returned, does not fit.
        """
        begins, ends, final = self._rule.marks(leaves, end_of_episode, streams)
        completes = ends
        outer = leaves[0].shape[: leaves[0].ndim - len(self._spec.fields[0].shape)]
        if self.end_episode_fn is not None:
            completes = self._call("end_episode_fn", self.end_episode_fn, leaves, outer, -1 if one_episode else None)
            if begins is None and self.begin_episode_fn is None:
                ends = completes if ends is None else ends | completes
                if self._final_by_function:
                    final = completes if final is None else final | completes
            completes = completes if ends is None else completes | ends
        elif self._next_step_type is not None:
            next_step_type = leaves[self._next_step_type].reshape(outer)
            completes = next_step_type == _STEP_TYPE_LAST
            completes = completes if ends is None else completes | ends
        if self.begin_episode_fn is not None:
            begins = self._call("begin_episode_fn", self.begin_episode_fn, leaves, outer, 0 if one_episode else None)
        return FrameMarks(begins, completes, ends, final)

    def _call(
        self,
        name: str,
        function: Callable[[Nest], Any],
        leaves: Sequence[Array],
        outer: tuple[int, ...],
        at: int | None,
    ) -> Array:
        value = function(self._spec.pack(leaves))
        flags = np.asarray(value.numpy() if isinstance(value, tf.Tensor) else value)
        if flags.dtype != bool or flags.shape not in ((), outer):
            raise ValueError(f"{name}'s result: expected {list(outer)} bool, got {list(flags.shape)} {flags.dtype}.")
        if flags.shape == outer:
            return flags
        if at is None or not flags:
            return np.broadcast_to(flags, outer)
        marked = np.zeros(outer, bool)
        marked[at : at + 1 or None] = True
        return marked
