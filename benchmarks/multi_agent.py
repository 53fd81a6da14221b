"""Many agents: four of them, W1, against single buffers that hold the same frames, and against RLlib's buffers.

All hold as many frames in total as one buffer of W1. In independent mode each agent has a policy of its own unless the
measure says that they share one; a sample is of all policies. In lockstep the single buffer's frame is the joint one,
`{agent: W1}`. A `moment` is one `add_batch` of an environment: a frame of each agent. RLlib runs in a process and an
environment of its own (`peers/`), and ours against it in one too.
"""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from datasets import eagerly
from in_process import cycle, full_buffer
from measure import Bar, Contender, Scale, interleave, row
from peers.environments import OURS_AGENTS, RLLIB_AGENTS, python_of
from peers.processes import PeerError, PeerProcess, Peers
from peers.worker import AGENTS, Experience
from workloads import W1, Block, blocks

from replayfeed.buffers import MultiAgentReplayBuffer, TFUniformReplayBuffer

OURS, SINGLES, JOINT = "replayfeed", "four single buffers", "one buffer of the joint spec"
APART, TOGETHER = "streams apart", "streams together"
_BATCH, _ENVIRONMENTS, _STREAMS = 256, 16, 64
# At most 1.3 x the time of single buffers, 1.5 x that of a joint one; as many times the rate of RLlib.
_INDEPENDENT, _LOCKSTEP, _RLLIB = 1 / 1.3, 1 / 1.5, 5
_JOINT_SPEC = dict.fromkeys(AGENTS, W1.data_spec)


def multi_agent_add(scale: Scale) -> list[dict[str, Any]]:
    rows = []
    for environments in (1, _ENVIRONMENTS):
        ours = _full_agents(scale, lambda agent: agent, environments=environments)
        singles = [_single(scale, environments) for _ in AGENTS]
        moments = _moments(environments)
        contenders = [
            cycle(OURS, ours.add_batch, moments, environments),
            cycle(SINGLES, functools.partial(_add_to_each, singles), moments, environments),
        ]
        measure = f"add_batch, 4 agents of 4 policies, {_counted(environments)}, W1"
        rows.append(row(measure, "moments/s", OURS, interleave(contenders, scale), [Bar(SINGLES, _INDEPENDENT)]))
    return rows


def multi_agent_sample(scale: Scale) -> list[dict[str, Any]]:
    ours, singles = _full_agents(scale, lambda agent: agent), [_single(scale) for _ in AGENTS]
    rows = []
    for steps, name in ((None, "single frames"), (2, "windows of 2")):
        contenders = [
            Contender(OURS, functools.partial(ours.sample, _BATCH, steps)),
            Contender(SINGLES, functools.partial(_sample_each, singles, steps)),
        ]
        measure = f"sample of 4 policies, W1, 4 x {_BATCH} {name}"
        rows.append(row(measure, "samples/s", OURS, interleave(contenders, scale), [Bar(SINGLES, _INDEPENDENT)]))
    return rows


def multi_agent_as_dataset(scale: Scale) -> list[dict[str, Any]]:
    """One dataset of dicts by policy against four datasets."""
    ours, singles = _full_agents(scale, lambda agent: agent), [_single(scale) for _ in AGENTS]
    following = [eagerly(single.as_dataset(_BATCH)) for single in singles]
    contenders = [
        Contender(OURS, eagerly(ours.as_dataset(_BATCH))),
        Contender(SINGLES, lambda: [each() for each in following]),
    ]
    measure = f"as_dataset of 4 policies, W1, 4 x {_BATCH} frames, eager loop"
    return [row(measure, "samples/s", OURS, interleave(contenders, scale), [Bar(SINGLES, _INDEPENDENT)])]


