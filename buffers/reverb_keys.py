"""What a process remembers of the items that it drew, by their keys; read and written in graphs without any Python."""

from __future__ import annotations

import threading

import numpy as np
import tensorflow as tf

from .nests import Array


class KeyMemory:
    """Numbers by key, of the most recent keys.

    Args:
      width: numbers of a key.
      dtype: of the numbers; the last of them is a stamp, by which the oldest are forgotten.
      capacity: keys that are remembered at least.

    >>> memory = KeyMemory(2, tf.int64, capacity=100)
    >>> memory.put(tf.constant([7], tf.int64), tf.constant([[70, 1]], tf.int64))
    >>> memory.get(tf.constant([7, 8], tf.int64)).numpy().tolist()
    [[70, 1], [-1, -1]]
    """

    def __init__(self, width: int, dtype: tf.DType, capacity: int) -> None:
        self._table = tf.lookup.experimental.MutableHashTable(tf.int64, dtype, tf.fill([width], tf.cast(-1, dtype)))
        self._capacity = capacity
        self._lock = threading.Lock()

    def put(self, keys: tf.Tensor, numbers: tf.Tensor) -> None:
        """Remembers `numbers` `[n, width]` of `keys` int64 `[n]`."""
        self._table.insert(keys, numbers)

    def get(self, keys: tf.Tensor) -> tf.Tensor:
        """The numbers `[n, width]` of `keys` int64 `[n]`; -1 where there are none."""
        return self._table.lookup(keys)

    def trim(self) -> None:
        """Forgets the oldest keys where there are more than twice as many as must be remembered; eager only."""
        with self._lock:
            if int(self._table.size()) <= 2 * self._capacity:
                return
            keys, numbers = (part.numpy() for part in self._table.export())
            self._table.remove(tf.constant(keys[_oldest(numbers[:, -1], len(keys) - self._capacity)]))


def _oldest(stamps: Array, num: int) -> Array:
    return np.argpartition(stamps, num)[:num]
