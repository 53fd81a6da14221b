import collections

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.trajectories import trajectory

from replayfeed.pipelines.frames_to_steps import FramesToSteps
from replayfeed.pipelines.layouts import to_trajectory, to_transitions
from replayfeed.pipelines.rlds_steps import cut_steps

NUMBER, FLOAT, FLAG = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.bool)
TYPE = tf.TensorSpec([], tf.int32)

TRANSITION = {
    "observation": NUMBER,
    "action": NUMBER,
    "reward": FLOAT,
    "discount": FLOAT,
    "next_observation": NUMBER,
    "is_terminal": FLAG,
    "is_truncated": FLAG,
}


def _columns(num_steps, *, terminal):
    """Observations 0, 1, ..., actions 10, 11, ..., rewards 0.5, 1.5, ...; those of the last step are 99."""
    reward = np.arange(num_steps, dtype=np.float32) + 0.5
    action = np.arange(num_steps) + 10
    reward[-1] = action[-1] = 99
    return {
        "observation": np.arange(num_steps),
        "action": action,
        "reward": reward,
        "discount": np.full([num_steps], 0.9, np.float32),
        "is_terminal": np.arange(num_steps) == (num_steps - 1 if terminal else num_steps),
    }


def _spec_of(frames):
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), frames)


def _found(frames, spec=None, *, begins=True, ends=True):
    return list(FramesToSteps(spec or _spec_of(frames)).episodes(frames, begins=begins, ends=ends))


def _lists(columns):
    return tf.nest.map_structure(lambda column: column.tolist(), dict(columns))


def _transitions(pairs, **fields):
    observation, following = zip(*pairs, strict=True)
    none = np.zeros([len(pairs)], bool)
    columns = {
        "observation": np.array(observation),
        "next_observation": np.array(following),
        "is_terminal": none,
        "is_truncated": none,
    }
    return {**columns, **{name: np.array(column) for name, column in fields.items()}}


def _trajectory(step_types, discounts, **fields):
    num = len(step_types)
    columns = {
        "step_type": np.array(step_types, np.int32),
        "observation": np.arange(num),
        "action": np.arange(num) + 10,
        "policy_info": (),
        "next_step_type": np.array([*step_types[1:], 0 if step_types[-1] == 2 else 1], np.int32),
        "reward": np.arange(num, dtype=np.float32) + 1,
        "discount": np.array(discounts, np.float32),
    }
    return trajectory.Trajectory(**{**columns, **fields})


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("layout", [to_transitions, to_trajectory])
def test_steps_come_back_with_zeros_where_they_meant_nothing(layout, terminal):
    frames = layout(cut_steps(_columns(4, terminal=terminal), 4))
    (found,) = _found(frames)
    last = 0.0 if terminal else 1.0
    assert _lists(found.columns) == {
        "observation": [0, 1, 2, 3],
        "action": [10, 11, 12, 0],
        "reward": [0.5, 1.5, 2.5, 0],
        "discount": [np.float32(0.9), np.float32(0.9), 0.0 if terminal else np.float32(0.9), last],
        "is_first": [True, False, False, False],
        "is_last": [False, False, False, True],
        "is_terminal": [False, False, False, terminal],
    }
    assert not found.partial
    assert found.first_frame == 0
    assert {name: column.dtype for name, column in found.columns.items() if name != "observation"} == {
        "action": np.int64,
        "reward": np.float32,
        "discount": np.float32,
        "is_first": bool,
        "is_last": bool,
        "is_terminal": bool,
    }


@pytest.mark.parametrize("layout", [to_transitions, to_trajectory])
def test_the_step_spec_is_that_of_the_steps(layout):
    observation = {"image": np.zeros([3, 2, 2], np.uint8), "speed": np.zeros([3], tf.bfloat16.as_numpy_dtype)}
    frames = layout(cut_steps({**_columns(3, terminal=True), "observation": observation}, 3))
    make = FramesToSteps(_spec_of(frames))
    (found,) = make.episodes(frames, begins=True, ends=True)
    assert make.step_spec == _spec_of(found.columns)
    assert make.step_spec["observation"]["speed"].dtype == tf.bfloat16


