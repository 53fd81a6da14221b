"""Every finding of a check is found where it is, and only there."""

import json

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_check import validate_rlds
from replayfeed.pipelines.rlds_check_findings import CHECKS


def _episode(num_steps=5, *, terminal=False, start=0, **fields):
    """Steps with nothing to find: filler at the end, and a discount of 0 into the terminal step."""
    index = np.arange(num_steps)
    is_end = index == num_steps - 1
    value = (index + start).astype(np.float32)
    steps = {
        "observation": np.stack([value + 1, value**2 + 1], axis=-1),
        "action": np.where(is_end, 0, value + 10).astype(np.float32),
        "reward": np.where(is_end, 0, value + 0.5).astype(np.float32),
        "discount": np.where(is_end if num_steps < 2 else index >= num_steps - 2, 1 - terminal, 1).astype(np.float32),
        "is_first": index == 0,
        "is_last": is_end,
        "is_terminal": is_end & terminal,
    }
    return {name: column for name, column in {**steps, **fields}.items() if column is not None}


def _clean(num_episodes=6, **fields):
    """Terminal and truncated episodes in turn, no two the same."""
    return [_episode(5 + index, terminal=index % 2 == 0, start=10 * index, **fields) for index in range(num_episodes)]


def _spec(leaf):
    return tf.TensorSpec(leaf.shape[1:], tf.string if leaf.dtype == object else tf.as_dtype(leaf.dtype))


def _source(*episodes, invalid=(), metadata=None, ids=None, spec=None, **settings):
    raws = [
        RawEpisode(
            str(index),
            steps,
            index in invalid,
            {} if metadata is None else metadata[index],
            "" if ids is None else ids[index],
        )
        for index, steps in enumerate(episodes)
    ]
    step_spec = spec or tf.nest.map_structure(_spec, episodes[0])
    return EpisodeSource("mine", step_spec, lambda seed: iter(raws), num_episodes=len(raws), **settings)


def _check(*episodes, **settings):
    return validate_rlds(_source(*episodes, **settings), progress=False)


def _flags(num_steps, *at):
    flags = np.zeros([num_steps], bool)
    flags[list(at)] = True
    return flags


def _names(report):
    """Check, count and named episodes of all that was found."""
    return {each.check: (each.count, each.episodes) for each in report.findings if each.severity != "ok"}


def _with(column, at, value):
    changed = np.array(column)
    changed[at] = value
    return changed


def test_clean_episodes_have_no_finding():
    report = _check(*_clean())
    assert _names(report) == {}
    assert not report.needs_decision
    assert {each.check for each in report.findings} == set(CHECKS)
    assert report.ends == {"terminal": 3, "truncated": 3}
    assert (report.episodes, report.steps, report.transitions) == (6, 45, 39)
    assert (report.alignment.guess, report.alignment.confidence) == ("SAR", "high")


# Each finding


def _one_bad(bad, at=1):
    episodes = _clean()
    episodes[at] = bad
    return episodes


@pytest.mark.parametrize(
    ("check", "changes", "severity"),
    [
        ("terminal_early", {"is_terminal": _flags(5, 2)}, "decision"),
        ("last_early", {"is_last": _flags(5, 2, 4)}, "decision"),
        ("first_late", {"is_first": _flags(5, 0, 3)}, "decision"),
        ("first_unset", {"is_first": _flags(5)}, "note"),
        ("last_unset", {"is_last": _flags(5)}, "note"),
        ("reward_not_finite", {"reward": np.array([1, np.nan, 2, 3, 0], np.float32)}, "decision"),
        ("discount_not_finite", {"discount": np.array([1, np.inf, 1, 1, 1], np.float32)}, "decision"),
        ("not_finite", {"observation": np.array([[1, 1], [2, np.nan], [3, 3], [4, 4], [5, 5]], "f4")}, "decision"),
        ("not_finite", {"action": np.array([1, -np.inf, 2, 3, 0], np.float32)}, "decision"),
        ("discount_contradicts", {"discount": np.array([1, 0, 1, 1, 1], np.float32)}, "decision"),
        ("discount_contradicts", {"discount": np.array([1, 1, 1, 0, 1], np.float32)}, "decision"),
        ("discount_range", {"discount": np.array([1, 1.5, 1, 1, 1], np.float32)}, "decision"),
        ("discount_range", {"discount": np.array([1, -0.5, 1, 1, 1], np.float32)}, "decision"),
        ("last_discount", {"discount": np.array([1, 1, 1, 1, 0], np.float32)}, "note"),
        ("last_reward", {"reward": np.array([1, 2, 3, 4, 5], np.float32)}, "note"),
        ("last_not_finite", {"reward": np.array([1, 2, 3, 4, np.nan], np.float32)}, "note"),
    ],
)
def test_an_episode_with_a_fault_is_found_and_named(check, changes, severity):
    report = _check(*_one_bad(_episode(5, start=70, **changes)))
    found = _names(report)
    assert found.pop(check) == (1, ("1",))
    # Infinity is out of [0, 1], and NaN as a reward of a last step is one.
    assert found.keys() <= {"discount_range", "last_reward"}
    assert report.found(check)[0].severity == severity
    assert report.needs_decision == (severity == "decision")
    assert ": 1 episode (1)" in str(report).replace("\n    ", " ")


