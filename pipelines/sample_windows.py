"""The axes of a sample: functions on windows `[B, T, ...]` made to fit samples without a `B` axis too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from replayfeed.buffers import AgentInfo, BufferInfo, LockstepInfo
from replayfeed.buffers.nests import Nest

Transform = Callable[[Nest, BufferInfo], tuple[Nest, BufferInfo]]
"""What `Dataset.map` takes and what `sample` gives fits into: `(items, info) -> (items, info)`."""


def on_windows(name: str, transform: Transform, *, any_length: bool = False) -> Transform:
    """`transform`, which is written for leaves `[B, T, ...]`, for samples with and without the `B` axis.

    Args:
      name: what the caller calls it, for messages.
      transform: from and to leaves with a `B` axis.
      any_length: it takes windows of unknown length too (whole episodes).

    What it returns raises when it is called or traced:
      ValueError: the sample holds no windows, or windows of unknown length without `any_length`.
    """

    @tf.autograph.experimental.do_not_convert
    def transformed(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
        if isinstance(info.mask, dict):
            raise ValueError(f"{name} takes the windows of one agent: of_agent(agent) gives them, and its mask.")
        info = type(info)(*(tf.convert_to_tensor(value) for value in info))
        batched = info.probabilities.shape.rank == 1
        if info.mask.shape.rank != (2 if batched else 1):
            raise ValueError(
                f"{name} takes windows, and this sample holds single frames: draw it with window=Window(...)."
            )
        if info.mask.shape[-1] is None and not any_length:
            raise ValueError(
                f"{name} takes windows of a known length; those of this dataset differ in length: "
                "draw them with window=Window(...) and short='pad'."
            )
        if batched:
            return transform(tf.nest.map_structure(tf.convert_to_tensor, items), info)
        items, info = tf.nest.map_structure(lambda leaf: tf.expand_dims(leaf, 0), (items, info))
        return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), transform(items, info))

    return transformed


def replace_rows(info: BufferInfo, function: Callable[[tf.Tensor], tf.Tensor]) -> BufferInfo:
    """`info` with `function` of all that has a `T` axis: ids, mask, and of many agents times."""
    changed = info._replace(ids=function(info.ids), mask=function(info.mask))
    if isinstance(changed, AgentInfo | LockstepInfo):
        return changed._replace(times=function(changed.times))
    return changed


def window_length(info: BufferInfo) -> int | tf.Tensor:
    """`T`: an int where it is known, else int32 `[]`."""
    length = info.mask.shape[1]
    return tf.shape(info.mask)[1] if length is None else int(length)


def take_frames(leaf: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Frames of `leaf` `[B, T, ...]` at `rows` `[B]` or `[B, ...]`, which `row_numbers` made; their shape in front."""
    return tf.gather(tf.reshape(leaf, [-1, *leaf.shape[2:]]), rows)


def row_numbers(frames: tf.Tensor, num_frames: int | tf.Tensor) -> tf.Tensor:
    """Where frames int32 `[B]` or `[B, ...]` of windows of `num_frames` lie when the windows stand in one row.

    >>> row_numbers(tf.constant([[0, 2], [1, 2]]), 3).numpy().tolist()
    [[0, 2], [4, 5]]
    """
    starts = tf.range(0, tf.shape(frames)[0] * num_frames, num_frames)
    return frames + tf.reshape(starts, [-1] + [1] * (frames.shape.rank - 1))


def like(value: Any, leaf: tf.Tensor) -> tf.Tensor:
    """`value` `[B, T]` with as many axes of one behind as `leaf` `[B, T, ...]` has.

    >>> like(tf.ones([2, 3]), tf.ones([2, 3, 4])).shape
    TensorShape([2, 3, 1])
    """
    value = tf.convert_to_tensor(value)
    for _ in range(leaf.shape.rank - value.shape.rank):
        value = value[..., None]
    return value
