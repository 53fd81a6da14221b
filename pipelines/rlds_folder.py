"""Reads a TFDS dataset folder an episode at a time, as arrays. TFDS is imported when it is used.

TFDS decodes a step at a time by default. Here its decoding of `steps` is skipped, so that an
episode comes as the arrays that its tf.train.Example holds; what is encoded in there (images,
compressed tensors) is decoded leaf by leaf with the feature's own function.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Nest

from .episode_source import EpisodeSource, RawEpisode, raw_episodes
from .rlds_steps import INVALID, LOADED_FIELDS, STEPS, check_step_spec

_INFO_FILE = "dataset_info.json"

# Episodes that are decoded at the same time; each is held decoded as a whole.
_PARALLEL_EPISODES = 2

_EXTRA = "replayfeed[rlds]"

_Reader = tuple[Callable[[int | None], Iterator[RawEpisode]], int | None]


def folder_source(path: str, split: str) -> EpisodeSource:
    """The episodes of a TFDS folder, in the order of its files.

    Raises:
      ImportError: TensorFlow Datasets is missing or broken; the message names the way out.
      FileNotFoundError: `path` holds no `dataset_info.json`.
      ValueError: the dataset has no such split, no `steps`, or a field that cannot be loaded.
    """
    tfds = _import_tfds()
    _check_folder(path)
    builder = tfds.builder_from_directory(path)
    name = builder.info.name
    features = builder.info.features
    if STEPS not in features:
        raise ValueError(f"{path} holds no episodes: expected a feature 'steps', found {sorted(features)}.")
    step_features = features[STEPS].feature
    loaded = {field: step_features[field] for field in LOADED_FIELDS if field in step_features}
    step_spec = {field: feature.get_tensor_spec() for field, feature in loaded.items()}
    check_step_spec(name, step_spec)
    is_array_record = builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD
    read, num_episodes = (_array_record_reader if is_array_record else _tfrecord_reader)(tfds, builder, split, loaded)
    return EpisodeSource(
        name,
        step_spec,
        read,
        num_episodes=num_episodes,
        not_loaded=tuple(sorted(set(step_features) - set(loaded))),
        is_d4rl=name.startswith("d4rl_"),
    )


def _tfrecord_reader(tfds: Any, builder: Any, split: str, loaded: Mapping[str, Any]) -> _Reader:
    dataset = builder.as_dataset(
        split=split,
        decoders=_skip_all(tfds, builder.info.features),
        shuffle_files=False,
        # The order of the files; TFDS interleaves 16 of them otherwise.
        read_config=tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False),
    )

    def select(episode: Mapping[str, Any]) -> dict[str, Any]:
        columns = {field: _decode(feature, episode[STEPS][field]) for field, feature in loaded.items()}
        return {STEPS: columns, INVALID: episode.get(INVALID, False)}

    dataset = dataset.map(select, num_parallel_calls=_PARALLEL_EPISODES, deterministic=True).prefetch(
        _PARALLEL_EPISODES
    )
    num_episodes = int(dataset.cardinality())
    return lambda seed: raw_episodes(dataset), num_episodes if num_episodes >= 0 else None


def _array_record_reader(tfds: Any, builder: Any, split: str, loaded: Mapping[str, Any]) -> _Reader:
    """TFDS reads array_record files only as a sequence of episodes, not as a tf.data.Dataset."""
    # Only steps: without TensorFlow TFDS cannot skip the decoding of sequences.
    episodes = builder.as_data_source(split, decoders={STEPS: tfds.decode.SkipDecoding()})

    def read(seed: int | None) -> Iterator[RawEpisode]:
        for index, episode in enumerate(episodes):
            columns = {field: _decode(feature, episode[STEPS][field]) for field, feature in loaded.items()}
            columns = tf.nest.map_structure(np.asarray, columns)
            yield RawEpisode(str(index), columns, bool(episode.get(INVALID, False)))

    return read, len(episodes)


def _skip_all(tfds: Any, features: Any) -> dict[str, Any]:
    """Decoders that leave everything as the file holds it, episode metadata too."""
    return {
        key: _skip_all(tfds, feature) if isinstance(feature, tfds.features.FeaturesDict) else tfds.decode.SkipDecoding()
        for key, feature in features.items()
    }


def _decode(feature: Any, column: Nest) -> Nest:
    """A field's arrays `[N + 1, ...]`, decoded where the file holds them encoded."""
    if isinstance(column, Mapping):
        return {key: _decode(feature[key], column[key]) for key in column}
    spec = feature.get_tensor_spec()
    if column.dtype == spec.dtype and list(column.shape[1:]) == spec.shape.as_list():
        return column
    return tf.map_fn(feature.decode_example, column, fn_output_signature=spec)


def _check_folder(path: str) -> None:
    if tf.io.gfile.exists(os.path.join(path, _INFO_FILE)):
        return
    below = []
    if tf.io.gfile.isdir(path):
        names = (name.rstrip("/") for name in tf.io.gfile.listdir(path))
        below = sorted(name for name in names if tf.io.gfile.exists(os.path.join(path, name, _INFO_FILE)))
    hint = f"; there is one in {', '.join(repr(os.path.join(path, name)) for name in below)}" if below else ""
    raise FileNotFoundError(f"{path!r} is no TFDS dataset: it holds no {_INFO_FILE}{hint}.")


def _import_tfds() -> Any:
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
