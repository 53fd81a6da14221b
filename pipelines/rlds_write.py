"""Episodes to a TFDS dataset on disk, which TFDS, rlds, TF-Agents and `load_rlds` read.

What is written of an episode is decided in `rlds_write_format.py`, put into bytes in
`rlds_examples.py`, and named for TFDS in `rlds_features.py`; here it meets files and counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Union

import tensorflow as tf

from replayfeed.buffers import ReplayBuffer

from .buffer_episodes import buffer_source
from .episode_source import EpisodeSource
from .episodes import Episodes
from .progress_bar import progress_bar
from .rlds_folder import import_tfds
from .rlds_open import open_source
from .rlds_write_dataset import DatasetSettings, WrittenSplit, check_splits, finish_dataset, write_episodes
from .rlds_write_folder import NewFolder
from .rlds_write_format import EncodeImages, EpisodeFormat, FieldFormat, episode_format
from .rlds_write_metadata import EpisodeMetadata, add_metadata
from .rlds_write_report import WriteReport
from .rlds_write_shards import FileFormat, ShardWriter

Writable = Union[EpisodeSource, Episodes, ReplayBuffer, tf.data.Dataset, str, "os.PathLike[str]"]
"""What episodes can be written from."""


def write_rlds(
    source: Writable | Mapping[str, Writable],
    path: str | os.PathLike[str],
    *,
    name: str,
    episode_metadata: EpisodeMetadata | None = None,
    file_format: FileFormat = "tfrecord",
    shards: int | None = None,
    split: str = "train",
    encode_images: EncodeImages = "png",
    overwrite: bool = False,
    description: str = "",
    citation: str = "",
    version: str = "1.0.0",
    progress: bool = True,
) -> WriteReport:
    """Writes episodes as an RLDS dataset that `tfds.builder_from_directory(path)` opens.

    Every value comes back bit for bit, of every dtype, NaNs and negative zeros too. Every
    field of the steps is written, `is_first`, `is_last` and `is_terminal` always; those are
    kept as the source has them, so that terminal, truncated and partial episodes stay what
    they are. Episodes are written as they are, sound or not, with their `invalid` flag.

    The dataset appears at `path` as a whole when all of it is on the disk; until then, and
    after an error, nothing is there. The order of the files, and in them, is that of the
    source; TFDS itself reads several files in turn unless it is told
    `ReadConfig(interleave_cycle_length=1)`. In memory are the episode at hand, as arrays and as
    bytes, and what the source reads ahead; of a buffer what `buffer_source` tells. The frames of a
    large table on a server wait in a temporary file, in the folder of `path`, until all is written.

    Args:
      source: `Episodes` of `load_rlds` (those that its rules let through, without what they drop),
        a buffer, an `EpisodeSource`, or what `open_source` opens, with every field: a
        `tf.data.Dataset` of episodes, a folder, a TFDS name. Or a mapping of names of splits to such,
        whose fields are all the same.
      path: the folder of the dataset; folders above it are made.
      name: the dataset's, letters, digits and underscores.
      episode_metadata: fields added to each episode's own: a mapping of constants, or a function of
        the `RawEpisode`. A Python float is written as float64, a list as a sequence of any length.
      file_format: `'tfrecord'`, or `'array_record'`, which TFDS reads with `as_data_source` only (and
        PNGs of uint16 there only where OpenCV is installed).
      shards: how many files, of equally many episodes; fewer where there are fewer episodes. None:
        one for about 256 MB each.
      split: the split's name, where `source` is no mapping.
      encode_images: `'png'` writes as PNG, which loses nothing, each uint8 or uint16 field of the
        shape `[H, W, C]` with C 1, 3 or 4, and H times W 64 or more; None writes none so; a
        collection of names, such as `['observation/image']`, exactly those.
      overwrite: whether a dataset that is at `path` is replaced, with all its splits, when the
        new one is complete.
      description: for the dataset's info.
      citation: for the dataset's info.
      version: of the dataset, `'1.0.0'`.
      progress: a bar on stderr.

    Returns:
      What was written.

    Raises:
      TypeError: `source` is none of these, or a key of a nest is no string.
      ValueError: `name`, `split`, `version`, `file_format`, `shards` or `encode_images` cannot be.
      ImportError: TensorFlow Datasets, or array_record, cannot be imported.
      FileExistsError: something is at `path` that may not be replaced.
      ValueError: a field is of a kind that TFDS cannot keep; the message names it.
      ValueError: an episode does not match the source's specs, or is too large; the message names it.
      ValueError: there are no episodes, which TFDS could not read.
      OSError: the disk has no room.

    >>> import tempfile
    >>> from replayfeed.pipelines.rlds_read import load_rlds
    >>> steps = {"observation": [0, 1, 2], "is_terminal": [False, False, True]}
    >>> episodes = load_rlds(tf.data.Dataset.from_tensors({"steps": steps}), layout="transition")
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     path = os.path.join(parent, "mine")
    ...     report = write_rlds(episodes, path, name="mine", progress=False)
    ...     again = [episode["observation"].tolist() for episode in load_rlds(path, layout="transition")]
    ...     sorted(os.listdir(path)), again, report.steps
    (['dataset_info.json', 'features.json', 'mine-train.tfrecord-00000-of-00001'], [[0, 1]], 3)
    """
    sources = _splits(source, split, os.path.dirname(os.path.realpath(path)))
    check_splits(list(sources))
    settings = DatasetSettings(
        name=name, file_format=file_format, description=description, citation=citation, version=version
    )
    if shards is not None and shards < 1:
        raise ValueError(f"shards must be 1 or more, or None, got {shards!r}.")
    import_tfds()
    started = time.perf_counter()
    folder = NewFolder(os.fspath(path), overwrite=overwrite)
    try:
        formats: list[EpisodeFormat] = []
        written: list[WrittenSplit] = []
        for split_name, episode_source in sources.items():
            metadata_spec, episodes = add_metadata(episode_source, episode_metadata)
            formats.append(
                episode_format(
                    episode_source.name, episode_source.step_spec, metadata_spec, encode_images=encode_images
                )
            )
            _check_same_fields(list(sources), formats)
            writer = ShardWriter(
                folder.temporary,
                f"{name}-{split_name}.{file_format}",
                file_format,
                num_shards=shards,
                num_records=episode_source.num_episodes,
            )
            with (
                contextlib.closing(writer),
                progress_bar(
                    f"write {name} from {episode_source.name}", episode_source.num_episodes, progress=progress
                ) as bar,
            ):
                counts = write_episodes(formats[-1], episode_source.name, episodes, writer, bar)
                lengths = writer.finish()
            if not lengths:
                raise ValueError(
                    f"{episode_source.name}: there are no episodes for the split {split_name!r}; TFDS does not read a "
                    "split without any."
                )
            written.append(WrittenSplit(split_name, lengths, counts))
        names = ", ".join(dict.fromkeys(episode_source.name for episode_source in sources.values()))
        report = finish_dataset(folder, os.fspath(path), names, formats[0], written, settings)
    except BaseException:
        folder.discard()
        raise
    told = (note for episode_source in sources.values() for note in episode_source.told())
    return dataclasses.replace(report, notes=(*report.notes, *told), seconds=time.perf_counter() - started)


# -- arguments ---------------------------------------------------------------------------------


def _splits(source: Writable | Mapping[str, Writable], split: str, temporary_folder: str) -> dict[str, EpisodeSource]:
    if not isinstance(source, Mapping):
        return {split: episode_source_of(source, temporary_folder)}
    if split != "train":
        raise ValueError(f"split={split!r} is for one source; a mapping of splits to sources names them all.")
    if not source:
        raise ValueError("source is a mapping of no splits.")
    return {name: episode_source_of(one, temporary_folder) for name, one in source.items()}


def episode_source_of(source: Writable, temporary_folder: str | None = None) -> EpisodeSource:
    """Whatever episodes can be written from, as an `EpisodeSource`.

    Args:
      source: see `write_rlds`.
      temporary_folder: of a buffer, see `buffer_source`.

    Raises:
      TypeError: `source` is none of these.
      ValueError, ImportError, FileNotFoundError: as `open_source` and `buffer_source`.
    """
    if isinstance(source, EpisodeSource):
        return source
    if isinstance(source, Episodes):
        return source.as_source()
    if isinstance(source, ReplayBuffer):
        return buffer_source(source, temporary_folder=temporary_folder)
    if isinstance(source, tf.data.Dataset | str | os.PathLike):
        return open_source(source, fields="all")
    raise TypeError(
        "source must be Episodes, a ReplayBuffer, an EpisodeSource, a tf.data.Dataset of episodes, or the name or "
        f"folder of a dataset, got {type(source).__name__}."
    )


def _check_same_fields(splits: list[str], formats: list[EpisodeFormat]) -> None:
    expected = {field.key: field for field in (*formats[0].steps, *formats[0].metadata)}
    found = {field.key: field for field in (*formats[-1].steps, *formats[-1].metadata)}
    for key in sorted(expected.keys() | found.keys()):
        if expected.get(key) != found.get(key):
            first, other = _told(expected.get(key)), _told(found.get(key))
            raise ValueError(
                f"the splits of a dataset have the same fields: {key!r} is {first} in {splits[0]!r} and {other} in "
                f"{splits[len(formats) - 1]!r}."
            )


def _told(field: FieldFormat | None) -> str:
    if field is None:
        return "no field"
    return f"{field.dtype} {[*[None] * field.num_sequences, *field.shape]}"
