"""Episodes to disk and back, through every reader there is, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import rlds
import tensorflow as tf
import tensorflow_datasets as tfds

from replayfeed.buffers import TFUniformReplayBuffer
from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.fill import fill
from replayfeed.pipelines.rlds_open import open_source
from replayfeed.pipelines.rlds_read import load_rlds
from replayfeed.pipelines.rlds_write import write_rlds

_FLAG = tf.TensorSpec([], tf.bool)


def _columns(num_steps, *, terminal=False, start=0, **fields):
    """Observations start, start + 1, ..., actions 10 more, rewards a seventh of it, all flags right."""
    index = np.arange(num_steps)
    columns = {
        "observation": (index + start).astype(np.float32),
        "action": index + start + 10,
        "reward": (index + start) / 7,
        "is_first": index == 0,
        "is_last": index == num_steps - 1,
        "is_terminal": (index == num_steps - 1) & terminal,
    }
    return {**columns, **fields}


def _spec(nest):
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], tf.as_dtype(leaf.dtype)), nest)


def _source(*episodes, num_episodes=None, metadata=(), invalid=(), metadata_spec=None):
    def read(seed):
        for index, columns in enumerate(episodes):
            own = metadata[index] if metadata else {}
            yield RawEpisode(str(index), columns, index in invalid, own)

    return EpisodeSource("mine", _spec(episodes[0]), read, num_episodes, metadata_spec=metadata_spec or {})


def _write(source, path, **settings):
    return write_rlds(source, path, **{"name": "mine", "progress": False, **settings})


def _episodes(path, split="train"):
    """Each episode's own fields and its steps, a step at a time, as TFDS decodes them, in the order of the files."""
    builder = tfds.builder_from_directory(os.fspath(path))
    config = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = builder.as_dataset(split=split, shuffle_files=False, read_config=config)
    for episode in dataset:
        steps = [tf.nest.map_structure(lambda leaf: leaf.numpy(), step) for step in episode.pop("steps")]
        yield tf.nest.map_structure(lambda leaf: leaf.numpy(), episode), steps


def _bits(value):
    array = np.asarray(value)
    return array.dtype, array.shape, array.tolist() if array.dtype == object else array.tobytes()


def _observations(path, split="train"):
    return [[float(step["observation"]) for step in steps] for _, steps in _episodes(path, split)]


# What readers find


def test_tfds_opens_the_folder_and_finds_every_step_and_flag(tmp_path):
    report = _write(_source(_columns(3, terminal=True), _columns(2, start=100)), tmp_path / "data")
    builder = tfds.builder_from_directory(os.fspath(tmp_path / "data"))
    assert (builder.info.name, str(builder.info.version)) == ("mine", "1.0.0")
    assert builder.info.splits["train"].num_examples == 2
    (first, steps), (_, others) = _episodes(tmp_path / "data")
    assert first == {"invalid": False}
    assert [step["observation"] for step in steps] == [0, 1, 2]
    assert [step["action"] for step in others] == [110, 111]
    # A float64, which a list of floats would keep as 0.1428571492433548.
    assert steps[1]["reward"] == 1 / 7
    assert [(step["is_first"], step["is_last"], step["is_terminal"]) for step in steps] == [
        (True, False, False),
        (False, False, False),
        (False, True, True),
    ]
    assert [step["is_terminal"] for step in others] == [False, False]
    counts = (report.episodes, report.steps, report.terminals, report.truncations, report.partial, report.shards)
    assert counts == (2, 5, 1, 1, 0, 1)
    files = os.listdir(tmp_path / "data")
    assert sorted(files) == ["dataset_info.json", "features.json", "mine-train.tfrecord-00000-of-00001"]
    assert report.bytes == sum(os.path.getsize(tmp_path / "data" / name) for name in files)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_load_rlds_reads_back_what_was_written(tmp_path, file_format):
    source = _source(_columns(3, terminal=True), _columns(4, start=100))
    _write(source, tmp_path / "data", file_format=file_format)
    first, second = load_rlds(tmp_path / "data", layout="transition")
    assert first["next_observation"].tolist() == [1, 2]
    assert first["is_terminal"].tolist() == [False, True]
    assert second["action"].tolist() == [110, 111, 112]
    assert second["is_truncated"].tolist() == [False, False, True]


