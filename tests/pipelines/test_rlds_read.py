import logging
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.rlds_read import load_rlds

_FLAGS = ("is_first", "is_last", "is_terminal")


def _episode(num_steps, *, terminal=False, start=0, **fields):
    """Stacked steps: observations start, start + 1, ..., actions 10 more, all flags right."""
    index = np.arange(num_steps)
    steps = {
        "observation": (index + start).astype(np.float32),
        "action": index + start + 10,
        "reward": (index + start) / 2,
        "is_first": index == 0,
        "is_last": index == num_steps - 1,
        "is_terminal": (index == num_steps - 1) & terminal,
    }
    return {**steps, **fields}


def _flags(num_steps, *at):
    flags = np.zeros([num_steps], bool)
    flags[list(at)] = True
    return flags


def _stacked(*episodes, **metadata):
    """A dataset of episodes whose steps are arrays."""
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), episodes[0])
    elements = [
        {"steps": steps, **{name: values[index] for name, values in metadata.items()}}
        for index, steps in enumerate(episodes)
    ]
    extra = {name: tf.TensorSpec([], tf.as_dtype(np.asarray(values).dtype)) for name, values in metadata.items()}
    return tf.data.Dataset.from_generator(lambda: iter(elements), output_signature={"steps": spec, **extra})


def _nested(*episodes):
    """A dataset of episodes whose steps are datasets, as TFDS gives them."""

    def to_dataset(episode):
        return {"steps": tf.data.Dataset.from_tensor_slices(episode["steps"])}

    return _stacked(*episodes).map(to_dataset)


def _same(step):
    return step


def _transitions(episodes):
    return [
        list(zip(*(episode[name].tolist() for name in ("observation", "action", "discount")), strict=True))
        for episode in episodes
    ]


# Reading


@pytest.mark.parametrize("make", [_stacked, _nested])
def test_a_dataset_of_episodes_gives_their_transitions(make):
    dataset = make(_episode(3, terminal=True), _episode(4, start=100))
    episodes = load_rlds(dataset, layout="transition")
    expected = [[(0, 10, 1), (1, 11, 0)], [(100, 110, 1), (101, 111, 1), (102, 112, 1)]]
    assert _transitions(episodes) == expected
    assert _transitions(episodes) == expected  # a second time
    report = episodes.report
    assert (report.episodes, report.frames, report.terminals, report.truncations) == (2, 5, 1, 1)
    assert report.dropped == report.repaired == ()


def test_steps_that_are_mapped_in_parallel_or_filtered_are_stacked_too():
    image = np.arange(3 * 40 * 50).reshape(3, 40, 50)
    episodes = (_episode(3, observation=image), _episode(0, observation=image[:0]), _episode(3, observation=image + 7))
    mapped = _nested(*episodes).map(lambda episode: {"steps": episode["steps"].map(_same, num_parallel_calls=2)})
    filtered = _nested(*episodes).map(lambda episode: {"steps": episode["steps"].filter(lambda _: True)})
    for dataset in mapped, filtered:
        found = [frames["next_observation"] for frames in load_rlds(dataset, layout="transition")]
        np.testing.assert_array_equal(found, [image[1:], image[1:] + 7])


def test_endless_steps_are_refused():
    dataset = _nested(_episode(3)).map(lambda episode: {"steps": episode["steps"].repeat()})
    with pytest.raises(ValueError, match="the episode after 0 others cannot be read.*an episode has infinitely many"):
        list(load_rlds(dataset, layout="transition"))


@pytest.mark.parametrize("make", [_stacked, _nested])
def test_nested_fields_of_many_dtypes_are_kept(make):
    dtypes = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "float16", "bfloat16", "float64", "complex64"]
    observation = {name: tf.cast(np.arange(6).reshape(3, 2), name).numpy() for name in dtypes}
    (frames,) = load_rlds(make(_episode(3, observation=observation)), layout="transition")
    for name, column in observation.items():
        assert frames["next_observation"][name].dtype == column.dtype
        np.testing.assert_array_equal(frames["next_observation"][name], column[1:])


