"""A restored reservoir goes on as the one that was saved: what it keeps, where, how it draws, and by which law.

Frames hold their place in the stream, so that an item equals its id until the first `clear`. Most tests are
differential: what was saved goes on, and what was restored does the same beside it.

Bound of the laws: a chi-square passes `chi_square_bound` once in 50 million times (`test_odds.py`).
"""

from __future__ import annotations

import collections
import copy
import itertools
import json
import logging
import math
import threading
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReservoirReplayBuffer
from replayfeed.buffers.reservoir_rule import ReservoirRule, resized

NUMBER = tf.TensorSpec([], tf.int64, "number")
PICTURE = {"number": NUMBER, "picture": tf.TensorSpec([20, 20], tf.uint8)}


def reservoir(capacity: int, **arguments: Any) -> ReservoirReplayBuffer:
    return ReservoirReplayBuffer(NUMBER, capacity, **{"seed": 0, **arguments})


def add_numbers(buffer: ReservoirReplayBuffer, start: int, stop: int) -> np.ndarray:
    return buffer.add_sequence(np.arange(start, stop)[None])


def held(buffer: ReservoirReplayBuffer) -> list[int]:
    return buffer.gather_all().numpy()[0].tolist()


def restored(buffer: ReservoirReplayBuffer, capacity: int | None = None, **arguments: Any) -> ReservoirReplayBuffer:
    """Another buffer that took this one's state over; of another capacity or with other settings by `'resize'`."""
    other = reservoir(capacity or buffer.capacity, batch_size=buffer.batch_size, **arguments)
    other.set_state(buffer.get_state(), "resize" if arguments or capacity else "error")
    return other


def seen_of(buffer: ReservoirReplayBuffer) -> tuple[Any, ...]:
    """All that a caller can see, draws left out."""
    return held(buffer), len(buffer), buffer.num_seen, buffer.stats()


def check_same_for_ever(buffers: list[ReservoirReplayBuffer], first: int, num: int = 400) -> None:
    """The same adds and draws give the same on all of them, item by item."""
    for start in range(first, first + num, 7):
        ids = [add_numbers(buffer, start, start + 7).tolist() for buffer in buffers]
        assert all(one == ids[0] for one in ids)
        drawn = [[leaf.numpy().tolist() for leaf in tf.nest.flatten(buffer.sample(3))] for buffer in buffers]
        assert all(one == drawn[0] for one in drawn)
        seen = [seen_of(buffer) for buffer in buffers]
        assert all(one == seen[0] for one in seen)


# The same reservoir


@pytest.mark.parametrize("num", [0, 1, 4, 5, 6, 60, 5000])
def test_adds_draws_and_counts_go_on_as_they_would_have(num, tmp_path):
    buffer = reservoir(5)
    add_numbers(buffer, 0, num)
    if num:
        buffer.sample(3)
    report = buffer.save(tmp_path)
    assert report.frames == min(num, 5)
    by_file, by_dict, by_bytes = (reservoir(5) for _ in range(3))
    by_file.restore(tmp_path)
    by_dict.set_state(buffer.get_state())
    by_bytes.deserialize(buffer.serialize())
    check_same_for_ever([buffer, by_file, by_dict, by_bytes], num)


GO_ON = """
import dataclasses, json, sys
import numpy as np, tensorflow as tf
from replayfeed.buffers import ReservoirReplayBuffer

def go_on(buffer):
    tf.random.set_seed(7)  # which is part of every dataset's seed, and which other tests set
    told = []
    for place in range(2000, 2600, 6):
        told.append(buffer.add_sequence(np.arange(place, place + 6).reshape(3, 2).T).tolist())
        told.append(buffer.gather_all().numpy()[0].tolist())
        told.append(buffer.sample(4)[1].ids.numpy().tolist())
    in_graph = tf.function(lambda: buffer.sample(8))
    told += [in_graph()[0].numpy().tolist() for _ in range(2)]
    told.append([items.numpy().tolist() for items, _ in buffer.as_dataset(5).take(6)])
    told.append([items.numpy().tolist() for items, _ in buffer.as_dataset(5, epochs=2)])
    # How far ahead the dataset before the save has drawn by now its thread decides.
    told.append(repr(dataclasses.replace(buffer.stats(), sampled=0, replay_ratio=None, evicted_unsampled=0)))
    return told
"""

