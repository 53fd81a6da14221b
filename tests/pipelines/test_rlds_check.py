"""Every finding of a check is found where it is, and only there; what a load does is what the check said."""

import dataclasses
import json
import math

import hypothesis
import hypothesis.extra.numpy
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_check import RldsReport, validate_rlds
from replayfeed.pipelines.rlds_check_findings import CHECKS
from replayfeed.pipelines.rlds_check_statistics import ExpandingHistogram, FieldStatistics, Histogram
from replayfeed.pipelines.rlds_read import load_rlds


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


# Nothing to find


def test_clean_episodes_have_no_finding():
    report = _check(*_clean())
    assert _names(report) == {}
    assert not report.needs_decision
    assert {each.check for each in report.findings} == set(CHECKS)
    assert report.ends == {"terminal": 3, "truncated": 3}
    assert (report.episodes, report.steps, report.transitions) == (6, 45, 39)
    assert (report.alignment.guess, report.alignment.confidence) == ("SAR", "high")


def test_a_folder_that_rlds_own_writer_made_is_told_as_it_is(cartpole_folder):
    report = validate_rlds(cartpole_folder, progress=False)
    # The writer of the fixture stores discount 1 everywhere, as many do.
    assert {check: count for check, (count, _) in _names(report).items()} == {
        "terminal_discount": 3,
        "last_discount": 3,
        "constant": 1,
    }
    assert (report.source, report.episodes, report.ends) == ("cartpole", 5, {"terminal": 3, "truncated": 2})
    assert report.lengths.max == 26
    assert report.alignment.guess == "SAR"
    assert [field.values for field in report.fields if field.path == "observation"] == ["float32[4]"]


_SEEN = {
    # (episodes, steps, transitions), ends, alignment, shortest and longest, least and greatest return, findings.
    "array_record": ((10, 234, 224), {"terminal": 9, "truncated": 1}, "SAR", (13, 41), (12, 40), {"constant": 1}),
    "cartpole": ((20, 558, 538), {"terminal": 13, "truncated": 7}, "SAR", (12, 41), (11, 40), {"constant": 1}),
    "d4rl_hopper": (
        (10, 308, 298),
        {"terminal": 8, "truncated": 2},
        "SAR",
        (15, 51),
        (10.395, 63.276),
        {"last_reward": 2, "zero_observation": 8, "no_final_observation": 2},
    ),
    "edge_lengths": (
        (6, 12, 7),
        {"terminal": 1, "truncated": 3, "cut": 1, "empty": 1},
        "unknown",
        (0, 5),
        (1, 4),
        {
            "last_discount": 1,
            "last_reward": 3,
            "last_unset": 1,
            "empty": 1,
            "one_step": 2,
            "alignment_unknown": 1,
            "constant": 2,
            "duplicate_episode": 1,
        },
    ),
    "envlogger_catch": ((10, 100, 90), {"terminal": 10}, "SAR", (10, 10), (-1, 1), {}),
    "envlogger_dm_control": (
        (4, 124, 120),
        {"truncated": 4},
        "SAR",
        (31, 31),
        (0.0, 0.056),
        {"last_discount": 4, "no_terminal": 1},
    ),
    "metadata": (
        (8, 128, 120),
        {"truncated": 8},
        "SAR",
        (16, 16),
        (-130.606, -24.68),
        {"no_terminal": 1, "constant": 1, "varying_field": 2},
    ),
    "minari_cartpole": ((6, 108, 102), {"terminal": 4, "truncated": 2}, "SAR", (13, 21), (12, 20), {"constant": 1}),
    "nested_images": ((6, 62, 56), {"terminal": 6}, "SAR", (9, 12), (8, 11), {"constant": 1}),
    "spec_generated": ((4, 104, 100), {"truncated": 4}, "SAR", (26, 26), (-25, -25), {"no_terminal": 1, "constant": 1}),
}


@pytest.mark.parametrize("name", sorted(_SEEN))
def test_recorded_datasets_are_told_as_they_are(shared_data, name):
    report = validate_rlds(shared_data / name, progress=False)
    counts, ends, alignment, lengths, returns, findings = _SEEN[name]
    assert (report.episodes, report.steps, report.transitions) == counts
    assert report.ends == ends
    assert report.alignment.guess == alignment
    assert (report.lengths.min, report.lengths.max) == lengths
    assert (round(report.returns.min, 3), round(report.returns.max, 3)) == returns
    found = {check: sum(each.count for each in report.found(check)) for check in _names(report)}
    assert found == findings
    assert not report.needs_decision
    assert max(len(line) for line in str(report).splitlines()) <= 100


