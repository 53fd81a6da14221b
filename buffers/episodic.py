"""The in-process buffer of episodes: whole ones, or windows of them, kept and evicted by the episode."""

from __future__ import annotations

import socket
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from .adds import Adds
from .base import BufferInfo, Ids, Items, ReplayBuffer
from .counts import check_count
from .episode_contents import EpisodeContents, episodes_of
from .episode_ends import EpisodeRule, FinalFrame
from .episode_ids import EpisodeIds, Episodes
from .episode_kinds import Draw, lengths_of
from .episode_marks import FrameMarker
from .episode_pages import EpisodePages, reserve_pages
from .episode_reader import EpisodeReader, ReadSettings
from .episode_table import EpisodeTable
from .episode_usage import EpisodeUsage
from .episode_writer import EpisodeWriter
from .episodic_state import EpisodicState
from .item_selectors import Fifo, Selector
from .memory import format_bytes
from .nests import Array, Nest
from .priority_updates import WithoutPriorities
from .sampler_choice import check_draws_uniformly
from .saved_episodes import SavedEpisodes
from .spec import DataSpec, ItemChecker
from .stats import BufferStats
from .storage import FrameStorage
from .windows import Window


class Episode(NamedTuple):
    """One episode of a buffer, as `episodes()` gives it and `extend()` takes it.

    Attributes:
      items: its frames, leaves `[L, ...]`, NumPy arrays.
      metadata: what `set_metadata` was given for it.
      episode_id: its id.
      ids: its frames' ids, int64 `[L]`.
      completed: its last real transition is in.
      finished: no frame is to come.

    >>> Episode({"obs": np.zeros([3, 2])}, {"seed": 7}).metadata
    {'seed': 7}
    """

    items: Items
    metadata: Mapping[str, Any] = types.MappingProxyType({})
    episode_id: int = -1
    ids: Any = None
    completed: bool = True
    finished: bool = True


