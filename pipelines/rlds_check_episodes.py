"""Looks at each episode of a dataset once: flags, ends, discounts, rewards, filler, duplicates."""

from __future__ import annotations

import array
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, field_path, leaves_with_paths

from .episode_source import RawEpisode
from .load_report import Tally
from .rlds_check_alignment import Alignment, AlignmentEvidence, rows_that_repeat
from .rlds_check_blocks import EpisodeBlock, OddEpisode, Path
from .rlds_check_duplicates import Duplicates, digest_of, digest_of_columns
from .rlds_check_findings import CHECKS, MIN_FROZEN_STEPS, RldsFinding, finding
from .rlds_check_frames import are_still, channels_of, num_amid_others, one_colour
from .rlds_steps import ACTION, DISCOUNT, FLAGS, IS_TERMINAL, OBSERVATION, REWARD

_EXACT_IN_FLOAT32 = 1 << 24
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

TRANSITION_FIELDS = (ACTION, REWARD, DISCOUNT)
"""What means nothing in the last step."""

ENDS = ("terminal", "truncated", "cut", "unknown", "empty")
"""`cut`: neither `is_terminal` nor `is_last` on the last step. `unknown`: no `is_terminal` in the dataset."""

_MATTERS_TO_LOADING = {check for check, known in CHECKS.items() if known.loading.error == "stops"} | {
    # Episodes that `load_rlds` counts as repaired.
    "first_unset",
    "last_unset",
}
_NAMED = 5


