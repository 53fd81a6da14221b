"""Where `load_rlds` finds episodes: TFDS names, folders, files, mixtures; and in which order they come."""

import os
import pathlib
import shutil
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines import load_rlds, rlds_spec
from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.mixture import mixture_source
from replayfeed.pipelines.rlds_open import open_source

tfds = pytest.importorskip("tensorflow_datasets")

NUM_STEPS = 3


def steps_from(start, num_steps=NUM_STEPS, *, terminal=False):
    """Observations start, start + 1, ...: an episode is known by its first one."""
    return [
        {
            "observation": np.float32(start + t),
            "is_first": t == 0,
            "is_last": t == num_steps - 1,
            "is_terminal": terminal and t == num_steps - 1,
        }
        for t in range(num_steps)
    ]


class ReplayfeedTiny(tfds.core.GeneratorBasedBuilder):
    """A dataset that TFDS knows by its name, with a split of a checkpoint beside the ordinary one."""

    VERSION = tfds.core.Version("1.2.0")
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="short"), tfds.core.BuilderConfig(name="long"))

    def _info(self):
        steps = {"observation": np.float32, "is_first": np.bool_, "is_last": np.bool_, "is_terminal": np.bool_}
        features = tfds.features.FeaturesDict({"steps": tfds.features.Dataset(steps), "number": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {"train": self._episodes(8, 0), "checkpoint_00": self._episodes(3, 1000)}

    def _generate_examples(self):
        raise NotImplementedError

    def _episodes(self, num_episodes, start):
        num_steps = NUM_STEPS if self.builder_config.name == "short" else 6
        for number in range(num_episodes):
            yield number, {"steps": steps_from(start + 10 * number, num_steps), "number": number}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Where TFDS keeps the dataset, prepared in both configs."""
    folder = str(tmp_path_factory.mktemp("tfds"))
    for name in "replayfeed_tiny/short", "replayfeed_tiny/long":
        tfds.builder(name, data_dir=folder).download_and_prepare()
    return folder


@pytest.fixture(scope="module")
def five_files(tmp_path_factory):
    """A folder of ten episodes, two in each of five files, whose observations start at 0, 10, ..., 90."""
    from rlds.tfds import episode_writer

    folder = tmp_path_factory.mktemp("files") / "recorded"
    folder.mkdir()
    config = tfds.rlds.rlds_base.DatasetConfig(
        name="recorded",
        observation_info=np.float32,
        action_info=np.int64,
        reward_info=np.float32,
        discount_info=np.float32,
    )
    writer = episode_writer.EpisodeWriter(str(folder), config, max_episodes_per_file=2)
    for number in range(10):
        writer.add_episode({"steps": [recorded(step) for step in steps_from(10 * number)]})
    writer.close()
    return folder


def recorded(step):
    return {**step, "action": np.int64(1), "reward": np.float32(1), "discount": np.float32(1)}


def starts(episodes, seed=None):
    """Which episodes come in a pass, each by its first observation."""
    return [int(episode.frames["observation"][0]) for episode in episodes.start_pass(seed)]


def first_observations(source, split=None, **options):
    return starts(load_rlds(source, split, layout="transition", **options))


def named(episodes, seed=None):
    return [
        (int(episode.frames["observation"][0]), episode.name, episode.place, episode.id)
        for episode in episodes.start_pass(seed)
    ]


# Names


def test_a_name_is_what_tfds_knows_in_its_data_dir(data_dir):
    episodes = load_rlds("replayfeed_tiny", layout="transition", data_dir=data_dir, download=False)
    assert (episodes.name, len(episodes)) == ("replayfeed_tiny", 8)
    assert starts(episodes) == [0, 10, 20, 30, 40, 50, 60, 70]
    assert [int(episode.metadata["number"]) for episode in episodes.start_pass()] == list(range(8))
    spec = rlds_spec("replayfeed_tiny", "transition", data_dir=data_dir, download=False)
    assert spec["next_observation"] == tf.TensorSpec([], tf.float32)


@pytest.mark.parametrize(
    ("name", "frames"), [("replayfeed_tiny/long", 5), ("replayfeed_tiny/short:1.2.0", 2), ("replayfeed_tiny:1.2.0", 2)]
)
def test_config_and_version_stand_in_the_name(data_dir, name, frames):
    episode = next(load_rlds(name, layout="transition", data_dir=data_dir, download=False).start_pass())
    assert episode.num_frames == frames


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (None, [0, 10, 20, 30, 40, 50, 60, 70]),
        ("train[2:5]", [20, 30, 40]),
        ("train[75%:]", [60, 70]),
        ("checkpoint_00", [1000, 1010, 1020]),
        ("train[2:5]+checkpoint_00", [20, 30, 40, 1000, 1010, 1020]),
        ("checkpoint_00[-1:]+train[:1]+train[7:]", [1020, 0, 70]),
        ("all", [0, 10, 20, 30, 40, 50, 60, 70, 1000, 1010, 1020]),
    ],
)
def test_splits_and_their_slices_and_sums(data_dir, split, expected):
    episodes = load_rlds("replayfeed_tiny", split, layout="transition", data_dir=data_dir, download=False)
    assert len(episodes) == len(expected)
    assert starts(episodes) == expected
    shuffled = named(episodes, seed=3)
    assert sorted(start for start, *_ in shuffled) == sorted(expected)
    assert len({place for _, _, place, _ in shuffled}) == len(expected)
    assert sorted(shuffled) == sorted(named(episodes))


def test_an_episode_keeps_its_place_and_id_in_every_slice(data_dir):
    def by_start(split):
        return {
            start: rest
            for start, *rest in named(load_rlds("replayfeed_tiny", split, layout="transition", data_dir=data_dir))
        }

    whole = by_start("train+checkpoint_00")
    assert whole[20] == ["2", 2, "replayfeed_tiny-train.tfrecord-00000-of-00001__2"]
    assert whole[1010] == ["9", 9, "replayfeed_tiny-checkpoint_00.tfrecord-00000-of-00001__1"]
    for start, rest in by_start("train[2:5]+checkpoint_00[1:]").items():
        assert rest == whole[start]


def test_a_name_that_is_not_prepared_is_prepared_or_told(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"'replayfeed_tiny' is not in .*1\.2\.0; download=True lets TFDS prepare it"
    ):
        load_rlds("replayfeed_tiny", layout="transition", data_dir=str(tmp_path), download=False)
    assert list(tmp_path.iterdir()) == []
    assert len(load_rlds("replayfeed_tiny", layout="transition", data_dir=str(tmp_path))) == 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "replayfeed_tinny",
            "'replayfeed_tinny' is no folder, and TFDS knows no dataset of this name: Dataset replayfeed_tinny not",
        ),
        ("replayfeed_tiny/other", "BuilderConfig other not found"),
        ("replayfeed_tiny/short:9.9.9", "cannot be loaded at version 9.9.9"),
    ],
)
def test_unknown_names_configs_and_versions_are_told(data_dir, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        load_rlds(name, layout="transition", data_dir=data_dir, download=False)


def test_an_unknown_split_is_told_with_those_that_are_there(data_dir):
    with pytest.raises(ValueError, match=r"Unknown split 'test'. Should be one of \['train', 'checkpoint_00'\]"):
        load_rlds("replayfeed_tiny", "test", layout="transition", data_dir=data_dir)


@pytest.mark.parametrize("source", ["d4rl_mujoco_hopper/v2-medium", "recorded/*.tfrecord-00000"])
def test_names_and_files_need_a_tfds_that_works(monkeypatch, five_files, source):
    monkeypatch.chdir(five_files.parent)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"needs TensorFlow Datasets: install replayfeed\[rlds\]\."):
        load_rlds(source, layout="transition")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.ModuleType("tensorflow_datasets"))
    with pytest.raises(ImportError, match="install 'tensorflow-metadata<1.18'"):
        load_rlds(source, layout="transition")


# Folders and files


def test_a_folder_is_found_relative_to_home_and_as_a_path(monkeypatch, five_files):
    monkeypatch.setenv("HOME", str(five_files.parent))
    monkeypatch.chdir(five_files.parent)
    for source in five_files, str(five_files), "~/recorded", "./recorded", "recorded":
        assert first_observations(source) == list(range(0, 100, 10))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("recorded-train.tfrecord-00001", [20, 30]),
        ("*.tfrecord-*", list(range(0, 100, 10))),
        ("recorded-train.tfrecord-0000[13]", [20, 30, 60, 70]),
        ("*", list(range(0, 100, 10))),
    ],
)
def test_files_by_path_and_pattern_come_in_the_order_of_their_names(five_files, pattern, expected):
    episodes = load_rlds(five_files / pattern, layout="transition")
    assert episodes.num_episodes is None
    assert starts(episodes) == expected
    assert [episode.place for episode in episodes.start_pass()] == list(range(len(expected)))
    shuffled = named(episodes, seed=1)
    assert sorted(shuffled) == sorted(named(episodes))
    assert [start for start, *_ in shuffled] == starts(episodes, seed=1)


def test_a_recording_that_was_killed_before_it_was_closed_is_read_by_its_files(five_files, tmp_path):
    for name in "features.json", "recorded-train.tfrecord-00000", "recorded-train.tfrecord-00001":
        shutil.copy(five_files / name, tmp_path)
    (tmp_path / "recorded-train.tfrecord-00002").touch()  # opened, nothing written
    with pytest.raises(FileNotFoundError, match="is no TFDS dataset: it holds no dataset_info.json"):
        load_rlds(tmp_path, layout="transition")
    assert first_observations(tmp_path / "*.tfrecord-*") == [0, 10, 20, 30]


def test_a_record_that_was_cut_off_is_told_after_the_episodes_before_it(five_files, tmp_path):
    for name in "features.json", "recorded-train.tfrecord-00000", "recorded-train.tfrecord-00001":
        shutil.copy(five_files / name, tmp_path)
    last = tmp_path / "recorded-train.tfrecord-00001"
    last.write_bytes(last.read_bytes()[:-5])
    passing = load_rlds(tmp_path / "*.tfrecord-*", layout="transition").start_pass()
    assert [int(next(passing).frames["observation"][0]) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(
        ValueError,
        match="recorded-train: the record after 3 others is damaged, .*: truncated record at .*'repair' end there",
    ):
        next(passing)
    skipping = load_rlds(tmp_path / "*.tfrecord-*", layout="transition", on_bad_episode="skip")
    assert len(list(skipping)) == 3
    assert str(skipping.report.dropped[0]) == "1 in a damaged record, and whatever comes after it (episode 3)"


def test_files_without_their_features_and_patterns_of_nothing_are_refused(five_files, tmp_path):
    shutil.copy(five_files / "recorded-train.tfrecord-00000", tmp_path)
    with pytest.raises(
        FileNotFoundError,
        match="holds no features.json, so nothing tells what the records of 'recorded-train.tfrecord-00000'",
    ):
        load_rlds(tmp_path / "recorded-train.tfrecord-00000", layout="transition")
    for nothing in "*.tfrecord-9*", "*.json", "recorded-train.tfrecord-77777":
        with pytest.raises(FileNotFoundError, match="no file matches it as a pattern"):
            load_rlds(five_files / nothing, layout="transition")
    with pytest.raises(ValueError, match="split='train' is for names and folders"):
        load_rlds(five_files / "*.tfrecord-*", "train", layout="transition")
    (tmp_path / "recorded-train.array_record-00000").touch()
    with pytest.raises(ValueError, match="expected files of one kind, TFRecord or array_record"):
        load_rlds(tmp_path / "recorded-train.*", layout="transition")


@pytest.mark.parametrize("wrong", [["a", "b"], [], {}, [("a", 1, 2)]])
def test_a_list_of_paths_is_no_source(wrong):
    with pytest.raises(
        TypeError, match="expected a dataset's name, folder or files, .* or several of these with weights, got"
    ):
        load_rlds(wrong, layout="transition")


@pytest.fixture(scope="module")
def array_records(tmp_path_factory):
    """The tiny dataset as array_record."""
    builder = ReplayfeedTiny(config="short", data_dir=str(tmp_path_factory.mktemp("array")), file_format="array_record")
    builder.download_and_prepare()
    return pathlib.Path(str(builder.data_dir))


def test_array_records_are_read_as_folder_and_as_files(array_records):
    pytest.importorskip("array_record")
    assert first_observations(array_records) == list(range(0, 80, 10))
    assert first_observations(array_records / "*-train.array_record-*") == list(range(0, 80, 10))
    assert len(load_rlds(array_records, "checkpoint_00", layout="transition")) == 3
    episodes = load_rlds(array_records, layout="transition")
    assert [int(episode.metadata["number"]) for episode in episodes.start_pass()] == list(range(8))


def test_array_records_have_the_places_and_ids_of_tfrecords(array_records, data_dir):
    for split in "train", "train[2:5]+checkpoint_00[1:]", "checkpoint_00+train":
        expected = named(load_rlds("replayfeed_tiny", split, layout="transition", data_dir=data_dir))
        found = named(load_rlds(array_records, split, layout="transition"))
        assert [(start, name, place) for start, name, place, _ in found] == [each[:3] for each in expected]
        assert [each[3].replace("array_record", "tfrecord") for each in found] == [each[3] for each in expected]
        shuffled = named(load_rlds(array_records, split, layout="transition"), seed=4)
        assert shuffled != found
        assert sorted(shuffled) == sorted(found)


@pytest.mark.parametrize("name", ["envlogger_catch", "envlogger_dm_control", "cartpole", "array_record"])
def test_recorded_folders_and_their_files_give_the_same_episodes(shared_data, name):
    folder = shared_data / name
    whole = load_rlds(folder, layout="transition")
    by_files = load_rlds(folder / "*-train.*", layout="transition")
    for one, other in zip(whole.start_pass(), by_files.start_pass(), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one.frames, other.frames)
        tf.nest.map_structure(np.testing.assert_array_equal, one.metadata, other.metadata)


# Orders


def test_a_seed_is_an_order_and_no_seed_that_of_the_files(five_files):
    in_order = list(range(0, 100, 10))
    episodes = load_rlds(five_files, layout="transition", seed=7)
    shuffled = starts(episodes)
    assert shuffled != in_order
    assert sorted(shuffled) == in_order
    assert starts(episodes) == shuffled
    assert first_observations(five_files, seed=7) == shuffled
    assert first_observations(five_files, seed=8) != shuffled
    assert starts(load_rlds(five_files, layout="transition"), seed=7) == shuffled
    assert starts(load_rlds(five_files, layout="transition")) == in_order
    assert first_observations(five_files, seed=0) != in_order
    assert first_observations(five_files, seed=2**31 + 5) != in_order


def test_shuffled_episodes_keep_their_names_places_and_ids(five_files):
    episodes = load_rlds(five_files, layout="transition")
    for seed in 1, 2:
        for start, name, place, identity in named(episodes, seed):
            assert (name, place) == (str(start // 10), start // 10)
            assert identity == f"recorded-train.tfrecord-{start // 20:05}__{start // 10 % 2}"


def test_a_shuffled_slice_holds_what_the_slice_holds(five_files):
    episodes = load_rlds(five_files, "train[3:8]", layout="transition")
    assert starts(episodes) == [30, 40, 50, 60, 70]
    shuffled = named(episodes, seed=5)
    assert sorted(start for start, *_ in shuffled) == [30, 40, 50, 60, 70]
    assert all((int(name), place) == (start // 10, start // 10) for start, name, place, _ in shuffled)


def test_a_limit_takes_the_first_or_with_a_seed_some(five_files):
    first = load_rlds(five_files, layout="transition", limit=3)
    assert (len(first), starts(first)) == (3, [0, 10, 20])
    assert starts(first, seed=4) == [0, 10, 20]  # which they are is settled
    some = load_rlds(five_files, layout="transition", limit=3, seed=4)
    assert starts(some) == starts(load_rlds(five_files, layout="transition", seed=4))[:3]
    assert starts(some, seed=9) == starts(some)
    assert len(load_rlds(five_files, layout="transition", limit=99)) == 10


def test_a_dataset_of_episodes_keeps_its_places_when_shuffled():
    def episode(number):
        observation = tf.cast(number, tf.float32) * 10 + tf.range(3, dtype=tf.float32)
        return {"steps": {"observation": observation, "is_terminal": [False, False, True]}}

    episodes = load_rlds(tf.data.Dataset.range(8).map(episode), layout="transition")
    assert [each[:3] for each in named(episodes)] == [(10 * place, str(place), place) for place in range(8)]
    shuffled = named(episodes, seed=3)
    assert shuffled != named(episodes)
    assert sorted(shuffled) == sorted(named(episodes))
    assert starts(load_rlds(episodes, layout="transition"), seed=3) == starts(episodes, seed=3)


# Mixtures


def in_memory(name, *episodes, reward=None, metadata=None):
    """A source of episodes of three steps, each given by its first observation."""
    spec = {"observation": tf.TensorSpec([], tf.int64), "is_terminal": tf.TensorSpec([], tf.bool)}
    extra = {} if reward is None else {"reward": np.asarray(reward)}

    def read(seed):
        for place, start in enumerate(episodes):
            columns = {"observation": start + np.arange(3), "is_terminal": np.array([False, False, True]), **extra}
            yield RawEpisode(str(place), columns, metadata=metadata or {}, place=place)

    return EpisodeSource(
        name,
        {**spec, **{key: tf.TensorSpec([], column.dtype) for key, column in extra.items()}},
        read,
        num_episodes=len(episodes),
        metadata_spec={key: tf.TensorSpec([], np.asarray(value).dtype) for key, value in (metadata or {}).items()},
    )


def test_a_mixture_gives_every_episode_of_each_source_once(five_files, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(five_files, other)
    episodes = load_rlds({str(five_files): 3, str(other): 1}, "train[:4]", layout="transition")
    assert len(episodes) == 8
    assert sorted(starts(episodes)) == sorted([0, 10, 20, 30] * 2)
    assert starts(episodes) == starts(episodes)
    assert starts(episodes, seed=1) != starts(episodes, seed=2)
    assert sorted(starts(episodes, seed=1)) == sorted([0, 10, 20, 30] * 2)
    assert episodes.name == "recorded + recorded"


def test_sources_of_one_name_keep_names_places_and_ids_apart(five_files, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(five_files, other)
    episodes = load_rlds([(five_files, 1), (other, 1)], "train[5:8]", layout="transition")
    found = named(episodes)
    assert len({place for _, _, place, _ in found}) == 6
    assert sorted((name, identity) for _, name, _, identity in found) == [
        (f"{source}: {number}", f"{source}: recorded-train.tfrecord-{number // 2:05}__{number % 2}")
        for source in ("recorded (2)", "recorded")
        for number in (5, 6, 7)
    ]
    assert sorted(named(episodes, seed=6)) == sorted(found)


def test_slices_of_sources_of_different_sizes_share_no_place(five_files, data_dir):
    names = [(five_files, 1), (open_source("replayfeed_tiny", split="train[50%:]", data_dir=data_dir), 1)]
    first = open_source(five_files, split="train[50%:]", fields=["observation"])
    second = open_source(names[1][0], fields=["observation"])
    episodes = load_rlds([(first, 1), (second, 1)], layout="transition")
    places = [place for _, _, place, _ in named(episodes)]
    assert len(set(places)) == len(places) == 9


def test_weights_are_the_odds_while_both_sources_last():
    mixed = mixture_source([in_memory("a", *range(0, 9000, 3)), in_memory("b", *range(9000, 18000, 3))], [0.75, 0.25])
    first = [raw.name[0] for raw, _ in zip(mixed.read(5), range(2000), strict=False)]
    # 0.75 within 4 sigma of 2000 draws: 0.0387.
    assert abs(first.count("a") / 2000 - 0.75) < 0.0388
    assert [raw.name for raw in mixed.read(5)] == [raw.name for raw in mixed.read(5)]


def test_a_mixture_keeps_the_fields_of_episodes_that_all_have():
    first = in_memory("a", 0, metadata={"seed": np.int64(1), "only": np.int64(2)})
    second = in_memory("b", 10, metadata={"seed": np.int64(3)})
    mixed = load_rlds([(first, 1), (second, 1)], layout="transition", episode_fields=["seed"])
    found = {episode.name: episode.metadata for episode in mixed.start_pass()}
    assert found == {"a: 0": {"seed": 1}, "b: 0": {"seed": 3}}
    assert all(len(set(frames["episode_metadata"]["seed"].tolist())) == 1 for frames in mixed)


def test_a_discount_and_flags_that_only_one_source_has_are_filled_in_by_the_rules():
    def episode(**fields):
        steps = {"observation": [0.0, 1.0, 2.0], "is_terminal": [False, False, False], **fields}
        return tf.data.Dataset.from_tensors({"steps": steps})

    stored = episode(discount=[0.5, 0.25, 0.0], is_first=[True, False, False], is_last=[False, False, True])
    episodes = load_rlds([(stored, 1), (episode(), 1)], layout="transition")
    assert sorted(frames["discount"].tolist() for frames in episodes) == [[0.5, 0.25], [1, 1]]
    assert episodes.report.repaired == ()


def test_mixtures_that_make_no_sense_are_refused():
    plain, rewarded = in_memory("plain", 0), in_memory("rewarded", 0, reward=[1.0, 2.0, 3.0])
    with pytest.raises(
        ValueError, match="the steps of plain and rewarded differ: 'reward' is not there and TensorSpec"
    ):
        load_rlds([(plain, 1), (rewarded, 1)], layout="transition")
    episodes = load_rlds([(plain, 1), (rewarded, 1)], layout="transition", fields=["observation"])
    assert len(list(episodes)) == 2
    for weights in (0, 1), (-1, 1), (np.nan, 1), (np.inf, 1):
        with pytest.raises(ValueError, match="weights must be finite and greater than 0"):
            load_rlds([(plain, weights[0]), (plain, weights[1])], layout="transition")


def test_mixtures_of_mixtures_and_of_loaded_episodes(five_files):
    terminal = load_rlds(five_files, "train[:2]", layout="transition")
    inner = [(terminal, 1), (load_rlds(five_files, "train[2:3]", layout="transition"), 1)]
    episodes = load_rlds(
        [(inner, 1), (load_rlds(five_files, "train[9:]", layout="transition"), 1)], layout="transition"
    )
    assert sorted(starts(episodes)) == [0, 10, 20, 90]
    assert len({place for _, _, place, _ in named(episodes)}) == 4
    assert os.path.basename(five_files) == "recorded"


@pytest.mark.parametrize("name", ["nested_images", "envlogger_catch", "metadata", "array_record"])
def test_a_shuffled_reading_gives_each_episode_whole_and_with_its_own_fields(shared_data, name):
    """Also where images and compressed tensors are decoded on the way."""
    episodes = load_rlds(shared_data / name, layout="step")
    in_order = {episode.id: episode for episode in episodes.start_pass()}
    shuffled = list(episodes.start_pass(11))
    assert [episode.place for episode in shuffled] != sorted(episode.place for episode in shuffled)
    assert {episode.id for episode in shuffled} == in_order.keys()
    for episode in shuffled:
        same = in_order[episode.id]
        assert (episode.place, episode.name, episode.is_terminal) == (same.place, same.name, same.is_terminal)
        tf.nest.map_structure(np.testing.assert_array_equal, episode.frames, same.frames)
        tf.nest.map_structure(np.testing.assert_array_equal, dict(episode.metadata), dict(same.metadata))
