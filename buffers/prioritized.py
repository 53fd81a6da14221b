"""The in-process prioritized buffer: a ring of frames, drawn in proportion to a power of their priorities."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import tensorflow as tf

from .base import BufferInfo, Items
from .counts import check_count
from .episode_ends import FinalFrame
from .frame_priorities import FramePriorities, Initial
from .mass_index import MassIndex
from .memory import adopt, aligned_empty, copy_to_tensor
from .nests import Array, Nest
from .priorities import DEFAULT_EPS, WeightNorm, check_exponent, check_weight_norm
from .prioritized_starts import PrioritizedStarts
from .priority_updates import apply_update
from .rank_index import LARGEST_RANK_ALPHA, RankIndex
from .ring_buffer import RingReplayBuffer
from .ring_dataset import Weigh
from .ring_sampler import Drawn
from .stats import BufferStats
from .weighing import ImportanceWeigher
from .windows import Window, resolve_window

_FLOAT32 = np.dtype(np.float32)


class TFPrioritizedReplayBuffer(RingReplayBuffer):
    """Keeps the newest `max_length` frames of each stream and draws windows in proportion to priorities.

    Proportional prioritized replay: Schaul et al. 2016, Prioritized Experience Replay. A window is drawn by the
    priority `p` of its drawn frame, with the chance `P = p^alpha / sum p^alpha` over all eligible windows (eq. 1),
    and weighs `(N P)^-beta` (section 3.4), where `N` counts them. All else is as in `TFUniformReplayBuffer`: episode
    ends, `Window`, seeds, threads, live datasets.

    A priority of 0 is never drawn beside others; where all are 0 draws are uniform. Chances are exact
    for masses `p^alpha` rounded to float32, and their sum stays exact however many updates come. A draw takes the
    same time however many frames there are. It takes 4 bytes a frame, and for each kind of window that is drawn 12,
    with `initial='max'` 4 more, and with `weight_norm='buffer'` 4 more.

    A dataset draws ahead (`as_dataset`), so that a batch is drawn with priorities that are up to 24 batches old;
    `sample` uses those of this moment. How far ahead it is depends on threads, so that a loop of a dataset and
    `update_priorities` does not repeat exactly by its seed; one of `sample` does. While a writer changes priorities a
    dataset's draw may see some before and some after the change.

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame; fixed-width dtypes, static shapes.
      batch_size: `B`, streams that `add_batch` writes side by side.
      max_length: frames kept of each stream; `capacity` is `batch_size * max_length`.
      scope: TF-Agents' argument, without meaning here.
      device: TF-Agents' argument; storage is on the CPU, anything else is refused.
      table_fn: TF-Agents' argument, without meaning here.
      dataset_drop_remainder: as in `TFUniformReplayBuffer`.
      dataset_window_shift: as in `TFUniformReplayBuffer`.
      stateful_dataset: TF-Agents' argument, without meaning here: datasets are always live.
      alpha: exponent of priorities; 0: uniform over those above 0.
      beta: exponent of weights: a number; a scalar `tf.Variable`; or a function of the number of batches drawn
        before, such as a Keras schedule. In a dataset or a `tf.function` it gets a tensor, once for the eight
        batches that a call draws; what is drawn ahead counts. `clear` does not reset the number.
      eps: added to absolute TD errors.
      weight_norm: what weights are divided by: `'batch'`, the largest of the batch; `'buffer'`, that of the
        least probable window that can be drawn; None, nothing. Without `sample_batch_size` there is no batch to divide
        by, and `'batch'` leaves weights as None does; in a batch of one they are 1. `'buffer'` can make all steps
        small.
      initial: priority of frames that come without one: `'max'`, the largest that can be drawn now (before the first
        draw: that is held); `'ever'`, the largest since the buffer was made or cleared; or a number. The first
        frame gets 1; frames of one call get the same.
      variant: `'proportional'`, or `'rank'`: the chance goes by the rank of a priority among those of all windows that
        can be drawn, `P = rank^-alpha / sum rank^-alpha` (section 3.3, where alpha is 0.7), which outliers cannot rule.
        Ranks are places in a heap, and exact up to 1,024 windows (`RankIndex`); alpha is then at most 4.
      stratified: cut all mass into `B` equal parts and draw one of each (appendix B.2.1), which makes batches more even
        and changes no window's expected share. Parts hold between priorities of different binary exponents; among
        those of one exponent only as far as the first candidate is taken, which half of them or more are. A
        dataset then draws one batch a call, which takes longer.
      seed: as in `TFUniformReplayBuffer`.
      end_of_episode_fn: as in `TFUniformReplayBuffer`.
      final_frame: as in `TFUniformReplayBuffer`.
      min_size_to_sample: frames that must be held before anything can be drawn.
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      eligible_fn: as in `TFUniformReplayBuffer`: only frames for which it holds start windows, and have mass.
      storage_folder: as in `TFUniformReplayBuffer`: where files shall hold the frames.

    Raises:
      TypeError: `alpha`, `beta`, `eps` or `initial` is no number where it must be one.
      ValueError: one of them is negative or not finite, or `weight_norm`, `initial` or `variant` is none of its words.
      TypeError, ValueError: as `TFUniformReplayBuffer`.

    >>> buffer = TFPrioritizedReplayBuffer(tf.TensorSpec([], tf.float32), 1, 100, alpha=1.0, beta=1.0, seed=0)
    >>> keys = buffer.add_sequence([[10.0, 11.0, 12.0, 13.0]], priorities=[[1.0, 2.0, 3.0, 4.0]])
    >>> items, info = buffer.sample(3)
    >>> for value, chance, weight in zip(items.numpy(), info.probabilities.numpy(), info.weights.numpy()):
    ...     print(f"{value:.0f}: drawn with {chance:.1f}, weighs {weight:.2f}")
    11: drawn with 0.2, weighs 1.00
    13: drawn with 0.4, weighs 0.50
    13: drawn with 0.4, weighs 0.50
    >>> buffer.update_priorities(info.keys, td_errors=[0.5, -2.0, -2.0])
    0
    """

    _SAVED_SETTINGS: ClassVar[tuple[str, ...]] = (
        "batch_size",
        "max_length",
        "alpha",
        "beta",
        "eps",
        "weight_norm",
        "initial",
        "variant",
        "stratified",
        "seed",
        "final_frame",
        "min_size_to_sample",
        "end_of_episode_fn",
        "eligible_fn",
    )
    # What is kept of a priority is its power.
    _FIXED_SETTINGS: ClassVar[frozenset[str]] = RingReplayBuffer._FIXED_SETTINGS | {"alpha", "variant"}

    # And its priority, and for one kind of window its mass and its place.
    _bookkeeping_bytes = RingReplayBuffer._bookkeeping_bytes + 16

    def __init__(
        self,
        data_spec: Nest,
        batch_size: int,
        max_length: int = 1000,
        scope: str = "TFPrioritizedReplayBuffer",
        device: str = "cpu:*",
        table_fn: Any = None,
        dataset_drop_remainder: bool = False,
        dataset_window_shift: int | None = None,
        stateful_dataset: bool = False,
        *,
        alpha: float = 0.6,
        beta: float | tf.Variable | Callable[[Any], Any] = 0.4,
        eps: float = DEFAULT_EPS,
        weight_norm: WeightNorm = "batch",
        initial: Initial = "max",
        variant: Literal["proportional", "rank"] = "proportional",
        stratified: bool = False,
        seed: int | None = None,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        min_size_to_sample: int = 1,
        cast: bool = False,
        eligible_fn: Callable[[Nest], Any] | None = None,
        storage_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self._remember(locals())
        if not isinstance(stratified, bool):
            raise TypeError(f"stratified must be a bool, got {stratified!r}.")
        if variant not in ("proportional", "rank"):
            raise ValueError(f"variant must be 'proportional' or 'rank', got {variant!r}.")
        self._alpha = check_exponent("alpha", alpha)
        if variant == "rank" and self._alpha > LARGEST_RANK_ALPHA:
            raise ValueError(f"alpha must be at most {LARGEST_RANK_ALPHA} where draws are by rank, got {self._alpha}.")
        self._eps = check_exponent("eps", eps)
        self._weigher = ImportanceWeigher(beta, check_weight_norm(weight_norm))
        if not isinstance(scope, str):
            raise TypeError(f"scope must be a str, got {scope!r}; settings of this package are given by name.")
        super().__init__(
            data_spec,
            batch_size,
            max_length,
            device,
            dataset_drop_remainder,
            dataset_window_shift,
            seed=seed,
            end_of_episode_fn=end_of_episode_fn,
            final_frame=final_frame,
            min_size_to_sample=min_size_to_sample,
            cast=cast,
            eligible_fn=eligible_fn,
            storage_folder=storage_folder,
        )
        self._stratified = stratified
        self._num_stale = 0
        self._mask: tf.Tensor | None = None
        self._ranked = variant == "rank"
        self._initial_is_max = initial == "max"
        # By rank priorities themselves are kept, not their powers.
        self._priorities = FramePriorities(self._ring, 1.0 if self._ranked else self._alpha, initial)
        self._listen(self._priorities)

    @classmethod
    def from_preset(
        cls,
        preset: str,
        data_spec: Nest,
        batch_size: int,
        max_length: int,
        *,
        beta: float | tf.Variable | Callable[[Any], Any] | None = None,
        stratified: bool = False,
        seed: int | None = None,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        min_size_to_sample: int = 1,
        cast: bool = False,
    ) -> TFPrioritizedReplayBuffer:
        """A buffer with the settings of a well-known agent or library; `PRIORITIZED_PRESETS` has them.

        `beta` replaces the preset's where it is given, such as by a schedule. (Dopamine draws stratified.)

        Raises:
          ValueError: there is no such preset.

        >>> buffer = TFPrioritizedReplayBuffer.from_preset("rainbow", tf.TensorSpec([], tf.float32), 1, 100)
        >>> PRIORITIZED_PRESETS["rainbow"].num_steps
        3
        """
        if preset not in PRIORITIZED_PRESETS:
            raise ValueError(f"there is no preset {preset!r}: there are {', '.join(PRIORITIZED_PRESETS)}.")
        chosen = PRIORITIZED_PRESETS[preset]
        return cls(
            data_spec,
            batch_size,
            max_length,
            alpha=chosen.alpha,
            beta=chosen.beta if beta is None else beta,
            stratified=stratified,
            eps=chosen.eps,
            weight_norm=chosen.weight_norm,
            initial=chosen.initial,
            seed=seed,
            end_of_episode_fn=end_of_episode_fn,
            final_frame=final_frame,
            min_size_to_sample=min_size_to_sample,
            cast=cast,
        )

    def update_priorities(self, keys: Any, priorities: Any = None, *, td_errors: Any = None) -> Any:
        """Sets the priorities of the windows with these keys, in the order in which the batch came.

        They belong to the drawn frames, and so to the windows of every kind that start there. Of a key given
        twice the last value counts. A key whose frame is gone changes nothing, and is counted.

        Args:
          keys: int64 `[n]`, `BufferInfo.keys`: an array or a tensor, also inside a `tf.function`.
          priorities: `[n]`, raw: finite and at least 0; `alpha` is applied here.
          td_errors: `[n]`, finite, instead: the priority is `abs(td_error) + eps`.

        Returns:
          How many keys were gone: an int, inside a `tf.function` int64 `[]`.

        Raises:
          ValueError: not exactly one of `priorities` and `td_errors` is given.
          ValueError: shapes differ, or a value is refused; the message names the position, and nothing is changed.
        """
        return apply_update(self, TFPrioritizedReplayBuffer._update, keys, priorities, td_errors, eps=self._eps)

    def sample_at_least(
        self,
        min_steps: int,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
    ) -> tuple[Items, BufferInfo]:
        """As `ReplayBuffer.sample_at_least`; the samples are weighed as the one batch that they become.

        Each of them counts as a batch drawn, for a scheduled `beta`.
        """
        items, info = super().sample_at_least(min_steps, num_steps, window=window)
        with self._lock:
            starts = self._samplers[resolve_window(num_steps, window)].starts
            assert isinstance(starts, PrioritizedStarts)
            num_eligible, least_chance = starts.count(), starts.least_chance()
        drawn = Drawn(info.keys, info.ids, None, [], num_eligible, info.probabilities.numpy(), least_chance)
        return items, info._replace(weights=copy_to_tensor(self._weigher.weigh(drawn)))

    def stats(self) -> BufferStats:
        """Counts, shares and bytes as of now; `stale_updates` counts keys that were gone."""
        return dataclasses.replace(super().stats(), stale_updates=self._num_stale)

    # How it is done

    def _own_values(self) -> dict[str, Any]:
        return {"num_batches": self._weigher.num_batches, "num_stale": self._num_stale}

    def _restore_own(self, values: Mapping[str, Any]) -> None:
        self._weigher.num_batches, self._num_stale = int(values["num_batches"]), int(values["num_stale"])

    def _update(self, keys: Array, priorities: Array) -> int:
        masses = self._priorities.prepare(priorities)
        with self._lock:
            self._check_open()
            num_gone = 0
            if self._flags.num_deleted:
                gone = self._is_gone(keys)
                num_gone, keys, masses = int(np.count_nonzero(gone)), keys[~gone], masses[~gone]
            num_gone += self._priorities.update(keys, masses)
            self._num_stale += num_gone
        return num_gone

    def _forget(self, ids: Array) -> None:
        # No longer the largest priority, nor of a high rank.
        self._priorities.update(ids, np.zeros(len(ids), np.float32))

    def _window_starts(self, window: Window) -> PrioritizedStarts:
        capacity, tracks_least = self._ring.capacity, self._weigher.norm == "buffer"
        index: MassIndex
        if self._ranked:
            index = RankIndex(capacity, alpha=self._alpha, tracks_least=tracks_least)
        else:
            index = MassIndex(capacity, tracks_least=tracks_least, tracks_largest=self._initial_is_max)
        starts = PrioritizedStarts(
            self._ring,
            window,
            self._lock,
            self._nothing_eligible,
            min_size=self._min_size,
            final_observations=self._rule.has_final_observations,
            index=index,
            stratified=self._stratified,
            tracks_least=tracks_least,
        )
        with self._lock:
            self._priorities.add_kind(starts)
        return starts

    def _weigh(self, sample_batch_size: int | None) -> Weigh:
        return self._weigher.in_graph(alone=sample_batch_size is None)

    def _sample_info(self, drawn: Drawn, batch: int | None, window: Window | None) -> BufferInfo:
        assert drawn.chances is not None  # made by PrioritizedStarts
        num = len(drawn.keys)
        arrays = aligned_empty([(num,)] * 3, [drawn.keys.dtype, _FLOAT32, _FLOAT32])
        for array, values in zip(
            arrays, (drawn.keys, drawn.chances, self._weigher.weigh(drawn, alone=batch is None)), strict=True
        ):
            array[...] = values
        keys, chances, weights = (adopt(array) for array in arrays)
        ids = keys if window is None else copy_to_tensor(drawn.ids)
        mask = self._all_real(ids.shape) if drawn.mask is None else tf.constant(drawn.mask)
        return BufferInfo(ids, chances, keys, weights, mask)

    def _all_real(self, shape: tf.TensorShape) -> tf.Tensor:
        """A mask without padding, made once while the sizes stay the same."""
        if self._mask is None or self._mask.shape != shape:
            self._mask = tf.ones(shape, tf.bool)
        return self._mask


@dataclasses.dataclass(frozen=True)
class PrioritizedPreset:
    """Settings of a well-known agent or library.

    Attributes:
      alpha: exponent of priorities.
      beta: exponent of weights.
      eps: added to absolute TD errors.
      weight_norm: what weights are divided by.
      initial: priority of new frames.
      num_steps: `n` of its n-step returns (`replayfeed.pipelines.n_step`), 1 where it leaves that open.
    """

    alpha: float
    beta: float
    eps: float
    weight_norm: WeightNorm
    initial: Initial
    num_steps: int = 1

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)


# Dopamine's Rainbow draws and weighs by the square root (its priorities are losses, without an eps); RLlib's buffer by
# the values of the paper, new items with the largest priority ever.
PRIORITIZED_PRESETS = {
    "rainbow": PrioritizedPreset(0.5, 0.5, 1e-10, "batch", "ever", num_steps=3),
    "rllib": PrioritizedPreset(0.6, 0.4, 1e-6, "buffer", "ever"),
}