def test_a_dataset_that_was_loaded_can_be_written_and_loaded_again(tmp_path):
    _write(_source(_columns(3, terminal=True), _columns(1), _columns(4, start=100)), tmp_path / "one")
    report = _write(load_rlds(tmp_path / "one", layout="transition"), tmp_path / "two")
    # What the rules of load_rlds leave out is not written.
    assert (report.episodes, report.terminals, report.truncations) == (2, 1, 1)
    assert _observations(tmp_path / "two") == [[0, 1, 2], [100, 101, 102, 103]]


def test_a_folder_or_a_dataset_of_episodes_is_written_with_every_field(tmp_path):
    columns = _columns(2, terminal=True, info={"name": np.array([b"a", b"bc"], object)})
    spec = {"seed": tf.TensorSpec([], tf.int64)}
    _write(_source(columns, metadata=[{"seed": np.int64(7)}], metadata_spec=spec), tmp_path / "one")
    builder = tfds.builder_from_directory(os.fspath(tmp_path / "one"))
    _write(tmp_path / "one", tmp_path / "two")
    _write(builder.as_dataset(split="train"), tmp_path / "three")
    wanted = list(_episodes(tmp_path / "one"))
    assert wanted[0][1][1]["info"] == {"name": b"bc"}
    assert list(_episodes(tmp_path / "two")) == wanted
    assert list(_episodes(tmp_path / "three")) == wanted


def test_rlds_transforms_what_was_written(tmp_path):
    _write(_source(_columns(3, terminal=True), _columns(2, start=100)), tmp_path / "data")
    dataset = tfds.builder_from_directory(os.fspath(tmp_path / "data")).as_dataset(split="train")
    pairs = [
        window["observation"].numpy().tolist()
        for episode in dataset
        for window in rlds.transformations.batch(episode[rlds.STEPS], size=2, shift=1, drop_remainder=True)
    ]
    assert sorted(pairs) == [[0, 1], [1, 2], [100, 101]]


def test_tf_agents_converts_what_was_written(tmp_path):
    from tf_agents.replay_buffers import rlds_to_reverb

    reward = np.float32([1, 2, 0])
    discount = np.ones([3], np.float32)
    _write(_source(_columns(3, terminal=True, reward=reward, discount=discount)), tmp_path / "data")
    dataset = tfds.builder_from_directory(os.fspath(tmp_path / "data")).as_dataset(split="train")
    trajectories = list(rlds_to_reverb.convert_rlds_to_trajectories(dataset))
    assert [float(frame.observation) for frame in trajectories] == [0, 1, 2]
    assert [float(frame.reward) for frame in trajectories][:2] == [1, 2]


def test_a_data_source_of_tfds_reads_array_record(tmp_path):
    image = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8, 1)
    _write(_source(_columns(3, image=image)), tmp_path / "data", file_format="array_record")
    episodes = tfds.builder_from_directory(os.fspath(tmp_path / "data")).as_data_source("train")
    steps = episodes[0]["steps"]
    assert [step["reward"] for step in steps] == [0, 1 / 7, 2 / 7]
    assert np.array_equal(steps[2]["image"], image[2])


