"""What files hold encoded (images, tensors as bytes, sequences) comes back as it was written, or is refused."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines import load_rlds, rlds_spec, write_rlds
from replayfeed.pipelines.field_rules import Bytes, Cast, CropTo, Drop, Keep, PadTo

tfds = pytest.importorskip("tensorflow_datasets")
F = tfds.features

RNG = np.random.default_rng(0)
PHOTO = [RNG.integers(0, 256, [5, 4, 3], np.uint8) for _ in range(3)]
DEPTH = [RNG.integers(0, 2**16, [5, 4, 1], np.uint16) for _ in range(3)]
SIZES = [RNG.integers(0, 256, [*size, 3], np.uint8) for size in ((2, 3), (4, 1), (3, 3))]


@pytest.fixture
def recorded(tmp_path):
    """Writes episodes, lists of observations, into a file by TFDS's own code; its path."""

    def write(observation, *episodes, about=None):
        flags = {"is_first": np.bool_, "is_last": np.bool_, "is_terminal": np.bool_}
        features = F.FeaturesDict(
            {
                "steps": F.Dataset({"observation": observation, **flags}),
                **({} if about is None else {"about": about[0]}),
            }
        )
        path = tmp_path / "mine-train.tfrecord-00000-of-00001"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for values in episodes:
                last = len(values) - 1
                steps = [
                    {"observation": value, "is_first": t == 0, "is_last": t == last, "is_terminal": False}
                    for t, value in enumerate(values)
                ]
                example = {"steps": steps, **({} if about is None else {"about": about[1]})}
                writer.write(features.serialize_example(example))
        features.save_config(str(tmp_path))
        return path

    return write


def observations(path, **options):
    """Those of the only episode, `[N + 1, ...]`."""
    (frames,) = load_rlds(path, layout="step", **options)
    return frames["observation"]


# Images


def test_png_images_of_8_and_16_bits_and_float_images_come_back_bit_for_bit(recorded):
    numbers = [RNG.normal(size=[5, 4, 1]).astype(np.float32) for _ in range(3)]
    for values, dtype in (PHOTO, np.uint8), (DEPTH, np.uint16), (numbers, np.float32):
        feature = F.Image(shape=values[0].shape, dtype=dtype, encoding_format="png")
        found = observations(recorded(feature, values))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, values)


def test_a_jpeg_image_is_what_tfds_makes_of_its_bytes(recorded):
    feature = F.Image(shape=(5, 4, 3), encoding_format="jpeg")
    path = recorded(feature, PHOTO)
    encoded = observations(path, decoders={"observation": False}, fields={"observation": Keep()})
    assert all(each.startswith(b"\xff\xd8") for each in encoded)
    np.testing.assert_array_equal(observations(path), [tf.io.decode_jpeg(each, channels=3).numpy() for each in encoded])


def test_images_may_stay_encoded(recorded):
    path = recorded(
        {"image": F.Image(shape=(5, 4, 3), encoding_format="png"), "speed": np.float32},
        [{"image": image, "speed": 1.5} for image in PHOTO],
    )
    decoders = {"observation/image": False}
    kept = observations(path, decoders=decoders)
    assert kept["speed"].tolist() == [1.5] * 3
    assert kept["image"].dtype == object
    np.testing.assert_array_equal([tf.io.decode_png(each).numpy() for each in kept["image"]], PHOTO)
    stored = observations(path, decoders=decoders, fields={"observation/image": Bytes(400)})["image"]
    assert stored.shape == (3, 400)
    assert stored[1].tobytes().rstrip(b"\0") == kept["image"][1].rstrip(b"\0")


def test_a_function_decodes_images_as_the_caller_wants_them(recorded):
    path = recorded(F.Image(shape=(5, 4, 3), encoding_format="png"), PHOTO)

    def top_left(encoded):
        return tf.ensure_shape(tf.cast(tf.io.decode_png(encoded, channels=3)[:2, :2, 0], tf.float32) / 255.0, [2, 2])

    spec = rlds_spec(path, "transition", decoders={"observation": top_left})
    assert spec["observation"] == tf.TensorSpec([2, 2], tf.float32)
    found = observations(path, decoders={"observation": top_left})
    np.testing.assert_array_equal(found, np.stack(PHOTO)[:, :2, :2, 0].astype(np.float32) / np.float32(255))


def test_a_function_that_leaves_a_size_open_is_refused_and_a_rule_closes_it(recorded):
    path = recorded(F.Image(shape=(None, None, 3), encoding_format="png"), SIZES)

    def gray(encoded):
        return tf.io.decode_png(encoded, channels=1)

    with pytest.raises(ValueError, match=r"'observation' has the shape \(None, None, 1\), which is of variable length"):
        load_rlds(path, layout="transition", decoders={"observation": gray})
    found = observations(
        path, decoders={"observation": gray}, fields={"observation": [PadTo([4, 3, 1]), Cast("float32")]}
    )
    assert (found.shape, found.dtype) == ((3, 4, 3, 1), np.float32)


