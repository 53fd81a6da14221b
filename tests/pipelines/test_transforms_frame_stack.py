"""Stacks of frames that were stored once: what is in them, and above all what is not."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from replayfeed.buffers import BufferInfo
from replayfeed.pipelines.frame_stack import side_by_side
from replayfeed.pipelines.transforms import n_step, stack_frames


def info_of(mask):
    mask = np.atleast_2d(np.asarray(mask, bool))
    ids = np.where(mask, np.arange(mask.size).reshape(mask.shape), -1)
    batch = len(mask)
    return BufferInfo(
        tf.constant(ids, tf.int64), tf.ones([batch]), tf.zeros([batch], tf.int64), tf.ones([batch]), tf.constant(mask)
    )


def frames(*values):
    """One window of frames of 1 x 2 pixels, `[1, T, 1, 2]`: a value and a hundred more."""
    column = np.array(values, np.uint8)
    return tf.constant(np.stack([column, np.where(column, column + 100, 0)], axis=-1)[None, :, None, :])


def of_first_pixel(stacks):
    """The stacks `[T, k]` of the first pixel of the only window."""
    return stacks[0, :, 0, 0].numpy().tolist()


def test_frames_are_stacked_on_a_last_axis_oldest_first():
    items, info = stack_frames(3)({"observation": frames(1, 2, 3, 4)}, info_of([True] * 4))
    assert items["observation"].shape == (1, 2, 1, 2, 3)
    assert of_first_pixel(items["observation"]) == [[1, 2, 3], [2, 3, 4]]
    assert items["observation"][0, 0, 0, 1].numpy().tolist() == [101, 102, 103]
    assert info.ids.numpy().tolist() == [[2, 3]]


def test_a_last_axis_of_one_is_joined():
    pixels = tf.zeros([2, 5, 84, 84, 1], tf.uint8)
    items, _ = stack_frames(4, "pixels")({"pixels": pixels}, info_of(np.ones([2, 5])))
    assert items["pixels"].shape == (2, 2, 84, 84, 4)


def test_other_fields_ids_and_mask_lose_the_burn_in():
    items, info = stack_frames(2, ["observation"])(
        {"observation": frames(0, 2, 3), "reward": tf.constant([[0.0, 1.0, 2.0]])}, info_of([False, True, True])
    )
    assert items["reward"].numpy().tolist() == [[1, 2]]
    assert info.ids.numpy().tolist() == [[1, 2]]
    assert info.mask.numpy().tolist() == [[True, True]]


@pytest.mark.parametrize(
    ("pad", "expected"), [("zero", [[0, 0, 0, 5], [0, 0, 5, 6]]), ("repeat", [[5, 5, 5, 5], [5, 5, 5, 6]])]
)
def test_an_episodes_first_stacks_are_padded(pad, expected):
    mask = [False, False, False, True, True]
    items, _ = stack_frames(4, pad=pad)({"observation": frames(0, 0, 0, 5, 6)}, info_of(mask))
    assert of_first_pixel(items["observation"]) == expected


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("pad", ["zero", "repeat"])
@pytest.mark.parametrize(
    "flags",
    [
        {"is_first": [0, 0, 0, 1, 0, 0]},
        {"is_last": [0, 0, 1, 0, 0, 0]},
        {"step_type": [1, 1, 2, 0, 1, 1]},
        {"terminal": [0, 0, 1, 0, 0, 0]},
        {"truncated": [0, 0, 1, 0, 0, 0]},
        {"discount": [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]},
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_a_window_over_two_episodes_never_shows_the_first_in_the_second(k, pad, flags):
    """Frames 1, 2, 3 of one episode and 11, 12, 13 of the next, boundaries='ignore'."""
    items = {"observation": frames(1, 2, 3, 11, 12, 13), **{name: tf.constant([flag]) for name, flag in flags.items()}}
    stacks = of_first_pixel(stack_frames(k, pad=pad)(items, info_of([True] * 6))[0]["observation"])
    held = [1, 2, 3, 11, 12, 13]
    for newest, stack in zip(range(k - 1, 6), stacks, strict=True):
        first = 3 if newest >= 3 else 0
        filler = held[first] if pad == "repeat" else 0
        assert stack == [held[i] if i >= first else filler for i in range(newest - k + 1, newest + 1)]


def test_only_the_named_parts_of_a_nested_observation_are_stacked():
    items = {"observation": {"image": frames(1, 2, 3), "speed": tf.constant([[1.0, 2.0, 3.0]])}}
    got, _ = stack_frames(2, "observation/image")(items, info_of([True] * 3))
    assert of_first_pixel(got["observation"]["image"]) == [[1, 2], [2, 3]]
    assert got["observation"]["speed"].numpy().tolist() == [[2, 3]]


def test_a_next_observation_gets_the_stacks_that_follow():
    """At an episode's first step the next stack holds its first frame too."""
    items = {
        "observation": frames(0, 0, 1, 2),
        "next_observation": frames(0, 0, 2, 3),
        "terminal": tf.zeros([1, 4], tf.bool),
    }
    got, _ = stack_frames(3)(items, info_of([False, False, True, True]))
    assert of_first_pixel(got["observation"]) == [[0, 0, 1], [0, 1, 2]]
    assert of_first_pixel(got["next_observation"]) == [[0, 1, 2], [1, 2, 3]]


