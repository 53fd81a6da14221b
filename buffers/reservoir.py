"""The in-process reservoir: a uniform sample of everything that was ever added."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from .adds import Adds
from .base import BufferInfo, EmptyBufferError, Ids, Items, ReplayBuffer
from .counts import check_count, check_parallel_calls
from .episode_ends import EpisodeRule, FinalFrame
from .graph_seeds import GraphSeeds
from .item_selectors import Selector
from .memory import check_capacity_fits, copy_to_tensor
from .nests import Array, Nest
from .priorities import check_keys
from .priority_updates import WithoutPriorities
from .reservoir_passes import ReservoirPassPlanner, pass_dataset
from .reservoir_rows import BOOKKEEPING_BYTES, NOT_HELD, ReservoirRows
from .reservoir_rule import ReservoirRule
from .reservoir_sampler import ReservoirSampler
from .reservoir_state import ReservoirState, SavedReservoir
from .reservoir_usage import ReservoirUsage
from .reservoir_writer import ReservoirWriter
from .ring_dataset import random_dataset, sample_info
from .sampler_choice import check_draws_uniformly
from .spec import DataSpec, ItemChecker
from .stats import BufferStats, WindowCount
from .storage import FrameStorage
from .windows import Window, resolve_window

# Streams of random numbers derived from one seed.
_SAMPLE_STREAM, _DATASET_STREAM, _GRAPH_STREAM, _KEEP_STREAM = 0, 1, 2, 3


class ReservoirReplayBuffer(SavedReservoir, WithoutPriorities, ReplayBuffer):
    """Holds `capacity` items of all that were ever added, each of them with the same chance, and draws among them.

    Of `n` items each is held with the chance `min(1, capacity / n)`, and each set of `capacity` items with the same
    (Vitter 1985, Random Sampling with a Reservoir; `reservoir_rule.py`). It is what a policy is averaged over its
    whole past with, as in fictitious self-play, where a ring would forget. An item that is not kept is checked, and
    costs no copy.

    An *item* is one frame of `data_spec`. Frames that followed each other do not stay together: to learn from
    transitions, add transitions. Where the spec tells an episode's end (`step_type`, `is_last`), its last frame is
    only a final observation, which other buffers never draw alone: it is no item here, is not counted, and gets the
    id -1. The items of a step come in the order of its streams, and its ids say how many came before.

    Restored with `on_mismatch='resize'`, a smaller reservoir takes a uniform choice of the items, and goes on as if it
    had been that small all the time. A larger one holds what there is, and fills up as its stream goes on: of the items
    that come it keeps the share that is held of those before, until it is full; from then on it is as if it had been
    that large all the time (`reservoir_rule.resized` says by which law).

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame; fixed-width dtypes, static shapes.
      capacity: items held at most, exactly so many once as many came.
      batch_size: `B`, streams that `add_batch` writes side by side.
      seed: makes what is kept, `sample` and `as_dataset` repeat exactly, however the stream is cut into adds;
        None: they differ in each run.
      end_of_episode_fn: `items -> bool [B]` (`[B, T]` in `add_sequence`), tells ends with
        `final_frame='observation'`.
      final_frame: `'auto'`, `'observation'` or `'ordinary'`: whether an episode's last frame is only a final
        observation (`episode_ends.py`).
      min_size_to_sample: frames that must be held before anything can be drawn.
      dataset_drop_remainder: in ordered and shuffled passes, leave out a last batch of fewer than `sample_batch_size`.
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      sampler: `Uniform()`, which is what happens; other words are refused with a reason.
      remover: refused with a reason.

    Raises:
      ValueError: `sampler` is another one, or there is a `remover`.
      TypeError: `capacity`, `batch_size` or `min_size_to_sample` is no int.
      ValueError: one of them is below 1, or `min_size_to_sample` is above the capacity.
      ValueError: `seed` is no int of at least 0.
      ValueError: the capacity does not fit into memory, or is 2**31 or more.
      TypeError, ValueError: as `DataSpec` and `EpisodeRule` raise them.

    >>> buffer = ReservoirReplayBuffer(tf.TensorSpec([], tf.int64), capacity=4, seed=0)
    >>> ids = buffer.add_sequence(np.arange(1000)[None])
    >>> len(buffer), buffer.num_seen, buffer.gather_all().shape
    (4, 1000, TensorShape([1, 4]))
    >>> items, info = buffer.sample(32)
    >>> set(items.numpy()) <= set(buffer.gather_all().numpy()[0]), float(info.probabilities[0])
    (True, 0.25)
    """

    def __init__(
        self,
        data_spec: Nest,
        capacity: int,
        *,
        batch_size: int = 1,
        seed: int | None = None,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        min_size_to_sample: int = 1,
        dataset_drop_remainder: bool = False,
        cast: bool = False,
        sampler: Selector | None = None,
        remover: Selector | None = None,
    ) -> None:
        self._remember(locals())
        check_draws_uniformly(sampler, "serve a reservoir from table_presets.reservoir, and draw by {sampler} there")
        if remover is not None:
            raise ValueError(
                f"remover={remover}: what a reservoir keeps is its own rule, and no remover's; leave it out, or use "
                "TFUniformReplayBuffer, whose oldest frames leave."
            )
        check_count("capacity", capacity)
        check_count("batch_size", batch_size)
        check_count("min_size_to_sample", min_size_to_sample)
        if min_size_to_sample > capacity:
            raise ValueError(
                f"min_size_to_sample {min_size_to_sample} is above the capacity of {capacity} frames: "
                "nothing could ever be drawn; lower it or raise capacity."
            )
        if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0):
            raise ValueError(f"seed must be an int of at least 0, or None, got {seed!r}.")
        if capacity >= 2**31:
            raise ValueError(f"a capacity of {capacity} frames is over the limit of 2**31 - 1; lower capacity.")
        self._spec = DataSpec(data_spec)
        ends = EpisodeRule(self._spec, end_of_episode_fn, final_frame)
        self._capacity = int(capacity)
        self._batch_size = int(batch_size)
        self._bytes_capacity = self._capacity * self._spec.frame_bytes
        # A mark, too, says of each row whether it was drawn.
        check_capacity_fits(self._bytes_capacity + self._capacity * (BOOKKEEPING_BYTES + 1), "capacity")

        self._storage = FrameStorage(self._spec.fields, self._capacity)
        self._held = ReservoirRows(self._capacity)
        self._usage = ReservoirUsage(self._capacity)
        self._lock = threading.Lock()
        self._seed = seed
        self._rng = self._stream_of(_SAMPLE_STREAM)
        self._rule = ReservoirRule(self._capacity, self._stream_of(_KEEP_STREAM))
        self._writer = ReservoirWriter(
            ends,
            self._rule,
            self._held,
            self._storage,
            self._usage,
            self._lock,
            batch_size=self._batch_size,
            capacity=self._capacity,
        )
        self._state = ReservoirState(
            self._capacity, self._rule, self._held, self._storage, self._usage, self._writer, self._lock
        )
        checker = ItemChecker(self._spec, self._batch_size, cast=cast)
        self._adds = Adds(self._spec, checker, self._batch_size, self._writer)
        self._closed = False
        self._min_size = int(min_size_to_sample)
        self._drop_remainder = bool(dataset_drop_remainder)
        self._num_seeds = 0
        self._graph_seeds = GraphSeeds(None if seed is None else [seed, _GRAPH_STREAM])
        # Without, and with an axis for time.
        self._samplers: dict[bool, ReservoirSampler] = {}
        # Sizes of the last sample, and the tensors of its info that are the same for all samples of these sizes.
        self._constants: tuple[tuple[int, int, bool], tuple[tf.Tensor, tf.Tensor, tf.Tensor]] | None = None

    @property
    def data_spec(self) -> Nest:
        return self._spec.nest

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def capacity_unit(self) -> Literal["frames"]:
        return "frames"

    @property
    def num_seen(self) -> int:
        """`n`, items of the stream since construction or `clear`, whether they were kept or not."""
        return self._rule.num_seen

    def __len__(self) -> int:
        return self._held.size

    def num_frames(self) -> tf.Tensor:
        """Frames held now, int64 `[]`: a tensor, so that inside a `tf.function` it stays live."""
        if tf.executing_eagerly():
            return tf.constant(self._held.size, tf.int64)
        return self._held.size_in_graph()

    # Writing

    def add_batch(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Offers one frame of each stream.

        Args:
          items: nest matching `data_spec`, leaves `[B, ...]`: NumPy arrays, eager tensors, or
            inside a `tf.function` symbolic tensors. What is kept is copied.
          end_of_episode: bool `[B]`; matters with `final_frame='observation'`.
          priorities: `[B]`, checked as every buffer checks them; what is kept and drawn does not depend on them.
          streams: int `[n]`, ascending, each once: these streams only offer a frame, and `n` stands for `B`
            everywhere.

        Returns:
          The frames' ids, int64 `[B]`, -1 for final observations: a tensor where the items are tensors, else
          an array. Those that were not kept have ids, too.

        Raises:
          ValueError: the items do not match `data_spec`; the message names the field. Nothing is counted.
          ValueError: `end_of_episode` or `priorities` does not fit. Nothing is counted.
          ValueError: `streams` are none of this buffer, or not ascending. Nothing is counted.
          ValueError: the buffer is closed.
        """
        return self._adds.add_batch(items, end_of_episode, priorities, streams)

    def add_sequence(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Offers `T` frames of each stream: the same as `T` calls of `add_batch`, in one.

        Args:
          items: nest matching `data_spec`, leaves `[B, T, ...]`. `T` may be 0.
          end_of_episode: bool `[B, T]`.
          priorities: `[B, T]`, checked.
          streams: int `[n]`, as in `add_batch`.

        Returns:
          The frames' ids, int64 `[B, T]`: a tensor where the items are tensors, else an array.

        Raises:
          ValueError: as `add_batch`; also where fields disagree about `T`. Nothing is counted.
        """
        return self._adds.add_sequence(items, end_of_episode, priorities, streams)

    def let_streams_part(self) -> None:
        """Nothing to do: streams may part anyhow."""

    def end_stream(self, b: int | None = None) -> None:
        """Changes nothing: no window is drawn that could go on past the newest frame.

        Raises:
          ValueError: there is no stream `b`, or the buffer is closed.
        """
        if b is not None and not 0 <= b < self.batch_size:
            raise ValueError(f"there is no stream {b}: this buffer has streams 0 to {self.batch_size - 1}.")
        self._check_open()

    # Reading

    def as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        num_parallel_calls: int | None = None,
        sequence_preprocess_fn: Callable[[Any], Any] | None = None,
        single_deterministic_pass: bool = False,
        *,
        window: Window | None = None,
        epochs: int | None = None,
    ) -> tf.data.Dataset:
        """A live dataset of `(items, BufferInfo)`; lists in `data_spec` come out as tuples.

        By default it never ends: each row is drawn with replacement, with the same chance for each frame held at
        the time of the draw, which is at most 24 batches before it is delivered (`ring_dataset.py`).

        Args:
          sample_batch_size: `B`; None: elements without a `B` axis.
          num_steps: None, or 1 for a `T` axis of one.
          num_parallel_calls: of the map that draws; the order of elements does not change.
          sequence_preprocess_fn: items of one sample, leaves `[...]` (`[1, ...]` with a `T` axis) -> items;
            applied to each before batching.
          single_deterministic_pass: each frame once, in the order in which they came, then the end. What is
            there is read at the first `next`; frames replaced meanwhile are skipped, counted in `stats` and logged.
          window: None, or `Window(1)`, which is the same as `num_steps=1`.
          epochs: draw without replacement: this many passes, each in an order of its own.

        Returns:
          Leaves `[B, ...]`, with a `T` axis `[B, 1, ...]`; `BufferInfo` as there. In a pass `probabilities` are 1
          when ordered and 1 / held when shuffled.

        Raises:
          TypeError: an argument has the wrong type.
          ValueError: a size is below 1; `num_steps` and `window`, or `epochs` and
            `single_deterministic_pass`, are both given.
          ValueError: windows of several frames are asked for; the message says what has them.
          ValueError: no batch of that size could ever come.
          tf.errors.InvalidArgumentError: at `next`: nothing, or too little, is held.
        """
        check_count("sample_batch_size", sample_batch_size, optional=True)
        check_parallel_calls(num_parallel_calls)
        check_count("epochs", epochs, optional=True)
        stacked = self._is_stacked(num_steps, window)
        if epochs is not None and single_deterministic_pass:
            raise ValueError("give epochs (shuffled) or single_deterministic_pass (ordered), not both.")
        is_pass = single_deterministic_pass or epochs is not None
        if is_pass and self._drop_remainder and (sample_batch_size or 0) > self.capacity:
            raise ValueError(
                f"sample_batch_size {sample_batch_size} > capacity {self.capacity} with dataset_drop_remainder: "
                "no batch could ever come and ALL data will be dropped; lower sample_batch_size."
            )
        sampler = self._sampler(stacked)
        # With a function for single samples, elements are made one by one and batched last.
        inner_batch = sample_batch_size if sequence_preprocess_fn is None else None
        if not is_pass:
            dataset = random_dataset(
                sampler,
                self._pack_for_dataset,
                inner_batch,
                self._next_seed(_DATASET_STREAM),
                self._usage.graph_counter(),
                num_parallel_calls=num_parallel_calls,
            )
        else:
            planner = ReservoirPassPlanner(self._held, self._lock, self._nothing_held, min_size=self._min_size)
            dataset = pass_dataset(
                sampler,
                self._pack_for_dataset,
                planner.ordered() if epochs is None else planner.shuffled(epochs, self._next_seed(_DATASET_STREAM)),
                inner_batch,
                self._usage,
                drop_remainder=self._drop_remainder,
                num_parallel_calls=num_parallel_calls,
            )
        if sequence_preprocess_fn is None:
            return dataset
        dataset = dataset.map(lambda items, info: (sequence_preprocess_fn(items), info))
        if sample_batch_size is None:
            return dataset
        return dataset.batch(sample_batch_size, drop_remainder=self._drop_remainder or not is_pass)

    def sample(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
    ) -> tuple[Items, BufferInfo]:
        """One draw at once: the low-latency path. Arguments, shapes and odds as `as_dataset`.

        Inside a `tf.function` it is part of the graph and draws at each call.

        Raises:
          TypeError, ValueError: as `as_dataset`.
          EmptyBufferError: nothing, or too little, is held; the message says how much.
        """
        check_count("sample_batch_size", sample_batch_size, optional=True)
        stacked = self._is_stacked(num_steps, window)
        sampler = self._sampler(stacked)
        num = sample_batch_size or 1
        if not tf.executing_eagerly():
            return self._sample_in_graph(sampler, sample_batch_size)
        drawn = sampler.draw(self._rng, num)
        self._usage.count_sampled(drawn.rows)
        chances, weights, mask = self._constant_info(drawn.num_eligible, num, stacked)
        keys = copy_to_tensor(drawn.keys)
        info = BufferInfo(copy_to_tensor(drawn.ids) if stacked else keys, chances, keys, weights, mask)
        items = self._spec.pack(self._storage.to_tensors(drawn.leaves))
        if sample_batch_size is None:
            return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), (items, info))
        return items, info

    def get(self, ids: Ids, num_steps: int | None = None) -> Items:
        """The frames with these ids.

        Args:
          ids: int64, of any shape `[...]`.
          num_steps: None: leaves `[..., *field]`; 1: leaves `[..., 1, *field]`.

        Raises:
          ValueError: an id is not held: it was not kept, was replaced or cleared, or never given out.
          ValueError: windows of several frames are asked for.
        """
        sampler = self._sampler(self._is_stacked(num_steps, None))
        given = check_keys(ids)
        flat = given.reshape(-1)
        with self._lock:
            self._check_open()
            rows = self._held.rows_of(flat)
            gone = rows == NOT_HELD
            if gone.any():
                raise ValueError(
                    f"id {flat[gone][0]} is not held: {len(self)} of {self.num_seen} items are; "
                    f"{int(gone.sum())} of {len(flat)} ids were not kept, are gone or were never given out."
                )
            leaves = sampler.gather(rows)
        leaves = [leaf.reshape(*given.shape, *leaf.shape[1:]) for leaf in leaves]
        return self._spec.pack(self._storage.to_tensors(leaves))

    def gather_all(self) -> Items:
        """Every frame held, leaves `[1, n, ...]`, in the order in which they came: by id, whatever the stream."""
        with self._lock:
            self._check_open()
            if not len(self):
                return self._spec.pack([tf.zeros((1, 0, *field.shape), field.dtype) for field in self._spec.fields])
            leaves = self._storage.gather(self._held.in_order()[1][None])
        return self._spec.pack(self._storage.to_tensors(leaves))

    def clear(self) -> None:
        """Empties the buffer and its counters, `num_seen` too; ids go on, so that an old key means no new frame."""
        with self._lock:
            self._check_open()
            self._state.clear()

    def stats(self) -> BufferStats:
        """Counts, shares and bytes as of now.

        `added` is `num_seen`: final observations do not count. `evicted` are all that are not held, those that were
        replaced and those that were never kept. `episodes` is None.
        """
        with self._lock:
            usage, frames, added = self._usage, len(self), self.num_seen
            return BufferStats(
                frames=frames,
                capacity=self.capacity,
                capacity_unit="frames",
                fill_share=frames / self.capacity,
                added=added,
                sampled=usage.sampled,
                evicted=added - frames,
                evicted_unsampled=added - frames - usage.replaced + usage.replaced_unsampled,
                bytes_held=frames * self._spec.frame_bytes,
                bytes_capacity=self._bytes_capacity,
                episodes=None,
                skipped=usage.skipped,
                replay_ratio=usage.sampled / added if added else None,
                windows=(WindowCount(Window(1), frames, 0),) if self._samplers else (),
                host=socket.gethostname(),
            )

    def flush(self) -> None:
        """Nothing to do: what was added can be read at once."""

    def close(self) -> None:
        """Refuses further adds and draws. Datasets and graphs made before go on; the memory is freed with the last."""
        with self._lock:
            self._closed = True
            self._writer.close()
            self._samplers.clear()
            self._storage.release()

    # How it is done

    def _is_stacked(self, num_steps: int | None, window: Window | None) -> bool:
        """Whether samples have an axis for time, of one.

        Raises:
          ValueError: windows of several frames are asked for.
          Otherwise as `resolve_window`.
        """
        wanted = resolve_window(num_steps, window)
        if wanted is None:
            return False
        if wanted.length > 1 or wanted.stride > 1:
            raise ValueError(
                f"{type(self).__name__} keeps single frames, most of which lose their neighbours: there is no "
                f"{wanted!r} to draw. Add transitions, which replayfeed.pipelines.transitions makes of windows; or "
                "keep whole episodes with EpisodicReplayBuffer; or keep windows in a Reverb table with sampler "
                "Uniform(), remover MinHeap() and initial='random', which is a reservoir of them."
            )
        return True

    def _num_gone(self, keys: Array) -> int:
        with self._lock:
            return int(np.count_nonzero(self._held.rows_of(keys) == NOT_HELD))

    def _sample_in_graph(self, sampler: ReservoirSampler, sample_batch_size: int | None) -> tuple[Items, BufferInfo]:
        drawn = sampler.draw_in_graph(sample_batch_size or 1, self._graph_seeds.next_in_graph())
        with tf.control_dependencies([self._usage.graph_counter().count(drawn.keys)]):
            drawn = drawn._replace(keys=tf.identity(drawn.keys))
        sampled = (drawn.leaves, sample_info(drawn, sampler.chances_in_graph(drawn)))
        if sample_batch_size is None:
            sampled = tf.nest.map_structure(lambda tensor: tf.squeeze(tensor, 0), sampled)
        return self._spec.pack(sampled[0]), sampled[1]

    def _sampler(self, stacked: bool) -> ReservoirSampler:
        sampler = self._samplers.get(stacked)
        if sampler is None:
            self._check_open()
            sampler = self._samplers[stacked] = ReservoirSampler(
                self._held,
                self._storage,
                self._spec.fields,
                self._usage,
                self._lock,
                self._nothing_held,
                stacked=stacked,
                min_size=self._min_size,
            )
        return sampler

    def _nothing_held(self) -> EmptyBufferError:
        frames = self._held.size
        if frames == 0:
            return EmptyBufferError(
                f"{type(self).__name__} is empty. Make sure to add items before sampling the buffer."
            )
        return EmptyBufferError(f"{frames} of {self._min_size} frames (min_size_to_sample): add more before sampling.")

    def _pack_for_dataset(self, leaves: Any) -> Nest:
        return tf.nest.pack_sequence_as(self._spec.dataset_nest(), list(leaves))

    def _constant_info(self, num_eligible: int, batch: int, stacked: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Probabilities and weights `[B]`, mask `[B]` or `[B, 1]`: made once while the sizes stay the same."""
        sizes = (num_eligible, batch, stacked)
        known = self._constants
        if known is None or known[0] != sizes:
            chances = tf.fill([batch], np.float32(1 / num_eligible))
            mask = tf.ones([batch, 1] if stacked else [batch], tf.bool)
            known = self._constants = (sizes, (chances, tf.ones([batch]), mask))
        return known[1]

    def _stream_of(self, stream: int) -> np.random.Generator:
        return np.random.default_rng(None if self._seed is None else [self._seed, stream])

    def _next_seed(self, stream: int) -> int | None:
        """A seed for the next dataset: another for each, the same in each run."""
        if self._seed is None:
            return None
        with self._lock:
            self._num_seeds += 1
            entropy = [self._seed, stream, self._num_seeds]
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"this {type(self).__name__} is closed; build a new one.")
