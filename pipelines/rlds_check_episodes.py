"""Looks at each episode of a dataset once: flags, ends, discounts, rewards, filler, duplicates."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array, field_path, leaves_with_paths

from .episode_source import RawEpisode
from .load_report import Tally
from .rlds_check_alignment import Alignment, AlignmentEvidence, rows_that_hold
from .rlds_check_findings import MIN_FROZEN_STEPS, RldsFinding, finding
from .rlds_check_frames import channels_of, is_still, one_colour
from .rlds_steps import ACTION, DISCOUNT, FLAGS, IS_TERMINAL, OBSERVATION, REWARD

_EXACT_IN_FLOAT32 = 1 << 24
_DIGEST_BYTES = 16

TRANSITION_FIELDS = (ACTION, REWARD, DISCOUNT)
"""What means nothing in the last step."""

ENDS = ("terminal", "truncated", "cut", "unknown", "empty")
"""`cut`: neither `is_terminal` nor `is_last` on the last step. `unknown`: no `is_terminal` in the dataset."""

_NAMED = 5


class EpisodeChecks:
    """Collects what is wrong with episodes, and their lengths and returns.

    Bounded memory: 50 bytes or so an episode, none a step.

    Args:
      specs: type spec of one step for each leaf, by its path as a tuple.
      is_d4rl: the dataset was made by TFDS's D4RL builders.
    """

    def __init__(self, specs: Mapping[tuple[str, ...], Any], *, is_d4rl: bool) -> None:
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
        self._contents = _Duplicates()
        self._ids = _Duplicates()

    @property
    def num_episodes(self) -> int:
        """Episodes seen."""
        return len(self._lengths)

    @property
    def latest_length(self) -> int:
        """Steps of the episode that was added last."""
        return self._lengths[-1]

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

    def add(self, raw: RawEpisode, leaves: Mapping[tuple[str, ...], Any]) -> None:
        """Takes an episode.

        Args:
          raw: as it was read.
          leaves: its columns by path.
        """
        if raw.invalid:
            self._found("invalid", raw.name)
        if raw.id:
            self._ids.add(raw.id.encode(), raw.name)
        num_steps = {_num_rows(leaf) for leaf in leaves.values()}
        if len(num_steps) > 1:
            self._found("lengths_differ", raw.name)
            self._lengths.append(min(num_steps))
            self._end("unknown", raw.name)
            return
        (length,) = num_steps or {0}
        self._lengths.append(length)
        if length == 0:
            self._found("empty", raw.name)
            self._end("empty", raw.name)
            return
        if length == 1:
            self._found("one_step", raw.name)
        end = self._check_flags(raw, length)
        self._end(end, raw.name)
        self._check_values(raw, leaves)
        self._check_frames(raw, leaves, length)
        self._check_discount(raw, length, end)
        reward = self._check_reward(raw, length)
        self._check_observation(raw, leaves, length, end)
        action = [leaf for path, leaf in leaves.items() if path[0] == ACTION and _is_number(leaf)]
        self._alignment.add(action, reward, end)
        self._check_repeats(raw, leaves, length)

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

    def _found(self, check: str, name: str, field: str = "") -> None:
        self._tally.add(f"{check}:{field}", name)

    def _end(self, kind: str, name: str) -> None:
        self._ends[kind] += 1
        named = self._end_names.setdefault(kind, [])
        if len(named) < _NAMED:
            named.append(name)

    def _scalar(self, raw: RawEpisode, field: str) -> Array | None:
        """A field of one number a step, `[N + 1]`; None where there is none."""
        if field not in self._scalars:
            return None
        return np.asarray(raw.columns[field]).reshape(-1)

    def _check_flags(self, raw: RawEpisode, length: int) -> str:
        """Tells how the episode ends."""
        flags = {}
        for field in FLAGS:
            column = self._scalar(raw, field)
            if column is not None:
                flags[field] = column.astype(bool, copy=False)
        first, last, terminal = (flags.get(field) for field in FLAGS)
        if first is not None:
            if not first[0]:
                self._found("first_unset", raw.name)
            if np.count_nonzero(first) > bool(first[0]):
                self._found("first_late", raw.name)
        for check, flag in (("last_early", last), ("terminal_early", terminal)):
            if flag is not None and np.count_nonzero(flag) > bool(flag[-1]):
                self._found(check, raw.name)
        if last is not None and not last[-1]:
            self._found("last_unset", raw.name)
        if terminal is None:
            return "unknown"
        if terminal[-1]:
            return "terminal"
        return "cut" if last is not None and not last[-1] else "truncated"

    def _check_values(self, raw: RawEpisode, leaves: Mapping[tuple[str, ...], Any]) -> None:
        """NaN and infinities by field."""
        last_is_not_finite = False
        for path, leaf in leaves.items():
            values = leaf.flat_values.numpy() if isinstance(leaf, tf.RaggedTensor) else leaf
            if _all_finite(values):
                continue
            if path[0] in TRANSITION_FIELDS and not isinstance(leaf, tf.RaggedTensor):
                last_is_not_finite |= not _all_finite(values[-1:])
                if _all_finite(values[:-1]):
                    continue
            if path[0] in (REWARD, DISCOUNT):
                self._found(f"{path[0]}_not_finite", raw.name)
            elif path[0] in (OBSERVATION, ACTION):
                self._found("not_finite", raw.name, field_path(path))
            else:
                self._found("not_finite_metadata", raw.name, field_path(path))
        if last_is_not_finite:
            self._found("last_not_finite", raw.name)

    def _check_frames(self, raw: RawEpisode, leaves: Mapping[tuple[str, ...], Any], length: int) -> None:
        """Images of one colour, cameras that hang, and observations that do."""
        still, blank = set(), set()
        for path, leaf in leaves.items():
            if not isinstance(leaf, np.ndarray) or not (path in self._images or path[0] == OBSERVATION):
                continue
            channels = self._images.get(path) if _is_number(leaf) else None
            if is_still(leaf):
                still.add(path)
                if channels is not None and one_colour(leaf[:1], channels)[0]:
                    blank.add(path)
                    self._found("blank_image", raw.name, field_path(path))
            elif channels is not None:
                self._check_blank_frames(raw.name, field_path(path), one_colour(leaf, channels))
        if length < MIN_FROZEN_STEPS:
            return
        observation = {path for path in leaves if path[0] == OBSERVATION}
        frozen = {path for path in still - blank if path in self._images}
        if observation and observation <= still and not observation <= blank:
            # A part that stays may be a goal; where all stay the observation hangs, and that is told once.
            whole = field_path(next(iter(observation))) if len(observation) == 1 else OBSERVATION
            self._found("frozen", raw.name, whole)
            frozen -= observation
        for path in sorted(frozen):
            self._found("frozen", raw.name, field_path(path))

    def _check_blank_frames(self, name: str, field: str, is_blank: Array) -> None:
        """Frames of one colour with others before and after them; a fade at either end is none."""
        others = np.flatnonzero(~is_blank)
        count = int(np.count_nonzero(is_blank[others[0] : others[-1]])) if others.size else 0
        if count:
            self._blank_frames[field] = self._blank_frames.get(field, 0) + count
            self._found("blank_frames", name, field)

    def _check_discount(self, raw: RawEpisode, length: int, end: str) -> None:
        discount = self._scalar(raw, DISCOUNT)
        if discount is None:
            return
        if end == "terminal" and discount[-1] != 0 or end == "truncated" and discount[-1] == 0:
            self._found("last_discount", raw.name)
        if length < 2:
            return
        of_transitions = discount[:-1]
        if end == "terminal" and of_transitions[-1] != 0:
            self._found("terminal_discount", raw.name)
        into_others = of_transitions[:-1] if end == "terminal" else of_transitions
        if np.count_nonzero(into_others) < len(into_others):
            self._found("discount_contradicts", raw.name)
        if of_transitions.min() < 0 or of_transitions.max() > 1:
            self._found("discount_range", raw.name)
        if _too_large_for_float32(of_transitions):
            self._found("beyond_float32", raw.name)

    def _check_reward(self, raw: RawEpisode, length: int) -> Array | None:
        if not self._has_reward:
            return None
        reward = np.asarray(raw.columns[REWARD])
        if reward.dtype.kind in "OSU":
            return None
        of_transitions = reward[:-1]
        if reward[-1].any():
            self._found("last_reward", raw.name)
        if _too_large_for_float32(of_transitions):
            self._found("beyond_float32", raw.name)
        elif reward.dtype.kind in "iu" and of_transitions.size:
            most = max(int(of_transitions.max()), -int(of_transitions.min()))
            if most > _EXACT_IN_FLOAT32:
                self._found("reward_inexact", raw.name)
        if REWARD in self._scalars and length > 1:
            # Rewards of 1e308 overflow: that sum is no return.
            with np.errstate(over="ignore", invalid="ignore"):
                total = float(of_transitions.sum(dtype=np.float64))
            if np.isfinite(total) and abs(total) <= np.finfo(np.float32).max:
                self._returns.append(total)
        return reward

    def _check_observation(self, raw: RawEpisode, leaves: Mapping[tuple[str, ...], Any], length: int, end: str) -> None:
        if end != "terminal" or length < 2:
            return
        size = 0
        for path, leaf in leaves.items():
            if path[0] == OBSERVATION:
                if not _is_number(leaf) or leaf[-1].any():
                    return
                size += leaf[-1].size
        if size > 1:
            self._found("zero_observation", raw.name)

    def _check_repeats(self, raw: RawEpisode, leaves: Mapping[tuple[str, ...], Any], length: int) -> None:
        """The episode again, and steps again: by observation, action and reward."""
        core = [leaf for path, leaf in leaves.items() if path[0] in (OBSERVATION, ACTION, REWARD)]
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        digest.update(length.to_bytes(8, "little"))
        for leaf in core:
            _hash_leaf(digest, leaf)
        self._contents.add(digest.digest(), raw.name, is_digest=True)
        if core and all(_is_number(leaf) for leaf in core):
            # Action and reward of the last step are filler, which repeats nothing.
            num_repeated = _count_repeats([leaf[:-1] for leaf in core])
            if num_repeated:
                self._repeated_steps += num_repeated
                self._found("duplicate_steps", raw.name)


class _Duplicates:
    """Which of many things came before, found at the end: 16 bytes for each."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._count = 0
        self._names: dict[int, str] = {}

    def add(self, content: bytes, name: str, *, is_digest: bool = False) -> None:
        self._digests += content if is_digest else hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
        if name != str(self._count):
            self._names[self._count] = name
        self._count += 1

    def result(self) -> tuple[int, tuple[str, ...]]:
        """How many came before, and the first few as `'7 = 2'`."""
        halves = np.frombuffer(self._digests, np.uint64).reshape(-1, 2)
        order = np.lexsort((np.arange(len(halves)), halves[:, 1], halves[:, 0]))
        again = np.zeros([len(halves)], bool)
        again[1:] = (halves[order][1:] == halves[order][:-1]).all(axis=1)
        # The first of each run of equal ones, which is the earliest episode.
        first = np.maximum.accumulate(np.where(again, 0, np.arange(len(halves)))) if len(halves) else order
        pairs = sorted((int(order[place]), int(order[first[place]])) for place in np.flatnonzero(again)[:1000])
        named = tuple(f"{self._name(later)} = {self._name(earlier)}" for later, earlier in pairs[:_NAMED])
        return int(again.sum()), named

    def _name(self, index: int) -> str:
        return self._names.get(index, str(index))


