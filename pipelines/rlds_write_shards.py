"""Records into the numbered files of a split, in order.

How many files there will be is part of their names, and known only at the end: until then they
have names of their own. The order of the records is that of the files and within them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import tensorflow as tf

from replayfeed.buffers.pending_folder import sync

FileFormat = Literal["tfrecord", "array_record"]


class ShardWriter:
    """Writes the files of one split.

    Args:
      folder: where; it exists, and nobody else writes there.
      stem: what their names begin with, `'mine-train.tfrecord'`.
      file_format: `'tfrecord'` or `'array_record'`.
      num_shards: how many files; fewer where there are fewer records. None: as many as it
        takes of `shard_bytes` each.
      num_records: how many records are announced; None when unknown. Where it is wrong, and
        `num_shards` is given, the records are dealt out once more at the end.
      shard_bytes: a file that has reached this size is ended, where nobody says how many there are to be.

    Raises:
      ImportError: `file_format` is `'array_record'`, and array_record is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shards = ShardWriter(folder, "mine-train.tfrecord", "tfrecord", num_shards=2, num_records=3)
    ...     for record in (b"a", b"b", b"c"):
    ...         shards.write(record)
    ...     shards.finish(), sorted(os.listdir(folder))
    ([1, 2], ['mine-train.tfrecord-00000-of-00002', 'mine-train.tfrecord-00001-of-00002'])
    """

    def __init__(
        self,
        folder: str,
        stem: str,
        file_format: FileFormat,
        *,
        num_shards: int | None = None,
        num_records: int | None = None,
        shard_bytes: int = 256 << 20,
    ) -> None:
        self._folder = folder
        self._stem = stem
        self._file_format: FileFormat = file_format
        self._num_shards = num_shards
        self._max_shard_bytes = shard_bytes
        self._planned = None if num_shards is None or num_records is None else _deal(num_records, num_shards)
        self._lengths: list[int] = []
        self._writer: Any = None
        self._shard_bytes = 0
        if file_format == "array_record":
            _import_array_record()

    def write(self, record: bytes | bytearray) -> None:
        """Appends one record."""
        if self._writer is None:
            self._writer = _open(self._part(len(self._lengths)), self._file_format)
            self._lengths.append(0)
            self._shard_bytes = 0
        # array_record takes nothing but bytes.
        self._writer.write(record if self._file_format == "tfrecord" else bytes(record))
        self._lengths[-1] += 1
        self._shard_bytes += len(record)
        index = len(self._lengths) - 1
        if self._planned is None:
            is_full = self._shard_bytes >= self._max_shard_bytes
        else:
            is_full = index < len(self._planned) and self._lengths[index] >= self._planned[index]
        if is_full:
            self._end_shard()

    def finish(self) -> list[int]:
        """Ends the last file, and gives all their names. Returns how many records each holds."""
        self._end_shard()
        if self._num_shards is not None:
            lengths = _deal(sum(self._lengths), self._num_shards)
            if lengths != self._lengths:
                self._deal_again(lengths)
        for index in range(len(self._lengths)):
            name = f"{self._stem}-{index:05d}-of-{len(self._lengths):05d}"
            os.rename(self._part(index), os.path.join(self._folder, name))
        return list(self._lengths)

    def close(self) -> None:
        """Closes the file that is open; nothing where `finish` did."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _part(self, index: int) -> str:
        return os.path.join(self._folder, f"part-{index:05d}")

    def _end_shard(self) -> None:
        if self._writer is None:
            return
        self.close()
        sync(self._part(len(self._lengths) - 1))

    def _deal_again(self, lengths: list[int]) -> None:
        """The same records in the same order, in files of these lengths."""
        olds = []
        for index in range(len(self._lengths)):
            olds.append(os.path.join(self._folder, f"old-{index:05d}"))
            os.rename(self._part(index), olds[-1])
        self._lengths, self._planned = [], lengths
        for old in olds:
            for record in _read(old, self._file_format):
                self.write(record)
            os.remove(old)
        self._end_shard()


def _deal(num_records: int, num_shards: int) -> list[int]:
    """Lengths of the files, which differ by one at most; none is empty."""
    num_shards = min(num_shards, num_records)
    bounds = [index * num_records // num_shards for index in range(num_shards + 1)] if num_shards else [0]
    return [end - start for start, end in zip(bounds[:-1], bounds[1:], strict=True)]


def _open(path: str, file_format: FileFormat) -> Any:
    if file_format == "tfrecord":
        return tf.io.TFRecordWriter(path)
    # One record a group, as TFDS does: any episode can be read alone.
    return _import_array_record().ArrayRecordWriter(path, "group_size:1")


def _read(path: str, file_format: FileFormat) -> Iterator[bytes]:
    if file_format == "tfrecord":
        yield from tf.data.TFRecordDataset(path).as_numpy_iterator()
        return
    reader = _import_array_record().ArrayRecordReader(path)
    for _ in range(reader.num_records()):
        yield reader.read()
    reader.close()


def _import_array_record() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise ImportError(
            "file_format='array_record' needs the package array_record, which TensorFlow Datasets asks for on Linux; "
            "install it, or write file_format='tfrecord'."
        ) from error
    return array_record_module