def test_the_element_spec_describes_the_frames():
    episodes = load_rlds(_stacked(_episode(3)), layout="transition")
    assert episodes.element_spec == {
        "observation": tf.TensorSpec([], tf.float32),
        "action": tf.TensorSpec([], tf.int64),
        "reward": tf.TensorSpec([], tf.float32),
        "discount": tf.TensorSpec([], tf.float32),
        "next_observation": tf.TensorSpec([], tf.float32),
        "is_terminal": tf.TensorSpec([], tf.bool),
        "is_truncated": tf.TensorSpec([], tf.bool),
    }


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_as_dataset_gives_the_same_episodes(layout):
    episodes = load_rlds(_stacked(_episode(3), _episode(1), _episode(5, terminal=True)), layout=layout)
    dataset = episodes.as_episode_dataset()
    with_time = tf.nest.map_structure(
        lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), episodes.element_spec
    )
    assert dataset.element_spec == with_time
    for _ in range(2):
        for element, frames in zip(dataset, episodes, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, element, frames)


def test_the_number_of_episodes_is_known_when_the_source_knows_it():
    known = load_rlds(tf.data.Dataset.from_tensors({"steps": _episode(3)}).repeat(4), layout="transition")
    assert (len(known), known.num_episodes) == (4, 4)
    unknown = load_rlds(_stacked(_episode(3)), layout="transition")
    assert unknown.num_episodes is None
    assert unknown
    with pytest.raises(TypeError, match="the number of episodes is unknown until they are read"):
        len(unknown)


def test_a_report_is_there_from_the_first_iteration_on():
    episodes = load_rlds(_stacked(_episode(3), _episode(4)), layout="transition")
    assert episodes.report is None
    next(iter(episodes))
    assert episodes.report.frames == 2


def test_step_metadata_of_fixed_width_is_kept_and_the_report_names_what_stays_behind():
    dataset = _stacked(_episode(3, language=np.array(["a", "b", "c"]), energy=np.array([7.0, 8.0, 9.0])))
    transitions = load_rlds(dataset, layout="transition")
    (frames,) = transitions
    assert frames["energy"].tolist() == [7, 8]  # of the steps in which the actions were taken
    assert "step fields not loaded: language (a string)" in str(transitions.report)
    (steps,) = load_rlds(dataset, layout="step")
    assert steps["energy"].tolist() == [7, 8, 9]
    trajectories = load_rlds(dataset, layout="trajectory")
    (frames,) = trajectories
    assert frames.policy_info == ()
    assert "step fields not loaded: energy, language" in str(trajectories.report)
    (frames,) = load_rlds(dataset, layout="trajectory", policy_info=["energy"])
    assert frames.policy_info["energy"].tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("without", "layout", "note"),
    [
        ("discount", "transition", "the dataset has no discount: 0 into a terminal step, else 1"),
        ("reward", "transition", "the dataset has no reward: the frames have none"),
        ("reward", "trajectory", "the dataset has no reward: zeros"),
        ("action", "transition", "the dataset has no action: the frames have none"),
        ("action", "trajectory", "the dataset has no action: an empty nest"),
    ],
)
def test_missing_optional_fields_have_a_rule_and_a_line_in_the_report(without, layout, note):
    steps = _episode(3, discount=np.ones([3]))
    del steps[without]
    episodes = load_rlds(_stacked(steps), layout=layout)
    assert len(list(episodes)) == 1
    assert episodes.report.notes == (note,)


def test_without_is_first_and_is_last_the_nesting_is_enough():
    steps = _episode(3)
    del steps["is_first"], steps["is_last"]
    episodes = load_rlds(_stacked(steps), layout="transition")
    assert _transitions(episodes) == [[(0, 10, 1), (1, 11, 1)]]
    assert episodes.report.repaired == ()


# Bad episodes


