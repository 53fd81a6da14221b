import ctypes
import os
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories.policy_step import PolicyStep

from replayfeed.pipelines.cartpole import __main__ as command_line
from replayfeed.pipelines.cartpole import job, local_job, offline_job, quiet, served_job
from replayfeed.pipelines.cartpole.dqn import DqnLearner, DqnSettings
from replayfeed.pipelines.cartpole.environments import Player
from replayfeed.pipelines.cartpole.monitor import BufferPoint
from replayfeed.pipelines.cartpole.offline_job import CloningSettings
from replayfeed.pipelines.cartpole.recording import write_rlds
from replayfeed.pipelines.cartpole.report import CurvePoint, PartResult, picture, table
from replayfeed.pipelines.played_episode import PlayedEpisode
from replayfeed.pipelines.rlds_read import load_rlds

# Any policy keeps the pole up for more than 5 steps.
_TINY = DqnSettings(bar=5.0, max_steps=300, capacity=400, initial_steps=40, sample_batch_size=8, layers=(8,))
_UNREACHABLE = DqnSettings(bar=201.0, max_steps=60, capacity=400, initial_steps=40, sample_batch_size=8, layers=(8,))


pytestmark = pytest.mark.usefixtures("quiet_gym")


def _episode(num_actions: int, is_terminal: bool) -> PlayedEpisode:
    return PlayedEpisode(
        observations=np.arange(4 * (num_actions + 1), dtype=np.float32).reshape(-1, 4),
        actions=np.arange(num_actions) % 2,
        rewards=np.ones(num_actions, np.float32),
        is_terminal=is_terminal,
    )


def _result(name: str, mean_return: float, bar: float) -> PartResult:
    return PartResult(
        name=name, steps=1234, updates=1000, mean_return=mean_return, bar=bar, samples_per_insert=None,
        adds_per_second=500.0, batches_per_second=400.0, seconds=3.0,
        curve=[CurvePoint(0, 9.0), CurvePoint(1234, mean_return)],
        buffer_points=[BufferPoint(0.1, 0.0, None), BufferPoint(3.0, 0.5, 51.2)],
    )  # fmt: skip


def test_a_recorded_dataset_loads_as_what_was_played(tmp_path):
    folder = write_rlds([_episode(3, True), _episode(2, False)], tmp_path / "dataset")
    first, second = load_rlds(folder, layout="trajectory")
    np.testing.assert_array_equal(first.observation, _episode(3, True).observations)
    assert first.discount.tolist()[:3] == [1.0, 1.0, 0.0]
    assert second.discount.tolist()[:2] == [1.0, 1.0]


def test_the_player_plays_whole_episodes():
    learner = DqnLearner(_TINY, seed=0)
    episodes = Player(learner.agent.policy, num_episodes=3, seed=0).play()
    assert len(episodes) == 3
    for episode in episodes:
        n = len(episode.actions)
        assert episode.observations.shape == (n + 1, 4)
        assert episode.total_reward == n
        assert episode.is_terminal == (n < 200)
    assert len({episode.observations[0].tobytes() for episode in episodes}) == 3


class _Balancing:
    """A policy that keeps the pole up."""

    def action(self, time_step):
        observation = time_step.observation
        return PolicyStep(tf.cast(observation[:, 2] + 0.3 * observation[:, 3] > 0, tf.int64))


def test_an_episode_that_the_time_limit_cuts_is_truncated_although_the_environment_says_terminal():
    (episode,) = Player(_Balancing(), num_episodes=1, seed=0).play()
    assert len(episode.actions) == 200
    assert not episode.is_terminal


def test_local_part_trains_from_the_in_process_buffer():
    result, learner = local_job.run(_TINY, seed=0)
    assert result.is_met
    assert result.updates == int(learner.updates) >= _TINY.updates_per_round
    assert result.steps >= _TINY.initial_steps
    assert result.samples_per_insert > 0
    assert 0 < result.buffer_points[-1].fill_share <= 1


def test_a_part_that_misses_its_bar_says_so_and_keeps_its_best_weights():
    result, learner = local_job.run(_UNREACHABLE, seed=0)
    assert not result.is_met
    assert result.mean_return == max(point.mean_return for point in result.curve)
    assert learner.mean_return() < _UNREACHABLE.bar


def test_served_part_trains_from_a_server_that_two_collectors_fill():
    result = served_job.run(_TINY, seed=0)
    assert result.is_met
    assert result.steps >= _TINY.initial_steps
    assert result.samples_per_insert > 0


