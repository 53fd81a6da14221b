"""The contract, on every buffer and backend: a new buffer adds a line to `BACKENDS` in conftest.py.

Data is one int64 counter a frame where possible, so that expected values can be read off: the
frame of stream `b` at time `t` holds `100 * b + t`.
"""

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    BufferInfo,
    EmptyBufferError,
    ReplayBuffer,
    Window,
)

from .steps import FIRST, LAST, MID, STEP, Step

COUNTER = tf.TensorSpec([], tf.int64, "counter")


def counters(num_streams: int, times: Any) -> np.ndarray:
    """Values `100 * b + t`, `[B, T]`."""
    return 100 * np.arange(num_streams)[:, None] + np.asarray(times)


def add_counters(buffer: ReplayBuffer, times: Any) -> None:
    for t in times:
        buffer.add_batch(counters(buffer.batch_size, [t])[:, 0])


def drawn_starts(buffer: ReplayBuffer, num_steps: int, draws: int = 400) -> set[int]:
    """First values of many windows; checks on the way that each is consecutive."""
    items, _ = buffer.sample(draws, num_steps)
    values = np.asarray(items.value if isinstance(items, Step) else items)
    np.testing.assert_array_equal(values, values[:, :1] + np.arange(num_steps))
    return set(values[:, 0].tolist())


# What a buffer is


@pytest.mark.parametrize("sample_batch_size", [None, 4])
def test_a_dataset_of_draws_says_that_it_has_no_end(make, sample_batch_size):
    buffer = make(COUNTER, steps=10)
    endless = (tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY)
    assert int(buffer.as_dataset(sample_batch_size).cardinality()) in endless


@pytest.mark.by_frames
def test_properties_are_the_constructors_arguments(make):
    buffer = make(COUNTER, batch_size=3, steps=10)
    assert buffer.data_spec is COUNTER
    assert buffer.batch_size == 3
    assert buffer.capacity == 30 and type(buffer.capacity) is int
    assert buffer.capacity_unit == ("items" if make.backend.startswith("served") else "frames")


@pytest.mark.by_frames
@pytest.mark.by_streams
def test_an_empty_buffer_holds_nothing(make):
    buffer = make(COUNTER, batch_size=2)
    assert len(buffer) == 0
    assert int(buffer.num_frames()) == 0
    assert buffer.gather_all().shape == (2, 0)


# Writing


@pytest.mark.by_frames
def test_add_batch_returns_ids_that_are_never_given_twice(make):
    buffer = make(COUNTER, batch_size=2, steps=4)
    ids = [buffer.add_batch(np.array([t, 100 + t])) for t in range(10)]
    assert all(each.dtype == np.int64 and each.shape == (2,) for each in ids)
    assert len(set(np.concatenate(ids).tolist())) == 20


def test_add_batch_returns_a_tensor_for_tensors(make):
    ids = make(COUNTER, batch_size=2).add_batch(tf.constant([1, 101], tf.int64))
    assert isinstance(ids, tf.Tensor) and ids.dtype == tf.int64 and ids.shape == (2,)


@pytest.mark.by_frames
@pytest.mark.by_streams
def test_add_batch_inside_a_tf_function_adds_at_each_call(make):
    buffer = make(COUNTER, batch_size=2)

    @tf.function
    def add_ten() -> tf.Tensor:
        ids = tf.zeros([2], tf.int64)
        for t in tf.range(10, dtype=tf.int64):
            ids = buffer.add_batch(tf.stack([t, 100 + t]))
        return ids

    last_ids = add_ten()
    assert last_ids.shape == (2,)
    np.testing.assert_array_equal(buffer.gather_all(), counters(2, range(10)))


@pytest.mark.by_streams
def test_add_sequence_is_the_same_as_single_adds(make):
    single, block = make(STEP, batch_size=2, num_steps=2), make(STEP, batch_size=2, num_steps=2)
    step_types = np.array([[FIRST, MID, LAST, FIRST, MID], [MID, LAST, FIRST, MID, MID]], np.int32)
    values = counters(2, range(5))
    for t in range(5):
        single.add_batch(Step(step_types[:, t], values[:, t]))
    assert block.add_sequence(Step(step_types, values)).shape == (2, 5)
    for buffer in (single, block):
        assert drawn_starts(buffer, 2) == {0, 1, 3, 100, 102, 103}


def test_add_sequence_of_no_steps_writes_nothing(make):
    buffer = make(COUNTER, batch_size=2)
    assert buffer.add_sequence(np.zeros([2, 0], np.int64)).shape == (2, 0)
    assert len(buffer) == 0