def test_what_a_buffer_holds_is_written_and_the_buffer_keeps_it(tmp_path):
    episodes = load_rlds(
        tf.data.Dataset.from_generator(
            lambda: iter([{"steps": _columns(3, terminal=True)}, {"steps": _columns(4, start=100)}]),
            output_signature={"steps": tf.nest.map_structure(_stacked, _columns(1))},
        ),
        layout="transition",
    )
    buffer = TFUniformReplayBuffer(episodes.element_spec, batch_size=1, max_length=100)
    fill(buffer, episodes, progress=False)
    report = _write(buffer, tmp_path / "data")
    assert (report.episodes, report.terminals, report.truncations, report.partial) == (2, 1, 1, 0)
    assert _observations(tmp_path / "data") == [[0, 1, 2], [100, 101, 102, 103]]
    first, _ = load_rlds(tmp_path / "data", layout="transition")
    assert (first["action"].tolist(), first["discount"].tolist()) == ([10, 11], [1, 0])
    assert buffer.stats().frames == 5


def _stacked(leaf):
    return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)


_RECORDED = [
    *("array_record", "cartpole", "d4rl_hopper", "edge_lengths", "envlogger_catch", "envlogger_dm_control"),
    *("metadata", "minari_cartpole", "nested_images", "spec_generated"),
]


@pytest.mark.parametrize("name", _RECORDED)
def test_recorded_datasets_come_back_with_every_field_and_bit(tmp_path, shared_data, name):
    _write(shared_data / name, tmp_path / "data")
    wanted = open_source(shared_data / name, fields="all")
    found = open_source(tmp_path / "data", fields="all")
    assert found.step_spec == wanted.step_spec
    assert found.metadata_spec == wanted.metadata_spec
    for one, other in zip(wanted.read(None), found.read(None), strict=True):
        assert _bits_of(one.columns) == _bits_of(other.columns)
        assert _bits_of(one.metadata) == _bits_of(other.metadata)
        assert one.invalid == other.invalid


def _bits_of(nest):
    return [_bits(leaf) for leaf in tf.nest.flatten(nest, expand_composites=True)]


# Every bit


_DTYPES = ["bool", "int8", "uint8", "int64", "uint64", "float16", "bfloat16", "float32", "float64", "complex64"]


@st.composite
def _random_episodes(draw):
    """Episodes of 0 to 4 steps with the same random fields, of any bits."""
    fields = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b/c", "d e", "f:g", "20_percent", "観測"]),
                st.sampled_from(_DTYPES),
                st.lists(st.integers(1, 3), max_size=2),
            ),
            max_size=4,
            unique_by=lambda field: field[0],
        )
    )
    nested = draw(st.booleans())
    episodes = []
    for num_steps in draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)):
        values = {name: draw(_bytes_of(dtype, (num_steps, *shape))) for name, dtype, shape in fields}
        flags = {name: draw(_bytes_of("bool", (num_steps,))) for name in ("is_first", "is_last", "is_terminal")}
        episodes.append({**({"observation": values} if nested and values else values), **flags})
    return episodes


@st.composite
def _bytes_of(draw, dtype, shape):
    as_numpy = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    size = int(np.prod(shape)) * as_numpy.itemsize
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    return (data & 1).view(bool).reshape(shape) if dtype == "bool" else data.view(as_numpy).reshape(shape)


