"""What a `data_spec` may be, and that wrong ones are refused by field."""

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import DataSpec, TFUniformReplayBuffer, Window
from replayfeed.buffers.ring import FrameRing
from replayfeed.buffers.storage import FrameStorage


class Pair(NamedTuple):
    left: Any
    right: Any


LEAF = tf.TensorSpec([2], tf.float32)


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        (LEAF, ["items"]),
        (tf.TensorSpec([], tf.float32, name="reward"), ["reward"]),
        ({"b": LEAF, "a": {"d": LEAF, "c": LEAF}}, ["a/c", "a/d", "b"]),
        ((LEAF, [LEAF, LEAF]), ["0", "1/0", "1/1"]),
        (Pair(LEAF, {"x": LEAF}), ["left", "right/x"]),
        (collections.OrderedDict(z=LEAF, y=LEAF), ["y", "z"]),
        (Pair((), LEAF), ["right"]),
        ({"empty": {}, "one": {"x": LEAF}}, ["one/x"]),
    ],
)
def test_fields_come_in_the_order_of_tf_nest_with_their_paths(spec, paths):
    compiled = DataSpec(spec)
    assert [field.path for field in compiled.fields] == paths
    leaves = list(range(len(paths)))
    packed = compiled.pack(leaves)
    assert tf.nest.flatten(packed) == leaves
    tf.nest.assert_same_structure(packed, spec)
    assert compiled.flatten(packed) == leaves


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ({}, ValueError, "data_spec has no leaf"),
        ({"obs": np.zeros(2)}, TypeError, "data_spec field 'obs': expected a tf.TensorSpec, got ndarray"),
        ({"obs": None}, TypeError, "data_spec field 'obs': expected a tf.TensorSpec, got NoneType"),
        (
            {"text": tf.TensorSpec([], tf.string)},
            ValueError,
            "field 'text': string has no fixed width .* drop the field",
        ),
        ({"obs": tf.TensorSpec([None, 3])}, ValueError, r"field 'obs': shape \(None, 3\) is not fully known"),
        ({"obs": tf.TensorSpec(None)}, ValueError, "field 'obs': shape <unknown> is not fully known"),
        (
            {"a": {"empty": tf.TensorSpec([0])}},
            ValueError,
            r"field 'a/empty': shape \[0\] holds no number; drop the field",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused_by_field(spec, kind, message):
    with pytest.raises(kind, match=message):
        DataSpec(spec)


def test_a_list_spec_comes_out_of_datasets_as_tuples():
    buffer = TFUniformReplayBuffer([LEAF, [LEAF]], batch_size=1, max_length=4)
    buffer.add_batch([np.zeros([1, 2], np.float32), [np.ones([1, 2], np.float32)]])
    assert isinstance(buffer.sample(3)[0], list)
    (first, (second,)), _ = next(iter(buffer.as_dataset(3)))
    assert float(first[0, 0]) == 0 and float(second[0, 0]) == 1


WRONG_ARGUMENTS = [
    ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    ({"batch_size": True}, TypeError, "batch_size must be an int, got True"),
    ({"max_length": 1.5}, TypeError, r"max_length must be an int, got 1\.5"),
    ({"max_length": -1}, ValueError, "max_length must be at least 1, got -1"),
    ({"dataset_window_shift": 0}, ValueError, "dataset_window_shift must be at least 1, got 0"),
    ({"min_size_to_sample": 0}, ValueError, "min_size_to_sample must be at least 1, got 0"),
    ({"min_size_to_sample": 11}, ValueError, "min_size_to_sample 11 is above the capacity of 10 frames"),
    ({"device": "gpu:0"}, ValueError, "device 'gpu:0': storage stays on the CPU"),
    ({"end_of_episode_fn": 3}, TypeError, "end_of_episode_fn must be a function"),
    ({"final_frame": "maybe"}, ValueError, "final_frame must be 'auto', 'observation' or 'ordinary', got 'maybe'"),
    ({"seed": -1}, ValueError, "seed must be an int of at least 0, or None, got -1"),
    ({"max_length": 2**31}, ValueError, "a capacity of 2147483648 frames is over the limit"),
]


def test_a_spec_that_a_module_keeps_is_as_good_as_one_of_its_own():
    """A `tf.Module` wraps the containers that are its attributes, as an agent's `collect_data_spec` is."""
    holder = tf.Module()
    holder.spec = Pair(LEAF, {"a": LEAF, "b": (LEAF, LEAF)})
    buffer = TFUniformReplayBuffer(holder.spec, batch_size=1, max_length=10, seed=0)
    one = np.zeros([1, *LEAF.shape], LEAF.dtype.as_numpy_dtype)
    buffer.add_batch(Pair(one, {"a": one, "b": (one, one)}))
    for items in (buffer.sample(2)[0], next(iter(buffer.as_dataset(2)))[0], buffer.gather_all()):
        assert type(items) is Pair and type(items.right) is dict and type(items.right["b"]) is tuple


@pytest.mark.parametrize(("arguments", "kind", "message"), WRONG_ARGUMENTS)
def test_wrong_constructor_arguments_are_told_by_name(arguments, kind, message):
    with pytest.raises(kind, match=message):
        TFUniformReplayBuffer(**{"data_spec": LEAF, "batch_size": 1, "max_length": 10, **arguments})


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"num_steps": 0}, ValueError, "Window.num_steps must be at least 1, got 0"),
        ({"num_steps": 1.0}, TypeError, r"Window.num_steps must be an int, got 1\.0"),
        ({"burn_in": -1}, ValueError, "Window.burn_in must be at least 0, got -1"),
        ({"stride": 0}, ValueError, "Window.stride must be at least 1, got 0"),
        ({"stride": True}, TypeError, "Window.stride must be an int, got True"),
        ({"short": "tile"}, ValueError, "Window.short must be 'drop' or 'pad', got 'tile'"),
        ({"boundaries": "wrap"}, ValueError, "Window.boundaries must be 'exclude' or 'ignore', got 'wrap'"),
        ({"pad_unfinished": True}, ValueError, "Window.pad_unfinished=True needs short='pad'"),
        ({"short": "pad", "boundaries": "ignore"}, ValueError, "no episode's end cuts a window"),
    ],
)
def test_wrong_windows_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        Window(**{"num_steps": 2, **arguments})


