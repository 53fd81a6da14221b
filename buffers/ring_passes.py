"""Passes over a ring: each window once, in order or shuffled, then the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from .base import BufferInfo, EmptyBufferError
from .callbacks import call_weakly
from .frame_flags import FrameFlags
from .nests import Array, Nest
from .pass_plans import ordered_plan, shuffled_plans
from .ring import FrameRing
from .ring_dataset import Pack, counted, in_order, one_at_a_time, sample_info, with_live_options
from .ring_sampler import RingSampler
from .ring_starts import Extents
from .usage import Usage
from .windows import Placed, Window, eligible_windows, stepped_windows

# Windows gathered at a time in a pass without `sample_batch_size`.
_PASS_CHUNK = 64

_logger = logging.getLogger(__name__)


class PassPlanner:
    """Says which windows a pass visits, and in which order, when the pass begins.

    Args:
      ring: what is held.
      lock: held while the ring is read.
      window: the kind of window.
      shift: frames of an episode from one start to the next, as in TF-Agents' ordered pass; None: every
        eligible window comes.
      explain_nothing: the error for a ring in which nothing is eligible.
      min_size: frames that must be held.
      keep_short: with `shift`, keep windows that an episode's end cuts short.
      flags: of frames that must not be delivered.
    """

    def __init__(
        self,
        ring: FrameRing,
        lock: threading.Lock,
        window: Window,
        shift: int | None,
        explain_nothing: Callable[[Window], EmptyBufferError],
        *,
        min_size: int,
        keep_short: bool,
        flags: FrameFlags,
    ) -> None:
        self._flags = flags
        self._ring = ring
        self._lock = lock
        self._window = window
        self._shift = shift
        self._explain_nothing = explain_nothing
        self._min_size = min_size
        self._keep_short = keep_short

    def ordered(self) -> tf.data.Dataset:
        """One plan: oldest first, stream after stream."""
        return ordered_plan(self, PassPlanner._windows, 3)

    def shuffled(self, num_passes: int, seed: int | None) -> tf.data.Dataset:
        """`num_passes` plans, each a permutation of its own of what is held when it is reached."""
        return shuffled_plans(self, PassPlanner._windows, 3, num_passes, seed)

    def _windows(self) -> Placed:
        """The windows of all streams; starts are ids of drawn frames."""
        window, shift = self._window, self._shift
        with self._lock:
            ids, words = self._ring.ids_by_stream(), self._ring.words_by_stream()
            unfinished = self._ring.unfinished()
        num_frames = sum(len(stream) for stream in ids)
        if num_frames < max(1, self._min_size):
            raise self._explain_nothing(window)
        if window.boundaries == "ignore":
            words = [self._ring.joined_words(stream) for stream in ids]
        parts = []
        for stream, stream_words, is_open in zip(ids, words, unfinished, strict=True):
            if shift is None:
                placed = eligible_windows(stream_words, window, unfinished=bool(is_open))
            else:
                placed = stepped_windows(stream_words, window.num_steps, shift, keep_short=self._keep_short)
            parts.append(placed._replace(starts=stream[placed.starts]))
        windows = Placed(*(np.concatenate(each) for each in zip(*parts, strict=True)))
        if not self._flags.all_clear:
            with self._lock:
                allowed = self._flags.allows(windows.starts, windows.num_before, windows.num_after)
            windows = Placed(*(each[allowed] for each in windows))
        if not len(windows.starts):
            raise self._explain_nothing(window)
        left_out = num_frames - int(windows.num_after.sum())
        if shift == window.num_steps > 1 and not self._keep_short and left_out:
            _logger.warning("%d frames are in no window of %d frames; left out.", left_out, window.num_steps)
        return windows


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
      plans: dataset of (ids of drawn frames int64 `[m]`, their extents, int64 `[m]` each, the chance of each
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
    def gather(keys: tf.Tensor, extents: Extents, chance: tf.Tensor) -> tuple[Nest, BufferInfo, tf.Tensor]:
        drawn, held = sampler.gather_in_graph(keys, extents)
        num_lost = tf.reduce_sum(tf.cast(~held, tf.int64))
        told = tf.cond(
            num_lost > 0,
            lambda: call_weakly(usage, _tell_skipped, [num_lost], tf.bool),
            lambda: tf.constant(False),
        )
        with tf.control_dependencies([told]):
            held = tf.identity(held)
        sampled = (pack(drawn.leaves), sample_info(drawn, chance), extents.num_after)
        return tf.nest.map_structure(lambda tensor: tf.boolean_mask(tensor, held), sampled)

    @tf.autograph.experimental.do_not_convert
    def cut(items: Nest, info: BufferInfo, length: tf.Tensor) -> tuple[Nest, BufferInfo]:
        if not keep_short:
            return items, info
        items = tf.nest.map_structure(lambda leaf: leaf[:length], items)
        return items, info._replace(ids=info.ids[:length], mask=info.mask[:length])

    windows = plans.flat_map(
        lambda keys, num_before, num_after, chance: tf.data.Dataset.from_tensor_slices(
            (keys, Extents(num_before, num_after), tf.fill(tf.shape(keys), chance))
        )
    )
    chunks = windows.batch(sample_batch_size or _PASS_CHUNK).map(
        gather, num_parallel_calls, deterministic=in_order(num_parallel_calls)
    )
    chunks = one_at_a_time(chunks, lambda items, info, lengths: (items, counted(sampler, counter, info), lengths))
    # A chunk lacks the windows that were skipped: only taking it apart gives batches of one size again.
    single = chunks.unbatch().map(cut)
    if sample_batch_size is not None:
        single = single.batch(sample_batch_size, drop_remainder=drop_remainder)
    return with_live_options(single)


def _tell_skipped(usage: Usage, num: Array) -> Array:
    usage.count_skipped(int(num))
    _logger.warning("%d windows were overwritten before an ordered pass reached them; skipped.", int(num))
    return np.array(True)
