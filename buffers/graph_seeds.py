"""Seeds of draws inside a `tf.function`, another at each call, whose position can be saved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from .nests import Array

# `tf.random.Algorithm.PHILOX`, whose state is two words that count and one that is the key.
_PHILOX = 1
_NUM_WORDS = 3


class GraphSeeds:
    """A stream of pairs of random numbers for graphs; its state lies in a variable, not inside an op.

    Any number of graphs and threads share it: the op that reads the state moves it on under the variable's lock, so
    that no two calls get the same pair. The state is on the CPU, and the graphs that use it keep it alive.

    Args:
      entropy: ints of at least 0; None for a stream that differs in each process.

    >>> seeds = GraphSeeds([7, 2])
    >>> draw = tf.function(seeds.next_in_graph)
    >>> first, state = draw(), seeds.state()
    >>> second = draw()
    >>> seeds.restore(state)
    >>> bool(tf.reduce_all(draw() == second)), bool(tf.reduce_any(first == second))
    (True, False)
    """

    def __init__(self, entropy: Sequence[int] | None) -> None:
        (key,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64).view(np.int64)
        # Eager, whatever function is being traced: a variable made by a trace would be that function's.
        with tf.init_scope(), tf.device("cpu:0"):
            state = tf.Variable(np.array([0, 0, key], np.int64), trainable=False)
        # In the scope of a strategy for several devices: the first one's, which is all there is here.
        self._state = tf.distribute.get_strategy().experimental_local_results(state)[0]

    def next_in_graph(self) -> tf.Tensor:
        """A pair, int64 `[2]`, another at each call."""
        return tf.raw_ops.StatefulUniformFullInt(
            resource=self._state.handle,
            algorithm=tf.constant(_PHILOX, tf.int64),
            shape=tf.constant([2], tf.int64),
            dtype=tf.int64,
        )

    def state(self) -> Array:
        """Where the stream is, int64 `[3]`."""
        return np.array(self._state.numpy())

    def check(self, state: Array) -> None:
        """Whether `restore` would take this.

        Raises:
          ValueError: it is no state of a stream.
        """
        state = np.asarray(state)
        if state.shape != (_NUM_WORDS,) or state.dtype != np.int64:
            raise ValueError(
                f"the state of draws in graphs: expected int64 [{_NUM_WORDS}], got {state.dtype} {list(state.shape)}; "
                "the save is damaged, or another kind of buffer's."
            )

    def restore(self, state: Array) -> None:
        """Goes on from a `state`, in graphs made before too.

        Raises:
          ValueError: as `check`. Nothing is changed.
        """
        self.check(state)
        self._state.assign(np.asarray(state))
