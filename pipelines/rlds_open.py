"""Finds out what a source of episodes is, and opens it: names, folders, files, datasets, arrays, mixtures."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

import tensorflow as tf

from .array_files import array_source_of
from .episode_source import EpisodeSource, RawEpisode
from .mixture import mixture_source
from .rlds_dataset import dataset_source
from .rlds_fields import Choice, Decoders, Fields, plan_fields
from .rlds_files import files_of, files_source
from .rlds_folder import folder_source, name_source
from .rlds_steps import map_leaves

Source = Union[
    str, "os.PathLike[str]", tf.data.Dataset, EpisodeSource, Mapping[Any, float], Sequence[tuple[Any, float]], Any
]
"""What `load_rlds` takes: a path or name, a dataset, an `EpisodeSource`, `Episodes`, or several with weights."""


def open_source(
    source: Source,
    *,
    split: str | None = None,
    fields: Fields = None,
    decoders: Decoders | None = None,
    metadata: Sequence[str] | None = None,
    kept: Sequence[str] = (),
    data_dir: str | None = None,
    download: bool = True,
) -> EpisodeSource:
    """Whatever holds episodes, as an `EpisodeSource`; no episode is read.

    Args:
      source: as for `load_rlds`.
      split: of a name or folder, by default `'train'`.
      fields: which fields of a step, and how; `'all'` gives each as it is.
      decoders: of encoded fields.
      metadata: names of the step metadata that is of use; None: all.
      kept: names of step metadata that is loaded even if it is a string.
      data_dir: where TFDS keeps datasets that are given by name.
      download: let TFDS download and prepare a named dataset that is not there.

    Raises:
      TypeError: `source` is none of these.
      FileNotFoundError: a path leads to no dataset.
      ImportError: what reads the source cannot be imported.
      ValueError: `split` or `decoders` is given with a source that has none.
      ValueError: the source has no episodes, or a field that cannot be loaded.

    >>> steps = {"observation": [[1.0, 2.0]], "is_terminal": [[False, True]]}
    >>> open_source(tf.data.Dataset.from_tensor_slices({"steps": steps})).num_episodes
    1
    """
    wanted = Choice(fields, decoders, None if metadata is None else tuple(metadata), tuple(kept))
    return _open(source, split, wanted, data_dir=data_dir, download=download)


def _open(source: Source, split: str | None, wanted: Choice, *, data_dir: str | None, download: bool) -> EpisodeSource:
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source), split, wanted, data_dir=data_dir, download=download)
    pairs = _pairs(source)
    if pairs:
        opened = [_open(part, split, wanted, data_dir=data_dir, download=download) for part, _ in pairs]
        return mixture_source(opened, [weight for _, weight in pairs])
    _refuse("split", split, source)
    _refuse("decoders", wanted.decoders, source)
    if isinstance(source, tf.data.Dataset):
        return dataset_source(source, wanted)
    if isinstance(source, EpisodeSource):
        return _with_fields(source, wanted)
    if hasattr(source, "as_source"):
        return _with_fields(source.as_source(), wanted)
    raise TypeError(
        "expected a dataset's name, folder or files, a tf.data.Dataset of episodes, an EpisodeSource, Episodes, or "
        f"several of these with weights, got {type(source).__name__}."
    )


def _open_path(path: str, split: str | None, wanted: Choice, *, data_dir: str | None, download: bool) -> EpisodeSource:
    path = os.path.expanduser(path)
    arrays = array_source_of(path)
    if arrays is not None:
        _refuse("split", split, path)
        _refuse("decoders", wanted.decoders, path)
        return _with_fields(arrays, wanted)
    files = files_of(path)
    if files:
        _refuse("split", split, path)
        return files_source(files, wanted)
    split = "train" if split is None else split
    is_name = not tf.io.gfile.exists(path) and not path.startswith((".", "/")) and "://" not in path
    if is_name:
        return name_source(path, split, wanted, data_dir=data_dir, download=download)
    return folder_source(path, split, wanted)


def _with_fields(source: EpisodeSource, wanted: Choice) -> EpisodeSource:
    """The same source with only what is asked for of its steps."""
    plan = plan_fields(source.name, source.step_spec, wanted)

    def read(seed: int | None) -> Iterator[RawEpisode]:
        for raw in source.read(seed):
            columns = plan.select(raw.columns)
            yield raw._replace(columns=map_leaves(_to_numpy, columns))

    not_loaded = tuple(sorted({*source.not_loaded, *plan.not_loaded}))
    return dataclasses.replace(source, step_spec=plan.step_spec, read=read, not_loaded=not_loaded)


def _to_numpy(leaf: Any) -> Any:
    return leaf.numpy() if isinstance(leaf, tf.Tensor) else leaf


def _pairs(source: Any) -> list[tuple[Any, float]]:
    """Several sources with their weights; none when it is something else."""
    if isinstance(source, Mapping):
        return list(source.items())
    if isinstance(source, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in source):
        return [(part, weight) for part, weight in source]
    return []


def _refuse(what: str, value: Any, source: Any) -> None:
    if value is not None:
        kind = f"{source!r}" if isinstance(source, str) else f"a {type(source).__name__}"
        raise ValueError(f"{what}={value!r} is for names and folders of TFDS datasets; {kind} is one split already.")