def test_fr_084_episodes_without_any_is_last_end_where_the_nesting_ends(caplog):
    caplog.set_level(logging.WARNING)
    never = np.zeros([3], bool)
    dataset = _stacked(_episode(3, is_last=never), _episode(3, terminal=True, is_last=never, start=50))
    episodes = load_rlds(dataset, layout="transition")
    assert _transitions(episodes) == [[(0, 10, 1), (1, 11, 1)], [(50, 60, 1), (51, 61, 0)]]
    assert (episodes.report.terminals, episodes.report.truncations) == (1, 1)
    (finding,) = episodes.report.repaired
    assert str(finding) == "2 with is_last not set on the last step (episodes 0, 1)"
    assert f"repaired {finding}" in caplog.text


@pytest.mark.parametrize("on_bad_episode", ["error", "skip", "repair"])
def test_an_episode_without_is_first_is_loaded_and_counted(on_bad_episode):
    dataset = _stacked(_episode(3, is_first=np.zeros([3], bool)))
    episodes = load_rlds(dataset, layout="transition", on_bad_episode=on_bad_episode)
    assert _transitions(episodes) == [[(0, 10, 1), (1, 11, 1)]]
    assert str(episodes.report.repaired[0]) == "1 with is_first not set on the first step (episode 0)"
    assert episodes.report.num_repaired == 1


@pytest.mark.parametrize("on_bad_episode", ["error", "skip", "repair"])
@pytest.mark.parametrize("make", [_stacked, _nested])
@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_t17_episodes_without_a_transition_are_dropped_and_counted(make, layout, on_bad_episode):
    dataset = make(
        _episode(0), _episode(1), _episode(1, terminal=True), _episode(1, is_last=np.array([False])), _episode(2)
    )
    episodes = load_rlds(dataset, layout=layout, on_bad_episode=on_bad_episode)
    assert len(list(episodes)) == 1
    assert [str(finding) for finding in episodes.report.dropped] == [
        "1 without a step (episode 0)",
        "3 of one step, so without a transition (episodes 1, 2, 3)",
    ]
    assert episodes.report.num_dropped == 4


_BAD = {
    "is_terminal": (
        _episode(5, is_terminal=_flags(5, 1, 3)),
        "episode 1: is_terminal is set at step 1 of 5, before the last one; on_bad_episode='skip' leaves it out, "
        "'repair' ends it after 2 of its steps.",
        "with is_terminal in mid-episode",
        [(0, 10, 0)],
    ),
    "is_last": (
        _episode(5, is_last=_flags(5, 2, 4)),
        "episode 1: is_last is set at step 2 of 5, before the last one; on_bad_episode='skip' leaves it out, "
        "'repair' ends it after 3 of its steps.",
        "with is_last in mid-episode",
        [(0, 10, 1), (1, 11, 1)],
    ),
    "is_first": (
        _episode(5, is_first=_flags(5, 0, 3), terminal=True),
        "episode 1: is_first is set at step 3 of 5, after the first one; on_bad_episode='skip' leaves it out, "
        "'repair' ends it after 3 of its steps.",
        "with is_first in mid-episode",
        [(0, 10, 1), (1, 11, 1)],
    ),
    "joined": (
        _episode(5, is_first=_flags(5, 0, 3), is_last=_flags(5, 2, 4), is_terminal=_flags(5, 2)),
        "episode 1: is_terminal is set at step 2 of 5, before the last one; on_bad_episode='skip' leaves it out, "
        "'repair' ends it after 3 of its steps.",
        "with is_terminal in mid-episode",
        [(0, 10, 1), (1, 11, 0)],
    ),
    "too_short_then": (
        _episode(5, is_terminal=_flags(5, 0)),
        "episode 1: is_terminal is set at step 0 of 5, before the last one; on_bad_episode='skip' leaves it out, "
        "'repair' ends it after 1 of its steps.",
        "with is_terminal in mid-episode",
        None,
    ),
    "lengths": (
        {**_episode(5), "action": np.arange(4)},
        "episode 1: its fields differ in length: ",
        "with fields of different lengths",
        None,
    ),
    "reward": (
        _episode(3, reward=np.array([1.0, 1e300, 0.0])),
        "episode 1: a reward is too large for float32; on_bad_episode='skip' leaves it out.",
        "with a reward beyond float32",
        None,
    ),
    "nan": (
        _episode(3, reward=np.array([np.nan, 1.0, 0.0])),
        "episode 1: a reward is NaN or infinite; on_bad_episode='skip' leaves it out.",
        "with a reward that is not finite",
        None,
    ),
}


