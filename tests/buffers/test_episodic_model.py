"""The episodic buffer against a naive list of episodes, over random histories (hypothesis)."""

import dataclasses
import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import event, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import EmptyBufferError, EpisodicReplayBuffer, Window

FIRST, MID, LAST = 0, 1, 2


class Step(NamedTuple):
    """The flags of a TF-Agents Trajectory, and a number that no other frame has."""

    step_type: Any
    value: Any
    next_step_type: Any


SPECS = {
    "plain": {"value": tf.TensorSpec([], tf.int64), "flag": tf.TensorSpec([2], tf.bool)},
    "trajectory": Step(tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32)),
}


@dataclasses.dataclass
class Naive:
    """One episode as the model knows it."""

    values: list[int]
    completed: bool = False
    finished: bool = False
    final: bool = False
    metadata: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def num_real(self) -> int:
        return len(self.values) - self.final


class Model:
    """All episodes ever begun; of these the ones from `oldest` on are held."""

    def __init__(self, num_streams: int, capacity: int, max_frames: int | None) -> None:
        self.num_streams = num_streams
        self.capacity = capacity
        self.max_frames = max_frames
        self.episodes: list[Naive] = []
        self.oldest = 0
        self.open = [-1] * num_streams
        self.added = 0

    def held(self) -> list[tuple[int, Naive]]:
        return list(enumerate(self.episodes))[self.oldest :]

    def num_frames(self) -> int:
        return sum(len(episode.values) for _, episode in self.held())

    def evict(self) -> None:
        self.oldest += 1

    def begin(self) -> int:
        while len(self.episodes) - self.oldest >= self.capacity:
            self.evict()
        self.episodes.append(Naive([]))
        return len(self.episodes) - 1

    def continued(self, b: int) -> int:
        episode = self.open[b]
        return episode if episode >= self.oldest and not self.episodes[episode].finished else -1

    def fits(self) -> bool:
        """Whether a frame for each stream fits beside what streams have open."""
        if self.max_frames is None:
            return True
        lengths = [0 if self.continued(b) < 0 else len(self.episodes[self.open[b]].values) for b in self.streams()]
        return sum(lengths) + self.num_streams <= self.max_frames

    def streams(self) -> range:
        return range(self.num_streams)

    def add_step(
        self, values: list[int], begins: list[bool], completes: list[bool], ends: list[bool], final: bool
    ) -> None:
        """One frame of each stream: who must go for all of them goes before any is written."""
        news = [begins[b] or self.continued(b) < 0 for b in self.streams()]
        for b in self.streams():
            if begins[b] and self.continued(b) >= 0:
                old = self.episodes[self.open[b]]
                old.completed = old.finished = True
        while True:
            oldest = max(self.oldest, len(self.episodes) + sum(news) - self.capacity)
            if self.max_frames is not None:
                kept = sum(len(episode.values) for _, episode in enumerate(self.episodes[oldest:], oldest))
                while kept + self.num_streams > self.max_frames:
                    kept -= len(self.episodes[oldest].values)
                    oldest += 1
            cut = [b for b in self.streams() if not news[b] and self.open[b] < oldest]
            if not cut:
                break
            for b in cut:
                news[b] = True
        self.oldest = oldest
        for b in self.streams():
            if news[b]:
                self.episodes.append(Naive([]))
                self.open[b] = len(self.episodes) - 1
            episode = self.episodes[self.open[b]]
            episode.values.append(values[b])
            episode.completed |= completes[b] or ends[b]
            episode.finished |= ends[b]
            episode.final |= ends[b] and final
            if ends[b]:
                self.open[b] = -1
        self.added += self.num_streams

    def end_stream(self, b: int | None) -> None:
        for stream in self.streams() if b is None else [b]:
            if self.open[stream] >= self.oldest:
                self.episodes[self.open[stream]].completed = self.episodes[self.open[stream]].finished = True
            self.open[stream] = -1

    # What can be drawn

    def eligible(self, completed_only: bool) -> list[tuple[int, Naive]]:
        return [(e, one) for e, one in self.held() if one.num_real >= 1 and (one.completed or not completed_only)]

    def windows(self, window: Window, completed_only: bool) -> list[tuple[int, list[int | None]]]:
        """Episode and values, None for padding, of each window, oldest first."""
        found = []
        for number, episode in self.eligible(completed_only):
            shown_until = 0
            for step in range(0, episode.num_real, window.stride):
                after = episode.values[step : step + window.num_steps]
                whole = len(after) == window.num_steps
                if not whole:
                    if window.short == "drop" or not (episode.finished or window.pad_unfinished):
                        continue
                    if window.stride > 1 and shown_until == len(episode.values):
                        continue  # one that starts earlier shows as much
                shown_until = max(shown_until, step + len(after))
                before = episode.values[max(0, step - window.burn_in) : step]
                front = [None] * (window.burn_in - len(before))
                found.append((number, front + before + after + [None] * (window.num_steps - len(after))))
        return found

    def stepped(self, num_steps: int, shift: int, completed_only: bool, keep_short: bool) -> list[list[int]]:
        found = []
        for _, episode in self.eligible(completed_only):
            for step in range(0, episode.num_real, shift):
                values = episode.values[step : step + num_steps]
                if keep_short or len(values) == num_steps:
                    found.append(values)
        return found

    def chances(self, window: Window | None, draw: str, completed_only: bool) -> dict[tuple[int | None, ...], float]:
        """The chance of each sample, by its values."""
        if window is None:
            samples = [(e, tuple(one.values)) for e, one in self.eligible(completed_only)]
        else:
            samples = [(e, tuple(values)) for e, values in self.windows(window, completed_only)]
        if not samples:
            return {}
        per_episode = Counter(e for e, _ in samples)
        weights = {
            "windows": lambda e: 1.0,
            "episodes": lambda e: 1 / per_episode[e],
            "length": lambda e: len(self.episodes[e].values) / per_episode[e],
        }
        total = sum(weights[draw](e) for e, _ in samples)
        return {values: weights[draw](e) / total for e, values in samples}


