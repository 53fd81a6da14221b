"""Tables of a Reverb server, filled: limiters that would block, preloaded ones, groups, writes that time out."""

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    MultiAgentReplayBuffer,
    Queue,
    ReverbEpisodicReplayBuffer,
    ReverbReplayBuffer,
    ReverbTableGroup,
    SampleToInsertRatio,
    TableConfig,
    WaitTimeoutError,
    Window,
    preloaded_server,
)
from replayfeed.pipelines import fill_limiter
from replayfeed.pipelines.fill import fill
from replayfeed.pipelines.rlds_read import load_rlds


def _episodes(*lengths, layout="transition"):
    """Episodes of these lengths in transitions; observations count on over all of them, as in `0 1 2 | 3 4`."""
    starts = np.cumsum((0, *(length + 1 for length in lengths)))

    def generate():
        for start, length in zip(starts, lengths, strict=False):
            steps = np.arange(start, start + length + 1)
            yield {"steps": {"observation": steps, "is_terminal": steps == start + length}}

    signature = {"observation": tf.TensorSpec([None], tf.int64), "is_terminal": tf.TensorSpec([None], tf.bool)}
    return load_rlds(tf.data.Dataset.from_generator(generate, output_signature={"steps": signature}), layout=layout)


@pytest.fixture
def quick(monkeypatch):
    """Nobody draws here: the first draw gets no time to come."""
    monkeypatch.setattr(fill_limiter, "_GRACE_SECONDS", 0.0)


# Limiters


@pytest.mark.parametrize("layout", ["transition", "trajectory", "step"])
@pytest.mark.parametrize(
    "window", [Window(1), Window(2), Window(3, stride=2), Window(2, burn_in=1), Window(3, stride=2, short="pad")]
)
def test_the_items_of_an_episode_are_counted_as_the_buffer_makes_them(layout, window):
    for length in (1, 2, 3, 6, 7):
        episodes = _episodes(length, layout=layout)
        with ReverbReplayBuffer.local(
            episodes.element_spec,
            max_size=100,
            sequence_length=window.num_steps,
            burn_in=window.burn_in,
            stride=window.stride,
            short=window.short,
            scannable=False,
        ) as buffer:
            report = fill(buffer, episodes, progress=False)
            made = buffer.get_table_info().rate_limiter_info.insert_stats.completed
        counted = fill_limiter.num_items(window, report.frames, ends_in_observation=layout != "transition")
        assert counted == made, (length, window)


def test_a_ratio_that_lets_everything_in_is_filled_to_its_last_insert(quick):
    episodes = _episodes(3, 4, 3)
    # 8 items by size, and 2 more by the ratio: windows of 2 are 2 + 3 + 2.
    limiter = SampleToInsertRatio(2.0, 5, 4.0)
    with ReverbReplayBuffer.local(
        episodes.element_spec, max_size=100, sequence_length=2, rate_limiter=limiter
    ) as buffer:
        assert fill(buffer, episodes, progress=False).episodes == 3
        assert buffer.get_table_info().rate_limiter_info.insert_stats.completed == 7


def test_a_limiter_that_would_block_is_told_before_the_episode(quick):
    episodes = _episodes(3, 4, 4)
    limiter = SampleToInsertRatio(2.0, 5, 4.0)
    with ReverbReplayBuffer.local(
        episodes.element_spec, max_size=100, sequence_length=2, rate_limiter=limiter
    ) as buffer:
        with pytest.raises(WaitTimeoutError) as error:
            fill(buffer, episodes, progress=False)
        assert str(error.value) == (
            "episode 2 makes 3 items, and the limiter of table 'replay' lets in 2 more while nobody draws (5 inserts "
            "* 2 - 0 samples = 10, kept in [6, 14]): nothing of it was written. Load offline data with "
            "preloaded_server(data_spec, tables, episodes), whose ratios do not count it; or draw from the table while "
            "it is filled."
        )
        assert buffer.gather_all()["observation"].numpy().tolist() == [[0, 1, 2, 4, 5, 6, 7]]
        # Whoever draws makes room.
        buffer.sample(4)
        assert fill(buffer, _episodes(4), progress=False).episodes == 1


