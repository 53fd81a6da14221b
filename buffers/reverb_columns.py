"""How a frame lies in columns that several tables share, each with its own choice of fields. Pure.

Each table's items have the columns of its own `PackedLayout`: a record of its small fields, and one column for each
of its large ones. Columns of the same fields are the same bytes, so that they are written once and all tables refer to
them: large fields always, records where two tables hold the same small fields. (The price of another choice of
small fields is another record, of less than 1 KiB a field.)
"""

from __future__ import annotations

from collections.abc import Sequence

from .nests import Array
from .reverb_layout import PackedLayout, StepPacker
from .spec import DataSpec

_Key = tuple[bool, tuple[str, ...]]


class SharedColumns:
    """The columns of several layouts, each once.

    Args:
      spec: what a frame holds.
      layouts: of the tables, each of some of the spec's fields.

    Attributes:
      of_layout: for each layout, which of the columns are its own, in its order.

    Raises:
      ValueError: a layout has a field that the spec lacks, or has in another shape or dtype.

    >>> import tensorflow as tf
    >>> image, reward = tf.TensorSpec([84, 84], tf.uint8), tf.TensorSpec([], tf.float32)
    >>> whole, part = DataSpec({"image": image, "reward": reward}), DataSpec({"image": image})
    >>> SharedColumns(whole, [PackedLayout(whole), PackedLayout(part), PackedLayout(whole)]).of_layout
    ((0, 1), (2, 1), (0, 1))
    """

    has_ids = True

    def __init__(self, spec: DataSpec, layouts: Sequence[PackedLayout]) -> None:
        index_of = {field.path: index for index, field in enumerate(spec.fields)}
        columns: dict[_Key, int] = {}
        of_layout: list[tuple[int, ...]] = []
        # What to pack: a layout, the spec's leaves that it takes, and which of its columns are new.
        self._packed: list[tuple[PackedLayout, list[int], list[int]]] = []
        self._padding: list[Array] = []
        column_bytes: list[int] = []
        for layout in layouts:
            leaves = [index_of.get(field.path, -1) for field in layout.spec.fields]
            for field, index in zip(layout.spec.fields, leaves, strict=True):
                if index < 0 or (spec.fields[index].shape, spec.fields[index].dtype) != (field.shape, field.dtype):
                    raise ValueError(
                        f"a table holds the field {field.path!r}, {list(field.shape)} {field.dtype.name}, and "
                        "data_spec does not."
                    )
            keys = [(number == 0, paths) for number, paths in enumerate(layout.column_fields)]
            new = [number for number, key in enumerate(keys) if key not in columns]
            for number in new:
                columns[keys[number]] = len(columns)
                self._padding.append(layout.padding[number])
                column_bytes.append(layout.column_bytes[number])
            if new:
                self._packed.append((layout, leaves, new))
            of_layout.append(tuple(columns[key] for key in keys))
        self.of_layout = tuple(of_layout)
        self.column_bytes = tuple(column_bytes)

    @property
    def num_columns(self) -> int:
        """Columns of a frame."""
        return len(self.column_bytes)

    @property
    def padding(self) -> list[Array]:
        """A frame of padding: columns `[bytes]` of uint8."""
        return list(self._padding)

    def pack(self, leaves: Sequence[Array], ids: Array, is_final: Array | None) -> list[Array]:
        """Columns `[N, bytes]` of uint8 for leaves `[N, ...]`, ids `[N]` and flags `[N]` (None: all False)."""
        columns: list[Array] = []
        for layout, wanted, new in self._packed:
            packed = layout.pack([leaves[index] for index in wanted], ids, is_final)
            columns += [packed[number] for number in new]
        return columns

    def pack_steps(self, leaves: Sequence[Array]) -> StepPacker:
        """What gives the columns `[B, bytes]` of each step of leaves `[B, T, ...]`."""
        parts = [(layout.pack_steps([leaves[index] for index in wanted]), new) for layout, wanted, new in self._packed]

        def pack_step(t: int, ids: Array, is_final: Array | None) -> list[Array]:
            columns: list[Array] = []
            for pack, new in parts:
                packed = pack(t, ids, is_final)
                columns += [packed[number] for number in new]
            return columns

        return pack_step
