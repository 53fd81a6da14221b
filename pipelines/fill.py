"""Offline episodes into a buffer, through the contract that every buffer keeps."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from replayfeed.buffers import ReplayBuffer, ReverbTableGroup, WaitTimeoutError

from .episodes import Episode, EpisodePass, Episodes
from .fill_journal import Journal, open_journal
from .fill_limiter import InsertWatch, num_added
from .fill_routes import Route, route_into
from .load_report import LoadReport
from .progress_bar import progress_bar

# With a journal: so often the buffer is asked to confirm what was written, whichever comes first.
_CONFIRM_EPISODES = 64
_CONFIRM_SECONDS = 5.0


def fill(
    buffer: ReplayBuffer | ReverbTableGroup,
    episodes: Episodes,
    *,
    streams: int | Sequence[int] | None = None,
    priorities: Callable[[Episode], Any] | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> LoadReport:
    """Writes every episode into the buffer, and marks where each one ends.

    No window joins two episodes, nor the first one and what the buffer held before, in any layout: the trajectory's
    LAST frame ends an episode, elsewhere `fill` says so to the buffer. One `add_sequence` brings an episode, which the
    buffer checks as a whole: one that is refused, by the rules of `load_rlds` or by the buffer, raises and leaves no
    frame. Those before it stay. Memory holds one episode, and the few that are read ahead.

    Where an episode goes:

    | buffer | episodes become |
    | --- | --- |
    | of one stream | that stream, one after the other |
    | of several streams | each the next part of the stream that got the fewest frames so far; the streams part for it \
(`let_streams_part`). A ring keeps the newest `capacity / batch_size` frames of each stream |
    | `RolloutBuffer` | one rollout of one stream: what does not fit any more is refused |
    | `MultiAgentReplayBuffer`, independent | the life of the agent that `Episode.agent` names, at moments of its own: \
what agents did at the same time is not matched; in the environment in which it got the fewest frames so far |
    | in lockstep | episodes of one id that follow each other are those of one environment, the one with the fewest \
moments so far: all agents begin at the same moment, and each is absent after its own end |
    | on Reverb | an item for each window, or episode, that the table holds. Episodes too short for one give none: \
