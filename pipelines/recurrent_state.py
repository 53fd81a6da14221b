"""The state with which a recurrent network starts on a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import tensorflow as tf

from replayfeed.buffers import BufferInfo
from replayfeed.buffers.nests import Nest

from .sample_windows import Transform, on_windows, row_numbers, take_frames, window_length
from .step_fields import subtree

InitialState = Literal["stored", "zero"]


class WithState(NamedTuple):
    """A window and the state with which a network starts on it.

    Attributes:
      steps: the items as they were, leaves `[B, T, ...]`.
      state: a dict of the named fields, leaves `[B, ...]`.

    >>> WithState(steps={}, state={"lstm": [0.0]}).state
    {'lstm': [0.0]}
    """

    steps: Nest
    state: dict[str, Nest]


def recurrent_state(fields: str | Sequence[str], initial_state: InitialState = "stored") -> Transform:
    """A function that adds the recurrent state of each window's first real row.

    Where the burn-in reaches back beyond an episode's start its first rows are padding, which holds no state: the
    state is that of the first row that is real. A network unrolled from it must skip the padding, as `info.mask` says.

    Args:
      fields: names, or paths such as `'policy_info/lstm'`, of the fields (or groups) that hold the state
        *before* each frame, as Kapturowski et al. (2019, R2D2) store it.
      initial_state: `'stored'`, or `'zero'` for zeros of the same shapes.

    Returns:
      `(items, info) -> (WithState, info)`.

    Raises:
      ValueError: no field is given, or `initial_state` is none of the two.
      When called or traced, ValueError: a field is not there.

    >>> info = BufferInfo(tf.constant([[-1, 7, 8]]), tf.ones([1]), tf.constant([7]), tf.ones([1]),
    ...                   tf.constant([[False, True, True]]))
    >>> items, info = recurrent_state("lstm")({"lstm": tf.constant([[[0.0], [7.0], [8.0]]])}, info)
    >>> items.state["lstm"].numpy().tolist()
    [[7.0]]
    """
    names = [fields] if isinstance(fields, str) else list(fields)
    if not names:
        raise ValueError("recurrent_state: name at least one field.")
    if initial_state not in get_args(InitialState):
        raise ValueError(f"initial_state must be 'stored' or 'zero', got {initial_state!r}.")

    def transform(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
        first = tf.argmax(tf.cast(info.mask, tf.int32), axis=1, output_type=tf.int32)
        rows = row_numbers(first, window_length(info))

        def state_of(leaf: tf.Tensor) -> tf.Tensor:
            return tf.zeros_like(leaf[:, 0]) if initial_state == "zero" else take_frames(leaf, rows)

        state = {name: tf.nest.map_structure(state_of, subtree(items, name)) for name in names}
        return WithState(items, state), info

    return on_windows("recurrent_state", transform, any_length=True)
