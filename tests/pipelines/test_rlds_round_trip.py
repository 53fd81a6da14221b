"""Random episodes out to disk and in again, in every layout, against a plain Python reading of the RLDS rules.

The reading below goes step by step, as the rules are written; it shares nothing with the code under test.
"""

import pathlib
import tempfile

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from replayfeed.pipelines import load_rlds, write_rlds
from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode

pytest.importorskip("tensorflow_datasets")

# Fields that a dataset may have: of one step, by place.
OBSERVATIONS = {
    "flat": {"observation": ([2], "float32")},
    "nested": {"observation/arm/joint angles": ([3], "float64"), "observation/image": ([2, 2, 1], "uint8")},
    "number": {"observation": ([], "int64")},
}
ACTIONS = {
    "none": {},
    "flat": {"action": ([], "int32")},
    "nested": {"action/xyz": ([2], "float32"), "action/open": ([], "bool")},
}
REWARDS = {
    "none": {},
    "float32": {"reward": ([], "float32")},
    "float64": {"reward": ([], "float64")},
    "one": {"reward": ([1], "float32")},
}
DISCOUNTS = {"none": {}, "float32": {"discount": ([], "float32")}, "int32": {"discount": ([], "int32")}}
METADATA = {"none": {}, "some": {"log_prob": ([], "float32"), "infos/qpos": ([2], "float64")}}


@st.composite
def datasets(draw):
    """Fields, and episodes: lists of steps, dicts by place, with how they end."""
    fields = {}
    for kinds in OBSERVATIONS, ACTIONS, REWARDS, DISCOUNTS, METADATA:
        fields.update(kinds[draw(st.sampled_from(sorted(kinds)))])
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    endings = [draw(st.sampled_from(["terminal", "truncated", "cut"])) for _ in lengths]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    episodes = [
        [step_of(fields, rng, is_first=t == 0, is_last=t == length - 1, ending=ending) for t in range(length)]
        for length, ending in zip(lengths, endings, strict=True)
    ]
    return fields, episodes


def step_of(fields, rng, *, is_first, is_last, ending):
    """One step; what a last one holds beside its observation means nothing, so that anything may stand there."""
    step = {}
    for place, (shape, dtype) in fields.items():
        if dtype == "bool":
            value = rng.random(shape) < 0.5
        elif np.dtype(dtype).kind in "iu":
            value = rng.integers(0, 2 if place == "discount" else 100, shape)
        else:
            value = rng.normal(size=shape)
            if is_last and place in ("reward", "discount"):
                value = np.full(shape, np.nan)
        step[place] = np.asarray(value).astype(dtype)
    step["is_first"] = np.asarray(is_first)
    step["is_last"] = np.asarray(is_last and ending != "cut")
    step["is_terminal"] = np.asarray(is_last and ending == "terminal")
    return step


def nest_of(by_place):
    """`{'a': {'b': 1}}` of `{'a/b': 1}`."""
    nest = {}
    for place, value in by_place.items():
        *above, name = place.split("/")
        inner = nest
        for key in above:
            inner = inner.setdefault(key, {})
        inner[name] = value
    return nest


def source_of(fields, episodes):
    """The episodes as whatever has episodes gives them."""
    every = {**fields, "is_first": ([], "bool"), "is_last": ([], "bool"), "is_terminal": ([], "bool")}

    def read(seed):
        for index, steps in enumerate(episodes):
            columns = {
                place: np.stack([step[place] for step in steps]) if steps else np.zeros([0, *shape], dtype)
                for place, (shape, dtype) in every.items()
            }
            yield RawEpisode(str(index), nest_of(columns), metadata={"number": np.int64(index)}, place=index)

    return EpisodeSource(
        "random",
        nest_of({place: tf.TensorSpec(shape, dtype) for place, (shape, dtype) in every.items()}),
        read,
        num_episodes=len(episodes),
        metadata_spec={"number": tf.TensorSpec([], tf.int64)},
    )


# The plain reading


def plain_transitions(steps):
    """Rows `(step, next step, discount)`, one for each pair of steps that follow each other."""
    rows = []
    for t in range(len(steps) - 1):
        step, following = steps[t], steps[t + 1]
        if following["is_terminal"]:
            discount = 0.0
        elif "discount" in step:
            discount = float(step["discount"])
        else:
            discount = 1.0
        rows.append((step, following, discount))
    return rows


def plain_frames(fields, steps, layout):
    """Frames by place, lists of values; None stands for what the layout fills in."""
    transitions = plain_transitions(steps)
    num_frames = len(transitions) + (layout != "transition")
    frames = {}
    for place in fields:
        top = place.split("/")[0]
        if top == "discount":
            continue
        if top == "reward":
            rewards = [np.float32(np.reshape(step[place], [])) for step, _, _ in transitions]
            frames[place] = rewards + ([np.float32(0)] if layout != "transition" else [])
        elif top == "action":
            filler = np.zeros_like(steps[0][place])
            frames[place] = [step[place] for step, _, _ in transitions] + ([filler] if layout != "transition" else [])
        elif top == "observation" or layout != "trajectory":
            frames[place] = [step[place] for step in steps[:num_frames]]
        if top == "observation" and layout == "transition":
            frames["next_" + place] = [following[place] for _, following, _ in transitions]
    ended = bool(steps[-1]["is_terminal"])
    discounts = [np.float32(discount) for _, _, discount in transitions]
    last = [False] * (num_frames - 1)
    if layout == "transition":
        frames |= {"discount": discounts, "is_terminal": [*last, ended], "is_truncated": [*last, not ended]}
    elif layout == "step":
        frames |= {
            "discount": [*discounts, np.float32(0 if ended else 1)],
            "is_first": [True, *last],
            "is_last": [*last, True],
            "is_terminal": [*last, ended],
        }
    else:
        frames["discount"] = [*discounts, np.float32(1)]
        frames["step_type"] = np.int32([0, *[1] * (num_frames - 2), 2])
        frames["next_step_type"] = np.int32([*[1] * (num_frames - 2), 2, 0])
        frames.setdefault("reward", [np.float32(0)] * num_frames)
    return frames


