"""From data to buffers and from buffers to training: RLDS in, dataset functions, collectors."""

from .agents import of_agent
from .cut_sequences import add_cut_sequences
from .episodes import Episodes
from .feed import iterate
from .fill import fill
from .load_report import Finding, LoadReport
from .rlds_read import load_rlds
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
    "Episodes",
    "Finding",
    "LoadReport",
    "WithReturns",
    "WithState",
    "add_cut_sequences",
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
    "stack_frames",
    "transitions",
]
