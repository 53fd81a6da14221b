"""The bytes of an episode: equal to those that TFDS serializes a step at a time, and exact where TFDS's are not."""

import copy

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from replayfeed.pipelines.episode_source import RawEpisode
from replayfeed.pipelines.rlds_examples import episode_flags, serialize_episode
from replayfeed.pipelines.rlds_features import to_tfds_features
from replayfeed.pipelines.rlds_write_format import episode_format

_FLAG = tf.TensorSpec([], tf.bool)
_NUMBERS = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]
_SHAPES = [(), (1,), (2, 3), (5, 5)]


def _random_bits(dtype, shape, seed=0):
    """Any bits, so NaNs with payloads, infinities and negative zeros among the floats."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    as_numpy = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    size = int(np.prod(shape)) * as_numpy.itemsize
    return rng.integers(0, 256, [size], np.uint8).view(as_numpy).reshape(shape)


def _finite(dtype, shape):
    """Numbers that Python's own float and int carry unchanged, as TFDS's serializer passes them through."""
    values = np.arange(-3, int(np.prod(shape)) - 3).reshape(shape)
    return values.astype(np.int64).astype(tf.as_dtype(dtype).as_numpy_dtype)


def _strings(*values):
    array = np.empty([len(values)], object)
    array[:] = values
    return array


def _bits(value):
    array = np.asarray(value)
    return array.dtype, array.shape, array.tolist() if array.dtype == object else array.tobytes()


def _format(columns, **spec):
    specs = {name: tf.TensorSpec(column.shape[1:], tf.as_dtype(column.dtype)) for name, column in columns.items()}
    return episode_format("mine", {"is_terminal": _FLAG, **specs, **spec})


def _steps(columns, num_steps):
    """A list of steps, as TFDS's own serializer takes an episode."""
    flags = episode_flags(columns)

    def at(column, index):
        if isinstance(column, dict):
            return {key: at(value, index) for key, value in column.items()}
        value = column[index]
        if isinstance(value, tf.RaggedTensor):
            return [row.numpy() for row in value]
        return value.numpy() if isinstance(value, tf.Tensor) else value

    return [at({**columns, **flags}, index) for index in range(num_steps)]


def _assert_equal_to_tfds(fmt, episode, num_steps):
    features = to_tfds_features(fmt)
    wanted = {"steps": _steps(episode.columns, num_steps), "invalid": episode.invalid, **episode.metadata}
    ours = tf.train.Example.FromString(serialize_episode(fmt, episode)).features.feature
    theirs = tf.train.Example.FromString(features.serialize_example(wanted)).features.feature
    assert sorted(ours) == sorted(theirs)
    assert {key: feature for key, feature in ours.items() if feature != theirs[key]} == {}


def _terminal(num_steps):
    return np.arange(num_steps) == num_steps - 1


@pytest.mark.parametrize("dtype", _NUMBERS)
def test_numbers_are_laid_out_as_tfds_lays_them_out(dtype):
    columns = {str(shape): _finite(dtype, (4, *shape)) for shape in _SHAPES}
    episode = RawEpisode("0", {**columns, "is_terminal": _terminal(4)})
    _assert_equal_to_tfds(_format(columns), episode, 4)


def test_strings_images_and_nested_keys_are_laid_out_as_tfds_lays_them_out():
    columns = {
        "observation": {
            "present/xyz": np.float32([[1, 2], [3, 4]]),
            "a key: with spaces": _strings(b"", b"\x00\xff\x00"),
            "20_percent": {"image": _random_bits("uint8", (2, 8, 8, 3)), "depth": _random_bits("uint16", (2, 9, 8, 1))},
        },
        "is_terminal": _terminal(2),
    }
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], tf.as_dtype(leaf.dtype)), columns)
    fmt = episode_format("mine", spec)
    assert {field.place: field.encoding for field in fmt.steps if field.encoding == "png"} == {
        "observation/20_percent/image": "png",
        "observation/20_percent/depth": "png",
    }
    _assert_equal_to_tfds(fmt, RawEpisode("0", columns), 2)


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64", "bool"])
def test_sequences_are_laid_out_as_tfds_lays_them_out(dtype):
    rows = tf.RaggedTensor.from_row_lengths(_finite(dtype, (5, 2)), [0, 3, 2, 0])
    columns = {"tags": rows, "is_terminal": _terminal(4)}
    fmt = episode_format("mine", {"tags": tf.TensorSpec([None, 2], dtype), "is_terminal": _FLAG})
    _assert_equal_to_tfds(fmt, RawEpisode("0", columns), 4)


