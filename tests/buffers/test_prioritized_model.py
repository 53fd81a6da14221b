"""What has a priority, and which: against a naive list of frames, after any sequence of calls."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import EmptyBufferError, TFPrioritizedReplayBuffer, Window
from replayfeed.buffers.windows import eligible_windows

SPEC = {"value": tf.TensorSpec([], tf.int64), "is_last": tf.TensorSpec([], tf.bool)}

KINDS = [
    None,
    Window(1),
    Window(3),
    Window(2, stride=2),
    Window(2, boundaries="ignore"),
    Window(2, stride=2, boundaries="ignore"),
    Window(3, burn_in=2),
    Window(3, burn_in=2, boundaries="ignore"),
    Window(3, short="pad"),
    Window(4, burn_in=1, stride=2, short="pad"),
    Window(3, short="pad", pad_unfinished=True),
    Window(4, stride=3, short="pad", pad_unfinished=True),
]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 9)),
        st.tuples(st.just("add with priorities"), st.integers(1, 9)),
        st.tuples(st.just("end_stream"), st.integers(0, 2)),
        st.tuples(st.just("update"), st.integers(1, 6)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    min_size=1,
    max_size=14,
)


class Pair:
    """A buffer, and a dict of the priority of each id held."""

    def __init__(self, num_streams: int, max_length: int, initial: str, rng: np.random.Generator) -> None:
        self.buffer = TFPrioritizedReplayBuffer(SPEC, num_streams, max_length, alpha=1.0, initial=initial, seed=1)
        self.priorities: dict[int, float] = {}
        self.largest_ever = 0.0
        self.initial = initial
        self.rng = rng
        self.next_id = 0
        self.kinds: set[Window | None] = set()

    def add(self, num_steps: int, *, with_priorities: bool) -> None:
        if not with_priorities:
            for _ in range(num_steps):
                self._add(1, None)
            return
        self._add(num_steps, self.rng.choice([0.0, 0.25, 1.0, 2.0, 7.0], (self.buffer.batch_size, num_steps)))

    def _add(self, num_steps: int, given: np.ndarray | None) -> None:
        streams, capacity = self.buffer.batch_size, self.buffer.capacity
        ends = self.rng.random((streams, num_steps)) < 0.3
        items = {"value": self.rng.integers(0, 99, (streams, num_steps)), "is_last": ends}
        left = range(self.next_id + streams - capacity, self.next_id)
        drawable = [self.priorities[id] for id in self.eligible() if id in left]
        if num_steps == 1:
            one = None if given is None else given[:, 0]
            self.buffer.add_batch({name: leaf[:, 0] for name, leaf in items.items()}, priorities=one)
        else:
            self.buffer.add_sequence(items, priorities=given)
        for step in range(num_steps):
            ids = range(self.next_id, self.next_id + streams)
            for id in ids:
                self.priorities.pop(id - capacity, None)
            largest = max(drawable, default=0.0) or max(self.priorities.values(), default=0.0)
            if self.initial == "ever":
                largest = self.largest_ever
            for b, id in enumerate(ids):
                self.priorities[id] = (largest or 1.0) if given is None else float(given[b, step])
            self.largest_ever = max(self.largest_ever, *(self.priorities[id] for id in ids))
            self.next_id += streams

    def eligible(self, kinds: Iterable[Window | None] | None = None) -> set[int]:
        """Ids at which a window of one of these kinds starts; None: of those that were drawn so far."""
        ring, ids = self.buffer._ring, np.stack(self.buffer._ring.ids_by_stream())
        found: set[int] = set()
        for kind in self.kinds if kinds is None else kinds:
            window = kind or Window(1)
            words = ring.joined_words(ids) if window.boundaries == "ignore" else ring.words_by_stream()
            for stream, stream_words, is_open in zip(ids, words, ring.unfinished(), strict=True):
                starts = eligible_windows(stream_words, window, unfinished=bool(is_open)).starts
                found.update(stream[starts].tolist())
        return found

    def update(self, num: int) -> None:
        keys = self.rng.integers(max(0, self.next_id - self.buffer.capacity - 3), self.next_id + 2, num)
        values = self.rng.choice([0.0, 0.5, 1.0, 3.0, 100.0], num)
        gone = self.buffer.update_priorities(keys, values)
        assert gone == sum(int(key) not in self.priorities for key in keys)
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            if key in self.priorities:
                self.priorities[key] = value
                self.largest_ever = max(self.largest_ever, value)

    def run(self, kind: str, number: int) -> None:
        if kind == "end_stream":
            self.buffer.end_stream(None if number == 2 else number % self.buffer.batch_size)
        elif kind == "update":
            self.update(number)
        elif kind == "clear":
            self.buffer.clear()
            self.priorities.clear()
            self.largest_ever = 0.0
        else:
            self.add(number, with_priorities=kind == "add with priorities")

    def check(self, window: Window | None) -> None:
        """What the buffer draws by is what the model says: ids, masses, their sum and the new frames' priority."""
        self.kinds.add(window)
        ring = self.buffer._ring
        index = self.buffer._sampler(window)._starts._index
        expected = {id: self.priorities[id] for id in self.eligible([window])}
        rows = {ring.rows(np.array(id)).item(): value for id, value in expected.items()}
        assert index.holds(np.arange(ring.capacity)).nonzero()[0].tolist() == sorted(rows)
        assert {row: float(index.masses(np.array([row]))[0]) for row in rows} == rows
        assert index.total == pytest.approx(sum(rows.values()), rel=1e-12)


