"""RLlib's replay_buffer_config: what each of its keys becomes, and which are refused and why. As Ray 2.60 runs."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    PRIORITIZED_PRESETS,
    BufferConfig,
    MultiAgentConfig,
    ReservoirReplayBuffer,
    Window,
    validate_config,
)

AGENTS = "MultiAgentReplayBuffer"
BY_PRIORITY = "MultiAgentPrioritizedReplayBuffer"
MIX_IN = "MultiAgentMixInReplayBuffer"


def of(kind: str, capacity: int = 10_000, **settings: Any) -> MultiAgentConfig:
    return MultiAgentConfig(BufferConfig(kind, capacity, **settings))


def trees(alpha: float, beta: float, eps: float = 1e-6) -> dict[str, Any]:
    return {"alpha": alpha, "beta": beta, "eps": eps, "weight_norm": "buffer", "initial": "ever"}


# -- what is translated --------------------------------------------------------------------------

TRANSLATED: dict[str, tuple[dict[str, Any], MultiAgentConfig]] = {
    "ReplayBuffer": ({"type": "ReplayBuffer"}, of("uniform")),
    "PrioritizedReplayBuffer": ({"type": "PrioritizedReplayBuffer"}, of("prioritized", **trees(1.0, 0.4))),
    "ReservoirReplayBuffer": ({"type": "ReservoirReplayBuffer", "capacity": 50}, of("reservoir", 50)),
    "MultiAgentReplayBuffer": ({"type": AGENTS}, of("uniform")),
    "MultiAgentPrioritizedReplayBuffer": ({"type": BY_PRIORITY}, of("prioritized", **trees(0.6, 0.4))),
    # Its batches carry no batch_indexes, so that priorities never change: draws are uniform there, too.
    "MultiAgentMixInReplayBuffer": ({"type": MIX_IN}, of("uniform", newest_fraction=0.34)),
    "EpisodeReplayBuffer": (
        {"type": "EpisodeReplayBuffer"},
        MultiAgentConfig(BufferConfig("episodic", 10_000, max_frames=10_000), window=Window(64, short="pad")),
    ),
    "MultiAgentEpisodeReplayBuffer": (
        {"type": "MultiAgentEpisodeReplayBuffer"},
        MultiAgentConfig(BufferConfig("episodic", 10_000, max_frames=10_000), window=Window(1)),
    ),
    "PrioritizedEpisodeReplayBuffer": (
        {"type": "PrioritizedEpisodeReplayBuffer"},
        of("prioritized", **trees(1.0, 0.0, 1e-12)),
    ),
    "MultiAgentPrioritizedEpisodeReplayBuffer": (
        {"type": "MultiAgentPrioritizedEpisodeReplayBuffer"},
        of("prioritized", **trees(1.0, 0.0, 1e-12)),
    ),
    "type, with its module": (
        {"type": "ray.rllib.utils.replay_buffers.multi_agent_replay_buffer.MultiAgentReplayBuffer"},
        of("uniform"),
    ),
    "capacity": ({"type": AGENTS, "capacity": 500}, of("uniform", 500)),
    "storage_unit timesteps": ({"type": AGENTS, "storage_unit": "timesteps"}, of("uniform")),
    # capacity counts time steps there, too: 8 hold two sequences of 4.
    "storage_unit sequences": (
        {"type": AGENTS, "storage_unit": "sequences", "capacity": 8, "replay_sequence_length": 4},
        MultiAgentConfig(BufferConfig("uniform", 8), window=Window(4, stride=4, short="pad"), initial_state="zero"),
    ),
    # 8 hold two episodes of 3 or 8 of 1; only those that ended are kept.
    "storage_unit episodes": (
        {"type": AGENTS, "storage_unit": "episodes", "capacity": 8},
        of("episodic", 8, max_frames=8, completed_only=True),
    ),
    "num_shards": ({"type": AGENTS, "num_shards": 4}, MultiAgentConfig(BufferConfig("uniform", 10_000), shards=4)),
    "replay_mode independent": ({"type": AGENTS, "replay_mode": "independent"}, of("uniform")),
    "replay_mode lockstep": (
        {"type": AGENTS, "replay_mode": "lockstep"},
        MultiAgentConfig(BufferConfig("uniform", 10_000), mode="lockstep"),
    ),
    # What RLlib's own check refuses, or fails at when it draws.
    "lockstep by priority": (
        {"type": BY_PRIORITY, "replay_mode": "lockstep"},
        MultiAgentConfig(BufferConfig("prioritized", 10_000, **trees(0.6, 0.4)), mode="lockstep"),
    ),
    "lockstep of sequences": (
        {"type": AGENTS, "replay_mode": "lockstep", "storage_unit": "sequences", "replay_sequence_length": 4},
        MultiAgentConfig(
            BufferConfig("uniform", 10_000),
            mode="lockstep",
            window=Window(4, stride=4, short="pad"),
            initial_state="zero",
        ),
    ),
    "sequences by priority": (
        {"type": BY_PRIORITY, "storage_unit": "sequences", "replay_sequence_length": 4},
        MultiAgentConfig(
            BufferConfig("prioritized", 10_000, **trees(0.6, 0.4)),
            window=Window(4, stride=4, short="pad"),
            initial_state="zero",
        ),
    ),
    # Sequences 3, 3 and 2 of eight steps with a burn-in of 2: [- - 0 1 2] [1 2 3 4 5] [4 5 6 7 -].
    "replay_burn_in": (
        {"type": AGENTS, "storage_unit": "sequences", "replay_sequence_length": 5, "replay_burn_in": 2},
        MultiAgentConfig(
            BufferConfig("uniform", 10_000),
            window=Window(3, burn_in=2, stride=3, short="pad"),
            initial_state="zero",
        ),
    ),
    "replay_zero_init_states": (
        {
            "type": AGENTS,
            "storage_unit": "sequences",
            "replay_sequence_length": 4,
            "replay_zero_init_states": False,
            "replay_sequence_override": True,
        },
        MultiAgentConfig(
            BufferConfig("uniform", 10_000), window=Window(4, stride=4, short="pad"), initial_state="stored"
        ),
    ),
    "what has no effect on time steps, as RLlib's defaults": (
        {
            "type": AGENTS,
            "replay_sequence_override": True,
            "replay_sequence_length": 1,
            "replay_burn_in": 0,
            "replay_zero_init_states": True,
            "underlying_buffer_config": None,
        },
        of("uniform"),
    ),
    "underlying_buffer_config of a reservoir": (
        {"type": AGENTS, "capacity": 50, "underlying_buffer_config": {"type": "ReservoirReplayBuffer"}},
        of("reservoir", 50),
    ),
    "underlying_buffer_config by priority": (
        {
            "type": AGENTS,
            "underlying_buffer_config": {"type": "PrioritizedReplayBuffer", "alpha": 0.5, "beta": 0.1, "capacity": 7},
        },
        of("prioritized", 7, **trees(0.5, 0.1)),
    ),
    "underlying_buffer_config without priorities": (
        {"type": BY_PRIORITY, "underlying_buffer_config": {"type": "ReplayBuffer", "storage_unit": "fragments"}},
        of("uniform"),
    ),
    "prioritized_replay_alpha, beta, eps": (
        {
            "type": BY_PRIORITY,
            "prioritized_replay_alpha": 0.7,
            "prioritized_replay_beta": 0.5,
            "prioritized_replay_eps": 1e-3,
        },
        of("prioritized", **trees(0.7, 0.5, 1e-3)),
    ),
    # Documented as no prioritization, refused by RLlib when the first frame comes.
    "prioritized_replay_alpha 0": (
        {"type": BY_PRIORITY, "prioritized_replay_alpha": 0.0},
        of("prioritized", **trees(0.0, 0.4)),
    ),
    "prioritized_replay_eps beside an underlying buffer": (
        {
            "type": BY_PRIORITY,
            "prioritized_replay_eps": 0.01,
            "underlying_buffer_config": {"type": "PrioritizedReplayBuffer", "beta": 0.2},
        },
        of("prioritized", **trees(1.0, 0.2, 0.01)),
    ),
    "alpha, beta": (
        {"type": "PrioritizedReplayBuffer", "alpha": 0.5, "beta": 0.2},
        of("prioritized", **trees(0.5, 0.2)),
    ),
    "replay_ratio 0.5": ({"type": MIX_IN, "replay_ratio": 0.5}, of("uniform", newest_fraction=0.5)),
    "replay_ratio 0, no replay": ({"type": MIX_IN, "replay_ratio": 0}, of("uniform", newest_fraction=1.0)),
    "replay_ratio 1, nothing but replay": (
        {"type": MIX_IN, "replay_ratio": 1.0, "prioritized_replay_alpha": 0.5},
        of("prioritized", **trees(0.5, 0.4)),
    ),
    "replay_ratio of sequences in lockstep": (
        {
            "type": MIX_IN,
            "replay_mode": "lockstep",
            "replay_ratio": 0.75,
            "prioritized_replay_alpha": 0.0,
            "storage_unit": "sequences",
            "replay_sequence_length": 2,
        },
        MultiAgentConfig(
            BufferConfig("uniform", 10_000, newest_fraction=0.25),
            mode="lockstep",
            window=Window(2, stride=2, short="pad"),
            initial_state="zero",
        ),
    ),
    "batch_length_T": (
        {"type": "EpisodeReplayBuffer", "batch_length_T": 16},
        MultiAgentConfig(BufferConfig("episodic", 10_000, max_frames=10_000), window=Window(16, short="pad")),
    ),
    "batch_length_T of transitions": (
        {"type": "PrioritizedEpisodeReplayBuffer", "batch_length_T": 1},
        of("prioritized", **trees(1.0, 0.0, 1e-12)),
    ),
    "replay_mode synchronized": (
        {"type": "MultiAgentEpisodeReplayBuffer", "replay_mode": "synchronized"},
        MultiAgentConfig(BufferConfig("episodic", 10_000, max_frames=10_000), mode="lockstep", window=Window(1)),
    ),
    "worker_side_prioritization": ({"type": AGENTS, "worker_side_prioritization": False}, of("uniform")),
    "no_local_replay_buffer": ({"type": AGENTS, "no_local_replay_buffer": False}, of("uniform")),
    "_enable_replay_buffer_api": ({"type": AGENTS, "_enable_replay_buffer_api": True}, of("uniform")),
    "prioritized_replay": (
        {"type": BY_PRIORITY, "prioritized_replay": True},
        of("prioritized", **trees(0.6, 0.4)),
    ),
    "replay_buffer_config": ({"replay_buffer_config": {"type": AGENTS}}, of("uniform")),
}


@pytest.mark.parametrize(("rllib", "ours"), TRANSLATED.values(), ids=TRANSLATED)
def test_rllibs_settings_are_carried_over(rllib, ours):
    assert validate_config(rllib) == ours


DEFAULTS = {
    "DQN": (
        {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 50_000, "alpha": 0.6, "beta": 0.4},
        of("prioritized", 50_000, **trees(0.6, 0.4, 1e-12)),
    ),
    "SAC": (
        {"type": "PrioritizedEpisodeReplayBuffer", "capacity": int(1e6), "alpha": 0.6, "beta": 0.4},
        of("prioritized", 1_000_000, **trees(0.6, 0.4, 1e-12)),
    ),
    "DreamerV3": (
        {"type": "EpisodeReplayBuffer", "capacity": int(1e6)},
        MultiAgentConfig(BufferConfig("episodic", 1_000_000, max_frames=1_000_000), window=Window(64, short="pad")),
    ),
    "DQN of Ray 2.2": (
        {
            "type": BY_PRIORITY,
            "prioritized_replay": -1,
            "capacity": 50_000,
            "prioritized_replay_alpha": 0.6,
            "prioritized_replay_beta": 0.4,
            "prioritized_replay_eps": 1e-6,
            "replay_sequence_length": 1,
            "worker_side_prioritization": False,
        },
        of("prioritized", 50_000, **trees(0.6, 0.4)),
    ),
}


@pytest.mark.parametrize(("rllib", "ours"), DEFAULTS.values(), ids=DEFAULTS)
def test_the_defaults_of_rllibs_algorithms_are_carried_over(rllib, ours):
    assert validate_config(rllib) == ours


def test_the_preset_and_a_translated_config_agree():
    translated, preset = validate_config({"type": BY_PRIORITY}).buffer, PRIORITIZED_PRESETS["rllib"]
    assert (translated.alpha, translated.beta, translated.eps) == (preset.alpha, preset.beta, preset.eps)
    assert (translated.weight_norm, translated.initial) == (preset.weight_norm, preset.initial)


def test_rllibs_classes_and_enumerations_are_known_by_their_names():
    class StorageUnit(enum.Enum):
        SEQUENCES = "sequences"

    class ReplayMode(enum.Enum):
        LOCKSTEP = "lockstep"

    kind = type("MultiAgentReplayBuffer", (), {})
    words = {"storage_unit": StorageUnit.SEQUENCES, "replay_mode": ReplayMode.LOCKSTEP, "replay_sequence_length": 2}
    config = validate_config({"type": kind} | words)
    assert (config.mode, config.window) == ("lockstep", Window(2, stride=2, short="pad"))


def test_yaml_of_rllib_is_carried_over_and_written_as_ours():
    config = validate_config("type: MultiAgentReplayBuffer\ncapacity: 1000\nreplay_mode: lockstep")
    assert config == MultiAgentConfig(BufferConfig("uniform", 1000), mode="lockstep")
    assert validate_config(config.to_yaml()) == config


# -- what the numbers mean -----------------------------------------------------------------------


def test_a_sequence_has_its_burn_in_to_the_left_and_padding_at_its_end():
    # What Ray 2.60 stores of these eight steps and these settings, with 0 for padding.
    config = validate_config(
        {"type": AGENTS, "storage_unit": "sequences", "replay_sequence_length": 5, "replay_burn_in": 2}
    )
    buffer = config.buffer.build(tf.TensorSpec([], tf.int64), batch_size=1)
    buffer.add_sequence([np.arange(8)], end_of_episode=[np.arange(8) == 7])
    drawn = [
        items.numpy().tolist() for items, _ in buffer.as_dataset(window=config.window, single_deterministic_pass=True)
    ]
    assert drawn == [[0, 0, 0, 1, 2], [1, 2, 3, 4, 5], [4, 5, 6, 7, 0]]


def test_a_replay_ratio_of_two_thirds_makes_a_third_of_a_batch_new():
    # Of 300 rows that Ray 2.60 draws with 0.66, 102 are new.
    config = validate_config({"type": MIX_IN, "replay_ratio": 0.66, "capacity": 10_000})
    buffer = config.buffer.build(tf.TensorSpec([], tf.int64), batch_size=1)
    buffer.add_sequence(np.arange(10_000)[None])
    assert buffer.sample(3)[0].numpy().tolist()[2:] == [9999]
    rows = buffer.sample(300)[0].numpy()
    assert rows[198:].tolist() == list(range(9898, 10_000))
    assert (rows[:198] < 9898).mean() > 0.9


def test_episodes_are_bounded_by_their_frames():
    config = validate_config({"type": "EpisodeReplayBuffer", "capacity": 10, "batch_length_T": 3})
    buffer = config.buffer.build(tf.TensorSpec([], tf.int64), batch_size=1)
    for episode in range(4):
        buffer.add_sequence([10 * episode + np.arange(4)], end_of_episode=[np.arange(4) == 3])
    # As Ray 2.60: of 16 frames the newest two episodes stay.
    assert buffer.gather_all().numpy().tolist() == [[20, 21, 22, 23, 30, 31, 32, 33]]


# -- what is refused -----------------------------------------------------------------------------

SEQUENCES = {"type": AGENTS, "storage_unit": "sequences", "replay_sequence_length": 4}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"capacity": 10}, r"RLlib's settings \('capacity'\) without a 'type'.*; say one of ReplayBuffer, Pri"),
    "FifoReplayBuffer": ({"type": "FifoReplayBuffer"}, "type FifoReplayBuffer: it gives each batch back once.*Rollout"),
    "an unknown type": (
        {"type": "MultiAgentReplayBufer"},
        "'MultiAgentReplayBufer' is none of RLlib's .*; the nearest is 'MultiAgentReplayBuffer'; known are",
    ),
    "a type of one's own": ({"type": "my.lib.RankBuffer"}, "A buffer of your own is built by a function, make_buffer"),
    "storage_unit fragments": (
        {"type": AGENTS, "storage_unit": "fragments"},
        "storage_unit: a fragment is whatever one",
    ),
    "storage_unit": (
        {"type": AGENTS, "storage_unit": "steps"},
        "storage_unit: must be one of 'timesteps', 'sequences'",
    ),
    "episodes by priority": (
        {"type": BY_PRIORITY, "storage_unit": "episodes"},
        "storage_unit: 'episodes' of MultiAgentPrioritizedReplayBuffer: whole episodes are drawn evenly",
    ),
    "episodes mixed": ({"type": MIX_IN, "storage_unit": "episodes"}, "storage_unit: 'episodes' of MultiAgentMixInRepl"),
    "a reservoir of episodes": (
        {"type": "ReservoirReplayBuffer", "storage_unit": "episodes"},
        "storage_unit: 'episodes' of ReservoirReplayBuffer",
    ),
    "a reservoir of sequences": (
        SEQUENCES | {"underlying_buffer_config": {"type": "ReservoirReplayBuffer"}},
        "storage_unit: a reservoir keeps single frames here; say 'timesteps'",
    ),
    "sequences of a single buffer": (
        {"type": "ReplayBuffer", "storage_unit": "sequences"},
        "storage_unit: of ReplayBuffer the batches tell how long 'sequences' are; take MultiAgentReplayBuffer",
    ),
    "replay_mode": (
        {"type": AGENTS, "replay_mode": "locked"},
        "replay_mode: must be one of 'independent', 'lockstep', ",
    ),
    "replay_mode of the old stack": ({"type": AGENTS, "replay_mode": "synchronized"}, "'lockstep', got 'synchronized'"),
    "replay_mode synchronized by priority": (
        {"type": "MultiAgentPrioritizedEpisodeReplayBuffer", "replay_mode": "synchronized"},
        "replay_mode: RLlib draws 'synchronized' samples evenly, whatever their priorities; take MultiAgentEpisodeRep",
    ),
    "replay_sequence_length of time steps": (
        {"type": AGENTS, "replay_sequence_length": 20},
        "replay_sequence_length: it is 20, and has an effect only with storage_unit='sequences'; say that, or leave it",
    ),
    "replay_sequence_length -1": (
        SEQUENCES | {"replay_sequence_length": -1},
        "for -1 RLlib puts the sum of replay_burn",
    ),
    "replay_sequence_length 0": (
        SEQUENCES | {"replay_sequence_length": 0},
        "replay_sequence_length: .* least 1, got 0",
    ),
    "replay_burn_in of time steps": (
        {"type": AGENTS, "replay_burn_in": 2},
        "replay_burn_in: it is 2, and has an effect",
    ),
    "replay_burn_in": (SEQUENCES | {"replay_burn_in": -1}, "replay_burn_in: must be an int of at least 0, got -1"),
    "replay_burn_in of the whole": (
        SEQUENCES | {"replay_burn_in": 4},
        "replay_burn_in: 4 of 4 steps .replay_sequence_length, which includes them. leave nothing to learn from",
    ),
    "replay_zero_init_states of time steps": (
        {"type": AGENTS, "replay_zero_init_states": False},
        "replay_zero_init_states: it is False, and has an effect only with",
    ),
    "replay_zero_init_states": (
        SEQUENCES | {"replay_zero_init_states": 0},
        "replay_zero_init_states: must be True or False, got 0",
    ),
    "replay_sequence_override": (
        SEQUENCES | {"replay_sequence_override": False},
        "replay_sequence_override: False keeps sequences as they were cut before: add them by .*add_cut_sequences",
    ),
    "underlying_buffer_config": (
        {"type": AGENTS, "underlying_buffer_config": "x"},
        "_config: must be a mapping of set",
    ),
    "underlying type": (
        {"type": AGENTS, "underlying_buffer_config": {"capacity": 10}},
        "underlying_buffer_config: its type must be one of ReplayBuffer, PrioritizedReplayBuffer, Reservoir.*got None",
    ),
    # The example in RLlib's docstring, whose buffer drops the names.
    "underlying names": (
        {
            "type": BY_PRIORITY,
            "underlying_buffer_config": {"type": "PrioritizedReplayBuffer", "prioritized_replay_alpha": 0.5},
        },
        "underlying_buffer_config: prioritized_replay_alpha: PrioritizedReplayBuffer does not read it, and drops it "
        "without a word; here it is called alpha",
    ),
    "underlying and alpha": (
        {
            "type": BY_PRIORITY,
            "prioritized_replay_alpha": 0.5,
            "underlying_buffer_config": {"type": "PrioritizedReplayBuffer"},
        },
        "prioritized_replay_alpha: underlying_buffer_config replaces the buffer that it is of",
    ),
    "underlying and eps": (
        {"type": BY_PRIORITY, "prioritized_replay_eps": 0.5, "underlying_buffer_config": {"type": "ReplayBuffer"}},
        "prioritized_replay_eps: underlying_buffer_config has no priorities",
    ),
    "two capacities": (
        {"type": AGENTS, "capacity": 100, "underlying_buffer_config": {"type": "ReplayBuffer", "capacity": 10}},
        "capacity: it is 100, and 10 in underlying_buffer_config, which RLlib goes by; leave one of the two out",
    ),
    "an underlying capacity in shards": (
        {"type": AGENTS, "num_shards": 2, "underlying_buffer_config": {"type": "ReplayBuffer", "capacity": 10}},
        "num_shards: RLlib does not divide a capacity inside underlying_buffer_config",
    ),
    "two storage units": (
        {"type": AGENTS, "underlying_buffer_config": {"type": "ReplayBuffer", "storage_unit": "sequences"}},
        "storage_unit: it is 'timesteps', and 'sequences' in underlying_buffer_config, which cuts what comes once more",
    ),
    "replay_ratio": (
        {"type": MIX_IN, "replay_ratio": 1.5},
        "replay_ratio: must be a number from 0 to 1, the share of ol",
    ),
    "replay_ratio and priorities": (
        {"type": MIX_IN, "prioritized_replay_alpha": 0.6},
        "prioritized_replay_alpha: with replay_ratio=0.66 it changes nothing in RLlib, whose mixed batches carry",
    ),
    "replay_ratio and an underlying buffer": (
        {"type": MIX_IN, "underlying_buffer_config": {"type": "PrioritizedReplayBuffer"}},
        "underlying_buffer_config: with replay_ratio=0.66 it changes nothing",
    ),
    "replay_ratio elsewhere": (
        {"type": AGENTS, "replay_ratio": 0.5},
        "replay_ratio: MultiAgentReplayBuffer does not read it.*; it is of MultiAgentMixInReplayBuffer; leave it out",
    ),
    "batch_length_T": (
        {"type": "EpisodeReplayBuffer", "batch_length_T": 0},
        "batch_length_T: must be an int of at lea",
    ),
    "batch_length_T by priority": (
        {"type": "PrioritizedEpisodeReplayBuffer", "batch_length_T": 20},
        "batch_length_T: it is 20, and PrioritizedEpisodeReplayBuffer draws single transitions whatever it says",
    ),
    "alpha of another type": (
        {"type": BY_PRIORITY, "alpha": 0.5},
        "alpha: MultiAgentPrioritizedReplayBuffer does not read it.*; here it is called prioritized_replay_alpha",
    ),
    "prioritized_replay against the type": (
        {"type": BY_PRIORITY, "prioritized_replay": False},
        "prioritized_replay: it is False, and the type decides: MultiAgentPrioritizedReplayBuffer draws by priority; "
        "take MultiAgentReplayBuffer",
    ),
    "prioritized_replay of a uniform type": (
        {"type": AGENTS, "prioritized_replay": True},
        "MultiAgentReplayBuffer draws evenly; take MultiAgentPrioritizedReplayBuffer",
    ),
    "worker_side_prioritization": (
        {"type": BY_PRIORITY, "worker_side_prioritization": True},
        r"worker_side_prioritization: it is True: priorities .* come with them, add_batch\(items, priorities=...\)",
    ),
    "no_local_replay_buffer": (
        {"type": AGENTS, "no_local_replay_buffer": True},
        "no_local_replay_buffer: it is True: wh",
    ),
    "misspelled": (
        {"type": BY_PRIORITY, "prioritised_replay_alpha": 0.5, "zzz": 1},
        "\n  prioritised_replay_alpha: unknown, and RLlib drops it without a word; the nearest is "
        "'prioritized_replay_alpha'.\n  zzz: unknown, and RLlib drops it without a word.$",
    ),
    "an algorithm's": (
        {"replay_buffer_config": {"type": AGENTS}, "policies_to_train": ["a"], "lr": 0.1, "model": {}},
        "beside replay_buffer_config, .*:\n  policies_to_train: a buffer keeps the frames of all policies.*"
        "\n  'lr', 'model': it is the training loop's",
    ),
    "ours and theirs": ({"type": AGENTS, "min_size_to_sample": 5}, "min_size_to_sample: unknown, and RLlib drops it"),
}


@pytest.mark.parametrize(("rllib", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_carried_over_is_refused_with_the_reason(rllib, message):
    with pytest.raises(ValueError, match=message):
        validate_config(rllib)


NEVER = {
    "_args": "given by name",
    "batch_size": "as_dataset",
    "batch_size_B": "as_dataset",
    "buffer_size": "say capacity",
    "burn_in": "say replay_burn_in",
    "capacity_ts": "say capacity",
    "count_steps_by": "sample_at_least",
    "gamma": "n_step",
    "include_extra_model_outputs": "data_spec",
    "include_infos": "data_spec",
    "learning_starts": "min_size_to_sample",
    "lookback": "burn_in",
    "metrics_num_episodes_for_smoothing": "stats",
    "min_batch_length_T": "Window",
    "modules_to_sample": "policy",
    "n_step": "replayfeed.pipelines.n_step",
    "num_items": "as_dataset",
    "num_replay_buffer_shards": "say num_shards",
    "num_steps_sampled_before_learning_starts": "min_size_to_sample",
    "policies": "policy_of",
    "policies_to_train": "sample",
    "policy_mapping_fn": "policy_of",
    "replay_batch_size": "as_dataset",
    "replay_buffer_shards_colocated_with_driver": "num_shards",
    "sample_episodes": "leave it out",
    "store_buffer_in_checkpoints": "save",
    "to_numpy": "numpy",
    "train_batch_size": "as_dataset",
    "training_intensity": "training loop",
    "zero_init_states": "say replay_zero_init_states",
}


@pytest.mark.parametrize("key", NEVER)
@pytest.mark.parametrize("kind", [AGENTS, "EpisodeReplayBuffer"])
def test_what_is_not_a_buffers_is_refused_with_what_to_do_instead(kind, key):
    with pytest.raises(ValueError, match=f"\n  {key}: .*{NEVER[key]}"):
        validate_config({"type": kind, key: 1})


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(ValueError) as caught:
        validate_config(
            {
                "type": AGENTS,
                "learning_starts": 1000,
                "replay_mode": "locked",
                "storage_unit": "fragments",
                "replay_burn_in": 3,
            }
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "replay_buffer_config of MultiAgentReplayBuffer:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "learning_starts",
        "replay_mode",
        "storage_unit",
        "replay_burn_in",
    ]


def test_an_old_setting_with_the_value_for_not_given_is_not_given():
    old = ("buffer_size", "burn_in", "learning_starts", "prioritized_replay", "replay_batch_size")
    assert validate_config({"type": AGENTS} | dict.fromkeys(old, -1)) == of("uniform")


@pytest.mark.parametrize(
    ("rllib", "error", "message"),
    [
        ({"type": AGENTS, "capacity": 1e6}, TypeError, "capacity must be an int, got 1000000.0"),
        ({"type": AGENTS, "capacity": 3, "num_shards": 4}, ValueError, "capacity 3 divided among 4 shards leaves"),
        (
            {"type": BY_PRIORITY, "prioritized_replay_alpha": -1},
            ValueError,
            "alpha must be finite and at least 0, got -1",
        ),
        ({"replay_buffer_config": None}, TypeError, "replay_buffer_config must be a mapping of settings, got None"),
    ],
)
def test_values_are_checked_as_those_of_our_own(rllib, error, message):
    with pytest.raises(error, match=message):
        validate_config(rllib)


# Every keyword of every constructor of Ray 2.60, and of every `sample`.
CONSTRUCTORS = {
    "ReplayBuffer": "capacity storage_unit",
    "PrioritizedReplayBuffer": "capacity storage_unit alpha",
    "ReservoirReplayBuffer": "capacity storage_unit",
    AGENTS: "capacity storage_unit num_shards replay_mode replay_sequence_override replay_sequence_length "
    "replay_burn_in replay_zero_init_states underlying_buffer_config",
    BY_PRIORITY: "capacity storage_unit num_shards replay_mode replay_sequence_override replay_sequence_length "
    "replay_burn_in replay_zero_init_states underlying_buffer_config prioritized_replay_alpha prioritized_replay_beta "
    "prioritized_replay_eps",
    MIX_IN: "capacity storage_unit num_shards replay_mode replay_sequence_override replay_sequence_length "
    "replay_burn_in replay_zero_init_states replay_ratio underlying_buffer_config prioritized_replay_alpha "
    "prioritized_replay_beta prioritized_replay_eps",
    "EpisodeReplayBuffer": "capacity batch_size_B batch_length_T metrics_num_episodes_for_smoothing",
    "MultiAgentEpisodeReplayBuffer": "capacity batch_size_B batch_length_T metrics_num_episodes_for_smoothing",
    "PrioritizedEpisodeReplayBuffer": "capacity batch_size_B batch_length_T alpha metrics_num_episodes_for_smoothing",
    "MultiAgentPrioritizedEpisodeReplayBuffer": "capacity batch_size_B batch_length_T alpha "
    "metrics_num_episodes_for_smoothing",
}
CALLS = (
    "num_items policy_id beta batch_size_B batch_length_T n_step gamma include_infos include_extra_model_outputs "
    "sample_episodes to_numpy lookback min_batch_length_T replay_mode modules_to_sample"
)


@pytest.mark.parametrize("kind", CONSTRUCTORS)
def test_no_keyword_of_rllibs_buffers_is_unknown(kind):
    for key in {*CONSTRUCTORS[kind].split(), *CALLS.split()}:
        try:
            validate_config({"type": kind, key: "not a value"})
        except (TypeError, ValueError) as error:
            assert "unknown" not in str(error), key


ANY_VALUE = st.sampled_from(
    [
        None,
        True,
        False,
        -1,
        0,
        1,
        2,
        7,
        0.0,
        0.5,
        1e6,
        float("nan"),
        "",
        "lockstep",
        "sequences",
        "episodes",
        "fragments",
    ]
    + [[], {}, {"type": "ReplayBuffer"}, {"type": "PrioritizedReplayBuffer", "capacity": 5}, ReservoirReplayBuffer, "ü"]
)
ANY_TYPE = st.sampled_from([*CONSTRUCTORS, "FifoReplayBuffer", "", None, 3])
ANY_KEY = st.sampled_from([*CONSTRUCTORS[MIX_IN].split(), *CALLS.split(), *NEVER, "alpha", "buffer", 3])


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from([*CONSTRUCTORS, "FifoReplayBuffer", "", None, 3]), st.dictionaries(ANY_KEY, ANY_VALUE, max_size=5)
)
def test_whatever_is_given_is_a_config_or_an_error_that_says_why(kind, given_settings):
    try:
        config = validate_config({"type": kind} | given_settings)
    except (TypeError, ValueError) as error:
        assert len(str(error)) > 20
    else:
        assert validate_config(config.to_yaml()) == config
