"""The frames that an episodic buffer holds: by their ids, all of them, or episode after episode."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from .base import Ids, Items
from .episode_kinds import COMPLETED, FINISHED, FLAG_BITS
from .episode_pages import STEP_BITS
from .episode_table import EpisodeTable
from .nests import Array
from .priorities import check_keys
from .spec import DataSpec
from .storage import FrameStorage
from .windows import resolve_window


class EpisodeContents:
    """Reads frames while no thread writes.

    Args:
      spec: the spec of a frame.
      table: the episodes.
      storage: their frames.
      lock: held while episodes change.
    """

    def __init__(self, spec: DataSpec, table: EpisodeTable, storage: FrameStorage, lock: threading.Lock) -> None:
        self._spec = spec
        self._table = table
        self._storage = storage
        self._lock = lock

    def get(self, ids: Ids, num_steps: int | None) -> Items:
        """The frames with these ids, or the windows that start at them: `EpisodicReplayBuffer.get`."""
        window = resolve_window(num_steps, None)
        given = check_keys(ids)
        flat = given.reshape(-1)
        wanted = flat[:, None] + np.arange(1 if window is None else window.num_steps)
        table = self._table
        with self._lock:
            rows, held = self._find(wanted)
            if not held[:, 0].all():
                gone = ~held[:, 0]
                raise ValueError(
                    f"id {flat[gone][0]} of episode {int(episodes_of(flat[gone][0]))} is not held: episodes "
                    f"{table.oldest} to {table.next_id - 1} are; {int(gone.sum())} of {len(flat)} ids are "
                    "gone or were never given out."
                )
            if not held.all():
                first = flat[~held.all(axis=1)][0]
                raise ValueError(f"no window of {num_steps} frames starts at id {first}: its episode is shorter.")
            leaves = self._storage.gather(rows)
        shape = given.shape if window is None else (*given.shape, window.num_steps)
        leaves = [leaf.reshape(*shape, *leaf.shape[2:]) for leaf in leaves]
        return self._spec.pack(self._storage.to_tensors(leaves))

    def num_gone(self, keys: Array) -> int:
        """How many of these ids are not held."""
        with self._lock:
            _, held = self._find(keys.reshape(-1, 1))
        return int(np.count_nonzero(~held))

    def gather_all(self) -> Items:
        """Every frame held, the oldest episode first, leaves `[1, n, ...]`."""
        with self._lock:
            _, rows = self._table.frames()
            if not len(rows):
                return self._spec.pack([tf.zeros((1, 0, *field.shape), field.dtype) for field in self._spec.fields])
            leaves = self._storage.gather(rows[None])
        return self._spec.pack(self._storage.to_tensors(leaves))

    def episodes(self) -> Iterator[tuple[Items, dict[str, Any], int, Array, bool, bool]]:
        """The episodes held, oldest first: items, metadata, id, ids, whether it is completed, and finished."""
        table = self._table
        with self._lock:
            held = table.ids().tolist()
        for episode in held:
            with self._lock:
                state = int(table.states[table.slot(episode)]) if table.holds(episode) else 0
                if state >> FLAG_BITS == 0:
                    continue
                leaves = self._storage.gather(table.rows_of(episode))
                metadata = dict(table.metadata(episode))
            items = self._spec.pack([tensor.numpy() for tensor in self._storage.to_tensors(leaves)])
            ids = ((episode + 1) << STEP_BITS) + np.arange(state >> FLAG_BITS)
            yield items, metadata, episode, ids, bool(state & COMPLETED), bool(state & FINISHED)

    def _find(self, ids: Array) -> tuple[Array, Array]:
        """Rows of frames `[n, T]`, each line of one episode, and whether they are held, bool; the lock is held."""
        table = self._table
        rows = table.pages.rows(table.bases[(ids[:, 0] >> STEP_BITS) % table.capacity], ids)
        return rows, table.pages.tags.take(rows, mode="clip") == ids


def episodes_of(ids: Any) -> Array:
    """The episodes that frames with these ids belong to; -1 for padding.

    >>> episodes_of([1 << STEP_BITS, -1])
    array([ 0, -1])
    """
    return np.maximum(check_keys(ids) >> STEP_BITS, 0) - 1
