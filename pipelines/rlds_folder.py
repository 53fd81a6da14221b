"""Reads a TFDS dataset an episode at a time, as arrays. TFDS is imported when it is used.

TFDS decodes a step at a time by default. Here its decoding of `steps` is skipped, so that an
episode comes as the arrays that its tf.train.Example holds; what is encoded in there (images,
compressed tensors) is decoded leaf by leaf (`rlds_decode.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Nest, field_path

from .ends_at_exit import EndsAtExit
from .episode_source import EPISODE_ID, INDEX, METADATA, EpisodeSource, RawEpisode, raw_episodes
from .rlds_decode import ColumnDecoder, decode_value, features_by_place
from .rlds_fields import Choice, FieldPlan, plan_fields
from .rlds_sequences import as_written, spec_of_value
from .rlds_steps import INVALID, STEPS

INFO_FILE = "dataset_info.json"

# Episodes that are decoded at the same time; each is held decoded as a whole, so of long ones only one.
_PARALLEL_EPISODES = 2
_LONG_EPISODE_BYTES = 8 << 20

# What a shuffled reading chooses from, besides the order of the files: episodes as the files hold them, undecoded.
_SHUFFLED_BYTES = 64 << 20
_MAX_SHUFFLED_EPISODES = 4096
_FILES_AT_A_TIME = 8

_EXTRA = "replayfeed[rlds]"


def folder_source(path: str, split: str, wanted: Choice) -> EpisodeSource:
    """The episodes of a TFDS folder.

    Args:
      path: the folder that holds `dataset_info.json`.
      split: as TFDS names it.
      wanted: of the steps.

    Raises:
      ImportError: TensorFlow Datasets is missing or broken; the message names the way out.
      FileNotFoundError: `path` holds no `dataset_info.json`.
      ValueError: the dataset has no such split, no `steps`, or a field that cannot be loaded.
    """
    tfds = import_tfds()
    _check_folder(path)
    return builder_source(tfds.builder_from_directory(path), split, wanted, where=path)


def name_source(
    name: str,
    split: str,
    wanted: Choice,
    *,
    data_dir: str | None = None,
    download: bool = True,
) -> EpisodeSource:
    """The episodes of a dataset that TFDS knows by name, such as `'d4rl_mujoco_hopper/v2-medium'`.

    Args:
      name: with config and version where they matter.
      split: as TFDS names it.
      wanted: of the steps.
      data_dir: where TFDS keeps its datasets.
      download: download and prepare what is not there.

    Raises:
      ImportError: TensorFlow Datasets is missing or broken; the message names the way out.
      FileNotFoundError: TFDS knows no such dataset, or it is not there and may not be downloaded.
      ValueError: as `folder_source`.
    """
    tfds = import_tfds()
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
        # TFDS asserts that it has the version.
        raise FileNotFoundError(
            f"{name!r} is no folder, and TFDS knows no dataset of this name: {str(error).splitlines()[0]}"
        ) from error
    if not builder.is_prepared() if hasattr(builder, "is_prepared") else not os.path.exists(builder.data_dir):
        if not download:
            raise FileNotFoundError(f"{name!r} is not in {builder.data_dir}; download=True lets TFDS prepare it there.")
        builder.download_and_prepare()
    return builder_source(builder, split, wanted, where=name)


def builder_source(builder: Any, split: str, wanted: Choice, *, where: str) -> EpisodeSource:
    """The episodes that a TFDS builder has on disk."""
    tfds = import_tfds()
    features = builder.info.features
    reader = FeatureReader(builder.info.name, features, wanted, where=where)
    is_array_record = builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD
    read, num_episodes = (_array_record_reader if is_array_record else _tfrecord_reader)(tfds, builder, split, reader)
    return reader.source(read, num_episodes)


class FeatureReader:
    """Loads episodes by the TFDS features of their dataset, as `SkipDecoding` leaves them.

    Args:
      name: the dataset's.
      features: its FeaturesDict.
      wanted: of the steps.
      where: the dataset's place, for messages.

    Raises:
      ValueError: the dataset has no `steps`, or a field that cannot be loaded.
    """

    def __init__(self, name: str, features: Any, wanted: Choice, *, where: str) -> None:
        if STEPS not in features:
            raise ValueError(f"{where} holds no episodes: expected a feature 'steps', found {sorted(features)}.")
        self._name = name
        self._features = features
        step_features = features[STEPS].feature
        self._decoder = ColumnDecoder(features_by_place(step_features), wanted.decoders)
        self._own = [key for key in features if key not in (STEPS, INVALID)]
        given = _given_spec(self._decoder, {key: spec_of_value(step_features[key]) for key in step_features})
        self._plan: FieldPlan = plan_fields(name, given, wanted)
        tfds = import_tfds()
        self._stored = as_written(tfds, features)
        self._skip = _skip_all(tfds, self._stored)

    def decoders(self, tfds: Any) -> Any:
        """What TFDS's `as_dataset` needs to leave everything as the file holds it, episode metadata too."""
        if self._stored is self._features:
            return self._skip
        stored = self._stored

        class AsWritten(tfds.decode.PartialDecoding):
            """Parses by the features by which TFDS finds what it wrote."""

            def extract_features(self, features: Any) -> Any:
                return stored

        return AsWritten(stored, decoders=self._skip)

    def parse(self, record: Any) -> Any:
        """An episode as the file holds it, of its bytes."""
        return self._stored.deserialize_example(record, decoders=self._skip)

    def select(self, episode: Mapping[str, Any]) -> dict[str, Any]:
        """The loaded part of an episode, an element for `raw_episodes`."""
        return {
            STEPS: self._plan.select(episode[STEPS], self._decoder.load),
            INVALID: episode.get(INVALID, False),
            METADATA: {key: decode_value(self._features[key], episode[key]) for key in self._own},
        }

    def select_as_it_is(self, episode: Mapping[str, Any]) -> dict[str, Any]:
        """As `select`, eagerly and at a tenth of its cost, where `takes_as_it_is`."""
        return {
            STEPS: self._plan.select(episode[STEPS], lambda leaf, column: column),
            INVALID: episode.get(INVALID, False),
            METADATA: {key: episode[key] for key in self._own},
        }

    def takes_as_it_is(self, stored: Any) -> bool:
        """Whether the columns of a dataset of episodes, of this spec, need nothing done to them."""
        own_stored = tf.nest.flatten([stored[key] for key in self._own])
        own = tf.nest.flatten([self._features[key].get_tensor_spec() for key in self._own])
        if self._stored is not self._features:
            return False
        if [spec.dtype for spec in own_stored] != [spec.dtype for spec in own]:
            return False
        return all(tf.nest.flatten(self._plan.select(stored[STEPS], self._decoder.takes_as_it_is)))

    def source(self, read: Callable[[int | None], Iterator[RawEpisode]], num_episodes: int | None) -> EpisodeSource:
        """The source that reads so."""
        return EpisodeSource(
            self._name,
            self._plan.step_spec,
            read,
            num_episodes=num_episodes,
            not_loaded=self._plan.not_loaded,
            metadata_spec={key: spec_of_value(self._features[key]) for key in self._own},
            is_d4rl=self._name.startswith("d4rl_"),
        )


