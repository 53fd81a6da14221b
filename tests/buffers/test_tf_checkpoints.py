"""Buffers in TensorFlow's checkpoints: whole (`buffer=buffer`), or beside them (`buffer=buffer.saved_in(folder)`)."""

from __future__ import annotations

import pathlib
import shutil
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    EpisodicReplayBuffer,
    ReplayBuffer,
    ReservoirReplayBuffer,
    SavedIterator,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
)

NUMBER = tf.TensorSpec([], tf.int64)
FRAME = tf.TensorSpec([84, 84, 1], tf.uint8)


def ring(spec: Any = NUMBER, max_length: int = 10) -> TFUniformReplayBuffer:
    return TFUniformReplayBuffer(spec, 1, max_length, seed=3)


def filled(*numbers: int, max_length: int = 10) -> TFUniformReplayBuffer:
    buffer = ring(max_length=max_length)
    buffer.add_sequence([list(numbers)])
    return buffer


def counter(value: int = 0) -> tf.Variable:
    return tf.Variable(value, dtype=tf.int64, trainable=False)


def held(buffer: ReplayBuffer) -> list[int]:
    return buffer.gather_all().numpy().ravel().tolist()


def drawn(buffer: ReplayBuffer) -> list[int]:
    return buffer.sample(8)[0].numpy().ravel().tolist()


# -- with the rest of a training script --------------------------------------------------------

_TRAIN = """
import sys
import numpy as np, tensorflow as tf
from tf_agents.agents.dqn.dqn_agent import DqnAgent
from tf_agents.networks.q_network import QNetwork
from tf_agents.specs import BoundedTensorSpec
from tf_agents.trajectories.time_step import time_step_spec
from tf_agents.trajectories.trajectory import Trajectory
from tf_agents.utils.common import Checkpointer
from replayfeed.buffers import SavedIterator, TFUniformReplayBuffer

folder, is_new = sys.argv[1], sys.argv[2] == "new"
observations, actions = tf.TensorSpec([2]), BoundedTensorSpec([], tf.int64, 0, 1)
counter = tf.Variable(0, dtype=tf.int64)
agent = DqnAgent(
    time_step_spec(observations), actions, QNetwork(observations, actions, fc_layer_params=(4,)),
    tf.keras.optimizers.Adam(0.01), train_step_counter=counter,
)
agent.initialize()
buffer = TFUniformReplayBuffer(agent.collect_data_spec, 1, 50, seed=5)
batches = iter(buffer.as_dataset(8, num_steps=2).prefetch(2))
checkpointer = Checkpointer(
    folder + "/checkpoints", max_to_keep=2, agent=agent, step=counter, batches=SavedIterator(batches),
    buffer=buffer.saved_in(folder + "/buffer", step=counter),
)
status = checkpointer.initialize_or_restore()

def add(first, num):
    numbers = np.arange(first, first + num)
    at = np.stack([np.sin(numbers), np.cos(numbers)], 1).astype(np.float32)[None]
    kinds, ones = np.ones([1, num], np.int32), np.ones([1, num], np.float32)
    buffer.add_sequence(Trajectory(kinds, at, (numbers % 2)[None], (), kinds, at[..., 0], ones))

if is_new:
    add(0, 60)
    for _ in range(3):
        agent.train(next(batches)[0])
    checkpointer.save(counter)
else:
    status.assert_existing_objects_matched()
print(int(counter), [round(float(agent.train(next(batches)[0]).loss), 5) for _ in range(6)])
add(60, 1)
rewards = buffer.gather_all().reward.numpy()[0]
print(len(buffer), f"{rewards[0]:.4f} {rewards[-1]:.4f}", buffer.sample(6)[1].ids.numpy().tolist())
"""


def test_a_training_script_goes_on_in_a_new_process_as_if_it_had_not_ended(run_python, tmp_path):
    # Losses are the same only where weights, the optimizer's moments, the buffer and the iterator's place are.
    going_on = run_python(_TRAIN, str(tmp_path), "new").splitlines()[-2:]
    assert run_python(_TRAIN, str(tmp_path), "old").splitlines()[-2:] == going_on
    assert going_on[0].startswith("3 [")
    assert going_on[1].startswith("50 -1.0000 -0.3048 [")  # the sines of 11, the oldest of the last 50, and of 60


