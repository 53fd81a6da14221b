"""TF-Agents' conversion of RLDS: its own tests against ours, and ours against its frames."""

from __future__ import annotations

import importlib
import types
import unittest
import warnings

import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from replayfeed.pipelines import rlds_compat

NAMES = (
    "get_rlds_step_features",
    "create_trajectory_data_spec",
    "convert_rlds_to_trajectories",
    "push_rlds_to_reverb",
)


def test_tf_agents_own_tests_pass():
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["pytest"])
    with warnings.catch_warnings():
        # reverb and its dependencies compare TensorFlow's version by distutils, at import.
        warnings.simplefilter("ignore", DeprecationWarning)
        module = importlib.import_module("tf_agents.replay_buffers.rlds_to_reverb_test")
    original = module.rlds_to_reverb
    # A proxy module with ours under TF-Agents' names, so that a test that reaches past it fails.
    module.rlds_to_reverb = types.SimpleNamespace(**{name: getattr(rlds_compat, name) for name in NAMES})
    try:
        result = unittest.TestResult()
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        suite.run(result)
    finally:
        module.rlds_to_reverb = original
    assert {test.id(): text for test, text in (*result.failures, *result.errors)} == {}
    assert (result.testsRun, len(result.skipped)) == (41, 2)


def steps_of(length: int, *, is_terminal: bool, start: float = 0.0, is_last: bool = True) -> dict[str, np.ndarray]:
    """An episode of `length` steps that stores a discount of 0.9 throughout."""
    places = np.arange(length)
    return {
        "observation": (start + places).astype(np.float32),
        "action": places.astype(np.int64) + 10,
        "reward": np.float32(0.5) + places.astype(np.float32),
        "discount": np.full([length], 0.9, np.float32),
        "is_first": places == 0,
        "is_last": (places == length - 1) & is_last,
        "is_terminal": (places == length - 1) & is_terminal,
    }


def dataset_of(episodes: list[dict[str, np.ndarray]]) -> tf.data.Dataset:
    """A dataset of episodes whose steps are datasets."""
    episode_spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), episodes[0])
    stacked = tf.data.Dataset.from_generator(lambda: iter(episodes), output_signature=episode_spec)
    return stacked.map(lambda steps: {"steps": tf.data.Dataset.from_tensor_slices(steps)})


def stack(frames) -> list[np.ndarray]:
    return [np.stack(leaves) for leaves in zip(*(tf.nest.flatten(frame) for frame in frames), strict=True)]


def converted(episodes, policy_info_fn=None) -> list[np.ndarray]:
    frames = rlds_compat.convert_rlds_to_trajectories(dataset_of(episodes), policy_info_fn)
    return stack(frames.as_numpy_iterator())


@pytest.fixture(scope="module")
def theirs():
    return importlib.import_module("tf_agents.replay_buffers.rlds_to_reverb")


class Recorder:
    """An observer that keeps what it is given."""

    def __init__(self, data: tf.data.Dataset) -> None:
        self._data = data
        self.frames: list = []

    def get_table_signature(self):
        from tf_agents.specs import tensor_spec

        return tensor_spec.add_outer_dim(rlds_compat.create_trajectory_data_spec(self._data))

    def __call__(self, frame) -> None:
        self.frames.append(frame)


@pytest.fixture(scope="module")
def many_episodes() -> list[dict[str, np.ndarray]]:
    """Lengths around that of a block (1,024), and the shortest; some terminal."""
    lengths = [1, 3, 1, 1, 2, 1023, 1, 1024, 1025, 5, 2, 1]
    random = np.random.default_rng(0)
    episodes = []
    for index, length in enumerate(lengths):
        steps = steps_of(length, is_terminal=index % 3 == 0, start=10_000.0 * index)
        steps["reward"] = random.normal(size=length).astype(np.float32)
        steps["discount"] = random.random(length).astype(np.float32)
        episodes.append(steps)
    return episodes


def test_frames_are_those_of_tf_agents(theirs, many_episodes):
    data = dataset_of(many_episodes)
    ours = rlds_compat.convert_rlds_to_trajectories(data)
    expected = theirs.convert_rlds_to_trajectories(data)
    assert ours.element_spec == expected.element_spec
    assert rlds_compat.create_trajectory_data_spec(data) == theirs.create_trajectory_data_spec(data)
    for mine, their in zip(stack(ours.as_numpy_iterator()), stack(expected.as_numpy_iterator()), strict=True):
        assert mine.dtype == their.dtype
        np.testing.assert_array_equal(mine, their)


