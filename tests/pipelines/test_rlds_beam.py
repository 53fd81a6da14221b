"""Writing on Apache Beam gives what writing in one process gives."""

from __future__ import annotations

import functools
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines import rlds_beam
from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_beam import split_slices
from replayfeed.pipelines.rlds_write import write_rlds

write_rlds_with_beam = functools.partial(rlds_beam.write_rlds_with_beam, progress=False)

STEP_SPEC = {
    "observation": tf.TensorSpec([2], tf.float64),
    "image": tf.TensorSpec([8, 8, 3], tf.uint8),
    "action": tf.TensorSpec([], tf.int64),
    "reward": tf.TensorSpec([], tf.float32),
    "is_first": tf.TensorSpec([], tf.bool),
    "is_last": tf.TensorSpec([], tf.bool),
    "is_terminal": tf.TensorSpec([], tf.bool),
}


def episode(number: int) -> RawEpisode:
    """Episode `number` has `number % 4 + 1` steps, and is terminal when the number is even."""
    length = number % 4 + 1
    places = np.arange(length)
    columns = {
        "observation": np.stack([places + 0.1, np.full([length], float(number))], axis=1),
        "image": np.random.default_rng(number).integers(0, 256, [length, 8, 8, 3], np.uint8),
        "action": places,
        "reward": places.astype(np.float32) / 3,
        "is_first": places == 0,
        "is_last": places == length - 1,
        "is_terminal": (places == length - 1) & (number % 2 == 0),
    }
    return RawEpisode(str(number), columns, metadata={"number": np.int64(number)})


def numbered(start: int, stop: int) -> EpisodeSource:
    """Episodes `start` to `stop - 1`."""
    return EpisodeSource(
        "numbered",
        STEP_SPEC,
        lambda seed: map(episode, range(start, stop)),
        metadata_spec={"number": tf.TensorSpec([], tf.int64)},
    )


def slices(*bounds: int) -> list[functools.partial[EpisodeSource]]:
    return [functools.partial(numbered, start, stop) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]


def records(folder) -> list[bytes]:
    """All records of a dataset in the order of its files."""
    files = sorted(path for path in os.listdir(folder) if ".tfrecord-" in path)
    paths = [os.path.join(folder, path) for path in files]
    return [record for path in paths for record in tf.data.TFRecordDataset(path).as_numpy_iterator()]


def info(folder) -> dict:
    return json.loads((folder / "dataset_info.json").read_text())


def test_beam_writes_what_write_rlds_writes(tmp_path):
    report = write_rlds_with_beam(slices(0, 3, 4, 9), tmp_path / "beam", name="mine")
    alone = write_rlds(numbered(0, 9), tmp_path / "alone", name="mine", progress=False)
    assert records(tmp_path / "beam") == records(tmp_path / "alone")
    assert (tmp_path / "beam" / "features.json").read_text() == (tmp_path / "alone" / "features.json").read_text()
    assert info(tmp_path / "beam")["splits"][0]["shardLengths"] == ["3", "1", "5"]
    assert info(tmp_path / "beam")["splits"][0]["numBytes"] == info(tmp_path / "alone")["splits"][0]["numBytes"]
    counts = ("episodes", "steps", "terminals", "truncations", "partial", "invalid")
    assert (
        [getattr(report, name) for name in counts] == [getattr(alone, name) for name in counts] == [9, 21, 5, 4, 0, 0]
    )
    assert (report.source, report.shards, report.split) == ("numbered", 3, "train")
    assert sorted(os.listdir(tmp_path)) == ["alone", "beam"]
    assert sorted(os.listdir(tmp_path / "beam")) == [
        "dataset_info.json",
        "features.json",
        *(f"mine-train.tfrecord-0000{index}-of-00003" for index in range(3)),
    ]


def test_tfds_reads_what_beam_wrote(tmp_path):
    import tensorflow_datasets as tfds

    write_rlds_with_beam(slices(0, 2, 5), tmp_path / "beam", name="mine", split="test", description="of mine")
    builder = tfds.builder_from_directory(str(tmp_path / "beam"))
    assert (builder.info.description, builder.info.splits["test"].num_examples) == ("of mine", 5)
    config = tfds.ReadConfig(interleave_cycle_length=1)
    found = list(builder.as_dataset(split="test", read_config=config))
    assert [int(each["number"]) for each in found] == [0, 1, 2, 3, 4]
    steps = list(found[3]["steps"].as_numpy_iterator())
    expected = episode(3).columns
    for field in STEP_SPEC:
        np.testing.assert_array_equal(np.stack([step[field] for step in steps]), expected[field])


def test_a_source_without_episodes_has_no_file(tmp_path):
    report = write_rlds_with_beam(slices(0, 0, 2, 2, 3), tmp_path / "beam", name="mine")
    assert (report.episodes, report.shards) == (3, 2)
    assert info(tmp_path / "beam")["splits"][0]["shardLengths"] == ["2", "1"]


def test_files_of_beam_are_those_of_array_record(tmp_path):
    import tensorflow_datasets as tfds

    write_rlds_with_beam(slices(0, 2, 3), tmp_path / "beam", name="mine", file_format="array_record")
    builder = tfds.builder_from_directory(str(tmp_path / "beam"))
    assert [int(each["number"]) for each in builder.as_data_source("train")] == [0, 1, 2]


