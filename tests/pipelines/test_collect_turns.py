"""Turn-based environments: what an agent got between two of its turns, and who is present in which moment."""

from __future__ import annotations

import collections
import functools
import itertools

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo import AECEnv, make

from replayfeed.buffers import MultiAgentReplayBuffer, TFUniformReplayBuffer, Window
from replayfeed.pipelines import transitions
from replayfeed.pipelines.agent_moments import FinishedEpisode
from replayfeed.pipelines.agent_steps import agent_data_specs
from replayfeed.pipelines.collect_turns import TurnCollector

DIED, CUT = "terminated", "truncated"


class Scripted(AECEnv):
    """Agents act in a written order; each action gives written rewards and may end agents.

    Args:
      script: of each action `(agent, rewards by agent, how agents end by agent)`. An agent comes in with its first
        action, unless it is in `from_start`. Observations count the actions so far.
    """

    metadata = {"name": "scripted_v0", "is_parallelizable": False}
    render_mode = None

    def __init__(self, script, from_start=(), agents="abc"):
        super().__init__()
        self.script, self.from_start = script, from_start
        self.possible_agents = list(agents)
        self.agents = []
        self.observation_spaces = {agent: spaces.Box(0, 1000, [1], np.int32) for agent in agents}
        self.action_spaces = {agent: spaces.Discrete(5) for agent in agents}
        self.array = np.zeros([1], np.int32)

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def observe(self, agent):
        return self.array

    def reset(self, seed=None, options=None):
        self.array[:] = 0
        self.agents, self.rewards, self._cumulative_rewards = [], {}, {}
        self.terminations, self.truncations, self.infos = {}, {}, {}
        for agent in [*self.from_start, self.script[0][0]]:
            self._come_in(agent)
        self.agent_selection = self.script[0][0]

    def _come_in(self, agent):
        if agent not in self.agents:
            self.agents.append(agent)
            self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
            self.terminations[agent] = self.truncations[agent] = False
            self.infos[agent] = {}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        expected, rewards, ends = self.script[int(self.array[0])]
        assert agent == expected
        assert action is not None
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.rewards.update(rewards)
        self._accumulate_rewards()
        for ending, how in ends.items():
            (self.terminations if how == DIED else self.truncations)[ending] = True
        self.array += 1
        if self.array[0] < len(self.script):
            self.agent_selection = self.script[int(self.array[0])][0]
            self._come_in(self.agent_selection)
        self._deads_step_first()


class Recorder:
    """Takes moments as a `MultiAgentReplayBuffer` does, and keeps what they say, in short."""

    def __init__(self, environment, batch_size=1):
        self.data_spec = agent_data_specs(environment)
        self.agents = tuple(self.data_spec)
        self.batch_size = batch_size
        self.moments = [[] for _ in range(batch_size)]
        self.ended = [[] for _ in range(batch_size)]
        self.stopped = []

    def policy_of(self, agent):
        return "all"

    def add_batch(self, items, *, end_of_episode=None, present=None):
        assert items
        for b in range(self.batch_size):
            here = [agent for agent in items if present[agent][b]]
            assert len(here) <= 1
            for agent in here:
                self.moments[b].append((agent, *show(tf.nest.map_structure(lambda leaf, b=b: leaf[b], items[agent]))))
                self.ended[b].append(bool(end_of_episode[b]))
            assert here or not end_of_episode[b]

    def end_stream(self, b=None):
        self.stopped.append(b)


def show(frame):
    """`(observation, reward, discount)`, then FIRST; of a final observation `(observation, how it ended)`."""
    observation = int(frame["observation"][0])
    if frame["is_last"]:
        assert not frame["is_first"]
        return (observation, DIED if frame["is_terminal"] else CUT)
    assert not frame["is_terminal"]
    assert int(frame["action"]) == observation % 5
    step = (observation, float(frame["reward"]), float(frame["discount"]))
    return (*step, "FIRST") if frame["is_first"] else step


def by_observation(observations):
    return observations[:, 0] % 5


def collected(script, num_turns, **settings):
    environment = Scripted(script, **settings)
    recorder = Recorder(environment)
    episodes = TurnCollector(environment, {"all": by_observation}, recorder).collect(num_turns)
    return recorder, episodes


ALL_DIE = dict.fromkeys("abc", DIED)


