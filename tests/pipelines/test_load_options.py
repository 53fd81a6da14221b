"""What the options of `load_rlds` make of hand-made episodes: literal numbers."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines import load_rlds, rlds_spec
from replayfeed.pipelines.field_rules import Drop, Keep


def steps_of(num_steps=3, *, terminal=True, **fields):
    """Stacked steps: observations (1, 2), (2, 3), ..., actions 10, 11, ..., rewards 1, 2, 4, ...; None: not there."""
    index = np.arange(num_steps)
    steps = {
        "observation": np.stack([index + 1, index + 2], axis=1).astype(np.float32),
        "action": index + 10,
        "reward": 2.0 ** np.minimum(index, 9),
        "is_first": index == 0,
        "is_last": index == num_steps - 1,
        "is_terminal": (index == num_steps - 1) & terminal,
        **fields,
    }
    return {name: column for name, column in steps.items() if column is not None}


def one_episode(num_steps=3, *, terminal=True, about=None, **fields):
    return tf.data.Dataset.from_tensors({"steps": steps_of(num_steps, terminal=terminal, **fields), **(about or {})})


def load_one(dataset, layout="transition", **options):
    """The frames of the only episode, as lists."""
    (frames,) = load_rlds(dataset, layout=layout, **options)
    return tf.nest.map_structure(lambda leaf: leaf.tolist(), frames)


# Alignment


DREAMER = {
    # What an actor saw: the action that led to each observation, and the reward and discount that came with it.
    "observation": [0, 1, 2, 3],
    "action": [0, 10, 11, 12],
    "reward": [0.0, 1.0, 2.0, 4.0],
    "discount": [1.0, 0.9, 0.8, 0.0],
    "is_first": [True, False, False, False],
    "is_last": [False, False, False, True],
    "is_terminal": [False, False, False, True],
}


def episode_of(columns):
    return tf.data.Dataset.from_tensors({"steps": columns})


@pytest.mark.parametrize("layout", ["transition", "trajectory", "step"])
def test_ars_episodes_as_dreamer_stores_them_are_turned_into_sar(layout):
    frames = load_one(episode_of(DREAMER), layout, alignment="ars")
    frames = frames if isinstance(frames, dict) else frames._asdict()
    assert frames["observation"] == ([0, 1, 2] if layout == "transition" else [0, 1, 2, 3])
    assert frames["action"][:3] == [10, 11, 12]
    assert frames["reward"][:3] == [1, 2, 4]
    np.testing.assert_array_equal(frames["discount"][:3], np.float32([0.9, 0.8, 0]))


def test_rsa_episodes_shift_rewards_and_discounts_but_no_actions():
    frames = load_one(episode_of({**DREAMER, "action": [10, 11, 12, 99]}), alignment="rsa")
    assert frames == load_one(episode_of(DREAMER), alignment="ars")


def test_what_came_before_an_episode_is_not_looked_at_with_ars():
    strange = {**DREAMER, "reward": [np.nan, 1.0, 2.0, 4.0], "discount": [np.inf, 0.9, 0.8, 0.0]}
    assert load_one(episode_of(strange), alignment="ars") == load_one(episode_of(DREAMER), alignment="ars")
    with pytest.raises(ValueError, match="a reward is NaN or infinite"):
        load_one(episode_of({**DREAMER, "reward": [0.0, 1.0, 2.0, np.nan]}), alignment="ars")


def test_an_ars_episode_that_is_cut_still_bootstraps_from_its_last_observation():
    cut = {**DREAMER, "is_terminal": [False] * 4, "discount": [1.0, 0.9, 0.8, 0.7]}
    frames = load_one(episode_of(cut), alignment="ars")
    np.testing.assert_array_equal(frames["discount"], np.float32([0.9, 0.8, 0.7]))
    assert frames["is_truncated"] == [False, False, True]


@pytest.mark.parametrize(
    ("alignment", "shifted"), [("ars", ["action", "reward", "discount"]), ("rsa", ["reward", "discount"])]
)
def test_realigned_episodes_are_those_of_rlds_own_shift_keys(alignment, shifted):
    transformations = pytest.importorskip("rlds.transformations")
    columns = {
        **steps_of(6, terminal=False, action=None),
        "action": {"arm": np.arange(12.0).reshape(6, 2), "grip": np.arange(6) % 2 == 0},
        "discount": np.linspace(0.5, 1.0, 6),
        "energy": np.arange(6),
    }
    expected = list(transformations.shift_keys(tf.data.Dataset.from_tensor_slices(columns), shifted, 1))
    (frames,) = load_rlds(episode_of(columns), layout="transition", alignment=alignment)
    assert len(expected) == len(frames["reward"]) == 5
    for t, step in enumerate(expected):
        for name in "observation", "action", "energy":
            tf.nest.map_structure(
                lambda got, want, t=t: np.testing.assert_array_equal(got[t], want), frames[name], step[name]
            )
        for name in "reward", "discount":
            assert frames[name][t] == np.float32(step[name])


def test_an_empty_and_a_one_step_episode_are_dropped_in_every_alignment():
    for alignment in "sar", "ars", "rsa":
        for num_steps in 0, 1:
            episodes = load_rlds(one_episode(num_steps), layout="transition", alignment=alignment)
            assert list(episodes) == []
            assert episodes.report.num_dropped == 1


# What fields hold


def test_fr_021_one_observation_too_few_names_the_episode_or_leaves_it_out():
    def episode(num_observations):
        return {**steps_of(6, terminal=False), "observation": np.zeros([num_observations, 2], np.float32)}

    episodes = [episode(6), episode(5), episode(6)]
    spec = {name: tf.TensorSpec([None, *column.shape[1:]], column.dtype) for name, column in episodes[0].items()}
    dataset = tf.data.Dataset.from_generator(
        lambda: ({"steps": steps} for steps in episodes), output_signature={"steps": spec}
    )
    with pytest.raises(ValueError, match=r"episode 1: its fields differ in length: .*'observation': 5"):
        list(load_rlds(dataset, layout="transition"))
    skipping = load_rlds(dataset, layout="transition", on_bad_episode="skip")
    assert [len(frames["action"]) for frames in skipping] == [5, 5]
    assert [str(finding) for finding in skipping.report.dropped] == ["1 with fields of different lengths (episode 1)"]


@pytest.mark.parametrize("layout", ["transition", "trajectory", "step"])
def test_d1_t18_reward_action_and_discount_of_a_last_step_are_never_used(layout):
    clean = one_episode(discount=np.ones([3]))
    poisoned = one_episode(
        discount=np.array([1.0, 1.0, np.nan]), reward=np.array([1.0, 2.0, np.inf]), action=np.array([10, 11, -99])
    )
    assert load_one(clean, layout) == load_one(poisoned, layout)


@pytest.mark.parametrize("stored", [[1.0, 1, 1], [0.0, 0, 0], [1.0, 0, 0], [1.0, 1, 0], None])
@pytest.mark.parametrize("terminal", [True, False])
def test_d2_is_terminal_alone_tells_how_an_episode_ended(stored, terminal):
    dataset = one_episode(terminal=terminal, discount=None if stored is None else np.array(stored))
    frames = load_one(dataset)
    first, last = stored[:2] if stored else (1.0, 1.0)
    assert frames["discount"] == [first, 0.0 if terminal else last]
    assert (frames["is_terminal"][-1], frames["is_truncated"][-1]) == (terminal, not terminal)
    assert load_one(dataset, "step")["is_terminal"] == [False, False, terminal]


def test_d3_an_episode_that_rlds_truncate_after_condition_cut_ends_where_its_steps_end():
    transformations = pytest.importorskip("rlds.transformations")

    def cut(episode):
        steps = tf.data.Dataset.from_tensor_slices(episode["steps"])
        return {"steps": transformations.truncate_after_condition(steps, lambda step: step["action"] >= 12)}

    whole = tf.data.Dataset.from_tensors({"steps": steps_of(5)})
    episodes = load_rlds(whole.concatenate(whole).map(cut), layout="transition")
    assert [frames["action"].tolist() for frames in episodes] == [[10, 11], [10, 11]]
    assert [frames["is_truncated"].tolist() for frames in episodes] == [[False, True]] * 2
    assert [frames["discount"].tolist() for frames in episodes] == [[1, 1]] * 2
    assert str(episodes.report.repaired[0]) == "2 with is_last not set on the last step (episodes 0, 1)"


def test_d4_no_window_is_shorter_than_asked_for():
    episodes = load_rlds(one_episode(6), layout="transition")  # 5 transitions
    shapes = [items["action"].shape for items, _ in episodes.as_dataset(1, 2, single_deterministic_pass=True)]
    assert shapes == [(1, 2), (1, 2)]


def test_d5_a_step_that_rlds_concatenate_filled_with_zeros_does_not_hide_the_end():
    transformations = pytest.importorskip("rlds.transformations")

    def lengthen(episode):
        steps = tf.data.Dataset.from_tensor_slices(episode["steps"])
        extra = tf.data.Dataset.from_tensors({"observation": tf.constant([7.0, 8.0])})
        return {"steps": transformations.concatenate(steps, extra)}

    dataset = tf.data.Dataset.from_tensors({"steps": steps_of(3)}).map(lengthen)
    with pytest.raises(ValueError, match="is_terminal is set at step 2 of 4, before the last one"):
        list(load_rlds(dataset, layout="transition"))
    assert load_one(dataset, on_bad_episode="repair") == load_one(one_episode(3))


@pytest.mark.parametrize("layout", ["transition", "trajectory", "step"])
def test_t15_a_constant_discount_does_not_keep_a_terminal_state_alive(layout):
    frames = load_one(one_episode(discount=np.full([3], 1.0)), layout)
    frames = frames if isinstance(frames, dict) else frames._asdict()
    assert frames["discount"][:2] == [1, 0]


def test_t16_a_trajectory_of_nested_observations_has_no_axis_of_pairs():
    observation = {"camera": {"left": np.zeros([3, 4, 4, 3], np.uint8)}, "speed": np.arange(3.0)}
    (frames,) = load_rlds(one_episode(observation=observation), layout="trajectory")
    assert frames.observation["camera"]["left"].shape == (3, 4, 4, 3)
    assert frames.observation["speed"].tolist() == [0, 1, 2]


def test_an_observation_of_nothing_is_refused():
    with pytest.raises(ValueError, match="step field 'observation' is an empty nest"):
        load_rlds(one_episode(observation={}), layout="transition")


def test_the_report_tells_apart_what_is_not_there_and_what_was_left_out():
    dataset = one_episode(discount=np.full([3], 0.5))
    chosen = load_rlds(dataset, layout="transition", fields=["observation", "action"])
    assert [frames["discount"].tolist() for frames in chosen] == [[0.5, 0.0]]  # it comes along
    left_out = load_rlds(dataset, layout="transition", fields={"discount": Drop(), "reward": Drop()})
    list(left_out)
    assert left_out.report.notes == (
        "step fields not loaded: discount, reward",
        "the dataset's discount is not loaded: 0 into a terminal step, else 1",
        "the dataset's reward is not loaded: the frames have none",
    )
    absent = load_rlds(one_episode(reward=None), layout="transition")
    list(absent)
    assert absent.report.notes[-1] == "the dataset has no reward: the frames have none"


# policy_info


def test_policy_info_may_be_a_function_of_all_step_columns():
    def log_probability(steps):
        assert sorted(steps) == [
            "action",
            "discount",
            "is_first",
            "is_last",
            "is_terminal",
            "logits",
            "observation",
            "reward",
        ]
        return {"log_probability": -steps["logits"], "twice": steps["reward"] * 2}

    dataset = one_episode(logits=np.array([0.5, 0.25, 9.0], np.float32))
    frames = load_one(dataset, "trajectory", policy_info=log_probability)
    assert frames.policy_info == {"log_probability": [-0.5, -0.25, -9.0], "twice": [2, 4, 0]}
    spec = rlds_spec(dataset, policy_info=log_probability)
    assert spec.policy_info["log_probability"] == tf.TensorSpec([], tf.float32)


def test_policy_info_of_the_wrong_number_of_rows_or_name_is_refused_before_reading():
    with pytest.raises(ValueError, match=r"policy_info gave an array of shape \[1\] for an episode of 2 steps"):
        load_rlds(one_episode(), policy_info=lambda steps: steps["reward"][:-1])
    with pytest.raises(ValueError, match=r"policy_info names 'logits', but the loaded step metadata is \[\]"):
        load_rlds(one_episode(), policy_info=["logits"])
    with pytest.raises(
        ValueError, match="policy_info is for layout 'trajectory'; layout 'step' has step metadata under"
    ):
        load_rlds(one_episode(), layout="step", policy_info=["logits"])
    with pytest.raises(ValueError, match=r"write \['name'\] for one"):
        load_rlds(one_episode(), policy_info="logits")


# The episodes' own fields


def test_each_frame_may_hold_the_fields_of_its_episode():
    dataset = one_episode(about={"seed": np.int64(7), "task": {"goal/xy": np.array([1.5, 2.5])}})
    frames = load_one(dataset, episode_fields=["seed", "task"])
    assert frames["episode_metadata"] == {"seed": [7, 7], "task": {"goal/xy": [[1.5, 2.5], [1.5, 2.5]]}}
    (trajectory,) = load_rlds(dataset, episode_fields=["seed"])
    assert trajectory.policy_info["episode_metadata"]["seed"].tolist() == [7, 7, 7]
    assert load_one(dataset, "step", episode_fields=["seed"])["episode_metadata"] == {"seed": [7, 7, 7]}
    spec = rlds_spec(dataset, "transition", episode_fields=["seed", "task"])["episode_metadata"]
    assert spec == {"seed": tf.TensorSpec([], tf.int64), "task": {"goal/xy": tf.TensorSpec([2], tf.float64)}}


def test_fields_of_an_episode_that_no_frame_can_hold_are_refused_by_name():
    dataset = one_episode(about={"words": "abc", "seeds": tf.ragged.constant([[1], [2, 3]])})
    with pytest.raises(
        ValueError,
        match="episode_fields names 'words', which is a string, .* so no frame can hold it; Episode.metadata",
    ):
        load_rlds(dataset, layout="transition", episode_fields=["words"])
    with pytest.raises(
        ValueError, match="episode_fields names 'seeds', which is a RaggedTensor, which is of variable length"
    ):
        load_rlds(dataset, layout="transition", episode_fields=["seeds"])
    with pytest.raises(
        ValueError, match=r"episode_fields names 'agent'; the episodes' own fields are \['seeds', 'words'\]"
    ):
        load_rlds(dataset, layout="transition", episode_fields=["agent"])
    with pytest.raises(ValueError, match=r"episode_fields takes several names: write \['words'\] for one"):
        load_rlds(dataset, layout="transition", episode_fields="words")
    (episode,) = load_rlds(dataset, layout="transition").start_pass()
    assert episode.metadata["words"] == b"abc"
    assert episode.metadata["seeds"].to_list() == [[1], [2, 3]]


def test_step_metadata_of_the_name_of_an_addition_is_refused_with_the_way_out():
    dataset = one_episode(return_to_go=np.arange(3.0))
    message = r"step metadata 'return_to_go' already; fields={'return_to_go': Drop\(\)} leaves it out"
    with pytest.raises(ValueError, match=message):
        load_rlds(dataset, layout="transition", return_to_go=1.0)
    assert load_one(dataset, return_to_go=1.0, fields={"return_to_go": Drop()})["return_to_go"] == [3, 2]
    with pytest.raises(
        ValueError, match="step metadata 'next_observation' has the name of a field of layout 'transition'"
    ):
        load_rlds(one_episode(next_observation=np.arange(3)), layout="transition")


# Returns to go


@pytest.mark.parametrize(("layout", "expected"), [("transition", [2.75, 3.5, 3.0]), ("step", [2.75, 3.5, 3.0, 0.0])])
def test_return_to_go_is_the_discounted_sum_of_what_follows(layout, expected):
    dataset = one_episode(4, reward=np.array([1.0, 2.0, 3.0, 99.0]))
    assert load_one(dataset, layout, return_to_go=0.5)["return_to_go"] == expected


def test_return_to_go_uses_stored_discounts_and_ends_with_a_cut_episode():
    dataset = one_episode(4, terminal=False, reward=np.ones([4]), discount=np.array([0.5, 0.0, 0.5, 0.5]))
    frames = load_one(dataset, "trajectory", return_to_go=0.5)
    assert frames.policy_info == {"return_to_go": [1.25, 1.0, 1.0, 0.0]}


def test_return_to_go_stands_beside_named_policy_info_and_inside_a_function_of_it():
    dataset = one_episode(logits=np.arange(3))
    frames = load_one(dataset, "trajectory", return_to_go=1.0, policy_info=["logits"])
    assert frames.policy_info == {"logits": [0, 1, 2], "return_to_go": [3, 2, 0]}
    frames = load_one(dataset, "trajectory", return_to_go=1.0, policy_info=lambda steps: steps["return_to_go"])
    assert frames.policy_info == [3, 2, 0]


def test_return_to_go_needs_a_reward_and_a_discount_in_0_to_1():
    with pytest.raises(ValueError, match="return_to_go needs a reward of one number a step"):
        load_rlds(one_episode(reward=None), layout="transition", return_to_go=1.0)
    for wrong in -0.1, 1.5, np.nan:
        with pytest.raises(ValueError, match=r"return_to_go is the discount of the sum, in \[0, 1\]"):
            load_rlds(one_episode(), layout="transition", return_to_go=wrong)


def test_returns_of_a_long_episode_are_summed_exactly_enough():
    num_steps = 3001
    (frames,) = load_rlds(
        one_episode(num_steps, reward=np.full([num_steps], 0.1)),
        layout="transition",
        return_to_go=1.0,
        reward_dtype=tf.float64,
    )
    np.testing.assert_allclose(frames["return_to_go"], 0.1 * np.arange(3000, 0, -1), rtol=1e-12)


# Observations that were never recorded


def d4rl_like(terminal=True):
    return one_episode(4, terminal=terminal, observation=np.array([[1, 2], [0, 0], [3, 4], [0, 0]], np.float32))


def test_a_zero_observation_behind_a_terminal_transition_is_marked_where_a_learner_sees_it():
    assert load_one(d4rl_like(), zero_observation="mark")["next_observation_is_filler"] == [False, False, True]
    assert load_one(d4rl_like(), "step", zero_observation="mark")["observation_is_filler"] == [
        False,
        False,
        False,
        True,
    ]
    info = load_one(d4rl_like(), "trajectory", zero_observation="mark").policy_info
    assert info == {"observation_is_filler": [False, False, False, True]}
    assert (
        rlds_spec(d4rl_like(), "transition").keys() & {"observation_is_filler", "next_observation_is_filler"} == set()
    )
    spec = load_rlds(d4rl_like(), layout="transition", zero_observation="mark").element_spec
    assert "observation_is_filler" not in spec
    assert spec["next_observation_is_filler"] == tf.TensorSpec([], tf.bool)


def test_a_truncated_episode_has_no_observation_to_mark_or_to_repeat():
    marked = load_one(d4rl_like(terminal=False), zero_observation="mark")
    assert marked["next_observation_is_filler"] == [False] * 3
    assert load_one(d4rl_like(terminal=False), zero_observation="repeat") == load_one(d4rl_like(terminal=False))


def test_a_zero_observation_is_replaced_by_the_one_before_it():
    frames = load_one(d4rl_like(), zero_observation="repeat")
    assert frames["next_observation"] == [[0, 0], [3, 4], [3, 4]]
    assert frames["discount"] == [1, 1, 0]


def test_recorded_d4rl_episodes_have_no_zero_observation_left_when_it_is_repeated(shared_data):
    kept = list(load_rlds(shared_data / "d4rl_hopper", layout="transition"))
    repeated = list(load_rlds(shared_data / "d4rl_hopper", layout="transition", zero_observation="repeat"))
    marked = list(load_rlds(shared_data / "d4rl_hopper", layout="transition", zero_observation="mark"))
    for plain, new, mark in zip(kept, repeated, marked, strict=True):
        ended = bool(plain["is_terminal"][-1])
        assert mark["next_observation_is_filler"].tolist() == [False] * (len(mark["reward"]) - 1) + [ended]
        np.testing.assert_array_equal(new["next_observation"][:-1], plain["next_observation"][:-1])
        last = plain["observation" if ended else "next_observation"][-1]
        np.testing.assert_array_equal(new["next_observation"][-1], last)
        assert new["next_observation"][-1].any()
    assert sum(mark["next_observation_is_filler"].sum() for mark in marked) == 8


def test_what_d4rl_files_lack_is_told_of_loaded_episodes_too(shared_data):
    plain = load_rlds(shared_data / "d4rl_hopper", layout="transition")
    again = load_rlds([(plain, 1)], layout="transition")
    for episodes in plain, again:
        list(episodes)
    assert len(again.report.notes) == 2
    assert again.report.notes == plain.report.notes


# Absorbing states


def test_a_terminal_episode_leads_into_an_absorbing_state():
    frames = load_one(one_episode(), absorbing=True, return_to_go=0.5)
    assert frames["observation"] == [[1, 2, 0], [2, 3, 0], [3, 4, 0], [0, 0, 1]]
    assert frames["next_observation"] == [[2, 3, 0], [3, 4, 0], [0, 0, 1], [0, 0, 1]]
    assert frames["action"] == [10, 11, 0, 0]
    assert frames["reward"] == [1, 2, 0, 0]
    assert frames["discount"] == [1, 1, 1, 1]
    assert frames["is_terminal"] == [False] * 4
    assert frames["is_truncated"] == [False, False, False, True]
    assert frames["return_to_go"] == [2, 2, 0, 0]


def test_a_truncated_episode_gets_only_the_number_that_tells():
    frames = load_one(one_episode(terminal=False), absorbing=True)
    assert frames["next_observation"] == [[2, 3, 0], [3, 4, 0]]
    assert frames["is_truncated"] == [False, True]


@pytest.mark.parametrize(("layout", "frames"), [("transition", 6), ("trajectory", 8), ("step", 8)])
def test_the_report_counts_terminal_episodes_as_the_source_has_them(layout, frames):
    both = one_episode().concatenate(one_episode(terminal=False))
    episodes = load_rlds(both, layout=layout, absorbing=True)
    endings = [episode.is_terminal for episode in episodes.start_pass()]
    list(episodes)
    assert endings == [True, False]
    assert (episodes.report.terminals, episodes.report.truncations, episodes.report.frames) == (1, 1, frames)


def test_an_absorbing_trajectory_ends_in_its_boundary_frame():
    (frames,) = load_rlds(one_episode(), absorbing=True)
    assert frames.step_type.tolist() == [0, 1, 1, 1, 2]
    assert frames.observation.tolist() == [[1, 2, 0], [2, 3, 0], [3, 4, 0], [0, 0, 1], [0, 0, 1]]
    assert frames.discount.tolist() == [1, 1, 1, 1, 1]
    assert rlds_spec(one_episode()).observation == tf.TensorSpec([2], tf.float32)
    assert load_rlds(one_episode(), absorbing=True).element_spec.observation == tf.TensorSpec([3], tf.float32)


def test_absorbing_states_need_one_vector_of_floats():
    for observation in np.arange(3), np.zeros([3, 2], np.int32), {"a": np.zeros([3, 2])}:
        with pytest.raises(
            ValueError, match="absorbing states need an observation that is one vector of floats a step"
        ):
            load_rlds(one_episode(observation=observation), layout="transition", absorbing=True)


# Agents


def test_agents_that_take_turns_in_an_episode_become_episodes_of_their_own():
    dataset = one_episode(6, who=np.array([1, 0, 1, 0, 1, 0]))
    found = [
        (episode.agent, episode.frames["action"].tolist(), episode.is_terminal, episode.frames["discount"].tolist())
        for episode in load_rlds(dataset, layout="transition", agent_field="who").start_pass()
    ]
    assert found == [("1", [10, 12], False, [1, 1]), ("0", [11, 13], True, [1, 0])]


def test_an_agent_with_one_step_is_dropped_and_counted():
    episodes = load_rlds(one_episode(4, who=np.array([5, 6, 5, 5])), layout="transition", agent_field="who")
    assert [frames["action"].tolist() for frames in episodes] == [[10, 12]]
    assert str(episodes.report.dropped[0]) == "1 of one step, so without a transition (episode 0)"


def test_agents_may_be_named_by_strings_of_the_steps_or_of_the_episode():
    steps = one_episode(4, who=np.array([b"a", b"b"] * 2))
    by_step = load_rlds(steps, agent_field="who", fields={"who": Keep()})
    assert [episode.agent for episode in by_step.start_pass()] == ["a", "b"]
    assert all(frames.policy_info == () for frames in by_step)
    whole = load_rlds(one_episode(about={"who": "walker"}), layout="transition", agent_field="who")
    assert [(episode.agent, episode.num_frames) for episode in whole.start_pass()] == [("walker", 2)]


def test_how_many_episodes_agents_have_is_unknown_and_each_keeps_a_name_of_its_own():
    both = one_episode(6, who=np.array([1, 0] * 3)).repeat(2)
    episodes = load_rlds(both, layout="transition", agent_field="who")
    assert (episodes.num_episodes, len(list(episodes))) == (None, 4)
    again = load_rlds(episodes, layout="transition").start_pass()
    assert [(episode.name, episode.id, episode.place) for episode in again] == [
        ("0 of 1", "0 of 1", 0),
        ("0 of 0", "0 of 0", 1),
        ("1 of 1", "1 of 1", 2),
        ("1 of 0", "1 of 0", 3),
    ]
    assert len(load_rlds(one_episode(about={"who": 3}), layout="transition", agent_field="who")) == 1


def test_agents_of_an_episode_of_different_lengths_are_a_bad_episode():
    dataset = one_episode(6, who=np.array([0, 1] * 3), action=np.arange(5))
    with pytest.raises(ValueError, match="episode 0: its fields differ in length"):
        list(load_rlds(dataset, layout="transition", agent_field="who"))
    assert list(load_rlds(dataset, layout="transition", agent_field="who", on_bad_episode="skip")) == []


@pytest.mark.parametrize(
    ("about", "fields"),
    [({}, {}), ({"who": [1, 2]}, {}), ({"who": {"name": 1}}, {}), ({}, {"who": np.zeros([3, 2])})],
    ids=["absent", "several", "nested", "several a step"],
)
def test_a_field_that_cannot_name_an_agent_is_refused(about, fields):
    with pytest.raises(ValueError, match="agent_field='who' must name one value of an episode or a step"):
        load_rlds(one_episode(about=about, **fields), layout="transition", agent_field="who")


# Numbers


def test_float64_rewards_keep_every_bit_on_request():
    dataset = one_episode(reward=np.array([0.1, 1e300, 0.0]), discount=np.array([0.9, 0.9, 0.9]))
    with pytest.raises(ValueError, match="a reward is too large for float32"):
        load_one(dataset)
    frames = load_one(dataset, reward_dtype=tf.float64)
    assert (frames["reward"], frames["discount"]) == ([0.1, 1e300], [0.9, 0.0])
    spec = rlds_spec(dataset, reward_dtype=tf.float64)
    assert spec.reward.dtype == spec.discount.dtype == tf.float64
    (trajectory,) = load_rlds(dataset, reward_dtype=tf.float64)
    assert trajectory.discount.tolist() == [0.9, 0.0, 1.0]


def test_a_limit_counts_episodes_that_are_read():
    many = tf.data.Dataset.from_tensors({"steps": steps_of(1)}).concatenate(one_episode(3).repeat(4))
    episodes = load_rlds(many, layout="transition", limit=3)
    assert (len(episodes), len(list(episodes))) == (3, 2)
    assert len(list(load_rlds(many, layout="transition", limit=np.int64(99)))) == 4


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit must be 1 or more episodes, or None for all, got 0"),
        ({"limit": 2.5}, "limit must be 1 or more episodes, or None for all, got 2.5"),
        ({"limit": True}, "limit must be 1 or more episodes"),
        ({"limit": "2"}, "limit must be 1 or more episodes"),
        ({"seed": -1}, "seed must be an int of 0 or more, or None for the source's order, got -1"),
        ({"seed": 0.5}, "seed must be an int of 0 or more"),
        ({"seed": True}, "seed must be an int of 0 or more"),
        ({"alignment": "sra"}, "alignment must be 'sar', 'ars' or 'rsa', got 'sra'"),
        ({"zero_observation": "drop"}, "zero_observation must be 'keep', 'mark' or 'repeat', got 'drop'"),
        ({"reward_dtype": tf.float16}, "reward_dtype must be float32 or float64, got tf.float16"),
        ({"compat": "acme"}, "compat must be None or 'tf_agents', got 'acme'"),
    ],
)
def test_an_option_without_a_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        load_rlds(one_episode(), layout="transition", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "transition"},
        {"policy_info": ["logits"]},
        {"alignment": "ars"},
        {"absorbing": True},
        {"return_to_go": 1.0},
        {"zero_observation": "mark"},
        {"reward_dtype": tf.float64},
        {"episode_fields": ["seed"]},
        {"agent_field": "seed"},
    ],
)
def test_what_tf_agents_converter_does_not_do_is_refused_beside_compat(options):
    dataset = one_episode(discount=np.ones([3]), logits=np.arange(3), about={"seed": 1})
    with pytest.raises(ValueError, match="compat='tf_agents' gives what TF-Agents' converter gives: it takes"):
        load_rlds(dataset, compat="tf_agents", **options)


def test_compat_gives_tf_agents_numbers_and_says_nothing_of_its_own():
    frames = load_one(one_episode(discount=np.ones([3], np.float32)), "trajectory", compat="tf_agents")
    assert frames.discount == [1, 1, 0]
    assert frames.reward == [1, 2, 4]
    assert frames.next_step_type == [1, 2, 0]


def test_part_of_an_episodes_own_field_is_named_by_its_place():
    dataset = one_episode(about={"meta": {"seed": 7, "who": "me"}})
    frames = load_one(dataset, episode_fields=["meta/seed"])
    assert frames["episode_metadata"] == {"meta/seed": [7, 7]}
    with pytest.raises(ValueError, match=r"names 'meta/age'; the episodes' own fields are \['meta/seed', 'meta/who'\]"):
        load_rlds(dataset, episode_fields=["meta/age"])


def test_a_return_that_its_dtype_cannot_hold_makes_a_bad_episode():
    dataset = one_episode(reward=np.array([3e38, 3e38, 0.0]))
    with pytest.raises(ValueError, match="a return to go is too large for reward_dtype"):
        load_one(dataset, return_to_go=1.0)
    assert list(load_rlds(dataset, layout="step", return_to_go=1.0, on_bad_episode="skip")) == []
    assert load_one(dataset, return_to_go=1.0, reward_dtype=tf.float64)["return_to_go"] == [6e38, 3e38]
