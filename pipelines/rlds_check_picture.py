"""Draws what a check of a dataset found: histograms of lengths, returns, rewards and actions."""

from __future__ import annotations

import math
import os
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from replayfeed.buffers.nests import Array

from .rlds_check_statistics import Distribution, FieldSummary, Histogram

if TYPE_CHECKING:
    from .rlds_check_report import RldsReport

_COLUMNS = 3
_MAX_ACTIONS = 24
_EPISODES_COLOUR, _REWARD_COLOUR, _ACTION_COLOUR = "#4477aa", "#228833", "#aa7744"

_FEW_VALUES = 12

_Span = tuple[float, float] | None
_Panel = tuple[str, str, str, Histogram, _Span, str, str]


def check_picture_path(path: str | os.PathLike[str]) -> None:
    """Tells, before there is a report, whether a picture can be written there.

    Raises:
      ImportError: Matplotlib is missing.
      FileNotFoundError: there is no such folder.
      IsADirectoryError: it is a folder.
      ValueError: Matplotlib knows no such kind of file.

    >>> check_picture_path("picture.doc")
    Traceback (most recent call last):
    ...
    ValueError: a picture cannot be of the kind '.doc': ...
    """
    _import_figure()
    from matplotlib.backend_bases import FigureCanvasBase

    whole = os.fspath(path)
    folder, ending = os.path.dirname(whole) or ".", os.path.splitext(whole)[1]
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder!r} to write the picture {whole!r} into.")
    if os.path.isdir(whole):
        raise IsADirectoryError(f"{whole!r} is a folder: name the picture in it, as 'picture.png'.")
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if ending and ending[1:].lower() not in known:
        raise ValueError(
            f"a picture cannot be of the kind {ending!r}: {whole!r} has to end in one of {', '.join(known)}."
        )


def _import_figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a picture needs Matplotlib: pip install matplotlib.") from error
    return Figure


