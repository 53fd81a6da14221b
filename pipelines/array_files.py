"""Tells by its path which reader of array files a source of episodes needs."""

from __future__ import annotations

import os

from .episode_source import EpisodeSource
from .hdf5_arrays import hdf5_source
from .minari import is_minari, minari_source
from .npz_episodes import npz_source

_HDF5_SUFFIXES = (".hdf5", ".h5", ".hdf")


def array_source_of(path: str | os.PathLike[str]) -> EpisodeSource | None:
    """The episodes of a Minari dataset (folder, or id on this machine), an HDF5 file, an NPZ file or a folder of such.

    Args:
      path: of a file or a folder, or a Minari id. Other files, and folders without any of these
        (those of TFDS), are none of them.

    Returns:
      The source; None when the path is none of them.

    Raises:
      FileNotFoundError: the path has a file's ending of these, and there is no such file.
      ImportError: h5py or pyarrow is missing.
      ValueError: what `minari_source`, `hdf5_source` or `npz_source` refuse.

    >>> array_source_of("d4rl_mujoco_hopper/v2-medium") is None
    True
    """
    path = os.fspath(path)
    if is_minari(path):
        return minari_source(path)
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _HDF5_SUFFIXES:
        return hdf5_source(path)
    if suffix == ".npz" or (os.path.isdir(path) and any(file.endswith(".npz") for file in os.listdir(path))):
        return npz_source(path)
    return None