def test_sequences_of_sequences_of_strings_are_laid_out_as_tfds_lays_them_out():
    rows = tf.RaggedTensor.from_nested_row_lengths(_strings(b"a", b"bc", b""), [[2, 0, 1], [1, 0, 2]])
    spec = {"tags": tf.RaggedTensorSpec([None, None], tf.string, ragged_rank=1), "is_terminal": _FLAG}
    episode = RawEpisode("0", {"tags": rows, "is_terminal": _terminal(3)})
    _assert_equal_to_tfds(episode_format("mine", spec), episode, 3)


def test_sequences_of_images_and_values_of_unknown_shape_are_laid_out_as_tfds_lays_them_out():
    columns = {
        "views": tf.RaggedTensor.from_row_lengths(_random_bits("uint8", (3, 8, 8, 3)), [1, 0, 2]),
        "camera": _random_bits("uint8", (3, 5, 7, 3)),
        "mask": _finite("int32", (3, 2, 4)),
        "grid": _finite("float64", (3, 2, 4, 3)),
        "is_terminal": _terminal(3),
    }
    spec = {
        "views": tf.TensorSpec([None, 8, 8, 3], tf.uint8),
        "camera": tf.TensorSpec([None, None, 3], tf.uint8),
        "mask": tf.TensorSpec([2, None], tf.int32),
        "grid": tf.TensorSpec([2, None, None], tf.float64),
        "is_terminal": _FLAG,
    }
    _assert_equal_to_tfds(episode_format("mine", spec), RawEpisode("0", columns), 3)


def test_an_episodes_own_fields_are_laid_out_as_tfds_lays_them_out():
    metadata = {
        "agent": b"expert",
        "return": np.float64(0.1),
        "goal": {"image": _random_bits("uint8", (8, 8, 1)), "position": np.float32([1, 2])},
        "tags": _strings(b"a", b"b"),
        "iteration": np.int32(-7),
        "shape": np.zeros([2, 3]),
    }
    spec = {
        "agent": tf.TensorSpec([], tf.string),
        "return": tf.TensorSpec([], tf.float64),
        "goal": {"image": tf.TensorSpec([8, 8, 1], tf.uint8), "position": tf.TensorSpec([None], tf.float32)},
        "tags": tf.TensorSpec([None], tf.string),
        "iteration": tf.TensorSpec([], tf.int32),
        "shape": tf.TensorSpec([None, None], tf.float64),
    }
    fmt = episode_format("mine", {"is_terminal": _FLAG}, spec)
    episode = RawEpisode("0", {"is_terminal": _terminal(2)}, invalid=True, metadata=metadata)
    with_list = episode._replace(metadata={**metadata, "shape": metadata["shape"]})
    _assert_equal_to_tfds(fmt, with_list, 2)


@pytest.mark.parametrize("num_steps", [0, 1])
def test_empty_and_one_step_episodes_are_laid_out_as_tfds_lays_them_out(num_steps):
    columns = {dtype: _finite(dtype, (num_steps, 3)) for dtype in _NUMBERS}
    columns["image"] = _random_bits("uint8", (num_steps, 8, 8, 1))
    episode = RawEpisode("0", {**columns, "is_terminal": _terminal(num_steps)})
    _assert_equal_to_tfds(_format(columns), episode, num_steps)


