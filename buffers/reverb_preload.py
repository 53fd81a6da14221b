"""A server whose tables begin with offline data that their samples-to-inserts ratio does not count.

Reverb's limiter counts every insert and every sample of a table's life, and nothing can take that back. But below
`min_size_to_sample` items it lets every insert through, and a single `error_buffer` is centred on where the count
stands when so many are in. So a table that is to begin with `n` items gets `min_size_to_sample` of at least `n`: when
the last one is in the count stands in the middle of its range, as if nothing had been inserted yet.

What that means later: nothing can be drawn while fewer than `n` items are there. That is so again after a `clear`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .counts import check_count
from .episode_ends import EpisodeRule, FinalFrame
from .nests import Array, Nest
from .rate_limiters import MinSize, SampleToInsertRatio
from .reverb_group import ReverbTableGroup
from .reverb_targets import ItemTarget, TableItems
from .server import ReplayServer
from .spec import DataSpec, ItemChecker
from .tables import TableConfig


def preloaded_server(
    data_spec: Nest,
    tables: Sequence[TableConfig],
    episodes: Iterable[Nest],
    *,
    into: Sequence[str] | None = None,
    port: int | None = None,
    timeout_s: float = 60.0,
    end_of_episode_fn: Callable[[Nest], Any] | None = None,
    final_frame: FinalFrame = "auto",
    cast: bool = False,
) -> ReplayServer:
    """A server that holds the episodes already; ratios count from there on.

    The tables are those given, but for `min_size_to_sample` of ratios (`with_preload`). All get their items over the
    same stored frames.

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame.
      tables: of the server.
      episodes: nests matching `data_spec`, leaves `[T, ...]`; each is one episode. They are gone through twice.
      into: names of the tables that get them; None: all.
      port: the port to listen on; None: a free one.
      timeout_s: how long the server may take for what is pending.
      end_of_episode_fn: further ends inside what is given, as in `ReverbReplayBuffer`.
      final_frame: `'auto'`, `'observation'` or `'ordinary'` (`episode_ends.py`).
      cast: convert input within its kind.

    Raises:
      TypeError: `episodes` can be gone through only once.
      ValueError: `into` names a table that is not there.
      ValueError: a table cannot be preloaded with so many items (`with_preload`).
      ValueError: an episode does not match `data_spec`.
      TypeError, ValueError, ImportError: as `ReplayServer` and `ReverbTableGroup`.

    >>> import tensorflow as tf
    >>> spec = tf.TensorSpec([], tf.int64)
    >>> table = TableConfig("replay", spec, 100, rate_limiter=SampleToInsertRatio(2.0, 1, 4.0))
    >>> with preloaded_server(spec, [table], [np.arange(10)]) as server:
    ...     with ReverbTableGroup(spec, ["replay"], None, server) as group:
    ...         len(group["replay"]), group["replay"].ready(4), group["replay"].ready(5)
    (10, True, False)
    """
    if iter(episodes) is episodes:
        raise TypeError("episodes are gone through twice, and this can be only once: give a list.")
    names = [table.name for table in tables]
    wanted = names if into is None else list(into)
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise ValueError(f"into names {unknown[0]!r}; the tables are {', '.join(names)}.")
    counter = _ItemCounter(data_spec, end_of_episode_fn, final_frame, cast=cast)
    for table in tables:
        if table.name in wanted:
            counter.add_table(table)
    counts = counter.count(episodes)
    server = ReplayServer([with_preload(table, counts.get(table.name, 0)) for table in tables], port)
    try:
        with ReverbTableGroup(
            data_spec,
            wanted,
            None,
            server,
            timeout_s=timeout_s,
            end_of_episode_fn=end_of_episode_fn,
            final_frame=final_frame,
            cast=cast,
        ) as group:
            for episode in episodes:
                leaves, ends = counter.batch_of(episode)
                group.add_sequence(DataSpec(data_spec).pack(leaves), end_of_episode=ends)
            group.flush()
            for name, count in counts.items():
                inserted = group[name].get_table_info().rate_limiter_info.insert_stats.completed
                if inserted != count:
                    raise ValueError(
                        f"table {name!r} got {inserted} items, and {count} when they were counted: episodes must be "
                        "the same each time, and nobody else may write meanwhile."
                    )
    except BaseException:
        server.stop()
        raise
    return server


def with_preload(table: TableConfig, num_items: int) -> TableConfig:
    """The same table, whose ratio does not count the first `num_items` inserts.

    A ratio gets `min_size_to_sample` of at least `num_items`, and a pair of bounds moves by as much. Tables with
    `MinSize` count nothing and stay as they are.

    Raises:
      TypeError: `num_items` is no int.
      ValueError: it is negative.
      ValueError: a queue or stack: it lets in what is drawn, and holds no more than its size.
      ValueError: a ratio in a table that holds fewer items, or that removes those that are drawn: it would stop at the
        first one that leaves.

    >>> import tensorflow as tf
    >>> table = TableConfig("replay", tf.TensorSpec([], tf.int64), 100, rate_limiter=SampleToInsertRatio(2.0, 1, 4.0))
    >>> with_preload(table, 60).rate_limiter
    SampleToInsertRatio(samples_per_insert=2.0, min_size_to_sample=60, error_buffer=4.0)
    """
    if num_items != 0:
        check_count("num_items", num_items)
    limiter = table.rate_limiter
    if num_items == 0 or isinstance(limiter, MinSize):
        return table
    if not isinstance(limiter, SampleToInsertRatio):
        raise ValueError(
            f"table {table.name!r} cannot be preloaded: {limiter!r} counts each insert and lets in what is drawn; "
            "keep offline data in another table."
        )
    if num_items > table.max_size:
        raise ValueError(
            f"table {table.name!r} holds max_size={table.max_size} items, and {num_items} are to be preloaded: the "
            "ratio would count those that push out others. Give fewer episodes, or a larger max_size."
        )
    if table.max_times_sampled:
        raise ValueError(
            f"table {table.name!r} has max_times_sampled={table.max_times_sampled}: the first item that leaves would "
            f"bring it below the {num_items} that must be there. Give max_times_sampled=0."
        )
    size = max(limiter.min_size_to_sample, num_items)
    buffer = limiter.error_buffer
    if isinstance(buffer, tuple):
        moved = limiter.samples_per_insert * (size - limiter.min_size_to_sample)
        buffer = (buffer[0] + moved, buffer[1] + moved)
    return dataclasses.replace(table, rate_limiter=SampleToInsertRatio(limiter.samples_per_insert, size, buffer))


class _ItemCounter:
    """Counts the items that episodes make, by the same cutting that writes them.

    Args:
      data_spec: of a frame.
      end_of_episode_fn: as there.
      final_frame: as there.
      cast: as there.
    """

    def __init__(
        self, data_spec: Nest, end_of_episode_fn: Callable[[Nest], Any] | None, final_frame: FinalFrame, *, cast: bool
    ) -> None:
        self._spec = DataSpec(data_spec)
        self._checker = ItemChecker(self._spec, 1, cast=cast)
        self._rule = EpisodeRule(self._spec, end_of_episode_fn, final_frame)
        self._items: list[TableItems] = []
        self._counts: dict[str, int] = {}

    def add_table(self, table: TableConfig) -> None:
        """A table whose items are to be counted."""

        def create(name: str, *_: Any) -> None:
            self._counts[name] += 1

        self._counts[table.name] = 0
        target = ItemTarget(table.name, table.kind, table.max_size)
        self._items.append(TableItems(target, 1, np.zeros(1, np.int64), create))

    def batch_of(self, episode: Nest) -> tuple[list[Array], Array]:
        """An episode's leaves `[1, T, ...]` and its ends `[1, T]`."""
        leaves, num_steps = self._checker.check_sequence_leaves(
            [np.asarray(leaf)[None] for leaf in self._spec.flatten(episode)]
        )
        ends = np.zeros((1, num_steps), bool)
        ends[:, -1:] = True
        return leaves, ends

    def count(self, episodes: Iterable[Nest]) -> dict[str, int]:
        """The items of each table."""
        for episode in episodes:
            leaves, given = self.batch_of(episode)
            marks = self._rule.marks(leaves, given)
            for items in self._items:
                items.check_room(marks.begins, marks.ends, given.shape[1])
                for t in range(given.shape[1]):
                    final = marks.final is not None and bool(marks.final[0, t])
                    if marks.begins is not None and marks.begins[0, t]:
                        items.end_episode(0, final=False)
                    items.make_room(0)
                    items.push(0, [None], None, final=final)
                    if marks.ends is not None and marks.ends[0, t]:
                        items.end_episode(0, final=final)
        return self._counts
