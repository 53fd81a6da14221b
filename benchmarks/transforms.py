"""What transforms add to a dataset of windows, and stacks of single frames against who stacks at sampling too."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from datasets import BATCHES_PER_GRAPH_CALL, eagerly, in_function
from measure import Bar, Contender, Scale, Timed, interleave, row
from peers.environments import FRAME_PEERS
from peers.processes import PeerError, Peers
from peers.worker import Experience
from workloads import W1

from replayfeed.buffers import TFUniformReplayBuffer, Window
from replayfeed.pipelines import n_step, replay_transitions

OURS = "replayfeed"
_BATCH, _N, _GAMMA, _STACK, _EPISODE_STEPS = 256, 5, 0.99, 4, 200
# At most 60 % more time for a batch.
_N_STEP_BAR = 1 / 1.6


def n_step_eager(scale: Scale) -> list[dict[str, Any]]:
    return _n_step(scale, eagerly, 1, "eager loop")


def n_step_graph(scale: Scale) -> list[dict[str, Any]]:
    return _n_step(scale, in_function, BATCHES_PER_GRAPH_CALL, "in a tf.function")


def stacked_pixels_32(scale: Scale) -> list[dict[str, Any]]:
    return [_stacked_pixels(scale, 32)]


def stacked_pixels_256(scale: Scale) -> list[dict[str, Any]]:
    return [_stacked_pixels(scale, 256)]


def _n_step(scale: Scale, consume: Any, units: int, how: str) -> list[dict[str, Any]]:
    """Both kinds of frames: those whose next observation is the next frame's, and those that hold it."""
    buffer = _w1_in_episodes(scale.w1_capacity)
    rows = []
    for layout, num_steps, next_observation in (
        ("frame by frame", _N + 1, None),
        ("with next_obs in each frame", _N, "next_obs"),
    ):
        windows = buffer.as_dataset(_BATCH, window=Window(num_steps, short="pad"))
        transform = n_step(_N, _GAMMA, observation="obs", next_observation=next_observation)
        base = f"as_dataset, windows of {num_steps}"
        contenders = [
            Contender(OURS, consume(windows.map(transform)), units),
            Contender(f"{OURS}, then prefetch(4)", consume(windows.map(transform).prefetch(4)), units),
            Contender(base, consume(windows), units),
        ]
        name = f"n_step, n={_N}, W1, batch {_BATCH}, {layout}, {how}"
        rows.append(row(name, "batches/s", OURS, interleave(contenders, scale), [Bar(base, _N_STEP_BAR)]))
    return rows


def _stacked_pixels(scale: Scale, batch: int) -> dict[str, Any]:
    buffer, episode = _single_frames(scale.w2_capacity)
    frames = np.resize(episode, (scale.w2_capacity, 84, 84))
    dataset = replay_transitions(buffer, batch, n=1, gamma=_GAMMA, stack=_STACK)
    rng = np.random.default_rng(0)

    def numpy_stacks() -> tuple[np.ndarray, np.ndarray]:
        """The same bytes by hand: no episodes, no rewards."""
        newest = rng.integers(_STACK, len(frames) - 1, batch)
        steps = newest[:, None] + np.arange(1 - _STACK, 2)
        window = np.moveaxis(frames[steps], 1, -1)
        return window[..., :-1].copy(), window[..., 1:].copy()

    contenders: list[Timed] = [
        Contender(OURS, eagerly(dataset)),
        Contender(f"{OURS}, in a tf.function", in_function(dataset), BATCHES_PER_GRAPH_CALL),
        Contender("NumPy take and moveaxis", numpy_stacks),
    ]
    bars = [Bar("NumPy take and moveaxis", 1, aim=True)]
    not_measured = {}
    with Peers(Experience({"observation": episode}, batch), scale.w2_capacity) as peers:
        for name, peer in FRAME_PEERS.items():
            try:
                contenders.append(peers.contender(name, "sample"))
                bars.insert(0, Bar(peer.title, 3))
            except PeerError as error:
                not_measured[peer.title] = str(error)
        samples = interleave(contenders, scale)
    measure = f"replay_transitions, single 84x84 frames, stack {_STACK}, batch {batch}, eager loop"
    return row(measure, "batches/s", OURS, samples, bars, not_measured=not_measured)


def _w1_in_episodes(capacity: int) -> TFUniformReplayBuffer:
    """W1 in episodes of 200 steps, every other one of which ends terminally."""
    buffer = TFUniformReplayBuffer(W1.data_spec, 1, capacity)
    num = 2 * _EPISODE_STEPS
    block = W1.frames(1, num)
    block["discount"] = np.ones([1, num], np.float32)
    block["discount"][0, -1] = 0
    ends = np.arange(num)[None] % _EPISODE_STEPS == _EPISODE_STEPS - 1
    for _ in range(capacity // num):
        buffer.add_sequence(block, end_of_episode=ends)
    return buffer


def _single_frames(capacity: int) -> tuple[TFUniformReplayBuffer, np.ndarray]:
    """Frames of 84x84, each stored once, in the same episode of 200 steps again and again; and that episode's."""
    spec = {
        "observation": tf.TensorSpec([84, 84], tf.uint8),
        "action": tf.TensorSpec([], tf.int32),
        "reward": tf.TensorSpec([], tf.float32),
        "terminal": tf.TensorSpec([], tf.bool),
    }
    buffer = TFUniformReplayBuffer(spec, 1, capacity)
    rng = np.random.default_rng(0)
    ends = np.arange(_EPISODE_STEPS)[None] == _EPISODE_STEPS - 1
    block = {
        "observation": rng.integers(0, 256, (1, _EPISODE_STEPS, 84, 84), np.uint8),
        "action": rng.integers(0, 6, (1, _EPISODE_STEPS), np.int32),
        "reward": rng.standard_normal((1, _EPISODE_STEPS), np.float32),
        "terminal": ends,
    }
    for _ in range(capacity // _EPISODE_STEPS):
        buffer.add_sequence(block, end_of_episode=ends)
    return buffer, block["observation"][0]
