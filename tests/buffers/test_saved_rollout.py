"""A restored buffer of rollouts goes on as the one that was saved: half a rollout, a whole one, orders to come."""

from __future__ import annotations

import copy
import json
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import EmptyBufferError, RolloutBuffer

FLOAT, FLAG = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.bool)
SPECS = {
    "plain": {"reward": FLOAT, "obs": tf.TensorSpec([2], tf.int64)},
    "flags": {"reward": FLOAT, "discount": FLOAT, "terminated": FLAG, "truncated": FLAG},
    "boundary frames": {"reward": FLOAT, "is_last": FLAG, "is_terminal": FLAG},
}


def rollouts(num_steps: int = 5, spec: str = "plain", batch_size: int = 2, **arguments: Any) -> RolloutBuffer:
    return RolloutBuffer(SPECS[spec], batch_size, num_steps, **{"seed": 3, **arguments})


def steps(spec: str, first: int, num: int, batch_size: int = 2) -> dict[str, np.ndarray]:
    """Steps `[B, num]`: rewards tell stream and time; every fourth step ends an episode, every eighth for real."""
    time = np.arange(first, first + num) + np.zeros([batch_size, 1], np.int64)
    reward = (time + 1000 * np.arange(batch_size)[:, None]).astype(np.float32)
    ends = time % 4 == 3
    columns = {
        "reward": reward,
        "obs": np.stack([time, -time], -1),
        "discount": np.where(time % 3 == 0, 0.5, 1).astype(np.float32),
        "terminated": time % 8 == 7,
        "truncated": ends,
        "is_last": ends,
        "is_terminal": time % 8 == 7,
    }
    return {name: columns[name] for name in SPECS[spec]}


def add(buffer: RolloutBuffer, spec: str, first: int, num: int) -> list[Any]:
    ids = buffer.add_sequence(steps(spec, first, num, buffer.batch_size))
    return np.asarray(ids).tolist()


def plain(nest: Any) -> Any:
    return [np.asarray(leaf).tolist() for leaf in tf.nest.flatten(nest)]


def train(buffer: RolloutBuffer, computes: bool = True) -> list[Any]:
    """What a whole rollout is trained on: its advantages, and two epochs of minibatches."""
    told = []
    shape = [buffer.batch_size, buffer.num_steps]
    if computes:
        told = plain(buffer.advantages(np.full(shape, 0.5), np.ones(shape[:1]), np.full(shape, 2.0)))
    return told + [plain(minibatch) for minibatch in buffer.minibatches(3, epochs=2)]


def seen_of(buffer: RolloutBuffer) -> list[Any]:
    return [plain(buffer.gather_all()), len(buffer), buffer.stats()]


# The same rollout


@pytest.mark.parametrize(
    "spec, held", [("plain", 0), ("flags", 1), ("boundary frames", 1), ("flags", 3), ("boundary frames", 5)]
)
def test_a_rollout_goes_on_at_the_step_at_which_it_was_saved(spec, held, tmp_path):
    buffer = rollouts(spec=spec)
    # A rollout before, so that ids do not begin at 0, and the episode that it ends in is open.
    add(buffer, spec, 0, 5)
    train(buffer)
    buffer.clear()
    add(buffer, spec, 5, held)
    buffer.save(tmp_path)
    others = [rollouts(spec=spec) for _ in range(2)]
    others[0].restore(tmp_path)
    others[1].set_state(buffer.get_state())
    told = []
    for each in [buffer, *others]:
        told.append([seen_of(each), add(each, spec, 5 + held, 5 - held), train(each), seen_of(each)])
        each.clear()
        told[-1] += [add(each, spec, 10, 2), plain(each.sample(3, 2)), seen_of(each)]
    assert told[0] == told[1] == told[2]
    assert told[0][-3] == [[20, 22], [21, 23]]


