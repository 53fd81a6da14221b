"""Exact odds: every eligible start, and no other, is drawn with the same chance.

What is eligible is told by a naive list of episodes, written here and not by our code. The
data is random episodes in one or three streams, ended by the argument of `add_batch` (the
last frame is an ordinary one) or by the spec's `is_last` (it is only a final observation),
in rings that are part full, just full, and wrapped with their oldest episode cut.

Bounds: the chi-square statistic of k starts passes `chi_square_bound(k - 1)` by chance once in
50 million; there are about 200 statistics here. In process seeds are fixed, Reverb has none.
Draws are at least 25 a start, so a start that is never drawn (chance e**-25) or one that
should not be drawn shows for certain.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReplayBuffer, ReverbReplayBuffer, TFUniformReplayBuffer, Window, ring_starts
from replayfeed.buffers.ring import FrameRing
from replayfeed.buffers.ring_sampler import RingSampler
from replayfeed.buffers.ring_starts import WindowStarts
from replayfeed.buffers.windows import StartRule

STEPS = [None, 1, 2, 3, 5]
DRAWS_A_START = 25
PLAIN = {"value": tf.TensorSpec([], tf.int64)}
WITH_ENDS = {"is_last": tf.TensorSpec([], tf.bool), "value": tf.TensorSpec([], tf.int64)}


# The naive model


@dataclasses.dataclass
class History:
    """All that was ever written: for each stream its frames, as (value, whether its episode ends there)."""

    num_streams: int
    final_observations: bool
    frames: list[tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=list)

    def episodes(self, stream: int, max_length: int) -> list[list[tuple[int, bool]]]:
        """What a ring of `max_length` frames still holds of each episode, as (value, is final observation)."""
        episodes: list[list[tuple[int, bool]]] = [[]]
        for time, (values, ends) in enumerate(self.frames):
            if time >= len(self.frames) - max_length:
                episodes[-1].append((int(values[stream]), bool(ends[stream]) and self.final_observations))
            if ends[stream]:
                episodes.append([])
        return [episode for episode in episodes if episode]

    def eligible(self, max_length: int, num_steps: int) -> set[int]:
        """Values of the frames at which a window of `num_steps` frames of one episode may start."""
        return {
            episode[start][0]
            for stream in range(self.num_streams)
            for episode in self.episodes(stream, max_length)
            for start in range(len(episode) - num_steps + 1)
            if not episode[start][1]
        }


def write_episodes(
    buffer: ReplayBuffer, history: History, num_frames: int, rng: np.random.Generator, mean_length: float
) -> None:
    """Adds this many frames a stream, in random episodes; the frame of stream b at time t holds 1000 b + t."""
    for _ in range(num_frames):
        values = 1000 * np.arange(history.num_streams) + len(history.frames)
        ends = rng.random(history.num_streams) < 1 / mean_length
        history.frames.append((values, ends))
        if history.final_observations:
            buffer.add_batch({"is_last": ends, "value": values})
        else:
            buffer.add_batch({"value": values}, end_of_episode=ends)


# Ways to draw: a buffer, a window length and a number -> values `[n, T]` and probabilities `[n]`

Draws = tuple[np.ndarray, np.ndarray]


def by_large_samples(buffer: ReplayBuffer, num_steps: int | None, num: int) -> Draws:
    """So many at once that eligible starts are listed."""
    return _as_windows([buffer.sample(num, num_steps)])


def by_small_samples(buffer: ReplayBuffer, num_steps: int | None, num: int) -> Draws:
    """So few at once that those not eligible are rejected."""
    return _as_windows([buffer.sample(2, num_steps) for _ in range(num // 2)])


def by_a_dataset_of_batches(buffer: ReplayBuffer, num_steps: int | None, num: int) -> Draws:
    """Lists eligible starts in the graph."""
    return _as_windows([next(iter(buffer.as_dataset(num, num_steps)))])


def by_a_dataset_of_single_draws(buffer: ReplayBuffer, num_steps: int | None, num: int) -> Draws:
    """Rejects in the graph."""
    return _as_windows([next(iter(buffer.as_dataset(None, num_steps).batch(num)))])


def _as_windows(batches: list[Any]) -> Draws:
    values = np.concatenate([items["value"].numpy() for items, _ in batches])
    chances = np.concatenate([info.probabilities.numpy() for _, info in batches])
    return values.reshape(len(chances), -1), chances


DRAW_WAYS = {
    way.__name__: way
    for way in (by_large_samples, by_small_samples, by_a_dataset_of_batches, by_a_dataset_of_single_draws)
}


# The check


def chi_square_bound(freedom: int) -> float:
    """What a chi-square passes once in 50 million times: 5.5 sigma of its cube root, which is all but normal.

    Wilson and Hilferty (1931). 5 sigma of the chi-square itself are too few: its tail is heavier than a normal one,
    with 9 degrees of freedom it is there once in 3,000 times.
    """
    spread = 2 / (9 * max(freedom, 1))
    return freedom * (1 - spread + 5.5 * spread**0.5) ** 3 + 1e-9


def check_odds(values: np.ndarray, chances: np.ndarray, eligible: set[int]) -> None:
    """Windows are whole, starts are exactly the eligible ones, odds are equal and told as such."""
    np.testing.assert_array_equal(values, values[:, :1] + np.arange(values.shape[1]))
    starts, counts = np.unique(values[:, 0], return_counts=True)
    assert set(starts.tolist()) == eligible
    np.testing.assert_allclose(chances, 1 / len(eligible), rtol=1e-6)
    expected = len(values) / len(eligible)
    statistic = float(np.sum((counts - expected) ** 2) / expected)
    assert statistic <= chi_square_bound(len(eligible) - 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """A ring and what is written into it in stages; odds are checked after each."""

    num_streams: int
    final_observations: bool
    max_length: int = 24
    # Part full, just full, one past the seam, and far past it: episodes are cut at the seam.
    stages: tuple[int, ...] = (15, 9, 1, 38)
    mean_length: float = 6.0

    def run(self, num_steps: int | None, draw: Callable[..., Draws], make: Callable[..., ReplayBuffer]) -> None:
        rng = np.random.default_rng([5, self.num_streams, self.final_observations])
        history = History(self.num_streams, self.final_observations)
        buffer = make(WITH_ENDS if self.final_observations else PLAIN, self.num_streams, self.max_length)
        for stage in self.stages:
            write_episodes(buffer, history, stage, rng, self.mean_length)
            eligible = history.eligible(self.max_length, num_steps or 1)
            check_odds(*draw(buffer, num_steps, DRAWS_A_START * len(eligible)), eligible)


def local(spec: Any, num_streams: int, max_length: int) -> ReplayBuffer:
    return TFUniformReplayBuffer(spec, num_streams, max_length, seed=3)


# Another backend adds a line here: how it is built, and the ways in which it draws.
BACKENDS = {f"local {way}": (local, draw) for way, draw in DRAW_WAYS.items() if "dataset" not in way}
DATASET_BACKENDS = {f"local {way}": (local, draw) for way, draw in DRAW_WAYS.items() if "dataset" in way}


@pytest.mark.parametrize("num_steps", STEPS)
@pytest.mark.parametrize("num_streams", [1, 3])
@pytest.mark.parametrize("final_observations", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_odds_are_exact_at_each_fill_level(backend, final_observations, num_streams, num_steps):
    make, draw = BACKENDS[backend]
    Case(num_streams, final_observations).run(num_steps, draw, make)


@pytest.mark.parametrize("num_steps", STEPS)
@pytest.mark.parametrize("num_streams", [1, 3])
@pytest.mark.parametrize("backend", DATASET_BACKENDS)
def test_odds_of_a_dataset_are_exact_past_the_seam(backend, num_streams, num_steps):
    """Building a dataset takes as long as all the rest, so each case gets one, after the seam."""
    make, draw = DATASET_BACKENDS[backend]
    final_observations = num_streams == 3
    Case(num_streams, final_observations, stages=(63,)).run(num_steps, draw, make)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
@pytest.mark.parametrize("num_streams", [1, 3])
@pytest.mark.parametrize("final_observations", [False, True])
def test_odds_of_a_served_table_are_exact_over_the_items_that_it_holds(final_observations, num_streams, num_steps):
    """A FIFO table holds the newest items; Reverb cannot be seeded, which the bound of `check_odds` allows for."""
    max_size = 40
    history = History(num_streams, final_observations)
    rng = np.random.default_rng([6, num_streams, final_observations])
    spec = WITH_ENDS if final_observations else PLAIN
    with ReverbReplayBuffer.local(
        spec, batch_size=num_streams, max_size=max_size, sequence_length=num_steps, timeout_s=10.0
    ) as buffer:
        for stage in (15, 9, 38):
            write_episodes(buffer, history, stage, rng, 6.0)
            # Items come in the order in which their last frames did, stream after stream.
            everything = history.eligible(len(history.frames), num_steps)
            items = sorted(everything, key=lambda start: (start % 1000 + num_steps - 1, start // 1000))
            eligible = set(items[-max_size:])
            check_odds(*by_large_samples(buffer, num_steps, DRAWS_A_START * len(eligible)), eligible)


def test_odds_where_windows_ignore_episode_ends():
    history = History(2, final_observations=False)
    buffer = local(PLAIN, 2, 10)
    write_episodes(buffer, history, 17, np.random.default_rng(1), mean_length=3.0)
    items, info = buffer.sample(1000, window=Window(3, boundaries="ignore"))
    expected = {1000 * b + t for b in range(2) for t in range(7, 15)}
    check_odds(items["value"].numpy(), info.probabilities.numpy(), expected)


def test_t11_windows_of_short_episodes_are_not_drawn_more_often():
    """Episodes of 3, 2 and 4 frames hold 2 + 1 + 3 windows of two: each has the chance 1/6."""
    buffer = local(PLAIN, 1, 9)
    for t in range(9):
        buffer.add_batch({"value": np.array([t])}, end_of_episode=np.array([t in (2, 4, 8)]))
    items, info = buffer.sample(3000, 2)
    check_odds(items["value"].numpy(), info.probabilities.numpy(), {0, 1, 3, 5, 6, 7})


def test_fr_004_no_window_joins_the_newest_frame_with_the_oldest():
    buffer = local(PLAIN, 1, 10)
    for t in range(25):
        buffer.add_batch({"value": np.array([t])}, end_of_episode=np.array([t % 4 == 3]))
    items, info = buffer.sample(2000, 3)
    # Frames 15 to 24 are held; episodes are 12-15, 16-19, 20-23 and 24.
    check_odds(items["value"].numpy(), info.probabilities.numpy(), {16, 17, 20, 21})


def test_fr_068_a_partly_evicted_episode_is_used_while_a_window_remains():
    """Capacity 60, episodes of 50, windows of 16, ten episodes, a look after every 10 frames."""
    buffer = local(PLAIN, 1, 60)
    for first in range(0, 500, 10):
        times = np.arange(first, first + 10)
        buffer.add_sequence({"value": times[None]}, end_of_episode=(times % 50 == 49)[None])
        held = range(max(0, first + 10 - 60), first + 10)
        expected = {t for t in held if t + 15 in held and t // 50 == (t + 15) // 50}
        if not expected:
            assert first == 0
            continue
        items, info = buffer.sample(DRAWS_A_START * len(expected), 16)
        check_odds(items["value"].numpy(), info.probabilities.numpy(), expected)


# The check itself: mutants of the sampler that are off by one must fail it. Private names are used here only.


def low_one_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest start is never drawn."""
    move_tail(monkeypatch, 1)


