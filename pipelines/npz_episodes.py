"""Reads NPZ files: one for each episode, as Dreamer's replay keeps them, or one of flat arrays."""

from __future__ import annotations

import os
import pathlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, field_path

from .arrays import OBSERVATIONS, TERMINALS, TIMEOUTS, arrays_source
from .episode_columns import (
    check_columns,
    metadata_spec_of,
    metadata_value,
    nest_of_paths,
    paths_of,
    read_rows,
    specs_of_columns,
    why_not_loaded,
)
from .episode_source import EpisodeSource, RawEpisode
from .rlds_steps import ACTION, DISCOUNT, FLAGS, IS_FIRST, IS_LAST, IS_TERMINAL, OBSERVATION, REWARD, check_step_spec

_SHIFTED = (
    "the first step holds an action and a reward of zeros, as where each step holds those that led to it (Dreamer); "
    "alignment='ars' moves them"
)

_SUFFIX = ".npz"

_FIELDS = {
    "observations": OBSERVATION,
    OBSERVATION: OBSERVATION,
    "actions": ACTION,
    ACTION: ACTION,
    "rewards": REWARD,
    REWARD: REWARD,
    "discounts": DISCOUNT,
    DISCOUNT: DISCOUNT,
}

_Path = tuple[str, ...]


def npz_source(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    name: str | None = None,
    episode_length: int | None = None,
) -> EpisodeSource:
    """The episodes of NPZ files; they go through the same rules as those of an RLDS dataset.

    A single file with `observations` and `terminals` or `timeouts` holds flat arrays, as
    `arrays_source` tells; it is read into memory as a whole, once. Otherwise each file is an
    episode of `N + 1` steps, arrays `[N + 1, ...]`, and is read when its turn comes:

    - `observation`; where there is none, all that is not named here, as a dict (Dreamer's `image`, ...).
    - `action`, `reward`, `discount` (or `actions`, ...), `is_first`, `is_last`, `is_terminal`.
      Without `is_first` and `is_last` the file's ends are the episode's. Without `is_terminal`
      those steps are terminal whose discount is 0, as in files of Dreamer's first version.
    - Beside `observation` other numeric arrays are step metadata; single values are episode metadata.

    Step `i` is taken to hold the action taken in it and the reward that followed, as in RLDS.
    Dreamer's files do not: step `i` holds the action and the reward that *led to* it. Nothing in a
    file tells which it is, so say so: `load_rlds(npz_source(...), alignment="ars")`. The source's
    `notes` say when the first step looks like Dreamer's.

    Args:
      paths: a file, a folder (all `.npz` in it, by name), or files in the order of episodes.
      name: for reports and messages; by default that of the file or folder.
      episode_length: of flat arrays, ends an episode after so many rows where no flag has.

    Raises:
      FileNotFoundError: there is no such file, or none in the folder.
      ValueError: a file is no NPZ file, or holds Python objects, which are never loaded.
      ValueError: there is no `is_terminal` and no discount, or a field has no numbers of fixed width.
      ValueError: `episode_length` is given with a file for each episode.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "0.npz")
    >>> np.savez(path, image=np.arange(3), action=np.array([5, 6, 0]), discount=np.array([1.0, 1.0, 0.0]))
    >>> (episode,) = npz_source(path).read(None)
    >>> episode.columns["observation"]["image"].tolist(), episode.columns["is_terminal"].tolist()
    ([0, 1, 2], [False, False, True])
    """
    files, found_name = _files(paths)
    name = found_name if name is None else name
    first = _read_file(files[0])
    if not first:
        raise ValueError(f"{files[0]}: holds no arrays.")
    if len(files) == 1 and _is_flat(first, episode_length):
        return arrays_source(nest_of_paths(first), name=name, episode_length=episode_length)
    if episode_length is not None:
        raise ValueError(f"{name}: episode_length is for flat arrays; here each file is an episode.")
    loaded, not_loaded = _loaded(first)
    columns, own = _columns(files[0], first, loaded)
    step_spec = specs_of_columns(name, columns)
    if IS_TERMINAL not in step_spec:
        raise ValueError(
            f"{name}: there is no 'is_terminal' and no discount, so terminal and truncated episodes cannot be told "
            f"apart; found {sorted(map(field_path, first))}. Files of many episodes in a row have 'terminals' and "
            "'timeouts' (not 'dones', which does not tell them apart)."
        )
    check_step_spec(name, step_spec)
    first_paths = set(first)

    def read(seed: int | None) -> Iterator[RawEpisode]:
        order = np.arange(len(files)) if seed is None else np.random.default_rng(seed).permutation(len(files))
        for index in order.tolist():
            arrays = _read_file(files[index])
            if set(arrays) != first_paths:
                differing = sorted(field_path(path) for path in set(arrays) ^ first_paths)
                raise ValueError(f"{files[index]}: it and the first file do not both hold {differing}.")
            columns, metadata = _columns(files[index], arrays, loaded)
            check_columns(files[index], columns, step_spec)
            yield RawEpisode(str(index), columns, metadata=metadata, id=os.path.basename(files[index]), place=index)

    return EpisodeSource(
        name,
        step_spec,
        read,
        num_episodes=len(files),
        not_loaded=not_loaded,
        metadata_spec=metadata_spec_of(own),
        notes=(_SHIFTED,) if _looks_shifted(columns) else (),
    )


