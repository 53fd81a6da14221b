"""What buffers hold as episodes: whole, evicted at the beginning, going on, of several streams, on a server."""

import dataclasses
import logging
import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    EpisodicReplayBuffer,
    ReservoirReplayBuffer,
    ReverbReplayBuffer,
    ReverbTableGroup,
    RolloutBuffer,
    TableConfig,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
)
from replayfeed.buffers.reverb_episodic import ReverbEpisodicReplayBuffer
from replayfeed.pipelines import fill, load_rlds
from replayfeed.pipelines.buffer_episodes import buffer_source
from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_write import write_rlds

NUMBER, FLOAT, FLAG = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.bool)
TRANSITION = {
    "observation": NUMBER,
    "action": NUMBER,
    "reward": FLOAT,
    "discount": FLOAT,
    "next_observation": NUMBER,
    "is_terminal": FLAG,
    "is_truncated": FLAG,
}
STEP = {"observation": NUMBER, "is_first": FLAG, "is_last": FLAG, "is_terminal": FLAG}


def transitions(*episodes, streams=1):
    """`(first, num, ending)` each: transitions first -> first + 1 -> ..., `[B, T]`; ending `''` goes on."""
    rows = [
        {
            "observation": first + t,
            "action": 1000 + first + t,
            "reward": 0.5 * (first + t),
            "discount": 0.0 if ending == "terminal" and t == num - 1 else 1.0,
            "next_observation": first + t + 1,
            "is_terminal": ending == "terminal" and t == num - 1,
            "is_truncated": ending == "truncated" and t == num - 1,
        }
        for first, num, ending in episodes
        for t in range(num)
    ]
    return {
        name: np.array([[row[name] for row in rows]] * streams, spec.dtype.as_numpy_dtype)
        for name, spec in TRANSITION.items()
    }


def ends_of(frames):
    return frames["is_terminal"] | frames["is_truncated"]


def add(buffer, *episodes, **arguments):
    frames = transitions(*episodes, streams=buffer.batch_size)
    return buffer.add_sequence(frames, end_of_episode=ends_of(frames), **arguments)


def told(episode):
    """An episode in short: observations, which flags are set, whether it is partial."""
    columns = episode.columns
    flags = [name for name in ("is_first", "is_last", "is_terminal") if columns[name].any()]
    assert columns["is_first"][1:].sum() == columns["is_last"][:-1].sum() == columns["is_terminal"][:-1].sum() == 0
    return columns["observation"].tolist(), flags, bool(episode.metadata["partial"])


def found(buffer, seed=None, **arguments):
    return [told(episode) for episode in buffer_source(buffer, **arguments).read(seed)]


WHOLE = ["is_first", "is_last"]


@pytest.fixture(params=["uniform", "prioritized", "episodic", "rollout"])
def make(request):
    """A buffer of 6 frames a stream (or of as many episodes)."""

    def build(spec=TRANSITION, streams=1, **arguments):
        if request.param == "uniform":
            return TFUniformReplayBuffer(spec, streams, 6, **arguments)
        if request.param == "prioritized":
            return TFPrioritizedReplayBuffer(spec, streams, 6, **arguments)
        if request.param == "episodic":
            return EpisodicReplayBuffer(spec, 6, batch_size=streams, **arguments)
        return RolloutBuffer(spec, streams, 6, final_frame="ordinary", **arguments)

    return build


def test_episodes_come_as_they_ended(make):
    buffer = make()
    add(buffer, (0, 2, "terminal"), (10, 1, "truncated"), (20, 3, ""))
    assert found(buffer) == [
        ([0, 1, 2], [*WHOLE, "is_terminal"], False),
        ([10, 11], WHOLE, False),
        ([20, 21, 22, 23], ["is_first"], True),
    ]


