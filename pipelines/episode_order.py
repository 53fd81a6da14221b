"""In which order the windows of offline episodes come: as they lie in the files, or shuffled within bounds.

Shuffled, each window of a block (`episode_blocks.py`) comes while its own block is at hand or while the
next one is, with probability 1/2 each; what is due comes in random order. So windows that are `shuffle_frames`
apart in the files' order are mixed, and never more than two blocks are drawn from. Windows of a pass's last block
all come while it is at hand: each pass delivers each of its windows exactly once before the next begins.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from replayfeed.buffers.base import EmptyBufferError
from replayfeed.buffers.nests import Array, Nest
from replayfeed.buffers.windows import Placed, Window, eligible_windows, stepped_windows

from .episode_blocks import Block, EpisodeBlocks, EpisodeNumbers, NamedFrames

# Frames of a block where nothing is shuffled: enough that the cost of a block does not show.
_ORDERED_FRAMES = 4096

_logger = logging.getLogger(__name__)

StartPass = Callable[[int | None], Iterable[NamedFrames]]
"""Starts a pass over all episodes: with None in the source's order, with a seed in an order of that seed."""


class Taken(NamedTuple):
    """Windows as they come; `n` of them.

    Attributes:
      leaves: `[n, T, ...]` (`[n, ...]` without a window), zeros where a window is padded.
      keys: ids of the drawn frames, int64 `[n]`.
      chances: float32 `[n]`.
      num_before: real frames before the drawn one, int64 `[n]`.
      num_after: real frames from the drawn one on, int64 `[n]`.
    """

    leaves: list[Array]
    keys: Array
    chances: Array
    num_before: Array
    num_after: Array


class Order(NamedTuple):
    """Which windows come, and how.

    Attributes:
      window: the kind of window; None for single frames.
      epochs: how many passes; None: endlessly many.
      shuffled: else in the source's order, once.
      shift: in an ordered pass frames of an episode from one start to the next; None: every eligible window.
      keep_short: with `shift`, keep windows that an episode's end cuts short.
      shuffle_frames: frames of a block.
    """

    window: Window | None
    epochs: int | None
    shuffled: bool
    shift: int | None = None
    keep_short: bool = False
    shuffle_frames: int = 100_000

    def find(self, words: Array) -> Placed:
        """The windows in episodes with these step words."""
        window = self.window or Window(1)
        if self.shift is None:
            return eligible_windows(words, window)
        return stepped_windows(words, window.num_steps, self.shift, keep_short=self.keep_short)


class WindowCounts:
    """How many windows a pass has, as far as is known: what passes over the same episodes share."""

    def __init__(self) -> None:
        self.of_latest_pass: int | None = None


class _Due(NamedTuple):
    """Windows that are to come, `[n]` each."""

    slots: Array
    starts: Array
    keys: Array
    num_before: Array
    num_after: Array

    def take(self, which: Array | slice) -> _Due:
        return _Due(*(each[which] for each in self))


_NONE_DUE = _Due(*[np.zeros([0], np.int64)] * 5)