@hypothesis.settings(max_examples=10, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(episodes=_random_episodes(), shards=st.sampled_from([None, 1, 2, 5]))
def test_random_episodes_come_back_bit_for_bit_and_in_order(tmp_path, episodes, shards):
    _write(_source(*episodes), tmp_path / "data", shards=shards, overwrite=True)
    found = [steps for _, steps in _episodes(tmp_path / "data")]
    assert [len(steps) for steps in found] == [len(columns["is_terminal"]) for columns in episodes]
    for columns, steps in zip(episodes, found, strict=True):
        for index, step in enumerate(steps):
            wanted = tf.nest.map_structure(lambda leaf, index=index: _bits(leaf[index]), columns)
            assert tf.nest.map_structure(_bits, step) == wanted


def test_special_numbers_keep_their_bits(tmp_path):
    patterns = [0x7FC00001, 0x7F800001, 0xFFC12345, 0x80000000, 0x7F800000, 0x00000001]
    numbers = np.array(patterns, np.uint32).view(np.float32)
    _write(_source(_columns(6, observation=numbers)), tmp_path / "data")
    ((_, steps),) = _episodes(tmp_path / "data")
    assert [int(step["observation"].view(np.uint32)) for step in steps] == patterns


def test_images_are_png_files_without_loss(tmp_path):
    rng = np.random.default_rng(0)
    columns = _columns(
        70,
        image=rng.integers(0, 256, [70, 8, 9, 3], np.uint8),
        depth=rng.integers(0, 2**16, [70, 16, 8, 1], np.uint16),
    )
    _write(_source(columns), tmp_path / "data")
    features = tfds.builder_from_directory(os.fspath(tmp_path / "data")).info.features["steps"].feature
    assert isinstance(features["image"], tfds.features.Image)
    assert isinstance(features["depth"], tfds.features.Image)
    ((_, steps),) = _episodes(tmp_path / "data")
    assert all(np.array_equal(step["image"], columns["image"][index]) for index, step in enumerate(steps))
    assert all(np.array_equal(step["depth"], columns["depth"][index]) for index, step in enumerate(steps))


def test_fr_522_sequences_of_images_can_be_read_back(tmp_path):
    images = np.arange(2 * 3 * 27, dtype=np.uint8).reshape(2, 3, 3, 3, 3)
    source = _source(_columns(2, terminal=True, images=images), _columns(2, images=images + 1))
    _write(source, tmp_path / "data", encode_images=None)
    (_, first), (_, second) = _episodes(tmp_path / "data")
    assert np.array_equal(first[1]["images"], images[1])
    assert np.array_equal(second[0]["images"], images[0] + 1)
    spec = {**source.step_spec, "images": tf.TensorSpec([None, 3, 3, 3], tf.uint8)}
    ragged = EpisodeSource("mine", spec, source.read)
    _write(ragged, tmp_path / "ragged", encode_images=["images"])
    (_, first), _ = _episodes(tmp_path / "ragged")
    assert np.array_equal(first[1]["images"], images[1])


def test_images_that_differ_in_size_pass_through_as_their_files_are(tmp_path):
    images = [np.full([height, 5, 3], height, np.uint8) for height in (4, 9)]
    files = np.empty([2], object)
    files[:] = [tf.io.encode_jpeg(images[0], quality=100).numpy(), tf.io.encode_png(images[1]).numpy()]
    columns = _columns(2, image=files)
    spec = {**_spec(columns), "image": tf.TensorSpec([None, None, 3], tf.uint8)}
    _write(EpisodeSource("mine", spec, lambda seed: iter([RawEpisode("0", columns)])), tmp_path / "data")
    ((_, steps),) = _episodes(tmp_path / "data")
    assert [step["image"].shape for step in steps] == [(4, 5, 3), (9, 5, 3)]
    assert np.array_equal(steps[1]["image"], images[1])
    columns["image"][1] = b"no image"
    with pytest.raises(ValueError, match=r"field 'image': expected uint8 \[None, None, 3\], or PNG and JPEG files"):
        _write(EpisodeSource("mine", spec, lambda seed: iter([RawEpisode("0", columns)])), tmp_path / "other")


# Ends


def test_d2_terminal_truncated_and_partial_episodes_are_told_apart(tmp_path):
    def flags(*at):
        return np.isin(np.arange(3), at)

    cut = _columns(3, is_last=flags())
    late = _columns(3, terminal=True, is_first=flags())
    report = _write(_source(_columns(3, terminal=True), _columns(3), cut, late, invalid=(1,)), tmp_path / "data")
    assert (report.terminals, report.truncations, report.partial, report.invalid) == (2, 1, 2, 1)
    episodes = list(_episodes(tmp_path / "data"))
    assert [own["invalid"] for own, _ in episodes] == [False, True, False, False]
    assert [steps[-1]["is_last"] for _, steps in episodes] == [True, True, False, True]
    assert [steps[0]["is_first"] for _, steps in episodes] == [True, True, True, False]
    assert [steps[-1]["is_terminal"] for _, steps in episodes] == [True, False, False, True]


def test_flags_that_the_source_has_not_are_written(tmp_path):
    _write(_source({"is_terminal": np.array([False, False, True])}), tmp_path / "data")
    ((_, steps),) = _episodes(tmp_path / "data")
    assert [(step["is_first"], step["is_last"]) for step in steps] == [(True, False), (False, False), (False, True)]


def test_flags_of_integers_are_written_as_bools(tmp_path):
    columns = {"is_last": np.array([[0], [1]]), "is_terminal": np.array([0, 1], np.int32)}
    _write(_source(columns), tmp_path / "data")
    ((_, steps),) = _episodes(tmp_path / "data")
    assert [(step["is_last"], step["is_terminal"]) for step in steps] == [(False, False), (True, True)]
    assert steps[0]["is_last"].dtype == bool


# Episodes' own fields


def test_metadata_of_the_source_and_constants_are_written(tmp_path):
    spec = {"seed": tf.TensorSpec([], tf.int32), "agent": {"name": tf.TensorSpec([], tf.string)}}
    metadata = [{"seed": np.int32(index), "agent": {"name": b"a\x00"}} for index in range(2)]
    source = _source(_columns(2), _columns(2), metadata=metadata, metadata_spec=spec)
    constants = {"seed": 7, "rate": 0.1, "tags": ["x", "yz"], "goal": np.float32([1, 2]), "env": {"version": "v4"}}
    _write(source, tmp_path / "data", episode_metadata=constants)
    for own, _ in _episodes(tmp_path / "data"):
        assert own["agent"] == {"name": b"a\x00"}
        assert (own["seed"], own["seed"].dtype, own["rate"]) == (7, np.int64, 0.1)
        assert own["tags"].tolist() == [b"x", b"yz"]
        assert own["goal"].tolist() == [1, 2]
        assert own["env"] == {"version": b"v4"}


def test_metadata_can_be_a_function_of_the_episode(tmp_path):
    def describe(episode):
        rewards = episode.columns["reward"]
        return {"return": float(rewards.sum()), "name": episode.name, "peaks": [int(x) for x in rewards if x > 1]}

    source = _source(*(_columns(3, reward=np.float64(rewards)) for rewards in ([2, 0, 3], [0, 0, 0], [5, 0, 0])))
    _write(source, tmp_path / "data", episode_metadata=describe)
    found = [own for own, _ in _episodes(tmp_path / "data")]
    assert [own["return"] for own in found] == [5, 0, 5]
    assert [own["name"] for own in found] == [b"0", b"1", b"2"]
    assert [own["peaks"].tolist() for own in found] == [[2, 3], [], [5]]


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (3, TypeError, "episode_metadata must be a mapping or a function, got int"),
        ({"x": None}, TypeError, r"episode_metadata 'x' is a NoneType of \['NoneType'\]; expected strings, numbers"),
        ({"x": {"y": object()}}, TypeError, r"episode_metadata 'x/y' is a object"),
        ({"x": ["a", 1]}, TypeError, r"episode_metadata 'x' is a list of \['int', 'str'\]"),
        ({"x": [[1], [2, 3]]}, TypeError, r"episode_metadata 'x': .*inhomogeneous"),
        (lambda episode: {"x": []}, TypeError, r"episode_metadata 'x' is an empty list, so its type is unknown"),
        (lambda episode: None, TypeError, "episode 0: episode_metadata must give a mapping .* got NoneType"),
        (lambda episode: 1 / 0, ValueError, r"episode 0: the function episode_metadata failed: ZeroDivisionError"),
        (lambda episode: {"x": np.zeros(1 + int(episode.name))}, ValueError, r"mine, episode 1: field 'x': expected"),
        (lambda episode: {} if episode.name == "1" else {"x": 1}, ValueError, "episode 1: field 'x' is missing"),
        ({"steps": 1}, ValueError, "an episode field may not be called 'steps'"),
    ],
)
def test_metadata_that_cannot_be_is_refused(tmp_path, metadata, error, message):
    with pytest.raises(error, match=message):
        _write(_source(_columns(2), _columns(2)), tmp_path / "data", episode_metadata=metadata)
    assert os.listdir(tmp_path) == []


