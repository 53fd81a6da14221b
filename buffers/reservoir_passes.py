"""Passes over a reservoir: each frame once, in order or shuffled, then the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from .base import BufferInfo, EmptyBufferError
from .callbacks import call_weakly
from .nests import Array, Nest
from .pass_plans import ordered_plan, shuffled_plans
from .reservoir_rows import ReservoirRows
from .reservoir_sampler import ReservoirSampler
from .reservoir_usage import ReservoirUsage
from .ring_dataset import Pack, counted, in_order, one_at_a_time, sample_info, with_live_options

# Frames gathered at a time in a pass without `sample_batch_size`.
_PASS_CHUNK = 64

_logger = logging.getLogger(__name__)


class ReservoirPassPlanner:
    """Says which frames a pass visits, and in which order, when the pass begins.

    Args:
      held: what is held.
      lock: held while that is read.
      explain_nothing: the error for a buffer that holds nothing, or too little.
      min_size: frames that must be held.
    """

    def __init__(
        self,
        held: ReservoirRows,
        lock: threading.Lock,
        explain_nothing: Callable[[], EmptyBufferError],
        *,
        min_size: int,
    ) -> None:
        self._held = held
        self._lock = lock
        self._explain_nothing = explain_nothing
        self._min_size = min_size

    def ordered(self) -> tf.data.Dataset:
        """One plan: in the order in which the frames came."""
        return ordered_plan(self, ReservoirPassPlanner._frames, 2)

    def shuffled(self, num_passes: int, seed: int | None) -> tf.data.Dataset:
        """`num_passes` plans, each a permutation of its own of what is held when it is reached."""
        return shuffled_plans(self, ReservoirPassPlanner._frames, 2, num_passes, seed)

    def _frames(self) -> tuple[Array, Array]:
        """Ids and rows, `[m]` each."""
        with self._lock:
            keys, rows = self._held.in_order()
        if len(keys) < self._min_size:
            raise self._explain_nothing()
        return keys, rows


def pass_dataset(
    sampler: ReservoirSampler,
    pack: Pack,
    plans: tf.data.Dataset,
    sample_batch_size: int | None,
    usage: ReservoirUsage,
    *,
    drop_remainder: bool,
    num_parallel_calls: int | None,
) -> tf.data.Dataset:
    """The frames that `plans` names, each as often as it is named; replaced ones are skipped.

    Args:
      sampler: what gathers.
      pack: leaves to the nest of a sample's items.
      plans: dataset of (ids int64 `[m]`, their rows, the chance of each float32 `[]`).
      sample_batch_size: `B`, or None for elements without a `B` axis.
      usage: told what is sampled and what is skipped.
      drop_remainder: leave out a last batch of fewer than `B`.
      num_parallel_calls: of the map that gathers; elements keep their order.
    """
    counter = usage.graph_counter()

    @tf.autograph.experimental.do_not_convert
    def gather(keys: tf.Tensor, rows: tf.Tensor, chance: tf.Tensor) -> tuple[Nest, BufferInfo]:
        drawn, held = sampler.gather_in_graph(keys, rows)
        num_lost = tf.reduce_sum(tf.cast(~held, tf.int64))
        told = tf.cond(
            num_lost > 0,
            lambda: call_weakly(usage, _tell_skipped, [num_lost], tf.bool),
            lambda: tf.constant(False),
        )
        with tf.control_dependencies([told]):
            held = tf.identity(held)
        sampled = pack(drawn.leaves), sample_info(drawn, chance)
        return tf.nest.map_structure(lambda tensor: tf.boolean_mask(tensor, held), sampled)

    @tf.autograph.experimental.do_not_convert
    def count(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
        return items, counted(sampler, counter, info)

    frames = plans.flat_map(
        lambda keys, rows, chance: tf.data.Dataset.from_tensor_slices((keys, rows, tf.fill(tf.shape(keys), chance)))
    )
    chunks = frames.batch(sample_batch_size or _PASS_CHUNK)
    chunks = chunks.map(gather, num_parallel_calls, deterministic=in_order(num_parallel_calls))
    # A chunk lacks the frames that were skipped: only taking it apart gives batches of one size again.
    single = one_at_a_time(chunks, count).unbatch()
    if sample_batch_size is not None:
        single = single.batch(sample_batch_size, drop_remainder=drop_remainder)
    return with_live_options(single)


def _tell_skipped(usage: ReservoirUsage, num: Array) -> Array:
    usage.count_skipped(int(num))
    _logger.warning("%d frames were replaced before a pass reached them; skipped.", int(num))
    return np.array(True)