class EpisodicReplayBuffer(SavedEpisodes, WithoutPriorities, ReplayBuffer):
    """Keeps the newest `capacity` episodes, and gives them back whole or as windows.

    Each of `B` streams builds an episode of its own, which can be drawn while it grows. When there are
    too many episodes, or too many frames, the oldest leave: whole, in the order in which they began. If one of them is
    still being written, it goes as well, and its stream's next frame begins a new one (this is logged).

    Frames lie in NumPy memory that TensorFlow reads without a copy. Without `max_frames` address space for half of
    the machine's memory is reserved, and committed as it fills.

    What is drawn, and with what chance (`info.probabilities`):

    | asked for | `draw` | chance |
    | --- | --- | --- |
    | windows (`num_steps`, `window`) | `"windows"`, the default | the same for each window |
    | | `"episodes"` | the same for each episode that has one, then for each of its windows |
    | | `"length"`, as TF-Agents | episodes by their frames, then the same for each window of one |
    | whole episodes | `"episodes"`, the default | the same for each episode that is more than a final observation |
    | | `"length"` | by their frames |

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame; fixed-width dtypes, static shapes.
      capacity: episodes held at most.
      completed_only: draw (and visit in passes) only episodes whose last real transition is in: in a `Trajectory`
        that is where `next_step_type` is LAST; the boundary frame that follows joins the episode.
      buffer_size: TF-Agents' argument, without meaning here: draws are live.
      name_prefix: TF-Agents' argument, without meaning here.
      device: TF-Agents' argument; storage is on the CPU, anything else is refused.
      seed: makes `sample` and `as_dataset` repeat exactly; None: they differ in each run.
      begin_episode_fn: `items -> bool [B]` (`[B, T]` in `add_sequence`), or one bool for all: the frame begins an
        episode. Default: where `step_type` is FIRST or `is_first` holds.
      end_episode_fn: the same: with the frame the episode is complete. Where nothing tells beginnings it also ends.
      dataset_drop_remainder: in passes, leave out a last batch of fewer than `sample_batch_size`, and without
        `sample_batch_size` windows of fewer than `num_steps`.
      dataset_window_shift: frames from one window's start to the next in an ordered pass with
        `num_steps`; None: `num_steps`, so that windows do not overlap.
      batch_size: `B`, streams that `add_batch` writes side by side.
      max_frames: frames held at most, in all episodes together.
      end_of_episode_fn: `items -> bool [B]`: the frame is its episode's last, for specs that do not tell it.
      final_frame: `'auto'`, `'observation'` or `'ordinary'`: whether an episode's last frame
        is only a final observation, which starts no window (`episode_ends.py`).
      min_size_to_sample: frames that must be held before anything can be drawn.
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      sampler: `Uniform()`, which is what `draw` refines; other words are refused with a reason.
      remover: `Fifo()`, which is what happens; other words are refused with a reason.

    Raises:
      ValueError: `sampler` or `remover` is another one.
      TypeError: a count is no int, or a function cannot be called.
      ValueError: a count is below 1; `capacity` or `max_frames` is below `batch_size`.
      ValueError: `device` is no CPU, or `seed` no int of at least 0.
      ValueError: the capacity does not fit into memory.
      TypeError, ValueError: as `DataSpec` and `EpisodeRule` raise them.

    >>> buffer = EpisodicReplayBuffer({"obs": tf.TensorSpec([], tf.int32)}, capacity=2, seed=0)
    >>> for length in (4, 2, 3):
    ...     ends = np.arange(length)[None] == length - 1
    ...     _ = buffer.add_sequence({"obs": np.arange(length, dtype=np.int32)[None]}, end_of_episode=ends)
    >>> buffer.gather_all()["obs"].numpy().tolist()
    [[0, 1, 0, 1, 2]]
    >>> items, info = next(iter(buffer.as_dataset(2, single_deterministic_pass=True)))
    >>> items["obs"].numpy().tolist(), info.mask.numpy().sum(axis=1).tolist()
    ([[0, 1, 0], [0, 1, 2]], [2, 3])
    """

    def __init__(
        self,
        data_spec: Nest,
        capacity: int = 1000,
        completed_only: bool = False,
        buffer_size: int = 8,
        name_prefix: str = "EpisodicReplayBuffer",
        device: str = "cpu:*",
        seed: int | None = None,
        begin_episode_fn: Callable[[Nest], Any] | None = None,
        end_episode_fn: Callable[[Nest], Any] | None = None,
        dataset_drop_remainder: bool = False,
        dataset_window_shift: int | None = None,
        *,
        batch_size: int = 1,
        max_frames: int | None = None,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        min_size_to_sample: int = 1,
        cast: bool = False,
        sampler: Selector | None = None,
        remover: Selector | None = None,
    ) -> None:
        self._remember(locals())
        check_draws_uniformly(
            sampler, "serve whole episodes from a TableConfig(..., sequence_length=None, sampler={sampler})"
        )
        if remover is not None and not isinstance(remover, Fifo):
            raise ValueError(
                f"remover={remover}: here the oldest episodes leave, which is remover=Fifo(); serve whole episodes "
                f"from a TableConfig(..., sequence_length=None, remover={remover})."
            )
        check_count("capacity", capacity)
        check_count("buffer_size", buffer_size)
        check_count("dataset_window_shift", dataset_window_shift, optional=True)
        check_count("batch_size", batch_size)
        check_count("max_frames", max_frames, optional=True)
        check_count("min_size_to_sample", min_size_to_sample)
        if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0):
            raise ValueError(f"seed must be an int of at least 0, or None, got {seed!r}.")
        for name, value in (("capacity", capacity), ("max_frames", max_frames)):
            if value is not None and value < batch_size:
                raise ValueError(
                    f"{name} {value} is below batch_size {batch_size}: each stream has an episode; raise {name}."
                )
        if max_frames is not None and min_size_to_sample > max_frames:
            raise ValueError(
                f"min_size_to_sample {min_size_to_sample} is above max_frames {max_frames}: nothing could ever be "
                "drawn; lower it or raise max_frames."
            )
        if "cpu" not in device.lower():
            raise ValueError(
                f"device {device!r}: storage stays on the CPU; leave device out, and copy batches to the "
                "device with as_dataset(...).apply(tf.data.experimental.prefetch_to_device(device))."
            )
        self._spec = DataSpec(data_spec)
        self._rule = EpisodeRule(self._spec, end_of_episode_fn, final_frame)
        if begin_episode_fn is None and end_episode_fn is None:
            self._rule.expect_windows()
        marker = FrameMarker(
            self._spec, self._rule, begin_episode_fn, end_episode_fn, final_by_function=final_frame == "observation"
        )
        num_pages, page_rows, self._bytes_capacity = reserve_pages(self._spec.frame_bytes, int(capacity), max_frames)
        try:
            self._pages = EpisodePages(num_pages, page_rows)
            self._storage = FrameStorage(self._spec.fields, num_pages * page_rows)
            self._usage = EpisodeUsage(num_pages * page_rows, int(capacity))
        except OSError as error:  # a limit of address space, or strict overcommit
            raise ValueError(
                f"the system gives no {format_bytes(self._bytes_capacity)} of address space ({error}); "
                f"{'give' if max_frames is None else 'lower'} max_frames."
            ) from error
        self._table = EpisodeTable(int(capacity), self._pages, self._storage, self._usage)
        self._lock = threading.Lock()
        self._writer = EpisodeWriter(marker, self._table, int(batch_size), max_frames, self._lock)
        self._adds = Adds(
            self._spec, ItemChecker(self._spec, int(batch_size), cast=cast), int(batch_size), self._writer
        )
        self._episode_ids = EpisodeIds(self._spec, marker, self._table, self._writer, self._lock, cast=cast)
        self._marker = marker
        self._contents = EpisodeContents(self._spec, self._table, self._storage, self._lock)
        self._closed = self._is_traced = False
        self._batch_size = int(batch_size)
        self._max_frames = None if max_frames is None else int(max_frames)
        self._reader = EpisodeReader(
            self._spec,
            self._table,
            self._storage,
            self._usage,
            self._lock,
            ReadSettings(
                owner=type(self).__name__,
                completed_only=bool(completed_only),
                min_size=int(min_size_to_sample),
                max_frames=self._max_frames,
                drop_remainder=bool(dataset_drop_remainder),
                window_shift=dataset_window_shift,
                final_observations=self._rule.has_final_observations,
                seed=seed,
            ),
        )
        self._state = EpisodicState(
            self._spec.fields,
            self._table,
            self._storage,
            self._usage,
            self._writer,
            self._rule,
            self._reader,
            self._lock,
            self._batch_size,
            self._max_frames,
        )
        self.name_prefix = name_prefix

    @property
    def data_spec(self) -> Nest:
        return self._spec.nest

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def capacity(self) -> int:
        return self._table.capacity

    @property
    def capacity_unit(self) -> Literal["episodes"]:
        return "episodes"

    @property
    def max_frames(self) -> int | None:
        """Frames held at most; None: as many as memory was reserved for."""
        return self._max_frames

    @property
    def num_cut_episodes(self) -> int:
        """Episodes that were the oldest and left while they were still being written."""
        return self._writer.num_lost

    def __len__(self) -> int:
        return self._table.num_frames

    def num_frames(self) -> tf.Tensor:
        """Frames held now, int64 `[]`: a tensor, so that inside a `tf.function` it stays live."""
        if tf.executing_eagerly():
            return tf.constant(self._table.num_frames, tf.int64)
        self._is_traced = True
        return self._table.cursors_in_graph()[2]

    # Writing

    def add_batch(
        self,
        items: Items,
        episode_ids: Ids = None,
        *,
        end_of_episode: Any = None,
        priorities: Any = None,
        streams: Any = None,
    ) -> Ids:
        """Stores one frame of each stream; or, with `episode_ids`, one frame in each of these episodes.

        Args:
          items: nest matching `data_spec`, leaves `[B, ...]` (`[n, ...]` with `episode_ids`): NumPy arrays,
            eager tensors, or inside a `tf.function` symbolic tensors. Copied.
          episode_ids: int64 `[n]`, as in TF-Agents: what `create_episode_ids` or the last call returned.
          end_of_episode: bool `[B]`, marks ends that the items do not tell.
          priorities: `[B]`, checked as every buffer checks them; draws do not depend on them.
          streams: int `[n]`, ascending, each once: these streams only get a frame, `n` stands for `B` everywhere, and
            the episodes of the others stay open.

        Returns:
          The frames' ids, int64 `[B]`; with `episode_ids` the ids of the episodes that they went to, `[n]`:
          another one where an episode began; unchanged where it is gone, and then the frame is dropped and
          this is logged.

        Raises:
          ValueError: the items do not match `data_spec`; the message names the field. Nothing is stored.
          ValueError: `streams` are none of this buffer, or not ascending. Nothing is stored.
          ValueError: `end_of_episode` or `priorities` does not fit. Nothing is stored.
          ValueError: `end_of_episode`, `priorities` or `streams` stands beside `episode_ids`. Nothing is stored.
          ValueError: what open episodes would hold does not fit. Nothing is stored.
          ValueError: the buffer is closed.
        """
        if episode_ids is None:
            return self._adds.add_batch(items, end_of_episode, priorities, streams)
        _refuse_beside_ids(end_of_episode, priorities, streams)
        return self._episode_ids.add_batch(items, episode_ids)

    def add_sequence(
        self,
        items: Items,
        episode_id: Ids = None,
        *,
        end_of_episode: Any = None,
        priorities: Any = None,
        streams: Any = None,
    ) -> Ids:
        """Stores `T` frames of each stream; or, with `episode_id`, `T` frames of that episode.

        Args:
          items: nest matching `data_spec`, leaves `[B, T, ...]` (`[T, ...]` with `episode_id`). `T` may be 0.
          episode_id: int64 `[]`, as in TF-Agents.
          end_of_episode: bool `[B, T]`.
          priorities: `[B, T]`, checked; draws do not depend on them.
          streams: int `[n]`, as in `add_batch`.

        Returns:
          The frames' ids, int64 `[B, T]`; with `episode_id` the id of the episode that the last frame went to.

        Raises:
          ValueError: as `add_batch`; also where fields disagree about `T`. Nothing is stored.
        """
        if episode_id is None:
            return self._adds.add_sequence(items, end_of_episode, priorities, streams)
        _refuse_beside_ids(end_of_episode, priorities, streams)
        return self._episode_ids.add_sequence(items, episode_id)

    def let_streams_part(self) -> None:
        """Nothing to do: streams may part anyhow."""

    def end_stream(self, b: int | None = None) -> None:
        """Stream `b` (None: all of them) stops here: its episode gets no more frames.

        Its last frame stays an ordinary one without a successor: truncated.

        Raises:
          ValueError: there is no stream `b`.
        """
        if b is not None and not 0 <= b < self.batch_size:
            raise ValueError(f"there is no stream {b}: this buffer has streams 0 to {self.batch_size - 1}.")
        with self._lock:
            self._check_open()
            self._writer.end_stream(b)
            self._rule.forget_loose_flags()

    def extend(self, episodes: Iterable[Any]) -> Array:
        """Stores whole episodes; streams that are being written do not notice.

        Args:
          episodes: nests that match `data_spec`, leaves `[L, ...]`; or `Episode`s, whose metadata comes along:
            also those of another buffer's `episodes()`. Each is stored as one that is over, however it ends.

        Returns:
          The episodes' ids, int64 `[n]`.

        Raises:
          ValueError: as `add_sequence`; or an episode has no frame, or an end inside. Those before it are stored.
        """
        given = []
        for episode in episodes:
            items, metadata = (episode.items, episode.metadata) if isinstance(episode, Episode) else (episode, {})
            given.append(self._episode_ids.add_whole(items, metadata))
        return np.array(given, np.int64)

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
        draw: Draw | None = None,
        buckets: Any = None,
    ) -> tf.data.Dataset:
        """A live dataset of `(items, BufferInfo)`; lists in `data_spec` come out as tuples.

        By default it never ends: each sample is drawn with replacement from what is held at the time of the draw.
        A batch of windows was drawn at most 24 batches before it is delivered (5 where it has 1 MB and more), one of
        whole episodes 5; with `num_parallel_calls` n n + 1 calls of 8 (1) batches more; without
        `sample_batch_size` an element is drawn when it is asked for.

        Args:
          sample_batch_size: `B`; None: elements without a `B` axis.
          num_steps: `T`, the same as `window=Window(T)`; neither of them: whole episodes `[L, ...]`, in batches
            padded to the longest: `[B, L, ...]`, with zeros, ids -1 and mask False.
          num_parallel_calls: of the map that draws; the order of elements does not change.
          sequence_preprocess_fn: items of one sample, leaves `[T, ...]` -> items; applied to each before batching.
          single_deterministic_pass: each episode or window once, the oldest episode first, then the end. What is there
            is read at the first `next`; what is evicted meanwhile is skipped, counted in `stats` and logged. With
            `num_steps` windows step by `dataset_window_shift or num_steps` in each episode; the last one of an
            episode may be shorter (`[<= T, ...]`) unless `dataset_drop_remainder`. With `sample_batch_size` only
            whole windows come, and frames left out are logged. With `window` every eligible start comes once.
          window: see `Window`; `boundaries='ignore'` is refused: episodes are all there is.
          epochs: draw without replacement: this many passes, each in an order of its own.
          draw: the law, see the class; not for passes.
          buckets: for batches of whole episodes: boundaries of lengths, a number of buckets, or `'auto'`. A batch
            then holds episodes of one bucket. What is drawn waits until its bucket is full: none is lost, and
            in the long run each comes as often as without buckets, but the order of draws is not kept, and
            rare lengths wait long. Passes end with the batches that are not full.

        Returns:
          Leaves `[B, T, ...]`, `BufferInfo` as there. In a pass `probabilities` are 1 when ordered
          and 1 / eligible when shuffled.

        Raises:
          TypeError: an argument has the wrong type.
          ValueError: a size is below 1; two arguments that exclude each other are given.
          tf.errors.InvalidArgumentError: at `next`: there is nothing of this kind; the message says why.
        """
        return self._reader.dataset(
            sample_batch_size,
            num_steps,
            num_parallel_calls,
            sequence_preprocess_fn,
            single_deterministic_pass,
            window=window,
            epochs=epochs,
            draw=draw,
            buckets=buckets,
        )

    def sample(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
        draw: Draw | None = None,
    ) -> tuple[Items, BufferInfo]:
        """One draw at once: the low-latency path. Arguments, shapes and odds as `as_dataset`.

        Inside a `tf.function` it is part of the graph and draws at each call.

        Raises:
          TypeError, ValueError: as `as_dataset`.
          EmptyBufferError: there is nothing of this kind; the message says why, with numbers.
        """
        return self._reader.sample(sample_batch_size, num_steps, window=window, draw=draw)

    def get(self, ids: Ids, num_steps: int | None = None) -> Items:
        """The frames with these ids, or the windows that start at them.

        Args:
          ids: int64, of any shape `[...]`.
          num_steps: None: leaves `[..., *field]`; `T`: leaves `[..., T, *field]`, within one episode.

        Raises:
          ValueError: an id is not held (evicted, cleared, or never given out).
          ValueError: a window does not fit into its episode, or is not written yet.
        """
        self._check_open()
        return self._contents.get(ids, num_steps)

    def gather_all(self) -> Items:
        """Every frame held, the oldest episode first, leaves `[1, sum of lengths, ...]`, as in TF-Agents."""
        self._check_open()
        return self._contents.gather_all()

    def episodes(self) -> Iterator[Episode]:
        """The episodes held, oldest first; those that are evicted meanwhile are left out, new ones do not come.

        >>> buffer = EpisodicReplayBuffer(tf.TensorSpec([], tf.int32), capacity=5)
        >>> ids = buffer.extend([np.array([1, 2], np.int32), Episode(np.array([3], np.int32), {"seed": 7})])
        >>> [(episode.items.tolist(), dict(episode.metadata)) for episode in buffer.episodes()]
        [([1, 2], {}), ([3], {'seed': 7})]
        """
        self._check_open()
        for episode in self._contents.episodes():
            yield Episode(*episode)

    def episode_ids(self, ids: Ids) -> Array:
        """The episodes that frames belong to, int64, the shape of `ids`; -1 for padding.

        Args:
          ids: `info.ids` or `info.keys`, or what `add_batch` returned.
        """
        return episodes_of(ids)

    def set_metadata(self, episode_id: int, metadata: Mapping[str, Any]) -> None:
        """Keeps a mapping beside an episode, for as long as the episode is held; it replaces the one before.

        It is saved with the buffer where it holds numbers, text, bytes, None, NumPy arrays, tensors, and lists, tuples
        and dicts of these; `save` refuses anything else, by name.

        Raises:
          ValueError: the episode is not held.
        """
        with self._lock:
            self._check_open()
            if not self._table.holds(int(episode_id)):
                raise ValueError(
                    f"episode {episode_id} is not held: {self._table.oldest} to {self._table.next_id - 1} are."
                )
            self._table.set_metadata(int(episode_id), dict(metadata))

    def metadata(self, ids: Ids) -> list[Mapping[str, Any]]:
        """For each of these frames what was kept beside its episode; empty where nothing was, or where it is gone.

        Args:
          ids: int64 `[n]`: `info.keys`, one for each sample.

        >>> buffer = EpisodicReplayBuffer(tf.TensorSpec([], tf.int32), capacity=5)
        >>> _ = buffer.extend([Episode(np.array([3, 4], np.int32), {"seed": 7})])
        >>> buffer.metadata(buffer.sample(2, num_steps=1)[1].keys)
        [{'seed': 7}, {'seed': 7}]
        """
        with self._lock:
            return [dict(self._table.metadata(episode)) for episode in self.episode_ids(ids).reshape(-1).tolist()]

    def clear(self) -> None:
        """Empties the buffer and its counters; ids go on, so that an old key never means a new frame."""
        with self._lock:
            self._check_open()
            self._table.clear()
            self._writer.clear()

    def stats(self) -> BufferStats:
        """Counts, shares and bytes as of now; `fill_share` is of episodes, or of `max_frames` if that is higher."""
        with self._lock:
            table, usage = self._table, self._usage
            num_episodes = int(np.count_nonzero(lengths_of(table.states_of(table.ids()))))
            share = num_episodes / table.capacity
            if self._max_frames is not None:
                share = max(share, table.num_frames / self._max_frames)
            return BufferStats(
                frames=table.num_frames,
                capacity=table.capacity,
                capacity_unit="episodes",
                fill_share=share,
                added=table.num_added,
                sampled=usage.sampled,
                evicted=table.num_evicted,
                evicted_unsampled=usage.evicted_unsampled,
                bytes_held=table.num_frames * self._spec.frame_bytes,
                bytes_capacity=self._bytes_capacity,
                episodes=num_episodes,
                skipped=usage.skipped,
                replay_ratio=usage.sampled / table.num_added if table.num_added else None,
                host=socket.gethostname(),
                windows=self._reader.count_windows(),
            )

    def flush(self) -> None:
        """Nothing to do: what was added can be read at once."""

    def close(self) -> None:
        """Refuses further adds and draws. Datasets and graphs made before go on; the memory is freed with the last."""
        with self._lock:
            self._closed = True
            self._writer.close()
            self._reader.close()

    # TF-Agents' surface of explicit episode ids (`episode_ids.py`)

    def create_episode_ids(self, num_episodes: Any = None) -> tf.Tensor:
        """Ids for episodes that are to begin: int64 `[num_episodes]`, or `[]`, all -1.

        Raises:
          ValueError: more than `capacity`, or `num_episodes` is a tensor that is no scalar.
        """
        return self._episode_ids.create(num_episodes)

    def get_valid_ids_mask(self, episode_ids: Ids) -> tf.Tensor:
        """Which of these episodes are held, bool, the shape of `episode_ids`."""
        return self._episode_ids.valid_mask(episode_ids)

    def extract(self, locations: Ids, clear_data: bool = False) -> Episodes:
        """The episodes at these locations (`episode id % capacity`), int64 `[n]`, as TF-Agents' tensor lists.

        Args:
          locations: each from 0 to below `capacity`.
          clear_data: take their frames out of the buffer.

        Raises:
          ValueError: a location is none.
        """
        with self._lock:
            self._check_open()
            return self._episode_ids.extract(self._storage, locations, clear_data=clear_data)

    def extend_episodes(self, episode_ids: Ids, episode_ids_indices: Any, episodes: Any) -> tf.Tensor:
        """Appends to some of these episodes what `extract` returned; TF-Agents' twin of `extend`.

        Args:
          episode_ids: int64 `[max_num_episodes]`.
          episode_ids_indices: which of them, `[n]`.
          episodes: `Episodes` of `n`.

        Returns:
          The updated `episode_ids`.

        Raises:
          ValueError: as `add_batch` with ids.
        """
        return self._episode_ids.extend(episode_ids, episode_ids_indices, episodes)

    # How it is done

    def _num_gone(self, keys: Array) -> int:
        return self._contents.num_gone(keys)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"this {type(self).__name__} is closed; build a new one.")


def _refuse_beside_ids(end_of_episode: Any, priorities: Any, streams: Any) -> None:
    given = {"end_of_episode": end_of_episode, "priorities": priorities, "streams": streams}
    found = [name for name, value in given.items() if value is not None]
    if found:
        raise ValueError(
            f"{' and '.join(found)} beside episode ids: end_of_episode, priorities and streams are for streams; give "
            "them without episode ids."
        )
