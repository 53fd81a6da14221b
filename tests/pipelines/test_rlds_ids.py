"""The ids of episodes are TFDS's own, in whatever order and slice they are read."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.pipelines.episode_source import EpisodeSource, RawEpisode
from replayfeed.pipelines.rlds_open import open_source
from replayfeed.pipelines.rlds_write import write_rlds

tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Seven episodes in three files: observation 10 * e, 10 * e + 1."""
    spec = {"observation": tf.TensorSpec([], tf.int64), "is_terminal": tf.TensorSpec([], tf.bool)}

    def read(seed):
        for e in range(7):
            columns = {"observation": np.array([10 * e, 10 * e + 1]), "is_terminal": np.array([False, True])}
            yield RawEpisode(str(e), columns, place=e)

    path = str(tmp_path_factory.mktemp("ids") / "numbered")
    write_rlds(EpisodeSource("numbered", spec, read, num_episodes=7), path, name="numbered", shards=3, progress=False)
    return path


def ids_by_tfds(folder, split):
    config = tfds.ReadConfig(
        add_tfds_id=True, interleave_cycle_length=1, interleave_block_length=1, try_autocache=False
    )
    episodes = tfds.builder_from_directory(folder).as_dataset(
        split=split, decoders={"steps": tfds.decode.SkipDecoding()}, shuffle_files=False, read_config=config
    )
    return [(episode["tfds_id"].numpy().decode(), int(episode["steps"]["observation"][0])) for episode in episodes]


@pytest.mark.parametrize(
    "split", ["train", "train[:4]", "train[3:]", "train[-2:]", "train[2:5]", "train[5:]+train[:3]"]
)
def test_ids_in_the_files_order_are_those_that_tfds_gives(folder, split):
    read = list(open_source(folder, split=split).read(None))
    assert [(raw.id, int(raw.columns["observation"][0])) for raw in read] == ids_by_tfds(folder, split)


@pytest.mark.parametrize("split", ["train", "train[2:5]"])
def test_an_episode_has_the_same_id_place_and_name_in_every_order(folder, split):
    source = open_source(folder, split=split)
    in_order = {raw.id: (raw.name, raw.place, int(raw.columns["observation"][0])) for raw in source.read(None)}
    shuffled = {raw.id: (raw.name, raw.place, int(raw.columns["observation"][0])) for raw in source.read(7)}
    assert shuffled == in_order
    assert all(int(name) == place == observation // 10 for name, place, observation in in_order.values())