class Pair:
    """A buffer and the model that goes the same way."""

    def __init__(self, kind: str, num_streams: int, capacity: int, max_frames: int | None, **settings: Any) -> None:
        self.kind = kind
        self.buffer = EpisodicReplayBuffer(
            SPECS[kind], capacity, batch_size=num_streams, max_frames=max_frames, seed=1, **settings
        )
        self.model = Model(num_streams, capacity, max_frames)
        self.next_value = 1

    def frames(self, num_steps: int, begins: np.ndarray, ends: np.ndarray, completes: np.ndarray) -> Any:
        shape = begins.shape
        values = np.arange(self.next_value, self.next_value + begins.size).reshape(num_steps, -1).T.copy()
        self.next_value += begins.size
        if self.kind == "plain":
            return {"value": values, "flag": np.stack([values % 2 == 0, values % 3 == 0], axis=-1)}, values
        step_type = np.where(begins, FIRST, np.where(ends, LAST, MID)).astype(np.int32)
        return Step(step_type, values, np.where(completes, LAST, MID).astype(np.int32).reshape(shape)), values

    def add(self, flags: list[list[int]], one_by_one: bool) -> None:
        """Adds `[T][B]` frames; a flag of 1 ends (LAST), 2 begins (FIRST), 3 completes (next_step_type LAST)."""
        flag = np.array(flags).T
        ends, begins, completes = flag == 1, flag == 2, flag == 3
        if self.kind == "plain":
            begins = completes = np.zeros_like(ends)
        # What would not fit is refused: here it is not tried (`test_episodic.py` does).
        before = self.next_value
        items, values = self.frames(flag.shape[1], begins, ends, completes)
        for t in range(flag.shape[1]):
            if not self.model.fits():
                self.next_value = before
                return self._rest(t, items, ends, one_by_one)
            self.model.add_step(
                values[:, t].tolist(),
                begins[:, t].tolist(),
                completes[:, t].tolist(),
                ends[:, t].tolist(),
                self.kind == "trajectory",
            )
        self.next_value = before + flag.size
        return self._rest(flag.shape[1], items, ends, one_by_one)

    def _rest(self, num: int, items: Any, ends: np.ndarray, one_by_one: bool) -> None:
        self.next_value += num * self.model.num_streams
        if num == 0:
            return
        flags = {"end_of_episode": ends[:, :num]} if self.kind == "plain" else {}
        cut = tf.nest.map_structure(lambda leaf: leaf[:, :num], items)
        if not one_by_one:
            try:
                self.buffer.add_sequence(cut, **flags)
                return
            except ValueError as error:  # an upper bound: what goes meanwhile is not taken off
                assert "open episodes would hold" in str(error)
                event("refused in one, fits one by one")
        for t in range(num):
            step_flags = {"end_of_episode": ends[:, t]} if self.kind == "plain" else {}
            self.buffer.add_batch(tf.nest.map_structure(lambda leaf, t=t: leaf[:, t], cut), **step_flags)

    def value_of(self, items: Any) -> np.ndarray:
        return np.asarray(items["value"] if self.kind == "plain" else items.value)


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 9), st.booleans(), st.randoms(use_true_random=False)),
    st.tuples(st.just("end"), st.integers(-1, 2)),
    st.tuples(
        st.just("clear"),
    ),
    st.tuples(st.just("extend"), st.integers(1, 7)),
)


