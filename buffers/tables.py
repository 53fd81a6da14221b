"""What a Reverb table is: a declaration, checked when it is made, and built into real tables later.

To add a selector or a rate limiter: one frozen dataclass below with its `build`, and its name in
the alias (`Sampler`, `Remover`, `RateLimiter`) where it may stand.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from .base import check_count
from .nests import Nest
from .reverb_import import load_reverb
from .reverb_items import ItemKind, OverLong, WholeEpisodes, describe_kind
from .reverb_layout import Layout, PackedLayout, PlainLayout
from .spec import DataSpec
from .windows import Window

SCAN_SUFFIX = "__scan"


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Every item has the same chance.

    >>> Uniform()
    Uniform()
    """

    def build(self, reverb: Any) -> Any:
        """A new selector object: Reverb tables must never share one (it kills the server)."""
        return reverb.selectors.Uniform()


@dataclasses.dataclass(frozen=True)
class Fifo:
    """The oldest item. As a sampler it gives the same item again until that is removed.

    >>> Fifo()
    Fifo()
    """

    def build(self, reverb: Any) -> Any:
        """A new selector object."""
        return reverb.selectors.Fifo()


@dataclasses.dataclass(frozen=True)
class Lifo:
    """The newest item. As a remover: once the table is full, it drops what was just inserted, and so keeps the oldest.

    >>> Lifo()
    Lifo()
    """

    def build(self, reverb: Any) -> Any:
        """A new selector object."""
        return reverb.selectors.Lifo()


@dataclasses.dataclass(frozen=True)
class MinSize:
    """Sampling waits until the table holds `min_size_to_sample` items; inserting never waits.

    Raises:
      TypeError: `min_size_to_sample` is no int.
      ValueError: it is below 1.

    >>> MinSize(100)
    MinSize(min_size_to_sample=100)
    """

    min_size_to_sample: int = 1

    def __post_init__(self) -> None:
        check_count("min_size_to_sample", self.min_size_to_sample)

    def build(self, reverb: Any) -> Any:
        """A new limiter object."""
        return reverb.rate_limiters.MinSize(self.min_size_to_sample)


