"""From an episode's arrays to the bytes of the tf.train.Example that TFDS reads. Pure; needs no TFDS.

The message is put together from whole columns: never a Python loop over steps, but for strings
and images, whose values are bytes of their own. Layout:
https://github.com/tensorflow/tensorflow/blob/v2.15.0/tensorflow/core/example/feature.proto,
in the encoding of https://protobuf.dev/programming-guides/encoding/. As TFDS lays it out, a
field of the steps is one list with the values of all steps; a field that holds sequences is a list
of all their values, and one of lengths for each level.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest

from .episode_source import RawEpisode
from .rlds_steps import FLAGS, INVALID, IS_FIRST, IS_LAST, IS_TERMINAL, STEPS
from .rlds_write_format import EpisodeFormat, FieldFormat

# Field numbers of Feature: what kind of list it holds.
_BYTES, _FLOATS, _INTS = 1, 2, 3

# A parser refuses messages of 2 GiB.
_MAX_BYTES = 2**31 - 1

# What is made at a time of a column that has to be changed: bounds the memory beyond the message.
_CHUNK_BYTES = 1 << 20

# Images that one thread encodes at a time.
_IMAGES_A_TASK = 32

_IMAGE_BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff")

_Chunk = bytes | memoryview
_List = tuple[int, int, Iterable[_Chunk]]
"""The kind of list, its size in bytes, and its content in pieces."""


def serialize_episode(fmt: EpisodeFormat, episode: RawEpisode) -> bytes:
    """The tf.train.Example of an episode: what `tfds.features` would write of the same fields.

    Depends on its arguments alone, and both can be sent to other processes.

    Args:
      fmt: how each field is written, from `episode_format`.
      episode: columns that match the specs `fmt` was made of. Where it has no `is_first` or
        `is_last`, its first and its last step have them; where it has them, they are kept as they are.
        Images may be PNG or JPEG files, bytes `[N + 1]`, which are written unchanged.

    Raises:
      ValueError: a field is missing, is not in `fmt`, or has another dtype, shape or number of steps.
      ValueError: the episode takes 2 GiB or more, which no reader takes.

    >>> from replayfeed.pipelines.rlds_write_format import episode_format
    >>> spec = {"reward": tf.TensorSpec([], tf.float32), "is_terminal": tf.TensorSpec([], tf.bool)}
    >>> fmt = episode_format("mine", spec)
    >>> steps = {"reward": np.array([0.5, 0.0], np.float32), "is_terminal": np.array([False, True])}
    >>> example = tf.train.Example.FromString(serialize_episode(fmt, RawEpisode("0", steps)))
    >>> list(example.features.feature["steps/reward"].float_list.value)
    [0.5, 0.0]
    >>> list(example.features.feature["steps/is_first"].int64_list.value)
    [1, 0]
    """
    return bytes(serialize_columns(fmt, episode))


def serialize_columns(fmt: EpisodeFormat, episode: RawEpisode) -> bytearray:
    """As `serialize_episode`, without its last copy."""
    flags = episode_flags(episode.columns)
    num_steps = len(flags[IS_TERMINAL])
    _check_fields(fmt.steps, episode.columns, (STEPS,))
    _check_fields(fmt.metadata, episode.metadata, ())
    entries: list[tuple[str, _List]] = []
    for field in fmt.steps:
        is_flag = len(field.path) == 2 and field.path[1] in flags
        column = flags[field.path[1]] if is_flag else _find(episode.columns, field.path[1:], field)
        entries.extend(_entries(field, column, num_steps))
    for field in fmt.metadata:
        value = np.bool_(episode.invalid) if field.path == (INVALID,) else _find(episode.metadata, field.path, field)
        entries.extend(_entries(field, _with_first_axis(value), None))
    return _example(entries)


def episode_flags(columns: Mapping[str, Nest]) -> dict[str, Array]:
    """`is_first`, `is_last` and `is_terminal` of each step, bool `[N + 1]`.

    Those that the columns have, as they are; without one the first or the last step has it.

    Raises:
      ValueError: there is no `is_terminal`, or a flag is not one number a step.

    >>> flags = episode_flags({"is_terminal": np.array([False, False])})
    >>> flags["is_last"].tolist()
    [False, True]
    """
    if IS_TERMINAL not in columns:
        raise ValueError(f"the steps have no {IS_TERMINAL!r}, found {sorted(columns)}")
    flags = {}
    for name in FLAGS:
        if name in columns:
            flag = np.asarray(columns[name])
            flag = flag[:, 0] if flag.ndim == 2 and flag.shape[1] == 1 else flag
            if flag.ndim != 1:
                raise ValueError(f"step field {name!r}: expected one number a step, got the shape {list(flag.shape)}")
            flags[name] = flag.astype(bool, copy=False)
    num_steps = len(flags[IS_TERMINAL])
    for name, index in ((IS_FIRST, 0), (IS_LAST, -1)):
        if name not in flags:
            flags[name] = np.zeros([num_steps], bool)
            flags[name][[index] if num_steps else []] = True
    return flags


# -- fields of an Example ----------------------------------------------------------------------


def _check_fields(fields: tuple[FieldFormat, ...], nest: Mapping[str, Nest], root: tuple[str, ...]) -> None:
    known = {field.path[len(root)] for field in fields}
    unknown = sorted(key for key in nest if key not in known and tf.nest.flatten(nest[key]))
    if unknown:
        whose = "step" if root else "episode"
        raise ValueError(f"it has the {whose} fields {unknown}, which its source does not announce")


def _find(nest: Any, keys: tuple[str, ...], field: FieldFormat) -> Any:
    for key in keys:
        try:
            if isinstance(nest, Mapping):
                nest = nest[key]
            elif isinstance(nest, tuple) and hasattr(nest, "_fields"):
                nest = getattr(nest, key)
            else:
                nest = nest[int(key)]
        except (KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"field {field.place!r} is missing") from error
    return nest


def _with_first_axis(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return tf.expand_dims(value, 0)
    return _as_array(value)[np.newaxis]


def _as_array(value: Any) -> Array:
    if isinstance(value, bytes | str):
        # NumPy's own strings drop zeros at their end.
        array = np.empty([], object)
        array[()] = value
        return array
    return np.asarray(value)


def _entries(field: FieldFormat, column: Any, num_steps: int | None) -> Iterator[tuple[str, _List]]:
    """Names and lists of one field; `num_steps` is None where the column is the episode's only value."""
    values, lengths = _flatten_sequences(field, column)
    outer = len(lengths[0]) if lengths else len(values)
    if num_steps is not None and outer != num_steps:
        raise ValueError(f"field {field.place!r} has {outer} steps, while 'is_terminal' has {num_steps}")
    values = _checked(field, values)
    if field.num_sequences and num_steps is None:
        # The episode's own sequence is the list itself: TFDS stores lengths from the second level on.
        lengths = lengths[1:]
    parts = {field.key: _list(field, values)}
    if field.stores_shape:
        shapes = np.broadcast_to(np.asarray(values.shape[1:], np.int64), [len(values), values.ndim - 1])
        parts = {f"{field.key}/shape": _int_list(shapes), f"{field.key}/value": parts[field.key]}
    for key, values_list in parts.items():
        for level, row_lengths in enumerate(lengths):
            yield f"{key}/ragged_row_lengths_{level}", _int_list(row_lengths)
        yield f"{key}/ragged_flat_values" if lengths else key, values_list


