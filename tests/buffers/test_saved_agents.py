"""Buffers of many agents, saved and restored, go on with the same lives, numbers and iterators; and where they go."""

from __future__ import annotations

import functools
import json
import os
import textwrap
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import BufferConfig, EmptyBufferError, MultiAgentReplayBuffer, TableConfig, Window
from replayfeed.pipelines import n_step, of_agent

from .agents_to_save import MODES, POLICIES, SPEC, add, held, make, plain, values


def test_a_new_process_goes_on_whatever_the_order_of_its_agents(run_python, tmp_path):
    buffer = make("independent", BufferConfig("prioritized", 20, seed=5), batch_size=2)
    for t in range(15):
        agents = ["wolf_0", "sheep", "wolf_1"] if t % 3 else ["wolf_1", "sheep"]
        items = {agent: values(t + 100 * sorted(POLICIES).index(agent), -t) for agent in agents}
        buffer.add_batch(items, end_of_episode=np.array([t == 6, t == 9]))
    buffer.sample(4)
    buffer.save(tmp_path / "saves", step=15)
    program = """
        import json
        import numpy as np, tensorflow as tf
        from replayfeed.buffers import BufferConfig, MultiAgentReplayBuffer

        policy_of = lambda agent: agent.split("_")[0]
        buffer = MultiAgentReplayBuffer(
            dict.fromkeys(["sheep", "wolf_0", "wolf_1"], {"value": tf.TensorSpec([], tf.int64)}),
            policy_of, BufferConfig("prioritized", 20, seed=5), batch_size=2,
        )
        buffer.restore("saves")
        items, info = buffer.sample(6)
        buffer.add_batch({"wolf_1": {"value": np.array([1000, 1001])}})
        held = {agent: rows["value"].to_list() for agent, rows in buffer.gather_all().items()}
        print(json.dumps([tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), items), held]))
    """
    found = json.loads(run_python(textwrap.dedent(program)))
    items, _ = buffer.sample(6)
    buffer.add_batch({"wolf_1": values(1000, 1001)})
    assert found == [tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), items), held(buffer)]


def test_who_could_go_on_is_ended_with_the_environment_though_absent(tmp_path):
    saved, other = make(), make()
    add(saved, 0)
    saved.save(tmp_path)
    other.restore(tmp_path)
    add(other, 1, ["sheep"], end_of_episode=np.array([True]))
    add(other, 2, ["wolf_0"])
    with pytest.raises(EmptyBufferError, match="no window of 2 frames"):
        other.sample(1, num_steps=2, policy="wolf")
    assert other.sample(1, num_steps=2, policy="sheep")[0]["value"].numpy().tolist() == [[0, 1]]


def test_an_end_that_nobody_told_is_warned_of_after_a_restore_too(tmp_path):
    build = functools.partial(
        make, "lockstep", data_specs=dict.fromkeys(POLICIES, {**SPEC, "done": tf.TensorSpec([], tf.bool)})
    )
    saved, other = build(), build()
    saved.add_batch({"sheep": {**values(1), "done": np.array([True])}})
    saved.save(tmp_path)
    other.restore(tmp_path)
    with pytest.raises(EmptyBufferError):
        other.sample(1, num_steps=2)
    with pytest.warns(UserWarning, match="a frame followed one with 'done', and no end was told"):
        other.add_batch({"sheep": {**values(2), "done": np.array([False])}})


def leaves_of(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for each in state.values() for leaf in leaves_of(each)]
    return [leaf for each in state for leaf in leaves_of(each)] if isinstance(state, list | tuple) else [state]


@pytest.mark.parametrize("mode", MODES)
def test_a_state_is_arrays_and_plain_values_for_object_stores(mode):
    saved = make(mode, BufferConfig("prioritized", 20, seed=1))
    for number in range(5):
        add(saved, number)
    state = saved.get_state()
    assert {type(leaf) for leaf in leaves_of(state)} <= {np.ndarray, int, float, str, bool, type(None)}
    add(saved, 9)  # the state is a copy
    other = make(mode, BufferConfig("prioritized", 20, seed=1))
    other.set_state(ForkingPickler.loads(ForkingPickler.dumps(state)))  # as actors send it
    assert held(other)["sheep"] == [[0, 1, 2, 3, 4]]
    other.set_state(other.get_state())
    assert held(other)["sheep"] == [[0, 1, 2, 3, 4]]


def test_datasets_and_graphs_made_before_read_what_was_restored(tmp_path):
    saved, other = make(), make()
    add(saved, 5)
    saved.save(tmp_path)
    add(other, 1)
    dataset = other.as_dataset(4, policy="wolf")
    draw = tf.function(lambda: other.sample(4, policy="sheep")[0]["value"])
    assert draw().numpy().tolist() == [1] * 4
    other.restore(tmp_path)
    assert draw().numpy().tolist() == [5] * 4
    items, info = next(iter(dataset))
    agents = [other.agents[number] for number in info.agents.numpy()]
    assert items["value"].numpy().tolist() == [{"wolf_0": 105, "wolf_1": 205}[agent] for agent in agents]