GO_ON = """
import json, sys
import numpy as np, tensorflow as tf
from replayfeed.buffers import EmptyBufferError, RolloutBuffer

def go_on(buffer):
    told = []
    for rollout in range(2):
        for step in range(len(buffer) // 2, 6):
            items = {"reward": np.float32([step, 10 * step]), "truncated": np.array([step == 3, False])}
            told.append(buffer.add_batch(items).tolist())
        result = buffer.advantages(np.full([2, 6], 0.5), [1.0, 1.0], np.full([2, 6], 2.0))
        told.append([leaf.numpy().tolist() for leaf in result])
        for items, info in buffer.minibatches(5, epochs=2):
            told.append([leaf.numpy().tolist() for leaf in (items["reward"], *info)])
        told.append(buffer.sample(4, 2)[1].ids.numpy().tolist())
        told.append(repr(buffer.stats()))
        buffer.clear()
    return told
"""

IN_A_NEW_PROCESS = (
    GO_ON
    + """
spec = {"reward": tf.TensorSpec([], tf.float32), "truncated": tf.TensorSpec([], tf.bool)}
buffer = RolloutBuffer(spec, 2, 6, seed=4)
buffer.restore(sys.argv[1])
print(json.dumps(go_on(buffer)))
"""
)


def test_fr_035_a_new_process_goes_on_with_half_a_rollout(run_python, tmp_path):
    names: dict[str, Any] = {}
    exec(GO_ON, names)
    spec = {"reward": FLOAT, "truncated": FLAG}
    buffer = RolloutBuffer(spec, 2, 6, seed=4)
    names["go_on"](buffer)
    for step in range(4):
        buffer.add_batch({"reward": np.float32([step, 10 * step]), "truncated": np.array([False, step == 1])})
    buffer.save(tmp_path)
    told = json.loads(run_python(IN_A_NEW_PROCESS, str(tmp_path)))
    expected = json.loads(json.dumps(names["go_on"](buffer)))
    assert told[:2] == [[32, 33], [34, 35]]
    for one, other in zip(told, expected, strict=True):
        assert one == other


def test_advantages_of_the_rollout_as_it_is_are_dealt_out_after_a_restore():
    buffer = rollouts()
    add(buffer, "plain", 0, 5)
    expected_advantages = buffer.advantages(np.full([2, 5], 0.5), [0.0, 0.0])
    other = rollouts()
    other.set_state(buffer.get_state())
    batches = list(other.minibatches(10))
    assert [plain(batch) for batch in batches] == [plain(batch) for batch in buffer.minibatches(10)]
    np.testing.assert_array_equal(
        np.sort(batches[0][1].advantages), np.sort(expected_advantages.advantages.numpy().reshape(-1))
    )


def test_advantages_of_a_rollout_that_has_changed_since_are_not_restored():
    buffer = rollouts()
    add(buffer, "plain", 0, 5)
    buffer.advantages(np.zeros([2, 5]), [0.0, 0.0])
    buffer.end_stream(0)
    other = rollouts()
    other.set_state(buffer.get_state())
    for each in (buffer, other):
        with pytest.raises(ValueError, match="there are no advantages of this rollout"):
            each.minibatches(2)


def test_a_stream_that_was_ended_is_ended_after_a_restore():
    buffer = rollouts(3, gamma=1.0, lam=1.0)
    add(buffer, "plain", 0, 1)
    buffer.end_stream(1)
    other = rollouts(3, gamma=1.0, lam=1.0)
    other.set_state(buffer.get_state())
    add(other, "plain", 1, 2)
    result = other.advantages(np.zeros([2, 3]), [100.0, 100.0], np.full([2, 3], 7.0))
    # Rewards 0 1 2 and 1000 1001 1002; the second stream is cut after its first, and goes on with a value of 7.
    assert result.returns.numpy().tolist() == [[103.0, 103.0, 102.0], [1007.0, 2103.0, 1102.0]]


def test_orders_of_minibatches_go_on_where_they_were():
    buffer = rollouts()
    add(buffer, "plain", 0, 5)
    first = train(buffer)
    state = buffer.get_state()
    second, third = train(buffer, computes=False), train(buffer, computes=False)
    other = rollouts()
    other.set_state(state)
    assert [train(other, computes=False), train(other, computes=False)] == [second, third]
    assert first[4:] != second != third


