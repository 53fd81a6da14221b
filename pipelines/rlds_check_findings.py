"""What `validate_rlds` looks for: how grave each finding is, and what `load_rlds` makes of it."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

Severity = Literal["ok", "note", "decision"]

MIN_FROZEN_STEPS = 5
"""Steps from which on an episode whose observation stays as it is looks odd; who meets a wall stays for a few."""


class Loading(NamedTuple):
    """What `load_rlds` does, for each `on_bad_episode`."""

    error: str
    skip: str
    repair: str

    def __str__(self) -> str:
        if self.error == self.skip == self.repair:
            return self.error
        if self.skip == self.repair:
            return f"'error' {self.error}; 'skip' and 'repair' {self.skip}"
        return f"'error' {self.error}; 'skip' {self.skip}; 'repair' {self.repair}"


class Check(NamedTuple):
    """One thing that is looked for.

    Attributes:
      severity: of a finding: `'note'`, or `'decision'` where the user has to decide something.
      message: what was found; `{}` stands for the field.
      loading: what `load_rlds` does with it.
      unit: what the count counts.
    """

    severity: Severity
    message: str
    loading: Loading
    unit: str = "episodes"


@dataclasses.dataclass(frozen=True)
class RldsFinding:
    """The outcome of one check.

    Attributes:
      check: its name, a key of `CHECKS`.
      severity: `'ok'`: nothing was found; `'note'`; `'decision'`: the user has to decide something.
      message: what was found.
      count: how many episodes (or what `unit` says) have it.
      unit: `'episodes'`, `'fields'`, `'elements'` or `'datasets'`.
      episodes: the first few of them.
      field: the field that it is about, where it is about one.
      loading: what `load_rlds` does with it.

    >>> print(RldsFinding("one_step", "note", "one step, so no transition", 2, "episodes", ("3", "8")))
    one step, so no transition: 2 episodes (3, 8)
    """

    check: str
    severity: Severity
    message: str = ""
    count: int = 0
    unit: str = "episodes"
    episodes: tuple[str, ...] = ()
    field: str | None = None
    loading: Loading = Loading("", "", "")

    def __str__(self) -> str:
        if self.severity == "ok":
            return f"{self.check}: ok"
        unit = self.unit if self.count != 1 else self.unit.removesuffix("s")
        more = ", ..." if self.count > len(self.episodes) else ""
        named = f" ({', '.join(self.episodes)}{more})" if self.episodes else ""
        return self.message + ("" if self.unit == "datasets" else f": {self.count:,} {unit}{named}")


def _same(text: str) -> Loading:
    return Loading(text, text, text)


_LOADED = _same("loads it as it is")
_NOT_READ = _same("never reads the last step's")
_DROPPED = _same("drops it and counts it in the report")
_UNSOUND = Loading("stops", "drops it", "drops it")
_CUT = Loading("stops", "drops it", "ends it there")

CHECKS: dict[str, Check] = {
    # What stops a load, or drops episodes.
    "no_episode": Check("decision", "there is no episode", _same("gives nothing"), "datasets"),
    "not_loadable": Check("decision", "load_rlds refuses this dataset", _same("raises before it reads"), "datasets"),
    "nothing_loads": Check(
        "decision", "no episode has a transition that can be loaded", _same("gives no transition"), "datasets"
    ),
    "invalid": Check("decision", "the dataset flags episodes as invalid", _UNSOUND),
    "lengths_differ": Check("decision", "fields of an episode differ in length", _UNSOUND),
    "terminal_early": Check("decision", "is_terminal is set before the last step", _CUT),
    "last_early": Check("decision", "is_last is set before the last step", _CUT),
    "first_late": Check(
        "decision", "is_first is set after the first step", Loading("stops", "drops it", "ends it before that step")
    ),
    "reward_not_finite": Check("decision", "a reward is NaN or infinite", _UNSOUND),
    "discount_not_finite": Check("decision", "a discount is NaN or infinite", _UNSOUND),
    "beyond_float32": Check("decision", "a reward or discount is too large for float32", _UNSOUND),
    # What loads, and may be wrong.
    "not_finite": Check("decision", "{} holds NaN or infinity", _LOADED),
    "alignment": Check(
        "decision",
        "actions and rewards seem to be aligned as {}, not as RLDS has them (SAR)",
        _same("takes them for SAR unless alignment= says otherwise"),
        "datasets",
    ),
    "discount_contradicts": Check(
        "decision", "a discount of 0 on a transition that is not into a terminal step", _same("keeps the 0")
    ),
    "discount_range": Check("decision", "a discount below 0 or above 1", _LOADED),
    "blank_image": Check("decision", "{} is one colour through whole episodes", _LOADED),
    "reward_inexact": Check(
        "decision", "whole-numbered rewards beyond 2^24, which float32 rounds", _same("rounds them to float32")
    ),
    "repeated_id": Check(
        "decision", "an id that an earlier episode has", _same("loads it; a resumed fill takes it for done")
    ),
    # What the loader sees to.
    "terminal_discount": Check(
        "note", "the transition into a terminal step has a discount other than 0", _same("sets it to 0")
    ),
    "last_discount": Check("note", "the last step's discount contradicts is_terminal", _NOT_READ),
    "last_reward": Check("note", "the last step has a reward", _NOT_READ),
    "last_not_finite": Check("note", "action, reward or discount of the last step is NaN or infinite", _NOT_READ),
    "first_unset": Check("note", "is_first is not set on the first step", _same("lets the nesting decide")),
    "last_unset": Check(
        "note", "is_last is not set on the last step", _same("lets the nesting decide; truncated unless is_terminal")
    ),
    "last_never_set": Check(
        "note", "is_last is set in no episode", _same("lets the nesting decide; truncated unless is_terminal")
    ),
    "empty": Check("note", "no step", _DROPPED),
    "one_step": Check("note", "one step, so no transition", _DROPPED),
    "zero_observation": Check(
        "note",
        "terminal episodes end in an observation of zeros, as D4RL files do where none was recorded",
        _same("loads it, with discount 0, and counts it"),
    ),
    "no_final_observation": Check(
        "note",
        "{} episodes end in a step whose action looks real: the observation after it seems to be missing",
        _same("leaves that transition out, which cannot be recovered"),
    ),
    "alignment_unknown": Check(
        "note", "how actions and rewards are aligned cannot be told", _same("takes them for SAR"), "datasets"
    ),
    # What a reader of the numbers has to know.
    "no_terminal": Check("note", "no episode ends in a terminal step", _LOADED, "datasets"),
    "no_field": Check("note", "the steps have no {}", _LOADED, "datasets"),
    "not_finite_metadata": Check("note", "metadata {} holds NaN or infinity", _LOADED),
    "frozen": Check("note", f"{{}} never changes through whole episodes of {MIN_FROZEN_STEPS} steps or more", _LOADED),
    "blank_frames": Check("note", "frames of {} are of one colour in the midst of others", _LOADED),
    "constant": Check("note", "{} never changes", _LOADED, "datasets"),
    "constant_elements": Check("note", "elements of {} that never change", _LOADED, "elements"),
    "duplicate_episode": Check(
        "note", "the same observations, actions and rewards as an earlier episode", _same("loads it again")
    ),
    "duplicate_steps": Check("note", "steps that repeat observation, action and reward of the step before", _LOADED),
    "not_checked": Check(
        "note",
        "fields that this source was opened without, of which nothing is known",
        _same("leaves them behind"),
        "datasets",
    ),
    "varying_field": Check(
        "note", "{} has no fixed width", _same("leaves it behind unless fields= gives it one"), "datasets"
    ),
}
"""All checks by name, in the order of the report."""

_NO_FIELD = {
    "discount": "takes 1, and 0 into a terminal step",
    "reward": "gives trajectories zeros, transitions none",
    "action": "gives trajectories an empty nest, transitions none",
    "is_first": "lets the nesting decide",
    "is_last": "lets the nesting decide",
}


def finding(
    check: str,
    *,
    count: int = 1,
    episodes: tuple[str, ...] = (),
    field: str | None = None,
    about: str = "",
    detail: str = "",
) -> RldsFinding:
    """What `check` has found.

    Args:
      check: a key of `CHECKS`.
      count: how many have it.
      episodes: the first few.
      field: that it is about.
      about: what stands in the message for `{}` where that is not the field.
      detail: numbers that follow the message.

    >>> print(finding("constant", field="observation/goal"))
    observation/goal never changes
    """
    known = CHECKS[check]
    message = known.message.format(about or field)
    loading = known.loading
    if check == "no_field" and field in _NO_FIELD:
        loading = _same(_NO_FIELD[field])
    return RldsFinding(
        check,
        known.severity,
        f"{message}: {detail}" if detail else message,
        count,
        known.unit,
        episodes,
        field,
        loading,
    )


def in_order(findings: list[RldsFinding]) -> tuple[RldsFinding, ...]:
    """Findings in the order of `CHECKS`, and an `'ok'` for each check that found nothing."""
    found = {check: [each for each in findings if each.check == check] for check in CHECKS}
    return tuple(each for check in CHECKS for each in found[check] or [RldsFinding(check, "ok")])
