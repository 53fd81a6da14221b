"""A run that is killed for real, at a random step, and goes on in another process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import resumable

# What the last episodes have to return on average, in a run that has gone on.
BAR = 100.0


@dataclasses.dataclass(frozen=True)
class FinishedEpisode:
    """An episode of the collector.

    Attributes:
      steps: of all environments, when it ended.
      total_reward: its return.
    """

    steps: int
    total_reward: float


@dataclasses.dataclass(frozen=True)
class KilledRun:
    """What two processes told of one run.

    Attributes:
      killed_at: the step at which the first one was killed.
      resumed_at: the step at which the second one went on: that of the newest checkpoint.
      frames: that its buffer held then.
      is_same: whether frames and weights were bit by bit those that the first one had when it wrote the checkpoint.
      before: episodes up to the checkpoint.
      lost: episodes that ended between the checkpoint and the kill.
      after: episodes of the second process.
    """

    killed_at: int
    resumed_at: int
    frames: int
    is_same: bool
    before: Sequence[FinishedEpisode]
    lost: Sequence[FinishedEpisode]
    after: Sequence[FinishedEpisode]

    def __str__(self) -> str:
        contents = "as they were saved" if self.is_same else "NOT as they were saved"
        return (
            f"killed at step {self.killed_at:,}, went on at {self.resumed_at:,} with {self.frames:,} frames; frames "
            f"and weights {contents}; {self.killed_at - self.resumed_at:,} steps were lost"
        )

    def mean_return(self, num_episodes: int = 10) -> float:
        """The average return of the last episodes."""
        return float(np.mean([episode.total_reward for episode in self.after[-num_episodes:]]))


def run(
    folder: Path,
    seed: int,
    *,
    max_steps: int = 6_000,
    kill_between: tuple[int, int] = (2_800, 3_800),
    timeout_s: float = 300.0,
    tell: Callable[[str], None] = print,
) -> KilledRun:
    """Starts a run, kills its process with SIGKILL, and lets another process finish it.

    Args:
      folder: of the run; what is in it already is gone on with.
      seed: of the run, and of the step at which it is killed.
      max_steps: environment steps at which it ends.
      kill_between: the steps between which it is killed; before the first there must be a checkpoint.
      timeout_s: how long each of the two processes may take.
      tell: is given what happens, a line each.

    Raises:
      RuntimeError: a process ended by itself and was not to, or did not find the checkpoint of the first one.
      TimeoutError: a process took longer than `timeout_s`.
    """
    kill_at = int(np.random.default_rng(seed).integers(*kill_between))
    command = resumable.command(folder, seed, max_steps)
    first: list[dict[str, Any]] = []
    tell(f"a process begins; it will be killed at step {kill_at:,}, or soon after it")
    with _running(command, timeout_s) as (process, lines):
        for told in lines:
            first.append(told)
            if told.get("steps", 0) >= kill_at:
                process.kill()
                # What it had told before it was gone: it may have been faster than we.
                first.extend(lines)
                break
        else:
            raise RuntimeError(
                f"the process ended by itself, with {process.wait()}, before step {kill_at}; it had told {first[-1:]}."
            )
    tell("killed; another one goes on")
    with _running(command, timeout_s) as (process, lines):
        second = list(lines)
        if process.wait():
            raise RuntimeError(f"the process that was to go on ended with {process.returncode}.")
    if not second or "resumed" not in second[0]:
        raise RuntimeError(f"the second process began anew; the first one had told {first[-1:]}.")
    saved = {told["saved"]: told for told in first if "saved" in told}
    resumed = second[0]
    # The last checkpoint may be one that the first process had no time to tell of.
    same = saved.get(resumed["resumed"])
    episodes = _episodes(first)
    return KilledRun(
        killed_at=max(told["steps"] for told in first if "steps" in told),
        resumed_at=resumed["resumed"],
        frames=resumed["frames"],
        is_same=same is None or all(same[name] == resumed[name] for name in ("frames", "contents", "weights")),
        before=[episode for episode in episodes if episode.steps <= resumed["resumed"]],
        lost=[episode for episode in episodes if episode.steps > resumed["resumed"]],
        after=_episodes(second),
    )


def picture(killed: KilledRun, path: Path, *, window: int = 10) -> None:
    """Writes a PNG: the returns over the steps, and where the run was saved, killed and went on.

    Args:
      killed: what `run` returned.
      path: the file.
      window: episodes that the curve averages.
    """
    # Figure without pyplot: it draws with Agg and opens no window.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    draw(figure.subplots(), killed, window=window)
    figure.savefig(path, dpi=120)


def draw(axis: Any, killed: KilledRun, *, window: int = 10) -> None:
    """The same, into axes of matplotlib."""
    for episodes, colour, marker, label in (
        (killed.before, "#0072B2", ".", "first process"),
        (killed.lost, "0.4", "x", "first process, lost: after its last checkpoint"),
        (killed.after, "#D55E00", ".", "second process"),
    ):
        positions, returns = [each.steps for each in episodes], [each.total_reward for each in episodes]
        axis.plot(positions, returns, marker, color=colour, alpha=0.6, label=label)
    kept = [*killed.before, *killed.after]
    returns = [each.total_reward for each in kept]
    means = [np.mean(returns[max(0, i + 1 - window) : i + 1]) for i in range(len(returns))]
    axis.plot([each.steps for each in kept], means, color="black", label=f"mean of the last {window} episodes")
    axis.axvline(killed.resumed_at, color="#009E73", linestyle=":", label=f"checkpoint: step {killed.resumed_at:,}")
    axis.axvline(killed.killed_at, color="#CC0000", linestyle="--", label=f"kill -9: step {killed.killed_at:,}")
    axis.set_title("CartPole-v0: a DQN run that was killed and went on", fontsize=11)
    axis.set_xlabel("environment steps")
    axis.set_ylabel("return of an episode, while exploring")
    axis.set_xlim(left=0)
    axis.set_ylim(0, 210)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper left", fontsize=8)


@contextlib.contextmanager
def _running(
    command: Sequence[str], timeout_s: float
) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]]:
    """A process and what it tells; it ends with the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(timeout_s, end)
    timer.start()
    try:
        if process.stdout is None:
            raise RuntimeError("the process has no output.")
        yield process, _told(process.stdout)
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        if is_late.is_set():
            raise TimeoutError(f"the process took longer than {timeout_s:g} s: {' '.join(command)}")


def _told(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        # A line that a kill cut off has no end.
        if line.startswith("{") and line.endswith("}\n"):
            yield json.loads(line)


def _episodes(told: Sequence[dict[str, Any]]) -> list[FinishedEpisode]:
    return [FinishedEpisode(each["steps"], each["return"]) for each in told if "return" in each]
