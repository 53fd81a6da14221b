"""Windows straight from disk: each once an epoch, as a buffer would give them, shuffled, and in bounded memory."""

from __future__ import annotations

import collections
import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import EpisodicReplayBuffer, TFUniformReplayBuffer
from replayfeed.buffers.windows import Window
from replayfeed.pipelines import load_rlds
from replayfeed.pipelines.episode_batches import stream_dataset
from replayfeed.pipelines.episode_blocks import EpisodeNumbers, stream_fields
from replayfeed.pipelines.episode_mixture import mixed_windows, source_of
from replayfeed.pipelines.episode_order import Order, WindowCounts, WindowStream
from replayfeed.pipelines.episode_windows import windows_dataset
from replayfeed.pipelines.feed import iterate
from replayfeed.pipelines.transforms import n_step, returns_to_go, stack_frames, transitions

# A frame is its own id: whatever a window holds can be told from its numbers.
SPEC = tf.TensorSpec([], tf.int64)


class Named(NamedTuple):
    name: str
    frames: Any
    num_frames: int
    agent: str | None = None
    place: int = -1


def of_lengths(lengths: list[int]) -> list[Named]:
    return [Named(str(i), (i << 32) + np.arange(n), n) for i, n in enumerate(lengths)]


def starter(episodes: list[Named]):
    """Starts passes: in order with None, else shuffled by the seed."""

    def start_pass(seed: int | None) -> Iterator[Named]:
        order = range(len(episodes)) if seed is None else np.random.default_rng(seed).permutation(len(episodes))
        return (episodes[index] for index in order)

    return start_pass


def dataset_of(lengths: list[int], batch: int | None = None, num_steps: int | None = None, **arguments: Any):
    arguments = {"name": "mine", "layout": "transition", "seed": 0, **arguments}
    return windows_dataset(starter(of_lengths(lengths)), SPEC, batch, num_steps, **arguments)


def stream_of(
    lengths: list[int], order: Order, *, entropy: tuple[int, ...] = (0,), final: bool = False
) -> WindowStream:
    return WindowStream(
        "mine",
        starter(of_lengths(lengths)),
        SPEC,
        order,
        final_observations=final,
        entropy=entropy,
        numbers=EpisodeNumbers(),
        counts=WindowCounts(),
    )


def naive_windows(lengths: list[int], window: Window, *, final: bool) -> list[tuple[int, ...]]:
    """Ids of each window, -1 where it is padded, frame by frame from the words of `Window`'s docstring."""
    found = []
    for episode, length in enumerate(lengths):
        shown_to = -1
        for start in range(0, length, window.stride):
            if final and start == length - 1:
                continue
            stop = start + window.num_steps
            if stop > length:
                if window.short == "drop" or (window.stride > 1 and shown_to >= length):
                    continue
            shown_to = stop
            frames = range(start - window.burn_in, stop)
            found.append(tuple((episode << 32) + f if 0 <= f < length else -1 for f in frames))
    return found


windows = st.builds(
    Window,
    st.integers(1, 5),
    burn_in=st.integers(0, 3),
    stride=st.integers(1, 4),
    short=st.sampled_from(["drop", "pad"]),
)


# -- which windows come ------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=12),
    windows,
    st.booleans(),
    st.integers(1, 30),
    st.integers(1, 7),
)
def test_each_epoch_delivers_every_eligible_window_exactly_once(lengths, window, final, shuffle_frames, take):
    wanted = collections.Counter(naive_windows(lengths, window, final=final))
    if not wanted:
        return
    num = wanted.total()
    stream = stream_of(lengths, Order(window, 3, shuffled=True, shuffle_frames=shuffle_frames), final=final)
    rows = []
    while (taken := stream.take(take)) is not None:
        offsets = np.arange(-window.burn_in, window.num_steps)
        real = (offsets >= -taken.num_before[:, None]) & (offsets < taken.num_after[:, None])
        # Items hold their own ids, and zeros where padded.
        assert (taken.leaves[0] == np.where(real, taken.keys[:, None] + offsets, 0)).all()
        rows += [tuple(row) for row in np.where(real, taken.leaves[0], -1).tolist()]
    assert len(rows) == 3 * num
    for epoch in range(3):
        assert collections.Counter(rows[epoch * num : (epoch + 1) * num]) == wanted


