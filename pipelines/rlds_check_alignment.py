"""Guesses from filler which of its neighbours a step's action and reward belong to.

| alignment | step `i` holds | filler |
| --- | --- | --- |
| SAR (RLDS) | `o_i`, the action taken in it, the reward that followed | action and reward of the last step |
| RSA | the reward that came with `o_i`, `o_i`, the action taken in it | reward of the first, action of the last |
| ARS | the action before `o_i`, the reward that came with it, `o_i` | action and reward of the first step |

A writer has nothing to put there, and puts zeros, NaN or the step before once more. A place
counts as filler where that happens in at least nine of ten episodes, and would happen by
chance (at the rate of the other steps, or of the neighbour alone) once in a thousand datasets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from replayfeed.buffers.nests import Array

from .rlds_check_blocks import EpisodeBlock

_MIN_STEPS = 4
_MIN_SHARE = 0.9
_MAX_CHANCE = 1e-3
_FIRST, _LAST = "first", "last"

_FILLER = {
    "SAR": {("action", _FIRST): False, ("reward", _FIRST): False, ("action", _LAST): True, ("reward", _LAST): True},
    "RSA": {("action", _FIRST): False, ("reward", _FIRST): True, ("action", _LAST): True, ("reward", _LAST): False},
    "ARS": {("action", _FIRST): True, ("reward", _FIRST): True, ("action", _LAST): False, ("reward", _LAST): False},
}


@dataclasses.dataclass(frozen=True)
class Alignment:
    """A guess, and what it rests on.

    Attributes:
      guess: `'SAR'`, `'RSA'`, `'ARS'` or `'unknown'`.
      confidence: `'high'`: three or four places agree and no other alignment fits; `'low'`: fewer do; `'none'`.
      evidence: a sentence for each place that is clear.
      last_step_is_real: action and reward of the last step look like those of any other, and so do those
        of the first: no observation after the last action seems to have been stored.
    """

    guess: str
    confidence: str
    evidence: tuple[str, ...]
    last_step_is_real: bool = False

    def __str__(self) -> str:
        why = "; ".join(self.evidence) or "no place is clearly filler"
        certainty = "" if self.guess == "unknown" else f" (confidence {self.confidence})"
        return f"{self.guess}{certainty}: {why}"


class AlignmentEvidence:
    """Counts filler at both ends of episodes.

    >>> from replayfeed.pipelines.episode_source import RawEpisode
    >>> action, reward = np.array([5.0, 6.0, 7.0, 8.0, 0.0]), np.array([1.0, 2.0, 3.0, 4.0, 0.0])
    >>> block = EpisodeBlock([RawEpisode("0", {})] * 4, {("action",): [action] * 4, ("reward",): [reward] * 4}, [5] * 4)
    >>> evidence = AlignmentEvidence()
    >>> evidence.add(block, [block.columns["action",]], [block.columns["reward",]], {"truncated": np.ones([4], bool)})
    >>> evidence.guess().guess, evidence.guess().confidence
    ('SAR', 'high')
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, str, str], _Place] = {}

    def add(
        self, block: EpisodeBlock, action: Sequence[Array], reward: Sequence[Array], ends: Mapping[str, Array]
    ) -> None:
        """Takes the episodes of at least four steps; shorter ones tell nothing.

        Args:
          block: that has them.
          action: its columns `[R, ...]`; empty: there is none.
          reward: the same.
          ends: for `'terminal'` and `'truncated'` which episodes end so, bool `[E]`; of all others (a cut episode
            has no last step) the first step counts alone.
        """
        is_long = block.lengths >= _MIN_STEPS
        if is_long.any():
            for field, columns in (("action", action), ("reward", reward)):
                if columns:
                    self._add(block, field, columns, is_long, ends)

    def guess(self) -> Alignment:
        """What all episodes together tell."""
        verdicts = {
            (field, where): self._verdict(field, where) for field in ("action", "reward") for where in (_FIRST, _LAST)
        }
        known = {place: is_filler for place, is_filler in verdicts.items() if is_filler is not None}
        evidence = tuple(
            f"the {where} {field} is {'filler' if is_filler else 'as real as others'}"
            for (field, where), is_filler in known.items()
        )
        last_is_real = known.get(("action", _LAST)) is False and known.get(("action", _FIRST)) is False
        support = {
            name: sum(1 for place in known)
            for name, expected in _FILLER.items()
            if all(expected[place] == is_filler for place, is_filler in known.items())
        }
        # What is real everywhere else speaks for nothing: it takes one place that is filler.
        if len(support) != 1 or not any(known.values()):
            return Alignment("unknown", "none", evidence, last_is_real)
        ((guess, count),) = support.items()
        return Alignment(guess, "high" if count >= 3 else "low", evidence)

    def is_real(self, field: str, end: str) -> bool:
        """Whether this field of the last step is clearly no filler where episodes end so."""
        return _judge([self._places.get((field, _LAST, kind, end)) for kind in _KINDS]) is False

    def is_filler(self, field: str, end: str) -> bool:
        """Whether this field of the last step is clearly filler where episodes end so."""
        return _judge([self._places.get((field, _LAST, kind, end)) for kind in _KINDS]) is True

    def _verdict(self, field: str, where: str) -> bool | None:
        """True: filler; False: real; None: unclear."""
        if where == _FIRST:
            return _judge([self._places.get((field, _FIRST, "zero", ""))])
        ends = ("terminal", "truncated")
        verdicts = [_judge([self._places.get((field, _LAST, kind, end)) for kind in _KINDS]) for end in ends]
        if True in verdicts:
            # D4RL's truncated episodes end in a real step, its terminal ones in filler.
            return True
        merged = [_merge([self._places.get((field, _LAST, kind, end)) for end in ends]) for kind in _KINDS]
        return _judge(merged)

    def _add(
        self, block: EpisodeBlock, field: str, columns: Sequence[Array], is_long: Array, ends: Mapping[str, Array]
    ) -> None:
        first, last = block.first, block.last
        inner = block.lengths - 2
        # Of an episode of one step there is no second row; it is no long one either.
        second, last_but_one = first + (block.lengths > 1), last - (block.lengths > 1)
        zero = rows_that_are_zero(columns)
        inner_zeros = block.count(zero) - zero[first] - zero[last]
        at_first = np.array([is_long, zero[first] | _are_nan(columns, first), inner_zeros, inner, zero[second]])
        self._place(field, _FIRST, "zero", "").add(at_first, is_long)
        counted = {end: is_long & where for end, where in ends.items() if (is_long & where).any()}
        if not counted:
            return
        repeat = rows_that_repeat(columns)
        inner_repeats = block.count(repeat) - repeat[first] - repeat[last]
        seen = {
            "zero": np.array([is_long, zero[last] | _are_nan(columns, last), inner_zeros, inner, zero[last_but_one]]),
            "repeat": np.array([is_long, repeat[last], inner_repeats, inner, repeat[last_but_one]]),
        }
        for end, where in counted.items():
            for kind in _KINDS:
                self._place(field, _LAST, kind, end).add(seen[kind], where)

    def _place(self, field: str, where: str, kind: str, end: str) -> _Place:
        return self._places.setdefault((field, where, kind, end), _Place())


