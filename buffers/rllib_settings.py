"""RLlib's `replay_buffer_config` in the words of `MultiAgentConfig`. Pure: dict to dict, without Ray.

Translated is what Ray 2.60 does, which is not always what its docstrings say:

- `capacity` counts time steps, whatever the `storage_unit`;
- `replay_sequence_length` includes the burn-in: of 5 with a burn-in of 2 three steps are learned from;
- `replay_ratio` is the share of old samples, in the mean over batches;
- a batch that `MultiAgentMixInReplayBuffer` has mixed carries no `batch_indexes`: no priority ever changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .rllib_keys import RLLIB_TYPES, check_alone, is_deprecated, refusal, type_name

_MIX_IN = "MultiAgentMixInReplayBuffer"
_RESERVOIR = "ReservoirReplayBuffer"
_UNDERLYING = ("ReplayBuffer", "PrioritizedReplayBuffer", _RESERVOIR)
_STORAGE_UNITS = ("timesteps", "sequences", "episodes", "fragments")

Settings = dict[str, Any]


def from_rllib(config: Mapping[str, Any]) -> Settings:
    """The plain settings of a `MultiAgentConfig` (`MultiAgentConfig.from_dict`) that RLlib's stand for.

    Args:
      config: a `replay_buffer_config`, or a mapping with nothing but that.

    Raises:
      TypeError: `replay_buffer_config` is no mapping.
      ValueError: there is no `type`, or one that is not known; or a key is unknown, refused, or contradicts another.
        All such keys are named.

    >>> from_rllib({"type": "MultiAgentReplayBuffer", "capacity": 100, "replay_mode": "lockstep"})
    {'mode': 'lockstep', 'shards': 1, 'buffer': {'kind': 'uniform', 'capacity': 100}}
    """
    if "replay_buffer_config" in config:
        check_alone(config)
        config = config["replay_buffer_config"]
        if not isinstance(config, Mapping):
            raise TypeError(f"replay_buffer_config must be a mapping of settings, got {config!r}.")
    plain = {key: _plain_word(value) for key, value in config.items()}
    name = type_name(plain)
    given = {key: value for key, value in plain.items() if not is_deprecated(key, value)}
    problems = [f"{key}: {reason}." for key in given if (reason := refusal(key, given[key], name)) is not None]
    read = {key: value for key, value in given.items() if key in RLLIB_TYPES[name].keys}
    settings: Settings = {}
    steps: tuple[Callable[[Settings, str], Settings], ...] = (_mode, _buffer, _window)
    for step in steps:
        try:
            settings |= step(read, name)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError(f"replay_buffer_config of {name}:" + "".join(f"\n  {problem}" for problem in problems))
    return settings


def _plain_word(value: Any) -> Any:
    """The word of RLlib's enumerations (`StorageUnit.SEQUENCES`), the name of a class; other values as they are."""
    if isinstance(value, type):
        return value.__name__
    word = getattr(value, "value", None)
    return word if isinstance(word, str) else value


def _mode(given: Settings, name: str) -> Settings:
    known = RLLIB_TYPES[name]
    together = "synchronized" if known.keeps_episodes else "lockstep"
    mode = _one_of("replay_mode", given.get("replay_mode", "independent"), ("independent", together))
    if mode == "synchronized" and known.prioritized:
        raise ValueError(
            "replay_mode: RLlib draws 'synchronized' samples evenly, whatever their priorities; take "
            "MultiAgentEpisodeReplayBuffer for that, or MultiAgentPrioritizedReplayBuffer with 'lockstep'."
        )
    return {"mode": "independent" if mode == "independent" else "lockstep", "shards": given.get("num_shards", 1)}


