"""The blind cliffwalk: a task on which the order of replay decides how long learning takes, with exact answers.

Schaul et al. 2016, Prioritized Experience Replay, https://arxiv.org/abs/1511.05952, section 3.1 and appendix B.1.
What differs: values are a table throughout, where the paper's figure 2 has a table for the greedy choice of the largest
error and linear functions for draws in proportion to it. (With linear functions an oracle that looks one update ahead
can come to a stop.) Of `N(0, 0.1)`, from which values start, 0.1 is taken for the standard deviation.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from replayfeed.buffers import ReplayBuffer
from replayfeed.buffers.counts import check_count
from replayfeed.buffers.nests import Array

from .layouts import NEXT_OBSERVATION
from .rlds_steps import ACTION, DISCOUNT, OBSERVATION, REWARD

STEP_SIZE = 0.25
"""Of the paper's Q-learning."""

TOLERANCE = 1e-3
"""The mean squared error below which values count as learned."""


@dataclasses.dataclass(frozen=True)
class BlindCliffwalk:
    """`n` states in a row; in each one of two actions is right, and leads on; the wrong one ends the episode.

    The last right action gives a reward of 1, all else gives 0. Which action is right alternates from state to state,
    so that nothing is learned about one state from another. Of all `2^n` sequences of actions one is rewarded.

    Args:
      num_states: `n`, at least 2.

    Raises:
      TypeError: `num_states` is no int.
      ValueError: it is below 2.

    >>> cliffwalk = BlindCliffwalk(3)
    >>> cliffwalk.num_transitions
    14
    >>> cliffwalk.true_values().round(2).tolist()
    [[0.44, 0.0], [0.0, 0.67], [1.0, 0.0]]
    """

    num_states: int

    def __post_init__(self) -> None:
        check_count("num_states", self.num_states)
        if self.num_states < 2:
            raise ValueError("num_states must be at least 2, got 1: its discount factor, 1 - 1/n, would be 0.")

    @property
    def gamma(self) -> float:
        """The discount factor, `1 - 1/n`: values are of about the same size for every `n`."""
        return 1 - 1 / self.num_states

    @property
    def num_transitions(self) -> int:
        """How many transitions all sequences have together, `2^(n + 1) - 2`."""
        return int(2 ** (self.num_states + 1) - 2)

    @property
    def data_spec(self) -> dict[str, tf.TensorSpec]:
        """The spec of a frame, which is a whole transition: states and actions int32, reward and discount float32.

        `discount` is 0 where the transition ended its episode, else 1 (without `gamma`).
        """
        state, number = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)
        return {OBSERVATION: state, ACTION: state, REWARD: number, DISCOUNT: number, NEXT_OBSERVATION: state}

    def right_action(self, state: int) -> int:
        """0 or 1."""
        return state % 2

    def experience(self, seed: int) -> tuple[dict[str, Array], Array]:
        """All `2^n` sequences of actions, each until its episode ends, in random order.

        Args:
          seed: of the order.

        Returns:
          `(items, end_of_episode)` as `add_sequence` takes them, leaves `[1, num_transitions]`.

        >>> items, end_of_episode = BlindCliffwalk(2).experience(seed=0)
        >>> int(end_of_episode.sum()), float(items["reward"].sum())
        (4, 1.0)
        """
        sequences = list(itertools.product((0, 1), repeat=self.num_states))
        rows: list[tuple[int, int, float, float, int]] = []
        for index in np.random.default_rng(seed).permutation(len(sequences)):
            for state, action in enumerate(sequences[index]):
                is_right, is_last = action == self.right_action(state), state == self.num_states - 1
                # What follows the end of an episode is never looked at, and must be a state all the same.
                following = state if is_last else state + 1
                rows.append((state, action, float(is_right and is_last), float(is_right and not is_last), following))
                if not is_right:
                    break
        spec = self.data_spec
        columns = zip(spec, zip(*rows, strict=True), strict=True)
        items = {name: np.array([column], spec[name].dtype.as_numpy_dtype) for name, column in columns}
        return items, items[DISCOUNT] == 0

    def true_values(self, num_steps: int = 1) -> Array:
        """What Q-learning from this experience converges to, float64 `[n, 2]`.

        With one step these are the values of the best policy. Returns of several steps, taken from random actions
        without a correction, tell something else: the value of the action, followed by `num_steps - 1` random
        ones, followed by the best.

        Args:
          num_steps: of the returns that are learned from (`n_step`).

        Raises:
          TypeError: `num_steps` is no int.
          ValueError: it is below 1.

        >>> BlindCliffwalk(3).true_values(2).round(2).tolist()
        [[0.22, 0.0], [0.0, 0.33], [1.0, 0.0]]
        """
        check_count("num_steps", num_steps)
        # after[k]: what the state ahead is worth when k random actions come before the best ones.
        after = np.ones(num_steps)
        values = np.zeros([self.num_states, 2])
        for state in reversed(range(self.num_states)):
            right = after if state == self.num_states - 1 else self.gamma * after
            values[state, self.right_action(state)] = right[-1]
            # The first of k random actions is the right one half of the time.
            after = np.concatenate([right[-1:], 0.5 * right[:-1]])
        return values