IN_A_NEW_PROCESS = (
    GO_ON
    + """
buffer = ReservoirReplayBuffer(tf.TensorSpec([], tf.int64, "number"), 20, batch_size=2, seed=4)
buffer.restore(sys.argv[1])
print(json.dumps(go_on(buffer)))
"""
)


def test_fr_035_a_new_process_replaces_what_would_have_been_replaced_and_draws_what_would_have_been_drawn(
    run_python, tmp_path
):
    names: dict[str, Any] = {}
    exec(GO_ON, names)
    buffer = reservoir(20, batch_size=2, seed=4)
    buffer.add_sequence(np.arange(2000).reshape(1000, 2).T)
    buffer.sample(7)
    next(iter(buffer.as_dataset(5)))
    tf.function(lambda: buffer.sample(8))()
    buffer.save(tmp_path)
    told = json.loads(run_python(IN_A_NEW_PROCESS, str(tmp_path)))
    expected = json.loads(json.dumps(names["go_on"](buffer)))
    assert len(told) == len(expected) == 305
    for one, other in zip(told, expected, strict=True):
        assert one == other


def test_a_checkpoint_of_tensorflow_saves_and_restores_a_reservoir_with_other_things(tmp_path):
    buffer, step = reservoir(5), tf.Variable(7)
    add_numbers(buffer, 0, 300)
    path = tf.train.Checkpoint(buffer=buffer, step=step).save(tmp_path / "checkpoint")
    other, other_step = reservoir(5), tf.Variable(0)
    tf.train.Checkpoint(buffer=other, step=other_step).restore(path).assert_consumed()
    assert other_step.numpy() == 7
    check_same_for_ever([buffer, other], 300)


def test_ids_go_on_behind_a_clear_that_was_before_the_save(tmp_path):
    buffer = reservoir(3)
    add_numbers(buffer, 0, 100)
    buffer.clear()
    add_numbers(buffer, 0, 2)
    buffer.save(tmp_path)
    other = reservoir(3)
    other.restore(tmp_path)
    assert buffer.sample(20)[1].ids.numpy().tolist() == other.sample(20)[1].ids.numpy().tolist()
    assert add_numbers(buffer, 2, 4).tolist() == add_numbers(other, 2, 4).tolist() == [[102, 103]]
    assert other.num_seen == 4


def test_what_was_sampled_before_a_save_does_not_count_as_evicted_unsampled_after_it():
    buffer = reservoir(4)
    add_numbers(buffer, 0, 4)
    sampled = set(buffer.sample(2)[0].numpy().tolist())
    other = restored(buffer)
    add_numbers(other, 4, 4000)
    gone = [item for item in range(4000) if item not in held(other)]
    assert other.stats().evicted_unsampled == len([item for item in gone if item not in sampled])


def test_datasets_and_graphs_made_before_read_what_was_restored(tmp_path):
    buffer = reservoir(6)
    add_numbers(buffer, 0, 500)
    buffer.save(tmp_path)
    other = reservoir(6)
    add_numbers(other, 7000, 7010)
    dataset, in_graph = other.as_dataset(50), tf.function(lambda: other.sample(50))
    in_graph()
    other.restore(tmp_path)
    for items in (next(iter(dataset))[0], in_graph()[0]):
        assert set(items.numpy().tolist()) == set(held(buffer))
    assert held(other) == held(buffer)


@pytest.mark.parametrize("kind", [{"epochs": 2}, {"single_deterministic_pass": True}, {}], ids=str)
def test_fr_037_iterators_go_on_with_the_next_element_and_a_pass_skips_and_repeats_nothing(kind, tmp_path):
    buffer, other = reservoir(40), reservoir(40)
    add_numbers(buffer, 0, 500)
    iterator, other_iterator = (iter(each.as_dataset(4, **kind)) for each in (buffer, other))
    came = [next(iterator)[0].numpy().tolist() for _ in range(3)]
    buffer.save(tmp_path, iterators={"train": iterator})
    other.restore(tmp_path, iterators={"train": other_iterator})
    to_come, others = ([next(each)[0].numpy().tolist() for _ in range(7)] for each in (iterator, other_iterator))
    assert to_come == others
    if kind:
        assert sorted(sum(came + others, [])) == held(buffer)


