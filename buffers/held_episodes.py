"""Which frames a buffer holds, episode by episode, with what is known of each one's beginning and end.

A reading is one view: what the buffer held when it began. What is evicted before its turn is left out, counted in
`stats().skipped` and logged; what is added meanwhile does not come. Frames are read a block or an episode at a time
with the writer's lock held, so that none is torn. A table on a server has no such view: what leaves it while it is
read may be missing, what comes may be there, and the log tells how much came. Reverb draws it in no order, so that it
is scanned as a whole before the first episode comes; beyond 64 MB its frames wait for that in a temporary file.
"""

from __future__ import annotations

import logging
import os
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .base import Items, ReplayBuffer
from .episode_kinds import FINISHED, lengths_of
from .episode_pages import frame_id
from .episodic import EpisodicReplayBuffer
from .nests import Array
from .reservoir import ReservoirReplayBuffer
from .reservoir_rows import NOT_HELD
from .reverb_cuts import is_first_count, stream_of
from .reverb_items import WholeEpisodes
from .reverb_scan import ScannedFrames
from .reverb_served import ServedBuffer
from .reverb_table import ServedTable
from .ring import FrameRing
from .ring_buffer import RingReplayBuffer
from .rollout import RolloutBuffer
from .scanned_columns import SMALL_BYTES, ScannedColumns
from .spec import DataSpec
from .windows import Window

# Frames that are read together, where episodes are short.
_BLOCK_BYTES = 4 << 20
_BLOCK_FRAMES = 4096

_logger = logging.getLogger(__name__)

_Tell = Callable[[str], None]


class HeldEpisode(NamedTuple):
    """Frames of one episode that follow each other, as far as they are held.

    Attributes:
      items: nest of NumPy arrays `[T, ...]` that matches `data_spec`, `T >= 1`.
      ids: int64 `[T]`, the frames' ids.
      begins: the first frame is known to be the first of its episode.
      ends: the last frame is known to be the last of its episode; no frame is to come.
      in_order: the frames follow each other. False: they are single ones, of whatever episodes.
      metadata: what an `EpisodicReplayBuffer` keeps beside the episode.
    """

    items: Items
    ids: Array
    begins: bool
    ends: bool
    in_order: bool = True
    metadata: Mapping[str, Any] = types.MappingProxyType({})


class _How(NamedTuple):
    """How a buffer is read: in which order (None: the buffer's own), who is told, and where a table's frames wait."""

    rng: np.random.Generator | None
    tell: _Tell
    temporary_folder: str | os.PathLike[str] | None


_Reader = Callable[[Any, _How], Iterator[HeldEpisode]]


class _Runs(NamedTuple):
    """Frames of a ring that follow each other in an episode, `[E]` each: the first's id, how many, and the ends."""

    firsts: Array
    lengths: Array
    begins: Array
    ends: Array


def held_episodes(
    buffer: ReplayBuffer,
    seed: int | None = None,
    tell: Callable[[str], None] | None = None,
    *,
    temporary_folder: str | os.PathLike[str] | None = None,
) -> Iterator[HeldEpisode]:
    """What a buffer holds, episode by episode; nothing is taken out of it, and it may be written meanwhile.

    The oldest comes first, stream after stream. Frames that were deleted are not given, and part what they lay in.

    In memory are the episode at hand and a few MB. Of a table on a server they are what is drawn at once (some 8 MB,
    which Reverb, TensorFlow and NumPy each have), some 150 bytes a frame, and at most 64 MB of frames: of a larger
    table they are in a file without a name until the reading ends.

    Args:
      buffer: one of this package, but for one of many agents: read its `buffer_of(policy)`.
      seed: of the order; None: the buffer's own.
      tell: called with what the log is told as well: what was lost while it was read.
      temporary_folder: where the file for a table on a server is; None: `tempfile.gettempdir()`, as `TMPDIR` says.

    Raises:
      TypeError: `buffer` is none of these.
      ValueError: it is closed, or a table that cannot be scanned; the message says what is missing.
      WaitTimeoutError: the server does not answer within `timeout_s`.
      OSError: the temporary folder is missing, cannot be written, or has no room for what the table holds.

    >>> import tensorflow as tf
    >>> from replayfeed.buffers import TFUniformReplayBuffer
    >>> buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), batch_size=1, max_length=3)
    >>> ids = buffer.add_sequence([[10, 11, 20, 21]], end_of_episode=np.array([[False, True, False, False]]))
    >>> [(run.items.tolist(), run.begins, run.ends) for run in held_episodes(buffer)]
    [([11], False, True), ([20, 21], True, False)]
    """

    def tell_all(text: str) -> None:
        _logger.warning("%s.", text)
        if tell is not None:
            tell(text)

    rng = None if seed is None else np.random.default_rng(seed)
    return reader_of(buffer)(buffer, _How(rng, tell_all, temporary_folder))


