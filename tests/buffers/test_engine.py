"""The in-process engine is sound: each condition under which shared memory is safe, as a test.

NumPy writes into memory that TensorFlow reads without a copy. Where that goes wrong the
process aborts or serves a frozen copy, so such cases run in a process of their own and its
return code is looked at.
"""

import collections
import functools
import mmap
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import ReplayBuffer, TFUniformReplayBuffer, Window, memory

DTYPES = [
    tf.bool,
    tf.bfloat16,
    tf.float16,
    tf.float32,
    tf.float64,
    tf.int8,
    tf.int16,
    tf.int32,
    tf.int64,
    tf.uint8,
    tf.uint16,
    tf.uint32,
    tf.uint64,
    tf.complex64,
    tf.complex128,
]
VALUE = tf.TensorSpec([], tf.int64)


def extremes(dtype: tf.DType, num: int) -> np.ndarray:
    """`[num]` values of the dtype, its smallest and largest among them; NaN and infinities for floats."""
    numpy_dtype = dtype.as_numpy_dtype
    if dtype == tf.bool:
        values = np.array([True, False, False])
    elif dtype.is_integer:
        values = np.array([dtype.min, dtype.max, 1, 0], numpy_dtype)
    elif dtype.is_complex:
        values = np.array([1 + 2j, -0.1j, np.inf, complex(np.nan, 1), 1e-30], numpy_dtype)
    else:
        values = np.array([float(dtype.min), float(dtype.max), 0.1, -0.0, np.inf, np.nan, 1e-40], numpy_dtype)
    return np.resize(values, num).astype(numpy_dtype)


def bits(tensor: Any) -> np.ndarray:
    """The tensor's bytes: equal only when every bit is, NaNs included."""
    array = np.asarray(tensor)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# Memory


def test_an_unaligned_array_is_refused():
    """TensorFlow would take it, and abort at the first real op."""
    block = memory.allocate([65], np.float32)
    with pytest.raises(ValueError, match=r"TensorFlow cannot share \(64,\) float32: not contiguous at 64 bytes"):
        memory.as_tensor(block[1:])


def test_an_array_with_gaps_is_refused():
    with pytest.raises(ValueError, match="not contiguous"):
        memory.as_tensor(memory.allocate([8, 32], np.float32)[:, :16])


@pytest.mark.parametrize("rows", [1, 2, 127, 128, 129, 1000])
def test_small_shared_memory_is_no_constant(rows):
    """A function traced while the memory was empty sees what is written afterwards."""
    shared = memory.SharedMemory((rows,), np.int64)
    read = tf.function(lambda: tf.gather(shared.in_graph(), rows - 1))
    assert read() == 0
    shared.array[rows - 1] = 7
    assert read() == 7


def test_memory_of_more_than_2_31_elements_is_shared_and_read_by_row():
    """Address space only: memory is committed as it fills, and two rows are touched."""
    shared = memory.SharedMemory((2**20, 7056), np.uint8)
    shared.array[2**20 - 1, 7055] = 9
    rows = tf.function(lambda: tf.gather(shared.in_graph(), tf.constant([0, 2**20 - 1], tf.int64)))()
    assert rows.numpy()[:, -1].tolist() == [0, 9]


def test_memory_that_tensorflow_copied_is_refused_at_construction(monkeypatch):
    monkeypatch.setattr(memory, "adopt", lambda array: tf.constant(array))
    with pytest.raises(RuntimeError, match=r"TensorFlow copied .* instead of sharing it"):
        TFUniformReplayBuffer(VALUE, 1, 4)


@pytest.mark.parametrize("sizes", [(1,), (3, 5), (1, 64, 7, 0, 65)])
def test_each_array_of_a_block_is_aligned(sizes):
    arrays = memory.aligned_empty([(size,) for size in sizes], [np.dtype(np.uint8)] * len(sizes))
    assert all(array.ctypes.data % memory.ALIGNMENT == 0 for array in arrays if array.size)