def test_rewards_that_arrive_between_two_turns_of_an_agent_belong_to_its_action_before():
    script = [
        ("a", {"a": 1.0, "b": 9.0}, {}),  # b has not acted yet: its 9 belongs to no action
        ("b", {"a": 2.0, "b": 10.0}, {}),
        ("c", {"a": 4.0, "b": 20.0, "c": 100.0}, {}),
        ("a", {"a": 8.0, "b": 40.0}, {}),
        ("b", {"a": 16.0, "b": 80.0, "c": 200.0}, ALL_DIE),
    ]
    recorder, episodes = collected(script, 8, from_start="abc")
    assert recorder.moments[0] == [
        ("a", 0, 1.0 + 2.0 + 4.0, 1.0, "FIRST"),
        ("b", 1, 10.0 + 20.0 + 40.0, 1.0, "FIRST"),
        ("c", 2, 100.0 + 200.0, 0.0, "FIRST"),
        ("a", 3, 8.0 + 16.0, 0.0),
        ("b", 4, 80.0, 0.0),
        ("a", 5, DIED),
        ("b", 5, DIED),
        ("c", 5, DIED),
    ]
    assert recorder.ended[0] == [False] * 7 + [True]
    assert episodes == [FinishedEpisode(0, {"a": 31.0, "b": 159.0, "c": 300.0}, {"a": 2, "b": 2, "c": 1})]


def test_an_agent_that_dies_while_another_acts_is_told_at_once_and_the_others_go_on():
    script = [
        ("a", {}, {}),
        ("b", {"b": 1.0, "a": -1.0}, {"a": DIED}),
        ("b", {"b": 2.0}, {}),
        ("b", {"b": 4.0}, {"b": DIED}),
    ]
    recorder, _ = collected(script, 6)
    assert recorder.moments[0] == [
        ("a", 0, -1.0, 0.0, "FIRST"),
        ("b", 1, 1.0, 1.0, "FIRST"),
        ("a", 2, DIED),
        ("b", 2, 2.0, 1.0),
        ("b", 3, 4.0, 0.0),
        ("b", 4, DIED),
    ]


def test_where_all_are_truncated_each_has_a_last_turn_to_bootstrap_from():
    script = [("a", {"a": 1.0}, {}), ("b", {"b": 2.0, "a": 0.5}, {"a": CUT, "b": CUT})]
    recorder, _ = collected(script, 4)
    assert recorder.moments[0] == [
        ("a", 0, 1.5, 1.0, "FIRST"),
        ("b", 1, 2.0, 1.0, "FIRST"),
        ("a", 2, CUT),
        ("b", 2, CUT),
    ]
    assert recorder.ended[0] == [False, False, False, True]


def test_turns_are_added_in_the_order_in_which_they_were_taken_as_soon_as_that_is_possible():
    script = [("a", {}, {}), ("b", {}, {}), ("b", {}, {}), ("b", {}, {}), ("a", {}, {}), ("b", {}, ALL_DIE)]
    script = [
        (agent, rewards, {end: how for end, how in ends.items() if end in "ab"}) for agent, rewards, ends in script
    ]
    environment = Scripted(script)
    recorder = Recorder(environment)
    collector = TurnCollector(environment, {"all": by_observation}, recorder)
    counts = []
    for _ in range(8):
        collector.collect(1)
        counts.append(len(recorder.moments[0]))
    # a's first turn is complete at its second one, the fifth; b's wait for it. b's fourth is told at the sixth.
    assert counts == [0, 0, 0, 0, 3, 4, 5, 8]
    assert [(agent, observation) for agent, observation, *_ in recorder.moments[0]] == [
        *[("a", 0), ("b", 1), ("b", 2), ("b", 3), ("a", 4), ("b", 5)],
        *[("a", 6), ("b", 6)],
    ]


def test_an_agent_that_ends_before_it_acted_has_no_frames_and_the_episode_ends_all_the_same():
    script = [("a", {"c": -3.0}, {"a": DIED, "c": DIED})]
    recorder, episodes = collected(script, 3, from_start="c")
    assert recorder.moments[0] == [("a", 0, 0.0, 0.0, "FIRST"), ("a", 1, DIED)]
    # c goes first, as it came in first.
    assert (recorder.ended[0], recorder.stopped) == ([False, True], [None])
    assert episodes == [FinishedEpisode(0, {"a": 0.0, "c": -3.0}, {"a": 1})]


