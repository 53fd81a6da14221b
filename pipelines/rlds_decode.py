"""Decodes what TFDS leaves encoded when its own step-by-step decoding is skipped: a column at a time.

An episode then comes as the arrays that its tf.train.Example holds. Images and compressed
tensors are strings in there; everything else is as it should be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from .field_rules import apply_rules
from .rlds_fields import Decoders, PlannedField
from .rlds_sequences import with_lengths

# Images of one episode that are decoded at the same time.
_PARALLEL_STEPS = 16


class ColumnDecoder:
    """Loads the columns of one dataset's episodes, in a graph or eagerly.

    Args:
      features: by place, the TFDS feature of each field of a step.
      decoders: the caller's, by place.

    Raises:
      ValueError: a place in `decoders` is none of the dataset's, or is not encoded.
    """

    def __init__(self, features: Mapping[str, Any], decoders: Decoders | None) -> None:
        self._features = features
        self._decoders = dict(decoders or {})
        for place in self._decoders:
            if place not in features:
                raise ValueError(f"decoders names {place!r}, which the steps do not have; found {sorted(features)}.")
            if not _is_stored_as_strings(features[place]):
                raise ValueError(f"decoders names {place!r}, which is not encoded: {features[place]}.")

    def given(self, place: str, spec: Any) -> Any:
        """The spec of a step's field, with the caller's decoder for that of the feature."""
        decoder = self._decoders.get(place)
        if decoder is None:
            return spec
        # One value's bytes; several, or a number of them that varies, where the feature is a sequence.
        encoded = tf.TensorSpec(self._features[place].get_serialized_info().shape, tf.string)
        if decoder is False:
            return encoded
        traced = tf.function(decoder).get_concrete_function(encoded)
        return tf.TensorSpec(traced.structured_outputs.shape, traced.structured_outputs.dtype)

    def takes_as_it_is(self, leaf: PlannedField, stored: Any) -> bool:
        """Whether `load` gives a column of this spec, `[N + 1, ...]`, as it is."""
        if leaf.rules or leaf.path in self._decoders or not isinstance(stored, tf.TensorSpec):
            return False
        return bool(stored.dtype == leaf.given.dtype and stored.shape[1:] == leaf.given.shape)

    def load(self, leaf: PlannedField, column: Any) -> Any:
        """The loaded column `[N + 1, ...]` of the one in the file."""
        decoder = self._decoders.get(leaf.path)
        feature = self._features.get(leaf.path)
        if feature is not None:
            column = with_lengths(feature, column)
        if decoder is False:
            return apply_rules(leaf.rules, leaf.path, column)
        if decoder is None and (feature is None or not _is_encoded(leaf.given, column)):
            return apply_rules(leaf.rules, leaf.path, column)
        if decoder is None and hasattr(feature, "feature"):
            parts = _decoded_parts(feature, column)
            if parts is not None:
                return apply_rules(leaf.rules, leaf.path, parts)
        if decoder is None and not leaf.loaded.shape.is_fully_defined():
            # Asked for as it is: values of several shapes do not go into one array.
            return column
        if decoder is None:
            numbers = _decompressed(feature, column, leaf.given)
            if numbers is not None:
                return apply_rules(leaf.rules, leaf.path, numbers)
        decode: Callable[[Any], Any] = feature.decode_example if decoder is None else decoder

        def load_step(encoded: Any) -> Any:
            value = decode(encoded)
            return apply_rules(leaf.rules, leaf.path, value[tf.newaxis])[0] if leaf.rules else value

        return tf.map_fn(load_step, column, fn_output_signature=leaf.loaded, parallel_iterations=_PARALLEL_STEPS)


def features_by_place(features: Any, prefix: str = "") -> dict[str, Any]:
    """The TFDS features of a FeaturesDict's leaves, by place, `'observation/image'`."""
    found = {}
    for name, feature in features.items():
        place = f"{prefix}{name}"
        spec = feature.get_tensor_spec()
        if hasattr(feature, "items") and not hasattr(feature, "feature"):
            found.update(features_by_place(feature, f"{place}/"))
        elif isinstance(spec, Mapping):
            # A Sequence of dicts is stored as a dict of sequences.
            found.update(features_by_place({name: _part(feature, name) for name in spec}, f"{place}/"))
        else:
            found[place] = feature
    return found