@pytest.mark.parametrize("dtype", _NUMBERS)
def test_every_bit_comes_back(dtype):
    columns = {str(shape): _random_bits(dtype, (3, *shape)) for shape in _SHAPES}
    episode = RawEpisode("0", {**columns, "is_terminal": _terminal(3)})
    fmt = _format(columns)
    decoded = to_tfds_features(fmt).deserialize_example(serialize_episode(fmt, episode))
    steps = [{name: _bits(step[name].numpy()) for name in columns} for step in decoded["steps"]]
    assert steps == [{name: _bits(column[index]) for name, column in columns.items()} for index in range(3)]


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**31 - 1, 2**32, 2**63 - 1, -1, -(2**63)])
def test_integers_of_every_width_come_back(value):
    columns = {"action": np.array([value, 0, value, 5], np.int64), "is_terminal": _terminal(4)}
    fmt = episode_format("mine", {"action": tf.TensorSpec([], tf.int64), "is_terminal": _FLAG})
    example = tf.train.Example.FromString(serialize_episode(fmt, RawEpisode("0", columns)))
    assert list(example.features.feature["steps/action"].int64_list.value) == [value, 0, value, 5]


def test_columns_longer_than_a_chunk_come_back():
    number = np.arange(300_000)
    columns = {"action": number, "reward": number / 7, "is_terminal": number == 299_999}
    fmt = episode_format(
        "mine", {name: tf.TensorSpec([], tf.as_dtype(column.dtype)) for name, column in columns.items()}
    )
    features = tf.train.Example.FromString(serialize_episode(fmt, RawEpisode("0", columns))).features.feature
    assert np.array_equal(features["steps/action"].int64_list.value, columns["action"])
    rewards = b"".join(features["steps/reward"].bytes_list.value)
    assert np.array_equal(np.frombuffer(rewards, np.float64), columns["reward"])


def test_views_and_the_other_byte_order_are_written_as_their_values():
    column = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    columns = {"view": column, "order": np.array([1.5, 2.5], ">f4"), "is_terminal": _terminal(2)}
    spec = {"view": tf.TensorSpec([3], tf.float32), "order": tf.TensorSpec([], tf.float32), "is_terminal": _FLAG}
    example = tf.train.Example.FromString(serialize_episode(episode_format("mine", spec), RawEpisode("0", columns)))
    assert list(example.features.feature["steps/view"].float_list.value) == [0, 4, 8, 2, 6, 10]
    assert list(example.features.feature["steps/order"].float_list.value) == [1.5, 2.5]


def test_a_format_holds_plain_values_so_that_other_processes_can_have_it():
    fmt = episode_format("mine", {"reward": tf.TensorSpec([], tf.float64), "is_terminal": _FLAG})
    assert copy.deepcopy(fmt) == fmt
    assert hash(copy.deepcopy(fmt)) == hash(fmt)


# Which fields are images


def test_images_are_told_by_dtype_and_shape():
    columns = {
        "rgb": np.zeros([1, 8, 8, 3], np.uint8),
        "stack": np.zeros([1, 84, 84, 4], np.uint8),
        "depth": np.zeros([1, 16, 4, 1], np.uint16),
        "board": np.zeros([1, 7, 9, 1], np.uint8),
        "two": np.zeros([1, 8, 8, 2], np.uint8),
        "float": np.zeros([1, 8, 8, 3], np.float32),
        "flat": np.zeros([1, 64], np.uint8),
    }
    fmt = _format(columns)
    assert [field.place for field in fmt.steps if field.encoding == "png"] == ["depth", "rgb", "stack"]
    specs = {name: tf.TensorSpec(column.shape[1:], column.dtype) for name, column in columns.items()}
    none = episode_format("mine", {**specs, "is_terminal": _FLAG}, encode_images=None)
    assert {field.encoding for field in none.steps} == {"list", "bytes"}
    named = episode_format("mine", {**specs, "is_terminal": _FLAG}, encode_images=["board"])
    assert [field.place for field in named.steps if field.encoding == "png"] == ["board"]


