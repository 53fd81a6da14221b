"""Which frames start a window, by hand-made episodes and against a naive list; no buffer is needed for that."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayfeed.buffers import Window
from replayfeed.buffers.windows import (
    Placed,
    eligible_windows,
    num_cut_starts,
    num_starts,
    start_rules,
    stepped_windows,
)

FIVE_STEPS = np.array([0, 2, 4, 6, 8])
TWO_STEPS_AND_A_FINAL_OBSERVATION = np.array([0, 2, 5])


def starts(words: np.ndarray, window: Window, *, unfinished: bool = False) -> list[int]:
    return eligible_windows(words, window, unfinished=unfinished).starts.tolist()


def test_a_short_window_is_dropped_or_padded():
    assert starts(FIVE_STEPS, Window(4)) == [0, 1]
    padded = eligible_windows(FIVE_STEPS, Window(4, short="pad"))
    assert padded.starts.tolist() == [0, 1, 2, 3, 4]
    assert padded.num_after.tolist() == [4, 4, 3, 2, 1]


def test_a_final_observation_ends_windows_and_starts_none():
    padded = eligible_windows(TWO_STEPS_AND_A_FINAL_OBSERVATION, Window(3, short="pad"))
    assert padded.starts.tolist() == [0, 1]
    assert padded.num_after.tolist() == [3, 2]
    assert starts(TWO_STEPS_AND_A_FINAL_OBSERVATION, Window(1)) == [0, 1]
    assert starts(np.array([1]), Window(2, short="pad")) == []  # an episode that is nothing but its end


def test_fr_023_with_a_stride_the_last_window_is_the_first_that_reaches_the_end():
    """Sequence 4, period 2, 7 steps: 0-3, 2-5, 4-6 and one padding; every step occurs."""
    placed = eligible_windows(2 * np.arange(7), Window(4, stride=2, short="pad"))
    assert placed.starts.tolist() == [0, 2, 4]
    assert placed.num_after.tolist() == [4, 4, 3]
    assert starts(2 * np.arange(6), Window(4, stride=2, short="pad")) == [0, 2]
    assert starts(2 * np.arange(7), Window(4, stride=2)) == [0, 2]


def test_a_stride_of_the_length_cuts_an_episode_into_pieces_side_by_side():
    placed = eligible_windows(2 * np.arange(7), Window(3, stride=3, short="pad"))
    assert placed.starts.tolist() == [0, 3, 6]
    assert placed.num_after.tolist() == [3, 3, 1]


def test_starts_keep_their_place_when_an_episodes_beginning_is_gone():
    assert starts(np.array([6, 8, 10, 12]), Window(2, stride=2)) == [1]  # frames 3, 4, 5, 6: windows start at 4


def test_burn_in_stops_at_the_episodes_beginning():
    two_episodes = np.concatenate([FIVE_STEPS, FIVE_STEPS])
    placed = eligible_windows(two_episodes, Window(2, burn_in=3))
    assert placed.starts.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert placed.num_before.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_no_window_starts_where_its_context_was_evicted():
    """Frames 3 to 7 of an episode, then another: two frames of context are held from frame 5 on."""
    words = np.concatenate([2 * np.arange(3, 8), FIVE_STEPS])
    placed = eligible_windows(words, Window(1, burn_in=2))
    assert placed.starts.tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert placed.num_before.tolist() == [2, 2, 2, 0, 1, 2, 2, 2]


def test_an_unfinished_episodes_tail_waits_unless_it_is_asked_for():
    two_episodes = np.concatenate([FIVE_STEPS, FIVE_STEPS])
    assert starts(two_episodes, Window(4, short="pad"), unfinished=True) == [0, 1, 2, 3, 4, 5, 6]
    asked = Window(4, short="pad", pad_unfinished=True)
    assert starts(two_episodes, asked, unfinished=True) == list(range(10))


def test_fr_003_slices_stay_in_their_trajectory():
    """Ids [3,3,0,1,1,1,2,2,2,3]: slices of 3 start at 3 and 6 only."""
    ids = np.array([3, 3, 0, 1, 1, 1, 2, 2, 2, 3])
    begins = np.flatnonzero(np.diff(ids, prepend=-1) != 0)
    words = 2 * (np.arange(10) - np.repeat(begins, np.diff(np.append(begins, 10))))
    assert starts(words, Window(3)) == [3, 6]


def test_the_ordered_pass_of_tf_agents_steps_from_what_is_held():
    words = np.array([6, 8, 10, 0, 2, 5])
    assert stepped_windows(words, 2, 2, keep_short=True).starts.tolist() == [0, 2, 3]
    assert stepped_windows(words, 2, 2, keep_short=False).starts.tolist() == [0, 3]
    assert stepped_windows(words, 2, 1, keep_short=False) == Placed(
        *(pytest.approx(np.array(each)) for each in ([0, 1, 3, 4], [0] * 4, [2] * 4))
    )


def test_the_repr_shows_what_is_not_the_default():
    assert repr(Window(3, short="pad")) == "Window(num_steps=3, short='pad')"
    every = Window(3, 2, 4, "drop", "ignore")
    assert repr(every) == "Window(num_steps=3, burn_in=2, stride=4, boundaries='ignore')"


@st.composite
def kinds(draw: st.DrawFn) -> Window:
    short = draw(st.sampled_from(["drop", "pad"]))
    return Window(
        draw(st.integers(1, 6)),
        burn_in=draw(st.integers(0, 3)),
        stride=draw(st.integers(1, 7)),
        short=short,
        pad_unfinished=short == "pad" and draw(st.booleans()),
    )


@given(kinds(), st.integers(1, 14), st.booleans(), st.booleans(), st.integers(0, 14))
def test_counts_agree_with_lists(window, num_frames, finished, final, gone):
    """`num_starts` and `num_cut_starts`, by which draws are made, against the windows that are listed."""
    gone, final = min(gone, num_frames), final and finished
    window = dataclasses.replace(window, burn_in=0)  # what lacks its context is counted apart
    words = 2 * np.arange(num_frames)
    words[-1] += final
    listed = eligible_windows(words[gone:], window, unfinished=not finished)
    counted = num_starts(window, np.array(num_frames), final=np.array(final), finished=np.array(finished), gone=gone)
    assert counted == len(listed.starts)
    assert (listed.num_after >= 1).all()
    if not finished:
        held = words[gone:]
        by_rules = sum(int(np.count_nonzero(rule.holds(held[rule.reach :]))) for rule in start_rules(window))
        assert by_rules - num_cut_starts(window, np.array([num_frames]), np.array([gone]))[0] == counted


@given(kinds(), st.integers(1, 14))
def test_with_padding_every_frame_is_in_a_window(window, num_frames):
    if window.short == "drop" or window.stride > window.num_steps:
        return
    placed = eligible_windows(2 * np.arange(num_frames), window)
    shown = {start + step for start, _, num in zip(*placed, strict=True) for step in range(num)}
    assert shown == set(range(num_frames))
