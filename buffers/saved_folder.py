"""Saves on the disk: folders in a folder, each with a manifest that tells all that is in it.

run/                          what `save` is given
step-000000001000/          a save, complete by itself
manifest.json             format, class, spec, settings, counters; names, sizes and checksums of all files
frames-000000.0.observation.npy ...   frames, in segments (`saved_frames.py`)
array.*.npy               the small arrays
iterators.*               places of datasets
.save.writing-...           one that is being written, or whose process was killed
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from .buffer_state import BufferState, HeldFrames
from .counts import check_count
from .fields import Field
from .pending_folder import PendingFolder, remove_folder
from .saved_fields import fields_from_plain, fields_to_plain
from .saved_files import FileRecord, NewFiles, check_size, checksum_of, read_array
from .saved_frames import FolderFrames, KnownFrames, Segment, write_frames

FORMAT = "replayfeed buffer"
VERSION = 1

_MANIFEST = "manifest.json"
# The last entry of a manifest is the checksum of what stands before it.
_CHECKSUM = b', "crc32": '
# What it begins with, which tells of each of very many saves what has to be known of all.
_HEAD = re.compile(
    rb'\{"format": "[^"]*", "version": \d+, "step": (\d+), "order": (\d+), "lineage": "([0-9a-f]*)"',
)
_HEAD_BYTES = 256
_NAME = re.compile(r"step-(\d{12,})(\.\d+)?")


@dataclasses.dataclass(frozen=True)
class SavedFolder:
    """A complete save.

    Attributes:
      path: of its folder.
      manifest: what it says of itself.
    """

    path: str
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of its folder."""
        return os.path.basename(self.path)

    @property
    def step(self) -> int:
        """Of the training."""
        return int(self.manifest["step"])

    @property
    def order(self) -> int:
        """Of two saves in one folder the later one has the higher number."""
        return int(self.manifest["order"])

    @property
    def lineage(self) -> str:
        """The same for saves of one buffer."""
        return str(self.manifest["lineage"])

    @property
    def kind(self) -> str:
        """The class of the buffer."""
        return str(self.manifest["state"]["kind"])

    @property
    def fields(self) -> tuple[Field, ...]:
        """Of a frame; empty for a buffer that keeps its frames in others."""
        return fields_from_plain(self.manifest["state"]["fields"])

    def state(self) -> BufferState:
        """What it holds; all but the fields of the frames is read, and all files are known to be there.

        Raises:
          ValueError: a file is missing, cut off or damaged; the message names it.
        """
        return _read_state(self.path, self.manifest["state"])

    def segments(self) -> dict[str, tuple[Segment, ...]]:
        """Its segments of frames, by the path of the part that they belong to (`''`, `'predator'`)."""
        return {path: _segments(self.path, plain) for path, plain in _parts(self.manifest["state"])}

    def iterators(self) -> list[FileRecord]:
        """Files of the places of datasets."""
        return [FileRecord.from_plain(plain) for plain in self.manifest["iterators"]]


@dataclasses.dataclass(frozen=True)
class Written:
    """What `write_save` wrote.

    Attributes:
      path: of the folder.
      num_bytes: of all its files.
      num_bytes_written: of those that were not linked.
      known: where the frames are saved now, by the path of the part that they belong to.
    """

    path: str
    num_bytes: int
    num_bytes_written: int
    known: Mapping[str, KnownFrames]


class SaveHead(NamedTuple):
    """What the beginning of a manifest tells.

    Attributes:
      path: of the folder.
      step: of the training.
      order: as of `SavedFolder`.
      lineage: as of `SavedFolder`.
    """

    path: str
    step: int
    order: int
    lineage: str


def list_saves(path: str) -> list[SaveHead]:
    """The saves in a folder that begin as one does, in the order in which they were written: quick, for many."""
    heads = []
    for entry in os.scandir(path):
        if _NAME.fullmatch(entry.name):
            try:
                with open(os.path.join(entry.path, _MANIFEST), "rb") as file:
                    found = _HEAD.match(file.read(_HEAD_BYTES))
            except OSError:
                continue
            if found:
                heads.append(SaveHead(entry.path, int(found[1]), int(found[2]), found[3].decode()))
    return sorted(heads, key=lambda head: head.order)


def is_save(path: str) -> bool:
    """Whether this is the folder of one save, or what is left of it, and not one that saves are in."""
    has_its_name = _NAME.fullmatch(os.path.basename(os.path.abspath(path))) is not None
    return os.path.isfile(os.path.join(path, _MANIFEST)) or (has_its_name and os.path.isdir(path))


