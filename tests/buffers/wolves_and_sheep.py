"""Two wolves and a sheep on a Reverb server, for tests: what is written of them, and what their tables hold."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers import MomentIds, ReverbAgentTables, TableConfig, Window
from replayfeed.buffers.episode_ends import EpisodeMarks

NUMBER = tf.TensorSpec([], tf.int64)
# Two wolves learn by one policy; what the sheep sees has a column of its own.
SPECS = {
    "wolf_0": {"number": NUMBER, "scent": tf.TensorSpec([2], tf.float32)},
    "sheep": {"image": tf.TensorSpec([1100], tf.uint8), "number": NUMBER},
    "wolf_1": {"number": NUMBER, "scent": tf.TensorSpec([2], tf.float32)},
}
AGENTS = tuple(SPECS)
Present = Mapping[str, Mapping[int, int]]


def policy_of(agent: str) -> str:
    return agent.split("_")[0]


def leaves_of(agent: str, numbers: list[int]) -> list[np.ndarray]:
    """Frames of an agent that tell their number, as leaves in the order of its spec."""
    number = np.array(numbers, np.int64)
    if agent == "sheep":
        return [np.repeat((number % 251).astype(np.uint8)[:, None], 1100, axis=1), number]
    return [number, np.stack([number, -number], axis=1).astype(np.float32)]


def write(
    tables: ReverbAgentTables,
    time: int,
    present: Present,
    *,
    last: Mapping[str, Set[int]] | None = None,
    over: Set[int] = frozenset(),
    **more: Any,
) -> MomentIds:
    """A moment of all environments: numbers by agent and environment, whose lives and which episodes end with it."""
    num, last = tables.batch_size, last or {}
    rows = {agent: np.array(sorted(by_env)) for agent, by_env in present.items()}
    codes = np.zeros([num, len(AGENTS)], np.uint8)
    marks = {}
    for agent, environments in rows.items():
        ends = np.array([b in last.get(agent, ()) for b in environments.tolist()], bool)
        marks[agent] = EpisodeMarks(None, ends, None)
        codes[environments, AGENTS.index(agent)] = 1 + 2 * ends
    has_moments = "moments" in tables.tables
    joint = EpisodeMarks(None, np.array([b in over for b in range(num)]), None)
    return tables.write_moment(
        {agent: leaves_of(agent, [present[agent][b] for b in rows[agent].tolist()]) for agent in rows},
        rows,
        np.full(num, time),
        marks=marks,
        codes=codes if has_moments else None,
        joint_marks=joint,
        **more,
    )


def own(**settings: Any) -> dict[str, TableConfig]:
    return {name: TableConfig(name, NUMBER, 10_000, scannable=True, **settings) for name in ("wolf", "sheep")}


def moments(**settings: Any) -> TableConfig:
    return TableConfig("moments", NUMBER, 10_000, scannable=True, **settings)


def local(**settings: Any) -> ReverbAgentTables:
    return ReverbAgentTables.local(SPECS, policy_of, timeout_s=20.0, **settings)


def frames_in(buffer: Any, num_steps: int, **window: Any) -> list[list[tuple[int, ...]]]:
    """Every item of a policy's table as (number, time, stream) by frame; () on padding."""
    rows = buffer.as_dataset(window=Window(num_steps, **window), single_deterministic_pass=True)
    found = []
    for items, info in rows:
        streams = items.stream if not isinstance(items.stream, tuple) else np.zeros_like(items.time)
        triples = zip(
            items.frame["number"].numpy().tolist(),
            items.time.numpy().tolist(),
            np.asarray(streams).tolist(),
            strict=True,
        )
        found.append([triple if real else () for triple, real in zip(triples, info.mask.numpy(), strict=True)])
    return found


def joint_rows(items: Any, info: Any) -> list[dict[str, int]]:
    """The moments of a sample `[T, ...]`: numbers by agent that is present. Whoever is absent shows zeros."""
    found = []
    for t, is_real in enumerate(info.mask.numpy().tolist()):
        shown = {}
        for agent, code in zip(AGENTS, items.codes.numpy()[t].tolist(), strict=True):
            leaves = [leaf.numpy()[t] for leaf in tf.nest.flatten(items.frames[agent])]
            number = int(items.frames[agent]["number"][t])
            if is_real and code & 1:
                shown[agent] = number
                wanted = leaves_of(agent, [number])
                assert all(np.array_equal(leaf, want[0]) for leaf, want in zip(leaves, wanted, strict=True))
            else:
                assert not any(leaf.any() for leaf in leaves)
        assert is_real or not items.codes.numpy()[t].any()
        found.append(shown)
    return found


def joint_items(buffer: Any, num_steps: int, **window: Any) -> list[list[dict[str, int]]]:
    """Every item of the table of moments."""
    rows = buffer.as_dataset(window=Window(num_steps, **window), single_deterministic_pass=True)
    return [joint_rows(items, info) for items, info in rows]


def write_story(tables: ReverbAgentTables) -> None:
    """One environment, two episodes. The sheep comes late and dies; wolf_1 has no turn at moment 1."""
    write(tables, 0, {"wolf_0": {0: 10}, "wolf_1": {0: 20}})
    write(tables, 1, {"wolf_0": {0: 11}, "sheep": {0: 30}})
    write(tables, 2, {"wolf_0": {0: 12}, "wolf_1": {0: 22}, "sheep": {0: 31}}, last={"sheep": {0}})
    write(tables, 3, {"wolf_0": {0: 13}, "wolf_1": {0: 23}}, last={"wolf_0": {0}, "wolf_1": {0}}, over={0})
    write(tables, 4, {"wolf_0": {0: 110}, "wolf_1": {0: 120}, "sheep": {0: 130}})
    write(tables, 5, {"wolf_1": {0: 121}, "sheep": {0: 131}})


def batch(tables_size: int, numbers: Mapping[str, list[int | None]]) -> dict[str, Any]:
    """Arguments of `add_batch`: numbers by agent and environment; None: it is absent, and its row holds poison."""
    items, present = {}, {}
    for agent, by_env in numbers.items():
        assert len(by_env) == tables_size
        leaves = leaves_of(agent, [-999 if number is None else number for number in by_env])
        items[agent] = tf.nest.pack_sequence_as(SPECS[agent], leaves)
        present[agent] = np.array([number is not None for number in by_env])
    return {"items": items, "present": present}


TOLD = {"x": NUMBER, "is_last": tf.TensorSpec([], tf.bool)}


def told(*frames: tuple[int, bool]) -> dict[str, np.ndarray]:
    """Frames that tell their ends."""
    return {"x": np.array([x for x, _ in frames]), "is_last": np.array([last for _, last in frames])}