def test_max_to_keep_and_going_back_to_an_older_checkpoint(tmp_path):
    buffer, step = filled(1, 2), counter()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(buffer=buffer, step=step), tmp_path, max_to_keep=2)
    for number in (3, 4, 5):
        buffer.add_batch([number])
        step.assign_add(1)
        manager.save(checkpoint_number=step)
    assert [pathlib.Path(path).name for path in manager.checkpoints] == ["ckpt-2", "ckpt-3"]
    assert len(list(tmp_path.glob("*.data-*"))) == 2
    manager.checkpoint.restore(manager.checkpoints[0]).assert_consumed()
    assert (held(buffer), int(step)) == ([1, 2, 3, 4], 2)


_KINDS: dict[str, Callable[[], ReplayBuffer]] = {
    "uniform": ring,
    "prioritized": lambda: TFPrioritizedReplayBuffer(NUMBER, 1, 10, alpha=0.6, seed=3),
    "reservoir": lambda: ReservoirReplayBuffer(NUMBER, 10, seed=3),
    "episodic": lambda: EpisodicReplayBuffer(NUMBER, 4, seed=3, end_of_episode_fn=lambda number: number % 3 == 0),
}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("how", ["whole", "beside"])
def test_buffers_of_each_class_go_on_in_the_next_draw_and_the_next_add(kind, how, tmp_path):
    def part(buffer: ReplayBuffer) -> Any:
        return buffer if how == "whole" else buffer.saved_in(tmp_path / "buffer")

    buffer, again = _KINDS[kind](), _KINDS[kind]()
    buffer.add_sequence([list(range(1, 14))])
    path = tf.train.Checkpoint(buffer=part(buffer)).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(buffer=part(again)).read(path).assert_consumed()
    for _ in range(3):
        assert drawn(again) == drawn(buffer)
        for each in (buffer, again):
            each.add_sequence([[20, 21, 22]])
        assert len(again) == len(buffer) > 0


@pytest.mark.parametrize("how", ["whole", "beside"])
def test_a_pass_goes_on_where_the_checkpoint_was_written(how, tmp_path):
    def parts(buffer: ReplayBuffer, batches: Any) -> tf.train.Checkpoint:
        part = buffer if how == "whole" else buffer.saved_in(tmp_path / "buffer")
        return tf.train.Checkpoint(buffer=part, batches=SavedIterator(batches))

    def shuffled(buffer: ReplayBuffer) -> Any:
        return iter(buffer.as_dataset(single_deterministic_pass=True).map(lambda number, _: number).shuffle(4, seed=1))

    buffer, again = filled(*range(10)), ring()
    batches = shuffled(buffer)
    before = [int(next(batches)) for _ in range(4)]
    path = parts(buffer, batches).write(str(tmp_path / "checkpoint"))
    after = [int(number) for number in batches]
    restored = shuffled(again)
    parts(again, restored).read(path).assert_consumed()
    assert [int(number) for number in restored] == after
    assert sorted(before + after) == list(range(10))


def test_several_buffers_in_one_checkpoint_keep_apart(tmp_path):
    first, second = filled(1, 2), filled(7, 8, 9)
    path = tf.train.Checkpoint(first=first, second=second.saved_in(tmp_path / "s")).write(str(tmp_path / "checkpoint"))
    new_first, new_second = ring(), ring()
    tf.train.Checkpoint(first=new_first, second=new_second.saved_in(tmp_path / "s")).read(path).assert_consumed()
    assert (held(new_first), held(new_second)) == ([1, 2], [7, 8, 9])


def test_a_checkpoint_that_tensorflow_writes_in_the_background_holds_the_buffer(tmp_path):
    buffer, step = filled(1, 2, 3), counter(7)
    checkpoint = tf.train.Checkpoint(buffer=buffer, step=step)
    path = checkpoint.save(
        tmp_path / "c", options=tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    )
    checkpoint.sync()
    again, step = ring(), counter()
    tf.train.Checkpoint(buffer=again, step=step).restore(path).assert_existing_objects_matched()
    assert (held(again), int(step)) == ([1, 2, 3], 7)


# -- what is matched with what -----------------------------------------------------------------


