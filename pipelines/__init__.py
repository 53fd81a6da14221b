"""From data to buffers and from buffers to training: RLDS in, dataset functions, collectors."""

from .agent_moments import FinishedEpisode
from .agent_steps import agent_data_specs
from .agents import of_agent
from .collect_parallel import ParallelCollector
from .collect_turns import TurnCollector
from .cut_sequences import add_cut_sequences
from .episodes import Episodes
from .feed import iterate
from .field_rules import Bytes, Cast, CropTo, Drop, Keep, PadTo
from .fill import fill
from .load_report import Finding, LoadReport
from .rlds_read import load_rlds, rlds_spec
from .transforms import (
    WithReturns,
    WithState,
    lambda_return,
    lambda_returns,
    n_step,
    recurrent_state,
    replay_transitions,
    returns_to_go,
    stack_frames,
    transitions,
)

__all__ = [
    "Bytes",
    "Cast",
    "CropTo",
    "Drop",
    "Episodes",
    "Finding",
    "FinishedEpisode",
    "Keep",
    "LoadReport",
    "PadTo",
    "ParallelCollector",
    "TurnCollector",
    "WithReturns",
    "WithState",
    "add_cut_sequences",
    "agent_data_specs",
    "fill",
    "iterate",
    "lambda_return",
    "lambda_returns",
    "load_rlds",
    "n_step",
    "of_agent",
    "recurrent_state",
    "replay_transitions",
    "returns_to_go",
    "rlds_spec",
    "stack_frames",
    "transitions",
]