def test_every_column_comes_back(make):
    buffer = make()
    add(buffer, (4, 2, "terminal"))
    source = buffer_source(buffer)
    (episode,) = source.read(None)
    assert {name: column.tolist() for name, column in episode.columns.items()} == {
        "observation": [4, 5, 6],
        "action": [1004, 1005, 0],
        "reward": [2.0, 2.5, 0.0],
        "discount": [1.0, 0.0, 0.0],
        "is_first": [True, False, False],
        "is_last": [False, False, True],
        "is_terminal": [False, False, True],
    }
    specs = {name: tf.TensorSpec(column.shape[1:], column.dtype) for name, column in episode.columns.items()}
    assert source.step_spec == specs
    assert source.metadata_spec == {"partial": FLAG}
    assert source.num_episodes is None
    assert source.name == type(buffer).__name__
    assert buffer_source(buffer, name="mine").name == "mine"


def test_streams_come_one_after_the_other(make):
    buffer = make(streams=2)
    add(buffer, (0, 1, "truncated"), (10, 2, "truncated"))
    if isinstance(buffer, EpisodicReplayBuffer):  # in the order in which they began
        assert [observations for observations, _, _ in found(buffer)] == [[0, 1], [0, 1], [10, 11, 12], [10, 11, 12]]
    else:
        assert [observations for observations, _, _ in found(buffer)] == [[0, 1], [10, 11, 12]] * 2


def test_an_empty_buffer_has_no_episodes(make):
    assert found(make()) == []


def test_a_seed_gives_the_same_episodes_in_another_order(make):
    buffer = make()
    add(buffer, *((10 * number, 1, "truncated") for number in range(6)))
    in_order = found(buffer)
    shuffled = found(buffer, seed=3)
    assert shuffled != in_order
    assert sorted(shuffled) == in_order
    assert found(buffer, seed=3) == shuffled


def test_each_read_gives_what_is_held_then_and_takes_nothing(make):
    buffer = make()
    source = buffer_source(buffer)
    add(buffer, (0, 2, "terminal"))
    assert len(list(source.read(None))) == len(list(source.read(None))) == 1
    add(buffer, (10, 1, "terminal"))
    assert len(list(source.read(None))) == 2
    assert buffer.stats().sampled == 0


def test_ids_name_an_episode_for_ever(make):
    buffer = make()
    add(buffer, (0, 1, "terminal"), (10, 1, "terminal"))
    before = [episode.id for episode in buffer_source(buffer).read(None)]
    add(buffer, (20, 1, "terminal"))
    after = [episode.id for episode in buffer_source(buffer).read(None)]
    assert after[:2] == before
    assert len(set(after)) == 3


def test_a_closed_buffer_is_refused(make):
    buffer = make()
    buffer.close()
    with pytest.raises(ValueError, match="is closed"):
        list(buffer_source(buffer).read(None))


def test_what_was_evicted_at_the_beginning_is_told():
    buffer = TFUniformReplayBuffer(TRANSITION, 1, 4)
    add(buffer, (0, 4, "terminal"), (10, 2, ""))
    assert found(buffer) == [([2, 3, 4], ["is_last", "is_terminal"], True), ([10, 11, 12], ["is_first"], True)]


def test_transitions_of_several_episodes_in_one_stream_without_ends_are_not_joined():
    buffer = TFUniformReplayBuffer(TRANSITION, 1, 10)
    buffer.add_sequence(transitions((0, 2, ""), (7, 1, ""), (8, 1, ""), (5, 1, "")))
    assert found(buffer) == [([0, 1, 2], ["is_first"], True), ([7, 8, 9], [], True), ([5, 6], [], True)]


def test_a_stream_that_was_ended_by_hand_stays_partial():
    buffer = TFUniformReplayBuffer(TRANSITION, 1, 10)
    add(buffer, (0, 2, ""))
    buffer.end_stream()
    add(buffer, (2, 1, "terminal"))
    assert found(buffer) == [([0, 1, 2], ["is_first"], True), ([2, 3], [*WHOLE, "is_terminal"], False)]


