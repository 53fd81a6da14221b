"""Reads TFRecord and array_record files of RLDS episodes by path or pattern, without the rest of their dataset.

What the bytes mean is in `features.json`, which TFDS writes beside them; a recording that was
broken off has it, too, when it lacks `dataset_info.json`.
"""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from .ends_at_exit import EndsAtExit
from .episode_source import INDEX, EpisodeSource, RawEpisode, raw_episodes
from .rlds_fields import Choice
from .rlds_folder import FeatureReader, import_tfds, num_shuffled

FEATURES_FILE = "features.json"

_PARALLEL_EPISODES = 2

# How many records tell how long records are: nothing else does where the dataset's info is missing.
_RECORDS_ASKED = 4


def files_of(path: str) -> list[str]:
    """The record files that a path or pattern stands for, sorted; none when it stands for something else.

    >>> files_of("no/such/*.tfrecord-00000")
    []
    """
    found = [path] if os.path.isfile(path) else sorted(glob.glob(path))
    return [file for file in found if _is_array_record(file) or ".tfrecord" in os.path.basename(file)]


def files_source(
    files: Sequence[str],
    wanted: Choice,
    *,
    features: Any = None,
) -> EpisodeSource:
    """The episodes of some files of one dataset, in their order.

    Args:
      files: all TFRecord, or all array_record.
      wanted: of the steps.
      features: the dataset's TFDS FeaturesDict; by default that of `features.json` beside the first file.

    Raises:
      ImportError: TensorFlow Datasets is missing or broken.
      FileNotFoundError: there is no `features.json` beside the files.
      ValueError: files of both kinds; or as for a folder.
    """
    tfds = import_tfds()
    kinds = {_is_array_record(file) for file in files}
    if len(kinds) != 1:
        raise ValueError(f"expected files of one kind, TFRecord or array_record, got {list(files)}.")
    folder = pathlib.Path(files[0]).parent
    if features is None:
        if not (folder / FEATURES_FILE).exists():
            raise FileNotFoundError(
                f"{str(folder)!r} holds no {FEATURES_FILE}, so nothing tells what the records of "
                f"{os.path.basename(files[0])!r} mean."
            )
        features = tfds.features.FeatureConnector.from_config(str(folder))
    name = os.path.basename(files[0]).split(".")[0]
    reader = FeatureReader(name, features, wanted, where=str(folder))

    @tf.autograph.experimental.do_not_convert
    def parse(index: tf.Tensor, record: tf.Tensor) -> dict[str, Any]:
        return {**reader.select(reader.parse(record)), INDEX: index}

    def read(seed: int | None) -> Iterator[RawEpisode]:
        records = _array_records(files) if kinds == {True} else tf.data.TFRecordDataset(list(files))
        numbered = records.enumerate()
        if seed is not None:
            longest = max((len(record.numpy()) for record in records.take(_RECORDS_ASKED)), default=1)
            numbered = numbered.shuffle(num_shuffled(longest), seed, reshuffle_each_iteration=False)
        parsed = numbered.map(parse, num_parallel_calls=_PARALLEL_EPISODES, deterministic=True)
        return raw_episodes(parsed.prefetch(1))

    return reader.source(read, None)


def _array_records(files: Sequence[str]) -> tf.data.Dataset:
    from array_record.python import array_record_data_source

    def generate() -> Iterator[bytes]:
        with array_record_data_source.ArrayRecordDataSource(list(files)) as records:
            for index in range(len(records)):
                yield records[index]

    return tf.data.Dataset.from_generator(lambda: EndsAtExit(generate()), output_signature=tf.TensorSpec([], tf.string))


def _is_array_record(file: str) -> bool:
    return ".array_record" in os.path.basename(file)
