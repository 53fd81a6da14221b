"""Cameras that hang or fail for a moment, observations that never move, datasets of which nothing loads."""

import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_check import validate_rlds
from replayfeed.pipelines.rlds_check_frames import channels_of, is_still, one_colour
from replayfeed.pipelines.rlds_check_picture import bars_of
from replayfeed.pipelines.rlds_check_statistics import Histogram


def _episode(num_steps=6, *, start=0, **fields):
    """A terminal episode with nothing to find, but what `fields` has."""
    index = np.arange(num_steps)
    is_end = index == num_steps - 1
    steps = {
        "observation": (index + start + 1).astype(np.float32),
        "action": np.where(is_end, 0, index + 10.0).astype(np.float32),
        "reward": np.where(is_end, 0, index + 0.5).astype(np.float32),
        "is_terminal": is_end,
    }
    return {**steps, **fields}


def _check(*episodes):
    raws = [RawEpisode(str(index), steps) for index, steps in enumerate(episodes)]
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], tf.as_dtype(leaf.dtype)), episodes[0])
    return validate_rlds(EpisodeSource("mine", spec, lambda seed: iter(raws)), progress=False)


def _found(report, *checks):
    """Check, field, count and episodes of the findings of these checks."""
    return [(each.check, each.field, each.count, each.episodes) for check in checks for each in report.found(check)]


def _images(num_steps=6, *, seed=0, shape=(8, 8, 3)):
    return np.random.default_rng(seed).integers(0, 256, [num_steps, *shape]).astype(np.uint8)


def _with_cameras(*cameras):
    """An episode for each, whose state moves."""
    return [
        _episode(len(camera), start=10 * index, observation={"camera": camera, "state": np.arange(len(camera)) + index})
        for index, camera in enumerate(cameras)
    ]


# Cameras


def test_a_camera_that_hangs_is_found_beside_a_state_that_moves():
    hangs = np.repeat(_images(1), 6, axis=0)
    report = _check(*_with_cameras(_images(seed=1), hangs, _images(seed=2)))
    assert _found(report, "frozen", "blank_frames", "blank_image") == [("frozen", "observation/camera", 1, ("1",))]
    assert str(report.found("frozen")[0]) == (
        "observation/camera never changes through whole episodes of 5 steps or more: 1 episode (1)"
    )
    assert not report.needs_decision


def test_a_camera_that_moves_in_one_pixel_of_one_frame_does_not_hang():
    images = np.repeat(_images(1), 6, axis=0)
    images[3, 7, 7, 2] += 1
    assert _found(_check(*_with_cameras(_images(seed=1), images)), "frozen") == []


def test_frames_of_one_colour_amid_others_are_counted():
    images = _images(8, seed=3)
    images[2] = images[5] = images[6] = 0
    report = _check(*_with_cameras(_images(seed=1), images, _images(seed=2)))
    assert _found(report, "blank_frames", "blank_image") == [("blank_frames", "observation/camera", 1, ("1",))]
    assert "3 such frames" in report.found("blank_frames")[0].message
    assert not report.needs_decision
    images[5] = images[6] = 1
    images[5, 4, 4, 1] = images[6, 4, 4, 1] = 0
    assert "1 such frame:" in str(_check(*_with_cameras(_images(seed=1), images)).found("blank_frames")[0])


def test_a_blue_frame_is_of_one_colour():
    images = _images(8, seed=3)
    images[4] = (0, 0, 255)
    assert _found(_check(*_with_cameras(images)), "blank_frames") == [("blank_frames", "observation/camera", 1, ("0",))]


def test_black_frames_at_either_end_are_no_finding():
    # As games begin, and as D4RL-style files end.
    images = _images(8, seed=3)
    images[:2] = images[-1] = 0
    assert _found(_check(*_with_cameras(images)), "blank_frames", "blank_image", "frozen") == []


@pytest.mark.parametrize("shape", [(8, 8), (8, 9, 1), (3, 8, 9), (8, 8, 12)])
def test_images_of_each_layout_are_looked_at(shape):
    black, blank = _images(6, seed=3, shape=shape), np.full([6, *shape], 7, np.uint8)
    black[3] = 0
    found = _found(_check(*_with_cameras(_images(seed=1, shape=shape), black, blank)), "blank_frames", "blank_image")
    assert found == [
        ("blank_frames", "observation/camera", 1, ("1",)),
        ("blank_image", "observation/camera", 1, ("2",)),
    ]


