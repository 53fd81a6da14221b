"""What the parts of the job found, as a table and as a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .monitor import BufferPoint


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """One evaluation.

    Attributes:
      position: environment steps (online), or updates (offline), by then.
      mean_return: of the greedy policy.
    """

    position: int
    mean_return: float


@dataclasses.dataclass(frozen=True)
class PartResult:
    """One part of the job.

    Attributes:
      name: as the table and the picture call it.
      steps: of the environment, or frames loaded from the dataset.
      updates: of the network.
      mean_return: of 20 greedy episodes.
      bar: what the return had to reach.
      samples_per_insert: draws by frames added.
      adds_per_second: steps by the seconds in which they came: online those of playing and
        training, without the start and the evaluations; offline those of loading.
      batches_per_second: updates by the seconds in which they came: online the same, offline
        those of training.
      seconds: of the whole part.
      curve: the evaluations.
      buffer_points: what the buffer told meanwhile.
    """

    name: str
    steps: int
    updates: int
    mean_return: float
    bar: float
    samples_per_insert: float | None
    adds_per_second: float
    batches_per_second: float
    seconds: float
    curve: list[CurvePoint]
    buffer_points: list[BufferPoint]

    @property
    def is_met(self) -> bool:
        """Whether the return reached the bar."""
        return self.mean_return >= self.bar


@dataclasses.dataclass(frozen=True)
class RecordedReturns:
    """What agents that learn from a dataset are compared with.

    Attributes:
      episodes: the return of each episode of the dataset.
      random: the average return of random actions.
    """

    episodes: Sequence[float]
    random: float

    @property
    def mean(self) -> float:
        """The average of the dataset's episodes."""
        return float(sum(self.episodes)) / len(self.episodes)


# Colours that colour-blind eyes tell apart; the marker tells the backend as well.
_STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#CC79A7", "^"))


