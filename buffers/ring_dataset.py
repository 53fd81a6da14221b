"""Endless random draws from memory of this process, as a `tf.data.Dataset`: from a ring, or of episodes.

Look-ahead: with `sample_batch_size` one call of the graph draws `DRAWS_PER_CALL` batches, so
that TensorFlow's cost a call is shared among them, and up to `PREFETCHED` batches wait while
one is used: with fewer, producer and consumer wake each other for every batch. So a batch was
drawn at most 24 batches before it is delivered. Batches of 1 MB and more, and samples that
differ in length, are drawn one batch a call, at most 5 ahead. With `num_parallel_calls` n
n + 1 calls come on top. tf.data's own prefetch, which it would put at the end and let grow, is
kept out by ours. Without `sample_batch_size` each element is drawn when it is asked for, and without
`look_ahead` each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from .base import BufferInfo
from .nests import Nest
from .usage import SampleCounter

DRAWS_PER_CALL = 8
PREFETCHED = 16

# From this size on a batch is drawn alone: taking several apart again would copy it once more.
_LARGE_BATCH_BYTES = 2**20
_PREFETCHED_LARGE = 4
_PREFETCHED_REPACKED = 2

Pack = Callable[[Sequence[tf.Tensor]], Nest]
# Of what was drawn, and its probabilities float32 `[batches, B]`, the weights, of the same shape.
Weigh = Callable[[Any, tf.Tensor], tf.Tensor]


class GraphSampler(Protocol):
    """What draws in a graph: `RingSampler` and `EpisodeSampler`."""

    @property
    def sample_bytes(self) -> int | None:
        """Bytes of the items of one sample; None where they differ."""

    def draw_in_graph(self, num: int, seed: tf.Tensor) -> Any:
        """`num` samples: `keys`, `ids`, `mask` and `leaves`."""

    def chances_in_graph(self, drawn: Any) -> tf.Tensor:
        """The chance of each draw, float32 `[n]`."""

    def positions_in_graph(self, keys: tf.Tensor) -> tf.Tensor:
        """Where the draws of these keys are marked."""


def random_dataset(
    sampler: GraphSampler,
    pack: Pack,
    sample_batch_size: int | None,
    seed: int | None,
    counter: SampleCounter,
    *,
    num_parallel_calls: int | None,
    weigh: Weigh | None = None,
    one_batch_a_call: bool = False,
    look_ahead: bool = True,
) -> tf.data.Dataset:
    """Endless draws with replacement; each iterator draws anew, and equal seeds repeat.

    Args:
      sampler: what draws.
      pack: leaves to the nest of a sample's items.
      sample_batch_size: `B`, or None for elements without a `B` axis.
      seed: of this dataset; None for one that differs in each process.
      counter: counts what is drawn.
      num_parallel_calls: of the map that draws; elements keep their order.
      weigh: gives the weights; None: they are 1.
      one_batch_a_call: draw a batch at a time, because its draws depend on each other.
      look_ahead: False: draw each batch when it is asked for, because a draw changes what can be drawn.
    """
    batch = sample_batch_size or 1
    sample_bytes = sampler.sample_bytes
    alone = sample_bytes is None or batch * sample_bytes >= _LARGE_BATCH_BYTES
    alone = alone or one_batch_a_call or not look_ahead
    num_calls = DRAWS_PER_CALL if sample_batch_size and not alone else 1
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).enumerate()
    # enumerate() says 2**63 - 1, which eight batches a call would turn into -8.
    seeds = seeds.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    @tf.autograph.experimental.do_not_convert  # nothing in it for AutoGraph, which takes a second to see that
    def draw(index: tf.Tensor, random: tf.Tensor) -> tuple[Nest, BufferInfo]:
        # The index keeps seeds apart that happen to be equal: `random` has only 32 bits.
        drawn = sampler.draw_in_graph(num_calls * batch, tf.stack([random, index]))
        if num_parallel_calls is None:
            with tf.control_dependencies([counter.count(sampler.positions_in_graph(drawn.keys))]):
                drawn = drawn._replace(keys=tf.identity(drawn.keys))
        chances = sampler.chances_in_graph(drawn)
        weights = None
        if weigh is not None:
            weights = tf.reshape(weigh(drawn, tf.reshape(chances, [num_calls, batch])), [num_calls * batch])
        items, info = pack(drawn.leaves), sample_info(drawn, chances, weights)
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
    if sample_batch_size and num_calls == 1 and look_ahead:
        return with_live_options(dataset.prefetch(_PREFETCHED_LARGE))
    if sample_batch_size and look_ahead:
        return with_live_options(dataset.unbatch().prefetch(PREFETCHED))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return with_live_options(dataset.with_options(options))


def in_order(num_parallel_calls: int | None) -> bool | None:
    """`deterministic` of a map: TensorFlow warns when it is given to a map that has no choice."""
    return None if num_parallel_calls is None else True


def one_at_a_time(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """A map that tf.data does not make parallel by itself, as it does with those that it takes for pure."""
    return dataset.map(function, num_parallel_calls=1, deterministic=True)


def repacked(dataset: tf.data.Dataset, function: Callable[..., Any], *, look_ahead: bool) -> tf.data.Dataset:
    """A dataset of samples in another structure; with `look_ahead` two more wait for the consumer.

    tf.data would put a prefetch behind a map, and let it grow.
    """
    if look_ahead:
        return one_at_a_time(dataset, function).prefetch(_PREFETCHED_REPACKED)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return one_at_a_time(dataset, function).with_options(options)


def counted(sampler: GraphSampler, counter: SampleCounter, info: BufferInfo) -> BufferInfo:
    """`info`, counted: in a map of one call at a time, because the counter is not atomic."""
    positions = sampler.positions_in_graph(tf.reshape(info.keys, [-1]))
    with tf.control_dependencies([counter.count(positions)]):
        # Made anew (and the same), because tf.data drops a map whose results are its arguments.
        return info._replace(weights=tf.cast(tf.cast(info.weights, tf.float64), tf.float32))


def sample_info(drawn: Any, probabilities: tf.Tensor, weights: tf.Tensor | None = None) -> BufferInfo:
    """`BufferInfo` in a graph for samples drawn with these probabilities, float32 `[n]`; weights are 1 without."""
    weights = tf.ones_like(probabilities) if weights is None else weights
    mask = tf.ones_like(drawn.ids, tf.bool) if drawn.mask is None else drawn.mask
    return BufferInfo(drawn.ids, probabilities, drawn.keys, weights, mask)


def with_live_options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Live memory must not leave the process: refuse what would serve a frozen copy of it."""
    options = tf.data.Options()
    # The tf.data service would copy the memory into the graph and serve that for ever.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.FAIL
    # Auto-sharding would read the whole memory to rewrite the graph.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)
