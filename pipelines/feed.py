"""From a buffer or a dataset to a training loop: a lean iterator.

An eager `next(iter(dataset))` spends most of its time in Python, and more with each field.
`iterate` makes the same iterator out of TensorFlow's public raw ops and leaves that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def iterate(dataset: tf.data.Dataset) -> Iterator[Any]:
    """The elements of `iter(dataset)`, in the same structure, with less Python around each.

    The dataset's options and tf.data's own optimisations apply as they do with `iter`; the
    iterator and what it prefetches are freed with the last reference to it. Several threads
    may share one. It is for eager loops: inside a `tf.function` loop over the dataset itself.

    Elements that hold anything but plain tensors (ragged, sparse, nested datasets), and eager
    mode switched to asynchronous, have no public way around `iter`: there it is what is returned.

    Args:
      dataset: any `tf.data.Dataset`.

    Raises:
      TypeError: `dataset` is no `tf.data.Dataset`.
      RuntimeError: called inside a `tf.function` or a graph.

    >>> [int(x) for x in iterate(tf.data.Dataset.range(3))]
    [0, 1, 2]
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"iterate takes a tf.data.Dataset, got {type(dataset).__name__}.")
    if not tf.executing_eagerly():
        raise RuntimeError("iterate is for eager loops; inside a tf.function use `for element in dataset`.")
    leaves = tf.nest.flatten(dataset.element_spec)
    if not tf.config.experimental.get_synchronous_execution() or any(
        type(leaf) is not tf.TensorSpec for leaf in leaves
    ):
        return iter(dataset)
    return _LeanIterator(dataset, leaves)


class _LeanIterator(Iterator[Any]):
    """An iterator over a dataset of plain tensors, with these flat specs."""

    def __init__(self, dataset: tf.data.Dataset, leaves: list[tf.TensorSpec]) -> None:
        # The dataset is kept alive: a from_generator dataset owns the Python functions that it calls.
        self._dataset = dataset
        self._types = [leaf.dtype for leaf in leaves]
        self._shapes = [leaf.shape for leaf in leaves]
        variant = tf.data.experimental.to_variant(dataset)
        # On the dataset's device, as iter does: elements of a copy_to_device dataset live there.
        with tf.device(variant.device):
            self.iterator_resource = tf.raw_ops.AnonymousIteratorV3(
                output_types=self._types, output_shapes=self._shapes
            )
        tf.raw_ops.MakeIterator(dataset=variant, iterator=self.iterator_resource)
        self.element_spec = dataset.element_spec
        self._pack = _packer(self.element_spec)

    def __next__(self) -> Any:
        try:
            leaves = tf.raw_ops.IteratorGetNext(
                iterator=self.iterator_resource, output_types=self._types, output_shapes=self._shapes
            )
        except tf.errors.OutOfRangeError:
            raise StopIteration from None
        return self._pack(leaves)


def _packer(structure: Any) -> Callable[[list[Any]], Any]:
    """A function that does `tf.nest.pack_sequence_as(structure, leaves)`, with the walk done once.

    >>> _packer({"b": 0, "a": (0, 0)})([1, 2, 3])
    {'b': 3, 'a': (1, 2)}
    """
    count = len(tf.nest.flatten(structure))
    return _packer_of(tf.nest.pack_sequence_as(structure, list(range(count))))


def _packer_of(indices: Any) -> Callable[[list[Any]], Any]:
    """The packer for a structure whose leaves are their own places in the flat list."""
    kind = type(indices)
    if kind is int:
        return lambda leaves: leaves[indices]
    if kind is dict:
        fields = [(key, _packer_of(value)) for key, value in indices.items()]
        return lambda leaves: {key: pack(leaves) for key, pack in fields}
    if kind in (tuple, list):
        children = [_packer_of(child) for child in indices]
        return lambda leaves: kind([pack(leaves) for pack in children])
    if isinstance(indices, tuple) and hasattr(kind, "_make"):
        children = [_packer_of(child) for child in indices]
        return lambda leaves: kind._make([pack(leaves) for pack in children])
    # Anything else that tf.nest knows (attrs, other mappings): its own way.
    return lambda leaves: tf.nest.pack_sequence_as(indices, [leaves[i] for i in tf.nest.flatten(indices)])