OPS_ON_EVERY_LEAF = """
import numpy as np
import tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer

names = "bool bfloat16 float16 float32 float64 int64 uint8 complex64".split()
spec = {f"{name}_{'x'.join(map(str, shape))}": tf.TensorSpec(shape, tf.as_dtype(name))
        for name in names for shape in ([], [5, 7])}
buffer = TFUniformReplayBuffer(spec, 1, 41, seed=0)
rng = np.random.default_rng(0)
for _ in range(2):
    buffer.add_sequence({key: rng.integers(0, 2, [1, 37, *each.shape]).astype(each.dtype.as_numpy_dtype)
                         for key, each in spec.items()})

def use(tensor):
    if tensor.dtype == tf.bool:
        tensor = tf.cast(tf.logical_not(tensor), tf.float32)
    total = tf.reduce_sum(tf.math.abs(tf.cast(tensor, tf.float64) + 1))
    single = tf.nn.relu(tf.cast(tf.math.real(tensor), tf.float32))
    matrix = tf.reshape(single, [tf.shape(tensor)[0], -1])
    product = tf.matmul(matrix, matrix, transpose_b=True)
    if tensor.dtype.is_floating:
        tf.nn.relu(tensor), tensor + tensor
    return total + tf.cast(tf.reduce_sum(product), tf.float64)

used = 0
for batch in (1, 3, 7, 31, 255):
    for num_steps in (None, 3):
        for leaf in tf.nest.flatten(buffer.sample(batch, num_steps)):
            used += np.isfinite(use(leaf))
for batch, num_steps in ((1, None), (7, 3), (31, None), (255, 3)):
    for leaf in tf.nest.flatten(next(iter(buffer.as_dataset(batch, num_steps)))):
        used += np.isfinite(use(leaf))
for leaf in tf.nest.flatten((buffer.gather_all(), buffer.get(np.arange(33, 74)), buffer.get([40], 7))):
    used += np.isfinite(use(leaf))
print(used, 14 * (len(spec) + 5) + 3 * len(spec))
"""


def test_real_ops_on_every_leaf_at_odd_batch_sizes(run_python):
    used, expected = run_python(OPS_ON_EVERY_LEAF).split()
    assert used == expected


FORK = """
import os
import numpy as np
import tensorflow as tf
from replayfeed.buffers import memory

shared = memory.SharedMemory((1000,), np.int64)
array = shared.array
array[:] = 1
child = os.fork()
if not child:
    array[:] = 2
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (array == 1).all() and (tf.gather(shared.in_graph(), [0, 999]).numpy() == 1).all()
print("private")
"""


def test_a_forked_child_does_not_write_into_the_parents_memory(run_python):
    assert run_python(FORK).strip() == "private"


def test_memory_is_private_and_anonymous(monkeypatch):
    """`mmap.mmap(-1, n)` alone is shared with every forked child."""
    seen = []

    def recorded(*arguments: Any, **keywords: Any) -> mmap.mmap:
        seen.append(keywords["flags"])
        return original(*arguments, **keywords)

    original = mmap.mmap
    monkeypatch.setattr(memory.mmap, "mmap", recorded)
    memory.allocate([3], np.float32)
    assert seen == [mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS]


RSS = """
def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
"""

COMMITTED_AS_IT_FILLS = (
    RSS
    + """
import warnings
import numpy as np
import tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer
warnings.simplefilter("ignore", ResourceWarning)
spec = {"image": tf.TensorSpec([84, 84, 4], tf.uint8), "x": tf.TensorSpec([10], tf.float32)}
before = rss()
buffer = TFUniformReplayBuffer(spec, 1, 36_000)  # 1.02 GB
built = rss()
for _ in range(36):
    buffer.add_sequence({"image": np.ones([1, 10, 84, 84, 4], np.uint8), "x": np.ones([1, 10, 10], np.float32)})
print(buffer.stats().bytes_capacity, buffer.stats().bytes_held, built - before, rss() - built)
"""
)


