import json
import logging

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from tf_agents.environments import suite_gym
from tf_agents.trajectories import trajectory

from replayfeed.buffers import ReverbReplayBuffer, TFUniformReplayBuffer, Window
from replayfeed.pipelines.fill import fill
from replayfeed.pipelines.load_report import Finding, LoadReport
from replayfeed.pipelines.rlds_read import load_rlds


def _uniform(spec, *, num_frames=20_000, batch_size=1):
    return TFUniformReplayBuffer(spec, batch_size, max_length=num_frames)


def _reverb(spec, *, num_frames=20_000, batch_size=1):
    return ReverbReplayBuffer.local(spec, batch_size=batch_size, max_size=num_frames, sequence_length=2)


@pytest.fixture(params=[_uniform, _reverb], ids=["uniform", "reverb"])
def make_buffer(request):
    return request.param


def _dataset(*lengths, terminal=(), **changes):
    """Episodes of these lengths in steps; observations count on over all of them."""
    starts = np.cumsum((0, *lengths))

    def episode(index):
        steps = np.arange(lengths[index])
        last = steps == lengths[index] - 1
        return {
            "observation": (steps + starts[index]).astype(np.float32),
            "action": steps + starts[index] + 1000,
            "reward": (steps + starts[index]).astype(np.float32) / 4,
            "is_first": steps == 0,
            "is_last": last,
            "is_terminal": last & (index in terminal),
            **changes,
        }

    signature = tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), episode(0))
    return tf.data.Dataset.from_generator(
        lambda: ({"steps": episode(index)} for index in range(len(lengths))), output_signature={"steps": signature}
    )


def _windows(buffer, num_steps=2):
    """Every window of that length, once."""
    dataset = buffer.as_dataset(window=Window(num_steps), single_deterministic_pass=True)
    return [items for items, _ in dataset]


# What is written


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_the_buffer_holds_every_frame_in_order(make_buffer, layout):
    episodes = load_rlds(_dataset(3, 4, terminal=[1]), layout=layout)
    with make_buffer(episodes.element_spec) as buffer:
        report = fill(buffer, episodes, progress=False)
        held = buffer.gather_all()
        wanted = list(episodes)
        tf.nest.map_structure(
            lambda got, *want: np.testing.assert_array_equal(got[0], np.concatenate(want)), held, *wanted
        )
    assert report.frames == len(tf.nest.flatten(held)[0][0]) == {"transition": 5, "trajectory": 7}[layout]
    assert (report.episodes, report.terminals, report.truncations, report.num_dropped) == (2, 1, 1, 0)
    assert report.seconds > 0


_lengths = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=6)


@hypothesis.settings(max_examples=30)
@hypothesis.given(_lengths)
def test_loading_filling_and_gathering_equals_a_plain_reading(drawn):
    lengths = [length for length, _ in drawn]
    terminal = [index for index, (_, ends) in enumerate(drawn) if ends]
    expected, start = [], 0
    for index, length in enumerate(lengths):
        for step in range(start, start + length - 1):
            ends = step == start + length - 2
            expected.append((step, step + 1000, step / 4, 0.0 if ends and index in terminal else 1.0, step + 1))
        start += length
    episodes = load_rlds(_dataset(*lengths, terminal=terminal), layout="transition")
    buffer = _uniform(episodes.element_spec, num_frames=100)
    report = fill(buffer, episodes, progress=False)
    held = buffer.gather_all()
    names = ("observation", "action", "reward", "discount", "next_observation")
    assert list(zip(*(held[name].numpy()[0].tolist() for name in names), strict=True)) == expected
    assert report.frames == len(expected)
    assert report.episodes + report.num_dropped == len(lengths)
    assert buffer.stats().episodes == report.episodes


def _check_windows_of_two(make_buffer, folder):
    episodes = load_rlds(folder, layout="transition")
    with make_buffer(episodes.element_spec) as buffer:
        fill(buffer, episodes, progress=False)
        windows = _windows(buffer)
        for items in windows:
            np.testing.assert_array_equal(items["next_observation"][0], items["observation"][1])
        assert len(windows) == sum(len(frames["reward"]) - 1 for frames in episodes)
        items, _ = buffer.sample(500, num_steps=2)
        np.testing.assert_array_equal(items["next_observation"][:, 0], items["observation"][:, 1])


