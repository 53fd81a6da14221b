"""What the parts of the job found, as a table and as a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

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
      steps: of the environment, or loaded from the dataset.
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


def picture(online: Sequence[PartResult], offline: Sequence[PartResult], recorded: float | None, path: Path) -> None:
    """Writes a PNG: learning curves, fill and replay ratio.

    Args:
      online: the parts that trained on what they collected.
      offline: the parts that trained on the recorded dataset.
      recorded: the average return of the dataset's episodes, or None without a dataset.
      path: the file.
    """
    # Figure without pyplot: it draws with Agg and opens no window.
    from matplotlib.figure import Figure

    # Two colours that colour-blind eyes tell apart; the marker tells the backend as well.
    styles = [("#0072B2", "o"), ("#D55E00", "s")]
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(2, 2)
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
            positions = [point.position for point in result.curve]
            returns = [point.mean_return for point in result.curve]
            axis.plot(positions, returns, color=colour, marker=marker, markersize=4, label=result.name)
        for bar in {result.bar for result in results}:
            axis.axhline(bar, color="0.35", linestyle="--", linewidth=1, label=f"bar: {bar:.0f}")
    if recorded is not None:
        cloning.axhline(
            recorded, color="#009E73", linestyle=":", linewidth=1.5, label=f"recorded episodes: {recorded:.0f}"
        )

    fill.set_title("Fill of the buffer")
    fill.set_ylabel("held / capacity, %")
    ratio.set_title("Replay ratio")
    ratio.set_ylabel("samples per insert")
    for axis in (fill, ratio):
        axis.set_xlabel("time since the part began, s")
    for result, (colour, _) in zip(online, styles, strict=False):
        seconds = [point.seconds for point in result.buffer_points]
        fill.plot(seconds, [100 * point.fill_share for point in result.buffer_points], color=colour, label=result.name)
        ratios = [point.samples_per_insert or 0.0 for point in result.buffer_points]
        ratio.plot(seconds, ratios, color=colour, label=result.name)

    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="lower right")
        else:
            axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", color="0.5")
        axis.set_xlim(left=0)
    for axis in (fill, ratio):
        axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)
