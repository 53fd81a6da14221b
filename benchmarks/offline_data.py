"""The offline data of the benchmarks, made in a temporary folder: two RLDS folders and an HDF5 file.

FLOATS  steps of 17 + 6 floats, as of D4RL's locomotion, in episodes of 500.
PIXELS  steps with an 84x84 picture stored as PNG, and 6 floats of action, in episodes of 500.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from measure import Scale

from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_write import write_rlds

_EPISODE_STEPS = 500
# As many pictures an episode are drawn by chance; the others repeat them, moved by some rows.
_PICTURES = 50


@dataclasses.dataclass(frozen=True)
class Offline:
    """Episodes that are made as they are asked for.

    Attributes:
      name: as the table calls it.
      num_episodes: of them.
      num_steps: in each, the final observation's included.
      pixels: observations are pictures.
    """

    name: str
    num_episodes: int
    num_steps: int
    pixels: bool = False

    @property
    def steps(self) -> int:
        """Of all episodes."""
        return self.num_episodes * self.num_steps

    @property
    def transitions(self) -> int:
        """Of all episodes: what layout 'transition' makes of them."""
        return self.num_episodes * (self.num_steps - 1)

    def columns(self, episode: int) -> dict[str, Any]:
        """The steps of an episode, arrays `[num_steps, ...]`."""
        rng, num = np.random.default_rng(episode), self.num_steps
        flag = np.zeros([num], bool)
        ends = flag.copy()
        ends[-1] = True
        return {
            "observation": _pictures(rng, num) if self.pixels else rng.standard_normal((num, 17), np.float32),
            "action": rng.standard_normal((num, 6), np.float32),
            "reward": rng.standard_normal(num, np.float32),
            "discount": np.ones([num], np.float32),
            "is_first": ends[::-1],
            "is_last": ends,
            # Every second episode ends, the others are truncated.
            "is_terminal": ends if episode % 2 else flag,
        }

    def source(self, num_episodes: int | None = None) -> EpisodeSource:
        """The first episodes, in memory; by default all."""
        made = [self.columns(index) for index in range(num_episodes or self.num_episodes)]

        def read(seed: int | None) -> Iterator[RawEpisode]:
            return (RawEpisode(str(index), columns, place=index) for index, columns in enumerate(made))

        spec = {name: tf.TensorSpec(column.shape[1:], column.dtype) for name, column in made[0].items()}
        return EpisodeSource(f"{self.name}_bench", spec, read, num_episodes=len(made))

    def write(self, folder: str | pathlib.Path) -> str:
        """Writes them as a TFDS folder, and returns its path."""
        path = pathlib.Path(folder, self.name)
        write_rlds(self.source(), path, name=f"{self.name}_bench", progress=False)
        return str(path)

    def write_hdf5(self, folder: str | pathlib.Path) -> str:
        """Writes the same episodes as D4RL lays them out, and returns the file's path."""
        import h5py

        path = str(pathlib.Path(folder, f"{self.name}.hdf5"))
        episodes = [self.columns(index) for index in range(self.num_episodes)]
        columns = {name: np.concatenate([episode[name] for episode in episodes]) for name in episodes[0]}
        with h5py.File(path, "w") as file:
            for name in ("observation", "action", "reward"):
                file[f"{name}s"] = columns[name]
            file["terminals"] = columns["is_terminal"]
            file["timeouts"] = columns["is_last"] & ~columns["is_terminal"]
        return path


def floats(scale: Scale) -> Offline:
    """A tenth of the frames of W1: 100,000 steps."""
    return _of("floats", scale.w1_capacity // 10, pixels=False)


def pixels(scale: Scale) -> Offline:
    """Half of the frames of W2: 10,000 steps."""
    return _of("pixels", scale.w2_capacity // 2, pixels=True)


def _of(name: str, num_steps: int, *, pixels: bool) -> Offline:
    num_episodes = max(2, num_steps // _EPISODE_STEPS)
    return Offline(name, num_episodes, num_steps // num_episodes, pixels)


def _pictures(rng: np.random.Generator, num: int) -> np.ndarray:
    """`[num, 84, 84, 1]`: ramps with a little noise, which PNG stores in about a quarter of their bytes."""
    drawn = np.cumsum(rng.integers(0, 3, (min(num, _PICTURES), 84, 84, 1)), 1).astype(np.uint8)
    return np.stack([np.roll(drawn[index % len(drawn)], index // len(drawn), 0) for index in range(num)])


if __name__ == "__main__":
    # In a process of its own, so that what it takes is not counted as the reader's: which kind, how much, where.
    kind, num_episodes, num_steps, target = sys.argv[1:]
    Offline(kind, int(num_episodes), int(num_steps), pixels=kind == "pixels").write(target)