def test_a_reservoir_that_is_restored_over_another_one_keeps_nothing_of_it():
    buffer, other = reservoir(5), reservoir(5)
    add_numbers(buffer, 0, 3)
    add_numbers(other, 100, 900)
    other.sample(50)
    other.set_state(buffer.get_state())
    check_same_for_ever([buffer, other], 3)
    with pytest.raises(ValueError, match="id 700 is not held"):
        other.get(700)


def test_fields_of_every_kind_come_back_bit_by_bit(tmp_path):
    spec = {
        "flag": tf.TensorSpec([], tf.bool),
        "half": tf.TensorSpec([3], tf.bfloat16),
        "picture": tf.TensorSpec([20, 70], tf.uint8),
        "number": tf.TensorSpec([2], tf.float64),
    }
    rng = np.random.default_rng(0)
    items = {
        "flag": rng.random([1, 90]) < 0.5,
        "half": rng.random([1, 90, 3]).astype(tf.bfloat16.as_numpy_dtype),
        "picture": rng.integers(0, 256, [1, 90, 20, 70]).astype(np.uint8),
        "number": rng.random([1, 90, 2]),
    }
    buffer, other = (ReservoirReplayBuffer(spec, 10, seed=1) for _ in range(2))
    buffer.add_sequence(items)
    buffer.save(tmp_path)
    other.restore(tmp_path)
    for one, same in zip(tf.nest.flatten(buffer.gather_all()), tf.nest.flatten(other.gather_all()), strict=True):
        np.testing.assert_array_equal(one.numpy(), same.numpy())


def test_a_later_save_writes_what_is_new_and_can_be_restored_alone(tmp_path):
    buffer = ReservoirReplayBuffer(PICTURE, 2000, seed=0)

    def add(start, stop):
        numbers = np.arange(start, stop)[None]
        pictures = (np.repeat(numbers, 400).reshape(1, -1, 20, 20) % 251).astype(np.uint8)
        buffer.add_sequence({"number": numbers, "picture": pictures})

    add(0, 6000)
    first = buffer.save(tmp_path)
    add(6000, 6060)
    second = buffer.save(tmp_path)
    assert first.num_bytes_written > 800_000
    assert second.num_bytes_written < 0.1 * first.num_bytes_written
    # The first one is gone, and the second one whole.
    other = ReservoirReplayBuffer(PICTURE, 2000, seed=0)
    for file in sorted(Path(first.path).rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    Path(first.path).rmdir()
    other.restore(tmp_path)
    one, same = buffer.gather_all(), other.gather_all()
    np.testing.assert_array_equal(one["number"].numpy(), same["number"].numpy())
    np.testing.assert_array_equal(one["picture"].numpy(), same["picture"].numpy())
    np.testing.assert_array_equal(same["picture"].numpy()[0, :, 3, 4], same["number"].numpy()[0] % 251)


def test_fr_040_the_size_of_a_save_follows_what_is_held(tmp_path):
    buffer = ReservoirReplayBuffer(PICTURE, 100_000, seed=0)
    buffer.add_batch({"number": np.zeros(1, np.int64), "picture": np.zeros([1, 20, 20], np.uint8)})
    assert buffer.save(tmp_path).num_bytes < 50_000


def test_a_save_while_another_thread_adds_is_one_moment(tmp_path):
    """What is restored is what a reservoir of the same seed holds of as many items."""
    buffer, num_items, num_saves = ReservoirReplayBuffer(PICTURE, 300, seed=5), 60_000, 6
    saved = threading.Semaphore(0)
    problems: list[BaseException] = []

    def add():
        try:
            for part in range(num_saves):
                for start in range(part * num_items // num_saves, (part + 1) * num_items // num_saves, 50):
                    numbers = np.arange(start, start + 50)
                    pictures = np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None], [50, 20, 20])
                    buffer.add_sequence({"number": numbers[None], "picture": pictures[None]})
                if not saved.acquire(timeout=300):
                    raise TimeoutError("no save ended")
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    for save in range(num_saves):
        buffer.save(tmp_path / str(save))
        saved.release()
    thread.join()
    assert not problems
    for save in range(num_saves):
        other, twin = ReservoirReplayBuffer(PICTURE, 300, seed=5), reservoir(300, seed=5)
        other.restore(tmp_path / str(save))
        add_numbers(twin, 0, other.num_seen)
        items = other.gather_all()
        assert items["number"].numpy()[0].tolist() == held(twin)
        expected = np.broadcast_to(items["number"].numpy()[0, :, None, None] % 251, [len(other), 20, 20])
        np.testing.assert_array_equal(items["picture"].numpy()[0], expected)


