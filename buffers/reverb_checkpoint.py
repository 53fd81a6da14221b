"""Checkpoints of served tables as clients see them: asked for, told of, and compared with a model's checkpoint."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any, NoReturn

from .base import WaitTimeoutError
from .reverb_control import CONTROL_TABLE, CheckpointReport, ServerStatus, check_step, read_status, tell_step
from .reverb_import import load_reverb
from .reverb_link import ServerLink, Watch
from .server import ReplayServer

_logger = logging.getLogger(__name__)

_KIND = "replayfeed served buffer"
_POLL_SECONDS = 0.05
# Another client may tell another step, or the server write its table anew, between our step and our checkpoint.
_ATTEMPTS = 3


def take_checkpoint(link: ServerLink, local_server: Any, step: int | None, timeout_s: float) -> CheckpointReport:
    """Asks the server for a checkpoint, and returns when it is complete.

    Args:
      link: the server.
      local_server: the server, if it is in this process.
      step: the trainer's; None: as last told.
      timeout_s: how long it may take.

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
    if CONTROL_TABLE not in link.tables():
        if step is not None:
            raise ValueError(
                f"server {link.address} was not started with ReplayServer(..., checkpoint_dir=...): it cannot be told "
                "a step. Start it so, or leave out step for Reverb's own checkpoint."
            )
        began = time.monotonic()
        path = _ask(link, watch, timeout_s)
        _logger.warning(
            "server %s was not started with ReplayServer(..., checkpoint_dir=...): Reverb's own checkpointer has put "
            "its tables into %s there, and nobody checks it, keeps it or begins with it",
            link.address,
            path,
        )
        return CheckpointReport(path, None, {}, 0, time.monotonic() - began)
    for _ in range(_ATTEMPTS):
        if step is not None:
            mark_step(link, step)
        before = status_of(link)
        name = os.path.basename(_ask(link, watch, timeout_s))
        report = _told(link, name, watch, None if before is None else before[0].problem)
        if step is None or report.step == step:
            return report
    raise RuntimeError(
        f"server {link.address}: checkpoint {report.path} is complete, but another client has told step {report.step} "
        f"before {step} could be written into it; let one of them tell the step."
    )


def mark_step(link: ServerLink, step: int) -> None:
    """Tells the server the trainer's step, for its checkpoints from now on.

    Raises:
      TypeError, ValueError: `step` is no int, or negative.
      ValueError: the server keeps no checkpoints.
      WaitTimeoutError: the server does not answer within the link's timeout.
    """
    check_step(step)
    if CONTROL_TABLE not in link.tables():
        raise ValueError(
            f"server {link.address} keeps no checkpoints, which could have a step: start it with "
            "ReplayServer(..., checkpoint_dir=...)."
        )
    key = link.call(lambda: read_status(link.client), "what the server says")[0]
    link.call(lambda: tell_step(link.client, key, step), "a step")


def status_of(link: ServerLink) -> tuple[ServerStatus, int | None] | None:
    """What the server says of its checkpoints, and the step last told; None: it keeps none.

    Raises:
      WaitTimeoutError: it does not answer within the link's timeout.
    """
    if CONTROL_TABLE not in link.tables():
        return None
    _, status, step = link.call(lambda: read_status(link.client), "what the server says")
    return status, step


def to_bytes(link: ServerLink) -> bytes:
    """What a model's checkpoint keeps of a served buffer: where its server's newest checkpoint is, not its contents.

    A server that does not answer does not keep the model from being saved: a warning says so.
    """
    told = _status_at_once(link)
    newest = None
    if told is not None:
        status, _ = told
        started = None if status.started_from is None else [status.started_from, status.started_step]
        newest = started if status.last is None else [status.last.path, status.last.step]
    if newest is None:
        _logger.warning(
            "table %r at %s is saved by its server, of which no checkpoint is known: call checkpoint() before the "
            "model's checkpoint is saved",
            link.table,
            link.address,
        )
    plain = {"kind": _KIND, "address": link.address, "table": link.table, "checkpoint": newest}
    return json.dumps(plain).encode()


def compare_with(link: ServerLink, saved: bytes) -> None:
    """Warns where the server did not begin with the checkpoint that `to_bytes` told of.

    Raises:
      ValueError: `saved` is not of a served buffer.
    """
    try:
        plain = json.loads(bytes(saved).decode())
        is_ours = plain["kind"] == _KIND
    except (UnicodeDecodeError, json.JSONDecodeError, TypeError, KeyError) as error:
        raise ValueError("this is not what a served buffer has saved: was it another buffer's?") from error
    if not is_ours:
        raise ValueError(f"this is not what a served buffer has saved, but {plain['kind']!r}.")
    wanted = plain["checkpoint"]
    told = _status_at_once(link)
    if wanted is None:
        _logger.warning("the model was saved when no checkpoint of table %r was known", link.table)
    elif told is None:
        _logger.warning(
            "the model was saved with checkpoint %s (step %s) of table %r; if server %s began with it is not known",
            *wanted,
            link.table,
            link.address,
        )
    elif told[0].started_from != wanted[0]:
        status = told[0]
        last = "" if status.last is None else f", and has taken {status.last.path} (step {status.last.step}) since"
        began = "empty" if status.started_from is None else f"with {status.started_from} (step {status.started_step})"
        _logger.warning(
            "the model was saved with checkpoint %s (step %s) of table %r, but server %s began %s%s: what is drawn is "
            "older or newer than the model. Start the server anew with that checkpoint as the newest in its folder.",
            *wanted,
            link.table,
            link.address,
            began,
            last,
        )


def refuse(what: str) -> NoReturn:
    """Says how a served buffer is saved.

    Raises:
      ValueError: always.
    """
    raise ValueError(
        f"{what}: what is served is saved by its server, on the server's machine: start it with ReplayServer(..., "
        "checkpoint_dir=...), and call checkpoint(); it begins with its newest checkpoint when it is started again."
    )


def _ask(link: ServerLink, watch: Watch, timeout_s: float) -> str:
    """Reverb's own call; a server that is away for a moment is waited for."""
    while True:
        try:
            extra_s = max(0.0, min(timeout_s, watch.remaining()) - link.timeout_s)
            return link.call(link.client.checkpoint, "a checkpoint", extra_s)
        except RuntimeError:
            try:
                link.ask(1.0)
            except (RuntimeError, load_reverb().DeadlineExceededError):
                watch.tell_or_raise(link.no_answer())
                link.pause(_POLL_SECONDS)
                continue
            raise


def _told(link: ServerLink, name: str, watch: Watch, problem_before: str | None) -> CheckpointReport:
    """What the server says when it has completed a checkpoint."""
    while True:
        told = status_of(link)
        last = None if told is None else told[0].last
        if last is not None and os.path.basename(last.path) == name:
            return last
        if told is not None and told[0].problem not in (None, problem_before):
            raise RuntimeError(f"server {link.address} could not complete checkpoint {name}: {told[0].problem}")
        watch.tell_or_raise(f"server {link.address}: checkpoint {name} is written and not complete yet; waiting")
        link.pause(_POLL_SECONDS)


def _status_at_once(link: ServerLink) -> tuple[ServerStatus, int | None] | None:
    """`status_of`; None, and a warning, where the server does not answer at once."""
    try:
        link.ask(1.0)
        return status_of(link)
    except (RuntimeError, load_reverb().DeadlineExceededError, WaitTimeoutError) as error:
        _logger.warning("%s: %s", link.no_answer(), error)
        return None
