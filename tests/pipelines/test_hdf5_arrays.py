"""HDF5 files: flat arrays as D4RL keeps them, and a group for each episode as robomimic does."""

import sys

import h5py
import numpy as np
import pytest

from replayfeed.pipelines.array_files import array_source_of
from replayfeed.pipelines.hdf5_arrays import hdf5_source
from replayfeed.pipelines.rlds_open import open_source
from replayfeed.pipelines.rlds_read import load_rlds


def _write(path, arrays):
    with h5py.File(path, "w") as file:
        for place, array in arrays.items():
            file[place] = array
    return path


def _flat(**more):
    index = np.arange(6)
    return {
        "observations": index.astype(np.float32),
        "actions": index + 10,
        "rewards": index / 2,
        "terminals": np.isin(index, [2]),
        "timeouts": np.isin(index, [5]),
        **more,
    }


def _demo(count, *, start=0, done_at=None, **more):
    """A robomimic group of `count` rows: observations count from `start`."""
    index = np.arange(count)
    return {
        "obs/pose": (index + start).astype(np.float64),
        "actions": index,
        "rewards": index / 2,
        "dones": np.isin(index, [done_at]).astype(np.int64),
        **more,
    }


def _demos(path, *demos):
    return _write(
        path, {f"data/demo_{i}/{place}": array for i, demo in enumerate(demos) for place, array in demo.items()}
    )


def _next(count, start=0):
    return {"next_obs/pose": np.arange(count, dtype=np.float64) + start + 1}


def test_a_d4rl_file_gives_what_its_arrays_give(tmp_path):
    path = _write(tmp_path / "hopper_medium-v2.hdf5", _flat())
    source = hdf5_source(path)
    assert (source.name, source.num_episodes, source.is_d4rl) == ("hopper_medium-v2", 2, True)
    first, second = (episode.columns for episode in source.read(None))
    assert first["observation"].tolist() == [0, 1, 2, 0]
    assert first["is_terminal"].tolist() == [False, False, False, True]
    assert second["observation"].tolist() == [3, 4, 5]
    assert second["is_last"].tolist() == [False, False, True]
    assert second["is_terminal"].tolist() == [False, False, False]


def test_what_is_below_infos_is_step_metadata_and_below_metadata_that_of_episodes(tmp_path):
    more = {
        "infos/qpos": np.arange(12.0).reshape(6, 2),
        "metadata/algorithm": "SAC",
        "metadata/iteration": np.int32(7),
        "metadata/policy/fc0/bias": np.array([0.5, 1.5]),
    }
    source = hdf5_source(_write(tmp_path / "mine.hdf5", _flat(**more)))
    first, second = source.read(None)
    assert second.columns["infos"]["qpos"].tolist() == [[6, 7], [8, 9], [10, 11]]
    assert first.columns["infos"]["qpos"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 0]]
    assert first.metadata["algorithm"] == b"SAC"
    assert first.metadata["iteration"] == 7
    assert first.metadata["policy"]["fc0"]["bias"].tolist() == [0.5, 1.5]
    assert source.metadata_spec["iteration"].dtype == np.int32


def test_strings_of_fixed_and_of_variable_length_are_bytes(tmp_path):
    more = {"infos/fixed": np.array([b"a"] * 6), "infos/word": np.array(["x", "yy"] * 3, h5py.string_dtype())}
    source = hdf5_source(_write(tmp_path / "mine.hdf5", _flat(**more)))
    first, _ = source.read(None)
    assert first.columns["infos"]["word"].tolist() == [b"x", b"yy", b"x", b""]
    assert first.columns["infos"]["fixed"].tolist() == [b"a", b"a", b"a", b""]


def test_fields_of_variable_length_stay_behind_and_are_named(tmp_path):
    path = _write(tmp_path / "mine.hdf5", _flat())
    with h5py.File(path, "a") as file:
        tags = file.create_dataset("tags", [6], h5py.vlen_dtype(np.int64))
        tags[0] = [1, 2]
    assert hdf5_source(path).not_loaded == ("tags (of dtype object)",)


