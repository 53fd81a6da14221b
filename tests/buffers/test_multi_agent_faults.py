"""Buffers of many agents: what is refused changes nothing, and threads do not disturb each other."""

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    EmptyBufferError,
    MultiAgentReplayBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
)

POISON = -999
FIELDS = {
    "value": tf.TensorSpec([], tf.int64),
    "noise": tf.TensorSpec([2], tf.float32),
    "reward": tf.TensorSpec([], tf.float32),
}

TWO = {"wolf": FIELDS, "sheep": FIELDS}


def frames_of(*values: int) -> dict[str, np.ndarray]:
    value = np.array(values)
    return {
        "value": value,
        "noise": np.stack([value + 0.5, -value - 0.5], -1).astype(np.float32),
        "reward": (value / 4).astype(np.float32),
    }


def both(first: int) -> dict[str, Any]:
    return {"wolf": frames_of(first, first + 1), "sheep": frames_of(first + 2, first + 3)}


def sequences(num_steps: int) -> dict[str, np.ndarray]:
    return {name: np.stack([leaf] * num_steps, 1) for name, leaf in frames_of(1, 2).items()}


YES = np.array([True, True])
REFUSED: dict[str, Callable[[MultiAgentReplayBuffer], Any]] = {
    "no dict": lambda b: b.add_batch(frames_of(1, 2)),
    "an agent that there is not": lambda b: b.add_batch({**both(1), "cow": frames_of(1, 2)}),
    "a field is missing": lambda b: b.add_batch({**both(1), "sheep": {"value": np.array([1, 2])}}),
    "another dtype, of the second agent": lambda b: b.add_batch(
        {**both(1), "sheep": {**frames_of(3, 4), "value": np.array([1.0, 2.0])}}
    ),
    "one environment too few": lambda b: b.add_batch({**both(1), "sheep": frames_of(3)}),
    "one environment too many": lambda b: b.add_batch({"sheep": frames_of(3, 4, 5)}),
    "ends of another shape": lambda b: b.add_batch(both(1), end_of_episode=np.array([True])),
    "ends that are no bool": lambda b: b.add_batch(both(1), end_of_episode={"sheep": np.array([1, 0])}),
    "the end of an agent that there is not": lambda b: b.add_batch(both(1), end_of_episode={"cow": YES}),
    "presence that is no bool": lambda b: b.add_batch(both(1), present={"wolf": np.array([1, 0])}),
    "presence of another shape": lambda b: b.add_batch(both(1), present={"wolf": np.array(True)}),
    "presence without a frame": lambda b: b.add_batch({"wolf": frames_of(1, 2)}, present={"sheep": YES}),
    "wrong rows where all are present": lambda b: b.add_batch(
        {"wolf": {**frames_of(1, 2), "value": np.array([1, 2], np.float32)}}, present={"wolf": YES}
    ),
    "negative priorities": lambda b: b.add_batch(
        both(1),
        priorities=np.array([1.0, -1.0])
        if b.mode == "lockstep"
        else {"wolf": np.ones(2), "sheep": np.array([1.0, -1.0])},
    ),
    "priorities of another kind": lambda b: b.add_batch(
        both(1), priorities={"wolf": np.ones(2), "sheep": np.ones(2)} if b.mode == "lockstep" else np.ones(2)
    ),
    "priorities of one of two": lambda b: b.add_batch(both(1), priorities={"wolf": np.ones(2)}),
    "streams": lambda b: b.add_batch(both(1), streams=[0]),
    "sequences that differ in length": lambda b: b.add_sequence({"wolf": sequences(2), "sheep": sequences(3)}),
    "a sequence's ends of another shape": lambda b: b.add_sequence({"wolf": sequences(2)}, end_of_episode=YES),
    "a sequence's priorities of another shape": lambda b: b.add_sequence(
        {"wolf": sequences(2), "sheep": sequences(2)},
        priorities=np.ones(2) if b.mode == "lockstep" else {"wolf": np.ones([2, 2]), "sheep": np.ones(2)},
    ),
    "an environment that there is not": lambda b: b.end_stream(2),
    "the life of an agent that there is not": lambda b: b.end_stream(0, agent="cow"),
    "priorities of a policy that there is not": lambda b: b.update_priorities([0], [1.0], policy="cow"),
    "keys and errors that do not fit": lambda b: b.update_priorities(
        *(([0, 1], [9.0]) if b.mode == "lockstep" else ({"pack": ([0, 1], [9.0])},))
    ),
}


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_what_is_refused_leaves_everything_as_it_was(mode):
    def build() -> MultiAgentReplayBuffer:
        make = functools.partial(TFPrioritizedReplayBuffer, max_length=20, seed=3)
        buffer = MultiAgentReplayBuffer(TWO, lambda agent: "pack", make, mode=mode, batch_size=2)
        buffer.add_batch(both(1))
        buffer.add_batch(both(5), end_of_episode={"wolf": np.array([True, False])})
        buffer.add_batch({"sheep": frames_of(9, 10)})
        return buffer

    def told(buffer: MultiAgentReplayBuffer) -> list[Any]:
        gathered = buffer.gather_all()
        return [
            dataclasses.replace(buffer.stats(), windows=()),
            {agent: {name: leaf.to_list() for name, leaf in gathered[agent].items()} for agent in gathered},
        ]

    plain, tried = build(), build()
    for case, call in REFUSED.items():
        with pytest.raises(ValueError):
            call(tried)
            pytest.fail(case)
        assert told(tried) == told(plain), case
    for buffer in (plain, tried):
        buffer.add_batch(both(11))
    following = [
        tf.nest.map_structure(np.asarray, (buffer.add_batch(both(15)), buffer.sample(20, 2)))
        for buffer in (plain, tried)
    ]
    # Ids, times, draws and masks go on as if nothing had been.
    tf.nest.map_structure(np.testing.assert_array_equal, *following)
    assert told(tried) == told(plain)


