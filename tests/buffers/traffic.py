"""Writers that never rest, for tests of torn reads, and how long these read beside them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

# What all long cases of a file take together.
TOTAL_S = float(os.environ.get("REPLAYFEED_TORN_READS_S", "20"))
# What a case takes longer where so little time is too short for both sides to get going; what passes takes none of it.
PATIENCE_S = 120.0
# Without protection torn rows come by the hundred a second, or the thousand; this is time for the first.
UNPROTECTED_S = 120.0


class Traffic:
    """Two threads that add, again and again, as long as the block lasts.

    Args:
      add: one add; it is given the number of its writer, 0 or 1, and how many frames that one has added, and returns
        how many it added now.

    Attributes:
      added: frames that each writer has added.
    """

    def __init__(self, add: Callable[[int, int], int]) -> None:
        self.added = [0, 0]
        self._errors: list[BaseException] = []
        self._add = add
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(writer,), daemon=True) for writer in (0, 1)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not self._errors, self._errors
        assert not any(thread.is_alive() for thread in self._threads)

    def _run(self, writer: int) -> None:
        try:
            while not self._stop.is_set():
                self.added[writer] += self._add(writer, self.added[writer])
        except BaseException as error:
            self._errors.append(error)
