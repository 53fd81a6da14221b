"""Many agents on one server: each frame stored once, for its policy's table and for the table of moments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import tensorflow as tf

from .agent_input import AgentChecker
from .agent_policies import AgentPolicies
from .base import Items, WaitTimeoutError
from .counts import check_count
from .episode_ends import EpisodeMarks, EpisodeRule
from .nests import Array, Nest
from .priorities import check_priorities
from .reverb_agents_adds import AgentMoments, MomentIds
from .reverb_agents_input import NO_MARKS, MomentChecker
from .reverb_agents_tables import FoundTables, PolicyOf, agent_tables, check_policies
from .reverb_agents_writer import AgentItemWriter, AgentTargets
from .reverb_group import Reader, empty_all, make_reader, tell_of_small_tables
from .reverb_layout import PackedLayout
from .reverb_layouts import IdLayout, JointLayout
from .reverb_link import CLOSED
from .reverb_open_writer import OpenWriter
from .reverb_served import DEFAULT_PENDING_ITEMS, open_link
from .reverb_writer import default_chunk_length
from .saved_by_server import SavedByServer
from .server import ReplayServer
from .server_checkpoint_config import CheckpointConfig, OnMismatch
from .spec import DataSpec
from .tables import TableConfig

_NAME = "its ReverbAgentTables"


class ReverbAgentTables(SavedByServer):
    """Writes what many agents do once, into a table for each policy, a table of moments for all, or both.

    The frame of an agent is stored once, whichever tables refer to it, until the last one has dropped it. A policy's
    table holds windows of its agents' own frames, in which moments where an agent was absent are left out; it is read
    as any table of `AgentFrame`s. The table of moments holds windows of `JointFrame`s, whose `codes` say who is
    present: what stands where an agent is absent is zeros. Each has its own window, sampler, remover and limiter, as
    its `TableConfig` says. `tables["name"]` is an ordinary buffer that reads one of them; it confirms pending writes
    before it reads, and refuses to write. So it is in other processes, by `server_address`.

    A table whose limiter holds items back does not keep others from getting theirs, until `max_pending_items` wait;
    then a write waits, says which table it is, and raises after `timeout_s`. (Tables of a `max_size` below 10
    `max_pending_items` may hold the others up sooner, as in a `ReverbTableGroup`.)

    `add_batch` writes a moment of each environment, and finds out whose lives end; `write_moment` is for who knows it.

    Both kinds at once cost less than two writers. For one kind alone buffers of its own are faster: moments as one
    record each are written 2.5 times and read 1.5 times as fast as by agent (`MultiAgentReplayBuffer` does that).

    Args:
      data_specs: by agent the nest of `tf.TensorSpec` of its frames.
      policy_of: by agent its policy: a dict, or a function of the agent.
      independent: by policy the name of its table, one of `agent_tables`; without `lockstep` of every policy.
      lockstep: the name of the table of moments.
      server_address: `host:port` of the server; this or `local_server`.
      local_server: a `ReplayServer` or `reverb.Server` in this process.
      batch_size: `B`, environments that are written side by side.
      timeout_s: how long writes, reads and calls to the server may take before they raise.
      log_interval_s: seconds between two lines about the same wait.
      cast: `add_batch` converts input within its kind (float64 to float32) instead of refusing it.
      end_of_episode_fn: an agent's `items -> bool [B]` for specs that do not tell ends, in `add_batch`.
      max_chunk_length: frames that Reverb compresses together; None: as many as the shortest items have, up to 16.
      max_pending_items: items that may wait for the server, of all tables together.
      readers: by table buffers that read them, with settings of their own; they must not have written. The others are
        made here, with default settings. All are closed with this.

    Raises:
      ImportError: reverb is absent or does not fit the installed TensorFlow.
      TypeError, ValueError: as `AgentPolicies`, and for counts and timeouts.
      ValueError: there is no table, one comes twice, a policy that nobody has, or the server lacks a table.
      ValueError: a table was made for something else than these agents; the message names what differs.
      ValueError: a reader is of another table, or has written.
      WaitTimeoutError: the server does not answer within `timeout_s`.

    >>> import numpy as np
    >>> spec = tf.TensorSpec([], tf.float32)
    >>> own = {name: TableConfig(name, spec, 100) for name in ("wolf", "sheep")}
    >>> joint = TableConfig("all", spec, 100, sequence_length=2)
    >>> specs = {"wolf": spec, "sheep": spec}
    >>> tables = ReverbAgentTables.local(specs, lambda agent: agent, independent=own, lockstep=joint)
    >>> for number in (1, 2):
    ...     _ = tables.add_batch({"wolf": np.full([1], number, np.float32)})  # the sheep is absent
    >>> items, info = tables["all"].sample(1, num_steps=2)
    >>> items.frames["wolf"].numpy(), items.codes.numpy()[..., 1]
    (array([[1., 2.]], dtype=float32), array([[0, 0]], dtype=uint8))
    >>> len(tables["wolf"]), len(tables["sheep"])
    (2, 0)
    >>> tables.close()
    """

    def __init__(
        self,
        data_specs: Mapping[str, Nest],
        policy_of: PolicyOf,
        *,
        independent: Mapping[str, str] | None = None,
        lockstep: str | None = None,
        server_address: str | None = None,
        local_server: Any = None,
        batch_size: int = 1,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        cast: bool = False,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        max_chunk_length: int | None = None,
        max_pending_items: int = DEFAULT_PENDING_ITEMS,
        readers: Mapping[str, Reader] | None = None,
    ) -> None:
        check_count("batch_size", batch_size)
        check_count("max_pending_items", max_pending_items)
        check_count("max_chunk_length", max_chunk_length, optional=True)
        self._known = known = AgentPolicies(data_specs, policy_of)
        check_policies(known, independent, lockstep is not None)
        self._table_of = dict(independent or {})
        self._joint_table = lockstep
        names = _check_names([*self._table_of.values(), *([] if lockstep is None else [lockstep])], readers or {})
        self._batch_size = int(batch_size)
        self._local_server = local_server
        self._owned_server: ReplayServer | None = None
        self._closed = False
        # Streams are numbered by policy, so that those of one lie side by side.
        self._agents = tuple(agent for policy in known.policies for agent in known.agents_of(policy))
        link = open_link(names[0], server_address, local_server, timeout_s=timeout_s, log_interval_s=log_interval_s)
        self._link = link
        link.expect_same(names)
        rules = {agent: EpisodeRule(spec, end_of_episode_fn) for agent, spec in known.specs.items()}
        self._moments = AgentMoments(known, self._batch_size, rules, has_joint=lockstep is not None)
        self._adds = AgentChecker(known, self._batch_size, cast=cast)
        found = FoundTables(known, link, self._table_of, lockstep)
        made: list[Reader] = []
        try:
            self._readers: dict[str, Reader] = {}
            for name in names:
                reader = (readers or {}).get(name)
                if reader is None:
                    num_streams = self._batch_size * (1 if name == lockstep else len(found.agents_at(name)))
                    spec, kind = found.spec_at(name), found.kind_at(name)
                    reader = make_reader(spec, link, name, kind, local_server, num_streams)
                    made.append(reader)
                self._readers[name] = reader
            targets = self._make_targets(found)
            self._own = OpenWriter(self._writer_maker(targets, max_chunk_length, max_pending_items), link.check_same)
            tell_of_small_tables(self._readers.values(), max_pending_items)
            for index, reader in enumerate(self._readers.values()):
                reader._write_through(self._own, index, _NAME)
        except BaseException:
            for reader in made:
                reader.close()
            raise
        if any(reader._table.item_length != 1 for reader in self._readers.values()):
            for rule in rules.values():
                rule.expect_windows()
        table_of_agent = {agent: self._table_of.get(known.policy_of(agent)) for agent in self._agents}
        self._checker = MomentChecker(
            known,
            self._agents,
            self._batch_size,
            has_stream=found.has_stream,
            priorities_of={
                agent: self._readers[table]._priorities for agent, table in table_of_agent.items() if table is not None
            },
            joint=None if lockstep is None else self._readers[lockstep]._priorities,
            tells_ends=targets.header is not None
            and any(field.path == "is_last" for field in targets.header.spec.fields),
        )

    @classmethod
    def local(
        cls,
        data_specs: Mapping[str, Nest],
        policy_of: PolicyOf,
        *,
        independent: Mapping[str, TableConfig] | None = None,
        lockstep: TableConfig | None = None,
        batch_size: int = 1,
        port: int | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        on_mismatch: OnMismatch = "error",
        checkpoints: CheckpointConfig | None = None,
        timeout_s: float = 60.0,
        log_interval_s: float = 5.0,
        cast: bool = False,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        max_chunk_length: int | None = None,
        max_pending_items: int = DEFAULT_PENDING_ITEMS,
    ) -> ReverbAgentTables:
        """Tables on a server of their own in this process, which `close` stops.

        Arguments are those of `agent_tables`, of the constructor and (`port`, `checkpoint_dir`, `on_mismatch`,
        `checkpoints`) of `ReplayServer`.

        Raises:
          TypeError, ValueError, ImportError: as `agent_tables`, `ReplayServer` and the constructor.
        """
        tables = agent_tables(data_specs, policy_of, independent=independent, lockstep=lockstep, batch_size=batch_size)
        server = ReplayServer(
            tables, port, checkpoint_dir=checkpoint_dir, on_mismatch=on_mismatch, checkpoints=checkpoints
        )
        try:
            made = cls(
                data_specs,
                policy_of,
                independent={policy: table.name for policy, table in (independent or {}).items()},
                lockstep=None if lockstep is None else lockstep.name,
                local_server=server,
                batch_size=batch_size,
                timeout_s=timeout_s,
                log_interval_s=log_interval_s,
                cast=cast,
                end_of_episode_fn=end_of_episode_fn,
                max_chunk_length=max_chunk_length,
                max_pending_items=max_pending_items,
            )
        except BaseException:
            server.stop()
            raise
        made._owned_server = server
        return made

    @property
    def batch_size(self) -> int:
        """`B`, environments that are written side by side."""
        return self._batch_size

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables' names, that of moments last."""
        return tuple(self._readers)

    @property
    def server_address(self) -> str:
        """`host:port`, for buffers in other processes."""
        return self._link.address

    @property
    def local_server(self) -> Any:
        """The server given or owned, or None."""
        return self._owned_server or self._local_server

    @property
    def lockstep(self) -> Reader:
        """The buffer that reads the table of moments.

        Raises:
          KeyError: there is none.
        """
        if self._joint_table is None:
            raise KeyError("there is no table of moments here: give lockstep=.")
        return self._readers[self._joint_table]

    def of_policy(self, policy: str) -> Reader:
        """The buffer that reads a policy's table.

        Raises:
          KeyError: it has none.
        """
        try:
            return self._readers[self._table_of[policy]]
        except KeyError:
            raise KeyError(f"policy {policy!r} has no table here; {', '.join(self._table_of)} have.") from None

    def __getitem__(self, table: str) -> Reader:
        """The buffer that reads one of the tables.

        Raises:
          KeyError: it is none of these.
        """
        try:
            return self._readers[table]
        except KeyError:
            raise KeyError(f"there is no table {table!r} here; there are {', '.join(self._readers)}.") from None

    def __iter__(self) -> Iterator[str]:
        """The tables' names."""
        return iter(self._readers)

    def __len__(self) -> int:
        """How many tables there are."""
        return len(self._readers)

    def add_batch(
        self,
        items: Mapping[str, Items],
        *,
        end_of_episode: Any = None,
        priorities: Mapping[str, Any] | None = None,
        joint_priorities: Any = None,
        present: Mapping[str, Any] | None = None,
    ) -> MomentIds:
        """Writes one moment of each environment in which anybody is present, as `MultiAgentReplayBuffer.add_batch`.

        Args:
          items: by agent a nest matching its spec, leaves `[B, ...]`, arrays or eager tensors. Agents that are left out
            are absent.
          end_of_episode: bool `[B]`, environments whose episode ends for all of their agents; or by agent bool `[B]`,
            whose life ends. For ends that the items do not tell.
          priorities: by agent `[B]`, raw, of the items of its policy's table that start here; of all agents of a
            policy that are present, or of none.
          joint_priorities: `[B]`, the same of the table of moments.
          present: by agent bool `[B]`, the environments in which it is present; what stands in its other rows is not
            looked at. Agents that are left out are present in all.

        Returns:
          The ids, `[B]`, -1 where an agent was absent, or nobody was present.

        Raises:
          ValueError: it is called inside a `tf.function`.
          ValueError: something does not fit; the message names the agent. Nothing is written.
          WaitTimeoutError: as `write_moment`.
        """
        if not tf.executing_eagerly():
            raise ValueError("add_batch of ReverbAgentTables is eager: call it outside of a tf.function.")
        add = self._adds.moment(items, end_of_episode, priorities, present)
        given = None if joint_priorities is None else check_priorities(joint_priorities, None, (self._batch_size,))
        return self._moments.add(self, add, given)

    def end_stream(self, b: int | None = None, *, agent: str | None = None) -> None:
        """The episode of environment `b` (None: of all) stops here, or only the life of one agent in it.

        Raises:
          ValueError: there is no such environment, or no such agent.
        """
        if b is not None and not 0 <= b < self._batch_size:
            raise ValueError(f"there is no environment {b}: there are 0 to {self._batch_size - 1}.")
        if agent is not None:
            self._known.check_agents("agent", (agent,))
        self._moments.end(self, b, agent)

    def write_moment(
        self,
        frames: Mapping[str, Sequence[Array]],
        rows: Mapping[str, Array],
        time: Array,
        *,
        marks: Mapping[str, EpisodeMarks] | None = None,
        ended: Mapping[str, Array] | None = None,
        codes: Array | None = None,
        joint_rows: Array | None = None,
        joint_marks: EpisodeMarks = NO_MARKS,
        priorities: Mapping[str, Array] | None = None,
        joint_priorities: Array | None = None,
    ) -> MomentIds:
        """Writes a moment of each environment, or of some, and the items that it completes in each table.

        Args:
          frames: by agent that is present anywhere its checked leaves `[n, ...]`, in the order of its `DataSpec`.
          rows: by the same agents int64 `[n]`, ascending, the environments in which it is present.
          time: int64 `[B]`, the number of the moment in each environment.
          marks: by agent, bool `[n]` each: where its frames begin or end an episode of its own, its life.
          ended: by agent that is absent, int64 `[k]`, environments in which its life is over: no window of its policy
            goes past its newest frame.
          codes: uint8 `[B, agents]`, `JointFrame.codes`, agents in the order of `data_specs`; where there is a table of
            moments.
          joint_rows: int64 `[m]`, ascending, the environments that have a moment; None: all.
          joint_marks: bool `[m]` each: where the moments begin or end an episode of the environment. Where the specs
            tell ends, `final` is the moment's `is_last`.
          priorities: by agent `[n]`, raw, of the items of its policy's table that start at these frames; without: what
            the table's `initial` says.
          joint_priorities: `[m]`, the same of the table of moments.

        Returns:
          The ids of the frames, and of the moments.

        Raises:
          ValueError: something does not fit; the message names the agent. Nothing is written.
          ValueError: this is closed.
          ValueError: an episode is longer than a table's `max_episode_length`. Nothing is written.
          WaitTimeoutError: too much is pending and the server does not confirm it within `timeout_s`; the message names
            the table. The moment is written all the same, and its items may arrive later.
        """
        steps = self._checker.steps(frames, rows, time, marks or {}, priorities or {})
        joint = self._checker.joint_step(steps, time, codes, joint_rows, joint_marks, joint_priorities)
        over = self._checker.ended(ended or {}, steps)
        is_written = False
        try:
            with self._own.lock:
                writer = self._own.open()
                for number, step in steps:
                    writer.check_room(number, step)
                if joint is not None:
                    writer.check_room(None, joint)
                ids, joint_ids = writer.write(steps, joint, writer.streams_of(over, None))
                is_written = True
                writer.sender.raise_late()
        except WaitTimeoutError as error:
            error.num_written = int(is_written)
            raise
        except BaseException as error:
            writer_now = self._own.writer
            if writer_now is not None and not is_written and not isinstance(error, Exception):
                # What comes next may not follow what came before: this is missing between.
                present = [(number, step.environments) for number, step in steps]
                streams = writer_now.streams_of([*present, *over], None if joint is None else joint.environments)
                writer_now.cuts.cut_before_next_frame(streams)
            raise
        by_agent = {self._agents[number]: own for (number, _), own in zip(steps, ids, strict=True)}
        return MomentIds(by_agent, joint_ids)

    def end_streams(self, agents: Mapping[str, Array] | None = None, environments: Array | None = None) -> None:
        """Lives of agents, and episodes of environments, stop here: no item goes past their newest frames.

        Args:
          agents: by agent int64 `[n]`, the environments in which its life ends.
          environments: int64 `[m]`, those whose moments end an episode in the table of moments.

        Raises:
          ValueError: there is no such agent, or environment.
          WaitTimeoutError: the server does not answer within `timeout_s`. They have ended all the same.
        """
        over = self._checker.ended(agents or {}, ())
        joint = None if environments is None else self._checker.rows("environments", environments)
        with self._own.lock:
            if self._own.writer is not None:
                self._own.writer.end_streams(self._own.writer.streams_of(over, joint))

    def flush(self) -> None:
        """Returns when the server has confirmed all that was written.

        Raises:
          WaitTimeoutError: it has not within `timeout_s`; the message has the numbers, and names a table whose
            limiter holds items back.
        """
        for reader in self._readers.values():
            reader.flush()

    def clear(self) -> None:
        """Empties all tables and their counters; all lives and episodes go on anew."""
        self._check_open()
        self.end_stream()
        empty_all(self._link, self._own, list(self._readers.values()))

    def close(self) -> None:
        """Flushes, then ends the writer, the readers, and the server if it is owned. Closing twice is fine.

        Raises:
          WaitTimeoutError: what is pending was not confirmed in time; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            # Nobody draws from a server that stops.
            num_streams = (len(self._agents) + (self._joint_table is not None)) * self._batch_size
            self._own.close(num_streams, to_the_end=self._owned_server is None)
        finally:
            for reader in self._readers.values():
                reader.close()
            self._link.end_waits()
            if self._owned_server is not None:
                self._owned_server.stop()

    def __enter__(self) -> ReverbAgentTables:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _served_tables(self) -> tuple[str, ...]:
        return tuple(self._readers)

    def _settle(self) -> None:
        for reader in self._readers.values():
            reader._settle()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(CLOSED)

    def _make_targets(self, found: FoundTables) -> AgentTargets:
        """What the writer fills.

        Raises:
          ValueError: a reader is of other frames than these agents have.
        """
        layouts: dict[str, PackedLayout] = {}
        policies = []
        for name in self._table_of.values():
            layout, agents = self._layout_of(name, found), found.agents_at(name)
            assert isinstance(layout, PackedLayout)  # that of an AgentFrame is
            layouts.update(dict.fromkeys(agents, layout))
            first = self._agents.index(agents[0])
            policies.append((self._readers[name]._target(None), range(first, first + len(agents))))
        if self._joint_table is None:
            return AgentTargets(tuple(layouts[agent] for agent in self._agents), tuple(policies))
        joint = self._layout_of(self._joint_table, found)
        assert isinstance(joint, JointLayout)  # found has seen it
        order = tuple(self._agents.index(agent) for agent in joint.agents)
        of_agents = tuple(joint.agents[agent] for agent in self._agents)
        target = self._readers[self._joint_table]._target(None)
        return AgentTargets(of_agents, tuple(policies), target, joint.header, order)

    def _layout_of(self, name: str, found: FoundTables) -> IdLayout:
        layout, fields = self._readers[name]._id_layout(), DataSpec(found.spec_at(name)).fields
        if layout.spec.fields != fields:
            raise ValueError(
                f"the reader of table {name!r} is not of these agents: it has the fields "
                f"{', '.join(field.path for field in layout.spec.fields)}, they have "
                f"{', '.join(field.path for field in fields)}, or of other shapes and dtypes."
            )
        return layout

    def _writer_maker(
        self, targets: AgentTargets, max_chunk_length: int | None, max_pending_items: int
    ) -> Callable[[], AgentItemWriter]:
        # The writer must not hold this object: it would never go.
        link, batch_size = self._link, self._batch_size
        shortest = min(reader._table.item_length or 16 for reader in self._readers.values())
        chunk_length = max_chunk_length or min(default_chunk_length(layout, shortest) for layout in targets.layouts)
        return lambda: AgentItemWriter(
            link, targets, batch_size=batch_size, chunk_length=chunk_length, max_pending_items=max_pending_items
        )


def _check_names(names: Sequence[str], readers: Mapping[str, Reader]) -> tuple[str, ...]:
    if not names:
        raise ValueError("give a table: independent={policy: name}, lockstep=name, or both.")
    if len(set(names)) != len(names):
        raise ValueError(f"a table comes twice: {tuple(names)!r}.")
    for name, reader in readers.items():
        if name not in names:
            raise ValueError(f"readers: {name!r} is none of the tables {', '.join(names)}.")
        if reader.table_name != name:
            raise ValueError(f"readers[{name!r}] reads table {reader.table_name!r}.")
    return tuple(names)
