"""What a `data_spec` says: its fields, their bytes, and whether given items match it.

A `data_spec` is a nest (dicts, tuples, namedtuples, lists) of `tf.TensorSpec`. Every
check of items against a spec, on every backend, is made here, so that the same mistake
is told in the same words everywhere. Letters: `B` streams written side by side, `T` time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Nest = Any
"""A nest of leaves; the docstring where it is used gives the leaves' shapes."""

_INTEGER, _FLOAT, _BOOL, _COMPLEX = "integer", "float", "bool", "complex"

# Kinds of dtype within which `cast=True` may convert.
_KINDS: dict[tf.DType, str] = {
    tf.bool: _BOOL,
    **dict.fromkeys((tf.int8, tf.int16, tf.int32, tf.int64), _INTEGER),
    **dict.fromkeys((tf.uint8, tf.uint16, tf.uint32, tf.uint64), _INTEGER),
    **dict.fromkeys((tf.bfloat16, tf.float16, tf.float32, tf.float64), _FLOAT),
    **dict.fromkeys((tf.complex64, tf.complex128), _COMPLEX),
}

# What a plain Python number (weakly typed) may become.
_WEAK_KINDS: dict[type, frozenset[str]] = {
    bool: frozenset({_BOOL}),
    int: frozenset({_INTEGER, _FLOAT, _COMPLEX}),
    float: frozenset({_FLOAT, _COMPLEX}),
    complex: frozenset({_COMPLEX}),
}


