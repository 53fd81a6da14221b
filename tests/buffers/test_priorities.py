"""The arithmetic of prioritized replay that every backend shares, with numbers to check by hand."""

from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import TFUniformReplayBuffer
from replayfeed.buffers.priorities import (
    DEFAULT_EPS,
    check_exponent,
    check_keys,
    check_priorities,
    check_weight_norm,
    importance_weights,
    sequence_priority,
)

# As arrays, as tensors, and as tensors of a graph.
KINDS: dict[str, Any] = {
    "NumPy": lambda function, *values: function(*(np.asarray(value) for value in values)),
    "tensors": lambda function, *values: function(*(tf.constant(value) for value in values)).numpy(),
    "a graph": lambda function, *values: tf.function(function)(*(tf.constant(value) for value in values)).numpy(),
}


@pytest.fixture(params=KINDS)
def call(request):
    """Calls a function with its values in one of the kinds; the result as an array."""
    return KINDS[request.param]


# Importance weights


@pytest.mark.parametrize(
    ("norm", "least", "expected"),
    [
        (None, None, [0.8333, 0.625]),
        ("buffer", 0.1, [0.3333, 0.25]),
        ("batch", None, [1.0, 0.75]),
    ],
)
def test_fr_063_weights_by_the_batch_the_buffer_or_nothing(call, norm, least, expected):
    """Priorities 1, 2, 3, 4, alpha 1, beta 1; the batch is the last two."""
    weights = call(lambda chances: importance_weights(chances, 4, 1.0, norm=norm, least_probability=least), [0.3, 0.4])
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, expected, atol=5e-5)


def test_fr_063_weights_of_all_four():
    weights = importance_weights(np.array([0.1, 0.2, 0.3, 0.4]), 4, 1.0, norm=None)
    np.testing.assert_allclose(weights, [2.5, 1.25, 0.8333333, 0.625], rtol=1e-6)


def test_the_default_divides_by_the_largest_of_the_batch():
    np.testing.assert_array_equal(importance_weights(np.array([0.5, 0.25]), 8, 1.0), np.array([0.5, 1.0], np.float32))


def test_beta_is_the_power_of_the_weights(call):
    """(N P)^-beta with N P = 4, 1 and 1/4."""
    weights = call(lambda chances: importance_weights(chances, 2, 0.5, norm=None), [2.0, 0.5, 0.125])
    np.testing.assert_allclose(weights, [0.5, 1.0, 2.0], rtol=1e-6)


@pytest.mark.parametrize("norm", [None, "batch", "buffer"])
def test_beta_zero_corrects_nothing(call, norm):
    weights = call(
        lambda chances: importance_weights(chances, 7, 0.0, norm=norm, least_probability=0.01), [0.1, 0.9, 1e-30]
    )
    np.testing.assert_array_equal(weights, np.ones(3, np.float32))


@pytest.mark.parametrize("norm", [None, "batch", "buffer"])
def test_equal_chances_weigh_one(call, norm):
    weights = call(
        lambda chances: importance_weights(chances, 4, 0.7, norm=norm, least_probability=0.25), [0.25, 0.25, 0.25]
    )
    np.testing.assert_allclose(weights, np.ones(3), rtol=1e-6)


def test_each_batch_is_divided_by_its_own_largest_weight(call):
    """The last axis is the batch."""
    weights = call(lambda chances: importance_weights(chances, 4, 1.0), [[0.1, 0.2], [0.4, 0.2]])
    np.testing.assert_allclose(weights, [[1.0, 0.5], [0.5, 1.0]], rtol=1e-6)


def test_the_number_of_items_and_beta_may_be_tensors():
    weights = importance_weights(tf.constant([0.25, 0.5]), tf.constant(4, tf.int64), tf.Variable(1.0), norm=None)
    np.testing.assert_allclose(weights, [1.0, 0.5], rtol=1e-6)


def test_chances_that_almost_vanish_overflow_nothing(call):
    """The weight by the batch of the least probable is 1, and those of the others almost 0, without a warning."""
    weights = call(lambda chances: importance_weights(chances, 10**6, 1.0), [1e-30, 0.5])
    np.testing.assert_allclose(weights, [1.0, 2e-30], rtol=1e-6)


def test_weights_by_the_buffer_need_its_least_chance():
    with pytest.raises(ValueError, match="norm='buffer' needs least_probability"):
        importance_weights(np.array([0.5]), 2, 1.0, norm="buffer")


