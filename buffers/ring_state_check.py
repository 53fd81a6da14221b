"""Whether the state of a ring is whole, and says the same everywhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .buffer_state import BufferState, HeldFrames
from .nests import Array
from .random_states import check_random_state
from .window_text import window_from_plain

_VALUES = ("ring", "usage", "num_deleted", "largest_ever", "windows", "heeds_flags", "random", "num_seeds")
_RING = ("is_parted", "published", "floor", "cleared_at", "open_steps", "num_arrivals")
_USAGE = ("sampled", "skipped", "evicted_unsampled")
_ARRAYS = ("sampled", "deleted", "graph_seeds")


def check_ring_state(
    state: BufferState, batch_size: int, *, own_values: Sequence[str], needs_priorities: bool, tells_starts: bool
) -> None:
    """Refuses a state that lacks something, or contradicts itself.

    Args:
      state: of a ring.
      batch_size: `B`.
      own_values: names of what its class adds to the values.
      needs_priorities: whether it must hold priorities.
      tells_starts: whether it must say which frames may start a window.

    Raises:
      ValueError: the message says where.
    """
    values, frames = state.values, state.frames
    if frames is None:
        raise ValueError(f"the state of a {state.kind} must hold frames: it is not whole.")
    require("values", values, (*_VALUES, *own_values))
    require("values/ring", values["ring"], _RING)
    require("values/usage", values["usage"], _USAGE)
    arrays = _ARRAYS + (("priorities",) if needs_priorities else ()) + (("barred",) if tells_starts else ())
    require("arrays", state.arrays, arrays)
    check_random_state("values/random", values["random"])
    counts = [*(values["usage"][name] for name in _USAGE), values["num_deleted"], values["num_seeds"]]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise ValueError("the state counts something by no whole number of at least 0: it is damaged.")
    if needs_priorities and not isinstance(values["largest_ever"], float):
        raise ValueError(f"the state's values/largest_ever must be a float, got {values['largest_ever']!r}.")
    _check_ids(frames, values["ring"], batch_size)
    num = len(frames.ids)
    for name in ("sampled", "deleted", "barred"):
        if name in state.arrays and (
            state.arrays[name].shape != (-(-num // 8),) or state.arrays[name].dtype != np.uint8
        ):
            raise ValueError(f"the state's array {name!r} does not fit its {num} frames.")
    if "priorities" in state.arrays and state.arrays["priorities"].shape != (num,):
        raise ValueError(f"the state has {len(state.arrays['priorities'])} priorities, for {num} frames.")
    _check_windows(state, num)


def require(where: str, found: Any, names: Sequence[str]) -> None:
    """Refuses a part of a state that lacks an entry.

    Raises:
      ValueError: the message names those that are missing.

    >>> require("values", {"a": 1}, ("a", "b"))
    Traceback (most recent call last):
    ...
    ValueError: the state's values lack b: it is not whole.
    """
    if not isinstance(found, Mapping):
        raise ValueError(f"the state's {where} must be a mapping, got {type(found).__name__}.")
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"the state's {where} lack {', '.join(missing)}: it is not whole.")


def _check_ids(frames: HeldFrames, ring: Mapping[str, Any], batch_size: int) -> None:
    num, parted = len(frames.ids), bool(ring["is_parted"])
    shape = (batch_size,) if parted else ()
    for name in ("published", "floor", "cleared_at"):
        _check_whole(f"values/ring/{name}", ring[name], shape)
    _check_whole("values/ring/open_steps", ring["open_steps"], (batch_size,))
    _check_whole("values/ring/num_arrivals", ring["num_arrivals"], ())
    needed = {"words", "arrivals"} if parted else {"words"}
    if set(frames.columns) != needed:
        raise ValueError(f"the state's frames have the columns {sorted(frames.columns)}, expected {sorted(needed)}.")
    for name, column in frames.columns.items():
        if column.shape != (num,) or column.dtype != np.int64:
            raise ValueError(
                f"the state's column {name!r}: expected int64 [{num}], got {column.dtype} {list(column.shape)}."
            )
    published = np.asarray(ring["published"], np.int64)
    if isinstance(frames.ids, range) and not parted:
        if num and not (frames.ids.step == 1 and 0 <= frames.ids.start and frames.ids.stop == published):
            raise ValueError(
                f"the state's frames have the ids {frames.ids}, and {published} comes next: it is damaged."
            )
        return
    ids = frames.id_array()
    newest = published[ids % batch_size] if parted else published
    if num and ((ids >= newest).any() or ids[0] < 0 or (np.diff(ids) <= 0).any()):
        raise ValueError("the state's frames have ids beyond the ring's cursors, or not ascending: it is damaged.")
    if not parted and num and int(published) - int(ids[0]) != num:
        raise ValueError("the state's frames do not follow each other: it is damaged.")


def _check_whole(where: str, value: Any, shape: tuple[int, ...]) -> None:
    """Whole numbers of at least 0, of this shape."""
    array = np.asarray(value)
    if array.shape != shape or array.dtype.kind not in "iu" or (array < 0).any():
        raise ValueError(f"the state's {where} must be whole numbers of shape {list(shape)}, got {value!r}.")


def _check_windows(state: BufferState, num: int) -> None:
    ids = state.frames.ids if state.frames is not None else range(0)
    for number, plain in enumerate(state.values["windows"]):
        try:
            if plain is not None:
                window_from_plain(plain)
        except TypeError as error:
            raise ValueError(f"the state's window {number} is none: {plain!r}.") from error
        for name in ("order", "heap"):
            order = state.arrays.get(f"window {number} {name}")
            if order is not None and not _are_among(order, ids):
                raise ValueError(f"the state's array 'window {number} {name}' names frames that it does not hold.")
        drawn = state.arrays.get(f"window {number} drawn")
        if drawn is not None and (drawn.shape != (num,) or drawn.dtype.kind not in "iu"):
            raise ValueError(f"the state's array 'window {number} drawn' does not fit its {num} frames.")


def _are_among(order: Array, ids: Array | range) -> bool:
    """Whether these are some of the ids, each once, as far as a look at the ends tells where they are no range."""
    if order.ndim != 1 or order.dtype != np.int64 or len(order) > len(ids):
        return False
    return not len(order) or bool(order.min() >= ids[0] and order.max() <= ids[-1])