def test_deleted_frames_part_an_episode():
    buffer = TFUniformReplayBuffer(TRANSITION, 1, 10)
    ids = add(buffer, (0, 5, "terminal"))
    buffer.delete(ids[0, 2:3])
    assert found(buffer) == [([0, 1, 2], ["is_first"], True), ([3, 4, 5], ["is_last", "is_terminal"], True)]


def test_streams_that_go_apart_each_have_their_own():
    buffer = TFUniformReplayBuffer(TRANSITION, 2, 3)
    buffer.let_streams_part()
    for first, num, ending, stream in [(0, 2, "terminal", 0), (50, 4, "truncated", 1), (10, 2, "", 0)]:
        frames = transitions((first, num, ending))
        buffer.add_sequence(frames, end_of_episode=ends_of(frames), streams=[stream])
    assert found(buffer) == [
        ([1, 2], ["is_last", "is_terminal"], True),
        ([10, 11, 12], ["is_first"], True),
        ([51, 52, 53, 54], ["is_last"], True),
    ]


FRAMES = {
    "transition": {"observation": NUMBER, "next_observation": NUMBER, "is_terminal": FLAG, "is_truncated": FLAG},
    "trajectory": {"observation": NUMBER, "step_type": tf.TensorSpec([], tf.int32), "discount": FLOAT},
    "step": STEP,
}


def frame_of(layout, t, num, terminal):
    """Frame `t` of an episode of `num` steps, without its observation."""
    if layout == "transition":
        is_over = t == num - 2
        return {"is_terminal": is_over and terminal, "is_truncated": is_over and not terminal}
    if layout == "trajectory":
        return {
            "step_type": 0 if t == 0 else 2 if t == num - 1 else 1,
            "discount": 0.0 if terminal and t == num - 2 else 1.0,
        }
    return {"is_first": t == 0, "is_last": t == num - 1, "is_terminal": terminal and t == num - 1}


def held_lately(layout, life, max_length):
    """What a list of `(number, t, num, terminal)` gives of its newest frames, in short as `told` says it."""
    expected = []
    kept = life[max(0, len(life) - max_length) :]
    for number in sorted({each[0] for each in kept}):
        times = [t for each, t, _, _ in kept if each == number]
        num, terminal = next(each[2:] for each in kept if each[0] == number)
        steps = [*times, times[-1] + 1] if layout == "transition" else times
        begins, ends = steps[0] == 0, steps[-1] == num - 1
        if layout == "trajectory" and times == [num - 1]:
            continue  # a boundary frame alone
        flags = ["is_first"] * begins + ["is_last"] * ends + ["is_terminal"] * (ends and terminal)
        expected.append(([100 * number + t for t in steps], flags, not (begins and ends)))
    return expected


@pytest.mark.parametrize("layout", FRAMES)
@settings(max_examples=40)
@given(
    st.lists(st.lists(st.tuples(st.integers(2, 5), st.booleans()), max_size=6), min_size=1, max_size=3),
    st.integers(0, 14),
    st.integers(1, 7),
)
def test_a_ring_gives_what_a_naive_list_holds(layout, scripts, num_steps, max_length):
    lives = []
    for script in scripts:
        life = []
        for number, (num, terminal) in enumerate([*script, (num_steps + 3, False)]):
            life += [(number, t, num, terminal) for t in range(num - (layout == "transition"))]
        lives.append(life[:num_steps])
    buffer = TFUniformReplayBuffer(FRAMES[layout], len(scripts), max_length)
    for step_number in range(num_steps):
        rows = []
        for life in lives:
            number, t, num, terminal = life[step_number]
            row = {"observation": 100 * number + t, **frame_of(layout, t, num, terminal)}
            rows.append(row | ({"next_observation": 100 * number + t + 1} if layout == "transition" else {}))
        frame = {
            name: np.array([row[name] for row in rows], spec.dtype.as_numpy_dtype)
            for name, spec in FRAMES[layout].items()
        }
        buffer.add_batch(frame, end_of_episode=ends_of(frame) if layout == "transition" else None)
    assert found(buffer) == [each for life in lives for each in held_lately(layout, life, max_length)]


