"""The state of a buffer as a dict of arrays and plain values, and as bytes."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .buffer_state import BufferState, HeldFrames, LiveFrames, Put
from .fields import Field
from .nests import Array
from .saved_fields import field_names, fields_from_plain, fields_to_plain
from .saved_frames import saved_dtype

FORMAT = "replayfeed buffer state"
VERSION = 1

_ENTRIES = ("kind", "spec", "settings", "values", "arrays", "frames", "parts")

_PART_BYTES = 2**20


def state_to_dict(state: BufferState) -> dict[str, Any]:
    """A copy of a state that a buffer gave: nested dicts of arrays and plain values.

    Of a field `frames["fields"]` holds `[n, ...]`, frames by ascending id (bfloat16 as the uint16 of the same bits).
    """
    frames = None
    if state.frames is not None:
        frames = {
            "ids": state.frames.id_array(),
            "fields": _read_all(state.frames, state.fields),
            "columns": dict(state.frames.columns),
        }
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": state.kind,
        "spec": fields_to_plain(state.fields),
        "settings": dict(state.settings),
        "values": dict(state.values),
        "arrays": dict(state.arrays),
        "frames": frames,
        "parts": {name: state_to_dict(part) for name, part in state.parts.items()},
    }


def state_from_dict(state: Any) -> BufferState:
    """Of `state_to_dict`.

    Raises:
      ValueError: it is none, or of a later version of this package.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise ValueError(
            f"expected what get_state() gave, a dict with 'format': {FORMAT!r}; got {type(state).__name__}."
        )
    if not isinstance(state.get("version"), int) or state["version"] > VERSION:
        raise ValueError(
            f"the state was made by a later replayfeed: it has version {state.get('version')!r}, and this one reads "
            f"up to {VERSION}; update the package."
        )
    missing = [name for name in _ENTRIES if name not in state]
    if missing:
        raise ValueError(f"the state lacks {', '.join(missing)}: it is not whole.")
    fields = fields_from_plain(state["spec"])
    frames = None
    if state["frames"] is not None:
        lacking = [name for name in ("ids", "fields", "columns") if name not in state["frames"]]
        if lacking:
            raise ValueError(f"the state's frames lack {', '.join(lacking)}: it is not whole.")
        ids = np.asarray(state["frames"]["ids"], np.int64)
        columns = {name: np.asarray(column) for name, column in state["frames"]["columns"].items()}
        frames = HeldFrames(ids, _ArrayFrames(state["frames"]["fields"], fields, len(ids)), columns)
        for name, column in columns.items():
            if len(column) != len(ids):
                raise ValueError(f"the state's column {name!r} has {len(column)} rows, expected {len(ids)}.")
    return BufferState(
        kind=state["kind"],
        fields=fields,
        settings=state["settings"],
        values=state["values"],
        arrays={name: np.asarray(array) for name, array in state["arrays"].items()},
        frames=frames,
        parts={name: state_from_dict(part) for name, part in state["parts"].items()},
    )


def dict_to_bytes(state: Mapping[str, Any]) -> bytes:
    """A dict of arrays and plain values as the bytes of an uncompressed `.npz`: no pickle.

    >>> dict_from_bytes(dict_to_bytes({"n": 3, "inside": {"a": np.arange(2)}}))
    {'n': 3, 'inside': {'a': array([0, 1])}}
    """
    arrays: list[Array] = []

    def without_arrays(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {_ARRAY: len(arrays) - 1}
        if isinstance(value, Mapping):
            return {key: without_arrays(each) for key, each in value.items()}
        return value

    text = json.dumps(without_arrays(state)).encode()
    buffer = io.BytesIO()
    named = {f"array_{index}": array for index, array in enumerate(arrays)}
    np.savez(buffer, plain=np.frombuffer(text, np.uint8), **named)
    return buffer.getvalue()


def dict_from_bytes(content: bytes) -> dict[str, Any]:
    """Of `dict_to_bytes`.

    Raises:
      ValueError: it is not that, or damaged.
    """
    if not content.startswith(b"PK"):
        hint = "; buffer.saved_in(folder) wrote it, and reads it" if content.startswith(b"{") else ""
        raise ValueError(f"these bytes are no state of a buffer{hint}.")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
        plain = json.loads(arrays.pop("plain").tobytes())
        state: dict[str, Any] = _with_arrays(plain, arrays)
    except (
        ValueError,
        KeyError,
        OSError,
        EOFError,
        NotImplementedError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise ValueError(f"these bytes are no state of a buffer, or damaged: {error}") from error
    return state


def _with_arrays(value: Any, arrays: Mapping[str, Array]) -> Any:
    """What `dict_to_bytes` made plain, with the arrays in their places again."""
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[f"array_{value[_ARRAY]}"]
        return {key: _with_arrays(each, arrays) for key, each in value.items()}
    return value


# Stands for an array, in a dict of its own, with its number.
_ARRAY = "<array>"


class _ArrayFrames:
    """Frames in arrays (a `FrameSource`)."""

    def __init__(self, arrays: Mapping[str, Any], fields: Sequence[Field], num: int) -> None:
        self._num = num
        self._leaves = []
        self._part = max(1, _PART_BYTES // max(1, sum(field.num_bytes for field in fields)))
        for name, field in zip(field_names(fields), fields, strict=True):
            if name not in arrays:
                raise ValueError(f"the state's frames lack the field {name!r}.")
            array = np.asarray(arrays[name])
            dtype = saved_dtype(field)
            if array.shape != (num, *field.shape) or array.dtype != dtype:
                raise ValueError(
                    f"field {field.path!r} of the state: expected {[num, *field.shape]} {dtype}, got "
                    f"{list(array.shape)} {array.dtype}."
                )
            self._leaves.append(np.ascontiguousarray(array).reshape(num, field.num_elements).view(np.uint8))

    def check(self) -> None:
        """See `FrameSource`."""

    def deliver(self, put: Put) -> None:
        """See `FrameSource`."""
        for start in range(0, self._num, self._part):
            places = slice(start, min(self._num, start + self._part))
            put(places, [leaf[places] for leaf in self._leaves])


def _read_all(frames: HeldFrames, fields: Sequence[Field]) -> dict[str, Array]:
    live = frames.source
    if not isinstance(live, LiveFrames):
        raise TypeError(f"frames must be those of a buffer, got {live!r}.")
    num = len(frames.ids)
    leaves = [np.empty((num, field.num_bytes), np.uint8) for field in fields]
    part = max(1, _PART_BYTES // max(1, sum(field.num_bytes for field in fields)))
    for start in range(0, num, part):
        places = slice(start, min(num, start + part))
        for leaf, read in zip(leaves, live.read(places), strict=True):
            leaf[places] = read
    return {
        name: leaf.view(saved_dtype(field)).reshape(num, *field.shape)
        for name, field, leaf in zip(field_names(fields), fields, leaves, strict=True)
    }
