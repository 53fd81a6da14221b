"""The results as a table for people, and what they were measured on."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Iterator, Sequence
from typing import Any

_PACKAGES = ("replayfeed", "tensorflow", "tf-agents", "dm-reverb", "numpy")
_HEADINGS = ("measure", "ours", "against", "theirs", "ratio", "quiet", "by CPU", "bar", "met")


def machine() -> dict[str, Any]:
    """Date, processor and versions."""
    return {
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def table(report: dict[str, Any]) -> str:
    """Markdown: the machine, then a line for each bar, then what was measured beside it."""
    about = report["machine"]
    versions = ", ".join(f"{name} {about[name]}" for name in ("python", *_PACKAGES))
    head = f"{about['date']}; {about['processor']}, {about['cores']} cores, load {about['load']:.1f}; {versions}"
    lines = [cells for row in report["rows"] for cells in _bar_lines(row)]
    beside = [cells for row in report["rows"] for cells in _beside_lines(row)]
    parts = [head, _markdown(_HEADINGS, lines)]
    if beside:
        parts.append("Measured beside them:")
        parts.append(_markdown(("measure", "contender", "median", "us CPU each", "others"), beside))
    notes = [f"{row['measure']}: {row['note']}" for row in report["rows"] if row["note"]]
    failures = [f"FAILED {name}: {error}" for name, error in report["failures"].items()]
    return "\n\n".join([*parts, *notes, *failures])


def _bar_lines(row: dict[str, Any]) -> Iterator[Sequence[str]]:
    for bar in row["bars"]:
        sign = "<=" if bar["at_most"] else ">="
        value = _number(bar["value"]) if bar["difference"] else f"{_number(bar['value'])} x"
        yield (
            row["measure"],
            _median(row, row["ours"]),
            bar["against"],
            _median(row, bar["against"]),
            f"{value} (IQR {_number(bar['iqr'])})",
            f"{_number(bar['quiet'])} x ({bar['quiet_others']:.0%})" if "quiet" in bar else "",
            f"{_number(bar['by_cpu'])} x" if "by_cpu" in bar else "",
            f"{sign} {bar['bound']:g}{'' if bar['difference'] else ' x'}{' (aim)' if bar['aim'] else ''}",
            "yes" if bar["met"] else "NO" if not bar["aim"] else "no",
        )


def _beside_lines(row: dict[str, Any]) -> Iterator[Sequence[str]]:
    for name, one in row["contenders"].items():
        if "cpu_us" in one:
            yield row["measure"], name, _median(row, name), _number(one["cpu_us"]), f"{one['others']:.0%}"
    for name, reason in row["not_measured"].items():
        yield row["measure"], name, f"not measured: {reason}", "", ""


def _median(row: dict[str, Any], name: str) -> str:
    one = row["contenders"][name]
    spread = f" ±{one['iqr'] / one['median'] / 2:.0%}" if one["samples"] > 1 else ""
    return f"{_number(one['median'])} {row['unit']}{spread}"


def _number(value: float) -> str:
    """Three significant digits, thousands with a comma.

    >>> _number(1234567.0), _number(0.1234), _number(12.34)
    ('1,230,000', '0.123', '12.3')
    """
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def _markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cells[column]) for cells in (headings, *lines)) for column in range(len(headings))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
        for cells in (headings, rule, *lines)
    )


def _processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
