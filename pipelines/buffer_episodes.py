"""What a buffer holds as episodes of RLDS, for `write_rlds` and whatever else takes an `EpisodeSource`."""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from replayfeed.buffers import EpisodicReplayBuffer, MultiAgentReplayBuffer, ReplayBuffer, ReservoirReplayBuffer
from replayfeed.buffers.agent_frames import AgentFrame, JointFrame
from replayfeed.buffers.held_episodes import HeldEpisode, held_episodes, held_metadata, reader_of
from replayfeed.buffers.nests import Nest
from replayfeed.buffers.reverb_served import ServedBuffer

from .buffer_agents import lives_of, own_lives
from .episode_source import EpisodeSource, RawEpisode
from .frames_to_steps import FoundSteps, FramesToSteps, ToSteps

PARTIAL = "partial"
"""Episode metadata: the episode's beginning or its end is not in it."""

AGENT_ID = "agent_id"
"""Episode metadata: whose life the episode is."""

_logger = logging.getLogger(__name__)


class _Part(NamedTuple):
    """A buffer inside of the one that was given: whose frames it holds, and how lives are found in what it holds."""

    buffer: ReplayBuffer
    specs: Mapping[str, Nest]
    lives: Callable[[HeldEpisode], Iterator[tuple[str, HeldEpisode]]]


