"""A folder that appears as a whole, or not at all, however the process ends.

It is written beside its place, under a hidden name, and renamed when everything in it is on
the disk. A process that is killed leaves the hidden folder; the next write to the same place
removes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil

from replayfeed.buffers.pending_folder import PendingFolder, sync

from .rlds_folder import INFO_FILE

# Of renameat2: https://man7.org/linux/man-pages/man2/rename.2.html.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class NewFolder:
    """The folder that becomes `path`.

    Args:
      path: where it is to appear; folders above it are made.
      overwrite: whether a TFDS dataset that is there is replaced, at the end.

    Raises:
      ValueError: `path` is the address of another machine (`gs://...`).
      FileExistsError: something is at `path`, other than an empty folder, and may not be replaced:
        `overwrite` is not set, it is no TFDS dataset, or other files lie in its folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     folder = NewFolder(os.path.join(parent, "mine"), overwrite=False)
    ...     os.mkdir(os.path.join(folder.temporary, "a"))
    ...     before = [name for name in os.listdir(parent) if not name.startswith(".")]
    ...     folder.commit()
    ...     before, os.listdir(parent), os.listdir(os.path.join(parent, "mine"))
    ([], ['mine'], ['a'])
    """

    def __init__(self, path: str, *, overwrite: bool) -> None:
        if "://" in path:
            raise ValueError(f"path must be of this machine, got {path!r}; write to a disk, and copy the folder.")
        # A link stays one: what it points to is what is written.
        self._path = os.path.realpath(path)
        self._overwrite = overwrite
        self._check()
        parent, name = os.path.split(self._path)
        self._pending = PendingFolder(parent, name)
        self.temporary = self._pending.path

    def commit(self) -> None:
        """Makes the folder appear at its place.

        Raises:
          FileExistsError: another process has written there meanwhile.
        """
        for name in os.listdir(self.temporary):
            sync(os.path.join(self.temporary, name))
        sync(self.temporary)
        parent = os.path.dirname(self._path)
        self._check()
        try:
            if _is_dataset(self._path):
                _exchange(self.temporary, self._path)
                sync(parent)
                shutil.rmtree(self.temporary)
            else:
                os.rename(self.temporary, self._path)
                sync(parent)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise FileExistsError(f"{self._path!r} was written by another process meanwhile.") from error
        self._pending.unlock()

    def discard(self) -> None:
        """Removes what was written, where it has not appeared."""
        self._pending.discard()

    def _check(self) -> None:
        path = self._path
        if not os.path.lexists(path) or (os.path.isdir(path) and not os.listdir(path)):
            return
        if not _is_dataset(path):
            raise FileExistsError(f"{path!r} exists, and is no TFDS dataset, so it is not replaced; give another path.")
        if not self._overwrite:
            raise FileExistsError(
                f"{path!r} holds a dataset already; give another path, or overwrite=True to replace all of it."
            )
        foreign = sorted(name for name in os.listdir(path) if not _is_of_a_dataset(name))
        if foreign:
            raise FileExistsError(
                f"{path!r} holds what is of no dataset, and would be lost: {', '.join(foreign[:5])}"
                f"{', ...' if len(foreign) > 5 else ''}; move it, or give another path."
            )


def _is_dataset(path: str) -> bool:
    return os.path.isfile(os.path.join(path, INFO_FILE))


def _is_of_a_dataset(name: str) -> bool:
    own = (INFO_FILE, "features.json", "metadata.json")
    return name in own or name.endswith(".labels.txt") or ".tfrecord" in name or ".array_record" in name


def _exchange(one: str, other: str) -> None:
    """Swaps two folders, at once where the system can; otherwise there is a moment with none at `other`."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        renameat2 = None
    if renameat2 is not None:
        failed = renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
        if not failed:
            return
        if ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), other)
    away = f"{one}-old"
    os.rename(other, away)
    os.rename(one, other)
    os.rename(away, one)
