"""Offline episodes into a buffer, through the contract that every buffer keeps."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from replayfeed.buffers import ReplayBuffer
from replayfeed.buffers.nests import Nest
from replayfeed.buffers.spec import DataSpec

from .episodes import Episode, Episodes
from .load_report import LoadReport

# Frames of one episode in one write: bounds what is copied at a time, and costs no speed.
_FRAMES_A_WRITE = 4096


def fill(buffer: ReplayBuffer, episodes: Episodes, *, progress: bool = True) -> LoadReport:
    """Writes every episode into the buffer's stream, and marks where each one ends.

    No window joins two episodes, nor the first one and what the buffer held before, in any
    layout: the trajectory's LAST frame ends an episode, elsewhere `fill` says so to the
    buffer. An episode that the rules of `load_rlds` refuse raises before a frame of it is
    written; the ones before it stay in the buffer.

    A buffer on Reverb makes an item of `sequence_length` frames: it logs, and this report does
    not count, episodes that have fewer and so give none.

    Args:
      buffer: any buffer of one stream whose `data_spec` is `episodes.element_spec`, up to what
        the buffer itself casts.
      episodes: as `load_rlds` gives them.
      progress: a bar on stderr.

    Returns:
      What was written, and what was not; its seconds include the buffer's `flush`.

    Raises:
      TypeError: `buffer` is no `ReplayBuffer`, or `episodes` are no `Episodes`.
      ValueError: the buffer has several streams.
      ValueError: the episodes do not fit `data_spec`; the message names each field. Nothing is written.
      ValueError: an episode is bad, and `on_bad_episode` is `'error'`.

    >>> from replayfeed.buffers import TFUniformReplayBuffer
    >>> from replayfeed.pipelines.rlds_read import load_rlds
    >>> steps = {"observation": [[0.0, 1.0, 2.0], [5.0, 6.0, 7.0]], "is_terminal": [[False, False, True], [False] * 3]}
    >>> episodes = load_rlds(tf.data.Dataset.from_tensor_slices({"steps": steps}), layout="transition")
    >>> buffer = TFUniformReplayBuffer(episodes.element_spec, batch_size=1, max_length=100)
    >>> report = fill(buffer, episodes, progress=False)
    >>> report.episodes, report.frames, report.terminals, report.truncations
    (2, 4, 1, 1)
    """
    if not isinstance(buffer, ReplayBuffer):
        raise TypeError(f"buffer must be a ReplayBuffer, got {type(buffer).__name__}.")
    if not isinstance(episodes, Episodes):
        raise TypeError(f"episodes must be Episodes, as load_rlds gives them, got {type(episodes).__name__}.")
    if buffer.batch_size != 1:
        raise ValueError(
            f"the buffer has {buffer.batch_size} streams, which are written side by side, so that they cannot each "
            "take episodes of their own length; build it with batch_size=1."
        )
    _check_fits(buffer, episodes)
    started = time.perf_counter()
    run = episodes.start_pass()
    # Frames that the buffer holds already may be of an episode that still goes on.
    buffer.end_stream()
    with _progress_bar(progress, episodes) as bar:
        for episode in run:
            _write(buffer, episode, told_by_frames=episodes.layout == "trajectory")
            bar.update(1)
            bar.set_postfix_str(f"{run.num_frames:,} frames", refresh=False)
    buffer.flush()
    report = run.report()
    notes = (*report.notes, *_capacity_notes(buffer, report))
    return dataclasses.replace(report, notes=notes, seconds=time.perf_counter() - started)


def _write(buffer: ReplayBuffer, episode: Episode, *, told_by_frames: bool) -> None:
    begun = False
    try:
        for start in range(0, episode.num_frames, _FRAMES_A_WRITE):
            stop = min(start + _FRAMES_A_WRITE, episode.num_frames)
            chunk = _chunk(episode.frames, start, stop)
            ends = None
            if not told_by_frames:
                ends = np.zeros([1, stop - start], bool)
                ends[0, -1] = stop == episode.num_frames
            buffer.add_sequence(chunk, end_of_episode=ends)
            begun = True
    except BaseException:
        if begun:
            # What follows in this stream is not the rest of the episode.
            buffer.end_stream()
        raise


def _chunk(frames: Nest, start: int, stop: int) -> Nest:
    return tf.nest.map_structure(lambda leaf: leaf[np.newaxis, start:stop], frames)


def _check_fits(buffer: ReplayBuffer, episodes: Episodes) -> None:
    """Lets the buffer itself check a sequence of no frames, so that what it casts is let through."""
    none = tf.nest.map_structure(
        lambda spec: np.zeros([1, 0, *spec.shape], spec.dtype.as_numpy_dtype), episodes.element_spec
    )
    try:
        buffer.add_sequence(none)
    except ValueError as error:
        differences = "; ".join(_differences(buffer.data_spec, episodes.element_spec)) or str(error)
        raise ValueError(
            f"the episodes of {episodes.name}, layout {episodes.layout!r}, do not fit the buffer's data_spec: "
            f"{differences}. Build the buffer with data_spec=episodes.element_spec, or with cast=True where only "
            "the width of numbers differs."
        ) from error


def _differences(expected: Nest, found: Nest) -> Iterator[str]:
    wanted = {field.path: f"{list(field.shape)} {field.dtype.name}" for field in DataSpec(expected).fields}
    given = {field.path: f"{list(field.shape)} {field.dtype.name}" for field in DataSpec(found).fields}
    for path in sorted(wanted.keys() | given.keys()):
        want, got = wanted.get(path, "no such field"), given.get(path, "no such field")
        if want != got:
            yield f"field {path!r}: expected {want}, got {got}"


def _capacity_notes(buffer: ReplayBuffer, report: LoadReport) -> Iterator[str]:
    if buffer.capacity_unit == "frames" and report.frames > buffer.capacity:
        yield (
            f"the buffer holds {buffer.capacity:,} frames: the oldest {report.frames - buffer.capacity:,} of the "
            "loaded ones were evicted again"
        )


def _progress_bar(progress: bool, episodes: Episodes) -> tqdm:
    to_terminal = sys.stderr.isatty()
    return tqdm(
        total=episodes.num_episodes,
        desc=f"fill from {episodes.name}",
        unit="episode",
        disable=not progress,
        # In a log each update is more text: none for a short load, few for a long one.
        mininterval=0.1 if to_terminal else 5.0,
        delay=0.0 if to_terminal else 1.0,
    )