@settings(max_examples=60)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), windows, st.booleans(), st.integers(1, 30))
def test_an_ordered_pass_with_a_window_delivers_every_eligible_start_in_the_files_order(lengths, window, final, frames):
    wanted = naive_windows(lengths, window, final=final)
    if not wanted:
        return
    taken = stream_of(lengths, Order(window, 1, shuffled=False, shuffle_frames=frames), final=final).take(10_000)
    offsets = np.arange(-window.burn_in, window.num_steps)
    real = (offsets >= -taken.num_before[:, None]) & (offsets < taken.num_after[:, None])
    assert [tuple(row) for row in np.where(real, taken.leaves[0], -1).tolist()] == wanted


def test_an_ordered_pass_with_num_steps_delivers_windows_that_do_not_overlap():
    dataset = dataset_of([5, 2], None, 2, single_deterministic_pass=True)
    assert [(items.numpy() % 2**32).tolist() for items, _ in dataset] == [[0, 1], [2, 3], [4], [0, 1]]
    assert [info.mask.numpy().tolist() for _, info in dataset] == [[True] * 2, [True] * 2, [True], [True] * 2]


def test_an_ordered_pass_in_batches_leaves_short_windows_out_and_logs_it(caplog):
    dataset = dataset_of([5, 2], 2, 2, single_deterministic_pass=True)
    assert [(items.numpy() % 2**32).tolist() for items, _ in dataset] == [[[0, 1], [2, 3]], [[0, 1]]]
    assert "1 frames are in no window of 2 frames; left out." in caplog.text


def test_single_frames_have_no_time_axis():
    items, info = next(iter(dataset_of([5, 2], 4, single_deterministic_pass=True)))
    assert items.numpy().tolist() == info.ids.numpy().tolist() == info.keys.numpy().tolist() == [0, 1, 2, 3]
    assert info.mask.numpy().tolist() == [True] * 4


def test_a_final_observation_starts_no_window_but_ends_one():
    dataset = dataset_of([3], 5, window=Window(2), layout="trajectory", single_deterministic_pass=True)
    assert next(iter(dataset))[0].numpy().tolist() == [[0, 1], [1, 2]]
    frames = dataset_of([3], 5, layout="step", single_deterministic_pass=True)
    assert next(iter(frames))[0].numpy().tolist() == [0, 1]


def test_padding_is_zeros_with_id_minus_one():
    dataset = dataset_of([1, 2], 3, window=Window(2, burn_in=1, short="pad"), single_deterministic_pass=True)
    items, info = next(iter(dataset))
    one = 1 << 32
    assert items.numpy().tolist() == [[0, 0, 0], [0, one, one + 1], [one, one + 1, 0]]
    assert info.ids.numpy().tolist() == [[-1, 0, -1], [-1, one, one + 1], [one, one + 1, -1]]
    assert info.mask.numpy().tolist() == [[False, True, False], [False, True, True], [True, True, False]]
    assert info.keys.numpy().tolist() == [0, one, one + 1]


def test_info_tells_the_share_of_a_window_and_weights_of_one():
    shuffled = next(iter(dataset_of([4, 4], 3, 2, epochs=1)))[1]
    assert shuffled.probabilities.numpy().tolist() == pytest.approx([1 / 6] * 3)
    assert shuffled.weights.numpy().tolist() == [1.0] * 3
    ordered = next(iter(dataset_of([4, 4], 3, 2, single_deterministic_pass=True)))[1]
    assert ordered.probabilities.numpy().tolist() == [1.0] * 3


def test_the_share_is_of_what_was_read_until_a_pass_has_been_read():
    stream = stream_of([4] * 6, Order(Window(2), 2, shuffled=True, shuffle_frames=8))
    chances = stream.take(36).chances.tolist()
    assert chances[0] == pytest.approx(1 / 6)  # two episodes of three windows each are read
    assert chances[17:] == pytest.approx([1 / 18] * 19)


# -- batches -----------------------------------------------------------------------------------


def test_epochs_fill_batches_across_each_other_and_the_last_batch_may_be_smaller():
    sizes = [len(items) for items, _ in dataset_of([3, 4], 4, 2, epochs=2)]
    assert sizes == [4, 4, 2]


