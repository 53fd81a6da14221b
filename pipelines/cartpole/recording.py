"""Episodes into an RLDS dataset on disk, with rlds' own writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from replayfeed.pipelines.played_episode import PlayedEpisode, rlds_steps

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
