"""Files of a dataset while they are written: their number, their names, and folders that appear as a whole."""

import os

import pytest
import tensorflow as tf

from replayfeed.pipelines.rlds_write_folder import NewFolder
from replayfeed.pipelines.rlds_write_shards import ShardWriter


def _records(folder, name):
    return [record.decode() for record in tf.data.TFRecordDataset(str(folder / name)).as_numpy_iterator()]


def test_a_file_ends_at_its_size_where_nobody_says_how_many_there_are(tmp_path):
    writer = ShardWriter(os.fspath(tmp_path), "mine-train.tfrecord", "tfrecord", shard_bytes=6)
    for record in (b"abc", b"def", b"longer than six", b"g"):
        writer.write(record)
    assert writer.finish() == [2, 1, 1]
    names = sorted(os.listdir(tmp_path))
    assert names == [f"mine-train.tfrecord-0000{index}-of-00003" for index in range(3)]
    assert [_records(tmp_path, name) for name in names] == [["abc", "def"], ["longer than six"], ["g"]]


def test_records_are_dealt_out_again_over_files_that_were_ended_by_size(tmp_path):
    writer = ShardWriter(os.fspath(tmp_path), "a-b.tfrecord", "tfrecord", num_shards=3, shard_bytes=1)
    for record in b"01234567":
        writer.write(bytes([record]))
    assert writer.finish() == [2, 3, 3]
    names = sorted(os.listdir(tmp_path))
    assert [_records(tmp_path, name) for name in names] == [["0", "1"], ["2", "3", "4"], ["5", "6", "7"]]


def test_no_records_make_no_files(tmp_path):
    assert ShardWriter(os.fspath(tmp_path), "a-b.tfrecord", "tfrecord", num_shards=3, num_records=0).finish() == []
    assert os.listdir(tmp_path) == []


def test_the_folder_of_a_living_writer_is_left_alone(tmp_path):
    first = NewFolder(os.fspath(tmp_path / "data"), overwrite=False)
    second = NewFolder(os.fspath(tmp_path / "data"), overwrite=False)
    assert os.path.isdir(first.temporary)
    first.discard()
    assert os.listdir(tmp_path) == [os.path.basename(second.temporary)]
    (tmp_path / ".data.writing-of-the-dead").mkdir()
    (tmp_path / ".database.writing-of-another").mkdir()
    NewFolder(os.fspath(tmp_path / "data"), overwrite=False).discard()
    assert sorted(os.listdir(tmp_path)) == sorted([os.path.basename(second.temporary), ".database.writing-of-another"])
    second.discard()


def test_a_link_to_a_dataset_stays_a_link(tmp_path):
    real = tmp_path / "disk" / "data"
    real.mkdir(parents=True)
    (real / "dataset_info.json").write_text("old")
    (tmp_path / "link").symlink_to(real)
    folder = NewFolder(os.fspath(tmp_path / "link"), overwrite=True)
    with open(os.path.join(folder.temporary, "dataset_info.json"), "w") as file:
        file.write("new")
    folder.commit()
    assert (tmp_path / "link").is_symlink()
    assert (real / "dataset_info.json").read_text() == "new"
    assert os.listdir(tmp_path / "disk") == ["data"]


def test_others_may_read_what_is_written_as_the_process_is_told_to_let_them(tmp_path):
    folder = NewFolder(os.fspath(tmp_path / "data"), overwrite=False)
    folder.commit()
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "data").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_file_at_the_place_is_never_replaced(tmp_path):
    (tmp_path / "data").write_text("mine")
    with pytest.raises(FileExistsError, match="exists, and is no TFDS dataset"):
        NewFolder(os.fspath(tmp_path / "data"), overwrite=True)