def test_tensorflows_checkpoint_restores_it(tmp_path):
    saved, other = make("lockstep"), make("lockstep")
    add(saved, 5)
    path = tf.train.Checkpoint(buffer=saved).save(str(tmp_path / "model"))
    tf.train.Checkpoint(buffer=other).restore(path).assert_consumed()
    assert held(other) == held(saved)


def test_a_second_save_writes_new_frames_only(tmp_path):
    spec = {"value": tf.TensorSpec([1000], tf.float32)}
    buffer = make(make_buffer=BufferConfig("uniform", 400), data_specs=dict.fromkeys(POLICIES, spec))
    frames = dict.fromkeys(POLICIES, {"value": np.zeros([1, 200, 1000], np.float32)})
    buffer.add_sequence(frames)
    first = buffer.save(tmp_path)
    buffer.add_batch({agent: {"value": np.ones([1, 1000], np.float32)} for agent in POLICIES})
    second = buffer.save(tmp_path)
    assert first.num_bytes_written > 3 * 200 * 4000
    assert second.num_bytes_written < 0.1 * first.num_bytes_written
    other = make(make_buffer=BufferConfig("uniform", 400), data_specs=dict.fromkeys(POLICIES, spec))
    assert other.restore(tmp_path).frames == 2 * 200 + 201


def test_tables_are_saved_by_their_server(tmp_path):
    with make("lockstep", TableConfig("replay", SPEC, max_size=10, sequence_length=1)) as buffer:
        for call in (
            functools.partial(buffer.save, tmp_path),
            buffer.get_state,
            functools.partial(buffer.mark_step, 1),
            functools.partial(buffer.set_state, make("lockstep").get_state()),
        ):
            with pytest.raises(ValueError, match="on a Reverb server, .* checkpoint_dir"):
                call()


def test_a_closed_buffer_is_not_saved(tmp_path):
    buffer = make()
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.save(tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_agents_keep_the_numbers_in_which_they_were_given(mode, tmp_path, caplog):
    saved, other = make(mode), make(mode, data_specs=dict.fromkeys(sorted(POLICIES), SPEC))
    add(saved, 5)
    saved.save(tmp_path)
    other.restore(tmp_path)
    assert (saved.agents, other.agents) == (("wolf_1", "sheep", "wolf_0"), ("sheep", "wolf_0", "wolf_1"))
    if mode == "lockstep":
        items, info = other.sample(1)
        assert {agent: items[agent]["value"].numpy().tolist() for agent in POLICIES} == {
            "sheep": [5],
            "wolf_0": [105],
            "wolf_1": [205],
        }
        assert "another order" not in caplog.text
        return
    assert "info.agents numbers them as ['sheep', 'wolf_0', 'wolf_1'] now, and did as ['wolf_1', 'sheep'" in caplog.text
    for buffer in (saved, other):
        items, info = buffer.sample(20, policy="wolf")
        found = {(buffer.agents[n], v) for n, v in zip(info.agents.numpy(), items["value"].numpy(), strict=True)}
        assert found == {("wolf_0", 105), ("wolf_1", 205)}


def test_transforms_see_a_restored_life_as_one(tmp_path):
    build = functools.partial(
        make, "lockstep", data_specs=dict.fromkeys(POLICIES, {**SPEC, "reward": tf.TensorSpec([], tf.float32)})
    )

    def add_rewarded(buffer: MultiAgentReplayBuffer, number: int, *agents: str) -> None:
        reward = np.array([number], np.float32)
        buffer.add_batch({agent: {**values(number), "reward": reward} for agent in agents})

    saved, other = build(), build()
    for number in range(2):
        add_rewarded(saved, number, *POLICIES)
    saved.save(tmp_path)
    other.restore(tmp_path)
    add_rewarded(other, 2, "sheep")
    add_rewarded(other, 3, "sheep", "wolf_0")
    drawn, info = other.sample(1, window=Window(4))  # there is only one
    transition, _ = n_step(3, 0.5, observation="value", action=None)(*of_agent("wolf_0")(drawn, info))
    # Frames 0, 1 and 3 of one life: at 2 it had no turn.
    assert transition.reward.numpy().tolist() == [0 + 0.5 * 1]
    assert transition.next_observation.numpy().tolist() == [3]


def test_an_iterator_of_all_policies_goes_on_where_it_stood(tmp_path):
    buffers = [make(make_buffer=BufferConfig("uniform", 20, seed=3)) for _ in range(2)]
    for number in range(30):
        add(buffers[0], number)
    iterators = [iter(buffer.as_dataset(4)) for buffer in buffers]
    for _ in range(3):
        next(iterators[0])
    buffers[0].save(tmp_path, iterators={"train": iterators[0]})
    buffers[1].restore(tmp_path, iterators={"train": iterators[1]})
    for _ in range(8):
        assert plain(next(iterators[1])) == plain(next(iterators[0]))
