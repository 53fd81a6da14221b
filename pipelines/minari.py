"""Reads Minari datasets (HDF5, Arrow or Parquet) from disk, without the package minari.

Minari keeps `N` actions, rewards, terminations and truncations for `N + 1` observations, so an
episode is one of RLDS without loss: the flags of a transition move to the step it reached, and
the last step's action and reward are zeros that nothing reads. An episode that does not keep
to this (as many observations as actions, say) is found and named by the rules of loading.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, field_path

from .episode_columns import (
    FLAG_SPECS,
    check_columns,
    common_metadata,
    metadata_spec_of,
    nest_of_paths,
    paths_of,
    read_rows,
    specs_of_columns,
    step_columns,
    why_not_loaded,
)
from .episode_source import EpisodeSource, RawEpisode
from .rlds_steps import ACTION, REWARD, check_step_spec

MAIN_FILE = "main_data.hdf5"
"""The one file of a dataset in HDF5, in its folder `data`."""

INFOS = "infos"
"""Step metadata: what the environment told beside each observation."""

_METADATA_FILE = "metadata.json"
_DATASETS_PATH = "MINARI_DATASETS_PATH"
_EXTRA = "replayfeed[arrays]"

_Space = Mapping[str, Any] | None
_Path = tuple[str, ...]


class _Episode(NamedTuple):
    """What a storage holds of `N` transitions: observations and infos `[N + 1, ...]`, the others `[N, ...]`."""

    observations: Nest
    actions: Nest
    rewards: Array
    terminations: Array
    truncations: Array
    infos: Mapping[_Path, Array]


class _Storage(NamedTuple):
    """A dataset's episodes by id, in order, and how each is read."""

    episode_ids: list[int]
    own: Callable[[], list[dict[str, Any]]]
    open: Callable[[], contextlib.AbstractContextManager[Callable[[int], _Episode]]]


def minari_source(path_or_id: str | os.PathLike[str]) -> EpisodeSource:
    """The episodes of a Minari dataset; they go through the same rules as those of an RLDS dataset.

    Step metadata: the numeric `infos` of the first episode. Episode metadata: what Minari keeps
    beside an episode (id, seed, total_steps, options, reward statistics in HDF5), as far as all
    episodes have it. Tuple spaces give tuples, Dict spaces dicts, images are decoded from JPEG.

    Args:
      path_or_id: the dataset's folder (that holds `data/`), its folder `data`, the file
        `main_data.hdf5`; or an id such as `'D4RL/door/human-v2'`, which is looked for below
        the folder that the environment variable MINARI_DATASETS_PATH names, by default
        `~/.minari/datasets`. Nothing is downloaded: `minari download ID` does.

    Raises:
      FileNotFoundError: there is no Minari dataset.
      ImportError: h5py or pyarrow is missing.
      ValueError: the dataset has no episode, or is in a format that is not known.
      ValueError: an observation or action holds no numbers of fixed width, as those of Text spaces.

    >>> minari_source("/nowhere/door/human-v2")
    Traceback (most recent call last):
    ...
    FileNotFoundError: '/nowhere/door/human-v2' holds no Minari dataset: expected data/metadata.json or \
data/main_data.hdf5 in it.
    """
    folder = _data_folder(path_or_id)
    metadata: dict[str, Any] = {}
    if (folder / _METADATA_FILE).exists():
        metadata = json.loads((folder / _METADATA_FILE).read_text())
    name = str(metadata.get("dataset_id") or folder.parent.name)
    data_format = metadata.get("data_format", "hdf5")
    observation_space, action_space = (_space(metadata.get(f"{part}_space")) for part in ("observation", "action"))
    if data_format not in ("hdf5", "arrow", "parquet"):
        raise ValueError(f"{name}: data_format is {data_format!r}; 'hdf5', 'arrow' and 'parquet' can be read.")
    make_storage = _hdf5_storage if data_format == "hdf5" else _arrow_storage
    storage = make_storage(folder, observation_space, action_space)
    if not storage.episode_ids:
        raise ValueError(f"{name}: there is no episode in {str(folder)!r}.")
    with storage.open() as read_episode:
        first = _read_named(read_episode, name, storage.episode_ids[0])
    info_paths, not_loaded = _loaded_infos(first)
    step_spec = {**specs_of_columns(name, _columns(first, info_paths)), **FLAG_SPECS}
    check_step_spec(name, step_spec)
    own, notes = common_metadata(storage.own())
    told = metadata.get("total_episodes")
    if told is not None and int(told) != len(storage.episode_ids):
        notes = (*notes, f"{_METADATA_FILE} tells of {told} episodes, the data are {len(storage.episode_ids)}")

    def read(seed: int | None) -> Iterator[RawEpisode]:
        num_episodes = len(storage.episode_ids)
        order = np.arange(num_episodes) if seed is None else np.random.default_rng(seed).permutation(num_episodes)
        with storage.open() as read_episode:
            for index in order.tolist():
                episode_id = storage.episode_ids[index]
                columns = _columns(_read_named(read_episode, name, episode_id), info_paths)
                check_columns(f"{name}, episode {index}", columns, step_spec)
                yield RawEpisode(str(index), columns, metadata=own[index], id=f"{name}/{episode_id}", place=index)

    return EpisodeSource(
        name,
        step_spec,
        read,
        num_episodes=len(storage.episode_ids),
        not_loaded=not_loaded,
        metadata_spec=metadata_spec_of(own[0]),
        notes=notes,
    )


