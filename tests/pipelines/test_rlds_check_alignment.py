"""Which of its neighbours a step's action and reward belong to is guessed from filler, and not without."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_check import validate_rlds


def _episode(num_steps, *, terminal, start):
    """Steps as RLDS has them, with filler at the end."""
    is_end = np.arange(num_steps) == num_steps - 1
    value = (np.arange(num_steps) + start).astype(np.float32)
    return {
        "observation": np.stack([value + 1, value**2 + 1], axis=-1),
        "action": np.where(is_end, 0, value + 10).astype(np.float32),
        "reward": np.where(is_end, 0, value + 0.5).astype(np.float32),
        "discount": np.where(np.arange(num_steps) >= num_steps - 2, 1 - terminal, 1).astype(np.float32),
        "is_last": is_end,
        "is_terminal": is_end & terminal,
    }


def _clean(num_episodes=6):
    """Terminal and truncated episodes in turn, no two the same."""
    return [_episode(5 + index, terminal=index % 2 == 0, start=10 * index) for index in range(num_episodes)]


def _check(*episodes):
    raws = [RawEpisode(str(index), steps) for index, steps in enumerate(episodes)]
    spec = {name: tf.TensorSpec(column.shape[1:], column.dtype) for name, column in episodes[0].items()}
    return validate_rlds(EpisodeSource("mine", spec, lambda seed: iter(raws)), progress=False)


def _shifted(steps, names):
    """The same episode with these fields one step later, and zeros in the first."""
    moved = {name: np.concatenate([np.zeros_like(steps[name][:1]), steps[name][:-1]]) for name in names}
    return {**steps, **moved}


@pytest.mark.parametrize(
    ("moved", "guess"), [((), "SAR"), (("reward", "discount"), "RSA"), (("action", "reward", "discount"), "ARS")]
)
def test_alignment_is_guessed_from_filler(moved, guess):
    report = _check(*[_shifted(steps, moved) for steps in _clean()])
    assert (report.alignment.guess, report.alignment.confidence) == (guess, "high")
    assert bool(report.found("alignment")) == (guess != "SAR")
    if guess != "SAR":
        assert report.needs_decision
        assert f"aligned as {guess}" in report.found("alignment")[0].message


def test_alignment_of_rewards_that_are_zero_but_for_the_end_is_guessed_from_the_step_before():
    episodes = [
        {**steps, "reward": (np.arange(len(steps["reward"])) == len(steps["reward"]) - 2).astype(np.float32)}
        for steps in _clean(10)
    ]
    assert _check(*episodes).alignment.guess == "SAR"


def test_alignment_of_episodes_without_filler_is_unknown():
    episodes = [
        {**steps, "action": steps["observation"][:, 0], "reward": steps["observation"][:, 1]} for steps in _clean()
    ]
    report = _check(*episodes)
    assert report.alignment.guess == "unknown"
    assert report.found("alignment_unknown")
    assert report.found("alignment") == ()


def test_actions_that_are_mostly_zero_are_not_taken_for_filler():
    # Nine of ten are zero, so the last one of few episodes is zero by chance.
    action = np.array([0, 0, 0, 0, 0, 0, 0, 1, 0, 0])
    episodes = [{**_episode(10, terminal=True, start=index), "action": action} for index in range(4)]
    for steps in episodes:
        del steps["reward"]
    assert _check(*episodes).alignment.guess == "unknown"


def test_a_last_action_that_repeats_the_one_before_is_filler():
    episodes = [{**steps, "action": np.append(steps["action"][:-1], steps["action"][-2])} for steps in _clean()]
    assert (_check(*episodes).alignment.guess, _check(*episodes).alignment.confidence) == ("SAR", "high")