def test_memory_is_committed_as_it_fills(run_python):
    """1 GB of capacity, 1 % filled: 10 MB are held; huge pages round up each array that is touched."""
    capacity, held, built, filled = map(int, run_python(COMMITTED_AS_IT_FILLS).split())
    assert capacity > 1_000_000_000 and held > 10_000_000
    assert built < 20_000_000
    assert held / 2 < filled < held + 20_000_000


DROPPED = (
    RSS
    + """
import gc
import time
import numpy as np
import tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer
spec = {"x": tf.TensorSpec([1000], tf.float32)}
frames = {"x": np.ones([1, 1000, 1000], np.float32)}
levels = []
for _ in range(8):
    buffer = TFUniformReplayBuffer(spec, 1, 10_000)  # 40 MB
    for _ in range(10):
        buffer.add_sequence(frames)
    iterator = iter(buffer.as_dataset(32))
    next(iterator)
    buffer.sample(32)
    del buffer, iterator
    gc.collect()
    levels.append(rss())
# What is freed is freed soon; tf.data's threads may still be at it, and on a busy machine for long.
deadline = time.monotonic() + 120
while rss() - levels[2] >= 40_000_000 and time.monotonic() < deadline:
    gc.collect()
print(rss() - levels[2])
"""
)


def test_buffers_that_are_dropped_give_their_memory_back(run_python):
    """Five more buffers of 40 MB after the third: one of them kept would show."""
    assert int(run_python(DROPPED)) < 40_000_000


EXIT = """
import threading
import numpy as np
import tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer
buffer = TFUniformReplayBuffer({"x": tf.TensorSpec([100], tf.float32)}, 1, 1000)
buffer.add_batch({"x": np.zeros([1, 100], np.float32)})

def write():
    while True:
        buffer.add_batch({"x": np.ones([1, 100], np.float32)})

def read(iterator):
    while True:
        next(iterator)

threading.Thread(target=write, daemon=True).start()
dataset = buffer.as_dataset(16, num_parallel_calls=2).prefetch(4)
iterator = iter(dataset)
next(iterator)
threading.Thread(target=read, args=(iter(dataset),), daemon=True).start()
next(iterator)
print("left")
"""


def test_a_process_with_a_running_dataset_and_a_writer_ends_cleanly(run_python):
    assert run_python(EXIT).strip() == "left"


# Every dtype and structure comes back as it went in


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("way", ["arrays", "tensors", "function"])
def test_every_fixed_width_dtype_round_trips_bit_for_bit(dtype, way):
    """In every way in and out; the vector shares a record with the scalar, the matrix is an array of its own."""
    spec = {
        "scalar": tf.TensorSpec([], dtype),
        "vector": tf.TensorSpec([3], dtype),
        "matrix": tf.TensorSpec([70, 30], dtype),
    }
    shapes = {"scalar": [1, 6], "vector": [1, 6, 3], "matrix": [1, 6, 70, 30]}
    frames = {name: extremes(dtype, int(np.prod(shape))).reshape(shape) for name, shape in shapes.items()}
    buffer = TFUniformReplayBuffer(spec, 1, 6, seed=0)
    first = {name: array[:, 0] for name, array in frames.items()}
    rest = {name: array[:, 1:] for name, array in frames.items()}
    if way == "arrays":
        buffer.add_batch(first)
        buffer.add_sequence(rest)
    else:
        run = tf.function if way == "function" else (lambda function: function)
        run(buffer.add_batch)(tf.nest.map_structure(tf.constant, first))
        run(buffer.add_sequence)(tf.nest.map_structure(tf.constant, rest))

    def check(items: Any, times: Any) -> None:
        for name, array in frames.items():
            assert items[name].dtype == dtype
            np.testing.assert_array_equal(bits(items[name]), bits(array[0, np.asarray(times)]), name)

    check(buffer.gather_all(), [range(6)])
    check(buffer.get(np.array([5, 0, 3])), [5, 0, 3])
    check(buffer.get(np.array([1, 4]), 2), [[1, 2], [4, 5]])
    if way == "arrays":
        for items, info in (buffer.sample(9), buffer.sample(9, 2), next(iter(buffer.as_dataset(9, 2)))):
            check(items, info.ids)


