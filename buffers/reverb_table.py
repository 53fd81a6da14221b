"""What a served table is, as its server and its signature tell it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .reverb_layout import Layout, PackedLayout, PlainLayout, check_fields, packed_signature
from .reverb_link import ServerLink
from .spec import DataSpec
from .tables import SCAN_SUFFIX


@dataclasses.dataclass(frozen=True)
class ServedTable:
    """Facts about a table that do not change while it is served.

    Attributes:
      name: its name.
      capacity: items that it holds.
      layout: how a frame lies in its columns.
      sequence_length: frames in an item; None where they differ.
      stride: frames from one item's start to the next.
      scan_table: the second table by which it can be read in order, or None.
      is_ordered: its sampler draws in a fixed order (FIFO, LIFO, heap).
      is_deterministic: its sampler and its remover both do.
      max_times_sampled: draws after which an item is removed; 0: never.
    """

    name: str
    capacity: int
    layout: Layout
    sequence_length: int | None
    stride: int
    scan_table: str | None
    is_ordered: bool
    is_deterministic: bool
    max_times_sampled: int

    @property
    def frames_per_item(self) -> int:
        """Frames that an item stands for: those by which the next one starts later."""
        return min(self.stride, self.sequence_length or 1) if self.layout.has_ids else 1

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


def served_table(link: ServerLink, spec: DataSpec, sequence_length: int | None, stride: int | None) -> ServedTable:
    """The link's table, checked against what the caller says of it.

    Args:
      link: the table.
      spec: what the caller says that a frame holds.
      sequence_length: what the caller says; None: as the table says, or differing.
      stride: what the caller says; None: as the table says, or 1.

    Raises:
      ValueError: the table was made for other fields, another `sequence_length` or `stride`.
    """
    info = link.first_info
    about = packed_signature(info.signature)
    layout: Layout
    if about is None:
        layout, stride = PlainLayout(spec), stride or 1
    else:
        check_fields(spec, about, link.table)
        layout = PackedLayout(spec)
        sequence_length = _agreed("sequence_length", sequence_length, about, link.table)
        stride = _agreed("stride", stride, about, link.table)
    scan_table = link.table + SCAN_SUFFIX
    sampler, remover = info.sampler_options, info.remover_options
    return ServedTable(
        name=link.table,
        capacity=int(info.max_size),
        layout=layout,
        sequence_length=sequence_length,
        stride=stride,
        scan_table=scan_table if about is not None and scan_table in link.table_names else None,
        is_ordered=bool(sampler.is_deterministic),
        is_deterministic=bool(sampler.is_deterministic and remover.is_deterministic),
        max_times_sampled=int(info.max_times_sampled),
    )


def _agreed(name: str, given: int | None, about: Mapping[str, Any], table: str) -> int:
    stored = int(about[name])
    if given is not None and given != stored:
        raise ValueError(f"table {table!r} was made for {name}={stored}, got {name}={given}.")
    return stored
