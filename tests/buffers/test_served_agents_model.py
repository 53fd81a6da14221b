"""Tables of many agents over random births, deaths and turns: against a naive model, and buffers in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import (
    AgentFrame,
    BufferConfig,
    EmptyBufferError,
    JointFrame,
    MultiAgentReplayBuffer,
    ReverbAgentTables,
    TableConfig,
    Window,
)

from .wolves_and_sheep import (
    AGENTS,
    NUMBER,
    SPECS,
    TOLD,
    batch,
    frames_in,
    joint_items,
    local,
    moments,
    own,
    policy_of,
    told,
    write,
)

# Of examples that fail no smaller ones are looked for: each takes a server half a second.
few = functools.partial(
    settings,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def pair_tables() -> Iterator[ReverbAgentTables]:
    with local(independent=own(sequence_length=2), lockstep=moments(sequence_length=2), batch_size=2) as tables:
        yield tables


@pytest.fixture(scope="module")
def told_tables() -> Iterator[ReverbAgentTables]:
    tables = ReverbAgentTables.local(
        {"a": TOLD, "b": TOLD},
        lambda agent: agent,
        independent={name: TableConfig(name, TOLD, 5000, sequence_length=2, scannable=True) for name in ("a", "b")},
        lockstep=TableConfig("moments", TOLD, 5000, sequence_length=2, scannable=True),
        batch_size=2,
        timeout_s=20.0,
    )
    with tables:
        yield tables


def in_this_process(specs: dict[str, Any], policy_of: Callable[[str], str]) -> list[MultiAgentReplayBuffer]:
    """Buffers of two environments for independent policies and for moments."""
    config, modes = BufferConfig("uniform", 10_000), ("independent", "lockstep")
    return [MultiAgentReplayBuffer(specs, policy_of, config, mode=mode, batch_size=2) for mode in modes]


def windows_of(buffer: Any) -> list[Any]:
    """All windows of two frames of a buffer in this process, or of a table that has some."""
    try:
        return [items for items, _ in buffer.as_dataset(window=Window(2), single_deterministic_pass=True)]
    except (EmptyBufferError, tf.errors.InvalidArgumentError) as error:
        assert "no window of 2 frames" in str(error) or "is empty" in str(error)
        return []


@few(max_examples=12)
@given(
    steps=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(AGENTS), st.tuples(st.booleans(), st.booleans()), min_size=1),
            st.none()
            | st.sets(st.integers(0, 1))
            | st.dictionaries(st.sampled_from(AGENTS), st.sets(st.integers(0, 1))),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_add_batch_gives_what_buffers_in_this_process_give(pair_tables, steps):
    """Each window of two frames of a `MultiAgentReplayBuffer` of either mode, and no other."""
    tables = pair_tables
    tables.clear()
    others = independent, lockstep = in_this_process(SPECS, policy_of)
    for time, (present, ended) in enumerate(steps):
        numbers = {
            agent: [1000 * AGENTS.index(agent) + 100 * b + time + 1 if there[b] else None for b in range(2)]
            for agent, there in present.items()
        }
        ends: Any = None
        if isinstance(ended, dict):
            ends = {agent: np.array([b in rows for b in range(2)]) for agent, rows in ended.items()}
        elif ended is not None:
            ends = np.array([b in ended for b in range(2)])
        arguments = batch(2, numbers)
        tables.add_batch(**arguments, end_of_episode=ends)
        for other in others:
            other.add_batch(**arguments, end_of_episode=ends)
    tables.flush()

    def pairs_of(windows: list[AgentFrame]) -> list[Any]:
        return sorted(
            (items.frame["number"].numpy().tolist(), np.diff(items.time.numpy()).tolist()) for items in windows
        )

    def moments_of(windows: list[JointFrame], agents: list[str]) -> list[Any]:
        order = [agents.index(agent) for agent in AGENTS]
        return sorted(
            [
                items.codes.numpy()[:, order].tolist(),
                [items.frames[agent]["number"].numpy().tolist() for agent in AGENTS],
            ]
            for items in windows
        )

    for policy in ("wolf", "sheep"):
        wanted = windows_of(independent.buffer_of(policy))
        assert tables[policy].get_table_info().current_size == len(wanted)
        assert not wanted or pairs_of(windows_of(tables[policy])) == pairs_of(wanted)
    wanted = windows_of(lockstep.buffer_of())
    assert tables.lockstep.get_table_info().current_size == len(wanted)
    if wanted:
        served, joint = (list(buffer.data_spec.frames) for buffer in (tables.lockstep, lockstep.buffer_of()))
        assert moments_of(windows_of(tables.lockstep), served) == moments_of(wanted, joint)


def naive(episode: list[Any], window: Window) -> list[list[Any]]:
    """The items of an episode by the rule in words (stride 1); padding is None."""
    padded = [None] * window.burn_in + episode + [None] * window.num_steps
    starts = len(episode) if window.short == "pad" else len(episode) - window.num_steps + 1
    return [padded[start : start + window.length] for start in range(starts)]


PADDED, DROPPED = Window(3, 1, short="pad"), Window(2)


@pytest.fixture(scope="module")
def random_tables() -> Iterator[ReverbAgentTables]:
    independent = {
        "wolf": TableConfig("wolf", NUMBER, 2000, sequence_length=3, burn_in=1, short="pad", scannable=True),
        "sheep": TableConfig("sheep", NUMBER, 2000, sequence_length=2, scannable=True),
    }
    lockstep = moments(sequence_length=3, burn_in=1, short="pad")
    with local(independent=independent, lockstep=lockstep, batch_size=2) as tables:
        yield tables


PAIRS = st.sets(st.tuples(st.sampled_from(AGENTS), st.integers(0, 1)))


@few(max_examples=25)
@given(steps=st.lists(st.tuples(PAIRS, PAIRS, st.sets(st.integers(0, 1))), min_size=1, max_size=20))
def test_random_births_deaths_and_turns_give_the_items_of_a_naive_model(random_tables, steps):
    """Steps say who is present, whose life ends (also in absence), and which environments' episodes end."""
    tables = random_tables
    tables.clear()
    lives: dict[tuple[str, int], list[list[Any]]] = {(agent, b): [[]] for agent in AGENTS for b in range(2)}
    episodes: list[list[list[dict[str, int]]]] = [[[]], [[]]]
    for time, (present, dying, over) in enumerate(steps):
        by_agent: dict[str, dict[int, int]] = {}
        for agent, b in present:
            # What absent agents' rows would hold is never given to the tables.
            by_agent.setdefault(agent, {})[b] = 1000 * AGENTS.index(agent) + 100 * b + time + 1
        last = {agent: {b for name, b in dying & present if name == agent} for agent in AGENTS}
        absent = {agent: sorted(b for name, b in dying - present if name == agent) for agent in AGENTS}
        ended = {agent: np.array(rows) for agent, rows in absent.items() if rows}
        for (agent, b), of_agent in lives.items():
            if (agent, b) in present:
                stream = {"wolf_0": 2 * b, "wolf_1": 2 * b + 1, "sheep": b}[agent]
                of_agent[-1].append((by_agent[agent][b], time, stream))
            if (agent, b) in dying:
                of_agent.append([])
        for b in range(2):
            episodes[b][-1].append({agent: by_agent[agent][b] for agent in AGENTS if b in by_agent.get(agent, {})})
            if b in over:
                episodes[b].append([])
        write(tables, time, by_agent, last=last, over=over, ended=ended)
    tables.end_stream()
    tables.flush()

    def items_of(agents: tuple[str, ...], kind: Window) -> list[list[Any]]:
        return [
            [() if frame is None else frame for frame in item]
            for agent in agents
            for b in range(2)
            for life in lives[agent, b]
            for item in naive(life, kind)
        ]

    for name, agents, kind in (("wolf", ("wolf_0", "wolf_1"), PADDED), ("sheep", ("sheep",), DROPPED)):
        wanted = items_of(agents, kind)
        assert tables[name].get_table_info().current_size == len(wanted)
        if wanted:  # of an empty table a pass waits
            assert frames_in(tables[name], kind.num_steps, burn_in=kind.burn_in, short=kind.short) == wanted
    wanted_moments = [
        [moment or {} for moment in item]
        for of_environment in episodes
        for episode in of_environment
        for item in naive(episode, PADDED)
    ]
    assert joint_items(tables.lockstep, 3, burn_in=1, short="pad") == wanted_moments


