"""Which frames of offline episodes are in memory: three blocks of whole episodes, read one after the other.

| block | what becomes of it |
| --- | --- |
| the one before | windows that were put off are drawn from it |
| the one at hand | windows are drawn from it |
| the next one | is read, an episode at a time, while windows of the others are delivered |

A block holds at most `block_frames` frames, or one episode where that is longer. The rows of a block are
written anew when it is two blocks old: memory is three blocks, however much is read. A pass that fits into one block
is read once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, Nest, compile_flatten, field_path, leaves_with_paths
from replayfeed.buffers.windows import Placed

EPISODE_BITS = 32
"""An id is `episode number << EPISODE_BITS`, plus the frame's number within its episode."""

_NUM_SLOTS = 3

# Rows of a slot to begin with: small datasets take little memory, larger ones double it a few times.
_FIRST_ROWS = 1024


class NamedFrames(Protocol):
    """What is asked of an episode: `Episode` has it."""

    @property
    def name(self) -> str:
        """Its index in the source as text, or any other name that no other episode has."""

    @property
    def frames(self) -> Nest:
        """Nest of NumPy arrays `[T, ...]`."""

    @property
    def num_frames(self) -> int:
        """`T`."""

    @property
    def agent(self) -> str | None:
        """Whose it is, where several agents' episodes have one name."""

    @property
    def place(self) -> int:
        """In the source's order, counted from 0; -1 when unknown."""