def _flatten_sequences(field: FieldFormat, column: Any) -> tuple[Array, list[Array]]:
    """All values of a column, `[M, ...]`, and for each level of sequences their lengths."""
    lengths: list[Array] = []
    if isinstance(column, tf.RaggedTensor):
        if column.ragged_rank > field.num_sequences:
            raise ValueError(
                f"field {field.place!r} is ragged in {column.ragged_rank} dimensions, where its spec has "
                f"{field.num_sequences}; its steps differ in shape: crop or pad them to one"
            )
        lengths = [row_lengths.numpy() for row_lengths in column.nested_row_lengths()]
        values = column.flat_values.numpy()
    else:
        values = _as_array(column)
    while len(lengths) < field.num_sequences:
        if values.ndim < 2:
            raise ValueError(f"field {field.place!r} has no sequences, got the shape {list(values.shape)}")
        lengths.append(np.full([len(values)], values.shape[1], np.int64))
        values = values.reshape(len(values) * values.shape[1], *values.shape[2:])
    return values, lengths


def _checked(field: FieldFormat, values: Array) -> Array:
    expected = tf.as_dtype(field.dtype).as_numpy_dtype
    if field.dtype == "string":
        fits = values.dtype.kind in "OSU"
    elif values.dtype == object and field.encoding == "png":
        # Where its steps differ in size, a source gives images as its files hold them.
        return _checked_images(field, values)
    else:
        fits = values.dtype == np.dtype(expected) or values.dtype.newbyteorder("=") == np.dtype(expected)
    found = values.shape[1:]
    same_rank = len(found) == len(field.shape)
    if not fits or not same_rank or any(dim not in (None, got) for dim, got in zip(field.shape, found, strict=True)):
        hint = " (values that are still encoded?)" if values.dtype == object and field.dtype != "string" else ""
        raise ValueError(
            f"field {field.place!r}: expected {field.dtype} {list(field.shape)}, got {values.dtype} {list(found)}{hint}"
        )
    return values if field.dtype == "string" else values.astype(expected, copy=False)