_KINDS = ("zero", "repeat")


@dataclasses.dataclass
class _Place:
    """How often one place of an episode looks like filler, and how often the others do."""

    episodes: int = 0
    filler: int = 0
    inner_filler: int = 0
    inner: int = 0
    neighbour_filler: int = 0

    def add(self, seen: Array, where: Array) -> None:
        """Takes some episodes of many.

        Args:
          seen: int64 `[5, E]`, of each episode: 1, whether the place is filler there, how many of the others look like
            filler, how many others there are, and whether its neighbour looks so.
          where: those that count, bool `[E]`.
        """
        episodes, filler, inner_filler, inner, neighbour_filler = (seen @ where).tolist()
        self.episodes += episodes
        self.filler += filler
        self.inner_filler += inner_filler
        self.inner += inner
        self.neighbour_filler += neighbour_filler

    def is_filler(self) -> bool | None:
        if self.filler < _MIN_SHARE * self.episodes:
            return False
        inner = (self.inner_filler + 1) / (self.inner + 2)
        neighbour = (self.neighbour_filler + 1) / (self.episodes + 2)
        chance = min(_chance(self.filler, self.episodes, rate) for rate in (inner, neighbour))
        return True if chance < _MAX_CHANCE else None


def _chance(hits: int, total: int, rate: float) -> float:
    """Chernoff's bound on the chance of `hits` of `total` at a rate."""
    share = hits / total
    if share <= rate:
        return 1.0
    divergence = share * math.log(share / rate)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - rate))
    return math.exp(-total * divergence)


