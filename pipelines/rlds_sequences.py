"""Sequences of a fixed length within steps: TFDS writes them, and looks for something else when it reads.

What lies in two sequences (`steps` are the first) TFDS writes as a list of all values, and one of lengths for each
level. It looks for these lists only where it knows of two lengths that vary, and otherwise for one plain list, which is
not there. So an episode is parsed by features without the lengths; its columns get their shape back here.

https://github.com/tensorflow/datasets/blob/v4.9.9/tensorflow_datasets/core/example_serializer.py (`_add_ragged_fields`)
https://github.com/tensorflow/datasets/blob/v4.9.9/tensorflow_datasets/core/example_parser.py (`_to_tf_example_spec`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from replayfeed.buffers.nests import Nest, leaves_with_paths


def as_written(tfds: Any, feature: Any, num_around: int = 0) -> Any:
    """The feature by which TFDS finds what it wrote: sequences that lie in others, or hold others, without lengths.

    Args:
      tfds: TensorFlow Datasets.
      feature: a FeaturesDict, or a part of one.
      num_around: sequences that it lies in.

    Returns:
      The feature itself where it can be read as it is.

    >>> import tensorflow_datasets as tfds
    >>> features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset({"words": tfds.features.Sequence(
    ...     tf.int64, length=3)})})
    >>> features["steps"].get_serialized_info()["words"].shape
    (None, 3)
    >>> as_written(tfds, features)["steps"].get_serialized_info()["words"].shape
    (None, None)
    """
    if isinstance(feature, tfds.features.FeaturesDict):
        parts = {name: as_written(tfds, part, num_around) for name, part in feature.items()}
        changed = any(parts[name] is not part for name, part in feature.items())
        return tfds.features.FeaturesDict(parts) if changed else feature
    if not isinstance(feature, tfds.features.Sequence):
        return feature
    inner = as_written(tfds, feature.feature, num_around + 1)
    stored = [info for _, info in leaves_with_paths(feature.get_serialized_info(), ())]
    is_nested = any(info.sequence_rank + num_around > 1 for info in stored)
    has_length = any(info.shape[0] is not None for info in stored)
    if inner is feature.feature and not (is_nested and has_length):
        return feature
    # A Video is a Sequence of images, which asks for their number.
    make = tfds.features.Dataset if isinstance(feature, tfds.features.Dataset) else tfds.features.Sequence
    return make(inner)


def spec_of_value(feature: Any) -> Nest:
    """The spec of a feature's value: of a fixed shape where its sequences, however many, are of fixed lengths.

    >>> import tensorflow_datasets as tfds
    >>> spec_of_value(tfds.features.Sequence(tfds.features.Sequence(tf.int64, length=2), length=3))
    TensorSpec(shape=(3, 2), dtype=tf.int64, name=None)
    """
    return _with_known_shapes(feature.get_tensor_spec())


def with_lengths(feature: Any, values: Any) -> Any:
    """Values as `as_written` reads them, in the shape that the feature says: dense where all its lengths are fixed.

    Args:
      feature: of one value, with its lengths.
      values: of one field of steps, `[N + 1, (n), ...]`; or one value, where the feature lies in no other.

    Returns:
      Dense values `[N + 1, n, ...]`, or `values` as they are.

    Raises:
      tf.errors.InvalidArgumentError: a sequence in the file has another length.

    >>> import tensorflow_datasets as tfds
    >>> feature = tfds.features.Sequence(tf.int64, length=2)
    >>> with_lengths(feature, tf.ragged.constant([[1, 2], [3, 4], [5, 6]])).numpy().tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    if not isinstance(values, tf.RaggedTensor):
        return values
    stored = feature.get_serialized_info()
    lengths: Sequence[int | None] = stored.shape[: stored.sequence_rank]
    if None in lengths:
        return values
    # Of one value the first length is that of the ragged tensor itself.
    inner = lengths[len(lengths) - values.ragged_rank :]
    outer = [tf.cast(values.nrows(), tf.int32)]
    message = f"a sequence of a fixed length, {list(lengths)}, has another one in the file"
    checks = [
        tf.debugging.assert_equal(found, tf.cast(length, found.dtype), message)
        for found, length in zip(values.nested_row_lengths(), inner, strict=True)
    ]
    if len(inner) < len(lengths):
        checks.append(tf.debugging.assert_equal(outer[0], lengths[0], message))
    with tf.control_dependencies([check for check in checks if check is not None]):
        flat = tf.identity(values.flat_values)
    return tf.reshape(flat, tf.concat([outer, inner, tf.shape(flat)[1:]], axis=0))


def _with_known_shapes(spec: Nest) -> Nest:
    if isinstance(spec, Mapping):
        return {key: _with_known_shapes(child) for key, child in spec.items()}
    if isinstance(spec, tf.RaggedTensorSpec) and spec.shape.is_fully_defined():
        return tf.TensorSpec(spec.shape, spec.dtype)
    return spec