def reader_of(buffer: Any) -> _Reader:
    """What reads buffers of this one's class.

    Raises:
      TypeError: nothing does.
      ValueError: it is a table that cannot be scanned.
    """
    for kind, reader in _READERS.items():
        if isinstance(buffer, kind):
            if isinstance(buffer, ServedBuffer) and buffer._scanner is None:
                raise ValueError(buffer._table.why_no_scan())
            return reader
    raise TypeError(
        f"the episodes of a {type(buffer).__name__} cannot be read; of a group or of tables of agents give one of its "
        "buffers, as group['name']."
    )


def held_metadata(buffer: EpisodicReplayBuffer) -> list[Mapping[str, Any]]:
    """What is kept beside each episode that holds a frame now, oldest first.

    >>> import tensorflow as tf
    >>> buffer = EpisodicReplayBuffer(tf.TensorSpec([], tf.int64), capacity=3)
    >>> ids = buffer.extend([np.array([1, 2])])
    >>> buffer.set_metadata(int(ids[0]), {"seed": 7})
    >>> held_metadata(buffer)
    [{'seed': 7}]
    """
    with buffer._lock:
        table = buffer._table
        return [dict(table.metadata(episode)) for episode in table.ids().tolist() if table.length(episode)]


def _of_ring(buffer: RingReplayBuffer, how: _How) -> Iterator[HeldEpisode]:
    ring, streams, rng, num_lost = buffer._ring, buffer.batch_size, how.rng, 0
    with buffer._lock:
        buffer._check_open()
        runs = _runs_of(ring, buffer._flags.is_deleted if buffer._flags.num_deleted else None)
    order = np.arange(len(runs.firsts)) if rng is None else rng.permutation(len(runs.firsts))
    for block in _blocks(runs.lengths[order], buffer._spec):
        chosen = order[block]
        ids = np.concatenate([runs.firsts[run] + np.arange(runs.lengths[run]) * streams for run in chosen])
        with buffer._lock:
            buffer._check_open()
            held = ring.is_held(ids)
            leaves = buffer._storage.gather(ring.rows(ids))
        arrays = [tensor.numpy() for tensor in buffer._storage.to_tensors(leaves)]
        del leaves
        stops = np.cumsum(runs.lengths[chosen])
        for run, stop in zip(chosen.tolist(), stops.tolist(), strict=True):
            start = stop - int(runs.lengths[run])
            # The oldest frames of a stream go first.
            lost = int(np.count_nonzero(~held[start:stop]))
            num_lost += lost
            if start + lost < stop:
                rows = slice(start + lost, stop)
                begins = bool(runs.begins[run]) and not lost
                yield HeldEpisode(
                    buffer._spec.pack([array[rows] for array in arrays]), ids[rows], begins, bool(runs.ends[run])
                )
        del arrays  # before the next ones are read
    _tell_lost(buffer._usage, num_lost, how.tell)


def _of_rollout(buffer: RolloutBuffer, how: _How) -> Iterator[HeldEpisode]:
    return _of_ring(buffer._frames, how)


def _of_episodes(buffer: EpisodicReplayBuffer, how: _How) -> Iterator[HeldEpisode]:
    table, rng, num_lost = buffer._table, how.rng, 0
    with buffer._lock:
        buffer._check_open()
        episodes = table.ids()
        states = table.states_of(episodes)
    there = np.flatnonzero(lengths_of(states))
    for index in (there if rng is None else rng.permutation(there)).tolist():
        episode, length = int(episodes[index]), int(lengths_of(states[index]))
        with buffer._lock:
            buffer._check_open()
            if not table.holds(episode) or table.length(episode) < length:
                num_lost += length
                continue
            leaves = buffer._storage.gather(table.rows_of(episode)[:length])
            metadata = dict(table.metadata(episode))
        arrays = [tensor.numpy() for tensor in buffer._storage.to_tensors(leaves)]
        del leaves
        ids = frame_id(episode) + np.arange(length)
        yield HeldEpisode(buffer._spec.pack(arrays), ids, True, bool(states[index] & FINISHED), metadata=metadata)
        del arrays  # before the next ones are read
    _tell_lost(buffer._usage, num_lost, how.tell)


