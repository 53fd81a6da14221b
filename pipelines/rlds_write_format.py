"""How each field of an episode is written, decided from the specs before any data is read.

| field | written as | why |
| --- | --- | --- |
| uint8 or uint16 `[H, W, C]`, C 1, 3 or 4, 64 pixels or more | PNG | without loss, and what TFDS calls an image |
| float32 | list of floats | kept bit for bit, and the fastest to read |
| float16, bfloat16, float64, complex | bytes | a list holds float32: it would keep 0.1 as 0.10000000149011612 |
| integers and bools, up to 16 of them a step | list of int64 | exact, and what readers expect of actions and flags |
| integers and bools, more of them, and not in sequences | bytes | a list takes up to 10 bytes for each |
| strings | list of bytes | |

A field whose first dimension is unknown is a sequence, which may differ in length from step
to step. Other unknown dimensions may differ from episode to episode.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import tensorflow as tf

from replayfeed.buffers.nests import Nest, field_path

from .rlds_steps import FLAGS, INVALID, IS_TERMINAL, STEPS

Encoding = Literal["list", "bytes", "png"]

EncodeImages = Literal["png"] | Collection[str] | None
"""Which fields are written as PNG: those the rule above finds, those that are named, or none."""

_MAX_LISTED = 16
_MIN_PIXELS = 64
_CHANNELS = (1, 3, 4)

# What tf.io.decode_raw, with which TFDS reads bytes, gives back; it reads uint64 as int64, and casts the bits.
_BYTES_DTYPES = frozenset(
    "bool int8 uint8 int16 uint16 int32 int64 uint64 float16 bfloat16 float32 float64 complex64 complex128".split()
)
_LIST_DTYPES = frozenset("bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float32 string".split())
_INTEGERS = frozenset("bool int8 uint8 int16 uint16 int32 uint32 int64 uint64".split())


@dataclasses.dataclass(frozen=True)
class FieldFormat:
    """How one leaf is written. Plain values only, so that it can be sent to other processes.

    Attributes:
      path: its keys, from the episode's own dict on: `('steps', 'observation', 'image')`.
      dtype: its name, `'float32'`.
      shape: of one value: of one step, or of one element of a sequence; None where unknown.
      encoding: `'list'`, `'bytes'` or `'png'`.
      num_sequences: how many levels of sequences a step, or the episode, has of these values.
    """

    path: tuple[str, ...]
    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: Encoding = "list"
    num_sequences: int = 0

    @property
    def key(self) -> str:
        """Its name in a tf.train.Example: `'steps/observation/image'`."""
        return field_path(self.path)

    @property
    def place(self) -> str:
        """How messages name it: `'observation/image'`."""
        return field_path(self.path[1:] if self.path[0] == STEPS else self.path)

    @property
    def stores_shape(self) -> bool:
        """Whether each value's shape is written beside it, as several of its dimensions are unknown."""
        return self.encoding == "bytes" and self.shape.count(None) > 1


@dataclasses.dataclass(frozen=True)
class EpisodeFormat:
    """How the episodes of a dataset are written.

    Attributes:
      steps: of each leaf of a step; the three flags are always among them.
      metadata: of each leaf of the episode's own fields; `invalid` is always among them.
      notes: what a reader of the dataset has to know.

    >>> fmt = episode_format("mine", {"observation": tf.TensorSpec([2], tf.float64),
    ...                               "is_terminal": tf.TensorSpec([], tf.bool)})
    >>> [(field.key, field.encoding) for field in fmt.steps]  # doctest: +NORMALIZE_WHITESPACE
    [('steps/observation', 'bytes'), ('steps/is_first', 'list'), ('steps/is_last', 'list'),
     ('steps/is_terminal', 'list')]
    """

    steps: tuple[FieldFormat, ...]
    metadata: tuple[FieldFormat, ...]
    notes: tuple[str, ...] = ()


def episode_format(
    name: str,
    step_spec: Mapping[str, Nest],
    metadata_spec: Mapping[str, Nest] | None = None,
    *,
    encode_images: EncodeImages = "png",
) -> EpisodeFormat:
    """How episodes of these specs are written.

    Args:
      name: the source's, for messages.
      step_spec: for each field of a step a nest of type specs; tuples and lists are written
        as dicts of `'0'`, `'1'`, ..., named tuples as dicts of their names.
      metadata_spec: the same for the episode's own fields.
      encode_images: which fields are written as PNG; names are those of messages, `'observation/image'`.

    Raises:
      ValueError: the steps have no `is_terminal`.
      TypeError: a key of a dict is no string.
      ValueError: two fields would get the same name in the file (`{'a/b': ..., 'a': {'b': ...}}`).
      ValueError: an episode field is called `'steps'` or `'invalid'`.
      ValueError: a field has a dtype, a shape with a 0, or unknown dimensions that TFDS cannot keep.
      ValueError: `encode_images` is unknown, or names a field that is none or cannot be a PNG.
    """
    if isinstance(encode_images, str) and encode_images != "png":
        raise ValueError(
            f"encode_images must be 'png', None or a collection of field names such as ['observation/image'], got "
            f"{encode_images!r}."
        )
    if IS_TERMINAL not in step_spec:
        raise ValueError(
            f"{name}: the steps have no {IS_TERMINAL!r}, so terminal and truncated episodes cannot be told apart; "
            f"found {sorted(step_spec)}."
        )
    for key in (STEPS, INVALID):
        if metadata_spec is not None and key in metadata_spec:
            raise ValueError(f"{name}: an episode field may not be called {key!r}, which RLDS has for itself.")
    notes: list[str] = []
    chosen = None if encode_images is None or encode_images == "png" else set(encode_images)
    found: set[str] = set()

    def formats(spec: Nest, root: tuple[str, ...]) -> Iterator[FieldFormat]:
        for path, leaf in _leaves(name, spec, root, notes):
            field = _field_format(name, path, leaf)
            found.add(field.place)
            is_image = encode_images == "png" and _looks_like_image(field)
            if chosen is not None and field.place in chosen:
                _check_image(name, field)
                is_image = True
            yield dataclasses.replace(field, encoding="png") if is_image else field

    other_fields = {key: spec for key, spec in step_spec.items() if key not in FLAGS}
    flags = (FieldFormat((STEPS, flag), "bool") for flag in FLAGS)
    metadata = {} if metadata_spec is None else metadata_spec
    fmt = EpisodeFormat(
        steps=(*formats(other_fields, (STEPS,)), *flags),
        metadata=(*formats(metadata, ()), FieldFormat((INVALID,), "bool")),
        notes=tuple(dict.fromkeys(notes)),
    )
    if chosen is not None and chosen - found:
        raise ValueError(
            f"{name}: encode_images names {sorted(chosen - found)}, which are no fields; found {sorted(found)}."
        )
    _check_keys(name, fmt)
    return fmt