class WindowStream:
    """Windows of offline episodes, one after the other.

    Args:
      name: of the episodes, for messages.
      start_pass: starts a pass over them.
      element_spec: nest of specs of one frame.
      order: which windows, and how.
      final_observations: the last frame of each episode is only a final observation, which starts no window.
      entropy: what all random choices follow from.
      numbers: of the episodes, for ids.
      counts: what is known of the number of windows.
      passes_alike: every pass brings the same episodes, so that one that fits into a block is read once.

    Raises:
      ValueError: a field is of variable length.
    """

    def __init__(
        self,
        name: str,
        start_pass: StartPass,
        element_spec: Nest,
        order: Order,
        *,
        final_observations: bool,
        entropy: tuple[int, ...],
        numbers: EpisodeNumbers,
        counts: WindowCounts,
        passes_alike: bool = True,
    ) -> None:
        self._name = name
        self._order = order
        self._entropy = entropy
        self._counts = counts
        self._rng = np.random.default_rng(0)
        window = order.window or Window(1)
        self._offsets = np.arange(-window.burn_in, window.num_steps)
        self._is_plain = window.is_plain and not order.keep_short
        self._blocks = EpisodeBlocks(
            name,
            element_spec,
            _passes(start_pass, order, entropy),
            order.find,
            block_frames=order.shuffle_frames if order.shuffled else min(order.shuffle_frames, _ORDERED_FRAMES),
            final_observations=final_observations,
            numbers=numbers,
            passes_alike=passes_alike,
        )
        self._due = self._put_off = _NONE_DUE
        self._num_taken = 0
        # Of the pass at hand.
        self._num_windows = self._num_frames = self._num_shown = self._num_episodes = self._longest = 0

    def take(self, num: int) -> Taken | None:
        """The next `num` windows; fewer where the last pass ends, None after it.

        Raises:
          EmptyBufferError: a pass has no window at all; the message says why.
          ValueError: an episode does not match the spec.
          Whatever reading raises.
        """
        parts = []
        while num:
            left = len(self._due.keys) - self._num_taken
            if not left:
                if not self._next_block():
                    break
                continue
            parts.append(self._take_due(min(num, left)))
            num -= len(parts[-1].keys)
        if len(parts) < 2:
            return parts[0] if parts else None
        leaves = [np.concatenate(each) for each in zip(*(part.leaves for part in parts), strict=True)]
        return Taken(leaves, *(np.concatenate(each) for each in zip(*(part[1:] for part in parts), strict=True)))

    def _take_due(self, num: int) -> Taken:
        start, stop = self._num_taken, self._num_taken + num
        due = self._due.take(slice(start, stop))
        self._num_taken = stop
        # As much of the next block as has been delivered of what is due: no batch waits for a whole block.
        self._blocks.advance(-(-self._blocks.block_frames * stop // len(self._due.keys)))
        rows = due.starts
        mask = None
        if self._order.window is not None:
            rows = due.starts[:, np.newaxis] + self._offsets
            if not self._is_plain:
                mask = (self._offsets >= -due.num_before[:, np.newaxis]) & (
                    self._offsets < due.num_after[:, np.newaxis]
                )
                rows = np.where(mask, rows, due.starts[:, np.newaxis])
        leaves = self._blocks.gather(due.slots, rows)
        if mask is not None and not mask.all():
            for leaf in leaves:
                leaf[~mask] = b"" if leaf.dtype == object else 0
        chance = 1.0
        if self._order.shuffled:
            chance = 1 / (self._counts.of_latest_pass or self._num_windows)
        return Taken(leaves, due.keys, np.full([num], chance, np.float32), due.num_before, due.num_after)

    def _next_block(self) -> bool:
        """Takes the next block at hand; False after the last one."""
        block = self._blocks.next_block()
        if block is None:
            return False
        self._count(block)
        own = _Due(
            np.full(block.starts.shape, block.slot, np.int64),
            block.starts,
            block.keys,
            block.num_before,
            block.num_after,
        )
        self._num_taken = 0
        if not self._order.shuffled:
            self._due = own
            return True
        if block.is_first:
            self._rng = np.random.default_rng(_seeds(self._entropy, block.epoch))
        now = np.ones(block.starts.shape, bool) if block.is_last else self._rng.random(len(block.starts)) < 0.5
        due = _Due(*(np.concatenate(pair) for pair in zip(self._put_off, own.take(now), strict=True)))
        self._put_off = own.take(~now)
        self._due = due.take(self._rng.permutation(len(due.keys)))
        return True

    def _count(self, block: Block) -> None:
        if block.is_first:
            self._num_windows = self._num_frames = self._num_shown = self._num_episodes = self._longest = 0
        self._num_windows += len(block.starts)
        self._num_frames += block.num_frames
        self._num_shown += int(block.num_after.sum())
        self._num_episodes += block.num_episodes
        self._longest = max(self._longest, block.longest)
        window = self._order.window or Window(1)
        if not self._num_windows:
            what = "no frame" if self._order.window is None else f"no window of {window.num_steps} frames"
            found = f"{self._name}: {what} in {self._num_episodes} episodes, the longest of {self._longest} frames"
            if block.is_last:
                raise EmptyBufferError(f"{found}.")
            # A pass without end would read on in silence.
            _logger.warning("%s; reading on", found)
        if not block.is_last:
            return
        self._counts.of_latest_pass = self._num_windows
        left_out = self._num_frames - self._num_shown
        if self._order.shift == window.num_steps > 1 and not self._order.keep_short and left_out:
            _logger.warning("%d frames are in no window of %d frames; left out.", left_out, window.num_steps)


def _passes(
    start_pass: StartPass, order: Order, entropy: tuple[int, ...]
) -> Iterator[Callable[[], Iterable[NamedFrames]]]:
    """What starts each pass. It does not refer to the stream, whose memory is freed with its last reference."""
    if not order.shuffled:
        yield lambda: start_pass(None)
        return
    for epoch in itertools.count() if order.epochs is None else range(order.epochs):
        yield functools.partial(start_pass, int(_seeds(entropy, epoch).generate_state(1, np.uint32)[0] >> 1))


def _seeds(entropy: tuple[int, ...], epoch: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([*entropy, epoch])