@pytest.mark.parametrize(
    ("encode_images", "message"),
    [
        ("jpeg", r"encode_images must be 'png', None or a collection of field names .* got 'jpeg'"),
        (["picture"], r"encode_images names \['picture'\], which are no fields; found .*'reward'"),
        (["reward"], r"encode_images names 'reward', which is float32 \[\]; a PNG holds uint8 or uint16"),
    ],
)
def test_images_that_cannot_be_are_refused(encode_images, message):
    with pytest.raises(ValueError, match=message):
        episode_format(
            "mine", {"reward": tf.TensorSpec([], tf.float32), "is_terminal": _FLAG}, encode_images=encode_images
        )


# What TFDS cannot keep


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            tf.TensorSpec([0], tf.float32),
            r"mine: field 'x' has the shape \[0\], which holds nothing, and TFDS ends the",
        ),
        (tf.TensorSpec([2, 0], tf.float64), r"field 'x' has the shape \[2, 0\]"),
        (tf.TensorSpec(None, tf.float32), r"field 'x' has an unknown number of dimensions"),
        (tf.TensorSpec([], tf.qint8), r"field 'x' is qint8, which TFDS cannot keep; cast it in a map"),
        (tf.TensorSpec([2, None], tf.string), r"field 'x' is string of the shape \[2, None\], which TFDS cannot keep"),
        (tf.TensorSpec([2, None], tf.uint32), r"field 'x' is uint32 of the shape \[2, None\]"),
        (tf.SparseTensorSpec([2], tf.float32), r"field 'x' is a SparseTensorSpec; only tensors and ragged tensors"),
    ],
)
def test_fields_that_tfds_cannot_keep_are_refused_by_name(spec, message):
    with pytest.raises(ValueError, match=message):
        episode_format("mine", {"x": spec, "is_terminal": _FLAG})


def test_two_fields_of_one_name_are_refused():
    number = tf.TensorSpec([], tf.float32)
    with pytest.raises(ValueError, match=r"would both be called 'steps/a/b' in the file; rename one"):
        episode_format("mine", {"a/b": number, "a": {"b": number}, "is_terminal": _FLAG})


def test_keys_that_are_no_strings_are_refused():
    with pytest.raises(TypeError, match=r"field 'observation' has the key 0, a int; TFDS takes strings only"):
        episode_format("mine", {"observation": {0: tf.TensorSpec([], tf.float32)}, "is_terminal": _FLAG})


def test_steps_without_is_terminal_are_refused():
    with pytest.raises(ValueError, match=r"mine: the steps have no 'is_terminal', .* found \['reward'\]"):
        episode_format("mine", {"reward": tf.TensorSpec([], tf.float32)})


@pytest.mark.parametrize("key", ["steps", "invalid"])
def test_episode_fields_with_rlds_own_names_are_refused(key):
    with pytest.raises(ValueError, match=f"an episode field may not be called '{key}'"):
        episode_format("mine", {"is_terminal": _FLAG}, {key: tf.TensorSpec([], tf.int64)})


def test_tuples_are_written_as_dicts_and_the_notes_say_so():
    number = tf.TensorSpec([], tf.float32)
    fmt = episode_format("mine", {"observation": (number, number), "info": (), "is_terminal": _FLAG})
    assert [field.key for field in fmt.steps[:2]] == ["steps/observation/0", "steps/observation/1"]
    assert fmt.notes == (
        "field 'info' is empty, so it is not written",
        "field 'observation' is a tuple, written as a dict of ['0', '1']",
    )
    columns = {"observation": (np.float32([1]), np.float32([2])), "info": (), "is_terminal": np.array([True])}
    features = tf.train.Example.FromString(serialize_episode(fmt, RawEpisode("0", columns))).features.feature
    assert list(features["steps/observation/1"].float_list.value) == [2.0]