def _buffer(given: Settings, name: str) -> Settings:
    capacity = given.get("capacity", 10_000)
    if RLLIB_TYPES[name].keeps_episodes:
        if RLLIB_TYPES[name].prioritized:
            return {"buffer": {"kind": "prioritized", "capacity": capacity, **_priorities(given, name)}}
        return {"buffer": _episodic(capacity)}
    below, inner = _buffer_below(given, name)
    capacity = inner.get("capacity", capacity)
    newest_fraction = _newest_fraction(given, name, below)
    by_priority = RLLIB_TYPES[below].prioritized and newest_fraction is None
    unit = _one_of("storage_unit", given.get("storage_unit", "timesteps"), _STORAGE_UNITS)
    if unit == "fragments":
        raise ValueError(
            "storage_unit: a fragment is whatever one add brings, of any length; say 'episodes', and add each fragment "
            "by add_sequence(items) and end_stream()."
        )
    if unit == "episodes":
        if by_priority or newest_fraction is not None or below == _RESERVOIR:
            raise ValueError(
                f"storage_unit: 'episodes' of {below}: whole episodes are drawn evenly from the newest here; say "
                "'timesteps' or 'sequences', or take MultiAgentReplayBuffer."
            )
        return {"buffer": _episodic(capacity) | {"completed_only": True}}
    if below == _RESERVOIR:
        if unit == "sequences":
            raise ValueError("storage_unit: a reservoir keeps single frames here; say 'timesteps'.")
        return {"buffer": {"kind": "reservoir", "capacity": capacity}}
    if by_priority:
        return {"buffer": {"kind": "prioritized", "capacity": capacity, **_priorities(inner, below)}}
    uniform = {"kind": "uniform", "capacity": capacity}
    return {"buffer": uniform if newest_fraction is None else uniform | {"newest_fraction": newest_fraction}}


def _window(given: Settings, name: str) -> Settings:
    if RLLIB_TYPES[name].keeps_episodes:
        length = _whole("batch_length_T", given.get("batch_length_T", RLLIB_TYPES[name].length), least=1)
        if not RLLIB_TYPES[name].prioritized:
            return {"window": {"num_steps": 1} if length == 1 else {"num_steps": length, "short": "pad"}}
        if length > 1:
            raise ValueError(
                f"batch_length_T: it is {length}, and {name} draws single transitions whatever it says; leave it out, "
                "and draw windows with as_dataset(window=Window(...))."
            )
        return {}
    if given.get("storage_unit", "timesteps") == "sequences":
        return _sequences(given, name)
    for key, without_effect in (
        ("replay_sequence_length", 1),
        ("replay_burn_in", 0),
        ("replay_zero_init_states", True),
        ("replay_sequence_override", True),
    ):
        if given.get(key, without_effect) != without_effect:
            raise ValueError(
                f"{key}: it is {given[key]!r}, and has an effect only with storage_unit='sequences'; say that, or "
                "leave it out."
            )
    return {}


def _sequences(given: Settings, name: str) -> Settings:
    """Windows side by side, each with its burn-in to the left, the last of an episode padded."""
    if "replay_sequence_length" not in RLLIB_TYPES[name].keys:
        raise ValueError(
            f"storage_unit: of {name} the batches tell how long 'sequences' are; take MultiAgentReplayBuffer and its "
            "replay_sequence_length, or 'timesteps' and as_dataset(window=Window(...))."
        )
    length = given.get("replay_sequence_length", 1)
    if length == -1:
        raise ValueError(
            "replay_sequence_length: for -1 RLlib puts the sum of replay_burn_in and the model's max_seq_len; say it."
        )
    length = _whole("replay_sequence_length", length, least=1)
    burn_in = _whole("replay_burn_in", given.get("replay_burn_in", 0), least=0)
    if burn_in >= length:
        raise ValueError(
            f"replay_burn_in: {burn_in} of {length} steps (replay_sequence_length, which includes them) leave nothing "
            "to learn from; raise replay_sequence_length."
        )
    if not _true_or_false("replay_sequence_override", given.get("replay_sequence_override", True)):
        raise ValueError(
            "replay_sequence_override: False keeps sequences as they were cut before: add them by "
            "replayfeed.pipelines.add_cut_sequences(..., replay_sequence_override=False); leave it out."
        )
    zero = _true_or_false("replay_zero_init_states", given.get("replay_zero_init_states", True))
    num_steps = length - burn_in
    return {
        "window": {"num_steps": num_steps, "burn_in": burn_in, "stride": num_steps, "short": "pad"},
        "initial_state": "zero" if zero else "stored",
    }


def _episodic(num_frames: Any) -> Settings:
    """A buffer of episodes bounded by frames alone: as each has at least one, there are no more episodes than that."""
    return {"kind": "episodic", "capacity": num_frames, "max_frames": num_frames}


