"""Minibatches of a rollout: each transition once an epoch, seeded, and never of two rollouts."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import RolloutBuffer

SPEC = {
    "obs": tf.TensorSpec([2], tf.int64),
    "reward": tf.TensorSpec([], tf.float32),
    "is_last": tf.TensorSpec([], tf.bool),
    "half": tf.TensorSpec([], tf.bfloat16),
}


def full_buffer(*, num_streams=2, num_steps=5, boundary=2, seed=0, start=0):
    """`obs` holds `100 b + t` twice; in each stream one frame is a boundary frame; reward is `t`."""
    buffer = RolloutBuffer(SPEC, num_streams, num_steps, gamma=0.0, seed=seed)
    add_rollout(buffer, boundary, start)
    return buffer


def add_rollout(buffer, boundary=2, start=0):
    shape = (buffer.batch_size, buffer.num_steps)
    t = np.broadcast_to(np.arange(shape[1]), shape)
    names = start + 100 * np.arange(shape[0])[:, None] + t
    buffer.add_sequence(
        {
            "obs": np.stack([names, names], axis=-1),
            "reward": t.astype(np.float32),
            "is_last": t == boundary,
            "half": tf.cast(t, tf.bfloat16),
        }
    )
    # With gamma 0 the return is the reward and the advantage the reward minus V.
    return buffer.advantages(np.full(shape, 0.5), np.zeros(shape[0]))


TRANSITIONS = [0, 1, 3, 4, 100, 101, 103, 104]


def names(dataset):
    return [items["obs"][..., 0].numpy().tolist() for items, _ in dataset]


def test_each_transition_comes_once_an_epoch_and_boundary_frames_never():
    seen = names(full_buffer().minibatches(3, epochs=2))
    assert [len(batch) for batch in seen] == [3, 3, 2] * 2
    first, second = sum(seen[:3], []), sum(seen[3:], [])
    assert sorted(first) == sorted(second) == TRANSITIONS
    assert first != second


def test_each_row_carries_its_own_numbers():
    buffer = full_buffer()
    for items, info in buffer.minibatches(3):
        t = items["obs"].numpy()[:, 1] % 100
        np.testing.assert_array_equal(info.returns, t)
        np.testing.assert_array_equal(info.advantages, t - 0.5)
        np.testing.assert_array_equal(info.values, np.full(len(t), 0.5))
        np.testing.assert_array_equal(tf.cast(items["half"], tf.float32), t)
        np.testing.assert_array_equal(buffer.get(info.ids)["obs"], items["obs"])
        assert np.all(info.mask) and not np.any(items["is_last"])


def test_whole_streams_come_with_their_mask():
    buffer = full_buffer(num_streams=3)
    batches = list(buffer.minibatches(2, whole_streams=True))
    assert [items["obs"].shape for items, _ in batches] == [[2, 5, 2], [1, 5, 2]]
    rows = np.concatenate([items["obs"][..., 0].numpy() for items, _ in batches])
    np.testing.assert_array_equal(np.sort(rows, axis=0), np.arange(5) + [[0], [100], [200]])
    for items, info in batches:
        np.testing.assert_array_equal(info.mask, ~items["is_last"].numpy())
        np.testing.assert_array_equal(info.returns, np.where(info.mask, items["reward"], 0.5))


def test_equal_seeds_give_equal_orders_and_each_iteration_the_same():
    def orders(buffer_seed, seed):
        return names(full_buffer(seed=buffer_seed).minibatches(3, epochs=2, seed=seed))

    assert orders(1, 5) == orders(2, 5) != orders(1, 6)
    assert orders(1, None) == orders(1, None) != orders(2, None)
    buffer = full_buffer()
    dataset = buffer.minibatches(3, epochs=2)
    assert names(dataset) == names(dataset) != names(buffer.minibatches(3, epochs=2))


@pytest.mark.parametrize(
    ("size", "drop_remainder", "lengths", "static"),
    [(3, False, [3, 3, 2], None), (3, True, [3, 3], 3), (4, False, [4, 4], 4), (100, False, [8], None)],
)
def test_the_last_minibatch_is_smaller_or_left_out(size, drop_remainder, lengths, static):
    dataset = full_buffer().minibatches(size, drop_remainder=drop_remainder)
    assert [len(batch) for batch in names(dataset)] == lengths
    items, info = dataset.element_spec
    assert items["obs"].shape.as_list() == [static, 2]
    assert info.advantages.shape.as_list() == [static]


def test_minibatches_feed_a_function():
    dataset = full_buffer().minibatches(3)

    @tf.function
    def total():
        result = 0.0
        for _, info in dataset:
            result += tf.reduce_sum(info.returns)
        return result

    assert float(total()) == 2 * (0 + 1 + 3 + 4)


def test_advantages_computed_elsewhere_can_be_dealt_out():
    buffer = full_buffer()
    result = tf.function(lambda: buffer.advantages(tf.zeros([2, 5]), tf.zeros([2])))()
    doubled = result._replace(advantages=2 * result.advantages)
    for items, info in buffer.minibatches(3, advantages=doubled):
        np.testing.assert_array_equal(info.advantages, 2 * items["reward"])


def test_a_cleared_rollout_is_not_mixed_with_the_next():
    buffer = full_buffer()
    dataset = buffer.minibatches(1, epochs=100)
    iterator = iter(dataset)
    next(iterator)
    buffer.clear()
    with pytest.raises(tf.errors.InvalidArgumentError, match="was cleared"):
        names(iterator)
    add_rollout(buffer, start=1000)
    with pytest.raises(tf.errors.InvalidArgumentError, match="was cleared"):
        names(dataset)
    assert sorted(sum(names(buffer.minibatches(3)), [])) == [1000 + name for name in TRANSITIONS]


@pytest.mark.parametrize("change", ["clear", "end_stream", "next_rollout"])
def test_advantages_of_another_state_are_not_dealt_out(change):
    buffer = full_buffer()
    if change == "end_stream":
        buffer.end_stream(0)
    else:
        buffer.clear()
    if change == "next_rollout":
        shape = (2, 5)
        buffer.add_sequence(
            {
                "obs": np.zeros([*shape, 2], np.int64),
                "reward": np.zeros(shape, np.float32),
                "is_last": np.zeros(shape, bool),
                "half": tf.zeros(shape, tf.bfloat16),
            }
        )
    with pytest.raises(ValueError, match=r"no advantages of this rollout.*call advantages\(\)"):
        buffer.minibatches(3)


def test_minibatches_leave_the_rollout_as_it_is():
    buffer = full_buffer()
    names(buffer.minibatches(3))
    assert len(buffer) == 10
    assert sorted(sum(names(buffer.minibatches(3)), [])) == TRANSITIONS


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be at least 1"),
        ({"size": 2.5}, TypeError, "size must be an int"),
        ({"size": 2, "epochs": 0}, ValueError, "epochs must be at least 1"),
        ({"size": 2, "seed": -1}, ValueError, "seed must be an int of at least 0"),
        ({"size": 9, "drop_remainder": True}, ValueError, "minibatches of 9.*has 8 transitions"),
        ({"size": 3, "drop_remainder": True, "whole_streams": True}, ValueError, "minibatches of 3.*has 2 streams"),
        ({"size": 2, "advantages": np.zeros([2, 5])}, TypeError, "advantages must be what advantages"),
    ],
)
def test_bad_arguments_are_refused(keywords, error, message):
    with pytest.raises(error, match=message):
        full_buffer().minibatches(**keywords)


def test_advantages_of_another_shape_are_refused():
    buffer, other = full_buffer(), full_buffer(num_steps=4)
    result = other.advantages(np.zeros([2, 4]), np.zeros([2]))
    with pytest.raises(ValueError, match=r"advantages.advantages: expected \[2, 5\] float32, got \[2, 4\]"):
        buffer.minibatches(3, advantages=result)
    right = buffer.advantages(np.zeros([2, 5]), np.zeros([2]))
    with pytest.raises(ValueError, match=r"advantages.mask: expected \[2, 5\] bool"):
        buffer.minibatches(3, advantages=right._replace(mask=tf.ones([2, 5])))
    buffer.clear()
    with pytest.raises(ValueError, match="holds 0 of 5 steps"):
        buffer.minibatches(3, advantages=right)


def test_minibatches_are_made_outside_of_functions():
    buffer = full_buffer()
    with pytest.raises(ValueError, match="outside of the tf.function"):
        tf.function(lambda: buffer.minibatches(3).cardinality(), autograph=False)()


def test_a_rollout_of_boundary_frames_alone_has_no_minibatch():
    buffer = RolloutBuffer({name: SPEC[name] for name in ("reward", "is_last")}, 1, 1)
    buffer.add_batch({"reward": np.zeros([1], np.float32), "is_last": np.array([True])})
    buffer.advantages([[0.5]], [0.5])
    assert list(buffer.minibatches(3, epochs=2)) == []


def test_a_dataset_holds_its_buffer_and_nothing_else_does():
    buffer = full_buffer()
    reference, dataset = weakref.ref(buffer), buffer.minibatches(3)
    del buffer
    gc.collect()
    assert sorted(sum(names(dataset), [])) == TRANSITIONS
    del dataset
    gc.collect()
    assert reference() is None