def _tfrecord_reader(
    tfds: Any, builder: Any, split: str, reader: FeatureReader
) -> tuple[Callable[[int | None], Iterator[RawEpisode]], int | None]:
    infos = [builder.info.splits[name] for name in _split_names(builder, split)]
    bytes_an_episode = sum(info.num_bytes for info in infos) // max(1, sum(info.num_examples for info in infos))
    first_of_file = _file_starts(infos)
    num_decoded = 1 if bytes_an_episode > _LONG_EPISODE_BYTES else _PARALLEL_EPISODES

    def stored(seed: int | None) -> tf.data.Dataset:
        # The order of the files, one after the other; TFDS interleaves 16 of them otherwise. There the ids follow from
        # the order, and TFDS's own are not asked for: they cost half as much as reading.
        files_at_a_time = 1 if seed is None else _FILES_AT_A_TIME
        config = tfds.ReadConfig(
            interleave_cycle_length=files_at_a_time,
            interleave_block_length=1,
            shuffle_seed=seed,
            add_tfds_id=seed is not None,
            try_autocache=False,
            # A seed asks for another order also where the dataset's own one has a meaning.
            enable_ordering_guard=False,
        )
        with without_deprecations():
            return builder.as_dataset(
                split=split, decoders=reader.decoders(tfds), shuffle_files=seed is not None, read_config=config
            )

    def placed(raw: RawEpisode, file: str, number: int) -> RawEpisode:
        """With the id that TFDS gives it, the same in every slice and order."""
        raw = raw._replace(id=f"{file}__{number}")
        if file not in first_of_file:
            return raw
        place = first_of_file[file] + number
        return raw._replace(name=str(place), place=place)

    # Asks for the split, so that an unknown one is told here. Kept: to make it costs as much as reading 50 episodes.
    in_order = stored(None)

    def read(seed: int | None) -> Iterator[RawEpisode]:
        dataset = in_order if seed is None else stored(seed)
        if seed is not None:
            dataset = dataset.shuffle(num_shuffled(bytes_an_episode), seed, reshuffle_each_iteration=False)
        as_it_is = reader.takes_as_it_is(dataset.element_spec)
        select = reader.select_as_it_is if as_it_is else tf.autograph.experimental.do_not_convert(reader.select)
        if seed is not None:
            select = _with_id(select)
        if as_it_is:
            # No graph of our own: a call of one costs as much as reading a short episode.
            episodes = raw_episodes(dataset.prefetch(num_decoded), select)
        else:
            dataset = dataset.map(select, num_parallel_calls=num_decoded, deterministic=True)
            episodes = raw_episodes(dataset.prefetch(num_decoded))
        if seed is None:
            in_files = zip(episodes, _stored_in_order(builder, split), strict=True)
            return (placed(raw, file, number) for raw, (file, number) in in_files)
        return (placed(raw, *_file_and_number(raw.id)) for raw in episodes)

    num_episodes = int(in_order.cardinality())
    return read, num_episodes if num_episodes >= 0 else None


