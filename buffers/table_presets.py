"""Tables that the field uses, by name: each a `TableConfig`, which `dataclasses.replace` changes further.

A table holds items and knows no batches. Where a preset comes from an algorithm whose batch size is known, it is a
constant beside it, for `as_dataset(DQN_ATARI_BATCH_SIZE)`.

>>> import tensorflow as tf
>>> queue("rollouts", tf.TensorSpec([4], tf.float32), 8).rate_limiter
Queue(size=8)
"""

from __future__ import annotations

from .item_selectors import Fifo, Lifo, MinHeap, Prioritized, Uniform
from .nests import Nest
from .rate_limiters import MinSize, Queue, Stack
from .tables import TableConfig

DQN_ATARI_BATCH_SIZE = 32
DQN_CARTPOLE_BATCH_SIZE = 128


def uniform_replay(
    name: str, data_spec: Nest, max_size: int, *, min_size_to_sample: int = 1, sequence_length: int | None = 1
) -> TableConfig:
    """Experience replay: every item of the newest `max_size` with the same chance (Lin 1992; Mnih et al. 2015).

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.
      max_size: items that the table holds.
      min_size_to_sample: sampling waits for so many.
      sequence_length: frames in an item.

    Raises:
      TypeError, ValueError: as `TableConfig`.

    >>> import tensorflow as tf
    >>> uniform_replay("replay", tf.TensorSpec([], tf.float32), 1000).remover
    Fifo()
    """
    return TableConfig(
        name,
        data_spec,
        max_size,
        Uniform(),
        Fifo(),
        MinSize(min_size_to_sample),
        sequence_length=sequence_length,
    )


def prioritized_replay(
    name: str,
    data_spec: Nest,
    max_size: int,
    *,
    priority_exponent: float = 0.6,
    min_size_to_sample: int = 1,
    sequence_length: int | None = 1,
    tracks_least: bool = False,
) -> TableConfig:
    """Proportional prioritized replay: new items come in with the greatest priority (Schaul et al. 2016, algorithm 1).

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.
      max_size: items that the table holds; the oldest go.
      priority_exponent: `alpha`; the paper takes 0.6 for the proportional variant, Rainbow 0.5.
      min_size_to_sample: sampling waits for so many items.
      sequence_length: frames in an item.
      tracks_least: whether readers want `weight_norm='buffer'`.

    Raises:
      TypeError, ValueError: as `TableConfig`.

    >>> import tensorflow as tf
    >>> prioritized_replay("replay", tf.TensorSpec([], tf.float32), 1000).initial
    'max'
    """
    return TableConfig(
        name,
        data_spec,
        max_size,
        Prioritized(priority_exponent),
        Fifo(),
        MinSize(min_size_to_sample),
        sequence_length=sequence_length,
        initial="max",
        tracks_least=tracks_least,
    )


def queue(name: str, data_spec: Nest, max_size: int, *, sequence_length: int | None = 1) -> TableConfig:
    """On-policy data: each item once, the oldest first; whoever is ahead waits, and the table drops nothing.

    As `reverb.Table.queue`. `sample` loses nothing. An iterator of `as_dataset` has fetched items ahead (one, and
    three batches, by default), and they go with it: keep one iterator, or `sample`.

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.
      max_size: items that may wait; then inserting waits.
      sequence_length: frames in an item.

    Raises:
      TypeError, ValueError: as `TableConfig`.

    >>> import tensorflow as tf
    >>> queue("rollouts", tf.TensorSpec([], tf.float32), 8).max_times_sampled
    1
    """
    return TableConfig(
        name,
        data_spec,
        max_size,
        Fifo(),
        Fifo(),
        Queue(max_size),
        max_times_sampled=1,
        sequence_length=sequence_length,
    )


def stack(name: str, data_spec: Nest, max_size: int, *, sequence_length: int | None = 1) -> TableConfig:
    """Each item once, the newest first; inserting waits when `max_size` wait to be drawn. As `reverb.Table.stack`.

    An iterator of `as_dataset` has fetched items ahead (one, and three batches, by default): newer ones come after
    them, and they go with the iterator. `sample` fetches nothing ahead, and loses nothing.

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.
      max_size: items that may wait; then inserting waits.
      sequence_length: frames in an item.

    Raises:
      TypeError, ValueError: as `TableConfig`.

    >>> import tensorflow as tf
    >>> stack("newest", tf.TensorSpec([], tf.float32), 8).sampler
    Lifo()
    """
    return TableConfig(
        name,
        data_spec,
        max_size,
        Lifo(),
        Lifo(),
        Stack(max_size),
        max_times_sampled=1,
        sequence_length=sequence_length,
    )