@st.composite
def pairs(draw: Any, **settings: Any) -> Pair:
    num_streams = draw(st.integers(1, 3))
    capacity = draw(st.integers(num_streams, 6))
    max_frames = draw(st.one_of(st.none(), st.integers(max(5, 3 * num_streams), 24)))
    pair = Pair(draw(st.sampled_from(sorted(SPECS))), num_streams, capacity, max_frames, **settings)
    end_odds = draw(st.sampled_from([0.15, 0.4]))
    for operation in draw(st.lists(OPERATIONS, min_size=1, max_size=9)):
        apply(pair, operation, end_odds)
    return pair


def apply(pair: Pair, operation: tuple[Any, ...], end_odds: float) -> None:
    name, *rest = operation
    if name == "add":
        num_steps, one_by_one, random = rest
        flags = [
            [random.choice([1, 1, 2, 3]) if random.random() < end_odds else 0 for _ in range(pair.model.num_streams)]
            for _ in range(num_steps)
        ]
        pair.add(flags, one_by_one)
    elif name == "end":
        b = None if rest[0] < 0 else rest[0] % pair.model.num_streams
        pair.buffer.end_stream(b)
        pair.model.end_stream(b)
    elif name == "clear":
        pair.buffer.clear()
        model = pair.model
        model.oldest, model.open, model.added = len(model.episodes), [-1] * model.num_streams, 0
    elif name == "extend":
        length = min(rest[0], pair.model.max_frames or 99)
        no_flags = np.zeros((1, length), bool)
        items, values = pair.frames(length, no_flags, no_flags, no_flags)
        (number,) = pair.buffer.extend([tf.nest.map_structure(lambda leaf: leaf[0], items)])
        assert number == pair.model.begin()
        pair.model.episodes[-1] = Naive(values[0].tolist(), completed=True, finished=True)
        while pair.model.max_frames is not None and pair.model.num_frames() > pair.model.max_frames:
            pair.model.evict()
        pair.model.added += length


WINDOWS = st.builds(
    lambda steps, burn_in, stride, short, unfinished: Window(
        steps, burn_in, stride, short, pad_unfinished=unfinished and short == "pad"
    ),
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(1, 3),
    st.sampled_from(["drop", "pad"]),
    st.booleans(),
)


