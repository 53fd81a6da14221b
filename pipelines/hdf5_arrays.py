"""Reads HDF5 files of episodes: flat arrays as D4RL keeps them, or a group for each episode as robomimic does."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Nest, field_path, leaves_with_paths

from .arrays import OBSERVATIONS, opened_source
from .episode_columns import (
    check_columns,
    common_metadata,
    extend,
    metadata_spec_of,
    nest_of_paths,
    paths_of,
    read_rows,
    rows_equal,
    specs_of_columns,
    step_columns,
    why_not_loaded,
)
from .episode_source import EpisodeSource, RawEpisode
from .minari import MAIN_FILE
from .rlds_steps import ACTION, DISCOUNT, FLAGS, OBSERVATION, REWARD, check_step_spec

_logger = logging.getLogger(__name__)

# Of each dataset. HDF5's 1 MiB would decompress the chunks of a wide array once for every few rows.
_CHUNK_CACHE_BYTES = 16 << 20

_NEXT_OBSERVATION, _TERMINAL, _TIMEOUT = "next_observation", "terminal", "timeout"

_Path = tuple[str, ...]

# What the parts of an episode are called in a group of its own; the first one that is there is taken.
_PARTS: Mapping[str, tuple[str, ...]] = {
    OBSERVATION: ("observations", "obs", "observation"),
    ACTION: ("actions", "action"),
    REWARD: ("rewards", "reward"),
    DISCOUNT: ("discounts", "discount"),
    _NEXT_OBSERVATION: ("next_observations", "next_obs"),
    _TERMINAL: ("terminals", "terminations", "dones"),
    _TIMEOUT: ("timeouts", "truncations"),
}


def hdf5_source(
    path: str | os.PathLike[str], *, name: str | None = None, episode_length: int | None = None
) -> EpisodeSource:
    """The episodes of an HDF5 file; they go through the same rules as those of an RLDS dataset.

    Two kinds are read. Flat arrays (`observations`, `actions`, `terminals`, `timeouts`, ... at
    the top), as `arrays_source` tells; what is below `infos` is step metadata, below `metadata`
    that of each episode. And a group for each episode, at the top or in `data` (robomimic's
    `data/demo_0`), with `obs` or `observations`, `actions`, `rewards`, and as far as they are
    there `next_obs`, `dones`, `truncations`:

    | observations for `N` actions | a terminal episode | a truncated one |
    | --- | --- | --- |
    | `N + 1`, or `N` and `next_obs` | `N` transitions | `N` transitions |
    | `N` | `N` transitions, the last leads to zeros | `N - 1`: nothing tells where the last one led |

    `dones` count as terminal; those before the last row are a fault that `on_bad_episode`
    decides on. Other numeric arrays of a group are step metadata, its attributes episode metadata.

    Rows are read in blocks of 8 MiB in the file's order, an episode at a time with a seed; chunks
    that are compressed are then decompressed for each episode in them.

    Args:
      path: the file.
      name: for reports and messages; by default the file's name without its ending.
      episode_length: of flat arrays, ends an episode after so many rows where no flag has.

    Raises:
      FileNotFoundError: there is no such file.
      ImportError: h5py is missing.
      ValueError: it is the file of a Minari dataset, which `minari_source` reads.
      ValueError: the file is no HDF5 file, or holds neither kind.
      ValueError: `episode_length` is given with a group for each episode.
      ValueError: see `arrays_source`.

    >>> import h5py, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "mine.hdf5")
    >>> with h5py.File(path, "w") as file:
    ...     file["observations"] = np.arange(4.0)
    ...     file["terminals"] = np.array([False, True, False, True])
    >>> [episode.columns["observation"].tolist() for episode in hdf5_source(path, episode_length=10).read(None)]
    [[0.0, 1.0, 0.0], [2.0, 3.0, 0.0]]
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path!r}.")
    if os.path.basename(path) == MAIN_FILE:
        raise ValueError(f"{path!r} is that of a Minari dataset: read it with minari_source.")
    name = pathlib.Path(path).stem if name is None else name
    with _open(path) as file:
        if OBSERVATIONS in file:
            return opened_source(lambda: _open(path), name=name, episode_length=episode_length)
        groups, others = _episode_groups(name, file)
    if episode_length is not None:
        raise ValueError(f"{name}: episode_length is for flat arrays; this file has a group for each episode.")
    return _grouped_source(path, name, groups, others)


