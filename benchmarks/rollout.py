"""Rollouts: advantages, minibatches and adds against what people write by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf
from measure import FULL, Bar, Contender, Scale, interleave, row

from replayfeed.buffers import RolloutBuffer

OURS, LOOP, NUMPY = "replayfeed", "NumPy loop over time", "NumPy"
SLICES = "tf.data: from_tensor_slices, shuffle, batch"

_GAMMA, _LAM = 0.99, 0.95
_EPISODE_STEPS = 200
_MINIBATCH = 256

_SPEC = {
    "observation": tf.TensorSpec([17], tf.float32),
    "action": tf.TensorSpec([6], tf.float32),
    "reward": tf.TensorSpec([], tf.float32),
    "terminal": tf.TensorSpec([], tf.bool),
}


def gae(scale: Scale) -> list[dict[str, Any]]:
    """From a filled buffer and values to advantages and returns in NumPy's hands."""
    num_streams, num_steps = _sizes(scale)
    buffer, items, values = _filled(num_streams, num_steps)
    bootstrap = values[:, 0].copy()
    tensors = tf.constant(values), tf.constant(bootstrap)
    in_function = tf.function(lambda: buffer.advantages(*tensors))
    # Time first, so that each step's row is one piece of memory: the loop's best case.
    by_time = [np.ascontiguousarray(leaf.T) for leaf in (items["reward"], items["terminal"], values)]

    def ours() -> None:
        result = buffer.advantages(values, bootstrap)
        result.advantages.numpy(), result.returns.numpy()

    def ours_in_function() -> None:
        result = in_function()
        result.advantages.numpy(), result.returns.numpy()

    np.testing.assert_allclose(in_function().advantages, _loop(*by_time, bootstrap)[0].T, rtol=1e-3, atol=1e-3)
    contenders = [
        Contender(OURS, ours),
        Contender(f"{OURS}, in a tf.function", ours_in_function),
        Contender(LOOP, lambda: _loop(*by_time, bootstrap)),
    ]
    samples = interleave(contenders, scale)
    return [row(f"GAE, {num_streams} x {num_steps}", "rollouts/s", OURS, samples, [Bar(LOOP, 0.5)])]


def rollout_minibatches(scale: Scale) -> list[dict[str, Any]]:
    """One epoch after the other in minibatches of 256 transitions, items and advantages."""
    num_streams, num_steps = _sizes(scale)
    buffer, items, values = _filled(num_streams, num_steps)
    result = buffer.advantages(values, values[:, 0])
    flat = {name: leaf.reshape(-1, *leaf.shape[2:]) for name, leaf in items.items()}
    estimates = tuple(np.asarray(leaf).reshape(-1) for leaf in result)
    slices = tf.data.Dataset.from_tensor_slices((flat, estimates)).shuffle(num_streams * num_steps)
    contenders = [
        Contender(OURS, iter(buffer.minibatches(_MINIBATCH, epochs=1_000_000)).__next__),
        Contender(SLICES, iter(slices.repeat().batch(_MINIBATCH)).__next__),
    ]
    samples = interleave(contenders, scale)
    return [row("minibatches of 256 of a rollout", "batches/s", OURS, samples, [Bar(SLICES, 2, aim=True)])]


def rollout_add_batch(scale: Scale) -> list[dict[str, Any]]:
    """A rollout collected step by step, cleared when it is full."""
    num_streams, num_steps = _sizes(scale)
    buffer, items, _ = _filled(num_streams, num_steps)
    arrays = {name: np.empty((num_steps, *leaf[:, 0].shape), leaf.dtype) for name, leaf in items.items()}
    steps = [{name: leaf[:, t].copy() for name, leaf in items.items()} for t in range(num_steps)]
    next_step = itertools.cycle(steps).__next__
    position = itertools.cycle(range(num_steps)).__next__

    def ours() -> None:
        if len(buffer) == buffer.capacity:
            buffer.clear()
        buffer.add_batch(next_step())

    def theirs() -> None:
        t, step = position(), next_step()
        for name, array in arrays.items():
            array[t] = step[name]

    contenders = [Contender(OURS, ours, num_streams), Contender(NUMPY, theirs, num_streams)]
    samples = interleave(contenders, scale)
    return [row("rollout, add_batch of 64 streams", "frames/s", OURS, samples, [Bar(NUMPY, 0.1, aim=True)])]


def _sizes(scale: Scale) -> tuple[int, int]:
    return (64, 2048) if scale.repeats == FULL.repeats else (8, 64)


def _filled(num_streams: int, num_steps: int) -> tuple[RolloutBuffer, dict[str, np.ndarray], np.ndarray]:
    """A buffer with episodes of 200 steps that end at other times in each stream, its items, and values `[B, T]`."""
    rng = np.random.default_rng(0)
    outer = (num_streams, num_steps)
    items: dict[str, np.ndarray] = {
        name: rng.normal(size=(*outer, *spec.shape)).astype(np.float32)
        for name, spec in _SPEC.items()
        if spec.dtype == tf.float32
    }
    shift = rng.integers(0, _EPISODE_STEPS, num_streams)[:, None]
    items["terminal"] = (np.arange(num_steps) + shift) % _EPISODE_STEPS == _EPISODE_STEPS - 1
    buffer = RolloutBuffer(_SPEC, num_streams, num_steps, gamma=_GAMMA, lam=_LAM, seed=0)
    buffer.add_sequence(items)
    return buffer, items, rng.normal(size=outer).astype(np.float32)


def _loop(
    rewards: np.ndarray, terminal: np.ndarray, values: np.ndarray, bootstrap: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What people write: backwards over time, on rows `[B]` of arrays `[T, B]`; real ends only."""
    advantages = np.empty_like(rewards)
    last, after = np.zeros_like(bootstrap), bootstrap
    for t in reversed(range(len(rewards))):
        keep = np.float32(_GAMMA) * ~terminal[t]
        last = rewards[t] + keep * after - values[t] + keep * np.float32(_LAM) * last
        advantages[t] = last
        after = values[t]
    return advantages, advantages + values