def low_one_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window may start at the frame that the newest one has overwritten."""
    move_tail(monkeypatch, -1)
    stale, stale_in_graph = RingSampler._stale, RingSampler._stale_in_graph
    monkeypatch.setattr(RingSampler, "_stale", lambda self, keys, mask: stale(self, keys + self._ring.batch_size, mask))
    monkeypatch.setattr(
        RingSampler,
        "_stale_in_graph",
        lambda self, keys, *rest: stale_in_graph(self, keys + self._ring.batch_size, *rest),
    )


def move_tail(monkeypatch: pytest.MonkeyPatch, num_steps: int) -> None:
    """Draws begin this many steps after the oldest frame."""
    bounds, in_graph = WindowStarts._bounds, WindowStarts._look_in_graph

    def moved(self: WindowStarts, found: Any) -> Any:
        return found._replace(tail=found.tail + num_steps * self._ring.batch_size)

    monkeypatch.setattr(WindowStarts, "_bounds", lambda self, lock_held: moved(self, bounds(self, lock_held)))

    def moved_in_graph(self: WindowStarts) -> Any:
        found, nothing = in_graph(self)
        return moved(self, found), nothing

    monkeypatch.setattr(WindowStarts, "_look_in_graph", moved_in_graph)


def count_one_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The running count forgets the frame after the one that is evicted: only the probability is wrong."""
    first_ends = FrameRing._first_ends

    def early(self: FrameRing, rule: StartRule, num_added: int) -> tuple[int, int]:
        old, new = first_ends(self, rule, num_added)
        return old + self.batch_size, new + self.batch_size

    monkeypatch.setattr(FrameRing, "_first_ends", early)