def test_where_one_that_never_acted_goes_last_the_stream_is_ended_by_name():
    recorder, episodes = collected([("a", {}, {"a": DIED, "b": CUT})], 3, from_start="ab")
    assert recorder.moments[0] == [("a", 0, 0.0, 0.0, "FIRST"), ("a", 1, DIED)]
    assert (recorder.ended[0], recorder.stopped, len(episodes)) == ([False, False], [None, 0], 1)


def test_an_agent_that_comes_in_late_begins_with_its_first_turn():
    script = [("a", {}, {}), ("a", {}, {}), ("b", {"b": 1.0}, {"a": CUT, "b": CUT})]
    recorder, _ = collected(script, 5)
    assert [moment for moment in recorder.moments[0] if moment[0] == "b"] == [
        ("b", 2, 1.0, 1.0, "FIRST"),
        ("b", 3, CUT),
    ]


def test_the_next_episode_begins_with_new_lives():
    script = [("a", {"a": 1.0}, {"a": DIED})]
    recorder, episodes = collected(script, 4)
    assert recorder.moments[0] == [("a", 0, 1.0, 0.0, "FIRST"), ("a", 1, DIED)] * 2
    assert (recorder.ended[0], len(episodes)) == ([False, True] * 2, 2)


def test_environments_side_by_side_take_turns_each_in_its_own_order():
    scripts = [
        [("a", {"a": 1.0}, {}), ("b", {"a": 2.0}, {"a": DIED, "b": DIED})],
        [("b", {"b": 4.0}, {}), ("b", {"b": 8.0}, {"b": CUT})],
    ]
    environments = [Scripted(script) for script in scripts]
    recorder = Recorder(environments[0], batch_size=2)
    TurnCollector(environments, {"all": by_observation}, recorder).collect(4)
    assert recorder.moments == [
        [("a", 0, 3.0, 0.0, "FIRST"), ("b", 1, 0.0, 0.0, "FIRST"), ("a", 2, DIED), ("b", 2, DIED)],
        [("b", 0, 4.0, 1.0, "FIRST"), ("b", 1, 8.0, 1.0), ("b", 2, CUT)],
    ]
    assert recorder.ended == [[False, False, False, True], [False, False, True]]


# -- against a naive model ---------------------------------------------------------------------


@st.composite
def scripts(draw):
    """Any order of turns, rewards and deaths; the last action ends all that are left."""
    script, dead, came = [], set(), []
    for _ in range(draw(st.integers(1, 8))):
        agent = draw(st.sampled_from(sorted(set("abc") - dead)))
        came += [agent] if agent not in came else []
        rewards = {each: float(draw(st.integers(-3, 3))) for each in came if each not in dead}
        dying = draw(st.sets(st.sampled_from(came))) - dead if len(dead) < 2 else set()
        dying = set(sorted(dying)[: 2 - len(dead)])
        ends = {each: draw(st.sampled_from([DIED, CUT])) for each in sorted(dying)}
        dead |= dying
        script.append((agent, rewards, ends))
    agent, rewards, ends = script[-1]
    left = [each for each in came if each not in dead]
    ends = ends | {each: draw(st.sampled_from([DIED, CUT])) for each in left}
    return [*script[:-1], (agent, rewards, ends)]


def model(script):
    """The moments of an episode: each action with all that its agent got until its next turn or its end."""
    moments, ended = [], {}
    for time, (agent, _, ends) in enumerate(script):
        ended.update({each: (time, how) for each, how in ends.items()})
        following = [t for t in range(time + 1, len(script)) if script[t][0] == agent]
        end, how = next((t, e[agent]) for t, (_, _, e) in enumerate(script) if agent in e)
        stop = following[0] if following else end + 1
        reward = sum(script[t][1].get(agent, 0.0) for t in range(time, stop))
        is_first = all(script[t][0] != agent for t in range(time))
        discount = 0.0 if not following and how == DIED else 1.0
        moments.append((agent, time, reward, discount, *(["FIRST"] if is_first else [])))
        came = list(dict.fromkeys(each for each, _, _ in script[: time + 1]))
        # Those that come in with the next action are behind.
        moments += [(each, time + 1, ends[each]) for each in came if each in ends]
    return moments