# Files


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize(
    ("announced", "lengths"),
    [(5, [2, 3]), (None, [2, 3]), (9, [2, 3]), (2, [2, 3])],
    ids=["right", "no", "more", "less"],
)
def test_shards_hold_equally_many_episodes_in_order(tmp_path, file_format, announced, lengths):
    source = _source(*(_columns(2, start=10 * index) for index in range(5)), num_episodes=announced)
    report = _write(source, tmp_path / "data", file_format=file_format, shards=2)
    info = tfds.builder_from_directory(os.fspath(tmp_path / "data")).info
    assert info.splits["train"].shard_lengths == lengths
    names = [f"mine-train.{file_format}-0000{index}-of-00002" for index in range(2)]
    assert sorted(os.listdir(tmp_path / "data")) == ["dataset_info.json", "features.json", *names]
    assert report.shards == 2
    firsts = [episode["observation"][0] for episode in load_rlds(tmp_path / "data", layout="transition")]
    assert firsts == [0, 10, 20, 30, 40]


@pytest.mark.parametrize("announced", [2, None])
def test_there_are_no_more_shards_than_episodes(tmp_path, announced):
    report = _write(_source(_columns(2), _columns(3), num_episodes=announced), tmp_path / "data", shards=5)
    assert report.shards == 2
    assert [len(steps) for _, steps in _episodes(tmp_path / "data")] == [2, 3]