def test_offline_part_clones_from_both_buffers(tmp_path):
    settings = CloningSettings(bar=5.0, num_recordings=1, evaluate_every=2, sample_batch_size=8, layers=(8,))
    recording = offline_job.record(DqnLearner(_TINY, seed=0), settings, 0, tmp_path)
    assert recording.num_episodes == 20
    results = offline_job.run(recording, settings, seed=0)
    assert [result.name for result in results] == [offline_job.LOCAL_NAME, offline_job.SERVED_NAME]
    # A frame an action and the final observation, in each buffer.
    assert {result.steps for result in results} == {round(20 * (recording.mean_return + 1))}
    assert all(result.is_met for result in results)


def test_table_marks_the_bar_that_was_missed():
    lines = table([_result("kept", 195.0, 195.0), _result("missed", 194.9, 195.0)]).splitlines()
    assert [line.split()[0] for line in lines] == ["part", "kept", "missed"]
    assert lines[1].endswith("yes") and lines[2].endswith("NO")


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b"]], ids=["nothing", "one", "two"])
def test_picture_is_written_for_any_parts(names, tmp_path):
    results = [_result(name, 198.0, 195.0) for name in names]
    picture(results, results, 196.0 if names else None, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_the_job_prints_a_table_and_the_pictures_path_and_tells_what_was_missed(tmp_path, capsys, monkeypatch):
    results = iter([_result("DQN", 199.0, 195.0), _result("DQN", 100.0, 195.0)])
    monkeypatch.setattr(served_job, "run", lambda settings, seed: next(results))
    assert job.run_parts(["served"], 0, tmp_path / "out")
    printed = capsys.readouterr().out
    assert "samples per insert" in printed
    assert f"Picture: {tmp_path / 'out' / 'cartpole.png'}" in printed
    assert not job.run_parts(["served"], 0, tmp_path / "out")
    assert "Bar missed: DQN: return 100.0, bar 195" in capsys.readouterr().out


@pytest.mark.parametrize(("recorded", "met"), [(196.0, True), (194.0, False)])
def test_the_offline_part_records_the_local_agent_and_needs_good_episodes(recorded, met, tmp_path, capsys, monkeypatch):
    agent = object()

    def record(learner, settings, seed, folder):
        assert learner is agent
        return offline_job.Recording(folder, 40, recorded)

    monkeypatch.setattr(local_job, "run", lambda settings, seed: (_result("DQN", 199.0, 195.0), agent))
    monkeypatch.setattr(offline_job, "record", record)
    monkeypatch.setattr(offline_job, "run", lambda recording, settings, seed: [_result("cloning", 170.0, 150.0)])
    assert job.run_parts(["local", "offline"], 0, tmp_path) == met
    assert ("Bar missed: recorded episodes: return 194.0, bar 195" in capsys.readouterr().out) != met


def test_the_job_refuses_unknown_and_lonely_parts(tmp_path):
    with pytest.raises(ValueError, match="parts must be some of local, served, offline, pendulum, killed, got lokal"):
        job.run_parts(["lokal"], 0, tmp_path)
    with pytest.raises(ValueError, match="got none"):
        job.run_parts([], 0, tmp_path)
    with pytest.raises(ValueError, match="records the agent of part 'local'"):
        job.run_parts(["offline"], 0, tmp_path)


@pytest.mark.parametrize(("outcome", "code"), [(True, 0), (False, 1), (KeyboardInterrupt, 130)])
def test_the_exit_code_tells_how_it_went(outcome, code, monkeypatch, tmp_path):
    def run_parts(parts, seed, output):
        assert (parts, seed, output) == (["local"], 3, tmp_path)
        if outcome is KeyboardInterrupt:
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(job, "run_parts", run_parts)
    monkeypatch.setattr(quiet, "set_up", lambda: None)
    monkeypatch.setattr(sys, "argv", ["cartpole", "--parts", "local", "--seed", "3", "--output", str(tmp_path)])
    assert command_line.main() == code


def test_the_command_line_refuses_offline_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cartpole", "--parts", "offline"])
    with pytest.raises(SystemExit):
        command_line.main()
    assert "run both" in capsys.readouterr().err


def test_more_notices_than_a_pipe_holds_block_nobody(capfd):
    # As Reverb does: one long write from a thread that keeps Python's lock. 1 MB is 16 pipes full.
    libc = ctypes.PyDLL(None)
    notice = b"[reverb/cc/x.cc:1] The number of pending items is alarmingly high\n" * 16_384
    with quiet.without_notices():
        written = 0
        while written < len(notice):
            written += libc.write(2, notice[written:], len(notice) - written)
    assert capfd.readouterr().err == ""


def test_only_the_known_notices_are_dropped(capfd):
    with quiet.without_notices():
        os.write(2, b"[reverb/cc/server.cc:1] Shutting down replay server\nan error that")
        os.write(2, b" matters\n")
        print("progress", file=sys.stderr)
        os.write(2, b"no newline")
    os.write(2, b" after\n")
    err = capfd.readouterr().err
    assert "Shutting down" not in err
    assert "an error that matters\n" in err
    assert "no newline after\n" in err
    assert "progress\n" in err
