"""Python callbacks in graphs that do not keep their object alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

_Owner = TypeVar("_Owner")


def call_weakly(owner: _Owner, function: Callable[..., Any], arguments: Sequence[tf.Tensor], dtypes: Any) -> Any:
    """`tf.numpy_function` of `function(owner, *arguments)`.

    TensorFlow keeps each callback that eager code brings into a graph for as long as the process
    lives, and with it all that the callback refers to: here not `owner`. Whatever runs the graph has to hold it,
    as a dataset holds the functions it was made of.

    Raises:
      tf.errors.UnknownError: when it runs: the owner is gone.
    """
    reference = weakref.ref(owner)

    def call(*arrays: Any) -> Any:
        target = reference()
        if target is None:
            raise ReferenceError("the buffer that this graph belongs to is gone; keep a reference to it.")
        return function(target, *arrays)

    return tf.numpy_function(call, arguments, dtypes, stateful=True)
