"""Offline episodes, whatever they are read from: checked, in a layout, one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

import tensorflow as tf

from replayfeed.buffers.nests import Nest

from .episode_source import EpisodeSource, RawEpisode
from .layouts import Layout, check_layout, convert_steps, frame_spec
from .load_report import LoadReport, Tally
from .rlds_steps import (
    ACTION,
    DISCOUNT,
    REWARD,
    Steps,
    cut_steps,
    ends_in_zeros,
    find_fault,
    num_steps_of,
    unset_flags,
)

_logger = logging.getLogger(__name__)

OnBadEpisode = Literal["error", "skip", "repair"]


class Episode(NamedTuple):
    """A checked episode in a layout.

    Attributes:
      name: its index in the source, with whatever else names it.
      frames: nest of NumPy arrays `[T, ...]` that matches `Episodes.element_spec`.
      num_frames: `T`.
      is_terminal: it ended; False: it was truncated.
      id: what names it for ever: TFDS's id where the source has one, else `name`.
      steps: the same episode before it was laid out.
      metadata: the episode's own fields.
      agent: whose episode it is, where `load_rlds` was told which field names the agent; else None.
    """

    name: str
    frames: Nest
    num_frames: int
    is_terminal: bool
    id: str
    steps: Steps
    metadata: Mapping[str, Nest]
    agent: str | None = None


class Episodes:
    """The episodes of a dataset; can be iterated any number of times. Made by `load_rlds`.

    Iterating gives a nest of NumPy arrays `[T, ...]` for each episode. They may be read-only,
    and share memory (`observation` and `next_observation` of a transition do): copy before
    writing into them. Only the episode at hand and the few read ahead are in memory.

    Args:
      source: where the episodes come from.
      layout: `'trajectory'` or `'transition'`.
      on_bad_episode: `'error'`, `'skip'` or `'repair'`, as `load_rlds` tells.

    Raises:
      ValueError: `layout` or `on_bad_episode` is unknown.
      ImportError: the layout needs TF-Agents, which is not installed.

    >>> from replayfeed.pipelines.rlds_read import load_rlds
    >>> steps = {"observation": [0, 1, 2], "is_terminal": [False, False, True]}
    >>> episodes = load_rlds(tf.data.Dataset.from_tensors({"steps": steps}), layout="transition")
    >>> episodes.element_spec["next_observation"], len(episodes)
    (TensorSpec(shape=(), dtype=tf.int32, name=None), 1)
    >>> [episode["next_observation"].tolist() for episode in episodes]
    [[1, 2]]
    """

    def __init__(self, source: EpisodeSource, layout: Layout, on_bad_episode: OnBadEpisode = "error") -> None:
        check_layout(layout)
        if on_bad_episode not in get_args(OnBadEpisode):
            raise ValueError(f"on_bad_episode must be 'error', 'skip' or 'repair', got {on_bad_episode!r}.")
        self._source = source
        self._layout: Layout = layout
        self._on_bad_episode: OnBadEpisode = on_bad_episode
        self._element_spec = frame_spec(dict(source.step_spec), layout)
        self._latest: EpisodePass | None = None

    @property
    def element_spec(self) -> Nest:
        """Nest of `tf.TensorSpec` of one frame: what a buffer for these episodes is built from."""
        return self._element_spec

    @property
    def layout(self) -> Layout:
        """The layout of the frames."""
        return self._layout

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._source.name

    @property
    def num_episodes(self) -> int | None:
        """Episodes in the source, those that are dropped on reading included; None when unknown."""
        return self._source.num_episodes

    @property
    def report(self) -> LoadReport | None:
        """What the latest iteration brought so far; None before the first."""
        return None if self._latest is None else self._latest.report()

    def __len__(self) -> int:
        if self._source.num_episodes is None:
            raise TypeError(f"{self.name}: the number of episodes is unknown until they are read.")
        return self._source.num_episodes

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Nest]:
        self._latest = self.start_pass()
        return (episode.frames for episode in self._latest)

    def start_pass(self, seed: int | None = None) -> EpisodePass:
        """One pass over all episodes, with names and endings, and a report of its own.

        Args:
          seed: of the order; None for the one that the episodes were loaded with, by default the source's.
        """
        return EpisodePass(self._source, self._layout, self._on_bad_episode, seed)

    def as_episode_dataset(self) -> tf.data.Dataset:
        """A `tf.data.Dataset` of whole episodes, leaves `[T, ...]`, in the source's order."""
        episode_spec = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), self._element_spec
        )
        return tf.data.Dataset.from_generator(lambda: iter(self), output_signature=episode_spec)


