"""What is kept beside episodes, as text that holds nothing executable, and back, with the same types."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# Kinds of NumPy dtypes whose bytes are their values: bool, integers, floats, complex, times, bytes and text.
_RAW_KINDS = "biufcmMSU"


def metadata_to_text(metadata: Mapping[int, Mapping[str, Any]]) -> str:
    """Metadata by the id of its episode as JSON.

    Numbers, text, bytes, None, lists, tuples, mappings (which come back as dicts), NumPy arrays and eager tensors.

    Raises:
      ValueError: a value is something else; the message names the episode and where in its metadata.

    >>> metadata_from_text(metadata_to_text({7: {"seed": 3, "goal": (0.5, b"left")}}))
    {7: {'seed': 3, 'goal': (0.5, b'left')}}
    """
    episodes = [[episode, _encode(dict(values), f"episode {episode}")] for episode, values in metadata.items()]
    return json.dumps(episodes, allow_nan=False, separators=(",", ":"))


def metadata_from_text(text: str) -> dict[int, dict[str, Any]]:
    """What `metadata_to_text` was given.

    Raises:
      ValueError: the text is no such text.
    """
    try:
        episodes = {episode: _decode(values) for episode, values in json.loads(text)}
        if not all(type(episode) is int and isinstance(values, dict) for episode, values in episodes.items()):
            raise TypeError("an episode's metadata is no mapping")
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"the metadata of episodes cannot be read: {error}.") from error
    return episodes


def _encode(value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        return {"$scalar": _encode_array(np.asarray(value), where)}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, bytes):
        return {"$bytes": _encode_bytes(value)}
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            parts = [_encode(part, f"{where}[{i}]") for i, part in enumerate(value.reshape(-1).tolist())]
            return {"$objects": [list(value.shape), parts]}
        return {"$array": _encode_array(value, where)}
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        return {"$tensor": [value.dtype.name, _encode(value.numpy(), where)]}
    if isinstance(value, list):
        return [_encode(part, f"{where}[{i}]") for i, part in enumerate(value)]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return {"$tuple": [_encode(part, f"{where}[{i}]") for i, part in enumerate(value)]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(part, f"{where}[{key!r}]") for key, part in value.items()}
        parts = [[_encode(key, f"{where}, a key"), _encode(part, f"{where}[{key!r}]")] for key, part in value.items()]
        return {"$dict": parts}
    raise ValueError(
        f"the metadata of {where} is a {type(value).__name__}, which cannot be saved; keep numbers, text, bytes, "
        "lists, tuples, dicts or NumPy arrays beside episodes."
    )


def _encode_array(array: np.ndarray[Any, Any], where: str) -> list[Any]:
    if array.dtype.kind not in _RAW_KINDS:
        raise ValueError(
            f"the metadata of {where} is an array of {array.dtype}, which cannot be saved; keep an array of numbers or "
            "text beside episodes."
        )
    return [array.dtype.str, list(array.shape), _encode_bytes(array.tobytes())]


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(part) for part in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: _decode(part) for key, part in value.items()}
    content = value[tag]
    if tag == "$scalar":
        return _decode_array(content)[()]
    if tag == "$array":
        return _decode_array(content)
    if tag == "$float":
        return float(content)
    if tag == "$bytes":
        return base64.b64decode(content, validate=True)
    if tag == "$tuple":
        return tuple(_decode(part) for part in content)
    if tag == "$dict":
        return {_decode(key): _decode(part) for key, part in content}
    if tag == "$objects":
        array = np.empty(math.prod(content[0]), object)
        array[:] = [_decode(part) for part in content[1]]
        return array.reshape(content[0])
    if tag == "$tensor":
        return tf.constant(_decode(content[1]), tf.as_dtype(content[0]))
    raise ValueError(f"{tag!r} is unknown")


def _decode_array(content: list[Any]) -> np.ndarray[Any, Any]:
    dtype, shape, raw = content
    if np.dtype(dtype).kind not in _RAW_KINDS:
        raise ValueError(f"dtype {dtype!r} is unknown")
    return np.ndarray(shape, dtype, base64.b64decode(raw, validate=True)).copy()
