"""Flat arrays, a row for each transition, cut into episodes."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from replayfeed.pipelines.arrays import arrays_source
from replayfeed.pipelines.rlds_read import load_rlds


def _rows(num_rows, *, terminals=None, timeouts=None, following=False):
    """Observation, action and reward of row i are i, 10 + i and i / 2; the flags are set on the rows that are named."""
    index = np.arange(num_rows)
    arrays = {"observations": index.astype(np.float32), "actions": index + 10, "rewards": index / 2}
    for name, at in (("terminals", terminals), ("timeouts", timeouts)):
        if at is not None:
            arrays[name] = np.isin(index, at)
    if following:
        arrays["next_observations"] = arrays["observations"] + 1
    return arrays


def _columns(source, seed=None):
    return [episode.columns for episode in source.read(seed)]


def _transitions(source, on_bad_episode="error"):
    """(observation, action, discount, next observation) of each, in order; and the report."""
    episodes = load_rlds(source, layout="transition", on_bad_episode=on_bad_episode)
    found = []
    for frames in episodes:
        names = ("observation", "action", "discount", "next_observation")
        found += list(zip(*(frames[name].tolist() for name in names), strict=True))
    return found, episodes.report


def test_n_rows_that_end_terminally_give_n_plus_1_steps_aligned_as_in_rlds():
    (columns,) = _columns(arrays_source(_rows(3, terminals=[2])))
    assert {field: column.tolist() for field, column in columns.items()} == {
        "observation": [0, 1, 2, 0],
        "action": [10, 11, 12, 0],
        "reward": [0, 0.5, 1, 0],
        "is_first": [True, False, False, False],
        "is_last": [False, False, False, True],
        "is_terminal": [False, False, False, True],
    }


def test_next_observations_give_the_final_observation_of_each_episode():
    arrays = _rows(5, terminals=[1], timeouts=[4], following=True)
    arrays["next_observations"] += np.array([0, 70, 0, 0, 90], np.float32)
    columns = _columns(arrays_source(arrays))
    assert [episode["observation"].tolist() for episode in columns] == [[0, 1, 72], [2, 3, 4, 95]]
    assert [episode["is_terminal"].tolist() for episode in columns] == [[False, False, True], [False] * 4]


def test_a_truncated_episode_without_next_observations_ends_in_its_last_row():
    (columns,) = _columns(arrays_source(_rows(3, timeouts=[2], terminals=[])))
    assert columns["observation"].tolist() == [0, 1, 2]
    assert columns["is_last"].tolist() == [False, False, True]
    assert columns["reward"].tolist() == [0, 0.5, 1]  # of the last step, so nothing reads it


def test_fr_020_a_thousand_rows_are_a_thousand_transitions_with_next_observations_and_998_without():
    ends = [499, 999]
    with_next, report = _transitions(arrays_source(_rows(1000, timeouts=ends, terminals=[], following=True)))
    assert len(with_next) == 1000
    assert (report.episodes, report.terminals, report.truncations) == (2, 0, 2)
    without, report = _transitions(arrays_source(_rows(1000, timeouts=ends, terminals=[])))
    assert len(without) == 998
    assert (report.episodes, report.terminals, report.truncations) == (2, 0, 2)
    assert set(with_next) - set(without) == {(499, 509, 1, 500), (999, 1009, 1, 1000)}
    assert set(without) - set(with_next) == set()
    assert any("cannot be recovered" in note for note in report.notes)


def test_fr_020_without_next_observations_no_transition_joins_two_episodes():
    found, _ = _transitions(arrays_source(_rows(1000, timeouts=[499, 999], terminals=[])))
    assert 499 not in [observation for observation, *_ in found]
    assert 500 not in [following for *_, following in found]


def test_fr_020_both_kinds_of_file_keep_the_transition_of_a_terminal_row():
    found, report = _transitions(arrays_source(_rows(4, terminals=[1, 3])))
    assert found == [(0, 10, 1, 1), (1, 11, 0, 0), (2, 12, 1, 3), (3, 13, 0, 0)]
    assert (report.terminals, report.truncations) == (2, 0)


def test_fr_020_terminals_that_are_never_set_are_reported():
    _, report = _transitions(arrays_source(_rows(6, terminals=[], timeouts=[2, 5])))
    assert (report.terminals, report.truncations) == (0, 2)


def test_fr_021_arrays_of_different_lengths_are_refused_by_name():
    arrays = _rows(5, terminals=[4])
    arrays["rewards"] = arrays["rewards"][:4]
    with pytest.raises(ValueError, match=r"'observations' have 5 rows, others differ: \{'rewards': 4\}"):
        arrays_source(arrays)


def test_fr_088_timeouts_at_odd_rows_give_episodes_of_92_1_and_138_rows():
    source = arrays_source(_rows(231, timeouts=[91, 92, 230]))
    assert [len(columns["observation"]) for columns in _columns(source)] == [92, 1, 138]
    assert any("episodes of one row: 1 row (92)" in note for note in source.notes)
    found, report = _transitions(source)
    assert len(found) == 91 + 137
    assert [str(finding) for finding in report.dropped] == ["1 of one step, so without a transition (episode 1)"]


def test_fr_088_with_next_observations_the_episode_of_one_row_is_a_transition():
    found, report = _transitions(arrays_source(_rows(231, timeouts=[91, 92, 230], following=True)))
    assert len(found) == 231
    assert report.dropped == ()


def test_fr_088_without_flags_a_length_is_needed():
    with pytest.raises(ValueError, match=r"neither 'terminals' nor 'timeouts'.*arrays_source\(..., episode_length"):
        arrays_source(_rows(6))
    with pytest.raises(ValueError, match="'terminals' and 'timeouts' end no episode in 6 rows: say after how many"):
        arrays_source(_rows(6, terminals=[], timeouts=[]))


def test_fr_088_a_length_cuts_where_no_flag_does():
    source = arrays_source(_rows(7), episode_length=3)
    assert [columns["observation"].tolist() for columns in _columns(source)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [columns["is_last"][-1] for columns in _columns(source)] == [True, True, False]


def test_a_length_counts_from_the_last_flag():
    source = arrays_source(_rows(8, terminals=[1, 7]), episode_length=4)
    columns = _columns(source)
    assert [episode["observation"].tolist() for episode in columns] == [[0, 1, 0], [2, 3, 4, 5], [6, 7, 0]]
    assert [bool(episode["is_terminal"][-1]) for episode in columns] == [True, False, True]


def test_a_row_with_both_flags_is_terminal():
    source = arrays_source(_rows(3, terminals=[2], timeouts=[2]))
    (columns,) = _columns(source)
    assert columns["is_terminal"].tolist() == [False, False, False, True]
    assert source.notes == ("'terminals' and 'timeouts' are both set on 1 row (2): terminal",)


def test_rows_behind_the_last_flag_are_a_truncated_episode_that_the_report_names():
    source = arrays_source(_rows(5, terminals=[1], timeouts=[]))
    found, report = _transitions(source)
    assert found == [(0, 10, 1, 1), (1, 11, 0, 0), (2, 12, 1, 3), (3, 13, 1, 4)]
    assert [str(finding) for finding in report.repaired] == ["1 with is_last not set on the last step (episode 1)"]
    assert "the last row, 4, ends no episode by a flag: its episode counts as truncated" in report.notes


def test_an_episode_ends_where_the_next_observation_is_not_the_following_one():
    arrays = _rows(6, terminals=[5], timeouts=[], following=True)
    arrays["next_observations"][2] = 30
    found, report = _transitions(arrays_source(arrays))
    assert (2, 12, 1, 30) in found
    assert len(found) == 6
    assert (report.terminals, report.truncations) == (1, 1)
    assert [str(finding) for finding in report.repaired] == ["1 with is_last not set on the last step (episode 0)"]
    assert any("an episode ends without a flag after 1 row (2)" in note for note in report.notes)


def test_equal_is_exact_and_nan_equals_nan():
    arrays = _rows(4, terminals=[3], timeouts=[], following=True)
    arrays["observations"][2] = arrays["next_observations"][1] = np.nan
    assert arrays_source(arrays).num_episodes == 1
    arrays["next_observations"][0] = np.nextafter(np.float32(1), np.float32(2))
    assert arrays_source(arrays).num_episodes == 2


def test_next_observations_are_compared_as_the_dtype_of_observations():
    arrays = _rows(4, terminals=[3], timeouts=[], following=True)
    arrays["observations"] = (arrays["observations"] / 10).astype(np.float32)
    arrays["next_observations"] = np.array([0.1, 0.2, 0.3, 0.4])
    (columns,) = _columns(arrays_source(arrays))
    assert columns["observation"].dtype == np.float32
    assert columns["observation"].tolist() == np.array([0, 0.1, 0.2, 0.3, 0.4], np.float32).tolist()


def test_next_observations_that_run_into_the_next_episode_are_told():
    (note,) = arrays_source(_rows(4, terminals=[], timeouts=[1, 3], following=True)).notes
    assert "the next observation at 1 episode end (1) is the first observation of the following episode" in note


def test_terminals_alone_are_told_to_hide_time_limits():
    (note,) = arrays_source(_rows(9, terminals=[1, 8])).notes
    assert "there is no 'timeouts'" in note
    assert "(the longest has 7 rows)" in note


def test_a_well_formed_file_is_loaded_without_a_note():
    arrays = _rows(4, terminals=[1], timeouts=[3], following=True)
    arrays["next_observations"][1] = 9
    assert arrays_source(arrays).notes == ()


def test_nested_observations_and_paths_as_keys_become_nests():
    index = np.arange(3)
    source = arrays_source(
        {
            "observations": {"image": np.zeros([3, 2, 2], np.uint8), "pose/arm": index * 1.5},
            "next_observations/image": np.ones([3, 2, 2], np.uint8),
            "next_observations/pose/arm": (index + 1) * 1.5,
            "actions": {"left": index},
            "terminals": index == 2,
            "infos/qpos": index + 0.5,
            "infos/text": np.array(["a", "b", "c"]),
        },
        episode_length=3,
    )
    assert source.not_loaded == ()
    assert source.step_spec["observation"]["image"].shape.as_list() == [2, 2]
    columns = _columns(source)[-1]
    assert columns["observation"]["pose"]["arm"].tolist() == [3, 4.5]
    assert columns["infos"]["qpos"].tolist() == [2.5, 0]
    assert columns["infos"]["text"].tolist() == [b"c", b""]
    assert columns["action"]["left"].tolist() == [2, 0]


def test_metadata_is_that_of_each_episode():
    arrays = _rows(4, terminals=[1, 3])
    source = arrays_source({**arrays, "metadata/algorithm": "sac", "metadata/policy/bias": np.array([1.0, 2.0])})
    first, second = source.read(None)
    assert first.metadata["algorithm"] == second.metadata["algorithm"] == b"sac"
    assert first.metadata["policy"]["bias"].tolist() == [1, 2]
    assert source.metadata_spec["policy"]["bias"].shape.as_list() == [2]
    assert source.metadata_spec["algorithm"].dtype.name == "string"


def test_a_seed_orders_episodes_anew_and_ids_stay():
    source = arrays_source(_rows(40, terminals=list(range(1, 40, 2))))
    ordered = [episode.id for episode in source.read(None)]
    assert ordered[:2] == ["arrays[0:2]", "arrays[2:4]"]
    shuffled = [(episode.id, episode.columns["observation"].tolist()) for episode in source.read(7)]
    assert shuffled != sorted(shuffled)
    assert {id for id, _ in shuffled} == set(ordered)
    assert all(id == f"arrays[{int(first)}:{int(first) + 2}]" for id, (first, *_) in shuffled)
    assert [episode.id for episode in source.read(7)] == [id for id, _ in shuffled]
    assert [episode.id for episode in source.read(8)] != [id for id, _ in shuffled]


def test_nan_goes_through_the_rules_of_loading():
    arrays = _rows(4, terminals=[1, 3])
    arrays["rewards"][2] = np.nan
    with pytest.raises(ValueError, match="arrays, episode 1: a reward is NaN"):
        _transitions(arrays_source(arrays))
    found, report = _transitions(arrays_source(arrays), "skip")
    assert len(found) == 2
    assert report.num_dropped == 1


def test_a_stored_discount_is_a_field_and_none_is_made_up():
    arrays = _rows(3, terminals=[2])
    assert "discount" not in arrays_source(arrays).step_spec
    found, _ = _transitions(arrays_source({**arrays, "discounts": np.array([0.5, 0.5, 0.5])}))
    assert [discount for _, _, discount, _ in found] == [0.5, 0.5, 0]


def test_flags_of_zeros_and_ones_and_of_one_column_count_as_bools():
    arrays = _rows(4)
    arrays["terminals"] = np.array([[0.0], [1.0], [0.0], [1.0]], np.float32)
    arrays["timeouts"] = np.zeros([4], np.uint8)
    assert [len(columns["is_terminal"]) for columns in _columns(arrays_source(arrays))] == [3, 3]


def test_another_byte_order_is_read_as_numbers():
    arrays = _rows(3, terminals=[2])
    arrays["observations"] = np.arange(3).astype(">f4")
    (columns,) = _columns(arrays_source(arrays))
    assert columns["observation"].dtype == np.dtype("=f4")
    assert columns["observation"].tolist() == [0, 1, 2, 0]


def test_strings_and_empty_fields_meet_the_rules_of_loading():
    with pytest.raises(ValueError, match="'observation'.*string"):
        load_rlds(arrays_source({**_rows(4, terminals=[3]), "observations": np.array(list("abcd"))}))
    with pytest.raises(ValueError, match="'action'"):
        load_rlds(arrays_source({**_rows(4, terminals=[3]), "actions": np.zeros([4, 0])}))
    ragged = np.empty([4], object)
    ragged[:] = [[1], [2], [3], [4, 5]]
    assert arrays_source({**_rows(4, terminals=[3]), "tags": ragged}).not_loaded == ("tags (of dtype object)",)


def test_memory_maps_are_read(tmp_path):
    arrays = _rows(6, terminals=[2, 5])
    np.save(tmp_path / "observations.npy", arrays["observations"])
    mapped = np.load(tmp_path / "observations.npy", mmap_mode="r")
    columns = _columns(arrays_source({**arrays, "observations": mapped}))
    assert [episode["observation"].tolist() for episode in columns] == [[0, 1, 2, 0], [3, 4, 5, 0]]


class _Counting:
    """An array that remembers how many rows it was asked for at once."""

    def __init__(self, array):
        self.array, self.dtype, self.shape, self.most = array, array.dtype, array.shape, 0

    def __getitem__(self, rows):
        self.most = max(self.most, len(range(*rows.indices(len(self.array)))))
        return self.array[rows]


def test_rows_are_read_in_blocks_and_never_all_at_once():
    arrays = _rows(40, terminals=list(range(1, 40, 2)))
    wide = np.zeros([40, 1 << 18], np.float64)  # 2 MiB a row
    counting = _Counting(wide)
    source = arrays_source({**arrays, "observations": counting})
    assert counting.most == 0
    assert len(list(source.read(None))) == 20
    assert counting.most == 2  # 8 MiB hold 3 rows of 2 MiB and a little: an episode at a time
    assert len(list(source.read(0))) == 20
    assert counting.most == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": None}, "expected 'observations'"),
        ({"scale": np.float32(3)}, r"\['scale'\] hold one value and no rows: put them below 'metadata'"),
        ({"action": np.zeros(4)}, "'action' is RLDS's name of a field"),
        ({"is_first": np.zeros(4)}, "'is_first' is RLDS's name of a field"),
        ({"next_observations": np.zeros([4, 2])}, r"for 'observation' expected float32 \(4,\), got float64 \(4, 2\)"),
        ({"next_observations/image": np.zeros([4])}, "for 'observation' expected float32 .*, got nothing"),
        (
            {"next_observations": {"image": np.zeros(4)}, "observations": {}, "observations/pose": np.zeros(4)},
            "for 'observation/pose' expected float64 .*, got nothing",
        ),
        (
            {
                "observations/pose": np.zeros(4),
                "observations": {},
                "next_observations": {"pose": np.zeros(4), "x": np.zeros(4)},
            },
            r"'next_observations' hold \['observation/x'\], which 'observations' do not",
        ),
        ({"terminals": np.zeros([4, 2])}, r"'terminals': expected a bool a row, \[4\], got float64 \(4, 2\)"),
        ({"observations": np.array([{}, {}, {}, {}], object)}, "step field 'observation' is of dtype object"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_name(change, message):
    arrays = {**_rows(4, terminals=[3]), **change}
    with pytest.raises(ValueError, match=message):
        arrays_source({name: array for name, array in arrays.items() if array is not None})


def test_arrays_without_a_row_and_lengths_below_1_are_refused():
    with pytest.raises(ValueError, match="arrays: the arrays have no row"):
        arrays_source(_rows(0, terminals=[]))
    with pytest.raises(ValueError, match="mine: episode_length must be 1 or more, got 0"):
        arrays_source(_rows(4, terminals=[3]), name="mine", episode_length=0)


def _naive(rows, has_next, length):
    """(episode, row, next row's value or 0, terminal) by a plain loop; rows are (terminal, timeout, joined)."""
    found, since, episode = [], 0, 0
    for index, (terminal, timeout, joined) in enumerate(rows):
        is_final = index == len(rows) - 1
        since += 1
        ends = terminal or timeout or since == length or is_final or (has_next and not joined)
        if has_next:
            found.append((episode, index, 1000 + index if not joined or is_final else index + 1, terminal))
        elif terminal:
            found.append((episode, index, 0, True))
        elif not ends:
            found.append((episode, index, index + 1, False))
        if ends:
            since, episode = 0, episode + 1
    return found


@hypothesis.given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=30),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 6)),
    st.one_of(st.none(), st.integers(0, 5)),
)
def test_every_transition_is_that_of_a_plain_loop_over_the_rows(rows, has_next, length, seed):
    terminals, timeouts, joined = (np.array(flags) for flags in zip(*rows, strict=True))
    index = np.arange(len(rows))
    arrays = {"observations": index, "actions": index, "terminals": terminals, "timeouts": timeouts}
    if has_next:
        arrays["next_observations"] = np.where(joined & (index < len(rows) - 1), index + 1, 1000 + index)
    cut = (terminals | timeouts).any() or (has_next and (~joined[:-1]).any())
    if not cut and length is None:
        with pytest.raises(ValueError, match="episode_length=1000"):
            arrays_source(arrays)
        return
    episodes = load_rlds(arrays_source(arrays, episode_length=length), layout="transition")
    found = [
        (int(episode.name), *transition)
        for episode in episodes.start_pass(seed)
        for transition in zip(
            episode.frames["action"].tolist(),
            episode.frames["next_observation"].tolist(),
            episode.frames["is_terminal"].tolist(),
            strict=True,
        )
    ]
    assert sorted(found) == _naive(rows, has_next, length)


@pytest.mark.parametrize("value", [0.5, np.nan, 2.0])
def test_a_flag_that_is_neither_0_nor_1_is_refused_by_row(value):
    arrays = {"observations": np.arange(3.0), "terminals": np.array([0.0, value, 1.0])}
    with pytest.raises(ValueError, match=f"arrays: 'terminals': expected 0 or 1, got {value} at row 1"):
        arrays_source(arrays)
