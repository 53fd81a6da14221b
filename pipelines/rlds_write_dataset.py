"""What makes a folder of records a TFDS dataset: its episodes counted, its info written, all of it told in a report."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args

import tensorflow as tf
from tqdm import tqdm

from .episode_source import RawEpisode, reason_of
from .rlds_examples import episode_flags, serialize_columns
from .rlds_features import to_tfds_features
from .rlds_folder import import_tfds
from .rlds_steps import IS_FIRST, IS_LAST, IS_TERMINAL
from .rlds_write_folder import NewFolder
from .rlds_write_format import EpisodeFormat
from .rlds_write_report import WriteReport
from .rlds_write_shards import FileFormat, ShardWriter

# What TFDS finds again in the names of files.
_NAME = re.compile(r"[a-zA-Z]\w*")
_SPLIT = re.compile(r"[a-zA-Z0-9_]+")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """What a dataset is called and how its files are written; `write_rlds` tells what each means.

    Raises:
      ValueError: one of them cannot be.

    >>> DatasetSettings(name="1st")
    Traceback (most recent call last):
    ...
    ValueError: name must be letters, digits and underscores, a letter first, got '1st'.
    """

    name: str
    file_format: FileFormat = "tfrecord"
    description: str = ""
    citation: str = ""
    version: str = "1.0.0"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name must be letters, digits and underscores, a letter first, got {self.name!r}.")
        if self.file_format not in get_args(FileFormat):
            raise ValueError(f"file_format must be 'tfrecord' or 'array_record', got {self.file_format!r}.")
        if not _VERSION.fullmatch(self.version):
            raise ValueError(f"version must be three numbers, such as '1.0.0', got {self.version!r}.")


def check_splits(splits: Sequence[str]) -> None:
    """Refuses names of splits that TFDS would not find again.

    Raises:
      ValueError: one has another character, or is TFDS's own.

    >>> check_splits(["train", "test_2"])
    """
    for split in splits:
        if not _SPLIT.fullmatch(split) or split == "all":
            raise ValueError(
                f"split must be letters, digits and underscores, and not 'all', which is TFDS's own; got {split!r}."
            )


@dataclasses.dataclass(frozen=True)
class Counts:
    """Of the episodes of a split; `WriteReport` tells what each is.

    >>> Counts(episodes=1, steps=3) + Counts(episodes=2, steps=5, record_bytes=100)
    Counts(episodes=3, steps=8, terminals=0, truncations=0, partial=0, invalid=0, record_bytes=100)
    """

    episodes: int = 0
    steps: int = 0
    terminals: int = 0
    truncations: int = 0
    partial: int = 0
    invalid: int = 0
    record_bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        fields = dataclasses.fields(self)
        return Counts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields))


class WrittenSplit(NamedTuple):
    """A split whose files are complete: its name, the number of episodes in each file, and what is in them."""

    name: str
    shard_lengths: list[int]
    counts: Counts


def write_episodes(
    fmt: EpisodeFormat, source_name: str, episodes: Iterator[RawEpisode], writer: ShardWriter, bar: tqdm
) -> Counts:
    """Writes each episode, holding one at a time.

    Raises:
      ValueError: an episode does not match `fmt`, or cannot be read; the message names it.
    """
    counts = Counts()
    while True:
        try:
            episode = next(episodes, None)
        except tf.errors.OpError as error:
            raise ValueError(
                f"{source_name}: the episode after {counts.episodes} others cannot be read: {reason_of(error)}"
            ) from error
        if episode is None:
            return counts
        try:
            record = serialize_columns(fmt, episode)
            counts += _count(episode, len(record))
        except ValueError as error:
            raise ValueError(f"{source_name}, episode {episode.name}: {error}.") from error
        # Not held while it is written, nor while the next one is read.
        del episode
        writer.write(record)
        del record
        bar.update(1)
        bar.set_postfix_str(f"{counts.steps:,} steps", refresh=False)


def finish_dataset(
    folder: NewFolder,
    path: str,
    source_name: str,
    fmt: EpisodeFormat,
    splits: Sequence[WrittenSplit],
    settings: DatasetSettings,
) -> WriteReport:
    """Writes the info beside the files, and lets the dataset appear at its path.

    Returns:
      What was written, without the time that it took.
    """
    _dataset_info(folder.temporary, fmt, splits, settings).write_to_directory(folder.temporary)
    num_bytes = sum(entry.stat().st_size for entry in os.scandir(folder.temporary))
    folder.commit()
    total = sum((split.counts for split in splits), start=Counts())
    return WriteReport(
        source=source_name,
        path=path,
        split=", ".join(split.name for split in splits),
        episodes=total.episodes,
        steps=total.steps,
        terminals=total.terminals,
        truncations=total.truncations,
        partial=total.partial,
        invalid=total.invalid,
        bytes=num_bytes,
        shards=sum(len(split.shard_lengths) for split in splits),
        notes=fmt.notes,
    )


def _count(episode: RawEpisode, record_bytes: int) -> Counts:
    flags = episode_flags(episode.columns)
    num_steps = len(flags[IS_TERMINAL])
    is_terminal = bool(num_steps and flags[IS_TERMINAL][-1])
    is_last = bool(num_steps and flags[IS_LAST][-1])
    is_first = bool(num_steps and flags[IS_FIRST][0])
    return Counts(
        episodes=1,
        steps=num_steps,
        terminals=int(is_terminal),
        truncations=int(is_last and not is_terminal),
        partial=int(not (is_first and (is_last or is_terminal))),
        invalid=int(episode.invalid),
        record_bytes=record_bytes,
    )


def _dataset_info(folder: str, fmt: EpisodeFormat, splits: Sequence[WrittenSplit], settings: DatasetSettings) -> Any:
    tfds = import_tfds()
    identity = tfds.core.dataset_info.DatasetIdentity(
        name=settings.name, version=tfds.core.Version(settings.version), data_dir=folder, module_name=""
    )
    info = tfds.core.DatasetInfo(
        builder=identity,
        description=settings.description,
        citation=settings.citation,
        features=to_tfds_features(fmt),
    )
    info.set_file_format(settings.file_format)
    infos = [
        tfds.core.SplitInfo(
            name=split.name,
            shard_lengths=split.shard_lengths,
            num_bytes=split.counts.record_bytes,
            filename_template=tfds.core.ShardedFileTemplate(
                dataset_name=settings.name, data_dir=folder, split=split.name, filetype_suffix=settings.file_format
            ),
        )
        for split in splits
    ]
    info.set_splits(tfds.core.splits.SplitDict(infos))
    return info
