"""Calls of a Reverb server that are made again until it has answered: it may be away, and come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .base import WaitTimeoutError
from .reverb_import import load_reverb
from .reverb_link import ServerLink, Watch

_T = TypeVar("_T")

_RETRY_SECONDS = 0.05
# An error of a server that answers everything else is the call's own, not that of a connection that broke.
_ATTEMPTS = 3


def call_again(
    link: ServerLink, watch: Watch, function: Callable[[], _T], what: str, slice_s: float = float("inf")
) -> _T:
    """`function()`, which may be carried out twice, until it succeeds or the watch's time is up.

    Args:
      link: the server.
      watch: says how long it may take.
      function: the call.
      what: it is, for the log.
      slice_s: after so many seconds it is left and made anew.

    Raises:
      WaitTimeoutError: the time is up.
      RuntimeError: it fails, and the server answers otherwise.
      ValueError: the buffer is closed meanwhile.
    """
    num_failed = 0
    while True:
        try:
            return link.call(function, what, min(slice_s, watch.remaining()) - link.timeout_s)
        except WaitTimeoutError:
            why = f"server {link.address} does not answer; waiting for {what} of table {link.table!r}"
        except RuntimeError:
            num_failed += _answers(link)
            if num_failed == _ATTEMPTS:
                raise
            why = link.no_answer()
        watch.tell_or_raise(why)
        link.pause(_RETRY_SECONDS)


def tables_in(link: ServerLink, watch: Watch) -> dict[str, Any]:
    """Every table's `TableInfo`, by name.

    Raises:
      WaitTimeoutError: the server does not answer within the watch's time.
    """
    while True:
        try:
            return link.ask(watch.remaining())
        except (RuntimeError, load_reverb().DeadlineExceededError):
            watch.tell_or_raise(link.no_answer())
            link.pause(_RETRY_SECONDS)


def _answers(link: ServerLink) -> bool:
    try:
        link.ask(1.0)
    except (RuntimeError, load_reverb().DeadlineExceededError):
        return False
    return True
