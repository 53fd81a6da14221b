"""Datasets that minari's own writers made, in each of its formats, read without minari."""

import json
import shutil
import sys

import gymnasium
import h5py
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.array_files import array_source_of
from replayfeed.pipelines.field_rules import Bytes, Drop
from replayfeed.pipelines.minari import is_minari, minari_source
from replayfeed.pipelines.rlds_open import open_source
from replayfeed.pipelines.rlds_read import load_rlds

FORMATS = ("hdf5", "arrow", "parquet")


def _write(dataset_id, buffers, data_format, observation_space, action_space):
    import minari

    with pytest.warns(UserWarning):  # that the dataset names no code and no author
        minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            observation_space=observation_space,
            action_space=action_space,
            data_format=data_format,
        )


def _episode(index, num_transitions, *, terminal, **fields):
    """Observations 10 * index, 10 * index + 1, ...; actions and rewards count from 0."""
    from minari.data_collector import EpisodeBuffer

    flags = np.arange(num_transitions) == num_transitions - 1
    count = 10 * index + np.arange(num_transitions + 1)
    made = {
        "id": index,
        "seed": 100 + index,
        "observations": np.stack([count, count], axis=1).astype(np.float32),
        "actions": np.arange(num_transitions),
        "rewards": list(np.arange(num_transitions) / 2),
        "terminations": list(flags & terminal),
        "truncations": list(flags & (not terminal)),
    }
    return EpisodeBuffer(**{**made, **fields})


_BOX = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
_DISCRETE = gymnasium.spaces.Discrete(5)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """The folder of datasets that MINARI_DATASETS_PATH names while the module runs."""
    folder = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        yield folder


@pytest.fixture(scope="module", params=FORMATS)
def flat(request, datasets):
    """A terminal episode of 3 transitions, a truncated one of 2; the id of the dataset."""
    dataset_id = f"flat/{request.param}-v0"
    episodes = [_episode(0, 3, terminal=True), _episode(1, 2, terminal=False)]
    _write(dataset_id, episodes, request.param, _BOX, _DISCRETE)
    return dataset_id


def test_n_plus_1_observations_and_n_actions_are_n_plus_1_steps(flat):
    terminal, truncated = (episode.columns for episode in minari_source(flat).read(None))
    assert {field: column.tolist() for field, column in terminal.items()} == {
        "observation": [[0, 0], [1, 1], [2, 2], [3, 3]],
        "action": [0, 1, 2, 0],
        "reward": [0, 0.5, 1, 0],
        "is_first": [True, False, False, False],
        "is_last": [False, False, False, True],
        "is_terminal": [False, False, False, True],
    }
    assert truncated["observation"].tolist() == [[10, 10], [11, 11], [12, 12]]
    assert truncated["is_last"].tolist() == [False, False, True]
    assert truncated["is_terminal"].tolist() == [False, False, False]


def test_the_specs_are_those_of_the_columns(flat):
    source = minari_source(flat)
    assert source.num_episodes == 2
    for episode in source.read(None):
        found = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), episode.columns)
        assert found == source.step_spec


def test_ids_and_metadata_are_those_that_minari_keeps(flat):
    source = minari_source(flat)
    assert source.name == flat
    episodes = list(source.read(None))
    assert [episode.id for episode in episodes] == [f"{flat}/0", f"{flat}/1"]
    assert [episode.metadata["seed"] for episode in episodes] == [100, 101]
    assert [episode.metadata["total_steps"] for episode in episodes] == [3, 2]
    assert source.metadata_spec["seed"] == tf.TensorSpec([], tf.int64)


def test_a_dataset_is_found_by_id_by_folder_and_by_file(flat, datasets):
    folder = datasets / flat
    for path in (flat, folder, str(folder), folder / "data"):
        assert is_minari(path)
        assert minari_source(path).num_episodes == array_source_of(path).num_episodes == 2
    if "hdf5" in flat:
        assert minari_source(folder / "data" / "main_data.hdf5").num_episodes == 2


def test_without_metadata_hdf5_still_tells_what_it_holds(datasets, tmp_path):
    episodes = [_episode(0, 3, terminal=True), _episode(1, 2, terminal=False)]
    _write("bare/hdf5-v0", episodes, "hdf5", _BOX, _DISCRETE)
    shutil.copytree(datasets / "bare" / "hdf5-v0", tmp_path / "bare-v0")
    (tmp_path / "bare-v0" / "data" / "metadata.json").unlink()
    source = minari_source(tmp_path / "bare-v0")
    assert source.name == "bare-v0"
    assert [len(episode.columns["action"]) for episode in source.read(None)] == [4, 3]