def test_steps_that_are_not_stacked_are_refused_by_field():
    episode = {"steps": {"observation": 1.0, "is_terminal": True}}
    with pytest.raises(
        ValueError, match=r"steps field 'is_terminal': expected the steps of an episode, \[N \+ 1, ...\]"
    ):
        load_rlds(tf.data.Dataset.from_tensors(episode), layout="transition")


def test_a_discount_that_is_not_finite_makes_a_bad_episode():
    steps = {"observation": [1.0, 2.0, 3.0], "is_terminal": [False] * 3, "discount": [1.0, np.inf, np.nan]}
    episodes = load_rlds(tf.data.Dataset.from_tensors({"steps": steps}), layout="transition")
    with pytest.raises(ValueError, match="episode 0: a discount is NaN or infinite"):
        next(iter(episodes))


def test_flags_must_be_bools():
    episode = {"steps": {"observation": [1.0, 2.0], "is_terminal": [0.0, 0.5]}}
    with pytest.raises(ValueError, match="step field 'is_terminal': expected a bool a step, got float32"):
        load_rlds(tf.data.Dataset.from_tensors(episode), layout="transition")


@pytest.mark.parametrize(("bad", "message", "reason", "repaired"), _BAD.values(), ids=_BAD.keys())
class TestABadEpisode:
    def test_is_an_error_that_names_it_and_the_ways_out(self, bad, message, reason, repaired):
        episodes = iter(load_rlds(_stacked(_episode(3), bad, _episode(4)), layout="transition"))
        next(episodes)
        with pytest.raises(ValueError, match="tf.data.Dataset, episode 1") as error:
            next(episodes)
        assert message in str(error.value)

    def test_is_skipped_and_counted(self, bad, message, reason, repaired):
        episodes = load_rlds(_stacked(_episode(3), bad, _episode(4)), layout="transition", on_bad_episode="skip")
        assert [len(frames["action"]) for frames in episodes] == [2, 3]
        assert [str(finding) for finding in episodes.report.dropped] == [f"1 {reason} (episode 1)"]

    def test_is_repaired_where_that_is_possible_and_counted(self, bad, message, reason, repaired):
        episodes = load_rlds(_stacked(_episode(3), bad, _episode(4)), layout="transition", on_bad_episode="repair")
        found = _transitions(episodes)
        report = episodes.report
        if repaired is None:
            assert [len(episode) for episode in found] == [2, 3]
            assert [str(finding) for finding in report.dropped] == [f"1 {reason} (episode 1)"]
        else:
            assert found[1] == repaired
            assert [str(finding) for finding in report.repaired] == [f"1 {reason} (episode 1)"]
            assert report.terminals == (repaired[-1][2] == 0)


def test_an_episode_flagged_invalid_is_an_error_or_left_out():
    dataset = _stacked(_episode(3), _episode(4), invalid=[False, True])
    with pytest.raises(ValueError, match="episode 1: the dataset flags it as invalid; on_bad_episode='skip' leaves it"):
        list(load_rlds(dataset, layout="transition"))
    for on_bad_episode in "skip", "repair":
        episodes = load_rlds(dataset, layout="transition", on_bad_episode=on_bad_episode)
        assert len(list(episodes)) == 1
        assert str(episodes.report.dropped[0]) == "1 flagged invalid (episode 1)"


