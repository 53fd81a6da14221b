"""Parallel environments: which frames an agent's life is, and in which moments they are."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import ParallelEnv, make

from replayfeed.buffers import BufferConfig, MultiAgentReplayBuffer, TFUniformReplayBuffer, Window
from replayfeed.pipelines import n_step
from replayfeed.pipelines.agent_moments import FinishedEpisode
from replayfeed.pipelines.agent_steps import agent_data_specs
from replayfeed.pipelines.agents import of_agent
from replayfeed.pipelines.collect_parallel import ParallelCollector
from replayfeed.pipelines.collect_turns import TurnCollector

DIED, CUT = "terminated", "truncated"


class Scripted(ParallelEnv):
    """Agents are born at a time, act so many times, and end so. At time `t` the n-th agent observes `100 n + t`.

    Its action at `t` gives `t + 0.5`. The observations are the same arrays again and again.
    """

    metadata = {"name": "scripted_v0"}
    render_mode = None

    def __init__(self, lives: dict[str, tuple[int, int, str]]):
        self.lives = lives
        self.possible_agents = list(lives)
        self.agents = []
        self.seeds = []
        self.actions = []
        self.arrays = {agent: np.zeros([1], np.int32) for agent in lives}
        self.observation_spaces = {agent: spaces.Box(0, 1000, [1], np.int32) for agent in lives}
        self.action_spaces = {agent: spaces.Discrete(5) for agent in lives}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.time = 0
        self.agents = [agent for agent, (birth, _, _) in self.lives.items() if birth == 0]
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.actions.append(dict(actions))
        acting = list(self.agents)
        assert sorted(actions) == sorted(acting)
        rewards = dict.fromkeys(acting, self.time + 0.5)
        self.time += 1
        ended = {agent: sum(self.lives[agent][:2]) == self.time for agent in acting}
        born = [agent for agent, (birth, _, _) in self.lives.items() if birth == self.time]
        # PettingZoo's own wrappers hand out the list that they go on using.
        self.agents[:] = [agent for agent in self.possible_agents if agent in born or not ended.get(agent, True)]
        told = [*acting, *born]
        return (
            self._observe(told),
            {**rewards, **dict.fromkeys(born, 1000.0)},
            {agent: ended.get(agent, False) and self.lives[agent][2] == DIED for agent in told},
            {agent: ended.get(agent, False) and self.lives[agent][2] == CUT for agent in told},
            {agent: {} for agent in told},
        )

    def _observe(self, agents):
        for agent in agents:
            self.arrays[agent][:] = 100 * self.possible_agents.index(agent) + self.time
        return {agent: self.arrays[agent] for agent in agents}


class Recorder:
    """Takes moments as a `MultiAgentReplayBuffer` does, and keeps them as they came."""

    def __init__(self, environment, batch_size=1):
        self.data_spec = agent_data_specs(environment)
        self.agents = tuple(self.data_spec)
        self.batch_size = batch_size
        self.moments = []
        self.ended = []
        self.num_stopped = 0

    def policy_of(self, agent):
        return "shared" if agent in ("a", "b") else "own"

    def add_batch(self, items, *, end_of_episode=None, present=None):
        assert sorted(items) == sorted(present)
        moments = [{} for _ in range(self.batch_size)]
        for agent, frame in items.items():
            tf.nest.assert_same_structure(frame, self.data_spec[agent])
            for leaf, spec in zip(tf.nest.flatten(frame), tf.nest.flatten(self.data_spec[agent]), strict=True):
                assert (leaf.shape, leaf.dtype) == ((self.batch_size, *spec.shape), spec.dtype.as_numpy_dtype)
            for b in np.flatnonzero(present[agent]):
                moments[b][agent] = tf.nest.map_structure(lambda leaf, b=b: leaf[b].copy(), frame)
        self.moments.append(moments)
        self.ended.append(end_of_episode.tolist())

    def end_stream(self, b=None):
        self.num_stopped += 1

    def shown(self, b=0):
        """Each moment of an environment as a dict of what a frame says, in short."""
        return [{agent: show(frame) for agent, frame in moment[b].items()} for moment in self.moments]


def show(frame):
    """`(observation, action, reward, discount)`, then FIRST; of a final observation `(observation, how it ended)`."""
    observation = int(frame["observation"][0])
    if frame["is_last"]:
        assert not frame["is_first"]
        return (observation, DIED if frame["is_terminal"] else CUT)
    assert not frame["is_terminal"]
    step = (observation, int(frame["action"]), float(frame["reward"]), float(frame["discount"]))
    return (*step, "FIRST") if frame["is_first"] else step


def by_observation(observations):
    return observations[:, 0] % 5


def collector_of(environments, recorder, **policies):
    """A collector whose policies choose by observation, unless others are given."""
    followed = {recorder.policy_of(agent): by_observation for agent in recorder.agents}
    return ParallelCollector(environments, {**followed, **policies}, recorder)


def collected(lives, num_moments):
    environment = Scripted(lives)
    recorder = Recorder(environment)
    return recorder, collector_of(environment, recorder).collect(num_moments)


THREE = {"a": (0, 6, CUT), "b": (0, 6, CUT), "c": (0, 2, DIED)}


# PettingZoo's checks import its environments in a way that it warns of itself.
@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_the_scripted_environments_keep_to_the_api():
    from pettingzoo.test import parallel_api_test

    parallel_api_test(Scripted(THREE), num_cycles=20)
    parallel_api_test(Scripted({"a": (0, 3, DIED), "b": (2, 4, CUT)}), num_cycles=20)


def test_fr_080_an_agent_that_dies_early_is_present_in_its_dying_step_and_then_no_more():
    recorder, _ = collected(THREE, 7)
    assert [moment.get("c") for moment in recorder.shown()] == [
        (200, 0, 0.5, 1.0, "FIRST"),
        (201, 1, 1.5, 0.0),
        (202, DIED),
        *[None] * 4,
    ]
    assert [sorted(moment) for moment in recorder.shown()] == [["a", "b", "c"]] * 3 + [["a", "b"]] * 4


def test_where_all_are_truncated_the_last_moment_holds_final_observations_to_bootstrap_from():
    recorder, _ = collected({"a": (0, 2, CUT), "c": (0, 2, CUT)}, 3)
    assert recorder.shown() == [
        {"a": (0, 0, 0.5, 1.0, "FIRST"), "c": (100, 0, 0.5, 1.0, "FIRST")},
        {"a": (1, 1, 1.5, 1.0), "c": (101, 1, 1.5, 1.0)},
        {"a": (2, CUT), "c": (102, CUT)},
    ]
    assert recorder.ended == [[False], [False], [True]]


def test_an_agent_that_joins_late_begins_with_its_first_observation_and_without_what_it_got_before():
    recorder, episodes = collected({"a": (0, 4, CUT), "c": (2, 2, DIED)}, 5)
    assert [moment.get("c") for moment in recorder.shown()] == [
        *[None] * 2,
        (102, 2, 2.5, 1.0, "FIRST"),
        (103, 3, 3.5, 0.0),
        (104, DIED),
    ]
    assert episodes[0].returns == {"a": 0.5 + 1.5 + 2.5 + 3.5, "c": 1000.0 + 2.5 + 3.5}


def test_an_agent_may_join_with_the_step_in_which_the_last_of_the_others_ends():
    recorder, _ = collected({"a": (0, 1, DIED), "c": (1, 1, DIED)}, 4)
    assert recorder.shown() == [
        {"a": (0, 0, 0.5, 0.0, "FIRST")},
        {"a": (1, DIED), "c": (101, 1, 1.5, 0.0, "FIRST")},
        {"c": (102, DIED)},
        {"a": (0, 0, 0.5, 0.0, "FIRST")},
    ]
    assert recorder.ended == [[False], [False], [True], [False]]


def test_what_is_stored_does_not_change_when_the_environment_writes_into_its_arrays_again():
    recorder, _ = collected({"a": (0, 3, DIED)}, 4)
    assert [frame["observation"].tolist() for (moment,) in recorder.moments for frame in moment.values()] == [
        [0],
        [1],
        [2],
        [3],
    ]


def test_the_next_episode_begins_in_the_moment_after_the_last_one():
    recorder, episodes = collected({"a": (0, 1, DIED)}, 5)
    episode = [{"a": (0, 0, 0.5, 0.0, "FIRST")}, {"a": (1, DIED)}]
    assert recorder.shown() == [*episode, *episode, episode[0]]
    assert episodes == [FinishedEpisode(0, {"a": 0.5}, {"a": 1})] * 2


def test_collecting_goes_on_where_it_stopped():
    environment = Scripted(THREE)
    recorder = Recorder(environment)
    collector = collector_of(environment, recorder)
    episodes = [*collector.collect(2), *collector.collect(1), *collector.collect(6)]
    at_once, episodes_at_once = collected(THREE, 9)
    assert recorder.shown() == at_once.shown()
    assert episodes == episodes_at_once != []


def test_environments_side_by_side_each_have_their_own_ends_and_are_written_together():
    environments = [Scripted({"a": (0, 1, DIED), "c": (0, 2, CUT)}), Scripted({"a": (0, 3, DIED), "c": (9, 1, CUT)})]
    recorder = Recorder(environments[0], batch_size=2)
    collector_of(environments, recorder).collect(4)
    assert recorder.shown(0) == [
        {"a": (0, 0, 0.5, 0.0, "FIRST"), "c": (100, 0, 0.5, 1.0, "FIRST")},
        {"a": (1, DIED), "c": (101, 1, 1.5, 1.0)},
        {"c": (102, CUT)},
        {"a": (0, 0, 0.5, 0.0, "FIRST"), "c": (100, 0, 0.5, 1.0, "FIRST")},
    ]
    assert recorder.shown(1) == [
        {"a": (0, 0, 0.5, 1.0, "FIRST")},
        {"a": (1, 1, 1.5, 1.0)},
        {"a": (2, 2, 2.5, 0.0)},
        {"a": (3, DIED)},
    ]
    assert recorder.ended == [[False, False], [False, False], [True, False], [False, True]]


def test_environments_are_seeded_once_each_by_its_own_number():
    environments = [Scripted({"a": (0, 1, DIED)}) for _ in range(2)]
    recorder = Recorder(environments[0], batch_size=2)
    ParallelCollector(environments, {"shared": by_observation}, recorder, seed=7).collect(4)
    assert [environment.seeds for environment in environments] == [[7, None, None], [8, None, None]]


def test_lives_that_the_buffer_held_before_do_not_go_on():
    environment = Scripted(THREE)
    recorder = Recorder(environment)
    collector_of(environment, recorder)
    assert (recorder.num_stopped, recorder.moments) == (1, [])


def test_each_policy_is_asked_once_for_all_its_agents():
    calls = []

    def policy(name):
        return lambda observations: calls.append((name, observations[:, 0].tolist())) or by_observation(observations)

    environment = Scripted(THREE)
    collector_of(environment, Recorder(environment), shared=policy("shared"), own=policy("own")).collect(3)
    assert calls == [("shared", [0, 100]), ("own", [200]), ("shared", [1, 101]), ("own", [201]), ("shared", [2, 102])]


def test_the_environment_gets_single_numbers_as_scalars():
    environment = Scripted({"a": (0, 2, DIED)})
    collector_of(environment, Recorder(environment)).collect(1)
    assert [{agent: type(action) for agent, action in acts.items()} for acts in environment.actions] == [
        {"a": np.int64}
    ]


class Nested(Scripted):
    """Observations and actions that are nests."""

    def __init__(self, lives):
        super().__init__(lives)
        self.observation_spaces = {
            agent: spaces.Dict(
                {"at": spaces.Box(0, 1000, [1], np.int32), "pair": spaces.Tuple([spaces.Discrete(9)] * 2)}
            )
            for agent in lives
        }
        self.action_spaces = {
            agent: spaces.Dict(
                {"move": spaces.Box(-1, 1, [2], np.float32), "pair": spaces.Tuple([spaces.Discrete(9)] * 2)}
            )
            for agent in lives
        }

    def _observe(self, agents):
        plain = super()._observe(agents)
        return {agent: {"at": at, "pair": (self.time, 2 * self.time)} for agent, at in plain.items()}


def test_nests_of_observations_and_actions_are_stacked_for_policies_and_taken_apart_again():
    environments = [Nested({"a": (0, 2, DIED), "b": (0, 1, DIED)}), Nested({"a": (0, 2, DIED), "b": (9, 1, DIED)})]
    recorder = Recorder(environments[0], batch_size=2)
    asked = []

    def policy(observations):
        asked.append(tf.nest.map_structure(np.ndarray.tolist, observations))
        at = observations["at"][:, 0]
        return {"move": np.stack([at, -at], axis=1) / 1000, "pair": (at % 7, observations["pair"][1])}

    ParallelCollector(environments, {"shared": policy}, recorder).collect(2)
    assert asked == [
        {"at": [[0], [100], [0]], "pair": ([0, 0, 0], [0, 0, 0])},
        {"at": [[1], [1]], "pair": ([1, 1], [2, 2])},
    ]
    stored = recorder.moments[0][0]["b"]["action"]
    assert (stored["move"].tolist(), stored["pair"]) == (pytest.approx([0.1, -0.1]), (100 % 7, 0))
    assert recorder.moments[1][1]["a"]["observation"]["pair"] == (1, 2)
    given = environments[1].actions[1]["a"]
    assert (given["move"].tolist(), given["pair"]) == (pytest.approx([0.001, -0.001]), (1, 2))


# -- against a naive model ---------------------------------------------------------------------


def model(lives):
    """The moments of one episode, from when each agent was born and ended."""
    moments = []
    for time in range(max(birth + count for birth, count, _ in lives.values()) + 1):
        moment = {}
        for index, (agent, (birth, count, how)) in enumerate(lives.items()):
            observation, age = 100 * index + time, time - birth
            if age == count:
                moment[agent] = (observation, how)
            elif 0 <= age < count:
                discount = 0.0 if age == count - 1 and how == DIED else 1.0
                moment[agent] = (observation, observation % 5, time + 0.5, discount, *["FIRST"][age:])
        moments.append(moment)
    return moments


@st.composite
def all_lives(draw):
    """Lives of up to four agents, with somebody living at each time until the last one ends."""
    lives, end = {}, 0
    for agent in "abcd"[: draw(st.integers(1, 4))]:
        birth = draw(st.integers(0, end))
        lives[agent] = (birth, draw(st.integers(1, 5)), draw(st.sampled_from([DIED, CUT])))
        end = max(end, birth + lives[agent][1])
    return lives


@given(st.lists(all_lives(), min_size=1, max_size=3), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_moments_are_those_of_a_naive_model(lives_of_each, calls):
    # Every environment has the agents a to d; those without a life are never born.
    environments = [Scripted({agent: lives.get(agent, (-9, 1, DIED)) for agent in "abcd"}) for lives in lives_of_each]
    recorder = Recorder(environments[0], batch_size=len(environments))
    collector = collector_of(environments, recorder)
    episodes = [episode for num_moments in calls for episode in collector.collect(num_moments)]
    for b, lives in enumerate(lives_of_each):
        episode = model(lives)
        moments = recorder.shown(b)
        assert moments == [episode[index % len(episode)] for index in range(sum(calls))]
        assert [ended[b] for ended in recorder.ended] == [(i + 1) % len(episode) == 0 for i in range(sum(calls))]
        counts = {agent: count for agent, (_, count, _) in lives.items()}
        assert [e.num_actions for e in episodes if e.environment == b] == [counts] * (sum(calls) // len(episode))


# -- into buffers ------------------------------------------------------------------------------


def buffer_of(environment, mode, batch_size=1):
    return MultiAgentReplayBuffer(
        agent_data_specs(environment),
        lambda agent: "shared" if agent in ("a", "b") else "own",
        functools.partial(TFUniformReplayBuffer, max_length=100, seed=0),
        mode=mode,
        batch_size=batch_size,
    )


def filled(lives, num_moments, mode):
    environment = Scripted(lives)
    buffer = buffer_of(environment, mode)
    collector_of(environment, buffer).collect(num_moments)
    return buffer


def in_order(buffer, **arguments):
    return list(buffer.as_dataset(single_deterministic_pass=True, **arguments))


def test_fr_080_in_lockstep_the_mask_shows_the_dying_step_and_nothing_after_it():
    buffer = filled(THREE, 14, "lockstep")
    drawn = in_order(buffer, window=Window(4))
    assert [info.times.numpy().tolist() for _, info in drawn] == [
        *[[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        *[[7, 8, 9, 10], [8, 9, 10, 11], [9, 10, 11, 12], [10, 11, 12, 13]],
    ]
    assert [info.mask["c"].numpy().astype(int).tolist() for _, info in drawn] == [
        [1, 1, 1, 0],
        [1, 1, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 0],
    ] * 2
    assert all(info.mask[agent].numpy().all() for _, info in drawn for agent in "ab")
    for items, info in drawn:
        seen = items["c"]["observation"].numpy()[:, 0][info.mask["c"].numpy()]
        assert seen.tolist() == [200 + time % 7 for time in info.times.numpy()[: len(seen)]]


def steps_of(pairs):
    """`(observation, return, discount, next observation, steps)` of each transition that there is."""
    return [
        (
            int(step.observation[0]),
            float(step.reward),
            float(step.discount),
            int(step.next_observation[0]) if step.discount else None,
            int(step.num_steps_used),
        )
        for step, info in pairs
        if info.mask
    ]


def test_n_step_bootstraps_where_an_agent_was_truncated_and_not_where_it_died():
    buffer = filled({"a": (0, 3, CUT), "c": (0, 2, DIED)}, 4, "independent")
    view = n_step(2, 0.5)
    drawn = {
        policy: [view(*each) for each in in_order(buffer, window=Window(3, short="pad"), policy=policy)]
        for policy in ("shared", "own")
    }
    assert steps_of(drawn["shared"]) == [
        (0, 0.5 + 0.5 * 1.5, 0.25, 2, 2),
        (1, 1.5 + 0.5 * 2.5, 0.25, 3, 2),
        (2, 2.5, 0.5, 3, 1),
    ]
    assert steps_of(drawn["own"]) == [(100, 0.5 + 0.5 * 1.5, 0.0, None, 2), (101, 1.5, 0.0, None, 1)]


def test_of_agent_gives_the_same_transitions_in_lockstep():
    buffer = filled({"a": (0, 3, CUT), "c": (0, 2, DIED)}, 4, "lockstep")
    drawn = in_order(buffer, window=Window(3, short="pad"))
    view = {agent: [n_step(2, 0.5)(*of_agent(agent)(*each)) for each in drawn] for agent in "ac"}
    assert steps_of(view["a"]) == [
        (0, 0.5 + 0.5 * 1.5, 0.25, 2, 2),
        (1, 1.5 + 0.5 * 2.5, 0.25, 3, 2),
        (2, 2.5, 0.5, 3, 1),
    ]
    assert steps_of(view["c"]) == [(100, 0.5 + 0.5 * 1.5, 0.0, None, 2), (101, 1.5, 0.0, None, 1)]


def test_of_agent_has_no_transition_where_the_agent_is_absent_when_the_window_begins():
    buffer = filled({"a": (0, 5, CUT), "b": (0, 1, DIED), "c": (3, 1, DIED)}, 6, "lockstep")
    drawn = in_order(buffer, window=Window(3, short="pad"))
    view = {agent: [n_step(2, 0.5)(*of_agent(agent)(*each)) for each in drawn] for agent in "bc"}
    assert [bool(info.mask) for _, info in view["b"]] == [True, False, False, False, False]
    assert [bool(info.mask) for _, info in view["c"]] == [False, False, False, True, False]
    assert [float(info.weights) for _, info in view["c"]] == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert steps_of(view["b"]) == [(100, 0.5, 0.0, None, 1)]
    assert steps_of(view["c"]) == [(203, 3.5, 0.0, None, 1)]
    assert [int(info.times) for _, info in view["c"]] == [0, 1, 2, 3, 4]


def test_a_new_collector_begins_new_lives_in_a_buffer_that_another_left_in_the_middle():
    for mode in ("independent", "lockstep"):
        environment = Scripted({"a": (0, 9, CUT), "c": (0, 9, CUT)})
        buffer = buffer_of(environment, mode)
        collector_of(environment, buffer).collect(2)
        collector_of(environment, buffer).collect(2)
        where = {"policy": "shared"} if mode == "independent" else {}
        drawn = [items if where else items["a"] for items, _ in in_order(buffer, window=Window(2), **where)]
        assert [items["observation"].numpy()[:, 0].tolist() for items in drawn] == [[0, 1], [0, 1]]


@given(st.lists(all_lives(), min_size=1, max_size=2), st.integers(1, 15), st.sampled_from(["independent", "lockstep"]))
@settings(max_examples=12)
def test_what_is_drawn_is_what_a_naive_model_expects(lives_of_each, num_moments, mode):
    environments = [Scripted({agent: lives.get(agent, (-9, 1, DIED)) for agent in "abcd"}) for lives in lives_of_each]
    buffer = buffer_of(environments[0], mode, len(environments))
    collector_of(environments, buffer).collect(num_moments)
    expected = {agent: [] for agent in "abcd"}
    for lives in lives_of_each:
        episode = model(lives)
        moments = [(time, episode[time % len(episode)]) for time in range(num_moments)]
        for agent in "abcd":
            frames = [(time, *moment[agent]) for time, moment in moments if agent in moment]
            # A frame that others of its life follow.
            expected[agent] += [
                (frame[0], frame[1], frame[3], frame[4], after[1])
                for frame, after in itertools.pairwise(frames)
                if len(frame) > 3
            ]
    found = {agent: [] for agent in "abcd"}
    if mode == "lockstep":
        drawn = in_order(buffer, window=Window(2)) if sum(map(len, expected.values())) else []
        for items, info in drawn:
            for agent in "abcd":
                if info.mask[agent].numpy().all():
                    found[agent].append(pair_of(items[agent], info))
    else:
        for policy in buffer.policies:
            agents = buffer.agents_of(policy)
            drawn = in_order(buffer, window=Window(2), policy=policy) if any(expected[a] for a in agents) else []
            for items, info in drawn:
                found[buffer.agents[int(info.agents)]].append(pair_of(items, info))
    assert {agent: sorted(pairs) for agent, pairs in found.items()} == {
        agent: sorted(pairs) for agent, pairs in expected.items()
    }


def pair_of(items, info):
    """`(time, observation, reward, discount, next observation)` of a window of two frames."""
    observation = items["observation"].numpy()[:, 0]
    return (
        int(info.times[0]),
        int(observation[0]),
        float(items["reward"][0]),
        float(items["discount"][0]),
        int(observation[1]),
    )


# -- what is refused ---------------------------------------------------------------------------


def refused(lives, change, num_moments=3, **policies):
    """The message with which a changed environment is refused."""
    environment = Scripted(lives)
    change(environment)
    recorder = Recorder(environment)
    with pytest.raises((ValueError, TypeError)) as caught:
        collector_of(environment, recorder, **policies).collect(num_moments)
    return str(caught.value)


def after_step(change):
    """Changes what the environment's steps give: `change(environment, result)`."""

    def apply(environment):
        step = environment.step

        def changed(actions):
            result = step(actions)
            change(environment, *result)
            return result

        environment.step = changed

    return apply