@pytest.fixture(params=["whole", "beside"])
def part(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Callable[[ReplayBuffer], Any]:
    """What goes into a checkpoint for a buffer."""
    if request.param == "whole":
        return lambda buffer: buffer
    return lambda buffer: buffer.saved_in(tmp_path / "buffer")


@pytest.fixture
def written(part: Callable[[ReplayBuffer], Any], tmp_path: pathlib.Path) -> str:
    """A checkpoint of a buffer that holds 1, 2, 3, and of a step, 7."""
    checkpoint = tf.train.Checkpoint(buffer=part(filled(1, 2, 3)), step=counter(7))
    return checkpoint.write(str(tmp_path / "written"))


def test_a_buffer_that_is_attached_after_the_restore_is_filled_then(part, written):
    step, buffer = counter(), ring()
    checkpoint = tf.train.Checkpoint(step=step)
    status = checkpoint.read(written)
    assert int(step) == 7
    with pytest.raises(AssertionError, match="buffer"):
        status.assert_consumed()
    checkpoint.buffer = part(buffer)
    assert held(buffer) == [1, 2, 3]
    status.assert_consumed()


def test_the_model_alone_is_restored_for_evaluation(part, written, tmp_path):
    shutil.rmtree(tmp_path / "buffer", ignore_errors=True)
    step = counter()
    tf.train.Checkpoint(step=step).read(written).expect_partial().assert_existing_objects_matched()
    assert int(step) == 7


def test_a_checkpoint_without_the_buffer_leaves_it_as_it_is_and_says_so(part, tmp_path):
    path = tf.train.Checkpoint(step=counter(7)).write(str(tmp_path / "model"))
    buffer, step = filled(4), counter()
    status = tf.train.Checkpoint(step=step, buffer=part(buffer)).read(path)
    assert (int(step), held(buffer)) == (7, [4])
    with pytest.raises(AssertionError, match="not bound to checkpointed values"):
        status.assert_existing_objects_matched()


def test_a_buffer_of_another_spec_is_refused_by_its_fields_and_keeps_what_it_has(part, written):
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.float32), 1, 10)
    buffer.add_sequence([[0.5]])
    with pytest.raises(ValueError, match=r"data_spec differs .* stored \[\] int64, here \[\] float32"):
        tf.train.Checkpoint(buffer=part(buffer), step=counter()).read(written).expect_partial()
    assert buffer.gather_all().numpy().tolist() == [[0.5]]


def test_a_buffer_of_another_size_is_refused_with_both_sizes(part, written):
    buffer = filled(9, max_length=5)
    with pytest.raises(ValueError, match="max_length: stored 10, here 5"):
        tf.train.Checkpoint(buffer=part(buffer), step=counter()).read(written).expect_partial()
    assert held(buffer) == [9]


def test_a_checkpoint_written_while_frames_are_added_is_one_moment(part, tmp_path):
    buffer, again, stop = ring(max_length=1000), ring(max_length=1000), threading.Event()

    def add() -> None:
        number = 0
        while not stop.is_set():
            buffer.add_batch([number])
            number += 1

    adding = threading.Thread(target=add)
    adding.start()
    try:
        for _ in range(5):
            path = tf.train.Checkpoint(buffer=part(buffer)).write(str(tmp_path / "checkpoint"))
            tf.train.Checkpoint(buffer=part(again)).read(path).assert_consumed()
            numbers = held(again)
            assert np.diff(numbers).tolist() == [1] * (len(numbers) - 1)
    finally:
        stop.set()
        adding.join()


def test_fr_040_a_checkpoint_grows_with_what_is_held(part, tmp_path):
    def num_bytes() -> int:
        return sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())

    buffer = TFUniformReplayBuffer(FRAME, 1, 5000)
    checkpoint = tf.train.Checkpoint(buffer=part(buffer))
    buffer.add_batch(np.zeros([1, 84, 84, 1], np.uint8))
    checkpoint.write(str(tmp_path / "one"))
    assert num_bytes() < 100_000
    buffer.add_sequence(np.ones([1, 999, 84, 84, 1], np.uint8))
    before = num_bytes()
    checkpoint.write(str(tmp_path / "thousand"))
    assert 7_056_000 < num_bytes() - before < 7_200_000