def test_an_image_of_one_colour_throughout_is_not_told_of_as_frozen_too():
    report = _check(*_with_cameras(_images(seed=1), np.zeros([6, 8, 8, 3], np.uint8)))
    assert _found(report, "frozen", "blank_image") == [("blank_image", "observation/camera", 1, ("1",))]


# Observations


def test_an_observation_that_never_moves_within_an_episode_is_found():
    stays = [_episode(start=index, observation=np.full([6, 2], index, np.float32)) for index in range(3)]
    assert _found(_check(*stays), "frozen") == [("frozen", "observation", 3, ("0", "1", "2"))]


def test_an_observation_of_parts_is_frozen_where_all_parts_are():
    def parts(state, goal):
        return _episode(observation={"state": np.array(state, np.float32), "goal": np.full([6], goal)})

    report = _check(parts([1, 2, 3, 4, 5, 6], 1), parts([2] * 6, 2), parts([3, 3, 3, 3, 3, 4], 3))
    assert _found(report, "frozen") == [("frozen", "observation", 1, ("1",))]


def test_a_goal_that_stays_within_each_episode_is_no_finding():
    episodes = [
        _episode(observation={"state": np.arange(6.0) + index, "goal": np.full([6, 3], index)}) for index in range(4)
    ]
    assert _found(_check(*episodes), "frozen") == []


def test_a_few_steps_against_a_wall_are_no_finding():
    assert _found(_check(_episode(4, observation=np.full([4], 3.0)), _episode()), "frozen") == []


def test_an_observation_that_is_constant_in_the_whole_dataset_is_told_of_as_that():
    number = _check(*[_episode(observation=np.full([6], 7)) for _ in range(2)])
    assert (_found(number, "frozen"), len(number.found("constant"))) == ([], 1)
    vector = _check(*[_episode(observation=np.tile([7, 8], [6, 1])) for _ in range(2)])
    assert (_found(vector, "frozen"), len(vector.found("constant_elements"))) == ([], 1)
    parts = {"a": np.full([6], 7), "b": np.full([6], 8)}
    nested = _check(*[_episode(observation=parts) for _ in range(2)])
    assert (_found(nested, "frozen"), len(nested.found("constant"))) == ([], 2)


@pytest.mark.parametrize("name", ["cartpole", "d4rl_hopper", "envlogger_catch", "metadata", "nested_images"])
def test_recorded_datasets_neither_hang_nor_flicker(shared_data, name):
    report = validate_rlds(shared_data / name, progress=False)
    assert _found(report, "frozen", "blank_frames", "nothing_loads") == []


# Against plain code


@hypothesis.given(
    st.sampled_from([(8, 8), (8, 8, 3), (3, 8, 8), (9, 8, 1)]),
    st.lists(st.sampled_from(["plain", "pixel", "noise"]), max_size=5),
    st.integers(0, 7),
    st.integers(0, 2),
)
def test_images_of_one_colour_are_those_whose_pixels_are_the_same(shape, kinds, place, channel):
    rng = np.random.default_rng(len(kinds))
    channels = channels_of(tf.TensorSpec(shape, tf.uint8))
    images = np.zeros([len(kinds), *shape], np.uint8)
    expected = []
    for image, kind in zip(images, kinds, strict=True):
        # Views with the channels last, so that one rule serves all.
        pixels = image[..., np.newaxis] if channels == 0 else np.moveaxis(image, channels, -1)
        pixels[...] = rng.integers(0, 256, pixels.shape[-1])
        if kind == "noise":
            pixels[...] = rng.integers(0, 256, pixels.shape)
        elif kind == "pixel":
            pixels[place, 7 - place, channel % pixels.shape[-1]] += 1
        expected.append(bool((pixels == pixels[0, 0]).all()))
    assert one_colour(images, channels).tolist() == expected


@hypothesis.given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=6))
def test_a_column_is_still_where_all_rows_are_the_first(rows):
    assert is_still(np.array(rows)) == (len(set(rows)) == 1)


def test_a_column_without_values_is_not_still():
    assert not is_still(np.zeros([0, 3]))
    assert not is_still(np.zeros([5, 0]))
    assert one_colour(np.zeros([0, 8, 8], np.uint8), 0).tolist() == []


def test_long_columns_are_compared_to_their_end():
    column = np.zeros([5000, 500], np.uint8)
    assert is_still(column)
    column[4998, 499] = 1
    assert not is_still(column)
    column = np.zeros([3000, 20, 20], np.uint8)
    # Between the pixels that are looked at first.
    column[2999, 1, 2] = 1
    assert np.flatnonzero(~one_colour(column, 0)).tolist() == [2999]