def test_fields_of_a_recorded_dataset_are_summed_up_with_its_metadata(shared_data):
    report = validate_rlds(shared_data / "metadata", progress=False)
    fields = {field.path: field for field in (*report.fields, *report.metadata)}
    assert (fields["tags"].kind, fields["tags"].rows) == ("ragged", (0.0, 1.5, 3.0))
    assert (fields["language_instruction"].count, fields["language_instruction"].distinct) == (128, 16)
    assert fields["infos/energy"].values == "float64"
    assert (fields["episode_id"].distinct, fields["seed"].max, fields["success"].mean) == (8, 7, 0.5)
    assert fields["policy/bias"].values == "float32[2]"


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


# Alignment


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
    episodes = [_episode(10, terminal=True, start=index, action=action, reward=None) for index in range(4)]
    assert _check(*episodes).alignment.guess == "unknown"


def test_a_last_action_that_repeats_the_one_before_is_filler():
    episodes = [{**steps, "action": _with(steps["action"], -1, steps["action"][-2])} for steps in _clean()]
    assert (_check(*episodes).alignment.guess, _check(*episodes).alignment.confidence) == ("SAR", "high")


# Datasets that the loader refuses


@pytest.mark.parametrize("field", ["is_terminal", "observation"])
def test_a_dataset_without_what_a_load_needs_is_checked_all_the_same(field):
    report = _check(*[{key: value for key, value in steps.items() if key != field} for steps in _clean()])
    (found,) = report.found("not_loadable")
    assert f"the steps have no '{field}'" in found.message
    assert report.episodes == 6
    assert all(f"no '{field}'" in forecast.error for forecast in report.loading.values())
    if field == "is_terminal":
        assert report.ends == {"unknown": 6}


def test_a_ragged_observation_is_checked_and_refused():
    rows = [[[1, 2], [3], []], [[4], [5, 6, 7]]]
    episodes = [
        _episode(len(row), terminal=True, start=index, observation=tf.ragged.constant(row, tf.int64, ragged_rank=1))
        for index, row in enumerate(rows)
    ]
    spec = {name: _spec(leaf) for name, leaf in episodes[0].items() if name != "observation"}
    spec["observation"] = tf.TensorSpec([None], tf.int64)
    report = _check(*episodes, spec=spec)
    assert "observation" in report.found("not_loadable")[0].message
    (summary,) = (field for field in report.fields if field.path == "observation")
    assert (summary.kind, summary.count, summary.min, summary.max, summary.mean) == ("ragged", 7, 1, 7, 4.0)
    assert summary.rows == (0.0, 1.4, 3.0)


def test_strings_are_counted():
    words = [np.array([b"go", b"", b"go", b"stop", b"go"], object), np.array([b"left" * 100] * 6, object)]
    episodes = [{**steps, "words": word} for steps, word in zip(_clean(2), words, strict=True)]
    report = _check(*episodes)
    (summary,) = (field for field in report.fields if field.path == "words")
    assert (summary.kind, summary.count, summary.longest, summary.distinct, summary.empty) == ("string", 11, 400, 4, 1)
    assert report.found("varying_field")[0].field == "words"


# What is refused


def test_limit_reads_the_first_episodes():
    report = validate_rlds(_source(*_clean()), limit=2, progress=False)
    assert (report.episodes, report.steps, report.is_complete) == (2, 11, False)
    assert "a part of them" in str(report)
    assert validate_rlds(_source(*_clean()), limit=6, progress=False).is_complete
    with pytest.raises(ValueError, match="limit must be 1 or more"):
        validate_rlds(_source(*_clean()), limit=0)


def test_an_endless_dataset_is_refused():
    steps = tf.nest.map_structure(lambda leaf: leaf[np.newaxis], _episode())
    dataset = tf.data.Dataset.from_tensor_slices({"steps": steps}).repeat()
    with pytest.raises(ValueError, match="infinitely many episodes: pass limit="):
        validate_rlds(dataset)
    assert validate_rlds(dataset, limit=3, progress=False).found("duplicate_episode")[0].count == 2


def test_endless_steps_are_refused():
    steps = _episode()
    dataset = tf.data.Dataset.from_tensors({"steps": steps}).map(
        lambda episode: {"steps": tf.data.Dataset.from_tensor_slices(episode["steps"]).repeat()}
    )
    with pytest.raises(ValueError, match="the first episode cannot be read.*infinitely many steps"):
        validate_rlds(dataset, progress=False)


