"""Which start comes next, in process: the protocol of a sampler, and those of the package. Knows keys, and no frames.

To add one: a class with the four methods of `ItemSampler`, a declaration in `item_selectors.py`, and its line in
`sampler_choice.py`.
"""

from __future__ import annotations

import heapq
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .nests import Array


@runtime_checkable
class ItemSampler(Protocol):
    """What picks the windows to draw: `TFUniformReplayBuffer(..., sampler=...)` takes any object with these methods.

    A *key* is the id of the frame at which a window starts, int64, and never given to another frame. The sampler
    is told of the keys that can be drawn and of no others: a key comes when its window is complete, and goes when
    the window cannot be drawn any more (overwritten, cleared, deleted, or drawn `max_times_sampled` times). Calls
    never overlap: the buffer's writer waits while one runs, so that each should be short, and none may call the buffer.

    An object serves one kind of window, because each kind has keys of its own. Give the class, or another function
    without arguments that makes one, to draw several kinds.

    >>> class Newest:
    ...     '''Draws the newest start, always.'''
    ...     def __init__(self):
    ...         self.keys = set()
    ...     def on_add(self, keys, priorities):
    ...         self.keys.update(keys.tolist())
    ...     def on_evict(self, keys):
    ...         self.keys.difference_update(keys.tolist())
    ...     def update(self, keys, priorities):
    ...         pass
    ...     def draw(self, num, rng):
    ...         return np.full(num, max(self.keys)), np.ones(num)
    >>> isinstance(Newest(), ItemSampler)
    True
    """

    def on_add(self, keys: Array, priorities: Array) -> None:
        """These keys int64 `[n]`, in ascending order, can be drawn now; raw priorities float64 `[n]` (1 if not given).

        It must not raise: the frames are in the buffer already.
        """

    def on_evict(self, keys: Array) -> None:
        """These keys int64 `[n]`, all of which were added before, cannot be drawn any more."""

    def update(self, keys: Array, priorities: Array) -> None:
        """These keys int64 `[n]`, no two alike, have new raw priorities float64 `[n]`, by `update_priorities`."""

    def draw(self, num: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """`num` keys int64 `[num]`, repeats allowed, and the chance of each, `[num]`, above 0 and at most 1.

        It is called only while there is a key. `rng` follows from the buffer's seed: a draw that takes its
        randomness from there repeats.
        """


class OrderedSampler(Protocol):
    """A sampler that draws by an order of its keys, and never by chance."""

    def first(self, num: int) -> Array:
        """The first `num` keys in its order, or all if there are fewer; int64."""


class UniformSampler:
    """Every key has the same chance.

    Args:
      capacity: no two keys at a time leave the same rest when divided by it.

    >>> sampler = UniformSampler(8)
    >>> sampler.on_add(np.array([3, 4, 9]), np.ones(3))
    >>> sampler.on_evict(np.array([4]))
    >>> keys, chances = sampler.draw(20, np.random.default_rng(0))
    >>> sorted(set(keys.tolist())), chances[0]
    ([3, 9], 0.5)
    """

    def __init__(self, capacity: int) -> None:
        self._keys = np.empty(16, np.int64)
        self._num = 0
        # For each rest the place of its key in `_keys`.
        self._places = np.zeros(capacity, np.int64)

    def __len__(self) -> int:
        return self._num

    def keys_in_order(self) -> Array:
        """See the function."""
        return self._keys[: self._num].copy()

    def on_add(self, keys: Array, priorities: Array) -> None:
        """Takes these keys in."""
        num = self._num + len(keys)
        if num > len(self._keys):
            self._keys = np.concatenate([self._keys[: self._num], np.empty(num, np.int64)])
        self._keys[self._num : num] = keys
        self._places[keys % len(self._places)] = np.arange(self._num, num)
        self._num = num

    def on_evict(self, keys: Array) -> None:
        """Lets these keys go: the last ones take their places."""
        places = self._places[keys % len(self._places)]
        num = self._num - len(keys)
        last = np.ones(len(keys), bool)
        last[places[places >= num] - num] = False
        moved = self._keys[num : self._num][last]
        holes = places[places < num]
        self._keys[holes] = moved
        self._places[moved % len(self._places)] = holes
        self._num = num

    def update(self, keys: Array, priorities: Array) -> None:
        """Priorities do not matter."""

    def draw(self, num: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """`num` keys with replacement."""
        return self._keys[rng.integers(0, self._num, num)], np.full(num, 1 / self._num)


class QueueSampler:
    """The key that came first, or last. It is drawn again and again until it is evicted.

    Args:
      capacity: no two keys at a time leave the same rest when divided by it.
      newest: begin with the one that came last.

    >>> sampler = QueueSampler(8)
    >>> sampler.on_add(np.array([3, 4, 5]), np.ones(3))
    >>> sampler.on_evict(np.array([3]))
    >>> sampler.draw(2, np.random.default_rng(0))[0].tolist(), sampler.first(5).tolist()
    ([4, 4], [4, 5])
    """

    def __init__(self, capacity: int, *, newest: bool = False) -> None:
        self._newest = newest
        # Keys in the order in which they came, with those that went; `_places` tells which are which.
        self._keys = np.empty(16, np.int64)
        self._head = self._tail = 0
        self._num = 0
        self._places = np.full(capacity, -1, np.int64)

    def keys_in_order(self) -> Array:
        """See the function."""
        return self._keys[self._held(self._head, self._tail)]

    def on_add(self, keys: Array, priorities: Array) -> None:
        """Takes these keys in, in this order."""
        if self._tail + len(keys) > len(self._keys):
            self._make_room(len(keys))
        stop = self._tail + len(keys)
        self._keys[self._tail : stop] = keys
        self._places[keys % len(self._places)] = np.arange(self._tail, stop)
        self._tail = stop
        self._num += len(keys)

    def on_evict(self, keys: Array) -> None:
        """Lets these keys go."""
        self._places[keys % len(self._places)] = -1
        self._num -= len(keys)

    def update(self, keys: Array, priorities: Array) -> None:
        """Priorities do not matter."""

    def first(self, num: int) -> Array:
        """The first `num` keys."""
        num = min(num, self._num)
        found: list[Array] = []
        missing, size = num, 2 * num + 16
        low, high = self._head, self._tail
        while missing > 0:
            piece = (max(low, high - size), high) if self._newest else (low, min(low + size, high))
            places = self._held(*piece)
            if missing == num:
                self._forget_gone(piece, places)
            if self._newest:
                places, high = places[::-1], piece[0]
            else:
                low = piece[1]
            found.append(self._keys[places[:missing]])
            missing -= len(found[-1])
            size *= 2
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def draw(self, num: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """The first key, `num` times."""
        return np.repeat(self.first(1), num), np.ones(num)

    def _held(self, start: int, stop: int) -> Array:
        """Places from `start` to `stop` whose keys have not gone."""
        places = np.arange(start, stop)
        return places[self._places[self._keys[start:stop] % len(self._places)] == places]

    def _forget_gone(self, piece: tuple[int, int], held: Array) -> None:
        """What has gone at the end that is drawn from is never looked at again."""
        if self._newest:
            self._tail = int(held[-1]) + 1 if len(held) else piece[0]
        else:
            self._head = int(held[0]) if len(held) else piece[1]

    def _make_room(self, num: int) -> None:
        kept = self._keys[self._held(self._head, self._tail)]
        self._keys = np.empty(2 * (len(kept) + num) + 16, np.int64)
        self._keys[: len(kept)] = kept
        self._places[kept % len(self._places)] = np.arange(len(kept))
        self._head, self._tail = 0, len(kept)


class HeapSampler:
    """The key of the lowest or highest priority; among equal ones the lowest key, which is the oldest.

    Args:
      largest: begin with the highest.

    >>> sampler = HeapSampler(largest=True)
    >>> sampler.on_add(np.array([3, 4, 5]), np.array([1.0, 2.0, 2.0]))
    >>> sampler.first(3).tolist()
    [4, 5, 3]
    >>> sampler.update(np.array([3]), np.array([7.0]))
    >>> sampler.draw(2, np.random.default_rng(0))[0].tolist()
    [3, 3]
    """

    def __init__(self, *, largest: bool) -> None:
        self._sign = -1.0 if largest else 1.0
        # (signed priority, key, serial number), with those that are out of date: `_serials` has the number that counts.
        self._heap: list[tuple[float, int, int]] = []
        self._serials: dict[int, int] = {}
        self._next = 0

    def keys_in_order(self) -> Array:
        """See the function; priorities and keys alone decide about the order of draws."""
        return np.array(sorted(self._serials), np.int64)

    def on_add(self, keys: Array, priorities: Array) -> None:
        """Takes these keys in."""
        for key, priority in zip(keys.tolist(), (self._sign * priorities).tolist(), strict=True):
            self._serials[key] = self._next
            heapq.heappush(self._heap, (priority, key, self._next))
            self._next += 1
        if len(self._heap) > 2 * len(self._serials) + 64:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)

    def on_evict(self, keys: Array) -> None:
        """Lets these keys go."""
        for key in keys.tolist():
            del self._serials[key]

    def update(self, keys: Array, priorities: Array) -> None:
        """Sets their priorities."""
        self.on_add(keys, priorities)

    def first(self, num: int) -> Array:
        """The first `num` keys."""
        taken: list[tuple[float, int, int]] = []
        while self._heap and len(taken) < num:
            entry = heapq.heappop(self._heap)
            if self._counts(entry):
                taken.append(entry)
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return np.array([key for _, key, _ in taken], np.int64)

    def draw(self, num: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """The first key, `num` times."""
        while not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return np.full(num, self._heap[0][1]), np.ones(num)

    def _counts(self, entry: tuple[float, int, int]) -> bool:
        return self._serials.get(entry[1]) == entry[2]


def keys_in_order(sampler: ItemSampler) -> Array | None:
    """The keys of one of the samplers of this module in the order in which, added anew, they lie as they do now.

    None: it is another one.

    >>> sampler = UniformSampler(8)
    >>> sampler.on_add(np.array([3, 4, 9]), np.ones(3))
    >>> sampler.on_evict(np.array([3]))
    >>> keys_in_order(sampler)
    array([9, 4])
    """
    if isinstance(sampler, UniformSampler | QueueSampler | HeapSampler):
        return sampler.keys_in_order()
    return None


def check_drawn(name: str, drawn: Any, num: int) -> tuple[Array, Array]:
    """What a sampler's `draw` returned, as keys int64 `[num]` and chances float64 `[num]`.

    Raises:
      TypeError: it is no pair.
      ValueError: a shape or dtype differs, or a chance is not above 0 and at most 1.

    >>> check_drawn("Mine()", ([1, 2], [0.5, 0.5]), 2)
    (array([1, 2]), array([0.5, 0.5]))
    """
    if not isinstance(drawn, tuple | list) or len(drawn) != 2:
        raise TypeError(f"sampler {name}: draw must return (keys, probabilities), got {drawn!r}.")
    keys, chances = np.asarray(drawn[0]), np.asarray(drawn[1], np.float64)
    if keys.shape != (num,) or keys.dtype.kind not in "iu":
        raise ValueError(f"sampler {name}: draw must return keys [{num}] int64, got {list(keys.shape)} {keys.dtype}.")
    if chances.shape != (num,):
        raise ValueError(f"sampler {name}: draw must return probabilities [{num}], got {list(chances.shape)}.")
    wrong = ~((chances > 0) & (chances <= 1))
    if wrong.any():
        position = int(wrong.argmax())
        raise ValueError(
            f"sampler {name}: probability {chances[position]} at position {position} of what draw returned must be "
            "above 0 and at most 1."
        )
    return keys.astype(np.int64, copy=False), chances
