"""What a Reverb table is: a declaration, checked when it is made, and built into real tables later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from .agent_frames import AgentFrame
from .counts import check_count
from .item_selectors import Fifo, MaxHeap, MinHeap, Prioritized, Remover, Sampler, Selector, Uniform
from .nests import Nest
from .rate_limiters import MinSize, RateLimiter
from .reverb_import import load_reverb
from .reverb_items import ItemKind, OverLong, WholeEpisodes, describe_kind
from .reverb_layout import PlainLayout
from .reverb_layouts import Layout, check_moments, layout_for
from .spec import DataSpec
from .table_checks import check_limiter_fits, check_priorities_of_new_items, check_slot
from .table_fields import check_field_names, select_fields
from .table_text import arguments_from_plain, config_to_plain, from_json, from_yaml, to_json, to_yaml
from .table_words import cautions, describe
from .windows import Window

SCAN_SUFFIX = "__scan"
MAX_SUFFIX = "__max"
MIN_SUFFIX = "__min"
# Reverb counts items in 32 bits.
_MOST = 2**31 - 1
_SUFFIXES = (SCAN_SUFFIX, MAX_SUFFIX, MIN_SUFFIX)


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
      initial: raw priority of items that are written without one. `'max'`: the greatest that is in the table at the
        time, also when another process raised it; a second table of the same items tells it, and costs a second
        entry (no second copy of the data) an item. While several write at once the two may differ by an item or so
        at their oldest end (measured: 1 to 3 of 8,000, 8 writers). `'random'`: chosen in U(0, 1), which with remover
        `MinHeap` keeps every item of the stream with the same chance, whoever wrote it; such priorities are not to be
        updated.
      tracks_least: keep another second table, which tells the least priority in the table: what
        `weight_norm='buffer'` divides by.
      fields: the fields of `data_spec` that the table holds, as messages print their paths, so that several tables
        can be fed by one writer of `data_spec`; None: all. A path may name a whole part, `'observation'`.
      agents: of a table whose `data_spec` is a `JointFrame` or an `AgentFrame`: by agent, in their order, by which
        frames tell whose they are, whether its frames tell their stream. `agent_tables` sets it, and
        `ReverbAgentTables` writes such tables; None: of others.

    Raises:
      TypeError: a count is no int, or a selector or limiter is none of those that can stand there.
      ValueError: the name is empty, or ends as the tables beside a table do.
      ValueError: `data_spec` cannot be stored (see `DataSpec`), or lacks one of `fields`.
      ValueError: a count is too small or above 2^31 - 1, or `short` or `over_long` is none of its words.
      ValueError: `sequence_length` is None without `max_episode_length`, or with what only windows have; or
        the reverse.
      ValueError: plain columns with `burn_in`, `short='pad'` or whole episodes: they have no place for what is padding.
      ValueError: `scannable` with a remover that is not Fifo, with `max_times_sampled`, or with plain columns.
      ValueError: the limiter cannot be met with `max_size` or `max_times_sampled` (`table_checks.py`).
      ValueError: `agents` are not those of `data_spec`, or given with `fields` or plain columns.
      ValueError: `initial` or `tracks_least` in a table that cannot keep what they promise.

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
    initial: float | Literal["max", "random"] = 1.0
    tracks_least: bool = False
    fields: tuple[str, ...] | None = None
    agents: Mapping[str, bool] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"TableConfig.name must be a str, got {self.name!r}.")
        if not self.name or self.name.endswith(_SUFFIXES):
            raise ValueError(
                f"TableConfig.name must be a name that does not end in {', '.join(map(repr, _SUFFIXES))}, "
                f"got {self.name!r}."
            )
        DataSpec(self.data_spec)
        object.__setattr__(self, "fields", check_field_names(self.fields))
        for count in ("max_size", "stride"):
            check_count(f"TableConfig.{count}", getattr(self, count))
        check_count("TableConfig.sequence_length", self.sequence_length, optional=True)
        if self.max_times_sampled != 0:
            check_count("TableConfig.max_times_sampled", self.max_times_sampled)
        for count in ("max_size", "max_times_sampled"):
            if getattr(self, count) > _MOST:
                raise ValueError(
                    f"TableConfig.{count} can be {_MOST:,} at most in Reverb, got {getattr(self, count):,}."
                )
        for slot in ("sampler", "remover", "rate_limiter"):
            check_slot(slot, getattr(self, slot))
        if self.layout not in ("packed", "plain"):
            raise ValueError(f"TableConfig.layout must be 'packed' or 'plain', got {self.layout!r}.")
        DataSpec(self.held_spec)
        if self.agents is not None:
            self._check_agents(self.agents)
        check_limiter_fits(self)
        check_priorities_of_new_items(self)
        for name in ("scannable", "tracks_least"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"TableConfig.{name} must be True or False, got {getattr(self, name)!r}.")
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

    @property
    def max_mirror(self) -> str | None:
        """The name of the second table that `initial='max'` keeps."""
        return self.name + MAX_SUFFIX if self.initial == "max" else None

    @property
    def min_mirror(self) -> str | None:
        """The name of the second table that `tracks_least` keeps."""
        return self.name + MIN_SUFFIX if self.tracks_least else None

    @property
    def held_spec(self) -> Nest:
        """What a frame of this table holds: `data_spec`, or what `fields` leaves of it. Readers give it."""
        return select_fields(self.data_spec, self.fields)

    def make_layout(self) -> Layout:
        """How a frame lies in the table's columns."""
        spec = DataSpec(self.held_spec)
        return layout_for(spec, self.agents) if self.layout == "packed" else PlainLayout(spec)

    def build(self) -> list[Any]:
        """The `reverb.Table`s: this one, and those beside it that `scannable`, `initial` and `tracks_least` ask for.

        Those hold the same items over the same data. Each has selector objects of its own.

        Raises:
          ImportError: reverb is absent or does not fit.
        """
        reverb = load_reverb()
        kind = self.kind
        length = kind.length if isinstance(kind, Window) else None
        about_table: dict[str, Any] = {
            "initial": self.initial,
            "max_mirror": self.max_mirror,
            "min_mirror": self.min_mirror,
            "fields": None if self.fields is None else list(self.fields),
        }
        if self.agents is not None:
            about_table["agents"] = dict(self.agents)
        signature = self.make_layout().signature(length, describe_kind(kind), about_table)

        def beside(name: str, sampler: Selector) -> Any:
            # The same items leave it at the same time: one writer inserts into both in the same order.
            return reverb.Table(
                name=name,
                sampler=sampler.build(reverb),
                remover=reverb.selectors.Fifo(),
                max_size=self.max_size,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=signature,
            )

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
            tables.append(beside(self.scan_table, Prioritized(1.0)))
        if self.max_mirror is not None:
            tables.append(beside(self.max_mirror, MaxHeap()))
        if self.min_mirror is not None:
            tables.append(beside(self.min_mirror, MinHeap()))
        return tables

    def describe(self) -> str:
        """The table in words, several short lines.

        >>> import tensorflow as tf
        >>> print(TableConfig("queue", tf.TensorSpec([2], tf.float32), 8, Fifo(), max_times_sampled=1).describe())
        table 'queue', up to 8 items
          item: 1 frame of an episode
          drawn: the oldest item; removed after its one draw
          full: the oldest item goes
          waits: sampling until an item is there; inserting never
          new priorities: without effect
          memory: 17 bytes an item; about 136 bytes in all, before Reverb's compression
        """
        return describe(self)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What is allowed and often not meant, one sentence each; they end `describe`."""
        return tuple(cautions(self))

    def to_dict(self) -> dict[str, Any]:
        """Every setting by its name, as values that JSON and YAML can hold.

        Raises:
          TypeError, ValueError: `data_spec` has something that a file cannot tell (`spec_text.py`).

        >>> import tensorflow as tf
        >>> TableConfig("replay", {"obs": tf.TensorSpec([4], tf.float32)}, 100, Prioritized()).to_dict()["sampler"]
        {'kind': 'Prioritized', 'priority_exponent': 0.6}
        """
        return config_to_plain(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TableConfig:
        """The table that `to_dict` has told of; what has a default may be left out.

        Raises:
          TypeError, ValueError: unknown or missing settings, all named; or as the constructor.
          ImportError: it has a namedtuple of TF-Agents, which is not installed.

        >>> TableConfig.from_dict({"name": "replay", "data_spec": {"obs": "float32[4]"}, "max_size": 100}).sampler
        Uniform()
        """
        return cls(**arguments_from_plain(plain, cls))

    def to_json(self) -> str:
        """`to_dict` as JSON.

        Raises:
          TypeError, ValueError: as `to_dict`.
        """
        return to_json(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> TableConfig:
        """The table that JSON tells.

        Raises:
          ValueError: it is no JSON, or names a key twice.
          TypeError, ValueError, ImportError: as `from_dict`.
        """
        return cls.from_dict(from_json(text))

    def to_yaml(self) -> str:
        """`to_dict` as YAML.

        Raises:
          TypeError, ValueError: as `to_dict`.
          ImportError: PyYAML is not installed.
        """
        return to_yaml(self.to_dict())

    @classmethod
    def from_yaml(cls, text: str) -> TableConfig:
        """The table that YAML tells; nothing executable is read.

        Raises:
          ValueError: it is no YAML, asks for objects, or names a key twice.
          TypeError, ValueError: as `from_dict`.
          ImportError: PyYAML is not installed; or as `from_dict`.
        """
        return cls.from_dict(from_yaml(text))

    def _check_agents(self, agents: Mapping[str, bool]) -> None:
        if not (hasattr(agents, "values") and all(isinstance(flag, bool) for flag in agents.values())):
            raise TypeError(f"TableConfig.agents must be None or a dict of bools by agent, got {agents!r}.")
        if self.fields is not None or self.layout != "packed":
            raise ValueError(f"table {self.name!r}: agents need layout='packed', and all fields.")
        if self.data_spec.__class__ is not AgentFrame:
            check_moments(f"table {self.name!r}", self.data_spec, agents)

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
