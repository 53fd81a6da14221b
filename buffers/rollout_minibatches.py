"""Minibatches of a rollout: every transition once an epoch, each epoch in an order of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .advantages import Advantages
from .nests import Array, Nest


class RolloutInfo(NamedTuple):
    """What comes beside the items of a minibatch: `[N]` for transitions, `[N, T]` for whole streams.

    Attributes:
      ids: int64, the frames' ids.
      advantages: float32.
      returns: float32, targets of the value function.
      values: float32, what the advantages were computed from.
      mask: bool, False on frames of whole streams that hold no transition.

    >>> RolloutInfo(ids=[3], advantages=[1.5], returns=[2.0], values=[0.5], mask=[True]).advantages
    [1.5]
    """

    ids: Any
    advantages: Any
    returns: Any
    values: Any
    mask: Any


def minibatch_dataset(
    ids: Array,
    estimates: Advantages,
    gather: Callable[[tf.Tensor], Nest],
    size: int,
    epochs: int,
    seed: int,
    *,
    whole_streams: bool,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """A dataset of `(items, RolloutInfo)`, the same in each iteration.

    Args:
      ids: int64 `[B, T]`.
      estimates: leaves `[B, T]`.
      gather: `ids [N]` or `[N, T]`, a tensor in a graph, to items `[N, ...]` or `[N, T, ...]`.
      size: rows of a minibatch: transitions or streams.
      epochs: how often each is visited.
      seed: of the orders, 0 to 2**63 - 1.
      whole_streams: rows are whole streams, `[N, T, ...]`.
      drop_remainder: leave out a last minibatch of fewer rows.

    Raises:
      ValueError: with `drop_remainder`, no minibatch would come.
    """
    columns = RolloutInfo(ids, estimates.advantages, estimates.returns, estimates.values, estimates.mask)
    if whole_streams:
        rows = RolloutInfo(*(tf.convert_to_tensor(leaf) for leaf in columns))
    else:
        mask = np.asarray(estimates.mask)
        rows = RolloutInfo(*(tf.convert_to_tensor(np.asarray(leaf)[mask]) for leaf in columns))
    num_rows = int(rows.ids.shape[0])
    if drop_remainder and size > num_rows:
        raise ValueError(
            f"minibatches of {size} with drop_remainder: the rollout has {num_rows} "
            f"{'streams' if whole_streams else 'transitions'}, so none would come; lower size."
        )

    num_chosen = num_rows // size * size if drop_remainder else num_rows

    def order(epoch: tf.Tensor, high: tf.Tensor, low: tf.Tensor) -> tf.data.Dataset:
        seed = (high - epoch) * 2**32 + low - epoch
        shuffled = tf.random.experimental.stateless_shuffle(tf.range(num_rows), tf.stack([seed, epoch]))

        def chosen(start: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(shuffled[start : tf.minimum(start + size, num_chosen)], [static_size])

        # A slice for each minibatch: to batch single indices would cost more than the gather.
        return tf.data.Dataset.range(0, num_chosen, size).map(chosen)

    # Where the size divides the rows, shapes stay static.
    static_size = size if num_chosen % size == 0 else None

    def minibatch(chosen: tf.Tensor) -> tuple[Nest, RolloutInfo]:
        info = tf.nest.map_structure(lambda leaf: tf.gather(leaf, chosen), rows)
        return gather(info.ids), info

    # The seed is where two ranges begin, and so in the state of an iterator: where one is saved and restored, the later
    # epochs have the orders that they would have had, whatever seed the dataset that goes on was made with.
    numbers = [tf.data.Dataset.range(epochs), *(tf.data.Dataset.range(word, 2**62) for word in divmod(seed, 2**32))]
    return tf.data.Dataset.zip(tuple(numbers)).flat_map(order).map(minibatch).prefetch(1)
