"""What a served table is, as its server and its signature tell it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from .agent_frames import AgentFrame
from .item_selectors import Fifo, Remover, Sampler, draws_at_random, selector_from
from .rate_limiters import LimiterBounds, bounds_from
from .reverb_items import ItemKind, kind_from
from .reverb_layout import PlainLayout, check_fields, packed_signature
from .reverb_layouts import Layout, check_moments, layout_for
from .reverb_link import ServerLink
from .spec import DataSpec
from .tables import SCAN_SUFFIX
from .windows import Window


@dataclasses.dataclass(frozen=True)
class ServedTable:
    """Facts about a table that do not change while it is served.

    Attributes:
      name: its name.
      capacity: items that it holds.
      layout: how a frame lies in its columns.
      kind: what an item is; None in plain tables of which nobody has said it.
      scan_table: the second table by which it can be read in order, or None.
      removes_oldest: only the oldest items leave it, when it is full.
      is_ordered: its sampler draws in a fixed order (FIFO, LIFO, heap).
      is_deterministic: its sampler and its remover both do.
      max_times_sampled: draws after which an item is removed; 0: never.
      sampler: which item is drawn; `Prioritized` with its exponent.
      remover: which item goes when it is full.
      limiter: when it lets writers insert and readers sample.
      initial: raw priority of items that are written without one: a number, `'max'` (that of `max_mirror`'s item) or
        `'random'` (U(0, 1)).
      max_mirror: a table of the same items, with the same priorities, that draws the greatest; or None.
      min_mirror: one that draws the least; or None.
      fields: what of its writers' data_spec it holds, as paths; None: all.
    """

    name: str
    capacity: int
    layout: Layout
    kind: ItemKind | None
    scan_table: str | None
    removes_oldest: bool
    is_ordered: bool
    is_deterministic: bool
    max_times_sampled: int
    sampler: Sampler
    remover: Remover
    limiter: LimiterBounds
    initial: float | Literal["max", "random"]
    max_mirror: str | None
    min_mirror: str | None
    fields: tuple[str, ...] | None

    @property
    def item_length(self) -> int | None:
        """Frames in an item, padding included; None where they differ."""
        return self.kind.length if isinstance(self.kind, Window) else None

    @property
    def frames_per_item(self) -> int:
        """Frames that a window stands for: those by which the next one starts later."""
        if not (self.layout.has_ids and isinstance(self.kind, Window)):
            return 1
        return min(self.kind.stride, self.kind.num_steps)

    @property
    def tables_of_priorities(self) -> tuple[str, ...]:
        """The tables that hold its items with their priorities: itself and its mirrors. All are updated together."""
        return tuple(name for name in (self.name, self.max_mirror, self.min_mirror) if name is not None)

    @property
    def counts_draws(self) -> bool:
        """Each draw is one that others do not get: a limiter counts them, or an item goes after so many."""
        return self.limiter.is_bounded or self.max_times_sampled > 0

    @property
    def can_pass_by_removing(self) -> bool:
        """Whether drawing until it is empty is an ordered pass, as TF-Agents makes it."""
        return self.is_deterministic and (not self.layout.has_ids or self.max_times_sampled == 1)

    def why_no_scan(self) -> str:
        """What is missing for reading the table in order."""
        if self.layout.has_ids:
            return (
                f"table {self.name!r} cannot be read in order: it has no scan table; make it with "
                "TableConfig(..., scannable=True) or ReverbReplayBuffer.local(..., scannable=True)."
            )
        return (
            f"table {self.name!r} cannot be read in order: it was not made by a TableConfig with scannable=True, "
            "and either the sampler or the remover is not deterministic (FIFO or Heap)."
        )


def served_table(
    link: ServerLink,
    spec: DataSpec,
    *,
    sequence_length: int | None = None,
    stride: int | None = None,
    burn_in: int | None = None,
    short: str | None = None,
) -> ServedTable:
    """The link's table, checked against what the caller says of it.

    Args:
      link: the table.
      spec: what the caller says that a frame holds.
      sequence_length: what the caller says; None: as the table says, or differing.
      stride: what the caller says; None: as the table says, or 1.
      burn_in: what the caller says; None: as the table says, or 0.
      short: what the caller says; None: as the table says, or `'drop'`.

    Raises:
      ValueError: the table was made for other fields or other items.
      ValueError: `burn_in` or `short='pad'` for a table with plain columns.
    """
    info = link.first_info
    about = packed_signature(info.signature, link.table)
    layout: Layout
    kind: ItemKind | None
    if about is None:
        if burn_in or short == "pad":
            raise ValueError(
                f"table {link.table!r} has plain columns, which have no place for what is padding: burn_in and "
                "short='pad' need a table of a TableConfig with layout='packed'."
            )
        layout = PlainLayout(spec)
        kind = None if sequence_length is None else Window(sequence_length, stride=stride or 1)
    else:
        check_fields(spec, about, link.table)
        agents = about["table"].get("agents")
        if agents is not None and spec.nest.__class__ is not AgentFrame:
            check_moments(f"table {link.table!r}", spec.nest, agents)
        layout, kind = layout_for(spec, agents), kind_from(about["items"])
        given = {"sequence_length": sequence_length, "stride": stride, "burn_in": burn_in, "short": short}
        for name, value in given.items():
            if value is not None and value != about["items"].get(name):
                raise ValueError(f"table {link.table!r} was made for {_stored(about, name)}, got {name}={value!r}.")
    scan_table = link.table + SCAN_SUFFIX
    sampler, remover = selector_from(info.sampler_options), selector_from(info.remover_options)
    about_table = (about or {}).get("table", {})
    fields = about_table.get("fields")
    return ServedTable(
        name=link.table,
        capacity=int(info.max_size),
        layout=layout,
        kind=kind,
        scan_table=scan_table if about is not None and scan_table in link.table_names else None,
        removes_oldest=isinstance(remover, Fifo) and not info.max_times_sampled,
        is_ordered=not draws_at_random(sampler),
        is_deterministic=not (draws_at_random(sampler) or draws_at_random(remover)),
        max_times_sampled=int(info.max_times_sampled),
        sampler=sampler,
        remover=remover,
        limiter=bounds_from(info.rate_limiter_info),
        initial=about_table.get("initial", 1.0),
        max_mirror=about_table.get("max_mirror"),
        min_mirror=about_table.get("min_mirror"),
        fields=None if fields is None else tuple(fields),
    )


def _stored(about: Mapping[str, Any], name: str) -> str:
    items = about["items"]
    return f"{name}={items[name]!r}" if name in items else "whole episodes"
