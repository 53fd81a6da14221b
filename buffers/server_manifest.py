"""Folders of a served buffer's checkpoints: which there are, which are complete, and what our manifest says of them.

A checkpoint is a folder that Reverb has named by the time, with Reverb's files `tables.tfrecord`, `items.tfrecord` and
`chunks.tfrecord`, our `manifest.json` and, made last, Reverb's empty file `DONE`. One without manifest was written by
plain Reverb. Nothing here knows TensorFlow or Reverb.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import fcntl
import json
import logging
import os
import pathlib
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from .base import WaitTimeoutError

_logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
DONE = "DONE"
_LOCK = "lock"
DATA_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")
_FORMAT_VERSION = 1
_KIND = "replayfeed served checkpoint"
_BLOCK_BYTES = 1 << 22
_NAME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([+-]\d\d:\d\d|Z)")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is told beside Reverb's files.

    Attributes:
      time: when it was taken, seconds since 1970.
      step: what the trainer said of it; None: nothing.
      tables: each `TableConfig` as `to_dict`; None for tables that were given ready.
      items: items by Reverb's tables, those beside a table included.
      files: size in bytes and CRC-32 of each of Reverb's files.
      number: greater than that of every checkpoint that was in the folder: clocks can go back.
    """

    time: float
    step: int | None
    tables: tuple[Mapping[str, Any] | None, ...]
    items: Mapping[str, int]
    files: Mapping[str, tuple[int, int]]
    number: int

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(size for size, _ in self.files.values())


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A folder that is, or was to become, a checkpoint.

    Attributes:
      path: the folder.
      time_ns: the time in its name, nanoseconds since 1970.
      manifest: ours; None: plain Reverb wrote it, or it has none yet.
      problem: why it is not complete; None: all is there.
    """

    path: pathlib.Path
    time_ns: int
    manifest: Manifest | None
    problem: str | None

    @property
    def was_finished(self) -> bool:
        """Whether it was complete once, whatever has become of it: our manifest is written last but for `DONE`."""
        return any((self.path / name).exists() for name in (DONE, MANIFEST))


class LockedFolder:
    """A folder of checkpoints, made if it is not there, for one server at a time.

    The lock is the operating system's: it goes with the process, however that ends.

    Args:
      path: the folder.

    Raises:
      ValueError: another server uses it.
      OSError: it cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path).expanduser().absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self._file = _locked(self.path)

    def hold(self) -> None:
        """Makes and locks it anew where somebody has deleted it.

        Raises:
          ValueError: another server uses it meanwhile.
          OSError: it cannot be made.
        """
        try:
            if os.path.samestat(os.fstat(self._file.fileno()), (self.path / _LOCK).stat()):
                return
        except FileNotFoundError:
            pass
        _logger.warning("checkpoint_dir %s, or its lock, was deleted while its server ran; it is made anew", self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        anew = _locked(self.path)
        self._file.close()
        self._file = anew

    def close(self) -> None:
        """Lets the folder go."""
        self._file.close()


def time_in_name(name: str) -> int | None:
    """The time by which Reverb named a checkpoint, nanoseconds since 1970; None: it is no such name.

    >>> time_in_name("1970-01-01T01:00:00.5+01:00"), time_in_name("step-1")
    (500000000, None)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    seconds, fraction, zone = match.groups()
    moment = dt.datetime.fromisoformat(seconds + ("+00:00" if zone == "Z" else zone))
    return int(moment.timestamp()) * 10**9 + int((fraction or "").ljust(9, "0"))


def find_checkpoints(folder: pathlib.Path) -> list[Checkpoint]:
    """The checkpoints in a folder, newest first, also those that are not complete. Their contents are not read.

    The numbers in manifests say which is newer. What has no manifest has its place by the time in its name.

    Raises:
      ValueError: one has a manifest of another format version, which must not be passed over for an older checkpoint.
    """
    found = []
    for path in folder.iterdir():
        time_ns = time_in_name(path.name)
        if time_ns is not None and path.is_dir():
            found.append(look_at(path, time_ns))
    return newest_first(found)


def newest_number(found: Sequence[Checkpoint]) -> int:
    """The greatest number that a manifest in a folder tells; 0: there is none."""
    return max((one.manifest.number for one in found if one.manifest is not None), default=0)


def later_names(found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Complete checkpoints that are older than the newest one, and have a later time in their name."""
    ours = [one for one in found if one.problem is None and one.manifest is not None]
    return [one for one in ours[1:] if one.time_ns > ours[0].time_ns]


def look_at(path: pathlib.Path, time_ns: int) -> Checkpoint:
    """What a folder's names and sizes tell.

    Args:
      path: the folder.
      time_ns: the time in its name.

    Raises:
      ValueError: its manifest has another format version.
    """
    manifest: Manifest | None = None
    problem = None if (path / DONE).exists() else f"{DONE} is missing"
    if (path / MANIFEST).exists():
        try:
            plain = _plain_from((path / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            problem = f"{MANIFEST}: {error}"
        else:
            _check_version(plain, path)
            manifest = _manifest_from(plain)
            problem = problem if manifest is not None else f"{MANIFEST} lacks something"
    for name in DATA_FILES:
        if not (path / name).exists():
            problem = problem or f"{name} is missing"
        elif manifest is not None:
            size = (path / name).stat().st_size
            wanted = manifest.files[name][0]
            if size != wanted:
                problem = problem or f"{name} has {size:,} bytes, its manifest says {wanted:,}"
    return Checkpoint(path, time_ns, manifest, problem)


def read_through(checkpoint: Checkpoint, tell: Callable[[int, int], object], deadline: float) -> str | None:
    """Reads all files once and compares them with the manifest; they are in memory then, for Reverb to read.

    Without a manifest their compression is followed to its end, which a file cut short does not have.

    Args:
      checkpoint: the folder.
      tell: is given bytes read and bytes in all, after each block.
      deadline: `time.monotonic()` until when it may take.

    Returns:
      What is wrong; None: nothing.

    Raises:
      WaitTimeoutError: the deadline has passed.
    """
    paths = [checkpoint.path / name for name in DATA_FILES]
    total, num_read = sum(path.stat().st_size for path in paths), 0
    for path in paths:
        checksum, stream = 0, zlib.decompressobj()
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                if checkpoint.manifest is not None:
                    checksum = zlib.crc32(block, checksum)
                elif (problem := _follow(stream, block)) is not None:
                    return f"{path.name}: {problem}"
                num_read += len(block)
                tell(num_read, total)
                if time.monotonic() > deadline:
                    raise WaitTimeoutError(
                        f"checkpoint {checkpoint.path}: {num_read:,} of {total:,} bytes are read and the time is up; "
                        "give a larger restore_timeout_s, or look at the disk."
                    )
        if checkpoint.manifest is None:
            if not stream.eof:
                return f"{path.name} is cut short"
        elif checksum != checkpoint.manifest.files[path.name][1]:
            return f"{path.name} is not what was written (its CRC-32 differs from the manifest's)"
    return None


def files_of(path: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Size in bytes and CRC-32 of each of Reverb's files, which are on the disk for good when this returns."""
    files = {}
    for name in DATA_FILES:
        checksum, size = 0, 0
        with (path / name).open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                checksum, size = zlib.crc32(block, checksum), size + len(block)
            os.fsync(file.fileno())
        files[name] = (size, checksum)
    return files


def write_manifest(path: pathlib.Path, manifest: Manifest) -> None:
    """Writes `manifest.json`, then `DONE`: whenever this is cut short, the folder has no `DONE`."""
    plain = {
        "kind": _KIND,
        "format_version": _FORMAT_VERSION,
        "number": manifest.number,
        "time": manifest.time,
        "step": manifest.step,
        "items": dict(manifest.items),
        "files": {name: list(numbers) for name, numbers in manifest.files.items()},
        "tables": [None if table is None else dict(table) for table in manifest.tables],
    }
    _write(path / MANIFEST, json.dumps(plain, indent=1))
    _sync_folder(path)
    _write(path / DONE, "")
    _sync_folder(path)
    _sync_folder(path.parent)


def remove_checkpoint(path: pathlib.Path) -> None:
    """Deletes a checkpoint: `DONE` first, so that what is left of it when this is cut short is not taken for one."""
    for name in (DONE, MANIFEST, *DATA_FILES):
        (path / name).unlink(missing_ok=True)
    if not path.exists():  # Reverb has deleted it
        return
    for rest in path.iterdir():  # what a write that was cut short has left
        if rest.name.endswith(".partial"):
            rest.unlink()
    try:
        path.rmdir()
    except OSError:
        _logger.warning("checkpoint %s: there are files of others in it, which are left", path)


def to_remove(found: Sequence[Checkpoint], keep_last: int | None) -> list[Checkpoint]:
    """Which of our checkpoints go, when the newest ones are to be kept, and unfinished ones that are older than those.

    What was finished and is damaged stays: it may be what somebody wants to repair.

    Args:
      found: newest first.
      keep_last: so many complete ones stay; None: all.
    """
    complete = [checkpoint for checkpoint in found if checkpoint.problem is None and checkpoint.manifest is not None]
    if not complete:
        return []
    old = [] if keep_last is None else complete[keep_last:]
    older = found[found.index(complete[0]) :]
    unfinished = [one for one in older if one.problem is not None and not one.was_finished]
    return [*old, *unfinished]


def _follow(stream: Any, block: bytes) -> str | None:
    """What is wrong with the next block of compressed data."""
    try:
        while block:
            stream.decompress(block, _BLOCK_BYTES)
            block = stream.unconsumed_tail
    except zlib.error as error:
        return f"cannot be read ({error})"
    return None


def _plain_from(text: str) -> dict[str, Any]:
    """The manifest as JSON tells it.

    Raises:
      ValueError: it is cut short, or something else.
    """
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is cut short, or no JSON ({error})") from error
    if not isinstance(plain, dict) or plain.get("kind") != _KIND:
        raise ValueError("it is not the manifest of a served buffer's checkpoint")
    return plain


def _check_version(plain: Mapping[str, Any], path: pathlib.Path) -> None:
    version = plain.get("format_version")
    if version != _FORMAT_VERSION:
        raise ValueError(
            f"checkpoint {path} has format version {version!r}, this version of replayfeed reads {_FORMAT_VERSION}: "
            "use the one that wrote it, or another checkpoint_dir."
        )


def _manifest_from(plain: Mapping[str, Any]) -> Manifest | None:
    """The manifest; None where something is missing."""
    try:
        files = {name: (int(plain["files"][name][0]), int(plain["files"][name][1])) for name in DATA_FILES}
        step = plain["step"]
        return Manifest(
            time=float(plain["time"]),
            step=None if step is None else int(step),
            tables=tuple(plain["tables"]),
            items={str(name): int(count) for name, count in plain["items"].items()},
            files=files,
            number=int(plain["number"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None


def newest_first(found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those with numbers in their order; each other one before those whose times, or those of older ones, are later."""
    placed, latest = [], 0
    numbered = [(one.manifest.number, one.time_ns, one) for one in found if one.manifest is not None]
    for number, time_ns, one in sorted(numbered, key=lambda entry: entry[:2]):
        latest = max(latest, time_ns)
        placed.append((latest, number, one))
    placed += [(one.time_ns, 0, one) for one in found if one.manifest is None]
    return [one for _, _, one in sorted(placed, key=lambda entry: entry[:2], reverse=True)]


def _locked(folder: pathlib.Path) -> IO[str]:
    """The file whose lock is the folder's."""
    file = (folder / _LOCK).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ValueError(
            f"checkpoint_dir {folder}: another server uses it; stop that one, or give each a folder of its own."
        ) from error
    except OSError:
        file.close()
        raise
    return file


def _write(path: pathlib.Path, text: str) -> None:
    beside = path.with_name(path.name + ".partial")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _sync_folder(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
