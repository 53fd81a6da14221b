"""An episode as a demo plays it, and the steps of RLDS that it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class PlayedEpisode:
    """An episode of `N` actions.

    Attributes:
      observations: `[N + 1, ...]`, the final one included.
      actions: `[N, ...]`.
      rewards: float32 `[N]`.
      is_terminal: it ended by itself; False: a time limit cut it.

    >>> PlayedEpisode(np.arange(3), np.array([1, 0]), np.array([0.5, 1.0], np.float32), is_terminal=True).total_reward
    1.5
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[Any]
    is_terminal: bool

    @property
    def total_reward(self) -> float:
        """The episode's return."""
        return float(self.rewards.sum())


def rlds_steps(episode: PlayedEpisode) -> list[dict[str, Any]]:
    """The `N + 1` RLDS steps of an episode, for `rlds.tfds.EpisodeWriter`.

    The last one holds the final observation only: its action and reward are zeros, as RLDS leaves them without a
    meaning. The discount is 0 into and in a terminal step, else 1.

    >>> episode = PlayedEpisode(np.arange(3), np.array([1, 1]), np.array([0.5, 1.0], np.float32), is_terminal=True)
    >>> [(int(step["action"]), float(step["reward"]), float(step["discount"])) for step in rlds_steps(episode)]
    [(1, 0.5, 1.0), (1, 1.0, 0.0), (0, 0.0, 0.0)]
    """
    num_actions = len(episode.actions)
    steps = []
    for t in range(num_actions + 1):
        is_last = t == num_actions
        enters_terminal = episode.is_terminal and t >= num_actions - 1
        steps.append(
            {
                "observation": episode.observations[t],
                "action": np.zeros_like(episode.actions[0]) if is_last else episode.actions[t],
                "reward": np.float32(0) if is_last else episode.rewards[t],
                "discount": np.float32(0.0 if enters_terminal else 1.0),
                "is_first": t == 0,
                "is_last": is_last,
                "is_terminal": is_last and episode.is_terminal,
            }
        )
    return steps