def test_frames_of_stacked_steps_are_those_of_the_dataset(many_episodes):
    frames = [tf.nest.flatten(rlds_compat.tf_agents_trajectory(steps)) for steps in many_episodes]
    for mine, expected in zip(map(np.concatenate, zip(*frames, strict=True)), converted(many_episodes), strict=True):
        assert mine.dtype == expected.dtype
        np.testing.assert_array_equal(mine, expected)


def test_an_observer_is_given_the_frames_of_tf_agents_one_by_one(theirs, many_episodes):
    data = dataset_of(many_episodes[:5])
    ours, expected = Recorder(data), Recorder(data)
    assert rlds_compat.push_rlds_to_reverb(data, ours) == theirs.push_rlds_to_reverb(data, expected) == 8
    for mine, their in zip(stack(ours.frames), stack(expected.frames), strict=True):
        np.testing.assert_array_equal(mine, their)
    assert type(ours.frames[0]) is type(expected.frames[0])
    assert [bool(frame.is_boundary()) for frame in ours.frames] == [True, False, False, True, True, True, False, True]


def test_policy_info_sees_each_step_with_the_one_behind_it(theirs, many_episodes):
    def both(step, following):
        return {"here": step["observation"], "behind": following["observation"]}

    episodes = many_episodes[:5]
    data = dataset_of(episodes)
    ours = list(rlds_compat.convert_rlds_to_trajectories(data, both).as_numpy_iterator())
    expected = list(theirs.convert_rlds_to_trajectories(data, both).as_numpy_iterator())
    for mine, their in zip(stack(ours), stack(expected), strict=True):
        np.testing.assert_array_equal(mine, their)
    # Behind an episode's last step stands the next episode's first one, behind the very last a step of zeros.
    assert [float(frame.policy_info["behind"]) for frame in ours[:2]] == [10_000.0, 10_001.0]
    assert float(ours[-1].policy_info["behind"]) == 0.0


def test_t15_the_zero_discount_stands_on_the_boundary_frame():
    frames = rlds_compat.tf_agents_trajectory(steps_of(3, is_terminal=True))
    assert frames.step_type.tolist() == [0, 1, 2]
    assert frames.next_step_type.tolist() == [1, 2, 0]
    np.testing.assert_array_equal(frames.discount, np.array([0.9, 0.9, 0.0], np.float32))
    truncated = rlds_compat.tf_agents_trajectory(steps_of(3, is_terminal=False))
    np.testing.assert_array_equal(truncated.discount, np.array([0.9, 0.9, 0.9], np.float32))


def test_t16_nested_fields_are_taken_apart_step_by_step():
    steps = steps_of(3, is_terminal=True)
    steps["observation"] = {"camera": np.arange(12, dtype=np.uint8).reshape(3, 2, 2), "pose": steps["observation"]}
    data = dataset_of([steps])
    frames = list(rlds_compat.convert_rlds_to_trajectories(data).as_numpy_iterator())
    assert [frame.observation["camera"].tolist() for frame in frames] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]
    assert rlds_compat.create_trajectory_data_spec(data).observation["camera"] == tf.TensorSpec([2, 2], tf.uint8)


@pytest.mark.parametrize("is_last", [True, False])
def test_t17_one_step_goes_from_last_to_last_with_or_without_is_last(is_last):
    steps = steps_of(1, is_terminal=False, is_last=is_last)
    step_type, _, _, next_step_type, *_ = converted([steps])
    assert (step_type.tolist(), next_step_type.tolist()) == ([2], [2])
    frames = rlds_compat.tf_agents_trajectory(steps)
    assert (frames.step_type.tolist(), frames.next_step_type.tolist()) == ([2], [2])


def test_t18_reward_and_action_of_the_last_step_stand_on_the_boundary_frame():
    frames = rlds_compat.tf_agents_trajectory(steps_of(3, is_terminal=True))
    assert frames.reward.tolist() == [0.5, 1.5, 2.5]
    assert frames.action.tolist() == [10, 11, 12]