def test_minibatches_go_on_in_the_middle_of_an_epoch_by_their_seed():
    buffer, other = rollouts(), rollouts()
    add(buffer, "plain", 0, 5)
    buffer.advantages(np.zeros([2, 5]), [0.0, 0.0])
    all_of_them = [plain(minibatch) for minibatch in buffer.minibatches(3, epochs=2, seed=5)]
    other.set_state(buffer.get_state())
    assert [plain(minibatch) for minibatch in other.minibatches(3, epochs=2, seed=5).skip(6)] == all_of_them[6:]


def test_minibatches_made_before_a_restore_raise_instead_of_mixing_rollouts():
    """Ids of the restored rollout may be those of the rollout that was there."""
    buffer, other = rollouts(), rollouts()
    add(buffer, "plain", 0, 5)
    add(other, "plain", 70, 5)
    other.advantages(np.zeros([2, 5]), [0.0, 0.0])
    dataset = other.minibatches(4)
    assert len(list(dataset)) == 3
    other.set_state(buffer.get_state())
    with pytest.raises(tf.errors.InvalidArgumentError, match="was restored since these minibatches were made"):
        list(dataset)
    other.advantages(np.zeros([2, 5]), [0.0, 0.0])
    assert len(list(other.minibatches(4))) == 3


def test_advantages_in_a_function_read_what_was_restored():
    buffer, other = rollouts(), rollouts()
    add(buffer, "plain", 0, 5)
    add(other, "plain", 70, 5)
    returns = tf.function(lambda: other.advantages(tf.zeros([2, 5]), tf.zeros([2]), method="monte_carlo").returns)
    before = returns().numpy()
    other.set_state(buffer.get_state())
    expected = buffer.advantages(np.zeros([2, 5]), [0.0, 0.0], method="monte_carlo").returns
    np.testing.assert_array_equal(returns(), expected)
    assert (before != returns().numpy()).any()


def test_a_rollout_that_is_restored_over_another_one_keeps_nothing_of_it():
    buffer, other = rollouts(spec="flags"), rollouts(spec="flags")
    add(buffer, "flags", 1, 2)
    add(other, "flags", 70, 5)
    train(other)
    other.clear()
    add(other, "flags", 75, 4)
    other.set_state(buffer.get_state())
    with pytest.raises(ValueError, match="there are no advantages of this rollout"):
        other.minibatches(2)
    assert add(other, "flags", 3, 3) == add(buffer, "flags", 3, 3) == [[4, 6, 8], [5, 7, 9]]
    assert train(other) == train(buffer)
    assert seen_of(other) == seen_of(buffer)


def test_a_checkpoint_of_tensorflow_saves_and_restores_a_rollout(tmp_path):
    buffer, step = rollouts(), tf.Variable(7)
    add(buffer, "plain", 0, 3)
    path = tf.train.Checkpoint(buffer=buffer, step=step).save(tmp_path / "checkpoint")
    other, other_step = rollouts(), tf.Variable(0)
    tf.train.Checkpoint(buffer=other, step=other_step).restore(path).assert_consumed()
    assert other_step.numpy() == 7
    assert add(other, "plain", 3, 2) == add(buffer, "plain", 3, 2)
    assert train(other) == train(buffer)


def test_a_closed_buffer_is_not_saved(tmp_path):
    buffer = rollouts()
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.save(tmp_path)


def test_it_cannot_be_cut_back():
    with pytest.raises(ValueError, match="a RolloutBuffer cannot be cut back"):
        rollouts().mark_step(5)


