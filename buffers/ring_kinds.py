"""The kinds of windows that are drawn from a ring of frames: each has its starts, and what chooses among them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .base import EmptyBufferError
from .eligible_starts import EligibleStarts
from .episode_ends import EpisodeRule
from .equal_frames import EqualFrames
from .frame_flags import FrameFlags
from .mass_index import MassIndex
from .prioritized_starts import PrioritizedStarts
from .ring import FrameRing
from .ring_contents import nothing_eligible
from .ring_sampler import RingSampler
from .ring_starts import WindowStarts
from .ring_writer import RingListener, RingWriter
from .sampled_frames import SampledFrames
from .sampled_starts import SampledStarts
from .sampler_choice import DrawRule
from .storage import FrameStorage
from .windows import Window


class RingKinds:
    """The part of `RingReplayBuffer` that knows which kinds of windows are drawn from it, and how each is."""

    # Of `RingReplayBuffer`.
    _ring: FrameRing
    _storage: FrameStorage
    _lock: threading.Lock
    _writer: RingWriter
    _rule: EpisodeRule
    _check_open: Callable[[], None]

    def _begin_kinds(self, rule: DrawRule, min_size: int, *, heeds_flags: bool) -> None:
        """Nothing is drawn yet.

        Args:
          rule: how windows are drawn.
          min_size: frames that must be held before.
          heeds_flags: frames may be flagged as no starts from the beginning; else from the first `delete` on.
        """
        self._draw_rule, self._min_size = rule, min_size
        self._listener: RingListener | None = None
        # Where streams go apart and draws are uniform.
        self._equal: EqualFrames | None = None
        self._flags = FrameFlags(self._ring.capacity, self._ring.batch_size)
        self._heeds_flags = heeds_flags
        if heeds_flags:
            self._writer.flag(self._flags)
        # What knows of each frame for the sake of samplers, and for each kind of window what is drawn through one.
        self._frames: SampledFrames | None = None
        self._sampled: dict[Window, SampledStarts] = {}
        # Held while kinds of windows are made known, never by a draw or an add.
        self._kinds_lock = threading.RLock()
        self._samplers: dict[Window | None, RingSampler] = {}
        self._eligible: list[EligibleStarts] = []
        if not rule.is_plain:
            self._known_frames()  # priorities count from the first frame on

    def _sampler(self, window: Window | None) -> RingSampler:
        sampler = self._samplers.get(window)
        if sampler is None:
            self._check_open()
            with self._kinds_lock:
                sampler = self._samplers.get(window) or self._new_sampler(window)
            if window is not None and window.length > 1 and window.boundaries == "exclude":
                self._rule.expect_windows()
        return sampler

    def _new_sampler(self, window: Window | None) -> RingSampler:
        starts = self._window_starts(window or Window(1))
        if isinstance(starts, EligibleStarts) and starts not in self._eligible:
            with self._lock:
                self._eligible.append(starts)
                if self._heeds_flags:
                    starts.heed(self._flags)
        sampler = self._samplers[window] = RingSampler(self._ring, self._storage, window, self._lock, starts)
        return sampler

    def _sampled_starts(self, window: Window) -> SampledStarts:
        """Draws where windows of this kind start: through a sampler."""
        starts = self._sampled.get(window)
        if starts is not None:
            return starts
        rule = self._draw_rule
        if rule.only_one_kind and self._sampled:
            raise ValueError(
                f"sampler={rule.name} already draws {next(iter(self._sampled))}: one object serves one kind of window, "
                f"and {window} is another; give a function that makes one, such as its class."
            )
        starts = SampledStarts(
            self._ring,
            window,
            self._lock,
            self._nothing_eligible,
            min_size=self._min_size,
            final_observations=self._rule.has_final_observations,
            rule=rule,
            priorities=self._known_frames().priorities,
        )
        with self._lock:
            if self._heeds_flags:
                starts.heed(self._flags)
            self._known_frames().add_kind(starts)
            if starts not in self._eligible:
                self._eligible.append(starts)
        self._sampled[window] = starts
        return starts

    def _known_frames(self) -> SampledFrames:
        """What knows of each frame for the sake of samplers, from the first call on."""
        if self._frames is None:
            self._frames = SampledFrames(self._ring)
            self._listen(self._frames)
        return self._frames

    def _window_starts(self, window: Window) -> WindowStarts:
        """Draws where windows of this kind start."""
        if self._equal is not None:
            return self._equal_starts(window, self._equal)
        if self._heeds_flags or not self._draw_rule.is_plain:
            return self._sampled_starts(window)
        return WindowStarts(
            self._ring,
            window,
            self._lock,
            self._nothing_eligible,
            min_size=self._min_size,
            final_observations=self._rule.has_final_observations,
            flags=self._flags,
        )

    def _equal_starts(self, window: Window, equal: EqualFrames) -> PrioritizedStarts:
        starts = PrioritizedStarts(
            self._ring,
            window,
            self._lock,
            self._nothing_eligible,
            min_size=self._min_size,
            final_observations=self._rule.has_final_observations,
            index=MassIndex(self._ring.capacity, tracks_least=False, tracks_largest=False),
        )
        with self._lock:
            equal.add_kind(starts)
        return starts

    def _nothing_eligible(self, window: Window) -> EmptyBufferError:
        return nothing_eligible(type(self).__name__, self._ring, self._flags, window, self._min_size)

    def _heed_flags(self) -> None:
        """Makes all draws heed the flags, those of graphs made before too."""
        with self._kinds_lock:
            self._check_open()
            with self._lock:
                self._writer.flag(self._flags)
                for starts in self._eligible:
                    starts.heed(self._flags)
            self._heeds_flags = True
            for window, sampler in self._samplers.items():
                if not isinstance(sampler.starts, EligibleStarts):
                    sampler.starts.replace(self._sampled_starts(window or Window(1)))
            self._flags.tell_graphs()

    def _listen(self, listener: RingListener) -> None:
        """Tells `listener` of what comes and goes from now on."""
        self._listener = listener
        self._writer.listen(listener)
