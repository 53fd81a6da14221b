"""Endless draws of windows and of whole episodes, as a `tf.data.Dataset`.

Look-ahead is that of `ring_dataset.py` for windows. Whole episodes are drawn one batch a call, at most 5
batches ahead. With buckets they are drawn in blocks of `EPISODES_A_BLOCK`, at most 5 blocks ahead, and then wait until
there are enough of about their length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .base import BufferInfo
from .episode_sampler import NO_ID, Drawn, EpisodeSampler
from .nests import Nest
from .ring_dataset import DRAWS_PER_CALL, PREFETCHED, Pack, in_order, one_at_a_time, with_live_options
from .usage import SampleCounter

# Episodes drawn together where they are batched later: TensorFlow's cost a call is shared among them.
EPISODES_A_BLOCK = 16

# From this size on a batch is drawn alone: taking several apart again would copy it once more.
_LARGE_BATCH_BYTES = 2**20
_PREFETCHED_LARGE = 4

# Lengths up to which buckets='auto' has a boundary, each half again the square of the one before last.
_LONGEST_BUCKET = 2**28


def random_dataset(
    sampler: EpisodeSampler,
    pack: Pack,
    sample_batch_size: int | None,
    seed: int | None,
    counter: SampleCounter,
    *,
    num_parallel_calls: int | None,
) -> tf.data.Dataset:
    """Endless draws with replacement; each iterator draws anew, and equal seeds repeat.

    Args:
      sampler: what draws.
      pack: leaves to the nest of a sample's items.
      sample_batch_size: `B`, or None for elements without a `B` axis.
      seed: of this dataset; None for one that differs in each process.
      counter: counts what is drawn.
      num_parallel_calls: of the map that draws; elements keep their order.
    """
    batch = sample_batch_size or 1
    sample_bytes = sampler.sample_bytes
    alone = sample_bytes is None or batch * sample_bytes >= _LARGE_BATCH_BYTES
    num_calls = DRAWS_PER_CALL if sample_batch_size and not alone else 1
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).enumerate()

    @tf.autograph.experimental.do_not_convert
    def draw(index: tf.Tensor, random: tf.Tensor) -> tuple[Nest, BufferInfo]:
        # The index keeps seeds apart that happen to be equal: `random` has only 32 bits.
        drawn = sampler.draw_in_graph(num_calls * batch, tf.stack([random, index]))
        if num_parallel_calls is None:
            with tf.control_dependencies([counter.count(sampler.positions_in_graph(drawn.keys))]):
                drawn = drawn._replace(keys=tf.identity(drawn.keys))
        items, info = pack(drawn.leaves), graph_info(drawn, drawn.chances)
        if not sample_batch_size:
            return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), (items, info))
        if num_calls == 1:
            return items, info
        return tf.nest.map_structure(lambda leaf: tf.reshape(leaf, [num_calls, batch, *leaf.shape[1:]]), (items, info))

    @tf.autograph.experimental.do_not_convert
    def count(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
        return items, counted(sampler, counter, info)

    dataset = seeds.map(draw, num_parallel_calls, deterministic=in_order(num_parallel_calls))
    if num_parallel_calls is not None:
        dataset = one_at_a_time(dataset, count)
    if sample_batch_size and num_calls == 1:
        return with_live_options(dataset.prefetch(_PREFETCHED_LARGE))
    if sample_batch_size:
        return with_live_options(dataset.unbatch().prefetch(PREFETCHED))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return with_live_options(dataset.with_options(options))


def counted(sampler: EpisodeSampler, counter: SampleCounter, info: BufferInfo) -> BufferInfo:
    """`info`, counted: in a map of one call at a time, because the counter is not atomic."""
    positions = sampler.positions_in_graph(tf.reshape(info.keys, [-1]))
    with tf.control_dependencies([counter.count(positions)]):
        # Made anew, because tf.data drops a map whose results are its arguments.
        return info._replace(weights=tf.ones_like(info.weights))


def graph_info(drawn: Drawn, probabilities: tf.Tensor) -> BufferInfo:
    """`BufferInfo` in a graph for samples drawn with these probabilities, float32 `[n]`."""
    mask = tf.ones_like(drawn.ids, tf.bool) if drawn.mask is None else drawn.mask
    return BufferInfo(drawn.ids, probabilities, drawn.keys, tf.ones_like(probabilities), mask)


def take_apart(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Single episodes `[L, ...]` of padded batches."""

    @tf.autograph.experimental.do_not_convert
    def cut(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
        length = tf.reduce_sum(tf.cast(info.mask, tf.int32))
        items = tf.nest.map_structure(lambda leaf: leaf[:length], items)
        return items, info._replace(ids=info.ids[:length], mask=info.mask[:length])

    return dataset.unbatch().map(cut)


def pad_batches(dataset: tf.data.Dataset, sample_batch_size: int, *, drop_remainder: bool) -> tf.data.Dataset:
    """Batches of single episodes, padded to the longest of each: zeros, ids -1, mask False."""
    return dataset.padded_batch(
        sample_batch_size, padding_values=_padding(dataset.element_spec), drop_remainder=drop_remainder
    )


def pad_in_buckets(
    dataset: tf.data.Dataset, sample_batch_size: int, boundaries: Sequence[int], *, drop_remainder: bool
) -> tf.data.Dataset:
    """The same with episodes of one bucket in each batch: those of lengths from one boundary to below the next."""
    return dataset.bucket_by_sequence_length(
        lambda items, info: tf.shape(info.ids)[0],
        list(boundaries),
        [sample_batch_size] * (len(boundaries) + 1),
        padding_values=_padding(dataset.element_spec),
        drop_remainder=drop_remainder,
    )


def bucket_boundaries(buckets: Any, lengths: np.ndarray[Any, Any]) -> list[int]:
    """Boundaries that `buckets` asks for.

    Args:
      buckets: boundaries; or a number of buckets, to be cut by how long episodes are now; or `'auto'`: each
        boundary about 1.41 times the one before, so that under 30 % of any batch is padding.
      lengths: of the episodes held.

    Raises:
      TypeError: `buckets` is none of these.
      ValueError: boundaries do not rise from at least 1, a number is below 1, or there is nothing to cut by.

    >>> bucket_boundaries([16, 64], np.array([]))
    [16, 64]
    >>> bucket_boundaries(2, np.array([15] * 9 + [300]))
    [16]
    >>> bucket_boundaries("auto", np.array([]))[:9]
    [2, 3, 4, 6, 8, 12, 16, 23, 32]
    """
    if buckets == "auto":
        exact = 2.0 ** (np.arange(2, 57) / 2)
        return np.unique(np.ceil(exact[exact <= _LONGEST_BUCKET]).astype(int)).tolist()
    if isinstance(buckets, int) and not isinstance(buckets, bool):
        if buckets < 1:
            raise ValueError(f"buckets must be at least 1, got {buckets}.")
        if not len(lengths):
            raise ValueError(f"buckets={buckets} cuts by the lengths held, and there is no episode; give boundaries.")
        shares = np.arange(1, buckets) / buckets
        return np.unique(np.quantile(lengths, shares, method="lower").astype(int) + 1).tolist()
    if isinstance(buckets, str) or not isinstance(buckets, Sequence):
        raise TypeError(f"buckets must be boundaries, a number or 'auto', got {buckets!r}.")
    boundaries = list(buckets)
    if any(isinstance(one, bool) or not hasattr(one, "__index__") for one in boundaries):
        raise TypeError(f"buckets must be ints, got {boundaries}.")
    if any(low >= high for low, high in zip([0, *boundaries], boundaries, strict=False)):
        raise ValueError(f"buckets must rise from at least 1, got {boundaries}.")
    return [int(one) for one in boundaries]


def _padding(element_spec: Any) -> Any:
    items, info = element_spec
    zeros = tf.nest.map_structure(lambda spec: tf.zeros([], spec.dtype), (items, info))
    return zeros[0], zeros[1]._replace(ids=tf.constant(NO_ID, tf.int64))
