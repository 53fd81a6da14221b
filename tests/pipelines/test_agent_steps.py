"""Frames of one agent: specs from spaces, and what is copied, cast or refused."""

from __future__ import annotations

import collections
import types

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces

from replayfeed.pipelines.agent_steps import AgentSteps, agent_data_specs, for_environment


def environment_of(**spaces_by_agent):
    """All that is asked of an environment here: `agent=(observation space, action space)`."""
    return types.SimpleNamespace(
        possible_agents=list(spaces_by_agent),
        observation_space=lambda agent: spaces_by_agent[agent][0],
        action_space=lambda agent: spaces_by_agent[agent][1],
    )


NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, [2, 2, 3], np.uint8),
        "pose": spaces.Tuple([spaces.Box(-1, 1, [3], np.float32), spaces.MultiBinary(4)]),
    }
)


def test_specs_follow_the_spaces_of_each_agent():
    specs = agent_data_specs(environment_of(seer=(NESTED, spaces.Discrete(3)), blind=(spaces.Discrete(2), NESTED)))
    assert list(specs) == ["seer", "blind"]
    assert specs["seer"]["observation"] == {
        "image": tf.TensorSpec([2, 2, 3], tf.uint8),
        "pose": (tf.TensorSpec([3], tf.float32), tf.TensorSpec([4], tf.int8)),
    }
    assert specs["blind"]["action"] == specs["seer"]["observation"]
    assert specs["seer"]["action"] == tf.TensorSpec([], tf.int64)
    number, flag = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.bool)
    rest = {name: spec for name, spec in specs["seer"].items() if name not in ("observation", "action")}
    assert rest == {"reward": number, "discount": number, "is_first": flag, "is_last": flag, "is_terminal": flag}


def test_a_space_without_a_fixed_shape_is_named():
    environment = environment_of(talker=(spaces.Dict({"said": spaces.Text(5)}), spaces.Discrete(2)))
    with pytest.raises(ValueError, match=r"^agent 'talker', field 'observation'/said: a space of arrays of one shape"):
        agent_data_specs(environment)


def test_an_environment_that_does_not_know_its_agents_is_refused():
    with pytest.raises(ValueError, match=r"^the environment has no possible_agents: write the data_specs by hand"):
        agent_data_specs(types.SimpleNamespace())


@pytest.fixture
def steps() -> AgentSteps:
    return AgentSteps("seer", agent_data_specs(environment_of(seer=(NESTED, spaces.Discrete(3))))["seer"])


def nested(**changes):
    pose = (np.array([0.0, 0.5, 1.0], np.float32), np.array([0, 1, 0, 1], np.int8))
    return {"image": np.full([2, 2, 3], 7, np.uint8), "pose": pose} | changes


def test_nested_observations_are_copied_leaf_by_leaf(steps):
    given = collections.OrderedDict(reversed(nested().items()))
    kept = steps.observation(given)
    given["image"][:] = 0
    given["pose"][0][:] = 0
    assert (kept["image"].max(), kept["pose"][0].tolist()) == (7, [0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"image": np.zeros([2, 2], np.uint8)},
            "field 'observation/image': expected [2, 2, 3] uint8, got [2, 2] uint8.",
        ),
        ({"image": np.full([2, 2, 3], 300)}, "field 'observation/image': 300 does not survive in uint8."),
        (
            {"pose": (np.full([3], 1e300), np.zeros([4], np.int8))},
            "field 'observation/pose/0': 1e+300 does not survive in float32.",
        ),
        (
            {"pose": (np.zeros([3], np.float32), np.full([4], 200, np.uint8))},
            "field 'observation/pose/1': 200 does not survive in int8.",
        ),
        (
            {"pose": (np.zeros([3], np.float32), np.full([4], "x"))},
            "field 'observation/pose/1': expected [4] int8, got [4] <U1.",
        ),
    ],
)
def test_values_that_do_not_fit_are_named(steps, changes, message):
    with pytest.raises(ValueError) as caught:
        steps.observation(nested(**changes))
    assert str(caught.value) == f"agent 'seer', {message}"


def test_another_structure_is_refused(steps):
    with pytest.raises(ValueError) as caught:
        steps.observation({"image": nested()["image"], "sound": np.zeros([3])})
    assert str(caught.value) == (
        "agent 'seer', fields: expected ['observation/image', 'observation/pose/0', 'observation/pose/1'] as in the "
        "space, got ['observation/image', 'observation/sound']."
    )


def test_numbers_of_other_dtypes_are_taken_where_they_survive(steps):
    kept = steps.observation(nested(pose=(np.array([0.1, 2, 3]), [True, False, True, False])))
    assert [leaf.dtype for leaf in kept["pose"]] == [np.float32, np.int8]
    assert kept["pose"][1].tolist() == [1, 0, 1, 0]
    assert [steps.action(value).tolist() for value in (2, 2.0, np.uint8(2), tf.constant(2), np.array(2))] == [2] * 5
    assert steps.reward(1).dtype == np.float32
    assert np.isnan(steps.reward(float("nan")))


def test_final_frames_hold_an_observation_and_filler(steps):
    for terminated in (True, False):
        frame = steps.final_frame(steps.observation(nested()), terminated=terminated)
        assert frame["observation"]["image"].max() == 7
        assert {name: leaf.tolist() for name, leaf in frame.items() if name != "observation"} == {
            "action": 0,
            "reward": 0.0,
            "discount": 0.0 if terminated else 1.0,
            "is_first": False,
            "is_last": True,
            "is_terminal": terminated,
        }


def test_an_environment_that_writes_into_an_action_does_not_change_what_is_stored():
    stored = {"move": np.array([0.5, 2.0]), "jump": (np.array(1),)}
    given = for_environment(stored)
    given["move"][:] = 0
    assert stored["move"].tolist() == [0.5, 2.0]
    assert isinstance(given["jump"][0], np.int64)