def test_an_episode_that_cannot_be_read_is_named():
    def read(seed):
        yield RawEpisode("0", _episode())
        raise OSError("corrupted record")

    source = dataclasses.replace(_source(_episode()), read=read)
    with pytest.raises(ValueError, match="mine: the episode after 0 cannot be read: corrupted record"):
        validate_rlds(source, progress=False)


def test_what_holds_no_episodes_is_refused():
    with pytest.raises(TypeError, match="got int"):
        validate_rlds(7)


# What a load does is what the check said


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.data())
def test_the_forecast_is_what_a_load_brings(data):
    episodes, invalid = [], set()
    for index in range(data.draw(st.integers(1, 4))):
        num_steps = data.draw(st.integers(0, 4))
        flags = {
            name: np.array(data.draw(st.lists(st.booleans(), min_size=num_steps, max_size=num_steps)), bool)
            for name in ("is_first", "is_last", "is_terminal")
        }
        if data.draw(st.booleans()):
            flags = {}
        reward = np.arange(num_steps, dtype=np.float32)
        if data.draw(st.integers(0, 3)) == 0:
            reward[data.draw(st.integers(0, 3)) :] = np.nan
        episodes.append(_episode(num_steps, terminal=data.draw(st.booleans()), **{"reward": reward, **flags}))
        if data.draw(st.integers(0, 4)) == 0:
            invalid.add(index)
    source = _source(*episodes, invalid=invalid)
    report = validate_rlds(source, progress=False)
    for mode, forecast in report.loading.items():
        loaded = load_rlds(source, layout="transition", on_bad_episode=mode)
        if forecast.error is not None:
            with pytest.raises(ValueError, match=forecast.error.split(":")[0]):
                list(loaded)
            continue
        num_transitions = sum(len(frames["discount"]) for frames in loaded)
        brought = (loaded.report.episodes, num_transitions, loaded.report.num_dropped)
        assert brought == (forecast.episodes, forecast.transitions, forecast.dropped)
    faulty = any(each.loading.error == "stops" for each in report.findings if each.severity != "ok")
    assert faulty == (report.loading["error"].error is not None)


# Statistics


@hypothesis.given(
    hypothesis.extra.numpy.arrays(
        np.float32, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(width=32, allow_subnormal=False)
    ),
    st.integers(1, 5),
)
def test_statistics_are_those_of_all_values_together(values, chunk):
    statistics = FieldStatistics("x", tf.TensorSpec([3], tf.float32))
    for start in range(0, len(values), chunk):
        statistics.add(values[start : start + chunk])
    found = statistics.result()
    finite = values[np.isfinite(values)].astype(np.float64)
    assert found.count == values.size
    assert found.nan == np.isnan(values).sum()
    assert found.infinite == np.isinf(values).sum()
    if not finite.size:
        assert found.min is None
        return
    assert (found.min, found.max) == (finite.min(), finite.max())
    assert math.isclose(found.mean, finite.mean(), rel_tol=1e-9, abs_tol=1e-9 * np.abs(finite).max())
    assert math.isclose(found.std, finite.std(), rel_tol=1e-6, abs_tol=1e-6 * np.abs(finite).max())


def test_a_small_deviation_beside_a_large_mean_keeps_its_digits():
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.float64))
    # Many episodes, so that blocks are merged, with a mean of 1e9 and a deviation of 1.
    for _ in range(3000):
        statistics.add(1e9 + np.array([-1.0, 1.0] * 50))
    found = statistics.result()
    assert (found.mean, found.std, found.count) == (1e9, 1.0, 300_000)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int64", "float16"])
def test_ranges_are_exact_in_each_dtype(dtype):
    if dtype == "bool":
        values = np.array([True, False, True])
    elif dtype == "float16":
        values = np.array([-65504, 0, 65504], dtype)
    else:
        values = np.array([np.iinfo(dtype).min, 3, np.iinfo(dtype).max], dtype)
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.as_dtype(dtype)))
    statistics.add(values)
    found = statistics.result()
    assert (found.min, found.max) == (values.min().item(), values.max().item())


def test_bfloat16_and_complex_values_are_summed_up():
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.bfloat16))
    statistics.add(tf.constant([1.0, 3.0], tf.bfloat16).numpy())
    assert (statistics.result().min, statistics.result().mean) == (1.0, 2.0)
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.complex64))
    statistics.add(np.array([3 + 4j, 0], np.complex64))
    assert (statistics.result().min, statistics.result().max) == (0.0, 5.0)


def test_values_too_large_for_a_deviation_are_told_as_missing():
    statistics = FieldStatistics("x", tf.TensorSpec([], tf.float64), with_histogram=True)
    statistics.add(np.array([1e308, -1e308, 1.0]))
    found = statistics.result()
    assert (found.max, found.std) == (1e308, None)
    assert sum(found.histogram[0].counts) == 1


