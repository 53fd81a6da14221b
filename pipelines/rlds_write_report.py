"""What a write brought: counts, size and time."""

from __future__ import annotations

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class WriteReport:
    """What was written; `str` of it is a small table.

    Attributes:
      source: the name of where the episodes came from.
      path: the folder of the dataset.
      split: that was written.
      episodes: in it.
      steps: in them, `N + 1` for an episode of `N` transitions.
      terminals: episodes whose last step is terminal.
      truncations: episodes whose last step is `is_last` and not terminal.
      partial: episodes that lack their beginning or their end: the first step has no
        `is_first`, or the last one neither `is_last` nor `is_terminal`, or there is no step.
      invalid: episodes that are flagged as invalid.
      bytes: of all files.
      shards: files of episodes.
      notes: what else a reader of the dataset has to know.
      seconds: from the first read to the dataset's appearance at `path`.

    >>> print(WriteReport("mine", "/data/mine", "train", episodes=3, steps=12, terminals=1, truncations=1, partial=1,
    ...                   bytes=2048, shards=1, seconds=0.5))
    mine to /data/mine, split train
      episodes     3 (1 terminal, 1 truncated, 1 partial)
      steps        12
      bytes        2,048 in 1 shard
      seconds      0.50 (24 steps/s)
    """

    source: str
    path: str
    split: str
    episodes: int
    steps: int
    terminals: int
    truncations: int
    partial: int
    bytes: int
    shards: int
    invalid: int = 0
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def steps_per_second(self) -> float:
        """Steps a second of `seconds`; 0 when no time was taken."""
        return self.steps / self.seconds if self.seconds else 0.0

    def to_json(self) -> str:
        """The counts as a JSON object, for scripts.

        >>> report = WriteReport("mine", "/data/mine", "train", 3, 12, 1, 1, 1, bytes=2048, shards=1)
        >>> json.loads(report.to_json())["episodes"]
        3
        """
        return json.dumps(dataclasses.asdict(self), indent=2)

    def __str__(self) -> str:
        kinds = f"{self.terminals:,} terminal, {self.truncations:,} truncated, {self.partial:,} partial"
        invalid = f", {self.invalid:,} flagged invalid" if self.invalid else ""
        rows = [
            ("episodes", f"{self.episodes:,} ({kinds}{invalid})"),
            ("steps", f"{self.steps:,}"),
            ("bytes", f"{self.bytes:,} in {self.shards:,} {'shard' if self.shards == 1 else 'shards'}"),
            ("seconds", f"{self.seconds:.2f} ({self.steps_per_second:,.0f} steps/s)"),
            *(("note", note) for note in self.notes),
        ]
        heading = f"{self.source} to {self.path}, split {self.split}"
        return "\n".join([heading, *(f"  {name:<12} {text}" for name, text in rows)])
