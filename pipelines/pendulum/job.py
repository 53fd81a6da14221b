"""Part (d): a recorded dataset of mixed quality, into both buffers, and agents that learn from nothing else."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from replayfeed.buffers import ReplayBuffer, ReverbReplayBuffer, TFUniformReplayBuffer
from replayfeed.pipelines.cartpole.monitor import BufferMonitor
from replayfeed.pipelines.cartpole.report import PartResult
from replayfeed.pipelines.episodes import Episodes
from replayfeed.pipelines.fill import fill
from replayfeed.pipelines.rlds_read import load_rlds

from .agents import CloningSettings, CqlSettings, cloning_agent, cql_agent
from .recording import Recording
from .training import train

CLONING_NAME = "Pendulum cloning, in process"
LOCAL_NAME, SERVED_NAME = "Pendulum CQL, in process", "Pendulum CQL, Reverb"


def run(
    recording: Recording, seed: int, *, cloning: CloningSettings | None = None, cql: CqlSettings | None = None
) -> list[PartResult]:
    """Loads the dataset into both buffers; clones all of it, and learns what was good in it from each buffer.

    Args:
      recording: the dataset.
      seed: of networks, draws and the environments of the evaluations.
      cloning: of the cloning agent; None: what was found to do well.
      cql: of the CQL agents; None: what was found to do well.
    """
    cloning, cql = cloning or CloningSettings(), cql or CqlSettings()
    episodes = load_rlds(recording.folder, layout="trajectory")
    spec = episodes.element_spec
    # Every frame has room: a frame more an episode than it has actions.
    capacity = len(episodes) * 201
    results = []
    with TFUniformReplayBuffer(spec, 1, capacity, seed=seed) as buffer:
        tf.random.set_seed(seed)
        agent = cloning_agent(cloning)
        # Frames of their own: to clone is to go from an observation to its action.
        results.append(_learn(CLONING_NAME, agent, buffer, episodes, cloning, None, seed))
    # From here on windows of two frames, a transition each.
    with TFUniformReplayBuffer(spec, 1, capacity, seed=seed) as buffer:
        tf.random.set_seed(seed)
        results.append(_learn(LOCAL_NAME, cql_agent(cql, seed), buffer, episodes, cql, 2, seed))
    with ReverbReplayBuffer.local(spec, max_size=capacity, sequence_length=2) as served:
        tf.random.set_seed(seed)
        results.append(_learn(SERVED_NAME, cql_agent(cql, seed), served, episodes, cql, 2, seed))
    return results


def _learn(
    name: str,
    agent: Any,
    buffer: ReplayBuffer,
    episodes: Episodes,
    settings: CloningSettings | CqlSettings,
    num_steps: int | None,
    seed: int,
) -> PartResult:
    monitor = BufferMonitor(buffer)
    loaded = fill(buffer, episodes)
    samples = buffer.as_dataset(settings.sample_batch_size, num_steps)
    schedule = settings.schedule
    curve, seconds = train(name, agent, samples, schedule, seed=seed + 1, after_round=monitor.look)
    monitor.look_now()
    return PartResult(
        name=name,
        steps=loaded.frames,
        updates=curve[-1].position,
        mean_return=curve[-1].mean_return,
        bar=schedule.bar,
        samples_per_insert=monitor.points[-1].samples_per_insert,
        adds_per_second=loaded.frames / loaded.seconds,
        batches_per_second=curve[-1].position / seconds,
        seconds=monitor.seconds,
        curve=curve,
        buffer_points=monitor.points,
    )
