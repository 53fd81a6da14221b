"""What offline data are held against: TFDS, rlds, TF-Agents, and what the machine could do at best."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import reverb
import tensorflow as tf
import tensorflow_datasets as tfds
from offline_data import Offline
from rlds.tfds import episode_writer
from tf_agents.replay_buffers import reverb_utils, rlds_to_reverb
from tf_agents.specs import tensor_spec


def undecoded(builder: Any) -> tf.data.Dataset:
    """Every episode as TFDS gives it with `SkipDecoding`: its steps as the file holds them, none decoded.

    Without TFDS's cache: a second pass would read memory, not the folder.
    """
    return builder.as_dataset(
        split="train",
        decoders={"steps": tfds.decode.SkipDecoding()},
        shuffle_files=False,
        read_config=tfds.ReadConfig(try_autocache=False),
    )


def read_and_discard(episodes: tf.data.Dataset) -> int:
    """Reads them all and throws them away; how many steps there were."""
    return sum(len(episode["steps"]["reward"]) for episode in episodes)


def read_records(path: str) -> int:
    """Bytes of all records of a folder, read and not looked into: the limit of whatever reads it."""
    files = sorted(str(file) for file in pathlib.Path(path).glob("*.tfrecord*"))
    lengths = tf.data.TFRecordDataset(files).map(tf.strings.length)
    return int(lengths.reduce(0, lambda total, length: total + length))


def encoded_pictures(episodes: tf.data.Dataset) -> list[bytes]:
    """The PNGs of all observations."""
    return [png for episode in episodes for png in episode["steps"]["observation"].numpy().tolist()]


def decoding(pictures: list[bytes]) -> tf.data.Dataset:
    """`tf.io.decode_png` of each, on all cores, in batches of 500."""
    dataset = tf.data.Dataset.from_tensor_slices(pictures)
    return dataset.map(tf.io.decode_png, num_parallel_calls=tf.data.AUTOTUNE).batch(500).prefetch(2)


class Pushed:
    """TF-Agents' `push_rlds_to_reverb` of a folder's first episodes into a table of its own.

    Args:
      builder: of the folder.
      num_episodes: that are pushed.
      num_steps: the most that an episode has.
      whole: items are whole episodes; else windows of two frames.
    """

    def __init__(self, builder: Any, num_episodes: int, num_steps: int, *, whole: bool) -> None:
        self.whole = whole
        self._data = builder.as_dataset(split=f"train[:{num_episodes}]", shuffle_files=False)
        spec = tensor_spec.add_outer_dim(rlds_to_reverb.create_trajectory_data_spec(self._data))
        table = reverb.Table(
            "offline",
            reverb.selectors.Uniform(),
            reverb.selectors.Fifo(),
            num_episodes if whole else num_episodes * num_steps,
            reverb.rate_limiters.MinSize(1),
            signature=spec,
        )
        self._server = reverb.Server([table])
        client = self._server.localhost_client()
        self._observer = (
            reverb_utils.ReverbAddEpisodeObserver(client, "offline", num_steps)
            if whole
            else reverb_utils.ReverbAddTrajectoryObserver(client, "offline", sequence_length=2)
        )

    def push(self) -> int:
        """Pushes them all; how many frames."""
        return int(rlds_to_reverb.push_rlds_to_reverb(self._data, self._observer))

    def flush(self) -> None:
        """Waits until the server has what was pushed."""
        if isinstance(self._observer, reverb_utils.ReverbAddTrajectoryObserver):
            self._observer.flush()


class RldsWriter:
    """`rlds.tfds.EpisodeWriter` of episodes in memory, whose steps are laid out as dicts beforehand."""

    def __init__(self, data: Offline, num_episodes: int) -> None:
        features = tfds.features
        self._config = tfds.rlds.rlds_base.DatasetConfig(
            name="bench",
            observation_info=features.Image(shape=(84, 84, 1), encoding_format="png")
            if data.pixels
            else features.Tensor(shape=(17,), dtype=tf.float32),
            action_info=features.Tensor(shape=(6,), dtype=tf.float32),
            reward_info=tf.float32,
            discount_info=tf.float32,
        )
        episodes = [data.columns(index) for index in range(num_episodes)]
        self._episodes = [
            [{name: column[index] for name, column in columns.items()} for index in range(data.num_steps)]
            for columns in episodes
        ]

    def write(self) -> None:
        """Writes them into a folder that is removed again."""
        with tempfile.TemporaryDirectory() as folder:
            writer = episode_writer.EpisodeWriter(folder, self._config, max_episodes_per_file=50)
            for steps in self._episodes:
                writer.add_episode({"steps": steps})
            writer.close()