def test_an_endless_dataset_has_full_batches_and_says_so():
    dataset = dataset_of([3, 4], 4, 2)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    items, info = dataset.element_spec
    assert (items.shape, info.ids.shape, info.probabilities.shape) == ([4, 2], [4, 2], [4])
    assert {len(items) for items, _ in dataset.take(50)} == {4}


def test_the_batch_of_a_pass_is_of_unknown_size_as_in_buffers():
    assert dataset_of([3, 4], 4, 2, epochs=1).element_spec[0].shape.as_list() == [None, 2]


def test_elements_without_a_batch_axis():
    rows = [(items.numpy().tolist(), info.keys.numpy().tolist()) for items, info in dataset_of([3], None, 2, epochs=1)]
    assert sorted(rows) == [([0, 1], 0), ([1, 2], 1)]


def test_batches_of_a_megabyte_cross_alone():
    spec = tf.TensorSpec([256, 256], tf.uint8)
    episodes = [Named(str(i), np.full([20, 256, 256], i, np.uint8), 20) for i in range(3)]
    dataset = windows_dataset(starter(episodes), spec, 16, name="large", layout="transition", epochs=1, seed=0)
    sizes = [(len(items), (items.numpy()[:, 0, 0] == info.ids.numpy() >> 32).all()) for items, info in dataset]
    assert sizes == [(16, True), (16, True), (16, True), (12, True)]


# -- order -------------------------------------------------------------------------------------


def ids_of(dataset: tf.data.Dataset, num: int) -> list[Any]:
    return [info.ids.numpy().tolist() for _, info in itertools.islice(iterate(dataset), num)]


def test_the_same_seed_gives_the_same_order_and_another_seed_another():
    lengths = [7, 3, 9, 4, 8]
    one, again, other = (ids_of(dataset_of(lengths, 4, 2, shuffle_frames=12, seed=s), 30) for s in (5, 5, 6))
    assert one == again
    assert one != other


def test_without_a_seed_orders_differ():
    assert ids_of(dataset_of([50], 50, seed=None), 1) != ids_of(dataset_of([50], 50, seed=None), 1)


def test_a_second_iterator_is_independent_and_in_an_order_of_its_own():
    dataset = dataset_of([20, 30], 50, epochs=1)
    first, second = iterate(dataset), iterate(dataset)
    one, two = next(first)[1].ids.numpy(), next(second)[1].ids.numpy()
    assert sorted(one) == sorted(two)
    assert one.tolist() != two.tolist()
    assert next(first, None) is None
    assert next(second, None) is None


def test_every_epoch_is_in_another_order():
    epochs = ids_of(dataset_of([20, 30], 50, epochs=3), 3)
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


def test_within_one_block_every_window_is_as_likely_at_every_place():
    """Chi-square of an 8 x 8 table has 49 degrees of freedom; 96.0 is beyond its 99.99 % point."""
    counts = np.zeros([8, 8])
    stream = stream_of([5, 3], Order(None, None, shuffled=True), entropy=(3,))
    for _ in range(4000):
        frames = stream.take(8).leaves[0]
        counts[np.where(frames < 2**32, frames, 5 + frames % 2**32), np.arange(8)] += 1
    assert ((counts - 500) ** 2 / 500).sum() < 96.0


def test_windows_come_with_their_own_block_or_the_next_one_with_equal_odds():
    """10 blocks of 1,000 windows; of the first 9 the share that comes late is 1/2 within 6 standard deviations."""
    lengths = [100] * 100
    episodes = of_lengths(lengths)
    stream = WindowStream(
        "mine",
        lambda seed: iter(episodes),
        SPEC,
        Order(None, 1, shuffled=True, shuffle_frames=1000),
        final_observations=False,
        entropy=(1,),
        numbers=EpisodeNumbers(),
        counts=WindowCounts(),
    )
    ids = stream.take(10_000).leaves[0]
    block = (ids >> 32) // 10
    ends = [np.flatnonzero(block <= b).max() for b in range(10)]
    for b in range(9):
        first_of_next = np.flatnonzero(block == b + 1).min()
        late = (np.flatnonzero(block == b) > first_of_next).sum()
        # All that come late come after the next block's first window, and before the one after that.
        assert abs(late - 500) < 6 * np.sqrt(250)
        assert b == 8 or ends[b] < np.flatnonzero(block == b + 2).min()


