"""From data to buffers and from buffers to training: RLDS in and out, dataset functions, collectors."""

from .agent_moments import FinishedEpisode
from .agent_steps import agent_data_specs
from .agents import of_agent
from .arrays import arrays_source
from .buffer_episodes import buffer_source
from .collect_parallel import ParallelCollector
from .collect_turns import TurnCollector
from .cut_sequences import add_cut_sequences
from .episode_mixture import mixed_windows, source_of
from .episode_source import EpisodeSource, RawEpisode
from .episodes import Episode, Episodes
from .feed import iterate
from .field_rules import Bytes, Cast, CropTo, Drop, Keep, PadTo
from .fill import fill
from .hdf5_arrays import hdf5_source
from .load_report import Finding, LoadReport
from .minari import minari_source
from .npz_episodes import npz_source
from .rlds_beam import write_rlds_with_beam
from .rlds_check import validate_rlds
from .rlds_check_report import RldsReport
from .rlds_open import open_source
from .rlds_read import load_rlds, rlds_spec
from .rlds_write import write_rlds
from .rlds_write_report import WriteReport
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
    "Episode",
    "EpisodeSource",
    "Episodes",
    "Finding",
    "FinishedEpisode",
    "Keep",
    "LoadReport",
    "PadTo",
    "ParallelCollector",
    "RawEpisode",
    "RldsReport",
    "TurnCollector",
    "WithReturns",
    "WithState",
    "WriteReport",
    "add_cut_sequences",
    "agent_data_specs",
    "arrays_source",
    "buffer_source",
    "fill",
    "hdf5_source",
    "iterate",
    "lambda_return",
    "lambda_returns",
    "load_rlds",
    "minari_source",
    "mixed_windows",
    "n_step",
    "npz_source",
    "of_agent",
    "open_source",
    "recurrent_state",
    "replay_transitions",
    "returns_to_go",
    "rlds_spec",
    "source_of",
    "stack_frames",
    "transitions",
    "validate_rlds",
    "write_rlds",
    "write_rlds_with_beam",
]
