"""Offline episodes, whatever they are read from: checked, in a layout, one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from replayfeed.buffers import Window
from replayfeed.buffers.nests import Nest

from .ends_at_exit import EndsAtExit
from .episode_conversion import Conversion
from .episode_source import EpisodeSource, RawEpisode, reason_of
from .episode_windows import windows_dataset
from .layouts import Layout, to_steps
from .load_options import LoadOptions
from .load_report import LoadReport, Tally
from .rlds_steps import ACTION, DISCOUNT, REWARD, Steps, unset_flags

_logger = logging.getLogger(__name__)

# From so many episodes on a pass that delivers none says that it still reads, at each power of ten.
_SILENT_EPISODES = 10_000


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
      place: in the source's own order, counted from 0, whatever the order of reading.
    """

    name: str
    frames: Nest
    num_frames: int
    is_terminal: bool
    id: str
    steps: Steps
    metadata: Mapping[str, Nest]
    agent: str | None = None
    place: int = 0


class Episodes:
    """The episodes of a dataset; can be iterated any number of times. Made by `load_rlds`.

    Iterating gives a nest of NumPy arrays `[T, ...]` for each episode. They may be read-only,
    and share memory (`observation` and `next_observation` of a transition do): copy before
    writing into them. Only the episode at hand and the few read ahead are in memory.

    Args:
      source: where the episodes come from.
      options: what `load_rlds` was told.

    Raises:
      ValueError: the source's steps lack a field, or an option does not fit them.

    >>> from replayfeed.pipelines.rlds_read import load_rlds
    >>> steps = {"observation": [0, 1, 2], "is_terminal": [False, False, True]}
    >>> episodes = load_rlds(tf.data.Dataset.from_tensors({"steps": steps}), layout="transition")
    >>> episodes.element_spec["next_observation"], len(episodes)
    (TensorSpec(shape=(), dtype=tf.int32, name=None), 1)
    >>> [episode["next_observation"].tolist() for episode in episodes]
    [[1, 2]]
    """

    def __init__(self, source: EpisodeSource, options: LoadOptions) -> None:
        self._source = source
        self._options = options
        self._conversion = Conversion(source, options)
        self._latest: EpisodePass | None = None
        # What the log has been told: passes without end would repeat it.
        self._told: set[str] = set()

    @property
    def element_spec(self) -> Nest:
        """Nest of `tf.TensorSpec` of one frame: what a buffer for these episodes is built from."""
        return self._conversion.element_spec

    @property
    def layout(self) -> Layout:
        """The layout of the frames."""
        return self._options.layout

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._source.name

    @property
    def num_episodes(self) -> int | None:
        """Episodes that are read, those that are dropped then included.

        None when unknown, as where an episode of the source holds the steps of several agents.
        """
        known, limit = self._source.num_episodes, self._options.limit
        if self._conversion.splits_episodes:
            return None
        return known if known is None or limit is None else min(known, limit)

    @property
    def report(self) -> LoadReport | None:
        """What the latest pass, of whatever it was for, brought so far; None before the first."""
        return None if self._latest is None else self._latest.report()

    def __len__(self) -> int:
        num_episodes = self.num_episodes
        if num_episodes is None:
            raise TypeError(f"{self.name}: the number of episodes is unknown until they are read.")
        return num_episodes

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Nest]:
        return (episode.frames for episode in self.start_pass())

    def start_pass(self, seed: int | None = None) -> EpisodePass:
        """One pass over all episodes, with names and endings, and a report of its own.

        Args:
          seed: of the order; None for the one that the episodes were loaded with, by default the source's.
            With a `limit` always that one, which also says which episodes they are.
        """
        chosen = self._options.seed if seed is None or self._options.limit is not None else seed
        self._latest = EpisodePass(self._source, self._options, self._conversion, chosen, self._told)
        return self._latest

    def as_source(self) -> EpisodeSource:
        """The sound episodes as RLDS has them, for writing and for loading in another layout.

        Their columns are those of layout `'step'`; what is dropped and repaired here is so there.
        Of an episode that held the steps of several agents, each has a name and an id of its own.
        """
        splits = self._conversion.splits_episodes

        def read(seed: int | None) -> Iterator[RawEpisode]:
            for episode in self.start_pass(seed):
                columns = to_steps(episode.steps)
                raw = RawEpisode(episode.name, columns, False, episode.metadata, episode.id, episode.place)
                of_agent = f" of {episode.agent}"
                yield raw._replace(name=raw.name + of_agent, id=raw.id + of_agent, place=-1) if splits else raw

        return EpisodeSource(
            name=self.name,
            step_spec=self._conversion.sound_step_spec,
            read=read,
            num_episodes=self.num_episodes,
            not_loaded=self._source.not_loaded,
            metadata_spec=self._source.metadata_spec,
            is_d4rl=self._source.is_d4rl,
            notes=self._source.notes,
        )

    def as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
        epochs: int | None = None,
        single_deterministic_pass: bool = False,
        shuffle_frames: int = 100_000,
        seed: int | None = None,
    ) -> tf.data.Dataset:
        """Training straight from disk: frames or windows, as a buffer's `as_dataset` gives them, with no buffer.

        Shuffled passes, each of which gives every eligible frame or window once. Episodes are
        shuffled before anything of them is decoded; their windows then come from blocks of about
        `shuffle_frames` frames, each with its own block or with the next one. That is what is in
        memory, whatever the size of the data: up to three blocks, one episode more, and some 64 MB of episodes that
        are not decoded yet (of a `tf.data.Dataset` 32 episodes: nothing tells their size).

        No window joins two episodes; a final observation (the last frame of layouts
        `'trajectory'` and `'step'`) starts none. `info` is a `BufferInfo`: `ids` are the episode's
        `place` times 2**32 plus the frame's place in it, so `ids >> 32` tells the episode; `keys`
        the id of the drawn frame; `weights` ones; `mask` False on padding; `probabilities` 1 in an
        ordered pass, else 1 / the windows of the latest pass that was read to its end (until then of what was read).

        Transforms of windows (`n_step`, `stack_frames`, ...) map over it as over a buffer's dataset.

        Args:
          sample_batch_size: `B`; None gives single elements without a batch axis.
          num_steps: `T`; None gives single frames.
          window: a `Window`, instead of `num_steps`.
          epochs: how many passes; None for no end. A batch that the last pass does not fill is shorter.
          single_deterministic_pass: one pass in the source's order; with `num_steps` windows do not overlap.
          shuffle_frames: see above; more mixes better, and takes more memory: lower it for images (100,000 frames of
            84 x 84 x 4 bytes are 2.8 GB). A pass that fits into it is read once and kept.
          seed: of the order: a new call with the same seed gives the same batches. A second iterator over one dataset
            goes through an order of its own, which repeats as well. None for one of its own each time.

        Returns:
          A dataset of `(items, info)`, leaves `[B, T, ...]`.

        Raises:
          ValueError: a size is below 1, two arguments exclude each other, or `window` ignores boundaries.
          While reading, ValueError: an episode is bad, and `on_bad_episode` is `'error'`.

        >>> from replayfeed.pipelines.rlds_read import load_rlds
        >>> steps = {"observation": [0, 1, 2, 3], "is_terminal": [False, False, False, True]}
        >>> episodes = load_rlds(tf.data.Dataset.from_tensors({"steps": steps}), layout="transition")
        >>> for items, info in episodes.as_dataset(2, 2, single_deterministic_pass=True):
        ...     print(items["observation"].numpy().tolist(), info.mask.numpy().tolist())
        [[0, 1]] [[True, True]]
        """
        return windows_dataset(
            self.start_pass,
            self.element_spec,
            sample_batch_size,
            num_steps,
            name=self.name,
            layout=self.layout,
            window=window,
            epochs=epochs,
            single_deterministic_pass=single_deterministic_pass,
            shuffle_frames=shuffle_frames,
            seed=seed,
        )

    def as_episode_dataset(self) -> tf.data.Dataset:
        """A `tf.data.Dataset` of whole episodes, leaves `[T, ...]`, in the source's order."""
        episode_spec = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), self.element_spec
        )
        return tf.data.Dataset.from_generator(lambda: EndsAtExit(iter(self)), output_signature=episode_spec)