@pytest.mark.by_frames
@pytest.mark.by_streams
def test_add_sequence_longer_than_the_capacity_keeps_the_newest(make):
    buffer = make(COUNTER, batch_size=2, steps=4)
    buffer.add_sequence(counters(2, range(11)))
    np.testing.assert_array_equal(buffer.gather_all(), counters(2, range(7, 11)))


def test_add_sequence_inside_a_tf_function(make):
    buffer = make(COUNTER, batch_size=1)
    tf.function(lambda: buffer.add_sequence(tf.range(5, dtype=tf.int64)[None]))()
    np.testing.assert_array_equal(buffer.gather_all(), [[0, 1, 2, 3, 4]])


def test_input_is_copied(make):
    """FR-010: what the caller does with its arrays afterwards changes nothing."""
    buffer = make(COUNTER, batch_size=1)
    source = np.arange(5)
    before = source.copy()
    buffer.add_sequence(source[None])
    np.testing.assert_array_equal(source, before)
    source[:] = -1
    np.testing.assert_array_equal(buffer.gather_all(), [[0, 1, 2, 3, 4]])


@pytest.mark.by_frames
@pytest.mark.by_streams
def test_capacity_evicts_the_oldest(make):
    buffer = make(COUNTER, batch_size=1, steps=3)
    add_counters(buffer, range(5))
    np.testing.assert_array_equal(buffer.gather_all(), [[2, 3, 4]])
    assert len(buffer) == 3


# Refusing what does not fit

FIELDS = {"action": tf.TensorSpec([], tf.int32), "obs": tf.TensorSpec([5], tf.float32)}
GOOD = {"action": np.zeros([1], np.int32), "obs": np.zeros([1, 5], np.float32)}

WRONG_ITEMS = {
    "FR-047 no batch axis": (
        {"obs": np.zeros([5], np.float32)},
        r"field 'obs': expected \[1, 5\] float32, got \[5\] float32; add the batch axis \[1\]",
    ),
    "FR-047 scalar without batch axis": (
        {"action": np.int32(3)},
        r"field 'action': expected \[1\] int32, got \[\] int32; add the batch axis \[1\]",
    ),
    "FR-049 one axis too many": (
        {"obs": np.zeros([1, 1, 5], np.float32)},
        r"field 'obs': expected \[1, 5\] float32, got \[1, 1, 5\] float32",
    ),
    "T6 no broadcast over streams": (
        {"obs": np.zeros([2, 5], np.float32)},
        r"field 'obs': expected \[1, 5\] float32, got \[2, 5\] float32",
    ),
    "FR-053 float64 for float32": (
        {"obs": np.zeros([1, 5])},
        r"field 'obs': expected \[1, 5\] float32, got \[1, 5\] float64; convert it, or build the buffer with cast=True",
    ),
    "FR-053 float64 tensor": (
        {"obs": tf.zeros([1, 5], tf.float64)},
        r"field 'obs': expected \[1, 5\] float32, got \[1, 5\] float64",
    ),
    "FR-053 int64 for int32": (
        {"action": np.zeros([1], np.int64)},
        r"field 'action': expected \[1\] int32, got \[1\] int64",
    ),
    "float for int": (
        {"action": np.zeros([1], np.float32)},
        r"field 'action': expected \[1\] int32, got \[1\] float32\.",
    ),
    "plain number that does not survive": (
        {"action": [2**40 + 1]},
        r"field 'action': 1099511627777 does not survive in int32",
    ),
    "plain float for int": ({"action": [1.5]}, r"field 'action': 1.5 does not survive in int32"),
    "plain int that a float cannot hold": (
        {"obs": [[2**24 + 1, 0, 0, 0, 0]]},
        r"field 'obs': 16777217 does not survive",
    ),
    "masked array": (
        {"obs": np.ma.masked_array(np.zeros([1, 5], np.float32), mask=True)},
        r"field 'obs': expected \[1, 5\] float32, got a masked array",
    ),
    "no number": ({"action": ["left"]}, r"field 'action': expected \[1\] int32, got str"),
}