def test_an_agent_that_ended_and_is_still_among_the_agents_is_refused():
    message = refused(THREE, after_step(lambda environment, *_: environment.agents.__setitem__(slice(None), "abc")))
    assert message == (
        "agent 'c' ended and is still among the environment's agents: an agent leaves them with the step that ends it."
    )


def test_an_agent_that_leaves_without_an_end_is_refused():
    message = refused(THREE, after_step(lambda environment, *_: environment.agents.remove("b")))
    assert message == (
        "agent 'b' was neither terminated nor truncated and is no longer among the environment's agents: "
        "an agent leaves them with the step that ends it."
    )


@pytest.mark.parametrize(
    ("index", "agent", "message"),
    [
        (0, "c", "agent 'c': the environment gave an observation of the step that ended it to ['a', 'b'] only."),
        (0, "a", "agent 'a': the environment gave an observation of a step to ['b', 'c'] only."),
        (1, "b", "agent 'b': the environment gave a reward to ['a', 'c'] only."),
        (2, "b", "agent 'b': the environment gave a termination to ['a', 'c'] only."),
        (3, "b", "agent 'b': the environment gave a truncation to ['a', 'c'] only."),
    ],
)
def test_what_an_environment_leaves_out_is_named(index, agent, message):
    lives = {"a": (0, 6, CUT), "b": (0, 6, CUT), "c": (0, 1, DIED)}
    assert refused(lives, after_step(lambda _, *result: result[index].pop(agent))) == message


