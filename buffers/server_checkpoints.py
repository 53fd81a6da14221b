"""Takes checkpoints of a running server: on request, every so often, and those that clients ask Reverb for.

Reverb's checkpointer keeps one checkpoint and deletes whatever else is in its folder. So it has a folder of its own,
`in_progress`; what it has finished there gets a second name beside it (hard links), our manifest, and `DONE`, and is
then a checkpoint. Whenever this is cut short, what is in either folder has no `DONE`, or is finished at the next start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import queue
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .base import WaitTimeoutError
from .reverb_control import CONTROL_TABLE, CheckpointReport, ServerStatus, is_asked, step_of, write_status
from .reverb_import import load_grpc, load_reverb
from .reverb_wire import open_channel, top_priority
from .server_checkpoint_compare import base_of
from .server_checkpoint_config import CheckpointConfig
from .server_checkpoint_records import read_items, read_tables
from .server_checkpoint_rewrite import link_or_copy
from .server_manifest import (
    DATA_FILES,
    DONE,
    LockedFolder,
    Manifest,
    files_of,
    find_checkpoints,
    later_names,
    look_at,
    newest_number,
    remove_checkpoint,
    time_in_name,
    to_remove,
    write_manifest,
)

_logger = logging.getLogger(__name__)

IN_PROGRESS = "in_progress"
SCRATCH = "in_progress.restore"
_LOOK_SECONDS = 0.2
_LINE_SECONDS = 5.0
_ASK_SECONDS = 2.0
_END_SECONDS = 600.0
# Who asks Reverb itself deletes what is being written for others; it is written anew so often.
_ATTEMPTS = 5
# Attempts that clients are told of: more than one may end until a client looks.
_NUM_TOLD = 16


class ServerCheckpoints:
    """The checkpoints of one server; any number of threads may ask.

    Args:
      locked: where they go.
      address: `host:port` of the server.
      tables: what the manifest tells of each table: `TableConfig.to_dict`, or None.
      config: when they are taken, and how many stay.
      status: what the server says of itself.
      step: what the trainer has last told.
    """

    def __init__(
        self,
        locked: LockedFolder,
        address: str,
        tables: Sequence[Mapping[str, Any] | None],
        config: CheckpointConfig,
        status: ServerStatus,
        step: int | None,
    ) -> None:
        self._locked = locked
        self._folder = folder = locked.path
        self._in_progress = folder / IN_PROGRESS
        self._tables = tuple(tables)
        self._every_s, self._every_inserts = config.checkpoint_every_s, config.checkpoint_every_inserts
        self._keep_last = config.keep_last
        self._client = load_reverb().Client(address)
        self._channel = open_channel(address)
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._activity = self._counts()
        self._number = newest_number(find_checkpoints(folder))
        self._told_of_clock = False
        # Reverb's call, which goes on when nobody waits for it any longer.
        self._reverbs_call: threading.Thread | None = None
        self._status = dataclasses.replace(status, begun=self._number)
        self._due = time.monotonic() + (self._every_s or 0.0)
        self._not_before = 0.0  # after an error
        write_status(self._client, self._status, step)
        self._thread = threading.Thread(target=self._run, name="replayfeed-checkpoints", daemon=True)
        self._thread.start()

    @property
    def status(self) -> ServerStatus:
        """What the server says of itself now."""
        return self._status

    def take(self, step: int | None, timeout_s: float, why: str = "as asked") -> CheckpointReport:
        """Takes a checkpoint now.

        Args:
          step: what the trainer says; None: what it has last told.
          timeout_s: how long it may take.
          why: for the log.

        Raises:
          WaitTimeoutError: it takes longer. It goes on, and may be complete later.
          RuntimeError, OSError: Reverb, or the disk, cannot write it.
        """
        began = time.monotonic()
        deadline = began + timeout_s
        if not self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise WaitTimeoutError(f"another checkpoint of {self._folder} is not done; gave up after {timeout_s:g} s.")
        attempt = 0
        try:
            self._wait_for_reverb(deadline, timeout_s)
            self._locked.hold()
            self._adopt_finished()  # Reverb deletes what it has finished when it begins anew
            attempt, step = self._begin(step)
            _logger.info("checkpoint into %s begins (%s); inserts and samples wait meanwhile", self._folder, why)
            for is_last in [False] * (_ATTEMPTS - 1) + [True]:
                activity = self._counts()
                try:
                    path = pathlib.Path(self._ask_reverb(deadline, timeout_s))
                    return self._adopt(path, time.monotonic() - began, step, activity, attempt)
                except (OSError, RuntimeError) as error:
                    if not _is_deleted(error):
                        raise
                    what = f"checkpoint into {self._folder}: somebody has asked Reverb itself for one, which deleted it"
                    if is_last:
                        raise RuntimeError(
                            f"{what}, {_ATTEMPTS} times; ask by ReverbReplayBuffer.checkpoint(), or ReplayServer's."
                        ) from error
                    _logger.warning("%s; it is taken anew", what)
                    self._adopt_finished()
            raise AssertionError("the last attempt returns or raises")
        except Exception as error:
            # That somebody has waited for long enough is nothing that others are to be told: they ask again.
            failed = self._status.failed if isinstance(error, WaitTimeoutError) else attempt or self._status.failed
            problem = f"{type(error).__name__}: {error}"
            self._say(dataclasses.replace(self._status, problem=problem, failed=failed, is_writing=False))
            raise
        finally:
            self._lock.release()

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _begin(self, step: int | None) -> tuple[int, int | None]:
        """Numbers an attempt, and tells clients of it: what they asked for until now will be in it.

        Returns:
          The number, and the trainer's step.
        """
        if step is None:
            step = step_of(top_priority(self._channel, CONTROL_TABLE, _ASK_SECONDS))
        attempt = self._next_number()
        self._status = dataclasses.replace(self._status, begun=attempt, begun_step=step, is_writing=True)
        write_status(self._client, self._status, step)
        return attempt, step

    def end(self) -> None:
        """Ends the thread; a checkpoint that is being taken is finished before."""
        self._ended.set()
        give_up = time.monotonic() + _END_SECONDS
        self._thread.join(_LINE_SECONDS)
        while self._thread.is_alive() and time.monotonic() < give_up:
            _logger.warning("the server stops when the checkpoint into %s is done", self._folder)
            self._thread.join(_LINE_SECONDS)
        self._channel.close()

    def let_end(self) -> None:
        """The thread ends when it can, and the folder is free; nothing waits."""
        self._ended.set()
        self._locked.close()

    def _run(self) -> None:
        """Until the server stops: what is due, and what clients have asked Reverb for."""
        while not self._ended.wait(_LOOK_SECONDS if self._every_s is None else min(_LOOK_SECONDS, self._every_s)):
            try:
                self._look()
            except Exception as error:  # told, and tried again
                _logger.error("checkpoint into %s failed: %s: %s", self._folder, type(error).__name__, error)
                self._say(dataclasses.replace(self._status, problem=f"{type(error).__name__}: {error}"))
                self._not_before = time.monotonic() + max(_LINE_SECONDS, self._every_s or 0.0)

    def _look(self) -> None:
        priority = top_priority(self._channel, CONTROL_TABLE, _ASK_SECONDS)
        if priority is None:  # somebody has emptied it
            write_status(self._client, self._status, None)
        if is_asked(priority):
            self.take(None, float("inf"), "a client asks")
        now, every_s, every_inserts = time.monotonic(), self._every_s, self._every_inserts
        if now < self._not_before:
            return
        self._adopt_finished()
        is_due = every_s is not None and now >= self._due
        if not is_due and every_inserts is None:
            return
        counts = self._counts()
        inserts, samples = (after - before for after, before in zip(counts, self._activity, strict=True))
        if inserts < 0 or samples < 0:  # a table was emptied
            self._activity = (0, 0)
            return
        if every_inserts is not None and inserts >= every_inserts:
            self.take(None, float("inf"), f"{inserts:,} inserts since the last one")
        elif is_due and every_s is not None:
            if inserts or samples:
                self.take(None, float("inf"), f"every {every_s:g} s")
            self._due = time.monotonic() + every_s  # also where nothing was to be taken

    def _adopt_finished(self) -> None:
        """What clients have asked Reverb itself for."""
        with self._lock:
            for path in finished_in(self._in_progress):
                try:
                    step = step_of(top_priority(self._channel, CONTROL_TABLE, _ASK_SECONDS))
                    self._adopt(path, 0.0, step, self._counts(), None)
                except FileNotFoundError:
                    _logger.warning("checkpoint %s: Reverb has deleted it for the next one it was asked for", path)

    def _wait_for_reverb(self, deadline: float, timeout_s: float) -> None:
        """Returns when Reverb has done what somebody gave up to wait for: two at once would delete each other."""
        while self._reverbs_call is not None and self._reverbs_call.is_alive():
            left = deadline - time.monotonic()
            what = f"checkpoint into {self._folder}: Reverb still writes the one before"
            if left <= 0:
                raise WaitTimeoutError(f"{what}; gave up after {timeout_s:g} s.")
            self._reverbs_call.join(min(_LINE_SECONDS, left))
            if self._reverbs_call.is_alive():
                _logger.warning("%s; waiting", what)

    def _counts(self) -> tuple[int, int]:
        """Inserts and samples of all tables but those beside another one."""
        infos = self._client.server_info(timeout=int(_ASK_SECONDS))
        own = [name for name in infos if name != CONTROL_TABLE and base_of(name, list(infos)) == name]
        told = [infos[name].rate_limiter_info for name in own]
        return sum(one.insert_stats.completed for one in told), sum(one.sample_stats.completed for one in told)

    def _ask_reverb(self, deadline: float, timeout_s: float) -> str:
        """Reverb's own call, which has no timeout."""
        done: queue.SimpleQueue[tuple[str, Exception | None]] = queue.SimpleQueue()

        def call() -> None:
            try:
                done.put((self._client.checkpoint(), None))
            except Exception as error:  # handed to the caller, whatever it is
                done.put(("", error))

        began = time.monotonic()
        self._reverbs_call = threading.Thread(target=call, name="replayfeed-checkpoint", daemon=True)
        self._reverbs_call.start()
        while True:
            left = deadline - time.monotonic()
            try:
                path, error = done.get(timeout=max(0.0, min(_LINE_SECONDS, left)))
            except queue.Empty:
                num_bytes = _size_of(self._in_progress)
                what = f"checkpoint into {self._folder}: {num_bytes / 1e6:.1f} MB in {time.monotonic() - began:.0f} s"
                if left <= 0:
                    raise WaitTimeoutError(
                        f"{what}; gave up after {timeout_s:g} s. It goes on, and may be complete later."
                    ) from None
                _logger.warning("%s", what)
                continue
            if error is not None:
                raise error
            return path

    def _adopt(
        self, path: pathlib.Path, seconds: float, step: int | None, activity: tuple[int, int], attempt: int | None
    ) -> CheckpointReport:
        """Makes a checkpoint of what Reverb has finished; `attempt`: of ours, None: others asked Reverb."""
        began = time.monotonic()
        report = adopt(path, self._folder, self._tables, step, self._next_number())
        report = dataclasses.replace(report, seconds=seconds + time.monotonic() - began)
        _logger.info(
            "checkpoint %s is complete: step %s, %s, %.1f MB in %.1f s",
            report.path,
            step,
            items_text(report.items),
            report.num_bytes / 1e6,
            report.seconds,
        )
        self._activity = activity
        self._due = time.monotonic() + (self._every_s or 0.0)
        self._told_of_clock = self._told_of_clock or tell_of_clock(self._folder)
        remove_old(self._folder, self._keep_last)
        status = dataclasses.replace(self._status, last=report, problem=None)
        if attempt is not None:
            done = (*status.done, (attempt, report))[-_NUM_TOLD:]
            status = dataclasses.replace(status, done=done, is_writing=False)
        self._say(status)
        return report

    def _say(self, status: ServerStatus) -> None:
        self._status = status
        try:
            priority = top_priority(self._channel, CONTROL_TABLE, _ASK_SECONDS)
            write_status(self._client, status, step_of(priority), is_asked=is_asked(priority))
        except (RuntimeError, load_grpc().RpcError, ValueError) as error:
            _logger.warning("clients cannot be told of checkpoints: %s", error)