@pytest.mark.parametrize("case", WRONG_ITEMS)
def test_wrong_items_are_refused_by_field_and_leave_the_buffer_as_it_was(make, case):
    change, message = WRONG_ITEMS[case]
    buffer = make(FIELDS)
    with pytest.raises(ValueError, match=message):
        buffer.add_batch({**GOOD, **change})
    assert len(buffer) == 0
    ids = buffer.add_batch(GOOD)
    assert len(buffer) == 1 and ids.shape == (1,)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({"obs": GOOD["obs"]}, r"missing \['action'\]"),
        ({**GOOD, "reward": np.zeros([1])}, r"extra \['reward'\]"),
        ((GOOD["obs"], GOOD["action"]), r"missing \['action', 'obs'\]; extra \['0', '1'\]"),
    ],
)
def test_missing_and_extra_fields_are_named(make, items, message):
    buffer = make(FIELDS)
    with pytest.raises(ValueError, match=message):
        buffer.add_batch(items)
    assert len(buffer) == 0


def test_a_wrong_step_in_a_sequence_writes_none_of_it(make):
    buffer = make(FIELDS)
    items = {"action": np.zeros([1, 4], np.int32), "obs": np.zeros([1, 3, 5], np.float32)}
    with pytest.raises(ValueError, match=r"field 'obs': expected \[1, 4, 5\] float32, got \[1, 3, 5\] float32"):
        buffer.add_sequence(items)
    assert len(buffer) == 0


def test_structure_dtype_and_static_shape_are_refused_when_a_function_is_traced(make):
    buffer = make(FIELDS)
    with pytest.raises(ValueError, match=r"field 'obs': expected \[1, 5\] float32, got \[5\] float32"):
        tf.function(
            lambda: buffer.add_batch({"action": tf.zeros([1], tf.int32), "obs": tf.zeros([5])})
        ).get_concrete_function()


