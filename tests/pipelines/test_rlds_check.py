"""A check reads a whole dataset once, whatever a load makes of it, and forecasts what that is."""

import collections
import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_check import validate_rlds
from replayfeed.pipelines.rlds_check_statistics import Histogram
from replayfeed.pipelines.rlds_read import load_rlds


def _episode(num_steps=5, *, terminal=False, start=0, **fields):
    """Steps with filler at the end, but what `fields` has."""
    is_end = np.arange(num_steps) == num_steps - 1
    value = (np.arange(num_steps) + start).astype(np.float32)
    steps = {
        "observation": np.stack([value + 1, value**2 + 1], axis=-1),
        "action": np.where(is_end, 0, value + 10),
        "reward": np.where(is_end, 0, value + 0.5),
        "is_first": np.arange(num_steps) == 0,
        "is_last": is_end,
        "is_terminal": is_end & terminal,
    }
    return {**steps, **fields}


def _clean(num_episodes=6):
    """Terminal and truncated episodes in turn, no two the same."""
    return [_episode(5 + index, terminal=index % 2 == 0, start=10 * index) for index in range(num_episodes)]


def _spec(leaf):
    return tf.TensorSpec(leaf.shape[1:], tf.string if leaf.dtype == object else tf.as_dtype(leaf.dtype))


def _source(*episodes, invalid=(), metadata=None, spec=None):
    raws = [
        RawEpisode(str(index), steps, index in invalid, {} if metadata is None else metadata[index])
        for index, steps in enumerate(episodes)
    ]
    step_spec = spec or tf.nest.map_structure(_spec, episodes[0])
    return EpisodeSource("mine", step_spec, lambda seed: iter(raws), num_episodes=len(raws))


def _check(*episodes, **settings):
    return validate_rlds(_source(*episodes, **settings), progress=False)


def _counts(report):
    """How many have it, by check, of all that was found."""
    counts = collections.Counter()
    for each in report.findings:
        if each.severity != "ok":
            counts[each.check] += each.count
    return counts


# Recorded datasets


def test_a_folder_that_rlds_own_writer_made_is_told_as_it_is(cartpole_folder):
    report = validate_rlds(cartpole_folder, progress=False)
    # The writer of the fixture stores discount 1 everywhere, as many do.
    assert _counts(report) == {
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
    assert _counts(report) == findings
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


# What is summed up


def test_lengths_and_returns_are_summed_up():
    episodes = [_episode(length, start=0) for length in (3, 3, 5)]
    report = _check(*episodes)
    # Rewards 0.5, 1.5, 2.5, 3.5; that of the last step is none.
    assert (report.lengths.min, report.lengths.median, report.lengths.max) == (3, 3, 5)
    assert (report.returns.min, report.returns.median, report.returns.max) == (2.0, 2.0, 8.0)
    assert report.lengths.histogram == Histogram(2.5, 1.0, (2, 0, 1))
    (action,) = (field for field in report.fields if field.path == "action")
    assert (action.count, action.min, action.max) == (8, 10.0, 13.0)


def test_strings_are_counted():
    words = [np.array([b"go", b"", b"go", b"stop", b"go"], object), np.array([b"left" * 100] * 6, object)]
    episodes = [{**steps, "words": word} for steps, word in zip(_clean(2), words, strict=True)]
    report = _check(*episodes)
    (summary,) = (field for field in report.fields if field.path == "words")
    assert (summary.kind, summary.count, summary.longest, summary.distinct, summary.empty) == ("string", 11, 400, 4, 1)
    assert report.found("varying_field")[0].field == "words"


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


def test_what_comes_behind_the_episode_that_stops_a_load_is_not_counted():
    episodes = _clean(5)
    episodes[2]["reward"][0] = np.nan
    episodes[3]["is_first"][0] = False
    loading = _check(*episodes).loading
    # Of 5, 6, 7, 8 and 9 steps; an episode without is_first counts as repaired.
    assert (loading["error"].episodes, loading["error"].transitions, loading["error"].repaired) == (2, 9, 0)
    assert (loading["skip"].episodes, loading["skip"].dropped, loading["skip"].repaired) == (4, 1, 1)