def _open(path: str) -> contextlib.AbstractContextManager[Any]:
    try:
        h5py = importlib.import_module("h5py")
    except ImportError as error:
        raise ImportError("reading HDF5 files needs h5py: install replayfeed[arrays].") from error
    try:
        return h5py.File(path, "r", rdcc_nbytes=_CHUNK_CACHE_BYTES)
    except OSError as error:
        raise ValueError(f"{path!r} is no HDF5 file: {error}.") from error


def _episode_groups(name: str, file: Any) -> tuple[list[str], list[str]]:
    """The paths of the groups that hold an episode, in the order of their numbers; and what is beside them."""
    above = "data" if isinstance(file.get("data"), Mapping) else ""
    root = file[above] if above else file
    found = [key for key in root if isinstance(root[key], Mapping) and _part(root[key], OBSERVATION) is not None]
    if not found:
        raise ValueError(
            f"{name}: expected 'observations', 'actions', 'terminals', ... or a group for each episode that holds "
            f"'obs' or 'observations', at the top or in 'data'; got {sorted(root)}."
        )
    return [f"{above}/{key}" if above else key for key in sorted(found, key=_by_number)], sorted(set(root) - set(found))


def _by_number(key: str) -> tuple[str | int, ...]:
    """Sorts `demo_10` behind `demo_9`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", key))


def _part(group: Any, part: str) -> str | None:
    return next((key for key in _PARTS[part] if key in group), None)


def _grouped_source(path: str, name: str, groups: list[str], others: list[str]) -> EpisodeSource:
    with _open(path) as file:
        first = file[groups[0]]
        extras, not_loaded = _extras(first)
        step_spec = specs_of_columns(name, _read_group(f"{name}, episode 0", first, extras))
        own, notes = common_metadata([dict(file[group].attrs) for group in groups])
        if others:
            notes += (f"groups without observations are left out: {', '.join(others)}",)
        if _part(first, _TERMINAL) is None:
            notes += (f"there are no {', '.join(_PARTS[_TERMINAL])}: no episode counts as terminal",)
        if _lacks_final(first):
            notes += (
                "the groups hold an observation for each action and no next_obs: zeros follow a terminal action, and "
                "the last transition of a truncated episode cannot be recovered",
            )
    check_step_spec(name, step_spec)

    def read(seed: int | None) -> Iterator[RawEpisode]:
        order = np.arange(len(groups)) if seed is None else np.random.default_rng(seed).permutation(len(groups))
        with _open(path) as file:
            for index in order.tolist():
                where = f"{name}, episode {index}"
                columns = _read_group(where, file[groups[index]], extras)
                check_columns(where, columns, step_spec)
                yield RawEpisode(str(index), columns, metadata=own[index], id=f"{name}/{groups[index]}", place=index)

    return EpisodeSource(
        name,
        step_spec,
        read,
        num_episodes=len(groups),
        not_loaded=not_loaded,
        metadata_spec=metadata_spec_of(own[0]),
        notes=notes,
    )


def _extras(group: Any) -> tuple[list[_Path], tuple[str, ...]]:
    """Paths of the numeric arrays of a group that are no part of `_PARTS`; and what else there is."""
    parts = {_part(group, part) for part in _PARTS}
    loaded, not_loaded = [], []
    for path, leaf in paths_of({key: group[key] for key in group if key not in parts}):
        why = why_not_loaded(leaf) if leaf.shape else "one value and no rows"
        if path[0] in (*_PARTS, *FLAGS):
            why = "RLDS's name of a field that has another name here"
        if why:
            not_loaded.append(f"{field_path(path)} ({why})")
        else:
            loaded.append(path)
    return loaded, tuple(sorted(not_loaded))


def _read_group(where: str, group: Any, extras: list[_Path]) -> dict[str, Nest]:
    """The steps of one episode. Lengths that do not fit are kept, so that the rules of loading find them."""
    parts = {part: _read_nest(group[key]) for part in _PARTS if (key := _part(group, part)) is not None}
    observation = parts.pop(OBSERVATION)
    following = parts.pop(_NEXT_OBSERVATION, None)
    num_rows = len(tf.nest.flatten(parts[ACTION] if ACTION in parts else observation)[0])
    none = np.zeros([num_rows], bool)
    terminals = parts.pop(_TERMINAL, none).reshape(-1) != 0
    ends = parts.pop(_TIMEOUT, none).reshape(-1) != 0
    if len(ends) == len(terminals):
        ends = ends | terminals
    # The group tells where the episode ends.
    ends[-1:] = True
    is_terminal = bool(terminals[-1:].any())
    num_observations = {len(leaf) for leaf in tf.nest.flatten(observation)}
    if following is not None and num_observations == {num_rows}:
        observation = _with_final(where, observation, following)
    elif is_terminal and num_observations == {num_rows}:
        observation = tf.nest.map_structure(extend, observation)
    has_final = following is not None or is_terminal or num_observations == {num_rows + 1}
    columns = step_columns(observation, parts, terminals, ends, num_rows=num_rows, has_final=has_final)
    more = {path: _read_nest(_at(where, group, path)) for path in extras}
    # Some are kept for the final observation too.
    fitted = {path: extend(leaf) if has_final and len(leaf) == num_rows else leaf for path, leaf in more.items()}
    return {**columns, **nest_of_paths(fitted)}


def _lacks_final(group: Any) -> bool:
    action = _part(group, ACTION)
    if _part(group, _NEXT_OBSERVATION) is not None or action is None:
        return False
    (_, of_observation), *_ = paths_of({OBSERVATION: group[_part(group, OBSERVATION)]})
    (_, of_action), *_ = paths_of({ACTION: group[action]})
    return len(of_observation) == len(of_action)


def _with_final(where: str, observation: Nest, following: Nest) -> Nest:
    """The observations with the last of those that followed; as they are where the two do not fit."""
    fields, after = ({field_path(path) for path, _ in leaves_with_paths(nest, ())} for nest in (observation, following))
    if fields != after:
        raise ValueError(f"{where}: the next observations hold {sorted(after)}, the observations {sorted(fields)}.")
    pairs = list(zip(tf.nest.flatten(observation), tf.nest.flatten(following), strict=True))
    if any(leaf.shape != after.shape for leaf, after in pairs):
        return observation
    unequal = ~np.all([rows_equal(leaf[1:], after[:-1].astype(leaf.dtype)) for leaf, after in pairs], axis=0)
    if unequal.any():
        _logger.warning(
            "%s: %d next observations are not the observations of the following row (the first at row %d); "
            "but for the last one the observations are taken",
            where,
            unequal.sum(),
            np.flatnonzero(unequal)[0],
        )
    return tf.nest.map_structure(lambda leaf, after: extend(leaf, after[-1:]), observation, following)


def _read_nest(node: Any) -> Nest:
    if isinstance(node, Mapping):
        return {key: _read_nest(node[key]) for key in node}
    return node[:] if why_not_loaded(node) else read_rows(node, 0, len(node))


def _at(where: str, group: Any, path: _Path) -> Any:
    place = "/".join(path)
    if place not in group:
        raise ValueError(f"{where}: there is no {place!r}, which the first episode has.")
    return group[place]