def test_images_of_unknown_sizes_are_refused_padded_or_cropped(recorded):
    path = recorded(F.Image(shape=(None, None, 3), encoding_format="png"), SIZES)
    with pytest.raises(ValueError) as error:
        load_rlds(path, layout="transition")
    assert str(error.value) == (
        "mine-train: step field 'observation' has the shape (None, None, 3), which is of variable length; "
        "fields={'observation': Drop()} leaves it out, PadTo([8, 8, 3]) pads it with zeros, CropTo([8, 8, 3]) cuts it "
        "as well."
    )
    padded = observations(path, fields={"observation": PadTo([4, 3, 3])})
    cropped = observations(path, fields={"observation": CropTo([2, 2, 3])})
    for t, image in enumerate(SIZES):
        height, width = image.shape[:2]
        np.testing.assert_array_equal(padded[t, :height, :width], image)
        assert padded[t].sum(dtype=np.int64) == image.sum(dtype=np.int64)
        np.testing.assert_array_equal(cropped[t, :height, :width], image[:2, :2])
    with pytest.raises(
        ValueError, match=r"'observation': longer than PadTo\(\[3, 3, 3\]\); CropTo cuts what is longer"
    ):
        observations(path, fields={"observation": PadTo([3, 3, 3])})


def test_images_of_empty_and_one_step_episodes_do_no_harm(recorded):
    path = recorded(F.Image(shape=(5, 4, 3), encoding_format="png"), [], PHOTO[:1], PHOTO)
    episodes = load_rlds(path, layout="transition")
    assert [len(frames["observation"]) for frames in episodes] == [2]
    assert episodes.report.num_dropped == 2


# Tensors as bytes

_DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
_DTYPES += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("encoding", ["zlib", "bytes"])
def test_tensors_in_bytes_keep_every_bit_of_every_dtype(recorded, encoding):
    def values(name):
        dtype = tf.as_dtype(name)
        if dtype.is_bool:
            return [True, False]
        if dtype.is_integer:
            return [dtype.min, dtype.max]
        return [-0.0, float("nan")]

    columns = {
        name: [tf.constant(values(name), name).numpy()] * 2 + [np.ones([2], tf.as_dtype(name).as_numpy_dtype)]
        for name in _DTYPES
    }
    features = {
        name: F.Tensor(shape=(2,), dtype=tf.as_dtype(name).as_numpy_dtype, encoding=encoding) for name in _DTYPES
    }
    steps = [{name: columns[name][t] for name in _DTYPES} for t in range(3)]
    found = observations(recorded(features, steps))
    for name in _DTYPES:
        expected = np.stack(columns[name])
        assert found[name].dtype == expected.dtype, name
        assert found[name].tobytes() == expected.tobytes(), name


def test_a_scalar_and_a_compressed_tensor_of_two_dimensions(recorded):
    features = {
        "scalar": F.Tensor(shape=(), dtype=np.float64, encoding="bytes"),
        "matrix": F.Tensor(shape=(2, 3), dtype=np.float64, encoding="zlib"),
    }
    steps = [{"scalar": np.float64(0.1), "matrix": np.arange(6.0).reshape(2, 3) + t} for t in range(3)]
    found = observations(recorded(features, steps))
    assert found["scalar"].tolist() == [0.1] * 3
    np.testing.assert_array_equal(found["matrix"], [step["matrix"] for step in steps])