def _read_named(read_episode: Callable[[int], _Episode], name: str, episode_id: int) -> _Episode:
    """An episode, or an error that tells which one lacks a part."""
    try:
        return read_episode(episode_id)
    except KeyError as error:
        raise ValueError(f"{name}, episode {episode_id}: a part of it is missing: {error.args[0]}.") from error


def is_minari(path_or_id: str | os.PathLike[str]) -> bool:
    """Whether a path, or an id of a dataset on this machine, is one that `minari_source` reads.

    >>> is_minari("/nowhere/door/human-v2")
    False
    """
    return _find_data_folder(path_or_id) is not None


# -- where a dataset lies ----------------------------------------------------------------------


def _data_folder(path_or_id: str | os.PathLike[str]) -> pathlib.Path:
    folder = _find_data_folder(path_or_id)
    if folder is not None:
        return folder
    text = os.fspath(path_or_id)
    by_id = (
        ""
        if os.path.isabs(text)
        else f", nor is there one of this id in {str(_datasets_folder())!r} ({_DATASETS_PATH})"
    )
    raise FileNotFoundError(
        f"{text!r} holds no Minari dataset: expected data/{_METADATA_FILE} or data/{MAIN_FILE} in it{by_id}."
    )


def _find_data_folder(path_or_id: str | os.PathLike[str]) -> pathlib.Path | None:
    path = pathlib.Path(path_or_id)
    candidates = [path / "data", path, _datasets_folder() / path / "data"]
    if path.name == MAIN_FILE:
        candidates = [path.parent]
    return next((folder for folder in candidates if _is_data_folder(folder)), None)


def _is_data_folder(folder: pathlib.Path) -> bool:
    if (folder / MAIN_FILE).is_file():
        return True
    try:
        return "data_format" in json.loads((folder / _METADATA_FILE).read_text())
    except (OSError, ValueError):
        return False


def _datasets_folder() -> pathlib.Path:
    named = os.environ.get(_DATASETS_PATH)
    return pathlib.Path(named) if named else pathlib.Path.home() / ".minari" / "datasets"


# -- an episode in RLDS's terms ----------------------------------------------------------------


