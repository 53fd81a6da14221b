"""Interleaved timing: every contender gets a short window in each round, and ratios are taken round by round.

A neighbour on the machine slows all contenders of a round alike, so a ratio moves less than
the rates it is made of. The order changes from round to round, and the first round, in which
caches fill and graphs are traced, is thrown away.

That is not enough where a contender needs more cores than another: a tf.data pipeline works
in two threads, a constant in one. So each window also tells what share of the machine other
processes took, and beside the median ratio stands that of the quietest third of the rounds.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured: see `FULL` and `QUICK`.

    Attributes:
      w1_capacity: frames of W1 buffers.
      w2_capacity: frames of W2 buffers.
      num_frames: single 84x84 frames of the buffer whose memory is measured.
      served_items: items of a Reverb table of W1.
      growth_capacities: capacities between which the cost of `sample` is compared.
      repeats: rounds that count.
      window_s: seconds of one window.
      import_repeats: fresh processes for each import.
    """

    w1_capacity: int
    w2_capacity: int
    num_frames: int
    served_items: int
    growth_capacities: tuple[int, ...]
    repeats: int
    window_s: float
    import_repeats: int


FULL = Scale(1_000_000, 20_000, 2**20, 50_000, (10**4, 10**5, 10**6, 10**7), repeats=9, window_s=0.25, import_repeats=9)
QUICK = Scale(10_000, 600, 2_000, 1_000, (10**3, 10**4), repeats=3, window_s=0.02, import_repeats=1)


class Timed(Protocol):
    """Something to time, here or in another process."""

    @property
    def name(self) -> str:
        """As the table calls it."""

    def window(self, window_s: float) -> dict[str, float]:
        """What `interleave` keeps of one window, after a short warm-up."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """Something to time in this process.

    Attributes:
      name: as the table calls it.
      call: does the work of `units` units.
      units: what one call counts as, in the unit of the measure.
      finish: waits for what the calls left pending; its time counts.
      prepare: makes what a call needs for itself, such as a place to write to; its time does not count. A window is
        then one call, however short it should be, and nothing warms up.
    """

    name: str
    call: Callable[[], Any]
    units: float = 1
    finish: Callable[[], None] | None = None
    prepare: Callable[[], Any] | None = None

    def window(self, window_s: float) -> dict[str, float]:
        call, now = self.call, time.perf_counter
        if self.prepare is not None:
            self.prepare()
            window_s = 0.0
        else:
            end = now() + window_s / 4
            call()
            while now() < end:
                call()
        if self.finish is not None:
            self.finish()
        busy_start = _busy_s()
        num_calls, cpu_start, start = 0, time.process_time(), now()
        end = start + window_s
        while True:
            call()
            num_calls += 1
            stop = now()
            if stop >= end:
                break
        if self.finish is not None:
            self.finish()
            stop = now()
        units, cpu_s = num_calls * self.units, time.process_time() - cpu_start
        others = (_busy_s() - busy_start - cpu_s) / (stop - start) / (os.cpu_count() or 1)
        return {"values": units / (stop - start), "cpu_us": cpu_s / units * 1e6, "others": min(1.0, max(0.0, others))}


@dataclasses.dataclass(frozen=True)
class Bar:
    """What our number is held against.

    Attributes:
      against: name of a contender.
      bound: of our number divided by that one's, or, with `difference`, of ours minus that one's.
      at_most: the bound is an upper one.
      difference: subtract instead of dividing.
      aim: told, but not counted as missed.
    """

    against: str
    bound: float
    at_most: bool = False
    difference: bool = False
    aim: bool = False


def interleave(contenders: Sequence[Timed], scale: Scale) -> dict[str, dict[str, Any]]:
    """Samples of each contender by its name, one a round.

    `values` are units a second, `cpu_us` what a unit took of its process's processor time, `others`
    the share of all cores that other processes took meanwhile.
    """
    samples: dict[str, dict[str, list[float]]] = {
        one.name: {"values": [], "cpu_us": [], "others": []} for one in contenders
    }
    rng = np.random.default_rng(0)
    for round_index in range(scale.repeats + 1):
        for index in rng.permutation(len(contenders)):
            contender = contenders[index]
            one = contender.window(scale.window_s)
            if round_index:
                for name, value in one.items():
                    samples[contender.name][name].append(value)
    return samples


def row(
    measure: str,
    unit: str,
    ours: str,
    samples: dict[str, dict[str, Any]],
    bars: Sequence[Bar],
    note: str = "",
    not_measured: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One line of the table, as JSON: the contenders' medians with spread, and the bars with their ratios.

    Args:
      measure: what is measured.
      unit: of the values.
      ours: name of our own contender.
      samples: for each contender its `values`, as many for each, in the order of the rounds.
      bars: what ours is held against.
      note: a sentence for the reader.
      not_measured: contenders that are missing, and why.
    """
    return {
        "measure": measure,
        "unit": unit,
        "ours": ours,
        "contenders": {
            name: {
                **_spread(one["values"]),
                **{key: statistics.median(one[key]) for key in ("cpu_us", "others") if key in one},
            }
            for name, one in samples.items()
        },
        "bars": [_held_against(bar, samples[ours], samples[bar.against]) for bar in bars],
        "note": note,
        "not_measured": dict(not_measured or {}),
    }


def _held_against(bar: Bar, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    against = theirs["values"] * (len(ours["values"]) if len(theirs["values"]) == 1 else 1)
    values = [a - b if bar.difference else a / b for a, b in zip(ours["values"], against, strict=True)]
    spread = _spread(values)
    met = spread["median"] <= bar.bound if bar.at_most else spread["median"] >= bar.bound
    held = {**dataclasses.asdict(bar), "value": spread["median"], "iqr": spread["iqr"], "met": met}
    if ours.get("cpu_us") and theirs.get("cpu_us") and not bar.at_most:
        held["by_cpu"] = statistics.median(theirs["cpu_us"]) / statistics.median(ours["cpu_us"])
        others = np.add(ours["others"], theirs["others"])
        quietest = np.argsort(others, kind="stable")[: max(1, len(values) // 3)]
        held["quiet"] = statistics.median(values[index] for index in quietest)
        held["quiet_others"] = float(np.max(others[quietest])) / 2
    return held


def _spread(values: Sequence[float]) -> dict[str, Any]:
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": quartiles[1], "iqr": quartiles[2] - quartiles[0], "samples": len(values)}


def _busy_s() -> float:
    """Seconds that all cores together were busy since the machine started, in steps of a clock tick."""
    ticks = [int(field) for field in pathlib.Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    idle, waiting = ticks[3], ticks[4]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")
