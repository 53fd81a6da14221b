"""Python callbacks in graphs that do not keep their object alive, nor the process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from .end_of_process import calls_of_this_process

_Owner = TypeVar("_Owner")


@tf.autograph.experimental.do_not_convert
def call_weakly(owner: _Owner, function: Callable[..., Any], arguments: Sequence[tf.Tensor], dtypes: Any) -> Any:
    """`tf.numpy_function` of `function(owner, *arguments)`.

    TensorFlow keeps each callback that eager code brings into a graph for as long as the process
    lives, and with it all that the callback refers to: here not `owner`. Whatever runs the graph has to hold it,
    as a dataset holds the functions it was made of. At exit graphs stop calling before the interpreter goes
    (`end_of_process`).

    Raises:
      tf.errors.UnknownError: when it runs: the owner is gone.
      tf.errors.InvalidArgumentError: when it runs: the process ends.
    """
    reference = weakref.ref(owner)

    def call(*arrays: Any) -> Any:
        target = reference()
        if target is None:
            raise ReferenceError("the buffer that this graph belongs to is gone; keep a reference to it.")
        return function(target, *arrays)

    if tf.executing_eagerly():
        return tf.numpy_function(call, arguments, dtypes, stateful=True)
    calls = calls_of_this_process()
    with tf.control_dependencies([calls.check_in_graph(arguments)]):
        return tf.numpy_function(calls.noted(call), arguments, dtypes, stateful=True)