def _leaves(name: str, spec: Nest, path: tuple[str, ...], notes: list[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(spec, Mapping):
        for key in spec:
            if not isinstance(key, str):
                raise TypeError(
                    f"{name}: {_place(path)} has the key {key!r}, a {type(key).__name__}; TFDS takes strings only: "
                    "rename it in a map over the episodes."
                )
        children = [(key, spec[key]) for key in sorted(spec)]
    elif isinstance(spec, tuple) and hasattr(spec, "_fields"):
        children = list(zip(spec._fields, spec, strict=True))
    elif isinstance(spec, list | tuple):
        children = [(str(index), child) for index, child in enumerate(spec)]
    else:
        yield path, spec
        return
    if not isinstance(spec, Mapping) and children:
        notes.append(f"{_place(path)} is a {type(spec).__name__}, written as a dict of {[key for key, _ in children]}")
    if not children and len(path) > 1:
        notes.append(f"{_place(path)} is empty, so it is not written")
    for key, child in children:
        yield from _leaves(name, child, (*path, key), notes)


def _place(path: tuple[str, ...]) -> str:
    if path in ((), (STEPS,)):
        return "the nest of fields"
    return f"field {field_path(path[1:] if path[0] == STEPS else path)!r}"


def _field_format(name: str, path: tuple[str, ...], spec: Any) -> FieldFormat:
    """Everything but whether it is an image."""
    if not isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec):
        raise ValueError(
            f"{name}: {_place(path)} is a {type(spec).__name__}; only tensors and ragged tensors can be written: "
            "drop it in a map over the episodes."
        )
    shape = spec.shape
    if shape.rank is None:
        raise ValueError(f"{name}: {_place(path)} has an unknown number of dimensions; set its shape in a map.")
    dims = tuple(shape.as_list())
    num_sequences = 0
    if isinstance(spec, tf.RaggedTensorSpec):
        num_sequences = spec.ragged_rank + 1
    elif dims and dims[0] is None and not _image_dims(spec.dtype.name, dims):
        num_sequences = 1
    field = FieldFormat(path, spec.dtype.name, dims[num_sequences:], "list", num_sequences)
    if 0 in dims:
        raise ValueError(
            f"{name}: {_place(path)} has the shape {list(dims)}, which holds nothing, and TFDS ends the process where "
            "it reads one: drop it in a map over the episodes."
        )
    return dataclasses.replace(field, encoding=_encoding(name, field))


def _encoding(name: str, field: FieldFormat) -> Literal["list", "bytes"]:
    num_unknown = field.shape.count(None)
    if num_unknown:
        as_bytes = True
    elif field.dtype in _INTEGERS:
        # TFDS decodes the bytes in sequences one by one.
        num_values = 0 if field.num_sequences else math.prod(dim or 1 for dim in field.shape)
        as_bytes = field.dtype != "uint32" and num_values > _MAX_LISTED
    else:
        as_bytes = field.dtype not in _LIST_DTYPES
    if field.dtype not in (_BYTES_DTYPES if as_bytes else _LIST_DTYPES):
        shape = f" of the shape {list(field.shape)}" if num_unknown else ""
        raise ValueError(
            f"{name}: {_place(field.path)} is {field.dtype}{shape}, which TFDS cannot keep; cast it"
            f"{', or give it a fixed shape,' if num_unknown else ''} in a map over the episodes."
        )
    return "bytes" if as_bytes else "list"


def _image_dims(dtype: str, dims: tuple[int | None, ...]) -> bool:
    return dtype in ("uint8", "uint16") and len(dims) == 3 and dims[2] in _CHANNELS


def _looks_like_image(field: FieldFormat) -> bool:
    if not _image_dims(field.dtype, field.shape):
        return False
    height, width, _ = field.shape
    # Where a side is unknown it is a photograph, not a board of a game.
    return height is None or width is None or height * width >= _MIN_PIXELS


def _check_image(name: str, field: FieldFormat) -> None:
    if not _image_dims(field.dtype, field.shape):
        raise ValueError(
            f"{name}: encode_images names {field.place!r}, which is {field.dtype} {list(field.shape)}; a PNG holds "
            f"uint8 or uint16 of the shape [H, W, C], C one of {list(_CHANNELS)}."
        )


def _check_keys(name: str, fmt: EpisodeFormat) -> None:
    seen: dict[str, tuple[str, ...]] = {}
    for field in (*fmt.steps, *fmt.metadata):
        if field.key in seen:
            raise ValueError(
                f"{name}: the fields {seen[field.key]} and {field.path} would both be called {field.key!r} in the "
                "file; rename one in a map over the episodes."
            )
        seen[field.key] = field.path