@hypothesis.given(
    spec=st.sampled_from(sorted(SPECS)),
    num_steps=st.integers(1, 7),
    batch_size=st.integers(1, 3),
    history=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 7)),
            st.tuples(st.just("end"), st.integers(0, 2)),
            st.tuples(st.sampled_from(["train", "clear", "sample", "restore"]), st.integers(0, 3)),
        ),
        max_size=14,
    ),
)
@hypothesis.settings(max_examples=25, deadline=None)
def test_whatever_happened_before_a_save_the_same_happens_after_it(spec, num_steps, batch_size, history):
    buffers = [rollouts(num_steps, spec, batch_size)]
    time = 0
    for what, number in history:
        told = []
        for buffer in buffers:
            if what == "add" and len(buffer) // batch_size + number <= num_steps:
                told.append(add(buffer, spec, time, number))
            elif what == "end" and number < batch_size:
                buffer.end_stream(number)
            elif what == "train" and len(buffer) == batch_size * num_steps:
                told.append(trained(buffer))
            elif what == "sample" and len(buffer):
                told.append(sampled(buffer, number + 1))
            elif what == "clear":
                buffer.clear()
        assert all(one == told[0] for one in told)
        time += number
        if what == "restore":
            copied = rollouts(num_steps, spec, batch_size)
            if number:  # over something else
                add(copied, spec, 500, min(number, num_steps))
            copied.set_state(buffers[0].get_state())
            buffers = [*buffers[:2], copied]
        seen = [seen_of(buffer) for buffer in buffers]
        assert all(one == seen[0] for one in seen)


def sampled(buffer: RolloutBuffer, num: int) -> Any:
    try:
        return plain(buffer.sample(num))
    except EmptyBufferError as error:  # boundary frames start nothing
        return str(error)


def trained(buffer: RolloutBuffer) -> list[Any]:
    """Advantages, and the order of the next minibatches."""
    shape = [buffer.batch_size, buffer.num_steps]
    result = buffer.advantages(np.full(shape, 0.5), np.ones(shape[:1]), np.full(shape, 2.0))
    if not result.mask.numpy().any():
        return plain(result)
    return plain(result) + [plain(minibatch) for minibatch in buffer.minibatches(2)]


# Other settings


def test_half_a_rollout_goes_on_in_a_longer_one():
    buffer = rollouts(5)
    add(buffer, "plain", 0, 5)
    buffer.clear()
    add(buffer, "plain", 5, 3)
    other = rollouts(7)
    with pytest.raises(ValueError, match="num_steps: stored 5, here 7"):
        other.set_state(buffer.get_state())
    report = other.set_state(buffer.get_state(), "resize")
    assert (report.frames, report.dropped, report.changed) == (6, 0, {"num_steps": (5, 7)})
    assert add(other, "plain", 8, 4) == [[16, 18, 20, 22], [17, 19, 21, 23]]
    assert other.gather_all()["obs"][0, :, 0].numpy().tolist() == [5, 6, 7, 8, 9, 10, 11]
    # The same as one that was that long from the beginning.
    twin = rollouts(7)
    add(twin, "plain", 5, 7)
    for one, same in zip(train(other)[:4], train(twin)[:4], strict=True):
        np.testing.assert_array_equal(one, same)
    other.clear()
    assert add(other, "plain", 12, 7)[0] == [24, 26, 28, 30, 32, 34, 36]


def test_a_whole_rollout_in_a_longer_one_is_half_a_rollout_without_advantages():
    buffer, other = rollouts(3), rollouts(5)
    add(buffer, "plain", 0, 3)
    train(buffer)
    other.set_state(buffer.get_state(), "resize")
    with pytest.raises(ValueError, match="there are no advantages of this rollout .6 of 10|3 of 5 steps"):
        other.minibatches(2)
    add(other, "plain", 3, 2)
    train(other)


def test_a_rollout_that_fits_goes_on_in_a_shorter_one():
    buffer, other = rollouts(7), rollouts(4)
    add(buffer, "plain", 0, 7)
    buffer.clear()
    add(buffer, "plain", 7, 3)
    other.set_state(buffer.get_state(), "resize")
    assert add(other, "plain", 10, 1) == [[20], [21]]
    train(other)
    assert other.gather_all()["obs"][1, :, 0].numpy().tolist() == [7, 8, 9, 10]