@pytest.mark.parametrize(("dtype", "gigabytes"), [(tf.uint8, "28.2"), (tf.float32, "112.9")])
def test_fr_044_a_capacity_beyond_the_machines_memory_is_refused_before_anything_is_allocated(
    dtype, gigabytes, monkeypatch
):
    monkeypatch.setattr("replayfeed.buffers.memory.memory_limit", lambda: 16_000_000_000)
    message = rf"the full capacity needs {gigabytes} GB, this machine has 16.0 GB; lower max_length or batch_size"
    with pytest.raises(ValueError, match=message):
        TFUniformReplayBuffer(tf.TensorSpec([84, 84, 4], dtype), batch_size=1, max_length=1_000_000)


def test_fr_044_a_capacity_over_a_fifth_of_memory_warns(monkeypatch):
    monkeypatch.setattr("replayfeed.buffers.memory.memory_limit", lambda: 1_000_000)
    with pytest.warns(ResourceWarning, match=r"takes 0.4 MB of the 1.0 MB of this machine; lower max_length"):
        TFUniformReplayBuffer(tf.TensorSpec([100], tf.float32), batch_size=1, max_length=1000)


def test_min_size_to_sample_gives_both_numbers():
    buffer = TFUniformReplayBuffer(LEAF, batch_size=1, max_length=10, min_size_to_sample=5)
    buffer.add_batch(np.zeros([1, 2], np.float32))
    with pytest.raises(ValueError, match=r"1 of 5 frames \(min_size_to_sample\)"):
        buffer.sample(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"1 of 5 frames \(min_size_to_sample\)"):
        next(iter(buffer.as_dataset(2)))
    for _ in range(4):
        buffer.add_batch(np.zeros([1, 2], np.float32))
    assert buffer.sample(2)[0].shape == (2, 2)