@dataclasses.dataclass(frozen=True)
class Field:
    """One leaf of a `data_spec`.

    Attributes:
      path: where the leaf is, as `'observation/image'`; tuple positions are numbers.
      shape: the leaf's own shape, without `[B]` or `[B, T]`.
      dtype: its TensorFlow dtype.
    """

    path: str
    shape: tuple[int, ...]
    dtype: tf.DType

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the same layout (bfloat16 is ml_dtypes' own)."""
        return np.dtype(self.dtype.as_numpy_dtype)

    @property
    def num_elements(self) -> int:
        """Numbers in one frame of this field."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of one frame of this field."""
        return self.num_elements * self.numpy_dtype.itemsize


class DataSpec:
    """A `data_spec`, checked once, with its fields in the order of `tf.nest.flatten`.

    Args:
      data_spec: nest of `tf.TensorSpec` with static shapes and fixed-width dtypes.

    Raises:
      TypeError: a leaf is not a `tf.TensorSpec`.
      ValueError: the nest has no leaf.
      ValueError: a shape is not fully known, or has a dimension of 0.
      ValueError: a dtype has no fixed width (tf.string, tf.variant, tf.resource).

    >>> spec = DataSpec({"reward": tf.TensorSpec([], tf.float32), "obs": tf.TensorSpec([2], tf.uint8)})
    >>> [(field.path, field.num_bytes) for field in spec.fields]
    [('obs', 2), ('reward', 4)]
    >>> spec.frame_bytes
    6
    """

    def __init__(self, data_spec: Nest) -> None:
        leaves = list(_leaves_with_paths(data_spec, ()))
        if not leaves:
            raise ValueError(f"data_spec has no leaf: {data_spec!r}; give at least one tf.TensorSpec.")
        self.nest = data_spec
        self.fields = tuple(_field(path, leaf) for path, leaf in leaves)
        self.frame_bytes = sum(field.num_bytes for field in self.fields)
        self._flatten_into = _compile_flatten(data_spec)
        self._pack_from = _compile_pack(data_spec)

    def flatten(self, items: Nest) -> list[Any]:
        """The leaves of `items` in the order of `fields`; whatever stands at a leaf's place is a leaf.

        Raises:
          ValueError: fields are missing or extra, or a container is of another kind.
        """
        leaves: list[Any] = []
        try:
            self._flatten_into(items, leaves)
        except _StructureError:
            raise ValueError(self._explain_structure(items)) from None
        return leaves

    def pack(self, leaves: Sequence[Any]) -> Nest:
        """The nest of this spec with the given leaves, in the order of `fields`."""
        return self._pack_from(iter(leaves))

    def dataset_nest(self) -> Nest:
        """The spec as tf.data can carry it: lists, which tf.data reads as tensors, become tuples."""
        return _lists_to_tuples(self.nest)

    def _explain_structure(self, items: Nest) -> str:
        expected = {field.path for field in self.fields}
        found = {_join(path) for path, _ in _leaves_with_paths(items, (), until=self.nest)}
        parts = []
        if expected - found:
            parts.append(f"missing {sorted(expected - found)}")
        if found - expected:
            parts.append(f"extra {sorted(found - expected)}")
        detail = "; ".join(parts) or f"expected containers as in {self.nest!r}, got {type(items).__name__}"
        return f"items do not have the structure of data_spec: {detail}."


class ItemChecker:
    """Checks items against a spec before anything is written, and hands out NumPy leaves.

    Dtypes must match; plain Python numbers take the field's dtype when their value
    survives it. With `cast` NumPy arrays and tensors are converted within their kind
    (float64 to float32, int32 to int64), again only when every value survives.
    Nothing is ever broadcast.

    Args:
      spec: what is expected of one frame.
      batch_size: `B`, the number of streams.
      cast: convert within a kind instead of refusing.

    >>> checker = ItemChecker(DataSpec(tf.TensorSpec([2], tf.float32, name="obs")), batch_size=1)
    >>> checker.batch(np.zeros([2], np.float32))
    Traceback (most recent call last):
    ...
    ValueError: field 'obs': expected [1, 2] float32, got [2] float32; add the batch axis [1].
    """

    def __init__(self, spec: DataSpec, batch_size: int, *, cast: bool = False) -> None:
        self._spec = spec
        self._batch_size = batch_size
        self._cast = cast
        # (NumPy dtype, shape with B in front) for each field: all that the common case needs.
        self._expected = [(field.numpy_dtype, (batch_size, *field.shape)) for field in spec.fields]

    def batch(self, items: Nest) -> list[np.ndarray]:
        """Leaves `[B, ...]` of one frame a stream, in the order of `spec.fields`.

        Raises:
          ValueError: the structure differs; the message names missing and extra fields.
          ValueError: a dtype, shape or value does not fit; the message names the field.
        """
        return self.check_leaves(self._spec.flatten(items))

    def sequence(self, items: Nest) -> tuple[list[np.ndarray], int]:
        """Leaves `[B, T, ...]` and `T`, which the first field gives.

        Raises:
          ValueError: as `batch`, and where fields disagree about `T`.
        """
        return self.check_sequence_leaves(self._spec.flatten(items))

    def check_leaves(self, leaves: list[Any]) -> list[np.ndarray]:
        """`batch` for leaves that are flat already; fills the list that it is given."""
        for index, (dtype, shape) in enumerate(self._expected):
            leaf = leaves[index]
            if type(leaf) is not np.ndarray or leaf.dtype != dtype or leaf.shape != shape:
                leaves[index] = self._convert(leaf, index, (self._batch_size,))
        return leaves

    def check_sequence_leaves(self, leaves: list[Any]) -> tuple[list[np.ndarray], int]:
        """`sequence` for leaves that are flat already; fills the list that it is given."""
        num_steps: int | None = None
        for index, (dtype, shape) in enumerate(self._expected):
            leaf = leaves[index]
            if (
                num_steps is None
                or type(leaf) is not np.ndarray
                or leaf.dtype != dtype
                or leaf.shape
                != (
                    shape[0],
                    num_steps,
                    *shape[1:],
                )
            ):
                leaf = leaves[index] = self._convert(leaf, index, (self._batch_size, num_steps))
            num_steps = leaf.shape[1]
        assert num_steps is not None  # a DataSpec has at least one field
        return leaves, num_steps

    def trace(self, items: Nest, *, sequence: bool = False) -> list[tf.Tensor]:
        """Symbolic leaves inside a `tf.function`, checked as far as tracing knows them.

        Values and unknown dimensions are checked when the function runs, by `batch` or
        `sequence` on what arrives.

        Raises:
          ValueError: structure, dtype, or a statically known shape does not fit.
        """
        leaves = self._spec.flatten(items)
        outer = (self._batch_size, None) if sequence else (self._batch_size,)
        tensors = []
        for index, leaf in enumerate(leaves):
            field = self._spec.fields[index]
            tensor = leaf if isinstance(leaf, tf.Tensor) else tf.constant(self._convert(leaf, index, outer))
            castable = self._cast and _KINDS.get(tensor.dtype) == _KINDS[field.dtype]
            if not (tensor.dtype == field.dtype or castable) or not tensor.shape.is_compatible_with(
                [*outer, *field.shape]
            ):
                raise ValueError(_mismatch(field, outer, tensor.shape, tensor.dtype.name))
            tensors.append(tensor)
        return tensors

    def _convert(self, leaf: Any, index: int, outer: tuple[int | None, ...]) -> np.ndarray:
        field = self._spec.fields[index]
        if isinstance(leaf, tf.Tensor):
            leaf = leaf.numpy()
        weak = not isinstance(leaf, np.ndarray | np.generic)
        if weak:
            array = _weakly_typed(leaf, field, outer)
        else:
            array = np.asarray(leaf)
        if not _fits(array.shape, (*outer, *field.shape)):
            raise ValueError(_mismatch(field, outer, array.shape, array.dtype.name))
        if array.dtype == field.numpy_dtype:
            return array
        if not weak and not (self._cast and _kind(array) == _KINDS[field.dtype]):
            raise ValueError(
                _mismatch(field, outer, array.shape, array.dtype.name, cast_helps=_kind(array) == _KINDS[field.dtype])
            )
        return _cast_values(array, field)


class _StructureError(Exception):
    """Items and spec differ in structure; turned into a ValueError that says how."""


def field_path(path: Sequence[str]) -> str:
    """How a leaf's place in a nest is written in messages: `'observation/image'`."""
    return _join(tuple(path))


def _join(path: tuple[str, ...]) -> str:
    return "/".join(path)


def _field(path: tuple[str, ...], leaf: Any) -> Field:
    name = _join(path)
    if not isinstance(leaf, tf.TensorSpec):
        raise TypeError(f"data_spec field {name!r}: expected a tf.TensorSpec, got {type(leaf).__name__}.")
    name = name or leaf.name or "items"
    if leaf.dtype not in _KINDS:
        raise ValueError(
            f"data_spec field {name!r}: {leaf.dtype.name} has no fixed width and cannot be stored; "
            "drop the field, or encode it as a fixed-width dtype (an id, or uint8 [n])."
        )
    if not leaf.shape.is_fully_defined():
        raise ValueError(f"data_spec field {name!r}: shape {leaf.shape} is not fully known; give every dimension.")
    shape = tuple(leaf.shape.as_list())
    if 0 in shape:
        raise ValueError(f"data_spec field {name!r}: shape {list(shape)} holds no number; drop the field.")
    return Field(name, shape, leaf.dtype)


def _children(nest: Nest) -> list[tuple[str, Any]] | None:
    """Name and value of each child in `tf.nest` order, or None for a leaf."""
    if isinstance(nest, Mapping):
        return [(str(key), nest[key]) for key in sorted(nest)]
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return list(zip(nest._fields, nest, strict=True))
    if isinstance(nest, list | tuple):
        return [(str(index), value) for index, value in enumerate(nest)]
    return None


def _leaves_with_paths(nest: Nest, path: tuple[str, ...], until: Nest | None = None) -> Any:
    """Yields (path, leaf); stops early where `until` has a leaf."""
    children = _children(nest)
    expected = _children(until) if until is not None else None
    if children is None or (until is not None and expected is None):
        yield path, nest
        return
    by_name = dict(expected or [])
    for name, child in children:
        yield from _leaves_with_paths(child, (*path, name), by_name.get(name))


def _lists_to_tuples(nest: Nest) -> Nest:
    if isinstance(nest, Mapping):
        return type(nest)((key, _lists_to_tuples(value)) for key, value in nest.items())
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(_lists_to_tuples(value) for value in nest))
    if isinstance(nest, list | tuple):
        return tuple(_lists_to_tuples(value) for value in nest)
    return nest