def window_one_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window may reach one frame back over its episode's beginning."""

    def short(rule: StartRule, words: Any) -> Any:
        return words >= 2 * (rule.reach - 1)

    monkeypatch.setattr(StartRule, "holds", short)
    monkeypatch.setattr(ring_starts, "_holds_in_graph", short)


MUTANTS = [low_one_late, low_one_early, count_one_early, window_one_short]


@pytest.mark.parametrize("way", DRAW_WAYS)
@pytest.mark.parametrize("mutate", MUTANTS)
def test_a_sampler_off_by_one_fails_this_check(monkeypatch, mutate, way):
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        # The running count begins with the first draw; one frame at a time shows where it goes wrong.
        Case(1, False, stages=(40, *[1] * 12)).run(3, DRAW_WAYS[way], local)


# Seeds


def _filled(seed: int | None, num: int = 50) -> ReplayBuffer:
    buffer = TFUniformReplayBuffer(PLAIN, 1, num, seed=seed)
    buffer.add_sequence({"value": np.arange(num)[None]})
    return buffer


def _sampled(buffer: ReplayBuffer) -> list[list[int]]:
    return [buffer.sample(8, 2)[0]["value"].numpy()[:, 0].tolist() for _ in range(5)]


def _delivered(dataset: tf.data.Dataset, num: int = 9) -> list[list[int]]:
    return [items["value"].numpy()[:, 0].tolist() for items, _ in dataset.take(num)]


