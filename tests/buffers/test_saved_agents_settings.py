"""Saves of many agents: what must be the same where they are restored, and what may be another."""

from __future__ import annotations

import functools

import pytest
import tensorflow as tf

from replayfeed.buffers import BufferConfig, MultiAgentReplayBuffer, TFUniformReplayBuffer

from .agents_to_save import MAKERS, MODES, POLICIES, SPEC, add, held, make, own_key, plain, seen, values


def test_a_function_is_compared_by_what_it_says_of_each_agent(tmp_path):
    saved = make(policy_of=lambda agent: agent.split("_")[0])
    add(saved, 1)
    saved.save(tmp_path)
    assert make().restore(tmp_path).frames == 3
    with pytest.raises(ValueError, match=r"policy_of: stored .*'wolf_1': 'wolf'.*, here .*'wolf_1': 'wolf_1'"):
        make(policy_of=lambda agent: agent).restore(tmp_path)


@pytest.mark.parametrize("on_mismatch", ["error", "resize", "keep"])
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"mode": "lockstep"}, "mode"),
        ({"policy_of": dict.fromkeys(POLICIES, "one")}, "policy_of"),
        (
            {"policy_of": {**POLICIES, "cow": "cow"}, "data_specs": dict.fromkeys([*POLICIES, "cow"], SPEC)},
            "policy_of",
        ),
        (
            {"make_buffer": {"sheep": MAKERS["uniform"], "wolf": MAKERS["prioritized"]}},
            r"wolf\.class|policy 'wolf': a TFUniformReplayBuffer was saved, and this is a TFPrioritizedReplayBuffer",
        ),
        (
            {"data_specs": {**dict.fromkeys(POLICIES, SPEC), "sheep": {"value": tf.TensorSpec([], tf.int32)}}},
            "policy 'sheep': data_spec differs from what was saved: .*frame/value",
        ),
    ],
)
def test_whose_frames_they_are_and_of_what_kind_must_be_the_same(changed, told, on_mismatch, tmp_path):
    saved, other = make(), make(**changed)
    add(saved, 1)
    saved.save(tmp_path)
    with pytest.raises(ValueError, match=told):
        other.restore(tmp_path, on_mismatch)
    assert len(other) == 0


def test_settings_that_differ_are_named_after_their_policy(tmp_path):
    saved = make(make_buffer=BufferConfig("uniform", 10))
    saved.save(tmp_path)
    other = make(make_buffer={"wolf": BufferConfig("uniform", 8), "sheep": BufferConfig("uniform", 10)})
    # A wolf pack of two has half of it each.
    with pytest.raises(ValueError, match=r"settings differ from what was saved: wolf\.max_length: stored 5, here 4\."):
        other.restore(tmp_path)
    lockstep = make("lockstep", BufferConfig("uniform", 10))
    lockstep.save(tmp_path)
    with pytest.raises(ValueError, match=r"moments\.max_length: stored 10, here 8\."):
        make("lockstep", BufferConfig("uniform", 8)).restore(tmp_path)


@pytest.mark.parametrize("streams", ["apart", "together"])
def test_streams_that_part_are_not_those_that_do_not(streams, tmp_path):
    make(streams=streams).save(tmp_path)
    other = {"apart": "together", "together": "apart"}[streams]
    for on_mismatch in ("error", "resize"):
        with pytest.raises(ValueError, match=f"streams: stored {streams}|streams: stored '{streams}'"):
            make(streams=other).restore(tmp_path, on_mismatch)
    kept = make(streams=other)
    kept.restore(tmp_path, "keep")
    if streams == "together":
        with pytest.raises(ValueError, match="agent 'wolf_1' is absent"):
            add(kept, 1, ["wolf_0"])
    else:
        add(kept, 1, ["wolf_0"])