class EpisodePass:
    """An iterator over `Episode`s that keeps count of what it delivers, drops and repairs."""

    def __init__(
        self, source: EpisodeSource, options: LoadOptions, conversion: Conversion, seed: int | None, told: set[str]
    ) -> None:
        self._source = source
        self._options = options
        self._conversion = conversion
        self._seed = seed
        self._told = told
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
            layout=self._options.layout,
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
        for index, raw in enumerate(self._read()):
            for agent, part in self._conversion.by_agent(raw):
                episode = self._checked(part, agent, index if raw.place < 0 else raw.place)
                if episode is not None:
                    yield episode
        self._seconds = time.perf_counter() - self._started
        for verb, tally in (("dropped", self._dropped), ("repaired", self._repaired)):
            for finding in tally.findings():
                text = f"{verb} {finding}"
                if text not in self._told:
                    self._told.add(text)
                    _logger.warning("%s: %s", self._source.name, text)

    def _read(self) -> Iterator[RawEpisode]:
        reading = self._source.read(self._seed)
        num_read = 0
        while self._options.limit is None or num_read < self._options.limit:
            try:
                raw = next(reading)
            except StopIteration:
                return
            except tf.errors.DataLossError as error:
                if self._options.on_bad_episode == "error":
                    raise ValueError(
                        f"{self._source.name}: the record after {num_read} others is damaged, as where a recording was "
                        f"broken off: {reason_of(error)}; on_bad_episode='skip' and 'repair' end there."
                    ) from error
                self._dropped.add("in a damaged record, and whatever comes after it", str(num_read))
                return
            except tf.errors.OpError as error:
                raise ValueError(
                    f"{self._source.name}: the episode after {num_read} others cannot be read: {reason_of(error)}"
                ) from error
            yield raw
            num_read += 1
            if num_read >= _SILENT_EPISODES and not self._frames and str(num_read).strip("0") == "1":
                _logger.warning(
                    "%s: none of the first %d episodes has a transition; reading on", self._source.name, num_read
                )

    def _checked(self, raw: RawEpisode, agent: str | None, index: int) -> Episode | None:
        """The episode, or None when it is dropped; everything about it is decided here."""
        steps, frames, fault, num_steps, is_terminal, ends_in_zeros = self._conversion.convert(raw)
        if fault is not None and self._options.on_bad_episode == "error":
            repair = "" if fault.num_kept is None else f", 'repair' ends it after {fault.num_kept} of its steps"
            raise ValueError(
                f"{self._source.name}, episode {raw.name}: {fault.detail}; on_bad_episode='skip' leaves it out{repair}."
            )
        if steps is None:
            too_short = "without a step" if num_steps == 0 else "of one step, so without a transition"
            self._dropped.add(too_short if fault is None else fault.reason, raw.name)
            return None
        if fault is not None:
            self._repaired.add(fault.reason, raw.name)
        else:
            for reason in unset_flags(raw.columns):
                self._repaired.add(reason, raw.name)
        num_frames = len(tf.nest.flatten(frames)[0])
        self._frames += num_frames
        self._terminals += is_terminal
        self._truncations += not is_terminal
        self._ending_in_zeros += ends_in_zeros
        return Episode(raw.name, frames, num_frames, is_terminal, raw.id or raw.name, steps, raw.metadata, agent, index)

    def _notes(self) -> Iterator[str]:
        spec: Mapping[str, Any] = self._source.step_spec
        is_trajectory = self._options.layout == "trajectory"
        yield from self._source.notes
        yield from self._source.told()
        if self._source.not_loaded:
            yield f"step fields not loaded: {', '.join(self._source.not_loaded)}"
        for field, instead in (
            (DISCOUNT, "0 into a terminal step, else 1"),
            (REWARD, "zeros" if is_trajectory else "the frames have none"),
            (ACTION, "an empty nest" if is_trajectory else "the frames have none"),
        ):
            if field not in spec:
                is_there = any(place.split("/")[0] == field for place in self._source.not_loaded)
                missing = f"the dataset's {field} is not loaded" if is_there else f"the dataset has no {field}"
                yield f"{missing}: {instead}"
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
