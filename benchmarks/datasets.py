"""Ways to consume a dataset, and the floor: a dataset that does nothing but hand out constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

BATCHES_PER_GRAPH_CALL = 20


def floor_dataset(element_spec: Any) -> tf.data.Dataset:
    """The same constant element for ever: what tf.data itself costs for elements of this structure."""
    element = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), element_spec)
    return tf.data.Dataset.from_tensors(element).repeat()


def eagerly(dataset: tf.data.Dataset) -> Callable[[], Any]:
    """A call takes one element in an eager loop."""
    return iter(dataset).__next__


def in_function(dataset: tf.data.Dataset) -> Callable[[], Any]:
    """A call takes `BATCHES_PER_GRAPH_CALL` elements inside one `tf.function`."""
    iterator = iter(dataset)

    @tf.function
    def consume() -> tf.Tensor:
        total = tf.constant(0.0)
        for _ in tf.range(BATCHES_PER_GRAPH_CALL):
            leaf = tf.nest.flatten(next(iterator))[0]
            total += tf.cast(tf.reshape(leaf, [-1])[0], tf.float32)
        return total

    return consume