@pytest.mark.parametrize("window", KINDS, ids=str)
def test_only_eligible_starts_have_a_mass_and_it_is_their_frames_priority(window):
    @settings(max_examples=40, deadline=None)
    @given(
        steps, st.sampled_from([(1, 4), (1, 7), (2, 5), (3, 4)]), st.sampled_from(["max", "ever"]), st.integers(0, 99)
    )
    def check(steps, sizes, initial, seed):
        pair = Pair(*sizes, initial, np.random.default_rng(seed))
        if seed % 2:
            pair.add(3, with_priorities=True)  # the kind is first drawn from a buffer that holds something
        pair.check(window)
        for kind, number in steps:
            pair.run(kind, number)
            pair.check(window)
            pair.check(Window(2))  # a second kind beside it

    check()


@pytest.mark.parametrize("window", KINDS, ids=str)
@pytest.mark.parametrize("way", ["sample", "graph"])
def test_draws_are_of_eligible_starts_with_chances_that_sum_to_one(window, way):
    rng = np.random.default_rng(4)
    pair = Pair(2, 9, "max", rng)
    for num_steps in (5, 1, 9, 1, 1, 3):
        pair.add(num_steps, with_priorities=True)
    pair.update(6)
    index = pair.buffer._sampler(window)._starts._index
    rows = np.flatnonzero(index.holds(np.arange(18)) & (index.masses(np.arange(18)) > 0))
    assert len(rows) > 1
    if way == "sample":
        draws = [pair.buffer.sample(512, window=window)[1] for _ in range(4)]
    else:
        draws = [info for _, info in pair.buffer.as_dataset(512, window=window).take(4)]
    keys = np.concatenate([info.keys.numpy() for info in draws])
    chances = dict(
        zip(keys.tolist(), np.concatenate([info.probabilities.numpy() for info in draws]).tolist(), strict=True)
    )
    assert {key % 18 for key in chances} <= set(rows.tolist())
    total = float(index.masses(rows).astype(np.float64).sum())
    for key, chance in chances.items():
        assert chance == pytest.approx(float(index.masses(np.array([key % 18]))[0]) / total, rel=1e-6)
    counts = {key: (keys == key).sum() for key in chances}
    for row in rows.tolist():
        expected = 2048 * float(index.masses(np.array([row]))[0]) / total
        seen = sum(count for key, count in counts.items() if key % 18 == row)
        assert abs(seen - expected) < 5 * expected**0.5 + 1  # 5 sigma


def test_nothing_eligible_is_an_error_that_says_why():
    pair = Pair(1, 9, "max", np.random.default_rng(0))
    with pytest.raises(EmptyBufferError, match="is empty"):
        pair.buffer.sample(2)
    pair.buffer.add_sequence({"value": [[1, 2]], "is_last": [[False, True]]})
    with pytest.raises(EmptyBufferError, match="no window of 5 frames: 1 episodes, longest 2"):
        pair.buffer.sample(2, num_steps=5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no window of 5 frames: 1 episodes, longest 2"):
        next(iter(pair.buffer.as_dataset(2, num_steps=5)))
