"""Whole episodes of a `tf.data.Dataset`, in padded batches and in buckets.

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
from .episode_sampler import NO_ID
from .nests import Nest

# Episodes drawn together where they are batched later: TensorFlow's cost a call is shared among them.
EPISODES_A_BLOCK = 16

# Lengths up to which buckets='auto' has a boundary, each half again the square of the one before last.
_LONGEST_BUCKET = 2**28


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
