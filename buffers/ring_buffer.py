"""What every in-process buffer of a ring of frames is: its memory, its adds, its reads; not how draws are made."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from .adds import Adds
from .base import BufferInfo, Ids, Items, ReplayBuffer
from .callbacks import call_weakly
from .counts import check_count, check_parallel_calls
from .episode_ends import EpisodeRule, FinalFrame
from .equal_frames import EqualFrames
from .frame_flags import StartPredicate
from .graph_seeds import GraphSeeds
from .memory import check_capacity_fits, copy_to_tensor
from .nests import Array, Nest
from .priorities import DEFAULT_EPS, check_keys
from .priority_updates import apply_update
from .ring import FrameRing
from .ring_contents import check_held, count_windows
from .ring_dataset import Weigh, random_dataset, sample_info
from .ring_kinds import RingKinds
from .ring_passes import PassPlanner, pass_dataset
from .ring_sampler import Drawn, RingSampler
from .ring_settings import check_ring_settings, check_ring_sizes
from .ring_writer import RingWriter
from .sampler_choice import UNIFORM_RULE, DrawRule
from .saved_ring import SavedRing
from .spec import DataSpec, ItemChecker
from .stats import BufferStats
from .storage import FrameStorage
from .usage import Usage
from .windows import Window, resolve_window

# What draws through a sampler take for each frame: its priority, two flags, its start, its count, its two places.
_SAMPLER_BYTES = 42

# Streams of random numbers derived from one seed.
_SAMPLE_STREAM, _DATASET_STREAM, _GRAPH_STREAM = 0, 1, 2


class RingReplayBuffer(RingKinds, SavedRing, ReplayBuffer):
    """Keeps the newest `max_length` frames of each stream; its classes say how windows are drawn.

    The frames lie in NumPy memory that TensorFlow reads without a copy: adds cost what an
    array assignment costs, and `as_dataset` gathers in the graph. Any number of threads may
    add and sample. Storage stays on the CPU. Arguments are those of `TFUniformReplayBuffer`.
    """

    # Beside each frame: its step word and its mark.
    _bookkeeping_bytes = 9

    def __init__(
        self,
        data_spec: Nest,
        batch_size: int,
        max_length: int = 1000,
        device: str = "cpu:*",
        dataset_drop_remainder: bool = False,
        dataset_window_shift: int | None = None,
        *,
        seed: int | None = None,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        min_size_to_sample: int = 1,
        cast: bool = False,
        eligible_fn: Callable[[Nest], Any] | None = None,
        storage_folder: str | os.PathLike[str] | None = None,
        rule: DrawRule = UNIFORM_RULE,
    ) -> None:
        capacity = check_ring_settings(
            batch_size, max_length, device, dataset_window_shift, seed=seed, min_size_to_sample=min_size_to_sample
        )
        self._spec = DataSpec(data_spec)
        self._rule = EpisodeRule(self._spec, end_of_episode_fn, final_frame)
        predicate = None if eligible_fn is None else StartPredicate(self._spec, eligible_fn)
        self._bytes_capacity = capacity * self._spec.frame_bytes
        frame_bytes = self._bookkeeping_bytes + (0 if rule.is_plain else _SAMPLER_BYTES)
        in_memory = self._bytes_capacity if storage_folder is None else 0
        check_capacity_fits(in_memory + capacity * frame_bytes, "max_length or batch_size")

        self._storage = FrameStorage(self._spec.fields, capacity, storage_folder)
        self._ring = FrameRing(int(batch_size), capacity)
        self._usage = Usage(capacity)
        self._lock = threading.Lock()
        self._writer = RingWriter(self._rule, self._ring, self._storage, self._usage, self._lock, predicate)
        checker = ItemChecker(self._spec, int(batch_size), cast=cast)
        self._adds = Adds(self._spec, checker, int(batch_size), self._writer)
        self._begin_kinds(rule, int(min_size_to_sample), heeds_flags=predicate is not None)
        # Draws made together are a batch, and not several.
        self._stratified = False
        self._closed = self._is_traced = False
        self._drop_remainder = bool(dataset_drop_remainder)
        self._window_shift = dataset_window_shift
        self._seed = seed
        self._rng = np.random.default_rng(None if seed is None else [seed, _SAMPLE_STREAM])
        self._num_seeds = 0
        self._graph_seeds = GraphSeeds(None if seed is None else [seed, _GRAPH_STREAM])
        # Sizes of the last sample, and the tensors of its info that are the same for all samples of these sizes.
        self._constants: tuple[tuple[int, int, int | None], tuple[tf.Tensor, tf.Tensor, tf.Tensor]] | None = None

    @property
    def data_spec(self) -> Nest:
        return self._spec.nest

    @property
    def batch_size(self) -> int:
        return self._ring.batch_size

    @property
    def capacity(self) -> int:
        return self._ring.capacity

    @property
    def capacity_unit(self) -> Literal["frames"]:
        return "frames"

    def __len__(self) -> int:
        return self._ring.num_frames

    def num_frames(self) -> tf.Tensor:
        """Frames held now, int64 `[]`: a tensor, so that inside a `tf.function` it stays live."""
        if tf.executing_eagerly():
            return tf.constant(self._ring.num_frames, tf.int64)
        self._is_traced = True
        tail, published, _ = self._ring.held_in_graph()
        return self._ring.num_between(tail, published)

    # Writing

    def add_batch(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Stores one frame of each stream.

        Args:
          items: nest matching `data_spec`, leaves `[B, ...]`: NumPy arrays, eager tensors, or
            inside a `tf.function` symbolic tensors. Copied.
          end_of_episode: bool `[B]`, marks ends that the items do not tell.
          priorities: `[B]`, raw, finite and at least 0: for samplers that go by them. Uniform draws stay uniform.
          streams: int `[n]`, ascending: frames of these streams only, all that is `[B]` here then being `[n]`; after
            `let_streams_part`.

        Returns:
          The frames' ids, int64 `[B]`: a tensor where the items are tensors, else an array.

        Raises:
          ValueError: the items do not match `data_spec`; the message names the field. Nothing is stored.
          ValueError: `end_of_episode`, `priorities` or `streams` does not fit. Nothing is stored.
          ValueError: `streams` without `let_streams_part`, or the buffer is closed.
        """
        return self._adds.add_batch(items, end_of_episode, priorities, streams)

    def add_sequence(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Stores `T` frames of each stream: the same as `T` calls of `add_batch`, in one.

        Args:
          items: nest matching `data_spec`, leaves `[B, T, ...]`. `T` may be 0, and may exceed `max_length`.
          end_of_episode: bool `[B, T]`.
          priorities: `[B, T]`, as in `add_batch`.
          streams: int `[n]`, as in `add_batch`: `n` for `B`.

        Returns:
          The frames' ids, int64 `[B, T]`: a tensor where the items are tensors, else an array.

        Raises:
          ValueError: as `add_batch`; also where fields disagree about `T`. Nothing is stored.
        """
        return self._adds.add_sequence(items, end_of_episode, priorities, streams)

    def let_streams_part(self) -> None:
        """From now on adds may bring frames of some streams without the others, by `streams=`.

        Each stream then goes at its own pace: it keeps its newest `max_length` frames, and windows and episodes are
        those of its own frames. Ids of a stream are `B` apart, as ever; those of two streams do not tell which came
        first, and of equal priorities in a `MinHeap` or `MaxHeap` the lowest id comes first. Uniform draws know every
        window by name then, which takes 20 bytes a frame, and makes adds slower.

        Raises:
          ValueError: frames were added, or drawn, before.
        """
        with self._kinds_lock, self._lock:
            self._check_open()
            if self._ring.apart:
                return
            if self._ring.reserved or self._samplers:
                raise ValueError("let_streams_part: call it before anything is added to this buffer, or drawn from it.")
            self._ring.part()
            if self._listener is None:
                self._equal = EqualFrames(self._ring)
                self._listen(self._equal)

    def end_stream(self, b: int | None = None) -> None:
        """Stream `b` (None: all of them) stops here: no window goes past its newest frame.

        That frame stays an ordinary one without a successor: truncated.

        Raises:
          ValueError: there is no stream `b`.
        """
        if b is not None and not 0 <= b < self.batch_size:
            raise ValueError(f"there is no stream {b}: this buffer has streams 0 to {self.batch_size - 1}.")
        with self._lock:
            self._check_open()
            self._ring.end_stream(b)
            self._rule.forget_loose_flags()
            if self._listener is not None:
                self._listener.after_end_stream()

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

        By default it never ends: each row is drawn with replacement, with the same chance for
        each eligible window held at the time of the draw. A batch was drawn at most 24
        batches before it is delivered (5 where it has 1 MB and more), with `num_parallel_calls` n
        n + 1 calls of 8 (1) batches more; without `sample_batch_size` an element is drawn
        when it is asked for (`ring_dataset.py`).

        Args:
          sample_batch_size: `B`; None: elements without a `B` axis.
          num_steps: `T`, the same as `window=Window(T)`; None: single frames without a `T` axis.
          num_parallel_calls: of the map that draws; the order of elements does not change.
          sequence_preprocess_fn: items of one sample, leaves `[T, ...]` (`[...]` for single frames)
            -> items; applied to each before batching.
          single_deterministic_pass: each frame or window once, oldest first, stream after stream,
            then the end. What is there is read at the first `next`; windows overwritten meanwhile
            are skipped, counted in `stats` and logged. With `num_steps` windows step by
            `dataset_window_shift or num_steps` in each episode; the last one of an episode may be
            shorter (`[<= T, ...]`) unless `dataset_drop_remainder`. With `sample_batch_size` only
            whole windows come, and frames left out are logged. With `window` every eligible start
            comes once.
          window: see `Window`; its padding is zeros, with `info.mask` False and id -1.
          epochs: draw without replacement: this many passes over the eligible windows, each
            in an order of its own.

        Returns:
          Leaves `[B, T, ...]` (with `window` `T` is `window.length`), `BufferInfo` as there. In a pass
          `probabilities` are 1 when ordered and 1 / eligible when shuffled.

        Raises:
          TypeError: an argument has the wrong type.
          ValueError: a size is below 1; `num_steps` and `window`, or `epochs` and
            `single_deterministic_pass`, are both given.
          ValueError: no batch or window of that size could ever come.
          tf.errors.InvalidArgumentError: at `next`: nothing is eligible; the message says why.
        """
        check_count("sample_batch_size", sample_batch_size, optional=True)
        check_parallel_calls(num_parallel_calls)
        check_count("epochs", epochs, optional=True)
        wanted = resolve_window(num_steps, window)
        if epochs is not None and single_deterministic_pass:
            raise ValueError("give epochs (shuffled) or single_deterministic_pass (ordered), not both.")
        is_pass = single_deterministic_pass or epochs is not None
        self._check_sizes(sample_batch_size, wanted, is_pass=is_pass)
        if num_parallel_calls is not None and not (is_pass or self._draw_rule.looks_ahead):
            raise ValueError(
                f"num_parallel_calls={num_parallel_calls!r} with sampler={self._draw_rule.name} and "
                f"max_times_sampled={self._draw_rule.max_times}: draws follow each other and cannot be made in "
                "parallel; leave num_parallel_calls out."
            )
        sampler = self._sampler(wanted)
        rule = self._draw_rule
        # What is drawn together is weighed together, also where the function then takes the samples one by one.
        inner_batch = sample_batch_size if sequence_preprocess_fn is None or not is_pass else None
        if not is_pass:
            dataset = random_dataset(
                sampler,
                self._pack_for_dataset,
                inner_batch,
                self._next_seed(_DATASET_STREAM),
                self._usage.graph_counter(),
                num_parallel_calls=num_parallel_calls,
                weigh=self._weigh(inner_batch),
                one_batch_a_call=self._stratified or not rule.is_plain,
                look_ahead=rule.looks_ahead,
            )
            if inner_batch is not None and sequence_preprocess_fn is not None:
                dataset = dataset.unbatch()
        else:
            keep_short = num_steps is not None and single_deterministic_pass and sample_batch_size is None
            keep_short = keep_short and not self._drop_remainder
            shift = None if window is not None or num_steps is None or epochs else (self._window_shift or num_steps)
            dataset = pass_dataset(
                sampler,
                self._pack_for_dataset,
                self._plans(wanted or Window(1), shift, epochs, keep_short=keep_short),
                inner_batch,
                self._usage,
                keep_short=keep_short,
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
          EmptyBufferError: nothing is eligible, or less than was asked for is left by `max_times_sampled`; the
            message says why, with numbers.
        """
        check_count("sample_batch_size", sample_batch_size, optional=True)
        wanted = resolve_window(num_steps, window)
        self._check_sizes(sample_batch_size, wanted, is_pass=False)
        sampler = self._sampler(wanted)
        num = sample_batch_size or 1
        if not tf.executing_eagerly():
            return self._sample_in_graph(sampler, sample_batch_size)
        drawn = sampler.draw(self._rng, num)
        self._usage.count_sampled(drawn.keys)
        info = self._sample_info(drawn, sample_batch_size, wanted)
        items = self._spec.pack(self._storage.to_tensors(drawn.leaves))
        if sample_batch_size is None:
            return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), (items, info))
        return items, info

    def get(self, ids: Ids, num_steps: int | None = None) -> Items:
        """The frames with these ids, or the windows that start at them.

        Args:
          ids: int64, of any shape `[...]`.
          num_steps: None: leaves `[..., *field]`; `T`: leaves `[..., T, *field]`, within one episode.

        Raises:
          ValueError: an id is not held (evicted, cleared, or never given out).
          ValueError: a window does not fit into its episode, or is not written yet.
        """
        wanted = resolve_window(num_steps, None)
        sampler = self._sampler(wanted)
        given = check_keys(ids)
        starts = given.reshape(-1)
        with self._lock:
            self._check_open()
            check_held(self._ring, self._flags, starts, (wanted or Window(1)).num_steps)
            leaves = sampler.gather(starts)
        leaves = [leaf.reshape(*given.shape, *leaf.shape[1:]) for leaf in leaves]
        return self._spec.pack(self._storage.to_tensors(leaves))

    def delete(self, keys: Any) -> Any:
        """The frames with these keys are not delivered any more: no window that is drawn, or passed, contains one.

        They stay in the ring, and count in `len`, until newer ones overwrite them: `gather_all` still shows them, and
        `get` refuses them. What a dataset drew before is delivered all the same (its look-ahead, see `as_dataset`).
        Of an episode that is deleted in part the windows beside that part are still drawn.

        From the first call on, a buffer that drew uniformly draws through a sampler: that takes some 40 bytes a frame,
        and makes adds and datasets slower by some 20 us for each kind of window.

        Args:
          keys: int64 `[n]`, ids of frames, such as `BufferInfo.keys`: an array or a tensor, also in a `tf.function`.

        Returns:
          How many were gone already, overwritten or deleted: an int, inside a `tf.function` int64 `[]`.

        Raises:
          ValueError: keys are no whole numbers, or the buffer is closed.
        """

        def apply(buffer: RingReplayBuffer, keys: Any) -> np.int64:
            return np.int64(buffer._delete(check_keys(keys).reshape(-1)))

        if tf.executing_eagerly():
            return int(apply(self, keys))
        gone = call_weakly(self, apply, [keys], tf.int64)
        gone.set_shape([])
        return gone

    def update_priorities(self, keys: Any, priorities: Any = None, *, td_errors: Any = None) -> Any:
        """Tells the sampler, and returns how many keys are gone (an int; in a graph int64 `[]`).

        Uniform draws stay uniform, so that a training loop that writes priorities back runs on this buffer too.

        Args:
          keys: int64 `[n]`, `BufferInfo.keys`.
          priorities: `[n]`, finite and at least 0.
          td_errors: `[n]`, finite, instead of `priorities`.

        Raises:
          ValueError: not exactly one of `priorities` and `td_errors` is given.
          ValueError: shapes differ, or a value is refused; the message names the position.
        """
        return apply_update(self, RingReplayBuffer._tell_sampler, keys, priorities, td_errors, eps=DEFAULT_EPS)

    def gather_all(self) -> Items:
        """Every frame held, oldest first, leaves `[B, T, ...]`; final observations and deleted frames included.

        Where streams go apart (`let_streams_part`) leaves are `tf.RaggedTensor`s: each stream has a `T` of its own.
        """
        with self._lock:
            self._check_open()
            ids = self._ring.ids_by_stream()
            rows = self._ring.rows(np.concatenate(ids) if self._ring.apart else np.stack(ids))
            leaves = self._storage.gather(rows)
        if self._ring.apart:
            lengths = [len(stream) for stream in ids]
            flat = self._storage.to_tensors(leaves)
            return self._spec.pack([tf.RaggedTensor.from_row_lengths(leaf, lengths) for leaf in flat])
        if not len(self):
            shape = (self.batch_size, 0)
            return self._spec.pack([tf.zeros((*shape, *field.shape), field.dtype) for field in self._spec.fields])
        return self._spec.pack(self._storage.to_tensors(leaves))

    def clear(self) -> None:
        """Empties the buffer and its counters; ids go on, so that an old key never means a new frame."""
        with self._lock:
            self._check_open()
            self._clear_locked()

    def stats(self) -> BufferStats:
        """Counts, shares and bytes as of now."""
        with self._lock:
            ring, usage = self._ring, self._usage
            frames, added = ring.num_frames, ring.num_added
            return BufferStats(
                frames=frames,
                capacity=ring.capacity,
                capacity_unit="frames",
                fill_share=frames / ring.capacity,
                added=added,
                sampled=usage.sampled,
                evicted=added - frames,
                evicted_unsampled=usage.evicted_unsampled,
                bytes_held=frames * self._spec.frame_bytes,
                bytes_capacity=self._bytes_capacity,
                episodes=ring.num_episodes(),
                skipped=usage.skipped,
                replay_ratio=usage.sampled / added if added else None,
                windows=tuple(
                    count_windows(self._ring, self._flags, window, sampler)
                    for window, sampler in {(key or Window(1)): value for key, value in self._samplers.items()}.items()
                ),
                host=socket.gethostname(),
                deleted=self._flags.num_deleted,
            )

    def flush(self) -> None:
        """Nothing to do: what was added can be read at once."""

    def close(self) -> None:
        """Refuses further adds and draws. Datasets and graphs made before go on; the memory is freed with the last."""
        with self._lock:
            self._closed = True
            self._writer.close()
            for sampler in self._samplers.values():
                sampler.close()
            self._samplers.clear()
            self._storage.release()

    # How it is done

    def _clear_locked(self) -> None:
        self._ring.clear()
        self._rule.forget_loose_flags()
        self._flags.clear()
        self._usage.clear()
        if self._listener is not None:
            self._listener.start_again()

    def _weigh(self, sample_batch_size: int | None) -> Weigh | None:
        """What gives the weights of batches of this size in graphs; None: they are 1."""
        return None

    def _is_gone(self, keys: Array) -> Array:
        """Which of these ids `[n]` are not held, or deleted."""
        gone = ~self._ring.is_held(keys)
        if self._flags.num_deleted:
            gone |= self._flags.is_deleted(keys)
        return gone

    def _num_gone(self, keys: Array) -> int:
        return int(np.count_nonzero(self._is_gone(keys)))

    def _delete(self, keys: Array) -> int:
        if not self._heeds_flags and not self._is_gone(keys).all():
            self._heed_flags()
        with self._lock:
            self._check_open()
            gone = self._is_gone(keys)
            ids = np.unique(keys[~gone])
            if len(ids):
                self._flags.delete(self._ring.rows(ids))
                for starts in self._eligible:
                    starts.drop_deleted(ids)
                self._forget(ids)
        return int(np.count_nonzero(gone))

    def _forget(self, ids: Array) -> None:
        """Lets go of what is kept of these frames `[n]`, which were deleted; the writer's lock is held."""

    def _tell_sampler(self, keys: Array, priorities: Array) -> int:
        """Sets raw priorities, where draws heed them; returns how many keys are gone."""
        if self._draw_rule.is_uniform:
            return self._num_gone(keys)
        with self._lock:
            self._check_open()
            gone = self._is_gone(keys)
            if self._frames is not None:
                self._frames.update(keys[~gone], priorities[~gone])
        return int(np.count_nonzero(gone))

    def _sample_in_graph(self, sampler: RingSampler, sample_batch_size: int | None) -> tuple[Items, BufferInfo]:
        drawn = sampler.draw_in_graph(sample_batch_size or 1, self._graph_seeds.next_in_graph())
        with tf.control_dependencies([self._usage.graph_counter().count(drawn.keys)]):
            drawn = drawn._replace(keys=tf.identity(drawn.keys))
        chances = sampler.chances_in_graph(drawn)
        weigh = self._weigh(sample_batch_size)
        weights = None if weigh is None else weigh(drawn, chances)
        sampled = (drawn.leaves, sample_info(drawn, chances, weights))
        if sample_batch_size is None:
            sampled = tf.nest.map_structure(lambda tensor: tf.squeeze(tensor, 0), sampled)
        return self._spec.pack(sampled[0]), sampled[1]

    def _plans(self, window: Window, shift: int | None, epochs: int | None, *, keep_short: bool) -> tf.data.Dataset:
        planner = PassPlanner(
            self._ring,
            self._lock,
            window,
            shift,
            self._nothing_eligible,
            min_size=self._min_size,
            keep_short=keep_short,
            flags=self._flags,
        )
        return planner.ordered() if epochs is None else planner.shuffled(epochs, self._next_seed(_DATASET_STREAM))

    def _check_sizes(self, sample_batch_size: int | None, window: Window | None, *, is_pass: bool) -> None:
        drops = is_pass and self._drop_remainder
        check_ring_sizes(self.capacity, self.batch_size, sample_batch_size, window, drop_remainder=drops)

    def _pack_for_dataset(self, leaves: Any) -> Nest:
        return tf.nest.pack_sequence_as(self._spec.dataset_nest(), list(leaves))

    def _sample_info(self, drawn: Drawn, batch: int | None, window: Window | None) -> BufferInfo:
        """`BufferInfo` of a draw as eager tensors; what is the same for all draws of these sizes is made once."""
        length = None if window is None else window.length
        num = batch or 1
        sizes = (drawn.num_eligible, num, length)
        known = self._constants
        if known is None or known[0] != sizes:
            shape = [num] if length is None else [num, length]
            chance = tf.fill([num], np.float32(1 / drawn.num_eligible))
            known = self._constants = (sizes, (chance, tf.ones([num]), tf.ones(shape, tf.bool)))
        chances, weights, mask = known[1]
        if drawn.chances is not None:
            chances = copy_to_tensor(drawn.chances.astype(np.float32))
        if drawn.mask is not None:
            mask = tf.constant(drawn.mask)
        keys = copy_to_tensor(drawn.keys)
        return BufferInfo(keys if window is None else copy_to_tensor(drawn.ids), chances, keys, weights, mask)

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