@hypothesis.given(
    chances=hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(1e-6, 1.0)),
    beta=st.floats(0, 1),
    norm=st.sampled_from([None, "batch", "buffer"]),
)
def test_arrays_and_tensors_give_the_weights_of_the_formula(chances, beta, norm):
    raw = (50 * chances) ** -beta
    largest = {None: 1.0, "batch": raw.max(), "buffer": (50 * 1e-6) ** -beta}[norm]
    for given_chances in (chances, tf.constant(chances)):
        weights = importance_weights(given_chances, 50, beta, norm=norm, least_probability=1e-6)
        np.testing.assert_allclose(weights, raw / largest, rtol=1e-5)


# Priorities of TD errors


def test_fr_057_signed_td_errors_count_by_their_size():
    """(|td| + eps)^alpha of -5 and 1 with alpha 0.5 and eps 0.01."""
    mass = (check_priorities(None, [-5.0, 1.0], (2,)) + 0.01) ** 0.5
    np.testing.assert_allclose(mass, [2.238, 1.005], atol=5e-4)
    np.testing.assert_allclose(mass / mass.sum(), [0.690, 0.310], atol=5e-4)


def test_fr_057_a_raw_negative_priority_is_refused():
    with pytest.raises(ValueError, match=r"priorities\[1\] is -1.0: a priority must be finite and at least 0"):
        check_priorities([0.0, -1.0], None, (2,))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["priorities", "td_errors"])
def test_values_that_are_not_finite_are_refused_with_their_position(name, bad):
    values = np.array([[0.0, 1.0], [2.0, bad]])
    given = (values, None) if name == "priorities" else (None, values)
    with pytest.raises(ValueError, match=rf"{name}\[1, 1\] is {bad}: .* must be finite"):
        check_priorities(*given, (2, 2))


def test_checked_priorities_are_float64_of_the_shape_asked_for():
    for values in ([1, 2], np.array([1, 2], np.float32), tf.constant([1.0, 2.0])):
        checked = check_priorities(values, None, (2,))
        assert checked.dtype == np.float64
        assert checked.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"td_errors: expected shape \[3\], got \[2\]"):
        check_priorities(None, [1.0, 2.0], (3,))


@pytest.mark.parametrize("given", [(None, None), ([1.0], [1.0])])
def test_exactly_one_of_priorities_and_td_errors_is_wanted(given):
    with pytest.raises(ValueError, match="give priorities or td_errors, exactly one of them"):
        check_priorities(*given, (1,))


def test_the_default_eps_is_that_of_the_field():
    assert DEFAULT_EPS == 1e-6


# Windows


def test_sequence_priority_is_between_the_mean_and_the_largest(call):
    """|td| = 1, 3, 2: the mean is 2, the largest 3."""
    for eta, expected in ((0.0, 2.0), (0.5, 2.5), (0.9, 2.9), (1.0, 3.0)):
        got = call(lambda errors, eta=eta: sequence_priority(errors, eta), [[1.0, -3.0, 2.0]])
        np.testing.assert_allclose(got, [expected], rtol=1e-6)


def test_sequence_priority_takes_the_fields_eta_by_default():
    np.testing.assert_allclose(sequence_priority([0.0, 1.0]), 0.9 * 1 + 0.1 * 0.5)


def test_padding_does_not_count(call):
    """The first window has two real frames, the second one, the third none."""
    errors = [[1.0, -3.0, 99.0], [4.0, 99.0, np.nan], [99.0, 99.0, 99.0]]
    mask = [[True, True, False], [True, False, False], [False, False, False]]
    got = call(lambda errors, mask: sequence_priority(errors, 0.5, mask), errors, mask)
    np.testing.assert_allclose(got, [2.5, 4.0, 0.0], rtol=1e-6)


def test_sequence_priority_keeps_the_axes_before_time():
    assert sequence_priority(np.zeros([2, 5, 3])).shape == (2, 5)
    assert sequence_priority(tf.zeros([2, 5, 3])).shape == [2, 5]


@pytest.mark.parametrize("eta", [-0.1, 1.1, np.nan])
def test_an_eta_that_is_no_share_is_refused(eta):
    with pytest.raises(ValueError, match="eta must be between 0 and 1"):
        sequence_priority([1.0], eta)


def test_a_mask_of_another_shape_is_refused():
    for kind in (np.ones, tf.ones):
        with pytest.raises(ValueError, match=r"mask: expected the shape of td_errors, \[2, 3\], got \[2, 4\]"):
            sequence_priority(kind([2, 3]), mask=kind([2, 4]))
        with pytest.raises(ValueError, match=r"mask: expected the shape of td_errors, \[2, 3\], got \[3\]"):
            sequence_priority(kind([2, 3]), mask=kind([3]))


