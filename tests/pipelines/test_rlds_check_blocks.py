"""Episodes are gathered into blocks of one kind, and told of in a block as they are alone."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import tensorflow as tf

from replayfeed.pipelines.episode_source import RawEpisode
from replayfeed.pipelines.rlds_check_alignment import AlignmentEvidence
from replayfeed.pipelines.rlds_check_blocks import EpisodeBlock, OddEpisode, in_blocks
from replayfeed.pipelines.rlds_check_duplicates import Duplicates, digest_of
from replayfeed.pipelines.rlds_check_episodes import EpisodeChecks


def _lengths(columns):
    """What `in_blocks` makes of episodes of these columns: the lengths of each block, or 'odd'."""
    raws = [RawEpisode(str(index), {"reward": column}) for index, column in enumerate(columns)]
    parts = in_blocks(raws, {"reward": tf.TensorSpec([None], tf.float32)}, [("reward",)])
    return ["odd" if isinstance(part, OddEpisode) else part.lengths.tolist() for part in parts]


def _column(num_steps, width=1, dtype=np.float32):
    return np.zeros([num_steps, width], dtype)


# What makes a block


def test_episodes_of_one_kind_are_one_block():
    assert _lengths([_column(3), _column(1), _column(2)]) == [[3, 1, 2]]


def test_a_block_ends_where_dtype_or_shape_changes():
    columns = [_column(3), _column(2, 4), _column(1, 4), _column(2), _column(1, dtype=np.float64)]
    assert _lengths(columns) == [[3], [2, 1], [2], [1]]


def test_a_block_ends_before_an_episode_without_steps():
    assert _lengths([_column(3), _column(0), _column(2), _column(1)]) == [[3], "odd", [2, 1]]


def test_a_block_ends_with_the_episode_that_brings_it_to_a_megabyte():
    # Of 600 kilobytes each.
    assert _lengths([_column(1500, 100)] * 5) == [[1500, 1500], [1500, 1500], [1500]]


def test_strings_count_with_their_bytes():
    words = np.array([b"x" * 600_000], object)
    assert _lengths([words, words, words]) == [[1, 1], [1]]


def test_a_ragged_column_stands_alone():
    ragged = tf.ragged.constant([[1.0], []])
    assert _lengths([ragged, ragged]) == [[2], [2]]


def test_fields_of_different_lengths_stand_alone():
    raws = [RawEpisode(name, {"a": np.zeros([2]), "b": np.zeros([rows])}) for name, rows in (("x", 2), ("y", 1))]
    spec = {name: tf.TensorSpec([], tf.float64) for name in "ab"}
    even, odd = in_blocks(raws, spec, [("a",), ("b",)])
    assert (even.lengths.tolist(), odd.num_steps, odd.is_uneven, odd.raws[0].name) == ([2], 1, True, "y")


def test_a_list_where_the_spec_has_a_tuple_is_taken():
    raw = RawEpisode("0", {"observation": [np.array([1, 2]), np.array([3, 4])]})
    spec = {"observation": (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64))}
    (block,) = in_blocks([raw], spec, [("observation", "0"), ("observation", "1")])
    assert block.columns["observation", "1"].tolist() == [3, 4]


def test_episodes_are_asked_for_only_until_a_block_is_whole():
    asked = []

    def read():
        for index in range(4):
            asked.append(index)
            yield RawEpisode(str(index), {"reward": _column(1500, 100)})

    next(in_blocks(read(), {"reward": tf.TensorSpec([100], tf.float32)}, [("reward",)]))
    assert asked == [0, 1]


# What is told of them

SPECS = {
    ("action",): tf.TensorSpec([], tf.float32),
    ("discount",): tf.TensorSpec([], tf.float32),
    ("is_first",): tf.TensorSpec([], tf.bool),
    ("is_last",): tf.TensorSpec([], tf.bool),
    ("is_terminal",): tf.TensorSpec([], tf.bool),
    ("observation",): tf.TensorSpec([2], tf.float32),
    ("reward",): tf.TensorSpec([], tf.float64),
}

NUMBERS = st.sampled_from([0.0, 0.0, 1.0, 2.0, -1.0, np.nan, np.inf])
CLEAN_NUMBERS = st.sampled_from([0.0, 1.0, 0.5])


@st.composite
def leaves_of_an_episode(draw):
    """The columns of an episode of 1 to 8 steps, with much to find."""
    num_steps = draw(st.integers(1, 8))
    numbers = draw(st.sampled_from([NUMBERS, CLEAN_NUMBERS]))

    def column(elements, width=1):
        return draw(st.lists(elements, min_size=num_steps * width, max_size=num_steps * width))

    rewards = st.sampled_from([0.0, 1.0, 1e39]) if draw(st.booleans()) else numbers
    return {
        ("action",): np.array(column(numbers), np.float32),
        ("discount",): np.array(column(draw(st.sampled_from([st.just(1.0), numbers]))), np.float32),
        ("is_first",): np.array([True] + [draw(st.booleans()) and draw(st.booleans())] * (num_steps - 1)),
        ("is_last",): np.array([False] * (num_steps - 1) + [draw(st.booleans())]),
        ("is_terminal",): np.array([draw(st.booleans()) and draw(st.booleans())] * (num_steps - 1) + [True]),
        ("observation",): np.array(column(numbers, 2), np.float32).reshape(num_steps, 2),
        ("reward",): np.array(column(rewards), np.float64),
    }


def _checked(blocks):
    """All that is told, and which episodes a load would look at again."""
    checks = EpisodeChecks(SPECS, is_d4rl=False)
    doubtful = [flag for block in blocks for flag in checks.add(block).tolist()]
    findings = sorted(map(str, checks.findings()))
    return findings, checks.ends, checks.lengths.tolist(), checks.returns.tolist(), checks.alignment(), doubtful


@hypothesis.settings(max_examples=80)
@hypothesis.given(st.lists(leaves_of_an_episode(), min_size=1, max_size=6))
def test_episodes_are_told_of_in_a_block_as_they_are_alone(episodes):
    raws = [RawEpisode(str(index), {}, invalid=index == 3) for index in range(len(episodes))]
    lengths = [len(leaves["reward",]) for leaves in episodes]
    alone = [
        EpisodeBlock([raw], {path: [leaf] for path, leaf in leaves.items()}, [length])
        for raw, leaves, length in zip(raws, episodes, lengths, strict=True)
    ]
    together = EpisodeBlock(raws, {path: [leaves[path] for leaves in episodes] for path in SPECS}, lengths)
    assert _checked([together]) == _checked(alone)


def _found(*episodes):
    """The checks that found something in a block of episodes; each is the first elements of its observations."""
    raws = [RawEpisode(str(index), {}) for index in range(len(episodes))]
    lengths = [len(observation) for observation in episodes]
    leaves = {
        path: [np.zeros([n, *spec.shape], spec.dtype.as_numpy_dtype) for n in lengths] for path, spec in SPECS.items()
    }
    for index, observation in enumerate(episodes):
        leaves["observation",][index][:, 0] = observation
        leaves["is_terminal",][index][-1] = True
    checks = EpisodeChecks(SPECS, is_d4rl=False)
    checks.add(EpisodeBlock(raws, leaves, lengths))
    return {each.check for each in checks.findings()}


def test_what_ends_one_episode_repeats_nothing_in_the_next():
    assert "duplicate_steps" not in _found([1, 2], [2, 1])
    assert "duplicate_steps" in _found([1, 2], [2, 2, 1])


def test_the_last_step_repeats_nothing():
    assert "duplicate_steps" not in _found([1, 2, 2], [3, 4, 4])


def test_an_observation_that_moves_in_one_step_alone_is_not_frozen():
    assert "frozen" not in _found([1, 2, 1, 1, 1], [1, 1, 1, 2, 1])
    assert "frozen" in _found([1, 2, 1, 1, 1], [1, 1, 1, 1, 1])


def test_one_step_of_zeros_is_no_final_observation():
    assert "zero_observation" not in _found([0], [1, 2])
    assert "zero_observation" in _found([0], [1, 0])


def test_a_first_action_that_is_the_last_one_of_the_episode_before_is_no_repeat_within_either():
    # Every last action repeats the one before. By chance 3 of 12 inner ones do, too few for that to be chance; the
    # first ones, which equal the last one of another episode, would make that 8 of 12.
    actions = [np.array([5.0, 7.0, 7.0, 7.0]), np.array([7.0, 8.0, 5.0, 5.0])] * 3
    block = EpisodeBlock([RawEpisode(str(index), {}) for index in range(6)], {("action",): actions}, [4] * 6)
    evidence = AlignmentEvidence()
    evidence.add(block, [block.columns["action",]], [], {"truncated": np.ones([6], bool)})
    assert evidence.is_filler("action", "truncated")


def test_the_earliest_of_many_duplicates_are_named():
    seen = Duplicates()
    for index in range(3000):
        seen.add(digest_of(b"%d" % (index % 1500)), str(index))
    assert seen.result() == (1500, ("1500 = 0", "1501 = 1", "1502 = 2", "1503 = 3", "1504 = 4"))
