"""NPZ files: one for each episode, or one of flat arrays."""

import numpy as np
import pytest

from replayfeed.pipelines.npz_episodes import npz_source
from replayfeed.pipelines.rlds_read import load_rlds


def _dreamer(num_transitions, *, start=0, terminal=False, **more):
    """As Dreamer keeps an episode: step i holds the action 10 + i and the reward i / 2 that led to it."""
    count = num_transitions + 1
    index = np.arange(count)
    is_end = index == num_transitions
    return {
        "image": np.full([count, 2, 2, 1], start, np.uint8) + index.astype(np.uint8)[:, None, None, None],
        "action": np.where(index[:, None] > 0, 10 + index[:, None], 0).astype(np.float32),
        "reward": (index / 2).astype(np.float32),
        "discount": (1.0 - (is_end & terminal)).astype(np.float32),
        "is_first": index == 0,
        "is_last": is_end,
        "is_terminal": is_end & terminal,
        **more,
    }


def _save(folder, *episodes):
    folder.mkdir(exist_ok=True)
    for index, arrays in enumerate(episodes):
        np.savez_compressed(folder / f"20240101T{index:06}-{len(arrays['action'])}.npz", **arrays)
    return folder


def test_each_file_is_an_episode(tmp_path):
    folder = _save(tmp_path / "episodes", _dreamer(2, terminal=True), _dreamer(1, start=100))
    source = npz_source(folder)
    assert (source.name, source.num_episodes) == ("episodes", 2)
    first, second = source.read(None)
    assert first.columns["observation"]["image"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert first.columns["is_terminal"].tolist() == [False, False, True]
    assert second.columns["observation"]["image"][:, 0, 0, 0].tolist() == [100, 101]
    assert (first.id, first.place) == ("20240101T000000-3.npz", 0)


def test_dreamers_alignment_is_told_of_and_moved_when_asked(tmp_path):
    source = npz_source(_save(tmp_path / "episodes", _dreamer(2, terminal=True)))
    assert any("alignment='ars' moves them" in note for note in source.notes)
    (frames,) = load_rlds(source, layout="transition", alignment="ars")
    assert frames["observation"]["image"][:, 0, 0, 0].tolist() == [0, 1]
    assert frames["action"].tolist() == [[11], [12]]
    assert frames["reward"].tolist() == [0.5, 1]
    assert frames["discount"].tolist() == [1, 0]
    (frames,) = load_rlds(source, layout="transition")
    assert frames["action"].tolist() == [[0], [11]]  # as it stands, which nothing guesses about


def test_an_episode_in_rlds_alignment_is_not_told_of(tmp_path):
    arrays = {"observation": np.arange(3.0), "action": np.array([10, 11, 0]), "reward": np.array([1.0, 2.0, 0.0])}
    source = npz_source(_save(tmp_path / "episodes", {**arrays, "is_terminal": np.array([False, False, True])}))
    assert source.notes == ()
    (frames,) = load_rlds(source, layout="transition")
    assert frames["action"].tolist() == [10, 11]


def test_without_is_terminal_a_discount_of_0_ends(tmp_path):
    arrays = _dreamer(2, terminal=True)
    for flag in ("is_first", "is_last", "is_terminal"):
        del arrays[flag]
    (episode,) = npz_source(_save(tmp_path / "episodes", arrays)).read(None)
    assert episode.columns["is_first"].tolist() == [True, False, False]
    assert episode.columns["is_last"].tolist() == [False, False, True]
    assert episode.columns["is_terminal"].tolist() == [False, False, True]
    del arrays["discount"]
    with pytest.raises(ValueError, match="there is no 'is_terminal' and no discount"):
        npz_source(_save(tmp_path / "none", arrays))


def test_beside_an_observation_arrays_are_step_metadata_and_single_values_that_of_episodes(tmp_path):
    episodes = [
        {
            "observation/pose": np.arange(3.0),
            "observation/sound": np.arange(3) + 5,
            "action": np.arange(3),
            "is_terminal": np.zeros(3, bool),
            "log_prob": np.array([-1.0, -2.0, 0.0]),
            "log_word": np.array(["a", "b", "c"]),
            "seed": np.int64(seed),
            "task": np.array("walk"),
        }
        for seed in (3, 4)
    ]
    source = npz_source(_save(tmp_path / "episodes", *episodes))
    first, second = source.read(None)
    assert first.columns["observation"]["sound"].tolist() == [5, 6, 7]
    assert first.columns["log_prob"].tolist() == [-1, -2, 0]
    assert first.columns["log_word"].tolist() == [b"a", b"b", b"c"]
    assert (first.metadata, second.metadata) == ({"seed": 3, "task": b"walk"}, {"seed": 4, "task": b"walk"})
    assert source.metadata_spec["seed"].dtype == np.int64


def test_one_file_of_flat_arrays_is_cut_at_its_flags(tmp_path):
    index = np.arange(5)
    np.savez(tmp_path / "flat.npz", observations=index, actions=index, terminals=index == 1, timeouts=index == 4)
    source = npz_source(tmp_path / "flat.npz")
    assert source.name == "flat"
    assert [episode.columns["observation"].tolist() for episode in source.read(None)] == [[0, 1, 0], [2, 3, 4]]
    np.savez(tmp_path / "bare.npz", observations=index, actions=index)
    source = npz_source(tmp_path / "bare.npz", episode_length=3)
    assert [len(episode.columns["action"]) for episode in source.read(None)] == [3, 2]


def test_files_come_in_the_order_in_which_they_are_given_and_a_seed_orders_them_anew(tmp_path):
    folder = _save(tmp_path / "episodes", *(_dreamer(1, start=10 * i) for i in range(12)))
    files = sorted(folder.iterdir(), reverse=True)
    source = npz_source(files, name="mine")
    assert source.name == "mine"
    in_order = [int(episode.columns["observation"]["image"][0, 0, 0, 0]) for episode in source.read(None)]
    assert in_order == list(range(110, -1, -10))
    shuffled = [int(episode.columns["observation"]["image"][0, 0, 0, 0]) for episode in source.read(5)]
    assert shuffled != in_order
    assert sorted(shuffled, reverse=True) == in_order
    assert [episode.place for episode in source.read(5)] == [11 - start // 10 for start in shuffled]


def test_lengths_that_differ_are_a_fault_of_that_episode(tmp_path):
    bad = {**_dreamer(2), "reward": np.zeros(2, np.float32)}
    source = npz_source(_save(tmp_path / "episodes", _dreamer(2), bad))
    with pytest.raises(ValueError, match="episodes, episode 1: its fields differ in length"):
        list(load_rlds(source, layout="transition"))
    episodes = load_rlds(source, layout="transition", on_bad_episode="skip")
    assert len(list(episodes)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": None}, r"it and the first file do not both hold \['reward'\]"),
        ({"depth": np.zeros(3)}, r"it and the first file do not both hold \['depth'\]"),
        (
            {"action": np.zeros([3, 4], np.float32)},
            r"field 'action': .* float32 \(1,\) a step, this one float32 \(4,\)",
        ),
        ({"reward": np.float32(1)}, r"\['reward'\]: expected the steps of an episode, \[N \+ 1, ...\], got one value"),
    ],
)
def test_files_that_are_not_like_the_first_are_refused_by_name(tmp_path, change, message):
    odd = {key: array for key, array in {**_dreamer(2), **change}.items() if array is not None}
    source = npz_source(_save(tmp_path / "episodes", _dreamer(2), odd))
    with pytest.raises(ValueError, match=rf"20240101T000001-3\.npz: {message}"):
        list(source.read(None))


def test_what_is_no_npz_file_is_refused_and_objects_are_never_loaded(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.npz"):
        npz_source(tmp_path / "none.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"there is no \.npz in .*empty"):
        npz_source(tmp_path / "empty")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match=r"text\.npz: not an NPZ file of arrays"):
        npz_source(tmp_path / "text.npz")
    np.savez(tmp_path / "objects.npz", observation=np.array([{}, {}]), is_terminal=np.zeros(2, bool))
    with pytest.raises(ValueError, match=r"objects\.npz: not an NPZ file of arrays .*allow_pickle=False"):
        npz_source(tmp_path / "objects.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"one\.npy: not an NPZ file of arrays"):
        npz_source(tmp_path / "one.npy")
    folder = _save(tmp_path / "episodes", _dreamer(1))
    with pytest.raises(ValueError, match="episodes: episode_length is for flat arrays"):
        npz_source(folder, episode_length=3)


def test_a_file_without_arrays_or_without_ends_is_refused_with_what_is_missing(tmp_path):
    np.savez(tmp_path / "empty.npz")
    with pytest.raises(ValueError, match="empty.npz: holds no arrays"):
        npz_source(tmp_path / "empty.npz")
    np.savez(tmp_path / "flat.npz", observations=np.arange(3), dones=np.array([0, 0, 1]))
    with pytest.raises(ValueError, match=r"cannot be told apart; found \['dones', 'observations'\]. .*not 'dones'"):
        npz_source(tmp_path / "flat.npz")
