"""Checks a whole dataset of episodes before anybody trains on it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import field_path

from .episode_source import EpisodeSource, RawEpisode
from .progress_bar import progress_bar
from .rlds_check_blocks import EpisodeBlock, OddEpisode, Path, in_blocks
from .rlds_check_episodes import TRANSITION_FIELDS, EpisodeChecks, leaves_of
from .rlds_check_findings import RldsFinding, finding, in_order
from .rlds_check_forecast import LoadingForecast
from .rlds_check_report import RldsReport
from .rlds_check_statistics import Distribution, FieldStatistics, FieldSummary
from .rlds_open import Source, open_source
from .rlds_steps import ACTION, DISCOUNT, FLAGS, LOADED_FIELDS, OBSERVATION, REWARD

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
    counts = [count for count in (opened.num_episodes, limit) if count is not None]
    with progress_bar(f"check {opened.name}", min(counts, default=None), progress=progress) as bar:
        episodes = _named_errors(opened)
        for part in in_blocks(itertools.islice(episodes, limit), opened.step_spec, list(specs)):
            run.add(part)
            bar.update(len(part.raws))
        is_complete = limit is None or next(episodes, None) is None
    return run.report(is_complete, time.perf_counter() - started)


def _named_errors(source: EpisodeSource) -> Iterator[RawEpisode]:
    """The episodes; an error on reading one tells which."""
    latest: str | None = None
    episodes: Iterator[RawEpisode] | None = None
    while True:
        try:
            episodes = episodes or source.read(None)
            raw = next(episodes)
        except StopIteration:
            return
        except Exception as error:
            where = "the first episode" if latest is None else f"the episode after {latest}"
            raise ValueError(f"{source.name}: {where} cannot be read: {error}") from error
        yield raw
        latest = raw.name


class _Pass:
    """Everything that is collected on the way through a dataset."""

    def __init__(self, source: EpisodeSource, specs: Mapping[Path, Any]) -> None:
        self._source = source
        self._specs = specs
        self.checks = EpisodeChecks(specs, is_d4rl=source.is_d4rl)
        self._fields = {
            path: FieldStatistics(field_path(path), spec, with_histogram=path[0] in (ACTION, REWARD))
            for path, spec in specs.items()
        }
        self._metadata: dict[Path, FieldStatistics] = {
            path: FieldStatistics(field_path(path), spec)
            for path, spec in leaves_of(dict(source.metadata_spec)).items()
        }
        self._forecast = LoadingForecast(source)

    def add(self, part: EpisodeBlock | OddEpisode) -> None:
        if isinstance(part, OddEpisode):
            self.checks.add_odd(part)
            for path, leaf in part.leaves.items():
                self._fields[path].add(leaf[:-1] if path[0] in TRANSITION_FIELDS else leaf)
            self._forecast.add_doubtful(part.raws[0])
        else:
            doubtful = self.checks.add(part)
            for path, statistics in self._fields.items():
                self._add_field(part, path, statistics)
            self._forecast.add(part, doubtful)
        for raw in part.raws:
            if raw.metadata:
                for path, value in leaves_of(dict(raw.metadata)).items():
                    self._add_metadata(path, value)

    def _add_field(self, block: EpisodeBlock, path: Path, statistics: FieldStatistics) -> None:
        column, has_last = block.columns.get(path), path[0] not in TRANSITION_FIELDS
        if column is None:
            for leaf in block.leaves[path]:
                statistics.add(leaf if has_last else leaf[:-1])
        elif has_last:
            statistics.add_all(column, block.lengths.tolist())
        else:
            statistics.add_all(column[block.transitions], (block.lengths - 1).tolist())

    def report(self, is_complete: bool, seconds: float) -> RldsReport:
        fields = tuple(statistics.result() for statistics in self._fields.values())
        metadata = tuple(self._metadata[path].result() for path in sorted(self._metadata))
        num_steps = self.checks.lengths
        lengths = num_steps.astype(np.float64)
        returns = self.checks.returns
        findings = [*self._without_constants(fields), *self._field_findings(fields)]
        return RldsReport(
            source=self._source.name,
            episodes=self.checks.num_episodes,
            steps=int(num_steps.sum()),
            transitions=int(np.maximum(num_steps - 1, 0).sum()),
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

    def _add_metadata(self, path: Path, value: Any) -> None:
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


def _varies(summary: FieldSummary) -> bool:
    return summary.kind != "number" or summary.shape is None or None in summary.shape
