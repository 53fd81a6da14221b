"""Draws what a check of a dataset found: histograms of lengths, returns, rewards and actions."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

from .rlds_check_statistics import Distribution, FieldSummary, Histogram

if TYPE_CHECKING:
    from .rlds_check_report import RldsReport

_COLUMNS = 3
_MAX_ACTIONS = 24
_EPISODES_COLOUR, _REWARD_COLOUR, _ACTION_COLOUR = "#4477aa", "#228833", "#aa7744"

_Panel = tuple[str, str, str, Histogram, str, str]


def draw_report(report: RldsReport, path: str) -> None:
    """Writes the picture; `RldsReport.save_picture` tells of it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a picture needs Matplotlib: pip install matplotlib.") from error
    panels = [*_episode_panels(report), *_reward_panels(report.fields), *_action_panels(report.fields)]
    num_rows = max(-(-len(panels) // _COLUMNS), 1)
    # A Figure of its own needs no display, and leaves the caller's backend alone.
    figure = Figure(figsize=(4.2 * _COLUMNS, 2.9 * num_rows + 0.9), dpi=100, layout="constrained")
    ends = ", ".join(f"{count:,} {kind}" for kind, count in report.ends.items())
    # Names may hold a '$', which would make a formula of what follows.
    figure.suptitle(
        f"{report.source}\n{report.episodes:,} episodes ({ends}), {report.transitions:,} transitions", parse_math=False
    )
    for index, panel in enumerate(panels):
        _draw(figure.add_subplot(num_rows, _COLUMNS, index + 1), panel)
    if not panels:
        figure.text(0.5, 0.4, "no numbers to draw", ha="center")
    figure.savefig(path)


def _episode_panels(report: RldsReport) -> list[_Panel]:
    panels = []
    for title, unit, found in (
        ("episode length", "steps", report.lengths),
        ("episode return (undiscounted)", "sum of rewards", report.returns),
    ):
        if found is not None:
            panels.append((title, unit, "episodes", found.histogram, _median(found), _EPISODES_COLOUR))
    return panels


def _median(found: Distribution) -> str:
    return f"median {found.median:,.4g}, mean {found.mean:,.4g}"


def _reward_panels(fields: tuple[FieldSummary, ...]) -> list[_Panel]:
    return [
        (title, "reward of a transition", "transitions", histogram, note, _REWARD_COLOUR)
        for summary in fields
        if summary.path == "reward"
        for title, histogram, note in _elements(summary)
    ]


def _action_panels(fields: tuple[FieldSummary, ...]) -> list[_Panel]:
    elements = [
        element for summary in fields if summary.path.split("/")[0] == "action" for element in _elements(summary)
    ]
    panels = [
        (title, "value", "transitions", histogram, note, _ACTION_COLOUR)
        for title, histogram, note in elements[:_MAX_ACTIONS]
    ]
    if len(elements) > _MAX_ACTIONS:
        title, *rest = panels[-1]
        panels[-1] = (f"{title} (first {_MAX_ACTIONS} of {len(elements):,} elements)", *rest)  # type: ignore[assignment]
    return panels


def _elements(summary: FieldSummary) -> list[tuple[str, Histogram, str]]:
    if len(summary.histogram) == 1 or (summary.histogram and not summary.element_mean):
        # Without a finite value in any element there is nothing to tell them apart by.
        note = "" if summary.mean is None else f"mean {summary.mean:,.4g}, std {summary.std or 0:,.4g}"
        return [(summary.path, summary.histogram[0], note)]
    return [
        (f"{summary.path}[{index}]", histogram, "" if mean is None else f"mean {mean:,.4g}, std {std or 0:,.4g}")
        for index, (histogram, mean, std) in enumerate(
            zip(summary.histogram, summary.element_mean, summary.element_std, strict=True)
        )
    ]


def _draw(axes: Any, panel: _Panel) -> None:
    title, unit, what, histogram, note, colour = panel
    if histogram.counts:
        _draw_bars(axes, _coarser(histogram), colour)
    else:
        # A mean is there: values that no bin can hold.
        why = "values too large to draw" if note else "no finite value"
        axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, fontsize=9)
        axes.set_xticks([])
        axes.set_ylim(0, 1)
    axes.set_title("\n".join(textwrap.wrap(title, 44)), fontsize=10, parse_math=False)
    axes.set_xlabel(f"{unit}   ({note})" if note else unit, fontsize=8)
    axes.set_ylabel(what, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bars(axes: Any, histogram: Histogram, colour: str) -> None:
    edges = histogram.edges()
    if len(histogram.counts) == 1:
        # One bin may be a millionth wide: a single value deserves a bar that can be seen.
        middle = (edges[0] + edges[1]) / 2
        half = max(abs(middle) * 0.05, 0.5)
        axes.bar([middle], histogram.counts, width=half / 2, color=colour)
        axes.set_xlim(middle - half, middle + half)
        return
    middles = [edge + histogram.width / 2 for edge in edges[:-1]]
    axes.bar(middles, histogram.counts, width=histogram.width, color=colour, edgecolor="white", linewidth=0.4)
    if histogram.width == 1 and len(middles) <= 12 and all(middle.is_integer() for middle in middles):
        # A bin for each whole number: action 0, action 1, ...
        axes.set_xticks(middles)


def _coarser(histogram: Histogram) -> Histogram:
    """The same counts in so few bins that they make a shape: about the root of the count, 20 to 64."""
    most = min(max(math.isqrt(sum(histogram.counts)), 20), 64)
    factor = -(-len(histogram.counts) // most)
    counts = tuple(sum(histogram.counts[start : start + factor]) for start in range(0, len(histogram.counts), factor))
    return Histogram(histogram.start, histogram.width * factor, counts)
