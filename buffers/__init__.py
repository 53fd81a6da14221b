"""Buffers that store experience and give it back as `tf.data.Dataset`s, behind one contract.

Importing this package needs TensorFlow and NumPy only; Reverb is loaded when a class that
uses it is built.
"""

from .base import BufferInfo, EmptyBufferError, ReplayBuffer, WaitTimeoutError
from .reverb_buffer import ReverbReplayBuffer
from .server import ReplayServer
from .spec import DataSpec, Transition
from .stats import BufferStats
from .tables import Fifo, Lifo, MinSize, TableConfig, Uniform
from .uniform import TFUniformReplayBuffer
from .windows import Window

__all__ = [
    "BufferInfo",
    "BufferStats",
    "DataSpec",
    "EmptyBufferError",
    "Fifo",
    "Lifo",
    "MinSize",
    "ReplayBuffer",
    "ReplayServer",
    "ReverbReplayBuffer",
    "TFUniformReplayBuffer",
    "TableConfig",
    "Transition",
    "Uniform",
    "WaitTimeoutError",
    "Window",
]
