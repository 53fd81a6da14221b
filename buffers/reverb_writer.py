"""How frames become the items of Reverb tables: appended once, items made, episodes ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .episode_ends import EpisodeMarks
from .nests import Array
from .reverb_columns import SharedColumns
from .reverb_cuts import Place, StreamCuts
from .reverb_items import WholeEpisodes
from .reverb_layouts import Layout
from .reverb_link import ServerLink
from .reverb_sender import ItemSender
from .reverb_targets import ItemTarget, TableItems

_LARGE_FRAME_BYTES = 4096


class ItemWriter:
    """Writes `B` streams, each frame once, and creates the items that they make in one table or several.

    All streams go through one writer of Reverb's, with a set of columns each: one call appends a
    step of all streams, or of some, and the items arrive in all tables in the same order, so that a table and its scan
    table evict the same ones. (Where a table's limiter holds its items back the others go ahead, by at most
    `max_pending_items`.)

    No wait leaves a step half written: what waits raise, an interrupt too, is kept until every stream has its frame and
    every table its items, and `raise_late` raises it. What interrupts between the waits cuts the step's streams: their
    next frames begin episodes (`StreamCuts`).

    Padding costs nothing: a few frames of it are sent once, in columns of their own, and every item refers to them.

    Args:
      link: the server.
      targets: the tables.
      batch_size: `B`.
      num_columns: of a frame.
      padding: columns `[bytes]` of a frame of padding; None where no table has any.
      chunk_length: frames that Reverb compresses together.
      max_pending_items: items that may wait for the server; then `write` waits until half of them are confirmed.

    Attributes:
      sender: what the items go through.
      cuts: the streams' ids, and where they are cut.
      items: of each table.
    """

    def __init__(
        self,
        link: ServerLink,
        targets: Sequence[ItemTarget],
        *,
        batch_size: int,
        num_columns: int,
        padding: list[Array] | None,
        chunk_length: int,
        max_pending_items: int,
    ) -> None:
        self._num_rows = batch_size * num_columns
        self._batch_size = batch_size
        self._all = range(batch_size)
        self.sender = ItemSender(
            link,
            [target.table for target in targets],
            chunk_length=chunk_length,
            num_kept=max(target.num_kept for target in targets),
            max_pending=max_pending_items,
        )
        self.cuts = StreamCuts(batch_size, self.sender.where())
        self.items = tuple(
            TableItems(target, num_columns, self.cuts.next_ids, self.sender.create, self.sender.late)
            for target in targets
        )
        self.cuts.feed(self._places)
        self._episodes = tuple(items for items in self.items if isinstance(items.target.kind, WholeEpisodes))
        num_padding = max(target.num_padding for target in targets)
        if num_padding:
            assert padding is not None  # plain tables hold none
            # An item may use one frame only once, as Reverb joins what lies side by side in a chunk.
            for refs in self.sender.append_apart(self._num_rows, [padding] * num_padding):
                for items in self.items:
                    items.take_padding(refs)

    @property
    def has_open_tails(self) -> bool:
        """Whether the end of an unfinished episode would make items."""
        return any(items.has_open_tails for items in self.items)

    def check_room(
        self, begins: Array | None, ends: Array | None, num_steps: int, streams: Array | None = None
    ) -> None:
        """Refuses frames that would make an episode longer than items of a table may be.

        Args:
          begins: bool `[B, T]`, or None.
          ends: bool `[B, T]`, or None.
          num_steps: `T`.
          streams: int64 `[n]`: the frames are of these alone, and `n` stands for `B`.

        Raises:
          ValueError: an episode would be too long; the message says what can be done.
        """
        for items in self._episodes:
            items.check_room(begins, ends, num_steps, streams)

    def claim_ids(self, marks: EpisodeMarks, streams: Array | None = None) -> Array:
        """Ids int64 `[B]` of the next step, which `write` must follow with; `streams` as in `check_room`."""
        some: Sequence[int] = self._all if streams is None else streams.tolist()
        self.sender.late.clear()
        self.cuts.begin(some)
        if marks.begins is not None:
            for row in np.nonzero(marks.begins)[0]:
                self.cuts.end(some[row])
        for items in self._episodes:
            for b in some:
                if items.make_room(b):
                    self.cuts.skip_id(b)
        next_ids = self.cuts.next_ids
        return next_ids.copy() if streams is None else next_ids[streams]

    def write(
        self,
        columns: Sequence[Array],
        marks: EpisodeMarks,
        priorities: Sequence[Array | None],
        streams: Array | None = None,
    ) -> None:
        """Appends one step of every stream, columns `[B, ...]`, and creates the items that it completes.

        `raise_late` of the sender must follow, when the caller has noted that the step is written.

        Args:
          columns: of the step.
          marks: its episodes' beginnings and ends.
          priorities: for each table `[B]`, or None.
          streams: int64 `[n]`: the step is of these alone, and `n` stands for `B`; nothing is appended for others.
        """
        batch_size, cuts, some = self._batch_size, self.cuts, self._all
        if streams is None:
            rows = [np.asarray(row) for column in columns for row in column]
            refs = self.sender.append(rows)
            cuts.next_ids += 1
        else:
            some = streams.tolist()
            refs = self._append_some(columns, some)
            cuts.next_ids[streams] += 1
        ends = None if marks.ends is None else marks.ends.tolist()
        final = None if marks.final is None else marks.final.tolist()
        for row, b in enumerate(some):
            cuts.has_frames[b] = True
            is_final = final is not None and final[row]
            frame = refs[b::batch_size]
            for items, given in zip(self.items, priorities, strict=True):
                items.push(b, frame, None if given is None else float(given[row]), final=is_final)
            if ends is not None and ends[row]:
                cuts.end(b, final=is_final)
            self.sender.bound_pending()
        cuts.done()

    def end_streams(self, streams: Iterable[int]) -> None:
        """These streams stop: no item goes past their newest frames, and those that it cuts short are made.

        Raises:
          WaitTimeoutError: the server does not answer within the link's timeout. The streams have ended all the same.
        """
        ended = list(streams)
        self.sender.late.clear()
        self.cuts.begin(ended)
        for b in ended:
            self.cuts.end(b)
        self.cuts.done()
        self.sender.raise_late()

    def _append_some(self, columns: Sequence[Array], streams: Sequence[int]) -> list[Any]:
        """References by column and stream; None where nothing was appended."""
        rows: list[Any] = [None] * self._num_rows
        for first, column in zip(range(0, self._num_rows, self._batch_size), columns, strict=True):
            for b, row in zip(streams, column, strict=True):
                rows[first + b] = np.asarray(row)
        return self.sender.append(rows)

    def _places(self, b: int) -> Iterable[Place]:
        return [(items, b) for items in self.items]


def default_chunk_length(layout: Layout | SharedColumns, item_length: int | None) -> int:
    """Frames in a chunk: as many as an item has, up to 16, so that an item lies in few chunks.

    Items of one frame have a chunk each: they are sent at once, and were fastest to write and to
    draw. Large frames too, since a chunk is read as a whole.
    """
    return 1 if sum(layout.column_bytes) >= _LARGE_FRAME_BYTES else min(16, item_length or 16)


def random_priorities() -> Callable[[], float]:
    """Priorities drawn from U(0, 1), of a generator that no other writer shares.

    A table that drops the least of them holds a sample without replacement of all that was inserted by any number of
    writers: the items with the largest of independent random keys (Vitter 1985; Efraimidis and Spirakis 2006).

    >>> 0 <= random_priorities()() < 1
    True
    """
    return np.random.default_rng().random