def test_a_huge_reward_of_the_last_step_is_no_fault():
    assert len(list(load_rlds(_stacked(_episode(3, reward=np.array([1.0, 1.0, 1e300]))), layout="transition"))) == 1


def test_only_the_first_few_episodes_of_a_finding_are_named():
    episodes = load_rlds(_stacked(*[_episode(1)] * 7), layout="transition")
    assert list(episodes) == []
    assert str(episodes.report.dropped[0]).endswith("(episodes 0, 1, 2, 3, 4, ...)")


# Refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"observation": {"text": np.array(["a"])}},
            "step field 'observation/text' is a string, which has no fixed width; fields={'observation/text': Drop()} "
            "leaves it out, Bytes(64) stores up to 64 bytes of it, Keep() keeps it where no buffer has to hold it.",
        ),
        ({"observation": np.zeros([1, 2, 0])}, "step field 'observation' has the shape (2, 0), which holds no number"),
        ({"is_last": np.zeros([1, 2], bool)}, "step field 'is_last': expected one number a step, got TensorSpec"),
        ({"discount": np.zeros([1, 2])}, "step field 'discount': expected one number a step, got TensorSpec"),
        ({"reward": {"a": np.zeros([1])}}, "step field 'reward': expected one array of real numbers a step, got {'a'"),
    ],
)
def test_a_field_that_cannot_be_loaded_is_refused_by_name_before_reading(change, message):
    with pytest.raises(ValueError, match="tf.data.Dataset: ") as error:
        load_rlds(_stacked({**_episode(1), **change}), layout="transition")
    assert message in str(error.value)


def test_variable_length_fields_are_refused_by_name():
    steps = {"is_terminal": tf.TensorSpec([None], tf.bool)}
    for spec, message in [
        (tf.TensorSpec([None, None, 3], tf.uint8), r"'observation' has the shape \(None, 3\), which is of variable"),
        (tf.RaggedTensorSpec([None, None], tf.int64), r"'observation' has the shape \(None,\), which is of variable"),
    ]:
        signature = {"steps": {**steps, "observation": spec}}
        dataset = tf.data.Dataset.from_generator(lambda: iter([]), output_signature=signature)
        with pytest.raises(ValueError, match=message):
            load_rlds(dataset, layout="transition")


@pytest.mark.parametrize(
    ("without", "why"),
    [
        ("observation", "there is nothing to learn from"),
        ("is_terminal", "terminal and truncated episodes cannot be told apart"),
    ],
)
def test_a_dataset_without_a_field_that_has_no_substitute_is_refused(without, why):
    steps = _episode(3)
    del steps[without]
    with pytest.raises(ValueError, match=f"the steps have no '{without}', so {why}; found .*add it in a map"):
        load_rlds(_stacked(steps), layout="transition")


def test_wrong_arguments_are_refused(tmp_path):
    dataset = _stacked(_episode(3))
    with pytest.raises(ValueError, match="layout must be one of 'trajectory', 'transition', 'step', got 'sars'"):
        load_rlds(dataset, layout="sars")
    with pytest.raises(ValueError, match="on_bad_episode must be 'error', 'skip' or 'repair', got 'ignore'"):
        load_rlds(dataset, layout="transition", on_bad_episode="ignore")
    with pytest.raises(
        ValueError, match="split='test' is for names and folders of .*; a .*Dataset is one split already"
    ):
        load_rlds(dataset, split="test", layout="transition")
    with pytest.raises(
        TypeError, match="expected a dataset's name, folder or files, a tf.data.Dataset of episodes, .*, got int"
    ):
        load_rlds(3, layout="transition")
    with pytest.raises(ValueError, match=r"expected episodes, dicts with 'steps', got \['a'\]"):
        load_rlds(tf.data.Dataset.from_tensors({"a": 1}), layout="transition")
    with pytest.raises(ValueError, match="expected episodes, dicts with 'steps', got TensorSpec"):
        load_rlds(tf.data.Dataset.range(3), layout="transition")
    with pytest.raises(ValueError, match="expected steps that are dicts with 'observation', ..., got TensorSpec"):
        load_rlds(tf.data.Dataset.from_tensors({"steps": [1, 2]}), layout="transition")
    with pytest.raises(FileNotFoundError, match="absent': there is no such file or folder"):
        load_rlds(tmp_path / "absent", layout="transition")