def test_compressed_chunks_are_read_in_order_and_shuffled(tmp_path):
    index = np.arange(5000)
    arrays = {"observations": np.stack([index, -index], 1), "actions": index, "terminals": index % 7 == 6}
    path = tmp_path / "mine.hdf5"
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, compression="gzip", chunks=(64, *array.shape[1:]))
    source = hdf5_source(path)
    assert source.num_episodes == 715  # of which the last has 2 rows
    for seed in (None, 3):
        episodes = list(source.read(seed))
        assert sorted(int(episode.name) for episode in episodes) == list(range(715))
        assert all(episode.place == int(episode.name) for episode in episodes)
        for episode in episodes:
            first = 7 * episode.place
            count = min(7, 5000 - first)
            assert episode.columns["action"][:count].tolist() == list(range(first, first + count))
            assert episode.columns["observation"][:count, 1].tolist() == list(range(-first, -first - count, -1))
    assert [episode.place for episode in episodes] != list(range(715))


def test_reads_that_are_left_off_close_the_file(tmp_path):
    path = _write(tmp_path / "mine.hdf5", _flat())
    reading = hdf5_source(path).read(None)
    next(reading)
    reading.close()
    with h5py.File(path, "a") as file:  # HDF5 refuses to write what is open for reading
        file["more"] = 1


def test_robomimic_groups_are_episodes_in_the_order_of_their_numbers(tmp_path):
    demos = [_demo(2, start=10 * i, done_at=1, **_next(2, 10 * i)) for i in range(11)]
    source = hdf5_source(_demos(tmp_path / "lift.hdf5", *demos))
    assert source.num_episodes == 11
    episodes = list(source.read(None))
    assert [episode.id for episode in episodes[-2:]] == ["lift/data/demo_9", "lift/data/demo_10"]
    columns = episodes[10].columns
    assert columns["observation"]["pose"].tolist() == [100, 101, 102]
    assert columns["action"].tolist() == [0, 1, 0]
    assert columns["reward"].tolist() == [0, 0.5, 0]
    assert columns["is_first"].tolist() == [True, False, False]
    assert columns["is_last"].tolist() == columns["is_terminal"].tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("done_at", "following", "observations", "is_terminal"),
    [(2, True, [0, 1, 2, 3], True), (None, True, [0, 1, 2, 3], False),
     (2, False, [0, 1, 2, 0], True), (None, False, [0, 1, 2], False)],
)  # fmt: skip
def test_the_last_transition_of_a_group_is_kept_where_it_is_known(
    tmp_path, done_at, following, observations, is_terminal
):
    demo = _demo(3, done_at=done_at, **(_next(3) if following else {}))
    source = hdf5_source(_demos(tmp_path / "lift.hdf5", demo))
    assert any("cannot be recovered" in note for note in source.notes) is not following
    (episode,) = source.read(None)
    assert episode.columns["observation"]["pose"].tolist() == observations
    assert episode.columns["is_last"].tolist() == [False] * (len(observations) - 1) + [True]
    assert episode.columns["is_terminal"].tolist() == [False] * (len(observations) - 1) + [is_terminal]


def test_a_group_with_an_observation_more_than_actions_has_its_final_one(tmp_path):
    demo = {**_demo(3, done_at=None), "obs/pose": np.arange(4.0), "states": np.arange(3.0), "sensor": np.arange(4.0)}
    (episode,) = hdf5_source(_demos(tmp_path / "lift.hdf5", demo)).read(None)
    assert episode.columns["observation"]["pose"].tolist() == [0, 1, 2, 3]
    assert episode.columns["states"].tolist() == [0, 1, 2, 0]
    assert episode.columns["sensor"].tolist() == [0, 1, 2, 3]


def test_what_a_group_cannot_give_is_named(tmp_path):
    demo = {**_demo(2, **_next(2)), "is_first": np.ones(2, bool), "scale": 3.0}
    del demo["dones"]
    source = hdf5_source(_demos(tmp_path / "lift.hdf5", demo))
    assert source.not_loaded == (
        "is_first (RLDS's name of a field that has another name here)",
        "scale (one value and no rows)",
    )
    assert source.notes == ("there are no terminals, terminations, dones: no episode counts as terminal",)


def test_attributes_of_groups_are_episode_metadata(tmp_path):
    path = _demos(tmp_path / "lift.hdf5", _demo(2, **_next(2)), _demo(3, **_next(3)))
    with h5py.File(path, "a") as file:
        for index in range(2):
            file[f"data/demo_{index}"].attrs["num_samples"] = index + 2
            file[f"data/demo_{index}"].attrs["model_file"] = "<mujoco/>"
        file["data/demo_1"].attrs["more"] = 1
        file["mask/train"] = np.array([b"demo_0"])
        file["data/notes"] = "here"
    source = hdf5_source(path)
    assert [episode.metadata for episode in source.read(None)] == [
        {"model_file": b"<mujoco/>", "num_samples": 2},
        {"model_file": b"<mujoco/>", "num_samples": 3},
    ]
    assert source.notes == (
        "episode metadata that episodes do not have alike is left out: more",
        "groups without observations are left out: notes",
    )