@hypothesis.given(
    errors=hnp.arrays(np.float32, (3, 4), elements=st.floats(-100, 100, width=32)),
    mask=hnp.arrays(bool, (3, 4)),
    eta=st.floats(0, 1),
)
def test_sequence_priority_of_windows_is_that_of_each_alone(errors, mask, eta):
    expected = []
    for row, real in zip(errors, mask, strict=True):
        sizes = [abs(float(error)) for error, is_real in zip(row, real, strict=True) if is_real]
        expected.append(eta * max(sizes) + (1 - eta) * sum(sizes) / len(sizes) if sizes else 0.0)
    np.testing.assert_allclose(sequence_priority(errors, eta, mask), expected, rtol=1e-6, atol=1e-9)
    got = sequence_priority(tf.constant(errors), eta, tf.constant(mask))
    assert got.dtype == tf.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# Settings


@pytest.mark.parametrize("value", [0, 0.6, np.float32(0.5), np.int64(2)])
def test_exponents_are_finite_numbers_of_at_least_zero(value):
    checked = check_exponent("alpha", value)
    assert type(checked) is float and checked == float(value)


@pytest.mark.parametrize("value", [-0.1, np.inf, np.nan])
def test_other_exponents_are_refused(value):
    with pytest.raises(ValueError, match="beta must be finite and at least 0"):
        check_exponent("beta", value)


@pytest.mark.parametrize("value", [True, "0.6", None, [0.6]])
def test_exponents_that_are_no_numbers_are_refused(value):
    with pytest.raises(TypeError, match="alpha must be a number"):
        check_exponent("alpha", value)


def test_weight_norm_is_one_of_three():
    assert [check_weight_norm(norm) for norm in ("batch", "buffer", None)] == ["batch", "buffer", None]
    with pytest.raises(ValueError, match="weight_norm must be 'batch', 'buffer' or None, got 'max'"):
        check_weight_norm("max")


def test_keys_are_whole_numbers_of_any_shape():
    checked = check_keys(tf.constant([[1, 2]], tf.int32))
    assert checked.dtype == np.int64 and checked.tolist() == [[1, 2]]
    assert check_keys([]).shape == (0,)
    with pytest.raises(ValueError, match="keys and ids are int64 numbers as `BufferInfo` has them, got float64"):
        check_keys([1.0])


# A whole batch


def ring(frames: int) -> TFUniformReplayBuffer:
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 10, seed=0)
    buffer.add_sequence(np.arange(frames)[None])
    return buffer


def test_update_priorities_from_tells_how_many_windows_are_gone():
    """Of starts 0 to 7 five more frames replace the first five."""
    buffer = ring(10)
    _, info = buffer.sample(8, 3)
    gone = int(np.count_nonzero(info.keys.numpy() < 5))
    assert 0 < gone < 8
    assert buffer.update_priorities_from(info, np.ones([8])) == 0
    assert buffer.update_priorities_from(info, np.ones([8, 3])) == 0
    buffer.add_sequence(np.arange(5)[None])
    for errors in (np.ones([8]), -np.ones([8, 3]), tf.ones([8]), tf.ones([8, 3])):
        assert buffer.update_priorities_from(info, errors) == gone


def test_update_priorities_from_works_inside_a_tf_function():
    buffer = ring(10)

    @tf.function
    def step() -> Any:
        _, info = buffer.sample(4, 3)
        return buffer.update_priorities_from(info, tf.ones([4, 3])), buffer.update_priorities_from(info, tf.ones([4]))

    assert [int(gone) for gone in step()] == [0, 0]


@pytest.mark.parametrize("shape", [[7], [8, 4], [7, 3], [8, 3, 1]])
def test_update_priorities_from_refuses_other_shapes(shape):
    buffer = ring(10)
    _, info = buffer.sample(8, 3)
    with pytest.raises(ValueError, match="expected"):
        buffer.update_priorities_from(info, np.ones(shape))


def test_update_priorities_from_refuses_errors_that_are_not_finite():
    buffer = ring(10)
    _, info = buffer.sample(2, 3)
    with pytest.raises(ValueError, match=r"td_errors\[1\] is nan"):
        buffer.update_priorities_from(info, np.array([[1.0, 1, 1], [1, np.nan, 1]]))


@pytest.mark.parametrize("values", [["a"], [1 + 2j], [None]])
def test_priorities_that_are_no_real_numbers_are_refused_by_name(values):
    with pytest.raises(ValueError, match="priorities: expected real numbers, got"):
        check_priorities(values, None, (1,))


def test_td_errors_of_mixed_precision_are_taken():
    for dtype in (tf.bfloat16, tf.float16):
        assert check_priorities(None, tf.constant([-1.5], dtype), (1,)).tolist() == [1.5]
