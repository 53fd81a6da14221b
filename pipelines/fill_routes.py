"""How an episode goes into a buffer, by the kind of buffer: into a stream, or as what an agent did.

A route writes an episode with one `add_sequence`, so that the buffer checks the whole of it before its first frame: an
episode that does not fit leaves nothing. (In lockstep it takes one for each length that the lives of its agents have,
and the route checks.) There is no loop over steps here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from replayfeed.buffers import (
    DataSpec,
    EpisodicReplayBuffer,
    MultiAgentReplayBuffer,
    ReplayBuffer,
    ReservoirReplayBuffer,
    ReverbTableGroup,
    RolloutBuffer,
)
from replayfeed.buffers.adds import check_streams
from replayfeed.buffers.nests import Array, Nest
from replayfeed.buffers.priorities import check_priorities
from replayfeed.buffers.spec import ItemChecker

from .episodes import Episode, Episodes
from .rlds_steps import map_leaves

PriorityRule = Callable[[Episode], Any]
"""Raw priorities `[T]` of an episode's frames."""


class Route(Protocol):
    """Writes episodes into a buffer."""

    def check_fits(self, episodes: Episodes) -> None:
        """Refuses what cannot be written at all, before anything is read."""

    def grouped(self, episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
        """The episodes that are written together."""

    def write(self, group: Sequence[Episode]) -> None:
        """Writes them; where they are refused nothing of them is written."""

    def end_streams(self) -> None:
        """What is written next follows nothing that was written before."""

    def notes(self) -> Iterator[str]:
        """What the buffer did not keep."""


def route_into(
    buffer: ReplayBuffer | ReverbTableGroup, streams: int | Sequence[int] | None, priorities: PriorityRule | None, *,
    told_by_frames: bool,
) -> Route:  # fmt: skip
    """The way into a buffer.

    Args:
      buffer: any.
      streams: that get the episodes; None: all.
      priorities: of frames; None: as the buffer itself gives them.
      told_by_frames: the frames themselves tell where an episode ends.

    Raises:
      TypeError: `buffer` is none, or `priorities` no function.
      ValueError: `streams` are none of the buffer, or there are several that cannot part.
      ValueError: a multi-agent buffer in lockstep with `priorities`.
    """
    if not isinstance(buffer, ReplayBuffer | ReverbTableGroup):
        raise TypeError(f"buffer must be a ReplayBuffer, or a ReverbTableGroup, got {type(buffer).__name__}.")
    if priorities is not None and not callable(priorities):
        raise TypeError(f"priorities must be a function of an Episode, or None, got {type(priorities).__name__}.")
    given = np.atleast_1d(range(buffer.batch_size) if streams is None else streams)
    chosen = check_streams(np.sort(given), buffer.batch_size)
    if not len(chosen):
        raise ValueError("streams: expected at least one, got none.")
    if not isinstance(buffer, MultiAgentReplayBuffer):
        return _StreamRoute(buffer, chosen, priorities, told_by_frames=told_by_frames)
    if buffer.mode == "independent":
        return _AgentRoute(buffer, chosen, priorities, told_by_frames=told_by_frames)
    if priorities is not None:
        raise ValueError("priorities: in lockstep they are those of moments, which no single agent's episode tells.")
    return _LockstepRoute(buffer, chosen, told_by_frames=told_by_frames)


class _StreamRoute:
    """Each episode as a whole into one stream: the one that got the fewest frames so far."""

    def __init__(
        self,
        buffer: ReplayBuffer | ReverbTableGroup,
        streams: Array,
        priorities: PriorityRule | None,
        *,
        told_by_frames: bool,
    ) -> None:
        self._buffer = buffer
        self._priorities = priorities
        self._told_by_frames = told_by_frames
        self._streams = streams
        self._num_frames = np.zeros(len(streams), np.int64)
        self._num_episodes = 0

    def check_fits(self, episodes: Episodes) -> None:
        if self._buffer.batch_size > 1:
            self._let_streams_part()
        # Let the buffer itself check a sequence of no frames, so that what it casts is let through.
        none = tf.nest.map_structure(lambda leaf: leaf[np.newaxis], _no_frames(episodes.element_spec))
        try:
            self._add(none, None, None, 0)
        except ValueError as error:
            differences = "; ".join(_differences(self._buffer.data_spec, episodes.element_spec))
            if not differences:
                raise
            raise ValueError(
                f"the episodes of {episodes.name}, layout {episodes.layout!r}, do not fit the buffer's data_spec: "
                f"{differences}. Build the buffer with data_spec=episodes.element_spec, or with cast=True where only "
                "the width of numbers differs."
            ) from error

    def grouped(self, episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
        return ([episode] for episode in episodes)

    def write(self, group: Sequence[Episode]) -> None:
        (episode,) = group
        index = int(self._num_frames.argmin())
        priorities = None
        if self._priorities is not None:
            priorities = check_priorities(self._priorities(episode), None, (episode.num_frames,))[np.newaxis]
        ends = None if self._told_by_frames else _ends(episode.num_frames)
        frames = map_leaves(lambda leaf: leaf[np.newaxis], episode.frames)
        ids = self._add(frames, ends, priorities, index)
        if episode.metadata and isinstance(self._buffer, EpisodicReplayBuffer):
            self._buffer.set_metadata(int(self._buffer.episode_ids(ids[0, -1:])[0]), episode.metadata)
        self._num_frames[index] += episode.num_frames
        self._num_episodes += 1

    def end_streams(self) -> None:
        _end_streams(self._buffer, self._streams)

    def notes(self) -> Iterator[str]:
        buffer = self._buffer
        if isinstance(buffer, ReservoirReplayBuffer):
            # Not of the frames here: final observations are not offered.
            if (buffer.stats().added or 0) > buffer.capacity:
                yield f"the reservoir holds {buffer.capacity:,} frames: each that it was offered with the same chance"
        elif isinstance(buffer, EpisodicReplayBuffer):
            yield from _note_of_oldest(buffer, "episodes", self._num_episodes - (buffer.stats().episodes or 0))
        elif isinstance(buffer, ReplayBuffer) and buffer.capacity_unit == "frames":
            lost = self._num_frames - buffer.capacity // buffer.batch_size
            yield from _note_of_oldest(buffer, "frames", int(lost.clip(0).sum()))

    def _let_streams_part(self) -> None:
        if isinstance(self._buffer, ReverbTableGroup):
            return
        if isinstance(self._buffer, RolloutBuffer):
            raise ValueError(
                f"the buffer has {self._buffer.batch_size} streams, and a rollout has a frame of each at every step, "
                "which episodes of different lengths do not; build it with batch_size=1."
            )
        try:
            self._buffer.let_streams_part()
        except ValueError as error:
            raise ValueError(
                f"the buffer has {self._buffer.batch_size} streams, which are written side by side so far, and "
                "episodes differ in length; call its let_streams_part() before anything is added to it, or drawn from "
                "it, or build it with batch_size=1."
            ) from error

    def _add(self, frames: Nest, ends: Array | None, priorities: Array | None, index: int) -> Array:
        streams = None if self._buffer.batch_size == 1 else self._streams[index : index + 1]
        ids: Array = self._buffer.add_sequence(frames, end_of_episode=ends, priorities=priorities, streams=streams)
        return ids


class _AgentRoute:
    """Each episode as the life of an agent in a buffer of independent ones: at moments of its own.

    It goes into the environment in which that agent got the fewest frames so far.
    """

    def __init__(
        self,
        buffer: MultiAgentReplayBuffer,
        environments: Array,
        priorities: PriorityRule | None,
        *,
        told_by_frames: bool,
    ) -> None:
        self._buffer = buffer
        self._environments = environments
        self._priorities = priorities
        self._told_by_frames = told_by_frames
        self._num_frames = {agent: np.zeros(len(environments), np.int64) for agent in buffer.agents}
        self._num_evicted = buffer.stats().evicted

    def check_fits(self, episodes: Episodes) -> None:
        """Nothing: agents may differ in their specs, and who comes is not known before. Each write checks."""

    def grouped(self, episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
        return ([episode] for episode in episodes)

    def write(self, group: Sequence[Episode]) -> None:
        (episode,) = group
        agent = agent_of(episode, self._buffer)
        priorities = None
        if self._priorities is not None:
            given = check_priorities(self._priorities(episode), None, (episode.num_frames,))
            priorities = {agent: given[np.newaxis]}
        index = int(self._num_frames[agent].argmin())
        self._buffer.add_sequence(
            {agent: map_leaves(lambda leaf: leaf[np.newaxis], episode.frames)},
            end_of_episode=None if self._told_by_frames else {agent: _ends(episode.num_frames)},
            priorities=priorities,
            streams=self._environments[index : index + 1],
        )
        self._num_frames[agent][index] += episode.num_frames

    def end_streams(self) -> None:
        _end_streams(self._buffer, self._environments)

    def notes(self) -> Iterator[str]:
        return _notes_of_evicted(self._buffer, self._num_evicted)


class _LockstepRoute:
    """The episodes of the same id, one of each agent, as the same moments of one environment.

    That is the one that got the fewest moments so far.
    """

    def __init__(self, buffer: MultiAgentReplayBuffer, environments: Array, *, told_by_frames: bool) -> None:
        self._buffer = buffer
        self._environments = environments
        self._num_moments = np.zeros(len(environments), np.int64)
        self._told_by_frames = told_by_frames
        specs = {agent: DataSpec(buffer.data_spec[agent]) for agent in buffer.agents}
        self._specs = specs
        self._checkers = {agent: ItemChecker(spec, 1, cast=True) for agent, spec in specs.items()}
        self._fitting: set[str] = set()
        self._num_evicted = buffer.stats().evicted

    def check_fits(self, episodes: Episodes) -> None:
        """Nothing, as in `_AgentRoute`."""

    def grouped(self, episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
        return (list(group) for _, group in itertools.groupby(episodes, lambda episode: episode.id))

    def write(self, group: Sequence[Episode]) -> None:
        lives: dict[str, tuple[int, list[Array]]] = {}
        for episode in group:
            agent = agent_of(episode, self._buffer)
            if agent in lives:
                raise ValueError(f"agent {agent!r} comes twice in the episode of this id.")
            lives[agent] = episode.num_frames, self._check(agent, episode)
        index = int(self._num_moments.argmin())
        environment = self._environments[index : index + 1]
        # All are there from the first moment on, and each to its own end.
        start = 0
        for stop in sorted({length for length, _ in lives.values()}):
            frames, ends = {}, {}
            for agent, (length, leaves) in lives.items():
                if length >= stop:
                    frames[agent] = self._specs[agent].pack([leaf[:, start:stop] for leaf in leaves])
                    ends[agent] = _ends(stop - start) if length == stop else np.zeros([1, stop - start], bool)
            self._buffer.add_sequence(
                frames, end_of_episode=None if self._told_by_frames else ends, streams=environment
            )
            start = stop
        _end_streams(self._buffer, environment)
        self._num_moments[index] += start

    def end_streams(self) -> None:
        _end_streams(self._buffer, self._environments)

    def notes(self) -> Iterator[str]:
        return _notes_of_evicted(self._buffer, self._num_evicted)

    def _check(self, agent: str, episode: Episode) -> list[Array]:
        """The leaves `[1, T, ...]` in the dtypes that are stored: several writes follow, and none may be refused."""
        frames = map_leaves(lambda leaf: leaf[np.newaxis], episode.frames)
        if agent not in self._fitting:
            # By the buffer itself, which knows whether it casts.
            none = {agent: tf.nest.map_structure(lambda leaf: leaf[:, :0], frames)}
            self._buffer.add_sequence(none, streams=self._environments[:1])
            self._fitting.add(agent)
        try:
            leaves, _ = self._checkers[agent].check_sequence_leaves(self._specs[agent].flatten(frames))
        except ValueError as error:
            raise ValueError(f"agent {agent!r}: {error}") from error
        return leaves


def _end_streams(buffer: ReplayBuffer | ReverbTableGroup, streams: Array) -> None:
    for stream in streams.tolist():
        buffer.end_stream(stream)


def agent_of(episode: Episode, buffer: MultiAgentReplayBuffer) -> str:
    """Whose episode it is.

    Raises:
      ValueError: the episode names no agent, or none of the buffer's.
    """
    if episode.agent is None:
        raise ValueError(
            "it does not tell whose it is, and the buffer is of many agents; load_rlds(..., agent_field=) names the "
            "field that does."
        )
    if episode.agent not in buffer.agents:
        raise ValueError(f"it is of agent {episode.agent!r}; the buffer's agents are {', '.join(buffer.agents)}.")
    return episode.agent


def _ends(num_frames: int) -> Array:
    ends = np.zeros([1, num_frames], bool)
    ends[0, -1] = True
    return ends


def _no_frames(spec: Nest) -> Nest:
    return tf.nest.map_structure(lambda leaf: np.zeros([0, *leaf.shape], leaf.dtype.as_numpy_dtype), spec)


def _differences(expected: Nest, found: Nest) -> Iterator[str]:
    wanted = {field.path: f"{list(field.shape)} {field.dtype.name}" for field in DataSpec(expected).fields}
    given = {field.path: f"{list(field.shape)} {field.dtype.name}" for field in DataSpec(found).fields}
    for path in sorted(wanted.keys() | given.keys()):
        want, got = wanted.get(path, "no such field"), given.get(path, "no such field")
        if want != got:
            yield f"field {path!r}: expected {want}, got {got}"


def _note_of_oldest(buffer: ReplayBuffer, unit: str, num_lost: int) -> Iterator[str]:
    if num_lost > 0:
        parts = f", {buffer.capacity // buffer.batch_size:,} of each stream" if buffer.batch_size > 1 else ""
        held = f"{buffer.capacity:,} {unit}{parts if unit == 'frames' else ''}"
        yield f"the buffer holds {held}: the oldest {num_lost:,} of the loaded ones were evicted again"


def _notes_of_evicted(buffer: ReplayBuffer, before: int | None) -> Iterator[str]:
    evicted = buffer.stats().evicted
    if before is not None and evicted is not None and evicted > before:
        yield f"{evicted - before:,} frames were evicted while these were loaded; the buffer holds {buffer.capacity:,}"
