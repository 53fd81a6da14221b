"""What the parts of the job found, as a table and as a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """What was seen at one evaluation.

    Attributes:
      position: environment steps (online), or updates (offline), by then.
      mean_return: of the greedy policy.
      updates: of the network, by then.
      fill_share: how full the buffer was, 0 to 1.
      samples_per_insert: draws so far by frames added so far; None while nothing was drawn.
      seconds: since the part began.
    """

    position: int
    mean_return: float
    updates: int
    fill_share: float
    samples_per_insert: float | None
    seconds: float


@dataclasses.dataclass(frozen=True)
class Curve:
    """The points of one training, and what their positions count."""

    unit: str
    points: list[CurvePoint]


@dataclasses.dataclass(frozen=True)
class PartResult:
    """One part of the job.

    Attributes:
      name: as the table and the picture call it.
      steps: of the environment, or loaded from the dataset.
      updates: of the network.
      mean_return: of 20 greedy episodes.
      bar: what the return had to reach.
      samples_per_insert: draws by frames added.
      adds_per_second: steps by the seconds in which they came; online those of the training
        itself are among them, the evaluation's are not.
      batches_per_second: updates by the same seconds; offline by those of the training.
      seconds: of the whole part.
      curve: the evaluations.
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
    curve: Curve

    @property
    def is_met(self) -> bool:
        """Whether the return reached the bar."""
        return self.mean_return >= self.bar


def table(results: Sequence[PartResult]) -> str:
    """The results as text, a line a part.

    >>> result = PartResult("dqn", 9000, 8000, 198.4, 195.0, 113.8, 640.0, 570.0, 16.2, Curve("frames", []))
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


def picture(online: Sequence[PartResult], offline: Sequence[PartResult], recorded: float | None, path: Path) -> None:
    """Writes a PNG: learning curves, fill and replay ratio.

    Args:
      online: the parts that trained on what they collected.
      offline: the parts that trained on the recorded dataset.
      recorded: the average return of the dataset's episodes, or None without a dataset.
      path: the file.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Two colours that colour-blind eyes tell apart; the marker tells the backend as well.
    styles = [("#0072B2", "o"), ("#D55E00", "s")]
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), constrained_layout=True)
    figure.suptitle("CartPole-v0: one agent, two backends", fontsize=14)
    learning, cloning, fill, ratio = axes.flat

    learning.set_title("DQN, online")
    learning.set_xlabel("environment steps")
    cloning.set_title("Behavioural cloning, from the RLDS dataset")
    cloning.set_xlabel("updates")
    for axis, results in ((learning, online), (cloning, offline)):
        axis.set_ylabel("return, mean of 20 greedy episodes")
        axis.set_ylim(0, 210)
        for result, (colour, marker) in zip(results, styles, strict=False):
            positions = [point.position for point in result.curve.points]
            returns = [point.mean_return for point in result.curve.points]
            axis.plot(positions, returns, color=colour, marker=marker, markersize=4, label=result.name)
        for bar in {result.bar for result in results}:
            axis.axhline(bar, color="0.35", linestyle="--", linewidth=1, label=f"bar: {bar:.0f}")
    if recorded is not None:
        cloning.axhline(
            recorded, color="#009E73", linestyle=":", linewidth=1.5, label=f"recorded episodes: {recorded:.0f}"
        )

    fill.set_title("Fill")
    fill.set_ylabel("held / capacity, %")
    ratio.set_title("Replay ratio")
    ratio.set_ylabel("samples per insert")
    for axis in (fill, ratio):
        axis.set_xlabel("time since the part began, s")
    for result, (colour, marker) in zip(online, styles, strict=False):
        points = result.curve.points
        seconds = [point.seconds for point in points]
        shares = [100 * point.fill_share for point in points]
        fill.plot(seconds, shares, color=colour, marker=marker, markersize=4, label=result.name)
        ratios = [float("nan") if point.samples_per_insert is None else point.samples_per_insert for point in points]
        ratio.plot(seconds, ratios, color=colour, marker=marker, markersize=4, label=result.name)

    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="lower right")
        else:
            axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", color="0.5")
    for axis in (fill, ratio):
        axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)
    plt.close(figure)