def _of_reservoir(buffer: ReservoirReplayBuffer, how: _How) -> Iterator[HeldEpisode]:
    num_lost = 0
    with buffer._lock:
        buffer._check_open()
        all_ids = buffer._held.in_order()[0]
    if how.rng is not None:
        how.rng.shuffle(all_ids)
    for block in _blocks(np.ones_like(all_ids), buffer._spec):
        ids = all_ids[block]
        with buffer._lock:
            buffer._check_open()
            rows = buffer._held.rows_of(ids)
            held = rows != NOT_HELD
            leaves = buffer._storage.gather(rows[held])
        num_lost += int(np.count_nonzero(~held))
        if held.any():
            arrays = [tensor.numpy() for tensor in buffer._storage.to_tensors(leaves)]
            yield HeldEpisode(buffer._spec.pack(arrays), ids[held], False, False, in_order=False)
    _tell_lost(buffer._usage, num_lost, how.tell)


def _of_table(buffer: ServedBuffer, how: _How) -> Iterator[HeldEpisode]:
    buffer._check_open()
    layout, folder = buffer._id_layout(), how.temporary_folder
    if folder is not None and not os.path.isdir(folder):
        raise FileNotFoundError(f"temporary_folder {os.fspath(folder)!r} is no folder: make it, or leave it out.")
    with ScannedColumns(layout.column_bytes, memory_bytes=SMALL_BYTES, folder=folder) as stored:
        before = _counts(buffer)
        frames = _scanned(buffer, stored)
        now = _counts(buffer)
        meanwhile = _Counts(now.added - before.added, now.deleted - before.deleted)
        if meanwhile.added:
            how.tell(
                f"{meanwhile.added:,} items were added to table {buffer._table.name!r} while it was read: what left it "
                "meanwhile may be missing, and what came may be there"
            )
        if not frames.is_complete:
            how.tell(
                f"table {buffer._table.name!r} was written faster than it was read: some of what it held before may be "
                "missing"
            )
        starts, stops, begins, ends = _table_parts(buffer._table, frames, meanwhile)
        order = np.arange(len(starts))
        for index in (order if how.rng is None else how.rng.permutation(order)).tolist():
            rows = slice(int(starts[index]), int(stops[index]))
            # Without a variable that would keep an episode while the next one is read.
            yield HeldEpisode(
                buffer._spec.pack(layout.unpack_numpy(frames.columns_of(rows))),
                frames.ids[rows],
                bool(begins[index]),
                bool(ends[index]),
            )


def _scanned(buffer: ServedBuffer, stored: ScannedColumns) -> ScannedFrames:
    if buffer._scanner is None:
        raise ValueError(buffer._table.why_no_scan())
    with buffer._scan_lock:
        return buffer._scanner.scan(buffer._streams.flushed_next_ids(), stored)


class _Counts(NamedTuple):
    """Items that were ever added to a table, and deleted from it."""

    added: int
    deleted: int


def _counts(buffer: ServedBuffer) -> _Counts:
    """With what this buffer has added."""
    buffer._settle()
    info = buffer.get_table_info()
    added = int(info.rate_limiter_info.insert_stats.completed)
    return _Counts(added, added - int(info.current_size))


def _table_parts(table: ServedTable, frames: ScannedFrames, meanwhile: _Counts) -> tuple[Array, Array, Array, Array]:
    """Starts, stops, beginnings and ends `[E]` of the episodes of a table.

    Args:
      table: which one.
      frames: what it holds.
      meanwhile: what was added and deleted while it was read.
    """
    kind = table.kind
    if isinstance(kind, WholeEpisodes):
        starts, stops = frames.items.starts, frames.items.starts + frames.items.num_after
        whole = np.full(len(starts), kind.over_long != "cut")
        return starts, stops, whole, whole
    starts, stops, begins, ends = _parts_of(frames, _none_missing_before(table, frames, meanwhile))
    return starts, stops, begins, ends | frames.is_final[stops - 1]


