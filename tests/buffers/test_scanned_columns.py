"""Where a scan keeps frames: the same rows come back from memory and from a file, of which nothing is left."""

import errno
import os
import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayfeed.buffers.known_numbers import KnownNumbers
from replayfeed.buffers.scanned_columns import ScannedColumns

WIDTHS = (3, 1, 5)


def block(first, num):
    """Rows `first`, `first + 1`, ...: each column holds the row's number, its own number and zeros."""
    columns = []
    for number, width in enumerate(WIDTHS):
        column = np.zeros([num, width], np.uint8)
        column[:, 0] = first + np.arange(num)
        if width > 1:
            column[:, 1] = number
        columns.append(column)
    return columns


def files_of(folder):
    """What this process has open in a folder, by any name or none."""
    opened = []
    for number in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the listing's own
            continue
    return [path for path in opened if path.startswith(f"{folder}/")]


@given(
    lengths=st.lists(st.integers(0, 6), max_size=8),
    memory_bytes=st.sampled_from([None, 0, 40, 10_000]),
    data=st.data(),
)
def test_rows_come_back_as_a_naive_list_has_them(lengths, memory_bytes, data):
    naive = []
    with ScannedColumns(WIDTHS, memory_bytes=memory_bytes) as columns:
        for num in lengths:
            columns.append(block(len(naive), num))
            naive += range(len(naive), len(naive) + num)
        assert len(columns) == len(naive)
        assert columns.in_file == (memory_bytes is not None and 9 * len(naive) > memory_bytes)
        rows = data.draw(st.lists(st.sampled_from(naive), max_size=12)) if naive else []
        taken = columns.take(np.array(rows, np.int64))
        assert [column.shape for column in taken] == [(len(rows), width) for width in WIDTHS]
        assert [column[:, 0].tolist() for column in taken] == [rows] * 3
        assert [column[:, 1].tolist() for column in taken if column.shape[1] > 1] == [[0] * len(rows), [2] * len(rows)]
        (last,) = columns.take(np.array(rows, np.int64), [2])
        np.testing.assert_array_equal(last, taken[2])


def test_columns_that_are_no_block_of_memory_are_kept_as_they_are():
    wide = np.arange(24, dtype=np.uint8).reshape(4, 6)
    with ScannedColumns([3], memory_bytes=0) as columns:
        columns.append([wide[::2, ::2]])
        assert columns.take(np.array([1, 0]))[0].tolist() == [[12, 14, 16], [0, 2, 4]]


def test_the_file_has_no_name_and_goes_with_the_context(tmp_path):
    with ScannedColumns([4], memory_bytes=8, folder=tmp_path) as columns:
        columns.append([np.zeros([2, 4], np.uint8)])
        assert files_of(tmp_path) == []  # 8 bytes may stay in memory
        columns.append([np.ones([1, 4], np.uint8)])
        assert len(files_of(tmp_path)) == 1
        assert os.listdir(tmp_path) == []
        assert columns.take(np.arange(3))[0].sum(axis=1).tolist() == [0, 0, 4]
    assert files_of(tmp_path) == []


def test_the_file_goes_when_what_is_inside_fails(tmp_path):
    with pytest.raises(KeyError), ScannedColumns([4], memory_bytes=0, folder=tmp_path) as columns:
        columns.append([np.zeros([2, 4], np.uint8)])
        raise KeyError
    assert files_of(tmp_path) == []


def test_a_disk_without_room_is_one_error_that_tells_the_way_out(tmp_path):
    """No file may get larger than 3,000 bytes, as if the disk were full then."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ScannedColumns([1000], memory_bytes=0, folder=tmp_path) as columns:
        columns.append([np.zeros([1, 1000], np.uint8)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large") as caught:
                columns.append([np.zeros([5, 1000], np.uint8)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    told = str(caught.value)
    assert f"temporary folder {str(tmp_path)!r} (3,000 bytes written, " in told
    assert "give one with more room as temporary_folder, or in TMPDIR" in told


def test_a_folder_that_is_missing_is_told(tmp_path):
    columns = ScannedColumns([4], memory_bytes=0, folder=tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"temporary folder '.*gone' \(0 bytes written\)"):
        columns.append([np.zeros([2, 4], np.uint8)])


@given(st.lists(st.sets(st.integers(0, 60), max_size=20), max_size=10))
def test_numbers_are_known_as_a_python_set_knows_them(batches):
    known, naive = KnownNumbers(np.uint64), set()
    for batch in batches:
        numbers = np.array(sorted(batch), np.uint64)
        is_known = known.contains(numbers)
        assert is_known.tolist() == [number in naive for number in numbers.tolist()]
        known.add(numbers[~is_known])
        naive |= batch
        assert len(known) == len(naive)
        assert known.all().dtype == np.uint64
        assert sorted(known.all().tolist()) == sorted(naive)


def test_numbers_of_all_64_bits_are_told_apart():
    known = KnownNumbers(np.uint64)
    known.add(np.array([0, 2**63, 2**64 - 1], np.uint64))
    assert known.contains(np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1], np.uint64)).tolist() == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
