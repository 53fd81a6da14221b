"""An episode's own fields that the caller of a writer gives, beside those that the source has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, field_path

from .episode_source import EpisodeSource, RawEpisode

EpisodeMetadata = Mapping[str, Any] | Callable[[RawEpisode], Mapping[str, Any]]
"""Fields that are the same in each episode, or a function that gives those of one."""


def add_metadata(
    source: EpisodeSource, given: EpisodeMetadata | None
) -> tuple[Mapping[str, Nest], Iterator[RawEpisode]]:
    """Starts reading, with these fields added to each episode's own; of two with one name the given one counts.

    Strings, numbers, arrays, and dicts of them. A Python float is a float64. A list, and an array of
    no values, may have another length in each episode; everything else keeps the first one's shape.

    Returns:
      The specs of the episodes' own fields, and the episodes.

    Raises:
      TypeError: a value is of none of these kinds, or a function gives no mapping.
      ValueError: the function fails.

    >>> source = EpisodeSource("mine", {}, lambda seed: iter([RawEpisode("0", {}), RawEpisode("1", {})]))
    >>> spec, episodes = add_metadata(source, lambda episode: {"number": int(episode.name)})
    >>> spec["number"], [int(episode.metadata["number"]) for episode in episodes]
    (TensorSpec(shape=(), dtype=tf.int64, name=None), [0, 1])
    """
    episodes = source.read(None)
    if given is None:
        return source.metadata_spec, episodes
    if not callable(given):
        if not isinstance(given, Mapping):
            raise TypeError(f"episode_metadata must be a mapping or a function, got {type(given).__name__}.")
        constants = given
        spec, values = _specs_and_values(constants, ())
        added = (episode._replace(metadata={**episode.metadata, **values}) for episode in episodes)
        return {**source.metadata_spec, **spec}, added
    first = list(itertools.islice(episodes, 1))
    spec = _specs_and_values(_call(given, first[0]), ())[0] if first else {}

    def read() -> Iterator[RawEpisode]:
        for episode in itertools.chain(first, episodes):
            first.clear()
            _, values = _specs_and_values(_call(given, episode), (), spec)
            yield episode._replace(metadata={**episode.metadata, **values})

    return {**source.metadata_spec, **spec}, read()


def _call(function: Callable[[RawEpisode], Mapping[str, Any]], episode: RawEpisode) -> Mapping[str, Any]:
    try:
        fields = function(episode)
    except Exception as error:
        raise ValueError(f"episode {episode.name}: the function episode_metadata failed: {error!r}.") from error
    if not isinstance(fields, Mapping):
        raise TypeError(
            f"episode {episode.name}: episode_metadata must give a mapping of field names to values, got "
            f"{type(fields).__name__}."
        )
    return fields


def _specs_and_values(
    fields: Mapping[str, Any], path: tuple[str, ...], known: Mapping[str, Nest] | None = None
) -> tuple[dict[str, Nest], dict[str, Nest]]:
    """Specs and arrays of these fields; `known` are the specs of the first episode."""
    specs: dict[str, Nest] = {}
    values: dict[str, Nest] = {}
    for key, value in fields.items():
        place = (*path, str(key))
        spec = None if known is None else known.get(key)
        if isinstance(value, Mapping):
            below = spec if isinstance(spec, Mapping) else None
            specs[key], values[key] = _specs_and_values(value, place, below)
            continue
        if isinstance(value, list) and not value:
            if not isinstance(spec, tf.TensorSpec):
                raise TypeError(
                    f"episode_metadata {field_path(place)!r} is an empty list, so its type is unknown; give an array "
                    "of that type, np.array([], object) for strings."
                )
            value = np.zeros([0, *spec.shape[1:]], spec.dtype.as_numpy_dtype)
        array = _to_array(value, place)
        of_any_length = isinstance(value, list) or (array.ndim and not len(array))
        specs[key] = tf.TensorSpec([None, *array.shape[1:]] if of_any_length else array.shape, array.dtype)
        values[key] = array
    return specs, values


def _to_array(value: Any, path: tuple[str, ...]) -> Array:
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    if isinstance(value, bytes | str):
        array = np.empty([], object)
        array[()] = value
        return array
    try:
        # As objects first: NumPy's own strings drop zeros at their end, and numbers turn to text beside text.
        array = np.asarray(value, object) if isinstance(value, list) and _has_text(value) else np.asarray(value)
    except ValueError as error:
        raise TypeError(f"episode_metadata {field_path(path)!r}: {error}.") from error
    if array.dtype.kind in "SU":
        array = array.astype(object)
    kinds = {type(item) for item in array.ravel().tolist()} if array.dtype == object else set()
    if not kinds <= {bytes, str}:
        raise TypeError(
            f"episode_metadata {field_path(path)!r} is a {type(value).__name__} of "
            f"{sorted(kind.__name__ for kind in kinds)}; expected strings, numbers, arrays, or dicts of them."
        )
    return array


def _has_text(value: Any) -> bool:
    return isinstance(value, bytes | str) or (isinstance(value, list) and any(map(_has_text, value)))