def test_transitions_are_joined_only_where_one_goes_on_from_the_other():
    # 0 1 2 | 5 6 | 6 7: two short episodes and a beginning, written into one stream without ends.
    frames = _transitions([(0, 1), (1, 2), (5, 6), (8, 9), (9, 10)])
    found = _found(frames, begins=True, ends=False)
    assert [each.columns["observation"].tolist() for each in found] == [[0, 1, 2], [5, 6], [8, 9, 10]]
    assert [each.first_frame for each in found] == [0, 2, 3]
    assert all(each.partial for each in found)
    assert [each.columns["is_first"][0] for each in found] == [True, False, False]
    assert not any(each.columns["is_last"].any() for each in found)


def test_transitions_are_parted_where_one_bit_differs_and_joined_where_nan_follows_nan():
    pairs = [(0.0, np.nan), (np.nan, -0.0), (0.0, 1.0)]
    assert [len(each.columns["observation"]) for each in _found(_transitions(pairs))] == [3, 2]


def test_every_leaf_of_an_observation_tells_whether_transitions_follow_each_other():
    frames = _transitions([(0, 1), (1, 2)])
    frames["observation"] = {"a": np.array([0, 1]), "b": np.array([[0, 0], [0, 0]])}
    frames["next_observation"] = {"a": np.array([1, 2]), "b": np.array([[0, 1], [0, 0]])}
    assert len(_found(frames)) == 2


@pytest.mark.parametrize("flag", ["is_terminal", "is_truncated"])
def test_a_flag_ends_an_episode_of_transitions_whatever_the_buffer_says(flag):
    frames = _transitions([(0, 1), (1, 2), (2, 3)], **{flag: [False, True, False]})
    first, second = _found(frames, begins=False, ends=False)
    assert _lists(first.columns) == {
        "observation": [0, 1, 2],
        "is_first": [False, False, False],
        "is_last": [False, False, True],
        "is_terminal": [False, False, flag == "is_terminal"],
    }
    assert first.partial  # its beginning is not there
    assert second.columns["observation"].tolist() == [2, 3]
    assert second.columns["is_first"].tolist() == [True, False]
    assert second.partial  # it goes on


def test_the_buffer_ends_transitions_that_tell_no_truncation_themselves():
    frames = _transitions([(0, 1), (1, 2)])
    (flagged,) = _found(frames, ends=True)
    assert flagged.partial
    del frames["is_truncated"]
    (told,) = _found(frames, ends=True)
    assert not told.partial
    assert told.columns["is_last"].tolist() == [False, False, True]
    assert not told.columns["is_terminal"].any()


def test_further_fields_of_transitions_are_step_metadata_with_zeros_in_the_last_step():
    frames = _transitions([(0, 1), (1, 2)], energy=[7, 8])
    frames["info"] = {"qpos": np.ones([2, 3])}
    (found,) = _found(frames)
    assert found.columns["energy"].tolist() == [7, 8, 0]
    assert found.columns["info"]["qpos"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("discounts", "terminal"),
    [
        ([1.0, 1, 0, 1], True),
        ([1.0, 1, 1, 1], False),
        ([1.0, 0, 1, 1], False),  # a 0 elsewhere ends nothing
        ([1.0, 1, 1, 0], False),  # T15: TF-Agents' converter writes it one frame late, where it means nothing
        ([0.0, 0, 0, 0], True),  # a bandit's: to_steps has to tell
    ],
)
def test_a_trajectory_was_terminal_where_its_last_transition_has_discount_0(discounts, terminal):
    (found,) = _found(_trajectory([0, 1, 1, 2], discounts))
    assert found.columns["is_terminal"].tolist() == [False, False, False, terminal]
    assert found.columns["discount"].tolist() == [*discounts[:3], 0.0 if terminal else 1.0]


