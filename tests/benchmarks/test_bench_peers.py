import pathlib
import sys

import numpy as np
import pytest

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"

FAKE_PEER = """
import os, sys
sys.path.insert(0, {worker_folder!r})
from worker import Buffer, serve

class Fake(Buffer):
    def fill(self):
        self.filled = [(len(td_errors), float(td_errors[0])) for _, td_errors in self.experience.blocks(self.capacity)]
        print("what a library prints is no answer")
    def contests(self):
        return {{"count": lambda: lambda: None, "wrong": self.wrong, "end": lambda: lambda: os._exit(3)}}
    def wrong(self):
        raise ValueError(f"filled with {{self.filled}}")

serve(Fake)
"""


def contender(fake, contest):
    name, process = fake
    return process.contender(name, contest)


@pytest.fixture
def peers(benchmark_module):
    for name in ("environments", "processes", "worker"):
        benchmark_module(f"peers.{name}")
    return benchmark_module("peers")


@pytest.fixture
def fake(peers, tmp_path):
    script = tmp_path / "fake_peer.py"
    script.write_text(FAKE_PEER.format(worker_folder=str(BENCHMARKS / "peers")))
    experience = peers.worker.Experience(
        {"reward": np.arange(4, dtype=np.float32)},
        3,
        np.array([1, 2, 3, 4, 5], np.float32),
        np.ones((2, 3), np.float32),
        alpha=0.6,
        beta=0.4,
        eps=0.5,
    )
    with peers.processes.Peers(experience, 10) as running:
        yield running.full(peers.environments.Peer("Fake 1.0", str(script), max_items=6), pathlib.Path(sys.executable))


def test_a_peer_that_holds_fewer_items_says_so_in_its_name(fake):
    assert fake[0] == "Fake 1.0, 6 items"


def test_a_peer_times_its_own_window(fake):
    window = contender(fake, "count").window(0.01)
    assert window["values"] > 0
    assert window["cpu_us"] > 0
    assert 0 <= window["others"] <= 1


def test_what_goes_wrong_in_a_peer_is_told_with_its_words(peers, fake):
    # Blocks of four items, whose TD errors go on through 1, 2, 3, 4, 5 and start again.
    with pytest.raises(peers.processes.PeerError, match=r"ValueError: filled with \[\(4, 1\.0\), \(2, 5\.0\)\]"):
        contender(fake, "wrong")


def test_a_peer_that_ends_is_told_of(peers, fake):
    with pytest.raises(peers.processes.PeerError, match="its process ended with code 3"):
        contender(fake, "end")


def test_experience_comes_back_from_its_file(peers, tmp_path):
    given = peers.worker.Experience(
        {"obs": np.ones((2, 3), np.float32)}, 5, np.ones(2, np.float32), np.ones((2, 5), np.float32), 0.6, 0.4, 1e-6
    )
    given.save(tmp_path / "experience.npz")
    loaded = peers.worker.Experience.load(str(tmp_path / "experience.npz"))
    assert (loaded.alpha, loaded.beta, loaded.eps, loaded.batch) == (0.6, 0.4, 1e-6, 5)
    assert np.array_equal(loaded.frames["obs"], given.frames["obs"])


def test_a_missing_environment_has_a_reason(peers, tmp_path, monkeypatch):
    monkeypatch.setattr(peers.environments, "FOLDER", tmp_path)
    assert peers.environments.python_of("cpprb") == "no environment; make bench-peers makes it"
    (tmp_path / "cpprb").mkdir()
    (tmp_path / "cpprb" / "failed.txt").write_text("cannot be installed: ERROR: no such release\n")
    assert peers.environments.python_of("cpprb") == "cannot be installed: ERROR: no such release"
    assert peers.environments.python_of("reverb") == pathlib.Path(sys.executable)


def test_a_row_names_what_was_not_measured(benchmark_module):
    measure, report = benchmark_module("measure"), benchmark_module("report")
    samples = {"ours": {"values": [2.0, 2.0], "cpu_us": [1.0, 1.0], "others": [0.0, 0.0]}}
    row = measure.row("draw", "batches/s", "ours", samples, [], not_measured={"Fake 1.0": "no wheel"})
    printed = report.table({"machine": report.machine(), "rows": [row], "failures": {}})
    (line,) = [line for line in printed.splitlines() if "Fake 1.0" in line]
    assert [cell.strip() for cell in line.split("|")[1:4]] == ["draw", "Fake 1.0", "not measured: no wheel"]


def test_every_measure_of_prioritized_replay_has_a_benchmark(benchmark_names):
    assert benchmark_names >= {
        "prioritized_sample",
        "prioritized_as_dataset",
        "prioritized_draw",
        "prioritized_add",
        "prioritized_update",
        "prioritized_growth",
    }