# Episodes that do not match


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": np.zeros([2])}, r"field 'reward': expected float32 \[\], got float64 \[\]"),
        ({"reward": np.zeros([2, 1], np.float32)}, r"field 'reward': expected float32 \[\], got float32 \[1\]"),
        ({"reward": np.zeros([3], np.float32)}, r"field 'reward' has 3 steps, while 'is_terminal' has 2"),
        ({"extra": np.zeros([2])}, r"step fields \['extra'\], which its source does not announce"),
        ({"name": np.array([1, 2])}, r"field 'name': expected string \[\], got int64 \[\]"),
        ({"name": _strings(b"a", 3)}, r"field 'name': expected strings, got \['bytes', 'int'\]"),
        ({"is_last": np.zeros([2, 2], bool)}, r"step field 'is_last': expected one number a step"),
        ({"tags": np.zeros([2], np.int64)}, r"field 'tags' has no sequences, got the shape \[2\]"),
    ],
)
def test_columns_that_do_not_match_are_refused_by_name(change, message):
    columns = {
        "reward": np.zeros([2], np.float32),
        "name": _strings("a", b"b"),
        "tags": np.zeros([2, 3], np.int64),
        "is_terminal": _terminal(2),
    }
    spec = {
        "reward": tf.TensorSpec([], tf.float32),
        "name": tf.TensorSpec([], tf.string),
        "tags": tf.TensorSpec([None], tf.int64),
        "is_terminal": _FLAG,
    }
    fmt = episode_format("mine", spec)
    serialize_episode(fmt, RawEpisode("0", columns))
    with pytest.raises(ValueError, match=message):
        serialize_episode(fmt, RawEpisode("0", {**columns, **change}))


def test_an_episode_that_no_parser_would_take_is_refused():
    fmt = episode_format("mine", {"log": tf.TensorSpec([], tf.string), "is_terminal": _FLAG})
    megabytes = np.full([2200], b"x" * 1_000_000, object)
    with pytest.raises(
        ValueError, match=r"it takes 2,200,\d{3},\d{3} bytes, and a tf.train.Example is read only up to"
    ):
        serialize_episode(fmt, RawEpisode("0", {"log": megabytes, "is_terminal": _terminal(2200)}))


def test_a_missing_field_is_refused_by_name():
    fmt = episode_format("mine", {"observation": {"a": tf.TensorSpec([], tf.float32)}, "is_terminal": _FLAG})
    with pytest.raises(ValueError, match="field 'observation/a' is missing"):
        serialize_episode(fmt, RawEpisode("0", {"observation": {}, "is_terminal": _terminal(2)}))


def test_steps_that_differ_in_more_than_their_spec_says_are_refused():
    fmt = episode_format("mine", {"image": tf.TensorSpec([None, None, 3], tf.uint8), "is_terminal": _FLAG})
    images = tf.ragged.stack([tf.zeros([4, 5, 3], tf.uint8), tf.zeros([6, 5, 3], tf.uint8)])
    with pytest.raises(ValueError, match="its steps differ in shape: crop or pad them to one"):
        serialize_episode(fmt, RawEpisode("0", {"image": images, "is_terminal": _terminal(2)}))


def test_features_of_tfds_are_what_a_builder_would_declare():
    spec = {
        "observation": {"image": tf.TensorSpec([84, 84, 1], tf.uint8), "state": tf.TensorSpec([3], tf.float32)},
        "action": tf.TensorSpec([], tf.int64),
        "reward": tf.TensorSpec([], tf.float64),
        "instruction": tf.TensorSpec([], tf.string),
        "is_terminal": _FLAG,
    }
    features = to_tfds_features(episode_format("mine", spec, {"tags": tf.TensorSpec([None], tf.string)}))
    expected = tfds.features.FeaturesDict(
        {
            "tags": tfds.features.Sequence(tfds.features.Text()),
            "invalid": np.bool_,
            "steps": tfds.features.Dataset(
                {
                    "observation": {
                        "image": tfds.features.Image(shape=(84, 84, 1), dtype=np.uint8, encoding_format="png"),
                        "state": tfds.features.Tensor(shape=(3,), dtype=np.float32),
                    },
                    "action": np.int64,
                    "reward": tfds.features.Tensor(shape=(), dtype=np.float64, encoding="bytes"),
                    "instruction": tfds.features.Text(),
                    "is_first": np.bool_,
                    "is_last": np.bool_,
                    "is_terminal": np.bool_,
                }
            ),
        }
    )
    assert features.to_json() == expected.to_json()