class Pair(NamedTuple):
    left: Any
    right: Any


STRUCTURES = {
    "a bare spec": VALUE,
    "a dict": {"b": VALUE, "a": VALUE},
    "an ordered dict": collections.OrderedDict(b=VALUE, a=VALUE),
    "a tuple": (VALUE, VALUE),
    "a list": [VALUE, VALUE],
    "a namedtuple": Pair(VALUE, VALUE),
    "all of them": {"x": Pair([VALUE, (VALUE,)], {"deep": {"deeper": VALUE}}), "y": ()},
}


def numbered(structure: Any, shape: list[int]) -> Any:
    """Leaves of this shape, each with numbers of its own."""
    leaves = tf.nest.flatten(structure)
    size = int(np.prod(shape))
    arrays = [1000 * index + np.arange(size).reshape(shape) for index in range(len(leaves))]
    return tf.nest.pack_sequence_as(structure, arrays)


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_comes_back_as_it_went_in(name):
    spec = STRUCTURES[name]
    buffer = TFUniformReplayBuffer(spec, 2, 3, seed=0)
    frames = numbered(spec, [2, 3])
    buffer.add_batch(tf.nest.map_structure(lambda leaf: leaf[:, 0], frames))
    buffer.add_sequence(tf.nest.map_structure(lambda leaf: leaf[:, 1:], frames))
    everything = buffer.gather_all()
    tf.nest.assert_same_structure(everything, spec)
    for stored, given in zip(tf.nest.flatten(everything), tf.nest.flatten(frames), strict=True):
        np.testing.assert_array_equal(stored, given)
    items, info = buffer.sample(8, 2)
    tf.nest.assert_same_structure(items, spec)
    stream, time = np.asarray(info.ids) % 2, np.asarray(info.ids) // 2
    for leaf, given in zip(tf.nest.flatten(items), tf.nest.flatten(frames), strict=True):
        np.testing.assert_array_equal(leaf, given[stream, time])


@pytest.mark.parametrize("name", ["a list", "all of them"])
def test_lists_come_out_of_a_dataset_as_tuples(name):
    spec = STRUCTURES[name]
    buffer = TFUniformReplayBuffer(spec, 1, 3, seed=0)
    frames = numbered(spec, [1, 3])
    buffer.add_sequence(frames)
    items, info = next(iter(buffer.as_dataset(8)))
    for leaf, given in zip(tf.nest.flatten(items), tf.nest.flatten(frames), strict=True):
        np.testing.assert_array_equal(leaf, given[0, np.asarray(info.ids)])


def test_fields_without_any_number_are_refused_by_name():
    with pytest.raises(ValueError, match=r"data_spec field 'info/empty': shape \[0\] holds no number; drop the field"):
        TFUniformReplayBuffer({"info": {"empty": tf.TensorSpec([0], tf.float32)}, "x": VALUE}, 1, 4)


def test_strings_are_refused_with_the_ways_out():
    with pytest.raises(
        ValueError,
        match=r"data_spec field 'name': string has no fixed width .* drop the field, or encode it as a fixed-width",
    ):
        TFUniformReplayBuffer({"name": tf.TensorSpec([], tf.string), "x": VALUE}, 1, 4)


# Nothing that a user holds changes afterwards


