"""All that is served is saved the same way: by its server, whichever class of it asks, and beside a model."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    CheckpointConfig,
    MultiAgentReplayBuffer,
    Prioritized,
    ReplayServer,
    ReverbAgentTables,
    ReverbEpisodicReplayBuffer,
    ReverbReplayBuffer,
    ReverbTableGroup,
    TableConfig,
    TFUniformReplayBuffer,
    agent_tables,
)

COUNTER = tf.TensorSpec([], tf.int64)
TABLES = [TableConfig(name, COUNTER, 9, scannable=True) for name in ("a", "b")]
AGENTS = ({"x": COUNTER, "y": COUNTER}, {"x": "p", "y": "p"})
POLICY_TABLE = {"p": TableConfig("p", COUNTER, 9, scannable=True)}


def local_windows(**settings: Any) -> ReverbReplayBuffer:
    return ReverbReplayBuffer.local(COUNTER, max_size=9, sequence_length=1, **settings)


def local_episodes(**settings: Any) -> ReverbEpisodicReplayBuffer:
    return ReverbEpisodicReplayBuffer.local(COUNTER, max_size=9, max_episode_length=5, **settings)


def local_group(**settings: Any) -> ReverbTableGroup:
    return ReverbTableGroup.local(COUNTER, TABLES, **settings)


def local_agents(**settings: Any) -> ReverbAgentTables:
    return ReverbAgentTables.local(*AGENTS, independent=POLICY_TABLE, **settings)


LOCAL = (local_windows, local_episodes, local_group, local_agents)


def add_one(served: Any) -> None:
    """One frame, the only one of its episode; of each agent."""
    if isinstance(served, ReverbAgentTables):
        served.add_batch({"x": np.array([5]), "y": np.array([6])})
    else:
        served.add_batch([5], end_of_episode=np.array([True]))


def contents(served: Any) -> list[int]:
    """Every frame that is held, of a group's first table."""
    reader = served["a"] if isinstance(served, ReverbTableGroup) else served
    reader = served["p"] if isinstance(served, ReverbAgentTables) else reader
    passed = reader.as_dataset(single_deterministic_pass=True, num_steps=1)
    return sorted(int(leaf) for items, _ in passed for leaf in np.ravel(tf.nest.flatten(items)[0]))


# -- servers of their own ----------------------------------------------------------------------


@pytest.mark.parametrize("local", LOCAL)
def test_what_is_closed_is_there_again_where_its_server_takes_a_checkpoint_when_it_stops(tmp_path, local):
    config = CheckpointConfig(tmp_path, checkpoint_on_stop=True, keep_last=1)
    with local(checkpoints=config) as served:
        add_one(served)
        first = served.checkpoint(7)
    with local(checkpoints=config) as served:
        assert contents(served) == ([5, 6] if isinstance(served, ReverbAgentTables) else [5])
        begun = served.local_server.started_from
        assert begun.step == 7 and begun.path != first.path, "one was taken at the end, with the step last told"
        add_one(served)
    assert len([path for path in tmp_path.iterdir() if path.name[:2] == "20"]) == 1


@pytest.mark.parametrize("local", LOCAL)
def test_checkpoints_are_told_in_one_way(tmp_path, local):
    with pytest.raises(ValueError, match="checkpoint_dir and on_mismatch beside checkpoints: say it in the Checkpoint"):
        local(checkpoint_dir=tmp_path, on_mismatch="keep", checkpoints=CheckpointConfig(tmp_path))
    with pytest.raises(ValueError, match="on_mismatch needs checkpoint_dir, where checkpoints go"):
        local(on_mismatch="keep")


def test_a_server_of_its_own_takes_checkpoints_by_inserts(tmp_path):
    with local_windows(checkpoints=CheckpointConfig(tmp_path, checkpoint_every_inserts=2)) as buffer:
        for _ in range(100_000):  # it looks five times a second
            buffer.add_batch([1])
            buffer.flush()
            if buffer.local_server.last_checkpoint is not None:
                break
        assert buffer.local_server.last_checkpoint.items["replay"] >= 2


