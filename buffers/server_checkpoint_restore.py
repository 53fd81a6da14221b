"""Starts a server's tables from the newest checkpoint that is complete, with the settings that are to hold.

What is read, checked and told happens before Reverb loads anything: its own load is one call that holds Python's lock,
so that no thread can tell of it or end it. (Measured: 0.5 s for 200,000 small items, on a machine with nothing else
to do. It prints to stderr itself.)
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from .item_selectors import selector_from
from .rate_limiters import MinSize, Queue, RateLimiter, SampleToInsertRatio, bounds_from
from .reverb_import import load_reverb, load_types
from .server_checkpoint_compare import Difference, differences
from .server_checkpoint_config import CheckpointConfig, OnMismatch
from .server_checkpoint_records import info_from, message_of, read_tables
from .server_checkpoint_rewrite import Moved, rewrite
from .server_manifest import Checkpoint, find_checkpoints, read_through
from .tables import TableConfig

_logger = logging.getLogger(__name__)

_LOG_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Started:
    """Tables that are loaded.

    Attributes:
      server: the `reverb.Server`.
      tables: what it serves, each as it was asked for or, with `on_mismatch='keep'`, as it was stored.
      checkpoint: what it was started from; None: nothing was there.
    """

    server: Any
    tables: tuple[TableConfig | Any, ...]
    checkpoint: Checkpoint | None


def start_from_newest(
    folder: pathlib.Path,
    scratch: pathlib.Path,
    tables: Sequence[TableConfig | Any],
    beside: Callable[[], Sequence[Any]],
    start: Callable[[Sequence[Any], pathlib.Path | None], Any],
    config: CheckpointConfig,
) -> Started:
    """Loads the newest complete checkpoint; incomplete ones are named and passed over.

    Args:
      folder: where checkpoints are.
      scratch: a folder of our own, for rewritten checkpoints.
      tables: what is asked for.
      beside: makes the server's own tables, which are not compared.
      start: makes a `reverb.Server` of `reverb.Table`s, from a checkpoint's folder or empty.
      config: which settings hold where the stored ones differ, what if all are damaged, and how long it may take
        until Reverb begins to load.

    Raises:
      ValueError: the settings differ; each difference is told.
      ValueError: the newest complete checkpoint is of another format.
      ValueError: all that were complete are damaged, and `config.on_damaged` is `'error'`.
      OSError: the disk does not take what is rewritten.
      RuntimeError: it is as it was written, and Reverb cannot load it: an older one would not be what was asked for.
      WaitTimeoutError: the time is up.
    """
    deadline = time.monotonic() + config.restore_timeout_s
    found = find_checkpoints(folder)
    damaged: list[str] = []
    for checkpoint in found:
        problem = checkpoint.problem or read_through(checkpoint, _progress(checkpoint), deadline)
        if problem is None:
            if checkpoint.manifest is None:
                _logger.warning(
                    "checkpoint %s has no manifest.json: plain Reverb has written it, or it was lost; whether its "
                    "files are as they were written is not known",
                    checkpoint.path,
                )
            return _start_from(checkpoint, scratch, tables, beside, start, config.on_mismatch)
        how = "damaged" if checkpoint.problem is None else "not complete"
        _logger.warning("checkpoint %s is %s and is passed over: %s", checkpoint.path, how, problem)
        if checkpoint.was_finished:
            damaged.append(f"{checkpoint.path}: {problem}")
    if damaged:
        _tell_or_raise(folder, damaged, config)
    elif found:
        _logger.warning("none of the %d checkpoints in %s was ever complete: tables begin empty", len(found), folder)
    else:
        _logger.info("there is no checkpoint in %s: tables begin empty", folder)
    return Started(start([*_built(tables, anew=False), *beside()], None), tuple(tables), None)


def _tell_or_raise(folder: pathlib.Path, damaged: Sequence[str], config: CheckpointConfig) -> None:
    """Refuses to begin empty in place of what is damaged; or says so, where that is wanted."""
    listed = "\n  ".join(damaged)
    what = f"checkpoint_dir {folder}: every checkpoint that was complete is damaged:\n  {listed}"
    if config.on_damaged == "error":
        raise ValueError(
            f"{what}\nWays out: put back what is missing, or what was changed, from a copy; give on_damaged='empty' to "
            "begin empty and leave them where they are; or give another checkpoint_dir."
        )
    _logger.error("%s\nTables begin empty (on_damaged='empty'); what is damaged stays there", what)


def _start_from(
    checkpoint: Checkpoint,
    scratch: pathlib.Path,
    tables: Sequence[TableConfig | Any],
    beside: Callable[[], Sequence[Any]],
    start: Callable[[Sequence[Any], pathlib.Path | None], Any],
    on_mismatch: OnMismatch,
) -> Started:
    built, own = _built(tables), list(beside())
    own_names = {table.name for table in own}
    records = {name: record for name, record in read_tables(checkpoint.path).items() if name not in own_names}
    counts = {name: record.rate_limiter for name, record in records.items()}
    stored = {
        name: info_from(record, counts[name].insert_count - counts[name].delete_count)
        for name, record in records.items()
    }
    messages = {table.name: message_of(table) for table in built}
    asked = {
        name: load_types().TableInfo.from_serialized_proto(one.SerializeToString()) for name, one in messages.items()
    }
    kept = _stored_configs(checkpoint)
    found = differences(stored, asked, _limiters(kept.values()), _limiters(tables))
    if not found:
        return _loaded(checkpoint, checkpoint.path, built + own, start, tables)
    fixed = {one.table for one in found if one.is_fixed}
    is_unknown = on_mismatch == "keep" and bool(fixed - kept.keys())
    if on_mismatch == "error" or (on_mismatch == "override" and fixed) or is_unknown:
        raise ValueError(_why(checkpoint, found, on_mismatch))
    said = "; ".join(map(str, found))
    if on_mismatch == "keep":
        _logger.warning("checkpoint %s: on_mismatch='keep': the stored settings hold: %s", checkpoint.path, said)
        built, served = _as_stored(tables, stored, kept)
        return _loaded(checkpoint, checkpoint.path, built + own, start, served)
    _logger.warning("checkpoint %s: on_mismatch='override': the new settings hold: %s", checkpoint.path, said)
    target = scratch / checkpoint.path.name
    shutil.rmtree(target, ignore_errors=True)
    try:
        for moved in _rewritten(checkpoint.path, target, messages):
            if moved.table not in own_names:
                _logger.warning("checkpoint %s: %s", checkpoint.path, moved)
        return _loaded(checkpoint, target, built + own, start, tables)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _rewritten(path: pathlib.Path, target: pathlib.Path, messages: Mapping[str, Any]) -> list[Moved]:
    """`rewrite`, with the errors of a disk as such."""
    try:
        return rewrite(path, target, messages)
    except tf.errors.OpError as error:
        raise OSError(f"checkpoint {path} cannot be rewritten into {target}: {error.message}") from error


def _loaded(
    checkpoint: Checkpoint,
    path: pathlib.Path,
    built: Sequence[Any],
    start: Callable[[Sequence[Any], pathlib.Path | None], Any],
    served: Sequence[TableConfig | Any],
) -> Started:
    began = time.monotonic()
    try:
        server = start(built, path)
    except RuntimeError as error:
        raise RuntimeError(
            f"checkpoint {checkpoint.path} is complete, but Reverb cannot load it: {error}. Take that folder away to "
            "begin with the one before, or give another checkpoint_dir to begin empty."
        ) from error
    _logger.info("checkpoint %s: Reverb has loaded it in %.1f s", checkpoint.path, time.monotonic() - began)
    return Started(server, tuple(served), checkpoint)


def _built(tables: Sequence[TableConfig | Any], *, anew: bool = True) -> list[Any]:
    """`reverb.Table`s; those that were given ready made `anew`, since a load that fails spends them."""
    built: list[Any] = []
    for table in tables:
        built += table.build() if isinstance(table, TableConfig) else [table.replace() if anew else table]
    return built


def _stored_configs(checkpoint: Checkpoint) -> dict[str, TableConfig]:
    """The `TableConfig`s that the manifest tells; none where it cannot be read by this version."""
    configs = {}
    for plain in () if checkpoint.manifest is None else checkpoint.manifest.tables:
        try:
            config = None if plain is None else TableConfig.from_dict(plain)
        except (TypeError, ValueError, ImportError) as error:
            _logger.warning("checkpoint %s: its manifest tells a table that cannot be read: %s", checkpoint.path, error)
            continue
        if config is not None:
            configs[config.name] = config
    return configs


def _limiters(tables: Any) -> dict[str, str]:
    return {table.name: repr(table.rate_limiter) for table in tables if isinstance(table, TableConfig)}


def _as_stored(
    tables: Sequence[TableConfig | Any], stored: Mapping[str, Any], kept: Mapping[str, TableConfig]
) -> tuple[list[Any], list[TableConfig | Any]]:
    """`reverb.Table`s of which Reverb replaces all that are stored, and what they will be."""
    reverb = load_reverb()
    names = {table.name for table in tables}
    built: list[Any] = []
    served: list[TableConfig | Any] = []
    for table in tables:
        if table.name not in stored:
            built += _built([table])
            served.append(table)
        elif isinstance(table, TableConfig):
            served.append(kept.get(table.name) or _with_stored(table, stored))
        else:
            served.append(table)
    served += [kept[name] for name in kept if name in stored and name not in names]
    for name in stored:
        selectors = reverb.selectors
        built.append(reverb.Table(name, selectors.Fifo(), selectors.Fifo(), 1, reverb.rate_limiters.MinSize(1)))
    return built, served


def _with_stored(table: TableConfig, stored: Mapping[str, Any]) -> TableConfig:
    """What a `TableConfig` would say of the table that plain Reverb has stored.

    Raises:
      ValueError: none would.
    """
    info = stored[table.name]
    try:
        return dataclasses.replace(
            table,
            max_size=int(info.max_size),
            max_times_sampled=int(info.max_times_sampled),
            sampler=selector_from(info.sampler_options),
            remover=selector_from(info.remover_options),
            rate_limiter=_limiter_from(info.rate_limiter_info),
            scannable=table.scan_table in stored,
        )
    except ValueError as error:
        raise ValueError(
            f"table {table.name!r}: what is stored of it is nothing that a TableConfig can tell ({error}); give a "
            "ready reverb.Table of its name in place of the TableConfig."
        ) from error


def _limiter_from(info: Any) -> RateLimiter:
    bounds = bounds_from(info)
    if not bounds.is_bounded:
        return MinSize(bounds.min_size_to_sample)
    if bounds.min_error == 0 and bounds.samples_per_insert == 1 and bounds.max_error.is_integer():
        return Queue(int(bounds.max_error))
    return SampleToInsertRatio(
        bounds.samples_per_insert, bounds.min_size_to_sample, (bounds.min_error, bounds.max_error)
    )


def _why(checkpoint: Checkpoint, found: Sequence[Difference], on_mismatch: OnMismatch) -> str:
    lines = "\n".join(f"  {one}" for one in found)
    if on_mismatch == "override":
        return (
            f"checkpoint {checkpoint.path} cannot be overridden with what is asked for:\n{lines}\n"
            "Ask for the stored settings where it says so, give on_mismatch='keep' to serve all as they were stored, "
            "or another checkpoint_dir to begin empty."
        )
    if on_mismatch == "keep":
        return (
            f"checkpoint {checkpoint.path} has no manifest that tells its tables, and what their data are is not what "
            f"is asked for:\n{lines}\nAsk for what is stored, or give another checkpoint_dir to begin empty."
        )
    override = (
        "give on_mismatch='override' to put the stored items into tables of the new settings; "
        if not any(one.is_fixed for one in found)
        else ""
    )
    return (
        f"checkpoint {checkpoint.path} was made with other settings:\n{lines}\n"
        "Ways out: ask for the stored settings; give on_mismatch='keep' to serve what is stored as it was; "
        f"{override}or give another checkpoint_dir to begin empty."
    )


def _progress(checkpoint: Checkpoint) -> Callable[[int, int], None]:
    """Tells of a file's reading, every few seconds."""
    next_line = time.monotonic() + _LOG_SECONDS

    def tell(num_read: int, total: int) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _LOG_SECONDS
            _logger.warning("checkpoint %s: %.1f of %.1f MB are read", checkpoint.path, num_read / 1e6, total / 1e6)

    return tell
