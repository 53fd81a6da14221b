"""Which layouts a table can have: packed or plain frames, or moments of many agents, in columns by agent.

A table of moments (`JointFrame`) has a *header*, the columns of what belongs to the moment itself, and for each agent
the columns of its `AgentFrame` as a table of that agent's policy has them: they are the same stored cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from .agent_frames import AgentFrame, JointFrame, agent_frame_spec
from .nests import Array, Nest
from .reverb_layout import PackedLayout, PlainLayout, StepPacker, dataset_types_of, signature_of
from .spec import DataSpec


class JointLayout:
    """Moments as bytes: the header's columns, then those of each agent's `AgentFrame`, in the order of their names.

    The id and the flags of a moment are the header's. Where an agent is absent its columns hold padding.

    Args:
      spec: of a `JointFrame`.
      has_stream: by agent, in the order of the spec, whether its cells tell their stream (`AgentFrame`).

    Attributes:
      header: the layout of what belongs to the moment itself.
      agents: by agent that of its frames, in the order of their names.

    Raises:
      ValueError: the spec is of something else, or of other agents.

    >>> floats, number = tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int64)
    >>> moment = JointFrame({"a": floats}, tf.TensorSpec([1], tf.uint8), number)
    >>> JointLayout(DataSpec(moment), {"a": False}).column_bytes
    (18, 25)
    """

    has_ids = True

    def __init__(self, spec: DataSpec, has_stream: Mapping[str, bool]) -> None:
        check_moments("a table of moments", spec.nest, has_stream)
        self.spec = spec
        moment: JointFrame = spec.nest
        self.header = PackedLayout(DataSpec(moment._replace(frames={})))
        self.agents = {
            agent: PackedLayout(DataSpec(agent_frame_spec(moment.frames[agent], has_stream=has_stream[agent])))
            for agent in sorted(has_stream)
        }
        # Of each agent its columns, and how many leaves its own nest has: those before time and stream.
        self._parts: list[tuple[PackedLayout, slice, int]] = []
        first = self.header.num_columns
        for agent, layout in self.agents.items():
            num_leaves = len(layout.spec.fields) - 1 - has_stream[agent]
            self._parts.append((layout, slice(first, first + layout.num_columns), num_leaves))
            first += layout.num_columns
        layouts = (self.header, *self.agents.values())
        self.column_bytes = tuple(size for layout in layouts for size in layout.column_bytes)

    @property
    def num_columns(self) -> int:
        """Columns of an item in the table."""
        return len(self.column_bytes)

    @property
    def padding(self) -> list[Array]:
        """A moment of padding: columns `[bytes]` of uint8."""
        return [column for layout in (self.header, *self.agents.values()) for column in layout.padding]

    def signature(
        self, item_length: int | None, about_items: Mapping[str, Any], about_table: Mapping[str, Any] | None = None
    ) -> dict[str, tf.TensorSpec]:
        """As `PackedLayout.signature`."""
        return signature_of(self.spec, self.column_bytes, item_length, about_items, about_table)

    def dataset_types(self, item_length: int | None) -> tuple[tuple[tf.DType, ...], tuple[tf.TensorShape, ...]]:
        """Dtypes and shapes of an item's columns, for `reverb.TrajectoryDataset`."""
        return dataset_types_of(self.column_bytes, item_length)

    def pack(self, leaves: Sequence[Array], ids: Array, is_final: Array | None) -> list[Array]:
        """Refuses: who writes moments writes cells of agents, and says who is absent.

        Raises:
          TypeError: always.
        """
        raise TypeError("moments are not packed as one: ReverbAgentTables writes the frames of each agent.")

    def pack_steps(self, leaves: Sequence[Array]) -> StepPacker:
        """Refuses, as `pack` does.

        Raises:
          TypeError: always.
        """
        raise TypeError("moments are not packed as one: ReverbAgentTables writes the frames of each agent.")

    def unpack(
        self, columns: Sequence[tf.Tensor], outer: Sequence[int | tf.Tensor]
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Ids `[*outer]` and the spec's leaves `[*outer, ...]` from columns `[*outer, bytes]`."""
        ids, of_moment = self.header.unpack(columns[: self.header.num_columns], outer)
        leaves: list[tf.Tensor] = []
        for layout, own, num_leaves in self._parts:
            leaves += layout.unpack(columns[own], outer)[1][:num_leaves]
        return ids, leaves + of_moment

    def unpack_numpy(self, columns: Sequence[Array]) -> list[Array]:
        """The spec's leaves `[N, ...]` from columns `[N, bytes]`, in NumPy."""
        leaves: list[Array] = []
        for layout, own, num_leaves in self._parts:
            leaves += layout.unpack_numpy(columns[own])[:num_leaves]
        return leaves + self.header.unpack_numpy(columns[: self.header.num_columns])

    def ids_of(self, record_column: Array) -> Array:
        """Ids `[...]` from the header's record `[..., bytes]`, in NumPy."""
        return self.header.ids_of(record_column)

    def ids_in_graph(self, record_column: tf.Tensor) -> tf.Tensor:
        """Ids int64 `[...]` from the header's record `[..., bytes]`, in the graph."""
        return self.header.ids_in_graph(record_column)

    def is_final(self, record_column: Any) -> Any:
        """Whether moments are only final observations: bool `[...]` from the header's record `[..., bytes]`."""
        return self.header.is_final(record_column)


IdLayout = PackedLayout | JointLayout
"""Those whose frames have ids."""

Layout = IdLayout | PlainLayout


def layout_for(spec: DataSpec, agents: Mapping[str, bool] | None) -> IdLayout:
    """How frames, or moments of these agents, lie in a table of a `TableConfig`.

    >>> layout_for(DataSpec(tf.TensorSpec([2], tf.float32)), None).column_bytes
    (17,)
    """
    is_joint = agents is not None and spec.nest.__class__ is not AgentFrame
    return JointLayout(spec, agents) if agents is not None and is_joint else PackedLayout(spec)


def check_moments(where: str, data_spec: Nest, agents: Mapping[str, bool]) -> None:
    """Refuses a `data_spec` that is not that of moments of these agents, in this order.

    Moments tell who is present by the place of agents: another order would take one agent for another.

    Raises:
      ValueError: it is not.

    >>> check_moments("table 'all'", tf.TensorSpec([], tf.int64), {"a": True})
    Traceback (most recent call last):
    ...
    ValueError: table 'all' holds moments of the agents 'a': its data_spec must be a JointFrame, got TensorSpec.
    """
    names = ", ".join(map(repr, agents))
    # A tf.Module wraps what it holds: the class is what was wrapped.
    if data_spec.__class__ is not JointFrame:
        raise ValueError(
            f"{where} holds moments of the agents {names}: its data_spec must be a JointFrame, "
            f"got {type(data_spec).__name__}."
        )
    if list(data_spec.frames) != list(agents):
        raise ValueError(
            f"{where} holds moments of the agents {names}, in this order, and data_spec is of "
            f"{', '.join(map(repr, data_spec.frames))}."
        )
