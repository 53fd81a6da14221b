"""How other libraries save and load: TF-Agents in this process, cpprb and Reverb in their own ones (`peers/`)."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_agents_peers
from measure import Contender, Timed
from peers.environments import CPPRB_SAVING, REVERB_SAVING, python_of
from peers.processes import PeerError, PeerProcess, Peers
from peers.worker import Experience
from saving_files import FreshFolder, forget, prepared
from workloads import FRAMES, Workload

# Of pixels: cpprb compresses them, Reverb gets them one by one, and TF-Agents needs no more to show its pace.
_PIXELS_ELSEWHERE, _PIXELS_TF_AGENTS = 5_000, 20_000
_BLOCK = 1_000
_MEGABYTE = 1e6


class TfAgents:
    """`tf.train.Checkpoint` of a full TFUniformReplayBuffer.

    Args:
      workload: the fields.
      capacity: frames.
      folder: where checkpoints go.
    """

    def __init__(self, workload: Workload, capacity: int, folder: pathlib.Path) -> None:
        num = min(capacity, _PIXELS_TF_AGENTS) if workload is FRAMES else capacity
        buffer = tf_agents_peers.full_buffer(workload, num)
        self.name = "TF-Agents, tf.train.Checkpoint" + (f", {num:,} frames" if num < capacity else "")
        self._checkpoint = tf.train.Checkpoint(buffer=buffer)
        self._megabytes = num * workload.frame_bytes / _MEGABYTE
        self._fresh = FreshFolder(folder, "tf_agents")

    def saving(self) -> Contender:
        """Not fsynced."""
        return prepared(self.name, self._fresh.renew, self._write, self._megabytes)

    def loading(self, *, cold: bool) -> Contender:
        """Into the variables that are there."""
        if not self._fresh.path.exists():
            self._write()
        forget_or_not = (lambda: forget(self._fresh.path)) if cold else (lambda: None)
        return prepared(self.name, forget_or_not, self._read, self._megabytes)

    def _write(self) -> None:
        self._checkpoint.write(str(self._fresh.path / "checkpoint"))

    def _read(self) -> None:
        self._checkpoint.read(str(self._fresh.path / "checkpoint")).assert_consumed()


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
        self._peers = Peers(Experience(workload.frames(min(_BLOCK, capacity)), batch=1), capacity)
        self._full: list[tuple[str, PeerProcess, float]] = []
        self.not_measured: dict[str, str] = {}

    def __enter__(self) -> Elsewhere:
        self._peers.__enter__()
        for environment, peer in (("cpprb", CPPRB_SAVING), ("reverb", REVERB_SAVING)):
            max_items = _PIXELS_ELSEWHERE if self._workload is FRAMES else peer.max_items
            variables = {**peer.variables, "TMPDIR": str(self._folder)}
            peer = dataclasses.replace(peer, max_items=max_items, variables=variables)
            python = python_of(environment)
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