# -- beside a checkpoint -----------------------------------------------------------------------


def managed(
    folder: pathlib.Path, buffer: ReplayBuffer, step: tf.Variable, **settings: Any
) -> tf.train.CheckpointManager:
    checkpoint = tf.train.Checkpoint(buffer=buffer.saved_in(folder / "buffer", step=step, **settings), step=step)
    return tf.train.CheckpointManager(checkpoint, folder / "checkpoints", max_to_keep=2)


def trained(folder: pathlib.Path, **settings: Any) -> tf.train.CheckpointManager:
    """Checkpoints of the steps 10, 20 and 30, where the buffer holds one more number each."""
    buffer, step = ring(), counter()
    manager = managed(folder, buffer, step, **settings)
    for number in (1, 2, 3):
        buffer.add_batch([number])
        step.assign_add(10)
        manager.save(checkpoint_number=step)
    return manager


def saves(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in (folder / "buffer").iterdir())


def test_each_checkpoint_restores_the_save_that_belongs_to_it(tmp_path):
    trained(tmp_path)
    buffer, step = ring(), counter()
    manager = managed(tmp_path, buffer, step)
    for path, expected in zip(manager.checkpoints, ([1, 2], [1, 2, 3]), strict=True):
        manager.checkpoint.restore(path).assert_consumed()
        assert (held(buffer), int(step)) == (expected, 10 * len(expected))
    assert manager.checkpoint.buffer.last_restore.step == 30


def test_two_checkpoints_of_one_step_have_a_save_each(tmp_path):
    buffer, step = filled(1), counter(5)
    manager = managed(tmp_path, buffer, step)
    for name in ("first", "second"):
        manager.checkpoint.write(str(tmp_path / name))
        buffer.add_batch([2])
    for name, expected in (("first", [1]), ("second", [1, 2])):
        manager.checkpoint.read(str(tmp_path / name)).assert_consumed()
        assert held(buffer) == expected


def test_the_folder_of_a_run_can_be_moved(tmp_path):
    trained(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    buffer = ring()
    manager = managed(tmp_path / "there", buffer, counter())
    # TensorFlow's own list of checkpoints is relative to its folder, too.
    manager.checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    assert held(buffer) == [1, 2, 3]


def test_the_second_checkpoint_writes_new_frames_only(tmp_path):
    buffer = TFUniformReplayBuffer(FRAME, 1, 5000)
    part = buffer.saved_in(tmp_path / "buffer")
    checkpoint = tf.train.Checkpoint(buffer=part)
    assert part.last_save is None
    buffer.add_sequence(np.ones([1, 1000, 84, 84, 1], np.uint8))
    checkpoint.save(tmp_path / "checkpoint")
    assert part.last_save.num_bytes_written > 7_056_000
    buffer.add_sequence(np.ones([1, 10, 84, 84, 1], np.uint8))
    checkpoint.save(tmp_path / "checkpoint")
    assert part.last_save.num_bytes > 7_126_560 > 1_000_000 > part.last_save.num_bytes_written
    assert max(path.stat().st_size for path in tmp_path.glob("checkpoint*")) < 1000


def test_keep_last_keeps_one_save_more_for_a_process_that_is_killed_while_it_writes_the_checkpoint(tmp_path):
    manager = trained(tmp_path, keep_last=2)
    assert saves(tmp_path) == ["step-000000000010", "step-000000000020", "step-000000000030"]
    # What a process does that is killed then: the buffer's save, and no checkpoint.
    manager.checkpoint.step.assign(40)
    manager.checkpoint.buffer.serialize()
    assert saves(tmp_path) == ["step-000000000020", "step-000000000030", "step-000000000040"]
    buffer, step = ring(), counter()
    manager = managed(tmp_path, buffer, step)
    manager.checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    assert (held(buffer), int(step)) == ([1, 2, 3], 30)


def test_keep_every_keeps_saves_for_ever(tmp_path):
    trained(tmp_path, keep_last=1, keep_every=20)
    manager = managed(tmp_path, ring(), counter(), keep_last=1, keep_every=20)
    manager.checkpoint.restore(manager.latest_checkpoint)
    for step in (40, 50):
        manager.checkpoint.step.assign(step)
        manager.save()
    assert saves(tmp_path) == ["step-000000000020", "step-000000000040", "step-000000000050"]


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (None, ["step-000000000000", "step-000000000001"]),
        (iter([3, np.int64(8)]).__next__, ["step-000000000003", "step-000000000008"]),
    ],
    ids=["counted", "asked"],
)
def test_saves_are_named_by_the_step_that_is_asked_for_or_counted(step, names, tmp_path):
    checkpoint = tf.train.Checkpoint(buffer=filled(1).saved_in(tmp_path / "buffer", step=step))
    for _ in names:
        checkpoint.save(tmp_path / "checkpoint")
    assert saves(tmp_path) == names


