"""Rings of numbers for tests that save them: random histories, and what can be seen of a ring afterwards."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from replayfeed.buffers import EmptyBufferError, TFPrioritizedReplayBuffer, TFUniformReplayBuffer, Window

VALUE = tf.TensorSpec([], tf.int64)
CLASSES = [TFUniformReplayBuffer, TFPrioritizedReplayBuffer]


def values(buffer: Any) -> list[int]:
    """Of the only stream."""
    return [int(value) for value in buffer.gather_all().numpy()[0]]


@contextlib.contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@st.composite
def histories(draw: st.DrawFn, streams: int, *, changes: bool) -> list[tuple[Any, ...]]:
    """Adds and ends of streams; where `changes` also deletes (of ids counted back) and clears."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    names = ["add", "add", "add", "end"] + (["delete", "clear"] if changes else [])
    history: list[tuple[Any, ...]] = []
    for name in draw(st.lists(st.sampled_from(names), max_size=6)):
        if name == "add":
            shape = (streams, draw(st.integers(1, 9)))
            ends, priorities = rng.random(shape) < 0.25, rng.choice([0.5, 1.0, 3.0], shape)
            history.append((name, rng.integers(0, 1000, shape), ends, priorities))
        elif name == "end":
            history.append((name, draw(st.none() | st.integers(0, streams - 1))))
        elif name == "delete":
            history.append((name, draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))))
        else:
            history.append((name,))
    return history


def run(buffer: Any, history: list[tuple[Any, ...]]) -> None:
    for name, *arguments in history:
        if name == "add":
            told, ends, priorities = arguments
            buffer.add_sequence(told, end_of_episode=ends, priorities=priorities)
        elif name == "end":
            buffer.end_stream(*arguments)
        elif name == "delete":
            newest = newest_id(buffer)
            buffer.delete([newest - back for back in arguments[0]])
        else:
            buffer.clear()


def newest_id(buffer: Any) -> int:
    """By asking: of a buffer of at most 400 frames."""
    held = [each for each in range(400) if is_held(buffer, each)]
    return held[-1] if held else -1


def is_held(buffer: Any, each: int, num_steps: int | None = None) -> bool:
    try:
        buffer.get([each], num_steps)
    except ValueError:
        return False
    return True


KINDS = (Window(1), Window(2), Window(3, burn_in=1))


def seen(buffer: Any) -> Any:
    """What is held, which windows it has, with which chances; not what was counted before."""
    passes = []
    for kind in KINDS:
        try:
            _, info = buffer.sample(40, window=kind)
        except EmptyBufferError:
            passes.append(None)
            continue
        chances = dict(zip(info.keys.numpy().tolist(), info.probabilities.numpy().round(5).tolist(), strict=True))
        passes.append(chances if len(chances) == buffer.stats().windows_of(kind).eligible else "not all were drawn")
    stats = buffer.stats()
    counts = [(each.window, each.eligible, each.dropped_short) for each in stats.windows if each.window in KINDS]
    return buffer.gather_all().numpy().tolist(), sorted(counts, key=repr), stats.episodes, len(buffer), passes
