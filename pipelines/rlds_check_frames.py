"""Tells whether a column of an episode stands still, and which images of it are of one colour."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array

from .rlds_check_blocks import EpisodeBlock, Path

_MIN_SIDE = 8
_NUM_SAMPLED = 16
_VALUES_AT_ONCE = 1 << 20


def channels_of(spec: Any) -> int | None:
    """What the axis of channels of an image is, among those of one step, from the end; None of other fields.

    Args:
      spec: type spec of one step. An image is `[height, width]`, `[height, width, channels]` or
        `[channels, height, width]` of numbers, at least 8 x 8.

    Returns:
      -1: the last one; -3: the first of three; 0: there is none.

    >>> channels_of(tf.TensorSpec([64, 64, 3], tf.uint8)), channels_of(tf.TensorSpec([3, 64, 64], tf.uint8))
    (-1, -3)
    >>> channels_of(tf.TensorSpec([84, 84], tf.uint8)), channels_of(tf.TensorSpec([17], tf.float32))
    (0, None)
    """
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank not in (2, 3):
        return None
    if not (spec.dtype.is_integer or spec.dtype.is_floating):
        return None
    is_long = [size is None or size >= _MIN_SIDE for size in spec.shape.as_list()]
    if all(is_long[:2]):
        return -1 if len(is_long) == 3 else 0
    return -3 if is_long == [False, True, True] else None


def is_still(column: Array) -> bool:
    """Whether all rows `[N, ...]` are the same; of a column without values False.

    >>> is_still(np.array([[1, 2], [1, 2]])), is_still(np.array([[1, 2], [1, 3]]))
    (True, False)
    """
    if not column.size:
        return False
    num_rows = len(column)
    rows = column.reshape(num_rows, -1)
    # What moves at all has nearly always moved by the end, or by the middle: nothing else is then looked at.
    if not ((rows[-1] == rows[0]).all() and (rows[num_rows // 2] == rows[0]).all()):
        return False
    at_once = max(_VALUES_AT_ONCE // rows.shape[1], 1)
    return all(bool((rows[start : start + at_once] == rows[0]).all()) for start in range(0, num_rows, at_once))


def are_still(block: EpisodeBlock, path: Path) -> Array:
    """In which episodes of a block `is_still` a field, an array in each; bool `[E]`.

    >>> from replayfeed.pipelines.episode_source import RawEpisode
    >>> moves, stays = np.array([1, 2, 3]), np.array([4, 4])
    >>> block = EpisodeBlock([RawEpisode("0", {}), RawEpisode("1", {})], {("state",): [moves, stays]}, [3, 2])
    >>> are_still(block, ("state",)).tolist()
    [False, True]
    """
    leaves, column = block.leaves[path], block.columns.get(path)
    if column is None:
        return np.array([is_still(leaf) for leaf in leaves])
    # As below, of all of them at once.
    rows = column.reshape(len(column), -1)
    first = rows[block.first]
    stays: Array = (rows[block.last] == first).all(axis=1)
    stays &= (rows[block.first + block.lengths // 2] == first).all(axis=1)
    for index in np.flatnonzero(stays).tolist():
        stays[index] = is_still(leaves[index])
    return stays


def one_colour(images: Array, channels: int) -> Array:
    """Which images are of one colour, bool `[N]`; black ones are.

    Args:
      images: `[N, ...]`, of at least 8 x 8 pixels each.
      channels: their axis, as `channels_of` tells.

    >>> images = np.zeros([2, 8, 8, 3], np.uint8)
    >>> images[1, 4, 4] = 255
    >>> one_colour(images, -1).tolist()
    [True, False]
    """
    num_images = len(images)
    if not images.size:
        return np.zeros([num_images], bool)
    num_planes = images.shape[1] if channels == -3 else 1
    planes = images.reshape(num_images, num_planes, -1)
    step = images.shape[-1] if channels == -1 else 1
    # A few pixels decide for nearly all images; only what is left is compared whole.
    pixels = np.linspace(0, planes.shape[2] // step - 1, _NUM_SAMPLED).astype(np.int64) * step
    sampled = planes[:, :, pixels]
    found: Array = (sampled == sampled[:, :, :1]).all(axis=(1, 2))
    left = np.flatnonzero(found)
    at_once = max(_VALUES_AT_ONCE // planes[0].size, 1)
    for start in range(0, len(left), at_once):
        some = left[start : start + at_once]
        # Each pixel equals the one before it: long runs of memory, however few the channels are.
        found[some] = (planes[some][:, :, step:] == planes[some][:, :, :-step]).all(axis=(1, 2))
    return found


def num_amid_others(is_blank: Array) -> int:
    """Images of one colour with others before and after them; a fade at either end is none.

    Args:
      is_blank: what `one_colour` tells of an episode.

    >>> num_amid_others(np.array([True, False, True, True, False, True]))
    2
    """
    others = np.flatnonzero(~is_blank)
    return int(np.count_nonzero(is_blank[others[0] : others[-1]])) if others.size else 0