def test_fr_074_sample_repeats_with_the_same_seed_and_differs_with_another():
    assert _sampled(_filled(1)) == _sampled(_filled(1)) != _sampled(_filled(2))
    assert _sampled(_filled(None)) != _sampled(_filled(None))


def test_fr_074_datasets_repeat_with_the_same_seed_and_each_iterator_of_each_differs():
    runs = []
    for seed in (1, 1, 2):
        buffer = _filled(seed)
        first, second = buffer.as_dataset(4, 2), buffer.as_dataset(4, 2)
        runs.append([_delivered(first), _delivered(first), _delivered(second)])
    assert runs[0] == runs[1]
    assert len({str(draws) for draws in runs[0] + runs[2]}) == 6


def test_fr_074_datasets_without_a_seed_differ():
    assert _delivered(_filled(None).as_dataset(4, 2)) != _delivered(_filled(None).as_dataset(4, 2))


def test_the_order_of_seeded_draws_does_not_depend_on_parallel_calls():
    assert _delivered(_filled(1).as_dataset(4, 2, num_parallel_calls=4), 30) == _delivered(
        _filled(1).as_dataset(4, 2), 30
    )


def test_sampling_does_not_disturb_a_seeded_dataset():
    """`sample` and `as_dataset` each have a stream of their own."""
    buffer = _filled(1)
    buffer.sample(8, 2)
    assert _delivered(buffer.as_dataset(4, 2)) == _delivered(_filled(1).as_dataset(4, 2))


def test_seeded_epochs_repeat_and_differ_from_pass_to_pass():
    passes = [_delivered(_filled(seed, 12).as_dataset(None, 1, epochs=2).batch(12)) for seed in (1, 1, 2)]
    assert passes[0] == passes[1] != passes[2]
    assert passes[0][0] != passes[0][1] and sorted(passes[0][0]) == sorted(passes[0][1]) == list(range(12))


def test_seeded_sampling_inside_a_tf_function_repeats():
    def run(seed: int) -> list[list[int]]:
        buffer = _filled(seed)
        draw = tf.function(lambda: buffer.sample(8, 2)[0]["value"])
        return [draw().numpy().tolist() for _ in range(3)]

    first, again, other = run(1), run(1), run(2)
    assert first == again != other
    assert first[0] != first[1]