def test_a_shape_known_only_at_run_time_is_an_invalid_argument_with_the_same_text(make):
    buffer = make(FIELDS)

    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.float32)])
    def add(obs: tf.Tensor) -> tf.Tensor:
        return buffer.add_batch({"action": tf.zeros([1], tf.int32), "obs": obs})

    add(tf.zeros([1, 5]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"field 'obs': expected \[1, 5\] float32, got \[2, 5\] float32"
    ):
        add(tf.zeros([2, 5]))
    assert len(buffer) == 1


def test_plain_numbers_take_the_fields_dtype(make):
    buffer = make(FIELDS)
    buffer.add_batch({"action": [3], "obs": [[1, 2, 3, 4.5, 5]]})
    stored = buffer.gather_all()
    assert stored["action"].numpy().tolist() == [[3]]
    assert stored["obs"].numpy().tolist() == [[[1.0, 2.0, 3.0, 4.5, 5.0]]]


@pytest.mark.by_frames
@pytest.mark.by_streams
def test_plain_numbers_of_64_bits_are_kept_exactly(make):
    buffer = make({"x": tf.TensorSpec([], tf.uint64)}, batch_size=2)
    buffer.add_batch({"x": [2**63 + 1, 1]})
    assert buffer.gather_all()["x"].numpy().tolist() == [[2**63 + 1], [1]]


def test_arrays_of_another_byte_order_are_read_right(make):
    buffer = make({"x": tf.TensorSpec([], tf.float32)})
    buffer.add_batch({"x": np.array([1.5], ">f4")})
    assert buffer.gather_all()["x"].numpy().tolist() == [[1.5]]


def test_a_variable_is_taken_for_its_value(make):
    buffer = make({"x": tf.TensorSpec([], tf.float32)})
    variable = tf.Variable([1.5])
    buffer.add_batch({"x": variable})
    tf.function(lambda: buffer.add_batch({"x": variable}))()
    assert buffer.gather_all()["x"].numpy().tolist() == [[1.5, 1.5]]


CASTS = [
    (tf.float32, np.float64, [0.5], True),
    (tf.int64, np.int32, [7], True),
    (tf.int32, np.int64, [7], True),
    (tf.int32, np.int64, [2**40 + 1], False),
    (tf.uint8, np.int64, [300], False),
    (tf.uint8, np.int64, [-1], False),
    (tf.int64, np.uint64, [2**63], False),
    (tf.int32, np.float32, [1.0], False),
    (tf.float32, np.int32, [1], False),
    (tf.float32, np.float64, [1e300], False),
    (tf.float32, np.float64, [np.inf], True),
    (tf.bool, np.uint8, [1], False),
]


@pytest.mark.parametrize(("dtype", "given", "value", "survives"), CASTS)
@pytest.mark.parametrize("tensors", [False, True])
def test_cast_converts_within_a_kind_and_only_what_survives(make, dtype, given, value, survives, tensors):
    """FR-053."""
    buffer = make({"x": tf.TensorSpec([], dtype)}, cast=True)
    array = np.array(value, given)
    items = {"x": tf.constant(array) if tensors else array}
    if survives:
        buffer.add_batch(items)
        assert buffer.gather_all()["x"].numpy().tolist() == [value]
    else:
        with pytest.raises(ValueError, match="field 'x'"):
            buffer.add_batch(items)
        assert len(buffer) == 0


@pytest.mark.parametrize(
    ("priorities", "message"),
    [
        ([-1.0], r"priorities\[0\] is -1.0: a priority must be finite and at least 0"),
        ([np.nan], r"priorities\[0\] is nan"),
        ([np.inf], r"priorities\[0\] is inf"),
        ([1.0, 1.0], r"priorities: expected shape \[1\], got \[2\]"),
    ],
)
def test_bad_priorities_are_refused_before_anything_is_written(make, priorities, message):
    """R1: on Reverb 0.14 a negative one would make the table hang for ever."""
    buffer = make(COUNTER)
    with pytest.raises(ValueError, match=message):
        buffer.add_batch(np.array([1]), priorities=priorities)
    assert len(buffer) == 0


@pytest.mark.parametrize("flags", [[True, False], [1], np.array([[True]])])
def test_end_of_episode_must_be_one_bool_a_stream(make, flags):
    buffer = make(COUNTER)
    with pytest.raises(ValueError, match=r"end_of_episode: expected \[1\] bool"):
        buffer.add_batch(np.array([1]), end_of_episode=flags)
    assert len(buffer) == 0


# Reading: shapes and what comes beside the items

SIZES = [(None, None), (5, None), (None, 2), (5, 2)]


@pytest.mark.by_frames
@pytest.mark.parametrize(("batch", "num_steps"), SIZES)
@pytest.mark.by_streams
def test_sample_and_dataset_have_the_documented_shapes_and_dtypes(make, batch, num_steps):
    spec = {"a": tf.TensorSpec([2], tf.float32), "b": (tf.TensorSpec([], tf.uint8),)}
    buffer = make(spec, num_steps=num_steps or 1)
    for _ in range(4):
        buffer.add_batch({"a": np.zeros([1, 2], np.float32), "b": (np.zeros([1], np.uint8),)})
    b = [] if batch is None else [batch]
    bt = [*b] if num_steps is None else [*b, num_steps]
    expected = (
        {"a": tf.TensorSpec([*bt, 2], tf.float32), "b": (tf.TensorSpec(bt, tf.uint8),)},
        BufferInfo(
            ids=tf.TensorSpec(bt, tf.int64),
            probabilities=tf.TensorSpec(b, tf.float32),
            keys=tf.TensorSpec(b, tf.int64),
            weights=tf.TensorSpec(b, tf.float32),
            mask=tf.TensorSpec(bt, tf.bool),
        ),
    )
    dataset = buffer.as_dataset(batch, num_steps)
    assert dataset.element_spec == expected
    for sampled in (buffer.sample(batch, num_steps), next(iter(dataset)), buffer.get_next(batch, num_steps)):
        tf.nest.assert_same_structure(sampled, expected)
        for tensor, tensor_spec in zip(tf.nest.flatten(sampled), tf.nest.flatten(expected), strict=True):
            assert tensor_spec.is_compatible_with(tensor)


@pytest.mark.by_streams
def test_info_of_uniform_draws(make):
    buffer = make(COUNTER, batch_size=2, num_steps=2)
    ids = np.stack([buffer.add_batch(counters(2, [t])[:, 0]) for t in range(4)], axis=1)
    items, info = buffer.sample(50, 2)
    stream, time = np.asarray(items) // 100, np.asarray(items) % 100
    np.testing.assert_array_equal(info.ids, ids[stream, time])
    np.testing.assert_allclose(info.probabilities, 1 / 6)  # two streams, three windows each
    np.testing.assert_array_equal(info.weights, 1)
    assert np.all(info.mask)
    assert info.key is info.keys and info.probability is info.probabilities


@pytest.mark.by_streams
def test_get_next_gives_a_tuple_of_steps_when_not_time_stacked(make):
    buffer = make(COUNTER, num_steps=3)
    add_counters(buffer, range(6))
    steps, _ = buffer.get_next(4, 3, time_stacked=False)
    assert len(steps) == 3
    np.testing.assert_array_equal(steps[2], steps[0] + 2)
    with pytest.raises(ValueError, match="time_stacked=False needs num_steps"):
        buffer.get_next(4, time_stacked=False)


@pytest.mark.by_streams
def test_sequence_preprocess_fn_sees_one_sample_without_batch_axis(make):
    buffer = make(COUNTER, num_steps=2)
    add_counters(buffer, range(5))

    def preprocess(window: tf.Tensor) -> tf.Tensor:
        assert window.shape == (2,)
        return -window

    items, _ = next(iter(buffer.as_dataset(3, 2, sequence_preprocess_fn=preprocess)))
    assert items.shape == (3, 2) and np.all(np.asarray(items) <= 0)


@pytest.mark.by_frames
def test_autotuned_parallel_calls_are_taken(make):
    buffer = make(COUNTER)
    add_counters(buffer, range(5))
    assert next(iter(buffer.as_dataset(3, num_parallel_calls=tf.data.AUTOTUNE)))[0].shape == (3,)


@pytest.mark.by_streams
def test_sample_inside_a_tf_function_draws_at_each_call(make):
    buffer = make(COUNTER, num_steps=2)
    add_counters(buffer, range(50))
    draw = tf.function(lambda: buffer.sample(8, 2)[0])
    draws = [draw().numpy() for _ in range(5)]
    assert all(np.array_equal(each[:, 0] + 1, each[:, 1]) for each in draws)
    assert len({each.tobytes() for each in draws}) > 1


def test_num_frames_stays_live_inside_a_tf_function(make):
    buffer = make(COUNTER)
    count = tf.function(lambda: buffer.num_frames())
    assert count() == 0
    add_counters(buffer, range(3))
    buffer.flush()
    assert count() == 3


# Episodes


@pytest.mark.by_streams
def test_no_window_joins_two_episodes_of_a_trajectory(make):
    """FR-001: LAST is the boundary frame; a window may end there, not start there, nor go past it."""
    buffer = make(STEP, num_steps=2)
    step_types = [FIRST, MID, MID, LAST, FIRST, MID, MID, LAST]
    for t, step_type in enumerate(step_types):
        buffer.add_batch(Step(np.array([step_type], np.int32), np.array([t])))
    assert drawn_starts(buffer, 2) == {0, 1, 2, 4, 5, 6}


@pytest.mark.by_frames
def test_a_final_observation_is_no_sample_of_one_frame(make):
    """T9: its action and reward mean nothing."""
    buffer = make(STEP)
    for t, step_type in enumerate([FIRST, MID, LAST, FIRST]):
        buffer.add_batch(Step(np.array([step_type], np.int32), np.array([t])))
    assert drawn_starts(buffer, 1) == {0, 1, 3}
    items, info = buffer.sample(200)
    assert set(np.asarray(items.value).tolist()) == {0, 1, 3}
    np.testing.assert_allclose(info.probabilities, 1 / 3)


@pytest.mark.by_streams
def test_no_window_joins_two_episodes_of_a_dict_with_is_last(make):
    spec = {"is_last": tf.TensorSpec([], tf.bool), "value": tf.TensorSpec([], tf.int64)}
    buffer = make(spec, num_steps=2)
    for t in range(6):
        buffer.add_batch({"is_last": np.array([t == 2]), "value": np.array([t])})
    items, _ = buffer.sample(300, 2)
    values = np.asarray(items["value"])
    assert set(map(tuple, values.tolist())) == {(0, 1), (1, 2), (3, 4), (4, 5)}


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "last"),
    [
        ("is_last", tf.bool, [], True),
        ("is_last", tf.bool, [1], True),
        ("is_last", tf.float32, [], 1.0),
        ("step_type", tf.int32, [1], LAST),
        ("step_type", tf.float32, [], float(LAST)),
    ],
)
@pytest.mark.by_streams
def test_flags_are_read_whatever_their_dtype_and_with_an_axis_of_one(make, name, dtype, shape, last):
    buffer = make({name: tf.TensorSpec(shape, dtype), "value": tf.TensorSpec([], tf.int64)}, num_steps=2)
    for t in range(6):
        flag = np.full([1, *shape], last if t % 3 == 2 else MID % 2 * (name == "step_type"), dtype.as_numpy_dtype)
        buffer.add_batch({name: flag, "value": np.array([t])})
    items, info = buffer.sample(200, 2)
    assert set(items["value"].numpy()[:, 0].tolist()) == {0, 1, 3, 4}
    np.testing.assert_allclose(info.probabilities, 1 / 4)