def test_dones_in_mid_episode_are_a_fault_that_a_repair_ends_at(tmp_path):
    path = _demos(tmp_path / "lift.hdf5", _demo(4, done_at=1, **_next(4)))
    with pytest.raises(ValueError, match="lift, episode 0: is_terminal is set at step 2 of 5"):
        list(load_rlds(hdf5_source(path), layout="transition"))
    (frames,) = load_rlds(hdf5_source(path), layout="transition", on_bad_episode="repair")
    assert frames["discount"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("place", "has_next"),
    [
        *(
            (place, has_next)
            for place in ("obs/pose", "actions", "rewards", "dones", "truncations")
            for has_next in (0, 1)
        ),
        ("next_obs/pose", 1),
    ],
)
@pytest.mark.parametrize("count", [2, 5])
def test_fr_021_parts_of_another_length_are_a_fault_of_that_episode(tmp_path, place, count, has_next):
    whole = _demo(3, done_at=2, truncations=np.zeros(3, bool), **(_next(3) if has_next else {}))
    bad = {**whole, place: np.zeros([count], whole[place].dtype)}
    source = hdf5_source(_demos(tmp_path / "lift.hdf5", whole, bad))
    with pytest.raises(ValueError, match="lift, episode 1: its fields differ in length"):
        list(load_rlds(source, layout="transition"))
    episodes = load_rlds(source, layout="transition", on_bad_episode="skip")
    assert len(list(episodes)) == 1
    assert [str(finding) for finding in episodes.report.dropped] == ["1 with fields of different lengths (episode 1)"]


def test_next_observations_that_disagree_in_a_group_are_told(tmp_path, caplog):
    following = {"next_obs/pose": np.array([1.0, 7.0, 3.0])}
    (episode,) = hdf5_source(_demos(tmp_path / "lift.hdf5", {**_demo(3), **following})).read(None)
    assert episode.columns["observation"]["pose"].tolist() == [0, 1, 2, 3]
    assert "lift, episode 0: 1 next observations are not the observations of the following row" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs/pose": None}, r"groups|expected 'observations'"),
        ({"actions": None}, r"episode 1: its fields are not those of the episodes before: without \['action'\]"),
        ({"states": None}, "episode 1: there is no 'states', which the first episode has"),
        ({"obs/more": np.zeros(2), "next_obs/more": np.zeros(2)}, r"with \['observation/more'\] beside them"),
        (
            {"actions": np.zeros([2, 4])},
            r"field 'action': the episodes before hold int64 \(\) a step, this one float64",
        ),
        (
            {"next_obs/other": np.zeros(2)},
            r"the next observations hold \['other', 'pose'\], the observations \['pose'\]",
        ),
    ],
)
def test_groups_that_are_not_like_the_first_are_refused_by_name(tmp_path, change, message):
    whole = _demo(2, states=np.zeros(2), **_next(2))
    odd = {place: array for place, array in {**whole, **change}.items() if array is not None}
    path = _demos(tmp_path / "lift.hdf5", whole, odd)
    if "obs/pose" in change:
        assert hdf5_source(path).notes == ("groups without observations are left out: demo_1",)
        return
    with pytest.raises(ValueError, match=message):
        list(hdf5_source(path).read(None))


def test_what_is_neither_kind_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        hdf5_source(tmp_path / "none.hdf5")
    (tmp_path / "text.hdf5").write_text("no HDF5")
    with pytest.raises(ValueError, match=r"text\.hdf5' is no HDF5 file"):
        hdf5_source(tmp_path / "text.hdf5")
    path = _write(tmp_path / "mine.hdf5", {"states": np.zeros(3)})
    with pytest.raises(ValueError, match=r"mine: expected 'observations', .* got \['states'\]"):
        hdf5_source(path)
    with pytest.raises(ValueError, match="read it with minari_source"):
        hdf5_source(_write(tmp_path / "main_data.hdf5", _flat()))
    with pytest.raises(ValueError, match="lift: episode_length is for flat arrays"):
        hdf5_source(_demos(tmp_path / "lift.hdf5", _demo(2)), episode_length=3)


