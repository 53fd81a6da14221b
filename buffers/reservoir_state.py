"""What a reservoir saves of itself, and how another one takes that over and goes on by the same law."""

from __future__ import annotations

import abc
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from .buffer_state import BufferState, HeldFrames, LiveFrames, RestorePlan
from .graph_seeds import GraphSeeds
from .nests import Array
from .random_states import check_random_state, generator_of
from .reservoir_rows import ReservoirRows
from .reservoir_rule import ReservoirRule, check_rule_state, resized
from .reservoir_sampler import ReservoirSampler
from .reservoir_usage import ReservoirUsage
from .reservoir_writer import ReservoirWriter
from .restorable import Restorable
from .storage import FrameStorage

# What a state has.
_VALUES = ("rule", "first_id", "usage", "random", "num_seeds", "stacked")
_ARRAYS = ("rows", "was_sampled", "graph_seeds")

_logger = logging.getLogger(__name__)


class ReservoirState:
    """Captures and restores what a reservoir holds, and what becomes of items to come; not how it draws.

    An item's id is its place in the stream, and what has that id never changes, so that the frames of one save serve
    the next one. In which row an item lies decides about draws, and about which item is replaced next: it is saved
    beside them.

    Args:
      capacity: rows.
      rule: decides what is kept, and where.
      held: what is held.
      storage: the frames' memory.
      usage: what was drawn.
      writer: numbers the items.
      lock: held while the reservoir changes.
    """

    def __init__(
        self,
        capacity: int,
        rule: ReservoirRule,
        held: ReservoirRows,
        storage: FrameStorage,
        usage: ReservoirUsage,
        writer: ReservoirWriter,
        lock: threading.Lock,
    ) -> None:
        self._capacity = capacity
        self._rule = rule
        self._held = held
        self._storage = storage
        self._usage = usage
        self._writer = writer
        self._lock = lock

    def capture(self) -> tuple[dict[str, Any], dict[str, Array], HeldFrames]:
        """Values, arrays and frames as of now; the caller holds the lock, and closes the frames.

        Raises:
          ValueError: an add was interrupted more than once, and the item that it was about is not there yet.
        """
        ids, rows = self._held.in_order()
        if len(ids) != self._rule.num_held:
            raise ValueError(
                f"{self._rule.num_held - len(ids)} rows of the reservoir are empty, because an add was interrupted: "
                "add again, or clear(), and save then."
            )
        values: dict[str, Any] = {
            "rule": self._rule.state(),
            "first_id": self._writer.first_id,
            "usage": self._usage.counts(),
        }
        # A row fits into 31 bits, as a capacity does.
        arrays: dict[str, Array] = {
            "rows": rows.astype(np.int32),
            "was_sampled": np.packbits(self._usage.was_sampled(rows)),
        }
        return values, arrays, HeldFrames(ids, LiveFrames(self._storage, rows))

    def plan(
        self, state: BufferState, *, goes_on: bool, prepare: Callable[[], None], finish_draws: Callable[[], None]
    ) -> RestorePlan:
        """What becomes of this reservoir; changes nothing.

        Into as many rows everything goes where it was. Into fewer or more rows see `resized`.

        Args:
          state: of a reservoir of the same spec.
          goes_on: whether what is kept next is decided by the random numbers of the saved one, else by this one's.
          prepare: called before anything is changed, the lock not being held.
          finish_draws: called when all else is set, with the lock held.

        Raises:
          ValueError: the state contradicts itself.
        """
        if state.frames is None:
            raise ValueError("the saved reservoir holds no frames: it is damaged.")
        ids, values = state.frames.id_array(), state.values
        num_held = len(ids)
        capacity, first_id, rule_state = int(state.settings["capacity"]), int(values["first_id"]), dict(values["rule"])
        rows, was_sampled = _checked_rows(ids, state.arrays)
        check_rule_state(rule_state, capacity)
        check_random_state("rule", rule_state["rng"])
        num_seen = rule_state["num_seen"]
        if rule_state["num_held"] != len(ids) or (
            len(ids) and (ids[0] < first_id or ids[-1] >= first_id + num_seen or (np.diff(ids) <= 0).any())
        ):
            raise ValueError(
                f"the saved reservoir contradicts itself: {rule_state['num_held']} items of {num_seen} from id "
                f"{first_id} on, and {len(ids)} ids, {ids[:1].tolist()} to {ids[-1:].tolist()}."
            )
        usage = dict(values["usage"])
        kept = None
        if capacity != self._capacity or not goes_on:
            rng = generator_of((rule_state if goes_on else self._rule.state())["rng"])
            kept, rule_state = resized(rule_state, capacity, self._capacity, rng)
            if kept is not None:
                lost = np.delete(was_sampled, kept)
                usage["replaced"] += len(lost)
                usage["replaced_unsampled"] += int(np.count_nonzero(~lost))
                ids, was_sampled = ids[kept], was_sampled[kept]
            rows = np.arange(len(ids))

        def finish() -> None:
            self._usage.restore(usage, rows, was_sampled)
            self._writer.first_id = first_id
            self._rule.restore(rule_state)
            self._held.restore(ids, rows)
            finish_draws()
            self._tell_growth(capacity, rule_state)

        return RestorePlan(
            places=slice(0, len(rows)) if kept is None else kept,
            rows=rows,
            storage=self._storage,
            lock=self._lock,
            is_empty=self._rule.num_seen == 0 and self._writer.first_id == 0,
            prepare=prepare,
            clear=self.clear,
            finish=finish,
            num_dropped=0 if kept is None else num_held - len(kept),
        )

    def clear(self) -> None:
        """Empties it; the caller holds the lock."""
        self._writer.clear()
        self._held.clear()
        self._usage.clear()

    def _tell_growth(self, capacity: int, rule_state: Mapping[str, Any]) -> None:
        seen, held = rule_state["num_seen"], rule_state["num_held"]
        if capacity < self._capacity and held < min(seen, self._capacity):
            _logger.warning(
                "a reservoir of %d rows goes on in one of %d: it holds %d of %d items, which cannot become more, and "
                "keeps so large a share of those to come that it is full after about %d; ReservoirReplayBuffer says "
                "by which law.",
                capacity,
                self._capacity,
                held,
                seen,
                seen * self._capacity // held,
            )


