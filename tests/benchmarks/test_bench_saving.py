import os

import numpy as np
import pytest


@pytest.fixture
def saving_files(benchmark_module):
    return benchmark_module("saving_files")


def test_every_measure_of_saving_has_a_benchmark(benchmark_names):
    assert benchmark_names >= {
        "saving_save_w1",
        "saving_restore_w1",
        "saving_save_pixels",
        "saving_restore_pixels",
        "saving_incremental",
        "saving_size",
        "saving_adds_w1",
        "saving_adds_pixels",
        "saving_memory_save_w1",
        "saving_memory_save_pixels",
        "saving_memory_adding_w1",
        "saving_memory_adding_pixels",
        "saving_memory_restore_w1",
        "saving_memory_restore_pixels",
        "saving_rounds",
    }


def test_a_save_takes_as_many_bytes_as_there_are_frames(quick_rows):
    one, full = quick_rows("saving_size")
    assert one["measure"] == "bytes on the disk, 1 of 5,000 frames of 84x84 uint8"
    assert one["unit"] == "MB"
    # A frame is 7,056 bytes, 5,000 are 35.28 MB.
    assert 0.007 < one["contenders"]["replayfeed"]["median"] < 0.03
    assert 35.28 < full["contenders"]["replayfeed"]["median"] < 35.5
    assert [bar["met"] for row in (one, full) for bar in row["bars"]] == [True, True]


def test_a_restore_is_held_against_numpy_and_other_libraries_with_the_files_cached_and_not(
    benchmark_module, monkeypatch, tmp_path
):
    monkeypatch.setattr(benchmark_module("peers.environments"), "FOLDER", tmp_path)
    cached, uncached = benchmark_module("saving").saving_restore_w1(benchmark_module("measure").QUICK)
    told = "restore into a new buffer, W1, 10,000 frames, 2 MB, files"
    assert [cached["measure"], uncached["measure"]] == [
        f"{told} in the kernel's cache",
        f"{told} not in the kernel's cache",
    ]
    for row in (cached, uncached):
        assert row["unit"] == "MB/s"
        assert all(contender["median"] > 0 for contender in row["contenders"].values())
        numpy, checked, *others = row["bars"]
        assert (numpy["against"], numpy["bound"], numpy["aim"]) == ("np.load", 0.5, False)
        assert (checked["against"], checked["bound"], checked["aim"]) == ("np.load and zlib.crc32", 1, True)
        assert all(bar["aim"] for bar in others)
    assert cached["not_measured"] == {"cpprb 11.0.0": "no environment; make bench-peers makes it"}


def test_what_prepares_a_call_is_not_timed(benchmark_module):
    """And a window is one call, however short it is."""
    done = []
    contender = benchmark_module("measure").Contender(
        "ours", lambda: done.append("work"), 2.0, prepare=lambda: done.append("prepare")
    )
    for _ in range(2):
        assert contender.window(0.25)["values"] > 0
    assert done == ["prepare", "work"] * 2


def test_a_file_with_two_names_counts_once(saving_files, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    (tmp_path / "first" / "frames").write_bytes(b"12345")
    os.link(tmp_path / "first" / "frames", tmp_path / "second" / "frames")
    (tmp_path / "second" / "new").write_bytes(b"123")
    assert sorted(saving_files.bytes_by_file(tmp_path).values()) == [3, 5]


@pytest.mark.parametrize("sync", [False, True])
def test_files_that_the_kernel_forgot_are_read_as_they_were_written(saving_files, tmp_path, sync):
    arrays = {"action": np.arange(6, dtype=np.float32).reshape(3, 2), "reward": np.array([7, 8, 9], np.int32)}
    saving_files.write_arrays(tmp_path / "arrays", arrays, sync=sync, check=True)
    saving_files.forget(tmp_path / "arrays")
    action, reward = saving_files.read_arrays(tmp_path / "arrays", check=True)
    np.testing.assert_array_equal(action, arrays["action"])
    np.testing.assert_array_equal(reward, arrays["reward"])


def test_each_save_has_a_path_where_nothing_is(saving_files, tmp_path):
    fresh = saving_files.FreshFolder(tmp_path, "ours")
    fresh.renew()
    first = fresh.path
    first.mkdir()
    (first / "frames").write_bytes(b"1")
    fresh.renew()
    assert fresh.path != first
    assert list(tmp_path.iterdir()) == []