def open_save(path: str) -> SavedFolder:
    """The save in this folder.

    Raises:
      ValueError: it is none, is damaged, or was written by a later version of this package.
    """
    file = os.path.join(path, _MANIFEST)
    try:
        with open(file, "rb") as opened:
            content = opened.read()
    except FileNotFoundError:
        raise ValueError(f"{path!r} is no save: it has no {_MANIFEST}.") from None
    body, separator, checksum = content.rpartition(_CHECKSUM)
    try:
        manifest = json.loads(content)
        is_ours = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    except ValueError as error:  # also what is no UTF-8
        raise ValueError(
            f"{file!r} is damaged, or none of ours: {error}. Restore another save, by its folder."
        ) from error
    if not is_ours:
        raise ValueError(f'{file!r} is not of this package: it does not say "format": {FORMAT!r}.')
    version = manifest.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(
            f"{path!r} was written by a later replayfeed: it has format {version!r}, and this one reads up to "
            f"{VERSION}; update the package."
        )
    if not separator or checksum != b"%d}" % zlib.crc32(body):
        raise ValueError(f"{file!r} is damaged: its checksum is wrong. Restore another save, by its folder.")
    return SavedFolder(path, manifest)


def find_saves(path: str) -> tuple[list[SavedFolder], list[str]]:
    """The complete saves in a folder, in the order in which they were written; and what looks like one and is none.

    Raises:
      FileNotFoundError: there is no such folder.
      NotADirectoryError: it is a file.
    """
    if os.path.isfile(path):
        raise NotADirectoryError(f"{path!r} is a file: give the folder that saves are in.")
    if not os.path.isdir(path):
        raise FileNotFoundError(f"there is no folder {path!r}: nothing was saved there.")
    saves, skipped = [], []
    for name in sorted(os.listdir(path)):
        if name.startswith(".save.writing-"):
            skipped.append(f"{name}: was not written to its end")
        elif _NAME.fullmatch(name):
            try:
                saves.append(open_save(os.path.join(path, name)))
            except (ValueError, OSError) as error:
                skipped.append(f"{name}: {error}")
    return sorted(saves, key=lambda save: save.order), skipped


def folders_with_saves(path: str) -> list[str]:
    """Folders in this one that saves are in."""
    inside = sorted(entry.path for entry in os.scandir(path) if entry.is_dir())
    return [folder for folder in inside if any(_NAME.fullmatch(name) for name in os.listdir(folder))]


def write_save(
    path: str,
    state: BufferState,
    *,
    step: int,
    lineage: str,
    extra: Mapping[str, Any],
    known: Mapping[str, KnownFrames],
    write_iterators: Callable[[str], list[str]] | None,
) -> Written:
    """Writes a new save into a folder.

    Args:
      path: the folder, made where it is not there.
      state: that a buffer gave.
      step: of the training; another save of the same step stays as it is.
      lineage: of the buffer, see `SavedFolder`.
      extra: plain values to keep in the manifest.
      known: where frames are saved already, by the path of the part that they belong to.
      write_iterators: writes more files into a folder and returns their names; None: there are none.

    Raises:
      OSError: it cannot be written; nothing is left of it.
    """
    pending = PendingFolder(path, "save")
    try:
        folder = pending.path
        written: dict[str, tuple[Segment, ...]] = {}
        # First: what is delivered from now on is not in the save.
        names = [] if write_iterators is None else write_iterators(folder)
        with NewFiles(folder) as files:
            plain = _write_state(files, "", "", state, known, written)
            files.wait()
        iterators = [_record_of(folder, name) for name in names]
        # Only now: another process may have saved to this folder meanwhile.
        order = max((head.order for head in list_saves(path)), default=-1) + 1
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "step": step,
            "order": order,
            "lineage": lineage,
            "time": time.time(),
            **extra,
            "iterators": [record.to_plain() for record in iterators],
            "state": plain,
        }
        body = json.dumps(manifest).encode()[:-1]
        with NewFiles(folder) as files:
            files.write_bytes(_MANIFEST, body + _CHECKSUM + b"%d}" % zlib.crc32(body))
            files.wait()
        name = f"step-{step:012d}"
        taken = os.listdir(path)
        final = next(each for each in (name, *(f"{name}.{i}" for i in range(1, len(taken) + 2))) if each not in taken)
        sizes = [(entry.stat().st_size, entry.stat().st_nlink) for entry in os.scandir(folder)]
        pending.publish(final)
    except BaseException:
        pending.discard()
        raise
    place = os.path.join(path, final)
    try:
        known_now = {part: KnownFrames.of(place, segments) for part, segments in written.items()}
    except FileNotFoundError:  # another process has removed it already: the next save links nothing
        known_now = {}
    new_bytes = sum(size for size, links in sizes if links == 1)
    return Written(place, sum(size for size, _ in sizes), new_bytes, known_now)


