"""RLDS datasets that the tests record themselves, with the writer that people use."""

from __future__ import annotations

import pathlib
from typing import Any

import gym
import numpy as np
import pytest


def record_episodes(folder: pathlib.Path, episodes: list[list[dict[str, Any]]], *, name: str, **infos: Any) -> None:
    """Writes a TFDS folder with rlds' own EpisodeWriter; `infos` are the fields of its DatasetConfig."""
    import tensorflow_datasets as tfds
    from rlds.tfds import episode_writer

    folder.mkdir(parents=True)
    config = tfds.rlds.rlds_base.DatasetConfig(name=name, **infos)
    writer = episode_writer.EpisodeWriter(str(folder), config, max_episodes_per_file=2)
    for steps in episodes:
        writer.add_episode({"steps": steps})
    writer.close()


@pytest.fixture(scope="module")
def quiet_gym():
    """TF-Agents seeds environments by a method that gym 0.23 calls deprecated."""
    level = gym.logger.min_level
    gym.logger.set_level(gym.logger.ERROR)
    yield
    gym.logger.set_level(level)


@pytest.fixture(scope="session")
def record():
    """The function `record_episodes`."""
    return record_episodes


def play(policy, *, limit: int, seed: int) -> list[dict[str, Any]]:
    """One CartPole episode of N transitions as N + 1 RLDS steps, cut at `limit` transitions."""
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=seed)
    observation = np.array(env.state, np.float32)
    steps: list[dict[str, Any]] = []
    terminal = False
    while not terminal and len(steps) < limit:
        action = policy(observation)
        following, reward, terminal, _ = env.step(action)
        steps.append(_step(observation, action, reward, first=not steps))
        observation = np.array(following, np.float32)
    return [*steps, _step(observation, 0, 0.0, last=True, terminal=terminal)]


def _step(observation, action, reward, *, first=False, last=False, terminal=False) -> dict[str, Any]:
    return {
        "observation": observation,
        "action": np.int64(action),
        "reward": np.float32(reward),
        "discount": np.float32(1),
        "is_first": first,
        "is_last": last,
        "is_terminal": terminal,
    }


@pytest.fixture(scope="session")
def cartpole_steps() -> list[list[dict[str, Any]]]:
    """Five real episodes: terminal (it falls over), truncated (balanced up to the limit), and so on."""
    policies = [lambda _: 1, lambda o: int(o[2] + 0.3 * o[3] > 0)]
    return [play(policies[index % 2], limit=25, seed=index) for index in range(5)]


@pytest.fixture(scope="session")
def cartpole_folder(cartpole_steps, tmp_path_factory) -> pathlib.Path:
    """The same as a TFDS folder of three files."""
    import tensorflow_datasets as tfds

    folder = tmp_path_factory.mktemp("rlds") / "cartpole"
    record_episodes(
        folder,
        cartpole_steps,
        name="cartpole",
        observation_info=tfds.features.Tensor(shape=(4,), dtype=np.float32),
        action_info=np.int64,
        reward_info=np.float32,
        discount_info=np.float32,
    )
    return folder