def test_windows_of_transitions_never_join_episodes(make_buffer, cartpole_folder):
    _check_windows_of_two(make_buffer, cartpole_folder)


def test_windows_of_transitions_never_join_episodes_of_the_shared_cartpole(make_buffer, shared_data):
    _check_windows_of_two(make_buffer, shared_data / "cartpole")


def test_windows_of_trajectories_never_join_episodes(make_buffer):
    episodes = load_rlds(_dataset(3, 4), layout="trajectory")
    with make_buffer(episodes.element_spec) as buffer:
        fill(buffer, episodes, progress=False)
        assert sorted(items.observation.numpy().tolist() for items in _windows(buffer)) == [
            [0, 1], [1, 2], [3, 4], [4, 5], [5, 6]
        ]  # fmt: skip


def test_windows_of_steps_never_join_episodes(make_buffer):
    episodes = load_rlds(_dataset(3, 4, terminal=[0]), layout="step")
    with make_buffer(episodes.element_spec) as buffer:
        report = fill(buffer, episodes, progress=False)
        assert (report.frames, report.terminals, report.truncations) == (7, 1, 1)
        assert sorted(items["observation"].numpy().tolist() for items in _windows(buffer)) == [
            [0, 1], [1, 2], [3, 4], [4, 5], [5, 6]
        ]  # fmt: skip


def test_nothing_is_joined_to_what_the_buffer_held_before_or_gets_after():
    episodes = load_rlds(_dataset(3), layout="transition")
    buffer = _uniform(episodes.element_spec)
    frame = tf.nest.map_structure(lambda spec: np.full([1], 77).astype(spec.dtype.as_numpy_dtype), buffer.data_spec)
    buffer.add_batch(frame)
    fill(buffer, episodes, progress=False)
    buffer.add_batch(frame)
    assert [items["observation"].numpy().tolist() for items in _windows(buffer)] == [[0, 1]]


def test_an_episode_longer_than_one_write_stays_one_episode():
    episodes = load_rlds(_dataset(10_001, 3), layout="transition")
    buffer = _uniform(episodes.element_spec)
    report = fill(buffer, episodes, progress=False)
    assert report.frames == 10_002
    observations = buffer.gather_all()["observation"].numpy()[0]
    np.testing.assert_array_equal(observations[:10_000], np.arange(10_000))
    batches = buffer.as_dataset(1000, window=Window(2), single_deterministic_pass=True)
    starts = np.concatenate([items["observation"].numpy()[:, 0] for items, _ in batches])
    np.testing.assert_array_equal(starts, [*range(9_999), 10_001])


def test_float64_and_nested_images_arrive_as_they_are(make_buffer, shared_data):
    episodes = load_rlds(shared_data / "nested_images", layout="transition")
    with make_buffer(episodes.element_spec) as buffer:
        fill(buffer, episodes, progress=False)
        held = buffer.gather_all()
        wanted = list(episodes)
    tf.nest.map_structure(lambda got, *want: np.testing.assert_array_equal(got[0], np.concatenate(want)), held, *wanted)
    assert held["observation"]["image"].dtype == tf.uint8
    assert held["observation"]["state"]["pole"].dtype == tf.float64


def test_a_recorded_folder_fills_both_layouts(make_buffer, cartpole_folder, cartpole_steps):
    num_steps = sum(map(len, cartpole_steps))
    for layout, num_frames in ("transition", num_steps - 5), ("trajectory", num_steps):
        episodes = load_rlds(cartpole_folder, layout=layout)
        with make_buffer(episodes.element_spec) as buffer:
            report = fill(buffer, episodes, progress=False)
            assert report.frames == len(tf.nest.flatten(buffer.gather_all())[0][0]) == num_frames
            endings = [bool(steps[-1]["is_terminal"]) for steps in cartpole_steps]
            assert (report.terminals, report.truncations) == (sum(endings), 5 - sum(endings))