@hypothesis.given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), min_size=1, max_size=5))
def test_a_histogram_that_grows_loses_no_value(chunks):
    histogram = ExpandingHistogram(1, integer=False)
    for chunk in chunks:
        histogram.add(np.array([chunk]))
    (found,) = histogram.result()
    values = np.concatenate([np.array(chunk) for chunk in chunks])
    assert sum(found.counts) == values.size
    edges = found.edges()
    slack = 1e-9 * (1 + np.abs(values).max())
    assert edges[0] <= values.min() + slack
    assert edges[-1] >= values.max() - slack
    # Each bin holds what lies between its edges.
    for low, high, count in zip(edges[:-1], edges[1:], found.counts, strict=True):
        assert np.sum((values > low + slack) & (values < high - slack)) <= count
        assert count <= np.sum((values >= low - slack) & (values <= high + slack))


def test_whole_numbers_have_bins_of_their_own():
    histogram = ExpandingHistogram(2, integer=True)
    histogram.add(np.array([[0.0, 1.0, 1.0], [7.0, 7.0, 9.0]]))
    assert histogram.result() == (Histogram(-0.5, 1.0, (1, 2)), Histogram(6.5, 1.0, (2, 0, 1)))


def test_lengths_and_returns_are_summed_up():
    episodes = [_episode(length, start=0) for length in (3, 3, 5)]
    report = _check(*episodes)
    # Rewards 0.5, 1.5, 2.5, 3.5; that of the last step is none.
    assert (report.lengths.min, report.lengths.median, report.lengths.max) == (3, 3, 5)
    assert (report.returns.min, report.returns.median, report.returns.max) == (2.0, 2.0, 8.0)
    assert report.lengths.histogram == Histogram(2.5, 1.0, (2, 0, 1))
    (action,) = (field for field in report.fields if field.path == "action")
    assert (action.count, action.min, action.max) == (8, 10.0, 13.0)


def test_metadata_is_summed_up():
    metadata = [{"seed": np.int64(index), "who": b"ab" * index, "goal": {"x": np.ones([2])}} for index in range(6)]
    report = _check(*_clean(), metadata=metadata)
    found = {field.path: field for field in report.metadata}
    assert (found["seed"].min, found["seed"].max, found["seed"].count) == (0, 5, 6)
    assert (found["who"].longest, found["who"].distinct, found["who"].empty) == (10, 6, 1)
    assert found["goal/x"].count == 12


def test_metadata_of_varying_length_is_summed_up():
    metadata = [{"marks": np.arange(index)} for index in range(6)]
    (found,) = _check(*_clean(), metadata=metadata).metadata
    assert (found.count, found.max, found.values) == (15, 4, "int64[?]")


# The report


def _eventful() -> RldsReport:
    words = np.array([b"pick up the cup"] * 5, object)
    episodes = [
        _episode(5, start=index, words=words, **{"a/very long name of a field that no column holds": words})
        for index in range(3)
    ]
    episodes[1]["observation"] = _with(episodes[1]["observation"], 0, np.nan)
    episodes[2]["is_terminal"] = _flags(5, 1)
    return _check(*episodes, invalid={0})


def test_the_table_fits_into_100_columns():
    text = str(_eventful())
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "! observation holds NaN or infinity: 1 episode (1)" in text
    assert "  'skip'" in text
    assert text.endswith("3 findings need a decision")


def test_json_is_strict_and_complete():
    report = _eventful()
    content = json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert content == report.to_dict()
    assert content["needs_decision"] is True
    assert {each["check"] for each in content["findings"]} == set(CHECKS)
    (found,) = (each for each in content["findings"] if each["check"] == "terminal_early")
    assert found["loading"] == {"error": "stops", "skip": "drops it", "repair": "ends it there"}
    assert content["loading"]["repair"]["episodes"] == 2


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture_is_a_file_of_that_kind(tmp_path, ending):
    path = tmp_path / f"picture.{ending}"
    _eventful().save_picture(path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_a_picture_of_many_actions_says_how_many_it_shows(tmp_path):
    rng = np.random.default_rng(0)
    episodes = [_episode(5, start=index, action=rng.normal(size=[5, 30])) for index in range(3)]
    path = tmp_path / "picture.svg"
    _check(*episodes).save_picture(path)
    assert path.stat().st_size > 10_000


def test_a_progress_bar_goes_to_stderr_only(capsys):
    validate_rlds(_source(*_clean()), progress=True)
    assert capsys.readouterr().out == ""