def _columns(episode: _Episode, info_paths: list[_Path]) -> dict[str, Nest]:
    ends = episode.truncations
    if len(ends) == len(episode.terminations):
        ends = ends | episode.terminations
    columns = step_columns(
        _read(episode.observations),
        {ACTION: _read(episode.actions), REWARD: episode.rewards},
        terminals=episode.terminations,
        ends=ends,
        num_rows=len(episode.rewards),
    )
    # Not among the rows: N + 1 of them are promised, and fewer are a fault that must not be filled up.
    infos = {path: _read(episode.infos[path]) for path in info_paths if path in episode.infos}
    return {**columns, INFOS: nest_of_paths(infos)} if infos else columns


def _read(nest: Nest) -> Nest:
    """Numbers in this machine's byte order, strings as bytes; anything else as it is, to be refused by name."""
    return tf.nest.map_structure(lambda leaf: leaf if why_not_loaded(leaf) else read_rows(leaf, 0, len(leaf)), nest)


def _loaded_infos(first: _Episode) -> tuple[list[_Path], tuple[str, ...]]:
    loaded, not_loaded = [], []
    for path, leaf in first.infos.items():
        why = why_not_loaded(leaf)
        if not leaf.shape or len(leaf) != len(first.rewards) + 1:
            why = f"not one for each observation: {leaf.shape}"
        if why:
            not_loaded.append(f"{field_path((INFOS, *path))} ({why})")
        else:
            loaded.append(path)
    return loaded, tuple(sorted(not_loaded))


# -- HDF5 --------------------------------------------------------------------------------------


def _hdf5_storage(folder: pathlib.Path, observation_space: _Space, action_space: _Space) -> _Storage:
    try:
        h5py = importlib.import_module("h5py")
    except ImportError as error:
        raise ImportError(f"reading a Minari dataset in HDF5 needs h5py: install {_EXTRA}.") from error
    file = folder / MAIN_FILE
    with h5py.File(file, "r") as episodes:
        named = (re.fullmatch(r"episode_(\d+)", name) for name in episodes)
        episode_ids = sorted(int(match[1]) for match in named if match)

    def own() -> list[dict[str, Any]]:
        with h5py.File(file, "r") as episodes:
            return [dict(episodes[f"episode_{episode_id}"].attrs) for episode_id in episode_ids]

    @contextlib.contextmanager
    def opened() -> Iterator[Callable[[int], _Episode]]:
        with h5py.File(file, "r") as episodes:

            def read(episode_id: int) -> _Episode:
                group = episodes[f"episode_{episode_id}"]
                terminations, truncations = (group[part][:].reshape(-1) for part in ("terminations", "truncations"))
                infos = group[INFOS] if INFOS in group else {}
                return _Episode(
                    _hdf5_nest(group["observations"], observation_space),
                    _hdf5_nest(group["actions"], action_space),
                    group["rewards"][:],
                    terminations,
                    truncations,
                    {path: leaf[()] for path, leaf in paths_of(infos)},
                )

            yield read

    return _Storage(episode_ids, own, opened)


def _hdf5_nest(node: Any, space: _Space) -> Nest:
    if isinstance(node, Mapping):
        children = {key: _hdf5_nest(node[key], _subspace(space, key.removeprefix("_index_"))) for key in node}
        if children and all(key.startswith("_index_") for key in children):
            return tuple(children[f"_index_{index}"] for index in range(len(children)))
        return children
    rows = node[()]
    shape = (space or {}).get("shape")
    # Minari's writer keeps images as JPEG, each a row of bytes; the space has the shape of what is in there.
    if shape is not None and len(shape) > 1 and (rows.dtype == object or list(rows.shape[1:]) != shape):
        return _decode_jpeg([row.tobytes() for row in rows], shape)
    return rows


# -- Arrow and Parquet -------------------------------------------------------------------------