def test_neighbours_in_the_file_do_not_come_as_neighbours():
    """Of 10,000 frames in blocks of 1,000 about 20 follow their predecessor by chance; a slow shuffle has thousands."""
    ids = stream_of([100] * 100, Order(None, 1, shuffled=True, shuffle_frames=1000)).take(10_000).leaves[0]
    assert (np.diff(ids) == 1).sum() < 60


# -- memory ------------------------------------------------------------------------------------


class CountedPass:
    """A pass that counts what it was asked for, and knows when it is gone."""

    def __init__(self, episodes: list[Named]) -> None:
        self.episodes = iter(episodes)
        self.num_read = 0

    def __iter__(self) -> CountedPass:
        return self

    def __next__(self) -> Named:
        self.num_read += 1
        return next(self.episodes)


def test_never_more_than_three_blocks_are_read_ahead_of_what_is_delivered():
    run = CountedPass(of_lengths([10] * 1000))
    stream = WindowStream(
        "mine",
        lambda seed: run,
        SPEC,
        Order(None, 1, shuffled=True, shuffle_frames=100),
        final_observations=False,
        entropy=(0,),
        numbers=EpisodeNumbers(),
        counts=WindowCounts(),
    )
    for num in range(50, 9001, 50):
        stream.take(50)
        assert 10 * run.num_read <= num + 250


def test_the_next_block_is_read_bit_by_bit_while_this_one_is_delivered():
    run = CountedPass(of_lengths([10] * 100))
    stream = WindowStream(
        "mine",
        lambda seed: run,
        SPEC,
        Order(None, 1, shuffled=True, shuffle_frames=200),
        final_observations=False,
        entropy=(0,),
        numbers=EpisodeNumbers(),
        counts=WindowCounts(),
    )
    stream.take(1)
    steps = []
    for _ in range(20):
        before = run.num_read
        stream.take(10)
        steps.append(run.num_read - before)
    assert max(steps) <= 3


def test_an_episode_larger_than_a_block_is_a_block_of_its_own():
    ids = ids_of(dataset_of([3, 50, 4], 57, shuffle_frames=5, epochs=1), 1)[0]
    assert sorted(ids) == [*range(3), *(2**32 + np.arange(50)), *(2 * 2**32 + np.arange(4))]


def test_a_pass_that_fits_into_a_block_is_read_once():
    started = []
    episodes = of_lengths([4, 5])

    def start_pass(seed):
        started.append(seed)
        return iter(episodes)

    arguments: dict[str, Any] = {"name": "mine", "layout": "transition", "seed": 0, "epochs": 4}
    kept = windows_dataset(start_pass, SPEC, 9, **arguments)
    epochs = ids_of(kept, 4)
    assert len(started) == 1
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1
    started.clear()
    ids_of(windows_dataset(start_pass, SPEC, 9, passes_alike=False, **arguments), 5)
    assert len(set(started)) == 4


def test_the_reading_ends_with_the_iterator_and_the_dataset_frees_what_it_was_made_of():
    class Source:
        passes: list[weakref.ref[CountedPass]] = []

        def start(self, seed: int | None) -> CountedPass:
            run = CountedPass(of_lengths([10] * 1000))
            self.passes.append(weakref.ref(run))
            return run

    source = Source()
    alive = weakref.ref(source)
    dataset = windows_dataset(source.start, SPEC, 4, name="mine", layout="transition", shuffle_frames=50)
    del source
    iterator = iterate(dataset)
    next(iterator)
    assert Source.passes[0]() is not None
    del iterator
    gc.collect()
    assert Source.passes[0]() is None
    assert alive() is not None
    del dataset
    gc.collect()
    assert alive() is None


# -- fields and errors -------------------------------------------------------------------------


