"""Checks a whole dataset of episodes before anybody trains on it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import field_path

from .episode_source import EpisodeSource, RawEpisode
from .progress_bar import progress_bar
from .rlds_check_episodes import TRANSITION_FIELDS, EpisodeChecks, leaves_of
from .rlds_check_findings import RldsFinding, finding, in_order
from .rlds_check_report import LoadForecast, RldsReport
from .rlds_check_statistics import Distribution, FieldStatistics, FieldSummary
from .rlds_fields import plan_fields
from .rlds_open import Source, open_source
from .rlds_steps import (
    ACTION,
    DISCOUNT,
    FLAGS,
    LOADED_FIELDS,
    OBSERVATION,
    REWARD,
    check_step_spec,
    find_fault,
    num_steps_of,
    unset_flags,
)

_Path = tuple[str, ...]

_ENDLESS = int(tf.data.INFINITE_CARDINALITY)


def validate_rlds(
    source: Source,
    *,
    split: str | None = None,
    limit: int | None = None,
    progress: bool = True,
) -> RldsReport:
    """Reads a dataset once, and reports what is in it, what is wrong, and what `load_rlds` does about it.

    Memory stays bounded: the episodes at hand, and some 50 bytes for each that was read. A
    dataset that `load_rlds` refuses (no `is_terminal`, an observation of varying length) is
    checked all the same; the refusal is one of the findings.

    Args:
      source: whatever `load_rlds` takes: a name, folder, files, dataset, ... Of an `EpisodeSource`, or of
        `Episodes`, the fields that it was opened with are checked.
      split: of a name or folder, by default `'train'`.
      limit: episodes to read; None for all.
      progress: a bar on stderr.

    Returns:
      `str` of it is a table, `to_json()` is for scripts, `needs_decision` tells whether a finding is one
      that the user has to decide about.

    Raises:
      ValueError: `limit` is less than 1.
      ValueError: the dataset is endless, and there is no `limit`.
      TypeError, FileNotFoundError, ImportError, ValueError: the source cannot be opened, as of `load_rlds`.
      ValueError: an episode cannot be read; the message names it.

    >>> steps = {"observation": [0.5, 1.5, 2.5], "is_terminal": [False, True, True]}
    >>> report = validate_rlds(tf.data.Dataset.from_tensors({"steps": steps}), progress=False)
    >>> report.needs_decision, str(report.found("terminal_early")[0])
    (True, 'is_terminal is set before the last step: 1 episode (0)')
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be 1 or more episodes, or None for all, got {limit}.")
    if limit is None and isinstance(source, tf.data.Dataset) and int(source.cardinality()) == _ENDLESS:
        raise ValueError("the dataset has infinitely many episodes: pass limit=, or take(n) of it.")
    opened = open_source(source, split=split, fields="all")
    specs = leaves_of(dict(opened.step_spec))
    run = _Pass(opened, specs)
    started = time.perf_counter()
    is_complete = True
    counts = [count for count in (opened.num_episodes, limit) if count is not None]
    with progress_bar(f"check {opened.name}", min(counts, default=None), progress=progress) as bar:
        for raw in _named_errors(opened):
            if run.checks.num_episodes == limit:
                is_complete = False
                break
            run.add(raw)
            bar.update(1)
    return run.report(is_complete, time.perf_counter() - started)


def _named_errors(source: EpisodeSource) -> Iterator[RawEpisode]:
    """The episodes; an error on reading one tells which."""
    previous: RawEpisode | None = None
    episodes: Iterator[RawEpisode] | None = None
    while True:
        try:
            episodes = episodes or source.read(None)
            raw = next(episodes)
        except StopIteration:
            return
        except Exception as error:
            where = "the first episode" if previous is None else f"the episode after {previous.name}"
            raise ValueError(f"{source.name}: {where} cannot be read: {error}") from error
        yield raw
        previous = raw._replace(columns={}, metadata={})


