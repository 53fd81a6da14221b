"""Passes over episodes: each window or each whole episode once, in order or shuffled, then the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from .base import BufferInfo, EmptyBufferError
from .callbacks import call_weakly
from .episode_kinds import COMPLETED, FINAL, FLAG_BITS, Kind
from .episode_pages import STEP_BITS
from .episode_sampler import EpisodeSampler
from .episode_table import EpisodeTable
from .episode_usage import EpisodeUsage
from .nests import Array, Nest
from .pass_plans import ordered_plan, shuffled_plans
from .ring_dataset import Pack, counted, in_order, one_at_a_time, sample_info, with_live_options

# Windows gathered at a time.
_PASS_CHUNK = 64

_logger = logging.getLogger(__name__)


class _Planned(NamedTuple):
    """Samples of a pass: ids of drawn frames, and how many real frames are before and from them on; `[m]` each."""

    keys: Array
    num_before: Array
    num_after: Array


class EpisodePassPlanner:
    """Says what a pass visits, and in which order, when the pass begins.

    Args:
      table: what is held.
      lock: held while the table is read.
      kind: what is visited.
      shift: frames of an episode from one start to the next, as in TF-Agents' ordered pass; None: every
        eligible window comes.
      explain_nothing: the error for a buffer in which there is nothing of this kind.
      min_size: frames that must be held.
      keep_short: with `shift`, keep windows that an episode's end cuts short.
    """

    def __init__(
        self,
        table: EpisodeTable,
        lock: threading.Lock,
        kind: Kind,
        shift: int | None,
        explain_nothing: Callable[[Kind], EmptyBufferError],
        *,
        min_size: int,
        keep_short: bool,
    ) -> None:
        self._table = table
        self._lock = lock
        self._kind = kind
        self._shift = shift
        self._explain_nothing = explain_nothing
        self._min_size = min_size
        self._keep_short = keep_short

    def ordered(self) -> tf.data.Dataset:
        """One plan: the oldest episode first, within it the first frame."""
        return ordered_plan(self, EpisodePassPlanner._plan, 3)

    def shuffled(self, num_passes: int, seed: int | None) -> tf.data.Dataset:
        """`num_passes` plans, each a permutation of its own of what is held when it is reached."""
        return shuffled_plans(self, EpisodePassPlanner._plan, 3, num_passes, seed)

    def _plan(self) -> _Planned:
        kind, window, shift = self._kind, self._kind.window, self._shift
        with self._lock:
            episodes = self._table.ids()
            states = self._table.states_of(episodes)
            num_frames = self._table.num_frames
            if num_frames < max(1, self._min_size):
                raise self._explain_nothing(kind)
            lengths = states >> FLAG_BITS
            if shift is None or window is None:
                nums, stride = kind.num_starts(states), 1 if window is None else window.stride
                nums = np.minimum(nums, 1) if window is None else nums
            else:
                stride = shift
                starts_until = lengths - (states & FINAL) // FINAL
                if not self._keep_short:
                    starts_until = np.minimum(starts_until, lengths - window.num_steps + 1)
                nums = np.maximum(0, -(-starts_until // stride))
                if kind.completed_only:
                    nums = np.where(states & COMPLETED, nums, 0)
            if not nums.sum():
                raise self._explain_nothing(kind)
        ends = np.cumsum(nums)
        steps = (np.arange(ends[-1]) - np.repeat(ends - nums, nums)) * stride
        keys = np.repeat((episodes + 1) << STEP_BITS, nums) + steps
        num_after = np.repeat(lengths, nums) - steps
        if window is None:
            return _Planned(keys, np.zeros_like(keys), num_after)
        planned = _Planned(keys, np.minimum(steps, window.burn_in), np.minimum(num_after, window.num_steps))
        left_out = num_frames - int(planned.num_after.sum())
        if shift == window.num_steps > 1 and not self._keep_short and left_out:
            _logger.warning("%d frames are in no window of %d frames; left out.", left_out, window.num_steps)
        return planned


def pass_dataset(
    sampler: EpisodeSampler,
    pack: Pack,
    plans: tf.data.Dataset,
    usage: EpisodeUsage,
    *,
    keep_short: bool,
    num_parallel_calls: int | None,
) -> tf.data.Dataset:
    """What `plans` names, one by one, without a `B` axis; what is evicted before it is reached is skipped.

    Args:
      sampler: what gathers.
      pack: leaves to the nest of a sample's items.
      plans: as `EpisodePassPlanner` makes them.
      usage: told what is sampled and what is skipped.
      keep_short: deliver windows of fewer than `T` frames as such, `[<= T, ...]`.
      num_parallel_calls: of the map that gathers; elements keep their order.
    """
    counter = usage.graph_counter()

    @tf.autograph.experimental.do_not_convert
    def gather(
        keys: tf.Tensor, num_before: tf.Tensor, num_after: tf.Tensor, chance: tf.Tensor
    ) -> tuple[Nest, BufferInfo, tf.Tensor]:
        drawn, held = sampler.gather_in_graph(keys, num_before, num_after)
        num_lost = tf.reduce_sum(tf.cast(~held, tf.int64))
        told = tf.cond(
            num_lost > 0,
            lambda: call_weakly(usage, _tell_skipped, [num_lost], tf.bool),
            lambda: tf.constant(False),
        )
        with tf.control_dependencies([told]):
            held = tf.identity(held)
        sampled = (pack(drawn.leaves), sample_info(drawn, chance), num_after)
        return tf.nest.map_structure(lambda tensor: tf.boolean_mask(tensor, held), sampled)

    @tf.autograph.experimental.do_not_convert
    def count(items: Nest, info: BufferInfo, length: tf.Tensor) -> tuple[Nest, BufferInfo, tf.Tensor]:
        return items, counted(sampler, counter, info), length

    @tf.autograph.experimental.do_not_convert
    def cut(items: Nest, info: BufferInfo, length: tf.Tensor) -> tuple[Nest, BufferInfo]:
        if not keep_short:
            return items, info
        items = tf.nest.map_structure(lambda leaf: leaf[:length], items)
        return items, info._replace(ids=info.ids[:length], mask=info.mask[:length])

    planned = plans.flat_map(
        lambda keys, num_before, num_after, chance: tf.data.Dataset.from_tensor_slices(
            (keys, num_before, num_after, tf.fill(tf.shape(keys), chance))
        )
    )
    # Whole episodes one by one: together they would be padded.
    chunks = planned.batch(1 if sampler.kind.window is None else _PASS_CHUNK)
    chunks = chunks.map(gather, num_parallel_calls, deterministic=in_order(num_parallel_calls))
    return with_live_options(one_at_a_time(chunks, count).unbatch().map(cut))


def _tell_skipped(usage: EpisodeUsage, num: Array) -> Array:
    usage.count_skipped(int(num))
    _logger.warning("%d samples were evicted before an ordered pass reached them; skipped.", int(num))
    return np.array(True)
