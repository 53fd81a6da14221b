import numpy as np
import pytest


def test_every_measure_of_many_agents_has_a_benchmark(benchmark_names):
    assert benchmark_names >= {
        "multi_agent_add",
        "multi_agent_sample",
        "multi_agent_as_dataset",
        "multi_agent_shared",
        "multi_agent_lockstep_add",
        "multi_agent_lockstep_sample",
        "multi_agent_lockstep_as_dataset",
        "multi_agent_rllib",
        "multi_agent_lockstep_rllib",
        "multi_agent_prioritized_rllib",
        "streams_apart",
    }


@pytest.mark.parametrize(
    ("name", "measure", "against", "bound"),
    [
        ("multi_agent_add", "add_batch, 4 agents of 4 policies, one environment, W1", "four single buffers", 1 / 1.3),
        (
            "multi_agent_lockstep_add",
            "add_batch, 4 agents in lockstep, one environment, W1",
            "one buffer of the joint spec",
            1 / 1.5,
        ),
    ],
)
def test_many_agents_are_held_against_single_buffers(quick_rows, name, measure, against, bound):
    rows = {row["measure"]: row for row in quick_rows(name)}
    assert set(rows) == {measure, measure.replace("one environment", "16 environments")}
    for row in rows.values():
        assert row["unit"] == "moments/s"
        assert set(row["contenders"]) == {"replayfeed", against}
        assert all(contender["median"] > 0 for contender in row["contenders"].values())
        (bar,) = row["bars"]
        assert (bar["against"], bar["bound"], bar["aim"]) == (against, bound, False)


def test_moments_give_each_agent_a_frame_of_its_own(benchmark_module):
    worker = benchmark_module("peers.worker")
    experience = worker.Experience({"reward": np.arange(8, dtype=np.float32)}, 3, np.ones(8, np.float32))
    moments = experience.moments(2)
    assert [{agent: float(step["reward"]) for agent, step in moment.items()} for moment in moments] == [
        {"agent_0": 0.0, "agent_1": 1.0, "agent_2": 2.0, "agent_3": 3.0},
        {"agent_0": 4.0, "agent_1": 5.0, "agent_2": 6.0, "agent_3": 7.0},
    ]


def test_without_rllib_ours_is_measured_and_rllib_is_named(benchmark_module, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark_module("peers.environments"), "FOLDER", tmp_path)
    quick = benchmark_module("measure").QUICK
    (row,) = benchmark_module("multi_agent").multi_agent_prioritized_rllib(quick)
    assert set(row["contenders"]) == {"replayfeed"}
    assert row["bars"] == []
    assert row["not_measured"] == {"RLlib 2.60.0": "no environment; make bench-peers makes it"}