def multi_agent_shared(scale: Scale) -> list[dict[str, Any]]:
    """Four agents of one policy, each in each environment a stream of its buffer."""
    rows = []
    for environments in (1, _ENVIRONMENTS):
        streams = environments * len(AGENTS)
        ours = _full_agents(scale, lambda agent: "shared", environments=environments)
        single = full_buffer(W1, scale.w1_capacity, streams=streams)
        against = f"one buffer of {streams} streams"
        bars = [Bar(against, _INDEPENDENT, aim=True)]
        contenders = [
            cycle(OURS, ours.add_batch, _moments(environments), environments),
            cycle(against, single.add_batch, [W1.frames(streams, seed=seed) for seed in range(4)], environments),
        ]
        measure = f"add_batch, 4 agents of one policy, {_counted(environments)}, W1"
        rows.append(row(measure, "moments/s", OURS, interleave(contenders, scale), bars))
        contenders = [
            Contender(OURS, functools.partial(ours.sample, _BATCH)),
            Contender(against, functools.partial(single.sample, _BATCH)),
        ]
        measure = f"sample, 4 agents of one policy, {_counted(environments)}, W1, batch {_BATCH}"
        rows.append(row(measure, "samples/s", OURS, interleave(contenders, scale), bars))
    return rows


def multi_agent_lockstep_add(scale: Scale) -> list[dict[str, Any]]:
    rows = []
    for environments in (1, _ENVIRONMENTS):
        ours = _full_agents(scale, lambda agent: agent, mode="lockstep", environments=environments)
        joint, moments = _full_joint(scale, environments), _moments(environments)
        contenders = [
            cycle(OURS, ours.add_batch, moments, environments),
            cycle(JOINT, joint.add_batch, moments, environments),
        ]
        measure = f"add_batch, 4 agents in lockstep, {_counted(environments)}, W1"
        rows.append(row(measure, "moments/s", OURS, interleave(contenders, scale), [Bar(JOINT, _LOCKSTEP)]))
    return rows


def multi_agent_lockstep_sample(scale: Scale) -> list[dict[str, Any]]:
    ours, joint = _full_agents(scale, lambda agent: agent, mode="lockstep"), _full_joint(scale)
    rows = []
    for steps, name in ((None, "moments"), (2, "windows of 2 moments")):
        contenders = [
            Contender(OURS, functools.partial(ours.sample, _BATCH, steps)),
            Contender(JOINT, functools.partial(joint.sample, _BATCH, steps)),
        ]
        measure = f"sample in lockstep, 4 agents, W1, {_BATCH} {name}"
        rows.append(row(measure, "samples/s", OURS, interleave(contenders, scale), [Bar(JOINT, _LOCKSTEP)]))
    return rows


def multi_agent_lockstep_as_dataset(scale: Scale) -> list[dict[str, Any]]:
    ours, joint = _full_agents(scale, lambda agent: agent, mode="lockstep"), _full_joint(scale)
    contenders = [
        Contender(OURS, eagerly(ours.as_dataset(_BATCH))),
        Contender(JOINT, eagerly(joint.as_dataset(_BATCH))),
    ]
    measure = f"as_dataset in lockstep, 4 agents, W1, {_BATCH} moments, eager loop"
    return [row(measure, "samples/s", OURS, interleave(contenders, scale), [Bar(JOINT, _LOCKSTEP)])]


def multi_agent_rllib(scale: Scale) -> list[dict[str, Any]]:
    """Adds of one moment, and samples of all policies."""
    contests = {
        "add": ("add, 4 agents of 4 policies, W1", "moments/s"),
        "sample": (f"sample of 4 policies, W1, 4 x {_BATCH} frames", "samples/s"),
    }
    return _against_rllib(scale, contests)


def multi_agent_lockstep_rllib(scale: Scale) -> list[dict[str, Any]]:
    contests = {
        "lockstep_add": ("add, 4 agents in lockstep, W1", "moments/s"),
        "lockstep_sample": (f"sample in lockstep, 4 agents, W1, {_BATCH} moments", "samples/s"),
    }
    return _against_rllib(scale, contests)


