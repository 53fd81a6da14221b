"""Tables of many agents on one server: what one holds back does not hold up the others; priorities are each table's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from replayfeed.buffers import (
    Fifo,
    MaxHeap,
    Prioritized,
    Queue,
    ReverbAgentTables,
    TableConfig,
    WaitTimeoutError,
    Window,
)

from .wolves_and_sheep import NUMBER, SPECS, frames_in, joint_items, local, moments, own, policy_of, write


def test_a_full_queue_of_one_policy_does_not_hold_back_the_others():
    """The wolves' queue takes 2 items, and nobody draws; sheep and moments have all 10."""
    queue = TableConfig("wolf", NUMBER, 480, Fifo(), Fifo(), Queue(2), max_times_sampled=1)
    tables = local(independent={**own(), "wolf": queue}, lockstep=moments(sequence_length=1))
    with tables:
        for t in range(10):
            write(tables, t, {"wolf_0": {0: t}, "sheep": {0: 100 + t}})
        assert [number for [(number, _, _)] in frames_in(tables["sheep"], 1)] == list(range(100, 110))
        assert len(joint_items(tables["moments"], 1)) == 10
        assert tables["wolf"].get_table_info().current_size == 2
        assert tables["sheep"].ready(5)
        # Each frame of the queue comes once, in order.
        drawn = [int(tables["wolf"].sample(1)[0].frame["number"][0]) for _ in range(10)]
        assert drawn == list(range(10))


def test_a_small_table_whose_limiter_may_hold_up_the_others_is_told(caplog):
    small = TableConfig("wolf", NUMBER, 479, Fifo(), Fifo(), Queue(2), max_times_sampled=1)
    with local(independent={**own(), "wolf": small}):
        assert "table 'wolf': while its limiter holds items back it may hold up the other tables too" in caplog.text
    caplog.clear()
    with local(independent={**own(), "wolf": dataclasses.replace(small, max_size=480)}):
        assert "hold up" not in caplog.text


def test_a_queue_that_nobody_draws_from_ends_in_an_error_that_names_it():
    queue = TableConfig("wolf", NUMBER, 40, Fifo(), Fifo(), Queue(2), max_times_sampled=1)
    tables = ReverbAgentTables.local(
        SPECS, policy_of, independent={**own(), "wolf": queue}, timeout_s=3.0, max_pending_items=4
    )
    with tables:
        with pytest.raises(WaitTimeoutError, match=r"table 'wolf': full, needs 1 more sample") as raised:
            for t in range(20):
                write(tables, t, {"wolf_0": {0: t}, "sheep": {0: 100 + t}})
        assert raised.value.num_written == 1
        numbers = [number for [(number, _, _)] in frames_in(tables["sheep"], 1)]
        assert numbers == list(range(100, 100 + len(numbers)))
        assert len(numbers) >= 4  # also that of the moment that raised


def test_a_moment_that_is_late_is_written_and_counted():
    """Of two places in the wolf's queue nobody draws until the add has given up; the sheep's windows go over it."""
    spec = {"wolf": NUMBER, "sheep": NUMBER}
    tables = ReverbAgentTables.local(
        spec,
        lambda agent: agent,
        independent={
            "wolf": TableConfig("wolf", NUMBER, 480, Fifo(), Fifo(), Queue(2), max_times_sampled=1),
            "sheep": TableConfig("sheep", NUMBER, 100, sequence_length=2, scannable=True),
        },
        timeout_s=2.0,
        max_pending_items=4,
    )
    with tables:
        late = []
        for t in range(12):
            try:
                tables.add_batch({agent: np.array([t]) for agent in spec})
            except WaitTimeoutError as error:
                late.append(t)
                assert error.num_written == 1
                for _ in range(3):
                    tables["wolf"].sample(1)
        assert late
        tables["wolf"].sample(2)
        rows = tables["sheep"].as_dataset(window=Window(2), single_deterministic_pass=True)
        found = [(items.frame.numpy().tolist(), items.time.numpy().tolist()) for items, _ in rows]
        assert found == [([t, t + 1], [t, t + 1]) for t in range(11)]


def test_priorities_of_each_table():
    best = {"sampler": MaxHeap()}
    tables = local(
        independent={name: TableConfig(name, NUMBER, 100, **best) for name in ("wolf", "sheep")},
        lockstep=TableConfig("moments", NUMBER, 100, Prioritized(1.0), initial="max", tracks_least=True),
        batch_size=2,
    )
    with tables:
        present = {"wolf_0": {0: 1, 1: 2}, "wolf_1": {1: 3}, "sheep": {0: 4}}
        given_ = {"wolf_0": np.array([1.0, 5.0]), "wolf_1": np.array([2.0])}
        write(tables, 0, present, priorities=given_, joint_priorities=np.array([0.0, 3.0]))
        wolf, lockstep = tables["wolf"], tables.lockstep
        items, info = wolf.sample(1)
        assert items.frame["number"].numpy().tolist() == [2]
        wolf.update_priorities(info.keys, [0.5])
        assert wolf.sample(1)[0].frame["number"].numpy().tolist() == [3]
        items, info = lockstep.sample(8)
        assert items.frames["wolf_0"]["number"].numpy().tolist() == [2] * 8
        np.testing.assert_allclose(info.probabilities.numpy(), 1.0)
        lockstep.update_priorities(info.keys[:1], [6.0])
        write(tables, 1, {"wolf_0": {0: 7}, "sheep": {1: 8}})  # both moments get 6, the greatest
        _, info = lockstep.sample(64)
        np.testing.assert_allclose(info.probabilities.numpy(), 1 / 3, rtol=1e-6)
        with pytest.raises(ValueError, match=r"agent 'sheep': priorities\[0\] is -1.0"):
            write(tables, 2, {"sheep": {0: 1}}, priorities={"sheep": np.array([-1.0])})
