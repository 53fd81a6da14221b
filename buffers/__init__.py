"""Buffers that store experience and give it back as `tf.data.Dataset`s, behind one contract.

Importing this package needs TensorFlow and NumPy only; Reverb is loaded when a class that
uses it is built.
"""

from .base import BufferInfo, EmptyBufferError, ReplayBuffer, WaitTimeoutError
from .spec import DataSpec
from .stats import BufferStats
from .uniform import TFUniformReplayBuffer
from .windows import Window

__all__ = [
    "BufferInfo",
    "BufferStats",
    "DataSpec",
    "EmptyBufferError",
    "ReplayBuffer",
    "TFUniformReplayBuffer",
    "WaitTimeoutError",
    "Window",
]