def buffer_source(
    buffer: ReplayBuffer,
    *,
    name: str | None = None,
    to_steps: ToSteps | None = None,
    agent: str | None = None,
    temporary_folder: str | os.PathLike[str] | None = None,
) -> EpisodeSource:
    """A buffer's contents as raw episodes, in the order in which they came, stream after stream.

    Nothing is taken out of the buffer, and it may be filled and drawn from meanwhile: each `read` gives what was held
    when it began, frames of one episode only together. What is evicted before its turn is left out, counted in the
    buffer's `stats().skipped`, logged, and in the report of `write_rlds`. Only the episode at hand and a few MB are in
    memory.

    A table on a server is scanned as a whole before its first episode comes, as Reverb draws in no order (it must be
    scannable; its sampler and limiter do not notice). While others write to it, it has no one view: what leaves it
    before its turn is missing, what comes may be there; the log and the report tell how much came. In memory are the
    items drawn at once (8 MB, or one item if that is larger, which Reverb, TensorFlow and NumPy each have), some 150
    bytes a frame, and at most 64 MB of frames: those of a larger table are in a temporary file, uncompressed, of which
    nothing is left when the reading ends, or the process.

    Episode metadata always has `partial`, True where the beginning was evicted or never stored (then `is_first` is
    False throughout) or where the episode goes on or its final observation is missing (then `is_last` is False
    throughout); `load_rlds` takes such an episode as truncated, and counts what it sets right. See
    `frames_to_steps.py` for what becomes of frames.

    | buffer | episodes |
    | --- | --- |
    | uniform, prioritized, rollout | each stream's, as its frames or the caller told their ends |
    | episodic | each one, with what `set_metadata` keeps beside it |
    | reservoir | each transition, alone: two steps, partial; frames of other layouts are refused |
    | many agents | each life of each agent, with `agent_id` beside it |
    | a table on a server | each stretch of frames that are all held, of every process that wrote |

    Transitions do not tell where they begin: what follows `end_stream`, or an episode that an episodic buffer evicted
    while it was being written (`num_cut_episodes`), counts as a beginning. Nor do those of a table of whole episodes
    with `over_long='cut'`, whose pieces all count as partial. The other layouts tell it themselves.

    Args:
      buffer: any buffer of the package. Of a `ReverbTableGroup` or `ReverbAgentTables` give one of its buffers
        (`group["name"]`), or the `MultiAgentReplayBuffer` that reads the tables of agents.
      name: for reports; None: the buffer's class, or the table and its server.
      to_steps: frames `[T, ...]` of one episode to step columns `[N + 1, ...]`, where `data_spec` is none of the
        layouts of `load_rlds`.
      agent: only this one's lives.
      temporary_folder: where that file is, on a disk and not in memory, with room for all frames; None:
        `tempfile.gettempdir()`, which the environment's `TMPDIR` sets.

    Raises:
      TypeError: the buffer's episodes cannot be read; the message says what to give instead.
      ValueError: `data_spec` is none of the layouts, and there is no `to_steps`.
      ValueError: a reservoir of single frames that are no transitions.
      ValueError: a table that cannot be scanned; the message says what is missing.
      ValueError: there is no such agent, or agents whose steps differ and none is named.

    Reading raises `OSError` where the temporary folder is missing, cannot be written, or has no room.

    >>> from replayfeed.buffers import TFUniformReplayBuffer
    >>> number, flag = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.bool)
    >>> spec = {"observation": number, "next_observation": number, "is_terminal": flag}
    >>> buffer = TFUniformReplayBuffer(spec, batch_size=1, max_length=10)
    >>> ids = buffer.add_sequence({"observation": [[0, 1, 7]], "next_observation": [[1, 2, 8]],
    ...                            "is_terminal": [[False, True, False]]})
    >>> for episode in buffer_source(buffer).read(None):
    ...     print(episode.columns["observation"].tolist(), episode.metadata)
    [0, 1, 2] {'partial': False}
    [7, 8] {'partial': True}
    """
    parts = _parts_of(buffer)
    agents = [one for part in parts for one in part.specs]
    if agent is not None and agent not in agents:
        known = ", ".join(map(repr, agents)) if agents != [""] else "it is a buffer of one agent"
        raise ValueError(f"there is no agent {agent!r} in this buffer: {known}.")
    chosen = agents if agent is None else [agent]
    steps = {one: FramesToSteps(spec, to_steps) for part in parts for one, spec in part.specs.items() if one in chosen}
    step_spec = _common_spec(steps)
    for part in parts:
        if isinstance(part.buffer, ReservoirReplayBuffer):
            for one in part.specs:
                if one in chosen:
                    steps[one].check_single(type(part.buffer).__name__)
    metadata_spec, kept = _metadata_of(buffer)
    if agents != [""]:
        metadata_spec[AGENT_ID] = tf.TensorSpec([], tf.string)

    told: list[str] = []

    def held_in(part: _Part, seed: int | None) -> Iterator[HeldEpisode]:
        return held_episodes(part.buffer, seed, told.append, temporary_folder=temporary_folder)

    def read(seed: int | None) -> Iterator[RawEpisode]:
        numbers = itertools.count()
        told.clear()

        def raw_episodes(part: _Part, held: HeldEpisode) -> Iterator[RawEpisode]:
            own = _kept_metadata(held, kept)
            for one, life in part.lives(held):
                for episode in _found_in(life, steps[one]) if one in chosen else ():
                    metadata = {**own, PARTIAL: np.bool_(episode.partial or own.get(PARTIAL, False))}
                    if one:
                        metadata[AGENT_ID] = one.encode()
                    frame = int(life.ids[episode.first_frame])
                    episode_id = f"{one}:{frame}" if one else str(frame)
                    yield RawEpisode(str(next(numbers)), episode.columns, metadata=metadata, id=episode_id)

        # Without a variable that would keep an episode while the next one is read.
        return itertools.chain.from_iterable(
            itertools.chain.from_iterable(map(functools.partial(raw_episodes, part), held_in(part, seed)))
            for part in parts
            if set(part.specs) & set(chosen)
        )

    return EpisodeSource(
        name or _name_of(buffer), step_spec, read, metadata_spec=metadata_spec, told=lambda: tuple(told)
    )


def _found_in(life: HeldEpisode, steps: FramesToSteps) -> Iterator[FoundSteps]:
    if not life.in_order:
        return steps.single_episodes(life.items)
    return steps.episodes(life.items, begins=life.begins, ends=life.ends)


def _parts_of(buffer: Any) -> list[_Part]:
    if not isinstance(buffer, MultiAgentReplayBuffer):
        reader_of(buffer)
        return [_part_of(buffer)]
    if buffer.mode == "lockstep":
        reader_of(buffer.buffer_of())
        return [_joint_part(buffer.buffer_of(), buffer.data_spec)]
    parts = []
    for policy in buffer.policies:
        own, agents = buffer.buffer_of(policy), buffer.agents_of(policy)
        reader_of(own)
        specs = {one: buffer.data_spec[one] for one in agents}
        parts.append(_Part(own, specs, functools.partial(own_lives, agents=agents)))
    return parts


