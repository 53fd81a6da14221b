"""BufferConfig and MultiAgentConfig: what they refuse, what they build, and how they stand in a file."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    BufferConfig,
    EpisodicReplayBuffer,
    MultiAgentConfig,
    ReservoirReplayBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
    validate_config,
)

COUNTER = tf.TensorSpec([], tf.int64)
UNIFORM = BufferConfig("uniform", 100)


# -- BufferConfig --------------------------------------------------------------------------------

WRONG_BUFFERS = {
    "kind": ("unifrom", {}, ValueError, "kind must be one of uniform, prioritized, episodic, reservoir, got 'unifrom'"),
    "capacity": ("uniform", {"capacity": 0}, ValueError, "BufferConfig.capacity must be at least 1, got 0"),
    "capacity as YAML reads 1e6": (
        "uniform",
        {"capacity": "1e6"},
        TypeError,
        "BufferConfig.capacity must be an int, got '1e6'",
    ),
    "capacity is no int": ("uniform", {"capacity": 1e6}, TypeError, "capacity must be an int, got 1000000.0"),
    "alpha": ("prioritized", {"alpha": -0.5}, ValueError, "BufferConfig.alpha must be finite and at least 0, got -0.5"),
    "alpha is no number": ("prioritized", {"alpha": "0.6"}, TypeError, "BufferConfig.alpha must be a number"),
    "alpha by rank": ("prioritized", {"alpha": 5, "variant": "rank"}, ValueError, "at most 4.0 with variant='rank'"),
    "beta": ("prioritized", {"beta": float("nan")}, ValueError, "BufferConfig.beta must be finite"),
    "a schedule for beta": ("prioritized", {"beta": lambda n: 0.4}, TypeError, "BufferConfig.beta must be a number"),
    "eps": ("prioritized", {"eps": -1}, ValueError, "BufferConfig.eps must be finite and at least 0, got -1"),
    "weight_norm": ("prioritized", {"weight_norm": "max"}, ValueError, "weight_norm must be 'batch', 'buffer' or None"),
    "initial": ("prioritized", {"initial": "mean"}, ValueError, "initial must be 'max', 'ever' or a priority"),
    "initial is no number": ("prioritized", {"initial": [1]}, TypeError, "initial must be 'max', 'ever' or a number"),
    "initial below 0": ("prioritized", {"initial": -1.0}, ValueError, "BufferConfig.initial must be finite and at"),
    "variant": ("prioritized", {"variant": "ranked"}, ValueError, "variant must be 'proportional' or 'rank'"),
    "stratified": ("prioritized", {"stratified": 1}, TypeError, "stratified must be True or False, got 1"),
    "newest_fraction": ("uniform", {"newest_fraction": 1.5}, ValueError, "newest_fraction must be between 0 and 1"),
    "max_times_sampled": ("uniform", {"max_times_sampled": -1}, ValueError, "max_times_sampled must be at least 0"),
    "max_frames": ("episodic", {"max_frames": 0}, ValueError, "BufferConfig.max_frames must be at least 1, got 0"),
    "completed_only": ("episodic", {"completed_only": "yes"}, TypeError, "completed_only must be True or False"),
    "seed": ("uniform", {"seed": -1}, ValueError, "BufferConfig.seed must be an int of at least 0, or None, got -1"),
    "final_frame": ("uniform", {"final_frame": "last"}, ValueError, "final_frame must be one of auto, observation"),
    "min_size_to_sample": ("uniform", {"min_size_to_sample": 11}, ValueError, "11 is above capacity 10: nothing"),
    "min_size_to_sample of episodes": (
        "episodic",
        {"min_size_to_sample": 51, "max_frames": 50},
        ValueError,
        "min_size_to_sample 51 is above max_frames 50",
    ),
}


@pytest.mark.parametrize(("kind", "settings", "error", "message"), WRONG_BUFFERS.values(), ids=WRONG_BUFFERS)
def test_a_wrong_setting_is_refused_where_it_is_written(kind, settings, error, message):
    with pytest.raises(error, match=message):
        BufferConfig(**{"kind": kind, "capacity": 10} | settings)


# The value that a kind which has the setting takes for granted, too: to say it is a mistake all the same.
FOREIGN = {
    "alpha": (0.6, "prioritized"),
    "beta": (0.4, "prioritized"),
    "eps": (1e-6, "prioritized"),
    "weight_norm": ("batch", "prioritized"),
    "initial": ("max", "prioritized"),
    "variant": ("proportional", "prioritized"),
    "stratified": (False, "prioritized"),
    "newest_fraction": (0.0, "uniform"),
    "max_times_sampled": (0, "uniform"),
    "max_frames": (5, "episodic"),
    "completed_only": (False, "episodic"),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("kind", ["uniform", "prioritized", "episodic", "reservoir"])
def test_a_setting_of_another_kind_is_refused_by_name(kind, name):
    value, owner = FOREIGN[name]
    if kind == owner:
        assert getattr(BufferConfig(kind, 10, **{name: value}), name) == value
        return
    with pytest.raises(ValueError, match=f"{name}={value!r} with kind='{kind}': only kind='{owner}' has it.*leave it"):
        BufferConfig(kind, 10, **{name: value})


def test_no_norm_is_a_value_of_its_own_and_not_the_default():
    assert BufferConfig("prioritized", 10).weight_norm == "batch"
    assert BufferConfig("prioritized", 10, weight_norm=None).weight_norm is None
    assert BufferConfig.from_dict(BufferConfig("prioritized", 10, weight_norm=None).to_dict()).weight_norm is None
    with pytest.raises(ValueError, match="weight_norm=None with kind='uniform'"):
        BufferConfig("uniform", 10, weight_norm=None)


@pytest.mark.parametrize(
    ("kind", "buffer_class"),
    [
        ("uniform", TFUniformReplayBuffer),
        ("prioritized", TFPrioritizedReplayBuffer),
        ("episodic", EpisodicReplayBuffer),
        ("reservoir", ReservoirReplayBuffer),
    ],
)
def test_what_is_not_said_is_the_default_of_the_class(kind, buffer_class):
    config = BufferConfig(kind, 10)
    parameters = inspect.signature(buffer_class).parameters
    said = {name: value for name, value in config.to_dict().items() if name not in ("kind", "capacity")}
    assert said == {name: parameters[name].default for name in said}
    assert isinstance(config.build(COUNTER, batch_size=2), buffer_class)


def test_a_ring_divides_its_capacity_among_its_streams():
    assert BufferConfig("uniform", 10).build(COUNTER, batch_size=3).capacity == 9
    assert BufferConfig("prioritized", 12).build(COUNTER, batch_size=3).capacity == 12
    assert BufferConfig("episodic", 10).build(COUNTER, batch_size=3).capacity == 10
    assert BufferConfig("reservoir", 10).build(COUNTER, batch_size=3).capacity == 10


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            BufferConfig("uniform", 3),
            "BufferConfig.capacity 3 is below the number of streams 4: each of them needs a fra",
        ),
        (BufferConfig("episodic", 3), "BufferConfig.capacity 3 is below the number of streams 4: .* an episode"),
        (BufferConfig("episodic", 9, max_frames=3), "BufferConfig.max_frames 3 is below the number of streams 4"),
    ],
)
def test_a_capacity_below_the_number_of_streams_is_refused_with_both_numbers(config, message):
    with pytest.raises(ValueError, match=message):
        config.build(COUNTER, batch_size=4)


def test_settings_reach_the_buffer():
    prioritized = BufferConfig("prioritized", 4, alpha=1.0, beta=1.0, weight_norm=None, seed=0).build(COUNTER, 1)
    prioritized.add_sequence([[0, 1, 2, 3]], priorities=[[0.0, 0.0, 0.0, 2.0]])
    items, info = prioritized.sample(2)
    assert items.numpy().tolist() == [3, 3]
    assert info.weights.numpy().tolist() == [0.25, 0.25]  # (4 P)^-1, divided by nothing

    newest = BufferConfig("uniform", 100, newest_fraction=1.0).build(COUNTER, 1)
    newest.add_sequence(np.arange(50)[None])
    assert newest.sample(3)[0].numpy().tolist() == [47, 48, 49]

    once = BufferConfig("uniform", 100, max_times_sampled=1).build(COUNTER, 1)
    once.add_sequence([[5, 6]])
    assert sorted(once.sample(2)[0].numpy().tolist()) == [5, 6]

    episodes = BufferConfig("episodic", 9, max_frames=4, completed_only=True, final_frame="observation").build(
        COUNTER, 1
    )
    for values in ([0, 1], [2, 3], [4, 5]):
        episodes.add_sequence([values], end_of_episode=[[False, True]])
    assert episodes.gather_all().numpy().tolist() == [[2, 3, 4, 5]]
    assert sorted(episodes.sample(50, num_steps=1)[0].numpy().flatten().tolist())[::49] == [2, 4]

    waiting = BufferConfig("reservoir", 9, min_size_to_sample=2).build(COUNTER, 1)
    waiting.add_sequence([[1]])
    with pytest.raises(ValueError, match="1 of 2 frames"):
        waiting.sample(1)


def test_shards_divide_what_counts_and_round_down():
    episodes = BufferConfig("episodic", 10, max_frames=101, min_size_to_sample=50, seed=3).divided(4)
    assert (episodes.capacity, episodes.max_frames, episodes.min_size_to_sample, episodes.seed) == (2, 25, 12, 3)
    assert BufferConfig("uniform", 10, min_size_to_sample=3).divided(4).min_size_to_sample == 1
    assert BufferConfig("prioritized", 10, alpha=0.7, weight_norm=None).divided(1) == BufferConfig(
        "prioritized", 10, alpha=0.7, weight_norm=None
    )


@pytest.mark.parametrize(
    ("config", "shards", "error", "message"),
    [
        (UNIFORM, 101, ValueError, "BufferConfig.capacity 100 divided among 101 shards leaves nothing in each; raise"),
        (BufferConfig("episodic", 9, max_frames=2), 3, ValueError, "BufferConfig.max_frames 2 divided among 3 shards"),
        (UNIFORM, 0, ValueError, "shards must be at least 1, got 0"),
        (UNIFORM, 1.5, TypeError, "shards must be an int, got 1.5"),
    ],
)
def test_shards_that_would_hold_nothing_are_refused(config, shards, error, message):
    with pytest.raises(error, match=message):
        config.divided(shards)


def test_buffers_of_one_seed_draw_different_rows_and_the_same_ones_in_each_run():
    def draws(index: int) -> list[int]:
        buffer = BufferConfig("uniform", 1000, seed=7).seeded(index).build(COUNTER, 1)
        buffer.add_sequence(np.arange(1000)[None])
        return buffer.sample(8)[0].numpy().tolist()

    assert draws(0) == draws(0) != draws(1)
    assert BufferConfig("uniform", 10).seeded(1) == BufferConfig("uniform", 10)


def test_a_dict_holds_what_the_kind_has_and_comes_back_the_same():
    assert BufferConfig("reservoir", 10).to_dict() == {
        "kind": "reservoir",
        "capacity": 10,
        "min_size_to_sample": 1,
        "seed": None,
        "final_frame": "auto",
    }
    for config in (
        BufferConfig("uniform", np.int64(10), newest_fraction=0.25, max_times_sampled=np.int32(2)),
        BufferConfig("prioritized", 10, alpha=1, initial=2, variant="rank", stratified=True, weight_norm="buffer"),
        BufferConfig("episodic", 10, max_frames=100, completed_only=True, final_frame="ordinary"),
    ):
        plain = config.to_dict()
        assert BufferConfig.from_dict(plain) == config
        assert {type(value) for value in plain.values()} <= {int, float, str, bool, type(None)}


@pytest.mark.parametrize(
    ("plain", "error", "message"),
    [
        ({"kind": "uniform"}, ValueError, "buffer lacks capacity"),
        ({}, ValueError, "buffer lacks kind, capacity"),
        (
            {"kind": "uniform", "capacity": 1, "newest": 1, "alfa": 1},
            ValueError,
            "unknown 'newest' .the nearest is 'newest_fraction'., 'alfa' .the nearest is 'alpha'.; known are kind, cap",
        ),
        ({"kind": "uniform", "capacity": -1}, ValueError, "buffer: BufferConfig.capacity must be at least 1"),
        ({"kind": "uniform", "capacity": None}, TypeError, "buffer: BufferConfig.capacity must be an int"),
        ("uniform", TypeError, "buffer must be a mapping of settings, got 'uniform'"),
    ],
)
def test_a_wrong_dict_is_refused_by_name(plain, error, message):
    with pytest.raises(error, match=message):
        BufferConfig.from_dict(plain)


# -- MultiAgentConfig ----------------------------------------------------------------------------

WRONG_CONFIGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "buffer": ({"buffer": {"kind": "uniform"}}, TypeError, "MultiAgentConfig.buffer must be a BufferConfig, got {"),
    "mode": ({"mode": "together"}, ValueError, "mode must be 'independent' or 'lockstep', got 'together'"),
    "shards": ({"shards": 0}, ValueError, "MultiAgentConfig.shards must be at least 1, got 0"),
    "shards is no int": ({"shards": "2"}, TypeError, "MultiAgentConfig.shards must be an int, got '2'"),
    "shards above capacity": ({"shards": 101}, ValueError, "MultiAgentConfig: .*capacity 100 divided among 101 shards"),
    "shards above a policy's capacity": (
        {"shards": 3, "policy_buffers": {"red": BufferConfig("uniform", 2)}},
        ValueError,
        "MultiAgentConfig, policy 'red': .*capacity 2 divided among 3 shards",
    ),
    "policy_buffers in lockstep": (
        {"mode": "lockstep", "policy_buffers": {"red": UNIFORM, "blue": UNIFORM}},
        ValueError,
        "policy_buffers names 'red', 'blue' with mode='lockstep', where one draw of one buffer is the same moments",
    ),
    "policy_windows in lockstep": (
        {"mode": "lockstep", "policy_windows": {"red": Window(2)}},
        ValueError,
        "policy_windows names 'red' with mode='lockstep'",
    ),
    "policy_buffers is no mapping": ({"policy_buffers": [UNIFORM]}, TypeError, "must be a mapping from policies"),
    "a policy's buffer": ({"policy_buffers": {"red": 100}}, TypeError, "policy_buffers.'red'. must be a BufferConfig"),
    "a policy's name": ({"policy_windows": {1: Window(2)}}, TypeError, "policy_windows: a policy is a str, got 1"),
    "a policy's window": ({"policy_windows": {"red": 2}}, TypeError, "policy_windows.'red'. must be a Window, got 2"),
    "window": ({"window": 20}, TypeError, "MultiAgentConfig.window must be a Window, got 20"),
    "cast": ({"cast": "no"}, TypeError, "MultiAgentConfig.cast must be True or False, got 'no'"),
    "initial_state": (
        {"initial_state": "random", "window": Window(2)},
        ValueError,
        "initial_state must be 'stored' or 'zero', got 'random'",
    ),
    "initial_state of single frames": ({"initial_state": "zero"}, ValueError, "initial_state='zero' without a window"),
    "windows of a reservoir": (
        {"mode": "lockstep", "buffer": BufferConfig("reservoir", 100), "window": Window(2)},
        ValueError,
        "num_steps=2.* with kind='reservoir': it keeps single frames, most of which lose their neighbours",
    ),
    "a burn-in of a reservoir": (
        {"buffer": BufferConfig("reservoir", 100), "window": Window(1, burn_in=1)},
        ValueError,
        "with kind='reservoir': it keeps single frames",
    ),
    "a policy's windows of a reservoir": (
        {"policy_buffers": {"red": BufferConfig("reservoir", 100)}, "window": Window(2)},
        ValueError,
        "MultiAgentConfig, policy 'red': .*with kind='reservoir'",
    ),
    "windows over the ends of kept episodes": (
        {"buffer": BufferConfig("episodic", 10), "window": Window(2, boundaries="ignore")},
        ValueError,
        "boundaries='ignore' with kind='episodic', which keeps episodes apart",
    ),
    "windows of more than is held": (
        {"window": Window(51), "shards": 2},
        ValueError,
        "needs 51 frames of an episode, and 50 are held by a shard; shorten the window, or raise capacity",
    ),
    "a policy's windows of more than is held": (
        {"policy_windows": {"red": Window(101)}},
        ValueError,
        "policy 'red': .*needs 101 frames of an episode, and 100 are held; ",
    ),
}


@pytest.mark.parametrize(("settings", "error", "message"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_settings_that_do_not_go_together_are_refused_with_the_reason(settings, error, message):
    with pytest.raises(error, match=message):
        MultiAgentConfig(**{"buffer": UNIFORM} | settings)


def test_windows_that_can_be_given_are_not_refused():
    MultiAgentConfig(BufferConfig("reservoir", 10), window=Window(1))
    MultiAgentConfig(UNIFORM, window=Window(200, short="pad"))  # every frame starts one
    MultiAgentConfig(UNIFORM, window=Window(2, boundaries="ignore"), mode="lockstep")
    MultiAgentConfig(BufferConfig("episodic", 2), window=Window(200))  # no limit of frames


def test_a_state_is_stored_where_windows_are_drawn_and_nothing_else_is_said():
    assert MultiAgentConfig(UNIFORM).initial_state is None
    assert MultiAgentConfig(UNIFORM, window=Window(2)).initial_state == "stored"
    assert MultiAgentConfig(UNIFORM, policy_windows={"red": Window(2)}, initial_state="zero").initial_state == "zero"


def test_a_config_cannot_be_changed_and_can_be_a_key():
    buffers = {"red": UNIFORM}
    config = MultiAgentConfig(UNIFORM, policy_buffers=buffers)
    buffers["blue"] = UNIFORM
    assert list(config.policy_buffers) == ["red"]
    with pytest.raises(TypeError, match="does not support item assignment"):
        config.policy_buffers["blue"] = UNIFORM
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.shards = 2
    assert config == MultiAgentConfig(UNIFORM, policy_buffers={"red": UNIFORM}) != MultiAgentConfig(UNIFORM)
    assert {config: 1}[MultiAgentConfig(UNIFORM, policy_buffers={"red": UNIFORM})] == 1


YAML = """\
mode: independent
shards: 2
buffer:
  kind: prioritized
  capacity: 1000
  alpha: 0.6
  beta: 0.4
  eps: 1.0e-06
  weight_norm: batch
  initial: max
  variant: proportional
  stratified: false
  min_size_to_sample: 1
  seed: null
  final_frame: auto