def test_missing_tfds_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"a dataset folder needs TensorFlow Datasets: install replayfeed\[rlds\]\."):
        load_rlds(tmp_path, layout="transition")


def test_the_empty_module_that_a_newer_tensorflow_metadata_leaves_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.ModuleType("tensorflow_datasets"))
    with pytest.raises(ImportError, match=r"install 'tensorflow-metadata<1.18' \(replayfeed\[rlds\] asks for it\)"):
        load_rlds(tmp_path, layout="transition")


# Folders


def _plain(steps, *, layout):
    """RLDS' rules, read out loud in plain Python: (observation, action, reward, discount, ...) of each frame."""
    frames = []
    for t in range(len(steps) - 1):
        step, following = steps[t], steps[t + 1]
        discount = 0.0 if following["is_terminal"] else float(step["discount"])
        frames.append([step["observation"], step["action"], step["reward"], discount, following["observation"]])
    if layout == "trajectory":
        frames.append([steps[-1]["observation"], 0, 0.0, 1.0, None])
    return [np.array(column) for column in list(zip(*frames, strict=True))[: 5 if layout == "transition" else 4]]


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_a_recorded_folder_comes_back_in_order(cartpole_folder, cartpole_steps, layout):
    episodes = load_rlds(cartpole_folder, layout=layout)
    assert len(episodes) == 5
    loaded = list(episodes)
    for frames, steps in zip(loaded, cartpole_steps, strict=True):
        names = ["observation", "action", "reward", "discount", "next_observation"][
            : 5 if layout == "transition" else 4
        ]
        found = [frames[name] if layout == "transition" else getattr(frames, name) for name in names]
        for column, expected in zip(found, _plain(steps, layout=layout), strict=True):
            np.testing.assert_array_equal(column, expected)
    endings = [bool(steps[-1]["is_terminal"]) for steps in cartpole_steps]
    assert set(endings) == {True, False}
    assert (episodes.report.terminals, episodes.report.truncations) == (sum(endings), 5 - sum(endings))


def test_splits_of_a_folder(cartpole_folder):
    assert len(load_rlds(str(cartpole_folder), split="train[1:3]", layout="transition")) == 2
    with pytest.raises(ValueError, match="Unknown split 'test'. Should be one of \\['train'\\]"):
        load_rlds(cartpole_folder, split="test", layout="transition")


def test_a_folder_above_a_dataset_is_refused_with_the_right_one(cartpole_folder):
    with pytest.raises(FileNotFoundError, match=f"there is one in '{cartpole_folder}'"):
        load_rlds(cartpole_folder.parent, layout="transition")