def test_the_field_that_holds_nan_is_named():
    observation = {"position": np.ones([5, 2], np.float32), "speed": np.array([1, 2, np.nan, 4, 5], np.float64)}
    plain = [_episode(5, observation={**observation, "speed": np.arange(5.0) + index}) for index in range(4)]
    (found,) = _check(*plain, _episode(5, observation=observation)).found("not_finite")
    assert (found.field, found.episodes) == ("observation/speed", ("4",))


def test_nan_in_step_metadata_is_a_note():
    notes = [{"confidence": np.linspace(index, 1, 5 + index)} for index in range(6)]
    episodes = [{**steps, **note} for steps, note in zip(_clean(), notes, strict=True)]
    assert _names(_check(*episodes)) == {}
    episodes[3] = {**episodes[3], "confidence": np.full([8], np.nan)}
    report = _check(*episodes)
    assert _names(report) == {"not_finite_metadata": (1, ("3",))}
    assert not report.needs_decision


def test_invalid_episodes_are_found():
    report = _check(*_clean(), invalid={0, 4})
    assert _names(report) == {"invalid": (2, ("0", "4"))}
    assert report.loading["error"].error == "episode 0: the dataset flags it as invalid"


def test_only_the_first_five_episodes_are_named():
    report = _check(*_clean(8), invalid=range(7))
    assert _names(report) == {"invalid": (7, ("0", "1", "2", "3", "4"))}
    assert "7 episodes (0, 1, 2, 3, 4, ...)" in str(report)


def test_fields_of_different_lengths_are_found():
    assert "lengths_differ" in _names(_check(*_one_bad(_episode(5, reward=np.ones([4], np.float32)))))


def test_empty_and_one_step_episodes_are_found():
    report = _check(*_clean(), _episode(0), _episode(1, start=200), _episode(0))
    assert _names(report) == {"empty": (2, ("6", "8")), "one_step": (1, ("7",))}
    assert report.ends == {"terminal": 3, "truncated": 4, "empty": 2}
    assert (report.lengths.min, report.returns.count) == (0, 6)


def test_fr_084_is_last_that_is_set_nowhere_is_told_as_that():
    episodes = [{**steps, "is_last": np.zeros([len(steps["is_last"])], bool)} for steps in _clean()]
    report = _check(*episodes)
    assert report.found("last_never_set")[0].count == 6
    assert report.found("last_unset") == ()
    assert report.ends == {"terminal": 3, "cut": 3}


def test_t15_terminal_discounts_that_were_never_set_are_found():
    episodes = [{**steps, "discount": np.ones([len(steps["discount"])], np.float32)} for steps in _clean()]
    report = _check(*episodes)
    assert _names(report) == {
        "terminal_discount": (3, ("0", "2", "4")),
        "last_discount": (3, ("0", "2", "4")),
    }
    assert str(report.found("terminal_discount")[0].loading) == "sets it to 0"


def test_rewards_beyond_float32_are_found():
    large = [_episode(5, start=index, reward=np.array([1, 2, 3, 4 + index, 0.0])) for index in range(4)]
    assert _names(_check(*large)) == {"no_terminal": (1, ())}
    large[2]["reward"][1] = 1e39
    assert _names(_check(*large)) == {"beyond_float32": (1, ("2",)), "no_terminal": (1, ())}


def test_whole_rewards_that_float32_rounds_are_found():
    exact = [_episode(5, terminal=True, start=index, reward=np.array([1, 2, 3, 1 << 24, 0])) for index in range(4)]
    assert _names(_check(*exact)) == {}
    exact[3]["reward"][0] = -(1 << 24) - 1
    assert _names(_check(*exact)) == {"reward_inexact": (1, ("3",))}


def test_duplicate_episodes_name_the_one_that_they_repeat():
    episodes = _clean()
    report = _check(*episodes, episodes[2], episodes[4], episodes[2])
    assert _names(report) == {"duplicate_episode": (3, ("6 = 2", "7 = 4", "8 = 2"))}


def test_episodes_that_differ_in_one_bit_are_no_duplicates():
    episodes = _clean()
    almost = {**episodes[2], "observation": _with(episodes[2]["observation"], (1, 0), 21.000002)}
    assert _names(_check(*episodes, almost)) == {}