def _part(feature: Any, name: str) -> Any:
    """A field of a FeaturesDict; of a Sequence of dicts, which is stored as a dict of sequences, that sequence."""
    if not hasattr(feature, "feature"):
        return feature[name]
    length = tf.nest.flatten(feature.get_tensor_spec())[0].shape[0]
    return type(feature)(_part(feature.feature, name), length=length)


def decode_value(feature: Any, value: Any) -> Any:
    """An episode's own field, decoded where the file holds it encoded."""
    spec = feature.get_tensor_spec()
    if isinstance(value, Mapping) and not isinstance(spec, Mapping):
        # A tensor of several unknown dimensions, as bytes and shape.
        return feature.decode_example(value)
    if isinstance(value, Mapping):
        parts = {name: _part(feature, name) for name in value}
        return {name: decode_value(parts[name], part) for name, part in value.items()}
    if value.dtype == tf.string and spec.dtype != tf.string:
        value = feature.decode_example(value)
    return with_lengths(feature, value)


def _is_stored_as_strings(feature: Any) -> bool:
    stored = feature.get_serialized_info()
    # A mapping is a tensor of several unknown dimensions, in bytes and a shape.
    return not isinstance(stored, Mapping) and tf.as_dtype(stored.tf_dtype) == tf.string


def _decoded_parts(feature: Any, column: Any) -> Any | None:
    """The values of sequences `[N + 1, n]`, all at once; None where they vary in shape.

    Args:
      feature: a sequence, of whatever depth.
      column: encoded; ragged where lengths vary.
    """
    while hasattr(feature, "feature"):
        feature = feature.feature
    spec = feature.get_tensor_spec()
    if not isinstance(column, tf.Tensor | tf.RaggedTensor) or not spec.shape.is_fully_defined():
        return None
    flat = column.flat_values if isinstance(column, tf.RaggedTensor) else tf.reshape(column, [-1])
    decoded = _decompressed(feature, flat, spec)
    if decoded is None:
        decoded = tf.map_fn(feature.decode_example, flat, fn_output_signature=spec, parallel_iterations=_PARALLEL_STEPS)
    if isinstance(column, tf.RaggedTensor):
        return column.with_flat_values(decoded)
    return tf.reshape(decoded, tf.concat([tf.shape(column), spec.shape.as_list()], axis=0))


def _is_encoded(given: Any, column: Any) -> bool:
    if isinstance(column, Mapping):
        # A tensor of several unknown dimensions, as bytes and shape.
        return True
    return column.dtype == tf.string and given.dtype != tf.string


def _decompressed(feature: Any, column: Any, spec: tf.TensorSpec) -> Any | None:
    """A compressed tensor's numbers, for all steps at once; None where the feature is something else."""
    if not spec.shape.is_fully_defined():
        return None
    encoding = getattr(feature.to_json_content(), "encoding", None)
    if encoding not in ("zlib", "bytes"):
        return None
    if encoding == "zlib":
        column = tf.io.decode_compressed(column, compression_type="ZLIB")
    # decode_raw does not know two dtypes, one of which TFDS itself cannot read either.
    raw_dtype = {tf.uint32: tf.int32, tf.uint64: tf.int64}.get(spec.dtype, spec.dtype)
    numbers = tf.io.decode_raw(column, raw_dtype)
    if raw_dtype != spec.dtype:
        numbers = tf.bitcast(numbers, spec.dtype)
    # The reshape fails where a step holds more or fewer numbers.
    return tf.reshape(numbers, [tf.shape(column)[0], *spec.shape])