def test_flags_that_are_overlooked_are_told(make):
    spec = {"nested": {"is_last": tf.TensorSpec([], tf.bool)}, "value": tf.TensorSpec([], tf.int64)}
    with pytest.warns(
        UserWarning, match="data_spec has the field 'nested/is_last', but ends of episodes are read from"
    ):
        make(spec)
    make(spec, end_of_episode_fn=lambda items: items["nested"]["is_last"])  # tells them: no warning


@pytest.mark.by_streams
def test_ends_told_by_the_argument_leave_the_last_frame_ordinary(make):
    """Dopamine's episode_end: the frame has an action and a reward of its own."""
    buffer = make(COUNTER, num_steps=1)
    for t in range(4):
        buffer.add_batch(np.array([t]), end_of_episode=np.array([t == 1]))
    assert drawn_starts(buffer, 1) == {0, 1, 2, 3}
    windows = make(COUNTER, num_steps=2)
    for t in range(4):
        windows.add_batch(np.array([t]), end_of_episode=np.array([t == 1]))
    assert drawn_starts(windows, 2) == {0, 2}


@pytest.mark.by_streams
def test_ends_told_by_a_function(make):
    buffer = make(COUNTER, batch_size=2, num_steps=2, end_of_episode_fn=lambda items: items % 100 == 2)
    add_counters(buffer, range(5))
    assert drawn_starts(buffer, 2) == {0, 1, 3, 100, 101, 103}


