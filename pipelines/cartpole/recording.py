"""Episodes into an RLDS dataset on disk, with rlds' own writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .environments import PlayedEpisode

_NAME = "cartpole_dqn"


def write_rlds(episodes: Sequence[PlayedEpisode], folder: Path) -> Path:
    """Writes the episodes as TFDS files; returns the folder that `load_rlds` takes."""
    import tensorflow_datasets as tfds
    from rlds.tfds.episode_writer import EpisodeWriter

    config = tfds.rlds.rlds_base.DatasetConfig(
        name=_NAME,
        observation_info=tfds.features.Tensor(shape=(4,), dtype=np.float32),
        action_info=np.int64,
        reward_info=np.float32,
        discount_info=np.float32,
    )
    folder.mkdir(parents=True, exist_ok=True)
    writer = EpisodeWriter(str(folder), config)
    for episode in episodes:
        writer.add_episode({"steps": rlds_steps(episode)})
    writer.close()
    return folder


def rlds_steps(episode: PlayedEpisode) -> list[dict[str, Any]]:
    """The `N + 1` RLDS steps of an episode of `N` actions; the last holds the final observation only."""
    num_actions = len(episode.actions)
    steps = []
    for t in range(num_actions + 1):
        is_last = t == num_actions
        enters_terminal = episode.is_terminal and t >= num_actions - 1
        steps.append(
            {
                "observation": episode.observations[t],
                "action": np.int64(0) if is_last else episode.actions[t],
                "reward": np.float32(0) if is_last else episode.rewards[t],
                "discount": np.float32(0.0 if enters_terminal else 1.0),
                "is_first": t == 0,
                "is_last": is_last,
                "is_terminal": is_last and episode.is_terminal,
            }
        )
    return steps
