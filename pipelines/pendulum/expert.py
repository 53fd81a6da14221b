"""Who plays what is recorded: a controller that swings the pendulum up, and sloppier versions of it."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

_MAX_TORQUE = 2.0
# Of gym's pendulum (a rod of mass 1 and length 1, gravity 10): its speed changes by 15 sin(angle) + 3 torque a second.
_GRAVITY = 15.0
# The cosine of the angle from which on the pendulum is held, and the gains of holding it.
_NEAR_UPRIGHT, _ANGLE_GAIN, _SPEED_GAIN = 0.85, 12.0, 3.0
# Below this speed the pendulum is pushed with all there is, so that it does not rest upside down.
_AT_REST = 0.1


def swing_up(observation: NDArray[np.float32]) -> NDArray[np.float32]:
    """Torques float32 `[B, 1]` that bring the pendulum up and hold it there.

    Energy control (Åström and Furuta, Swinging up a pendulum by energy control, Automatica 36, 2000, eq. 8): far
    from upright the torque goes with the speed while the energy is below that of the upright pendulum, and
    against it above. Near upright a proportional-derivative controller takes over.

    Args:
      observation: float32 `[B, 3]`: cosine, sine, speed.

    >>> hanging_and_turning, falling = [-1.0, 0.0, 1.0], [0.995, 0.1, 0.0]
    >>> swing_up(np.array([hanging_and_turning, falling], np.float32)).round(1).tolist()
    [[2.0], [-1.2000000476837158]]
    """
    cosine, sine, speed = observation.T
    energy_missing = _GRAVITY * (1 - cosine) - speed**2 / 2
    swing = np.where(np.abs(speed) < _AT_REST, np.copysign(_MAX_TORQUE, speed), speed * energy_missing)
    hold = -_ANGLE_GAIN * np.arctan2(sine, cosine) - _SPEED_GAIN * speed
    torque = np.where(cosine > _NEAR_UPRIGHT, hold, swing)
    return np.clip(torque, -_MAX_TORQUE, _MAX_TORQUE)[:, np.newaxis].astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """The controller, with a share of its actions replaced by random ones.

    Attributes:
      name: for the episode's metadata.
      random_share: of the actions, 0 to 1.

    >>> hanging = np.tile(np.array([-1.0, 0.0, 0.0], np.float32), [1000, 1])
    >>> actions = Behaviour("half", random_share=0.5).choose(hanging, np.random.default_rng(0))
    >>> actions.shape, float((actions == swing_up(hanging)).mean().round(1))
    ((1000, 1), 0.5)
    """

    name: str
    random_share: float

    def choose(self, observation: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """Actions float32 `[B, 1]` for observations `[B, 3]`."""
        random = rng.uniform(-_MAX_TORQUE, _MAX_TORQUE, [len(observation), 1]).astype(np.float32)
        is_random = rng.random([len(observation), 1]) < self.random_share
        return np.where(is_random, random, swing_up(observation))


RANDOM = Behaviour("random", 1.0)
