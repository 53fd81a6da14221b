import json

import pytest


@pytest.fixture(scope="module")
def report(bench, tmp_path_factory):
    output = tmp_path_factory.mktemp("bench") / "report.json"
    done = bench("--quick", "--only", "add_batch_1", "--output", str(output))
    assert done.returncode == 0, done.stderr
    return {"json": json.loads(output.read_text()), "printed": done.stdout}


def test_the_report_says_when_and_on_what_it_was_measured(report):
    machine = report["json"]["machine"]
    assert set(machine) >= {"date", "processor", "cores", "python", "tensorflow", "tf-agents", "dm-reverb", "numpy"}
    assert report["json"]["quick"] is True
    assert report["json"]["failures"] == {}
    assert list(report["json"]["seconds"]) == ["add_batch_1"]


def test_a_row_has_medians_with_spread_and_its_bars(report):
    (row,) = report["json"]["rows"]
    assert row["measure"] == "add_batch, one stream, W1"
    assert row["unit"] == "frames/s"
    assert {"replayfeed", "TF-Agents TFUniform", "NumPy"} == set(row["contenders"])
    for contender in row["contenders"].values():
        assert contender["median"] > 0
        assert contender["iqr"] >= 0
        assert contender["samples"] == 3
    (bar,) = row["bars"]
    assert bar["against"] == "TF-Agents TFUniform"
    assert bar["bound"] == 60
    assert bar["met"] == (bar["value"] >= 60)


def test_the_table_is_printed(report):
    header = next(line for line in report["printed"].splitlines() if line.startswith("| measure"))
    assert [cell.strip() for cell in header.split("|")[1:-1]] == [
        "measure",
        "ours",
        "against",
        "theirs",
        "ratio",
        "quiet",
        "by CPU",
        "bar",
        "met",
    ]
    assert "add_batch, one stream, W1" in report["printed"]


def test_every_row_of_the_issue_has_a_benchmark(benchmark_names):
    assert benchmark_names >= {
        "add_batch_1",
        "add_batch_64",
        "add_sequence",
        "as_dataset_eager",
        "as_dataset_graph",
        "iterate_dataset",
        "sample",
        "as_dataset_pixels_256",
        "served_as_dataset",
        "served_add_batch",
        "served_add_batch_mirrored",
        "memory_w1",
        "memory_w2",
        "sample_growth",
        "import_time",
    }


def test_a_name_that_matches_nothing_is_refused_with_the_names_there_are(bench):
    done = bench("--only", "teleport")
    assert done.returncode == 2
    assert "matches none of: add_batch_1, add_batch_64" in done.stderr
