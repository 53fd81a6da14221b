"""One field of a `data_spec`: its path, shape and dtype, and how messages write them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .nests import Array

INTEGER, FLOAT, BOOL, COMPLEX = "integer", "float", "bool", "complex"

# Kinds of dtype within which `cast=True` may convert; these are the dtypes that can be stored.
KINDS: dict[tf.DType, str] = {
    tf.bool: BOOL,
    **dict.fromkeys((tf.int8, tf.int16, tf.int32, tf.int64), INTEGER),
    **dict.fromkeys((tf.uint8, tf.uint16, tf.uint32, tf.uint64), INTEGER),
    **dict.fromkeys((tf.bfloat16, tf.float16, tf.float32, tf.float64), FLOAT),
    **dict.fromkeys((tf.complex64, tf.complex128), COMPLEX),
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

    @property
    def kind(self) -> str:
        """The dtype's kind: `'integer'`, `'float'`, `'bool'` or `'complex'`."""
        return KINDS[self.dtype]

    def expected(self, outer: Sequence[int | None]) -> str:
        """What a message expects of this field with these axes in front: `'[2, T, 84] uint8'`.

        >>> Field("obs", (84,), tf.uint8).expected([2, None])
        '[2, T, 84] uint8'
        """
        return f"{brackets(['T' if size is None else size for size in (*outer, *self.shape)])} {self.dtype.name}"


def kind_of(array: Array) -> str | None:
    """The kind of an array's dtype, None for one that cannot be stored."""
    try:
        return KINDS.get(tf.as_dtype(array.dtype))
    except TypeError:
        return None


def brackets(sizes: Sequence[Any]) -> str:
    """Sizes as messages write them.

    >>> brackets([2, "T"])
    '[2, T]'
    """
    return f"[{', '.join(str(size) for size in sizes)}]"