def test_longer_episodes_without_is_last_are_refused_as_datasets_and_ended_as_stacked_steps():
    steps = steps_of(2, is_terminal=False, is_last=False)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"Mid step should not be followed by a first step.*Step.*3"
    ):
        converted([steps_of(2, is_terminal=True), steps])
    assert rlds_compat.tf_agents_trajectory(steps).step_type.tolist() == [0, 2]


def test_a_faulty_frame_is_not_handed_on():
    data = dataset_of([steps_of(3, is_terminal=False), steps_of(3, is_terminal=False, is_last=False)])
    observer = Recorder(data)
    with pytest.raises(tf.errors.InvalidArgumentError):
        rlds_compat.push_rlds_to_reverb(data, observer)
    # As with TF-Agents those before it are: an episode's end is found out at the end.
    assert [float(frame.observation) for frame in observer.frames] == [0.0, 1.0, 2.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("flag", "place", "message"),
    [
        ("is_terminal", 1, "step 1 of 3: Terminal step must be the last step of an episode."),
        ("is_first", 2, "step 1 of 3: Mid step should not be followed by a first step."),
        ("is_last", 0, "step 0 of 3: Last step of an episode must be followed by a first step."),
    ],
)
def test_stacked_steps_with_misplaced_flags_are_refused(flag, place, message):
    steps = steps_of(3, is_terminal=False)
    steps[flag][place] = True
    with pytest.raises(ValueError, match=message):
        rlds_compat.tf_agents_trajectory(steps)


def test_stacked_steps_need_all_fields():
    steps = steps_of(3, is_terminal=False)
    del steps["discount"]
    with pytest.raises(
        ValueError, match=r"Features expected are \['observation', .*\], but found \['observation', 'action'"
    ):
        rlds_compat.tf_agents_trajectory(steps)


def test_no_steps_give_no_frames():
    frames = rlds_compat.tf_agents_trajectory(steps_of(0, is_terminal=False))
    assert [len(leaf) for leaf in tf.nest.flatten(frames)] == [0] * 6
    assert converted([steps_of(0, is_terminal=False), steps_of(2, is_terminal=False)])[0].tolist() == [0, 2]


def test_discounts_and_flags_of_other_types_are_cast():
    steps = steps_of(3, is_terminal=True)
    steps["discount"] = np.ones([3, 1], np.float64)
    steps["is_last"] = steps["is_last"].astype(np.int64)
    steps["reward"] = steps["reward"].astype(np.float64)
    frames = rlds_compat.tf_agents_trajectory(steps)
    assert (frames.discount.dtype, frames.discount.tolist(), frames.reward.dtype) == (np.float32, [1, 1, 0], np.float64)
    for mine, expected in zip(converted([steps]), tf.nest.flatten(frames), strict=True):
        assert mine.dtype == expected.dtype
        np.testing.assert_array_equal(mine, expected)


def test_metadata_of_any_width_is_let_be():
    steps = tf.data.Dataset.from_tensor_slices(steps_of(3, is_terminal=True)).map(
        lambda step: {**step, "tags": tf.repeat("tag", tf.cast(step["action"], tf.int32))}
    )
    data = tf.data.Dataset.from_tensors(0).map(lambda _: {"steps": steps})
    assert len(list(rlds_compat.convert_rlds_to_trajectories(data))) == 3


def test_steps_that_are_no_dataset_are_refused():
    data = tf.data.Dataset.from_tensors({"steps": steps_of(3, is_terminal=True)})
    with pytest.raises(ValueError, match="'steps' must be a dataset of steps, got dict"):
        rlds_compat.convert_rlds_to_trajectories(data)
    data = tf.data.Dataset.from_tensors({"steps": tf.data.Dataset.range(3)})
    with pytest.raises(ValueError, match="'steps' must be a dataset of dicts"):
        rlds_compat.create_trajectory_data_spec(data)


def test_recorded_datasets_give_the_frames_of_tf_agents(theirs, shared_data):
    import tensorflow_datasets as tfds

    data = tfds.builder_from_directory(str(shared_data / "cartpole")).as_dataset(split="train[:4]")
    ours = stack(rlds_compat.convert_rlds_to_trajectories(data).as_numpy_iterator())
    expected = stack(theirs.convert_rlds_to_trajectories(data).as_numpy_iterator())
    for mine, their in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(mine, their)