def test_a_dataset_as_tfds_gives_it_loads_like_its_folder(cartpole_folder):
    tfds = pytest.importorskip("tensorflow_datasets")
    dataset = tfds.builder_from_directory(str(cartpole_folder)).as_dataset(
        split="train", read_config=tfds.ReadConfig(interleave_cycle_length=1)
    )
    for one, other in zip(
        load_rlds(dataset, layout="transition"), load_rlds(cartpole_folder, layout="transition"), strict=True
    ):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def test_encoded_features_are_decoded(record, tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    rng = np.random.default_rng(0)

    def step(index):
        return {
            "observation": {
                "image": rng.integers(0, 256, [5, 4, 3], np.uint8),
                "depth": rng.integers(0, 2**16, [4, 4, 1], np.uint16),
                "deep": {"zlib": rng.normal(size=[2, 2]), "label": index % 3},
            },
            "action": rng.normal(size=[2]).astype(np.float32),
            "reward": np.float64(0.1),
            "discount": np.float64(1),
            "is_first": index == 0,
            "is_last": index == 3,
            "is_terminal": False,
        }

    steps = [step(index) for index in range(4)]
    features = tfds.features
    record(
        tmp_path / "encoded",
        [steps, []],
        name="encoded",
        observation_info={
            "image": features.Image(shape=(5, 4, 3), encoding_format="png"),
            "depth": features.Image(shape=(4, 4, 1), dtype=np.uint16, encoding_format="png"),
            "deep": {
                "zlib": features.Tensor(shape=(2, 2), dtype=np.float64, encoding="zlib"),
                "label": features.ClassLabel(num_classes=3),
            },
        },
        action_info=features.Tensor(shape=(2,), dtype=np.float32, encoding="bytes"),
        reward_info=np.float64,
        discount_info=np.float64,
    )
    episodes = load_rlds(tmp_path / "encoded", layout="transition")
    (frames,) = episodes
    stacked = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *[step["observation"] for step in steps])
    tf.nest.map_structure(
        lambda got, want: np.testing.assert_array_equal(got, want[:-1]), frames["observation"], stacked
    )
    tf.nest.map_structure(
        lambda got, want: np.testing.assert_array_equal(got, want[1:]), frames["next_observation"], stacked
    )
    np.testing.assert_array_equal(frames["action"], [step["action"] for step in steps[:-1]])
    assert frames["observation"]["deep"]["zlib"].dtype == np.float64
    assert frames["reward"].tolist() == [np.float32(0.1)] * 3
    assert str(episodes.report.dropped[0]) == "1 without a step (episode 1)"


