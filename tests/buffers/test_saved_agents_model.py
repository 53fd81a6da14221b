"""A restored buffer of many agents goes on as the one that was saved, over random births, deaths, turns and draws."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import EmptyBufferError, MultiAgentReplayBuffer, ReservoirReplayBuffer, Window
from replayfeed.pipelines import of_agent

from .agents_to_save import MAKERS, MODES, POLICIES, SPEC, by_name, make, own_key, plain, seen


class History:
    """Births, deaths, turns, ends and draws, at random; two with equal seeds are the same."""

    def __init__(self, seed: int, batch_size: int, *, together: bool, told: bool) -> None:
        self.rng = random.Random(seed)
        self.batch_size = batch_size
        self.together = together
        self.told = told
        self.number = 0

    def happen(self, buffer: MultiAgentReplayBuffer, num: int) -> None:
        calls = [self.add_moment] * 10 + [self.add_moments] * 2 + [self.draw] * 3
        calls += [self.end_environment, self.end_life] + [self.clear] * (self.rng.random() < 0.1)
        for _ in range(num):
            self.rng.choice(calls)(buffer)

    def some(self, chance: float) -> list[bool]:
        return [self.rng.random() < chance for _ in range(self.batch_size)]

    def items(self, outer: tuple[int, ...]) -> dict[str, np.ndarray]:
        size = int(np.prod(outer))
        numbers = np.arange(self.number, self.number + size).reshape(outer)
        self.number += size
        items = {"value": numbers, "reward": numbers.astype(np.float32) / 4}
        if self.told:
            items["is_last"] = np.array([self.rng.random() < 0.1 for _ in range(size)]).reshape(outer)
        return items

    def add_moment(self, buffer: MultiAgentReplayBuffer) -> None:
        agents = sorted(POLICIES) if self.together else [a for a in sorted(POLICIES) if self.rng.random() < 0.8]
        items = {agent: self.items((self.batch_size,)) for agent in self.rng.sample(agents, len(agents))}
        present = None
        if not self.together and self.rng.random() < 0.5:
            present = {agent: np.array(self.some(0.7)) for agent in items}
        ends: Any = None
        kind = self.rng.random()
        if kind < 0.1:
            ends = np.array(self.some(0.5))
        elif kind < 0.3:
            ends = {agent: np.array(self.some(0.5)) for agent in sorted(POLICIES) if self.rng.random() < 0.6}
        priorities: Any = None
        if self.rng.random() < 0.2:
            weights = np.array([self.rng.random() for _ in range(self.batch_size)])
            priorities = weights if buffer.mode == "lockstep" else dict.fromkeys(items, weights)
        buffer.add_batch(items, end_of_episode=ends, present=present, priorities=priorities)

    def add_moments(self, buffer: MultiAgentReplayBuffer) -> None:
        agents = sorted(POLICIES) if self.together else [a for a in sorted(POLICIES) if self.rng.random() < 0.8]
        outer = (self.batch_size, self.rng.randrange(1, 4))
        buffer.add_sequence({agent: self.items(outer) for agent in agents})

    def end_environment(self, buffer: MultiAgentReplayBuffer) -> None:
        buffer.end_stream(self.rng.choice([None, *range(self.batch_size)]))

    def end_life(self, buffer: MultiAgentReplayBuffer) -> None:
        buffer.end_stream(self.rng.randrange(self.batch_size), agent=self.rng.choice(sorted(POLICIES)))

    def clear(self, buffer: MultiAgentReplayBuffer) -> None:
        buffer.clear()

    def draw(self, buffer: MultiAgentReplayBuffer) -> Any:
        """What is drawn, as plain values; priorities change by it."""
        window = self.rng.choice([None, Window(2), Window(3, burn_in=1, short="pad")])
        if window is not None and isinstance(buffer.buffer_of(own_key(buffer)), ReservoirReplayBuffer):
            window = None
        num, error = self.rng.randrange(1, 6), self.rng.random()
        drawn = []
        for policy in [None] if buffer.mode == "lockstep" else sorted(buffer.policies):
            try:
                items, info = buffer.sample(num, window=window, policy=policy)
            except EmptyBufferError as none:
                drawn.append(str(none))
                continue
            drawn.append(plain((items, by_name(info, buffer))))
            buffer.buffer_of(policy).update_priorities(info.keys, td_errors=np.full(num, error))
            if window is not None and buffer.mode == "lockstep":
                drawn += [plain(of_agent(agent, burn_in=window.burn_in)(items, info)[0]) for agent in sorted(POLICIES)]
        return drawn


quiet = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
histories = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "batch_size": st.integers(1, 3),
        "together": st.booleans(),
        "told": st.booleans(),
        "before": st.integers(0, 40),
    }
)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("mode", MODES)
@quiet
@given(drawn=histories)
def test_a_restored_buffer_goes_on_as_the_one_that_was_saved(tmp_path_factory, mode, kind, drawn):
    told, together, batch_size = drawn["told"], drawn["together"], drawn["batch_size"]
    spec = {**SPEC, "reward": tf.TensorSpec([], tf.float32)} | ({"is_last": tf.TensorSpec([], tf.bool)} if told else {})
    build = functools.partial(
        make,
        mode,
        MAKERS[kind],
        batch_size=batch_size,
        streams="together" if together else "apart",
    )
    saved = build(data_specs=dict.fromkeys(POLICIES, spec))
    before = History(drawn["seed"], batch_size, together=together, told=told)
    before.happen(saved, drawn["before"])
    folder = tmp_path_factory.mktemp("saves")
    saved.save(folder)
    # In the next process a set of agents has another order.
    restored = build(
        data_specs=dict.fromkeys(reversed(POLICIES), spec),
        policy_of={agent: POLICIES[agent] for agent in sorted(POLICIES)},
    )
    restored.restore(folder)
    assert seen(restored) == seen(saved)
    for buffer in (saved, restored):
        after = History(drawn["seed"] + 1, batch_size, together=together, told=told)
        after.number = before.number
        found = []
        for _ in range(3):
            after.happen(buffer, 8)
            found.append([after.draw(buffer), seen(buffer)])
        if buffer is saved:
            expected = found
    assert found == expected