@given(pair=pairs())
@settings(max_examples=150, deadline=None)
def test_what_is_held_is_what_the_model_holds(pair):
    buffer, model = pair.buffer, pair.model
    held = [one for _, one in model.held() if one.values]
    given = list(buffer.episodes())
    assert [pair.value_of(one.items).tolist() for one in given] == [one.values for one in held]
    assert [one.episode_id for one in given] == [e for e, one in model.held() if one.values]
    assert [(one.completed, one.finished) for one in given] == [(one.completed, one.finished) for one in held]
    everything = [value for one in held for value in one.values]
    assert pair.value_of(buffer.gather_all()).tolist() == [everything]
    assert len(buffer) == int(buffer.num_frames()) == len(everything)
    stats = buffer.stats()
    assert (stats.episodes, stats.added, stats.added - stats.evicted) == (len(held), model.added, len(everything))
    ids = np.concatenate([one.ids for one in given] or [np.zeros(0, np.int64)])
    assert pair.value_of(buffer.get(ids)).tolist() == everything


def set_reading(buffer: EpisodicReplayBuffer, **settings: Any) -> None:
    """The same history, read by a buffer built with other settings."""
    buffer._reader.settings = dataclasses.replace(buffer._reader.settings, **settings)


@given(pair=pairs(), window=WINDOWS, completed_only=st.booleans(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_probabilities_and_samples_are_those_of_the_model(pair, window, completed_only, data):
    set_reading(pair.buffer, completed_only=completed_only)
    draw = data.draw(st.sampled_from(["windows", "episodes", "length"]))
    whole = data.draw(st.booleans()) and draw != "windows"
    chances = pair.model.chances(None if whole else window, draw, completed_only)
    event(f"{'whole' if whole else 'window'}, {'some' if chances else 'none'}")
    arguments = {"draw": draw} if whole else {"draw": draw, "window": window}
    if not chances:
        with pytest.raises(EmptyBufferError):
            pair.buffer.sample(4, **arguments)
        return
    items, info = pair.buffer.sample(40, **arguments)
    assert_drawn(pair, items, info, chances, whole)


def assert_drawn(pair: Pair, items: Any, info: Any, chances: dict[Any, float], whole: bool) -> None:
    mask = info.mask.numpy()
    for values, row, chance in zip(pair.value_of(items).tolist(), mask, info.probabilities.numpy(), strict=True):
        assert all(value == 0 for value, real in zip(values, row, strict=True) if not real)
        drawn = tuple(value if real else None for value, real in zip(values, row, strict=True))
        drawn = tuple(value for value in drawn if value is not None) if whole else drawn
        assert math.isclose(chance, chances[drawn], rel_tol=1e-5)
    ids = info.ids.numpy()
    assert ((ids == -1) == ~mask).all()
    assert pair.value_of(pair.buffer.get(ids[mask])).tolist() == pair.value_of(items)[mask].tolist()


@given(pair=pairs(), window=WINDOWS, completed_only=st.booleans(), num_steps=st.integers(1, 4), shift=st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_ordered_passes_visit_what_the_model_lists_in_its_order(pair, window, completed_only, num_steps, shift):
    buffer, model = pair.buffer, pair.model
    set_reading(buffer, completed_only=completed_only, window_shift=shift)
    cases = [
        ({}, [one.values for _, one in model.eligible(completed_only)]),
        ({"window": window}, [values for _, values in model.windows(window, completed_only)]),
        ({"num_steps": num_steps}, model.stepped(num_steps, shift, completed_only, keep_short=True)),
    ]
    for arguments, expected in cases:
        dataset = buffer.as_dataset(single_deterministic_pass=True, **arguments)
        if not expected:
            with pytest.raises(tf.errors.InvalidArgumentError):
                next(iter(dataset))
            continue
        found = []
        for items, info in dataset:
            values = pair.value_of(items).tolist()
            found.append([value if real else None for value, real in zip(values, info.mask.numpy(), strict=True)])
        assert found == expected