@given(scripts(), st.integers(1, 30))
def test_moments_are_those_of_a_naive_model(script, num_turns):
    episode = model(script)
    recorder, episodes = collected(script, num_turns)
    assert recorder.moments[0] == [episode[i % len(episode)] for i in range(len(recorder.moments[0]))]
    assert len(recorder.moments[0]) >= num_turns // len(episode) * len(episode)
    assert len(episodes) == num_turns // len(episode)
    assert recorder.ended[0] == [(i + 1) % len(episode) == 0 for i in range(len(recorder.moments[0]))]


# -- into buffers ------------------------------------------------------------------------------


def buffer_of(environment, mode, batch_size=1):
    make_buffer = functools.partial(TFUniformReplayBuffer, max_length=100, seed=0)
    specs = agent_data_specs(environment)
    return MultiAgentReplayBuffer(specs, lambda agent: "all", make_buffer, mode=mode, batch_size=batch_size)


SHORT = [
    ("a", {"a": 1.0}, {}),
    ("b", {"a": 2.0, "b": 10.0}, {}),
    ("b", {"b": 20.0}, {}),
    ("a", {"a": 4.0, "b": 40.0}, {"a": CUT, "b": DIED}),
]


def test_windows_are_of_an_agents_own_turns_and_times_tell_when_they_were():
    environment = Scripted(SHORT)
    buffer = buffer_of(environment, "independent")
    TurnCollector(environment, {"all": by_observation}, buffer).collect(6 + 6)
    drawn = {"a": [], "b": []}
    for items, info in buffer.as_dataset(single_deterministic_pass=True, window=Window(2), policy="all"):
        step, _ = transitions()(items, info)
        pair = (info.times.numpy().tolist(), float(step.reward), float(step.discount), int(step.next_observation[0]))
        drawn[buffer.agents[int(info.agents)]].append(pair)
    assert drawn == {
        "a": [([0, 3], 1.0 + 2.0, 1.0, 3), ([3, 4], 4.0, 1.0, 4), ([6, 9], 3.0, 1.0, 3), ([9, 10], 4.0, 1.0, 4)],
        "b": [([1, 2], 10.0, 1.0, 2), ([2, 5], 20.0 + 40.0, 0.0, 4), ([7, 8], 10.0, 1.0, 2), ([8, 11], 60.0, 0.0, 4)],
    }


def test_in_lockstep_one_agent_is_present_in_each_moment():
    environment = Scripted(SHORT)
    buffer = buffer_of(environment, "lockstep")
    TurnCollector(environment, {"all": by_observation}, buffer).collect(6 + 6)
    drawn = list(buffer.as_dataset(single_deterministic_pass=True, window=Window(6)))
    assert [info.times.numpy().tolist() for _, info in drawn] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    for _, info in drawn:
        assert info.mask["a"].numpy().astype(int).tolist() == [1, 0, 0, 1, 1, 0]
        assert info.mask["b"].numpy().astype(int).tolist() == [0, 1, 1, 0, 0, 1]