def test_several_splits_are_written_together(tmp_path):
    sources = {"train": _source(_columns(2), _columns(3)), "test_1": _source(_columns(4))}
    report = _write(sources, tmp_path / "data")
    assert (report.split, report.episodes, report.steps, report.shards) == ("train, test_1", 3, 9, 2)
    info = tfds.builder_from_directory(os.fspath(tmp_path / "data")).info
    assert {name: split.num_examples for name, split in info.splits.items()} == {"train": 2, "test_1": 1}
    assert _observations(tmp_path / "data", "test_1") == [[0, 1, 2, 3]]


def test_splits_of_different_fields_are_refused(tmp_path):
    other = _source(_columns(2, observation=np.zeros([2, 3])))
    message = r"'steps/observation' is float32 \[\] in 'train' and float64 \[3\] in 'test'"
    with pytest.raises(ValueError, match=message):
        _write({"train": _source(_columns(2)), "test": other}, tmp_path / "data")
    assert os.listdir(tmp_path) == []


def test_the_info_holds_description_citation_and_version(tmp_path):
    settings = {"description": "Of a test.", "citation": "@misc{me}", "version": "2.1.0", "split": "expert"}
    _write(_source(_columns(2)), tmp_path / "data", **settings)
    info = tfds.builder_from_directory(os.fspath(tmp_path / "data")).info
    found = (info.description, info.citation, str(info.version), list(info.splits))
    assert found == ("Of a test.", "@misc{me}", "2.1.0", ["expert"])


# All or nothing


def _failing(after):
    def read(seed):
        for index in range(after):
            yield RawEpisode(str(index), _columns(2))
        raise OSError("the disk is gone")

    return EpisodeSource("mine", _spec(_columns(2)), read)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_source_that_fails_leaves_nothing(tmp_path, file_format, after):
    with pytest.raises(OSError, match="the disk is gone"):
        _write(_failing(after), tmp_path / "data", file_format=file_format)
    assert os.listdir(tmp_path) == []


def test_an_episode_that_fails_is_named_and_nothing_is_left(tmp_path):
    source = _source(_columns(2), _columns(2, observation=np.zeros([2])))
    with pytest.raises(
        ValueError, match=r"mine, episode 1: field 'observation': expected float32 \[\], got float64 \[\]\."
    ):
        _write(source, tmp_path / "data")
    assert os.listdir(tmp_path) == []