def test_a_closed_reservoir_is_neither_saved_nor_restored(tmp_path):
    buffer = reservoir(3)
    buffer.save(tmp_path)
    buffer.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.save(tmp_path)
    with pytest.raises(ValueError, match="closed"):
        buffer.restore(tmp_path)


def test_it_cannot_be_cut_back_and_says_why():
    with pytest.raises(ValueError, match="cannot be cut back to a step, because what it gave up is lost"):
        reservoir(3).mark_step(5)


@hypothesis.given(
    capacity=st.integers(1, 30),
    num_streams=st.integers(1, 3),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 60)),
            st.tuples(st.just("add some"), st.integers(0, 2)),
            st.tuples(st.just("sample"), st.integers(1, 9)),
            st.tuples(st.just("end"), st.integers(0, 9)),
            st.tuples(st.just("clear"), st.just(0)),
            st.tuples(st.just("restore"), st.integers(0, 40)),
            st.tuples(st.just("resize"), st.integers(1, 40)),
        ),
        max_size=14,
    ),
    seed=st.one_of(st.none(), st.integers(0, 2**40)),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_whatever_happened_before_a_save_the_same_happens_after_it(capacity, num_streams, steps, seed):
    """Copies are made in the middle and live on beside it; all of them may go on in another size."""
    spec = {"number": NUMBER, "is_last": tf.TensorSpec([], tf.bool)}

    def build():
        return ReservoirReplayBuffer(spec, capacity, batch_size=num_streams, seed=seed)

    buffers, place = [build()], 0
    for what, number in steps:
        told = []
        for buffer in buffers:
            if what == "add":
                numbers = place + np.arange(number * num_streams).reshape(number, num_streams).T
                told.append(buffer.add_sequence({"number": numbers, "is_last": numbers % 5 == 3}).tolist())
            elif what == "add some":
                streams = list(range(min(number, num_streams)))
                items = {"number": place + np.arange(len(streams)), "is_last": np.zeros(len(streams), bool)}
                told.append(buffer.add_batch(items, streams=streams).tolist())
            elif what == "end":
                items = {"number": place + np.arange(num_streams), "is_last": np.arange(num_streams) == number}
                told.append(buffer.add_batch(items).tolist())
            elif what == "sample" and len(buffer):
                told.append([leaf.numpy().tolist() for leaf in tf.nest.flatten(buffer.sample(number))])
            elif what == "clear":
                buffer.clear()
        assert all(one == told[0] for one in told)
        place += 200
        if what == "restore":
            copied = build()
            if number:  # over something else
                numbers = np.arange(number * num_streams).reshape(number, num_streams).T
                copied.add_sequence({"number": numbers, "is_last": numbers < 0})
            copied.set_state(json_round(buffers[0].get_state()))
            buffers = [*buffers[:2], copied]
        elif what == "resize":
            capacity, state = number, buffers[0].get_state()
            buffers = [build(), build()]
            for buffer in buffers:
                buffer.set_state(state, "resize")
        seen = [
            (tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), buffer.gather_all()), buffer.stats())
            for buffer in buffers
        ]
        assert all(one == seen[0] for one in seen)


def json_round(state: Any) -> Any:
    """The plain values as they come from a file."""
    return {**state, "values": json.loads(json.dumps(state["values"])), "settings": dict(state["settings"])}


# Another size


