"""What a ring of frames holds to draw from, in numbers and in words: counts of windows, and why there are none."""

from __future__ import annotations

import numpy as np

from .base import EmptyBufferError
from .frame_flags import FrameFlags
from .nests import Array
from .ring import FrameRing
from .ring_sampler import RingSampler
from .sampled_starts import SampledStarts
from .stats import WindowCount
from .windows import StartRule, Window, eligible_windows


def nothing_eligible(name: str, ring: FrameRing, flags: FrameFlags, window: Window, min_size: int) -> EmptyBufferError:
    """The error for a ring in which nothing, or too little, can be drawn: it says why, with numbers.

    Args:
      name: of the buffer's class.
      ring: what is held.
      flags: of frames that must not be drawn.
      window: the kind of window asked for.
      min_size: frames that must be held.
    """
    frames = ring.num_frames
    if frames == 0:
        return EmptyBufferError(f"{name} is empty. Make sure to add items before sampling the buffer.")
    if frames < min_size:
        return EmptyBufferError(f"{frames} of {min_size} frames (min_size_to_sample): add more before sampling.")
    text = f"no window of {window.num_steps} frames: "
    if window.boundaries == "ignore":
        text += f"{frames // ring.batch_size} frames in each stream"
    else:
        text += f"{ring.num_episodes()} episodes, longest {ring.longest_episode()}"
        if window.short == "pad" and not window.pad_unfinished and ring.unfinished().any():
            text += "; unfinished episodes are only padded with pad_unfinished=True"
        if window.burn_in:
            text += f"; none starts where some of its {window.burn_in} frames of context were evicted"
    if not flags.all_clear:
        text += "; none starts at a frame that eligible_fn refuses, and none contains a deleted one"
    return EmptyBufferError(text + ".")


def count_windows(ring: FrameRing, flags: FrameFlags, window: Window, sampler: RingSampler) -> WindowCount:
    """How many windows of this kind there are; the caller keeps writers away."""
    num_eligible = sampler.num_eligible()
    exhausted = sampler.starts.num_exhausted if isinstance(sampler.starts, SampledStarts) else 0
    if window.short == "pad" or window.num_steps == 1:
        return WindowCount(window, num_eligible, 0, exhausted)
    possible = Window(1, window.burn_in, window.stride)
    words = ring.words_by_stream()
    if window.boundaries == "ignore":
        words = [ring.joined_words(ids) for ids in ring.ids_by_stream()]
    num_possible = sum(len(eligible_windows(stream, possible).starts) for stream in words)
    num_complete = num_eligible + exhausted
    if not flags.all_clear:  # of windows that must not be drawn only those count here that are too short
        num_complete = sum(len(eligible_windows(stream, window).starts) for stream in words)
    return WindowCount(window, num_eligible, num_possible - num_complete, exhausted)


def check_held(ring: FrameRing, flags: FrameFlags, starts: Array, num_steps: int) -> None:
    """Refuses windows of which frames are not held; the caller keeps writers away.

    Raises:
      ValueError: an id is not held, or was deleted.
      ValueError: a window does not fit into its episode, or is not written yet.
    """
    gone = ~ring.is_held(starts)
    if gone.any():
        first = starts[gone][0]
        oldest, following = ring.at(ring.tail, first), ring.at(ring.published, first)
        held = f"ids {oldest} to {following - (ring.batch_size if ring.apart else 1)}"
        raise ValueError(
            f"id {first} is not held: {f'of its stream {held}' if ring.apart else held} are; "
            f"{int(gone.sum())} of {len(starts)} ids are gone or were never given out."
        )
    if flags.num_deleted:
        ids = starts[:, None] + np.arange(num_steps) * ring.batch_size
        deleted = flags.is_deleted(ids) & (ids < ring.at(ring.published, ids))
        if deleted.any():
            raise ValueError(f"id {ids[deleted][0]} was deleted; {int(deleted.sum())} of {ids.size} frames were.")
    if num_steps == 1:
        return
    ends = starts + (num_steps - 1) * ring.batch_size
    whole = ends < ring.at(ring.published, ends)
    whole[whole] = StartRule(num_steps - 1).holds(ring.words[ring.rows(ends[whole])])
    if not whole.all():
        raise ValueError(f"no window of {num_steps} frames starts at id {starts[~whole][0]}: its episode is shorter.")