class StreamField(NamedTuple):
    """One leaf of the frames.

    Attributes:
      path: its place in the nest, as `'observation/image'`.
      shape: of one frame's value.
      dtype: TensorFlow's.
    """

    path: str
    shape: tuple[int, ...]
    dtype: tf.DType

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """What the arrays hold; strings are bytes in arrays of objects."""
        return np.dtype(self.dtype.as_numpy_dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes of one frame's value in memory; of a string those of the reference."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.numpy_dtype.itemsize


def stream_fields(name: str, element_spec: Nest) -> list[StreamField]:
    """The leaves of the spec of a frame, in the order of `tf.nest.flatten`.

    Raises:
      ValueError: a leaf is no `tf.TensorSpec`, or its shape is not fully known; the message names it.

    >>> stream_fields("mine", {"reward": tf.TensorSpec([], tf.float32), "text": tf.TensorSpec([2], tf.string)})[0]
    StreamField(path='reward', shape=(), dtype=tf.float32)
    """
    fields = []
    for path, spec in leaves_with_paths(element_spec, ()):
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
            raise ValueError(
                f"{name}: field {field_path(path)!r} is of variable length ({spec}), so that windows of it cannot be "
                "batched; drop it, or give it a fixed width."
            )
        fields.append(StreamField(field_path(path) or "items", tuple(spec.shape.as_list()), spec.dtype))
    return fields


class EpisodeNumbers:
    """The number of each episode in ids.

    It is the episode's name where that is a number; else its place where no other episode has it (of many agents'
    episodes one has it); else, and from `2**24` on, one that no other has, counted up as they come. Names that are
    no numbers are kept, so that each has one number however often it is read, in whatever order.
    Of several sources each number is multiplied by how many they are, and the source's index added.

    Args:
      source: the index of the source.
      num_sources: how many there are.

    >>> numbers = EpisodeNumbers()
    >>> numbers.number("7"), numbers.number("seven") - 2**24, numbers.number("eight") - 2**24, numbers.number("7")
    (7, 0, 1, 7)
    >>> EpisodeNumbers().number("cartpole: 3", place=23), EpisodeNumbers(source=1, num_sources=2).number("7")
    (23, 15)
    """

    _FIRST_COUNTED = 2**24
    _MOST = 2**31

    def __init__(self, source: int = 0, num_sources: int = 1) -> None:
        self._source = source
        self._num_sources = num_sources
        self._by_name: dict[str, int] = {}
        self._places: set[int] = set()
        self._names_are_numbers = False

    def number(self, name: str, place: int = -1) -> int:
        """The same for the same name, as long as this object lives.

        Raises:
          ValueError: there are too many episodes for ids of 63 bits.
        """
        number = self._number(name, place) * self._num_sources + self._source
        if number >= self._MOST:
            raise ValueError(
                f"episode {name}: {len(self._by_name):,} episodes of {self._num_sources} sources are more than ids can "
                "number; mix fewer sources."
            )
        return number

    def _number(self, name: str, place: int) -> int:
        if name.isdecimal() and len(name) < len(str(self._FIRST_COUNTED)) and not self._places:
            self._names_are_numbers = True
            return int(name)
        found = self._by_name.get(name)
        if found is None:
            if 0 <= place < self._FIRST_COUNTED and place not in self._places and not self._names_are_numbers:
                found = place
                self._places.add(place)
            else:
                found = self._FIRST_COUNTED + len(self._by_name)
            self._by_name[name] = found
        return found


class Block(NamedTuple):
    """A block of whole episodes, and the windows in it, in the order of their frames.

    Attributes:
      slot: where its frames lie.
      starts: rows of its drawn frames within the slot, int64 `[n]`.
      keys: their ids, int64 `[n]`.
      num_before: real frames before each, int64 `[n]`.
      num_after: real frames from each on, int64 `[n]`.
      num_frames: of all its episodes.
      num_episodes: how many.
      longest: frames of the longest.
      epoch: which pass over the episodes it is of.
      is_first: no block of this pass came before.
      is_last: none follows.
    """

    slot: int
    starts: Array
    keys: Array
    num_before: Array
    num_after: Array
    num_frames: int
    num_episodes: int
    longest: int
    epoch: int
    is_first: bool
    is_last: bool


class EpisodeBlocks:
    """Reads passes over episodes block by block.

    Args:
      name: of the episodes, for messages.
      element_spec: nest of specs of one frame.
      passes: starts each pass when it is called; that happens when the pass is reached.
      find_windows: from the step words of several episodes (`buffers/windows.py`) to their windows.
      block_frames: frames of a block at most, unless one episode has more.
      final_observations: the last frame of each episode is only a final observation.
      numbers: of the episodes, for ids.
      passes_alike: every pass brings the same episodes, so that one that fits into a block is read once.

    >>> from replayfeed.buffers.windows import Window, eligible_windows
    >>> from typing import NamedTuple
    >>> class Named(NamedTuple):
    ...     name: str
    ...     frames: Nest
    ...     num_frames: int
    ...     agent: str | None = None
    ...     place: int = -1
    >>> episodes = [Named(str(i), np.arange(3) + 10 * i, 3) for i in range(3)]
    >>> blocks = EpisodeBlocks("mine", tf.TensorSpec([], tf.int64), iter([lambda: episodes]),
    ...     lambda words: eligible_windows(words, Window(2)), block_frames=6, final_observations=False,
    ...     numbers=EpisodeNumbers())
    >>> block = blocks.next_block()
    >>> block.starts.tolist(), (block.keys >> 32).tolist(), block.is_last
    ([0, 1, 3, 4], [0, 0, 1, 1], False)
    >>> blocks.gather(np.full(4, block.slot), block.starts[:, None] + np.arange(2))[0].tolist()
    [[0, 1], [1, 2], [10, 11], [11, 12]]
    """

    def __init__(
        self,
        name: str,
        element_spec: Nest,
        passes: Iterator[Callable[[], Iterable[NamedFrames]]],
        find_windows: Callable[[Array], Placed],
        *,
        block_frames: int,
        final_observations: bool,
        numbers: EpisodeNumbers,
        passes_alike: bool = True,
    ) -> None:
        self._name = name
        self._fields = stream_fields(name, element_spec)
        self._flatten_into = compile_flatten(element_spec)
        self._passes = passes
        self._find_windows = find_windows
        self._block_frames = block_frames
        self._final_observations = final_observations
        self._numbers = numbers
        self._passes_alike = passes_alike
        self._kept: Block | None = None
        self._rows = 0
        self._arrays: list[Array] = []
        self._grow(min(block_frames, _FIRST_ROWS))
        # The pass that is read, and an episode of it that did not fit into the block before.
        self._episodes: Iterator[NamedFrames] | None = None
        self._waiting: NamedFrames | None = None
        self._epoch = -1
        # The block that is read.
        self._slot = 0
        self._lengths: list[int] = []
        self._episode_numbers: list[int] = []
        self._num_frames = 0
        self._is_first = self._is_complete = self._is_last = False
        self._ended = False

    @property
    def fields(self) -> Sequence[StreamField]:
        """The leaves of a frame."""
        return self._fields

    @property
    def block_frames(self) -> int:
        """Frames of a block, unless one episode has more."""
        return self._block_frames

    def advance(self, num_frames: int) -> None:
        """Reads on until the next block has this many frames, or is complete.

        Raises:
          ValueError: an episode does not match the spec; the message names episode and field.
          Whatever reading raises.
        """
        if self._kept is not None:
            return
        while self._num_frames < num_frames and not self._is_complete and not self._ended:
            self._read_episode()

    def next_block(self) -> Block | None:
        """The next block, read to its end; None after the last pass. The block before the last one is gone then."""
        if self._kept is not None:
            if next(self._passes, None) is None:
                return None
            self._kept = self._kept._replace(epoch=self._kept.epoch + 1)
            return self._kept
        while not self._is_complete:
            if self._ended:
                return None
            self._read_episode()
        block = self._finish()
        if block.is_first and block.is_last and self._passes_alike:
            self._kept = block
        self._slot = (self._slot + 1) % _NUM_SLOTS
        self._lengths, self._episode_numbers, self._num_frames = [], [], 0
        self._is_first, self._is_complete, self._is_last = False, False, False
        return block

    def gather(self, slots: Array, rows: Array) -> list[Array]:
        """Copies of frames, leaves `[*rows.shape, ...]`.

        Args:
          slots: int64 `[n]`.
          rows: within their slots, int64 `[n]` or `[n, T]`.
        """
        first = slots * self._rows
        rows = rows + (first if rows.ndim == 1 else first[:, np.newaxis])
        return [array.take(rows, axis=0, mode="clip") for array in self._arrays]

    def _read_episode(self) -> None:
        if self._episodes is None:
            start_pass = next(self._passes, None)
            if start_pass is None:
                self._ended = True
                return
            self._episodes = iter(start_pass())
            self._epoch += 1
            self._is_first = True
        episode = next(self._episodes, None) if self._waiting is None else self._waiting
        self._waiting = None
        if episode is None:
            self._episodes = None
            self._is_complete = self._is_last = True
            return
        if self._num_frames and self._num_frames + episode.num_frames > self._block_frames:
            self._waiting = episode
            self._is_complete = True
            return
        if episode.num_frames:
            self._write(episode)

    def _write(self, episode: NamedFrames) -> None:
        leaves: list[Array] = []
        self._flatten_into(episode.frames, leaves)
        for field, leaf in zip(self._fields, leaves, strict=True):
            self._check(episode, field, leaf)
        stop = self._num_frames + episode.num_frames
        if stop > self._rows:
            self._grow(max(stop, min(2 * self._rows, self._block_frames)))
        first = self._slot * self._rows
        for array, leaf in zip(self._arrays, leaves, strict=True):
            array[first + self._num_frames : first + stop] = leaf
        name = episode.name if episode.agent is None else f"{episode.name} of {episode.agent}"
        self._lengths.append(episode.num_frames)
        self._episode_numbers.append(self._numbers.number(name, episode.place))
        self._num_frames = stop

    def _check(self, episode: NamedFrames, field: StreamField, leaf: Array) -> None:
        """NumPy would cast and broadcast what does not match."""
        shape = (episode.num_frames, *field.shape)
        right_dtype = leaf.dtype == field.numpy_dtype or (field.dtype == tf.string and leaf.dtype.kind == "S")
        if not right_dtype or leaf.shape != shape:
            raise ValueError(
                f"{self._name}, episode {episode.name}: field {field.path!r}: expected {list(shape)} "
                f"{field.dtype.name}, got {list(leaf.shape)} {leaf.dtype.name}."
            )

    def _grow(self, rows: int) -> None:
        grown = [np.empty([_NUM_SLOTS * rows, *field.shape], field.numpy_dtype) for field in self._fields]
        for new, old in zip(grown, self._arrays, strict=False):
            for slot in range(_NUM_SLOTS):
                new[slot * rows : slot * rows + self._rows] = old[slot * self._rows : (slot + 1) * self._rows]
        self._arrays, self._rows = grown, rows

    def _finish(self) -> Block:
        lengths = np.array(self._lengths, np.int64)
        firsts = np.cumsum(lengths) - lengths
        numbers = np.array(self._episode_numbers, np.int64)
        steps = np.arange(self._num_frames) - np.repeat(firsts, lengths)
        words = 2 * steps
        if self._final_observations and len(lengths):
            words[firsts + lengths - 1] += 1
        if len(lengths):
            placed = self._find_windows(words)
        else:
            placed = Placed(*[np.zeros([0], np.int64)] * 3)
        ids = (np.repeat(numbers, lengths) << EPISODE_BITS) + steps
        return Block(
            self._slot,
            placed.starts,
            ids[placed.starts],
            placed.num_before,
            placed.num_after,
            self._num_frames,
            len(lengths),
            int(lengths.max(initial=0)),
            self._epoch,
            self._is_first,
            self._is_last,
        )