policy_buffers:
  red:
    kind: reservoir
    capacity: 50
    min_size_to_sample: 1
    seed: 3
    final_frame: auto
window:
  num_steps: 20
  burn_in: 5
  stride: 10
  short: pad
  boundaries: exclude
  pad_unfinished: false
policy_windows:
  red:
    num_steps: 1
    burn_in: 0
    stride: 1
    short: drop
    boundaries: exclude
    pad_unfinished: false
initial_state: zero
cast: true
"""
CONFIG = MultiAgentConfig(
    BufferConfig("prioritized", 1000),
    shards=2,
    policy_buffers={"red": BufferConfig("reservoir", 50, seed=3)},
    window=Window(20, burn_in=5, stride=10, short="pad"),
    policy_windows={"red": Window(1)},
    initial_state="zero",
    cast=True,
)


def test_yaml_tells_every_setting_and_comes_back_the_same():
    assert CONFIG.to_yaml() == YAML
    assert MultiAgentConfig.from_yaml(YAML) == validate_config(YAML) == validate_config(CONFIG.to_dict()) == CONFIG
    assert validate_config(MultiAgentConfig(UNIFORM, mode="lockstep").to_yaml()).mode == "lockstep"


def test_what_has_a_default_may_be_left_out_of_a_file():
    config = validate_config("buffer: {kind: uniform, capacity: 100}\nwindow: {num_steps: 2}")
    assert config == MultiAgentConfig(UNIFORM, window=Window(2))
    assert validate_config('{"buffer": {"kind": "uniform", "capacity": 100}}') == MultiAgentConfig(UNIFORM)


PLAIN = {"buffer": {"kind": "uniform", "capacity": 100}}
WRONG_DICTS: dict[str, tuple[Any, type[Exception], str]] = {
    "unknown": (
        PLAIN | {"mod": "lockstep", "x": 1},
        ValueError,
        "unknown 'mod' .the nearest is 'mode'., 'x'; known are buffer, mode, shards",
    ),
    "no buffer": ({"mode": "lockstep"}, ValueError, "lacks buffer, a mapping with at least kind and capacity"),
    "buffer": ({"buffer": "uniform"}, TypeError, "buffer must be a mapping of settings, got 'uniform'"),
    "in the buffer": ({"buffer": {"kind": "uniform", "capacity": 9, "alpha": 1}}, ValueError, "buffer: .*alpha=1 with"),
    "in a policy's buffer": (
        PLAIN | {"policy_buffers": {"red": {"kind": "uniform"}}},
        ValueError,
        "policy_buffers.'red'. lacks capacity",
    ),
    "policies": (PLAIN | {"policy_windows": [1]}, TypeError, "policy_windows must be a mapping from policies"),
    "in the window": (PLAIN | {"window": {"num_steps": 0}}, ValueError, "window: Window.num_steps must be at least 1"),
    "unknown in the window": (
        PLAIN | {"window": {"num_steps": 2, "burnin": 1}},
        ValueError,
        "window: unknown 'burnin' .the nearest is 'burn_in'.",
    ),
    "no window": (PLAIN | {"window": {"burn_in": 2}}, ValueError, "window lacks num_steps"),
    "policies_to_train": (
        PLAIN | {"policies_to_train": ["red"], "train_batch_size": 32},
        ValueError,
        "not the buffer's:\n  policies_to_train: a buffer keeps the frames of all policies; draw from those to train.*"
        "\n  train_batch_size: how many are drawn is said when they are",
    ),
    "a path": ("replay.yaml", TypeError, "not a path: this text is 'replay.yaml'"),
    "a list": ([1], TypeError, "validate_config takes a mapping or YAML text, got .1."),
    "a key twice": ("mode: lockstep\nmode: independent", ValueError, "the same key stands twice in one place: 'mode'"),
    "no YAML": ("{", ValueError, "this is no YAML that can be read"),
}


@pytest.mark.parametrize(("config", "error", "message"), WRONG_DICTS.values(), ids=WRONG_DICTS)
def test_validate_config_refuses_what_is_wrong_by_name(config, error, message):
    with pytest.raises(error, match=message):
        validate_config(config)


def test_what_is_given_is_not_changed():
    plain = {"buffer": {"kind": "uniform", "capacity": 100}, "window": {"num_steps": 2}}
    validate_config(plain)
    assert plain == {"buffer": {"kind": "uniform", "capacity": 100}, "window": {"num_steps": 2}}


# -- built -------------------------------------------------------------------------------------

SPECS = {agent: {"obs": COUNTER} for agent in ("wolf_0", "wolf_1", "sheep")}


def by_name(agent: str) -> str:
    return agent.partition("_")[0]


def moment(number: int, *agents: str) -> dict[str, Any]:
    return {agent: {"obs": np.full([1], number)} for agent in agents or SPECS}


def test_each_policy_gets_its_buffer_and_its_share_of_the_capacity():
    config = MultiAgentConfig(
        BufferConfig("uniform", 100),
        shards=2,
        policy_buffers={"sheep": BufferConfig("prioritized", 30, alpha=1.0)},
    )
    with config.build(SPECS, by_name) as buffer:
        assert (buffer.mode, buffer.policies) == ("independent", ("wolf", "sheep"))
        assert (buffer.capacity_of("wolf"), buffer.capacity_of("sheep")) == (50, 15)
        assert isinstance(buffer.buffer_of("wolf"), TFUniformReplayBuffer)
        assert isinstance(buffer.buffer_of("sheep"), TFPrioritizedReplayBuffer)
        for number in range(20):
            buffer.add_batch(moment(number))
        items, _ = buffer.sample(200, policy="sheep")
        assert items["obs"].numpy().min() == 5  # the newest 15 of 20


def test_policies_of_one_seed_draw_different_moments_and_the_same_in_each_run():
    def draws() -> list[list[int]]:
        config = MultiAgentConfig(BufferConfig("uniform", 1000, seed=5))
        with config.build({"a": COUNTER, "b": COUNTER}, {"a": "red", "b": "blue"}) as buffer:
            buffer.add_sequence({agent: np.arange(500)[None] for agent in ("a", "b")})
            items, _ = buffer.sample(8)
            return [items[policy].numpy().tolist() for policy in ("red", "blue")]

    first = draws()
    assert first == draws()
    assert first[0] != first[1]


def test_rllibs_lockstep_is_built_and_drawn_from():
    config = validate_config(
        {
            "type": "MultiAgentPrioritizedReplayBuffer",
            "capacity": 8,
            "replay_mode": "lockstep",
            "storage_unit": "sequences",
            "replay_sequence_length": 3,
            "replay_burn_in": 1,
        }
    )
    with config.build(SPECS, by_name) as buffer:
        buffer.add_batch(moment(0))
        buffer.add_batch(moment(1, "wolf_0", "wolf_1"))  # the sheep is dead
        buffer.add_batch(moment(2, "wolf_0", "wolf_1"), end_of_episode=np.array([True]))
        items, info = buffer.sample(30, window=config.window)
    windows = {tuple(row) for row in items["wolf_0"]["obs"].numpy().tolist()}
    assert windows == {(0, 0, 1), (1, 2, 0)}
    masks = {tuple(row) for row in np.concatenate([info.mask["wolf_0"], info.mask["sheep"]], axis=1).tolist()}
    # Of window (-, 0, 1) the sheep has frame 0, of (1, 2, -) none.
    assert masks == {(False, True, True, False, True, False), (True, True, False, False, False, False)}


def test_windows_by_policy_are_given_where_they_are_drawn():
    config = MultiAgentConfig(UNIFORM, window=Window(3), policy_windows={"sheep": Window(2)})
    with config.build(SPECS, by_name, batch_size=1) as buffer:
        for number in range(6):
            buffer.add_batch(moment(number))
        items, _ = buffer.sample(4, window={policy: config.window_of(policy) for policy in buffer.policies})
    assert {policy: item["obs"].shape.as_list() for policy, item in items.items()} == {"wolf": [4, 3], "sheep": [4, 2]}


def test_input_is_cast_where_the_config_says_so():
    spec = {"a": tf.TensorSpec([], tf.float32)}
    with MultiAgentConfig(UNIFORM, cast=True).build(spec, {"a": "red"}) as buffer:
        buffer.add_batch({"a": np.array([0.5])})
        assert buffer.sample(1, policy="red")[0].numpy().tolist() == [0.5]
    with (
        MultiAgentConfig(UNIFORM).build(spec, {"a": "red"}) as buffer,
        pytest.raises(ValueError, match="expected .* float32"),
    ):
        buffer.add_batch({"a": np.array([0.5])})


def test_settings_of_a_policy_that_there_is_not_are_refused():
    config = MultiAgentConfig(UNIFORM, policy_buffers={"wolves": UNIFORM})
    with pytest.raises(ValueError, match="policy_buffers: no agent acts by 'wolves'.*; policies are 'sheep', 'wolf'"):
        config.build(SPECS, by_name)
    with pytest.raises(ValueError, match="policy_windows: no agent acts by 'shep'; the nearest is 'sheep'"):
        MultiAgentConfig(UNIFORM, policy_windows={"shep": Window(2)}).build(SPECS, by_name)


def test_a_capacity_that_gives_some_streams_no_frame_is_refused():
    with pytest.raises(ValueError, match="BufferConfig.capacity 7 is below the number of streams 8"):
        MultiAgentConfig(BufferConfig("uniform", 7)).build(SPECS, by_name, batch_size=4)
