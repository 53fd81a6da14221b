"""What `load_rlds` would make of the episodes of a dataset, for each `on_bad_episode`."""

from __future__ import annotations

import numpy as np

from replayfeed.buffers.nests import Array

from .episode_source import EpisodeSource, RawEpisode
from .rlds_check_blocks import EpisodeBlock
from .rlds_check_report import LoadForecast
from .rlds_fields import plan_fields
from .rlds_steps import LOADED_FIELDS, check_step_spec, find_fault, num_steps_of, unset_flags


class LoadingForecast:
    """What `load_rlds` would make of the episodes, found with its own functions.

    Args:
      source: of the episodes.

    >>> import tensorflow as tf
    >>> spec = {"observation": tf.TensorSpec([], tf.float32), "is_terminal": tf.TensorSpec([], tf.bool)}
    >>> forecast = LoadingForecast(EpisodeSource("mine", spec, lambda seed: iter([])))
    >>> columns = {"observation": np.array([1.0, 2.0, 3.0]), "is_terminal": np.array([False, True, False])}
    >>> forecast.add_doubtful(RawEpisode("0", columns))
    >>> str(forecast.result()["repair"])
    '1 episodes, 1 transitions (0 dropped, 1 repaired)'
    """

    def __init__(self, source: EpisodeSource) -> None:
        self._core = {field: source.step_spec[field] for field in LOADED_FIELDS if field in source.step_spec}
        self._counts = {mode: LoadForecast() for mode in ("error", "skip", "repair")}
        self.refusal: str | None = None
        """Why nothing can be loaded; None when it can."""
        try:
            check_step_spec(source.name, self._core)
            plan_fields(source.name, self._core)
        except ValueError as error:
            self.refusal = str(error)
        self._delivered = dict.fromkeys(self._counts, 0)
        self._transitions = dict.fromkeys(self._counts, 0)
        self._dropped = dict.fromkeys(self._counts, 0)
        self._repaired = dict.fromkeys(self._counts, 0)
        self._error: str | None = None

    def add(self, block: EpisodeBlock, doubtful: Array) -> None:
        """Takes the next episodes.

        Args:
          block: that has them.
          doubtful: which of them may be unsound, bool `[E]`; all others are sound.
        """
        if self.refusal is not None:
            return
        stopped_before = np.full([len(block)], self._error is not None)
        for index in np.flatnonzero(doubtful).tolist():
            self.add_doubtful(block.raws[index])
            stopped_before[index:] = self._error is not None
        sound = block.lengths[~doubtful]
        self._count("error", block.lengths[~doubtful & ~stopped_before])
        self._count("skip", sound)
        self._count("repair", sound)

    def add_doubtful(self, raw: RawEpisode) -> None:
        """Takes the next episode, which may be unsound."""
        if self.refusal is not None:
            return
        columns = {field: raw.columns[field] for field in self._core}
        fault = find_fault(columns, invalid=raw.invalid)
        if fault is not None and self._error is None:
            self._error = f"episode {raw.name}: {fault.detail}"
        num_steps = num_steps_of(columns)
        num_kept = num_steps if fault is None else fault.num_kept or 0
        repaired = fault is not None or (num_steps > 1 and bool(unset_flags(columns)))
        if self._error is None:
            self._count("error", np.array([num_steps]), repaired)
        self._count("skip", np.array([0 if fault is not None else num_steps]), repaired)
        self._count("repair", np.array([num_kept]), repaired)

    def result(self) -> dict[str, LoadForecast]:
        """By `on_bad_episode`."""
        return {
            mode: LoadForecast(
                self._delivered[mode],
                self._transitions[mode],
                self._dropped[mode],
                self._repaired[mode],
                self.refusal if self.refusal is not None else self._error if mode == "error" else None,
            )
            for mode in self._counts
        }

    def _count(self, mode: str, num_steps: Array, repaired: bool = False) -> None:
        has_transitions = num_steps > 1
        num_delivered = int(np.count_nonzero(has_transitions))
        self._dropped[mode] += len(num_steps) - num_delivered
        self._delivered[mode] += num_delivered
        self._transitions[mode] += int(num_steps[has_transitions].sum()) - num_delivered
        self._repaired[mode] += num_delivered * repaired
