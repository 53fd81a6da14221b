"""Prioritized replay, W4: W1 with a draw of 256, its weights, and 256 priorities written back.

Against other libraries, each in a process of its own (`peers/`), and against our own uniform buffer. A fill gives
every item a TD error of its own, log-normal with sigma 1.5, as heavy-tailed as TD errors are; what is written back is
drawn from the same, so that the buffer's distribution stays as it is. Libraries that want priorities are given
|TD error| + eps, made beforehand.
"""

from __future__ import annotations

import itertools
import pathlib
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from datasets import eagerly
from in_process import full_buffer
from measure import Bar, Contender, Scale, interleave, row
from peers.environments import OURS, PEERS
from peers.processes import PeerError, Peers
from peers.worker import Experience
from workloads import W1

from replayfeed.buffers import TFPrioritizedReplayBuffer

_ALPHA, _BETA, _EPS = 0.6, 0.4, 1e-6
_BATCH, _SIGMA = 256, 1.5
_UNIFORM = "replayfeed uniform"
# Those of which one is the fastest; without all of them a bar is not decided. The others were slower in every run.
_FASTEST_OF = ("cpprb", "torchrl", "flashbax")


def prioritized_sample(scale: Scale) -> list[dict[str, Any]]:
    samples, not_measured = _against_peers(scale, "sample_update", {OURS.title: "sample_update"})
    bars = _against_fastest(samples, not_measured, [2], aims=[3])
    measure = f"prioritized sample + update, W4, batch {_BATCH}, {scale.w1_capacity:,} items"
    note = _note(samples, not_measured)
    return [row(measure, "batches/s", OURS.title, samples, bars, note, not_measured)]


def prioritized_as_dataset(scale: Scale) -> list[dict[str, Any]]:
    ours = {OURS.title: "dataset_update", f"{OURS.title}, in a tf.function": "dataset_update_graph"}
    samples, not_measured = _against_peers(scale, "sample_update", ours)
    bars = _against_fastest(samples, not_measured, [1.2])
    measure = f"prioritized as_dataset + update, W4, batch {_BATCH}, {scale.w1_capacity:,} items, eager loop"
    note = _note(samples, not_measured)
    return [row(measure, "batches/s", OURS.title, samples, bars, note, not_measured)]


def prioritized_add(scale: Scale) -> list[dict[str, Any]]:
    samples, not_measured = _against_peers(scale, "add", {OURS.title: "add"})
    bars = _against_fastest(samples, not_measured, [1])
    measure = f"add_batch with a priority, one stream, W4, {scale.w1_capacity:,} items"
    note = f"{_note(samples, not_measured)} flashbax cannot be given the priority."
    return [row(measure, "frames/s", OURS.title, samples, bars, note, not_measured)]


def prioritized_draw(scale: Scale) -> list[dict[str, Any]]:
    """Drawing alone: what priorities cost where the learner writes none back."""
    prioritized, uniform = _full_prioritized(scale.w1_capacity), full_buffer(W1, scale.w1_capacity)
    contenders = [
        Contender(OURS.title, eagerly(prioritized.as_dataset(_BATCH))),
        Contender(_UNIFORM, eagerly(uniform.as_dataset(_BATCH))),
    ]
    measure = f"prioritized as_dataset, drawing alone, W4, batch {_BATCH}, eager loop"
    return [row(measure, "batches/s", OURS.title, interleave(contenders, scale), [Bar(_UNIFORM, 0.75)])]


def prioritized_update(scale: Scale) -> list[dict[str, Any]]:
    """Keys as `sample` gave them, TD errors as tensors."""
    buffer = _full_prioritized(scale.w1_capacity)
    draw, update = "replayfeed, sample", "replayfeed, update_priorities"
    given = [(buffer.sample(_BATCH)[1].keys, tf.constant(row)) for row in _experience().written]
    contenders = [
        Contender(draw, lambda: buffer.sample(_BATCH)),
        _cycled(update, given, lambda keys, td_errors: buffer.update_priorities(keys, td_errors=td_errors)),
    ]
    samples = _in_us(interleave(contenders, scale))
    measure = f"update_priorities of {_BATCH}, W4"
    return [row(measure, "us", update, samples, [Bar(draw, 0.5, at_most=True)])]