def test_no_episodes_are_refused(tmp_path):
    source = EpisodeSource("mine", {"is_terminal": _FLAG}, lambda seed: iter(()))
    with pytest.raises(ValueError, match="mine: there are no episodes for the split 'train'"):
        _write(source, tmp_path / "data")
    assert os.listdir(tmp_path) == []


_KILLED = """
import os, signal, sys
import numpy as np, tensorflow as tf
from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_write import write_rlds

def read(seed):
    for index in range(3):
        observation, is_terminal = np.zeros([1000], np.float32), np.zeros([1000], bool)
        yield RawEpisode(str(index), {"observation": observation, "is_terminal": is_terminal})
    os.kill(os.getpid(), signal.SIGKILL)

spec = {"observation": tf.TensorSpec([], tf.float32), "is_terminal": tf.TensorSpec([], tf.bool)}
write_rlds(EpisodeSource("killed", spec, read), sys.argv[1], name="mine", overwrite=True, shards=2, progress=False)
"""


@pytest.mark.parametrize("existing", [False, True])
def test_a_killed_process_leaves_no_half_dataset(tmp_path, existing):
    path = tmp_path / "data"
    if existing:
        _write(_source(_columns(2)), path)
    process = subprocess.run([sys.executable, "-c", _KILLED, os.fspath(path)], capture_output=True, timeout=400)
    assert process.returncode == -signal.SIGKILL
    assert path.exists() == existing
    if existing:
        assert _observations(path) == [[0, 1]]
    (left,) = [name for name in os.listdir(tmp_path) if name != "data"]
    assert left.startswith(".data.writing-")
    # The next one clears up.
    _write(_source(_columns(3)), path, overwrite=existing)
    assert os.listdir(tmp_path) == ["data"]
    assert _observations(path) == [[0, 1, 2]]


def test_a_dataset_is_replaced_only_when_told_to(tmp_path):
    path = tmp_path / "data"
    _write({"train": _source(_columns(2)), "test": _source(_columns(2))}, path)
    with pytest.raises(FileExistsError, match=r"holds a dataset already; give another path, or overwrite=True"):
        _write(_source(_columns(3)), path)
    with pytest.raises(OSError, match="the disk is gone"):
        _write(_failing(1), path, overwrite=True)
    assert _observations(path) == [[0, 1]]
    _write(_source(_columns(3)), path, overwrite=True)
    assert _observations(path) == [[0, 1, 2]]
    assert os.listdir(tmp_path) == ["data"]
    assert sorted(tfds.builder_from_directory(os.fspath(path)).info.splits) == ["train"]


def test_a_dataset_can_be_written_over_the_one_it_is_read_from(tmp_path):
    _write(_source(_columns(2), _columns(3)), tmp_path / "data")
    _write(tmp_path / "data", tmp_path / "data", overwrite=True, file_format="array_record")
    assert [len(episode["action"]) for episode in load_rlds(tmp_path / "data", layout="transition")] == [1, 2]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_dataset_is_never_replaced(tmp_path, overwrite):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="exists, and is no TFDS dataset, so it is not replaced"):
        _write(_source(_columns(2)), tmp_path, overwrite=overwrite)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_files_that_lie_in_a_dataset_s_folder_are_not_lost_with_it(tmp_path):
    _write(_source(_columns(2)), tmp_path / "data")
    (tmp_path / "data" / "notes.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="holds what is of no dataset, and would be lost: notes.txt; move it"):
        _write(_source(_columns(3)), tmp_path / "data", overwrite=True)
    assert _observations(tmp_path / "data") == [[0, 1]]
    assert (tmp_path / "data" / "notes.txt").read_text() == "years of work"


def test_a_damaged_folder_is_named_with_how_far_it_was_read(tmp_path):
    _write(_source(_columns(2), _columns(3)), tmp_path / "data")
    (file,) = (tmp_path / "data").glob("*tfrecord*")
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match="mine: the episode after 1 others cannot be read: truncated record at"):
        _write(tmp_path / "data", tmp_path / "copy")
    assert os.listdir(tmp_path) == ["data"]


