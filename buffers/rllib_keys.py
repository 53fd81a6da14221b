"""What RLlib's replay buffers are called, which settings each of them reads, and why others cannot stay. Pure.

Told of Ray 2.60 as it runs, and of the names that older versions had. RLlib's classes take any keyword and drop those
that they do not know: a misspelled `prioritised_replay_alpha` changes nothing there. Here each such key is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .plain_settings import nearest

_DRAWS = "how many are drawn is said when they are: as_dataset(sample_batch_size)"
_FIELDS = "a frame has the fields of data_spec: put there what is to be kept of each step"
_LOOP = "it is the training loop's, and not the buffer's; leave it out"
_POLICIES = "they follow from the agents: MultiAgentConfig.build(data_specs, policy_of)"
_RETURNS = "returns are made of windows when they are drawn: replayfeed.pipelines.n_step(n, gamma)"
_STARTS = (
    "it counts steps that were collected, and a buffer the frames it holds: let the training loop wait, or give "
    "min_size_to_sample, frames of each policy, in a config of our own"
)
_TO_TRAIN = "a buffer keeps the frames of all policies; draw from those to train: sample(policy=...)"
_WHICH = "a draw takes one policy or all: sample(policy=...)"

# Settings of algorithms, environments and agents, which people look for beside the buffer's.
NOT_THE_BUFFERS = {
    "batch_mode": "episodes are told by end_of_episode or by the frames, whole or in parts; leave it out",
    "count_steps_by": "it is of a draw: sample_at_least(min_steps, count='env' or 'agent')",
    "gamma": _RETURNS,
    "is_policy_to_train": _TO_TRAIN,
    "n_step": _RETURNS,
    "observation_fn": "a buffer keeps what it is given: apply it before add_batch",
    "policies": _POLICIES,
    "policies_to_train": _TO_TRAIN,
    "policy_map_capacity": _LOOP,
    "policy_mapping_fn": _POLICIES,
    "rollout_fragment_length": _LOOP,
    "store_buffer_in_checkpoints": "buffers are saved by save(path); leave it out",
    "target_network_update_freq": _LOOP,
    "train_batch_size": _DRAWS,
    "training_intensity": _LOOP,
}

# Keys of RLlib's buffers, of calls of them, and of older versions.
_REFUSED = {
    "_args": "settings are given by name",
    "batch_size": _DRAWS,
    "batch_size_B": _DRAWS,
    "buffer_size": "it is the old name of capacity; say capacity",
    "burn_in": "it is the old name of replay_burn_in; say replay_burn_in",
    "capacity_ts": "RLlib reads it nowhere; say capacity",
    "include_extra_model_outputs": _FIELDS,
    "include_infos": _FIELDS,
    "learning_starts": _STARTS,
    "lookback": "frames before the drawn one are a window's burn-in: Window(num_steps, burn_in=...)",
    "metrics_num_episodes_for_smoothing": "stats() counts, and smooths nothing; leave it out",
    "min_batch_length_T": "Window(num_steps, short='drop') leaves out windows that an episode's end cuts short",
    "modules_to_sample": _WHICH,
    "num_items": _DRAWS,
    "num_replay_buffer_shards": "it is of RLlib's optimizer; say num_shards",
    "num_steps_sampled_before_learning_starts": _STARTS,
    "policy_id": _WHICH,
    "replay_batch_size": _DRAWS,
    "replay_buffer_shards_colocated_with_driver": "a shard is where you build it, with num_shards; leave it out",
    "sample_episodes": "windows and whole episodes come from the same buffer, as they are asked for; leave it out",
    "to_numpy": "samples are tensors, which have numpy(); leave it out",
    "zero_init_states": "RLlib's buffers do not read it; say replay_zero_init_states",
}

# Keys that may stand there with the one value that changes nothing, and why with no other.
_NEUTRAL = {
    "_enable_replay_buffer_api": (True, "buffers from before RLlib's replay buffer API are not known here"),
    "no_local_replay_buffer": (False, "whether a process has a buffer is whether you build one there; leave it out"),
    "worker_side_prioritization": (
        False,
        "priorities that are known where frames are collected come with them, add_batch(items, priorities=...); "
        "leave it out",
    ),
}

# What RLlib's own defaults put in place of a setting that it no longer has.
DEPRECATED_VALUE = -1
_DEPRECATED = (
    "buffer_size",
    "burn_in",
    "learning_starts",
    "prioritized_replay",
    "replay_batch_size",
    "worker_side_prioritization",
)

_UNITS = ("capacity", "storage_unit")
_AGENTS = (
    *_UNITS,
    "num_shards",
    "replay_mode",
    "replay_sequence_override",
    "replay_sequence_length",
    "replay_burn_in",
    "replay_zero_init_states",
    "underlying_buffer_config",
)
_PRIORITIES = ("prioritized_replay_alpha", "prioritized_replay_beta", "prioritized_replay_eps")
_EPISODES = ("capacity", "batch_length_T")


class RllibType(NamedTuple):
    """A class of RLlib's.

    Attributes:
      keys: the settings that it reads.
      keeps_episodes: it is one of the new stack, which keeps episodes.
      prioritized: draws go by priority.
      alpha: its exponent when none is given.
      beta: that of weights; None: RLlib wants it told when drawing.
      eps: what RLlib adds to errors, or the least priority that it takes.
      length: `batch_length_T` when none is given.

    >>> RLLIB_TYPES["MultiAgentPrioritizedReplayBuffer"].alpha
    0.6
    """

    keys: tuple[str, ...]
    keeps_episodes: bool = False
    prioritized: bool = False
    alpha: float = 1.0
    beta: float | None = None
    eps: float = 1e-6
    length: int = 1


RLLIB_TYPES = {
    "ReplayBuffer": RllibType(_UNITS),
    "PrioritizedReplayBuffer": RllibType((*_UNITS, "alpha", "beta"), prioritized=True),
    "ReservoirReplayBuffer": RllibType(_UNITS),
    "MultiAgentReplayBuffer": RllibType(_AGENTS),
    "MultiAgentPrioritizedReplayBuffer": RllibType((*_AGENTS, *_PRIORITIES), False, True, 0.6, 0.4),
    "MultiAgentMixInReplayBuffer": RllibType((*_AGENTS, *_PRIORITIES, "replay_ratio"), False, True, 0.6, 0.4),
    "EpisodeReplayBuffer": RllibType(_EPISODES, True, length=64),
    "MultiAgentEpisodeReplayBuffer": RllibType((*_EPISODES, "replay_mode"), True),
    "PrioritizedEpisodeReplayBuffer": RllibType((*_EPISODES, "alpha", "beta"), True, True, 1.0, 0.0, 1e-12),
    "MultiAgentPrioritizedEpisodeReplayBuffer": RllibType(
        (*_EPISODES, "alpha", "beta", "replay_mode"), True, True, 1.0, 0.0, 1e-12
    ),
}
_REFUSED_TYPES = {
    "FifoReplayBuffer": (
        "it gives each batch back once, as it came, and keeps nothing; take RolloutBuffer, or "
        "TFUniformReplayBuffer(sampler=Fifo(), max_times_sampled=1)"
    ),
}
_KNOWN = sorted({key for known in RLLIB_TYPES.values() for key in known.keys} | {"type", *_NEUTRAL})


def is_rllib(config: Mapping[str, Any]) -> bool:
    """Whether a mapping is in RLlib's words: it has a `type`, or settings of RLlib's buffers and no `buffer`.

    >>> is_rllib({"type": "ReplayBuffer"}), is_rllib({"buffer": {"kind": "uniform", "capacity": 1}})
    (True, False)
    """
    if "type" in config or "replay_buffer_config" in config:
        return True
    return "buffer" not in config and any(key in _KNOWN or key in _REFUSED for key in config)


def type_name(given: Mapping[str, Any]) -> str:
    """The name of the class that `type` tells, without its module.

    Raises:
      ValueError: there is no `type`, or it is no class of RLlib's that is known here.

    >>> type_name({"type": "ray.rllib.utils.replay_buffers.replay_buffer.ReplayBuffer"})
    'ReplayBuffer'
    """
    if "type" not in given:
        raise ValueError(
            f"these are RLlib's settings ({', '.join(map(repr, given))}) without a 'type', by which its buffers are "
            f"known; say one of {', '.join(RLLIB_TYPES)}. A config of our own has a 'buffer' with kind and capacity."
        )
    name = str(given["type"]).rpartition(".")[2]
    if name in _REFUSED_TYPES:
        raise ValueError(f"type {name}: {_REFUSED_TYPES[name]}.")
    if name not in RLLIB_TYPES:
        raise ValueError(
            f"type {given['type']!r} is none of RLlib's buffers that are known here{nearest(name, RLLIB_TYPES)}; known "
            f"are {', '.join(RLLIB_TYPES)}. A buffer of your own is built by a function, make_buffer."
        )
    return name


def is_deprecated(key: str, value: Any) -> bool:
    """Whether RLlib takes a setting for not given: an old one, with the value that its defaults give it.

    >>> is_deprecated("prioritized_replay", -1), is_deprecated("prioritized_replay", True)
    (True, False)
    """
    return key in _DEPRECATED and type(value) is int and value == DEPRECATED_VALUE


def refusal(key: str, value: Any, name: str) -> str | None:
    """Why a key cannot stand in the settings of this type, and what to do instead; None where it can.

    >>> refusal("capacity", 100, "ReplayBuffer")
    >>> refusal("replay_ratio", 0.5, "ReplayBuffer")
    'ReplayBuffer does not read it, and drops it without a word; it is of MultiAgentMixInReplayBuffer; leave it out'
    """
    known = RLLIB_TYPES[name]
    if key == "type" or key in known.keys:
        return None
    if key == "prioritized_replay":
        if value is known.prioritized:
            return None
        other = "MultiAgentReplayBuffer" if known.prioritized else "MultiAgentPrioritizedReplayBuffer"
        draws = "draws by priority" if known.prioritized else "draws evenly"
        return f"it is {value!r}, and the type decides: {name} {draws}; take {other}, or leave it out"
    if key in _NEUTRAL:
        neutral, reason = _NEUTRAL[key]
        return None if value is neutral else f"it is {value!r}: {reason}"
    if key in NOT_THE_BUFFERS or key in _REFUSED:
        return NOT_THE_BUFFERS.get(key) or _REFUSED[key]
    readers = [other for other, there in RLLIB_TYPES.items() if key in there.keys]
    if not readers:
        return f"unknown, and RLlib drops it without a word{nearest(key, _KNOWN)}"
    names_here = [here for here in (f"prioritized_replay_{key}", key.rpartition("_")[2]) if here in known.keys]
    way = f"here it is called {names_here[0]}" if names_here else f"it is of {', '.join(readers)}; leave it out"
    return f"{name} does not read it, and drops it without a word; {way}"


def check_alone(config: Mapping[str, Any]) -> None:
    """Refuses what stands beside `replay_buffer_config`: the settings of an algorithm.

    Raises:
      ValueError: there is something; all is named, and the reason told of what people look for there.

    >>> check_alone({"replay_buffer_config": {"type": "ReplayBuffer"}})
    """
    others = [key for key in config if key != "replay_buffer_config"]
    if not others:
        return
    reasons = NOT_THE_BUFFERS | _REFUSED
    told = "".join(f"\n  {key}: {reasons[key]}." for key in others if key in reasons)
    rest = [repr(key) for key in others if key not in reasons]
    if rest:
        told += f"\n  {', '.join(rest)}: {_LOOP}."
    raise ValueError(f"beside replay_buffer_config, which can stand alone, are settings of an algorithm:{told}")