def test_values_that_do_not_fit_the_spaces_are_named():
    def observe(value):
        return after_step(lambda _, observations, *rest: observations.update(a=value))

    assert refused(THREE, observe(np.zeros([2], np.int32))) == (
        "agent 'a', field 'observation': expected [1] int32, got [2] int32."
    )
    assert refused(THREE, observe(np.array([0.5]))) == "agent 'a', field 'observation': 0.5 does not survive in int32."
    assert refused(THREE, observe(None)) == "agent 'a', field 'observation': expected [1] int32, got [] object."


def test_a_policy_that_answers_wrongly_is_named_before_the_environment_takes_a_step():
    environment = Scripted(THREE)
    recorder = Recorder(environment)
    collector = collector_of(environment, recorder, shared=lambda observations: np.zeros([1], np.int64))
    with pytest.raises(ValueError, match=r"^policy 'shared': expected an action for each of 2 agents, \[2, ...\], got"):
        collector.collect(1)
    assert (environment.actions, recorder.moments) == ([], [])
    message = refused(THREE, lambda _: None, own=lambda observations: np.array([0.5]))
    assert message == "agent 'c', field 'action': 0.5 does not survive in int64."


def test_an_environment_without_agents_after_its_reset_is_refused():
    message = refused({"a": (1, 1, DIED)}, lambda _: None)
    assert message == "the environment has no agents after its reset."