@pytest.mark.by_streams
def test_ends_inside_a_tf_function(make):
    buffer = make(COUNTER, num_steps=2)

    @tf.function
    def add(value: tf.Tensor, end: tf.Tensor) -> None:
        buffer.add_batch(value[None], end_of_episode=end[None])

    for t in range(5):
        add(tf.constant(t, tf.int64), tf.constant(t == 2))
    assert drawn_starts(buffer, 2) == {0, 1, 3}


@pytest.mark.by_streams
def test_end_stream_stops_one_stream(make):
    buffer = make(COUNTER, batch_size=2, num_steps=2)
    add_counters(buffer, range(2))
    buffer.end_stream(1)
    add_counters(buffer, range(2, 4))
    assert drawn_starts(buffer, 2) == {0, 1, 2, 100, 102}
    buffer.end_stream()
    add_counters(buffer, range(4, 6))
    assert drawn_starts(buffer, 2) == {0, 1, 2, 4, 100, 102, 104}
    with pytest.raises(ValueError, match="no stream 2"):
        buffer.end_stream(2)


@pytest.mark.by_streams
def test_a_reset_without_a_flag_joins_nothing(make):
    """An episode that begins ends the one before, even when no LAST came."""
    buffer = make(STEP, num_steps=2)
    for t, step_type in enumerate([FIRST, MID, FIRST, MID]):
        buffer.add_batch(Step(np.array([step_type], np.int32), np.array([t])))
    assert drawn_starts(buffer, 2) == {0, 2}


@pytest.mark.by_streams
def test_streams_of_different_episode_lengths_do_not_mix(make):
    """FR-050: three environments with episodes of 4, 7 and 5 steps, stepped together."""
    buffer = make(COUNTER, batch_size=3, num_steps=3, steps=40)
    lengths = np.array([4, 7, 5])
    for t in range(28):
        buffer.add_batch(counters(3, [t])[:, 0], end_of_episode=(t + 1) % lengths == 0)
    expected = {100 * b + t for b, length in enumerate(lengths) for t in range(26) if t % length <= length - 3}
    assert drawn_starts(buffer, 3, 3000) == expected


# Passes


@pytest.mark.by_frames
@pytest.mark.by_streams
def test_an_ordered_pass_gives_each_frame_once_and_ends(make):
    buffer = make(COUNTER, batch_size=2)
    add_counters(buffer, range(3))
    for _ in range(2):  # nothing is removed
        elements = list(buffer.as_dataset(single_deterministic_pass=True))
        assert [int(items) for items, _ in elements] == [0, 1, 2, 100, 101, 102]
        assert [float(info.probabilities) for _, info in elements] == [1.0] * 6
        assert len({int(info.ids) for _, info in elements}) == 6


@pytest.mark.by_frames
@pytest.mark.by_streams
def test_an_ordered_pass_after_wrap_around_mixes_no_streams(make):
    """T1."""
    buffer = make(COUNTER, batch_size=2, steps=4)
    add_counters(buffer, range(6))
    values = [int(items) for items, _ in buffer.as_dataset(single_deterministic_pass=True)]
    assert values == [2, 3, 4, 5, 102, 103, 104, 105]


