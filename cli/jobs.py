"""What the commands of `replayfeed` do, in the functions of this package."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import tensorflow as tf

from replayfeed.pipelines.buffer_episodes import buffer_source
from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.hdf5_arrays import hdf5_source
from replayfeed.pipelines.npz_episodes import npz_source
from replayfeed.pipelines.rlds_beam import split_slices, write_rlds_with_beam
from replayfeed.pipelines.rlds_check import validate_rlds
from replayfeed.pipelines.rlds_check_picture import check_picture_path
from replayfeed.pipelines.rlds_check_report import RldsReport
from replayfeed.pipelines.rlds_fields import rules_for_writing
from replayfeed.pipelines.rlds_open import open_source
from replayfeed.pipelines.rlds_read import load_rlds
from replayfeed.pipelines.rlds_steps import REWARD
from replayfeed.pipelines.rlds_write import write_rlds
from replayfeed.pipelines.rlds_write_report import WriteReport

from .served import open_served

# So that '--beam' alone uses the machine it is typed on, and says no more than what went wrong.
_ALL_CORES = (
    "--direct_running_mode=multi_processing",
    "--direct_num_workers=0",
    "--default_sdk_harness_log_level=ERROR",
)


class Stage(Protocol):
    """Tells the command whether reading has begun."""

    reading: bool


@dataclasses.dataclass(frozen=True)
class ImportSettings:
    """What is read, and by which rules. Can be sent to other processes.

    Attributes:
      source: what `open_source` takes.
      split: of it; None: its default.
      on_bad_episode: as in `load_rlds`; `'keep'`: episodes are written as they are.
      alignment: as in `load_rlds`.
      limit: episodes; None: all.
      episode_length: of HDF5 and NPZ files of flat arrays: rows after which an episode ends.
    """

    source: str
    _: dataclasses.KW_ONLY
    split: str | None = None
    on_bad_episode: Literal["error", "skip", "repair", "keep"] = "error"
    alignment: Literal["sar", "ars", "rsa"] = "sar"
    limit: int | None = None
    episode_length: int | None = None


@dataclasses.dataclass(frozen=True)
class Target:
    """What is written.

    Attributes:
      folder: its path.
      name: the dataset's.
      split: its only one.
      file_format: of its files.
      overwrite: whether it replaces a dataset.
    """

    folder: str
    name: str
    _: dataclasses.KW_ONLY
    split: str = "train"
    file_format: Literal["tfrecord", "array_record"] = "tfrecord"
    overwrite: bool = False


def import_source(
    settings: ImportSettings, target: Target, stage: Stage, *, shards: int | None, progress: bool
) -> WriteReport:
    """Writes a source in this process."""
    opened = open_path(settings.source, settings.split, settings.episode_length)
    stage.reading = True
    num_read = 0

    def read(seed: int | None) -> Iterator[RawEpisode]:
        nonlocal num_read
        for num_read, episode in enumerate(opened.read(seed), start=1):  # noqa: B007 (it is told of below)
            yield episode

    written = ruled(dataclasses.replace(opened, read=read), settings)
    report = write_rlds(
        written,
        target.folder,
        name=target.name,
        split=target.split,
        file_format=target.file_format,
        shards=shards,
        overwrite=target.overwrite,
        progress=progress,
    )
    notes = list(report.notes)
    if written.not_loaded:
        notes.append(
            f"of variable length, left out: {', '.join(written.not_loaded)}; --on-bad-episode keep writes all as it is"
        )
    if num_read > report.episodes:
        notes.append(
            f"{num_read - report.episodes:,} of {num_read:,} episodes were left out; which, and why, is on stderr"
        )
    return dataclasses.replace(report, notes=tuple(notes))


def import_with_beam(
    settings: ImportSettings,
    target: Target,
    stage: Stage,
    *,
    options: Sequence[str] | None,
    num_slices: int,
    progress: bool,
) -> WriteReport:
    """Writes a source on Beam: slice by slice where its split has slices, else as one."""
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions

    opened = open_path(settings.source, settings.split, settings.episode_length)
    each = [settings]
    split = settings.split or "train"
    if opened.num_episodes and split.isidentifier() and _has_slices(settings.source, split):
        slices = split_slices(split, opened.num_episodes, num_slices)
        each = [dataclasses.replace(settings, split=part) for part in slices]
    stage.reading = True
    return write_rlds_with_beam(
        [functools.partial(open_ruled, one) for one in each],
        target.folder,
        name=target.name,
        pipeline=apache_beam.Pipeline(options=PipelineOptions(list(options or _ALL_CORES))),
        split=target.split,
        file_format=target.file_format,
        overwrite=target.overwrite,
        progress=progress,
    )


def export_table(
    address: str, table: str, target: Target, stage: Stage, *, timeout_s: float, shards: int | None, progress: bool
) -> WriteReport:
    """Writes what a served table holds."""
    with contextlib.closing(open_served(address, table, timeout_s=timeout_s)) as buffer:
        # Beside the dataset there is room for what is scanned.
        source = buffer_source(buffer, temporary_folder=os.path.dirname(os.path.realpath(target.folder)))
        stage.reading = True
        return write_rlds(
            source,
            target.folder,
            name=target.name,
            split=target.split,
            file_format=target.file_format,
            shards=shards,
            overwrite=target.overwrite,
            progress=progress,
        )


def validate(
    path: str, stage: Stage, *, split: str | None, episode_length: int | None, limit: int | None, progress: bool
) -> RldsReport:
    """Checks a source, with all its fields."""
    opened = open_path(path, split, episode_length)
    stage.reading = True
    return validate_rlds(opened, limit=limit, progress=progress)


def open_path(path: str, split: str | None, episode_length: int | None) -> EpisodeSource:
    """Opens a source with all its fields.

    Args:
      path: what `open_source` takes.
      split: of it.
      episode_length: of files of flat arrays, rows after which an episode ends; None: their flags tell.

    Raises:
      ValueError: `episode_length` is given with what is no such file.
    """
    if episode_length is None:
        return open_source(path, split=split, fields="all")
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".hdf5", ".h5", ".hdf", ".npz"):
        raise ValueError(f"--episode-length is for HDF5 and NPZ files of flat arrays, got {path!r}.")
    file = os.path.expanduser(path)
    if ending == ".npz":
        return open_source(npz_source(file, episode_length=episode_length), split=split, fields="all")
    return open_source(hdf5_source(file, episode_length=episode_length), split=split, fields="all")


def check_picture(path: pathlib.Path) -> None:
    """Raises where a picture cannot be written at `path`, or not in the format that it ends with."""
    check_picture_path(path)


def open_ruled(settings: ImportSettings) -> EpisodeSource:
    """Opens a source, in whichever process this is, and lays its rules over it."""
    return ruled(open_path(settings.source, settings.split, settings.episode_length), settings)


def ruled(opened: EpisodeSource, settings: ImportSettings) -> EpisodeSource:
    """The episodes that the settings let through, as RLDS has them."""
    if settings.on_bad_episode == "keep":
        if settings.alignment != "sar":
            raise ValueError("--on-bad-episode keep writes episodes as they are, so it takes no --alignment.")
        return opened if settings.limit is None else _first_of(opened, settings.limit)
    reward = opened.step_spec.get(REWARD)
    episodes = load_rlds(
        opened,
        layout="step",
        fields=rules_for_writing(opened.step_spec),
        on_bad_episode=settings.on_bad_episode,
        alignment=settings.alignment,
        limit=settings.limit,
        # Whatever float32 cannot hold is kept.
        reward_dtype=tf.float64 if getattr(reward, "dtype", None) in (tf.float64, tf.int64, tf.int32) else tf.float32,
    )
    return episodes.as_source()


def _first_of(source: EpisodeSource, limit: int) -> EpisodeSource:
    num_episodes = None if source.num_episodes is None else min(source.num_episodes, limit)
    return dataclasses.replace(
        source, read=lambda seed: itertools.islice(source.read(seed), limit), num_episodes=num_episodes
    )


def _has_slices(source: str, split: str) -> bool:
    """Whether a slice of the split is known, as it is of TFDS's datasets and not of files of arrays."""
    try:
        open_source(source, split=f"{split}[0:1]", fields="all")
    except (ValueError, TypeError):
        return False
    return True