def test_the_error_for_too_long_windows_gives_the_numbers():
    """FR-007."""
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), batch_size=1, max_length=20)
    for t in range(10):
        buffer.add_batch(np.array([t]), end_of_episode=np.array([t % 2 == 1]))
    with pytest.raises(ValueError, match="no window of 5 frames: 5 episodes, longest 2"):
        buffer.sample(1, 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no window of 5 frames: 5 episodes, longest 2"):
        next(iter(buffer.as_dataset(1, 5)))
    for read in (buffer.as_dataset, buffer.sample):
        with pytest.raises(ValueError, match="num_steps 21 > max_length 20: .*ALL data will be dropped"):
            read(1, 21)


def test_small_shared_memory_is_no_constant():
    """A function traced while the buffer was small must not keep shapes of that time."""
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), batch_size=1, max_length=4)
    for t in range(4):
        buffer.add_batch(np.array([t]), end_of_episode=np.array([t == 1]))

    @tf.function
    def draw() -> tuple[tf.Tensor, tf.Tensor]:
        items, _ = buffer.sample(64, 2)
        return items, tf.shape(items)

    draw()
    buffer.add_sequence(np.arange(4, 8)[None])
    items, shape = draw()
    assert shape.numpy().tolist() == [64, 2]
    assert set(items.numpy()[:, 0].tolist()) == {4, 5, 6}


def test_get_gives_frames_and_windows_by_id():
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), batch_size=2, max_length=4)
    ids = np.stack(
        [buffer.add_batch(np.array([t, 100 + t]), end_of_episode=np.array([t == 3, False])) for t in range(6)], axis=1
    )
    assert buffer.get(ids[:, 2:]).numpy().tolist() == [[2, 3, 4, 5], [102, 103, 104, 105]]
    assert buffer.get(ids[1, 2:4], num_steps=3).numpy().tolist() == [[102, 103, 104], [103, 104, 105]]
    with pytest.raises(ValueError, match=r"id 2 is not held: ids 4 to 11 are; 1 of 1 ids are gone"):
        buffer.get(ids[0, 1:2])
    with pytest.raises(ValueError, match=r"no window of 2 frames starts at id 6: its episode is shorter"):
        buffer.get(ids[0, 3:4], num_steps=2)


def test_windows_may_run_over_episode_ends_on_request():
    """TF-Agents' behaviour: only the ring's seam bounds a window."""
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), batch_size=1, max_length=5)
    for t in range(13):
        buffer.add_batch(np.array([t]), end_of_episode=np.array([t % 2 == 1]))
    items, info = buffer.sample(200, window=Window(2, boundaries="ignore"))
    assert set(items.numpy()[:, 0].tolist()) == {8, 9, 10, 11}
    np.testing.assert_allclose(info.probabilities, 0.25)


@pytest.mark.parametrize(
    ("shift", "drop", "expected"),
    [
        (None, False, [[2, 3], [4, 5], [6]]),
        (None, True, [[2, 3], [4, 5]]),
        (1, False, [[2, 3], [3, 4], [4, 5], [5, 6], [6]]),
        (3, True, [[2, 3], [5, 6]]),
    ],
)
def test_an_ordered_pass_shifts_and_drops_as_the_constructor_says(shift, drop, expected):
    buffer = TFUniformReplayBuffer(
        tf.TensorSpec([], tf.int64), 1, 5, dataset_window_shift=shift, dataset_drop_remainder=drop
    )
    buffer.add_sequence(np.arange(7)[None])
    windows = [items.numpy().tolist() for items, _ in buffer.as_dataset(None, 2, single_deterministic_pass=True)]
    assert windows == expected


def test_frames_left_out_of_batches_of_windows_are_told(caplog):
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 5)
    buffer.add_sequence(np.arange(5)[None])
    batches = [items.numpy().tolist() for items, _ in buffer.as_dataset(2, 2, single_deterministic_pass=True)]
    assert batches == [[[0, 1], [2, 3]]]
    assert "1 frames are in no window of 2 frames; left out" in caplog.text


def test_windows_overwritten_during_an_ordered_pass_are_skipped_counted_and_told(caplog):
    size = 50_000  # far more than tf.data reads ahead
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, size)
    buffer.add_sequence(np.arange(size)[None])
    iterator = iter(buffer.as_dataset(single_deterministic_pass=True))
    values = [int(next(iterator)[0])]
    buffer.add_sequence(np.arange(size, 2 * size - 10)[None])
    values += [int(items) for items, _ in iterator]
    assert values == sorted(values) and set(values) <= set(range(size))
    assert set(range(size - 10, size)) <= set(values)  # these are still held
    assert buffer.stats().skipped == size - len(values) > 0
    assert "windows were overwritten before an ordered pass reached them; skipped" in caplog.text


