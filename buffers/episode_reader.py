"""How an episodic buffer is read: which kind of sample, by which law, at once or as a dataset."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .base import BufferInfo, EmptyBufferError, Items
from .counts import check_count, check_parallel_calls
from .episode_dataset import (
    EPISODES_A_BLOCK,
    bucket_boundaries,
    pad_batches,
    pad_in_buckets,
    take_apart,
)
from .episode_kinds import COMPLETED, Draw, Kind, lengths_of
from .episode_passes import EpisodePassPlanner, pass_dataset
from .episode_sampler import EpisodeSampler
from .episode_table import EpisodeTable
from .episode_usage import EpisodeUsage
from .graph_seeds import GraphSeeds
from .memory import adopt, copy_to_tensor
from .nests import Array, Nest
from .random_states import check_random_state
from .ring_dataset import random_dataset, sample_info
from .spec import DataSpec
from .stats import WindowCount
from .storage import FrameStorage
from .window_text import window_from_plain, window_to_plain
from .windows import Window, resolve_window

# Streams of random numbers derived from one seed.
_SAMPLE_STREAM, _DATASET_STREAM, _GRAPH_STREAM = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class ReadSettings:
    """What the buffer's constructor was given about reading; see there.

    Attributes:
      owner: the buffer's class, as messages call it.
      completed_only: leave out episodes whose last real transition is not in.
      min_size: frames that must be held before anything can be drawn.
      max_frames: frames held at most, or None.
      drop_remainder: in passes leave out what is not whole.
      window_shift: of an ordered pass with `num_steps`.
      final_observations: whether some frames may be final observations, which start no window.
      seed: of all draws.
    """

    owner: str
    completed_only: bool
    min_size: int
    max_frames: int | None
    drop_remainder: bool
    window_shift: int | None
    final_observations: bool
    seed: int | None


class EpisodeReader:
    """Draws and passes over the episodes of a table.

    Args:
      spec: the spec of a frame.
      table: the episodes.
      storage: their frames.
      usage: told what is drawn.
      lock: held while episodes change.
      settings: what the buffer was built with.
    """

    def __init__(
        self,
        spec: DataSpec,
        table: EpisodeTable,
        storage: FrameStorage,
        usage: EpisodeUsage,
        lock: threading.Lock,
        settings: ReadSettings,
    ) -> None:
        self._spec = spec
        self._table = table
        self._storage = storage
        self._usage = usage
        self._lock = lock
        self.settings = settings
        self._rng = np.random.default_rng(None if settings.seed is None else [settings.seed, _SAMPLE_STREAM])
        self._num_seeds = 0
        self._graph_seeds = GraphSeeds(None if settings.seed is None else [settings.seed, _GRAPH_STREAM])
        self._closed = False
        self._samplers: dict[Kind, EpisodeSampler] = {}
        self._last_ones: tuple[tuple[int, ...], tuple[tf.Tensor, tf.Tensor]] | None = None

    def close(self) -> None:
        """Refuses further draws; datasets made before go on."""
        self._closed = True
        self._samplers.clear()

    @property
    def has_drawn(self) -> bool:
        """Whether anything was drawn, or a dataset made."""
        return bool(self._samplers) or self._num_seeds > 0

    def state(self) -> tuple[dict[str, Any], Array]:
        """How far random numbers are and what was drawn, as plain values, and the seeds of graphs, int64 `[3]`."""
        values = {
            "random": self._rng.bit_generator.state,
            "num_seeds": self._num_seeds,
            "kinds": [
                [None if kind.window is None else window_to_plain(kind.window), kind.draw] for kind in self._samplers
            ],
        }
        return values, self._graph_seeds.state()

    def check_state(self, values: Any, graph_seeds: Array) -> None:
        """Whether `restore` and `prepare` would take what `state` gave.

        Raises:
          ValueError: it is no such state; the message says what is wrong.
        """
        self._graph_seeds.check(graph_seeds)
        check_random_state("random", values.get("random"))
        if type(values.get("num_seeds")) is not int or values["num_seeds"] < 0:
            raise ValueError(f"num_seeds of the save is {values.get('num_seeds')!r}: it is damaged.")
        try:
            kinds = [(None if window is None else window_from_plain(window), draw) for window, draw in values["kinds"]]
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"the kinds of samples in the save cannot be read: {error!r}; it is damaged.") from error
        for window, draw in kinds:
            self._check_kind(window, draw)

    def prepare(self, kinds: Any) -> None:
        """Counts samples of these kinds from now on, as if they had been drawn."""
        for window, draw in kinds:
            self._sampler(None if window is None else window_from_plain(window), draw)

    def restore(self, values: Any, graph_seeds: Array) -> None:
        """Goes on with the random numbers of a buffer that was saved; the lock is held."""
        self._rng.bit_generator.state = values["random"]
        # Never the seed of a dataset that was made of this buffer before.
        self._num_seeds = max(self._num_seeds, values["num_seeds"])
        self._graph_seeds.restore(graph_seeds)

    def dataset(
        self,
        sample_batch_size: int | None,
        num_steps: int | None,
        num_parallel_calls: int | None,
        sequence_preprocess_fn: Callable[[Any], Any] | None,
        single_deterministic_pass: bool,
        *,
        window: Window | None,
        epochs: int | None,
        draw: Draw | None,
        buckets: Any,
    ) -> tf.data.Dataset:
        """`EpisodicReplayBuffer.as_dataset`."""
        check_count("sample_batch_size", sample_batch_size, optional=True)
        check_parallel_calls(num_parallel_calls)
        check_count("epochs", epochs, optional=True)
        wanted = resolve_window(num_steps, window)
        if epochs is not None and single_deterministic_pass:
            raise ValueError("give epochs (shuffled) or single_deterministic_pass (ordered), not both.")
        is_pass = single_deterministic_pass or epochs is not None
        if is_pass and draw is not None:
            raise ValueError(f"draw={draw!r} is for random draws: a pass visits each once.")
        boundaries = self._boundaries(buckets, sample_batch_size, wanted)
        sampler = self._sampler(wanted, draw)
        drop_remainder = self.settings.drop_remainder or not is_pass
        # Whole episodes are batched last where they are made one by one: by a function, by length, or in a pass.
        single = sequence_preprocess_fn is not None or boundaries is not None or is_pass
        if is_pass:
            keep_short = num_steps is not None and single_deterministic_pass and sample_batch_size is None
            keep_short = keep_short and not self.settings.drop_remainder
            shift = (
                None if window is not None or num_steps is None or epochs else (self.settings.window_shift or num_steps)
            )
            dataset = pass_dataset(
                sampler,
                self._pack_for_dataset,
                self._plans(sampler.kind, shift, epochs, keep_short=keep_short),
                self._usage,
                keep_short=keep_short,
                num_parallel_calls=num_parallel_calls,
            )
        else:
            in_blocks = single and wanted is None and sample_batch_size is not None
            dataset = random_dataset(
                sampler,
                self._pack_for_dataset,
                EPISODES_A_BLOCK if in_blocks else None if single else sample_batch_size,
                self._next_seed(_DATASET_STREAM),
                self._usage.graph_counter(),
                num_parallel_calls=num_parallel_calls,
            )
            if in_blocks:
                dataset = take_apart(dataset)
        if sequence_preprocess_fn is not None:
            dataset = dataset.map(lambda items, info: (sequence_preprocess_fn(items), info))
        if sample_batch_size is None or not single:
            return dataset
        if wanted is not None:
            return dataset.batch(sample_batch_size, drop_remainder=drop_remainder)
        if boundaries is None:
            return pad_batches(dataset, sample_batch_size, drop_remainder=drop_remainder)
        return pad_in_buckets(dataset, sample_batch_size, boundaries, drop_remainder=drop_remainder)

    def sample(
        self, sample_batch_size: int | None, num_steps: int | None, *, window: Window | None, draw: Draw | None
    ) -> tuple[Items, BufferInfo]:
        """`EpisodicReplayBuffer.sample`."""
        check_count("sample_batch_size", sample_batch_size, optional=True)
        sampler = self._sampler(resolve_window(num_steps, window), draw)
        num = sample_batch_size or 1
        if not tf.executing_eagerly():
            return self._sample_in_graph(sampler, sample_batch_size)
        drawn = sampler.draw(self._rng, num)
        self._usage.count_sampled(drawn.positions)
        ids = adopt(drawn.ids) if drawn.mask is None else copy_to_tensor(drawn.ids)
        chances, keys = copy_to_tensor(drawn.chances), copy_to_tensor(drawn.keys)
        weights, mask = self._ones(drawn.ids.shape)
        if drawn.mask is not None:
            mask = tf.constant(drawn.mask)
        info = BufferInfo(ids, chances, keys, weights, mask)
        items = self._spec.pack(self._storage.to_tensors(drawn.leaves))
        if sample_batch_size is None:
            return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), (items, info))
        return items, info

    def count_windows(self) -> tuple[WindowCount, ...]:
        """For each kind of window drawn by itself how many there are; the lock is held."""
        counts = []
        states = self._table.states_of(self._table.ids())
        for kind in self._samplers:
            if kind.window is None or kind.draw != "windows":
                continue
            eligible, possible = self._table.count(kind).value, 0
            if kind.window.short == "drop":
                single = dataclasses.replace(kind, window=Window(1, stride=kind.window.stride))
                possible = int(single.weights(states).sum())
            counts.append(WindowCount(kind.window, eligible, max(0, possible - eligible)))
        return tuple(counts)

    def _sample_in_graph(self, sampler: EpisodeSampler, sample_batch_size: int | None) -> tuple[Items, BufferInfo]:
        drawn = sampler.draw_in_graph(sample_batch_size or 1, self._graph_seeds.next_in_graph())
        with tf.control_dependencies([self._usage.graph_counter().count(sampler.positions_in_graph(drawn.keys))]):
            drawn = drawn._replace(ids=tf.identity(drawn.ids))
        sampled = (drawn.leaves, sample_info(drawn, drawn.chances))
        if sample_batch_size is None:
            sampled = tf.nest.map_structure(lambda tensor: tf.squeeze(tensor, 0), sampled)
        return self._spec.pack(sampled[0]), sampled[1]

    def _sampler(self, window: Window | None, draw: Draw | None) -> EpisodeSampler:
        if draw is None:
            draw = "episodes" if window is None else "windows"
        self._check_kind(window, draw)
        kind = Kind(window, draw, self.settings.completed_only)
        sampler = self._samplers.get(kind)
        if sampler is None:
            if self._closed:
                raise ValueError(f"this {self.settings.owner} is closed; build a new one.")
            sampler = EpisodeSampler(
                self._table,
                self._storage,
                self._spec.fields,
                kind,
                self._lock,
                self._nothing_there,
                min_size=self.settings.min_size,
                final_observations=self.settings.final_observations,
            )
            self._samplers[kind] = sampler
        return sampler

    def _check_kind(self, window: Window | None, draw: Any) -> None:
        if draw not in ("windows", "episodes", "length"):
            raise ValueError(f"draw must be 'windows', 'episodes' or 'length', got {draw!r}.")
        if window is None and draw == "windows":
            raise ValueError(
                "draw='windows' needs num_steps or window; whole episodes are drawn by 'episodes' or 'length'."
            )
        if window is not None and window.boundaries == "ignore":
            raise ValueError(
                "EpisodicReplayBuffer keeps episodes apart: boundaries='ignore' is for TFUniformReplayBuffer."
            )
        most = self.settings.max_frames
        if window is not None and most is not None and window.short == "drop" and window.num_steps > most:
            raise ValueError(
                f"num_steps {window.num_steps} > max_frames {most}: no window could ever come; lower num_steps or "
                "raise max_frames."
            )

    def _nothing_there(self, kind: Kind) -> EmptyBufferError:
        """Why nothing of this kind can be drawn; the lock is held."""
        table = self._table
        frames = table.num_frames
        if frames == 0:
            return EmptyBufferError(
                f"{self.settings.owner} is empty. Make sure to add items before sampling the buffer."
            )
        if frames < self.settings.min_size:
            return EmptyBufferError(
                f"{frames} of {self.settings.min_size} frames (min_size_to_sample): add more before sampling."
            )
        states = table.states_of(table.ids())
        states = states[lengths_of(states) > 0]
        completed = int(np.count_nonzero(states & COMPLETED))
        if kind.completed_only and not completed:
            return EmptyBufferError(f"0 of {len(states)} episodes are completed (completed_only).")
        if kind.completed_only:
            states = states[states & COMPLETED != 0]
        what = "no whole episode" if kind.window is None else f"no window of {kind.window.num_steps} frames"
        only = " completed" if kind.completed_only else ""
        return EmptyBufferError(f"{what}: {len(states)}{only} episodes, longest {int(lengths_of(states).max())}.")

    def _plans(self, kind: Kind, shift: int | None, epochs: int | None, *, keep_short: bool) -> tf.data.Dataset:
        planner = EpisodePassPlanner(
            self._table,
            self._lock,
            kind,
            shift,
            self._nothing_there,
            min_size=self.settings.min_size,
            keep_short=keep_short,
        )
        return planner.ordered() if epochs is None else planner.shuffled(epochs, self._next_seed(_DATASET_STREAM))

    def _boundaries(self, buckets: Any, sample_batch_size: int | None, window: Window | None) -> list[int] | None:
        if buckets is None:
            return None
        if sample_batch_size is None or window is not None:
            raise ValueError("buckets are for batches of whole episodes: give sample_batch_size, and no window.")
        with self._lock:
            lengths = lengths_of(self._table.states_of(self._table.ids()))
        return bucket_boundaries(buckets, lengths[lengths > 0])

    def _pack_for_dataset(self, leaves: Any) -> Nest:
        return tf.nest.pack_sequence_as(self._spec.dataset_nest(), list(leaves))

    def _ones(self, shape: tuple[int, ...]) -> tuple[tf.Tensor, tf.Tensor]:
        """Weights `[n]` and a mask of this shape: made once while the shape stays the same."""
        if self._last_ones is None or self._last_ones[0] != shape:
            self._last_ones = shape, (tf.ones(shape[:1]), tf.ones(shape, tf.bool))
        return self._last_ones[1]

    def _next_seed(self, stream: int) -> int | None:
        """A seed for the next dataset: another for each, the same in each run."""
        if self.settings.seed is None:
            return None
        with self._lock:
            self._num_seeds += 1
            entropy = [self.settings.seed, stream, self._num_seeds]
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])
