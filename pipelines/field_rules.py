"""What a loader may do to a field of a step: leave it out, give it a fixed shape, another dtype.

The rules are given by the field's place, `load_rlds(..., fields={"observation/words": Drop()})`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .rlds_steps import ACTION


class FieldRule(abc.ABC):
    """One change to a field; a tuple of rules is applied from left to right."""

    @abc.abstractmethod
    def spec(self, path: str, spec: Any) -> Any:
        """The spec of one step's value after the rule, from that before it.

        Raises:
          ValueError: the rule makes no sense for such a field.
        """

    @abc.abstractmethod
    def column(self, path: str, column: Any) -> Any:
        """The field's values in an episode, `[N + 1, ...]`, after the rule; in a graph or eagerly."""


@dataclasses.dataclass(frozen=True)
class Drop(FieldRule):
    """Leaves the field out.

    >>> Drop()
    Drop()
    """

    def spec(self, path: str, spec: Any) -> Any:
        """Never asked for: the field is gone."""
        return spec

    def column(self, path: str, column: Any) -> Any:
        """Never asked for: the field is gone."""
        return column


@dataclasses.dataclass(frozen=True)
class Keep(FieldRule):
    """Keeps a string as it is: bytes, which no buffer stores, for training straight from disk and for writing.

    >>> Keep().spec("language", tf.TensorSpec([], tf.string)).dtype
    tf.string
    """

    def spec(self, path: str, spec: Any) -> Any:
        """The same."""
        return spec

    def column(self, path: str, column: Any) -> Any:
        """The same."""
        return column


@dataclasses.dataclass(frozen=True)
class Cast(FieldRule):
    """Another dtype, such as float32 for float64.

    Floats are rounded. A value that does not survive otherwise (300 or -1 in uint8, 1.5 or NaN in an integer, 1e300 in
    float32) is an error, as it is in buffers.

    Args:
      dtype: what `tf.as_dtype` takes.

    >>> Cast("float32").spec("observation", tf.TensorSpec([3], tf.float64))
    TensorSpec(shape=(3,), dtype=tf.float32, name=None)
    >>> Cast("uint8").column("observation", tf.constant([0.0, 255.0])).numpy().tolist()
    [0, 255]
    """

    dtype: Any

    def spec(self, path: str, spec: Any) -> Any:
        """The same shape."""
        dtype = tf.as_dtype(self.dtype)
        if spec.dtype == tf.string or dtype == tf.string:
            raise ValueError(f"step field {path!r}: Cast is for numbers, the field is {spec.dtype.name}; see Bytes.")
        if isinstance(spec, tf.RaggedTensorSpec):
            return tf.RaggedTensorSpec(spec.shape, dtype, spec.ragged_rank, spec.row_splits_dtype)
        return tf.TensorSpec(spec.shape, dtype)

    def column(self, path: str, column: Any) -> Any:
        """The same values.

        Raises:
          tf.errors.InvalidArgumentError: one does not survive.
        """
        if isinstance(column, tf.RaggedTensor):
            return column.with_flat_values(self.column(path, column.flat_values))
        column, dtype = tf.convert_to_tensor(column), tf.as_dtype(self.dtype)
        cast = tf.cast(column, dtype)
        # The last action of an episode means nothing; it may be anything.
        num_last = tf.cast(tf.shape(column)[0] > 1, tf.int32) if path.split("/")[0] == ACTION else 0
        num_rows = tf.shape(column)[0] - num_last
        survives = _survives(column[:num_rows], cast[:num_rows])
        if survives is None:
            return cast
        message = f"step field {path!r}: a value does not survive in {dtype.name}, the dtype that Cast gives it"
        with tf.control_dependencies([tf.debugging.assert_equal(survives, True, message)]):
            return tf.identity(cast)


@dataclasses.dataclass(frozen=True)
class Bytes(FieldRule):
    """A string as `num_bytes` numbers, uint8, with zeros behind its end.

    A longer string is an error that tells its length, never cut.

    Args:
      num_bytes: 1 or more.

    >>> Bytes(4).column("language", tf.constant([b"abc", b""])).numpy().tolist()
    [[97, 98, 99, 0], [0, 0, 0, 0]]
    """

    num_bytes: int

    def __post_init__(self) -> None:
        if self.num_bytes < 1:
            raise ValueError(f"num_bytes must be 1 or more, got {self.num_bytes}.")

    def spec(self, path: str, spec: Any) -> Any:
        """uint8, with an axis of `num_bytes` behind the others."""
        if not isinstance(spec, tf.TensorSpec) or spec.dtype != tf.string:
            raise ValueError(f"step field {path!r}: Bytes is for strings of a fixed number, the field is {spec}.")
        return tf.TensorSpec([*spec.shape, self.num_bytes], tf.uint8)

    def column(self, path: str, column: Any) -> Any:
        """Each string's bytes."""
        longest = tf.reduce_max(tf.concat([[0], tf.reshape(tf.strings.length(column), [-1])], 0))
        message = f"step field {path!r}: a string has more than {self.num_bytes} bytes, the most that Bytes lets in"
        with tf.control_dependencies([tf.debugging.assert_less_equal(longest, self.num_bytes, message)]):
            return tf.io.decode_raw(tf.identity(column), tf.uint8, fixed_length=self.num_bytes)