def _compile_flatten(spec: Nest) -> Callable[[Nest, list[Any]], None]:
    """A function that appends the leaves of a nest of this structure to a list.

    The walk over the spec is made once, here; `add_batch` calls only what is left of it.
    """
    children = _children(spec)
    if children is None:
        return lambda items, leaves: leaves.append(items)
    if isinstance(spec, Mapping):
        return _compile_mapping(spec)
    parts = [_compile_flatten(child) for _, child in children]
    names = getattr(spec, "_fields", None)

    def flatten_sequence(items: Nest, leaves: list[Any]) -> None:
        if not isinstance(items, list | tuple) or len(items) != len(parts) or getattr(items, "_fields", None) != names:
            raise _StructureError
        for part, item in zip(parts, items, strict=True):
            part(item, leaves)

    return flatten_sequence


def _compile_mapping(spec: Mapping[Any, Any]) -> Callable[[Nest, list[Any]], None]:
    keys = sorted(spec)
    parts = [(key, None if _children(spec[key]) is None else _compile_flatten(spec[key])) for key in keys]

    def flatten_mapping(items: Nest, leaves: list[Any]) -> None:
        if not isinstance(items, Mapping) or len(items) != len(parts):
            raise _StructureError
        try:
            for key, part in parts:
                if part is None:
                    leaves.append(items[key])
                else:
                    part(items[key], leaves)
        except KeyError:
            raise _StructureError from None

    return flatten_mapping