def test_a_length_and_a_name_reach_flat_arrays(tmp_path):
    source = hdf5_source(_write(tmp_path / "mine.hdf5", _flat()), name="yours", episode_length=2)
    assert (source.name, source.num_episodes) == ("yours", 4)


def test_paths_are_told_apart_by_what_they_hold(tmp_path):
    assert array_source_of(_write(tmp_path / "mine.hdf5", _flat())).num_episodes == 2
    assert array_source_of(_write(tmp_path / "mine.H5", _flat())).num_episodes == 2
    np.savez(tmp_path / "mine.npz", **_flat())
    assert array_source_of(tmp_path / "mine.npz").num_episodes == 2
    (tmp_path / "folder").mkdir()
    assert array_source_of(tmp_path / "folder") is None
    assert array_source_of("cartpole") is None
    assert array_source_of(tmp_path / "data.tfrecord-00000-of-00001") is None
    np.savez(tmp_path / "folder" / "0.npz", observation=np.zeros(3), is_terminal=np.zeros(3, bool))
    assert array_source_of(tmp_path / "folder").num_episodes == 1
    with pytest.raises(FileNotFoundError):
        array_source_of(tmp_path / "none.hdf5")


def test_load_rlds_takes_the_path_of_each_kind(tmp_path):
    _write(tmp_path / "mine.hdf5", _flat())
    np.savez(tmp_path / "mine.npz", **_flat())
    for path in (tmp_path / "mine.hdf5", str(tmp_path / "mine.npz")):
        episodes = load_rlds(path, layout="transition")
        assert [frames["action"].tolist() for frames in episodes] == [[10, 11, 12], [13, 14]]
        assert [frames["discount"].tolist() for frames in episodes] == [[1, 1, 0], [1, 1]]
    with pytest.raises(ValueError, match="split='test' is for names and folders"):
        load_rlds(tmp_path / "mine.hdf5", "test", layout="transition")


def test_the_recorded_hopper_gives_the_transitions_that_tfds_made_of_it(shared_data):
    ours = load_rlds(hdf5_source(shared_data / "sources" / "hopper.hdf5"), layout="transition")
    theirs = load_rlds(shared_data / "d4rl_hopper", layout="transition")

    def transitions(episodes):
        # TFDS keeps episodes in an order of its own.
        return sorted((frames for frames in episodes), key=lambda frames: frames["observation"][0].tobytes())

    pairs = list(zip(transitions(ours), transitions(theirs), strict=True))
    assert sum(len(frames["action"]) for frames, _ in pairs) == 298
    for frames, expected in pairs:
        assert set(frames) == set(expected)
        for field, column in frames.items():
            np.testing.assert_array_equal(column, expected[field])
            assert column.dtype == expected[field].dtype
    assert (ours.report.terminals, ours.report.truncations) == (8, 2)
    assert (theirs.report.terminals, theirs.report.truncations) == (8, 2)


def test_with_next_observations_we_keep_what_tfds_builders_lose(tmp_path):
    """The last observation of each episode is its own; TFDS takes the final row of the whole file for each."""
    dataset_utils = pytest.importorskip("tensorflow_datasets.d4rl.dataset_utils")
    arrays = _flat(next_observations=np.array([1, 2, 30, 4, 5, 60], np.float32))
    path = _write(tmp_path / "mine.hdf5", arrays)
    ours = [episode.columns["observation"].tolist() for episode in hdf5_source(path).read(None)]
    assert ours == [[0, 1, 2, 30], [3, 4, 5, 60]]
    theirs = [episode["steps"]["observation"].tolist() for _, episode in dataset_utils.generate_examples(str(path))]
    assert theirs == [[0, 1, 2, 60], [3, 4, 5, 60]]


def test_open_source_takes_an_hdf5_source_with_rules_for_its_fields(tmp_path):
    path = _write(tmp_path / "mine.hdf5", _flat(**{"infos/qpos": np.zeros([6, 2])}))
    assert "infos" not in open_source(hdf5_source(path), fields=["observation", "action"]).step_spec


def test_without_h5py_one_sentence_tells_what_to_install(tmp_path, monkeypatch):
    path = _write(tmp_path / "mine.hdf5", _flat())
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"reading HDF5 files needs h5py: install replayfeed\[arrays\]"):
        hdf5_source(path)