def reservoir(
    name: str, data_spec: Nest, max_size: int, *, min_size_to_sample: int = 1, sequence_length: int | None = 1
) -> TableConfig:
    """A fair sample of all that was ever written: each item is still there with chance `max_size / n` (Vitter 1985).

    Each item gets a random priority when it is written, and the lowest goes: so it holds for any number of writers.
    A table of remover `Uniform` is none: in it old items are rarer than new ones.

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.
      max_size: items that the table holds.
      min_size_to_sample: sampling waits for so many.
      sequence_length: frames in an item.

    Raises:
      TypeError, ValueError: as `TableConfig`.

    >>> import tensorflow as tf
    >>> reservoir("history", tf.TensorSpec([], tf.float32), 1000).initial
    'random'
    """
    return TableConfig(
        name,
        data_spec,
        max_size,
        Uniform(),
        MinHeap(),
        MinSize(min_size_to_sample),
        sequence_length=sequence_length,
        initial="random",
    )


def keep_best(
    name: str, data_spec: Nest, max_size: int, *, min_size_to_sample: int = 1, sequence_length: int | None = 1
) -> TableConfig:
    """The items of the highest priorities that were ever written, as the returns of episodes; drawn uniformly.

    Writers must give priorities: an item that comes in below all others is dropped at once. Of equal ones the first
    goes.

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.
      max_size: items that the table holds.
      min_size_to_sample: sampling waits for so many.
      sequence_length: frames in an item.

    Raises:
      TypeError, ValueError: as `TableConfig`.

    >>> import tensorflow as tf
    >>> keep_best("best", tf.TensorSpec([], tf.float32), 100).remover
    MinHeap()
    """
    return TableConfig(
        name,
        data_spec,
        max_size,
        Uniform(),
        MinHeap(),
        MinSize(min_size_to_sample),
        sequence_length=sequence_length,
    )


def keep_oldest(
    name: str, data_spec: Nest, max_size: int, *, min_size_to_sample: int = 1, sequence_length: int | None = 1
) -> TableConfig:
    """The first `max_size` items that were ever written, drawn uniformly: what comes later is dropped at once.

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.
      max_size: items that the table holds.
      min_size_to_sample: sampling waits for so many.
      sequence_length: frames in an item.

    Raises:
      TypeError, ValueError: as `TableConfig`.

    >>> import tensorflow as tf
    >>> keep_oldest("demonstrations", tf.TensorSpec([], tf.float32), 100).remover
    Lifo()
    """
    return TableConfig(
        name,
        data_spec,
        max_size,
        Uniform(),
        Lifo(),
        MinSize(min_size_to_sample),
        sequence_length=sequence_length,
    )


def dqn_atari(name: str, data_spec: Nest) -> TableConfig:
    """Replay of DQN on Atari: 1,000,000 items, sampling from 50,000 on (Mnih et al. 2015, extended data table 1).

    Batches have `DQN_ATARI_BATCH_SIZE` (32) items.

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.

    Raises:
      TypeError, ValueError: as `TableConfig`.

    >>> import tensorflow as tf
    >>> dqn_atari("replay", tf.TensorSpec([84, 84], tf.uint8)).max_size
    1000000
    """
    return uniform_replay(name, data_spec, 1_000_000, min_size_to_sample=50_000)


def dqn_cartpole(name: str, data_spec: Nest) -> TableConfig:
    """Replay of DQN on CartPole and tasks of its size: 50,000 items, sampling from 1,000 on.

    Batches have `DQN_CARTPOLE_BATCH_SIZE` (128) items.

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.

    Raises:
      TypeError, ValueError: as `TableConfig`.

    >>> import tensorflow as tf
    >>> dqn_cartpole("replay", tf.TensorSpec([4], tf.float32)).max_size
    50000
    """
    return uniform_replay(name, data_spec, 50_000, min_size_to_sample=1_000)