@given(st.lists(scripts(), min_size=1, max_size=2), st.integers(3, 20))
@hypothesis.settings(max_examples=12)
def test_what_is_drawn_is_what_a_naive_model_expects(scripts_of_each, num_turns):
    environments = [Scripted(script) for script in scripts_of_each]
    buffer = buffer_of(environments[0], "independent", len(environments))
    TurnCollector(environments, {"all": by_observation}, buffer).collect(num_turns)
    expected = []
    for script in scripts_of_each:
        episode = model(script)
        # Those of a last episode that goes on are added as far as they are complete: left out here.
        for number in range(num_turns // len(episode)):
            for agent in "abc":
                turns = [(number * len(episode) + time, *turn) for time, turn in enumerate(episode) if turn[0] == agent]
                expected += [
                    (agent, first[0], after[0], *first[2:5], after[2]) for first, after in itertools.pairwise(turns)
                ]
    found = []
    if len(buffer):
        drawn = buffer.as_dataset(single_deterministic_pass=True, window=Window(2), policy="all") if expected else []
        for items, info in drawn:
            observation = items["observation"].numpy()[:, 0].tolist()
            first = (observation[0], float(items["reward"][0]), float(items["discount"][0]))
            found.append((buffer.agents[int(info.agents)], *info.times.numpy().tolist(), *first, observation[1]))
    assert collections.Counter(expected) - collections.Counter(found) == {}
    assert len(found) - len(expected) <= sum(num_turns % len(model(script)) for script in scripts_of_each)


# -- stock environments, and what is refused ---------------------------------------------------


# PettingZoo's checks import its environments in a way that it warns of itself, and warn of plain observations.
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_scripted_environment_keeps_to_the_api():
    from pettingzoo.test import api_test

    script = [("a", {"a": 1.0}, {}), ("b", {"a": 2.0}, {"b": DIED}), ("a", {}, {}), ("c", {}, {"a": CUT, "c": DIED})]
    api_test(Scripted(script, from_start="abc"), num_cycles=20)


def test_tic_tac_toe_tells_the_loser_at_its_last_turn_and_the_winner_too():
    environment = make("aec", "classic/tictactoe-v3")
    recorder = FrameList(environment)
    # The first player takes the first column, the second one the second column: cells 0 3 1 4 2.
    cells = iter([0, 3, 1, 4, 2])
    episodes = TurnCollector(environment, {"all": lambda observations: np.array([next(cells)])}, recorder).collect(7)
    assert [(agent, int(frame["action"]), float(frame["reward"])) for agent, frame in recorder.frames] == [
        *[("player_1", 0, 0.0), ("player_2", 3, 0.0), ("player_1", 1, 0.0), ("player_2", 4, -1.0)],
        *[("player_1", 2, 1.0), ("player_2", 0, 0.0), ("player_1", 0, 0.0)],
    ]
    assert [float(frame["discount"]) for _, frame in recorder.frames] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert [bool(frame["is_terminal"]) for _, frame in recorder.frames] == [False] * 5 + [True] * 2
    # What the winner saw when it chose: its two marks and the other's two.
    board = recorder.frames[4][1]["observation"]["observation"]
    assert board.reshape(9, 2).tolist() == [[1, 0]] * 2 + [[0, 0]] + [[0, 1]] * 2 + [[0, 0]] * 4
    assert episodes == [FinishedEpisode(0, {"player_1": 1.0, "player_2": -1.0}, {"player_1": 3, "player_2": 2})]


class FrameList(Recorder):
    def __init__(self, environment):
        super().__init__(environment)
        self.frames = []

    def add_batch(self, items, *, end_of_episode=None, present=None):
        ((agent, frame),) = items.items()
        assert present[agent].tolist() == [True]
        self.frames.append((agent, tf.nest.map_structure(lambda leaf: leaf[0], frame)))


def test_an_agent_that_never_gets_a_last_turn_is_named():
    environment = Scripted([("a", {}, {}), ("b", {}, {})])
    collector = TurnCollector(environment, {"all": by_observation}, Recorder(environment))
    collector.collect(1)
    environment.step = lambda action: environment.agents.clear()
    with pytest.raises(ValueError, match=r"^the environment has no agents any more, and \['a', 'b'\] got no last turn"):
        collector.collect(1)


def test_an_environment_without_agents_after_its_reset_is_refused():
    environment = Scripted([("a", {}, {})])
    environment.reset = lambda seed=None: None
    with pytest.raises(ValueError, match=r"^the environment has no agents after its reset.$"):
        TurnCollector(environment, {"all": by_observation}, Recorder(environment))


def test_an_agent_that_the_buffer_does_not_know_is_named_at_its_turn():
    environment = Scripted([("a", {}, {}), ("z", {}, {})])
    collector = TurnCollector(environment, {"all": by_observation}, Recorder(environment))
    with pytest.raises(ValueError, match=r"^the environment has the agent 'z', which the buffer does not know"):
        collector.collect(2)
    with pytest.raises(ValueError, match=r"^num_turns must be at least 1, got 0.$"):
        collector.collect(0)


def test_a_reward_that_is_no_single_number_is_refused():
    environment = Scripted([("a", {"a": np.ones([2])}, {}), ("a", {}, {})])
    collector = TurnCollector(environment, {"all": by_observation}, Recorder(environment))
    with pytest.raises(ValueError, match=r"^agent 'a', field 'reward': expected \[\] float32, got \[2\] float64.$"):
        collector.collect(2)
