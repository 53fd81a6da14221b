"""cpprb's ReplayBuffer to a file and back: `save_transitions` by its defaults (compressed), `load_transitions`."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

from cpprb import ReplayBuffer
from worker import Buffer, Experience, serve


class CpprbSaving(Buffer):
    calls_are_long = True

    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        fields = {name: {"shape": leaf.shape[1:] or 1, "dtype": leaf.dtype} for name, leaf in experience.frames.items()}
        self._buffer = ReplayBuffer(capacity, fields)
        self._path = pathlib.Path(tempfile.mkdtemp(), "transitions.npz")

    def fill(self) -> None:
        for frames, _ in self.experience.blocks(self.capacity):
            self._buffer.add(**frames)

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"save": self._save, "load": self._load}

    def _save(self) -> Callable[[], Any]:
        return lambda: self._buffer.save_transitions(str(self._path))

    def _load(self) -> Callable[[], Any]:
        self._buffer.save_transitions(str(self._path))

        def call() -> None:
            self._buffer.clear()
            self._buffer.load_transitions(str(self._path))

        return call


if __name__ == "__main__":
    serve(CpprbSaving)
