"""What a check of a dataset found: a table for people, JSON for scripts, a picture."""

from __future__ import annotations

import dataclasses
import json
import os
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from .rlds_check_alignment import Alignment
from .rlds_check_findings import RldsFinding
from .rlds_check_statistics import Distribution, FieldSummary
from .rlds_steps import FLAGS

_WIDTH = 100
_PATH_WIDTH = 32
_MARK = {"decision": "!", "note": "-"}


@dataclasses.dataclass(frozen=True)
class LoadForecast:
    """What `load_rlds` would give with one `on_bad_episode`.

    Attributes:
      episodes: that it would deliver; with `'error'` those before it stops.
      transitions: in them.
      dropped, repaired: episodes that it would leave out or change.
      error: where it would stop, in its own words; None when it would not.
    """

    episodes: int = 0
    transitions: int = 0
    dropped: int = 0
    repaired: int = 0
    error: str | None = None

    def __str__(self) -> str:
        counts = f"{self.episodes:,} episodes, {self.transitions:,} transitions"
        if self.error is not None:
            return f"stops: {self.error}" + (f" (after {counts})" if self.episodes else "")
        return f"{counts} ({self.dropped:,} dropped, {self.repaired:,} repaired)"


@dataclasses.dataclass(frozen=True)
class RldsReport:
    """What `validate_rlds` found; `str` of it is a table of at most 100 columns.

    Statistics of action, reward and discount are over transitions: the last step's, which
    mean nothing, are left out. All others are over all steps.

    Attributes:
      source: the dataset's name.
      episodes: that were read.
      steps: in them.
      transitions: in them, one less than steps where an episode has any.
      is_complete: all episodes were read; False where `limit` ended the pass.
      ends: episodes by kind of end: `'terminal'`, `'truncated'`, `'cut'` (neither `is_terminal` nor
        `is_last` on the last step), `'unknown'`, `'empty'`.
      lengths: steps of an episode; None without episodes.
      returns: sums of the rewards of an episode's transitions; None without rewards.
      alignment: a guess about actions and rewards.
      fields: a summary of each field of a step.
      metadata: the same for the episodes' own fields.
      findings: one or more for each check, those that found nothing included.
      loading: for each `on_bad_episode` what `load_rlds` would give.
      seconds: that the pass took.
    """

    source: str
    episodes: int
    steps: int
    transitions: int
    is_complete: bool
    ends: Mapping[str, int]
    lengths: Distribution | None
    returns: Distribution | None
    alignment: Alignment
    fields: tuple[FieldSummary, ...]
    metadata: tuple[FieldSummary, ...]
    findings: tuple[RldsFinding, ...]
    loading: Mapping[str, LoadForecast]
    seconds: float

    @property
    def needs_decision(self) -> bool:
        """A finding is one that the user has to decide about."""
        return any(each.severity == "decision" for each in self.findings)

    @property
    def steps_per_second(self) -> float:
        """Steps a second of `seconds`; 0 when no time was taken."""
        return self.steps / self.seconds if self.seconds else 0.0

    def found(self, check: str) -> tuple[RldsFinding, ...]:
        """The findings of one check; empty when it found nothing."""
        return tuple(each for each in self.findings if each.check == check and each.severity != "ok")

    def to_dict(self) -> dict[str, Any]:
        """All of it as dicts, lists, strings and finite numbers; `None` where there is no number."""
        content = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        for each, plain in zip(self.findings, content["findings"], strict=True):
            plain["loading"] = each.loading._asdict()
        return {**content, "needs_decision": self.needs_decision}

    def to_json(self) -> str:
        """`to_dict` as strict JSON: no NaN, no infinity."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def save_picture(self, path: str | os.PathLike[str]) -> None:
        """Writes histograms of lengths, returns, rewards and each action dimension, as the file's ending says.

        Raises:
          ImportError: Matplotlib is missing.
          ValueError: Matplotlib knows no such kind of file.
        """
        from .rlds_check_picture import draw_report

        draw_report(self, os.fspath(path))

    def __str__(self) -> str:
        return "\n".join(line for part in (self._head(), self._tables(), self._tail()) for line in part)

    def _head(self) -> Iterator[str]:
        part = "" if self.is_complete else ", a part of them"
        yield from _wrap(
            "",
            f"{self.source}: {self.episodes:,} episodes{part}, {self.steps:,} steps, {self.transitions:,} transitions "
            f"({self.seconds:.2f} s, {self.steps_per_second:,.0f} steps/s)",
        )
        ends = ", ".join(f"{count:,} {kind}" for kind, count in self.ends.items()) or "none"
        yield from _row("ends", ends)
        for name, found, unit in (("lengths", self.lengths, " steps"), ("returns", self.returns, "")):
            if found is not None:
                numbers = (("min", found.min), ("median", found.median), ("mean", found.mean), ("max", found.max))
                yield from _row(name, ", ".join(f"{key} {_short(value)}" for key, value in numbers) + unit)
        yield from _row("alignment", str(self.alignment))

    def _tables(self) -> Iterator[str]:
        # Of the flags the ends tell all.
        fields = tuple(each for each in self.fields if each.path not in FLAGS)
        for title, summaries in (("fields of a step", fields), ("fields of an episode", self.metadata)):
            if summaries:
                yield ""
                yield (f"{title:<{_PATH_WIDTH}}  {'values':<18}" + "".join(f"{name:>11}" for name in _COLUMNS)).rstrip()
                for summary in summaries:
                    yield from _field_rows(summary)

    def _tail(self) -> Iterator[str]:
        yield ""
        yield "findings (! needs a decision, - is good to know)"
        found = [each for each in self.findings if each.severity != "ok"]
        for each in sorted(found, key=lambda each: each.severity != "decision"):
            yield from _wrap(f"  {_MARK[each.severity]} ", str(each))
            yield from _wrap("      load_rlds ", str(each.loading))
        num_ok = sum(1 for each in self.findings if each.severity == "ok")
        yield f"  {num_ok} checks found nothing"
        yield ""
        yield "load_rlds with on_bad_episode="
        for mode, forecast in self.loading.items():
            yield from _wrap(f"  {mode!r:<12}", str(forecast))
        yield ""
        decisions = sum(1 for each in found if each.severity == "decision")
        if decisions:
            yield f"{decisions} {'finding needs' if decisions == 1 else 'findings need'} a decision"
        else:
            yield "nothing needs a decision"


_COLUMNS = ("min", "max", "mean", "std")


def _row(name: str, text: str) -> Iterator[str]:
    yield from _wrap(f"  {name:<12}", text)


def _wrap(head: str, text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, _WIDTH - len(head), break_on_hyphens=False) or [""]
    yield head + lines[0]
    for line in lines[1:]:
        yield " " * len(head) + line


def _field_rows(summary: FieldSummary) -> Iterator[str]:
    path = f"  {summary.path}"
    if len(path) > _PATH_WIDTH:
        yield path[:_WIDTH]
        path = ""
    values = summary.values if len(summary.values) <= 21 else f"{summary.values[:18]}..."
    head = f"{path:<{_PATH_WIDTH}}  {values:<18}"
    if summary.longest is not None:
        many = "or more " if summary.distinct == 1000 else ""
        text = f"{summary.count:,} strings, {summary.distinct:,} {many}different, longest {summary.longest:,} bytes"
        yield from _wrap(head + "  ", text)
    else:
        numbers = (summary.min, summary.max, summary.mean, summary.std)
        yield (head + "".join(f"{_short(number):>11}" for number in numbers)).rstrip()
    remarks = []
    if summary.nan or summary.infinite:
        remarks.append(f"{summary.nan:,} NaN, {summary.infinite:,} infinite")
    if summary.rows is not None:
        remarks.append("rows of {} to {}, mean {}".format(*(_short(summary.rows[index]) for index in (0, 2, 1))))
    if len(summary.shapes) > 1:
        remarks.append(f"shapes {', '.join(map(str, summary.shapes))}, ...")
    for remark in remarks:
        yield from _wrap(" " * (_PATH_WIDTH + 4), remark)


def _short(number: float | int | None) -> str:
    """At most ten characters, with four digits that count."""
    if number is None:
        return "-"
    if number == int(number) and abs(number) < 1e7:
        return f"{int(number):,}"
    return f"{number:.4g}"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
