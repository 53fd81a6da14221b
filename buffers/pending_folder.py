"""A folder that is written under a hidden name, and gets its own when everything in it is on the disk.

A process that is killed leaves the hidden folder. Whoever writes to the same place later removes it: a folder whose
process lives is locked.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import uuid


class PendingFolder:
    """A new hidden folder in `parent`, locked by this process until it is published or discarded.

    Hidden folders of the same `name` that processes left which are gone are removed.

    Args:
      parent: the folder that it is made in.
      name: part of its hidden name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     folder = PendingFolder(parent, "save")
    ...     os.mkdir(os.path.join(folder.path, "a"))
    ...     before = [name for name in os.listdir(parent) if not name.startswith(".")]
    ...     folder.publish("mine")
    ...     before, os.listdir(parent), os.listdir(os.path.join(parent, "mine"))
    ([], ['mine'], ['a'])
    """

    def __init__(self, parent: str, name: str) -> None:
        self._parent = parent
        os.makedirs(parent, exist_ok=True)
        _remove_left_behind(parent, name)
        unique = uuid.uuid4().hex[:12]
        started = os.path.join(parent, f".{name}.starting-{unique}")
        self.path = os.path.join(parent, f".{name}.writing-{unique}")
        os.mkdir(started)
        # Whoever finds the folder without this lock may remove it, so it has its name only once it is locked.
        self._lock: int | None = os.open(started, os.O_RDONLY)
        _try_lock(self._lock)
        os.rename(started, self.path)

    def publish(self, name: str) -> None:
        """Gives it this name in `parent`, for good; its files are on the disk already.

        Raises:
          OSError: something is there.
        """
        sync(self.path)
        os.rename(self.path, os.path.join(self._parent, name))
        sync(self._parent)
        self.unlock()

    def discard(self) -> None:
        """Removes it, where it has not been published."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.unlock()

    def unlock(self) -> None:
        """Others may remove it, where it still has its hidden name."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_folder(path: str, name: str) -> None:
    """Removes a folder with all that is in it, so that a process that is killed meanwhile leaves no half of it.

    Args:
      path: the folder.
      name: as of `PendingFolder`; the next one of that name removes what is left.
    """
    hidden = os.path.join(os.path.dirname(path), f".{name}.writing-{uuid.uuid4().hex[:12]}")
    try:
        os.rename(path, hidden)
    except FileNotFoundError:  # another process was quicker
        return
    shutil.rmtree(hidden, ignore_errors=True)


def sync(path: str) -> None:
    """Waits until a file's or a folder's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_left_behind(parent: str, name: str) -> None:
    for folder in glob.glob(os.path.join(glob.escape(parent), f".{glob.escape(name)}.writing-*")):
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            if _try_lock(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Held by a living process, or on a file system that has no locks: then nothing is removed.
        return False
    return True
