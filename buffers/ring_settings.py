"""Which sizes a ring of frames may have, and which sizes may be asked of it. Pure."""

from __future__ import annotations

from typing import Any

from .counts import check_count
from .windows import Window

# Rows are counted in 32 bits.
_MOST_FRAMES = 2**31 - 1


def check_ring_settings(
    batch_size: Any, max_length: Any, device: Any, window_shift: Any, *, seed: Any, min_size_to_sample: Any
) -> int:
    """The capacity in frames that a buffer's arguments ask for.

    Raises:
      TypeError: a count is no int.
      ValueError: a count is below 1, `seed` no int of at least 0, or `min_size_to_sample` above the capacity.
      ValueError: `device` is no CPU, or the capacity has 2**31 frames or more.

    >>> check_ring_settings(4, 100, "cpu:*", None, seed=None, min_size_to_sample=1)
    400
    """
    check_count("batch_size", batch_size)
    check_count("max_length", max_length)
    check_count("dataset_window_shift", window_shift, optional=True)
    check_count("min_size_to_sample", min_size_to_sample)
    capacity = int(batch_size) * int(max_length)
    if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0):
        raise ValueError(f"seed must be an int of at least 0, or None, got {seed!r}.")
    if min_size_to_sample > capacity:
        raise ValueError(
            f"min_size_to_sample {min_size_to_sample} is above the capacity of {capacity} frames: "
            "nothing could ever be drawn; lower it or raise max_length."
        )
    if "cpu" not in str(device).lower():
        raise ValueError(
            f"device {device!r}: storage stays on the CPU; leave device out, and copy batches to the "
            "device with as_dataset(...).apply(tf.data.experimental.prefetch_to_device(device))."
        )
    if capacity > _MOST_FRAMES:
        raise ValueError(f"a capacity of {capacity} frames is over the limit of 2**31 - 1; lower max_length.")
    return capacity


def check_ring_sizes(
    capacity: int, batch_size: int, sample_batch_size: int | None, window: Window | None, *, drop_remainder: bool
) -> None:
    """Refuses windows and batches of which none could ever come.

    Raises:
      ValueError: the window is longer than what is kept of a stream; or with `drop_remainder`, as passes have it, the
        batch larger than all that is kept.

    >>> check_ring_sizes(400, 4, 32, Window(101), drop_remainder=False)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: num_steps 101 > max_length 100: no window could ever come and ALL data will be dropped; ...
    """
    max_length = capacity // batch_size
    if window is not None and window.short == "drop" and window.num_steps > max_length:
        raise ValueError(
            f"num_steps {window.num_steps} > max_length {max_length}: no window could ever come and "
            "ALL data will be dropped; lower num_steps, raise max_length, or take Window(..., short='pad')."
        )
    if drop_remainder and (sample_batch_size or 0) > capacity:
        raise ValueError(
            f"sample_batch_size {sample_batch_size} > capacity {capacity} with dataset_drop_remainder: "
            "no batch could ever come and ALL data will be dropped; lower sample_batch_size."
        )