def ring_of(value: int, num: int = 16, width: int = 32) -> TFUniformReplayBuffer:
    """A full ring of rows that hold this value, in a record, alone, and in a dtype that is restored."""
    spec = {
        "shared": tf.TensorSpec([width], tf.float32),
        "beside": tf.TensorSpec([], tf.float32),
        "alone": tf.TensorSpec([40, 40], tf.float64),
        "single": VALUE,
        "flag": tf.TensorSpec([64], tf.bool),
        "brain": tf.TensorSpec([64], tf.bfloat16),
    }
    buffer = TFUniformReplayBuffer(spec, 1, num, seed=0)
    fill(buffer, value)
    return buffer


def fill(buffer: ReplayBuffer, value: int) -> None:
    """Overwrites every row."""
    buffer.add_sequence(
        tf.nest.map_structure(
            lambda spec: np.full([1, buffer.capacity, *spec.shape], value, spec.dtype.as_numpy_dtype), buffer.data_spec
        )
    )


READS = {
    "sample": lambda buffer: buffer.sample(8),
    "sample of windows": lambda buffer: buffer.sample(8, 2),
    "sample of one": lambda buffer: buffer.sample(),
    "sample of a whole window": lambda buffer: buffer.sample(1, 16),
    "get_next": lambda buffer: buffer.get_next(8, 2, time_stacked=False),
    "sample in a function": lambda buffer: tf.function(lambda: buffer.sample(8, 2))(),
    "as_dataset": lambda buffer: next(iter(buffer.as_dataset(8, 2))),
    "as_dataset of single draws": lambda buffer: next(iter(buffer.as_dataset())),
    "an ordered pass": lambda buffer: list(buffer.as_dataset(4, 2, single_deterministic_pass=True)),
    "a shuffled pass": lambda buffer: list(buffer.as_dataset(16, epochs=1)),
    "gather_all": lambda buffer: buffer.gather_all(),
    "get": lambda buffer: buffer.get(np.arange(16)),
    "num_frames": lambda buffer: [buffer.num_frames(), tf.function(buffer.num_frames)()],
}


@pytest.mark.parametrize("read", READS)
def test_what_was_read_does_not_change_when_the_ring_is_overwritten(read):
    buffer = ring_of(1)
    kept = tf.nest.flatten(READS[read](buffer))
    before = [bits(tensor).copy() for tensor in kept]
    fill(buffer, 0)
    buffer.add_batch(tf.nest.map_structure(lambda s: np.zeros([1, *s.shape], s.dtype.as_numpy_dtype), buffer.data_spec))
    READS[read](buffer) if read != "get" else buffer.get(np.arange(17, 33))
    buffer.clear()
    for tensor, old in zip(kept, before, strict=True):
        np.testing.assert_array_equal(bits(tensor), old)


def test_what_was_read_does_not_change_what_is_stored():
    buffer = ring_of(1)
    items, _ = buffer.sample(16)
    tf.raw_ops.InplaceUpdate(x=items["shared"], i=[0], v=tf.zeros([1, 32]))
    assert np.all(np.asarray(buffer.gather_all()["shared"]) == 1)


@pytest.mark.parametrize("add", ["add_batch", "add_sequence"])
@pytest.mark.parametrize("cast", [False, True])
def test_fr_010_fr_070_arguments_are_copied_and_left_unchanged(add, cast):
    buffer = TFUniformReplayBuffer({"x": tf.TensorSpec([3], tf.float32)}, 2, 4, cast=cast)
    shape = [2, 3] if add == "add_batch" else [2, 4, 3]
    given = np.arange(np.prod(shape), dtype=np.float64 if cast else np.float32).reshape(shape)
    items, ends = {"x": given}, np.ones(shape[:-1], bool)
    before = given.copy()
    ids = getattr(buffer, add)(items, end_of_episode=ends)
    assert items["x"] is given and list(items) == ["x"]
    np.testing.assert_array_equal(given, before)
    assert ends.all()
    given[...] = -1
    ids[...] = -1
    stored = np.asarray(buffer.gather_all()["x"])
    np.testing.assert_array_equal(stored, before if add == "add_sequence" else before[:, None])