def multi_agent_prioritized_rllib(scale: Scale) -> list[dict[str, Any]]:
    """Samples of all policies, and priorities written back for all."""
    measure = f"prioritized sample + update of 4 policies, W4, 4 x {_BATCH}"
    return _against_rllib(scale, {"sample_update": (measure, "samples/s")}, has_fragments=False)


def streams_apart(scale: Scale) -> list[dict[str, Any]]:
    """A ring whose streams were let go apart, and went, against one whose streams go together."""
    apart, together = _full_apart(scale), full_buffer(W1, scale.w1_capacity, streams=_STREAMS)
    everyone = [W1.frames(_STREAMS, seed=seed) for seed in range(4)]
    ones, one_stream = [W1.frames(1, seed=seed) for seed in range(4)], full_buffer(W1, scale.w1_capacity)
    of_one, alone = "one of 64 streams", "a buffer of one stream"
    streams = [np.array([stream]) for stream in range(_STREAMS)]
    rows = []
    contenders = [
        cycle(APART, apart.add_batch, everyone, _STREAMS),
        cycle(TOGETHER, together.add_batch, everyone, _STREAMS),
    ]
    measure = "add_batch of 64 streams that may part, W1"
    samples = interleave(contenders, scale)
    rows.append(row(measure, "frames/s", APART, samples, [Bar(TOGETHER, _INDEPENDENT, aim=True)]))
    given = [(ones[stream % len(ones)], streams[stream]) for stream in range(_STREAMS)]
    contenders = [
        cycle(of_one, lambda pair: apart.add_batch(pair[0], streams=pair[1]), given, 1),
        cycle(alone, one_stream.add_batch, ones, 1),
    ]
    measure = "add_batch of one of 64 streams, W1"
    rows.append(row(measure, "frames/s", of_one, interleave(contenders, scale), [Bar(alone, 0.5, aim=True)]))
    for steps, name in ((None, "single frames"), (2, "windows of 2")):
        contenders = [
            Contender(APART, functools.partial(apart.sample, _BATCH, steps)),
            Contender(TOGETHER, functools.partial(together.sample, _BATCH, steps)),
        ]
        measure = f"sample, 64 streams that went apart, W1, {_BATCH} {name}"
        samples = interleave(contenders, scale)
        rows.append(row(measure, "samples/s", APART, samples, [Bar(TOGETHER, _INDEPENDENT, aim=True)]))
    return rows


def _full_agents(
    scale: Scale,
    policy_of: Callable[[str], str],
    *,
    mode: Literal["independent", "lockstep"] = "independent",
    environments: int = 1,
) -> MultiAgentReplayBuffer:
    """Ours, full."""
    steps = _steps(scale, environments)
    make_buffer = functools.partial(TFUniformReplayBuffer, max_length=steps)
    buffer = MultiAgentReplayBuffer(_JOINT_SPEC, policy_of, make_buffer, mode=mode, batch_size=environments)
    for block in _blocks(steps, environments):
        buffer.add_sequence(dict.fromkeys(AGENTS, block))
    return buffer


