"""Passes over a ring: each window once, in order or shuffled, then the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from .base import BufferInfo, EmptyBufferError
from .callbacks import call_weakly
from .nests import Array, Nest
from .ring import FrameRing
from .ring_dataset import Pack, counted, in_order, one_at_a_time, sample_info, with_live_options
from .ring_sampler import RingSampler
from .usage import Usage
from .windows import Window, ordered_starts

# Windows gathered at a time in a pass without `sample_batch_size`.
_PASS_CHUNK = 64

_logger = logging.getLogger(__name__)


class PassPlanner:
    """Says which windows a pass visits, and in which order, when the pass begins.

    Args:
      ring: what is held.
      lock: held while the ring is read.
      window: the kind of window.
      shift: frames of an episode from one start to the next.
      explain_nothing: the error for a ring in which nothing is eligible.
      min_size: frames that must be held.
      keep_short: keep windows that an episode's end cuts short.
    """

    def __init__(
        self,
        ring: FrameRing,
        lock: threading.Lock,
        window: Window,
        shift: int,
        explain_nothing: Callable[[Window], EmptyBufferError],
        *,
        min_size: int,
        keep_short: bool,
    ) -> None:
        self._ring = ring
        self._lock = lock
        self._window = window
        self._shift = shift
        self._explain_nothing = explain_nothing
        self._min_size = min_size
        self._keep_short = keep_short

    def ordered(self) -> tf.data.Dataset:
        """One plan: oldest first, stream after stream."""
        return self._plans(1, None)

    def shuffled(self, num_passes: int, seed: int | None) -> tf.data.Dataset:
        """`num_passes` plans, each a permutation of its own of what is held when it is reached."""
        return self._plans(num_passes, np.random.default_rng(seed))

    def _plans(self, num_plans: int, rng: np.random.Generator | None) -> tf.data.Dataset:
        """Plans, each made when the pass reaches it, not before; shuffled if there is an `rng`."""

        def make(planner: PassPlanner, _: Array) -> tuple[Array, Array, np.float32]:
            starts, lengths = planner._windows()
            if rng is None:
                return starts, lengths, np.float32(1)
            order = rng.permutation(len(starts))
            return starts[order], lengths[order], np.float32(1 / len(starts))

        @tf.autograph.experimental.do_not_convert
        def plan(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            # This function holds the planner, and the dataset holds this function.
            starts, lengths, chance = call_weakly(self, make, [index], [tf.int64, tf.int64, tf.float32])
            return tf.ensure_shape(starts, [None]), tf.ensure_shape(lengths, [None]), tf.ensure_shape(chance, [])

        return tf.data.Dataset.range(num_plans).map(plan)

    def _windows(self) -> tuple[Array, Array]:
        with self._lock:
            ids, words = self._ring.ids_by_stream(), self._ring.words_by_stream()
        if ids.size < max(1, self._min_size):
            raise self._explain_nothing(self._window)
        parts = [ordered_starts(stream, self._window, self._shift, keep_short=self._keep_short) for stream in words]
        starts = np.concatenate([stream[index] for stream, (index, _) in zip(ids, parts, strict=True)])
        lengths = np.concatenate([length for _, length in parts])
        if not len(starts):
            raise self._explain_nothing(self._window)
        left_out = ids.size - int(lengths.sum())
        if self._shift == self._window.num_steps > 1 and not self._keep_short and left_out:
            _logger.warning("%d frames are in no window of %d frames; left out.", left_out, self._window.num_steps)
        return starts, lengths


def pass_dataset(
    sampler: RingSampler,
    pack: Pack,
    plans: tf.data.Dataset,
    sample_batch_size: int | None,
    usage: Usage,
    *,
    keep_short: bool,
    drop_remainder: bool,
    num_parallel_calls: int | None,
) -> tf.data.Dataset:
    """The windows that `plans` names, each as often as it is named; overwritten ones are skipped.

    Args:
      sampler: what gathers.
      pack: leaves to the nest of a sample's items.
      plans: dataset of (ids of first frames int64 `[m]`, lengths int64 `[m]`, the chance of each
        float32 `[]`), as `PassPlanner` makes them.
      sample_batch_size: `B`, or None for elements without a `B` axis.
      usage: told what is sampled and what is skipped.
      keep_short: deliver windows of fewer than `T` frames as such, `[<= T, ...]`; without
        `sample_batch_size` only.
      drop_remainder: leave out a last batch of fewer than `B`.
      num_parallel_calls: of the map that gathers; elements keep their order.
    """
    counter = usage.graph_counter()

    @tf.autograph.experimental.do_not_convert
    def gather(starts: tf.Tensor, lengths: tf.Tensor, chance: tf.Tensor) -> tuple[Nest, BufferInfo, tf.Tensor]:
        leaves, held = sampler.gather_in_graph(starts)
        num_lost = tf.reduce_sum(tf.cast(~held, tf.int64))
        told = tf.cond(
            num_lost > 0,
            lambda: call_weakly(usage, _tell_skipped, [num_lost], tf.bool),
            lambda: tf.constant(False),
        )
        with tf.control_dependencies([told]):
            held = tf.identity(held)
        leaves, starts, lengths, chance = tf.nest.map_structure(
            lambda tensor: tf.boolean_mask(tensor, held), (leaves, starts, lengths, chance)
        )
        return pack(leaves), sample_info(sampler, starts, chance), lengths

    @tf.autograph.experimental.do_not_convert
    def cut(items: Nest, info: BufferInfo, length: tf.Tensor) -> tuple[Nest, BufferInfo]:
        if not keep_short:
            return items, info
        items = tf.nest.map_structure(lambda leaf: leaf[:length], items)
        return items, info._replace(ids=info.ids[:length], mask=info.mask[:length])

    windows = plans.flat_map(
        lambda starts, lengths, chance: tf.data.Dataset.from_tensor_slices(
            (starts, lengths, tf.fill(tf.shape(starts), chance))
        )
    )
    chunks = windows.batch(sample_batch_size or _PASS_CHUNK).map(
        gather, num_parallel_calls, deterministic=in_order(num_parallel_calls)
    )
    chunks = one_at_a_time(chunks, lambda items, info, lengths: (items, counted(counter, info), lengths))
    # A chunk lacks the windows that were skipped: only taking it apart gives batches of one size again.
    single = chunks.unbatch().map(cut)
    if sample_batch_size is not None:
        single = single.batch(sample_batch_size, drop_remainder=drop_remainder)
    return with_live_options(single)


def _tell_skipped(usage: Usage, num: Array) -> Array:
    usage.count_skipped(int(num))
    _logger.warning("%d windows were overwritten before an ordered pass reached them; skipped.", int(num))
    return np.array(True)
