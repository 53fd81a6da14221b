"""A `data_spec` as plain values that JSON and YAML can hold, and back.

| nest | plain value |
| --- | --- |
| `tf.TensorSpec([84, 84], tf.uint8)` | `"uint8[84, 84]"`; a scalar is `"float32[]"` |
| one with a name | `{"$spec": "float32[2]", "name": "action"}` |
| a `BoundedTensorSpec` | the same, with `minimum` and `maximum`: a number or nested lists |
| dict | a mapping, in its order |
| tuple | a list |
| list | `{"$list": [...]}` |
| `OrderedDict` | `{"$OrderedDict": {...}}` |
| namedtuple | `{"$Trajectory": {...}}`: its name and its fields |

Of namedtuples those of `_NAMED` are known: our own, and TF-Agents' `Trajectory`, `TimeStep` and
`PolicyStep`. TF-Agents is loaded only when one of these, or a `BoundedTensorSpec`, is read. Everything else is
refused, with the reason.
"""

from __future__ import annotations

import collections
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .agent_frames import AgentFrame, JointFrame
from .fields import KINDS
from .nests import Nest, field_path
from .spec import Transition

_LEAF = re.compile(r"([a-z_0-9]+)(?:\[\s*((?:\d+\s*,\s*)*\d+)?\s*\])?")
_TAG = "$"
_SPEC, _LIST, _ORDERED = "$spec", "$list", "$OrderedDict"
# Where each known namedtuple lives: ours, or the module of TF-Agents that is loaded for it.
_OUR_OWN: dict[str, type] = {"AgentFrame": AgentFrame, "JointFrame": JointFrame, "Transition": Transition}
_NAMED = {
    **dict.fromkeys(_OUR_OWN),
    "Trajectory": "tf_agents.trajectories.trajectory",
    "TimeStep": "tf_agents.trajectories.time_step",
    "PolicyStep": "tf_agents.trajectories.policy_step",
}


def spec_to_plain(data_spec: Nest) -> Any:
    """The plain value of a nest of `tf.TensorSpec`.

    Raises:
      TypeError: something in it is no spec and no container that can be written.
      ValueError: a dict has a key that is no str, or that begins with `$`.

    >>> spec_to_plain({"obs": tf.TensorSpec([84, 84], tf.uint8), "pair": (tf.TensorSpec([], tf.float32),)})
    {'obs': 'uint8[84, 84]', 'pair': ['float32[]']}
    """
    return _to_plain(data_spec, ())


def spec_from_plain(plain: Any) -> Nest:
    """The nest that `spec_to_plain` has written, or that somebody wrote by hand.

    Raises:
      ImportError: it has a namedtuple of TF-Agents, which is not installed.
      TypeError: something in it is neither text, list nor mapping.
      ValueError: a text is no dtype with a shape, or a name behind `$` is not known.

    >>> spec_from_plain({"reward": "float32", "pair": ["int32[2]", "bool[]"]})["pair"][0]
    TensorSpec(shape=(2,), dtype=tf.int32, name=None)
    """
    return _from_plain(plain, ())


def _where(path: tuple[str, ...]) -> str:
    return f"data_spec field {field_path(path)!r}" if path else "data_spec"


def _to_plain(nest: Nest, path: tuple[str, ...]) -> Any:
    if isinstance(nest, tf.TensorSpec):
        return _leaf_to_plain(nest, path)
    if type(nest) is dict:
        return _mapping_to_plain(nest, path)
    if type(nest) is collections.OrderedDict:
        return {_ORDERED: _mapping_to_plain(nest, path)}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        name = type(nest).__name__
        if not _is_known(type(nest)):
            raise TypeError(
                f"{_where(path)}: a file cannot tell what the namedtuple {type(nest).__module__}.{name} is; known are "
                f"{', '.join(_NAMED)}. Use one of them, or a dict."
            )
        children = zip(nest._fields, nest, strict=True)
        return {f"{_TAG}{name}": {key: _to_plain(value, (*path, key)) for key, value in children}}
    if type(nest) is tuple:
        return [_to_plain(value, (*path, str(index))) for index, value in enumerate(nest)]
    if type(nest) is list:
        return {_LIST: [_to_plain(value, (*path, str(index))) for index, value in enumerate(nest)]}
    raise TypeError(
        f"{_where(path)}: a {type(nest).__name__} cannot be written to a file; use dicts, tuples, lists and "
        f"namedtuples ({', '.join(_NAMED)}) of tf.TensorSpec."
    )


def _mapping_to_plain(nest: Mapping[Any, Nest], path: tuple[str, ...]) -> dict[str, Any]:
    for key in nest:
        if not isinstance(key, str) or key.startswith(_TAG):
            raise ValueError(
                f"{_where(path)}: key {key!r} cannot be written to a file: keys must be str that do not begin with "
                f"{_TAG!r}."
            )
    return {key: _to_plain(value, (*path, key)) for key, value in nest.items()}


def _leaf_to_plain(spec: tf.TensorSpec, path: tuple[str, ...]) -> Any:
    if not spec.shape.is_fully_defined():
        raise ValueError(f"{_where(path)}: shape {spec.shape} is not fully known; give every dimension.")
    text = f"{spec.dtype.name}[{', '.join(str(size) for size in spec.shape)}]"
    more: dict[str, Any] = {}
    if spec.name is not None:
        more["name"] = spec.name
    if hasattr(spec, "minimum"):
        more["minimum"] = np.asarray(spec.minimum).tolist()
        more["maximum"] = np.asarray(spec.maximum).tolist()
    elif type(spec) is not tf.TensorSpec:
        raise TypeError(f"{_where(path)}: a {type(spec).__name__} cannot be written to a file; use a tf.TensorSpec.")
    return {_SPEC: text, **more} if more else text


