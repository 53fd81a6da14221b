"""What TFDS calls the fields of a dataset that is written: its `features.json`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .rlds_folder import import_tfds
from .rlds_steps import STEPS
from .rlds_write_format import EpisodeFormat, FieldFormat


def to_tfds_features(fmt: EpisodeFormat) -> Any:
    """The `tfds.features.FeaturesDict` that reads what `serialize_episode` writes.

    Raises:
      ImportError: TensorFlow Datasets is missing or broken.

    >>> from replayfeed.pipelines.rlds_write_format import episode_format
    >>> spec = {"reward": tf.TensorSpec([], tf.float64), "is_terminal": tf.TensorSpec([], tf.bool)}
    >>> fmt = episode_format("mine", spec)
    >>> to_tfds_features(fmt)["steps"]["reward"].to_json_content().encoding
    'bytes'
    """
    tfds = import_tfds()
    steps = _nest(tfds, [(field.path[1:], field) for field in fmt.steps])
    episode = _nest(tfds, [(field.path, field) for field in fmt.metadata])
    return tfds.features.FeaturesDict({**episode, STEPS: tfds.features.Dataset(steps)})


def _nest(tfds: Any, fields: list[tuple[tuple[str, ...], FieldFormat]]) -> dict[str, Any]:
    features: dict[str, Any] = {}
    for path, field in fields:
        place = features
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = _feature(tfds, field)
    return features


def _feature(tfds: Any, field: FieldFormat) -> Any:
    dtype = tf.as_dtype(field.dtype)
    if field.encoding == "png":
        feature = tfds.features.Image(shape=field.shape, dtype=dtype.as_numpy_dtype, encoding_format="png")
    elif field.dtype == "string" and not field.shape:
        feature = tfds.features.Text()
    else:
        encoding = "bytes" if field.encoding == "bytes" else "none"
        feature = tfds.features.Tensor(shape=field.shape, dtype=dtype, encoding=encoding)
    for _ in range(field.num_sequences):
        feature = tfds.features.Sequence(feature)
    return feature
