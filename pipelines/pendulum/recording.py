"""An RLDS dataset of good and bad episodes, written with rlds' own writer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from replayfeed.pipelines.played_episode import PlayedEpisode, rlds_steps

from .environments import make_environment, play
from .expert import RANDOM, Behaviour

_NAME = "pendulum_mixed"
_EPISODES_AT_A_TIME = 25


@dataclasses.dataclass(frozen=True)
class Recording:
    """A dataset on disk.

    Attributes:
      folder: what `load_rlds` takes.
      returns: float64 `[E]`, of its episodes.
      random_return: the average of 25 episodes of random actions, which are not in the dataset.
    """

    folder: Path
    returns: np.ndarray[Any, np.dtype[np.float64]]
    random_return: float

    @property
    def mean_return(self) -> float:
        """The average of the dataset's episodes."""
        return float(self.returns.mean())


DEFAULT_MIX: Mapping[Behaviour, int] = {Behaviour("careful", 0.2): 25, Behaviour("sloppy", 0.8): 75}
"""How many episodes of which behaviour: three of four are bad, so that cloning them all is bad too."""


def record(folder: Path, seed: int, mix: Mapping[Behaviour, int] = DEFAULT_MIX, *, progress: bool = True) -> Recording:
    """Plays each behaviour in real environments and writes the episodes as TFDS files.

    An episode's metadata tell its `behaviour` and its `episode_return`. Each is cut by the time limit of 200 steps: its
    last step is `is_last` and not `is_terminal`, and has the observation that the last action led to.

    Args:
      folder: where to; it may exist.
      seed: of environments and actions.
      mix: how many episodes of each behaviour.
      progress: a bar on stderr.
    """
    import tensorflow_datasets as tfds
    from rlds.tfds.episode_writer import EpisodeWriter

    config = tfds.rlds.rlds_base.DatasetConfig(
        name=_NAME,
        observation_info=tfds.features.Tensor(shape=(3,), dtype=np.float32),
        action_info=tfds.features.Tensor(shape=(1,), dtype=np.float32),
        reward_info=np.float32,
        discount_info=np.float32,
        episode_metadata_info={"behaviour": tfds.features.Text(), "episode_return": np.float32},
    )
    folder.mkdir(parents=True, exist_ok=True)
    writer = EpisodeWriter(str(folder), config)
    rng = np.random.default_rng(seed)
    returns = []
    with tqdm(total=sum(mix.values()), desc="recording RLDS", unit=" episodes", disable=not progress) as bar:
        for index, (behaviour, num_episodes) in enumerate(mix.items()):
            environment_seed = 10 * seed + index
            for episode in _episodes(behaviour, num_episodes, environment_seed, rng):
                metadata = {"behaviour": behaviour.name, "episode_return": np.float32(episode.total_reward)}
                writer.add_episode({"steps": rlds_steps(episode), **metadata})
                returns.append(episode.total_reward)
                bar.update(1)
    writer.close()
    by_chance = _episodes(RANDOM, _EPISODES_AT_A_TIME, 10 * seed + len(mix), rng)
    random_return = float(np.mean([episode.total_reward for episode in by_chance]))
    return Recording(folder, np.array(returns), random_return)


def _episodes(behaviour: Behaviour, num_episodes: int, seed: int, rng: np.random.Generator) -> list[PlayedEpisode]:
    episodes: list[PlayedEpisode] = []
    environment = make_environment(min(num_episodes, _EPISODES_AT_A_TIME), seed)
    while len(episodes) < num_episodes:
        episodes += play(environment, lambda time_step: behaviour.choose(time_step.observation, rng))
    return episodes[:num_episodes]