def test_fr_010_next_observations_that_are_views_of_the_observations_stay_apart():
    source = np.arange(5.0, dtype=np.float32)
    spec = {"next": tf.TensorSpec([], tf.float32), "obs": tf.TensorSpec([], tf.float32)}
    buffer = TFUniformReplayBuffer(spec, 1, 4)
    buffer.add_sequence({"obs": source[None, :-1], "next": source[None, 1:]})
    source[:] = 9
    assert np.asarray(buffer.gather_all()["obs"]).tolist() == [[0, 1, 2, 3]]
    assert np.asarray(buffer.gather_all()["next"]).tolist() == [[1, 2, 3, 4]]


# Live datasets


def old_batches(iterator: Any, buffer: ReplayBuffer, warm: int, look: int, pause: bool) -> int:
    """Draws `warm` batches, overwrites everything, and tells how far into the next `look` an old value reaches."""
    weights = tf.random.stateless_normal([300, 300], [1, 2])
    for _ in range(warm):
        next(iterator)
        if pause:  # a training step, for the time that it takes
            tf.linalg.matmul(weights, weights).numpy()
    value = int(buffer.gather_all()[0, -1]) + 1
    buffer.add_sequence(np.full([1, buffer.capacity], value))
    batches = [np.asarray(next(iterator)[0]) for _ in range(look)]
    return max([index + 1 for index, batch in enumerate(batches) if np.any(batch != value)], default=0)


def test_fr_073_old_batches_end_soon_after_everything_is_overwritten():
    """Fill with 0, draw 1 batch, overwrite with 100, draw 40: the documented look-ahead is 24 batches."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 64, seed=0)
    buffer.add_sequence(np.zeros([1, 64], np.int64))
    batches = iter(buffer.as_dataset(4))
    next(batches)
    buffer.add_sequence(np.full([1, 64], 100))
    old = [bool(np.any(np.asarray(next(batches)[0]) == 0)) for _ in range(40)]
    assert not any(old[24:])


@pytest.mark.parametrize("pause", [False, True], ids=["fast consumer", "slow consumer"])
@pytest.mark.parametrize(("batch", "bound"), [(32, 24), (None, 1)])
def test_fr_073_the_documented_look_ahead_holds_for_an_iterator_that_has_run_long(batch, bound, pause):
    """tf.data may tune buffers of its own as it runs; the bound is that of `as_dataset`'s docstring."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 200, seed=0)
    buffer.add_sequence(np.zeros([1, 200], np.int64))
    batches = iter(buffer.as_dataset(batch))
    found = [old_batches(batches, buffer, warm, 4 * bound + 40, pause) for warm in (1, 100, 500)]
    assert max(found) <= bound, found


@pytest.mark.parametrize("num_parallel_calls", [1, 3])
def test_the_documented_look_ahead_holds_for_parallel_calls(num_parallel_calls):
    buffer = TFUniformReplayBuffer(VALUE, 1, 200, seed=0)
    buffer.add_sequence(np.zeros([1, 200], np.int64))
    batches = iter(buffer.as_dataset(4, num_parallel_calls=num_parallel_calls))
    found = [old_batches(batches, buffer, warm, 150, False) for warm in (1, 100, 300)]
    assert max(found) <= 24 + 8 * (num_parallel_calls + 1), found


def test_batches_of_a_megabyte_are_drawn_at_most_5_ahead():
    buffer = TFUniformReplayBuffer(tf.TensorSpec([2**18], tf.uint8), 1, 8, seed=0)
    buffer.add_sequence(np.zeros([1, 8, 2**18], np.uint8))
    batches = iter(buffer.as_dataset(4))
    for _ in range(50):
        next(batches)
    buffer.add_sequence(np.ones([1, 8, 2**18], np.uint8))
    old = [bool(np.any(np.asarray(next(batches)[0]) == 0)) for _ in range(20)]
    assert not any(old[5:])