def test_repeated_ids_need_a_decision():
    assert _names(_check(*_clean(), ids=list("abcdef"))) == {}
    report = _check(*_clean(), ids=list("abcdea"))
    assert _names(report) == {"repeated_id": (1, ("5 = 0",))}
    assert report.needs_decision


def test_steps_that_repeat_the_one_before_are_counted():
    episodes = _clean()
    rows = [0, 1, 1, 1, 2, 3, 4]
    frozen = {name: column[rows] for name, column in _episode(5, start=70).items()}
    report = _check(*episodes, frozen)
    assert _names(report) == {"duplicate_steps": (1, ("6",))}
    assert "2 such steps" in report.found("duplicate_steps")[0].message


def test_a_final_observation_of_zeros_is_found():
    episodes = _clean()
    episodes[0]["observation"] = _with(episodes[0]["observation"], -1, 0)
    # That of a truncated episode is an observation like others.
    episodes[1]["observation"] = _with(episodes[1]["observation"], -1, 0)
    assert _names(_check(*episodes)) == {"zero_observation": (1, ("0",))}


def test_truncated_episodes_that_lack_a_step_are_found():
    episodes = _clean()
    for steps in episodes[1::2]:
        for name in ("action", "reward"):
            steps[name] = _with(steps[name], -1, 7.5)
    report = _check(*episodes)
    assert _names(report) == {"last_reward": (3, ("1", "3", "5")), "no_final_observation": (3, ("1", "3", "5"))}
    assert "truncated episodes end in a step whose action looks real" in report.found("no_final_observation")[0].message


def test_truncated_episodes_of_a_d4rl_builder_lack_a_step_whatever_they_hold():
    assert _names(_check(*_clean(), is_d4rl=True)) == {"no_final_observation": (3, ("1", "3", "5"))}


@pytest.mark.parametrize("value", [0, 255])
def test_images_of_one_colour_are_found(value):
    rng = np.random.default_rng(0)

    def with_image(steps):
        image = rng.integers(0, 255, [len(steps["is_last"]), 8, 8, 3]).astype(np.uint8)
        return {**steps, "observation": {"camera": image, "state": steps["observation"]}}

    episodes = [with_image(steps) for steps in _clean()]
    assert _names(_check(*episodes)) == {}
    episodes[3]["observation"]["camera"][:] = value
    report = _check(*episodes)
    assert _names(report) == {"blank_image": (1, ("3",))}
    assert report.found("blank_image")[0].field == "observation/camera"
    for steps in episodes:
        steps["observation"]["camera"][:] = value
    report = _check(*episodes)
    assert report.found("blank_image")[0].count == 6
    assert report.found("constant")[0].message == f"observation/camera never changes: always {value}"


def test_constant_fields_and_elements_are_found():
    episodes = _clean()
    for steps in episodes:
        steps["observation"] = _with(steps["observation"], (slice(None), 1), 4)
        steps["goal"] = np.full([len(steps["is_last"])], 3, np.int32)
    report = _check(*episodes)
    assert [str(each) for each in report.found("constant_elements")] == [
        "elements of observation that never change: 1: 1 element"
    ]
    assert [str(each) for each in report.found("constant")] == ["goal never changes: always 3"]


def test_rewards_that_are_all_zero_are_constant():
    report = _check(*[{**steps, "reward": np.zeros([len(steps["is_last"])], np.float32)} for steps in _clean()])
    assert [str(each) for each in report.found("constant")] == ["reward never changes: always 0.0"]


def test_a_dataset_without_a_terminal_step_is_noted():
    assert _names(_check(*_clean()[1::2])) == {"no_terminal": (1, ())}


def test_a_dataset_without_episodes_needs_a_decision():
    spec = tf.nest.map_structure(_spec, _episode())
    report = validate_rlds(EpisodeSource("mine", spec, lambda seed: iter([]), num_episodes=0), progress=False)
    assert set(_names(report)) == {"no_episode", "alignment_unknown"}
    assert (report.episodes, report.lengths, report.returns) == (0, None, None)
    assert report.needs_decision
    json.loads(report.to_json())
    assert "0 episodes" in str(report)


@pytest.mark.parametrize("field", ["action", "reward", "discount", "is_first", "is_last"])
def test_a_missing_field_is_noted(field):
    report = _check(*[{key: value for key, value in steps.items() if key != field} for steps in _clean()])
    assert [each.field for each in report.found("no_field")] == [field]
    assert not report.needs_decision


def test_fields_that_a_source_was_opened_without_are_named():
    report = _check(*_clean(), not_loaded=("words",))
    assert str(report.found("not_checked")[0]).endswith("of which nothing is known: words")