def _generated(folder, episodes, *, file_format, with_steps=True):
    """A dataset that a TFDS builder writes; its folder."""
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.features.FeaturesDict(
        {
            "steps" if with_steps else "frames": tfds.features.Dataset(
                {
                    "observation": tfds.features.Image(shape=(3, 2, 1), encoding_format="png"),
                    "is_first": np.bool_,
                    "is_last": np.bool_,
                    "is_terminal": np.bool_,
                }
            ),
            "invalid": np.bool_,
            "about": {"agent": tfds.features.Text(), "seeds": tfds.features.Sequence(np.int64)},
        }
    )

    class Generated(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": enumerate(episodes)}

        def _generate_examples(self):
            raise NotImplementedError

    builder = Generated(data_dir=str(folder), file_format=file_format)
    builder.download_and_prepare()
    return builder.data_dir


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_folders_of_tfds_builders_with_images_metadata_and_invalid_flags(tmp_path, file_format):
    images = np.arange(4 * 6, dtype=np.uint8).reshape(4, 3, 2, 1)
    steps = [{"observation": images[t], "is_first": t == 0, "is_last": t == 3, "is_terminal": t == 3} for t in range(4)]
    about = {"agent": "random", "seeds": [1, 2]}
    episodes = [{"steps": steps, "invalid": invalid, "about": about} for invalid in (False, True)]
    folder = _generated(tmp_path, episodes, file_format=file_format)
    loaded = load_rlds(folder, layout="transition", on_bad_episode="skip")
    assert len(loaded) == 2
    (frames,) = loaded
    np.testing.assert_array_equal(frames["observation"], images[:-1])
    np.testing.assert_array_equal(frames["next_observation"], images[1:])
    assert frames["discount"].tolist() == [1, 1, 0]
    assert loaded.report.dropped[0].reason == "flagged invalid"


def test_a_folder_without_episodes_is_refused_with_what_it_holds(tmp_path):
    episode = {"frames": [], "invalid": False, "about": {"agent": "none", "seeds": []}}
    folder = _generated(tmp_path, [episode], file_format="tfrecord", with_steps=False)
    with pytest.raises(ValueError, match=r"holds no episodes: expected a feature 'steps', found \['about', 'frames'"):
        load_rlds(folder, layout="transition")


# The recorded datasets beside the repository

_SHARED = {
    # name: (episodes, transitions, terminals, dropped, repaired)
    "array_record": (10, 224, 9, 0, 0),
    "cartpole": (20, 538, 13, 0, 0),
    "d4rl_hopper": (10, 298, 8, 0, 0),
    "edge_lengths": (3, 7, 0, 3, 1),
    "envlogger_catch": (10, 90, 10, 0, 0),
    "envlogger_dm_control": (4, 120, 0, 0, 0),
    "metadata": (8, 120, 0, 0, 0),
    "minari_cartpole": (6, 102, 4, 0, 0),
    "nested_images": (6, 56, None, 0, 0),
    "spec_generated": (4, 100, 0, 0, 0),
}


def _tfds_steps(folder):
    """Every episode as TFDS itself decodes it, a list of steps."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(folder))
    if builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
        return [list(episode["steps"]) for episode in builder.as_data_source("train")]
    dataset = builder.as_dataset(split="train", read_config=tfds.ReadConfig(interleave_cycle_length=1))
    return [list(episode["steps"].as_numpy_iterator()) for episode in dataset]


@pytest.mark.parametrize("name", _SHARED)
def test_every_recorded_dataset_loads_as_a_plain_reading_of_the_rules_says(shared_data, name):
    num_episodes, num_transitions, terminals, num_dropped, num_repaired = _SHARED[name]
    for layout in "transition", "trajectory":
        episodes = load_rlds(shared_data / name, layout=layout)
        loaded = list(episodes)
        report = episodes.report
        assert report.episodes == num_episodes
        assert report.frames == num_transitions + (num_episodes if layout == "trajectory" else 0)
        assert terminals in (None, report.terminals)
        assert (report.num_dropped, report.num_repaired) == (num_dropped, num_repaired)
        plain = [steps for steps in _tfds_steps(shared_data / name) if len(steps) > 1]
        for frames, steps in zip(loaded, plain, strict=True):
            frames = frames if layout == "transition" else frames._asdict()
            assert all(leaf.dtype == np.float32 for leaf in (frames["reward"], frames["discount"]))
            count = len(steps) - 1
            for t in range(count):
                tf.nest.map_structure(
                    lambda got, want, t=t: np.testing.assert_array_equal(got[t], want),
                    [frames["observation"], frames["action"]],
                    [steps[t]["observation"], steps[t]["action"]],
                )
                assert frames["reward"][t] == np.float32(steps[t]["reward"])
                assert frames["discount"][t] == (0 if steps[t + 1]["is_terminal"] else steps[t]["discount"])
            final = frames["next_observation" if layout == "transition" else "observation"]
            tf.nest.map_structure(
                lambda got, want: np.testing.assert_array_equal(got[-1], want), final, steps[-1]["observation"]
            )


def test_what_d4rl_files_lack_is_told(shared_data):
    episodes = load_rlds(shared_data / "d4rl_hopper", layout="transition")
    last = [frames["next_observation"][-1].any() for frames in episodes if frames["is_terminal"][-1]]
    assert last == [False] * 8
    zeros, lost = episodes.report.notes
    assert zeros.startswith("8 terminal episodes end in an observation of zeros, which D4RL files hold")
    assert lost.startswith("2 truncated episodes of a D4RL file lack the observation after their last action")


def test_a_truncated_episode_bootstraps_although_envlogger_writes_a_last_discount_of_0(shared_data):
    for frames in load_rlds(shared_data / "envlogger_dm_control", layout="transition"):
        assert frames["discount"].tolist() == [1] * 30
        assert frames["is_truncated"].tolist() == [False] * 29 + [True]


def test_the_episodes_that_edge_lengths_drops_are_named(shared_data):
    episodes = load_rlds(shared_data / "edge_lengths", layout="trajectory")
    assert [len(frames.reward) for frames in episodes] == [5, 2, 3]
    assert [str(finding) for finding in (*episodes.report.dropped, *episodes.report.repaired)] == [
        "1 without a step (episode 1)",
        "2 of one step, so without a transition (episodes 2, 3)",
        "1 with is_last not set on the last step (episode 5)",
    ]