def _buffer_below(given: Settings, name: str) -> tuple[str, Settings]:
    """The class that each policy's buffer is of, and its settings."""
    if given.get("underlying_buffer_config") is None:
        return name, given
    where, inner = "underlying_buffer_config", given["underlying_buffer_config"]
    if not isinstance(inner, Mapping):
        raise ValueError(f"{where}: must be a mapping of settings, got {inner!r}.")
    inner = {key: _plain_word(value) for key, value in inner.items()}
    below = str(inner.get("type")).rpartition(".")[2]
    if below not in _UNDERLYING:
        raise ValueError(
            f"{where}: its type must be one of {', '.join(_UNDERLYING)}, got {inner.get('type')!r}; a buffer of your "
            "own is built by a function, make_buffer."
        )
    reasons = {key: reason for key in inner if (reason := refusal(key, inner[key], below)) is not None}
    if reasons:
        raise ValueError("\n  ".join(f"{where}: {key}: {reason}." for key, reason in reasons.items()))
    for key in ("prioritized_replay_alpha", "prioritized_replay_beta"):
        if key in given:
            raise ValueError(f"{key}: {where} replaces the buffer that it is of; leave one of the two out.")
    if "prioritized_replay_eps" in given:
        if not RLLIB_TYPES[below].prioritized:
            raise ValueError(f"prioritized_replay_eps: {where} has no priorities; leave one of the two out.")
        inner["prioritized_replay_eps"] = given["prioritized_replay_eps"]
    if "capacity" in inner and given.get("capacity", inner["capacity"]) != inner["capacity"]:
        raise ValueError(
            f"capacity: it is {given['capacity']}, and {inner['capacity']} in {where}, which RLlib goes by; leave one "
            "of the two out."
        )
    if "capacity" in inner and given.get("num_shards", 1) != 1:
        raise ValueError(f"num_shards: RLlib does not divide a capacity inside {where}; say capacity outside of it.")
    unit = given.get("storage_unit", "timesteps")
    if inner.get("storage_unit", unit) not in (unit, "fragments"):
        raise ValueError(
            f"storage_unit: it is {unit!r}, and {inner['storage_unit']!r} in {where}, which cuts what comes once more; "
            "leave the inner one out."
        )
    return below, inner


def _priorities(given: Settings, below: str) -> Settings:
    """As RLlib's segment trees: weights divided by the buffer's largest, new items with the largest priority ever."""
    known = RLLIB_TYPES[below]
    prefix = "prioritized_replay_" if "prioritized_replay_alpha" in known.keys else ""
    beta = given.get(f"{prefix}beta", known.beta)
    settings = {
        "alpha": given.get(f"{prefix}alpha", known.alpha),
        "eps": given.get("prioritized_replay_eps", known.eps),
        "weight_norm": "buffer",
        "initial": "ever",
    }
    return settings if beta is None else settings | {"beta": beta}


def _newest_fraction(given: Settings, name: str, below: str) -> float | None:
    """The share of a batch that is the newest; None where nothing is mixed in."""
    if name != _MIX_IN:
        return None
    ratio = given.get("replay_ratio", 0.66)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        raise ValueError(f"replay_ratio: must be a number from 0 to 1, the share of old samples, got {ratio!r}.")
    if ratio == 1:
        return None
    without_effect = [key for key in ("prioritized_replay_beta", "prioritized_replay_eps") if key in given]
    if given.get("prioritized_replay_alpha", 0) != 0:
        without_effect.insert(0, "prioritized_replay_alpha")
    if below == "PrioritizedReplayBuffer":
        without_effect.append("underlying_buffer_config")
    if without_effect:
        raise ValueError(
            f"{without_effect[0]}: with replay_ratio={ratio} it changes nothing in RLlib, whose mixed batches carry no "
            "batch_indexes to update priorities by; leave it out, or say replay_ratio=1.0."
        )
    # 1 - 0.66 is 0.33999999999999997.
    return round(1.0 - float(ratio), 12)


def _one_of(key: str, value: Any, words: tuple[str, ...]) -> str:
    if value not in words:
        raise ValueError(f"{key}: must be one of {', '.join(map(repr, words))}, got {value!r}.")
    return str(value)


def _whole(key: str, value: Any, *, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{key}: must be an int of at least {least}, got {value!r}.")
    return int(value)


def _true_or_false(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key}: must be True or False, got {value!r}.")
    return value