@pytest.mark.by_frames
@pytest.mark.by_streams
def test_an_ordered_pass_of_windows_steps_by_their_length_in_each_episode(make):
    """T2."""
    buffer = make(COUNTER, batch_size=2, num_steps=2)
    for t in range(8):
        buffer.add_batch(counters(2, [t])[:, 0], end_of_episode=np.array([t == 3, t == 5]))
    windows = [items.numpy().tolist() for items, _ in buffer.as_dataset(None, 2, single_deterministic_pass=True)]
    assert windows == [[0, 1], [2, 3], [4, 5], [6, 7], [100, 101], [102, 103], [104, 105], [106, 107]]


@pytest.mark.by_streams
def test_an_ordered_pass_with_a_window_visits_every_eligible_start(make):
    buffer = make(STEP, num_steps=2)
    for t, step_type in enumerate([FIRST, MID, LAST, FIRST, MID]):
        buffer.add_batch(Step(np.array([step_type], np.int32), np.array([t])))
    dataset = buffer.as_dataset(window=Window(2), single_deterministic_pass=True)
    assert [items.value.numpy().tolist() for items, _ in dataset] == [[0, 1], [1, 2], [3, 4]]


@pytest.mark.by_frames
@pytest.mark.by_streams
def test_an_ordered_pass_in_batches_ends_with_a_smaller_one(make):
    """T3: streams that do not divide the batch change nothing."""
    buffer = make(COUNTER, batch_size=3)
    add_counters(buffer, range(3))
    batches = [items.numpy().tolist() for items, _ in buffer.as_dataset(2, single_deterministic_pass=True)]
    assert batches == [[0, 1], [2, 100], [101, 102], [200, 201], [202]]


@pytest.mark.by_streams
def test_epochs_draw_without_replacement(make):
    buffer = make(COUNTER, batch_size=2, num_steps=2)
    add_counters(buffer, range(4))
    starts = [int(items[0]) for items, _ in buffer.as_dataset(None, 2, epochs=3)]
    assert len(starts) == 18
    passes = [starts[i : i + 6] for i in (0, 6, 12)]
    assert all(sorted(each) == [0, 1, 2, 100, 101, 102] for each in passes)
    assert len(set(map(tuple, passes))) > 1


@pytest.mark.by_streams
def test_gather_all_includes_final_observations(make):
    buffer = make(STEP, num_steps=2)
    step_types = [FIRST, MID, LAST, FIRST, MID, LAST]
    for t, step_type in enumerate(step_types):
        buffer.add_batch(Step(np.array([step_type], np.int32), np.array([t])))
    everything = buffer.gather_all()
    assert everything.value.numpy().tolist() == [[0, 1, 2, 3, 4, 5]]
    assert everything.step_type.numpy().tolist() == [step_types]


# Nothing to draw


@pytest.mark.parametrize("num_steps", [None, 2])
@pytest.mark.by_streams
def test_sampling_an_empty_buffer_is_an_error_never_a_hang(make, num_steps):
    buffer = make(COUNTER, num_steps=num_steps or 1, patience_s=1.0)
    with pytest.raises(EmptyBufferError) as error:
        buffer.sample(4, num_steps)
    assert isinstance(error.value, ValueError) and isinstance(error.value, tf.errors.InvalidArgumentError)
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(iter(buffer.as_dataset(4, num_steps)))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(lambda: buffer.sample(4, num_steps))()


@pytest.mark.by_streams
def test_a_window_longer_than_any_episode_is_an_error_never_filler(make):
    """FR-007, T13."""
    buffer = make(COUNTER, num_steps=5, patience_s=1.0)
    for t in range(10):
        buffer.add_batch(np.array([t]), end_of_episode=np.array([t % 2 == 1]))
    with pytest.raises(EmptyBufferError):
        buffer.sample(4, 5)
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(iter(buffer.as_dataset(4, 5)))


# Wrong arguments

