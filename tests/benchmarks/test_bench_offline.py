import numpy as np
import pytest


@pytest.fixture
def offline_data(benchmark_module):
    return benchmark_module("offline_data")


def test_every_measure_of_offline_data_has_a_benchmark(benchmark_names):
    assert benchmark_names >= {
        "offline_floats",
        "offline_served",
        "offline_served_episodes",
        "offline_pixels",
        "offline_write",
        "offline_write_pixels",
        "offline_validate",
        "offline_as_dataset",
        "offline_hdf5",
        "offline_memory_fill",
        "offline_memory_fill_pixels",
        "offline_memory_write",
        "offline_memory_validate",
    }


def test_a_check_is_held_against_reading_and_stands_beside_the_bytes_alone(quick_rows):
    row, opened_before = quick_rows("offline_validate")
    assert row["measure"] == "validate_rlds, floats, 1,000 steps"
    assert row["unit"] == "steps/s"
    reading = "TFDS SkipDecoding, thrown away"
    assert set(row["contenders"]) == {"replayfeed", reading, "TFRecord bytes alone"}
    assert all(contender["median"] > 0 for contender in row["contenders"].values())
    (bar,) = row["bars"]
    assert (bar["against"], bar["bound"], bar["aim"]) == (reading, 0.5, False)
    assert set(opened_before["contenders"]) == {"replayfeed, opened before", f"{reading}, opened before"}


def test_what_a_load_takes_at_most_is_told_without_the_buffer_itself(quick_rows):
    (row,) = quick_rows("offline_memory_fill_pixels")
    assert row["unit"] == "MB"
    # 298 transitions of two pictures of 7,056 bytes, 6 floats of action, reward, discount, and two flags.
    assert "4 MB of it the buffer's" in row["note"]
    (bar,) = row["bars"]
    assert (bar["against"], bar["bound"], bar["at_most"]) == ("300 MB", 1, True)
    assert bar["met"] == (bar["value"] <= 1)


def test_the_data_come_back_from_the_folder_as_they_were_made(offline_data, tmp_path):
    from replayfeed.pipelines.rlds_open import open_source

    data = offline_data.Offline("pixels", num_episodes=2, num_steps=60, pixels=True)
    read = list(open_source(data.write(tmp_path)).read(None))
    assert [len(episode.columns["reward"]) for episode in read] == [60, 60]
    assert (data.steps, data.transitions) == (120, 118)
    assert [bool(episode.columns["is_terminal"][-1]) for episode in read] == [False, True]
    for index, episode in enumerate(read):
        made = data.columns(index)
        assert made["observation"].shape == (60, 84, 84, 1)
        for name, column in made.items():
            np.testing.assert_array_equal(episode.columns[name], column)


def test_the_hdf5_file_holds_the_same_rows(offline_data, tmp_path):
    h5py = pytest.importorskip("h5py")
    data = offline_data.Offline("floats", num_episodes=2, num_steps=5)
    with h5py.File(data.write_hdf5(tmp_path)) as file:
        assert file["terminals"][...].tolist() == [False] * 9 + [True]
        assert file["timeouts"][...].tolist() == [False] * 4 + [True] + [False] * 5
        np.testing.assert_array_equal(file["observations"][5:], data.columns(1)["observation"])