def test_a_save_that_was_removed_is_told_with_those_that_are_there(tmp_path):
    trained(tmp_path)
    shutil.rmtree(tmp_path / "buffer" / "step-000000000030")
    buffer = filled(9)
    manager = managed(tmp_path, buffer, counter())
    with pytest.raises(FileNotFoundError, match="'step-000000000030', which is not in .*: there is step-0000"):
        manager.checkpoint.restore(manager.latest_checkpoint)
    assert held(buffer) == [9]
    # The way out that the message names.
    step = counter()
    tf.train.Checkpoint(step=step).restore(manager.latest_checkpoint).expect_partial()
    with pytest.warns(UserWarning, match="saved at step 20, and is restored for step 30"):
        buffer.restore(tmp_path / "buffer", step=int(step))
    assert held(buffer) == [1, 2]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    manager = trained(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is none. Give saved_in the folder where it is now"):
        tf.train.Checkpoint(buffer=ring().saved_in(tmp_path / "elsewhere")).restore(
            manager.latest_checkpoint
        ).expect_partial()


def test_a_save_that_was_written_anew_is_not_taken_for_the_one_of_the_checkpoint(tmp_path):
    manager = trained(tmp_path)
    shutil.rmtree(tmp_path / "buffer")
    filled(7, 7, 7).save(tmp_path / "buffer", step=30)
    with pytest.raises(ValueError, match="is not the save that the checkpoint belongs to, but a later one of the same"):
        managed(tmp_path, ring(), counter()).checkpoint.restore(manager.latest_checkpoint).expect_partial()


def test_a_whole_buffer_and_one_beside_are_not_taken_for_each_other(tmp_path):
    whole = tf.train.Checkpoint(buffer=filled(1)).write(str(tmp_path / "whole"))
    beside = tf.train.Checkpoint(buffer=filled(1).saved_in(tmp_path / "buffer")).write(str(tmp_path / "beside"))
    with pytest.raises(ValueError, match="does not tell where the buffer was saved"):
        tf.train.Checkpoint(buffer=ring().saved_in(tmp_path / "buffer")).read(whole)
    with pytest.raises(ValueError, match="no state of a buffer"):
        tf.train.Checkpoint(buffer=ring()).read(beside)


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path):
    part = filled(1).saved_in(tmp_path)
    with pytest.raises(ValueError, match="later replayfeed: it has version 2, and this one reads up to 1"):
        part.deserialize(part.serialize().replace(b'"version": 1', b'"version": 2'))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"step": 5}, TypeError, "step must be a tf.Variable or a function without arguments"),
        ({"keep_last": 0}, ValueError, "keep_last must be at least 1"),
        ({"keep_every": 2}, ValueError, "give keep_last too"),
        ({"keep_last": 2, "keep_every": 0.5}, TypeError, "keep_every"),
    ],
    ids=["a step that cannot change", "none kept", "keep_every alone", "no int"],
)
def test_what_a_later_save_would_refuse_is_refused_at_once(settings, error, message, tmp_path):
    with pytest.raises(error, match=message):
        ring().saved_in(tmp_path, **settings)


def test_a_folder_of_another_machine_is_refused_at_once():
    with pytest.raises(ValueError, match="folder must be of this machine, got 'gs://bucket/run'"):
        ring().saved_in("gs://bucket/run")


def test_a_process_that_changes_its_folder_goes_on_saving_where_it_did(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part = filled(1).saved_in("buffer")
    part.serialize()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    part.serialize()
    assert saves(tmp_path) == ["step-000000000000", "step-000000000001"]
