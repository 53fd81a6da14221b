"""Python iterators that tf.data reads ahead of, and that let the process end.

tf.data calls a generator's Python from threads of its own. One that is in Python, or on its way there, when the
interpreter goes never comes back, and whoever waits for it then waits for ever: a process whose iterator is still
alive would not end. So at exit each of these iterators ends first, and the calls that are under way are waited for.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")

# A call that takes longer is left to itself.
_LONGEST_CALL_S = 20.0

# In which a call that was on its way arrives, and finds the end.
_ARRIVAL_S = 0.05


class EndsAtExit(Iterator[_T], Generic[_T]):
    """An iterator for `tf.data.Dataset.from_generator` that ends when the interpreter is about to.

    Args:
      iterator: what it gives.

    >>> import tensorflow as tf
    >>> dataset = tf.data.Dataset.from_generator(
    ...     lambda: EndsAtExit(iter(range(3))), output_signature=tf.TensorSpec([], tf.int64))
    >>> list(dataset.prefetch(2).as_numpy_iterator())
    [0, 1, 2]
    """

    def __init__(self, iterator: Iterator[_T]) -> None:
        self._iterator = iterator
        self._calls = _Calls()
        atexit.register(self._calls.end)
        weakref.finalize(self, atexit.unregister, self._calls.end).atexit = False

    def __next__(self) -> _T:
        if not self._calls.begin():
            raise StopIteration
        try:
            return next(self._iterator)
        finally:
            self._calls.finish()


class _Calls:
    """The calls of an iterator that are under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_under_way = 0
        self._ended = False

    def begin(self) -> bool:
        """False: no more."""
        with self._changed:
            if self._ended:
                return False
            self._num_under_way += 1
            return True

    def finish(self) -> None:
        with self._changed:
            self._num_under_way -= 1
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._num_under_way, _LONGEST_CALL_S)
            self._changed.wait(_ARRIVAL_S)