class EpisodePass:
    """An iterator over `Episode`s that keeps count of what it delivers, drops and repairs."""

    def __init__(
        self, source: EpisodeSource, layout: Layout, on_bad_episode: OnBadEpisode, seed: int | None = None
    ) -> None:
        self._source = source
        self._seed = seed
        self._layout = layout
        self._on_bad_episode = on_bad_episode
        self._frames = self._terminals = self._truncations = self._ending_in_zeros = 0
        self._dropped, self._repaired = Tally(), Tally()
        self._started = time.perf_counter()
        self._seconds: float | None = None
        self._episodes = self._run()

    def __iter__(self) -> Iterator[Episode]:
        return self

    def __next__(self) -> Episode:
        return next(self._episodes)

    @property
    def num_frames(self) -> int:
        """Frames delivered so far."""
        return self._frames

    def report(self) -> LoadReport:
        """What the pass brought so far."""
        seconds = time.perf_counter() - self._started if self._seconds is None else self._seconds
        return LoadReport(
            source=self._source.name,
            layout=self._layout,
            episodes=self._terminals + self._truncations,
            frames=self._frames,
            terminals=self._terminals,
            truncations=self._truncations,
            dropped=self._dropped.findings(),
            repaired=self._repaired.findings(),
            notes=tuple(self._notes()),
            seconds=seconds,
        )

    def _run(self) -> Iterator[Episode]:
        self._started = time.perf_counter()
        for raw in self._source.read(self._seed):
            episode = self._check(raw)
            if episode is not None:
                yield episode
        self._seconds = time.perf_counter() - self._started
        for verb, tally in (("dropped", self._dropped), ("repaired", self._repaired)):
            for finding in tally.findings():
                _logger.warning("%s: %s %s", self._source.name, verb, finding)

    def _check(self, raw: RawEpisode) -> Episode | None:
        """The episode, or None when it is dropped; everything about it is decided here."""
        fault = find_fault(raw.columns, invalid=raw.invalid)
        num_steps = num_steps_of(raw.columns)
        if fault is not None:
            if self._on_bad_episode == "error":
                repair = "" if fault.num_kept is None else f", 'repair' ends it after {fault.num_kept} of its steps"
                raise ValueError(
                    f"{self._source.name}, episode {raw.name}: {fault.detail}; "
                    f"on_bad_episode='skip' leaves it out{repair}."
                )
            if self._on_bad_episode == "skip" or fault.num_kept is None:
                self._dropped.add(fault.reason, raw.name)
                return None
            num_steps = fault.num_kept
        if num_steps < 2:
            too_short = "without a step" if num_steps == 0 else "of one step, so without a transition"
            self._dropped.add(too_short if fault is None else fault.reason, raw.name)
            return None
        if fault is not None:
            self._repaired.add(fault.reason, raw.name)
        else:
            for reason in unset_flags(raw.columns):
                self._repaired.add(reason, raw.name)
        return self._convert(raw, num_steps)

    def _convert(self, raw: RawEpisode, num_steps: int) -> Episode:
        steps = cut_steps(raw.columns, num_steps)
        frames = convert_steps(steps, self._layout)
        num_frames = len(tf.nest.flatten(frames)[0])
        self._frames += num_frames
        self._terminals += steps.is_terminal
        self._truncations += not steps.is_terminal
        self._ending_in_zeros += ends_in_zeros(steps)
        return Episode(raw.name, frames, num_frames, steps.is_terminal, raw.id or raw.name, steps, raw.metadata)

    def _notes(self) -> Iterator[str]:
        spec: Mapping[str, Any] = self._source.step_spec
        if self._source.not_loaded:
            yield f"step fields not loaded: {', '.join(self._source.not_loaded)}"
        if DISCOUNT not in spec:
            yield "the dataset has no discount: 0 into a terminal step, else 1"
        if REWARD not in spec:
            yield "the dataset has no reward: " + ("zeros" if self._layout == "trajectory" else "the frames have none")
        if ACTION not in spec:
            yield "the dataset has no action: " + (
                "an empty nest" if self._layout == "trajectory" else "the frames have none"
            )
        if self._ending_in_zeros:
            yield (
                f"{self._ending_in_zeros:,} terminal episodes end in an observation of zeros, which D4RL files hold "
                "where none was recorded: leave it out of statistics; discount 0 keeps it out of values"
            )
        if self._source.is_d4rl and self._truncations:
            yield (
                f"{self._truncations:,} truncated episodes of a D4RL file lack the observation after their last "
                "action: that transition of each cannot be recovered"
            )
