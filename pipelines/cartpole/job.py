"""The five parts in order, the table and the picture."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from pathlib import Path

from replayfeed.pipelines.pendulum import job as pendulum_job
from replayfeed.pipelines.pendulum.recording import record as record_pendulum

from . import killed_job, local_job, offline_job, served_job
from .dqn import DqnSettings
from .report import PartResult, RecordedReturns, picture, table

PARTS = ("local", "served", "offline", "pendulum", "killed")


def run_parts(parts: Collection[str], seed: int, output: Path) -> bool:
    """Runs the parts and prints what they found; whether each reached its bar.

    Args:
      parts: out of `PARTS`; `'offline'` needs `'local'`, whose agent it records.
      seed: of environments, networks and draws.
      output: folder for the picture and the recorded datasets.

    Raises:
      ValueError: there is no part, one is unknown, or `'offline'` comes without `'local'`.
    """
    unknown = sorted(set(parts) - set(PARTS))
    if unknown or not parts:
        raise ValueError(f"parts must be some of {', '.join(PARTS)}, got {', '.join(parts) or 'none'}.")
    if "offline" in parts and "local" not in parts:
        raise ValueError("part 'offline' records the agent of part 'local': run both.")
    started = time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    settings, cloning = DqnSettings(), offline_job.CloningSettings()
    online: list[PartResult] = []
    offline: list[PartResult] = []
    recording: offline_job.Recording | None = None
    pendulum: list[PartResult] = []
    pendulum_data: RecordedReturns | None = None

    if "local" in parts:
        _announce("(a) DQN learns CartPole-v0 through the in-process buffer")
        result, learner = local_job.run(settings, seed)
        online.append(result)
    if "served" in parts:
        _announce("(b) the same agent, fed by a Reverb server with two collector processes")
        online.append(served_job.run(settings, seed))
    if "offline" in parts:
        _announce("(c) an RLDS dataset recorded from the agent of (a), cloned from each buffer")
        folder = output / "cartpole_rlds"
        shutil.rmtree(folder, ignore_errors=True)
        recording = offline_job.record(learner, cloning, seed, folder)
        print(f"{recording.num_episodes} episodes, average return {recording.mean_return:.1f}, in {folder}", flush=True)
        offline += offline_job.run(recording, cloning, seed)
    if "pendulum" in parts:
        _announce("(d) Pendulum-v1, an RLDS dataset of good and bad episodes: cloning all of it, CQL from each buffer")
        folder = output / "pendulum_rlds"
        shutil.rmtree(folder, ignore_errors=True)
        recorded_pendulum = record_pendulum(folder, seed)
        pendulum_data = RecordedReturns(recorded_pendulum.returns.tolist(), recorded_pendulum.random_return)
        print(
            f"{len(pendulum_data.episodes)} episodes, average return {pendulum_data.mean:.1f}, "
            f"random actions {pendulum_data.random:.1f}, in {folder}",
            flush=True,
        )
        pendulum += pendulum_job.run(recorded_pendulum, seed)
    killed: killed_job.KilledRun | None = None
    if "killed" in parts:
        _announce("(e) DQN on CartPole in a process that is killed with SIGKILL, and goes on in another one")
        folder = output / "cartpole_run"
        shutil.rmtree(folder, ignore_errors=True)
        killed = killed_job.run(folder, seed)
        print(f"{killed}; return {killed.mean_return():.1f} in the end", flush=True)
        killed_job.picture(killed, output / "cartpole_killed.png")

    results = [*online, *offline, *pendulum]
    pictures = []
    if results:
        pictures.append(output / "cartpole.png")
        recorded = recording.mean_return if recording else None
        picture(online, offline, recorded, pictures[0], pendulum=pendulum, pendulum_data=pendulum_data)
        print(f"\n{table(results)}\n")
    if killed:
        pictures.append(output / "cartpole_killed.png")
    failures = [
        f"{result.name}: return {result.mean_return:.1f}, bar {result.bar:.0f}"
        for result in results
        if not result.is_met
    ]
    if recording and recording.mean_return < cloning.recorded_bar:
        failures.append(f"recorded episodes: return {recording.mean_return:.1f}, bar {cloning.recorded_bar:.0f}")
    if killed and not killed.is_same:
        failures.append("killed run: frames or weights are not as they were saved")
    if killed and killed.mean_return() < killed_job.BAR:
        failures.append(f"killed run: return {killed.mean_return():.1f}, bar {killed_job.BAR:.0f}")
    for path in pictures:
        print(f"Picture: {path}")
    print(f"{time.perf_counter() - started:.0f} seconds in all.")
    for failure in failures:
        print(f"Bar missed: {failure}")
    return not failures


def _announce(text: str) -> None:
    print(f"\n{text}", flush=True)