def columns_of(number, num, terminal):
    """An episode of RLDS: observations 100 * number + [0, 1, ...], rewards and actions with it."""
    steps = np.arange(num)
    return {
        "observation": {"state": 100 * number + steps, "image": np.full([num, 2, 2], number, np.uint8)},
        "action": steps + 7,
        "reward": (steps / 4).astype(np.float32),
        "discount": np.where(terminal & (steps == num - 2), 0, 1).astype(np.float32),
        "is_first": steps == 0,
        "is_last": steps == num - 1,
        "is_terminal": terminal & (steps == num - 1),
    }


def source_of(*episodes):
    """A source of `(num_steps, terminal)` each."""
    all_columns = [columns_of(number, *episode) for number, episode in enumerate(episodes)]
    spec = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), all_columns[0])
    return EpisodeSource(
        "mine", spec, lambda seed: (RawEpisode(str(number), columns) for number, columns in enumerate(all_columns))
    )


def check_round_trip(buffer, layout, episodes):
    fill(buffer, load_rlds(source_of(*episodes), layout=layout), progress=False)
    got = list(buffer_source(buffer).read(None))
    assert len(got) == len(episodes)
    for number, (episode, script) in enumerate(zip(got, episodes, strict=True)):
        assert not episode.metadata["partial"]
        steps = columns_of(number, *script)
        # What RLDS leaves without a meaning.
        steps["action"][-1] = steps["reward"][-1] = 0
        steps["discount"][-1] = 0 if steps["is_terminal"][-1] else 1
        assert sorted(episode.columns) == sorted(steps)
        tf.nest.map_structure(np.testing.assert_array_equal, episode.columns, steps)
        tf.nest.map_structure(
            lambda one, other: np.testing.assert_equal(one.dtype, other.dtype), episode.columns, steps
        )


LAYOUTS = ("transition", "trajectory", "step")


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25)
@given(episodes=st.lists(st.tuples(st.integers(2, 5), st.booleans()), min_size=1, max_size=4))
def test_what_was_loaded_comes_back_equal(layout, episodes):
    spec = load_rlds(source_of(*episodes), layout=layout).element_spec
    check_round_trip(TFUniformReplayBuffer(spec, 1, 50), layout, episodes)
    check_round_trip(EpisodicReplayBuffer(spec, 10), layout, episodes)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_loaded_comes_back_equal_from_the_other_buffers(layout):
    episodes = [(3, True), (2, False), (4, True)]
    spec = load_rlds(source_of(*episodes), layout=layout).element_spec
    check_round_trip(TFPrioritizedReplayBuffer(spec, 1, 50), layout, episodes)
    # What may stand before the first transition of a rollout is up to its frames: they tell ends.
    rollout = RolloutBuffer(spec, 1, 50, final_frame="ordinary" if layout == "transition" else "auto")
    check_round_trip(rollout, layout, episodes)


def test_a_whole_episode_and_the_rest_of_one_are_loaded_again():
    episodes = load_rlds(source_of((4, True), (3, False)), layout="trajectory")
    buffer = TFUniformReplayBuffer(episodes.element_spec, 1, 5)  # of 7 frames
    fill(buffer, episodes, progress=False)
    source = buffer_source(buffer)
    rest, whole = source.read(None)
    assert rest.metadata["partial"]
    assert not rest.columns["is_first"].any()
    assert rest.columns["observation"]["state"].tolist() == [2, 3]
    assert not whole.metadata["partial"]
    again = load_rlds(source, layout="transition")
    assert [frames["observation"]["state"].tolist() for frames in again] == [[2], [100, 101]]
    assert [frames["is_terminal"].tolist() for frames in again] == [[True], [False, False]]
    assert "is_first" in str(again.report)


