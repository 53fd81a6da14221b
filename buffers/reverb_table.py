"""What a served table is, as its server and its signature tell it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .reverb_items import ItemKind, kind_from
from .reverb_layout import Layout, PackedLayout, PlainLayout, check_fields, packed_signature
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
        layout, kind = PackedLayout(spec), kind_from(about["items"])
        given = {"sequence_length": sequence_length, "stride": stride, "burn_in": burn_in, "short": short}
        for name, value in given.items():
            if value is not None and value != about["items"].get(name):
                raise ValueError(f"table {link.table!r} was made for {_stored(about, name)}, got {name}={value!r}.")
    scan_table = link.table + SCAN_SUFFIX
    sampler, remover = info.sampler_options, info.remover_options
    return ServedTable(
        name=link.table,
        capacity=int(info.max_size),
        layout=layout,
        kind=kind,
        scan_table=scan_table if about is not None and scan_table in link.table_names else None,
        removes_oldest=bool(remover.fifo) and not info.max_times_sampled,
        is_ordered=bool(sampler.is_deterministic),
        is_deterministic=bool(sampler.is_deterministic and remover.is_deterministic),
        max_times_sampled=int(info.max_times_sampled),
    )


def _stored(about: Mapping[str, Any], name: str) -> str:
    items = about["items"]
    return f"{name}={items[name]!r}" if name in items else "whole episodes"
