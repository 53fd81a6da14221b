"""Fixed-capacity rows of raw memory for a spec: write rows, gather rows. Knows no RL.

Small fields of one dtype lie side by side in one record array, so that a row costs one
cache miss and not one a field; a large field has an array of its own. TensorFlow reads the
same memory (`memory.SharedMemory`): what NumPy writes, a graph gathers, without a copy between.
Only gathers leave this class, because an alias would show later writes. One more row, `zero_row`, is
never written: to gather it is to pad, at no cost but the index.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from .fields import Field
from .memory import SharedMemory, adopt, aligned_empty
from .nests import Array

# A field up to this size shares a record; splitting a larger one out again would cost more than it saves.
_SHARED_FIELD_BYTES = 1024

# TensorFlow's DLPack knows neither; kept as the unsigned integer of their width.
_STORED_AS = {tf.bool: tf.uint8, tf.bfloat16: tf.uint16}


@dataclasses.dataclass(frozen=True)
class _Group:
    """Fields that lie side by side in the rows of one array `[num_rows, width]`."""

    dtype: np.dtype[Any]
    fields: tuple[int, ...]
    widths: tuple[int, ...]
    memory: SharedMemory
    # A record as raw bytes, field by field: NumPy copies those in one piece each, four times as fast as their numbers.
    parts: np.dtype[Any]

    @property
    def records(self) -> Array:
        """`[num_rows, width]`."""
        return self.memory.array


class WriteWatcher(Protocol):
    """What is told of a write before it happens, as long as it looks on: a snapshot (`frame_snapshot.py`)."""

    def before_write(self, rows: slice | Array) -> None:
        """These rows are about to be written; may wait."""


class FrameStorage:
    """`num_rows` rows, each one frame of the given fields.

    Args:
      fields: the fields of a frame, in the order in which leaves are given and returned.
      num_rows: rows to make room for.
      folder: where files shall hold them (`memory.allocate`); None: memory does.
    """

    def __init__(self, fields: Sequence[Field], num_rows: int, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = folder
        self._watcher: WriteWatcher | None = None
        self._fields = tuple(fields)
        self._shapes = [field.shape for field in self._fields]
        self._stored = [np.dtype(_STORED_AS.get(field.dtype, field.dtype).as_numpy_dtype) for field in self._fields]
        # Fields whose stored dtype is not their own.
        self._restored = [index for index, field in enumerate(self._fields) if field.dtype in _STORED_AS]
        self.zero_row = num_rows
        self._groups = [self._make_group(indices, num_rows + 1) for indices in self._group_fields()]
        self._views = self._make_views(num_rows)

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return sum(field.num_bytes for field in self._fields)

    def write(self, rows: slice | Array, leaves: Sequence[Array]) -> None:
        """Copies `leaves` `[n, ...]` into `n` rows: a slice, or their numbers."""
        if self._watcher is not None:
            self._tell_watcher(rows)
        for view, leaf in zip(self._views, leaves, strict=True):
            view[rows] = leaf

    def write_sequence(self, rows: slice, leaves: Sequence[Array], batch_size: int) -> None:
        """Copies `leaves` `[B, T, ...]` into `T * B` consecutive rows, all streams of a step side by side."""
        if self._watcher is not None:
            self._tell_watcher(rows)
        for view, leaf in zip(self._views, leaves, strict=True):
            target = view[rows]
            if batch_size == 1:
                target[...] = leaf[0]
            else:
                target.reshape(-1, batch_size, *target.shape[1:])[...] = leaf.swapaxes(0, 1)

    def gather(self, rows: Array) -> list[Array]:
        """Fresh copies of these rows, leaves `[*rows.shape, ...]`, each 64-byte aligned."""
        outer = rows.shape
        shapes = [(*outer, *shape) for shape in self._shapes]
        leaves = aligned_empty(shapes, self._stored)
        for group in self._groups:
            if len(group.fields) == 1:
                out = leaves[group.fields[0]].reshape(*outer, group.widths[0])
                np.take(group.records, rows, axis=0, out=out, mode="clip")
                continue
            parts = group.records.take(rows, axis=0, mode="clip").view(group.parts)[..., 0]
            for index, width, name in zip(group.fields, group.widths, group.parts.names or (), strict=True):
                leaves[index].reshape(*outer, width).view(group.parts[name])[..., 0] = parts[name]
        return leaves

    def watch(self, watcher: WriteWatcher | None) -> None:
        """From now on `watcher` is told of each write; None: nobody is. The caller lets no other thread write."""
        self._watcher = watcher

    def copy_raw(self, rows: slice | Array) -> list[Array]:
        """Fresh copies `[n, num_bytes of the field]` of these rows as raw bytes (uint8): a slice, or their numbers."""
        leaves: list[Any] = [None] * len(self._fields)
        for group in self._groups:
            records = group.records[rows] if isinstance(rows, slice) else group.records.take(rows, axis=0)
            if len(group.fields) == 1:
                copied = records.copy() if isinstance(rows, slice) else records
                leaves[group.fields[0]] = copied.view(np.uint8)
                continue
            parts = records.view(group.parts)[..., 0]
            for index, name in zip(group.fields, group.parts.names or (), strict=True):
                # A copy in any case: the part of a single row is contiguous as it is, and would show later writes.
                leaves[index] = parts[name].copy().view(np.uint8).reshape(len(records), -1)
        return leaves

    def write_raw(self, rows: slice | Array, leaves: Sequence[Array]) -> None:
        """Copies what `copy_raw` returned, uint8 `[n, num_bytes of the field]`, into `n` rows."""
        if self._watcher is not None:
            self._tell_watcher(rows)
        for group in self._groups:
            if len(group.fields) == 1:
                group.records.view(np.uint8)[rows] = leaves[group.fields[0]]
                continue
            parts = group.records.view(group.parts)[..., 0]
            for index, name in zip(group.fields, group.parts.names or (), strict=True):
                parts[name][rows] = leaves[index].view(group.parts[name])[..., 0]

    def to_tensors(self, leaves: Sequence[Array]) -> list[tf.Tensor]:
        """What `gather` returned, as eager tensors of the fields' own dtypes on the same memory."""
        tensors = [adopt(leaf) for leaf in leaves]
        for index in self._restored:
            tensors[index] = _restore_dtype(tensors[index], self._fields[index].dtype)
        return tensors

    def gather_records_in_graph(self, rows: tf.Tensor) -> list[tf.Tensor]:
        """Copies of these rows in a graph, one `[*rows.shape, width]` for each array of the storage."""
        return [tf.gather(group.memory.in_graph(), rows) for group in self._groups]

    def split_records_in_graph(self, records: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The leaves `[*rows.shape, ...]` in what `gather_records_in_graph` returned."""
        leaves: list[Any] = [None] * len(self._fields)
        for group, record in zip(self._groups, records, strict=True):
            outer = record.shape.as_list()[:-1]
            parts = [record] if len(group.fields) == 1 else tf.split(record, group.widths, axis=-1)
            for index, width, part in zip(group.fields, group.widths, parts, strict=True):
                field = self._fields[index]
                if field.shape != (width,):
                    part = tf.reshape(part, _shape_in_graph(record, [*outer, *field.shape]))
                leaves[index] = _restore_dtype(part, field.dtype)
        return leaves

    def restore_in_graph(self, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What `gather` returned and a callback brought into a graph, in the fields' own dtypes."""
        return [_restore_dtype(leaf, field.dtype) for leaf, field in zip(leaves, self._fields, strict=True)]

    @property
    def field_bytes(self) -> list[int]:
        """Bytes of each field of a frame."""
        return [field.num_bytes for field in self._fields]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a frame, in the order of leaves."""
        return self._fields

    @property
    def stored_dtypes(self) -> list[np.dtype[Any]]:
        """The dtypes of what `gather` returns."""
        return self._stored

    @property
    def field_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of a frame's fields."""
        return self._shapes

    def _tell_watcher(self, rows: slice | Array) -> None:
        watcher = self._watcher
        if watcher is not None:
            watcher.before_write(rows)

    def release(self) -> None:
        """Lets go of the memory; graphs that captured it keep it until they are gone themselves."""
        self._groups = []
        self._views = []

    def _group_fields(self) -> list[list[int]]:
        shared: dict[np.dtype[Any], list[int]] = {}
        alone: list[list[int]] = []
        for index, field in enumerate(self._fields):
            if field.num_bytes <= _SHARED_FIELD_BYTES:
                shared.setdefault(self._stored[index], []).append(index)
            else:
                alone.append([index])
        return [*shared.values(), *alone]

    def _make_group(self, indices: list[int], num_rows: int) -> _Group:
        widths = tuple(self._fields[index].num_elements for index in indices)
        dtype = self._stored[indices[0]]
        parts = np.dtype([(f"field_{i}", f"V{width * dtype.itemsize}") for i, width in enumerate(widths)])
        return _Group(dtype, tuple(indices), widths, SharedMemory((num_rows, sum(widths)), dtype, self._folder), parts)

    def _make_views(self, num_rows: int) -> list[Array]:
        """For each field its part of the records `[num_rows, ...]`, in the field's own dtype."""
        views: list[Any] = [None] * len(self._fields)
        for group in self._groups:
            start = 0
            row_bytes = group.records.shape[1] * group.dtype.itemsize
            for index, width in zip(group.fields, group.widths, strict=True):
                field = self._fields[index]
                inner = np.empty(field.shape, field.numpy_dtype).strides
                views[index] = np.ndarray(
                    (num_rows, *field.shape),
                    field.numpy_dtype,
                    group.records.data,
                    offset=start * group.dtype.itemsize,
                    strides=(row_bytes, *inner),
                )
                start += width
        return views


def _shape_in_graph(record: tf.Tensor, shape: list[int | None]) -> Any:
    """`shape`, with the first axis read from `record` where it is only known when the graph runs."""
    if None not in shape:
        return shape
    return tf.concat([tf.shape(record)[:1], shape[1:]], 0)


def _restore_dtype(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if tensor.dtype == dtype:
        return tensor
    return tf.cast(tensor, tf.bool) if dtype == tf.bool else tf.bitcast(tensor, dtype)
