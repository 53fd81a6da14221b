"""TF-Agents' own tests of its ReverbReplayBuffer, against ours."""

from __future__ import annotations

from replayfeed.buffers import ReverbReplayBuffer

# Tests that ours fails on purpose, each with the sentence of the design that it contradicts.
KNOWN_DEVIATIONS: dict[str, str] = {}


def test_tf_agents_own_tests_pass_but_for_the_known_deviations(run_tf_agents_tests):
    outcomes = run_tf_agents_tests(
        "tf_agents.replay_buffers.reverb_replay_buffer_test",
        "reverb_replay_buffer",
        "ReverbReplayBuffer",
        ReverbReplayBuffer,
    )
    outcomes = {name.split(".")[1]: outcome for name, outcome in outcomes.items() if outcome != "skipped"}
    failed = {name: outcome for name, outcome in outcomes.items() if outcome != "passed"}
    assert len(outcomes) == 30
    assert set(failed) == set(KNOWN_DEVIATIONS), failed
