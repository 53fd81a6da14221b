"""Buffers that store experience and give it back as `tf.data.Dataset`s, behind one contract.

Importing this package needs TensorFlow and NumPy only; Reverb is loaded when a class that
uses it is built.
"""

from . import table_presets
from .advantages import Advantages
from .agent_frames import AgentFrame, JointFrame
from .agent_info import AgentInfo, LockstepInfo
from .base import BufferInfo, EmptyBufferError, ReplayBuffer, WaitTimeoutError
from .buffer_config import BufferConfig
from .episode_ids import StatefulEpisodicReplayBuffer
from .episodic import Episode, EpisodicReplayBuffer
from .item_samplers import ItemSampler
from .item_selectors import Fifo, Lifo, MaxHeap, MinHeap, Prioritized, Uniform
from .multi_agent import MultiAgentReplayBuffer
from .multi_agent_config import MultiAgentConfig, validate_config
from .priorities import importance_weights, sequence_priority
from .prioritized import PRIORITIZED_PRESETS, PrioritizedPreset, TFPrioritizedReplayBuffer
from .rate_limiters import MinSize, Queue, SampleToInsertRatio, Stack
from .reservoir import ReservoirReplayBuffer
from .reverb_agents import ReverbAgentTables
from .reverb_agents_adds import MomentIds
from .reverb_agents_tables import agent_tables
from .reverb_buffer import ReverbReplayBuffer
from .reverb_control import CheckpointReport
from .reverb_episodic import ReverbEpisodicReplayBuffer
from .reverb_group import ReverbTableGroup
from .reverb_preload import preloaded_server
from .rollout import RolloutBuffer
from .rollout_minibatches import RolloutInfo
from .save_reports import RestoreReport, SaveReport
from .saved_beside import SavedBeside
from .saved_iterators import SavedIterator
from .server import ReplayServer
from .server_checkpoint_config import CheckpointConfig
from .spec import DataSpec, Transition
from .stats import BufferStats, PriorityAge, WindowCount
from .table_files import load_tables, save_tables
from .tables import TableConfig
from .uniform import TFUniformReplayBuffer
from .windows import Window

__all__ = [
    "Advantages",
    "AgentFrame",
    "AgentInfo",
    "BufferConfig",
    "BufferInfo",
    "BufferStats",
    "CheckpointConfig",
    "CheckpointReport",
    "DataSpec",
    "EmptyBufferError",
    "Episode",
    "EpisodicReplayBuffer",
    "Fifo",
    "ItemSampler",
    "JointFrame",
    "Lifo",
    "LockstepInfo",
    "MaxHeap",
    "MinHeap",
    "MinSize",
    "MomentIds",
    "MultiAgentConfig",
    "MultiAgentReplayBuffer",
    "PRIORITIZED_PRESETS",
    "Prioritized",
    "PrioritizedPreset",
    "PriorityAge",
    "Queue",
    "ReplayBuffer",
    "ReplayServer",
    "ReservoirReplayBuffer",
    "RestoreReport",
    "ReverbAgentTables",
    "ReverbEpisodicReplayBuffer",
    "ReverbReplayBuffer",
    "ReverbTableGroup",
    "RolloutBuffer",
    "RolloutInfo",
    "SampleToInsertRatio",
    "SaveReport",
    "SavedBeside",
    "SavedIterator",
    "Stack",
    "StatefulEpisodicReplayBuffer",
    "TFPrioritizedReplayBuffer",
    "TFUniformReplayBuffer",
    "TableConfig",
    "Transition",
    "Uniform",
    "WaitTimeoutError",
    "Window",
    "WindowCount",
    "agent_tables",
    "importance_weights",
    "load_tables",
    "preloaded_server",
    "save_tables",
    "sequence_priority",
    "table_presets",
    "validate_config",
]
