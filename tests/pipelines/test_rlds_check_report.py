"""What a check tells fits a terminal, is strict JSON, and can be drawn."""

import json

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_check import validate_rlds
from replayfeed.pipelines.rlds_check_findings import CHECKS


def _episode(start, **fields):
    """Five steps, truncated after the last."""
    value = np.arange(5, dtype=np.float32) + start
    is_end = np.arange(5) == 4
    steps = {
        "observation": np.stack([value + 1, value**2 + 1], axis=-1),
        "action": np.where(is_end, 0, value + 10),
        "reward": np.where(is_end, 0, value + 0.5),
        "is_first": is_end[::-1],
        "is_last": is_end,
        "is_terminal": np.zeros([5], bool),
    }
    return {**steps, **fields}


def _check(*episodes, invalid=(), progress=False):
    raws = [RawEpisode(str(index), steps, index in invalid) for index, steps in enumerate(episodes)]
    spec = {
        name: tf.TensorSpec(column.shape[1:], tf.string if column.dtype == object else column.dtype)
        for name, column in episodes[0].items()
    }
    return validate_rlds(EpisodeSource("mine", spec, lambda seed: iter(raws)), progress=progress)


def _eventful():
    words = np.array([b"pick up the cup"] * 5, object)
    episodes = [
        _episode(index, words=words, **{"a/very long name of a field that no column holds": words})
        for index in range(3)
    ]
    episodes[1]["observation"][0] = np.nan
    episodes[2]["is_terminal"][1] = True
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
    episodes = [_episode(index, action=rng.normal(size=[5, 30])) for index in range(3)]
    path = tmp_path / "picture.svg"
    _check(*episodes).save_picture(path)
    assert path.stat().st_size > 10_000


def test_a_progress_bar_goes_to_stderr_only(capsys):
    _check(_episode(0), _episode(1), progress=True)
    assert capsys.readouterr().out == ""