def _array_record_reader(
    tfds: Any, builder: Any, split: str, reader: FeatureReader
) -> tuple[Callable[[int | None], Iterator[RawEpisode]], int | None]:
    """TFDS reads array_record files as a sequence of episodes only; here it is asked for their bytes."""
    records = builder.as_data_source(split).data_source
    first_of_file = _file_starts([builder.info.splits[name] for name in _split_names(builder, split)])
    numbered_in_files = [
        (os.path.basename(part.filename), number)
        for part in builder.info.splits[split].file_instructions
        for number in range(part.skip, part.skip + part.take)
    ]

    @tf.autograph.experimental.do_not_convert
    def parse(place: tf.Tensor, episode_id: tf.Tensor, record: tf.Tensor) -> dict[str, Any]:
        return {**reader.select(reader.parse(record)), INDEX: place, EPISODE_ID: episode_id}

    def read(seed: int | None) -> Iterator[RawEpisode]:
        order = np.arange(len(records)) if seed is None else np.random.default_rng(seed).permutation(len(records))

        def generate() -> Iterator[tuple[int, str, bytes]]:
            for row in order.tolist():
                file, number = numbered_in_files[row]
                # The id that TFDS would give it: the same in every slice, another one in every split.
                yield first_of_file[file] + number, f"{file}__{number}", records[row]

        numbered = tf.data.Dataset.from_generator(
            lambda: EndsAtExit(generate()),
            output_signature=(tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.string)),
        )
        parsed = numbered.map(parse, num_parallel_calls=_PARALLEL_EPISODES, deterministic=True)
        return raw_episodes(parsed.prefetch(1))

    return read, len(records)


def import_tfds() -> Any:
    """TensorFlow Datasets.

    Raises:
      ImportError: it is missing, or is the empty module that a newer tensorflow-metadata makes of it.
    """
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(f"reading a dataset folder needs TensorFlow Datasets: install {_EXTRA}.") from error
    if not hasattr(tfds, "builder_from_directory"):
        raise ImportError(
            "tensorflow_datasets imports as an empty module, which is what tensorflow-metadata 1.18 and later do to it "
            f"beside TensorFlow 2.15: install 'tensorflow-metadata<1.18' ({_EXTRA} asks for it)."
        )
    return tfds