the buffer logs how many, and this report counts them all the same |

    What is on its way into a Reverb table when a write times out (`WaitTimeoutError`), or is interrupted by Ctrl-C,
    cannot be taken back: then the first frames of the episode stay, as one that was cut, and the error says how many.
    A table whose limiter would let an episode wait, while nobody draws, is told within seconds and before the episode.

    With `resume` a load that was interrupted, or killed, goes on with another call: the file remembers by their ids the
    episodes that the buffer has confirmed (`flush`), every 64 episodes or 5 seconds, and the next call passes over
    them. Those that were written and not confirmed yet when the process was killed are written again: no episode is
    missing, and at most the last 64 (and the one at hand, in part) are there twice. Errors and Ctrl-C confirm first.
    It is for buffers that outlive the load: a table of a Reverb server, or the same buffer in the same process. Where
    the buffer was emptied meanwhile the file is refused. Some 100 bytes of memory an episode go to their ids.

    Args:
      buffer: any buffer whose `data_spec` is `episodes.element_spec`, up to what the buffer itself casts; or tables
        that are written together.
      episodes: as `load_rlds` gives them.
      streams: numbers of the streams (of a multi-agent buffer: of the environments) that get the episodes; None: all.
      priorities: raw priorities `[T]` of an `Episode`'s frames, finite and at least 0; None: what the buffer gives new
        frames.
      resume: path of the file; it is made where there is none. One for each source and buffer.
      progress: a bar on stderr.

    Returns:
      What was written, and what was not; its seconds include the buffer's `flush`.

    Raises:
      TypeError: `buffer` is no `ReplayBuffer`, `episodes` are no `Episodes`, or `priorities` is no function.
      ValueError: `streams` are none of the buffer, or it has several streams that cannot part any more.
      ValueError: a multi-agent buffer in lockstep with `priorities`.
      ValueError: `resume` is a file of another load, or the buffer was emptied since.
      ValueError: the episodes do not fit `data_spec`; the message names each field. Nothing is written.
      ValueError: an episode is bad, and `on_bad_episode` is `'error'`; or the buffer refuses it, as when a value does
        not survive its cast. Nothing of it is written.
      WaitTimeoutError: the limiter of a table lets an episode wait and nobody draws: use `preloaded_server`. Nothing of
        it is written.
      WaitTimeoutError: a server does not confirm what was written within its buffer's timeout.

    >>> import tensorflow as tf
    >>> from replayfeed.buffers import TFUniformReplayBuffer
    >>> from replayfeed.pipelines.rlds_read import load_rlds
    >>> steps = {"observation": [[0.0, 1.0, 2.0], [5.0, 6.0, 7.0]], "is_terminal": [[False, False, True], [False] * 3]}
    >>> episodes = load_rlds(tf.data.Dataset.from_tensor_slices({"steps": steps}), layout="transition")
    >>> buffer = TFUniformReplayBuffer(episodes.element_spec, batch_size=1, max_length=100)
    >>> report = fill(buffer, episodes, progress=False)
    >>> report.episodes, report.frames, report.terminals, report.truncations
    (2, 4, 1, 1)
    """
    if not isinstance(episodes, Episodes):
        raise TypeError(f"episodes must be Episodes, as load_rlds gives them, got {type(episodes).__name__}.")
    told_by_frames = episodes.layout == "trajectory"
    route = route_into(buffer, streams, priorities, told_by_frames=told_by_frames)
    route.check_fits(episodes)
    started = time.perf_counter()
    watch = InsertWatch(buffer, ends_in_observation=episodes.layout != "transition")
    with contextlib.ExitStack() as stack:
        journal = None
        if resume is not None:
            about = _about(buffer, episodes)
            journal = stack.enter_context(open_journal(resume, about, num_added(buffer)))
        load = _Load(buffer, route, watch, journal)
        # Frames that the buffer holds already may be of an episode that still goes on.
        route.end_streams()
        run = episodes.start_pass()
        # Closed here: what interrupts this loop is to find the journal open.
        with (
            progress_bar(f"fill from {episodes.name}", episodes.num_episodes, progress=progress) as bar,
            contextlib.closing(load.run(run)) as loading,
        ):
            for num_read in loading:
                bar.update(num_read)
                bar.set_postfix_str(f"{load.frames:,} frames", refresh=False)
    return load.report(run, time.perf_counter() - started)


class _Load:
    """Episodes on their way into a buffer: written, counted, and confirmed now and then."""

    def __init__(
        self, buffer: ReplayBuffer | ReverbTableGroup, route: Route, watch: InsertWatch, journal: Journal | None
    ) -> None:
        self._buffer = buffer
        self._route = route
        self._watch = watch
        self._journal = journal
        self.episodes = self.frames = self.terminals = self.resumed = 0
        self._confirmed_at = time.monotonic()

    def run(self, episodes: EpisodePass) -> Generator[int, None, None]:
        """Writes them all; after each group how many episodes it had."""
        try:
            for group in self._route.grouped(episodes):
                keys = [] if self._journal is None else [self._journal.key_of(episode) for episode in group]
                if self._journal is not None and all(map(self._journal.has, keys)):
                    self.resumed += len(group)
                else:
                    self._write(group)
                    if self._journal is not None:
                        self._note(self._journal, keys)
                yield len(group)
            self._buffer.flush()
        except WaitTimeoutError:
            raise
        except BaseException:
            self._confirm()
            raise
        self._confirm()

    def report(self, run: EpisodePass, seconds: float) -> LoadReport:
        """What was written, and what the pass left out."""
        read = run.report()
        return dataclasses.replace(
            read,
            episodes=self.episodes,
            frames=self.frames,
            terminals=self.terminals,
            truncations=self.episodes - self.terminals,
            resumed=self.resumed,
            notes=(*read.notes, *self._route.notes()),
            seconds=seconds,
        )

    def _write(self, group: Sequence[Episode]) -> None:
        name = group[0].name
        try:
            self._watch.before_episode(name, max(episode.num_frames for episode in group))
            self._route.write(group)
        except WaitTimeoutError as error:
            if error.num_written is None:
                raise
            self._route.end_streams()
            told = WaitTimeoutError(
                f"episode {name}: {error} Its first {error.num_written:,} of {group[0].num_frames:,} frames are "
                f"written and stay, as an episode that was cut; the {self.episodes:,} before it are whole."
            )
            told.num_written = error.num_written
            raise told from error
        except ValueError as error:
            raise ValueError(
                f"episode {name}: {error} Nothing of it was written; the {self.episodes:,} before it are in the buffer."
            ) from error
        except BaseException:
            # What follows in these streams is not the rest of the episode.
            self._route.end_streams()
            raise
        self.episodes += len(group)
        self.frames += sum(episode.num_frames for episode in group)
        self.terminals += sum(episode.is_terminal for episode in group)

    def _note(self, journal: Journal, keys: Iterable[str]) -> None:
        for key in keys:
            journal.note(key)
        if journal.num_pending >= _CONFIRM_EPISODES or time.monotonic() - self._confirmed_at > _CONFIRM_SECONDS:
            self._confirm()

    def _confirm(self) -> None:
        if self._journal is not None and self._journal.num_pending:
            self._buffer.flush()
            self._journal.confirm(num_added(self._buffer))
        self._confirmed_at = time.monotonic()


def _about(buffer: ReplayBuffer | ReverbTableGroup, episodes: Episodes) -> dict[str, Any]:
    """What a journal is about."""
    return {
        "source": episodes.name,
        "num_episodes": episodes.num_episodes,
        "layout": episodes.layout,
        "frames": str(episodes.element_spec),
        "buffer": type(buffer).__name__,
        "stores": str(buffer.data_spec),
    }
