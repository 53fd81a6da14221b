"""The tables that hold what many agents do: declared for a server, and found on one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .agent_frames import AgentFrame, JointFrame, agent_frame_spec, joint_frame_spec
from .agent_policies import AgentPolicies
from .counts import check_count
from .episode_ends import EpisodeRule
from .nests import Nest
from .reverb_items import ItemKind, kind_from
from .reverb_layout import packed_signature
from .reverb_link import ServerLink
from .tables import TableConfig

PolicyOf = Mapping[str, str] | Callable[[str], str]


def agent_tables(
    data_specs: Mapping[str, Nest],
    policy_of: PolicyOf,
    *,
    independent: Mapping[str, TableConfig] | None = None,
    lockstep: TableConfig | None = None,
    batch_size: int = 1,
) -> list[TableConfig]:
    """The tables that `ReverbAgentTables` fills, for a `ReplayServer`: as given, of what is stored of many agents.

    Args:
      data_specs: by agent the nest of `tf.TensorSpec` of its frames.
      policy_of: by agent its policy: a dict, or a function of the agent.
      independent: by policy a table of the frames of its agents; without `lockstep` of every policy.
      lockstep: a table of the moments of all agents.
      batch_size: `B` of the writers. Where a policy has one agent and `B` is 1, frames tell no stream.

    Returns:
      The tables with the same settings, and what their readers give as `data_spec`: an `AgentFrame` or a `JointFrame`.

    Raises:
      TypeError, ValueError: as `AgentPolicies`.
      ValueError: there is no table, a policy that nobody has, or two tables of one name.
      ValueError: a table has `fields`, plain columns, or `agents` of its own.

    >>> import tensorflow as tf
    >>> spec = tf.TensorSpec([], tf.float32)
    >>> table = TableConfig("wolves", spec, 100)
    >>> agent_tables({"a": spec, "b": spec}, lambda agent: "wolf", independent={"wolf": table})[0].data_spec.stream
    TensorSpec(shape=(), dtype=tf.int32, name='stream')
    """
    known = AgentPolicies(data_specs, policy_of)
    check_count("batch_size", batch_size)
    check_policies(known, independent, lockstep is not None)
    tables = [*(independent or {}).values(), *([] if lockstep is None else [lockstep])]
    _check_tables(tables)
    has_stream = {agent: len(known.agents_of(known.policy_of(agent))) * batch_size > 1 for agent in known.agents}
    made = []
    for policy, table in (independent or {}).items():
        first = known.agents_of(policy)[0]
        spec = agent_frame_spec(known.specs[first].nest, has_stream=has_stream[first])
        whose = {agent: has_stream[agent] for agent in known.agents_of(policy)}
        made.append(dataclasses.replace(table, data_spec=spec, agents=whose))
    if lockstep is not None:
        told = any(EpisodeRule(spec).told_by_spec for spec in known.specs.values())
        joint = joint_frame_spec(known.data_specs, told_by_spec=told)
        made.append(dataclasses.replace(lockstep, data_spec=joint, agents=has_stream))
    return made


class FoundTables:
    """Tables of many agents on a server, checked against the agents that somebody names.

    Args:
      known: the agents.
      link: the server.
      table_of: by policy the name of its table.
      joint: the name of the table of moments, or None.

    Attributes:
      has_stream: by agent whether its stored frames tell their stream.

    Raises:
      ValueError: there is no such table, it is of something else, or tables disagree.
    """

    def __init__(self, known: AgentPolicies, link: ServerLink, table_of: Mapping[str, str], joint: str | None) -> None:
        self._known = known
        self._joint = joint
        self._policy_at = {name: policy for policy, name in table_of.items()}
        self._about = {name: _about(link, name) for name in (*table_of.values(), *(() if joint is None else (joint,)))}
        flags: dict[str, bool] = {}
        for name in self._about:
            for agent, has_stream in self._flags_at(name).items():
                if flags.setdefault(agent, has_stream) != has_stream:
                    raise ValueError(
                        f"table {name!r} and another one disagree whether frames of agent {agent!r} tell their stream: "
                        "make all tables by one call of agent_tables."
                    )
        # Frames of a policy without any table are stored for nobody.
        self.has_stream = {agent: flags.get(agent, False) for agent in known.agents}

    def agents_at(self, name: str) -> tuple[str, ...]:
        """The agents whose frames a policy's table holds."""
        return self._known.agents_of(self._policy_at[name])

    def kind_at(self, name: str) -> ItemKind:
        """What an item of the table is."""
        return kind_from(self._about[name]["items"])

    def spec_at(self, name: str) -> AgentFrame | JointFrame:
        """What the table's readers give as `data_spec`."""
        if name == self._joint:
            told = any(path == "is_last" for path, _, _ in self._about[name]["fields"])
            return joint_frame_spec(self._known.data_specs, told_by_spec=told)
        first = self.agents_at(name)[0]
        return agent_frame_spec(self._known.specs[first].nest, has_stream=self.has_stream[first])

    def _flags_at(self, name: str) -> dict[str, bool]:
        is_joint = name == self._joint
        what, agents = ("moments", self._known.agents) if is_joint else ("frames", self.agents_at(name))
        flags: dict[str, bool] | None = self._about[name]["table"].get("agents")
        if flags is None:
            raise ValueError(f"table {name!r} does not tell whose {what} it holds: make it by agent_tables.")
        if list(flags) != list(agents):
            raise ValueError(
                f"table {name!r} holds {what} of {', '.join(map(repr, flags))}, in this order, and data_specs are of "
                f"{', '.join(map(repr, agents))}."
            )
        return flags


def _about(link: ServerLink, name: str) -> dict[str, Any]:
    if name not in link.own_table_names:
        raise ValueError(f"there is no table {name!r} at {link.address}; it has {', '.join(link.own_table_names)}.")
    about = packed_signature(link.tables()[name].signature, name)
    if about is None or about["table"].get("fields") is not None:
        raise ValueError(f"table {name!r} has plain columns, or not all fields: make it by agent_tables.")
    return about


def check_policies(known: AgentPolicies, independent: Mapping[str, Any] | None, has_joint: bool) -> None:
    """Refuses tables of policies that nobody has, and policies whose frames no table would hold.

    Raises:
      ValueError: there are such.
    """
    known.check_policies("independent", independent or {})
    without = [policy for policy in known.policies if policy not in (independent or {})]
    if without and independent and not has_joint:
        raise ValueError(f"independent: policy {without[0]!r} has no table: give it one, or give lockstep=.")


def _check_tables(tables: Sequence[TableConfig]) -> None:
    names = [table.name for table in tables]
    if not names:
        raise ValueError("give a table: independent={policy: TableConfig}, lockstep=TableConfig, or both.")
    for table in tables:
        if names.count(table.name) > 1:
            raise ValueError(f"two tables are named {table.name!r}: give each policy's, and that of moments, its own.")
        if table.fields is not None or table.layout != "packed" or table.agents is not None:
            raise ValueError(
                f"table {table.name!r}: fields, agents and layout='plain' are not for tables of many agents: their "
                "frames are stored once, whole."
            )
