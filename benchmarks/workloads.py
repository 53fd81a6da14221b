"""What is stored and drawn: the two kinds of experience that every contender gets.

W1  transitions of a continuous-control task: five float32 fields, 168 bytes.
W2  stacks of four 84x84 frames with action, reward and discount, 28,236 bytes.
FRAMES  the same frames, each once, to be stacked when they are read, 7,068 bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

Block = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Workload:
    """One kind of experience.

    Attributes:
      name: as the table calls it.
      fields: shape and dtype of each field of a frame.
    """

    name: str
    fields: dict[str, tuple[tuple[int, ...], np.dtype]]

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame when nothing is wasted."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.fields.values())

    @property
    def data_spec(self) -> dict[str, tf.TensorSpec]:
        return {name: tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in self.fields.items()}

    def frames(self, *outer: int, seed: int = 0) -> Block:
        """Random frames, leaves `[*outer, ...]`: noise in float fields; in pixels a quarter noise and the
        rest flat, which compresses about as well as frames of a game (served tables compress)."""
        rng = np.random.default_rng(seed)
        return {name: _values(rng, (*outer, *shape), dtype) for name, (shape, dtype) in self.fields.items()}


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype == np.float32:
        return rng.standard_normal(shape, np.float32)
    if dtype == np.uint8:
        pixels = np.zeros(shape, np.uint8)
        noisy = pixels[..., : shape[-2] // 4, :]
        noisy[...] = rng.integers(0, 256, noisy.shape, np.uint8)
        return pixels
    return rng.integers(0, 6, shape).astype(dtype)


_F, _I, _U = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint8)

W1 = Workload(
    "W1", {"obs": ((17,), _F), "action": ((6,), _F), "reward": ((), _F), "discount": ((), _F), "next_obs": ((17,), _F)}
)
W2 = Workload("W2", {"obs": ((84, 84, 4), _U), "action": ((), _I), "reward": ((), _F), "discount": ((), _F)})

FRAMES = Workload(
    "single 84x84 frames", {"obs": ((84, 84), _U), "action": ((), _I), "reward": ((), _F), "discount": ((), _F)}
)


def blocks(workload: Workload, num_frames: int, block_frames: int) -> Iterator[tuple[int, Block]]:
    """`num_frames` in pieces: how many frames, and the same block of them again and again."""
    block = workload.frames(min(block_frames, num_frames))
    for start in range(0, num_frames, block_frames):
        num = min(block_frames, num_frames - start)
        yield num, {name: leaf[:num] for name, leaf in block.items()}