def test_trajectories_are_those_that_a_tf_agents_environment_gives(record, tmp_path):
    """The time steps of TF-Agents' CartPole, recorded as RLDS, against `trajectory.from_transition` of the same."""
    tfds = pytest.importorskip("tensorflow_datasets")
    environment = suite_gym.load("CartPole-v0", max_episode_steps=15)
    recorded, wanted = [], []
    for policy in (lambda _: np.array(1), lambda o: np.array(int(o[2] + 0.3 * o[3] > 0))):
        time_step, steps = environment.reset(), []
        while True:
            action = policy(time_step.observation) if not time_step.is_last() else np.array(0)
            following = environment.step(action)
            wanted.append(trajectory.from_transition(time_step, trajectory.policy_step.PolicyStep(action), following))
            last = bool(time_step.is_last())
            steps.append(
                {
                    "observation": time_step.observation,
                    "action": np.int64(action),
                    "reward": np.float32(following.reward),
                    "discount": np.float32(following.discount),
                    "is_first": bool(time_step.is_first()),
                    "is_last": last,
                    "is_terminal": last and float(time_step.discount) == 0.0,
                }
            )
            if last:
                break
            time_step = following
        recorded.append(steps)
    info = tfds.features.Tensor(shape=(4,), dtype=np.float32)
    scalars = {"action_info": np.int64, "reward_info": np.float32, "discount_info": np.float32}
    record(tmp_path / "tf_agents", recorded, name="tf_agents", observation_info=info, **scalars)

    episodes = load_rlds(tmp_path / "tf_agents", layout="trajectory")
    buffer = _uniform(episodes.element_spec)
    report = fill(buffer, episodes, progress=False)
    assert (report.terminals, report.truncations) == (1, 1)
    held = tf.nest.map_structure(lambda leaf: leaf[0].numpy(), buffer.gather_all())
    expected = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *wanted)
    tf.nest.map_structure(np.testing.assert_array_equal, held, expected)


# What is refused


def test_a_bad_episode_leaves_the_ones_before_it_and_no_part_of_itself():
    episodes = load_rlds(_dataset(4, 4, is_terminal=np.array([False, True, False, False])), layout="transition")
    buffer = _uniform(episodes.element_spec)
    with pytest.raises(ValueError, match="episode 0: is_terminal is set at step 1 of 4"):
        fill(buffer, episodes, progress=False)
    assert len(buffer) == 0


