"""A `TableConfig` in words: what an item is, what is drawn, what goes, who waits, and what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .agent_frames import JointFrame
from .item_selectors import (
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    Selector,
    Uniform,
    draws_at_random,
    reads_priorities,
)
from .memory import format_bytes
from .rate_limiters import MinSize, Queue, SampleToInsertRatio, Stack
from .reverb_items import WholeEpisodes

if TYPE_CHECKING:
    from .tables import TableConfig

_DRAWN = {
    Fifo: "the oldest item",
    Lifo: "the newest item",
    MinHeap: "the item of the lowest priority",
    MaxHeap: "the item of the highest priority",
}


def describe(config: TableConfig) -> str:
    """What `TableConfig.describe` gives: several short lines."""
    lines = [
        f"table {config.name!r}, up to {config.max_size:,} items",
        f"  item: {_item(config)}",
        f"  drawn: {_drawn(config.sampler)}{_after_draws(config)}",
        f"  full: {_removed(config)}",
        f"  waits: {_waits(config)}",
        f"  new priorities: {_new_priorities(config)}",
        f"  memory: {_memory(config)}",
    ]
    beside = _beside(config)
    if beside:
        lines.append(f"  beside it: {beside}")
    lines += [f"  beware: {caution}" for caution in cautions(config)]
    return "\n".join(lines)


def cautions(config: TableConfig) -> list[str]:
    """What is allowed and often not meant; one sentence each."""
    repeated = repeated_item(config)
    found = [] if repeated is None else [repeated]
    if isinstance(config.remover, Lifo):
        found.append("remover Lifo drops what was just inserted once the table is full: it keeps the oldest.")
    if isinstance(config.remover, MinHeap | MaxHeap) and config.initial != "random":
        side = "lowest" if isinstance(config.remover, MinHeap) else "highest"
        found.append(
            f"remover {type(config.remover).__name__} drops the {side} priority, which may be that of the item just "
            "inserted: priorities must tell what to keep."
        )
    if isinstance(config.remover, Uniform):
        found.append(
            "remover Uniform keeps no fair sample of the stream, old items are rarer; the reservoir "
            "(initial='random', remover MinHeap) does."
        )
    if isinstance(config.remover, Prioritized):
        found.append("remover Prioritized drops items of high priority more often: what is kept is what matters least.")
    if isinstance(config.sampler, Prioritized) and config.initial == 0:
        found.append("new items have priority 0 and are not drawn before it is updated, unless all have 0.")
    if isinstance(config.rate_limiter, Queue | Stack):
        found.append(
            "the limiter counts inserts and samples: an item that is deleted stays counted, and after "
            f"{config.rate_limiter.size} deleted items nothing can be inserted until the table is cleared."
        )
    return found


def repeated_item(config: TableConfig) -> str | None:
    """What to say where every draw gives the same item; else None."""
    if draws_at_random(config.sampler) or config.max_times_sampled:
        return None
    return (
        f"sampler {type(config.sampler).__name__} gives the same item again and again until it is removed or, in a "
        "heap, updated; max_times_sampled=1 gives each once."
    )


def _plural(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _until(count: int) -> str:
    return "an item is there" if count == 1 else f"{count:,} items are there"


def _item(config: TableConfig) -> str:
    kind = config.kind
    if isinstance(kind, WholeEpisodes):
        over = {
            "error": "longer ones are refused",
            "drop": "longer ones are left out",
            "cut": "longer ones become several items",
        }
        text = f"a whole episode of up to {_plural(kind.max_length, 'frame')}; {over[kind.over_long]}"
    else:
        frames = _plural(kind.num_steps, "frame")
        text = f"{frames} of an episode" if kind.length == 1 else f"{frames} in a row of one episode"
        text += f", after {kind.burn_in:,} of burn-in" if kind.burn_in else ""
        text += f", one item every {_plural(kind.stride, 'frame')}" if kind.stride > 1 else ""
        if kind.length > 1:
            text += "; cut short by the episode's end: "
            text += "dropped" if kind.short == "drop" else "padded"
    if config.fields is not None:
        text += f"; of the fields {', '.join(config.fields)}"
    if config.agents is not None and config.data_spec.__class__ is JointFrame:
        text += f"; a frame is a moment of {_plural(len(config.agents), 'agent')}, in columns of their own"
    return text


def _drawn(sampler: Selector) -> str:
    if isinstance(sampler, Uniform):
        return "every item with the same chance"
    if isinstance(sampler, Prioritized):
        return f"by chance, in proportion to priority^{sampler.priority_exponent:g}"
    return _DRAWN[type(sampler)]


def _after_draws(config: TableConfig) -> str:
    times = config.max_times_sampled
    return "" if times == 0 else f"; removed after {'its one draw' if times == 1 else f'{times:,} draws'}"


def _removed(config: TableConfig) -> str:
    if isinstance(config.rate_limiter, Queue | Stack):
        return "never: inserting waits before"
    if config.initial == "random":
        return "a random item goes, so that each of the stream has stayed with the same chance (Vitter 1985)"
    remover = config.remover
    if isinstance(remover, Uniform):
        return "any item goes, the new one among them"
    if isinstance(remover, Prioritized):
        return f"an item goes by chance, in proportion to priority^{remover.priority_exponent:g}"
    return f"{_DRAWN[type(remover)]} goes"


def _waits(config: TableConfig) -> str:
    limiter = config.rate_limiter
    if isinstance(limiter, SampleToInsertRatio):
        bounds = limiter.bounds
        return (
            f"sampling until {_until(limiter.min_size_to_sample)}; then sampling and inserting wait "
            f"for each other, {limiter.samples_per_insert:g} samples an insert: inserts * "
            f"{limiter.samples_per_insert:g} - samples stays in [{bounds.min_error:g}, {bounds.max_error:g}]"
        )
    if isinstance(limiter, MinSize):
        return f"sampling until {_until(limiter.min_size_to_sample)}; inserting never"
    return f"sampling for an item; inserting while {_plural(limiter.size, 'item')} wait to be drawn"


def _new_priorities(config: TableConfig) -> str:
    if config.initial == "max":
        return "the greatest in the table at the time, where none is given; 1 for the first"
    if config.initial == "random":
        return "chosen in U(0, 1); not to be updated"
    used = reads_priorities(config.sampler) or reads_priorities(config.remover)
    return f"{config.initial:g} where none is given" if used else "without effect"


def _memory(config: TableConfig) -> str:
    frame_bytes = sum(config.make_layout().column_bytes)
    kind = config.kind
    if isinstance(kind, WholeEpisodes):
        most = frame_bytes * kind.max_length
        return (
            f"{frame_bytes:,} bytes a frame, up to {_bytes(most)} an item and "
            f"{_bytes(most * config.max_size)} in all, before Reverb's compression"
        )
    own = min(kind.stride, kind.num_steps)
    shared = "" if own == kind.length else f", of which {own * frame_bytes:,} are its own and the rest its neighbours'"
    return (
        f"{frame_bytes * kind.length:,} bytes an item{shared}; about "
        f"{_bytes(own * frame_bytes * config.max_size)} in all, before Reverb's compression"
    )


def _bytes(num: int) -> str:
    return f"{num:,} bytes" if num < 1_000_000 else format_bytes(num)


def _beside(config: TableConfig) -> str:
    tables = []
    if config.scannable:
        tables.append(f"{config.scan_table!r} for passes in order")
    if config.max_mirror is not None:
        tables.append(f"{config.max_mirror!r} for the greatest priority")
    if config.min_mirror is not None:
        tables.append(f"{config.min_mirror!r} for the least")
    return ", ".join(tables) + (": the same items over the same data" if tables else "")
