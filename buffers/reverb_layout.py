"""How a frame lies in the columns of a Reverb table.

Reverb keeps a chunk for each column of each item, and that is what costs: with one column in
place of five, a table of 168-byte steps takes a third of the memory, is sampled 1.4 times and
written 3 to 5 times as fast (measured). So the tables that we write hold *packed*
frames: one record of bytes with the frame's id, all small fields and a byte of flags side by side, and
a column of bytes for each large field, which is then never copied on the way out. A frame of padding
has id -1 and zeros.

Tables that others write (TF-Agents' observers) hold one *plain* column a field, and no ids.
Letters: `B` batch, `T` time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .fields import Field
from .nests import Array
from .spec import DataSpec

NO_ID = -1
_RECORD = "replayfeed_record"
_LARGE_FIELD_BYTES = 1024
_ID_BYTES = 8
_FORMAT_VERSION = 2


StepPacker = Callable[[int, Array, Array | None], list[Array]]
"""From a step's place, its ids `[B]` and flags `[B]` (None: all False) to its columns `[B, bytes]`."""


class PackedLayout:
    """Frames as bytes: a record `[id, small fields, flags]`, and one column for each large field.

    The flags tell whether a frame is only a final observation.

    Args:
      spec: what a frame holds.

    >>> data_spec = {"image": tf.TensorSpec([84, 84], tf.uint8), "reward": tf.TensorSpec([], tf.float32)}
    >>> PackedLayout(DataSpec(data_spec)).column_bytes
    (13, 7056)
    """

    has_ids = True

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self._large = [index for index, field in enumerate(spec.fields) if field.num_bytes >= _LARGE_FIELD_BYTES]
        small = [index for index in range(len(spec.fields)) if index not in self._large]
        self._small = small
        self._record_dtype = np.dtype(
            [
                ("id", np.int64),
                *((f"field_{index}", _stored_dtype(spec.fields[index]), spec.fields[index].shape) for index in small),
                ("is_final", np.uint8),
            ]
        )
        offsets = {name: int(entry[1]) for name, entry in (self._record_dtype.fields or {}).items()}
        self._offsets = {index: offsets[f"field_{index}"] for index in small}
        self._names = [(index, f"field_{index}", spec.fields[index].dtype == tf.bfloat16) for index in small]
        self.column_bytes = (self._record_dtype.itemsize, *(spec.fields[index].num_bytes for index in self._large))

    @property
    def num_columns(self) -> int:
        """Columns of an item in the table."""
        return len(self.column_bytes)

    @property
    def column_fields(self) -> tuple[tuple[str, ...], ...]:
        """The paths of the fields in each column; the first one is the record."""
        paths = [field.path for field in self.spec.fields]
        return (tuple(paths[index] for index in self._small), *((paths[index],) for index in self._large))

    def signature(
        self, item_length: int | None, about_items: Mapping[str, Any], about_table: Mapping[str, Any] | None = None
    ) -> dict[str, tf.TensorSpec]:
        """A table's signature, in which the record's name tells what the bytes, the items and the table are.

        Args:
          item_length: frames of an item; None where they differ.
          about_items: what else to tell of items.
          about_table: what else to tell of the table.
        """
        return signature_of(self.spec, self.column_bytes, item_length, about_items, about_table)

    def dataset_types(self, item_length: int | None) -> tuple[tuple[tf.DType, ...], tuple[tf.TensorShape, ...]]:
        """Dtypes and shapes of an item's columns, for `reverb.TrajectoryDataset`."""
        return dataset_types_of(self.column_bytes, item_length)

    @property
    def padding(self) -> list[Array]:
        """A frame of padding: columns `[bytes]` of uint8."""
        columns = [np.zeros(size, np.uint8) for size in self.column_bytes]
        columns[0][:_ID_BYTES] = np.array([NO_ID]).view(np.uint8)
        return columns

    def pack(self, leaves: Sequence[Array], ids: Array, is_final: Array | None) -> list[Array]:
        """Columns `[N, bytes]` of uint8 for leaves `[N, ...]`, ids `[N]` and flags `[N]` (None: all False)."""
        num_frames = len(ids)
        record = np.empty(num_frames, self._record_dtype)
        record["id"] = ids
        record["is_final"] = 0 if is_final is None else is_final
        for index, name, is_bfloat16 in self._names:
            record[name] = leaves[index].view(np.uint16) if is_bfloat16 else leaves[index]
        columns = [record.view(np.uint8).reshape(num_frames, -1)]
        for index in self._large:
            columns.append(np.ascontiguousarray(leaves[index]).reshape(num_frames, -1).view(np.uint8))
        return columns

    def pack_steps(self, leaves: Sequence[Array]) -> StepPacker:
        """What gives the columns `[B, bytes]` of each step of leaves `[B, T, ...]`; records are packed all at once."""
        num_rows, num_steps = leaves[0].shape[:2]
        records = np.zeros([num_steps, num_rows], self._record_dtype)
        for index, name, is_bfloat16 in self._names:
            leaf = leaves[index].swapaxes(0, 1)
            records[name] = leaf.view(np.uint16) if is_bfloat16 else leaf
        bytes_of_records = records.view(np.uint8).reshape(num_steps, num_rows, -1)

        def pack_step(t: int, ids: Array, is_final: Array | None) -> list[Array]:
            record = records[t]
            record["id"] = ids
            if is_final is not None:
                record["is_final"] = is_final
            columns = [bytes_of_records[t]]
            for index in self._large:
                columns.append(np.ascontiguousarray(leaves[index][:, t]).reshape(num_rows, -1).view(np.uint8))
            return columns

        return pack_step

    def unpack(
        self, columns: Sequence[tf.Tensor], outer: Sequence[int | tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Ids `[*outer]` and the spec's leaves `[*outer, ...]` from columns `[*outer, bytes]`.

        Args:
          columns: uint8 tensors.
          outer: the leading axes; at most one may be -1 (unknown), others tensors.
        """
        record = columns[0]
        ids = tf.reshape(self.ids_in_graph(record), [*outer])
        leaves: list[Any] = [None] * len(self.spec.fields)
        for index, offset in self._offsets.items():
            field = self.spec.fields[index]
            leaves[index] = _from_bytes(record[..., offset : offset + field.num_bytes], field, outer)
        for column, index in zip(columns[1:], self._large, strict=True):
            leaves[index] = _from_bytes(column, self.spec.fields[index], outer)
        return ids, leaves

    def unpack_numpy(self, columns: Sequence[Array]) -> list[Array]:
        """The spec's leaves `[N, ...]` from columns `[N, bytes]`, in NumPy."""
        num_frames = len(columns[0])
        record = np.ascontiguousarray(columns[0]).view(self._record_dtype)[:, 0]
        leaves: list[Any] = [None] * len(self.spec.fields)
        for index in self._small:
            leaf = np.ascontiguousarray(record[f"field_{index}"])
            leaves[index] = leaf.view(self.spec.fields[index].numpy_dtype)
        for column, index in zip(columns[1:], self._large, strict=True):
            field = self.spec.fields[index]
            leaves[index] = np.ascontiguousarray(column).view(field.numpy_dtype).reshape(num_frames, *field.shape)
        return leaves

    def ids_of(self, record_column: Array) -> Array:
        """Ids `[...]` from the record column `[..., bytes]`, in NumPy."""
        return np.ascontiguousarray(record_column[..., :_ID_BYTES]).view(np.int64)[..., 0]

    def ids_in_graph(self, record_column: tf.Tensor) -> tf.Tensor:
        """Ids int64 `[...]` from the record column `[..., bytes]`, in the graph."""
        return tf.bitcast(record_column[..., :_ID_BYTES], tf.int64)

    def is_final(self, record_column: Any) -> Any:
        """Whether frames are only final observations: bool `[...]` from the record column `[..., bytes]`."""
        return record_column[..., -1] == 1


class PlainLayout:
    """One column a field, as TF-Agents' observers write it; frames have no ids.

    Args:
      spec: what a frame holds.

    >>> PlainLayout(DataSpec({"reward": tf.TensorSpec([], tf.float32)})).num_columns
    1
    """

    has_ids = False

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self.num_columns = len(spec.fields)
        self.column_bytes = tuple(field.num_bytes for field in spec.fields)

    def signature(
        self, item_length: int | None, about_items: Mapping[str, Any], about_table: Mapping[str, Any] | None = None
    ) -> Any:
        """The data_spec with the time axis in front."""
        del about_items, about_table  # a plain table does not tell it
        return self.spec.pack(
            [tf.TensorSpec([item_length, *field.shape], field.dtype, name=field.path) for field in self.spec.fields]
        )

    def dataset_types(self, item_length: int | None) -> tuple[tuple[tf.DType, ...], tuple[tf.TensorShape, ...]]:
        """Dtypes and shapes of an item's columns, for `reverb.TrajectoryDataset`."""
        shapes = tuple(tf.TensorShape([item_length, *field.shape]) for field in self.spec.fields)
        return tuple(field.dtype for field in self.spec.fields), shapes

    def pack(self, leaves: Sequence[Array], ids: Array, is_final: Array | None) -> list[Array]:
        """The leaves themselves: a plain table has no place for ids and flags."""
        del ids, is_final
        return list(leaves)

    def pack_steps(self, leaves: Sequence[Array]) -> StepPacker:
        """What gives each step of leaves `[B, T, ...]`."""
        return lambda t, ids, is_final: [leaf[:, t] for leaf in leaves]

    def unpack(
        self, columns: Sequence[tf.Tensor], outer: Sequence[int | tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Ids, all `NO_ID`, `[*outer]`, and the columns as they are."""
        shape = tf.shape(columns[0])[: len(outer)]
        ids = tf.fill(shape, tf.constant(NO_ID, tf.int64))
        ids.set_shape(columns[0].shape[: len(outer)])
        return ids, list(columns)


def signature_of(
    spec: DataSpec,
    column_bytes: Sequence[int],
    item_length: int | None,
    about_items: Mapping[str, Any],
    about_table: Mapping[str, Any] | None,
) -> dict[str, tf.TensorSpec]:
    """The signature of a table whose items have columns of bytes; the first column's name tells what they are.

    Args:
      spec: what a frame holds.
      column_bytes: of each column.
      item_length: frames of an item; None where they differ.
      about_items: what else to tell of items.
      about_table: what else to tell of the table.
    """
    about = {
        "version": _FORMAT_VERSION,
        "items": dict(about_items),
        "table": dict(about_table or {}),
        "fields": [[field.path, list(field.shape), field.dtype.name] for field in spec.fields],
    }
    columns = {f"{_RECORD}_{n}": tf.TensorSpec([item_length, size], tf.uint8) for n, size in enumerate(column_bytes)}
    columns[f"{_RECORD}_0"] = tf.TensorSpec([item_length, column_bytes[0]], tf.uint8, name=json.dumps(about))
    return columns


def dataset_types_of(
    column_bytes: Sequence[int], item_length: int | None
) -> tuple[tuple[tf.DType, ...], tuple[tf.TensorShape, ...]]:
    """Dtypes and shapes of an item's columns of bytes, for `reverb.TrajectoryDataset`."""
    shapes = tuple(tf.TensorShape([item_length, size]) for size in column_bytes)
    return (tf.uint8,) * len(shapes), shapes


def packed_signature(signature: Any, table: str) -> dict[str, Any] | None:
    """What the signature of a packed table tells: `items`, `fields` and `table`; None for other tables.

    Raises:
      ValueError: the table was made by a version of this package that packs frames in another way.
    """
    if not isinstance(signature, Mapping) or f"{_RECORD}_0" not in signature:
        return None
    about: dict[str, Any] = json.loads(signature[f"{_RECORD}_0"].name)
    if about["version"] != _FORMAT_VERSION:
        raise ValueError(
            f"table {table!r} holds frames in format {about['version']}, this version of replayfeed reads "
            f"{_FORMAT_VERSION}: make the table anew."
        )
    return about


def check_fields(spec: DataSpec, about: Mapping[str, Any], table: str) -> None:
    """Refuses a data_spec that is not the one a packed table was made for.

    Raises:
      ValueError: fields are missing, extra, or of another shape or dtype; each is named.
    """
    stored = {path: (list(shape), dtype) for path, shape, dtype in about["fields"]}
    given = {field.path: (list(field.shape), field.dtype.name) for field in spec.fields}
    problems = [f"missing {sorted(stored.keys() - given.keys())}"] if stored.keys() - given.keys() else []
    problems += [f"extra {sorted(given.keys() - stored.keys())}"] if given.keys() - stored.keys() else []
    problems += [
        f"field {path!r}: the table holds {stored[path][0]} {stored[path][1]}, "
        f"data_spec says {given[path][0]} {given[path][1]}"
        for path in sorted(stored.keys() & given.keys())
        if stored[path] != given[path]
    ]
    if problems:
        raise ValueError(f"data_spec does not fit table {table!r}: {'; '.join(problems)}.")


def _stored_dtype(field: Field) -> np.dtype[Any]:
    return np.dtype(np.uint16) if field.dtype == tf.bfloat16 else field.numpy_dtype


def _from_bytes(column: tf.Tensor, field: Field, outer: Sequence[int | tf.Tensor]) -> tf.Tensor:
    size = field.numpy_dtype.itemsize
    shape = [*outer, *field.shape]
    if size > 1:
        return tf.bitcast(tf.reshape(column, [*shape, size]), field.dtype)
    tensor = tf.reshape(column, shape)
    if field.dtype == tf.uint8:
        return tensor
    return tf.cast(tensor, tf.bool) if field.dtype == tf.bool else tf.bitcast(tensor, field.dtype)
