"""A `Window` as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .windows import Window


def window_to_plain(window: Window) -> dict[str, Any]:
    """Its settings.

    >>> window_from_plain(window_to_plain(Window(3, burn_in=1))) == Window(3, burn_in=1)
    True
    """
    return dataclasses.asdict(window)


def window_from_plain(plain: Mapping[str, Any]) -> Window:
    """Of `window_to_plain`."""
    return Window(**plain)