def test_what_is_no_minari_dataset_is_refused_with_the_places_that_were_looked_at(datasets, tmp_path):
    with pytest.raises(FileNotFoundError, match="'nobody/nothing-v0' holds no Minari dataset: expected data/metadata"):
        minari_source("nobody/nothing-v0")
    with pytest.raises(FileNotFoundError, match="MINARI_DATASETS_PATH"):
        minari_source("nobody/nothing-v0")
    (tmp_path / "metadata.json").write_text("no json")
    assert not is_minari(tmp_path)
    (tmp_path / "metadata.json").write_text(json.dumps({"data_format": "zarr", "dataset_id": "mine-v0"}))
    with pytest.raises(ValueError, match="mine-v0: data_format is 'zarr'; 'hdf5', 'arrow' and 'parquet' can be read"):
        minari_source(tmp_path)
    (tmp_path / "metadata.json").write_text(json.dumps({"data_format": "arrow", "dataset_id": "mine-v0"}))
    with pytest.raises(ValueError, match="mine-v0: there is no episode"):
        minari_source(tmp_path)


def test_a_seed_orders_episodes_anew(datasets):
    _write("many/hdf5-v0", [_episode(i, 1, terminal=True) for i in range(12)], "hdf5", _BOX, _DISCRETE)
    source = minari_source("many/hdf5-v0")
    in_order = [episode.id for episode in source.read(None)]
    assert in_order == [f"many/hdf5-v0/{i}" for i in range(12)]  # 10 is behind 9
    shuffled = [(episode.id, episode.columns["observation"][0, 0]) for episode in source.read(3)]
    assert [id for id, _ in shuffled] != in_order
    assert sorted(shuffled, key=lambda pair: in_order.index(pair[0])) == [
        (id, 10 * index) for index, id in enumerate(in_order)
    ]


@pytest.mark.parametrize("data_format", FORMATS)
def test_spaces_of_spaces_images_and_infos_are_those_that_minari_reads(datasets, data_format):
    import minari

    space = gymnasium.spaces
    generator = np.random.default_rng(0)
    n = 3
    observation_space = space.Dict(
        {
            "image": space.Box(0, 255, (32, 40, 3), np.uint8),
            "gray": space.Box(0, 255, (32, 33), np.uint8),
            "pose": space.Tuple((space.Box(-1, 1, (2, 2), np.float64), space.Discrete(5))),
        }
    )
    action_space = space.Dict({"grip": space.MultiBinary(2), "arm": space.Box(-1, 1, (3,), np.float32)})
    episode = _episode(
        0,
        n,
        terminal=True,
        options={"level": 1.5},
        observations={
            "image": generator.integers(0, 256, (n + 1, 32, 40, 3), dtype=np.uint8),
            "gray": generator.integers(0, 256, (n + 1, 32, 33), dtype=np.uint8),
            "pose": (generator.random((n + 1, 2, 2)), generator.integers(0, 5, n + 1)),
        },
        actions={
            "grip": generator.integers(0, 2, (n, 2)).astype(np.int8),
            "arm": generator.random((n, 3)).astype(np.float32),
        },
        infos={
            "energy": [0.5, 1.5, 2.5, 3.5],
            "state": {"matrix": np.arange(16.0).reshape(4, 2, 2)},
            "word": ["a", "b", "c", "d"],
        },
    )
    dataset_id = f"nested/{data_format}-v0"
    _write(dataset_id, [episode], data_format, observation_space, action_space)
    source = minari_source(dataset_id)
    (found,) = source.read(None)
    (expected,) = minari.load_dataset(dataset_id)
    assert isinstance(found.columns["observation"]["pose"], tuple)
    tf.nest.map_structure(np.testing.assert_array_equal, found.columns["observation"], expected.observations)
    for name, leaf in expected.actions.items():
        np.testing.assert_array_equal(found.columns["action"][name], np.concatenate([leaf, 0 * leaf[:1]]))
        assert found.columns["action"][name].dtype == leaf.dtype
    assert found.columns["infos"]["energy"].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert found.columns["infos"]["state"]["matrix"].tolist() == np.arange(16.0).reshape(4, 2, 2).tolist()
    assert found.columns["infos"]["word"].tolist() == [b"a", b"b", b"c", b"d"]
    assert source.step_spec["infos"]["word"] == tf.TensorSpec([], tf.string)
    assert source.not_loaded == ()
    assert found.metadata["options"]["level"] == 1.5


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_fr_021_an_episode_with_one_observation_too_few_is_named_or_skipped(datasets, data_format):
    dataset_id = f"short/{data_format}-v0"
    _write(dataset_id, [_episode(i, 5, terminal=True) for i in range(3)], data_format, _BOX, _DISCRETE)
    folder = datasets / dataset_id / "data"
    if data_format == "hdf5":
        with h5py.File(folder / "main_data.hdf5", "a") as file:
            kept = file["episode_1/observations"][:5]
            del file["episode_1/observations"]
            file["episode_1/observations"] = kept
    else:
        import pyarrow.dataset

        files = {"format": "arrow", "ignore_prefixes": ["metadata.json"]}
        table = pyarrow.dataset.dataset(folder / "1", **files).to_table().slice(0, 5)
        pyarrow.dataset.write_dataset(table, folder / "1", format="arrow", existing_data_behavior="overwrite_or_ignore")
    source = minari_source(dataset_id)
    with pytest.raises(ValueError, match=rf"{dataset_id}, episode 1: its fields differ in length: .*'observation': 5"):
        list(load_rlds(source, layout="transition"))
    episodes = load_rlds(source, layout="transition", on_bad_episode="skip")
    assert [len(frames["action"]) for frames in episodes] == [5, 5]
    assert [str(finding) for finding in episodes.report.dropped] == ["1 with fields of different lengths (episode 1)"]


