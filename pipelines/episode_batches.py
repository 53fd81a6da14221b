"""A stream of windows that Python makes as a `tf.data.Dataset` of `(items, BufferInfo)`.

Crossing from Python to tf.data costs about a millisecond, whatever is brought: small batches cross several at a
time, and are taken apart again. Ids and mask follow from keys and lengths, in the graph.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import tensorflow as tf

from replayfeed.buffers import BufferInfo
from replayfeed.buffers.nests import Array, Nest, lists_to_tuples
from replayfeed.buffers.ring_dataset import one_at_a_time, with_live_options
from replayfeed.buffers.windows import Window

from .ends_at_exit import EndsAtExit
from .episode_blocks import StreamField
from .episode_order import Taken

# Of one crossing; a batch that is larger crosses alone.
_CROSSING_BYTES = 2**20
_CROSSING_BATCHES = 16
# Windows of one crossing that are delivered one by one.
_CROSSING_WINDOWS = 256

# Elements that wait for the consumer, with several batches a crossing and with one.
_PREFETCHED, _PREFETCHED_LARGE = 16, 4

_NO_ID = -1


class Stream(Protocol):
    """What windows are taken from: `WindowStream`, or several of them mixed."""

    def take(self, num: int) -> Taken | None:
        """The next `num` windows; fewer where it ends, None after that."""


def stream_dataset(
    open_stream: Callable[[], Stream],
    element_spec: Nest,
    fields: list[StreamField],
    window: Window | None,
    sample_batch_size: int | None,
    *,
    is_endless: bool,
    keep_short: bool = False,
) -> tf.data.Dataset:
    """What a stream delivers, `(items, BufferInfo)`, leaves `[B, T, ...]`; each iterator opens one of its own.

    Args:
      open_stream: opens a stream; the dataset keeps it alive, TensorFlow's own registry does not.
      element_spec: nest of specs of one frame.
      fields: its leaves.
      window: the kind of window; None: single frames without a `T` axis.
      sample_batch_size: `B`; None: no such axis.
      is_endless: the stream never ends, so that every batch is full. Else the last one may have fewer.
      keep_short: deliver windows of fewer than `T` frames as such, `[<= T, ...]`; without `B` only.
    """
    length = 1 if window is None else window.length
    time: list[int] = [] if window is None else [length]
    frame_bytes = max(1, sum(field.num_bytes for field in fields))
    num_batches = 1
    outer: list[int | None]
    if sample_batch_size is None:
        num_together, outer = max(1, min(_CROSSING_WINDOWS, _CROSSING_BYTES // (length * frame_bytes))), [None]
    else:
        batch_bytes = sample_batch_size * length * frame_bytes
        num_batches = max(1, min(_CROSSING_BATCHES, _CROSSING_BYTES // batch_bytes))
        num_together = num_batches * sample_batch_size
        outer = [sample_batch_size if is_endless else None]
        if num_batches > 1:
            outer = [None, *outer]
    opener = _Opener(open_stream)
    reference = weakref.ref(opener)

    def generate() -> Iterator[tuple[Array, ...]]:
        found = reference()
        if found is None:
            raise ReferenceError("the dataset that these windows belong to is gone; keep a reference to it.")
        stream = found.open_stream()
        del found
        while (taken := stream.take(num_together)) is not None:
            columns = (*taken.leaves, taken.keys, taken.chances, taken.num_before, taken.num_after)
            yield from _cut(columns, sample_batch_size, num_batches)

    signature = (
        *(tf.TensorSpec([*outer, *time, *field.shape], field.dtype) for field in fields),
        tf.TensorSpec(outer, tf.int64),
        tf.TensorSpec(outer, tf.float32),
        tf.TensorSpec(outer, tf.int64),
        tf.TensorSpec(outer, tf.int64),
    )
    structure = lists_to_tuples(element_spec)
    # What is real is known without looking.
    all_real = window is None or (window.is_plain and not keep_short)
    offsets = np.zeros([], np.int64) if window is None else np.arange(-window.burn_in, window.num_steps)

    @tf.autograph.experimental.do_not_convert
    def pack(*columns: tf.Tensor, _kept_alive: _Opener = opener) -> tuple[Nest, ...]:
        # The dataset keeps this function, and this function the opener.
        *leaves, keys, chances, num_before, num_after = columns
        ids = keys if window is None else keys[..., tf.newaxis] + offsets
        if all_real:
            mask = tf.ones_like(ids, tf.bool)
        else:
            mask = (offsets >= -num_before[..., tf.newaxis]) & (offsets < num_after[..., tf.newaxis])
            ids = tf.where(mask, ids, tf.constant(_NO_ID, tf.int64))
        info = BufferInfo(ids, chances, keys, tf.ones_like(chances), mask)
        items = tf.nest.pack_sequence_as(structure, leaves)
        return (items, info, num_after) if keep_short else (items, info)

    @tf.autograph.experimental.do_not_convert
    def cut(items: Nest, info: BufferInfo, num_after: tf.Tensor) -> tuple[Nest, BufferInfo]:
        items = tf.nest.map_structure(lambda leaf: leaf[:num_after], items)
        return items, info._replace(ids=info.ids[:num_after], mask=info.mask[:num_after])

    dataset = tf.data.Dataset.from_generator(lambda: EndsAtExit(generate()), output_signature=signature)
    if is_endless:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    dataset = one_at_a_time(dataset, pack)
    if sample_batch_size is None or num_batches > 1:
        dataset = dataset.unbatch()
    if keep_short:
        dataset = one_at_a_time(dataset, cut)
    return with_live_options(dataset.prefetch(_PREFETCHED_LARGE if num_batches == 1 else _PREFETCHED))


class _Opener:
    """Holds what opens streams: a function cannot be referred to weakly without a reason to live."""

    def __init__(self, open_stream: Callable[[], Stream]) -> None:
        self.open_stream = open_stream


def _cut(columns: tuple[Array, ...], sample_batch_size: int | None, num_batches: int) -> Iterator[tuple[Array, ...]]:
    """What crosses together: whole batches `[n, B, ...]`, then what is left; alone `[B, ...]`."""
    if sample_batch_size is None or num_batches == 1:
        yield columns
        return
    whole = len(columns[0]) // sample_batch_size
    stop = whole * sample_batch_size
    if whole:
        yield tuple(each[:stop].reshape(whole, sample_batch_size, *each.shape[1:]) for each in columns)
    if stop < len(columns[0]):
        yield tuple(each[np.newaxis, stop:] for each in columns)