def _part_of(buffer: ReplayBuffer) -> _Part:
    # A tf.Module wraps what it holds: the class is what was wrapped.
    kind = buffer.data_spec.__class__
    if kind is JointFrame:
        return _joint_part(buffer, buffer.data_spec.frames)
    if kind is AgentFrame:
        raise TypeError(
            "this buffer holds frames of agents (AgentFrame) and does not know their names: give the "
            "MultiAgentReplayBuffer that it belongs to, or one that reads its tables."
        )
    return _Part(buffer, {"": buffer.data_spec}, lambda held: iter([("", held)]))


def _joint_part(buffer: ReplayBuffer, specs: Mapping[str, Nest]) -> _Part:
    agents: Sequence[str] = tuple(specs)

    def lives(held: HeldEpisode) -> Iterator[tuple[str, HeldEpisode]]:
        if held.in_order:
            return lives_of(held, agents)
        # Moments without their order: each transition of each agent that is there.
        singles = (
            held._replace(
                items=tf.nest.map_structure(lambda leaf: leaf[index : index + 1], held.items),  # noqa: B023
                ids=held.ids[index : index + 1],
            )
            for index in range(len(held.ids))
        )
        return (life for single in singles for life in lives_of(single, agents))

    return _Part(buffer, dict(specs), lives)


def _common_spec(steps: Mapping[str, FramesToSteps]) -> dict[str, Nest]:
    """The specs of one step, which are those of all agents."""
    first, *others = steps
    for other in others:
        if not _is_same(steps[first].step_spec, steps[other].step_spec):
            raise ValueError(
                f"the steps of agents {first!r} and {other!r} differ, and a dataset has one kind: write a dataset for "
                f"each, buffer_source(buffer, agent={first!r}) and so on."
            )
    return dict(steps[first].step_spec)


def _is_same(left: Nest, right: Nest) -> bool:
    try:
        tf.nest.assert_same_structure(left, right)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True)
    return all((one.shape, one.dtype) == (other.shape, other.dtype) for one, other in pairs)


def _metadata_of(buffer: ReplayBuffer) -> tuple[dict[str, Nest], dict[str, tf.TensorSpec]]:
    """The spec of an episode's metadata, and of what an episodic buffer keeps beside each of its episodes."""
    kept: dict[str, tf.TensorSpec] = {}
    if isinstance(buffer, EpisodicReplayBuffer):
        held = held_metadata(buffer)
        left_out = []
        for key in sorted({key for metadata in held for key in metadata}):
            specs = {_spec_of(metadata.get(key)) for metadata in held}
            spec = specs.pop()
            if specs or spec is None:
                left_out.append(key)
            else:
                kept[key] = spec
        if left_out:
            _logger.warning(
                "episode metadata %s is not written: it is no array of one dtype and shape in every episode held.",
                ", ".join(map(repr, left_out)),
            )
    return {**kept, PARTIAL: tf.TensorSpec([], tf.bool)}, kept


def _kept_metadata(held: HeldEpisode, kept: Mapping[str, tf.TensorSpec]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for key, spec in kept.items():
        value = held.metadata.get(key)
        if _spec_of(value) != spec:
            raise ValueError(
                f"episode metadata {key!r} of the episode with frame {held.ids[0]}: expected {spec.shape} "
                f"{spec.dtype.name} as in the episodes before, got {value!r}; set it, and make the source anew."
            )
        own[key] = _as_value(value)
    return own


def _as_value(value: Any) -> Any:
    """The value as a source of episodes gives it: an array, or of strings the bytes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    array = np.asarray(value)
    return np.char.encode(array, "utf-8").astype(object) if array.dtype.kind == "U" else array


def _spec_of(value: Any) -> tf.TensorSpec | None:
    """The spec of a value that a dataset can hold beside an episode; None of others."""
    if value is None:
        return None
    if isinstance(value, str | bytes):
        return tf.TensorSpec([], tf.string)
    array = np.asarray(value)
    if array.dtype.kind == "U":
        return tf.TensorSpec(array.shape, tf.string)
    return tf.TensorSpec(array.shape, array.dtype) if array.dtype.kind in "biufc" else None


def _name_of(buffer: ReplayBuffer) -> str:
    if isinstance(buffer, ServedBuffer):
        return f"table {buffer.table_name!r} at {buffer.server_address}"
    return type(buffer).__name__