class EpisodeChecks:
    """Collects what is wrong with episodes, and their lengths and returns.

    Bounded memory: 50 bytes or so an episode, none a step.

    Args:
      specs: type spec of one step for each leaf, by its path as a tuple.
      is_d4rl: the dataset was made by TFDS's D4RL builders.
    """

    def __init__(self, specs: Mapping[Path, Any], *, is_d4rl: bool) -> None:
        self._is_d4rl = is_d4rl
        self._fields = {path[0] for path in specs}
        self._scalars = {path[0] for path, spec in specs.items() if len(path) == 1 and _is_one_number(spec)}
        channels = {path: channels_of(spec) for path, spec in specs.items()}
        self._images = {path: axis for path, axis in channels.items() if axis is not None}
        self._has_reward = (REWARD,) in specs and isinstance(specs[REWARD,], tf.TensorSpec)
        self._tally = Tally()
        self._ends: dict[str, int] = dict.fromkeys(ENDS, 0)
        self._end_names: dict[str, list[str]] = {}
        self._lengths = array.array("q")
        self._returns = array.array("d")
        self._repeated_steps = 0
        self._blank_frames: dict[str, int] = {}
        self._alignment = AlignmentEvidence()
        self._contents = Duplicates()
        self._ids = Duplicates()
        self._here: list[tuple[int, str, str]] = []

    @property
    def num_episodes(self) -> int:
        """Episodes seen."""
        return len(self._lengths)

    @property
    def lengths(self) -> Array:
        """Steps of each episode, int64 `[E]`."""
        return np.array(self._lengths, np.int64)

    @property
    def returns(self) -> Array:
        """Sums of the transitions' rewards, float64, of the episodes whose sum is finite."""
        return np.array(self._returns, np.float64)

    @property
    def ends(self) -> dict[str, int]:
        """Episodes by kind of end."""
        return {kind: count for kind, count in self._ends.items() if count}

    def add(self, block: EpisodeBlock) -> Array:
        """Takes the next episodes.

        Returns:
          Bool `[E]`: those that `load_rlds` may stop at or change; all others it loads as they are.
        """
        self._found("invalid", np.fromiter((raw.invalid for raw in block.raws), bool, len(block)))
        self._lengths.extend(block.lengths.tolist())
        self._found("one_step", block.lengths == 1)
        ends = self._check_flags(block)
        self._check_values(block)
        self._check_frames(block)
        self._check_discount(block, ends)
        reward = self._check_reward(block)
        self._check_observation(block, ends)
        action = [column for path, column in block.columns.items() if path[0] == ACTION]
        self._alignment.add(block, action, [] if reward is None else [reward], ends)
        self._check_repeats(block)
        for raw in block.raws:
            if raw.id:
                self._ids.add(digest_of(raw.id.encode()), raw.name)
        return self._tell(block)

    def add_odd(self, episode: OddEpisode) -> None:
        """Takes the next episode, one that fits into no block."""
        raw = episode.raws[0]
        if raw.invalid:
            self._tally.add("invalid:", raw.name)
        if raw.id:
            self._ids.add(digest_of(raw.id.encode()), raw.name)
        self._lengths.append(episode.num_steps)
        self._tally.add("lengths_differ:" if episode.is_uneven else "empty:", raw.name)
        self._end("unknown" if episode.is_uneven else "empty", [raw])

    def findings(self) -> list[RldsFinding]:
        """What was found, in no order."""
        found = []
        num_filled = len(self._lengths) - self._ends["empty"]
        for each in self._tally.findings():
            check, _, field = each.reason.partition(":")
            if check == "last_unset" and each.count == num_filled:
                check = "last_never_set"
            detail = ""
            if check == "duplicate_steps":
                detail = f"{self._repeated_steps:,} such steps"
            elif check == "blank_frames":
                detail = f"{self._blank_frames[field]:,} such {'frames' if self._blank_frames[field] > 1 else 'frame'}"
            found.append(finding(check, count=each.count, episodes=each.episodes, field=field or None, detail=detail))
        for check, duplicates in (("duplicate_episode", self._contents), ("repeated_id", self._ids)):
            count, named = duplicates.result()
            if count:
                found.append(finding(check, count=count, episodes=named))
        found += self._alignment_findings()
        if not self._lengths:
            found.append(finding("no_episode"))
        elif IS_TERMINAL in self._scalars and not self._ends["terminal"] and num_filled:
            found.append(finding("no_terminal"))
        return found

    def alignment(self) -> Alignment:
        """The guess about actions and rewards, an `Alignment`."""
        return self._alignment.guess()

    def _alignment_findings(self) -> list[RldsFinding]:
        found = []
        guess = self._alignment.guess()
        if guess.guess in ("RSA", "ARS"):
            detail = f"confidence {guess.confidence}, {'; '.join(guess.evidence)}"
            found.append(finding("alignment", about=guess.guess, detail=detail))
        elif guess.guess == "unknown" and (ACTION in self._fields or self._has_reward):
            found.append(finding("alignment_unknown", detail="; ".join(guess.evidence)))
        for end in ("terminal", "truncated"):
            real = self._alignment.is_real(ACTION, end) and not self._alignment.is_filler(REWARD, end)
            lacks = real and guess.guess != "ARS"
            if (lacks or (self._is_d4rl and end == "truncated")) and self._ends[end]:
                found.append(
                    finding(
                        "no_final_observation",
                        count=self._ends[end],
                        episodes=tuple(self._end_names[end]),
                        about=end,
                    )
                )
        return found

    def _found(self, check: str, where: Array, field: str = "") -> None:
        """Keeps where, bool `[E]`, a check found something."""
        self._here.extend((index, check, field) for index in where.nonzero()[0].tolist())

    def _tell(self, block: EpisodeBlock) -> Array:
        """Counts what was found in a block, an episode after the other."""
        matters = np.zeros([len(block)], bool)
        for index, check, field in sorted(self._here, key=operator.itemgetter(0)):
            self._tally.add(f"{check}:{field}", block.raws[index].name)
            matters[index] |= check in _MATTERS_TO_LOADING
        self._here.clear()
        return matters

    def _end(self, kind: str, raws: Sequence[RawEpisode]) -> None:
        self._ends[kind] += len(raws)
        named = self._end_names.setdefault(kind, [])
        named += [raw.name for raw in raws[: _NAMED - len(named)]]

    def _scalar(self, block: EpisodeBlock, field: str) -> Array | None:
        """A field of one number a step, `[R]`; None where there is none."""
        return block.columns[field,].reshape(-1) if field in self._scalars else None

    def _check_flags(self, block: EpisodeBlock) -> dict[str, Array]:
        """Tells which episodes, bool `[E]`, are `'terminal'` and which `'truncated'`."""
        flags = {}
        for field in FLAGS:
            column = self._scalar(block, field)
            if column is not None:
                flags[field] = column.astype(bool, copy=False)
        first, last, terminal = (flags.get(field) for field in FLAGS)
        if first is not None:
            is_set = first[block.first]
            self._found("first_unset", ~is_set)
            self._found("first_late", block.count(first) > is_set)
        for check, flag in (("last_early", last), ("terminal_early", terminal)):
            if flag is not None:
                self._found(check, block.count(flag) > flag[block.last])
        none = np.zeros([len(block)], bool)
        is_cut = none if last is None else ~last[block.last]
        self._found("last_unset", is_cut)
        if terminal is None:
            self._end("unknown", block.raws)
            return {"terminal": none, "truncated": none}
        is_terminal = terminal[block.last]
        ends = {"terminal": is_terminal, "truncated": ~is_terminal & ~is_cut}
        for kind, where in (*ends.items(), ("cut", ~is_terminal & is_cut)):
            self._end(kind, [block.raws[index] for index in where.nonzero()[0].tolist()])
        return ends

    def _check_values(self, block: EpisodeBlock) -> None:
        """NaN and infinities by field."""
        last_is_not_finite = np.zeros([len(block)], bool)
        for path, leaves in block.leaves.items():
            column = block.columns.get(path)
            if column is None:
                found = np.array([_holds_others(leaf) for leaf in leaves])
            elif column.dtype.kind in "biu" or _are_finite(column).all():
                continue
            else:
                rows = ~_are_finite(column).reshape(len(column), -1).all(axis=1)
                found = block.count(rows)
                if path[0] in TRANSITION_FIELDS:
                    last_is_not_finite |= rows[block.last]
                    found = found - rows[block.last]
            if path[0] in (REWARD, DISCOUNT):
                self._found(f"{path[0]}_not_finite", found)
            elif path[0] in (OBSERVATION, ACTION):
                self._found("not_finite", found, field_path(path))
            else:
                self._found("not_finite_metadata", found, field_path(path))
        self._found("last_not_finite", last_is_not_finite)

    def _check_frames(self, block: EpisodeBlock) -> None:
        """Images of one colour, cameras that hang, and observations that do."""
        still: dict[Path, Array] = {}
        blank: dict[Path, Array] = {}
        for path, leaves in block.leaves.items():
            if not isinstance(leaves[0], np.ndarray) or not (path in self._images or path[0] == OBSERVATION):
                continue
            still[path] = are_still(block, path)
            if path in self._images and path in block.columns:
                blank[path] = self._check_blank(block, path, still[path])
        observation = {path for path in block.leaves if path[0] == OBSERVATION}
        is_long = block.lengths >= MIN_FROZEN_STEPS
        for index in np.flatnonzero(is_long & np.logical_or.reduce(list(still.values()))):
            stay = {path for path in still if still[path][index]}
            shown = {path for path in stay if path not in blank or not blank[path][index]}
            frozen = {path for path in shown if path in self._images}
            here = np.arange(len(block)) == index
            if observation <= stay and observation & shown:
                # A part that stays may be a goal; where all stay the observation hangs, and that is told once.
                whole = field_path(next(iter(observation))) if len(observation) == 1 else OBSERVATION
                self._found("frozen", here, whole)
                frozen -= observation
            for path in sorted(frozen):
                self._found("frozen", here, field_path(path))

    def _check_blank(self, block: EpisodeBlock, path: Path, still: Array) -> Array:
        """Which episodes show one colour throughout, bool `[E]`; frames of one amid others are counted."""
        is_blank = np.zeros([len(block)], bool)
        num_amid = np.zeros([len(block)], np.int64)
        for index, images in enumerate(block.leaves[path]):
            if still[index]:
                is_blank[index] = one_colour(images[:1], self._images[path])[0]
            else:
                num_amid[index] = num_amid_others(one_colour(images, self._images[path]))
        field = field_path(path)
        self._found("blank_image", is_blank, field)
        self._found("blank_frames", num_amid, field)
        self._blank_frames[field] = self._blank_frames.get(field, 0) + int(num_amid.sum())
        return is_blank

    def _check_discount(self, block: EpisodeBlock, ends: Mapping[str, Array]) -> None:
        discount = self._scalar(block, DISCOUNT)
        if discount is None:
            return
        is_zero = discount == 0
        of_last = is_zero[block.last]
        self._found("last_discount", (ends["terminal"] & ~of_last) | (ends["truncated"] & of_last))
        # The transition into the last step; an episode of one step has none.
        has_transition = block.lengths > 1
        into_last = is_zero[block.last - has_transition]
        into_terminal = has_transition & ends["terminal"]
        self._found("terminal_discount", into_terminal & ~into_last)
        self._found("discount_contradicts", block.count(is_zero) - of_last - (into_terminal & into_last))
        if not (discount.min() >= 0 and discount.max() <= 1):
            self._found("discount_range", block.transitions_that(_leave_unit_range, discount))
        if _too_large_for_float32(discount):
            self._found("beyond_float32", block.transitions_that(_too_large_for_float32, discount))

    def _check_reward(self, block: EpisodeBlock) -> Array | None:
        reward = block.columns.get((REWARD,)) if self._has_reward else None
        if reward is None:
            return None
        self._found("last_reward", reward[block.last].reshape(len(block), -1).any(axis=1))
        if _too_large_for_float32(reward):
            self._found("beyond_float32", block.transitions_that(_too_large_for_float32, reward))
        elif _inexact_in_float32(reward):
            self._found("reward_inexact", block.transitions_that(_inexact_in_float32, reward))
        if REWARD in self._scalars:
            # Rewards of 1e308 overflow: that sum is no return.
            with np.errstate(over="ignore", invalid="ignore"):
                totals = [float(leaf[:-1].sum(dtype=np.float64)) for leaf in block.leaves[REWARD,] if len(leaf) > 1]
            self._returns.extend(total for total in totals if abs(total) <= _LARGEST_FLOAT32)
        return reward

    def _check_observation(self, block: EpisodeBlock, ends: Mapping[str, Array]) -> None:
        paths = [path for path in block.leaves if path[0] == OBSERVATION]
        if not all(path in block.columns for path in paths):
            return
        finals = [block.columns[path][block.last].reshape(len(block), -1) for path in paths]
        if sum(final.shape[1] for final in finals) > 1:
            is_other = np.logical_or.reduce([final.any(axis=1) for final in finals])
            self._found("zero_observation", ends["terminal"] & (block.lengths > 1) & ~is_other)

    def _check_repeats(self, block: EpisodeBlock) -> None:
        """The episode again, and steps again: by observation, action and reward."""
        core = [path for path in block.leaves if path[0] in (OBSERVATION, ACTION, REWARD)]
        parts = zip(*(block.leaves[path] for path in core), strict=True) if core else [()] * len(block)
        for raw, length, leaves in zip(block.raws, block.lengths.tolist(), parts, strict=True):
            self._contents.add(digest_of_columns(length, leaves), raw.name)
        if core and all(path in block.columns for path in core):
            repeats = rows_that_repeat([block.columns[path] for path in core])
            # Those of another episode repeat nothing, and action and reward of the last step are filler.
            repeats[block.first] = repeats[block.last] = False
            num_repeated = block.count(repeats)
            self._repeated_steps += int(num_repeated.sum())
            self._found("duplicate_steps", num_repeated)


