"""How a moment of many agents becomes items: each frame is stored once, for its policy's table and for that of moments.

The streams of a writer are (agent, environment) pairs, `agent * B + environment`, and behind them the environments.
Each has columns of its own, in which absent agents leave nothing: windows over an agent's own frames go over moments
in which it was absent, and lie side by side in its chunks. (Reverb joins what an item refers to in one chunk without
looking whether it is side by side: references must never leave out a cell of a chunk.) In windows of moments cells of
padding stand where an agent is absent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .episode_ends import EpisodeMarks
from .nests import Array
from .reverb_cuts import Place, StreamCuts
from .reverb_items import WholeEpisodes
from .reverb_layout import PackedLayout
from .reverb_link import ServerLink
from .reverb_sender import ItemSender
from .reverb_targets import ItemTarget, TableItems

# Cells of padding in a chunk. There are two chunks: where one is used up in a row the other follows.
_MAX_PADDING = 16


class StepRows(NamedTuple):
    """What one agent does in a moment, or the moment itself, in `n` environments.

    Attributes:
      environments: int64 `[n]`, ascending.
      leaves: of what is stored, `[n, ...]`.
      marks: its episodes' beginnings and ends, `[n]`.
      priorities: `[n]`, or None.
    """

    environments: Array
    leaves: list[Array]
    marks: EpisodeMarks
    priorities: Array | None


@dataclasses.dataclass(frozen=True)
class AgentTargets:
    """Which tables a writer of many agents fills.

    Attributes:
      layouts: of each agent's frames.
      policies: tables of frames, and the numbers of the agents whose frames each has, in a row.
      joint: a table of moments, or None.
      header: how a moment's own fields lie in columns; None without `joint`.
      joint_agents: the numbers of the agents in the order of that table's columns, behind the header's.
    """

    layouts: tuple[PackedLayout, ...]
    policies: tuple[tuple[ItemTarget, range], ...]
    joint: ItemTarget | None = None
    header: PackedLayout | None = None
    joint_agents: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[ItemTarget, ...]:
        """The tables, that of moments last."""
        return (*(target for target, _ in self.policies), *(() if self.joint is None else (self.joint,)))


class AgentItemWriter:
    """Writes moments of `B` environments, and creates the items that they make; as `ItemWriter` in all else.

    Args:
      link: the server.
      targets: the tables.
      batch_size: `B`.
      chunk_length: frames that Reverb compresses together.
      max_pending_items: items that may wait for the server, of all tables together.

    Attributes:
      sender: what the items go through.
      cuts: the streams' ids, and where they are cut.
      items: of each table, in the order of `AgentTargets.all`.
    """

    def __init__(
        self, link: ServerLink, targets: AgentTargets, *, batch_size: int, chunk_length: int, max_pending_items: int
    ) -> None:
        self._targets = targets
        self._batch_size = batch_size
        self._num_agents = len(targets.layouts)
        self.sender = ItemSender(
            link,
            [target.table for target in targets.all],
            chunk_length=chunk_length,
            num_kept=max(target.num_kept for target in targets.all),
            max_pending=max_pending_items,
        )
        layouts = (*targets.layouts, *(() if targets.header is None else (targets.header,)))
        self.cuts = StreamCuts(len(layouts) * batch_size, self.sender.where())
        # For each agent, and behind them for moments: its first column, and the first behind its last one.
        edges = np.cumsum([0, *(layout.num_columns * batch_size for layout in layouts)]).tolist()
        self._columns = list(zip(edges[:-1], edges[1:], strict=True))
        self._num_rows = self._num_columns = edges[-1]  # the latter counts padding too
        self._layouts = layouts
        # For each of them its items, and its first stream there.
        self._items_of: list[tuple[TableItems, int] | None] = [None] * len(layouts)
        made = [self._policy_items(target, agents) for target, agents in targets.policies]
        if targets.joint is not None:
            made.append(self._joint_items(targets.joint))
        self.items = tuple(made)
        self.cuts.feed(self._places)

    @property
    def has_open_tails(self) -> bool:
        """Whether the end of an unfinished episode would make items."""
        return any(items.has_open_tails for items in self.items)

    def check_room(self, agent: int | None, step: StepRows) -> None:
        """Refuses frames that would make an episode longer than items of a table may be.

        Args:
          agent: its number; None: moments.
          step: what it does.

        Raises:
          ValueError: an episode would be too long; the message says what can be done.
        """
        number = self._num_agents if agent is None else agent
        found = self._items_of[number]
        if found is None or not isinstance(found[0].target.kind, WholeEpisodes):
            return
        items, first = found
        begins, ends = (None if flags is None else flags[:, None] for flags in step.marks[:2])
        items.check_room(begins, ends, 1, number * self._batch_size - first + step.environments)

    def streams_of(self, steps: Iterable[tuple[int, Array]], joint: Array | None) -> list[int]:
        """The streams of agents by their numbers in environments, and of moments in environments."""
        streams = [agent * self._batch_size + environments for agent, environments in steps]
        if joint is not None and self._targets.joint is not None:
            streams.append(self._num_agents * self._batch_size + joint)
        return [stream for some in streams for stream in some.tolist()]

    def write(
        self, steps: Sequence[tuple[int, StepRows]], joint: StepRows | None, ended: Sequence[int]
    ) -> tuple[list[Array], Array]:
        """Appends what agents do in a moment, and the moment itself, and creates the items that are complete by then.

        `raise_late` of the sender must follow, when the caller has noted that the moment is written.

        Args:
          steps: by the numbers of the agents, in ascending order.
          joint: the moment itself; None where there is no table of moments.
          ended: streams that have no frame here, and end.

        Returns:
          For each step the ids of its frames, int64 `[n]`; and those of the moments.
        """
        both = [*steps, *(() if joint is None else ((self._num_agents, joint),))]
        batch_size, cuts = self._batch_size, self.cuts
        streams = [number * batch_size + step.environments for number, step in both]
        self.sender.late.clear()
        cuts.begin([*(stream for some in streams for stream in some.tolist()), *ended])
        rows: list[Any] = [None] * self._num_rows
        all_ids = []
        for (number, step), own in zip(both, streams, strict=True):
            self._cut_before(number, step.marks.begins, own)
            ids = cuts.next_ids[own]
            all_ids.append(ids)
            columns = self._layouts[number].pack(step.leaves, ids, step.marks.final)
            environments = step.environments.tolist()
            for first, column in zip(range(*self._columns[number], batch_size), columns, strict=True):
                if len(environments) == batch_size:
                    rows[first : first + batch_size] = column
                else:
                    for b, row in zip(environments, column, strict=True):
                        rows[first + b] = row
        refs = self.sender.append(rows) if both else []
        for own in streams:
            cuts.next_ids[own] += 1
        for (number, step), own in zip(both, streams, strict=True):
            self._push(number, step, own.tolist(), refs)
        for stream in ended:
            cuts.end(stream)
        cuts.done()
        return (all_ids, np.zeros(0, np.int64)) if joint is None else (all_ids[:-1], all_ids[-1])

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

    def _cut_before(self, number: int, begins: Array | None, streams: Array) -> None:
        """What ends before these streams' frames: episodes that the frames do not go on with, or that are too long."""
        if begins is not None:
            for stream in streams[begins].tolist():
                self.cuts.end(stream)
        found = self._items_of[number]
        if found is not None and isinstance(found[0].target.kind, WholeEpisodes):
            items, first = found
            for stream in streams.tolist():
                if items.make_room(stream - first):
                    self.cuts.skip_id(stream)

    def _push(self, number: int, step: StepRows, streams: list[int], refs: list[Any]) -> None:
        """Makes the items that frames complete, and those that ends complete."""
        batch_size, cuts, found = self._batch_size, self.cuts, self._items_of[number]
        first, stop = self._columns[number]
        ends = None if step.marks.ends is None else step.marks.ends.tolist()
        final = None if step.marks.final is None else step.marks.final.tolist()
        given = None if step.priorities is None else step.priorities.tolist()
        for row, (b, stream) in enumerate(zip(step.environments.tolist(), streams, strict=True)):
            cuts.has_frames[stream] = True
            is_final = final is not None and final[row]
            if found is not None:
                items, first_stream = found
                if number < self._num_agents:
                    frame = refs[first + b : stop : batch_size]
                else:
                    frame = [refs[column + b] for column in self._joint_columns]
                items.push(stream - first_stream, frame, None if given is None else given[row], final=is_final)
            if ends is not None and ends[row]:
                cuts.end(stream, final=is_final)
            self.sender.bound_pending()

    def _policy_items(self, target: ItemTarget, agents: range) -> TableItems:
        """The items of a table of frames."""
        first, stop = agents.start * self._batch_size, agents.stop * self._batch_size
        layout, next_ids = self._targets.layouts[agents.start], self.cuts.next_ids[first:stop]
        items = TableItems(target, layout.num_columns, next_ids, self.sender.create, self.sender.late)
        for number in agents:
            self._items_of[number] = items, first
        if target.num_padding:
            for refs in self._append_padding(layout.padding, target.num_padding, target.num_padding):
                items.take_padding(refs)
        return items

    def _joint_items(self, target: ItemTarget) -> TableItems:
        """The items of the table of moments."""
        targets, batch_size = self._targets, self._batch_size
        numbers = (self._num_agents, *targets.joint_agents)
        self._joint_columns = [column for number in numbers for column in range(*self._columns[number], batch_size)]
        padding = [column for number in numbers for column in self._layouts[number].padding]
        # Equal columns of padding are stored once.
        kinds = {column.tobytes(): column for column in padding}
        num = min(_MAX_PADDING, target.num_kept)
        cells = self._append_padding(list(kinds.values()), 2 * num, num)
        by_kind = dict(zip(kinds, zip(*cells, strict=True), strict=True))
        self._joint_padding = [by_kind[column.tobytes()] for column in padding]
        first = self._num_agents * batch_size
        items = TableItems(target, len(padding), self.cuts.next_ids[first:], self._create_joint, self.sender.late)
        self._items_of[self._num_agents] = items, first
        for _ in range(target.num_padding):
            items.take_padding([None] * len(padding))
        return items

    def _append_padding(self, columns: list[Array], num: int, chunk_length: int) -> list[list[Any]]:
        """Stores frames of padding in columns of their own; references by frame, then column."""
        first = self._num_columns
        self._num_columns += len(columns)
        return self.sender.append_apart(first, [columns] * num, chunk_length)

    def _create_joint(self, table: str, priority: float, refs: list[list[Any]], squeezed: list[bool]) -> None:
        """Makes an item of moments: where an agent is absent, or there is no moment, cells of padding stand."""
        filled = [
            _filled(column, padding) if None in column else column
            for column, padding in zip(refs, self._joint_padding, strict=True)
        ]
        self.sender.create(table, priority, filled, squeezed)

    def _places(self, stream: int) -> Iterable[Place]:
        found = self._items_of[stream // self._batch_size]
        return () if found is None else ((found[0], stream - found[1]),)


def _filled(column: Sequence[Any], padding: Sequence[Any]) -> list[Any]:
    """The column with cells of padding in place of None; in a row they follow each other, round and round.

    >>> _filled(["a", None, None, "b", None], ["x", "y"])
    ['a', 'x', 'y', 'b', 'x']
    """
    filled, run = [], 0
    for ref in column:
        if ref is None:
            filled.append(padding[run % len(padding)])
            run += 1
        else:
            filled.append(ref)
            run = 0
    return filled
