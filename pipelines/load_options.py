"""What `load_rlds` lets a caller decide, checked in one place."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from .layouts import Layout, PolicyInfo, check_layout
from .rlds_steps import Alignment

OnBadEpisode = Literal["error", "skip", "repair"]

ZeroObservation = Literal["keep", "mark", "repeat"]
"""What becomes of an all-zero observation behind a terminal transition, as D4RL files have it."""

Compat = Literal["tf_agents"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How raw episodes become frames; `load_rlds` tells what each means.

    Raises:
      ValueError: an option has none of its values; the message names them.
      ImportError: the layout needs TF-Agents, which is not installed.

    >>> LoadOptions(layout="transition").on_bad_episode
    'error'
    """

    layout: Layout
    on_bad_episode: OnBadEpisode = "error"
    limit: int | None = None
    seed: int | None = None
    alignment: Alignment = "sar"
    policy_info: PolicyInfo = None
    reward_dtype: Any = tf.float32
    episode_fields: tuple[str, ...] = ()
    return_to_go: float | None = None
    zero_observation: ZeroObservation = "keep"
    absorbing: bool = False
    agent_field: str | None = None
    compat: Compat | None = None

    def __post_init__(self) -> None:
        check_layout(self.layout)
        _check_choice("on_bad_episode", self.on_bad_episode, get_args(OnBadEpisode))
        _check_choice("alignment", self.alignment, get_args(Alignment))
        _check_choice("zero_observation", self.zero_observation, get_args(ZeroObservation))
        _check_choice("compat", self.compat, (None, *get_args(Compat)))
        if self.limit is not None and (not _is_int(self.limit) or self.limit < 1):
            raise ValueError(f"limit must be 1 or more episodes, or None for all, got {self.limit!r}.")
        if self.seed is not None and (not _is_int(self.seed) or self.seed < 0):
            raise ValueError(f"seed must be an int of 0 or more, or None for the source's order, got {self.seed!r}.")
        if tf.as_dtype(self.reward_dtype) not in (tf.float32, tf.float64):
            raise ValueError(f"reward_dtype must be float32 or float64, got {self.reward_dtype!r}.")
        if self.return_to_go is not None and not (math.isfinite(self.return_to_go) and 0.0 <= self.return_to_go <= 1.0):
            raise ValueError(f"return_to_go is the discount of the sum, in [0, 1], got {self.return_to_go!r}.")
        if self.policy_info is not None and self.layout != "trajectory":
            raise ValueError(
                f"policy_info is for layout 'trajectory'; layout {self.layout!r} has step metadata under its own names."
            )
        if isinstance(self.policy_info, str) or isinstance(self.episode_fields, str):
            raise ValueError("policy_info and episode_fields take several names: write ['name'] for one.")
        if self.compat is not None and (self.layout != "trajectory" or self._changes_frames()):
            raise ValueError(
                "compat='tf_agents' gives what TF-Agents' converter gives: it takes layout='trajectory', and none of "
                "policy_info, alignment, reward_dtype, episode_fields, return_to_go, zero_observation, absorbing and "
                "agent_field."
            )

    @property
    def numpy_reward_dtype(self) -> np.dtype[Any]:
        """`reward_dtype` as NumPy's."""
        return np.dtype(tf.as_dtype(self.reward_dtype).as_numpy_dtype)

    def _changes_frames(self) -> bool:
        unchanged = LoadOptions(layout="transition")
        names = ("alignment", "episode_fields", "return_to_go", "zero_observation", "absorbing", "agent_field")
        return (
            self.policy_info is not None
            or tf.as_dtype(self.reward_dtype) != tf.float32
            or any(getattr(self, name) != getattr(unchanged, name) for name in names)
        )


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(others)}{' or ' if others else ''}{last}, got {value!r}.")