def test_it_composes_with_n_step():
    items = {
        "observation": frames(0, 1, 2, 3, 4),
        "action": tf.zeros([1, 5], tf.int32),
        "reward": tf.constant([[0.0, 1, 10, 100, 1000]]),
    }
    info = info_of([False, True, True, True, True])
    transition, info = n_step(3, 0.5)(*stack_frames(2)(items, info))
    assert transition.observation[0, 0, 0].numpy().tolist() == [0, 1]
    assert transition.next_observation[0, 0, 0].numpy().tolist() == [3, 4]
    assert float(transition.reward[0]) == 1 + 5 + 25


def test_floats_and_signed_numbers_are_stacked_too():
    for dtype in (tf.float32, tf.int32, tf.bool):
        column = tf.cast([[[0, 1], [1, 0], [1, 1]]], dtype)
        got, _ = stack_frames(2, "x")({"x": column}, info_of([True] * 3))
        expected = np.stack([column[:, :-1], column[:, 1:]], axis=-1)
        np.testing.assert_array_equal(got["x"], expected)


@given(size=st.sampled_from([1, 2, 3, 4, 5, 8]), num=st.integers(8, 11), seed=st.integers(0, 99))
def test_bytes_are_laid_side_by_side_like_numpy_does(size, num, seed):
    planes = np.random.default_rng(seed).integers(0, 256, (num, 3, 5), np.uint8)
    stacks = side_by_side([tf.constant(plane) for plane in planes], size)
    assert len(stacks) == num - size + 1
    for start, stack in enumerate(stacks):
        np.testing.assert_array_equal(stack, np.stack(planes[start : start + size], axis=-1))


def test_without_a_batch_axis():
    items, info = {"observation": frames(1, 2, 3)}, info_of([True] * 3)
    items, info = tf.nest.map_structure(lambda leaf: leaf[0], (items, info))
    items, info = stack_frames(2)(items, info)
    assert items["observation"].shape == (2, 1, 2, 2)
    assert info.ids.numpy().tolist() == [1, 2]


def test_in_a_dataset_shapes_stay_static():
    items, info = tf.nest.map_structure(
        lambda leaf: tf.repeat(leaf, 4, axis=0), ({"observation": frames(1, 2, 3)}, info_of([True] * 3))
    )
    dataset = tf.data.Dataset.from_tensor_slices((items, info)).batch(2, drop_remainder=True)
    for pad in ("zero", "repeat"):
        spec = dataset.map(stack_frames(2, pad=pad)).element_spec
        assert spec[0]["observation"].shape == (2, 2, 1, 2, 2)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="stack must be at least 1"):
        stack_frames(0)
    with pytest.raises(TypeError, match="stack must be an int"):
        stack_frames(2.0)
    with pytest.raises(ValueError, match="pad must be 'zero' or 'repeat'"):
        stack_frames(2, pad="edge")
    with pytest.raises(ValueError, match="at least one field"):
        stack_frames(2, [])
    with pytest.raises(ValueError, match="leave 'next_observation' out"):
        stack_frames(2, ["observation", "next_observation"])


def test_a_missing_field_and_a_short_window_are_told():
    with pytest.raises(ValueError, match=r"no field 'pixels'.*'observation'"):
        stack_frames(2, "pixels")({"observation": frames(1, 2)}, info_of([True] * 2))
    with pytest.raises(ValueError, match=r"at least 4 frames, got 2.*burn_in=3"):
        stack_frames(4)({"observation": frames(1, 2)}, info_of([True] * 2))