def test_mirrors_of_priorities_are_in_the_checkpoint_that_is_taken_at_the_end(tmp_path):
    def local() -> ReverbReplayBuffer:
        return local_windows(
            sampler=Prioritized(1.0),
            scannable=False,
            initial="max",
            tracks_least=True,
            weight_norm="buffer",
            checkpoints=CheckpointConfig(tmp_path, checkpoint_on_stop=True),
        )

    with local() as buffer:
        buffer.add_sequence([[1, 2, 3]], priorities=np.array([[1.0, 4.0, 2.0]]))
    with local() as buffer:
        assert set(buffer.local_server.started_from.items.values()) == {3}
        assert set(buffer.local_server.started_from.items) == {"replay", "replay__max", "replay__min"}


# -- beside a model ----------------------------------------------------------------------------


@contextlib.contextmanager
def served_by(name: str, server: ReplayServer) -> Iterator[Any]:
    """One of the classes, over the same server's tables."""
    with contextlib.ExitStack() as stack:
        if name == "windows":
            made: Any = ReverbReplayBuffer(COUNTER, "a", 1, local_server=server)
        elif name == "episodes":
            made = ReverbEpisodicReplayBuffer(COUNTER, "episodes", local_server=server)
        elif name == "group":
            made = ReverbTableGroup(COUNTER, ["a", "b"], None, server)
        else:
            made = ReverbAgentTables(*AGENTS, independent={"p": "p"}, local_server=server)
        stack.enter_context(made)
        if name == "many agents":
            made = stack.enter_context(MultiAgentReplayBuffer(*AGENTS, made))
        yield made


CLASSES = {
    "windows": "table 'a'",
    "episodes": "table 'episodes'",
    "group": "table 'a', 'b'",
    "agents": "table 'p'",
    "many agents": "table 'p'",
}


def serve(folder: Any) -> ReplayServer:
    episodes = TableConfig("episodes", COUNTER, 9, sequence_length=None, max_episode_length=5)
    return ReplayServer([*TABLES, episodes, *agent_tables(*AGENTS, independent=POLICY_TABLE)], checkpoint_dir=folder)


@pytest.mark.parametrize("name", CLASSES)
def test_a_models_checkpoint_keeps_which_one_of_the_server_it_goes_with(tmp_path, caplog, name):
    tables = CLASSES[name]
    with serve(tmp_path / "server") as server, served_by(name, server) as served:
        model = tf.train.Checkpoint(buffer=served, number=tf.Variable(3))
        model.save(str(tmp_path / "before"))
        assert f"{tables} at {server.address} is saved by its server, of which no checkpoint is known" in caplog.text
        report = server.checkpoint(10)
        path = model.save(str(tmp_path / "model"))
    with serve(tmp_path / "server") as server, served_by(name, server) as served:
        model = tf.train.Checkpoint(buffer=served, number=tf.Variable(0))
        caplog.clear()
        caplog.set_level(logging.WARNING)
        model.restore(path).assert_consumed()
        assert int(model.number) == 3 and "the model was saved" not in caplog.text
        server.checkpoint(20)
        model.restore(path).assert_consumed()
        assert f"saved with checkpoint {report.path} (step 10) of {tables}; server {server.address}" in caplog.text
        assert "has gone on: it has taken" in caplog.text


def test_what_another_buffer_saved_is_refused(tmp_path):
    rings = MultiAgentReplayBuffer(*AGENTS, lambda data_spec, batch_size: TFUniformReplayBuffer(data_spec, batch_size))
    with serve(None) as server:
        for name in CLASSES:
            with served_by(name, server) as served:
                with pytest.raises(ValueError, match="this is not what a served buffer has saved"):
                    served.deserialize(rings.serialize())
                with pytest.raises(ValueError):
                    rings.deserialize(served.serialize())


@pytest.mark.parametrize("name", CLASSES)
def test_contents_do_not_go_through_clients_and_the_error_says_what_to_do(name):
    with serve(None) as server, served_by(name, server) as served:
        for call in (lambda: served.save("x"), served.get_state):
            with pytest.raises(ValueError, match=r"ReplayServer.*checkpoint_dir"):
                call()


@pytest.mark.parametrize("name", ["windows", "group", "agents"])
def test_what_is_closed_asks_for_nothing(tmp_path, name):
    with serve(tmp_path) as server:
        with served_by(name, server) as served:
            pass
        for call in (served.checkpoint, lambda: served.mark_step(1)):
            with pytest.raises(ValueError, match="this buffer is closed"):
                call()