def _single(scale: Scale, environments: int = 1) -> TFUniformReplayBuffer:
    """One of four that hold what ours holds."""
    return full_buffer(W1, scale.w1_capacity // len(AGENTS), streams=environments)


def _full_joint(scale: Scale, environments: int = 1) -> TFUniformReplayBuffer:
    """A buffer of all agents' frames side by side, without what tells who is there."""
    steps = _steps(scale, environments)
    buffer = TFUniformReplayBuffer(_JOINT_SPEC, environments, steps)
    for block in _blocks(steps, environments):
        buffer.add_sequence(dict.fromkeys(AGENTS, block))
    return buffer


def _full_apart(scale: Scale) -> TFUniformReplayBuffer:
    """A ring of 64 streams, full, and written at different places."""
    steps = scale.w1_capacity // _STREAMS
    buffer = TFUniformReplayBuffer(W1.data_spec, _STREAMS, steps)
    buffer.let_streams_part()
    for block in _blocks(steps, _STREAMS):
        buffer.add_sequence(block)
    for first in range(1, _STREAMS):
        streams = np.arange(first, _STREAMS)
        buffer.add_batch(W1.frames(len(streams)), streams=streams)
    return buffer


def _steps(scale: Scale, environments: int) -> int:
    """Moments that each environment holds: all its agents' frames are as many as one buffer of W1 holds."""
    return scale.w1_capacity // len(AGENTS) // environments


def _blocks(steps: int, streams: int) -> Sequence[Block]:
    """So many frames of each stream, leaves `[streams, T, ...]`."""
    return [
        {name: np.broadcast_to(leaf, (streams, *leaf.shape)) for name, leaf in block.items()}
        for _, block in blocks(W1, steps, max(1, 10_000 // streams))
    ]


def _moments(environments: int) -> list[dict[str, Block]]:
    """What is added: by agent a frame of each environment."""
    seeds = iter(range(4 * len(AGENTS)))
    return [{agent: W1.frames(environments, seed=next(seeds)) for agent in AGENTS} for _ in range(4)]


def _add_to_each(singles: Sequence[TFUniformReplayBuffer], moment: Mapping[str, Block]) -> list[Any]:
    return [single.add_batch(frames) for single, frames in zip(singles, moment.values(), strict=True)]


def _sample_each(singles: Sequence[TFUniformReplayBuffer], steps: int | None) -> list[Any]:
    return [single.sample(_BATCH, steps) for single in singles]


def _counted(environments: int) -> str:
    return "one environment" if environments == 1 else f"{environments} environments"


def _against_rllib(
    scale: Scale, contests: Mapping[str, tuple[str, str]], *, has_fragments: bool = True
) -> list[dict[str, Any]]:
    """Ours against RLlib's with its default storage unit, and with the one that keeps what is added as it comes.

    Args:
      scale: how much.
      contests: by the name of the peers' contest what is measured, and its unit.
      has_fragments: whether there is a contest with fragments too.
    """
    rows = []
    with Peers(_experience(), scale.w1_capacity) as peers:
        _, ours = peers.full(OURS_AGENTS, pathlib.Path(sys.executable))
        not_measured = {}
        try:
            title, theirs = _full_rllib(peers)
        except PeerError as error:
            title, theirs, not_measured = RLLIB_AGENTS.title, None, {RLLIB_AGENTS.title: str(error)}
        for contest, (measure, unit) in contests.items():
            contenders, bars = [ours.contender(OURS, contest)], []
            if theirs is not None:
                contenders.append(theirs.contender(title, contest))
                bars.append(Bar(title, _RLLIB))
                if has_fragments:
                    kept = f"{title}, fragments"
                    contenders.append(theirs.contender(kept, f"{contest}_fragments"))
                    bars.append(Bar(kept, _RLLIB, aim=True))
            samples = interleave(contenders, scale)
            rows.append(row(f"{measure}, against RLlib", unit, OURS, samples, bars, not_measured=not_measured))
    return rows


def _full_rllib(peers: Peers) -> tuple[str, PeerProcess]:
    """RLlib's name in the table, and its process.

    Raises:
      PeerError: there is no environment for it, or it could not.
    """
    python = python_of("rllib")
    if isinstance(python, str):
        raise PeerError(python)
    return peers.full(RLLIB_AGENTS, python)


def _experience() -> Experience:
    """What all contenders store and write back: as W4's, but that a fill gives no priorities."""
    rng = np.random.default_rng(0)
    written = rng.lognormal(sigma=1.5, size=(64, _BATCH)).astype(np.float32)
    return Experience(W1.frames(10_000), _BATCH, np.ones(10_000, np.float32), written, alpha=0.6, beta=0.4, eps=1e-6)
