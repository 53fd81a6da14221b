"""What a window is, the same on every buffer that draws windows: burn-in, stride, padding, masks, odds."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    EmptyBufferError,
    EpisodicReplayBuffer,
    MultiAgentReplayBuffer,
    ReplayBuffer,
    ReverbReplayBuffer,
    TFUniformReplayBuffer,
    Window,
)

SPEC = {
    "value": tf.TensorSpec([], tf.int64),
    "image": tf.TensorSpec([2, 3], tf.uint8),
    "flag": tf.TensorSpec([], tf.bool),
}
WITH_FINAL_OBSERVATIONS = {**SPEC, "is_last": tf.TensorSpec([], tf.bool)}
STEPS = 200


def _local(spec: Any, batch_size: int, window: Window, patience_s: float) -> ReplayBuffer:
    return TFUniformReplayBuffer(spec, batch_size, STEPS, seed=5)


def _episodic(spec: Any, batch_size: int, window: Window, patience_s: float) -> ReplayBuffer:
    return EpisodicReplayBuffer(spec, 100, batch_size=batch_size, seed=5)


def _served(spec: Any, batch_size: int, window: Window, patience_s: float) -> ReplayBuffer:
    return ReverbReplayBuffer.local(
        spec,
        batch_size=batch_size,
        max_size=STEPS * batch_size,
        sequence_length=window.num_steps,
        burn_in=window.burn_in,
        stride=window.stride,
        short=window.short,
        timeout_s=patience_s,
    )


BACKENDS = {"local": _local, "episodic": _episodic, "served": _served}
# Buffers of many agents, of which there is one, over rings and over episodes.
OVER_AGENTS = {
    "independent": ("independent", functools.partial(TFUniformReplayBuffer, max_length=STEPS, seed=5)),
    "lockstep": ("lockstep", functools.partial(TFUniformReplayBuffer, max_length=STEPS, seed=5)),
    "lockstep_episodic": ("lockstep", functools.partial(EpisodicReplayBuffer, capacity=100, seed=5)),
}


@pytest.fixture(params=[*BACKENDS, *OVER_AGENTS])
def make(
    request: pytest.FixtureRequest, one_agent: Callable[[MultiAgentReplayBuffer], ReplayBuffer]
) -> Iterator[Callable[..., ReplayBuffer]]:
    """`make(spec, window, batch_size=1)`: a buffer that can give such windows.

    `patience_s` is how long a served one waits: short only where a test waits for that to end.
    """
    built: list[ReplayBuffer] = []

    def build(spec: Any, window: Window, batch_size: int = 1, patience_s: float = 30.0) -> ReplayBuffer:
        if request.param in BACKENDS:
            built.append(BACKENDS[request.param](spec, batch_size, window, patience_s))
        else:
            mode, make_buffer = OVER_AGENTS[request.param]
            agents = MultiAgentReplayBuffer({"a": spec}, {"a": "p"}, make_buffer, mode=mode, batch_size=batch_size)
            built.append(one_agent(agents))
        return built[-1]

    build.backend = request.param  # type: ignore[attr-defined]
    yield build
    for buffer in built:
        buffer.close()


def frame(values: Any, ends: Any) -> Any:
    """Leaves `[...]` that all follow from the value; nothing real is zero."""
    values = np.asarray(values)
    image = np.broadcast_to((values[..., None, None] % 250 + 1).astype(np.uint8), (*values.shape, 2, 3))
    return {"value": values, "image": image.copy(), "flag": np.ones(values.shape, bool), "is_last": np.asarray(ends)}


def write(buffer: ReplayBuffer, lengths: list[list[int]], *, first: int = 1) -> None:
    """For each stream episodes of these lengths; the frames of stream b count up from 1000 b + `first`.

    Streams step together; one with fewer frames is filled up by an episode that ends with the longest stream.
    """
    num_steps = max(map(sum, lengths))
    values = 1000 * np.arange(len(lengths))[:, None] + first + np.arange(num_steps)
    ends = np.zeros(values.shape, bool)
    for stream, episodes in enumerate(lengths):
        ends[stream, np.cumsum(episodes) - 1] = True
    items = frame(values, ends)
    told = "is_last" in buffer.data_spec
    if not told:
        del items["is_last"]
    for t in range(num_steps):
        step = {name: leaf[:, t] for name, leaf in items.items()}
        buffer.add_batch(step) if told else buffer.add_batch(step, end_of_episode=ends[:, t])


def masked(items: Any, info: Any) -> list[list[int | None]]:
    """Values of windows `[n, T]`, None for padding; padding is zeros in every field, id -1."""
    values, mask = np.asarray(items["value"]), np.asarray(info.mask)
    for leaf in tf.nest.flatten(items):
        assert not np.asarray(leaf)[~mask].any()
    assert np.asarray(items["flag"])[mask].all() and (np.asarray(items["image"])[mask] > 0).all()
    np.testing.assert_array_equal(np.asarray(info.ids) == -1, ~mask)
    return np.where(mask, values, None).tolist()


def passed(buffer: ReplayBuffer, window: Window) -> list[list[int | None]]:
    """Every window once, in the order of the ordered pass."""
    dataset = buffer.as_dataset(window=window, single_deterministic_pass=True)
    return [masked(*tf.nest.map_structure(lambda leaf: leaf[None], element))[0] for element in dataset]


def drawn(buffer: ReplayBuffer, window: Window, expected: list[list[int | None]]) -> None:
    """Draws by `sample` and by `as_dataset` give exactly these windows, with their chance and their key."""
    batches = [buffer.sample(40 * len(expected), window=window)]
    batches += itertools.islice(buffer.as_dataset(len(expected) * 20, window=window), 2)
    seen = []
    for items, info in batches:
        assert info.ids.shape[1] == window.length
        seen += masked(items, info)
        np.testing.assert_allclose(info.probabilities, 1 / len(expected), rtol=1e-5)
        np.testing.assert_array_equal(info.weights, 1)
        assert np.asarray(info.mask)[:, window.burn_in].all()
    # 80 draws a window: one is missing once in 10^34.
    assert {tuple(row) for row in seen} == {tuple(row) for row in expected}


_ = None


def test_padded_windows_begin_at_each_frame(make):
    window = Window(3, short="pad")
    buffer = make(SPEC, window)
    write(buffer, [[4, 2, 1]])
    expected = [[1, 2, 3], [2, 3, 4], [3, 4, _], [4, _, _], [5, 6, _], [6, _, _], [7, _, _]]
    assert passed(buffer, window) == expected
    drawn(buffer, window, expected)


def test_a_final_observation_ends_padded_windows_and_begins_none(make):
    window = Window(3, short="pad")
    buffer = make(WITH_FINAL_OBSERVATIONS, window)
    write(buffer, [[4, 2, 1]])
    expected = [[1, 2, 3], [2, 3, 4], [3, 4, _], [5, 6, _]]
    assert passed(buffer, window) == expected
    drawn(buffer, window, expected)


def test_burn_in_is_padding_where_the_episode_begins(make):
    window = Window(2, burn_in=2)
    buffer = make(SPEC, window)
    write(buffer, [[4, 3]])
    expected = [[_, _, 1, 2], [_, 1, 2, 3], [1, 2, 3, 4], [_, _, 5, 6], [_, 5, 6, 7]]
    assert passed(buffer, window) == expected
    drawn(buffer, window, expected)


def test_fr_023_an_episodes_tail_is_padded_not_lost(make):
    """Sequence 4, period 2, 7 steps: 0-3, 2-5 and 4-6 with one padding; every step occurs."""
    window = Window(4, stride=2, short="pad")
    buffer = make(SPEC, window)
    write(buffer, [[7, 3]])
    expected = [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, _], [8, 9, 10, _]]
    assert passed(buffer, window) == expected
    drawn(buffer, window, expected)


def test_t20_every_frame_is_in_a_window_of_a_stride_of_its_length(make):
    window = Window(5, stride=5, short="pad")
    buffer = make(SPEC, window)
    write(buffer, [[12, 4, 5]])
    expected = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, _, _, _], [13, 14, 15, 16, _], [17, 18, 19, 20, 21]]
    assert passed(buffer, window) == expected
    drawn(buffer, window, expected)


def test_a_dropped_window_is_counted(make):
    window = Window(4, stride=2)
    buffer = make(SPEC, window)
    write(buffer, [[7, 3]])
    assert passed(buffer, window) == [[1, 2, 3, 4], [3, 4, 5, 6]]
    buffer.sample(1, window=window)
    count = buffer.stats().windows_of(window)
    # Of starts 1, 3, 5, 7 and 8, 10 four have fewer than four frames left.
    assert (count.eligible, count.dropped_short) == (2, 4)


def test_all_of_it_at_once_for_two_streams(make):
    window = Window(3, burn_in=1, stride=2, short="pad")
    buffer = make(SPEC, window, 2)
    write(buffer, [[5, 2], [2, 5]])
    expected = [
        *([_, 1, 2, 3], [2, 3, 4, 5], [_, 6, 7, _]),
        *([_, 1001, 1002, _], [_, 1003, 1004, 1005], [1004, 1005, 1006, 1007]),
    ]
    assert sorted(passed(buffer, window), key=str) == sorted(expected, key=str)
    drawn(buffer, window, expected)


def test_an_unfinished_episodes_tail_waits_until_it_goes_on_or_ends(make):
    window = Window(3, short="pad")
    buffer = make(SPEC, window)
    write(buffer, [[2]])
    for value in (3, 4):
        buffer.add_batch({k: v for k, v in frame([value], [False]).items() if k != "is_last"})
    assert passed(buffer, window) == [[1, 2, _], [2, _, _]]
    buffer.add_batch({k: v for k, v in frame([5], [False]).items() if k != "is_last"})
    assert passed(buffer, window) == [[1, 2, _], [2, _, _], [3, 4, 5]]
    buffer.end_stream()
    assert passed(buffer, window) == [[1, 2, _], [2, _, _], [3, 4, 5], [4, 5, _], [5, _, _]]


def test_fr_002_burn_in_never_shows_another_episode(make):
    """Episodes of 30 and 25 frames, sequences of 40 with 20 of burn-in: one episode each, the rest is padding."""
    window = Window(20, burn_in=20, short="pad")
    buffer = make(SPEC, window, 2)
    write(buffer, [[30, 25], [25, 30]])
    items, info = buffer.sample(1000, window=window)
    rows = np.array(masked(items, info), float)
    episode = np.where(rows < 1000, rows > 30, 2 + (rows > 1025))
    episode = np.where(np.isnan(rows), np.nan, episode)
    np.testing.assert_array_equal(np.nanmin(episode, 1), np.nanmax(episode, 1))
    first_of = np.array([1, 31, 1001, 1026])[np.nanmin(episode, 1).astype(int)]
    last_of = np.array([30, 55, 1025, 1055])[np.nanmin(episode, 1).astype(int)]
    start = rows[:, 20]
    np.testing.assert_array_equal(np.asarray(info.mask)[:, :20].sum(1), np.minimum(start - first_of, 20))
    np.testing.assert_array_equal(np.asarray(info.mask)[:, 20:].sum(1), np.minimum(last_of - start + 1, 20))


@pytest.mark.parametrize("window", [Window(5), Window(5, burn_in=3, stride=2)])
def test_fr_007_no_legal_window_is_an_error_with_the_numbers(make, window):
    buffer = make(SPEC, window, patience_s=3.0)
    write(buffer, [[2] * 5])
    with pytest.raises(EmptyBufferError, match="no window of 5 frames: .*5 episodes, longest 2"):
        buffer.sample(3, window=window)


def test_sample_at_least_counts_real_frames_only(make):
    window = Window(4, burn_in=1, stride=4, short="pad")
    buffer = make(SPEC, window)
    write(buffer, [[5, 2, 6]])
    items, info = buffer.sample_at_least(50, window=window)
    num_real = np.asarray(info.mask).sum()
    assert 50 <= num_real < 50 + window.length
    assert items["value"].shape == info.ids.shape == info.mask.shape
    assert len(info.keys) == items["value"].shape[0]
    with pytest.raises(ValueError, match="min_steps must be at least 1, got 0"):
        buffer.sample_at_least(0, window=window)


@pytest.mark.parametrize("flag", ["done", "terminal", "truncated"])
def test_a_flag_that_is_no_end_warns_when_its_episode_goes_on(make, flag):
    """The spec does not tell that episodes end there: windows would join two in silence."""
    window, spec = Window(2), {"value": tf.TensorSpec([], tf.int64), flag: tf.TensorSpec([], tf.bool)}

    def added(told: bool) -> ReplayBuffer:
        buffer = make(spec, window)
        for value in range(1, 5):
            ends = np.array([value == 2])
            items = {"value": np.array([value]), flag: ends}
            buffer.add_batch(items, end_of_episode=ends) if told else buffer.add_batch(items)
        buffer.end_stream()
        return buffer

    told = added(told=True)
    assert sorted(items["value"].numpy().tolist() for items, _ in told.as_dataset(window=window, epochs=1)) == [
        [1, 2],
        [3, 4],
    ]
    with pytest.warns(UserWarning, match=f"a frame followed one with '{flag}', and no end was told between them"):
        added(told=False).sample(2, window=window)


def test_a_stream_that_is_ended_after_such_a_flag_warns_of_nothing(make):
    spec = {"value": tf.TensorSpec([], tf.int64), "terminal": tf.TensorSpec([], tf.bool)}
    buffer = make(spec, Window(2))
    for value in range(1, 5):
        buffer.add_batch({"value": np.array([value]), "terminal": np.array([value % 2 == 0])})
        if value % 2 == 0:
            buffer.end_stream()
    items, _ = buffer.sample(20, window=Window(2))
    assert set(items["value"].numpy()[:, 0].tolist()) == {1, 3}