# Threads


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_writers_of_two_environments_and_a_reader_do_not_disturb_each_other(mode):
    """Value and time of a frame are equal; the sheep comes every third moment, and dies every sixth."""
    make = functools.partial(TFUniformReplayBuffer, max_length=40, seed=3)
    buffer = MultiAgentReplayBuffer(TWO, lambda agent: agent, make, mode=mode, batch_size=2)
    num_moments, errors = 300, []

    def write(b: int) -> None:
        there = np.arange(2) == b
        for time in range(num_moments):
            frames = frames_of(*np.where(there, time + 1, POISON))
            items = {"wolf": frames, "sheep": frames} if time % 3 == 0 else {"wolf": frames}
            ends = {"sheep": there & (time % 6 == 0)} if time % 3 == 0 else None
            buffer.add_batch(items, present=dict.fromkeys(items, there), end_of_episode=ends)

    def check_wolf(items: Any, info: Any, mask: Any) -> None:
        assert np.asarray(mask).all()
        np.testing.assert_array_equal(items["value"], info.times.numpy() + 1)
        np.testing.assert_array_equal(np.diff(info.times), 1)

    def read() -> None:
        if mode == "independent":
            items, info = buffer.sample(8, {"wolf": 4, "sheep": 2})
            check_wolf(items["wolf"], info["wolf"], info["wolf"].mask)
            times = info["sheep"].times.numpy()
            np.testing.assert_array_equal(items["sheep"]["value"], times + 1)
            np.testing.assert_array_equal(np.stack([times[:, 0] % 6, np.diff(times)[:, 0]]), [[3] * 8, [3] * 8])
            return
        items, info = buffer.sample(8, 4)
        check_wolf(items["wolf"], info, info.mask["wolf"])
        times, values = info.times.numpy(), items["sheep"]["value"].numpy()
        # Its lives are of frames 0, then 3 and 6, then 9 and 12; a window of four moments has one or two of its frames.
        second = (times % 3 == 0) & (np.cumsum(times % 3 == 0, axis=1) == 2)
        expected = (times % 3 == 0) & ~(second & (times % 6 == 3))
        np.testing.assert_array_equal(info.mask["sheep"], expected)
        np.testing.assert_array_equal(values[expected], times[expected] + 1)

    def guarded(function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            errors.append(error)

    num_read = 0
    writers = [threading.Thread(target=guarded, args=(write, b)) for b in range(2)]
    for thread in writers:
        thread.start()
    while not errors and (num_read < 20 or any(thread.is_alive() for thread in writers)):
        try:
            read()
        except EmptyBufferError:
            continue
        num_read += 1
    for thread in writers:
        thread.join(60)
    assert not errors
    assert buffer.stats().added == (2 * (num_moments + 100) if mode == "independent" else 2 * num_moments)
