"""The command `replayfeed`: where it begins. What it can do is in `commands.py`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command, and ends the process with its exit code.

    0: done. 1: the data are bad, or need a decision. 2: wrong usage, nothing was done.

    Args:
      arguments: of the command line; None: the process's own.

    >>> try:
    ...     main(["validate", "--unknown"])
    ... except SystemExit as end:
    ...     print(end.code)
    2
    """
    # TensorFlow reads it when it is first imported; its notices would stand between the progress bars.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        from .commands import app
    except ImportError as error:
        print(f"replayfeed: its commands need typer: install replayfeed[cli] ({error}).", file=sys.stderr)
        sys.exit(2)
    with _log_on_stderr():
        app(args=arguments, prog_name="replayfeed")


@contextlib.contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Shows what this package logs, such as which episodes a load drops, whatever else configures logging."""
    logger = logging.getLogger("replayfeed")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("replayfeed: %(message)s"))
    propagated = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