def test_a_rollout_that_does_not_fit_is_refused_because_its_first_steps_would_be_missing():
    buffer, other = rollouts(7), rollouts(4)
    add(buffer, "plain", 0, 5)
    add(other, "plain", 50, 1)
    with pytest.raises(ValueError, match="the saved rollout has 5 steps, and num_steps is 4 here"):
        other.set_state(buffer.get_state(), "resize")
    assert other.gather_all()["obs"][0, :, 0].numpy().tolist() == [50]
    other.set_state(buffer.get_state(), "keep")
    assert other.num_steps == 7 and add(other, "plain", 5, 2) == [[10, 12], [11, 13]]


def test_keep_is_refused_once_a_graph_knows_how_long_the_rollout_is():
    buffer, other = rollouts(7), rollouts(4)
    add(other, "plain", 0, 4)
    tf.function(lambda: other.advantages(tf.zeros([2, 4]), tf.zeros([2])))()
    with pytest.raises(ValueError, match="on_mismatch='keep'"):
        other.set_state(buffer.get_state(), "keep")


def test_with_another_gamma_advantages_are_computed_anew():
    buffer, other = rollouts(gamma=0.9), rollouts(gamma=0.5)
    add(buffer, "plain", 0, 5)
    train(buffer)
    other.set_state(buffer.get_state(), "resize")
    with pytest.raises(ValueError, match="there are no advantages of this rollout"):
        other.minibatches(2)
    twin = rollouts(gamma=0.5)
    add(twin, "plain", 0, 5)
    assert train(other)[:4] == train(twin)[:4]


def test_with_a_seed_of_its_own_a_buffer_draws_its_own_orders():
    buffer, twin = rollouts(), rollouts(seed=8)
    for each in (buffer, twin):
        add(each, "plain", 0, 5)
    other = rollouts(seed=8)
    other.set_state(buffer.get_state(), "resize")
    assert train(other) == train(twin) != train(buffer)


@pytest.mark.parametrize("setting", [{"reward_field": "extra"}, {"final_frame": "observation"}, {"batch_size": 1}])
def test_settings_by_which_frames_were_read_cannot_be_resized(setting):
    spec = {"reward": FLOAT, "extra": FLOAT}
    buffer = RolloutBuffer(spec, 2, 3, seed=0)
    other = RolloutBuffer(**{"data_spec": spec, "batch_size": 2, "num_steps": 3, "seed": 0, **setting})
    with pytest.raises(ValueError, match=f"cannot change these: {next(iter(setting))}"):
        other.set_state(buffer.get_state(), "resize")


# What is refused

REFUSED = {
    "no frames": (lambda state: state["parts"].clear(), "no frames"),
    "ids of another rollout": (lambda state: state["values"].update(first_id=2), "from 2 on"),
    "too few steps noted": (lambda state: state["arrays"].update(ends=np.zeros([2, 2], bool)), "'ends'"),
    "rewards of another kind": (lambda state: state["arrays"].update(rewards=np.zeros([5, 2])), "'rewards'"),
    "half of the advantages": (lambda state: state["arrays"].pop("estimates/returns"), "'estimates/returns'"),
    "random numbers": (lambda state: state["values"].update(random={}), "random numbers"),
    "no random numbers": (lambda state: state["values"].pop("random"), "random numbers"),
    "no rewards": (lambda state: state["arrays"].pop("rewards"), "'rewards' .* got none"),
}


@pytest.mark.parametrize("change, message", REFUSED.values(), ids=REFUSED.keys())
def test_a_state_that_contradicts_itself_is_refused_and_nothing_changes(change, message):
    buffer, other = rollouts(), rollouts()
    add(buffer, "plain", 0, 5)
    train(buffer)
    add(other, "plain", 70, 2)
    state = copy.deepcopy(buffer.get_state())
    change(state)
    with pytest.raises(ValueError, match=message):
        other.set_state(state)
    assert add(other, "plain", 72, 1) == [[4], [5]]
    assert other.gather_all()["obs"][0, :, 0].numpy().tolist() == [70, 71, 72]


def test_frames_of_another_spec_are_refused_by_the_fields_that_differ():
    with pytest.raises(ValueError, match="data_spec differs"):
        rollouts(spec="flags").set_state(rollouts(spec="plain").get_state())
