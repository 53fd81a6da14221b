import collections
import queue

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.feed import iterate

Pair = collections.namedtuple("Pair", "first second")

_STRUCTURES = {
    "tensor": np.arange(6),
    "tuple": (np.arange(3), np.ones((3, 2), np.float32)),
    "dict_out_of_order": {"b": np.arange(3), "a": {"z": np.zeros(3, bool), "y": np.arange(3.0)}},
    "namedtuple_in_dict": {"pair": Pair(np.arange(3), (np.arange(3, 6), np.arange(6, 9)))},
    "one_field_tuple": (np.arange(3),),
    "empty_tuple_inside": (np.arange(3), ()),
    "ordered_dict": collections.OrderedDict([("b", np.arange(3)), ("a", np.arange(3, 6))]),
    "strings": {"name": np.array([b"a", b"bc", b""])},
}


@pytest.mark.parametrize("structure", _STRUCTURES.values(), ids=_STRUCTURES.keys())
def test_iterate_gives_what_iter_gives(structure):
    dataset = tf.data.Dataset.from_tensor_slices(structure).batch(2)
    expected, got = list(iter(dataset)), list(iterate(dataset))
    assert len(got) == len(expected) > 0
    for element, wanted in zip(got, expected, strict=True):
        tf.nest.assert_same_structure(element, wanted)
        assert str(element) == str(wanted)


def test_iterate_keeps_the_order_of_a_dict():
    assert list(next(iterate(tf.data.Dataset.from_tensors({"b": 1, "a": 2})))) == ["b", "a"]


def test_iterate_stays_at_its_end():
    iterator = iterate(tf.data.Dataset.range(1))
    assert int(next(iterator)) == 0
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_iterate_is_an_iterator_of_its_own_each_time():
    dataset = tf.data.Dataset.range(3)
    first, second = iterate(dataset), iterate(dataset)
    assert [int(next(first)), int(next(second)), int(next(first))] == [0, 0, 1]
    assert iter(first) is first


def test_errors_of_the_dataset_come_through_and_the_iterator_goes_on():
    dataset = tf.data.Dataset.from_tensor_slices([1, 0, 2]).map(lambda x: 6 // x)
    iterator = iterate(dataset)
    assert int(next(iterator)) == 6
    with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
        next(iterator)
    assert int(next(iterator)) == 3


def test_a_generator_dataset_outlives_the_callers_reference():
    iterator = iterate(
        tf.data.Dataset.from_generator(lambda: iter([1, 2]), output_signature=tf.TensorSpec((), tf.int32))
    )
    assert [int(x) for x in iterator] == [1, 2]


def _with_warm_start(seen: queue.SimpleQueue, warm_start: bool) -> tf.data.Dataset:
    def record(x):
        seen.put(int(x))
        return x

    options = tf.data.Options()
    options.experimental_warm_start = warm_start
    dataset = tf.data.Dataset.range(5).map(lambda x: tf.py_function(record, [x], tf.int64)).prefetch(1)
    return dataset.with_options(options)


@pytest.mark.parametrize("make_iterator", [iter, iterate])
def test_the_options_of_the_dataset_apply(make_iterator):
    # Warm start is the option that can be seen: elements are made before any is asked for.
    warm, cold = queue.SimpleQueue(), queue.SimpleQueue()
    iterators = [make_iterator(_with_warm_start(cold, False)), make_iterator(_with_warm_start(warm, True))]
    assert warm.get(timeout=60) == 0
    assert cold.empty()
    assert [int(next(iterator)) for iterator in iterators] == [0, 0]


@pytest.mark.parametrize(
    "element",
    [tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense([[0, 1]])],
    ids=["ragged", "sparse"],
)
def test_composite_tensors_come_as_iter_gives_them(element):
    got = next(iterate(tf.data.Dataset.from_tensors({"x": element})))["x"]
    assert type(got) is type(element)


def test_nested_datasets_come_as_iter_gives_them():
    windows = tf.data.Dataset.range(4).window(2)
    assert [[int(x) for x in iterate(window)] for window in iterate(windows)] == [[0, 1], [2, 3]]


def test_iterate_refuses_what_is_no_dataset():
    with pytest.raises(TypeError, match=r"iterate takes a tf\.data\.Dataset, got list"):
        iterate([1, 2])


def test_iterate_refuses_a_graph():
    @tf.function
    def loop():
        return next(iterate(tf.data.Dataset.range(3)))

    with pytest.raises(RuntimeError, match="for element in dataset"):
        loop()