def finished_in(in_progress: pathlib.Path) -> list[pathlib.Path]:
    """What Reverb has finished and nobody has adopted, oldest first."""
    if not in_progress.exists():
        return []
    return sorted(path for path in in_progress.iterdir() if time_in_name(path.name) and (path / DONE).exists())


def adopt(
    path: pathlib.Path, folder: pathlib.Path, tables: Sequence[Mapping[str, Any] | None], step: int | None, number: int
) -> CheckpointReport:
    """Makes a checkpoint in `folder` of what Reverb has finished in `path`, which goes.

    Args:
      path: where Reverb has put it.
      folder: where checkpoints are.
      tables: for the manifest.
      step: the trainer's.
      number: greater than those that are there.

    Raises:
      OSError: the disk does not take it.
    """
    target = folder / path.name
    if target.exists():  # begun and cut short
        remove_checkpoint(target)
    target.mkdir(exist_ok=True)
    try:
        for name in DATA_FILES:
            link_or_copy(path / name, target / name)
    except OSError:
        remove_checkpoint(target)
        raise
    records = read_tables(target)
    items = {
        name: int(record.rate_limiter.insert_count - record.rate_limiter.delete_count)
        for name, record in sorted(records.items())
        if name != CONTROL_TABLE
    }
    time_s = (time_in_name(path.name) or 0) / 1e9
    manifest = Manifest(time_s, step, tuple(tables), items, files_of(target), number)
    write_manifest(target, manifest)
    remove_checkpoint(path)
    return CheckpointReport(str(target), step, items, manifest.num_bytes, 0.0)


