import shutil
import sys

import numpy as np
import pytest

from replayfeed.pipelines.cartpole import killed_job, resumable
from replayfeed.pipelines.cartpole.killed_job import FinishedEpisode, KilledRun, picture
from replayfeed.pipelines.cartpole.resumable import ResumableRun, RunSettings

_TINY = RunSettings(
    num_streams=2, capacity=400, initial_steps=40, updates_per_round=2, sample_batch_size=8, layers=(8,), save_every=40
)


pytestmark = pytest.mark.usefixtures("quiet_gym")


def test_a_resumed_run_does_bit_by_bit_what_one_does_that_was_never_killed(tmp_path):
    # All but the environments, which cannot be saved: the run that is not killed gets new ones at the same step.
    told, told_again = [], []
    run = ResumableRun(tmp_path / "run", _TINY, seed=0, tell=told.append)
    run.run(80)
    run.save()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resumed = ResumableRun(tmp_path / "copy", _TINY, seed=0, tell=told_again.append)
    saved = told[-1]
    assert told_again == [
        {"resumed": saved["saved"], **{name: saved[name] for name in ("frames", "contents", "weights")}}
    ]
    run.restart_environments()
    told.clear(), told_again.clear()
    # More than the buffer holds: it evicts, too.
    run.run(560), resumed.run(560)
    assert any("return" in each for each in told)
    assert told_again == told
    assert resumed.fingerprint() == run.fingerprint()
    draws = [each.buffer.sample(8, num_steps=2)[1].ids.numpy().tolist() for each in (run, resumed)]
    assert draws[0] == draws[1]


def test_no_window_joins_the_episodes_of_before_and_after(tmp_path):
    run = ResumableRun(tmp_path, _TINY, seed=0)
    for _ in range(3):
        run.collect()
    run.save()
    resumed = ResumableRun(tmp_path, _TINY, seed=0)
    for _ in range(3):
        resumed.collect()
    # Frames of two streams: ids 0 to 5 before, 6 to 11 after. Three windows of two begin in each half.
    _, info = resumed.buffer.sample(200, num_steps=2)
    assert sorted(set(map(tuple, info.ids.numpy().tolist()))) == [
        (0, 2), (1, 3), (2, 4), (3, 5), (6, 8), (7, 9), (8, 10), (9, 11),
    ]  # fmt: skip


def test_restarted_environments_do_not_begin_as_the_first_ones_did(tmp_path):
    run = ResumableRun(tmp_path, _TINY, seed=0)
    run.collect()
    run.restart_environments()
    run.collect()
    first, second = run.buffer.gather_all().observation.numpy()[0]
    assert not np.array_equal(first, second)


def test_a_run_that_is_killed_at_a_random_step_goes_on_in_another_process(tmp_path):
    lines = []
    killed = killed_job.run(tmp_path, seed=1, max_steps=1_600, kill_between=(600, 1_200), tell=lines.append)
    assert killed.is_same
    assert 500 <= killed.resumed_at <= killed.killed_at < 1_600 <= killed.after[-1].steps + 400
    assert killed.frames >= killed.resumed_at
    assert all(episode.steps <= killed.resumed_at for episode in killed.before)
    assert all(killed.resumed_at < episode.steps for episode in [*killed.lost, *killed.after])
    assert [line.split(";")[0] for line in lines] == ["a process begins", "killed"]


def _killed(is_same: bool = True) -> KilledRun:
    episodes = [FinishedEpisode(steps, float(steps)) for steps in (10, 20, 30, 40, 50)]
    return KilledRun(30, 20, 22, is_same, episodes[:2], episodes[2:3], episodes[3:])


@pytest.mark.parametrize(("is_same", "words"), [(True, "as they were saved"), (False, "NOT as they were saved")])
def test_what_happened_is_told_in_a_line(is_same, words):
    assert str(_killed(is_same)) == (
        f"killed at step 30, went on at 20 with 22 frames; frames and weights {words}; 10 steps were lost"
    )
    assert _killed().mean_return(1) == 50.0


def test_the_picture_is_written(tmp_path):
    picture(_killed(), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('{\"steps\": 1}')", "the process ended by itself, with 0, before step 2"),
        ("print('{\"steps\": 2}'); raise SystemExit(3)", "the process that was to go on ended with 3"),
        ("print('{\"steps\": 2}')", "the second process began anew"),
    ],
    ids=["too early", "in an error", "anew"],
)
def test_a_process_that_does_something_else_is_told(code, message, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable, "command", lambda *_: [sys.executable, "-c", code])
    with pytest.raises(RuntimeError, match=message):
        killed_job.run(tmp_path, seed=0, kill_between=(2, 3))


def test_a_process_that_takes_too_long_is_told(tmp_path):
    with pytest.raises(TimeoutError, match=r"took longer than 0.01 s: .*--seed=0"):
        killed_job.run(tmp_path, seed=0, timeout_s=0.01)