def _files(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[list[str], str]:
    if not isinstance(paths, str | os.PathLike):
        files = [os.fspath(path) for path in paths]
        name = "npz"
    elif os.path.isdir(paths):
        files = sorted(os.path.join(paths, file) for file in os.listdir(paths) if file.endswith(_SUFFIX))
        name = pathlib.Path(paths).name
    else:
        files = [os.fspath(paths)]
        name = pathlib.Path(paths).stem
    absent = [file for file in files if not os.path.isfile(file)]
    if absent or not files:
        raise FileNotFoundError(
            f"there is no file {absent[0]!r}." if absent else f"there is no {_SUFFIX} in {paths!r}."
        )
    return files, name


def _read_file(file: str) -> dict[_Path, Array]:
    """All arrays of a file by path."""
    try:
        arrays = np.load(file, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise ValueError(f"it holds one array, {arrays.dtype} {arrays.shape}")
        with arrays:
            return dict(paths_of(arrays))
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file}: not an NPZ file of arrays of numbers: {error}.") from error


def _is_flat(arrays: Mapping[_Path, Array], episode_length: int | None) -> bool:
    keys = {path[0] for path in arrays}
    return OBSERVATIONS in keys and (bool(keys & {TERMINALS, TIMEOUTS}) or episode_length is not None)


def _loaded(first: Mapping[_Path, Array]) -> tuple[dict[_Path, _Path], tuple[str, ...]]:
    """Where each array of a file goes in a step; and what stays behind."""
    has_observation = any(_FIELDS.get(path[0]) == OBSERVATION for path in first)
    loaded: dict[_Path, _Path] = {}
    not_loaded = []
    for path, leaf in first.items():
        field = _FIELDS.get(path[0])
        if field is None and path[0] not in FLAGS and (not leaf.shape or why_not_loaded(leaf)):
            # A single value is the episode's own.
            if leaf.shape:
                not_loaded.append(f"{field_path(path)} ({why_not_loaded(leaf)})")
        elif field is not None:
            loaded[path] = (field, *path[1:])
        elif has_observation or path[0] in FLAGS:
            loaded[path] = path
        else:
            loaded[path] = (OBSERVATION, *path)
    return loaded, tuple(sorted(not_loaded))


def _columns(
    where: str, arrays: Mapping[_Path, Array], loaded: Mapping[_Path, _Path]
) -> tuple[dict[str, Nest], dict[str, Nest]]:
    """The steps of an episode, and its own fields."""
    scalars = sorted(field_path(path) for path in loaded if not arrays[path].shape)
    if scalars:
        raise ValueError(f"{where}: {scalars}: expected the steps of an episode, [N + 1, ...], got one value.")
    leaves = {place: read_rows(arrays[path], 0, len(arrays[path])) for path, place in loaded.items()}
    columns = nest_of_paths(leaves)
    num_steps = len(tf.nest.flatten(columns)[0])
    index = np.arange(num_steps)
    columns.setdefault(IS_FIRST, index == 0)
    columns.setdefault(IS_LAST, index == num_steps - 1)
    if IS_TERMINAL not in columns and isinstance(columns.get(DISCOUNT), np.ndarray):
        columns[IS_TERMINAL] = columns[DISCOUNT].reshape(len(columns[DISCOUNT]), -1).any(axis=1) == 0
    own = {path: metadata_value(leaf) for path, leaf in arrays.items() if not leaf.shape and path not in loaded}
    return columns, nest_of_paths(own)


def _looks_shifted(columns: Mapping[str, Any]) -> bool:
    """Whether the first step's action and reward are zeros, and the last step's action is not."""
    if ACTION not in columns or REWARD not in columns or not len(columns[REWARD]):
        return False
    actions = tf.nest.flatten(columns[ACTION])
    first_is_zero = not any(leaf[:1].any() for leaf in actions) and not columns[REWARD][:1].any()
    return first_is_zero and any(leaf[-1:].any() for leaf in actions)
