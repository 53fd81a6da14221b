"""What a rollout's buffer saves of itself beside its frames, and how another one takes that over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from .advantages import Advantages
from .buffer_state import BufferState, RestorePlan
from .nests import Array
from .random_states import check_random_state
from .restorable import Restorable
from .rollout_record import COLUMNS
from .rollout_writer import RolloutWriter
from .uniform import TFUniformReplayBuffer

# The part of the state that is the frames'.
FRAMES = "frames"

_ESTIMATES = "estimates/"
_ESTIMATE_DTYPES = {"advantages": np.float32, "returns": np.float32, "values": np.float32, "mask": np.bool_}


def record_arrays(columns: Mapping[str, Array], estimates: Advantages | None) -> dict[str, Array]:
    """Arrays of a state: what frames say about their transitions `[n, B]`, and estimates `[B, T]` where there are.

    >>> record_arrays({"rewards": np.zeros([2, 1])}, None).keys()
    dict_keys(['rewards'])
    """
    arrays = dict(columns)
    if estimates is not None:
        arrays.update({f"{_ESTIMATES}{name}": np.array(getattr(estimates, name)) for name in _ESTIMATE_DTYPES})
    return arrays


def plan_rollout(
    state: BufferState,
    frames: TFUniformReplayBuffer,
    writer: RolloutWriter,
    num_steps: int,
    *,
    resize: bool,
    same: Mapping[str, Any],
    finish: Callable[[Advantages | None], None],
) -> RestorePlan:
    """What becomes of a buffer of rollouts; changes nothing.

    A rollout is kept whole or not at all: one without its first steps would be none. So a buffer of fewer `num_steps`
    takes over what fits into it, and refuses more; in one of more the rollout goes on until it has all of them.

    Args:
      state: of a buffer of the same spec.
      frames: that keeps the frames, whose state is the part `FRAMES`.
      writer: keeps the record of transitions.
      num_steps: `T` of this buffer.
      resize: whether settings differ.
      same: settings of this buffer on which advantages depend: with others, those of the state are left out.
      finish: called last, with the advantages of the rollout as it is, where there are.

    Raises:
      ValueError: the state contradicts itself, or holds more steps than `num_steps`.
    """
    part = state.parts.get(FRAMES)
    if part is None or part.frames is None or part.kind != type(frames).__name__:
        raise ValueError("the saved rollout has no frames: it is damaged.")
    batch_size, ids = frames.batch_size, part.frames.id_array()
    num, first_id = len(ids) // batch_size, int(state.values.get("first_id", -1))
    if num * batch_size != len(ids) or (len(ids) and (ids[0] != first_id or (np.diff(ids) != 1).any())):
        raise ValueError(
            f"the saved rollout contradicts itself: {len(ids)} frames of {batch_size} streams, ids "
            f"{ids[:1].tolist()} to {ids[-1:].tolist()}, from {first_id} on."
        )
    columns = {}
    for name, dtype in COLUMNS.items():
        columns[name] = _checked(state.arrays, name, (num, batch_size), dtype)
    if num > num_steps:
        raise ValueError(
            f"the saved rollout has {num} steps, and num_steps is {num_steps} here: without its first steps it would "
            "be none. Build the buffer with the stored num_steps, or say on_mismatch='keep'; or save after clear()."
        )
    estimates = None
    if f"{_ESTIMATES}mask" in state.arrays:
        shape = (batch_size, int(state.settings["num_steps"]))
        leaves = [_checked(state.arrays, _ESTIMATES + name, shape, dtype) for name, dtype in _ESTIMATE_DTYPES.items()]
        if all(state.settings[name] == value for name, value in same.items()):
            estimates = Advantages(*(tf.constant(leaf) for leaf in leaves))
    differs = part.settings != frames._settings()
    next_id = writer.first_id + len(frames)

    def finish_all() -> None:
        writer.restore(first_id, columns)
        finish(estimates)

    return RestorePlan(
        places=slice(0, 0),
        rows=np.zeros(0, np.int64),
        storage=None,
        lock=writer.lock,
        is_empty=next_id == 0,
        clear=lambda: writer.begin(next_id),
        finish=finish_all,
        parts={FRAMES: frames._plan_restore(part, resize=resize and differs)},
    )


class SavedRollout(Restorable):
    """The part of `RolloutBuffer` that saves and restores it."""

    _SAVED_SETTINGS: ClassVar[tuple[str, ...]] = (
        "batch_size",
        "num_steps",
        "gamma",
        "lam",
        "seed",
        "end_of_episode_fn",
        "final_frame",
        "reward_field",
        "discount_field",
        "terminal_field",
        "truncated_field",
    )
    # What is noted of each frame was read by the fields that are named.
    _FIXED_SETTINGS: ClassVar[frozenset[str]] = frozenset(
        {"batch_size", "final_frame", "reward_field", "discount_field", "terminal_field", "truncated_field"}
    )

    # Of `RolloutBuffer`.
    _frames: TFUniformReplayBuffer
    _writer: RolloutWriter
    _rng: np.random.Generator
    _estimates: tuple[int, Advantages] | None
    _num_restores: int
    _is_read: bool

    def _capture(self) -> BufferState:
        with self._writer.lock:
            known = self._estimates
            estimates = None if known is None or known[0] != self._writer.version else known[1]
            return BufferState(
                kind=type(self).__name__,
                fields=self._saved_fields(),
                settings=self._settings(),
                values={"first_id": self._writer.first_id, "random": self._rng.bit_generator.state},
                arrays=record_arrays(self._writer.columns(), estimates),
                parts={FRAMES: self._frames._capture()},
            )

    def _plan_restore(self, state: BufferState, *, resize: bool) -> RestorePlan:
        random: Any = state.values.get("random")
        check_random_state("random", random)
        here = self._settings()
        same_seed = state.settings["seed"] == here["seed"]

        def finish(estimates: Advantages | None) -> None:
            self._estimates = None if estimates is None else (self._writer.version, estimates)
            self._num_restores += 1
            # With a seed of its own this buffer draws its own orders of minibatches.
            if same_seed:
                self._rng.bit_generator.state = random

        same = {name: here[name] for name in ("num_steps", "gamma", "lam")}
        return plan_rollout(
            state, self._frames, self._writer, here["num_steps"], resize=resize, same=same, finish=finish
        )

    def _has_drawn(self) -> bool:
        return self._is_read or self._frames._has_drawn()


def _checked(arrays: Mapping[str, Array], name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype != dtype:
        got = "none" if array is None else f"{list(array.shape)} {array.dtype}"
        raise ValueError(f"{name!r} of the saved rollout: expected {list(shape)} {np.dtype(dtype)}, got {got}.")
    return array
