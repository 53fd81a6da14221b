"""What a save and a restore tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class SaveReport:
    """What `save` wrote.

    Attributes:
      path: of the folder.
      step: of the training.
      frames: that it holds.
      num_bytes: size of the folder.
      num_bytes_written: of these, what was written now; the others were on the disk already.
      seconds: that it took.
      removed: names of the saves that were removed, as `keep_last` says.

    >>> print(SaveReport("run/step-000000000010", 10, 100, 2_000_000, 500_000, 0.25, ()))
    saved 100 frames at step 10 in run/step-000000000010: 2.0 MB, of which 0.5 MB were new, in 0.25 s
    """

    path: str
    step: int
    frames: int
    num_bytes: int
    num_bytes_written: int
    seconds: float
    removed: tuple[str, ...]

    def __str__(self) -> str:
        removed = f"; removed {', '.join(self.removed)}" if self.removed else ""
        return (
            f"saved {self.frames:,} frames at step {self.step} in {self.path}: {_size(self.num_bytes)}, of which "
            f"{_size(self.num_bytes_written)} were new, in {self.seconds:.2f} s{removed}"
        )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.1f} kB"


@dataclasses.dataclass(frozen=True)
class RestoreReport:
    """What `restore` took over.

    Attributes:
      path: of the folder; None: it was a state in memory.
      step: of the training, when it was saved; of a buffer that was cut back, that which it was cut back to. None: it
        was never given.
      frames: that the buffer holds now.
      dropped: frames of the save for which it has no room.
      cut: frames that were left out because they were added after the step asked for.
      changed: settings that differed, by name: (stored, of the buffer).
      skipped: folders that are no complete saves, and why.
      seconds: that it took.

    >>> print(RestoreReport("run/step-000000000010", 10, 100, 20, 0, {"max_length": (120, 100)}, (), 0.25))
    restored 100 frames of step 10 from run/step-000000000010 in 0.25 s; dropped 20 frames that have no room; settings
    that differed: max_length: stored 120, here 100
    """

    path: str | None
    step: int | None
    frames: int
    dropped: int
    cut: int
    changed: Mapping[str, tuple[Any, Any]]
    skipped: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        parts = [
            f"restored {self.frames:,} frames of step {self.step} from {self.path or 'a state'} in {self.seconds:.2f} s"
        ]
        if self.dropped:
            parts.append(f"dropped {self.dropped:,} frames that have no room")
        if self.cut:
            parts.append(f"left out {self.cut:,} frames that were added after that step")
        if self.changed:
            parts.append(f"settings that differed: {differing(self.changed)}")
        if self.skipped:
            parts.append(f"skipped {'; '.join(self.skipped)}")
        return "; ".join(parts)


def differing(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Settings that differ, for people.

    >>> differing({"max_length": (120, 100), "seed": (None, 3)})
    'max_length: stored 120, here 100; seed: stored None, here 3'
    """
    return "; ".join(f"{name}: stored {stored!r}, here {here!r}" for name, (stored, here) in changed.items())