def check_retention(keep_last: Any, keep_every: Any) -> None:
    """Refuses what `remove_old` cannot heed.

    Raises:
      TypeError: one is no int.
      ValueError: one is below 1, or `keep_every` comes without `keep_last`.
    """
    check_count("keep_last", keep_last, optional=True)
    check_count("keep_every", keep_every, optional=True)
    if keep_every is not None and keep_last is None:
        raise ValueError("keep_every says which saves keep_last does not remove: give keep_last too.")


def remove_old(path: str, lineage: str, keep_last: int | None, keep_every: int | None) -> tuple[str, ...]:
    """Removes saves of one lineage as `keep_last` and `keep_every` say; returns their names.

    Of several of one step that would stay for ever the last one does.
    """
    if keep_last is None:
        return ()
    saves = [head for head in list_saves(path) if head.lineage == lineage]
    later: set[int] = set()
    removed = []
    for place, save in reversed(list(enumerate(saves))):
        stays = place >= len(saves) - keep_last
        if not stays and (keep_every is None or save.step % keep_every or save.step in later):
            remove_folder(save.path, "save")
            removed.append(os.path.basename(save.path))
        later.add(save.step)
    return tuple(reversed(removed))


def _write_state(
    files: NewFiles,
    part: str,
    prefix: str,
    state: BufferState,
    known: Mapping[str, KnownFrames],
    written: dict[str, tuple[Segment, ...]],
) -> dict[str, Any]:
    frames = None
    if state.frames is not None:
        segments = write_frames(files, prefix, state.frames, state.fields, known.get(part))
        written[part] = segments
        ids = state.frames.ids
        id_file = None
        if not isinstance(ids, range):
            id_file = files.write_array(f"{prefix}ids.npy", ids).to_plain()
        frames = {
            "ids": [ids.start, ids.stop, ids.step] if isinstance(ids, range) else None,
            "id_file": id_file,
            "columns": {
                name: [column.dtype.str, list(column.shape[1:])] for name, column in state.frames.columns.items()
            },
            "segments": [segment.to_plain() for segment in segments],
        }
    return {
        "kind": state.kind,
        "fields": fields_to_plain(state.fields),
        "settings": dict(state.settings),
        "values": dict(state.values),
        "arrays": {
            name: files.write_array(f"{prefix}array.{quote(name.replace(' ', '-'), safe='')}.npy", array).to_plain()
            for name, array in sorted(state.arrays.items())
        },
        "frames": frames,
        "parts": {
            name: _write_state(files, _join(part, name), f"{prefix}part-{index}.", inner, known, written)
            for index, (name, inner) in enumerate(sorted(state.parts.items()))
        },
    }


def _read_state(folder: str, plain: Mapping[str, Any]) -> BufferState:
    records = {name: FileRecord.from_plain(record) for name, record in plain["arrays"].items()}
    for record in records.values():
        check_size(folder, record)
    fields = fields_from_plain(plain["fields"])
    frames = None
    if plain["frames"] is not None:
        frames = _read_frames(folder, plain["frames"], fields, _segments(folder, plain))
    return BufferState(
        kind=plain["kind"],
        fields=fields,
        settings=plain["settings"],
        values=plain["values"],
        arrays={name: read_array(folder, record) for name, record in records.items()},
        frames=frames,
        parts={name: _read_state(folder, inner) for name, inner in plain["parts"].items()},
    )


def _read_frames(
    folder: str, plain: Mapping[str, Any], fields: tuple[Field, ...], segments: tuple[Segment, ...]
) -> HeldFrames:
    if plain["ids"] is not None:
        ids: Any = range(*plain["ids"])
    else:
        record = FileRecord.from_plain(plain["id_file"])
        check_size(folder, record)
        ids = read_array(folder, record)
    source = FolderFrames(folder, segments, fields, ids)
    columns = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in plain["columns"].items()}
    return HeldFrames(ids, source, source.columns(columns))


def _segments(folder: str, plain: Mapping[str, Any]) -> tuple[Segment, ...]:
    if plain["frames"] is None:
        return ()
    return tuple(Segment.from_plain(segment, folder) for segment in plain["frames"]["segments"])


def _parts(plain: Mapping[str, Any], path: str = "") -> list[tuple[str, Mapping[str, Any]]]:
    """A state and all that it consists of, each with its path."""
    inner = [part for name, each in plain["parts"].items() for part in _parts(each, _join(path, name))]
    return [(path, plain), *inner]


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _record_of(folder: str, name: str) -> FileRecord:
    """Of a file that somebody else wrote."""
    with open(os.path.join(folder, name), "rb") as file:
        content = file.read()
        os.fsync(file.fileno())
    return FileRecord(name, len(content), checksum_of(content))
