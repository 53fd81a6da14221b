"""Sequences that arrive already cut, with lengths, into any buffer: kept as they are, or joined to be cut anew."""

from __future__ import annotations

from typing import Any

import numpy as np

from replayfeed.buffers import DataSpec, ReplayBuffer

Items = Any


def add_cut_sequences(
    buffer: ReplayBuffer, items: Items, lengths: Any, *, replay_sequence_override: bool = True
) -> Any:
    """Stores `N` padded sequences, which follow each other in one stream.

    RLlib's two ways, under its name. Overriding (the default) takes the cuts for an accident of
    collection: the frames are joined again, an episode ends only where the frames say so, and
    windows are cut anew. Not overriding ends what the stream has open, and keeps each sequence as a
    unit, as if it were an episode whose end is unknown (truncated): draw them whole by
    `Window(T, stride=T, short="pad")`, or from an `EpisodicReplayBuffer`.

    Args:
      buffer: a buffer of one stream.
      items: nest matching its `data_spec`, leaves `[N, T, ...]`; frames from a sequence's length on are padding, and
        not stored.
      lengths: int `[N]`, real frames of each sequence, 1 to `T`.
      replay_sequence_override: join the sequences again.

    Returns:
      Ids of the real frames, int64 `[sum of lengths]`, in order.

    Raises:
      ValueError: `buffer.batch_size` is not 1.
      ValueError: `lengths` is no int `[N]`, or one is not in 1 to `T`. Nothing is stored.
      ValueError: the items do not match `data_spec`. Nothing is stored.

    >>> import tensorflow as tf
    >>> from replayfeed.buffers import TFUniformReplayBuffer, Window
    >>> buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), batch_size=1, max_length=10)
    >>> cut = np.array([[1, 2, 3], [4, 0, 0], [5, 6, 0]])
    >>> add_cut_sequences(buffer, cut, [3, 1, 2], replay_sequence_override=False).tolist()
    [0, 1, 2, 3, 4, 5]
    >>> whole = buffer.as_dataset(window=Window(3, stride=3, short="pad"), single_deterministic_pass=True)
    >>> [items.numpy().tolist() for items, _ in whole]
    [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
    """
    if buffer.batch_size != 1:
        raise ValueError(
            f"add_cut_sequences: the buffer has {buffer.batch_size} streams, and the sequences are of one; "
            "build it with batch_size=1."
        )
    spec = DataSpec(buffer.data_spec)
    leaves = [np.asarray(leaf) for leaf in spec.flatten(items)]
    shape = leaves[0].shape[:2]
    wrong = [leaf.shape[:2] for leaf in leaves if leaf.shape[:2] != shape or leaf.ndim < 2]
    if wrong:
        raise ValueError(
            f"add_cut_sequences: leaves must be [N, T, ...] alike, got {list(shape)} and {list(wrong[0])}."
        )
    num_real = np.asarray(lengths)
    if num_real.shape != shape[:1] or num_real.dtype.kind not in "iu":
        raise ValueError(
            f"add_cut_sequences: lengths must be int [{shape[0]}], got {num_real.dtype} {list(num_real.shape)}."
        )
    if ((num_real < 1) | (num_real > shape[1])).any():
        raise ValueError(f"add_cut_sequences: lengths must be 1 to {shape[1]}, got {num_real.tolist()}.")
    real = np.arange(shape[1]) < num_real[:, None]
    frames = spec.pack([leaf[real][None] for leaf in leaves])
    ends = None
    if not replay_sequence_override:
        ends = np.zeros((1, int(num_real.sum())), bool)
        ends[0, np.cumsum(num_real) - 1] = True
        buffer.end_stream()
    return np.asarray(buffer.add_sequence(frames, end_of_episode=ends))[0]
