"""What a load brought: counts, and which episodes were dropped or repaired and why."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

_MAX_NAMED = 5


@dataclasses.dataclass(frozen=True)
class Finding:
    """Episodes that share a reason.

    Attributes:
      reason: why, in few words.
      count: how many there were.
      episodes: the first few of them, by index.
    """

    reason: str
    count: int
    episodes: tuple[str, ...]

    def __str__(self) -> str:
        episodes = "episode" if self.count == 1 else "episodes"
        more = ", ..." if self.count > len(self.episodes) else ""
        return f"{self.count:,} {self.reason} ({episodes} {', '.join(self.episodes)}{more})"


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What was loaded; `str` of it is a small table, `to_json()` the same for scripts.

    Attributes:
      source: the dataset's name.
      layout: of the frames.
      episodes: that were delivered.
      frames: in them.
      terminals: episodes that ended in a terminal step.
      truncations: episodes that ended otherwise.
      dropped: episodes that were left out, by reason.
      repaired: episodes that were delivered with a repair, by reason.
      notes: what else a reader of the numbers has to know.
      seconds: from the first read to the last.
      resumed: episodes that were passed over because an earlier load had brought them (`fill(..., resume=)`).

    >>> print(LoadReport("mine", "transition", episodes=2, frames=7, terminals=1, truncations=1,
    ...                  dropped=(Finding("no step", 1, ("3",)),), seconds=0.5))
    mine, layout transition
      episodes     2 (1 terminal, 1 truncated)
      frames       7
      dropped      1 no step (episode 3)
      repaired     none
      seconds      0.50 (14 frames/s)
    """

    source: str
    layout: str
    episodes: int
    frames: int
    terminals: int
    truncations: int
    dropped: tuple[Finding, ...] = ()
    repaired: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    resumed: int = 0

    @property
    def num_dropped(self) -> int:
        """Episodes that were left out."""
        return sum(finding.count for finding in self.dropped)

    @property
    def num_repaired(self) -> int:
        """Repairs that were made; one episode may have had two."""
        return sum(finding.count for finding in self.repaired)

    @property
    def frames_per_second(self) -> float:
        """Frames a second of `seconds`; 0 when no time was taken."""
        return self.frames / self.seconds if self.seconds else 0.0

    @property
    def steps_per_second(self) -> float:
        """`frames_per_second`, under the name that other libraries' numbers have."""
        return self.frames_per_second

    def to_dict(self) -> dict[str, Any]:
        """Everything that `str` tells, as plain dicts, lists, texts and numbers.

        >>> LoadReport("mine", "transition", 2, 8, 1, 1, seconds=2.0).to_dict()["steps_per_second"]
        4.0
        """
        return {
            **dataclasses.asdict(self),
            "num_dropped": self.num_dropped,
            "num_repaired": self.num_repaired,
            "steps_per_second": self.steps_per_second,
        }

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as strict JSON: without NaN, which a report never holds.

        >>> LoadReport("mine", "transition", 0, 0, 0, 0, dropped=(Finding("no step", 1, ("3",)),)).to_json()[-75:]
        '"resumed": 0, "num_dropped": 1, "num_repaired": 0, "steps_per_second": 0.0}'
        """
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __str__(self) -> str:
        rows = [
            ("episodes", f"{self.episodes:,} ({self.terminals:,} terminal, {self.truncations:,} truncated)"),
            ("frames", f"{self.frames:,}"),
            *([("resumed", f"{self.resumed:,} episodes were there already")] if self.resumed else []),
            *_rows("dropped", self.dropped),
            *_rows("repaired", self.repaired),
            ("seconds", f"{self.seconds:.2f} ({self.frames_per_second:,.0f} frames/s)"),
            *(("note", note) for note in self.notes),
        ]
        return "\n".join([f"{self.source}, layout {self.layout}", *(f"  {name:<12} {text}" for name, text in rows)])


class Tally:
    """Counts episodes by reason, and remembers the first few of each.

    >>> tally = Tally()
    >>> for name in "0", "4":
    ...     tally.add("no step", name)
    >>> [str(finding) for finding in tally.findings()]
    ['2 no step (episodes 0, 4)']
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._named: dict[str, list[str]] = {}

    def add(self, reason: str, episode: str) -> None:
        """Counts one episode."""
        self._counts[reason] = self._counts.get(reason, 0) + 1
        named = self._named.setdefault(reason, [])
        if len(named) < _MAX_NAMED:
            named.append(episode)

    def findings(self) -> tuple[Finding, ...]:
        """One for each reason, in the order in which they first came."""
        return tuple(Finding(reason, count, tuple(self._named[reason])) for reason, count in self._counts.items())


def _rows(name: str, findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    if not findings:
        return [(name, "none")]
    return [(name, str(finding)) for finding in findings]
