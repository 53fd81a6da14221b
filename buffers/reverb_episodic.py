"""A replay buffer of whole episodes whose frames live in a table of a Reverb server."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import tensorflow as tf

from .base import BufferInfo, Items
from .counts import check_count, check_parallel_calls
from .episode_dataset import bucket_boundaries
from .episode_ends import EpisodeRule, FinalFrame
from .item_selectors import Fifo, Remover, Sampler, Uniform
from .nests import Nest
from .priorities import DEFAULT_EPS, WeightNorm
from .rate_limiters import RateLimiter
from .reverb_episodes import EpisodeReader, batch_episodes
from .reverb_items import OverLong, WholeEpisodes
from .reverb_knobs import AUTO, limiter_of, resolve_knobs
from .reverb_pass import ScanPass, eligible_rows, stepped_rows, whole_items
from .reverb_served import DEFAULT_PENDING_ITEMS, ServedBuffer, open_link
from .reverb_table import served_table
from .reverb_weights import Beta
from .server import ReplayServer
from .server_checkpoint_config import CheckpointConfig, OnMismatch
from .spec import DataSpec
from .stats import BufferStats
from .tables import TableConfig
from .windows import Window, resolve_window

# Whole episodes are large: four workers with so many each fetch as far ahead as one batch needs.
_DEFAULT_IN_FLIGHT = 8


class ReverbEpisodicReplayBuffer(ServedBuffer):
    """Writes streams into a Reverb table as whole episodes, and draws episodes, or windows cut from them.

    The served twin of `EpisodicReplayBuffer`. An item is an episode, its boundary frame included,
    written when it ends: at an end that the items or `end_of_episode` tell, at `end_stream`, where the next
    frame begins an episode, at `close`. An unfinished one cannot be drawn. At most `max_episode_length` frames of each
    stream wait in this process. Frames are sent in chunks, so that other processes see an episode up to
    `max_chunk_length` frames after its end, or at a `flush`.

    The law of draws: an episode by the table's sampler, and with `num_steps` or `window` one of its windows
    of that kind, each with the same chance; so `probabilities` are the episode's chance divided by its number of
    windows. With `short='drop'` episodes without such a window are skipped and counted (`num_skipped_episodes`); how
    much more likely that makes the others Reverb does not tell, so `probabilities` are NaN then. Where an episode is
    long and windows are all that is wanted, a table of windows (`ReverbReplayBuffer`) sends less.

    `keys` are those of episodes: `update_priorities` sets an episode's priority; in `add_batch` it is
    the priority given with the first frame.

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame.
      table_name: the table, of a `TableConfig` with `sequence_length=None`.
      server_address: `host:port` of the server; this or `local_server`.
      local_server: a `ReplayServer` or `reverb.Server` in this process.
      batch_size: `B`, streams that `add_batch` writes side by side.
      timeout_s: how long writes, and calls to the server, may take before they raise.
      log_interval_s: seconds between two lines about the same wait; the first comes after at most 1 s.
      rate_limiter_timeout_ms: how long a read waits for the table before it raises; -1: `timeout_s`.
      end_of_episode_fn: `items -> bool [B]` (`[B, T]` in `add_sequence`) for specs that do not tell ends.
      final_frame: `'auto'`, `'observation'` or `'ordinary'` (`episode_ends.py`).
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      num_workers_per_iterator: threads that fetch; -1: 4, or 1 where the table's sampler keeps an order.
      max_in_flight_samples_per_worker: episodes that each worker fetches ahead; None: 8, or 1 where the
        sampler keeps an order. A dataset looks `workers * this` episodes ahead, and three batches.
      max_samples_per_stream: episodes of one request before the next; -1: Reverb chooses.
      max_samples: episodes after which a dataset ends; -1: never.
      max_chunk_length: frames that Reverb compresses together; None: 16, or 1 where they are large.
      max_pending_items: episodes that may wait for the server; then `add_batch` waits until half are confirmed.
      beta: how far importance weights correct, where the table's sampler is `Prioritized`: a number, a `tf.Variable`
        (read at each draw), or a function of the number of batches drawn, made of TensorFlow's operations.
      eps: what `update_priorities` adds to absolute TD errors.
      weight_norm: what weights `(N P)^-beta` are divided by: the largest of the batch (`'batch'`), the largest that any
        item of the table could have (`'buffer'`, where it has `tracks_least`; at most a second old), or nothing (None).
        Single elements have no batch: with `'batch'` theirs are divided by nothing. Other samplers give weights of 1.

    Raises:
      ImportError: reverb is absent or does not fit the installed TensorFlow.
      TypeError: a count is no int.
      ValueError: a count is below 1, or a timeout is not positive and finite.
      ValueError: not exactly one of `server_address` and `local_server` is given.
      ValueError: several workers for a table whose sampler keeps an order.
      ValueError: the server has no such table, or it was made for another spec, or holds windows.
      WaitTimeoutError: the server does not answer within `timeout_s`.

    >>> with ReverbEpisodicReplayBuffer.local(
    ...     tf.TensorSpec([], tf.int64), max_size=100, max_episode_length=50
    ... ) as buffer:
    ...     _ = buffer.add_sequence([[7, 8, 9]], end_of_episode=np.array([[False, False, True]]))
    ...     items, info = buffer.sample(2)
    >>> items.numpy().tolist()
    [[7, 8, 9], [7, 8, 9]]
    """

    def __init__(
        self,
        data_spec: Nest,
        table_name: str,
        server_address: str | None = None,
        local_server: Any = None,
        *,
        batch_size: int = 1,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        rate_limiter_timeout_ms: int = AUTO,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        cast: bool = False,
        num_workers_per_iterator: int = AUTO,
        max_in_flight_samples_per_worker: int | None = None,
        max_samples_per_stream: int = AUTO,
        max_samples: int = AUTO,
        max_chunk_length: int | None = None,
        max_pending_items: int = DEFAULT_PENDING_ITEMS,
        beta: Beta = 0.4,
        eps: float = DEFAULT_EPS,
        weight_norm: WeightNorm = "batch",
    ) -> None:
        spec = DataSpec(data_spec)
        rule = EpisodeRule(spec, end_of_episode_fn, final_frame)
        rule.expect_windows()
        link = open_link(table_name, server_address, local_server, timeout_s=timeout_s, log_interval_s=log_interval_s)
        table = served_table(link, spec)
        if not isinstance(table.kind, WholeEpisodes):
            holds = "items that others made" if table.kind is None else f"{table.kind!r}"
            raise ValueError(
                f"table {table_name!r} holds {holds}, not whole episodes: read it with ReverbReplayBuffer, or make it "
                "with TableConfig(..., sequence_length=None, max_episode_length=...)."
            )
        check_count("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker, optional=True)
        in_flight = max_in_flight_samples_per_worker or (1 if table.is_ordered else _DEFAULT_IN_FLIGHT)
        knobs = resolve_knobs(
            table,
            dataset_buffer_size=None,
            max_in_flight_samples_per_worker=in_flight,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            max_samples=max_samples,
            max_cycle_length=1,
        )
        super().__init__(
            spec,
            link,
            table,
            knobs,
            rule,
            local_server=local_server,
            batch_size=batch_size,
            cast=cast,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_chunk_length=max_chunk_length,
            max_pending_items=max_pending_items,
            beta=beta,
            eps=eps,
            weight_norm=weight_norm,
        )
        self._kind = table.kind
        self._reader = EpisodeReader(
            link,
            self._id_layout(),
            self._source,
            self._stage,
            self._guard.over,
            self._pack_for_dataset,
            self._weights,
            self._priorities,
            max_samples=knobs.max_samples,
            timeout_s=self._read_timeout_s,
            keeps=self._keeps_rows,
        )

    @classmethod
    def local(
        cls,
        data_spec: Nest,
        *,
        batch_size: int = 1,
        max_size: int,
        max_episode_length: int,
        over_long: OverLong = "error",
        scannable: bool = True,
        sampler: Sampler = Uniform(),  # noqa: B008 - frozen
        remover: Remover = Fifo(),  # noqa: B008 - frozen
        min_size_to_sample: int | None = None,
        rate_limiter: RateLimiter | None = None,
        max_times_sampled: int = 0,
        initial: float | Literal["max", "random"] = 1.0,
        tracks_least: bool = False,
        table_name: str = "episodes",
        port: int | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        on_mismatch: OnMismatch = "error",
        checkpoints: CheckpointConfig | None = None,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        cast: bool = False,
        num_workers_per_iterator: int = AUTO,
        max_in_flight_samples_per_worker: int | None = None,
        max_samples_per_stream: int = AUTO,
        max_samples: int = AUTO,
        max_chunk_length: int | None = None,
        max_pending_items: int = DEFAULT_PENDING_ITEMS,
        beta: Beta = 0.4,
        eps: float = DEFAULT_EPS,
        weight_norm: WeightNorm = "batch",
    ) -> ReverbEpisodicReplayBuffer:
        """A buffer that starts its own server in this process, and stops it on `close`.

        Other processes reach it by `server_address`. Arguments are those of `TableConfig`, of the constructor, and
        (`checkpoint_dir`, `on_mismatch`, `checkpoints`) of `ReplayServer`; `max_size` counts episodes.

        Raises:
          TypeError, ValueError, ImportError: as `TableConfig` and the constructor.
        """
        table = TableConfig(
            table_name,
            data_spec,
            max_size,
            sampler,
            remover,
            limiter_of(min_size_to_sample, rate_limiter),
            max_times_sampled,
            None,
            scannable=scannable,
            max_episode_length=max_episode_length,
            over_long=over_long,
            initial=initial,
            tracks_least=tracks_least,
        )
        server = ReplayServer(
            [table], port, checkpoint_dir=checkpoint_dir, on_mismatch=on_mismatch, checkpoints=checkpoints
        )
        try:
            buffer = cls(
                data_spec,
                table_name,
                None,
                server,
                batch_size=batch_size,
                timeout_s=timeout_s,
                log_interval_s=log_interval_s,
                end_of_episode_fn=end_of_episode_fn,
                final_frame=final_frame,
                cast=cast,
                num_workers_per_iterator=num_workers_per_iterator,
                max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
                max_samples_per_stream=max_samples_per_stream,
                max_samples=max_samples,
                max_chunk_length=max_chunk_length,
                max_pending_items=max_pending_items,
                beta=beta,
                eps=eps,
                weight_norm=weight_norm,
            )
        except BaseException:
            server.stop()
            raise
        buffer._owned_server = server
        return buffer

    @property
    def capacity_unit(self) -> Literal["episodes"]:
        return "episodes"

    @property
    def max_episode_length(self) -> int:
        """Frames that an episode of the table may have."""
        return self._kind.max_length

    @property
    def num_episodes(self) -> int:
        """Episodes that the table holds now."""
        self._settle()
        return int(self._link.info().current_size)

    @property
    def num_skipped_episodes(self) -> int:
        """Draws by this buffer of episodes that were too short for the window asked for."""
        return self._reader.num_skipped

    @property
    def num_over_long(self) -> int:
        """Episodes of this buffer that were left out (`'drop'`), or cuts that were made (`'cut'`), as too long."""
        return self._streams.num_over_long

    def __len__(self) -> int:
        """Frames of the episodes held.

        Reverb counts items, not frames. Where all episodes came from this buffer it knows how long they are; else
        it reads the whole table, which has to be `scannable`.

        Raises:
          ValueError: others wrote into the table, or draws removed episodes from it, and it cannot be scanned; the
            message says what is missing.
        """
        known = self._known_frames(self._table_counts())
        return len(self._scan().ids) if known is None else known

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
        buckets: Any = None,
    ) -> tf.data.Dataset:
        """A live dataset of `(items, BufferInfo)`; lists in `data_spec` come out as tuples.

        By default it never ends; the law of draws is that of the class. At its first `next` it confirms
        this buffer's pending writes, then waits until the table can be sampled, which it says on the log, until
        the timeout.

        Episodes are drawn ahead: `num_workers_per_iterator * max_in_flight_samples_per_worker` of them and three
        batches. Where the sampler is `Prioritized` that is by priorities of then: `stats().priority_age` tells what
        updates came too late. Where the table removes what it delivers, what an iterator has drawn ahead goes with it
        when it is dropped; a `next` that times out loses nothing, the next one has its rows. `sample` draws nothing
        ahead, and keeps the episodes of a call that fails for the next one.

        Args:
          sample_batch_size: rows per element. Whole episodes are padded to the longest of the batch.
          num_steps: windows of `T` frames; None, without `window`: whole episodes `[L, ...]`.
          num_parallel_calls: of the maps that cut windows and preprocess.
          sequence_preprocess_fn: items of one draw, leaves `[L, ...]` or `[T, ...]` -> items; before they are batched.
          single_deterministic_pass: each episode or window once, oldest first, stream after stream, then the
            end; nothing is removed. It needs `scannable`, and holds the table's frames in this process's memory while
            it runs. With `num_steps` windows do not overlap; without `sample_batch_size` the last one of an episode may
            be shorter. With `window` every start comes once. `keys` are -1.
          window: see `Window`; `boundaries='ignore'` is refused.
          epochs: draw without replacement: this many shuffled passes; needs `scannable`.
          buckets: for batches of whole episodes: boundaries of lengths, a number of buckets, or `'auto'`. A batch
            then holds episodes of one bucket. What is drawn waits until its bucket is full: none is lost, and
            in the long run each comes as often as without buckets, but the order of draws is not kept, and
            rare lengths wait long. Passes end with the batches that are not full.

        Returns:
          Leaves `[B, T, ...]` or `[B, Lmax, ...]`, `BufferInfo` as there; padding is zeros, ids -1, mask False.

        Raises:
          TypeError: an argument has the wrong type.
          ValueError: a size is below 1; `num_steps` and `window`, or `epochs` and `single_deterministic_pass`, are both
            given.
          ValueError: `buckets` without `sample_batch_size`, or with windows.
          ValueError: windows of a table with `Prioritized` sampler, with another `weight_norm` than `'batch'`.
          ValueError: a pass of a table that cannot be scanned; the message says what is missing.
          tf.errors.InvalidArgumentError: at `next`: the timeout is up, or so long only episodes came that have no such
            window; the message has the numbers.
        """
        self._check_open()
        check_count("sample_batch_size", sample_batch_size, optional=True)
        check_parallel_calls(num_parallel_calls)
        check_count("epochs", epochs, optional=True)
        wanted = _checked_window(num_steps, window)
        if epochs is not None and single_deterministic_pass:
            raise ValueError("give epochs (shuffled) or single_deterministic_pass (ordered), not both.")
        boundaries = self._boundaries(buckets, sample_batch_size, wanted)
        if not single_deterministic_pass and epochs is None:
            self._check_look_ahead(sample_batch_size)
            self._check_weights_of(wanted)
            if wanted is None:
                return self._reader.episodes(sample_batch_size, boundaries, num_parallel_calls, sequence_preprocess_fn)
            return self._reader.windows(sample_batch_size, wanted, num_parallel_calls, sequence_preprocess_fn)
        if self._scanner is None:
            raise ValueError(self._table.why_no_scan())
        if wanted is None:
            rows = whole_items()
        elif window is not None or epochs is not None:
            rows = eligible_rows(wanted)
        else:
            rows = stepped_rows(wanted.num_steps, keep_short=sample_batch_size is None)
        dataset = ScanPass(self._id_layout(), self._scan, self._pack_for_dataset).dataset(
            self._stage.when_ready(epochs or 1),
            sample_batch_size if sequence_preprocess_fn is None else None,
            rows,
            shuffled=epochs is not None,
            boundaries=boundaries or (),
        )
        if sequence_preprocess_fn is None:
            return dataset
        dataset = dataset.map(lambda items, info: (sequence_preprocess_fn(items), info), num_parallel_calls)
        if wanted is None:
            return batch_episodes(dataset, sample_batch_size, boundaries, drop_remainder=False)
        return dataset if sample_batch_size is None else dataset.batch(sample_batch_size)

    def sample(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
    ) -> tuple[Items, BufferInfo]:
        """One draw at once, as eager tensors; arguments, shapes and odds as `as_dataset`.

        Nothing is fetched ahead: the draw sees all that was added before.

        Raises:
          TypeError, ValueError: as `as_dataset`.
          WaitTimeoutError: nothing could be drawn within the timeout; the message says why.
        """
        self._check_open()
        check_count("sample_batch_size", sample_batch_size, optional=True)
        wanted = _checked_window(num_steps, window)
        self._check_weights_of(wanted)
        if not tf.executing_eagerly():
            element = self.as_dataset(sample_batch_size, window=wanted).element_spec
            return self._draw_in_graph(lambda buffer: buffer._sample(sample_batch_size, wanted), element)
        return self._sample(sample_batch_size, wanted)

    def gather_all(self) -> Items:
        """Every frame of the episodes held, oldest first, stream after stream, leaves `[1, N, ...]`, as in TF-Agents.

        Raises:
          ValueError: the table cannot be scanned; the message says what is missing.
          WaitTimeoutError: the server does not answer within `timeout_s`.
        """
        self._check_open()
        leaves = self._id_layout().unpack_numpy(self._scan().columns)
        return self._spec.pack([tf.constant(leaf[None]) for leaf in leaves])

    def stats(self) -> BufferStats:
        """Counts and shares as of now; None where Reverb does not tell.

        Frames are told where all episodes came from this buffer; `num_frames` reads the table for them.
        """
        counts = self._table_counts()
        size, inserted, sampled = counts
        frames: Any = self._known_frames(counts)
        added = self._streams.num_item_frames if frames is not None else None
        return BufferStats(
            frames=frames,
            capacity=self._table.capacity,
            capacity_unit="episodes",
            fill_share=size / self._table.capacity,
            added=added,
            sampled=sampled,
            evicted=None if added is None else added - frames,
            evicted_unsampled=None,
            bytes_held=None,
            bytes_capacity=None,
            episodes=size,
            skipped=0,
            replay_ratio=sampled / added if added else None,
            host=urlsplit(f"//{self._link.address}").hostname or self._link.address,
            priority_age=self._priority_age(),
        )

    # How it is done

    def _check_weights_of(self, window: Window | None) -> None:
        if window is not None:
            self._weights.check_windows_of_episodes()

    def _sample(self, sample_batch_size: int | None, wanted: Window | None) -> tuple[Items, BufferInfo]:
        self._settle()
        self._priorities.look()
        items, info = self._reader.sample(sample_batch_size, wanted)
        items = self._spec.pack(tf.nest.flatten(items))
        if sample_batch_size is None:
            return tf.nest.map_structure(lambda leaf: tf.squeeze(leaf, 0), (items, info))
        return items, info

    def _table_counts(self) -> tuple[int, int, int]:
        """Episodes that the table holds, and how many were ever inserted and drawn."""
        self._settle()
        info = self._link.info()
        limiter = info.rate_limiter_info
        return int(info.current_size), int(limiter.insert_stats.completed), int(limiter.sample_stats.completed)

    def _known_frames(self, counts: tuple[int, int, int]) -> int | None:
        """Frames held, where they are this buffer's newest episodes: nobody else wrote, and only the oldest went."""
        size, inserted, _ = counts
        if not self._table.removes_oldest or size != min(inserted, self._table.capacity):
            return None
        return self._streams.num_frames_of_newest(size, inserted)

    def _boundaries(self, buckets: Any, sample_batch_size: int | None, window: Window | None) -> list[int] | None:
        if buckets is None:
            return None
        if sample_batch_size is None or window is not None:
            raise ValueError("buckets are for batches of whole episodes: give sample_batch_size, and no window.")
        is_number = isinstance(buckets, int) and not isinstance(buckets, bool)
        return bucket_boundaries(buckets, self._scan().items.num_after if is_number else np.zeros(0, np.int64))


def _checked_window(num_steps: int | None, window: Window | None) -> Window | None:
    wanted = resolve_window(num_steps, window)
    if wanted is not None and wanted.boundaries == "ignore":
        raise ValueError("episodes are items of their own: boundaries='ignore' cannot be drawn.")
    return wanted