def draw_report(report: RldsReport, path: str) -> None:
    """Writes the picture; `RldsReport.save_picture` tells of it."""
    panels = [*_episode_panels(report), *_reward_panels(report.fields), *_action_panels(report.fields)]
    num_rows = max(-(-len(panels) // _COLUMNS), 1)
    # A Figure of its own needs no display, and leaves the caller's backend alone.
    figure = _import_figure()(figsize=(4.2 * _COLUMNS, 2.9 * num_rows + 0.9), dpi=100, layout="constrained")
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
    panels: list[_Panel] = []
    if (found := report.lengths) is not None:
        panels.append(("episode length", "steps", "episodes", found.histogram, None, _median(found), _EPISODES_COLOUR))
    if (found := report.returns) is not None:
        title, unit, span = "episode return (undiscounted)", "sum of rewards", (found.min, found.max)
        panels.append((title, unit, "episodes", found.histogram, span, _median(found), _EPISODES_COLOUR))
    return panels


def _median(found: Distribution) -> str:
    return f"median {found.median:,.4g}, mean {found.mean:,.4g}"


def _reward_panels(fields: tuple[FieldSummary, ...]) -> list[_Panel]:
    return [
        (title, "reward of a transition", "transitions", histogram, span, note, _REWARD_COLOUR)
        for summary in fields
        if summary.path == "reward"
        for title, histogram, span, note in _elements(summary)
    ]


def _action_panels(fields: tuple[FieldSummary, ...]) -> list[_Panel]:
    elements = [
        element for summary in fields if summary.path.split("/")[0] == "action" for element in _elements(summary)
    ]
    panels = [
        (title, "value", "transitions", histogram, span, note, _ACTION_COLOUR)
        for title, histogram, span, note in elements[:_MAX_ACTIONS]
    ]
    if len(elements) > _MAX_ACTIONS:
        title, *rest = panels[-1]
        panels[-1] = (f"{title} (first {_MAX_ACTIONS} of {len(elements):,} elements)", *rest)  # type: ignore[assignment]
    return panels


def _elements(summary: FieldSummary) -> list[tuple[str, Histogram, _Span, str]]:
    if len(summary.histogram) == 1 or (summary.histogram and not summary.element_mean):
        # Without a finite value in any element there is nothing to tell them apart by.
        note = "" if summary.mean is None else f"mean {summary.mean:,.4g}, std {summary.std or 0:,.4g}"
        return [(summary.path, summary.histogram[0], _span(summary, summary.min, summary.max), note)]
    return [
        (
            f"{summary.path}[{index}]",
            histogram,
            _span(summary, low, high),
            "" if mean is None else f"mean {mean:,.4g}, std {std or 0:,.4g}",
        )
        for index, (histogram, low, high, mean, std) in enumerate(
            zip(
                summary.histogram,
                summary.element_min,
                summary.element_max,
                summary.element_mean,
                summary.element_std,
                strict=True,
            )
        )
    ]


def _span(summary: FieldSummary, low: float | None, high: float | None) -> _Span:
    """Where bars begin and end; whole numbers stand in the midst of theirs."""
    is_whole = summary.dtype == "bool" or "int" in summary.dtype
    return None if is_whole or low is None or high is None else (low, high)


def _draw(axes: Any, panel: _Panel) -> None:
    title, unit, what, histogram, span, note, colour = panel
    if histogram.counts:
        _draw_bars(axes, histogram, span, colour)
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


def _draw_bars(axes: Any, histogram: Histogram, span: _Span, colour: str) -> None:
    middles, widths, heights = bars_of(histogram, span)
    if len(heights) == 1:
        # One bin may be a millionth wide: a single value deserves a bar that can be seen.
        middle = float(middles[0])
        half = max(abs(middle) * 0.05, 0.5)
        axes.bar([middle], heights, width=half / 2, color=colour)
        axes.set_xlim(middle - half, middle + half)
        return
    axes.bar(middles, heights, width=widths, color=colour, edgecolor="white", linewidth=0.4)
    if span is None and histogram.width == 1 and len(histogram.counts) == len(heights) <= _FEW_VALUES:
        # A bin for each whole number: action 0, action 1, ...
        axes.set_xticks(middles)


def bars_of(histogram: Histogram, span: _Span) -> tuple[Array, Array, Array]:
    """The bars to draw: so few that they make a shape, about the root of the count, 20 to 64.

    Bins go on beyond the range of what they count, where a bar would be half empty, and would
    show values that are not there. So the bars end with the range, and the counts of a bin are
    dealt out to those that it touches, as if they lay evenly in it. A few different values have a
    narrow bar each.

    Args:
      histogram: at least one bin.
      span: the least and the greatest value; None of whole numbers, which stand in the midst of their bins.

    Returns:
      Middles, widths and heights.

    >>> middles, widths, heights = bars_of(Histogram(0.0, 1.0, (4,) * 20 + (2,)), (0.0, 20.5))
    >>> (middles[-1] + widths[-1] / 2).round(6), heights[0].round(6) == heights[-1].round(6)
    (20.5, True)
    """
    most = min(max(math.isqrt(sum(histogram.counts)), 20), 64)
    counts = np.array(histogram.counts, np.float64)
    edges = np.array(histogram.edges())
    filled = np.flatnonzero(counts)
    if span is None:
        factor = -(-len(counts) // most)
        heights = np.add.reduceat(counts, np.arange(0, len(counts), factor))
        widths = np.full([len(heights)], histogram.width * factor)
        return edges[0] + widths * (np.arange(len(heights)) + 0.5), widths, heights
    low, high = max(span[0], edges[0]), min(span[1], edges[-1])
    inside = edges.clip(low, high)
    if len(filled) <= _FEW_VALUES:
        middles = ((inside[:-1] + inside[1:]) / 2)[filled]
        return middles, np.full([len(filled)], (high - low) / most), counts[filled]
    even = np.linspace(low, high, min(most, len(counts)) + 1)
    heights = np.diff(np.interp(even, inside, np.concatenate([[0.0], counts.cumsum()])))
    return (even[:-1] + even[1:]) / 2, np.diff(even), heights
