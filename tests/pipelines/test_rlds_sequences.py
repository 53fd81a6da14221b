"""Sequences of a fixed length within steps, which TFDS writes and cannot read, load as arrays of a known shape."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines import load_rlds, rlds_spec, validate_rlds, write_rlds
from replayfeed.pipelines.field_rules import Cast, CropTo, Drop, Keep, PadTo

tfds = pytest.importorskip("tensorflow_datasets")
F = tfds.features

FRAMES = np.random.default_rng(0).integers(0, 256, [3, 2, 4, 5, 3], np.uint8)
WEIGHTS = [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]]


def generated(folder, observation, episodes, *, file_format="tfrecord", about=None):
    """A folder that a TFDS builder wrote of lists of observations; `about` is a feature of an episode, and a value."""
    flags = {"is_first": np.bool_, "is_last": np.bool_, "is_terminal": np.bool_}
    own = {} if about is None else {"about": about[0]}

    class Generated(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = F.FeaturesDict({"steps": F.Dataset({"observation": observation, **flags}), **own})
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number, values in enumerate(episodes):
                last = len(values) - 1
                steps = [
                    {"observation": value, "is_first": t == 0, "is_last": t == last, "is_terminal": False}
                    for t, value in enumerate(values)
                ]
                yield number, {"steps": steps, **({} if about is None else {"about": about[1]})}

    builder = Generated(data_dir=str(folder), file_format=file_format)
    builder.download_and_prepare()
    return builder.data_dir


def observations(source, **options):
    """Those of all episodes, `[N + 1, ...]` each."""
    return [frames["observation"] for frames in load_rlds(source, layout="step", **options)]


KINDS = {
    "numbers": (F.Sequence(np.int64, length=2), [[1, 2], [3, 4], [5, 6]]),
    "vectors": (F.Sequence(F.Tensor(shape=(2,), dtype=np.float32), length=1), [[[1, 2]], [[3, 4]]]),
    "compressed": (F.Sequence(F.Tensor(shape=(2,), dtype=np.float64, encoding="zlib"), length=2), WEIGHTS),
    "flags": (F.Sequence(np.bool_, length=2), [[True, False], [False, True]]),
    "classes": (F.Sequence(F.ClassLabel(names=["left", "right"]), length=2), [[0, 1], [1, 1]]),
    "images": (F.Sequence(F.Image(shape=(4, 5, 3), encoding_format="png"), length=2), list(FRAMES)),
    "video": (F.Video(shape=(2, 4, 5, 3)), list(FRAMES)),
    "of sequences": (F.Sequence(F.Sequence(np.int64, length=2), length=3), [[[1, 2], [3, 4], [5, 6]]] * 2),
    "of videos": (F.Sequence(F.Video(shape=(2, 4, 5, 3)), length=3), [FRAMES, FRAMES[::-1]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_a_fixed_length_load_as_arrays_of_that_shape(tmp_path, kind):
    feature, values = KINDS[kind]
    folder = generated(tmp_path, feature, [values, values[::-1], [], values[:1]])
    spec = rlds_spec(folder, "step")["observation"]
    assert (spec.shape, spec.dtype) == (np.shape(values)[1:], feature.get_tensor_spec().dtype)
    for options in {}, {"seed": 3}:
        found = observations(folder, **options)
        assert {each.dtype for each in found} == {np.dtype(spec.dtype.as_numpy_dtype)}
        # The shuffled order of two episodes is one of two.
        found.sort(key=lambda each: not np.array_equal(each, values))
        np.testing.assert_array_equal(found, [values, values[::-1]])


@pytest.mark.parametrize("kind", ["numbers", "video", "of sequences"])
def test_array_record_files_and_single_files_hold_them_too(tmp_path, kind):
    feature, values = KINDS[kind]
    folder = generated(tmp_path, feature, [values], file_format="array_record")
    np.testing.assert_array_equal(observations(folder), [values])
    np.testing.assert_array_equal(observations(f"{folder}/*.array_record*"), [values])
    folder = generated(tmp_path / "again", feature, [values])
    np.testing.assert_array_equal(observations(f"{folder}/*.tfrecord*"), [values])


def test_a_sequence_of_dicts_is_a_dict_of_arrays(tmp_path):
    weights = F.Tensor(shape=(2,), dtype=np.float64, encoding="zlib")
    feature = F.Sequence({"speed": np.float32, "weights": weights, "deep": {"word": F.Text()}}, length=2)
    values = [{"speed": [1.5, 2.5], "weights": WEIGHTS[t], "deep": {"word": ["a", "bc"]}} for t in range(2)]
    folder = generated(tmp_path, feature, [values])
    with pytest.raises(ValueError, match="step field 'observation/deep/word' is a string"):
        load_rlds(folder, layout="step")
    (found,) = observations(folder, fields={"observation/deep/word": Keep()})
    assert found["speed"].tolist() == [[1.5, 2.5]] * 2
    assert found["weights"].tolist() == WEIGHTS
    assert found["deep"]["word"].tolist() == [[b"a", b"bc"]] * 2
    (found,) = observations(folder, fields={"observation/deep": Drop(), "observation/speed": Cast("float64")})
    assert (found.keys(), found["speed"].dtype) == ({"speed", "weights"}, np.float64)


def test_a_sequence_of_sequences_of_dicts_keeps_both_axes(tmp_path):
    values = [[{"number": [1, 2]}, {"number": [3, 4]}, {"number": [5, 6]}]] * 2
    folder = generated(tmp_path, F.Sequence(F.Sequence({"number": np.int64}, length=2), length=3), [values])
    (found,) = observations(folder)
    assert found["number"].tolist() == [[[1, 2], [3, 4], [5, 6]]] * 2


def test_sequences_and_videos_of_unknown_length_are_padded_or_cropped_still(tmp_path):
    folder = generated(tmp_path / "video", F.Video(shape=(None, 4, 5, 3)), [[FRAMES[0], FRAMES[1][:1]]])
    with pytest.raises(ValueError, match=r"has the shape \(None, 4, 5, 3\), which is of variable length"):
        load_rlds(folder, layout="step")
    (padded,) = observations(folder, fields={"observation": PadTo([2, 4, 5, 3])})
    np.testing.assert_array_equal(padded, [FRAMES[0], [FRAMES[1][0], np.zeros([4, 5, 3])]])
    (cropped,) = observations(folder, fields={"observation": CropTo([1, 4, 5, 3])})
    np.testing.assert_array_equal(cropped, [FRAMES[0][:1], FRAMES[1][:1]])
    # Of a fixed length, and images of any size.
    folder = generated(tmp_path / "sizes", F.Video(shape=(2, None, None, 3)), [[FRAMES[0], FRAMES[1][:, :3]]])
    with pytest.raises(ValueError, match=r"has the shape \(2, None, None, 3\), which is of variable length"):
        load_rlds(folder, layout="step")
    (padded,) = observations(folder, fields={"observation": PadTo([2, 4, 5, 3])})
    np.testing.assert_array_equal(padded[0], FRAMES[0])
    np.testing.assert_array_equal(padded[1, :, :3], FRAMES[1][:, :3])
    assert not padded[1, :, 3].any()
    # One of two lengths is known.
    folder = generated(tmp_path / "mixed", F.Sequence(F.Sequence(np.int64), length=2), [[[[1], [2, 3]], [[], [4]]]])
    (padded,) = observations(folder, fields={"observation": PadTo([2, 2])})
    assert padded.tolist() == [[[1, 0], [2, 3]], [[0, 0], [4, 0]]]


def test_they_may_stay_encoded_or_be_decoded_by_a_function(tmp_path):
    folder = generated(tmp_path, F.Video(shape=(2, 4, 5, 3), encoding_format="png"), [list(FRAMES)])
    kept = load_rlds(folder, layout="step", decoders={"observation": False}, fields={"observation": Keep()})
    assert kept.element_spec["observation"] == tf.TensorSpec([2], tf.string)
    (frames,) = kept
    np.testing.assert_array_equal(tf.io.decode_png(frames["observation"][1, 1]), FRAMES[1, 1])

    def first_of(encoded):
        return tf.reshape(tf.io.decode_png(encoded[0]), [4, 5, 3])

    (found,) = observations(folder, decoders={"observation": first_of})
    np.testing.assert_array_equal(found, FRAMES[:, 0])


def test_metadata_of_episodes_in_sequences_of_fixed_lengths_are_arrays(tmp_path):
    about = F.FeaturesDict(
        {
            "pair": F.Sequence(np.int64, length=2),
            "grid": F.Sequence(F.Sequence(np.int64, length=2), length=3),
            "rows": F.Sequence(F.Sequence(np.int64), length=2),
            "films": F.Sequence(F.Video(shape=(2, 4, 5, 3)), length=3),
        }
    )
    values = {"pair": [7, 8], "grid": [[1, 2], [3, 4], [5, 6]], "rows": [[1], [2, 3]], "films": FRAMES}
    folder = generated(tmp_path, np.float32, [[1.0, 2.0]], about=(about, values))
    (episode,) = load_rlds(folder, layout="transition").start_pass()
    found = episode.metadata["about"]
    assert (found["pair"].tolist(), found["grid"].tolist()) == ([7, 8], [[1, 2], [3, 4], [5, 6]])
    assert found["rows"].to_list() == [[1], [2, 3]]
    np.testing.assert_array_equal(found["films"], FRAMES)
    (frames,) = load_rlds(folder, layout="transition", episode_fields=["about/grid"])
    assert frames["episode_metadata"]["about/grid"].tolist() == [[[1, 2], [3, 4], [5, 6]]]


def test_a_file_that_holds_another_length_is_refused(tmp_path):
    folder = generated(tmp_path, F.Sequence(np.int64), [[[1, 2], [3, 4, 5, 6]]])
    info = tfds.builder_from_directory(folder).info
    flags = {name: info.features["steps"].feature[name] for name in ("is_first", "is_last", "is_terminal")}
    steps = F.Dataset({"observation": F.Sequence(np.int64, length=3), **flags})
    F.FeaturesDict({"steps": steps}).save_config(str(folder))
    with pytest.raises(ValueError, match=r"a sequence of a fixed length, \[3\], has another one in the file"):
        list(load_rlds(folder, layout="step"))


def test_they_are_checked_and_written_again_as_they_were(tmp_path):
    folder = generated(tmp_path / "mine", F.Video(shape=(2, 4, 5, 3)), [list(FRAMES)])
    assert validate_rlds(folder, progress=False).episodes == 1
    write_rlds(folder, tmp_path / "again", name="again", progress=False)
    np.testing.assert_array_equal(observations(tmp_path / "again"), [FRAMES])
    assert rlds_spec(tmp_path / "again", "step")["observation"].shape == (2, 4, 5, 3)
