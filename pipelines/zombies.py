"""Knights, archers and zombies: PettingZoo's parallel task in which agents die early, as a small network can learn it.

Zombies walk down the screen. Archers shoot them with arrows, knights hit them with a mace, and get 1 for each. Who is
touched by a zombie dies, who walks off the screen too; when all are dead, or a zombie has reached the bottom, the
episode is over. https://pettingzoo.farama.org/environments/butterfly/knights_archers_zombies/
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import make
from pettingzoo.utils.wrappers import BaseParallelWrapper

from replayfeed.buffers.counts import check_count
from replayfeed.buffers.nests import Array

_MAX_ZOMBIES = 10
# Positions are in parts of the screen's width and height; angles are true where a pixel is as long either way.
_ASPECT = np.array([1280 / 720, 1.0])


class NearestZombies(BaseParallelWrapper):
    """An agent observes itself and the zombies next to it, as seen from where it looks, instead of all that there is.

    Observations are float32 `[5 + 3 * count]`: place (2) and direction (2) of the agent, the share of zombies that are
    there; and of each of the nearest ones, nearest first, the distance, and how much of the way to it lies ahead and to
    the side (cosine and sine), zeros where there is none.

    Args:
      environment: the parallel environment, with `obs_method="vector"`.
      count: how many zombies.

    Raises:
      TypeError: `count` is no int.
      ValueError: it is below 1.

    >>> environment = NearestZombies(make("parallel", "butterfly/knights_archers_zombies-v11"), count=2)
    >>> environment.observation_space("archer_0").shape
    (11,)
    """

    def __init__(self, environment: Any, count: int = 1) -> None:
        check_count("count", count)
        super().__init__(environment)
        self._count = count
        self._space = spaces.Box(-2.0, 2.0, [5 + 3 * count], np.float32)

    def observation_space(self, agent: str) -> Any:
        """The same for each agent."""
        return self._space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As the environment's, with other observations."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._seen(observations), infos

    def step(self, actions: dict[str, Any]) -> Any:
        """As the environment's, with other observations."""
        observations, *rest = self.env.step(actions)
        return self._seen(observations), *rest

    def _seen(self, observations: dict[str, Array]) -> dict[str, Array]:
        return {agent: self._nearest(rows) for agent, rows in observations.items()}

    def _nearest(self, rows: Array) -> Array:
        zombies = rows[-_MAX_ZOMBIES:]
        zombies = zombies[zombies[:, 0] > 0]
        seen = np.zeros([5 + 3 * self._count], np.float32)
        seen[:4] = rows[0, 1:]
        seen[4] = len(zombies) / _MAX_ZOMBIES
        ways = zombies[:, 1:3] * _ASPECT
        distances = np.hypot(ways[:, 0], ways[:, 1])
        heading = rows[0, 3:]
        for index, zombie in enumerate(np.argsort(distances, kind="stable")[: self._count]):
            way = ways[zombie] / max(distances[zombie], 1e-6)
            aside = heading[0] * way[1] - heading[1] * way[0]
            seen[5 + 3 * index : 8 + 3 * index] = (distances[zombie], heading @ way, aside)
        return seen


def knights_and_archers(*, max_cycles: int = 250) -> NearestZombies:
    """Two archers and two knights, many zombies, and a screen to fall off: agents die at all times.

    Args:
      max_cycles: steps after which those who live are truncated.

    >>> knights_and_archers().possible_agents
    ['archer_0', 'archer_1', 'knight_0', 'knight_1']
    """
    return NearestZombies(
        make(
            "parallel",
            "butterfly/knights_archers_zombies-v11",
            spawn_delay=5,
            max_zombies=_MAX_ZOMBIES,
            line_death=True,
            max_cycles=max_cycles,
            obs_method="vector",
        )
    )


def kind_of(agent: str) -> str:
    """`'archer'` or `'knight'`: agents of a kind share a policy.

    >>> kind_of("archer_1")
    'archer'
    """
    return agent.partition("_")[0]