def leaves_of(nest: Any) -> dict[tuple[str, ...], Any]:
    """The leaves of a nest by path."""
    return dict(leaves_with_paths(nest, ()))


def _num_rows(leaf: Any) -> int:
    return int(leaf.nrows()) if isinstance(leaf, tf.RaggedTensor) else len(leaf)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufcV"


def _is_one_number(spec: Any) -> bool:
    return (
        isinstance(spec, tf.TensorSpec)
        and spec.shape.rank is not None
        and spec.shape.as_list() in ([], [1])
        and spec.dtype != tf.string
        and not spec.dtype.is_complex
    )


def _all_finite(values: Array) -> bool:
    if values.dtype.kind == "V":  # bfloat16
        values = values.astype(np.float32)
    return values.dtype.kind not in "fc" or bool(np.isfinite(values).all())


def _too_large_for_float32(values: Array) -> bool:
    if values.dtype != np.float64 or not values.size:
        return False
    magnitude = np.abs(values)
    return bool((magnitude[np.isfinite(magnitude)] > np.finfo(np.float32).max).any())


def _hash_leaf(digest: Any, leaf: Any) -> None:
    if isinstance(leaf, tf.RaggedTensor):
        for lengths in leaf.nested_row_lengths():
            digest.update(lengths.numpy().tobytes())
        leaf = leaf.flat_values.numpy()
    if leaf.dtype.kind in "OSU":
        values = [value if isinstance(value, bytes) else str(value).encode() for value in leaf.ravel().tolist()]
        digest.update(np.fromiter(map(len, values), np.int64, len(values)).tobytes())
        digest.update(b"".join(values))
        return
    digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8))


def _count_repeats(columns: Sequence[Array]) -> int:
    """Rows that equal the row before in all columns `[n, ...]`."""
    num_rows = len(columns[0])
    if num_rows < 2:
        return 0
    flat = [column.reshape(num_rows, -1) for column in columns]
    return int(np.count_nonzero(rows_that_hold(num_rows - 1, [(rows[1:], rows[:-1]) for rows in flat])))
