"""The frames of a save: segments of some megabytes, each a raw array for each field, that later saves share.

What a frame holds never changes, so that a segment that was written once serves all later saves of the same buffer, as
hard links: a save writes what is new since. A segment of which less than half is still held is given up, and what is
held of it is written again; so are small ones when they are many.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from .buffer_state import HeldFrames, LiveFrames, Put, id_array
from .fields import Field
from .nests import Array
from .saved_fields import field_names
from .saved_files import FileRecord, NewFiles, check_size, npy_header, read_array, read_parts

# A segment has so many bytes, or a share of all frames where that is more.
_SEGMENT_BYTES = 16 * 2**20
_SEGMENT_SHARE = 1 / 32

# What is copied at a time: small enough to stay in the processor's cache.
_PART_BYTES = 2**20

# So many segments under a quarter of the usual size are left alone.
_MOST_SMALL = 8

# Two threads: one computes while the other reads or writes.
_NUM_THREADS = 2


@dataclasses.dataclass(frozen=True)
class Segment:
    """Frames that were written together.

    Attributes:
      ids: of all of them, in the order of the rows: int64 `[m]`, ascending, or a range.
      fields: by name (`field_names`), the file of each field, `[m, ...]`.
      columns: by name, the file of each column, `[m, ...]`.
      id_file: the file of the ids, where they are no range.
    """

    ids: Array | range
    fields: Mapping[str, FileRecord]
    columns: Mapping[str, FileRecord]
    id_file: FileRecord | None

    @property
    def files(self) -> list[FileRecord]:
        """All of them."""
        return [*self.fields.values(), *self.columns.values(), *([self.id_file] if self.id_file else [])]

    def to_plain(self) -> dict[str, Any]:
        """As in a manifest."""
        ids = self.ids
        return {
            "ids": [ids.start, ids.stop, ids.step] if isinstance(ids, range) else None,
            "id_file": None if self.id_file is None else self.id_file.to_plain(),
            "fields": {name: record.to_plain() for name, record in self.fields.items()},
            "columns": {name: record.to_plain() for name, record in self.columns.items()},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], folder: str) -> Segment:
        """Of `to_plain`; reads its ids.

        Raises:
          ValueError: their file is missing or damaged.
        """
        id_file = None if plain["id_file"] is None else FileRecord.from_plain(plain["id_file"])
        if id_file is None:
            ids: Array | range = range(*(int(value) for value in plain["ids"]))
        else:
            check_size(folder, id_file)
            ids = read_array(folder, id_file)
        columns = {name: FileRecord.from_plain(record) for name, record in plain["columns"].items()}
        fields = {name: FileRecord.from_plain(record) for name, record in plain["fields"].items()}
        return cls(ids, fields, columns, id_file)


@dataclasses.dataclass(frozen=True)
class KnownFrames:
    """Where frames of a buffer object are saved.

    Attributes:
      folder: of the save.
      segments: in it.
      stamps: by name, what tells each of their files from another one that has its place by now.
    """

    folder: str
    segments: tuple[Segment, ...]
    stamps: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, folder: str, segments: Sequence[Segment]) -> KnownFrames:
        """Of files that are there, and hold what they should."""
        folder = os.path.abspath(folder)
        names = [record.name for segment in segments for record in segment.files]
        return cls(folder, tuple(segments), {name: _stamp(os.path.join(folder, name)) for name in names})


def write_frames(
    files: NewFiles, prefix: str, frames: HeldFrames, fields: Sequence[Field], known: KnownFrames | None
) -> tuple[Segment, ...]:
    """Writes live frames into the folder of a save, linking what is known.

    Args:
      files: of the save.
      prefix: what the names of its files begin with.
      frames: whose `source` is a `LiveFrames`.
      fields: of a frame.
      known: where some of them are saved already.

    Returns:
      The segments in which all of them stand.
    """
    live = frames.source
    if not isinstance(live, LiveFrames):
        raise TypeError(f"frames must be those of a buffer, got {live!r}.")
    frame_bytes = sum(field.num_bytes for field in fields)
    num = max(1, _SEGMENT_BYTES // frame_bytes, int(len(frames.ids) * _SEGMENT_SHARE))
    linked, rest = _link(files.folder, frames, known, small=num // 4)
    for places in _left_out([_as_slice(part) for part in rest], len(frames.ids)):
        live.skip(_as_slice(places))
    new = [part[start : start + num] for part in rest for start in range(0, len(part), num)]
    names = _free_names(f"{prefix}frames-", linked, len(new))

    def write(name: str, places: range | Array) -> Segment:
        return _write_segment(files, name, frames, live, fields, places)

    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        written = list(pool.map(write, names, new))
    return (*linked, *written)


class FolderFrames:
    """The frames in the folder of a save (a `FrameSource`).

    Args:
      folder: of the save.
      segments: in which they are.
      fields: of a frame.
      ids: of the frames, ascending.

    Raises:
      ValueError: an id is in no segment, or a file missing or cut off.
    """

    def __init__(self, folder: str, segments: Sequence[Segment], fields: Sequence[Field], ids: Array | range) -> None:
        self._folder = folder
        self._fields = fields
        self._num = len(ids)
        # Of each segment: which of its rows are wanted, and whose places they are.
        self._parts = [(segment, *_common(segment.ids, ids)) for segment in segments]
        found = sum(_length(places) for _, _, places in self._parts)
        if found != len(ids):
            raise ValueError(f"{folder!r} holds {found} of its {len(ids)} frames; restore another save, by its folder.")
        for segment in segments:
            for record in segment.files:
                check_size(folder, record)

    def columns(self, dtypes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> dict[str, Array]:
        """The columns with these names, dtypes and shapes of one entry: `[n, ...]`.

        Raises:
          ValueError: one is missing, another one, or its file damaged.
        """
        columns: dict[str, Array] = {}
        for name, (dtype, shape) in dtypes.items():
            columns[name] = np.zeros((self._num, *shape), dtype)
            for segment, rows, places in self._parts:
                if name not in segment.columns:
                    raise ValueError(
                        f"{self._folder!r} does not hold {name!r} of its frames; restore another save, by its folder."
                    )
                record = segment.columns[name]
                part = read_array(self._folder, record)
                if part.shape != (len(segment.ids), *shape) or part.dtype != dtype:
                    raise ValueError(
                        f"{record.name!r} holds {list(part.shape)} {part.dtype}, expected "
                        f"{[len(segment.ids), *shape]} {dtype}; restore another save, by its folder."
                    )
                columns[name][places] = part[rows]
        return columns

    def check(self) -> None:
        """See `FrameSource`."""
        self.deliver(lambda places, leaves: None)

    def deliver(self, put: Put) -> None:
        """See `FrameSource`."""
        with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
            for done in [pool.submit(self._deliver, *part, put) for part in self._parts]:
                done.result()

    def _deliver(self, segment: Segment, rows: slice | Array, places: slice | Array, put: Put) -> None:
        """Gives the frames of a segment to `put`."""
        for part, leaves in self._read(segment):
            if isinstance(rows, slice) and isinstance(places, slice):
                start, stop = max(part.start, rows.start), min(part.stop, rows.stop)
                if start < stop:
                    offset = places.start - rows.start
                    inside = slice(start - part.start, stop - part.start)
                    put(slice(start + offset, stop + offset), [leaf[inside] for leaf in leaves])
                continue
            numbers, wanted = _numbers(rows), _numbers(places)
            first, last = np.searchsorted(numbers, [part.start, part.stop])
            if first < last:
                put(wanted[first:last], [leaf[numbers[first:last] - part.start] for leaf in leaves])

    def _read(self, segment: Segment) -> Iterator[tuple[slice, list[Array]]]:
        """The rows of a segment, some at a time: their numbers, and all fields."""
        num = len(segment.ids)
        most = _rows_a_part(self._fields)
        with contextlib.ExitStack() as stack:
            parts = []
            for name, field in zip(field_names(self._fields), self._fields, strict=True):
                header = npy_header(saved_dtype(field), (num, *field.shape))
                reader = read_parts(self._folder, segment.fields[name], field.num_bytes, header, most)
                stack.callback(reader.close)
                parts.append(reader)
            start = 0
            for leaves in zip(*parts, strict=True):
                yield slice(start, start + len(leaves[0])), list(leaves)
                start += len(leaves[0])


def _write_segment(
    files: NewFiles, name: str, frames: HeldFrames, live: LiveFrames, fields: Sequence[Field], places: range | Array
) -> Segment:
    ids = frames.ids
    chosen = _as_slice(places)
    own: Array | range
    if isinstance(ids, range) and isinstance(chosen, slice):
        own = ids[chosen]
    else:
        own = _as_range(id_array(ids)[chosen])
    num, most = len(places), _rows_a_part(fields)
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(
                files.open_array(f"{name}.{_file_name(index, field.path)}", saved_dtype(field), (num, *field.shape))
            )
            for index, field in enumerate(fields)
        ]
        for start in range(0, num, most):
            part = places[start : start + most]
            leaves = live.read(_as_slice(part))
            for file, leaf in zip(opened, leaves, strict=True):
                file.append(leaf)
        written = {field: file.finish() for field, file in zip(field_names(fields), opened, strict=True)}
    columns = {
        column: files.write_array(f"{name}.column.{column}.npy", values[chosen])
        for column, values in frames.columns.items()
    }
    id_file = None if isinstance(own, range) else files.write_array(f"{name}.ids.npy", own)
    return Segment(own, written, columns, id_file)


def _link(
    folder: str, frames: HeldFrames, known: KnownFrames | None, *, small: int
) -> tuple[list[Segment], list[range | Array]]:
    """Links segments that serve; returns them, and the places of the frames that are in none of them."""
    num = len(frames.ids)
    if known is None or not num:
        return [], [range(num)]
    held = [(segment, _common(segment.ids, frames.ids)[1]) for segment in known.segments]
    useful = [
        (segment, places)
        for segment, places in held
        if 2 * _length(places) >= len(segment.ids) > 0 and set(segment.columns) == set(frames.columns)
    ]
    few = [segment for segment, _ in useful if len(segment.ids) < small]
    if len(few) > _MOST_SMALL:
        useful = [(segment, places) for segment, places in useful if len(segment.ids) >= small]
    linked: list[Segment] = []
    found: list[slice | Array] = []
    for segment, places in useful:
        try:
            for record in segment.files:
                link = os.path.join(folder, record.name)
                os.link(os.path.join(known.folder, record.name), link)
                if _stamp(link) != known.stamps[record.name]:
                    raise FileNotFoundError(f"{link!r} is another file by now.")
        except OSError:
            # Another file system, one without links, or the save is gone: then it is written again.
            for record in segment.files:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(folder, record.name))
            continue
        linked.append(segment)
        found.append(places)
    return linked, _left_out(found, num)


def _left_out(parts: Sequence[slice | Array], num: int) -> list[range | Array]:
    """The places below `num` that are in none of these parts, which share none: ranges, or all in one array.

    >>> _left_out([slice(2, 4), slice(0, 1)], 6)
    [range(1, 2), range(4, 6)]
    """
    slices = sorted((part.start, part.stop) for part in parts if isinstance(part, slice))
    if len(slices) == len(parts):
        starts, stops = [0, *(stop for _, stop in slices)], [*(start for start, _ in slices), num]
        return [range(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]
    rest = np.ones(num, bool)
    for part in parts:
        rest[part] = False
    left = np.flatnonzero(rest)
    return [left] if len(left) else []


def _common(some: Array | range, others: Array | range) -> tuple[slice | Array, slice | Array]:
    """The ids that two ascending lists share: their places in the one, and in the other."""
    if isinstance(some, range) and isinstance(others, range) and some.step == others.step == 1:
        start, stop = max(some.start, others.start), min(some.stop, others.stop)
        stop = max(start, stop)
        return slice(start - some.start, stop - some.start), slice(start - others.start, stop - others.start)
    ids, known = id_array(some), id_array(others)
    found = np.searchsorted(known, ids)
    shared = found < len(known)
    shared[shared] = known[found[shared]] == ids[shared]
    return np.flatnonzero(shared), found[shared]


def _as_range(ids: Array) -> Array | range:
    """Ids that follow each other as a range."""
    if len(ids) and ids[-1] - ids[0] == len(ids) - 1:
        return range(int(ids[0]), int(ids[-1]) + 1)
    return ids


def _stamp(path: str) -> tuple[int, ...]:
    """What no other file has, and no file that was changed: its device, number, size and time of change."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _as_slice(places: range | Array) -> slice | Array:
    return slice(places.start, places.stop) if isinstance(places, range) else places


def _length(places: slice | Array) -> int:
    return places.stop - places.start if isinstance(places, slice) else len(places)


def _numbers(places: slice | Array) -> Array:
    return np.arange(places.start, places.stop) if isinstance(places, slice) else places


def _rows_a_part(fields: Sequence[Field]) -> int:
    return max(1, _PART_BYTES // sum(field.num_bytes for field in fields))


def saved_dtype(field: Field) -> np.dtype[Any]:
    """The dtype of a field's file: NumPy knows no bfloat16, whose bits are kept as uint16."""
    known = field.numpy_dtype
    return known if known.kind in "biufc" else np.dtype(f"u{known.itemsize}")


def _file_name(index: int, path: str) -> str:
    """A field's path as part of a file's name; of one that is too long the beginning."""
    return f"{index}.{quote(path, safe='')[:120]}.npy"


def _free_names(prefix: str, linked: Sequence[Segment], num: int) -> list[str]:
    """Names of new segments: numbers go on after those that are linked."""
    taken = [int(segment.files[0].name.removeprefix(prefix).split(".")[0]) for segment in linked]
    first = max(taken, default=-1) + 1
    return [f"{prefix}{number:06d}" for number in range(first, first + num)]
