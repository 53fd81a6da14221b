"""The contract that every buffer of the package keeps, and what it delivers.

Exceptions, as a tree:

  ValueError
  +-- EmptyBufferError          nothing, or too little, is there to draw
      +-- WaitTimeoutError      a served buffer waited for it for as long as it was allowed to

Both are `tf.errors.InvalidArgumentError` too, which is what a `tf.function` raises.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import tensorflow as tf

from .counts import check_count
from .nests import Nest
from .priorities import errors_of_rows
from .restorable import Restorable
from .stats import BufferStats
from .windows import Window

if TYPE_CHECKING:
    from .adds import Adds

Items = Any
Ids = Any
_BufferT = TypeVar("_BufferT", bound="ReplayBuffer")


class EmptyBufferError(ValueError, tf.errors.InvalidArgumentError):
    """Nothing can be drawn: the buffer is empty, too small, or holds no window of that length.

    >>> issubclass(EmptyBufferError, ValueError)
    True
    """

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


class WaitTimeoutError(EmptyBufferError):
    """A served buffer waited, told what for, and its timeout ran out.

    Attributes:
      num_written: frames of each stream that the `add_batch` or `add_sequence` has written; None in other calls.

    >>> issubclass(WaitTimeoutError, EmptyBufferError)
    True
    """

    num_written: int | None = None


class BufferInfo(NamedTuple):
    """What comes beside the items of a sample. `B` is the batch, `T` the window.

    Without `sample_batch_size` the `B` axis is absent.

    Attributes:
      ids: int64 `[B, T]`, or `[B]` without `num_steps`; unique for each stored frame for
        ever. -1 where a frame has none (a Reverb table that another program writes).
      probabilities: float32 `[B]`, the chance of this draw among the eligible starts.
      keys: int64 `[B]`, what `update_priorities` takes.
      weights: float32 `[B]`, importance weights; ones where draws are uniform.
      mask: bool, the shape of `ids`, False on padding.

    >>> BufferInfo(ids=[7], probabilities=[0.5], keys=[7], weights=[1.0], mask=[True]).key
    [7]
    """

    ids: Any
    probabilities: Any
    keys: Any
    weights: Any
    mask: Any

    @property
    def key(self) -> Any:
        """`keys`, under Reverb's name."""
        return self.keys

    @property
    def probability(self) -> Any:
        """`probabilities`, under Reverb's name."""
        return self.probabilities