def clean_up(folder: pathlib.Path) -> None:
    """Before a start: what Reverb had finished becomes a checkpoint, what it had not is named and deleted.

    Raises:
      OSError: the disk does not take it.
    """
    in_progress = folder / IN_PROGRESS
    in_progress.mkdir(exist_ok=True)
    shutil.rmtree(folder / SCRATCH, ignore_errors=True)
    for path in finished_in(in_progress):
        time_ns = time_in_name(path.name) or 0
        made = look_at(folder / path.name, time_ns)
        if made.problem is None and made.manifest is not None:
            remove_checkpoint(path)
            continue
        problem = look_at(path, time_ns).problem
        if problem is None:
            try:
                report = adopt(path, folder, (), step_in(path), newest_number(find_checkpoints(folder)) + 1)
            except ValueError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                _logger.warning("checkpoint %s was finished by Reverb when its server ended", report.path)
        if problem is not None:
            _logger.warning("checkpoint %s is not complete and is deleted: %s", path, problem)
            remove_checkpoint(path)
    for path in in_progress.iterdir():
        if path.is_dir() and time_in_name(path.name) is not None:
            _logger.warning("checkpoint %s was not finished when its server ended; it is deleted", path)
            remove_checkpoint(path)


def remove_old(folder: pathlib.Path, keep_last: int | None) -> None:
    """Deletes what is not to be kept."""
    for checkpoint in to_remove(find_checkpoints(folder), keep_last):
        _logger.info("checkpoint %s is deleted: %s", checkpoint.path, checkpoint.problem or "newer ones are there")
        remove_checkpoint(checkpoint.path)


