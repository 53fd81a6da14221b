"""Where offline episodes come from: the one seam between readers of files and what uses them.

A reader (of a TFDS folder, an HDF5 file, a buffer, ...) makes an `EpisodeSource`; loading,
checking and writing take one, and know nothing of where it reads.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import tensorflow as tf

from replayfeed.buffers.nests import Nest

from .feed import iterate
from .rlds_steps import INVALID, STEPS, Columns

EPISODE_ID = "tfds_id"
"""The key under which TFDS names an example, `'train.tfrecord-00000-of-00001__7'`."""

METADATA = "metadata"
"""The key of an episode's own fields, where a reader's dataset carries them beside `steps`."""

INDEX = "index"
"""The key of an episode's place in the source's own order, there."""

_NO_FIELDS: Mapping[str, Nest] = MappingProxyType({})


class RawEpisode(NamedTuple):
    """An episode as a source reads it, unchecked.

    Attributes:
      name: its index in the source's own order, as text; for messages.
      columns: the steps, arrays `[N + 1, ...]` of the loaded fields; strings are bytes in
        arrays of objects. A source that was opened with `fields='all'` gives a
        `tf.RaggedTensor` where a field is of variable length.
      invalid: the dataset's own `invalid` flag.
      metadata: the episode's own fields, NumPy values; without `steps` and `invalid`.
      id: what names it for ever, so that an interrupted load can go on; empty: its name does.
      place: in the source's own order, whatever the order of reading; -1: that of reading.
    """

    name: str
    columns: Columns
    invalid: bool = False
    metadata: Mapping[str, Nest] = _NO_FIELDS
    id: str = ""
    place: int = -1


@dataclasses.dataclass(frozen=True)
class EpisodeSource:
    """Where episodes come from.

    Attributes:
      name: for reports and messages.
      step_spec: specs of one step, for each loaded field, that `check_step_spec` lets through.
      read: starts reading; with None from the first episode on in the source's order, with a
        seed in an order that it decides (shuffled before anything is decoded).
      num_episodes: how many there are; None when unknown.
      not_loaded: fields of a step that stay behind, each with why where that is not plain.
      metadata_spec: specs of the episode's own fields.
      is_d4rl: made by TFDS's D4RL builders, whose episode ends lack an observation.
      notes: what else a reader of a load report has to know of the source.
      told: what the latest reading had to tell; nothing of most sources.

    >>> import numpy as np
    >>> steps = {"observation": np.arange(3), "is_terminal": np.array([False, False, True])}
    >>> source = EpisodeSource("mine", {"observation": tf.TensorSpec([], tf.int64),
    ...     "is_terminal": tf.TensorSpec([], tf.bool)}, lambda seed: iter([RawEpisode("0", steps)]))
    >>> [episode.columns["observation"].tolist() for episode in source.read(None)]
    [[0, 1, 2]]
    """

    name: str
    step_spec: Mapping[str, Nest]
    read: Callable[[int | None], Iterator[RawEpisode]]
    num_episodes: int | None = None
    not_loaded: tuple[str, ...] = ()
    metadata_spec: Mapping[str, Nest] = dataclasses.field(default_factory=dict)
    is_d4rl: bool = False
    notes: tuple[str, ...] = ()
    told: Callable[[], tuple[str, ...]] = tuple


def raw_episodes(
    dataset: tf.data.Dataset, select: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
) -> Iterator[RawEpisode]:
    """The episodes of a reader's dataset, `{'steps': nest of [N + 1, ...], 'invalid': bool, 'metadata': {...}, ...}`.

    Never a Python loop over steps: an element is a whole episode. `'index'` names it, where it
    is there, else the order of reading does; `'tfds_id'` may be there too.

    Args:
      dataset: of such elements.
      select: makes them of what the dataset has, eagerly.
    """
    for number, element in enumerate(iterate(dataset)):
        episode = element if select is None else select(element)
        known = int(episode[INDEX]) if INDEX in episode else -1
        index = known if known >= 0 else number
        yield RawEpisode(
            name=str(index),
            columns=_to_numpy(episode[STEPS]),
            invalid=bool(episode[INVALID]),
            metadata=_to_numpy(episode.get(METADATA, {})),
            id=episode[EPISODE_ID].numpy().decode() if EPISODE_ID in episode else "",
            place=index,
        )


def reason_of(error: tf.errors.OpError) -> str:
    """What went wrong in a graph, without the names of its nodes and operations.

    >>> reason_of(tf.errors.DataLossError(None, None, "{{function_node next}} truncated record at 216' failed"))
    "truncated record at 216' failed"
    >>> reason_of(tf.errors.NotFoundError(None, None, "train-00001; No such file [Op:IteratorGetNext] name: "))
    'train-00001; No such file'
    >>> reason_of(tf.errors.InvalidArgumentError(None, None, "assertion failed: [too long] [Condition x <= y]"))
    'too long'
    """
    asserted = re.search(r"assertion failed: \[(.*?)\] \[", error.message, re.DOTALL)
    if asserted:
        return asserted.group(1).replace("\\'", "'")
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\] name: \w*$", "", error.message.splitlines()[0])


def _to_numpy(nest: Nest) -> Nest:
    # tf.nest alone takes as long as reading a short episode: tensors, and dicts of them, do without.
    if isinstance(nest, tf.Tensor):
        return nest.numpy()
    if type(nest) is dict:
        return {key: _to_numpy(child) for key, child in nest.items()}
    return tf.nest.map_structure(
        lambda leaf: leaf if isinstance(leaf, tf.RaggedTensor) else leaf.numpy(), nest, expand_composites=False
    )