def test_another_capacity_is_refused_unless_it_is_asked_for():
    buffer = reservoir(4)
    add_numbers(buffer, 0, 50)
    other = reservoir(3)
    add_numbers(other, 0, 2)
    with pytest.raises(ValueError, match="capacity: stored 4, here 3"):
        other.set_state(buffer.get_state())
    assert held(other) == [0, 1]


def test_a_smaller_reservoir_takes_a_choice_of_the_items_and_says_how_many_it_left_out():
    buffer = reservoir(6)
    add_numbers(buffer, 0, 100)
    other = reservoir(2)
    report = other.set_state(buffer.get_state(), "resize")
    assert (report.frames, report.dropped, report.changed) == (2, 4, {"capacity": (6, 2)})
    assert set(held(other)) < set(held(buffer))
    assert (len(other), other.num_seen, other.stats().evicted) == (2, 100, 98)
    # The same each time, and the random numbers go on behind what the choice took.
    again = restored(buffer, 2)
    check_same_for_ever([other, again], 100)


def test_frames_that_a_smaller_reservoir_leaves_out_count_as_evicted():
    buffer = reservoir(6)
    add_numbers(buffer, 0, 6)
    sampled = set(buffer.sample(4)[0].numpy().tolist())
    other = restored(buffer, 2)
    lost = [item for item in range(6) if item not in held(other)]
    stats = other.stats()
    assert (stats.evicted, stats.evicted_unsampled) == (4, len([item for item in lost if item not in sampled]))


def test_a_larger_reservoir_that_has_lost_nothing_yet_goes_on_being_filled():
    buffer = reservoir(4)
    add_numbers(buffer, 0, 4)
    other = restored(buffer, 7)
    add_numbers(other, 4, 7)
    assert held(other) == list(range(7))
    add_numbers(other, 7, 500)
    assert len(other) == 7 and other.num_seen == 500


def test_a_larger_reservoir_that_has_lost_items_fills_up_as_its_stream_goes_on_and_says_so(caplog):
    buffer = reservoir(100)
    add_numbers(buffer, 0, 1000)
    with caplog.at_level(logging.WARNING):
        other = restored(buffer, 200)
    assert "it holds 100 of 1000 items" in caplog.text and "full after about 2000" in caplog.text
    assert held(other) == held(buffer)
    add_numbers(other, 1000, 1100)
    assert set(held(buffer)) < set(held(other))
    # A tenth of 100 items: the bound is 4.5 sigma, that of the share that was drawn included.
    assert abs(len(other) - 110) <= 4.5 * np.sqrt(10 + 1)
    assert other.stats().evicted == 1100 - len(other) and other.stats().fill_share == len(other) / 200
    add_numbers(other, 1100, 6000)
    assert len(other) == 200


@pytest.mark.parametrize("stop", [1000, 1030, 1500, 5000])
def test_a_reservoir_that_is_filling_up_again_is_saved_as_any_other(stop):
    buffer = reservoir(100)
    add_numbers(buffer, 0, 1000)
    larger = restored(buffer, 200)
    add_numbers(larger, 1000, stop)
    check_same_for_ever([larger, restored(larger)], stop, 2000)


@pytest.mark.parametrize("capacity", [3, 8], ids=["smaller", "larger"])
def test_a_resized_reservoir_is_saved_anew_with_what_it_holds(capacity, tmp_path):
    """Rows have changed, frames have not: files of the save that it came from may serve again."""
    buffer = reservoir(5)
    add_numbers(buffer, 0, 60)
    buffer.save(tmp_path)
    other = reservoir(capacity)
    other.restore(tmp_path, "resize")
    add_numbers(other, 60, 70)
    other.save(tmp_path)
    third = reservoir(capacity)
    third.restore(tmp_path)
    check_same_for_ever([other, third], 70)


def test_with_keep_a_reservoir_gets_the_capacity_and_the_seed_of_the_save():
    buffer = reservoir(5)
    add_numbers(buffer, 0, 100)
    other = reservoir(9, seed=7)
    other.set_state(buffer.get_state(), "keep")
    assert other.capacity == 5
    check_same_for_ever([buffer, other], 100)


