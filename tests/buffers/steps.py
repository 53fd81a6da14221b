"""Frames that tell their episodes' ends, and frames of every dtype, for tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

FIRST, MID, LAST = 0, 1, 2


class Step(NamedTuple):
    """A Trajectory's ends, with no more than it takes."""

    step_type: Any
    value: Any


STEP = Step(tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64))

EVERY_DTYPE = {
    "bf": tf.TensorSpec([2], tf.bfloat16),
    "half": tf.TensorSpec([], tf.float16),
    "bool": tf.TensorSpec([3], tf.bool),
    "int8": tf.TensorSpec([], tf.int8),
    "uint16": tf.TensorSpec([2, 2], tf.uint16),
    "complex": tf.TensorSpec([], tf.complex64),
    "image": tf.TensorSpec([40, 40], tf.uint8),
    "large": tf.TensorSpec([300], tf.float32),
}