def prioritized_growth(scale: Scale) -> list[dict[str, Any]]:
    """Time of one `sample` with its update at growing capacities."""
    contenders = []
    for capacity in scale.growth_capacities:
        buffer = _full_prioritized(capacity)
        given = [(tf.constant(row),) for row in _experience().written]
        contenders.append(
            _cycled(
                _at(capacity),
                given,
                lambda td_errors, buffer=buffer: buffer.update_priorities(
                    buffer.sample(_BATCH)[1].keys, td_errors=td_errors
                ),
            )
        )
    samples = _in_us(interleave(contenders, scale))
    small, large = scale.growth_capacities[0], scale.growth_capacities[-1]
    measure = f"prioritized sample + update, W4, cost at {large:,} over {small:,} items"
    return [row(measure, "us", _at(large), samples, [Bar(_at(small), 3, at_most=True)])]


def _against_peers(
    scale: Scale, contest: str, ours: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Samples of our contests, by our names, and of one contest of every peer; peers that are missing, and why."""
    contenders, not_measured = [], {}
    with Peers(_experience(), scale.w1_capacity) as peers:
        for name, our_contest in ours.items():
            # A process for each: iterators of a dataset go on filling their prefetch.
            _, process = peers.full(OURS, pathlib.Path(sys.executable))
            contenders.append(process.contender(name, our_contest))
        for name, peer in PEERS.items():
            try:
                contenders.append(peers.contender(name, contest))
            except PeerError as error:
                not_measured[peer.title] = str(error)
        return interleave(contenders, scale), not_measured


def _fastest(samples: Mapping[str, dict[str, Any]]) -> str:
    """The peer with the largest median."""
    medians = {
        name: statistics.median(one["values"]) for name, one in samples.items() if not name.startswith(OURS.title)
    }
    return max(medians, key=medians.__getitem__)


def _against_fastest(
    samples: Mapping[str, dict[str, Any]],
    not_measured: Mapping[str, str],
    bounds: Sequence[float],
    aims: Sequence[float] = (),
) -> list[Bar]:
    """Bars against the fastest peer; only aims where one that could be the fastest is missing."""
    undecided = any(PEERS[name].title in not_measured for name in _FASTEST_OF)
    against = _fastest(samples)
    return [
        *(Bar(against, bound, aim=undecided) for bound in bounds),
        *(Bar(against, bound, aim=True) for bound in aims),
    ]


def _note(samples: Mapping[str, dict[str, Any]], not_measured: Mapping[str, str]) -> str:
    missing = "".join(f" {title} not measured: {reason}." for title, reason in not_measured.items())
    return f"The fastest of the peers measured is {_fastest(samples)}.{missing}"


def _experience() -> Experience:
    """What all contenders store and write back."""
    rng = np.random.default_rng(0)
    return Experience(
        W1.frames(10_000),
        _BATCH,
        rng.lognormal(sigma=_SIGMA, size=1_000_000).astype(np.float32),
        rng.lognormal(sigma=_SIGMA, size=(64, _BATCH)).astype(np.float32),
        alpha=_ALPHA,
        beta=_BETA,
        eps=_EPS,
    )


def _full_prioritized(capacity: int) -> TFPrioritizedReplayBuffer:
    """Our prioritized buffer of one stream, full."""
    buffer = TFPrioritizedReplayBuffer(W1.data_spec, 1, capacity, alpha=_ALPHA, beta=_BETA, eps=_EPS, seed=0)
    experience = _experience()
    for frames, td_errors in experience.blocks(capacity):
        items = {name: leaf[None] for name, leaf in frames.items()}
        buffer.add_sequence(items, priorities=experience.priorities(td_errors)[None])
    return buffer


def _cycled(name: str, given: Sequence[tuple[Any, ...]], call: Callable[..., Any]) -> Contender:
    """A contender that calls with each of the given arguments in turn."""
    following = itertools.cycle(given).__next__
    return Contender(name, lambda: call(*following()))


def _in_us(samples: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Microseconds a unit instead of units a second."""
    return {name: {**one, "values": [1e6 / rate for rate in one["values"]]} for name, one in samples.items()}


def _at(capacity: int) -> str:
    return f"{OURS.title}, {capacity:,} items"