class _Pass:
    """Everything that is collected on the way through a dataset."""

    def __init__(self, source: EpisodeSource, specs: Mapping[_Path, Any]) -> None:
        self._source = source
        self._specs = specs
        self.checks = EpisodeChecks(specs, is_d4rl=source.is_d4rl)
        self._fields = {
            path: FieldStatistics(field_path(path), spec, with_histogram=path[0] in (ACTION, REWARD))
            for path, spec in specs.items()
        }
        self._metadata: dict[_Path, FieldStatistics] = {
            path: FieldStatistics(field_path(path), spec)
            for path, spec in leaves_of(dict(source.metadata_spec)).items()
        }
        self._steps = self._transitions = 0
        self._forecast = _Forecast(source)

    def add(self, raw: RawEpisode) -> None:
        leaves = dict(zip(self._specs, tf.nest.flatten(dict(raw.columns)), strict=True))
        self.checks.add(raw, leaves)
        for path, leaf in leaves.items():
            self._fields[path].add(leaf[:-1] if path[0] in TRANSITION_FIELDS else leaf)
        if raw.metadata:
            for path, value in leaves_of(dict(raw.metadata)).items():
                self._add_metadata(path, value)
        self._forecast.add(raw)
        length = int(self.checks.latest_length)
        self._steps += length
        self._transitions += max(length - 1, 0)

    def report(self, is_complete: bool, seconds: float) -> RldsReport:
        fields = tuple(statistics.result() for statistics in self._fields.values())
        metadata = tuple(self._metadata[path].result() for path in sorted(self._metadata))
        lengths = self.checks.lengths.astype(np.float64)
        returns = self.checks.returns
        findings = [*self._without_constants(fields), *self._field_findings(fields)]
        return RldsReport(
            source=self._source.name,
            episodes=self.checks.num_episodes,
            steps=self._steps,
            transitions=self._transitions,
            is_complete=is_complete,
            ends=self.checks.ends,
            lengths=Distribution.of(lengths, integer=True) if lengths.size else None,
            returns=Distribution.of(returns, integer=False) if returns.size else None,
            alignment=self.checks.alignment(),
            fields=fields,
            metadata=metadata,
            findings=in_order(findings),
            loading=self._forecast.result(),
            seconds=seconds,
        )

    def _without_constants(self, fields: tuple[FieldSummary, ...]) -> Iterator[RldsFinding]:
        """Findings of the episodes; what is the same in the whole dataset is told of as that alone."""
        constant = {
            path
            for path, summary in zip(self._specs, fields, strict=True)
            if summary.constant or 0 < len(summary.constant_elements) == len(summary.element_min)
        }
        told = {field_path(path) for path in constant}
        if constant >= {path for path in self._specs if path[0] == OBSERVATION}:
            told.add(OBSERVATION)
        for each in self.checks.findings():
            if each.check != "frozen" or each.field not in told:
                yield each

    def _add_metadata(self, path: _Path, value: Any) -> None:
        column = value if isinstance(value, tf.RaggedTensor) else np.asarray(value)[np.newaxis]
        if path not in self._metadata:
            spec = tf.TensorSpec([None] * (len(column.shape) - 1), tf.as_dtype(column.dtype))
            self._metadata[path] = FieldStatistics(field_path(path), spec)
        self._metadata[path].add(column)

    def _field_findings(self, fields: tuple[FieldSummary, ...]) -> Iterator[RldsFinding]:
        if self._forecast.refusal is not None:
            yield finding("not_loadable", detail=self._forecast.refusal)
        elif self.checks.num_episodes and not self._forecast.result()["repair"].episodes:
            yield finding("nothing_loads")
        for field in LOADED_FIELDS:
            # Without an observation or is_terminal nothing loads, which is told above.
            if field in (ACTION, REWARD, DISCOUNT, *FLAGS[:2]) and field not in self._source.step_spec:
                yield finding("no_field", field=field)
        if self._source.not_loaded:
            yield finding("not_checked", detail=", ".join(self._source.not_loaded))
        for path, summary in zip(self._specs, fields, strict=True):
            if path[0] in FLAGS:
                continue
            if path[0] not in LOADED_FIELDS and _varies(summary):
                yield finding("varying_field", field=summary.path)
            if summary.constant and path[0] != DISCOUNT:
                yield finding("constant", field=summary.path, detail=f"always {summary.min}")
            elif summary.constant_elements:
                named = ", ".join(map(str, summary.constant_elements[:10]))
                more = ", ..." if len(summary.constant_elements) > 10 else ""
                yield finding(
                    "constant_elements",
                    field=summary.path,
                    count=len(summary.constant_elements),
                    detail=named + more,
                )


class _Forecast:
    """What `load_rlds` would make of the episodes, found with its own functions."""

    def __init__(self, source: EpisodeSource) -> None:
        self._core = {field: source.step_spec[field] for field in LOADED_FIELDS if field in source.step_spec}
        self._counts = {mode: LoadForecast() for mode in ("error", "skip", "repair")}
        self.refusal: str | None = None
        """Why nothing can be loaded; None when it can."""
        try:
            check_step_spec(source.name, self._core)
            plan_fields(source.name, self._core)
        except ValueError as error:
            self.refusal = str(error)
        self._delivered = dict.fromkeys(self._counts, 0)
        self._transitions = dict.fromkeys(self._counts, 0)
        self._dropped = dict.fromkeys(self._counts, 0)
        self._repaired = dict.fromkeys(self._counts, 0)
        self._error: str | None = None

    def add(self, raw: RawEpisode) -> None:
        if self.refusal is not None:
            return
        columns = {field: raw.columns[field] for field in self._core}
        fault = find_fault(columns, invalid=raw.invalid)
        if fault is not None and self._error is None:
            self._error = f"episode {raw.name}: {fault.detail}"
        num_steps = num_steps_of(columns)
        num_kept = num_steps if fault is None else fault.num_kept or 0
        repaired = fault is not None or (num_steps > 1 and bool(unset_flags(columns)))
        if self._error is None:
            self._count("error", num_steps, repaired)
        self._count("skip", 0 if fault is not None else num_steps, repaired)
        self._count("repair", num_kept, repaired)

    def result(self) -> dict[str, LoadForecast]:
        return {
            mode: LoadForecast(
                self._delivered[mode],
                self._transitions[mode],
                self._dropped[mode],
                self._repaired[mode],
                self.refusal if self.refusal is not None else self._error if mode == "error" else None,
            )
            for mode in self._counts
        }

    def _count(self, mode: str, num_steps: int, repaired: bool) -> None:
        if num_steps < 2:
            self._dropped[mode] += 1
            return
        self._delivered[mode] += 1
        self._transitions[mode] += num_steps - 1
        self._repaired[mode] += repaired


def _varies(summary: FieldSummary) -> bool:
    return summary.kind != "number" or summary.shape is None or None in summary.shape
