"""A buffer in a `tf.train.Checkpoint` whose contents are saved beside it, in a folder."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from .save_reports import RestoreReport, SaveReport
from .saved_folder import check_retention, find_saves, is_save, open_save

if TYPE_CHECKING:
    from .restorable import Restorable

_FORMAT = "replayfeed saved beside"
_VERSION = 1


class SavedBeside(tf.train.experimental.PythonState):
    """What `Restorable.saved_in` gives; see there.

    Attributes:
      last_save: what the last checkpoint saved of the buffer; None before the first.
      last_restore: what the last restored checkpoint brought; None before the first.
    """

    def __init__(
        self,
        buffer: Restorable,
        folder: str | os.PathLike[str],
        *,
        step: tf.Variable | Callable[[], int] | None,
        keep_last: int | None,
        keep_every: int | None,
        iterators: Mapping[str, Any] | None,
    ) -> None:
        check_retention(keep_last, keep_every)
        if "://" in os.fspath(folder):
            raise ValueError(f"folder must be of this machine, got {os.fspath(folder)!r}; save to a disk, and copy it.")
        if step is not None and not isinstance(step, tf.Variable) and not callable(step):
            raise TypeError(
                f"step must be a tf.Variable or a function without arguments, to be asked at each save, got {step!r}."
            )
        self.last_save: SaveReport | None = None
        self.last_restore: RestoreReport | None = None
        self._buffer = buffer
        # A process that changes its folder later still saves there.
        self._folder = os.path.abspath(folder)
        self._step = step
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._iterators = iterators

    def serialize(self) -> bytes:
        """Called by TensorFlow when it saves: saves the buffer, and tells which save that is.

        Raises:
          OSError, TypeError, ValueError: as `save`.
        """
        report = self._buffer.save(
            self._folder,
            step=self._step_now(),
            # A process may be killed before TensorFlow has written this checkpoint: the one before must find its save.
            keep_last=None if self._keep_last is None else self._keep_last + 1,
            keep_every=self._keep_every,
            iterators=self._iterators,
        )
        self.last_save = report
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "name": os.path.basename(report.path),
            "step": report.step,
            "manifest": open_save(report.path).manifest["crc32"],
        }
        return json.dumps(content).encode()

    def deserialize(self, string_value: bytes) -> None:
        """Called by TensorFlow when it restores: the buffer takes over exactly the save of the checkpoint.

        Raises:
          FileNotFoundError: that save is not in the folder.
          ValueError: it was written anew since, or the checkpoint holds something else under this name.
          ValueError: as `restore`.
        """
        content = _read(string_value)
        name, step = content["name"], content["step"]
        path = os.path.join(self._folder, name)
        instead = f"leave the buffer out of the checkpoint and call buffer.restore({self._folder!r}, step={step})"
        if not is_save(path):
            found = [save.name for save in find_saves(self._folder)[0]] if os.path.isdir(self._folder) else []
            raise FileNotFoundError(
                f"the checkpoint belongs to the save {name!r}, which is not in {self._folder!r}: there is "
                f"{', '.join(found) or 'none'}. Give saved_in the folder where it is now; or, where it was removed "
                f"(keep_last), {instead}."
            )
        if open_save(path).manifest["crc32"] != content["manifest"]:
            raise ValueError(
                f"{path!r} is not the save that the checkpoint belongs to, but a later one of the same step: {instead}."
            )
        self.last_restore = self._buffer.restore(path, iterators=self._iterators)

    def _step_now(self) -> int | None:
        if isinstance(self._step, tf.Variable):
            return int(self._step.numpy())
        return None if self._step is None else operator.index(self._step())


def _read(content: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(content)
    except ValueError:  # also what is no UTF-8
        plain = None
    if not isinstance(plain, dict) or plain.get("format") != _FORMAT:
        raise ValueError(
            "the checkpoint does not tell where the buffer was saved: a buffer given to tf.train.Checkpoint itself is "
            "restored by itself (buffer=buffer, without saved_in)."
        )
    if plain["version"] > _VERSION:
        raise ValueError(
            f"the checkpoint was written by a later replayfeed: it has version {plain['version']!r}, and this one "
            f"reads up to {_VERSION}; update the package."
        )
    return plain