def _arrow_storage(folder: pathlib.Path, observation_space: _Space, action_space: _Space) -> _Storage:
    try:
        dataset = importlib.import_module("pyarrow.dataset")
    except ImportError as error:
        raise ImportError(f"reading a Minari dataset in Arrow or Parquet needs pyarrow: install {_EXTRA}.") from error
    data_format = json.loads((folder / _METADATA_FILE).read_text())["data_format"]
    episode_ids = sorted(int(path.name) for path in folder.iterdir() if path.is_dir() and path.name.isdecimal())

    def own_of(episode_id: int) -> dict[str, Any]:
        file = folder / str(episode_id) / _METADATA_FILE
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def read(episode_id: int) -> _Episode:
        files = dataset.dataset(
            folder / str(episode_id), format=data_format, ignore_prefixes=["_", ".", _METADATA_FILE]
        )
        table = files.to_table().combine_chunks()

        def column(part: str) -> Any:
            chunks = table[part].combine_chunks()
            return chunks.chunk(0) if hasattr(chunks, "num_chunks") else chunks

        # Written as long as the observations; how many of its rows are transitions is kept beside the file.
        num_transitions = int(own_of(episode_id).get("total_steps", table.num_rows - 1))
        actions = _arrow_nest(column("actions"), action_space)
        rewards, terminations, truncations = (
            column(part).to_numpy(zero_copy_only=False)[:num_transitions]
            for part in ("rewards", "terminations", "truncations")
        )
        infos = _arrow_infos(column(INFOS)) if INFOS in table.column_names else {}
        return _Episode(
            _arrow_nest(column("observations"), observation_space),
            tf.nest.map_structure(lambda leaf: leaf[:num_transitions], actions),
            rewards,
            terminations,
            truncations,
            infos,
        )

    return _Storage(
        episode_ids, lambda: [own_of(episode_id) for episode_id in episode_ids], lambda: contextlib.nullcontext(read)
    )


def _arrow_nest(column: Any, space: _Space) -> Nest:
    if _is_struct(column):
        children = {
            field.name: _arrow_nest(column.field(field.name), _subspace(space, field.name)) for field in column.type
        }
        if (space or {}).get("type") == "Tuple":
            return tuple(children[str(index)] for index in range(len(children)))
        return children
    shape = (space or {}).get("shape")
    if str(column.type) == "binary" and shape is not None:
        return _decode_jpeg(column.to_pylist(), shape)
    return _arrow_rows(column, shape)


def _arrow_infos(column: Any, path: _Path = ()) -> dict[_Path, Array]:
    infos: dict[_Path, Array] = {}
    for field in column.type:
        child, place = column.field(field.name), (*path, field.name)
        if _is_struct(child):
            infos.update(_arrow_infos(child, place))
        else:
            shape = (field.metadata or {}).get(b"shape")
            infos[place] = _arrow_rows(child, None if shape is None else [int(n) for n in shape.split(b",") if n])
    return infos


def _arrow_rows(column: Any, shape: list[int] | None) -> Array:
    """`[R, ...]` from a column of numbers or of lists of a fixed length; of anything else an array of objects."""
    width = getattr(column.type, "list_size", None)
    if width is None:
        return column.to_numpy(zero_copy_only=False)
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), *([width] if shape is None else shape))


def _is_struct(column: Any) -> bool:
    return str(column.type).startswith("struct<")


# -- spaces ------------------------------------------------------------------------------------


def _space(serialized: str | None) -> _Space:
    return None if serialized is None else json.loads(serialized)


def _subspace(space: _Space, key: str) -> _Space:
    subspaces = (space or {}).get("subspaces")
    if isinstance(subspaces, list):
        return subspaces[int(key)]
    return subspaces.get(key) if isinstance(subspaces, dict) else None


def _decode_jpeg(images: list[bytes], shape: list[int]) -> Array:
    """uint8 `[R, *shape]`."""
    if not images:
        return np.zeros([0, *shape], np.uint8)
    return _decode_all_jpeg(tf.constant(images)).numpy().reshape(len(images), *shape)


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
def _decode_all_jpeg(images: tf.Tensor) -> tf.Tensor:
    # As accurate as the decoder that Minari reads with.
    return tf.map_fn(
        lambda image: tf.io.decode_jpeg(image, dct_method="INTEGER_ACCURATE"), images, fn_output_signature=tf.uint8
    )
