"""What transforms make of one agent's frames: n-step returns, stacks and stored state over its own steps."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import BufferConfig, MultiAgentReplayBuffer, Window
from replayfeed.pipelines import n_step, of_agent, recurrent_state, stack_frames

from .two_agents import OWN, VALUE, values


def test_burn_in_and_stored_state_by_policy():
    """Policy a takes windows of 2 with 1 frame of context and stored state, policy b single frames."""
    spec = {**VALUE, "state": tf.TensorSpec([1], tf.float32)}
    buffer = MultiAgentReplayBuffer({"a": spec, "b": VALUE}, OWN, BufferConfig("uniform", 100, seed=3))
    for number in range(4):
        state = np.array([[10.0 * number]], np.float32)
        buffer.add_batch({"a": {**values(number), "state": state}, "b": values(100 + number)})
    items, info = buffer.sample(50, window={"a": Window(2, burn_in=1)})
    found = {
        (tuple(row), tuple(mask))
        for row, mask in zip(items["a"]["value"].numpy().tolist(), info["a"].mask.numpy().tolist(), strict=True)
    }
    true, false = True, False
    assert found == {((0, 0, 1), (false, true, true)), ((0, 1, 2), (true,) * 3), ((1, 2, 3), (true,) * 3)}
    assert set(items["b"]["value"].numpy().tolist()) == {100, 101, 102, 103}
    with_state, _ = recurrent_state("state")(items["a"], info["a"])
    # The state of each window's first real row.
    first = np.where(info["a"].mask.numpy()[:, 0], items["a"]["value"].numpy()[:, 0], 0)
    np.testing.assert_array_equal(with_state.state["state"].numpy()[:, 0], 10 * first)


def test_one_agents_view_takes_n_step_returns():
    """c, which dies at step 2 with reward 22: rewards 20 + 0.5 * 21, then nothing after its death."""
    spec = {"value": tf.TensorSpec([], tf.float32), "reward": tf.TensorSpec([], tf.float32)}
    spec = {**spec, "action": tf.TensorSpec([], tf.int32), "observation": tf.TensorSpec([], tf.float32)}
    spec = {**spec, "is_last": tf.TensorSpec([], tf.bool), "is_terminal": tf.TensorSpec([], tf.bool)}
    spec = {**spec, "discount": tf.TensorSpec([], tf.float32), "is_first": tf.TensorSpec([], tf.bool)}
    del spec["value"]
    buffer = MultiAgentReplayBuffer(
        {"a": spec, "c": spec}, lambda agent: agent, BufferConfig("uniform", 99), mode="lockstep"
    )

    def frame(step, number, last=False):
        flag = np.array([last])
        number = np.array([number], np.float32)
        one = np.array([0 if last else 1], np.float32)
        first = np.array([step == 0])
        return {
            "observation": number,
            "reward": number,
            "action": np.array([step], np.int32),
            "is_last": flag,
            "is_terminal": flag,
            "discount": one,
            "is_first": first,
        }

    for step in range(5):
        items = {"a": frame(step, step)}
        if step <= 2:
            items["c"] = frame(step, 20 + step, step == 2)
        buffer.add_batch(items)
    transform = n_step(2, gamma=0.5)
    for sample in (buffer.sample(200, 3), next(iter(buffer.as_dataset(200, 3)))):
        batch, info = transform(*of_agent("c")(*sample))
        starts = sample[1].times.numpy()[:, 0]
        real = np.asarray(info.mask).reshape(len(starts), -1).any(axis=1)
        found = {
            int(start): (float(reward), float(discount))
            for start, reward, discount, is_real in zip(
                starts, np.asarray(batch.reward), np.asarray(batch.discount), real, strict=True
            )
            if is_real
        }
        # From 0: 20 + 0.5 * 21, into the terminal step. From 1: 21, too. From 2 on nothing is known.
        assert found == {0: (30.5, 0.0), 1: (21.0, 0.0)}


def test_agents_that_take_turns_have_n_step_returns_over_their_own_steps():
    """In lockstep a acts at 0, 2, 4 and b at 1, 3, 5: a's next step after 0 is 2, not the absent row at 1."""
    spec = {name: tf.TensorSpec([], tf.float32) for name in ("observation", "reward", "discount", "action")}
    config = BufferConfig("uniform", 99)
    buffer = MultiAgentReplayBuffer({"a": spec, "b": spec}, OWN, config, mode="lockstep")
    for turn in range(6):
        frame = {name: np.array([turn], np.float32) for name in spec} | {"discount": np.ones(1, np.float32)}
        buffer.add_batch({"ab"[turn % 2]: frame})
    for sample in (buffer.sample(100, 5), next(iter(buffer.as_dataset(100, 5)))):
        batch, info = n_step(2, gamma=0.5)(*of_agent("a", num_steps=3)(*sample))
        rows = zip(sample[1].times.numpy()[:, 0], batch.reward.numpy(), batch.next_observation.numpy(), strict=True)
        found = {start: (reward, following) for start, reward, following in rows if start == 0}
        # Rewards 0 + 0.5 * 2, then observation 4. At 1 a is absent, and no step begins.
        assert found == {0: (1.0, 4.0)}
        mask = dict(zip(sample[1].times.numpy()[:, 0].tolist(), info.mask.numpy().tolist(), strict=True))
        assert mask == {0: True, 1: False}


def test_stacks_of_one_agents_view_hold_no_other_life():
    """a dies at 3 and is back at 4: no stack of the new life shows a frame of the old one."""
    spec = {"observation": tf.TensorSpec([], tf.float32), "is_last": tf.TensorSpec([], tf.bool)}
    config = BufferConfig("uniform", 99)
    buffer = MultiAgentReplayBuffer({"a": spec, "b": spec}, OWN, config, mode="lockstep")

    def frame(number, last=False):
        return {"observation": np.array([number], np.float32), "is_last": np.array([last])}

    for t in range(8):
        buffer.add_batch({"a": frame(t + 1, t == 3), "b": frame(101 + t)})
    sample = buffer.sample(200, window=Window(2, burn_in=2, short="pad"))
    items, info = stack_frames(3)(*of_agent("a", burn_in=2)(*sample))
    stacks = {
        int(time): row.tolist()
        for time, row, real in zip(info.times[:, 0], items["observation"].numpy()[:, 0], info.mask[:, 0], strict=True)
        if real
    }
    assert stacks == {0: [0, 0, 1], 1: [0, 1, 2], 2: [1, 2, 3], 4: [0, 0, 5], 5: [0, 5, 6], 6: [5, 6, 7]} | (
        {3: [2, 3, 4]} if 3 in stacks else {}
    ) | ({7: [6, 7, 8]} if 7 in stacks else {})
    with pytest.raises(tf.errors.InvalidArgumentError, match="were drawn with another burn_in"):
        of_agent("a")(*sample)


def test_context_with_gaps_is_refused_and_windows_drawn_elsewhere_are_not_the_agents():
    buffer = MultiAgentReplayBuffer({"a": VALUE, "b": VALUE}, OWN, BufferConfig("uniform", 99), mode="lockstep")
    for turn in range(9):
        buffer.add_batch({"ab"[turn % 2]: values(turn)})
    items, info = of_agent("a")(*buffer.sample(100, 4))
    rows = {tuple(row) for row in np.where(info.mask, items["value"], -1).tolist()}
    assert rows == {(0, 2, -1, -1), (2, 4, -1, -1), (4, 6, -1, -1), (-1, -1, -1, -1)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="draw windows with context from independent policies"):
        of_agent("a", burn_in=2)(*buffer.sample(100, window=Window(2, burn_in=2)))
