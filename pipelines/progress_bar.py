"""The bar of long work on stderr: lively on a terminal, few lines in a log."""

from __future__ import annotations

import sys

from tqdm import tqdm


def progress_bar(what: str, total: int | None, unit: str = "episode", *, progress: bool = True) -> tqdm:
    """A bar that counts to `total`; None: to an end that is unknown.

    >>> with progress_bar("fill from mine", 3, progress=False) as bar:
    ...     _ = bar.update(1)
    """
    to_terminal = sys.stderr.isatty()
    return tqdm(
        total=total,
        desc=what,
        unit=unit,
        disable=not progress,
        # In a log each update is more text: none for short work, few for long.
        mininterval=0.1 if to_terminal else 5.0,
        delay=0.0 if to_terminal else 1.0,
    )