def test_a_trajectory_begins_at_first_and_ends_at_last_whatever_the_buffer_says():
    frames = _trajectory([1, 2, 0, 1, 2, 0, 1], [1.0] * 7)
    ends, whole, goes_on = _found(frames, begins=True, ends=True)
    assert [each.columns["observation"].tolist() for each in (ends, whole, goes_on)] == [[0, 1], [2, 3, 4], [5, 6]]
    assert [each.partial for each in (ends, whole, goes_on)] == [True, False, True]
    assert ends.columns["is_first"].tolist() == [False, False]
    assert ends.columns["is_last"].tolist() == [False, True]
    # What is real stays: the newest action has been taken.
    assert goes_on.columns["action"].tolist() == [15, 16]
    assert goes_on.columns["is_last"].tolist() == [False, False]


def test_a_trajectory_without_its_boundary_frame_is_partial_and_not_joined_to_the_next():
    frames = _trajectory([0, 1, 0, 1], [1.0, 0, 1, 1], next_step_type=np.array([1, 2, 1, 1], np.int32))
    cut, following = _found(frames)
    assert cut.partial
    assert not cut.columns["is_last"].any()
    assert not cut.columns["is_terminal"].any()  # the state that it ended in is not there
    assert following.columns["observation"].tolist() == [2, 3]


def test_frames_of_a_trajectory_that_do_not_follow_each_other_are_parted():
    frames = _trajectory([0, 1, 1, 2], [1.0] * 4, next_step_type=np.array([1, 2, 2, 0], np.int32))
    assert [len(each.columns["observation"]) for each in _found(frames)] == [2, 2]


def test_a_boundary_frame_alone_holds_no_transition():
    assert [each.first_frame for each in _found(_trajectory([2, 0, 2], [1.0] * 3))] == [1]


def test_policy_info_is_step_metadata():
    num = np.arange(3)
    (named,) = _found(_trajectory([0, 1, 2], [1.0] * 3, policy_info={"log_prob": num, "logits": {"a": num}}))
    assert named.columns["log_prob"].tolist() == [0, 1, 2]
    assert named.columns["logits"]["a"].tolist() == [0, 1, 2]
    info = collections.namedtuple("info", ["log_prob"])(num)
    (whole,) = _found(_trajectory([0, 1, 2], [1.0] * 3, policy_info=info))
    assert whole.columns["policy_info"].log_prob.tolist() == [0, 1, 2]
    (clashing,) = _found(_trajectory([0, 1, 2], [1.0] * 3, policy_info={"reward": num}))
    assert clashing.columns["reward"].dtype == np.float32
    assert clashing.columns["policy_info"]["reward"].tolist() == [0, 1, 2]


def test_a_trajectory_without_actions_gives_none():
    (found,) = _found(_trajectory([0, 2], [0.0, 1.0], action=()))
    assert "action" not in found.columns


def test_steps_stay_as_they_are():
    frames = {
        "observation": np.arange(5),
        "action": np.arange(5) + 10,
        "is_first": np.array([False, False, True, False, True]),
        "is_last": np.array([False, True, False, True, False]),
        "is_terminal": np.array([False, True, False, False, False]),
        "note": np.arange(5) * 2,
    }
    found = _found(frames, begins=True, ends=True)
    assert [each.columns["action"].tolist() for each in found] == [[10, 11], [12, 13], [14]]
    assert [each.columns["note"].tolist() for each in found] == [[0, 2], [4, 6], [8]]
    assert [each.partial for each in found] == [True, False, True]
    assert found[0].columns["is_terminal"].tolist() == [False, True]


def test_steps_without_is_first_begin_where_the_buffer_says():
    frames = {
        "observation": np.arange(4),
        "is_last": np.array([False, True, False, True]),
        "is_terminal": np.zeros([4], bool),
    }
    assert [each.columns["is_first"].tolist() for each in _found(frames, begins=False)] == [
        [False, False],
        [True, False],
    ]
    assert [each.partial for each in _found(frames, begins=True)] == [False, False]


