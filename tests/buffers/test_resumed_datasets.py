"""Datasets and draws in graphs go on where they were saved: in the same iterator, in another, in another process."""

from __future__ import annotations

import gc
import itertools
import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    BufferConfig,
    EpisodicReplayBuffer,
    Fifo,
    MinHeap,
    MultiAgentReplayBuffer,
    ReservoirReplayBuffer,
    RolloutBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
)
from replayfeed.buffers.graph_seeds import GraphSeeds
from replayfeed.buffers.saved_iterators import (
    SavedIterator,
    check_iterators,
    restore_iterators,
    states_of,
    write_iterators,
)
from replayfeed.pipelines import n_step

VALUE = tf.TensorSpec([], tf.int64)
STEP = {
    "observation": tf.TensorSpec([], tf.float32),
    "action": tf.TensorSpec([], tf.int32),
    "reward": tf.TensorSpec([], tf.float32),
    "is_terminal": tf.TensorSpec([], tf.bool),
}


def save_iterators(folder: str, iterators: Mapping[str, Any], timeout_s: float = 60.0) -> list[str]:
    """What `save(iterators=)` does with them."""
    return write_iterators(folder, states_of(iterators, timeout_s=timeout_s))


def filled(buffer: Any, num_steps: int = 20, every: int = 10) -> Any:
    """Counters, `100 b + t`, in episodes of `every` frames."""
    batch_size = buffer.batch_size
    frames = 100 * np.arange(batch_size)[:, None] + np.arange(num_steps)
    ends = np.broadcast_to(np.arange(num_steps) % every == every - 1, frames.shape)
    buffer.add_sequence(frames, end_of_episode=ends)
    return buffer


def uniform(seed: int | None = 3, **arguments: Any) -> TFUniformReplayBuffer:
    return filled(TFUniformReplayBuffer(VALUE, 2, 30, seed=seed, **arguments))


def prioritized(**arguments: Any) -> TFPrioritizedReplayBuffer:
    buffer = filled(TFPrioritizedReplayBuffer(VALUE, 2, 30, seed=3, **arguments))
    buffer.update_priorities(np.arange(20), np.arange(20) + 1.0)
    return buffer


def parted() -> TFUniformReplayBuffer:
    buffer = TFUniformReplayBuffer(VALUE, 2, 30, seed=3)
    buffer.let_streams_part()
    buffer.add_sequence(np.arange(9)[None], streams=[0])
    buffer.add_sequence(np.arange(12)[None] + 100, streams=[1])
    return buffer


def deleted() -> TFUniformReplayBuffer:
    buffer = uniform()
    buffer.delete([0, 1, 2])
    return buffer


def reservoir() -> ReservoirReplayBuffer:
    return filled(ReservoirReplayBuffer(VALUE, 15, batch_size=2, seed=3))


def episodic() -> EpisodicReplayBuffer:
    buffer = EpisodicReplayBuffer(VALUE, 20, seed=3)
    for length in (3, 5, 2, 7, 4):
        buffer.extend([np.arange(length) + 100 * length])
    return buffer


def rollout(seed: int | None = 3) -> RolloutBuffer:
    spec = {"value": VALUE, "reward": tf.TensorSpec([], tf.float32)}
    buffer = RolloutBuffer(spec, 2, 8, seed=seed)
    frames = np.arange(16).reshape(2, 8)
    buffer.add_sequence({"value": frames, "reward": frames.astype(np.float32)})
    buffer.advantages(np.zeros((2, 8)), np.zeros(2))
    return buffer


def agents(mode: str) -> MultiAgentReplayBuffer:
    buffer = MultiAgentReplayBuffer(
        {"a": VALUE, "b": VALUE}, {"a": "p", "b": "p"}, BufferConfig("uniform", 40, seed=3), mode=mode
    )
    for t in range(15):
        buffer.add_batch({"a": np.array([t]), "b": np.array([100 + t])})
    return buffer


def steps() -> TFUniformReplayBuffer:
    buffer = TFUniformReplayBuffer(STEP, 1, 40, seed=3, final_frame="observation")
    t = np.arange(20)[None]
    ends = t % 10 == 9
    leaves = {"observation": t.astype(np.float32), "action": t.astype(np.int32), "reward": np.ones([1, 20], np.float32)}
    buffer.add_sequence({**leaves, "is_terminal": ends}, end_of_episode=ends)
    return buffer


def double(items: Any) -> Any:
    return items * 2