class _Fit(FieldRule):
    """A fixed shape for a field of variable length; missing places are zeros, or empty strings."""

    shape: tuple[int, ...]

    def spec(self, path: str, spec: Any) -> Any:
        if spec.shape.rank != len(self.shape):
            raise ValueError(
                f"step field {path!r} has {spec.shape.rank} dimensions, {spec.shape}, so {type(self).__name__} "
                f"needs as many numbers, got {list(self.shape)}."
            )
        return tf.TensorSpec(self.shape, spec.dtype)

    def _fit(self, column: Any) -> Any:
        if isinstance(column, tf.RaggedTensor):
            return column.to_tensor(shape=[None, *self.shape])
        column = column[(slice(None), *(slice(size) for size in self.shape))]
        missing = tf.constant(self.shape, tf.int32) - tf.shape(column)[1:]
        widths = tf.stack([tf.zeros_like(missing), missing], axis=1)
        filler = "" if column.dtype == tf.string else tf.zeros([], column.dtype)
        padded = tf.pad(column, tf.concat([[[0, 0]], widths], axis=0), constant_values=filler)
        return tf.ensure_shape(padded, [None, *self.shape])


@dataclasses.dataclass(frozen=True)
class PadTo(_Fit):
    """A field of variable length with zeros behind its end; a longer one is an error.

    Args:
      shape: of each step's value; one number for fields of one dimension.

    >>> PadTo(3).column("tags", tf.ragged.constant([[1, 2], []], dtype=tf.int64)).numpy().tolist()
    [[1, 2, 0], [0, 0, 0]]
    """

    shape: tuple[int, ...]

    def __init__(self, shape: int | Sequence[int]) -> None:
        object.__setattr__(self, "shape", _as_shape(shape))

    def column(self, path: str, column: Any) -> Any:
        """Each value padded.

        Raises:
          tf.errors.InvalidArgumentError: one is longer.
        """
        if isinstance(column, tf.RaggedTensor):
            found = column.bounding_shape(out_type=tf.int32)[1:]
        else:
            found = tf.shape(column)[1:]
        message = f"step field {path!r}: longer than PadTo({list(self.shape)}); CropTo cuts what is longer"
        with tf.control_dependencies([tf.debugging.assert_less_equal(found, tf.constant(self.shape), message)]):
            return self._fit(tf.identity(column))


@dataclasses.dataclass(frozen=True)
class CropTo(_Fit):
    """A field of variable length cut to a shape; shorter ones get zeros behind their end.

    Args:
      shape: of each step's value; one number for fields of one dimension.

    >>> CropTo(2).column("tags", tf.ragged.constant([[1, 2, 3], [4]], dtype=tf.int64)).numpy().tolist()
    [[1, 2], [4, 0]]
    """

    shape: tuple[int, ...]

    def __init__(self, shape: int | Sequence[int]) -> None:
        object.__setattr__(self, "shape", _as_shape(shape))

    def column(self, path: str, column: Any) -> Any:
        """Each value cut, or padded."""
        return self._fit(column)


def apply_rules(rules: Sequence[FieldRule], path: str, column: Any) -> Any:
    """The column after all rules, `[N + 1, ...]`."""
    for rule in rules:
        column = rule.column(path, column)
    return column


def spec_after(rules: Sequence[FieldRule], path: str, spec: Any) -> Any:
    """The spec of one step's value after all rules."""
    for rule in rules:
        spec = rule.spec(path, spec)
    return spec


def as_rules(path: str, rules: Any) -> tuple[FieldRule, ...]:
    """The rules that a caller gives for a field: one, or a sequence of them.

    Raises:
      TypeError: something else than rules.

    >>> as_rules("reward", Cast("float32"))
    (Cast(dtype='float32'),)
    """
    chosen = (rules,) if isinstance(rules, FieldRule) else rules
    if not isinstance(chosen, Sequence) or not all(isinstance(rule, FieldRule) for rule in chosen):
        raise TypeError(f"fields[{path!r}]: expected rules such as Drop(), PadTo(8) or Cast('float32'), got {rules!r}.")
    return tuple(chosen)


def _survives(column: tf.Tensor, cast: tf.Tensor) -> tf.Tensor | None:
    """Whether all numbers of a column are the same after a cast, up to the rounding of floats; None: any would be."""
    given, dtype = column.dtype, cast.dtype
    if given.is_bool or given.is_complex or dtype.is_complex or given == dtype:
        return None
    if dtype.is_floating:
        if float(given.max) <= float(dtype.max):
            return None
        number = column if given.is_floating else tf.cast(column, tf.float64)
        return tf.reduce_all(tf.math.is_finite(cast) | ~tf.math.is_finite(number))
    if not dtype.is_bool and given.is_integer and dtype.min <= given.min and given.max <= dtype.max:
        return None
    same = tf.equal(tf.cast(cast, given), column)
    if given.is_integer and dtype.is_integer:
        # One that wraps may wrap back: -1 is 255 in uint8.
        same &= tf.equal(cast < 0, column < 0)
    return tf.reduce_all(same)


def _as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(np.atleast_1d(np.asarray(shape)).tolist())
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        raise ValueError(f"expected a shape of positive numbers, got {shape!r}.")
    return sizes