def test_a_dataset_built_before_the_first_add_serves_what_came_later():
    buffer = TFUniformReplayBuffer(VALUE, 1, 64, seed=0)
    dataset = buffer.as_dataset(4)
    buffer.add_sequence(np.arange(64)[None])
    assert set(np.asarray(next(iter(dataset))[0]).tolist()) <= set(range(64))


def test_a_dataset_outlives_its_buffer():
    dataset = ring_of(1).as_dataset(8)
    assert all(np.all(np.asarray(items["single"]) == 1) for items, _ in dataset.take(20))


SERVED = {
    "draws": lambda buffer: buffer.as_dataset(4),
    "windows": lambda buffer: buffer.as_dataset(4, 2),
    "an ordered pass": lambda buffer: buffer.as_dataset(4, single_deterministic_pass=True),
    "a shuffled pass": lambda buffer: buffer.as_dataset(4, epochs=1),
}


@pytest.mark.parametrize("name", SERVED)
def test_the_tf_data_service_is_refused_rather_than_served_a_frozen_copy(name):
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(service.WorkerConfig(dispatcher.target.split("://")[1]))
    dataset = SERVED[name](ring_of(1))
    with pytest.raises(tf.errors.FailedPreconditionError, match="stateful"):
        next(iter(dataset.apply(service.distribute(service.ShardingPolicy.OFF, dispatcher.target))))
    del worker


DISTRIBUTED = """
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from replayfeed.buffers import TFUniformReplayBuffer
buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 100)
buffer.add_sequence(np.ones([1, 100], np.int64))
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
iterator = iter(strategy.experimental_distribute_dataset(buffer.as_dataset(32)))

@tf.function
def step():
    items, _ = next(iterator)
    return strategy.run(lambda n: (tf.shape(n)[0], tf.reduce_min(n)), (items,))

print([[int(each) for each in strategy.experimental_local_results(results)] for results in step()])
buffer.add_sequence(np.full([1, 100], 5))
for _ in range(40):
    results = step()
print([int(each) for each in strategy.experimental_local_results(results[1])])
"""


def test_a_distributed_dataset_is_split_and_live(run_python):
    sizes, values = run_python(DISTRIBUTED).splitlines()[-2:]
    assert sizes == "[[16, 16], [1, 1]]"
    assert values == "[5, 5]"


@pytest.mark.parametrize("name", SERVED)
def test_auto_sharding_is_off(name):
    """It would read the whole memory in order to rewrite the graph."""
    options = SERVED[name](ring_of(1)).options()
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF


ITERATED = (
    RSS
    + """
import numpy as np
import tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer
buffer = TFUniformReplayBuffer(tf.TensorSpec([1000], tf.float32), 1, 50_000)
for _ in range(50):  # 200 MB
    buffer.add_sequence(np.ones([1, 1000, 1000], np.float32))
dataset = buffer.as_dataset(8, 2)
before = rss()
next(iter(dataset))
print(rss() - before)
"""
)


def test_a_dataset_takes_no_memory(run_python):
    """200 MB are held; threads and code that TensorFlow loads at the first iterator take some 20 MB."""
    assert int(run_python(ITERATED)) < 80_000_000


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_keras_fit_follows_the_memory():
    """One weight learns the target that is in the ring: 1, and after it is overwritten, 5."""
    buffer = TFUniformReplayBuffer((tf.TensorSpec([1], tf.float32), tf.TensorSpec([1], tf.float32)), 1, 64, seed=0)
    ones = np.ones([1, 64, 1], np.float32)
    buffer.add_sequence((ones, ones))
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(tf.keras.optimizers.SGD(0.2), "mse")
    dataset = buffer.as_dataset(16).map(lambda items, info: items)
    learned = []
    for target in (1, 5):
        buffer.add_sequence((ones, target * ones))
        model.fit(dataset, steps_per_epoch=60, verbose=0)
        learned.append(float(model.get_weights()[0][0, 0]))
    np.testing.assert_allclose(learned, [1, 5], rtol=1e-3)


