"""Checkpoints of served tables as clients see them: asked for, told of, and compared with a model's checkpoint."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from .base import WaitTimeoutError
from .reverb_again import call_again, tables_in
from .reverb_control import CONTROL_TABLE, CheckpointReport, ServerStatus, Told, check_step, read_status, tell_step
from .reverb_import import load_reverb
from .reverb_link import ServerLink, Watch
from .server import ReplayServer

_logger = logging.getLogger(__name__)

_KIND = "replayfeed served buffer"
_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 0.5
# A read of the server's table waits for ever where the server goes at that moment.
_SLICE_SECONDS = 5.0


def take_checkpoint(link: ServerLink, local_server: Any, step: int | None, timeout_s: float) -> CheckpointReport:
    """Asks the server for a checkpoint, and returns when it is complete.

    Args:
      link: the server.
      local_server: the server, if it is in this process.
      step: the trainer's; None: as last told.
      timeout_s: how long it may take, also where the server does not answer.

    Raises:
      TypeError, ValueError: `step` is no int, or negative.
      ValueError: the server keeps no checkpoints.
      WaitTimeoutError: it takes longer. It goes on, and may be complete later.
      RuntimeError: the server could not write it.
    """
    check_step(step)
    if isinstance(local_server, ReplayServer):
        return local_server.checkpoint(step, timeout_s=timeout_s)
    watch = Watch(link, timeout_s)
    if CONTROL_TABLE not in tables_in(link, watch):
        if step is not None:
            raise ValueError(
                f"server {link.address} was not started with ReplayServer(..., checkpoint_dir=...): it cannot be told "
                "a step. Start it so, or leave out step for Reverb's own checkpoint."
            )
        began = time.monotonic()
        path = call_again(link, watch, link.client.checkpoint, "a checkpoint")
        _logger.warning(
            "server %s was not started with ReplayServer(..., checkpoint_dir=...): Reverb's own checkpointer has put "
            "its tables into %s there, and nobody checks it, keeps it or begins with it",
            link.address,
            path,
        )
        return CheckpointReport(path, None, {}, 0, time.monotonic() - began)
    return _take(link, watch, step)


def mark_step(link: ServerLink, step: int) -> None:
    """Tells the server the trainer's step, for its checkpoints from now on.

    Raises:
      TypeError, ValueError: `step` is no int, or negative.
      ValueError: the server keeps no checkpoints.
      WaitTimeoutError: the server does not answer within the link's timeout.
    """
    check_step(step)
    watch = Watch(link)
    if CONTROL_TABLE not in tables_in(link, watch):
        raise ValueError(
            f"server {link.address} keeps no checkpoints, which could have a step: start it with "
            "ReplayServer(..., checkpoint_dir=...)."
        )
    while True:
        told = _read(link, watch)
        if told.step == step:
            return
        _tell(link, watch, told, step, is_asked=told.is_asked)


def status_of(link: ServerLink) -> tuple[ServerStatus, int | None] | None:
    """What the server says of its checkpoints, and the step last told; None: it keeps none.

    Raises:
      WaitTimeoutError: it does not answer within the link's timeout.
    """
    if CONTROL_TABLE not in link.tables():
        return None
    told = _read(link, Watch(link))
    return told.status, told.step


def to_bytes(link: ServerLink, tables: Sequence[str]) -> bytes:
    """What a model's checkpoint keeps of served tables: where their server's newest checkpoint is, not its contents.

    A server that does not answer does not keep the model from being saved: a warning says so.

    Args:
      link: the server.
      tables: that are saved with the model.
    """
    told = _status_at_once(link)
    newest = None
    if told is not None:
        status, _ = told
        started = None if status.started_from is None else [status.started_from, status.started_step]
        newest = started if status.last is None else [status.last.path, status.last.step]
    if newest is None:
        _logger.warning(
            "table %s at %s is saved by its server, of which no checkpoint is known: call checkpoint() before the "
            "model's checkpoint is saved",
            _listed(tables),
            link.address,
        )
    plain = {"kind": _KIND, "address": link.address, "tables": list(tables), "checkpoint": newest}
    return json.dumps(plain).encode()


def compare_with(link: ServerLink, tables: Sequence[str], saved: bytes) -> None:
    """Warns where the server did not begin with the checkpoint that `to_bytes` told of.

    Args:
      link: the server.
      tables: that are restored with the model.
      saved: of `to_bytes`.

    Raises:
      ValueError: `saved` is not of what was served.
    """
    try:
        plain = json.loads(bytes(saved).decode())
        is_ours = plain["kind"] == _KIND
    except (UnicodeDecodeError, json.JSONDecodeError, TypeError, KeyError) as error:
        raise ValueError("this is not what a served buffer has saved: was it another buffer's?") from error
    if not is_ours:
        raise ValueError(f"this is not what a served buffer has saved, but {plain['kind']!r}.")
    wanted, names = plain["checkpoint"], _listed(tables)
    told = _status_at_once(link)
    if wanted is None:
        _logger.warning("the model was saved when no checkpoint of table %s was known", names)
    elif told is None:
        _logger.warning(
            "the model was saved with checkpoint %s (step %s) of table %s; if server %s began with it is not known",
            *wanted,
            names,
            link.address,
        )
    elif told[0].started_from != wanted[0]:
        status = told[0]
        last = "" if status.last is None else f", and has taken {status.last.path} (step {status.last.step}) since"
        began = "empty" if status.started_from is None else f"with {status.started_from} (step {status.started_step})"
        _logger.warning(
            "the model was saved with checkpoint %s (step %s) of table %s, but server %s began %s%s: what is drawn is "
            "older or newer than the model. Start the server anew with that checkpoint as the newest in its folder: "
            "move newer ones elsewhere; where it is gone, a larger keep_last keeps more.",
            *wanted,
            names,
            link.address,
            began,
            last,
        )
    elif (since := told[0].last) is not None and since.path != wanted[0]:
        _logger.warning(
            "the model was saved with checkpoint %s (step %s) of table %s; server %s began with it and has gone on: it "
            "has taken %s (step %s) since, so that what is drawn is newer than the model",
            *wanted,
            names,
            link.address,
            since.path,
            since.step,
        )


def _listed(tables: Sequence[str]) -> str:
    return ", ".join(map(repr, tables))


def refuse(what: str) -> NoReturn:
    """Says how a served buffer is saved.

    Raises:
      ValueError: always.
    """
    raise ValueError(
        f"{what}: what is served is saved by its server, on the server's machine: start it with ReplayServer(..., "
        "checkpoint_dir=...), and call checkpoint(); it begins with its newest checkpoint when it is started again."
    )


def _take(link: ServerLink, watch: Watch, step: int | None) -> CheckpointReport:
    """Asks until the server says that a checkpoint which was begun after this call, with this step, is complete.

    The server, or another client, may overwrite what is asked, or be started anew: it is asked again.
    """
    after: int | None = None
    poll_s = _POLL_SECONDS
    while True:
        told = _read(link, watch)
        status = told.status
        # A server that was started anew may count from less.
        after = status.begun if after is None else min(after, status.begun)
        for attempt, report in status.done:
            if attempt > after and step in (None, report.step):
                return report
        if status.failed > after and status.problem is not None and step in (None, status.begun_step):
            raise RuntimeError(f"server {link.address} could not complete a checkpoint: {status.problem}")
        is_begun = status.is_writing and status.begun > after and step in (None, status.begun_step)
        if not is_begun and not told.is_asked:
            _tell(link, watch, told, told.step if step is None else step, is_asked=True)
        what = "is being written" if status.is_writing else "is asked for"
        watch.tell_or_raise(f"server {link.address}: a checkpoint {what} and not complete yet; waiting")
        link.pause(min(poll_s, watch.remaining()))
        poll_s = min(1.2 * poll_s, _LONGEST_POLL_SECONDS)


def _read(link: ServerLink, watch: Watch) -> Told:
    return call_again(link, watch, lambda: read_status(link.client), "what the server says", _SLICE_SECONDS)


def _tell(link: ServerLink, watch: Watch, told: Told, step: int | None, *, is_asked: bool) -> None:
    call_again(link, watch, lambda: tell_step(link.client, told.key, step, is_asked=is_asked), "a step")


def _status_at_once(link: ServerLink) -> tuple[ServerStatus, int | None] | None:
    """`status_of`; None, and a warning, where the server does not answer at once."""
    try:
        link.ask(1.0)
        return status_of(link)
    except (RuntimeError, load_reverb().DeadlineExceededError, WaitTimeoutError) as error:
        _logger.warning("%s: %s", link.no_answer(), error)
        return None