def test_stale_keys_are_counted():
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 3)
    keys = np.concatenate([buffer.add_batch(np.array([t])) for t in range(5)])
    assert buffer.update_priorities(keys, np.ones(5)) == 2
    assert buffer.update_priorities(keys[2:], td_errors=-np.ones(3)) == 0


def test_stats_count_draws_in_every_path_and_evictions_of_what_was_never_drawn():
    buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 4)
    buffer.add_sequence(np.arange(4)[None])
    assert buffer.get(np.array([0])).numpy().tolist() == [0]
    buffer.sample(100)
    tf.function(lambda: buffer.sample(7))()
    assert buffer.stats().sampled == 107
    list(buffer.as_dataset(2, single_deterministic_pass=True))
    assert buffer.stats().sampled == 111
    buffer.add_sequence(np.arange(4, 10)[None])
    stats = buffer.stats()
    assert (stats.added, stats.evicted, stats.evicted_unsampled) == (10, 6, 2)
    assert stats.replay_ratio == pytest.approx(11.1)
    assert (stats.bytes_held, stats.bytes_capacity, stats.episodes) == (32, 32, 1)


@pytest.mark.parametrize("sequence", [False, True])
def test_an_interrupted_write_leaves_no_half_written_frame(sequence, monkeypatch):
    """Ctrl-C between two fields of a frame: what it may have damaged is gone, the rest is whole."""
    spec = {"a": tf.TensorSpec([], tf.int64), "b": tf.TensorSpec([], tf.int32)}
    buffer = TFUniformReplayBuffer(spec, batch_size=1, max_length=8, seed=0)

    def frames(values):
        return {"a": np.array([values]), "b": np.array([values], np.int32)}

    buffer.add_sequence(frames(range(10)))
    buffer.sample(1, 2)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    name = "write_sequence" if sequence else "write"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"replayfeed.buffers.storage.FrameStorage.{name}", interrupted)
        if sequence:
            buffer.add_sequence(frames([10, 11]))
        else:
            buffer.add_batch({"a": np.array([10]), "b": np.array([10], np.int32)})
    # Frames 2 to 9 were held; the row of the oldest (two of them in the sequence) may be damaged.
    oldest = 4 if sequence else 3
    assert buffer.gather_all()["a"].numpy().tolist() == [list(range(oldest, 10))]
    buffer.add_sequence(frames([20, 21]))
    items, info = buffer.sample(500, 2)
    expected = {*range(max(oldest, 4), 9), 20}
    assert set(items["a"].numpy()[:, 0].tolist()) == expected
    np.testing.assert_allclose(info.probabilities, 1 / len(expected))
    np.testing.assert_array_equal(items["a"], items["b"])
    assert buffer.stats().added == 12


def test_a_write_interrupted_while_a_sample_is_gathered_delivers_no_torn_row(monkeypatch):
    spec = {"a": tf.TensorSpec([], tf.int64), "b": tf.TensorSpec([3], tf.float32)}
    buffer = TFUniformReplayBuffer(spec, batch_size=1, max_length=4, seed=1)

    def frame(value):
        return {"a": np.array([value]), "b": np.full([1, 3], value, np.float32)}

    for value in range(4):
        buffer.add_batch(frame(value))
    write, gather = FrameStorage.write, FrameStorage.gather
    gathered = []

    def write_half(storage, rows, leaves):
        write(storage, rows, [leaves[0], np.zeros_like(leaves[1])])
        raise KeyboardInterrupt

    def gather_during_a_write(storage, rows):
        if gathered:
            return gather(storage, rows)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            # The reader gathers while the row is half written, then the writer is interrupted.
            patch.setattr(FrameStorage, "write", lambda *args: (gathered.append(None), write_half(*args)))
            patch.setattr(FrameRing, "abandon", lambda ring: (gathered.append(gather(storage, rows)), abandon(ring)))
            buffer.add_batch(frame(99))
        return gathered[1]

    abandon = FrameRing.abandon
    monkeypatch.setattr(FrameStorage, "gather", gather_during_a_write)
    items, _ = buffer.sample(32)
    assert len(gathered) == 2
    np.testing.assert_array_equal(items["b"][:, 0], tf.cast(items["a"], tf.float32))