CASES = {
    "random": (uniform, lambda b: b.as_dataset(4, 3)),
    "random, one by one": (uniform, lambda b: b.as_dataset()),
    "random, without a seed": (lambda: uniform(None), lambda b: b.as_dataset(4)),
    "random, in parallel": (uniform, lambda b: b.as_dataset(4, num_parallel_calls=2)),
    "random, with a function": (uniform, lambda b: b.as_dataset(4, 2, sequence_preprocess_fn=double)),
    "random, large batches": (uniform, lambda b: b.as_dataset(2**17)),
    "a pipeline of the user": (
        uniform,
        lambda b: b.as_dataset(4).map(lambda i, _: i + 1).unbatch().shuffle(7, seed=1).batch(3).prefetch(3),
    ),
    "a mixture": (
        uniform,
        lambda b: tf.data.Dataset.sample_from_datasets([b.as_dataset(4), b.as_dataset(4)], [0.3, 0.7], seed=1),
    ),
    "epochs": (uniform, lambda b: b.as_dataset(4, epochs=3)),
    "epochs, without a seed": (lambda: uniform(None), lambda b: b.as_dataset(4, 2, epochs=3)),
    "epochs, with a function": (uniform, lambda b: b.as_dataset(4, epochs=3, sequence_preprocess_fn=double)),
    "ordered": (uniform, lambda b: b.as_dataset(None, 3, single_deterministic_pass=True)),
    "through a sampler": (lambda: uniform(sampler=MinHeap()), lambda b: b.as_dataset(4)),
    "proportional": (prioritized, lambda b: b.as_dataset(4, 3)),
    "by rank": (lambda: prioritized(variant="rank"), lambda b: b.as_dataset(4)),
    "stratified": (lambda: prioritized(stratified=True), lambda b: b.as_dataset(4)),
    "streams apart": (parted, lambda b: b.as_dataset(4, 2)),
    "after deletes": (deleted, lambda b: b.as_dataset(4, 2)),
    "reservoir": (reservoir, lambda b: b.as_dataset(4)),
    "reservoir, epochs": (reservoir, lambda b: b.as_dataset(4, epochs=3)),
    "whole episodes": (episodic, lambda b: b.as_dataset(2)),
    "whole episodes in buckets": (episodic, lambda b: b.as_dataset(2, buckets=[4, 6])),
    "windows of episodes": (episodic, lambda b: b.as_dataset(2, 2)),
    "episodes, epochs": (episodic, lambda b: b.as_dataset(1, epochs=3)),
    "minibatches": (rollout, lambda b: b.minibatches(3, epochs=3)),
    "minibatches, without a seed": (lambda: rollout(None), lambda b: b.minibatches(3, epochs=3)),
    "minibatches, the largest seed": (rollout, lambda b: b.minibatches(3, epochs=3, seed=2**63 - 1)),
    "a policy": (lambda: agents("independent"), lambda b: b.as_dataset(4, 2, policy="p")),
    "all agents, epochs": (lambda: agents("lockstep"), lambda b: b.as_dataset(4, epochs=3)),
    "n steps": (
        steps,
        lambda b: b.as_dataset(4, window=Window(4, short="pad")).map(n_step(3, 0.9, final_frame="observation")),
    ),
}


def shown(iterator: Any, num: int) -> list[Any]:
    """The next elements, all leaves, as plain lists."""
    return [
        tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), tf.nest.flatten(element, expand_composites=True))
        for element in itertools.islice(iterator, num)
    ]


def moved(iterator: Any, folder: Any, target: Any) -> None:
    """Saves one iterator and restores into another."""
    save_iterators(str(folder), {"it": iterator})
    restore_iterators(str(folder), {"it": target})


@pytest.mark.parametrize("name", CASES)
def test_fr_037_another_buffers_iterator_goes_on_where_the_saved_one_stood(name, tmp_path):
    """Of a buffer with the same contents: 5 elements, the save, 3 more; the restored iterator gives the same 3."""
    make, dataset_of = CASES[name]
    buffer, again = make(), make()
    iterator, restored = iter(dataset_of(buffer)), iter(dataset_of(again))
    assert len(shown(iterator, 5)) == 5
    shown(restored, 1)  # one that was used before it is restored does as well
    moved(iterator, tmp_path, restored)
    expected = shown(iterator, 12)
    assert expected
    assert shown(restored, 12) == expected