def by_place(nest, above=""):
    """`{'a/b': 1}` of `{'a': {'b': 1}}`."""
    found = {}
    for name, value in nest.items():
        place = f"{above}{name}"
        found |= by_place(value, f"{place}/") if isinstance(value, dict) else {place: value}
    return found


def assert_loaded(source, fields, episodes, layout):
    """What `load_rlds` gives is what the plain reading says, and its report counts right."""
    loaded = load_rlds(source, layout=layout)
    sound = [(index, steps) for index, steps in enumerate(episodes) if len(steps) >= 2]
    for episode, (index, steps) in zip(loaded.start_pass(), sound, strict=True):
        assert (episode.place, int(episode.metadata["number"])) == (index, index)
        assert episode.is_terminal == bool(steps[-1]["is_terminal"])
        frames = episode.frames
        if layout == "trajectory":
            assert frames.policy_info == ()
            frames = {name: value for name, value in frames._asdict().items() if not isinstance(value, tuple)}
        found, expected = by_place(frames), plain_frames(fields, steps, layout)
        assert found.keys() == expected.keys()
        for place, rows in expected.items():
            assert found[place].dtype == np.asarray(rows).dtype, place
            assert found[place].tobytes() == np.ascontiguousarray(rows).tobytes(), place
    report = loaded.report
    terminals = sum(bool(steps[-1]["is_terminal"]) for _, steps in sound)
    assert (report.episodes, report.terminals) == (len(sound), terminals)
    assert report.truncations == len(sound) - terminals
    assert report.num_dropped == len(episodes) - len(sound)
    assert report.num_repaired == sum(not steps[-1]["is_last"] for _, steps in sound)


@hypothesis.given(datasets())
@hypothesis.settings(max_examples=60)
def test_random_episodes_in_memory_load_as_the_rules_say(dataset):
    fields, episodes = dataset
    for layout in "transition", "trajectory", "step":
        assert_loaded(source_of(fields, episodes), fields, episodes, layout)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@hypothesis.given(datasets(), st.integers(1, 3))
@hypothesis.settings(max_examples=12)
def test_random_episodes_come_back_from_disk_as_the_rules_say(file_format, dataset, shards):
    fields, episodes = dataset
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent) / "random"
        source = source_of(fields, episodes)
        report = write_rlds(source, folder, name="random", file_format=file_format, shards=shards, progress=False)
        assert (report.episodes, report.steps) == (len(episodes), sum(map(len, episodes)))
        for layout in "transition", "trajectory", "step":
            assert_loaded(folder, fields, episodes, layout)


@hypothesis.given(datasets())
@hypothesis.settings(max_examples=8)
def test_what_was_loaded_is_written_and_loaded_alike(dataset):
    """Sound episodes are a fixed point: a second time out and in changes nothing, and drops nothing."""
    fields, episodes = dataset
    hypothesis.assume(any(len(steps) >= 2 for steps in episodes))
    with tempfile.TemporaryDirectory() as parent:
        loaded = load_rlds(source_of(fields, episodes), layout="step")
        write_rlds(loaded, pathlib.Path(parent) / "sound", name="sound", progress=False)
        again = load_rlds(pathlib.Path(parent) / "sound", layout="step")
        for one, other in zip(loaded, again, strict=True):
            one, other = by_place(one), by_place(other)
            assert one.keys() == other.keys()
            assert all(one[place].tobytes() == other[place].tobytes() for place in one)
        assert (again.report.num_dropped, again.report.num_repaired) == (0, 0)
        assert (again.report.terminals, again.report.truncations) == (
            loaded.report.terminals,
            loaded.report.truncations,
        )


@hypothesis.given(datasets(), st.sampled_from(["is_terminal", "is_last", "is_first"]), st.data())
@hypothesis.settings(max_examples=40)
def test_a_flag_in_mid_episode_ends_a_repaired_episode_there(dataset, flag, data):
    """Whichever the flag, what is left is the sound beginning, read by the same rules."""
    fields, episodes = dataset
    episodes = [steps for steps in episodes if len(steps) >= 3]
    hypothesis.assume(episodes)
    steps = data.draw(st.sampled_from(episodes))
    at = data.draw(st.integers(1, len(steps) - 1) if flag == "is_first" else st.integers(0, len(steps) - 2))
    broken = [{**step, flag: np.asarray(t == at or bool(step[flag]))} for t, step in enumerate(steps)]
    kept = broken[:at] if flag == "is_first" else broken[: at + 1]
    source = source_of(fields, [broken])
    if any(
        not np.isfinite(step[name]).all() for step in broken[:-1] for name in ("reward", "discount") if name in step
    ):
        return
    with pytest.raises(ValueError, match=f"episode 0: {flag} is set at step {at} of {len(steps)}"):
        list(load_rlds(source, layout="transition"))
    assert list(load_rlds(source, layout="transition", on_bad_episode="skip")) == []
    repaired = load_rlds(source, layout="transition", on_bad_episode="repair")
    found = list(repaired)
    if len(kept) < 2:
        assert (found, repaired.report.num_dropped) == ([], 1)
        return
    (frames,) = found
    expected = plain_frames(fields, kept, "transition")
    assert all(
        by_place(frames)[place].tobytes() == np.ascontiguousarray(rows).tobytes() for place, rows in expected.items()
    )
    assert repaired.report.num_repaired == 1