def _checked_images(field: FieldFormat, values: Array) -> Array:
    """Encoded images `[M]`, which are written as they are."""
    for value in values.ravel().tolist():
        if values.ndim != 1 or not isinstance(value, bytes) or not value.startswith(_IMAGE_BEGINNINGS):
            raise ValueError(
                f"field {field.place!r}: expected {field.dtype} {list(field.shape)}, or PNG and JPEG files as bytes, "
                f"got objects of the shape {list(values.shape[1:])}"
            )
    return values


def _list(field: FieldFormat, values: Array) -> _List:
    if field.encoding == "png":
        return _bytes_list(values.tolist() if values.dtype == object else _encode_png(values))
    if field.encoding == "bytes":
        return _raw_list(values)
    if field.dtype == "string":
        return _bytes_list(_strings(field, values))
    if field.dtype == "float32":
        content = np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8).data
        return _packed(_FLOATS, len(content), [content])
    return _int_list(values)


def _strings(field: FieldFormat, values: Array) -> list[bytes]:
    strings = values.ravel().tolist()
    kinds = set(map(type, strings))
    if kinds <= {bytes}:
        return strings
    if not kinds <= {bytes, str}:
        raise ValueError(f"field {field.place!r}: expected strings, got {sorted(kind.__name__ for kind in kinds)}")
    return [string.encode() if isinstance(string, str) else string for string in strings]


def _encode_png(images: Array) -> list[bytes]:
    """PNGs of `[M, H, W, C]`."""
    if not len(images):
        return []

    def encode(start: int) -> list[bytes]:
        encoded = tf.io.encode_png(images[start : start + _IMAGES_A_TASK])
        return encoded.numpy().tolist()

    starts = range(0, len(images), _IMAGES_A_TASK)
    if len(starts) == 1:
        return encode(0)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        return [image for part in threads.map(encode, starts) for image in part]


# -- lists -------------------------------------------------------------------------------------


def _packed(kind: int, size: int, content: Iterable[_Chunk]) -> _List:
    """A list of numbers, which is one value of `size` bytes; without numbers it is left out."""
    if not size:
        return kind, 0, []
    header = _header(1, size)
    return kind, len(header) + size, itertools.chain([header], content)