TRAINING = """
import sys
import numpy as np
import tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer

buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 2000)
iterators = {"epochs": iter(buffer.as_dataset(40, epochs=2).prefetch(3)), "draws": iter(buffer.as_dataset())}
draw = tf.function(lambda: buffer.sample(5)[0])
seen = []
if sys.argv[1] == "save":
    buffer.add_sequence(np.arange(2000)[None])
    seen = [next(iterators["epochs"])[0].numpy().tolist() for _ in range(3)]
    next(iterators["draws"]), draw()
    buffer.save("saved", iterators=iterators)
else:
    buffer.restore("saved", iterators=iterators)
buffer.add_sequence(np.arange(2000, 2003)[None])
print(seen, [batch.numpy().tolist() for batch, _ in iterators["epochs"]],
      [next(iterators["draws"])[0].numpy().tolist() for _ in range(3)] + draw().numpy().tolist(), sep=";")
"""


def test_fr_037_in_a_new_process_no_element_of_a_pass_is_skipped_or_repeated(run_python):
    """Without a seed, and frames come between the save and the next element: A is B, and the epochs are whole.

    Batches wait at the save, and the first epoch has its order; the second reads what is there when it begins.
    """
    seen, rest, draws = run_python(TRAINING, "save").strip().split(";")
    nothing, resumed, drawn = run_python(TRAINING, "restore").strip().split(";")
    assert nothing == "[]"
    assert drawn == draws
    assert resumed == rest
    values = sum(json.loads(seen) + json.loads(resumed), [])
    first, second = values[:-2000], values[-2000:]
    # Three frames were overwritten; what waited or was delivered already had them in the first epoch.
    assert {*range(3, 2000)} <= {*first} <= {*range(2000)}
    assert len({*first}) == len(first)
    assert sorted(second) == list(range(3, 2003))


def test_fr_037_the_same_iterator_goes_back(tmp_path):
    numbers = iter(uniform().as_dataset(4, epochs=4).prefetch(3))
    shown(numbers, 5)
    save_iterators(str(tmp_path), {"it": numbers})
    first = shown(numbers, 30)
    restore_iterators(str(tmp_path), {"it": numbers})
    assert shown(numbers, 30) == first