def num_shuffled(bytes_an_episode: int) -> int:
    """Undecoded episodes among which a shuffled reading chooses.

    >>> num_shuffled(10_000_000), num_shuffled(1000)
    (6, 4096)
    """
    return max(2, min(_SHUFFLED_BYTES // max(1, bytes_an_episode), _MAX_SHUFFLED_EPISODES))


@contextlib.contextmanager
def without_deprecations() -> Iterator[None]:
    """Keeps TensorFlow's log from telling users what TFDS calls that is deprecated."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _skip_all(tfds: Any, features: Any) -> dict[str, Any]:
    skipped = {}
    for key, feature in features.items():
        # A Sequence of dicts is stored as a dict of sequences; of steps there is one decoder.
        inner = feature.feature if type(feature) is tfds.features.Sequence else feature
        is_dict = isinstance(inner, tfds.features.FeaturesDict)
        skipped[key] = _skip_all(tfds, inner) if is_dict else tfds.decode.SkipDecoding()
    return skipped


def _given_spec(decoder: ColumnDecoder, spec: Nest, path: tuple[str, ...] = ()) -> Nest:
    if isinstance(spec, Mapping):
        return {key: _given_spec(decoder, child, (*path, key)) for key, child in spec.items()}
    return decoder.given(field_path(path), spec)


def _split_names(builder: Any, split: str) -> list[str]:
    """The dataset's own splits that a TFDS split expression, such as `'train[:10]+test'`, reads."""
    words = re.findall(r"[^+\[\]\s]+(?=\[|\+|\s|$)", split)
    return [name for name in builder.info.splits if name in words] or list(builder.info.splits)


def _file_starts(infos: Sequence[Any]) -> dict[str, int]:
    """The place of each file's first episode, by the file's name."""
    starts, start = {}, 0
    for info in infos:
        for name, length in zip(sorted(info.filenames), info.shard_lengths, strict=True):
            starts[name] = start
            start += length
    return starts


def _with_id(select: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    @tf.autograph.experimental.do_not_convert
    def select_with_id(episode: Mapping[str, Any]) -> dict[str, Any]:
        return {**select(episode), EPISODE_ID: episode[EPISODE_ID]}

    return select_with_id


def _stored_in_order(builder: Any, split: str) -> Iterator[tuple[str, int]]:
    """The file of each episode of a split, and its number in there, in the order in which TFDS reads them."""
    for part in builder.info.splits[split].file_instructions:
        name = os.path.basename(str(part.filename))
        stop = part.skip + part.take if part.take >= 0 else part.examples_in_shard
        yield from ((name, number) for number in range(part.skip, stop))


def _file_and_number(episode_id: str) -> tuple[str, int]:
    """What an id of TFDS is made of.

    >>> _file_and_number("mine-train.tfrecord-00000-of-00001__7")
    ('mine-train.tfrecord-00000-of-00001', 7)
    """
    file, _, number = episode_id.rpartition("__")
    return file, int(number)


def _check_folder(path: str) -> None:
    if tf.io.gfile.exists(os.path.join(path, INFO_FILE)):
        return
    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(f"{path!r}: there is no such file or folder, and no file matches it as a pattern.")
    if not tf.io.gfile.isdir(path):
        raise FileNotFoundError(
            f"{path!r} is no file of episodes that is known here: expected TFRecord ('...tfrecord...'), array_record, "
            "HDF5 ('.hdf5', '.h5') or NPZ."
        )
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(path))
    below = sorted(name for name in names if tf.io.gfile.exists(os.path.join(path, name, INFO_FILE)))
    hint = f"; there is one in {', '.join(repr(os.path.join(path, name)) for name in below)}" if below else ""
    raise FileNotFoundError(f"{path!r} is no TFDS dataset: it holds no {INFO_FILE}{hint}.")