def _int_list(values: Array) -> _List:
    flat = np.ascontiguousarray(values).reshape(-1)
    rows = _CHUNK_BYTES // 8
    parts = [_varints(flat[start : start + rows]) for start in range(0, len(flat), rows)]
    return _packed(_INTS, sum(map(len, parts)), parts)


def _varints(values: Array) -> bytes:
    """Numbers of 7 bits a byte, the lowest first; all bytes of a number but its last have the 8th bit set."""
    numbers = values.astype(np.int64, copy=False).view(np.uint64)
    greatest = int(numbers.max()) if len(numbers) else 0
    if greatest < 0x80:
        return numbers.astype(np.uint8).tobytes()
    width = (greatest.bit_length() + 6) // 7
    shifted = numbers[:, np.newaxis] >> np.arange(0, 7 * width, 7, dtype=np.uint64)
    groups = (shifted & np.uint64(0x7F)).astype(np.uint8)
    present = shifted > 0
    present[:, 0] = True
    groups[:, :-1] |= present[:, 1:] * np.uint8(0x80)
    # A mask picks in the order of rows, so each number keeps its bytes together.
    return groups[present].tobytes()


def _raw_list(values: Array) -> _List:
    """Each value's own bytes; all have the same size."""
    num_values = len(values)
    if not num_values:
        return _BYTES, 0, []
    rows = np.ascontiguousarray(values).reshape(num_values, -1)
    # By a view of bytes: NumPy has no memoryview of bfloat16.
    rows = rows.view(np.uint8) if rows.shape[1] else np.zeros([num_values, 0], np.uint8)
    header = np.frombuffer(_header(1, rows.shape[1]), np.uint8)
    width = len(header) + rows.shape[1]
    per_chunk = max(1, _CHUNK_BYTES // width)

    def content() -> Iterator[_Chunk]:
        for start in range(0, num_values, per_chunk):
            part = rows[start : start + per_chunk]
            framed = np.empty([len(part), width], np.uint8)
            framed[:, : len(header)] = header
            framed[:, len(header) :] = part
            yield framed.reshape(-1).data

    return _BYTES, num_values * width, content()


def _bytes_list(values: list[bytes]) -> _List:
    headers = {size: _header(1, size) for size in set(map(len, values))}
    content = [part for value in values for part in (headers[len(value)], value)]
    return _BYTES, sum(map(len, content)), content


# -- the message -------------------------------------------------------------------------------


def _example(entries: list[tuple[str, _List]]) -> bytearray:
    """Example{features: Features{feature: map of name to Feature}}."""
    parts: list[tuple[bytes, int, Iterable[_Chunk]]] = []
    for key, (kind, size, content) in entries:
        list_header = _header(kind, size)
        feature_size = len(list_header) + size
        name = key.encode()
        start = _header(1, len(name)) + name + _header(2, feature_size) + list_header
        size += len(start)
        parts.append((_header(1, size) + start, size, content))
    features_size = sum(len(_header(1, size)) + size for _, size, _ in parts)
    header = _header(1, features_size)
    num_bytes = len(header) + features_size
    if num_bytes > _MAX_BYTES:
        raise ValueError(
            f"it takes {num_bytes:,} bytes, and a tf.train.Example is read only up to 2 GiB; cut it into several, or "
            "leave fields out"
        )
    message = bytearray(num_bytes)
    message[: len(header)] = header
    end = len(header)
    for start, _, content in parts:
        for chunk in itertools.chain([start], content):
            message[end : end + len(chunk)] = chunk
            end += len(chunk)
    return message


def _header(number: int, size: int) -> bytes:
    """Of a field of the message that has a length: strings, messages and packed numbers."""
    return bytes([number << 3 | 2]) + _varint(size)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
