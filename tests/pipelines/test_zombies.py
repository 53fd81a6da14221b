"""What an archer or knight sees of the zombies."""

from __future__ import annotations

import types

import numpy as np
import pytest

from replayfeed.pipelines.zombies import NearestZombies, kind_of, knights_and_archers


def seen_by(environment, rows):
    """What is made of one agent's observation."""
    environment.reset = lambda seed=None, options=None: ({"archer_0": rows}, {})
    observations, _ = NearestZombies(environment, count=2).reset()
    return observations["archer_0"]


def rows_with(*zombies):
    """The agent at (0.5, 0.75) looks up; zombies are `(distance, x, y)` from it, in parts of the screen."""
    rows = np.zeros([15, 5])
    rows[0] = (0.0, 0.5, 0.75, 0.0, -1.0)
    # Another agent and an arrow are nearer than any zombie.
    rows[1], rows[3] = (0.01, 0.01, 0.0, 0.0, 1.0), (0.01, 0.0, 0.01, 1.0, 0.0)
    for row, zombie in zip(range(5, 15), zombies, strict=False):
        rows[row, :3] = zombie
    return rows


def test_the_nearest_zombies_are_told_by_distance_and_by_how_far_they_are_ahead_and_aside():
    # One 0.5 of the height above; one 0.225 of the width to the right, which is 0.4 of the height.
    rows = rows_with((0.35, 0.0, -0.5), (0.16, 0.225, 0.0), (0.7, 0.5, -0.5))
    assert seen_by(types.SimpleNamespace(), rows).tolist() == pytest.approx(
        [0.5, 0.75, 0.0, -1.0, 0.3, *[0.4, 0.0, 1.0], *[0.5, 1.0, 0.0]]
    )


def test_where_there_is_no_zombie_there_are_zeros():
    assert seen_by(types.SimpleNamespace(), rows_with()).tolist() == [0.5, 0.75, 0.0, -1.0, 0.0, *[0.0] * 6]


def test_observations_fit_the_space_and_agents_die_at_different_times():
    environment = knights_and_archers(max_cycles=400)
    rng = np.random.default_rng(0)
    times = set()
    for seed in range(3):
        observations, _ = environment.reset(seed=seed)
        time = 0
        while environment.agents:
            actions = {agent: int(rng.integers(6)) for agent in environment.agents}
            observations, _, terminations, _, _ = environment.step(actions)
            for agent, observation in observations.items():
                assert environment.observation_space(agent).contains(observation)
            time += 1
            times |= {(seed, time) for agent in actions if terminations[agent]}
    assert len(times) > 6


def test_episodes_repeat_with_their_seed():
    runs = []
    for _ in range(2):
        environment = knights_and_archers()
        observations, _ = environment.reset(seed=3)
        for _ in range(30):
            observations, *_ = environment.step(dict.fromkeys(environment.agents, 4))
        runs.append(observations["knight_0"].tolist())
    assert runs[0] == runs[1]


def test_agents_of_a_kind_share_a_policy():
    agents = knights_and_archers().possible_agents
    assert [kind_of(agent) for agent in agents] == ["archer", "archer", "knight", "knight"]


def test_a_count_below_1_is_refused():
    with pytest.raises(ValueError, match=r"^count must be at least 1, got 0.$"):
        NearestZombies(types.SimpleNamespace(), count=0)