def _none_missing_before(table: ServedTable, frames: ScannedFrames, meanwhile: _Counts) -> Array:
    """Which frames come right after the one before them in their stream: no frame between was missed, bool `[N]`.

    Of a table that nobody wrote to the scan has met all items, and the frames between two that are held are held too.
    While others write, what was held when the scan began is met but for single items, where two or more hold each
    frame; what was deleted since was the oldest, and what came is the newest of each stream.
    """
    kind, num = table.kind, len(frames.ids)
    if not (table.removes_oldest and isinstance(kind, Window) and kind.stride <= kind.num_steps):
        return np.zeros(num, bool)
    if not meanwhile.added:
        return np.ones(num, bool)
    is_sure = np.zeros(num, bool)
    if frames.is_complete and 2 * kind.stride <= kind.num_steps:
        length = kind.burn_in + kind.num_steps
        oldest = meanwhile.deleted * kind.stride + length if meanwhile.deleted else 0
        newest = meanwhile.added * kind.stride + length
        for stream in frames.streams:
            is_sure[stream.start + oldest + 1 : max(stream.start, stream.stop - newest)] = True
    return is_sure


def _runs_of(ring: FrameRing, is_deleted: Callable[[Array], Array] | None) -> _Runs:
    """The runs of all streams; the caller keeps writers away."""
    parts: list[_Runs] = []
    is_open = ring.unfinished()
    for stream, ids in enumerate(ring.ids_by_stream()):
        num = len(ids)
        if not num:
            continue
        steps = ring.words[ring.rows(ids)] >> 1
        is_new = np.ones(num, bool)
        is_new[1:] = steps[1:] != steps[:-1] + 1
        gone = None if is_deleted is None else is_deleted(ids)
        if gone is not None:
            is_new[1:] |= gone[1:] != gone[:-1]
        starts = np.flatnonzero(is_new)
        stops = np.append(starts[1:], num)
        # An episode is over where the next frame of its stream is the first of another one.
        ends = np.append(steps[starts[1:]] == 0, not is_open[stream])
        runs = _Runs(ids[starts], stops - starts, steps[starts] == 0, ends)
        parts.append(runs if gone is None else _Runs(*(each[~gone[starts]] for each in runs)))
    if not parts:
        nothing = np.zeros(0, np.int64)
        return _Runs(nothing, nothing, nothing, nothing)
    return _Runs(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _parts_of(frames: ScannedFrames, none_missing: Array) -> tuple[Array, Array, Array, Array]:
    """Starts, stops, beginnings and ends `[E]` of frames whose ids follow each other.

    Where an episode is cut its stream's ids leave out one number. So they do where one frame is missing, but where
    none is before the frame (`_none_missing_before`).
    """
    ids, num = frames.ids, len(frames.ids)
    if not num:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing.astype(bool), nothing.astype(bool)
    starts = np.append(0, np.flatnonzero(np.diff(ids) != 1) + 1)
    stops = np.append(starts[1:], num)
    at, streams = starts[1:], stream_of(ids)
    is_cut = (ids[at] - ids[at - 1] == 2) & (streams[at] == streams[at - 1]) & none_missing[at]
    begins = is_first_count(ids[starts]) | np.append(False, is_cut)
    return starts, stops, begins, np.append(is_cut, False)


def _blocks(lengths: Array, spec: DataSpec) -> Iterator[slice]:
    """Slices of episodes of these lengths `[E]` that are read together: one, or several short ones."""
    most = max(1, min(_BLOCK_FRAMES, _BLOCK_BYTES // max(1, spec.frame_bytes)))
    stops = np.cumsum(lengths)
    start, done = 0, 0
    while start < len(lengths):
        stop = max(start + 1, int(np.searchsorted(stops, done + most, side="right")))
        yield slice(start, stop)
        start, done = stop, int(stops[stop - 1])


def _tell_lost(usage: Any, num: int, tell: _Tell) -> None:
    if num:
        usage.count_skipped(num)
        tell(f"{num:,} frames were evicted before their episodes were read; left out")


_READERS: Mapping[type, _Reader] = types.MappingProxyType(
    {
        RingReplayBuffer: _of_ring,
        RolloutBuffer: _of_rollout,
        EpisodicReplayBuffer: _of_episodes,
        ReservoirReplayBuffer: _of_reservoir,
        ServedBuffer: _of_table,
    }
)