def _compile_pack(spec: Nest) -> Callable[[Iterator[Any]], Nest]:
    """A function that builds a nest of this structure from an iterator over its leaves."""
    children = _children(spec)
    if children is None:
        return next
    parts = [_compile_pack(child) for _, child in children]
    if isinstance(spec, Mapping):
        keys = sorted(spec)
        if all(part is next for part in parts) and type(spec) is dict:
            return lambda leaves: dict(zip(keys, leaves))  # noqa: B905 (the iterator may go on after this dict)
        make = type(spec)
        return lambda leaves: make((key, part(leaves)) for key, part in zip(keys, parts, strict=True))
    if hasattr(spec, "_fields"):
        return lambda leaves: type(spec)(*[part(leaves) for part in parts])
    make_sequence = type(spec)
    return lambda leaves: make_sequence([part(leaves) for part in parts])


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(
        want is None or got == want for got, want in zip(shape, expected, strict=True)
    )


def _mismatch(field: Field, outer: tuple[int | None, ...], shape: Any, dtype: str, *, cast_helps: bool = False) -> str:
    got = list(shape) if not isinstance(shape, tf.TensorShape) or shape.rank is not None else "unknown shape"
    expected = ["T" if size is None else size for size in (*outer, *field.shape)]
    text = f"field {field.path!r}: expected {_brackets(expected)} {field.dtype.name}, got {_brackets(got)} {dtype}"
    if isinstance(got, list) and got == list(field.shape):
        return f"{text}; add the {'batch and time axes' if len(outer) == 2 else 'batch axis'} {_brackets(expected[: len(outer)])}."
    if cast_helps:
        return f"{text}; convert it, or build the buffer with cast=True."
    return f"{text}."


def _brackets(sizes: Any) -> str:
    return sizes if isinstance(sizes, str) else f"[{', '.join(str(size) for size in sizes)}]"


def _kind(array: np.ndarray) -> str | None:
    try:
        return _KINDS.get(tf.as_dtype(array.dtype))
    except TypeError:
        return None


def _weakly_typed(value: Any, field: Field, outer: tuple[int | None, ...]) -> np.ndarray:
    """Plain Python numbers, alone or in lists, as an array that `_cast_values` then converts."""
    kinds = {_weak_kind(number, field, outer) for number in _scalars(value)}
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(
            f"field {field.path!r}: expected {_brackets([*outer, *field.shape])}, got a ragged list."
        ) from None
    if kinds == {np.generic}:
        return array  # a list of NumPy scalars or arrays is as strict as an array
    if array.dtype == object and all(type(number) is int for number in _scalars(value)):
        raise ValueError(f"field {field.path!r}: {value!r} does not survive in {field.dtype.name}.")
    if array.dtype != field.numpy_dtype and array.dtype != object and array.size:
        array = _cast_values(array, field)
    elif not array.size:
        array = array.astype(field.numpy_dtype)
    return array


def _scalars(value: Any) -> Any:
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _scalars(entry)
    else:
        yield value


def _weak_kind(number: Any, field: Field, outer: tuple[int | None, ...]) -> type:
    if isinstance(number, np.ndarray | np.generic | tf.Tensor):
        return np.generic
    allowed = _WEAK_KINDS.get(type(number))
    if allowed is None:
        raise ValueError(
            f"field {field.path!r}: expected {_brackets(['T' if size is None else size for size in (*outer, *field.shape)])} "
            f"{field.dtype.name}, got {type(number).__name__}."
        )
    if _KINDS[field.dtype] not in allowed:
        raise ValueError(f"field {field.path!r}: {number!r} does not survive in {field.dtype.name}.")
    return type(number)


def _cast_values(array: np.ndarray, field: Field) -> np.ndarray:
    """`array` in the field's dtype, or an error that names a value that would change.

    Floats may be rounded, as every float64 to float32 is; they may not overflow.
    """
    with np.errstate(all="ignore"):
        result = array.astype(field.numpy_dtype)
        if _KINDS[field.dtype] in (_FLOAT, _COMPLEX):
            lost = np.isfinite(array) & ~np.isfinite(
                result.astype(np.complex128 if _KINDS[field.dtype] == _COMPLEX else np.float64)
            )
        else:
            # Compared both ways, so that a wrapped sign (2**63 in int64) is seen too.
            lost = (result.astype(array.dtype) != array) | ((result < 0) != (array < 0))
    if lost.any():
        raise ValueError(f"field {field.path!r}: {array[lost].flat[0]} does not survive in {field.dtype.name}.")
    return result
