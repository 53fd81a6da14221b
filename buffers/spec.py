"""What a `data_spec` says: its fields, their bytes, and whether given items match it.

A `data_spec` is a nest (dicts, tuples, namedtuples, lists) of `tf.TensorSpec`. Every
check of items against a spec, on every backend, is made here, so that the same mistake
is told in the same words everywhere. Letters: `B` streams written side by side, `T` time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from .casting import cast_values, from_plain_numbers
from .fields import KINDS, Field, brackets, kind_of
from .nests import (
    Array,
    Nest,
    StructureError,
    compile_flatten,
    compile_pack,
    field_path,
    leaves_with_paths,
    lists_to_tuples,
)


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
        leaves = list(leaves_with_paths(data_spec, ()))
        if not leaves:
            raise ValueError(f"data_spec has no leaf: {data_spec!r}; give at least one tf.TensorSpec.")
        self.nest = data_spec
        self.fields = tuple(_field(path, leaf) for path, leaf in leaves)
        self.frame_bytes = sum(field.num_bytes for field in self.fields)
        self._flatten_into = compile_flatten(data_spec)
        self._pack_from = compile_pack(data_spec)

    def flatten(self, items: Nest) -> list[Any]:
        """The leaves of `items` in the order of `fields`; whatever stands at a leaf's place is a leaf.

        Raises:
          ValueError: fields are missing or extra, or a container is of another kind.
        """
        leaves: list[Any] = []
        try:
            self._flatten_into(items, leaves)
        except StructureError:
            raise ValueError(self._explain_structure(items)) from None
        return leaves

    def pack(self, leaves: Sequence[Any]) -> Nest:
        """The nest of this spec with the given leaves, in the order of `fields`."""
        return self._pack_from(iter(leaves))

    def dataset_nest(self) -> Nest:
        """The spec as tf.data can carry it: lists, which tf.data reads as tensors, become tuples."""
        return lists_to_tuples(self.nest)

    def _explain_structure(self, items: Nest) -> str:
        expected = {field.path for field in self.fields}
        found = {field_path(path) for path, _ in leaves_with_paths(items, (), until=self.nest)}
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
        # By numbers of rows other than `B`.
        self._of_rows: dict[int, ItemChecker] = {}
        # (NumPy dtype, shape with B in front) for each field: all that the common case needs.
        self._expected = [(field.numpy_dtype, (batch_size, *field.shape)) for field in spec.fields]

    def batch(self, items: Nest) -> list[Array]:
        """Leaves `[B, ...]` of one frame a stream, in the order of `spec.fields`.

        Raises:
          ValueError: the structure differs; the message names missing and extra fields.
          ValueError: a dtype, shape or value does not fit; the message names the field.
        """
        return self.check_leaves(self._spec.flatten(items))

    def sequence(self, items: Nest) -> tuple[list[Array], int]:
        """Leaves `[B, T, ...]` and `T`, which the first field gives.

        Raises:
          ValueError: as `batch`, and where fields disagree about `T`.
        """
        return self.check_sequence_leaves(self._spec.flatten(items))

    def check_leaves(self, leaves: list[Any], num_rows: int | None = None) -> list[Array]:
        """`batch` for leaves that are flat already; fills the list that it is given. `num_rows` stands for `B`."""
        if num_rows is not None and num_rows != self._batch_size:
            return self._for_rows(num_rows).check_leaves(leaves)
        for index, (dtype, shape) in enumerate(self._expected):
            leaf = leaves[index]
            if type(leaf) is not np.ndarray or leaf.dtype != dtype or leaf.shape != shape:
                leaves[index] = self._convert(leaf, index, (self._batch_size,))
        return leaves

    def check_sequence_leaves(self, leaves: list[Any], num_rows: int | None = None) -> tuple[list[Array], int]:
        """`sequence` for leaves that are flat already; fills the list that it is given. `num_rows` stands for `B`."""
        if num_rows is not None and num_rows != self._batch_size:
            return self._for_rows(num_rows).check_sequence_leaves(leaves)
        num_steps: int | None = None
        for index, (dtype, shape) in enumerate(self._expected):
            leaf = leaves[index]
            is_right = type(leaf) is np.ndarray and leaf.dtype == dtype and leaf.ndim > len(shape)
            is_right = is_right and leaf.shape[:1] + leaf.shape[2:] == shape
            if not is_right or leaf.shape[1] != (leaf.shape[1] if num_steps is None else num_steps):
                leaf = leaves[index] = self._convert(leaf, index, (self._batch_size, num_steps))
            num_steps = leaf.shape[1]
        assert num_steps is not None  # a DataSpec has at least one field
        return leaves, num_steps

    def trace(self, items: Nest, *, num_rows: int | None, sequence: bool = False) -> list[tf.Tensor]:
        """Symbolic leaves inside a `tf.function`, checked as far as tracing knows them.

        Values and unknown dimensions are checked when the function runs, by `batch` or
        `sequence` on what arrives. `num_rows` is `B`, or how many streams' rows come; None: that is not known.

        Raises:
          ValueError: structure, dtype, or a statically known shape does not fit.
        """
        leaves = self._spec.flatten(items)
        outer: tuple[int | None, ...] = (num_rows, None) if sequence else (num_rows,)
        tensors = []
        for index, leaf in enumerate(leaves):
            field = self._spec.fields[index]
            if isinstance(leaf, tf.Variable):
                leaf = leaf.read_value()
            tensor = leaf if isinstance(leaf, tf.Tensor) else tf.constant(self._convert(leaf, index, outer))
            castable = self._cast and KINDS.get(tensor.dtype) == field.kind
            if not (tensor.dtype == field.dtype or castable) or not tensor.shape.is_compatible_with(
                [*outer, *field.shape]
            ):
                raise ValueError(_mismatch(field, outer, tensor.shape, tensor.dtype.name))
            tensors.append(tensor)
        return tensors

    def _for_rows(self, num_rows: int) -> ItemChecker:
        """The same for so many rows."""
        checker = self._of_rows.get(num_rows)
        if checker is None:
            checker = self._of_rows[num_rows] = ItemChecker(self._spec, num_rows, cast=self._cast)
        return checker

    def _convert(self, leaf: Any, index: int, outer: tuple[int | None, ...]) -> Array:
        field = self._spec.fields[index]
        if isinstance(leaf, tf.Tensor | tf.Variable):
            leaf = leaf.numpy()
        if isinstance(leaf, np.ma.MaskedArray):
            raise ValueError(
                f"field {field.path!r}: expected {field.expected(outer)}, got a masked array; fill it first."
            )
        if isinstance(leaf, np.ndarray | np.generic):
            array = np.asarray(leaf)
            if not array.dtype.isnative:
                array = array.astype(array.dtype.newbyteorder("="))
        else:
            array = from_plain_numbers(leaf, field, outer)
        if not _fits(array.shape, (*outer, *field.shape)):
            raise ValueError(_mismatch(field, outer, array.shape, array.dtype.name))
        if array.dtype == field.numpy_dtype:
            return array
        same_kind = kind_of(array) == field.kind
        if not (self._cast and same_kind):
            raise ValueError(_mismatch(field, outer, array.shape, array.dtype.name, cast_helps=same_kind))
        return cast_values(array, field)


def _field(path: tuple[str, ...], leaf: Any) -> Field:
    name = field_path(path)
    if not isinstance(leaf, tf.TensorSpec):
        raise TypeError(f"data_spec field {name!r}: expected a tf.TensorSpec, got {type(leaf).__name__}.")
    name = name or leaf.name or "items"
    if leaf.dtype not in KINDS:
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


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(
        want is None or got == want for got, want in zip(shape, expected, strict=True)
    )


def _mismatch(field: Field, outer: tuple[int | None, ...], shape: Any, dtype: str, *, cast_helps: bool = False) -> str:
    known = not isinstance(shape, tf.TensorShape) or shape.rank is not None
    got = brackets(list(shape)) if known else "unknown shape"
    text = f"field {field.path!r}: expected {field.expected(outer)}, got {got} {dtype}"
    if known and list(shape) == list(field.shape):
        axes = "batch and time axes" if len(outer) == 2 else "batch axis"
        return f"{text}; add the {axes} {brackets(['T' if size is None else size for size in outer])}."
    if cast_helps:
        return f"{text}; convert it, or build the buffer with cast=True."
    return f"{text}."


class Transition(NamedTuple):
    """One transition, of one step or of several summed into one; leaves `[B, ...]`.

    Attributes:
      observation: `o_t`.
      action: `a_t`.
      reward: float `[B]`, the rewards of the `k` steps, discounted and summed.
      discount: float32 `[B]`, everything that the value of `next_observation` is to be multiplied
        by: `gamma^k` and the discounts of the steps, 0 where a terminal state was reached. No further gamma.
      next_observation: `o_t+k`; without meaning where `discount` is 0.
      num_steps_used: int32 `[B]`, `k`; 0 where there was no transition at all (its mask is False, its weight 0).
      next_action: `a_t+k`, or `()`.
      next_reward: `r_t+k`, or `()`.
      extras: further fields at `t`, a dict, or `()`.

    >>> Transition(observation=[0], action=[1], reward=[6.0], discount=[0.25], next_observation=[2], num_steps_used=[2])
    Transition(observation=[0], action=[1], reward=[6.0], discount=[0.25], next_observation=[2], num_steps_used=[2], ...
    """

    observation: Nest
    action: Nest
    reward: Any
    discount: Any
    next_observation: Nest
    num_steps_used: Any
    next_action: Nest = ()
    next_reward: Any = ()
    extras: Nest = ()