def tell_of_clock(folder: pathlib.Path) -> bool:
    """Warns where names tell another order than that in which checkpoints were taken; whether they do."""
    found = find_checkpoints(folder)
    later = later_names(found)
    if later:
        newest = next(one for one in found if one.problem is None and one.manifest is not None)
        _logger.warning(
            "checkpoint %s is newer than %s, and its name tells an earlier time: the clock went back, or they are of "
            "machines with different clocks. What counts is the number in their manifests.",
            newest.path,
            ", ".join(str(one.path) for one in later),
        )
    return bool(later)


def items_text(items: Mapping[str, int]) -> str:
    """How many items there are, in words.

    >>> items_text({"replay": 2000, "other": 1})
    "2,000 items in table 'replay', 1 items in table 'other'"
    """
    return ", ".join(f"{count:,} items in table {name!r}" for name, count in items.items())


def _is_deleted(error: Exception) -> bool:
    """Whether Reverb, or we, did not find what Reverb had written."""
    # Reverb hands on TensorFlow's words, as a RuntimeError.
    return isinstance(error, FileNotFoundError) or "No such file or directory" in str(error)


def _size_of(in_progress: pathlib.Path) -> int:
    """Bytes of what Reverb writes, which may go meanwhile."""
    num_bytes = 0
    for file in in_progress.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            num_bytes += file.stat().st_size
    return num_bytes


def step_in(path: pathlib.Path) -> int | None:
    """The step that a checkpoint's own table tells."""
    return next((step_of(item.priority) for item in read_items(path) if item.table == CONTROL_TABLE), None)
