"""Gathers episodes into blocks, so that one call looks at many of them: a call costs as much as a hundred steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, StructureError, compile_flatten

from .episode_source import RawEpisode

Path = tuple[str, ...]
"""A field of a step by its place, `('observation', 'image')`."""

# About what a core's cache holds while all checks pass over it.
_BYTES_AT_ONCE = 1 << 20
_EPISODES_AT_ONCE = 512


class EpisodeBlock:
    """Episodes of one step and more, each of whose fields are of one length, one after the other.

    Letters: `E` episodes of `R` steps together.

    Attributes:
      raws: the episodes as they were read.
      leaves: for each field its columns, one of each episode: arrays, or `tf.RaggedTensor`.
      columns: the same one after the other, `[R, ...]`, of those fields that are arrays of numbers.
      lengths: steps of each episode, int64 `[E]`, 1 or more.
      first, last: the rows of the first and last step of each, int64 `[E]`.

    >>> block = EpisodeBlock([RawEpisode("0", {}), RawEpisode("1", {})],
    ...                      {("reward",): [np.array([1.0, 2.0]), np.array([3.0, 0.0, 0.0])]}, [2, 3])
    >>> block.columns["reward",].tolist(), block.last.tolist(), block.count(block.columns["reward",] == 0).tolist()
    ([1.0, 2.0, 3.0, 0.0, 0.0], [1, 4], [0, 2])
    """

    def __init__(
        self, raws: Sequence[RawEpisode], leaves: Mapping[Path, Sequence[Any]], lengths: Sequence[int]
    ) -> None:
        self.raws = raws
        self.leaves = leaves
        self.lengths = np.array(lengths, np.int64)
        self.last = np.cumsum(self.lengths) - 1
        self.first = self.last - self.lengths + 1
        self.columns: dict[Path, Array] = {
            path: np.concatenate(parts) if len(parts) > 1 else parts[0]
            for path, parts in leaves.items()
            if is_number(parts[0])
        }

    def __len__(self) -> int:
        return len(self.raws)

    def count(self, of_rows: Array) -> Array:
        """How many steps of each episode are marked, int64 `[E]`, from bool `[R]`."""
        if not of_rows.any():
            return np.zeros([len(self)], np.int64)
        counts: Array = np.add.reduceat(of_rows, self.first, dtype=np.int64)
        return counts

    @functools.cached_property
    def transitions(self) -> Array:
        """The rows of all steps but the last of each episode, int64."""
        of_last = np.zeros([int(self.last[-1]) + 1], bool)
        of_last[self.last] = True
        return np.flatnonzero(~of_last)

    def transitions_that(self, test: Callable[[Array], bool], column: Array) -> Array:
        """Of which episodes a test holds for the transitions' part, `[N, ...]`, of a column `[R, ...]`; bool `[E]`."""
        return np.array([test(column[first:last]) for first, last in zip(self.first, self.last, strict=True)])


class OddEpisode(NamedTuple):
    """An episode that fits into no block: it has no step, or its fields are of different lengths.

    Attributes:
      raws: the episode as it was read, alone.
      leaves: its columns.
      num_steps: the length of the shortest of them.
      is_uneven: they differ.
    """

    raws: tuple[RawEpisode]
    leaves: Mapping[Path, Any]
    num_steps: int
    is_uneven: bool


def in_blocks(
    episodes: Iterable[RawEpisode], step_spec: Mapping[str, Nest], paths: Sequence[Path]
) -> Iterator[EpisodeBlock | OddEpisode]:
    """All episodes in their order; a block holds a megabyte and an episode at most.

    Args:
      episodes: as they are read.
      step_spec: type specs of one step.
      paths: of its leaves, in the order of `tf.nest`.

    >>> raws = [RawEpisode(str(index), {"reward": np.ones([index])}) for index in range(4)]
    >>> spec = {"reward": tf.TensorSpec([], tf.float64)}
    >>> [str(getattr(part, "lengths", "odd")) for part in in_blocks(raws, spec, [("reward",)])]
    ['odd', '[1 2 3]']
    """
    leaves_of = _flattener(step_spec)
    gathered = _Gathered(paths)
    for raw in episodes:
        leaves = leaves_of(raw.columns)
        lengths = {_num_rows(leaf) for leaf in leaves} or {0}
        is_uneven = len(lengths) > 1
        if is_uneven or 0 in lengths:
            yield from gathered.block()
            yield OddEpisode((raw,), dict(zip(paths, leaves, strict=True)), min(lengths), is_uneven)
            continue
        kinds = [_kind(leaf) for leaf in leaves]
        if gathered.kinds != kinds:
            yield from gathered.block()
        gathered.add(raw, leaves, kinds, *lengths)
        if gathered.is_full:
            yield from gathered.block()
    yield from gathered.block()


class _Gathered:
    """Episodes that wait until they make a block."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self.kinds: list[Any] = []
        self._begin()

    def _begin(self) -> None:
        self._raws: list[RawEpisode] = []
        self._leaves: list[Sequence[Any]] = []
        self._lengths: list[int] = []
        self._num_bytes = 0

    def add(self, raw: RawEpisode, leaves: Sequence[Any], kinds: list[Any], length: int) -> None:
        self.kinds = kinds
        self._raws.append(raw)
        self._leaves.append(leaves)
        self._lengths.append(length)
        self._num_bytes += sum([_num_bytes(leaf) for leaf in leaves])

    @property
    def is_full(self) -> bool:
        return self._num_bytes >= _BYTES_AT_ONCE or len(self._raws) >= _EPISODES_AT_ONCE

    def block(self) -> Iterator[EpisodeBlock]:
        """What there is, if there is any; from then on nothing is."""
        if self._raws:
            block = EpisodeBlock(
                self._raws, dict(zip(self._paths, zip(*self._leaves, strict=True), strict=True)), self._lengths
            )
            self._begin()
            yield block


def is_number(leaf: Any) -> bool:
    """Whether a column is an array of numbers: not of strings, and not ragged.

    >>> is_number(np.array([True])), is_number(np.array([b"left"], object))
    (True, False)
    """
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufcV"  # V: bfloat16


def _flattener(spec: Nest) -> Any:
    """A function that gives the leaves of columns in the order of `tf.nest`, at a tenth of its cost."""
    append_leaves = compile_flatten(dict(spec))

    def flatten(columns: Mapping[str, Nest]) -> list[Any]:
        leaves: list[Any] = []
        try:
            append_leaves(columns, leaves)
        except StructureError:
            # A list where the spec has a tuple, and the like.
            leaves = tf.nest.flatten(dict(columns))
        return leaves

    return flatten


def _num_rows(leaf: Any) -> int:
    # An array first: of a RaggedTensor, whose class is an abstract one, isinstance takes ten times as long.
    return len(leaf) if isinstance(leaf, np.ndarray) else int(leaf.nrows())


def _kind(leaf: Any) -> Any:
    """What columns must share to be one after the other in one."""
    return (leaf.dtype, leaf.shape[1:]) if isinstance(leaf, np.ndarray) else None


def _num_bytes(leaf: Any) -> int:
    if not isinstance(leaf, np.ndarray):
        return _BYTES_AT_ONCE
    return sum(map(len, leaf.ravel().tolist())) if leaf.dtype.kind == "O" else leaf.nbytes