def test_a_full_queue_is_told(quick):
    episodes = _episodes(2, 2)
    with ReverbReplayBuffer.local(
        episodes.element_spec,
        max_size=3,
        sequence_length=1,
        rate_limiter=Queue(3),
        max_times_sampled=1,
        scannable=False,
    ) as buffer:
        with pytest.raises(WaitTimeoutError, match="episode 1 makes 2 items, .* lets in 1 more while nobody draws"):
            fill(buffer, episodes, progress=False)


def test_whole_episodes_are_one_item_each(quick):
    episodes = _episodes(3, 50, 1, 4)
    limiter = SampleToInsertRatio(1.0, 2, 1.0)
    with ReverbEpisodicReplayBuffer.local(
        episodes.element_spec, max_size=100, max_episode_length=60, rate_limiter=limiter
    ) as buffer:
        with pytest.raises(WaitTimeoutError, match="episode 3 makes 1 items, .* lets in 0 more"):
            fill(buffer, episodes, progress=False)
        assert len(buffer) == 54


def test_agents_tables_are_watched_too(quick):
    spec = _episodes(1).element_spec
    table = TableConfig("agents", spec, 100, rate_limiter=SampleToInsertRatio(1.0, 2, 1.0))
    with MultiAgentReplayBuffer({"a": spec}, lambda agent: agent, table) as buffer:
        watch = fill_limiter.InsertWatch(buffer, ends_in_observation=False)
        watch.before_episode("0", 3)
        with pytest.raises(WaitTimeoutError, match="episode 1 makes 4 items"):
            watch.before_episode("1", 4)


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_a_preloaded_server_takes_episodes_and_its_ratio_begins_behind_them(layout, quick):
    episodes = _episodes(5, 1, 3, layout=layout)
    spec = episodes.element_spec
    table = TableConfig("replay", spec, 100, sequence_length=2, rate_limiter=SampleToInsertRatio(2.0, 1, 4.0))
    with (
        preloaded_server(spec, [table], episodes) as server,
        ReverbReplayBuffer(spec, "replay", 2, local_server=server) as buffer,
    ):
        assert len(buffer) == {"transition": 6, "trajectory": 9}[layout]
        assert buffer.ready(4)
        assert not buffer.ready(5)


def test_a_group_is_filled_with_one_writing_of_each_frame():
    episodes = _episodes(3, 2)
    spec = episodes.element_spec
    tables = [TableConfig("one", spec, 100), TableConfig("pairs", spec, 100, sequence_length=2)]
    with ReverbTableGroup.local(spec, tables, batch_size=2) as group:
        report = fill(group, episodes, priorities=lambda episode: np.ones(episode.num_frames), progress=False)
        assert (report.episodes, report.frames) == (2, 5)
        assert [len(group["one"]), len(group["pairs"])] == [5, 3]


# Writes that are cut short


def test_a_write_that_times_out_says_what_stays_and_ends_the_episode(monkeypatch):
    episodes = _episodes(30)
    # As when somebody drew when the load looked, and stopped.
    monkeypatch.setattr(fill_limiter, "num_free_inserts", lambda state: 1000)
    with ReverbReplayBuffer.local(
        episodes.element_spec,
        max_size=1000,
        sequence_length=1,
        rate_limiter=SampleToInsertRatio(1.0, 1, 5.0),
        max_pending_items=4,
        timeout_s=2.0,
    ) as buffer:
        with pytest.raises(WaitTimeoutError) as error:
            fill(buffer, episodes, progress=False)
        written = error.value.num_written
        assert 0 < written < 30
        assert f"Its first {written} of 30 frames are written and stay, as an episode that was cut" in str(error.value)
        assert str(error.value).startswith("episode 0: ")
        # Draws let in what was held back.
        while buffer.get_table_info().current_size < written:
            buffer.sample(1)
        buffer.sample(3)
        fill(buffer, _episodes(1), progress=False)
        windows = buffer.as_dataset(num_steps=None, single_deterministic_pass=True)
        assert [int(items["observation"]) for items, _ in windows] == [*range(written), 0]
