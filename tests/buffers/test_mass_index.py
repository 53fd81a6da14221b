"""Draws in proportion to masses: against a naive list, exact sums, stated bounds."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from replayfeed.buffers import priority_kernels
from replayfeed.buffers.mass_index import NO_SLOT, MassIndex, MaximumTree

NUM_SLOTS = 130  # two levels of maxima and a bit

masses = st.one_of(
    st.just(0.0),
    st.floats(2.0**-20, 2.0**20, width=32),
    st.sampled_from([1.1754943508222875e-38, 1.0, 3.4028234663852886e38]),
)
changes = st.lists(
    st.tuples(
        st.sampled_from(["set", "change", "discard"]),
        st.lists(st.tuples(st.integers(0, NUM_SLOTS - 1), masses), min_size=1, max_size=8),
    ),
    max_size=40,
)


@pytest.fixture(params=["compiled", "plain"])
def kernels(request, monkeypatch):
    """The kernels as numba compiles them, and as Python runs them where numba is missing."""
    if request.param == "plain":
        for name in ("_move", "set_masses", "change_masses", "discard", "draw", "set_leaves", "raise_maxima"):
            monkeypatch.setattr(priority_kernels, name, getattr(priority_kernels, name).py_func)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("tracks_least", [False, True])
def test_any_changes_leave_what_a_plain_dict_holds(tracks_least):
    @settings(max_examples=60, deadline=None)
    @given(changes)
    def check(changes):
        index, model = MassIndex(NUM_SLOTS, tracks_least=tracks_least), {}
        for kind, pairs in changes:
            slots = np.array([slot for slot, _ in pairs])
            values = np.array([value for _, value in pairs], np.float32)
            if kind == "discard":
                index.discard(slots)
            else:
                getattr(index, kind)(slots, values)
            for slot, value in zip(slots.tolist(), values.tolist(), strict=True):
                if kind == "discard":
                    model.pop(slot, None)
                elif kind == "set" or slot in model:
                    model[slot] = value
        held = np.array(sorted(model), np.int64)
        assert len(index) == len(model)
        assert index.holds(np.arange(NUM_SLOTS)).nonzero()[0].tolist() == held.tolist()
        assert index.masses(held).tolist() == [model[slot] for slot in held.tolist()]
        total = float(np.sum([model[slot] for slot in held.tolist()], dtype=np.float64))
        assert index.total == pytest.approx(total, rel=1e-12)
        if tracks_least:
            assert index.least_mass == min((value for value in model.values() if value), default=0.0)
        if model:
            slots, chances = index.draw(np.random.default_rng(0), 20)
            for slot, chance in zip(slots.tolist(), chances.tolist(), strict=True):
                expected = model[slot] / total if total else 1 / len(model)
                assert chance == pytest.approx(expected, rel=1e-6)
                assert chance > 0

    check()


def test_sums_are_those_of_a_fresh_count_after_ten_million_updates():
    rng = np.random.default_rng(3)
    index = MassIndex(1000)
    index.set(np.arange(1000), np.ones(1000, np.float32))
    for _ in range(100):
        slots = rng.integers(0, 1000, 100_000)
        index.change(slots, np.exp(rng.normal(0, 8, 100_000)).astype(np.float32))
    fresh = index.masses(np.arange(1000)).astype(np.float64).sum()
    assert index.total == pytest.approx(fresh, rel=1e-12)  # 1e-9 is asked


MASSES = np.array([0.001, 1.0, 1.0, 2.0, 3.99, 0.0, 100.0, 0.5], np.float32)


def chi_square(counts, chances):
    expected = chances * counts.sum()
    possible = expected > 0
    assert not counts[~possible].any()
    return float((((counts - expected) ** 2)[possible] / expected[possible]).sum()), int(possible.sum()) - 1


def draw_graph(index, num, *, strata=0, seed=5):
    @tf.function
    def draw():
        return index.draw_in_graph(num, tf.constant([seed, 1], tf.int64), strata=strata)

    return draw()


@pytest.mark.parametrize("way", ["numpy", "numpy stratified", "graph", "graph stratified"])
def test_odds_are_in_proportion_to_masses(way):
    index = MassIndex(8)
    index.set(np.arange(8), MASSES)
    num = 200_000
    if way.startswith("numpy"):
        slots, chances = index.draw(np.random.default_rng(1), num, stratified="stratified" in way)
    else:
        slots, chances = (part.numpy() for part in draw_graph(index, num, strata=1000 if "stratified" in way else 0))
    counts = np.bincount(slots[slots != NO_SLOT], minlength=8)
    expected = MASSES.astype(np.float64) / MASSES.astype(np.float64).sum()
    np.testing.assert_allclose(chances[slots != NO_SLOT], expected[slots[slots != NO_SLOT]], rtol=1e-6)
    statistic, freedom = chi_square(counts, expected)
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5  # 4 sigma
    # In a graph a stratum's eight candidates are all refused once in 2^8 at worst.
    assert (slots == NO_SLOT).mean() < (0.004 if "graph stratified" in way else 1e-9)


@pytest.mark.parametrize("way", ["numpy", "graph", "graph stratified"])
def test_where_every_mass_is_zero_all_slots_have_the_same_chance(way):
    index = MassIndex(8)
    index.set(np.array([1, 4, 7]), np.zeros(3, np.float32))
    if way == "numpy":
        slots, chances = index.draw(np.random.default_rng(1), 30_000)
    else:
        slots, chances = (part.numpy() for part in draw_graph(index, 30_000, strata=100 if "strat" in way else 0))
    np.testing.assert_allclose(chances, 1 / 3, rtol=1e-6)
    counts = np.bincount(slots, minlength=8)
    assert counts[[0, 2, 3, 5, 6]].sum() == 0
    assert abs(counts[[1, 4, 7]] - 10_000).max() < 330  # 4 sigma


@pytest.mark.parametrize("graph", [False, True])
def test_a_stratified_batch_has_one_draw_of_each_part(graph):
    index = MassIndex(4)
    index.set(np.arange(4), np.array([1, 2, 4, 8], np.float32))
    if graph:
        slots = draw_graph(index, 1500, strata=15)[0].numpy()
    else:
        slots = np.concatenate([index.draw(np.random.default_rng(i), 15, stratified=True)[0] for i in range(100)])
    for batch in slots.reshape(100, 15):
        counts = np.bincount(batch[batch != NO_SLOT], minlength=4)
        # Whole strata for each slot: what is missing were eight refused candidates.
        assert (counts <= [1, 2, 4, 8]).all()
        assert graph or counts.tolist() == [1, 2, 4, 8]


def test_maxima_of_one_slot_and_of_many():
    for num in (1, 64, 65, 5000):
        tree = MaximumTree(num, 0.0)
        values = np.random.default_rng(num).permutation(num).astype(np.float32) + 1
        tree.set(np.arange(num), values)
        assert tree.maximum == num
        tree.set(np.argsort(values)[::-1].copy(), np.zeros(num, np.float32))
        assert tree.maximum == 0


def test_without_numba_a_warning_names_the_extra_and_draws_are_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    spec = importlib.util.spec_from_file_location("replayfeed.buffers.kernels_as_python", priority_kernels.__file__)
    as_python = importlib.util.module_from_spec(spec)
    with pytest.warns(RuntimeWarning, match=r"pip install 'replayfeed\[prioritized\]'"):
        spec.loader.exec_module(as_python)
    draws = []
    for kernels in (priority_kernels, as_python):
        index = MassIndex(8)
        index._kernels = kernels
        index.set(np.arange(8), MASSES)
        index.discard(np.array([6]))
        draws.append([part.tolist() for part in index.draw(np.random.default_rng(0), 50)])
    assert draws[0] == draws[1]
