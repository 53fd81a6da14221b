"""What a demo plays is written as RLDS has it: one step more than actions, terminal apart from truncated."""

import numpy as np
import pytest

from replayfeed.pipelines.played_episode import PlayedEpisode, rlds_steps


@pytest.mark.parametrize("is_terminal", [False, True], ids=["truncated", "terminal"])
@pytest.mark.parametrize("actions", [np.array([1, 1]), np.ones([2, 1], np.float32)], ids=["numbers", "vectors"])
def test_the_last_step_holds_the_final_observation_only(actions, is_terminal):
    observations = np.arange(9, dtype=np.float32).reshape(3, 3)
    steps = rlds_steps(PlayedEpisode(observations, actions, np.array([-1, -2], np.float32), is_terminal))
    assert [step["observation"].tolist() for step in steps] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [float(np.squeeze(step["action"])) for step in steps] == [1.0, 1.0, 0.0]
    assert {(step["action"].shape, step["action"].dtype) for step in steps} == {(actions.shape[1:], actions.dtype)}
    assert [float(step["reward"]) for step in steps] == [-1.0, -2.0, 0.0]
    assert [step["is_first"] for step in steps] == [True, False, False]
    assert [step["is_last"] for step in steps] == [False, False, True]
    assert [step["is_terminal"] for step in steps] == [False, False, is_terminal]
    assert [float(step["discount"]) for step in steps] == ([1.0, 0.0, 0.0] if is_terminal else [1.0, 1.0, 1.0])
