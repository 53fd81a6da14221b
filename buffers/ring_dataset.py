"""`tf.data.Dataset`s over a ring: random draws, shuffled passes, one ordered pass.

Look-ahead: with `sample_batch_size` one call of the graph draws `DRAWS_PER_CALL` batches, so
that TensorFlow's cost a call is shared among them; tf.data itself prefetches a little. A
batch may therefore have been drawn up to about 2 x `DRAWS_PER_CALL` batches before it is
delivered. Without `sample_batch_size` each element is a draw of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .base import BufferInfo
from .ring_sampler import RingSampler
from .spec import Nest

DRAWS_PER_CALL = 4

# Windows gathered at a time in a pass without `sample_batch_size`.
_PASS_CHUNK = 64

Pack = Callable[[Sequence[tf.Tensor]], Nest]


def random_dataset(
    sampler: RingSampler,
    pack: Pack,
    sample_batch_size: int | None,
    seed: int | None,
    count_sampled: Callable[[tf.Tensor], tf.Operation],
    *,
    num_parallel_calls: int | None,
) -> tf.data.Dataset:
    """Endless draws with replacement; each iterator draws anew, and equal seeds repeat.

    Args:
      sampler: what draws.
      pack: leaves to the nest of a sample's items.
      sample_batch_size: `B`, or None for elements without a `B` axis.
      seed: of this dataset; None for one that differs in each process.
      count_sampled: ids int64 `[n]` or `[n, T]` -> an op that counts them as sampled.
      num_parallel_calls: of the map that draws; elements keep their order.
    """
    batch = sample_batch_size or 1
    num_calls = DRAWS_PER_CALL if sample_batch_size else 1
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).enumerate()

    def draw(index: tf.Tensor, random: tf.Tensor) -> tuple[Nest, BufferInfo]:
        # The index keeps seeds apart that happen to be equal: `random` has only 32 bits.
        drawn = sampler.draw_in_graph(num_calls * batch, tf.stack([random, index]))
        with tf.control_dependencies([count_sampled(sampler.ids(drawn.starts))]):
            starts = tf.identity(drawn.starts)
        chance = 1.0 / tf.cast(drawn.num_eligible, tf.float32)
        info = _info(sampler, starts, tf.fill(starts.shape, chance))
        items = pack(drawn.leaves)
        if not sample_batch_size:
            return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), (items, info))
        return tf.nest.map_structure(
            lambda leaf: tf.reshape(leaf, [num_calls, batch, *leaf.shape[1:]]), (items, info)
        )

    dataset = seeds.map(draw, num_parallel_calls, deterministic=_in_order(num_parallel_calls))
    return _with_options(dataset.unbatch() if sample_batch_size else dataset)


def pass_dataset(
    sampler: RingSampler,
    pack: Pack,
    plans: tf.data.Dataset,
    sample_batch_size: int | None,
    count_sampled: Callable[[tf.Tensor], tf.Operation],
    count_skipped: Callable[[np.ndarray], None],
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
        float32 `[]`), as `plan_dataset` makes it.
      sample_batch_size: `B`, or None for elements without a `B` axis.
      count_sampled: as for `random_dataset`.
      count_skipped: told how many windows were skipped, at the time.
      keep_short: deliver windows of fewer than `T` frames as such, `[<= T, ...]`; without
        `sample_batch_size` only.
      drop_remainder: leave out a last batch of fewer than `B`.
      num_parallel_calls: of the map that gathers; elements keep their order.
    """

    def gather(starts: tf.Tensor, lengths: tf.Tensor, chance: tf.Tensor) -> tuple[Nest, BufferInfo, tf.Tensor]:
        leaves, held = sampler.gather_in_graph(starts)
        num_lost = tf.reduce_sum(tf.cast(~held, tf.int64))
        told = tf.cond(
            num_lost > 0,
            lambda: tf.numpy_function(_tell(count_skipped), [num_lost], tf.bool),
            lambda: tf.constant(False),
        )
        with tf.control_dependencies([told, count_sampled(sampler.ids(tf.boolean_mask(starts, held)))]):
            held = tf.identity(held)
        leaves, starts, lengths, chance = tf.nest.map_structure(
            lambda tensor: tf.boolean_mask(tensor, held), (leaves, starts, lengths, chance)
        )
        return pack(leaves), _info(sampler, starts, chance), lengths

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
        gather, num_parallel_calls, deterministic=_in_order(num_parallel_calls)
    )
    # A chunk lacks the windows that were skipped: only taking it apart gives batches of one size again.
    single = chunks.unbatch().map(cut)
    if sample_batch_size is not None:
        single = single.batch(sample_batch_size, drop_remainder=drop_remainder)
    return _with_options(single)


def plan_dataset(make_plan: Callable[[], tuple[np.ndarray, np.ndarray, float]], num_plans: int) -> tf.data.Dataset:
    """`num_plans` plans for `pass_dataset`, each made when the pass reaches it, not before."""

    def call() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        starts, lengths, chance = make_plan()
        return starts, lengths, np.float32(chance)

    def plan(_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        starts, lengths, chance = tf.numpy_function(call, [], [tf.int64, tf.int64, tf.float32])
        return tf.ensure_shape(starts, [None]), tf.ensure_shape(lengths, [None]), tf.ensure_shape(chance, [])

    return tf.data.Dataset.range(num_plans).map(plan)


def _in_order(num_parallel_calls: int | None) -> bool | None:
    """`deterministic` of a map: TensorFlow warns when it is given to a map that has no choice."""
    return None if num_parallel_calls is None else True


def _info(sampler: RingSampler, starts: tf.Tensor, probabilities: tf.Tensor) -> BufferInfo:
    ids = sampler.ids(starts)
    return BufferInfo(ids, probabilities, starts, tf.ones_like(probabilities), tf.ones_like(ids, tf.bool))


def _tell(count_skipped: Callable[[np.ndarray], None]) -> Callable[[np.ndarray], np.ndarray]:
    def tell(num: np.ndarray) -> np.ndarray:
        count_skipped(num)
        return np.array(True)

    return tell


def _with_options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Live memory must not leave the process: refuse what would serve a frozen copy of it."""
    options = tf.data.Options()
    # The tf.data service would copy the memory into the graph and serve that for ever.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.FAIL
    # Auto-sharding would read the whole memory to rewrite the graph.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)