@pytest.mark.parametrize("part", ["terminations", "truncations", "actions"])
def test_flags_and_actions_of_another_length_are_found(datasets, part):
    dataset_id = f"parts/{part}-v0"
    _write(dataset_id, [_episode(i, 5, terminal=True) for i in range(2)], "hdf5", _BOX, _DISCRETE)
    for length in (4, 6):
        with h5py.File(datasets / dataset_id / "data" / "main_data.hdf5", "a") as file:
            del file[f"episode_1/{part}"]
            file[f"episode_1/{part}"] = np.zeros([length], np.int64 if part == "actions" else bool)
        episodes = load_rlds(minari_source(dataset_id), layout="transition", on_bad_episode="skip")
        assert len(list(episodes)) == 1
        assert episodes.report.dropped[0].episodes == ("1",)


def test_an_end_in_mid_episode_is_a_fault_and_an_end_without_a_flag_is_told(datasets):
    early = [False, True, False]
    episodes = [
        _episode(0, 3, terminal=True, terminations=early),
        _episode(1, 3, terminal=False, truncations=early),
        _episode(2, 3, terminal=False, truncations=[False] * 3),
    ]
    _write("ends/hdf5-v0", episodes, "hdf5", _BOX, _DISCRETE)
    found = load_rlds(minari_source("ends/hdf5-v0"), layout="transition", on_bad_episode="skip")
    assert [len(frames["action"]) for frames in found] == [3]
    assert [str(finding) for finding in (*found.report.dropped, *found.report.repaired)] == [
        "1 with is_terminal in mid-episode (episode 0)",
        "1 with is_last in mid-episode (episode 1)",
        "1 with is_last not set on the last step (episode 2)",
    ]


def test_metadata_that_some_episodes_lack_is_left_out_and_told(datasets):
    _write(
        "seeds/hdf5-v0",
        [_episode(0, 1, terminal=True), _episode(1, 1, terminal=True, seed=None)],
        "hdf5",
        _BOX,
        _DISCRETE,
    )
    source = minari_source("seeds/hdf5-v0")
    assert "seed" not in source.metadata_spec
    assert source.notes == ("episode metadata that episodes do not have alike is left out: seed",)


@pytest.mark.parametrize("data_format", FORMATS)
def test_text_is_bytes_that_the_rules_of_loading_decide_on(datasets, data_format):
    space = gymnasium.spaces.Dict({"mission": gymnasium.spaces.Text(5), "place": _DISCRETE})
    observations = {"mission": ["go", "goes", "gone"], "place": np.array([1, 2, 3])}
    dataset_id = f"text/{data_format}-v0"
    _write(dataset_id, [_episode(0, 2, terminal=True, observations=observations)], data_format, space, _DISCRETE)
    source = minari_source(dataset_id)
    (episode,) = source.read(None)
    assert episode.columns["observation"]["mission"].tolist() == [b"go", b"goes", b"gone"]
    with pytest.raises(ValueError, match="'observation/mission'.*string"):
        load_rlds(source, layout="transition")
    (frames,) = load_rlds(source, layout="transition", fields={"observation/mission": Bytes(4)})
    assert frames["next_observation"]["mission"].tolist() == [list(b"goes"), list(b"gone")]
    (frames,) = load_rlds(source, layout="transition", fields={"observation/mission": Drop()})
    assert frames["observation"]["place"].tolist() == [1, 2]