Sampler = Uniform | Fifo
Remover = Fifo | Lifo
RateLimiter = MinSize


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """A Reverb table in the field's own words.

    Args:
      name: the table's name.
      data_spec: nest of `tf.TensorSpec` of one frame.
      max_size: items that the table holds; then the remover makes room.
      sampler: which item is drawn.
      remover: which item goes when the table is full.
      rate_limiter: when sampling waits.
      max_times_sampled: an item is removed after so many draws; 0: never.
      sequence_length: frames in an item from the drawn one on, `L`; None: an item is a whole episode.
      stride: frames from one item's start to the next one's, inside an episode.
      scannable: keep a second table of the same items over the same data, by which ordered passes
        read everything without removing anything.
      layout: `'packed'` for tables that replayfeed writes; `'plain'`, one column a field and no
        frame ids, for tables that TF-Agents' observers write.
      burn_in: frames of context in an item before the drawn one; padding where the episode has fewer.
      short: what becomes of items that an episode's end cuts short: `'drop'` or `'pad'`. Items are exactly those of
        `Window(sequence_length, burn_in, stride, short)`.
      max_episode_length: frames that an episode may have, where an item is a whole episode. So many of each stream's
        newest frames stay in the writer's memory.
      over_long: what becomes of longer episodes. `'error'`: the frame too many is refused. `'drop'`: the
        episode is left out. `'cut'`: it becomes several items of at most so many frames.

    Raises:
      TypeError: a count is no int, or a selector or limiter is none of those that can stand there.
      ValueError: the name is empty, or ends as scan tables do.
      ValueError: `data_spec` cannot be stored (see `DataSpec`).
      ValueError: a count is too small, or `short` or `over_long` is none of its words.
      ValueError: `sequence_length` is None without `max_episode_length`, or with what only windows have; or
        the reverse.
      ValueError: plain columns with `burn_in`, `short='pad'` or whole episodes: they have no place for what is padding.
      ValueError: `scannable` with a remover that is not Fifo, with `max_times_sampled`, or with plain columns.

    >>> import tensorflow as tf
    >>> TableConfig("replay", tf.TensorSpec([], tf.float32), 100, stride=2).sampler
    Uniform()
    >>> TableConfig("episodes", tf.TensorSpec([], tf.float32), 100, sequence_length=None, max_episode_length=500).kind
    WholeEpisodes(max_length=500, over_long='error')
    """

    name: str
    data_spec: Nest
    max_size: int
    sampler: Sampler = Uniform()
    remover: Remover = Fifo()
    rate_limiter: RateLimiter = MinSize(1)
    max_times_sampled: int = 0
    sequence_length: int | None = 1
    stride: int = 1
    scannable: bool = False
    layout: Literal["packed", "plain"] = "packed"
    _: dataclasses.KW_ONLY
    burn_in: int = 0
    short: Literal["drop", "pad"] = "drop"
    max_episode_length: int | None = None
    over_long: OverLong = "error"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"TableConfig.name must be a str, got {self.name!r}.")
        if not self.name or self.name.endswith(SCAN_SUFFIX):
            raise ValueError(
                f"TableConfig.name must be a name that does not end in {SCAN_SUFFIX!r}, got {self.name!r}."
            )
        DataSpec(self.data_spec)
        for count in ("max_size", "stride"):
            check_count(f"TableConfig.{count}", getattr(self, count))
        check_count("TableConfig.sequence_length", self.sequence_length, optional=True)
        if self.max_times_sampled != 0:
            check_count("TableConfig.max_times_sampled", self.max_times_sampled)
        _check_kind("sampler", self.sampler, get_args(Sampler))
        _check_kind("remover", self.remover, get_args(Remover))
        _check_kind("rate_limiter", self.rate_limiter, (MinSize,))
        if self.layout not in ("packed", "plain"):
            raise ValueError(f"TableConfig.layout must be 'packed' or 'plain', got {self.layout!r}.")
        if self.rate_limiter.min_size_to_sample > self.max_size:
            raise ValueError(
                f"table {self.name!r} holds at most max_size={self.max_size} items and could never be sampled: "
                f"its limiter asks for {self.rate_limiter.min_size_to_sample}."
            )
        if self.scannable:
            self._check_scannable()
        self._check_items()

    @property
    def kind(self) -> ItemKind:
        """What an item is."""
        if self.sequence_length is not None:
            return Window(self.sequence_length, self.burn_in, self.stride, self.short)
        assert self.max_episode_length is not None  # checked
        return WholeEpisodes(self.max_episode_length, self.over_long)

    @property
    def scan_table(self) -> str:
        """The name of the second table that `scannable` keeps."""
        return self.name + SCAN_SUFFIX

    def make_layout(self) -> Layout:
        """How a frame lies in the table's columns."""
        spec = DataSpec(self.data_spec)
        return PackedLayout(spec) if self.layout == "packed" else PlainLayout(spec)

    def build(self) -> list[Any]:
        """The `reverb.Table`s: this one, and the scan table where `scannable`.

        Raises:
          ImportError: reverb is absent or does not fit.
        """
        reverb = load_reverb()
        kind = self.kind
        length = kind.length if isinstance(kind, Window) else None
        signature = self.make_layout().signature(length, describe_kind(kind))
        tables = [
            reverb.Table(
                name=self.name,
                sampler=self.sampler.build(reverb),
                remover=self.remover.build(reverb),
                max_size=self.max_size,
                rate_limiter=self.rate_limiter.build(reverb),
                max_times_sampled=self.max_times_sampled,
                signature=signature,
            )
        ]
        if self.scannable:
            # The same items leave at the same time: one writer inserts into both in the same order.
            tables.append(
                reverb.Table(
                    name=self.scan_table,
                    sampler=reverb.selectors.Prioritized(1.0),
                    remover=reverb.selectors.Fifo(),
                    max_size=self.max_size,
                    rate_limiter=reverb.rate_limiters.MinSize(1),
                    signature=signature,
                )
            )
        return tables

    def _check_items(self) -> None:
        """Whether what is said of items goes together; the kinds check their own numbers."""
        if self.sequence_length is None:
            if self.max_episode_length is None:
                raise ValueError(
                    f"table {self.name!r}: sequence_length=None makes whole episodes items; give max_episode_length, "
                    "the frames that an episode may have."
                )
            for name, plain in (("stride", 1), ("burn_in", 0), ("short", "drop")):
                if getattr(self, name) != plain:
                    raise ValueError(
                        f"table {self.name!r}: {name}={getattr(self, name)!r} is of windows; items are whole episodes "
                        "with sequence_length=None, and windows are cut when they are read."
                    )
        elif self.max_episode_length is not None or self.over_long != "error":
            raise ValueError(
                f"table {self.name!r}: max_episode_length and over_long are of whole episodes; give "
                "sequence_length=None with them."
            )
        needs_padding = isinstance(self.kind, WholeEpisodes) or not self.kind.is_plain
        if self.layout == "plain" and needs_padding:
            raise ValueError(
                f"table {self.name!r}: plain columns have no place for what is padding: burn_in, short='pad' and "
                "sequence_length=None need layout='packed'."
            )

    def _check_scannable(self) -> None:
        if not isinstance(self.remover, Fifo):
            raise ValueError(
                f"table {self.name!r}: scannable=True needs remover Fifo(), got {self.remover!r}; give scannable=False."
            )
        if self.max_times_sampled:
            raise ValueError(
                f"table {self.name!r}: scannable=True needs max_times_sampled=0, got {self.max_times_sampled}; "
                "give scannable=False."
            )
        if self.layout != "packed":
            raise ValueError(
                f"table {self.name!r}: scannable=True needs layout='packed', got {self.layout!r}; give scannable=False."
            )


def _check_kind(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds):
        allowed = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"TableConfig.{name} must be one of {allowed}, got {value!r}.")