def test_what_waits_is_delivered_though_its_frames_are_gone(tmp_path):
    """Three of the four that `batch` took at once wait in `unbatch`; the buffer of the new iterator is empty."""
    drawn = iter(uniform().as_dataset().batch(4).unbatch())
    shown(drawn, 1)
    empty = TFUniformReplayBuffer(VALUE, 2, 30, seed=3)
    restored = iter(empty.as_dataset().batch(4).unbatch())
    moved(drawn, tmp_path, restored)
    assert shown(restored, 3) == shown(drawn, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is empty"):
        next(restored)


def test_a_pass_that_goes_on_skips_and_counts_what_is_gone_meanwhile(tmp_path):
    def full() -> TFUniformReplayBuffer:
        buffer = TFUniformReplayBuffer(VALUE, 1, 1000, seed=3)
        buffer.add_sequence(np.arange(1000)[None])
        return buffer

    first, buffer = iter(full().as_dataset(single_deterministic_pass=True)), full()
    values = [int(next(first)[0]) for _ in range(10)]
    restored = iter(buffer.as_dataset(single_deterministic_pass=True))
    moved(first, tmp_path, restored)
    buffer.add_sequence(np.arange(1000, 1900)[None])
    values += [int(items) for items, _ in restored]
    # Windows are gathered 64 at a time, and some blocks of them ahead.
    num_gathered = values.index(900)
    assert num_gathered in range(64, 900, 64)
    assert values == [*range(num_gathered), *range(900, 1000)]
    assert buffer.stats().skipped == 900 - num_gathered


def test_an_epoch_goes_on_as_planned_and_later_ones_see_what_came(tmp_path):
    def filled_once() -> TFUniformReplayBuffer:
        buffer = TFUniformReplayBuffer(VALUE, 1, 2000)
        buffer.add_sequence(np.arange(1000)[None])
        return buffer

    first, buffer = iter(filled_once().as_dataset(epochs=2)), filled_once()
    values = [int(next(first)[0]) for _ in range(10)]
    restored = iter(buffer.as_dataset(epochs=2))
    moved(first, tmp_path, restored)
    buffer.add_sequence(np.arange(1000, 1300)[None])
    values += [int(items) for items, _ in restored]
    assert sorted(values[:1000]) == list(range(1000))
    assert sorted(values[1000:]) == list(range(1300))


def test_repeated_epochs_are_whole_after_a_restore(tmp_path):
    """The orders of iterations that begin after it are others than they would have been."""
    first = iter(uniform().as_dataset(4, epochs=1).repeat())
    batches = [next(first)[0].numpy().tolist() for _ in range(5)]
    restored = iter(uniform().as_dataset(4, epochs=1).repeat())
    moved(first, tmp_path, restored)
    batches += [next(restored)[0].numpy().tolist() for _ in range(15)]
    held = sorted([*range(20), *range(100, 120)])
    assert sorted(sum(batches[:10], [])) == sorted(sum(batches[10:], [])) == held


def test_each_iteration_over_epochs_has_orders_of_its_own_and_equal_seeds_repeat_them():
    def orders(buffer: TFUniformReplayBuffer) -> list[list[int]]:
        dataset = buffer.as_dataset(epochs=1)
        return [[int(items) for items, _ in dataset] for _ in range(3)]

    first = orders(uniform())
    assert orders(uniform()) == first
    assert len({tuple(order) for order in first}) == 3
    assert orders(uniform(None)) != orders(uniform(None))


def test_a_checkpoint_manager_saves_an_iterator_beside_the_model(tmp_path):
    step = tf.Variable(5)
    numbers = iter(uniform().as_dataset(4))
    shown(numbers, 2)
    checkpoint = tf.train.Checkpoint(step=step, batches=SavedIterator(numbers))
    tf.train.CheckpointManager(checkpoint, str(tmp_path), 2).save()
    expected = shown(numbers, 3)
    again, step_again = iter(uniform().as_dataset(4)), tf.Variable(0)
    restored = tf.train.Checkpoint(step=step_again, batches=SavedIterator(again))
    restored.restore(tf.train.latest_checkpoint(str(tmp_path))).assert_consumed()
    assert int(step_again) == 5
    assert shown(again, 3) == expected


# What is refused


def test_names_that_differ_are_refused_with_both(tmp_path):
    numbers = tf.data.Dataset.range(9)
    save_iterators(str(tmp_path), {"train": iter(numbers), "test": iter(numbers)})
    for call in (check_iterators, restore_iterators):
        with pytest.raises(ValueError, match=r"iterators 'test', 'train' were saved in .*, and 'eval', 'train' asked"):
            call(str(tmp_path), {"train": iter(numbers), "eval": iter(numbers)})
        call(str(tmp_path), {})


def test_a_folder_without_iterators_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no iterators were saved in .*, and 'it' asked for: pass iterators= to save"):
        check_iterators(str(tmp_path), {"it": iter(tf.data.Dataset.range(9))})
    check_iterators(str(tmp_path), {})


def test_other_elements_are_refused_with_both(tmp_path):
    save_iterators(str(tmp_path), {"it": iter(uniform().as_dataset(4))})
    other = iter(uniform().as_dataset(5))
    with pytest.raises(ValueError, match=r"saved with elements \('\(4,\) int64', .*, and has \('\(5,\) int64', "):
        check_iterators(str(tmp_path), {"it": other})


def test_another_dataset_of_such_elements_is_refused_and_its_iterator_stays_where_it_is(tmp_path):
    numbers, random = iter(tf.data.Dataset.range(9)), iter(tf.data.Dataset.random(1))
    save_iterators(str(tmp_path), {"it": random})
    next(numbers)
    with pytest.raises(ValueError, match="does not fit what was saved .*: make its dataset by the same calls"):
        restore_iterators(str(tmp_path), {"it": numbers})
    assert int(next(numbers)) == 1


def test_places_in_python_code_are_refused(tmp_path):
    generated = iter(tf.data.Dataset.from_generator(lambda: iter([1, 2]), output_signature=VALUE))
    next(generated)
    with pytest.raises(ValueError, match=r"'it' cannot be saved: GeneratorDataset does not .* leave this iterator out"):
        save_iterators(str(tmp_path), {"it": generated})


@pytest.mark.parametrize("wrong", [tf.data.Dataset.range(3), tf.data.Dataset.range(3).as_numpy_iterator(), [1], None])
def test_what_is_no_iterator_over_a_dataset_is_refused(wrong, tmp_path):
    for call in (save_iterators, restore_iterators, check_iterators):
        with pytest.raises(TypeError, match="iterator 'it' must be an iterator over a tf.data.Dataset, .* got "):
            call(str(tmp_path), {"it": wrong})
    with pytest.raises(TypeError, match="must be an iterator"):
        SavedIterator(wrong)


@pytest.mark.parametrize("damage", ["changed", "cut off", "missing"])
def test_damaged_files_are_refused(damage, tmp_path):
    numbers = iter(tf.data.Dataset.range(9))
    save_iterators(str(tmp_path), {"it": numbers})
    file = tmp_path / "iterators.0.state"
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[:-1] if damage == "cut off" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"iterators\.0\.state"):
        restore_iterators(str(tmp_path), {"it": numbers})
    assert int(next(numbers)) == 0