def test_cartpole_that_gymnasium_played_gives_the_transitions_it_played(datasets):
    environment = gymnasium.make("CartPole-v1", max_episode_steps=12)
    environment.action_space.seed(0)
    episodes = []
    for index in range(3):
        observations, actions, rewards, terminations, truncations = [environment.reset(seed=index)[0]], [], [], [], []
        while not actions or not (terminations[-1] or truncations[-1]):
            actions.append(environment.action_space.sample() if index else len(actions) % 2)
            observation, reward, terminated, truncated, _ = environment.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
        fields = {
            "observations": np.stack(observations),
            "actions": np.stack(actions),
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
        }
        episodes.append(_episode(index, len(actions), terminal=True, **fields))
    _write("cartpole/arrow-v0", episodes, "arrow", environment.observation_space, environment.action_space)
    loaded = load_rlds(minari_source("cartpole/arrow-v0"), layout="transition")
    for frames, played in zip(loaded, episodes, strict=True):
        np.testing.assert_array_equal(frames["observation"], played.observations[:-1])
        np.testing.assert_array_equal(frames["next_observation"], played.observations[1:])
        np.testing.assert_array_equal(frames["action"], played.actions)
        assert frames["is_truncated"].tolist() == played.truncations
        assert frames["discount"].tolist() == [1.0 - terminated for terminated in played.terminations]
    assert loaded.report.truncations >= 1
    environment.close()


def test_the_recorded_dataset_is_that_which_episode_writer_made_of_it(shared_data):
    source = minari_source(shared_data / "sources" / "minari" / "cartpole" / "random-v0")
    written = open_source(shared_data / "minari_cartpole")
    pairs = list(zip(source.read(None), written.read(None), strict=True))
    assert len(pairs) == 6
    for episode, expected in pairs:
        assert set(expected.columns) - set(episode.columns) == {"discount"}
        for field, column in episode.columns.items():
            np.testing.assert_array_equal(column, expected.columns[field])
            assert column.dtype == expected.columns[field].dtype
    loaded, expected = (load_rlds(each, layout="transition") for each in (source, written))
    for frames, others in zip(loaded, expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, frames, others)
    assert (loaded.report.terminals, loaded.report.truncations) == (4, 2)


@pytest.mark.parametrize(("data_format", "module"), [("hdf5", "h5py"), ("arrow", "pyarrow.dataset")])
def test_without_its_library_one_sentence_tells_what_to_install(datasets, monkeypatch, data_format, module):
    dataset_id = f"library/{data_format}-v0"
    _write(dataset_id, [_episode(0, 2, terminal=True)], data_format, _BOX, _DISCRETE)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {module.split('.')[0]}: install replayfeed\[arrays\]"):
        minari_source(dataset_id)


def test_a_space_of_sequences_is_refused_by_name(datasets):
    import pyarrow as pa
    from pyarrow import feather

    dataset_id = "sequences/arrow-v0"
    _write(dataset_id, [_episode(0, 2, terminal=True)], "arrow", _BOX, _DISCRETE)
    (file,) = (datasets / dataset_id / "data" / "0").glob("*.arrow")
    table = pa.ipc.open_file(pa.BufferReader(file.read_bytes())).read_all()
    place = table.column_names.index("observations")
    ragged = pa.array([[1.0], [1.0, 2.0], []])
    feather.write_feather(table.set_column(place, "observations", ragged), file, compression="uncompressed")
    with pytest.raises(
        ValueError, match="step field 'observation' is of dtype object; numbers and strings can be read"
    ):
        minari_source(dataset_id)


def test_an_episode_that_lacks_a_part_is_named_and_a_wrong_count_is_told(datasets, tmp_path):
    episodes = [_episode(0, 3, terminal=True), _episode(1, 2, terminal=False)]
    _write("broken/hdf5-v0", episodes, "hdf5", _BOX, _DISCRETE)
    folder = tmp_path / "broken-v0"
    shutil.copytree(datasets / "broken" / "hdf5-v0", folder)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1/truncations"]
    metadata = json.loads((folder / "data" / "metadata.json").read_text())
    (folder / "data" / "metadata.json").write_text(json.dumps({**metadata, "total_episodes": 6}))
    source = minari_source(folder)
    assert source.notes[-1] == "metadata.json tells of 6 episodes, the data are 2"
    with pytest.raises(ValueError, match="broken/hdf5-v0, episode 1: a part of it is missing: .*truncations"):
        list(source.read(None))