WRONG_CALLS = {
    "both num_steps and window": (
        lambda b: b.sample(2, 2, window=Window(2)),
        ValueError,
        "give num_steps or window, not both",
    ),
    "no window": (lambda b: b.sample(2, window=2), TypeError, "window must be a Window, got 2"),
    "batch 0": (lambda b: b.as_dataset(0), ValueError, "sample_batch_size must be at least 1, got 0"),
    "batch 2.0": (lambda b: b.sample(2.0), TypeError, r"sample_batch_size must be an int or None, got 2\.0"),
    "num_steps 0": (lambda b: b.sample(2, 0), ValueError, "num_steps must be at least 1, got 0"),
    "epochs 0": (lambda b: b.as_dataset(2, epochs=0), ValueError, "epochs must be at least 1, got 0"),
    "epochs and ordered": (
        lambda b: b.as_dataset(2, epochs=1, single_deterministic_pass=True),
        ValueError,
        "give epochs .* or single_deterministic_pass .*, not both",
    ),
    "parallel calls 0": (
        lambda b: b.as_dataset(2, num_parallel_calls=0),
        ValueError,
        "num_parallel_calls must be at least 1",
    ),
    "no priorities": (lambda b: b.update_priorities([1]), ValueError, "give priorities or td_errors, exactly one"),
    "NaN": (lambda b: b.update_priorities([1], [np.nan]), ValueError, r"priorities\[0\] is nan"),
    "shapes": (
        lambda b: b.update_priorities([1, 2], [1.0]),
        ValueError,
        r"priorities: expected shape \[2\], got \[1\]",
    ),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_wrong_arguments_are_told_apart_at_the_call(make, case):
    call, kind, message = WRONG_CALLS[case]
    buffer = make(COUNTER, num_steps=2)
    add_counters(buffer, range(4))
    with pytest.raises(kind, match=message):
        call(buffer)


@pytest.mark.by_streams
def test_priorities_may_be_written_back_inside_a_tf_function(make):
    buffer = make(COUNTER, num_steps=2)
    add_counters(buffer, range(5))

    @tf.function
    def train() -> tf.Tensor:
        items, info = buffer.sample(4, 2)
        buffer.update_priorities(info.keys, td_errors=tf.cast(items[:, 0], tf.float32))
        return info.keys

    assert train().shape == (4,)


@pytest.mark.by_frames
def test_draws_of_one_tf_function_are_independent(make):
    buffer = make(COUNTER, steps=100)
    buffer.add_sequence(np.arange(100)[None])
    first, second = tf.function(lambda: (buffer.sample(30)[0], buffer.sample(30)[0]))()
    assert np.any(np.asarray(first) != np.asarray(second))


# Life


@pytest.mark.by_streams
def test_clear_empties_the_buffer_and_its_counters_and_ids_go_on(make):
    buffer = make(COUNTER, num_steps=2)
    old = [int(buffer.add_batch(np.array([t]))[0]) for t in range(3)]
    buffer.sample(4, 2)
    buffer.clear()
    assert len(buffer) == 0
    assert buffer.stats().added in (0, None) and buffer.stats().sampled in (0, None)
    new = [int(buffer.add_batch(np.array([t]))[0]) for t in range(10, 13)]
    assert not set(old) & set(new)
    assert drawn_starts(buffer, 2) == {10, 11}


@pytest.mark.by_frames
def test_stats_count(make):
    """FR-091: capacity, frames and share; later the total ever added."""
    buffer = make(COUNTER, batch_size=2, steps=5)
    add_counters(buffer, range(3))
    buffer.flush()
    stats = buffer.stats()
    assert (stats.capacity, stats.frames, stats.fill_share) == (10, 6, 0.6)
    add_counters(buffer, range(3, 23))
    buffer.flush()
    stats = buffer.stats()
    assert (stats.frames, stats.fill_share, stats.added) == (10, 1.0, 46)
    assert stats.host


def test_close_is_final_and_may_be_called_twice(make):
    with make(COUNTER) as buffer:
        add_counters(buffer, range(3))
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.add_batch(np.array([1]))
    with pytest.raises(ValueError, match="closed"):
        buffer.sample(1)


@pytest.mark.by_frames
def test_threads_may_add_and_sample_together(make):
    """FR-071 in small: rows are `(i, i)`, and none comes out unequal."""
    buffer = make({"a": tf.TensorSpec([], tf.int64), "b": tf.TensorSpec([3], tf.int64)}, steps=16)
    buffer.add_batch({"a": np.array([0]), "b": np.zeros([1, 3], np.int64)})
    buffer.flush()
    errors: list[BaseException] = []

    def add() -> None:
        for i in range(300):
            buffer.add_batch({"a": np.array([i]), "b": np.full([1, 3], i)})

    def read() -> None:
        try:
            for _ in range(30):
                items, _ = buffer.sample(16)
                np.testing.assert_array_equal(items["b"], np.repeat(items["a"].numpy()[:, None], 3, axis=1))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=target) for target in (add, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)
