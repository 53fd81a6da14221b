"""Several sources of episodes as one, each drawn from by its weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Nest, field_path, leaves_with_paths

from .episode_source import EpisodeSource, RawEpisode
from .rlds_steps import DISCOUNT, IS_FIRST, IS_LAST, num_steps_of

_OPTIONAL = (DISCOUNT, IS_FIRST, IS_LAST)


def mixture_source(sources: Sequence[EpisodeSource], weights: Sequence[float]) -> EpisodeSource:
    """One source that gives every episode of all of them, once in a pass.

    Each next episode is of a source that is drawn with odds as the weights, among those that
    have episodes left. An episode's `name` and `id` tell the source, `'cartpole: 3'`; of sources
    that have the same name the second is `'cartpole (2)'`. Its `place` counts the sources' first
    episodes, then their second ones, so that no two have the same.

    Args:
      sources: whose steps have the same fields, dtypes and shapes. A discount or a flag that only some have is 1 in the
        others, or what the nesting tells.
      weights: one for each, greater than 0; they need not sum to 1.

    Raises:
      ValueError: there is no source, or not one weight for each that is finite and greater than 0.
      ValueError: steps differ; the message names the fields.

    >>> def source(name, *episodes):
    ...     spec = {"observation": tf.TensorSpec([], tf.int64)}
    ...     return EpisodeSource(name, spec, lambda seed: (RawEpisode(str(i), {"observation": np.array(e)})
    ...                                                    for i, e in enumerate(episodes)), len(episodes))
    >>> mixed = mixture_source([source("a", [1], [2]), source("b", [3])], [3, 1])
    >>> sorted(episode.name for episode in mixed.read(None))
    ['a: 0', 'a: 1', 'b: 0']
    """
    if not sources or len(sources) != len(weights):
        raise ValueError(f"expected a weight for each source, got {len(sources)} sources and {len(weights)} weights.")
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"weights must be finite and greater than 0, got {list(weights)}.")
    sources = _with_all_optional(sources)
    first, *others = sources
    for other in others:
        differences = "; ".join(_differences(first.step_spec, other.step_spec))
        if differences:
            raise ValueError(
                f"the steps of {first.name} and {other.name} differ: {differences}. fields= drops or casts a field in "
                "all of them; load_rlds takes each alone with rules of its own, and then their Episodes together."
            )
    common = {
        name: spec
        for name, spec in first.metadata_spec.items()
        if all(name in other.metadata_spec and other.metadata_spec[name] == spec for other in others)
    }
    names = _distinct([source.name for source in sources])
    sizes = [source.num_episodes for source in sources]
    known = [size for size in sizes if size is not None]
    num_episodes = sum(known) if len(known) == len(sizes) else None

    def read(seed: int | None) -> Iterator[RawEpisode]:
        rng = np.random.default_rng(0 if seed is None else seed)
        readings = [source.read(None if seed is None else seed + place) for place, source in enumerate(sources)]
        alive = list(range(len(sources)))
        while alive:
            odds = np.array([weights[place] for place in alive], np.float64)
            place = alive[int(rng.choice(len(alive), p=odds / odds.sum()))]
            raw = next(readings[place], None)
            if raw is None:
                alive.remove(place)
                continue
            yield raw._replace(
                name=f"{names[place]}: {raw.name}",
                id=f"{names[place]}: {raw.id or raw.name}",
                place=-1 if raw.place < 0 else raw.place * len(sources) + place,
                metadata={name: raw.metadata[name] for name in common},
            )

    return EpisodeSource(
        name=" + ".join(source.name for source in sources),
        step_spec=first.step_spec,
        read=read,
        num_episodes=num_episodes,
        not_loaded=tuple(sorted({name for source in sources for name in source.not_loaded})),
        metadata_spec=common,
        is_d4rl=any(source.is_d4rl for source in sources),
        notes=tuple(f"{name}: {note}" for name, source in zip(names, sources, strict=True) for note in source.notes),
    )


def _with_all_optional(sources: Sequence[EpisodeSource]) -> list[EpisodeSource]:
    """The sources, each with those of the fields that may be missing in RLDS which another one has."""
    found: dict[str, tf.TensorSpec] = {}
    for source in sources:
        found.update((name, source.step_spec[name]) for name in _OPTIONAL if name in source.step_spec)
    return [_with_fields(source, {name: spec for name, spec in found.items() if name not in source.step_spec})
            for source in sources]  # fmt: skip


def _with_fields(source: EpisodeSource, missing: Mapping[str, tf.TensorSpec]) -> EpisodeSource:
    if not missing:
        return source

    def read(seed: int | None) -> Iterator[RawEpisode]:
        for raw in source.read(seed):
            num_steps = num_steps_of(raw.columns)
            columns = {
                name: np.zeros([num_steps, *spec.shape], spec.dtype.as_numpy_dtype) for name, spec in missing.items()
            }
            for name, rows in ((DISCOUNT, slice(None)), (IS_FIRST, slice(0, 1)), (IS_LAST, slice(-1, None))):
                if name in columns:
                    columns[name][rows] = 1
            yield raw._replace(columns={**raw.columns, **columns})

    return dataclasses.replace(source, step_spec={**source.step_spec, **missing}, read=read)


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that came before."""
    earlier = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name} ({times + 1})" if times else name for name, times in zip(names, earlier, strict=True)]


def _differences(expected: Mapping[str, Nest], found: Mapping[str, Nest]) -> Iterator[str]:
    wanted = {field_path(path): spec for path, spec in leaves_with_paths(expected, ())}
    given = {field_path(path): spec for path, spec in leaves_with_paths(found, ())}
    for place in sorted(wanted.keys() | given.keys()):
        if wanted.get(place) != given.get(place):
            yield f"{place!r} is {wanted.get(place, 'not there')} and {given.get(place, 'not there')}"
