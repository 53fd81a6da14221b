"""Which fields are loaded, and what rules make of them: literal columns."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines import load_rlds, rlds_spec
from replayfeed.pipelines.field_rules import Bytes, Cast, CropTo, Drop, Keep, PadTo
from replayfeed.pipelines.rlds_fields import Choice, plan_fields

SPEC = {
    "observation": {"image": tf.TensorSpec([2, 2, 1], tf.uint8), "words": tf.TensorSpec([], tf.string)},
    "action": {"present/xyz": tf.TensorSpec([3], tf.float64), "end-effector type": tf.TensorSpec([], tf.int64)},
    "tag:placed": tf.TensorSpec([], tf.bool),
    "20_percent": tf.TensorSpec([None], tf.int64),
    "is_terminal": tf.TensorSpec([], tf.bool),
}


def steps_dataset(num_steps=3, **fields):
    """One terminal episode; fields are given with their first axis."""
    steps = {
        "observation": np.arange(num_steps, dtype=np.float32),
        "is_terminal": np.arange(num_steps) == num_steps - 1,
    }
    return tf.data.Dataset.from_tensors({"steps": {**steps, **fields}})


def of_nested_steps(*steps):
    """One episode whose steps come one by one, with fields that differ in length."""
    signature = {
        "observation": tf.TensorSpec([None], tf.int64),
        "words": tf.TensorSpec([None], tf.string),
        "is_terminal": tf.TensorSpec([], tf.bool),
    }

    def to_episode(_):
        return {"steps": tf.data.Dataset.from_generator(lambda: iter(steps), output_signature=signature)}

    return tf.data.Dataset.range(1).map(to_episode)


VARYING = [
    {"observation": [1], "words": [b"a"], "is_terminal": False},
    {"observation": [2, 3, 4], "words": [], "is_terminal": False},
    {"observation": [], "words": [b"bc", b"d"], "is_terminal": True},
]


def test_metadata_that_no_buffer_can_hold_stays_behind_with_its_reason():
    plan = plan_fields("mine", SPEC, Choice({"observation/words": Drop()}))
    assert sorted(plan.step_spec) == ["action", "is_terminal", "observation", "tag:placed"]
    assert sorted(plan.step_spec["action"]) == ["end-effector type", "present/xyz"]
    assert plan.not_loaded == ("20_percent (the shape (None,))", "observation/words")


def test_all_core_fields_without_a_fixed_width_are_named_at_once_with_the_ways_out():
    spec = {**SPEC, "action": tf.RaggedTensorSpec([None, None], tf.float32)}
    with pytest.raises(ValueError) as error:
        plan_fields("mine", spec)
    assert str(error.value) == (
        "mine: step field 'observation/words' is a string, which has no fixed width; "
        "fields={'observation/words': Drop()} leaves it out, Bytes(64) stores up to 64 bytes of it, Keep() keeps it "
        "where no buffer has to hold it;\n"
        "step field 'action' is a RaggedTensor, which is of variable length; fields={'action': Drop()} leaves it out, "
        "PadTo([8, 8]) pads it with zeros, CropTo([8, 8]) cuts it as well."
    )


def test_places_choose_fields_and_flags_come_along():
    plan = plan_fields("mine", SPEC, Choice(["observation/image", "action"]))
    assert plan.step_spec == {
        "observation": {"image": SPEC["observation"]["image"]},
        "action": SPEC["action"],
        "is_terminal": SPEC["is_terminal"],
    }
    assert plan.not_loaded == ("20_percent", "observation/words", "tag:placed")


def test_a_rule_for_a_place_holds_for_all_below_it_and_the_longer_place_wins():
    rules = {"action": Cast("float32"), "action/end-effector type": Cast("int32"), "observation": Drop()}
    spec = plan_fields("mine", SPEC, Choice(rules)).step_spec
    assert spec["action"]["present/xyz"].dtype == tf.float32
    assert spec["action"]["end-effector type"].dtype == tf.int32
    assert "observation" not in spec


def test_a_place_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(
        ValueError, match=r"fields names 'observation/depth', which the steps do not have; found \['20_"
    ):
        plan_fields("mine", SPEC, Choice(["observation/depth"]))
    with pytest.raises(ValueError, match="fields names 'obs', which the steps do not have"):
        plan_fields("mine", SPEC, Choice({"obs": Drop()}))


def test_rules_that_make_no_sense_are_refused():
    with pytest.raises(TypeError, match=r"fields\['action'\]: expected rules such as Drop\(\), PadTo\(8\)"):
        plan_fields("mine", SPEC, Choice({"action": "drop"}))
    with pytest.raises(TypeError, match="fields must be places such as"):
        plan_fields("mine", SPEC, Choice("action"))
    with pytest.raises(ValueError, match="Cast is for numbers, the field is string"):
        plan_fields("mine", SPEC, Choice({"observation/words": Cast("float32")}))
    with pytest.raises(ValueError, match="Bytes is for strings"):
        plan_fields("mine", SPEC, Choice({"observation/image": Bytes(3)}))
    with pytest.raises(
        ValueError, match=r"'20_percent' has 1 dimensions, .* so PadTo needs as many numbers, got \[2, 2\]"
    ):
        plan_fields("mine", SPEC, Choice({"observation/words": Drop(), "20_percent": PadTo([2, 2])}))
    for wrong in 0, [], [2, -1], 1.5:
        with pytest.raises(ValueError, match="expected a shape of positive numbers"):
            CropTo(wrong)
    with pytest.raises(ValueError, match="num_bytes must be 1 or more, got 0"):
        Bytes(0)


def test_variable_length_fields_are_padded_and_cropped():
    rules = {"observation": PadTo(3), "words": [CropTo(1), Bytes(2)]}
    (steps,) = load_rlds(of_nested_steps(*VARYING), layout="step", fields=rules)
    assert steps["observation"].tolist() == [[1, 0, 0], [2, 3, 4], [0, 0, 0]]
    assert steps["words"].tolist() == [[[97, 0]], [[0, 0]], [[98, 99]]]


def test_stacked_ragged_fields_are_padded_and_cropped():
    ragged = tf.ragged.constant([[1], [2, 3, 4], []], dtype=tf.int64)
    (steps,) = load_rlds(steps_dataset(tags=ragged), layout="step", fields={"tags": CropTo(2)})
    assert steps["tags"].tolist() == [[1, 0], [2, 3], [0, 0]]


def test_a_value_that_is_longer_than_pad_to_is_an_error_that_names_field_and_episode():
    episodes = load_rlds(of_nested_steps(*VARYING), layout="step", fields={"observation": PadTo(2), "words": Drop()})
    with pytest.raises(
        ValueError, match=r"the episode after 0 others cannot be read: .*'observation': longer than PadTo"
    ):
        list(episodes)
    long = steps_dataset(name=np.array([b"abcd", b"", b""]))
    with pytest.raises(ValueError, match="'name': a string has more than 3 bytes"):
        list(load_rlds(long, layout="step", fields={"name": Bytes(3)}))


def test_kept_strings_reach_training_straight_from_disk():
    dataset = steps_dataset(name=np.array([b"a", b"b", b"c"]), action=np.array([b"left", b"right", b"?"]))
    episodes = load_rlds(dataset, layout="step", fields={"name": Keep(), "action": Keep()})
    (steps,) = episodes
    assert steps["name"].tolist() == [b"a", b"b", b"c"]
    assert steps["action"].tolist() == [b"left", b"right", b""]  # the last one means nothing
    assert episodes.element_spec["name"] == tf.TensorSpec([], tf.string)
    (batch,) = [items for items, _ in episodes.as_dataset(8, single_deterministic_pass=True)]
    assert batch["name"].numpy().tolist() == [b"a", b"b"]


def test_float64_is_kept_or_cast_by_choice():
    exact = steps_dataset(reward=np.array([0.1, 0.2, 9.0]), energy=np.array([0.1, 0.1, 0.1]))
    (frames,) = load_rlds(exact, layout="transition")
    assert frames["reward"].dtype == np.float32
    assert frames["energy"].dtype == np.float64
    (frames,) = load_rlds(exact, layout="transition", reward_dtype=tf.float64, fields={"energy": Cast("float32")})
    assert frames["reward"].tolist() == [0.1, 0.2]
    assert frames["discount"].dtype == np.float64
    assert frames["energy"].dtype == np.float32


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([0, 300, 0]), "uint8"),
        (np.array([0, -1, 0]), "uint8"),
        (np.array([0, -1, 0], np.int8), "uint8"),
        (np.array([0, 2**63, 0], np.uint64), "int64"),
        (np.array([0.0, 1.5, 0.0]), "int64"),
        (np.array([0.0, np.nan, 0.0]), "int32"),
        (np.array([0, 2, 0]), "bool"),
        (np.array([0.0, 1e300, 0.0]), "float32"),
        (np.array([0, 70_000, 0]), "float16"),
    ],
)
@pytest.mark.parametrize("nested", [False, True], ids=["arrays", "steps"])
def test_a_value_that_no_cast_keeps_is_refused(values, dtype, nested):
    dataset = steps_dataset(level=values)
    if nested:
        dataset = dataset.map(lambda episode: {"steps": tf.data.Dataset.from_tensor_slices(episode["steps"])})
    episodes = load_rlds(dataset, layout="transition", fields={"level": Cast(dtype)})
    with pytest.raises(ValueError, match=f"step field 'level': a value does not survive in {dtype}"):
        list(episodes)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([0.1, np.inf, np.nan]), "float32"),
        (np.array([0, 255, 7], np.int32), "uint8"),
        (np.array([2.0, -3.0, 0.0], np.float32), "int8"),
        (np.array([2**24 + 1, 0, 0]), "float32"),
        (np.array([0, 1, 1]), "bool"),
        (np.array([True, False, True]), "float32"),
        (np.array([0, 255, 3], np.uint8), "float32"),
        (np.array([0, 5, 3], np.uint32), "uint64"),
    ],
)
def test_floats_are_rounded_and_what_fits_is_cast(values, dtype):
    (frames,) = load_rlds(steps_dataset(level=values), layout="step", fields={"level": Cast(dtype)})
    np.testing.assert_array_equal(frames["level"], values.astype(dtype))
    assert frames["level"].dtype == dtype


def test_an_action_that_means_nothing_may_be_anything_in_another_dtype_too():
    dataset = steps_dataset(action=np.array([1.0, 2.0, np.nan]))
    (frames,) = load_rlds(dataset, layout="transition", fields={"action": Cast("int32")})
    assert frames["action"].tolist() == [1, 2]


def test_the_spec_of_a_buffer_is_known_without_reading():
    dataset = of_nested_steps(*VARYING)
    spec = rlds_spec(dataset, "transition", fields={"observation": CropTo(2), "words": Drop()})
    assert spec["next_observation"] == tf.TensorSpec([2], tf.int64)
    assert sorted(spec) == ["discount", "is_terminal", "is_truncated", "next_observation", "observation"]


def test_what_the_loader_decides_by_other_means_takes_no_rule():
    with pytest.raises(ValueError, match="the dtype of rewards and discounts is reward_dtype="):
        load_rlds(steps_dataset(reward=np.arange(3)), layout="step", fields={"reward": Cast("float64")})
    with pytest.raises(ValueError, match="have no 'is_terminal'.* If fields= leaves it out, let it in"):
        load_rlds(steps_dataset(), layout="step", fields={"is_terminal": Drop()})


@pytest.mark.parametrize("layout", ["step", "transition"])
def test_strings_in_the_observation_of_a_terminal_episode_are_kept(layout):
    words = np.array([b"up", b"", b"down"])
    dataset = steps_dataset(observation={"words": words, "speed": np.zeros([3, 2])})
    (frames,) = load_rlds(dataset, layout=layout, fields={"observation/words": Keep()})
    assert frames["observation"]["words"][:2].tolist() == [b"up", b""]
