"""The command `replayfeed`: what it prints where, and its exit codes."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from replayfeed.buffers import ReplayServer, ReverbEpisodicReplayBuffer, ReverbReplayBuffer, TableConfig
from replayfeed.cli import served
from replayfeed.cli.commands import app
from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_read import load_rlds
from replayfeed.pipelines.rlds_write import write_rlds


@pytest.fixture
def run():
    """Runs the command in this process; the result has exit_code, stdout and stderr."""
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def numbers(lengths: list[int], *, early: int | None = None) -> EpisodeSource:
    """Terminal episodes of so many steps, the one with the index `early` terminal a step too early as well."""
    spec = {
        "observation": tf.TensorSpec([2], tf.float32),
        "action": tf.TensorSpec([], tf.int64),
        "reward": tf.TensorSpec([], tf.float64),
        "discount": tf.TensorSpec([], tf.float32),
        "is_first": tf.TensorSpec([], tf.bool),
        "is_last": tf.TensorSpec([], tf.bool),
        "is_terminal": tf.TensorSpec([], tf.bool),
    }

    def read(seed):
        for index, length in enumerate(lengths):
            places = np.arange(length)
            columns = {
                "observation": np.stack([places, places + 0.5 + index], axis=1).astype(np.float32),
                "action": places,
                "reward": places * 0.1,
                "discount": np.ones([length], np.float32),
                "is_first": places == 0,
                "is_last": places == length - 1,
                "is_terminal": places >= length - (2 if index == early else 1),
            }
            yield RawEpisode(str(index), columns)

    return EpisodeSource("numbers", spec, read)


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """A dataset of three sound episodes: of 3, 4 and 2 steps."""
    write_rlds(numbers([3, 4, 2]), tmp_path / "numbers", name="numbers", progress=False)
    return tmp_path / "numbers"


@pytest.fixture
def bad_folder(tmp_path) -> pathlib.Path:
    """One whose second episode of three is terminal too early."""
    write_rlds(numbers([3, 4, 2], early=1), tmp_path / "bad", name="bad", progress=False)
    return tmp_path / "bad"


def steps_of(path) -> list[dict[str, list]]:
    episodes = load_rlds(str(path), layout="transition", reward_dtype=tf.float64)
    return [tf.nest.map_structure(lambda leaf: leaf.tolist(), frames) for frames in episodes]


# -- help and start ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["import", "export", "validate"])
def test_help_tells_of_each_command_with_an_example(run, command):
    assert command in run("--help").stdout
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: replayfeed {command} " in result.stdout


def test_the_commands_are_told_of_before_tensorflow_is_imported(run_python):
    code = (
        "import sys\n"
        "from replayfeed.cli.main import main\n"
        "try:\n    main(['validate', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'tensorflow', 'numpy', 'replayfeed.pipelines'} & set(sys.modules)))"
    )
    assert run_python(code).splitlines()[-1] == "[]"


def test_without_typer_one_sentence_says_what_to_install(run_python):
    code = (
        "import sys; sys.modules['typer'] = None\n"
        "from replayfeed.cli.main import main\n"
        "import contextlib, io\n"
        "told = io.StringIO()\n"
        "with contextlib.redirect_stderr(told):\n"
        "    try:\n        main(['--help'])\n"
        "    except SystemExit as end:\n        code = end.code\n"
        "print(code, told.getvalue())"
    )
    printed = run_python(code)
    assert printed.startswith("2 replayfeed: its commands need typer: install replayfeed[cli]")
    assert len(printed.strip().splitlines()) == 1


def test_the_module_runs_as_a_command(folder):
    command = [sys.executable, "-m", "replayfeed.cli", "validate", str(folder), "--json"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["episodes"] == 3
    assert "Traceback" not in process.stderr


# -- validate ------------------------------------------------------------------------------------


def test_validate_prints_a_table_and_ends_with_0(run, folder):
    result = run("validate", folder)
    assert result.exit_code == 0, result.stderr
    assert "3 episodes, 9 steps, 6 transitions" in result.stdout


def test_validate_ends_with_1_when_something_needs_a_decision(run, bad_folder):
    result = run("validate", bad_folder, "--quiet")
    assert result.exit_code == 1
    assert "is_terminal is set before the last step: 1 episode" in result.stdout
    assert result.stderr == ""


def test_validate_ends_with_1_when_nothing_can_be_loaded_and_draws_it_all_the_same(run, tmp_path):
    write_rlds(numbers([1, 1]), tmp_path / "short", name="short", progress=False)
    result = run("validate", tmp_path / "short", "--picture", tmp_path / "picture.png")
    assert result.exit_code == 1, result.stderr
    assert "no episode has a transition that can be loaded" in result.stdout
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_validate_writes_strict_json_and_nothing_else_on_stdout(run, bad_folder):
    result = run("validate", bad_folder, "--json")
    report = json.loads(result.stdout)
    assert (report["needs_decision"], report["episodes"], result.exit_code) == (True, 3, 1)


def test_validate_draws_a_picture(run, folder, tmp_path):
    result = run("validate", folder, "--picture", tmp_path / "picture.png")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("picture.unknown", "has to end in one of"),
        ("nowhere/picture.png", "there is no folder"),
        ("", "is a folder"),
    ],
)
def test_a_picture_that_cannot_be_written_is_told_before_anything_is_read(run, folder, tmp_path, name, message):
    result = run("validate", folder, "--picture", tmp_path / name)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.strip().splitlines()
    assert message in line


def test_a_result_that_cannot_be_printed_is_told_in_one_line(folder):
    command = [sys.executable, "-m", "replayfeed.cli", "validate", str(folder), "--quiet"]
    with open("/dev/full", "w") as full:
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=400)
    assert process.returncode == 2
    assert process.stderr.strip() == "replayfeed: the result cannot be printed: [Errno 28] No space left on device"


def test_validate_reads_no_more_than_the_limit(run, folder):
    assert "2 episodes, a part of them" in run("validate", folder, "--limit", 2).stdout


# -- usage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("validate",), ("import",)])
def test_a_folder_that_is_not_there_is_wrong_usage_told_in_one_line(run, tmp_path, command):
    targets = [tmp_path / "new"] if command == ("import",) else []
    result = run(*command, tmp_path / "missing", *targets)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("replayfeed: ") and "missing" in line


def test_debug_shows_where_an_error_came_from(run, tmp_path):
    result = run("validate", tmp_path / "missing", "--debug")
    assert "Traceback" in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("replayfeed: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("unknown",),
        ("validate",),
        ("validate", "x", "--limit", "0"),
        ("import", "x", "y", "--on-bad-episode", "hide"),
        ("import", "x", "y", "--beam-slices", "3"),
        ("import", "x", "y", "--beam", "--limit", "3"),
        ("import", "x", "y", "--name", "a-b"),
        ("export", "x:1", "y", "z", "--as-split", "a b"),
        ("export", "localhost", "y", "z"),
    ],
)
def test_wrong_options_end_with_2(run, arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


# -- import --------------------------------------------------------------------------------------


def test_import_writes_a_folder_that_holds_the_same(run, folder, tmp_path):
    result = run("import", folder, tmp_path / "new", "--name", "mine")
    assert result.exit_code == 0, result.stderr
    assert "episodes     3 (3 terminal, 0 truncated, 0 partial)" in result.stdout
    assert steps_of(tmp_path / "new") == steps_of(folder)
    assert (tmp_path / "new" / "mine-train.tfrecord-00000-of-00001").exists()


def test_import_writes_of_files_of_arrays(run, tmp_path):
    np.savez(
        tmp_path / "flat.npz",
        observations=np.arange(8, dtype=np.float32).reshape(4, 2),
        actions=np.arange(4),
        rewards=np.array([0.0, 1.0, 2.0, 3.0], np.float32),
        terminals=np.array([False, True, False, True]),
    )
    result = run("import", tmp_path / "flat.npz", tmp_path / "new")
    assert result.exit_code == 0, result.stderr
    assert [frames["reward"] for frames in steps_of(tmp_path / "new")] == [[0.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_arrays_without_flags_are_cut_by_length(run, tmp_path, ending):
    arrays = {
        "observations": np.arange(12, dtype=np.float32).reshape(6, 2),
        "actions": np.arange(6),
        "rewards": np.arange(6, dtype=np.float32),
        "terminals": np.zeros([6], bool),
    }
    path = tmp_path / f"flat.{ending}"
    if ending == "npz":
        np.savez(path, **arrays)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, column in arrays.items():
                file[name] = column
    refused = run("validate", path)
    assert refused.exit_code == 2
    assert refused.stderr.rstrip().endswith("; on the command line: --episode-length 1000.")
    assert "2 episodes, 6 steps, 4 transitions" in run("validate", path, "--episode-length", 3).stdout
    result = run("import", path, tmp_path / "new", "--episode-length", 3)
    assert result.exit_code == 0, result.stderr
    assert [frames["reward"] for frames in steps_of(tmp_path / "new")] == [[0.0, 1.0], [3.0, 4.0]]


def test_a_length_is_for_arrays_only(run, folder):
    result = run("validate", folder, "--episode-length", 3)
    assert result.exit_code == 2
    assert "--episode-length is for HDF5 and NPZ files of flat arrays" in result.stderr


def test_import_takes_splits_limits_and_shards(run, folder, tmp_path):
    result = run(
        "import",
        folder,
        tmp_path / "new",
        "--split",
        "train[1:]",
        "--limit",
        1,
        "--shards",
        3,
        "--as-split",
        "test",
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["episodes"], report["steps"], report["shards"], report["split"]) == (1, 4, 1, "test")


def test_import_of_bad_episodes_is_an_error_unless_told_what_to_do(run, bad_folder, tmp_path):
    result = run("import", bad_folder, tmp_path / "new", "--quiet")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "replayfeed: bad, episode 1: is_terminal is set at step 2 of 4, before the last one"
    )
    assert not (tmp_path / "new").exists()
    for choice, lengths in (("skip", [2, 1]), ("repair", [2, 2, 1])):
        result = run("import", bad_folder, tmp_path / choice, "--on-bad-episode", choice)
        assert result.exit_code == 0, result.stderr
        assert [len(frames["reward"]) for frames in steps_of(tmp_path / choice)] == lengths
        assert ("1 of 3 episodes were left out" in result.stdout) == (choice == "skip")


def test_import_keeps_episodes_as_they_are_where_asked_to(run, bad_folder, tmp_path):
    result = run("import", bad_folder, tmp_path / "new", "--on-bad-episode", "keep", "--name", "bad")
    assert result.exit_code == 0, result.stderr
    file = "bad-train.tfrecord-00000-of-00001"
    assert (tmp_path / "new" / file).read_bytes() == (bad_folder / file).read_bytes()
    result = run("import", bad_folder, tmp_path / "two", "--on-bad-episode", "keep", "--limit", 2, "--json")
    assert json.loads(result.stdout)["episodes"] == 2


def test_import_replaces_a_dataset_only_when_told_to(run, folder, tmp_path):
    run("import", folder, tmp_path / "new", "--limit", 1)
    result = run("import", folder, tmp_path / "new")
    assert result.exit_code == 2
    assert "holds a dataset already; give another path, or --overwrite to replace" in result.stderr
    assert run("import", folder, tmp_path / "new", "--overwrite").exit_code == 0
    assert len(steps_of(tmp_path / "new")) == 3


def test_import_on_beam_writes_the_same(run, folder, tmp_path):
    result = run(
        "import", folder, tmp_path / "new", "--name", "numbers", "--beam", "--beam-slices", 2,
        "--beam-option", "--direct_running_mode=in_memory", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["episodes"], report["shards"]) == (3, 2)
    assert steps_of(tmp_path / "new") == steps_of(folder)


def test_import_on_beam_takes_a_file_as_one(run, tmp_path):
    np.savez(
        tmp_path / "flat.npz",
        observations=np.zeros([4, 2], np.float32),
        actions=np.arange(4),
        rewards=np.zeros([4], np.float32),
        terminals=np.array([False, True, False, True]),
    )
    option = "--direct_running_mode=in_memory"
    result = run("import", tmp_path / "flat.npz", tmp_path / "new", "--beam", "--beam-option", option, "--json")
    assert result.exit_code == 0, result.stderr
    assert (json.loads(result.stdout)["episodes"], json.loads(result.stdout)["shards"]) == (2, 1)


# -- export --------------------------------------------------------------------------------------

STEP = {
    "observation": {"camera": tf.TensorSpec([2], tf.uint8), "pose": tf.TensorSpec([1], tf.float64)},
    "action": tf.TensorSpec([], tf.int64),
    "reward": tf.TensorSpec([], tf.float32),
    "discount": tf.TensorSpec([], tf.float32),
    "next_observation": {"camera": tf.TensorSpec([2], tf.uint8), "pose": tf.TensorSpec([1], tf.float64)},
    "is_terminal": tf.TensorSpec([], tf.bool),
    "is_truncated": tf.TensorSpec([], tf.bool),
}


def frame(number: int, *, is_terminal: bool) -> dict:
    """The frame number `number` of one stream, `[1, ...]`."""
    return {
        "observation": {"camera": np.full([1, 2], number, np.uint8), "pose": np.full([1, 1], number / 10)},
        "action": np.full([1], number),
        "reward": np.full([1], number, np.float32),
        "discount": np.full([1], 0.0 if is_terminal else 1.0, np.float32),
        "next_observation": {
            "camera": np.full([1, 2], number + 1, np.uint8),
            "pose": np.full([1, 1], (number + 1) / 10),
        },
        "is_terminal": np.full([1], is_terminal),
        "is_truncated": np.zeros([1], bool),
    }


def test_export_writes_a_served_table_and_takes_nothing_out(run, tmp_path):
    tables = [TableConfig("replay", STEP, 100, scannable=True), TableConfig("other", STEP, 100)]
    with ReplayServer(tables) as server:
        buffer = ReverbReplayBuffer(STEP, "replay", 1, server.address)
        for number in range(5):
            ends = number in (1, 4)
            buffer.add_batch(frame(number, is_terminal=ends), end_of_episode=[ends])
        buffer.flush()
        result = run("export", server.address, "replay", tmp_path / "new", "--json")
        left = buffer.num_frames()
        unscannable = run("export", server.address, "other", tmp_path / "other")
        unknown = run("export", server.address, "none", tmp_path / "none")
        buffer.close()
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["episodes"] == 2
    assert left == 5
    assert [frames["action"] for frames in steps_of(tmp_path / "new")] == [[0, 1], [2, 3, 4]]
    assert [frames["observation"]["camera"] for frames in steps_of(tmp_path / "new")][0] == [[0, 0], [1, 1]]
    assert unscannable.exit_code == 2 and "scannable=True" in unscannable.stderr
    assert unknown.exit_code == 2 and "no table 'none'" in unknown.stderr


def test_export_writes_a_table_of_whole_episodes(run, tmp_path):
    table = TableConfig("episodes", STEP, 100, scannable=True, sequence_length=None, max_episode_length=10)
    with ReplayServer([table]) as server:
        buffer = ReverbEpisodicReplayBuffer(STEP, "episodes", server.address)
        for number in range(5):
            ends = number in (1, 4)
            buffer.add_batch(frame(number, is_terminal=ends), end_of_episode=[ends])
        buffer.flush()
        result = run("export", server.address, "episodes", tmp_path / "new")
        buffer.close()
    assert result.exit_code == 0, result.stderr
    assert [frames["action"] for frames in steps_of(tmp_path / "new")] == [[0, 1], [2, 3, 4]]


def test_export_from_nobody_ends_in_time(run, tmp_path):
    result = run("export", "localhost:1", "replay", tmp_path / "new", "--timeout", 1)
    assert result.exit_code == 2
    assert "localhost:1 does not answer" in result.stderr
    assert not (tmp_path / "new").exists()


def trajectory_fields():
    from tf_agents.trajectories.trajectory import Trajectory

    number = tf.TensorSpec([], tf.float32)
    return Trajectory(number, {"b": number, "a/c": number}, (number, number), (), number, number, number)


@pytest.mark.parametrize(
    "spec",
    [STEP, trajectory_fields(), {"a/b": tf.TensorSpec([2], tf.uint8), "c": tf.TensorSpec([], tf.bool)}],
    ids=["dict", "trajectory", "slash"],
)
def test_the_fields_of_a_table_tell_the_data_spec(spec):
    from replayfeed.buffers import DataSpec

    fields = [(field.path, field.shape, field.dtype.name) for field in DataSpec(spec).fields]
    found = DataSpec(served.spec_from_fields("mine", fields))
    assert [(field.path, field.shape, field.dtype.name) for field in found.fields] == fields
    assert type(found.nest).__name__ == type(spec).__name__


def test_fields_whose_nest_nobody_can_tell_are_refused():
    with pytest.raises(ValueError, match="table 'mine' does not tell how its fields"):
        served.spec_from_fields("mine", [("b", [], "float32"), ("a", [], "float32")])