def test_single_transitions_are_episodes_of_two_steps():
    frames = _transitions([(4, 5), (5, 6)], is_terminal=[False, True])
    first, second = FramesToSteps(_spec_of(frames)).single_episodes(frames)
    assert first.columns["observation"].tolist() == [4, 5]
    assert second.columns["is_terminal"].tolist() == [False, True]
    assert second.columns["is_last"].tolist() == [False, True]
    assert first.partial and second.partial
    assert (first.first_frame, second.first_frame) == (0, 1)


@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        (TRANSITION, "transition"),
        ({"observation": NUMBER, "is_last": FLAG, "is_terminal": FLAG}, "step"),
        ({"observation": NUMBER, "step_type": TYPE, "discount": FLOAT}, "trajectory"),
        (
            {"observation": tf.TensorSpec([], tf.int64, "o"), "next_observation": NUMBER, "is_terminal": FLAG},
            "transition",
        ),
    ],
)
def test_the_layout_is_found_from_the_spec(spec, layout):
    assert FramesToSteps(spec).layout == layout


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (NUMBER, "a TensorSpec"),
        ({"obs": NUMBER, "done": FLAG}, "the fields 'obs', 'done'"),
        ({"observation": NUMBER, "is_terminal": FLAG}, "the fields 'observation', 'is_terminal'"),
        ({**TRANSITION, "is_last": FLAG}, "'is_last'"),
        ({**TRANSITION, "next_observation": FLOAT}, "'next_observation'"),
        ({**TRANSITION, "is_terminal": tf.TensorSpec([2], tf.bool)}, "'is_terminal'"),
        ({"observation": NUMBER, "step_type": TYPE}, "'step_type'"),
    ],
)
def test_any_other_spec_is_refused_with_the_way_out(spec, found):
    with pytest.raises(ValueError, match=r"none of the layouts.* Give to_steps, a function") as error:
        FramesToSteps(spec)
    assert found in str(error.value)


def test_to_steps_makes_steps_of_any_spec():
    spec = {"obs": NUMBER, "next": NUMBER, "done": FLAG}

    def to_steps(frames):
        return {
            "observation": np.append(frames["obs"], frames["next"][-1]),
            "is_terminal": np.append(np.zeros([len(frames["obs"])], bool), frames["done"][-1]),
            "word": np.array([b"yes"] * (len(frames["obs"]) + 1), object),
        }

    make = FramesToSteps(spec, to_steps)
    frames = {"obs": np.array([3, 4]), "next": np.array([4, 5]), "done": np.array([False, True])}
    (found,) = make.episodes(frames, begins=True, ends=False)
    assert found.columns["observation"].tolist() == [3, 4, 5]
    assert found.columns["is_terminal"].tolist() == [False, False, True]
    assert found.columns["is_first"].tolist() == [True, False, False]
    assert not found.columns["is_last"].any() and found.partial
    assert make.step_spec["word"] == tf.TensorSpec([], tf.string)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], r"must return a dict of step columns \[N \+ 1, ...\], got a list\."),
        ({"observation": np.zeros(3)}, r"got a dict without 'is_terminal'\."),
        ({"observation": np.zeros(3), "is_terminal": np.zeros(2, bool)}, r"of one length, got leading axes"),
        ({"observation": np.zeros([]), "is_terminal": np.zeros([], bool)}, r"of one length, got leading axes"),
    ],
)
def test_what_to_steps_returns_is_checked_at_once(given, message):
    with pytest.raises(ValueError, match=message):
        FramesToSteps(NUMBER, lambda frames: given)


def test_to_steps_must_be_a_function():
    with pytest.raises(TypeError, match=r"to_steps must be a function of frames \[T, ...\], got 'transition'\."):
        FramesToSteps(TRANSITION, "transition")
