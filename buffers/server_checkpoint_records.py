"""What Reverb's files of a checkpoint hold: each table's settings, and its items.

Reverb 0.14 writes records of TensorFlow's format, compressed as a whole by zlib: in `tables.tfrecord` one message a
table, in `items.tfrecord` one an item, each table's in the order of their inserts, and in `chunks.tfrecord` the data.
"""

from __future__ import annotations

import pathlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from .reverb_import import load_checkpoint_schema, load_schema, load_types

TABLES_FILE = "tables.tfrecord"
ITEMS_FILE = "items.tfrecord"
_COMPRESSION = "ZLIB"
_BLOCK_BYTES = 1 << 20
# Before a record its size, 8 bytes, and after both a checksum.
_CHECKSUM_BYTES = 4
_HEADER_BYTES = 8 + _CHECKSUM_BYTES


def read_tables(path: pathlib.Path) -> dict[str, Any]:
    """Each table's `PriorityTableCheckpoint` message, by its name.

    Args:
      path: the checkpoint's folder.

    Raises:
      ValueError: the file cannot be read.
    """
    message = load_checkpoint_schema().PriorityTableCheckpoint
    tables = [message.FromString(record) for record in _records(path / TABLES_FILE)]
    return {table.table_name: table for table in tables}


def read_items(path: pathlib.Path) -> Iterator[Any]:
    """Each item's `PrioritizedItem` message, tables one after the other, each in the order of its inserts.

    Args:
      path: the checkpoint's folder.

    Raises:
      ValueError: the file cannot be read.
    """
    message = load_schema().PrioritizedItem
    return (message.FromString(record) for record in _records(path / ITEMS_FILE))


def write_records(path: pathlib.Path, messages: Iterable[Any]) -> None:
    """Writes messages to a file as Reverb does."""
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=_COMPRESSION)) as writer:
        for message in messages:
            writer.write(message.SerializeToString())


def info_from(table: Any, num_items: int) -> Any:
    """Reverb's `TableInfo` of a stored table.

    Args:
      table: its `PriorityTableCheckpoint`.
      num_items: items of it that are stored.
    """
    limiter = table.rate_limiter
    info = load_schema().TableInfo(
        name=table.table_name,
        sampler_options=table.sampler,
        remover_options=table.remover,
        max_size=table.max_size,
        max_times_sampled=table.max_times_sampled,
        current_size=num_items,
    )
    told = info.rate_limiter_info
    told.samples_per_insert, told.min_diff, told.max_diff = (
        limiter.samples_per_insert,
        limiter.min_diff,
        limiter.max_diff,
    )
    told.min_size_to_sample = limiter.min_size_to_sample
    told.insert_stats.completed, told.sample_stats.completed = limiter.insert_count, limiter.sample_count
    if table.HasField("signature"):
        info.signature.CopyFrom(table.signature)
    return load_types().TableInfo.from_serialized_proto(info.SerializeToString())


def message_of(table: Any) -> Any:
    """The `TableInfo` message of a `reverb.Table`."""
    return load_schema().TableInfo.FromString(table.internal_table.info())


def _records(path: pathlib.Path) -> Iterator[bytes]:
    """The records of a file, one after the other; without tf.data, whose threads a dataset may keep busy."""
    stream, pending = zlib.decompressobj(), b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            try:
                pending += stream.decompress(block)
            except zlib.error as error:
                raise ValueError(f"{path} cannot be read ({error}).") from error
            position = 0
            while len(pending) >= position + _HEADER_BYTES:
                (size,) = struct.unpack_from("<Q", pending, position)
                end = position + _HEADER_BYTES + size + _CHECKSUM_BYTES
                if end > len(pending):
                    break
                yield pending[position + _HEADER_BYTES : end - _CHECKSUM_BYTES]
                position = end
            pending = pending[position:]
    if pending or not stream.eof:
        raise ValueError(f"{path} is cut short.")