def leaves_of(nest: Any) -> dict[Path, Any]:
    """The leaves of a nest by path."""
    return dict(leaves_with_paths(nest, ()))


def _is_one_number(spec: Any) -> bool:
    return (
        isinstance(spec, tf.TensorSpec)
        and spec.shape.rank is not None
        and spec.shape.as_list() in ([], [1])
        and spec.dtype != tf.string
        and not spec.dtype.is_complex
    )


def _holds_others(leaf: Any) -> bool:
    """Whether a column that is no array of numbers holds some that are not finite."""
    return isinstance(leaf, tf.RaggedTensor) and not _are_finite(leaf.flat_values.numpy()).all()


def _are_finite(values: Array) -> Array:
    """Which of them are, bool `[...]`."""
    if values.dtype.kind == "V":  # bfloat16
        values = values.astype(np.float32)
    return np.isfinite(values) if values.dtype.kind in "fc" else np.ones(values.shape, bool)


def _too_large_for_float32(values: Array) -> bool:
    if values.dtype != np.float64 or not values.size:
        return False
    magnitude = np.abs(values)
    return bool((magnitude[np.isfinite(magnitude)] > _LARGEST_FLOAT32).any())


def _inexact_in_float32(values: Array) -> bool:
    if values.dtype.kind not in "iu" or not values.size:
        return False
    return max(int(values.max()), -int(values.min())) > _EXACT_IN_FLOAT32


def _leave_unit_range(values: Array) -> bool:
    return bool(values.size) and bool(values.min() < 0 or values.max() > 1)