def test_an_episode_that_is_broken_off_is_not_joined_to_what_comes_later(monkeypatch):
    episodes = load_rlds(_dataset(5_001), layout="transition")
    buffer = _uniform(episodes.element_spec)
    write, written = buffer.add_sequence, []

    def interrupted(items, *, end_of_episode=None, **rest):
        length = items["action"].shape[1]
        written.append(length)
        if not length:
            return write(items, end_of_episode=end_of_episode, **rest)
        half = tf.nest.map_structure(lambda leaf: leaf[:, : length // 2], items)
        write(half, end_of_episode=end_of_episode[:, : length // 2], **rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(buffer, "add_sequence", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(buffer, episodes, progress=False)
    monkeypatch.undo()
    assert written == [0, 5_000]
    assert len(buffer) == 2_500
    frame = tf.nest.map_structure(lambda spec: np.full([1], 77).astype(spec.dtype.as_numpy_dtype), buffer.data_spec)
    num_windows = len(buffer) - 1
    buffer.add_batch(frame)
    batches = buffer.as_dataset(1000, window=Window(2), single_deterministic_pass=True)
    assert sum(len(items["action"]) for items, _ in batches) == num_windows


def test_episodes_that_do_not_fit_are_refused_field_by_field_before_a_write(make_buffer):
    episodes = load_rlds(_dataset(3), layout="transition")
    spec = {**episodes.element_spec, "action": tf.TensorSpec([2], tf.int64), "extra": tf.TensorSpec([], tf.int32)}
    del spec["is_truncated"]
    with make_buffer(spec) as buffer:
        with pytest.raises(ValueError, match="do not fit the buffer's data_spec") as error:
            fill(buffer, episodes)
        assert len(buffer) == 0
    for part in (
        "the episodes of tf.data.Dataset, layout 'transition', do not fit",
        "field 'action': expected [2] int64, got [] int64",
        "field 'extra': expected [] int32, got no such field",
        "field 'is_truncated': expected no such field, got [] bool",
        "Build the buffer with data_spec=episodes.element_spec",
    ):
        assert part in str(error.value)


def test_another_layout_than_the_buffers_is_refused():
    buffer = _uniform(load_rlds(_dataset(3), layout="trajectory").element_spec)
    with pytest.raises(ValueError, match="field 'next_observation': expected no such field, got"):
        fill(buffer, load_rlds(_dataset(3), layout="transition"))


def test_a_closed_buffer_says_so_itself():
    episodes = load_rlds(_dataset(3), layout="transition")
    buffer = _uniform(episodes.element_spec)
    buffer.close()
    with pytest.raises(ValueError, match="^this TFUniformReplayBuffer is closed"):
        fill(buffer, episodes)


def test_a_casting_buffer_takes_numbers_of_another_width():
    episodes = load_rlds(_dataset(3), layout="transition")
    spec = {**episodes.element_spec, "action": tf.TensorSpec([], tf.int32)}
    with pytest.raises(ValueError, match=r"field 'action': expected \[\] int32, got \[\] int64\. .*cast=True"):
        fill(_uniform(spec), episodes)
    buffer = TFUniformReplayBuffer(spec, 1, max_length=10, cast=True)
    fill(buffer, episodes, progress=False)
    assert buffer.gather_all()["action"].numpy().tolist() == [[1000, 1001]]


def test_a_value_that_does_not_survive_the_cast_is_refused_with_its_whole_episode():
    large = load_rlds(_dataset(3, action=np.array([1, 2**40, 0])), layout="transition")
    buffer = TFUniformReplayBuffer({**large.element_spec, "action": tf.TensorSpec([], tf.int32)}, 1, 10, cast=True)
    with pytest.raises(ValueError, match="field 'action': 1099511627776 does not survive in int32"):
        fill(buffer, large, progress=False)
    assert len(buffer) == 0


def test_a_value_far_into_an_episode_that_does_not_survive_the_cast_leaves_nothing_of_it():
    actions = np.zeros([9_000], np.int64)
    actions[8_000] = 2**40

    def episodes_of():
        for length, terminal in (3, True), (9_000, False):
            steps = np.arange(length)
            yield {
                "steps": {
                    "observation": steps.astype(np.float32),
                    "action": actions[:length],
                    "is_terminal": (steps == length - 1) & terminal,
                }
            }

    signature = {
        "observation": tf.TensorSpec([None], tf.float32),
        "action": tf.TensorSpec([None], tf.int64),
        "is_terminal": tf.TensorSpec([None], tf.bool),
    }
    dataset = tf.data.Dataset.from_generator(episodes_of, output_signature={"steps": signature})
    episodes = load_rlds(dataset, layout="transition")
    spec = {**episodes.element_spec, "action": tf.TensorSpec([], tf.int32)}
    buffer = TFUniformReplayBuffer(spec, 1, 10_000, cast=True)
    with pytest.raises(ValueError) as error:
        fill(buffer, episodes, progress=False)
    assert str(error.value) == (
        "episode 1: field 'action': 1099511627776 does not survive in int32. Nothing of it was written; the 1 before "
        "it are in the buffer."
    )
    assert buffer.gather_all()["observation"].numpy().tolist() == [[0, 1]]


def test_wrong_arguments_are_refused():
    episodes = load_rlds(_dataset(3), layout="transition")
    with pytest.raises(TypeError, match="buffer must be a ReplayBuffer, or a ReverbTableGroup, got list"):
        fill([], episodes)
    with pytest.raises(TypeError, match="episodes must be Episodes, as load_rlds gives them, got list"):
        fill(_uniform(episodes.element_spec), list(episodes))
    with pytest.raises(TypeError, match="priorities must be a function of an Episode, or None, got float"):
        fill(_uniform(episodes.element_spec), episodes, priorities=1.0)


# What it costs


@pytest.mark.parametrize("length", [2, 5_001])
def test_an_episode_of_any_length_is_one_call(monkeypatch, length):
    episodes = load_rlds(_dataset(length, length, length), layout="transition")
    buffer = _uniform(episodes.element_spec)
    write, written = buffer.add_sequence, []

    def counted(items, **rest):
        written.append(items["action"].shape)
        return write(items, **rest)

    monkeypatch.setattr(buffer, "add_sequence", counted)
    fill(buffer, episodes, progress=False)
    # The first one, of no frames, lets the buffer look at the episodes' fields.
    assert written == [(1, 0), *[(1, length - 1)] * 3]


# What is told


def test_the_report_reads_as_a_table(caplog):
    caplog.set_level(logging.ERROR)
    episodes = load_rlds(_dataset(4, 1, 0, 3, terminal=[3]), layout="transition")
    report = fill(_uniform(episodes.element_spec, num_frames=4), episodes, progress=False)
    lines = str(report).splitlines()
    assert lines[:6] == [
        "tf.data.Dataset, layout transition",
        "  episodes     2 (1 terminal, 1 truncated)",
        "  frames       5",
        "  dropped      1 of one step, so without a transition (episode 1)",
        "  dropped      1 without a step (episode 2)",
        "  repaired     none",
    ]
    assert lines[7:] == [
        "  note         the dataset has no discount: 0 into a terminal step, else 1",
        "  note         the buffer holds 4 frames: the oldest 1 of the loaded ones were evicted again",
    ]


def test_a_report_is_json_without_what_json_lacks():
    episodes = load_rlds(_dataset(4, 1, 3, terminal=[2]), layout="transition")
    report = fill(_uniform(episodes.element_spec), episodes, progress=False)
    told = json.loads(report.to_json(indent=2), parse_constant=pytest.fail)
    assert told == json.loads(json.dumps(report.to_dict()))
    assert (told["episodes"], told["frames"], told["terminals"], told["truncations"], told["resumed"]) == (
        2,
        5,
        1,
        1,
        0,
    )
    assert told["dropped"] == [{"reason": "of one step, so without a transition", "count": 1, "episodes": ["1"]}]
    assert told["steps_per_second"] == report.frames / report.seconds
    empty = json.loads(LoadReport("mine", "transition", 0, 0, 0, 0).to_json(), parse_constant=pytest.fail)
    assert empty["steps_per_second"] == 0.0


def test_a_report_is_frozen_and_counts():
    report = LoadReport("mine", "transition", 1, 8, 1, 0, dropped=(Finding("bad", 2, ("0", "1")),), seconds=2.0)
    with pytest.raises(AttributeError):
        report.frames = 3
    assert (report.num_dropped, report.num_repaired, report.frames_per_second) == (2, 0, 4.0)
    assert LoadReport("mine", "transition", 0, 0, 0, 0).frames_per_second == 0.0


class _Terminal:
    """A stderr that says it is a terminal."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True


def test_progress_is_a_bar_on_stderr_and_can_be_switched_off(monkeypatch):
    episodes = load_rlds(_dataset(3, 3).apply(tf.data.experimental.assert_cardinality(2)), layout="transition")
    for progress in True, False:
        terminal = _Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        fill(_uniform(episodes.element_spec), episodes, progress=progress)
        assert ("fill from tf.data.Dataset" in terminal.text) is progress
        assert ("2/2" in terminal.text) is progress
        assert ("4 frames" in terminal.text) is progress


def test_a_short_load_leaves_nothing_in_a_log(capsys, monkeypatch):
    monkeypatch.setattr("tqdm.std.time", lambda: 0.0)  # however long it takes on a busy machine
    episodes = load_rlds(_dataset(3, 3), layout="transition")
    fill(_uniform(episodes.element_spec), episodes)
    assert capsys.readouterr() == ("", "")