class ReplayBuffer(Restorable):
    """Stores experience and feeds it to training; the same members on every backend.

    A *frame* (or step) is one entry that matches `data_spec`. A *stream* is one
    environment's frames in order; `batch_size` `B` streams are written side by side. A
    *window* is `T` consecutive frames of one stream.
    """

    # How checked items are written, for buffers that are built on this one.
    _adds: Adds

    @property
    @abc.abstractmethod
    def data_spec(self) -> Nest:
        """The nest of `tf.TensorSpec` that the constructor was given."""

    @property
    @abc.abstractmethod
    def batch_size(self) -> int:
        """`B`, the number of streams that `add_batch` writes side by side."""

    @property
    @abc.abstractmethod
    def capacity(self) -> int:
        """How much the buffer holds when full, in `capacity_unit`."""

    @property
    @abc.abstractmethod
    def capacity_unit(self) -> Literal["frames", "episodes", "items"]:
        """What `capacity` counts."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Frames held now, as `num_frames`, as a plain int."""

    @abc.abstractmethod
    def num_frames(self) -> tf.Tensor:
        """Frames held now, int64 `[]`: a tensor, so that inside a `tf.function` it stays live."""

    @abc.abstractmethod
    def add_batch(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Stores one frame of each stream, leaves `[B, ...]`; returns their ids, int64 `[B]`.

        With `streams`, int `[n]`, one of each of these only, all leaves `[n, ...]`: see `let_streams_part`.
        """

    @abc.abstractmethod
    def add_sequence(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Stores `T` frames of each stream, leaves `[B, T, ...]`; returns ids, int64 `[B, T]`.

        With `streams`, int `[n]`, of these only, all leaves `[n, T, ...]`.
        """

    @abc.abstractmethod
    def let_streams_part(self) -> None:
        """From now on adds may bring frames of some streams without the others, by `streams=`.

        Environments that answer at different times, agents that take turns, die and are born: each stream goes on at
        its own pace, windows and episodes are those of its own frames. Where streams may part anyhow this does
        nothing; a ring of frames has to be told before its first frame.
        """

    @abc.abstractmethod
    def end_stream(self, b: int | None = None) -> None:
        """Stream `b` (None: all of them) stops here: no window goes past its newest frame."""

    @abc.abstractmethod
    def as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        num_parallel_calls: int | None = None,
        sequence_preprocess_fn: Callable[[Any], Any] | None = None,
        single_deterministic_pass: bool = False,
        *,
        window: Window | None = None,
        epochs: int | None = None,
    ) -> tf.data.Dataset:
        """A dataset of `(items, BufferInfo)`, leaves `[B, T, ...]`."""

    @abc.abstractmethod
    def sample(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
    ) -> tuple[Items, BufferInfo]:
        """One `(items, BufferInfo)` at once, as eager tensors `[B, T, ...]`."""

    def get_next(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        time_stacked: bool = True,
    ) -> tuple[Items, BufferInfo]:
        """`sample`, under TF-Agents' name; not `time_stacked` gives a tuple of `T` nests `[B, ...]`.

        Raises:
          ValueError: not `time_stacked`, but no `num_steps`.
          Otherwise as `sample`.
        """
        items, info = self.sample(sample_batch_size, num_steps)
        if time_stacked:
            return items, info
        if num_steps is None:
            raise ValueError("time_stacked=False needs num_steps: single frames have no time axis to take apart.")
        axis = 0 if sample_batch_size is None else 1
        leaves = [tf.unstack(leaf, axis=axis) for leaf in tf.nest.flatten(items)]
        return tuple(tf.nest.pack_sequence_as(items, step) for step in zip(*leaves, strict=True)), info

    def sample_at_least(
        self,
        min_steps: int,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
    ) -> tuple[Items, BufferInfo]:
        """Draws samples until at least `min_steps` real frames are there, and joins them into one batch.

        Padding does not count. Samples of different lengths (whole episodes) are padded to the longest.

        Args:
          min_steps: real frames wanted, of which `info.mask` counts.
          num_steps: as in `sample`.
          window: as in `sample`.

        Returns:
          `(items, info)` as `sample`, leaves `[B, T, ...]` (`[B, ...]` for single frames), with as large a `B` as
          it took: samples of one length hold fewer than one sample's frames too many.

        Raises:
          TypeError: `min_steps` is no int.
          ValueError: `min_steps` is below 1, or it is called inside a `tf.function`.
          Otherwise as `sample`.
        """
        check_count("min_steps", min_steps)
        if not tf.executing_eagerly():
            raise ValueError("sample_at_least draws as often as it takes, which a tf.function cannot: call it eagerly.")
        samples: list[tuple[Items, BufferInfo]] = []
        num_real = 0
        while num_real < min_steps:
            # The samples so far tell how many frames one has at most: no more are drawn than surely are needed.
            most = max((1 if info.ids.shape.rank < 2 else info.ids.shape[1] for _, info in samples), default=min_steps)
            items, info = self.sample(max(1, (min_steps - num_real) // most), num_steps, window=window)
            samples.append((items, info))
            num_real += int(tf.math.count_nonzero(info.mask))
        return join_samples(samples)

    @abc.abstractmethod
    def get(self, ids: Ids, num_steps: int | None = None) -> Items:
        """The frames with these ids, or the windows that start at them."""

    @abc.abstractmethod
    def update_priorities(self, keys: Any, priorities: Any = None, *, td_errors: Any = None) -> Any:
        """Sets raw priorities, or `abs(td_errors) + eps`; returns how many keys were gone."""

    def update_priorities_from(self, info: BufferInfo, td_errors: Any, *, eta: float = 0.9, burn_in: int = 0) -> Any:
        """`update_priorities` of a batch as it came, heeding its mask: padding, and rows without a transition.

        A row whose mask is False throughout (of `n_step`: a frame after which nothing is known) counts as an error of
        0. Its own would never fall, as its weight is 0, and it would come up again and again.

        Args:
          info: of the batch, also as a transform made it.
          td_errors: `[B]` or `[B, 1]`; or `[B, T]` with `T` as in `info.mask`, of which a window gets one priority
            (`sequence_priority`).
          eta: between the mean (0) and the largest (1) of a window's absolute errors.
          burn_in: the window's; its context does not count, and errors may leave it out.

        Returns:
          As `update_priorities`.

        Raises:
          ValueError: the shape is none of these, or as `update_priorities`.
        """
        return self.update_priorities(info.keys, td_errors=errors_of_rows(td_errors, info.mask, eta, burn_in))

    @abc.abstractmethod
    def gather_all(self) -> Items:
        """Every frame held, oldest first, leaves `[B, T, ...]`."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Empties the buffer and its counters."""

    @abc.abstractmethod
    def stats(self) -> BufferStats:
        """Counts, shares and bytes as of now."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Returns when all that was added can be read."""

    @abc.abstractmethod
    def close(self) -> None:
        """Flushes, then frees memory, servers and writers. The buffer cannot be used afterwards."""

    def __enter__(self: _BufferT) -> _BufferT:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def join_samples(samples: Sequence[tuple[Items, BufferInfo]]) -> tuple[Items, BufferInfo]:
    """One batch of several; those that are shorter along `T` are padded: zeros, id -1, mask False.

    >>> info = BufferInfo(tf.constant([[7]]), tf.ones([1]), tf.constant([7]), tf.ones([1]), tf.constant([[True]]))
    >>> items, info = join_samples([(tf.constant([[1]]), info), (tf.constant([[2]]), info)])
    >>> items.numpy().tolist(), info.ids.numpy().tolist()
    ([[1], [2]], [[7], [7]])
    """
    infos = [info for _, info in samples]
    if infos[0].ids.shape.rank < 2:
        return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *samples)
    lengths = [info.ids.shape[1] for info in infos]

    def pad(leaf: tf.Tensor, length: int, value: int) -> tf.Tensor:
        if length == max(lengths):
            return leaf
        if leaf.dtype == tf.bool:
            return tf.cast(pad(tf.cast(leaf, tf.uint8), length, value), tf.bool)
        padding = [[0, 0], [0, max(lengths) - length], *[[0, 0]] * (leaf.shape.rank - 2)]
        return tf.pad(leaf, padding, constant_values=tf.cast(value, leaf.dtype))

    def join(parts: Sequence[Nest], value: int = 0) -> Nest:
        def joined(*leaves: tf.Tensor) -> tf.Tensor:
            return tf.concat([pad(leaf, length, value) for leaf, length in zip(leaves, lengths, strict=True)], 0)

        return tf.nest.map_structure(joined, *parts)

    # Padding is -1 in these, and zeros (False) elsewhere; others have no `T` axis.
    values = {"ids": -1, "times": -1, "mask": 0}
    joined = {
        name: join(parts, values[name]) if name in values else tf.concat(parts, 0)
        for name, parts in zip(infos[0]._fields, zip(*infos, strict=True), strict=True)
    }
    return join([items for items, _ in samples]), infos[0]._replace(**joined)