# Nothing that can be loaded


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_dataset_without_a_transition_needs_a_decision(num_steps):
    report = _check(*[_episode(num_steps) for _ in range(3)])
    assert [str(each) for each in report.found("nothing_loads")] == ["no episode has a transition that can be loaded"]
    assert report.needs_decision
    assert str(report).endswith("1 finding needs a decision")


def test_one_transition_is_something_to_load():
    assert _check(_episode(0), _episode(2), _episode(1)).found("nothing_loads") == ()


def test_nothing_of_faulty_episodes_can_be_loaded():
    assert _check(_episode(reward=np.full([6], np.nan, np.float32))).found("nothing_loads")


# The picture of what most needs a look


@pytest.mark.parametrize(
    "episode",
    [
        _episode(0, action=np.zeros([0, 2], np.float32)),
        _episode(1, action=np.zeros([1, 2], np.float32)),
        _episode(action=np.full([6, 2], np.nan, np.float32), reward=np.full([6], np.nan, np.float32)),
        _episode(action=np.array([[1, np.nan]] * 6, np.float32)),
        _episode(action=np.full([6], 1e305)),
    ],
    ids=["empty", "one step", "all NaN", "an element NaN", "too large"],
)
def test_a_picture_is_drawn_whatever_is_not_finite(tmp_path, episode):
    report = _check(episode, episode)
    report.save_picture(tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").read_text().rstrip().endswith("</svg>")
    json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_names_are_drawn_as_they_are(tmp_path):
    _check(_episode(action={"$a^{_$": np.arange(6.0)})).save_picture(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_rewards_whose_sum_overflows_have_no_return():
    # Warnings are errors here.
    report = _check(_episode(reward=np.full([6], 1.7e308)), _episode(reward=np.array([1.0, 2, 3, 4, 5, 0])))
    assert (report.returns.count, report.returns.max) == (1, 15.0)
    assert report.found("beyond_float32")[0].episodes == ("0",)


def test_bars_end_with_the_data_and_none_is_half_empty():
    # 40 values in each tenth up to 2.05: the last bin, up to 2.1, is half empty.
    middles, widths, heights = bars_of(Histogram(0.0, 0.1, (40,) * 20 + (20,)), (0.0, 2.05))
    assert len(heights) == 21
    np.testing.assert_allclose(widths, 2.05 / 21)
    np.testing.assert_allclose([middles[0], middles[-1]], [2.05 / 42, 2.05 - 2.05 / 42])
    np.testing.assert_allclose(heights, 820 / 21)


def test_a_few_values_have_a_bar_each():
    # -1 in the first bin, 0 in the one from there on, 1 in the last, which would go on to 1.05.
    histogram = Histogram(-1.0, 0.05, (7, *[0] * 19, 5, *[0] * 19, 3))
    middles, widths, heights = bars_of(histogram, (-1.0, 1.0))
    np.testing.assert_allclose(middles, [-0.975, 0.025, 1.0])
    assert (widths.tolist(), heights.tolist()) == ([0.1, 0.1, 0.1], [7, 5, 3])


def test_bars_of_whole_numbers_have_them_in_their_midst():
    middles, widths, heights = bars_of(Histogram(-0.5, 1.0, (3, 0, 2)), None)
    assert (middles.tolist(), widths.tolist(), heights.tolist()) == ([0, 1, 2], [1, 1, 1], [3, 0, 2])


@hypothesis.given(
    st.lists(st.integers(0, 50), min_size=1, max_size=128).filter(lambda counts: counts[0] and counts[-1]),
    st.floats(0.01, 0.99),
    st.booleans(),
)
def test_bars_hold_all_that_was_counted(counts, share, is_whole):
    histogram = Histogram(-3.0, 0.5, tuple(counts))
    # The greatest value lies somewhere in the last bin.
    span = None if is_whole else (-3.0, -3.0 + 0.5 * (len(counts) - 1 + share))
    middles, widths, heights = bars_of(histogram, span)
    assert len(middles) == len(widths) == len(heights) <= 64
    assert (widths > 0).all()
    assert (np.diff(middles) > 0).all()
    assert np.isclose(heights.sum(), sum(counts))
    if span is not None:
        assert span[0] <= middles[0] <= middles[-1] <= span[1]
