"""States of NumPy's random generators as they are saved: plain dicts of numbers and text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def generator_of(state: Mapping[str, Any]) -> np.random.Generator:
    """A generator that goes on from a state, and leaves the one that it is of alone.

    Raises:
      ValueError: as `check_random_state`.

    >>> rng = np.random.default_rng(7)
    >>> other = generator_of(rng.bit_generator.state)
    >>> bool(rng.integers(1000) == other.integers(1000))
    True
    """
    # The seed is overwritten, and one spares the entropy of the system.
    generator = np.random.default_rng(0)
    try:
        generator.bit_generator.state = state
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ValueError(
            f"the saved state of random numbers is none of {type(generator.bit_generator).__name__}: {error}"
        ) from error
    return generator


def check_random_state(name: str, state: Any) -> None:
    """Refuses what `np.random.default_rng().bit_generator.state` would not take.

    Raises:
      ValueError: it is no such state; the message tells `name`.

    >>> check_random_state("sample", np.random.default_rng(0).bit_generator.state)
    >>> check_random_state("sample", {"bit_generator": "PCG64"})
    Traceback (most recent call last):
    ...
    ValueError: sample: the saved state of random numbers is none of PCG64: 'state'
    """
    try:
        generator_of(state)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
