"""Each kind of buffer, filled: streams, agents, priorities, what is refused, and what the report says of capacity."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    BufferConfig,
    EpisodicReplayBuffer,
    MultiAgentReplayBuffer,
    ReservoirReplayBuffer,
    ReverbAgentTables,
    ReverbReplayBuffer,
    RolloutBuffer,
    TableConfig,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
)
from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.episodes import Episode
from replayfeed.pipelines.fill import fill
from replayfeed.pipelines.rlds_read import load_rlds


def _dataset(*lengths):
    """Episodes of these lengths in transitions; observations count on over all of them, as in `0 1 2 | 3 4`."""
    starts = np.cumsum((0, *(length + 1 for length in lengths)))

    def generate():
        for start, length in zip(starts, lengths, strict=False):
            steps = np.arange(start, start + length + 1)
            yield {"steps": {"observation": steps, "reward": steps / 4, "is_terminal": steps == start + length}}

    signature = {
        "observation": tf.TensorSpec([None], tf.int64),
        "reward": tf.TensorSpec([None], tf.float32),
        "is_terminal": tf.TensorSpec([None], tf.bool),
    }
    return tf.data.Dataset.from_generator(generate, output_signature={"steps": signature})


def _episodes(*lengths, layout="transition"):
    return load_rlds(_dataset(*lengths), layout=layout)


_STEP_SPEC = {
    "observation": tf.TensorSpec([], tf.int64),
    "action": tf.TensorSpec([], tf.int64),
    "is_terminal": tf.TensorSpec([], tf.bool),
}


def _of_agents(*lengths_and_agents, layout="transition", actions=None, agent_field="who"):
    """Episodes from `(length, agent)` or `(length, agent, id)`, of which `metadata['who']` tells the agent."""
    raw, start = [], 0
    for index, (length, agent, *name) in enumerate(lengths_and_agents):
        steps = np.arange(start, start + length + 1)
        columns = {
            "observation": steps,
            "action": steps * 0 if actions is None else np.array(actions[index]),
            "is_terminal": steps == start + length,
        }
        identity = name[0] if name else str(index)
        raw.append(RawEpisode(str(index), columns, metadata={"who": agent.encode()}, id=identity))
        start += length + 1
    source = EpisodeSource(
        "mine", _STEP_SPEC, lambda seed: iter(raw), metadata_spec={"who": tf.TensorSpec([], tf.string)}
    )
    return load_rlds(source, layout=layout, agent_field=agent_field)


def _rows(buffer, name="observation"):
    """What each stream holds."""
    return [row.numpy().tolist() for row in buffer.gather_all()[name]]


# Streams


def _uniform(spec, **arguments):
    return TFUniformReplayBuffer(spec, max_length=20, **arguments)


def _reverb(spec, **arguments):
    return ReverbReplayBuffer.local(spec, max_size=100, sequence_length=2, **arguments)


@pytest.mark.parametrize("make", [_uniform, _reverb], ids=["uniform", "reverb"])
def test_each_episode_goes_as_a_whole_into_the_stream_with_the_fewest_frames(make):
    episodes = _episodes(4, 2, 1, 3, 2)
    with make(episodes.element_spec, batch_size=2) as buffer:
        report = fill(buffer, episodes, progress=False)
        # Of lengths 4, 2, 1, 3, 2: the first into stream 0, the next three into stream 1, the last into 0 again.
        if make is _uniform:
            assert _rows(buffer) == [[0, 1, 2, 3, 14, 15], [5, 6, 8, 10, 11, 12]]
        windows = [
            items["observation"].numpy().tolist()
            for items, _ in buffer.as_dataset(window=Window(2), single_deterministic_pass=True)
        ]
    assert sorted(windows) == [[0, 1], [1, 2], [2, 3], [5, 6], [10, 11], [11, 12], [14, 15]]
    assert (report.episodes, report.frames) == (5, 12)


def test_streams_can_be_chosen():
    episodes = _episodes(2, 1, 1)
    buffer = _uniform(episodes.element_spec, batch_size=3)
    fill(buffer, episodes, streams=[2, 0], progress=False)
    fill(buffer, episodes, streams=2, progress=False)
    assert _rows(buffer) == [[0, 1], [], [3, 5, 0, 1, 3, 5]]


def test_an_episodic_buffer_of_several_streams_holds_each_episode():
    episodes = _episodes(3, 1, 2)
    buffer = EpisodicReplayBuffer(episodes.element_spec, capacity=10, batch_size=2)
    fill(buffer, episodes, progress=False)
    assert [episode.items["observation"].tolist() for episode in buffer.episodes()] == [[0, 1, 2], [4], [6, 7]]


def test_streams_that_are_none_are_refused():
    episodes = _episodes(2)
    buffer = _uniform(episodes.element_spec, batch_size=2)
    for streams in (2, [0, 0], [-1], [0.5], "0"):
        with pytest.raises(ValueError, match="streams: expected int"):
            fill(buffer, episodes, streams=streams)
    with pytest.raises(ValueError, match="streams: expected at least one, got none"):
        fill(buffer, episodes, streams=[])
    assert len(buffer) == 0


def test_streams_that_go_side_by_side_already_are_refused_with_the_way_out():
    episodes = _episodes(2)
    buffer = _uniform(episodes.element_spec, batch_size=2)
    frames = tf.nest.map_structure(lambda spec: np.zeros([2, *spec.shape], spec.dtype.as_numpy_dtype), buffer.data_spec)
    buffer.add_batch(frames)
    with pytest.raises(
        ValueError, match=r"2 streams, which are written side by side so far.*let_streams_part\(\) before"
    ):
        fill(buffer, episodes)
    assert len(buffer) == 2


def test_what_several_streams_do_not_keep_is_noted():
    episodes = _episodes(8, 8, 2)
    buffer = TFUniformReplayBuffer(episodes.element_spec, 2, max_length=5)
    report = fill(buffer, episodes, progress=False)
    assert report.notes[-1] == (
        "the buffer holds 10 frames, 5 of each stream: the oldest 8 of the loaded ones were evicted again"
    )
    assert _rows(buffer) == [[5, 6, 7, 18, 19], [12, 13, 14, 15, 16]]


# Kinds of buffers


def test_a_rollout_takes_episodes_until_it_is_full():
    episodes = _episodes(3, 2, 2)
    buffer = RolloutBuffer(episodes.element_spec, batch_size=1, num_steps=5, final_frame="ordinary")
    with pytest.raises(ValueError, match="^episode 2: .*Nothing of it was written; the 2 before it are in the buffer"):
        fill(buffer, episodes, progress=False)
    assert _rows(buffer) == [[0, 1, 2, 4, 5]]
    with pytest.raises(ValueError, match="2 streams, and a rollout has a frame of each .* build it with batch_size=1"):
        fill(RolloutBuffer(episodes.element_spec, batch_size=2, num_steps=5, final_frame="ordinary"), episodes)


def test_a_reservoir_says_that_it_keeps_a_sample():
    episodes = _episodes(4, 4)
    buffer = ReservoirReplayBuffer(episodes.element_spec, capacity=5, seed=0)
    report = fill(buffer, episodes, progress=False)
    assert (len(buffer), buffer.num_seen, report.frames) == (5, 8, 8)
    assert report.notes[-1] == "the reservoir holds 5 frames: each that it was offered with the same chance"
    # A final observation is no frame that it is offered.
    episodes = _episodes(2, 3, layout="trajectory")
    report = fill(ReservoirReplayBuffer(episodes.element_spec, capacity=5), episodes, progress=False)
    assert not any("reservoir" in note for note in report.notes)


def test_an_episodic_buffer_keeps_what_the_episodes_say_of_themselves():
    episodes = _of_agents((2, "wolf"), (1, "sheep"))
    buffer = EpisodicReplayBuffer(episodes.element_spec, capacity=3, batch_size=2)
    fill(buffer, episodes, progress=False)
    assert [dict(episode.metadata) for episode in buffer.episodes()] == [{"who": b"wolf"}, {"who": b"sheep"}]
    items, info = buffer.sample(20, num_steps=1)
    told = [metadata["who"] for metadata in buffer.metadata(info.keys)]
    assert told == [b"wolf" if number < 2 else b"sheep" for number in items["observation"].numpy()[:, 0]]


def test_an_episodic_buffer_says_how_many_episodes_it_let_go():
    episodes = _episodes(1, 2, 3, 1)
    buffer = EpisodicReplayBuffer(episodes.element_spec, capacity=3)
    report = fill(buffer, episodes, progress=False)
    assert report.notes[-1] == "the buffer holds 3 episodes: the oldest 1 of the loaded ones were evicted again"


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_priorities_are_those_that_a_function_of_the_episode_gives(layout):
    episodes = _episodes(2, 1, layout=layout)
    buffer = TFPrioritizedReplayBuffer(episodes.element_spec, 1, 20, alpha=1.0)

    def only_observation_1(episode: Episode):
        return episode.steps.observation[: episode.num_frames] == 1

    fill(buffer, episodes, priorities=lambda episode: only_observation_1(episode).astype(np.float64), progress=False)
    items, info = buffer.sample(50)
    observations = items["observation"] if layout == "transition" else items.observation
    assert set(observations.numpy().tolist()) == {1}
    np.testing.assert_array_equal(info.probabilities, np.ones(50))


def test_priorities_that_are_none_leave_nothing_of_their_episode():
    episodes = _episodes(2, 3)
    buffer = TFPrioritizedReplayBuffer(episodes.element_spec, 1, 20)
    with pytest.raises(ValueError, match="^episode 1: priorities"):
        fill(buffer, episodes, priorities=lambda episode: [1.0, 2.0], progress=False)
    assert _rows(buffer) == [[0, 1]]


# Agents


def test_independent_agents_get_the_episodes_that_name_them():
    episodes = _of_agents((2, "wolf"), (1, "sheep"), (2, "wolf"))
    specs = dict.fromkeys(("wolf", "sheep"), episodes.element_spec)
    buffer = MultiAgentReplayBuffer(specs, lambda agent: agent, BufferConfig("uniform", 100))
    report = fill(buffer, episodes, progress=False)
    assert (report.episodes, report.frames) == (3, 5)
    held = buffer.gather_all()
    assert {agent: frames["observation"].to_list() for agent, frames in held.items()} == {
        "wolf": [[0, 1, 5, 6]],
        "sheep": [[3]],
    }
    dataset = buffer.as_dataset(window=Window(2), single_deterministic_pass=True, policy="wolf")
    assert [items["observation"].numpy().tolist() for items, _ in dataset] == [[0, 1], [5, 6]]


def test_agents_of_one_policy_share_a_buffer_and_no_window():
    episodes = _of_agents((2, "a"), (2, "b"), (1, "a"))
    specs = dict.fromkeys(("a", "b"), episodes.element_spec)
    buffer = MultiAgentReplayBuffer(specs, lambda agent: "both", BufferConfig("prioritized", 100))
    fill(buffer, episodes, priorities=lambda episode: np.ones(episode.num_frames), progress=False)
    dataset = buffer.as_dataset(window=Window(2), single_deterministic_pass=True, policy="both")
    assert sorted(items["observation"].numpy().tolist() for items, _ in dataset) == [[0, 1], [3, 4]]


_MAKERS = {
    "uniform": lambda spec: BufferConfig("uniform", 120),
    "episodic": lambda spec: BufferConfig("episodic", 60, max_frames=600),
}


@pytest.mark.parametrize("kind", ["uniform", "episodic"])
def test_the_episodes_of_an_agent_go_into_the_environment_where_it_has_the_fewest_frames(kind):
    episodes = _of_agents((3, "a"), (1, "b"), (2, "a"), (2, "a"), (1, "b"), (2, "a"))
    specs = dict.fromkeys(("a", "b"), episodes.element_spec)
    buffer = MultiAgentReplayBuffer(specs, lambda agent: "both", _MAKERS[kind](specs), batch_size=2)
    report = fill(buffer, episodes, progress=False)
    assert (report.episodes, report.frames) == (6, 11)
    held = {agent: frames["observation"].to_list() for agent, frames in buffer.gather_all().items()}
    # Of lengths 3, 2, 2, 2: the first into environment 0, the next two into 1, the last into 0 again.
    expected = {"a": [[0, 1, 2, 14, 15], [6, 7, 9, 10]], "b": [[4], [12]]}
    if kind == "uniform":
        assert held == expected
    assert sorted(sum(held["a"], [])) == sorted(sum(expected["a"], []))
    windows = buffer.as_dataset(window=Window(2), single_deterministic_pass=True, policy="both")
    found = sorted((items["observation"].numpy().tolist(), info.times.numpy().tolist()) for items, info in windows)
    assert [pair for pair, _ in found] == [[0, 1], [1, 2], [6, 7], [9, 10], [14, 15]]
    # Each environment counts moments of its own; that of b is one of them.
    assert [times for _, times in found] == [[0, 1], [1, 2], [0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_joint_episodes_go_into_the_environment_with_the_fewest_moments(layout):
    episodes = _of_agents(
        (3, "a", "x"), (1, "b", "x"), (2, "b", "y"), (1, "a", "z"), (2, "b", "z"), (1, "a", "w"), layout=layout
    )
    specs = dict.fromkeys(("a", "b"), episodes.element_spec)
    config = BufferConfig("uniform", 100)
    buffer = MultiAgentReplayBuffer(specs, lambda agent: agent, config, mode="lockstep", batch_size=2)
    fill(buffer, episodes, progress=False)
    moments = []
    for items, info in buffer.as_dataset(single_deterministic_pass=True):
        observation = {a: (f["observation"] if layout == "transition" else f.observation) for a, f in items.items()}
        moments.append(tuple(int(observation[a]) if info.mask[a] else None for a in ("a", "b")))
    # x into environment 0, y and z into 1, w into 0 again; a boundary frame is in a moment of the other agent.
    last = 10 if layout == "trajectory" else None
    x, w = [(0, 4), (1, 5 if last else None), (2, None)], [(14, None)]
    assert moments == [*x, *w, (None, 6), (None, 7), (9, 11), (last, 12)]


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
def test_environments_can_be_chosen_and_the_others_go_on(mode):
    episodes = _of_agents((2, "a"), (1, "a"))
    specs = {"a": episodes.element_spec}
    buffer = MultiAgentReplayBuffer(specs, {"a": "a"}, BufferConfig("uniform", 90), mode=mode, batch_size=3)
    of_other = {name: np.array([[column[0]]]) for name, column in next(iter(episodes)).items()}
    buffer.add_sequence({"a": of_other}, streams=[0])
    fill(buffer, episodes, streams=[2, 1], progress=False)
    buffer.add_sequence({"a": of_other}, streams=[0])
    assert buffer.gather_all()["a"]["observation"].to_list() == [[0, 0], [0, 1], [3]]
    windows = buffer.as_dataset(
        window=Window(2), single_deterministic_pass=True, policy="a" if mode[0] == "i" else None
    )
    found = [(items["a"] if mode == "lockstep" else items)["observation"].numpy().tolist() for items, _ in windows]
    # What is written elsewhere ends no life in environment 0.
    assert found == [[0, 0], [0, 1]]


@pytest.mark.parametrize("mode", ["independent", "lockstep"])
@pytest.mark.parametrize("shared", [False, True], ids=["table of its own", "shared tables"])
def test_tables_of_several_environments_are_filled_as_well(mode, shared):
    episodes = _of_agents((2, "a", "x"), (3, "b", "x"), (2, "a", "y"))
    specs = dict.fromkeys(("a", "b"), episodes.element_spec)
    table = TableConfig("both", episodes.element_spec, 100, sequence_length=2)
    with contextlib.ExitStack() as stack:
        made = table
        if shared:
            own = {"independent": {"both": table}} if mode == "independent" else {"lockstep": table}
            made = stack.enter_context(ReverbAgentTables.local(specs, lambda agent: "both", **own, batch_size=2))
        buffer = MultiAgentReplayBuffer(specs, lambda agent: "both", made, mode=mode, batch_size=2)
        stack.enter_context(buffer)
        report = fill(buffer, episodes, progress=False)
        assert (report.episodes, report.frames) == (3, 7)
        # Items are windows of two: of a's episodes one each, of b's two; of moments those of the longer one.
        assert len(buffer) == {"independent": 4, "lockstep": 3}[mode]
        policy = {} if mode == "lockstep" else {"policy": "both"}
        items, info = buffer.sample(40, 2, **policy)
        if mode == "independent":
            found = {tuple(row) for row in items["observation"].numpy().tolist()}
            assert found <= {(0, 1), (7, 8), (3, 4), (4, 5)}
        else:
            both = zip(*(items[agent]["observation"].numpy().tolist() for agent in ("a", "b")), strict=True)
            assert {(*a, *b) for a, b in both} <= {(0, 1, 3, 4), (1, 0, 4, 5), (7, 8, 0, 0)}


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_lockstep_puts_episodes_of_one_id_side_by_side(layout):
    episodes = _of_agents((3, "a", "x"), (1, "b", "x"), (2, "b", "y"), (2, "a", "z"), (2, "b", "z"), layout=layout)
    specs = dict.fromkeys(("a", "b"), episodes.element_spec)
    buffer = MultiAgentReplayBuffer(specs, lambda agent: agent, BufferConfig("uniform", 100), mode="lockstep")
    report = fill(buffer, episodes, progress=False)
    assert report.episodes == 5
    moments = []
    for items, info in buffer.as_dataset(single_deterministic_pass=True):
        observation = {a: (f["observation"] if layout == "transition" else f.observation) for a, f in items.items()}
        moments.append(tuple(int(observation[a]) if info.mask[a] else None for a in ("a", "b")))
    if layout == "transition":
        assert moments == [(0, 4), (1, None), (2, None), (None, 6), (None, 7), (9, 12), (10, 13)]
    else:
        # The boundary frame of b, 5, is in a moment of a; an environment's last moment starts no draw.
        assert moments == [(0, 4), (1, 5), (2, None), (None, 6), (None, 7), (9, 12), (10, 13)]


def test_a_joint_episode_that_does_not_fit_leaves_nothing():
    episodes = _of_agents((3, "wolf", "x"), (1, "sheep", "x"), actions=([1, 2, 2**40, 0], [1, 0]))
    stored = {**episodes.element_spec, "action": tf.TensorSpec([], tf.int32)}
    for cast, message in (
        (False, "agent 'wolf': field 'action': expected .* build the buffer with cast=True"),
        (True, "agent 'wolf': field 'action': 1099511627776 does not survive in int32"),
    ):
        buffer = MultiAgentReplayBuffer(
            dict.fromkeys(("wolf", "sheep"), stored), lambda agent: agent, BufferConfig("uniform", 100),
            mode="lockstep", cast=cast,
        )  # fmt: skip
        with pytest.raises(ValueError, match=message):
            fill(buffer, episodes, progress=False)
        assert len(buffer) == 0


def test_steps_that_name_their_agents_become_an_episode_of_each():
    columns = {
        "observation": np.array([0, 10, 1, 11, 2, 12]),
        "action": np.zeros(6, np.int64),
        "is_terminal": np.array([False, False, False, False, True, True]),
        "who": np.array([7, 8] * 3),
    }
    spec = {**_STEP_SPEC, "who": tf.TensorSpec([], tf.int64)}
    source = EpisodeSource("mine", spec, lambda seed: iter([RawEpisode("0", columns)]))
    episodes = load_rlds(source, layout="transition", agent_field="who")
    specs = dict.fromkeys(("7", "8"), episodes.element_spec)
    buffer = MultiAgentReplayBuffer(specs, lambda agent: agent, BufferConfig("uniform", 100), mode="lockstep")
    fill(buffer, episodes, progress=False)
    moments = buffer.as_dataset(single_deterministic_pass=True)
    observations = [[int(items[agent]["observation"]) for agent in ("7", "8")] for items, _ in moments]
    assert observations == [[0, 10], [1, 11]]


def test_agents_that_cannot_be_told_are_refused():
    specs = dict.fromkeys(("a", "b"), _of_agents((1, "a")).element_spec)

    def buffer(**arguments):
        return MultiAgentReplayBuffer(specs, lambda agent: agent, BufferConfig("uniform", 100), **arguments)

    with pytest.raises(ValueError, match=r"episode 0: it does not tell whose it is.*agent_field="):
        fill(buffer(), _of_agents((2, "a"), agent_field=None), progress=False)
    with pytest.raises(ValueError, match="episode 0: it is of agent 'c'; the buffer's agents are a, b"):
        fill(buffer(), _of_agents((2, "c")), progress=False)
    with pytest.raises(ValueError, match="agent 'a' comes twice in the episode of this id"):
        fill(buffer(mode="lockstep"), _of_agents((2, "a", "x"), (2, "a", "x")), progress=False)
    for mode in "independent", "lockstep":
        with pytest.raises(ValueError, match=r"streams.*2"):
            fill(buffer(mode=mode, batch_size=2), _of_agents((2, "a")), streams=2)
    with pytest.raises(ValueError, match="priorities: in lockstep they are those of moments"):
        fill(buffer(mode="lockstep"), _of_agents((2, "a")), priorities=lambda episode: [1.0])
