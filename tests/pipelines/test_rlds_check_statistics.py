"""Statistics of many blocks are those of all values together, exact where numbers are whole."""

import math

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.rlds_check_statistics import ExpandingHistogram, FieldStatistics, Histogram


@hypothesis.given(
    hypothesis.extra.numpy.arrays(
        np.float32, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(width=32, allow_subnormal=False)
    ),
    st.integers(1, 5),
)
def test_statistics_are_those_of_all_values_together(values, chunk):
    statistics = FieldStatistics("x", tf.TensorSpec([3], tf.float32))
    for start in range(0, len(values), chunk):
        statistics.add(values[start : start + chunk])
    found = statistics.result()
    finite = values[np.isfinite(values)].astype(np.float64)
    assert found.count == values.size
    assert found.nan == np.isnan(values).sum()
    assert found.infinite == np.isinf(values).sum()
    if not finite.size:
        assert found.min is None
        return
    assert (found.min, found.max) == (finite.min(), finite.max())
    assert math.isclose(found.mean, finite.mean(), rel_tol=1e-9, abs_tol=1e-9 * np.abs(finite).max())
    assert math.isclose(found.std, finite.std(), rel_tol=1e-6, abs_tol=1e-6 * np.abs(finite).max())


def test_a_small_deviation_beside_a_large_mean_keeps_its_digits():
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.float64))
    # Many episodes, so that blocks are merged, with a mean of 1e9 and a deviation of 1.
    for _ in range(3000):
        statistics.add(1e9 + np.array([-1.0, 1.0] * 50))
    found = statistics.result()
    assert (found.mean, found.std, found.count) == (1e9, 1.0, 300_000)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int64", "float16"])
def test_ranges_are_exact_in_each_dtype(dtype):
    if dtype == "bool":
        values = np.array([True, False, True])
    elif dtype == "float16":
        values = np.array([-65504, 0, 65504], dtype)
    else:
        values = np.array([np.iinfo(dtype).min, 3, np.iinfo(dtype).max], dtype)
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.as_dtype(dtype)))
    statistics.add(values)
    found = statistics.result()
    assert (found.min, found.max) == (values.min().item(), values.max().item())


def test_bfloat16_and_complex_values_are_summed_up():
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.bfloat16))
    statistics.add(tf.constant([1.0, 3.0], tf.bfloat16).numpy())
    assert (statistics.result().min, statistics.result().mean) == (1.0, 2.0)
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.complex64))
    statistics.add(np.array([3 + 4j, 0], np.complex64))
    assert (statistics.result().min, statistics.result().max) == (0.0, 5.0)


def test_values_too_large_for_a_deviation_are_told_as_missing():
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.float64), with_histogram=True)
    statistics.add(np.array([1e308, -1e308, 1.0]))
    found = statistics.result()
    assert (found.max, found.std) == (1e308, None)
    assert sum(found.histogram[0].counts) == 1


@hypothesis.given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), min_size=1, max_size=5))
def test_a_histogram_that_grows_loses_no_value(chunks):
    histogram = ExpandingHistogram(1, integer=False)
    for chunk in chunks:
        histogram.add(np.array([chunk]))
    (found,) = histogram.result()
    values = np.concatenate([np.array(chunk) for chunk in chunks])
    assert sum(found.counts) == values.size
    edges = found.edges()
    slack = 1e-9 * (1 + np.abs(values).max())
    assert edges[0] <= values.min() + slack
    assert edges[-1] >= values.max() - slack
    # Each bin holds what lies between its edges.
    for low, high, count in zip(edges[:-1], edges[1:], found.counts, strict=True):
        assert np.sum((values > low + slack) & (values < high - slack)) <= count
        assert count <= np.sum((values >= low - slack) & (values <= high + slack))


def test_whole_numbers_have_bins_of_their_own():
    histogram = ExpandingHistogram(2, integer=True)
    histogram.add(np.array([[0.0, 1.0, 1.0], [7.0, 7.0, 9.0]]))
    assert histogram.result() == (Histogram(-0.5, 1.0, (1, 2)), Histogram(6.5, 1.0, (2, 0, 1)))


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    st.lists(st.integers(0, 400) | st.sampled_from([1023, 1024]), min_size=1, max_size=6), st.integers(1, 3)
)
def test_episodes_after_each_other_are_summed_up_as_one_by_one(lengths, rows_a_step):
    rng = np.random.default_rng(0)
    spec = tf.TensorSpec([None, 64], tf.float32)
    alone, together = (FieldStatistics("x", spec, with_histogram=True) for _ in range(2))
    # Values are summed up some 65,000 at a time: several episodes together, or one alone.
    columns = [rng.standard_normal((length, rows_a_step, 64), np.float32) for length in lengths]
    for column in columns:
        alone.add(column)
    together.add_all(np.concatenate(columns), lengths)
    assert together.result() == alone.result()


def test_shapes_that_occur_are_told_where_they_vary():
    statistics = FieldStatistics("x", tf.TensorSpec([None], tf.float32))
    statistics.add_all(np.ones([5, 2], np.float32), [2, 3])
    statistics.add(np.ones([1, 3], np.float32))
    statistics.add(np.ones([0, 4], np.float32))
    assert statistics.result().shapes == ((2,), (3,))