def test_nests_strings_and_padding_of_strings():
    spec = {"text": tf.TensorSpec([], tf.string), "nested": (tf.TensorSpec([2], tf.float32),)}
    frames = {"text": np.array([b"a", b"bc"], object), "nested": (np.arange(4, dtype=np.float32).reshape(2, 2),)}
    dataset = windows_dataset(
        lambda seed: [Named("0", frames, 2)],
        spec,
        5,
        name="mine",
        layout="transition",
        window=Window(2, short="pad"),
        single_deterministic_pass=True,
    )
    items, _ = next(iter(dataset))
    assert items["text"].numpy().tolist() == [[b"a", b"bc"], [b"bc", b""]]
    assert items["nested"][0].numpy().tolist() == [[[0, 1], [2, 3]], [[2, 3], [0, 0]]]


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros([3], np.int32), r"mine, episode 0: field 'items': expected \[3\] int64, got \[3\] int32"),
        (np.zeros([3, 1], np.int64), r"mine, episode 0: field 'items': expected \[3\] int64, got \[3, 1\] int64"),
    ],
)
def test_an_episode_that_does_not_match_the_spec_is_named(frames, message):
    dataset = windows_dataset(lambda seed: [Named("0", frames, 3)], SPEC, 2, name="mine", layout="transition")
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(dataset))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_steps": 4}, "mine: no window of 4 frames in 2 episodes, the longest of 3 frames."),
        ({"num_steps": 4, "epochs": 2}, "mine: no window of 4 frames in 2 episodes"),
        ({"num_steps": 4, "single_deterministic_pass": True}, "mine: no window of 4 frames in 2 episodes"),
    ],
)
def test_nothing_to_deliver_is_an_error_that_says_why(arguments, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(dataset_of([3, 2], 2, **arguments)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch": 0}, ValueError, "sample_batch_size must be at least 1, got 0"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
        ({"shuffle_frames": 0}, ValueError, "shuffle_frames must be at least 1, got 0"),
        ({"shuffle_frames": 1.5}, TypeError, "shuffle_frames must be an int, got 1.5"),
        ({"num_steps": 2, "window": Window(2)}, ValueError, "give num_steps or window, not both"),
        ({"window": Window(2, boundaries="ignore")}, ValueError, "offline episodes stay apart"),
        ({"epochs": 1, "single_deterministic_pass": True}, ValueError, "give epochs .* not both"),
        ({"seed": -1}, ValueError, "seed must be an int of at least 0, or None, got -1"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_read(arguments, error, message):
    with pytest.raises(error, match=message):
        dataset_of([3], **arguments)


def test_a_field_of_variable_length_is_refused_by_name():
    spec = {"tags": tf.RaggedTensorSpec([None], tf.int64)}
    with pytest.raises(ValueError, match="mine: field 'tags' is of variable length"):
        stream_fields("mine", spec)


def test_episodes_keep_their_numbers_in_any_order_and_agents_have_their_own():
    numbers = EpisodeNumbers()
    assert [numbers.number("a: 0", 0), numbers.number("b: 0", 1), numbers.number("a: 0", 1)] == [0, 1, 0]
    assert numbers.number("b: 0 of left", 1) == 2**24 + 2
    many = EpisodeNumbers(0, 200)
    with pytest.raises(ValueError, match="more than ids can number"):
        many.number("named")


# -- with real episodes ------------------------------------------------------------------------


def equal_multisets(one: Iterator[Any], other: Iterator[Any]) -> None:
    """The same windows, whatever their order: items and masks, not ids."""

    def rows(batches) -> collections.Counter:
        found: collections.Counter = collections.Counter()
        for items, info in batches:
            leaves = [leaf.numpy() for leaf in tf.nest.flatten((items, info.mask, info.weights))]
            found.update(tuple(leaf[row].tobytes() for leaf in leaves) for row in range(len(leaves[0])))
        return found

    assert rows(one) == rows(other)


def filled(buffer, episodes):
    for episode in episodes.start_pass():
        ends = np.zeros([1, episode.num_frames], bool)
        ends[0, -1] = True
        items = tf.nest.map_structure(lambda leaf: leaf[np.newaxis], episode.frames)
        buffer.add_sequence(items, end_of_episode=ends if episodes.layout == "transition" else None)
    return buffer


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_a_pass_gives_the_windows_that_buffers_with_the_same_episodes_give(cartpole_folder, layout):
    episodes = load_rlds(str(cartpole_folder), layout=layout)
    ring = filled(TFUniformReplayBuffer(episodes.element_spec, batch_size=1, max_length=1000), episodes)
    episodic = filled(EpisodicReplayBuffer(episodes.element_spec, capacity=10), episodes)
    shuffled: dict[str, Any] = {"epochs": 2}
    ordered: dict[str, Any] = {"single_deterministic_pass": True}
    for buffer, arguments in (
        (ring, {**shuffled}),
        (ring, {**ordered, "num_steps": 2}),
        (ring, {**shuffled, "window": Window(3, burn_in=2, short="pad")}),
        (episodic, {**shuffled, "num_steps": 2}),
        (episodic, {**ordered, "window": Window(4, stride=3, short="pad")}),
    ):
        mine = episodes.as_dataset(16, shuffle_frames=40, **arguments)
        theirs = buffer.as_dataset(16, **arguments)
        assert mine.element_spec == theirs.element_spec
        equal_multisets(iter(mine), iter(theirs))


def test_transforms_take_the_windows_as_they_take_a_buffers(cartpole_folder):
    episodes = load_rlds(str(cartpole_folder), layout="transition")

    def dataset(window: Window) -> tf.data.Dataset:
        return windows_dataset(
            episodes.start_pass, episodes.element_spec, 8, name="mine", layout="transition", window=window, seed=0
        )

    items, _ = next(iter(dataset(Window(3, short="pad")).map(n_step(3, 0.9))))
    assert items.reward.shape == [8]
    items, _ = next(iter(dataset(Window(1)).map(transitions())))
    assert items.observation.shape == [8, 4]
    items, _ = next(iter(dataset(Window(2, burn_in=2)).map(stack_frames(3))))
    assert items["observation"].shape == [8, 2, 4, 3]
    items, _ = next(iter(dataset(Window(5, short="pad")).map(returns_to_go(0.9))))
    assert tf.nest.flatten(items)[0].shape[:2] == [8, 5]


@pytest.mark.parametrize("layout", ["transition", "trajectory"])
def test_ids_tell_episode_and_frame_whatever_the_order_of_reading(cartpole_folder, layout):
    episodes = load_rlds(str(cartpole_folder), layout=layout)
    frames = {episode.place: tf.nest.flatten(episode.frames) for episode in episodes.start_pass()}
    seen = []
    for items, info in episodes.as_dataset(16, 2, epochs=2, shuffle_frames=20, seed=1):
        leaves = [leaf.numpy() for leaf in tf.nest.flatten(items)]
        for row, key in enumerate(info.keys.numpy().tolist()):
            place, frame = key >> 32, key % 2**32
            assert info.ids[row].numpy().tolist() == [key, key + 1]
            for leaf, stored in zip(leaves, frames[place], strict=True):
                assert np.array_equal(leaf[row], stored[frame : frame + 2])
            seen.append(key)
    assert set(collections.Counter(seen).values()) == {2}


def test_a_bad_episode_is_the_error_that_loading_gives():
    flags = [[False, False, True], [True, False, False]]
    steps = {"observation": [[0, 1, 2], [4, 5, 6]], "is_terminal": flags}
    episodes = load_rlds(tf.data.Dataset.from_tensor_slices({"steps": steps}), layout="transition")
    with pytest.raises(tf.errors.InvalidArgumentError, match="episode 1: is_terminal is set at step 0 of 3"):
        list(episodes.as_dataset(2, epochs=1))


def test_a_graph_takes_the_dataset_too():
    dataset = dataset_of([6, 7], 4, 2, epochs=1)

    @tf.function
    def total() -> tf.Tensor:
        count = tf.constant(0)
        for items, _ in dataset:
            count += tf.shape(items)[0]
        return count

    assert int(total()) == 11


# -- mixtures ----------------------------------------------------------------------------------


def source_from(first: int, lengths: list[int]):
    """Episodes that count up from `first`; real, as `load_rlds` gives them."""

    def steps(length: int, start: int) -> dict[str, Any]:
        return {
            "observation": start + np.arange(length + 1),
            "is_terminal": np.arange(length + 1) == length,
        }

    def generate():
        start = first
        for length in lengths:
            yield {"steps": steps(length, start)}
            start += length + 1

    signature = {
        "steps": {"observation": tf.TensorSpec([None], tf.int64), "is_terminal": tf.TensorSpec([None], tf.bool)}
    }
    return load_rlds(tf.data.Dataset.from_generator(generate, output_signature=signature), layout="transition")


def test_a_mixture_draws_each_window_from_a_source_by_its_weight():
    """20,480 draws with p = 3/4: six standard deviations are 0.018; of the 256 of one batch 0.163."""
    dataset = mixed_windows([source_from(0, [5, 6]), source_from(1000, [40])], [3.0, 1.0], 256, 2, seed=0)
    shares, sources = [], []
    for items, info in itertools.islice(iterate(dataset), 80):
        of_second = items["observation"].numpy() >= 1000
        assert (source_of(info.ids, 2) == of_second).all()
        shares.append(1 - of_second[:, 0].mean())
        sources += (info.probabilities.numpy()[~of_second[:, 0]]).tolist()
    assert abs(np.mean(shares) - 0.75) < 0.018
    assert max(abs(share - 0.75) for share in shares) < 0.163
    assert sources == pytest.approx([0.75 / 9] * len(sources))


def test_each_source_of_a_mixture_goes_through_its_epochs():
    dataset = mixed_windows([source_from(0, [5]), source_from(1000, [4])], None, None, seed=1)
    seen: list[list[int]] = [[], []]
    for items, info in itertools.islice(iterate(dataset), 400):
        seen[int(source_of(info.keys, 2))].append(int(items["observation"]))
    for frames, start, length in ((seen[0], 0, 5), (seen[1], 1000, 4)):
        for epoch in range(len(frames) // length):
            assert sorted(frames[epoch * length : (epoch + 1) * length]) == list(range(start, start + length))


def test_a_mixture_repeats_with_its_seed():
    def order(seed: int) -> list[Any]:
        return ids_of(mixed_windows([source_from(0, [5, 6]), source_from(1000, [9])], [1, 2], 8, 2, seed=seed), 20)

    assert order(3) == order(3)
    assert order(3) != order(4)


def test_a_mixture_pads_with_no_source():
    window = Window(3, short="pad")
    dataset = mixed_windows([source_from(0, [2]), source_from(1000, [2])], None, 64, window=window, seed=0)
    _, info = next(iter(dataset))
    assert ((source_of(info.ids, 2) == -1) == ~info.mask.numpy()).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "weights: expected 2 numbers above 0"),
        ([1.0, 0.0], "weights: expected 2 numbers above 0"),
        ([1.0, float("nan")], "weights: expected 2 numbers above 0"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        mixed_windows([source_from(0, [5]), source_from(1000, [4])], weights, 4)


def test_sources_that_differ_are_refused_with_the_field(cartpole_folder):
    with pytest.raises(ValueError, match="differs from .* in field 'action': expected no such field, got"):
        mixed_windows([source_from(0, [5]), load_rlds(str(cartpole_folder), layout="transition")])
    with pytest.raises(ValueError, match="sources: expected at least one, got none"):
        mixed_windows([])
    with pytest.raises(TypeError, match="sources must be Episodes, as load_rlds gives them, got list"):
        mixed_windows([[1, 2]])


def test_streams_of_python_cross_whatever_their_end(caplog):
    """Of a stream that ends within a crossing of several batches the rest is a smaller batch."""
    stream = stream_of([5], Order(None, 1, shuffled=False))
    dataset = stream_dataset(lambda: stream, SPEC, stream_fields("mine", SPEC), None, 2, is_endless=False)
    assert [items.numpy().tolist() for items, _ in dataset] == [[0, 1], [2, 3], [4]]


def test_a_pass_that_finds_no_window_says_that_it_reads_on(caplog):
    """Endless: 3-step episodes, windows of 8 frames; what is told while reading is what a user can see of it."""
    steps = {"observation": [0, 1, 2], "is_terminal": [False, False, True]}
    dataset = tf.data.Dataset.from_tensors({"steps": steps}).repeat(300)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no window of 8 frames in 300 episodes"):
        next(iter(load_rlds(dataset, layout="transition").as_dataset(4, 8, shuffle_frames=100)))
    assert "no window of 8 frames in 50 episodes, the longest of 2 frames; reading on" in caplog.text


@pytest.mark.parametrize("round_", range(3))
def test_a_process_ends_although_an_iterator_still_reads_ahead(run_python, round_):
    code = """
import numpy as np, tensorflow as tf
from replayfeed.pipelines import load_rlds
steps = {"observation": np.arange(6), "is_terminal": np.arange(6) == 5}
endless = tf.data.Dataset.from_tensors({"steps": steps}).repeat()
iterator = iter(load_rlds(endless, layout="transition").as_dataset(4, 2, shuffle_frames=10))
next(iterator)
print("the end")
"""
    assert run_python(code).strip() == "the end"