def test_with_a_seed_of_its_own_a_reservoir_goes_on_by_its_own_random_numbers():
    buffer = reservoir(5)
    add_numbers(buffer, 0, 100)
    with pytest.raises(ValueError, match="seed: stored 0, here 1"):
        reservoir(5, seed=1).set_state(buffer.get_state())
    others = [restored(buffer, seed=seed) for seed in (1, 2, 1)]
    assert all(held(other) == held(buffer) for other in others)
    for one in [buffer, *others]:
        add_numbers(one, 100, 1000)
    contents = [tuple(held(one)) for one in [buffer, *others]]
    assert len(set(contents)) == 3 and contents[1] == contents[3]


def test_any_number_of_streams_goes_on_with_what_others_wrote():
    buffer = reservoir(5, batch_size=2)
    buffer.add_sequence(np.arange(40).reshape(20, 2).T)
    other = reservoir(5, batch_size=3)
    other.set_state(buffer.get_state(), "resize")
    assert other.add_batch(np.arange(40, 43)).tolist() == [40, 41, 42]


# By which law


def chi_square_bound(freedom: int) -> float:
    """What a chi-square passes once in 50 million times, as in `test_odds.py`."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 5.5 * spread**0.5) ** 3


def run_rule(rule: ReservoirRule, rows: dict[int, int], stop: int) -> None:
    """Lets items come up to `stop`, and notes row -> item."""
    while rule.num_seen < stop:
        seen = rule.num_seen
        kept = rule.next_kept(stop - seen)
        rows.update(zip(kept.rows.tolist(), (kept.offsets + seen).tolist(), strict=True))
        rule.advance_to(seen + kept.num)
    assert rule.num_held == len(rows)


def items_of(stages: list[tuple[int, int]], seed: int) -> list[int]:
    """Items held after stages (capacity, stop), each of which takes over the one before through its state."""
    rng = np.random.default_rng(seed)
    capacity, stop = stages[0]
    rule, rows = ReservoirRule(capacity, rng), {}
    run_rule(rule, rows, stop)
    for wanted, stop in stages[1:]:
        state = json.loads(json.dumps(rule.state()))
        rule = ReservoirRule(wanted, np.random.default_rng(0))
        if wanted == capacity:
            rule.restore(state)
        else:
            rng.bit_generator.state = state["rng"]
            kept, state = resized(state, capacity, wanted, rng)
            rule.restore(state)
            items = sorted(rows.values())
            rows = dict(enumerate(items if kept is None else (items[place] for place in kept)))
        run_rule(rule, rows, stop)
        capacity = wanted
    return sorted(rows.values())


STAGES = {
    "saved while it fills": [(3, 2), (3, 8)],
    "saved when it is full": [(3, 3), (3, 8)],
    "saved later, twice": [(3, 5), (3, 6), (3, 8)],
    "smaller": [(5, 6), (2, 8)],
    "smaller, and nothing more comes": [(4, 7), (2, 7)],
    "smaller while it fills": [(5, 4), (3, 8)],
    "larger before anything was lost": [(2, 2), (4, 8)],
    "larger, and smaller before it is full": [(3, 5), (6, 6), (2, 8)],
    "smaller twice": [(5, 6), (4, 7), (2, 8)],
}


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES.keys())
def test_every_set_of_items_is_held_with_the_same_chance_however_often_it_was_saved(stages):
    runs, (size, num) = 3000, stages[-1]
    sets = collections.Counter(tuple(items_of(stages, seed)) for seed in range(runs))
    expected = runs / math.comb(num, size)
    assert set(sets) <= set(itertools.combinations(range(num), size))
    chi_square = sum((sets[each] - expected) ** 2 / expected for each in itertools.combinations(range(num), size))
    assert chi_square <= chi_square_bound(math.comb(num, size) - 1)


def test_a_reservoir_that_fills_up_again_keeps_the_share_that_is_held_and_is_uniform_once_it_is_full():
    """20 of 60 items are held: 20 / 60 of the old ones, 21 / 61 of new ones; and full, 40 of 400 of all."""
    runs = 1500
    filling = np.zeros(90)
    for seed in range(runs):
        filling[items_of([(20, 60), (60, 90)], seed)] += 1 / runs
    assert abs(filling[:60].mean() - 20 / 60) < 1e-9  # none leaves
    # How many of the 30 new ones are kept has a beta-binomial law: their share has a deviation of 0.105 a run.
    assert abs(filling[60:].mean() - 21 / 61) <= 5 * 0.105 / np.sqrt(runs)
    full = np.zeros(400)
    for seed in range(runs):
        items = items_of([(20, 60), (40, 400)], seed)
        assert len(items) == 40
        full[items] += 1
    parts = full.reshape(10, 40).sum(1)
    # Of 40 rows 4 are expected in each part, with the variance of draws without replacement.
    variance = runs * 40 * 0.1 * 0.9 * (400 - 40) / 399
    assert float(((parts - runs * 4) ** 2 / variance).sum() * 0.9) <= chi_square_bound(9)


def test_the_buffer_itself_follows_the_law_when_it_is_restored_into_fewer_rows():
    """Its own seed decides, so that runs are independent of each other."""
    small, large, survived, runs = reservoir(4, seed=1), reservoir(10, seed=2), np.zeros(40), 1500
    for _ in range(runs):
        large.clear()
        add_numbers(large, 0, 20)
        small.set_state(large.get_state(), "resize")
        add_numbers(small, 20, 40)
        assert len(small) == 4
        survived[held(small)] += 1
    assert np.abs(survived - runs / 10).max() <= 5 * np.sqrt(runs * 0.1 * 0.9)


# What is refused


def damaged(change: Any) -> tuple[ReservoirReplayBuffer, dict[str, Any]]:
    """A reservoir that holds 0 and 1, and a state of another one that `change` was done to."""
    buffer, other = reservoir(5), reservoir(5)
    add_numbers(buffer, 0, 60)
    add_numbers(other, 0, 2)
    state = copy.deepcopy(buffer.get_state())
    change(state)
    return other, state


REFUSED = {
    "rows that are not each once": (lambda state: state["arrays"].update(rows=np.zeros(5, np.int32)), "'rows'"),
    "too few rows": (lambda state: state["arrays"].update(rows=np.arange(4, dtype=np.int32)), "'rows'"),
    "marks": (lambda state: state["arrays"].update(was_sampled=np.zeros(3, np.uint8)), "'was_sampled'"),
    "fewer seen than held": (lambda state: state["values"]["rule"].update(num_seen=3), "5 items held of 3"),
    "fewer held": (lambda state: state["values"]["rule"].update(num_held=4), "4 items of 60 .* and 5 ids"),
    "ids of another stream": (lambda state: state["values"].update(first_id=1000), "from id 1000 on"),
    "a row that there is not": (lambda state: state["values"]["rule"]["rows"].__setitem__(0, 5), "rows .* to 5 of 5"),
    "places that are past": (lambda state: state["values"]["rule"]["positions"].__setitem__(0, 3), "do not ascend"),
    "an exponent": (lambda state: state["values"]["rule"].update(exponent=float("nan")), "exponent of nan"),
    "random numbers": (lambda state: state["values"]["rule"].update(rng={"bit_generator": "PCG64"}), "random numbers"),
    "random numbers of draws": (lambda state: state["values"].update(random={}), "random numbers"),
    "no marks": (lambda state: state["arrays"].pop("was_sampled"), "lacks was_sampled"),
    "no rule": (lambda state: state["values"].pop("rule"), "lacks rule"),
    "another way an episode ends": (lambda state: state["settings"].update(final_frame="ordinary"), "final_frame"),
}


@pytest.mark.parametrize("change, message", REFUSED.values(), ids=REFUSED.keys())
def test_a_state_that_contradicts_itself_is_refused_and_nothing_changes(change, message):
    other, state = damaged(change)
    with pytest.raises(ValueError, match=message):
        other.set_state(state, "resize" if "final" in message else "error")
    assert held(other) == [0, 1]
    assert add_numbers(other, 2, 4).tolist() == [[2, 3]]


def test_frames_of_another_spec_are_refused_by_the_fields_that_differ(tmp_path):
    buffer = reservoir(5)
    buffer.save(tmp_path)
    with pytest.raises(ValueError, match="picture"):
        ReservoirReplayBuffer(PICTURE, 5, seed=0).restore(tmp_path)
