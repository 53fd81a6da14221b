"""How other libraries save and load, each in a process of its own (`peers/`)."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from measure import Timed
from peers.environments import CPPRB_SAVING, REVERB_SAVING, TF_AGENTS_SAVING, python_of
from peers.processes import PeerError, PeerProcess, Peers
from peers.worker import Experience
from workloads import FRAMES, Workload

# TF-Agents takes a block in one add, a frame of each of so many streams: a million frames are fifty adds.
_BLOCK, _BLOCK_OF_PIXELS = 20_000, 1_000
_MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class InMegabytes:
    """A contest of a peer that saves or loads all it holds, in megabytes a second.

    Attributes:
      timed: counts saves or loads.
      megabytes: of the frames that are saved.
    """

    timed: Timed
    megabytes: float

    @property
    def name(self) -> str:
        """As the table calls it."""
        return self.timed.name

    def window(self, window_s: float) -> dict[str, float]:
        """As the peer measured it, scaled."""
        one = self.timed.window(window_s)
        return {
            **one,
            "values": one["values"] * self.megabytes,
            "cpu_us": one["cpu_us"] / self.megabytes,
        }


class Elsewhere:
    """The peers that have processes of their own; a context.

    Args:
      workload: the fields.
      capacity: frames of the buffers that they stand beside; they hold fewer, as their names tell.
      folder: where their files go.

    Attributes:
      not_measured: who is missing, and why.
    """

    def __init__(self, workload: Workload, capacity: int, folder: pathlib.Path) -> None:
        self._workload, self._capacity, self._folder = workload, capacity, folder
        self._peers = Peers(
            Experience(workload.frames(min(_BLOCK_OF_PIXELS if workload is FRAMES else _BLOCK, capacity)), batch=1),
            capacity,
        )
        self._full: list[tuple[str, PeerProcess, float]] = []
        self.not_measured: dict[str, str] = {}

    def __enter__(self) -> Elsewhere:
        self._peers.__enter__()
        # Of pixels fewer: cpprb compresses them, Reverb gets them one by one, and TF-Agents shows its pace with these.
        for peer, python, most_pixels in (
            (TF_AGENTS_SAVING, pathlib.Path(sys.executable), 20_000),
            (CPPRB_SAVING, python_of("cpprb"), 5_000),
            (REVERB_SAVING, python_of("reverb"), 5_000),
        ):
            max_items = most_pixels if self._workload is FRAMES else peer.max_items
            variables = {**peer.variables, "TMPDIR": str(self._folder)}
            peer = dataclasses.replace(peer, max_items=max_items, variables=variables)
            if isinstance(python, str):
                self.not_measured[peer.title] = python
                continue
            try:
                title, process = self._peers.full(peer, python)
            except PeerError as error:
                self.not_measured[peer.title] = str(error)
                continue
            num = min(self._capacity, peer.max_items or self._capacity)
            self._full.append((title, process, num * self._workload.frame_bytes / _MEGABYTE))
        return self

    def __exit__(self, *about: Any) -> None:
        self._peers.__exit__(*about)

    def contenders(self, contest: str) -> Sequence[InMegabytes]:
        """Those of a contest, `save` or `load`, each tried once."""
        found = []
        for title, process, megabytes in self._full:
            try:
                found.append(InMegabytes(process.contender(title, contest), megabytes))
            except PeerError as error:
                self.not_measured[title] = str(error)
        return found