# XLA


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("final_observations", [False, True])
def test_jit_compile_of_a_function_that_samples_raises(window, final_observations):
    """XLA drops the order of reads and would deliver torn rows."""
    spec = {"is_last": tf.TensorSpec([], tf.bool), "x": VALUE} if final_observations else {"x": VALUE}
    buffer = TFUniformReplayBuffer(spec, 1, 16)
    buffer.add_sequence(
        numbered({"x": VALUE}, [1, 16]) | ({"is_last": np.zeros([1, 16], bool)} if len(spec) > 1 else {})
    )
    sample = tf.function(functools.partial(buffer.sample, 4, window), jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
        sample()


def test_jit_compile_of_a_function_that_samples_ignoring_boundaries_raises():
    buffer = ring_of(1)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(lambda: buffer.sample(4, window=Window(2, boundaries="ignore"))[0]["single"], jit_compile=True)()


AUTO_CLUSTERED = """
import threading
import time
import numpy as np
import tensorflow as tf
from replayfeed.buffers import TFUniformReplayBuffer
spec = {"a": tf.TensorSpec([], tf.int64), "b": tf.TensorSpec([64], tf.float64), "c": tf.TensorSpec([40, 10], tf.int32)}
buffer = TFUniformReplayBuffer(spec, 1, 32, seed=0)
stop = threading.Event()

def add(i):
    buffer.add_batch({"a": np.array([i]), "b": np.full([1, 64], i, np.float64), "c": np.full([1, 40, 10], i, np.int32)})

def write():
    i = 32
    while not stop.is_set():
        add(i)
        i += 1

for i in range(32):
    add(i)
threads = [threading.Thread(target=write, daemon=True) for _ in range(2)]
batches = iter(buffer.as_dataset(16).map(lambda items, info: tf.nest.map_structure(lambda leaf: leaf * 2 // 2, items)))
draw = tf.function(lambda: buffer.sample(16)[0])
next(batches), draw()
for thread in threads:
    thread.start()
torn = rows = 0
start = time.monotonic()
# Three seconds, and on a busy machine until enough has been read.
while time.monotonic() < start + 3 or (rows <= 1000 and time.monotonic() < start + 200):
    for items in (next(batches), draw()):
        a = items["a"].numpy()
        bad = (items["b"].numpy() != a[:, None]).any(1) | (items["c"].numpy() != a[:, None, None]).any((1, 2))
        torn += int(bad.sum())
        rows += 16
stop.set()
for thread in threads:
    thread.join()
print(rows, torn)
"""


def test_xla_auto_clustering_tears_nothing(run_python, monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit")
    rows, torn = map(int, run_python(AUTO_CLUSTERED).split())
    assert rows > 1000
    assert torn == 0


# Counters


def test_parallel_calls_count_every_draw():
    """The counter is not atomic: calls of a map that draw side by side must not add to it side by side."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 20_000, seed=0)
    buffer.add_sequence(np.arange(20_000)[None])
    dataset = buffer.as_dataset(2, num_parallel_calls=4, epochs=1)
    assert sum(1 for _ in dataset.batch(1000)) == 10
    assert buffer.stats().sampled == 20_000


def test_threads_with_samples_of_different_sizes_get_info_of_their_own_size(monkeypatch):
    """What is the same for all samples of one size is kept: a sample of another size may come in between."""
    buffer = TFUniformReplayBuffer(VALUE, 1, 8, seed=0)
    buffer.add_sequence(np.arange(8)[None])
    nested = []

    def ones(*arguments: Any, **keywords: Any) -> tf.Tensor:
        if not nested:
            nested.append(True)
            buffer.sample(5, 2)
        return original(*arguments, **keywords)

    original = tf.ones
    monkeypatch.setattr(tf, "ones", ones)
    _, info = buffer.sample(3)
    assert nested and info.probabilities.shape == info.weights.shape == info.mask.shape == (3,)