class SavedReservoir(Restorable):
    """The part of `ReservoirReplayBuffer` that saves and restores it."""

    _SAVED_SETTINGS: ClassVar[tuple[str, ...]] = (
        "capacity",
        "batch_size",
        "seed",
        "end_of_episode_fn",
        "final_frame",
        "min_size_to_sample",
    )
    # Whose items they are no row tells, so that any number of streams can go on.
    _FIXED_SETTINGS: ClassVar[frozenset[str]] = frozenset({"final_frame"})

    # Of `ReservoirReplayBuffer`.
    _lock: threading.Lock
    _state: ReservoirState
    _rng: np.random.Generator
    _num_seeds: int
    _graph_seeds: GraphSeeds
    _samplers: dict[bool, ReservoirSampler]

    @abc.abstractmethod
    def _check_open(self) -> None:
        """Refuses, if the buffer is closed."""

    @abc.abstractmethod
    def _sampler(self, stacked: bool) -> ReservoirSampler:
        """What draws samples with, or without, an axis for time."""

    def _capture(self) -> BufferState:
        with self._lock:
            self._check_open()
            draws = {
                "random": self._rng.bit_generator.state,
                "num_seeds": self._num_seeds,
                "stacked": list(self._samplers),
            }
            graph_seeds, settings = self._graph_seeds.state(), self._settings()
            values, arrays, frames = self._state.capture()
            return BufferState(
                kind=type(self).__name__,
                fields=self._saved_fields(),
                settings=settings,
                values={**values, **draws},
                arrays={**arrays, "graph_seeds": graph_seeds},
                frames=frames,
            )

    def _plan_restore(self, state: BufferState, *, resize: bool) -> RestorePlan:
        self._check_open()
        missing = [name for name in _VALUES if name not in state.values]
        missing += [name for name in _ARRAYS if name not in state.arrays]
        if missing:
            raise ValueError(f"the saved reservoir lacks {', '.join(missing)}: it is not whole.")
        random, num_seeds, graph_seeds = state.values["random"], state.values["num_seeds"], state.arrays["graph_seeds"]
        check_random_state("random", random)
        self._graph_seeds.check(graph_seeds)
        # With a seed of its own this buffer draws its own random numbers.
        goes_on = state.settings["seed"] == self._settings()["seed"]

        def prepare() -> None:
            for stacked in state.values["stacked"]:
                self._sampler(bool(stacked))

        def finish_draws() -> None:
            if goes_on:
                self._rng.bit_generator.state = random
                # Never the seed of a dataset that was made of this buffer before.
                self._num_seeds = max(self._num_seeds, int(num_seeds))
                self._graph_seeds.restore(graph_seeds)

        return self._state.plan(state, goes_on=goes_on, prepare=prepare, finish_draws=finish_draws)

    def _has_drawn(self) -> bool:
        return bool(self._samplers)


def _checked_rows(ids: Array, arrays: Mapping[str, Array]) -> tuple[Array, Array]:
    """Row of each item, int64 `[n]`, and whether it was drawn, bool `[n]`.

    Raises:
      ValueError: they do not fit to the ids, or rows are none, or not each once.
    """
    num = len(ids)
    rows, packed = arrays["rows"].astype(np.int64), arrays["was_sampled"]
    if rows.shape != (num,) or not np.array_equal(np.sort(rows), np.arange(num)):
        raise ValueError(
            f"'rows' of the saved reservoir: expected each of 0 to {num - 1} once, got {rows.shape} "
            f"{rows[:5].tolist()} ...: it is damaged."
        )
    if packed.shape != ((num + 7) // 8,) or packed.dtype != np.uint8:
        raise ValueError(
            f"'was_sampled' of the saved reservoir: expected uint8 [{(num + 7) // 8}], got {packed.dtype} "
            f"{list(packed.shape)}: it is damaged."
        )
    return rows, np.unpackbits(packed, count=num).astype(bool)