def test_later_formats_are_refused(tmp_path):
    numbers = iter(tf.data.Dataset.range(9))
    save_iterators(str(tmp_path), {"it": numbers})
    index = tmp_path / "iterators.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "version": 99}))
    with pytest.raises(ValueError, match="version 99; this package reads 'replayfeed iterators' up to 1: update it"):
        check_iterators(str(tmp_path), {"it": numbers})


def test_a_dataset_that_waits_for_data_ends_the_save_in_time_and_is_named(tmp_path, caplog):
    asked, go_on = threading.Event(), threading.Event()

    def generate() -> Any:
        yield 1
        asked.set()
        go_on.wait()

    dataset = tf.data.Dataset.from_generator(generate, output_signature=VALUE).prefetch(2)
    waiting = iter(dataset)
    next(waiting)
    assert asked.wait(300)
    try:
        with pytest.raises(TimeoutError, match=r"the dataset of iterator 'it' did not tell its place within 0\.2 s"):
            save_iterators(str(tmp_path), {"it": waiting}, timeout_s=0.2)
        assert "save: waiting for the dataset of iterator 'it'" in caplog.text
    finally:
        go_on.set()
    assert not list(waiting)


# Draws in graphs


def test_draws_in_graphs_go_on_from_a_state_in_functions_traced_before_and_after():
    seeds, again = GraphSeeds([1, 2]), GraphSeeds(None)
    draw, draw_again = tf.function(seeds.next_in_graph), tf.function(again.next_in_graph)
    draw_again()
    draw()
    again.restore(seeds.state())
    expected = [draw().numpy().tolist() for _ in range(3)]
    assert [draw_again().numpy().tolist(), tf.function(again.next_in_graph)().numpy().tolist()] == expected[:2]
    assert draw_again().numpy().tolist() == expected[2]
    assert len({tuple(pair) for pair in expected}) == 3


def test_no_two_threads_draw_with_the_same_numbers():
    seeds = GraphSeeds([1, 2])
    draw = tf.function(lambda: tf.stack([seeds.next_in_graph() for _ in range(50)]))
    draw()
    pairs: list[Any] = []
    threads = [threading.Thread(target=lambda: pairs.extend(draw().numpy().tolist() for _ in range(40))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(pair) for drawn in pairs for pair in drawn}) == 2 * 40 * 50


def test_a_function_draws_on_when_the_object_that_seeded_it_is_gone():
    seeds = GraphSeeds([1, 2])
    draw = tf.function(seeds.next_in_graph).get_concrete_function()
    before = draw().numpy().tolist()
    del seeds
    gc.collect()
    assert draw().numpy().tolist() != before


def test_draws_in_graphs_are_seeded_in_the_scope_of_a_strategy_too():
    with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
        buffer = uniform()
    drawn = tf.function(lambda: buffer.sample(8)[0])().numpy().tolist()
    other = uniform()
    assert drawn == tf.function(lambda: other.sample(8)[0])().numpy().tolist()


@pytest.mark.parametrize("state", [np.zeros(2, np.int64), np.zeros(3), np.zeros((1, 3), np.int64)])
def test_what_is_no_state_of_a_stream_is_refused(state):
    seeds = GraphSeeds([1])
    before = seeds.state()
    with pytest.raises(ValueError, match=r"the state of draws in graphs: expected int64 \[3\]"):
        seeds.restore(state)
    np.testing.assert_array_equal(seeds.state(), before)


@pytest.mark.parametrize("way", ["save", "saved_in"])
def test_a_queue_behind_a_prefetch_loses_and_repeats_nothing(tmp_path, way):
    """Draws go on in the dataset's threads while the iterator is read and the buffer captured: one moment yet."""

    def queue() -> TFUniformReplayBuffer:
        return TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 1000, sampler=Fifo(), max_times_sampled=1)

    for trial in range(10):
        saved, restored = queue(), queue()
        saved.add_sequence([list(range(600))])
        batches, resumed = (iter(buffer.as_dataset(4).prefetch(50)) for buffer in (saved, restored))
        first = [next(batches)[0].numpy().tolist() for _ in range(3)]
        folder = tmp_path / str(trial)
        if way == "save":
            saved.save(folder, iterators={"train": batches})
            restored.restore(folder, iterators={"train": resumed})
        else:
            path = tf.train.Checkpoint(b=saved.saved_in(folder, iterators={"train": batches})).write(folder / "ckpt")
            tf.train.Checkpoint(b=restored.saved_in(folder, iterators={"train": resumed})).read(path)
        after = [next(resumed)[0].numpy().tolist() for _ in range(80)]
        assert sum(first + after, []) == list(range(4 * 83))