class QTable:
    """Q-learning with a table, one transition at a time (eq. 2 and 3 of the paper).

    Args:
      cliffwalk: the task.
      seed: of the first values, normal with standard deviation 0.1. (At 0 no transition but the rewarded one would
        show an error.)

    >>> table = QTable(BlindCliffwalk(2), seed=0)
    >>> table.values[:] = 0
    >>> table.update(1, 1, reward=1.0, discount=0.0, next_observation=1)
    1.0
    >>> table.values.tolist(), table.error()
    ([[0.0, 0.0], [0.0, 0.25]], 0.203125)
    """

    def __init__(self, cliffwalk: BlindCliffwalk, seed: int) -> None:
        self.values: Array = np.random.default_rng(seed).normal(0, 0.1, [cliffwalk.num_states, 2])
        self._gamma = cliffwalk.gamma
        self._truth = cliffwalk.true_values()

    def error(self) -> float:
        """The mean squared error over all states and actions."""
        return float(np.square(self.values - self._truth).mean())

    def update(
        self, observation: int, action: int, *, reward: float, discount: float, next_observation: int, weight: float = 1
    ) -> float:
        """Learns from one transition; returns the TD error that it had before."""
        target = reward + self._gamma * discount * self.values[next_observation].max()
        td_error = float(target - self.values[observation, action])
        self.values[observation, action] += STEP_SIZE * weight * td_error
        return td_error


def updates_from_replay(
    buffer: ReplayBuffer,
    cliffwalk: BlindCliffwalk,
    *,
    seed: int,
    sample_batch_size: int = 1,
    max_updates: int = 1_000_000,
) -> int:
    """How many updates a `QTable` takes that learns from a buffer's draws, and tells it of the errors it found.

    Args:
      buffer: holds the experience of the cliffwalk, with or without priorities.
      cliffwalk: the task.
      seed: of the table.
      sample_batch_size: transitions drawn at a time. They are learned from one after the other, and their priorities
        are updated together: with 1 each draw knows of the update before it.
      max_updates: after which it is given up.

    Raises:
      RuntimeError: the error is not below `TOLERANCE` after so many updates.

    >>> from replayfeed.buffers import TFPrioritizedReplayBuffer
    >>> cliffwalk = BlindCliffwalk(4)
    >>> items, end_of_episode = cliffwalk.experience(seed=0)
    >>> buffer = TFPrioritizedReplayBuffer(cliffwalk.data_spec, 1, cliffwalk.num_transitions, beta=0.0, seed=0)
    >>> _ = buffer.add_sequence(items, end_of_episode=end_of_episode)
    >>> 100 < updates_from_replay(buffer, cliffwalk, seed=0) < 250
    True
    """
    table = QTable(cliffwalk, seed)
    num_updates = 0
    while num_updates < max_updates:
        items, info = buffer.sample(sample_batch_size)
        names = (OBSERVATION, ACTION, REWARD, DISCOUNT, NEXT_OBSERVATION)
        rows = zip(*(items[name].numpy().tolist() for name in names), info.weights.numpy().tolist(), strict=True)
        td_errors = []
        for observation, action, reward, discount, following, weight in rows:
            td_error = table.update(
                observation, action, reward=reward, discount=discount, next_observation=following, weight=weight
            )
            td_errors.append(td_error)
            num_updates += 1
            if table.error() < TOLERANCE:
                return num_updates
        buffer.update_priorities(info.keys, td_errors=td_errors)
    error = table.error()
    raise RuntimeError(f"after {num_updates} updates the mean squared error is {error:.4f}, not below {TOLERANCE}.")


def updates_by_oracle(cliffwalk: BlindCliffwalk, *, seed: int) -> int:
    """How many updates a `QTable` takes when each transition is the one that leaves the least error, in hindsight.

    No buffer can do that, because nobody knows the true values. It says how far a good order can take.

    Args:
      cliffwalk: the task.
      seed: of the table.

    >>> 50 < updates_by_oracle(BlindCliffwalk(4), seed=0) < 150
    True
    """
    table = QTable(cliffwalk, seed)
    items, _ = cliffwalk.experience(seed)
    state, action = items[OBSERVATION][0], items[ACTION][0]
    # Transitions out of a state by an action are all alike: one of each will do.
    _, firsts = np.unique(2 * state + action, return_index=True)
    state, action, reward, discount, following = (items[name][0, firsts] for name in cliffwalk.data_spec)
    truth = cliffwalk.true_values()
    num_updates = 0
    while table.error() >= TOLERANCE:
        values = table.values[state, action]
        targets = reward + cliffwalk.gamma * discount * table.values[following].max(axis=-1)
        updated = values + STEP_SIZE * (targets - values)
        gains = np.square(values - truth[state, action]) - np.square(updated - truth[state, action])
        best = int(np.argmax(gains))
        table.values[state[best], action[best]] = updated[best]
        num_updates += 1
    return num_updates