def _judge(places: Sequence[_Place | None]) -> bool | None:
    verdicts = [place.is_filler() for place in places if place is not None and place.episodes]
    if not verdicts:
        return None
    if True in verdicts:
        return True
    return None if None in verdicts else False


def _merge(places: Sequence[_Place | None]) -> _Place:
    merged = _Place()
    for place in places:
        if place is not None:
            for field in dataclasses.fields(_Place):
                setattr(merged, field.name, getattr(merged, field.name) + getattr(place, field.name))
    return merged


def rows_that_are_zero(columns: Sequence[Array]) -> Array:
    """Bool `[R]`: whether a row is all zeros in each of the columns `[R, ...]`, of which there is one at least.

    >>> rows_that_are_zero([np.array([0, 1, 0]), np.array([[0, 0], [0, 0], [0, 1]])]).tolist()
    [True, False, False]
    """
    return _rows_that_hold(len(columns[0]), [(_flat(column), None) for column in columns])


def rows_that_repeat(columns: Sequence[Array]) -> Array:
    """Bool `[R]`: whether a row equals the one before in each of the columns `[R, ...]`; the first does not.

    >>> rows_that_repeat([np.array([3, 3, 3]), np.array([[1, 2], [1, 2], [1, 0]])]).tolist()
    [False, True, False]
    """
    repeats = np.zeros([len(columns[0])], bool)
    flat = [_flat(column) for column in columns]
    repeats[1:] = _rows_that_hold(len(repeats) - 1, [(rows[1:], rows[:-1]) for rows in flat])
    return repeats


def _flat(column: Array) -> Array:
    return column.reshape(len(column), -1)


def _rows_that_hold(num_rows: int, columns: Sequence[tuple[Array, Array | None]]) -> Array:
    """Bool `[n]`: whether a row equals another, or is all zeros, in each of the columns.

    Args:
      num_rows: `n`.
      columns: pairs of `[n, d]` and what it is compared with, `[n, d]` or None for zero.
    """
    holds: Array | None = None
    # The first element decides for nearly all rows; only what is left is compared whole.
    for column, other in columns:
        if column.shape[1]:
            same = column[:, 0] == (0 if other is None else other[:, 0])
            holds = same if holds is None else holds & same
    if holds is None:
        return np.ones([num_rows], bool)
    rows = holds.nonzero()[0]
    if rows.size:
        for column, other in columns:
            if column.shape[1] > 1:
                holds[rows] &= (column[rows] == (0 if other is None else other[rows])).all(axis=1)
    return holds


def _are_nan(columns: Sequence[Array], rows: Array) -> Array:
    """Bool `[E]`: which of these rows hold NaN and nothing else, in each of the columns."""
    found = np.ones([len(rows)], bool)
    for column in columns:
        values = _flat(column)[rows]
        found &= column.dtype.kind == "f" and values.shape[1] > 0 and np.isnan(values).all(axis=1)
    return found