def test_episode_metadata_is_added_in_the_workers(tmp_path):
    given = {"recorded_by": "me", "score": 0.1}
    write_rlds_with_beam(slices(0, 2, 3), tmp_path / "beam", name="mine", episode_metadata=given)
    write_rlds(numbered(0, 3), tmp_path / "alone", name="mine", episode_metadata=given, progress=False)
    assert records(tmp_path / "beam") == records(tmp_path / "alone")


def test_folders_and_datasets_are_sources_too(tmp_path):
    write_rlds(numbered(0, 4), tmp_path / "one", name="one", progress=False)
    write_rlds(numbered(4, 6), tmp_path / "two", name="two", progress=False)
    write_rlds_with_beam([tmp_path / "one", str(tmp_path / "two")], tmp_path / "both", name="one")
    write_rlds(numbered(0, 6), tmp_path / "alone", name="one", progress=False)
    assert records(tmp_path / "both") == records(tmp_path / "alone")


def test_other_processes_write_it_too(tmp_path):
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions

    write_rlds(numbered(0, 6), tmp_path / "one", name="one", progress=False)
    options = PipelineOptions(["--direct_running_mode=multi_processing", "--direct_num_workers=2"])
    pipeline = apache_beam.Pipeline(runner="DirectRunner", options=options)
    sources = [functools.partial(_open_slice, str(tmp_path / "one"), part) for part in split_slices("train", 6, 3)]
    report = write_rlds_with_beam(sources, tmp_path / "beam", name="one", pipeline=pipeline)
    assert (report.episodes, report.shards) == (6, 3)
    assert records(tmp_path / "beam") == records(tmp_path / "one")


def _open_slice(path: str, split: str) -> EpisodeSource:
    from replayfeed.pipelines.rlds_open import open_source

    return open_source(path, split=split, fields="all")


def other_fields() -> EpisodeSource:
    return EpisodeSource("other", {**STEP_SPEC, "action": tf.TensorSpec([], tf.int32)}, lambda seed: iter([]))


def broken(error: Exception) -> EpisodeSource:
    def read(seed):
        yield episode(0)
        raise error

    return EpisodeSource("broken", STEP_SPEC, read, metadata_spec={"number": tf.TensorSpec([], tf.int64)})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (other_fields, "other: all sources must have the same fields: 'number' is None here"),
        (functools.partial(broken, ValueError("broken, episode 1: it ends too early")), "broken, episode 1: it ends"),
    ],
)
def test_bad_data_are_told_of_as_write_rlds_does(tmp_path, source, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        write_rlds_with_beam([*slices(0, 2), source, *slices(2, 3)], tmp_path / "beam", name="mine")
    assert os.listdir(tmp_path) == []


def test_a_worker_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(Exception, match="the disk is gone"):
        source = functools.partial(broken, OSError("the disk is gone"))
        write_rlds_with_beam([*slices(0, 2), source], tmp_path / "beam", name="mine")
    assert os.listdir(tmp_path) == []


def test_progress_counts_the_sources_that_are_done_on_stderr_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    rlds_beam.write_rlds_with_beam(slices(0, 1, 2), tmp_path / "beam", name="mine", progress=True)
    told = capsys.readouterr()
    assert told.out == ""
    assert "write mine on Beam: 100%" in told.err and "2/2" in told.err


def test_nothing_to_write_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there are no episodes"):
        write_rlds_with_beam(slices(0, 0, 0), tmp_path / "beam", name="mine")
    with pytest.raises(ValueError, match="sources is empty"):
        write_rlds_with_beam([], tmp_path / "beam", name="mine")
    assert os.listdir(tmp_path) == []


def test_sources_that_are_none_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"sources must be a list of sources, got str; write \[source\] for one"):
        write_rlds_with_beam("folder", tmp_path / "beam", name="mine")
    with pytest.raises(TypeError, match="or a function that opens one in the worker, got EpisodeSource"):
        write_rlds_with_beam([numbered(0, 1)], tmp_path / "beam", name="mine")


def test_a_dataset_that_is_there_is_kept_unless_overwrite(tmp_path):
    write_rlds_with_beam(slices(0, 1), tmp_path / "beam", name="mine")
    with pytest.raises(FileExistsError):
        write_rlds_with_beam(slices(0, 2), tmp_path / "beam", name="mine")
    assert len(records(tmp_path / "beam")) == 1
    write_rlds_with_beam(slices(0, 2), tmp_path / "beam", name="mine", overwrite=True)
    assert len(records(tmp_path / "beam")) == 2


def test_slices_hold_each_episode_once():
    assert split_slices("train", 10, 4) == ("train[0:2]", "train[2:5]", "train[5:7]", "train[7:10]")
    assert split_slices("train", 2, 4) == ("train[0:1]", "train[1:2]")
    assert split_slices("train", 0, 4) == ()


@pytest.mark.parametrize(("split", "num_episodes", "num_slices"), [("train[:5]", 10, 2), ("train", -1, 2), ("a", 1, 0)])
def test_slices_that_cannot_be_are_refused(split, num_episodes, num_slices):
    with pytest.raises(ValueError, match="split must be the name of one split|expected 0 or more episodes"):
        split_slices(split, num_episodes, num_slices)