@few(max_examples=10)
@given(
    steps=st.lists(
        st.dictionaries(
            st.sampled_from(["a", "b"]), st.tuples(*[st.sampled_from(["no", "yes", "last"])] * 2), min_size=1
        ),
        min_size=1,
        max_size=16,
    )
)
def test_ends_that_frames_tell_give_what_buffers_in_this_process_give(told_tables, steps):
    """Steps say who is present in two environments, and whose frame is its last."""
    tables = told_tables
    tables.clear()
    others = independent, lockstep = in_this_process({"a": TOLD, "b": TOLD}, lambda agent: agent)
    for time, step in enumerate(steps):
        items = {
            agent: told(*((1000 * (agent == "b") + 100 * b + time + 1, word == "last") for b, word in enumerate(words)))
            for agent, words in step.items()
        }
        present = {agent: np.array([word != "no" for word in words]) for agent, words in step.items()}
        for buffer in (tables, *others):
            buffer.add_batch(items, present=present)
    tables.flush()

    def plain(windows: list[Any]) -> list[Any]:
        # Times of tables go on from one example to the next.
        return sorted(
            tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), tf.nest.flatten(items._replace(time=())))
            for items in windows
        )

    for table, other in (
        ("a", independent.buffer_of("a")),
        ("b", independent.buffer_of("b")),
        ("moments", lockstep.buffer_of()),
    ):
        wanted = windows_of(other)
        assert tables[table].get_table_info().current_size == len(wanted)
        assert not wanted or plain(windows_of(tables[table])) == plain(wanted)