def _from_plain(plain: Any, path: tuple[str, ...]) -> Nest:
    if isinstance(plain, str):
        return _leaf_from_text(plain, path)
    if isinstance(plain, list | tuple):
        return tuple(_items_from_plain(plain, path))
    if not isinstance(plain, Mapping):
        raise TypeError(f"{_where(path)} must be text as 'float32[2]', a list or a mapping of them, got {plain!r}.")
    tags = [key for key in plain if isinstance(key, str) and key.startswith(_TAG)]
    if _SPEC in tags:
        return _leaf_from_mapping(plain, path)
    if not tags:
        return _mapping_from_plain(plain, path)
    if len(plain) != 1:
        raise ValueError(f"{_where(path)}: {tags[0]!r} must be the only key beside it, got {list(plain)!r}.")
    (tag,) = tags
    return _tagged(tag, plain[tag], path)


def _tagged(tag: str, inside: Any, path: tuple[str, ...]) -> Nest:
    name = tag.removeprefix(_TAG)
    if tag == _LIST:
        if not isinstance(inside, list | tuple):
            raise TypeError(f"{_where(path)}: {_LIST!r} must hold a list, got {inside!r}.")
        return _items_from_plain(inside, path)
    if tag != _ORDERED and name not in _NAMED:
        known = ", ".join([_SPEC, _LIST, _ORDERED, *(f"{_TAG}{known}" for known in _NAMED)])
        raise ValueError(f"{_where(path)}: {tag!r} is not known; known are {known}.")
    if not isinstance(inside, Mapping):
        raise TypeError(f"{_where(path)}: {tag!r} must hold a mapping, got {inside!r}.")
    children = _mapping_from_plain(inside, path)
    if tag == _ORDERED:
        return collections.OrderedDict(children)
    make = _named_class(name, path)
    names, optional = make._fields, make._field_defaults
    unknown = [key for key in children if key not in names]
    missing = [key for key in names if key not in children and key not in optional]
    if unknown or missing:
        raise ValueError(
            f"{_where(path)}: {name} has the fields {', '.join(names)}; unknown {unknown}, missing {missing}."
        )
    return make(**children)


def _items_from_plain(plain: Sequence[Any], path: tuple[str, ...]) -> list[Nest]:
    return [_from_plain(value, (*path, str(index))) for index, value in enumerate(plain)]


def _mapping_from_plain(plain: Mapping[Any, Any], path: tuple[str, ...]) -> dict[str, Nest]:
    for key in plain:
        if not isinstance(key, str):
            raise TypeError(f"{_where(path)}: key {key!r} must be text; put it in quotes.")
    return {key: _from_plain(value, (*path, key)) for key, value in plain.items()}


def _leaf_from_text(text: str, path: tuple[str, ...]) -> tf.TensorSpec:
    match = _LEAF.fullmatch(text.strip())
    dtype = None
    if match is not None:
        dtype = next((known for known in KINDS if known.name == match[1]), None)
    if match is None or dtype is None:
        raise ValueError(
            f"{_where(path)}: {text!r} is no dtype with a shape, as 'float32[]' or 'uint8[84, 84]'; dtypes are "
            f"{', '.join(known.name for known in KINDS)}."
        )
    return tf.TensorSpec([int(size) for size in match[2].split(",")] if match[2] else [], dtype)


def _leaf_from_mapping(plain: Mapping[Any, Any], path: tuple[str, ...]) -> tf.TensorSpec:
    allowed = (_SPEC, "name", "minimum", "maximum")
    unknown = [key for key in plain if key not in allowed]
    if unknown:
        raise ValueError(f"{_where(path)}: unknown {unknown} beside {_SPEC!r}; allowed are {', '.join(allowed[1:])}.")
    if ("minimum" in plain) != ("maximum" in plain):
        raise ValueError(f"{_where(path)}: minimum and maximum go together.")
    if not isinstance(plain[_SPEC], str):
        raise TypeError(f"{_where(path)}: {_SPEC!r} must hold text as 'float32[2]', got {plain[_SPEC]!r}.")
    spec = _leaf_from_text(plain[_SPEC], path)
    name = plain.get("name")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{_where(path)}: name must be text, got {name!r}.")
    if "minimum" not in plain:
        return tf.TensorSpec(spec.shape, spec.dtype, name)
    # TensorFlow itself has no public name for it.
    bounded: Callable[..., tf.TensorSpec] = _from_tf_agents("tf_agents.specs.tensor_spec", "BoundedTensorSpec", path)
    try:
        return bounded(spec.shape, spec.dtype, plain["minimum"], plain["maximum"], name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_where(path)}: minimum or maximum does not fit {plain[_SPEC]!r}: {error}.") from error


def _is_known(kind: type) -> bool:
    name = kind.__name__
    if name not in _NAMED:
        return False
    module = _NAMED[name]
    return kind is _OUR_OWN[name] if module is None else kind.__module__ == module


def _named_class(name: str, path: tuple[str, ...]) -> Any:
    module = _NAMED[name]
    return _OUR_OWN[name] if module is None else _from_tf_agents(module, name, path)


def _from_tf_agents(module: str, name: str, path: tuple[str, ...]) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ImportError(
            f"{_where(path)}: {name} is TF-Agents', which cannot be imported ({error}); install 'replayfeed[agents]'."
        ) from error