def test_what_is_written_to_a_folder_is_loaded_again_with_what_is_partial(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    buffer = TFUniformReplayBuffer(TRANSITION, 1, 5)
    add(buffer, (0, 3, "terminal"), (10, 2, "truncated"), (20, 1, ""))
    write_rlds(buffer_source(buffer), tmp_path / "held", name="held", progress=False)
    episodes = load_rlds(tmp_path / "held", layout="transition")
    got = [
        (episode.frames["observation"].tolist(), episode.is_terminal, bool(episode.metadata["partial"]))
        for episode in episodes.start_pass()
    ]
    assert got == [([1, 2], True, True), ([10, 11], False, False), ([20], False, True)]


# What goes on meanwhile

LARGE = {
    "observation": tf.TensorSpec([512, 1024], tf.float32),
    "next_observation": tf.TensorSpec([512, 1024], tf.float32),
    "is_terminal": FLAG,
    "is_truncated": FLAG,
}


def large(first, num, *, terminal):
    """Transitions of 4 MB each, so that a block is one episode."""
    numbers = np.arange(first, first + num + 1, dtype=np.float32)[:, None, None]
    observation = np.broadcast_to(numbers, [num + 1, 512, 1024])
    return {
        "observation": observation[None, :-1],
        "next_observation": observation[None, 1:],
        "is_terminal": np.array([[terminal and t == num - 1 for t in range(num)]]),
        "is_truncated": np.zeros([1, num], bool),
    }


def add_large(buffer, first, num, *, terminal=True):
    frames = large(first, num, terminal=terminal)
    buffer.add_sequence(frames, end_of_episode=frames["is_terminal"])


def told_large(episode):
    return episode.columns["observation"][:, 0, 0].tolist(), bool(episode.metadata["partial"])


def test_what_is_evicted_meanwhile_is_left_out_counted_and_never_mixed(caplog):
    buffer = TFUniformReplayBuffer(LARGE, 1, 6)
    for first in (0, 10, 20):
        add_large(buffer, first, 2)
    reading = buffer_source(buffer).read(None)
    assert told_large(next(reading)) == ([0, 1, 2], False)
    add_large(buffer, 30, 5)  # over 0, 1, 10, 11 and 20
    with caplog.at_level(logging.WARNING):
        assert [told_large(episode) for episode in reading] == [([21, 22], True)]
    assert buffer.stats().skipped == 3
    assert "3 frames were evicted before their episodes were read; left out." in caplog.text


def test_what_was_lost_while_it_was_read_is_in_the_report_of_a_write(tmp_path):
    buffer = TFUniformReplayBuffer(LARGE, 1, 6)
    for first in (0, 10, 20):
        add_large(buffer, first, 2)
    source = buffer_source(buffer)

    def read(seed):
        for index, episode in enumerate(source.read(seed)):
            if index == 0:
                add_large(buffer, 30, 5)
            yield episode

    report = write_rlds(dataclasses.replace(source, read=read), tmp_path / "data", name="mine", progress=False)
    assert report.notes == ("3 frames were evicted before their episodes were read; left out",)
    assert write_rlds(source, tmp_path / "again", name="mine", progress=False).notes == ()


def test_whole_episodes_that_are_evicted_meanwhile_are_left_out_and_growing_ones_stay_as_they_were():
    buffer = EpisodicReplayBuffer(TRANSITION, 3, max_frames=100)
    add(buffer, (0, 2, "terminal"), (10, 2, "terminal"), (20, 2, ""))
    reading = buffer_source(buffer).read(None)
    assert told(next(reading))[0] == [0, 1, 2]
    add(buffer, (22, 1, "truncated"), (30, 1, "terminal"), (40, 1, "terminal"))
    assert [told(episode) for episode in reading] == [([20, 21, 22], ["is_first"], True)]
    assert buffer.stats().skipped == 2


@pytest.mark.parametrize("kind", ["ring", "episodic", "reservoir"])
def test_no_episode_is_torn_while_another_thread_writes(kind):
    buffer = {
        "ring": lambda: TFUniformReplayBuffer(TRANSITION, 1, 300),
        "episodic": lambda: EpisodicReplayBuffer(TRANSITION, 30, max_frames=300),
        "reservoir": lambda: ReservoirReplayBuffer(TRANSITION, 300),
    }[kind]()
    frames = [transitions((100 * number, 10, "terminal")) for number in range(1500)]
    for each in frames[:30]:
        buffer.add_sequence(each, end_of_episode=ends_of(each))

    def write():
        for each in frames[30:]:
            buffer.add_sequence(each, end_of_episode=ends_of(each))

    writer = threading.Thread(target=write)
    source = buffer_source(buffer)
    writer.start()
    num_read = 0
    while writer.is_alive() or not num_read:
        for episode in source.read(None):
            columns, num = episode.columns, len(episode.columns["observation"])
            first = int(columns["observation"][0])
            assert columns["observation"].tolist() == list(range(first, first + num))
            assert columns["action"][:-1].tolist() == list(range(1000 + first, 1000 + first + num - 1))
            if kind != "reservoir":
                assert (first % 100 == 0) == bool(columns["is_first"][0])
            assert episode.metadata["partial"] == (kind == "reservoir" or first % 100 != 0)
            num_read += 1
    writer.join()


def test_an_episodic_buffer_gives_what_is_kept_beside_its_episodes(caplog):
    buffer = EpisodicReplayBuffer(TRANSITION, 5)
    add(buffer, (0, 1, "terminal"), (10, 1, "terminal"))
    for number, words in enumerate(["left", "right hand"]):
        buffer.set_metadata(number, {"seed": number, "task": words, "goal": [0.5, number], "odd": object()})
    with caplog.at_level(logging.WARNING):
        source = buffer_source(buffer)
    assert source.metadata_spec == {
        "goal": tf.TensorSpec([2], tf.float64),
        "seed": NUMBER,
        "task": tf.TensorSpec([], tf.string),
        "partial": FLAG,
    }
    assert "episode metadata 'odd' is not written" in caplog.text
    second = list(source.read(None))[1].metadata
    assert second["task"] == b"right hand"
    assert second["seed"] == 1
    assert second["goal"].tolist() == [0.5, 1.0]
    add(buffer, (20, 1, "terminal"))
    with pytest.raises(ValueError, match=r"episode metadata 'goal' of the episode with frame \d+: expected \(2,\)"):
        list(source.read(None))


def test_a_reservoir_gives_transitions_of_two_steps():
    buffer = ReservoirReplayBuffer(TRANSITION, 3, seed=0)
    buffer.add_sequence(transitions((0, 3, "terminal"), (10, 4, "truncated")))
    got = found(buffer)
    assert len(got) == 3
    assert all(observations[1] == observations[0] + 1 and partial for observations, _, partial in got)
    held = buffer.gather_all()["observation"].numpy()[0].tolist()
    assert [observations[0] for observations, _, _ in got] == held
    assert {tuple(flags) for _, flags, _ in got} <= {(), ("is_last",), ("is_last", "is_terminal")}
    shuffled = [found(buffer, seed=seed) for seed in range(5)]
    assert all(sorted(each) == sorted(got) for each in shuffled)
    assert any(each != got for each in shuffled)


def test_a_reservoir_of_other_frames_is_refused():
    with pytest.raises(ValueError, match=r"ReservoirReplayBuffer holds single frames .* of layout 'step'.*layout='tra"):
        buffer_source(ReservoirReplayBuffer(STEP, 3))


def test_to_steps_makes_steps_of_any_spec():
    buffer = TFUniformReplayBuffer({"obs": NUMBER, "done": FLAG}, 1, 10)
    done = np.array([[False, True, False]])
    buffer.add_sequence({"obs": np.array([[1, 2, 3]]), "done": done}, end_of_episode=done)
    with pytest.raises(ValueError, match="Give to_steps"):
        buffer_source(buffer)
    source = buffer_source(
        buffer, to_steps=lambda frames: {"observation": frames["obs"], "is_terminal": frames["done"]}
    )
    assert [told(episode) for episode in source.read(None)] == [
        ([1, 2], [*WHOLE, "is_terminal"], False),
        ([3], ["is_first"], True),
    ]


# Tables on a server


def step(observation, *, first=False, last=False, terminal=False):
    return {
        "observation": np.array([observation]),
        "is_first": np.array([first]),
        "is_last": np.array([last]),
        "is_terminal": np.array([terminal]),
    }


@pytest.fixture(scope="module")
def served():
    """One server with all tables that the tests below want."""
    pytest.importorskip("reverb")
    from replayfeed.buffers import ReplayServer
    from replayfeed.buffers.rate_limiters import SampleToInsertRatio

    tables = [
        TableConfig("pairs", TRANSITION, 100, sequence_length=2, scannable=True),
        TableConfig("few", TRANSITION, 4, sequence_length=2, scannable=True),
        TableConfig("short", TRANSITION, 4, scannable=True),
        TableConfig("shared", TRANSITION, 100, scannable=True),
        TableConfig("apart", TRANSITION, 100, stride=2, scannable=True),
        TableConfig("steps", STEP, 100, sequence_length=3, short="pad", scannable=True),
        TableConfig("limited", TRANSITION, 100, rate_limiter=SampleToInsertRatio(2.0, 1, 10.0), scannable=True),
        TableConfig("closed", TRANSITION, 100, scannable=False),
        TableConfig("episodes", TRANSITION, 10, sequence_length=None, max_episode_length=10, scannable=True),
    ]
    with ReplayServer(tables) as server:
        yield server


def served_buffer(served, table, spec=TRANSITION, length=1, **arguments):
    return ReverbReplayBuffer(spec, table, length, f"localhost:{served.port}", timeout_s=20.0, **arguments)


def test_windows_that_overlap_give_each_frame_once(served):
    with served_buffer(served, "pairs", length=2, batch_size=2) as buffer:
        add(buffer, (0, 4, "terminal"), (10, 2, "truncated"), (20, 1, "terminal"), (30, 3, ""))
        source = buffer_source(buffer)
        assert [told(episode) for episode in source.read(None)] == 2 * [
            ([0, 1, 2, 3, 4], [*WHOLE, "is_terminal"], False),
            ([10, 11, 12], WHOLE, False),
            # The episode of one frame gave no item, so that what comes next is not known to begin.
            ([30, 31, 32, 33], [], True),
        ]
        assert source.name == f"table 'pairs' at localhost:{served.port}"
        shuffled = [told(episode)[0] for episode in source.read(1)]
        assert sorted(shuffled) == sorted(2 * [[0, 1, 2, 3, 4], [10, 11, 12], [30, 31, 32, 33]])


def test_a_table_evicts_the_beginning_of_an_episode(served):
    with served_buffer(served, "short") as buffer:
        add(buffer, (0, 4, "terminal"), (10, 2, ""))
        assert found(buffer) == [([2, 3, 4], ["is_last", "is_terminal"], True), ([10, 11, 12], ["is_first"], True)]


def test_a_table_of_windows_evicts_the_beginning_of_an_episode(served):
    with served_buffer(served, "few", length=2) as buffer:
        add(buffer, (0, 4, "terminal"), (10, 3, "truncated"))  # the newest 4 of 5 pairs stay
        assert found(buffer) == [
            ([1, 2, 3, 4], ["is_last", "is_terminal"], True),
            ([10, 11, 12, 13], WHOLE, False),
        ]


def test_what_a_table_lacks_in_the_middle_parts_an_episode_and_tells_no_end(served):
    with served_buffer(served, "apart") as buffer:
        add(buffer, (0, 5, "terminal"))  # frames 0, 2 and 4
        assert found(buffer) == [
            ([0, 1], ["is_first"], True),
            ([2, 3], [], True),
            ([4, 5], ["is_last", "is_terminal"], True),
        ]


def test_padding_of_a_table_is_no_frame(served):
    with served_buffer(served, "steps", STEP, 3) as buffer:
        for observation, flags in [
            (0, {"first": True}),
            (1, {}),
            (2, {"last": True, "terminal": True}),
            (10, {"first": True}),
        ]:
            buffer.add_batch(step(observation, **flags))
        buffer.add_batch(step(11, last=True))
        assert found(buffer) == [([0, 1, 2], [*WHOLE, "is_terminal"], False), ([10, 11], WHOLE, False)]


def test_reading_takes_nothing_out_of_a_table_and_its_limiter_does_not_notice(served):
    with served_buffer(served, "limited") as writer:
        add(writer, (0, 3, "terminal"))
        writer.flush()
        before = writer.get_table_info()
        with served_buffer(served, "limited") as reader:  # as another process would, by its address
            for _ in range(2):
                assert found(reader) == [([0, 1, 2, 3], [*WHOLE, "is_terminal"], False)]
        after = writer.get_table_info()
        assert after.current_size == before.current_size == 3
        for name in ("insert_stats", "sample_stats"):
            one, other = (getattr(info.rate_limiter_info, name) for info in (before, after))
            assert one.completed == other.completed


def test_what_several_programs_wrote_comes_stream_by_stream(served):
    with served_buffer(served, "shared") as one, served_buffer(served, "shared") as other:
        add(one, (0, 2, "terminal"))
        add(other, (50, 2, "truncated"), (60, 1, ""))
        one.flush()
        other.flush()
        with served_buffer(served, "shared") as reader:
            assert sorted(found(reader)) == [
                ([0, 1, 2], [*WHOLE, "is_terminal"], False),
                ([50, 51, 52], WHOLE, False),
                ([60, 61], ["is_first"], True),
            ]


def test_a_table_that_cannot_be_scanned_is_refused(served):
    with served_buffer(served, "closed") as buffer, pytest.raises(ValueError, match="scannable=True"):
        buffer_source(buffer)


def test_whole_episodes_of_a_table_come_whole(served):
    address = f"localhost:{served.port}"
    with ReverbEpisodicReplayBuffer(TRANSITION, "episodes", server_address=address, timeout_s=20.0) as buffer:
        add(buffer, (0, 2, "terminal"), (10, 1, "truncated"), (20, 2, ""))
        assert found(buffer) == [([0, 1, 2], [*WHOLE, "is_terminal"], False), ([10, 11], WHOLE, False)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_loaded_comes_back_equal_from_a_table(layout):
    pytest.importorskip("reverb")
    episodes = [(4, True), (3, False), (5, True)]
    spec = load_rlds(source_of(*episodes), layout=layout).element_spec
    with ReverbReplayBuffer.local(spec, max_size=100, sequence_length=2, timeout_s=20.0) as buffer:
        check_round_trip(buffer, layout, episodes)


def test_a_group_gives_one_of_its_tables():
    pytest.importorskip("reverb")
    tables = [
        TableConfig(name, TRANSITION, 100, sequence_length=length, scannable=True)
        for name, length in [("one", 1), ("pairs", 2)]
    ]
    with ReverbTableGroup.local(TRANSITION, tables, timeout_s=20.0) as group:
        frames = transitions((0, 3, "terminal"))
        group.add_sequence(frames, end_of_episode=ends_of(frames))
        for table in ("one", "pairs"):
            assert found(group[table]) == [([0, 1, 2, 3], [*WHOLE, "is_terminal"], False)]
        with pytest.raises(TypeError, match=r"a ReverbTableGroup cannot be read; .*group\['name'\]"):
            buffer_source(group)