def table(results: Sequence[PartResult]) -> str:
    """The results as text, a line a part.

    >>> result = PartResult("dqn", 9000, 8000, 198.4, 195.0, 113.8, 640.0, 570.0, 16.2, [], [])
    >>> print(table([result]))
    part  steps  updates  return  bar  samples per insert  adds/s  batches/s  seconds  bar met
    dqn   9,000    8,000   198.4  195               113.8     640        570       16  yes
    """
    header = (
        "part", "steps", "updates", "return", "bar", "samples per insert", "adds/s", "batches/s", "seconds", "bar met",
    )  # fmt: skip
    rows = [header, *(_row(result) for result in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    last = len(header) - 1
    lines = [
        "  ".join(cell.ljust(width) if i in (0, last) else cell.rjust(width) for i, (cell, width) in enumerate(line))
        for line in ([*zip(row, widths, strict=True)] for row in rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def _row(result: PartResult) -> tuple[str, ...]:
    ratio = "-" if result.samples_per_insert is None else f"{result.samples_per_insert:.1f}"
    return (
        result.name,
        f"{result.steps:,}",
        f"{result.updates:,}",
        f"{result.mean_return:.1f}",
        f"{result.bar:.0f}",
        ratio,
        f"{result.adds_per_second:,.0f}",
        f"{result.batches_per_second:,.0f}",
        f"{result.seconds:.0f}",
        "yes" if result.is_met else "NO",
    )


def picture(
    online: Sequence[PartResult],
    offline: Sequence[PartResult],
    recorded: float | None,
    path: Path,
    *,
    pendulum: Sequence[PartResult] = (),
    pendulum_data: RecordedReturns | None = None,
) -> None:
    """Writes a PNG: learning curves, fill and replay ratio, and the dataset of mixed quality.

    Args:
      online: the parts that trained on what they collected.
      offline: the parts that cloned the recorded dataset.
      recorded: the average return of that dataset's episodes, or None without one.
      path: the file.
      pendulum: the parts that trained on the pendulum's dataset.
      pendulum_data: the returns of that dataset, or None without one.
    """
    # Figure without pyplot: it draws with Agg and opens no window.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 8), layout="constrained")
    axes = figure.subplots(2, 3)
    figure.suptitle("CartPole-v0 and Pendulum-v1: online and offline, two backends", fontsize=14)
    (learning, cloning, continuous), (fill, ratio, dataset) = axes

    for axis, title, position in (
        (learning, "CartPole: DQN, online", "environment steps"),
        (cloning, "CartPole: cloning, from the RLDS dataset", "updates"),
        (continuous, "Pendulum: offline, from a dataset of good and bad episodes", "updates"),
    ):
        axis.set_title(title, fontsize=11)
        axis.set_xlabel(position)
        axis.set_ylabel("return, mean of 20 greedy episodes")
    for axis, results in ((learning, online), (cloning, offline), (continuous, pendulum)):
        _plot_curves(axis, results)
    for axis in (learning, cloning):
        axis.set_ylim(0, 210)
    if recorded is not None:
        _plot_level(cloning, recorded, f"recorded episodes: {recorded:.0f}")
    if pendulum_data is not None:
        _plot_level(continuous, pendulum_data.mean, f"recorded episodes: {pendulum_data.mean:.0f}")
        _plot_level(continuous, pendulum_data.random, f"random actions: {pendulum_data.random:.0f}", "0.6")
        _plot_dataset(dataset, pendulum, pendulum_data)

    for axis, title, quantity in (
        (fill, "CartPole: fill of the buffer", "held / capacity, %"),
        (ratio, "CartPole: replay ratio", "samples per insert"),
    ):
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("time since the part began, s")
        axis.set_ylabel(quantity)
    for result, (colour, _) in zip(online, _STYLES, strict=False):
        seconds = [point.seconds for point in result.buffer_points]
        fill.plot(seconds, [100 * point.fill_share for point in result.buffer_points], color=colour, label=result.name)
        ratios = [point.samples_per_insert or 0.0 for point in result.buffer_points]
        ratio.plot(seconds, ratios, color=colour, label=result.name)
    dataset.set_title("Pendulum: the dataset's episodes, and what was learnt", fontsize=11)
    dataset.set_xlabel("return")
    dataset.set_ylabel("episodes")

    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="upper left" if axis is dataset else "lower right", fontsize=9)
        else:
            axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", color="0.5")
        if axis is not dataset:
            axis.set_xlim(left=0)
    for axis in (fill, ratio):
        axis.set_ylim(bottom=0)
    # Room for the legends.
    continuous.set_ylim(-2200, 0)
    dataset.set_ylim(0, 1.9 * dataset.get_ylim()[1])
    figure.savefig(path, dpi=120)


def _plot_curves(axis: Any, results: Sequence[PartResult]) -> None:
    for result, (colour, marker) in zip(results, _STYLES, strict=False):
        positions = [point.position for point in result.curve]
        returns = [point.mean_return for point in result.curve]
        axis.plot(positions, returns, color=colour, marker=marker, markersize=4, label=result.name)
    for bar in sorted({result.bar for result in results}):
        _plot_level(axis, bar, f"bar: {bar:.0f}", "0.35", "--")


def _plot_level(axis: Any, level: float, label: str, colour: str = "#009E73", style: str = ":") -> None:
    axis.axhline(level, color=colour, linestyle=style, linewidth=1.5, label=label)


def _plot_dataset(axis: Any, results: Sequence[PartResult], data: RecordedReturns) -> None:
    axis.hist(data.episodes, bins=30, color="0.75", label=f"{len(data.episodes)} recorded episodes")
    axis.axvline(data.mean, color="#009E73", linestyle=":", linewidth=1.5, label=f"their mean: {data.mean:.0f}")
    for result, (colour, _) in zip(results, _STYLES, strict=False):
        axis.axvline(result.mean_return, color=colour, label=f"{result.name}: {result.mean_return:.0f}")