def test_environments_policies_and_buffer_must_fit():
    environment = Scripted(THREE)
    recorder = Recorder(environment)
    policies = {"shared": by_observation, "own": by_observation}
    with pytest.raises(ValueError, match=r"^the buffer takes 1 environments side by side \(its batch_size\), got 2.$"):
        ParallelCollector([environment, Scripted(THREE)], policies, recorder)
    with pytest.raises(ValueError, match=r"^the same environment comes twice: build one for each place.$"):
        ParallelCollector([environment, environment], policies, Recorder(environment, batch_size=2))
    with pytest.raises(ValueError, match=r"agent 'd', which the buffer does not know: \['a', 'b', 'c'\].$"):
        ParallelCollector(Scripted({**THREE, "d": (0, 1, DIED)}), policies, recorder)
    with pytest.raises(
        ValueError, match=r"^policies: expected \['own', 'shared'\], which agents follow, got \['own'\]"
    ):
        ParallelCollector(environment, {"own": by_observation}, recorder)
    with pytest.raises(TypeError, match="^policy 'own' must be a function of observations, got int.$"):
        ParallelCollector(environment, {**policies, "own": 3}, recorder)
    with pytest.raises(ValueError, match="^num_moments must be at least 1, got 0.$"):
        ParallelCollector(environment, policies, recorder).collect(0)
    recorder.data_spec["a"].pop("discount")
    with pytest.raises(
        ValueError, match="^agent 'a': expected a data_spec of the fields .* agent_data_specs gives it.$"
    ):
        ParallelCollector(environment, policies, recorder)


def test_environments_of_the_other_kind_are_refused_at_once():
    game = make("aec", "classic/tictactoe-v3")
    turns = MultiAgentReplayBuffer(agent_data_specs(game), lambda agent: "p", BufferConfig("uniform", 10))
    with pytest.raises(TypeError, match="is turn-based .* use TurnCollector"):
        ParallelCollector(game, {"p": lambda observations: 0}, turns)
    environment = Scripted({"a": (0, 2, DIED)})
    moments = MultiAgentReplayBuffer(agent_data_specs(environment), lambda agent: "p", BufferConfig("uniform", 10))
    with pytest.raises(TypeError, match="is parallel .* use ParallelCollector"):
        TurnCollector(environment, {"p": lambda observations: 0}, moments)
