"""The command `replayfeed`: offline data into RLDS folders, out of served tables, and checked.

A package of its own, since importing `replayfeed.pipelines` imports TensorFlow: help takes a fraction of a
second without it, and what TensorFlow prints when it is first imported can be switched off before.
"""

from __future__ import annotations

__all__: list[str] = []
