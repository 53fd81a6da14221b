"""The command `replayfeed`: where it begins. What it can do is in `cli_commands.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


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
        from .cli_commands import app
    except ImportError as error:
        print(f"replayfeed: its commands need typer: install replayfeed[cli] ({error}).", file=sys.stderr)
        sys.exit(2)
    app(args=arguments, prog_name="replayfeed")


if __name__ == "__main__":
    main()
