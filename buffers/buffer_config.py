"""Which in-process buffer is meant, and its settings: checked before there is data, and built later."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from .base import ReplayBuffer
from .counts import check_count
from .episode_ends import FinalFrame
from .episodic import EpisodicReplayBuffer
from .frame_priorities import Initial
from .nests import Nest
from .plain_settings import settings_of
from .priorities import DEFAULT_EPS, WeightNorm, check_exponent, check_weight_norm
from .prioritized import TFPrioritizedReplayBuffer
from .rank_index import LARGEST_RANK_ALPHA
from .reservoir import ReservoirReplayBuffer
from .sampler_choice import choose_sampler
from .uniform import TFUniformReplayBuffer

Kind = Literal["uniform", "prioritized", "episodic", "reservoir"]
Variant = Literal["proportional", "rank"]

# Of what only one kind has: which, and what stands there when nothing was said.
_OF_ONE_KIND: dict[str, tuple[Kind, Any]] = {
    "alpha": ("prioritized", 0.6),
    "beta": ("prioritized", 0.4),
    "eps": ("prioritized", DEFAULT_EPS),
    "weight_norm": ("prioritized", "batch"),
    "initial": ("prioritized", "max"),
    "variant": ("prioritized", "proportional"),
    "stratified": ("prioritized", False),
    "newest_fraction": ("uniform", 0.0),
    "max_times_sampled": ("uniform", 0),
    "max_frames": ("episodic", None),
    "completed_only": ("episodic", False),
}
# Why the nearest thing to it is something else.
_INSTEAD = {
    ("newest_fraction", "prioritized"): "with initial='max' new frames are drawn soon",
    ("max_times_sampled", "prioritized"): "a served table has both, TableConfig(sampler=Prioritized())",
    ("max_frames", "uniform"): "capacity counts frames",
    ("max_frames", "prioritized"): "capacity counts frames",
    ("max_frames", "reservoir"): "capacity counts frames",
}


@dataclasses.dataclass(frozen=True)
class BufferConfig:
    """An in-process buffer that is still to be built: its kind, how much it keeps, and its settings.

    A setting that the kind has not is refused, whatever its value. What takes a function (`end_of_episode_fn`,
    `eligible_fn`, a schedule for `beta`) has no place here: give `functools.partial` of the buffer's class instead.

    Args:
      kind: `'uniform'` (`TFUniformReplayBuffer`), `'prioritized'` (`TFPrioritizedReplayBuffer`), `'episodic'`
        (`EpisodicReplayBuffer`) or `'reservoir'` (`ReservoirReplayBuffer`).
      capacity: frames held in all streams together; of kind `'episodic'` episodes.
      alpha: of `'prioritized'`, as there; 0.6 when not said.
      beta: of `'prioritized'`, a number; 0.4 when not said.
      eps: of `'prioritized'`; 1e-6 when not said.
      weight_norm: of `'prioritized'`: `'batch'`, which `'default'` stands for, `'buffer'`, or None for no norm.
      initial: of `'prioritized'`: `'max'`, when not said, `'ever'` or a priority.
      variant: of `'prioritized'`: `'proportional'`, when not said, or `'rank'`.
      stratified: of `'prioritized'`; False when not said.
      newest_fraction: of `'uniform'`; 0 when not said.
      max_times_sampled: of `'uniform'`; 0, any number of times, when not said.
      max_frames: of `'episodic'`: frames held at most; None: no limit beside `capacity`.
      completed_only: of `'episodic'`; False when not said.
      min_size_to_sample: frames that must be held before anything can be drawn.
      seed: makes draws repeat exactly; None: they differ in each run.
      final_frame: whether an episode's last frame is only a final observation (`episode_ends.py`).

    Raises:
      ValueError: `kind` is none of the four, or a setting is of another kind.
      TypeError: `capacity`, `max_frames`, `max_times_sampled` or `min_size_to_sample` is no int.
      ValueError: one of them is too small, or `min_size_to_sample` above the frames held.
      TypeError, ValueError: `alpha`, `beta`, `eps` or `newest_fraction` is no number, or out of range.
      ValueError: `weight_norm`, `initial`, `variant` or `final_frame` is none of its words.
      ValueError: `seed` is no int of at least 0.
      TypeError: `stratified` or `completed_only` is no bool.

    >>> config = BufferConfig("prioritized", 10_000, alpha=0.7)
    >>> config.alpha, config.beta, config.divided(3).capacity
    (0.7, 0.4, 3333)
    >>> BufferConfig("uniform", 10_000, alpha=0.6)
    Traceback (most recent call last):
    ...
    ValueError: BufferConfig: alpha=0.6 with kind='uniform': only kind='prioritized' has it; leave it out.
    """

    kind: Kind
    capacity: int
    _: dataclasses.KW_ONLY
    alpha: float | None = None
    beta: float | None = None
    eps: float | None = None
    weight_norm: WeightNorm | Literal["default"] = "default"
    initial: Initial | None = None
    variant: Variant | None = None
    stratified: bool | None = None
    newest_fraction: float | None = None
    max_times_sampled: int | None = None
    max_frames: int | None = None
    completed_only: bool | None = None
    min_size_to_sample: int = 1
    seed: int | None = None
    final_frame: FinalFrame = "auto"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"BufferConfig.kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}.")
        for name, (kind, default) in _OF_ONE_KIND.items():
            value = getattr(self, name)
            # None is a word of weight_norm's own: no norm.
            if value == "default" if name == "weight_norm" else value is None:
                if kind == self.kind:
                    object.__setattr__(self, name, default)
            elif kind != self.kind:
                way = f" ({_INSTEAD[name, self.kind]})" if (name, self.kind) in _INSTEAD else ""
                raise ValueError(
                    f"BufferConfig: {name}={value!r} with kind={self.kind!r}: only kind={kind!r} has it{way}; "
                    "leave it out."
                )
        for name in ("capacity", "min_size_to_sample", "max_frames"):
            check_count(f"BufferConfig.{name}", getattr(self, name), optional=name == "max_frames")
        if self.kind == "prioritized":
            self._check_priorities()
        if self.kind == "uniform":
            rule = choose_sampler(None, self.max_times_sampled, self.newest_fraction)
            object.__setattr__(self, "newest_fraction", rule.newest_fraction)
        for name in ("stratified", "completed_only"):
            if not isinstance(getattr(self, name), bool | None):
                raise TypeError(f"BufferConfig.{name} must be True or False, got {getattr(self, name)!r}.")
        if self.seed is not None and (
            isinstance(self.seed, bool) or not hasattr(self.seed, "__index__") or self.seed < 0
        ):
            raise ValueError(f"BufferConfig.seed must be an int of at least 0, or None, got {self.seed!r}.")
        if self.final_frame not in get_args(FinalFrame):
            raise ValueError(
                f"BufferConfig.final_frame must be one of {', '.join(get_args(FinalFrame))}, got {self.final_frame!r}."
            )
        for name in ("capacity", "max_times_sampled", "max_frames", "min_size_to_sample", "seed"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int(getattr(self, name)))
        if self.most_frames is not None and self.min_size_to_sample > self.most_frames:
            limit = "max_frames" if self.kind == "episodic" else "capacity"
            raise ValueError(
                f"BufferConfig: min_size_to_sample {self.min_size_to_sample} is above {limit} {self.most_frames}: "
                f"nothing could ever be drawn; lower it or raise {limit}."
            )

    @property
    def most_frames(self) -> int | None:
        """Frames held at most; None where only episodes are counted.

        >>> BufferConfig("episodic", 10, max_frames=500).most_frames
        500
        """
        return self.max_frames if self.kind == "episodic" else self.capacity

    def build(self, data_spec: Nest, batch_size: int) -> ReplayBuffer:
        """The buffer, of `batch_size` streams of frames that match `data_spec`.

        Rings keep `capacity // batch_size` frames of each stream.

        Raises:
          TypeError, ValueError: `batch_size` is no int of at least 1.
          ValueError: `capacity` or `max_frames` is below `batch_size`.
          TypeError, ValueError: as the buffer's constructor.

        >>> import tensorflow as tf
        >>> buffer = BufferConfig("uniform", 10).build(tf.TensorSpec([], tf.float32), batch_size=3)
        >>> type(buffer).__name__, buffer.capacity
        ('TFUniformReplayBuffer', 9)
        """
        check_count("batch_size", batch_size)
        for name, unit in (("capacity", "an episode" if self.kind == "episodic" else "a frame"), ("max_frames", "one")):
            value = getattr(self, name)
            if value is not None and value < batch_size and self.kind != "reservoir":
                raise ValueError(
                    f"BufferConfig.{name} {value} is below the number of streams {batch_size}: "
                    f"each of them needs {unit}; raise {name}."
                )
        if self.kind == "episodic":
            assert self.completed_only is not None  # set in __post_init__, as all that the kind has
            return EpisodicReplayBuffer(
                data_spec,
                self.capacity,
                completed_only=self.completed_only,
                seed=self.seed,
                batch_size=batch_size,
                max_frames=self.max_frames,
                final_frame=self.final_frame,
                min_size_to_sample=self.min_size_to_sample,
            )
        if self.kind == "reservoir":
            return ReservoirReplayBuffer(
                data_spec,
                self.capacity,
                batch_size=batch_size,
                seed=self.seed,
                final_frame=self.final_frame,
                min_size_to_sample=self.min_size_to_sample,
            )
        if self.kind == "uniform":
            assert self.max_times_sampled is not None and self.newest_fraction is not None
            return TFUniformReplayBuffer(
                data_spec,
                batch_size,
                self.capacity // batch_size,
                seed=self.seed,
                final_frame=self.final_frame,
                min_size_to_sample=self.min_size_to_sample,
                max_times_sampled=self.max_times_sampled,
                newest_fraction=self.newest_fraction,
            )
        assert self.alpha is not None and self.beta is not None and self.eps is not None
        assert self.weight_norm != "default" and self.initial is not None
        assert self.variant is not None and self.stratified is not None
        return TFPrioritizedReplayBuffer(
            data_spec,
            batch_size,
            self.capacity // batch_size,
            alpha=self.alpha,
            beta=self.beta,
            eps=self.eps,
            weight_norm=self.weight_norm,
            initial=self.initial,
            variant=self.variant,
            stratified=self.stratified,
            seed=self.seed,
            final_frame=self.final_frame,
            min_size_to_sample=self.min_size_to_sample,
        )

    def divided(self, shards: int) -> BufferConfig:
        """The same for one of so many buffers that share the capacity: what counts is divided, and rounded down.

        That is `capacity` and `max_frames`, as in RLlib, and `min_size_to_sample` (at least 1), as Ray 1 divided
        `learning_starts`: together the shards keep and wait for about as much as one buffer would.

        Raises:
          TypeError, ValueError: `shards` is no int of at least 1.
          ValueError: `capacity` or `max_frames` is below `shards`.

        >>> part = BufferConfig("uniform", 10, min_size_to_sample=7).divided(4)
        >>> part.capacity, part.min_size_to_sample
        (2, 1)
        """
        check_count("shards", shards)
        for name in ("capacity", "max_frames"):
            value = getattr(self, name)
            if value is not None and value < shards:
                raise ValueError(
                    f"BufferConfig.{name} {value} divided among {shards} shards leaves nothing in each; raise {name} "
                    "or lower shards."
                )
        return dataclasses.replace(
            self,
            capacity=self.capacity // shards,
            max_frames=None if self.max_frames is None else self.max_frames // shards,
            min_size_to_sample=max(1, self.min_size_to_sample // shards),
        )

    def seeded(self, index: int) -> BufferConfig:
        """The same for the `index`-th of several buffers: with a seed of its own, made of this one's.

        With one and the same seed the buffers of all policies would draw the same rows.

        >>> config = BufferConfig("uniform", 10, seed=7)
        >>> config.seeded(0).seed == config.seeded(0).seed != config.seeded(1).seed
        True
        """
        if self.seed is None:
            return self
        (seed,) = np.random.SeedSequence([self.seed, index]).generate_state(1, np.uint32)
        return dataclasses.replace(self, seed=int(seed))

    def to_dict(self) -> dict[str, Any]:
        """Every setting that the kind has, by its name, as values that JSON and YAML can hold.

        >>> BufferConfig("uniform", 10, newest_fraction=0.25).to_dict()["newest_fraction"]
        0.25
        """
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names if _OF_ONE_KIND.get(name, (self.kind, 0))[0] == self.kind}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], where: str = "buffer") -> BufferConfig:
        """The settings that `to_dict` has told of; what has a default may be left out.

        Args:
          plain: the settings by name.
          where: whose they are, for messages.

        Raises:
          TypeError, ValueError: unknown or missing settings, all named; or as the constructor.

        >>> BufferConfig.from_dict({"kind": "reservoir", "capacity": 100}).kind
        'reservoir'
        """
        config = settings_of(cls, where, plain)
        assert isinstance(config, cls)
        return config

    def _check_priorities(self) -> None:
        for name in ("alpha", "beta", "eps"):
            object.__setattr__(self, name, check_exponent(f"BufferConfig.{name}", getattr(self, name)))
        check_weight_norm(self.weight_norm)
        if self.variant not in get_args(Variant):
            raise ValueError(f"BufferConfig.variant must be 'proportional' or 'rank', got {self.variant!r}.")
        if self.variant == "rank" and self.alpha is not None and self.alpha > LARGEST_RANK_ALPHA:
            raise ValueError(
                f"BufferConfig.alpha must be at most {LARGEST_RANK_ALPHA} with variant='rank', got {self.alpha}."
            )
        if isinstance(self.initial, str):
            if self.initial not in ("max", "ever"):
                raise ValueError(
                    f"BufferConfig.initial must be 'max', 'ever' or a priority of at least 0, got {self.initial!r}."
                )
        elif isinstance(self.initial, numbers.Real):
            object.__setattr__(self, "initial", check_exponent("BufferConfig.initial", self.initial))
        else:
            raise TypeError(f"BufferConfig.initial must be 'max', 'ever' or a number, got {self.initial!r}.")