def test_a_smaller_buffer_keeps_the_newest_frames_of_each_stream(tmp_path):
    saved = make(make_buffer=functools.partial(TFUniformReplayBuffer, max_length=6))
    for number in range(8):
        add(saved, number)
    saved.save(tmp_path)
    other = make(
        make_buffer={
            "wolf": functools.partial(TFUniformReplayBuffer, max_length=2),
            "sheep": functools.partial(TFUniformReplayBuffer, max_length=9),
        }
    )
    report = other.restore(tmp_path, "resize")
    assert (report.frames, report.dropped) == (2 * 2 + 6, 2 * 4)
    assert report.changed == {"sheep.max_length": (6, 9), "wolf.max_length": (6, 2)}
    add(other, 8)
    assert held(other) == {"wolf_1": [[207, 208]], "sheep": [[2, 3, 4, 5, 6, 7, 8]], "wolf_0": [[107, 108]]}


def test_a_smaller_lockstep_keeps_the_newest_moments(tmp_path):
    saved = make("lockstep", BufferConfig("uniform", 6))
    for number in range(8):
        add(saved, number, ["sheep", "wolf_0"] if number == 7 else tuple(POLICIES))
    saved.save(tmp_path)
    other = make("lockstep", BufferConfig("uniform", 3))
    assert other.restore(tmp_path, "resize").dropped == 3
    add(other, 8)
    assert held(other) == {"wolf_1": [[206, 208]], "sheep": [[6, 7, 8]], "wolf_0": [[106, 107, 108]]}


@pytest.mark.parametrize("mode", MODES)
def test_what_was_stored_can_be_kept(mode, tmp_path):
    saved = make(mode, BufferConfig("uniform", 12, seed=4), batch_size=2)
    for number in range(4):
        saved.add_batch({agent: values(number, 10 + number) for agent in POLICIES})
    saved.save(tmp_path)
    other = make(mode, BufferConfig("uniform", 4, seed=5))
    inner = other.buffer_of(own_key(other))
    other.restore(tmp_path, "keep")
    assert (other.batch_size, other.capacity, seen(other)) == (2, saved.capacity, seen(saved))
    assert plain(other.sample(5)[0]) == plain(saved.sample(5)[0])
    for buffer in (saved, other):
        for number in range(9):
            buffer.add_batch({agent: values(20 + number, 30 + number) for agent in POLICIES})
    assert seen(other) == seen(saved)
    with pytest.raises(ValueError, match="closed"):  # it is no part of it any more
        inner.sample(1)


def test_what_is_read_already_cannot_be_built_anew(tmp_path):
    make(make_buffer=BufferConfig("uniform", 12)).save(tmp_path)
    other = make(make_buffer=BufferConfig("uniform", 4))
    add(other, 1)
    inner = other.buffer_of("sheep")
    other.sample(1, policy="sheep")
    with pytest.raises(ValueError, match="on_mismatch='keep': datasets were made of this buffer"):
        other.restore(tmp_path, "keep")
    assert len(inner) == 1


@pytest.mark.parametrize("names", [["", "x/y"], ["..", "moments"], ["a.b", "A.B"]])
def test_policies_may_have_any_names(names, tmp_path):
    policy_of = dict(zip(["one", "two"], names, strict=True))

    def build(capacity: int) -> MultiAgentReplayBuffer:
        specs = dict.fromkeys(policy_of, SPEC)
        return MultiAgentReplayBuffer(specs, policy_of, functools.partial(TFUniformReplayBuffer, max_length=capacity))

    saved = build(6)
    for number in range(8):
        saved.add_batch({"one": values(number), "two": values(100 + number)})
        saved.save(tmp_path, keep_last=1)
    for other, on_mismatch in ((build(6), "error"), (build(2), "keep"), (build(9), "resize")):
        assert other.restore(tmp_path, on_mismatch).frames == 12
        assert held(other) == {"one": [[2, 3, 4, 5, 6, 7]], "two": [[102, 103, 104, 105, 106, 107]]}
        other.save(tmp_path / on_mismatch)
        again = build(other.capacity_of(names[0]))
        again.restore(tmp_path / on_mismatch)
        assert held(again) == held(other)