@pytest.mark.parametrize("encoding", ["zlib", "bytes"])
def test_tensors_of_several_unknown_dimensions_are_padded_or_cropped(recorded, encoding):
    matrices = [
        np.arange(float(rows * columns)).reshape(rows, columns) + 1 for rows, columns in ((2, 3), (1, 1), (3, 2))
    ]
    path = recorded(F.Tensor(shape=(None, None), dtype=np.float64, encoding=encoding), matrices)
    with pytest.raises(ValueError, match=r"'observation' has the shape \(None, None\), .* PadTo\(\[8, 8\]\) pads it"):
        load_rlds(path, layout="transition")
    padded = observations(path, fields={"observation": PadTo([3, 3])})
    assert padded.tolist() == [
        [[1, 2, 3], [4, 5, 6], [0, 0, 0]],
        [[1, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[1, 2, 0], [3, 4, 0], [5, 6, 0]],
    ]
    assert observations(path, fields={"observation": CropTo([1, 2])}).tolist() == [[[1, 2]], [[1, 0]], [[1, 2]]]
    with pytest.raises(ValueError, match="'observation': longer than PadTo"):
        observations(path, fields={"observation": PadTo([2, 2])})


def test_float64_without_an_encoding_comes_as_the_file_holds_it(recorded):
    found = observations(recorded(F.Tensor(shape=(1,), dtype=np.float64), [np.array([0.1])] * 2))
    assert found.dtype == np.float64
    assert found.tolist() == [[float(np.float32(0.1))]] * 2  # TFDS stores it as float32


def test_classes_boxes_texts_and_sounds(recorded):
    features = {
        "side": F.ClassLabel(names=["left", "right"]),
        "box": F.BBoxFeature(),
        "words": F.Text(),
        "sound": F.Audio(shape=(4,)),
    }
    step = {"side": "right", "box": F.BBox(0.0, 0.25, 0.5, 1.0), "words": "höher", "sound": np.arange(4)}
    found = observations(recorded(features, [step] * 2), fields={"observation/words": Bytes(8)})
    assert found["side"].tolist() == [1, 1]
    assert found["box"].tolist() == [[0.0, 0.25, 0.5, 1.0]] * 2
    assert bytes(found["words"][0].tolist()).rstrip(b"\0").decode() == "höher"
    assert found["sound"].tolist() == [[0, 1, 2, 3]] * 2


# Sequences


def test_fr_086_a_sequence_of_images_comes_back_as_it_was_written(recorded):
    """Three images a step: by TFDS's own writer without a length, and by ours."""
    stacks = RNG.integers(0, 256, [2, 4, 3, 3, 3, 3], np.uint8)
    path = recorded(
        F.Sequence(F.Image(shape=(3, 3, 3), encoding_format="png")), *[list(map(list, stack)) for stack in stacks]
    )
    episodes = load_rlds(path, layout="step", fields={"observation": PadTo([3, 3, 3, 3])})
    np.testing.assert_array_equal([frames["observation"] for frames in episodes], stacks)
    (first, _) = load_rlds(path, layout="transition", fields={"observation": PadTo([3, 3, 3, 3])})
    assert first["next_observation"].shape == (3, 3, 3, 3, 3)


def test_fr_086_images_that_are_stacked_are_written_and_read(tmp_path):
    stacks = RNG.integers(0, 256, [2, 4, 3, 3, 3, 3], np.uint8)
    flags = {"is_terminal": np.array([False, False, False, True])}
    spec = {
        "steps": {"observation": tf.TensorSpec([4, 3, 3, 3, 3], tf.uint8), "is_terminal": tf.TensorSpec([4], tf.bool)}
    }
    dataset = tf.data.Dataset.from_generator(
        lambda: ({"steps": {"observation": stack, **flags}} for stack in stacks), output_signature=spec
    )
    write_rlds(dataset, tmp_path / "mine", name="mine", progress=False)
    found = [frames["observation"] for frames in load_rlds(tmp_path / "mine", layout="step")]
    np.testing.assert_array_equal(found, stacks)
    assert load_rlds(tmp_path / "mine", layout="transition").element_spec["observation"].shape == (3, 3, 3, 3)


def test_sequences_of_images_that_vary_in_number_are_padded_cropped_or_kept_encoded(recorded):
    images = RNG.integers(0, 256, [3, 3, 3, 3], np.uint8)
    path = recorded(
        F.Sequence(F.Image(shape=(3, 3, 3), encoding_format="png")), [[images[0], images[1]], [], list(images)]
    )
    with pytest.raises(ValueError, match=r"has the shape \(None, 3, 3, 3\), which is of variable length"):
        load_rlds(path, layout="transition")
    padded = observations(path, fields={"observation": PadTo([3, 3, 3, 3])})
    np.testing.assert_array_equal(padded[0], [images[0], images[1], np.zeros([3, 3, 3])])
    assert not padded[1].any()
    np.testing.assert_array_equal(padded[2], images)
    np.testing.assert_array_equal(observations(path, fields={"observation": CropTo([1, 3, 3, 3])})[2], images[:1])
    encoded = observations(path, decoders={"observation": False}, fields={"observation": [PadTo(3), Keep()]})
    assert [[bool(each) for each in step] for step in encoded.tolist()] == [
        [True, True, False],
        [False] * 3,
        [True] * 3,
    ]
    np.testing.assert_array_equal(tf.io.decode_png(encoded[2, 1]), images[1])


def test_ragged_sequences_of_sequences_are_padded(recorded):
    path = recorded(F.Sequence(F.Sequence(np.int64)), [[[1], [2, 3]], [], [[4]]])
    found = observations(path, fields={"observation": PadTo([2, 2])})
    assert found.tolist() == [[[1, 0], [2, 3]], [[0, 0], [0, 0]], [[4, 0], [0, 0]]]


def test_sequences_of_dicts_are_dicts_of_sequences(recorded):
    images = RNG.integers(0, 256, [3, 3, 3, 3], np.uint8)
    feature = F.Sequence({"number": np.int64, "image": F.Image(shape=(3, 3, 3), encoding_format="png")})
    values = [
        {"number": [1, 2], "image": list(images[:2])},
        {"number": [], "image": []},
        {"number": [3], "image": [images[2]]},
    ]
    path = recorded(feature, values)
    found = observations(path, fields={"observation/number": PadTo(2), "observation/image": CropTo([1, 3, 3, 3])})
    assert found["number"].tolist() == [[1, 2], [0, 0], [3, 0]]
    np.testing.assert_array_equal(found["image"][:, 0], [images[0], np.zeros([3, 3, 3]), images[2]])


def test_sequences_of_images_are_written_again_as_they_were(recorded, tmp_path):
    images = RNG.integers(0, 256, [3, 3, 3, 3], np.uint8)
    path = recorded(F.Sequence(F.Image(shape=(3, 3, 3), encoding_format="png")), [list(images[:2]), [], [images[2]]])
    write_rlds(path, tmp_path / "again", name="again", progress=False)
    rules = {"observation": PadTo([2, 3, 3, 3])}
    np.testing.assert_array_equal(observations(tmp_path / "again", fields=rules), observations(path, fields=rules))


# Decoders that make no sense


def test_decoders_are_for_fields_that_are_there_and_encoded(recorded):
    path = recorded({"image": F.Image(shape=(5, 4, 3)), "speed": np.float32}, [{"image": PHOTO[0], "speed": 1.0}] * 2)
    with pytest.raises(ValueError, match="decoders names 'observation/camera', which the steps do not have; found"):
        load_rlds(path, layout="transition", decoders={"observation/camera": False})
    with pytest.raises(ValueError, match="decoders names 'observation/speed', which is not encoded: Tensor"):
        load_rlds(path, layout="transition", decoders={"observation/speed": False})
    with pytest.raises(ValueError, match="decoders names 'observation', which the steps do not have"):
        load_rlds(path, layout="transition", decoders={"observation": False})
    dataset = tf.data.Dataset.from_tensors({"steps": {"observation": [1.0, 2.0], "is_terminal": [False, False]}})
    with pytest.raises(ValueError, match="decoders=.* is for names and folders of TFDS datasets"):
        load_rlds(dataset, layout="transition", decoders={"observation": False})


def test_texts_may_be_decoded_to_numbers(recorded):
    path = recorded(F.Text(), ["1", "22"])
    assert observations(path, decoders={"observation": tf.strings.to_number}).tolist() == [1, 22]


# Fields of episodes


def test_the_fields_of_an_episode_are_decoded_too(recorded):
    about = F.FeaturesDict(
        {
            "photo": F.Image(shape=(5, 4, 3), encoding_format="png"),
            "weights": F.Tensor(shape=(2,), dtype=np.float64, encoding="zlib"),
            "name": F.Text(),
            "seeds": F.Sequence(np.int64),
            "deep": {"fine": np.bool_},
            "matrix": F.Tensor(shape=(None, None), dtype=np.float64, encoding="zlib"),
            "parts": F.Sequence({"name": F.Text(), "photo": F.Image(shape=(5, 4, 3), encoding_format="png")}),
        }
    )
    values = {"photo": PHOTO[0], "weights": [0.1, 0.2], "name": "walker", "seeds": [3, 1, 4], "deep": {"fine": True}}
    values |= {"matrix": [[1.0, 2.0, 3.0]], "parts": {"name": ["arm", "leg"], "photo": PHOTO[1:]}}
    path = recorded(np.float32, [1.0, 2.0], about=(about, values))
    (episode,) = load_rlds(path, layout="transition").start_pass()
    found = episode.metadata["about"]
    np.testing.assert_array_equal(found["photo"], PHOTO[0])
    assert found["weights"].tolist() == [0.1, 0.2]
    assert (found["name"], found["seeds"].tolist(), found["deep"]["fine"]) == (b"walker", [3, 1, 4], True)
    with pytest.raises(
        ValueError, match="episode_fields names 'about', which has the shape|episode_fields names 'about', which is"
    ):
        load_rlds(path, layout="transition", episode_fields=["about"])


def test_fields_that_are_left_out_are_not_decoded(recorded):
    path = recorded(
        {"image": F.Image(shape=(None, None, 3)), "speed": np.float32}, [{"image": PHOTO[0], "speed": 1.0}] * 2
    )
    assert observations(path, fields={"observation/image": Drop()}).keys() == {"speed"}
    assert observations(path, fields=["observation/speed"]).keys() == {"speed"}