def test_an_empty_folder_and_folders_that_are_missing_are_no_obstacle(tmp_path):
    (tmp_path / "empty").mkdir()
    _write(_source(_columns(2)), tmp_path / "empty")
    _write(_source(_columns(2)), tmp_path / "a" / "b" / "c")
    assert _observations(tmp_path / "empty") == _observations(tmp_path / "a" / "b" / "c") == [[0, 1]]


def test_a_dataset_that_appears_meanwhile_is_not_replaced(tmp_path):
    def read(seed):
        _write(_source(_columns(3)), tmp_path / "data")
        yield RawEpisode("0", _columns(2))

    with pytest.raises(FileExistsError, match="holds a dataset already"):
        _write(EpisodeSource("mine", _spec(_columns(2)), read), tmp_path / "data")
    assert os.listdir(tmp_path) == ["data"]
    assert _observations(tmp_path / "data") == [[0, 1, 2]]


# Memory


def test_memory_stays_at_the_episode_at_hand_and_its_bytes(tmp_path):
    num_steps = 50_000
    episode_bytes = num_steps * 10 * 8

    def read(seed):
        for index in range(6):
            yield RawEpisode(
                str(index), {"x": np.full([num_steps, 10], index / 3), "is_terminal": _no_flags(num_steps)}
            )

    source = EpisodeSource("mine", {"x": tf.TensorSpec([10], tf.float64), "is_terminal": _FLAG}, read)
    tracemalloc.start()
    try:
        _write(source, tmp_path / "data")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * episode_bytes


def _no_flags(num_steps):
    return np.zeros([num_steps], bool)


# Arguments and report


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "my-data"}, "name must be letters, digits and underscores, a letter first, got 'my-data'"),
        ({"split": "train-1"}, "split must be letters, digits and underscores"),
        ({"split": "all"}, "not 'all', which is TFDS's own"),
        ({"file_format": "riegeli"}, "file_format must be 'tfrecord' or 'array_record', got 'riegeli'"),
        ({"shards": 0}, "shards must be 1 or more, or None, got 0"),
        ({"version": "1"}, "version must be three numbers, such as '1.0.0', got '1'"),
        ({"encode_images": "jpeg"}, "encode_images must be 'png'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        _write(_source(_columns(2)), tmp_path / "data", **settings)
    assert os.listdir(tmp_path) == []


def test_other_sources_places_and_mappings_are_refused(tmp_path):
    with pytest.raises(TypeError, match="source must be Episodes, a ReplayBuffer, .* got int"):
        _write(3, tmp_path / "data")
    with pytest.raises(ValueError, match="path must be of this machine, got 'gs://bucket/data'"):
        _write(_source(_columns(2)), "gs://bucket/data")
    with pytest.raises(ValueError, match="split='test' is for one source"):
        _write({"train": _source(_columns(2))}, tmp_path / "data", split="test")
    with pytest.raises(ValueError, match="source is a mapping of no splits"):
        _write({}, tmp_path / "data")


def test_the_report_is_a_table_and_json(tmp_path):
    report = _write(_source(_columns(3, terminal=True), _columns(2)), tmp_path / "data")
    table = str(report).splitlines()
    assert table[0] == f"mine to {tmp_path / 'data'}, split train"
    assert table[1] == "  episodes     2 (1 terminal, 1 truncated, 0 partial)"
    assert table[2] == "  steps        5"
    assert table[4].startswith("  seconds      ")
    assert json.loads(report.to_json())["terminals"] == 1


def test_the_progress_bar_is_on_stderr_and_can_be_silenced(tmp_path, capsys):
    source = _source(_columns(2))
    write_rlds(source, tmp_path / "one", name="mine", progress=False)
    assert capsys.readouterr().err == ""
    write_rlds(source, tmp_path / "two", name="mine")
    captured = capsys.readouterr()
    assert captured.out == ""
